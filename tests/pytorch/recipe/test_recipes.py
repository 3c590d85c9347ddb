# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Recipes: defaults, validation, predicates, text, caches, copies."""

import copy
import dataclasses
import os
import pickle
import subprocess
import sys

import pytest
import torch
from pydantic import ValidationError

import transformer_engine.pytorch as te
from transformer_engine.common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    Format,
    MMParams,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    QParams,
    Recipe,
)
from transformer_engine.pytorch.recipe_state import RecipeState


def make_quantizer(role):
    return role


ALL = {
    DelayedScaling: {},
    Float8CurrentScaling: {},
    Float8BlockScaling: {},
    MXFP8BlockScaling: {},
    NVFP4BlockScaling: {},
    CustomRecipe: {"qfactory": make_quantizer},
}
PREDICATES = (
    "nvfp4",
    "mxfp8",
    "delayed",
    "float8_current_scaling",
    "float8_per_tensor_scaling",
    "float8_block_scaling",
    "custom",
)
TRUE_PREDICATES = {
    DelayedScaling: {"delayed", "float8_per_tensor_scaling"},
    Float8CurrentScaling: {"float8_current_scaling", "float8_per_tensor_scaling"},
    Float8BlockScaling: {"float8_block_scaling"},
    MXFP8BlockScaling: {"mxfp8"},
    NVFP4BlockScaling: {"nvfp4"},
    CustomRecipe: {"custom"},
    Recipe: set(),
}


class DelayedSubclass(DelayedScaling):
    """Like Megatron's: own constructor, keywords the base does not know."""

    def __init__(self, config):
        super().__init__(
            margin=config,
            amax_history_len=7,
            override_linear_precision=(False, False, True),
            params_dtype=None,
            device=torch.get_default_device(),
        )


@pytest.mark.smoke
def test_defaults_are_those_of_the_contract():
    delayed = DelayedScaling()
    assert (delayed.margin, delayed.fp8_format) == (0, Format.HYBRID)
    assert (delayed.amax_history_len, delayed.amax_compute_algo) == (1024, "max")
    assert delayed.scaling_factor_compute_algo is None
    assert delayed.reduce_amax is True
    current = Float8CurrentScaling()
    splits = [current.fp8_gemm_fprop, current.fp8_gemm_dgrad, current.fp8_gemm_wgrad]
    assert splits == [MMParams(False), MMParams(True), MMParams(True)]
    block = Float8BlockScaling()
    dims = (block.x_block_scaling_dim, block.w_block_scaling_dim, block.grad_block_scaling_dim)
    assert dims == (1, 2, 1)
    assert block.fp8_format is Format.E4M3
    assert MXFP8BlockScaling().fp8_format is Format.E4M3
    assert MXFP8BlockScaling().enable_2d_quantization is False
    assert NVFP4BlockScaling().fp4_format is Format.E2M1
    assert CustomRecipe(make_quantizer).quantization_alignment == 128
    for cls, arguments in ALL.items():
        recipe = cls(**arguments)
        assert (recipe.fp8_dpa, recipe.fp8_mha, recipe.backward_override) == (False, False, None)


@pytest.mark.parametrize(
    ("fmt", "limits"),
    [("E2M1", (6, 6)), ("E4M3", (448, 448)), ("E5M2", (57344, 57344)), ("HYBRID", (448, 57344))],
)
def test_format_value_is_its_pair_of_limits(fmt, limits):
    assert Format[fmt].value == limits
    assert (Format[fmt].value.max_fwd, Format[fmt].value.max_bwd) == limits


@pytest.mark.parametrize("cls", TRUE_PREDICATES, ids=lambda cls: cls.__name__)
def test_predicates_answer_for_class_instance_and_subclass(cls):
    subclass = type("Mine", (cls,), {})
    for name in PREDICATES:
        expected = name in TRUE_PREDICATES[cls]
        assert getattr(cls, name)() is expected
        assert getattr(cls(**ALL.get(cls, {})), name)() is expected
        assert getattr(subclass, name)() is expected


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_unknown_keywords_are_ignored(cls):
    recipe = cls(**ALL[cls], no_such_keyword=3)
    assert recipe == cls(**ALL[cls])
    assert not hasattr(recipe, "no_such_keyword")


