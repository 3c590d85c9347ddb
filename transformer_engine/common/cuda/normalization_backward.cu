// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// norm_backward of transformer_engine/normalization.h.
//   grad_output dy, input x, grad_residual, grad_input [rows, hidden]; gamma, grad_gamma, grad_beta
//   [hidden]; mean, rstd [rows] FP32
// Rows of up to 8192 columns that allow vectors, of one type for dy and x, stay in registers while
// their two sums are taken. A block takes every gridDim-th row and adds up its rows' terms of
// grad_gamma and grad_beta in registers, so dy and x are read once: 6 bytes an element for BF16.
// The next row is on its way while one is worked on. Other rows are read twice for grad_input and
// once more for the weights.
// Sums over rows have two stages, in an order that the shape and the device decide, so that results
// repeat: FP32 sums per block (`parts`: [blocks, grad_gamma | grad_beta]), then their total. The
// parts are about 1 / (rows per block) of the input, and stay in the L2 cache.
#include <transformer_engine/normalization.h>

#include <algorithm>

#include "cuda/candidate.h"
#include "cuda/device/norm.h"
#include "cuda/device/ptx.h"
#include "cuda/device/row.h"
#include "cuda/dispatch.h"
#include "cuda/runtime.h"
#include "cuda/workspace.h"

namespace transformer_engine::cuda {

namespace {

constexpr char kOp[] = "norm_backward";
constexpr int kLoopThreads = 256;
constexpr int kWarps = kLoopThreads / kWarpSize;

struct BackwardProblem {
  TypedPointer grad_output;  // [rows, hidden]
  TypedPointer input;        // [rows, hidden]
  NormAffine affine;         // without beta
  int64_t rows;
  bool is_layer_norm;
  const float* mean;           // [rows], LayerNorm only
  const float* rstd;           // [rows]
  TypedPointer grad_residual;  // [rows, hidden] or null
  TypedPointer grad_input;     // [rows, hidden] or null
  float* parts;                // [parts, width] or null
  int64_t width;               // hidden for grad_gamma and, for LayerNorm, hidden for grad_beta
};

__device__ __forceinline__ NormStatistics statistics_at(const BackwardProblem& problem,
                                                        int64_t row) {
  return {.mean = problem.is_layer_norm ? problem.mean[row] : 0.0F, .rstd = problem.rstd[row]};
}

// One vector of a row: dy, x^ and w = dy * g.
struct Terms {
  float grad_output[kSourceVector];
  float xhat[kSourceVector];
  float weighted[kSourceVector];
};

// From dy and x, which `terms` holds in grad_output and xhat.
template <bool kAligned>
__device__ __forceinline__ void complete_terms(const NormAffine& affine,
                                               const NormStatistics& statistics, int64_t col,
                                               Terms& terms) {
  float gain[kSourceVector];
  load_gain<kAligned>(affine, col, gain);
#pragma unroll
  for (int i = 0; i < kSourceVector; ++i) {
    terms.xhat[i] = (terms.xhat[i] - statistics.mean) * statistics.rstd;
    terms.weighted[i] = terms.grad_output[i] * gain[i];
  }
}

// Columns beyond the row have dy = 0, so they add nothing.
__device__ __forceinline__ void add_row_sums(const Terms& terms, float (&sums)[2]) {
#pragma unroll
  for (int i = 0; i < kSourceVector; ++i) {
    sums[0] += terms.weighted[i];
    sums[1] = fmaf(terms.weighted[i], terms.xhat[i], sums[1]);
  }
}
__device__ __forceinline__ void add_column_sums(const Terms& terms, float (&gamma)[kSourceVector],
                                                float (&beta)[kSourceVector]) {
#pragma unroll
  for (int i = 0; i < kSourceVector; ++i) {
    gamma[i] = fmaf(terms.grad_output[i], terms.xhat[i], gamma[i]);
    beta[i] += terms.grad_output[i];
  }
}

// The sums over a row become means, that of w 0 for RMSNorm.
__device__ __forceinline__ void to_means(const BackwardProblem& problem, float (&sums)[2]) {
  const float count = static_cast<float>(problem.affine.hidden);
  sums[0] = problem.is_layer_norm ? sums[0] / count : 0.0F;
  sums[1] /= count;
}

template <bool kAligned>
__device__ __forceinline__ void put_grad_input(const BackwardProblem& problem, int64_t row,
                                               int64_t col, float rstd, const Terms& terms,
                                               const float (&means)[2]) {
  const int64_t hidden = problem.affine.hidden;
  float gradient[kSourceVector] = {};
  if (problem.grad_residual.data != nullptr) {
    load_typed<kAligned>(problem.grad_residual, row * hidden, col, hidden, gradient);
  }
#pragma unroll
  for (int i = 0; i < kSourceVector; ++i) {
    gradient[i] += rstd * (terms.weighted[i] - means[0] - terms.xhat[i] * means[1]);
  }
  store_typed<kAligned>(problem.grad_input, row * hidden, col, hidden, gradient);
}

// Blocks that run side by side on a multiprocessor, as registers allow; the grid has no more.
constexpr int blocks_per_multiprocessor(int threads, int vectors) {
  return vectors == 1 ? 6 : 512 / threads;
}

// The rows of dy and x that a block works on and, on their way, the next ones. Two-byte rows go
// through shared memory, where each thread reads its own vectors alone: they take no registers and
// no barrier. FP32 rows, which would not fit, are large enough to keep the memory busy without.
template <class T, int kThreads, int kVectors>
class RowQueue {
 public:
  using Row = RowPart<T, kThreads, kVectors>;
  static constexpr bool kIsUsed = sizeof(T) == 2;
  static constexpr size_t kSharedBytes = kIsUsed ? 4 * kVectors * kThreads * 16 : 0;

