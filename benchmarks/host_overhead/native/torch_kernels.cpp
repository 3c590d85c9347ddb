// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// torch's CPU kernels of the modules compared with, without their work: they allocate results of
// the shape, dtype and layout that the real ones return. Dispatch and autograd stay as they are.
#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/library.h>
#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#endif

#include "kernel_count.h"

int64_t te_allocate_only_torch_kernels = 0;

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

void count() { ++te_allocate_only_torch_kernels; }

Tensor mm(const Tensor& self, const Tensor& mat2) {
  count();
  return at::empty({self.size(0), mat2.size(1)}, self.options());
}

Tensor addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const at::Scalar& beta,
             const at::Scalar& alpha) {
  count();
  return at::empty({mat1.size(0), mat2.size(1)}, mat1.options());
}

Tensor gelu(const Tensor& self, c10::string_view approximate) {
  count();
  return at::empty_like(self);
}

Tensor gelu_backward(const Tensor& grad_output, const Tensor& self, c10::string_view approximate) {
  count();
  return at::empty_like(self);
}

std::tuple<Tensor, Tensor, Tensor> layer_norm(const Tensor& input, at::IntArrayRef shape,
                                              const OptionalTensor& weight,
                                              const OptionalTensor& bias, double eps) {
  count();
  c10::SmallVector<int64_t, 5> rows(input.sizes().begin(), input.sizes().end());
  for (size_t i = rows.size() - shape.size(); i < rows.size(); ++i) {
    rows[i] = 1;
  }
  // Statistics have the type of the weights, as in the real kernel.
  const auto options = weight.has_value() ? weight->options() : input.options();
  return {at::empty_like(input), at::empty(rows, options), at::empty(rows, options)};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& grad_out, const Tensor& input,
                                                       at::IntArrayRef shape, const Tensor& mean,
                                                       const Tensor& rstd,
                                                       const OptionalTensor& weight,
                                                       const OptionalTensor& bias,
                                                       std::array<bool, 3> mask) {
  count();
  return {mask[0] ? at::empty_like(input) : Tensor(), mask[1] ? at::empty_like(*weight) : Tensor(),
          mask[2] ? at::empty_like(*bias) : Tensor()};
}

// Sums over the leading dimensions only: what the gradient of a bias needs.
Tensor sum(const Tensor& self, at::OptionalIntArrayRef dims, bool keepdim,
           std::optional<at::ScalarType> dtype) {
  count();
  c10::SmallVector<int64_t, 5> sizes;
  for (int64_t i = 0; i < self.dim(); ++i) {
    const bool is_summed = !dims.has_value() || dims->empty() ||
                           std::any_of(dims->begin(), dims->end(), [&](int64_t dim) {
                             return (dim < 0 ? dim + self.dim() : dim) == i;
                           });
    if (!is_summed) {
      sizes.push_back(self.size(i));
    } else if (keepdim) {
      sizes.push_back(1);
    }
  }
  return at::empty(sizes, self.options().dtype(dtype.value_or(self.scalar_type())));
}

// The real kernels lay [b, h, s, d] out as [b, s, h, d].
Tensor empty_heads(const Tensor& like, int64_t size) {
  return at::empty({like.size(0), like.size(2), like.size(1), size}, like.options())
      .transpose(1, 2);
}

std::tuple<Tensor, Tensor> attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                     double dropout, bool is_causal, const OptionalTensor& mask,
                                     std::optional<double> scale) {
  count();
  const Tensor lse =
      at::empty({query.size(0), query.size(2), query.size(1)}, query.options().dtype(at::kFloat));
  return {empty_heads(query, value.size(3)), lse.transpose(1, 2)};
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(const Tensor& grad_out, const Tensor& query,
                                                      const Tensor& key, const Tensor& value,
                                                      const Tensor& out, const Tensor& lse,
                                                      double dropout, bool is_causal,
                                                      const OptionalTensor& mask,
                                                      std::optional<double> scale) {
  count();
  return {empty_heads(query, query.size(3)), empty_heads(key, key.size(3)),
          empty_heads(value, value.size(3))};
}

struct NoWarnings : c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

}  // namespace

extern "C" void te_allocate_only_install() {
  NoWarnings silent;  // that kernels are overridden is the purpose
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__,
                                __LINE__);
  library.impl("mm", mm);
  library.impl("addmm", addmm);
  library.impl("gelu", gelu);
  library.impl("gelu_backward", gelu_backward);
  library.impl("native_layer_norm", layer_norm);
  library.impl("native_layer_norm_backward", layer_norm_backward);
  library.impl("sum.dim_IntList", sum);
  library.impl("_scaled_dot_product_flash_attention_for_cpu", attention);
  library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward);
}

// Callgrind writes its counters out and clears them; nothing outside callgrind. False where its
// header was missing when this was built.
extern "C" bool te_allocate_only_mark() {
#if __has_include(<valgrind/callgrind.h>)
  CALLGRIND_DUMP_STATS;
  return true;
#else
  return false;
#endif
}
