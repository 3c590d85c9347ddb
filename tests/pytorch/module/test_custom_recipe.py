# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Recipes whose quantizers come from a factory: roles, requests, and quantizers in Python."""

from __future__ import annotations

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.modules import assert_same, make, make_input, output_gradient, run
from helpers.quantizers import ALL_QUANTIZERS
from transformer_engine.common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8CurrentScaling,
    Format,
    MXFP8BlockScaling,
)
from transformer_engine.pytorch.constants import DType
from transformer_engine.pytorch.quantization import (
    DelayedScalingRequest,
    QuantizerRole,
    RecipeState,
)

KINDS = pytest.mark.parametrize("kind", ["Linear", "LayerNormLinear", "LayerNormMLP"])


def identity(role):
    return te.IdentityQuantizer()


def current(role):
    is_gradient = role is not None and role.tensor_type.startswith("grad")
    dtype = DType.kFloat8E5M2 if is_gradient else DType.kFloat8E4M3
    return te.Float8CurrentScalingQuantizer(dtype, torch.device("cpu"))


def mxfp8(role):
    return te.MXFP8Quantizer(DType.kFloat8E4M3)


def run_in(recipe, module, x):
    module.zero_grad()
    x.grad = None
    with te.autocast(recipe=recipe):
        y = module(x)
    y.backward(output_gradient(y))
    grads = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    return {"output": y.detach(), "inp": x.grad.clone(), **grads}


# ---- the factory ---------------------------------------------------------------------------------


@KINDS
def test_the_factory_is_called_once_for_each_slot_in_order(kind):
    module = make(kind, params_dtype=torch.bfloat16, name="layer")
    roles = []

    def factory(role):
        roles.append(role)
        return current(role)

    recipe = CustomRecipe(qfactory=factory)
    x = make_input(6, 24, dtype=torch.bfloat16)
    for _ in range(3):
        run_in(recipe, module, x)
    names = ["layer"] if kind != "LayerNormMLP" else ["layer.fc1", "layer.fc2"]
    forward = [
        QuantizerRole("linear", tensor_type, name) if tensor_type else None
        for name in names
        for tensor_type in ("input", "weight", None)
    ]
    backward = [
        QuantizerRole("linear", tensor_type, name) if tensor_type else None
        for name in names
        for tensor_type in ("grad_output", None)
    ]
    assert roles == forward + backward


def test_consumer_roles_reach_the_factory_and_rebuild_the_quantizers():
    module = make("LayerNormMLP", params_dtype=torch.bfloat16)
    roles = []

    def factory(role):
        roles.append(role)
        return current(role)

    recipe = CustomRecipe(qfactory=factory)
    x = make_input(6, 24, dtype=torch.bfloat16)
    run_in(recipe, module, x)
    wanted = QuantizerRole("dpa", "qkv", "attention")
    roles.clear()
    module.output_quantizer_role = wanted
    assert roles[5] is wanted and roles[2] is None and len(roles) == 10
    roles.clear()
    module.grad_input_quantizer_role = wanted
    assert roles[6 + 1] is wanted and roles[6 + 3] is None
    assert module.output_quantizer_role is module.grad_input_quantizer_role is wanted
    with pytest.raises(TypeError, match="output_quantizer_role is a str; a QuantizerRole"):
        module.output_quantizer_role = "qkv"


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (None, ValueError, r"qfactory returned None for QuantizerRole\(module_type='linear'"),
        ("mxfp8", TypeError, "qfactory returned a str"),
        (te.MXFP8Quantizer, TypeError, "qfactory returned a"),
    ],
)
def test_other_answers_are_refused_and_the_module_still_works(made, error, message):
    module = make("Linear")
    x = make_input()
    expected = run(module, x)
    with pytest.raises(error, match=message), te.autocast(recipe=CustomRecipe(lambda role: made)):
        module(x)
    assert_same(run(module, x), expected)


def test_an_error_of_the_factory_passes_through():
    def factory(role):
        raise KeyError("no entry")

    with pytest.raises(KeyError, match="no entry"), te.autocast(recipe=CustomRecipe(factory)):
        make("Linear")(make_input())


