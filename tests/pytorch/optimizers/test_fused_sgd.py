# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""FusedSGD against torch.optim.SGD in float64."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.generators import random_tensor
from helpers.tolerances import assert_identical, assert_within, gamma
from transformer_engine.pytorch.optimizers import FusedSGD

SHAPES = ((3, 5), (0,), (), (129,))
STEPS = 4


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    return [
        torch.nn.Parameter(random_tensor(shape, dtype=dtype, seed=i))
        for i, shape in enumerate(SHAPES)
    ]


def set_gradients(params: list[torch.nn.Parameter], step: int) -> None:
    for i, param in enumerate(params):
        grad = random_tensor(tuple(param.shape), seed=100 * step + i)
        param.grad = grad.to(param.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_steps_are_those_of_torch(options: dict[str, float], dtype: torch.dtype) -> None:
    params = parameters(dtype)
    exact = [torch.nn.Parameter(param.detach().double()) for param in params]
    optimizer = FusedSGD(params, lr=0.1, **options)
    reference = torch.optim.SGD(exact, lr=0.1, **options)
    largest = [param.detach().double().abs() for param in params]
    for step in range(STEPS):
        set_gradients(params, step)
        for param, twin in zip(params, exact, strict=True):
            twin.grad = param.grad.double()
        optimizer.step()
        reference.step()
        largest = [torch.maximum(a, b.detach().abs()) for a, b in zip(largest, exact, strict=True)]
    # Errors of the momentum's and the parameter's roundings in each step add up, at most.
    rounding = gamma(STEPS * (STEPS + 2), dtype) + gamma(8 * STEPS, torch.float32)
    for param, twin, magnitude in zip(params, exact, largest, strict=True):
        scale = magnitude.amax() + 4 if magnitude.numel() else 0.0  # gradients below 4
        assert_within(param.detach(), twin.detach(), rounding * scale)


def test_weight_decay_after_momentum() -> None:
    param = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = FusedSGD([param], lr=0.5, momentum=0.5, weight_decay=0.25, wd_after_momentum=True)
    param.grad = torch.tensor([1.0])
    optimizer.step()  # b = 1; p = 2 - 0.5 * (1 + 0.5)
    assert param.item() == 1.25 and optimizer.state[param]["momentum_buffer"].item() == 1.0
    optimizer.step()  # b = 0.5 + 1; p = 1.25 - 0.5 * (1.5 + 0.3125)
    assert param.item() == 1.25 - 0.5 * 1.8125


def test_a_parameter_that_joins_later_begins_with_its_gradient() -> None:
    """Each parameter has its own first step, whatever the others of its group did."""
    params = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    optimizer = FusedSGD(params, lr=1.0, momentum=0.75, dampening=0.5)
    params[0].grad = torch.ones(2)
    optimizer.step()
    params[1].grad = torch.ones(2)
    optimizer.step()
    assert optimizer.state[params[1]]["momentum_buffer"].tolist() == [1.0, 1.0]
    assert optimizer.state[params[0]]["momentum_buffer"].tolist() == [1.25, 1.25]


def test_quantized_parameters_are_quantized_again() -> None:
    with te.quantized_model_init(recipe=te.get_default_recipe()):
        layer = te.Linear(32, 32, bias=False)
    optimizer = FusedSGD(layer.parameters(), lr=0.5)
    weight = layer.weight
    before, version = weight.dequantize().detach(), weight._version
    weight.grad = torch.full((32, 32), 0.25)
    optimizer.step()
    expected = weight._quantizer.copy()(before - 0.125).dequantize()
    assert_identical(weight.dequantize().detach(), expected)
    assert weight._version > version


def test_state_dicts_are_those_of_torch() -> None:
    params = parameters()
    optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    set_gradients(params, 0)
    optimizer.step()
    twins = copy.deepcopy(params)
    fused = FusedSGD(twins, lr=7.0, momentum=0.9)
    fused.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in range(1, 3):
        set_gradients(params, step)
        set_gradients(twins, step)
        optimizer.step()
        fused.step()
    for param, twin in zip(params, twins, strict=True):
        bound = gamma(16, torch.float32) * (param.detach().double().abs() + 8)
        assert_within(twin.detach(), param.detach(), bound)
    again = copy.deepcopy(fused)
    assert again.state_dict().keys() == fused.state_dict().keys()


def test_closure_zero_grad_and_skipped_parameters() -> None:
    params = parameters()
    optimizer = FusedSGD(params, lr=0.1)
    before = [param.detach().clone() for param in params]
    assert optimizer.step() is None
    for param, former in zip(params, before, strict=True):
        assert_identical(param.detach(), former)

    def closure() -> torch.Tensor:
        loss = sum(param.square().sum() for param in params)
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    assert_identical(loss.detach(), sum(former.square().sum() for former in before))
    optimizer.zero_grad(set_to_none=False)
    assert all((param.grad == 0).all() for param in params)
    optimizer.zero_grad()
    assert all(param.grad is None for param in params)


def test_permuted_gradients_and_parameters() -> None:
    shape = (2, 3, 4, 5)
    param = torch.nn.Parameter(random_tensor(shape).contiguous(memory_format=torch.channels_last))
    expected = param.detach().clone()
    param.grad = random_tensor(shape, seed=1)
    FusedSGD([param], lr=0.5, momentum=0.5).step()
    assert_within(param.detach(), (expected - 0.5 * param.grad).double(), 2**-22)


def test_a_step_counts_as_a_write() -> None:
    param = torch.nn.Parameter(torch.ones(3))
    version = param._version
    param.grad = torch.ones(3)
    FusedSGD([param], lr=0.1).step()
    assert param._version > version


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lr": -1.0}, ValueError, "FusedSGD: lr is -1.0"),
        ({"lr": 0.1, "momentum": -0.5}, ValueError, "momentum is -0.5"),
        ({"lr": 0.1, "weight_decay": -0.5}, ValueError, "weight_decay is -0.5"),
        ({"lr": 0.1, "dampening": float("nan")}, ValueError, "dampening is nan"),
        ({"lr": 0.1, "nesterov": True}, ValueError, "nesterov is True with momentum 0.0"),
        (
            {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "nesterov": True},
            ValueError,
            "no dampening are required",
        ),
        ({"lr": "x"}, TypeError, "lr is 'x'"),
        ({}, ValueError, "lr"),  # torch's message
    ],
)
def test_refused_options(options: dict[str, object], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        FusedSGD(parameters(), **options)


def test_sparse_gradients_are_refused() -> None:
    param = torch.nn.Parameter(torch.ones(3, 2))
    param.grad = torch.ones(3, 2).to_sparse()
    with pytest.raises(
        RuntimeError, match=r"FusedSGD\.step: grad of parameter 0 of group 0 has layout torch"
    ):
        FusedSGD([param], lr=0.1).step()


def test_parameters_of_other_dtypes_are_refused() -> None:
    param = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    param.grad = torch.ones_like(param)
    optimizer = FusedSGD([param], lr=0.1)
    with pytest.raises(TypeError, match=r"FusedSGD\.step: parameter 0 of group 0 has dtype torch"):
        optimizer.step()
    assert (param == 1).all() and not optimizer.state and "step" not in optimizer.param_groups[0]


def test_set_grad_none_is_deprecated_but_obeyed() -> None:
    params = parameters()
    with pytest.warns(DeprecationWarning, match="set_grad_none is deprecated"):
        optimizer = FusedSGD(params, lr=0.1, set_grad_none=False)
    set_gradients(params, 0)
    optimizer.zero_grad()
    assert params[0].grad is not None
    with pytest.raises(ValueError, match="set_to_none is True, but the optimizer"):
        optimizer.zero_grad(set_to_none=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FusedSGD(params, lr=0.1)
