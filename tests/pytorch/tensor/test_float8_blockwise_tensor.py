# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""FP8 blocks of 128: values against the rule, copies, views."""

import pytest
import torch

from helpers.block_formats import assert_padded, fp8_block_copy, fp8_block_values
from helpers.generators import DTYPES, MATRIX_SHAPES, random_tensor, wide_tensor
from helpers.quantizers import FP8_FORMATS, USAGES, block_quantizer
from helpers.tolerances import assert_identical
from transformer_engine.common.recipe import Float8BlockScaling, MXFP8BlockScaling
from transformer_engine.pytorch.constants import DType
from transformer_engine.pytorch.tensor import (
    Float8BlockQuantizer,
    Float8BlockwiseQTensor,
    Float8BlockwiseQTensorStorage,
)

DIMS = pytest.mark.parametrize("dim", [1, 2], ids=["blocks", "tiles"])

SMOKE_SHAPE = pytest.param((129, 257), marks=pytest.mark.smoke)


def make_tensor(shape=(256, 160), seed=0, dtype=torch.float32, **settings):
    return block_quantizer(**settings)(random_tensor(shape, seed=seed, dtype=dtype))


# --- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fp8_dtype", FP8_FORMATS, ids=["E4M3", "E5M2"])
@DIMS
@pytest.mark.parametrize("power_of_two", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*MATRIX_SHAPES, (2, 3, 50), SMOKE_SHAPE, (5,)])
def test_both_copies_follow_the_rule_bit_for_bit(fp8_dtype, dim, power_of_two, dtype, shape):
    fmt, x, tiles = FP8_FORMATS[fp8_dtype], wide_tensor(shape, dtype=dtype), dim == 2
    tensor = block_quantizer(fp8_dtype, dim, force_pow_2_scales=power_of_two)(x)
    options = {"tiles": tiles, "power_of_two": power_of_two}
    for columnwise in (False, True):
        data, scale_inv = fp8_block_copy(x, fmt, columnwise=columnwise, **options)
        stored = tensor._columnwise_data if columnwise else tensor._rowwise_data.view(data.shape)
        scales = tensor._columnwise_scale_inv if columnwise else tensor._rowwise_scale_inv
        assert torch.equal(stored, data)
        assert_padded(scales, scale_inv, (1, 4))
        expected = fp8_block_values(data, scale_inv, fmt, columnwise=columnwise, tiles=tiles)
        assert_identical(tensor.dequantize(dtype=torch.float32), expected.float().view(shape))
        tensor.update_usage(rowwise_usage=False)


@DIMS
def test_the_epsilon_is_a_lower_bound_of_a_blocks_amax(dim):
    x = random_tensor((8, 160)) * 2.0**-12
    tensor = block_quantizer(dim=dim, amax_epsilon=2.0**-8)(x)
    data, scale_inv = fp8_block_copy(
        *(x, FP8_FORMATS[DType.kFloat8E4M3]),
        **{"columnwise": False, "tiles": dim == 2, "power_of_two": True, "epsilon": 2.0**-8},
    )
    assert torch.equal(tensor._rowwise_data, data)
    assert_padded(tensor._rowwise_scale_inv, scale_inv, (1, 4))


def test_tiles_have_the_same_values_in_both_copies():
    tensor = make_tensor((130, 300))
    values = tensor.dequantize()
    tensor.update_usage(rowwise_usage=False)
    assert_identical(tensor.dequantize(), values)


@DIMS
@pytest.mark.parametrize("usages", USAGES.values(), ids=USAGES)
@pytest.mark.parametrize("shape", [(4, 128, 256), (50, 70)])
def test_empty_tensors_have_the_shapes_of_quantized_ones(dim, usages, shape):
    quantizer = block_quantizer(dim=dim, **usages)
    empty, full = quantizer.make_empty(shape), quantizer(random_tensor(shape))
    for name, buffer in full._buffers().items():
        made = getattr(empty, name)
        assert (made is None) == (buffer is None)
        if buffer is not None:
            assert (made.shape, made.dtype) == (buffer.shape, buffer.dtype)
    if usages["rowwise"]:
        assert quantizer.get_scale_shape(shape, False) == tuple(full._rowwise_scale_inv.shape)
    if usages["columnwise"]:
        assert quantizer.get_scale_shape(shape, True) == tuple(full._columnwise_scale_inv.shape)
        assert quantizer.get_columnwise_shape(shape) == tuple(full._columnwise_data.shape)


# --- quantizer --------------------------------------------------------------------------------


def test_the_quantizer_says_what_it_makes():
    quantizer = Float8BlockQuantizer(
        DType.kFloat8E5M2,
        rowwise=True,
        columnwise=False,
        amax_epsilon=0.25,
        force_pow_2_scales=False,
        block_scaling_dim=1,
    )
    assert (quantizer.dtype, quantizer.block_len) == (DType.kFloat8E5M2, 128)
    assert (quantizer.amax_epsilon, quantizer.block_scaling_dim) == (0.25, 1)
    assert quantizer.is_requantization_safe()
    assert quantizer.is_quantizable(torch.zeros(3, 5))
    assert quantizer.fits_recipe(Float8BlockScaling())
    assert not quantizer.fits_recipe(MXFP8BlockScaling())
    quantizer.force_pow_2_scales = True
    assert quantizer(random_tensor((4, 4)))._force_pow_2_scales
    for keyword, value in (
        ("block_scaling_dim", 3),
        ("amax_epsilon", -1.0),
        ("fp8_dtype", DType.kByte),
    ):
        arguments = {"fp8_dtype": DType.kFloat8E4M3, "rowwise": True, "columnwise": True}
        with pytest.raises(ValueError, match=rf"Float8BlockQuantizer: {keyword} is"):
            Float8BlockQuantizer(**{**arguments, keyword: value})


