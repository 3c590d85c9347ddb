// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Run-time choice of the instruction set. Each file in cpu/kernels/ is compiled once per
// instruction set; it exports one constant table of function pointers per op family, and shared
// code picks a table with TE_CPU_KERNELS.
//
// Rules for cpu/kernels/ and cpu/simd/: everything lives in an anonymous namespace inside
// transformer_engine::cpu::TE_ISA (but the exported table), and no standard library header with
// inline functions is included: the linker keeps one copy of an inline function for all objects,
// and that copy may be one compiled with AVX-512.
#pragma once

namespace transformer_engine::cpu {

enum class Isa : int { kBase = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3 };

// The best set this processor has, lowered by NVTE_CPU_ISA=base|avx2|avx512|avx512bf16 when set.
// Fixed for the process.
Isa selected_isa();
const char* isa_name(Isa isa);

}  // namespace transformer_engine::cpu

// Declares the tables of one op family: TE_DECLARE_CPU_KERNELS(CastKernels, cast_kernels).
#if defined(__x86_64__)
#define TE_DECLARE_CPU_KERNELS(Type, name) \
  namespace base {                         \
  extern const Type name;                  \
  }                                        \
  namespace avx2 {                         \
  extern const Type name;                  \
  }                                        \
  namespace avx512 {                       \
  extern const Type name;                  \
  }                                        \
  namespace avx512bf16 {                   \
  extern const Type name;                  \
  }
#define TE_CPU_KERNELS(name)                                                        \
  (::transformer_engine::cpu::selected_isa() == Isa::kAvx512Bf16 ? avx512bf16::name \
   : ::transformer_engine::cpu::selected_isa() == Isa::kAvx512   ? avx512::name     \
   : ::transformer_engine::cpu::selected_isa() == Isa::kAvx2     ? avx2::name       \
                                                                 : base::name)
#else
#define TE_DECLARE_CPU_KERNELS(Type, name) \
  namespace base {                         \
  extern const Type name;                  \
  }
#define TE_CPU_KERNELS(name) (base::name)
#endif
