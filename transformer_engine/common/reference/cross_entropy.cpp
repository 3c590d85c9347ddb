// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "reference/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "numerics/cross_entropy_rows.h"
#include "reference/cast.h"

namespace transformer_engine::reference {

void cross_entropy_statistics(const CrossEntropyStatisticsArgs& args, const Context&) {
  const int64_t columns = args.input.cols;
  for (int64_t row = 0; row < args.input.rows; ++row) {
    double largest = -std::numeric_limits<double>::infinity();
    double total = 0.0;
    for (int64_t i = row * columns; i < (row + 1) * columns; ++i) {
      largest = std::fmax(largest, load_float(args.input, i));
      total += load_float(args.input, i);
    }
    largest = largest == -std::numeric_limits<double>::infinity() ? 0.0 : largest;
    double sum = 0.0;
    for (int64_t i = row * columns; i < (row + 1) * columns; ++i) {
      sum += std::exp(load_float(args.input, i) - largest);
    }
    const int64_t target = numerics::target_column(args.targets, row, columns);
    const float values[] = {
        static_cast<float>(largest), static_cast<float>(sum),
        target < 0 ? std::nanf("") : load_float(args.input, row * columns + target),
        static_cast<float>(total)};
    for (int64_t i = 0; i < kCrossEntropyStatistics; ++i) {
      store_float(args.statistics, kCrossEntropyStatistics * row + i, values[i]);
    }
  }
}

void cross_entropy_loss(const CrossEntropyLossArgs& args, const Context&) {
  const int64_t rows = args.softmax.rows;
  double total = 0.0;
  int64_t count = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const auto combined =
        numerics::combine_ranks<double>(args, row, rows, [](double x) { return std::exp(x); });
    store_float(args.softmax, 2 * row, static_cast<float>(combined.largest));
    store_float(args.softmax, 2 * row + 1, static_cast<float>(1.0 / combined.sum));
    const bool is_counted = numerics::is_counted(args.targets, row);
    const double loss = is_counted
                            ? numerics::cross_entropy_of(combined, std::log(combined.sum),
                                                         static_cast<double>(args.label_smoothing),
                                                         args.targets.vocabulary)
                            : 0.0;
    total += loss;
    count += is_counted ? 1 : 0;
    if (!args.is_mean) {
      store_float(args.loss, row, static_cast<float>(loss));
    }
  }
  const auto counted = static_cast<double>(std::max<int64_t>(count, 1));
  store_float(args.weight, 0, args.is_mean ? static_cast<float>(1.0 / counted) : 1.0F);
  if (args.is_mean) {
    store_float(args.loss, 0, static_cast<float>(total / counted));
  }
}

void cross_entropy_backward(const CrossEntropyBackwardArgs& args, const Context&) {
  const int64_t columns = args.input.cols;
  for (int64_t row = 0; row < args.input.rows; ++row) {
    const auto of_row = numerics::cross_entropy_gradient<double>(args, row);
    for (int64_t column = 0; column < columns; ++column) {
      const double x = load_float(args.input, row * columns + column);
      const double share = std::exp(x - of_row.largest) * of_row.reciprocal - of_row.smoothed -
                           (column == of_row.target ? of_row.at_target : 0.0);
      store_float(args.grad_input, row * columns + column,
                  of_row.is_ignored ? 0.0F : static_cast<float>(of_row.gradient * share));
    }
  }
}

}  // namespace transformer_engine::reference
