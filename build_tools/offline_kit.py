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
installed keeps its version. A folder that holds anything is refused unless an earlier run made it,
of which the file .offline_kit tells; then its links are made anew, and no other file is touched. A
kit whose compiled packages are for another Python is refused, too.

What was collected before is replaced when its successor is complete.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import cudnn_headers

ROOT = Path(__file__).resolve().parent.parent
THIRD_PARTY = ROOT / "3rdparty"
GOOGLETEST = Path("/usr/src/googletest")  # of libgtest-dev
NAMES = ("pydantic", "packaging", "pytest", "hypothesis")
MARK = ".offline_kit"  # in folders of links
GLIBC_OF_WHEELS = (28, 27, 17, 12, 5)  # pip matches manylinux_2_N exactly


class KitError(RuntimeError):
    """Packages cannot be linked."""


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


def replace_folder(folder: Path, successor: Path) -> None:
    """Puts `successor`, beside it, in the place of `folder`."""
    if folder.exists():
        folder.rename(successor.parent / "replaced")  # what holds both is removed in the end
    successor.rename(folder)


def collect_packages(python: str, folder: Path) -> str | None:
    """Installs the packages; why not, or None."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".collecting") as scratch:
        collected = Path(scratch, folder.name)
        if subprocess.run(install_command(python, collected)).returncode != 0:
            return f"pip found no {', '.join(NAMES)} for Python {python}; see its message above."
        replace_folder(folder, collected)
    return None


def collect_googletest(source: Path, folder: Path) -> str | None:
    """Copies GoogleTest's sources; why not, or None."""
    if not (source / "CMakeLists.txt").is_file():
        return f"no GoogleTest in {source}. Debian: apt-get install libgtest-dev"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".collecting") as scratch:
        replace_folder(folder, Path(shutil.copytree(source, Path(scratch, folder.name))))
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


def compiled_for(packages: Path) -> set[str]:
    """The Pythons, such as 3.12, that compiled modules of the kit are for."""
    tags = (re.search(r"\.cpython-(\d)(\d+)-", file.name) for file in packages.rglob("*.so"))
    return {f"{tag[1]}.{tag[2]}" for tag in tags if tag is not None}


def prepare_links(folder: Path) -> None:
    """An empty folder, or one of an earlier run without its links."""
    if (folder.exists() or folder.is_symlink()) and not folder.is_dir():
        raise KitError(f"{folder} is no folder; name one that can be made.")
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (folder / MARK).is_file():
        raise KitError(
            f"{folder} holds files that this tool did not make; name an empty folder, or one that "
            "does not exist."
        )
    (folder / MARK).write_text("Links made by build_tools/offline_kit.py.\n")
    for file in folder.iterdir():
        if file.is_symlink():
            file.unlink()


def link_lacking(packages: Path, folder: Path) -> list[str]:
    """Links to the packages that are not installed; their names."""
    found = importlib.metadata.distributions(path=[str(packages)])
    lacking = {
        package.metadata["Name"]: package
        for package in found
        if not is_installed(package.metadata["Name"])
    }
    here, pythons = "{}.{}".format(*sys.version_info), compiled_for(packages)
    if lacking and pythons and here not in pythons:
        raise KitError(
            f"the kit in {packages} is for Python {', '.join(sorted(pythons))}; this is {here}, "
            f"which lacks {', '.join(sorted(lacking))}. Collect one with --python {here}."
        )
    prepare_links(folder)
    for package in lacking.values():
        tops = {Path(file.parts[0]) for file in package.files or () if file.parts[0] != ".."}
        for top in tops - {Path("bin"), Path("__pycache__")}:
            if (packages / top).exists() and not (folder / top).is_symlink():
                (folder / top).symlink_to(packages / top)
    return sorted(lacking)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default="3.12", help="version of the Python there")
    parser.add_argument("--link", type=Path, help="link what is lacking here into this folder")
    options = parser.parse_args()
    if options.link is not None:
        try:
            names = link_lacking(THIRD_PARTY / "python", options.link.resolve())
        except KitError as error:
            print(f"offline_kit: {error}", file=sys.stderr)
            return 1
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
