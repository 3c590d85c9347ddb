// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
//
// How often replaced kernels were called: shows that the replacement is in force, and how many
// kernels a call of a module starts.
#pragma once

#include <cstdint>

extern "C" {
extern int64_t te_allocate_only_core_kernels;
extern int64_t te_allocate_only_torch_kernels;
}
