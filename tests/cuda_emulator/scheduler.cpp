// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Scheduler of the CUDA emulator: runs the threads of a block as fibers, lets them meet at barriers
// and warp operations, and reports what a GPU would hang on or leave undefined.
// Built without the thread sanitizer's instrumentation: it moves data between threads on their
// behalf.
#include <cuda_runtime.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>

#include "device_memory.h"
#include "emulator.h"
#include "fiber.h"
#include "launch_rules.h"
#include "sanitizers.h"
#include "stream_log.h"

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace cuda_emulator {
namespace {

constexpr int kWarpSize = 32;
constexpr int kMaxWarps = kMaxThreads / kWarpSize;
constexpr int kBarriers = 16;
constexpr long kEndlessSpin = 1'000'000;
constexpr int kAtomicsBeforeYield = 1000;
constexpr char kDeadlock[] = "deadlock";

struct AsyncCopy {
  void* target;
  const void* source;
  int bytes;
};
struct Thread {
  Fiber* fiber = nullptr;  // null: not started
  uint3 index{};
  Location where;
  const char* waits_in = nullptr;
  std::deque<std::vector<AsyncCopy>> committed;
  std::vector<AsyncCopy> open;
  void* races = nullptr;  // the race detector's thread
  bool has_fenced = false;
  const void* last_atomic = nullptr;
};
struct Warp {
  unsigned exists = 0, ready = 0, done = 0, in_operation = 0, yielded = 0;
  WarpOp op[kWarpSize];
  unsigned mask[kWarpSize];
  int detail[kWarpSize];
  Exchange* exchange[kWarpSize];
  char sync = 0;  // the address that stands for __syncwarp

  unsigned alive() const { return exists & ~done; }
};
struct Barrier {
  int arrived = 0, needed = 0, true_count = 0, result = 0;
  BarrierResult kind = BarrierResult::kNone;
  unsigned waiting[kMaxWarps] = {};
  Location where;
  char sync = 0;
};

// The state of the running block.
struct Block {
  Options options;
  unsigned long long random = 1;
  Context main;
  Context* current = &main;
  std::vector<std::unique_ptr<Fiber>> fibers, abandoned;
  std::vector<Fiber*> free_fibers;
  Thread threads[kMaxThreads];
  Warp warps[kMaxWarps];
  Barrier barriers[kBarriers];
  int thread_count = 0, warp_count = 0, done = 0, self = 0;
  unsigned ready_warps = 0;
  bool has_yielded = false;
  long idle_yields = 0;
  int atomics = 0;  // by the running thread since it got the processor
  void (*body)(void*) = nullptr;
  void* argument = nullptr;
  unsigned char* dynamic_shared = nullptr;
  size_t dynamic_shared_bytes = 0;
  char error[1024] = {};
  char end_sync = 0;
  void* main_races = nullptr;
};
Block block;
std::set<std::string>& executed() {
  static std::set<std::string> names;
  return names;
}

Warp& warp_of(int thread) { return block.warps[thread / kWarpSize]; }
unsigned lane_bit(int thread) { return 1u << (thread % kWarpSize); }

// No heap here: these run on fibers that may be abandoned at once.
struct Text {
  char chars[160];
};
Text text_of(const Location& where) {
  const char* file = where.file_name();
  if (const char* slash = std::strrchr(file, '/')) {
    file = slash + 1;
  }
  Text text;
  std::snprintf(text.chars, sizeof text.chars, "%s:%u", file, where.line());
  return text;
}
Text text_of(int thread) {
  const uint3 index = block.threads[thread].index;
  Text text;
  std::snprintf(text.chars, sizeof text.chars, "block (%u,%u,%u) thread (%u,%u,%u)", blockIdx.x,
                blockIdx.y, blockIdx.z, index.x, index.y, index.z);
  return text;
}
bool is_same_place(const Location& a, const Location& b) {
  return a.line() == b.line() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

void go_to(Context& to) {
  Context& from = *block.current;
  block.current = &to;
  switch_context(from, to);
}
void become(int thread) {
  block.self = thread;
  block.atomics = 0;
  threadIdx = block.threads[thread].index;
  races::become(block.threads[thread].races);
}
void back_to_main() {
  races::become(block.main_races);
  go_to(block.main);
}
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(block.error, sizeof block.error, format, arguments);
  va_end(arguments);
  back_to_main();
  __builtin_unreachable();
}

void make_ready(int warp, unsigned lanes) {
  block.warps[warp].ready |= lanes;
  block.ready_warps |= 1u << warp;
}
void make_unready(int thread) {
  Warp& warp = warp_of(thread);
  warp.ready &= ~lane_bit(thread);
  if (warp.ready == 0) {
    block.ready_warps &= ~(1u << (thread / kWarpSize));
  }
}
int nth_bit(unsigned bits, int n) {
  while (n-- > 0) {
    bits &= bits - 1;
  }
  return __builtin_ctz(bits);
}
int random_bit(unsigned bits, int shift) {
  return nth_bit(bits, static_cast<int>((block.random >> shift) %
                                        static_cast<unsigned>(__builtin_popcount(bits))));
}
void wake_spinning_threads() {
  block.has_yielded = false;
  for (int w = 0; w < block.warp_count; ++w) {
    if (block.warps[w].yielded != 0) {
      make_ready(w, std::exchange(block.warps[w].yielded, 0u));
    }
  }
}
int next_thread() {  // or -1
  if (block.ready_warps == 0 && block.has_yielded) {
    wake_spinning_threads();
  }
  if (block.ready_warps == 0) {
    return -1;
  }
  int warp;
  switch (block.options.order) {
    case Order::kForward:
      warp = __builtin_ctz(block.ready_warps);
      return warp * kWarpSize + __builtin_ctz(block.warps[warp].ready);
    case Order::kReverse:
      warp = 31 - __builtin_clz(block.ready_warps);
      return warp * kWarpSize + 31 - __builtin_clz(block.warps[warp].ready);
    case Order::kRandom:
      break;
  }
  block.random ^= block.random << 13;
  block.random ^= block.random >> 7;
  block.random ^= block.random << 17;
  warp = random_bit(block.ready_warps, 16);
  return warp * kWarpSize + random_bit(block.warps[warp].ready, 40);
}

void end_thread(int thread);

void fiber_main() {
  enter_new_fiber(block.main);
  auto* self =
      reinterpret_cast<Fiber*>(reinterpret_cast<char*>(block.current) - offsetof(Fiber, context));
  for (;;) {
    const int thread = self->thread;
    block.threads[thread].fiber = self;
    // An earlier user of this stack must not seem to race with this one.
    races::renew(const_cast<void*>(self->context.bottom), self->context.size);
    become(thread);
    block.body(block.argument);
    end_thread(thread);
    const int next = next_thread();
    if (next >= 0 && block.threads[next].fiber == nullptr) {
      self->thread = next;  // not started yet: runs on this very stack
      continue;
    }
    {
      [[maybe_unused]] const Quiet quiet;
      block.free_fibers.push_back(self);
    }
    if (next < 0) {
      back_to_main();
    } else {
      become(next);
      go_to(block.threads[next].fiber->context);
    }
  }
}

Fiber* free_fiber() {
  if (block.free_fibers.empty()) {
    [[maybe_unused]] const Quiet quiet;
    block.fibers.push_back(std::make_unique<Fiber>());
    prepare_fiber(*block.fibers.back(), &fiber_main);
    return block.fibers.back().get();
  }
  Fiber* fiber = block.free_fibers.back();
  block.free_fibers.pop_back();
  return fiber;
}

void run_thread(int thread) {
  if (block.threads[thread].fiber != nullptr) {
    become(thread);
    go_to(block.threads[thread].fiber->context);
    return;
  }
  Fiber* fiber = free_fiber();
  fiber->thread = thread;
  go_to(fiber->context);
}

std::string deadlock_report() {                       // on the main stack
  std::map<std::string, std::pair<int, int>> groups;  // text -> count, first thread
  for (int t = 0; t < block.thread_count; ++t) {
    const Warp& warp = warp_of(t);
    if ((warp.done & lane_bit(t)) != 0) {
      continue;
    }
    const Thread& thread = block.threads[t];
    std::string text = std::string(thread.waits_in != nullptr ? thread.waits_in : "?") + " at " +
                       text_of(thread.where).chars;
    if ((warp.in_operation & lane_bit(t)) != 0) {
      char mask[32];
      std::snprintf(mask, sizeof mask, " mask %08x", warp.mask[t % kWarpSize]);
      text += mask;
    }
    auto& group = groups[text];
    if (group.first++ == 0) {
      group.second = t;
    }
  }
  std::string report = "deadlock, no thread can run";
  for (const auto& [text, group] : groups) {
    report += "\n  " + std::to_string(group.first) + " wait in " + text +
              ", first: " + text_of(group.second).chars;
  }
  return report;
}

// The calling thread cannot go on: others run until somebody makes it ready.
void block_self(const char* waits_in, const Location& where) {
  Thread& thread = block.threads[block.self];
  thread.waits_in = waits_in;
  thread.where = where;
  make_unready(block.self);
  const int next = next_thread();
  if (next < 0) {
    fail("%s", kDeadlock);
  }
  run_thread(next);
}

// Everybody's writes before are seen by everybody after.
template <class ForEach>
void order_threads([[maybe_unused]] const void* at, [[maybe_unused]] const ForEach& for_each) {
#if defined(CUDA_EMULATOR_TSAN)
  for_each([&](int thread) {
    races::become(block.threads[thread].races);
    races::release(at);
  });
  for_each([&](int thread) {
    races::become(block.threads[thread].races);
    races::acquire(at);
  });
  races::become(block.threads[block.self].races);
#endif
}
template <class Body>
void for_each_lane(int warp, unsigned lanes, const Body& body) {
  for (; lanes != 0; lanes &= lanes - 1) {
    body(warp * kWarpSize + __builtin_ctz(lanes));
  }
}

void check_barrier(const Barrier& barrier, int id, int needed) {
  if (barrier.arrived > needed) {
    fail("barrier %d: %d threads arrived, %d expected (%s)", id, barrier.arrived, needed,
         text_of(barrier.where).chars);
  }
  for (int w = 0; w < block.warp_count && block.options.is_strict && barrier.needed == 0; ++w) {
    if (block.warps[w].done != 0 && barrier.waiting[w] != 0) {
      fail(
          "barrier divergence: part of warp %d of block (%u,%u,%u) has returned while lanes %08x "
          "wait at %s",
          w, blockIdx.x, blockIdx.y, blockIdx.z, barrier.waiting[w], text_of(barrier.where).chars);
    }
  }
}

void release_barrier_if_full(int id) {
  Barrier& barrier = block.barriers[id];
  const int needed = barrier.needed != 0 ? barrier.needed : block.thread_count - block.done;
  if (barrier.arrived == 0 || barrier.arrived < needed) {
    return;
  }
  check_barrier(barrier, id, needed);
  barrier.result = barrier.kind == BarrierResult::kCount ? barrier.true_count
                   : barrier.kind == BarrierResult::kAnd ? barrier.true_count == barrier.arrived
                                                         : barrier.true_count > 0;
  order_threads(&barrier.sync, [&](const auto& body) {
    for (int w = 0; w < block.warp_count; ++w) {
      for_each_lane(w, barrier.waiting[w], body);
    }
  });
  for (int w = 0; w < block.warp_count; ++w) {
    if (barrier.waiting[w] != 0) {
      make_ready(w, std::exchange(barrier.waiting[w], 0u));
    }
  }
  barrier.arrived = barrier.needed = barrier.true_count = 0;
}

unsigned reduced(Reduction how, unsigned a, unsigned b) {
  const auto signed_a = static_cast<int>(a);
  const auto signed_b = static_cast<int>(b);
  switch (how) {
    case kAdd:
      return a + b;
    case kMin:
      return b < a ? b : a;
    case kMax:
      return b > a ? b : a;
    case kAnd:
      return a & b;
    case kOr:
      return a | b;
    case kXor:
      return a ^ b;
    case kSignedMin:
      return signed_b < signed_a ? b : a;
    case kSignedMax:
      return signed_b > signed_a ? b : a;
  }
  return a;
}

void exchange_shuffle(int warp_index, unsigned group, unsigned mask) {
  Warp& warp = block.warps[warp_index];
  for_each_lane(warp_index, group, [&](int thread) {
    Exchange& exchange = *warp.exchange[thread % kWarpSize];
    if ((group >> exchange.source & 1) == 0) {
      fail("%s at %s: shuffle reads lane %d, which does not take part (mask %08x)",
           text_of(thread).chars, text_of(block.threads[thread].where).chars, exchange.source,
           mask);
    }
    initialisation::copy(exchange.out, warp.exchange[exchange.source]->in, sizeof exchange.out);
  });
}
void give_to_all(int warp_index, unsigned group, unsigned result) {
  for_each_lane(warp_index, group, [&](int thread) {
    initialisation::write(block.warps[warp_index].exchange[thread % kWarpSize]->out, &result, 4);
  });
}
void exchange_vote(int warp_index, unsigned group) {
  unsigned result = 0;
  for_each_lane(warp_index, group, [&](int thread) {
    const bool predicate = block.warps[warp_index].exchange[thread % kWarpSize]->source != 0;
    result |= predicate ? lane_bit(thread) : 0u;
  });
  give_to_all(warp_index, group, result);
}
void exchange_reduce(int warp_index, unsigned group, Reduction how) {
  unsigned result = 0;
  bool is_first = true;
  for_each_lane(warp_index, group, [&](int thread) {
    const Exchange& exchange = *block.warps[warp_index].exchange[thread % kWarpSize];
    initialisation::require(exchange.in, 4);
    unsigned value;
    __builtin_memcpy(&value, exchange.in, 4);
    result = std::exchange(is_first, false) ? value : reduced(how, result, value);
  });
  give_to_all(warp_index, group, result);
}
void exchange_match(int warp_index, unsigned group) {
  Warp& warp = block.warps[warp_index];
  for_each_lane(warp_index, group, [&](int thread) {
    Exchange& own = *warp.exchange[thread % kWarpSize];
    unsigned result = 0;
    for_each_lane(warp_index, group, [&](int other) {
      if (__builtin_memcmp(own.in, warp.exchange[other % kWarpSize]->in, 4) == 0) {
        result |= lane_bit(other);
      }
    });
    initialisation::write(own.out, &result, 4);
  });
}

// Whether the lanes of the group wait for each other in the same operation.
bool is_agreed(int warp_index, unsigned group, unsigned mask) {
  const Warp& warp = block.warps[warp_index];
  const int first = __builtin_ctz(group);
  const Location& first_where = block.threads[warp_index * kWarpSize + first].where;
  for (unsigned lanes = group; lanes != 0; lanes &= lanes - 1) {
    const int lane = __builtin_ctz(lanes);
    const int thread = warp_index * kWarpSize + lane;
    const Location& where = block.threads[thread].where;
    if (warp.mask[lane] != mask || warp.op[lane] != warp.op[first] ||
        warp.detail[lane] != warp.detail[first]) {
      // A lane of the group waits for a different operation. If that one names us as well, neither
      // can ever finish.
      if ((warp.mask[lane] >> first & 1) != 0) {
        fail("warp divergence in %s: %s mask %08x and %s mask %08x wait for each other",
             text_of(thread).chars, text_of(first_where).chars, mask, text_of(where).chars,
             warp.mask[lane]);
      }
      return false;
    }
    if (block.options.is_strict && !is_same_place(first_where, where)) {
      fail("warp divergence: lanes %d and %d of warp %d meet in different places, %s and %s", first,
           lane, warp_index, text_of(first_where).chars, text_of(where).chars);
    }
  }
  return true;
}

void complete_if_full(int warp_index, unsigned mask) {
  Warp& warp = block.warps[warp_index];
  const unsigned group = mask & warp.alive();
  if (group == 0 || (warp.in_operation & group) != group || !is_agreed(warp_index, group, mask)) {
    return;
  }
  const int first = __builtin_ctz(group);
  switch (warp.op[first]) {
    case WarpOp::kShuffle:
      exchange_shuffle(warp_index, group, mask);
      break;
    case WarpOp::kVote:
      exchange_vote(warp_index, group);
      break;
    case WarpOp::kReduce:
      exchange_reduce(warp_index, group, static_cast<Reduction>(warp.detail[first]));
      break;
    case WarpOp::kMatch:
      exchange_match(warp_index, group);
      break;
    case WarpOp::kSync:  // alone orders memory: shuffles and votes do not
      order_threads(&warp.sync, [&](const auto& body) { for_each_lane(warp_index, group, body); });
      break;
  }
  warp.in_operation &= ~group;
  make_ready(warp_index, group);
}

void end_thread(int thread) {
  Warp& warp = warp_of(thread);
  Thread& ending = block.threads[thread];
  if (!ending.open.empty() || !ending.committed.empty()) {
    fail("%s: returned with an asynchronous copy not waited for", text_of(thread).chars);
  }
  warp.done |= lane_bit(thread);
  ++block.done;
  make_unready(thread);
  races::release(&block.end_sync);
  // A thread that has returned is no longer waited for.
  for (unsigned waiting = warp.in_operation; waiting != 0;) {
    const unsigned mask = warp.mask[__builtin_ctz(waiting)];
    waiting &= ~mask;
    complete_if_full(thread / kWarpSize, mask);
  }
  release_barrier_if_full(0);
}

#if defined(__clang__)
extern "C" char __start_cuda_shared[] __attribute__((weak));
extern "C" char __stop_cuda_shared[] __attribute__((weak));
char* static_shared() { return __start_cuda_shared; }
size_t static_shared_bytes() {
  return static_cast<size_t>(__stop_cuda_shared - __start_cuda_shared);
}
#else  // nobody knows where they are
char* static_shared() { return nullptr; }
size_t static_shared_bytes() { return 0; }
#endif

// Every byte 0xff, past the red zones between static arrays.
__attribute__((no_sanitize("address"))) void make_dirty(char* memory, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    const_cast<volatile char*>(memory)[i] = static_cast<char>(0xff);
  }
}

// Shared memory is new memory for every block.
void renew_shared_memory() {
  races::renew(block.dynamic_shared, block.dynamic_shared_bytes);
  races::renew(static_shared(), static_shared_bytes());
  if (initialisation::kIsChecked) {
    initialisation::forget(block.dynamic_shared, block.dynamic_shared_bytes);
    initialisation::forget(static_shared(), static_shared_bytes());
  } else if (block.options.has_dirty_memory) {
    [[maybe_unused]] const Quiet quiet;
    make_dirty(reinterpret_cast<char*>(block.dynamic_shared), block.dynamic_shared_bytes);
    make_dirty(static_shared(), static_shared_bytes());
  }
}

void reset_block(dim3 shape) {
  block.thread_count = static_cast<int>(shape.x * shape.y * shape.z);
  block.warp_count = (block.thread_count + kWarpSize - 1) / kWarpSize;
  block.done = 0;
  block.ready_warps = 0;
  block.has_yielded = false;
  block.idle_yields = 0;
  for (Barrier& barrier : block.barriers) {
    barrier = Barrier{};
  }
  for (int w = 0; w < block.warp_count; ++w) {
    Warp& warp = block.warps[w];
    const int lanes = block.thread_count - w * kWarpSize;
    warp.exists = lanes >= kWarpSize ? ~0u : (1u << lanes) - 1;
    warp.ready = warp.done = warp.in_operation = warp.yielded = 0;
    make_ready(w, warp.exists);
  }
  for (int t = 0; t < block.thread_count; ++t) {
    Thread& thread = block.threads[t];
    const auto id = static_cast<unsigned>(t);
    thread.fiber = nullptr;
    thread.index = {id % shape.x, id / shape.x % shape.y, id / shape.x / shape.y};
    thread.waits_in = nullptr;
    thread.committed.clear();
    thread.open.clear();
    thread.has_fenced = false;
    thread.last_atomic = nullptr;
    thread.races = races::new_thread();
  }
}

// Runs one block; the text of what went wrong, or empty.
std::string run_block(dim3 shape) {
  reset_block(shape);
  renew_shared_memory();
  run_thread(next_thread());
  if (*block.error == 0) {
    for (int t = 0; t < block.thread_count; ++t) {
      races::end_thread(block.threads[t].races);
    }
    return {};
  }
  for (int t = 0; t < block.thread_count; ++t) {  // the abandoned threads count as joined
    races::become(block.threads[t].races);
    races::release(&block.end_sync);
  }
  races::become(block.main_races);
  races::acquire(&block.end_sync);
  std::string error = std::strcmp(block.error, kDeadlock) == 0 ? deadlock_report() : block.error;
  *block.error = 0;
  for (auto& fiber : block.fibers) {
    block.abandoned.push_back(std::move(fiber));  // left half-way: never used again
  }
  block.fibers.clear();
  block.free_fibers.clear();
  return error;
}

}  // namespace

