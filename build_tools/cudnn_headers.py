# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the headers that fused attention is compiled with, or fetch them.

    python build_tools/cudnn_headers.py [--fetch]

prints the folder of cudnn_frontend.h and cudnn.h, 3rdparty/cudnn/include. With --fetch and no such
folder, the pinned packages of requirements-cudnn.txt (20 MB) are downloaded and their headers are
kept. The library itself is opened at run time. Exits with 1 and says why where there is none: the
CUDA backend is then built without fused attention.
"""

from __future__ import annotations

import sys
from pathlib import Path

import cuda_toolkit
import wheel_headers

HEADERS = ("cudnn_frontend.h", "cudnn.h")
FETCHED = cuda_toolkit.ROOT / "3rdparty" / "cudnn" / "include"
REQUIREMENTS = cuda_toolkit.ROOT / "build_tools" / "requirements-cudnn.txt"
# The frontend's wheels hold the same headers for every Python; the hash is this one's.
TAGS = ["--implementation", "cp", "--python-version", "3.12"]
TAGS += ["--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_27_x86_64"]


def find_headers() -> Path | None:
    """The folder, where it has both headers."""
    return FETCHED if all((FETCHED / name).is_file() for name in HEADERS) else None


def keep_headers(wheel: Path) -> None:
    """Put a wheel's headers into the folder."""
    wheel_headers.keep_headers(wheel, FETCHED, is_flat=False)


def fetch_headers() -> bool:
    """Download the pinned packages for their headers; whether it worked."""
    return wheel_headers.fetch(REQUIREMENTS, keep_headers, *TAGS)


def main() -> int:
    missing = (
        f"cudnn_headers: no {' and '.join(HEADERS)} in {FETCHED}; fused attention is compiled with "
        "them. Pass --fetch."
    )
    return wheel_headers.print_folder(__doc__.splitlines()[0], find_headers, fetch_headers, missing)


if __name__ == "__main__":
    sys.exit(main())
