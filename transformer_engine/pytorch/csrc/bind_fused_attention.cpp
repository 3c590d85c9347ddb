// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <transformer_engine/error.h>

#include "bind.h"
#include "steps/float8_attention.h"
#include "steps/fused_attention.h"
#include "steps/python_call.h"
#include "views.h"

namespace py = pybind11;

namespace transformer_engine::pytorch {

namespace {

AttentionFormat format_of(const std::string& name) {
  TE_CHECK(name == "sbhd" || name == "bshd" || name == "thd", "FusedAttention: qkv_format is '",
           name, "'; sbhd, bshd or thd is required.");
  return name == "sbhd"   ? AttentionFormat::kSbhd
         : name == "bshd" ? AttentionFormat::kBshd
                          : AttentionFormat::kThd;
}

at::Tensor tensor_or_nothing(const py::handle& object) {
  return object.is_none() ? at::Tensor() : py::cast<at::Tensor>(object);
}

// None where native code cannot read a tensor.
py::object run_fused(FusedAttention& self, const py::args& args) {
  TE_CHECK_TYPE(args.size() == 10, "FusedAttention() takes 10 arguments but ", args.size(),
                " were given");
  static constexpr const char* kNames[] = {"query", "key", "value"};
  for (size_t i = 0; i < 3; ++i) {
    if (are_operators_watched() || native_tensor(args[i].ptr(), kNames[i]) == nullptr) {
      return py::none();
    }
  }
  FusedAttention::Call call;
  call.q = py::cast<at::Tensor>(args[0]);
  call.k = py::cast<at::Tensor>(args[1]);
  call.v = py::cast<at::Tensor>(args[2]);
  call.cu_q = tensor_or_nothing(args[3]);
  call.cu_kv = tensor_or_nothing(args[4]);
  call.cu_q_padded = tensor_or_nothing(args[5]);
  call.cu_kv_padded = tensor_or_nothing(args[6]);
  call.bias = tensor_or_nothing(args[7]);
  call.queries = py::cast<int64_t>(args[8]);
  call.keys = py::cast<int64_t>(args[9]);
  auto output = self.run(call);
  return output.has_value() ? py::cast(*output) : py::none();
}

void read_sizes(AttentionProblem& problem, const py::dict& sizes) {
  const auto size = [&](const char* name) { return py::cast<int64_t>(sizes[name]); };
  problem.batch = size("batch");
  problem.heads = size("heads");
  problem.groups = size("groups");
  problem.queries = size("queries");
  problem.keys = size("keys");
  problem.size_qk = size("size_qk");
  problem.size_v = size("size_v");
}

std::optional<std::string> as_optional(const char* reason) {
  return reason == nullptr ? std::nullopt : std::optional<std::string>(reason);
}

// Of a problem with these sizes, as a backward would follow.
std::optional<std::string> fused_refusal(const FusedAttention& self, const py::dict& sizes,
                                         at::ScalarType dtype, int device_index, bool is_packed) {
  AttentionProblem problem = self.problem();
  read_sizes(problem, sizes);
  problem.dtype = dtype_of(dtype);
  problem.is_packed = is_packed;
  problem.tokens_q = problem.batch * problem.queries;
  problem.tokens_kv = problem.batch * problem.keys;
  problem.has_statistics = true;
  return as_optional(
      attention_refusal(problem, {.device = DeviceType::kCUDA, .device_index = device_index}));
}

// ---- FP8

Float8Attention make_float8(const std::string& qkv_format, double scale, int64_t left,
                            int64_t right, bool is_bottom_right, bool has_lengths,
                            bool is_deterministic, const std::array<int, 5>& dtypes) {
  TE_CHECK(qkv_format == "sbhd" || qkv_format == "bshd", "Float8Attention: qkv_format is '",
           qkv_format, "'; sbhd or bshd is required.");
  AttentionProblem problem;
  problem.dtype = static_cast<DType>(dtypes[0]);
  problem.scale = static_cast<float>(scale);
  problem.left = left;
  problem.right = right;
  problem.is_bottom_right = is_bottom_right;
  problem.has_lengths = has_lengths;
  problem.is_deterministic = is_deterministic;
  const AttentionFp8Types types{.o = static_cast<DType>(dtypes[1]),
                                .saved_o = static_cast<DType>(dtypes[2]),
                                .grad_o = static_cast<DType>(dtypes[3]),
                                .grads = static_cast<DType>(dtypes[4])};
  AttentionProblem smallest = problem;
  smallest.groups = 1;
  (void)attention_fp8_refusal(smallest, types, {});  // its checks of types and numbers
  return Float8Attention(format_of(qkv_format), problem, types);
}

// False where native code cannot read the tensors, which is said.
bool reads_float8(Float8Attention& self, const py::args& args, size_t count, const char* name) {
  TE_CHECK_TYPE(args.size() == count, "Float8Attention.", name, "() takes ", count,
                " arguments but ", args.size(), " were given");
  static constexpr const char* kNames[] = {"q", "k", "v"};
  for (size_t i = 0; i < 3; ++i) {
    if (are_operators_watched() || native_tensor(args[i].ptr(), kNames[i]) == nullptr) {
      self.set_reason("operators are watched, or a tensor has no memory that native code can read");
      return false;
    }
  }
  return true;
}

// From the next arguments, in their order.
class NextTensor {
 public:
  explicit NextTensor(const py::args& args) : args_(args) {}
  void operator()(std::initializer_list<at::Tensor*> tensors) {
    for (at::Tensor* const tensor : tensors) {
      *tensor = tensor_or_nothing(args_[next_++]);
    }
  }

