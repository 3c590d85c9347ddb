# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""FP8 casts of the compiled module against the formats' definitions; refusals of bad arguments."""

from __future__ import annotations

import pytest
import torch

import transformer_engine_torch as tex
from helpers.formats import E4M3, E5M2, FloatFormat, decode_table, encode_reference
from helpers.generators import (
    DTYPES,
    MATRIX_SHAPES,
    all_bfloat16_values,
    random_tensor,
    special_values,
    strided_copy,
    wide_tensor,
)
from helpers.tolerances import assert_identical

# Values of DType.
E4M3_CODE, E5M2_CODE = 7, 8
DTYPE_CODES = {torch.float32: 4, torch.float16: 5, torch.bfloat16: 6}
FP8 = [pytest.param(E4M3_CODE, E4M3, id="e4m3"), pytest.param(E5M2_CODE, E5M2, id="e5m2")]


def scaled(x: torch.Tensor, scale: float) -> torch.Tensor:
    """x * scale rounded to float32, in float64: what is encoded."""
    return (x.float() * torch.tensor(scale, dtype=torch.float32)).double()


@pytest.mark.smoke
@pytest.mark.parametrize(("code", "fmt"), FP8)
def test_every_bfloat16_is_encoded_to_the_nearest_code(code: int, fmt: FloatFormat) -> None:
    x = all_bfloat16_values()
    is_nan = x.isnan()
    for scale in (1.0, 0.37, 1024.0):
        data = tex.quantize_fp8(x, code, scale=torch.tensor([scale]))
        assert torch.equal(data[~is_nan], encode_reference(scaled(x[~is_nan], scale), fmt))
        assert (data[is_nan] == 0x7F).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*MATRIX_SHAPES, (2, 3, 5), (7,), ()])
@pytest.mark.parametrize(("code", "fmt"), FP8)
def test_all_outputs_come_from_one_call(
    code: int, fmt: FloatFormat, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = wide_tensor(shape, dtype=dtype)
    rows, cols = x.numel() // max(x.shape[-1], 1) if x.dim() else 1, x.shape[-1] if x.dim() else 1
    data = torch.empty(shape, dtype=torch.uint8)
    data_transpose = torch.empty(cols, rows, dtype=torch.uint8)
    scale, scale_inv, amax = torch.tensor([0.7]), torch.empty(1), torch.zeros(1)
    returned = tex.quantize_fp8(
        x,
        code,
        scale=scale,
        data=data,
        data_transpose=data_transpose,
        scale_inv=scale_inv,
        amax=amax,
    )
    assert returned.data_ptr() == data.data_ptr()
    assert torch.equal(data, encode_reference(scaled(x, 0.7), fmt))
    assert torch.equal(data_transpose, data.reshape(rows, cols).t())
    assert_identical(scale_inv, 1 / scale)
    expected = x.float().abs().max() if x.numel() else torch.tensor(0.0)
    assert_identical(amax[0], expected)


def test_only_the_transpose_may_be_asked_for() -> None:
    x = random_tensor((13, 31), dtype=torch.bfloat16)
    data_transpose = torch.empty(31, 13, dtype=torch.uint8)
    assert tex.quantize_fp8(x, E4M3_CODE, data_transpose=data_transpose) is None
    assert torch.equal(data_transpose, tex.quantize_fp8(x, E4M3_CODE).t())


def test_a_strided_input_gives_what_its_copy_gives() -> None:
    x = strided_copy(random_tensor((9, 20), dtype=torch.bfloat16))
    assert not x.is_contiguous()
    expected = tex.quantize_fp8(x.contiguous(), E4M3_CODE)
    assert torch.equal(tex.quantize_fp8(x, E4M3_CODE), expected)
    assert torch.equal(tex.compute_amax(x), tex.compute_amax(x.contiguous()))
    assert torch.equal(tex.transpose_bytes(expected.t()), expected)


def test_noop_leaves_everything_as_it_is() -> None:
    x, data = torch.ones(4, 4), torch.full((4, 4), 9, dtype=torch.uint8)
    scale_inv, amax = torch.full((1,), 5.0), torch.zeros(1)
    options = {"data": data, "scale_inv": scale_inv, "amax": amax}
    tex.quantize_fp8(x, E4M3_CODE, noop=torch.ones(1), **options)
    assert (data == 9).all() and scale_inv == 5 and amax == 0
    tex.quantize_fp8(x, E4M3_CODE, noop=torch.zeros(1), **options)
    assert (data == 0x38).all() and scale_inv == 1 and amax == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("code", "fmt"), FP8)
def test_every_code_is_decoded_scaled_and_rounded_once(
    code: int, fmt: FloatFormat, dtype: torch.dtype
) -> None:
    data = torch.arange(256, dtype=torch.uint8)
    for scale_inv in (None, 0.3):
        factor = None if scale_inv is None else torch.tensor([scale_inv])
        output = tex.dequantize_fp8(data, code, scale_inv=factor, output_dtype=DTYPE_CODES[dtype])
        values = decode_table(fmt).float()
        expected = values if factor is None else values * factor
        assert_identical(output, expected.to(dtype))
        into = torch.empty(256, dtype=dtype)
        assert tex.dequantize_fp8(data, code, scale_inv=factor, output=into) is not None
        assert_identical(into, output)


