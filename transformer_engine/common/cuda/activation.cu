// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The ops of transformer_engine/activation.h. What is wanted row-wise, and all sums, comes from one
// pass of device/row_strips.h; for n columns of results in BF16 it moves, per result, 2 bytes for
// each operand (1 forward, 2 for the gradient of a plain activation, 3 of a gated one) and what is
// written. FP8 copies that run along columns come from the kernels that quantize a source; where
// the gradient is written anyway they read that, else they compute it from the operands, of which
// the two halves of a gated one are read twice. Copies with one scale per block: forward and, of a
// plain activation without sums, backward in one pass over the operands (activation_blocks.h); else
// from the gradient in memory, which adds 4 bytes per element where the caller does not want it,
// and 2 where it does.
#include <transformer_engine/activation.h>
#include <transformer_engine/cast.h>

#include "cuda/activation_blocks.h"
#include "cuda/candidate.h"
#include "cuda/device/per_tensor.h"
#include "cuda/device/row_strips.h"
#include "cuda/quantize_blocks.h"
#include "cuda/workspace.h"

namespace transformer_engine::cuda {

namespace {

using row_strips::kThreads;
constexpr int kSumColumns = 32;
constexpr int kSumRows = kThreads / kSumColumns;

// total[c] = sum over k of partials[k, c], rounded once; zeros for none. A thread adds every eighth
// row, and then one thread the eight sums.
__global__ void __launch_bounds__(kThreads)
    sum_partials(const float* __restrict__ partials, const int64_t count, const TensorView total) {
  __shared__ float sums[kSumRows][kSumColumns];
  const int column = static_cast<int>(threadIdx.x) % kSumColumns;
  const int first = static_cast<int>(threadIdx.x) / kSumColumns;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kSumColumns + column;
  float sum = 0.0F;
  if (col < total.cols) {
#pragma unroll 4
    for (int64_t k = first; k < count; k += kSumRows) {
      sum += partials[k * total.cols + col];
    }
  }
  sums[first][column] = sum;
  __syncthreads();
  if (first == 0 && col < total.cols) {
#pragma unroll
    for (int i = 1; i < kSumRows; ++i) {
      sum += sums[i][column];
    }
    store_any(total, col, sum);
  }
}

void run_sum_partials(const float* partials, int64_t count, const TensorView& total,
                      cudaStream_t stream) {
  if (total.data == nullptr || total.cols == 0) {
    return;
  }
  launch(&sum_partials,
         {.name = "sum_partials",
          .grid = dim3(static_cast<unsigned>(divide_up<int64_t>(total.cols, kSumColumns))),
          .block = dim3(kThreads),
          .stream = stream},
         partials, count, total);
}

// What a pass over rows is to write, beside the values.
struct Sums {
  TensorView columns;  // [1, columns of the result] or null
  TensorView rows;     // [1, rows] or null

