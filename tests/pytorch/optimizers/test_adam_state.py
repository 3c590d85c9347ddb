# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""States of FusedAdam in fewer bits: storage, state dicts, quantized and distributed parameters."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import transformer_engine.pytorch as te
from helpers.formats import E4M3, decode_table
from helpers.generators import random_tensor
from helpers.tolerances import assert_identical, assert_within, gamma, rounding_bound
from transformer_engine.common.recipe import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)
from transformer_engine.pytorch.optimizers import FusedAdam

SHAPES = ((3, 5), (0,), (), (129,))
OPTIONS = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
SCALED = {torch.float16: 32752.0, torch.uint8: 448.0}
MOMENT_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.uint8)


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    return [
        torch.nn.Parameter(random_tensor(shape, dtype=dtype, seed=i))
        for i, shape in enumerate(SHAPES)
    ]


def run(optimizer: FusedAdam, params: list[torch.nn.Parameter], steps: range) -> None:
    for step in steps:
        for i, param in enumerate(params):
            grad = random_tensor(tuple(param.shape), seed=100 * step + i)
            param.grad = grad.to(param.dtype)
        optimizer.step()


def expected_storage(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What a stored state stands for, by the rule: values over absmax / R, rounded."""
    if dtype not in SCALED:
        return values.to(dtype).float()
    scale = values.double().abs().max() / SCALED[dtype] if values.any() else 1.0
    if dtype == torch.float16:
        return (values / scale).half().double() * scale
    table = decode_table(E4M3)
    table = table[table.isfinite()]
    nearest = (values.double().reshape(-1, 1) / scale - table).abs().argmin(1)
    return table[nearest].reshape(values.shape) * scale


def storage_slack(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | float:
    """How far storage may be off from `expected_storage`.

    The scale is rounded to FP32, so a value near a tie may go to the other neighbour, which is two
    halves of a step away; steps are those of the format at value / scale.
    """
    if dtype not in SCALED or not values.any():
        return 0.0
    scale = values.double().abs().max() / SCALED[dtype]
    fmt = E4M3 if dtype == torch.uint8 else dtype
    step = 2 * rounding_bound(values.double() / scale, fmt) * scale
    return step + gamma(4, torch.float32) * values.double().abs()


@pytest.mark.parametrize("dtype", MOMENT_DTYPES)
@pytest.mark.parametrize("name", ["exp_avg", "exp_avg_sq"])
def test_values_go_in_and_come_out(name: str, dtype: torch.dtype) -> None:
    params = parameters()
    optimizer = FusedAdam(params, **{f"{name}_dtype": dtype}, **OPTIONS)
    for i, param in enumerate(params):
        optimizer.initialize_state(param)
        stored = optimizer.state[param][name]
        assert stored.dtype == dtype and stored.shape == param.shape
        assert not optimizer.get_unscaled_state(param, name).any()
        for size in (1e-6, 1.0, 1e6):
            values = size * random_tensor(SHAPES[i], seed=7)
            optimizer.set_scaled_state(param, name, values)
            got = optimizer.get_unscaled_state(param, name)
            assert got.dtype == torch.float32 and optimizer.state[param][name] is stored
            expected = expected_storage(values, dtype)
            assert_within(got, expected, storage_slack(values, dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.uint8])
def test_the_largest_magnitude_fills_the_range(dtype: torch.dtype) -> None:
    param = torch.nn.Parameter(torch.zeros(4))
    optimizer = FusedAdam([param], exp_avg_dtype=dtype)
    values = torch.tensor([0.5, -8.0, 2.0, 0.0])
    optimizer.set_scaled_state(param, "exp_avg", values)
    stored = optimizer.state[param]["exp_avg"]
    codes = stored.float() if dtype == torch.float16 else decode_table(E4M3)[stored.long()]
    assert codes.abs().max() == SCALED[dtype]
    assert_within(optimizer.get_unscaled_state(param, "exp_avg"), values, 2**-20)
    optimizer.set_scaled_state(param, "exp_avg", torch.zeros(4))
    assert not optimizer.get_unscaled_state(param, "exp_avg").any()


@pytest.mark.parametrize("dtype", MOMENT_DTYPES)
@pytest.mark.parametrize("master_dtype", [torch.float32, torch.float16])
def test_a_step_is_that_on_the_unscaled_values(
    master_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    """Read, step in FP32, store: the same as doing these by hand with an FP32 optimizer."""
    params, twins = parameters(torch.bfloat16), parameters(torch.bfloat16)
    options = {"exp_avg_dtype": dtype, "exp_avg_sq_dtype": dtype, "master_weights": True}
    optimizer = FusedAdam(params, master_weight_dtype=master_dtype, **options, **OPTIONS)
    plain = FusedAdam(twins, master_weights=True, **OPTIONS)
    names = ("exp_avg", "exp_avg_sq", "master_param")
    for param in params:
        optimizer.initialize_state(param)
    for step in range(3):
        for param, twin in zip(params, twins, strict=True):
            for name in names:
                value = optimizer.get_unscaled_state(param, name)
                plain.set_scaled_state(twin, name, value.clone())
        run(optimizer, params, range(step, step + 1))
        run(plain, twins, range(step, step + 1))
        for param, twin in zip(params, twins, strict=True):
            assert_identical(param.detach(), twin.detach())
            for name in names:
                exact, stored = plain.state[twin][name], optimizer.name_to_dtype_map[name]
                got = optimizer.get_unscaled_state(param, name)
                slack = storage_slack(exact, stored)
                assert_within(got, expected_storage(exact, stored), slack)


@pytest.mark.parametrize("dtype", MOMENT_DTYPES)
@pytest.mark.parametrize("remainders", [False, True])
def test_state_dicts_are_fp32_and_lead_to_the_same_run(
    remainders: bool, dtype: torch.dtype
) -> None:
    params, twins = parameters(torch.bfloat16), parameters(torch.bfloat16)
    options = {"exp_avg_dtype": dtype, "exp_avg_sq_dtype": dtype, "master_weights": True}
    options["store_param_remainders"] = remainders
    optimizer = FusedAdam(params, **options, **OPTIONS)
    run(optimizer, params, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == torch.float32
        assert state["master_param"].dtype == (torch.int16 if remainders else torch.float32)
    assert saved["param_groups"][0]["step"] == 2
    again = FusedAdam(twins, **options, **OPTIONS)
    for param, twin in zip(params, twins, strict=True):
        twin.data.copy_(param)
    again.load_state_dict(saved)
    assert all(again.state[twin]["exp_avg"].dtype == dtype for twin in twins)
    run(optimizer, params, range(2, 4))
    run(again, twins, range(2, 4))
    for param, twin in zip(params, twins, strict=True):
        assert_identical(twin.detach(), param.detach())


def test_a_state_dict_fits_other_dtypes_and_the_capturable_kind() -> None:
    params, twins = parameters(), parameters()
    optimizer = FusedAdam(params, exp_avg_dtype=torch.uint8, **OPTIONS)
    run(optimizer, params, range(2))
    other = FusedAdam(twins, capturable=True, **OPTIONS)
    other.load_state_dict(optimizer.state_dict())
    step = other.param_groups[0]["step"]
    assert step.dtype == torch.int32 and step.item() == 2
    for param, twin in zip(params, twins, strict=True):
        expected = optimizer.get_unscaled_state(param, "exp_avg")
        assert_identical(other.state[twin]["exp_avg"], expected)
    optimizer.load_state_dict(other.state_dict())
    assert optimizer.param_groups[0]["step"] == 2


def test_masters_given_to_remainders_are_divided_exactly() -> None:
    param = torch.nn.Parameter(torch.zeros(1000, dtype=torch.bfloat16))
    optimizer = FusedAdam([param], master_weights=True, store_param_remainders=True)
    optimizer.initialize_state(param)  # with one argument, as Megatron does
    assert optimizer.state[param]["master_param"].dtype == torch.int16
    master = random_tensor((1000,))
    optimizer.set_scaled_state(param, "master_param", master)
    low = optimizer.get_unscaled_state(param, "master_param").int()
    high = param.detach().view(torch.int16).int()
    bits = ((high << 16) - ((low & 0x8000) << 1)) | (low & 0xFFFF)
    assert torch.equal(bits.view(torch.float32), master)
    plain = FusedAdam([param], master_weights=True)
    plain.initialize_state(param, False)
    assert_identical(plain.state[param]["master_param"], param.detach().float())


@pytest.mark.parametrize(
    ("name", "values", "error", "message"),
    [
        ("momentum", torch.zeros(3), ValueError, "state_name is 'momentum'; one of exp_avg"),
        ("exp_avg", torch.zeros(4), ValueError, r"unscaled_state has shape \(4,\)"),
        ("exp_avg", torch.zeros(3, dtype=torch.int16), TypeError, "a floating-point dtype is"),
        ("master_param", torch.zeros(3, dtype=torch.int16), TypeError, "has dtype torch.int16"),
    ],
)
def test_refused_states(name: str, values: torch.Tensor, error: type, message: str) -> None:
    param = torch.nn.Parameter(torch.zeros(3))
    optimizer = FusedAdam([param], master_weights=True)
    optimizer.initialize_state(param)
    with pytest.raises(error, match=message):
        optimizer.set_scaled_state(param, name, values)
    if name == "momentum":
        with pytest.raises(error, match=message):
            optimizer.get_unscaled_state(param, name)


# ---- quantized parameters

RECIPES = (
    DelayedScaling(),
    Float8CurrentScaling(),
    Float8BlockScaling(),
    MXFP8BlockScaling(),
    NVFP4BlockScaling(),
)


def quantized_weight(recipe: Any) -> torch.nn.Parameter:
    with te.quantized_model_init(recipe=recipe):
        return te.Linear(64, 32, bias=False, params_dtype=torch.bfloat16).weight


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: type(recipe).__name__)
def test_quantized_parameters_are_cast_from_their_master(recipe: Any) -> None:
    weight = quantized_weight(recipe)
    plain = torch.nn.Parameter(weight.dequantize(dtype=torch.float32).detach())
    optimizer = FusedAdam([weight], master_weights=True, **OPTIONS)
    reference = FusedAdam([plain], **OPTIONS)
    for step in range(3):
        grad = random_tensor((32, 64), seed=step)
        weight.grad, plain.grad = grad.bfloat16(), grad.bfloat16().float()
        version = weight._version
        optimizer.step()
        reference.step()
        assert weight._version > version
    master = optimizer.state[weight]["master_param"]
    assert_identical(master, plain.detach())
    twin = quantized_weight(recipe)
    twin.quantize_(master)
    assert_identical(weight.dequantize().detach(), twin.dequantize().detach())


def test_delayed_scaling_has_its_own_step() -> None:
    """Bytes by the quantizer's scale; amax, inverse scale and transpose follow."""
    weight = quantized_weight(DelayedScaling())
    quantizer = weight._quantizer
    weight.update_usage(columnwise_usage=True)
    quantizer.scale.fill_(16.0)
    quantizer.amax.zero_()
    optimizer = FusedAdam([weight], master_weights=True, **OPTIONS)
    weight.grad = random_tensor((32, 64), dtype=torch.bfloat16)
    optimizer.step()
    master = optimizer.state[weight]["master_param"]
    assert quantizer.amax.item() == master.abs().max().item()
    assert weight._scale_inv.item() == 1 / 16
    expected = quantizer.copy()(master)
    assert torch.equal(weight._data, expected._data)
    weight.update_usage(columnwise_usage=True)
    assert torch.equal(weight._transpose, weight._data.t())


def test_delayed_scaling_works_without_masters() -> None:
    weight = quantized_weight(DelayedScaling())
    plain = torch.nn.Parameter(weight.dequantize(dtype=torch.float32).detach())
    optimizer, reference = FusedAdam([weight], **OPTIONS), FusedAdam([plain], **OPTIONS)
    weight.grad = random_tensor((32, 64), dtype=torch.bfloat16)
    plain.grad = weight.grad.float()
    optimizer.step()
    reference.step()
    expected = weight._quantizer.copy()(plain.detach())
    assert_identical(weight.dequantize(dtype=torch.float32).detach(), expected.dequantize())


def test_other_formats_need_masters_and_none_is_captured() -> None:
    weight = quantized_weight(Float8CurrentScaling())
    before = weight.dequantize().detach()
    weight.grad = torch.ones(32, 64, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="is a Float8Tensor and master_weights is False"):
        FusedAdam([weight]).step()
    with pytest.raises(RuntimeError, match="is a Float8Tensor and capturable is True"):
        FusedAdam([weight], capturable=True, master_weights=True).step()
    assert_identical(weight.dequantize().detach(), before)


@pytest.mark.parametrize("recipe", RECIPES[:2], ids=lambda recipe: type(recipe).__name__)
def test_quantized_models_train(recipe: Any) -> None:
    with te.quantized_model_init(recipe=recipe):
        model = te.Linear(32, 32)
    optimizer = FusedAdam(model.parameters(), lr=0.02, master_weights=True)
    x, target = random_tensor((16, 32)), random_tensor((16, 32), seed=1)
    losses = []
    for _ in range(30):
        with te.autocast(recipe=recipe):
            loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


# ---- distributed parameters


@pytest.fixture
def mesh() -> Iterator[object]:
    """One rank of two; nothing is sent."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_distributed_parameters_have_distributed_states(mesh: object, dtype: torch.dtype) -> None:
    local = random_tensor((4, 3))
    param = torch.nn.Parameter(DTensor.from_local(local.clone(), mesh, [Shard(0)]))
    plain = torch.nn.Parameter(local.clone())
    options = {"exp_avg_dtype": dtype, "master_weights": True, **OPTIONS}
    optimizer, reference = FusedAdam([param], **options), FusedAdam([plain], **options)
    for step in range(2):
        plain.grad = random_tensor((4, 3), seed=step)
        param.grad = DTensor.from_local(plain.grad.clone(), mesh, [Shard(0)])
        version = param._version
        optimizer.step()
        reference.step()
        assert param._version > version
    assert_identical(param.to_local().detach(), plain.detach())
    saved = optimizer.state_dict()["state"][0]
    for name, value in reference.state_dict()["state"][0].items():
        assert isinstance(saved[name], DTensor) and saved[name].shape == (8, 3)
        assert_identical(saved[name].to_local(), value)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert isinstance(optimizer.state[param]["exp_avg"], DTensor)
