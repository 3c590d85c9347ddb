// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <transformer_engine/error.h>

#include "bind.h"
#include "quantizer.h"

namespace py = pybind11;

namespace transformer_engine::pytorch {

namespace {

using OptionalTensor = std::optional<at::Tensor>;

DType checked_fp8_dtype(int value) {
  const auto dtype = static_cast<DType>(value);
  TE_CHECK(is_fp8(dtype), "quantizer: fp8_dtype is ", value,
           "; kFloat8E4M3 (7) or kFloat8E5M2 (8) is required.");
  return dtype;
}

void check_input(const at::Tensor& input) {
  TE_CHECK_TYPE(is_high_precision(dtype_of(input.scalar_type())), "quantize: tensor has dtype ",
                at::toString(input.scalar_type()), "; float32, float16 or bfloat16 is required.");
}

py::tuple quantize(Float8QuantizerBase& quantizer, const at::Tensor& tensor) {
  check_input(tensor);
  const at::Tensor input = tensor.detach().contiguous();
  const Operand operand = quantizer.make_operand(input.sizes(), input);
  Float8QuantizerBase::Destination destination{
      .data = operand.rowwise.data, .transpose = {}, .scale_inv = operand.rowwise.scale_inv};
  if (quantizer.columnwise_usage) {
    destination.transpose =
        at::empty({operand.sizes.cols, operand.sizes.rows}, operand.rowwise.data.options());
  }
  if (!quantizer.rowwise_usage) {
    destination.data = at::Tensor();
  }
  quantizer.update(input, destination);
  const auto optional = [](const at::Tensor& t) { return t.defined() ? py::cast(t) : py::none(); };
  return py::make_tuple(optional(destination.data), optional(destination.transpose),
                        destination.scale_inv);
}

void update(Float8QuantizerBase& quantizer, const at::Tensor& tensor, const OptionalTensor& data,
            const OptionalTensor& transpose, const at::Tensor& scale_inv,
            const OptionalTensor& noop) {
  check_input(tensor);
  Float8QuantizerBase::Destination destination{.data = data.value_or(at::Tensor()),
                                               .transpose = transpose.value_or(at::Tensor()),
                                               .scale_inv = scale_inv};
  if (noop.has_value()) {
    destination.noop = float_data(*noop, "quantize: noop");
  }
  quantizer.update(tensor.detach().contiguous(), destination);
}

void check_scale(const at::Tensor& tensor, const char* name) {
  TE_CHECK(tensor.numel() == 1 && tensor.scalar_type() == at::kFloat, "quantizer: ", name,
           " has shape ", tensor.sizes(), " and dtype ", at::toString(tensor.scalar_type()),
           "; one float32 value is required.");
}

}  // namespace

void bind_quantizer(py::module_& m) {
  py::class_<Quantizer, std::shared_ptr<Quantizer>>(m, "QuantizerCore",
                                                    "What to compute to quantize one tensor.")
      .def_readwrite("rowwise_usage", &Quantizer::rowwise_usage)
      .def_readwrite("columnwise_usage", &Quantizer::columnwise_usage)
      .def_readwrite("internal", &Quantizer::internal)
      .def_readwrite("optimize_for_gemm", &Quantizer::optimize_for_gemm)
      .def_property(
          "fp8_dtype", [](const Quantizer& self) { return static_cast<int>(self.dtype); },
          [](Quantizer& self, int value) { self.dtype = checked_fp8_dtype(value); })
      .def(
          "calibrate",
          [](Quantizer& self, const at::Tensor& tensor) {
            check_input(tensor);
            self.calibrate(tensor.detach().contiguous());
          },
          py::arg("tensor"), "Observe the tensor's amax without quantizing.");

  py::class_<Float8QuantizerBase, Quantizer, std::shared_ptr<Float8QuantizerBase>>(
      m, "Float8QuantizerBaseCore")
      .def("quantize", &quantize, py::arg("tensor"),
           "(data | None, transpose | None, scale_inv): uint8 of the input's shape, uint8 [cols, "
           "rows], float32 [1].")
      .def("update", &update, py::arg("tensor"), py::arg("data"), py::arg("transpose"),
           py::arg("scale_inv"), py::arg("noop") = py::none(),
           "Quantize into existing buffers; a noop tensor that is not 0 leaves them.");

  py::class_<Float8Quantizer, Float8QuantizerBase, std::shared_ptr<Float8Quantizer>>(
      m, "Float8QuantizerCore")
      .def(py::init(
               [](at::Tensor scale, at::Tensor amax, int fp8_dtype, bool rowwise, bool columnwise) {
                 check_scale(scale, "scale");
                 check_scale(amax, "amax");
                 auto self = std::make_shared<Float8Quantizer>(std::move(scale), std::move(amax),
                                                               checked_fp8_dtype(fp8_dtype));
                 self->rowwise_usage = rowwise;
                 self->columnwise_usage = columnwise;
                 return self;
               }),
           py::arg("scale"), py::arg("amax"), py::arg("fp8_dtype"), py::arg("rowwise") = true,
           py::arg("columnwise") = true)
      .def_property(
          "scale", [](const Float8Quantizer& self) { return self.scale; },
          [](Float8Quantizer& self, at::Tensor value) {
            check_scale(value, "scale");
            self.scale = std::move(value);
          })
      .def_property(
          "amax", [](const Float8Quantizer& self) { return self.amax; },
          [](Float8Quantizer& self, at::Tensor value) {
            check_scale(value, "amax");
            self.amax = std::move(value);
          });

  using Current = Float8CurrentScalingQuantizer;
  py::class_<Current, Float8QuantizerBase, std::shared_ptr<Current>>(
      m, "Float8CurrentScalingQuantizerCore")
      .def(py::init([](int fp8_dtype, bool rowwise, bool columnwise, bool force_pow_2_scales,
                       float amax_epsilon) {
             auto self = std::make_shared<Current>(checked_fp8_dtype(fp8_dtype), force_pow_2_scales,
                                                   amax_epsilon);
             self->rowwise_usage = rowwise;
             self->columnwise_usage = columnwise;
             return self;
           }),
           py::arg("fp8_dtype"), py::arg("rowwise") = true, py::arg("columnwise") = true,
           py::arg("force_pow_2_scales") = false, py::arg("amax_epsilon") = 0.0F)
      .def_readwrite("force_pow_2_scales", &Current::force_pow_2_scales)
      .def_readwrite("amax_epsilon", &Current::amax_epsilon);
  bind_block_quantizers(m);
}

}  // namespace transformer_engine::pytorch
