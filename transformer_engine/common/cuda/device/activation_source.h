// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Operands of the activations, and what is computed from them: results and gradients as strips
// (device/row_strips.h) and as sources (device/source.h).
// kN is 8 where all operands have the type T and allow vectors, and 1 otherwise: then every operand
// has the type that it says.
#pragma once

#include "cuda/device/activation.h"
#include "cuda/device/typed.h"
#include "cuda/dispatch.h"

namespace transformer_engine::cuda {

struct ActivationOperands {
  ActivationRule rule;
  TensorView input;        // [rows, cols or 2 * cols]
  TensorView grad_output;  // [rows, cols]; backward alone
  TensorView bias;         // [1, columns of input] or null
  TensorView act_scales;   // [1, rows] or null
  int64_t cols;            // of the result
  int64_t block;           // of columns of a half, before as many of the other half

  // Column of the input (and of its gradient) where column `col` of the result has its first half.
  __host__ __device__ __forceinline__ int64_t first_column(int64_t col) const {
    return !rule.is_gated || col < block ? col : col + col / block * block;
  }
  template <class T>
  bool allow_vectors() const {
    return is_vectors_of<T>(input) && is_vectors_of<T>(grad_output) && is_vectors_of<T>(bias) &&
           cols % kSourceVector == 0 && (!rule.is_gated || block % kSourceVector == 0);
  }

 private:
  template <class T>
  static bool is_vectors_of(const TensorView& view) {
    return view.data == nullptr ||
           (view.dtype == kDTypeOf<T> && has_aligned_rows(view.data, view.cols, sizeof(T)));
  }
};

template <class Args>
ActivationOperands operands_of(const Args& args, const TensorView& grad_output, int64_t cols) {
  return {.rule = activation_rule(args.kind, args.params),
          .input = args.input,
          .grad_output = grad_output,
          .bias = args.bias,
          .act_scales = args.act_scales,
          .cols = cols,
          .block = args.glu_interleave_size > 0 ? args.glu_interleave_size : cols};
}

// kN elements as they lie in memory: of type T, or one of any type.
template <class T, int kN>
struct RawVector {
  static constexpr int kWidth = kN < kVectorSize<T> ? kN : kVectorSize<T>;
  Vec<T, kWidth> parts[kN / kWidth];

  __device__ __forceinline__ static RawVector load(const TensorView& view, int64_t index) {
    RawVector raw;
#pragma unroll
    for (int i = 0; i < kN / kWidth; ++i) {
      raw.parts[i] = Vec<T, kWidth>::load(static_cast<const T*>(view.data) + index + i * kWidth);
    }
    return raw;
  }
  __device__ __forceinline__ void to_floats(float (&values)[kN]) const {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      values[i] = to_float(parts[i / kWidth].v[i % kWidth]);
    }
  }
};
template <class T>
struct RawVector<T, 1> {
  float value;

  __device__ __forceinline__ static RawVector load(const TensorView& view, int64_t index) {
    return {load_any(view, index)};
  }
  __device__ __forceinline__ void to_floats(float (&values)[1]) const { values[0] = value; }
};

// kN columns of the result from `col`: what all rows share.
template <class T, int kN>
class ActivationColumns {
 public:
  struct Raw {  // of one row
    RawVector<T, kN> first, second, grad_output;
    float scale;
  };

  __device__ __forceinline__ ActivationColumns(const ActivationOperands& operands, int64_t col)
      : operands_(operands), col_(col), first_col_(operands.first_column(col)) {}

  __device__ __forceinline__ Raw fetch(int64_t row) const {
    Raw raw{};
    const int64_t begin = row * operands_.input.cols + first_col_;
    raw.first = RawVector<T, kN>::load(operands_.input, begin);
    if (operands_.rule.is_gated) {
      raw.second = RawVector<T, kN>::load(operands_.input, begin + operands_.block);
    }
    if (operands_.grad_output.data != nullptr) {
      raw.grad_output = RawVector<T, kN>::load(operands_.grad_output, row * operands_.cols + col_);
    }
    raw.scale = operands_.act_scales.data != nullptr ? load_any(operands_.act_scales, row) : 1.0F;
    return raw;
  }

