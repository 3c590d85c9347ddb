// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "reference/cast.h"

#include "numerics/delayed_scaling.h"
#include "numerics/minifloat.h"
#include "numerics/scale.h"

namespace transformer_engine::reference {

namespace {

uint8_t* bytes_of(const TensorView& view) { return static_cast<uint8_t*>(view.data); }

}  // namespace

uint8_t encode_fp8(DType format, float value) {
  return format == DType::kFloat8E4M3 ? numerics::encode<numerics::E4M3>(value)
                                      : numerics::encode<numerics::E5M2>(value);
}

float decode_fp8(DType format, uint8_t code) {
  return format == DType::kFloat8E4M3 ? numerics::decode<numerics::E4M3>(code)
                                      : numerics::decode<numerics::E5M2>(code);
}

void quantize(const QuantizeArgs& args, const Context&) {
  if (args.noop != nullptr && *args.noop != 0.0F) {
    return;
  }
  const QuantizedOutput& output = args.output;
  const int64_t rows = args.input.rows;
  const int64_t cols = args.input.cols;
  const float scale = output.scale != nullptr ? *output.scale : 1.0F;
  float amax = 0.0F;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      const float value = load_float(args.input, row * cols + col);
      amax = numerics::max_skip_nan(amax, numerics::magnitude(value));
      if (output.data.data != nullptr) {
        bytes_of(output.data)[row * cols + col] = encode_fp8(output.data.dtype, value * scale);
      }
      if (output.data_transpose.data != nullptr) {
        bytes_of(output.data_transpose)[col * rows + row] =
            encode_fp8(output.data_transpose.dtype, value * scale);
      }
    }
  }
  if (output.amax != nullptr) {
    *output.amax = numerics::max_skip_nan(*output.amax, amax);
  }
  if (output.scale_inv != nullptr) {
    *output.scale_inv = numerics::inverse_scale(scale);
  }
}

void dequantize(const DequantizeArgs& args, const Context&) {
  const float scale_inv = args.scale_inv != nullptr ? *args.scale_inv : 1.0F;
  for (int64_t i = 0; i < args.input.numel(); ++i) {
    const float value = decode_fp8(args.input.dtype, bytes_of(args.input)[i]);
    store_float(args.output, i, value * scale_inv);
  }
}

void transpose_bytes(const TransposeArgs& args, const Context&) {
  const int64_t rows = args.input.rows;
  const int64_t cols = args.input.cols;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      bytes_of(args.output)[col * rows + row] = bytes_of(args.input)[row * cols + col];
    }
  }
}

void compute_amax(const AmaxArgs& args, const Context&) {
  float amax = 0.0F;
  for (int64_t i = 0; i < args.input.numel(); ++i) {
    amax = numerics::max_skip_nan(amax, numerics::magnitude(load_float(args.input, i)));
  }
  *args.amax = amax;
}

void compute_scale_from_amax(const ScaleFromAmaxArgs& args, const Context&) {
  const numerics::CurrentScaling rule{
      .fp8_max = args.fp8_max, .epsilon = args.epsilon, .power_of_two = args.power_of_two};
  const float scale = numerics::current_scaling_scale(*args.amax, rule);
  *args.scale = scale;
  if (args.scale_inv != nullptr) {
    *args.scale_inv = numerics::inverse_scale(scale);
  }
}

void delayed_scaling_update(const DelayedScalingUpdateArgs& args, const Context&) {
  const numerics::DelayedScaling rule{
      .numerator = numerics::delayed_scaling_numerator(args.fp8_max, args.margin),
      .most_recent = args.algo == AmaxComputeAlgo::kMostRecent};
  const int64_t columns = args.amax_history.cols;
  for (int64_t column = 0; column < columns; ++column) {
    float* history = static_cast<float*>(args.amax_history.data) + column;
    const float reduced = args.reduced_amax != nullptr ? args.reduced_amax[column] : history[0];
    const float amax = numerics::step_amax(reduced, history[0]);
    args.scale[column] = numerics::update_delayed_scaling(history, args.amax_history.rows, columns,
                                                          amax, args.scale[column], rule);
  }
}

}  // namespace transformer_engine::reference
