// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "views.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <transformer_engine/error.h>
#include <transformer_engine/report.h>

#include <optional>

namespace transformer_engine::pytorch {

std::optional<DType> find_dtype(at::ScalarType type) {
  switch (type) {
    case at::ScalarType::Byte:
    case at::ScalarType::Bool:
      return DType::kByte;
    case at::ScalarType::Short:
      return DType::kInt16;
    case at::ScalarType::Int:
      return DType::kInt32;
    case at::ScalarType::Long:
      return DType::kInt64;
    case at::ScalarType::Float:
      return DType::kFloat32;
    case at::ScalarType::Half:
      return DType::kFloat16;
    case at::ScalarType::BFloat16:
      return DType::kBFloat16;
    case at::ScalarType::Float8_e4m3fn:
      return DType::kFloat8E4M3;
    case at::ScalarType::Float8_e5m2:
      return DType::kFloat8E5M2;
    default:
      return std::nullopt;
  }
}

DType dtype_of(at::ScalarType type) {
  const auto dtype = find_dtype(type);
  TE_CHECK_TYPE(dtype.has_value(), "tensor has dtype ", at::toString(type),
                "; float32, float16, bfloat16, a float8 type, uint8, bool, int16, int32 or int64 "
                "is required.");
  return *dtype;
}

at::ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return at::ScalarType::Float;
    case DType::kFloat16:
      return at::ScalarType::Half;
    case DType::kBFloat16:
      return at::ScalarType::BFloat16;
    case DType::kInt16:
      return at::ScalarType::Short;
    case DType::kInt32:
      return at::ScalarType::Int;
    case DType::kInt64:
      return at::ScalarType::Long;
    default:
      return at::ScalarType::Byte;
  }
}

TensorView matrix_view(const at::Tensor& tensor, DType dtype) {
  TensorView view;
  if (!tensor.defined()) {
    return view;
  }
  TE_CHECK(tensor.is_contiguous(), "tensor of shape ", tensor.sizes(), " has strides ",
           tensor.strides(), "; a contiguous tensor is required. Call .contiguous() first.");
  TE_CHECK(!tensor.is_neg(), "tensor of shape ", tensor.sizes(),
           " has its negative bit set; plain values are required. Call .resolve_neg() first.");
  view.data = tensor.data_ptr();
  view.dtype = dtype;
  view.framework_tensor = &tensor;
  const auto sizes = tensor.sizes();
  view.cols = sizes.empty() ? 1 : sizes.back();
  view.rows = 1;
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    view.rows *= sizes[i];
  }
  return view;
}

TensorView matrix_view(const at::Tensor& tensor) {
  return tensor.defined() ? matrix_view(tensor, dtype_of(tensor.scalar_type())) : TensorView{};
}

TensorView vector_view(const at::Tensor& tensor) {
  TensorView view = matrix_view(tensor);
  view.cols = view.numel();
  view.rows = tensor.defined() ? 1 : 0;
  return view;
}

float* float_data(const at::Tensor& tensor, const char* name) {
  if (!tensor.defined()) {
    return nullptr;
  }
  TE_CHECK_TYPE(tensor.scalar_type() == at::ScalarType::Float, name, " has dtype ",
                at::toString(tensor.scalar_type()), "; float32 is required.");
  return static_cast<float*>(tensor.data_ptr());
}

Context context_for(const at::Tensor& tensor) {
  Context context;
  if (tensor.is_cpu()) {
    static const DeviceType device = device_of_host_memory();
    context.device = device;
    context.num_threads = at::get_num_threads();
    return context;
  }
  TE_CHECK_AS(NotImplementedError, tensor.is_cuda() && has_cuda_backend(), "tensor is on ",
              tensor.device().str(), "; this build runs on the CPU",
              has_cuda_backend() ? " and on CUDA devices" : "",
              ". Move the module and its inputs with .to('cpu').");
  // The CUDA half of torch registers this interface when it is loaded: no CUDA header is needed.
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  context.device = DeviceType::kCUDA;
  context.device_index = tensor.device().index();
  context.stream = guard.getStreamNativeHandle(guard.getStream(tensor.device()));
  return context;
}

}  // namespace transformer_engine::pytorch
