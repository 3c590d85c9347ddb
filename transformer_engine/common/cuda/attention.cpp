// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The ops of transformer_engine/attention.h by cuDNN. A plan is made once per problem, thread and
// device; a steady-state call writes the lengths of its sequences, runs the plan and clears what
// lies outside the sequences: no query, no allocation outside the framework's cache, no host
// synchronisation.
#include <cuda_runtime_api.h>
#include <transformer_engine/attention.h>
#include <transformer_engine/error.h>

#include <cstring>
#include <limits>
#include <list>
#include <string_view>
#include <unordered_map>

#include "cuda/attention/cudnn.h"
#include "cuda/attention/plan.h"
#include "cuda/attention/rules.h"
#include "cuda/attention/sequences.h"
#include "cuda/attention_support.h"
#include "cuda/candidate.h"
#include "cuda/workspace.h"

namespace transformer_engine::cuda {

namespace {

constexpr char kForward[] = "attention_forward";
constexpr char kBackward[] = "attention_backward";
constexpr int64_t kAlignmentBytes = 16;  // that cuDNN's kernels load with
constexpr int64_t kElementBytes = 2;

template <typename Args>
constexpr bool kIsBackward = std::is_same_v<Args, AttentionBackwardArgs>;

// ---- the key of a plan: everything that it depends on

struct Key {
  std::array<int64_t, 64> numbers{};
  size_t count = 0;

  void add(int64_t number) { numbers.at(count++) = number; }
  void add(float number) {
    int32_t bits = 0;
    std::memcpy(&bits, &number, sizeof bits);
    add(int64_t{bits});
  }
  std::string_view bytes() const {
    return {reinterpret_cast<const char*>(numbers.data()), count * sizeof numbers[0]};
  }
};

void add_view(Key& key, const HeadsView& view) {
  key.add(view.batch_stride);
  key.add(view.head_stride);
  key.add(view.token_stride);
}

void add_problem(Key& key, const AttentionProblem& problem, const PlanOptions& options) {
  for (const int64_t number : {int64_t{options.is_backward},
                               problem.batch,
                               problem.heads,
                               problem.groups,
                               problem.queries,
                               problem.keys,
                               problem.size_qk,
                               problem.size_v,
                               static_cast<int64_t>(problem.dtype),
                               problem.left,
                               problem.right,
                               int64_t{problem.is_bottom_right},
                               int64_t{problem.has_lengths},
                               int64_t{problem.is_packed},
                               int64_t{problem.has_bias},
                               problem.bias_batch,
                               problem.bias_heads,
                               int64_t{problem.has_statistics},
                               int64_t{problem.is_deterministic},
                               int64_t{options.has_lengths},
                               int64_t{options.has_wide_starts},
                               options.most_tokens_q,
                               options.most_tokens_kv}) {
    key.add(number);
  }
  key.add(problem.scale);
  key.add(problem.dropout);
}

template <typename Args>
Key key_of(const Args& args, const PlanOptions& options, int device) {
  Key key;
  key.add(int64_t{device});
  add_problem(key, args.problem, options);
  for (const HeadsView* view : {&args.inputs.q, &args.inputs.k, &args.inputs.v, &args.o}) {
    add_view(key, *view);
  }
  if (args.problem.has_bias) {
    add_view(key, args.inputs.bias);
  }
  if constexpr (kIsBackward<Args>) {
    for (const HeadsView* view : {&args.grad_o, &args.grad_q, &args.grad_k, &args.grad_v}) {
      add_view(key, *view);
    }
    key.add(int64_t{args.grad_bias.data != nullptr});
    if (args.grad_bias.data != nullptr) {
      add_view(key, args.grad_bias);
    }
  }
  return key;
}

// ---- the plans of a thread, the least recently used one dropped

class PlanCache {
 public:
  template <typename Args>
  PlanOrReason& find(const Args& args, const PlanOptions& options, int device) {
    const Key key = key_of(args, options, device);
    const auto known = places_.find(key.bytes());
    if (known != places_.end()) {
      entries_.splice(entries_.begin(), entries_, known->second);
      return known->second->made;
    }
    PlanOrReason made = make_plan(args, options);
    ++builds_;
    if (entries_.size() == kMostPlans) {
      places_.erase(entries_.back().key.bytes());
      entries_.pop_back();
    }
    entries_.push_front({key, std::move(made)});
    places_.emplace(entries_.front().key.bytes(), entries_.begin());
    return entries_.front().made;
  }
  size_t builds() const { return builds_; }

