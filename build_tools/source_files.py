# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The files of the source tree, for the tools beside this one."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

PYTHON_SUFFIXES = (".py", ".pyi")
CPP_SUFFIXES = (".cpp", ".h", ".cu", ".cuh")


def list_files(suffixes: tuple[str, ...], root: Path = ROOT) -> list[Path]:
    """Files that git tracks or would track, with one of the suffixes, that exist."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    paths = [root / name for name in listed.stdout.split("\0") if name.endswith(suffixes)]
    return sorted(path for path in paths if path.is_file())
