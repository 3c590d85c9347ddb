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
#include "cpu/simd/rows.h"

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
TE_INLINE TensorScale tensor_scale(const numerics::Nvfp4Scale& tensor) {
  return {set1(tensor.scale), set1(tensor.over_six), set1(tensor.inverse)};
}
TE_INLINE TensorScale tensor_scale(const Nvfp4CopyTile& copy, int64_t row) {
  const numerics::Nvfp4Scale* tensor = copy.tensor;
  if (!copy.is_row_scaled) {
    return tensor_scale(*tensor);
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
      for_squares([&](const Part& part) {
        quantize_any(part);
        write_complete(part);
      });
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

  // What there is of the columnwise copy.
  enum class Columns { kNone, kPlain, kTransformed };

  // A square's place in the tile.
  struct Part {
    int64_t row, col, rows, cols;
  };

  TE_INLINE Square load_square(const Part& part) const {
    const auto* in = static_cast<const Element*>(tile_.input);
    Square square;
    // The next rows, of this tile or of the one below, are some microseconds away (4096 x 4096:
    // 0.27 ns an element without, 0.25 with).
    TE_ISA::load_square(square, in + part.row * tile_.input_stride + part.col, tile_.input_stride,
                        part.rows, part.cols, kNvfp4Block * tile_.input_stride);
    return square;
  }

  template <typename Quantize>
  TE_INLINE void for_squares(const Quantize& quantize) const {
    for (int64_t row = 0; row < tile_.rows; row += kNvfp4Block) {
      const int64_t rows = smaller(tile_.rows - row, kNvfp4Block);
      for (int64_t col = 0; col < tile_.cols; col += Square::kCols) {
        quantize({row, col, rows, smaller(tile_.cols - col, Square::kCols)});
      }
    }
  }

  // Writes what is complete after the square at `part`.
  TE_INLINE void write_complete(const Part& part) {
    const int64_t blocks = (part.col % kStripCols + part.cols + kNvfp4Block - 1) / kNvfp4Block;
    if (has_rowwise_ && (blocks == kStripBlocks || part.col + part.cols == tile_.cols)) {
      write_rows(part.row, part.col / kStripCols * kStripBlocks,
                 {static_cast<int>(part.rows), static_cast<int>(blocks)});
    }
    if (has_columnwise_ && part.row + kNvfp4Block >= tile_.rows) {
      write_columns(part.col);
    }
  }

  // In the short way where it may be taken: each square is prepared while the one before it is
  // encoded. From amax to the multiplier and to the codes is a chain of some 65 cycles, and what
  // waits for it fills the processor's schedulers; so other work has to stand between.
  template <bool kRowwise, Columns kColumns, bool kStochastic>
  TE_INLINE void quantize_plain() {
    typedef Prepared<kRowwise, kColumns, kStochastic> Prepared;
    Prepared prepared[2] = {};
    Prepared* last = &prepared[0];
    Prepared* next = &prepared[1];
    for_squares([&](const Part& part) TE_INLINE_LAMBDA {
      prepare_and_encode(part, *next, *last);
      if (last->part.rows > 0) {
        finish(*last);
      }
      Prepared* encoded = last;
      last = next;
      next = encoded;
    });
    encode_last(*last);
    finish(*last);
  }
  template <bool kStochastic>
  TE_INLINE void quantize_plain() {
    if (!has_columnwise_) {
      quantize_plain<true, Columns::kNone, kStochastic>();
    } else if (!kHasTiles && options_.has_hadamard) {
      quantize_plain<kHasTiles ? Columns::kPlain : Columns::kTransformed, kStochastic>();
    } else {
      quantize_plain<Columns::kPlain, kStochastic>();
    }
  }
  template <Columns kColumns, bool kStochastic>
  TE_INLINE void quantize_plain() {
    if (has_rowwise_) {
      quantize_plain<true, kColumns, kStochastic>();
    } else {
      quantize_plain<false, kColumns, kStochastic>();
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

  // Numbers that need no special care, a scale per block or tile: all but their codes.
  template <bool kRowwise, Columns kColumns, bool kStochastic>
  struct Prepared {
    Part part;  // without rows: nothing yet
    bool is_ordinary;
    Square transposed;
    OrdinaryScale row_scale[kRowwise ? kGroups : 1];
    OrdinaryColumns<kStochastic> columns[kColumns != Columns::kNone ? kGroups : 1];
    OrdinaryScale column_scale[kColumns != Columns::kNone ? kGroups : 1];
  };

  // Between the parts of the preparation of `next`, from loads to amax to scales, parts of the
  // encoding of `last`.
  template <bool kRowwise, Columns kColumns, bool kStochastic>
  TE_INLINE void prepare_and_encode(const Part& part,
                                    Prepared<kRowwise, kColumns, kStochastic>& next,
                                    const Prepared<kRowwise, kColumns, kStochastic>& last) {
    next.part = part;
    Square square = load_square(part);
    OrdinaryCheck check;
    Vf tile_amax = zero();
    if constexpr (kHasTiles || !kRowwise) {
      const Vf largest = square.largest();
      check.add_amax(largest);
      tile_amax = set1(reduce_max(largest));
    }
    if constexpr (kRowwise) {
      next.transposed = square;
      next.transposed.transpose();
      Vf amax[kGroups];
      TE_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        encode_rows(last, g);
        amax[g] = kHasTiles ? tile_amax : next.transposed.rows(g).amax();
      }
      TE_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        check.add_amax(amax[g]);
        next.row_scale[g] =
            check.scale(amax[g], tensor_scale(tile_.rowwise, part.row + row_of_group(g)));
      }
    }
    if constexpr (kColumns != Columns::kNone) {
      if constexpr (kColumns == Columns::kTransformed) {
        square.flip_signs(signs_);
      }
      TE_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        const Vf amax = prepare_columns<kColumns>(square, g, next.columns[g]);
        encode_columns(last, g);
        next.column_scale[g] = check.scale(kHasTiles ? tile_amax : amax, scale_of_columns());
      }
    }
    next.is_ordinary = check.is_passed();
  }

  template <Columns kColumns, bool kStochastic>
  TE_INLINE Vf prepare_columns(const Square& square, int g,
                               OrdinaryColumns<kStochastic>& columns) const {
    Blocks v;
    square.columns(g, v);
    if constexpr (kColumns == Columns::kTransformed) {
      numerics::walsh_hadamard(v);
    }
    return columns.take(v);
  }
  TE_INLINE TensorScale scale_of_columns() const {
    return OrdinaryCheck::with_unit(tensor_scale(*tile_.columnwise.tensor), unit_);
  }

  template <Columns kColumns, bool kStochastic>
  TE_INLINE void encode_rows(const Prepared<true, kColumns, kStochastic>& from, int g) {
    put_rowwise(from.part, g,
                encode_ordinary_blocks<kStochastic>(from.transposed.rows(g), from.row_scale[g],
                                                    rowwise_place(from.part, g), options_.seed));
  }
  template <bool kRowwise, Columns kColumns, bool kStochastic>
  TE_INLINE void encode_columns(const Prepared<kRowwise, kColumns, kStochastic>& from, int g) {
    put_columnwise(
        from.part, g,
        encode_ordinary_blocks<kStochastic>(from.columns[g], from.column_scale[g],
                                            columnwise_place(from.part, g), options_.seed));
  }
  template <bool kRowwise, Columns kColumns, bool kStochastic>
  [[gnu::noinline]] void encode_last(const Prepared<kRowwise, kColumns, kStochastic>& last) {
    for (int g = 0; g < kGroups; ++g) {
      if constexpr (kRowwise) {
        encode_rows(last, g);
      }
      if constexpr (kColumns != Columns::kNone) {
        encode_columns(last, g);
      }
    }
  }

  template <bool kRowwise, Columns kColumns, bool kStochastic>
  TE_INLINE void finish(const Prepared<kRowwise, kColumns, kStochastic>& encoded) {
    if (!encoded.is_ordinary) {
      quantize_any(encoded.part);
    }
    write_complete(encoded.part);
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
        const BlocksTask task = {tensor_scale(*tile_.columnwise.tensor), columnwise_place(part, g),
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