def test_lossless_values_are_converted():
    recipe = DelayedScaling(margin="3", amax_history_len=4.0)
    assert (recipe.margin, recipe.amax_history_len) == (3, 4)
    assert type(recipe.margin) is int


@pytest.mark.parametrize(
    ("cls", "arguments", "match"),
    [
        (DelayedScaling, {"margin": 1.5}, "margin"),
        (DelayedScaling, {"fp8_format": Format.E5M2}, "fp8_format is Format.E5M2"),
        (DelayedScaling, {"fp8_format": Format.E2M1}, "fp8_format is Format.E2M1"),
        (DelayedScaling, {"amax_history_len": 0}, "amax_history_len is 0"),
        (DelayedScaling, {"margin": "a"}, "margin is 'a'; an int is required. The default is 0"),
        (DelayedScaling, {"margin": 65}, "margin is 65; -64..64 is required"),
        (DelayedScaling, {"margin": -1000}, "margin is -1000; -64..64 is required"),
        (DelayedScaling, {"reduce_amax": "maybe"}, "reduce_amax is 'maybe'; True or False is"),
        (DelayedScaling, {"amax_compute_algo": "min"}, "amax_compute_algo"),
        (DelayedScaling, {"backward_override": "dequantized"}, "backward_override"),
        (Float8CurrentScaling, {"fp8_format": Format.E5M2}, "fp8_format is Format.E5M2"),
        (Float8CurrentScaling, {"backward_override": "other"}, "backward_override"),
        (MXFP8BlockScaling, {"fp8_format": Format.E5M2}, "fp8_format is Format.E5M2"),
        (Float8BlockScaling, {"fp8_format": Format.E5M2}, "fp8_format is Format.E5M2"),
        (Float8BlockScaling, {"x_block_scaling_dim": 3}, "x_block_scaling_dim is 3"),
        (Float8BlockScaling, {"x_block_scaling_dim": 2}, "x_block_scaling_dim and w_block"),
        (Float8BlockScaling, {"grad_block_scaling_dim": 2}, "w_block_scaling_dim and grad"),
        (
            Float8BlockScaling,
            {"x_block_scaling_dim": 2, "w_block_scaling_dim": 1, "grad_block_scaling_dim": 2},
            "x_block_scaling_dim and grad_block_scaling_dim",
        ),
        (Float8BlockScaling, {"fp8_gemm_fprop": MMParams(False)}, "fp8_gemm_fprop"),
        (Float8BlockScaling, {"fp8_gemm_dgrad": MMParams(False)}, "fp8_gemm_dgrad"),
        (Float8BlockScaling, {"fp8_gemm_wgrad": MMParams(False)}, "fp8_gemm_wgrad"),
        (Float8BlockScaling, {"fp8_dpa": True}, "fp8_dpa is True"),
        (Float8BlockScaling, {"fp8_mha": True}, "fp8_mha is True"),
        (NVFP4BlockScaling, {"fp4_format": Format.E4M3}, "fp4_format is Format.E4M3"),
        (NVFP4BlockScaling, {"fp8_format": Format.HYBRID}, "fp8_format is Format.HYBRID"),
        (NVFP4BlockScaling, {"nvfp4_4over6": "some"}, "nvfp4_4over6"),
        (NVFP4BlockScaling, {"nvfp4_4over6_err_mode": "max"}, "nvfp4_4over6_err_mode"),
        (CustomRecipe, {}, "qfactory"),
        (CustomRecipe, {"qfactory": 3}, "qfactory"),
        (
            CustomRecipe,
            {"qfactory": make_quantizer, "quantization_alignment": 0},
            "quantization_alignment is 0",
        ),
    ],
)
def test_bad_values_raise_a_validation_error_that_names_them(cls, arguments, match):
    with pytest.raises(ValidationError, match=match):
        cls(**arguments)


