// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// D[m, n] for few rows of A and B stored [n, k]: dot products of the rows of A and B.
//
// Bound by reading B: n * k elements, once from memory, straight from where they are; FP8 is
// decoded in registers. So are block-scaled rows where BF16 is multiplied and a register has one or
// two scales (simd/gemm_scaled_words.h), at 16 rows of A still faster than dequantizing them a few
// at a time into cache, which serves the rest. A few rows of B go side by side, so that one load of
// A serves them all and enough sums are in flight (4 rows of B x 4 of A; 2 x 4 where there are 16
// registers). More rows of A go group by group over the same rows of B, which by then are in L1 or
// L2. A is small (k * m words) and is brought into the form of the multiply-add beforehand.
#include "cpu/simd/gemm_finish.h"
#include "cpu/simd/gemm_pack.h"
#include "cpu/simd/gemm_scaled_words.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

constexpr int kMaxRows = 16;
constexpr int kGroupRows = 4;  // of A, whose sums are in registers together
constexpr int kRowsSideBySide = TE_ISA_LEVEL >= 2 ? 4 : 2;
// Columns of D collected before they are finished together.
constexpr int64_t kColumnsAtOnce = 64;
// Elements of each row of B to prefetch ahead, at least.
constexpr int64_t kMinAhead = 1024;
static_assert(kRowsSideBySide <= kSkinnyRowsAtOnce);
static_assert(kColumnsAtOnce % kRowsSideBySide == 0 && kColumnsAtOnce % kWidth == 0);

template <bool kValue>
struct Constant {
  static constexpr bool value = kValue;
};

template <typename T, bool kAsPairs>
using Reader = RowReader<T, kAsPairs>;

template <typename T, bool kAsPairs>
constexpr int64_t kWordsPerChunk = Reader<T, kAsPairs>::kVectors * kWidth;

// Words of a prepared row.
TE_INLINE int64_t row_words(int64_t row_elements, bool as_pairs) {
  return as_pairs ? row_elements / 2 : row_elements;
}

template <typename T, bool kAsPairs>
TE_INLINE void read_last(const Reader<T, kAsPairs>& reader, const T* p, int64_t count,
                         Vf (&words)[Reader<T, kAsPairs>::kVectors]) {
  T copy[Reader<T, kAsPairs>::kElements] = {};
  copy_elements(copy, p, count);
  reader.read(copy, words);
}

template <typename T, bool kAsPairs>
void prepare_row(const T* p, int64_t k, int64_t row_elements, float* out) {
  using RowReader = Reader<T, kAsPairs>;
  const RowReader reader{};
  const float* const end = out + row_words(row_elements, kAsPairs);
  for (int64_t i = 0; i < k; i += RowReader::kElements) {
    Vf words[RowReader::kVectors];
    if (i + RowReader::kElements <= k) {
      reader.read(p + i, words);
    } else {
      read_last<T, kAsPairs>(reader, p + i, k - i, words);
    }
    for (int j = 0; j < RowReader::kVectors; ++j) {
      store(out, words[j]);
      out += kWidth;
    }
  }
  for (; out < end; out += kWidth) {
    store(out, zero());
  }
}

template <typename T, bool kAsPairs>
void prepare_as(const GemmSkinnyPrepareArgs& args) {
  const TensorView& matrix = args.matrix.data;
  float* out = static_cast<float*>(args.prepared);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    prepare_row<T, kAsPairs>(static_cast<const T*>(matrix.data) + row * matrix.cols, matrix.cols,
                             args.row_elements, out);
    out += row_words(args.row_elements, kAsPairs);
  }
}

template <typename T, bool kAsPairs>
void prepare_blocks_as(const GemmSkinnyPrepareArgs& args) {
  const TensorView& matrix = args.matrix.data;
  T* const dequantized = static_cast<T*>(args.scratch);
  float* out = static_cast<float*>(args.prepared);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    dequantize_part(args.matrix, {row, 0, 1, matrix.cols}, dequantized, args.row_elements);
    prepare_row<T, kAsPairs>(dequantized, matrix.cols, args.row_elements, out);
    out += row_words(args.row_elements, kAsPairs);
  }
}

// The sums of kRows rows of B with M rows of A.
template <typename T, bool kAsPairs, int M, int kRows>
struct Sums {
  static constexpr int kVectors = Reader<T, kAsPairs>::kVectors;
  // Few sums get one chain of additions per register of the chunk, to hide the latency.
  static constexpr int kChains = M * kRows <= 8 ? kVectors : 1;
  Vf sum[kRows][M][kChains];

  TE_INLINE void clear() {
#pragma GCC unroll 4
    for (auto& of_row : sum) {
#pragma GCC unroll 4
      for (auto& chains : of_row) {
#pragma GCC unroll 2
        for (auto& chain : chains) {
          chain = zero();
        }
      }
    }
  }

