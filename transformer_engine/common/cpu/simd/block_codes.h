// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// A part of a block-scaled matrix in a type of more precision, for products and for its own sake:
//   dequantize_part   q * scale, times the row's amax / (6 * e4m3_max) where the matrix is
//       row-scaled, as FP32 or, where the processor multiplies BF16, as BF16. FP32 results are
//       those of RoundedProducts without the tensor's amax. BF16 results are exact for scales that
//       are powers of two, and for E2M1 under E4M3 scales, but below 2^-126, where multiply-adds of
//       BF16 count them as 0.
//   RoundedProducts   T(q * scale), for E2M1 T((q * scale) * tensor scale), each product rounded to
//       FP32: what dequantize_blocks gives.
//
// Row by row: the scales of up to as many columns as fit are laid out one per element, or one per
// unit of elements where blocks are whole units, and kept for as many rows as share them. FP8 to
// BF16 takes the numbers that a table gives for 64 codes (fp8_bf16.h). As an operand of products it
// adds a power of two to their exponents, as long as every scale leaves every code a normal number.
// The rest multiplies in FP32.
#pragma once

#include "cpu/simd/e8m0.h"
#include "cpu/simd/gemm_operand.h"
#include "cpu/simd/rows.h"
#include "numerics/e8m0.h"
#include "numerics/half.h"
#include "numerics/scale.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

// Elements to which every row that dequantize_part writes is rounded up.
constexpr int64_t kDequantizeUnit = 64;
// Columns whose scales are laid out at once: of parts, which lie in the first cache; and of whole
// rows. Rows that share their scales are passed through faster in longer runs (4096 against 1024
// columns: twice as fast). Scales of one row may lie as far apart as the matrix is high; more than
// 8 of them would meet in one set of the first cache.
constexpr int64_t kPartColumns = 512;
constexpr int64_t kLongRun = 4096;
constexpr int64_t kRowRun = 1024;

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

TE_INLINE Vf load_bitwise(const CodeE2M1* p) { return load(p); }

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
  const int64_t band = scales.block_rows == 1 ? part.row : part.row / scales.block_rows;
  const int64_t first = band * scales.row_stride;
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
  if (units_per_block == 4 && first_unit % 4 == 0 && scales.dtype == DType::kFloat32) {
    // Blocks of 128 FP8 codes. Wider stores would overlap, and what is read soon after from one of
    // several stores comes late.
    const float* in = static_cast<const float*>(scales.data) + first;
    in += first_unit / 4 * scales.col_stride;
    for (int64_t i = 0; i < count; i += 4, in += scales.col_stride) {
      const float four[4] = {*in, *in, *in, *in};
      __builtin_memcpy(out + i, four, sizeof(four));
    }
    return;
  }
  int64_t block = first_unit == 0 ? 0 : first_unit / units_per_block;
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

// Two vectors.
template <typename T>
TE_INLINE void store_both(T* p, Vf a, Vf b) {
#if TE_ISA_LEVEL >= 1
  if constexpr (__is_same(T, Bf16)) {
    store_two(p, a, b);
    return;
  }
#endif
  store(p, a);
  store(p + kWidth, b);
}

// out[i] = T(code i * scale), for E2M1 T(code i * scale * second), in FP32 before that; a scale per
// kElements. kIsExact: every bit of a NaN counts, and nothing is written beyond `count`; else up
// to the next multiple of kWidth.
template <typename Code, int64_t kElements, bool kIsExact, typename T>
TE_INLINE void multiply_codes(const uint8_t* codes, int64_t count, const float* scales,
                              float second, T* out) {
  const auto product = [&](const uint8_t* p, int64_t i) TE_INLINE_LAMBDA {
    const Vf scale = kElements == 1 ? load(scales + i) : set1(scales[i / kElements]);
    const auto* const code = reinterpret_cast<const Code*>(p);
    const Vf value = (kIsExact ? load_bitwise(code) : load(code)) * scale;
    return kCodesPerByte<Code> == 1 ? value : value * set1(second);
  };
  const auto at = [&](int64_t i)
                      TE_INLINE_LAMBDA { return product(codes + i / kCodesPerByte<Code>, i); };
  // The end of a loop of few steps is foreseen, and the scales of the next row are laid out early.
  constexpr int64_t kStep = 4 * kWidth;
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    store_both(out + i, at(i), at(i + kWidth));
    store_both(out + i + kStep / 2, at(i + kStep / 2), at(i + kStep / 2 + kWidth));
  }
  for (; i + kWidth <= count; i += kWidth) {
    store(out + i, at(i));
  }
  if (i < count) {
    const int64_t left = count - i;
    uint8_t last[kWidth / kCodesPerByte<Code>] = {};
    __builtin_memcpy(last, codes + i / kCodesPerByte<Code>,
                     static_cast<uint64_t>((left + kCodesPerByte<Code> - 1) / kCodesPerByte<Code>));
    store(out + i, product(last, i), kIsExact ? left : kWidth);
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

#if TE_ISA_LEVEL >= 3

// Elements 2i of both, and elements 2i + 1.
TE_INLINE HalfScales even_and_odd(Vf a, Vf b) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  return {{_mm512_permutex2var_ps(a.v, even, b.v)}, {_mm512_permutex2var_ps(a.v, odd, b.v)}};
}

