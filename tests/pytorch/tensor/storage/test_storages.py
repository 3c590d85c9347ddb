# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Storages: shapes, saving for the backward pass, raw copies."""

import math

import pytest
import torch

from helpers.generators import random_tensor
from helpers.quantizers import ALL_QUANTIZERS, USAGES, delayed_quantizer
from helpers.tolerances import assert_identical
from transformer_engine.pytorch.constants import DType
from transformer_engine.pytorch.tensor import (
    Float8Tensor,
    Float8TensorStorage,
    IdentityTensorStorage,
    QuantizedTensorStorage,
    prepare_for_saving,
    restore_from_func_ctx,
    restore_from_saved,
)

ALL = pytest.mark.parametrize("make", ALL_QUANTIZERS.values(), ids=ALL_QUANTIZERS)
SHAPE = (4, 6, 10)


def make_storage(make=delayed_quantizer, shape=SHAPE, seed=0, **usages):
    quantizer = make(**usages)
    quantizer.internal = True
    return quantizer(random_tensor(shape, seed=seed))


@pytest.mark.smoke
@ALL
@pytest.mark.parametrize("usages", USAGES.values(), ids=USAGES)
@pytest.mark.parametrize("shape", [(4, 128, 256), (8, 16)])
def test_the_shape_is_the_logical_one_whatever_is_held(make, usages, shape):
    storage = make_storage(make, shape=shape, **usages)
    assert not isinstance(storage, torch.Tensor)
    assert isinstance(storage, QuantizedTensorStorage)
    assert tuple(storage.shape) == tuple(storage.size()) == shape
    assert [storage.size(dim) for dim in range(-len(shape), 0)] == list(shape)
    assert (storage.dim(), storage.numel()) == (len(shape), math.prod(shape))
    assert storage.device == torch.get_default_device()


@ALL
@pytest.mark.parametrize("usages", USAGES.values(), ids=USAGES)
def test_constructors_refuse_a_shape_that_is_not_that_of_the_buffers(make, usages):
    for tensor in (make_storage(make, **usages), make(**usages)(random_tensor(SHAPE))):
        metadata = tensor.get_metadata()
        again = type(tensor)(**metadata)
        for name, buffer in tensor._buffers().items():
            assert again._buffers()[name] is buffer
        for shape in ((4, 6, 40), (24, 40), (), (0, 10)):
            with pytest.raises(ValueError, match=r" has shape \(.*required|asks for \("):
                type(tensor)(**{**metadata, "shape": shape})


@ALL
def test_usages_are_flags_or_none(make):
    for tensor in (make_storage(make), make()(random_tensor(SHAPE))):
        held = tensor.get_usages()
        for name in ("rowwise_usage", "columnwise_usage"):
            for value in ("no", 2, 0.0, [], "True"):
                message = rf"{type(tensor).__name__}\.update_usage: {name} is .*True or False"
                with pytest.raises(TypeError, match=message):
                    tensor.update_usage(**{name: value})
        for name in held:
            with pytest.raises(TypeError, match=rf"\.set_usage: {name} is 'no'.*True or False"):
                tensor._quantizer.set_usage(**{name: "no"})
        assert tensor.get_usages() == held == tensor._quantizer.get_usages()


def test_the_shape_of_a_bare_transpose_is_two_dimensional():
    storage = Float8TensorStorage(
        data=None,
        data_transpose=torch.zeros(10, 24, dtype=torch.uint8),
        fp8_scale_inv=torch.ones(1),
        fp8_dtype=DType.kFloat8E4M3,
    )
    assert storage.size() == (24, 10)
    with pytest.raises(ValueError, match="are all None"):
        Float8TensorStorage(data=None, fp8_scale_inv=torch.ones(1), fp8_dtype=DType.kFloat8E4M3)


@ALL
def test_storages_dequantize_like_tensors(make):
    assert_identical(make_storage(make).dequantize(), make()(random_tensor(SHAPE)).dequantize())
    assert make_storage(make).dequantize(dtype=torch.bfloat16).dtype is torch.bfloat16


