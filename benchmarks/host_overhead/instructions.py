# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Instructions per call under callgrind: no noise, comparable between machines of one kind.

One process runs all cases. Before and after each it calls a function of the allocate-only library
that asks callgrind to write its counters out and clear them: a file then holds the runs of a case.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from . import allocate_only

WARM_UP, RUNS = 3, 20
TIMEOUT_SECONDS = 900


def measure() -> dict[str, float] | str:
    """Case -> instructions per module call; or why they were not counted."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        return "valgrind is not installed"
    with tempfile.TemporaryDirectory() as folder:
        command = [valgrind, "--tool=callgrind", f"--callgrind-out-file={folder}/out"]
        command += [sys.executable, "-m", __name__]
        environment = os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=allocate_only.ROOT,
            env=environment,
            timeout=TIMEOUT_SECONDS,
        )
        if result.returncode != 0:
            return f"callgrind failed: {result.stderr.strip().splitlines()[-1]}"
        names = json.loads(result.stdout.splitlines()[-1])
        # out.1 ends at the first mark; out.(n + 2) holds case n.
        return {
            name: _total(Path(folder) / f"out.{index + 2}") / (RUNS * calls)
            for index, (name, calls) in enumerate(names)
        }


def _total(path: Path) -> int:
    """The total of a callgrind file."""
    match = re.search(r"^(?:totals|summary): (\d+)", path.read_text(), flags=re.MULTILINE)
    if match is None:
        raise RuntimeError(f"host_overhead: {path.name} of callgrind has no total.")
    return int(match.group(1))


def _run_cases() -> None:
    """The process under callgrind."""
    torch.set_num_threads(1)
    allocate_only.load()
    mark = ctypes.CDLL(str(allocate_only.LIBRARY)).te_allocate_only_mark
    mark.restype = ctypes.c_bool
    from .cases import SIZES, cases, grad_mode

    names = []
    all_cases = list(cases(SIZES["allocate-only"]))
    for case in all_cases:
        with grad_mode(case):
            for _ in range(WARM_UP):
                case.run()
    if not mark():
        sys.exit("valgrind/callgrind.h was not installed when the allocate-only library was built")
    for case in all_cases:
        with grad_mode(case):
            for _ in range(RUNS):
                case.run()
        mark()
        names.append((case.name, case.calls))
    print(json.dumps(names))


if __name__ == "__main__":
    _run_cases()
