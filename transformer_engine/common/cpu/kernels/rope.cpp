// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Rotation of the heads of one token: x' = x cos + partner(x) sin, the second product rounded and
// the first one in a fused multiply-add. Channels that do not turn are copied.
#include "cpu/rope_kernels.h"

#include "cpu/simd/rows.h"
#include "cpu/simd/vec_math.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

bool sin_cos_row(const float* angles, float* sin, float* cos, int64_t count) {
  bool is_beyond = false;
  for (int64_t i = 0; i < count; i += kWidth) {
    const int64_t n = count - i < kWidth ? count - i : int64_t{kWidth};
    const Vf x = load(angles + i, n);
    const SinCos result = sin_cos(x);
    store(sin + i, result.sin, n);
    store(cos + i, result.cos, n);
    is_beyond = is_beyond || any(less(set1(kRopeVectorLimit), abs(x)));
  }
  return is_beyond;
}

// Pairs (i, i + width / 2).
template <typename T>
TE_INLINE void rotate_halves(const T* input, T* output, const RopeHeads& token) {
  const int64_t half = token.width / 2;
  for_packs(half, [&](int64_t i, auto count) TE_INLINE_LAMBDA {
    const auto x = load(input + i, count);
    const auto y = load(input + half + i, count);
    store(output + i, fma(x, load(token.cos + i, count), y * load(token.sin + i, count)), count);
    store(output + half + i,
          fma(y, load(token.cos + half + i, count), x * load(token.sin + half + i, count)), count);
  });
}

// Pairs (2 i, 2 i + 1): every vector holds whole ones, the last one too.
template <typename T>
TE_INLINE void rotate_neighbours(const T* input, T* output, const RopeHeads& token) {
  for_packs(token.width, [&](int64_t i, auto count) TE_INLINE_LAMBDA {
    const auto x = load(input + i, count);
    store(output + i,
          fma(x, load(token.cos + i, count), swap_pairs(x) * load(token.sin + i, count)), count);
  });
}

template <typename T, bool kIsInterleaved>
void rotate(const RopeHeads& token) {
  const auto rest = static_cast<uint64_t>(token.channels - token.width);
  for (int64_t group = 0; group < token.groups; ++group) {
    const T* input = static_cast<const T*>(token.input) + group * token.input_group_stride;
    T* output = static_cast<T*>(token.output) + group * token.output_group_stride;
    for (int64_t head = 0; head < token.heads; ++head) {
      if constexpr (kIsInterleaved) {
        rotate_neighbours(input, output, token);
      } else {
        rotate_halves(input, output, token);
      }
      if (rest != 0) {
        __builtin_memcpy(output + token.width, input + token.width, rest * sizeof(T));
      }
      input += token.input_head_stride;
      output += token.output_head_stride;
    }
  }
}

}  // namespace

extern const RopeKernels rope_kernels = {
    .sin_cos = sin_cos_row,
    .rotate = {{rotate<float, false>, rotate<float, true>},
               {rotate<Bf16, false>, rotate<Bf16, true>},
               {rotate<Fp16, false>, rotate<Fp16, true>}},
};

}  // namespace transformer_engine::cpu::TE_ISA