// ---- called from kernels
unsigned lane_id() { return static_cast<unsigned>(block.self % kWarpSize); }
void* dynamic_shared_memory() { return block.dynamic_shared; }
void device_fail(const char* what, Location where) {
  fail("%s at %s: %s", text_of(block.self).chars, text_of(where).chars, what);
}

void warp_collective(WarpOp op, unsigned mask, int detail, Exchange* exchange, Location where) {
  const int thread = block.self;
  const int lane = thread % kWarpSize;
  Warp& warp = warp_of(thread);
  if ((mask & lane_bit(thread)) == 0) {
    device_fail("the calling lane is not in its own mask", where);
  }
  warp.op[lane] = op;
  warp.mask[lane] = mask;
  warp.detail[lane] = detail;
  warp.exchange[lane] = exchange;
  warp.in_operation |= lane_bit(thread);
  block.threads[thread].where = where;
  make_unready(thread);
  complete_if_full(thread / kWarpSize, mask);
  if ((warp.in_operation & lane_bit(thread)) != 0) {
    block_self("a warp operation", where);
  }
}

int block_barrier(int id, int threads, bool predicate, BarrierResult kind, Location where) {
  const int thread = block.self;
  Barrier& barrier = block.barriers[id];
  if (threads % kWarpSize != 0) {
    device_fail("barrier count is not a multiple of the warp size", where);
  }
  if (barrier.arrived == 0) {
    barrier.where = where;
    barrier.kind = kind;
    barrier.needed = threads;
  } else if (block.options.is_strict && !is_same_place(barrier.where, where)) {
    fail("barrier divergence: %s arrives at %s, others wait at %s", text_of(thread).chars,
         text_of(where).chars, text_of(barrier.where).chars);
  }
  ++barrier.arrived;
  barrier.true_count += predicate ? 1 : 0;
  barrier.waiting[thread / kWarpSize] |= lane_bit(thread);
  block.threads[thread].where = where;
  make_unready(thread);
  release_barrier_if_full(id);
  if ((warp_of(thread).ready & lane_bit(thread)) == 0) {
    block_self("a block barrier", where);
  }
  return barrier.result;
}

