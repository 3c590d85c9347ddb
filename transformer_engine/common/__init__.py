# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What every framework shares: the core library and the recipes.

Importing this package loads the core, unless `NVTE_PROJECT_BUILDING` is set and
`NVTE_RELEASE_BUILD` is not 1: then a build imports the Python files before the library exists.
Neither does the command `python -m transformer_engine.report`, which reports what does not load.
"""

import os

from . import recipe
from .loader import (
    BuildInfo,
    NativeLibraryError,
    get_te_core_package_info,
    is_report_command,
    load_core,
    load_framework_extension,
    package_version,
    read_build_info,
    sanity_checks_for_pypi_installation,
)

__all__ = [
    "BuildInfo",
    "NativeLibraryError",
    "get_te_core_package_info",
    "is_project_building",
    "is_report_command",
    "load_core",
    "load_framework_extension",
    "package_version",
    "read_build_info",
    "recipe",
    "sanity_checks_for_pypi_installation",
]


def is_project_building() -> bool:
    """Whether a build imports the package, so that no native file is to be loaded."""
    return os.environ.get("NVTE_PROJECT_BUILDING", "0") not in ("", "0") and os.environ.get(
        "NVTE_RELEASE_BUILD", "0"
    ) in ("", "0")


if not (is_project_building() or is_report_command()):
    sanity_checks_for_pypi_installation()
    load_core()
