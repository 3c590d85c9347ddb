// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <transformer_engine/framework.h>
#include <transformer_engine/report.h>

#include "cpu/isa.h"
#include "cuda/entry_points.h"

#ifndef TE_VERSION
#error "the build defines TE_VERSION from build_tools/VERSION.txt"
#endif

namespace transformer_engine {

namespace {
FrameworkFunctions registered_functions;
}

void register_framework_functions(const FrameworkFunctions& functions) {
  registered_functions = functions;
}
const FrameworkFunctions& framework_functions() { return registered_functions; }

const char* core_version() { return TE_VERSION; }
const char* cpu_instruction_set() { return cpu::isa_name(cpu::selected_isa()); }

std::vector<BackendStatus> backend_statuses() {
  std::vector<BackendStatus> statuses;
  statuses.push_back({std::string("cpu (") + cpu_instruction_set() + ")", true, "", "", ""});
  const bool has_framework = registered_functions.gemm_cpu != nullptr;
  statuses.push_back(
      {has_framework ? std::string(registered_functions.name) + " gemm" : "framework gemm",
       has_framework, has_framework ? "" : "no framework binding registered its functions",
       has_framework ? "" : "the framework's CPU GEMM; the core's own is used",
       has_framework ? "" : "import transformer_engine.pytorch"});
  cuda::append_statuses(statuses);
  return statuses;
}

}  // namespace transformer_engine

extern "C" const char* nvte_core_version() { return TE_VERSION; }
