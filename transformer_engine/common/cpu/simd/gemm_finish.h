// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Epilogue of the GEMM kernels: FP32 sums to D. v = sum * alpha + bias; pre_epilogue = round(v);
// GELU; + d when accumulating; one rounding to d's type.
#pragma once

#include "cpu/gemm_kernels.h"
#include "cpu/simd/activations.h"
#include "cpu/simd/vec.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

TE_INLINE Vf load_bias(const GemmFinish& finish, int64_t col, int64_t n) {
  switch (finish.bias_dtype) {
    case DType::kBFloat16:
      return load(static_cast<const Bf16*>(finish.bias) + col, n);
    case DType::kFloat16:
      return load(static_cast<const Fp16*>(finish.bias) + col, n);
    default:
      return load(static_cast<const float*>(finish.bias) + col, n);
  }
}

// n lanes of one row; kIsWhole promises n = kWidth.
template <typename T, bool kIsWhole>
TE_INLINE void finish_lanes(const GemmFinish& finish, Vf v, Vf bias, int64_t index, int64_t n) {
  const auto put = [n](T* p, Vf value) {
    if constexpr (kIsWhole) {
      store(p, value);
    } else {
      store(p, value, n);
    }
  };
  v = v * set1(finish.alpha) + bias;
  if (finish.pre_epilogue != nullptr) {
    put(static_cast<T*>(finish.pre_epilogue) + index, v);
  }
  if (finish.has_gelu) {
    v = Gelu::value(v);
  }
  T* const d = static_cast<T*>(finish.d) + index;
  if (finish.accumulate) {
    v = v + (kIsWhole ? load(d) : load(d, n));
  }
  put(d, v);
}

template <typename T>
TE_INLINE void finish_piece_as(const GemmFinish& finish, const float* sums, int64_t sums_stride,
                               int64_t rows, int64_t cols) {
  for (int64_t col = 0; col < cols; col += kWidth) {
    const int64_t n = cols - col < kWidth ? cols - col : kWidth;
    const bool has_bias = finish.bias != nullptr;
    // x + -0 is x for every x, also for x = -0.
    const Vf bias = has_bias ? load_bias(finish, col, n) : set1(-0.0F);
    for (int64_t row = 0; row < rows; ++row) {
      const Vf v = load(sums + row * sums_stride + col);
      const int64_t index = row * finish.d_stride + col;
      if (n == kWidth) {
        finish_lanes<T, true>(finish, v, bias, index, n);
      } else {
        finish_lanes<T, false>(finish, v, bias, index, n);
      }
    }
  }
}

// sums: [rows][sums_stride], readable up to the next multiple of kWidth columns.
inline void finish_piece(const GemmFinish& finish, const float* sums, int64_t sums_stride,
                         int64_t rows, int64_t cols) {
  switch (finish.d_dtype) {
    case DType::kBFloat16:
      return finish_piece_as<Bf16>(finish, sums, sums_stride, rows, cols);
    case DType::kFloat16:
      return finish_piece_as<Fp16>(finish, sums, sums_stride, rows, cols);
    default:
      return finish_piece_as<float>(finish, sums, sums_stride, rows, cols);
  }
}

// The same spec, `rows` and `cols` further into D.
TE_INLINE GemmFinish finish_at(const GemmFinish& finish, int64_t row, int64_t col) {
  const auto bytes = [](DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; };
  GemmFinish moved = finish;
  const int64_t offset = (row * finish.d_stride + col) * bytes(finish.d_dtype);
  moved.d = static_cast<char*>(finish.d) + offset;
  if (finish.pre_epilogue != nullptr) {
    moved.pre_epilogue = static_cast<char*>(finish.pre_epilogue) + offset;
  }
  if (finish.bias != nullptr) {
    moved.bias = static_cast<const char*>(finish.bias) + col * bytes(finish.bias_dtype);
  }
  return moved;
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
