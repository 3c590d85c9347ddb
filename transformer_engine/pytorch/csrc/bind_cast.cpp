// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Per-tensor FP8 casts for tests, benchmarks and Python code that handles bytes itself. FP8 types
// are given as values of DType; codes are stored as uint8.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <transformer_engine/cast.h>
#include <transformer_engine/error.h>

#include <optional>
#include <string>

#include "bind.h"
#include "views.h"

namespace transformer_engine::pytorch {

namespace {

namespace py = pybind11;
using OptionalTensor = std::optional<at::Tensor>;

DType fp8_dtype_from(const char* op, int value) {
  const auto dtype = static_cast<DType>(value);
  TE_CHECK_TYPE(is_fp8(dtype), op, ": fp8_dtype is ", value, "; ",
                static_cast<int>(DType::kFloat8E4M3), " (E4M3) or ",
                static_cast<int>(DType::kFloat8E5M2), " (E5M2) is required.");
  return dtype;
}

void check_device(const char* op, const char* name, const at::Tensor& tensor,
                  const at::Tensor& input) {
  TE_CHECK(tensor.device() == input.device(), op, ": ", name, " is on ", tensor.device().str(),
           ", the input on ", input.device().str(), "; one device is required.");
}

// Data of an FP32 tensor of `numel` elements on the input's device; null when absent.
float* float_operand(const char* op, const char* name, const OptionalTensor& tensor, int64_t numel,
                     const at::Tensor& input) {
  if (!tensor.has_value()) {
    return nullptr;
  }
  check_device(op, name, *tensor, input);
  TE_CHECK(tensor->numel() == numel && tensor->is_contiguous(), op, ": ", name, " has shape ",
           tensor->sizes(), " and strides ", tensor->strides(), "; ", numel,
           " contiguous elements are required.");
  // Memory that FSDP or a user has freed: a null pointer would stand for "no scale".
  TE_CHECK(numel == 0 || tensor->storage().nbytes() > 0, op, ": ", name, " of ", numel,
           " elements has no memory; allocated memory is required. Gather it before use.");
  return float_data(*tensor, concat(op, ": ", name).c_str());
}

// View of a tensor of codes; unwanted when absent.
TensorView codes_operand(const char* op, const char* name, const OptionalTensor& tensor,
                         DType fp8_dtype, const at::Tensor& input) {
  if (!tensor.has_value()) {
    return {};
  }
  check_device(op, name, *tensor, input);
  TE_CHECK_TYPE(tensor->element_size() == 1, op, ": ", name, " has dtype ",
                at::toString(tensor->scalar_type()), "; uint8 is required.");
  TE_CHECK(tensor->is_contiguous(), op, ": ", name, " has strides ", tensor->strides(),
           "; a contiguous tensor is required.");
  return matrix_view(*tensor, fp8_dtype);
}

struct QuantizeOperands {
  OptionalTensor scale, data, data_transpose, scale_inv, amax, noop;
};

OptionalTensor quantize_fp8(const at::Tensor& input, int fp8_dtype_value,
                            QuantizeOperands operands) {
  constexpr char kOp[] = "quantize_fp8";
  const DType fp8_dtype = fp8_dtype_from(kOp, fp8_dtype_value);
  const at::Tensor contiguous = input.contiguous();
  if (!operands.data.has_value() && !operands.data_transpose.has_value()) {
    operands.data = at::empty(input.sizes(), input.options().dtype(at::ScalarType::Byte));
  }
  QuantizeArgs args{.input = matrix_view(contiguous), .output = {}};
  args.output = {.data = codes_operand(kOp, "data", operands.data, fp8_dtype, input),
                 .data_transpose = codes_operand(kOp, "data_transpose", operands.data_transpose,
                                                 fp8_dtype, input),
                 .scale = float_operand(kOp, "scale", operands.scale, 1, input),
                 .scale_inv = float_operand(kOp, "scale_inv", operands.scale_inv, 1, input),
                 .amax = float_operand(kOp, "amax", operands.amax, 1, input)};
  args.noop = float_operand(kOp, "noop", operands.noop, 1, input);
  quantize(args, context_for(input));
  return operands.data;
}

at::Tensor dequantize_fp8(const at::Tensor& data, int fp8_dtype_value,
                          const OptionalTensor& scale_inv, int output_dtype,
                          const OptionalTensor& output) {
  constexpr char kOp[] = "dequantize_fp8";
  const DType fp8_dtype = fp8_dtype_from(kOp, fp8_dtype_value);
  const auto wanted = static_cast<DType>(output_dtype);
  TE_CHECK_TYPE(is_high_precision(wanted), kOp, ": output_dtype is ", output_dtype,
                "; a value of DType for float32, float16 or bfloat16 is required.");
  const at::Tensor contiguous = data.contiguous();
  const at::Tensor result =
      output.has_value() ? *output
                         : at::empty(data.sizes(), data.options().dtype(scalar_type_of(wanted)));
  check_device(kOp, "output", result, data);
  dequantize({.input = codes_operand(kOp, "data", contiguous, fp8_dtype, data),
              .scale_inv = float_operand(kOp, "scale_inv", scale_inv, 1, data),
              .output = matrix_view(result)},
             context_for(data));
  return result;
}

at::Tensor transpose_one_byte(const at::Tensor& input, const OptionalTensor& output) {
  constexpr char kOp[] = "transpose_bytes";
  const at::Tensor contiguous = input.contiguous();
  const TensorView view = codes_operand(kOp, "input", contiguous, DType::kByte, input);
  const at::Tensor result =
      output.has_value() ? *output : at::empty({view.cols, view.rows}, input.options());
  transpose_bytes(
      {.input = view, .output = codes_operand(kOp, "output", result, DType::kByte, input)},
      context_for(input));
  return result;
}

at::Tensor new_scalar(const at::Tensor& like) {
  return at::empty({1}, like.options().dtype(at::ScalarType::Float));
}

at::Tensor amax_of(const at::Tensor& input, const OptionalTensor& amax) {
  const at::Tensor contiguous = input.contiguous();
  const at::Tensor result = amax.has_value() ? *amax : new_scalar(input);
  compute_amax({.input = matrix_view(contiguous),
                .amax = float_operand("compute_amax", "amax", result, 1, input)},
               context_for(input));
  return result;
}

struct ScaleRule {
  float fp8_max;
  float epsilon;
  bool power_of_two;
};

at::Tensor scale_from_amax(const at::Tensor& amax, const ScaleRule& rule,
                           const OptionalTensor& scale, const OptionalTensor& scale_inv) {
  constexpr char kOp[] = "compute_scale_from_amax";
  const at::Tensor result = scale.has_value() ? *scale : new_scalar(amax);
  compute_scale_from_amax({.amax = float_operand(kOp, "amax", amax, 1, amax),
                           .scale = float_operand(kOp, "scale", result, 1, amax),
                           .scale_inv = float_operand(kOp, "scale_inv", scale_inv, 1, amax),
                           .fp8_max = rule.fp8_max,
                           .epsilon = rule.epsilon,
                           .power_of_two = rule.power_of_two},
                          context_for(amax));
  return result;
}

struct DelayedRule {
  float fp8_max;
  float margin;
  std::string algo;
};

void update_delayed_scaling(const at::Tensor& amax_history, const at::Tensor& scale,
                            const OptionalTensor& reduced_amax, const DelayedRule& rule) {
  constexpr char kOp[] = "delayed_scaling_update";
  TE_CHECK(amax_history.dim() == 2, kOp, ": amax_history has shape ", amax_history.sizes(),
           "; [length, tensors] is required.");
  TE_CHECK(rule.algo == "max" || rule.algo == "most_recent", kOp, ": algo is '", rule.algo,
           "'; 'max' or 'most_recent' is required.");
  const int64_t tensors = amax_history.size(1);
  delayed_scaling_update(
      {.amax_history = matrix_view(amax_history),
       .reduced_amax = float_operand(kOp, "reduced_amax", reduced_amax, tensors, amax_history),
       .scale = float_operand(kOp, "scale", scale, tensors, amax_history),
       .fp8_max = rule.fp8_max,
       .margin = rule.margin,
       .algo = rule.algo == "max" ? AmaxComputeAlgo::kMax : AmaxComputeAlgo::kMostRecent},
      context_for(amax_history));
}

}  // namespace

void bind_cast(py::module_& m) {
  m.def(
      "quantize_fp8",
      [](const at::Tensor& input, int fp8_dtype, OptionalTensor scale, OptionalTensor data,
         OptionalTensor data_transpose, OptionalTensor scale_inv, OptionalTensor amax,
         OptionalTensor noop) {
        return quantize_fp8(input, fp8_dtype,
                            {.scale = std::move(scale),
                             .data = std::move(data),
                             .data_transpose = std::move(data_transpose),
                             .scale_inv = std::move(scale_inv),
                             .amax = std::move(amax),
                             .noop = std::move(noop)});
      },
      py::arg("input"), py::arg("fp8_dtype"), py::kw_only(), py::arg("scale") = py::none(),
      py::arg("data") = py::none(), py::arg("data_transpose") = py::none(),
      py::arg("scale_inv") = py::none(), py::arg("amax") = py::none(), py::arg("noop") = py::none(),
      "FP8 codes of input * scale into data [rows, cols] and data_transpose [cols, rows], uint8; "
      "data is allocated when neither is given. Writes scale_inv = 1 / scale and raises amax to "
      "max |input| where given; does nothing when noop[0] is not 0. Returns data.");
  m.def("dequantize_fp8", &dequantize_fp8, py::arg("data"), py::arg("fp8_dtype"), py::kw_only(),
        py::arg("scale_inv") = py::none(),
        py::arg("output_dtype") = static_cast<int>(DType::kFloat32), py::arg("output") = py::none(),
        "output = round(float(code) * scale_inv) in float32, float16 or bfloat16; returns it. "
        "output_dtype, a value of DType, is for a new output.");
  m.def("transpose_bytes", &transpose_one_byte, py::arg("input"), py::kw_only(),
        py::arg("output") = py::none(),
        "Transpose of a one-byte tensor seen as [rows, cols]; returns [cols, rows].");
  m.def("compute_amax", &amax_of, py::arg("input"), py::kw_only(), py::arg("amax") = py::none(),
        "amax[0] = max |input|, NaN skipped, 0 for an empty input; returns amax, float32 [1].");
  m.def(
      "compute_scale_from_amax",
      [](const at::Tensor& amax, float fp8_max, float epsilon, bool power_of_two,
         const OptionalTensor& scale, const OptionalTensor& scale_inv) {
        return scale_from_amax(amax, {fp8_max, epsilon, power_of_two}, scale, scale_inv);
      },
      py::arg("amax"), py::kw_only(), py::arg("fp8_max"), py::arg("epsilon") = 0.0F,
      py::arg("power_of_two") = false, py::arg("scale") = py::none(),
      py::arg("scale_inv") = py::none(),
      "Current scaling: scale[0] = fp8_max / max(amax[0], epsilon), 1 where that amax is 0, "
      "infinite or NaN; returns scale, float32 [1].");
  m.def(
      "delayed_scaling_update",
      [](const at::Tensor& amax_history, const at::Tensor& scale,
         const OptionalTensor& reduced_amax, float fp8_max, float margin, std::string algo) {
        update_delayed_scaling(amax_history, scale, reduced_amax,
                               {fp8_max, margin, std::move(algo)});
      },
      py::arg("amax_history"), py::arg("scale"), py::kw_only(),
      py::arg("reduced_amax") = py::none(), py::arg("fp8_max"), py::arg("margin") = 0.0F,
      py::arg("algo") = "max",
      "End of a step of delayed scaling, in place: rolls amax_history [length, tensors] and "
      "computes scale [tensors] from it.");
}

}  // namespace transformer_engine::pytorch
