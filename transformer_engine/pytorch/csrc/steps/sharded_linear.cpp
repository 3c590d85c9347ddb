// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "steps/sharded_linear.h"

namespace transformer_engine::pytorch {

namespace {

// The type in which ranks add their parts of a product that reads `operand`. On CPUs FP32: the sum
// is then rounded once. On GPUs that of the activations, which halves what is sent.
at::ScalarType partial_type(const Operand& operand, at::ScalarType dtype) {
  return operand.anchor().is_cpu() ? at::kFloat : dtype;
}

// The finished sum over ranks as `dtype`, with what is added once.
at::Tensor finish_sum(Pending& sum, const at::Tensor& addend, at::ScalarType dtype) {
  const at::Tensor& total = sum.wait();
  if (addend.defined()) {
    total.add_(addend);
  }
  return as_dtype(total, dtype);
}

}  // namespace

at::Tensor layer_output(const Sharding& sharding, const Operand& input, const Operand& weight,
                        const at::Tensor& bias, const OutputRequest& request) {
  at::Tensor output;
  if (sharding.sums_output()) {
    Pending sum = start_sum(
        sharding, fprop(input, weight, {}, partial_type(input, request.dtype), request.is_fast));
    output = finish_sum(sum, bias, request.dtype);
  } else {
    output = fprop(input, weight, bias, request.dtype, request.is_fast);
  }
  return request.sizes.size() == 2 ? output : output.view(request.sizes);
}

at::Tensor PendingDgrad::wait() {
  return sum_.is_defined() ? finish_sum(sum_, addend_, dtype_) : std::move(gradient_);
}

PendingDgrad start_dgrad(const Sharding& sharding, const Operand& grad_output,
                         const Operand& weight, at::ScalarType dtype, const DgradAddend& addend,
                         bool is_fast) {
  // The product may overwrite what it adds to.
  if (!sharding.sums_grad_input()) {
    return dgrad(grad_output, weight, dtype,
                 addend.tensor.defined() ? addend.tensor.clone() : at::Tensor(), is_fast);
  }
  const at::ScalarType type = partial_type(grad_output, dtype);
  at::Tensor partial_addend;
  if (addend.is_whole && addend.tensor.defined()) {
    partial_addend = addend.tensor.to(type, /*non_blocking=*/false, /*copy=*/true);
  }
  return {start_sum(sharding, dgrad(grad_output, weight, type, partial_addend, is_fast)),
          addend.is_whole ? at::Tensor() : addend.tensor, dtype};
}

ShardedCast input_cast(const CallState& state, const LinearSpec& spec, int64_t rows,
                       bool needs_wgrad, bool gathers_plain) {
  return {spec.sharding.gathers_input() ? spec.sharding.group.get() : nullptr,
          state.is_quantized ? &state.quantizers->input(spec.gemm) : nullptr, rows,
          input_usages(state, needs_wgrad), gathers_plain};
}

LayerInput gather_input(const ShardedCast& cast, const CallState& state, const LinearSpec& spec,
                        Operand local, bool needs_wgrad) {
  LayerInput input;
  if (!cast.is_sharded()) {
    input.operand = std::move(local);
    return input;
  }
  if (cast.joins_copies()) {
    input.operand = cast.gather(local.rowwise_alone());
    input.shard = std::move(local);
    return input;
  }
  input.gathered = PendingOperand(local, *spec.sharding.group).wait().plain();
  input.operand = cast.quantize_whole(input.gathered);
  // Backward quantizes all rows again where that gives the same copies.
  input.keeps_plain = state.quantizes_backward() && needs_wgrad &&
                      state.quantizers->input(spec.gemm).is_requantization_safe();
  if (!state.is_quantized || input.keeps_plain ||
      state.backward_mode() == BackwardMode::kHighPrecision) {
    input.shard = std::move(local);
  }
  return input;
}

}  // namespace transformer_engine::pytorch
