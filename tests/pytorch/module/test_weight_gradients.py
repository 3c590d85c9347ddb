# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where weight gradients go: main_grad, later by backward_dw, or both."""

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.modules import IN, LINEAR_KINDS, OUT, make, make_input, output_gradient, run
from helpers.tolerances import assert_identical, assert_within
from transformer_engine.common.recipe import Float8CurrentScaling
from transformer_engine.pytorch.module.base import get_dummy_wgrad

KINDS = pytest.mark.parametrize("kind", LINEAR_KINDS)
RECIPES = pytest.mark.parametrize("recipe", [None, Float8CurrentScaling()], ids=["hp", "current"])
MAIN_DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def weights_of(module):
    return {name: p for name, p in module.named_parameters() if p.dim() == 2}


def backward(module, seed=1, recipe=None, **keywords):
    """One forward and backward; gradients add up."""
    x = make_input(seed=seed)
    with te.autocast(enabled=recipe is not None, recipe=recipe):
        y = module(x, **keywords)
    y.backward(output_gradient(y))
    return x.grad


def plain_gradients(kind, seed, recipe=None, **options):
    """The weight gradients of one backward, without any of the options."""
    module = make(kind, **options)
    backward(module, seed, recipe)
    return {name: weight.grad for name, weight in weights_of(module).items()}


def with_main_grads(module, dtype, value=0.0):
    for weight in weights_of(module).values():
        weight.main_grad = torch.full(weight.shape, value, dtype=dtype)
    return module


def assert_is_sum(main_grad, addends):
    """The sum, with one rounding to its dtype per addend and the GEMM's own in FP32."""
    total = sum(addend.double() for addend in addends)
    magnitude = sum(addend.double().abs() for addend in addends)
    eps = torch.finfo(main_grad.dtype).eps
    # One rounding of each partial sum, and the GEMM's own FP32 rounding of each addend.
    fp32 = torch.finfo(torch.float32).eps
    error = magnitude * (len(addends) * eps / 2 + (OUT + 2 * IN) * fp32)
    assert_within(main_grad.double(), total, error)


@KINDS
@RECIPES
@MAIN_DTYPES
def test_main_grad_gathers_micro_batches(kind, recipe, dtype):
    module = with_main_grads(make(kind, fuse_wgrad_accumulation=True), dtype, value=0.5)
    expected = [plain_gradients(kind, seed, recipe) for seed in (1, 2, 3)]
    buffers = {name: weight.main_grad for name, weight in weights_of(module).items()}
    for seed in (1, 2, 3):
        backward(module, seed, recipe)
    for name, weight in weights_of(module).items():
        assert weight.grad is None
        assert weight.main_grad is buffers[name]
        start = torch.full(weight.shape, 0.5)
        assert_is_sum(weight.main_grad, [start, *(gradients[name] for gradients in expected)])


@KINDS
@RECIPES
@pytest.mark.parametrize("by", ["is_first_microbatch", "overwrite_main_grad"])
def test_main_grad_is_overwritten_on_demand(kind, recipe, by):
    module = with_main_grads(make(kind, fuse_wgrad_accumulation=True), torch.float32, torch.nan)
    if by == "overwrite_main_grad":
        for weight in weights_of(module).values():
            weight.overwrite_main_grad = True
        backward(module, 2, recipe)
        backward(module, 1, recipe)
    else:
        backward(module, 1, recipe, is_first_microbatch=True)
    for name, gradient in plain_gradients(kind, 1, recipe).items():
        assert_identical(weights_of(module)[name].main_grad, gradient, name)
    if by == "is_first_microbatch":
        backward(module, 2, recipe, is_first_microbatch=False)
        second = plain_gradients(kind, 2, recipe)
        for name, gradient in plain_gradients(kind, 1, recipe).items():
            assert_is_sum(weights_of(module)[name].main_grad, [gradient, second[name]])


def test_frameworks_that_ask_get_a_placeholder():
    module = with_main_grads(make("Linear", fuse_wgrad_accumulation=True), torch.float32)
    module.weight.grad_added_to_main_grad = False
    module.weight.zero_out_wgrad = True
    backward(module)
    assert module.weight.grad_added_to_main_grad is True
    assert_identical(module.weight.grad, torch.zeros(OUT, IN))
    assert module.weight.main_grad.any()


def test_placeholders_are_shared():
    first = get_dummy_wgrad([3, 5], torch.float32, device=torch.get_default_device())
    zeroed = get_dummy_wgrad((3, 5), torch.float32, zero=True, device=torch.get_default_device())
    assert first.data_ptr() == zeroed.data_ptr()
    assert not first.any()
    assert not first.requires_grad
    other = get_dummy_wgrad([3, 5], torch.bfloat16, device=torch.get_default_device())
    assert (other.dtype, other.data_ptr() != first.data_ptr()) == (torch.bfloat16, True)


# ---- later ---------------------------------------------------------------------------------------


