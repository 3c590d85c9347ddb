# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""How parameters are made: names, order, slices, the meta device, initial values and trackers."""

from contextlib import contextmanager

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.modules import FACTORIES, FFN, IN, KINDS, LINEAR_KINDS, OUT, make_input, run
from helpers.tolerances import assert_identical

KIND = pytest.mark.parametrize("kind", KINDS)
LINEAR_KIND = pytest.mark.parametrize("kind", LINEAR_KINDS)
SHAPES = {
    "Linear": {"weight": (OUT, IN), "bias": (OUT,)},
    "LayerNormLinear": {
        "layer_norm_weight": (IN,),
        "layer_norm_bias": (IN,),
        "weight": (OUT, IN),
        "bias": (OUT,),
    },
    "LayerNormMLP": {
        "layer_norm_weight": (IN,),
        "layer_norm_bias": (IN,),
        "fc1_weight": (FFN, IN),
        "fc1_bias": (FFN,),
        "fc2_weight": (IN, FFN),
        "fc2_bias": (IN,),
    },
    "LayerNorm": {"weight": (IN,), "bias": (IN,)},
    "RMSNorm": {"weight": (IN,)},
}


def shapes_of(module):
    return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}


@KIND
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_names_shapes_order_and_dtype(kind, dtype):
    module = FACTORIES[kind](device=torch.get_default_device(), params_dtype=dtype)
    assert list(shapes_of(module).items()) == list(SHAPES[kind].items())
    assert all(parameter.dtype == dtype for parameter in module.parameters())
    extra = ["_extra_state"] if kind in LINEAR_KINDS else []
    assert list(module.state_dict()) == [*SHAPES[kind], *extra]
    assert all(parameter.is_leaf and parameter.requires_grad for parameter in module.parameters())


@LINEAR_KIND
def test_without_biases(kind):
    module = FACTORIES[kind](device=torch.get_default_device(), bias=False)
    expected = [n for n in SHAPES[kind] if not n.endswith("bias") or n == "layer_norm_bias"]
    assert list(shapes_of(module)) == expected


@pytest.mark.parametrize("kind", ["Linear", "LayerNormLinear"])
@pytest.mark.parametrize("split", [["q", "k_"], {"q": 30, "k": 10}], ids=["list", "dict"])
def test_slices_in_state_dicts(kind, split):
    module = FACTORIES[kind](device=torch.get_default_device(), parameters_split=split)
    names = [name for name in module.state_dict() if not name.startswith(("layer_norm", "_extra"))]
    assert names == ["q_weight", "q_bias", "k_weight", "k_bias"]
    twin = FACTORIES[kind](device=torch.get_default_device(), parameters_split=split)
    twin.load_state_dict(module.state_dict())
    assert_identical(twin(make_input()).detach(), module(make_input()).detach())
    whole = FACTORIES[kind](device=torch.get_default_device())
    with torch.no_grad():
        for name in ("weight", "bias"):
            parts = [module.get_parameter(f"{part}_{name}") for part in ("q", "k")]
            whole.get_parameter(name).copy_(torch.cat(parts))
    assert_identical(whole(make_input()).detach(), module(make_input()).detach())


@KIND
def test_slices_and_parameters_keep_working_after_a_cast_and_back(kind):
    options = {"parameters_split": ["q", "k"]} if kind in ("Linear", "LayerNormLinear") else {}
    module = FACTORIES[kind](device=torch.get_default_device(), **options)
    expected = run(module, make_input())["output"].bfloat16()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.bfloat16())  # so that the way back loses nothing
    before = run(module, make_input())["output"]
    module.to(torch.bfloat16)
    assert run(module, make_input(dtype=torch.bfloat16))["output"].dtype == expected.dtype
    module.to(torch.float32)
    assert_identical(run(module, make_input())["output"], before)


# ---- initial values ------------------------------------------------------------------------------


