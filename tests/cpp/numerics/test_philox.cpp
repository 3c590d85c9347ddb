// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Philox4x32-10 against the known answers that its authors publish with it (Random123).
#include "numerics/philox.h"

#include <gtest/gtest.h>

namespace {

using transformer_engine::numerics::multiply_wide;
using transformer_engine::numerics::philox4x32_10;
using transformer_engine::numerics::philox_key;

struct KnownAnswer {
  uint32_t counter[4];
  uint64_t seed;
  uint32_t result[4];
};
constexpr KnownAnswer kKnownAnswers[] = {
    {{0, 0, 0, 0}, 0, {0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}},
    {{0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF},
     0xFFFFFFFFFFFFFFFF,
     {0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}},
    {{0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344},
     0x299F31D0A4093822,
     {0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}},
};

TEST(Philox, GivesThePublishedAnswers) {
  for (const KnownAnswer& known : kKnownAnswers) {
    const auto& c = known.counter;
    const auto words = philox4x32_10<uint32_t>({{c[0], c[1], c[2], c[3]}}, philox_key(known.seed));
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(words.word[i], known.result[i]) << i;
    }
  }
}

TEST(Philox, MultipliesToBothHalves) {
  const auto product = multiply_wide(0xFFFFFFFFU, 0xFFFFFFFEU);
  EXPECT_EQ(product.high, 0xFFFFFFFDU);
  EXPECT_EQ(product.low, 2U);
}

}  // namespace
