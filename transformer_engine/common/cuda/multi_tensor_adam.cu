// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Adam on lists of tensors (transformer_engine/multi_tensor.h): numerics/adam.h for each element,
// so results are bit for bit the reference's. Lists reach the kernel as arguments
// (device/tensor_table.h); a block of 256 threads takes 16384 elements of a tensor, 8 a thread at a
// time. Each array is read and written once: 28 bytes an element in FP32, as many with a BF16
// parameter and gradient beside the FP32 master, 26 with remainders, 27 for FP8 parameters. The
// numbers of a step that come from device memory are computed by one thread a block.
#include <transformer_engine/multi_tensor.h>

#include "cuda/candidate.h"
#include "cuda/device/reduce.h"
#include "cuda/device/tensor_table.h"
#include "numerics/multi_tensor.h"
#include "numerics/remainder.h"

namespace transformer_engine::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kStep = kThreads * kSourceVector;  // elements of a block's turn
constexpr int64_t kChunk = 8 * kStep;

// Arrays of a table; kPrecise holds masters or remainders, those after it are FP32 [1] each.
enum AdamArray { kGrad, kParam, kExpAvg, kExpAvgSq, kPrecise, kVectorArrays };
enum Fp8Array { kScale = kVectorArrays, kAmax, kScaleInv, kFp8Arrays };

enum class Kept { kParam, kMaster, kRemainder, kFp8 };

template <Kept kKept>
using Table = TensorTable<kKept == Kept::kFp8 ? static_cast<int>(kFp8Arrays)
                                              : static_cast<int>(kVectorArrays)>;

struct AdamStep {
  numerics::AdamNumbers<float> numbers;
  numerics::AdamSettings settings;  // for the numbers of what comes from device memory
  float lr;
  int32_t step;
  const float* device_lr;
  const int32_t* device_step;
  const float* inv_scale;
  const int32_t* noop;
  bool is_decoupled;
};

// The arrays of the tensor that a block works on.
struct Arrays {
  TypedPointer grad, param, exp_avg, exp_avg_sq, precise;
  float fp8_scale;
};

// A thread's elements.
struct Elements {
  float grad[kSourceVector];
  float param[kSourceVector];
  float exp_avg[kSourceVector];
  float exp_avg_sq[kSourceVector];
};

__device__ __forceinline__ float joined(uint16_t high, uint16_t low) {
  return numerics::join_float({high, static_cast<int16_t>(low)});
}

template <Kept kKept>
__device__ __forceinline__ void load_whole(const Arrays& arrays, int64_t i, Elements& e) {
  constexpr bool kHasRemainder = kKept == Kept::kRemainder;
  RawVector grad, param, exp_avg, exp_avg_sq, remainder;
  grad.load(arrays.grad, i);
  param.load(kKept == Kept::kParam || kHasRemainder ? arrays.param : arrays.precise, i);
  exp_avg.load(arrays.exp_avg, i);
  exp_avg_sq.load(arrays.exp_avg_sq, i);
  if constexpr (kHasRemainder) {
    remainder.load(arrays.precise, i);
#pragma unroll
    for (int j = 0; j < kSourceVector; ++j) {
      e.param[j] = joined(param.half_bits(j), remainder.half_bits(j));
    }
  } else {
    param.get(kKept == Kept::kParam ? arrays.param.dtype : DType::kFloat32, e.param);
  }
  grad.get(arrays.grad.dtype, e.grad);
  exp_avg.get(arrays.exp_avg.dtype, e.exp_avg);
  exp_avg_sq.get(arrays.exp_avg_sq.dtype, e.exp_avg_sq);
}

template <Kept kKept>
__device__ __forceinline__ void load_part(const Arrays& arrays, int64_t i, int64_t end,
                                          Elements& e) {
  load_one_by_one(arrays.grad, i, end, e.grad);
  load_one_by_one(arrays.exp_avg, i, end, e.exp_avg);
  load_one_by_one(arrays.exp_avg_sq, i, end, e.exp_avg_sq);
  if constexpr (kKept == Kept::kRemainder) {
    const auto* high = static_cast<const uint16_t*>(arrays.param.data);
    const auto* low = static_cast<const uint16_t*>(arrays.precise.data);
#pragma unroll
    for (int j = 0; j < kSourceVector; ++j) {
      e.param[j] = i + j < end ? joined(high[i + j], low[i + j]) : 0.0F;
    }
  } else {
    load_one_by_one(kKept == Kept::kParam ? arrays.param : arrays.precise, i, end, e.param);
  }
}

