# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""NVFP4: values against the rule, the transform, stochastic rounding, copies, views."""

import copy
import pickle

import pytest
import torch

from helpers.block_formats import (
    as_matrix,
    assert_padded,
    decode_e2m1,
    e2m1_values,
    hadamard_transposed,
    nvfp4_copy,
    nvfp4_scales,
    nvfp4_values,
    pack_nibbles,
    spread,
    unpack_nibbles,
)
from helpers.generators import DTYPES, MATRIX_SHAPES, placed, random_tensor, wide_tensor
from helpers.quantizers import USAGES
from helpers.tolerances import assert_identical, assert_within, gamma
from transformer_engine.common.recipe import MXFP8BlockScaling, NVFP4BlockScaling
from transformer_engine.pytorch.constants import DType
from transformer_engine.pytorch.tensor import NVFP4Quantizer, NVFP4Tensor, NVFP4TensorStorage

MODES = {
    "plain": {},
    "tiles": {"with_2d_quantization": True},
    "to_256": {"nvfp4_e4m3_max": 256},
    "mae": {"nvfp4_use_4over6": True, "nvfp4_e4m3_max": 256},
    "mse": {"nvfp4_use_4over6": True, "nvfp4_4over6_err_mode": "MSE"},
    "mae_tiles": {"nvfp4_use_4over6": True, "with_2d_quantization": True},
}

SMOKE_SHAPE = pytest.param((129, 65), marks=pytest.mark.smoke)


def make_tensor(shape=(64, 96), seed=0, dtype=torch.float32, **settings):
    return NVFP4Quantizer(**settings)(random_tensor(shape, seed=seed, dtype=dtype))


def reference(matrix, settings):
    error_mode = settings.get("nvfp4_4over6_err_mode", "MAE")
    return nvfp4_copy(
        matrix.contiguous(),
        tiles=settings.get("with_2d_quantization", False),
        e4m3_max=float(settings.get("nvfp4_e4m3_max", 448)),
        mode=error_mode if settings.get("nvfp4_use_4over6") else "",
    )


# --- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", MODES.values(), ids=MODES)
@pytest.mark.parametrize(
    ("make", "dtype"), [*((random_tensor, dtype) for dtype in DTYPES), (wide_tensor, DTYPES[0])]
)
@pytest.mark.parametrize("shape", [*MATRIX_SHAPES[1:], (2, 3, 50), SMOKE_SHAPE, (5,)])
def test_both_copies_follow_the_rule_bit_for_bit(settings, dtype, shape, make):
    x = make(shape, dtype=dtype)
    tensor, matrix = NVFP4Quantizer(**settings)(x), as_matrix(x)
    e4m3_max = float(settings.get("nvfp4_e4m3_max", 448))
    for columnwise in (False, True):
        codes, scales, amax = reference(matrix.t() if columnwise else matrix, settings)
        data, scale_inv, own_amax = tensor._copy(columnwise)[:3]
        assert torch.equal(own_amax, amax)
        assert_padded(scale_inv, scales, (128, 4))
        assert torch.equal(data, pack_nibbles(codes))
        values = nvfp4_values(codes, scales, amax, e4m3_max)
        values = (values.t() if columnwise else values).reshape(shape)
        actual = tensor.dequantize(dtype=torch.float32)
        assert_within(actual, values, values.abs() * gamma(3, torch.float32))
        tensor.update_usage(rowwise_usage=False)


def test_every_code_dequantizes_to_its_value():
    codes = torch.arange(16, dtype=torch.uint8).repeat(127, 1)
    scales = torch.zeros(128, 4, dtype=torch.uint8)
    scales[:127, 0] = torch.arange(127)  # all finite positive E4M3 codes
    tensor = NVFP4Tensor(
        codes.shape,
        torch.float32,
        rowwise_data=pack_nibbles(codes),
        rowwise_scale_inv=scales,
        amax_rowwise=torch.tensor([6.0 * 448]),
    )
    expected = nvfp4_values(codes, scales[:127, :1], torch.tensor([6.0 * 448]))
    assert_identical(tensor.dequantize(), expected.float())


def test_zeros_and_special_values():
    zeros = NVFP4Quantizer()(torch.zeros(16, 32))
    assert_identical(zeros.dequantize(), torch.zeros(16, 32))
    assert zeros._amax_rowwise.item() == 0
    x = random_tensor((16, 32))
    x[0, 0], x[1, 1] = float("nan"), -3.0
    tensor = NVFP4Quantizer()(x)
    assert torch.isfinite(tensor.dequantize()).all()
    assert tensor._amax_rowwise.item() == x.nan_to_num(0.0).abs().max()


