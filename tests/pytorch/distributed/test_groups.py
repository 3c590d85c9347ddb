# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rank and size of process groups are remembered, and right when groups come and go."""

import pytest
import torch

from helpers.ranks import ranks
from transformer_engine.pytorch.distributed import (
    get_distributed_rank,
    get_distributed_world_size,
)


@pytest.fixture
def one_process_group(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def test_without_torch_distributed_there_is_one_process():
    assert (get_distributed_rank(), get_distributed_world_size()) == (0, 1)


def test_answers_are_remembered(one_process_group, monkeypatch):
    group = torch.distributed.new_group([0])
    for asked in (None, group):
        assert (get_distributed_rank(asked), get_distributed_world_size(asked)) == (0, 1)

    def fail(*args):
        raise AssertionError("torch was asked again")

    monkeypatch.setattr(torch.distributed, "get_rank", fail)
    monkeypatch.setattr(torch.distributed, "get_world_size", fail)
    for asked in (None, group):
        assert (get_distributed_rank(asked), get_distributed_world_size(asked)) == (0, 1)


def test_a_destroyed_group_is_not_answered_from_memory(one_process_group):
    group = torch.distributed.new_group([0])
    assert get_distributed_world_size(group) == 1
    torch.distributed.destroy_process_group()
    assert (get_distributed_rank(), get_distributed_world_size()) == (0, 1)
    with pytest.raises(ValueError, match="not been initialized"):
        torch.distributed.get_rank(group)


def recreate_groups(rank):
    """Subgroups with the members in one order, then in the other."""
    seen = []
    for members in ([0, 1], [0], [1], [0, 1]):
        group = torch.distributed.new_group(members)
        if rank in members:
            seen.append((get_distributed_rank(group), get_distributed_world_size(group)))
            assert seen[-1] == (members.index(rank), len(members))
        torch.distributed.barrier()
        if rank in members:
            torch.distributed.destroy_process_group(group)
        torch.distributed.barrier()
    return seen


@pytest.mark.slow  # may be the first to start the ranks
def test_recreated_groups_are_told_apart():
    assert ranks(2).run(recreate_groups) == [[(0, 2), (0, 1), (0, 2)], [(1, 2), (0, 1), (1, 2)]]


def default_group(rank):
    return get_distributed_rank(), get_distributed_world_size()


def test_the_default_group_is_looked_up_anew_after_destruction():
    # Every run of the pool makes a new default group.
    for _ in range(2):
        assert ranks(2).run(default_group) == [(0, 2), (1, 2)]
