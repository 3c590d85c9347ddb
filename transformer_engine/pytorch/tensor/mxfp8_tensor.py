# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""FP8 with an E8M0 scale for every 32 elements. Not part of this version."""

from .quantized_tensor import QuantizedTensor
from .quantizer import Quantizer
from .storage.quantized_storage import QuantizedTensorStorage
from .unavailable import unavailable


@unavailable
class MXFP8Quantizer(Quantizer):
    """Quantizer of the format. Not part of this version."""


@unavailable
class MXFP8TensorStorage(QuantizedTensorStorage):
    """Storage of the format. Not part of this version."""


@unavailable
class MXFP8Tensor(QuantizedTensor, MXFP8TensorStorage):  # type: ignore[misc]
    """Tensor of the format. Not part of this version."""