  TE_INLINE void add(const float* a, int64_t a_stride, const Vf (&words)[kRows][kVectors]) {
#pragma GCC unroll 2
    for (int i = 0; i < kVectors; ++i) {
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        const Vf word = load(a + m * a_stride + i * kWidth);
#pragma GCC unroll 4
        for (int row = 0; row < kRows; ++row) {
          Vf& s = sum[row][m][i % kChains];
          s = multiply_add_words<kAsPairs>(word, words[row][i], s);
        }
      }
    }
  }

  TE_INLINE void reduce(float* out) const {
    for (int row = 0; row < kRows; ++row) {
      for (int m = 0; m < M; ++m) {
        Vf total = sum[row][m][0];
        for (int chain = 1; chain < kChains; ++chain) {
          total += sum[row][m][chain];
        }
        out[m * kColumnsAtOnce + row] = reduce_add(total);
      }
    }
  }
};

// Rows of A and of B, `k` elements of each.
template <typename T>
struct RowsOfBoth {
  const float* a;  // prepared
  int64_t a_stride;
  const T* b;
  int64_t b_stride;
  int64_t k;
};

// out[m * kColumnsAtOnce + row] = dot of row `row` of B and row m of a group of prepared A.
template <typename T, bool kAsPairs, int M, int kRows>
__attribute__((noinline)) void multiply_group(const RowsOfBoth<T>& rows, float* out) {
  using RowReader = Reader<T, kAsPairs>;
  const RowReader reader{};
  const int64_t k = rows.k;
  const float* a = rows.a;
  Sums<T, kAsPairs, M, kRows> sums;
  sums.clear();
  Vf words[kRows][RowReader::kVectors];
  // The same place in the rows that come next, or some after that where rows are short. The
  // processor's own prefetcher stops at pages, which a row of FP8 hardly fills.
  const int64_t rows_ahead = k > 0 && k < kMinAhead ? kMinAhead / k : 1;
  const int64_t ahead = kRowsSideBySide * rows_ahead * rows.b_stride;
  int64_t i = 0;
  for (; i + RowReader::kElements <= k; i += RowReader::kElements) {
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      __builtin_prefetch(rows.b + row * rows.b_stride + i + ahead);
      reader.read(rows.b + row * rows.b_stride + i, words[row]);
    }
    sums.add(a, rows.a_stride, words);
    a += kWordsPerChunk<T, kAsPairs>;
  }
  if (i < k) {
    for (int row = 0; row < kRows; ++row) {
      read_last<T, kAsPairs>(reader, rows.b + row * rows.b_stride + i, k - i, words[row]);
    }
    sums.add(a, rows.a_stride, words);
  }
  sums.reduce(out);
}

template <typename T, bool kAsPairs, int kRows>
TE_INLINE void multiply_group_of(int64_t m, const RowsOfBoth<T>& rows, float* out) {
  switch (m) {
    case 1:
      return multiply_group<T, kAsPairs, 1, kRows>(rows, out);
    case 2:
      return multiply_group<T, kAsPairs, 2, kRows>(rows, out);
    case 3:
      return multiply_group<T, kAsPairs, 3, kRows>(rows, out);
    default:
      return multiply_group<T, kAsPairs, 4, kRows>(rows, out);
  }
}

// Calls multiply(rows, out, count) for all rows of A in groups as equal as can be.
template <typename T, typename Multiply>
TE_INLINE void for_each_group(int64_t m, RowsOfBoth<T> rows, float* out, const Multiply& multiply) {
  const int64_t groups = (m + kGroupRows - 1) / kGroupRows;
  const int64_t group_rows = (m + groups - 1) / groups;
  for (int64_t first = 0; first < m; first += group_rows) {
    multiply(rows, out, m - first < group_rows ? m - first : group_rows);
    rows.a += group_rows * rows.a_stride;
    out += group_rows * kColumnsAtOnce;
  }
}

// kRows rows of B times all rows of A.
template <typename T, bool kAsPairs, int kRows>
void multiply_rows(int64_t m, const RowsOfBoth<T>& all, float* out) {
  for_each_group(m, all, out, [](const RowsOfBoth<T>& rows, float* sums, int64_t count) {
    multiply_group_of<T, kAsPairs, kRows>(count, rows, sums);
  });
}

