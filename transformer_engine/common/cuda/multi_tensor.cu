// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The ops of transformer_engine/multi_tensor.h but for Adam (multi_tensor_adam.cu). Lists reach the
// kernels as arguments (device/tensor_table.h); a block of 256 threads takes a chunk of a tensor,
// 8 elements a thread at a time. Bytes an element in FP32: scale 8, norm 4, SGD 20 (12 without
// momentum). Norms: a partial sum a chunk, then one block for each tensor and one for all adds
// them; the order is fixed.
#include <transformer_engine/multi_tensor.h>

#include "cuda/candidate.h"
#include "cuda/device/reduce.h"
#include "cuda/device/tensor_table.h"
#include "cuda/workspace.h"
#include "numerics/multi_tensor.h"

namespace transformer_engine::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kStep = kThreads * kSourceVector;  // elements of a block's turn
constexpr int64_t kChunk = 8 * kStep;
constexpr int64_t kNormChunk = 32 * kStep;

Launch table_launch(const char* name, unsigned blocks, const Context& context) {
  return {
      .name = name, .grid = dim3(blocks), .block = dim3(kThreads), .stream = stream_of(context)};
}

// Calls body(i, is_whole) for the thread's vectors of a chunk; is_whole: all of a vector is inside
// and it may be read at once.
template <class Body>
__device__ __forceinline__ void for_vectors(const Chunk& chunk, bool is_aligned, const Body& body) {
#pragma unroll 1
  for (int64_t i = chunk.begin + static_cast<int>(threadIdx.x) * kSourceVector; i < chunk.end;
       i += kStep) {
    body(i, is_aligned && i + kSourceVector <= chunk.end);
  }
}

__device__ __forceinline__ void load_vector(const TypedPointer& array, bool is_whole, int64_t i,
                                            int64_t end, float (&values)[kSourceVector]) {
  if (is_whole) {
    RawVector raw;
    raw.load(array, i);
    raw.get(array.dtype, values);
  } else {
    load_one_by_one(array, i, end, values);
  }
}

// ---- scale

__global__ void __launch_bounds__(kThreads)
    multi_tensor_scale_kernel(const __grid_constant__ TensorTable<2> table, const float host_scale,
                              const float* __restrict__ device_scale, int32_t* noop) {
  const Chunk chunk = chunk_of_block<kChunk>(table);
  const TypedPointer input = array_of(table, 0, chunk.tensor);
  const TypedPointer output = array_of(table, 1, chunk.tensor);
  const float scale = device_scale != nullptr ? *device_scale : host_scale;
  bool is_finite = true;
  for_vectors(chunk, table.is_aligned[chunk.tensor], [&](int64_t i, bool is_whole) {
    float values[kSourceVector];
    load_vector(input, is_whole, i, chunk.end, values);
#pragma unroll
    for (int j = 0; j < kSourceVector; ++j) {
      is_finite &= numerics::is_finite(values[j]);
      values[j] *= scale;
    }
    store_elements(output, is_whole, i, chunk.end, values);
  });
  if (noop != nullptr && !is_finite) {
    atomicOr(noop, 1);
  }
}

void run_scale(const MultiTensorScaleArgs& args, const Context& context) {
  for_tables<kChunk, 2>(std::array{args.inputs, args.outputs}, [&](const auto& table,
                                                                   unsigned blocks) {
    launch(&multi_tensor_scale_kernel, table_launch("multi_tensor_scale_kernel", blocks, context),
           table, args.scale, args.device_scale, args.noop);
  });
}

// ---- norm

// parts[first_part + block] = sum of (x * inv_scale)^2 over the block's chunk.
__global__ void __launch_bounds__(kThreads)
    sum_of_squares(const __grid_constant__ TensorTable<1> table,
                   const float* __restrict__ inv_scale, float* __restrict__ parts) {
  __shared__ float warp_sums[kThreads / kWarpSize];
  const Chunk chunk = chunk_of_block<kNormChunk>(table);
  const TypedPointer input = array_of(table, 0, chunk.tensor);
  const float factor = inv_scale != nullptr ? *inv_scale : 1.0F;
  float sum = 0.0F;
  const auto add = [&](const float(&values)[kSourceVector], int64_t count) {
#pragma unroll
    for (int j = 0; j < kSourceVector; ++j) {
      const float scaled = values[j] * factor;
      sum = j < count ? fmaf(scaled, scaled, sum) : sum;
    }
  };
  // Four vectors at a time keep enough bytes under way.
  constexpr int kTogether = 4;
  int64_t i = chunk.begin + static_cast<int>(threadIdx.x) * kSourceVector;
  if (table.is_aligned[chunk.tensor]) {
#pragma unroll 1
    for (; i + (kTogether - 1) * kStep + kSourceVector <= chunk.end; i += kTogether * kStep) {
      RawVector raw[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        raw[k].load(input, i + k * kStep);
      }
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        float values[kSourceVector];
        raw[k].get(input.dtype, values);
        add(values, kSourceVector);
      }
    }
  }
