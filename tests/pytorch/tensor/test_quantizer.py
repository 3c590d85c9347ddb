# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What every quantizer says of the buffers it makes."""

import pytest
import torch

from helpers.generators import random_tensor
from helpers.quantizers import ALL_QUANTIZERS, USAGES
from transformer_engine.pytorch.tensor import Quantizer

ALL = pytest.mark.parametrize("make", ALL_QUANTIZERS.values(), ids=ALL_QUANTIZERS)
BOTH_WAYS = pytest.mark.parametrize("usages", USAGES.values(), ids=USAGES)
SHAPE = (3, 40, 48)


def held(tensor):
    return {name: buffer for name, buffer in tensor._buffers().items() if buffer is not None}


@ALL
@BOTH_WAYS
@pytest.mark.parametrize("shape", [SHAPE, (5, 7), (0, 16), (9,)])
def test_specs_and_allocations_are_those_of_quantized_tensors(make, usages, shape):
    quantizer = make(**usages)
    made = held(quantizer(random_tensor(shape, dtype=torch.bfloat16)))
    expected = {name: (buffer.shape, buffer.dtype) for name, buffer in made.items()}
    assert quantizer.inner_tensor_specs(shape, dtype=torch.bfloat16) == expected
    buffers = quantizer.alloc_tensors(
        shape, dtype=torch.bfloat16, device=torch.get_default_device()
    )
    assert {name: (buffer.shape, buffer.dtype) for name, buffer in buffers.items()} == expected
    assert all(buffer.device == torch.get_default_device() for buffer in buffers.values())
    assert quantizer.get_usages() == usages
    assert not quantizer.internal


@ALL
@BOTH_WAYS
@pytest.mark.parametrize("is_internal", [False, True])
def test_tensors_are_put_together_from_buffers_and_metadata(make, usages, is_internal):
    quantizer = make(**usages)
    quantizer.internal = is_internal
    tensor = quantizer(random_tensor(SHAPE, dtype=torch.bfloat16))
    metadata = quantizer.create_metadata(held(tensor), SHAPE, dtype=torch.bfloat16)
    twin = type(tensor)(**metadata)
    assert {name: id(buffer) for name, buffer in held(twin).items()} == {
        name: id(buffer) for name, buffer in held(tensor).items()
    }
    assert (twin.shape, twin._dtype) == (tensor.shape, torch.bfloat16)
    assert twin.get_usages() == usages or "IdentityQuantizer" in str(quantizer)
    for own, other in zip(twin._native_operand(), tensor._native_operand(), strict=True):
        assert (own is None) == (other is None)
        assert own is None or own[3:] == other[3:]
    settings = quantizer.storage_metadata(SHAPE, dtype=torch.bfloat16)
    assert settings["quantizer"] is metadata["quantizer"] is quantizer
    assert (tuple(settings["shape"]), settings["dtype"]) == (SHAPE, torch.bfloat16)
    assert not any(isinstance(value, torch.Tensor) for value in settings.values())
    assert all(metadata[name] == value for name, value in settings.items() if value is not None)


@ALL
def test_buffers_that_do_not_fit_are_refused(make):
    quantizer = make()
    buffers = quantizer.alloc_tensors(SHAPE)
    name = next(iter(buffers))
    who = f"{type(quantizer).__name__}.create_metadata"
    for bad, match in (
        ({}, "tensors are none; "),
        ({**buffers, "_other": buffers[name]}, "tensors are .*, _other; "),
        ({**buffers, name: buffers[name][:1]}, f"{name} has shape .* are required"),
        ({**buffers, name: buffers[name].double()}, f"{name} has .*dtype torch.float64"),
    ):
        with pytest.raises(ValueError, match=f"{who}: {match}"):
            quantizer.create_metadata(bad, SHAPE)
    with pytest.raises(TypeError, match=f"{who}: {name} is 3; it must be a torch.Tensor"):
        quantizer.create_metadata({**buffers, name: 3}, SHAPE)


def test_a_quantizer_that_cannot_make_empty_tensors_says_so():
    class Mine(Quantizer):
        def __init__(self):
            super().__init__(rowwise=True, columnwise=False)

        def quantize_impl(self, tensor):
            return tensor

        def update_quantized(self, src, dst, *, noop_flag=None):
            return dst

        def copy(self):
            return Mine()

    with pytest.raises(NotImplementedError, match=r"Mine\.make_empty is not implemented"):
        Mine().inner_tensor_specs(SHAPE)
