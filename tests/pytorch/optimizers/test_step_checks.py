# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a step of the fused optimizers cannot take is refused before anything is written."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from helpers.generators import random_tensor
from helpers.tolerances import assert_identical
from transformer_engine.pytorch.optimizers import FusedAdam, FusedSGD, multi_tensor_l2norm

KINDS: list[tuple[type, dict[str, Any]]] = [
    (FusedAdam, {"lr": 0.1}),
    (FusedAdam, {"lr": 0.1, "exp_avg_dtype": torch.uint8, "master_weights": True}),
    (FusedSGD, {"lr": 0.1, "momentum": 0.9}),
]
SHAPE = (2, 3)


def two_groups(kind: Any, options: dict[str, Any]) -> tuple[Any, list[torch.nn.Parameter]]:
    params = [torch.nn.Parameter(random_tensor(SHAPE, seed=i)) for i in range(3)]
    named = [{"params": [("a", params[0])]}, {"params": [("b", params[1]), ("q", params[2])]}]
    return kind(named, **options), params


BAD = [
    (torch.ones(3, 2), ValueError, r"has shape \(3, 2\); that of the parameter, \(2, 3\)"),
    (torch.ones(6), ValueError, r"has shape \(6,\)"),
    (torch.ones(1), ValueError, r"has shape \(1,\)"),
    (torch.ones(SHAPE).double(), TypeError, "has dtype torch.float64; FP32, FP16 or BF16"),
    (torch.ones(SHAPE).long(), TypeError, "has dtype torch.int64"),
    (torch.ones(SHAPE, device="meta"), ValueError, "is on meta; the parameter's device, cpu"),
    (torch.ones(SHAPE).to_sparse(), RuntimeError, "has layout torch.sparse_coo"),
    ([1, 2, 3], TypeError, r"is \[1, 2, 3\]; it must be a torch.Tensor"),
]


@pytest.mark.parametrize(("grad", "error", "message"), BAD)
@pytest.mark.parametrize("options", [{}, {"capturable": True}, {"exp_avg_dtype": torch.float16}])
def test_gradients_are_checked_before_anything_is_written(
    options: dict[str, Any], grad: Any, error: type, message: str
) -> None:
    optimizer, params = two_groups(FusedAdam, {**options, "use_decoupled_grad": True})
    for param in params:
        param.decoupled_grad = torch.ones(SHAPE)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    values = [param.detach().clone() for param in params]
    params[2].decoupled_grad = grad
    what = rf"FusedAdam\.step: decoupled_grad of parameter 1 of group 1 \(q\) {message}"
    with pytest.raises(error, match=what):
        optimizer.step()
    for param, value in zip(params, values, strict=True):
        assert_identical(param.detach(), value)
    after = optimizer.state_dict()
    assert [g["step"] for g in after["param_groups"]] == [1, 1]
    for index, state in before["state"].items():
        for name, value in state.items():
            assert_identical(after["state"][index][name], value)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_swapped_data_and_other_layouts_are_found(kind: Any, options: dict[str, Any]) -> None:
    """torch compares a gradient with its parameter only when it is assigned."""
    for change, message in (
        (lambda p: setattr(p, "data", torch.zeros(3, 2)), r"has shape \(2, 3\)"),
        (lambda p: setattr(p, "grad", torch.ones(SHAPE).to_sparse()), "has layout"),
    ):
        optimizer, params = two_groups(kind, options)
        for param in params:
            param.grad = torch.ones(SHAPE)
        change(params[2])
        value = params[0].detach().clone()
        with pytest.raises(
            (ValueError, RuntimeError), match=rf"grad of parameter 1.*\(q\) {message}"
        ):
            optimizer.step()
        assert_identical(params[0].detach(), value)
        assert not optimizer.state


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_parameters_with_gaps_are_stepped(kind: Any, options: dict[str, Any]) -> None:
    memory = random_tensor((4, 6))
    param = torch.nn.Parameter(memory[:, :3])
    twin = torch.nn.Parameter(param.detach().clone(memory_format=torch.contiguous_format))
    optimizer, reference = kind([param], **options), kind([twin], **options)
    outside = memory[:, 3:].clone()
    for step in range(3):
        twin.grad = random_tensor((4, 3), seed=step)
        param.grad = random_tensor((4, 6), seed=9)[:, :3].copy_(twin.grad)
        version = param._version
        optimizer.step()
        reference.step()
        assert param._version > version
    assert_identical(param.detach(), twin.detach())
    assert_identical(memory[:, :3], twin.detach())  # it is still that memory
    assert_identical(memory[:, 3:], outside)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_refused_parameters(kind: Any, options: dict[str, Any]) -> None:
    expanded = torch.nn.Parameter(torch.zeros(1).expand(3))
    for param, message in (
        (expanded, r"has shape \(3,\) and strides \(0,\); elements that share no memory"),
        (torch.nn.Parameter(torch.ones(3, device="meta")), "is on meta; a device with memory"),
    ):
        first = torch.nn.Parameter(torch.ones(2))
        optimizer = kind([first, param], **options)
        for one in (first, param):
            one.grad = torch.ones(one.shape, device=one.device)
        with pytest.raises(ValueError, match=rf"step: parameter 1 of group 0 {message}"):
            optimizer.step()
        assert (first == 1).all() and not optimizer.state


def test_negated_views_are_gradients() -> None:
    param = torch.nn.Parameter(torch.zeros(3))
    param.grad = torch._neg_view(torch.ones(3))
    FusedSGD([param], lr=0.5).step()
    assert param.tolist() == [0.5, 0.5, 0.5]


def test_a_scaler_without_a_scale_is_refused() -> None:
    param = torch.nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    optimizer = FusedAdam([param], capturable=True)
    with pytest.raises(RuntimeError, match=r"FusedAdam\.step: grad_scaler has no scale yet"):
        optimizer.step(grad_scaler=torch.amp.GradScaler("cpu"))
    assert (param == 1).all() and not optimizer.state
    optimizer.step(grad_scaler=torch.amp.GradScaler("cpu", enabled=False))
    assert optimizer.param_groups[0]["step"].item() == 1


def test_lists_name_the_tensor_of_another_dtype() -> None:
    flag = torch.zeros(1, dtype=torch.int32)
    tensors = [torch.ones(2), torch.ones(2).double()]
    with pytest.raises(
        TypeError, match=r"multi_tensor_l2norm: inputs\[1\] has dtype Double; float"
    ):
        multi_tensor_l2norm(65536, flag, [tensors])
