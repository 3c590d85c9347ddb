# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What torch.load(weights_only=True) may construct of this library."""

from __future__ import annotations

from typing import Any

import torch

from ..constants import DType
from .block_quantizer import _make_block_quantizer
from .block_scaled_tensor import _make_block_scaled_tensor
from .float8_blockwise_tensor import (
    Float8BlockQuantizer,
    Float8BlockwiseQTensor,
    Float8BlockwiseQTensorStorage,
)
from .float8_current_scaling import (
    Float8CurrentScalingQuantizer,
    _make_current_scaling_quantizer,
)
from .float8_quantizer import Float8Quantizer, _make_float8_quantizer
from .float8_tensor import Float8Tensor, _make_float8_tensor_in_reduce_ex
from .grouped_tensor import (
    GroupedTensor,
    GroupedTensorStorage,
    _make_grouped_tensor_in_reduce_ex,
)
from .hybrid_tensor import (
    HybridQuantizedTensor,
    HybridQuantizedTensorStorage,
    HybridQuantizer,
    _make_hybrid_tensor_in_reduce_ex,
)
from .identity_tensor import (
    IdentityQuantizer,
    IdentityTensor,
    _make_identity_tensor_in_reduce_ex,
)
from .mxfp8_tensor import MXFP8Quantizer, MXFP8Tensor, MXFP8TensorStorage
from .nvfp4_tensor import NVFP4Quantizer, NVFP4Tensor, NVFP4TensorStorage
from .storage.float8_tensor_storage import Float8TensorStorage
from .storage.identity_tensor_storage import IdentityTensorStorage


def safe_globals() -> list[Any]:
    """The classes and functions in pickled tensors; calling one only makes an object."""
    return [
        *(DType, Float8Quantizer, Float8CurrentScalingQuantizer, IdentityQuantizer),
        *(Float8TensorStorage, Float8Tensor, IdentityTensorStorage, IdentityTensor),
        *(MXFP8Quantizer, MXFP8Tensor, MXFP8TensorStorage),
        *(Float8BlockQuantizer, Float8BlockwiseQTensor, Float8BlockwiseQTensorStorage),
        *(NVFP4Quantizer, NVFP4Tensor, NVFP4TensorStorage),
        *(HybridQuantizer, HybridQuantizedTensor, HybridQuantizedTensorStorage),
        _make_hybrid_tensor_in_reduce_ex,
        *(GroupedTensor, GroupedTensorStorage, _make_grouped_tensor_in_reduce_ex),
        *(_make_block_quantizer, _make_block_scaled_tensor),
        *(_make_float8_quantizer, _make_current_scaling_quantizer),
        *(_make_float8_tensor_in_reduce_ex, _make_identity_tensor_in_reduce_ex),
    ]


def register_safe_globals() -> None:
    """Tell torch.serialization about the classes and functions in pickled tensors."""
    torch.serialization.add_safe_globals(safe_globals())
