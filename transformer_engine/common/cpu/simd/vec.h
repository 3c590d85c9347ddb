// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Float vectors for cpu/kernels/: one interface, a body per instruction set. Rules: cpu/isa.h.
//
//   Vf  kWidth FP32 lanes (16 on AVX-512, 8 on AVX2, 4 portable); Vi the same lanes as int32;
//   Mask a truth value per lane.
//
// Every operation gives the same bits on every instruction set: each is one correctly rounded
// IEEE operation per lane (the portable fma is exact too), and reductions add in one fixed tree.
// Only the payload of a NaN may differ.
//
//   load(p), load(p, n)          n lanes, 0 <= n <= kWidth, the others 0; p is FP32, Bf16 or Fp16
//   store(p, v), store(p, v, n)  to nearest even; NaN stays NaN, denormals stay; FP16 overflows to
//                                Inf, BF16 too. vcvtneps2bf16 is ruled out: it flushes denormals.
//   min(a, b), max(a, b)         the second operand when either is NaN: max(x, m) skips NaN in x
//   round_to<T>(v)               v rounded to T and widened again
#pragma once

#include <cstdint>

#ifndef TE_ISA
#error "cpu/simd/ is for kernel files, compiled once per instruction set"
#endif

// Forced, with two exceptions where it would only cost compile time. In the portable set four
// emulated lanes would make every kernel several times as long, and its file take 40 s instead of
// 20 s (softmax, gcc 12). Under sanitizers every inlined temporary is checked on its own: 115 s for
// the activations' gradients.
#if TE_ISA_LEVEL == 0 || defined(TE_SANITIZED)
#define TE_INLINE inline
#else
#define TE_INLINE inline __attribute__((always_inline))
#endif

namespace transformer_engine::cpu::TE_ISA {
namespace {

struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA

#if TE_ISA_LEVEL >= 2
#include "cpu/simd/vec_avx512.h"
#elif TE_ISA_LEVEL == 1
#include "cpu/simd/vec_avx2.h"
#else
#include "cpu/simd/vec_base.h"
#endif

namespace transformer_engine::cpu::TE_ISA {
namespace {

TE_INLINE Vf& operator+=(Vf& a, Vf b) { return a = a + b; }
TE_INLINE Vf& operator-=(Vf& a, Vf b) { return a = a - b; }
TE_INLINE Vf& operator*=(Vf& a, Vf b) { return a = a * b; }

// -(a * b) + c, rounded once.
TE_INLINE Vf fnma(Vf a, Vf b, Vf c) { return fma(-a, b, c); }

// Largest |lane| so far, NaN skipped.
TE_INLINE Vf max_abs(Vf x, Vf so_far) { return max(abs(x), so_far); }

template <typename T>
Vf round_to(Vf v);
template <>
TE_INLINE Vf round_to<float>(Vf v) {
  return v;
}
template <>
TE_INLINE Vf round_to<Bf16>(Vf v) {
  return widen_bf16(narrow_bf16(v));
}
template <>
TE_INLINE Vf round_to<Fp16>(Vf v) {
  return widen_fp16(narrow_fp16(v));
}

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
