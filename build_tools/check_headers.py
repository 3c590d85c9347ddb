# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Check that every source file begins with the copyright line and the licence identifier."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from source_files import CPP_SUFFIXES, PYTHON_SUFFIXES, ROOT, list_files

CHECKED_SUFFIXES = (*PYTHON_SUFFIXES, *CPP_SUFFIXES, ".sh")
HEADER = re.compile(
    r"(#!.*\n)?(#|//) Copyright \(c\) \d{4}(-\d{4})?, The Transformer Engine Project Authors\.\n"
    r"\2 SPDX-License-Identifier: Apache-2\.0\n"
)


def files_without_header(paths: list[Path]) -> list[Path]:
    """Those of the files whose first lines are not the header."""
    return [path for path in paths if not HEADER.match(path.read_text())]


def main() -> int:
    bad = files_without_header(list_files(CHECKED_SUFFIXES))
    for path in bad:
        print(f"{path.relative_to(ROOT)}:1: the two-line licence header is missing")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
