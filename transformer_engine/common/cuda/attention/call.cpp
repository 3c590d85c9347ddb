// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/attention/call.h"

#include <cuda_runtime_api.h>
#include <transformer_engine/error.h>

#include "cuda/attention/sequences.h"
#include "cuda/workspace.h"

namespace transformer_engine::cuda {

namespace {

constexpr int64_t kAlignmentBytes = 16;  // that cuDNN's kernels load with

// The device memory of one call: what cuDNN asks for, then the numbers of the sequences.
class CallMemory {
 public:
  CallMemory(const PlanCall& call, int64_t plan_bytes, const Context& context)
      : plan_bytes_(Workspace::aligned(plan_bytes)),
        vector_bytes_(
            Workspace::aligned((call.problem.batch + 1) * static_cast<int64_t>(sizeof(int64_t)))),
        memory_(call.op, plan_bytes_ + vector_bytes_ * (2 + call.starts.count()), context) {
    numbers_.lengths_q = memory_.data<int32_t>(plan_bytes_);
    numbers_.lengths_kv = memory_.data<int32_t>(plan_bytes_ + vector_bytes_);
    for (int i = 0; i < call.starts.count(); ++i) {
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

bool is_aligned(const HeadsView& view, int64_t element_bytes) {
  return reinterpret_cast<uintptr_t>(view.data) % kAlignmentBytes == 0 &&
         view.batch_stride * element_bytes % kAlignmentBytes == 0 &&
         view.head_stride * element_bytes % kAlignmentBytes == 0 &&
         view.token_stride * element_bytes % kAlignmentBytes == 0;
}

}  // namespace

void*& at(Pointers& pointers, Role role) { return pointers[static_cast<size_t>(role)]; }

void run_plan(const PlanCall& call, const PlanOrReason& made, Pointers& pointers,
              const Context& context) {
  TE_CHECK_AS(NotImplementedError, made.plan != nullptr, call.op,
              ": cuDNN has no plan for this problem (", made.reason,
              "); one is required. Use another implementation, or update cuDNN.");
  const CallMemory memory(call, made.plan->workspace_bytes(), context);
  set_inputs(pointers, call.problem, call.inputs);
  if (call.options.has_lengths) {
    write_sequence_numbers(call.problem, call.inputs.sequences, call.starts,
                           call.options.has_wide_starts, memory.numbers(), context);
    at(pointers, Role::kLengthsQ) = memory.numbers().lengths_q;
    at(pointers, Role::kLengthsKV) = memory.numbers().lengths_kv;
    for (int i = 0; i < call.starts.count(); ++i) {
      pointers[static_cast<size_t>(Role::kStarts) + static_cast<size_t>(i)] =
          memory.numbers().starts[static_cast<size_t>(i)];
    }
  }
  made.plan->run(pointers, memory.workspace(), context.stream);
}

void set_to_zero(const char* op, void* data, int64_t bytes, const Context& context) {
  const cudaError_t status = cudaMemsetAsync(data, 0, static_cast<size_t>(bytes),
                                             static_cast<cudaStream_t>(context.stream));
  TE_CHECK_AS(RuntimeError, status == cudaSuccess, op, ": cudaMemsetAsync failed with \"",
              cudaGetErrorString(status), "\"; a working device is required.");
}

const char* refusal_of_tensors(std::initializer_list<TypedView> tensors, const Context& context) {
  if (context.device != DeviceType::kCUDA) {
    return "the tensors are not in device memory";
  }
  for (const TypedView& tensor : tensors) {
    if (!is_aligned(tensor.view, element_size_bytes(tensor.dtype))) {
      return "a tensor does not lie at multiples of 16 bytes, by its pointer or strides";
    }
  }
  return nullptr;
}

}  // namespace transformer_engine::cuda