 private:
  static constexpr size_t kMostPlans = 256;
  struct Entry {
    Key key;
    PlanOrReason made;
  };
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> places_;
  size_t builds_ = 0;
};

// Never destroyed: when a thread ends with the process, cuDNN may have ended before it.
PlanCache& plans() {
  thread_local PlanCache* const cache = new PlanCache;
  return *cache;
}

// ---- one call

// Lengths are given where sequences have some, and where cuDNN's backward needs them: up to 9.15.0
// it takes a number of keys that is no multiple of 128 with lengths alone.
bool needs_lengths(const AttentionProblem& problem, bool is_backward) {
  return problem.has_lengths ||
         (is_backward && problem.keys % 128 != 0 && cudnn_version() <= 91500);
}

bool has_wide_starts(const AttentionProblem& problem, const StartsTable& starts) {
  for (int i = 0; i < starts.count(); ++i) {
    const int64_t tokens = starts.at(i).is_query ? problem.tokens_q : problem.tokens_kv;
    if (tokens * starts.at(i).token_stride > std::numeric_limits<int32_t>::max()) {
      return true;
    }
  }
  return false;
}

// The next number with three leading bits: so that batches of about the same size share a plan.
int64_t rounded_up(int64_t tokens) {
  int64_t unit = 1;
  while (tokens / unit >= 8) {
    unit *= 2;
  }
  return (tokens + unit - 1) / unit * unit;
}

PlanOptions options_of(const AttentionProblem& problem, const StartsTable& starts, bool is_backward,
                       const Context& context) {
  return {.compute_capability = compute_capability(context.device_index),
          .is_backward = is_backward,
          .has_lengths = needs_lengths(problem, is_backward),
          .has_wide_starts = has_wide_starts(problem, starts),
          .most_tokens_q = is_backward ? rounded_up(problem.tokens_q) : 0,
          .most_tokens_kv = is_backward ? rounded_up(problem.tokens_kv) : 0};
}

// The device memory of one call: what cuDNN asks for, then the numbers of the sequences.
class CallMemory {
 public:
  CallMemory(const char* op, const AttentionProblem& problem, const StartsTable& starts,
             int64_t plan_bytes, const Context& context)
      : plan_bytes_(Workspace::aligned(plan_bytes)),
        vector_bytes_(
            Workspace::aligned((problem.batch + 1) * static_cast<int64_t>(sizeof(int64_t)))),
        memory_(op, plan_bytes_ + vector_bytes_ * (2 + starts.count()), context) {
    numbers_.lengths_q = memory_.data<int32_t>(plan_bytes_);
    numbers_.lengths_kv = memory_.data<int32_t>(plan_bytes_ + vector_bytes_);
    for (int i = 0; i < starts.count(); ++i) {
      numbers_.starts[static_cast<size_t>(i)] =
          memory_.data<void>(plan_bytes_ + vector_bytes_ * (2 + i));
    }
  }
  void* workspace() const { return memory_.data<void>(); }
  const SequenceNumbers& numbers() const { return numbers_; }

