// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Codes of BF16 under the scales of a band, kBulk at a time. Below AVX2 there are none.
//   ScaleEncoder     scales of any size, through FP32 products
//   ExponentEncoder  powers of two, through the exponents (fp8_exponents.h; AVX-512 VBMI)
// Each of them: read() what both codes need of the elements, row_codes() and column_codes().
#pragma once

#include "cpu/simd/block_scales.h"
#include "cpu/simd/fp8_exponents.h"

#if TE_ISA_LEVEL >= 1

namespace transformer_engine::cpu::TE_ISA {
namespace {

constexpr int64_t kBulkHalf = kBulk / 2;

template <typename Format, int kBlock>
class ScaleEncoder {
 public:
  using Scales = BandScales<kBlock>;
  using Parts = Bf16Registers;
  struct Storage {
    alignas(64) float columns[Scales::kMaxCols];
  };

  ScaleEncoder(const BlockTile& band, const Scales& scales, Storage& storage)
      : rows_(scales.rows), columns_(storage.columns), blocks_(blocks_per_row(band)) {
    // Even and odd ones apart, as the elements are read.
    for (int64_t col = 0; band.columnwise.codes != nullptr && col < band.cols; col += kBulkHalf) {
      for (int64_t i = 0; i < kBulkHalf; ++i) {
        storage.columns[col + (i % 2) * kWidth + i / 2] = scales.columns[col + i];
      }
    }
  }
  bool is_in_reach() const { return true; }
  TE_INLINE Parts read(const uint16_t* p) const { return load_bf16_registers(p); }
  TE_INLINE Register row_codes(const Parts& parts, int64_t row, int64_t col) const {
    const Vf first = set1(rows_[row * blocks_ + col / kBlock]);
    if constexpr (kBlock >= kBulk) {
      return encode_registers<Format>(parts, {{first, first}, {first, first}});
    } else {
      const Vf second = set1(rows_[row * blocks_ + (col + kBulkHalf) / kBlock]);
      return encode_registers<Format>(parts, {{first, first}, {second, second}});
    }
  }
  TE_INLINE Register column_codes(const Parts& parts, int64_t col) const {
    const float* scales = columns_ + col;
    return encode_registers<Format>(
        parts, {{load(scales), load(scales + kWidth)},
                {load(scales + kBulkHalf), load(scales + kBulkHalf + kWidth)}});
  }

 private:
  const float* const rows_;
  const float* const columns_;
  const int64_t blocks_;
};

#if TE_ISA_LEVEL >= 3

template <typename Format, int kBlock>
class ExponentEncoder {
 public:
  using Scales = BandScales<kBlock>;
  using Parts = Bf16Parts;
  struct Storage {
    alignas(64) uint8_t rows[Scales::kMaxRowBlocks + 1];  // the rest of a row looks one further
    alignas(64) uint8_t columns[Scales::kMaxCols];
  };

  ExponentEncoder(const BlockTile& band, const Scales& scales, Storage& storage)
      : rows_(storage.rows), columns_(storage.columns), blocks_(blocks_per_row(band)) {
    Vf largest = zero();
    if (band.rowwise.codes != nullptr) {
      largest = convert(scales.rows, band.rows * blocks_, storage.rows, largest);
    }
    if (band.columnwise.codes != nullptr) {
      largest = convert(scales.columns, band.cols, storage.columns, largest);
    }
    is_in_reach_ = reduce_max(largest) <= kLargestExponentScale<Format>;
  }
  bool is_in_reach() const { return is_in_reach_; }
  TE_INLINE Parts read(const uint16_t* p) const { return split_bf16<Format>(p); }
  TE_INLINE Register row_codes(const Parts& parts, int64_t row, int64_t col) const {
    Register low = _mm512_set1_epi8(static_cast<char>(rows_[row * blocks_ + col / kBlock]));
    if constexpr (kBlock < kBulk) {
      const uint8_t second = rows_[row * blocks_ + (col + kBulkHalf) / kBlock];
      low = _mm512_inserti64x4(low, _mm256_set1_epi8(static_cast<char>(second)), 1);
    }
    return encode_parts<Format>(parts, low);
  }
  TE_INLINE Register column_codes(const Parts& parts, int64_t col) const {
    return encode_parts<Format>(parts, load_register(columns_ + col));
  }

 private:
  // Returns the largest of `so_far` and the scales.
  static TE_INLINE Vf convert(const float* scales, int64_t count, uint8_t* low, Vf so_far) {
    for_lanes<kWidth>(count, [&](int64_t i, int, auto lanes) TE_INLINE_LAMBDA {
      const Vf scale = load(scales + i, lanes);
      so_far = max(scale, so_far);
      const Vi field = shift_right_logical<numerics::kFloatMantissaWidth>(as_int(scale));
      store_bytes(low + i, set1_int(kLowestBinadeBase<Format>) - field, lanes);
    });
    return so_far;
  }

  const uint8_t* const rows_;
  const uint8_t* const columns_;
  const int64_t blocks_;
  bool is_in_reach_;
};

#endif

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA

#endif
