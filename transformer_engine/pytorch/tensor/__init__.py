# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Quantizers, quantized tensors and their storages, one module per number format.

Importing this package replaces `torch.nn.Module.float`, `half` and `bfloat16` by versions that
leave the bytes of quantized parameters alone, and lets torch.load(weights_only=True) read the
classes below.
"""

import torch

from .float8_blockwise_tensor import (
    Float8BlockQuantizer,
    Float8BlockwiseQTensor,
    Float8BlockwiseQTensorStorage,
)
from .float8_current_scaling import Float8CurrentScalingQuantizer
from .float8_quantizer import Float8Quantizer
from .float8_tensor import Float8Tensor
from .grouped_tensor import GroupedTensor, GroupedTensorStorage
from .hybrid_tensor import HybridQuantizedTensor, HybridQuantizedTensorStorage, HybridQuantizer
from .identity_tensor import IdentityQuantizer, IdentityTensor
from .module_casts import install
from .mxfp8_tensor import MXFP8Quantizer, MXFP8Tensor, MXFP8TensorStorage
from .nvfp4_tensor import NVFP4Quantizer, NVFP4Tensor, NVFP4TensorStorage
from .quantized_tensor import QuantizedTensor
from .quantizer import Quantizer
from .safe_globals import register_safe_globals
from .storage.float8_tensor_storage import Float8TensorStorage
from .storage.identity_tensor_storage import IdentityTensorStorage
from .storage.quantized_storage import (
    QuantizedTensorStorage,
    prepare_for_saving,
    restore_from_func_ctx,
    restore_from_saved,
)

__all__ = [
    "Float8BlockQuantizer",
    "Float8BlockwiseQTensor",
    "Float8BlockwiseQTensorStorage",
    "Float8CurrentScalingQuantizer",
    "Float8Quantizer",
    "Float8Tensor",
    "Float8TensorStorage",
    "GroupedTensor",
    "GroupedTensorStorage",
    "HybridQuantizedTensor",
    "HybridQuantizedTensorStorage",
    "HybridQuantizer",
    "IdentityQuantizer",
    "IdentityTensor",
    "IdentityTensorStorage",
    "MXFP8Quantizer",
    "MXFP8Tensor",
    "MXFP8TensorStorage",
    "NVFP4Quantizer",
    "NVFP4Tensor",
    "NVFP4TensorStorage",
    "QuantizedTensor",
    "QuantizedTensorStorage",
    "Quantizer",
    "get_all_tensor_types",
    "prepare_for_saving",
    "restore_from_func_ctx",
    "restore_from_saved",
]


install()
register_safe_globals()


def get_all_tensor_types() -> list[type]:
    """Every class a module may meet as a tensor: torch's two, and those of this package."""
    return [
        *(torch.Tensor, torch.nn.Parameter),
        *(Float8Tensor, Float8TensorStorage, IdentityTensor, IdentityTensorStorage),
        *(MXFP8Tensor, MXFP8TensorStorage, NVFP4Tensor, NVFP4TensorStorage),
        *(Float8BlockwiseQTensor, Float8BlockwiseQTensorStorage),
        *(HybridQuantizedTensor, HybridQuantizedTensorStorage),
        *(GroupedTensor, GroupedTensorStorage),
    ]
