# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run `mypy --strict` (configured in pyproject.toml) on the parts that are fully typed."""

from __future__ import annotations

import subprocess
import sys

from source_files import PYTHON_SUFFIXES, ROOT, list_files

CHECKED = (
    "build_tools/",
    "setup.py",
    "tests/pytorch/helpers/",
    "transformer_engine/__init__.py",
    "transformer_engine/common/",
    "transformer_engine/pytorch/arguments.py",
    "transformer_engine/pytorch/attention/",
    "transformer_engine/pytorch/module/",
    "transformer_engine/pytorch/quantization.py",
    "transformer_engine/pytorch/tensor/",
    "transformer_engine/pytorch/transformer.py",
    "transformer_engine/report.py",
)


def main() -> int:
    names = [str(path.relative_to(ROOT)) for path in list_files(PYTHON_SUFFIXES)]
    checked = [name for name in names if name.startswith(CHECKED)]
    command = [sys.executable, "-m", "mypy", *sys.argv[1:], *checked]
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
