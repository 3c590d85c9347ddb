# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Another import path of the tensor base classes."""

from .tensor.quantized_tensor import QuantizedTensor
from .tensor.quantizer import Quantizer
from .tensor.storage.quantized_storage import (
    QuantizedTensorStorage,
    prepare_for_saving,
    restore_from_func_ctx,
    restore_from_saved,
)

__all__ = [
    "QuantizedTensor",
    "QuantizedTensorStorage",
    "Quantizer",
    "prepare_for_saving",
    "restore_from_func_ctx",
    "restore_from_saved",
]
