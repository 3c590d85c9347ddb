# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""One recipe of every kind, custom ones included: what tests of whole behaviours run through."""

from __future__ import annotations

from typing import Any

import torch

import transformer_engine.pytorch as te
from transformer_engine.common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    Recipe,
)
from transformer_engine.pytorch.constants import DType
from transformer_engine.pytorch.quantization import DelayedScalingRequest, QuantizerRole

HISTORY_LENGTH = 4


def request_delayed_scaling(role: QuantizerRole | None) -> Any:
    """A factory: delayed scaling for every tensor."""
    del role
    return DelayedScalingRequest(amax_history_len=HISTORY_LENGTH)


def make_hybrid_quantizer(role: QuantizerRole | None) -> Any:
    """A factory: MXFP8 along the rows, FP8 with a scale per tensor along the columns."""
    del role
    return te.HybridQuantizer(
        rowwise_quantizer=te.MXFP8Quantizer(DType.kFloat8E4M3),
        columnwise_quantizer=te.Float8CurrentScalingQuantizer(
            DType.kFloat8E5M2, torch.device("cpu")
        ),
    )


RECIPES: dict[str, Recipe] = {
    "delayed": DelayedScaling(amax_history_len=HISTORY_LENGTH),
    "current": Float8CurrentScaling(),
    "block": Float8BlockScaling(),
    "mxfp8": MXFP8BlockScaling(),
    "nvfp4": NVFP4BlockScaling(),
    "custom": CustomRecipe(qfactory=request_delayed_scaling),
    "hybrid": CustomRecipe(qfactory=make_hybrid_quantizer),
}
# Those with scales and histories that last from step to step.
STATEFUL = ("delayed", "custom")
