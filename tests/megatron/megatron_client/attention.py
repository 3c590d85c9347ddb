# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""TEDotProductAttention beside Megatron's own attention, over masks and groups of heads.

    python -m megatron_client.attention

Prints one JSON object: case -> largest difference of results and of gradients, FP32. Queries, keys
and values are views of one interleaved tensor, as Megatron passes them.
"""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch

from . import cuda_to_cpu_shim

SEQUENCE, BATCH, HEADS, WIDTH, VALID = 16, 2, 4, 16, 11


@dataclass(frozen=True, slots=True)
class Case:
    """What is attended to; `mask_type` is a name of Megatron's AttnMaskType."""

    mask_type: str
    te_mask: torch.Tensor | None = None
    native_mask: torch.Tensor | None = None
    groups: int = HEADS
    te_options: dict[str, Any] = field(default_factory=dict)


def cases() -> dict[str, Case]:
    """The cases; True in a mask is what is left out."""
    causal = torch.ones(1, 1, SEQUENCE, SEQUENCE).tril() < 0.5
    generator = torch.Generator().manual_seed(3)
    arbitrary = torch.rand(BATCH, 1, SEQUENCE, SEQUENCE, generator=generator) < 0.3
    arbitrary[..., 0] = False  # no row without anything to attend to
    padding = torch.zeros(BATCH, 1, 1, SEQUENCE, dtype=torch.bool)
    padding[0, ..., VALID:] = True
    padded_keys = padding.expand(BATCH, 1, SEQUENCE, SEQUENCE)
    return {
        "causal": Case("causal", None, causal),
        "no_mask": Case("no_mask"),
        "padding": Case("padding", padding, padded_keys),
        "padding_causal": Case("padding_causal", padding, padded_keys | causal),
        "arbitrary": Case("arbitrary", arbitrary, arbitrary),
        "grouped queries": Case("causal", None, causal, groups=2),
        "one split": Case("causal", None, causal, te_options={"num_splits": 1}),
    }


def compare() -> dict[str, float]:
    """Case -> largest difference; in a process group of one rank."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(7)
    return {name: _difference(case) for name, case in cases().items()}


def _difference(case: Case) -> float:
    from megatron.core.extensions.transformer_engine import TEDotProductAttention
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType

    config = TransformerConfig(
        num_layers=1,
        hidden_size=HEADS * WIDTH,
        num_attention_heads=HEADS,
        num_query_groups=case.groups,
        attention_dropout=0.0,
    )
    mask_type = AttnMaskType[case.mask_type]
    options = {
        "config": config,
        "layer_number": 1,
        "attn_mask_type": mask_type,
        "attention_type": "self",
    }
    native = DotProductAttention(**options)
    ours = TEDotProductAttention(**options, **case.te_options)
    generator = torch.Generator().manual_seed(5)
    mixed = torch.randn(SEQUENCE, BATCH, case.groups, 6 * WIDTH, generator=generator)
    grad = torch.randn(SEQUENCE, BATCH, HEADS * WIDTH, generator=generator)
    if "padding" in case.mask_type:
        grad[VALID:, 0] = 0  # rows of padding are nobody's business
    per_group = HEADS // case.groups * WIDTH

    def run(attend: Any) -> list[torch.Tensor]:
        source = mixed.clone().requires_grad_()
        sizes = [per_group, WIDTH, WIDTH, 6 * WIDTH - per_group - 2 * WIDTH]
        q, k, v, _ = source.split(sizes, dim=-1)
        result = attend(q.reshape(SEQUENCE, BATCH, HEADS, WIDTH), k, v)
        result.backward(grad)
        assert source.grad is not None
        return [(result * (grad != 0)).detach(), source.grad]

    expected = run(lambda q, k, v: native(q, k, v, case.native_mask))
    actual = run(lambda q, k, v: ours(q, k, v, case.te_mask, mask_type))
    pairs = zip(actual, expected, strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def main() -> int:
    """The command line."""
    cuda_to_cpu_shim.install()
    warnings.simplefilter("ignore")
    from .launch import launch

    print(json.dumps(launch(compare, 1, 120)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
