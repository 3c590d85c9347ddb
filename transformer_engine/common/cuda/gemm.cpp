// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// transformer_engine/gemm.h on CUDA: cuBLASLt, with conversions before and after where it does not
// take the problem as it is. In the order in which they are tried:
//   1. the operands in their own format (gemm/operand.h) or both in high precision, the epilogue
//      inside the product
//   2. the same, the sums to FP32 memory and the epilogue after them
//   3. the operands converted to high precision first, then 1 and 2
#include "cuda/candidate.h"
#include "cuda/gemm/matmul.h"
#include "cuda/gemm/operand.h"
#include "cuda/gemm/side_streams.h"
#include "cuda/runtime.h"
#include "cuda/workspace.h"

#include <transformer_engine/block_scaling.h>
#include <transformer_engine/cast.h>
#include <transformer_engine/error.h>
#include <transformer_engine/framework.h>
#include <transformer_engine/grouped_gemm.h>

#include <algorithm>
#include <utility>

namespace transformer_engine::cuda {

namespace {

constexpr char kOp[] = "gemm";

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return CUDA_R_16BF;
    case DType::kFloat16:
      return CUDA_R_16F;
    case DType::kFloat8E4M3:
      return CUDA_R_8F_E4M3;
    case DType::kFloat8E5M2:
      return CUDA_R_8F_E5M2;
    case DType::kFloat4E2M1:
      return CUDA_R_4F_E2M1;
    default:
      return CUDA_R_32F;
  }
}

// The operands as cuBLASLt gets them, in one workspace.
struct Operands {
  MatmulProblem problem;
  MatmulPointers pointers;
};

cublasComputeType_t compute_type(DType dtype) {
  const auto allows_tf32 = framework_functions().allows_tf32;
  return dtype == DType::kFloat32 && allows_tf32 != nullptr && allows_tf32()
             ? CUBLAS_COMPUTE_32F_FAST_TF32
             : CUBLAS_COMPUTE_32F;
}

MatmulProblem problem_of(const GemmArgs& args, const Context& context) {
  const auto [m, n, k] = gemm_shape(args);
  MatmulProblem problem;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.device = context.device_index;
  problem.compute_type = CUBLAS_COMPUTE_32F;
  problem.a_is_transposed = args.a.is_transposed ? 1 : 0;
  problem.b_is_transposed = args.b.is_transposed ? 1 : 0;
  return problem;
}

void set_operands(Operands& operands, const TensorView& a, const TensorView& b) {
  operands.problem.a_type = data_type(a.dtype);
  operands.problem.b_type = data_type(b.dtype);
  operands.problem.a_alignment = alignment_of(a.data);
  operands.problem.b_alignment = alignment_of(b.data);
  operands.pointers.a = a.data;
  operands.pointers.b = b.data;
}

void set_device_alpha(Operands& operands, bool is_accumulating, const float* scalars) {
  operands.problem.has_device_alpha = 1;
  operands.pointers.alpha = scalars;
  operands.pointers.beta = scalars + (is_accumulating ? 2 : 1);
}

// ---- the result

bool is_half(DType dtype) { return dtype == DType::kBFloat16 || dtype == DType::kFloat16; }

// Whether cuBLASLt writes this type from operands of type `operand` (cudaDataType_t).
bool can_write(int32_t operand, DType d) {
  switch (operand) {
    case CUDA_R_16BF:
      return d != DType::kFloat16;
    case CUDA_R_16F:
      return d != DType::kBFloat16;
    case CUDA_R_32F:
      return d == DType::kFloat32;
    default:
      return true;
  }
}

constexpr int32_t kAligned = 16;  // bytes: vectors that cuBLASLt's epilogues load and store

