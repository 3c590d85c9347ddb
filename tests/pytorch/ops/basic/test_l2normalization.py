# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""L2Normalization against its float64 formula."""

import pytest
import torch

from helpers.formats import FORMATS
from helpers.generators import MATRIX_SHAPES, random_tensor, strided_copy
from helpers.tolerances import assert_within, gamma, rounding_bound
from transformer_engine.pytorch.ops.basic.l2normalization import L2Normalization


def reference(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", MATRIX_SHAPES)
def test_forward_and_backward(shape, dtype):
    eps = 1e-3
    x = strided_copy(random_tensor(shape, dtype=dtype, seed=1)).requires_grad_()
    exact = x.detach().double().requires_grad_()
    out, expected = L2Normalization(eps=eps)(x), reference(exact, eps)
    assert out.dtype == dtype
    steps = gamma(shape[1] + 8, torch.float32)
    bound = steps * expected.detach().abs()
    assert_within(out, expected, bound + rounding_bound(expected.detach(), dtype))
    grad = random_tensor(shape, dtype=dtype, seed=2)
    out.backward(grad)
    expected.backward(grad.double())
    inverse = torch.rsqrt(exact.detach().square().sum(-1, keepdim=True) + eps)
    dot = (grad.double() * exact.detach()).abs().sum(-1, keepdim=True)
    magnitude = grad.double().abs() * inverse + exact.detach().abs() * inverse**3 * dot
    bound = 2 * steps * magnitude
    assert_within(x.grad, exact.grad, bound + rounding_bound(exact.grad.abs() + bound, dtype))


def test_zero_rows_stay_zero_and_norms_are_one():
    x = random_tensor((4, 16), seed=1)
    x[1] = 0
    out = L2Normalization(eps=1e-12)(x)
    expected = torch.tensor([1.0, 0.0, 1.0, 1.0])
    assert_within(out.norm(dim=-1), expected, 32 * FORMATS[torch.float32].epsilon)


def test_integers_are_refused():
    with pytest.raises(TypeError, match=r"L2Normalization\.forward: x has dtype torch\.int64"):
        L2Normalization()(torch.arange(4))


def test_it_has_no_state():
    assert not L2Normalization(eps=1e-4, seq_length=8, micro_batch_size=2).state_dict()
