// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// NVFP4 (numerics/nvfp4.h): a tile of [128, 512] FP32, BF16 or FP16 becomes its part of the rowwise
// and of the columnwise copy in one pass over the input.
//
// The input is read in squares of 16 x 16. As loaded, a lane is a column, and 16 vectors are the
// blocks of the columnwise copy; transposed, a lane is a row. Both go through the same code, which
// works between vectors (simd/nvfp4.h). Read: the input once. Written: 9/16 of a byte per element
// and copy. Codes are collected to whole cache lines: rowwise over 128 columns, columnwise over the
// 128 rows of the tile.
#include "cpu/nvfp4_kernels.h"
#include "cpu/simd/nvfp4_strip.h"
#include "numerics/hadamard.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

constexpr int kGroups = kNvfp4Block / kWidth;  // vectors that 16 lanes take

// 16 x 16 elements: group g of vectors has the lanes [g * kWidth, (g + 1) * kWidth).
struct Square {
  Blocks group[kGroups];
};

// Lanes are columns, vectors rows; what lies beyond the input is 0.
template <typename T>
TE_INLINE void load_square(const T* in, int64_t stride, int64_t rows, int64_t cols, Square& out) {
  if (rows == kNvfp4Block && cols == kNvfp4Block) {
#pragma GCC unroll 16
    for (int row = 0; row < kNvfp4Block; ++row) {
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g) {
        out.group[g][row] = load(in + row * stride + g * kWidth);
      }
    }
    return;
  }
  for (int g = 0; g < kGroups; ++g) {
    const int64_t left = cols - g * kWidth;
    const int64_t count = left < 0 ? 0 : left < kWidth ? left : kWidth;
    for (int row = 0; row < kNvfp4Block; ++row) {
      const bool is_inside = row < rows && count > 0;
      out.group[g][row] = is_inside ? load(in + row * stride + g * kWidth, count) : zero();
    }
  }
}

TE_INLINE void transpose_square(const Square& in, Square& out) {
#pragma GCC unroll 4
  for (int from = 0; from < kGroups; ++from) {
#pragma GCC unroll 4
    for (int to = 0; to < kGroups; ++to) {
      Vf part[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) {
        part[i] = in.group[from][to * kWidth + i];
      }
      transpose(part);
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) {
        out.group[to][from * kWidth + i] = part[i];
      }
    }
  }
}

// Signs of the transform as bits to flip.
struct HadamardSigns {
  int32_t flip[kNvfp4Block];

  TE_INLINE explicit HadamardSigns(uint16_t signs) {
    for (int i = 0; i < kNvfp4Block; ++i) {
      flip[i] = ((signs >> i) & 1) != 0 ? INT32_MIN : 0;
    }
  }
};

TE_INLINE void flip_signs(Blocks& v, const HadamardSigns& signs) {
#pragma GCC unroll 16
  for (int i = 0; i < kNvfp4Block; ++i) {
    v[i] = as_float(as_int(v[i]) ^ set1_int(signs.flip[i]));
  }
}

// One copy's side of the work on a tile.
struct Side {
  const Nvfp4CopyTile* output;
  const QuantizeNvfp4Args* options;
  bool is_columnwise;

  TE_INLINE TensorScale tensor_scale(int64_t first_row) const {
    const numerics::Nvfp4Scale* tensor = output->tensor;
    if (!output->is_row_scaled) {
      return {set1(tensor->scale), set1(tensor->over_six), set1(tensor->inverse)};
    }
    tensor += first_row;
    float lanes[3][kWidth];
    for (int i = 0; i < kWidth; ++i) {
      lanes[0][i] = tensor[i].scale;
      lanes[1][i] = tensor[i].over_six;
      lanes[2][i] = tensor[i].inverse;
    }
    return {load(lanes[0]), load(lanes[1]), load(lanes[2])};
  }
};

TE_INLINE PackedBlocks quantize_blocks(const Blocks& v, const BlocksAmax& amax, Vf target,
                                       const TensorScale& tensor, const BlocksPlace& place,
                                       const QuantizeNvfp4Args& options) {
  const BlockScale block = block_scale(target, tensor);
  PackedBlocks packed;
  packed.scale_code = block.code;
  if (options.is_stochastic) {
    encode_stochastic(v, block.multiplier, place, options.seed, packed.words);
  } else {
    const bool is_ordinary = amax.is_finite && !saturates(target, amax.amax);
    encode_nearest(v, block.multiplier, is_ordinary, packed.words);
  }
  return packed;
}

// Four over six: what the scale of each block rounds.
TE_INLINE Vf better_target(const Blocks& v, Vf target, const TensorScale& tensor,
                           FourOverSix mode) {
  const Vf to_four = target * set1(1.5F);
  const Vf error_of_six = error_of(v, block_scale(target, tensor), tensor, mode);
  const Vf error_of_four = error_of(v, block_scale(to_four, tensor), tensor, mode);
  return select(less(error_of_four, error_of_six), to_four, target);
}

