// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What CUDA's functions mean. These hold on a GPU as well: run there, they test the emulator's idea
// of CUDA.
#include <gtest/gtest.h>

#include <vector>

#include "cuda/device/convert.h"
#include "cuda/device/ptx.h"
#include "cuda/device/reduce.h"
#include "cuda/device/vector.h"
#include "device_array.h"
#include "numerics/minifloat.h"

namespace {

namespace cuda = transformer_engine::cuda;
using cuda::kAllLanes;
using cuda::launch;
using cuda_emulator_selftest::DeviceArray;

__global__ void warp_operations(unsigned* out) {
  const unsigned thread = threadIdx.x;
  const unsigned lane = thread % 32;
  unsigned* own = out + thread * 12;
  own[0] = __shfl_sync(kAllLanes, lane, 5, 8);
  own[1] = __shfl_up_sync(kAllLanes, lane, 3, 16);
  own[2] = __shfl_down_sync(kAllLanes, lane, 3, 16);
  own[3] = __shfl_xor_sync(kAllLanes, lane, 9);
  own[4] = __ballot_sync(kAllLanes, lane % 3 == 0);
  own[5] = __match_any_sync(kAllLanes, lane / 8);
  own[6] = __reduce_add_sync(kAllLanes, lane);
  own[7] = static_cast<unsigned>(__reduce_min_sync(kAllLanes, static_cast<int>(lane) - 40));
  own[8] = static_cast<unsigned>(__any_sync(kAllLanes, lane == 31)) * 2U +
           static_cast<unsigned>(__all_sync(kAllLanes, lane < 31));
  if (lane < 10) {  // a part of the warp
    own[9] = __shfl_sync(0x3FFU, lane * 2, 9);
  } else {
    own[9] = __ballot_sync(0xFFFFFC00U, static_cast<int>(lane & 1U));
  }
  own[10] = static_cast<unsigned>(__syncthreads_count(thread % 5 == 0));
  own[11] = static_cast<unsigned>(__syncthreads_or(thread == 77)) +
            2U * static_cast<unsigned>(__syncthreads_and(thread < 95));
}

TEST(Semantics, WarpOperations) {
  DeviceArray<unsigned> out(96 * 12);
  launch(&warp_operations, {.name = "warp_operations", .grid = 1, .block = 96}, out.device());
  out.download();
  for (unsigned thread = 0; thread < 96; ++thread) {
    const unsigned lane = thread % 32;
    const unsigned* own = &out[thread * 12];
    EXPECT_EQ(own[0], (lane & 24) + 5);
    EXPECT_EQ(own[1], lane % 16 >= 3 ? lane - 3 : lane);
    EXPECT_EQ(own[2], lane % 16 < 13 ? lane + 3 : lane);
    EXPECT_EQ(own[3], lane ^ 9);
    EXPECT_EQ(own[4], 0x49249249U);
    EXPECT_EQ(own[5], 0xFFU << lane / 8 * 8);
    EXPECT_EQ(own[6], 496U);
    EXPECT_EQ(own[7], static_cast<unsigned>(-40));
    EXPECT_EQ(own[8], 2U);
    EXPECT_EQ(own[9], lane < 10 ? 18U : 0xAAAAA800U);
    EXPECT_EQ(own[10], 20U);
    EXPECT_EQ(own[11], 1U);
  }
}

__global__ void reductions(const float* in, float* out) {
  __shared__ float scratch[2][4];
  const float value = in[threadIdx.x];
  const float sum = cuda::block_reduce<cuda::Sum, 128>(value, scratch[0]);
  const float largest = cuda::block_reduce<cuda::Max, 128>(value, scratch[1]);
  out[2 * threadIdx.x] = sum;
  out[2 * threadIdx.x + 1] = largest;
  cuda::atomic_max_skip_nan(out + 256, value);
}

TEST(Semantics, Reductions) {
  DeviceArray<float> in(128);
  DeviceArray<float> out(257);
  for (size_t i = 0; i < 128; ++i) {
    in[i] = static_cast<float>(i * 37 % 128);
  }
  out[256] = -1.0F;
  launch(&reductions, {.name = "reductions", .grid = 1, .block = 128}, in.upload(), out.upload());
  out.download();
  for (size_t i = 0; i < 128; ++i) {
    EXPECT_EQ(out[2 * i], 8128.0F);
    EXPECT_EQ(out[2 * i + 1], 127.0F);
  }
  EXPECT_EQ(out[256], 127.0F);
}

__device__ unsigned blocks_arrived = 0;

// The last block adds what all have left.
template <bool kHasFence>
__global__ void last_block_sums(const float* in, float* partial, float* out) {
  const float sum = cuda::warp_reduce<cuda::Sum>(in[blockIdx.x * 32 + threadIdx.x]);
  unsigned order = 0;
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
    if constexpr (kHasFence) {
      __threadfence();
    }
    order = atomicAdd(&blocks_arrived, 1U);
    if constexpr (kHasFence) {
      __threadfence();
    }
  }
  order = __shfl_sync(kAllLanes, order, 0);
  if (order == gridDim.x - 1 && threadIdx.x == 0) {
    float total = 0.0F;
    for (unsigned b = 0; b < gridDim.x; ++b) {
      total += partial[b];
    }
    *out = total;
    blocks_arrived = 0;
  }
}

