# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What pyproject.toml cannot say: the version, the torch built against, the native build."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "build_tools"))

from cmake_build import (  # noqa: E402  (after the path)
    BuildRequest,
    build,
    find_torch_dir,
    read_torch_version,
    wants_torch,
)


class CMakeBuild(build_ext):
    """Build the native files with CMake, into the wheel's tree or in place."""

    def run(self) -> None:
        target = ROOT if self.inplace else Path(self.build_lib).resolve()
        build(BuildRequest(target / "transformer_engine"))

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:  # editable installs ask for it
        return {}


def install_requires() -> list[str]:
    """The torch built against, so that pip never pairs the binding with another one."""
    needs = ["pydantic>=2.7", "packaging>=22"]
    torch_dir = find_torch_dir() if wants_torch() else None
    if torch_dir is not None:
        needs.append(f"torch=={read_torch_version(torch_dir).split('+')[0]}")
    return needs


readme = ROOT / "README.md"
setup(
    version=(ROOT / "build_tools" / "VERSION.txt").read_text().strip(),
    long_description=readme.read_text() if readme.exists() else "",
    long_description_content_type="text/markdown",
    install_requires=install_requires(),
    ext_modules=[Extension("transformer_engine._native", [])],
    cmdclass={"build_ext": CMakeBuild},
)
