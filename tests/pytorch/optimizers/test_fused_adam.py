# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""FusedAdam against torch.optim.Adam and AdamW in float64; masters, write counts, refusals."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.generators import random_tensor
from helpers.tolerances import assert_identical, assert_within, gamma, rounding_bound
from transformer_engine.pytorch.optimizers import FusedAdam

SHAPES = ((3, 5), (0,), (), (129,))
STEPS = 5
OPTIONS = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    return [
        torch.nn.Parameter(random_tensor(shape, dtype=dtype, seed=i))
        for i, shape in enumerate(SHAPES)
    ]


def gradients(params: list[torch.nn.Parameter], step: int) -> list[torch.Tensor]:
    """Magnitudes of at least 1/4, so that no update hangs on the sign of a rounding."""
    grads = [random_tensor(tuple(p.shape), seed=100 * step + i) for i, p in enumerate(params)]
    return [grad + 0.25 * grad.sign() for grad in grads]


def set_gradients(params: list[torch.nn.Parameter], step: int) -> None:
    for param, grad in zip(params, gradients(params, step), strict=True):
        param.grad = grad.to(param.dtype)


def exact_run(params: list[torch.nn.Parameter], mode: bool, steps: int = STEPS) -> list[Any]:
    """What torch's optimizer makes of the same gradients in float64."""
    twins = [torch.nn.Parameter(param.detach().double()) for param in params]
    kind = torch.optim.AdamW if mode else torch.optim.Adam
    reference = kind(twins, **OPTIONS)
    for step in range(steps):
        for param, twin, grad in zip(params, twins, gradients(params, step), strict=True):
            twin.grad = grad.to(param.dtype).double()
        reference.step()
    return twins


def step_bound(exact: torch.Tensor, steps: int = STEPS) -> torch.Tensor:
    """Some twenty FP32 roundings a step, relative to a parameter and an update of lr."""
    return gamma(24 * steps, torch.float32) * (exact.abs() + 1.0)


@pytest.mark.smoke
@pytest.mark.parametrize("mode", [False, True])
def test_steps_are_those_of_torch(mode: bool) -> None:
    params = parameters()
    exact = exact_run(params, mode)
    optimizer = FusedAdam(params, adam_w_mode=mode, **OPTIONS)
    for step in range(STEPS):
        set_gradients(params, step)
        optimizer.step()
    for param, twin in zip(params, exact, strict=True):
        assert_within(param.detach(), twin.detach(), step_bound(twin.detach()))
    assert optimizer.param_groups[0]["step"] == STEPS
    assert all(set(optimizer.state[p]) == {"exp_avg", "exp_avg_sq"} for p in params)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("remainders", [False, True])
def test_masters_are_those_of_an_fp32_run(remainders: bool, dtype: torch.dtype) -> None:
    params = parameters(dtype)
    exact = exact_run(params, mode=True)
    optimizer = FusedAdam(params, master_weights=True, store_param_remainders=remainders, **OPTIONS)
    for step in range(STEPS):
        set_gradients(params, step)
        optimizer.step()
    for param, twin in zip(params, exact, strict=True):
        state = optimizer.state[param]
        if remainders and dtype == torch.bfloat16:
            low = state["master_param"]
            assert low.dtype == torch.int16
            high = param.detach().view(torch.int16).int()
            bits = ((high << 16) - ((low.int() & 0x8000) << 1)) | (low.int() & 0xFFFF)
            master = bits.view(torch.float32)
            assert_within(param.detach(), master, rounding_bound(master, dtype))
        else:
            master = state["master_param"]
            assert master.dtype == torch.float32
            assert_identical(param.detach(), master.to(dtype))
        assert_within(master, twin.detach(), step_bound(twin.detach()))


def test_remainders_give_the_bits_of_masters() -> None:
    runs = []
    for remainders in (False, True):
        params = parameters(torch.bfloat16)
        optimizer = FusedAdam(
            params, master_weights=True, store_param_remainders=remainders, **OPTIONS
        )
        for step in range(STEPS):
            set_gradients(params, step)
            optimizer.step()
        runs.append([optimizer.state[param]["exp_avg_sq"] for param in params])
        masters = [optimizer.get_unscaled_state(param, "master_param") for param in params]
        runs.append(masters)
    for plain, split in zip(runs[1], runs[3], strict=True):
        assert torch.equal((plain.view(torch.int32) & 0xFFFF).to(torch.int16), split)


