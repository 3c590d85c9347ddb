# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""One process of the benchmark: times cases, or counts what they do, and prints JSON.

python -m benchmarks.host_overhead.worker bars --kernels allocate-only --rounds 40 --seed 1
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from . import allocate_only

if TYPE_CHECKING:
    from .cases import Case

KERNELS = ("allocate-only", "real")
WHAT = ("bars", "breakdown", "counts", "megatron")


def kernels_per_call(cases: Sequence[Case], counts: allocate_only.KernelCounts) -> dict[str, float]:
    """Kernels that one module call starts; an error where a side's are not the replaced ones."""
    from .cases import grad_mode

    found = {}
    for case in cases:
        with grad_mode(case):
            case.run()  # the first call may set things up
            before = sum(counts.read())
            case.run()
        found[case.name] = (sum(counts.read()) - before) / case.calls
        if found[case.name] == 0 and not case.name.startswith("region"):
            raise RuntimeError(f"host_overhead: {case.name} called no replaced kernel.")
    return found


def work(options: argparse.Namespace) -> dict[str, Any]:
    """What the process was asked for."""
    counts = allocate_only.load() if options.kernels == "allocate-only" else None
    # After load(): these import the core.
    from . import breakdown
    from .cases import SIZES, cases
    from .timing import measure

    sizes = SIZES[options.kernels]
    if options.what == "breakdown":
        variants = list(breakdown.variants(sizes))
        return {"seconds": measure(variants, options.rounds, options.seed)}
    if options.what == "megatron":
        from . import megatron

        reason = megatron.missing()
        if reason is not None:
            return {"missing": reason}
        return {"seconds": measure(list(megatron.cases(sizes)), options.rounds, options.seed)}
    all_cases = list(cases(sizes))
    if options.what == "bars":
        return {"seconds": measure(all_cases, options.rounds, options.seed)}
    found = {name: dataclasses.asdict(count) for name, count in breakdown.count(all_cases).items()}
    kernels = {} if counts is None else kernels_per_call(all_cases, counts)
    return {"counts": found, "kernels": kernels}


def main() -> None:
    """Read the command line and print one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host_overhead.worker")
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--kernels", choices=KERNELS, required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    print(json.dumps(work(options)))


if __name__ == "__main__":
    main()
