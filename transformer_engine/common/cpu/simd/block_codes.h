// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// A part of a block-scaled matrix as FP32 or, where the processor multiplies BF16, as BF16:
//   q * scale, times the row's amax / (6 * e4m3_max) where the matrix is row-scaled (FP32 only).
// FP32 results are those of dequantize_blocks without the tensor's amax. BF16 results are exact for
// scales that are powers of two, and for E2M1 under E4M3 scales, but below 2^-126, where
// multiply-adds of BF16 count them as 0.
//
// Row by row: the scales of up to kScalesAtOnce columns are laid out one per element, or one per
// unit of elements where blocks are whole units, and kept for as many rows as share them. FP8 to
// BF16 adds a power of two to the exponent of the number that a table gives for the code
// (fp8_bf16.h), 64 codes at a time, as long as every scale leaves every code a normal number; the
// rest multiplies in FP32.
#pragma once

#include "cpu/simd/e8m0.h"
#include "cpu/simd/gemm_operand.h"
#include "numerics/e8m0.h"
#include "numerics/half.h"
#include "numerics/scale.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

// Elements to which every written row is rounded up.
constexpr int64_t kDequantizeUnit = 64;
constexpr int64_t kScalesAtOnce = 512;

// As stored; `col` is even for E2M1.
struct MatrixPart {
  int64_t row, col, rows, cols;
};

struct CodeE2M1 {  // two
  using Format = numerics::E2M1;
  uint8_t bits;
};

struct FloatOfE2M1 {
  alignas(64) float value[16];
};
constexpr FloatOfE2M1 float_of_e2m1() {
  FloatOfE2M1 table{};
  for (int code = 0; code < 16; ++code) {
    table.value[code] = numerics::decode<numerics::E2M1>(static_cast<uint8_t>(code));
  }
  return table;
}
constexpr FloatOfE2M1 kFloatOfE2M1 = float_of_e2m1();

// kWidth elements from kWidth / 2 bytes.
TE_INLINE Vf load(const CodeE2M1* p) {
#if TE_ISA_LEVEL >= 2
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const __m512i wide = _mm512_cvtepu8_epi64(bytes);
  // The upper half of each 64-bit lane gets the upper code; the permutation reads 4 bits.
  const __m512i codes = _mm512_or_si512(wide, _mm512_slli_epi64(wide, 28));
  return {_mm512_permutexvar_ps(codes, _mm512_load_ps(kFloatOfE2M1.value))};
#elif TE_ISA_LEVEL == 1
  int32_t bytes;
  __builtin_memcpy(&bytes, p, sizeof(bytes));
  const __m256i wide = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(bytes));
  const Vi codes = {_mm256_or_si256(wide, _mm256_slli_epi64(wide, 28))};
  const Vf magnitudes = {
      _mm256_permutevar8x32_ps(_mm256_load_ps(kFloatOfE2M1.value), codes.v)};  // reads 3 bits
  return as_float(as_int(magnitudes) | shift_left<28>(codes & set1_int(8)));
#else
  const auto& value = kFloatOfE2M1.value;
  return {Float4{value[p[0].bits & 15], value[p[0].bits >> 4], value[p[1].bits & 15],
                 value[p[1].bits >> 4]}};
#endif
}

template <typename Code>
constexpr int64_t kCodesPerByte = 1;
template <>
constexpr int64_t kCodesPerByte<CodeE2M1> = 2;

// Elements of FP8 and E2M1 that share a scale in the layouts there are, or fewer: half a register
// of BF16, and a whole one.
template <typename Code>
constexpr int64_t kUnit = kCodesPerByte<Code> == 2 ? 16 : 32;

// kWidth scales in FP32, those beyond n something finite.
TE_INLINE Vf load_scales(const BlockScales& scales, int64_t index, int64_t n) {
  const auto* const codes = static_cast<const uint8_t*>(scales.data) + index;
  if (scales.dtype == DType::kFloat32) {
    return load(static_cast<const float*>(scales.data) + index, n);
  }
  if (scales.dtype == DType::kFloat8E4M3) {
    return decode_load<numerics::E4M3>(codes, n);
  }
  return decode_e8m0_lanes(load_bytes(codes, n));
}

TE_INLINE float load_scale(const BlockScales& scales, int64_t index) {
  switch (scales.dtype) {
    case DType::kFloat8E8M0:
      return numerics::decode_e8m0(static_cast<const uint8_t*>(scales.data)[index]);
    case DType::kFloat8E4M3:
      return numerics::decode<numerics::E4M3>(static_cast<const uint8_t*>(scales.data)[index]);
    default:
      return static_cast<const float*>(scales.data)[index];
  }
}

