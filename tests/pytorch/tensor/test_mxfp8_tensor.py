# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""MXFP8: values against the rule, copies, views, parts."""

import pytest
import torch

from helpers.block_formats import assert_padded, mxfp8_copy, mxfp8_values
from helpers.generators import DTYPES, MATRIX_SHAPES, random_tensor, wide_tensor
from helpers.quantizers import FP8_FORMATS, USAGES, mxfp8_quantizer
from helpers.tolerances import assert_identical
from transformer_engine.common.recipe import Float8CurrentScaling, MXFP8BlockScaling
from transformer_engine.pytorch.constants import DType
from transformer_engine.pytorch.tensor import MXFP8Quantizer, MXFP8Tensor, MXFP8TensorStorage

FORMATS = pytest.mark.parametrize("fp8_dtype", FP8_FORMATS, ids=["E4M3", "E5M2"])
TILES = pytest.mark.parametrize("tiles", [False, True], ids=["blocks", "tiles"])

SMOKE_SHAPE = pytest.param((129, 129), marks=pytest.mark.smoke)


def make_tensor(shape=(256, 96), seed=0, dtype=torch.float32, **settings):
    return mxfp8_quantizer(**settings)(random_tensor(shape, seed=seed, dtype=dtype))


# --- values -----------------------------------------------------------------------------------


@FORMATS
@TILES
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*MATRIX_SHAPES, (2, 3, 50), SMOKE_SHAPE, (5,)])
def test_both_copies_follow_the_rule_bit_for_bit(fp8_dtype, tiles, dtype, shape):
    fmt, x = FP8_FORMATS[fp8_dtype], wide_tensor(shape, dtype=dtype)
    tensor = mxfp8_quantizer(fp8_dtype, tiles)(x)
    data, scales = mxfp8_copy(x, fmt, columnwise=False, tiles=tiles)
    assert tensor._rowwise_data.shape == tensor._columnwise_data.shape == x.shape
    assert torch.equal(tensor._rowwise_data.view(data.shape), data)
    assert_padded(tensor._rowwise_scale_inv, scales, (128, 4))
    expected = mxfp8_values(data, scales, fmt, columnwise=False)
    assert_identical(tensor.dequantize(dtype=torch.float32), expected.float().view(shape))

    data, scales = mxfp8_copy(x, fmt, columnwise=True, tiles=tiles)
    assert torch.equal(tensor._columnwise_data.view(data.shape), data)
    assert_padded(tensor._columnwise_scale_inv, scales, (4, 128))
    tensor.update_usage(rowwise_usage=False)
    expected = mxfp8_values(data, scales, fmt, columnwise=True)
    assert_identical(tensor.dequantize(dtype=torch.float32), expected.float().view(shape))


@FORMATS
def test_every_code_and_scale_dequantizes_to_its_value(fp8_dtype):
    codes = torch.arange(256, dtype=torch.uint8).view(8, 32).repeat(32, 1)
    scales = torch.zeros(256, 4, dtype=torch.uint8)
    scales[:, 0] = torch.arange(256) % 255  # 255 is NaN
    tensor = MXFP8Tensor(
        codes.shape,
        torch.float32,
        rowwise_data=codes,
        rowwise_scale_inv=scales,
        fp8_dtype=fp8_dtype,
    )
    expected = mxfp8_values(codes, scales[:, :1], FP8_FORMATS[fp8_dtype], columnwise=False)
    assert_identical(tensor.dequantize(), expected.float())


def test_tiles_have_the_same_values_in_both_copies():
    tensor = make_tensor((65, 40), tiles=True)
    values = tensor.dequantize()
    tensor.update_usage(rowwise_usage=False)
    assert_identical(tensor.dequantize(), values)


@pytest.mark.parametrize("usages", USAGES.values(), ids=USAGES)
@pytest.mark.parametrize("shape", [(4, 128, 256), (50, 70)])
def test_empty_tensors_have_the_shapes_of_quantized_ones(usages, shape):
    quantizer = mxfp8_quantizer(**usages)
    empty, full = quantizer.make_empty(shape), quantizer(random_tensor(shape))
    for name, buffer in full._buffers().items():
        made = getattr(empty, name)
        assert (made is None) == (buffer is None)
        if buffer is not None:
            assert (made.shape, made.dtype) == (buffer.shape, buffer.dtype)
    assert quantizer.get_columnwise_shape(shape) == shape
    if usages["rowwise"]:
        assert quantizer.get_scale_shape(shape, False) == tuple(full._rowwise_scale_inv.shape)
    if usages["columnwise"]:
        assert quantizer.get_scale_shape(shape, True) == tuple(full._columnwise_scale_inv.shape)


