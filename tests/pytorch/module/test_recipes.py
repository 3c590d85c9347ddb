# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every recipe in every module: the three products against float64 on the quantized operands."""

from __future__ import annotations

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.copies import quantized
from helpers.generators import random_tensor
from helpers.modules import assert_same, make, make_input, output_gradient, run
from helpers.tolerances import assert_within, gamma, rounding_bound
from transformer_engine.common.recipe import (
    Float8BlockScaling,
    Float8CurrentScaling,
    Format,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)
from transformer_engine.pytorch.cpp_extensions import activation as tex

RECIPES = {
    "current": Float8CurrentScaling(),
    "block": Float8BlockScaling(),
    "block fp32 scales": Float8BlockScaling(use_f32_scales=True),
    "block hybrid": Float8BlockScaling(fp8_format=Format.HYBRID),
    "block tiled gradients": Float8BlockScaling(
        w_block_scaling_dim=1, grad_block_scaling_dim=2, x_block_scaling_dim=1
    ),
    "mxfp8": MXFP8BlockScaling(),
    "mxfp8 hybrid": MXFP8BlockScaling(fp8_format=Format.HYBRID),
    "mxfp8 tiled": MXFP8BlockScaling(enable_2d_quantization=True),
    "nvfp4": NVFP4BlockScaling(),
    "nvfp4 plain": NVFP4BlockScaling(
        disable_rht=True, disable_stochastic_rounding=True, disable_2d_quantization=True
    ),
    "nvfp4 four over six": NVFP4BlockScaling(
        disable_rht=True, disable_stochastic_rounding=True, nvfp4_4over6="all"
    ),
    "nvfp4 row scaled": NVFP4BlockScaling(
        disable_rht=True, disable_stochastic_rounding=True, row_scaled_activation=True
    ),
}
# One row, odd, prime, block - 1, block + 1, several blocks.
SHAPES = [(1, 32, 16), (7, 33, 17), (31, 129, 127), (16, 16, 16), (130, 257, 131)]
recipes = pytest.mark.parametrize("recipe", RECIPES)
kinds = pytest.mark.parametrize("kind", ["Linear", "LayerNormLinear", "LayerNormMLP"])


def check_product(actual, a, b, name, *, addend=None):
    """`actual`: [m, k] times b [n, k]^T (+ addend), summed in FP32, rounded once to its type."""
    exact, magnitudes = a @ b.t(), a.abs() @ b.abs().t()
    if addend is not None:
        exact, magnitudes = exact + addend.double(), magnitudes + addend.double().abs()
    # Besides the sum: FP32 rounds a scale and a factor per operand, and what joins both.
    summed = gamma(a.shape[1] + 8, torch.float32) * magnitudes
    assert_within(actual, exact, summed + rounding_bound(exact.abs() + summed, actual.dtype), name)


def linear(shape, recipe, *, dtype=torch.bfloat16, **keywords):
    """A linear layer that ran forward and backward, and its tensors."""
    rows, cols, out = shape
    module = te.Linear(cols, out, device=torch.get_default_device(), params_dtype=dtype, **keywords)
    with torch.no_grad():
        module.weight.copy_(random_tensor((out, cols), seed=5))
    x = make_input(rows, cols, dtype=dtype)
    with te.autocast(recipe=recipe):
        y = module(x)
    grad = output_gradient(y)
    torch.manual_seed(11)  # stochastic rounding of the gradient, repeated by the test
    y.backward(grad)
    return module, x, y, grad


@recipes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_three_products_are_those_of_the_quantized_operands(recipe, shape):
    module, x, y, grad = linear(shape, RECIPES[recipe], bias=False)
    forward, backward = module.quantizers["scaling_fwd"], module.quantizers["scaling_bwd"]
    for_input, for_weight = forward[0].native, forward[1].native
    weight, inp = module.weight.detach(), x.detach()
    x_row = quantized(for_input, inp, columnwise=False)
    check_product(y, x_row, quantized(for_weight, weight, columnwise=False), "output")
    # One cast made both copies of the gradient.
    dy_row, dy_col = both_copies(backward[0].native, grad)
    w_col = quantized(for_weight, weight, columnwise=True)
    check_product(x.grad, dy_row, w_col, "grad of input")
    x_col = quantized(for_input, inp, columnwise=True)
    check_product(module.weight.grad, dy_col, x_col, "grad of weight")