// The same for a tile as a whole: `rowwise` has its blocks along the rows of the input.
TE_INLINE float better_tile_target(const Square& rowwise, float target, const TensorScale& tensor,
                                   FourOverSix mode) {
  const float targets[2] = {target, target * 1.5F};
  float errors[2];
  for (int choice = 0; choice < 2; ++choice) {
    const BlockScale block = block_scale(set1(targets[choice]), tensor);
    Vf error[kGroups];
    for (int g = 0; g < kGroups; ++g) {
      error[g] = error_of(rowwise.group[g], block, tensor, mode);
    }
    for (int half = kGroups / 2; half > 0; half /= 2) {
      for (int g = 0; g < half; ++g) {
        error[g] += error[g + half];
      }
    }
    errors[choice] = reduce_add(error[0]);
  }
  return targets[errors[1] < errors[0] ? 1 : 0];
}

// Quantizes a square, blocks along its vectors, into block number `block` of the strips.
TE_INLINE void quantize_square(const Square& square, const Square& rowwise, const Side& side,
                               const TensorScale (&tensor)[kGroups], const BlocksPlace& place,
                               int block, Strip* strips) {
  const QuantizeNvfp4Args& options = *side.options;
  BlocksAmax amax[kGroups];
  Vf tile_amax = zero();
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) {
    amax[g] = amax_of(square.group[g]);
    tile_amax = max(tile_amax, amax[g].amax);
  }
  float tile_target = 0.0F;
  if (options.has_square_tiles) {
    tile_amax = set1(reduce_max(tile_amax));
    tile_target = reduce_max(tile_amax * tensor[0].over_six);
    if (options.four_over_six != FourOverSix::kNone) {
      tile_target = better_tile_target(rowwise, tile_target, tensor[0], options.four_over_six);
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) {
    const Blocks& v = square.group[g];
    Vf target = amax[g].amax * tensor[g].over_six;
    if (options.has_square_tiles) {
      amax[g].amax = tile_amax;
      target = set1(tile_target);
    } else if (options.four_over_six != FourOverSix::kNone) {
      target = better_target(v, target, tensor[g], options.four_over_six);
    }
    BlocksPlace lanes = place;
    lanes.row += g * kWidth;
    strips[g].put(block, quantize_blocks(v, amax[g], target, tensor[g], lanes, options));
  }
}

// Writes strip number `group` of a square's rows, whose row `first_row` and block `first_block`
// within the tile of the copy it starts at.
TE_INLINE void write_strip(const Strip& strip, const Nvfp4CopyTile& output, int64_t first_row,
                           int64_t first_block, const StripExtent& extent, bool stream) {
  write_codes(strip, extent,
              output.data + first_row * output.data_stride_bytes + first_block * kBlockBytes,
              output.data_stride_bytes, stream);
  write_scales(
      strip, extent,
      output.scales + first_row * output.scale_row_stride + first_block * output.scale_col_stride,
      output.scale_row_stride, output.scale_col_stride);
}

// Writes the strips of 16 rows, of which `rows` exist.
TE_INLINE void write_strips(const Strip* strips, const Nvfp4CopyTile& output, int64_t first_row,
                            int64_t first_block, int64_t rows, int blocks, bool stream) {
  for (int g = 0; g < kGroups; ++g) {
    const int64_t left = rows - g * kWidth;
    const int count = static_cast<int>(left < 0 ? 0 : left < kWidth ? left : kWidth);
    write_strip(strips[g], output, first_row + g * kWidth, first_block, {count, blocks}, stream);
  }
}

constexpr int64_t kStripCols = kStripBlocks * kNvfp4Block;
static_assert(kNvfp4TileRows == kStripCols, "the rows of a tile fill a strip of the other copy");

TE_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Streaming needs whole cache lines at aligned addresses.
TE_INLINE bool is_line_aligned(const Nvfp4CopyTile& output) {
  constexpr uint64_t kLineBytes = 64;
  return (reinterpret_cast<uintptr_t>(output.data) |
          static_cast<uint64_t>(output.data_stride_bytes)) %
             kLineBytes ==
         0;
}

template <typename T>
class TileQuantizer {
 public:
  TE_INLINE explicit TileQuantizer(const Nvfp4Tile& tile)
      : tile_(tile),
        rowwise_{&tile.rowwise, tile.options, false},
        columnwise_{&tile.columnwise, tile.options, true},
        signs_(tile.options->hadamard_signs),
        has_rowwise_(tile.rowwise.data != nullptr),
        has_columnwise_(tile.columnwise.data != nullptr),
        stream_rowwise_(tile.stream && is_line_aligned(tile.rowwise)),
        stream_columnwise_(tile.stream && is_line_aligned(tile.columnwise)) {}

