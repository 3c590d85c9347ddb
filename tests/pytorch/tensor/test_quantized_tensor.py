# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The base classes, as a user's own format meets them."""

from typing import ClassVar

import pytest
import torch

from helpers.generators import random_tensor
from helpers.quantizers import delayed_quantizer
from helpers.tolerances import assert_identical
from transformer_engine.pytorch.tensor import QuantizedTensor, QuantizedTensorStorage, Quantizer
from transformer_engine.pytorch.tensor.quantized_tensor import register_pass_through_op


class HalfStorage(QuantizedTensorStorage):
    """Keeps values as float16."""

    _buffer_keywords: ClassVar = {"_half": "half"}

    def get_metadata(self):
        return {
            "half": self._half,
            "quantizer": self._quantizer,
            "shape": self._shape,
            "dtype": self._dtype,
        }

    def get_usages(self):
        return {"rowwise": True, "columnwise": False}

    def _dequantize_impl(self, dtype):
        return self._half.to(dtype)


class HalfTensor(QuantizedTensor, HalfStorage):
    def __new__(cls, half, quantizer, shape, dtype, requires_grad=False):
        self = QuantizedTensor._make_wrapper(cls, shape, dtype, half.device, requires_grad)
        self._half, self._quantizer = half, quantizer
        return self


class HalfQuantizer(Quantizer):
    def __init__(self):
        super().__init__(rowwise=True, columnwise=False)

    def quantize_impl(self, tensor):
        return HalfTensor(tensor.detach().half(), self, tensor.shape, tensor.dtype)

    def update_quantized(self, src, dst, *, noop_flag=None):
        dst._half.copy_(src)
        return dst

    def copy(self):
        return HalfQuantizer()


def make_tensor():
    return HalfQuantizer()(random_tensor((3, 4)))


def test_a_users_format_gets_the_common_operations():
    tensor = make_tensor()
    plain = random_tensor((3, 4)).half().float()
    assert_identical(tensor.dequantize(), plain)
    assert_identical(tensor + 1, plain + 1)
    tensor.mul_(2)
    assert_identical(tensor.dequantize(), plain * 2)
    assert type(tensor.detach()) is HalfTensor
    assert type(tensor.clone()) is HalfTensor
    assert tensor.to(torch.bfloat16).dtype is torch.bfloat16
    parameter = torch.nn.Parameter(make_tensor())
    (parameter * 3).sum().backward()
    assert_identical(parameter.grad, torch.full((3, 4), 3.0))
    torch.optim.SGD([parameter], lr=1.0).step()
    assert_identical(parameter.detach().dequantize(), (plain - 3).half().float())


def test_views_are_refused_unless_a_format_has_them():
    with pytest.raises(NotImplementedError, match=r"HalfTensor\.view: this format has no views"):
        make_tensor().view(-1)


def test_what_a_format_does_not_define_is_named():
    tensor, quantizer = make_tensor(), HalfQuantizer()
    for call, name in (
        (lambda: tensor.update_usage(), "HalfTensor.update_usage"),
        (lambda: tensor.get_data_tensors(), "HalfTensor.get_data_tensors"),
        (lambda: tensor.__reduce_ex__(4), "HalfTensor: pickling"),
        (lambda: quantizer.make_empty((2,)), "HalfQuantizer.make_empty"),
        (lambda: torch.empty_like(tensor), "HalfQuantizer.make_empty"),
        (lambda: quantizer.join_shards(None, 2, None), "HalfQuantizer.join_shards"),
    ):
        with pytest.raises(NotImplementedError, match=name):
            call()


def test_defaults_of_a_format_are_cautious():
    quantizer = HalfQuantizer()
    assert not quantizer.is_requantization_safe()
    assert not quantizer.supports_only_rowwise_all_gather()
    assert quantizer.is_quantizable(torch.zeros(3))
    assert quantizer.quantize_shard(torch.zeros(3), None) is None
    assert "HalfQuantizer(rowwise_usage=True" in repr(quantizer)
    quantizer.calibrate(torch.zeros(3))


@torch.library.custom_op("te_tests::is_quantized", mutates_args=())
def is_quantized(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor(float(isinstance(x, QuantizedTensor)))


def test_registered_operators_receive_quantized_tensors():
    tensor = delayed_quantizer()(torch.ones(2, 2))
    assert torch.ops.te_tests.is_quantized(tensor).item() == 0.0
    register_pass_through_op(torch.ops.te_tests.is_quantized.default)
    assert torch.ops.te_tests.is_quantized(tensor).item() == 1.0