// Whether the part's columns come in units of kElements that share a scale.
template <int64_t kElements>
TE_INLINE bool has_scale_per(const BlockScales& scales, const MatrixPart& part) {
  return scales.block_cols % kElements == 0 && part.col % kElements == 0;
}

// The scale of each unit of kElements in the part's first row; has_scale_per<kElements>. Up to
// kWidth floats more are written: something finite, or the last scale.
template <int64_t kElements>
TE_INLINE void expand_scales(const BlockScales& scales, const MatrixPart& part, float* out) {
  const int64_t first = part.row / scales.block_rows * scales.row_stride;
  const int64_t count = (part.cols + kElements - 1) / kElements;
  const int64_t first_unit = part.col / kElements;
  const int64_t units_per_block = scales.block_cols / kElements;
  if (units_per_block == 1 && scales.col_stride == 1) {
    for (int64_t i = 0; i < count; i += kWidth) {
      const int64_t left = count - i;
      store(out + i, load_scales(scales, first + first_unit + i, left < kWidth ? left : kWidth));
    }
    return;
  }
  int64_t block = first_unit / units_per_block;
  for (int64_t i = 0; i < count; ++block) {
    const int64_t block_end = (block + 1) * units_per_block - first_unit;
    const int64_t end = block_end < count ? block_end : count;
    const Vf scale = set1(load_scale(scales, first + block * scales.col_stride));
    for (; i < end; i += kWidth) {
      store(out + i, scale);
    }
    i = end;
  }
}

// out[i] = code i * scales[i] * row_scale, in FP32.
template <typename Code, typename T>
TE_INLINE void multiply_codes(const uint8_t* codes, int64_t count, const float* scales,
                              float row_scale, T* out) {
  constexpr int64_t kBytes = kWidth / kCodesPerByte<Code>;
  for (int64_t i = 0; i < count; i += kWidth) {
    const uint8_t* p = codes + i / kCodesPerByte<Code>;
    uint8_t last[kBytes] = {};
    if (i + kWidth > count) {
      const int64_t left = count - i + kCodesPerByte<Code> - 1;
      __builtin_memcpy(last, p, static_cast<uint64_t>(left / kCodesPerByte<Code>));
      p = last;
    }
    store(out + i, load(reinterpret_cast<const Code*>(p)) * load(scales + i) * set1(row_scale));
  }
}

#if TE_ISA_LEVEL >= 3

// As multiply_codes, for products that are exact in BF16: the upper halves. A scale per kElements.
template <int64_t kElements>
TE_INLINE void multiply_e2m1_exactly(const uint8_t* codes, int64_t count, const float* scales,
                                     Bf16* out) {
  const __m512i upper_halves =
      _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                       25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  const auto scale = [scales](int64_t i) {
    return kElements == 1 ? load(scales + i) : set1(scales[i / kElements]);
  };
  for (int64_t i = 0; i < count; i += 2 * kWidth) {
    const uint8_t* p = codes + i / 2;
    uint8_t last[kWidth] = {};
    if (i + 2 * kWidth > count) {
      __builtin_memcpy(last, p, static_cast<uint64_t>((count - i + 1) / 2));
      p = last;
    }
    const auto* const pairs = reinterpret_cast<const CodeE2M1*>(p);
    const Vf first = load(pairs) * scale(i);
    const Vf second = load(pairs + kWidth / 2) * scale(i + kWidth);
    _mm512_storeu_si512(out + i,
                        _mm512_permutex2var_epi16(as_int(first).v, upper_halves, as_int(second).v));
  }
}

// Exponent fields of scales under which every finite code but 0 is a normal BF16 number: from the
// smallest code's exponent, 1 - bias - M, to the largest code's.
template <typename Format>
struct SafeExponents {
  static constexpr int kLowest = 1 + (Format::kBias - 1 + Format::kMantissaWidth);
  static constexpr int kHighest =
      254 - (((Format::kFirstSpecial - 1) >> Format::kMantissaWidth) - Format::kBias);
};

