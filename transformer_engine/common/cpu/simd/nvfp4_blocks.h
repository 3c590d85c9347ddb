// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Blocks of NVFP4 side by side: a lane is a block, v[i] has element i of every block. So amax,
// scales, transform and packing are operations between vectors, for rows (after a transpose of the
// input) and for columns (as loaded) alike.
#pragma once

#include "cpu/simd/e2m1.h"
#include "numerics/hadamard.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

constexpr int kNvfp4Block = numerics::kHadamardSize;

typedef Vf Blocks[kNvfp4Block];

// max |x| per block, NaN skipped.
TE_INLINE Vf amax_of_any(const Blocks& v) {
  Vf largest = zero();
  for (const Vf& elements : v) {
    largest = max_abs(elements, largest);
  }
  return largest;
}

// The same where nothing is NaN. Four chains, since one would wait for the latency; magnitudes are
// ordered as their bits are.
TE_INLINE Vf amax_of_magnitudes(const Blocks& v) {
  Vi largest[4];
  TE_UNROLL
  for (int i = 0; i < 4; ++i) {
    largest[i] = as_int(v[i]);
  }
  TE_UNROLL
  for (int i = 4; i < kNvfp4Block; ++i) {
    largest[i % 4] = max_int(as_int(v[i]), largest[i % 4]);
  }
  return as_float(max_int(max_int(largest[0], largest[1]), max_int(largest[2], largest[3])));
}

// Inputs below 2^123 do not overflow within the transform; they are tame.
constexpr float kTameLimit = 0x1p123F;

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
