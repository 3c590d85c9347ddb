# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run all benchmarks, or those whose names hold one of the given words, one process each.

python -m benchmarks [word ...] [options of the benchmarks]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def benchmark_modules() -> list[str]:
    """Dotted names of all bench_*.py files."""
    paths = sorted(ROOT.rglob("bench_*.py"))
    return [".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in paths]


def main(arguments: list[str]) -> int:
    first_option = next((i for i, text in enumerate(arguments) if text.startswith("-")), None)
    words = arguments[:first_option]
    options = [] if first_option is None else arguments[first_option:]
    modules = benchmark_modules()
    chosen = [name for name in modules if not words or any(word in name for word in words)]
    if not chosen:
        print(f"benchmarks: no name holds {words}; there are:", *modules, sep="\n  ")
        return 2
    failed = []
    for name in chosen:
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", name, *options]
        if subprocess.run(command, cwd=ROOT.parent).returncode != 0:
            failed.append(name)
    if failed:
        print("failed:", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
