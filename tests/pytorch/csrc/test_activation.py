# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Activations and softmax of the compiled module against float64 autograd; refusals.

The kernels themselves are checked element by element in tests/cpp/ops/test_activation.cpp and
test_softmax.cpp.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import transformer_engine_torch as tex
from helpers.generators import DTYPES, strided_copy
from helpers.tolerances import assert_identical, assert_within, gamma, rounding_bound, sum_bound
from transformer_engine.pytorch.tensor import Float8Quantizer

PLAIN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "qgelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "srelu": lambda x: F.relu(x) ** 2,
    "silu": F.silu,
}
GATED = {"geglu": "gelu", "qgeglu": "qgelu", "reglu": "relu", "sreglu": "srelu", "swiglu": "silu"}
NAMES = [*PLAIN, *GATED, "glu", "clamped_swiglu", "situglu"]
SCALED = ["srelu", "swiglu", "situglu", "clamped_swiglu"]
SCALED_GATED = SCALED[1:]
SHAPES = [(3, 64), (2, 5, 34), (70,), (0, 8)]


def exact_activation(name: str, x: torch.Tensor) -> torch.Tensor:
    """The formula in float64; the first half of a gated input goes through the function."""
    if name in PLAIN:
        return PLAIN[name](x)
    a, b = x.chunk(2, -1)
    if name == "glu":
        return torch.sigmoid(a) * b
    if name == "clamped_swiglu":
        a = a.clamp(max=7.0)
        return a * torch.sigmoid(1.702 * a) * (b.clamp(-7.0, 7.0) + 1.0)
    if name == "situglu":
        return 4.0 * torch.tanh(a / 4.0) * torch.sigmoid(a) * 25.0 * torch.tanh(b / 25.0)
    return PLAIN[GATED[name]](a) * b


def gradient_name(name: str) -> str:
    return "clamped_dswiglu" if name == "clamped_swiglu" else f"d{name}"


def bound_of(exact: torch.Tensor, dtype: torch.dtype, size: float) -> torch.Tensor:
    """40 roundings in float32 of numbers up to `size`, and the last one; the published constants
    of GELU differ from torch's by 5 units in the eighth digit."""
    return gamma(40, torch.float32) * size + rounding_bound(exact.detach(), dtype)