  __device__ __forceinline__ RowQueue(const BackwardProblem& problem, void* shared)
      : hidden_(problem.affine.hidden),
        dy_(static_cast<const T*>(problem.grad_output.data)),
        x_(static_cast<const T*>(problem.input.data)),
        shared_(static_cast<T*>(shared)) {}

  // Fetches rows `row` of both.
  __device__ __forceinline__ void push(int64_t row, int64_t rows, int half) {
    if constexpr (kIsUsed) {
#pragma unroll
      for (int vector = 0; vector < kVectors; ++vector) {
        const int column = Row::column(vector);
        if (row < rows && column < hidden_) {
          ptx::cp_async16(slot(half, 0, vector), dy_ + row * hidden_ + column);
          ptx::cp_async16(slot(half, 1, vector), x_ + row * hidden_ + column);
        }
      }
      ptx::cp_async_commit();
    }
  }
  // Makes `row` the current one: the one pushed before the last.
  __device__ __forceinline__ void pop(int64_t row, int half) {
    if constexpr (kIsUsed) {
      half_ = half;
      ptx::cp_async_wait<1>();
    } else {
      current_dy_.load(dy_ + row * hidden_, hidden_);
      current_x_.load(x_ + row * hidden_, hidden_);
    }
  }
  // After the last row: nothing may be under way when a block ends.
  __device__ __forceinline__ void finish() const {
    if constexpr (kIsUsed) {
      ptx::cp_async_wait<0>();
    }
  }
  // A vector of the current rows; it must lie inside them.
  __device__ __forceinline__ void get(int vector, float (&dy)[kSourceVector],
                                      float (&x)[kSourceVector]) const {
    if constexpr (kIsUsed) {
      load_floats<kSourceVector, true>(slot(half_, 0, vector), dy);
      load_floats<kSourceVector, true>(slot(half_, 1, vector), x);
    } else {
      current_dy_.get(vector, dy);
      current_x_.get(vector, x);
    }
  }

 private:
  __device__ __forceinline__ T* slot(int half, int operand, int vector) const {
    const int index = ((half * 2 + operand) * kVectors + vector) * kThreads;
    return shared_ + (index + static_cast<int>(threadIdx.x)) * kSourceVector;
  }

