// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "device_memory.h"

#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

#include "sanitizers.h"

namespace cuda_emulator {

namespace {

constexpr size_t kAlignment = 256;  // cudaMalloc's
[[maybe_unused]] constexpr size_t kPage = 4096;

void* allocate_on_heap(size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, bytes != 0 ? bytes : 1) != 0) {
    return nullptr;
  }
  initialisation::forget(memory, bytes);
  return memory;
}
void free_on_heap(void* memory) {
  initialisation::trust(memory, malloc_usable_size(memory));  // the host's again
  std::free(memory);
}

#if defined(CUDA_EMULATOR_SEPARATE_MEMORY)

// Addresses that no code may touch while `users` is 0.
class Arena {
 public:
  void* allocate(size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (base_ == nullptr && !reserve()) {
      return nullptr;
    }
    const size_t rounded = (bytes + kAlignment) / kAlignment * kAlignment;  // never adjacent
    size_t offset = 0;  // the first gap that is large enough
    for (const auto& [start, size] : blocks_) {
      if (start - offset >= rounded) {
        break;
      }
      offset = start + size;
    }
    if (offset + rounded > kReservedBytes) {
      return nullptr;
    }
    blocks_[offset] = rounded;
    const size_t filled = std::min(rounded, kFilledBytes);
    open();
    std::memset(base_ + offset, 0xff, filled);  // NaN and -1
    close();
    return base_ + offset;
  }
  // Whether it was this arena's.
  bool free(void* memory) {
    const std::lock_guard lock(mutex_);
    return contains(reinterpret_cast<uintptr_t>(memory)) &&
           blocks_.erase(static_cast<size_t>(static_cast<unsigned char*>(memory) - base_)) != 0;
  }
  void enter() {
    const std::lock_guard lock(mutex_);
    open();
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    close();
  }
  bool contains(uintptr_t address) const {
    const auto base = reinterpret_cast<uintptr_t>(base_);
    return base_ != nullptr && address - base < kReservedBytes;
  }

 private:
  static constexpr size_t kReservedBytes = size_t{4} << 30;
  static constexpr size_t kFilledBytes = size_t{1} << 20;  // of a larger block: its first

  bool reserve();
  void open() {
    if (users_++ == 0) {
      protect(PROT_READ | PROT_WRITE);
    }
  }
  void close() {
    if (--users_ == 0) {
      protect(PROT_NONE);
    }
  }
  void protect(int protection) const {
    if (!blocks_.empty()) {
      const auto& [start, size] = *blocks_.rbegin();
      mprotect(base_, (start + size + kPage - 1) / kPage * kPage, protection);
    }
  }

  std::mutex mutex_;
  unsigned char* base_ = nullptr;
  int users_ = 0;
  std::map<size_t, size_t> blocks_;  // offsets and sizes of what is allocated
};

Arena& arena() {
  static Arena the_arena;
  return the_arena;
}

bool is_shared = false;
struct sigaction previous_handler;

void report_access(int signal, siginfo_t* info, void*) {
  if (arena().contains(reinterpret_cast<uintptr_t>(info->si_addr))) {
    constexpr char kMessage[] =
        "cuda_emulator: host code touched device memory while no kernel ran\n";
    [[maybe_unused]] const auto written = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  }
  sigaction(signal, &previous_handler, nullptr);  // the access happens again
}

bool Arena::reserve() {
  void* memory =
      mmap(nullptr, kReservedBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return false;
  }
  base_ = static_cast<unsigned char*>(memory);
  struct sigaction handler{};
  handler.sa_sigaction = &report_access;
  handler.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &handler, &previous_handler);
  return true;
}

// Asked for suspects alone: reading the list takes a millisecond.
bool is_mapped(uintptr_t address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    char* end = nullptr;
    const uintptr_t first = std::strtoull(line.c_str(), &end, 16);
    const uintptr_t last = std::strtoull(end + 1, nullptr, 16);
    if (first <= address && address < last) {
      return true;
    }
  }
  return false;
}

#endif

}  // namespace

#if defined(CUDA_EMULATOR_SEPARATE_MEMORY)

void* allocate_device_memory(size_t bytes) {
  return is_shared ? allocate_on_heap(bytes) : arena().allocate(bytes);
}
void free_device_memory(void* memory) {
  if (!arena().free(memory)) {
    free_on_heap(memory);
  }
}
DeviceAccess::DeviceAccess() { arena().enter(); }
DeviceAccess::~DeviceAccess() { arena().leave(); }
void share_host_memory() { is_shared = true; }

void check_arguments(const char* kernel, const void* arguments, size_t bytes) {
  if (is_shared) {
    return;
  }
  // Where programs, heaps, libraries and stacks lie on 64-bit Linux: sizes and strides are smaller,
  // floating-point numbers larger.
  constexpr uintptr_t kLowest = uintptr_t{0x10} << 40;
  constexpr uintptr_t kHighest = uintptr_t{1} << 47;
  for (size_t offset = 0; offset + sizeof(uintptr_t) <= bytes; offset += sizeof(uintptr_t)) {
    uintptr_t word = 0;
    std::memcpy(&word, static_cast<const char*>(arguments) + offset, sizeof word);
    if (word >= kLowest && word < kHighest && !arena().contains(word) && is_mapped(word)) {
      throw std::runtime_error(std::string("kernel ") + kernel +
                               ": an argument holds an address of host memory (at byte " +
                               std::to_string(offset) + " of " + std::to_string(bytes) + ": " +
                               std::to_string(word) + ")");
    }
  }
}

#else

void* allocate_device_memory(size_t bytes) { return allocate_on_heap(bytes); }
void free_device_memory(void* memory) { free_on_heap(memory); }
DeviceAccess::DeviceAccess() = default;
DeviceAccess::~DeviceAccess() = default;
void share_host_memory() {}
void check_arguments(const char*, const void*, size_t) {}

#endif

}  // namespace cuda_emulator