template <bool kHasFence>
float last_block_total() {
  DeviceArray<float> in(320);
  DeviceArray<float> partial(10);
  DeviceArray<float> total(1);
  for (size_t i = 0; i < 320; ++i) {
    in[i] = 0.5F;
  }
  launch(&last_block_sums<kHasFence>, {.name = "last_block_sums", .grid = 10, .block = 32},
         in.upload(), partial.device(), total.device());
  total.download();
  return total[0];
}

TEST(Semantics, TheLastBlockSeesWhatOthersWroteBeforeTheirFence) {
  EXPECT_EQ(last_block_total<true>(), 160.0F);
}
#if defined(CUDA_EMULATOR_TSAN)
TEST(RaceDetector, FindsAMissingFence) { EXPECT_DEATH(last_block_total<false>(), "data race"); }
#endif

__global__ void spin_pairs(int* out) {  // pairs of lanes hand over through a flag
  __shared__ int flag[32];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < 32) {
    flag[thread] = 0;
  }
  __syncthreads();
  if (thread < 32) {
    int got;
    while ((got = atomicAdd(&flag[thread], 0)) == 0) {
      __nanosleep(20);
    }
    out[thread] = got;
  } else {
    atomicExch(&flag[thread - 32], thread);
  }
}
// The lock is given back inside the loop: lanes that have it need not meet those that wait for it.
__global__ void spin_lock(int* lock, int* count) {
  bool is_done = false;
  while (!is_done) {  // without __nanosleep the others must run all the same
    if (atomicCAS(lock, 0, 1) == 0) {
      __threadfence();
      *count += 1;
      __threadfence();
      atomicExch(lock, 0);
      is_done = true;
    }
  }
}

TEST(Semantics, Spinning) {
  DeviceArray<int> out(32);
  launch(&spin_pairs, {.name = "spin_pairs", .grid = 1, .block = 64}, out.device());
  out.download();
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(out[static_cast<size_t>(i)], i + 32);
  }
  DeviceArray<int> lock(1);
  DeviceArray<int> count(1);
  lock[0] = count[0] = 0;
  launch(&spin_lock, {.name = "spin_lock", .grid = 2, .block = 96}, lock.upload(), count.upload());
  count.download();
  EXPECT_EQ(count[0], 192);
}

__global__ void copy_through_shared(const float* in, float* out) {
  TE_DYNAMIC_SHARED(float, buffer);
  const unsigned own = threadIdx.x * 4;
  cuda::ptx::cp_async16(buffer + own, in + own);
  cuda::ptx::cp_async_commit();
  cuda::ptx::cp_async_wait<0>();
  __syncthreads();
  const unsigned other = (blockDim.x - 1 - threadIdx.x) * 4;
  cuda::Vec<float, 4>::load(buffer + other).store(out + own);
}

