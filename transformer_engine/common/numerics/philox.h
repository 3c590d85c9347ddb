// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Philox4x32-10: a counter-based generator of random bits (Salmon, Moraes, Dror, Shaw: "Parallel
// random numbers: as easy as 1, 2, 3", SC11, doi:10.1145/2063384.2063405). Four random words are a
// function of four counter words and two key words and of nothing else, so that they depend neither
// on threads nor on the order of the work.
#pragma once

#include "numerics/host_device.h"

#include <cstdint>

namespace transformer_engine::numerics {

struct PhiloxKey {
  uint32_t low, high;
};
TE_NUMERIC PhiloxKey philox_key(uint64_t seed) {
  return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
}

// Both halves of a 64-bit product. A vector type brings a multiply_wide of its own, and ^ with
// itself and with a uint32_t.
template <typename Word>
struct WideProduct {
  Word high, low;
};
TE_NUMERIC WideProduct<uint32_t> multiply_wide(uint32_t a, uint32_t b) {
  const uint64_t product = static_cast<uint64_t>(a) * b;
  return {static_cast<uint32_t>(product >> 32), static_cast<uint32_t>(product)};
}

template <typename Word>
struct PhiloxWords {
  Word word[4];
};

template <typename Word>
TE_NUMERIC PhiloxWords<Word> philox_round(const PhiloxWords<Word>& in, PhiloxKey key) {
  const WideProduct<Word> first = multiply_wide(in.word[0], 0xD2511F53U);
  const WideProduct<Word> second = multiply_wide(in.word[2], 0xCD9E8D57U);
  return {{second.high ^ in.word[1] ^ key.low, second.low, first.high ^ in.word[3] ^ key.high,
           first.low}};
}

template <typename Word>
TE_NUMERIC PhiloxWords<Word> philox4x32_10(PhiloxWords<Word> counter, PhiloxKey key) {
  constexpr int kRounds = 10;
  TE_UNROLL
  for (int round = 0; round < kRounds; ++round) {
    counter = philox_round(counter, key);
    key = {key.low + 0x9E3779B9U, key.high + 0xBB67AE85U};
  }
  return counter;
}

}  // namespace transformer_engine::numerics
