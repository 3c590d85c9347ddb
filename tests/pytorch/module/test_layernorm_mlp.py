# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""LayerNormMLP in high precision: results against float64, and its own arguments."""

import itertools

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.generators import DTYPES
from helpers.module_reference import ACTIVATIONS
from helpers.modules import (
    FFN,
    IN,
    assert_matches,
    assert_same,
    expected_results,
    make,
    make_input,
    output_gradient,
    run,
)
from helpers.tolerances import assert_identical
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling

KIND = "LayerNormMLP"
GATED = ("glu", "geglu", "qgeglu", "reglu", "sreglu", "swiglu", "clamped_swiglu")


def check(module, x):
    actual = run(module, x)
    assert actual.keys() == {"output", "inp", *dict(module.named_parameters())}
    assert_matches(actual, expected_results(module, x, output_gradient(actual["output"])))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_activation_matches_float64(activation, dtype):
    module = make(KIND, activation=activation, params_dtype=dtype)
    assert module.fc1_weight.shape == ((2 if activation in GATED else 1) * FFN, IN)
    check(module, make_input(2, 5, IN, dtype=dtype))


@pytest.mark.parametrize(
    ("normalization", "zero_centered", "bias", "checkpoint"),
    list(itertools.product(["LayerNorm", "RMSNorm"], [True, False], [True, False], [True, False])),
)
def test_every_form_matches_float64(normalization, zero_centered, bias, checkpoint):
    module = make(
        KIND,
        normalization=normalization,
        zero_centered_gamma=zero_centered,
        bias=bias,
        checkpoint=checkpoint,
        activation="swiglu",
    )
    check(module, make_input())


@pytest.mark.parametrize("shape", [(IN,), (1, IN), (2, 1, 3, IN), (0, IN), (2, 0, IN)], ids=str)
def test_every_shape_works(shape):
    module, x = make(KIND), make_input(*shape)
    check(module, x)
    assert x.grad.shape == shape


def test_activation_params_reach_the_activation():
    params = {"limit": 0.5, "alpha": 0.9, "glu_linear_offset": -0.25}
    check(make(KIND, activation="clamped_swiglu", activation_params=params), make_input())
    check(make(KIND, activation="clamped_swiglu", activation_params={"limit": 1.0}), make_input())


@pytest.mark.parametrize(
    ("bias", "return_bias", "return_layernorm_output"),
    list(itertools.product([True, False], repeat=3)),
)
@pytest.mark.parametrize("checkpoint", [True, False])
def test_the_tuple_has_output_bias_and_norm_output(
    bias, return_bias, return_layernorm_output, checkpoint
):
    plain = make(KIND, bias=bias)
    module = make(
        KIND,
        bias=bias,
        return_bias=return_bias,
        return_layernorm_output=return_layernorm_output,
        checkpoint=checkpoint,
    )
    x = make_input()
    result = module(x)
    parts = list(result) if isinstance(result, tuple) else [result]
    assert len(parts) == 1 + return_bias + return_layernorm_output
    grad = output_gradient(parts[0])
    expected = expected_results(plain, x, grad)
    total = parts[0]
    if return_bias:
        assert parts[1] is (module.fc2_bias if bias else None)
        total = total + parts[1] if bias else total
    if return_layernorm_output:
        assert_matches({"layernorm_output": parts[-1].detach()}, expected)
    assert_matches({"output": total.detach()}, expected)
    total.backward(grad)
    gradients = {name: value.grad for name, value in module.named_parameters()}
    assert_matches({"inp": x.grad, **gradients}, expected)


@pytest.mark.parametrize("checkpoint", [True, False])
def test_the_norm_outputs_gradient_is_added(checkpoint):
    module = make(KIND, return_layernorm_output=True, checkpoint=checkpoint)
    x = make_input()
    output, normalized = module(x)
    grad, grad_normalized = output_gradient(output), output_gradient(normalized, seed=11)
    torch.autograd.backward([output, normalized], [grad, grad_normalized])
    norm = te.LayerNorm(IN, device=torch.get_default_device())
    with torch.no_grad():
        norm.weight.copy_(module.layer_norm_weight)
        norm.bias.copy_(module.layer_norm_bias)
    through, alone = expected_results(module, x, grad), expected_results(norm, x, grad_normalized)
    assert_matches({"inp": x.grad}, {"inp": through["inp"] + alone["inp"]})
    gradients = {name: value.grad for name, value in module.named_parameters() if "fc" in name}
    assert_matches(gradients, through)


