// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Plain types shared by every op: element types, devices, the execution context and non-owning
// tensor views.
#pragma once

#include <cstdint>

namespace transformer_engine {

// Element types. The values are part of the Python contract (transformer_engine.pytorch.DType).
enum class DType : int32_t {
  kByte = 0,
  kInt16 = 1,
  kInt32 = 2,
  kInt64 = 3,
  kFloat32 = 4,
  kFloat16 = 5,
  kBFloat16 = 6,
  kFloat8E4M3 = 7,
  kFloat8E5M2 = 8,
  kFloat8E8M0 = 9,
  kFloat4E2M1 = 10,
};

enum class DeviceType : int32_t { kCPU = 0, kCUDA = 1 };

// Where and how an op runs. Cheap to build for every call.
struct Context {
  DeviceType device = DeviceType::kCPU;
  int device_index = 0;
  void* stream = nullptr;  // cudaStream_t on CUDA, null on the CPU
  int num_threads = 1;     // upper bound on CPU threads for this call
};

// A non-owning view of a contiguous row-major matrix [rows, cols]. A vector of n elements is [1,
// n]. Vectors and matrices of zero elements are ordinary; `data` may then be null.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0;
  // The framework's own tensor object behind `data` (for torch: an at::Tensor), or null. Only the
  // framework's registered functions (framework.h) read it; kernels never do.
  const void* framework_tensor = nullptr;

  int64_t numel() const { return rows * cols; }
  // True when the caller asked for this (optional) operand.
  bool is_wanted() const { return data != nullptr || framework_tensor != nullptr; }
};

// Scales of a matrix that has one per block. Element (r, c), as stored, has scale number
// (r / block_rows) * row_stride + (c / block_cols) * col_stride of `data`: this describes every
// layout, padded and transposed ones too. What lies between is padding, which kernels do not touch.
struct BlockScales {
  void* data = nullptr;
  DType dtype = DType::kFloat32;  // kFloat32, kFloat8E8M0 or kFloat8E4M3
  int64_t block_rows = 1;
  int64_t block_cols = 1;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
  bool are_powers_of_two = false;  // of kFloat32: each is one
  // Second level of NVFP4 (kFloat8E4M3): elements are multiplied by amax / (6 * e4m3_max), too.
  float* amax = nullptr;       // [1], or [rows] when is_row_scaled
  bool is_row_scaled = false;  // amax is per row, as stored
  float e4m3_max = 448.0F;     // largest scale used: 448 or 256

  bool is_wanted() const { return data != nullptr; }
  int64_t index(int64_t row, int64_t col) const {
    return (row / block_rows) * row_stride + (col / block_cols) * col_stride;
  }
};

// One quantized copy, as stored. Bytes per row: cols for FP8; for E2M1, where two elements share a
// byte (the even one in the low half), half of cols rounded up to whole blocks of 16.
struct BlockScaledMatrix {
  TensorView data;
  BlockScales scales;

  bool is_wanted() const { return data.is_wanted() || scales.is_wanted(); }
};

// Where an op puts FP8 copies of its result with one scale per block, in the same pass; rules and
// layouts: block_scaling.h. FP32 scales mean FP8 blocks, E8M0 scales MXFP8.
struct BlockQuantizedOutput {
  BlockScaledMatrix rowwise = {};
  BlockScaledMatrix columnwise = {};
  float epsilon = 0.0F;           // FP8 blocks: amax of a block is raised to it
  bool has_square_tiles = false;  // MXFP8: the blocks of a 32 x 32 tile share their code

  bool is_wanted() const { return rowwise.is_wanted() || columnwise.is_wanted(); }
};

// Where an op puts FP8 copies of its result, in the same pass: with one scale for all of it, or in
// `blocks`. Each member is optional (null).
// q = saturating round-to-nearest-even cast of value * (*scale), where `value` is the result
// already rounded to the op's high-precision output type: a fused quantization gives the bytes that
// a separate one would give.
struct QuantizedOutput {
  TensorView data;               // [rows, cols] E4M3 or E5M2
  TensorView data_transpose;     // [cols, rows], same type as `data`
  const float* scale = nullptr;  // [1] read; null means 1
  float* scale_inv = nullptr;    // [1] written with 1 / *scale
  float* amax =
      nullptr;  // [1] max-accumulated: *amax = max(*amax, max|value|); NaN values are skipped

  BlockQuantizedOutput blocks = {};  // instead of the members above

  bool is_wanted() const { return is_per_tensor() || blocks.is_wanted(); }
  bool is_per_tensor() const {
    return data.is_wanted() || data_transpose.is_wanted() || amax != nullptr;
  }
};

// Size of one element in bytes; two elements share a byte for kFloat4E2M1 (returns 0 for it).
int64_t element_size_bytes(DType dtype);
// Bytes from one row of a matrix to the next: E2M1 rows are padded to whole blocks of 16.
int64_t row_size_bytes(DType dtype, int64_t cols);
const char* dtype_name(DType dtype);
bool is_high_precision(DType dtype);  // FP32, FP16, BF16
bool is_fp8(DType dtype);             // E4M3, E5M2

}  // namespace transformer_engine