def test_tiles_have_the_same_values_in_both_copies():
    tensor = make_tensor((40, 70), with_2d_quantization=True)
    values = tensor.dequantize()
    tensor.update_usage(rowwise_usage=False)
    assert_identical(tensor.dequantize(), values)


@pytest.mark.parametrize("rows", [32, 50])
@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_the_columnwise_copy_is_that_of_the_transformed_input(rows, mixed, after):
    # Small integers: all sums of the transform are exact, in any order.
    options = {"generator": torch.Generator().manual_seed(1), "device": "cpu"}
    x = placed(torch.randint(-8, 9, (rows, 48), **options).bfloat16(), None)
    tensor = NVFP4Quantizer(with_rht=True, with_post_rht_amax=after, with_random_sign_mask=mixed)(x)
    plain = NVFP4Quantizer()(x)
    assert torch.equal(tensor._rowwise_data, plain._rowwise_data)
    assert torch.equal(tensor._rowwise_scale_inv, plain._rowwise_scale_inv)
    signs = {} if mixed else {"signs": (1,) * 16}
    transformed = hadamard_transposed(x, **signs).float()
    assert tensor._amax_columnwise.item() == (transformed if after else x.float()).abs().max()
    if after:
        codes, scales, _ = nvfp4_copy(transformed)
        assert torch.equal(tensor._columnwise_data, pack_nibbles(codes))
        assert_padded(tensor._columnwise_scale_inv, scales, (128, 4))
    tensor.update_usage(rowwise_usage=False)
    with pytest.raises(NotImplementedError, match="Hadamard-transformed columnwise copy"):
        tensor.dequantize()
    assert "not readable" in repr(tensor)
    with pytest.raises(NotImplementedError, match="Hadamard-transformed columnwise copy"):
        make_tensor((rows, 48)).copy_(tensor)


def test_transformed_products_are_those_of_the_inputs():
    """H / 4 is orthogonal: what the signs and the transform do cancels in a product."""
    a, b = random_tensor((64, 32), seed=1).bfloat16(), random_tensor((64, 48), seed=2).bfloat16()
    product = hadamard_transposed(a) @ hadamard_transposed(b).t()
    exact = a.double().t() @ b.double()
    magnitude = a.double().abs().t() @ b.double().abs()
    assert_within(product, exact, magnitude * gamma(256, torch.float64))


# --- stochastic rounding ----------------------------------------------------------------------


def test_stochastic_rounding_takes_a_neighbour_and_repeats_with_the_seed():
    x, quantizer = random_tensor((128, 64)), NVFP4Quantizer(stochastic_rounding=True)
    torch.manual_seed(7)
    first, second = quantizer(x), quantizer(x)
    torch.manual_seed(7)
    again = quantizer(x)
    assert torch.equal(first._rowwise_data, again._rowwise_data)
    assert torch.equal(first._columnwise_data, again._columnwise_data)
    assert not torch.equal(first._rowwise_data, second._rowwise_data)
    _, scales, _ = nvfp4_copy(x)
    _, multipliers = nvfp4_scales(x.abs().view(128, 4, 16).amax(2), x.abs().max().view(1), 448.0)
    assert_padded(first._rowwise_scale_inv, scales, (128, 4))
    wanted = (x * spread(multipliers, (1, 16), x.shape)).double().clamp(-6, 6)
    magnitudes = wanted.abs()
    upper = torch.searchsorted(e2m1_values(), magnitudes.contiguous()).clamp(max=7)
    is_exact = e2m1_values()[upper] == magnitudes
    lower = torch.where(is_exact, upper, upper - 1)
    taken = decode_e2m1(unpack_nibbles(first._rowwise_data, 64))
    is_lower = taken.abs() == e2m1_values()[lower]
    is_upper = taken.abs() == e2m1_values()[upper]
    assert (is_lower | is_upper).all()
    assert ((taken == 0) | (taken.sign() == wanted.sign())).all()


def test_stochastic_rounding_is_right_on_average():
    x = torch.full((1, 16), 1.3 / 6.0)
    x[0, 0] = 1.0  # the block's maximum: elements become 1.3 of its sixth
    quantizer = NVFP4Quantizer(stochastic_rounding=True, columnwise=False)
    torch.manual_seed(3)
    draws = torch.stack([quantizer(x).dequantize()[0, 1:] for _ in range(200)]).double()
    # 3000 draws of 1 or 1.5 (sixths): the standard error of the mean is 0.5 sqrt(p q / n).
    probability = 0.6
    deviation = 0.5 / 6 * (probability * (1 - probability) / draws.numel()) ** 0.5
    assert abs(draws.mean().item() - x[0, 1].item()) < 5 * deviation + 2.0**-10