def test_only_the_norm_output_may_be_used():
    module, x = make(KIND, return_layernorm_output=True), make_input()
    module(x)[1].sum().backward()
    assert_identical(module.fc1_weight.grad, torch.zeros(FFN, IN))
    assert_identical(module.fc2_bias.grad, torch.zeros(IN))
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "recipe",
    [None, DelayedScaling(amax_history_len=3), Float8CurrentScaling()],
    ids=["none", "delayed", "current"],
)
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_recomputing_inside_changes_no_bit_and_saves_less(recipe, activation):
    results, saved = [], []
    for checkpoint in (False, True):
        module = make(KIND, checkpoint=checkpoint, activation=activation)
        x = make_input(32, IN)
        for _ in range(3):  # so that delayed scaling has moved
            sizes = []

            def pack(tensor, sizes=sizes):
                sizes.append(tensor.nbytes)
                return tensor

            with (
                torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
                te.autocast(enabled=recipe is not None, recipe=recipe),
            ):
                output = module(x)
            module.zero_grad()
            x.grad = None
            output.backward(output_gradient(output))
        gradients = {name: value.grad for name, value in module.named_parameters()}
        results.append({"output": output.detach(), "inp": x.grad, **gradients})
        if recipe is not None and recipe.delayed():
            for key in ("scaling_fwd", "scaling_bwd"):
                results[-1][key] = module.fp8_meta[key].scale
                results[-1][key + " history"] = module.fp8_meta[key].amax_history
        saved.append(sum(sizes))
    assert_same(results[1], results[0])
    assert saved[1] < saved[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_under_torch_autocast_only_the_gemms_are_in_low_precision(dtype):
    module, x = make(KIND), make_input()
    with torch.autocast("cpu", dtype):
        output = module(x)
    assert output.dtype == dtype
    output.backward(output_gradient(output))
    gradients = {name: value.grad for name, value in module.named_parameters()}
    assert all(value.dtype == torch.float32 for value in [x.grad, *gradients.values()])
    rounded = make(KIND)
    with torch.no_grad():  # the weights as the GEMMs read them
        for name in ("fc1_weight", "fc2_weight"):
            getattr(rounded, name).copy_(getattr(module, name).to(dtype))
    expected = expected_results(rounded, x, output_gradient(output), dtype=dtype)
    assert_matches({"output": output.detach(), "inp": x.grad, **gradients}, expected)


def test_parameters_are_registered_in_order_with_their_attributes():
    module = make(KIND, set_parallel_mode=True)
    names = ["layer_norm_weight", "layer_norm_bias", "fc1_weight", "fc1_bias"]
    assert [name for name, _ in module.named_parameters()] == [*names, "fc2_weight", "fc2_bias"]
    assert (module.fc1_weight.partition_dim, module.fc2_weight.partition_dim) == (0, 1)
    assert module.fc1_bias.partition_dim == 0
    assert module.fc2_bias.sequence_parallel is False


def test_construction_errors_name_argument_value_and_remedy():
    cases = [
        (NotImplementedError, {"activation": "tanh"}, r"activation is 'tanh'; one of gelu, "),
        (ValueError, {"activation_params": {"limit": 1}}, r"activation_params has \['limit'\]"),
        (ValueError, {"normalization": "L2Norm"}, r"LayerNormMLP: normalization is 'L2Norm'"),
        (ValueError, {"tp_size": 3}, r"LayerNormMLP: ffn_hidden_size is 56; a multiple of the 3"),
    ]
    for error, keywords, message in cases:
        with pytest.raises(error, match=message):
            te.LayerNormMLP(IN, FFN, device=torch.get_default_device(), **keywords)


def test_forward_errors_name_argument_value_and_remedy():
    module = make(KIND)
    with pytest.raises(ValueError, match=r"LayerNormMLP\.forward: inp has shape \[2, 5\]; .*24"):
        module(torch.zeros(2, 5))
    with pytest.raises(TypeError, match=r"LayerNormMLP\.forward\(\) got an unexpected keyword"):
        module(make_input(), fp8_output=True)
    module.fc2_weight = torch.nn.Parameter(torch.zeros(IN, FFN + 1))
    with pytest.raises(ValueError, match=r"parameter fc2_weight has shape \[24, 57\]"):
        module(make_input())