def both_copies(core, tensor):
    """Rowwise and columnwise copy of one cast, with the random bits of the backward."""
    copies = []
    for columnwise in (False, True):
        torch.manual_seed(11)
        copies.append(quantized(core, tensor, columnwise=columnwise, alone=False))
    return copies


@recipes
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_dtypes(recipe, dtype):
    module, x, y, _ = linear((33, 65, 47), RECIPES[recipe], dtype=dtype)
    assert y.dtype == x.grad.dtype == module.weight.grad.dtype == dtype
    for_input, for_weight = (q.native for q in module.quantizers["scaling_fwd"][:2])
    x_row = quantized(for_input, x.detach(), columnwise=False)
    w_row = quantized(for_weight, module.weight.detach(), columnwise=False)
    check_product(y, x_row, w_row, "output", addend=module.bias.detach())


@recipes
@pytest.mark.parametrize("kind", ["LayerNormLinear", "LayerNormMLP"])
def test_a_fused_module_equals_its_parts(kind, recipe):
    options = {"device": torch.get_default_device(), "params_dtype": torch.bfloat16}
    fused = make(kind, params_dtype=torch.bfloat16)
    norm = te.LayerNorm(24, device=torch.get_default_device(), dtype=torch.bfloat16)
    prefixes = [""] if kind == "LayerNormLinear" else ["fc1_", "fc2_"]
    layers = []
    with torch.no_grad():
        norm.weight.copy_(fused.layer_norm_weight)
        norm.bias.copy_(fused.layer_norm_bias)
        for prefix in prefixes:
            weight, bias = (getattr(fused, prefix + name) for name in ("weight", "bias"))
            layer = te.Linear(weight.shape[1], weight.shape[0], **options)
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
            layers.append(layer)

    x = make_input(6, 24, dtype=torch.bfloat16)
    twin = x.detach().clone().requires_grad_()
    with te.autocast(recipe=RECIPES[recipe]):
        y = fused(x)
        hidden = layers[0](norm(twin))
        hidden.retain_grad()
        expected = hidden if len(layers) == 1 else layers[1](Gelu.apply(hidden))
    assert torch.equal(y, expected)
    grad = output_gradient(y)
    for result in (y, expected):
        torch.manual_seed(4)  # both draw in the same order
        result.backward(grad)
    assert torch.equal(x.grad, twin.grad)
    assert torch.equal(fused.layer_norm_weight.grad, norm.weight.grad)
    for prefix, layer in zip(prefixes, layers, strict=True):
        assert torch.equal(getattr(fused, prefix + "weight").grad, layer.weight.grad)
        bias_grad = getattr(fused, prefix + "bias").grad
        if prefix == "fc1_":  # summed before its terms are rounded
            bound = rounding_bound(hidden.grad, torch.bfloat16).sum(0)
            bound = bound + 2 * rounding_bound(layer.bias.grad.abs() + bound, torch.bfloat16)
            assert_within(bias_grad, layer.bias.grad, bound, "grad of fc1_bias")
        else:
            assert torch.equal(bias_grad, layer.bias.grad)


class Gelu(torch.autograd.Function):
    """The library's GELU as an operator of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return tex.gelu(x, None)

    @staticmethod
    def backward(ctx, grad):
        return tex.dgelu(grad, ctx.saved_tensors[0], None)


@recipes
@kinds
def test_zero_tokens(kind, recipe):
    module = make(kind, params_dtype=torch.bfloat16)
    x = make_input(0, 24, dtype=torch.bfloat16)
    with te.autocast(recipe=RECIPES[recipe]):
        y = module(x)
    y.backward(torch.zeros_like(y))
    assert y.shape[0] == 0 and x.grad.shape == x.shape
    for parameter in module.parameters():
        assert not parameter.grad.any()


@recipes
@kinds
def test_leading_axes_count_as_rows(kind, recipe):
    module = make(kind, params_dtype=torch.bfloat16)
    x = make_input(3, 5, 24, dtype=torch.bfloat16)
    flat = x.detach().reshape(15, 24).requires_grad_()
    found = []
    for inp in (x, flat):
        with te.autocast(recipe=RECIPES[recipe]):
            y = module(inp)
        module.zero_grad()
        torch.manual_seed(2)
        y.backward(output_gradient(y).reshape(y.shape) if inp is flat else first(y))
        found.append((y.detach().reshape(15, -1), inp.grad.reshape(15, 24)))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])


def first(y):
    """The gradient of the flat output in y's shape."""
    return output_gradient(y.detach().flatten(0, -2)).reshape(y.shape)