  TE_INLINE void run() {
    for (int64_t row = 0; row < tile_.rows; row += kNvfp4Block) {
      quantize_rows(row);
    }
    if (has_columnwise_) {
      const int blocks = static_cast<int>((tile_.rows + kNvfp4Block - 1) / kNvfp4Block);
      for (int64_t col = 0; col < tile_.cols; col += kNvfp4Block) {
        write_strips(column_strips_[col / kNvfp4Block], tile_.columnwise, col, 0, tile_.cols - col,
                     blocks, stream_columnwise_);
      }
    }
#if TE_ISA_LEVEL >= 1
    if (stream_rowwise_ || stream_columnwise_) {
      _mm_sfence();
    }
#endif
  }

 private:
  // 16 rows of the input.
  TE_INLINE void quantize_rows(int64_t row) {
    const int64_t rows = smaller(tile_.rows - row, kNvfp4Block);
    TensorScale row_scale[kGroups];
    TensorScale col_scale[kGroups];
    for (int g = 0; g < kGroups; ++g) {
      row_scale[g] = has_rowwise_ ? rowwise_.tensor_scale(row + g * kWidth) : TensorScale{};
      col_scale[g] = has_columnwise_ ? columnwise_.tensor_scale(0) : TensorScale{};
    }
    const T* in = static_cast<const T*>(tile_.input) + row * tile_.input_stride;
    Strip strips[kGroups];
    for (int64_t col = 0; col < tile_.cols; col += kNvfp4Block) {
      Square square;
      load_square(in + col, tile_.input_stride, rows, smaller(tile_.cols - col, kNvfp4Block),
                  square);
      Square transposed;
      if (has_rowwise_ || tile_.options->has_square_tiles) {
        transpose_square(square, transposed);
      }
      const int block = static_cast<int>(col / kNvfp4Block % kStripBlocks);
      if (has_rowwise_) {
        const BlocksPlace place = {tile_.first_row + row, tile_.first_col + col, false};
        quantize_square(transposed, transposed, rowwise_, row_scale, place, block, strips);
        if (block == kStripBlocks - 1 || col + kNvfp4Block >= tile_.cols) {
          write_strips(strips, tile_.rowwise, row, col / kNvfp4Block - block, rows, block + 1,
                       stream_rowwise_);
        }
      }
      if (has_columnwise_) {
        if (tile_.options->has_hadamard) {
          transform(square);
        }
        const BlocksPlace place = {tile_.first_col + col, tile_.first_row + row, true};
        quantize_square(square, transposed, columnwise_, col_scale, place,
                        static_cast<int>(row / kNvfp4Block), column_strips_[col / kNvfp4Block]);
      }
    }
  }

  TE_INLINE void transform(Square& square) const {
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      Blocks& v = square.group[g];
      flip_signs(v, signs_);
      numerics::walsh_hadamard(v);
#pragma GCC unroll 16
      for (int i = 0; i < kNvfp4Block; ++i) {
        v[i] *= set1(numerics::kHadamardScale);
      }
    }
  }

  const Nvfp4Tile& tile_;
  const Side rowwise_;
  const Side columnwise_;
  const HadamardSigns signs_;
  const bool has_rowwise_;
  const bool has_columnwise_;
  const bool stream_rowwise_;
  const bool stream_columnwise_;
  Strip column_strips_[kNvfp4TileCols / kNvfp4Block][kGroups];
};

template <typename T>
void quantize(const Nvfp4Tile& tile) {
  TileQuantizer<T>(tile).run();
}

template <typename T>
HadamardAmax hadamard_amax(const HadamardAmaxStrip& strip) {
  const HadamardSigns signs(strip.signs);
  Vf before = zero();
  Vf after = zero();
  for (int64_t row = 0; row < strip.rows; row += kNvfp4Block) {
    const T* in = static_cast<const T*>(strip.input) + row * strip.input_stride;
    const int64_t rows = smaller(strip.rows - row, kNvfp4Block);
    for (int64_t col = 0; col < strip.cols; col += kNvfp4Block) {
      Square square;
      load_square(in + col, strip.input_stride, rows, smaller(strip.cols - col, kNvfp4Block),
                  square);
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g) {
        Blocks& v = square.group[g];
        before = max(before, amax_of(v).amax);
        flip_signs(v, signs);
        numerics::walsh_hadamard(v);
        after = max(after, amax_of(v).amax);
      }
    }
  }
  return {reduce_max(before), reduce_max(after * set1(numerics::kHadamardScale))};
}

}  // namespace

const Nvfp4Kernels nvfp4_kernels = {
    .quantize = {&quantize<float>, &quantize<Bf16>, &quantize<Fp16>},
    .hadamard_amax = {&hadamard_amax<float>, &hadamard_amax<Bf16>, &hadamard_amax<Fp16>},
};

}  // namespace transformer_engine::cpu::TE_ISA
