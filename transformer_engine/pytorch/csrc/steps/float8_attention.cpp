// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "steps/float8_attention.h"

#include <pybind11/pybind11.h>
#include <transformer_engine/error.h>

#include "allocate.h"
#include "steps/node_support.h"
#include "views.h"

namespace py = pybind11;

namespace transformer_engine::pytorch {

namespace {

constexpr char kClass[] = "Float8Attention";

// ---- checks

void check_heads(const char* name, const at::Tensor& x, DType dtype, const at::Tensor& q) {
  TE_CHECK_TYPE(x.defined() && x.scalar_type() == scalar_type_of(dtype), kClass, ": ", name,
                " has dtype ", x.defined() ? at::toString(x.scalar_type()) : "None", "; ",
                at::toString(scalar_type_of(dtype)), " is required for elements of type ",
                dtype_name(dtype), ".");
  TE_CHECK(x.dim() == 4, kClass, ": ", name, " has shape ", x.sizes(),
           "; four dimensions (tokens, sequences, heads, size) are required.");
  TE_CHECK(x.device() == q.device(), kClass, ": ", name, " is on ", x.device().str(), " and q on ",
           q.device().str(), "; one device is required.");
}

void check_sizes(const char* name, const at::Tensor& x, at::IntArrayRef sizes) {
  TE_CHECK(x.sizes() == sizes, kClass, ": ", name, " has shape ", x.sizes(), "; ", sizes,
           " is required.");
}

void check_inputs(const Float8Attention::Inputs& inputs, DType dtype) {
  const at::Tensor& q = inputs.q;
  check_heads("q", q, dtype, q);
  check_heads("k", inputs.k, dtype, q);
  check_heads("v", inputs.v, dtype, q);
  const auto like = [](const at::Tensor& x, const at::Tensor& y) {
    return x.size(0) == y.size(0) && x.size(1) == y.size(1) && x.size(2) == y.size(2);
  };
  TE_CHECK(inputs.k.size(3) == q.size(3) && like(inputs.k, inputs.v), kClass,
           ": q, k and v have shapes ", q.sizes(), ", ", inputs.k.sizes(), " and ",
           inputs.v.sizes(),
           "; heads of one size in q and k, and tokens and heads alike in k and v are required.");
}

void check_problem(const Float8Attention::Inputs& inputs, const AttentionProblem& problem,
                   AttentionFormat format) {
  const int64_t batch = inputs.k.size(format == AttentionFormat::kSbhd ? 1 : 0);
  TE_CHECK(batch == problem.batch, kClass, ": q has ", problem.batch, " sequences and k ", batch,
           "; as many are required.");
  check_cumulative(kClass, inputs.cu_q, batch, inputs.q);
  check_cumulative(kClass, inputs.cu_kv, batch, inputs.q);
  TE_CHECK(!problem.has_lengths || (inputs.cu_q.defined() && inputs.cu_kv.defined()), kClass,
           ": lengths are missing; cu_q and cu_kv are required.");
}

// Null where the type of its tensor needs none.
const float* scale_data(const char* name, const at::Tensor& scale, const at::Tensor& q,
                        DType dtype = DType::kFloat8E4M3) {
  if (!is_fp8(dtype)) {
    return nullptr;
  }
  TE_CHECK(scale.defined(), kClass, ": ", name,
           " is None; a float32 tensor of one element is required.");
  TE_CHECK(scale.scalar_type() == at::ScalarType::Float && scale.numel() == 1 &&
               scale.device() == q.device(),
           kClass, ": ", name, " has dtype ", at::toString(scale.scalar_type()), ", shape ",
           scale.sizes(), " and device ", scale.device().str(),
           "; a float32 tensor of one element on ", q.device().str(), " is required.");
  return static_cast<const float*>(scale.data_ptr());
}

at::Tensor new_heads(const at::Tensor& like, int64_t size, DType dtype) {
  return new_tensor({like.size(0), like.size(1), like.size(2), size}, scalar_type_of(dtype), like);
}

// Runs `op`; why it did not, or nothing.
template <typename Args>
std::string run_or_reason(void (*op)(const Args&, const Context&), const Args& args,
                          const Context& context) {
  try {
    op(args, context);
  } catch (const NotImplementedError& error) {
    return error.what();
  }
  return {};
}

Float8Attention::Inputs as_readable(Float8Attention::Inputs inputs) {
  for (at::Tensor* const x : {&inputs.q, &inputs.k, &inputs.v}) {
    *x = readable(*x);
  }
  return inputs;
}

}  // namespace

AttentionProblem Float8Attention::problem_of(const Inputs& inputs) const {
  AttentionProblem problem = problem_;
  set_sizes(problem, format_, inputs.q, inputs.k, inputs.v);
  check_problem(inputs, problem, format_);
  return problem;
}

AttentionInputs Float8Attention::inputs_of(const Inputs& inputs) const {
  AttentionInputs views;
  views.q = heads_view(inputs.q, format_);
  views.k = heads_view(inputs.k, format_);
  views.v = heads_view(inputs.v, format_);
  views.sequences.cu_q = lengths_data(inputs.cu_q);
  views.sequences.cu_kv = lengths_data(inputs.cu_kv);
  return views;
}

// An empty tensor has no plan, nor a number of groups.
bool Float8Attention::is_empty(const Inputs& inputs) {
  const bool is_empty = inputs.q.numel() == 0 || inputs.k.numel() == 0 || inputs.v.numel() == 0;
  reason_ = is_empty ? "a tensor is empty" : "";
  return is_empty;
}

AttentionFp8ForwardArgs Float8Attention::forward_args(const ForwardCall& call,
                                                      const AttentionProblem& problem,
                                                      const ForwardResult& result) const {
  const Inputs& inputs = call.inputs;
  return {.problem = problem,
          .types = types_,
          .inputs = inputs_of(inputs),
          .o = heads_view(result.o, format_),
          .statistics = float_data(result.statistics, "statistics"),
          .descale_q = scale_data("descale_q", inputs.descale_q, inputs.q),
          .descale_k = scale_data("descale_k", inputs.descale_k, inputs.q),
          .descale_v = scale_data("descale_v", inputs.descale_v, inputs.q),
          .scale_s = scale_data("scale_s", inputs.scale_s, inputs.q),
          .descale_s = scale_data("descale_s", inputs.descale_s, inputs.q),
          .scale_o = scale_data("scale_o", call.scale_o, inputs.q, types_.o),
          .amax = float_data(result.amax_s, "amax")};
}

// Of what the backward of this call will be given. Also makes its plan.
std::string Float8Attention::refusal_of_backward(const ForwardCall& call,
                                                 const AttentionFp8ForwardArgs& args,
                                                 const Context& context) const {
  AttentionFp8BackwardArgs backward;
  backward.problem = args.problem;
  backward.types = types_;
  backward.inputs = args.inputs;
  backward.o = args.o;  // contiguous, whatever its type
  backward.o.data = nullptr;
  backward.grad_o = backward.o;
  backward.grad_q = future_view(call.inputs.q, format_);
  backward.grad_k = future_view(call.inputs.k, format_);
  backward.grad_v = future_view(call.inputs.v, format_);
  const char* const refusal = attention_fp8_backward_refusal(backward, context);
  return refusal == nullptr ? "" : refusal;
}

std::optional<Float8Attention::ForwardResult> Float8Attention::forward(const ForwardCall& given) {
  check_inputs(given.inputs, problem_.dtype);
  if (is_empty(given.inputs)) {
    return std::nullopt;
  }
  AttentionProblem problem = problem_of(given.inputs);
  problem.has_statistics = given.is_training;
  const py::gil_scoped_release no_gil;
  const PlainOperators plain;
  ForwardCall call = given;
  call.inputs = as_readable(given.inputs);
  const at::Tensor& q = call.inputs.q;
  ForwardResult result;
  result.o = new_heads(q, problem.size_v, types_.o);
  if (problem.has_statistics) {
    result.statistics =
        new_tensor({problem.batch, problem.heads, problem.queries, 1}, at::ScalarType::Float, q);
  }
  const at::Tensor amax = new_tensor({2}, at::ScalarType::Float, q);
  result.amax_s = amax.narrow(0, 0, 1);
  result.amax_o = amax.narrow(0, 1, 1);
  const AttentionFp8ForwardArgs args = forward_args(call, problem, result);
  const Context context = context_for(q);
  if (problem.has_statistics) {
    reason_ = refusal_of_backward(call, args, context);
  }
  if (reason_.empty()) {
    reason_ = run_or_reason(&attention_fp8_forward, args, context);
  }
  return reason_.empty() ? std::optional(std::move(result)) : std::nullopt;
}

AttentionFp8BackwardArgs Float8Attention::backward_args(const BackwardCall& call,
                                                        const AttentionProblem& problem,
                                                        const BackwardResult& result) const {
  const Inputs& inputs = call.inputs;
  const at::Tensor& q = inputs.q;
  return {.problem = problem,
          .types = types_,
          .inputs = inputs_of(inputs),
          .o = heads_view(call.o, format_),
          .grad_o = heads_view(call.grad_o, format_),
          .statistics = float_data(call.statistics, "statistics"),
          .grad_q = heads_view(result.dq, format_),
          .grad_k = heads_view(result.dk, format_),
          .grad_v = heads_view(result.dv, format_),
          .descale_q = scale_data("descale_q", inputs.descale_q, q),
          .descale_k = scale_data("descale_k", inputs.descale_k, q),
          .descale_v = scale_data("descale_v", inputs.descale_v, q),
          .descale_o = scale_data("descale_o", call.descale_o, q, types_.saved_o),
          .descale_grad_o = scale_data("descale_grad_o", call.descale_grad_o, q),
          .scale_s = scale_data("scale_s", inputs.scale_s, q),
          .descale_s = scale_data("descale_s", inputs.descale_s, q),
          .scale_dp = scale_data("scale_dp", call.scale_dp, q),
          .descale_dp = scale_data("descale_dp", call.descale_dp, q),
          .scale_grad_q = scale_data("scale_dq", call.scale_dq, q, types_.grads),
          .scale_grad_k = scale_data("scale_dk", call.scale_dk, q, types_.grads),
          .scale_grad_v = scale_data("scale_dv", call.scale_dv, q, types_.grads),
          .amax = float_data(result.amax[0], "amax")};
}

std::optional<Float8Attention::BackwardResult> Float8Attention::backward(
    const BackwardCall& given) {
  check_inputs(given.inputs, problem_.dtype);
  const at::Tensor& given_q = given.inputs.q;
  check_heads("o", given.o, types_.saved_o, given_q);
  check_heads("grad_o", given.grad_o, types_.grad_o, given_q);
  if (is_empty(given.inputs)) {
    return std::nullopt;
  }
  AttentionProblem problem = problem_of(given.inputs);
  problem.has_statistics = true;
  const std::array<int64_t, 4> sizes = {given_q.size(0), given_q.size(1), given_q.size(2),
                                        problem.size_v};
  check_sizes("o", given.o, sizes);
  check_sizes("grad_o", given.grad_o, sizes);
  const std::array<int64_t, 4> rows = {problem.batch, problem.heads, problem.queries, 1};
  TE_CHECK(given.statistics.defined() && given.statistics.device() == given_q.device(), kClass,
           ": statistics are missing or on another device; those of the forward are required.");
  check_sizes("statistics", given.statistics, rows);
  const py::gil_scoped_release no_gil;
  const PlainOperators plain;
  BackwardCall call = given;
  call.inputs = as_readable(given.inputs);
  // As the plan was made for, before the forward.
  call.o = readable(given.o.contiguous());
  call.grad_o = readable(given.grad_o.contiguous());
  call.statistics = given.statistics.contiguous();
  BackwardResult result;
  result.dq = new_heads(given_q, problem.size_qk, types_.grads);
  result.dk = new_heads(given.inputs.k, problem.size_qk, types_.grads);
  result.dv = new_heads(given.inputs.v, problem.size_v, types_.grads);
  const at::Tensor amax = new_tensor({4}, at::ScalarType::Float, given_q);
  for (int64_t i = 0; i < 4; ++i) {
    result.amax[static_cast<size_t>(i)] = amax.narrow(0, i, 1);
  }
  reason_ = run_or_reason(&attention_fp8_backward, backward_args(call, problem, result),
                          context_for(given_q));
  return reason_.empty() ? std::optional(std::move(result)) : std::nullopt;
}

}  // namespace transformer_engine::pytorch