# --- quantizer --------------------------------------------------------------------------------


def test_the_quantizer_says_what_it_makes():
    quantizer = MXFP8Quantizer(DType.kFloat8E5M2, with_2d_quantization=True)
    assert (quantizer.dtype, quantizer.with_2d_quantization) == (DType.kFloat8E5M2, True)
    assert quantizer.is_requantization_safe()
    assert quantizer.is_quantizable(torch.zeros(3, 5))
    assert quantizer.fits_recipe(MXFP8BlockScaling())
    assert not quantizer.fits_recipe(Float8CurrentScaling())
    assert type(quantizer).from_core(quantizer._core) == quantizer
    with pytest.raises(ValueError, match=r"MXFP8Quantizer: fp8_dtype is kFloat32"):
        MXFP8Quantizer(DType.kFloat32)
    with pytest.raises(TypeError, match=r"with_2d_quantization is 'yes'"):
        MXFP8Quantizer(DType.kFloat8E4M3, with_2d_quantization="yes")


def test_a_tensor_around_existing_bytes():
    whole = make_tensor((64, 96), columnwise=False)
    twin = mxfp8_quantizer().create_tensor_from_data(
        whole._rowwise_data, whole._rowwise_scale_inv, torch.bfloat16
    )
    assert twin.dtype is torch.bfloat16
    assert_identical(twin.dequantize(dtype=torch.float32), whole.dequantize())


# --- usages -----------------------------------------------------------------------------------


def test_usages_can_only_be_dropped():
    tensor = make_tensor()
    tensor.update_usage()
    tensor.update_usage(rowwise_usage=True, columnwise_usage=True)
    assert tensor.get_usages() == {"rowwise": True, "columnwise": True}
    tensor.update_usage(columnwise_usage=False)
    assert tensor._columnwise_data is None
    assert tensor._columnwise_scale_inv is None
    with pytest.raises(RuntimeError, match="there is no columnwise copy"):
        tensor.update_usage(rowwise_usage=False, columnwise_usage=True)
    assert tensor.get_usages() == {"rowwise": True, "columnwise": False}
    tensor = make_tensor(rowwise=False)
    with pytest.raises(RuntimeError, match="there is no rowwise copy"):
        tensor.update_usage(rowwise_usage=True)


# --- views and parts --------------------------------------------------------------------------


def test_views_with_the_last_axis_unchanged_share_the_data():
    tensor = make_tensor((256, 96))
    for view in (tensor.view(2, 128, 96), tensor.reshape(2, -1, 96), torch.flatten(tensor, 0, 0)):
        assert type(view) is MXFP8Tensor
        assert view._rowwise_data.data_ptr() == tensor._rowwise_data.data_ptr()
        assert_identical(view.dequantize(), tensor.dequantize().view(view.shape))
    values = random_tensor((2, 128, 96), seed=3)
    tensor.view(2, 128, 96).copy_(values)
    assert_identical(tensor.dequantize(), mxfp8_quantizer()(values.view(256, 96)).dequantize())


def test_other_views_are_dequantized_copies_and_say_so():
    tensor = make_tensor((256, 96))
    with pytest.warns(UserWarning, match=r"MXFP8Tensor\.view: shape is \(128, 192\)"):
        view = tensor.view(128, 192)
    assert type(view) is torch.Tensor
    assert_identical(view, tensor.dequantize().view(128, 192))
    with pytest.raises(RuntimeError, match=r"MXFP8Tensor\.reshape: shape is \(128, 192\)"):
        tensor.reshape(128, 192)
    with pytest.raises(RuntimeError, match="is invalid for input of size"):
        tensor.view(7, -1)
    with pytest.raises(ValueError, match=r"MXFP8Tensor\.view: shape is"):
        torch.ops.aten.view.default(tensor, (128, 192))
    with pytest.warns(
        UserWarning, match=r"MXFP8Tensor: aten.view.default gives a dequantized copy"
    ):
        flat = torch.ops.aten.view.default(tensor, (-1,))
    assert type(flat) is torch.Tensor
    assert_identical(flat, tensor.dequantize().view(-1))
    weight = torch.nn.Parameter(tensor)
    with pytest.raises(ValueError, match=r"MXFP8Tensor\.view: shape is"):
        weight.flatten()  # whose gradient would be lost


