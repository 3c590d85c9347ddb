# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What regions and questions about recipes refuse; a refusal leaves the region in force."""

import numpy as np
import pytest

import transformer_engine.pytorch as te
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling, Recipe
from transformer_engine.pytorch.quantization import (
    FP8GlobalStateManager,
    check_recipe_support,
    get_align_size_for_quantization,
    get_fp8_max,
    get_fp8_te_dtype,
    get_fp8_torch_dtype,
)

manager = FP8GlobalStateManager


def enter(context):
    with context:
        pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recipe": "x"}, "recipe is 'x'"),
        ({"recipe": 5}, "recipe is 5"),
        ({"recipe": 0}, "recipe is 0"),
        ({"recipe": DelayedScaling}, "recipe is the class DelayedScaling"),
        ({"enabled": "no"}, "enabled is 'no'"),
        ({"enabled": None}, "enabled is None"),
        ({"enabled": 2}, "enabled is 2"),
        ({"calibrating": "x"}, "calibrating is 'x'"),
        ({"amax_reduction_group": 3}, "amax_reduction_group is 3"),
        ({"amax_reduction_group": "g"}, "amax_reduction_group is 'g'"),
        ({"amax_reduction_group": [0, 1]}, r"amax_reduction_group is \[0, 1\]"),
    ],
)
@pytest.mark.filterwarnings("ignore:fp8_autocast is deprecated")
def test_arguments_of_a_region_that_it_refuses(arguments, message):
    old_names = {"recipe": "fp8_recipe", "amax_reduction_group": "fp8_group"}
    with pytest.raises(TypeError, match=f"^autocast: {message}; it must be "):
        te.autocast(**arguments)
    with pytest.raises(TypeError, match=f"^autocast: {message}; it must be "):
        te.fp8_autocast(**{old_names.get(name, name): x for name, x in arguments.items()})
    assert not manager.is_fp8_enabled()


class Unknown(Recipe):
    """Of no family that has quantizers."""


def test_a_recipe_of_no_family_is_refused():
    with pytest.raises(ValueError, match=r"^autocast: recipe is a Unknown; a recipe of "):
        enter(te.autocast(recipe=Unknown()))
    assert not manager.is_fp8_enabled()


@pytest.mark.parametrize("enabled", [1, np.bool_(True)])
def test_numbers_that_stand_for_a_flag_are_taken(enabled):
    with te.autocast(enabled=enabled):
        assert manager.is_fp8_enabled()
    with te.quantized_model_init(enabled=enabled):
        assert manager.with_fp8_parameters() is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recipe": "x"}, "recipe is 'x'"),
        ({"recipe": Float8CurrentScaling}, "recipe is the class Float8CurrentScaling"),
        ({"enabled": "no"}, "enabled is 'no'"),
        (
            {"preserve_high_precision_init_val": "yes"},
            "preserve_high_precision_init_val is 'yes'",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:fp8_model_init is deprecated")
def test_arguments_of_model_init_that_it_refuses(arguments, message):
    for name in (te.quantized_model_init, te.fp8_model_init):
        with pytest.raises(TypeError, match=f"^quantized_model_init: {message}; it must be "):
            enter(name(**arguments))
    assert not manager.with_fp8_parameters()


@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (check_recipe_support, "recipe"),
        (get_align_size_for_quantization, "recipe"),
        (get_fp8_te_dtype, "fp8_recipe"),
        (get_fp8_torch_dtype, "fp8_recipe"),
        (get_fp8_max, "fp8_recipe"),
    ],
)
def test_questions_about_what_is_no_recipe_are_refused(function, argument):
    with pytest.raises(TypeError, match=f"^{function.__name__}: {argument} is 'x'; it must be "):
        function("x")