@KIND
@pytest.mark.parametrize("how", ["argument", "context"])
def test_on_the_meta_device_reset_parameters_gives_the_values(kind, how):
    if how == "argument":
        module = FACTORIES[kind](device="meta")
    else:
        with torch.device("meta"):
            module = FACTORIES[kind](device="cuda")
    assert all(parameter.is_meta for parameter in module.parameters())
    first = next(module.parameters())
    first.mark, first.requires_grad = "kept", False
    torch.manual_seed(4)
    module.reset_parameters(defer_init=True)
    assert first.is_meta
    module.reset_parameters()
    torch.manual_seed(4)
    expected = FACTORIES[kind](device=torch.get_default_device())
    for name, parameter in expected.named_parameters():
        assert_identical(module.get_parameter(name).detach(), parameter.detach(), name)
    first = next(module.parameters())
    assert (first.mark, first.requires_grad, first.device.type) == ("kept", False, "cpu")
    assert_identical(module(make_input()).detach(), expected(make_input()).detach())


@LINEAR_KIND
def test_default_values(kind):
    torch.manual_seed(0)
    module = FACTORIES[kind](device=torch.get_default_device())
    for name, parameter in module.named_parameters():
        if parameter.dim() == 2:
            # Of n values the sample deviation is within 5 of its own, s / sqrt(2 n).
            deviation, n = parameter.detach().double().std().item(), parameter.numel()
            assert abs(deviation - 0.023) < 5 * 0.023 / (2 * n) ** 0.5
            assert abs(parameter.detach().double().mean().item()) < 5 * 0.023 / n**0.5
        else:
            assert_identical(
                parameter.detach(), torch.full_like(parameter, float(name == "layer_norm_weight"))
            )


@LINEAR_KIND
def test_init_methods_fill_weights_in_place(kind):
    seen = []

    def init(value):
        def fill(weight):
            seen.append((tuple(weight.shape), weight.requires_grad and torch.is_grad_enabled()))
            weight.fill_(value)

        return fill

    options = {"output_layer_init_method": init(3.0)} if kind == "LayerNormMLP" else {}
    module = FACTORIES[kind](device=torch.get_default_device(), init_method=init(2.0), **options)
    weights = {name: p for name, p in module.named_parameters() if p.dim() == 2}
    assert seen == [(tuple(weight.shape), False) for weight in weights.values()]
    for name, weight in weights.items():
        value = 3.0 if name == "fc2_weight" else 2.0
        assert_identical(weight.detach(), torch.full_like(weight, value))
    module.reset_parameters()
    assert len(seen) == 2 * len(weights)


class Tracker:
    """As Megatron's: fork() is a context around one random operation."""

    def __init__(self):
        self.names = []

    @contextmanager
    def fork(self, name="default"):
        self.names.append(name)
        with torch.random.fork_rng():
            torch.manual_seed(77)
            yield


@LINEAR_KIND
def test_weights_are_drawn_under_the_tracker(kind):
    tracker = Tracker()
    state = torch.get_rng_state()
    module = FACTORIES[kind](
        device=torch.get_default_device(), get_rng_state_tracker=lambda: tracker
    )
    weights = [p for p in module.parameters() if p.dim() == 2]
    assert tracker.names == ["default"] * len(weights)
    assert_identical(torch.get_rng_state(), state)
    for weight in weights:
        torch.manual_seed(77)
        assert_identical(weight.detach(), torch.empty_like(weight).normal_(std=0.023))


def test_the_trackers_state_can_be_named():
    tracker = Tracker()
    te.Linear(
        IN,
        OUT,
        device=torch.get_default_device(),
        get_rng_state_tracker=lambda: tracker,
        rng_tracker_name="mine",
    )
    assert tracker.names == ["mine"]


def test_names_of_modules():
    assert te.Linear(IN, OUT, device=torch.get_default_device(), name="head").name == "head"
    first, second = (
        te.Linear(IN, OUT, device=torch.get_default_device()),
        te.Linear(IN, OUT, device=torch.get_default_device()),
    )
    assert first.name.startswith("Layer_")
    assert int(second.name.split("_")[1]) == int(first.name.split("_")[1]) + 1
