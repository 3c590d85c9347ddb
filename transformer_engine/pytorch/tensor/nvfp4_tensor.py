# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""FP4 with an E4M3 scale for every 16 elements. Not part of this version."""

from .quantized_tensor import QuantizedTensor
from .quantizer import Quantizer
from .storage.quantized_storage import QuantizedTensorStorage
from .unavailable import unavailable


@unavailable
class NVFP4Quantizer(Quantizer):
    """Quantizer of the format. Not part of this version."""


@unavailable
class NVFP4TensorStorage(QuantizedTensorStorage):
    """Storage of the format. Not part of this version."""


@unavailable
class NVFP4Tensor(QuantizedTensor, NVFP4TensorStorage):  # type: ignore[misc]
    """Tensor of the format. Not part of this version."""
