# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run a function on several ranks, each a fork of this process.

Megatron takes seconds to import: the forks share one import, and start from the same state, which
nothing that ran before has touched. Import after `cuda_to_cpu_shim.install()`.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

GRACE_S = 3.0
"""How long the other ranks may run on after one failed."""


class RunError(RuntimeError):
    """A rank failed, or did not end in time."""


def launch(function: Callable[..., Any], ranks: int, timeout_s: float, *args: Any) -> Any:
    """Call `function(*args)` on every rank of a gloo group.

    Parameters
    ----------
    function : callable
        Its result must be representable in JSON.
    ranks : int
    timeout_s : float
        Seconds until all ranks are ended.

    Returns
    -------
    object
        What the last rank returned.

    Raises
    ------
    RunError
        With the last error that the rank that failed first printed.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = [
            context.Process(target=_rank_main, args=(folder, rank, ranks, function, args))
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        failed = _wait_for(processes, timeout_s)
        for process in processes:
            _end(process)
        if failed is None:
            raise RunError(f"no end within {timeout_s:g} s")
        if failed >= 0:
            raise RunError(f"rank {failed}: {_last_error(folder / f'rank{failed}.log')}")
        return json.loads((folder / "result.json").read_text())


def _rank_main(
    folder: Path, rank: int, ranks: int, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    os.setsid()  # so that whatever the rank starts can be ended with it
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    settings = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({key: str(setting) for key, setting in settings.items()})
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(str(folder / "store"), ranks)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    try:
        result = function(*args)
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # without the teardown of the group, which waits for the others
    if rank == ranks - 1:
        (folder / "result.json").write_text(json.dumps(result))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _wait_for(processes: list[Any], timeout_s: float) -> int | None:
    """The rank that failed first, -1 when all ended well, None when time ran out."""
    deadline = time.monotonic() + timeout_s
    failed = -1
    running = dict(enumerate(processes))
    while running and (left := deadline - time.monotonic()) > 0:
        wait([process.sentinel for process in running.values()], left)
        for rank, process in list(running.items()):
            if process.exitcode is None:
                continue
            del running[rank]
            if process.exitcode and failed < 0:
                failed = rank
                deadline = min(deadline, time.monotonic() + GRACE_S)
    return failed if failed >= 0 or not running else None


def _end(process: Any) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended, and all that it started
        os.killpg(process.pid, signal.SIGKILL)
    process.join()


def _last_error(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    return (errors or lines or ["died without a word"])[-1][:400]