@ALL
def test_saving_moves_buffers_out_and_restoring_moves_them_back(make):
    storage, plain = make_storage(make), random_tensor((3,))
    tensor = make()(random_tensor(SHAPE))
    expected = storage.dequantize()
    saved, objects = prepare_for_saving(plain, storage, None, tensor)
    assert all(value is None or isinstance(value, torch.Tensor) for value in saved)
    assert storage.get_usages() == {"rowwise": False, "columnwise": False}
    assert all(buffer is None for buffer in storage.get_data_tensors())
    with pytest.raises(RuntimeError, match="moved out"):
        storage.dequantize()
    with pytest.raises(RuntimeError, match="holds no buffers"):
        _ = storage.device
    extra = torch.zeros(1)
    restored, rest = restore_from_saved(objects, [*saved, extra], return_saved_tensors=True)
    assert restored[0] is plain
    assert restored[1] is storage
    assert restored[2] is None
    assert restored[3] is tensor
    assert rest[0] is extra
    assert_identical(storage.dequantize(), expected)


def test_a_stale_transpose_is_not_saved():
    storage = make_storage()
    storage._reset_caches()
    saved, objects = prepare_for_saving(storage)
    (restored,) = restore_from_saved(objects, saved)
    assert restored._transpose is None


class SaveQuantized(torch.autograd.Function):
    """x * w with both saved quantized."""

    @staticmethod
    def forward(ctx, x, w):
        quantizer = delayed_quantizer()
        quantizer.internal = True
        saved, ctx.tensor_objects = prepare_for_saving(quantizer(x), quantizer(w))
        ctx.save_for_backward(*saved)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = restore_from_func_ctx(ctx)
        assert ctx.tensor_objects is None
        with pytest.raises(RuntimeError, match="has no tensor_objects"):
            restore_from_func_ctx(ctx)
        return grad * w.dequantize(), grad * x.dequantize()


def test_autograd_contexts_save_and_restore():
    x, w = (random_tensor((3, 4), seed=seed).requires_grad_() for seed in (1, 2))
    SaveQuantized.apply(x, w).sum().backward()
    assert_identical(x.grad, delayed_quantizer()(w.detach()).dequantize())
    assert_identical(w.grad, delayed_quantizer()(x.detach()).dequantize())


@ALL
def test_raw_copies_need_the_same_class_shape_and_copies(make):
    storage, other = make_storage(make), make_storage(make, seed=1)
    storage.copy_from_storage(other)
    assert_identical(storage.dequantize(), other.dequantize())
    tensor = make()(random_tensor(SHAPE, seed=2))
    tensor.copy_from_storage(other)
    assert_identical(tensor.dequantize(), other.dequantize())
    before = storage.dequantize()
    with pytest.raises(ValueError, match=r"src has shape \(2, 3\)"):
        storage.copy_from_storage(make_storage(make, shape=(2, 3)))
    stranger = IdentityTensorStorage(hp_data=torch.zeros(SHAPE))
    if make is ALL_QUANTIZERS["identity"]:
        stranger = make_storage(delayed_quantizer)
    with pytest.raises(TypeError, match="src is a"):
        storage.copy_from_storage(stranger)
    assert_identical(storage.dequantize(), before)


def test_raw_copies_need_the_same_usages():
    with pytest.raises(ValueError, match="usages"):
        make_storage().copy_from_storage(make_storage(columnwise=False))


@ALL
def test_clearing_frees_the_memory(make):
    storage = make_storage(make)
    buffers = [buffer for buffer in storage.get_data_tensors() if buffer is not None]
    storage.clear()
    assert all(buffer.numel() == 0 for buffer in buffers)


@ALL
def test_storages_are_overwritten_in_place(make):
    storage = make_storage(make)
    values = random_tensor(SHAPE, seed=5)
    assert storage.quantize_(values) is storage
    assert_identical(storage.dequantize(), make()(values).dequantize())
    storage._quantizer = None
    with pytest.raises(RuntimeError, match="has no quantizer"):
        storage.quantize_(values)


@ALL
def test_metadata_rebuilds_the_storage_and_the_tensor(make):
    storage = make_storage(make)
    twin = type(storage)(**storage.get_metadata())
    assert_identical(twin.dequantize(), storage.dequantize())
    tensor = type(storage).tensor_class.make_like(storage, dtype=torch.bfloat16)
    assert tensor.dtype is torch.bfloat16
    assert isinstance(tensor, type(storage))


def test_printing_a_storage_names_shape_and_format():
    text = repr(make_storage())
    assert "shape=(4, 6, 10)" in text
    assert "kFloat8E4M3" in text


def test_a_float8_tensor_is_a_float8_storage():
    assert issubclass(Float8Tensor, Float8TensorStorage)