// Whether the epilogue can be part of the product.
bool can_fuse(const GemmArgs& args, int32_t operand_type) {
  if (!can_write(operand_type, args.d.dtype)) {
    return false;
  }
  if (args.bias.is_wanted() && args.bias.dtype != args.d.dtype) {
    return false;
  }
  const bool has_low_precision =
      operand_type != CUDA_R_32F && operand_type != CUDA_R_16BF && operand_type != CUDA_R_16F;
  if (args.bias.is_wanted() &&
      ((has_low_precision && !is_half(args.d.dtype)) || alignment_of(args.bias.data) < kAligned)) {
    return false;
  }
  // Its GELU is good to the digits of a two-byte type.
  if (args.epilogue == GemmEpilogue::kGELU && !is_half(args.d.dtype)) {
    return false;
  }
  if (!args.pre_epilogue.is_wanted()) {
    return true;
  }
  // Of the values before GELU; without it they would be d once more.
  return args.epilogue == GemmEpilogue::kGELU && args.d.cols % 8 == 0 &&
         alignment_of(args.pre_epilogue.data) >= kAligned;
}

cublasLtEpilogue_t epilogue_of(const GemmArgs& args) {
  int epilogue = args.epilogue == GemmEpilogue::kGELU ? CUBLASLT_EPILOGUE_GELU : 0;
  if (args.pre_epilogue.is_wanted()) {
    epilogue |= CUBLASLT_EPILOGUE_GELU_AUX;
  }
  if (args.bias.is_wanted()) {
    epilogue |= CUBLASLT_EPILOGUE_BIAS;
  }
  return static_cast<cublasLtEpilogue_t>(epilogue != 0 ? epilogue : CUBLASLT_EPILOGUE_DEFAULT);
}

bool multiply_fused(const GemmArgs& args, Operands operands, const Context& context) {
  MatmulProblem& problem = operands.problem;
  if (!can_fuse(args, problem.a_type)) {
    return false;
  }
  problem.d_type = data_type(args.d.dtype);
  problem.d_alignment = alignment_of(args.d.data);
  problem.epilogue = epilogue_of(args);
  problem.bias_type = args.bias.is_wanted() ? data_type(args.bias.dtype) : 0;
  problem.has_aux = args.pre_epilogue.is_wanted() ? 1 : 0;
  problem.is_accumulating = args.accumulate ? 1 : 0;
  operands.pointers.d = args.d.data;
  operands.pointers.bias = args.bias.data;
  operands.pointers.aux = args.pre_epilogue.data;
  return run_matmul(problem, operands.pointers, context);
}

// `sums`: [m, n] FP32 of working memory.
bool multiply_apart(const GemmArgs& args, Operands operands, float* sums, const Context& context) {
  MatmulProblem& problem = operands.problem;
  problem.d_type = CUDA_R_32F;
  problem.d_alignment = alignment_of(sums);
  problem.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  operands.pointers.d = sums;
  if (problem.has_device_alpha != 0) {
    operands.pointers.beta = operands.pointers.alpha + 1;  // 0: d is added afterwards
  }
  if (!run_matmul(problem, operands.pointers, context)) {
    return false;
  }
  finish_product(args, sums, context);
  return true;
}

bool multiply(const GemmArgs& args, const Operands& operands, const Context& context) {
  if (multiply_fused(args, operands, context)) {
    return true;
  }
  const Workspace sums(kOp, args.d.numel() * static_cast<int64_t>(sizeof(float)), context);
  return multiply_apart(args, operands, sums.data<float>(), context);
}

// ---- native operands

int64_t block_of(NativeFormat format) { return format == NativeFormat::kMxfp8 ? 32 : 16; }
int32_t scale_mode_of(NativeFormat format) {
  return format == NativeFormat::kMxfp8   ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0
         : format == NativeFormat::kNvfp4 ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3
                                          : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
}

// With k as stored columns, in `memory` where it is not.
TensorView with_k_columns(const GemmOperand& operand, bool is_moved, void* memory,
                          const Context& context) {
  if (!is_moved) {
    return operand.matrix;
  }
  TensorView view = operand.matrix;
  view.data = memory;
  std::swap(view.rows, view.cols);
  view.framework_tensor = nullptr;
  EntryPoint<TransposeArgs>::run({.input = operand.matrix, .output = view}, context);
  return view;
}

