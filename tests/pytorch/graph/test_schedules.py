# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pipelines: several micro-batches under way, each with graphs of its own that share memory."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import transformer_engine.pytorch as te
from helpers.graph_device import GraphsOnCpu
from helpers.recipes import RECIPES
from transformer_engine.pytorch.graph import make_graphed_callables
from transformer_engine.pytorch.graph.device import use_device
from transformer_engine.pytorch.graph.schedule import (
    Kind,
    Pass,
    ordered_schedule,
    plain_schedule,
)

ROWS, HIDDEN = 32, 64
OPTIONS: dict[str, Any] = {"params_dtype": torch.bfloat16, "device": "cpu"}
# Interleaved 1F1B: two chunks on this rank, four micro-batches.
INTERLEAVED = [1, 1, 2, 2, 1, -2, 1, -2, 2, -1, 2, -1, -2, -2, -1, -1]
ONE_AHEAD = [1, 1, -1, 1, -1, -1]


def test_a_plain_schedule_runs_backwards_in_reverse():
    schedule = plain_schedule(2)
    kinds = [(item.kind, item.slot) for item in schedule.passes]
    assert kinds == [
        *((Kind.FORWARD, 0), (Kind.FORWARD, 1)),
        *((Kind.BACKWARD, 1), (Kind.WGRAD, 1), (Kind.BACKWARD, 0), (Kind.WGRAD, 0)),
    ]
    assert schedule.modules == [0, 1]


def test_slots_are_numbered_by_chunk_micro_batch_and_layer():
    schedule = ordered_schedule("f", [1, 2, 2, -2, 1, -1, -2, -1], [1, 2], 3)
    forwards = [item.slot for item in schedule.passes if item.kind is Kind.FORWARD]
    backwards = [item.slot for item in schedule.passes if item.kind is Kind.BACKWARD]
    assert forwards == [0, 2, 3, 4, 5, 1]
    assert backwards == [3, 2, 0, 5, 4, 1]
    assert schedule.modules == [0, 0, 1, 2, 1, 2]
    assert schedule.following == {2: 3, 4: 5}


def test_delayed_gradients_run_where_the_order_says():
    schedule = ordered_schedule("f", [1, 2, -2, -1, -2.5, -1.5], None, 2)
    assert schedule.passes[2:] == [
        *(Pass(Kind.BACKWARD, 1), Pass(Kind.BACKWARD, 0)),
        *(Pass(Kind.WGRAD, 1), Pass(Kind.WGRAD, 0)),
    ]


def test_without_a_word_they_follow_their_backward():
    schedule = ordered_schedule("f", [1, 2, -2, -1, -1.5], None, 2)
    assert schedule.passes[2:] == [
        *(Pass(Kind.BACKWARD, 1), Pass(Kind.WGRAD, 1)),
        *(Pass(Kind.BACKWARD, 0), Pass(Kind.WGRAD, 0)),
    ]


BAD_ORDERS = {
    "zero": ([1, 0, -1], ValueError, "has the entry 0;"),
    "text": (["1"], TypeError, "has the entry '1';"),
    "bool": ([True], TypeError, "has the entry True;"),
    "positive fraction": ([1, 1.5, -1], ValueError, r"has the entry 1.5;"),
    "other fraction": ([1, -1, -1.25], ValueError, r"has the entry -1.25;"),
    "empty": ([], ValueError, "has 0 chunks"),
    "gap": ([2, -2], ValueError, r"has \[0, 1\] forwards"),
    "uneven": ([1, 1, 2, -2, -1, -1], ValueError, r"has \[2, 1\] forwards"),
    "backward first": ([-1, 1], ValueError, "asks for backward of chunk 1 before the forward"),
    "no backward": ([1, 1, -1], ValueError, "ends with 1 micro-batches of chunk 1 without their b"),
    "gradients first": (
        [1, -1.5, -1],
        ValueError,
        "asks for weight gradients of chunk 1 before the b",
    ),
    "no gradients": (
        [1, 1, -1, -1.5, -1],
        ValueError,
        "ends with 1 micro-batches of chunk 1 without their weight gradients",
    ),
}


@pytest.mark.parametrize("name", BAD_ORDERS)
def test_an_order_that_makes_no_sense_is_refused(name):
    order, error, message = BAD_ORDERS[name]
    with pytest.raises(error, match=f"f: _order {message}"):
        ordered_schedule("f", order, None, 2)


@pytest.mark.parametrize("layers", [[1], [1, 1, 1], [2, 2], [0, 3], [1.5, 1.5], [True, 2], 1])
def test_layers_have_to_fit_chunks_and_modules(layers):
    with pytest.raises(ValueError, match=r"f: _num_layers_per_chunk is .* 2 positive numbers"):
        ordered_schedule("f", [1, 2, -2, -1], layers, 3)


