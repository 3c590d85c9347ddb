# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The package binds its classes under the public names."""

import pytest
import torch

import transformer_engine.pytorch as te
from transformer_engine.pytorch import tensor as tensors
from transformer_engine.pytorch.tensor import get_all_tensor_types


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("mxfp8_tensor", "MXFP8Tensor"),
        ("nvfp4_tensor", "NVFP4Tensor"),
        ("float8_blockwise_tensor", "Float8BlockwiseQTensor"),
        ("float8_tensor", "Float8Tensor"),
        ("grouped_tensor", "GroupedTensor"),
        ("hybrid_tensor", "HybridQuantizedTensor"),
        ("identity_tensor", "IdentityTensor"),
    ],
)
def test_each_format_has_its_module(module, name):
    assert getattr(getattr(tensors, module), name) is getattr(tensors, name)


def test_the_package_binds_the_public_names():
    for name in tensors.__all__:
        if name not in ("get_all_tensor_types", "GroupedTensor", "GroupedTensorStorage"):
            assert getattr(te, name) is getattr(tensors, name)


def test_all_tensor_types_are_classes_of_the_package_or_torch():
    types = get_all_tensor_types()
    assert torch.Tensor in types
    assert te.Float8Tensor in types
    assert len(set(types)) == len(types)
