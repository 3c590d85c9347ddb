# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Modules that return quantized tensors and gradients, and modules that are given them."""

from __future__ import annotations

import itertools

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.modules import IN, make, make_input, output_gradient
from helpers.recipes import RECIPES, STATEFUL
from helpers.tolerances import assert_identical, assert_within, matmul_bound, rounding_bound

pytestmark = pytest.mark.usefixtures("one_thread")
recipes = pytest.mark.parametrize("recipe", RECIPES)
producers = pytest.mark.parametrize("kind", ["Linear", "LayerNormLinear"])
CLASSES = {
    **dict.fromkeys(("delayed", "current", "custom"), te.Float8Tensor),
    "block": te.Float8BlockwiseQTensor,
    "mxfp8": te.MXFP8Tensor,
    "nvfp4": te.NVFP4Tensor,
    "hybrid": te.HybridQuantizedTensor,
}
# What the values of an operand depend on: its rowwise format.
FORMATS = {name: CLASSES[name] for name in RECIPES} | {"hybrid": te.MXFP8Tensor}


def run(recipe, module, x, **keywords):
    with te.autocast(recipe=RECIPES[recipe]):
        return module(x, **keywords)


def backward(y, grad):
    torch.manual_seed(5)  # stochastic rounding
    y.backward(grad)


def twins(make_one):
    """Two equal modules."""
    return make_one(), make_one()


@recipes
@producers
def test_a_quantized_output_is_the_output_quantized(kind, recipe):
    module, twin = twins(lambda: make(kind, params_dtype=torch.bfloat16))
    x, other = (make_input(6, IN, dtype=torch.bfloat16) for _ in range(2))
    y, plain = run(recipe, module, x, fp8_output=True), run(recipe, twin, other)
    assert type(y) is CLASSES[recipe] and y.shape == plain.shape and y.dtype == plain.dtype
    assert y.get_usages()["rowwise"] and y.requires_grad
    if recipe in STATEFUL:  # cast with the fresh scale, which is 1
        quantizer = te.Float8Quantizer(torch.ones(1), torch.zeros(1), te.DType.kFloat8E4M3)
    else:
        quantizer = module.quantizers["scaling_fwd"][2].copy()
    expected = quantizer(plain.detach()).dequantize()
    assert_identical(y.detach().dequantize(), expected)
    grad = output_gradient(plain)
    for result in (y, plain):
        backward(result, grad)
    assert_identical(x.grad, other.grad)
    for parameter, expected in zip(module.parameters(), twin.parameters(), strict=True):
        assert_identical(parameter.grad, expected.grad)


@recipes
@producers
def test_a_quantized_gradient_is_the_gradient_quantized(kind, recipe):
    module, twin = twins(lambda: make(kind, params_dtype=torch.bfloat16))
    x, other = (make_input(6, IN, dtype=torch.bfloat16) for _ in range(2))
    y, plain = run(recipe, module, x, fp8_grad=True), run(recipe, twin, other)
    grad = output_gradient(plain)
    for result in (y, plain):
        backward(result, grad)
    assert type(x.grad) is CLASSES[recipe] and x.grad.shape == x.shape
    for parameter, expected in zip(module.parameters(), twin.parameters(), strict=True):
        assert_identical(parameter.grad, expected.grad)
    if recipe in STATEFUL:
        quantizer = te.Float8Quantizer(torch.ones(1), torch.zeros(1), x.grad._fp8_dtype)
    elif recipe == "nvfp4":  # its rounding is drawn
        quantizer = te.NVFP4Quantizer(te.DType.kFloat4E2M1)
        spacing = other.grad.float().abs().max() / 3  # 4 to 6: twice the largest distance
        assert ((x.grad.dequantize().float() - other.grad.float()).abs() <= spacing).all()
        return
    else:
        quantizer = module.quantizers["scaling_bwd"][1].copy()
    assert_identical(x.grad.dequantize(), quantizer(other.grad).dequantize())


def consumers():
    return twins(lambda: make("Linear", params_dtype=torch.bfloat16))


def quantized_input(recipe):
    """What a layer under a recipe hands on: a rowwise copy."""
    torch.manual_seed(8)
    producer = te.Linear(IN, IN, device=torch.get_default_device(), params_dtype=torch.bfloat16)
    return run(recipe, producer, make_input(6, IN, dtype=torch.bfloat16), fp8_output=True)


FOREIGN = [
    (a, b)
    for a, b in itertools.product(RECIPES, RECIPES)
    if FORMATS[a] is not FORMATS[b]
    # One scale per tensor serves both directions, in any pairing of a factory's.
    and not (a == "hybrid" and FORMATS[b] is te.Float8Tensor)
]


