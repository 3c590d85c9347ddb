# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Several tensors of one format packed into one. Not part of this version."""

from .quantized_tensor import QuantizedTensor
from .storage.quantized_storage import QuantizedTensorStorage
from .unavailable import unavailable


@unavailable
class GroupedTensorStorage(QuantizedTensorStorage):
    """Storage of packed tensors. Not part of this version."""


@unavailable
class GroupedTensor(QuantizedTensor, GroupedTensorStorage):  # type: ignore[misc]
    """Packed tensors. Not part of this version."""