def test_a_state_without_roles_warns_and_passes_none():
    asked = []

    def factory(role):
        asked.append(role)
        return identity(role)

    recipe = CustomRecipe(qfactory=factory)
    state = RecipeState.create(recipe, mode="backward", num_quantizers=2)
    with pytest.warns(UserWarning, match="gives no roles"):
        assert len(state.make_quantizers()) == 2
    assert asked == [None, None]


# ---- what the quantizers do ----------------------------------------------------------------------


@KINDS
def test_identity_quantizers_leave_everything_as_it_is(kind):
    module = make(kind, params_dtype=torch.bfloat16)
    x = make_input(6, 24, dtype=torch.bfloat16)
    assert_same(run_in(CustomRecipe(qfactory=identity), module, x), run(module, x))


@KINDS
@pytest.mark.parametrize(
    ("factory", "recipe"),
    [(current, Float8CurrentScaling()), (mxfp8, MXFP8BlockScaling())],
    ids=["current", "mxfp8"],
)
def test_a_factory_can_repeat_a_recipe(kind, factory, recipe):
    module = make(kind, params_dtype=torch.bfloat16)
    x = make_input(6, 24, dtype=torch.bfloat16)
    custom = run_in(CustomRecipe(qfactory=factory), module, x)
    with pytest.warns(UserWarning, match="Recipe type changed"):
        expected = run_in(recipe, module, x)
    assert_same(custom, expected)


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_identity_parameters_may_be_held_in_another_dtype(kind, dtype):
    recipe, x = CustomRecipe(qfactory=identity), make_input().detach().to(dtype).requires_grad_()
    with te.quantized_model_init(recipe=recipe):
        module = make(kind, params_dtype=torch.bfloat16)
    twin = make(kind, params_dtype=dtype)
    with torch.no_grad():
        for plain, parameter in zip(twin.parameters(), module.parameters(), strict=True):
            plain.copy_(parameter)
    module.to(dtype)  # the nominal dtype only; the values stay BF16
    held = [p._hp_data.dtype for p in module.parameters() if isinstance(p, te.IdentityTensor)]
    assert held == [torch.bfloat16] * (2 if kind == "LayerNormMLP" else 1)
    assert_same(run_in(recipe, module, x), run_in(recipe, twin, x))


class Halving(te.Quantizer):
    """A user's format: values rounded to a multiple of a step, held in a plain tensor."""

    def __init__(self, step):
        super().__init__(rowwise=True, columnwise=True)
        self.step = step
        self.calls = []

    def quantize_impl(self, tensor):
        self.calls.append((tuple(tensor.shape), self.get_usages()))
        return (tensor.float() / self.step).round().mul(self.step).to(tensor.dtype)

    def update_quantized(self, src, dst, *, noop_flag=None):
        raise NotImplementedError

    def copy(self):
        return Halving(self.step)


@KINDS
def test_a_quantizer_in_python_is_called_for_every_tensor(kind):
    module = make(kind, params_dtype=torch.float32, **({"bias": False} if kind == "Linear" else {}))
    made = []

    def factory(role):
        made.append(Halving(0.25))
        return made[-1]

    x = make_input(6, 24)
    found = run_in(CustomRecipe(qfactory=factory), module, x)
    if kind == "Linear":
        twin = Halving(0.25)
        x_q, w_q = twin.quantize_impl(x.detach()), twin.quantize_impl(module.weight.detach())
        dy_q = twin.quantize_impl(output_gradient(found["output"]))
        # Multiples of 1/16 of a few bits: FP32 sums are exact.
        assert torch.equal(found["inp"], dy_q @ w_q)
        assert torch.equal(found["weight"], dy_q.t() @ x_q)
        assert torch.equal(found["output"], x_q @ w_q.t())
    gemms = 2 if kind == "LayerNormMLP" else 1
    used = [quantizer for quantizer in made if quantizer.calls]
    assert len(used) == 3 * gemms  # output and gradient of the input are not quantized
    assert all(len(quantizer.calls) == 1 for quantizer in used)


# Native steps keep one copy of tiles, and sums over the other one run in another order.
DERIVED = {name: make for name, make in ALL_QUANTIZERS.items() if not name.endswith("tiles")}