@KINDS
@RECIPES
@pytest.mark.parametrize("split", [None, ["a", "b"]])
def test_delayed_gradients_are_the_same_ones(kind, recipe, split):
    if split is not None and kind == "LayerNormMLP":
        pytest.skip("the MLP has no slices")
    options = {} if split is None else {"parameters_split": split}
    module = make(kind, delay_wgrad_compute=True, **options)
    grad_input = backward(module, 1, recipe)
    twin = make(kind, **options)
    assert_identical(grad_input, backward(twin, 1, recipe))
    for name, parameter in module.named_parameters():
        if parameter.dim() == 2:
            assert parameter.grad is None
            assert parameter.skip_backward_post_hook is True
        else:
            assert_identical(parameter.grad, twin.get_parameter(name).grad, name)
    module.backward_dw()
    for name, weight in weights_of(module).items():
        assert_identical(weight.grad, twin.get_parameter(name).grad, name)


@KINDS
@RECIPES
def test_several_micro_batches_wait_in_order(kind, recipe):
    module = make(kind, delay_wgrad_compute=True)
    for seed in (1, 2, 3):
        backward(module, seed, recipe)
        assert len(module.wgrad_store) == seed
    for left, seed in ((2, 1), (1, 2), (0, 3)):
        module.backward_dw()
        assert len(module.wgrad_store) == left
        for name, gradient in plain_gradients(kind, seed, recipe).items():
            assert_identical(weights_of(module)[name].grad, gradient, name)
    with pytest.raises(RuntimeError, match=rf"^{kind}\.forward: backward_dw found no delayed weig"):
        module.backward_dw()


@KINDS
@MAIN_DTYPES
def test_delayed_and_fused_leaves_no_grad(kind, dtype):
    options = {"delay_wgrad_compute": True, "fuse_wgrad_accumulation": True}
    module = with_main_grads(make(kind, **options), dtype)
    for seed in (1, 2):
        backward(module, seed)
    assert not any(weight.main_grad.any() for weight in weights_of(module).values())
    for _ in range(2):
        module.backward_dw()
    expected = [plain_gradients(kind, seed) for seed in (1, 2)]
    for name, weight in weights_of(module).items():
        assert weight.grad is None
        assert_is_sum(weight.main_grad, [gradients[name] for gradients in expected])


def test_stored_gradients_survive_an_attribute_change():
    module = make("Linear", delay_wgrad_compute=True)
    backward(module, 1)
    module.return_bias = True  # the native step is made anew
    assert len(module.wgrad_store) == 1
    module(make_input(seed=5))
    assert len(module.wgrad_store) == 1
    module.backward_dw()
    assert_identical(module.weight.grad, plain_gradients("Linear", 1)["weight"])


def test_a_refused_main_grad_leaves_the_gradient_waiting():
    module = make("Linear", delay_wgrad_compute=True, fuse_wgrad_accumulation=True)
    backward(module, 1)
    with pytest.raises(RuntimeError, match="main_grad is missing"):
        module.backward_dw()
    with_main_grads(module, torch.float32)
    module.backward_dw()
    assert_identical(module.weight.main_grad, plain_gradients("Linear", 1)["weight"])


def test_hooks_run_at_the_end_and_on_their_own():
    module, calls = make("Linear", delay_wgrad_compute=True), []
    module.register_wgrad_accumulation_and_reduce_hooks(
        lambda: calls.append(module.weight.grad is not None)
    )
    backward(module)
    module.backward_dw()
    assert calls == [True]
    module._trigger_wgrad_accumulation_and_reduce_hooks()
    assert calls == [True, True]


@KINDS
def test_without_delay_there_is_nothing_to_do(kind):
    module = make(kind)
    expected = run(module, make_input())
    assert module.need_backward_dw() is False
    assert module.wgrad_store.delay_wgrad_compute() is False
    module.backward_dw()
    for name, weight in weights_of(module).items():
        assert_identical(weight.grad, expected[name])
    delayed = make(kind, delay_wgrad_compute=True)
    assert delayed.need_backward_dw() is delayed.wgrad_store.delay_wgrad_compute() is True
    with pytest.raises(RuntimeError, match=rf"^{kind}\.backward_dw: no forward has run"):
        delayed.backward_dw()


# ---- in-place changes and dtypes -----------------------------------------------------------------


@KINDS
def test_a_weight_changed_in_place_before_backward_is_an_error(kind):
    for name in weights_of(make(kind)):
        module = make(kind)
        y = module(make_input())
        with torch.no_grad():
            module.get_parameter(name).mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@KINDS
def test_the_activation_dtype_is_that_of_the_latest_forward(kind):
    module = make(kind)
    assert module.activation_dtype is None
    module(make_input())
    assert module.activation_dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        module(make_input())
    assert module.activation_dtype == torch.bfloat16
    module.return_bias = True
    assert module.activation_dtype == torch.bfloat16