  int64_t hidden_;
  const T* dy_;
  const T* x_;
  T* shared_;
  int half_ = 0;
  Row current_dy_;  // when not in shared memory
  Row current_x_;
};

template <class T, int kThreads, int kVectors>
__global__ void __launch_bounds__(kThreads, blocks_per_multiprocessor(kThreads, kVectors))
    norm_backward_rows(const __grid_constant__ BackwardProblem problem) {
  using Row = RowPart<T, kThreads, kVectors>;
  TE_DYNAMIC_SHARED(char, shared);
  __shared__ float scratch[2][2][kThreads / kWarpSize];  // rows take the halves in turn
  const int64_t hidden = problem.affine.hidden;
  float gamma_sum[kVectors][kSourceVector] = {};
  float beta_sum[kVectors][kSourceVector] = {};
  RowQueue<T, kThreads, kVectors> queue(problem, shared);
  queue.push(blockIdx.x, problem.rows, 0);
  int half = 0;
  for (int64_t row = blockIdx.x; row < problem.rows; row += gridDim.x, half ^= 1) {
    queue.push(row + gridDim.x, problem.rows, half ^ 1);
    queue.pop(row, half);
    const NormStatistics statistics = statistics_at(problem, row);
    const auto terms_of = [&](int vector) {
      Terms terms;
      queue.get(vector, terms.grad_output, terms.xhat);
      complete_terms<true>(problem.affine, statistics, Row::column(vector), terms);
      return terms;
    };
    float sums[2] = {0.0F, 0.0F};
#pragma unroll
    for (int vector = 0; vector < kVectors; ++vector) {
      if (Row::column(vector) < hidden) {
        const Terms terms = terms_of(vector);
        add_row_sums(terms, sums);
        add_column_sums(terms, gamma_sum[vector], beta_sum[vector]);
      }
    }
    if (problem.grad_input.data != nullptr) {
      group_reduce<Sum, kThreads, kThreads>(sums, scratch[half]);
      to_means(problem, sums);
#pragma unroll
      for (int vector = 0; vector < kVectors; ++vector) {
        if (Row::column(vector) < hidden) {
          put_grad_input<true>(problem, row, Row::column(vector), statistics.rstd, terms_of(vector),
                               sums);
        }
      }
    }
  }
  queue.finish();
  if (problem.parts != nullptr) {
    float* part = problem.parts + blockIdx.x * problem.width;
#pragma unroll
    for (int vector = 0; vector < kVectors; ++vector) {
      if (Row::column(vector) < hidden) {
        store_floats<kSourceVector, true>(part + Row::column(vector), gamma_sum[vector]);
        if (problem.is_layer_norm) {
          store_floats<kSourceVector, true>(part + hidden + Row::column(vector), beta_sum[vector]);
        }
      }
    }
  }
}

template <bool kAligned>
__device__ __forceinline__ Terms load_terms(const BackwardProblem& problem,
                                            const NormStatistics& statistics, int64_t row,
                                            int64_t col) {
  const int64_t hidden = problem.affine.hidden;
  Terms terms;
  load_typed<kAligned>(problem.grad_output, row * hidden, col, hidden, terms.grad_output);
  load_typed<kAligned>(problem.input, row * hidden, col, hidden, terms.xhat);
  complete_terms<kAligned>(problem.affine, statistics, col, terms);
  return terms;
}

// grad_input of any rows: a block a row, in turns over its vectors.
template <bool kAligned>
__global__ void __launch_bounds__(kLoopThreads)
    norm_backward_loop(const __grid_constant__ BackwardProblem problem) {
  __shared__ float scratch[2][kWarps];
  constexpr int kStep = kLoopThreads * kSourceVector;
  const int64_t hidden = problem.affine.hidden;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * kSourceVector;
  for (int64_t row = blockIdx.x; row < problem.rows; row += gridDim.x) {
    const NormStatistics statistics = statistics_at(problem, row);
    float sums[2] = {0.0F, 0.0F};
    for (int64_t col = first; col < hidden; col += kStep) {
      add_row_sums(load_terms<kAligned>(problem, statistics, row, col), sums);
    }
    group_reduce<Sum, kLoopThreads, kLoopThreads>(sums, scratch);
    to_means(problem, sums);
    for (int64_t col = first; col < hidden; col += kStep) {
      put_grad_input<kAligned>(problem, row, col, statistics.rstd,
                               load_terms<kAligned>(problem, statistics, row, col), sums);
    }
    __syncthreads();  // the next row uses the scratch again
  }
}

constexpr int kStripColumns = kWarpSize * kSourceVector;

// Parts of the weights' gradients for any rows. A block has a strip of 256 columns, a vector a
// lane, and `chunk_rows` rows, every eighth a warp; block b has (chunk b / strips, strip b %
// strips).
template <bool kAligned>
__global__ void __launch_bounds__(kLoopThreads)
    norm_weight_parts(const __grid_constant__ BackwardProblem problem, const int64_t chunk_rows,
                      const int64_t strips) {
  __shared__ float sums[2][kWarps][kStripColumns];
  const int64_t hidden = problem.affine.hidden;
  const int64_t chunk = blockIdx.x / strips;
  const int64_t col0 = blockIdx.x % strips * kStripColumns;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int strip_col = static_cast<int>(threadIdx.x) % kWarpSize * kSourceVector;
  float gamma_sum[kSourceVector] = {};
  float beta_sum[kSourceVector] = {};
  if (col0 + strip_col < hidden) {
    const int64_t last = (chunk + 1) * chunk_rows;
    const int64_t end = last < problem.rows ? last : problem.rows;
    for (int64_t row = chunk * chunk_rows + warp; row < end; row += kWarps) {
      add_column_sums(
          load_terms<kAligned>(problem, statistics_at(problem, row), row, col0 + strip_col),
          gamma_sum, beta_sum);
    }
  }
#pragma unroll
  for (int i = 0; i < kSourceVector; ++i) {
    sums[0][warp][strip_col + i] = gamma_sum[i];
    sums[1][warp][strip_col + i] = beta_sum[i];
  }
  __syncthreads();
  const int64_t col = col0 + threadIdx.x;
  if (col >= hidden) {
    return;
  }
  float total[2] = {0.0F, 0.0F};
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    total[0] += sums[0][i][threadIdx.x];
    total[1] += sums[1][i][threadIdx.x];
  }
  float* part = problem.parts + chunk * problem.width;
  part[col] = total[0];
  if (problem.is_layer_norm) {
    part[hidden + col] = total[1];
  }
}

__device__ __forceinline__ void store_one(const TypedPointer& target, int64_t index, float value) {
  with_type(target, [&](auto* data) {
    data[index] = from_float<std::remove_reference_t<decltype(*data)>>(value);
  });
}

// Totals of the parts: a warp's lanes have 32 columns, its block's warps every eighth part each.
__global__ void __launch_bounds__(kLoopThreads)
    norm_weight_totals(const float* __restrict__ parts, const int64_t count, const int64_t width,
                       const int64_t hidden, const TypedPointer grad_gamma,
                       const TypedPointer grad_beta) {
  __shared__ float sums[kWarps][kWarpSize];
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kWarpSize + lane;
  float sum = 0.0F;
  if (col < width) {
    for (int64_t part = warp; part < count; part += kWarps) {
      sum += parts[part * width + col];
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || col >= width) {
    return;
  }
#pragma unroll
  for (int i = 1; i < kWarps; ++i) {
    sum += sums[i][lane];
  }
  const TypedPointer target = col < hidden ? grad_gamma : grad_beta;
  if (target.data != nullptr) {
    store_one(target, col < hidden ? col : col - hidden, sum);
  }
}

// How rows are split: `parts` is the number of partial sums of the weights' gradients.
struct Plan {
  int threads;  // of norm_backward_rows; 0: the kernels for any rows
  int vectors;
  bool is_aligned;
  int64_t parts;
  int64_t chunk_rows;  // of norm_weight_parts
};

bool fits_registers(const NormBackwardArgs& args) {
  constexpr int64_t kMostColumns = 512 * 2 * kSourceVector;
  return args.input.dtype == args.grad_output.dtype && args.input.cols <= kMostColumns;
}

Plan plan_of(const NormBackwardArgs& args, int device) {
  const int64_t rows = args.input.rows;
  const int64_t hidden = args.input.cols;
  const int64_t multiprocessors = std::max(multiprocessor_count(device), 1);
  Plan plan{};
  plan.is_aligned = has_vector_rows(args.input) && has_vector_rows(args.grad_output) &&
                    has_vector_rows(args.gamma) && has_vector_rows(args.grad_residual) &&
                    has_vector_rows(args.grad_input);
  if (plan.is_aligned && fits_registers(args)) {
    plan.vectors = hidden <= 128 * kSourceVector ? 1 : 2;
    plan.threads = hidden <= 256 * kSourceVector ? 128 : hidden <= 512 * kSourceVector ? 256 : 512;
    plan.parts =
        std::min(rows, multiprocessors * blocks_per_multiprocessor(plan.threads, plan.vectors));
    return plan;
  }
  constexpr int64_t kFewestRows = 32;
  const int64_t strips = divide_up<int64_t>(hidden, kStripColumns);
  const int64_t wanted = std::max<int64_t>(multiprocessors * 8 / std::max<int64_t>(strips, 1), 1);
  plan.chunk_rows = std::max(divide_up(rows, wanted), kFewestRows);
  plan.parts = divide_up(rows, plan.chunk_rows);
  return plan;
}

template <class T, int kThreads, int kVectors>
void launch_rows(const BackwardProblem& problem, const Plan& plan, cudaStream_t stream) {
  launch(&norm_backward_rows<T, kThreads, kVectors>,
         {.name = "norm_backward_rows",
          .grid = dim3(static_cast<unsigned>(plan.parts)),
          .block = dim3(kThreads),
          .dynamic_shared_bytes = RowQueue<T, kThreads, kVectors>::kSharedBytes,
          .stream = stream},
         problem);
}

template <class T>
void launch_rows_of(const BackwardProblem& problem, const Plan& plan, cudaStream_t stream) {
  if (plan.vectors == 1) {
    launch_rows<T, 128, 1>(problem, plan, stream);
  } else if (plan.threads == 128) {
    launch_rows<T, 128, 2>(problem, plan, stream);
  } else if (plan.threads == 256) {
    launch_rows<T, 256, 2>(problem, plan, stream);
  } else {
    launch_rows<T, 512, 2>(problem, plan, stream);
  }
}

void launch_any_rows(const BackwardProblem& problem, const Plan& plan, cudaStream_t stream) {
  constexpr int64_t kMostBlocks = 1 << 20;
  const int64_t strips = divide_up<int64_t>(problem.affine.hidden, kStripColumns);
  for_bool(plan.is_aligned, [&](auto aligned) {
    if (problem.grad_input.data != nullptr) {
      launch(&norm_backward_loop<aligned()>,
             {.name = "norm_backward_loop",
              .grid = dim3(static_cast<unsigned>(std::min(problem.rows, kMostBlocks))),
              .block = dim3(kLoopThreads),
              .stream = stream},
             problem);
    }
    if (problem.parts != nullptr) {
      launch(&norm_weight_parts<aligned()>,
             {.name = "norm_weight_parts",
              .grid = dim3(static_cast<unsigned>(plan.parts * strips)),
              .block = dim3(kLoopThreads),
              .stream = stream},
             problem, plan.chunk_rows, strips);
    }
  });
}

void launch_totals(const NormBackwardArgs& args, const BackwardProblem& problem, const Plan& plan,
                   cudaStream_t stream) {
  launch(&norm_weight_totals,
         {.name = "norm_weight_totals",
          .grid = dim3(static_cast<unsigned>(divide_up<int64_t>(problem.width, kWarpSize))),
          .block = dim3(kLoopThreads),
          .stream = stream},
         problem.parts, plan.parts, problem.width, args.input.cols, typed(args.grad_gamma),
         typed(args.grad_beta));
}

void run_norm_backward(const NormBackwardArgs& args, const Context& context) {
  const int64_t hidden = args.input.cols;
  const bool has_weights = args.grad_gamma.data != nullptr || args.grad_beta.data != nullptr;
  if (hidden == 0 || (!has_weights && args.grad_input.data == nullptr)) {
    return;
  }
  const bool is_layer_norm = args.kind == NormKind::kLayerNorm;
  const int64_t width = is_layer_norm ? 2 * hidden : hidden;
  const Plan plan = plan_of(args, context.device_index);
  const Workspace parts(
      kOp, has_weights ? plan.parts * width * static_cast<int64_t>(sizeof(float)) : 0, context);
  const BackwardProblem problem{.grad_output = typed(args.grad_output),
                                .input = typed(args.input),
                                .affine = norm_affine(args.gamma, {}, args.zero_centered_gamma),
                                .rows = args.input.rows,
                                .is_layer_norm = is_layer_norm,
                                .mean = args.mean,
                                .rstd = args.rstd,
                                .grad_residual = typed(args.grad_residual),
                                .grad_input = typed(args.grad_input),
                                .parts = parts.data<float>(),
                                .width = width};
  if (problem.rows > 0 && plan.threads > 0) {
    for_high_precision(args.input.dtype, [&](auto type) {
      launch_rows_of<typename decltype(type)::type>(problem, plan, stream_of(context));
    });
  } else if (problem.rows > 0) {
    launch_any_rows(problem, plan, stream_of(context));
  }
  if (has_weights) {
    launch_totals(args, problem, plan, stream_of(context));
  }
}

}  // namespace

TE_CUDA_ENTRY_POINT(NormBackwardArgs, run_norm_backward)

}  // namespace transformer_engine::cuda