def test_without_masters_the_parameter_is_rounded_each_step() -> None:
    params = parameters(torch.bfloat16)
    optimizer = FusedAdam(params, **OPTIONS)
    before = [param.detach().clone() for param in params]
    exact = exact_run(params, mode=True, steps=1)
    set_gradients(params, 0)
    optimizer.step()
    for param, twin, former in zip(params, exact, before, strict=True):
        bound = step_bound(twin.detach(), 1) + rounding_bound(twin.detach(), torch.bfloat16)
        assert_within(param.detach(), twin.detach(), bound)
        assert param.dtype == former.dtype


def test_bias_correction_off() -> None:
    param = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = FusedAdam([param], lr=0.5, betas=(0.5, 0.75), eps=0.0, bias_correction=False)
    param.grad = torch.tensor([2.0])
    optimizer.step()  # m = 1, v = 1
    assert param.item() == 0.5


def test_decoupled_gradients_of_another_dtype() -> None:
    runs = []
    for decoupled in (False, True):
        params = parameters(torch.bfloat16)
        optimizer = FusedAdam(params, master_weights=True, use_decoupled_grad=decoupled, **OPTIONS)
        for step in range(2):
            set_gradients(params, step)
            for param in params:
                if decoupled:
                    param.decoupled_grad, param.grad = param.grad.float(), None
            optimizer.step()
        runs.append([param.detach() for param in params])
    for a, b in zip(*runs, strict=True):
        assert_identical(a, b)
    optimizer.zero_grad(set_to_none=False)
    assert params[0].decoupled_grad.count_nonzero() == 0
    optimizer.zero_grad()
    assert params[0].decoupled_grad is None


def test_groups_have_their_own_numbers_and_keep_unknown_keys() -> None:
    params = parameters()
    groups = [
        {"params": params[:2], "lr": 0.5, "wd_mult": 1.0},
        {"params": params[2:], "weight_decay": 0.0},
        {"params": [], "is_expert_parallel": False},
    ]
    optimizer = FusedAdam(groups, **OPTIONS)
    alone = parameters()
    separate = [
        FusedAdam(alone[:2], **{**OPTIONS, "lr": 0.5}),
        FusedAdam(alone[2:], **{**OPTIONS, "weight_decay": 0.0}),
    ]
    for step in range(2):
        set_gradients(params, step)
        set_gradients(alone, step)
        optimizer.step()
        for one in separate:
            one.step()
    for a, b in zip(params, alone, strict=True):
        assert_identical(a.detach(), b.detach())
    assert optimizer.param_groups[0]["wd_mult"] == 1.0
    assert [group["step"] for group in optimizer.param_groups] == [2, 2, 2]


def test_parameters_without_gradient_stay_and_have_no_state() -> None:
    params = parameters()
    optimizer = FusedAdam(params, **OPTIONS)
    params[0].grad = torch.ones(3, 5)
    former = params[3].detach().clone()
    optimizer.step()
    assert_identical(params[3].detach(), former)
    assert params[3] not in optimizer.state and optimizer.param_groups[0]["step"] == 1


def test_states_made_by_the_caller_are_used() -> None:
    params, twins = parameters(), parameters()
    optimizer, other = FusedAdam(params, **OPTIONS), FusedAdam(twins, **OPTIONS)
    for param in params:
        optimizer.state[param]["exp_avg"] = torch.zeros_like(param.data)
        optimizer.state[param]["exp_avg_sq"] = torch.zeros_like(param.data)
    made = optimizer.state[params[0]]["exp_avg"]
    for one, of in ((optimizer, params), (other, twins)):
        set_gradients(of, 0)
        one.step()
    assert optimizer.state[params[0]]["exp_avg"] is made and made.count_nonzero() == 15
    for a, b in zip(params, twins, strict=True):
        assert_identical(a.detach(), b.detach())


def test_a_step_counts_as_a_write() -> None:
    """A cached quantized weight notices it."""
    for options in ({}, {"master_weights": True}, {"capturable": True}):
        params = parameters(torch.bfloat16)
        optimizer = FusedAdam(params, **OPTIONS, **options)
        set_gradients(params, 0)
        versions = [param._version for param in params]
        optimizer.step()
        held = [(p, v) for p, v in zip(params, versions, strict=True) if p.numel()]
        assert all(param._version > version for param, version in held)


def test_a_cached_weight_is_quantized_again_after_a_step() -> None:
    layer = te.Linear(32, 32, bias=False)
    optimizer = FusedAdam(layer.parameters(), lr=0.5)
    x = random_tensor((4, 32))

    def run(first: bool) -> torch.Tensor:
        with te.autocast(recipe=te.get_default_recipe()):
            return layer(x, is_first_microbatch=first)

    before = run(True)
    before.sum().backward()
    optimizer.step()
    assert not torch.equal(run(False), before)