#pragma unroll 1
  for (; i < chunk.end; i += kStep) {
    float values[kSourceVector];
    load_one_by_one(input, i, chunk.end, values);
    add(values, chunk.end - i);
  }
  sum = block_reduce<Sum, kThreads>(sum, warp_sums);
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = sum;
  }
}

// Of the parts [begin, end).
__device__ __forceinline__ float norm_of_parts(const float* __restrict__ parts, int64_t begin,
                                               int64_t end,
                                               float (&warp_sums)[kThreads / kWarpSize]) {
  float sum = 0.0F;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    sum += parts[i];
  }
  return sqrtf(block_reduce<Sum, kThreads>(sum, warp_sums));
}

__global__ void __launch_bounds__(kThreads)
    norm_of_tensor(const __grid_constant__ TensorTable<1> table, const float* __restrict__ parts,
                   float* __restrict__ per_tensor) {
  __shared__ float warp_sums[kThreads / kWarpSize];
  const auto tensor = static_cast<int>(blockIdx.x);
  const float norm =
      norm_of_parts(parts, table.first_block[tensor], table.first_block[tensor + 1], warp_sums);
  if (threadIdx.x == 0) {
    per_tensor[table.position[tensor]] = norm;
  }
}

__global__ void __launch_bounds__(kThreads)
    norm_of_all(const float* __restrict__ parts, const int64_t count, float* norm, int32_t* noop) {
  __shared__ float warp_sums[kThreads / kWarpSize];
  const float value = norm_of_parts(parts, 0, count, warp_sums);
  if (threadIdx.x == 0) {
    *norm = value;
    if (noop != nullptr && !numerics::is_finite(value)) {
      *noop = 1;
    }
  }
}

void run_l2norm(const MultiTensorL2NormArgs& args, const Context& context) {
  int64_t chunks = 0;
  for (const TensorView& input : args.inputs) {
    chunks += divide_up(input.numel(), kNormChunk);
  }
  if (args.per_tensor != nullptr && !args.inputs.empty()) {  // of those without elements
    check_cuda(
        cudaMemsetAsync(args.per_tensor, 0, args.inputs.size() * sizeof(float), stream_of(context)),
        "cudaMemsetAsync", "multi_tensor_l2norm");
  }
  const Workspace workspace("multi_tensor_l2norm", chunks * static_cast<int64_t>(sizeof(float)),
                            context);
  auto* parts = workspace.data<float>();
  for_tables<kNormChunk, 1>(std::array{args.inputs}, [&](const auto& table, unsigned blocks) {
    launch(&sum_of_squares, table_launch("sum_of_squares", blocks, context), table, args.inv_scale,
           parts);
    if (args.per_tensor != nullptr) {
      launch(&norm_of_tensor,
             table_launch("norm_of_tensor", static_cast<unsigned>(table.count), context), table,
             parts, args.per_tensor);
    }
    parts += blocks;
  });
  launch(&norm_of_all, table_launch("norm_of_all", 1, context), workspace.data<float>(), chunks,
         args.norm, args.noop);
}

// ---- SGD

enum SgdArray { kSgdGrad, kSgdParam, kSgdMomentum, kSgdCopy, kSgdArrays };

struct SgdStep {
  numerics::SgdNumbers<float> numbers;
  numerics::SgdRule rule;
  const int32_t* noop;
};

