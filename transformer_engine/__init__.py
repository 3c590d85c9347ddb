# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Transformer layers in BF16 and FP8, on the CPU and on CUDA.

`import transformer_engine` brings `transformer_engine.common` (with the core library and the
recipes) and, where torch is installed, `transformer_engine.pytorch`. `NVTE_FRAMEWORK` names what
must come: with `pytorch` or `all` a missing torch is an error instead of a missing attribute.

Whatever goes wrong is an `ImportError` that says what was expected and found, and leaves no module
of this package behind, so that programs which only probe for it go on without it.
"""

import importlib
import importlib.util
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from . import common, pytorch
    from .report import report

__all__ = ["__version__", "common", "is_nccl_ep_available", "pytorch", "report", "require_nccl_ep"]

_FRAMEWORKS = ("pytorch",)
# Framework -> why it is not here, for the message of an access to the attribute.
_absent: dict[str, str] = {}


def _required_frameworks() -> set[str]:
    """The frameworks that NVTE_FRAMEWORK (a comma list) asks for."""
    wanted = {name.strip().lower() for name in os.environ.get("NVTE_FRAMEWORK", "").split(",")}
    unknown = sorted(wanted - {*_FRAMEWORKS, "all", "none", ""})
    if unknown:
        raise ImportError(
            f"transformer_engine: NVTE_FRAMEWORK names {', '.join(unknown)}; this build has "
            f"{', '.join(_FRAMEWORKS)}. Take the other names out.",
            name="transformer_engine",
        )
    return set(_FRAMEWORKS) if "all" in wanted else wanted & set(_FRAMEWORKS)


def _why_no_pytorch(common: "ModuleType") -> str:
    """Why the PyTorch part cannot be wanted in this environment; empty when it should import."""
    if common.is_project_building():
        return "NVTE_PROJECT_BUILDING is set, so no native file is loaded"
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    if not common.read_build_info().torch_version:
        return "only the core was built; reinstall with torch installed"
    return ""


def _import_parts() -> None:
    common = importlib.import_module("transformer_engine.common")
    if common.is_report_command():
        _absent["pytorch"] = "the report loads nothing that it does not report"
        return
    required = _required_frameworks()
    reason = _why_no_pytorch(common)
    if not reason or "pytorch" in required:
        common.load_framework_extension("torch")
        importlib.import_module("transformer_engine.pytorch")
        return
    _absent["pytorch"] = reason
    if reason.startswith("only the core"):
        message = f"transformer_engine.pytorch is not available: {reason}."
        warnings.warn(message, RuntimeWarning, stacklevel=4)


def _import_parts_or_nothing() -> None:
    """Import the parts; after a failure no module of the package is left in `sys.modules`."""
    before = set(sys.modules)
    try:
        _import_parts()
    except BaseException as error:
        for name in set(sys.modules) - before:
            if name.startswith(("transformer_engine.", "transformer_engine_torch")):
                del sys.modules[name]
        if isinstance(error, ImportError) or not isinstance(error, Exception):
            raise
        raise ImportError(
            f"transformer_engine: the import failed with {type(error).__name__}: {error}",
            name="transformer_engine",
        ) from error


def __getattr__(name: str) -> Any:
    # The report is imported when asked for: `python -m transformer_engine.report` must find it new.
    if name == "report":
        return importlib.import_module("transformer_engine.report")
    reason = _absent.get(name)
    raise AttributeError(
        f"module 'transformer_engine' has no attribute {name!r}" + (f": {reason}" if reason else "")
    )


def is_nccl_ep_available() -> bool:
    """Whether the NCCL expert-parallel backend can be used: never in this version (no CUDA)."""
    return False


def require_nccl_ep() -> None:
    """Raise RuntimeError unless the NCCL expert-parallel backend can be used."""
    if not is_nccl_ep_available():
        raise RuntimeError(
            "require_nccl_ep: the NCCL expert-parallel backend is not part of this build; it needs "
            "the CUDA backend and NCCL 2.30.4. Use all-to-all through torch.distributed."
        )


def _version() -> str:
    common = sys.modules["transformer_engine.common"]
    try:
        return common.package_version()
    except ImportError:
        if common.is_report_command():
            return "unknown"
        raise


_import_parts_or_nothing()
__version__ = _version()