def test_modules_that_do_not_divide_need_the_numbers():
    with pytest.raises(ValueError, match="f: _order has 2 chunks; 3 modules"):
        ordered_schedule("f", [1, 2, -2, -1], None, 3)


# ---- whole pipelines ---------------------------------------------------------------------------


class Block(torch.nn.Module):
    """Two modules with an activation between them, and dropout."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.first = te.LayerNormLinear(HIDDEN, HIDDEN, **OPTIONS, **options)
        self.second = te.Linear(HIDDEN, HIDDEN, **OPTIONS, **options)

    def forward(self, inp: Tensor) -> Tensor:
        hidden = torch.nn.functional.gelu(self.first(inp))
        return inp + torch.nn.functional.dropout(self.second(hidden), 0.25)


def make_input() -> Tensor:
    return torch.randn(ROWS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)


class Pipeline:
    """Runs the passes of an order as the schedule of a pipeline does.

    Parameters
    ----------
    forwards : list
        One callable for each slot.
    layers : list of int
        Of each chunk.
    """

    def __init__(self, order: list[float], forwards: list[Any], layers: list[int], recipe: Any):
        self.order, self.forwards, self.layers, self.recipe = order, forwards, layers, recipe
        self.micro_batches = order.count(1)
        self.results: list[Tensor] = []

    def slots(self, chunk: int, micro_batch: int) -> list[int]:
        first = self.micro_batches * sum(self.layers[:chunk]) + micro_batch * self.layers[chunk]
        return list(range(first, first + self.layers[chunk]))

    def run(self, on_wgrad: Callable[[Any], None] | None = None, **keywords: Any) -> list[Tensor]:
        """Outputs and input gradients, in the order of their passes."""
        torch.manual_seed(5)
        results: list[Tensor] = []
        under_way: dict[int, list[tuple[Tensor, Tensor]]] = {}
        counts: dict[tuple[int, bool], int] = {}
        for entry in self.order:
            chunk = abs(math.ceil(entry)) - 1
            is_whole = entry == int(entry)
            key = (chunk, entry > 0) if is_whole else (-chunk - 1, False)
            micro_batch = counts[key] = counts.get(key, -1) + 1
            slots = self.slots(chunk, micro_batch)
            if not is_whole:
                for slot in reversed(slots):
                    self.forwards[slot].backward_dw()
                    on_wgrad(slot)
            elif entry > 0:
                inp = make_input()
                output = inp * 1.0
                is_first = {"is_first_microbatch": micro_batch == 0} if keywords else {}
                with te.autocast(enabled=self.recipe is not None, recipe=self.recipe):
                    for slot in slots:
                        output = self.forwards[slot](output, **is_first)
                under_way.setdefault(chunk, []).append((inp, output))
                results.append(output.detach().clone())
            else:
                inp, output = under_way[chunk].pop(0)
                output.backward(torch.full_like(output, 0.25))
                results.append(inp.grad)
        return results


def sample(count: int) -> tuple[Any, ...]:
    return tuple((make_input(),) for _ in range(count))


def compare(order, layers, recipe, **options) -> GraphsOnCpu:
    """Train three steps with graphs and without; everything must be equal."""
    eager = [Block() for _ in range(sum(layers))]
    modules = tuple(copy.deepcopy(eager))
    device = GraphsOnCpu(modules)
    slots = order.count(1) * len(modules)
    with use_device(device):
        forwards = make_graphed_callables(
            modules,
            sample(slots),
            num_warmup_iters=1,
            enabled=recipe is not None,
            recipe=recipe,
            _order=order,
            _num_layers_per_chunk=layers,
            **options,
        )
    assert len(forwards) == slots
    schedule = ordered_schedule("f", order, layers, len(modules))
    ours = Pipeline(order, list(forwards), layers, recipe)
    theirs = Pipeline(order, [eager[module] for module in schedule.modules], layers, recipe)
    for _ in range(3):
        assert all(map(torch.equal, ours.run(), theirs.run()))
        for left, right in zip(modules, eager, strict=True):
            for a, b in zip(left.parameters(), right.parameters(), strict=True):
                assert torch.equal(a.grad, b.grad)
                with torch.no_grad():
                    for parameter in (a, b):
                        parameter -= 0.1 * parameter.grad
                        parameter.grad = None
    return device


@pytest.mark.parametrize("recipe", [None, "delayed", "current"])
@pytest.mark.parametrize("reuses", [False, True])
def test_an_interleaved_pipeline_trains_as_without_graphs(recipe, reuses):
    chosen = None if recipe is None else RECIPES[recipe]
    device = compare(INTERLEAVED, [2, 1], chosen, _reuse_graph_input_output_buffers=reuses)
    assert bool(device.released) == reuses
    assert len({graph.pool for graph in device.graphs}) == 1


def test_parameter_gradients_that_are_not_cloned_keep_their_memory():
    device = compare(
        ONE_AHEAD,
        [2],
        None,
        _reuse_graph_input_output_buffers=True,
        clone_param_grads_on_return=True,
    )
    cloned = len(device.released)
    eager = [Block(), Block()]
    device = GraphsOnCpu(eager)
    with use_device(device):
        make_graphed_callables(
            tuple(eager),
            sample(6),
            _order=ONE_AHEAD,
            _reuse_graph_input_output_buffers=True,
            clone_param_grads_on_return=False,
        )
    assert 0 < len(device.released) < cloned


def test_slots_take_over_the_inputs_of_those_that_have_finished():
    module = Block()
    device = GraphsOnCpu([module])
    with use_device(device):
        forwards = make_graphed_callables(
            (module,), sample(3), _order=ONE_AHEAD, _reuse_graph_input_output_buffers=True
        )
    memory = [forward._slot.inputs[0].data_ptr() for forward in forwards]
    assert memory[2] == memory[0] != memory[1]
    gradients = [forward._slot.grad_outputs[0].data_ptr() for forward in forwards]
    assert len(set(gradients)) == 1


def test_another_order_than_the_captures_reads_memory_of_others():
    """The emulated graphs show it: a graph overwrites what was released before its capture."""
    module = Block()
    with use_device(GraphsOnCpu([module])):
        forwards = make_graphed_callables(
            (module,), sample(2), _order=[1, -1, 1, -1], _reuse_graph_input_output_buffers=True
        )
    first = forwards[0](make_input())
    assert not first.isnan().any()
    forwards[1](make_input())
    assert first.isnan().all()


@pytest.mark.parametrize("reuses", [False, True])
@pytest.mark.parametrize(
    "order", [[1, 2, -2, -2.5, -1, -1.5], [1, 2, 1, -2, -1, -2.5, 2, -2, -1.5, -1, -2.5, -1.5]]
)
def test_delayed_weight_gradients_run_at_their_place(order, reuses):
    eager = [Block(delay_wgrad_compute=True) for _ in range(2)]
    modules = tuple(copy.deepcopy(eager))
    with use_device(GraphsOnCpu(modules)):
        forwards = make_graphed_callables(
            modules,
            sample(2 * order.count(1)),
            _order=order,
            _reuse_graph_input_output_buffers=reuses,
        )
    owners = ordered_schedule("f", order, None, 2).modules
    gradients: dict[bool, list[Tensor]] = {}

    class Eager:
        """A block with its parts' delayed gradients."""

        def __init__(self, block: Block) -> None:
            self.block = block

        def __call__(self, inp: Tensor) -> Tensor:
            return self.block(inp)

        def backward_dw(self) -> None:
            self.block.first.backward_dw()
            self.block.second.backward_dw()

    for is_ours, calls, blocks in (
        (True, list(forwards), modules),
        (False, [Eager(eager[i]) for i in owners], eager),
    ):
        found = gradients.setdefault(is_ours, [])

        def note(slot: int, blocks: Any = blocks, found: Any = found) -> None:
            found += [blocks[owners[slot]].first.weight.grad.clone()]
            found += [blocks[owners[slot]].second.weight.grad.clone()]

        found += Pipeline(order, calls, [1, 1], None).run(on_wgrad=note)
    assert all(map(torch.equal, gradients[True], gradients[False]))


@pytest.mark.parametrize("recipe", ["delayed", "current", "mxfp8"])
def test_all_micro_batches_share_one_quantized_weight(recipe):
    module = te.Linear(HIDDEN, HIDDEN, **OPTIONS)
    eager = copy.deepcopy(module)
    with use_device(GraphsOnCpu([module])):
        forwards = make_graphed_callables(
            (module,),
            sample(3),
            enabled=True,
            recipe=RECIPES[recipe],
            cache_quantized_params=True,
            _order=ONE_AHEAD,
        )
    kept = {id(forward._slot.shared) for forward in forwards}
    assert len(kept) == 1
    ours = Pipeline(ONE_AHEAD, list(forwards), [1], RECIPES[recipe])
    theirs = Pipeline(ONE_AHEAD, [eager] * 3, [1], RECIPES[recipe])
    for _ in range(2):
        assert all(map(torch.equal, ours.run(first=True), theirs.run(first=True)))
        assert torch.equal(module.weight.grad, eager.weight.grad)
        with torch.no_grad():
            module.weight.mul_(-1.5)
            eager.weight.mul_(-1.5)
