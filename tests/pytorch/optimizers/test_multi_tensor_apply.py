# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Calls on lists of tensors, as Megatron makes them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import transformer_engine.pytorch as te
import transformer_engine_torch as tex
from helpers.generators import random_tensor
from helpers.tolerances import assert_identical
from transformer_engine.pytorch.optimizers import (
    MultiTensorApply,
    multi_tensor_applier,
    multi_tensor_l2norm,
    multi_tensor_scale,
    multi_tensor_scale_tensor,
)


def flag() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.int)


def record(*args: object) -> tuple[object, ...]:
    return args


@pytest.fixture
def mesh() -> Iterator[object]:
    """One rank of two; nothing is sent."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    torch.distributed.destroy_process_group()


def test_the_names_are_those_of_the_native_functions() -> None:
    names = [name for name in te.optimizers.__all__ if name not in vars(torch.optim)]
    native = [name for name in names if hasattr(tex, name)]
    assert len(native) == 10
    for name in native:
        assert getattr(te.optimizers, name) is getattr(tex, name)


def test_empty_tensors_are_left_out_of_every_list() -> None:
    noop, full, empty = flag(), torch.ones(2), torch.empty(0)
    first, second = [empty, full, full, empty], [empty, 2 * full, 3 * full, empty]
    size, noop_given, lists, *rest = multi_tensor_applier(record, noop, [first, second], 5, 6)
    assert size == 65536 and noop_given is noop and rest == [5, 6]
    assert [len(one) for one in lists] == [2, 2]
    assert lists[0][0] is full and lists[1][1] is second[2]
    assert len(first) == 4


@pytest.mark.parametrize("lists", [[[]], [[], []], [[torch.empty(0)], [torch.empty(0)]], []])
def test_nothing_to_do_is_no_call(lists: list[list[torch.Tensor]]) -> None:
    def must_not_run(*_: object) -> None:
        raise AssertionError

    assert multi_tensor_applier(must_not_run, flag(), lists, 1.0) is None


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"tensor_lists have \[2, 1\] tensors"):
        multi_tensor_applier(record, flag(), [[torch.ones(1)] * 2, [torch.ones(1)]])


def test_distributed_tensors_are_replaced_by_their_part(mesh: object) -> None:
    local = torch.ones(2, 3)
    tensors = [DTensor.from_local(local, mesh, [Shard(0)]), torch.ones(4)]
    norm, _ = multi_tensor_applier(multi_tensor_l2norm, flag(), [tensors], False)
    assert_identical(norm, torch.tensor([10.0]).sqrt())
    assert tensors[0].data_ptr() == local.data_ptr() and type(tensors[0]) is torch.Tensor


def test_clipping_of_gradients() -> None:
    """Norm, then scaling in place by what is allowed: a number, or a tensor of one."""
    grads = [random_tensor((5, 3), seed=i) for i in range(4)]
    expected = [grad.clone() for grad in grads]
    norm, _ = multi_tensor_applier(multi_tensor_l2norm, flag(), [grads], False)
    coefficient = 1.0 / (norm + 1e-6)
    multi_tensor_applier(multi_tensor_scale, flag(), [grads, grads], coefficient.item())
    for grad, former in zip(grads, expected, strict=True):
        assert_identical(grad, former * coefficient)
    multi_tensor_applier(multi_tensor_scale_tensor, flag(), [expected, expected], coefficient)
    for grad, former in zip(grads, expected, strict=True):
        assert_identical(grad, former)


def test_copies_between_parameters_and_masters() -> None:
    masters = [random_tensor((7,), seed=i) for i in range(3)]
    params = [torch.empty(7, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    data = [param.data for param in params]
    multi_tensor_applier(multi_tensor_scale, flag(), [masters, data], 1.0)
    for param, master in zip(params, masters, strict=True):
        assert_identical(param.detach(), master.bfloat16())


@pytest.mark.parametrize(("size", "error"), [(0, ValueError), ("x", TypeError)])
def test_refused_chunk_sizes(size: object, error: type) -> None:
    with pytest.raises(error, match="MultiTensorApply: chunk_size is"):
        MultiTensorApply(size)
    with pytest.raises(TypeError, match="multi_tensor_applier: op is 'x'"):
        multi_tensor_applier("x", flag(), [[torch.ones(1)]])