// What a BF16 grows by, as an integer, under each of the scales; false where that is not safe.
template <typename Format>
TE_INLINE bool exponents_of(const float* scales, int64_t count, uint16_t* addends) {
  const __m512i lowest = _mm512_set1_epi32(SafeExponents<Format>::kLowest);
  const __m512i range =
      _mm512_set1_epi32(SafeExponents<Format>::kHighest - SafeExponents<Format>::kLowest);
  __mmask16 unsafe = 0;
  for (int64_t i = 0; i < count; i += kWidth) {
    const int64_t left = count - i;
    const __m512i bits = as_int(load(scales + i)).v;
    const __m512i field = _mm512_srli_epi32(bits, numerics::kFloatMantissaWidth);
    unsafe = static_cast<__mmask16>(
        unsafe | _mm512_mask_cmpgt_epu32_mask(first_lanes(left < kWidth ? left : kWidth).v,
                                              _mm512_sub_epi32(field, lowest), range));
    const __m512i growth = _mm512_sub_epi32(bits, as_int(set1(1.0F)).v);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(addends + i),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(growth, 16)));
  }
  return unsafe == 0;
}

// A scale per kElements.
template <typename Code, int64_t kElements>
TE_INLINE void add_exponents(const uint8_t* codes, int64_t count, const uint16_t* addends,
                             Bf16* out) {
  const PairDecoder<Code> decoder{};
  const __m512i one = _mm512_set1_epi8(1);
  const __m512i special = _mm512_set1_epi8(Code::Format::kFirstSpecial - 1);
  for (int64_t i = 0; i < count; i += 64) {
    const int64_t left = count - i;
    const __mmask64 wanted = left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
    const __m512i some = _mm512_maskz_loadu_epi8(wanted, codes + i);
    Vf first;
    Vf second;
    decoder.decode_ordered(some, first, second);
    // 0, infinity and NaN stay what they are.
    const __m512i magnitude = _mm512_and_si512(some, _mm512_set1_epi8(0x7F));
    const __mmask64 grows = _mm512_cmplt_epu8_mask(_mm512_sub_epi8(magnitude, one), special);
    const auto add = [&](Vf bf16, __mmask32 mask, int64_t at) {
      const __m512i growth = kElements == 1
                                 ? _mm512_loadu_si512(addends + at)
                                 : _mm512_set1_epi16(static_cast<int16_t>(addends[at / kElements]));
      const __m512i bits = as_int(bf16).v;
      _mm512_storeu_si512(out + at, _mm512_mask_add_epi16(bits, mask, bits, growth));
    };
    add(first, static_cast<__mmask32>(grows), i);
    add(second, static_cast<__mmask32>(grows >> 32), i + 32);
  }
}

#endif

// The scales of some columns, for the rows that share them.
template <typename Code, typename T>
struct ExpandedScales {
  alignas(64) float values[kScalesAtOnce + kDequantizeUnit] = {};  // per element

  TE_INLINE void expand(const BlockScales& scales, const MatrixPart& part) {
    expand_scales<1>(scales, part, values);
  }
  TE_INLINE void apply(const uint8_t* codes, int64_t count, float row_scale, T* out) const {
    multiply_codes<Code>(codes, count, values, row_scale, out);
  }
};

#if TE_ISA_LEVEL >= 3
template <>
struct ExpandedScales<CodeE2M1, Bf16> {
  alignas(64) float values[kScalesAtOnce + kDequantizeUnit] = {};  // per element or unit
  bool has_units = false;

  TE_INLINE void expand(const BlockScales& scales, const MatrixPart& part) {
    has_units = has_scale_per<kUnit<CodeE2M1>>(scales, part);
    if (has_units) {
      expand_scales<kUnit<CodeE2M1>>(scales, part, values);
    } else {
      expand_scales<1>(scales, part, values);
    }
  }
  TE_INLINE void apply(const uint8_t* codes, int64_t count, float /*row_scale*/, Bf16* out) const {
    if (has_units) {
      multiply_e2m1_exactly<kUnit<CodeE2M1>>(codes, count, values, out);
    } else {
      multiply_e2m1_exactly<1>(codes, count, values, out);
    }
  }
};

template <typename Code>
struct ExpandedExponents {
  alignas(64) float values[kScalesAtOnce + kDequantizeUnit] = {};  // per element or unit
  alignas(64) uint16_t addends[kScalesAtOnce + kDequantizeUnit] = {};
  bool has_units = false;
  bool is_safe = false;