bool multiply_per_tensor(const GemmArgs& args, Operands operands, const Context& context) {
  const int capability = compute_capability(context.device_index);
  const bool moves_a = needs_transpose(args.a, capability);
  const bool moves_b = needs_transpose(args.b, capability);
  const int64_t a_bytes = moves_a ? Workspace::aligned(args.a.matrix.numel()) : 0;
  const int64_t b_bytes = moves_b ? Workspace::aligned(args.b.matrix.numel()) : 0;
  const Workspace memory(kOp, a_bytes + b_bytes, context);
  set_operands(operands, with_k_columns(args.a, moves_a, memory.data(), context),
               with_k_columns(args.b, moves_b, memory.data(a_bytes), context));
  operands.problem.a_is_transposed = args.a.is_transposed && !moves_a ? 1 : 0;
  operands.problem.b_is_transposed = args.b.is_transposed && !moves_b ? 1 : 0;
  operands.problem.has_fast_accumulation = args.allows_fast_accumulation ? 1 : 0;
  operands.pointers.a_scale = args.a.scale_inv;
  operands.pointers.b_scale = args.b.scale_inv;
  return multiply(args, operands, context);
}

bool multiply_native(const GemmArgs& args, NativeFormat format, const Context& context) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  Operands operands{.problem = problem_of(args, context), .pointers = {}};
  operands.problem.has_scales = 1;
  operands.problem.a_scale_mode = operands.problem.b_scale_mode = scale_mode_of(format);
  if (format == NativeFormat::kPerTensor) {
    return multiply_per_tensor(args, operands, context);
  }
  set_operands(operands, args.a.matrix, args.b.matrix);
  if (format == NativeFormat::kFp8Blocks) {
    operands.problem.a_scale_mode = block_scale_mode(args.a);
    operands.problem.b_scale_mode = block_scale_mode(args.b);
    operands.pointers.a_scale = args.a.scales.data;
    operands.pointers.b_scale = args.b.scales.data;
    return multiply(args, operands, context);
  }
  const int64_t block = block_of(format);
  const int64_t a_bytes = Workspace::aligned(swizzled_scale_bytes(args.a, block));
  const int64_t b_bytes = Workspace::aligned(swizzled_scale_bytes(args.b, block));
  const Workspace memory(kOp, a_bytes + b_bytes + kScalars * int64_t{sizeof(float)}, context);
  swizzle_scales(args.a, block, memory.data<uint8_t>(), stream);
  swizzle_scales(args.b, block, memory.data<uint8_t>(a_bytes), stream);
  operands.pointers.a_scale = memory.data();
  operands.pointers.b_scale = memory.data(a_bytes);
  if (format == NativeFormat::kNvfp4) {
    float* scalars = memory.data<float>(a_bytes + b_bytes);
    compute_scalars(args, scalars, stream);
    set_device_alpha(operands, args.accumulate, scalars);
  }
  return multiply(args, operands, context);
}

// ---- operands in high precision

int64_t converted_bytes(const GemmOperand& operand, DType type) {
  return operand.matrix.dtype == type
             ? 0
             : Workspace::aligned(operand.matrix.numel() * element_size_bytes(type));
}

// The operand's matrix in `type`, without what multiplies all of it; itself where it has the type.
TensorView converted(const GemmOperand& operand, DType type, void* memory, float* unit_amax,
                     const Context& context) {
  if (operand.matrix.dtype == type) {
    return operand.matrix;
  }
  TensorView view = operand.matrix;
  view.data = memory;
  view.dtype = type;
  view.framework_tensor = nullptr;
  if (is_high_precision(operand.matrix.dtype)) {
    widen(operand.matrix, static_cast<float*>(memory), context);
    return view;
  }
  if (!operand.scales.is_wanted()) {
    EntryPoint<DequantizeArgs>::run({.input = operand.matrix, .scale_inv = nullptr, .output = view},
                                    context);
    return view;
  }
  BlockScaledMatrix matrix{operand.matrix, operand.scales};
  if (matrix.scales.amax != nullptr && !matrix.scales.is_row_scaled) {
    matrix.scales.amax = unit_amax;
  }
  EntryPoint<DequantizeBlocksArgs>::run({.input = matrix, .output = view}, context);
  return view;
}