# ---- what is quantized, and what is kept -------------------------------------------------------


def saved_bytes(module, x, recipe):
    """Bytes that a forward keeps for its backward, the module's own parameters aside."""
    own = {parameter.data_ptr() for parameter in module.parameters()}
    total = 0

    def pack(tensor):
        nonlocal total
        if tensor.data_ptr() not in own:
            total += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), te.autocast(recipe=recipe):
        module(x)
    return total


@recipes
def test_a_frozen_weight_keeps_no_input(recipe):
    module = te.Linear(64, 128, device=torch.get_default_device(), params_dtype=torch.bfloat16)
    x = make_input(32, 64, dtype=torch.bfloat16)
    trained = saved_bytes(module, x, RECIPES[recipe])
    module.weight.requires_grad_(False)
    frozen = saved_bytes(module, x, RECIPES[recipe])
    kept_input = trained - frozen
    # A columnwise copy of the input: its codes and scales.
    element_bits = 4 if "nvfp4" in recipe else 8
    assert kept_input >= 32 * 64 * element_bits // 8
    assert kept_input <= 32 * 64 * element_bits // 8 + 4 * 64 * 32
    with te.autocast(recipe=RECIPES[recipe]):
        y = module(x)
    y.backward(output_gradient(y))
    assert module.weight.grad is None and module.bias.grad is not None and x.grad is not None


@recipes
def test_without_an_input_gradient_no_weight_is_kept(recipe):
    module = te.Linear(64, 128, device=torch.get_default_device(), params_dtype=torch.bfloat16)
    x = make_input(32, 64, dtype=torch.bfloat16)
    trained = saved_bytes(module, x, RECIPES[recipe])
    leaf = saved_bytes(module, x.detach(), RECIPES[recipe])
    element_bits = 4 if "nvfp4" in recipe else 8
    assert trained - leaf >= 64 * 128 * element_bits // 8


# ---- gradients in other ways ---------------------------------------------------------------------


def run_in(recipe, module, x, **keywords):
    """`helpers.modules.run` in a region, with the same random bits every time."""
    module.zero_grad()
    x.grad = None
    with te.autocast(recipe=recipe):
        y = module(x, **keywords)
    torch.manual_seed(9)
    y.backward(output_gradient(y))
    grads = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    return {"output": y.detach(), "inp": x.grad.clone(), **grads}


@recipes
@kinds
def test_recomputation_changes_nothing(kind, recipe):
    module = make(kind, params_dtype=torch.bfloat16)
    x = make_input(6, 24, dtype=torch.bfloat16)
    expected = run_in(RECIPES[recipe], module, x)
    module.zero_grad()
    x.grad = None
    with te.autocast(recipe=RECIPES[recipe]):
        y = te.checkpoint(module, x)
        torch.manual_seed(9)
        y.backward(output_gradient(y))
    assert torch.equal(y, expected["output"]) and torch.equal(x.grad, expected["inp"])
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter.grad, expected[name]), name


@recipes
def test_the_recomputing_mlp_changes_nothing(recipe):
    x = make_input(6, 24, dtype=torch.bfloat16)
    plain = make("LayerNormMLP", params_dtype=torch.bfloat16)
    recomputing = make("LayerNormMLP", params_dtype=torch.bfloat16, checkpoint=True)
    assert_same(run_in(RECIPES[recipe], recomputing, x), run_in(RECIPES[recipe], plain, x))


