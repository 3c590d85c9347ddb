# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Configure, build and install the native files: one place for setup.py and the Makefile.

    python build_tools/cmake_build.py [--tests] [--werror]

builds in build/cmake and installs in place, into transformer_engine/. Environment variables (all in
docs/environment.md): MAX_JOBS, NVTE_BUILD_MAX_JOBS, NVTE_BUILD_DEBUG, NVTE_CMAKE_BUILD_DIR,
NVTE_CMAKE_EXTRA_ARGS, NVTE_CUDA_ARCHS, NVTE_FRAMEWORK, NVTE_PYTHON, NVTE_USE_CCACHE, NVTE_USE_CUDA.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import cublas_headers
import cuda_toolkit
import cudnn_headers

ROOT = Path(__file__).resolve().parent.parent
TOOLS = {"cmake": (3, 21), "ninja": (1, 10)}  # the oldest versions that will do


@dataclass(frozen=True)
class BuildRequest:
    """What to build: the folder that receives the files, and the CMake options."""

    install_dir: Path
    with_tests: bool = False
    werror: bool = False


def find_torch_dir() -> Path | None:
    """Folder of the torch to build against.

    That of this interpreter. In pip's isolated build it is hidden by PYTHONPATH, and the torch of
    the environment that is installed into counts: a child with -E ignores PYTHONPATH and sees it.
    NVTE_PYTHON names that environment's interpreter where the build runs in another (uv, `build`).
    """
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    code = (
        "import importlib.util as u, json; s = u.find_spec('torch');"
        "print(json.dumps(list(s.submodule_search_locations)[0] if s else None))"
    )
    active = os.environ.get("VIRTUAL_ENV")
    candidates = [os.environ.get("NVTE_PYTHON"), sys.executable]
    candidates += [os.path.join(active, "bin", "python")] if active else []
    for python in dict.fromkeys(candidates):
        if python and os.path.exists(python):
            answer = subprocess.run([python, "-E", "-c", code], capture_output=True, text=True)
            folder = json.loads(answer.stdout) if answer.returncode == 0 else None
            if folder:
                return Path(folder)
    return None


def read_torch_version(torch_dir: Path) -> str:
    """`torch.__version__`, read from its file: importing torch takes seconds."""
    text = (torch_dir / "version.py").read_text()
    match = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)", text, re.MULTILINE)
    if match is None:
        raise RuntimeError(
            f"cmake_build: {torch_dir / 'version.py'} does not set __version__; reinstall torch."
        )
    return match.group(1)


def find_tool(name: str) -> str | None:
    """Path of a tool that is new enough, first beside the interpreter, then on PATH.

    It must run, too: pip's wrapper script for cmake cannot import its package in an isolated
    build of the environment that it is installed in.
    """
    beside = os.path.dirname(sys.executable)
    for folder in [beside, *os.environ.get("PATH", "").split(os.pathsep)]:
        path = shutil.which(name, path=folder)
        if path is None:
            continue
        answer = subprocess.run([path, "--version"], capture_output=True, text=True)
        version = re.search(r"(\d+)\.(\d+)", answer.stdout)
        if answer.returncode == 0 and version and tuple(map(int, version.groups())) >= TOOLS[name]:
            return path
    return None


def missing_tools() -> list[str]:
    """pip requirements for the tools that are not there."""
    return [
        f"{name}>={major}.{minor}"
        for name, (major, minor) in TOOLS.items()
        if find_tool(name) is None
    ]


def require_tool(name: str) -> str:
    """find_tool, or an error that says what to install."""
    path = find_tool(name)
    if path is None:
        at_least = ".".join(map(str, TOOLS[name]))
        raise RuntimeError(
            f"cmake_build: no {name} of version {at_least} or newer on PATH or beside "
            f"{sys.executable}; the native build needs it. Run `pip install {name}`."
        )
    return path


def wants_torch() -> bool:
    """Whether NVTE_FRAMEWORK (unset: yes) asks for the PyTorch binding."""
    names = {name.strip() for name in os.environ.get("NVTE_FRAMEWORK", "all").lower().split(",")}
    return bool(names & {"pytorch", "all", ""})


def torch_has_cuda(torch_dir: Path | None) -> bool:
    """Whether a torch was built for CUDA: version.py says for which release."""
    if torch_dir is None:
        return False
    text = (torch_dir / "version.py").read_text()
    match = re.search(r"^cuda\s*(?::[^=]*)?=\s*(\S+)", text, re.MULTILINE)
    return match is not None and match.group(1) != "None"


