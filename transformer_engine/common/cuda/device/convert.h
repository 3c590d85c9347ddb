// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Number formats in kernels: high-precision elements to and from FP32, and FP8 and FP4 codes, by
// the conversion instructions where the architecture has them (CUDA's headers choose). They give
// the codes of numerics/minifloat.h; BF16 and FP16 NaN become the one canonical NaN.
#pragma once

#include "cuda/device/launch.h"
#include "numerics/minifloat.h"

namespace transformer_engine::cuda {

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }

// Rounded to nearest even.
template <class T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float value) {
  return __float2half_rn(value);
}

template <class T>
inline constexpr DType kDTypeOf = DType::kFloat32;
template <>
inline constexpr DType kDTypeOf<__nv_bfloat16> = DType::kBFloat16;
template <>
inline constexpr DType kDTypeOf<__half> = DType::kFloat16;

// The largest finite number of a high-precision type.
template <class T>
inline constexpr float kLargest = 0x1.fffffep127F;
template <>
inline constexpr float kLargest<__nv_bfloat16> = 0x1.fep127F;
template <>
inline constexpr float kLargest<__half> = 65504.0F;

// How CUDA's headers name a format of numerics/minifloat.h.
template <class Format>
inline constexpr __nv_fp8_interpretation_t kFp8Interpretation = __NV_E4M3;
template <>
inline constexpr __nv_fp8_interpretation_t kFp8Interpretation<numerics::E5M2> = __NV_E5M2;

template <class Format>
__device__ __forceinline__ uint8_t encode_fp8(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, kFp8Interpretation<Format>);
}
// Two codes, that of `low` in the low byte: one instruction.
template <class Format>
__device__ __forceinline__ uint16_t encode_fp8_pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(float2{low, high}, __NV_SATFINITE, kFp8Interpretation<Format>);
}
template <class Format>
__device__ __forceinline__ float decode_fp8(uint8_t code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, kFp8Interpretation<Format>)));
}

// The E2M1 code of a value as numerics/minifloat.h defines it, without the conversion instruction:
// 11 instructions, where CUDA's header takes some 70 and branches. An addend per range of the
// magnitude makes FP32's last bit worth the step of E2M1 there, 1/2, 1 or 2, so that the addition
// rounds, to the even code in a tie, and the low bits of the sum are the code.
__device__ __forceinline__ uint32_t encode_e2m1_by_addition(float value) {
  constexpr float kMax = numerics::E2M1::kMax;
  // By comparisons, which give kMax for every NaN; the C library's fminf gives a signalling one.
  const float at_most = value < kMax ? value : kMax;
  const float clamped = at_most > -kMax ? at_most : -kMax;
  const float magnitude = fabsf(clamped);
  const float addend = magnitude < 2.0F   ? 0x1p22F
                       : magnitude < 4.0F ? 0x1p23F + 2.0F
                                          : 0x1p24F + 8.0F;
  const uint32_t code = __float_as_uint(magnitude + addend) & 7U;
  return code | (__float_as_uint(clamped) >> 28 & numerics::E2M1::kSignBit);
}

// Exact: the code's exponent and mantissa, put where those of FP32 end, make a number, denormal or
// not, that lacks only the difference of the biases, 126.
__device__ __forceinline__ float decode_e2m1(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & numerics::E2M1::kSignBit) << 28;
  const uint32_t absolute = static_cast<uint32_t>(code & 0x07) << 22;
  return __uint_as_float(sign | absolute) * 0x1p126F;
}
// Two E2M1 codes in a byte, that of `even` in the low half.
__device__ __forceinline__ uint8_t encode_e2m1_pair(float even, float odd) {
#if defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH__ >= 1000  // where it exists
  return __nv_cvt_float2_to_fp4x2(float2{even, odd}, __NV_E2M1, cudaRoundNearest);
#else  // the same codes
  return static_cast<uint8_t>(encode_e2m1_by_addition(even) | encode_e2m1_by_addition(odd) << 4);
#endif
}

}  // namespace transformer_engine::cuda
