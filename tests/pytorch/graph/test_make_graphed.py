# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Graphed modules compute what they computed before, step after step, on graphs of the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import transformer_engine.pytorch as te
from helpers.graph_device import GraphsOnCpu
from helpers.recipes import RECIPES, STATEFUL
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling
from transformer_engine.pytorch.graph import (
    graph_pool_handle,
    is_graph_capturing,
    make_graphed_callables,
    restore_fp8_tensors,
    save_fp8_tensors,
)
from transformer_engine.pytorch.graph.device import use_device
from transformer_engine.pytorch.quantization import FP8GlobalStateManager as Manager

ROWS, HIDDEN, FFN, HEADS = 32, 64, 128, 2
OPTIONS: dict[str, Any] = {"params_dtype": torch.bfloat16, "device": "cpu"}
KINDS = {
    "Linear": lambda: te.Linear(HIDDEN, HIDDEN, **OPTIONS),
    "LayerNormLinear": lambda: te.LayerNormLinear(HIDDEN, HIDDEN, **OPTIONS),
    "LayerNormMLP": lambda: te.LayerNormMLP(HIDDEN, FFN, **OPTIONS),
    "TransformerLayer": lambda: te.TransformerLayer(HIDDEN, FFN, HEADS, **OPTIONS),
}
DELAYED = DelayedScaling(amax_history_len=4)


def make_input(*, requires_grad: bool = True) -> Tensor:
    return torch.randn(ROWS, 1, HIDDEN, dtype=torch.bfloat16).requires_grad_(requires_grad)


def graphed(modules: Any, sample_args: Any, **options: Any) -> tuple[Any, GraphsOnCpu]:
    device = GraphsOnCpu([modules] if isinstance(modules, torch.nn.Module) else modules)
    with use_device(device):
        return make_graphed_callables(modules, sample_args, **options), device


def same(left: Any, right: Any) -> bool:
    if left is None or right is None:
        return left is right
    return torch.equal(left, right)


def states_of(module: torch.nn.Module) -> list[Tensor]:
    found = []
    for part in module.modules():
        saved = part.get_fp8_meta_tensors() if hasattr(part, "get_fp8_meta_tensors") else None
        for tensors in (saved or {}).values():
            found += tensors
    return found


def assert_same_gradients(left: torch.nn.Module, right: torch.nn.Module) -> None:
    for (name, a), b in zip(left.named_parameters(), right.parameters(), strict=True):
        assert same(a.grad, b.grad), f"gradient of {name}"


def assert_same_modules(left: torch.nn.Module, right: torch.nn.Module) -> None:
    for (name, a), b in zip(left.named_parameters(), right.parameters(), strict=True):
        assert same(a, b), name
    assert_same_gradients(left, right)
    assert all(map(same, states_of(left), states_of(right)))


def train_step(module: Any, inp: Tensor, recipe: Any, seed: int, **keywords: Any) -> Tensor:
    """Forward and backward; the output."""
    torch.manual_seed(seed)
    with te.autocast(enabled=recipe is not None, recipe=recipe):
        output = module(inp, **keywords)
    output.backward(torch.full_like(output, 0.5))
    return output.detach().clone()


