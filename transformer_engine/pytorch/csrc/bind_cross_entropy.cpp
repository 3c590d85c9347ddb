// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The three ops of cross entropy. Tensors are contiguous (cross_entropy.py sees to it).
#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>
#include <transformer_engine/cross_entropy.h>
#include <transformer_engine/error.h>
#include <transformer_engine/report.h>

#include <tuple>

#include "allocate.h"
#include "bind.h"
#include "output.h"
#include "steps/python_call.h"
#include "views.h"

namespace transformer_engine::pytorch {

namespace {

namespace py = pybind11;

// Ids that are ignored, and where the rank's columns lie: (ignored, first, vocabulary).
using Vocabulary = std::tuple<int64_t, int64_t, int64_t>;

CrossEntropyTargets targets_of(const char* op, const at::Tensor& target, int64_t rows,
                               const Vocabulary& vocabulary) {
  TE_CHECK_TYPE(target.scalar_type() == at::kLong, op, ": target has dtype ",
                at::toString(target.scalar_type()), "; int64 is required.");
  TE_CHECK(target.is_contiguous() && target.numel() == rows, op, ": target has shape ",
           target.sizes(), " and strides ", target.strides(), "; ", rows,
           " contiguous ids are required.");
  return {.ids = static_cast<const int64_t*>(target.data_ptr()),
          .ignored = std::get<0>(vocabulary),
          .first = std::get<1>(vocabulary),
          .vocabulary = std::get<2>(vocabulary)};
}

at::Tensor statistics(const at::Tensor& input, const at::Tensor& target,
                      const Vocabulary& vocabulary) {
  constexpr char kOp[] = "cross_entropy_statistics";
  check_same_device(kOp, "target", target, input);
  const TensorView logits = matrix_view(input);
  const at::Tensor result = new_tensor({logits.rows, kCrossEntropyStatistics}, at::kFloat, input);
  cross_entropy_statistics({.input = logits,
                            .statistics = matrix_view(result),
                            .targets = targets_of(kOp, target, logits.rows, vocabulary)},
                           context_for(input));
  return result;
}

// (loss [rows] or [1], softmax [rows, 2], weight [1])
py::tuple loss(const at::Tensor& gathered, const at::Tensor& target, const Vocabulary& vocabulary,
               float label_smoothing, bool is_mean) {
  constexpr char kOp[] = "cross_entropy_loss";
  check_same_device(kOp, "target", target, gathered);
  const int64_t rows = target.numel();
  const at::Tensor losses = new_tensor({is_mean ? 1 : rows}, at::kFloat, gathered);
  const at::Tensor softmax = new_tensor({rows, 2}, at::kFloat, gathered);
  const at::Tensor weight = new_tensor({1}, at::kFloat, gathered);
  cross_entropy_loss({.statistics = matrix_view(gathered),
                      .loss = vector_view(losses),
                      .softmax = matrix_view(softmax),
                      .weight = vector_view(weight),
                      .targets = targets_of(kOp, target, rows, vocabulary),
                      .label_smoothing = label_smoothing,
                      .is_mean = is_mean},
                     context_for(gathered));
  return py::make_tuple(losses, softmax, weight);
}

struct Saved {  // by the forward
  const at::Tensor& input;
  const at::Tensor& target;
  const at::Tensor& softmax;
  const at::Tensor& weight;
};

at::Tensor gradient(const at::Tensor& grad_output, const Saved& saved, const Vocabulary& vocabulary,
                    float label_smoothing, bool overwrites) {
  constexpr char kOp[] = "cross_entropy_backward";
  const at::Tensor& input = saved.input;
  const at::Tensor given = contiguous_operand(kOp, "grad_output", grad_output, input);
  for (const auto& [name, tensor] :
       {std::pair{"target", &saved.target}, std::pair{"softmax", &saved.softmax},
        std::pair{"weight", &saved.weight}}) {
    check_same_device(kOp, name, *tensor, input);
  }
  const at::Tensor result =
      overwrites ? input.detach() : new_tensor(input.sizes(), input.scalar_type(), input);
  const TensorView logits = matrix_view(input);
  cross_entropy_backward({.input = logits,
                          .grad_output = vector_view(given),
                          .softmax = matrix_view(saved.softmax),
                          .weight = vector_view(saved.weight),
                          .grad_input = matrix_view(result),
                          .targets = targets_of(kOp, saved.target, logits.rows, vocabulary),
                          .label_smoothing = label_smoothing},
                         context_for(input));
  return result;
}

// Whether native code can read the tensor, outside of anything that watches operators.
bool is_native(py::handle object) {
  const at::Tensor* const tensor =
      are_operators_watched() ? nullptr : native_tensor(object.ptr(), "tensor");
  return tensor != nullptr && (tensor->is_cpu() || (tensor->is_cuda() && has_cuda_backend()));
}

}  // namespace

void bind_cross_entropy(py::module_& m) {
  m.def("is_native", &is_native, py::arg("tensor"),
        "Whether native code can read the tensor, and nothing watches operators.");
  m.def("cross_entropy_statistics", &statistics, py::arg("input"), py::arg("target"),
        py::arg("vocabulary"),
        "[rows, 4]: what this rank's logits contribute; vocabulary is (ignored id, first id of the "
        "rank, size).");
  m.def("cross_entropy_loss", &loss, py::arg("statistics"), py::arg("target"),
        py::arg("vocabulary"), py::arg("label_smoothing"), py::arg("is_mean"),
        "(loss, softmax, weight) from the statistics of all ranks, one after another.");
  m.def(
      "cross_entropy_backward",
      [](const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& target,
         const at::Tensor& softmax, const at::Tensor& weight, const Vocabulary& vocabulary,
         float label_smoothing, bool overwrites) {
        return gradient(grad_output, {input, target, softmax, weight}, vocabulary, label_smoothing,
                        overwrites);
      },
      py::arg("grad_output"), py::arg("input"), py::arg("target"), py::arg("softmax"),
      py::arg("weight"), py::arg("vocabulary"), py::arg("label_smoothing"), py::arg("overwrites"),
      "Gradient of the logits, written over them where `overwrites`.");
}

}  // namespace transformer_engine::pytorch
