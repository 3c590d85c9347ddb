// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Quantizers of the formats with one scale per block, their layouts, and dequantization. Copies
// travel as the tuples of read_operand.h.
#include <ATen/ops/empty.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <transformer_engine/error.h>

#include "bind.h"
#include "quantizer.h"
#include "steps/read_operand.h"

namespace py = pybind11;

namespace transformer_engine::pytorch {

namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor checked_input(const at::Tensor& tensor) {
  TE_CHECK_TYPE(is_high_precision(dtype_of(tensor.scalar_type())), "quantize: tensor has dtype ",
                at::toString(tensor.scalar_type()), "; float32, float16 or bfloat16 is required.");
  return tensor.detach().contiguous();
}

DType checked_fp8(int value) {
  const auto dtype = static_cast<DType>(value);
  TE_CHECK(is_fp8(dtype), "quantizer: fp8_dtype is ", value,
           "; kFloat8E4M3 (7) or kFloat8E5M2 (8) is required.");
  return dtype;
}

Usages usages_of(const Quantizer& quantizer) {
  return {.rowwise = quantizer.rowwise_usage, .columnwise = quantizer.columnwise_usage};
}

py::tuple copies(const Operand& operand) {
  return py::make_tuple(copy_parts(operand.rowwise), copy_parts(operand.columnwise));
}

Operand operand_of(const std::vector<int64_t>& sizes, const at::Device& device,
                   const py::object& rowwise, const py::object& columnwise) {
  static const std::string label = "quantize";
  Operand operand;
  operand.sizes = matrix_sizes(sizes);
  operand.rowwise =
      read_copy(rowwise, /*is_columnwise=*/false, sizes, device, {label, "the destination"});
  operand.columnwise =
      read_copy(columnwise, /*is_columnwise=*/true, sizes, device, {label, "the destination"});
  return operand;
}

// Kernels write where the copies are: a copy that reading made contiguous would be lost.
void check_in_place(const OperandCopy& copy, const py::object& parts) {
  if (!copy.is_defined()) {
    return;
  }
  const auto given = py::cast<at::Tensor>(py::reinterpret_borrow<py::tuple>(parts)[0]);
  TE_CHECK(given.is_contiguous(), "quantize: the destination has data of strides ", given.strides(),
           "; contiguous data is required. Quantize into a new tensor and copy.");
}

void check_format(const BlockQuantizer& quantizer, const OperandCopy& copy, bool is_columnwise) {
  TE_CHECK(!copy.is_defined() || copy.format == quantizer.copy_format(is_columnwise),
           "quantize: the destination's ", is_columnwise ? "columnwise" : "rowwise",
           " copy has another format than the quantizer makes. Use the quantizer that made it.");
}

Operand destination(const BlockQuantizer& quantizer, const at::Tensor& input,
                    const py::object& rowwise, const py::object& columnwise) {
  Operand operand = operand_of(input.sizes().vec(), input.device(), rowwise, columnwise);
  check_format(quantizer, operand.rowwise, /*is_columnwise=*/false);
  check_format(quantizer, operand.columnwise, /*is_columnwise=*/true);
  check_in_place(operand.rowwise, rowwise);
  check_in_place(operand.columnwise, columnwise);
  return operand;
}

const float* noop_data(const OptionalTensor& noop) {
  return noop.has_value() ? float_data(*noop, "quantize: noop") : nullptr;
}

py::object dequantize_copies(const std::vector<int64_t>& sizes, const py::object& rowwise,
                             const py::object& columnwise, int dtype) {
  const py::object& held = rowwise.is_none() ? columnwise : rowwise;
  TE_CHECK(!held.is_none(),
           "dequantize: neither a rowwise nor a columnwise copy is there; one is "
           "required.");
  const auto device = py::cast<at::Tensor>(py::reinterpret_borrow<py::tuple>(held)[0]).device();
  TE_CHECK_TYPE(is_high_precision(static_cast<DType>(dtype)), "dequantize: output dtype is ", dtype,
                "; a value of DType for float32, float16 or bfloat16 is required.");
  const Operand operand = operand_of(sizes, device, rowwise, columnwise);
  return py::cast(dequantize(operand, scalar_type_of(static_cast<DType>(dtype))).view(sizes));
}

CopyFormat format_of(int kind, int dtype, int flags) {
  return {.kind = static_cast<CopyKind>(kind), .dtype = static_cast<DType>(dtype), .flags = flags};
}

py::dict layout_of(int kind, int dtype, int flags, bool columnwise, int64_t rows, int64_t cols) {
  const CopyLayout layout(format_of(kind, dtype, flags), columnwise, {.rows = rows, .cols = cols});
  py::dict result;
  result["data"] = py::make_tuple(layout.stored_rows, layout.data_row_bytes);
  py::tuple scales(layout.scale_sizes.size());
  for (size_t i = 0; i < layout.scale_sizes.size(); ++i) {
    scales[i] = layout.scale_sizes[i];
  }
  result["scales"] = scales;
  result["amax"] = layout.amax_numel;
  result["is_transposed"] = layout.is_transposed;
  result["row_scales"] = layout.row_scales;
  result["row_scales_dim"] = layout.row_scales_dim;
  result["shard_rows"] = layout.shard_rows;
  return result;
}

template <typename Class>
py::class_<Class, BlockQuantizer, std::shared_ptr<Class>> bind_class(py::module_& m,
                                                                     const char* name) {
  return py::class_<Class, BlockQuantizer, std::shared_ptr<Class>>(m, name);
}

void set_usages(Quantizer& quantizer, bool rowwise, bool columnwise) {
  quantizer.rowwise_usage = rowwise;
  quantizer.columnwise_usage = columnwise;
}

void bind_base(py::module_& m) {
  py::class_<BlockQuantizer, Quantizer, std::shared_ptr<BlockQuantizer>>(m, "BlockQuantizerCore")
      .def(
          "quantize",
          [](BlockQuantizer& self, const at::Tensor& tensor) {
            const at::Tensor input = checked_input(tensor);
            Operand operand = self.make_padded_operand(input.sizes(), input, usages_of(self));
            self.update(input, &operand, nullptr);
            return copies(operand);
          },
          py::arg("tensor"), "(rowwise | None, columnwise | None): copies that the usages ask for.")
      .def(
          "make_empty",
          [](const BlockQuantizer& self, const std::vector<int64_t>& sizes,
             const at::Tensor& like) {
            return copies(self.make_padded_operand(sizes, like, usages_of(self)));
          },
          py::arg("sizes"), py::arg("like"),
          "The same without values, on the device of a tensor; padding of the scales is 0.")
      .def(
          "update",
          [](BlockQuantizer& self, const at::Tensor& tensor, const py::object& rowwise,
             const py::object& columnwise, const OptionalTensor& noop) {
            const at::Tensor input = checked_input(tensor);
            Operand operand = destination(self, input, rowwise, columnwise);
            self.update(input, &operand, noop_data(noop));
          },
          py::arg("tensor"), py::arg("rowwise"), py::arg("columnwise"),
          py::arg("noop") = py::none(),
          "Quantize into existing copies; a noop tensor that is not 0 leaves them.")
      .def(
          "copy_format",
          [](const BlockQuantizer& self, bool columnwise) {
            const CopyFormat format = self.copy_format(columnwise);
            return py::make_tuple(static_cast<int>(format.kind), static_cast<int>(format.dtype),
                                  format.flags);
          },
          py::arg("columnwise"), "(kind, dtype, flags) of the copies it makes.")
      .def(
          "shard_rows", [](const BlockQuantizer& self) { return self.shard_rows(usages_of(self)); },
          "Copies of matrices that have a multiple of these rows can be joined.");
}

FourOverSix four_over_six_of(const std::string& mode) {
  if (mode.empty()) {
    return FourOverSix::kNone;
  }
  TE_CHECK(mode == "MAE" || mode == "MSE", "NVFP4Quantizer: nvfp4_4over6_err_mode is '", mode,
           "'; 'MAE' or 'MSE' is required.");
  return mode == "MAE" ? FourOverSix::kMeanAbsoluteError : FourOverSix::kMeanSquaredError;
}

const char* mode_of(FourOverSix mode) {
  return mode == FourOverSix::kNone ? "" : mode == FourOverSix::kMeanAbsoluteError ? "MAE" : "MSE";
}

void bind_nvfp4(py::module_& m) {
  m.attr("HADAMARD_SIGNS") = static_cast<int>(kHadamardSigns);
  bind_class<NVFP4Quantizer>(m, "NVFP4QuantizerCore")
      .def(py::init([](bool rowwise, bool columnwise, bool with_rht, bool with_post_rht_amax,
                       bool with_2d_quantization, bool stochastic_rounding, bool row_scaled,
                       const std::string& four_over_six, int e4m3_max, int sign_mask) {
             TE_CHECK(e4m3_max == 448 || e4m3_max == 256, "NVFP4Quantizer: nvfp4_e4m3_max is ",
                      e4m3_max, "; 448 or 256 is required.");
             auto self = std::make_shared<NVFP4Quantizer>();
             set_usages(*self, rowwise, columnwise);
             self->dtype = DType::kFloat4E2M1;
             self->with_rht = with_rht;
             self->with_post_rht_amax = with_post_rht_amax;
             self->with_2d_quantization = with_2d_quantization;
             self->stochastic_rounding = stochastic_rounding;
             self->row_scaled = row_scaled;
             self->four_over_six = four_over_six_of(four_over_six);
             self->e4m3_max = e4m3_max;
             self->sign_mask = static_cast<uint16_t>(sign_mask);
             return self;
           }),
           py::arg("rowwise"), py::arg("columnwise"), py::arg("with_rht"),
           py::arg("with_post_rht_amax"), py::arg("with_2d_quantization"),
           py::arg("stochastic_rounding"), py::arg("row_scaled"), py::arg("four_over_six"),
           py::arg("e4m3_max"), py::arg("sign_mask"))
      .def(
          "compute_amax",
          [](const NVFP4Quantizer& self, const at::Tensor& tensor, const py::object& rowwise,
             const py::object& columnwise) {
            const at::Tensor input = checked_input(tensor);
            Operand operand = destination(self, input, rowwise, columnwise);
            self.compute_amax(input, &operand, nullptr);
          },
          py::arg("tensor"), py::arg("rowwise"), py::arg("columnwise"),
          "First half of update(): write the copies' amaxes.")
      .def(
          "cast",
          [](const NVFP4Quantizer& self, const at::Tensor& tensor, const py::object& rowwise,
             const py::object& columnwise) {
            const at::Tensor input = checked_input(tensor);
            Operand operand = destination(self, input, rowwise, columnwise);
            self.cast(input, &operand, nullptr);
          },
          py::arg("tensor"), py::arg("rowwise"), py::arg("columnwise"),
          "Second half of update(): cast by the copies' amaxes, which may have been reduced.")
      .def_readwrite("with_rht", &NVFP4Quantizer::with_rht)
      .def_readwrite("with_post_rht_amax", &NVFP4Quantizer::with_post_rht_amax)
      .def_readwrite("with_2d_quantization", &NVFP4Quantizer::with_2d_quantization)
      .def_readwrite("stochastic_rounding", &NVFP4Quantizer::stochastic_rounding)
      .def_readwrite("row_scaled", &NVFP4Quantizer::row_scaled)
      .def_property(
          "four_over_six", [](const NVFP4Quantizer& self) { return mode_of(self.four_over_six); },
          [](NVFP4Quantizer& self, const std::string& mode) {
            self.four_over_six = four_over_six_of(mode);
          })
      .def_readwrite("e4m3_max", &NVFP4Quantizer::e4m3_max)
      .def_readwrite("sign_mask", &NVFP4Quantizer::sign_mask);
}

// op(a) op(b)^T of two quantized tensors; `contracts_rows`: op(X) = X^T.
struct CopiesOperand {
  std::vector<int64_t> sizes;
  py::object rowwise, columnwise;
  bool contracts_rows;
};

at::Tensor gemm_copies(const CopiesOperand& a, const CopiesOperand& b, int out_dtype) {
  TE_CHECK_TYPE(is_high_precision(static_cast<DType>(out_dtype)), "gemm_copies: out_dtype is ",
                out_dtype, "; a value of DType for float32, float16 or bfloat16 is required.");
  const py::object& held = a.rowwise.is_none() ? a.columnwise : a.rowwise;
  TE_CHECK(!held.is_none(), "gemm_copies: a has neither a rowwise nor a columnwise copy.");
  const auto device = py::cast<at::Tensor>(py::reinterpret_borrow<py::tuple>(held)[0]).device();
  const Operand operand_a = operand_of(a.sizes, device, a.rowwise, a.columnwise);
  const Operand operand_b = operand_of(b.sizes, device, b.rowwise, b.columnwise);
  if (a.contracts_rows && b.contracts_rows) {
    check_same_transform(operand_a, operand_b);
  }
  GemmArgs args;
  args.a = operand_a.gemm_operand(a.contracts_rows);
  args.b = operand_b.gemm_operand(b.contracts_rows);
  const auto rows_of = [](const GemmOperand& operand) {
    return operand.is_transposed ? operand.matrix.cols : operand.matrix.rows;
  };
  const at::Tensor d =
      at::empty({rows_of(args.a), rows_of(args.b)},
                at::device(device).dtype(scalar_type_of(static_cast<DType>(out_dtype))));
  args.d = matrix_view(d);
  gemm(args, context_for(d));
  return d;
}

}  // namespace