def update(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(parameter.grad, alpha=-0.1)
            parameter.grad = None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe", [None, *RECIPES])
def test_training_is_that_of_the_eager_module(kind, recipe):
    eager = KINDS[kind]()
    module = copy.deepcopy(eager)
    chosen = None if recipe is None else RECIPES[recipe]
    result, device = graphed(
        module, (make_input(),), enabled=recipe is not None, recipe=chosen, num_warmup_iters=2
    )
    assert result is module and not is_graph_capturing()
    assert all(p.grad is None for p in module.parameters())
    for seed in range(3):
        ours, theirs = make_input(), None
        theirs = ours.detach().clone().requires_grad_()
        # Other work before the module draws as much as the eager one does.
        assert torch.equal(
            train_step(module, ours, chosen, seed), train_step(eager, theirs, chosen, seed)
        )
        assert torch.equal(ours.grad, theirs.grad)
        assert_same_modules(module, eager)
        update(module)
        update(eager)
    assert device.log == [0, 1] * 3


@pytest.mark.parametrize(
    "recipe", [DelayedScaling(amax_history_len=4, fp8_mha=True), Float8CurrentScaling(fp8_mha=True)]
)
def test_fp8_attention_is_captured_like_the_rest(recipe):
    eager = KINDS["TransformerLayer"]()
    module = copy.deepcopy(eager)
    graphed(module, (make_input(),), enabled=True, recipe=recipe, num_warmup_iters=2)
    for seed in range(3):
        ours = make_input()
        theirs = ours.detach().clone().requires_grad_()
        assert torch.equal(
            train_step(module, ours, recipe, seed), train_step(eager, theirs, recipe, seed)
        )
        assert torch.equal(ours.grad, theirs.grad)
        assert_same_modules(module, eager)
        update(module)
        update(eager)
    attention = module.self_attention.core_attention.get_fp8_meta_tensors()
    assert all((scale != 1).any() for scale, _ in attention.values())


@pytest.mark.parametrize("recipe", STATEFUL)
def test_a_capture_leaves_scales_and_histories(recipe):
    module = KINDS["LayerNormMLP"]()
    train_step(module, make_input(), RECIPES[recipe], 0)
    update(module)
    before = [tensor.clone() for tensor in states_of(module)]
    graphed(module, (make_input(),), enabled=True, recipe=RECIPES[recipe])
    assert before and all(map(torch.equal, before, states_of(module)))


def test_a_state_from_a_checkpoint_waits_for_the_first_step():
    trained = KINDS["Linear"]()
    for seed in range(2):
        train_step(trained, make_input(), DELAYED, seed)
    module = KINDS["Linear"]()
    module.load_state_dict(trained.state_dict())
    graphed(module, (make_input(),), enabled=True, recipe=DELAYED)
    assert states_of(module) and all(map(torch.equal, states_of(module), states_of(trained)))


def test_states_are_saved_and_restored_by_name():
    modules = [KINDS["Linear"](), KINDS["LayerNormMLP"]()]
    saved = save_fp8_tensors(modules, DELAYED)
    assert saved == [None, None]
    for module in modules:
        train_step(module, make_input(), DELAYED, 0)
    after = save_fp8_tensors(modules, DELAYED)
    restore_fp8_tensors(modules, saved)
    for module in modules:
        for scale, history in zip(*[iter(states_of(module))] * 2, strict=True):
            assert torch.equal(scale, torch.ones_like(scale)) and not history.any()
    restore_fp8_tensors(modules, after)
    flat = [tensor for part in after for pair in part.values() for tensor in pair]
    assert all(map(torch.equal, flat, [t for m in modules for t in states_of(m)]))


def test_an_output_is_overwritten_and_parameter_gradients_are_not():
    module = KINDS["Linear"]()
    graphed(module, (make_input(),))
    first = module(make_input())
    first.sum().backward()
    output, grad = first.detach().clone(), module.weight.grad
    kept = grad.clone()
    module.weight.grad = None
    module(make_input()).sum().backward()
    assert not torch.equal(first, output)
    assert torch.equal(grad, kept) and not torch.equal(module.weight.grad, kept)


def test_uncloned_parameter_gradients_are_the_graphs():
    module = KINDS["Linear"]()
    graphed(module, (make_input(),), clone_param_grads_on_return=False)
    module(make_input()).sum().backward()
    grad = module.weight.grad
    kept = grad.clone()
    module.weight.grad = None
    module(make_input()).sum().backward()
    assert not torch.equal(grad, kept)


def test_gradients_of_leaves_are_their_own():
    module = KINDS["Linear"]()
    graphed(module, (make_input(),))
    first, second = make_input(), make_input()
    module(first).sum().backward()
    kept = first.grad.clone()
    module(second).mul(3).sum().backward()
    assert torch.equal(first.grad, kept) and not torch.equal(second.grad, kept)


def test_gradients_accumulate_over_micro_batches():
    eager = KINDS["LayerNormMLP"]()
    module = copy.deepcopy(eager)
    graphed(module, (make_input(),))
    for _ in range(3):
        inp = make_input()
        for one in (module, eager):
            one(inp).sum().backward()
    assert_same_modules(module, eager)


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "hybrid"])
@pytest.mark.parametrize("kind", ["Linear", "LayerNormMLP"])
def test_cached_weights_are_those_of_the_first_micro_batch(kind, recipe):
    """Weights that change in between count from the next first micro-batch."""
    eager = KINDS[kind]()
    module = copy.deepcopy(eager)
    chosen = RECIPES[recipe]
    weights = ["weight"] if kind == "Linear" else ["fc1_weight", "fc2_weight"]
    graphed(module, (make_input(),), enabled=True, recipe=chosen, cache_quantized_params=True)
    for step in range(2):
        for micro_batch in range(2):
            inp = make_input()
            ours, theirs = (
                train_step(one, inp, chosen, step, is_first_microbatch=micro_batch == 0)
                for one in (module, eager)
            )
            assert torch.equal(ours, theirs)
            assert_same_gradients(module, eager)
            if micro_batch == 0:
                with torch.no_grad():
                    for name in weights:
                        module.get_parameter(name).mul_(-2)
        with torch.no_grad():
            for name in weights:
                eager.get_parameter(name).copy_(module.get_parameter(name))