@pytest.mark.smoke
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_forward_and_backward(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (3.0 * torch.randn(shape)).to(dtype)
    exact_x = x.double().requires_grad_()
    exact = exact_activation(name, exact_x)
    size = float(x.abs().max()) ** 3 + 1.0 if x.numel() else 1.0
    got = getattr(tex, name)(x)
    assert got.dtype == dtype and got.shape == exact.shape
    assert_within(got, exact, bound_of(exact, dtype, size))
    grad = torch.randn(exact.shape).to(dtype)
    (exact_grad,) = torch.autograd.grad(exact, exact_x, grad.double())
    got_grad = getattr(tex, gradient_name(name))(grad, x)
    assert got_grad.dtype == dtype
    assert_within(got_grad, exact_grad, bound_of(exact_grad, dtype, 8 * size))


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_bias_gradient_is_the_sum_of_unrounded_rows(name: str) -> None:
    x, grad = torch.randn(37, 24), torch.randn(37, 24)
    grad_bias, grad_input = getattr(tex, f"dbias_d{name}")(grad, x)
    assert_identical(grad_input, getattr(tex, f"d{name}")(grad, x))
    assert_within(
        grad_bias, grad_input.double().sum(0), sum_bound(grad_input, 0, output=torch.float32)
    )


def deinterleaved(x: torch.Tensor, size: int) -> torch.Tensor:
    """[..., n / size blocks of (a, b), each of `size` columns] -> [..., all of a, all of b]."""
    return x.unflatten(-1, (-1, 2, size)).transpose(-3, -2).flatten(-3)


@pytest.mark.smoke
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", SCALED)
def test_row_scales(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, scales = (3.0 * torch.randn(shape)).to(dtype), torch.randn(shape[:-1])
    exact_x, exact_scales = x.double().requires_grad_(), scales.double().requires_grad_()
    unscaled = exact_activation(name, exact_x)
    exact = unscaled * exact_scales[..., None]
    size = float(x.abs().max()) ** 3 + 1.0 if x.numel() else 1.0
    scale_size = 1.0 + float(scales.abs().max()) if scales.numel() else 1.0
    got = getattr(tex, f"scaled_{name}")(x, scales)
    assert got.dtype == dtype and got.shape == exact.shape
    assert_within(got, exact, bound_of(exact, dtype, size * scale_size))

    grad = torch.randn(exact.shape).to(dtype)
    exact_grads = torch.autograd.grad(exact, (exact_x, exact_scales), grad.double())
    got_grad, got_scale_grad = getattr(tex, f"scaled_{gradient_name(name)}")(grad, x, scales)
    assert got_grad.dtype == dtype and got_scale_grad.dtype == torch.float32
    assert_within(got_grad, exact_grads[0], bound_of(exact_grads[0], dtype, 8 * size * scale_size))
    terms = (grad.double() * unscaled.detach()).unsqueeze(-1)
    of_terms = (gamma(40, torch.float32) * size * grad.double().abs()).sum(-1)
    assert_within(
        got_scale_grad,
        exact_grads[1],
        sum_bound(terms.squeeze(-1), -1, output=torch.float32) + of_terms,
    )


@pytest.mark.parametrize("name", SCALED)
def test_scale_gradient_is_the_difference_of_the_outputs(name: str) -> None:
    # The loss sum(grad * y) is linear in the scales: a central difference of any step is exact but
    # for rounding.
    x = torch.randn(7, 48)
    forward = getattr(tex, f"scaled_{name}")
    scales = torch.randn(7)
    upper, lower = forward(x, scales + 1.0).double(), forward(x, scales - 1.0).double()
    grad = torch.randn(upper.shape)
    difference = (grad.double() * (upper - lower)).sum(-1) / 2
    _, scale_grad = getattr(tex, f"scaled_{gradient_name(name)}")(grad, x, scales)
    size = (upper.abs() + lower.abs() + 1.0) * float(x.abs().max() + 1.0) ** 3
    bound = gamma(40 + upper.shape[-1], torch.float32) * (grad.double().abs() * size).sum(-1)
    assert_within(scale_grad, difference, bound)


def test_situglu_gradient_is_the_difference_of_the_outputs() -> None:
    # A central difference errs by h^2 / 6 times the third derivative and by roundings over h. With
    # the derivatives of tanh at most 1, 0.77 and 2 in size and those of sigmoid 1/4, 0.097 and 1/8,
    # the third derivative in a is at most `third` by Leibniz' rule; in b it is at most
    # 2 * beta1 / beta2^2, which is less.
    beta1, beta2, step = 1.5, 2.0, 2.0**-7
    third = beta2 * (2 / beta1**2 + 0.58 / beta1 + 0.291 + beta1 / 8)
    x = torch.randn(4, 12)
    grad = tex.dsituglu(torch.ones(4, 6), x, None, beta1, beta2)
    for column in range(12):
        shift = torch.zeros(12)
        shift[column] = step
        upper, lower = x + shift, x - shift
        difference = tex.situglu(upper, None, beta1, beta2) - tex.situglu(lower, None, beta1, beta2)
        width = (upper - lower)[:, column].double()  # exact, with the rounding of x + step
        got = difference[:, column % 6].double() / width
        bound = step**2 / 6 * third + gamma(40, torch.float32) * beta1 * beta2 / step
        assert_within(grad[:, column], got, bound)


@pytest.mark.parametrize("size", [1, 4, 6, 24])
@pytest.mark.parametrize("name", SCALED_GATED)
def test_interleaved_halves(name: str, size: int) -> None:
    x, scales, grad = torch.randn(2, 5, 48), torch.rand(2, 5), torch.randn(2, 5, 24)
    forward = getattr(tex, f"scaled_{name}")
    backward = getattr(tex, f"scaled_{gradient_name(name)}")
    plain = deinterleaved(x, size)
    assert_identical(forward(x, scales, glu_interleave_size=size), forward(plain, scales))
    got, got_scales = backward(grad, x, scales, glu_interleave_size=size)
    expected, expected_scales = backward(grad, plain, scales)
    assert_identical(deinterleaved(got, size), expected)
    y = forward(plain, torch.ones(2, 5))  # the sums differ in the order of their terms alone
    assert_within(
        got_scales, expected_scales, 2 * sum_bound(grad.double() * y, -1, output=torch.float32)
    )


def test_parameters_of_scaled_activations_reach_the_kernel() -> None:
    x, grad, scales = torch.randn(5, 16), torch.randn(5, 8), torch.full((5,), 2.0)
    # A scale of 2 is exact.
    assert_identical(
        tex.scaled_situglu(x, scales, None, 0.5, 3.0), 2 * tex.situglu(x, None, 0.5, 3.0)
    )
    assert_identical(
        tex.scaled_dsituglu(grad, x, scales, None, 0.5, 3.0)[0],
        2 * tex.dsituglu(grad, x, None, 0.5, 3.0),
    )
    assert_identical(
        tex.scaled_clamped_swiglu(x, scales, None, 0.5, 3.0, 0.25),
        2 * tex.clamped_swiglu(x, None, 0.5, 3.0, 0.25),
    )
    assert_identical(
        tex.scaled_clamped_dswiglu(grad, x, scales, None, 0.5, 3.0, 0.25)[0],
        2 * tex.clamped_dswiglu(grad, x, None, 0.5, 3.0, 0.25),
    )


def test_scales_of_another_type_and_shape() -> None:
    x, grad = torch.randn(5, 16), torch.randn(5, 8)
    scales = torch.randn(5, 1).bfloat16()
    assert_identical(tex.scaled_swiglu(x, scales), tex.scaled_swiglu(x, scales.float().flatten()))
    _, got = tex.scaled_dswiglu(grad, x, scales)
    _, expected = tex.scaled_dswiglu(grad, x, scales.float())
    assert_identical(got, expected.bfloat16())


def test_bgrad_quantize() -> None:
    grad = torch.randn(3, 7, 16)
    quantizer = Float8Quantizer(torch.full((1,), 3.0), torch.zeros(1), 8)
    grad_bias, quantized = tex.bgrad_quantize(grad, quantizer)
    rows = grad.reshape(-1, 16)
    assert_within(grad_bias, rows.double().sum(0), sum_bound(rows, 0, output=torch.float32))
    assert_identical(quantized.dequantize(), quantizer(grad).dequantize())
    assert tex.bgrad_quantize(grad, None)[1] is grad


def test_quantizer_gives_what_it_makes_of_the_plain_output() -> None:
    x, grad = torch.randn(16, 32).bfloat16(), torch.randn(16, 16).bfloat16()
    quantizer = Float8Quantizer(torch.full((1,), 3.0), torch.zeros(1), 7)
    assert_identical(tex.swiglu(x, quantizer).dequantize(), quantizer(tex.swiglu(x)).dequantize())
    scales = torch.rand(16)
    assert_identical(
        tex.scaled_swiglu(x, scales, quantizer).dequantize(),
        quantizer(tex.scaled_swiglu(x, scales)).dequantize(),
    )
    assert_identical(
        tex.scaled_dswiglu(grad, x, scales, quantizer)[0].dequantize(),
        quantizer(tex.scaled_dswiglu(grad, x, scales)[0]).dequantize(),
    )
    assert_identical(
        tex.dswiglu(grad, x, quantizer).dequantize(), quantizer(tex.dswiglu(grad, x)).dequantize()
    )


def test_strided_input_equals_contiguous() -> None:
    x = torch.randn(16, 24)
    assert_identical(tex.geglu(strided_copy(x)), tex.geglu(x))


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (ValueError, "swiglu: input has shape", lambda: tex.swiglu(torch.ones(2, 3))),
        (ValueError, "gelu: input has shape", lambda: tex.gelu(torch.ones(()))),
        (TypeError, "input has dtype int64", lambda: tex.gelu(torch.ones(3, dtype=torch.int64))),
        (
            ValueError,
            "grad_output has shape",
            lambda: tex.dgelu(torch.ones(2, 3), torch.ones(3, 3)),
        ),
        (ValueError, "beta1 is 0", lambda: tex.situglu(torch.ones(2, 4), beta1=0.0)),
        (
            ValueError,
            "scaled_swiglu: act_scales has shape",
            lambda: tex.scaled_swiglu(torch.ones(2, 4), torch.ones(3)),
        ),
        (
            ValueError,
            "scaled_dsrelu: act_scales has shape",
            lambda: tex.scaled_dsrelu(torch.ones(2, 4), torch.ones(2, 4), torch.ones(())),
        ),
        (
            TypeError,
            "act_scales has dtype int64",
            lambda: tex.scaled_srelu(torch.ones(2, 4), torch.ones(2, dtype=torch.int64)),
        ),
        (
            ValueError,
            "scaled_srelu: act_scales is on meta",
            lambda: tex.scaled_srelu(torch.ones(2, 4), torch.ones(2, device="meta")),
        ),
        (
            ValueError,
            "glu_interleave_size is 3",
            lambda: tex.scaled_swiglu(torch.ones(2, 8), torch.ones(2), glu_interleave_size=3),
        ),
        (ValueError, "limit is -1", lambda: tex.clamped_swiglu(torch.ones(2, 4), limit=-1.0)),
        (
            ValueError,
            "dgelu: grad is on meta",
            lambda: tex.dgelu(torch.ones(2, 3, device="meta"), torch.ones(2, 3)),
        ),
    ],
)
def test_bad_arguments(error: type[Exception], match: str, call: Callable[[], object]) -> None:
    with pytest.raises(error, match=match):
        call()


