# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Running Megatron-core in processes of its own: it starts process groups and patches torch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import transformer_engine

HERE = Path(__file__).resolve().parent
PACKAGE_PARENT = Path(transformer_engine.__file__).resolve().parent.parent


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


@pytest.fixture(scope="session")
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the interpreter with the library and the client on its path; skip without Megatron."""
    for name in ("megatron.core", "psutil"):
        if not _is_installed(name):
            pytest.skip(
                f"{name} is not installed: pip install --no-deps -r requirements-megatron.txt"
            )

    def run(*arguments: str, package_parent: Path = PACKAGE_PARENT, timeout_s: float = 500):
        path = [str(package_parent), str(HERE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(folder for folder in path if folder),
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            cwd=HERE,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    return run
