// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What to compute to quantize one tensor. A step owns one quantizer per slot (input, weight,
// grad_output, ...) and calls only the interface; which number format it is stays inside the
// derived class. The Python quantizer holds the same object (`_core`).
#pragma once

#include <transformer_engine/block_scaling.h>

#include <memory>
#include <optional>

#include "operand.h"
#include "python_ref.h"
#include "rank_group.h"

namespace transformer_engine::pytorch {

// Which products will read a tensor: those that contract along its columns, along its rows.
struct Usages {
  bool rowwise = true;
  bool columnwise = false;
};

class Quantizer {
 public:
  virtual ~Quantizer() = default;

  // The copies of `input` (contiguous) that those products read, in new memory. A format whose
  // rowwise copy serves both makes only that one.
  virtual Operand quantize(const at::Tensor& input, const Usages& usages) = 0;

  // Quantizes into copies that quantize() made, or leaves them where the flag `skip` [1], in device
  // memory, is not 0. False, and nothing done, where that is not possible.
  virtual bool requantize(const at::Tensor& /*input*/, Operand* /*operand*/,
                          const at::Tensor& /*skip*/) {
    return false;
  }

  // The rowwise copy of `input` as a Python tensor shows it: with its padding.
  virtual Operand quantize_for_user(const at::Tensor& input) {
    return quantize(input, {.rowwise = true, .columnwise = false});
  }

  // Observes |input| without quantizing (calibration); state only.
  virtual void calibrate(const at::Tensor& /*input*/) {}

  // For a kernel that writes the quantized copies of its result, of these sizes, in its own pass:
  // allocates them and says where they go. False, and nothing done, where that is not possible, as
  // where the scale depends on the finished tensor.
  virtual bool prepare_fused(at::IntArrayRef /*sizes*/, const at::Tensor& /*like*/,
                             const Usages& /*usages*/, Operand* /*operand*/,
                             QuantizedOutput* /*output*/) {
    return false;
  }

  // A recomputation repeats a cast of the past: with the scale of then ([1]), and without observing
  // the tensor again. An undefined tensor ends it. Formats without state ignore it.
  virtual void set_replay_scale(const at::Tensor& /*scale*/) {}

  // How the rowwise copies it makes are scaled and stored; none where that is not known beforehand.
  virtual std::optional<CopyKind> copy_kind() const { return std::nullopt; }

  // Whether the columnwise copies it makes are of the Hadamard-transformed input.
  virtual bool transforms_columns() const { return false; }

  // Where each rank of a group has `n` rows of one tensor: copies that quantize_shard makes of
  // them, joined, are those that quantize makes of all rows, if `n` is a multiple of this. None
  // where they never are.
  virtual std::optional<int64_t> shard_rows(const Usages& /*usages*/) const { return std::nullopt; }
  // The copies of this rank's rows; scales that depend on all rows are agreed on with the group.
  virtual Operand quantize_shard(const at::Tensor& input, const Usages& usages,
                                 const RankGroup& /*group*/) {
    return quantize(input, usages);
  }

  // Whether quantizing the same tensor again gives the same copies and changes nothing.
  virtual bool is_requantization_safe() const { return false; }

  bool rowwise_usage = true;
  bool columnwise_usage = true;
  bool internal = false;
  bool optimize_for_gemm = false;
  DType dtype = DType::kFloat8E4M3;  // of the elements
};

// FP8 with one scale per tensor.
class Float8QuantizerBase : public Quantizer {
 public:
  // Fills the wanted ones of `data` [rows, cols] and `transpose` [cols, rows] (uint8, allocated)
  // and `scale_inv` [1].
  struct Destination {
    at::Tensor data, transpose, scale_inv;
    const float* noop = nullptr;  // [1]: not 0 leaves everything as it is
  };
  virtual void update(const at::Tensor& input, const Destination& destination) = 0;

  Operand quantize(const at::Tensor& input, const Usages& usages) override;
  bool requantize(const at::Tensor& input, Operand* operand, const at::Tensor& skip) override;
  std::optional<CopyKind> copy_kind() const override { return CopyKind::kTensor; }
  std::optional<int64_t> shard_rows(const Usages& /*usages*/) const override { return 1; }
  // The rowwise copy, not filled.
  Operand make_operand(at::IntArrayRef sizes, const at::Tensor& like) const;
};

// Delayed scaling: casts with a scale known beforehand and max-accumulates amax.
class Float8Quantizer : public Float8QuantizerBase {
 public:
  // scale, amax: [1] FP32; shared with the recipe state's buffers.
  Float8Quantizer(at::Tensor scale, at::Tensor amax, DType fp8_dtype);
  void update(const at::Tensor& input, const Destination& destination) override;
  void calibrate(const at::Tensor& input) override;
  bool prepare_fused(at::IntArrayRef sizes, const at::Tensor& like, const Usages& usages,
                     Operand* operand, QuantizedOutput* output) override;

