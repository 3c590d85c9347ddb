# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What modules do inside a region of a graph capture: no end of a step, and weights by a flag."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import transformer_engine.pytorch as te
from helpers.recipes import RECIPES, STATEFUL
from transformer_engine.common.recipe import DelayedScaling
from transformer_engine.pytorch import graph
from transformer_engine.pytorch.cpp_extensions import state as tex
from transformer_engine.pytorch.quantization import FP8GlobalStateManager as Manager

ROWS, HIDDEN = 32, 64
# The quantizers of these recipes write in place; a custom one makes a new tensor in every call.
IN_PLACE = [name for name in RECIPES if name != "hybrid"]


def make_linear(**options) -> te.Linear:
    return te.Linear(HIDDEN, HIDDEN, params_dtype=torch.bfloat16, device="cpu", **options)


def make_input() -> Tensor:
    return torch.randn(ROWS, HIDDEN, dtype=torch.bfloat16)


def set_flag(skip: bool) -> None:
    """The flag on the CPU, also where there is a GPU."""
    if Manager.get_skip_fp8_weight_update_tensor() is None:
        Manager.quantization_state.skip_fp8_weight_update_tensor = torch.zeros(1)
    Manager.set_skip_fp8_weight_update_tensor(skip)


def forward(module, inp: Tensor, recipe, **keywords) -> Tensor:
    with te.autocast(recipe=recipe, _graph=True):
        return module(inp, **keywords)


def native_states(module) -> list:
    return [module.fp8_meta[key].native for key in ("scaling_fwd", "scaling_bwd")]


@pytest.mark.parametrize("recipe", STATEFUL)
def test_neither_pass_ends_a_step(recipe):
    module, inp = make_linear(), make_input()
    forward(module, inp, RECIPES[recipe]).sum().backward()
    Manager.reduce_and_update_fp8_tensors(forward=True)
    Manager.reduce_and_update_fp8_tensors(forward=False)
    for state in native_states(module):
        assert state.version == 0
    # The maxima are there, for the replay to use.
    assert all(state.amax_history[0].max() > 0 for state in native_states(module))


def test_regions_opened_during_a_capture_belong_to_it():
    """Megatron-core's own graphs say so by set_capture_start alone."""
    module, inp = make_linear(), make_input()
    recipe = DelayedScaling(amax_history_len=4)
    assert not Manager.fp8_graph_capturing()
    graph.set_capture_start()
    assert Manager.fp8_graph_capturing()
    with te.autocast(recipe=recipe):
        output = module(inp)
    graph.set_capture_end()
    output.sum().backward()
    assert not Manager.fp8_graph_capturing()
    assert [state.version for state in native_states(module)] == [0, 0]
    with te.autocast(recipe=recipe):
        module(inp).sum().backward()
    assert [state.version for state in native_states(module)] == [1, 1]


def test_a_region_around_the_capture_has_its_own_owner_of_the_backward_update():
    captured, eager, inp = make_linear(), make_linear(), make_input()
    recipe = DelayedScaling(amax_history_len=4)
    with te.autocast(recipe=recipe):
        output = eager(forward(captured, inp, recipe))
    output.sum().backward()
    assert [state.version for state in native_states(eager)] == [1, 1]
    assert [state.version for state in native_states(captured)] == [0, 0]


def test_what_was_used_by_a_replay_takes_part_in_the_next_updates():
    module, inp = make_linear(), make_input()
    recipe = DelayedScaling(amax_history_len=4)
    forward(module, inp, recipe).sum().backward()
    with te.autocast(recipe=recipe):
        Manager.add_fp8_tensors_to_global_buffer(module.fp8_meta)
    assert [state.version for state in native_states(module)] == [1, 0]
    Manager.reduce_and_update_fp8_tensors(forward=False)
    assert [state.version for state in native_states(module)] == [1, 1]
    Manager.add_fp8_tensors_to_global_buffer(module.fp8_meta)  # outside a region nobody used it
    Manager.reduce_and_update_fp8_tensors(forward=True)
    assert [state.version for state in native_states(module)] == [1, 1]


def test_a_module_is_registered_again_after_a_reset():
    module = make_linear()
    forward(module, make_input(), DelayedScaling())
    Manager.reset()
    assert tex.registered_delayed_scaling(True) == []
    Manager.add_fp8_tensors_to_global_buffer(module.fp8_meta)
    Manager.add_fp8_tensors_to_global_buffer(module.fp8_meta)
    assert tex.registered_delayed_scaling(True) == native_states(module)[:1]