 private:
  const py::args& args_;
  size_t next_ = 0;
};

py::object float8_forward(Float8Attention& self, const py::args& args) {
  if (!reads_float8(self, args, 12, "forward")) {
    return py::none();
  }
  Float8Attention::ForwardCall call;
  Float8Attention::Inputs& in = call.inputs;
  NextTensor next(args);
  next({&in.q, &in.k, &in.v, &in.cu_q, &in.cu_kv, &in.descale_q, &in.descale_k, &in.descale_v,
        &in.scale_s, &in.descale_s, &call.scale_o});
  call.is_training = py::cast<bool>(args[11]);
  const auto result = self.forward(call);
  if (!result.has_value()) {
    return py::none();
  }
  const py::object statistics =
      result->statistics.defined() ? py::cast(result->statistics) : py::none();
  return py::make_tuple(result->o, statistics, result->amax_s, result->amax_o);
}

py::object float8_backward(Float8Attention& self, const py::args& args) {
  if (!reads_float8(self, args, 20, "backward")) {
    return py::none();
  }
  Float8Attention::BackwardCall call;
  Float8Attention::Inputs& in = call.inputs;
  NextTensor next(args);
  next({&in.q,
        &in.k,
        &in.v,
        &call.o,
        &call.grad_o,
        &call.statistics,
        &in.cu_q,
        &in.cu_kv,
        &in.descale_q,
        &in.descale_k,
        &in.descale_v,
        &call.descale_o,
        &call.descale_grad_o,
        &in.scale_s,
        &in.descale_s,
        &call.scale_dp,
        &call.descale_dp,
        &call.scale_dq,
        &call.scale_dk,
        &call.scale_dv});
  const auto result = self.backward(call);
  if (!result.has_value()) {
    return py::none();
  }
  const auto& amax = result->amax;
  return py::make_tuple(result->dq, result->dk, result->dv, amax[0], amax[1], amax[2], amax[3]);
}

std::optional<std::string> float8_refusal(const Float8Attention& self, const py::dict& sizes,
                                          int device_index, bool is_training) {
  AttentionProblem problem = self.problem();
  read_sizes(problem, sizes);
  problem.has_statistics = is_training;
  return as_optional(attention_fp8_refusal(
      problem, self.types(), {.device = DeviceType::kCUDA, .device_index = device_index}));
}

void bind_float8_attention(py::module_& m) {
  py::class_<Float8Attention>(m, "Float8Attention",
                              "FP8 attention by cuDNN, one scale per tensor; records nothing.")
      .def(py::init([](const std::string& qkv_format, double scale, int64_t left, int64_t right,
                       bool is_bottom_right, bool has_lengths, bool is_deterministic, int dtype,
                       int out_dtype, int saved_out_dtype, int grad_out_dtype, int grad_dtype) {
             return make_float8(qkv_format, scale, left, right, is_bottom_right, has_lengths,
                                is_deterministic,
                                {dtype, out_dtype, saved_out_dtype, grad_out_dtype, grad_dtype});
           }),
           py::kw_only(), py::arg("qkv_format"), py::arg("scale"), py::arg("left"),
           py::arg("right"), py::arg("is_bottom_right"), py::arg("has_lengths"),
           py::arg("is_deterministic"), py::arg("dtype"), py::arg("out_dtype"),
           py::arg("saved_out_dtype"), py::arg("grad_out_dtype"), py::arg("grad_dtype"))
      .def("forward", &float8_forward,
           "(q, k, v, cu_q, cu_kv, descale_q, descale_k, descale_v, scale_s, descale_s, scale_o, "
           "is_training): o, statistics, amax_s, amax_o; None where it is refused.")
      .def("backward", &float8_backward,
           "(q, k, v, o, grad_o, statistics, cu_q, cu_kv, descale_q, descale_k, descale_v, "
           "descale_o, descale_grad_o, scale_s, descale_s, scale_dp, descale_dp, scale_dq, "
           "scale_dk, scale_dv): dq, dk, dv, amax_dq, amax_dk, amax_dv, amax_dp; None where it is "
           "refused.")
      .def("refusal", &float8_refusal, py::arg("sizes"), py::arg("device_index"),
           py::arg("is_training"), "Why a problem of these sizes is refused, or None.")
      .def_property_readonly("reason", &Float8Attention::reason,
                             "Why the last call gave None; empty when it ran.");
}

}  // namespace

void bind_fused_attention(py::module_& m) {
  py::class_<FusedAttention>(m, "FusedAttention", "Attention by cuDNN, as one autograd node.")
      .def(py::init([](const std::string& qkv_format, double scale, double dropout, int64_t left,
                       int64_t right, bool is_bottom_right, bool has_lengths, bool has_bias,
                       bool is_deterministic) {
             AttentionProblem problem;
             problem.scale = static_cast<float>(scale);
             problem.dropout = static_cast<float>(dropout);
             problem.left = left;
             problem.right = right;
             problem.is_bottom_right = is_bottom_right;
             problem.has_lengths = has_lengths;
             problem.has_bias = has_bias;
             problem.is_deterministic = is_deterministic;
             return FusedAttention(format_of(qkv_format), problem);
           }),
           py::kw_only(), py::arg("qkv_format"), py::arg("scale"), py::arg("dropout"),
           py::arg("left"), py::arg("right"), py::arg("is_bottom_right"), py::arg("has_lengths"),
           py::arg("has_bias"), py::arg("is_deterministic"))
      .def("__call__", &run_fused,
           "(query, key, value, cu_q, cu_kv, cu_q_padded, cu_kv_padded, bias, queries, keys): the "
           "output with heads flattened; None where no implementation takes the problem.")
      .def("refusal", &fused_refusal, py::arg("sizes"), py::arg("dtype"), py::arg("device_index"),
           py::arg("is_packed"), "Why a problem of these sizes is refused, or None.")
      .def_property_readonly("reason", &FusedAttention::reason,
                             "Why the last call gave None; empty when it ran.");
  bind_float8_attention(m);
}

}  // namespace transformer_engine::pytorch
