# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a CUDA graph cannot record: the host reads no value in any state that a step may be in.

test_slow_paths.py has plain training; here is what captures, replays and their options add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.counters import HostSynchronisation, no_host_synchronisation
from helpers.graph_device import GraphsOnCpu
from helpers.overhead import HIDDEN, MODULES, RECIPES, TOKENS, Subject, make_subject
from transformer_engine.pytorch.graph import make_graphed_callables
from transformer_engine.pytorch.graph.device import use_device
from transformer_engine.pytorch.quantization import FP8GlobalStateManager as Manager

QUANTIZED = [name for name in RECIPES if name != "BF16"]
LINEAR = ["Linear", "LayerNormLinear", "LayerNormMLP", "TransformerLayer"]


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    Manager.reset()
    yield
    Manager.reset()


def run(subject: Subject, graph: bool = False, **keywords: bool) -> None:
    enabled = subject.recipe is not None
    with te.autocast(enabled=enabled, recipe=subject.recipe, _graph=graph):
        output = subject.module(*subject.inputs, **keywords)
    torch.autograd.backward(output, subject.grad)
    subject.drop_gradients()


def assert_nothing_is_read(step: Callable[[], None]) -> None:
    step()
    with no_host_synchronisation():
        step()


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_captured_pass(kind, recipe):
    subject = make_subject(kind, recipe)
    assert_nothing_is_read(lambda: run(subject, graph=True))


@pytest.mark.parametrize("kind", LINEAR)
@pytest.mark.parametrize("recipe", QUANTIZED)
def test_a_captured_pass_with_the_flag_of_weights(kind, recipe):
    subject = make_subject(kind, recipe)
    Manager.quantization_state.skip_fp8_weight_update_tensor = torch.zeros(1)
    assert_nothing_is_read(lambda: run(subject, graph=True))


@pytest.mark.parametrize("kind", LINEAR)
@pytest.mark.parametrize("recipe", QUANTIZED)
@pytest.mark.parametrize("is_first", [True, False])
def test_cached_weights(kind, recipe, is_first):
    subject = make_subject(kind, recipe)
    assert_nothing_is_read(lambda: run(subject, is_first_microbatch=is_first))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("is_fused", [False, True])
def test_delayed_weight_gradients(recipe, is_fused):
    module = te.Linear(
        HIDDEN,
        HIDDEN,
        params_dtype=torch.bfloat16,
        device="cpu",
        delay_wgrad_compute=True,
        fuse_wgrad_accumulation=is_fused,
    )
    module.weight.main_grad = torch.zeros(HIDDEN, HIDDEN)
    subject = make_subject("Linear", recipe, module)

    def step() -> None:
        run(subject, graph=True)
        module.backward_dw()

    assert_nothing_is_read(step)


@pytest.mark.parametrize("recipe", QUANTIZED)
def test_quantized_parameters(recipe):
    with te.quantized_model_init(recipe=RECIPES[recipe]()):
        module = MODULES["Linear"]()
    subject = make_subject("Linear", recipe, module)
    assert_nothing_is_read(lambda: run(subject, graph=True))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("caches", [False, True])
def test_a_replayed_step(recipe, caches):
    """Of graphs on the CPU: the captured work, and the Python around it."""
    module = MODULES["LayerNormMLP"]()
    sample = torch.randn(TOKENS, 1, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    options = {"enabled": recipe != "BF16", "cache_quantized_params": caches}
    if recipe != "BF16":
        options["recipe"] = RECIPES[recipe]()
    with use_device(GraphsOnCpu([module])):
        make_graphed_callables(module, (sample,), **options)

    def step() -> None:
        keywords = {"is_first_microbatch": True} if caches else {}
        with te.autocast(enabled=options["enabled"], recipe=options.get("recipe")):
            output = module(sample, **keywords)
        torch.autograd.backward(output, torch.ones_like(output))

    assert_nothing_is_read(step)


def test_a_read_inside_a_replay_is_noticed():
    class Reading(torch.nn.Module):
        def forward(self, inp: torch.Tensor) -> torch.Tensor:
            return inp * float(inp.detach().sum() > 0)

    module = Reading()
    with use_device(GraphsOnCpu([module])):
        make_graphed_callables(module, (torch.ones(4, requires_grad=True),))
    with pytest.raises(HostSynchronisation), no_host_synchronisation():
        module(torch.ones(4))
