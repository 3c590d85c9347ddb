# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Modules in FP8: results against float64 arithmetic on operands quantized by an independent
reference, quantized inputs and outputs, and the options that touch quantization.
"""

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.bounded import Bounded
from helpers.formats import E4M3, E5M2
from helpers.generators import DTYPES
from helpers.module_reference import cast_fp8, with_current_scaling, with_scales
from helpers.modules import (
    IN,
    LINEAR_KINDS,
    OUT,
    assert_matches,
    assert_same,
    expected_results,
    make,
    make_input,
    output_gradient,
    recipe_state,
    run,
    slot_scales,
)
from helpers.quantizers import current_quantizer, delayed_quantizer, reference_scale
from helpers.tolerances import assert_identical, assert_within
from transformer_engine.common.recipe import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    Format,
)
from transformer_engine.pytorch import Float8Tensor
from transformer_engine.pytorch.constants import DType

RECIPES = {
    "delayed": DelayedScaling(amax_history_len=4),
    "current": Float8CurrentScaling(),
}
RECIPE_NAMES = pytest.mark.parametrize("recipe_name", RECIPES)
KINDS = pytest.mark.parametrize("kind", LINEAR_KINDS)


def step(module, x, recipe, **keywords):
    """One forward and backward in a quantized region; x.grad and parameters' gradients are new."""
    module.zero_grad()
    x.grad = None
    with te.autocast(recipe=recipe):
        result = module(x, **keywords)
    output = result[0] if isinstance(result, tuple) else result
    output.backward(output_gradient(output))
    return {
        "output": output.detach(),
        "inp": x.grad,
        **{name: value.grad for name, value in module.named_parameters()},
    }


def warmed_up(kind, x, recipe, **keywords):
    """A module after two steps: delayed scales have moved away from 1, in both directions."""
    module = make(kind, **keywords)
    for _ in range(2):
        step(module, x, recipe)
    if recipe.delayed():
        assert all(scale != 1.0 for scale in slot_scales(module).values())
    return module


def quantize_of(module, recipe):
    return with_scales(slot_scales(module)) if recipe.delayed() else with_current_scaling


# ---- numerics ------------------------------------------------------------------------------------


@RECIPE_NAMES
@KINDS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(16, IN), (7, 3, IN), (50, IN), (1, IN), (IN,)], ids=str)
def test_results_match_float64_on_quantized_operands(recipe_name, kind, dtype, shape):
    recipe, x = RECIPES[recipe_name], make_input(*shape, dtype=dtype)
    module = warmed_up(kind, x, recipe, params_dtype=dtype)
    quantize = quantize_of(module, recipe)  # the scales before the step
    actual = step(module, x, recipe)
    grad = output_gradient(actual["output"])
    assert_matches(actual, expected_results(module, x, grad, quantize=quantize))