def test_a_tensor_of_other_blocks_is_refused_and_left_alone():
    tensor, other = make_tensor(dim=1), block_quantizer(dim=2)
    before = tensor.clone()
    with pytest.raises(ValueError, match="_rowwise_scale_inv of shape"):
        other.update_quantized(random_tensor((256, 160)), tensor)
    assert torch.equal(tensor._rowwise_data, before._rowwise_data)
    assert not tensor._is_2D_scaled


def test_copying_between_block_sizes_quantizes_the_values():
    src, dst = make_tensor(dim=1), make_tensor(dim=2, seed=1)
    dst.copy_(src)
    expected = block_quantizer()(src.dequantize())
    assert torch.equal(dst._rowwise_data, expected._rowwise_data)
    assert torch.equal(dst._columnwise_scale_inv, expected._columnwise_scale_inv)


# --- usages -----------------------------------------------------------------------------------


def test_the_columnwise_copy_of_tiles_is_made_on_demand():
    tensor, both = make_tensor((130, 300), columnwise=False), make_tensor((130, 300))
    tensor.update_usage(rowwise_usage=True, columnwise_usage=True)
    assert torch.equal(tensor._columnwise_data, both._columnwise_data)
    assert torch.equal(tensor._columnwise_scale_inv, both._columnwise_scale_inv)
    tensor._rowwise_data.fill_(3)
    data = tensor._columnwise_data
    tensor._create_columnwise()
    assert tensor._columnwise_data is data
    assert (data == 3).all()


def test_usages_that_cannot_be_had_are_refused():
    blocks, tiles = make_tensor(dim=1, columnwise=False), make_tensor(columnwise=False)
    for tensor, usages, message in (
        (blocks, (True, True), "there is no columnwise copy"),
        (blocks, (None, True), "there is no columnwise copy"),
        (tiles, (False, True), "there is no columnwise copy"),
        (tiles, (False, None), "one copy must remain"),
        (make_tensor(rowwise=False), (True, None), "there is no rowwise copy"),
        (make_tensor(), (False, False), "one copy must remain"),
    ):
        before = tensor.get_usages()
        with pytest.raises(AssertionError, match=message):
            tensor.update_usage(*usages)
        assert tensor.get_usages() == before
    both = make_tensor(dim=1)
    both.update_usage(columnwise_usage=False)
    assert both.get_usages() == {"rowwise": True, "columnwise": False}


# --- views ------------------------------------------------------------------------------------


def test_views_that_leave_the_blocks_alone_share_the_data():
    for tensor, shape in (
        (make_tensor((256, 160), dim=1), (2, 128, 160)),
        (make_tensor((4, 64, 160), dim=2), (2, 2, 64, 160)),
    ):
        view = tensor.view(shape)
        assert type(view) is Float8BlockwiseQTensor
        assert view._rowwise_data.data_ptr() == tensor._rowwise_data.data_ptr()
        assert_identical(view.dequantize(), tensor.dequantize().view(shape))
        values = random_tensor(shape, seed=3)
        view.copy_(values)
        assert_identical(tensor.dequantize().view(shape), tensor._quantizer(values).dequantize())


@pytest.mark.parametrize("method", ["view", "reshape"])
def test_other_views_are_dequantized_copies_and_say_so(method):
    for tensor, shape, axes in (
        (make_tensor((256, 160), dim=1), (128, 320), "last axis"),
        (make_tensor((256, 160), dim=2), (2, 128, 160), "last two axes"),
    ):
        with pytest.warns(UserWarning, match=f"{method}: shape is .* only with the {axes}"):
            view = getattr(tensor, method)(shape)
        assert type(view) is torch.Tensor
        assert_identical(view, tensor.dequantize().view(shape))
        with pytest.raises(NotImplementedError, match=r"Float8BlockwiseQTensor\.view: shape is"):
            torch.ops.aten.view.default(tensor, shape)


def test_storages_know_their_shape_from_their_data():
    whole = make_tensor((6, 32, 64))
    fields = {"fp8_dtype": DType.kFloat8E4M3, "is_2D_scaled": True}
    columnwise = Float8BlockwiseQTensorStorage(
        columnwise_data=whole._columnwise_data,
        columnwise_scale_inv=whole._columnwise_scale_inv,
        **fields,
    )
    assert columnwise.shape == (192, 64)
    assert_identical(columnwise.dequantize().view(6, 32, 64), whole.dequantize())
    with pytest.raises(ValueError, match="shape are all None"):
        Float8BlockwiseQTensorStorage(**fields)
    with pytest.raises(TypeError, match="is_2D_scaled is missing"):
        Float8BlockwiseQTensorStorage(fp8_dtype=DType.kFloat8E4M3, shape=(2, 2))