// The remainders; the parameters become what is stored of them.
__device__ __forceinline__ void store_split(const Arrays& arrays, bool is_whole, int64_t i,
                                            int64_t end, const float (&values)[kSourceVector]) {
  Vec<uint16_t, kSourceVector> high, low;
#pragma unroll
  for (int j = 0; j < kSourceVector; ++j) {
    const numerics::SplitFloat parts = numerics::split_float(values[j]);
    high.v[j] = parts.high;
    low.v[j] = static_cast<uint16_t>(parts.low);
  }
  auto* params = static_cast<uint16_t*>(arrays.param.data);
  auto* remainders = static_cast<uint16_t*>(arrays.precise.data);
  if (is_whole) {
    high.store(params + i);
    low.store(remainders + i);
  } else {
    per_tensor::store_part<false>(params, i, end, high);
    per_tensor::store_part<false>(remainders, i, end, low);
  }
}

template <Kept kKept>
__device__ __forceinline__ void store_param(const Arrays& arrays, bool is_whole, int64_t i,
                                            int64_t end, const float (&values)[kSourceVector]) {
  if constexpr (kKept == Kept::kMaster || kKept == Kept::kFp8) {
    store_elements({arrays.precise.data, DType::kFloat32}, is_whole, i, end, values);
  }
  if constexpr (kKept == Kept::kFp8) {
    const auto codes = per_tensor::encode_vector<kSourceVector>(
        values, arrays.fp8_scale, arrays.param.dtype == DType::kFloat8E5M2);
    auto* data = static_cast<uint8_t*>(arrays.param.data);
    if (is_whole) {
      codes.store(data + i);
    } else {
      per_tensor::store_part<false>(data, i, end, codes);
    }
  } else if constexpr (kKept == Kept::kRemainder) {
    store_split(arrays, is_whole, i, end, values);
  } else {
    store_elements(arrays.param, is_whole, i, end, values);
  }
}

template <bool kDecoupled>
__device__ __forceinline__ void update(const numerics::AdamNumbers<float>& numbers, float inv_scale,
                                       Elements& e) {
#pragma unroll
  for (int j = 0; j < kSourceVector; ++j) {
    numerics::adam_update<kDecoupled>(numbers, e.grad[j] * inv_scale, e.param[j], e.exp_avg[j],
                                      e.exp_avg_sq[j]);
  }
}

// The numbers of the step, from the host or from what device memory holds now.
__device__ __forceinline__ numerics::AdamNumbers<float> numbers_of(
    const AdamStep& step, numerics::AdamNumbers<float>& shared) {
  if (step.device_lr == nullptr && step.device_step == nullptr) {
    return step.numbers;
  }
  if (threadIdx.x == 0) {
    shared =
        numerics::adam_numbers(step.settings, step.device_lr != nullptr ? *step.device_lr : step.lr,
                               step.device_step != nullptr ? *step.device_step : step.step);
  }
  __syncthreads();
  return shared;
}

