// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Which columns a row of attention scores sees (softmax.h).
#pragma once

#include <transformer_engine/softmax.h>

#include <algorithm>

namespace transformer_engine {

// Columns [0, visible) of row `row` that the mask kind leaves visible.
inline int64_t visible_columns(const SoftmaxForwardArgs& args, int64_t row) {
  const int64_t keys = args.input.cols;
  const int64_t query = row % args.queries;
  switch (args.mask_kind) {
    case SoftmaxMask::kCausal:
      return std::min(query + 1, keys);
    case SoftmaxMask::kCausalAligned:
      return std::clamp<int64_t>(query + 1 + keys - args.queries, 0, keys);
    default:
      return keys;
  }
}

// The mask bytes of row `row`, or null.
inline const uint8_t* mask_of_row(const SoftmaxForwardArgs& args, int64_t row) {
  if (args.mask_kind != SoftmaxMask::kPadding) {
    return nullptr;
  }
  const int64_t sample = args.mask_batch == 1 ? 0 : row / (args.heads * args.queries);
  return args.mask + (sample * args.queries + row % args.queries) * args.input.cols;
}

}  // namespace transformer_engine