void yield(Location where) {  // in spin loops: lets everybody else go first
  const int thread = block.self;
  if (++block.idle_yields > kEndlessSpin) {
    device_fail("spins for ever", where);
  }
  make_unready(thread);
  warp_of(thread).yielded |= lane_bit(thread);
  block.has_yielded = true;
  const int next = next_thread();
  if (next != thread) {
    run_thread(next);
  }
}

// As on a GPU, a fence orders together with the atomics round it.
void fence() {
  Thread& thread = block.threads[block.self];
  thread.has_fenced = true;
  if (thread.last_atomic != nullptr) {
    races::acquire(thread.last_atomic);
  }
}
void atomic_touch(const void* address) {
  Thread& thread = block.threads[block.self];
  if (++block.atomics == kAtomicsBeforeYield) {  // perhaps a spin loop
    block.atomics = 0;
    yield(thread.where);
  }
  thread.last_atomic = address;
  if (thread.has_fenced) {
    races::release(address);
  }
}

void cp_async(void* target, const void* source, int bytes, Location where) {
  const auto size = static_cast<uintptr_t>(bytes);
  if (reinterpret_cast<uintptr_t>(target) % size != 0 ||
      reinterpret_cast<uintptr_t>(source) % size != 0) {
    device_fail("misaligned cp.async", where);
  }
  [[maybe_unused]] const Quiet quiet;
  block.threads[block.self].open.push_back({target, source, bytes});
}
void cp_async_commit() {
  [[maybe_unused]] const Quiet quiet;
  Thread& thread = block.threads[block.self];
  thread.committed.push_back(std::exchange(thread.open, {}));
}
void cp_async_wait(int pending) {  // data appear as late as the rules allow
  Thread& thread = block.threads[block.self];
  while (static_cast<int>(thread.committed.size()) > pending) {
    for (const AsyncCopy& copy : thread.committed.front()) {
      memcpy(copy.target, copy.source, static_cast<size_t>(copy.bytes));  // seen by sanitizers
    }
    [[maybe_unused]] const Quiet quiet;
    thread.committed.pop_front();
  }
}

