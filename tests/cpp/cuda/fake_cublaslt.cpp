// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/fake_cublaslt.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "cuda/runtime.h"
#include "device_memory.h"
#include "numerics/e8m0.h"
#include "numerics/half.h"
#include "numerics/minifloat.h"
#include "stream_log.h"

namespace transformer_engine::testing {

namespace {

// What lies in cuBLASLt's opaque structures.
struct Operation {
  int32_t compute_type = 0;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  int32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int32_t bias_type = 0, aux_type = 0;
  int32_t a_mode = 0, b_mode = 0;
  int32_t pointer_mode = 0;
  int8_t fast_accumulation = 0;
  int64_t aux_leading = 0;
  const void* bias = nullptr;
  void* aux = nullptr;
  const void* a_scale = nullptr;
  const void* b_scale = nullptr;
};
struct Layout {
  int32_t type;
  int64_t rows, cols, leading;
};
struct Preference {
  uint64_t workspace_bytes;
  uint32_t alignment[4];  // of A, B, C, D
};
static_assert(sizeof(Operation) <= sizeof(cublasLtMatmulDescOpaque_t));
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));

constexpr uint64_t kAlgorithm = 0x7E57;  // in the algorithm that the heuristics give

Operation& operation_of(cublasLtMatmulDesc_t opaque) {
  return *reinterpret_cast<Operation*>(opaque);
}
const Layout& layout_of(cublasLtMatrixLayout_t opaque) {
  return *reinterpret_cast<const Layout*>(opaque);
}
Preference& preference_of(cublasLtMatmulPreference_t opaque) {
  return *reinterpret_cast<Preference*>(opaque);
}

bool is_fp8_type(int32_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
bool is_low_precision(int32_t type) { return is_fp8_type(type) || type == CUDA_R_4F_E2M1; }
int64_t bits_of(int32_t type) {
  return type == CUDA_R_32F ? 32 : is_fp8_type(type) ? 8 : type == CUDA_R_4F_E2M1 ? 4 : 16;
}

// ---- elements, by columns

double load(const void* data, int32_t type, int64_t index) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  switch (type) {
    case CUDA_R_16BF:
      return numerics::float_from_bf16(static_cast<const uint16_t*>(data)[index]);
    case CUDA_R_16F:
      return numerics::float_from_fp16(static_cast<const uint16_t*>(data)[index]);
    case CUDA_R_8F_E4M3:
      return numerics::decode<numerics::E4M3>(bytes[index]);
    case CUDA_R_8F_E5M2:
      return numerics::decode<numerics::E5M2>(bytes[index]);
    case CUDA_R_4F_E2M1:
      return numerics::decode<numerics::E2M1>(
          numerics::unpack_e2m1(bytes[index / 2], index % 2 != 0));
    default:
      return static_cast<const float*>(data)[index];
  }
}
void store(void* data, int32_t type, int64_t index, float value) {
  switch (type) {
    case CUDA_R_16BF:
      static_cast<uint16_t*>(data)[index] = numerics::bf16_from_float(value);
      break;
    case CUDA_R_16F:
      static_cast<uint16_t*>(data)[index] = numerics::fp16_from_float(value);
      break;
    default:
      static_cast<float*>(data)[index] = value;
  }
}

// Scale of (outer, k) of an operand: the layout of the documentation.
double block_scale(const void* scales, int32_t mode, int64_t outer, int64_t outer_size, int64_t i,
                   int64_t k) {
  if (scales == nullptr) {
    return 1.0;
  }
  if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F) {
    return *static_cast<const float*>(scales);
  }
  const auto* factors = static_cast<const float*>(scales);
  if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F) {
    return factors[i / 128 * outer_size + outer];
  }
  if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F) {
    return factors[outer / 128 * ((k + 511) / 512 * 4) + i / 128];
  }
  const int64_t block = mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 ? 32 : 16;
  const int64_t blocks = (k + block - 1) / block;
  const int64_t tiles = (blocks + 3) / 4;
  const int64_t inner = i / block;
  const int64_t index =
      (outer / 128 * tiles + inner / 4) * 512 + outer % 32 * 16 + outer % 128 / 32 * 4 + inner % 4;
  const uint8_t code = static_cast<const uint8_t*>(scales)[index];
  return block == 32 ? numerics::decode_e8m0(code) : numerics::decode<numerics::E4M3>(code);
}

struct Operand {
  const void* data;
  const Layout& layout;
  bool is_transposed;
  const void* scale;
  int32_t mode;
  int64_t k;

  // Element (outer, i), i along k: op(A)[outer, i] or op(B)[i, outer].
  double at(int64_t outer, int64_t i, bool is_first) const {
    // A is [m, k] and stored so unless transposed; B is [k, n].
    const bool has_k_rows = is_first == is_transposed;
    const int64_t row = has_k_rows ? i : outer;
    const int64_t col = has_k_rows ? outer : i;
    const int64_t outer_size = has_k_rows ? layout.cols : layout.rows;
    return load(data, layout.type, row + col * layout.leading) *
           block_scale(scale, mode, outer, outer_size, i, k);
  }
};

