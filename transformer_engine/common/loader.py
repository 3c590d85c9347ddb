# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Finds, checks and loads the two native files of the package.

`libtransformer_engine.so` is the core; `transformer_engine_torch.<python tag>.so` binds it to
torch. The build writes `build_info.json` beside them. Whatever can be wrong with them (absent,
cut short, of another version, for another torch or Python) ends in one exception,
`NativeLibraryError`, which says what was expected, what was found and what to do. Files are checked
before they are opened: opening a file that was cut short ends the process with a bus error.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import mmap
import os
import struct
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

DISTRIBUTION = "transformer-engine"
CORE_FILE = "libtransformer_engine.so"
TORCH_EXTENSION = "transformer_engine_torch"
BUILD_INFO_FILE = "build_info.json"

PACKAGE_DIR = Path(__file__).resolve().parent.parent

# Distributions of other builds that put their files into this very package folder.
_CONFLICTING_DISTRIBUTIONS = (
    "transformer-engine-cu12",
    "transformer-engine-cu13",
    "transformer-engine-torch",
)

_REBUILD = (
    "Rebuild it: `pip install --no-build-isolation --force-reinstall --no-deps .` in the source "
    "tree, or `make dev` for an editable install."
)

_core: ctypes.CDLL | None = None


class NativeLibraryError(ImportError):
    """A native file of the package is missing, broken, or of another version.

    Attributes
    ----------
    path : str
        The file concerned (also for a file that does not exist).
    expected, found : str
        What this package needs and what is there.
    remedy : str
        What to do.
    """

    def __init__(self, *, path: Path | str, expected: str, found: str, remedy: str = _REBUILD):
        self.expected = expected
        self.found = found
        self.remedy = remedy
        message = f"transformer_engine: {path}: found {found}; expected {expected}. {remedy}"
        super().__init__(message, name="transformer_engine", path=str(path))


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """What the native files were built from and for (`build_info.json`)."""

    version: str
    torch_version: str  # empty: only the core was built
    python_version: str
    build_type: str
    compiler: str
    sanitizers: str


def is_report_command() -> bool:
    """Whether `python -m transformer_engine.report` imports the package: it finds out itself, and
    tells, what is broken."""
    # While Python looks for the module that -m names, this is what argv holds.
    return sys.argv[:1] == ["-m"] and any(
        argument in ("transformer_engine.report", "-mtransformer_engine.report")
        for argument in sys.orig_argv
    )


def package_version() -> str:
    """Version of the Python files: VERSION.txt of a source tree, else the distribution's."""
    tree_file = PACKAGE_DIR.parent / "build_tools" / "VERSION.txt"
    if tree_file.is_file():
        return tree_file.read_text().strip()
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        raise NativeLibraryError(
            path=PACKAGE_DIR,
            expected=f"the metadata of the distribution {DISTRIBUTION}, or a source tree",
            found="neither",
            remedy="Install the package with pip instead of copying its folder.",
        ) from error


def torch_extension_path(directory: Path = PACKAGE_DIR) -> Path:
    """The file name that this Python looks for; the file need not exist."""
    return directory / f"{TORCH_EXTENSION}{sysconfig.get_config_var('EXT_SUFFIX')}"


def read_build_info(directory: Path = PACKAGE_DIR) -> BuildInfo:
    """Read build_info.json.

    Raises
    ------
    NativeLibraryError
        If it is missing, is no JSON object, or lacks a field.
    """
    path = directory / BUILD_INFO_FILE
    expected = f"the record of the native build of {package_version()}"
    try:
        fields: dict[str, Any] = json.loads(path.read_text())
        return BuildInfo(**{name: str(fields[name]) for name in BuildInfo.__slots__})
    except FileNotFoundError as error:
        found = "no such file: the native part was not built"
        raise NativeLibraryError(path=path, expected=expected, found=found) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        found = f"an unreadable file ({type(error).__name__}: {error})"
        raise NativeLibraryError(path=path, expected=expected, found=found) from error


def check_elf_file(path: Path, expected: str) -> None:
    """Check that a shared object is complete.

    Every part that the ELF header and the program headers name must lie inside the file.

    Raises
    ------
    NativeLibraryError
        If the file is missing, no 64-bit ELF file, or shorter than its headers say.
    """
    try:
        size_bytes = path.stat().st_size
        with open(path, "rb") as file:
            header = file.read(64)
            if len(header) < 64 or header[:4] != b"\x7fELF" or header[4] != 2:
                found = f"{size_bytes} bytes that are not a 64-bit ELF file"
                raise NativeLibraryError(path=path, expected=expected, found=found)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                needed_bytes = _elf_extent_bytes(header, data)
    except FileNotFoundError as error:
        found = "no such file"
        raise NativeLibraryError(path=path, expected=expected, found=found) from error
    except OSError as error:
        raise NativeLibraryError(path=path, expected=expected, found=f"{error}") from error
    if size_bytes < needed_bytes:
        found = f"a truncated file of {size_bytes} bytes whose headers name {needed_bytes}"
        raise NativeLibraryError(path=path, expected=expected, found=found)


def _elf_extent_bytes(header: bytes, data: mmap.mmap) -> int:
    """End of the last part named by the headers of a 64-bit ELF file (System V ABI, chapter 4)."""
    order = "<" if header[5] == 1 else ">"
    program_offset, section_offset = struct.unpack_from(order + "QQ", header, 32)
    sizes = struct.unpack_from(order + "HHHHHH", header, 52)
    _, program_size, program_count, section_size, section_count, _ = sizes
    end = max(
        program_offset + program_size * program_count, section_offset + section_size * section_count
    )
    for index in range(program_count):
        offset = program_offset + index * program_size
        if offset + 40 > len(data):
            break
        (file_offset,) = struct.unpack_from(order + "Q", data, offset + 8)
        (file_size,) = struct.unpack_from(order + "Q", data, offset + 32)
        end = max(end, file_offset + file_size)
    return end


