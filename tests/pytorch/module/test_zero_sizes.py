# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""No features and no rows, forward and backward: as torch.nn's layers, in every recipe."""

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.modules import output_gradient, randomize
from helpers.quantizers import current_quantizer
from helpers.tolerances import assert_identical
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling

RECIPES = {
    "none": None,
    "delayed": DelayedScaling(amax_history_len=2),
    "current": Float8CurrentScaling(),
}
SIZES = [(4, 0), (0, 4), (0, 0)]
ROWS = [(3,), (0,), (2, 0), (2, 3)]
FACTORIES = {
    "Linear": te.Linear,
    "LayerNormLinear": te.LayerNormLinear,
    "LayerNormMLP": te.LayerNormMLP,
    "LayerNormMLP, gated": lambda *sizes, **options: te.LayerNormMLP(
        *sizes, activation="swiglu", **options
    ),
    "LayerNormMLP, recomputing": lambda *sizes, **options: te.LayerNormMLP(
        *sizes, checkpoint=True, **options
    ),
}


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"delay_wgrad_compute": True}], ids=str)
@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", FACTORIES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_linear_modules(recipe, kind, sizes, rows, options):
    module = FACTORIES[kind](*sizes, device=torch.get_default_device(), **options)
    randomize(module)
    x = torch.ones(*rows, sizes[0], requires_grad=True)
    for _ in range(2):
        module.zero_grad()
        with te.autocast(enabled=RECIPES[recipe] is not None, recipe=RECIPES[recipe]):
            y = module(x)
        assert y.shape == (*rows, sizes[1] if "Linear" in kind and "MLP" not in kind else sizes[0])
        grad = output_gradient(y)
        y.backward(grad)
        if options.get("delay_wgrad_compute"):
            module.backward_dw()
    last_bias = getattr(module, "fc2_bias" if "MLP" in kind else "bias")
    if options.get("bias", True):
        # Nothing is summed but the bias: no features, or no rows.
        has_no_features = 0 in (sizes if "MLP" in kind else sizes[:1])
        if has_no_features:
            assert_identical(y.detach(), last_bias.detach().expand(y.shape))
    for name, parameter in module.named_parameters():
        assert parameter.grad.shape == parameter.shape, name
        assert parameter.grad.isfinite().all(), name
        if 0 in rows:
            assert not parameter.grad.any(), name
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
def test_norms(kind, rows):
    module = getattr(te, kind)(0, device=torch.get_default_device())
    x = torch.ones(*rows, 0, requires_grad=True)
    y = module(x)
    y.sum().backward()
    assert y.shape == x.grad.shape == x.shape
    for parameter in module.parameters():
        assert parameter.grad.shape == (0,)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_fused_accumulation_adds_nothing(recipe, sizes, dtype):
    module = te.Linear(*sizes, device=torch.get_default_device(), fuse_wgrad_accumulation=True)
    module.weight.main_grad = torch.zeros(module.weight.shape, dtype=dtype)
    x = torch.ones(3, sizes[0], requires_grad=True)
    with te.autocast(enabled=RECIPES[recipe] is not None, recipe=RECIPES[recipe]):
        y = module(x)
    y.sum().backward()
    assert x.grad.shape == x.shape
    assert module.weight.grad is None


def test_a_transpose_without_columns_keeps_its_rows():
    quantizer = current_quantizer()
    quantizer.set_usage(rowwise=True, columnwise=True)
    assert quantizer(torch.ones(3, 0))._transpose.shape == (0, 3)


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "none"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_quantized_weights(sizes, recipe):
    with te.quantized_model_init(recipe=RECIPES[recipe]):
        module = te.Linear(*sizes, device=torch.get_default_device())
    for enabled in (True, False):
        x = torch.ones(3, sizes[0], requires_grad=True)
        with te.autocast(enabled=enabled, recipe=RECIPES[recipe]):
            y = module(x)
        y.sum().backward()
        assert x.grad.shape == x.shape
        assert module.weight.grad.shape == (sizes[1], sizes[0])