@pytest.mark.parametrize("value", [None, 1, "True"])
def test_cached_weights_need_to_know_the_first_micro_batch(value):
    module = KINDS["Linear"]()
    graphed(module, (make_input(),), enabled=True, recipe=DELAYED, cache_quantized_params=True)
    with pytest.raises(TypeError, match=r"Linear.forward: is_first_microbatch is .*True or False"):
        module(make_input(), is_first_microbatch=value)


def test_the_flag_of_another_capture_does_not_reach_graphs_without_a_cache():
    flag = torch.ones(1)
    Manager.quantization_state.skip_fp8_weight_update_tensor = flag
    eager = KINDS["Linear"]()
    module = copy.deepcopy(eager)
    graphed(module, (make_input(),), enabled=True, recipe=RECIPES["current"])
    assert Manager.get_skip_fp8_weight_update_tensor() is not None and flag.item() == 1
    inp = make_input()
    for one in (module, eager):
        with torch.no_grad():
            one.weight.mul_(3)
    with te.autocast(recipe=RECIPES["current"]):
        assert torch.equal(module(inp, is_first_microbatch=False), eager(inp))


@pytest.mark.parametrize("recipe", [None, DELAYED, RECIPES["mxfp8"]], ids=["BF16", "delayed", "mx"])
def test_main_grads_are_written_and_trainers_get_placeholders(recipe):
    modules = [te.Linear(HIDDEN, HIDDEN, fuse_wgrad_accumulation=True, **OPTIONS) for _ in "12"]
    modules[1].load_state_dict(modules[0].state_dict())
    for module in modules:
        module.weight.main_grad = torch.ones(HIDDEN, HIDDEN)
        module.weight.grad_added_to_main_grad = False
        module.weight.zero_out_wgrad = True
    graphed(modules[0], (make_input(),), enabled=recipe is not None, recipe=recipe)
    assert torch.equal(modules[0].weight.main_grad, torch.ones(HIDDEN, HIDDEN))
    assert modules[0].weight.grad_added_to_main_grad is False
    inp = make_input()
    for module in modules:
        train_step(module, inp, recipe, 0)
        assert module.weight.grad_added_to_main_grad is True
        assert not module.weight.grad.any()
    assert torch.equal(modules[0].weight.main_grad, modules[1].weight.main_grad)
    assert modules[0].weight.main_grad.ne(1).any()


def test_a_main_grad_that_backwards_overwrite_survives_the_capture():
    module = te.Linear(HIDDEN, HIDDEN, fuse_wgrad_accumulation=True, **OPTIONS)
    module.weight.main_grad = torch.ones(HIDDEN, HIDDEN)
    module.weight.overwrite_main_grad = True
    graphed(module, (make_input(),))
    assert torch.equal(module.weight.main_grad, torch.ones(HIDDEN, HIDDEN))
    for _ in range(2):
        module(torch.ones(ROWS, 1, HIDDEN, dtype=torch.bfloat16)).sum().backward()
        assert torch.equal(module.weight.main_grad, torch.full((HIDDEN, HIDDEN), float(ROWS)))


def test_without_the_attribute_a_fused_weight_has_no_gradient():
    module = te.Linear(HIDDEN, HIDDEN, fuse_wgrad_accumulation=True, **OPTIONS)
    module.weight.main_grad = torch.zeros(HIDDEN, HIDDEN)
    graphed(module, (make_input(),))
    module(make_input()).sum().backward()
    assert module.weight.grad is None and module.bias.grad is not None
    assert module.weight.main_grad.any()


