# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""LayerNorm and RMSNorm: results against float64, dtypes (also under torch.autocast), arguments."""

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.generators import DTYPES, random_tensor, strided_copy
from helpers.modules import (
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
from transformer_engine.common.recipe import DelayedScaling

KINDS = pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])


def check(module, x, grad=None):
    actual = run(module, x, grad)
    grad = output_gradient(actual["output"]) if grad is None else grad
    assert actual.keys() == {"output", "inp", *dict(module.named_parameters())}
    expected = expected_results(module, x, grad, dtype=actual["output"].dtype)
    assert_matches(actual, expected)


@KINDS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("zero_centered", [True, False])
@pytest.mark.parametrize("shape", [(IN,), (1, IN), (7, IN), (2, 3, 4, IN)], ids=str)
def test_results_match_float64(kind, dtype, zero_centered, shape):
    module = make(kind, params_dtype=dtype, zero_centered_gamma=zero_centered)
    check(module, make_input(*shape, dtype=dtype))


@KINDS
@pytest.mark.parametrize("shape", [(0, IN), (2, 0, IN)], ids=str)
def test_no_rows_give_zero_parameter_gradients(kind, shape):
    module, x = make(kind), make_input(*shape)
    actual = run(module, x)
    assert actual["output"].shape == actual["inp"].shape == shape
    for name, parameter in module.named_parameters():
        assert_identical(actual[name], torch.zeros_like(parameter))


@KINDS
@pytest.mark.parametrize("shape", [(4, 6), [3, 2, 4], 24], ids=str)
def test_several_dimensions_are_normalized_together(kind, shape):
    keywords = {"device": torch.get_default_device()}
    module = (te.LayerNorm if kind == "LayerNorm" else te.RMSNorm)(shape, **keywords)
    flat, sizes = make(kind), (5, *([shape] if isinstance(shape, int) else shape))
    with torch.no_grad():
        for name, parameter in flat.named_parameters():
            getattr(module, name).copy_(parameter.view(module.weight.shape))
    values = random_tensor((5, IN), seed=9)
    x, x_flat = values.view(sizes).requires_grad_(), values.clone().requires_grad_()
    y, y_flat = module(x), flat(x_flat)
    y.backward(output_gradient(y_flat).view(sizes))
    y_flat.backward(output_gradient(y_flat))
    assert_identical(y, y_flat.view(sizes))
    assert_identical(x.grad, x_flat.grad.view(sizes))
    for name, parameter in flat.named_parameters():
        assert_identical(getattr(module, name).grad, parameter.grad.view(module.weight.shape))


# ---- dtypes: the output has the weight's, or that of torch.autocast -----------------------------


@KINDS
@pytest.mark.parametrize("input_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_output_has_the_weights_dtype(kind, input_dtype, dtype):
    module, x = make(kind, params_dtype=dtype), make_input(dtype=input_dtype)
    actual = run(module, x)
    assert actual["output"].dtype == dtype
    assert actual["inp"].dtype == input_dtype
    assert all(actual[name].dtype == dtype for name, _ in module.named_parameters())
    check(module, x)


@KINDS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(4, 8, IN), (IN,)], ids=str)
def test_torch_autocast_rounds_the_fp32_norm_once(kind, dtype, shape):
    # Equal large parts: statistics in low precision would lose everything.
    module, x = make(kind), (make_input(*shape).detach() * 0.01 + 4.0).requires_grad_()
    outside = module(x)
    assert outside.dtype == torch.float32
    with torch.autocast("cpu", dtype):
        actual = run(module, x)
    assert_identical(actual["output"], outside.detach().to(dtype))
    assert all(value.dtype == torch.float32 for name, value in actual.items() if name != "output")
    expected = expected_results(module, x, output_gradient(actual["output"]), dtype=dtype)
    assert_matches(actual, expected)
    assert module(x).dtype == torch.float32
    with torch.autocast("cpu", dtype), torch.autocast("cpu", enabled=False):
        assert module(x).dtype == torch.float32


@KINDS
def test_autocast_for_another_device_type_does_not_count(kind):
    module, x = make(kind), make_input()
    with torch.autocast("cuda", torch.bfloat16, enabled=torch.cuda.is_available()):
        assert module(x).dtype == torch.float32


@KINDS
def test_quantization_regions_leave_norms_alone(kind):
    module, x = make(kind), make_input()
    expected = run(module, x)
    with te.autocast(recipe=DelayedScaling()):
        assert_same(run(module, x), expected)


# ---- edge values ---------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.5])
def test_eps_is_added_to_the_variance(kind, eps):
    module = make(kind, eps=eps)
    check(module, make_input())
    module.eps = 3.0  # takes effect on the next call
    check(module, make_input())


@KINDS
def test_constant_rows_are_finite(kind):
    module = make(kind)
    x = torch.full((2, IN), 3.0, requires_grad=True)
    y = module(x)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()
    if kind == "LayerNorm":
        assert_identical(y.detach(), module.bias.detach().expand(2, IN))


@KINDS
@pytest.mark.parametrize("magnitude", [1e-18, 1e18])
def test_large_and_small_magnitudes_match_float64(kind, magnitude):
    module = make(kind, eps=0.0)
    x = (make_input().detach().clamp(-1, 1) * magnitude).requires_grad_()
    actual = {"output": module(x).detach()}
    assert_matches(actual, expected_results(module, x, output_gradient(actual["output"])))