  bool are_wanted() const { return columns.data != nullptr || rows.data != nullptr; }
};

template <class Strip>
void run_pass(const char* op, const Strip& strip,
              const PerTensorOutputs<typename Strip::Element>& values, const Sums& sums,
              row_strips::Shape shape, const Context& context) {
  const cudaStream_t stream = stream_of(context);
  const bool is_fast = strip.allow_vectors() && allow_vectors(values, shape.result_cols);
  shape.strips = row_strips::strip_count(shape.cols, is_fast);
  const int64_t chunks = shape.cols == 0 ? 0 : shape.chunks();
  constexpr int64_t kBytes = sizeof(float);
  const Workspace column_partials(
      op, sums.columns.data != nullptr ? chunks * shape.result_cols * kBytes : 0, context);
  const Workspace row_partials(
      op, sums.rows.data != nullptr ? shape.strips * shape.rows * kBytes : 0, context);
  run_row_strips(strip,
                 {.values = values,
                  .column_partials = column_partials.data<float>(),
                  .row_partials = row_partials.data<float>()},
                 shape, is_fast, stream);
  run_sum_partials(column_partials.data<float>(), chunks, sums.columns, stream);
  run_sum_partials(row_partials.data<float>(), shape.strips, sums.rows, stream);
}

// Whether a copy is wanted whose blocks or rows run along columns of the result.
bool needs_tiles(const QuantizedOutput& quantized) {
  return quantized.data_transpose.data != nullptr;
}

template <class Source>
void quantize_tiles(const Source& source, const QuantizedOutput& quantized,
                    typename Source::Element* output, int64_t rows, int64_t cols,
                    cudaStream_t stream) {
  quantize_per_tensor_transposed(
      source, per_tensor_outputs<typename Source::Element>(quantized, output), rows, cols, stream);
}

void run_forward(const ActivationForwardArgs& args, const Context& context) {
  const TensorView& output = args.output;
  const cudaStream_t stream = stream_of(context);
  const ActivationOperands operands = operands_of(args, TensorView{}, output.cols);
  if (args.quantized.blocks.is_wanted()) {
    quantize_activation_blocks(operands, output, args.quantized.blocks, stream);
    return;
  }
  for_high_precision(output.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (needs_tiles(args.quantized)) {
      quantize_tiles(ActivationSource<T>{operands}, args.quantized, data_of<T>(output), output.rows,
                     output.cols, stream);
      return;
    }
    run_pass("activation_forward", ActivationStrip<T>{operands},
             per_tensor_outputs<T>(args.quantized, data_of<T>(output)), {},
             {.rows = output.rows, .cols = output.cols, .result_cols = output.cols}, context);
  });
}

// The pass over rows, and with tiles the kernels that follow it.
template <class T, bool kIsGated>
void run_gradient(const ActivationBackwardArgs& args, const Context& context) {
  const TensorView& grad_input = args.grad_input;
  const cudaStream_t stream = stream_of(context);
  const ActivationOperands operands = operands_of(args, args.grad_output, args.grad_output.cols);
  const Sums sums{.columns = args.grad_bias, .rows = args.grad_act_scales};
  const bool has_tiles = needs_tiles(args.quantized);
  T* output = data_of<T>(grad_input);
  if (!has_tiles || sums.are_wanted() || output != nullptr) {
    const PerTensorOutputs<T> values = has_tiles ? PerTensorOutputs<T>{.output = output}
                                                 : per_tensor_outputs<T>(args.quantized, output);
    run_pass("activation_backward", ActivationGradStrip<T, kIsGated>{operands}, values, sums,
             {.rows = grad_input.rows, .cols = operands.cols, .result_cols = grad_input.cols},
             context);
  }
  if (has_tiles && output != nullptr) {
    EntryPoint<QuantizeArgs>::run({.input = grad_input, .output = args.quantized}, context);
  } else if (has_tiles) {
    quantize_tiles(ActivationGradSource<T, kIsGated>{operands}, args.quantized,
                   static_cast<T*>(nullptr), grad_input.rows, grad_input.cols, stream);
  }
}

void run_gradient(const ActivationBackwardArgs& args, const Context& context) {
  for_high_precision(args.grad_input.dtype, [&](auto type) {
    for_bool(is_gated(args.kind), [&](auto gated) {
      run_gradient<typename decltype(type)::type, gated()>(args, context);
    });
  });
}

void run_backward(const ActivationBackwardArgs& args, const Context& context) {
  const BlockQuantizedOutput& blocks = args.quantized.blocks;
  if (!blocks.is_wanted()) {
    run_gradient(args, context);
    return;
  }
  const bool has_sums = args.grad_bias.data != nullptr || args.grad_act_scales.data != nullptr;
  if (!is_gated(args.kind) && !has_sums) {
    quantize_activation_gradient_blocks(operands_of(args, args.grad_output, args.grad_output.cols),
                                        args.grad_input, blocks, stream_of(context));
    return;
  }
  ActivationBackwardArgs plain = args;
  plain.quantized = {};
  TensorView& gradient = plain.grad_input;  // what the copies are made from, wanted or not
  const Workspace values(
      "activation_backward",
      gradient.data == nullptr ? gradient.numel() * element_size_bytes(gradient.dtype) : 0,
      context);
  if (gradient.data == nullptr) {
    gradient.data = values.data<void>();
  }
  run_gradient(plain, context);
  quantize_blocks(gradient, blocks, context);
}

// A matrix, for the sums of its columns.
template <class T>
struct MatrixStrip {
  using Element = T;
  static constexpr int kHalves = 1;
  static constexpr bool kHasSums = true;
  template <int kN>
  struct Columns {
    using Raw = RawVector<T, kN>;
    const TensorView& matrix;
    int64_t col;

    __device__ __forceinline__ Raw fetch(int64_t row) const {
      return Raw::load(matrix, row * matrix.cols + col);
    }
  };
  TensorView matrix;

  __device__ __forceinline__ const TensorView& shared() const { return matrix; }
  __device__ __forceinline__ int64_t result_column(int64_t col, int) const { return col; }
  template <int kN>
  __device__ __forceinline__ static float evaluate(const Columns<kN>&, const RawVector<T, kN>& raw,
                                                   float (&values)[1][kN]) {
    raw.to_floats(values[0]);
    return 0.0F;
  }
  bool allow_vectors() const { return has_aligned_rows(matrix.data, matrix.cols, sizeof(T)); }
};

void run_bias_gradient(const BiasGradientArgs& args, const Context& context) {
  const TensorView& matrix = args.grad_output;
  const bool has_tiles = needs_tiles(args.quantized);
  for_high_precision(matrix.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    run_pass("bias_gradient", MatrixStrip<T>{matrix},
             has_tiles ? PerTensorOutputs<T>{} : per_tensor_outputs<T>(args.quantized),
             {.columns = args.grad_bias, .rows = {}},
             {.rows = matrix.rows, .cols = matrix.cols, .result_cols = matrix.cols}, context);
  });
  if (has_tiles) {
    EntryPoint<QuantizeArgs>::run({.input = matrix, .output = args.quantized}, context);
  }
  if (args.quantized.blocks.is_wanted()) {
    quantize_blocks(matrix, args.quantized.blocks, context);
  }
}

}  // namespace

TE_CUDA_ENTRY_POINT(ActivationForwardArgs, run_forward)
TE_CUDA_ENTRY_POINT(ActivationBackwardArgs, run_backward)
TE_CUDA_ENTRY_POINT(BiasGradientArgs, run_bias_gradient)

}  // namespace transformer_engine::cuda
