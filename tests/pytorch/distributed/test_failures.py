# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the other ranks say when one refuses, stays away, sends something else, or dies.

Each launch is two processes of its own, in which several things go wrong one after the other, in
groups whose timeout is short.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.ranks import is_under_torchrun
from transformer_engine.pytorch import distributed

TIMEOUT_SECONDS = 1.0
# Beyond the timeout: the processes share few cores with other tests.
MARGIN_SECONDS = 20.0


def small_group() -> Any:
    """All ranks, with a short timeout."""
    return torch.distributed.new_group(timeout=datetime.timedelta(seconds=TIMEOUT_SECONDS))


def refuse(rank: int, group: Any) -> None:
    distributed.reduce_scatter_along_first_dim(torch.ones(4 + rank, 2), group)


def stay_away(rank: int, group: Any) -> None:
    if rank == 0:
        distributed.allreduce(torch.ones(2), group)


def stay_away_from_asynchronous(rank: int, group: Any) -> None:
    if rank == 0:
        distributed.gather_along_first_dim(torch.ones(2), group, async_op=True)[1].wait()


def stay_away_from_amaxes(rank: int, group: Any) -> None:
    module = te.Linear(16, 16, device="cpu")
    with te.autocast(enabled=rank == 0, amax_reduction_group=group):
        module(torch.ones(2, 16))


def stay_away_from_the_current_amax(rank: int, group: Any) -> None:
    quantizer = te.Float8CurrentScalingQuantizer(
        te.DType.kFloat8E4M3,
        torch.device("cpu"),
        with_amax_reduction=True,
        amax_reduction_group=group,
    )
    if rank == 0:
        quantizer(torch.ones(2, 16))


def die(rank: int, group: Any) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.gather_along_first_dim(torch.ones(2, 2), None)


def send_another_shape(rank: int, group: Any) -> None:
    distributed.gather_along_first_dim(torch.ones(2 + rank, 2), group)


def send_another_dtype(rank: int, group: Any) -> None:
    distributed.allreduce(torch.ones(2, dtype=(torch.float32, torch.bfloat16)[rank]), group)


def call_something_else(rank: int, group: Any) -> None:
    function = (distributed.allreduce, distributed.reduce_scatter_along_first_dim)[rank]
    function(torch.ones(2, 2), group)


# Case -> what (rank 0, rank 1) say; None: nothing, the case ends well there.
FAILURES: dict[Callable[[int, Any], None], tuple[str, str | None]] = {
    refuse: (
        "reduce_scatter_along_first_dim: the reduce-scatter on rank 0 of a group of 2 failed",
        "reduce_scatter_along_first_dim: inp has shape (5, 2)",
    ),
    stay_away: ("allreduce: the all-reduce on rank 0 of a group of 2 failed", None),
    stay_away_from_asynchronous: ("gather_along_first_dim: the all-gather on rank 0", None),
    stay_away_from_amaxes: ("autocast: the all-reduce of delayed-scaling amaxes on rank 0", None),
    stay_away_from_the_current_amax: ("all-reduce of amaxes on rank 0 of a group of 2", None),
    die: ("gather_along_first_dim: the all-gather on rank 0 of a group of 2 failed", None),
}
# With TORCH_DISTRIBUTED_DEBUG=DETAIL, on both ranks.
MISMATCHES: dict[Callable[[int, Any], None], str] = {
    send_another_shape: "gather_along_first_dim: the all-gather",
    send_another_dtype: "allreduce: the all-reduce",
    call_something_else: "Detected mismatch between collectives",
}


def run_cases(rank: int, store: str, names: list[str]) -> None:
    """What a launched process does: prints, per case, the seconds it took and the error."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    for name in names:
        group = small_group()
        begin, said = time.monotonic(), None
        try:
            globals()[name](rank, group)
        except (RuntimeError, ValueError) as error:
            said = str(error)
        print(json.dumps([name, time.monotonic() - begin, said]), flush=True)
        torch.distributed.barrier() if name != "die" else None
    os._exit(0)  # groups whose peers are gone are not taken down


def launch(store: Any, names: list[str], **environment: str) -> list[dict[str, Any]]:
    """Results by case of the two ranks."""
    if is_under_torchrun():
        pytest.skip("launches processes of its own")
    source = f"import runpy; runpy.run_path({__file__!r})['run_cases'](%d, {str(store)!r}, {names})"
    path = os.pathsep.join(entry for entry in sys.path if entry)
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", source % rank],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    results = []
    for process in processes:
        output, errors = process.communicate(timeout=100)
        lines = [json.loads(line) for line in output.splitlines() if line.startswith("[")]
        assert lines, errors
        results.append({name: (seconds, said) for name, seconds, said in lines})
    return results


@pytest.mark.slow  # starts processes
def test_a_rank_left_alone_says_in_which_collective(tmp_path):
    first, second = launch(tmp_path / "store", [case.__name__ for case in FAILURES])
    for case, (expected_first, expected_second) in FAILURES.items():
        seconds, said = first[case.__name__]
        assert said is not None and expected_first in said, said
        assert seconds < TIMEOUT_SECONDS + MARGIN_SECONDS
        if case is die:
            assert case.__name__ not in second
            continue
        _, said = second[case.__name__]
        assert (said is None) == (expected_second is None)
        assert expected_second is None or expected_second in said


@pytest.mark.slow  # starts processes
def test_mismatches_are_named_in_debug_mode(tmp_path):
    names = [case.__name__ for case in MISMATCHES]
    for results in launch(tmp_path / "store", names, TORCH_DISTRIBUTED_DEBUG="DETAIL"):
        for case, expected in MISMATCHES.items():
            said = results[case.__name__][1]
            assert said is not None and expected in said, said
            assert "mismatch" in said