// ---- launch
std::vector<std::string> executed_kernels() { return {executed().begin(), executed().end()}; }

void run_grid(const Grid& grid, void (*body)(void*), void* argument) {
  if (const std::string error = launch_error(grid); !error.empty()) {
    throw std::runtime_error(std::string("invalid launch of kernel ") + grid.name + ": " + error);
  }
  log_stream({.act = StreamStep::Act::kWork, .stream = grid.stream});
  check_arguments(grid.name, argument, grid.argument_bytes);
  const DeviceAccess access;
  // One grid at a time, also where threads of the process launch at once.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  executed().insert(grid.name);
  block.options = read_options();
  block.random = 88172645463325252ull ^ (block.options.seed * 0x9E3779B97F4A7C15ull);
  block.body = body;
  block.argument = argument;
  block.dynamic_shared_bytes = grid.dynamic_shared_bytes;
  void* shared = nullptr;  // exactly as large as asked for, so that an overrun is seen
  if (grid.dynamic_shared_bytes != 0 &&
      posix_memalign(&shared, 1024, grid.dynamic_shared_bytes) != 0) {
    std::abort();
  }
  block.dynamic_shared = static_cast<unsigned char*>(shared);
  block.main_races = races::this_thread();
  blockDim = grid.block;
  gridDim = grid.grid;
  std::string error;
  const long blocks = static_cast<long>(grid.grid.x) * grid.grid.y * grid.grid.z;
  for (long i = 0; i < blocks && error.empty(); ++i) {
    const long b = block.options.order == Order::kReverse ? blocks - 1 - i : i;
    blockIdx.x = static_cast<unsigned>(b % grid.grid.x);
    blockIdx.y = static_cast<unsigned>(b / grid.grid.x % grid.grid.y);
    blockIdx.z = static_cast<unsigned>(b / grid.grid.x / grid.grid.y);
    error = run_block(grid.block);
  }
  races::acquire(&block.end_sync);
  std::free(shared);
  if (!error.empty()) {
    throw std::runtime_error(std::string("kernel ") + grid.name + " failed: " + error);
  }
}

}  // namespace cuda_emulator
