// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include "cpu/isa.h"

#include <transformer_engine/error.h>

#include <cstdlib>
#include <cstring>

namespace transformer_engine::cpu {

namespace {

constexpr Isa kAllIsas[] = {Isa::kBase, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};

Isa best_supported() {
#if defined(__x86_64__)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx512 && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16")) {
    return Isa::kAvx512Bf16;
  }
  return has_avx512 ? Isa::kAvx512 : has_avx2 ? Isa::kAvx2 : Isa::kBase;
#else
  return Isa::kBase;
#endif
}

Isa choose() {
  const Isa best = best_supported();
  const char* wanted = std::getenv("NVTE_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') {
    return best;
  }
  for (const Isa isa : kAllIsas) {
    if (std::strcmp(wanted, isa_name(isa)) == 0) {
      return isa < best ? isa : best;
    }
  }
  throw ValueError(concat("NVTE_CPU_ISA: '", wanted,
                          "' is unknown; base, avx2, avx512 or avx512bf16 is required."));
}

}  // namespace

Isa selected_isa() {
  static const Isa isa = choose();
  return isa;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kBase:
      return "base";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
  }
  return "unknown";
}

}  // namespace transformer_engine::cpu
