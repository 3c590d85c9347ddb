# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The PEP 517/660 build backend: setuptools, plus build requirements decided at run time.

torch is never a fixed build requirement: pip would fetch a second torch, often of another version,
into the isolated build environment. The torch of the environment that is installed into is used
where it lies. Only without any is one pinned release asked for.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  (re-export every hook of the backend)

# pip puts backend-path on sys.path for this import only when it runs the backend in-process.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from cmake_build import ROOT, find_torch_dir, missing_tools, wants_torch

TORCH_PIN = "torch==2.13.0"


def _requirements() -> list[str]:
    needs = missing_tools()
    if wants_torch() and find_torch_dir() is None:
        needs.append(os.environ.get("NVTE_BUILD_TORCH") or TORCH_PIN)
    return needs


_Settings = dict[str, Any] | None


def get_requires_for_build_wheel(config_settings: _Settings = None) -> list[str]:
    return build_meta.get_requires_for_build_wheel(config_settings) + _requirements()


def get_requires_for_build_editable(config_settings: _Settings = None) -> list[str]:
    return build_meta.get_requires_for_build_editable(config_settings) + _requirements()


def build_wheel(
    wheel_directory: str, config_settings: _Settings = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel of what the tree holds now: setuptools would keep files deleted since."""
    for left in (*ROOT.glob("build/lib*"), *ROOT.glob("build/bdist*")):
        shutil.rmtree(left)
    return str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))