# --- quantizer --------------------------------------------------------------------------------


def test_the_quantizer_says_what_it_makes():
    quantizer = NVFP4Quantizer(with_rht=True, with_post_rht_amax=True, stochastic_rounding=True)
    assert quantizer.dtype == quantizer.fp4_dtype == DType.kFloat4E2M1
    assert not quantizer.is_requantization_safe()
    assert quantizer.is_quantizable(torch.zeros(3, 5))
    assert not NVFP4Quantizer(row_scaled_nvfp4=True).is_quantizable(torch.zeros(16, 16))
    assert quantizer.fits_recipe(NVFP4BlockScaling())
    assert not quantizer.fits_recipe(MXFP8BlockScaling())
    with pytest.raises(ValueError, match="fp4_dtype is kFloat8E4M3"):
        quantizer.dtype = DType.kFloat8E4M3
    quantizer.stochastic_rounding = False
    assert quantizer != quantizer.from_core(NVFP4Quantizer()._core)
    for settings in (*MODES.values(), {"with_rht": True, "with_random_sign_mask": False}):
        quantizer = NVFP4Quantizer(**settings)
        for name, value in settings.items():
            assert getattr(quantizer, name) == value
        assert quantizer.copy() == pickle.loads(pickle.dumps(quantizer)) == quantizer
        assert NVFP4Quantizer.from_core(quantizer._core) == quantizer


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fp4_dtype": DType.kFloat8E4M3}, "fp4_dtype is kFloat8E4M3"),
        ({"nvfp4_e4m3_max": 300}, "nvfp4_e4m3_max is 300"),
        ({"nvfp4_4over6_err_mode": "max"}, "nvfp4_4over6_err_mode is 'max'"),
        ({"nvfp4_use_4over6": True, "with_rht": True}, "nvfp4_use_4over6 and with_rht"),
        (
            {"nvfp4_use_4over6": True, "stochastic_rounding": True},
            "nvfp4_use_4over6 and stochastic_rounding",
        ),
        ({"row_scaled_nvfp4": True, "with_rht": True}, "row_scaled_nvfp4 and with_rht"),
        (
            {"row_scaled_nvfp4": True, "stochastic_rounding": True},
            "row_scaled_nvfp4 and stochastic_rounding",
        ),
        (
            {"row_scaled_nvfp4": True, "with_2d_quantization": True},
            "row_scaled_nvfp4 and with_2d_quantization",
        ),
        (
            {"row_scaled_nvfp4": True, "with_amax_reduction": True},
            "row_scaled_nvfp4 and with_amax_reduction",
        ),
    ],
)
def test_combinations_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=f"NVFP4Quantizer: {message}"):
        NVFP4Quantizer(**settings)


def test_rows_can_have_an_amax_of_their_own():
    x = random_tensor((20, 48)) * torch.exp2(torch.arange(20.0) - 10).view(20, 1)
    tensor = NVFP4Quantizer(row_scaled_nvfp4=True, columnwise=False)(x)
    assert torch.equal(tensor._amax_rowwise, x.abs().amax(1))
    for row in (0, 7, 19):
        codes, scales, _ = nvfp4_copy(x[row : row + 1])
        assert torch.equal(tensor._rowwise_data[row : row + 1], pack_nibbles(codes))
        assert torch.equal(tensor._rowwise_scale_inv[row : row + 1, :3], scales)


def test_the_columnwise_copy_of_a_row_scaled_tensor_has_one_amax():
    x = random_tensor((20, 48))
    tensor = NVFP4Quantizer(row_scaled_nvfp4=True)(x)
    values = tensor.dequantize()
    assert tensor._amax_columnwise.shape == (1,)
    assert_identical(
        values, NVFP4Quantizer(row_scaled_nvfp4=True, columnwise=False)(x).dequantize()
    )
    columnwise = NVFP4Quantizer(rowwise=False)(x)
    assert torch.equal(tensor._columnwise_data, columnwise._columnwise_data)
    row_format, column_format = (parts[3:] for parts in tensor._native_operand())
    assert row_format != column_format == columnwise._native_operand()[1][3:]


def test_a_tensors_quantizer_does_not_communicate():
    quantizer = NVFP4Quantizer(with_amax_reduction=True)
    assert quantizer.with_amax_reduction
    tensor = quantizer(random_tensor((16, 16)))
    assert not tensor._quantizer.with_amax_reduction
    assert not pickle.loads(pickle.dumps(quantizer)).with_amax_reduction
    assert copy.deepcopy(quantizer) == quantizer