// ---- what is supported

bool is_supported_result(int32_t a, int32_t d) {
  if (is_low_precision(a)) {
    return d == CUDA_R_16BF || d == CUDA_R_16F || d == CUDA_R_32F;
  }
  return d == a || d == CUDA_R_32F;
}
bool has_fp8_blocks(int32_t mode) {
  return mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F ||
         mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
}
bool is_supported_low_precision(const Operation& operation, const Layout& a, const Layout& b,
                                const Preference& preference) {
  const int capability = cuda::compute_capability(0);
  const bool is_tn = operation.transpose_a == CUBLAS_OP_T && operation.transpose_b == CUBLAS_OP_N;
  const bool is_scalar = operation.a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  const bool has_rows_of_16_bytes =
      a.leading * bits_of(a.type) % 128 == 0 && b.leading * bits_of(b.type) % 128 == 0;
  if (a.type == CUDA_R_4F_E2M1) {
    return capability >= 100 && is_tn && b.type == a.type && has_rows_of_16_bytes &&
           operation.a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3 &&
           operation.b_mode == operation.a_mode;
  }
  if (has_fp8_blocks(operation.a_mode)) {
    constexpr int32_t kSquare = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    return capability == 90 && is_tn && is_fp8_type(b.type) && has_fp8_blocks(operation.b_mode) &&
           !(operation.a_mode == kSquare && operation.b_mode == kSquare) && has_rows_of_16_bytes &&
           a.rows % 128 == 0 && a.cols % 4 == 0 && b.cols % 4 == 0 &&
           operation.fast_accumulation == 0 && (operation.epilogue & CUBLASLT_EPILOGUE_GELU) == 0;
  }
  return is_fp8_type(b.type) && !(a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2) &&
         has_rows_of_16_bytes && operation.b_mode == operation.a_mode &&
         (is_tn || (capability >= 100 && capability < 120)) && (is_scalar || capability >= 100) &&
         preference.alignment[0] >= 16 && preference.alignment[1] >= 16;
}
bool is_supported(const Operation& operation, const Layout& a, const Layout& b, const Layout& d,
                  const Preference& preference) {
  if (!is_supported_result(a.type, d.type)) {
    return false;
  }
  const bool has_bias = (operation.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
  if (has_bias && operation.bias_type != d.type) {
    return false;
  }
  if ((operation.epilogue & 128) != 0 &&
      (operation.aux_leading % 8 != 0 || operation.aux_leading < d.rows ||
       operation.aux_type != d.type)) {
    return false;
  }
  return is_low_precision(a.type) ? is_supported_low_precision(operation, a, b, preference)
                                  : a.type == b.type && operation.a_scale == nullptr;
}

// ---- the library's functions

cublasStatus_t create(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(uintptr_t{0x1});
  return CUBLAS_STATUS_SUCCESS;
}
size_t version() { return 130100; }
const char* status_string(cublasStatus_t) { return "a status of the stand-in"; }

cublasStatus_t init_operation(cublasLtMatmulDesc_t opaque, size_t size, cublasComputeType_t compute,
                              cudaDataType_t scale) {
  if (size < sizeof(Operation) || scale != CUDA_R_32F) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  operation_of(opaque) = Operation{.compute_type = compute};
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Value>
cublasStatus_t take(Value& target, const void* value, size_t size) {
  if (size != sizeof(Value)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(&target, value, size);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t set_operation(cublasLtMatmulDesc_t opaque, cublasLtMatmulDescAttributes_t attribute,
                             const void* value, size_t size) {
  Operation& operation = operation_of(opaque);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return take(operation.transpose_a, value, size);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return take(operation.transpose_b, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return take(operation.epilogue, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return take(operation.bias_type, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return take(operation.bias, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return take(operation.aux, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return take(operation.aux_leading, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
      return take(operation.aux_type, value, size);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      return take(operation.a_mode, value, size);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      return take(operation.b_mode, value, size);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return take(operation.a_scale, value, size);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return take(operation.b_scale, value, size);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return take(operation.pointer_mode, value, size);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return take(operation.fast_accumulation, value, size);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t init_layout(cublasLtMatrixLayout_t opaque, size_t size, cudaDataType type,
                           uint64_t rows, uint64_t cols, int64_t leading) {
  if (size < sizeof(Layout) || leading < static_cast<int64_t>(rows)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *reinterpret_cast<Layout*>(opaque) = {type, static_cast<int64_t>(rows),
                                        static_cast<int64_t>(cols), leading};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t init_preference(cublasLtMatmulPreference_t opaque, size_t) {
  preference_of(opaque) = {0, {256, 256, 256, 256}};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t set_preference(cublasLtMatmulPreference_t opaque,
                              cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                              size_t size) {
  Preference& preference = preference_of(opaque);
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    return take(preference.workspace_bytes, value, size);
  }
  if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) {
    return take(FakeCublasLt::calls().reduction_schemes, value, size);
  }
  return take(preference.alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
              size);
}

cublasStatus_t find_algorithm(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                              cublasLtMatmulPreference_t preference, int,
                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  CublasLtCalls& calls = FakeCublasLt::calls();
  ++calls.heuristics;
  *found = 0;
  if (layout_of(a).type == calls.refused_type ||
      !is_supported(operation_of(operation), layout_of(a), layout_of(b), layout_of(d),
                    preference_of(preference))) {
    ++calls.refusals;
    return calls.refusal;
  }
  *found = 1;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].algo.data[0] = kAlgorithm;
  return CUBLAS_STATUS_SUCCESS;
}

float gelu(float x) {
  const double wide = x;
  return static_cast<float>(
      wide * (0.5 + 0.5 * std::tanh(wide * (0.79788456 + 0.03567741 * wide * wide))));
}

void write(const Operation& operation, const Layout& d_layout, void* d, int64_t row, int64_t col,
           float value, float beta) {
  if ((operation.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0) {  // one number per row, by columns
    value += static_cast<float>(load(operation.bias, operation.bias_type, row));
  }
  if ((operation.epilogue & 128) != 0) {
    store(operation.aux, operation.aux_type, row + col * operation.aux_leading, value);
  }
  if ((operation.epilogue & CUBLASLT_EPILOGUE_GELU) != 0) {
    value = gelu(value);
  }
  const int64_t index = row + col * d_layout.leading;
  if (beta != 0.0F) {
    value += beta * static_cast<float>(load(d, d_layout.type, index));
  }
  store(d, d_layout.type, index, value);
}

cublasStatus_t matmul(cublasLtHandle_t, cublasLtMatmulDesc_t opaque, const void* alpha,
                      const void* a, cublasLtMatrixLayout_t a_opaque, const void* b,
                      cublasLtMatrixLayout_t b_opaque, const void* beta, const void* c,
                      cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_opaque,
                      const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t,
                      cudaStream_t stream) {
  cuda_emulator::log_stream({.act = cuda_emulator::StreamStep::Act::kWork, .stream = stream});
  const cuda_emulator::DeviceAccess access;
  const Operation& operation = operation_of(opaque);
  const Layout& d_layout = layout_of(d_opaque);
  if (algorithm->data[0] != kAlgorithm || c != d || workspace == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  CublasLtCalls& calls = FakeCublasLt::calls();
  ++calls.matmuls;
  calls.a_type = layout_of(a_opaque).type;
  calls.b_type = layout_of(b_opaque).type;
  calls.d_type = d_layout.type;
  calls.epilogue = operation.epilogue;
  calls.scale_mode = operation.a_mode;
  calls.fast_matmuls += operation.fast_accumulation;
  const Layout& a_layout = layout_of(a_opaque);
  const bool a_transposed = operation.transpose_a == CUBLAS_OP_T;
  const int64_t k = a_transposed ? a_layout.rows : a_layout.cols;
  const Operand first{a, a_layout, a_transposed, operation.a_scale, operation.a_mode, k};
  const Operand second{b,
                       layout_of(b_opaque),
                       operation.transpose_b == CUBLAS_OP_T,
                       operation.b_scale,
                       operation.b_mode,
                       k};
  for (int64_t col = 0; col < d_layout.cols; ++col) {
    for (int64_t row = 0; row < d_layout.rows; ++row) {
      double sum = 0.0;
      for (int64_t i = 0; i < k; ++i) {
        sum += first.at(row, i, true) * second.at(col, i, false);
      }
      write(operation, d_layout, d, row, col,
            static_cast<float>(sum) * *static_cast<const float*>(alpha),
            *static_cast<const float*>(beta));
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

constexpr cuda::CublasLt kFunctions{.create = &create,
                                    .version = &version,
                                    .status_string = &status_string,
                                    .init_operation = &init_operation,
                                    .set_operation = &set_operation,
                                    .init_layout = &init_layout,
                                    .init_preference = &init_preference,
                                    .set_preference = &set_preference,
                                    .find_algorithm = &find_algorithm,
                                    .matmul = &matmul};

}  // namespace

FakeCublasLt::FakeCublasLt() {
  calls() = {};
  cuda::replace_cublaslt(&kFunctions);
}
FakeCublasLt::~FakeCublasLt() { cuda::replace_cublaslt(nullptr); }
CublasLtCalls& FakeCublasLt::calls() {
  static CublasLtCalls counted;
  return counted;
}

}  // namespace transformer_engine::testing
