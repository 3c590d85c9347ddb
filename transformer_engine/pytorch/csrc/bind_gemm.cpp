// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The core's GEMM for tests, benchmarks and general_gemm. Types of FP8 bytes and of results are
// given as values of DType.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <transformer_engine/error.h>
#include <transformer_engine/gemm.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind.h"
#include "framework_functions.h"
#include "views.h"

namespace transformer_engine::pytorch {

namespace {

namespace py = pybind11;
using OptionalTensor = std::optional<at::Tensor>;
using OptionalDType = std::optional<int>;

constexpr char kOp[] = "gemm";

// One operand as Python gives it.
struct Operand {
  at::Tensor tensor;  // contiguous
  bool is_transposed;
  OptionalTensor scale_inv;
  OptionalDType dtype;
};

struct Options {
  OptionalTensor bias, out;
  bool gelu;
  bool with_pre_gelu;
  OptionalDType out_dtype;
  bool accumulate;
  std::string candidate;
  bool use_split_accumulator;
};

void check_device(const char* name, const at::Tensor& tensor, const at::Tensor& a) {
  TE_CHECK(tensor.device() == a.device(), kOp, ": ", name, " is on ", tensor.device().str(),
           ", a on ", a.device().str(), "; one device is required.");
}

DType operand_dtype(const char* name, const Operand& operand) {
  const at::Tensor& tensor = operand.tensor;
  if (!operand.dtype.has_value()) {
    return dtype_of(tensor.scalar_type());
  }
  const auto dtype = static_cast<DType>(*operand.dtype);
  const bool fits =
      is_fp8(dtype) ? tensor.element_size() == 1 : dtype == dtype_of(tensor.scalar_type());
  TE_CHECK_TYPE(fits, kOp, ": ", name, "_dtype is ", dtype_name(dtype), " and ", name,
                " has torch dtype ", at::toString(tensor.scalar_type()),
                "; FP8 bytes (uint8) or the tensor's own type is required.");
  return dtype;
}

GemmOperand core_operand(const char* name, const Operand& operand, const at::Tensor& a) {
  check_device(name, operand.tensor, a);
  GemmOperand core;
  core.matrix = matrix_view(operand.tensor, operand_dtype(name, operand));
  core.is_transposed = operand.is_transposed;
  if (operand.scale_inv.has_value()) {
    const at::Tensor& scale_inv = *operand.scale_inv;
    const std::string scale_name = concat(kOp, ": ", name, "_scale_inv");
    check_device(scale_name.c_str(), scale_inv, a);
    TE_CHECK(scale_inv.numel() == 1, scale_name, " has shape ", scale_inv.sizes(),
             "; one element is required.");
    core.scale_inv = float_data(scale_inv, scale_name.c_str());
  }
  return core;
}

// [leading dimensions of a..., n], or [m, n] when a is transposed.
std::vector<int64_t> result_sizes(const GemmOperand& a, const GemmOperand& b,
                                  const at::Tensor& a_tensor) {
  const int64_t n = b.is_transposed ? b.matrix.cols : b.matrix.rows;
  if (a.is_transposed) {
    return {a.matrix.cols, n};
  }
  std::vector<int64_t> sizes = a_tensor.sizes().vec();
  sizes.back() = n;
  return sizes;
}

at::ScalarType result_type(const Options& options, DType a_dtype) {
  if (!options.out_dtype.has_value()) {
    return is_fp8(a_dtype) ? at::ScalarType::BFloat16 : scalar_type_of(a_dtype);
  }
  const auto dtype = static_cast<DType>(*options.out_dtype);
  TE_CHECK_TYPE(is_high_precision(dtype), kOp, ": out_dtype is ", *options.out_dtype,
                "; a value of DType for float32, float16 or bfloat16 is required.");
  return scalar_type_of(dtype);
}

// The core's arguments with the tensors they point to.
struct Problem {
  Operand a, b;
  at::Tensor d;
  OptionalTensor bias, pre_gelu;
  GemmArgs args;

