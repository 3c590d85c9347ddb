// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/operand.h"

#include "cuda/device/convert.h"
#include "cuda/dispatch.h"
#include "cuda/runtime.h"
#include "numerics/scale.h"

namespace transformer_engine::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kTileRows = 128;
constexpr int64_t kTileBlocks = 4;
constexpr int64_t kTileBytes = kTileRows * kTileBlocks;

constexpr int64_t kMxBlock = 32;
constexpr int64_t kNvfp4Block = 16;
constexpr int64_t kFp8Block = 128;
constexpr size_t kFirstWithFp8Blocks = 120900;

// One thread per byte of the tiles.
__global__ void __launch_bounds__(kThreads)
    scale_tiles(const uint8_t* __restrict__ scales, uint8_t* __restrict__ tiles, const int64_t rows,
                const int64_t blocks, const int64_t row_stride, const int64_t block_stride,
                const int64_t tiles_along_k, const int64_t bytes) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= bytes) {
    return;
  }
  const int64_t tile = i / kTileBytes;
  const int64_t within = i % kTileBytes;
  const int64_t row =
      tile / tiles_along_k * kTileRows + within % 16 / kTileBlocks * 32 + within / 16;
  const int64_t block = tile % tiles_along_k * kTileBlocks + within % kTileBlocks;
  const bool is_inside = row < rows && block < blocks;
  tiles[i] = is_inside ? scales[row * row_stride + block * block_stride] : uint8_t{0};
}

// What one operand contributes to alpha.
struct OperandScale {
  const float* scale_inv;  // or null
  const float* amax;       // or null
  float e4m3_max;
};
__device__ __forceinline__ float value_of(const OperandScale& scale) {
  if (scale.scale_inv != nullptr) {
    return *scale.scale_inv;
  }
  return scale.amax == nullptr ? 1.0F
                               : numerics::nvfp4_tensor_scale_inv(*scale.amax, scale.e4m3_max);
}
__global__ void gemm_scalars(const OperandScale a, const OperandScale b, float* out) {
  out[0] = value_of(a) * value_of(b);
  out[1] = 0.0F;
  out[2] = 1.0F;
  out[3] = 6.0F * a.e4m3_max;
  out[4] = 6.0F * b.e4m3_max;
}

OperandScale scale_of(const GemmOperand& operand) {
  const BlockScales& scales = operand.scales;
  return {operand.scale_inv, scales.is_row_scaled ? nullptr : scales.amax, scales.e4m3_max};
}

bool has_scalar(const GemmOperand& operand) {
  const OperandScale scale = scale_of(operand);
  return scale.scale_inv != nullptr || scale.amax != nullptr;
}

// ---- what cuBLASLt takes

bool is_aligned(const TensorView& view) {
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 &&
         row_size_bytes(view.dtype, view.cols) % 16 == 0;
}

// Rows of the result, which cuBLASLt's formats want in whole 16 bytes.
bool has_aligned_result(const GemmArgs& args) { return args.d.cols % 16 == 0; }

bool is_plain_fp8(const GemmOperand& operand) {
  return is_fp8(operand.matrix.dtype) && !operand.scales.is_wanted();
}
bool is_mxfp8(const GemmOperand& operand) {
  return is_fp8(operand.matrix.dtype) && operand.scales.is_wanted() &&
         operand.scales.dtype == DType::kFloat8E8M0 &&
         operand.scales.block_rows * operand.scales.block_cols == kMxBlock &&
         (operand.is_transposed ? operand.scales.block_rows : operand.scales.block_cols) ==
             kMxBlock;
}
bool is_nvfp4(const GemmOperand& operand) {
  return operand.matrix.dtype == DType::kFloat4E2M1 && !operand.is_transposed &&
         !operand.scales.is_row_scaled && operand.scales.block_rows == 1 &&
         operand.scales.block_cols == kNvfp4Block;
}

