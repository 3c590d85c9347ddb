// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Block scaling of a band of BF16 in registers of 16-bit lanes. Below AVX2 there is none.
//
// The first pass reads the rows from memory, in order, and collects the maxima of rows and columns.
// The second one, out of the cache, makes both codes of each element.
#pragma once

#include "cpu/simd/block_amax.h"
#include "cpu/simd/block_encoders.h"
#include "cpu/simd/stores.h"

#if TE_ISA_LEVEL >= 1

namespace transformer_engine::cpu::TE_ISA {
namespace {

constexpr int64_t kLanes = sizeof(Register) / sizeof(uint16_t);

// Largest magnitudes of a block of a row; those of the columns are updated. kWhole: all columns of
// the block are there.
template <int kBlock, bool kWhole>
TE_INLINE Register read_block(const uint16_t* in, int64_t count, uint16_t* columns) {
  Register largest = {};
#pragma GCC unroll 8
  for (int64_t i = 0; i < kBlock; i += kLanes) {
    const Register x = kWhole ? load_register(in + i) : load_register(in + i, count - i);
    const Register magnitudes = magnitudes_of(x);
    store_register(columns + i, max_magnitudes(load_register(columns + i), magnitudes));
    largest = max_magnitudes(largest, magnitudes);
  }
  return largest;
}

// Turns the largest magnitudes of blocks, a register each, into FP32 amaxes in their order.
class BlockMaxima {
 public:
  explicit TE_INLINE BlockMaxima(float* amax) : amax_(amax) {}

  // One block.
  TE_INLINE void add(Register largest) {
    pending_[count_++] = largest;
    if (count_ == kWidth) {
      add_group([&](int i) TE_INLINE_LAMBDA { return pending_[i]; });
      count_ = 0;
    }
  }
  // kWidth blocks, where none is pending: largest(i) of each.
  template <typename Largest>
  TE_INLINE void add_group(const Largest& largest) {
    Register lanes[kWidth];
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) {
      lanes[maxima_slot(i)] = largest(i);
    }
    store(amax_, lane_maxima(lanes));
    amax_ += kWidth;
  }
  TE_INLINE bool is_pending() const { return count_ != 0; }
  // Writes up to a multiple of kWidth amaxes.
  TE_INLINE void finish() {
    while (is_pending()) {
      add(Register{});
    }
  }

