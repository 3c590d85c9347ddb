# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Norms of the compiled module against float64 autograd; refusals of bad arguments.

The kernels themselves are checked element by element in tests/cpp/ops/test_normalization.cpp.
"""

from __future__ import annotations

import pytest
import torch

import transformer_engine_torch as tex
from helpers.generators import DTYPES, strided_copy
from helpers.tolerances import assert_identical, assert_within, gamma, rounding_bound
from transformer_engine.pytorch.tensor import Float8Quantizer

EPS = 1e-5
SHAPES = [(3, 64), (2, 5, 33), (70,), (0, 8)]
DTYPE_CODES = {torch.float32: 4, torch.float16: 5, torch.bfloat16: 6}


def exact_norm(
    kind: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, centered: bool
) -> torch.Tensor:
    """The formula of the norm in float64."""
    mean = x.mean(-1, keepdim=True) if kind == "layernorm" else torch.zeros(())
    rstd = 1.0 / (((x - mean) ** 2).mean(-1, keepdim=True) + EPS).sqrt()
    y = (x - mean) * rstd * (weight + 1.0 if centered else weight)
    return y if bias is None else y + bias


def forward_arguments(kind: str, shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    hidden = shape[-1]
    operands = [torch.randn(shape).to(dtype), torch.randn(hidden).to(dtype)]
    if kind == "layernorm":
        operands.append(torch.randn(hidden).to(dtype))
    return operands


def bound_of(exact: torch.Tensor, terms: int, dtype: torch.dtype) -> torch.Tensor:
    """A row's sums in float32 and a dozen roundings, relative to the row's largest magnitude."""
    size = exact.detach().abs().amax(-1, keepdim=True) if exact.numel() else exact.detach()
    return gamma(terms + 12, torch.float32) * (size + 1.0) + rounding_bound(exact.detach(), dtype)


@pytest.mark.smoke
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_forward_and_backward(
    kind: str, shape: tuple[int, ...], dtype: torch.dtype, centered: bool
) -> None:
    operands = forward_arguments(kind, shape, dtype)
    output, mean, rstd = getattr(tex, f"{kind}_fwd")(*operands, EPS, None, None, None, 0, centered)
    exact_operands = [t.double().requires_grad_() for t in operands]
    exact = exact_norm(
        kind, exact_operands[0], exact_operands[1], *exact_operands[2:] or [None], centered
    )
    assert output.dtype == dtype and output.shape == shape
    assert_within(output, exact, bound_of(exact, shape[-1], dtype))
    assert (mean is None) == (kind == "rmsnorm")
    assert rstd.shape == (operands[0].numel() // shape[-1],)

    grad = torch.randn(shape).to(dtype)
    statistics = [rstd] if mean is None else [mean, rstd]
    got = getattr(tex, f"{kind}_bwd")(grad, operands[0], *statistics, operands[1], 0, centered)
    exact_grads = torch.autograd.grad(exact, exact_operands, grad.double())
    for one, expected, operand in zip(got, exact_grads, operands, strict=True):
        assert one.dtype == dtype and one.shape == operand.shape
        rows = operands[0].numel() // shape[-1]
        scale = float(rstd.max()) if rstd.numel() else 1.0
        limit = bound_of(expected, shape[-1] + rows, dtype) * max(scale, 1.0) * 8
        assert_within(one, expected, limit)


def test_rmsnorm_backward_adds_before_rounding() -> None:
    x, weight = forward_arguments("rmsnorm", (6, 40), torch.bfloat16)
    grad, add = torch.randn(6, 40).bfloat16(), torch.randn(6, 40).bfloat16()
    _, _, rstd = tex.rmsnorm_fwd(x, weight, EPS)
    single, grad_weight = tex.rmsnorm_bwd(grad, x.float(), rstd, weight.float())
    got, got_weight = tex.rmsnorm_bwd_add(grad, x, add, rstd, weight)
    assert_identical(got, (single + add.float()).bfloat16())
    assert_identical(got_weight, grad_weight.bfloat16())


def test_strided_operands_equal_contiguous_ones() -> None:
    x, weight, bias = forward_arguments("layernorm", (16, 24), torch.float32)
    got = tex.layernorm_fwd(strided_copy(x), strided_copy(weight), bias, EPS)
    expected = tex.layernorm_fwd(x, weight, bias, EPS)
    for one, other in zip(got, expected, strict=True):
        assert_identical(one, other)
    grad = torch.ones(()).expand(16, 24)
    got = tex.layernorm_bwd(grad, x, *expected[1:], weight)
    for one, other in zip(
        got, tex.layernorm_bwd(grad.contiguous(), x, *expected[1:], weight), strict=True
    ):
        assert_identical(one, other)


@pytest.mark.parametrize("otype", DTYPES)
def test_output_type_and_given_output(otype: torch.dtype) -> None:
    x, weight = forward_arguments("rmsnorm", (6, 40), torch.float32)
    plain, _, _ = tex.rmsnorm_fwd(x, weight, EPS, otype=DTYPE_CODES[otype])
    assert_identical(plain, tex.rmsnorm_fwd(x, weight, EPS)[0].to(otype))
    given = torch.empty(6, 40, dtype=otype)
    returned, _, _ = tex.rmsnorm_fwd(x, weight, EPS, given, None, DTYPE_CODES[otype])
    assert returned is given
    assert_identical(given, plain)


def test_quantizer_gives_what_it_makes_of_the_plain_output() -> None:
    x, weight, bias = forward_arguments("layernorm", (16, 32), torch.bfloat16)
    make = lambda: Float8Quantizer(torch.full((1,), 3.0), torch.zeros(1), 7)  # noqa: E731
    plain, _, _ = tex.layernorm_fwd(x, weight, bias, EPS)
    expected = make()(plain)
    got, _, _ = tex.layernorm_fwd(x, weight, bias, EPS, None, make())
    assert_identical(got.dequantize(), expected.dequantize())
    destination = make()(torch.zeros_like(plain))
    returned, _, _ = tex.layernorm_fwd(x, weight, bias, EPS, destination, make())
    assert returned is destination
    assert_identical(destination.dequantize(), expected.dequantize())


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (ValueError, "gamma has shape", {"weight": torch.ones(7)}),
        (ValueError, "beta has shape", {"bias": torch.ones(7)}),
        (TypeError, "beta has dtype", {"bias": torch.ones(8, dtype=torch.bfloat16)}),
        (TypeError, "input has dtype int64", {"input": torch.ones(4, 8, dtype=torch.int64)}),
        (ValueError, "input has shape", {"input": torch.ones(())}),
        (ValueError, "epsilon is -1", {"eps": -1.0}),
        (ValueError, "ln_out has shape", {"ln_out": torch.empty(3, 8)}),
        (TypeError, "ln_out has dtype Half", {"ln_out": torch.empty(4, 8, dtype=torch.half)}),
        (TypeError, "otype is float8_e4m3", {"otype": 7}),
        (ValueError, "weight is on meta", {"weight": torch.ones(8, device="meta")}),
    ],
)
def test_bad_arguments(error: type[Exception], match: str, change: dict[str, object]) -> None:
    arguments = {"input": torch.ones(4, 8), "weight": torch.ones(8), "bias": torch.ones(8)}
    with pytest.raises(error, match=match):
        tex.layernorm_fwd(**{**arguments, "eps": EPS, **change})


def test_bad_statistics() -> None:
    x, weight = torch.ones(4, 8), torch.ones(8)
    with pytest.raises(ValueError, match="rmsnorm_bwd: rsigma has shape"):
        tex.rmsnorm_bwd(x, x, torch.ones(5), weight)
    with pytest.raises(TypeError, match="layernorm_bwd: mu has dtype"):
        tex.layernorm_bwd(x, x, torch.ones(4, dtype=torch.double), torch.ones(4), weight)
