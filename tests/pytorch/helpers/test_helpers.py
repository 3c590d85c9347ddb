# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The helpers themselves: wrong bounds would make other tests empty."""

from collections.abc import Callable

import pytest
import torch

from helpers.formats import E4M3, E5M2, FloatFormat, decode_table, encode_reference
from helpers.generators import all_bfloat16_values, random_tensor, strided_copy, wide_tensor
from helpers.tolerances import (
    assert_identical,
    assert_within,
    matmul_bound,
    rounding_bound,
    sum_bound,
)

TORCH_FP8 = {E4M3: torch.float8_e4m3fn, E5M2: torch.float8_e5m2}


@pytest.mark.parametrize("fmt", TORCH_FP8, ids=["E4M3", "E5M2"])
def test_decode_table_agrees_with_torch(fmt: FloatFormat) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    expected = codes.view(TORCH_FP8[fmt]).to(torch.float64)
    assert_identical(decode_table(fmt), expected)


@pytest.mark.parametrize("fmt", TORCH_FP8, ids=["E4M3", "E5M2"])
def test_encode_reference_agrees_with_torch_in_range(fmt: FloatFormat) -> None:
    values = all_bfloat16_values()
    values = values[values.abs() <= fmt.max_value]
    expected = values.to(TORCH_FP8[fmt]).view(torch.uint8)
    assert torch.equal(encode_reference(values.double(), fmt), expected)


@pytest.mark.parametrize("fmt", TORCH_FP8, ids=["E4M3", "E5M2"])
def test_encode_reference_saturates(fmt: FloatFormat) -> None:
    values = torch.tensor([float("inf"), -float("inf"), 1e30], dtype=torch.float64)
    decoded = decode_table(fmt)[encode_reference(values, fmt).long()]
    assert decoded.tolist() == [fmt.max_value, -fmt.max_value, fmt.max_value]
    with pytest.raises(ValueError, match="NaN"):
        encode_reference(torch.tensor([float("nan")], dtype=torch.float64), fmt)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_bound_is_tight(dtype: torch.dtype) -> None:
    exact = random_tensor((4096,), dtype=torch.float64) * 3
    error = (exact.to(dtype).double() - exact).abs()
    bound = rounding_bound(exact, dtype)
    assert bool((error <= bound).all())
    assert float((error / bound).max()) > 0.9


def test_matmul_and_sum_bounds_hold_and_are_not_vacuous() -> None:
    a, b = random_tensor((31, 257), seed=1), random_tensor((257, 29), seed=2)
    bound = matmul_bound(a, b, output=torch.float32)
    exact = a.double() @ b.double()
    assert_within(a @ b, exact, bound)
    assert float(bound.max()) < 1e-2
    assert_within(a.sum(0), a.double().sum(0), sum_bound(a, 0, output=torch.float32))
    with pytest.raises(AssertionError, match="elements outside their bound"):
        assert_within((a.bfloat16() @ b.bfloat16()).float(), exact, bound)


def test_assert_within_names_the_worst_element() -> None:
    expected = torch.zeros(3, 4)
    actual = expected.clone()
    actual[1, 2], actual[2, 3] = 1.0, 5.0
    with pytest.raises(AssertionError, match=r"2 of 12 .* worst at \(2, 3\): actual 5"):
        assert_within(actual, expected, 0.5)
    with pytest.raises(AssertionError, match="1 of 1 "):
        assert_within(torch.tensor([float("nan")]), torch.tensor([0.0]), 1.0)
    with pytest.raises(AssertionError, match="1 of 1 "):
        assert_within(torch.tensor([float("inf")]), torch.tensor([-float("inf")]), 1.0)


def test_assert_identical_sees_dtype_and_sign_of_zero() -> None:
    with pytest.raises(AssertionError, match="dtype"):
        assert_identical(torch.zeros(1), torch.zeros(1, dtype=torch.float64))
    with pytest.raises(AssertionError, match="sign"):
        assert_identical(torch.tensor([0.0]), torch.tensor([-0.0]))


def test_strided_copy_is_equal_but_not_contiguous() -> None:
    tensor = random_tensor((5, 6))
    assert torch.equal(strided_copy(tensor), tensor)
    assert not strided_copy(tensor).is_contiguous()


@pytest.mark.parametrize("make", [random_tensor, wide_tensor])
def test_tensors_are_made_where_factory_functions_make_theirs(
    make: Callable[..., torch.Tensor],
) -> None:
    assert make((2, 3)).device.type == torch.get_default_device().type
    with torch.device("meta"):
        assert make((2, 3)).device.type == "meta"
        assert torch.equal(make((2, 3), device="cpu"), make((2, 3), device="cpu"))
