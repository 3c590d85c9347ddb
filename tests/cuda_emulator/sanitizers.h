// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What the scheduler tells the sanitizers: fibers, who waits for whom, memory that begins anew.
// Every function does nothing in a build without the sanitizer that it speaks to.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define CUDA_EMULATOR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUDA_EMULATOR_ASAN 1
#endif
#endif
#if defined(CUDA_EMULATOR_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif

// Set by the build, as for CUDA_EMULATOR_TSAN: the scheduler itself is not instrumented.
#if defined(CUDA_EMULATOR_MSAN)
#include <sanitizer/msan_interface.h>
#endif
#if defined(CUDA_EMULATOR_TSAN)
extern "C" {
void* __tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void*);
void* __tsan_get_current_fiber();
void __tsan_switch_to_fiber(void*, unsigned);
void __tsan_acquire(void*);
void __tsan_release(void*);
void __tsan_java_init(unsigned long, unsigned long);
void __tsan_java_alloc(unsigned long, unsigned long);
void __tsan_java_free(unsigned long, unsigned long);
void AnnotateIgnoreReadsBegin(const char*, int);
void AnnotateIgnoreReadsEnd(const char*, int);
void AnnotateIgnoreWritesBegin(const char*, int);
void AnnotateIgnoreWritesEnd(const char*, int);
}
#endif

namespace cuda_emulator {

// While it lives, heap use is the scheduler's own and no business of the race detector.
struct [[maybe_unused]] Quiet {
#if defined(CUDA_EMULATOR_TSAN)
  Quiet() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Quiet() {
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  }
#endif
};

namespace races {

#if defined(CUDA_EMULATOR_TSAN)
constexpr unsigned kNoSync = 1;  // a switch of fibers orders nothing by itself
inline void* new_thread() { return __tsan_create_fiber(0); }
inline void end_thread(void* thread) { __tsan_destroy_fiber(thread); }
inline void* this_thread() { return __tsan_get_current_fiber(); }
inline void become(void* thread) { __tsan_switch_to_fiber(thread, kNoSync); }
inline void acquire(const void* at) { __tsan_acquire(const_cast<void*>(at)); }
inline void release(const void* at) { __tsan_release(const_cast<void*>(at)); }
// Forgets who touched this memory. The calls for a garbage-collected heap do that.
inline void renew(void* memory, size_t bytes) {
  static bool is_initialised = false;
  if (!is_initialised) {
    is_initialised = true;
    __tsan_java_init(4096, 0x7fffffff0000ul);
  }
  if (bytes != 0) {
    const size_t whole_words = (bytes + 7) / 8 * 8;
    __tsan_java_free(reinterpret_cast<unsigned long>(memory), whole_words);
    __tsan_java_alloc(reinterpret_cast<unsigned long>(memory), whole_words);
  }
}
#else
inline void* new_thread() { return nullptr; }
inline void end_thread(void*) {}
inline void* this_thread() { return nullptr; }
inline void become(void*) {}
inline void acquire(const void*) {}
inline void release(const void*) {}
inline void renew(void*, size_t) {}
#endif

}  // namespace races

// `forget`: as if never written. `copy`: what is not initialised stays so. `write`: initialised by
// the scheduler. `trust`: initialised by code that is not instrumented. `require`: reports what is
// not initialised.
namespace initialisation {

#if defined(CUDA_EMULATOR_MSAN)
constexpr bool kIsChecked = true;
inline void forget(void* memory, size_t bytes) { __msan_poison(memory, bytes); }
inline void copy(void* to, const void* from, size_t bytes) {
  __builtin_memcpy(to, from, bytes);
  __msan_copy_shadow(to, from, bytes);
}
inline void write(void* to, const void* from, size_t bytes) {
  __builtin_memcpy(to, from, bytes);
  __msan_unpoison(to, bytes);
}
inline void trust(const void* memory, size_t bytes) { __msan_unpoison(memory, bytes); }
inline void require(const void* memory, size_t bytes) {
  __msan_check_mem_is_initialized(memory, bytes);
}
#else
constexpr bool kIsChecked = false;
inline void forget(void*, size_t) {}
inline void copy(void* to, const void* from, size_t bytes) { __builtin_memcpy(to, from, bytes); }
inline void write(void* to, const void* from, size_t bytes) { __builtin_memcpy(to, from, bytes); }
inline void trust(const void*, size_t) {}
inline void require(const void*, size_t) {}
#endif

}  // namespace initialisation
}  // namespace cuda_emulator