def test_a_module_without_states_registers_nothing():
    module = make_linear()
    with te.autocast(recipe=RECIPES["mxfp8"]):
        module(make_input())
        Manager.add_fp8_tensors_to_global_buffer(module.fp8_meta)
    assert tex.registered_delayed_scaling(True) == []


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_flag_decides_whether_weights_are_quantized_anew(recipe):
    module, inp = make_linear(), make_input()
    set_flag(False)
    first = forward(module, inp, RECIPES[recipe])
    with torch.no_grad():
        module.weight.mul_(-2)
        module.bias.zero_()
    expected = make_linear()
    expected.load_state_dict(module.state_dict())
    set_flag(True)
    with torch.no_grad():
        skipped = forward(module, inp, RECIPES[recipe])
    set_flag(False)
    renewed = forward(module, inp, RECIPES[recipe])
    with te.autocast(recipe=RECIPES[recipe]):
        eager = expected(inp)
    assert torch.equal(renewed, eager)
    if recipe in IN_PLACE:
        assert torch.equal(skipped, first)  # the bias was 0 before
    else:
        assert torch.equal(skipped, eager)


@pytest.mark.parametrize("recipe", IN_PLACE)
@pytest.mark.parametrize("is_first", [True, False, None])
def test_calls_share_one_copy_of_the_weight(recipe, is_first):
    module, inp = make_linear(), make_input()
    set_flag(False)
    for _ in range(2):
        forward(module, inp, RECIPES[recipe], is_first_microbatch=is_first)
    taken = module._step.take_captured_weights()
    assert taken and module._step.take_captured_weights() == []
    before = [tensor.clone() for tensor in taken]
    forward(module, -inp, RECIPES[recipe], is_first_microbatch=is_first)
    assert all(map(torch.equal, taken, before))
    again = module._step.take_captured_weights()
    assert {t.data_ptr() for t in again}.isdisjoint(t.data_ptr() for t in taken)


def test_without_the_flag_weights_are_quantized_in_every_call():
    module, inp = make_linear(), make_input()
    recipe = RECIPES["current"]
    forward(module, inp, recipe)
    with torch.no_grad():
        module.weight.mul_(-2)
    expected = make_linear()
    expected.load_state_dict(module.state_dict())
    with te.autocast(recipe=recipe):
        assert torch.equal(forward(module, inp, recipe), expected(inp))
    assert module._step.take_captured_weights() == []


def test_outside_a_capture_the_flag_means_nothing():
    module, inp = make_linear(), make_input()
    set_flag(True)
    with te.autocast(recipe=RECIPES["current"]):
        first = module(inp)
        with torch.no_grad():
            module.weight.mul_(-1)
        assert torch.equal(module(inp), -first)


def test_main_grad_is_added_to_as_microbatches_are_alike():
    module = make_linear(fuse_wgrad_accumulation=True)
    inp = make_input()
    module.weight.main_grad = torch.zeros(HIDDEN, HIDDEN)
    set_flag(False)
    for count in (1, 2):
        forward(module, inp, RECIPES["current"], is_first_microbatch=True).sum().backward()
        if count == 1:
            once = module.weight.main_grad.clone()
    assert torch.equal(module.weight.main_grad, 2 * once)


@pytest.mark.parametrize("shape", [(2,), ()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_the_flag_is_one_float(shape, dtype):
    flag = torch.zeros(shape, dtype=dtype)
    if flag.numel() == 1 and dtype == torch.float32:
        Manager.quantization_state.skip_fp8_weight_update_tensor = flag
        assert Manager.get_skip_fp8_weight_update_tensor().data_ptr() == flag.data_ptr()
        return
    with pytest.raises(ValueError, match=r"set_skip_weight_update: flag has shape .*float32 \[1\]"):
        Manager.quantization_state.skip_fp8_weight_update_tensor = flag


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_captured_recomputation_uses_the_scales_of_its_forward(use_reentrant):
    """Replays update scales between a forward and its backward; the forward's own are kept."""
    recipe = DelayedScaling(amax_history_len=4)
    module, inp = make_linear(), make_input().requires_grad_()
    with te.autocast(recipe=recipe, _graph=True):
        output = torch.utils.checkpoint.checkpoint(module, inp, use_reentrant=use_reentrant)
    forward_state, _ = native_states(module)
    forward_state.scale.fill_(0.3)  # as the update at the end of a replayed forward does
    output.backward(torch.ones_like(output))
    forward_state.scale.fill_(1)
    expected = inp.detach().clone().requires_grad_()
    weight_grad, module.weight.grad = module.weight.grad, None
    forward(module, expected, recipe).backward(torch.ones_like(output))
    assert torch.equal(weight_grad, module.weight.grad)


def test_the_flag_is_where_the_weight_is():
    module = make_linear()
    Manager.quantization_state.skip_fp8_weight_update_tensor = torch.zeros(1, device="meta")
    with pytest.raises(RuntimeError, match=r"Linear.forward: the flag .* is on meta .* on cpu"):
        forward(module, make_input(), RECIPES["current"])
