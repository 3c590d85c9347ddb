// Copyright (c) 2026, The Transformer Engine Project Authors.
// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>
#include <transformer_engine/report.h>

#include "bind.h"

namespace transformer_engine::pytorch {

void bind_report(pybind11::module_& m) {
  m.attr("__version__") = TE_VERSION;
  m.def("core_version", &core_version, "Version text the core was built with.");
  m.def("cpu_instruction_set", &cpu_instruction_set, "Instruction set of the CPU kernels in use.");
  m.def(
      "backend_statuses",
      [] {
        pybind11::list rows;
        for (const auto& status : backend_statuses()) {
          pybind11::dict row;
          row["name"] = status.name;
          row["available"] = status.available;
          row["reason"] = status.reason;
          row["disables"] = status.disables;
          row["remedy"] = status.remedy;
          rows.append(row);
        }
        return rows;
      },
      "List of dicts (name, available, reason, disables, remedy), one per backend.");
}

}  // namespace transformer_engine::pytorch