// All columns of D, a piece at a time: multiply(row, Rows<count>, out) does those of rows of B.
template <int kRows>
struct Rows {
  static constexpr int kCount = kRows;
};
template <typename Multiply>
TE_INLINE void multiply_all(const GemmSkinnyArgs& args, const Multiply& multiply) {
  alignas(64) float sums[kMaxRows * kColumnsAtOnce];
  for (int64_t first = args.row_begin; first < args.row_end; first += kColumnsAtOnce) {
    const int64_t left = args.row_end - first;
    const int64_t count = left < kColumnsAtOnce ? left : kColumnsAtOnce;
    int64_t row = 0;
    for (; row + kRowsSideBySide <= count; row += kRowsSideBySide) {
      multiply(first + row, Rows<kRowsSideBySide>{}, sums + row);
    }
    for (; row < count; ++row) {
      multiply(first + row, Rows<1>{}, sums + row);
    }
    finish_piece(finish_at(args.finish, 0, first), sums, kColumnsAtOnce, args.m, count);
  }
}

template <typename T, bool kAsPairs>
RowsOfBoth<T> rows_of_both(const GemmSkinnyArgs& args, const void* b, int64_t b_stride) {
  return {static_cast<const float*>(args.a), row_words(args.row_elements, kAsPairs),
          static_cast<const T*>(b), b_stride, args.k};
}

template <typename T, bool kAsPairs>
void multiply_as(const GemmSkinnyArgs& args) {
  const auto all = rows_of_both<T, kAsPairs>(args, args.b.data.data, args.k);
  multiply_all(args, [&](int64_t row, auto rows, float* out) {
    RowsOfBoth<T> some = all;
    some.b += row * args.k;
    multiply_rows<T, kAsPairs, rows.kCount>(args.m, some, out);
  });
}

template <typename T, bool kAsPairs, int kRows>
void multiply_dequantized(const GemmSkinnyArgs& args, int64_t row, float* out) {
  dequantize_part(args.b, {row, 0, kRows, args.k}, static_cast<T*>(args.scratch),
                  args.row_elements);
  multiply_rows<T, kAsPairs, kRows>(
      args.m, rows_of_both<T, kAsPairs>(args, args.scratch, args.row_elements), out);
}

#if TE_ISA_LEVEL >= 3

// The sums of kRows rows of codes with M rows of A.
template <typename Code, int M, int kRows>
struct ScaledSums {
  using Words = ScaledWords<Code>;
  Words reader;
  Vf sum[kRows][M];

  TE_INLINE void clear() {
    for (auto& of_row : sum) {
      for (auto& one : of_row) {
        one = zero();
      }
    }
  }

  // kScaledElements of each row.
  TE_INLINE void add(const float* a, int64_t a_stride, const uint8_t* const (&codes)[kRows],
                     const float* scales, int64_t scales_stride) {
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      Vf words[2];
      Vf of_words[2];
      reader.read(codes[row], words);
      Words::read_scales(scales + row * scales_stride, of_words);
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
          const Vf products = dot_pairs(load(a + m * a_stride + i * kWidth), words[i], zero());
          sum[row][m] = fma(products, of_words[i], sum[row][m]);
        }
      }
    }
  }

  TE_INLINE void reduce(float* out) const {
    for (int row = 0; row < kRows; ++row) {
      for (int m = 0; m < M; ++m) {
        out[m * kColumnsAtOnce + row] = reduce_add(sum[row][m]);
      }
    }
  }
};

// As multiply_group, of codes and the scales of their words.
template <typename Code, int M, int kRows>
__attribute__((noinline)) void multiply_codes_group(const RowsOfBoth<uint8_t>& rows,
                                                    const float* scales, int64_t scales_stride,
                                                    float* out) {
  constexpr int64_t kBytes = kScaledElements / kCodesPerByte<Code>;
  const float* a = rows.a;
  ScaledSums<Code, M, kRows> sums;
  sums.clear();
  const uint8_t* codes[kRows];
  for (int row = 0; row < kRows; ++row) {
    codes[row] = rows.b + row * rows.b_stride;
  }
  const int64_t ahead = kRowsSideBySide * rows.b_stride;
  int64_t i = 0;
  for (; i + kScaledElements <= rows.k; i += kScaledElements) {
    sums.add(a, rows.a_stride, codes, scales, scales_stride);
    a += 2 * kWidth;
    scales += kScaledElements / kUnit<Code>;
    for (auto& p : codes) {
      __builtin_prefetch(p + ahead);
      p += kBytes;
    }
  }
  if (i < rows.k) {
    uint8_t last[kRows][kBytes] = {};
    const int64_t left = (rows.k - i + kCodesPerByte<Code> - 1) / kCodesPerByte<Code>;
    for (int row = 0; row < kRows; ++row) {
      __builtin_memcpy(last[row], codes[row], static_cast<uint64_t>(left));
      codes[row] = last[row];
    }
    sums.add(a, rows.a_stride, codes, scales, scales_stride);
  }
  sums.reduce(out);
}

