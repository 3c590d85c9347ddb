# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The format that changes nothing."""

import copy
import io

import pytest
import torch

from helpers.generators import random_tensor
from helpers.tolerances import assert_identical
from transformer_engine.pytorch.tensor import (
    IdentityQuantizer,
    IdentityTensor,
    IdentityTensorStorage,
)

SHAPE = (4, 6)


def make_tensor(seed=0, **settings):
    return IdentityQuantizer(**settings)(random_tensor(SHAPE, seed=seed))


def test_values_are_kept_and_are_a_copy():
    values = random_tensor(SHAPE)
    tensor = IdentityQuantizer()(values)
    expected = values.clone()
    values.zero_()
    assert isinstance(tensor, IdentityTensor)
    assert_identical(tensor.dequantize(), expected)
    assert tensor.get_usages() == {"rowwise": True, "columnwise": True}


def test_another_dtype_rounds_and_keeps_the_nominal_one():
    values = random_tensor(SHAPE)
    tensor = IdentityQuantizer(dtype=torch.bfloat16)(values)
    assert tensor.dtype is torch.float32
    assert tensor._hp_data.dtype is torch.bfloat16
    assert_identical(tensor.dequantize(), values.bfloat16().float())


def test_gradients_pass_through():
    values = random_tensor(SHAPE).requires_grad_()
    IdentityQuantizer()(values).dequantize().sum().backward()
    assert_identical(values.grad, torch.ones(SHAPE))


def test_in_place_operations_and_views():
    tensor = make_tensor()
    expected = tensor.dequantize() * 2
    tensor.mul_(2)
    assert_identical(tensor.dequantize(), expected)
    for view in (tensor.view(-1), tensor[1:3], tensor[2], tensor.reshape(2, 12)):
        assert isinstance(view, IdentityTensor)
    tensor[1:3].zero_()
    assert_identical(tensor.dequantize()[1:3], torch.zeros(2, 6))
    tensor.copy_(make_tensor(seed=1))
    assert_identical(tensor.dequantize(), random_tensor(SHAPE, seed=1))


def test_data_can_be_set():
    tensor = make_tensor()
    tensor.data = torch.ones(3)
    assert_identical(tensor.dequantize(), torch.ones(3))
    other = make_tensor(seed=2)
    tensor.data = other
    assert tensor._hp_data is other._hp_data


def test_copies_and_files():
    tensor = make_tensor()
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    for twin in (
        copy.deepcopy(tensor),
        tensor.clone(),
        torch.load(file, weights_only=True),
    ):
        assert type(twin) is IdentityTensor
        assert_identical(twin.dequantize(), tensor.dequantize())
        assert twin._hp_data.data_ptr() != tensor._hp_data.data_ptr()
        assert twin._quantizer == tensor._quantizer


def test_storages_and_empty_tensors():
    quantizer = IdentityQuantizer(rowwise=False)
    quantizer.internal = True
    storage = quantizer.make_empty((2, 3), dtype=torch.bfloat16)
    assert type(storage) is IdentityTensorStorage
    assert (storage.size(), storage._dtype) == ((2, 3), torch.bfloat16)
    storage.update_usage(rowwise_usage=False)
    assert storage._hp_data is not None
    storage.update_usage(rowwise_usage=False, columnwise_usage=False)
    assert storage._hp_data is None
    with pytest.raises(RuntimeError, match="values were dropped"):
        storage.update_usage(rowwise_usage=True)


def test_updates_check_shape_class_and_flag():
    quantizer, tensor = IdentityQuantizer(), make_tensor()
    with pytest.raises(ValueError, match=r"src has shape \(2,\)"):
        quantizer.update_quantized(torch.zeros(2), tensor)
    with pytest.raises(TypeError, match="dst is a Tensor"):
        quantizer.update_quantized(torch.zeros(SHAPE), torch.zeros(SHAPE))
    tensor.quantize_(torch.zeros(SHAPE), noop_flag=torch.ones(1))
    assert_identical(tensor.dequantize(), random_tensor(SHAPE))


def test_quantizers_compare_by_value():
    assert IdentityQuantizer() == IdentityQuantizer()
    assert hash(IdentityQuantizer()) == hash(IdentityQuantizer().copy())
    assert IdentityQuantizer(dtype=torch.float16) != IdentityQuantizer()
    assert IdentityQuantizer().is_requantization_safe()


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t[1],
        lambda t: t.t(),
        lambda t: t.permute(1, 0)[2],
        lambda t: t.unbind()[3],
        lambda t: t.split(2)[1],
        lambda t: t.unsqueeze(0),
        lambda t: t.diagonal(),
    ],
)
def test_writes_to_views_reach_the_whole(view):
    tensor = IdentityQuantizer()(random_tensor((5, 5)))
    plain = tensor.dequantize().clone()
    part = view(tensor)
    assert isinstance(part, IdentityTensor)
    part.mul_(3)
    view(plain).mul_(3)
    assert_identical(tensor.dequantize(), plain)