@KINDS
def test_nan_and_infinity_stay_in_their_row(kind):
    module, x = make(kind), make_input(3, IN)
    clean = module(x.detach())
    with torch.no_grad():
        x[0, 3] = float("nan")
        x[1, 5] = float("inf")
    y = module(x.detach())
    assert y[0].isnan().all()
    assert y[1].isnan().any()
    assert_identical(y[2], clean[2])


@KINDS
def test_parameters_need_not_be_contiguous(kind):
    module, x = make(kind), make_input()
    expected = run(module, x)
    for name, parameter in list(module.named_parameters()):
        setattr(module, name, torch.nn.Parameter(strided_copy(parameter.detach())))
        assert not getattr(module, name).is_contiguous()
    assert_same(run(module, x), expected)


# ---- arguments -----------------------------------------------------------------------------------


@KINDS
def test_deprecated_synonyms_work_and_warn(kind):
    make_norm = getattr(te, kind)
    with pytest.warns(DeprecationWarning, match=f"{kind}: hidden_size is deprecated"):
        module = make_norm(hidden_size=IN, device=torch.get_default_device())
    assert module.weight.shape == (IN,)
    with pytest.warns(DeprecationWarning, match=f"{kind}: params_dtype is deprecated"):
        module = make_norm(IN, params_dtype=torch.bfloat16, device=torch.get_default_device())
    assert module.weight.dtype == torch.bfloat16


@KINDS
def test_construction_errors_name_argument_value_and_remedy(kind):
    make_norm = getattr(te, kind)
    with pytest.raises(RuntimeError, match="neither normalized_shape nor hidden_size"):
        make_norm(device=torch.get_default_device())
    with pytest.raises(RuntimeError, match="both normalized_shape and its deprecated synonym"):
        make_norm(IN, hidden_size=IN, device=torch.get_default_device())
    with pytest.raises(RuntimeError, match="both dtype and its deprecated synonym params_dtype"):
        make_norm(
            IN, dtype=torch.float32, params_dtype=torch.float32, device=torch.get_default_device()
        )
    with pytest.raises(TypeError, match="unexpected keyword argument 'wrong'"):
        make_norm(IN, wrong=1)


@KINDS
def test_forward_errors_name_argument_value_and_remedy(kind):
    module = make(kind)
    cases = [
        (ValueError, torch.zeros(2, 5), r"input has shape \[2, 5\]; trailing dimensions \[24\]"),
        (ValueError, torch.zeros(()), r"input has shape \[\]"),
        (TypeError, torch.zeros(2, IN, dtype=torch.float64), r"input has dtype Double"),
        (TypeError, "x", r"input has type str; a tensor is required"),
        (RuntimeError, torch.zeros(2, IN, device="meta"), r"input is on meta and parameter"),
    ]
    for error, value, message in cases:
        with pytest.raises(error, match=rf"{kind}\.forward: {message}"):
            module(value)
    module.weight = torch.nn.Parameter(torch.ones(IN, device="meta"))
    with pytest.raises(RuntimeError, match=r"input is on cpu and parameter weight is on meta"):
        module(make_input())


@KINDS
def test_sequence_parallel_is_marked_only_when_given(kind):
    make_norm = getattr(te, kind)
    assert not hasattr(make_norm(IN, device=torch.get_default_device()).weight, "sequence_parallel")
    for value in (True, False):
        module = make_norm(IN, sequence_parallel=value, device=torch.get_default_device())
        assert all(parameter.sequence_parallel is value for parameter in module.parameters())


@KINDS
def test_sm_margin_is_accepted(kind):
    margins = {"forward": 1, "backward": 2, "inference": 3}
    assert (
        getattr(te, kind)(IN, sm_margin=margins, device=torch.get_default_device()).sm_margin
        == margins
    )
    assert getattr(te, kind)(IN, sm_margin=2, device=torch.get_default_device()).sm_margin == 2


@KINDS
@pytest.mark.parametrize(
    ("margin", "error", "received"),
    [
        ("x", TypeError, "sm_margin is 'x'"),
        (-1, ValueError, "sm_margin is -1; at least 0 is required. Pass the number of multi"),
        ({"forward": -1}, ValueError, r"sm_margin\['forward'\] is -1"),
        ({"backward": 1.5}, TypeError, r"sm_margin\['backward'\] is 1.5"),
        ({"sideways": 1}, ValueError, "sm_margin has the key 'sideways'"),
    ],
)
def test_other_margins_are_refused(kind, margin, error, received):
    with pytest.raises(error, match=f"{kind}: {received}"):
        getattr(te, kind)(IN, sm_margin=margin, device=torch.get_default_device())


@KINDS
def test_initial_values(kind):
    make_norm = getattr(te, kind)
    assert_identical(
        make_norm(IN, device=torch.get_default_device()).weight.detach(), torch.ones(IN)
    )
    centered = make_norm(IN, zero_centered_gamma=True, device=torch.get_default_device())
    assert_identical(centered.weight.detach(), torch.zeros(IN))
    if kind == "LayerNorm":
        assert_identical(centered.bias.detach(), torch.zeros(IN))
