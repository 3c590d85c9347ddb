// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What the emulator must find: misuse that it reports in every build, and bugs put in on purpose
// for each sanitizer.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "cuda/device/ptx.h"
#include "cuda/device/vector.h"
#include "device_array.h"

namespace {

namespace cuda = transformer_engine::cuda;
using cuda::launch;
using cuda_emulator_selftest::DeviceArray;

void expect_report(const char* words, const std::function<void()>& run) {
  try {
    run();
    FAIL() << "nothing was reported; expected: " << words;
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

__global__ void divergent_barrier(int n) {
  if (static_cast<int>(threadIdx.x) < n) {
    __syncthreads();
  }
}
__global__ void two_barriers() {
  if (threadIdx.x < 64) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void shuffle_from_absent(int* out) {
  if (threadIdx.x < 16) {
    out[threadIdx.x] = __shfl_xor_sync(0xffffU, 1, 16);
  }
}
__global__ void wrong_mask(int* out) {
  if (threadIdx.x < 16) {
    out[threadIdx.x] = __shfl_xor_sync(~0U, 1, 1);
  } else {
    __syncwarp();
  }
}
__global__ void own_lane_not_in_mask(int* out) { out[threadIdx.x] = __shfl_sync(0x1U, 1, 0); }
__global__ void mixed_deadlock() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else if (threadIdx.x < 48) {
    __syncwarp(0xffffffffU);
  } else {
    cuda_emulator::bar_sync(1, 64);
  }
}
__global__ void endless_spin(int* flag) {
  while (atomicAdd(flag, 0) == 0) {
    __nanosleep(1);
  }
}
__global__ void forgotten_copy(const int* in) {
  TE_DYNAMIC_SHARED(int, buffer);
  cuda::ptx::cp_async16(buffer, in);
  cuda::ptx::cp_async_commit();
}
__global__ void misaligned_vector(const float* in, float* out) {
  cuda::Vec<float, 4>::load(in + 1 + threadIdx.x * 4).store(out + threadIdx.x * 4);
}
__global__ void nothing() {}

TEST(Misuse, OfBarriersIsReported) {
  expect_report("barrier divergence",
                [] { launch(&divergent_barrier, {"divergent_barrier", 1, 64}, 48); });
  expect_report("barrier divergence", [] { launch(&two_barriers, {"two_barriers", 1, 128}); });
  expect_report("deadlock", [] { launch(&mixed_deadlock, {"mixed_deadlock", 1, 64}); });
}

TEST(Misuse, OfWarpOperationsIsReported) {
  DeviceArray<int> out(64);
  expect_report("does not take part", [&] {
    launch(&shuffle_from_absent, {"shuffle_from_absent", 1, 32}, out.device());
  });
  expect_report("wait for each other",
                [&] { launch(&wrong_mask, {"wrong_mask", 1, 32}, out.device()); });
  expect_report("own mask", [&] {
    launch(&own_lane_not_in_mask, {"own_lane_not_in_mask", 1, 32}, out.device());
  });
}

TEST(Misuse, EndlessSpinningIsReported) {
  DeviceArray<int> flag(1);
  flag[0] = 0;
  expect_report("spins for ever",
                [&] { launch(&endless_spin, {"endless_spin", 1, 2}, flag.upload()); });
}

TEST(Misuse, OfCopiesAndVectorsIsReported) {
  DeviceArray<int> in(64);
  const cuda::Launch config{"forgotten_copy", 1, 1, 16};
  expect_report("not waited", [&] { launch(&forgotten_copy, config, in.device()); });
  expect_report("misaligned", [&] { launch(&forgotten_copy, config, in.device() + 1); });
  DeviceArray<float> a(132);
  DeviceArray<float> b(132);
  expect_report("misaligned", [&] {
    launch(&misaligned_vector, {"misaligned_vector", 1, 32}, a.device(), b.device());
  });
}

TEST(Misuse, ImpossibleLaunchesAreReported) {
  expect_report("invalid launch", [] { launch(&nothing, {"nothing", 1, 2048}); });
  expect_report("invalid launch", [] { launch(&nothing, {"nothing", dim3(1, 70000), 32}); });
  expect_report("invalid launch", [] { launch(&nothing, {"nothing", 0, 32}); });
  expect_report("cudaFuncSetAttribute", [] { launch(&nothing, {"nothing", 1, 32, 300 * 1024}); });
}

TEST(Misuse, AKernelRunsAfterOneThatFailed) {
  expect_report("deadlock", [] { launch(&mixed_deadlock, {"mixed_deadlock", 1, 64}); });
  EXPECT_NO_THROW(launch(&nothing, {"nothing", 3, 64}));
}

#if defined(__clang__) && !defined(CUDA_EMULATOR_MSAN)
__global__ void read_shared(unsigned* out) {
  __shared__ unsigned fixed[32];
  TE_DYNAMIC_SHARED(unsigned, dynamic);
  out[blockIdx.x * 32 + threadIdx.x] = fixed[threadIdx.x] & dynamic[threadIdx.x];
  fixed[threadIdx.x] = dynamic[threadIdx.x] = 0;
}

TEST(SharedMemory, IsDirtyAtTheStartOfEveryBlock) {
  DeviceArray<unsigned> out(96);
  launch(&read_shared, {"read_shared", 3, 32, 128}, out.device());
  out.download();
  for (size_t i = 0; i < 96; ++i) {
    EXPECT_EQ(out[i], ~0U);
  }
}
#endif

#if defined(CUDA_EMULATOR_SEPARATE_MEMORY)
struct Pair {
  const int* in;
  int* out;
};
__global__ void copy_one(const Pair pair) { *pair.out = *pair.in; }

TEST(SeparateMemory, HostMemoryAmongTheArgumentsIsReported) {
  DeviceArray<int> out(1);
  const int local = 3;
  const std::vector<int> heap(1, 4);
  for (const int* host : {&local, heap.data()}) {
    expect_report("kernel copy_one: an argument holds an address of host memory", [&] {
      launch(&copy_one, {.name = "copy_one", .grid = dim3(1), .block = dim3(1)},
             Pair{host, out.device()});
    });
  }
}
TEST(SeparateMemory, HostCodeCannotTouchDeviceMemory) {
  DeviceArray<int> out(1);
  EXPECT_DEATH(std::printf("%d", *out.device()), "host code touched device memory");
  EXPECT_DEATH(*out.device() = 1, "host code touched device memory");
}
#endif

#if defined(CUDA_EMULATOR_TSAN)
__global__ void shuffle_orders_nothing(int* out) {
  __shared__ int values[32];
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  out[threadIdx.x] = __shfl_sync(~0U, 1, 0);
  out[threadIdx.x] = values[31 - threadIdx.x];
}
__global__ void blocks_write_one_address(int* out) {
  out[threadIdx.x] = static_cast<int>(blockIdx.x);
}
__global__ void no_barrier_before_reuse(int* out) {
  __shared__ int values[64];
  for (int i = 0; i < 2; ++i) {
    values[threadIdx.x] = static_cast<int>(threadIdx.x) + i;
    __syncthreads();
    out[threadIdx.x] += values[63 - threadIdx.x];
  }
}

TEST(RaceDetector, FindsRaces) {
  DeviceArray<int> out(64);
  EXPECT_DEATH(launch(&shuffle_orders_nothing, {"shuffle_orders_nothing", 1, 32}, out.device()),
               "data race");
  EXPECT_DEATH(launch(&blocks_write_one_address, {"blocks_write_one_address", 2, 32}, out.device()),
               "data race");
  EXPECT_DEATH(launch(&no_barrier_before_reuse, {"no_barrier_before_reuse", 1, 64}, out.device()),
               "data race");
}
#endif

#if defined(__SANITIZE_ADDRESS__)
__global__ void static_overrun(int* out) {
  __shared__ int values[33];
  values[0] = 0;
  int* start = values;
  start[threadIdx.x + 2] = 1;
  out[threadIdx.x] = values[0];
}
__global__ void dynamic_overrun(int* out) {
  TE_DYNAMIC_SHARED(int, values);
  values[threadIdx.x + 1] = 1;
  out[threadIdx.x] = 0;
}
__global__ void global_overrun(int* out) { out[64 + threadIdx.x] = 1; }
__global__ void misaligned_copy(const float* in, float* out) {
  reinterpret_cast<float4*>(out)[threadIdx.x] =
      *reinterpret_cast<const float4*>(in + 1 + threadIdx.x * 4);
}
__global__ void large_shift(int* out) { out[threadIdx.x] = 1 << (threadIdx.x + 1); }

TEST(AddressSanitizer, FindsOverruns) {
  DeviceArray<int> out(64);
  EXPECT_DEATH(launch(&static_overrun, {"static_overrun", 1, 32}, out.device()),
               "global-buffer-overflow|insufficient space");
  EXPECT_DEATH(launch(&dynamic_overrun, {"dynamic_overrun", 1, 32, 128}, out.device()),
               "heap-buffer-overflow");
  EXPECT_DEATH(launch(&global_overrun, {"global_overrun", 1, 32}, out.device()),
               "heap-buffer-overflow");
}
TEST(UndefinedBehaviourSanitizer, FindsMisalignmentAndShifts) {
  DeviceArray<int> out(64);
  DeviceArray<float> a(132);
  DeviceArray<float> b(132);
  EXPECT_DEATH(launch(&misaligned_copy, {"misaligned_copy", 1, 32}, a.device(), b.device()),
               "misaligned address");
  EXPECT_DEATH(launch(&large_shift, {"large_shift", 1, 32}, out.device()), "shift exponent");
}
#endif

#if defined(CUDA_EMULATOR_MSAN)
__global__ void reads_unwritten_shared(int* out) {
  __shared__ int values[64];
  values[threadIdx.x] = 1;
  __syncthreads();
  if (values[threadIdx.x + 32] == 7) {
    out[threadIdx.x] = 1;
  }
}
__global__ void reads_unwritten_global(const int* in, int* out) {
  if (in[threadIdx.x] == 7) {
    out[threadIdx.x] = 1;
  }
}

TEST(MemorySanitizer, FindsReadsOfUnwrittenMemory) {
  DeviceArray<int> out(64);
  EXPECT_DEATH(launch(&reads_unwritten_shared, {"reads_unwritten_shared", 1, 32}, out.device()),
               "use-of-uninitialized-value");
  int* fresh = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&fresh), 128), cudaSuccess);
  EXPECT_DEATH(
      launch(&reads_unwritten_global, {"reads_unwritten_global", 1, 32}, fresh, out.device()),
      "use-of-uninitialized-value");
  cudaFree(fresh);
}
#endif

}  // namespace