# --- usages -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(64, 96), (40, 70), (2, 25, 18)])
def test_the_columnwise_copy_of_tiles_is_made_on_demand(shape):
    tiles = {"with_2d_quantization": True}
    tensor, both = make_tensor(shape, columnwise=False, **tiles), make_tensor(shape, **tiles)
    tensor.update_usage(columnwise_usage=True)
    for actual, expected in zip(tensor._copy(True)[:3], both._copy(True)[:3], strict=True):
        assert torch.equal(actual, expected)


def test_usages_that_cannot_be_had_are_refused():
    plain, tiles = make_tensor(), make_tensor(columnwise=False, with_2d_quantization=True)
    plain.update_usage(columnwise_usage=False)
    assert plain._amax_columnwise is None
    transformed = make_tensor(columnwise=False, with_2d_quantization=True, with_rht=True)
    for tensor, usages, name in (
        (plain, (True, True), "columnwise"),
        (tiles, (False, True), "columnwise"),
        (transformed, (True, True), "columnwise"),
        (make_tensor(rowwise=False), (True, None), "rowwise"),
    ):
        before = tensor.get_usages()
        with pytest.raises(RuntimeError, match=f"there is no {name} copy"):
            tensor.update_usage(*usages)
        assert tensor.get_usages() == before


@pytest.mark.parametrize("usages", USAGES.values(), ids=USAGES)
@pytest.mark.parametrize("shape", [(4, 128, 256), (50, 70)])
def test_empty_tensors_have_the_shapes_of_quantized_ones(usages, shape):
    quantizer = NVFP4Quantizer(**usages)
    empty, full = quantizer.make_empty(shape), quantizer(random_tensor(shape))
    for name, buffer in full._buffers().items():
        made = getattr(empty, name)
        assert (made is None) == (buffer is None)
        if buffer is not None:
            assert (made.shape, made.dtype) == (buffer.shape, buffer.dtype)
    if usages["columnwise"]:
        assert quantizer.get_scale_shape(shape, True) == tuple(full._columnwise_scale_inv.shape)
        assert quantizer.get_columnwise_shape(shape) == tuple(full._columnwise_data.shape)


# --- views ------------------------------------------------------------------------------------


def test_views_with_the_last_axis_unchanged_share_the_data():
    tensor = make_tensor((64, 50))
    view = tensor.view(2, 32, 50)
    assert type(view) is NVFP4Tensor
    assert view._rowwise_data is tensor._rowwise_data
    assert_identical(view.dequantize(), tensor.dequantize().view(2, 32, 50))
    values = random_tensor((2, 32, 50), seed=3)
    view.copy_(values)
    assert_identical(tensor.dequantize(), NVFP4Quantizer()(values.view(64, 50)).dequantize())


@pytest.mark.parametrize("method", ["view", "reshape"])
def test_other_views_are_dequantized_copies_and_say_so(method):
    tensor = make_tensor((64, 50))
    with pytest.warns(UserWarning, match=rf"NVFP4Tensor\.{method}: shape is \(32, 100\)"):
        view = getattr(tensor, method)(32, 100)
    assert_identical(view, tensor.dequantize().view(32, 100))
    with pytest.raises(ValueError, match=r"NVFP4Tensor\.view: shape is"):
        torch.ops.aten.view.default(tensor, (32, 100))


def test_zeroing_needs_no_quantizer():
    tensor = make_tensor()
    tensor._quantizer = None
    version = tensor._version
    assert tensor.zero_() is tensor
    assert tensor._version > version
    assert_identical(tensor.dequantize(), torch.zeros(64, 96))


def test_storages_know_their_shape_from_their_data_up_to_the_block():
    whole = make_tensor((6, 8, 32))
    storage = NVFP4TensorStorage(
        rowwise_data=whole._rowwise_data,
        rowwise_scale_inv=whole._rowwise_scale_inv,
        amax_rowwise=whole._amax_rowwise,
    )
    assert storage.shape == (48, 32)
    assert_identical(storage.dequantize().view(6, 8, 32), whole.dequantize())
    columnwise = NVFP4TensorStorage(
        columnwise_data=whole._columnwise_data,
        columnwise_scale_inv=whole._columnwise_scale_inv,
        amax_columnwise=whole._amax_columnwise,
    )
    assert columnwise.shape == (48, 32)
    with pytest.raises(ValueError, match="shape are all None"):
        NVFP4TensorStorage()