@pytest.mark.parametrize("dtype", DTYPES)
def test_amax_skips_nan_and_is_zero_for_an_empty_input(dtype: torch.dtype) -> None:
    assert tex.compute_amax(special_values(dtype)).item() == float("inf")
    x = torch.tensor([float("nan"), -2.0, 1.0], dtype=dtype)
    result = torch.full((1,), 7.0)
    assert tex.compute_amax(x, amax=result).item() == 2.0
    assert result.item() == 2.0
    assert tex.compute_amax(torch.empty(0, 3, dtype=dtype)).item() == 0.0


def test_scale_from_amax() -> None:
    amax, scale_inv = torch.tensor([3.0]), torch.empty(1)
    scale = tex.compute_scale_from_amax(amax, fp8_max=448.0, scale_inv=scale_inv)
    assert_identical(scale, torch.tensor([448.0]) / amax)  # `448.0 / amax` would round twice
    assert_identical(scale_inv, 1 / scale)
    assert tex.compute_scale_from_amax(amax, fp8_max=448.0, power_of_two=True).item() == 128.0
    assert tex.compute_scale_from_amax(amax, fp8_max=448.0, epsilon=4.0).item() == 112.0
    assert tex.compute_scale_from_amax(torch.zeros(1), fp8_max=448.0).item() == 1.0


def test_delayed_scaling_update_rolls_and_scales() -> None:
    history = torch.tensor([[4.0, 0.0], [1.0, 5.0], [2.0, 6.0]])
    scale = torch.tensor([9.0, 9.0])
    tex.delayed_scaling_update(history, scale, fp8_max=448.0)
    assert torch.equal(history, torch.tensor([[0.0, 0.0], [2.0, 5.0], [4.0, 6.0]]))
    assert torch.equal(scale, torch.tensor([112.0, 9.0]))
    reduced = torch.tensor([8.0, 7.0])
    tex.delayed_scaling_update(
        history, scale, reduced_amax=reduced, fp8_max=448.0, margin=1.0, algo="most_recent"
    )
    assert torch.equal(scale, torch.tensor([28.0, 32.0]))


X = torch.ones(2, 3)
CODES = torch.zeros(2, 3, dtype=torch.uint8)
REFUSALS = [
    (lambda: tex.quantize_fp8(X, 4), TypeError, "quantize_fp8: fp8_dtype is 4"),
    (lambda: tex.quantize_fp8(X.long(), 7), TypeError, "input has dtype int64"),
    (lambda: tex.quantize_fp8(X, 7, data=torch.empty(3, 2, dtype=torch.uint8)), ValueError, "data"),
    (lambda: tex.quantize_fp8(X, 7, data=torch.empty(2, 3)), TypeError, "data has dtype Float"),
    (
        lambda: tex.quantize_fp8(X, 7, data_transpose=CODES),
        ValueError,
        "data_transpose has shape .2, 3.",
    ),
    (
        lambda: tex.quantize_fp8(X, 7, data=torch.empty(3, 2, dtype=torch.uint8).t()),
        ValueError,
        "data has strides",
    ),
    (lambda: tex.quantize_fp8(X, 7, scale=torch.ones(2)), ValueError, "scale has shape .2."),
    (lambda: tex.quantize_fp8(X, 7, scale=torch.ones(1).double()), TypeError, "scale has dtype"),
    (lambda: tex.quantize_fp8(X, 7, amax=torch.ones(0)), ValueError, "amax has shape .0."),
    (lambda: tex.quantize_fp8(X, 7, scale=X.new_ones(1, device="meta")), ValueError, "on meta"),
    (lambda: tex.dequantize_fp8(CODES, 3), TypeError, "dequantize_fp8: fp8_dtype is 3"),
    (lambda: tex.dequantize_fp8(CODES, 7, output_dtype=0), TypeError, "output_dtype is 0"),
    (lambda: tex.dequantize_fp8(CODES, 7, output=X.t().contiguous()), ValueError, "output has"),
    (lambda: tex.transpose_bytes(X), TypeError, "transpose_bytes: input has dtype Float"),
    (lambda: tex.transpose_bytes(CODES, output=CODES), ValueError, "output has shape"),
    (lambda: tex.compute_amax(CODES), TypeError, "compute_amax: input has dtype byte"),
    (lambda: tex.compute_scale_from_amax(X, fp8_max=1.0), ValueError, "amax has shape"),
    (lambda: tex.compute_scale_from_amax(X[0, :1], fp8_max=0.0), ValueError, "fp8_max is 0"),
    (lambda: tex.delayed_scaling_update(X[0], X[0], fp8_max=1.0), ValueError, "amax_history"),
    (lambda: tex.delayed_scaling_update(X, X, fp8_max=1.0), ValueError, "scale has shape"),
    (
        lambda: tex.delayed_scaling_update(X, X[0], fp8_max=1.0, algo="min"),
        ValueError,
        "algo is 'min'",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS, ids=[row[2] for row in REFUSALS])
def test_bad_arguments_are_named(call, error, message) -> None:
    before = X.clone(), CODES.clone()
    with pytest.raises(error, match=message):
        call()
    assert torch.equal(X, before[0]) and torch.equal(CODES, before[1])
