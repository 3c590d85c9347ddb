# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that need an installation of their own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import transformer_engine
from transformer_engine.common import loader

PACKAGE = Path(transformer_engine.__file__).parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A complete, working copy of the package; the folder to put on the path."""
    skip = shutil.ignore_patterns("__pycache__", "csrc", "include", "*.cpp", "*.h")
    shutil.copytree(PACKAGE, tmp_path / "transformer_engine", ignore=skip)
    (tmp_path / "build_tools").mkdir()
    (tmp_path / "build_tools" / "VERSION.txt").write_text(loader.package_version() + "\n")
    return tmp_path
