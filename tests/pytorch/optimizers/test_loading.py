# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""State dicts of the fused optimizers: hooks, refusals without a trace, other kinds, exact runs."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.generators import random_tensor
from helpers.tolerances import assert_identical, assert_within, gamma
from transformer_engine.pytorch.optimizers import FusedAdam, FusedSGD

SHAPES = ((3, 5), (), (129,))
OPTIONS: dict[str, Any] = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
KINDS: list[tuple[type, dict[str, Any]]] = [
    (FusedAdam, OPTIONS),
    (FusedSGD, {"lr": 0.1, "momentum": 0.9}),
]
REMAINDERS = {"master_weights": True, "store_param_remainders": True}


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    return [
        torch.nn.Parameter(random_tensor(shape, dtype=dtype, seed=i))
        for i, shape in enumerate(SHAPES)
    ]


def run(optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        for i, param in enumerate(p for group in optimizer.param_groups for p in group["params"]):
            param.grad = random_tensor(tuple(param.shape), seed=100 * step + i).to(param.dtype)
        optimizer.step()


def held(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def twin_of(optimizer: Any, **options: Any) -> Any:
    """One of the same class on copies of the parameters, without any state."""
    params = [torch.nn.Parameter(param.detach().clone()) for param in held(optimizer)]
    return type(optimizer)(params, **options)


def snapshot(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    state = copy.deepcopy(optimizer.state_dict())
    return {**state, "params": [param.detach().clone() for param in held(optimizer)]}


def assert_same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert_identical(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key, value in a.items():
            assert_same(value, b[key])
    elif isinstance(a, (list, tuple)):
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    else:
        assert a == b


# ---- hooks


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_hooks_before_give_what_is_loaded(kind: Any, options: dict[str, Any]) -> None:
    optimizer = kind(parameters(), **options)
    run(optimizer, range(2))
    name = "exp_avg" if kind is FusedAdam else "momentum_buffer"
    other = twin_of(optimizer, **options)

    def replace(_: Any, given: dict[str, Any]) -> dict[str, Any]:
        changed = copy.deepcopy(given)
        changed["param_groups"][0]["lr"] = 0.375
        for state in changed["state"].values():
            state[name].fill_(2.0)
        return changed

    def see(_: Any, given: dict[str, Any]) -> None:
        seen.append(given["state"][0][name].clone())

    seen: list[torch.Tensor] = []
    other.register_load_state_dict_pre_hook(replace)
    other.register_load_state_dict_pre_hook(see)
    given = copy.deepcopy(optimizer.state_dict())
    other.load_state_dict(given)
    assert other.param_groups[0]["lr"] == 0.375 and (seen[0] == 2.0).all()
    for param in held(other):
        assert (other.state[param][name] == 2.0).all()
    assert_same(given, optimizer.state_dict())  # what was given is as it was


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_hooks_after_see_the_states(kind: Any, options: dict[str, Any]) -> None:
    optimizer = kind(parameters(), **options)
    run(optimizer, range(2))
    other = twin_of(optimizer, **options)
    seen: list[dict[str, Any]] = []
    other.register_load_state_dict_post_hook(lambda one: seen.append(one.state_dict()))
    other.load_state_dict(optimizer.state_dict())
    other.load_state_dict(optimizer.state_dict())
    assert len(seen) == 2
    assert_same(seen[0], optimizer.state_dict())
    assert len(other._optimizer_load_state_dict_pre_hooks) == 0
    assert len(other._optimizer_load_state_dict_post_hooks) == 1


# ---- refusals


def without_group(given: dict[str, Any]) -> None:
    given["param_groups"].append({**given["param_groups"][0], "params": []})


def change_state(name: str, value: Any) -> Any:
    def change(given: dict[str, Any]) -> None:
        given["state"][2][name] = value

    return change


def change_group(name: str, value: Any) -> Any:
    def change(given: dict[str, Any]) -> None:
        given["param_groups"][0][name] = value

    return change


ADAM_CHANGES = [
    (
        change_state("exp_avg", torch.ones(128)),
        ValueError,
        r"exp_avg of parameter 2 of group 0 has",
    ),
    (change_state("exp_avg_sq", [1.0]), TypeError, r"exp_avg_sq of parameter 2 of group 0 is \[1"),
    (change_state("exp_avg", torch.ones(129, dtype=torch.int16)), TypeError, "has dtype torch.int"),
    (change_state("master_param", torch.ones(129).long()), TypeError, "int16 or a floating-point"),
    (change_group("lr", -1.0), ValueError, "group 0: lr is -1.0"),
    (change_group("betas", (1.5, 0.9)), ValueError, r"group 0: betas\[0\] is 1.5"),
    (change_group("step", 1.5), ValueError, "group 0: step is 1.5"),
    (change_group("step", "x"), TypeError, "group 0: step is 'x'"),
    (change_group("amsgrad", True), ValueError, "group 0: amsgrad is True"),
    (change_group("maximize", True), ValueError, "group 0: maximize is True"),
    (change_group("params", [0, 1]), ValueError, r"groups of \[2\] parameters; groups of \[3\]"),
    (without_group, ValueError, r"groups of \[3, 0\] parameters"),
]
SGD_CHANGES = [
    (change_state("momentum_buffer", torch.ones(1)), ValueError, "momentum_buffer of parameter 2"),
    (change_group("nesterov", True), ValueError, "group 0: nesterov is True with momentum 0.9 and"),
    (change_group("momentum", -1), ValueError, "group 0: momentum is -1"),
    (change_group("params", []), ValueError, r"groups of \[0\] parameters"),
]


@pytest.mark.parametrize(
    ("kind", "options", "change", "error", "message"),
    [(FusedAdam, {**OPTIONS, **REMAINDERS}, *row) for row in ADAM_CHANGES]
    + [(FusedSGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}, *row) for row in SGD_CHANGES],
)
def test_what_is_refused_changes_nothing(
    kind: Any, options: dict[str, Any], change: Any, error: type, message: str
) -> None:
    optimizer = kind(parameters(torch.bfloat16), **options)
    run(optimizer, range(2))
    other = twin_of(optimizer, **{**options, "lr": 0.25})
    run(other, range(3))
    given = copy.deepcopy(optimizer.state_dict())
    change(given)
    before, version = snapshot(other), held(other)[0]._version
    with pytest.raises(error, match=f"{kind.__name__}.load_state_dict.*{message}"):
        other.load_state_dict(given)
    assert_same(snapshot(other), before)
    assert held(other)[0]._version == version
    other.load_state_dict(optimizer.state_dict())  # and nothing stays behind
    assert_same(other.state_dict(), optimizer.state_dict())


def test_messages_have_the_names_of_parameters() -> None:
    named = [("weight", parameters()[0]), ("bias", parameters()[2])]
    optimizer = FusedAdam(named)
    run(optimizer, range(1))
    given = copy.deepcopy(optimizer.state_dict())
    given["state"][1]["exp_avg"] = torch.ones(3)
    with pytest.raises(ValueError, match=r"exp_avg of parameter 1 of group 0 \(bias\) has shape"):
        optimizer.load_state_dict(given)


# ---- other kinds


@pytest.mark.parametrize("options", [{}, {"capturable": True}, {"store_param_remainders": True}])
def test_remainders_become_the_masters_they_stand_for(options: dict[str, bool]) -> None:
    optimizer = FusedAdam(parameters(torch.bfloat16), **OPTIONS, **REMAINDERS)
    exact = twin_of(optimizer, **OPTIONS, master_weights=True)
    run(optimizer, range(3))
    run(exact, range(3))
    other = twin_of(optimizer, **OPTIONS, master_weights=True, **options)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for param, twin in zip(held(other), held(exact), strict=True):
        if "store_param_remainders" not in options:
            assert_identical(other.state[param]["master_param"], exact.state[twin]["master_param"])
    run(other, range(3, 5))
    run(exact, range(3, 5))
    for param, twin in zip(held(other), held(exact), strict=True):
        assert_identical(param.detach(), twin.detach())


def test_remainders_become_half_masters_or_none() -> None:
    optimizer = FusedAdam(parameters(torch.bfloat16), **OPTIONS, **REMAINDERS)
    exact = twin_of(optimizer, **OPTIONS, master_weights=True)
    run(optimizer, range(3))
    run(exact, range(3))
    given = copy.deepcopy(optimizer.state_dict())
    halves = {"master_weights": True, "master_weight_dtype": torch.float16}
    from_remainders, from_masters = (twin_of(optimizer, **OPTIONS, **halves) for _ in range(2))
    from_remainders.load_state_dict(given)
    from_masters.load_state_dict(copy.deepcopy(exact.state_dict()))
    assert_same(from_remainders.state_dict(), from_masters.state_dict())
    without = twin_of(optimizer, **OPTIONS)
    without.load_state_dict(given)
    assert all(set(without.state[p]) == {"exp_avg", "exp_avg_sq"} for p in held(without))


def test_remainders_of_other_parameters_are_refused() -> None:
    optimizer = FusedAdam(parameters(torch.bfloat16), **OPTIONS, **REMAINDERS)
    run(optimizer, range(1))
    other = FusedAdam(parameters(), **OPTIONS, master_weights=True)
    with pytest.raises(TypeError, match=r"master_param of parameter 0 of group 0 has dtype torch"):
        other.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("is_adamw", [False, True])
def test_state_dicts_of_torch_are_taken(is_adamw: bool) -> None:
    kind = torch.optim.AdamW if is_adamw else torch.optim.Adam
    reference = kind([torch.nn.Parameter(p.detach().double()) for p in parameters()], **OPTIONS)
    run(reference, range(3))
    params = [torch.nn.Parameter(param.detach().float()) for param in held(reference)]
    optimizer = FusedAdam(params, adam_w_mode=is_adamw)
    optimizer.load_state_dict(copy.deepcopy(reference.state_dict()))
    assert optimizer.param_groups[0]["step"] == 3 and optimizer.param_groups[0]["lr"] == 0.05
    assert set(optimizer.state[params[0]]) == {"exp_avg", "exp_avg_sq"}
    # As far as the gradients are the same: those of `run` are the FP32 numbers themselves.
    run(reference, range(3, 5))
    run(optimizer, range(3, 5))
    for param, twin in zip(params, held(reference), strict=True):
        exact = twin.detach()
        # The states and parameters are rounded once, then some twenty roundings a step.
        assert_within(param.detach(), exact, gamma(64, torch.float32) * (exact.abs() + 1.0))


def test_torch_steps_must_be_one_number() -> None:
    params = parameters()
    reference = torch.optim.AdamW(params)
    run(reference, range(2))
    params[1].grad = None
    reference.step()
    with pytest.raises(ValueError, match="group 0: its parameters have taken 2 to 3 steps"):
        FusedAdam(params).load_state_dict(reference.state_dict())


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_numbers_that_are_missing_stay(kind: Any, options: dict[str, Any]) -> None:
    optimizer = kind(parameters(), **options)
    run(optimizer, range(1))
    given = copy.deepcopy(optimizer.state_dict())
    del given["param_groups"][0]["weight_decay"]
    other = twin_of(optimizer, **{**options, "weight_decay": 0.5})
    other.load_state_dict(given)
    assert other.param_groups[0]["weight_decay"] == 0.5


# ---- runs that go on


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("master_dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float16, torch.uint8, torch.bfloat16])
def test_a_resumed_run_has_the_bits_of_the_uninterrupted_one(
    dtype: torch.dtype, master_dtype: torch.dtype, seed: int
) -> None:
    options = {"exp_avg_dtype": dtype, "exp_avg_sq_dtype": dtype, "master_weights": True}
    options |= {**OPTIONS, "master_weight_dtype": master_dtype}
    shapes = ((64, 33), (7,), (4, 2, 3))
    params = [torch.nn.Parameter(random_tensor(s, seed=i + seed)) for i, s in enumerate(shapes)]
    params[2].data = params[2].data.transpose(0, 1)
    optimizer = FusedAdam(params, **options)
    run(optimizer, range(10 * seed, 10 * seed + 3))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = twin_of(optimizer, **options)
    other.load_state_dict(torch.load(file, weights_only=True))
    for param, twin in zip(params, held(other), strict=True):
        for name, stored in optimizer.state[param].items():
            assert torch.equal(other.state[twin][name], stored)
    for one in (optimizer, other):
        run(one, range(10 * seed + 3, 10 * seed + 6))
    assert_same(snapshot(other), snapshot(optimizer))


def test_scales_are_those_of_the_values_they_come_with() -> None:
    """Without them, or with values that were changed, scales are derived as for any values."""
    options = {**OPTIONS, "exp_avg_dtype": torch.uint8}
    optimizer = FusedAdam(parameters(), **options)
    run(optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    assert set(saved["scales"]) == {0, 1, 2} and set(saved["scales"][0]) == {"exp_avg"}
    run(optimizer, range(2, 3))
    for change in ("absent", "changed", "nonsense"):
        given = copy.deepcopy(saved)
        if change == "absent":
            del given["scales"]
        elif change == "changed":
            given["state"][0]["exp_avg"] *= 3.7
        else:
            given["scales"] = {0: {"exp_avg": torch.zeros(1)}, 1: {"exp_avg": "x"}, 2: {}}
        other, expected = (twin_of(optimizer, **options) for _ in range(2))
        other.load_state_dict(given)
        for i, (param, twin) in enumerate(zip(held(other), held(expected), strict=True)):
            if change == "changed" and i > 0:
                continue
            expected.set_scaled_state(twin, "exp_avg", given["state"][i]["exp_avg"])
            assert_identical(
                other.get_unscaled_state(param, "exp_avg"),
                expected.get_unscaled_state(twin, "exp_avg"),
            )


def test_momenta_of_quantized_parameters_stay_fp32() -> None:
    def made() -> Any:
        torch.manual_seed(0)
        with te.quantized_model_init(recipe=te.get_default_recipe()):
            return te.Linear(32, 32, bias=False, params_dtype=torch.bfloat16)

    layer, again = made(), made()
    optimizer, other = (FusedSGD(one.parameters(), **KINDS[1][1]) for one in (layer, again))
    run(optimizer, range(2))
    again.load_state_dict(layer.state_dict())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert_same(other.state_dict(), optimizer.state_dict())
    assert other.state[again.weight]["momentum_buffer"].dtype == torch.float32


# ---- numbers of groups


@pytest.mark.parametrize(
    ("kind", "options", "group", "error", "message"),
    [
        (FusedAdam, {}, {"betas": (1.5, 0.9)}, ValueError, r"betas\[0\] is 1.5"),
        (FusedAdam, {}, {"lr": -1.0}, ValueError, "lr is -1.0"),
        (FusedAdam, {}, {"lr": torch.tensor(-1.0)}, ValueError, "lr is -1.0"),
        (FusedAdam, {}, {"lr": torch.ones(2)}, ValueError, r"lr has shape \(2,\)"),
        (FusedAdam, {}, {"weight_decay": -0.5}, ValueError, "weight_decay is -0.5"),
        (FusedAdam, {}, {"eps": "x"}, TypeError, "eps is 'x'"),
        (FusedAdam, {}, {"bias_correction": "x"}, TypeError, "bias_correction is 'x'"),
        (FusedSGD, {"lr": 0.1}, {"lr": -1.0}, ValueError, "lr is -1.0"),
        (FusedSGD, {"lr": 0.1}, {"nesterov": True}, ValueError, "nesterov is True with momentum 0"),
        (FusedSGD, {"lr": 0.1}, {"momentum": float("nan")}, ValueError, "momentum is nan"),
    ],
)
def test_refused_groups(
    kind: Any, options: dict[str, Any], group: dict[str, Any], error: type, message: str
) -> None:
    first, second, _ = parameters()
    with pytest.raises(error, match=f"{kind.__name__}: {message}"):
        kind([first], **{**options, **group})
    with pytest.raises(error, match=f"{kind.__name__}: group 1: {message}"):
        kind([{"params": [first]}, {"params": [second], **group}], **options)
    optimizer = kind([first], **options)
    with pytest.raises(error, match=f"{kind.__name__}: group 1: {message}"):
        optimizer.add_param_group({"params": [second], **group})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [second]})
