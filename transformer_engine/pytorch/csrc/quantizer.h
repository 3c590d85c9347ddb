// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What to compute to quantize one tensor. A step owns one quantizer per slot (input, weight,
// grad_output, ...) and calls only the interface; which number format it is stays inside the
// derived class. The Python quantizer holds the same object (`_core`).
#pragma once

#include <memory>

#include "operand.h"

namespace transformer_engine::pytorch {

class Quantizer {
 public:
  virtual ~Quantizer() = default;

  // Fills the wanted ones of `data` [rows, cols] and `transpose` [cols, rows] (uint8, allocated)
  // and `scale_inv` [1].
  struct Destination {
    at::Tensor data, transpose, scale_inv;
    const float* noop = nullptr;  // [1]: not 0 leaves everything as it is
  };
  virtual void update(const at::Tensor& input, const Destination& destination) = 0;

  // Observes |input| without quantizing (calibration); state only.
  virtual void calibrate(const at::Tensor& input) = 0;

  // How a kernel that produces the tensor writes the FP8 copy in its own pass. False when the scale
  // depends on the finished tensor. The destination's data and scale_inv must be defined.
  virtual bool fused_output(const Destination& destination, QuantizedOutput* output) = 0;

  // A recomputation repeats a cast of the past: with the scale of then ([1]), and without observing
  // the tensor again. An undefined tensor ends it. Formats without state ignore it.
  virtual void set_replay_scale(const at::Tensor& /*scale*/) {}

  // Allocates and fills a rowwise copy with the shape of `input` (contiguous).
  Operand quantize(const at::Tensor& input);
  Operand make_operand(at::IntArrayRef sizes, const at::Tensor& like) const;

  bool rowwise_usage = true;
  bool columnwise_usage = true;
  bool internal = false;
  bool optimize_for_gemm = false;
  DType fp8_dtype = DType::kFloat8E4M3;
};

// Delayed scaling: casts with a scale known beforehand and max-accumulates amax.
class Float8Quantizer : public Quantizer {
 public:
  // scale, amax: [1] FP32; shared with the recipe state's buffers.
  Float8Quantizer(at::Tensor scale, at::Tensor amax, DType fp8_dtype);
  void update(const at::Tensor& input, const Destination& destination) override;
  void calibrate(const at::Tensor& input) override;
  bool fused_output(const Destination& destination, QuantizedOutput* output) override;

  void set_replay_scale(const at::Tensor& scale_then) override { replay_scale_ = scale_then; }

  at::Tensor scale, amax;

 private:
  at::Tensor replay_scale_;  // [1], undefined outside a replay
};

// Current scaling: the scale comes from the tensor itself.
class Float8CurrentScalingQuantizer : public Quantizer {
 public:
  Float8CurrentScalingQuantizer(DType fp8_dtype, bool force_pow_2_scales, float amax_epsilon);
  void update(const at::Tensor& input, const Destination& destination) override;
  void calibrate(const at::Tensor& /*input*/) override {}  // no state
  bool fused_output(const Destination& /*destination*/, QuantizedOutput* /*output*/) override {
    return false;
  }

  bool force_pow_2_scales;
  float amax_epsilon;
};

float fp8_max(DType dtype);

}  // namespace transformer_engine::pytorch
