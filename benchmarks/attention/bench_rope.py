# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings against the usual composed formula, t cos + rotate_half(t) sin."""

from collections.abc import Iterator

import torch

from benchmarks.harness import Case, Comparison, main
from transformer_engine.pytorch.attention.rope import RotaryPositionEmbedding, apply_rotary_pos_emb

Shape = tuple[int, int, int, int]  # s, b, h, d


def rotate(shape: Shape, dtype: torch.dtype, fused: bool) -> Comparison:
    """Forward; the formula computes in FP32 when ours is fused, else in the input's dtype."""
    t = torch.randn(shape).to(dtype)
    freqs = RotaryPositionEmbedding(shape[3])(shape[0])
    compute = torch.float32 if fused else dtype

    def formula() -> torch.Tensor:
        cos, sin, x = freqs.cos().to(compute), freqs.sin().to(compute), t.to(compute)
        first, second = x.chunk(2, -1)
        return (x * cos + torch.cat((-second, first), -1) * sin).to(dtype)

    moved = 2 * t.numel() * t.element_size()
    return Comparison(
        f"rope {'fused' if fused else 'unfused'} {str(dtype)[6:]} s, b, h, d = {shape}",
        Case("apply_rotary_pos_emb", lambda: apply_rotary_pos_emb(t, freqs, fused=fused), moved),
        [Case("formula", formula, moved)],
    )


def comparisons() -> Iterator[Comparison]:
    """All problems."""
    for shape in ((4, 1, 2, 8), (1024, 2, 8, 64)):
        for dtype in (torch.float32, torch.bfloat16):
            yield rotate(shape, dtype, True)
            yield rotate(shape, dtype, False)


if __name__ == "__main__":
    main("rope", comparisons())
