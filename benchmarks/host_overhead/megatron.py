# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Megatron-core's column-parallel linear layer on this library against its own, on one rank.

Needs megatron-core in the environment (`pip install --no-deps megatron-core==0.16.1` in one of its
own); where it is missing, or needs a name that this library does not have, the reason is reported.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch

from .bars import Bar
from .cases import Case, Sizes
from .report import MEGATRON

BAR = Bar(
    *("TEColumnParallelLinear fwd", "ColumnParallelLinear fwd"),
    *(MEGATRON, 1.55, 1.0, 0.5),
)


def _import_layers() -> tuple[Any, Any, Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core import parallel_state
        from megatron.core.extensions.transformer_engine import TEColumnParallelLinear
        from megatron.core.tensor_parallel import ColumnParallelLinear
        from megatron.core.transformer.transformer_config import TransformerConfig
    return parallel_state, TransformerConfig, TEColumnParallelLinear, ColumnParallelLinear


def missing() -> str | None:
    """Why there is nothing to measure; None when there is."""
    try:
        _import_layers()
    except (ImportError, AttributeError) as error:  # a class statement that names what is not there
        return f"{type(error).__name__}: {error}"
    return None


def cases(sizes: Sizes) -> Iterator[Case]:
    """Both layers, BF16 with bias; starts torch.distributed with this process alone."""
    parallel_state, config_type, *layers = _import_layers()
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    parallel_state.initialize_model_parallel(1, 1)
    config = config_type(
        num_layers=1,
        hidden_size=sizes.hidden,
        num_attention_heads=sizes.heads,
        params_dtype=torch.bfloat16,
        bf16=True,
        use_cpu_initialization=True,
    )
    options: dict[str, Any] = {
        "config": config,
        "init_method": torch.nn.init.zeros_,
        "gather_output": False,
        "bias": True,
        "skip_bias_add": False,
        "is_expert": False,
    }
    x = torch.zeros(sizes.tokens, 1, sizes.hidden, dtype=torch.bfloat16).requires_grad_()
    for name, layer in zip((BAR.ours, BAR.baseline), layers, strict=True):
        module = layer(sizes.hidden, sizes.hidden, **options)
        yield Case(name, lambda module=module: module(x), leaves=[x, *module.parameters()])
