// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "reference/softmax.h"

#include <cmath>
#include <limits>

#include "numerics/softmax_rows.h"
#include "reference/cast.h"

namespace transformer_engine::reference {

namespace {

bool is_visible(const SoftmaxForwardArgs& args, int64_t row, int64_t col) {
  const numerics::SoftmaxRows rows = numerics::softmax_rows(args);
  const uint8_t* mask = numerics::mask_of_row(rows, row);
  return col < numerics::visible_columns(rows, row) && (mask == nullptr || mask[col] == 0);
}

double score(const SoftmaxForwardArgs& args, int64_t row, int64_t col) {
  return static_cast<double>(args.scale) * load_float(args.input, row * args.input.cols + col);
}

void softmax_row(const SoftmaxForwardArgs& args, int64_t row) {
  const int64_t keys = args.input.cols;
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t col = 0; col < keys; ++col) {
    if (is_visible(args, row, col)) {
      largest = std::fmax(largest, score(args, row, col));
    }
  }
  double sum = 0.0;
  for (int64_t col = 0; col < keys; ++col) {
    sum += is_visible(args, row, col) ? std::exp(score(args, row, col) - largest) : 0.0;
  }
  for (int64_t col = 0; col < keys; ++col) {
    const double y =
        is_visible(args, row, col) ? std::exp(score(args, row, col) - largest) / sum : 0.0;
    store_float(args.output, row * keys + col, static_cast<float>(y));
  }
}

}  // namespace

void softmax_forward(const SoftmaxForwardArgs& args, const Context&) {
  for (int64_t row = 0; row < args.input.rows; ++row) {
    softmax_row(args, row);
  }
}

void softmax_backward(const SoftmaxBackwardArgs& args, const Context&) {
  const int64_t keys = args.output.cols;
  for (int64_t row = 0; row < args.output.rows; ++row) {
    double mean = 0.0;
    for (int64_t i = row * keys; i < (row + 1) * keys; ++i) {
      mean += static_cast<double>(load_float(args.grad_output, i)) * load_float(args.output, i);
    }
    for (int64_t i = row * keys; i < (row + 1) * keys; ++i) {
      const double gradient =
          args.scale * (load_float(args.grad_output, i) - mean) * load_float(args.output, i);
      store_float(args.grad_input, i, static_cast<float>(gradient));
    }
  }
}

}  // namespace transformer_engine::reference
