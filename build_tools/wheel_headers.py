# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Headers out of packages of a registry: pinned by version and hash, the rest is dropped."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path


def print_folder(
    summary: str, find: Callable[[], Path | None], fetch: Callable[[], bool], missing: str
) -> int:
    """A tool's main: prints the folder of the headers, fetched with --fetch where they are not.
    1 with what is `missing` where there is none.
    """
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--fetch", action="store_true", help="fetch the headers where they are not")
    may_fetch = parser.parse_args().fetch
    if find() is None and may_fetch:
        fetch()
    folder = find()
    print(missing if folder is None else folder, file=sys.stderr if folder is None else sys.stdout)
    return int(folder is None)


def download(requirements: Path, folder: Path, *options: str) -> list[Path]:
    """Wheels of a requirements file with hashes; none where pip fails, which says why."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--require-hashes", "--only-binary", ":all:"]
    command += [*options, "--no-cache-dir", "--dest", str(folder), "-r", str(requirements)]
    succeeded = subprocess.run(command, stdout=sys.stderr).returncode == 0
    return sorted(folder.glob("*.whl")) if succeeded else []


def fetch(requirements: Path, keep: Callable[[Path], None], *options: str) -> bool:
    """Download the wheels and hand each to `keep`; whether there were any."""
    with tempfile.TemporaryDirectory() as folder:
        wheels = download(requirements, Path(folder), *options)
        for wheel in wheels:
            keep(wheel)
    return bool(wheels)


def keep_headers(wheel: Path, folder: Path, *, is_flat: bool) -> None:
    """Put the headers of a wheel's include folder into `folder`, with their folders or without."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            _, found, inside = f"/{name}".partition("/include/")
            if found and name.endswith((".h", ".hpp")):
                path = folder / (Path(name).name if is_flat else inside)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(name))
