# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Scaled and masked softmax against float64 formulas."""

from __future__ import annotations

import itertools

import pytest
import torch

from helpers.generators import random_tensor, strided_copy
from helpers.tolerances import assert_identical, assert_within, gamma, rounding_bound
from transformer_engine.pytorch.softmax import (
    FusedScaleMaskSoftmax,
    scaled_aligned_causal_masked_softmax,
    scaled_masked_softmax,
    scaled_softmax,
    scaled_upper_triang_masked_softmax,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((2, 3, 4, 5), (1, 2, 1, 1), (2, 1, 7, 33), (1, 1, 3, 300), (0, 2, 3, 4), (2, 2, 0, 4))


def reference(x: torch.Tensor, hidden: torch.Tensor, scale: float) -> torch.Tensor:
    """Rows without a visible column are 0."""
    visible = ~hidden.expand_as(x)
    scores = torch.where(visible, scale * x, 0.0)
    weights = scores.exp() * visible  # float64 holds the exponentials of these scores
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / torch.where(total > 0, total, 1.0), 0.0)


def check(function, x: torch.Tensor, hidden: torch.Tensor, scale: float) -> None:
    """Forward and gradient; the exponent's error grows with the size of its argument."""
    leaf, exact = x.detach().clone().requires_grad_(), x.detach().double().requires_grad_()
    out, expected = function(leaf), reference(exact, hidden, scale)
    assert out.dtype == x.dtype and out.shape == x.shape
    size = float((scale * x.double()).abs().max()) if x.numel() else 0.0
    steps = gamma(int(x.shape[-1] + 16 + 4 * size), torch.float32)
    result = expected.detach()
    assert_within(out, result, steps * result + rounding_bound(result, x.dtype))
    assert not out.detach()[hidden.expand_as(out)].any()
    grad = random_tensor(tuple(out.shape), dtype=x.dtype, seed=9)
    out.backward(grad)
    expected.backward(grad.double())
    # The gradient is computed from the rounded output, so its rounding counts too.
    magnitude = grad.double().abs() * result
    magnitude = abs(scale) * (magnitude + result * magnitude.sum(-1, keepdim=True))
    relative = 2 * steps + 2 * torch.finfo(x.dtype).eps
    floor = abs(scale) * grad.double().abs().sum(-1, keepdim=True) * torch.finfo(x.dtype).tiny
    bound = relative * magnitude + floor
    assert_within(leaf.grad, exact.grad, bound + rounding_bound(magnitude, x.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1.0, 0.125, -2.0])
def test_scaled_softmax(scale, shape, dtype):
    x = 3 * random_tensor(shape, dtype=dtype, seed=1)
    hidden = torch.zeros(shape, dtype=torch.bool)
    check(lambda t: scaled_softmax(t, scale), x, hidden, scale)
    check(lambda t: scaled_masked_softmax(t, None, scale), x, hidden, scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.uint8])
def test_scaled_masked_softmax(mask_dtype, shared, shape, dtype):
    x = random_tensor(shape, dtype=dtype, seed=1)
    mask_shape = (1 if shared else shape[0], 1, *shape[2:])
    mask = random_tensor(mask_shape, seed=2) > 0.2
    if shape[2] > 1:
        mask[..., 1, :] = True  # a row without any visible column
    check(lambda t: scaled_masked_softmax(t, mask.to(mask_dtype), 0.5), x, mask, 0.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 5, 64])
def test_upper_triangle(size, dtype):
    x = random_tensor((3, size, size), dtype=dtype, seed=1)
    hidden = torch.ones(size, size, dtype=torch.bool).triu(1)
    check(lambda t: scaled_upper_triang_masked_softmax(t, 0.7), x, hidden, 0.7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (1, 2, 3, 9), (1, 2, 9, 4)])
def test_aligned_causal(shape, dtype):
    x = random_tensor(shape, dtype=dtype, seed=1)
    rows, columns = shape[2:]
    hidden = torch.ones(rows, columns, dtype=torch.bool).triu(columns - rows + 1)
    check(lambda t: scaled_aligned_causal_masked_softmax(t, 0.7), x, hidden, 0.7)


def test_strided_scores_and_mask():
    x, mask = random_tensor((2, 2, 3, 4), seed=1), random_tensor((2, 1, 3, 4), seed=2) > 0.5
    expected = scaled_masked_softmax(x, mask, 0.5)
    assert_identical(scaled_masked_softmax(strided_copy(x), strided_copy(mask), 0.5), expected)


def test_masked_columns_may_hold_anything():
    x, mask = random_tensor((1, 1, 2, 4), seed=1), torch.zeros(1, 1, 2, 4, dtype=torch.bool)
    mask[..., 2:] = True
    expected = scaled_masked_softmax(x, mask)
    for content in (torch.nan, torch.inf, -torch.inf):
        x[..., 2:] = content
        leaf = x.clone().requires_grad_()
        out = scaled_masked_softmax(leaf, mask)
        out.square().sum().backward()
        assert_identical(out.detach(), expected)
        assert leaf.grad.isfinite().all() and not leaf.grad[..., 2:].any()


