# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Process groups, random streams, recompute, collectives, and marks of parallel weights."""

import importlib
from typing import TYPE_CHECKING, Any

from .collectives import (
    allreduce,
    gather_along_first_dim,
    reduce_scatter_along_first_dim,
    symmetric_all_reduce,
)
from .groups import get_distributed_rank, get_distributed_world_size
from .recompute import (
    activation_recompute_forward,
    checkpoint,
    in_fp8_activation_recompute_phase,
    is_fp8_activation_recompute_enabled,
)
from .rng import (
    CudaRNGStatesTracker,
    get_all_rng_states,
    graph_safe_rng_available,
    is_graph_safe_rng_state,
    set_all_rng_states,
)
from .tensor_parallel import (
    gather_split_1d_tensor,
    initialize_affine_weight,
    initialize_affine_weight_gpu,
    set_tensor_model_parallel_attributes,
    split_tensor_into_1d_equal_chunks,
)

if TYPE_CHECKING:
    from .fsdp1 import FullyShardedDataParallel, prepare_te_modules_for_fsdp

__all__ = [
    "CudaRNGStatesTracker",
    "FullyShardedDataParallel",
    "activation_recompute_forward",
    "allreduce",
    "checkpoint",
    "gather_along_first_dim",
    "gather_split_1d_tensor",
    "get_all_rng_states",
    "get_distributed_rank",
    "get_distributed_world_size",
    "graph_safe_rng_available",
    "in_fp8_activation_recompute_phase",
    "initialize_affine_weight",
    "initialize_affine_weight_gpu",
    "is_fp8_activation_recompute_enabled",
    "is_graph_safe_rng_state",
    "prepare_te_modules_for_fsdp",
    "reduce_scatter_along_first_dim",
    "set_all_rng_states",
    "set_tensor_model_parallel_attributes",
    "split_tensor_into_1d_equal_chunks",
    "symmetric_all_reduce",
]

_FSDP1_NAMES = ("FullyShardedDataParallel", "prepare_te_modules_for_fsdp")


def __getattr__(name: str) -> Any:
    if name in _FSDP1_NAMES:
        return getattr(importlib.import_module(f"{__name__}.fsdp1"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
