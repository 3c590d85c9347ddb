# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the core asks torch for (csrc/framework_functions.cpp)."""

from collections.abc import Iterator

import pytest
import torch

import transformer_engine_torch as tex
from helpers.tolerances import assert_within, matmul_bound

TF32_ROUNDING = 2.0**-11  # of an operand, relative


@pytest.fixture(params=["ieee", "tf32"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """torch's setting for FP32 products on CUDA, made through the newer of its two interfaces."""
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has allow_tf32 alone")
    before = matmul.fp32_precision
    matmul.fp32_precision = request.param
    yield request.param
    matmul.fp32_precision = before


def test_fp32_products_follow_the_setting_of_their_precision(precision):
    a, b = torch.randn(8, 64), torch.randn(16, 64)
    bound = matmul_bound(a, b.T, output=torch.float32)
    if precision == "tf32":
        bound = bound + 2.1 * TF32_ROUNDING * (a.double().abs() @ b.double().abs().T)
    result = tex.gemm(a, b)
    result = result[0] if isinstance(result, tuple) else result
    assert_within(result, a.double() @ b.double().T, bound)