  void set_replay_scale(const at::Tensor& scale_then) override { replay_scale_ = scale_then; }

  at::Tensor scale, amax;

 private:
  void check_device(const at::Tensor& input) const;

  at::Tensor replay_scale_;  // [1], undefined outside a replay
};

// Current scaling: the scale comes from the tensor itself.
class Float8CurrentScalingQuantizer : public Float8QuantizerBase {
 public:
  Float8CurrentScalingQuantizer(DType fp8_dtype, bool force_pow_2_scales, float amax_epsilon);
  void update(const at::Tensor& input, const Destination& destination) override {
    update(input, destination, nullptr);
  }
  Operand quantize_shard(const at::Tensor& input, const Usages& usages,
                         const RankGroup& group) override;
  bool is_requantization_safe() const override { return true; }

  bool force_pow_2_scales;
  float amax_epsilon;

 private:
  // With the largest amax of the group, where there is one.
  void update(const at::Tensor& input, const Destination& destination, const RankGroup* group);
};

// The formats with one scale per block.
class BlockQuantizer : public Quantizer {
 public:
  Operand quantize(const at::Tensor& input, const Usages& usages) override;
  bool requantize(const at::Tensor& input, Operand* operand, const at::Tensor& skip) override;
  Operand quantize_for_user(const at::Tensor& input) override;
  std::optional<CopyKind> copy_kind() const override { return copy_format(false).kind; }
  bool transforms_columns() const override { return copy_format(true).has(CopyFormat::kHadamard); }

  std::optional<int64_t> shard_rows(const Usages& usages) const override;

  // Both copies on their own even where one would serve, not filled; padding of the scales is 0.
  Operand make_padded_operand(at::IntArrayRef sizes, const at::Tensor& like,
                              const Usages& usages) const;
  // `noop` [1]: not 0 leaves everything as it is.
  virtual void update(const at::Tensor& input, Operand* operand, const float* noop) = 0;

  virtual CopyFormat copy_format(bool is_columnwise) const = 0;

 protected:
  OperandCopy make_copy(at::IntArrayRef sizes, const at::Tensor& like, bool is_columnwise) const;
  // The copies that products of these usages read, not filled; where a kernel puts them.
  Operand make_operand(at::IntArrayRef sizes, const at::Tensor& like, const Usages& usages) const;
  static BlockQuantizedOutput fused_copies(const Operand& operand);
};

class Float8BlockQuantizer : public BlockQuantizer {
 public:
  void update(const at::Tensor& input, Operand* operand, const float* noop) override;
  CopyFormat copy_format(bool is_columnwise) const override;
  bool prepare_fused(at::IntArrayRef sizes, const at::Tensor& like, const Usages& usages,
                     Operand* operand, QuantizedOutput* output) override;
  bool is_requantization_safe() const override { return true; }

  float amax_epsilon = 0.0F;
  bool force_pow_2_scales = true;
  int block_scaling_dim = 2;
};

class MXFP8Quantizer : public BlockQuantizer {
 public:
  void update(const at::Tensor& input, Operand* operand, const float* noop) override;
  CopyFormat copy_format(bool is_columnwise) const override;
  bool prepare_fused(at::IntArrayRef sizes, const at::Tensor& like, const Usages& usages,
                     Operand* operand, QuantizedOutput* output) override;
  bool is_requantization_safe() const override { return true; }

  bool with_2d_quantization = false;
};

class NVFP4Quantizer : public BlockQuantizer {
 public:
  void update(const at::Tensor& input, Operand* operand, const float* noop) override;
  CopyFormat copy_format(bool is_columnwise) const override;
  Operand quantize_shard(const at::Tensor& input, const Usages& usages,
                         const RankGroup& group) override;

  // The two halves of update(), for amaxes that are reduced over ranks in between.
  void compute_amax(const at::Tensor& input, Operand* operand, const float* noop) const;
  void cast(const at::Tensor& input, Operand* operand, const float* noop) const;

  bool with_rht = false;
  bool with_post_rht_amax = false;
  bool with_2d_quantization = false;
  bool stochastic_rounding = false;
  bool row_scaled = false;
  FourOverSix four_over_six = FourOverSix::kNone;
  int e4m3_max = 448;
  uint16_t sign_mask = 0;  // bit i negates row i of a group of 16

 private:
  QuantizeNvfp4Args args_for(const at::Tensor& input, const Operand& operand) const;
};

// A quantizer written in Python: quantize_impl is called for every tensor.
class PythonQuantizer : public Quantizer {
 public:
  explicit PythonQuantizer(PythonRef quantizer) : quantizer_(std::move(quantizer)) {}
  Operand quantize(const at::Tensor& input, const Usages& usages) override;
  void calibrate(const at::Tensor& input) override;
  bool is_requantization_safe() const override;

  PyObject* object() const { return quantizer_.get(); }

 private:
  PythonRef quantizer_;
};

float fp8_max(DType dtype);

}  // namespace transformer_engine::pytorch
