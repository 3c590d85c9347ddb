// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The result of an op in the reference: FP64 values rounded once to FP32 and then to the output
// type, and afterwards the FP8 copies of the rounded values.
#pragma once

#include "core/scratch.h"
#include "reference/block_scaling.h"
#include "reference/cast.h"

namespace transformer_engine::reference {

class Result {
 public:
  Result(const TensorView& output, const QuantizedOutput& quantized)
      : values_(output),
        quantized_(quantized),
        buffer_(output.data == nullptr ? output.numel() * element_size_bytes(output.dtype) : 0) {
    if (values_.data == nullptr) {
      values_.data = buffer_.data();
    }
  }

  void put(int64_t index, double value) { store_float(values_, index, static_cast<float>(value)); }

  void finish(const Context& context) {
    if (quantized_.blocks.is_wanted()) {
      reference::quantize_blocks(values_, quantized_.blocks, context);
    } else if (quantized_.is_wanted() || quantized_.scale_inv != nullptr) {
      reference::quantize({.input = values_, .output = quantized_, .noop = nullptr}, context);
    }
  }

 private:
  TensorView values_;
  const QuantizedOutput quantized_;
  Scratch<char> buffer_;
};

}  // namespace transformer_engine::reference
