// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// The position of a token and the channels of a pair (rope.h).
#pragma once

#include <transformer_engine/rope.h>

#include "numerics/host_device.h"

namespace transformer_engine::numerics {

TE_NUMERIC bool has_rope_indices(const RopeIndices& indices) {
  return indices.narrow != nullptr || indices.wide != nullptr;
}
TE_NUMERIC int64_t rope_index(const RopeIndices& indices, int64_t i) {
  return indices.wide != nullptr ? indices.wide[i] : indices.narrow[i];
}

// Position in the whole sequence of token `local` of the `length` that a rank holds.
TE_NUMERIC int64_t rope_global_position(const RopePlacement& place, int64_t local, int64_t length) {
  if (place.cp_size == 1) {
    return local;
  }
  const int64_t half = length / 2;
  return local < half ? local + place.cp_rank * half
                      : local + (2 * place.cp_size - place.cp_rank - 2) * half;
}

// The packed sequence that token `token` belongs to: the first that ends behind it, or the last.
TE_NUMERIC int64_t rope_packed_sequence(const RopePlacement& place, int64_t token) {
  int64_t first = 0;
  int64_t last = place.sequences - 1;
  while (first < last) {
    const int64_t middle = (first + last) / 2;
    if (rope_index(place.cu_seqlens, middle + 1) / place.cp_size > token) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

// Position of token (position, sequence) of a [length, batch] of them.
TE_NUMERIC int64_t rope_position(const RopePlacement& place, int64_t length, int64_t position,
                                 int64_t sequence) {
  int64_t local = position;
  if (has_rope_indices(place.cu_seqlens)) {
    sequence = rope_packed_sequence(place, position);
    const int64_t begin = rope_index(place.cu_seqlens, sequence) / place.cp_size;
    length = rope_index(place.cu_seqlens, sequence + 1) / place.cp_size - begin;
    local = position - begin;
    if (local >= length) {
      return 0;  // belongs to nobody
    }
  }
  const int64_t start =
      has_rope_indices(place.start_positions) ? rope_index(place.start_positions, sequence) : 0;
  return rope_global_position(place, local, length) + start;
}

// Elements from the start of a tensor to head (group, head) of a token.
TE_NUMERIC int64_t rope_offset(const RopeTensor& tensor, int64_t position, int64_t sequence,
                               int64_t group, int64_t head) {
  return position * tensor.position_stride + sequence * tensor.batch_stride +
         group * tensor.group_stride + head * tensor.head_stride;
}

// The two channels of pair `pair` of `width / 2`.
struct RopePair {
  int64_t first;
  int64_t second;
};
TE_NUMERIC RopePair rope_pair(int64_t pair, int64_t width, bool is_interleaved) {
  return is_interleaved ? RopePair{2 * pair, 2 * pair + 1} : RopePair{pair, pair + width / 2};
}

}  // namespace transformer_engine::numerics