void bind_block_quantizers(py::module_& m) {
  bind_base(m);
  bind_class<Float8BlockQuantizer>(m, "Float8BlockQuantizerCore")
      .def(py::init([](int fp8_dtype, bool rowwise, bool columnwise, float amax_epsilon,
                       bool force_pow_2_scales, int block_scaling_dim) {
             TE_CHECK(block_scaling_dim == 1 || block_scaling_dim == 2,
                      "Float8BlockQuantizer: block_scaling_dim is ", block_scaling_dim,
                      "; 1 or 2 is required.");
             auto self = std::make_shared<Float8BlockQuantizer>();
             set_usages(*self, rowwise, columnwise);
             self->dtype = checked_fp8(fp8_dtype);
             self->amax_epsilon = amax_epsilon;
             self->force_pow_2_scales = force_pow_2_scales;
             self->block_scaling_dim = block_scaling_dim;
             return self;
           }),
           py::arg("fp8_dtype"), py::arg("rowwise"), py::arg("columnwise"), py::arg("amax_epsilon"),
           py::arg("force_pow_2_scales"), py::arg("block_scaling_dim"))
      .def_readwrite("amax_epsilon", &Float8BlockQuantizer::amax_epsilon)
      .def_readwrite("force_pow_2_scales", &Float8BlockQuantizer::force_pow_2_scales)
      .def_readwrite("block_scaling_dim", &Float8BlockQuantizer::block_scaling_dim);
  bind_class<MXFP8Quantizer>(m, "MXFP8QuantizerCore")
      .def(py::init([](int fp8_dtype, bool rowwise, bool columnwise, bool with_2d_quantization) {
             auto self = std::make_shared<MXFP8Quantizer>();
             set_usages(*self, rowwise, columnwise);
             self->dtype = checked_fp8(fp8_dtype);
             self->with_2d_quantization = with_2d_quantization;
             return self;
           }),
           py::arg("fp8_dtype"), py::arg("rowwise"), py::arg("columnwise"),
           py::arg("with_2d_quantization"))
      .def_readwrite("with_2d_quantization", &MXFP8Quantizer::with_2d_quantization);
  bind_nvfp4(m);
  py::class_<PythonQuantizer, Quantizer, std::shared_ptr<PythonQuantizer>>(m, "PythonQuantizerCore")
      .def(py::init([](const py::object& quantizer) {
             return std::make_shared<PythonQuantizer>(PythonRef(quantizer.ptr()));
           }),
           py::arg("quantizer"), "Native side of a quantizer that is written in Python.");
  m.def("dequantize_copies", &dequantize_copies, py::arg("sizes"), py::arg("rowwise"),
        py::arg("columnwise"), py::arg("output_dtype"),
        "Values of a quantized tensor of logical sizes, from its rowwise copy if there is one.");
  m.def(
      "gemm_copies",
      [](const std::vector<int64_t>& a_sizes, const py::object& a_rowwise,
         const py::object& a_columnwise, bool a_contracts_rows, const std::vector<int64_t>& b_sizes,
         const py::object& b_rowwise, const py::object& b_columnwise, bool b_contracts_rows,
         int out_dtype) {
        return gemm_copies({a_sizes, a_rowwise, a_columnwise, a_contracts_rows},
                           {b_sizes, b_rowwise, b_columnwise, b_contracts_rows}, out_dtype);
      },
      py::arg("a_sizes"), py::arg("a_rowwise"), py::arg("a_columnwise"),
      py::arg("a_contracts_rows"), py::arg("b_sizes"), py::arg("b_rowwise"),
      py::arg("b_columnwise"), py::arg("b_contracts_rows"), py::arg("out_dtype"),
      "op(a) op(b)^T of two quantized tensors of logical sizes, op(X) = X^T where it contracts "
      "rows.");
  m.def(
      "copy_layout", &layout_of, py::arg("kind"), py::arg("dtype"), py::arg("flags"),
      py::arg("columnwise"), py::arg("rows"), py::arg("cols"),
      "How a copy of a logical [rows, cols] matrix is stored: shapes of its buffers, and where the "
      "rows are in them.");
}

}  // namespace transformer_engine::pytorch
