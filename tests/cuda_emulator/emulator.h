// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// CUDA kernels on the CPU: what a kernel source compiled as C++ needs in place of nvcc's built-ins.
// Every CUDA thread of a block runs as a fiber; blocks run one after another on the calling OS
// thread (to use more cores, run more test processes). Included by cuda/device/launch.h alone.
//
// What is checked while a kernel runs, always: divergent barriers and warp operations, shuffles
// from absent lanes, deadlocks, endless spinning, copies not waited for, impossible launches. With
// AddressSanitizer: accesses outside global, static and dynamic shared memory. With ThreadSanitizer
// (clang): races, missing barriers among them. With MemorySanitizer (clang): reads of memory that
// was never written. In the build without a sanitizer: host code that touches device memory, and
// kernels that are given host memory (device_memory.h).
// Environment, read at each launch: CUDA_EMULATOR_ORDER=forward|reverse|random:N, the order of
// threads and blocks; CUDA_EMULATOR_STRICT=0 allows barriers to meet at different source lines;
// CUDA_EMULATOR_POISON=0 leaves shared memory as the last block left it.
//
// Limits: execution is sequentially consistent; approximate device functions (__expf, rsqrtf) are
// exact here; blocks do not run side by side; no tensor cores, TMA, clusters or textures.
#pragma once

#include <cmath>
#include <cstring>
#include <source_location>
#include <string>
#include <type_traits>
#include <vector>

// A block runs to its end before the next one starts, so per-block storage may be static. Not
// thread_local: the address sanitizer puts red zones round static arrays but never round
// thread_local ones. clang also gathers them in one section, so that each block finds them filled
// with garbage; gcc refuses section attributes on statics in templates and inline functions.
#undef __shared__
#if defined(__clang__)
#define __shared__ static __attribute__((section("cuda_shared")))
#else
#define __shared__ static
#endif
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __constant__
#define __constant__ static

extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;
inline constexpr int warpSize = 32;

namespace cuda_emulator {

using Location = std::source_location;

struct Grid {
  const char* name;  // of the kernel, for reports
  const void* kernel;
  dim3 grid;
  dim3 block;
  size_t dynamic_shared_bytes;
  size_t argument_bytes;
  cudaStream_t stream;
};
// Calls body(argument) once for every thread; `argument` begins with `argument_bytes` bytes of what
// the kernel is given. Throws std::runtime_error with the kernel's name and
// the source line for whatever a GPU would refuse, hang on or leave undefined.
void run_grid(const Grid& grid, void (*body)(void*), void* argument);

// Names of the kernels that ran in this process, each once, sorted.
std::vector<std::string> executed_kernels();

void* dynamic_shared_memory();
unsigned lane_id();

// ---- one warp-wide operation
enum class WarpOp : unsigned char { kShuffle, kVote, kMatch, kReduce, kSync };
enum Reduction { kAdd, kMin, kMax, kAnd, kOr, kXor, kSignedMin, kSignedMax };
struct Exchange {  // on the calling fiber's stack
  alignas(16) unsigned char in[16];
  alignas(16) unsigned char out[16];
  int source;
};
void warp_collective(WarpOp op, unsigned mask, int detail, Exchange* exchange, Location where);

enum class BarrierResult { kNone, kCount, kAnd, kOr };
// threads 0: all of the block.
int block_barrier(int id, int threads, bool predicate, BarrierResult result, Location where);

void yield(Location where);
void fence();
void atomic_touch(const void* address);  // shows the race detector pairs of fence and atomic
[[noreturn]] void device_fail(const char* what, Location where = Location::current());

void cp_async(void* target, const void* source, int bytes, Location where = Location::current());
void cp_async_commit();
void cp_async_wait(int pending);
inline void bar_sync(int id, int threads, Location where = Location::current()) {
  block_barrier(id, threads, false, BarrierResult::kNone, where);
}

template <class To, class From>
To copy_bits(const From& from) {
  static_assert(sizeof(To) <= sizeof(From));
  To to;
  std::memcpy(static_cast<void*>(&to), &from, sizeof to);
  return to;
}

template <class T>
T shuffle(unsigned mask, const T& value, int source, Location where) {
  static_assert(sizeof(T) <= 8);
  Exchange exchange;
  std::memcpy(exchange.in, &value, sizeof(T));
  exchange.source = source;
  warp_collective(WarpOp::kShuffle, mask, 0, &exchange, where);
  return copy_bits<T>(exchange.out);
}
inline unsigned vote(unsigned mask, bool predicate, Location where) {
  Exchange exchange;
  exchange.source = predicate;
  warp_collective(WarpOp::kVote, mask, 0, &exchange, where);
  return copy_bits<unsigned>(exchange.out);
}
inline unsigned word_operation(WarpOp op, unsigned mask, unsigned value, int detail,
                               Location where) {
  Exchange exchange;
  std::memcpy(exchange.in, &value, 4);
  warp_collective(op, mask, detail, &exchange, where);
  return copy_bits<unsigned>(exchange.out);
}

// Read-modify-write through a compare-and-swap of the same-sized integer.
template <class T, class Function>
T atomic_update(T* address, Function next_of) {
  using Word = std::conditional_t<sizeof(T) == 8, unsigned long long,
                                  std::conditional_t<sizeof(T) == 4, unsigned, unsigned short>>;
  static_assert(sizeof(T) == sizeof(Word));
  atomic_touch(address);
  auto* word = reinterpret_cast<Word*>(address);
  Word old = __atomic_load_n(word, __ATOMIC_RELAXED);
  Word next;
  do {
    next = copy_bits<Word>(next_of(copy_bits<T>(old)));
  } while (
      !__atomic_compare_exchange_n(word, &old, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return copy_bits<T>(old);
}

}  // namespace cuda_emulator

#include "intrinsics.h"