class Dropping(torch.nn.Module):
    """Draws from the default generator, or from a stream of a tracker."""

    def __init__(self, tracker: te.CudaRNGStatesTracker | None = None) -> None:
        super().__init__()
        self.tracker = tracker
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, inp: Tensor) -> Tensor:
        if self.tracker is None:
            return torch.nn.functional.dropout(inp, 0.5) * self.scale
        with self.tracker.fork("stream"):
            return torch.nn.functional.dropout(inp, 0.5) * self.scale


@pytest.mark.parametrize("has_tracker", [False, True])
def test_random_streams_go_on_as_if_nothing_had_been_captured(has_tracker):
    tracker = te.CudaRNGStatesTracker() if has_tracker else None
    if tracker is not None:
        tracker.add("stream", 7)
    eager = Dropping(tracker)
    module = copy.copy(eager)
    saved = None if tracker is None else tracker.get_states()
    sample = torch.ones(64, requires_grad=True)
    torch.manual_seed(3)
    _, device = graphed(module, (sample,))
    ours = [module(torch.ones(64)).detach().clone() for _ in range(3)]
    if tracker is not None:
        assert device.graphs[0].generators == [tracker.states_["stream"]]
        tracker.set_states(saved)
    torch.manual_seed(3)
    theirs = [eager(torch.ones(64)) for _ in range(3)]
    assert all(map(torch.equal, ours, theirs)) and not torch.equal(ours[0], ours[1])


def test_a_tuple_of_modules_is_captured_in_order_and_backwards():
    eager = [KINDS["Linear"](), KINDS["LayerNormMLP"](), KINDS["Linear"]()]
    modules = tuple(copy.deepcopy(eager))
    results, device = graphed(
        modules,
        tuple((make_input(),) for _ in modules),
        enabled=(True, False, True),
        recipe=DELAYED,
    )
    assert results == modules
    assert {graph.pool for graph in device.graphs} == {("pool", 1)}
    inp, other = make_input(), None
    other = inp.detach().clone().requires_grad_()
    with te.autocast(recipe=DELAYED):
        ours = modules[2](modules[1](modules[0](inp)))
    with te.autocast(recipe=DELAYED):
        theirs = eager[0](other)
        with te.autocast(enabled=False):
            theirs = eager[1](theirs)
        theirs = eager[2](theirs)
    ours.sum().backward()
    theirs.sum().backward()
    assert torch.equal(ours, theirs) and torch.equal(inp.grad, other.grad)
    for left, right in zip(modules, eager, strict=True):
        assert_same_modules(left, right)
    assert device.log == [0, 1, 2, 3, 4, 5]
    assert not modules[1].fp8_initialized


def test_a_pool_can_be_shared():
    device = GraphsOnCpu([])
    with use_device(device):
        pool = graph_pool_handle()
        for _ in range(2):
            make_graphed_callables(KINDS["Linear"](), (make_input(),), pool=pool)
    assert {graph.pool for graph in device.graphs} == {pool}


def test_an_eager_module_in_front_owns_the_backward_update():
    eager = [KINDS["Linear"](), KINDS["Linear"]()]
    ours = [copy.deepcopy(eager[0]), copy.deepcopy(eager[1])]
    graphed(ours[1], (make_input(),), enabled=True, recipe=DELAYED)
    for seed in range(2):
        inp = make_input()
        for first, second in (ours, eager):
            torch.manual_seed(seed)
            with te.autocast(recipe=DELAYED):
                output = second(first(inp))
            output.sum().backward()
    for left, right in zip(ours, eager, strict=True):
        assert_same_modules(left, right)


def test_calibration_observes_in_replays():
    eager = KINDS["Linear"]()
    module = copy.deepcopy(eager)
    graphed(module, (make_input(),), calibrating=True, recipe=DELAYED)
    inp = make_input()
    for one in (module, eager):
        with te.autocast(enabled=False, calibrating=True, recipe=DELAYED):
            one(inp)
    assert states_of(eager) and all(map(torch.equal, states_of(module), states_of(eager)))


def test_quantized_parameters_are_replayed_from():
    with te.quantized_model_init(recipe=RECIPES["current"]):
        eager = KINDS["Linear"]()
    module = copy.deepcopy(eager)
    graphed(module, (make_input(),), enabled=True, recipe=RECIPES["current"])
    inp = make_input()
    ours, theirs = (train_step(one, inp, RECIPES["current"], 0) for one in (module, eager))
    assert torch.equal(ours, theirs) and torch.equal(module.weight.grad, eager.weight.grad)