def test_views_pass_gradients():
    weight = torch.nn.Parameter(make_tensor((64, 96)))
    scale = random_tensor((2, 32, 96), seed=5)
    (weight.view(2, 32, 96).dequantize() * scale).sum().backward()
    assert_identical(weight.grad, scale.view(64, 96))


@pytest.mark.parametrize("shape", [(256, 96), (8, 64, 32), (128, 50)])
def test_parts_of_whole_groups_of_rows_share_the_data(shape):
    tensor = make_tensor(shape)
    plain = tensor.dequantize()
    size = shape[0] // 2 if shape[0] > 128 or len(shape) == 3 else shape[0]
    parts = tensor.split(size)
    assert [type(part) for part in parts] == [MXFP8Tensor] * (shape[0] // size)
    for part, expected in zip(parts, plain.split(size), strict=True):
        assert_identical(part.dequantize(), expected)
    values = random_tensor(tuple(parts[0].shape), seed=1)
    parts[0].copy_(values)
    plain[:size] = mxfp8_quantizer()(values).dequantize()
    assert_identical(tensor.dequantize(), plain)
    expected = mxfp8_quantizer(rowwise=False)(values).dequantize()
    tensor.update_usage(rowwise_usage=False)
    assert_identical(tensor.dequantize()[:size], expected)


def test_parts_whose_scales_have_padding_write_to_the_tensor():
    tensor = make_tensor((96, 64))
    parts, plain = tensor.split(32), tensor.dequantize()
    for part, expected in zip(parts, plain.split(32), strict=True):
        assert_identical(part.dequantize(), expected)
    parts[0].zero_()
    plain[:32] = 0
    assert_identical(tensor.dequantize(), plain)


def test_zeros_of_whole_blocks_stay_quantized():
    tensor = make_tensor((64, 32))
    zeros = tensor.new_zeros(32, 64)
    assert type(zeros) is MXFP8Tensor
    assert_identical(zeros.dequantize(), torch.zeros(32, 64))
    zeros.copy_(random_tensor((32, 64)))
    assert_identical(zeros.dequantize(), make_tensor((32, 64)).dequantize())
    for shape in ((33, 64), (96, 32)):  # no whole blocks, more rows than there are
        assert type(tensor.new_zeros(shape)) is torch.Tensor
    # What ranks with 32, 32 and 16 rows of 80 would hold: torch gathers no padded scales.
    assert type(make_tensor((80, 32)).new_zeros(32, 32)) is torch.Tensor


def test_scales_in_the_order_of_a_gpu_are_refused_by_name():
    storage = make_tensor((32, 32))
    swizzled = MXFP8TensorStorage(**{**storage.get_metadata(), "with_gemm_swizzled_scales": True})
    with pytest.raises(NotImplementedError, match="with_gemm_swizzled_scales is True"):
        swizzled.dequantize()
    with pytest.raises(ValueError, match="src has with_gemm_swizzled_scales True"):
        storage.copy_from_storage(swizzled)
    with pytest.raises(NotImplementedError, match="with_gemm_swizzled_scales is True"):
        swizzled.quantize_(random_tensor((32, 32)))


def test_storages_know_their_shape_from_their_data():
    whole = make_tensor((6, 32, 64))
    fields = {"rowwise_data": whole._rowwise_data, "rowwise_scale_inv": whole._rowwise_scale_inv}
    storage = MXFP8TensorStorage(fp8_dtype=DType.kFloat8E4M3, **fields)
    assert storage.shape == (6, 32, 64)
    assert_identical(storage.dequantize(), whole.dequantize())
    with pytest.raises(ValueError, match="shape are all None"):
        MXFP8TensorStorage(fp8_dtype=DType.kFloat8E4M3)
    with pytest.raises(TypeError, match="fp8_dtype is missing"):
        MXFP8TensorStorage(**fields)
    with pytest.raises(TypeError, match="unknown keyword 'scale'"):
        MXFP8TensorStorage(fp8_dtype=DType.kFloat8E4M3, scale=1, **fields)


def test_the_largest_code_of_a_block_is_never_infinite():
    """A scale rounded down would let the block's maximum exceed the format's."""
    x = torch.full((1, 32), 448.0 * (1 + 2**-20))
    tensor = mxfp8_quantizer()(x)
    assert tensor._rowwise_scale_inv[0, 0] == 128
    assert_identical(tensor.dequantize(), torch.full((1, 32), 448.0))