bool multiply_converted(const GemmArgs& args, const Context& context) {
  const DType type = multiplied_type(args);
  const int64_t a_bytes = converted_bytes(args.a, type);
  const int64_t b_bytes = converted_bytes(args.b, type);
  const bool needs_scalars = has_alpha(args);
  const Workspace memory(
      kOp, a_bytes + b_bytes + (needs_scalars ? kScalars * int64_t{sizeof(float)} : 0), context);
  float* scalars = needs_scalars ? memory.data<float>(a_bytes + b_bytes) : nullptr;
  Operands operands{.problem = problem_of(args, context), .pointers = {}};
  if (needs_scalars) {
    compute_scalars(args, scalars, static_cast<cudaStream_t>(context.stream));
    set_device_alpha(operands, args.accumulate, scalars);
  }
  set_operands(
      operands,
      converted(args.a, type, memory.data(), needs_scalars ? scalars + 3 : nullptr, context),
      converted(args.b, type, memory.data(a_bytes), needs_scalars ? scalars + 4 : nullptr,
                context));
  operands.problem.compute_type = compute_type(type);
  return multiply(args, operands, context);
}

}  // namespace

template <>
const char* EntryPoint<GemmArgs>::refusal(const GemmArgs&, const Context& context) {
  TE_ENTER_EMULATED_BACKEND();
  return context.device == DeviceType::kCUDA ? cublaslt_refusal()
                                             : "the tensors are not in device memory";
}

template <>
void EntryPoint<GemmArgs>::run(const GemmArgs& args, const Context& context) {
  TE_ENTER_EMULATED_BACKEND();
  const DeviceScope scope(context.device_index);
  if (operand_depth(args.a) == 0) {
    finish_product(args, nullptr, context);
    return;
  }
  const NativeFormat format = native_format(args, compute_capability(context.device_index));
  if (format != NativeFormat::kNone && multiply_native(args, format, context)) {
    return;
  }
  const bool is_done = multiply_converted(args, context);
  const auto [m, n, k] = gemm_shape(args);
  TE_CHECK_AS(RuntimeError, is_done, "gemm: cuBLASLt ", cublaslt_version(),
              " has no algorithm for m = ", m, ", n = ", n, ", k = ", k, " and operands of ",
              dtype_name(args.a.matrix.dtype), " and ", dtype_name(args.b.matrix.dtype),
              "; one is required. Update cuBLAS.");
}

template <>
const char* EntryPoint<GroupedGemmArgs>::refusal(const GroupedGemmArgs&, const Context& context) {
  return EntryPoint<GemmArgs>::refusal({}, context);
}

template <>
void EntryPoint<GroupedGemmArgs>::run(const GroupedGemmArgs& args, const Context& context) {
  const DeviceScope scope(context.device_index);
  const int streams =
      static_cast<int>(std::min<size_t>(args.products.size(), size_t{1} + SideStreams::kCount));
  const HeldWorkspaces held;  // outlives `side`, which joins the streams
  SideStreams side(context.device_index, static_cast<cudaStream_t>(context.stream), streams - 1);
  int next = 0;
  for (const GemmArgs& product : args.products) {
    if (product.d.numel() != 0) {
      Context own = context;
      own.stream = side.stream(next);
      next = (next + 1) % streams;
      EntryPoint<GemmArgs>::run(product, own);
    }
  }
  side.join();
}

}  // namespace transformer_engine::cuda