class Recomputing(torch.nn.Module):
    """A checkpointed layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = KINDS["LayerNormMLP"]()

    def forward(self, inp: Tensor) -> Tensor:
        return te.checkpoint(self.layer, inp, use_reentrant=False)


@pytest.mark.parametrize("recipe", [None, "delayed", "block"])
def test_recomputation_inside_a_graph(recipe):
    chosen = None if recipe is None else RECIPES[recipe]
    eager = Recomputing()
    module = copy.deepcopy(eager)
    graphed(module, (make_input(),), enabled=recipe is not None, recipe=chosen)
    for seed in range(3):
        inp = make_input()
        for one in (module, eager):
            train_step(one, inp, chosen, seed)
        assert_same_modules(module, eager)


class Structured(torch.nn.Module):
    """Takes and gives more than one tensor, and something that is none."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, pair: Any, *, shift: Tensor, more: Any = None) -> Any:
        left, right = pair
        total = left * self.weight + shift
        return {"total": total, "rest": (right + 1, None, "text", more)}


def test_arguments_and_results_keep_their_structure():
    module = Structured()
    eager = copy.deepcopy(module)
    sample = ((torch.ones(4, requires_grad=True), torch.ones(4)),)
    graphed(module, sample, sample_kwargs={"shift": torch.zeros(4)})
    left = torch.randn(4, requires_grad=True)
    call = {"shift": torch.randn(4), "more": None}
    ours, theirs = (one((left, torch.randn(4).zero_()), **call) for one in (module, eager))
    assert ours["rest"][1:] == theirs["rest"][1:] == (None, "text", None)
    assert torch.equal(ours["total"], theirs["total"])
    assert ours["total"].requires_grad and not ours["rest"][0].requires_grad
    ours["total"].sum().backward()
    assert module.weight.grad is not None


