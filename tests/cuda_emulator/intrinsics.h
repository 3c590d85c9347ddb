// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// CUDA's device functions as the emulator knows them; the rest of CUDA's headers compile as C++ as
// they are. A function that a kernel needs and that is missing here is added when first used.
// Included by emulator.h alone.
#pragma once

// ---- barriers and fences
inline void __syncthreads(cuda_emulator::Location where = cuda_emulator::Location::current()) {
  cuda_emulator::block_barrier(0, 0, false, cuda_emulator::BarrierResult::kNone, where);
}
#define EMULATE_BARRIER(name, result)                                                   \
  inline int name(int predicate,                                                        \
                  cuda_emulator::Location where = cuda_emulator::Location::current()) { \
    return cuda_emulator::block_barrier(0, 0, predicate != 0,                           \
                                        cuda_emulator::BarrierResult::result, where);   \
  }
EMULATE_BARRIER(__syncthreads_count, kCount)
EMULATE_BARRIER(__syncthreads_and, kAnd)
EMULATE_BARRIER(__syncthreads_or, kOr)
#undef EMULATE_BARRIER
inline void __syncwarp(unsigned mask = 0xffffffffu,
                       cuda_emulator::Location where = cuda_emulator::Location::current()) {
  cuda_emulator::Exchange exchange;
  cuda_emulator::warp_collective(cuda_emulator::WarpOp::kSync, mask, 0, &exchange, where);
}
inline void __threadfence() { cuda_emulator::fence(); }
inline void __threadfence_block() { cuda_emulator::fence(); }
inline void __threadfence_system() { cuda_emulator::fence(); }
inline void __nanosleep(unsigned,
                        cuda_emulator::Location where = cuda_emulator::Location::current()) {
  cuda_emulator::yield(where);
}

