// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <transformer_engine/framework.h>
#include <transformer_engine/gemm.h>
#include <transformer_engine/grouped_gemm.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/candidate.h"
#include "core/checks.h"
#include "core/gemm_shape.h"
#include "cpu/gemm.h"
#include "cpu/isa.h"
#include "cuda/entry_points.h"
#include "reference/gemm.h"

namespace transformer_engine {

namespace {

constexpr const char* kOp = "gemm";

bool is_e2m1(DType dtype) { return dtype == DType::kFloat4E2M1; }

// The second level of NVFP4.
void check_amax(const char* name, const GemmOperand& operand) {
  const BlockScales& scales = operand.scales;
  if (!is_e2m1(operand.matrix.dtype)) {
    TE_CHECK(scales.amax == nullptr, kOp, ": ", name, " has an amax and dtype ",
             dtype_name(operand.matrix.dtype),
             "; only float4_e2m1 operands have one. Leave scales.amax null.");
    return;
  }
  TE_CHECK(scales.amax != nullptr, kOp, ": ", name,
           " has no scales.amax; float4_e2m1 needs its amax, [1] or one per row.");
  TE_CHECK(scales.e4m3_max == 448.0F || scales.e4m3_max == 256.0F, kOp, ": ", name,
           " has e4m3_max ", scales.e4m3_max, "; 448 or 256 is required.");
}

void check_scales(const char* name, const GemmOperand& operand) {
  const DType dtype = operand.matrix.dtype;
  const BlockScales& scales = operand.scales;
  if (!scales.is_wanted()) {
    TE_CHECK(!is_e2m1(dtype) || operand.matrix.numel() == 0, kOp, ": ", name,
             " has dtype float4_e2m1 and no scales; one per block is required.");
    return;
  }
  const bool has_fp8_scales = scales.dtype == DType::kFloat32 || scales.dtype == DType::kFloat8E8M0;
  TE_CHECK_TYPE(
      (is_fp8(dtype) && has_fp8_scales) || (is_e2m1(dtype) && scales.dtype == DType::kFloat8E4M3),
      kOp, ": ", name, " has dtype ", dtype_name(dtype), " and scales of ",
      dtype_name(scales.dtype),
      "; float8 with float32 or float8_e8m0, or float4_e2m1 with float8_e4m3, is "
      "required.");
  TE_CHECK(operand.scale_inv == nullptr, kOp, ": ", name,
           " has a scale_inv and scales; one of both is required.");
  TE_CHECK(scales.block_rows >= 1 && scales.block_cols >= 1, kOp, ": ", name, " has blocks of ",
           scales.block_rows, " x ", scales.block_cols, "; sizes of 1 or more are required.");
  TE_CHECK(scales.row_stride >= 0 && scales.col_stride >= 0, kOp, ": ", name,
           " has scales with strides ", scales.row_stride, " and ", scales.col_stride,
           "; 0 or more is required.");
  check_amax(name, operand);
}

void check_operand(const char* name, const GemmOperand& operand) {
  const TensorView& view = operand.matrix;
  TE_CHECK_TYPE(
      is_high_precision(view.dtype) || is_fp8(view.dtype) || is_e2m1(view.dtype), kOp, ": ", name,
      " has dtype ", dtype_name(view.dtype),
      "; float32, float16, bfloat16, float8_e4m3, float8_e5m2 or float4_e2m1 is required.");
  TE_CHECK(view.rows >= 0 && view.cols >= 0, kOp, ": ", name, " has shape [", view.rows, ", ",
           view.cols, "]; sizes must not be negative.");
  check_data(kOp, name, view);
  TE_CHECK(operand.scale_inv == nullptr || is_fp8(view.dtype), kOp, ": ", name,
           " has a scale_inv and dtype ", dtype_name(view.dtype),
           "; only float8 operands have one. Leave scale_inv null.");
  check_scales(name, operand);
}

bool shares_memory(const TensorView& a, const TensorView& b) {
  const char* a_begin = static_cast<const char*>(a.data);
  const char* b_begin = static_cast<const char*>(b.data);
  const char* a_end = a_begin + a.rows * row_size_bytes(a.dtype, a.cols);
  const char* b_end = b_begin + b.rows * row_size_bytes(b.dtype, b.cols);
  return a_begin < b_end && b_begin < a_end;
}

void check_not_aliased(const char* name, const TensorView& output, const char* other_name,
                       const TensorView& other) {
  TE_CHECK(!shares_memory(output, other), kOp, ": ", name, " shares memory with ", other_name,
           "; outputs need memory of their own. Pass another tensor or a copy.");
}

void check_outputs(const GemmArgs& args, int64_t m, int64_t n) {
  check_high_precision(kOp, "d", args.d);
  check_shape(kOp, "d", args.d, m, n);
  check_data(kOp, "d", args.d);
  if (args.bias.is_wanted()) {
    check_high_precision(kOp, "bias", args.bias);
    check_shape(kOp, "bias", args.bias, 1, n);
    check_not_aliased("d", args.d, "bias", args.bias);
  }
  check_not_aliased("d", args.d, "a", args.a.matrix);
  check_not_aliased("d", args.d, "b", args.b.matrix);
  if (args.pre_epilogue.is_wanted()) {
    check_shape(kOp, "pre_epilogue", args.pre_epilogue, m, n);
    TE_CHECK_TYPE(args.pre_epilogue.dtype == args.d.dtype, kOp, ": pre_epilogue has dtype ",
                  dtype_name(args.pre_epilogue.dtype), " and d ", dtype_name(args.d.dtype),
                  "; they must be equal.");
    check_not_aliased("pre_epilogue", args.pre_epilogue, "d", args.d);
    check_not_aliased("pre_epilogue", args.pre_epilogue, "a", args.a.matrix);
    check_not_aliased("pre_epilogue", args.pre_epilogue, "b", args.b.matrix);
    check_not_aliased("pre_epilogue", args.pre_epilogue, "bias", args.bias);
  }
}

void check_gemm(const GemmArgs& args) {
  check_operand("a", args.a);
  check_operand("b", args.b);
  const DType a_dtype = args.a.matrix.dtype;
  const DType b_dtype = args.b.matrix.dtype;
  TE_CHECK_TYPE(a_dtype == b_dtype || !is_high_precision(a_dtype) || !is_high_precision(b_dtype),
                kOp, ": a has dtype ", dtype_name(a_dtype), " and b ", dtype_name(b_dtype),
                "; two high-precision operands must be of one type. Cast one of them.");
  const auto [m, n, k] = gemm_shape(args);
  TE_CHECK(operand_depth(args.b) == k, kOp, ": a has k = ", k, " and b k = ", operand_depth(args.b),
           "; they must be equal. Check the operands and their is_transposed flags.");
  TE_CHECK(args.epilogue == GemmEpilogue::kNone || args.epilogue == GemmEpilogue::kGELU, kOp,
           ": epilogue is ", static_cast<int>(args.epilogue), "; kNone or kGELU is required.");
  check_outputs(args, m, n);
  TE_CHECK(!args.accumulate || (args.epilogue == GemmEpilogue::kNone && !args.bias.is_wanted() &&
                                !args.pre_epilogue.is_wanted()),
           kOp, ": accumulate is set together with ",
           args.bias.is_wanted()                  ? "bias"
           : args.epilogue == GemmEpilogue::kNone ? "pre_epilogue"
                                                  : "an epilogue",
           "; a sum into d takes neither bias, epilogue nor pre_epilogue. Add them in a second "
           "step.");
}

template <const char* (*refusal)(const GemmArgs&, const Context&)>
const char* cpu_only(const GemmArgs& args, const Context& context) {
  const char* reason = refuse_unless_cpu(args, context);
  return reason != nullptr ? reason : refusal(args, context);
}

// Multiply-adds above which torch's BF16 GEMM (oneDNN) is as fast as the packed one or faster;
// below, its set-up costs more than it gains (measured on Zen 5, one thread: 64^3 4 times,
// 512^3 1.15).
constexpr int64_t kFrameworkMultiplyAdds = int64_t{1} << 28;

// Where the framework's operator wins over the packed GEMM. In FP32 that is where the core was
// compiled without vector instructions to speak of.
const char* framework_refusal(const GemmArgs& args, const Context& /*context*/) {
  if (framework_functions().gemm_cpu == nullptr) {
    return "no framework registered its GEMM";
  }
  const DType dtype = args.a.matrix.dtype;
  if (dtype != DType::kBFloat16 && dtype != DType::kFloat32) {
    return "the framework's GEMM takes BF16 and FP32 only";
  }
  if (args.b.matrix.dtype != dtype) {
    return "the framework's GEMM takes operands of one type";
  }
  if (args.d.dtype != dtype || (args.bias.is_wanted() && args.bias.dtype != dtype)) {
    return "the framework's GEMM takes one type for operands, bias and result";
  }
  if (args.epilogue != GemmEpilogue::kNone || args.pre_epilogue.is_wanted()) {
    return "the framework's GEMM has no epilogue";
  }
  if (cpu::selected_isa() == cpu::Isa::kBase) {
    return nullptr;
  }
  const auto [m, n, k] = gemm_shape(args);
  if (dtype == DType::kFloat32) {
    return "the core's FP32 GEMM is faster on this instruction set";
  }
  return m * n * k < kFrameworkMultiplyAdds ? "the core's GEMM is faster for a problem so small"
                                            : nullptr;
}

void run_framework(const GemmArgs& args, const Context& context) {
  if (!framework_functions().gemm_cpu(args)) {
    cpu::gemm_packed(args, context);
  }
}

constexpr Candidate<GemmArgs> kCandidates[] = {
    {"cpu skinny", cpu_only<cpu::gemm_skinny_refusal>, cpu::gemm_skinny},
    {"cpu framework", cpu_only<framework_refusal>, run_framework},
    {"cpu packed", refuse_unless_cpu<GemmArgs>, cpu::gemm_packed},
    cuda::kCandidate<GemmArgs>,
    {"reference", refuse_unless_cpu<GemmArgs>, reference::gemm},
};

// ---- groups

// Memory that a product of a group reads or writes.
struct Extent {
  uintptr_t begin;
  uintptr_t end;
  size_t product;
  const char* name;
  bool is_output;
};

void append_extents(const GemmArgs& args, size_t product, std::vector<Extent>& extents) {
  const auto append = [&](const char* name, const TensorView& view, bool is_output) {
    const auto begin = reinterpret_cast<uintptr_t>(view.data);
    const auto bytes = static_cast<uintptr_t>(view.rows * row_size_bytes(view.dtype, view.cols));
    if (bytes != 0) {
      extents.push_back({begin, begin + bytes, product, name, is_output});
    }
  };
  append("a", args.a.matrix, false);
  append("b", args.b.matrix, false);
  append("d", args.d, true);
  if (args.bias.is_wanted()) {
    append("bias", args.bias, false);
  }
  if (args.pre_epilogue.is_wanted()) {
    append("pre_epilogue", args.pre_epilogue, true);
  }
}

// In the order of addresses, an extent meets an output before it exactly if it begins before the
// furthest end of an output so far; and an output meets any extent in the same way.
void check_group(const GroupedGemmArgs& args) {
  std::vector<Extent> extents;
  for (size_t i = 0; i < args.products.size(); ++i) {
    check_gemm(args.products[i]);
    append_extents(args.products[i], i, extents);
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& x, const Extent& y) {
    return x.begin != y.begin ? x.begin < y.begin : x.end < y.end;
  });
  const Extent* furthest_output = nullptr;
  const Extent* furthest = nullptr;
  for (const Extent& extent : extents) {
    const Extent* before = extent.is_output ? furthest : furthest_output;
    TE_CHECK(before == nullptr || before->end <= extent.begin, "grouped_gemm: ", extent.name,
             " of product ", extent.product, " shares memory with ", before->name, " of product ",
             before->product, "; outputs need memory of their own. Pass another tensor or a copy.");
    if (furthest == nullptr || furthest->end < extent.end) {
      furthest = &extent;
    }
    if (extent.is_output) {
      furthest_output = &extent;  // outputs do not overlap: the last one ends last
    }
  }
}

void run_one_by_one(const GroupedGemmArgs& args, const Context& context) {
  for (const GemmArgs& product : args.products) {
    if (product.d.numel() != 0) {
      run_first_candidate(kOp, kCandidates, product, context);
    }
  }
}

constexpr Candidate<GroupedGemmArgs> kGroupCandidates[] = {
    {"cpu", refuse_unless_cpu<GroupedGemmArgs>, run_one_by_one},
    cuda::kCandidate<GroupedGemmArgs>,
};

}  // namespace

