# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""LayerNorm and RMSNorm."""

from transformer_engine_torch import (
    layernorm_bwd,
    layernorm_fwd,
    rmsnorm_bwd,
    rmsnorm_bwd_add,
    rmsnorm_fwd,
)

__all__ = ["layernorm_bwd", "layernorm_fwd", "rmsnorm_bwd", "rmsnorm_bwd_add", "rmsnorm_fwd"]
