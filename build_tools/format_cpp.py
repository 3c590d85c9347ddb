# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Format the C++ and CUDA files with the pinned clang-format; --check only reports differences."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import clang_format
from source_files import CPP_SUFFIXES, list_files


def main() -> int:
    mode = ["--dry-run", "-Werror"] if "--check" in sys.argv[1:] else ["-i"]
    # The installed package's program, not one on PATH: only it has the pinned version.
    program = Path(clang_format.__file__).parent / "data" / "bin" / "clang-format"
    command = [str(program), *mode, *map(str, list_files(CPP_SUFFIXES))]
    return subprocess.run(command).returncode


if __name__ == "__main__":
    sys.exit(main())
