# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""PyTorch layers, number formats and recipes."""

from transformer_engine.common import load_framework_extension

_native = load_framework_extension("torch")  # the modules below use it

from . import (  # noqa: E402  # after the native module, like all below
    constants,
    ops,
    optimizers,
    router,
)
from .attention import (  # noqa: E402
    DotProductAttention,
    InferenceParams,
    MultiheadAttention,
    RotaryPositionEmbedding,
)
from .constants import DType  # noqa: E402
from .cpu_offload import (  # noqa: E402
    ManualOffloadSynchronizer,
    get_cpu_offload_context,
    mark_not_offload,
)
from .cross_entropy import parallel_cross_entropy  # noqa: E402
from .distributed import CudaRNGStatesTracker, checkpoint  # noqa: E402
from .graph import make_graphed_callables  # noqa: E402
from .module import (  # noqa: E402
    GroupedLinear,
    LayerNorm,
    LayerNormLinear,
    LayerNormMLP,
    Linear,
    RMSNorm,
)
from .module.userbuffers import (  # noqa: E402
    UserBufferQuantizationMode,
    destroy_ub,
    initialize_ub,
)
from .numerics_report import LayerError, NumericsReport, OperandRow, numerics_report  # noqa: E402
from .quantization import (  # noqa: E402
    DelayedScalingRequest,
    QuantizerRequest,
    QuantizerRole,
    autocast,
    fp8_autocast,
    fp8_model_init,
    get_default_recipe,
    is_fp8_available,
    is_fp8_block_scaling_available,
    is_mxfp8_available,
    is_nvfp4_available,
    quantized_model_init,
)
from .tensor import (  # noqa: E402
    Float8BlockQuantizer,
    Float8BlockwiseQTensor,
    Float8BlockwiseQTensorStorage,
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    Float8Tensor,
    Float8TensorStorage,
    HybridQuantizedTensor,
    HybridQuantizedTensorStorage,
    HybridQuantizer,
    IdentityQuantizer,
    IdentityTensor,
    IdentityTensorStorage,
    MXFP8Quantizer,
    MXFP8Tensor,
    MXFP8TensorStorage,
    NVFP4Quantizer,
    NVFP4Tensor,
    NVFP4TensorStorage,
    QuantizedTensor,
    QuantizedTensorStorage,
    Quantizer,
    prepare_for_saving,
    restore_from_func_ctx,
    restore_from_saved,
)
from .transformer import TransformerLayer  # noqa: E402
from .utils import (  # noqa: E402
    deinterleave_glu_tensor,
    get_cudnn_version,
    get_device_compute_capability,
    interleave_glu_tensor,
    is_bf16_available,
)

_native.DType = DType  # one enumeration under both names

__all__ = [  # noqa: RUF022  # grouped by subject
    # data types
    "DType",
    "constants",
    "ops",
    "optimizers",
    "router",
    # modules
    "GroupedLinear",
    "LayerNorm",
    "LayerNormLinear",
    "LayerNormMLP",
    "Linear",
    "RMSNorm",
    # userbuffers
    "UserBufferQuantizationMode",
    "destroy_ub",
    "initialize_ub",
    # quantization
    "DelayedScalingRequest",
    "QuantizerRequest",
    "QuantizerRole",
    "autocast",
    "fp8_autocast",
    "fp8_model_init",
    "get_default_recipe",
    "is_fp8_available",
    "is_fp8_block_scaling_available",
    "is_mxfp8_available",
    "is_nvfp4_available",
    "quantized_model_init",
    # attention
    "DotProductAttention",
    "InferenceParams",
    "MultiheadAttention",
    "RotaryPositionEmbedding",
    "TransformerLayer",
    # availability
    "get_cudnn_version",
    "get_device_compute_capability",
    "is_bf16_available",
    # loss
    "parallel_cross_entropy",
    # recompute, random streams, activation offload, graphs
    "CudaRNGStatesTracker",
    "ManualOffloadSynchronizer",
    "checkpoint",
    "get_cpu_offload_context",
    "make_graphed_callables",
    "mark_not_offload",
    # tensor base
    "QuantizedTensor",
    "QuantizedTensorStorage",
    "Quantizer",
    "prepare_for_saving",
    "restore_from_func_ctx",
    "restore_from_saved",
    # quantizers
    "Float8BlockQuantizer",
    "Float8CurrentScalingQuantizer",
    "Float8Quantizer",
    "HybridQuantizer",
    "IdentityQuantizer",
    "MXFP8Quantizer",
    "NVFP4Quantizer",
    # storages
    "Float8BlockwiseQTensorStorage",
    "Float8TensorStorage",
    "HybridQuantizedTensorStorage",
    "IdentityTensorStorage",
    "MXFP8TensorStorage",
    "NVFP4TensorStorage",
    # tensors
    "Float8BlockwiseQTensor",
    "Float8Tensor",
    "HybridQuantizedTensor",
    "IdentityTensor",
    "MXFP8Tensor",
    "NVFP4Tensor",
    # debugging
    "LayerError",
    "NumericsReport",
    "OperandRow",
    "numerics_report",
    # GLU helpers
    "deinterleave_glu_tensor",
    "interleave_glu_tensor",
]