SCALE = 0.5


def softmax_case(
    kind: str, dtype: torch.dtype
) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """Scores, further arguments, and which elements are hidden."""
    queries, keys = (9, 9) if kind == "upper_triang_masked" else (9, 14)
    shape = (4, queries, keys) if kind == "upper_triang_masked" else (2, 3, queries, keys)
    scores = (4.0 * torch.randn(shape)).to(dtype)
    hidden = torch.zeros(shape, dtype=torch.bool)
    if kind == "masked":
        mask = torch.rand(2, 1, queries, keys) < 0.4
        mask[0, 0, 0] = True
        return scores, [mask], mask.expand(shape)
    if kind == "upper_triang_masked":
        hidden = torch.ones(queries, keys, dtype=torch.bool).triu(1).expand(shape)
    if kind == "aligned_causal_masked":
        hidden = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1).expand(shape)
    return scores, [], hidden


@pytest.mark.smoke
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["", "masked", "upper_triang_masked", "aligned_causal_masked"])
def test_softmax(kind: str, dtype: torch.dtype) -> None:
    scores, arguments, hidden = softmax_case(kind, dtype)
    stem = f"scaled_{kind}_softmax" if kind else "scaled_softmax"
    exact_scores = scores.double().requires_grad_()
    exact = (exact_scores * SCALE).masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num()
    got = getattr(tex, f"{stem}_forward")(scores, *arguments, SCALE)
    assert got.dtype == dtype
    assert_within(got, exact, gamma(100, torch.float32) + rounding_bound(exact.detach(), dtype))
    assert (got[hidden] == 0).all()

    # The gradient's formula on the probabilities that were given.
    grad, y = torch.randn(scores.shape).to(dtype), got.double()
    mean = (grad.double() * y).sum(-1, keepdim=True)
    expected = SCALE * (grad.double() - mean) * y
    got_grad = getattr(tex, f"{stem}_backward")(grad, got, SCALE)
    limit = gamma(40, torch.float32) * (grad.double().abs() + 1.0) + rounding_bound(expected, dtype)
    assert_within(got_grad, expected, limit)


def test_softmax_refusals() -> None:
    scores = torch.ones(2, 3, 4, 5)
    with pytest.raises(ValueError, match="scaled_softmax_forward: input has shape"):
        tex.scaled_softmax_forward(scores[0], 1.0)
    with pytest.raises(ValueError, match="scaled_masked_softmax_forward: mask has shape"):
        tex.scaled_masked_softmax_forward(scores, torch.zeros(2, 3, 4, 5, dtype=torch.bool), 1.0)
    with pytest.raises(ValueError, match="mask has batch size 3"):
        tex.scaled_masked_softmax_forward(scores, torch.zeros(3, 1, 4, 5, dtype=torch.bool), 1.0)
    with pytest.raises(TypeError, match="mask has dtype Float"):
        tex.scaled_masked_softmax_forward(scores, torch.zeros(2, 1, 4, 5), 1.0)
    with pytest.raises(ValueError, match="grad_output has shape"):
        tex.scaled_softmax_backward(scores[:1], scores, 1.0)
