// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Per-tensor FP8: quantize, dequantize, byte transpose, amax, scale computation, delayed-scaling
// update. Rounding is to nearest even and saturates: +-Inf and out-of-range values become +-max
// (448 for E4M3, 57344 for E5M2), NaN stays NaN. The rules stand once, in numerics/.
#pragma once

#include <transformer_engine/types.h>

namespace transformer_engine {

struct QuantizeArgs {
  TensorView input;             // [rows, cols] FP32, BF16 or FP16
  QuantizedOutput output;       // at least one of data, data_transpose, amax
  const float* noop = nullptr;  // [1]: when non-null and not 0, nothing at all is written
};
void quantize(const QuantizeArgs& args, const Context& context);

struct DequantizeArgs {
  TensorView input;                  // [rows, cols] E4M3 or E5M2
  const float* scale_inv = nullptr;  // [1]; null means 1
  TensorView output;                 // [rows, cols] FP32, BF16 or FP16: round(float(q) * scale_inv)
};
void dequantize(const DequantizeArgs& args, const Context& context);

// output[c, r] = input[r, c] for any one-byte type.
struct TransposeArgs {
  TensorView input;   // [rows, cols]
  TensorView output;  // [cols, rows]
};
void transpose_bytes(const TransposeArgs& args, const Context& context);

// *amax = max |input| (overwrites), 0 for an empty input, NaN values are skipped.
struct AmaxArgs {
  TensorView input;       // [rows, cols] FP32, BF16 or FP16
  float* amax = nullptr;  // [1]
};
void compute_amax(const AmaxArgs& args, const Context& context);

// Current scaling: scale = fp8_max / max(amax, epsilon); 1 when that amax is 0, Inf or NaN; the
// largest finite FP32 when the quotient overflows; mantissa cleared (rounded toward zero) when
// `power_of_two`. scale_inv = 1 / scale.
struct ScaleFromAmaxArgs {
  const float* amax = nullptr;  // [1]
  float* scale = nullptr;       // [1]
  float* scale_inv = nullptr;   // [1], may be null
  float fp8_max = 448.0F;
  float epsilon = 0.0F;
  bool power_of_two = false;
};
void compute_scale_from_amax(const ScaleFromAmaxArgs& args, const Context& context);

enum class AmaxComputeAlgo : int32_t { kMax = 0, kMostRecent = 1 };

// Delayed scaling, end of a step. Per column j of history [length, n]: a = (reduced[j] if it is not
// 0 else history[0, j]). When a is 0 the column is not rolled and keeps its scale. Else rows 1..
// move up by one, the last row becomes a, row 0 becomes 0; A = max(old rows 1.., a) or a (most
// recent); scale = (fp8_max * 2^-margin) / A when A is finite and > 0, the largest finite FP32 when
// that overflows, unchanged otherwise. NaN rows are ignored by the maximum.
struct DelayedScalingUpdateArgs {
  TensorView amax_history;              // [length, n] FP32, in place
  const float* reduced_amax = nullptr;  // [n], null means row 0 of the history
  float* scale = nullptr;               // [n], in place
  float fp8_max = 448.0F;
  float margin = 0.0F;
  AmaxComputeAlgo algo = AmaxComputeAlgo::kMax;
};
void delayed_scaling_update(const DelayedScalingUpdateArgs& args, const Context& context);

}  // namespace transformer_engine
