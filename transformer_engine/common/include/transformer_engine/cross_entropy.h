// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Cross entropy of rows of logits whose vocabulary may be divided over ranks:
//   loss = (1 - s) (lse - x_target) + s (lse - mean(x)),  lse = log sum e^x,  s = label smoothing
//   grad = (e^(x - lse) - s / vocabulary - (1 - s) [at the target]) times the row's gradient
// in three ops: what a rank's logits contribute, the loss from all ranks' contributions, the
// gradient of a rank's logits. FP32 inside; a gradient is rounded once. Rows whose target is the
// ignored index have loss and gradient 0. A target outside the vocabulary gives NaN.
#pragma once

#include <transformer_engine/types.h>

namespace transformer_engine {

struct CrossEntropyTargets {
  const int64_t* ids = nullptr;  // [rows], of the whole vocabulary
  int64_t ignored = -100;
  int64_t first = 0;       // id of the rank's first column
  int64_t vocabulary = 0;  // of all ranks
};

// Numbers a row of `statistics` has: the largest logit; sum of e^(x - largest); the target's logit,
// NaN where another rank has it; sum of x. A largest logit of -Inf is written as 0.
inline constexpr int64_t kCrossEntropyStatistics = 4;

struct CrossEntropyStatisticsArgs {
  TensorView input;       // [rows, columns] FP32, BF16 or FP16
  TensorView statistics;  // [rows, 4] FP32
  CrossEntropyTargets targets;
};
void cross_entropy_statistics(const CrossEntropyStatisticsArgs& args, const Context& context);

struct CrossEntropyLossArgs {
  TensorView statistics;  // [ranks * rows, 4] FP32, rank after rank
  TensorView loss;        // [1, rows] FP32, or [1, 1]: the mean over the rows that count
  // What the backward reads: [rows, 2] FP32, the largest logit of all ranks and 1 / sum; and
  // [1, 1] FP32, 1 / number of rows that count (at least 1) for a mean, else 1.
  TensorView softmax;
  TensorView weight;
  CrossEntropyTargets targets;
  float label_smoothing = 0.0F;
  bool is_mean = false;
};
void cross_entropy_loss(const CrossEntropyLossArgs& args, const Context& context);

struct CrossEntropyBackwardArgs {
  TensorView input;        // [rows, columns]
  TensorView grad_output;  // [1, rows] or, of a mean, [1, 1]; FP32
  TensorView softmax;      // of cross_entropy_loss
  TensorView weight;
  TensorView grad_input;  // [rows, columns] of the input's type; may be the input
  CrossEntropyTargets targets;
  float label_smoothing = 0.0F;
};
void cross_entropy_backward(const CrossEntropyBackwardArgs& args, const Context& context);

}  // namespace transformer_engine