def _preload_openmp() -> None:
    """Load torch's OpenMP runtime before the core asks for one by the same name.

    The process then has one thread pool, and the newer of the two runtimes when torch's own
    libraries are loaded later. torch is looked up, not imported; without it the system's is used.
    """
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        runtime = Path(folder) / "lib" / "libgomp.so.1"
        if runtime.is_file():
            ctypes.CDLL(str(runtime))


def load_core(directory: Path = PACKAGE_DIR) -> ctypes.CDLL:
    """Load libtransformer_engine.so once and check its version.

    Raises
    ------
    NativeLibraryError
        If the file is missing, broken, or of another version than the Python files.
    """
    global _core
    if _core is not None:
        return _core
    path = directory / CORE_FILE
    version = package_version()
    expected = f"the core library of {version}"
    check_elf_file(path, expected)
    _preload_openmp()
    try:
        # Local symbols: the binding finds the core by its name, and nothing else must bind to it.
        core = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        core.nvte_core_version.restype = ctypes.c_char_p
        found_version = core.nvte_core_version().decode()
    except (OSError, AttributeError) as error:
        found = f"a file that does not load ({error})"
        raise NativeLibraryError(path=path, expected=expected, found=found) from error
    if found_version != version:
        raise NativeLibraryError(path=path, expected=expected, found=f"that of {found_version}")
    _core = core
    return core


def _import_torch(expected: str) -> ModuleType:
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise NativeLibraryError(
            path="torch",
            expected=expected,
            found="no module named torch",
            remedy="Install torch first, then this package.",
        ) from error
    except (ImportError, OSError) as error:
        raise NativeLibraryError(
            path="torch",
            expected=expected,
            found=f"a torch that does not import ({type(error).__name__}: {error})",
            remedy="Repair torch: `python -c 'import torch'` must work.",
        ) from error


def _check_torch_pair(directory: Path, info: BuildInfo) -> Path:
    """Check the installed torch and Python against the build; the path of the extension."""
    path = torch_extension_path(directory)
    public = info.torch_version.split("+")[0]
    expected = f"the binding of {info.version} to torch {public} for this Python"
    if not public:
        found = "a build of the core alone (torch was not installed when it was built)"
        raise NativeLibraryError(path=path, expected=expected, found=found)
    others = sorted(other.name for other in directory.glob(f"{TORCH_EXTENSION}.*.so"))
    if not path.exists() and others:
        found = f"only {', '.join(others)}, built for another Python"
        raise NativeLibraryError(path=path, expected=expected, found=found)
    check_elf_file(path, expected)
    torch = _import_torch(f"torch {public}")
    # The local part (+cpu, +cu130) tells the devices torch was built for, not its C++ interface.
    if torch.__version__.split("+")[0] != public:
        raise NativeLibraryError(
            path=path,
            expected=f"one for the installed torch {torch.__version__}",
            found=f"a binding built against torch {info.torch_version}",
            remedy=f"{_REBUILD} Or install torch=={public}.",
        )
    return path


def _load_torch_extension(directory: Path) -> ModuleType:
    version = package_version()
    info = read_build_info(directory)
    path = _check_torch_pair(directory, info)
    expected = f"the binding of {version} for torch {info.torch_version}"
    load_core(directory)
    loader = importlib.machinery.ExtensionFileLoader(TORCH_EXTENSION, str(path))
    spec = importlib.util.spec_from_file_location(TORCH_EXTENSION, path, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        found = f"a file that does not load ({error})"
        raise NativeLibraryError(path=path, expected=expected, found=found) from error
    found_version = getattr(module, "__version__", "unknown")
    if found_version != version:
        raise NativeLibraryError(path=path, expected=expected, found=f"that of {found_version}")
    return module


def load_framework_extension(framework: str) -> ModuleType:
    """Load the binding of a framework and register it in `sys.modules`.

    Parameters
    ----------
    framework : str
        "torch", whose binding becomes the top-level module `transformer_engine_torch`.

    Returns
    -------
    ModuleType
        The binding; the same object in every call.

    Raises
    ------
    ValueError
        For another framework.
    NativeLibraryError
        If torch or the binding is missing, broken, or they do not fit each other.
    """
    if framework != "torch":
        raise ValueError(
            f"load_framework_extension: framework is {framework!r}; 'torch' is required, "
            "the one framework of this build."
        )
    if TORCH_EXTENSION not in sys.modules:
        sys.modules[TORCH_EXTENSION] = _load_torch_extension(PACKAGE_DIR)
    return sys.modules[TORCH_EXTENSION]


def get_te_core_package_info() -> tuple[bool, str, str]:
    """Whether the core comes from a distribution of its own (never here), its name and version."""
    return False, DISTRIBUTION, package_version()


def sanity_checks_for_pypi_installation() -> None:
    """Refuse an environment where another build's files lie in this package's folder.

    Raises
    ------
    NativeLibraryError
        If a distribution that also installs into `transformer_engine/` is installed.
    """
    for name in _CONFLICTING_DISTRIBUTIONS:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        raise NativeLibraryError(
            path=PACKAGE_DIR,
            expected=f"the files of {DISTRIBUTION} {package_version()} alone",
            found=f"the distribution {name} {version} beside them",
            remedy=f"Run `pip uninstall {name}`, then reinstall {DISTRIBUTION}.",
        )
