# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Several processes over gloo that stay up for a whole test run: a test costs milliseconds.

A test hands over a module-level function `f(rank, *args)`; every rank runs it inside a fresh
default process group, and the results come back in rank order. An exception on any rank fails the
test with that rank's traceback.

Under torchrun the processes are there already, and each runs the tests: `f` is called in place, and
tests for another number of ranks are skipped.
"""

import datetime
import functools
import importlib.util
import inspect
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest
import torch

_TIMEOUT_SECONDS = 120


@functools.cache
def _load(path: str) -> Any:
    """The module of a test file, which is on no import path."""
    name = f"ranks_{os.path.basename(path).removesuffix('.py')}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _serve(rank: int, size: int, paths: list[str], connection: Connection) -> None:
    sys.path[:0] = [path for path in paths if path not in sys.path]
    torch.set_num_threads(1)
    while True:
        task = connection.recv()
        if task is None:
            return
        path, name, args, store = task
        # The last group ends here, when every rank has answered: a rank that closed its connections
        # earlier could do so while another one was still opening its own.
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        try:
            function = getattr(_load(path), name)
            torch.manual_seed(1234)
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{store}", rank=rank, world_size=size
            )
            connection.send((True, function(rank, *args)))
        except BaseException:
            connection.send((False, traceback.format_exc()))


class Ranks:
    """A fixed number of processes.

    Parameters
    ----------
    size : int
        Number of ranks.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._folder = tempfile.TemporaryDirectory()
        self._count = 0
        self._processes: list[Any] = []
        self._connections: list[Connection] = []
        context = multiprocessing.get_context("spawn")
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, size, list(sys.path), theirs), daemon=True
            )
            process.start()
            self._processes.append(process)
            self._connections.append(ours)

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Results of `function(rank, *args)` on every rank, in rank order."""
        self._count += 1
        path = inspect.getfile(function)
        store = os.path.join(self._folder.name, f"store{self._count}")
        for connection in self._connections:
            connection.send((path, function.__name__, args, store))
        results: dict[int, Any] = {}
        while len(results) < self.size:
            pending = [c for r, c in enumerate(self._connections) if r not in results]
            ready = wait(pending, timeout=_TIMEOUT_SECONDS)
            if not ready:
                self.stop()
                raise TimeoutError(f"{function.__name__}: ranks did not finish: {len(results)} did")
            for rank, connection in enumerate(self._connections):
                if connection not in ready:
                    continue
                succeeded, value = connection.recv()
                if not succeeded:
                    self.stop()  # the other ranks may wait for this one forever
                    raise AssertionError(f"rank {rank} failed:\n{value}")
                results[rank] = value
        return [results[rank] for rank in range(self.size)]

    @property
    def is_alive(self) -> bool:
        """Whether another run is possible."""
        return bool(self._processes) and all(p.is_alive() for p in self._processes)

    def stop(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.terminate()
            process.join()
        self._processes = []
        self._folder.cleanup()


class TorchrunRanks:
    """This process and its peers, as torchrun (one node) started them."""

    def __init__(self) -> None:
        self.size = int(os.environ["WORLD_SIZE"])
        self._rank = int(os.environ["RANK"])
        self._count = 0
        run = os.environ.get("TORCHELASTIC_RUN_ID", os.environ["MASTER_PORT"])
        self._store = os.path.join(tempfile.gettempdir(), f"te_ranks_{run}_{os.getppid()}")
        torch.set_num_threads(1)

    def _start_group(self) -> None:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        self._count += 1
        backend = "gloo"
        if torch.cuda.is_available() and torch.cuda.device_count() >= self.size:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            backend = "cpu:gloo,cuda:nccl"
        torch.distributed.init_process_group(
            backend,
            init_method=f"file://{self._store}_{self._count}",
            rank=self._rank,
            world_size=self.size,
            timeout=datetime.timedelta(seconds=_TIMEOUT_SECONDS),
        )

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Results of `function(rank, *args)` on every rank, in rank order."""
        torch.manual_seed(1234)
        self._start_group()
        try:
            outcome = (True, function(self._rank, *args))
        except Exception:
            outcome = (False, traceback.format_exc())
        outcomes: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(outcomes, outcome)
        for rank, (succeeded, value) in enumerate(outcomes):
            if not succeeded:
                raise AssertionError(f"rank {rank} failed:\n{value}")
        return [value for _, value in outcomes]


def is_under_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


_pools: dict[int, Ranks] = {}
_torchrun_ranks: list[TorchrunRanks] = []


def ranks(size: int) -> Ranks | TorchrunRanks:
    """The pool of a size, started when first asked for."""
    if is_under_torchrun():
        if not _torchrun_ranks:
            _torchrun_ranks.append(TorchrunRanks())
        if _torchrun_ranks[0].size != size:
            pytest.skip(f"{size} ranks are needed; torchrun started {_torchrun_ranks[0].size}")
        return _torchrun_ranks[0]
    if size not in _pools or not _pools[size].is_alive:
        _pools[size] = Ranks(size)
    return _pools[size]


def stop_all() -> None:
    """End every pool; called at the end of the test run."""
    for pool in _pools.values():
        if pool.is_alive:
            pool.stop()
    _pools.clear()