def test_closure_and_permuted_parameters() -> None:
    shape = (2, 3, 4, 5)
    start = random_tensor(shape)
    results = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        param = torch.nn.Parameter(start.clone().contiguous(memory_format=memory_format))
        options = {"exp_avg_dtype": torch.uint8, "exp_avg_sq_dtype": torch.float16}
        optimizer = FusedAdam([param], **OPTIONS, master_weights=True, **options)

        def closure(param: torch.nn.Parameter = param) -> torch.Tensor:
            param.grad = random_tensor(shape, seed=1)  # of the other layout
            return torch.tensor(3.0)

        assert optimizer.step(closure).item() == 3.0
        assert optimizer.step(closure).item() == 3.0
        results.append((param.detach(), optimizer.get_unscaled_state(param, "exp_avg")))
    for a, b in zip(*results, strict=True):
        assert_identical(a, b)


def test_deep_copies_keep_options_and_scales() -> None:
    params = parameters()
    optimizer = FusedAdam(params, exp_avg_dtype=torch.float16, **OPTIONS)
    set_gradients(params, 0)
    optimizer.step()
    again = copy.deepcopy(optimizer)
    ours, theirs = (o.param_groups[0]["params"] for o in (optimizer, again))
    for a, b in zip(ours, theirs, strict=True):
        expected = optimizer.get_unscaled_state(a, "exp_avg")
        assert_identical(again.get_unscaled_state(b, "exp_avg"), expected)
        b.grad = a.grad.clone()
    optimizer.step()
    again.step()
    for a, b in zip(ours, theirs, strict=True):
        assert_identical(a.detach(), b.detach())


# ---- capturable


def test_capturable_steps_are_the_same_bits() -> None:
    for master_weights in (False, True):
        params, twins = parameters(torch.float16), parameters(torch.float16)
        plain = FusedAdam(params, master_weights=master_weights, **OPTIONS)
        captured = FusedAdam(twins, master_weights=master_weights, capturable=True, **OPTIONS)
        lr = captured.param_groups[0]["lr"]
        assert lr.dtype == torch.float32 and lr.item() == torch.tensor(0.05).item()
        for step in range(3):
            for one, of in ((plain, params), (captured, twins)):
                set_gradients(of, step)
                one.step()
        count = captured.param_groups[0]["step"]
        assert count.dtype == torch.int32 and count.item() == 3
        for a, b in zip(params, twins, strict=True):
            assert_identical(a.detach(), b.detach())


def scaled_backward(params: list[torch.nn.Parameter], scaler: Any, bad: bool = False) -> None:
    set_gradients(params, 0)
    for param in params:
        param.grad *= scaler.get_scale()
        if bad and param.numel():
            param.grad.view(-1)[0] = float("inf")


@pytest.mark.parametrize("unscales_first", [False, True])
def test_capturable_with_a_gradient_scaler(unscales_first: bool) -> None:
    params, twins = parameters(), parameters()
    plain = FusedAdam(twins, **OPTIONS)
    set_gradients(twins, 0)
    plain.step()
    optimizer = FusedAdam(params, capturable=True, **OPTIONS)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    scaler.scale(torch.ones(1))  # makes its tensors
    former = [param.detach().clone() for param in params]
    for bad in (True, False):
        scaled_backward(params, scaler, bad)
        if unscales_first:
            scaler.unscale_(optimizer)
        with pytest.warns(FutureWarning, match="GradScaler"):
            scaler.step(optimizer)
        scaler.update()
        if bad:  # nothing is written, and the step does not count
            assert optimizer.param_groups[0]["step"].item() == 0
            for param, before in zip(params, former, strict=True):
                assert_identical(param.detach(), before)
    assert scaler.get_scale() == 32.0 and optimizer.param_groups[0]["step"].item() == 1
    for a, b in zip(params, twins, strict=True):
        assert_identical(a.detach(), b.detach())


def test_the_scaler_is_ignored_without_capturable() -> None:
    params = parameters()
    set_gradients(params, 0)
    optimizer = FusedAdam(params, **OPTIONS)
    optimizer.step(grad_scaler=object())
    assert optimizer.param_groups[0]["step"] == 1