  TE_INLINE void expand(const BlockScales& scales, const MatrixPart& part) {
    has_units = has_scale_per<kUnit<Code>>(scales, part);
    int64_t count = part.cols;
    if (has_units) {
      expand_scales<kUnit<Code>>(scales, part, values);
      count = (count + kUnit<Code> - 1) / kUnit<Code>;
    } else {
      expand_scales<1>(scales, part, values);
    }
    is_safe = exponents_of<typename Code::Format>(values, count, addends);
    if (!is_safe && has_units) {
      expand_scales<1>(scales, part, values);
    }
  }
  TE_INLINE void apply(const uint8_t* codes, int64_t count, float row_scale, Bf16* out) const {
    if (!is_safe) {
      multiply_codes<Code>(codes, count, values, row_scale, out);
    } else if (has_units) {
      add_exponents<Code, kUnit<Code>>(codes, count, addends, out);
    } else {
      add_exponents<Code, 1>(codes, count, addends, out);
    }
  }
};
template <>
struct ExpandedScales<CodeE4M3, Bf16> : ExpandedExponents<CodeE4M3> {};
template <>
struct ExpandedScales<CodeE5M2, Bf16> : ExpandedExponents<CodeE5M2> {};
#endif

// The rows of a part lie apart, and the processor's prefetcher sees no pattern in them: ask for
// what comes kBytesAhead later, codes and scales. It may lie behind the part or the matrix, where
// asking does no harm.
constexpr int64_t kBytesAhead = 2048;
template <typename Code>
TE_INLINE void prefetch_row(const BlockScaledMatrix& matrix, const MatrixPart& row,
                            const uint8_t* codes, int64_t row_bytes) {
  const int64_t bytes = (row.cols + kCodesPerByte<Code> - 1) / kCodesPerByte<Code>;
  const int64_t rows_ahead = bytes < kBytesAhead ? kBytesAhead / bytes : 1;
  const uint8_t* const later = codes + rows_ahead * row_bytes;
  for (int64_t i = 0; i < bytes + 63; i += 64) {  // one more: rows may begin anywhere in a line
    __builtin_prefetch(later + i);
  }
  const BlockScales& scales = matrix.scales;
  if (scales.block_rows == 1) {
    const int64_t scale_bytes = scales.dtype == DType::kFloat32 ? 4 : 1;
    const auto* const first = static_cast<const uint8_t*>(scales.data) +
                              (row.row + rows_ahead) * scales.row_stride * scale_bytes;
    const int64_t last_col = row.col + row.cols - 1;
    __builtin_prefetch(first + row.col / scales.block_cols * scales.col_stride * scale_bytes);
    __builtin_prefetch(first + last_col / scales.block_cols * scales.col_stride * scale_bytes);
  }
}

template <typename Code, typename T>
inline void dequantize_codes(const BlockScaledMatrix& matrix, const MatrixPart& part, T* out,
                             int64_t out_stride) {
  const BlockScales& scales = matrix.scales;
  const int64_t row_bytes = row_size_bytes(matrix.data.dtype, matrix.data.cols);
  ExpandedScales<Code, T> expanded;
  for (int64_t col = 0; col < part.cols; col += kScalesAtOnce) {
    const int64_t left = part.cols - col;
    MatrixPart piece = {part.row, part.col + col, 1, left < kScalesAtOnce ? left : kScalesAtOnce};
    const auto* codes = static_cast<const uint8_t*>(matrix.data.data) + part.row * row_bytes +
                        piece.col / kCodesPerByte<Code>;
    int64_t rows_left = 0;  // that share the expanded scales
    for (int64_t row = 0; row < part.rows; ++row, ++piece.row, --rows_left, codes += row_bytes) {
      if (rows_left == 0) {
        expanded.expand(scales, piece);
        rows_left = scales.block_rows - piece.row % scales.block_rows;
      }
      prefetch_row<Code>(matrix, piece, codes, row_bytes);
      const float row_scale = scales.is_row_scaled ? numerics::nvfp4_tensor_scale_inv(
                                                         scales.amax[piece.row], scales.e4m3_max)
                                                   : 1.0F;
      expanded.apply(codes, piece.cols, row_scale, out + row * out_stride + col);
    }
  }
}

// The part's elements to out, rows `out_stride` elements apart. Each row is written up to the next
// multiple of kDequantizeUnit elements. T is FP32, or Bf16 where multiply-adds of BF16 exist.
template <typename T>
inline void dequantize_part(const BlockScaledMatrix& matrix, const MatrixPart& part, T* out,
                            int64_t out_stride) {
  switch (matrix.data.dtype) {
    case DType::kFloat8E4M3:
      return dequantize_codes<CodeE4M3>(matrix, part, out, out_stride);
    case DType::kFloat8E5M2:
      return dequantize_codes<CodeE5M2>(matrix, part, out, out_stride);
    default:
      return dequantize_codes<CodeE2M1>(matrix, part, out, out_stride);
  }
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
