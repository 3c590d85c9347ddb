// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// vec.h for any processor, in GCC's and Clang's vector extensions: 4 lanes.
#pragma once

namespace transformer_engine::cpu::TE_ISA {
namespace {

constexpr int kWidth = 4;

typedef float Float4 __attribute__((vector_size(16)));
typedef int32_t Int4 __attribute__((vector_size(16)));
typedef uint32_t Uint4 __attribute__((vector_size(16)));
typedef uint16_t Half4 __attribute__((vector_size(8)));

struct Vf {
  Float4 v;
};
struct Vi {
  Int4 v;
};
struct Mask {  // -1 or 0 per lane
  Int4 v;
};

TE_INLINE Vf set1(float x) { return {Float4{x, x, x, x}}; }
TE_INLINE Vi set1_int(int32_t x) { return {Int4{x, x, x, x}}; }
TE_INLINE Vf zero() { return set1(0.0F); }
TE_INLINE Vi as_int(Vf a) { return {reinterpret_cast<Int4>(a.v)}; }
TE_INLINE Vf as_float(Vi a) { return {reinterpret_cast<Float4>(a.v)}; }

// Unsigned: sums of bit patterns wrap.
TE_INLINE Vi operator+(Vi a, Vi b) {
  return {reinterpret_cast<Int4>(reinterpret_cast<Uint4>(a.v) + reinterpret_cast<Uint4>(b.v))};
}
TE_INLINE Vi operator-(Vi a, Vi b) {
  return {reinterpret_cast<Int4>(reinterpret_cast<Uint4>(a.v) - reinterpret_cast<Uint4>(b.v))};
}
TE_INLINE Vi min_unsigned(Vi a, Vi b) {
  const Int4 is_less = reinterpret_cast<Uint4>(a.v) < reinterpret_cast<Uint4>(b.v);
  return {(a.v & is_less) | (b.v & ~is_less)};
}
TE_INLINE Vi max_int(Vi a, Vi b) { return {(a.v & (a.v > b.v)) | (b.v & ~(a.v > b.v))}; }
TE_INLINE Vi operator&(Vi a, Vi b) { return {a.v & b.v}; }
TE_INLINE Vi operator|(Vi a, Vi b) { return {a.v | b.v}; }
TE_INLINE Vi operator^(Vi a, Vi b) { return {a.v ^ b.v}; }
template <int kBits>
TE_INLINE Vi shift_left(Vi a) {
  return {reinterpret_cast<Int4>(reinterpret_cast<Uint4>(a.v) << kBits)};
}
template <int kBits>
TE_INLINE Vi shift_right_logical(Vi a) {
  return {reinterpret_cast<Int4>(reinterpret_cast<Uint4>(a.v) >> kBits)};
}

TE_INLINE Mask less(Vf a, Vf b) { return {a.v < b.v}; }
TE_INLINE Mask is_nan(Vf a) { return {a.v != a.v}; }
TE_INLINE Mask operator&(Mask a, Mask b) { return {a.v & b.v}; }
TE_INLINE Mask operator|(Mask a, Mask b) { return {a.v | b.v}; }
TE_INLINE Mask operator!(Mask a) { return {~a.v}; }
TE_INLINE bool any(Mask a) { return (a.v[0] | a.v[1] | a.v[2] | a.v[3]) != 0; }
TE_INLINE Vi select_bits(Mask mask, Vi a, Vi b) { return {(a.v & mask.v) | (b.v & ~mask.v)}; }
TE_INLINE Vf select(Mask mask, Vf a, Vf b) {
  return as_float(select_bits(mask, as_int(a), as_int(b)));
}
TE_INLINE Mask first_lanes(int64_t n) {
  return {Int4{0, 1, 2, 3} < set1_int(static_cast<int32_t>(n)).v};
}

TE_INLINE Vf operator+(Vf a, Vf b) { return {a.v + b.v}; }
TE_INLINE Vf operator-(Vf a, Vf b) { return {a.v - b.v}; }
TE_INLINE Vf operator*(Vf a, Vf b) { return {a.v * b.v}; }
TE_INLINE Vf operator/(Vf a, Vf b) { return {a.v / b.v}; }
TE_INLINE Vf operator-(Vf a) { return {-a.v}; }
TE_INLINE Vf min(Vf a, Vf b) { return select({a.v < b.v}, a, b); }
TE_INLINE Vf max(Vf a, Vf b) { return select({a.v > b.v}, a, b); }
TE_INLINE Vf abs(Vf a) { return as_float(as_int(a) & set1_int(INT32_MAX)); }
TE_INLINE Vf sqrt(Vf a) {
  return {Float4{__builtin_sqrtf(a.v[0]), __builtin_sqrtf(a.v[1]), __builtin_sqrtf(a.v[2]),
                 __builtin_sqrtf(a.v[3])}};
}
TE_INLINE Vf copysign(Vf magnitude, Vf sign) {
  return as_float((as_int(magnitude) & set1_int(INT32_MAX)) | (as_int(sign) & set1_int(INT32_MIN)));
}

// Lanes 2 i and 2 i + 1 exchanged.
TE_INLINE Vf swap_pairs(Vf a) { return {Float4{a.v[1], a.v[0], a.v[3], a.v[2]}}; }

#if defined(__FP_FAST_FMAF)
TE_INLINE Vf fma(Vf a, Vf b, Vf c) {
  Vf d;
  for (int i = 0; i < kWidth; ++i) {
    d.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
  }
  return d;
}
#else
// a * b + c, rounded once, without hardware: the product of two FP32 is exact in FP64; the sum is
// rounded to odd there (53 >= 2 * 24 + 2 bits), so the final rounding to FP32 is the only one
// (Boldo and Melquiond 2008, doi:10.1109/TC.2007.70819).
TE_INLINE float fma_to_odd(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = c;
  const double sum = product + addend;
  const double part = sum - product;
  const double error = (product - (sum - part)) + (addend - part);  // exact (TwoSum)
  int64_t bits;
  __builtin_memcpy(&bits, &sum, sizeof(bits));
  const bool is_inexact = (error > 0.0) | (error < 0.0);  // false for NaN
  const int64_t toward_error = ((error > 0.0) == (sum > 0.0)) ? 1 : -1;
  bits += (is_inexact & ((bits & 1) == 0)) ? toward_error : 0;
  double odd;
  __builtin_memcpy(&odd, &bits, sizeof(odd));
  return static_cast<float>(odd);
}
TE_INLINE Vf fma(Vf a, Vf b, Vf c) {
  return {Float4{fma_to_odd(a.v[0], b.v[0], c.v[0]), fma_to_odd(a.v[1], b.v[1], c.v[1]),
                 fma_to_odd(a.v[2], b.v[2], c.v[2]), fma_to_odd(a.v[3], b.v[3], c.v[3])}};
}
#endif

// True where the byte is not 0.
TE_INLINE Mask nonzero_bytes(const uint8_t* p) {
  return {Int4{p[0], p[1], p[2], p[3]} != set1_int(0).v};
}
TE_INLINE Mask nonzero_bytes(const uint8_t* p, int64_t n) {
  uint8_t bytes[kWidth] = {};
  __builtin_memcpy(bytes, p, static_cast<uint64_t>(n));
  return nonzero_bytes(bytes);
}

// x * 2^n for whole n with |n| <= 252: two normal powers, so that only the second product rounds.
TE_INLINE Vf scale_by_power_of_two(Vf x, Vf n) {
  const Int4 whole = __builtin_convertvector(n.v, Int4);
  const Int4 half = whole >> 1;
  const Vi bias = set1_int(127);
  const Vf first = as_float(shift_left<23>(Vi{half} + bias));
  const Vf second = as_float(shift_left<23>(Vi{whole - half} + bias));
  return x * first * second;
}

TE_INLINE float reduce_add(Vf a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }
TE_INLINE float reduce_max(Vf a) {
  const float even = a.v[0] > a.v[2] ? a.v[0] : a.v[2];
  const float odd = a.v[1] > a.v[3] ? a.v[1] : a.v[3];
  return even > odd ? even : odd;
}

TE_INLINE Vf widen_bf16(Half4 bits) {
  return as_float(shift_left<16>(Vi{__builtin_convertvector(bits, Int4)}));
}
TE_INLINE Half4 narrow_bf16(Vf a) {
  const Vi bits = as_int(a);
  const Vi odd = shift_right_logical<16>(bits) & set1_int(1);
  // A NaN keeps sign and upper payload and is made quiet, so that it cannot become Inf.
  const Vi chosen =
      select_bits(is_nan(a), bits | set1_int(0x00400000), bits + set1_int(0x7FFF) + odd);
  return __builtin_convertvector(shift_right_logical<16>(chosen).v, Half4);
}

TE_INLINE Vf widen_fp16(Half4 half) {
  const Vi bits = {__builtin_convertvector(half, Int4)};
  const Vi sign = shift_left<16>(bits & set1_int(0x8000));
  const Vi magnitude = bits & set1_int(0x7FFF);
  // Exponent and mantissa moved into place read as x * 2^-112, denormals included.
  const Vf finite = as_float(shift_left<13>(magnitude)) * set1(0x1p112F);
  const Vi quiet = {(magnitude.v > set1_int(0x7C00).v) & set1_int(0x00400000).v};
  const Vi special = shift_left<13>(magnitude) | set1_int(0x7F800000) | quiet;
  const Mask is_special = {magnitude.v >= set1_int(0x7C00).v};
  return as_float(select_bits(is_special, special, as_int(finite)) | sign);
}
TE_INLINE Half4 narrow_fp16(Vf a) {
  const Vi bits = as_int(a);
  const Vi sign = shift_right_logical<16>(bits & set1_int(INT32_MIN));
  const Vf magnitude = abs(a);
  const Vi m = as_int(magnitude);
  // Below 2^-14: adding 0.5 lets the FPU round to units of 2^-24, the spacing there.
  const Vi denormal = as_int(magnitude + set1(0.5F)) - as_int(set1(0.5F));
  const Vi odd = shift_right_logical<13>(m) & set1_int(1);
  const Vi normal = shift_right_logical<13>(m + set1_int(0xFFF) + odd - set1_int(112 << 23));
  const Vi nan = (shift_right_logical<13>(m) & set1_int(0x3FF)) | set1_int(0x7E00);
  Vi code = select_bits(less(magnitude, set1(0x1p-14F)), denormal, normal);
  // 65520 is the midpoint between the largest finite value and 2^16; the tie rounds to Inf.
  code = select_bits(less(magnitude, set1(65520.0F)), code, set1_int(0x7C00));
  code = select_bits(is_nan(a), nan, code);
  return __builtin_convertvector((code | sign).v, Half4);
}

TE_INLINE Vf load(const float* p) {
  Vf a;
  __builtin_memcpy(&a.v, p, sizeof(a.v));
  return a;
}
TE_INLINE Vf load(const float* p, int64_t n) {
  if (n == kWidth) {  // a copy of unknown length is a call
    return load(p);
  }
  Vf a = zero();
  __builtin_memcpy(&a.v, p, static_cast<uint64_t>(n) * sizeof(float));
  return a;
}
TE_INLINE void store(float* p, Vf a) { __builtin_memcpy(p, &a.v, sizeof(a.v)); }
TE_INLINE void store(float* p, Vf a, int64_t n) {
  if (n == kWidth) {
    store(p, a);
    return;
  }
  __builtin_memcpy(p, &a.v, static_cast<uint64_t>(n) * sizeof(float));
}

TE_INLINE Half4 load_half_bits(const void* p) {
  Half4 bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  return bits;
}
TE_INLINE Half4 load_half_bits(const void* p, int64_t n) {
  if (n == kWidth) {
    return load_half_bits(p);
  }
  Half4 bits = {};
  __builtin_memcpy(&bits, p, static_cast<uint64_t>(n) * sizeof(uint16_t));
  return bits;
}
TE_INLINE void store_half_bits(void* p, Half4 bits) { __builtin_memcpy(p, &bits, sizeof(bits)); }
TE_INLINE void store_half_bits(void* p, Half4 bits, int64_t n) {
  if (n == kWidth) {
    store_half_bits(p, bits);
    return;
  }
  __builtin_memcpy(p, &bits, static_cast<uint64_t>(n) * sizeof(uint16_t));
}

TE_INLINE Vf load(const Bf16* p) { return widen_bf16(load_half_bits(p)); }
TE_INLINE Vf load(const Bf16* p, int64_t n) { return widen_bf16(load_half_bits(p, n)); }
TE_INLINE void store(Bf16* p, Vf a) { store_half_bits(p, narrow_bf16(a)); }
TE_INLINE void store(Bf16* p, Vf a, int64_t n) { store_half_bits(p, narrow_bf16(a), n); }
TE_INLINE Vf load(const Fp16* p) { return widen_fp16(load_half_bits(p)); }
TE_INLINE Vf load(const Fp16* p, int64_t n) { return widen_fp16(load_half_bits(p, n)); }
TE_INLINE void store(Fp16* p, Vf a) { store_half_bits(p, narrow_fp16(a)); }
TE_INLINE void store(Fp16* p, Vf a, int64_t n) { store_half_bits(p, narrow_fp16(a), n); }

}  // namespace
}  // namespace transformer_engine::cpu::TE_ISA