def cuda_options(torch_dir: Path | None, launcher: str) -> dict[str, object]:
    """CMake's options of the CUDA backend.

    NVTE_USE_CUDA: 1 builds it, 0 does not; unset, it is built where torch is a CUDA build and a
    toolkit is found. Compiling needs neither a GPU nor a driver.
    """
    setting = os.environ.get("NVTE_USE_CUDA", "").lower()
    off: dict[str, object] = {"TE_USE_CUDA": "OFF"}
    if setting == "0" or (setting == "" and not torch_has_cuda(torch_dir)):
        return off
    toolkit = cuda_toolkit.find_toolkit()
    headers = cublas_headers.find_headers()
    if toolkit is None or headers is None:
        if setting == "":
            return off
        missing = "CUDA toolkit" if toolkit is None else cublas_headers.HEADER
        raise RuntimeError(
            f"cmake_build: NVTE_USE_CUDA is {setting} and no {missing} is found; the CUDA backend "
            "is compiled with it. Set CUDA_HOME, or run `python build_tools/cuda_toolkit.py "
            "--fetch` and `python build_tools/cublas_headers.py --fetch`."
        )
    options: dict[str, object] = {
        "TE_USE_CUDA": "ON",
        "TE_CUBLAS_INCLUDE": headers,
        "TE_CUDNN_INCLUDE": cudnn_headers.find_headers() or "",
        "CMAKE_CUDA_COMPILER": toolkit / "bin" / "nvcc",
        "CMAKE_CUDA_COMPILER_LAUNCHER": launcher,
        "CUDAToolkit_ROOT": toolkit,
    }
    architectures = os.environ.get("NVTE_CUDA_ARCHS")
    return options | ({"TE_CUDA_ARCHS": architectures} if architectures else {})


def configure_arguments(request: BuildRequest, build_dir: Path) -> list[str]:
    """The cmake command line, with every value each time: a build folder outlives its options."""
    torch_dir = find_torch_dir() if wants_torch() else None
    debug = os.environ.get("NVTE_BUILD_DEBUG", "0") not in ("", "0")
    launcher = ""
    if os.environ.get("NVTE_USE_CCACHE", "1") not in ("", "0"):
        launcher = shutil.which("ccache") or ""
    options: dict[str, object] = {
        # pip removes the ninja of an isolated build afterwards; the cached path would be stale.
        "CMAKE_MAKE_PROGRAM": require_tool("ninja"),
        "CMAKE_BUILD_TYPE": "Debug" if debug else "Release",
        "CMAKE_INSTALL_PREFIX": request.install_dir,
        "CMAKE_CXX_COMPILER_LAUNCHER": launcher,
        "Python_EXECUTABLE": sys.executable,
        "TORCH_DIR": torch_dir or "",
        "NVTE_BUILD_TESTS": "ON" if request.with_tests else "OFF",
        "NVTE_WERROR": "ON" if request.werror else "OFF",
    }
    options |= cuda_options(torch_dir, launcher)
    command = [require_tool("cmake"), "-S", str(ROOT), "-B", str(build_dir), "-G", "Ninja"]
    command += [f"-D{name}={value}" for name, value in options.items()]
    return command + shlex.split(os.environ.get("NVTE_CMAKE_EXTRA_ARGS", ""))


def _run_quietly(command: list[str]) -> None:
    """Run a command; its output is shown only when it fails."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        print(result.stdout, flush=True)
        result.check_returncode()


def build(request: BuildRequest) -> None:
    """Configure, build and install. Raises CalledProcessError with the tool's output above it."""
    build_dir = Path(os.environ.get("NVTE_CMAKE_BUILD_DIR") or ROOT / "build" / "cmake")
    build_dir.mkdir(parents=True, exist_ok=True)
    jobs = os.environ.get("NVTE_BUILD_MAX_JOBS") or os.environ.get("MAX_JOBS")
    environment = os.environ | {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"}
    cmake = require_tool("cmake")
    _run_quietly(configure_arguments(request, build_dir))
    command = [cmake, "--build", str(build_dir), "-j", jobs or str(os.cpu_count() or 1)]
    subprocess.check_call(command, env=environment)
    _run_quietly([cmake, "--install", str(build_dir)])


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the native files in place.")
    parser.add_argument("--tests", action="store_true", help="also build the C++ tests")
    parser.add_argument("--werror", action="store_true", help="treat warnings as errors")
    parser.add_argument(
        "--missing-tools", action="store_true", help="only print pip requirements for them"
    )
    options = parser.parse_args()
    if options.missing_tools:
        print(*missing_tools())
        return
    try:
        build(BuildRequest(ROOT / "transformer_engine", options.tests, options.werror))
    except (RuntimeError, subprocess.CalledProcessError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
