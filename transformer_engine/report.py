# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What this installation has, what it lacks, what that disables and how to mend it.

    python -m transformer_engine.report [--json]

or `transformer_engine.report()` from Python; `collect()` gives the same as data. Unlike the import
of the package, a report asks torch for its devices.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import os
import platform
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import IO, Any

from .common import loader
from .common.environment import variables_in_force
from .common.loader import NativeLibraryError

__all__ = ["Backend", "Report", "collect", "report"]


@dataclass(frozen=True, slots=True)
class Backend:
    """One backend: whether it can be used, else why not, what that disables, what to do."""

    name: str
    available: bool
    reason: str
    disables: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Report:
    """All facts of a report, as text by `str()`, as plain data by `to_dict()`."""

    versions: dict[str, str]
    devices: dict[str, str]
    backends: tuple[Backend, ...]
    environment: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts and lists, as `--json` prints them."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        lines = _section("versions", self.versions) + _section("devices", self.devices)
        lines.append("backends")
        for backend in self.backends:
            lines += _backend_lines(backend)
        return "\n".join([*lines, "", *_section("environment variables", self.environment)])


def _section(title: str, rows: dict[str, str]) -> list[str]:
    width = max(map(len, rows), default=0)
    body = [f"  {name:<{width}}  {text}" for name, text in rows.items()]
    return [title, *(body or ["  none set"]), ""]


def _backend_lines(backend: Backend) -> list[str]:
    if backend.available:
        return [f"  yes  {backend.name}"]
    lines = [f"  no   {backend.name}: {backend.reason}"]
    lines += [f"       disables: {backend.disables}"] if backend.disables else []
    lines += [f"       remedy:   {backend.remedy}"] if backend.remedy else []
    return lines


def _installed_torch() -> tuple[ModuleType | None, str]:
    """torch, and what to say of it: its version, or why it is not here."""
    if importlib.util.find_spec("torch") is None:
        return None, "not installed"
    try:
        torch = importlib.import_module("torch")
    except Exception as error:  # whatever a broken torch raises
        return None, f"does not import ({type(error).__name__}: {error})"
    return torch, str(torch.__version__)


def _versions(torch: ModuleType | None, about_torch: str) -> dict[str, str]:
    built_with, torch_version = "unknown", "unknown"
    with contextlib.suppress(NativeLibraryError):  # the backends tell what is wrong
        info = loader.read_build_info()
        built_with = f"{info.compiler}, {info.build_type}"
        if info.sanitizers:
            built_with += f", sanitizers {info.sanitizers}"
        torch_version = info.torch_version or "none: only the core was built"
    version = "unknown"
    with contextlib.suppress(NativeLibraryError):
        version = loader.package_version()
    return {
        "transformer_engine": version,
        "location": str(loader.PACKAGE_DIR),
        "core built with": built_with,
        "torch built against": torch_version,
        "torch": about_torch,
        "CUDA of torch": "none" if torch is None else torch.version.cuda or "none (CPU build)",
        "Python": platform.python_version(),
        "platform": platform.platform(),
    }


def _processor_name() -> str:
    """The processor's model where the system tells it (Linux), else its architecture."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _devices(torch: ModuleType | None) -> dict[str, str]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cpu = f"{_processor_name()}, {usable} usable cores"
    if torch is None:
        return {"cpu": cpu}
    rows = {"cpu": f"{cpu}, {torch.get_num_threads()} threads in torch"}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        memory_gib = properties.total_memory / 2**30
        capability = f"{properties.major}.{properties.minor}"
        rows[f"cuda:{index}"] = f"{properties.name}, {capability}, {memory_gib:.0f} GiB"
    return rows if len(rows) > 1 else {**rows, "cuda": "no device seen by torch"}


def _broken(name: str, disables: str, error: NativeLibraryError) -> Backend:
    reason = f"{error.path}: found {error.found}; expected {error.expected}"
    return Backend(name, False, reason, disables, error.remedy)


def _backends(torch: ModuleType | None, about_torch: str) -> tuple[Backend, ...]:
    try:
        loader.package_version()
        loader.sanity_checks_for_pypi_installation()
        loader.load_core()
        torch_version = loader.read_build_info().torch_version
    except NativeLibraryError as error:
        return (_broken("core", "everything: the package does not import", error),)
    modules = "transformer_engine.pytorch: all modules"
    if torch is not None and torch_version:
        try:
            binding = loader.load_framework_extension("torch")
        except NativeLibraryError as error:
            return (_broken("pytorch", f"{modules}; the package does not import", error),)
        return tuple(Backend(**row) for row in binding.backend_statuses())
    reason, remedy = f"torch {about_torch}", "Repair torch: `python -c 'import torch'` must work."
    install = "Reinstall this package, so that its binding to torch is built."
    if about_torch == "not installed":
        reason, remedy = "torch is not installed", f"Install torch. {install}"
    elif not torch_version:
        reason, remedy = "only the core was built", install
    return (Backend("pytorch", False, reason, modules, remedy),)


def collect() -> Report:
    """Gather the facts.

    Returns
    -------
    Report
        Versions, devices, backends with reasons and remedies, environment variables that are set.
        Native files that are missing or broken are among the backends.
    """
    torch, about_torch = _installed_torch()
    return Report(
        _versions(torch, about_torch),
        _devices(torch),
        _backends(torch, about_torch),
        variables_in_force(),
    )


def report(file: IO[str] | None = None) -> None:
    """Print versions, devices, backends, what is missing and what that disables.

    Parameters
    ----------
    file : text file, default None
        Where to print; None means standard output.
    """
    print(collect(), file=file)


def main(arguments: list[str] | None = None) -> None:
    """Command line of `python -m transformer_engine.report`."""
    parser = argparse.ArgumentParser(prog="python -m transformer_engine.report")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    as_json = parser.parse_args(arguments).json
    facts = collect()
    try:
        print(json.dumps(facts.to_dict(), indent=2) if as_json else facts, flush=True)
    except BrokenPipeError:
        # The reader (`| head`) has enough. Python flushes once more at its end: into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _CallableModule(ModuleType):
    """Both `transformer_engine.report()` and `transformer_engine.report.collect()` work."""

    def __call__(self, file: IO[str] | None = None) -> None:
        report(file)


if __name__ == "__main__":
    main()
else:
    sys.modules[__name__].__class__ = _CallableModule
