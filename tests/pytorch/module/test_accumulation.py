# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""use_split_accumulator: which products of a module may accumulate fast."""

from __future__ import annotations

import ctypes

import pytest
import torch

import transformer_engine.pytorch as te
from transformer_engine.common import recipe
from transformer_engine.common.recipe import MMParams
from transformer_engine.pytorch.recipe_state import native_recipe

FAST, SPLIT = MMParams(use_split_accumulator=False), MMParams(use_split_accumulator=True)


def current_scaling(*products: MMParams) -> recipe.Recipe:
    names = ("fp8_gemm_fprop", "fp8_gemm_dgrad", "fp8_gemm_wgrad")
    return recipe.Float8CurrentScaling(**dict(zip(names, products, strict=True)))


RECIPES = [
    (recipe.DelayedScaling(), [True, False, False]),
    (recipe.Float8CurrentScaling(), [True, False, False]),
    (current_scaling(SPLIT, SPLIT, SPLIT), [False, False, False]),
    (current_scaling(SPLIT, FAST, SPLIT), [False, True, False]),
    (current_scaling(FAST, SPLIT, FAST), [True, False, True]),
    (recipe.Float8BlockScaling(), [False, False, False]),
    (recipe.MXFP8BlockScaling(), [False, False, False]),
]


@pytest.mark.parametrize(("chosen", "expected"), RECIPES)
def test_the_native_recipe_has_the_products_that_accumulate_fast(chosen, expected):
    assert native_recipe(chosen).fast_accumulation == expected


def test_a_replaced_setting_counts():
    chosen = recipe.Float8CurrentScaling()
    assert native_recipe(chosen).fast_accumulation == [True, False, False]
    chosen.fp8_gemm_fprop = SPLIT
    assert native_recipe(chosen).fast_accumulation == [False, False, False]


@pytest.fixture
def fast_products():
    """Products so far that accumulated fast, as the stand-in for cuBLASLt counts them."""
    try:
        return ctypes.CDLL(None).cuda_emulator_fast_products
    except AttributeError:
        pytest.skip("needs the emulated device (make test-cuda-emulated)")


@pytest.mark.parametrize(("chosen", "expected"), RECIPES)
@pytest.mark.parametrize("module_class", [te.Linear, te.LayerNormLinear, te.LayerNormMLP])
@pytest.mark.parametrize("fuse", [False, True])
def test_modules_accumulate_as_the_recipe_says(
    device, fast_products, module_class, chosen, expected, fuse
):
    options = {"params_dtype": torch.bfloat16, "device": device, "fuse_wgrad_accumulation": fuse}
    module = module_class(32, 32, **options)
    for parameter in module.parameters():
        parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)
    x = torch.randn(32, 32, dtype=torch.bfloat16, device=device, requires_grad=True)
    before = fast_products()
    with te.autocast(recipe=chosen):
        y = module(x)
    after_forward = fast_products()
    y.sum().backward()
    layers = 2 if module_class is te.LayerNormMLP else 1
    assert after_forward - before == layers * expected[0]
    assert fast_products() - after_forward == layers * (expected[1] + expected[2])
