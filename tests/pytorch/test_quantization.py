# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Quantization regions and delayed-scaling state: every change of a scale, against a model in plain
Python; switching recipes; the public facade.
"""

import copy
import gc
import math
import pickle
import threading
import warnings
import weakref

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.delayed_scaling import DelayedScalingModel
from helpers.modules import (
    IN,
    LINEAR_KINDS,
    assert_same,
    make,
    make_input,
    output_gradient,
    recipe_state,
)
from helpers.ranks import ranks
from helpers.tolerances import assert_identical
from transformer_engine.common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    Format,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)
from transformer_engine.common.recipe.formats import QParams
from transformer_engine.pytorch.constants import DType
from transformer_engine.pytorch.quantization import (
    FP8GlobalStateManager,
    check_recipe_support,
    get_align_size_for_quantization,
    get_default_recipe,
    get_fp4_te_dtype,
    get_fp8_max,
    get_fp8_te_dtype,
    get_fp8_torch_dtype,
)

manager = FP8GlobalStateManager


@pytest.fixture(autouse=True)
def fresh_state():
    manager.reset()
    yield
    manager.reset()


class LinearModel:
    """The five quantizer slots of a Linear under one delayed-scaling recipe."""

    def __init__(self, recipe, **keywords):
        settings = {
            "length": recipe.amax_history_len,
            "margin": recipe.margin,
            "most_recent": recipe.amax_compute_algo == "most_recent",
            **keywords,
        }
        backward_max = 57344.0 if recipe.fp8_format == Format.HYBRID else 448.0
        self.forward = [DelayedScalingModel(**settings) for _ in range(3)]
        self.backward = [DelayedScalingModel(fp8_max=backward_max, **settings) for _ in range(2)]

    def observe_forward(self, module, x):
        self.forward[0].observe(x)
        self.forward[1].observe(module.weight)

    def update(self, slots):
        for slot in slots:
            slot.update()

    def check(self, module):
        for key, slots in (("scaling_fwd", self.forward), ("scaling_bwd", self.backward)):
            state = module.fp8_meta[key]
            expected = torch.tensor([slot.history for slot in slots], dtype=torch.float32).T
            assert_identical(state.amax_history, expected.contiguous(), f"{key} history")
            expected = torch.tensor([slot.scale for slot in slots], dtype=torch.float32)
            assert_identical(state.scale, expected, f"{key} scale")


# Factors of the inputs, step by step: growing, shrinking, nothing at all.
FACTORS = [1.0, 3.0, 0.5, 0.0, 0.25, 2.0, 0.125, 0.125]


def scaled_input(factor, step):
    return (make_input(4, IN, seed=step).detach() * factor).requires_grad_()


def train_step(module, model, x, recipe, grad_factor=1.0):
    with te.autocast(recipe=recipe):
        output = module(x)
    model.observe_forward(module, x)
    model.update(model.forward)
    grad = output_gradient(output) * grad_factor
    output.backward(grad)
    model.backward[0].observe(grad)
    model.update(model.backward)


# ---- the update rule -----------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 3, 16])
@pytest.mark.parametrize("algo", ["max", "most_recent"])
@pytest.mark.parametrize("margin", [0, 2, -1])
def test_state_follows_the_rule(length, algo, margin):
    recipe = DelayedScaling(amax_history_len=length, amax_compute_algo=algo, margin=margin)
    module, model = make("Linear"), LinearModel(recipe)
    for step, factor in enumerate(FACTORS):
        train_step(module, model, scaled_input(factor, step), recipe, 4.0 * factor)
        model.check(module)


def test_the_e4m3_format_scales_gradients_to_448():
    recipe = DelayedScaling(fp8_format=Format.E4M3, amax_history_len=2)
    module, model = make("Linear"), LinearModel(recipe)
    for step in range(3):
        train_step(module, model, scaled_input(1.0, step), recipe)
        model.check(module)
    assert module.fp8_meta["fp8_max_bwd"] == 448.0


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_infinity_and_nan_do_not_move_a_scale(value):
    recipe = DelayedScaling(amax_history_len=3)
    module, model = make("Linear"), LinearModel(recipe)
    for step in range(5):
        x = scaled_input(1.0, step)
        if step == 2:
            with torch.no_grad():
                x[1, 3] = value
        with te.autocast(recipe=recipe):
            module(x)
        model.observe_forward(module, x)
        model.update(model.forward)
        model.check(module)
        assert module.fp8_meta["scaling_fwd"].scale.isfinite().all()


def test_a_vanishing_amax_gives_the_largest_scale():
    recipe = DelayedScaling(amax_history_len=2, amax_compute_algo="most_recent")
    module, model = make("Linear"), LinearModel(recipe)
    train_step(module, model, scaled_input(1e-39, 0), recipe)
    model.check(module)
    assert module.fp8_meta["scaling_fwd"].scale[0] == torch.finfo(torch.float32).max


# ---- callables: the unfused rule -----------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_callable_chooses_the_amax(length):
    def second_largest_or_only(history):  # [length, n] -> [n]
        return history.sort(dim=0).values[-min(2, history.shape[0])]

    def on_one(column):
        return sorted(column)[-min(2, len(column))]

    recipe = DelayedScaling(amax_history_len=length, amax_compute_algo=second_largest_or_only)
    module = make("Linear")
    model = LinearModel(recipe, unfused=True, amax_of=on_one)
    for step, factor in enumerate(FACTORS):
        train_step(module, model, scaled_input(factor, step), recipe, factor)
        model.check(module)


def test_a_callable_computes_the_scale():
    calls = []

    def scaling(amax, scale, fp8_max, recipe):
        calls.append((amax.clone(), scale.clone(), fp8_max, recipe))
        return scale * 2

    recipe = DelayedScaling(amax_history_len=2, scaling_factor_compute_algo=scaling)
    module, x = make("Linear"), make_input()
    for _ in range(2):
        with te.autocast(recipe=recipe):
            output = module(x)
        output.sum().backward()
    assert_identical(module.fp8_meta["scaling_fwd"].scale, torch.full((3,), 4.0))
    assert [call[2] for call in calls] == [448.0, 57344.0] * 2
    assert calls[0][0][:2].tolist() == [x.abs().max().item(), module.weight.abs().max().item()]
    assert all(call[3] == recipe for call in calls)


@pytest.mark.parametrize("algo", ["max", "most_recent"])
def test_the_environment_asks_for_the_unfused_rule(monkeypatch, algo):
    monkeypatch.setenv("NVTE_UNFUSED_FP8_UPDATE", "1")
    # A margin of its own: equal recipes share what was decided for the first.
    recipe = DelayedScaling(amax_history_len=3, margin=3, amax_compute_algo=algo)
    module, model = make("Linear"), LinearModel(recipe, unfused=True)
    for step, factor in enumerate(FACTORS):
        train_step(module, model, scaled_input(factor, step), recipe, factor)
        model.check(module)


@pytest.mark.parametrize(
    ("field", "answer", "error", "message"),
    [
        ("amax_compute_algo", 3.0, TypeError, r"returned 3\.0 of type float; .* shape \(3,\)"),
        ("amax_compute_algo", torch.ones(2), ValueError, r"shape \(2,\) .*of shape \(3,\)"),
        ("amax_compute_algo", torch.ones(4, 3), ValueError, r"shape \(4, 3\) .*of shape \(3,\)"),
        ("amax_compute_algo", torch.ones(3, dtype=torch.int64), ValueError, r"torch\.int64"),
        ("scaling_factor_compute_algo", "x", TypeError, r"returned 'x' of type str"),
        ("scaling_factor_compute_algo", None, TypeError, r"returned None of type NoneType"),
        ("scaling_factor_compute_algo", torch.ones(()), ValueError, r"shape \(\) .*\(3,\)"),
        *(
            ("scaling_factor_compute_algo", torch.tensor([1.0, bad, 2.0]), ValueError, r"positive")
            for bad in (0.0, -1.0, float("nan"), float("inf"))
        ),
    ],
)
def test_unfit_answers_of_callables_are_refused(field, answer, error, message):
    answers = {}
    recipe = DelayedScaling(amax_history_len=4, **{field: lambda *_: answers[field]})
    answers[field] = torch.ones(3)
    module = make("Linear")
    with te.autocast(recipe=recipe):
        module(make_input())
    state = module.fp8_meta["scaling_fwd"]
    scale = state.scale.clone()
    answers[field] = answer
    with (
        pytest.raises(error, match=f"DelayedScaling: {field} .*{message}"),
        te.autocast(recipe=recipe),
    ):
        module(make_input())
        history = state.amax_history.clone()
    assert torch.equal(state.scale, scale)
    assert torch.equal(state.amax_history, history)
    assert not manager.is_fp8_enabled()


def test_an_error_in_a_callable_reaches_the_caller():
    def fails(history):
        raise ArithmeticError("no amax")

    recipe = DelayedScaling(amax_compute_algo=fails)
    module = make("Linear")
    with pytest.raises(ArithmeticError, match="no amax"), te.autocast(recipe=recipe):
        module(make_input())
    assert not manager.is_fp8_enabled()


# ---- when updates happen -------------------------------------------------------------------------


def test_evaluation_changes_no_scale():
    recipe = DelayedScaling(amax_history_len=3)
    module, model = make("Linear"), LinearModel(recipe)
    train_step(module, model, scaled_input(1.0, 0), recipe)
    for context in (torch.no_grad, torch.inference_mode):
        before = recipe_state(module)
        with context(), te.autocast(recipe=recipe):
            module(scaled_input(2.0, 1))
        after = recipe_state(module)
        for name in ("scaling_fwd.scale", "scaling_bwd.scale", "scaling_bwd.amax_history"):
            assert_identical(after[name], before[name])
        assert_identical(
            after["scaling_fwd.amax_history"][1:], before["scaling_fwd.amax_history"][1:]
        )
    # What evaluation saw counts for the training step in progress.
    model.observe_forward(module, scaled_input(2.0, 1))
    train_step(module, model, scaled_input(0.5, 2), recipe)
    model.check(module)


def test_evaluation_before_a_training_module_does_not_take_the_backward_update():
    recipe = DelayedScaling(amax_history_len=3)
    frozen, module, model = make("Linear"), make("Linear"), LinearModel(recipe)
    x = make_input()
    with te.autocast(recipe=recipe):
        with torch.no_grad():
            frozen(x)
        output = module(x)
    model.observe_forward(module, x)
    model.update(model.forward)
    grad = output_gradient(output)
    output.backward(grad)
    model.backward[0].observe(grad)
    model.update(model.backward)
    model.check(module)


def test_only_the_outermost_region_updates():
    recipe = DelayedScaling(amax_history_len=3)
    module, model = make("Linear"), LinearModel(recipe)
    x, bigger = make_input(), scaled_input(5.0, 2)
    with te.autocast(recipe=recipe):
        with te.autocast(recipe=recipe):
            module(x)
        model.observe_forward(module, x)
        model.check(module)  # still the step in progress
        module(bigger)
        model.observe_forward(module, bigger)
        model.check(module)
    model.update(model.forward)
    model.check(module)


def test_a_disabled_region_inside_computes_in_high_precision():
    recipe = DelayedScaling(amax_history_len=3)
    module, x = make("Linear"), make_input()
    expected = module(x)
    with te.autocast(recipe=recipe):
        quantized = module(x)
        with te.autocast(enabled=False):
            assert not manager.is_fp8_enabled()
            assert_identical(module(x), expected)
            assert not module.fp8
        assert manager.is_fp8_enabled()
        assert manager.get_fp8_recipe() is recipe
        assert_identical(module(x), quantized)
        assert module.fp8
    assert not torch.equal(quantized, expected)


def test_an_exception_leaves_the_region_and_updates():
    recipe = DelayedScaling(amax_history_len=3)
    module, model = make("Linear"), LinearModel(recipe)
    x = make_input()
    with pytest.raises(KeyError), te.autocast(recipe=recipe):
        module(x)
        raise KeyError("body")
    assert not manager.is_fp8_enabled()
    model.observe_forward(module, x)
    model.update(model.forward)
    model.check(module)


@pytest.mark.parametrize("kind", LINEAR_KINDS)
def test_a_refused_call_leaves_the_state_alone(kind):
    recipe = DelayedScaling(amax_history_len=3, scaling_factor_compute_algo=lambda a, s, m, r: s)
    module, x = make(kind), make_input()
    with te.autocast(recipe=recipe):
        module(x)
    before = recipe_state(module)
    for wrong in (torch.zeros(2, 5), x.double(), x.bfloat16(), torch.zeros(2, IN, device="meta")):
        with te.autocast(recipe=recipe), pytest.raises((ValueError, TypeError, RuntimeError)):
            module(wrong)
    assert_same(recipe_state(module), before)


def test_the_first_modules_backward_updates_all():
    recipe = DelayedScaling(amax_history_len=3)
    first, second = te.Linear(IN, IN, device=torch.get_default_device()), make("Linear")
    x = make_input()
    with te.autocast(recipe=recipe):
        between = first(x)
        output = second(between)
    grad = output_gradient(output)
    fresh = recipe_state(second)
    (grad_between,) = torch.autograd.grad(output, between, grad, retain_graph=True)
    observed = recipe_state(second)
    assert_identical(observed["scaling_bwd.scale"], fresh["scaling_bwd.scale"])
    assert observed["scaling_bwd.amax_history"][0, 0] == grad.abs().max()
    output.backward(grad)
    for module, gradient in ((first, grad_between), (second, grad)):
        history = module.fp8_meta["scaling_bwd"].amax_history
        assert history[:, 0].tolist() == [0, 0, gradient.abs().max().item()]


def test_a_module_used_twice_in_a_region_is_updated_once():
    recipe = DelayedScaling(amax_history_len=4)
    module, model = te.Linear(IN, IN, device=torch.get_default_device()), LinearModel(recipe)
    for step in range(3):
        x = scaled_input(1.0 + step, step)
        grads = []
        with te.autocast(recipe=recipe):
            between = module(x)
            between.register_hook(grads.append)
            output = module(between)
        for tensor in (x, between):
            model.observe_forward(module, tensor)
        model.update(model.forward)
        grad = output_gradient(output)
        output.backward(grad)
        for gradient in (grad, *grads):
            model.backward[0].observe(gradient)
        model.update(model.backward)
        model.check(module)


def test_gradient_accumulation_over_regions_updates_each_time():
    recipe = DelayedScaling(amax_history_len=4)
    module, model = make("Linear"), LinearModel(recipe)
    outputs = []
    for step in range(3):  # all forwards first
        x = scaled_input(1.0 + step, step)
        with te.autocast(recipe=recipe):
            outputs.append(module(x))
        model.observe_forward(module, x)
        model.update(model.forward)
    for output in outputs:
        grad = output_gradient(output)
        output.backward(grad)
        model.backward[0].observe(grad)
        model.update(model.backward)
        model.check(module)


# ---- other recipes on the way --------------------------------------------------------------------


def test_history_length_and_recipe_change_between_steps():
    short, long = DelayedScaling(amax_history_len=4), DelayedScaling(amax_history_len=16)
    module, model = make("Linear"), LinearModel(short)
    step = 0

    def steps(recipe, count):
        nonlocal step
        for _ in range(count):
            train_step(module, model, scaled_input(1.0 / (1 + step), step), recipe)
            model.check(module)
            step += 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a length is no other recipe
        steps(short, 3)
        for recipe in (long, short, DelayedScaling(amax_history_len=2)):
            for slot in (*model.forward, *model.backward):
                slot.resize(recipe.amax_history_len)
            steps(recipe, 3)


def test_a_changed_length_gives_what_a_fresh_module_with_that_state_gives():
    short, long = DelayedScaling(amax_history_len=4), DelayedScaling(amax_history_len=16)
    module, x = make("Linear"), make_input()

    def one_step(module, recipe):
        module.zero_grad()
        with te.autocast(recipe=recipe):
            output = module(x)
        output.backward(output_gradient(output))
        return {"output": output.detach(), "weight": module.weight.grad, **recipe_state(module)}

    for _ in range(3):
        one_step(module, short)
    twin = make("Linear")
    twin.load_state_dict(module.state_dict())
    for recipe in (long, long, short):
        assert_same(one_step(module, recipe), one_step(twin, recipe))


@pytest.mark.parametrize("kind", LINEAR_KINDS)
def test_another_recipe_class_rebuilds_and_warns_once(kind):
    delayed, current = DelayedScaling(amax_history_len=4), Float8CurrentScaling()
    module, x = make(kind), make_input()

    def call(module, recipe):
        with te.autocast(recipe=recipe):
            return module(x)

    call(module, delayed)
    with pytest.warns(UserWarning, match="Recipe type changed from DelayedScaling to Float8Cur"):
        output = call(module, current)
    assert_identical(output, call(make(kind), current))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(module, current)
        module(x)
    with pytest.warns(UserWarning, match="Recipe type changed from Float8CurrentScaling to Del"):
        output = call(module, delayed)
    assert_identical(output, call(make(kind), delayed))  # a fresh state
    assert module.fp8_meta["scaling_fwd"].amax_history.shape == (4, 3 * module.num_gemms)


def test_other_settings_of_one_class_keep_the_state():
    module, model = make("Linear"), LinearModel(DelayedScaling(amax_history_len=3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step, margin in enumerate([0, 0, 3, 3, 1]):
            recipe = DelayedScaling(amax_history_len=3, margin=margin)
            for slot in (*model.forward, *model.backward):
                slot.margin = margin
            train_step(module, model, scaled_input(1.0, step), recipe)
            model.check(module)


def test_a_recipe_changed_in_place_takes_effect():
    recipe = DelayedScaling(amax_history_len=3)
    module, model = make("Linear"), LinearModel(recipe)
    train_step(module, model, scaled_input(1.0, 0), recipe)
    recipe.margin = 2
    for slot in (*model.forward, *model.backward):
        slot.margin = 2
    train_step(module, model, scaled_input(1.0, 1), recipe)
    model.check(module)


def test_replaced_quantization_parameters_take_effect():
    module, x = make("Linear"), make_input()
    plain, replaced = Float8CurrentScaling(), Float8CurrentScaling()
    replaced.fp8_quant_fwd_inp = QParams(amax_epsilon=1e6)  # so that the input vanishes
    outputs = []
    for recipe in (plain, replaced, plain):
        with te.autocast(recipe=recipe):
            outputs.append(module(x))
    assert_identical(outputs[2], outputs[0])
    assert not torch.equal(outputs[1], outputs[0])


def test_recipes_may_nest_and_alternate():
    delayed, current = DelayedScaling(amax_history_len=3), Float8CurrentScaling()
    outer, inner, x = make("Linear"), make("Linear"), make_input()
    with te.autocast(recipe=current):
        expected = inner(x)
    model = LinearModel(delayed)
    for _ in range(2):
        with te.autocast(recipe=delayed):
            outer(x)
            with te.autocast(recipe=current):
                assert manager.get_fp8_recipe() is current
                assert_identical(inner(x), expected)
        model.observe_forward(outer, x)
        model.update(model.forward)
        model.check(outer)


def test_a_backward_after_the_recipe_changed_uses_its_forwards_recipe():
    delayed, current = DelayedScaling(amax_history_len=3), Float8CurrentScaling()
    results = []
    for switches in (False, True):
        module, x = make("Linear"), make_input()
        with te.autocast(recipe=delayed):
            output = module(x)
        if switches:
            with (
                pytest.warns(UserWarning, match="Recipe type changed"),
                te.autocast(recipe=current),
            ):
                module(x)
        output.backward(output_gradient(output))
        results.append({"inp": x.grad, "weight": module.weight.grad})
    assert_same(results[1], results[0])


# ---- module methods on the state -----------------------------------------------------------------


def test_history_length_can_be_adjusted_by_hand():
    recipe = DelayedScaling(amax_history_len=4)
    module, model = make("Linear"), LinearModel(recipe)
    module.adjust_amax_history_length(8)  # nothing to adjust yet
    for step in range(4):
        train_step(module, model, scaled_input(1.0, step), recipe)
    module.adjust_amax_history_length(2, fwd=True)
    for slot in model.forward:
        slot.resize(2)
    model.check(module)
    module.adjust_amax_history_length(6, fwd=False)
    for slot in model.backward:
        slot.resize(6)
    model.check(module)
    module.adjust_amax_history_length(3)
    for slot in (*model.forward, *model.backward):
        slot.resize(3)
    model.check(module)
    with pytest.raises(ValueError, match="adjust_amax_history_length: length is 0; at least 1"):
        module.adjust_amax_history_length(0)


def test_buffers_can_be_saved_put_back_and_reset():
    recipe = DelayedScaling(amax_history_len=4)
    module, model = make("Linear"), LinearModel(recipe)
    assert module.get_fp8_meta_tensors() is None
    module.reset_fp8_meta_tensors()
    train_step(module, model, scaled_input(1.0, 0), recipe)
    saved, before = module.get_fp8_meta_tensors(), recipe_state(module)
    train_step(module, model, scaled_input(9.0, 1), recipe)
    module.reset_fp8_meta_tensors(saved)
    assert_same(recipe_state(module), before)
    module.reset_fp8_meta_tensors()
    LinearModel(recipe).check(module)


def test_metadata_can_be_made_before_a_forward():
    module, recipe = make("Linear"), DelayedScaling(amax_history_len=5)
    module.init_fp8_metadata()
    assert not module.fp8_initialized
    with te.autocast(recipe=recipe):
        module.init_fp8_metadata(num_gemms=1)
        made = module.fp8_meta["scaling_fwd"]
        module.init_fp8_metadata()
        module(make_input())
    assert module.fp8_meta["scaling_fwd"] is made
    assert module.fp8_meta["recipe"] is recipe
    assert module.fp8_meta["fp8_checkpoint"]
    assert module.fp8_initialized
    assert (module.fp8_meta["fp8_max_fwd"], module.fp8_meta["fp8_max_bwd"]) == (448.0, 57344.0)
    assert made.scale.shape == (3,)
    assert made.amax_history.shape == (5, 3)
    assert len(module.quantizers["scaling_fwd"]) == 3
    assert len(module.quantizers["scaling_bwd"]) == 2


def test_python_quantizers_share_the_modules_state():
    module, recipe = make("Linear"), DelayedScaling(amax_history_len=2)
    with te.autocast(recipe=recipe):
        module(make_input())
    quantizer = module.quantizers["scaling_fwd"][0]
    assert_identical(quantizer.scale, module.fp8_meta["scaling_fwd"].scale[:1])
    quantizer(torch.full((2, 2), 1e3))
    assert module.fp8_meta["scaling_fwd"].amax_history[0, 0] == 1e3
    with te.autocast(recipe=recipe):
        module(make_input())
    assert module.fp8_meta["scaling_fwd"].amax_history[-1, 0] == 1e3


# ---- regions and the facade ----------------------------------------------------------------------


def test_the_facade_reads_the_region():
    recipe, group = DelayedScaling(), torch.distributed.ProcessGroup(0, 1)
    assert not manager.is_fp8_enabled()
    assert not manager.is_fp8_calibration()
    assert not manager.fp8_graph_capturing()
    assert manager.get_fp8_group() is None
    assert manager.get_fp8_recipe() == get_default_recipe()
    with te.autocast(
        enabled=True, calibrating=True, recipe=recipe, amax_reduction_group=group, _graph=True
    ):
        assert manager.is_fp8_enabled()
        assert manager.is_fp8_calibration()
        assert manager.fp8_graph_capturing()
        assert manager.get_fp8_recipe() is recipe
        assert manager.get_fp8_group() is group
    assert not manager.is_fp8_enabled()


def test_a_region_without_recipe_uses_the_default():
    with te.autocast():
        assert manager.get_fp8_recipe() == get_default_recipe() == DelayedScaling()
    with te.autocast(enabled=False):
        assert manager.get_fp8_recipe() == get_default_recipe()


def test_the_first_module_flag_is_read_and_cleared():
    with te.autocast():
        assert manager.is_first_fp8_module()
        assert not manager.is_first_fp8_module()
        with te.autocast():
            assert not manager.is_first_fp8_module()
    with te.autocast(), te.autocast():
        assert manager.is_first_fp8_module()


def test_a_region_can_be_reused_but_not_entered_twice():
    region = te.autocast()
    with region, pytest.raises(RuntimeError, match="autocast: this instance is active already"):
        region.__enter__()
    assert not manager.is_fp8_enabled()
    with region:
        assert manager.is_fp8_enabled()
    with pytest.raises(RuntimeError, match="autocast: this instance is not active"):
        te.autocast().__exit__(None, None, None)


def test_what_is_no_recipe_leaves_the_region_as_it_was():
    with te.autocast(recipe=Float8CurrentScaling()) as _:
        before = manager.get_fp8_recipe()
        with pytest.raises(TypeError, match="autocast: recipe is"):
            te.autocast(recipe="mxfp8").__enter__()
        assert manager.get_fp8_recipe() is before
        assert manager.is_fp8_enabled()
    assert not manager.is_fp8_enabled()
    with pytest.raises(TypeError, match="check_recipe_support: recipe is"):
        check_recipe_support("mxfp8")


def test_states_can_be_copied_and_put_in_force():
    recipe = Float8CurrentScaling()
    outside = manager.get_autocast_state()
    with te.autocast(recipe=recipe):
        inside = manager.get_autocast_state()
        manager.set_autocast_state(outside)
        assert not manager.is_fp8_enabled()
        manager.set_autocast_state(inside)
        assert manager.is_fp8_enabled()
        assert manager.get_fp8_recipe() is recipe


def test_reset_forgets_regions():
    region = te.autocast()
    region.__enter__()
    manager.reset()
    assert not manager.is_fp8_enabled()


def test_the_deprecated_names_work_and_warn():
    recipe, group = DelayedScaling(), torch.distributed.ProcessGroup(0, 1)
    with pytest.warns(DeprecationWarning, match="fp8_autocast is deprecated; use autocast"):
        region = te.fp8_autocast(enabled=True, fp8_recipe=recipe, fp8_group=group)
    with region:
        assert manager.get_fp8_recipe() is recipe
        assert manager.get_fp8_group() is group
    with pytest.warns(DeprecationWarning, match="fp8_model_init is deprecated"):
        context = te.fp8_model_init(enabled=True)
    with context:
        assert manager.with_fp8_parameters()
    assert not manager.with_fp8_parameters()


def test_model_init_regions_nest_and_survive_exceptions():
    with te.quantized_model_init(preserve_high_precision_init_val=True):
        assert manager.with_fp8_parameters()
        assert manager.with_high_precision_init_val()
        with te.quantized_model_init(enabled=False):
            assert not manager.with_fp8_parameters()
            assert not manager.with_high_precision_init_val()
        assert manager.with_fp8_parameters()
    with pytest.raises(KeyError), te.quantized_model_init():
        raise KeyError
    assert not manager.with_fp8_parameters()


def test_availability():
    for name in ("fp8", "mxfp8", "fp8_block_scaling", "nvfp4"):
        answer = getattr(te, f"is_{name}_available")()
        available, reason = getattr(te, f"is_{name}_available")(return_reason=True)
        assert answer is available is True
        assert reason == ""
        assert getattr(manager, f"is_{name}_available")() == (available, reason)
    check_recipe_support(None)
    for recipe in (
        *(DelayedScaling(), Float8CurrentScaling(), Float8BlockScaling(), MXFP8BlockScaling()),
        *(NVFP4BlockScaling(), CustomRecipe(qfactory=lambda role: None)),
    ):
        check_recipe_support(recipe)


def test_formats_of_recipes():
    hybrid, e4m3 = DelayedScaling(), Float8CurrentScaling(fp8_format=Format.E4M3)
    assert get_fp8_te_dtype(hybrid) == get_fp8_te_dtype(e4m3, False) == DType.kFloat8E4M3
    assert get_fp8_te_dtype(hybrid, False) == DType.kFloat8E5M2
    assert get_fp8_torch_dtype(hybrid, False) == torch.float8_e5m2
    assert (get_fp8_max(hybrid), get_fp8_max(hybrid, False), get_fp8_max(e4m3, False)) == (
        448.0,
        57344.0,
        448.0,
    )
    assert get_fp4_te_dtype(NVFP4BlockScaling()) == DType.kFloat4E2M1
    with pytest.raises(ValueError, match="get_fp4_te_dtype: recipe has fp4_format None"):
        get_fp4_te_dtype(hybrid)
    aligned = {DelayedScaling: 16, Float8CurrentScaling: 16, MXFP8BlockScaling: 32}
    for recipe, size in {**aligned, NVFP4BlockScaling: 128}.items():
        assert get_align_size_for_quantization(recipe()) == size


def test_the_skip_tensor():
    assert manager.get_skip_fp8_weight_update_tensor() is None
    manager.set_skip_fp8_weight_update_tensor(True)
    tensor = manager.get_skip_fp8_weight_update_tensor()
    assert (tensor.shape, tensor.dtype, tensor.item()) == ((1,), torch.float32, 1.0)
    manager.set_skip_fp8_weight_update_tensor(False)
    assert manager.get_skip_fp8_weight_update_tensor() is tensor
    assert tensor.item() == 0.0


def test_autocast_keys_tell_recipes_and_groups_apart():
    key = manager.get_unique_autocast_key
    group = object()
    assert key(DelayedScaling(), group) == key(DelayedScaling(), group)
    assert key(DelayedScaling(), group) != key(DelayedScaling(), None)
    assert key(DelayedScaling(), group) != key(DelayedScaling(margin=1), group)


def test_updates_can_be_asked_for_by_hand():
    recipe = DelayedScaling(amax_history_len=3)
    module, model = make("Linear"), LinearModel(recipe)
    x = make_input()
    with torch.no_grad(), te.autocast(recipe=recipe):
        module(x)
    model.observe_forward(module, x)
    model.check(module)
    manager.reduce_and_update_fp8_tensors(forward=False)
    model.check(module)
    manager.reduce_and_update_fp8_tensors(forward=True)
    model.update(model.forward)
    model.check(module)


# ---- life time, threads, process groups ----------------------------------------------------------


def test_a_module_that_died_before_the_update_is_forgotten():
    with te.autocast():
        make("Linear")(make_input())
        gc.collect()
    with te.autocast():
        make("Linear")(make_input())


def test_threads_have_regions_and_steps_of_their_own():
    recipe = DelayedScaling(amax_history_len=4)
    failures = []
    barrier = threading.Barrier(2)

    def work(index):
        try:
            module, model = make("Linear", seed=index), LinearModel(recipe)
            for step in range(30):
                x = scaled_input(1.0 + index, step)
                with te.autocast(recipe=recipe):
                    output = module(x)
                    barrier.wait()  # both are inside
                    if index:
                        barrier.wait()
                    model.observe_forward(module, x)
                    model.check(module)
                if not index:
                    barrier.wait()  # one leaves first
                model.update(model.forward)
                model.check(module)
                grad = output_gradient(output)
                output.backward(grad)
                model.backward[0].observe(grad)
                model.update(model.backward)
                model.check(module)
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def on_rank(rank, scenario):
    """Three steps of two modules; returns their states and what each step observed."""
    manager.reset()
    recipe = DelayedScaling(amax_history_len=3, reduce_amax=scenario != "not reduced")
    modules = [te.Linear(IN, IN, device=torch.get_default_device()) for _ in range(2)]
    for module in modules:
        with torch.no_grad():
            module.weight.fill_(0.5)
        with torch.no_grad(), te.autocast(recipe=recipe):
            module(torch.zeros(2, IN))  # so that every rank knows every module
    seen = []
    for step in range(3):
        x = torch.full((2, IN), float((rank + 1) * (step + 1)), requires_grad=True)
        with te.autocast(recipe=recipe):
            output = modules[0](x)
            if scenario != "idle" or rank == 0:
                output = modules[1](output)
        seen.append(x.abs().max().item())
        if scenario == "idle rank" and rank == 1:
            continue
        output.sum().backward()
    return [recipe_state(module) for module in modules], seen


@pytest.mark.slow  # starts processes
@pytest.mark.parametrize("scenario", ["reduced", "not reduced", "idle"])
def test_amaxes_are_reduced_over_the_group(scenario):
    (first, seen_first), (second, seen_second) = ranks(2).run(on_rank, scenario)
    assert seen_second == [2 * value for value in seen_first]
    history = [states[0]["scaling_fwd.amax_history"][:, 0].tolist() for states in (first, second)]
    if scenario == "not reduced":
        assert history == [[0, seen_first[1], seen_first[2]], [0, seen_second[1], seen_second[2]]]
        return
    assert history == [[0, seen_second[1], seen_second[2]]] * 2
    for one, other in zip(first, second, strict=True):
        for name in ("scaling_fwd.scale", "scaling_fwd.amax_history"):
            assert_identical(one[name], other[name], name)
    assert first[0]["scaling_fwd.scale"][0] == 448.0 / seen_second[2]


def use_one_of_two_on_rank(rank):
    """The history of a module that no rank uses, and of one that the first rank uses."""
    manager.reset()
    recipe = DelayedScaling(amax_history_len=3)
    modules = [te.Linear(IN, IN, device=torch.get_default_device()) for _ in range(2)]
    for module in modules:
        with te.autocast(recipe=recipe):
            module(torch.zeros(2, IN))  # so that every rank knows every module
        module.fp8_meta["scaling_fwd"].amax_history.zero_()
        # As a write to a quantized weight is observed between steps.
        module.fp8_meta["scaling_fwd"].amax_history[0, 1] = 5.0
    with te.autocast(recipe=recipe):
        if rank == 0:
            modules[1](torch.full((2, IN), 7.0))
    return [module.fp8_meta["scaling_fwd"].amax_history[:, :2].tolist() for module in modules]


@pytest.mark.slow  # starts processes
def test_modules_that_no_rank_used_do_not_advance():
    for unused, used in ranks(2).run(use_one_of_two_on_rank):
        assert unused == [[0, 5], [0, 0], [0, 0]]
        assert used == [[0, 0], [0, 0], [7, 5]]


def test_a_region_decorates_functions():
    module, x = te.Linear(16, 16, device=torch.get_default_device()), torch.randn(4, 16)
    region = te.autocast(recipe=Float8CurrentScaling())

    @region
    def call(depth: int) -> torch.Tensor:
        """Documented."""
        return module(x) if depth == 0 else call(depth - 1)

    assert call.__name__ == "call" and call.__doc__ == "Documented."
    with region:
        expected = module(x)
        assert torch.equal(call(2), expected)  # nested in itself and in its own region
    assert torch.equal(call(0), expected)
    assert not FP8GlobalStateManager.is_fp8_enabled()

    @region
    def fail() -> None:
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        fail()
    assert not FP8GlobalStateManager.is_fp8_enabled()


def test_regions_show_their_arguments_and_can_be_copied():
    recipe = DelayedScaling(margin=2)
    region = te.autocast(enabled=False, calibrating=True, recipe=recipe)
    with region:
        for other in (copy.copy(region), copy.deepcopy(region), pickle.loads(pickle.dumps(region))):
            assert type(other) is te.autocast
            assert (other.enabled, other.calibrating) == (False, True)
            assert other.recipe == recipe and other.amax_reduction_group is None
            with other:  # not entered, though the original is
                assert FP8GlobalStateManager.is_fp8_calibration()
    assert te.autocast().recipe is None
    assert weakref.ref(region)() is region


def test_only_an_entered_region_can_be_left():
    with te.autocast(recipe=DelayedScaling()):
        with pytest.raises(RuntimeError, match="autocast: this instance is not active"):
            te.autocast().__exit__(None, None, None)
        assert FP8GlobalStateManager.is_fp8_enabled()
    assert not FP8GlobalStateManager.is_fp8_enabled()
