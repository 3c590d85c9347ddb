# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""A whole TransformerLayer with hooks, copies, frozen parts and threads."""

import copy
import gc
import pickle
import weakref
from contextlib import nullcontext

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.behaviour import RECIPES
from helpers.generators import random_tensor
from helpers.modules import assert_same, collect, output_gradient, randomize
from helpers.tolerances import assert_identical

pytestmark = pytest.mark.usefixtures("one_thread")

HIDDEN, FFN, HEADS = 16, 24, 2
MODES = pytest.mark.parametrize("recipe", RECIPES)


def make():
    layer = te.TransformerLayer(
        HIDDEN,
        FFN,
        HEADS,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        device=torch.get_default_device(),
    )
    randomize(layer)
    return layer


def make_x():
    return random_tensor((5, 2, HIDDEN), seed=2).requires_grad_()


def call(layer, x, recipe):
    """Inside the recipe's region; training."""
    region = nullcontext() if RECIPES[recipe] is None else te.autocast(recipe=RECIPES[recipe])
    with region:
        return layer(x)


def step(layer, recipe):
    x = make_x()
    layer.zero_grad()
    output = call(layer, x, recipe)
    output.backward(output_gradient(output))
    return collect(layer, x, output)


@MODES
def test_hooks_run_on_every_part_in_order_and_change_nothing(recipe):
    expected = step(make(), recipe)
    layer, entered, left, backward = make(), [], [], []
    names = {module: name for name, module in layer.named_modules()}
    handles = []
    for module in names:
        handles += [
            module.register_forward_pre_hook(lambda m, _args: entered.append(names[m])),
            module.register_forward_hook(lambda m, _args, _out: left.append(names[m])),
            module.register_full_backward_pre_hook(lambda m, _grads: backward.append(names[m])),
        ]
    results = step(layer, recipe)
    assert entered[0] == left[-1] == backward[0] == ""
    assert sorted(entered) == sorted(left)
    assert {"self_attention", "layernorm_mlp", "self_attention.proj"} <= set(entered)
    assert entered.index("self_attention") < entered.index("layernorm_mlp")
    assert backward.index("layernorm_mlp") < backward.index("self_attention")
    assert_same(results, expected)
    for handle in handles:
        handle.remove()
    count = len(entered)
    call(layer, make_x(), recipe)
    assert len(entered) == count


@MODES
@pytest.mark.parametrize("calls_before", [0, 2])
@pytest.mark.parametrize("how", ["deepcopy", "pickle", "state dict"])
def test_a_copy_computes_the_same_and_is_independent(recipe, calls_before, how):
    layer = make()
    for _ in range(calls_before):
        step(layer, recipe)
    if how == "deepcopy":
        other = copy.deepcopy(layer)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(layer))
    else:
        other = make()
        other.load_state_dict(layer.state_dict())
    found = step(other, recipe)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert_same(found, step(layer, recipe))


@MODES
def test_frozen_parts_change_nothing_for_the_others(recipe):
    expected = step(make(), recipe)
    layer = make()
    layer.self_attention.requires_grad_(False)
    results = step(layer, recipe)
    assert not any(name.startswith("self_attention") for name in results)
    kept = {n: v for n, v in expected.items() if not n.startswith("self_attention")}
    assert_same(results, kept)


@MODES
def test_a_part_may_be_replaced(recipe):
    layer, plain = make(), make()

    class Around(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, *args, **kwargs):
            return self.inner(*args, **kwargs)

    layer.layernorm_mlp = Around(layer.layernorm_mlp)
    assert_identical(
        call(layer, make_x(), recipe), call(plain, make_x(), recipe), "a module around a part"
    )


@MODES
@pytest.mark.parametrize("has_graph", [False, True])
def test_it_dies_with_its_last_reference(recipe, has_graph):
    gc.freeze()  # only what follows is collected
    layer = make()
    output = call(layer, make_x(), recipe)
    if not has_graph:
        output = output.detach()
    died = [weakref.ref(module) for module in layer.modules()]
    del layer
    gc.collect()
    gc.unfreeze()
    assert [reference() for reference in died] == [None] * len(died)
    if has_graph:
        output.sum().backward()


@MODES
def test_a_float64_layer_is_refused_by_name(recipe):
    layer = make().double()
    with pytest.raises((TypeError, ValueError), match=r"Double|float64"):
        call(layer, make_x().double(), recipe)
    assert_same(step(layer.float(), recipe), step(make(), recipe))


@MODES
def test_a_second_backward_needs_a_kept_graph(recipe):
    output = call(make(), make_x(), recipe)
    output.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        output.sum().backward()
