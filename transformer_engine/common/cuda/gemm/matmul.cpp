// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/matmul.h"

#include <transformer_engine/error.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "cuda/gemm/stream_workspace.h"
#include "cuda/workspace.h"

namespace transformer_engine::cuda {

namespace {

// Of the workspace that algorithms may ask for: what NVIDIA recommends for Hopper and Blackwell.
constexpr size_t kWorkspaceBytes = 32 << 20;

void check_cublaslt(cublasStatus_t status, const char* function) {
  TE_CHECK_AS(RuntimeError, status == CUBLAS_STATUS_SUCCESS, "gemm: ", function, " failed with \"",
              cublaslt().status_string(status),
              "\"; a problem that cuBLASLt takes is required. Report it with the shapes and dtypes "
              "of the operands.");
}

struct Plan {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, d;
  cublasLtMatmulAlgo_t algorithm;
};

template <typename Value>
void set(Plan& plan, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  check_cublaslt(cublaslt().set_operation(&plan.operation, attribute, &value, sizeof value),
                 "cublasLtMatmulDescSetAttribute");
}

// A matrix [rows, k] of ours is, by columns, a [k, rows] one; transposed, as stored [k, rows], a
// [rows, k] one.
void init_operand(cublasLtMatrixLayoutOpaque_t& layout, int32_t type, int64_t rows, int64_t k,
                  bool is_transposed) {
  const auto inner = static_cast<uint64_t>(is_transposed ? rows : k);
  const auto outer = static_cast<uint64_t>(is_transposed ? k : rows);
  check_cublaslt(cublaslt().init_layout(&layout, sizeof layout, static_cast<cudaDataType>(type),
                                        inner, outer, static_cast<int64_t>(inner)),
                 "cublasLtMatrixLayoutInit");
}

void init_operation(Plan& plan, const MatmulProblem& problem) {
  check_cublaslt(
      cublaslt().init_operation(&plan.operation, sizeof plan.operation,
                                static_cast<cublasComputeType_t>(problem.compute_type), CUDA_R_32F),
      "cublasLtMatmulDescInit");
  // cuBLASLt's first operand is our B, its second our A.
  set(plan, CUBLASLT_MATMUL_DESC_TRANSA, problem.b_is_transposed != 0 ? CUBLAS_OP_N : CUBLAS_OP_T);
  set(plan, CUBLASLT_MATMUL_DESC_TRANSB, problem.a_is_transposed != 0 ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<cublasLtEpilogue_t>(problem.epilogue));
  if ((problem.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0) {
    set(plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, problem.bias_type);
  }
  if (problem.has_aux != 0) {
    set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, problem.n);
    set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, problem.d_type);
  }
  if (problem.has_scales != 0) {
    set(plan, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, problem.b_scale_mode);
    set(plan, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, problem.a_scale_mode);
    set(plan, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(problem.has_fast_accumulation));
  }
  if (problem.has_device_alpha != 0) {
    set(plan, CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE);
  }
}

void set_pointers(Plan& plan, const MatmulProblem& problem, const MatmulPointers& pointers) {
  if ((problem.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0) {
    set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, pointers.bias);
  }
  if (problem.has_aux != 0) {
    set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, pointers.aux);
  }
  if (problem.has_scales != 0) {
    set(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, pointers.b_scale);
    set(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, pointers.a_scale);
  }
}

cublasLtHandle_t handle_of(int device) {
  static std::mutex mutex;
  static std::unordered_map<int, cublasLtHandle_t> handles;
  const std::lock_guard lock(mutex);
  cublasLtHandle_t& handle = handles[device];
  if (handle == nullptr) {
    check_cublaslt(cublaslt().create(&handle), "cublasLtCreate");
  }
  return handle;
}

template <typename Value>
void prefer(cublasLtMatmulPreferenceOpaque_t& preference,
            cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
  check_cublaslt(cublaslt().set_preference(&preference, attribute, &value, sizeof value),
                 "cublasLtMatmulPreferenceSetAttribute");
}

// A problem that cuBLASLt calls invalid is a mistake of ours. It is multiplied as one without an
// algorithm, more slowly, and that is said: once for each problem and thread.
void warn_of(const MatmulProblem& problem) {
  std::fprintf(stderr,
               "gemm: cuBLASLt %zu calls a product invalid: m %lld, n %lld, k %lld, transposed %d "
               "%d, types %d %d -> %d, bias %d, compute %d, scales %d (%d, %d), epilogue %d, "
               "aligned to %d, %d, %d; one that it takes was expected. It is multiplied in another "
               "way; report this line.\n",
               cublaslt().version(), static_cast<long long>(problem.m),
               static_cast<long long>(problem.n), static_cast<long long>(problem.k),
               problem.a_is_transposed, problem.b_is_transposed, problem.a_type, problem.b_type,
               problem.d_type, problem.bias_type, problem.compute_type, problem.has_scales,
               problem.a_scale_mode, problem.b_scale_mode, problem.epilogue, problem.a_alignment,
               problem.b_alignment, problem.d_alignment);
}