// cuBLAS documentation, "1D and 2D block scaling": the scales of 1 x 128 blocks lie [k / 128,
// rows], those of 128 x 128 blocks [rows / 128, k / 128 rounded up to 4].
bool has_fp8_blocks(const GemmOperand& operand) {
  const BlockScales& scales = operand.scales;
  if (!is_fp8(operand.matrix.dtype) || operand.is_transposed || !scales.is_wanted() ||
      scales.dtype != DType::kFloat32 || scales.block_cols != kFp8Block ||
      operand.matrix.cols % kFp8Block != 0 || reinterpret_cast<uintptr_t>(scales.data) % 16 != 0) {
    return false;
  }
  const int64_t blocks = operand.matrix.cols / kFp8Block;
  const int64_t rows = operand.matrix.rows;
  return scales.block_rows == 1
             ? rows % 4 == 0 && scales.row_stride == 1 && scales.col_stride == rows
             : scales.block_rows == kFp8Block && scales.col_stride == 1 &&
                   scales.row_stride == divide_up<int64_t>(blocks, 4) * 4;
}

// Whether all values of an operand, without what multiplies all of it, are numbers of `type`.
bool is_exact(const GemmOperand& operand, DType type) {
  if (operand.matrix.dtype == type || type == DType::kFloat32) {
    return true;
  }
  const bool has_wide_scales = is_fp8(operand.matrix.dtype) && operand.scales.is_wanted();
  return type == DType::kBFloat16 ? is_exact_in_bf16(operand)
                                  : !is_high_precision(operand.matrix.dtype) && !has_wide_scales &&
                                        !operand.scales.is_row_scaled;
}

template <typename Predicate>
bool both(const GemmArgs& args, const Predicate& predicate) {
  return predicate(args.a) && predicate(args.b);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    gemm_widen(const T* __restrict__ input, float* __restrict__ output, const int64_t numel) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < numel;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    output[i] = to_float(input[i]);
  }
}

// ---- epilogue

__device__ __forceinline__ float gelu(float x) {
  return x * (0.5F + 0.5F * tanhf(x * (0.79788456F + 0.03567741F * x * x)));
}

struct Bias {
  const void* data;  // or null
  DType dtype;
};
__device__ __forceinline__ float bias_at(const Bias& bias, int64_t column) {
  switch (bias.dtype) {
    case DType::kBFloat16:
      return to_float(static_cast<const __nv_bfloat16*>(bias.data)[column]);
    case DType::kFloat16:
      return to_float(static_cast<const __half*>(bias.data)[column]);
    default:
      return static_cast<const float*>(bias.data)[column];
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    gemm_finish(const float* __restrict__ sums, const Bias bias, T* __restrict__ pre_epilogue,
                T* __restrict__ d, const int64_t numel, const int64_t n, const bool has_gelu,
                const bool is_accumulating) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < numel;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    float value = sums != nullptr ? sums[i] : 0.0F;
    if (bias.data != nullptr) {
      value += bias_at(bias, i % n);
    }
    if (pre_epilogue != nullptr) {
      pre_epilogue[i] = from_float<T>(value);
    }
    value = has_gelu ? gelu(value) : value;
    d[i] = from_float<T>(is_accumulating ? value + to_float(d[i]) : value);
  }
}

}  // namespace

bool needs_transpose(const GemmOperand& operand, int compute_capability) {
  return operand.is_transposed && is_plain_fp8(operand) &&
         (compute_capability < 100 || compute_capability >= 120);
}