  __device__ __forceinline__ void forward(const Raw& raw, float (&values)[kN]) const {
    float a[kN];
    float b[kN] = {};
    biased(raw.first, first_col_, a);
    if (operands_.rule.is_gated) {
      biased(raw.second, first_col_ + operands_.block, b);
    }
    for_function(operands_.rule.function, [&](auto at) {
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        values[i] = at.value_of(operands_.rule, a[i]).value;
      }
      if (operands_.rule.is_gated) {
#pragma unroll
        for (int i = 0; i < kN; ++i) {
          values[i] *= at.gate_of(operands_.rule, b[i]).value;
        }
      }
    });
    if (operands_.act_scales.data != nullptr) {
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        values[i] *= raw.scale;
      }
    }
  }

  // Gradients of the first half, and with kHalves 2 those of the second. Returns the part that
  // these columns have in the gradient of the row's scale.
  template <int kHalves>
  __device__ __forceinline__ float backward(const Raw& raw, float (&values)[kHalves][kN]) const {
    float a[kN];
    float b[kN] = {};
    float grad[kN];
    biased(raw.first, first_col_, a);
    if constexpr (kHalves == 2) {
      biased(raw.second, first_col_ + operands_.block, b);
    }
    raw.grad_output.to_floats(grad);
    float scale_grad = 0.0F;
    for_function(operands_.rule.function, [&](auto at) {
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const Point f = at.value_of(operands_.rule, a[i]);
        const float scaled = grad[i] * raw.scale;
        if constexpr (kHalves == 2) {
          const Point gate = at.gate_of(operands_.rule, b[i]);
          values[0][i] = scaled * f.slope * gate.value;
          values[1][i] = scaled * f.value * gate.slope;
          scale_grad += grad[i] * (f.value * gate.value);
        } else {
          values[0][i] = scaled * f.slope;
          scale_grad += grad[i] * f.value;
        }
      }
    });
    return scale_grad;
  }

 private:
  // With the bias of the columns from `input_col`. It is read anew for every row, from the L1
  // cache: registers are scarcer.
  __device__ __forceinline__ void biased(const RawVector<T, kN>& raw, int64_t input_col,
                                         float (&x)[kN]) const {
    raw.to_floats(x);
    if (operands_.bias.data != nullptr) {
      float bias[kN];
      RawVector<T, kN>::load(operands_.bias, input_col).to_floats(bias);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        x[i] += bias[i];
      }
    }
  }

  const ActivationOperands& operands_;
  int64_t col_;
  int64_t first_col_;
};

// ---- strips

template <class T>
struct ActivationStrip {
  using Element = T;
  static constexpr int kHalves = 1;
  static constexpr bool kHasSums = false;
  template <int kN>
  using Columns = ActivationColumns<T, kN>;
  ActivationOperands operands;

  __device__ __forceinline__ const ActivationOperands& shared() const { return operands; }
  __device__ __forceinline__ int64_t result_column(int64_t col, int) const { return col; }
  template <int kN>
  __device__ __forceinline__ static float evaluate(const Columns<kN>& columns,
                                                   const typename Columns<kN>::Raw& raw,
                                                   float (&values)[1][kN]) {
    columns.forward(raw, values[0]);
    return 0.0F;
  }
  bool allow_vectors() const { return operands.template allow_vectors<T>(); }
};

template <class T, bool kIsGated>
struct ActivationGradStrip {
  using Element = T;
  static constexpr int kHalves = kIsGated ? 2 : 1;
  static constexpr bool kHasSums = true;
  template <int kN>
  using Columns = ActivationColumns<T, kN>;
  ActivationOperands operands;

  __device__ __forceinline__ const ActivationOperands& shared() const { return operands; }
  __device__ __forceinline__ int64_t result_column(int64_t col, int half) const {
    return operands.first_column(col) + half * operands.block;
  }
  template <int kN>
  __device__ __forceinline__ static float evaluate(const Columns<kN>& columns,
                                                   const typename Columns<kN>::Raw& raw,
                                                   float (&values)[kHalves][kN]) {
    return columns.backward(raw, values);
  }
  bool allow_vectors() const { return operands.template allow_vectors<T>(); }
};

// ---- sources

template <class T>
struct ActivationSource {
  using Element = T;
  static constexpr bool kHasWholeVectors = true;
  static constexpr bool kHasLongCode = true;
  ActivationOperands operands;

  template <int kN, bool kAligned>
  __device__ __forceinline__ void load(int64_t row, int64_t col, float (&values)[kN]) const {
    if constexpr (kAligned || kN == 1) {
      const ActivationColumns<T, kN> columns(operands, col);
      columns.forward(columns.fetch(row), values);
    } else {
      load_one_by_one(*this, row, col, kN, values);
    }
  }
  bool can_be_aligned() const { return operands.template allow_vectors<T>(); }
};

// Columns are those of the input: either half of a gated gradient, whose other half is left unused.
template <class T, bool kIsGated>
struct ActivationGradSource {
  using Element = T;
  static constexpr bool kHasWholeVectors = true;
  static constexpr bool kHasLongCode = true;
  ActivationOperands operands;

  template <int kN, bool kAligned>
  __device__ __forceinline__ void load(int64_t row, int64_t col, float (&values)[kN]) const {
    if constexpr (!kAligned && kN != 1) {
      load_one_by_one(*this, row, col, kN, values);
    } else if constexpr (kIsGated) {
      const int64_t number = col / operands.block;  // of the block, halves alternating
      const bool is_second = number % 2 == 1;
      const int64_t result_col = col - (number + 1) / 2 * operands.block;
      const ActivationColumns<T, kN> columns(operands, result_col);
      float halves[2][kN];
      columns.backward(columns.fetch(row), halves);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        values[i] = is_second ? halves[1][i] : halves[0][i];
      }
    } else {
      const ActivationColumns<T, kN> columns(operands, col);
      float half[1][kN];
      columns.backward(columns.fetch(row), half);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        values[i] = half[0][i];
      }
    }
  }
  bool can_be_aligned() const { return operands.template allow_vectors<T>(); }
};

namespace per_tensor {
template <class T>
inline constexpr int kBlocksPerMultiprocessor<ActivationGradSource<T, true>> = 3;  // 80 registers
}  // namespace per_tensor

}  // namespace transformer_engine::cuda
