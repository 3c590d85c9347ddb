// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Torch's operators as the core may call them (transformer_engine/framework.h). They are called in
// at::cpu, below the dispatcher: no autograd, no modes, and some 1 us less per call.
#include "framework_functions.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/version.h>
#include <transformer_engine/framework.h>
#include <transformer_engine/report.h>

#include "views.h"

namespace transformer_engine::pytorch {

namespace {

// The view's memory as a [rows, cols] tensor, or its transpose. The framework's own tensor is
// returned as it is where it has that shape already.
at::Tensor matrix_of(const TensorView& view, bool is_transposed) {
  const int64_t sizes[2] = {is_transposed ? view.cols : view.rows,
                            is_transposed ? view.rows : view.cols};
  const int64_t strides[2] = {is_transposed ? 1 : view.cols, is_transposed ? view.cols : 1};
  if (view.framework_tensor == nullptr) {
    return at::from_blob(view.data, sizes, strides, at::dtype(scalar_type_of(view.dtype)));
  }
  const auto& tensor = *static_cast<const at::Tensor*>(view.framework_tensor);
  if (!is_transposed && tensor.dim() == 2) {
    return tensor;
  }
  return at::cpu::as_strided(tensor, sizes, strides);
}

bool gemm_cpu(const GemmArgs& args) {
  const at::Tensor a = matrix_of(args.a.matrix, args.a.is_transposed);
  const at::Tensor b = matrix_of(args.b.matrix, !args.b.is_transposed);
  at::Tensor d = matrix_of(args.d, false);
  if (args.accumulate) {
    at::cpu::addmm_out(d, d, a, b);
  } else if (args.bias.is_wanted()) {
    at::cpu::addmm_out(d, matrix_of(args.bias, false), a, b);
  } else {
    at::cpu::mm_out(d, a, b);
  }
  return true;
}

// From torch's caching allocator, on the current stream of the device, which is the context's.
void* allocate_device(size_t bytes, const Context& context) {
  const c10::DeviceGuard guard(
      {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(context.device_index)});
  return c10::GetAllocator(c10::DeviceType::CUDA)->raw_allocate(bytes);
}
void free_device(void* memory, const Context& /*context*/) {
  c10::GetAllocator(c10::DeviceType::CUDA)->raw_deallocate(memory);
}

// As torch's own products on CUDA. allowTF32CuBLAS() raises where the setting was made by
// torch.backends.cuda.matmul.fp32_precision, which torch 2.11 and later can be asked for.
bool allows_tf32() {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 11)
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
         at::Float32Precision::TF32;
#else
  return at::globalContext().allowTF32CuBLAS();
#endif
}

}  // namespace

void register_torch_functions() {
  FrameworkFunctions functions{.name = "torch " TORCH_VERSION, .gemm_cpu = gemm_cpu};
  // Where host memory stands for a device's (report.h), torch's CUDA half may be absent.
  if (device_of_host_memory() == DeviceType::kCPU) {
    functions.allocate_device = allocate_device;
    functions.free_device = free_device;
  }
  functions.allows_tf32 = allows_tf32;
  register_framework_functions(functions);
}

}  // namespace transformer_engine::pytorch
