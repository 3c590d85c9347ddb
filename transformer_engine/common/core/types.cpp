// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <transformer_engine/types.h>

namespace transformer_engine {

int64_t element_size_bytes(DType dtype) {
  switch (dtype) {
    case DType::kByte:
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
    case DType::kFloat8E8M0:
      return 1;
    case DType::kInt16:
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kInt32:
    case DType::kFloat32:
      return 4;
    case DType::kInt64:
      return 8;
    case DType::kFloat4E2M1:
      return 0;
  }
  return 0;
}

int64_t row_size_bytes(DType dtype, int64_t cols) {
  constexpr int64_t kE2M1Block = 16;
  return dtype == DType::kFloat4E2M1 ? (cols + kE2M1Block - 1) / kE2M1Block * (kE2M1Block / 2)
                                     : cols * element_size_bytes(dtype);
}

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kByte:
      return "byte";
    case DType::kInt16:
      return "int16";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kFloat32:
      return "float32";
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat8E4M3:
      return "float8_e4m3";
    case DType::kFloat8E5M2:
      return "float8_e5m2";
    case DType::kFloat8E8M0:
      return "float8_e8m0";
    case DType::kFloat4E2M1:
      return "float4_e2m1";
  }
  return "unknown";
}

bool is_high_precision(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

bool is_fp8(DType dtype) { return dtype == DType::kFloat8E4M3 || dtype == DType::kFloat8E5M2; }

}  // namespace transformer_engine
