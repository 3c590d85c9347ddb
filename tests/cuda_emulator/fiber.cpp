// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "sanitizers.h"

// Saves the callee-saved registers, swaps stacks, restores.
#if defined(__x86_64__)
asm(R"(
.text
.globl cuda_emulator_switch
.type cuda_emulator_switch,@function
cuda_emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size cuda_emulator_switch,.-cuda_emulator_switch
)");
extern "C" void cuda_emulator_switch(void** save_stack_pointer, void* load_stack_pointer);
constexpr int kSavedRegisters = 6;
#else
#error "add the context switch for this processor (about 20 instructions)"
#endif

namespace cuda_emulator {

namespace {

constexpr int kStacksPerArena = 1024;
#if defined(CUDA_EMULATOR_TSAN)
constexpr size_t kStackBytes = 64 * 1024;
#else
constexpr size_t kStackBytes = 256 * 1024;
#endif

char* new_stack() {
  static char* arena = nullptr;
  static int used = 0;
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (arena == nullptr || used == kStacksPerArena) {
    arena = static_cast<char*>(mmap(nullptr, (kStackBytes + page) * kStacksPerArena,
                                    PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (arena == MAP_FAILED) {
      std::abort();
    }
    used = 0;
  }
  char* guard = arena + (kStackBytes + page) * static_cast<size_t>(used++);
  mprotect(guard, page, PROT_NONE);  // a stack overflow faults instead of corrupting
  return guard + page;
}

}  // namespace

void prepare_fiber(Fiber& fiber, void (*entry)()) {
  char* bottom = new_stack();
  fiber.context.bottom = bottom;
  fiber.context.size = kStackBytes;
  auto** top = reinterpret_cast<void**>(bottom + kStackBytes);
  *--top = nullptr;  // keeps the stack aligned as after a call
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kSavedRegisters; ++i) {
    *--top = nullptr;
  }
  fiber.context.stack_pointer = top;
}

void switch_context(Context& from, Context& to) {
#if defined(CUDA_EMULATOR_ASAN)
  __sanitizer_start_switch_fiber(&from.asan_stack, to.bottom, to.size);
#endif
  cuda_emulator_switch(&from.stack_pointer, to.stack_pointer);
#if defined(CUDA_EMULATOR_ASAN)
  __sanitizer_finish_switch_fiber(from.asan_stack, nullptr, nullptr);
#endif
}

void enter_new_fiber([[maybe_unused]] Context& first_caller) {
#if defined(CUDA_EMULATOR_ASAN)
  const void* bottom;
  size_t size;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
  if (first_caller.bottom == nullptr) {
    first_caller.bottom = bottom;
    first_caller.size = size;
  }
#endif
}

}  // namespace cuda_emulator