// False where there is none.
bool find_algorithm(Plan& plan, const MatmulProblem& problem) {
  cublasLtMatmulPreferenceOpaque_t preference;
  check_cublaslt(cublaslt().init_preference(&preference, sizeof preference),
                 "cublasLtMatmulPreferenceInit");
  prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  // Where k is split, parts are added in FP32, not in the type of the result.
  prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
         static_cast<uint32_t>(problem.b_alignment));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
         static_cast<uint32_t>(problem.a_alignment));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
         static_cast<uint32_t>(problem.d_alignment));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
         static_cast<uint32_t>(problem.d_alignment));
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status =
      cublaslt().find_algorithm(handle_of(problem.device), &plan.operation, &plan.b, &plan.a,
                                &plan.d, &plan.d, &preference, 1, &result, &found);
  if (status == CUBLAS_STATUS_INVALID_VALUE) {
    warn_of(problem);
    return false;
  }
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
    return false;
  }
  check_cublaslt(status, "cublasLtMatmulAlgoGetHeuristic");
  plan.algorithm = result.algo;
  return found == 1 && result.state == CUBLAS_STATUS_SUCCESS;
}

struct ProblemHash {
  size_t operator()(const MatmulProblem& problem) const {
    return std::hash<std::string_view>{}({reinterpret_cast<const char*>(&problem), sizeof problem});
  }
};
struct ProblemEqual {
  bool operator()(const MatmulProblem& a, const MatmulProblem& b) const {
    return std::memcmp(&a, &b, sizeof a) == 0;
  }
};
using Plans = std::unordered_map<MatmulProblem, std::unique_ptr<Plan>, ProblemHash, ProblemEqual>;

// Of this thread: pointers are written into the descriptor, which two threads could not share.
Plans& plans() {
  static thread_local Plans of_thread;
  return of_thread;
}

constexpr size_t kMostPlans = 4096;  // of about a kilobyte: inputs may be of a new size each time

// Null where cuBLASLt has no algorithm.
Plan* plan_for(const MatmulProblem& problem, const MatmulPointers& pointers) {
  const auto known = plans().find(problem);
  if (known != plans().end()) {
    if (known->second != nullptr) {
      set_pointers(*known->second, problem, pointers);
    }
    return known->second.get();
  }
  auto plan = std::make_unique<Plan>();
  init_operation(*plan, problem);
  set_pointers(*plan, problem, pointers);  // the heuristics look at their alignment
  init_operand(plan->a, problem.a_type, problem.m, problem.k, problem.a_is_transposed != 0);
  init_operand(plan->b, problem.b_type, problem.n, problem.k, problem.b_is_transposed != 0);
  init_operand(plan->d, problem.d_type, problem.m, problem.n, false);
  if (!find_algorithm(*plan, problem)) {
    plan = nullptr;
  }
  if (plans().size() >= kMostPlans) {
    plans().clear();
  }
  return plans().emplace(problem, std::move(plan)).first->second.get();
}

}  // namespace

int32_t alignment_of(const void* pointer) {
  constexpr uintptr_t kMost = 256;
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return static_cast<int32_t>(std::min(address & -address, kMost)) + (address == 0 ? 256 : 0);
}

bool run_matmul(const MatmulProblem& problem, const MatmulPointers& pointers,
                const Context& context) {
  Plan* plan = plan_for(problem, pointers);
  if (plan == nullptr) {
    return false;
  }
  const float host_alpha = 1.0F;
  const float host_beta = problem.is_accumulating != 0 ? 1.0F : 0.0F;
  const bool is_on_device = problem.has_device_alpha != 0;
  const float* alpha = is_on_device ? pointers.alpha : &host_alpha;
  const float* beta = is_on_device ? pointers.beta : &host_beta;
  const auto stream = static_cast<cudaStream_t>(context.stream);
  // A graph owns its memory: its replays may run beside what follows on the stream now capturing.
  const bool is_recorded = is_capturing(stream);
  const Workspace recorded("gemm", is_recorded ? kWorkspaceBytes : 0, context);
  void* workspace =
      is_recorded ? recorded.data() : stream_workspace(problem.device, stream, kWorkspaceBytes);
  check_cublaslt(
      cublaslt().matmul(handle_of(problem.device), &plan->operation, alpha, pointers.b, &plan->b,
                        pointers.a, &plan->a, beta, pointers.d, &plan->d, pointers.d, &plan->d,
                        &plan->algorithm, workspace, kWorkspaceBytes, stream),
      "cublasLtMatmul");
  return true;
}

size_t cached_matmuls() { return plans().size(); }

}  // namespace transformer_engine::cuda
