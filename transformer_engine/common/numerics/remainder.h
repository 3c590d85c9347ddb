// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// An FP32 number as a BF16 one next to it and the 16 bits that this lacks. `low` is the lower half
// of the number's bits, as int16; the BF16 pattern is the upper half, one more where `low` is
// negative: the nearest BF16 (away from zero in a tie). Joining takes the one away again, so it is
// exact for every number, infinity included. NaN would carry into the sign (0x7FFFFFFF, which GPUs
// make, would read as -0): it is made canonical, 0x7FC00000, first.
#pragma once

#include "numerics/bits.h"

namespace transformer_engine::numerics {

struct SplitFloat {
  uint16_t high;  // BF16
  int16_t low;
};

TE_NUMERIC SplitFloat split_float(float value) {
  const uint32_t bits = is_nan(value) ? kFloatQuietNaN : bits_of_float(value);
  return {static_cast<uint16_t>((bits + ((bits & 0x8000U) << 1)) >> 16),
          static_cast<int16_t>(bits & 0xFFFFU)};
}

TE_NUMERIC float join_float(SplitFloat parts) {
  const auto low = static_cast<uint32_t>(static_cast<uint16_t>(parts.low));
  return float_of_bits(((static_cast<uint32_t>(parts.high) << 16) - ((low & 0x8000U) << 1)) | low);
}

}  // namespace transformer_engine::numerics