 private:
  Register pending_[kWidth];
  float* amax_;
  int count_ = 0;
};

// Memory is asked for this many columns at once: prefetches between the stores of the maxima are
// much slower (measured: 1.2 against 0.7 ms for a pass over 32 MiB).
constexpr int64_t kAheadCols = 1024;

// Collects the amax of all blocks. False where there is Inf or NaN.
template <int kBlock>
bool collect_amax_registers(const BlockTile& band, BandScales<kBlock>& scales) {
  alignas(64) uint16_t columns[BandScales<kBlock>::kMaxCols];
  const int64_t blocks = ceil_divide(band.cols, kBlock);
  const int64_t whole = band.cols / kBlock;
  constexpr int64_t kBlocksAhead = kAheadCols / kBlock;
  const int64_t ahead_bytes = prefetch_distance(band.input_stride, band.cols, sizeof(uint16_t));
  __builtin_memset(columns, 0, static_cast<uint64_t>(blocks * kBlock) * sizeof(uint16_t));
  BlockMaxima maxima(scales.rows);
  for (int64_t row = 0; row < band.rows; ++row) {
    const uint16_t* in = static_cast<const uint16_t*>(band.input) + row * band.input_stride;
    for (int64_t block = 0; block < blocks;) {
      const int64_t col = block * kBlock;
      if (block % kBlocksAhead == 0) {
        prefetch_bytes<3>(in + col, ahead_bytes,
                          minimum(kAheadCols, band.cols - col) * sizeof(uint16_t));
      }
      if (kBlocksAhead % kWidth == 0 && whole - block >= kWidth && !maxima.is_pending()) {
        maxima.add_group([&](int i) TE_INLINE_LAMBDA {
          return read_block<kBlock, true>(in + col + i * kBlock, kBlock,
                                          columns + col + i * kBlock);
        });
        block += kWidth;
        continue;
      }
      ++block;
      maxima.add(block <= whole
                     ? read_block<kBlock, true>(in + col, kBlock, columns + col)
                     : read_block<kBlock, false>(in + col, band.cols - col, columns + col));
    }
  }
  maxima.finish();
  Magnitudes largest = {};
  for (int64_t col = 0; col < blocks * kBlock; col += kLanes) {
    largest.v = max_magnitudes(largest.v, load_register(columns + col));
  }
  for (int64_t col = 0; col < band.cols; col += kWidth) {
    store(scales.columns + col, load(reinterpret_cast<const Bf16*>(columns) + col));
  }
  return reduce(largest) < kBf16Infinity;
}

// Where the codes of a row go.
struct RowOutputs {
  uint8_t* rowwise;
  uint8_t* columnwise;
  bool stream_rowwise;
  bool stream_columnwise;
};

TE_INLINE void put(uint8_t* out, Register codes, bool stream) {
  if (stream) {
    stream_register(out, codes);
  } else {
    store_register(out, codes);
  }
}

// The codes of kBulk elements from column `col` on, of those at `values`.
template <bool kRows, bool kColumns, typename Encoder>
TE_INLINE void encode_step(const Encoder& encoder, const uint16_t* values, int64_t row, int64_t col,
                           const RowOutputs& out) {
  const auto parts = encoder.read(values);
  if constexpr (kRows) {
    put(out.rowwise, encoder.row_codes(parts, row, col), out.stream_rowwise);
  }
  if constexpr (kColumns) {
    put(out.columnwise, encoder.column_codes(parts, col), out.stream_columnwise);
  }
}

// The step at the end of a row that is not whole.
template <bool kRows, bool kColumns, typename Encoder>
void encode_rest(const Encoder& encoder, const uint16_t* values, int64_t row, int64_t col,
                 int64_t count, const RowOutputs& out) {
  alignas(64) uint16_t padded[kBulk] = {};
  alignas(64) uint8_t rowwise[kBulk];
  alignas(64) uint8_t columnwise[kBulk];
  __builtin_memcpy(padded, values, static_cast<uint64_t>(count) * sizeof(uint16_t));
  encode_step<kRows, kColumns>(encoder, padded, row, col, {rowwise, columnwise, false, false});
  if constexpr (kRows) {
    __builtin_memcpy(out.rowwise, rowwise, static_cast<uint64_t>(count));
  }
  if constexpr (kColumns) {
    __builtin_memcpy(out.columnwise, columnwise, static_cast<uint64_t>(count));
  }
}

template <bool kRows, bool kColumns, typename Encoder>
void encode_band(const BlockTile& band, const Encoder& encoder, uint8_t* column_codes,
                 int64_t column_codes_stride) {
  const bool stream = band.stream && band.cols % kBulk == 0;
  const bool stream_rowwise =
      stream && is_line_aligned(band.rowwise.codes, band.rowwise.codes_stride, band.rows);
  // Codes that are transposed afterwards are read again.
  const bool stream_columnwise = stream && column_codes == band.columnwise.codes &&
                                 is_line_aligned(column_codes, column_codes_stride, band.rows);
  const Encoder local = encoder;  // stores of codes cannot change it
  const int64_t whole = band.cols / kBulk * kBulk;
  for (int64_t row = 0; row < band.rows; ++row) {
    const uint16_t* values = static_cast<const uint16_t*>(band.input) + row * band.input_stride;
    RowOutputs out{.rowwise = band.rowwise.codes + row * band.rowwise.codes_stride,
                   .columnwise = column_codes + row * column_codes_stride,
                   .stream_rowwise = stream_rowwise,
                   .stream_columnwise = stream_columnwise};
    for (int64_t col = 0; col < whole; col += kBulk) {
      encode_step<kRows, kColumns>(local, values + col, row, col, out);
      out.rowwise += kBulk;
      out.columnwise += kBulk;
    }
    if (whole < band.cols) {
      encode_rest<kRows, kColumns>(local, values + whole, row, whole, band.cols - whole, out);
    }
  }
}

// False when a scale is out of the encoder's reach.
template <typename Encoder>
bool encode(const BlockTile& band, const typename Encoder::Scales& scales, uint8_t* column_codes,
            int64_t column_codes_stride) {
  typename Encoder::Storage storage;
  const Encoder encoder(band, scales, storage);
  if (!encoder.is_in_reach()) {
    return false;
  }
  if (band.columnwise.codes == nullptr) {
    encode_band<true, false>(band, encoder, nullptr, 0);
  } else if (band.rowwise.codes == nullptr) {
    encode_band<false, true>(band, encoder, column_codes, column_codes_stride);
  } else {
    encode_band<true, true>(band, encoder, column_codes, column_codes_stride);
  }
  return true;
}

TE_INLINE bool has_powers_of_two(const BlockCopyTile& copy) {
  return copy.codes == nullptr || copy.rule.is_power_of_two;
}

// False where the band needs the way of FP32 lanes: for Inf, NaN and extreme scales.
template <typename Format, int kBlock>
bool quantize_registers(const BlockTile& band, uint8_t* column_codes, int64_t column_codes_stride) {
  BandScales<kBlock> scales;
  if (!collect_amax_registers<kBlock>(band, scales)) {
    return false;
  }
  resolve_scales<kBlock>(band, scales);
#if TE_ISA_LEVEL >= 3
  if (has_powers_of_two(band.rowwise) && has_powers_of_two(band.columnwise)) {
    return encode<ExponentEncoder<Format, kBlock>>(band, scales, column_codes, column_codes_stride);
  }
#endif
  return encode<ScaleEncoder<Format, kBlock>>(band, scales, column_codes, column_codes_stride);
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA

#endif
