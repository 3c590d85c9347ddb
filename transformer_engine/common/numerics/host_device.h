// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Every function in numerics/ is marked TE_NUMERIC: usable on the host and in device code, in
// constant expressions, and always inlined. Inlining is part of correctness on the CPU: kernel
// files are compiled once per instruction set, and an out-of-line copy of an inline function would
// be shared between them by the linker (cpu/isa.h). For the same reason nothing here includes a
// standard header with functions.
#pragma once

#if defined(__CUDACC__)
#define TE_HOST_DEVICE __host__ __device__
#else
#define TE_HOST_DEVICE
#endif

// Before a loop of at most 16 turns over an array: unrolled, the array stays in registers. In
// nvcc's pass over host code neither pragma is known.
#if defined(__CUDA_ARCH__)
#define TE_UNROLL _Pragma("unroll")
#elif defined(__CUDACC__)
#define TE_UNROLL
#else
#define TE_UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(__GNUC__) || defined(__clang__)
#define TE_NUMERIC TE_HOST_DEVICE __attribute__((always_inline)) inline constexpr
#else
#define TE_NUMERIC TE_HOST_DEVICE inline constexpr
#endif
