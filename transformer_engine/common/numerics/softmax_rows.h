// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Which columns a row of attention scores sees (softmax.h).
#pragma once

#include <transformer_engine/softmax.h>

#include "numerics/host_device.h"

namespace transformer_engine::numerics {

// What decides it, of SoftmaxForwardArgs.
struct SoftmaxRows {
  SoftmaxMask mask_kind = SoftmaxMask::kNone;
  int64_t heads = 1, queries = 1, keys = 0;
  const uint8_t* mask = nullptr;  // kPadding: [1 or batch, 1, queries, keys]
  bool is_mask_shared = true;     // by all samples of the batch
};

TE_NUMERIC SoftmaxRows softmax_rows(const SoftmaxForwardArgs& args) {
  return {.mask_kind = args.mask_kind,
          .heads = args.heads,
          .queries = args.queries,
          .keys = args.input.cols,
          .mask = args.mask_kind == SoftmaxMask::kPadding ? args.mask : nullptr,
          .is_mask_shared = args.mask_batch == 1};
}

// Columns [0, visible) of row `row` that the mask kind leaves visible.
TE_NUMERIC int64_t visible_columns(const SoftmaxRows& rows, int64_t row) {
  if (rows.mask_kind != SoftmaxMask::kCausal && rows.mask_kind != SoftmaxMask::kCausalAligned) {
    return rows.keys;
  }
  const int64_t shift = rows.mask_kind == SoftmaxMask::kCausal ? 0 : rows.keys - rows.queries;
  const int64_t visible = row % rows.queries + 1 + shift;
  return visible < 0 ? 0 : visible < rows.keys ? visible : rows.keys;
}

// The mask bytes of row `row`, or null.
TE_NUMERIC const uint8_t* mask_of_row(const SoftmaxRows& rows, int64_t row) {
  if (rows.mask == nullptr) {
    return nullptr;
  }
  const int64_t sample = rows.is_mask_shared ? 0 : row / (rows.heads * rows.queries);
  return rows.mask + (sample * rows.queries + row % rows.queries) * rows.keys;
}

}  // namespace transformer_engine::numerics