BAD_CALLS = {
    "missing": (((torch.ones(4),) * 2,), {}, TypeError, "shift is missing"),
    "extra": (
        ((torch.ones(4),) * 2,),
        {"shift": torch.ones(4), "more": torch.ones(4)},
        TypeError,
        "more is of type Tensor; the capture had no such argument",
    ),
    "structure": (
        (torch.ones(4),),
        {"shift": torch.ones(4)},
        TypeError,
        "positional arguments have the structure",
    ),
    "shape": (
        ((torch.ones(4), torch.ones(1)),),
        {"shift": torch.ones(4)},
        ValueError,
        r"input 1 has shape \(1,\)",
    ),
    "dtype": (
        ((torch.ones(4), torch.ones(4).int()),),
        {"shift": torch.ones(4)},
        ValueError,
        "input 1 has shape .* dtype torch.int32",
    ),
    "number": (
        ((torch.ones(4), torch.ones(4)),),
        {"shift": 1.0},
        TypeError,
        "input 2 is 1.0; a tensor is required",
    ),
    "gradient": (
        ((torch.ones(4), torch.ones(4, requires_grad=True)),),
        {"shift": torch.ones(4)},
        ValueError,
        "input 1 requires a gradient; the sample",
    ),
    "event": (
        ((torch.ones(4),) * 2,),
        {"shift": torch.ones(4), "cuda_graph_event": "event"},
        ValueError,
        "cuda_graph_event is given without cuda_graph_stream",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_call_unlike_the_capture_is_refused(name):
    args, keywords, error, message = BAD_CALLS[name]
    module = Structured()
    sample = ((torch.ones(4, requires_grad=True), torch.ones(4)),)
    _, device = graphed(module, sample, sample_kwargs={"shift": torch.zeros(4)})
    with pytest.raises(error, match=f"Structured.forward: {message}"):
        module(*args, **keywords)
    assert device.log == []


def test_another_mode_runs_the_original_forward():
    module = KINDS["Linear"]()
    _, device = graphed(module, (make_input(),))
    module.eval()
    other_shape = torch.randn(3, HIDDEN, dtype=torch.bfloat16)
    assert module(other_shape, is_first_microbatch=None).shape == (3, HIDDEN)
    assert device.log == []
    module.train()
    module(make_input())
    assert device.log == [0]


@pytest.mark.parametrize("has_grad_mode", [True, False])
def test_without_training_only_forwards_are_captured(has_grad_mode):
    module = KINDS["Linear"]().train(not has_grad_mode)
    with torch.set_grad_enabled(has_grad_mode):
        _, device = graphed(module, (make_input(),), enabled=True, recipe=DELAYED)
    output = module(make_input())
    assert len(device.graphs) == 1 and not output.requires_grad


def test_a_module_without_gradients_has_no_backward():
    module = KINDS["Linear"]().requires_grad_(False)
    _, device = graphed(module, (make_input(requires_grad=False),))
    assert len(device.graphs) == 1
    assert not module(make_input(requires_grad=False)).requires_grad


def test_frozen_parameters_get_none():
    module = KINDS["Linear"]()
    module.weight.requires_grad_(False)
    graphed(module, (make_input(),))
    inp = make_input()
    module(inp).sum().backward()
    assert module.weight.grad is None and module.bias.grad is not None and inp.grad is not None


def test_a_forward_replayed_twice_loses_its_first_backward():
    module = KINDS["Linear"]()
    graphed(module, (make_input(),))
    first = module(make_input())
    second = module(make_input())
    with pytest.raises(RuntimeError, match=r"Linear.forward: backward of a forward .* again"):
        first.sum().backward()
    second.sum().backward()


def test_after_a_reset_nothing_runs():
    module = KINDS["Linear"]()
    _, device = graphed(
        module, (make_input(),), enabled=True, recipe=DELAYED, cache_quantized_params=True
    )
    output = module(make_input(), is_first_microbatch=True)
    module.reset()
    assert all(graph.is_reset for graph in device.graphs)
    message = r"the graph was reset; .* Capture the module again"
    with pytest.raises(RuntimeError, match=f"Linear.forward: {message}"):
        module(make_input(), is_first_microbatch=True)
    with pytest.raises(RuntimeError, match=f"Linear.forward: {message}"):
        output.sum().backward()
    with pytest.raises(RuntimeError, match=f"Linear.backward_dw: {message}"):
        module.backward_dw()


def test_a_graph_runs_on_a_stream_and_is_waited_for():
    module = KINDS["Linear"]()
    _, device = graphed(module, (make_input(),))
    module(make_input(), cuda_graph_stream="side", cuda_graph_event="event").sum().backward()
    assert device.log == [
        *(("wait for current", "side"), 0, ("current waits for", "event")),
        *(("wait for current", "side"), 1, ("current waits for", "side")),
    ]


def test_delayed_weight_gradients_have_a_graph_of_their_own():
    eager = te.LayerNormMLP(HIDDEN, FFN, delay_wgrad_compute=True, **OPTIONS)
    module = copy.deepcopy(eager)
    hooks: list[str] = []
    _, device = graphed(module, (make_input(),))
    module.register_wgrad_accumulation_and_reduce_hooks(lambda: hooks.append("called"))
    for seed in range(2):
        inp = make_input()
        for one in (module, eager):
            train_step(one, inp, None, seed)
            one.backward_dw()
        assert_same_modules(module, eager)
        module.zero_grad()
        eager.zero_grad()
    assert device.log == [0, 1, 2] * 2 and hooks == ["called"] * 2


def test_modules_without_delayed_gradients_have_nothing_to_run():
    module = KINDS["Linear"]()
    _, device = graphed(module, (make_input(),))
    module.backward_dw()
    assert device.log == []


def test_no_warm_up_is_fine():
    eager = KINDS["Linear"]()
    module = copy.deepcopy(eager)
    options = {"num_warmup_iters": 0, "cache_quantized_params": True}
    graphed(module, (make_input(),), enabled=True, recipe=DELAYED, **options)
    inp = make_input()
    for one in (module, eager):
        train_step(one, inp, DELAYED, 0, is_first_microbatch=True)
    assert_same_modules(module, eager)


def test_a_failed_capture_leaves_everything_as_it_was():
    class Failing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = KINDS["Linear"]()

        def forward(self, inp: Tensor) -> Tensor:
            self.layer(inp)
            raise ArithmeticError("stop")

    module = Failing()
    train_step(module.layer, make_input(), DELAYED, 0)
    sample = make_input()
    before, random = [t.clone() for t in states_of(module)], torch.get_rng_state()
    with pytest.raises(ArithmeticError):
        graphed(module, (sample,), enabled=True, recipe=DELAYED)
    assert all(map(torch.equal, before, states_of(module)))
    assert torch.equal(random, torch.get_rng_state()) and not is_graph_capturing()
    assert "forward" not in module.__dict__
