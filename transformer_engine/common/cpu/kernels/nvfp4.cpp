// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// NVFP4 (numerics/nvfp4.h): a tile of [128, 1024] FP32, BF16 or FP16 becomes its part of the
// rowwise and of the columnwise copy in one pass over the input.
//
// The input is read in groups of 16 rows, a square at a time (simd/nvfp4_square.h). As loaded, a
// lane is a column, and 16 vectors are blocks of the columnwise copy; transposed, a lane is a row.
// Both go through the same code, which works between vectors (simd/nvfp4_blocks.h). Read: the input
// once. Written: 9/16 of a byte per element and copy. Codes are collected to whole cache lines
// (simd/nvfp4_strip.h): rowwise over 128 columns, columnwise over the 128 rows of the tile.
#include "cpu/nvfp4_kernels.h"
#include "cpu/simd/nvfp4_square.h"
#include "cpu/simd/nvfp4_strip.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

TE_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Streaming needs whole cache lines at aligned addresses.
TE_INLINE bool is_line_aligned(const Nvfp4CopyTile& output) {
  constexpr uint64_t kLineBytes = 64;
  const uint64_t bits =
      reinterpret_cast<uintptr_t>(output.data) | static_cast<uint64_t>(output.data_stride_bytes);
  return bits % kLineBytes == 0;
}

// Of the amax of the tile's part of a copy, rows `row` and following in the lanes.
TE_INLINE TensorScale tensor_scale(const Nvfp4CopyTile& copy, int64_t row) {
  const numerics::Nvfp4Scale* tensor = copy.tensor;
  if (!copy.is_row_scaled) {
    return {set1(tensor->scale), set1(tensor->over_six), set1(tensor->inverse)};
  }
  float lanes[3][kWidth];
  for (int i = 0; i < kWidth; ++i) {
    lanes[0][i] = tensor[row + i].scale;
    lanes[1][i] = tensor[row + i].over_six;
    lanes[2][i] = tensor[row + i].inverse;
  }
  return {load(lanes[0]), load(lanes[1]), load(lanes[2])};
}

// Whether the scales of the tile's part of a copy are, or there is none.
TE_INLINE bool are_ordinary(const Nvfp4CopyTile& copy, int64_t rows) {
  const int64_t count = copy.tensor == nullptr ? 0 : copy.is_row_scaled ? rows : 1;
  for (int64_t i = 0; i < count; ++i) {
    if (!is_ordinary(copy.tensor[i])) {
      return false;
    }
  }
  return true;
}