FORMATS = "Format.E4M3 or Format.HYBRID is required. The default is Format."
SETS = "'none', 'weights', 'activations' or 'all' is required. The default is 'none'."
BAD_FIELDS = [
    (DelayedScaling, "fp8_format", "x", f"is 'x'; {FORMATS}HYBRID."),
    (DelayedScaling, "amax_history_len", None, "is None; an int is required. The default is 1024."),
    (
        DelayedScaling,
        "amax_compute_algo",
        "min",
        "is 'min'; 'max', 'most_recent' or a callable is required. The default is 'max'.",
    ),
    (
        DelayedScaling,
        "scaling_factor_compute_algo",
        3,
        "is 3; a callable or None is required. The default is None.",
    ),
    (DelayedScaling, "amax_history_len", -1, "is -1; at least 1 is required. The default is 1024."),
    (Float8CurrentScaling, "fp8_format", Format.E5M2, f"is Format.E5M2; {FORMATS}HYBRID."),
    (
        Float8CurrentScaling,
        "fp8_gemm_fprop",
        3,
        "is 3; an MMParams object is required. The default is "
        "MMParams(use_split_accumulator=False).",
    ),
    (
        Float8CurrentScaling,
        "backward_override",
        "other",
        "is 'other'; 'high_precision', 'dequantized' or None is required. The default is None.",
    ),
    (Float8BlockScaling, "fp8_format", object(), f"is of type object; {FORMATS}E4M3."),
    (Float8BlockScaling, "x_block_scaling_dim", 3, "is 3; 1 or 2 is required. The default is 1."),
    (MXFP8BlockScaling, "fp8_dpa", 7, "is 7; True or False is required. The default is False."),
    (NVFP4BlockScaling, "nvfp4_4over6", "some", f"is 'some'; {SETS}"),
    (
        NVFP4BlockScaling,
        "fp4_format",
        "E2M1",
        "is 'E2M1'; Format.E2M1 is required. The default is Format.E2M1.",
    ),
    (CustomRecipe, "qfactory", 3, "is 3; a callable is required. It has no default."),
    (
        CustomRecipe,
        "fp8_format",
        3,
        "is 3; Format.E2M1, Format.E4M3, Format.E5M2 or Format.HYBRID is required. "
        "The default is Format.HYBRID.",
    ),
    (MMParams, "use_split_accumulator", "x", "is 'x'; True or False is required. The default is"),
    (QParams, "amax_epsilon", "x", "is 'x'; a float is required. The default is 0.0."),
]


@pytest.mark.parametrize(("cls", "field", "value", "text"), BAD_FIELDS)
def test_refusals_say_who_what_the_rule_and_what_to_do(cls, field, value, text):
    with pytest.raises(ValidationError) as caught:
        cls(**{**ALL.get(cls, {}), field: value})
    assert f"{cls.__name__}: {field} {text}" in str(caught.value)
    assert "FormatLimits" not in str(caught.value)
    assert len(caught.value.errors()) == 1


@pytest.mark.parametrize(
    ("cls", "field", "value", "text"), [bad for bad in BAD_FIELDS if issubclass(bad[0], Recipe)]
)
def test_what_was_assigned_is_validated_when_the_recipe_is_used(cls, field, value, text):
    recipe = cls(**ALL.get(cls, {}))
    good = getattr(recipe, field)
    with te.autocast(recipe=recipe):
        pass
    for one in (recipe, copy.copy(recipe)):
        setattr(one, field, value)
        uses = [
            te.autocast(recipe=one).__enter__,
            lambda one=one: RecipeState.create(one, mode="forward"),
            te.autocast(recipe=copy.copy(one)).__enter__,
        ]
        for use in uses:
            with pytest.raises(ValueError) as caught:
                use()
            assert str(caught.value).startswith(f"{cls.__name__}: {field} {text}")
        assert getattr(one, field) is value
        setattr(one, field, good)
        with te.autocast(recipe=one):
            pass


def test_what_was_assigned_is_converted_as_by_the_constructor():
    recipe = DelayedScaling()
    recipe.margin = "3"
    with te.autocast(recipe=recipe):
        assert recipe == DelayedScaling(margin=3)
        assert repr(recipe) == repr(DelayedScaling(margin=3))
    recipe = Float8CurrentScaling()
    recipe.fp8_quant_fwd_inp = 3
    with pytest.raises(ValueError, match="fp8_quant_fwd_inp is 3; a QParams object is required"):
        te.autocast(recipe=recipe).__enter__()


