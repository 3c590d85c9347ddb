// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Every instruction set this machine can run, for tests of one kernel table after the other.
#pragma once

#include <vector>

#include "cpu/isa.h"

namespace transformer_engine::testing {

template <typename Table>
struct NamedTable {
  const char* isa;
  const Table* table;
};

}  // namespace transformer_engine::testing

// std::vector of NamedTable for the kernel table `name` declared with TE_DECLARE_CPU_KERNELS, up to
// the selected instruction set.
#if defined(__x86_64__)
#define TE_TABLES_OF(Table, name)                                                    \
  ([] {                                                                              \
    namespace cpu = ::transformer_engine::cpu;                                       \
    using Named = ::transformer_engine::testing::NamedTable<Table>;                  \
    const Named all[] = {{"base", &cpu::base::name},                                 \
                         {"avx2", &cpu::avx2::name},                                 \
                         {"avx512", &cpu::avx512::name},                             \
                         {"avx512bf16", &cpu::avx512bf16::name}};                    \
    return std::vector<Named>(all, all + static_cast<int>(cpu::selected_isa()) + 1); \
  }())
#else
#define TE_TABLES_OF(Table, name)                                 \
  (std::vector<::transformer_engine::testing::NamedTable<Table>>{ \
      {"base", &::transformer_engine::cpu::base::name}})
#endif
