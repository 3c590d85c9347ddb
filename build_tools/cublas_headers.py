# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the folder of cublasLt.h, or fetch the header.

    python build_tools/cublas_headers.py [--fetch]

prints the folder: the CUDA toolkit's, that of NVIDIA's packages beside this interpreter's torch, or
3rdparty/cublas. The library itself is opened at run time: building needs its headers alone. With
--fetch and none found, the pinned package of requirements-cublas.txt is downloaded and its headers
are kept. Exits with 1 and says why where there is none.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import cuda_toolkit
import wheel_headers

HEADER = "cublasLt.h"
FETCHED = cuda_toolkit.ROOT / "3rdparty" / "cublas"
REQUIREMENTS = cuda_toolkit.ROOT / "build_tools" / "requirements-cublas.txt"


def candidates() -> list[Path]:
    """Folders to look into, best first."""
    toolkit = cuda_toolkit.find_toolkit()
    folders = [toolkit / "include"] if toolkit is not None else []
    for site in dict.fromkeys(sysconfig.get_paths()[name] for name in ("purelib", "platlib")):
        folders += sorted(Path(site).glob("nvidia/*/include"))
    return [*folders, FETCHED]


def find_headers() -> Path | None:
    """The first folder with the header."""
    return next((folder for folder in candidates() if (folder / HEADER).is_file()), None)


def fetch_headers() -> bool:
    """Download the pinned package for its headers; whether it worked."""
    return wheel_headers.fetch(
        REQUIREMENTS, lambda wheel: wheel_headers.keep_headers(wheel, FETCHED, is_flat=True)
    )


def main() -> int:
    looked = ", ".join(map(str, candidates()))
    missing = (
        f"cublas_headers: no {HEADER} in {looked}; the CUDA backend is compiled with it. "
        "Install nvidia-cublas or pass --fetch."
    )
    return wheel_headers.print_folder(__doc__.splitlines()[0], find_headers, fetch_headers, missing)


if __name__ == "__main__":
    sys.exit(main())
