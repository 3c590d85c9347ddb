# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""FP8 with an FP32 scale for every block of 128. Not part of this version."""

from .quantized_tensor import QuantizedTensor
from .quantizer import Quantizer
from .storage.quantized_storage import QuantizedTensorStorage
from .unavailable import unavailable


@unavailable
class Float8BlockQuantizer(Quantizer):
    """Quantizer of the format. Not part of this version."""


@unavailable
class Float8BlockwiseQTensorStorage(QuantizedTensorStorage):
    """Storage of the format. Not part of this version."""


@unavailable
class Float8BlockwiseQTensor(QuantizedTensor, Float8BlockwiseQTensorStorage):  # type: ignore[misc]
    """Tensor of the format. Not part of this version."""