template <typename Code, int kRows>
TE_INLINE void multiply_codes_of(int64_t m, const RowsOfBoth<uint8_t>& rows, const float* scales,
                                 int64_t scales_stride, float* out) {
  switch (m) {
    case 1:
      return multiply_codes_group<Code, 1, kRows>(rows, scales, scales_stride, out);
    case 2:
      return multiply_codes_group<Code, 2, kRows>(rows, scales, scales_stride, out);
    case 3:
      return multiply_codes_group<Code, 3, kRows>(rows, scales, scales_stride, out);
    default:
      return multiply_codes_group<Code, 4, kRows>(rows, scales, scales_stride, out);
  }
}

// Where every scale allows it; their words' scales are in the scratch.
template <typename Code, int kRows>
bool multiply_scaled_words(const GemmSkinnyArgs& args, int64_t row, float* out) {
  const int64_t row_bytes = row_size_bytes(args.b.data.dtype, args.b.data.cols);
  const int64_t stride = args.row_elements / kUnit<Code> + kWidth;
  float* const scales = static_cast<float*>(args.scratch);
  for (int i = 0; i < kRows; ++i) {
    if (!expand_word_scales<Code>(args.b.scales, row + i, args.k, scales + i * stride)) {
      return false;
    }
  }
  const auto* const codes = static_cast<const uint8_t*>(args.b.data.data) + row * row_bytes;
  for_each_group(args.m, rows_of_both<uint8_t, true>(args, codes, row_bytes), out,
                 [&](const RowsOfBoth<uint8_t>& rows, float* sums, int64_t count) {
                   multiply_codes_of<Code, kRows>(count, rows, scales, stride, sums);
                 });
  return true;
}

template <typename Code>
void multiply_few_as(const GemmSkinnyArgs& args) {
  multiply_all(args, [&](int64_t row, auto rows, float* out) {
    if (!multiply_scaled_words<Code, rows.kCount>(args, row, out)) {
      multiply_dequantized<Bf16, true, rows.kCount>(args, row, out);
    }
  });
}

bool has_scaled_words(const GemmSkinnyArgs& args) {
  if (!args.as_pairs) {
    return false;
  }
  const bool is_e2m1 = args.b.data.dtype == DType::kFloat4E2M1;
  return is_e2m1 ? has_scale_per<kUnit<CodeE2M1>>(args.b.scales, {})
                 : has_scale_per<kUnit<CodeE4M3>>(args.b.scales, {});
}

#endif

template <typename T, bool kAsPairs>
void multiply_blocks_as(const GemmSkinnyArgs& args) {
#if TE_ISA_LEVEL >= 3
  if (has_scaled_words(args)) {
    switch (args.b.data.dtype) {
      case DType::kFloat8E4M3:
        return multiply_few_as<CodeE4M3>(args);
      case DType::kFloat8E5M2:
        return multiply_few_as<CodeE5M2>(args);
      default:
        return multiply_few_as<CodeE2M1>(args);
    }
  }
#endif
  multiply_all(args, [&](int64_t row, auto rows, float* out) {
    multiply_dequantized<T, kAsPairs, rows.kCount>(args, row, out);
  });
}

// Calls body(TypeTag<T>, as_pairs, is_block_scaled) with the type that is read, both constants.
template <typename Body>
TE_INLINE void with_form(const BlockScaledMatrix& matrix, bool as_pairs, const Body& body) {
  constexpr Constant<true> kYes{};
  constexpr Constant<false> kNo{};
  if (matrix.scales.is_wanted()) {
#if TE_ISA_LEVEL >= 3
    if (as_pairs) {
      return body(TypeTag<Bf16>{}, kYes, kYes);
    }
#endif
    return body(TypeTag<float>{}, kNo, kYes);
  }
  with_type(matrix.data.dtype, [&](auto tag) {
    if constexpr (kFitsPairs<typename decltype(tag)::Type>) {
      if (as_pairs) {
        return body(tag, kYes, kNo);
      }
    }
    body(tag, kNo, kNo);
  });
}

void prepare(const GemmSkinnyPrepareArgs& args) {
  with_form(args.matrix, args.as_pairs, [&](auto tag, auto as_pairs, auto is_block_scaled) {
    using T = typename decltype(tag)::Type;
    if constexpr (is_block_scaled.value) {
      prepare_blocks_as<T, as_pairs.value>(args);
    } else {
      prepare_as<T, as_pairs.value>(args);
    }
  });
}

void multiply(const GemmSkinnyArgs& args) {
  with_form(args.b, args.as_pairs, [&](auto tag, auto as_pairs, auto is_block_scaled) {
    using T = typename decltype(tag)::Type;
    if constexpr (is_block_scaled.value) {
      multiply_blocks_as<T, as_pairs.value>(args);
    } else {
      multiply_as<T, as_pairs.value>(args);
    }
  });
}

}  // namespace

extern const GemmSkinnyKernels gemm_skinny_kernels = {kMaxRows, kHasBf16Dot, prepare, multiply};

}  // namespace transformer_engine::cpu::TE_ISA