@KINDS
@pytest.mark.parametrize("make_quantizer", DERIVED.values(), ids=DERIVED)
def test_a_class_derived_from_a_format_is_called(kind, make_quantizer):
    library, seen = type(make_quantizer()), []

    class Watching(library):
        def quantize_impl(self, tensor):
            seen.append(tuple(tensor.shape))
            return super().quantize_impl(tensor)

    class Silent(library):
        """Nothing of its own, so that native steps need not call it."""

    def recipe_of(cls):
        def make_slot(role):
            quantizer = make_quantizer()
            quantizer.__class__ = cls
            return quantizer

        return CustomRecipe(qfactory=make_slot)

    module, x = make(kind), make_input()
    expected = run_in(recipe_of(library), module, x)
    assert_same(run_in(recipe_of(Silent), module, x), expected)
    assert not seen
    assert_same(run_in(recipe_of(Watching), module, x), expected)
    assert len(seen) == (6 if kind == "LayerNormMLP" else 3)


def test_an_error_in_a_python_quantizer_passes_through():
    class Failing(Halving):
        def quantize_impl(self, tensor):
            raise ArithmeticError("too coarse")

    with (
        pytest.raises(ArithmeticError, match="too coarse"),
        te.autocast(recipe=CustomRecipe(lambda role: Failing(1.0))),
    ):
        make("Linear")(make_input())


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda t: t[:-1], "dequantizes to shape"),
        (lambda t: t.to("meta"), "the result is on meta"),
    ],
)
def test_a_result_that_does_not_fit_is_refused(result, message):
    class Odd(Halving):
        def quantize_impl(self, tensor):
            return result(tensor)

    with (
        pytest.raises(ValueError, match=f"Odd.quantize: .*{message}"),
        te.autocast(recipe=CustomRecipe(lambda role: Odd(1.0))),
    ):
        make("Linear")(make_input())


# ---- delayed scaling by request ------------------------------------------------------------------


def delayed(role):
    return DelayedScalingRequest(amax_history_len=4)


def forward_delayed(role):
    if role is not None and role.tensor_type in ("input", "weight"):
        return delayed(role)
    return mxfp8(role)


@KINDS
def test_requests_make_delayed_scaling(kind):
    modules = [make(kind, params_dtype=torch.bfloat16) for _ in range(2)]
    recipes = (CustomRecipe(qfactory=delayed), DelayedScaling(amax_history_len=4))
    for step in range(4):
        x = make_input(6, 24, dtype=torch.bfloat16, seed=step)
        results = [
            run_in(recipe, module, x) for recipe, module in zip(recipes, modules, strict=True)
        ]
        assert_same(*results)
    states = [module.get_fp8_meta_tensors() for module in modules]
    for key in states[0]:
        for found, expected in zip(states[0][key], states[1][key], strict=True):
            assert torch.equal(found, expected)


def test_requests_of_one_state_must_be_equal():
    def factory(role):
        length = 4 if role is not None and role.tensor_type == "weight" else 8
        return DelayedScalingRequest(amax_history_len=length)

    with (
        pytest.raises(ValueError, match="different settings"),
        te.autocast(recipe=CustomRecipe(factory)),
    ):
        make("Linear")(make_input())


def test_a_role_change_keeps_scales_and_histories():
    module = make("Linear", params_dtype=torch.bfloat16)
    recipe = CustomRecipe(qfactory=delayed)
    x = make_input(6, 24, dtype=torch.bfloat16)
    for _ in range(3):
        run_in(recipe, module, x)
    before = module.get_fp8_meta_tensors()
    module.output_quantizer_role = QuantizerRole("dpa", "qkv", "next")
    after = module.get_fp8_meta_tensors()
    for key in before:
        for kept, old in zip(after[key], before[key], strict=True):
            assert torch.equal(kept, old)
    run_in(recipe, module, (4 * x.detach()).requires_grad_())  # and they still advance
    scale = module.get_fp8_meta_tensors()["scaling_fwd"][0]
    assert scale[0] == before["scaling_fwd"][0][0] / 4