def test_a_scheduler_sets_the_learning_rate_of_a_captured_step() -> None:
    params = parameters()
    optimizer = FusedAdam(params, capturable=True, **OPTIONS)
    lr = optimizer.param_groups[0]["lr"]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.5)
    set_gradients(params, 0)
    optimizer.step()
    scheduler.step()
    assert lr.item() == torch.tensor(0.025).item() and optimizer.param_groups[0]["lr"] is lr
    optimizer.param_groups[0]["lr"] = 0.125  # as some write it
    optimizer.step()
    assert optimizer.param_groups[0]["lr"].item() == 0.125


# ---- refusals

BAD = [
    ({"amsgrad": True}, RuntimeError, "FusedAdam: amsgrad is True"),
    (
        {"master_weight_dtype": torch.bfloat16},
        RuntimeError,
        "master_weight_dtype is torch.bfloat16",
    ),
    ({"exp_avg_dtype": torch.float64}, RuntimeError, "exp_avg_dtype is torch.float64"),
    ({"exp_avg_sq_dtype": torch.int8}, RuntimeError, "exp_avg_sq_dtype is torch.int8"),
    (
        {
            "store_param_remainders": True,
            "master_weights": True,
            "master_weight_dtype": torch.float16,
        },
        RuntimeError,
        "FP32 master weights are required",
    ),
    ({"capturable": True, "exp_avg_dtype": torch.bfloat16}, RuntimeError, "both FP32 or both BF16"),
    (
        {
            "capturable": True,
            "exp_avg_dtype": torch.float16,
            "exp_avg_sq_dtype": torch.float16,
        },
        RuntimeError,
        "both FP32 or both BF16",
    ),
    (
        {"capturable": True, "master_weight_dtype": torch.float16},
        RuntimeError,
        "FP32 masters without remainders",
    ),
    (
        {"capturable": True, "master_weights": True, "store_param_remainders": True},
        RuntimeError,
        "FP32 masters without remainders",
    ),
    ({"lr": "x"}, TypeError, "lr is 'x'"),
    ({"betas": 0.9}, TypeError, "betas is 0.9; it must be two numbers"),
    ({"betas": (1.0, 0.9)}, ValueError, r"betas\[0\] is 1.0"),
    ({"betas": (0.9, -0.1)}, ValueError, r"betas\[1\] is -0.1"),
    ({"eps": -1.0}, ValueError, "eps is -1.0"),
    ({"weight_decay": float("nan")}, ValueError, "weight_decay is nan"),
    ({"adam_w_mode": "x"}, TypeError, "adam_w_mode is 'x'"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_refused_options(options: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        FusedAdam(parameters(), **options)


def test_remainders_without_masters_are_an_idle_wish() -> None:
    """Megatron asks for them also where it keeps the masters itself."""
    params = parameters(torch.bfloat16)
    with pytest.warns(UserWarning, match="store_param_remainders has no effect"):
        optimizer = FusedAdam(params, store_param_remainders=True)
    set_gradients(params, 0)
    optimizer.step()
    assert set(optimizer.state[params[0]]) == {"exp_avg", "exp_avg_sq"}


def test_sparse_gradients_and_mixed_halves_are_refused() -> None:
    param = torch.nn.Parameter(torch.ones(3, 2))
    param.grad = torch.ones(3, 2).to_sparse()
    optimizer = FusedAdam([param])
    with pytest.raises(
        RuntimeError, match=r"FusedAdam\.step: grad of parameter 0 of group 0 has layout torch"
    ):
        optimizer.step()
    assert not optimizer.state and "step" not in optimizer.param_groups[0]
    mixed = [torch.nn.Parameter(torch.ones(2).to(d)) for d in (torch.float16, torch.bfloat16)]
    set_gradients(mixed, 0)
    with pytest.raises(RuntimeError, match="group 0 has FP16 and BF16 parameters"):
        FusedAdam(mixed).step()
    assert all((param == 1).all() for param in mixed)


def test_parameters_of_other_dtypes_are_refused() -> None:
    param = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    param.grad = torch.ones_like(param)
    optimizer = FusedAdam([param])
    with pytest.raises(TypeError, match=r"FusedAdam\.step: parameter 0 of group 0 has dtype torch"):
        optimizer.step()
    assert (param == 1).all() and not optimizer.state and "step" not in optimizer.param_groups[0]


def test_set_grad_none_is_deprecated_but_obeyed() -> None:
    params = parameters()
    with pytest.warns(DeprecationWarning, match="set_grad_none is deprecated"):
        optimizer = FusedAdam(params, set_grad_none=True)
    with pytest.raises(ValueError, match="set_to_none is False"):
        optimizer.zero_grad(set_to_none=False)