// out[i] = BF16(FP8 code i * scale) of as many whole registers of codes as there are, a quarter of
// the instructions of multiply_codes; returns their number of elements. A scale per kElements.
template <typename Code, int64_t kElements>
TE_INLINE int64_t multiply_registers(const uint8_t* codes, int64_t count, const float* scales,
                                     Bf16* out) {
  const auto half_scales = [scales](int64_t i) TE_INLINE_LAMBDA {
    if constexpr (kElements == 1) {
      return even_and_odd(load(scales + i), load(scales + i + kWidth));
    } else {
      const Vf scale = set1(scales[i / kElements]);
      return HalfScales{scale, scale};
    }
  };
  int64_t i = 0;
  for (; i + kBulk <= count; i += kBulk) {
    const auto [first, second] = decode_registers<typename Code::Format>(load_register(codes + i));
    store_register(out + i, scale_register(first, half_scales(i)));
    store_register(out + i + kBulk / 2, scale_register(second, half_scales(i + kBulk / 2)));
  }
  return i;
}

#endif

template <int64_t kElements>
struct ScalePer {
  static constexpr int64_t kCount = kElements;
};

// The scales of up to kColumns columns, for the rows that share them.
template <typename Code, int64_t kColumns>
struct ColumnScales {
  static constexpr int64_t kMaxColumns = kColumns;
  alignas(64) float values[kColumns + kDequantizeUnit] = {};  // per element or unit
  bool has_units = false;

  TE_INLINE void expand(const BlockScales& scales, const MatrixPart& part) {
    has_units = has_scale_per<kUnit<Code>>(scales, part);
    if (has_units) {
      expand_scales<kUnit<Code>>(scales, part, values);
    } else {
      expand_scales<1>(scales, part, values);
    }
  }
  // Calls body(ScalePer of the elements that share one of the values).
  template <typename Body>
  TE_INLINE void with_elements(const Body& body) const {
    if (has_units) {
      body(ScalePer<kUnit<Code>>{});
    } else {
      body(ScalePer<1>{});
    }
  }
};

template <typename Code, typename T>
struct RoundedProducts : ColumnScales<Code, kLongRun> {
  static constexpr bool kIsPart = false;

  TE_INLINE static float second_scale(const BlockScales& scales, int64_t row) {
    return kCodesPerByte<Code> == 1
               ? 1.0F
               : numerics::nvfp4_tensor_scale_inv(scales.amax[scales.is_row_scaled ? row : 0],
                                                  scales.e4m3_max);
  }
  TE_INLINE void apply(const uint8_t* codes, int64_t count, float second, T* out) const {
    this->with_elements([&](auto per) TE_INLINE_LAMBDA {
      int64_t done = 0;
#if TE_ISA_LEVEL >= 3
      if constexpr (__is_same(T, Bf16) && kCodesPerByte<Code> == 1) {
        done = multiply_registers<Code, per.kCount>(codes, count, this->values, out);
      }
#endif
      multiply_codes<Code, per.kCount, true>(codes + done / kCodesPerByte<Code>, count - done,
                                             this->values + done / per.kCount, second, out + done);
    });
  }
};

// Operands of products.
template <typename Code, typename T>
struct PartScales : ColumnScales<Code, kPartColumns> {
  static constexpr bool kIsPart = true;

  TE_INLINE static float second_scale(const BlockScales& scales, int64_t row) {
    return scales.is_row_scaled
               ? numerics::nvfp4_tensor_scale_inv(scales.amax[row], scales.e4m3_max)
               : 1.0F;
  }
  TE_INLINE void apply(const uint8_t* codes, int64_t count, float second, T* out) const {
    this->with_elements([&](auto per) TE_INLINE_LAMBDA {
      multiply_codes<Code, per.kCount, false>(codes, count, this->values, second, out);
    });
  }
};