@pytest.mark.parametrize("wants_gradient", [False, True])
@pytest.mark.parametrize(("recipe", "of"), FOREIGN)
def test_an_input_of_another_format_counts_as_its_values(recipe, of, wants_gradient):
    module, twin = consumers()
    x = quantized_input(of).detach().requires_grad_(wants_gradient)
    values = x.detach().dequantize().requires_grad_(wants_gradient)
    y, expected = run(recipe, module, x), run(recipe, twin, values)
    if recipe != "hybrid":  # a factory's quantizers do not say their format beforehand
        assert_identical(y.detach(), expected.detach())
    grad = output_gradient(expected)
    for result in (y, expected):
        backward(result, grad)
    assert_identical(module.weight.grad, twin.weight.grad)
    if wants_gradient:
        assert_identical(x.grad, values.grad)


@pytest.mark.parametrize("recipe", ["current", "block", "mxfp8", "nvfp4", "hybrid"])
@pytest.mark.parametrize("wants_gradient", [False, True])
def test_an_input_of_the_recipes_format_is_read_as_it_is(recipe, wants_gradient):
    """And a missing columnwise copy is made from its values."""
    module, twin = consumers()
    x = quantized_input(recipe).detach().requires_grad_(wants_gradient)
    values = x.detach().dequantize()
    y = run(recipe, module, x)
    weight = module.quantizers["scaling_fwd"][1].copy()(twin.weight.detach())
    x_q, weight_q = (t.detach().dequantize(dtype=torch.float32) for t in (x, weight))
    expected = x_q.double() @ weight_q.double().t() + module.bias.detach().double()
    # Two scales and factors that FP32 rounds.
    bound = matmul_bound(x_q, weight_q.t(), output=torch.bfloat16, extra_terms=8, is_fp8=True)
    bound = bound + rounding_bound(expected, torch.bfloat16)
    assert_within(y.detach(), expected, bound, "output")
    with torch.no_grad():
        assert_identical(run(recipe, module, x), y.detach())
    grad = output_gradient(y)
    backward(y, grad)
    assert module.weight.grad.shape == module.weight.shape
    if recipe == "hybrid":  # its columnwise copy is of its own rounding
        return
    plain = run(recipe, twin, values.clone())
    backward(plain, grad)
    if recipe != "current":  # block formats: quantizing the values again gives them again
        assert_identical(module.weight.grad, twin.weight.grad)
    else:
        norms = grad.double().norm(dim=0)[:, None] * values.double().norm(dim=0)
        error = (module.weight.grad - twin.weight.grad).double().abs()
        assert (error <= norms * 2.0**-3).all()  # one more rounding to E4M3: half of 2^-3


@recipes
def test_a_chain_of_quantized_tensors_trains(recipe):
    """Activations and gradients both handed on quantized."""
    layers = [
        te.Linear(IN, IN, device=torch.get_default_device(), params_dtype=torch.bfloat16)
        for _ in range(2)
    ]
    x = make_input(2, 3, IN, dtype=torch.bfloat16)
    for _ in range(2):
        with te.autocast(recipe=RECIPES[recipe]):
            y = layers[1](layers[0](x, fp8_output=True), fp8_grad=True)
        backward(y, output_gradient(y))
    assert x.grad.shape == x.shape and torch.isfinite(x.grad).all()
    for layer in layers:
        assert layer.weight.grad.abs().sum() > 0 and torch.isfinite(layer.weight.grad).all()


@recipes
@pytest.mark.parametrize("kind", ["LayerNormLinear", "LayerNormMLP", "LayerNorm", "RMSNorm"])
def test_norms_read_the_values_of_a_quantized_input(kind, recipe):
    module, twin = twins(lambda: make(kind, params_dtype=torch.bfloat16))
    x = quantized_input(recipe).detach().requires_grad_()
    values = x.detach().dequantize().requires_grad_()
    with te.autocast(recipe=RECIPES[recipe]):
        y, expected = module(x), twin(values)
    assert_identical(y.detach(), expected.detach())
    grad = output_gradient(expected)
    for result in (y, expected):
        backward(result, grad)
    assert_identical(x.grad, values.grad)


@recipes
def test_outside_a_region_the_values_count(recipe):
    module = make("Linear", params_dtype=torch.bfloat16)
    x = quantized_input(recipe).detach()
    assert_identical(module(x).detach(), module(x.dequantize()).detach())