void grouped_gemm(const GroupedGemmArgs& args, const Context& context) {
  check_group(args);
  if (!args.products.empty()) {
    run_first_candidate("grouped_gemm", kGroupCandidates, args, context);
  }
}

void gemm(const GemmArgs& args, const Context& context) {
  check_gemm(args);
  if (args.d.numel() != 0) {
    run_first_candidate(kOp, kCandidates, args, context);
  }
}

std::vector<GemmCandidateStatus> gemm_candidates(const GemmArgs& args, const Context& context) {
  check_gemm(args);
  std::vector<GemmCandidateStatus> statuses;
  for (const auto& candidate : kCandidates) {
    statuses.push_back({candidate.name, candidate.refusal(args, context)});
  }
  return statuses;
}

void gemm_on_candidate(const char* name, const GemmArgs& args, const Context& context) {
  check_gemm(args);
  for (const auto& candidate : kCandidates) {
    if (std::strcmp(candidate.name, name) == 0) {
      const char* reason = candidate.refusal(args, context);
      TE_CHECK_AS(NotImplementedError, reason == nullptr, kOp, ": ", name,
                  " refuses this problem: ", reason, ".");
      if (args.d.numel() != 0) {
        candidate.run(args, context);
      }
      return;
    }
  }
  throw ValueError(
      concat(kOp, ": candidate is '", name, "'; a name from gemm_candidates is required."));
}

}  // namespace transformer_engine