__global__ void __launch_bounds__(kThreads)
    multi_tensor_sgd_kernel(const __grid_constant__ TensorTable<kSgdArrays> table,
                            const __grid_constant__ SgdStep step) {
  if (step.noop != nullptr && *step.noop != 0) {
    return;
  }
  const Chunk chunk = chunk_of_block<kChunk>(table);
  const TypedPointer grads = array_of(table, kSgdGrad, chunk.tensor);
  const TypedPointer params = array_of(table, kSgdParam, chunk.tensor);
  const TypedPointer momenta = array_of(table, kSgdMomentum, chunk.tensor);
  const TypedPointer copies = array_of(table, kSgdCopy, chunk.tensor);
  for_vectors(chunk, table.is_aligned[chunk.tensor], [&](int64_t i, bool is_whole) {
    float grad[kSourceVector], param[kSourceVector], momentum[kSourceVector] = {};
    if (is_whole) {
      RawVector raw[3];
      raw[0].load(grads, i);
      raw[1].load(params, i);
      if (step.rule.has_momentum) {
        raw[2].load(momenta, i);
        raw[2].get(momenta.dtype, momentum);
      }
      raw[0].get(grads.dtype, grad);
      raw[1].get(params.dtype, param);
    } else {
      load_one_by_one(grads, i, chunk.end, grad);
      load_one_by_one(params, i, chunk.end, param);
      if (step.rule.has_momentum) {
        load_one_by_one(momenta, i, chunk.end, momentum);
      }
    }
#pragma unroll
    for (int j = 0; j < kSourceVector; ++j) {
      numerics::sgd_update(step.numbers, step.rule, grad[j], param[j], momentum[j]);
    }
    store_elements(params, is_whole, i, chunk.end, param);
    if (step.rule.has_momentum) {
      store_elements(momenta, is_whole, i, chunk.end, momentum);
    }
    if (copies.data != nullptr) {
      store_elements(copies, is_whole, i, chunk.end, param);
    }
  });
}

void run_sgd(const MultiTensorSgdArgs& args, const Context& context) {
  const SgdStep step{numerics::sgd_numbers(args), numerics::sgd_rule(args), args.noop};
  for_tables<kChunk, kSgdArrays>(std::array{args.grads, args.params, args.momenta, args.copies},
                                 [&](const auto& table, unsigned blocks) {
                                   launch(&multi_tensor_sgd_kernel,
                                          table_launch("multi_tensor_sgd_kernel", blocks, context),
                                          table, step);
                                 });
}

// ---- scales: an element a thread

__global__ void __launch_bounds__(kThreads)
    multi_tensor_scales_kernel(const __grid_constant__ TensorTable<3> table,
                               const numerics::CurrentScaling rule) {
  const Chunk chunk = chunk_of_block<kThreads>(table);
  const int64_t i = chunk.begin + threadIdx.x;
  if (i < chunk.end) {
    const float amax = static_cast<const float*>(table.data[0][chunk.tensor])[i];
    const float scale = numerics::current_scaling_scale(amax, rule);
    static_cast<float*>(table.data[1][chunk.tensor])[i] = scale;
    static_cast<float*>(table.data[2][chunk.tensor])[i] = numerics::inverse_scale(scale);
  }
}

void run_scales(const MultiTensorScalesArgs& args, const Context& context) {
  const numerics::CurrentScaling rule = numerics::scaling_rule(args);
  for_tables<kThreads, 0>(std::array{args.amaxes, args.scales, args.scale_invs},
                          [&](const auto& table, unsigned blocks) {
                            launch(&multi_tensor_scales_kernel,
                                   table_launch("multi_tensor_scales_kernel", blocks, context),
                                   table, rule);
                          });
}

__global__ void __launch_bounds__(kThreads)
    multi_tensor_e8m0_kernel(const __grid_constant__ TensorTable<2> table) {
  const Chunk chunk = chunk_of_block<kThreads>(table);
  const int64_t i = chunk.begin + threadIdx.x;
  if (i < chunk.end) {
    const float amax = to_float(static_cast<const __nv_bfloat16*>(table.data[0][chunk.tensor])[i]);
    static_cast<uint8_t*>(table.data[1][chunk.tensor])[i] =
        numerics::e8m0_from_amax(amax, numerics::kE8M0ScaledMax);
  }
}

void run_e8m0(const MultiTensorE8M0Args& args, const Context& context) {
  for_tables<kThreads, 0>(
      std::array{args.amaxes, args.scale_invs}, [&](const auto& table, unsigned blocks) {
        launch(&multi_tensor_e8m0_kernel, table_launch("multi_tensor_e8m0_kernel", blocks, context),
               table);
      });
}

}  // namespace

TE_CUDA_ENTRY_POINT(MultiTensorScaleArgs, run_scale)
TE_CUDA_ENTRY_POINT(MultiTensorL2NormArgs, run_l2norm)
TE_CUDA_ENTRY_POINT(MultiTensorSgdArgs, run_sgd)
TE_CUDA_ENTRY_POINT(MultiTensorScalesArgs, run_scales)
TE_CUDA_ENTRY_POINT(MultiTensorE8M0Args, run_e8m0)

}  // namespace transformer_engine::cuda
