// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// GEMM problems for tests: storage of any type and layout, the FP64 result, and how far an
// implementation may be from it.
#pragma once

#include <transformer_engine/gemm.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "numerics/half.h"
#include "numerics/minifloat.h"

namespace transformer_engine::testing {

inline float decode(DType dtype, const uint8_t* p) {
  uint16_t half = 0;
  float wide = 0.0F;
  switch (dtype) {
    case DType::kFloat8E4M3:
      return numerics::decode<numerics::E4M3>(*p);
    case DType::kFloat8E5M2:
      return numerics::decode<numerics::E5M2>(*p);
    case DType::kBFloat16:
      std::memcpy(&half, p, sizeof(half));
      return numerics::float_from_bf16(half);
    case DType::kFloat16:
      std::memcpy(&half, p, sizeof(half));
      return numerics::float_from_fp16(half);
    default:
      std::memcpy(&wide, p, sizeof(wide));
      return wide;
  }
}

inline void encode(DType dtype, float value, uint8_t* p) {
  uint16_t half = 0;
  switch (dtype) {
    case DType::kFloat8E4M3:
      *p = numerics::encode<numerics::E4M3>(value);
      return;
    case DType::kFloat8E5M2:
      *p = numerics::encode<numerics::E5M2>(value);
      return;
    case DType::kBFloat16:
      half = numerics::bf16_from_float(value);
      std::memcpy(p, &half, sizeof(half));
      return;
    case DType::kFloat16:
      half = numerics::fp16_from_float(value);
      std::memcpy(p, &half, sizeof(half));
      return;
    default:
      std::memcpy(p, &value, sizeof(value));
  }
}

// Half the distance between neighbours of magnitude 1, relative; and the smallest step at all.
inline double rounding_unit(DType dtype) {
  return dtype == DType::kFloat32 ? 0x1p-24 : dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
}
inline double smallest_step(DType dtype) {
  return dtype == DType::kFloat32 ? 0x1p-149 : dtype == DType::kFloat16 ? 0x1p-24 : 0x1p-133;
}

// A matrix with exactly as many bytes as it has elements, so that sanitizers see every overrun.
struct GemmMatrix {
  DType dtype = DType::kFloat32;
  int64_t rows = 0, cols = 0;
  std::vector<uint8_t> bytes;

  GemmMatrix() = default;
  GemmMatrix(DType type, int64_t r, int64_t c)
      : dtype(type),
        rows(r),
        cols(c),
        bytes(static_cast<size_t>(r * c * element_size_bytes(type))) {}
  uint8_t* at(int64_t row, int64_t col) {
    return bytes.data() + (row * cols + col) * element_size_bytes(dtype);
  }
  float get(int64_t row, int64_t col) const {
    return decode(dtype, bytes.data() + (row * cols + col) * element_size_bytes(dtype));
  }
  void set(int64_t row, int64_t col, float value) { encode(dtype, value, at(row, col)); }
  template <typename Draw>
  void fill(const Draw& draw) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        set(row, col, draw());
      }
    }
  }
  TensorView view() {
    TensorView v;
    v.data = bytes.data();
    v.dtype = dtype;
    v.rows = rows;
    v.cols = cols;
    return v;
  }
};

struct GemmCase {
  int64_t m = 1, n = 1, k = 1;
  DType a_dtype = DType::kFloat32, b_dtype = DType::kFloat32, d_dtype = DType::kFloat32;
  bool a_transposed = false, b_transposed = false;
  bool has_bias = false;
  DType bias_dtype = DType::kFloat32;
  bool has_gelu = false, has_pre = false, accumulate = false;

  std::string text() const {
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + " " +
           dtype_name(a_dtype) + (a_transposed ? "^T * " : " * ") + dtype_name(b_dtype) +
           (b_transposed ? "^T -> " : " -> ") + dtype_name(d_dtype) +
           (has_bias ? std::string(" bias ") + dtype_name(bias_dtype) : "") +
           (has_gelu ? " gelu" : "") + (has_pre ? " pre" : "") + (accumulate ? " accumulate" : "");
  }
};

// Whether products run on tensor cores, by cuBLASLt: set by the tests of a GPU. Then the sum of a
// product of two FP8 operands, and GELU, are off by more than FP32 arithmetic; see below.
inline bool has_tensor_cores = false;

// What goes into one element of D, in FP64.
struct GemmElement {
  double sum = 0.0, magnitude = 0.0;  // of the products, and of their absolute values
  double largest = 0.0;               // of the products and of twice the sums so far, absolute
  bool is_fp8 = false;                // both operands
  double alpha = 1.0, bias = 0.0, before = 0.0;
  double extra_roundings = 0.0;  // to FP32, on the way from the operands' codes to a product

  void add(double a, double b) {
    sum += a * b;
    magnitude += std::abs(a * b);
    largest = std::max({largest, std::abs(a * b), 2 * std::abs(sum)});
  }
};