@recipes
@kinds
def test_a_kept_weight_gives_the_same_numbers(kind, recipe):
    module = make(kind, params_dtype=torch.bfloat16)
    x = make_input(6, 24, dtype=torch.bfloat16)
    expected = run_in(RECIPES[recipe], module, x)
    assert_same(run_in(RECIPES[recipe], module, x, is_first_microbatch=True), expected)
    assert_same(run_in(RECIPES[recipe], module, x, is_first_microbatch=False), expected)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2)
    fresh = run_in(RECIPES[recipe], module, x)
    assert not torch.equal(fresh["output"], expected["output"])
    assert_same(run_in(RECIPES[recipe], module, x, is_first_microbatch=False), fresh)


@recipes
def test_a_weight_kept_without_gradients_serves_no_backward(recipe):
    module = te.Linear(24, 40, device=torch.get_default_device(), params_dtype=torch.bfloat16)
    x = make_input(6, 24, dtype=torch.bfloat16)
    expected = run_in(RECIPES[recipe], module, x)
    with torch.no_grad(), te.autocast(recipe=RECIPES[recipe]):
        module(x, is_first_microbatch=True)
    assert_same(run_in(RECIPES[recipe], module, x, is_first_microbatch=False), expected)


@recipes
def test_the_original_input_gives_the_same_gradients(recipe):
    x = make_input(33, 64, dtype=torch.bfloat16)
    modules = [
        te.Linear(
            64,
            48,
            device=torch.get_default_device(),
            params_dtype=torch.bfloat16,
            save_original_input=flag,
        )
        for flag in (False, True)
    ]
    modules[1].load_state_dict(modules[0].state_dict())
    expected, found = (run_in(RECIPES[recipe], module, x) for module in modules)
    assert_same(found, expected)


@recipes
@kinds
def test_gradients_can_be_added_to_main_grad(kind, recipe):
    module = make(kind, params_dtype=torch.bfloat16)
    fused = make(kind, params_dtype=torch.bfloat16, fuse_wgrad_accumulation=True)
    weights = [name for name, p in module.named_parameters() if p.dim() == 2]
    x = make_input(6, 24, dtype=torch.bfloat16)
    expected = run_in(RECIPES[recipe], module, x)
    for name in weights:
        parameter = fused.get_parameter(name)
        parameter.main_grad = torch.zeros(parameter.shape)
    found = run_in(RECIPES[recipe], fused, x)
    for name in weights:
        assert name not in found
        main_grad = fused.get_parameter(name).main_grad
        assert torch.equal(main_grad.bfloat16(), expected[name])


@recipes
@kinds
def test_weight_gradients_can_wait(kind, recipe):
    module = make(kind, params_dtype=torch.bfloat16)
    delayed = make(kind, params_dtype=torch.bfloat16, delay_wgrad_compute=True)
    x = make_input(6, 24, dtype=torch.bfloat16)
    expected = run_in(RECIPES[recipe], module, x)
    found = run_in(RECIPES[recipe], delayed, x)
    delayed.backward_dw()
    for name, parameter in delayed.named_parameters():
        assert torch.equal(parameter.grad, expected[name]), name
    assert torch.equal(found["inp"], expected["inp"])


# ---- other recipes before ------------------------------------------------------------------------

PAIRS = [(a, b) for a in ("current", "block", "mxfp8", "nvfp4") for b in RECIPES if a != b]


@pytest.mark.filterwarnings("ignore:Recipe type changed")
@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_a_recipe_leaves_nothing_to_the_next(before, after):
    x = make_input(6, 24, dtype=torch.bfloat16)
    used, fresh = (make("Linear", params_dtype=torch.bfloat16) for _ in range(2))
    run_in(RECIPES[before], used, x, is_first_microbatch=True)
    assert_same(
        run_in(RECIPES[after], used, x, is_first_microbatch=False),
        run_in(RECIPES[after], fresh, x),
    )


def test_outside_a_region_nothing_is_quantized():
    module = make("Linear", params_dtype=torch.bfloat16)
    x = make_input(6, 24, dtype=torch.bfloat16)
    expected = run(module, x)
    run_in(RECIPES["nvfp4"], module, x)
    assert_same(run(module, x), expected)
