# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Collect what a machine without a network may lack, to build and test this project there.

    python build_tools/offline_kit.py [--python 3.12]

run where there is a network, fills folders of 3rdparty/ that git ignores; copy the tree with them.

    python/      pydantic, packaging, pytest, hypothesis and what they need, for that Python on
                 x86-64 Linux
    cudnn/       the headers that fused attention is compiled with (cudnn_headers.py)
    googletest/  the sources of Debian's libgtest-dev; CMake builds them where none is found

torch, a CUDA toolkit, cuBLASLt's headers (which come with a CUDA build of torch), a compiler, cmake
and ninja are expected there. Exits with 1 and says what could not be had. There,

    python build_tools/offline_kit.py --link FOLDER

makes FOLDER with links to those of the packages that the interpreter lacks, for PYTHONPATH: what is
installed keeps its version.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

import cudnn_headers

ROOT = Path(__file__).resolve().parent.parent
THIRD_PARTY = ROOT / "3rdparty"
GOOGLETEST = Path("/usr/src/googletest")  # of libgtest-dev
NAMES = ("pydantic", "packaging", "pytest", "hypothesis")
GLIBC_OF_WHEELS = (28, 27, 17, 12, 5)  # pip matches manylinux_2_N exactly


def requirements() -> list[str]:
    """The lines of requirements*.txt for what is collected."""
    lines = [
        line
        for name in ("requirements.txt", "requirements-dev.txt")
        for line in (ROOT / name).read_text().splitlines()
    ]
    return [line for line in lines if line.startswith(NAMES) and not line.startswith("pytest-")]


def install_command(python: str, folder: Path) -> list[str]:
    """pip's command line that puts the packages for another Python into `folder`."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--target", str(folder), "--upgrade", "--no-compile", "--only-binary", ":all:"]
    command += ["--python-version", python, "--implementation", "cp"]
    for minor in GLIBC_OF_WHEELS:
        command += ["--platform", f"manylinux_2_{minor}_x86_64"]
    return [*command, "--platform", "manylinux2014_x86_64", *requirements()]


def collect_packages(python: str, folder: Path) -> str | None:
    """Installs the packages; why not, or None."""
    shutil.rmtree(folder, ignore_errors=True)
    if subprocess.run(install_command(python, folder)).returncode != 0:
        return f"pip found no {', '.join(NAMES)} for Python {python}; see its message above."
    return None


def collect_googletest(source: Path, folder: Path) -> str | None:
    """Copies GoogleTest's sources; why not, or None."""
    if not (source / "CMakeLists.txt").is_file():
        return f"no GoogleTest in {source}. Debian: apt-get install libgtest-dev"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    return None


def collect_cudnn_headers() -> str | None:
    """Fetches them; why not, or None."""
    if cudnn_headers.find_headers() is None and not cudnn_headers.fetch_headers():
        return "cuDNN's headers could not be fetched; see pip's message above."
    return None


def is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def link_lacking(packages: Path, folder: Path) -> list[str]:
    """Links to the packages that are not installed; their names."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    linked = []
    for package in importlib.metadata.distributions(path=[str(packages)]):
        name = package.metadata["Name"]
        if is_installed(name):
            continue
        linked.append(name)
        tops = {Path(file.parts[0]) for file in package.files or () if file.parts[0] != ".."}
        for top in tops - {Path("bin")}:
            if (packages / top).exists():
                (folder / top).symlink_to(packages / top)
    return sorted(linked)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default="3.12", help="version of the Python there")
    parser.add_argument("--link", type=Path, help="link what is lacking here into this folder")
    options = parser.parse_args()
    if options.link is not None:
        names = link_lacking(THIRD_PARTY / "python", options.link.resolve())
        print("offline_kit: linked", ", ".join(names) or "nothing")
        return 0
    python = options.python
    refusals = (
        collect_packages(python, THIRD_PARTY / "python"),
        collect_cudnn_headers(),
        collect_googletest(GOOGLETEST, THIRD_PARTY / "googletest"),
    )
    for refusal in filter(None, refusals):
        print(f"offline_kit: {refusal}", file=sys.stderr)
    return int(any(refusals))


if __name__ == "__main__":
    sys.exit(main())
