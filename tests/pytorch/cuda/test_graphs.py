# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Modules in real CUDA graphs compute what they compute without; skipped where there is no GPU.

What is independent of torch.cuda.CUDAGraph is tested on the CPU, in tests/pytorch/graph.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import transformer_engine.pytorch as te
from helpers.devices import available_devices
from transformer_engine.common.recipe import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)
from transformer_engine.pytorch.quantization import FP8GlobalStateManager as Manager

pytestmark = pytest.mark.skipif(
    torch.device("cuda") not in available_devices(),
    reason="needs a CUDA device and a build with the CUDA backend (NVTE_USE_CUDA=1)",
)
ROWS, HIDDEN, FFN, HEADS = 64, 128, 256, 4
OPTIONS: dict[str, Any] = {"params_dtype": torch.bfloat16, "device": "cuda"}
KINDS = {
    "Linear": lambda: te.Linear(HIDDEN, HIDDEN, **OPTIONS),
    "LayerNormLinear": lambda: te.LayerNormLinear(HIDDEN, HIDDEN, **OPTIONS),
    "LayerNormMLP": lambda: te.LayerNormMLP(HIDDEN, FFN, **OPTIONS),
    "TransformerLayer": lambda: te.TransformerLayer(
        HIDDEN, FFN, HEADS, hidden_dropout=0.0, attention_dropout=0.0, **OPTIONS
    ),
}
# Without random bits: captured and eager quantizations draw theirs from different generators.
RECIPES = {
    "BF16": None,
    "delayed": DelayedScaling(amax_history_len=4),
    "current": Float8CurrentScaling(),
    "block": Float8BlockScaling(),
    "mxfp8": MXFP8BlockScaling(),
    "nvfp4": NVFP4BlockScaling(disable_stochastic_rounding=True),
}


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fused attention, cuDNN's and torch's, adds gradients in an order that varies."""
    monkeypatch.setenv("NVTE_FUSED_ATTN", "0")
    Manager.reset()
    with sdpa_kernel(SDPBackend.MATH):
        yield
    Manager.reset()


def make_input() -> Tensor:
    return torch.randn(ROWS, 1, HIDDEN, dtype=torch.bfloat16, device="cuda", requires_grad=True)


def train_step(module: Any, inp: Tensor, recipe: Any, **keywords: Any) -> Tensor:
    with te.autocast(enabled=recipe is not None, recipe=recipe):
        output = module(inp, **keywords)
    output.backward(torch.full_like(output, 0.5))
    return output.detach().clone()


def update(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(parameter.grad, alpha=-0.1)
            parameter.grad = None


def assert_same_gradients(left: torch.nn.Module, right: torch.nn.Module) -> None:
    for (name, a), b in zip(left.named_parameters(), right.named_parameters(), strict=True):
        assert torch.equal(a.grad, b[1].grad), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("caches", [False, True])
def test_training_is_that_of_the_eager_module(kind, recipe, caches):
    eager = KINDS[kind]()
    module = copy.deepcopy(eager)
    chosen = RECIPES[recipe]
    caches = caches and chosen is not None
    te.make_graphed_callables(
        module,
        (make_input(),),
        enabled=chosen is not None,
        recipe=chosen,
        cache_quantized_params=caches,
    )
    for _ in range(3):
        for micro_batch in range(2):
            ours = make_input()
            theirs = ours.detach().clone().requires_grad_()
            keywords = {"is_first_microbatch": micro_batch == 0} if caches else {}
            assert torch.equal(
                train_step(module, ours, chosen, **keywords),
                train_step(eager, theirs, chosen, **keywords),
            )
            assert torch.equal(ours.grad, theirs.grad)
        assert_same_gradients(module, eager)
        update(module)
        update(eager)


def test_fused_attention_is_captured(monkeypatch):
    monkeypatch.delenv("NVTE_FUSED_ATTN")
    eager = KINDS["TransformerLayer"]()
    module = te.make_graphed_callables(copy.deepcopy(eager), (make_input(),))
    for _ in range(3):
        ours = make_input()
        theirs = ours.detach().clone().requires_grad_()
        assert torch.equal(train_step(module, ours, None), train_step(eager, theirs, None))
        # The order of the sums moves what BF16 rounds: by a step here and there.
        distance = (ours.grad - theirs.grad).float().norm()
        assert distance <= 2.0**-7 * theirs.grad.float().norm()


@pytest.mark.parametrize("reuses", [False, True])
@pytest.mark.parametrize("recipe", ["BF16", "delayed", "current"])
def test_a_pipeline_with_micro_batches_under_way(recipe, reuses):
    order = [1, 2, 1, 2, -2, -1, -2, -1]
    chosen = RECIPES[recipe]
    eager = [KINDS["LayerNormMLP"](), KINDS["Linear"]()]
    modules = tuple(copy.deepcopy(eager))
    forwards = te.make_graphed_callables(
        modules,
        tuple((make_input(),) for _ in range(4)),
        enabled=chosen is not None,
        recipe=chosen,
        _order=order,
        _reuse_graph_input_output_buffers=reuses,
    )
    slots = {(0, 0): 0, (0, 1): 1, (1, 0): 2, (1, 1): 3}
    for _ in range(2):
        inputs = [make_input() for _ in range(4)]
        results = []
        for calls in (
            {key: forwards[slot] for key, slot in slots.items()},
            {(chunk, i): eager[chunk] for chunk, i in slots},
        ):
            found = []
            under_way: dict[int, list[tuple[Tensor, Tensor]]] = {0: [], 1: []}
            started = [0, 0]
            for entry in order:
                chunk = abs(entry) - 1
                if entry > 0:
                    inp = inputs[2 * chunk + started[chunk]].detach().clone().requires_grad_()
                    with te.autocast(enabled=chosen is not None, recipe=chosen):
                        output = calls[chunk, started[chunk]](inp * 1.0)
                    started[chunk] += 1
                    under_way[chunk].append((inp, output))
                    found.append(output.detach().clone())
                else:
                    inp, output = under_way[chunk].pop(0)
                    output.backward(torch.full_like(output, 0.25))
                    found.append(inp.grad)
            results.append(found)
        assert all(map(torch.equal, *results))
        for left, right in zip(modules, eager, strict=True):
            assert_same_gradients(left, right)
            update(left)
            update(right)


def test_dropout_draws_anew_in_every_replay():
    tracker = te.CudaRNGStatesTracker()
    tracker.add("stream", 7)

    class Dropping(torch.nn.Module):
        def forward(self, inp: Tensor) -> Tensor:
            with tracker.fork("stream"):
                inner = torch.nn.functional.dropout(inp, 0.5)
            return inner + torch.nn.functional.dropout(inp, 0.5)

    module = te.make_graphed_callables(
        Dropping(), (torch.ones(1024, device="cuda", requires_grad=True),)
    )
    results = [module(torch.ones(1024, device="cuda")).detach().clone() for _ in range(3)]
    assert not torch.equal(results[0], results[1]) and not torch.equal(results[1], results[2])


def test_stochastic_rounding_draws_anew_in_every_replay():
    module = KINDS["Linear"]()
    recipe = NVFP4BlockScaling()
    te.make_graphed_callables(module, (make_input(),), enabled=True, recipe=recipe)
    inp, grad = make_input(), torch.randn(ROWS, 1, HIDDEN, dtype=torch.bfloat16, device="cuda")
    found = []
    for _ in range(2):
        with te.autocast(recipe=recipe):
            output = module(inp)
        output.backward(grad)
        found.append(module.weight.grad)
        module.weight.grad = None
    assert not torch.equal(*found)


def test_delayed_weight_gradients_and_main_grad():
    options = {"delay_wgrad_compute": True, "fuse_wgrad_accumulation": True}
    eager = te.Linear(HIDDEN, HIDDEN, **OPTIONS, **options)
    module = copy.deepcopy(eager)
    for one in (module, eager):
        one.weight.main_grad = torch.ones(HIDDEN, HIDDEN, device="cuda")
    te.make_graphed_callables(module, (make_input(),))
    inp = make_input()
    for one in (module, eager):
        train_step(one, inp, None)
        one.backward_dw()
    assert torch.equal(module.weight.main_grad, eager.weight.main_grad)
    assert torch.equal(module.bias.grad, eager.bias.grad)


def test_a_graph_on_a_stream_of_its_own():
    eager = KINDS["LayerNormMLP"]()
    module = te.make_graphed_callables(copy.deepcopy(eager), (make_input(),))
    stream = torch.cuda.Stream()
    for _ in range(3):
        inp = make_input()
        ours = module(inp, cuda_graph_stream=stream)
        ours.sum().backward()
        theirs = eager(inp)
        theirs.sum().backward()
        assert torch.equal(ours, theirs)
    assert_same_gradients(module, eager)


def test_after_a_reset_memory_is_free():
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    module = te.make_graphed_callables(
        KINDS["LayerNormMLP"](),
        (make_input(),),
        enabled=True,
        recipe=RECIPES["delayed"],
        cache_quantized_params=True,
    )
    module(make_input(), is_first_microbatch=True).sum().backward()
    module.reset()
    del module
    torch.cuda.synchronize()
    # The scales' flag and what libraries keep for each stream stay.
    assert torch.cuda.memory_allocated() <= before + (1 << 20)