// What FP8 sums lose on the tensor cores of compute capability 8.9 and 9.0: an instruction adds up
// to 32 products to the sum so far as fixed-point numbers, cut off 13 bits below the largest of
// them, and so is the result (Khattak and Mikaitis, Accurate Models of NVIDIA Tensor Cores, 2025).
// Sums of blocks begin anew, and are differences of sums: hence twice those.
inline double tensor_core_error(int64_t k, const GemmElement& element) {
  const double instructions = std::ceil(static_cast<double>(k) / 32.0);
  return has_tensor_cores && element.is_fp8 ? instructions * 34.0 * 0x1p-13 * element.largest : 0.0;
}
// The hardware's tanh, which an epilogue may use, has a relative error of 2^-11.
inline double tensor_core_gelu_error(double x) {
  return has_tensor_cores ? 0x1p-12 * std::abs(x) : 0.0;
}

struct GemmExpected {
  double value, tolerance;
};
struct GemmExpectedPair {
  GemmExpected pre, d;
};

inline GemmExpected rounded_to(DType dtype, double value, double error) {
  const double unit = rounding_unit(dtype);
  return {value, error + unit * (std::abs(value) + error) + smallest_step(dtype)};
}

// FP64 value of an element. The tolerance bounds, for any order of summation, k products and k
// sums in FP32 (unit u = 2^-24 each, relative to the sum of magnitudes), the roundings of alpha,
// the product with it and the bias, the epilogue, and the one rounding to d's type. BF16
// multiply-adds may also flush 2^-126 per step.
inline GemmExpectedPair expected_of(const GemmCase& spec, const GemmElement& element) {
  const double unit = rounding_unit(DType::kFloat32);
  const double value = element.sum * element.alpha + element.bias;
  const double steps = 2.0 * static_cast<double>(spec.k) + 4.0 + element.extra_roundings;
  const double sum_error = unit * steps * element.magnitude * std::abs(element.alpha) +
                           unit * (std::abs(value) + std::abs(element.bias)) +
                           static_cast<double>(spec.k + 1) * 0x1p-126 +
                           tensor_core_error(spec.k, element) * std::abs(element.alpha);
  GemmExpectedPair result;
  result.pre = rounded_to(spec.d_dtype, value, sum_error);
  double final_value = value;
  double final_error = sum_error;
  if (spec.has_gelu) {
    const double inner = value * (0.79788456 + 0.03567741 * value * value);
    final_value = value * (0.5 + 0.5 * std::tanh(inner));
    // |gelu'| < 1.13; a dozen FP32 roundings inside, the cubic ones where tanh is not yet flat.
    final_error = 1.13 * sum_error + 16.0 * unit * std::abs(value) + tensor_core_gelu_error(value);
  }
  if (spec.accumulate) {
    final_value += element.before;
    final_error += unit * (std::abs(element.before) + std::abs(final_value));
  }
  result.d = rounded_to(spec.d_dtype, final_value, final_error);
  return result;
}

// One case with its operands, and what must come out.
class GemmProblem {
 public:
  GemmMatrix a, b, bias, d_before;
  float a_scale_inv = 0.75F, b_scale_inv = 0.3F;

  template <typename Draw>
  GemmProblem(const GemmCase& c, const Draw& draw)
      : a(stored(c.a_dtype, c.m, c.k, c.a_transposed)),
        b(stored(c.b_dtype, c.n, c.k, c.b_transposed)),
        bias(c.bias_dtype, 1, c.n),
        d_before(c.d_dtype, c.m, c.n),
        case_(c) {
    for (GemmMatrix* matrix : {&a, &b, &bias, &d_before}) {
      matrix->fill(draw);
    }
  }

  const GemmCase& spec() const { return case_; }

  GemmArgs args(GemmMatrix& d, GemmMatrix& pre) {
    GemmArgs args;
    args.a = {a.view(), case_.a_transposed, is_fp8(a.dtype) ? &a_scale_inv : nullptr, {}};
    args.b = {b.view(), case_.b_transposed, is_fp8(b.dtype) ? &b_scale_inv : nullptr, {}};
    args.d = d.view();
    if (case_.has_bias) {
      args.bias = bias.view();
    }
    if (case_.has_pre) {
      args.pre_epilogue = pre.view();
    }
    args.epilogue = case_.has_gelu ? GemmEpilogue::kGELU : GemmEpilogue::kNone;
    args.accumulate = case_.accumulate;
    return args;
  }

  float a_at(int64_t row, int64_t i) const {
    return case_.a_transposed ? a.get(i, row) : a.get(row, i);
  }
  float b_at(int64_t row, int64_t i) const {
    return case_.b_transposed ? b.get(i, row) : b.get(row, i);
  }

  GemmExpectedPair expected(int64_t row, int64_t col) const {
    GemmElement element;
    for (int64_t i = 0; i < case_.k; ++i) {
      element.add(a_at(row, i), b_at(col, i));
    }
    element.alpha = static_cast<double>(is_fp8(a.dtype) ? a_scale_inv : 1.0F) *
                    (is_fp8(b.dtype) ? b_scale_inv : 1.0F);
    element.bias = case_.has_bias ? bias.get(0, col) : 0.0;
    element.before = case_.accumulate ? d_before.get(row, col) : 0.0;
    return expected_of(case_, element);
  }

 private:
  static GemmMatrix stored(DType dtype, int64_t rows, int64_t k, bool is_transposed) {
    return is_transposed ? GemmMatrix(dtype, k, rows) : GemmMatrix(dtype, rows, k);
  }
  GemmCase case_;
};

}  // namespace transformer_engine::testing
