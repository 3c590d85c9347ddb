# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What goes wrong on one rank of a tensor-parallel layer is an error there, and soon on the others.

Each case runs in processes of its own: a process group does not survive what is done to it here.
"""

import multiprocessing
import os
import tempfile
import time
from datetime import timedelta

import pytest
import torch

import transformer_engine.pytorch as te
from transformer_engine.common.recipe import DelayedScaling

TIMEOUT_SECONDS = 3
FEATURES = 16


def column(**options):
    return te.Linear(
        *(FEATURES, FEATURES),
        parallel_mode="column",
        tp_group=torch.distributed.group.WORLD,
        device="cpu",
        **options,
    )


def last_dimension(rank):
    layer = column(sequence_parallel=True)
    layer(torch.ones(4, FEATURES - rank))


def dtype(rank):
    layer = column(sequence_parallel=True)
    layer(torch.ones(4, FEATURES, dtype=torch.float64 if rank else torch.float32))


def rows(rank):
    layer = column(sequence_parallel=True)
    layer(torch.ones(4 + rank, FEATURES))


def another_call(rank):
    if rank == 0:
        column(sequence_parallel=True)(torch.ones(4, FEATURES))
    else:
        te.Linear(
            *(FEATURES, FEATURES),
            parallel_mode="row",
            tp_group=torch.distributed.group.WORLD,
            device="cpu",
        )(torch.ones(4, FEATURES // 2))


def in_a_delayed_region(rank):
    layer = column(sequence_parallel=True)
    group = torch.distributed.group.WORLD
    with te.autocast(recipe=DelayedScaling(), amax_reduction_group=group):
        layer(torch.ones(4, FEATURES - rank))


def killed(rank):
    if rank == 1:
        os._exit(1)
    column(sequence_parallel=True)(torch.ones(4, FEATURES))


def killed_before_backward(rank):
    output = column()(torch.ones(4, FEATURES, requires_grad=True))
    if rank == 1:
        os._exit(1)
    time.sleep(0.2)
    output.sum().backward()


def _run(function, rank, store, debug, connection):
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = debug
    torch.distributed.set_debug_level_from_env()
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=TIMEOUT_SECONDS),
    )
    torch.distributed.barrier()  # connected: a rank that ends leaves no half-made group
    try:
        function(rank)
        connection.send("")
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")
    os._exit(0)  # a broken group may wait for its peers


def errors_of(function, debug="OFF"):
    """The message of each rank's error: empty for none, None for a rank that ended without one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["transformer_engine.pytorch"])
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for rank in range(2):
            ours, theirs = context.Pipe()
            arguments = (function, rank, os.path.join(folder, "store"), debug, theirs)
            process = context.Process(target=_run, args=arguments, daemon=True)
            process.start()
            theirs.close()
            running.append((process, ours))
        found = []
        for process, ours in running:
            try:
                assert ours.poll(20 * TIMEOUT_SECONDS), f"{function.__name__}: a rank hangs"
                found.append(ours.recv())
            except EOFError:
                found.append(None)
            process.join()
    return found


GATHER = "RuntimeError: Linear: all-gather over the tensor-parallel group of 2 ranks failed on rank"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (last_dimension, r"ValueError: Linear.forward: inp has shape [4, 15]"),
        (in_a_delayed_region, r"ValueError: Linear.forward: inp has shape [4, 15]"),
        (dtype, "TypeError: Linear.forward: inp has dtype Double"),
        (killed, None),
    ],
)
def test_an_error_of_one_rank_ends_the_others(function, message):
    first, second = errors_of(function)
    assert first.startswith(f"{GATHER} 0: ")
    assert second is None if message is None else second.startswith(message)


def test_a_rank_that_ends_is_missed_in_backward():
    first, second = errors_of(killed_before_backward)
    assert "Linear: all-reduce over the tensor-parallel group of 2 ranks failed on rank 0" in first
    assert second is None


def test_ranks_that_make_different_calls_do_not_wait_for_ever():
    first, second = errors_of(another_call)
    assert first.startswith(f"{GATHER} 0: ")
    assert "Linear: all-reduce over the tensor-parallel group" in second


@pytest.mark.parametrize("function", [rows, another_call])
def test_torch_compares_the_calls_when_asked(function):
    for error in errors_of(function, "DETAIL"):
        assert "Detected mismatch between collectives on ranks" in error
        assert "TORCH_DISTRIBUTED_DEBUG=DETAIL" in error