TEST(Semantics, AsynchronousCopies) {
  DeviceArray<float> in(128);
  DeviceArray<float> out(128);
  for (size_t i = 0; i < 128; ++i) {
    in[i] = static_cast<float>(i);
  }
  launch(&copy_through_shared,
         {.name = "copy_through_shared", .grid = 1, .block = 32, .dynamic_shared_bytes = 512},
         in.upload(), out.device());
  out.download();
  for (size_t i = 0; i < 128; ++i) {
    EXPECT_EQ(out[i], static_cast<float>((31 - i / 4) * 4 + i % 4));
  }
}

#if !defined(TE_SLOW_DEVICE)  // each of 196,608 threads alone: nothing for the race detector
template <class Format>
__global__ void encode_all(const float* in, uint8_t* out) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  const uint16_t pair = cuda::encode_fp8_pair<Format>(in[i], -in[i]);
  out[3 * i] = cuda::encode_fp8<Format>(in[i]);
  out[3 * i + 1] = static_cast<uint8_t>(pair);
  out[3 * i + 2] = static_cast<uint8_t>(pair >> 8);
}
__global__ void encode_all_e2m1(const float* in, uint8_t* out) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = cuda::encode_e2m1_pair(in[i], -in[i]);
}

// All BF16 numbers, which hold every rounding boundary of formats with at most 3 mantissa bits, and
// their neighbours in FP32.
std::vector<float> all_bf16_and_neighbours() {
  std::vector<float> values;
  for (uint32_t code = 0; code < 0x10000; ++code) {
    for (const uint32_t offset : {0U, 1U, 0xFFFFFFFFU}) {
      values.push_back(transformer_engine::numerics::float_of_bits((code << 16) + offset));
    }
  }
  return values;
}

// The instruction's code equals the definition's (numerics/, which has its own exhaustive tests).
template <class Format>
void expect_same_codes() {
  namespace numerics = transformer_engine::numerics;
  const std::vector<float> values = all_bf16_and_neighbours();
  DeviceArray<float> in(values.size());
  DeviceArray<uint8_t> out(3 * values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    in[i] = values[i];
  }
  const auto blocks = static_cast<unsigned>(values.size() / 256);
  launch(&encode_all<Format>, {.name = "encode_all", .grid = blocks, .block = 256}, in.upload(),
         out.device());
  out.download();
  for (size_t i = 0; i < values.size(); ++i) {
    const uint8_t code = numerics::encode<Format>(values[i]);
    ASSERT_EQ(out[3 * i], code) << values[i];
    ASSERT_EQ(out[3 * i + 1], code) << values[i];
    ASSERT_EQ(out[3 * i + 2], numerics::encode<Format>(-values[i])) << values[i];
  }
}

TEST(Conversions, Fp8CodesAreThoseOfTheDefinition) {
  expect_same_codes<transformer_engine::numerics::E4M3>();
  expect_same_codes<transformer_engine::numerics::E5M2>();
}

TEST(Conversions, E2M1CodesAreThoseOfTheDefinition) {
  namespace numerics = transformer_engine::numerics;
  const std::vector<float> values = all_bf16_and_neighbours();
  DeviceArray<float> in(values.size());
  DeviceArray<uint8_t> out(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    in[i] = values[i];
  }
  const auto blocks = static_cast<unsigned>(values.size() / 256);
  launch(&encode_all_e2m1, {.name = "encode_all_e2m1", .grid = blocks, .block = 256}, in.upload(),
         out.device());
  out.download();
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(out[i], numerics::pack_e2m1(numerics::encode<numerics::E2M1>(values[i]),
                                          numerics::encode<numerics::E2M1>(-values[i])))
        << values[i];
  }
}

#endif

}  // namespace
