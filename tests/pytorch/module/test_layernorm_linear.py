# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""LayerNormLinear in high precision: results against float64, and its own arguments."""

import itertools

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.generators import DTYPES
from helpers.modules import (
    IN,
    OUT,
    assert_matches,
    assert_same,
    expected_results,
    make,
    make_input,
    output_gradient,
    run,
)
from helpers.tolerances import assert_identical

NORMS = ("LayerNorm", "RMSNorm")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("normalization", NORMS)
@pytest.mark.parametrize("zero_centered", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_results_match_float64(dtype, normalization, zero_centered, bias):
    module = make(
        "LayerNormLinear",
        params_dtype=dtype,
        normalization=normalization,
        zero_centered_gamma=zero_centered,
        bias=bias,
    )
    x = make_input(2, 5, IN, dtype=dtype)
    actual = run(module, x)
    names = {"output", "inp", *dict(module.named_parameters())}
    assert actual.keys() == names
    assert ("layer_norm_bias" in names) == (normalization == "LayerNorm")
    assert_matches(actual, expected_results(module, x, output_gradient(actual["output"])))


@pytest.mark.parametrize("shape", [(IN,), (1, IN), (2, 1, 3, IN), (0, IN), (2, 0, IN)], ids=str)
def test_every_shape_works(shape):
    module, x = make("LayerNormLinear"), make_input(*shape)
    actual = run(module, x)
    assert actual["output"].shape == (*shape[:-1], OUT)
    assert_matches(actual, expected_results(module, x, output_gradient(actual["output"])))


@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.5])
def test_eps_is_added_to_the_variance(eps):
    module, x = make("LayerNormLinear", eps=eps), make_input()
    actual = run(module, x)
    assert_matches(actual, expected_results(module, x, output_gradient(actual["output"])))


@pytest.mark.parametrize(
    ("bias", "return_bias", "return_layernorm_output", "gathered"),
    list(itertools.product([True, False], repeat=4)),
)
def test_the_tuple_has_output_bias_and_norm_output(
    bias, return_bias, return_layernorm_output, gathered
):
    plain = make("LayerNormLinear", bias=bias)
    module = make(
        "LayerNormLinear",
        bias=bias,
        return_bias=return_bias,
        return_layernorm_output=return_layernorm_output,
        return_layernorm_output_gathered=gathered,
    )
    x = make_input()
    result = module(x)
    parts = list(result) if isinstance(result, tuple) else [result]
    assert len(parts) == 1 + return_bias + return_layernorm_output
    grad = output_gradient(parts[0])
    expected = expected_results(plain, x, grad)
    total = parts[0]
    if return_bias:
        if bias:
            assert parts[1] is module.bias
            total = total + parts[1]
        else:  # an empty tensor, as clients know it
            assert parts[1].shape == (0,)
    if return_layernorm_output:
        assert_matches({"layernorm_output": parts[-1].detach()}, expected)
    assert_matches({"output": total.detach()}, expected)
    total.backward(grad)
    gradients = {name: value.grad for name, value in module.named_parameters()}
    assert_matches({"inp": x.grad, **gradients}, expected)


@pytest.mark.parametrize("normalization", NORMS)
def test_the_norm_outputs_gradient_is_added(normalization):
    keywords = {"normalization": normalization}
    module = make("LayerNormLinear", return_layernorm_output=True, **keywords)
    x = make_input()
    output, normalized = module(x)
    grad, grad_normalized = output_gradient(output), output_gradient(normalized, seed=11)
    torch.autograd.backward([output, normalized], [grad, grad_normalized])
    # The same by linearity: the gradient through the linear layer plus that of the norm alone.
    norm = (te.LayerNorm if normalization == "LayerNorm" else te.RMSNorm)(
        IN, device=torch.get_default_device()
    )
    with torch.no_grad():
        norm.weight.copy_(module.layer_norm_weight)
        if normalization == "LayerNorm":
            norm.bias.copy_(module.layer_norm_bias)
    through = expected_results(module, x, grad)
    alone = expected_results(norm, x, grad_normalized)
    for name, other in (("inp", "inp"), ("layer_norm_weight", "weight")):
        actual = x.grad if name == "inp" else module.layer_norm_weight.grad
        assert_matches({name: actual}, {name: through[name] + alone[other]})
    assert_matches({"weight": module.weight.grad, "bias": module.bias.grad}, through)