// What the scale of a square tile rounds, by its amax; four over six takes the errors of its rows,
// summed by halves.
template <int kGroups>
[[gnu::noinline]] float tile_target(float amax, const Blocks (&rowwise)[kGroups],
                                    const BlocksTask& task) {
  const float target = reduce_max(set1(amax) * task.tensor.over_six);
  const FourOverSix mode = task.options->four_over_six;
  if (mode == FourOverSix::kNone) {
    return target;
  }
  const float targets[2] = {target, target * 1.5F};
  float errors[2];
  for (int choice = 0; choice < 2; ++choice) {
    const BlockScale block = block_scale(set1(targets[choice]), task.tensor);
    Vf error[kGroups];
    for (int g = 0; g < kGroups; ++g) {
      error[g] = error_of(rowwise[g], block, task.tensor, mode);
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

// Square tiles need FloatSquare: there, the groups of a square are one block high and wide.
template <typename Square, bool kHasTiles>
class TileQuantizer {
 public:
  TE_INLINE explicit TileQuantizer(const Nvfp4Tile& tile)
      : tile_(tile),
        options_(*tile.options),
        signs_(tile.options->hadamard_signs),
        unit_(tile.options->has_hadamard ? numerics::kHadamardScale : 1.0F),
        has_rowwise_(tile.rowwise.data != nullptr),
        has_columnwise_(tile.columnwise.data != nullptr),
        stream_rowwise_(tile.stream && is_line_aligned(tile.rowwise)),
        stream_columnwise_(tile.stream && is_line_aligned(tile.columnwise)) {}

  TE_INLINE void run() {
    // The short way with random bits is for BF16 gradients; others are rare.
    constexpr bool kHasPlainStochastic = __is_same(Element, Bf16) && !kHasTiles;
    const bool is_plain =
        are_ordinary(tile_.rowwise, tile_.rows) && are_ordinary(tile_.columnwise, tile_.cols) &&
        !(kHasTiles && options_.has_hadamard) && options_.four_over_six == FourOverSix::kNone;
    if (is_plain && !options_.is_stochastic) {
      quantize_plain<false>();
    } else if (is_plain && kHasPlainStochastic) {
      quantize_plain<kHasPlainStochastic>();
    } else {
      quantize_squares([&](const Part& part) { quantize_any(part); });
    }
    if (stream_rowwise_ || stream_columnwise_) {
      finish_streaming();
    }
  }

 private:
  static constexpr int kGroups = Square::kGroups;
  static constexpr int kRowStrips = kNvfp4Block / kWidth;
  typedef typename Square::Element Element;
  typedef Blocks Groups[kGroups];

  // A square's place in the tile.
  struct Part {
    int64_t row, col, rows, cols;
  };

  TE_INLINE Square load_square(const Part& part) const {
    const auto* in = static_cast<const Element*>(tile_.input);
    Square square;
    square.load(in + part.row * tile_.input_stride + part.col, tile_.input_stride, part.rows,
                part.cols);
    return square;
  }

  template <typename Quantize>
  TE_INLINE void quantize_squares(const Quantize& quantize) {
    for (int64_t row = 0; row < tile_.rows; row += kNvfp4Block) {
      const int64_t rows = smaller(tile_.rows - row, kNvfp4Block);
      for (int64_t col = 0; col < tile_.cols; col += Square::kCols) {
        const int64_t cols = smaller(tile_.cols - col, Square::kCols);
        quantize({row, col, rows, cols});
        const int64_t blocks = (col % kStripCols + cols + kNvfp4Block - 1) / kNvfp4Block;
        if (has_rowwise_ && (blocks == kStripBlocks || col + cols == tile_.cols)) {
          write_rows(row, col / kStripCols * kStripBlocks,
                     {static_cast<int>(rows), static_cast<int>(blocks)});
        }
        if (has_columnwise_ && row + kNvfp4Block >= tile_.rows) {
          write_columns(col);
        }
      }
    }
  }

  // In the short way where it may be taken.
  template <bool kRowwise, bool kColumnwise, bool kStochastic>
  TE_INLINE void quantize_plain() {
    quantize_squares([&](const Part& part) {
      if (!quantize_ordinary<kRowwise, kColumnwise, kStochastic>(part)) {
        quantize_any(part);
      }
    });
  }
  template <bool kStochastic>
  TE_INLINE void quantize_plain() {
    if (!has_columnwise_) {
      quantize_plain<true, false, kStochastic>();
    } else if (!has_rowwise_) {
      quantize_plain<false, true, kStochastic>();
    } else {
      quantize_plain<true, true, kStochastic>();
    }
  }

  BlocksPlace rowwise_place(const Part& part, int g) const {
    return {tile_.first_row + part.row + row_of_group(g), 1,
            tile_.first_col + part.col + g % Square::kBlocks * kNvfp4Block, false};
  }
  BlocksPlace columnwise_place(const Part& part, int g) const {
    return {tile_.first_col + part.col + g * Square::kColumnGroupStep, Square::kColumnLaneStep,
            tile_.first_row + part.row, true};
  }

  // Rows of the input that the lanes of a group of rowwise blocks are, from the square's first on.
  static constexpr int row_of_group(int g) { return g / Square::kBlocks * kWidth; }

  TE_INLINE void put_rowwise(const Part& part, int g, const PackedBlocks& packed) {
    const int64_t block = part.col % kStripCols / kNvfp4Block + g % Square::kBlocks;
    row_strips_[row_of_group(g) / kWidth].put(static_cast<int>(block), packed);
  }
  TE_INLINE void put_columnwise(const Part& part, int g, const PackedBlocks& packed) {
    column_strips_[part.col / Square::kCols][g].put(static_cast<int>(part.row / kNvfp4Block),
                                                    packed);
  }

  // Round to nearest, a scale per block, and numbers that need no special care; false where some
  // do. From amax to the multiplier is a chain of some 40 cycles that begins with a division's
  // worth of waiting; the encoding of other blocks stands after each, since the processor does not
  // look further ahead than that.
  template <bool kRowwise, bool kColumnwise, bool kStochastic>
  TE_INLINE bool quantize_ordinary(const Part& part) {
    const Square square = load_square(part);
    Square transposed = square;
    Square columns_of = square;
    OrdinaryCheck check;
    Vf tile_amax = zero();
    if constexpr (kHasTiles || !kRowwise) {
      const Vf largest = square.largest();
      check.add_amax(largest);
      tile_amax = set1(reduce_max(largest));
    }
    OrdinaryScale row_scale[kGroups];
    if constexpr (kRowwise) {
      transposed.transpose();
      TE_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        const Vf amax = kHasTiles ? tile_amax : transposed.rows(g).amax();
        check.add_amax(amax);
        row_scale[g] = check.scale(amax, tensor_scale(tile_.rowwise, part.row + row_of_group(g)));
      }
    }
    Columns columns[2];
    if constexpr (kColumnwise) {
      if (options_.has_hadamard) {
        columns_of.flip_signs(signs_);
      }
      prepare_columns(columns_of, 0, tile_amax, columns[0], check);
    }
    if constexpr (kRowwise) {
      TE_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        put_rowwise(part, g,
                    encode_ordinary_blocks<kStochastic>(transposed.rows(g), row_scale[g],
                                                        rowwise_place(part, g), options_.seed));
      }
    }
    if constexpr (kColumnwise) {
      TE_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        if (g + 1 < kGroups) {
          prepare_columns(columns_of, g + 1, tile_amax, columns[(g + 1) % 2], check);
        }
        const Columns& of_group = columns[g % 2];
        put_columnwise(part, g,
                       encode_ordinary_blocks<kStochastic>(
                           of_group.v, of_group.scale, columnwise_place(part, g), options_.seed));
      }
    }
    return check.is_passed();
  }

  struct Columns {
    Blocks v;
    OrdinaryScale scale;
  };
  TE_INLINE void prepare_columns(const Square& square, int g, Vf tile_amax, Columns& columns,
                                 OrdinaryCheck& check) const {
    square.columns(g, columns.v);
    if (!kHasTiles && options_.has_hadamard) {
      numerics::walsh_hadamard(columns.v);
    }
    const TensorScale tensor = tensor_scale(tile_.columnwise, 0);
    const Vf amax = kHasTiles ? tile_amax : amax_of_tame(columns.v);
    columns.scale = check.scale(amax, OrdinaryCheck::with_unit(tensor, unit_));
  }

  // Any elements and options.
  [[gnu::noinline]] void quantize_any(const Part& part) {
    const Square square = load_square(part);
    Square transposed = square;
    transposed.transpose();
    Groups v;
    if (has_rowwise_) {
      for (int g = 0; g < kGroups; ++g) {
        const auto elements = transposed.rows(g);
        for (int i = 0; i < kNvfp4Block; ++i) {
          v[g][i] = elements[i];
        }
      }
      const TileAmax tile_amax(v);
      for (int g = 0; g < kGroups; ++g) {
        const BlocksTask task = {tensor_scale(tile_.rowwise, part.row + row_of_group(g)),
                                 rowwise_place(part, g), &options_};
        put_rowwise(part, g, quantize_group(v[g], transposed, tile_amax, task));
      }
    }
    if (has_columnwise_) {
      Square columns_of = square;
      if (options_.has_hadamard) {
        columns_of.flip_signs(signs_);
      }
      for (int g = 0; g < kGroups; ++g) {
        columns_of.columns(g, v[g]);
        if (options_.has_hadamard) {
          numerics::walsh_hadamard(v[g]);
          for (Vf& elements : v[g]) {
            elements *= set1(numerics::kHadamardScale);
          }
        }
      }
      const TileAmax tile_amax(v);
      for (int g = 0; g < kGroups; ++g) {
        const BlocksTask task = {tensor_scale(tile_.columnwise, 0), columnwise_place(part, g),
                                 &options_};
        put_columnwise(part, g, quantize_group(v[g], transposed, tile_amax, task));
      }
    }
  }

  // max |x| of the square tile, where there are tiles.
  struct TileAmax {
    float value = 0.0F;

    TE_INLINE explicit TileAmax(const Groups& v) {
      if constexpr (kHasTiles) {
        Vf largest = zero();
        for (const Blocks& blocks : v) {
          largest = max(amax_of_any(blocks), largest);
        }
        value = reduce_max(largest);
      }
    }
  };

  // `transposed` has the blocks along the rows of the input whatever the copy.
  TE_INLINE PackedBlocks quantize_group(const Blocks& v, const Square& transposed,
                                        const TileAmax& tile_amax, const BlocksTask& task) const {
    if constexpr (kHasTiles) {
      return quantize_any_blocks(
          v, set1(tile_target<kGroups>(tile_amax.value, transposed.group, task)), task);
    } else {
      return quantize_any_blocks(v, block_target(v, task), task);
    }
  }

  TE_INLINE void write_rows(int64_t row, int64_t block, const StripExtent& extent) {
    for (int i = 0; i < kRowStrips; ++i) {
      const int left = extent.rows - i * kWidth;
      write_strip(row_strips_[i], tile_.rowwise, {row + i * kWidth, 1, block},
                  {left < kWidth ? left : kWidth, extent.blocks}, stream_rowwise_);
    }
  }

  // Of the square at column `col`, whose last rows are done: between the squares of other columns,
  // so that the memory keeps up.
  TE_INLINE void write_columns(int64_t col) {
    const auto blocks = static_cast<int>((tile_.rows + kNvfp4Block - 1) / kNvfp4Block);
    for (int g = 0; g < kGroups; ++g) {
      const int64_t first = col + g * Square::kColumnGroupStep;
      const int64_t left =
          (tile_.cols - first + Square::kColumnLaneStep - 1) / Square::kColumnLaneStep;
      write_strip(column_strips_[col / Square::kCols][g], tile_.columnwise,
                  {first, Square::kColumnLaneStep, 0},
                  {static_cast<int>(smaller(left, kWidth)), blocks}, stream_columnwise_);
    }
  }

  const Nvfp4Tile& tile_;
  const QuantizeNvfp4Args& options_;
  const typename Square::Signs signs_;
  const float unit_;  // of the elements after transform()
  const bool has_rowwise_;
  const bool has_columnwise_;
  const bool stream_rowwise_;
  const bool stream_columnwise_;
  Strip row_strips_[kRowStrips];
  Strip column_strips_[kNvfp4TileCols / Square::kCols][kGroups];
};

template <typename T>
void quantize(const Nvfp4Tile& tile) {
  if (tile.options->has_square_tiles) {
    TileQuantizer<FloatSquare<T>, true>(tile).run();
  } else {
    TileQuantizer<typename SquareOf<T>::Type, false>(tile).run();
  }
}

}  // namespace

const Nvfp4Kernels nvfp4_kernels = {
    .quantize = {&quantize<float>, &quantize<Bf16>, &quantize<Fp16>},
};

}  // namespace transformer_engine::cpu::TE_ISA
