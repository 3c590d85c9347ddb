# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Formats with one scale per block: quantization against torch's copy, products against torch.mm.

Quantization makes both copies, rowwise and columnwise, and is compared in bytes per second with a
BF16 `copy_` that reads and writes as much. NVFP4's scales depend on the amax of the whole tensor:
its rule needs two readings of the input, and both count. Products read copies made beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import transformer_engine.pytorch as te
import transformer_engine_torch as tex
from benchmarks.harness import Case, Comparison, main, warm_empty

E4M3 = te.DType.kFloat8E4M3
_BOTH = {"rowwise": True, "columnwise": True}
# Name -> (quantizer of an activation, quantizer of a weight, readings of the input, least share of
# the copy's bandwidth).
FORMATS: dict[str, tuple[Any, Any, int, float]] = {
    "FP8 blocks": (
        te.Float8BlockQuantizer(E4M3, block_scaling_dim=1, **_BOTH).native,
        te.Float8BlockQuantizer(E4M3, block_scaling_dim=2, **_BOTH).native,
        1,
        0.6,
    ),
    "MXFP8": (te.MXFP8Quantizer(E4M3).native, te.MXFP8Quantizer(E4M3).native, 1, 0.6),
    "NVFP4": (
        te.NVFP4Quantizer(with_rht=True, with_post_rht_amax=True).native,
        te.NVFP4Quantizer(with_2d_quantization=True).native,
        2,
        0.3,
    ),
}

# Further modes of quantization alone, in the same terms.
MODES: dict[str, tuple[Any, int, float]] = {
    "FP8 blocks with FP32 scales": (
        te.Float8BlockQuantizer(
            E4M3, block_scaling_dim=1, force_pow_2_scales=False, **_BOTH
        ).native,
        1,
        0.6,
    ),
    "NVFP4 rounded stochastically": (
        te.NVFP4Quantizer(with_rht=True, with_post_rht_amax=True, stochastic_rounding=True).native,
        2,
        0.3,
    ),
    "NVFP4 with four over six": (te.NVFP4Quantizer(nvfp4_use_4over6=True).native, 2, 0.3),
}


def _bytes(copies: tuple[Any, Any]) -> int:
    buffers = [buffer for copy in copies for buffer in copy[:3] if buffer is not None]
    return sum(buffer.numel() * buffer.element_size() for buffer in buffers)


def quantize(
    name: str, quantizer: Any, readings: int, size: int, *, goal: float | None
) -> Comparison:
    """Both copies of an activation of size x size, on one thread."""
    rows = cols = size
    x = warm_empty(rows, cols, dtype=torch.bfloat16).copy_(torch.randn(rows, cols))
    target = warm_empty(rows, cols, dtype=torch.bfloat16)
    copies = quantizer.quantize(x)
    moved = x.numel() * x.element_size()
    traffic = readings * moved + _bytes(copies)
    return Comparison(
        f"quantize bfloat16 -> {name}, both copies, {rows}x{cols}",
        Case("quantizer.update", lambda: quantizer.update(x, *copies), traffic),
        [Case("torch copy_ bfloat16", lambda: target.copy_(x), 2 * moved)],
        1,
        goal,
    )


def product(name: str, size: int, *, weight_gradient: bool, threads: int) -> Comparison:
    """fprop or wgrad of square operands, BF16 result."""
    for_input, for_weight, _, _ = FORMATS[name]
    a, b = (torch.randn(size, size, dtype=torch.bfloat16) for _ in range(2))
    second = for_input if weight_gradient else for_weight
    sizes = [size, size]
    a_copies, b_copies = for_input.quantize(a), second.quantize(b)

    first = (sizes, *a_copies, weight_gradient)
    other = (sizes, *b_copies, weight_gradient)

    def ours() -> torch.Tensor:
        return tex.gemm_copies(*first, *other, int(te.DType.kBFloat16))

    kind = "wgrad" if weight_gradient else "fprop"
    flops = 2 * size**3
    transposed = (a.t(), b) if weight_gradient else (a, b.t())
    return Comparison(
        f"{name} -> bf16 {size}x{size}x{size} {kind}",
        Case("gemm", ours, flops=flops),
        [Case("torch.mm bfloat16", lambda: torch.mm(*transposed), flops=flops)],
        threads,
        0.85,
    )


def comparisons() -> Iterator[Comparison]:
    """All problems."""
    for name, (quantizer, _, readings, share) in FORMATS.items():
        yield quantize(name, quantizer, readings, 4096, goal=share)
        yield quantize(name, quantizer, readings, 1024, goal=None)
    for name, (quantizer, readings, share) in MODES.items():
        yield quantize(name, quantizer, readings, 4096, goal=share)
    for name in FORMATS:
        for weight_gradient in (False, True):
            yield product(name, 1024, weight_gradient=weight_gradient, threads=1)


if __name__ == "__main__":
    main("block_scaling", comparisons())
