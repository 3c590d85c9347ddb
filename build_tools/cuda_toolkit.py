# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find a CUDA toolkit, or fetch the parts of one that compiling needs.

    python build_tools/cuda_toolkit.py [--fetch]

prints the toolkit's folder: $CUDA_HOME or $CUDA_PATH, the one of nvcc on PATH, /usr/local/cuda, or
3rdparty/cuda. With --fetch and none of them, pip puts the pinned packages of requirements-cuda.txt
into 3rdparty/cuda. Exits with 1 and says why where there is none. Needs no GPU and no driver.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FETCHED = ROOT / "3rdparty" / "cuda"
DISASSEMBLER = ROOT / "3rdparty" / "cuda-disassembler"
OLDEST = (12, 8)  # the first with cuda_fp4.h


def toolkit_version(toolkit: Path) -> tuple[int, int] | None:
    """Version of a folder's cuda_runtime_api.h; None where there is no such header."""
    header = toolkit / "include" / "cuda_runtime_api.h"
    if not header.is_file():
        return None
    for line in header.read_text(errors="replace").splitlines():
        words = line.split()
        if words[:2] == ["#define", "CUDART_VERSION"]:
            return int(words[2]) // 1000, int(words[2]) % 1000 // 10
    return None


def is_complete(toolkit: Path) -> bool:
    """Whether the folder has a compiler and headers that are new enough."""
    version = toolkit_version(toolkit)
    return version is not None and version >= OLDEST and (toolkit / "bin" / "nvcc").is_file()


def candidates() -> list[Path]:
    """Folders to look into, best first."""
    named = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    nvcc = shutil.which("nvcc")
    found = [Path(name) for name in named]
    if nvcc is not None:
        found.append(Path(nvcc).resolve().parent.parent)
    return [*found, Path("/usr/local/cuda"), *FETCHED.glob("nvidia/cu*")]


def find_toolkit() -> Path | None:
    """The first complete toolkit."""
    return next((folder for folder in candidates() if is_complete(folder)), None)


def fetch(requirements: str, folder: Path) -> bool:
    """Install the pinned packages of a file beside this one into a folder; whether it worked."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command += ["--upgrade", "--target", str(folder)]
    command += ["-r", str(ROOT / "build_tools" / requirements)]
    return subprocess.run(command, check=False, stdout=sys.stderr).returncode == 0


def fetch_disassembler() -> bool:
    """Fetch cuobjdump and nvdisasm, which no toolkit needs for compiling."""
    return fetch("requirements-cuda-disassembler.txt", DISASSEMBLER)


def require_toolkit(may_fetch: bool) -> Path | None:
    """The toolkit, fetched where there is none and that is wanted; None after saying what lacks."""
    if find_toolkit() is None and may_fetch:
        fetch("requirements-cuda.txt", FETCHED)
    toolkit = find_toolkit()
    if toolkit is None:
        looked = ", ".join(map(str, candidates()))
        print(
            f"cuda_toolkit: no CUDA toolkit of version {OLDEST[0]}.{OLDEST[1]} or later in "
            f"{looked}; nvcc and its headers are required. Set CUDA_HOME or pass --fetch.",
            file=sys.stderr,
        )
    return toolkit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fetch", action="store_true", help="fetch one where there is none")
    toolkit = require_toolkit(parser.parse_args().fetch)
    if toolkit is None:
        return 1
    print(toolkit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