def test_a_missing_factory_is_named():
    with pytest.raises(ValidationError, match="CustomRecipe: qfactory is missing; a callable"):
        CustomRecipe()


def test_every_field_that_is_validated_is_described():
    """No recipe reports a field of an unusable type in pydantic's own words."""
    for cls in [*ALL, MMParams, QParams]:
        for field in dataclasses.fields(cls):
            with pytest.raises(ValidationError) as caught:
                cls(**{**ALL.get(cls, {}), field.name: object()})
            (error,) = caught.value.errors()
            start = f"Value error, {cls.__name__}: {field.name} is of type object; "
            assert error["msg"].startswith(start)


@pytest.mark.parametrize("margin", [-64, 64])
@pytest.mark.parametrize("fp8_max", [448.0, 57344.0])
@pytest.mark.parametrize("amax", [2.0**-46, 2.0**-24, 1.0, 65504.0, 2.0**70])
def test_scales_of_ordinary_amaxes_are_normal_with_every_margin(margin, fp8_max, amax):
    recipe = DelayedScaling(margin=margin)
    scale = torch.tensor(fp8_max) * 2.0**-recipe.margin / amax
    for value in (scale, 1 / scale):
        assert torch.finfo(torch.float32).tiny <= value < float("inf")


def test_callables_are_accepted_where_documented():
    def algo(history):
        return history

    recipe = DelayedScaling(amax_compute_algo=algo, scaling_factor_compute_algo=max)
    assert recipe.amax_compute_algo is algo
    assert recipe.scaling_factor_compute_algo is max


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_recipes_compare_by_value_and_are_not_hashable(cls):
    assert cls(**ALL[cls]) == cls(**ALL[cls])
    changed = cls(**ALL[cls])
    changed.fp8_mha = True
    assert cls(**ALL[cls]) != changed
    with pytest.raises(TypeError, match="unhashable"):
        hash(cls(**ALL[cls]))


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_any_assignment_drops_text_and_native_object(cls):
    recipe = cls(**ALL[cls])
    assert recipe._native is None
    before = repr(recipe)
    assert "\n" not in before
    assert cls.__name__ in before
    native = object()
    recipe._native = native
    assert repr(recipe) is before  # cached, and asking for it keeps the native object
    assert recipe._native is native
    recipe.fp8_dpa = True
    assert recipe._native is None
    assert repr(recipe) != before
    assert repr(recipe) == before.replace("fp8_dpa=False", "fp8_dpa=True")
    recipe._native = native
    recipe.an_attribute_of_a_client = 1
    assert recipe._native is None
    recipe._native = native
    del recipe.an_attribute_of_a_client
    assert recipe._native is None


def test_text_distinguishes_what_behaves_differently():
    variants = [
        DelayedScaling(),
        DelayedScaling(margin=1),
        DelayedScaling(amax_compute_algo="most_recent"),
        DelayedScaling(amax_history_len=16),
        DelayedScaling(reduce_amax=False),
        DelayedScaling(fp8_format=Format.E4M3),
        DelayedScaling(scaling_factor_compute_algo=max),
        DelayedScaling(amax_compute_algo=max),
    ]
    assert len({repr(recipe) for recipe in variants}) == len(variants)
    assert repr(DelayedScaling()) == repr(DelayedScaling())


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda recipe: pickle.loads(pickle.dumps(recipe))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_copies_are_equal_and_carry_no_native_object(cls, duplicate):
    recipe = cls(**ALL[cls])
    recipe.fp8_mha = True
    recipe._native = object()
    twin = duplicate(recipe)
    assert type(twin) is cls
    assert twin == recipe
    assert twin.fp8_mha is True
    assert twin._native is None
    assert recipe._native is not None


def test_subclass_with_its_own_constructor_works():
    recipe = DelayedSubclass(2)
    assert (recipe.margin, recipe.amax_history_len) == (2, 7)
    assert isinstance(recipe, DelayedScaling)
    assert recipe.delayed()
    assert not recipe.mxfp8()
    assert "DelayedSubclass" in repr(recipe)
    assert pickle.loads(pickle.dumps(recipe)) == recipe


