// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <transformer_engine/error.h>

#include "bind.h"
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

// Of a problem with these sizes, as a backward would follow.
std::optional<std::string> fused_refusal(const FusedAttention& self, const py::dict& sizes,
                                         at::ScalarType dtype, int device_index, bool is_packed) {
  AttentionProblem problem = self.problem();
  const auto size = [&](const char* name) { return py::cast<int64_t>(sizes[name]); };
  problem.batch = size("batch");
  problem.heads = size("heads");
  problem.groups = size("groups");
  problem.queries = size("queries");
  problem.keys = size("keys");
  problem.size_qk = size("size_qk");
  problem.size_v = size("size_v");
  problem.dtype = dtype_of(dtype);
  problem.is_packed = is_packed;
  problem.tokens_q = problem.batch * problem.queries;
  problem.tokens_kv = problem.batch * problem.keys;
  problem.has_statistics = true;
  const Context context{.device = DeviceType::kCUDA, .device_index = device_index};
  const char* const reason = attention_refusal(problem, context);
  return reason == nullptr ? std::nullopt : std::optional<std::string>(reason);
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
}

}  // namespace transformer_engine::pytorch