// ---- warp shuffles, votes, reductions
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              cuda_emulator::Location where = cuda_emulator::Location::current()) {
  const int lane = static_cast<int>(cuda_emulator::lane_id());
  return cuda_emulator::shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)), where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32,
                  cuda_emulator::Location where = cuda_emulator::Location::current()) {
  const int lane = static_cast<int>(cuda_emulator::lane_id());
  const int source = lane ^ bits;
  return cuda_emulator::shuffle(mask, value, source < (lane & ~(width - 1)) + width ? source : lane,
                                where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   cuda_emulator::Location where = cuda_emulator::Location::current()) {
  const int lane = static_cast<int>(cuda_emulator::lane_id());
  const int source = lane + static_cast<int>(delta);
  return cuda_emulator::shuffle(mask, value, source < (lane & ~(width - 1)) + width ? source : lane,
                                where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 cuda_emulator::Location where = cuda_emulator::Location::current()) {
  const int lane = static_cast<int>(cuda_emulator::lane_id());
  const int source = lane - static_cast<int>(delta);
  return cuda_emulator::shuffle(mask, value, source >= (lane & ~(width - 1)) ? source : lane,
                                where);
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              cuda_emulator::Location where = cuda_emulator::Location::current()) {
  return cuda_emulator::vote(mask, predicate != 0, where);
}
inline int __any_sync(unsigned mask, int predicate,
                      cuda_emulator::Location where = cuda_emulator::Location::current()) {
  return cuda_emulator::vote(mask, predicate != 0, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate,
                      cuda_emulator::Location where = cuda_emulator::Location::current()) {
  return cuda_emulator::vote(mask, predicate == 0, where) == 0;
}
inline unsigned __match_any_sync(
    unsigned mask, unsigned value,
    cuda_emulator::Location where = cuda_emulator::Location::current()) {
  return cuda_emulator::word_operation(cuda_emulator::WarpOp::kMatch, mask, value, 0, where);
}
#define EMULATE_REDUCTION(name, T, reduction)                                                 \
  inline T name(unsigned mask, T value,                                                       \
                cuda_emulator::Location where = cuda_emulator::Location::current()) {         \
    return static_cast<T>(cuda_emulator::word_operation(cuda_emulator::WarpOp::kReduce, mask, \
                                                        static_cast<unsigned>(value),         \
                                                        cuda_emulator::reduction, where));    \
  }
EMULATE_REDUCTION(__reduce_add_sync, unsigned, kAdd)
EMULATE_REDUCTION(__reduce_min_sync, unsigned, kMin)
EMULATE_REDUCTION(__reduce_max_sync, unsigned, kMax)
EMULATE_REDUCTION(__reduce_and_sync, unsigned, kAnd)
EMULATE_REDUCTION(__reduce_or_sync, unsigned, kOr)
EMULATE_REDUCTION(__reduce_xor_sync, unsigned, kXor)
EMULATE_REDUCTION(__reduce_add_sync, int, kAdd)
EMULATE_REDUCTION(__reduce_min_sync, int, kSignedMin)
EMULATE_REDUCTION(__reduce_max_sync, int, kSignedMax)
#undef EMULATE_REDUCTION

// ---- atomics
template <class T>
T atomicAdd(T* address, T value) {
  return cuda_emulator::atomic_update(address, [=](T old) { return static_cast<T>(old + value); });
}
template <class T>
T atomicSub(T* address, T value) {
  return cuda_emulator::atomic_update(address, [=](T old) { return static_cast<T>(old - value); });
}
template <class T>
T atomicMax(T* address, T value) {
  return cuda_emulator::atomic_update(address, [=](T old) { return old > value ? old : value; });
}
template <class T>
T atomicMin(T* address, T value) {
  return cuda_emulator::atomic_update(address, [=](T old) { return old < value ? old : value; });
}
template <class T>
T atomicAnd(T* address, T value) {
  return cuda_emulator::atomic_update(address, [=](T old) { return static_cast<T>(old & value); });
}
template <class T>
T atomicOr(T* address, T value) {
  return cuda_emulator::atomic_update(address, [=](T old) { return static_cast<T>(old | value); });
}
template <class T>
T atomicExch(T* address, T value) {
  return cuda_emulator::atomic_update(address, [=](T) { return value; });
}
template <class T>
T atomicCAS(T* address, T compare, T value) {
  return cuda_emulator::atomic_update(address, [=](T old) { return old == compare ? value : old; });
}
inline unsigned atomicInc(unsigned* address, unsigned limit) {
  return cuda_emulator::atomic_update(address,
                                      [=](unsigned old) { return old >= limit ? 0u : old + 1; });
}

// CUDA's headers declare this overload for nvcc alone.
template <class Result, class... Parameters>
cudaError_t cudaFuncSetAttribute(Result (*kernel)(Parameters...), cudaFuncAttribute attribute,
                                 int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}

// ---- cached loads and streaming stores are plain accesses
template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
T __ldcg(const T* address) {
  return *address;
}
template <class T>
T __ldcs(const T* address) {
  return *address;
}
template <class T>
void __stcg(T* address, T value) {
  *address = value;
}
template <class T>
void __stcs(T* address, T value) {
  *address = value;
}

// ---- arithmetic
inline int __float_as_int(float value) { return cuda_emulator::copy_bits<int>(value); }
inline unsigned __float_as_uint(float value) { return cuda_emulator::copy_bits<unsigned>(value); }
inline float __int_as_float(int bits) { return cuda_emulator::copy_bits<float>(bits); }
inline float __uint_as_float(unsigned bits) { return cuda_emulator::copy_bits<float>(bits); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __saturatef(float x) { return x > 0.f ? (x < 1.f ? x : 1.f) : 0.f; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(1ull * a * b >> 32);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x != 0 ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
template <class A, class B>
constexpr auto max(A a, B b) -> std::common_type_t<A, B> {
  return a > b ? a : b;
}
template <class A, class B>
constexpr auto min(A a, B b) -> std::common_type_t<A, B> {
  return a < b ? a : b;
}