@RECIPE_NAMES
@pytest.mark.parametrize("normalization", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("activation", ["gelu", "swiglu", "srelu"])
@pytest.mark.parametrize("checkpoint", [True, False])
def test_forms_of_the_mlp_match_float64(recipe_name, normalization, activation, checkpoint):
    recipe, x = RECIPES[recipe_name], make_input(9, IN)
    forms = {"normalization": normalization, "activation": activation, "checkpoint": checkpoint}
    module = warmed_up("LayerNormMLP", x, recipe, bias=False, zero_centered_gamma=True, **forms)
    quantize = quantize_of(module, recipe)
    actual = step(module, x, recipe)
    grad = output_gradient(actual["output"])
    assert_matches(actual, expected_results(module, x, grad, quantize=quantize))


def test_quantization_is_not_a_small_effect():
    # The bounds above would catch a module that did not quantize at all.
    module, x = make("Linear"), make_input()
    plain = run(module, x)
    actual = step(module, x, RECIPES["current"])
    exact = expected_results(module, x, output_gradient(plain["output"]))
    for name in ("output", "inp", "weight"):
        with pytest.raises(AssertionError, match=f"{name}: .* elements outside"):
            assert_matches({name: actual[name]}, exact)


@pytest.mark.parametrize("fmt", [Format.E4M3, Format.HYBRID], ids=str)
def test_gradients_are_e5m2_only_in_the_hybrid_format(fmt):
    recipe = Float8CurrentScaling(fp8_format=fmt)
    module, x = make("Linear", bias=False), make_input()
    actual = step(module, x, recipe)
    grad = Bounded.exact(output_gradient(actual["output"]))
    grad_format = E5M2 if fmt == Format.HYBRID else E4M3
    amax = float(grad.value.abs().max())
    operand = cast_fp8(grad, reference_scale(amax, grad_format), grad_format)
    weight = with_current_scaling("weight", Bounded.exact(module.weight))
    assert_matches({"inp": actual["inp"]}, {"inp": operand @ weight})


@KINDS
def test_power_of_two_scales_give_power_of_two_inverses(kind):
    recipe = Float8CurrentScaling(use_power_2_scales=True)
    module, x = make("Linear"), make_input()
    with te.autocast(recipe=recipe):
        output = module(x, fp8_output=True)
    mantissa, _ = torch.frexp(output._scale_inv)
    assert mantissa.item() == 0.5


@RECIPE_NAMES
@KINDS
@pytest.mark.parametrize("shape", [(0, IN), (2, 0, IN)], ids=str)
def test_no_rows_give_zero_gradients(recipe_name, kind, shape):
    module, x = make(kind), make_input(*shape)
    for _ in range(2):
        actual = step(module, x, RECIPES[recipe_name])
        assert actual["output"].shape == (*shape[:-1], te_out(module))
        assert actual["inp"].shape == shape
        for name, parameter in module.named_parameters():
            assert_identical(actual[name], torch.zeros_like(parameter), name)


def te_out(module):
    return getattr(module, "out_features", IN)


@RECIPE_NAMES
def test_all_zero_operands_stay_zero(recipe_name):
    module, x = make("Linear", bias=False), torch.zeros(4, IN, requires_grad=True)
    actual = step(module, x, RECIPES[recipe_name])
    assert_identical(actual["output"], torch.zeros(4, OUT))
    assert_identical(actual["weight"], torch.zeros(OUT, IN))


@RECIPE_NAMES
@KINDS
def test_torch_autocast_and_a_quantized_region_combine(recipe_name, kind):
    recipe, x = RECIPES[recipe_name], make_input()
    module = make(kind)
    with torch.autocast("cpu", torch.bfloat16):
        step(module, x, recipe)
        scales = slot_scales(module) if recipe.delayed() else None
        actual = step(module, x, recipe)
    assert actual["output"].dtype == torch.bfloat16
    assert all(value.dtype == torch.float32 for name, value in actual.items() if name != "output")
    source = x if kind != "Linear" else x.detach().bfloat16()
    quantize = with_scales(scales) if recipe.delayed() else with_current_scaling
    grad = output_gradient(actual["output"])
    # Weights are cast from FP32, activations from BF16.
    expected = expected_results(module, source, grad, quantize=quantize, dtype=torch.bfloat16)
    expected["inp"] = expected["inp"].rounded(torch.bfloat16)
    assert_matches(actual, expected)


@RECIPE_NAMES
def test_split_parameters_are_quantized_as_one(recipe_name):
    recipe, x = RECIPES[recipe_name], make_input()
    split, twin = make("Linear", parameters_split=["a", "b"]), make("Linear")
    with torch.no_grad():
        twin.weight.copy_(torch.cat([split.a_weight, split.b_weight]))
        twin.bias.copy_(torch.cat([split.a_bias, split.b_bias]))
    for _ in range(2):
        actual, expected = step(split, x, recipe), step(twin, x, recipe)
        for end in ("weight", "bias"):
            joined = torch.cat([actual.pop(f"a_{end}"), actual.pop(f"b_{end}")])
            assert_identical(joined, expected.pop(end))
        assert_same(actual, expected)


@RECIPE_NAMES
@KINDS
def test_frozen_parts_change_nothing_for_the_others(recipe_name, kind):
    recipe, x = RECIPES[recipe_name], make_input()
    expected = step(make(kind), x, recipe)
    names = [name for name, _ in make(kind).named_parameters()]
    for frozen in names:
        module = make(kind)
        getattr(module, frozen).requires_grad_(False)
        actual = {
            name: value for name, value in step(module, x, recipe).items() if value is not None
        }
        assert_same(actual, {name: value for name, value in expected.items() if name != frozen})


# ---- quantized tensors in and out ----------------------------------------------------------------


@RECIPE_NAMES
def test_a_quantized_output_is_the_output_cast_once(recipe_name):
    recipe, x = RECIPES[recipe_name], make_input(2, 3, IN)
    module, twin = warmed_up("Linear", x, recipe), warmed_up("Linear", x, recipe)
    scale = module.fp8_meta["scaling_fwd"].scale[2].item() if recipe.delayed() else None
    expected = step(twin, x, recipe)
    with te.autocast(recipe=recipe):
        output = module(x, fp8_output=True)
    assert isinstance(output, Float8Tensor)
    assert output.shape == (2, 3, OUT)
    assert output.dtype == x.dtype
    assert output.requires_grad
    if scale is None:
        scale = reference_scale(float(expected["output"].abs().max()), E4M3)
    cast = cast_fp8(Bounded.exact(expected["output"]), scale, E4M3)
    assert_within(output.dequantize(), cast.value, 2**-24 * cast.value.abs())
    # The cast is an identity to autograd.
    x.grad = None
    module.zero_grad()
    output.dequantize().backward(output_gradient(expected["output"]))
    actual = {"inp": x.grad, "weight": module.weight.grad, "bias": module.bias.grad}
    assert_same(actual, {name: expected[name] for name in actual})


@RECIPE_NAMES
@pytest.mark.parametrize("consumer_kind", [*LINEAR_KINDS, "LayerNorm", "RMSNorm"])
def test_quantized_outputs_feed_every_module(recipe_name, consumer_kind):
    recipe, x = RECIPES[recipe_name], make_input()
    producer = te.Linear(IN, IN, device=torch.get_default_device())
    consumer = make(consumer_kind)
    with te.autocast(recipe=recipe):
        between = producer(x, fp8_output=True)
        output = consumer(between)
    assert isinstance(between, Float8Tensor)
    output.backward(output_gradient(output))
    # Linear multiplies the codes as they are; the others normalize the values they stand for.
    plain = between.dequantize().detach().requires_grad_()
    twin = make(consumer_kind)
    if consumer_kind == "Linear":
        with te.autocast(recipe=recipe):
            expected = twin(between.detach().requires_grad_())
    else:
        with te.autocast(recipe=recipe):
            expected = twin(plain)
    expected.backward(output_gradient(expected))
    assert_identical(output, expected)
    for (name, parameter), other in zip(
        consumer.named_parameters(), twin.parameters(), strict=True
    ):
        assert_identical(parameter.grad, other.grad, name)
    assert x.grad is not None
    assert producer.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("usage", ["rowwise", "columnwise", "both"])
@pytest.mark.parametrize("quantizer", [delayed_quantizer, current_quantizer])
def test_quantized_inputs_are_multiplied_as_they_are(usage, quantizer):
    usages = {"rowwise": usage != "columnwise", "columnwise": usage != "rowwise"}
    x = quantizer(**usages)(make_input(4, IN).detach()).requires_grad_()
    module = make("Linear")
    with te.autocast(recipe=RECIPES["current"]):
        output = module(x)
    grad = output_gradient(output)
    output.backward(grad)
    quantize = with_current_scaling

    def keep_input(slot, operand):
        return operand if slot == "input" else quantize(slot, operand)

    expected = expected_results(module, x.dequantize(), grad, quantize=keep_input)
    actual = {"output": output.detach(), "inp": x.grad, "weight": module.weight.grad}
    assert_matches(actual, expected)


@KINDS
def test_quantized_inputs_outside_a_region_are_dequantized(kind):
    quantized = current_quantizer()(make_input(4, IN).detach()).requires_grad_()
    plain = quantized.dequantize().detach().requires_grad_()
    assert_same(run(make(kind), quantized), run(make(kind), plain))


@pytest.mark.parametrize("kind", ["Linear", "LayerNormLinear"])
@RECIPE_NAMES
def test_a_quantized_input_gradient_is_the_gradient_cast_once(kind, recipe_name):
    recipe, x = RECIPES[recipe_name], make_input()
    expected = step(warmed_up(kind, x, recipe), x, recipe)
    module = warmed_up(kind, x, recipe)
    scale = module.fp8_meta["scaling_bwd"].scale[1].item() if recipe.delayed() else None
    leaf = make_input()
    gradients = []
    between = leaf * 1.0
    between.register_hook(gradients.append)
    with te.autocast(recipe=recipe):
        output = module(between, fp8_grad=True)
    output.backward(output_gradient(output))
    (gradient,) = gradients
    assert isinstance(gradient, Float8Tensor)
    assert gradient._fp8_dtype == DType.kFloat8E5M2
    if scale is None:
        scale = reference_scale(float(expected["inp"].abs().max()), E5M2)
    cast = cast_fp8(Bounded.exact(expected["inp"]), scale, E5M2)
    assert_within(gradient.dequantize(), cast.value, 2**-23 * cast.value.abs())


@pytest.mark.parametrize("producer_kind", [*LINEAR_KINDS, "LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("bias", [True, False])
def test_quantized_gradients_reach_every_module(producer_kind, bias):
    if producer_kind in LINEAR_KINDS:
        producer = make(producer_kind, bias=bias)
    else:
        producer = make(producer_kind)
    width = te_out(producer)
    consumer = te.Linear(width, 8, device=torch.get_default_device())
    x, seen = make_input(), []
    recipe = RECIPES["current"]
    with te.autocast(recipe=recipe):
        between = producer(x)
        between.register_hook(seen.append)
        output = consumer(between, fp8_grad=True)
    output.backward(output_gradient(output))
    assert isinstance(seen[0], Float8Tensor)
    # GEMMs take the codes as they are, everything else the values they stand for.
    values = seen[0].dequantize()
    twin, x_twin = (
        make(producer_kind, **({"bias": bias} if hasattr(producer, "use_bias") else {})),
        make_input(),
    )
    with te.autocast(recipe=recipe):
        expected = twin(x_twin)
    last = "grad_output2" if producer_kind == "LayerNormMLP" else "grad_output"

    def keep_gradient(slot, operand):
        return operand if slot == last else with_current_scaling(slot, operand)

    results = expected_results(twin, x_twin, values, quantize=keep_gradient)
    gradients = {name: value.grad for name, value in producer.named_parameters()}
    assert_matches({"output": expected.detach(), "inp": x.grad, **gradients}, results)


# ---- options -------------------------------------------------------------------------------------


def test_saving_the_original_input_changes_no_bit():
    recipe, x = RECIPES["current"], make_input()
    saved = {}
    results = {}
    for saves_original in (False, True):
        module = make("Linear", save_original_input=saves_original)
        kept = []

        def pack(tensor, kept=kept):
            kept.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            results[saves_original] = step(module, x, recipe)
        saved[saves_original] = any(tensor.data_ptr() == x.data_ptr() for tensor in kept)
    assert saved == {False: False, True: True}
    assert_same(results[True], results[False])


def test_the_original_input_cannot_be_saved_under_delayed_scaling():
    module, x = make("Linear", save_original_input=True), make_input()
    with (
        te.autocast(recipe=RECIPES["delayed"]),
        pytest.raises(ValueError, match="save_original_input is True under DelayedScaling"),
    ):
        module(x)
    assert not module.fp8_initialized
    assert not module.fp8
    module(x)  # fine outside a region
    module.save_original_input = False
    with te.autocast(recipe=RECIPES["delayed"]):
        module(x)


@pytest.mark.parametrize("value", [None, True, False])
@RECIPE_NAMES
@KINDS
def test_weight_caching_equals_no_caching(value, recipe_name, kind):
    recipe, x = RECIPES[recipe_name], make_input()
    # Warmed up: a cached weight keeps its scale, which delayed scaling moves in the first step.
    module, twin = warmed_up(kind, x, recipe), warmed_up(kind, x, recipe)
    module.zero_grad()
    twin.zero_grad()
    for microbatch in range(3):
        first = value if microbatch else (None if value is None else True)
        with te.autocast(recipe=recipe):
            output, expected = module(x, is_first_microbatch=first), twin(x)
        assert_identical(output, expected)
        output.backward(output_gradient(output))
        expected.backward(output_gradient(expected))
    for (name, parameter), other in zip(module.named_parameters(), twin.parameters(), strict=True):
        assert_identical(parameter.grad, other.grad, name)


def writes():
    def in_place(module):
        with torch.no_grad():
            module.weight.mul_(2.0)

    def optimizer(module):
        module.weight.grad = torch.ones_like(module.weight)
        torch.optim.SGD([module.weight], lr=1.0).step()

    def load(module):
        module.load_state_dict(
            {k: 2 * v for k, v in module.state_dict().items() if "extra" not in k}
        )

    def set_data(module):
        for factor in (3.0, 2.0, 0.5):  # the allocator may hand out an address again
            module.weight.data = module.weight.detach() * factor

    def replace(module):
        module.weight = torch.nn.Parameter(module.weight.detach() * 3)

    return {f.__name__: f for f in (in_place, optimizer, load, set_data, replace)}


@pytest.mark.parametrize("write", writes())
def test_cached_weights_notice_every_write(write):
    recipe, x = RECIPES["current"], make_input()
    module = make("Linear")
    with te.autocast(recipe=recipe):
        before = module(x, is_first_microbatch=True)
    writes()[write](module)
    with te.autocast(recipe=recipe):
        cached, fresh = module(x, is_first_microbatch=False), module(x)
    assert_identical(cached, fresh)
    assert not torch.equal(cached, before)


def test_cached_weights_are_dropped_with_their_recipe():
    module, x = make("Linear"), make_input()
    with te.autocast(recipe=Float8CurrentScaling()):
        module(x, is_first_microbatch=True)
    recipe = Float8CurrentScaling(use_power_2_scales=True)
    with te.autocast(recipe=recipe):
        assert_identical(module(x, is_first_microbatch=False), module(x))


@pytest.mark.parametrize("tiles", [Float8CurrentScaling, Float8BlockScaling])
@KINDS
def test_a_weight_cached_in_inference_mode_can_be_trained_with(kind, tiles):
    recipe, module, twin, x = tiles(), make(kind), make(kind), make_input()
    with torch.inference_mode(), te.autocast(recipe=recipe):
        first = module(x, is_first_microbatch=True)
        assert_identical(module(x, is_first_microbatch=False), first)
    actual, expected = step(module, x, recipe, is_first_microbatch=False), step(twin, x, recipe)
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        assert_identical(value, expected[name], name)


def test_cached_weights_are_really_cached():
    # Writes that no version counter sees: the promise of is_first_microbatch=False is used.
    module, x = make("Linear"), make_input()
    with te.autocast(recipe=RECIPES["current"]):
        before = module(x, is_first_microbatch=True)
        module.weight.data.mul_(2.0)
        assert_identical(module(x, is_first_microbatch=False), before)
        after = module(x, is_first_microbatch=True)
    assert not torch.equal(after, before)


@KINDS
def test_calibration_computes_in_high_precision_and_observes(kind):
    recipe, x = RECIPES["delayed"], make_input()
    module = make(kind)
    expected = run(make(kind), x)
    with te.autocast(enabled=False, calibrating=True, recipe=recipe):
        actual = run(module, x)
    assert_same(actual, expected)
    assert module.fp8_calibration
    assert not module.fp8
    observed = module.fp8_meta["scaling_fwd"].amax_history[0]
    if kind == "Linear":
        assert observed[:2].tolist() == [x.abs().max().item(), module.weight.abs().max().item()]
    weights = [p.abs().max().item() for n, p in module.named_parameters() if p.dim() == 2]
    assert observed[1::3].tolist() == weights
    assert (observed[0::3] > 0).all()
    state = recipe_state(module)
    assert torch.equal(state["scaling_fwd.scale"], torch.ones(3 * module.num_gemms))
    assert (state["scaling_bwd.amax_history"] == 0).all()


def test_calibration_under_current_scaling_observes_nothing():
    module, x = make("Linear"), make_input()
    expected = run(make("Linear"), x)
    with te.autocast(enabled=False, calibrating=True, recipe=RECIPES["current"]):
        assert_same(run(module, x), expected)
    assert module.fp8_calibration
