# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""FP8 attention: its rule against float64, its scales, boundaries, recomputation and refusals."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

import transformer_engine.pytorch as te
from helpers.attention import AttentionCase
from helpers.float8_attention import Formats, assert_bounded, reference_float8_attention
from helpers.float8_attention_cases import (
    CASES,
    CURRENT,
    DELAYED,
    DO,
    DP,
    DQKV,
    QKV,
    RECIPES,
    O,
    S,
    assert_same,
    check_rule,
    delayed_state,
    make_call,
    states_of,
    step,
    with_bias,
    with_mask,
    with_sink,
)
from helpers.generators import random_tensor
from transformer_engine.common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)
from transformer_engine.pytorch.quantization import DelayedScalingRequest, QuantizerRole


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rule(case, recipe):
    check_rule(case, recipe)


@pytest.mark.parametrize("recipe", [DELAYED, CURRENT], ids=["delayed", "current"])
@pytest.mark.parametrize("kind", ["pre_scale_bias", "post_scale_bias", "alibi"])
def test_rule_with_a_bias(kind, recipe):
    check_rule(with_bias(kind), recipe)


@pytest.mark.parametrize("recipe", [DELAYED, CURRENT], ids=["delayed", "current"])
def test_rule_with_a_learnable_sink_and_with_any_mask(recipe):
    check_rule(with_sink(), recipe)
    check_rule(with_mask(), recipe)


