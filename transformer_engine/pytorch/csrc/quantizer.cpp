// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "quantizer.h"

#include <ATen/ops/empty.h>
#include <transformer_engine/cast.h>
#include <transformer_engine/error.h>

#include "allocate.h"

namespace transformer_engine::pytorch {

namespace {

float* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<float*>(tensor.data_ptr()) : nullptr;
}

// The view of `data` as [rows, cols] of the input, whatever its own leading dimensions are.
TensorView quantized_view(const at::Tensor& tensor, DType dtype, int64_t rows, int64_t cols,
                          const char* name) {
  TensorView view;
  if (!tensor.defined()) {
    return view;
  }
  TE_CHECK(tensor.is_contiguous() && tensor.numel() == rows * cols && tensor.element_size() == 1,
           "quantize: ", name, " has shape ", tensor.sizes(), " and dtype ",
           at::toString(tensor.scalar_type()), "; a contiguous one-byte tensor of ", rows * cols,
           " elements is required.");
  view.data = tensor.data_ptr();
  view.dtype = dtype;
  view.rows = rows;
  view.cols = cols;
  view.framework_tensor = &tensor;
  return view;
}

QuantizedOutput output_views(const Float8QuantizerBase::Destination& destination, DType dtype,
                             int64_t rows, int64_t cols) {
  QuantizedOutput output;
  output.data = quantized_view(destination.data, dtype, rows, cols, "data");
  output.data_transpose = quantized_view(destination.transpose, dtype, cols, rows, "transpose");
  output.scale_inv = float_data(destination.scale_inv, "quantize: scale_inv");
  return output;
}

// A kernel reads and writes them where it finds the input.
void check_scaling_tensor(const char* name, const at::Tensor& tensor, const at::Tensor& input) {
  TE_CHECK(!tensor.defined() || tensor.device() == input.device(), "quantize: ", name,
           " of the quantizer is on ", tensor.device().str(), " and the input on ",
           input.device().str(),
           "; one device is required. Make the quantizer, or its module, where its inputs are.");
}

}  // namespace

float fp8_max(DType dtype) { return dtype == DType::kFloat8E5M2 ? 57344.0F : 448.0F; }

Operand Float8QuantizerBase::make_operand(at::IntArrayRef sizes, const at::Tensor& like) const {
  Operand operand;
  operand.sizes = matrix_sizes(sizes);
  operand.rowwise = {.data = new_tensor(sizes, at::kByte, like),
                     .scale_inv = new_tensor({1}, at::kFloat, like),
                     .amax = {},
                     .format = {.kind = CopyKind::kTensor, .dtype = dtype, .flags = 0}};
  return operand;
}

Operand Float8QuantizerBase::quantize(const at::Tensor& input, const Usages& /*usages*/) {
  Operand operand = make_operand(input.sizes(), input);
  update(input,
         {.data = operand.rowwise.data, .transpose = {}, .scale_inv = operand.rowwise.scale_inv});
  return operand;
}

bool Float8QuantizerBase::requantize(const at::Tensor& input, Operand* operand,
                                     const at::Tensor& skip) {
  update(input, {.data = operand->rowwise.data,
                 .transpose = {},
                 .scale_inv = operand->rowwise.scale_inv,
                 .noop = float_data(skip, "quantize: skip")});
  return true;
}

Float8Quantizer::Float8Quantizer(at::Tensor scale_in, at::Tensor amax_in, DType fp8_dtype)
    : scale(std::move(scale_in)), amax(std::move(amax_in)) {
  dtype = fp8_dtype;
}

void Float8Quantizer::check_device(const at::Tensor& input) const {
  check_scaling_tensor("scale", replay_scale_.defined() ? replay_scale_ : scale, input);
  check_scaling_tensor("amax", amax, input);
}

void Float8Quantizer::update(const at::Tensor& input, const Destination& destination) {
  check_device(input);
  QuantizeArgs args;
  args.input = matrix_view(input);
  args.output = output_views(destination, dtype, args.input.rows, args.input.cols);
  const bool is_replay = replay_scale_.defined();
  args.output.scale = float_data(is_replay ? replay_scale_ : scale, "quantize: scale");
  args.output.amax = is_replay ? nullptr : float_data(amax, "quantize: amax");
  args.noop = destination.noop;
  transformer_engine::quantize(args, context_for(input));
}

void Float8Quantizer::calibrate(const at::Tensor& input) {
  check_device(input);
  compute_amax({.input = matrix_view(input), .amax = float_data(amax, "calibrate: amax")},
               context_for(input));
}

bool Float8Quantizer::prepare_fused(at::IntArrayRef sizes, const at::Tensor& like,
                                    const Usages& /*usages*/, Operand* operand,
                                    QuantizedOutput* output) {
  check_device(like);
  *operand = make_operand(sizes, like);
  const Destination destination{
      .data = operand->rowwise.data, .transpose = {}, .scale_inv = operand->rowwise.scale_inv};
  *output = output_views(destination, dtype, operand->sizes.rows, operand->sizes.cols);
  // The views lead to tensors that move: their owner keeps the memory alive.
  output->data.framework_tensor = nullptr;
  const bool is_replay = replay_scale_.defined();
  output->scale = data_or_null(is_replay ? replay_scale_ : scale);
  output->amax = is_replay ? nullptr : data_or_null(amax);
  return true;
}

Float8CurrentScalingQuantizer::Float8CurrentScalingQuantizer(DType fp8_dtype, bool pow_2,
                                                             float epsilon)
    : force_pow_2_scales(pow_2), amax_epsilon(epsilon) {
  dtype = fp8_dtype;
}

void Float8CurrentScalingQuantizer::update(const at::Tensor& input, const Destination& destination,
                                           const RankGroup* group) {
  const Context context = context_for(input);
  // Saves the work; a flag in device memory is for the kernel that writes.
  if (destination.noop != nullptr && input.is_cpu() && *destination.noop != 0.0F) {
    return;
  }
  float on_host[2];  // amax and scale, where kernels can reach them
  at::Tensor in_tensor;
  float* amax = on_host;
  if (!input.is_cpu() || group != nullptr) {
    in_tensor = new_tensor({2}, at::kFloat, input);
    amax = static_cast<float*>(in_tensor.data_ptr());
  }
  compute_amax({.input = matrix_view(input), .amax = amax}, context);
  if (group != nullptr) {
    group->max(in_tensor.narrow(0, 0, 1)).wait();
  }
  compute_scale_from_amax({.amax = amax,
                           .scale = amax + 1,
                           .scale_inv = nullptr,
                           .fp8_max = fp8_max(dtype),
                           .epsilon = amax_epsilon,
                           .power_of_two = force_pow_2_scales},
                          context);
  QuantizeArgs args;
  args.input = matrix_view(input);
  args.output = output_views(destination, dtype, args.input.rows, args.input.cols);
  args.output.scale = amax + 1;
  args.noop = destination.noop;
  transformer_engine::quantize(args, context);
}

Operand Float8CurrentScalingQuantizer::quantize_shard(const at::Tensor& input,
                                                      const Usages& /*usages*/,
                                                      const RankGroup& group) {
  Operand operand = make_operand(input.sizes(), input);
  update(input,
         {.data = operand.rowwise.data, .transpose = {}, .scale_inv = operand.rowwise.scale_inv},
         &group);
  return operand;
}

}  // namespace transformer_engine::pytorch