@pytest.mark.parametrize(
    "name", ["fp8_quant_fwd_inp", "fp8_quant_fwd_weight", "fp8_quant_bwd_grad"]
)
def test_current_scaling_parameters_follow_the_argument(name, monkeypatch):
    assert getattr(Float8CurrentScaling, name) == QParams()
    assert getattr(Float8CurrentScaling(), name).power_2_scale is False
    recipe = Float8CurrentScaling(use_power_2_scales=True)
    assert getattr(recipe, name).power_2_scale is True
    recipe.use_power_2_scales = False
    assert getattr(recipe, name).power_2_scale is False
    monkeypatch.setattr(Float8CurrentScaling, name, QParams(amax_epsilon=0.5))
    assert getattr(recipe, name).amax_epsilon == 0.5
    setattr(recipe, name, QParams(amax_epsilon=0.25))
    assert getattr(recipe, name).amax_epsilon == 0.25


@pytest.mark.parametrize(
    "name", ["fp8_quant_fwd_inp", "fp8_quant_fwd_weight", "fp8_quant_bwd_grad"]
)
def test_block_scaling_parameters_follow_the_argument(name):
    assert getattr(Float8BlockScaling, name).power_2_scale is True
    assert getattr(Float8BlockScaling(), name).power_2_scale is True
    assert getattr(Float8BlockScaling(use_f32_scales=True), name).power_2_scale is False


def test_nvfp4_parameters_follow_the_switches():
    recipe = NVFP4BlockScaling()
    assert recipe.fp4_quant_fwd_inp == QParams(random_hadamard_transform=True)
    assert recipe.fp4_quant_fwd_weight == QParams(fp4_2d_quantization=True)
    assert recipe.fp4_quant_bwd_grad == QParams(
        random_hadamard_transform=True, stochastic_rounding=True
    )
    plain = NVFP4BlockScaling(
        disable_rht=True, disable_stochastic_rounding=True, disable_2d_quantization=True
    )
    parameters = (plain.fp4_quant_fwd_inp, plain.fp4_quant_fwd_weight, plain.fp4_quant_bwd_grad)
    assert parameters == (QParams(), QParams(), QParams())


@pytest.mark.parametrize("cls", [MMParams, QParams])
def test_small_parameter_sets_are_frozen_and_hashable(cls):
    assert hash(cls()) == hash(cls())
    field = next(iter(cls.__dataclass_fields__))
    with pytest.raises(AttributeError):
        setattr(cls(), field, True)


def run_python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_environment_gives_the_defaults():
    code = (
        "from transformer_engine.common.recipe import *\n"
        "n = NVFP4BlockScaling()\n"
        "print(Float8CurrentScaling().use_power_2_scales,"
        " Float8CurrentScaling.fp8_quant_fwd_inp.power_2_scale,"
        " Float8BlockScaling().use_f32_scales,"
        " MXFP8BlockScaling().backward_override, n.disable_rht, n.disable_stochastic_rounding,"
        " n.disable_2d_quantization, n.row_scaled_activation, n.nvfp4_4over6,"
        " n.nvfp4_4over6_e4m3_use_256, n.nvfp4_4over6_err_mode)\n"
    )
    result = run_python(
        code,
        NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES="1",
        NVTE_FP8_BLOCK_SCALING_FP32_SCALES="1",
        NVTE_BACKWARD_OVERRIDE="high_precision",
        NVTE_NVFP4_DISABLE_RHT="1",
        NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING="1",
        NVTE_NVFP4_DISABLE_2D_QUANTIZATION="1",
        NVTE_NVFP4_ROW_SCALED_ACTIVATION="1",
        NVTE_NVFP4_4OVER6="weights",
        NVTE_NVFP4_4OVER6_E4M3_USE_256="none",
        NVTE_NVFP4_4OVER6_ERR_MODE="mse",
    )
    assert result.stdout.split() == [
        *["True", "True", "True", "high_precision"],
        *["True", "True", "True", "True", "weights", "none", "MSE"],
    ], result.stderr


def test_a_mistyped_environment_variable_is_an_import_error_that_names_it():
    code = "import transformer_engine.common.recipe"
    result = run_python(code, NVTE_NVFP4_4OVER6="weight")
    assert "ImportError" in result.stderr
    assert "NVTE_NVFP4_4OVER6 is 'weight'" in result.stderr