def fill(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(mask, -10000.0)


@pytest.mark.parametrize("fused", ["1", "0"])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize(
    "mask_type", ["no_mask", "causal", "causal_bottom_right", "padding", "arbitrary"]
)
def test_module_masks_alike_fused_or_not(mask_type, dtype, fused, monkeypatch):
    monkeypatch.setenv("NVTE_MASKED_SOFTMAX_FUSION", fused)
    module = FusedScaleMaskSoftmax(fill)
    for (rows, columns), per_head in itertools.product(((4, 4), (3, 6), (6, 3)), (False, True)):
        x = random_tensor((2, 2, rows, columns), dtype=dtype, seed=1)
        given = random_tensor((2, 2 if per_head else 1, rows, columns), seed=2) > 0.3
        given[0, :, 1] = True
        hidden = {
            "no_mask": torch.zeros(rows, columns, dtype=torch.bool),
            "causal": torch.ones(rows, columns, dtype=torch.bool).triu(1),
            "causal_bottom_right": torch.ones(rows, columns, dtype=torch.bool).triu(
                columns - rows + 1
            ),
        }.get(mask_type, given)
        out = module(x, given, mask_type, 0.5)
        result = reference(x.double(), hidden, 0.5)
        compute = torch.promote_types(dtype, torch.float32)
        bound = gamma(columns + 32, compute) * result + rounding_bound(result, dtype)
        assert out.dtype == dtype
        assert_within(out, result, bound)


X = torch.zeros(2, 2, 3, 4)
MASK = torch.zeros(2, 1, 3, 4, dtype=torch.bool)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: scaled_softmax(X[0]), ValueError, r"scaled_softmax: x has shape \(2, 3, 4\)"),
        (lambda: scaled_softmax(X.double()), TypeError, "scaled_softmax: x has dtype"),
        (lambda: scaled_masked_softmax(X, MASK.float()), TypeError, "mask has dtype"),
        (lambda: scaled_masked_softmax(X, MASK[0]), ValueError, "mask has shape"),
        (lambda: scaled_masked_softmax(X, MASK[..., :1]), ValueError, "mask has shape"),
        (lambda: scaled_upper_triang_masked_softmax(X), ValueError, "x has shape"),
        (lambda: scaled_upper_triang_masked_softmax(X[0]), ValueError, "last two sizes"),
        (lambda: scaled_aligned_causal_masked_softmax(X.int()), TypeError, "x has dtype"),
        (lambda: FusedScaleMaskSoftmax(fill)(X[0], None, "no_mask"), ValueError, "inp has shape"),
        (lambda: FusedScaleMaskSoftmax(fill)(X, None, "upper"), ValueError, "attn_mask_type"),
        (
            lambda: FusedScaleMaskSoftmax(fill, softmax_in_fp32=False)(X, None, "no_mask", 0.5),
            ValueError,
            "softmax_scale is 0.5 with softmax_in_fp32=False",
        ),
        (lambda: scaled_softmax(X, "x"), TypeError, "scaled_softmax: scale is 'x'; it must be a"),
        (lambda: scaled_softmax(X, float("nan")), ValueError, "scaled_softmax: scale is nan"),
        (lambda: scaled_softmax([1.0]), TypeError, r"scaled_softmax: x is \[1.0\]"),
        (lambda: scaled_masked_softmax(X, MASK, None), TypeError, "scale is None"),
        (lambda: scaled_masked_softmax(X, "x"), TypeError, "mask is 'x'"),
        (lambda: scaled_upper_triang_masked_softmax(X[0, :, :1, :1], "x"), TypeError, "scale is"),
        (lambda: scaled_aligned_causal_masked_softmax(X, "x"), TypeError, "scale is 'x'"),
        (lambda: FusedScaleMaskSoftmax("x"), TypeError, "mask_func is 'x'"),
        (lambda: FusedScaleMaskSoftmax(fill, "x"), TypeError, "softmax_in_fp32 is 'x'"),
        (
            lambda: FusedScaleMaskSoftmax(fill)(X.long(), None, "causal"),
            TypeError,
            "forward: inp has dtype torch.int64; probabilities need a floating-point",
        ),
        (lambda: FusedScaleMaskSoftmax(fill)(X > 0, None, "no_mask"), TypeError, "inp has dtype"),
        (lambda: FusedScaleMaskSoftmax(fill)(3, None, "no_mask"), TypeError, "inp is 3"),
        (lambda: FusedScaleMaskSoftmax(fill)(X, "x", "padding"), TypeError, "mask is 'x'"),
        (
            lambda: FusedScaleMaskSoftmax(fill)(X, None, "causal", "x"),
            TypeError,
            "forward: softmax_scale is 'x'; it must be a finite number",
        ),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_scale_may_be_a_tensor_of_one_number():
    assert_identical(scaled_softmax(X, torch.tensor([0.5])), scaled_softmax(X, 0.5))