 private:
  int64_t plan_bytes_, vector_bytes_;
  Workspace memory_;
  SequenceNumbers numbers_;
};

void*& at(Pointers& pointers, Role role) { return pointers[static_cast<size_t>(role)]; }

void set_inputs(Pointers& pointers, const AttentionProblem& problem,
                const AttentionInputs& inputs) {
  at(pointers, Role::kQ) = inputs.q.data;
  at(pointers, Role::kK) = inputs.k.data;
  at(pointers, Role::kV) = inputs.v.data;
  if (problem.has_bias) {
    at(pointers, Role::kBias) = inputs.bias.data;
  }
  if (problem.dropout > 0.0F) {
    at(pointers, Role::kSeed) = const_cast<int64_t*>(inputs.seed);
    at(pointers, Role::kOffset) = const_cast<int64_t*>(inputs.offset);
  }
}

template <typename Args>
void run_plan(const char* op, const Args& args, Pointers& pointers, const Context& context) {
  const AttentionProblem& problem = args.problem;
  const StartsTable starts(args);
  const PlanOptions options = options_of(problem, starts, kIsBackward<Args>, context);
  const PlanOrReason& made = plans().find(args, options, context.device_index);
  TE_CHECK_AS(NotImplementedError, made.plan != nullptr, op,
              ": cuDNN has no plan for this problem (", made.reason,
              "); one is required. Use another implementation, or update cuDNN.");
  const CallMemory memory(op, problem, starts, made.plan->workspace_bytes(), context);
  set_inputs(pointers, problem, args.inputs);
  if (options.has_lengths) {
    write_sequence_numbers(problem, args.inputs.sequences, starts, options.has_wide_starts,
                           memory.numbers(), context);
    at(pointers, Role::kLengthsQ) = memory.numbers().lengths_q;
    at(pointers, Role::kLengthsKV) = memory.numbers().lengths_kv;
    for (int i = 0; i < starts.count(); ++i) {
      pointers[static_cast<size_t>(Role::kStarts) + static_cast<size_t>(i)] =
          memory.numbers().starts[static_cast<size_t>(i)];
    }
  }
  made.plan->run(pointers, memory.workspace(), context.stream);
}

void clear_outside(const AttentionProblem& problem, const AttentionSequences& sequences,
                   const ClearTarget& target, const Context& context) {
  if (problem.has_lengths) {
    clear_outside_sequences(problem, sequences, target, context);
  }
}

void run_forward(const AttentionForwardArgs& args, const Context& context) {
  const AttentionProblem& problem = args.problem;
  Pointers pointers{};
  at(pointers, Role::kO) = args.o.data;
  at(pointers, Role::kStatistics) = problem.has_statistics ? args.statistics : nullptr;
  run_plan(kForward, args, pointers, context);
  clear_outside(problem, args.inputs.sequences, {args.o, true, problem.heads, problem.size_v},
                context);
}

// cuDNN adds to the gradient of a bias that is shared.
void clear_bias_gradient(const AttentionBackwardArgs& args, const Context& context) {
  if (args.grad_bias.data == nullptr) {
    return;
  }
  const AttentionProblem& problem = args.problem;
  const int64_t bytes =
      problem.bias_batch * problem.bias_heads * problem.queries * problem.keys * kElementBytes;
  const cudaError_t status = cudaMemsetAsync(args.grad_bias.data, 0, static_cast<size_t>(bytes),
                                             static_cast<cudaStream_t>(context.stream));
  TE_CHECK_AS(RuntimeError, status == cudaSuccess, kBackward, ": cudaMemsetAsync failed with \"",
              cudaGetErrorString(status), "\"; a working device is required.");
}

void run_backward(const AttentionBackwardArgs& args, const Context& context) {
  const AttentionProblem& problem = args.problem;
  Pointers pointers{};
  at(pointers, Role::kO) = args.o.data;
  at(pointers, Role::kGradO) = args.grad_o.data;
  at(pointers, Role::kStatistics) = const_cast<float*>(args.statistics);
  at(pointers, Role::kGradQ) = args.grad_q.data;
  at(pointers, Role::kGradK) = args.grad_k.data;
  at(pointers, Role::kGradV) = args.grad_v.data;
  at(pointers, Role::kGradBias) = args.grad_bias.data;
  clear_bias_gradient(args, context);
  run_plan(kBackward, args, pointers, context);
  const AttentionSequences& sequences = args.inputs.sequences;
  clear_outside(problem, sequences, {args.grad_q, true, problem.heads, problem.size_qk}, context);
  clear_outside(problem, sequences, {args.grad_k, false, problem.groups, problem.size_qk}, context);
  clear_outside(problem, sequences, {args.grad_v, false, problem.groups, problem.size_v}, context);
}

// ---- what is refused

bool is_aligned(const HeadsView& view) {
  return reinterpret_cast<uintptr_t>(view.data) % kAlignmentBytes == 0 &&
         view.batch_stride * kElementBytes % kAlignmentBytes == 0 &&
         view.head_stride * kElementBytes % kAlignmentBytes == 0 &&
         view.token_stride * kElementBytes % kAlignmentBytes == 0;
}

constexpr char kMisaligned[] =
    "a tensor does not lie at multiples of 16 bytes, by its pointer or strides";

}  // namespace

size_t attention_plans_built() { return plans().builds(); }

const char* fused_attention_refusal(const AttentionProblem& problem, const Context& context) {
  TE_ENTER_EMULATED_BACKEND();
  const char* const library = cudnn_refusal();
  if (library != nullptr) {
    return library;
  }
  return reason_against(problem, {.compute_capability = compute_capability(context.device_index),
                                  .version = cudnn_version()});
}

void append_attention_status(std::vector<BackendStatus>& statuses) {
  const char* const refusal = cudnn_refusal();
  if (refusal != nullptr) {
    statuses.push_back({"cuDNN", false, refusal,
                        "fused attention on CUDA tensors (torch's is used)",
                        "install a CUDA build of torch, or cuDNN 9.7 or later"});
    return;
  }
  statuses.push_back({concat("cuDNN ", cudnn_version()), true, "", "", ""});
}

template <>
const char* EntryPoint<AttentionForwardArgs>::refusal(const AttentionForwardArgs& args,
                                                      const Context& context) {
  TE_ENTER_EMULATED_BACKEND();
  if (context.device != DeviceType::kCUDA) {
    return "the tensors are not in device memory";
  }
  for (const HeadsView* view : {&args.inputs.q, &args.inputs.k, &args.inputs.v, &args.o}) {
    if (!is_aligned(*view)) {
      return kMisaligned;
    }
  }
  return fused_attention_refusal(args.problem, context);
}
template <>
void EntryPoint<AttentionForwardArgs>::run(const AttentionForwardArgs& args,
                                           const Context& context) {
  TE_ENTER_EMULATED_BACKEND();
  const DeviceScope scope(context.device_index);
  run_forward(args, context);
}

template <>
const char* EntryPoint<AttentionBackwardArgs>::refusal(const AttentionBackwardArgs& args,
                                                       const Context& context) {
  TE_ENTER_EMULATED_BACKEND();
  if (context.device != DeviceType::kCUDA) {
    return "the tensors are not in device memory";
  }
  for (const HeadsView* view : {&args.inputs.q, &args.inputs.k, &args.inputs.v, &args.o,
                                &args.grad_o, &args.grad_q, &args.grad_k, &args.grad_v}) {
    if (!is_aligned(*view)) {
      return kMisaligned;
    }
  }
  return fused_attention_refusal(args.problem, context);
}
const char* fused_attention_backward_refusal(const AttentionBackwardArgs& args,
                                             const Context& context) {
  const char* const refusal = EntryPoint<AttentionBackwardArgs>::refusal(args, context);
  if (refusal != nullptr) {
    return refusal;
  }
  TE_ENTER_EMULATED_BACKEND();
  const DeviceScope scope(context.device_index);
  const PlanOptions options = options_of(args.problem, StartsTable(args), true, context);
  const PlanOrReason& made = plans().find(args, options, context.device_index);
  return made.plan == nullptr ? made.reason.c_str() : nullptr;
}

template <>
void EntryPoint<AttentionBackwardArgs>::run(const AttentionBackwardArgs& args,
                                            const Context& context) {
  TE_ENTER_EMULATED_BACKEND();
  const DeviceScope scope(context.device_index);
  run_backward(args, context);
}

}  // namespace transformer_engine::cuda