template <Kept kKept>
__global__ void __launch_bounds__(kThreads)
    multi_tensor_adam_kernel(const __grid_constant__ Table<kKept> table,
                             const __grid_constant__ AdamStep step) {
  __shared__ numerics::AdamNumbers<float> shared_numbers;
  __shared__ float warp_amax[kThreads / kWarpSize];
  if (step.noop != nullptr && *step.noop == 1) {
    return;
  }
  const numerics::AdamNumbers<float> numbers = numbers_of(step, shared_numbers);
  const float inv_scale = step.inv_scale != nullptr ? *step.inv_scale : 1.0F;
  const Chunk chunk = chunk_of_block<kChunk>(table);
  Arrays arrays{.grad = array_of(table, kGrad, chunk.tensor),
                .param = array_of(table, kParam, chunk.tensor),
                .exp_avg = array_of(table, kExpAvg, chunk.tensor),
                .exp_avg_sq = array_of(table, kExpAvgSq, chunk.tensor),
                .precise = array_of(table, kPrecise, chunk.tensor),
                .fp8_scale = 1.0F};
  if constexpr (kKept == Kept::kFp8) {
    arrays.fp8_scale = *static_cast<const float*>(table.data[kScale][chunk.tensor]);
  }
  float amax = 0.0F;
#pragma unroll 1
  for (int64_t i = chunk.begin + static_cast<int>(threadIdx.x) * kSourceVector; i < chunk.end;
       i += kStep) {
    const bool is_whole = table.is_aligned[chunk.tensor] && i + kSourceVector <= chunk.end;
    Elements e;
    if (is_whole) {
      load_whole<kKept>(arrays, i, e);
    } else {
      load_part<kKept>(arrays, i, chunk.end, e);
    }
    if (step.is_decoupled) {
      update<true>(numbers, inv_scale, e);
    } else {
      update<false>(numbers, inv_scale, e);
    }
    store_elements(arrays.exp_avg, is_whole, i, chunk.end, e.exp_avg);
    store_elements(arrays.exp_avg_sq, is_whole, i, chunk.end, e.exp_avg_sq);
    store_param<kKept>(arrays, is_whole, i, chunk.end, e.param);
    if constexpr (kKept == Kept::kFp8) {
#pragma unroll
      for (int j = 0; j < kSourceVector; ++j) {
        amax = i + j < chunk.end ? max_skip_nan(amax, fabsf(e.param[j])) : amax;
      }
    }
  }
  if constexpr (kKept == Kept::kFp8) {
    amax = block_reduce<Max, kThreads>(amax, warp_amax);
    if (threadIdx.x == 0) {
      atomic_max_skip_nan(static_cast<float*>(table.data[kAmax][chunk.tensor]), amax);
      if (chunk.begin == 0) {
        *static_cast<float*>(table.data[kScaleInv][chunk.tensor]) =
            numerics::inverse_scale(arrays.fp8_scale);
      }
    }
  }
}

AdamStep step_of(const MultiTensorAdamArgs& args) {
  const auto settings = numerics::adam_settings(args);
  return {.numbers = numerics::adam_numbers(settings, args.lr, args.step),
          .settings = settings,
          .lr = args.lr,
          .step = args.step,
          .device_lr = args.device_lr,
          .device_step = args.device_step,
          .inv_scale = args.inv_scale,
          .noop = args.noop,
          .is_decoupled = args.mode == AdamMode::kDecoupled};
}

template <Kept kKept, size_t kArrays>
void launch_adam(const std::array<TensorList, kArrays>& lists, const AdamStep& step,
                 const Context& context) {
  for_tables<kChunk, kVectorArrays>(lists, [&](const auto& table, unsigned blocks) {
    launch(&multi_tensor_adam_kernel<kKept>,
           {.name = "multi_tensor_adam_kernel",
            .grid = dim3(blocks),
            .block = dim3(kThreads),
            .stream = stream_of(context)},
           table, step);
  });
}

void run_adam(const MultiTensorAdamArgs& args, const Context& context) {
  const AdamStep step = step_of(args);
  const bool has_remainders = !args.remainders.empty();
  const std::array lists{args.grads, args.params, args.exp_avgs, args.exp_avg_sqs,
                         has_remainders ? args.remainders : args.masters};
  if (!args.fp8_scales.empty()) {
    launch_adam<Kept::kFp8>(
        std::array{lists[kGrad], lists[kParam], lists[kExpAvg], lists[kExpAvgSq], lists[kPrecise],
                   args.fp8_scales, args.fp8_amaxes, args.fp8_scale_invs},
        step, context);
  } else if (has_remainders) {
    launch_adam<Kept::kRemainder>(lists, step, context);
  } else if (!args.masters.empty()) {
    launch_adam<Kept::kMaster>(lists, step, context);
  } else {
    launch_adam<Kept::kParam>(lists, step, context);
  }
}

}  // namespace

TE_CUDA_ENTRY_POINT(MultiTensorAdamArgs, run_adam)

}  // namespace transformer_engine::cuda