@pytest.mark.parametrize("factory", [delayed, forward_delayed], ids=["both", "forward"])
def test_requested_state_is_saved_and_loaded(factory):
    recipe = CustomRecipe(qfactory=factory)
    x = make_input(6, 24, dtype=torch.bfloat16)
    module, twin = (make("Linear", params_dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        run_in(recipe, module, x)
    state = module.state_dict()
    assert state["_extra_state"].numel() > 0
    twin.load_state_dict(state)
    assert_same(run_in(recipe, twin, x), run_in(recipe, module, x))
    assert torch.equal(module.get_extra_state(), twin.get_extra_state())


def test_another_history_length_can_be_set():
    module = make("Linear", params_dtype=torch.bfloat16)
    recipe = CustomRecipe(qfactory=delayed)
    x = make_input(6, 24, dtype=torch.bfloat16)
    run_in(recipe, module, x)
    module.adjust_amax_history_length(2)
    lengths = [history.shape[0] for _, history in module.get_fp8_meta_tensors().values()]
    assert lengths == [2, 2]
    run_in(recipe, module, x)


# ---- backward in other precision -----------------------------------------------------------------

OVERRIDES = {
    "current": lambda how: Float8CurrentScaling(backward_override=how),
    "mxfp8": lambda how: MXFP8BlockScaling(backward_override=how),
    "mxfp8 hybrid": lambda how: MXFP8BlockScaling(fp8_format=Format.HYBRID, backward_override=how),
    "custom": lambda how: CustomRecipe(qfactory=mxfp8, backward_override=how),
}
overrides = pytest.mark.parametrize("recipe", OVERRIDES)


@overrides
def test_high_precision_gradients_are_those_of_the_original_operands(recipe):
    module = make("Linear", params_dtype=torch.bfloat16)
    x = make_input(6, 24, dtype=torch.bfloat16)
    plain = run(module, x)
    found = run_in(OVERRIDES[recipe]("high_precision"), module, x)
    assert not torch.equal(found.pop("output"), plain.pop("output"))
    assert_same(found, plain)


@overrides
def test_dequantized_gradients_are_those_of_the_rowwise_copies(recipe):
    module = make("Linear", params_dtype=torch.bfloat16)
    x = make_input(6, 24, dtype=torch.bfloat16)
    found = run_in(OVERRIDES[recipe]("dequantized"), module, x)
    inp, weight = module.quantizers["scaling_fwd"][:2]
    twin = make("Linear", params_dtype=torch.bfloat16)
    with torch.no_grad():
        twin.weight.copy_(weight(module.weight.detach()).dequantize())
    x_q = inp(x.detach()).dequantize().requires_grad_()
    expected = run(twin, x_q)
    for name in ("inp", "weight", "bias"):
        assert torch.equal(found[name], expected[name]), name


@overrides
@pytest.mark.parametrize("how", ["high_precision", "dequantized"])
@KINDS
def test_overrides_work_with_recomputation_and_kept_weights(recipe, how, kind):
    override = OVERRIDES[recipe](how)
    module = make(kind, params_dtype=torch.bfloat16)
    x = make_input(6, 24, dtype=torch.bfloat16)
    expected = run_in(override, module, x)
    module.zero_grad()
    x.grad = None
    with te.autocast(recipe=override):
        y = te.checkpoint(lambda inp: module(inp, is_first_microbatch=True), x)
        y.backward(output_gradient(y))
    assert torch.equal(y, expected["output"]) and torch.equal(x.grad, expected["inp"])
    if kind == "LayerNormMLP":
        recomputing = make(kind, params_dtype=torch.bfloat16, checkpoint=True)
        assert_same(run_in(override, recomputing, x), expected)


def test_an_override_assigned_later_counts_from_the_next_forward_on():
    module = make("Linear", params_dtype=torch.bfloat16)
    x = make_input(6, 24, dtype=torch.bfloat16)
    quantized = run_in(MXFP8BlockScaling(), module, x)
    plain = run(module, x)
    recipe = MXFP8BlockScaling()
    with te.autocast(recipe=recipe):
        y = module(x)
    recipe.backward_override = "high_precision"
    x.grad = None
    y.backward(output_gradient(y))
    assert torch.equal(x.grad, quantized["inp"])
    assert torch.equal(run_in(recipe, module, x)["inp"], plain["inp"])