NativeFormat native_format(const GemmArgs& args, int compute_capability) {
  const bool has_two_e5m2 =
      args.a.matrix.dtype == DType::kFloat8E5M2 && args.b.matrix.dtype == DType::kFloat8E5M2;
  const int64_t k = operand_depth(args.a);
  const auto aligned = [&](const GemmOperand& operand) {
    return is_aligned(operand.matrix) || needs_transpose(operand, compute_capability);
  };
  if (has_two_e5m2 || !has_aligned_result(args) || !both(args, aligned) || k % 16 != 0) {
    return NativeFormat::kNone;
  }
  if (both(args, is_plain_fp8) && compute_capability >= 89) {
    return NativeFormat::kPerTensor;
  }
  if (compute_capability == 90 && cublaslt_version() >= kFirstWithFp8Blocks &&
      both(args, has_fp8_blocks) &&
      (args.a.scales.block_rows == 1 || args.b.scales.block_rows == 1)) {
    return NativeFormat::kFp8Blocks;
  }
  if (compute_capability < 100 || k % kMxBlock != 0) {
    return NativeFormat::kNone;
  }
  return both(args, is_mxfp8)   ? NativeFormat::kMxfp8
         : both(args, is_nvfp4) ? NativeFormat::kNvfp4
                                : NativeFormat::kNone;
}

int32_t block_scale_mode(const GemmOperand& operand) {
  return operand.scales.block_rows == 1 ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
                                        : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
}

int64_t swizzled_scale_bytes(const GemmOperand& operand, int64_t block) {
  const int64_t blocks = divide_up(operand_depth(operand), block);
  return divide_up(operand_rows(operand), kTileRows) * divide_up(blocks, kTileBlocks) * kTileBytes;
}

void swizzle_scales(const GemmOperand& operand, int64_t block, uint8_t* tiles,
                    cudaStream_t stream) {
  const BlockScales& scales = operand.scales;
  const int64_t blocks = divide_up(operand_depth(operand), block);
  const int64_t bytes = swizzled_scale_bytes(operand, block);
  launch(&scale_tiles,
         {.name = "scale_tiles",
          .grid = dim3(static_cast<unsigned>(divide_up<int64_t>(bytes, kThreads))),
          .block = dim3(kThreads),
          .stream = stream},
         static_cast<const uint8_t*>(scales.data), tiles, operand_rows(operand), blocks,
         operand.is_transposed ? scales.col_stride : scales.row_stride,
         operand.is_transposed ? scales.row_stride : scales.col_stride,
         divide_up(blocks, kTileBlocks), bytes);
}

void compute_scalars(const GemmArgs& args, float* out, cudaStream_t stream) {
  launch(&gemm_scalars, {.name = "gemm_scalars", .grid = 1, .block = 1, .stream = stream},
         scale_of(args.a), scale_of(args.b), out);
}

bool has_alpha(const GemmArgs& args) { return has_scalar(args.a) || has_scalar(args.b); }

DType multiplied_type(const GemmArgs& args) {
  const DType a = args.a.matrix.dtype;
  const DType b = args.b.matrix.dtype;
  const DType type = is_high_precision(a) ? a : is_high_precision(b) ? b : DType::kBFloat16;
  const auto fits = [&](const GemmOperand& operand) { return is_exact(operand, type); };
  return both(args, fits) ? type : DType::kFloat32;
}

void widen(const TensorView& input, float* output, const Context& context) {
  for_high_precision(input.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(&gemm_widen<T>,
           {.name = "gemm_widen",
            .grid = dim3(grid_stride_blocks(input.numel(), kThreads, context.device_index)),
            .block = dim3(kThreads),
            .stream = stream_of(context)},
           data_of<const T>(input), output, input.numel());
  });
}

void finish_product(const GemmArgs& args, const float* sums, const Context& context) {
  const int64_t numel = args.d.numel();
  for_high_precision(args.d.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(&gemm_finish<T>,
           {.name = "gemm_finish",
            .grid = dim3(grid_stride_blocks(numel, kThreads, context.device_index)),
            .block = dim3(kThreads),
            .stream = stream_of(context)},
           sums, Bias{args.bias.data, args.bias.dtype}, data_of<T>(args.pre_epilogue),
           data_of<T>(args.d), numel, args.d.cols, args.epilogue == GemmEpilogue::kGELU,
           args.accumulate);
  });
}

}  // namespace transformer_engine::cuda
