# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""A format for the rowwise copy, another for the columnwise. Not part of this version."""

from .quantized_tensor import QuantizedTensor
from .quantizer import Quantizer
from .storage.quantized_storage import QuantizedTensorStorage
from .unavailable import unavailable


@unavailable
class HybridQuantizer(Quantizer):
    """Quantizer of the format. Not part of this version."""


@unavailable
class HybridQuantizedTensorStorage(QuantizedTensorStorage):
    """Storage of the format. Not part of this version."""


@unavailable
class HybridQuantizedTensor(QuantizedTensor, HybridQuantizedTensorStorage):  # type: ignore[misc]
    """Tensor of the format. Not part of this version."""
