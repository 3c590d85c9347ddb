// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "reference/normalization.h"

#include <cmath>

#include "reference/result.h"

namespace transformer_engine::reference {

namespace {

struct RowStatistics {
  double mean = 0.0;
  double rstd = 0.0;
};

RowStatistics statistics_of(const NormForwardArgs& args, int64_t row) {
  const int64_t hidden = args.input.cols;
  RowStatistics statistics;
  if (args.kind == NormKind::kLayerNorm && hidden > 0) {
    for (int64_t i = 0; i < hidden; ++i) {
      statistics.mean += load_float(args.input, row * hidden + i);
    }
    statistics.mean /= static_cast<double>(hidden);
  }
  double squares = 0.0;
  for (int64_t i = 0; i < hidden; ++i) {
    const double deviation = load_float(args.input, row * hidden + i) - statistics.mean;
    squares += deviation * deviation;
  }
  const double spread = hidden > 0 ? squares / static_cast<double>(hidden) : 0.0;
  statistics.rstd = 1.0 / std::sqrt(spread + static_cast<double>(args.epsilon));
  return statistics;
}

double gain_of(const TensorView& gamma, bool is_zero_centered, int64_t i) {
  const float value = load_float(gamma, i);
  return is_zero_centered ? 1.0F + value : value;
}

// What the backward formulas share for one element.
struct Element {
  double grad_output;
  double weighted;  // grad_output * gain
  double xhat;
};

Element element_of(const NormBackwardArgs& args, int64_t row, int64_t i) {
  const int64_t index = row * args.input.cols + i;
  const double mean = args.kind == NormKind::kLayerNorm ? args.mean[row] : 0.0;
  const double grad_output = load_float(args.grad_output, index);
  return {.grad_output = grad_output,
          .weighted = grad_output * gain_of(args.gamma, args.zero_centered_gamma, i),
          .xhat = (load_float(args.input, index) - mean) * args.rstd[row]};
}

void write_grad_input(const NormBackwardArgs& args, int64_t row) {
  const int64_t hidden = args.input.cols;
  double weighted = 0.0;
  double weighted_xhat = 0.0;
  for (int64_t i = 0; i < hidden; ++i) {
    const Element element = element_of(args, row, i);
    weighted += args.kind == NormKind::kLayerNorm ? element.weighted : 0.0;
    weighted_xhat += element.weighted * element.xhat;
  }
  weighted /= static_cast<double>(hidden);
  weighted_xhat /= static_cast<double>(hidden);
  for (int64_t i = 0; i < hidden; ++i) {
    const Element element = element_of(args, row, i);
    double gradient = args.rstd[row] * (element.weighted - weighted - element.xhat * weighted_xhat);
    if (args.grad_residual.data != nullptr) {
      gradient += load_float(args.grad_residual, row * hidden + i);
    }
    store_float(args.grad_input, row * hidden + i, static_cast<float>(gradient));
  }
}

void write_weight_gradients(const NormBackwardArgs& args, int64_t i) {
  double gamma = 0.0;
  double beta = 0.0;
  for (int64_t row = 0; row < args.input.rows; ++row) {
    const Element element = element_of(args, row, i);
    gamma += element.grad_output * element.xhat;
    beta += element.grad_output;
  }
  if (args.grad_gamma.data != nullptr) {
    store_float(args.grad_gamma, i, static_cast<float>(gamma));
  }
  if (args.grad_beta.data != nullptr) {
    store_float(args.grad_beta, i, static_cast<float>(beta));
  }
}

}  // namespace

void norm_forward(const NormForwardArgs& args, const Context& context) {
  const int64_t hidden = args.input.cols;
  Result result(args.output, args.quantized);
  for (int64_t row = 0; row < args.input.rows; ++row) {
    const RowStatistics statistics = statistics_of(args, row);
    for (int64_t i = 0; i < hidden; ++i) {
      const double xhat =
          (load_float(args.input, row * hidden + i) - statistics.mean) * statistics.rstd;
      const double beta = args.beta.data != nullptr ? load_float(args.beta, i) : 0.0;
      result.put(row * hidden + i, xhat * gain_of(args.gamma, args.zero_centered_gamma, i) + beta);
    }
    if (args.mean != nullptr) {
      args.mean[row] = static_cast<float>(statistics.mean);
    }
    if (args.rstd != nullptr) {
      args.rstd[row] = static_cast<float>(statistics.rstd);
    }
  }
  result.finish(context);
}

void norm_backward(const NormBackwardArgs& args, const Context&) {
  if (args.grad_input.data != nullptr) {
    for (int64_t row = 0; row < args.input.rows; ++row) {
      write_grad_input(args, row);
    }
  }
  for (int64_t i = 0; i < args.input.cols; ++i) {
    write_weight_gradients(args, i);
  }
}

}  // namespace transformer_engine::reference