#if TE_ISA_LEVEL >= 3
template <>
struct PartScales<CodeE2M1, Bf16> : PartScales<CodeE2M1, float> {
  TE_INLINE void apply(const uint8_t* codes, int64_t count, float /*second*/, Bf16* out) const {
    with_elements([&](auto per) TE_INLINE_LAMBDA {
      multiply_e2m1_exactly<per.kCount>(codes, count, values, out);
    });
  }
};

template <typename Code>
struct PartExponents : PartScales<Code, float> {
  alignas(64) uint16_t addends[kPartColumns + kDequantizeUnit] = {};
  bool is_safe = false;

  TE_INLINE void expand(const BlockScales& scales, const MatrixPart& part) {
    PartScales<Code, float>::expand(scales, part);
    const int64_t per_scale = this->has_units ? kUnit<Code> : 1;
    is_safe = exponents_of<typename Code::Format>(this->values,
                                                  (part.cols + per_scale - 1) / per_scale, addends);
  }
  TE_INLINE void apply(const uint8_t* codes, int64_t count, float second, Bf16* out) const {
    this->with_elements([&](auto per) TE_INLINE_LAMBDA {
      if (is_safe) {
        add_exponents<Code, per.kCount>(codes, count, addends, out);
      } else {
        multiply_codes<Code, per.kCount, false>(codes, count, this->values, second, out);
      }
    });
  }
};
template <>
struct PartScales<CodeE4M3, Bf16> : PartExponents<CodeE4M3> {};
template <>
struct PartScales<CodeE5M2, Bf16> : PartExponents<CodeE5M2> {};
#endif

// The rows of a part lie apart, and the processor's prefetcher sees no pattern in them, nor soon
// enough in the few scales of a row: ask for what comes kBytesAhead later, codes and scales. It may
// lie behind the part or the matrix, where asking does no harm.
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

// `expanded`: scales and how to apply them, PartScales or RoundedProducts.
template <typename Code, typename Scales, typename T>
TE_INLINE void dequantize_codes(const BlockScaledMatrix& matrix, const MatrixPart& part,
                                Scales& expanded, T* out, int64_t out_stride) {
  const BlockScales& scales = matrix.scales;
  const int64_t row_bytes = row_size_bytes(matrix.data.dtype, matrix.data.cols);
  const int64_t run =
      Scales::kMaxColumns > kRowRun && scales.block_rows == 1 ? kRowRun : Scales::kMaxColumns;
  int64_t band = 0;  // rows that share their scales
  for (int64_t begin = 0; begin < part.rows; begin += band) {
    band = scales.block_rows == 1 ? 1 : scales.block_rows - (part.row + begin) % scales.block_rows;
    const int64_t end = begin + band < part.rows ? begin + band : part.rows;
    for (int64_t col = 0; col < part.cols; col += run) {
      const int64_t left = part.cols - col;
      MatrixPart piece = {part.row + begin, part.col + col, 1, left < run ? left : run};
      const auto* codes = static_cast<const uint8_t*>(matrix.data.data) + piece.row * row_bytes +
                          piece.col / kCodesPerByte<Code>;
      expanded.expand(scales, piece);
      for (int64_t row = begin; row < end; ++row, ++piece.row, codes += row_bytes) {
        if (Scales::kIsPart || scales.col_stride == 1) {
          prefetch_row<Code>(matrix, piece, codes, row_bytes);
        }
        expanded.apply(codes, piece.cols, Scales::second_scale(scales, piece.row),
                       out + row * out_stride + col);
      }
    }
  }
}

// Calls body(TypeTag<Code>) with the code type of a block-scaled matrix.
template <typename Body>
TE_INLINE void with_code(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kFloat8E4M3:
      return body(TypeTag<CodeE4M3>{});
    case DType::kFloat8E5M2:
      return body(TypeTag<CodeE5M2>{});
    default:
      return body(TypeTag<CodeE2M1>{});
  }
}

// The part's elements to out, rows `out_stride` elements apart. Each row is written up to the next
// multiple of kDequantizeUnit elements. T is FP32, or Bf16 where multiply-adds of BF16 exist.
template <typename T>
inline void dequantize_part(const BlockScaledMatrix& matrix, const MatrixPart& part, T* out,
                            int64_t out_stride) {
  with_code(matrix.data.dtype, [&](auto code) {
    using Code = typename decltype(code)::Type;
    PartScales<Code, T> expanded;
    dequantize_codes<Code>(matrix, part, expanded, out, out_stride);
  });
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