@pytest.mark.parametrize("recipe", [DELAYED, CURRENT], ids=["delayed", "current"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("qkv_format", ["sbhd", "thd", "thd with gaps"])
def test_rule_in_other_formats_and_dtypes(qkv_format, dtype, recipe):
    gap = 2 if "gaps" in qkv_format else 0
    check_rule(CASES["padded"], recipe, qkv_format.split()[0], dtype, gap)


@pytest.mark.parametrize("recipe", [DELAYED, CURRENT], ids=["delayed", "current"])
def test_rule_with_dropout(recipe):
    check_rule(CASES["causal"], recipe, dtype=torch.float32, dropout=0.25)


@pytest.mark.smoke
def test_scales_follow_the_amaxes_of_earlier_steps():
    module, inputs = make_call(DELAYED)
    step(module, inputs, DELAYED)
    forward, backward = (delayed_state(module, k) for k in ("scaling_fwd", "scaling_bwd"))
    for state, largest, used in (
        (forward, 448.0, (QKV, O, S)),
        (backward, 57344.0, (DQKV, DO, DP)),
    ):
        for slot in range(len(state.scale)):
            amax = state.amax_history[-1, slot]
            expected = torch.tensor(largest) / amax if slot in used else torch.tensor(1.0)
            assert (amax > 0) == (slot in used)
            assert torch.equal(state.scale[slot], expected)


def test_current_scaling_has_delayed_scales_for_probabilities_and_their_gradient_alone():
    module, inputs = make_call(CURRENT)
    step(module, inputs, CURRENT)
    forward, backward = (delayed_state(module, k) for k in ("scaling_fwd", "scaling_bwd"))
    assert forward.amax_history.shape == (1, 9) and backward.amax_history.shape == (1, 6)
    assert [i for i, scale in enumerate(forward.scale) if scale != 1] == [S]
    assert [i for i, scale in enumerate(backward.scale) if scale != 1] == [DP]


def checkpointed(use_reentrant: bool) -> Callable[[Any], Callable[..., Any]]:
    def wrap(module: Any) -> Callable[..., Any]:
        return lambda *inputs: torch.utils.checkpoint.checkpoint(
            module, *inputs, use_reentrant=use_reentrant
        )

    return wrap


RECOMPUTATIONS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "hooks": checkpointed(False),
    "reentrant": checkpointed(True),
    "te": lambda module: lambda *inputs: te.checkpoint(module, *inputs),
    "core": lambda module: lambda *inputs: module(*inputs, checkpoint_core_attention=True),
}


@pytest.mark.parametrize("recipe", [DELAYED, CURRENT], ids=["delayed", "current"])
@pytest.mark.parametrize("wrap", RECOMPUTATIONS.values(), ids=RECOMPUTATIONS)
def test_recomputation_repeats_every_bit_and_observes_once(wrap, recipe):
    module, inputs = make_call(recipe, attention_dropout=0.3)
    twin = copy.deepcopy(module)
    for seed in range(3):
        torch.manual_seed(seed)
        plain = step(module, inputs, recipe)
        torch.manual_seed(seed)
        assert_same(step(twin, inputs, recipe, wrap(twin)), plain)
        assert_same(states_of(twin), states_of(module))


@pytest.mark.parametrize("recipe", [DELAYED, CURRENT], ids=["delayed", "current"])
@pytest.mark.parametrize("copier", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_and_checkpoints_go_on_bit_for_bit(recipe, copier):
    module, inputs = make_call(recipe)
    for _ in range(2):
        step(module, inputs, recipe)
    twin = copier(module)
    loaded, _ = make_call(recipe)
    loaded.load_state_dict(module.state_dict())
    expected = [step(module, inputs, recipe) for _ in range(2)]
    for other in (twin, loaded):
        for want in expected:
            assert_same(step(other, inputs, recipe), want)


def test_state_of_older_releases_loads():
    module, inputs = make_call(DELAYED)
    step(module, inputs, DELAYED)
    old = {
        "scale_fwd": torch.arange(1.0, 10.0),
        "amax_history_fwd": torch.ones(3, 9),
        "scale_bwd": torch.arange(1.0, 7.0),
        "amax_history_bwd": torch.ones(3, 6),
        "recipe": None,
    }
    data = torch.frombuffer(bytearray(pickle.dumps(old)), dtype=torch.uint8)
    module.load_state_dict({"_extra_state": data})
    assert torch.equal(delayed_state(module, "scaling_fwd").scale, old["scale_fwd"])
    assert torch.equal(delayed_state(module, "scaling_bwd").scale, old["scale_bwd"])
    with pytest.raises(ValueError, match="forward state has 3 slots; 9 are required"):
        broken = {**old, "scale_fwd": torch.ones(3), "amax_history_fwd": torch.ones(3, 3)}
        data = torch.frombuffer(bytearray(pickle.dumps(broken)), dtype=torch.uint8)
        module.set_extra_state(data)


@pytest.mark.parametrize("recipe", [DELAYED, CURRENT], ids=["delayed", "current"])
def test_an_fp8_output_has_the_values_of_the_plain_one(recipe):
    module, inputs = make_call(recipe)
    twin = copy.deepcopy(module)
    for _ in range(2):
        plain = step(module, inputs, recipe)
        with te.autocast(recipe=recipe):
            out = twin(*inputs, fp8_output=True)
        assert isinstance(out, te.Float8Tensor) and out.dtype == torch.bfloat16
        if recipe is DELAYED:
            assert torch.equal(out.dequantize(), plain[0])
        else:  # its own amax's scale, rounded once more
            scale = 448.0 / plain[0].abs().max().float()
            codes = (plain[0].float() * scale).to(torch.float8_e4m3fn)
            assert torch.equal(out._data, codes.view(torch.uint8))
        for x in inputs:
            x.grad = None
        out.backward(random_tensor(out.shape, dtype=out.dtype, seed=9))
        assert_same([x.grad for x in inputs], plain[1:])
    with te.autocast(recipe=DelayedScaling()):  # no FP8 attention: nothing to give in FP8
        assert not isinstance(module(*inputs, fp8_output=True), te.Float8Tensor)


def quantized(x: torch.Tensor, scale: float) -> Any:
    quantizer = te.Float8Quantizer(
        torch.tensor([scale]), torch.zeros(1), te.DType.kFloat8E4M3, columnwise=False
    )
    return quantizer(x)


def test_fp8_inputs_are_taken_code_by_code():
    """Each with its own scale; in powers of two, so that their values are BF16 numbers."""
    module, inputs = make_call(DELAYED)
    inputs8 = [
        quantized(x.detach(), scale).requires_grad_()
        for x, scale in zip(inputs, (64.0, 32.0, 16.0), strict=True)
    ]
    with te.autocast(recipe=DELAYED):
        out = module(*inputs8)
    out.backward(torch.ones_like(out))
    assert delayed_state(module, "scaling_fwd").amax_history[-1, QKV] == 0  # nothing to quantize
    values = [x.dequantize().detach().double().transpose(0, 1) for x in inputs8]
    case = AttentionCase("causal", [6, 6], [6, 6], 6, 6, d_qk=16, d_v=16, scale=0.25)
    formats = Formats.delayed([1.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    formats.qkv.fmt = None
    grad = torch.ones(2, 6, 4, 16)
    expected = reference_float8_attention(case, tuple(values), grad, formats, dtype=torch.bfloat16)
    assert_bounded(out.unflatten(-1, (4, 16)).transpose(0, 1), expected.out, "out")
    for x, name in zip(inputs8, ("q", "k", "v"), strict=True):
        assert isinstance(x.grad, te.Float8Tensor)
        got = x.grad.dequantize().transpose(0, 1)
        assert_bounded(got, expected.gradients[name], name)
    with (
        te.autocast(recipe=DELAYED),
        pytest.raises(TypeError, match="key_layer is a Tensor and query_layer a Float8Tensor"),
    ):
        module(inputs8[0], *inputs[1:])


@pytest.mark.parametrize("how", ["argument", "environment", "override"])
def test_backward_in_high_precision_is_that_of_the_original_inputs(how, monkeypatch):
    recipe, arguments = CURRENT, {}
    if how == "environment":
        monkeypatch.setenv("NVTE_FP8_DPA_BWD", "0")
    elif how == "override":
        recipe = Float8CurrentScaling(fp8_dpa=True, backward_override="high_precision")
    else:
        arguments["bf16_backward"] = True
    module, inputs = make_call(recipe, dtype=torch.float32)
    actual = step(module, inputs, recipe, **arguments)
    plain_inputs = [x.detach().clone().requires_grad_() for x in inputs]
    plain = module(*plain_inputs)
    plain.backward(random_tensor(plain.shape, dtype=plain.dtype, seed=9))
    assert not torch.equal(actual[0], plain)  # the forward is in FP8
    for got, want in zip(actual[1:], plain_inputs, strict=True):
        torch.testing.assert_close(got, want.grad, rtol=0, atol=6 * 16 * 2.0**-23 * 16)
    assert delayed_state(module, "scaling_bwd").amax_history.count_nonzero() == 0


def test_dequantized_backward_is_that_of_what_the_codes_say():
    recipe = Float8CurrentScaling(
        fp8_dpa=True, backward_override="dequantized", use_power_2_scales=True
    )
    module, inputs = make_call(recipe, dtype=torch.float32)
    actual = step(module, inputs, recipe)
    amax = max(float(x.detach().abs().max()) for x in inputs)
    scale = 2.0 ** torch.tensor(448.0 / amax).log2().floor()
    codes = [(x.detach() * scale).to(torch.float8_e4m3fn).float() / scale for x in inputs]
    leaves = [x.requires_grad_() for x in codes]
    out = module(*leaves)
    out.backward(random_tensor(out.shape, dtype=out.dtype, seed=9))
    for got, want in zip(actual[1:], leaves, strict=True):
        torch.testing.assert_close(got, want.grad, rtol=0, atol=6 * 16 * 2.0**-23 * 16)


def test_calibration_computes_in_high_precision_and_observes():
    module, inputs = make_call(DELAYED, dtype=torch.float32)
    plain = module(*inputs).detach()
    with te.autocast(enabled=False, calibrating=True, recipe=DELAYED):
        out = module(*inputs)
    torch.testing.assert_close(out.detach(), plain, rtol=0, atol=6 * 16 * 2.0**-23)
    amax = delayed_state(module, "scaling_fwd").amax_history[0]
    assert amax[QKV] == max(x.detach().abs().max() for x in inputs)
    assert 0 < amax[S] <= 1 and amax[O] > 0


def test_a_module_goes_between_recipes_and_out_of_regions():
    module, inputs = make_call(DELAYED)
    plain = module(*inputs).detach()
    step(module, inputs, DELAYED)
    states = [x.clone() for x in states_of(module)]
    for recipe in (DelayedScaling(), MXFP8BlockScaling()):
        assert torch.equal(step(module, inputs, recipe)[0], plain)
    assert torch.equal(module(*inputs), plain)
    with te.autocast(enabled=False):
        assert torch.equal(module(*inputs), plain)
    assert_same(states_of(module), states)
    with pytest.warns(UserWarning, match="Recipe type changed from DelayedScaling"):
        step(module, inputs, CURRENT)


def test_autocast_of_torch_casts_the_inputs_first():
    module, inputs = make_call(DELAYED, dtype=torch.float32)
    rounded = [x.detach().bfloat16().requires_grad_() for x in inputs]
    twin = copy.deepcopy(module)
    with torch.autocast("cpu", torch.bfloat16):
        actual = step(module, inputs, DELAYED)
    expected = step(twin, rounded, DELAYED)
    assert torch.equal(actual[0], expected[0]) and actual[0].dtype == torch.bfloat16
    for got, want in zip(actual[1:], expected[1:], strict=True):
        assert got.dtype == torch.float32 and torch.equal(got, want.float())


def test_largest_logits_are_those_of_the_codes():
    module, inputs = make_call(DELAYED, return_max_logit=True, attn_mask_type="no_mask")
    with te.autocast(recipe=DELAYED):
        _, largest = module(*inputs)
    q, k = (x.detach().float().to(torch.float8_e4m3fn).double() for x in inputs[:2])
    scores = torch.einsum("ibhd,jbhd->bhij", q, k.repeat_interleave(2, 2)) / 4
    torch.testing.assert_close(largest.double(), scores.amax((0, 2, 3)), rtol=2.0**-18, atol=0)


def custom_recipe(asked: list[QuantizerRole | None]) -> CustomRecipe:
    def factory(role: QuantizerRole | None) -> Any:
        asked.append(role)
        if role is not None and role.module_type == "dpa" and role.tensor_type in ("s", "dp"):
            return DelayedScalingRequest(amax_history_len=1, amax_compute_algo="most_recent")
        is_forward = role is not None and role.tensor_type in ("qkv", "o")
        dtype = te.DType.kFloat8E4M3 if is_forward else te.DType.kFloat8E5M2
        return te.Float8CurrentScalingQuantizer(dtype, device="cpu")

    return CustomRecipe(qfactory=factory, fp8_dpa=True)


def test_custom_recipes_are_asked_for_the_six_tensors():
    asked: list[QuantizerRole | None] = []
    recipe = custom_recipe(asked)
    module, inputs = make_call(recipe, name="attention")
    twin, _ = make_call(CURRENT)
    for _ in range(2):
        assert_same(step(module, inputs, recipe), step(twin, inputs, CURRENT))
    assert {role for role in asked} == {
        QuantizerRole("dpa", tensor, "attention")
        for tensor in ("qkv", "o", "s", "dqkv", "do", "dp")
    }
    assert len(asked) == 6


def test_quantizers_of_other_formats_are_refused():
    recipe = CustomRecipe(qfactory=lambda _: te.MXFP8Quantizer(te.DType.kFloat8E4M3), fp8_dpa=True)
    module, inputs = make_call(recipe)
    plain = module(*inputs).detach()
    with (
        te.autocast(recipe=recipe),
        pytest.raises(TypeError, match="quantizer for 'qkv' is a MXFP8Quantizer"),
    ):
        module(*inputs)
    assert module.fp8_meta.get("recipe") is None
    assert torch.equal(module(*inputs), plain)


def test_recipes_without_fp8_attention_are_refused():
    module, inputs = make_call(None)
    with (
        te.autocast(recipe=MXFP8BlockScaling(fp8_dpa=True)),
        pytest.raises(NotImplementedError, match="MXFP8BlockScaling asks for attention in MXFP8"),
    ):
        module(*inputs)
    with (
        te.autocast(recipe=NVFP4BlockScaling(fp8_dpa=True)),
        pytest.raises(ValueError, match="NVFP4BlockScaling has fp8_dpa=True"),
    ):
        module(*inputs)


def test_the_environment_chooses_the_recipe(monkeypatch):
    monkeypatch.setenv("NVTE_DPA_FP8_RECIPE", "F16")
    module, inputs = make_call(None)
    assert torch.equal(step(module, inputs, DELAYED)[0], module(*inputs))
    monkeypatch.setenv("NVTE_DPA_FP8_RECIPE", "Float8CurrentScaling")
    module, _ = make_call(None)
    twin, _ = make_call(None)
    monkeypatch.delenv("NVTE_DPA_FP8_RECIPE")
    plain, _ = make_call(None)
    for recipe in (DELAYED, NVFP4BlockScaling(fp8_dpa=True)):
        assert_same(
            step(copy.deepcopy(module), inputs, recipe),
            step(copy.deepcopy(plain), inputs, CURRENT),
        )
    assert torch.equal(step(twin, inputs, DelayedScaling())[0], twin(*inputs))  # not asked for
    monkeypatch.setenv("NVTE_DPA_FP8_RECIPE", "DelayedScaling")
    monkeypatch.setenv("NVTE_DPA_FP8_RECIPE_DPA", "1")
    monkeypatch.setenv("NVTE_DPA_FP8DS_AMAX_HISTLEN", "3")
    module, _ = make_call(None)
    step(module, inputs, MXFP8BlockScaling())
    assert delayed_state(module, "scaling_fwd").amax_history.shape == (3, 9)
    monkeypatch.setenv("NVTE_DPA_FP8DS_AMAX_HISTLEN", "0")
    with pytest.raises(ValueError, match="NVTE_DPA_FP8DS_AMAX_HISTLEN is '0'"):
        make_call(None)


def test_nothing_but_the_emulation_can_run_it_on_the_cpu(monkeypatch):
    monkeypatch.setenv("NVTE_UNFUSED_ATTN", "0")
    module, inputs = make_call(None)
    with te.autocast(recipe=DELAYED), pytest.raises(ValueError, match="no backend accepts FP8"):
        module(*inputs)


@pytest.mark.parametrize("recipe", [DELAYED, CURRENT], ids=["delayed", "current"])
def test_empty_and_unused_results(recipe):
    module, inputs = make_call(recipe)
    empty = [x.detach()[:, :0].requires_grad_() for x in inputs]
    out, *gradients = step(module, empty, recipe)
    assert out.shape == (6, 0, 64) and all(
        g.shape == x.shape for g, x in zip(gradients, empty, strict=False)
    )
    with torch.no_grad(), te.autocast(recipe=recipe):
        assert not module(*inputs).requires_grad
    with te.autocast(recipe=recipe):
        module(*inputs)  # a forward whose backward never runs
    step(module, inputs, recipe)


def test_transforms_and_tensors_without_data_are_refused():
    x = random_tensor((3, 1, 4, 16))

    def call(query: torch.Tensor) -> torch.Tensor:
        module = te.DotProductAttention(4, 16)
        with te.autocast(recipe=DELAYED):
            return module(query, query, query).sum()

    with pytest.raises(NotImplementedError, match="a function transform or a tracer is active"):
        torch.func.grad(call)(x)
    with FakeTensorMode() as mode, pytest.raises(NotImplementedError, match="is a FakeTensor"):
        call(mode.from_tensor(x))