def test_only_the_norm_output_may_be_used():
    module, x = make("LayerNormLinear", return_layernorm_output=True), make_input()
    _, normalized = module(x)
    grad = output_gradient(normalized)
    normalized.backward(grad)
    norm = te.LayerNorm(IN, device=torch.get_default_device())
    with torch.no_grad():
        norm.weight.copy_(module.layer_norm_weight)
        norm.bias.copy_(module.layer_norm_bias)
    expected = expected_results(norm, x, grad)
    assert_matches({"inp": x.grad}, expected)
    assert_identical(module.weight.grad, torch.zeros(OUT, IN))
    assert_identical(module.bias.grad, torch.zeros(OUT))


def test_the_returned_norm_output_must_not_be_changed_before_backward():
    module, x = make("LayerNormLinear", return_layernorm_output=True), make_input()
    output, normalized = module(x)
    with torch.no_grad():
        normalized.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("normalization", NORMS)
def test_under_torch_autocast_the_norm_reads_the_fp32_input(dtype, normalization):
    module = make("LayerNormLinear", normalization=normalization, return_layernorm_output=True)
    # Large equal parts, which the low precision would round away before the norm.
    x = (make_input().detach() * 0.01 + 8.0).requires_grad_()
    with torch.autocast("cpu", dtype):
        output, normalized = module(x)
    assert output.dtype == normalized.dtype == dtype
    exact = expected_results(module, x, output_gradient(output), dtype=dtype)
    assert_matches({"layernorm_output": normalized.detach()}, exact)
    output.sum().backward()
    assert x.grad.dtype == torch.float32
    assert all(parameter.grad.dtype == torch.float32 for parameter in module.parameters())


def test_split_parameters_act_as_one():
    split = {"query": 16, "key_value": 24}
    module, twin, x = make("LayerNormLinear", parameters_split=split), make("LayerNormLinear"), None
    with torch.no_grad():
        twin.layer_norm_weight.copy_(module.layer_norm_weight)
        twin.layer_norm_bias.copy_(module.layer_norm_bias)
        twin.weight.copy_(torch.cat([module.query_weight, module.key_value_weight]))
        twin.bias.copy_(torch.cat([module.query_bias, module.key_value_bias]))
    x = make_input()
    expected, actual = run(twin, x), run(module, x)
    joined = {name: actual[name] for name in actual if not name.startswith(("query", "key"))}
    for end in ("weight", "bias"):
        joined[end] = torch.cat([actual[f"query_{end}"], actual[f"key_value_{end}"]])
    assert_same(joined, expected)


def test_parameters_are_registered_in_order_with_their_attributes():
    module = make("LayerNormLinear")
    names = ["layer_norm_weight", "layer_norm_bias", "weight", "bias"]
    assert [name for name, _ in module.named_parameters()] == names
    assert module.layer_norm_weight.sequence_parallel is False
    assert module.layer_norm_bias.sequence_parallel is False
    assert make("LayerNormLinear", normalization="RMSNorm").layer_norm_bias is None


def test_construction_errors_name_argument_value_and_remedy():
    cases = [
        (ValueError, {"normalization": "BatchNorm"}, r"normalization is 'BatchNorm'; .*'RMSNorm'"),
        (NotImplementedError, {"parallel_mode": "row"}, r"LayerNormLinear: parallel_mode is 'row'"),
        (ValueError, {"parallel_mode": 1}, r"LayerNormLinear: parallel_mode is 1"),
        (
            ValueError,
            {"tp_size": 3, "parallel_mode": "column"},
            r"LayerNormLinear: out_features is 40; a multiple of the 3 tensor-parallel ranks",
        ),
        (ValueError, {"symmetric_ar_type": 0}, r"LayerNormLinear: symmetric_ar_type is 0"),
    ]
    for error, keywords, message in cases:
        with pytest.raises(error, match=message):
            te.LayerNormLinear(IN, OUT, device=torch.get_default_device(), **keywords)


def test_forward_errors_name_argument_value_and_remedy():
    module = make("LayerNormLinear")
    with pytest.raises(ValueError, match=r"LayerNormLinear\.forward: inp has shape \[2, 5\]"):
        module(torch.zeros(2, 5))
    with pytest.raises(TypeError, match=r"parameter \w+ has dtype Float and the input BFloat16"):
        module(torch.zeros(2, IN, dtype=torch.bfloat16))
    module.layer_norm_weight = torch.nn.Parameter(torch.ones(IN + 1))
    with pytest.raises(ValueError, match=r"layer_norm_weight has shape \[25\]; 24 elements"):
        module(make_input())
    module.layer_norm_weight = torch.nn.Parameter(torch.ones(IN, dtype=torch.bfloat16))
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(TypeError, match=r"layer_norm_bias has dtype Float and layer_norm_weight"),
    ):
        module(make_input())
