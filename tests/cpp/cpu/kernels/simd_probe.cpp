// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "../simd_probe.h"

#include "cpu/simd/vec.h"
#include "cpu/simd/vec_math.h"

namespace transformer_engine::cpu::TE_ISA {
namespace {

// Calls body(offset, partial) for full vectors (partial = kWidth) and for the rest.
template <typename Full, typename Partial>
TE_INLINE void for_vectors(int64_t n, const Full& full, const Partial& partial) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    full(i);
  }
  if (i < n) {
    partial(i, n - i);
  }
}

template <typename In, typename Out, Vf (*op)(Vf)>
void unary(const In* x, Out* y, int64_t n) {
  for_vectors(
      n, [&](int64_t i) { store(y + i, op(load(x + i))); },
      [&](int64_t i, int64_t m) { store(y + i, op(load(x + i, m)), m); });
}

template <Vf (*op)(Vf, Vf)>
void binary(const float* a, const float* b, float* y, int64_t n) {
  for_vectors(
      n, [&](int64_t i) { store(y + i, op(load(a + i), load(b + i))); },
      [&](int64_t i, int64_t m) { store(y + i, op(load(a + i, m), load(b + i, m)), m); });
}

void run_fma(const float* a, const float* b, const float* c, float* y, int64_t n) {
  for_vectors(
      n, [&](int64_t i) { store(y + i, fma(load(a + i), load(b + i), load(c + i))); },
      [&](int64_t i, int64_t m) {
        store(y + i, fma(load(a + i, m), load(b + i, m), load(c + i, m)), m);
      });
}

void run_hide(const float* x, const uint8_t* bytes, float* y, int64_t n) {
  for_vectors(
      n, [&](int64_t i) { store(y + i, select(nonzero_bytes(bytes + i), zero(), load(x + i))); },
      [&](int64_t i, int64_t m) {
        store(y + i, select(nonzero_bytes(bytes + i, m), zero(), load(x + i, m)), m);
      });
}

Vf same(Vf x) { return x; }
Vf run_exp(Vf x) { return exp(x); }
Vf run_sigmoid(Vf x) { return sigmoid(x); }
Vf run_tanh(Vf x) { return tanh(x); }
Vf run_sin(Vf x) { return sin_cos(x).sin; }
Vf run_cos(Vf x) { return sin_cos(x).cos; }
Vf run_sqrt(Vf x) { return sqrt(x); }
Vf run_swap_pairs(Vf x) { return swap_pairs(x); }
Vf run_min(Vf a, Vf b) { return min(a, b); }
Vf run_max(Vf a, Vf b) { return max(a, b); }
Vf run_copysign(Vf a, Vf b) { return copysign(a, b); }
Vf run_less(Vf a, Vf b) { return select(less(a, b), set1(1.0F), zero()); }

template <typename Half>
void widen(const uint16_t* x, float* y, int64_t n) {
  unary<Half, float, same>(reinterpret_cast<const Half*>(x), y, n);
}
template <typename Half>
void narrow(const float* x, uint16_t* y, int64_t n) {
  unary<float, Half, same>(x, reinterpret_cast<Half*>(y), n);
}

float run_reduce_add(const float* x) { return reduce_add(load(x)); }
float run_reduce_max(const float* x) { return reduce_max(load(x)); }

}  // namespace

extern const SimdProbe simd_probe = {
    .width = kWidth,
    .exp = unary<float, float, run_exp>,
    .sigmoid = unary<float, float, run_sigmoid>,
    .tanh = unary<float, float, run_tanh>,
    .sin = unary<float, float, run_sin>,
    .cos = unary<float, float, run_cos>,
    .sqrt = unary<float, float, run_sqrt>,
    .fma = run_fma,
    .min = binary<run_min>,
    .max = binary<run_max>,
    .copysign = binary<run_copysign>,
    .less = binary<run_less>,
    .swap_pairs = unary<float, float, run_swap_pairs>,
    .hide = run_hide,
    .widen_bf16 = widen<Bf16>,
    .narrow_bf16 = narrow<Bf16>,
    .widen_fp16 = widen<Fp16>,
    .narrow_fp16 = narrow<Fp16>,
    .reduce_add = run_reduce_add,
    .reduce_max = run_reduce_max,
};

}  // namespace transformer_engine::cpu::TE_ISA
