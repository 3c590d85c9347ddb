// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// norm_forward of transformer_engine/normalization.h.
//   input, output [rows, hidden]; gamma, beta [hidden]; mean, rstd [rows] FP32
//   mean = sum(x) / hidden, twice: about 0, then about the first result (device/norm.h)
// Rows of up to 16384 columns that allow vectors stay in registers: a warp holds up to 1024, a
// block of 128, 256 or 512 threads up to 4096, 8192 or 16384. The input is read once and the output
// written once: 4 bytes an element for BF16, 3 for an FP8 copy alone, 5 for both; gamma and beta
// come from the caches. Other rows take a block each and are read three times, mostly from the
// caches.
// The same kernels round to the output type, take the amax and write the rowwise FP8 copy. Of the
// other copies, the transposed one is made from the rowwise one: a byte read and a byte written per
// element, where computing it from the input again would read two.
#include <transformer_engine/cast.h>
#include <transformer_engine/normalization.h>

#include <algorithm>

#include "cuda/candidate.h"
#include "cuda/device/norm.h"
#include "cuda/device/row.h"
#include "cuda/dispatch.h"
#include "cuda/quantize_blocks.h"
#include "cuda/workspace.h"

namespace transformer_engine::cuda {

namespace {

constexpr char kOp[] = "norm_forward";
constexpr int kVectors = 4;  // of a row in a thread's registers: 32 elements
constexpr int kLoopThreads = 256;

struct ForwardProblem {
  TypedPointer input;  // [rows, hidden]
  NormAffine affine;
  int64_t rows;
  float epsilon;
  bool is_layer_norm;
  TypedPointer output;  // [rows, hidden]; its type rounds even when data is null
  float* mean;          // [rows] or null
  float* rstd;          // [rows] or null
  // Copy with one scale, as PerTensorOutputs.
  uint8_t* codes;  // [rows, hidden] or null
  DType format;
  const float* scale;
  float* scale_inv;
  float* amax;
};

__device__ __forceinline__ float scale_of(const ForwardProblem& problem) {
  return problem.scale != nullptr ? *problem.scale : 1.0F;
}

// What follows the formula, for one vector of a row.
template <bool kAligned>
__device__ __forceinline__ float put_vector(const ForwardProblem& problem, float scale, int64_t row,
                                            int64_t col, float (&values)[kSourceVector],
                                            float amax) {
  const int64_t hidden = problem.affine.hidden;
  round_typed(problem.output, values);
  if (problem.output.data != nullptr) {
    store_typed<kAligned>(problem.output, row * hidden, col, hidden, values);
  }
  if (problem.codes != nullptr) {
    const auto codes = problem.format == DType::kFloat8E5M2
                           ? per_tensor::encode_vector<numerics::E5M2>(values, scale)
                           : per_tensor::encode_vector<numerics::E4M3>(values, scale);
    per_tensor::store_part<kAligned>(problem.codes + row * hidden, col, hidden, codes);
  }
  return per_tensor::amax_of(values, amax);
}

__device__ __forceinline__ void put_statistics(const ForwardProblem& problem, int64_t row,
                                               const NormStatistics& statistics) {
  if (problem.mean != nullptr) {
    problem.mean[row] = statistics.mean;
  }
  if (problem.rstd != nullptr) {
    problem.rstd[row] = statistics.rstd;
  }
}

template <int kThreads>
__device__ __forceinline__ void put_scaling(const ForwardProblem& problem, float scale, float amax,
                                            float (&scratch)[kThreads / kWarpSize]) {
  if (problem.amax != nullptr) {
    amax = block_reduce<Max, kThreads>(amax, scratch);
    if (threadIdx.x == 0) {
      atomic_max_skip_nan(problem.amax, amax);
    }
  }
  if (problem.scale_inv != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
    *problem.scale_inv = numerics::inverse_scale(scale);
  }
}

template <class T, int kThreads, int kGroup>
__global__ void __launch_bounds__(kThreads, 768 / kThreads)
    norm_forward_rows(const ForwardProblem problem) {
  __shared__ float center_sums[1][kThreads / kWarpSize];
  __shared__ float deviation_sums[2][kThreads / kWarpSize];
  __shared__ float warp_amax[kThreads / kWarpSize];
  using Row = RowPart<T, kGroup, kVectors>;
  const int64_t hidden = problem.affine.hidden;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / kGroup) +
                      static_cast<int>(threadIdx.x) / kGroup;
  // A group without a row goes along, for the barriers.
  const int64_t end = row < problem.rows ? hidden : 0;
  const float scale = scale_of(problem);
  Row x;
  x.load(static_cast<const T*>(problem.input.data) + row * hidden, end);
  float values[kSourceVector];
  float center[1] = {0.0F};
  if (problem.is_layer_norm) {
#pragma unroll
    for (int vector = 0; vector < kVectors; ++vector) {
      x.get(vector, values);
      center[0] = sum_of(values, center[0]);
    }
    group_reduce<Sum, kThreads, kGroup>(center, center_sums);
    center[0] /= static_cast<float>(hidden);
  }
  float sums[2] = {0.0F, 0.0F};
#pragma unroll
  for (int vector = 0; vector < kVectors; ++vector) {
    x.get(vector, values);
    add_deviations(values, center[0], Row::column(vector) < end ? kSourceVector : 0, sums);
  }
  group_reduce<Sum, kThreads, kGroup>(sums, deviation_sums);
  const NormStatistics statistics =
      statistics_of(problem.is_layer_norm, center[0], sums, hidden, problem.epsilon);
  if (end > 0 && Row::column(0) == 0) {
    put_statistics(problem, row, statistics);
  }
  float amax = 0.0F;
#pragma unroll
  for (int vector = 0; vector < kVectors; ++vector) {
    if (Row::column(vector) < end) {
      x.get(vector, values);
      apply_norm<true>(problem.affine, statistics, Row::column(vector), values);
      amax = put_vector<true>(problem, scale, row, Row::column(vector), values, amax);
    }
  }
  put_scaling<kThreads>(problem, scale, amax, warp_amax);
}

// Any row: one block, in turns over its vectors.
template <bool kAligned>
__global__ void __launch_bounds__(kLoopThreads) norm_forward_loop(const ForwardProblem problem) {
  __shared__ float center_sums[1][kLoopThreads / kWarpSize];
  __shared__ float deviation_sums[2][kLoopThreads / kWarpSize];
  __shared__ float warp_amax[kLoopThreads / kWarpSize];
  constexpr int kStep = kLoopThreads * kSourceVector;
  const int64_t hidden = problem.affine.hidden;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * kSourceVector;
  const float scale = scale_of(problem);
  float values[kSourceVector];
  float amax = 0.0F;
  for (int64_t row = blockIdx.x; row < problem.rows; row += gridDim.x) {
    float center[1] = {0.0F};
    if (problem.is_layer_norm) {
      for (int64_t col = first; col < hidden; col += kStep) {
        load_typed<kAligned>(problem.input, row * hidden, col, hidden, values);
        center[0] = sum_of(values, center[0]);
      }
      group_reduce<Sum, kLoopThreads, kLoopThreads>(center, center_sums);
      center[0] /= static_cast<float>(hidden > 0 ? hidden : 1);
    }
    float sums[2] = {0.0F, 0.0F};
    for (int64_t col = first; col < hidden; col += kStep) {
      load_typed<kAligned>(problem.input, row * hidden, col, hidden, values);
      add_deviations(values, center[0], hidden - col, sums);
    }
    group_reduce<Sum, kLoopThreads, kLoopThreads>(sums, deviation_sums);
    const NormStatistics statistics =
        statistics_of(problem.is_layer_norm, center[0], sums, hidden, problem.epsilon);
    if (threadIdx.x == 0) {
      put_statistics(problem, row, statistics);
    }
    for (int64_t col = first; col < hidden; col += kStep) {
      load_typed<kAligned>(problem.input, row * hidden, col, hidden, values);
      apply_norm<kAligned>(problem.affine, statistics, col, values);
      amax = put_vector<kAligned>(problem, scale, row, col, values, amax);
    }
    __syncthreads();  // the next row uses the scratch again
  }
  put_scaling<kLoopThreads>(problem, scale, amax, warp_amax);
}

void launch_loop(const ForwardProblem& problem, bool is_aligned, cudaStream_t stream) {
  constexpr int64_t kMostBlocks = 1 << 20;
  const Launch config{
      .name = "norm_forward_loop",
      .grid = dim3(static_cast<unsigned>(std::clamp<int64_t>(problem.rows, 1, kMostBlocks))),
      .block = dim3(kLoopThreads),
      .stream = stream};
  for_bool(is_aligned,
           [&](auto aligned) { launch(&norm_forward_loop<aligned()>, config, problem); });
}

void launch_forward(const NormForwardArgs& args, const ForwardProblem& problem,
                    cudaStream_t stream) {
  const int64_t hidden = args.input.cols;
  TensorView output = args.output;
  output.data = problem.output.data;
  const bool is_aligned = has_vector_rows(args.input) && has_vector_rows(args.gamma) &&
                          has_vector_rows(args.beta) && has_vector_rows(output) &&
                          has_aligned_rows(problem.codes, hidden, 1, kSourceVector);
  bool is_done = false;
  if (is_aligned && args.input.numel() > 0) {
    for_high_precision(args.input.dtype, [&](auto type) {
      is_done = for_row_group<kVectors>(problem.rows, hidden, [&](auto threads, auto group) {
        const Launch config{
            .name = "norm_forward_rows",
            .grid =
                dim3(static_cast<unsigned>(divide_up<int64_t>(problem.rows, threads() / group()))),
            .block = dim3(threads()),
            .stream = stream};
        launch(&norm_forward_rows<typename decltype(type)::type, threads(), group()>, config,
               problem);
      });
    });
  }
  if (!is_done) {
    launch_loop(problem, is_aligned, stream);
  }
}

void run_norm_forward(const NormForwardArgs& args, const Context& context) {
  const QuantizedOutput& quantized = args.quantized;
  const int64_t numel = args.input.numel();
  const bool has_blocks = quantized.blocks.is_wanted();
  const bool has_transpose = quantized.data_transpose.is_wanted();
  TensorView output = args.output;
  TensorView codes = quantized.data;
  // What a copy is made from, where the caller does not want it.
  const Workspace values(
      kOp, has_blocks && output.data == nullptr ? numel * element_size_bytes(output.dtype) : 0,
      context);
  const Workspace rowwise(kOp, has_transpose && codes.data == nullptr ? numel : 0, context);
  if (has_blocks && output.data == nullptr) {
    output.data = values.data<void>();
  }
  if (has_transpose && codes.data == nullptr) {
    codes = {.data = rowwise.data<void>(),
             .dtype = quantized.data_transpose.dtype,
             .rows = args.input.rows,
             .cols = args.input.cols};
  }
  const ForwardProblem problem{
      .input = typed(args.input),
      .affine = norm_affine(args.gamma, args.beta, args.zero_centered_gamma),
      .rows = args.input.rows,
      .epsilon = args.epsilon,
      .is_layer_norm = args.kind == NormKind::kLayerNorm,
      .output = typed(output),
      .mean = args.mean,
      .rstd = args.rstd,
      .codes = data_of<uint8_t>(codes),
      .format = codes.dtype,
      .scale = quantized.scale,
      .scale_inv = quantized.scale_inv,
      .amax = quantized.amax};
  launch_forward(args, problem, stream_of(context));
  if (has_transpose) {
    EntryPoint<TransposeArgs>::run({.input = codes, .output = quantized.data_transpose}, context);
  }
  if (has_blocks) {
    quantize_blocks(output, quantized.blocks, context);
  }
}

}  // namespace

TE_CUDA_ENTRY_POINT(NormForwardArgs, run_norm_forward)

}  // namespace transformer_engine::cuda