  Problem(Operand a_operand, Operand b_operand, const Options& options)
      : a(std::move(a_operand)), b(std::move(b_operand)) {
    TE_CHECK(a.tensor.dim() >= 1 && b.tensor.dim() >= 1, kOp, ": a has ", a.tensor.dim(), " and b ",
             b.tensor.dim(), " dimensions; at least one is required.");
    args.a = core_operand("a", a, a.tensor);
    args.b = core_operand("b", b, a.tensor);
    set_results(options);
    if (options.bias.has_value()) {
      check_device("bias", *options.bias, a.tensor);
      bias = options.bias->contiguous();
      args.bias = vector_view(*bias);
    }
    args.epilogue = options.gelu ? GemmEpilogue::kGELU : GemmEpilogue::kNone;
    args.accumulate = options.accumulate;
    args.allows_fast_accumulation = !options.use_split_accumulator;
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

 private:
  void set_results(const Options& options) {
    const auto type = result_type(options, args.a.matrix.dtype);
    const auto tensor_options = a.tensor.options().dtype(type);
    const std::vector<int64_t> sizes = result_sizes(args.a, args.b, a.tensor);
    TE_CHECK(options.out.has_value() || !options.accumulate, kOp,
             ": accumulate is set without out; the sum needs a tensor to be added to. Pass out.");
    d = options.out.has_value() ? *options.out : at::empty(sizes, tensor_options);
    check_device("out", d, a.tensor);
    TE_CHECK_TYPE(!options.out_dtype.has_value() || d.scalar_type() == type, kOp,
                  ": out has dtype ", at::toString(d.scalar_type()), " and out_dtype is ",
                  at::toString(type), "; they must be equal. Leave out_dtype out.");
    args.d = matrix_view(d);
    if (options.with_pre_gelu) {
      pre_gelu = at::empty(d.sizes(), d.options());
      args.pre_epilogue = matrix_view(*pre_gelu);
    }
  }
};

std::pair<at::Tensor, OptionalTensor> run_gemm(Problem& problem, const std::string& candidate) {
  const Context context = context_for(problem.a.tensor);
  py::gil_scoped_release release;
  if (candidate.empty()) {
    gemm(problem.args, context);
  } else {
    gemm_on_candidate(candidate.c_str(), problem.args, context);
  }
  return {problem.d, problem.pre_gelu};
}

std::vector<std::pair<std::string, std::optional<std::string>>> candidates(const Problem& problem) {
  std::vector<std::pair<std::string, std::optional<std::string>>> rows;
  for (const auto& status : gemm_candidates(problem.args, context_for(problem.a.tensor))) {
    rows.emplace_back(status.name, status.refusal == nullptr
                                       ? std::nullopt
                                       : std::optional<std::string>(status.refusal));
  }
  return rows;
}

// Defines a function with gemm's arguments that calls body(problem, options).
template <typename Body>
void define(py::module_& m, const char* name, const char* doc, Body body) {
  m.def(
      name,
      [body](const at::Tensor& a, const at::Tensor& b, bool a_transposed, bool b_transposed,
             OptionalTensor a_scale_inv, OptionalTensor b_scale_inv, OptionalDType a_dtype,
             OptionalDType b_dtype, OptionalTensor bias, bool gelu, bool with_pre_gelu,
             OptionalTensor out, OptionalDType out_dtype, bool accumulate, std::string candidate,
             bool use_split_accumulator) {
        const Options options = {.bias = std::move(bias),
                                 .out = std::move(out),
                                 .gelu = gelu,
                                 .with_pre_gelu = with_pre_gelu,
                                 .out_dtype = out_dtype,
                                 .accumulate = accumulate,
                                 .candidate = std::move(candidate),
                                 .use_split_accumulator = use_split_accumulator};
        Problem problem({a.contiguous(), a_transposed, std::move(a_scale_inv), a_dtype},
                        {b.contiguous(), b_transposed, std::move(b_scale_inv), b_dtype}, options);
        return body(problem, options);
      },
      py::arg("a"), py::arg("b"), py::kw_only(), py::arg("a_transposed") = false,
      py::arg("b_transposed") = false, py::arg("a_scale_inv") = py::none(),
      py::arg("b_scale_inv") = py::none(), py::arg("a_dtype") = py::none(),
      py::arg("b_dtype") = py::none(), py::arg("bias") = py::none(), py::arg("gelu") = false,
      py::arg("with_pre_gelu") = false, py::arg("out") = py::none(),
      py::arg("out_dtype") = py::none(), py::arg("accumulate") = false, py::arg("candidate") = "",
      py::arg("use_split_accumulator") = true, doc);
}

}  // namespace

void bind_gemm(py::module_& m) {
  register_torch_functions();
  define(m, "gemm",
         "(d, pre_gelu or None) with d[m, n] = op(a)[m, k] op(b)[n, k]^T * scales + bias, GELU.\n\n"
         "a is [..., k] (or [k, m] with a_transposed), b [n, k] (or [k, n] with b_transposed); "
         "float32, bfloat16 or float16 alike, or FP8 bytes with a_dtype and b_dtype and scale_inv "
         "of one float32 element. The result has type out_dtype (default: a's, bfloat16 for FP8). "
         "With accumulate the product is added to out. with_pre_gelu also returns the value before "
         "GELU. candidate names the implementation (gemm_candidates); empty chooses the first "
         "that takes the problem. Without use_split_accumulator, FP8 partial sums may stay in a "
         "tensor core's accumulator.",
         [](Problem& problem, const Options& options) {
           return run_gemm(problem, options.candidate);
         });
  define(m, "gemm_candidates",
         "List of (implementation, reason it refuses the problem or None), in the order asked; "
         "arguments as for gemm.",
         [](Problem& problem, const Options& /*options*/) { return candidates(problem); });
}

}  // namespace transformer_engine::pytorch
