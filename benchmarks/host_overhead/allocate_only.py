# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Kernels that only allocate their results, for the core and for torch alike.

What is left of a call then is its host work. The library is loaded with global symbols before the
core, so that its empty kernels are found first; nothing in the package knows of it.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD_DIR = ROOT / "build" / "allocate_only"
LIBRARY = BUILD_DIR / "libte_allocate_only.so"


class KernelCounts:
    """Calls of replaced kernels since the process began."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._core = ctypes.c_int64.in_dll(library, "te_allocate_only_core_kernels")
        self._torch = ctypes.c_int64.in_dll(library, "te_allocate_only_torch_kernels")

    def read(self) -> tuple[int, int]:
        """(the core's, torch's)."""
        return self._core.value, self._torch.value


def build() -> Path:
    """Build the library; quick when it is up to date.

    Raises
    ------
    RuntimeError
        With the output of the tool that failed, or naming the one that is missing.
    """
    build_tools = str(ROOT / "build_tools")
    if build_tools not in sys.path:
        sys.path.append(build_tools)
    from cmake_build import find_torch_dir, require_tool

    cmake = require_tool("cmake")
    configure = [cmake, "-S", str(HERE / "native"), "-B", str(BUILD_DIR), "-G", "Ninja"]
    options = [f"-DTORCH_DIR={find_torch_dir()}", f"-DCMAKE_MAKE_PROGRAM={require_tool('ninja')}"]
    for command in ([*configure, *options], [cmake, "--build", str(BUILD_DIR)]):
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise RuntimeError(
                f"host_overhead: the allocate-only library does not build with {command}:\n"
                f"{result.stdout}{result.stderr}"
            )
    return LIBRARY


def load() -> KernelCounts:
    """Put the empty kernels in force in this process.

    Raises
    ------
    RuntimeError
        When the core is loaded already: its own kernels would stay in force.
    """
    if "transformer_engine_torch" in sys.modules:
        raise RuntimeError(
            "allocate_only.load: transformer_engine_torch is imported already; its kernels can "
            "only be replaced before. Call load() first."
        )
    import torch  # noqa: F401 - the library needs torch's libraries in the process

    library = ctypes.CDLL(str(LIBRARY), mode=ctypes.RTLD_GLOBAL)
    library.te_allocate_only_install()
    return KernelCounts(library)
