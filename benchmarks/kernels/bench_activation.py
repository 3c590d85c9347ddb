# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Activations, bias gradient and softmax against torch, and against their memory traffic alone.

Every call allocates its result, as a module's call does. "allocation and
traffic alone" is a function of ours that reads and writes the same tensors with next to no
arithmetic; torch's clone or add moves the same bytes through torch's allocation.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

import transformer_engine  # noqa: F401  (registers transformer_engine_torch)
import transformer_engine_torch as tex
from benchmarks.harness import Case, Comparison, main


def gelu(rows: int, cols: int, dtype: torch.dtype, threads: int, goal: float | None) -> Comparison:
    """tanh GELU."""
    x = torch.randn(rows, cols).to(dtype)
    moved = 2 * x.numel() * x.element_size()
    return Comparison(
        f"gelu forward {str(dtype)[6:]} {rows}x{cols}",
        Case("gelu", lambda: tex.gelu(x), moved),
        [
            Case("F.gelu tanh", lambda: F.gelu(x, approximate="tanh"), moved),
            Case("allocation and traffic alone: relu", lambda: tex.relu(x), moved),
            Case("torch clone", x.clone, moved),
        ],
        threads,
        goal,
    )


def gelu_backward(rows: int, cols: int, dtype: torch.dtype, threads: int) -> Comparison:
    """Gradient of tanh GELU."""
    x, grad = torch.randn(rows, cols).to(dtype), torch.randn(rows, cols).to(dtype)
    moved = 3 * x.numel() * x.element_size()
    native = torch.ops.aten.gelu_backward.default
    return Comparison(
        f"gelu backward {str(dtype)[6:]} {rows}x{cols}",
        Case("dgelu", lambda: tex.dgelu(grad, x), moved),
        [
            Case("gelu_backward tanh", lambda: native(grad, x, approximate="tanh"), moved),
            Case("allocation and traffic alone: drelu", lambda: tex.drelu(grad, x), moved),
            Case("torch add", lambda: torch.add(x, grad), moved),
        ],
        threads,
    )


def swiglu(rows: int, cols: int, dtype: torch.dtype, threads: int) -> Comparison:
    """Gated SiLU, against torch's composition."""
    x = torch.randn(rows, 2 * cols).to(dtype)
    moved = 3 * rows * cols * x.element_size()

    def composed() -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return F.silu(a) * b

    return Comparison(
        f"swiglu forward {str(dtype)[6:]} {rows}x{cols}",
        Case("swiglu", lambda: tex.swiglu(x), moved),
        [Case("F.silu(a) * b", composed, moved)],
        threads,
    )


def bias_gradient(rows: int, cols: int, dtype: torch.dtype, threads: int) -> Comparison:
    """Sum over rows."""
    grad = torch.randn(rows, cols).to(dtype)
    moved = grad.numel() * grad.element_size()
    return Comparison(
        f"bias gradient {str(dtype)[6:]} {rows}x{cols}",
        Case("bgrad_quantize", lambda: tex.bgrad_quantize(grad), moved),
        [Case("sum(0)", lambda: grad.sum(0), moved)],
        threads,
    )


def softmax(keys: int, dtype: torch.dtype, threads: int, is_causal: bool) -> Comparison:
    """Scores of 16 heads; the causal variant against masked_fill and softmax."""
    x = torch.randn(1, 16, keys, keys).to(dtype)
    hidden = torch.ones(keys, keys, dtype=torch.bool).triu(1)
    moved = 2 * x.numel() * x.element_size()
    if is_causal:
        ours = Case(
            "scaled_aligned_causal_masked_softmax_forward",
            lambda: tex.scaled_aligned_causal_masked_softmax_forward(x, 0.125),
            moved,
        )
        torchs = Case(
            "masked_fill, softmax",
            lambda: (x * 0.125).masked_fill_(hidden, -torch.inf).softmax(-1),
            moved,
        )
    else:
        ours = Case("scaled_softmax_forward", lambda: tex.scaled_softmax_forward(x, 0.125), moved)
        torchs = Case("mul, softmax", lambda: (x * 0.125).softmax(-1), moved)
    kind = "causal softmax" if is_causal else "softmax"
    return Comparison(f"{kind} {str(dtype)[6:]} 16x{keys}x{keys}", ours, [torchs], threads)


def comparisons() -> Iterator[Comparison]:
    """The promised problem first, then others."""
    yield gelu(4096, 4096, torch.bfloat16, 1, 2.0)
    yield gelu_backward(4096, 4096, torch.bfloat16, 1)
    yield swiglu(4096, 4096, torch.bfloat16, 1)
    yield bias_gradient(4096, 4096, torch.bfloat16, 1)
    for dtype in (torch.bfloat16, torch.float32):
        yield gelu(512, 1024, dtype, 1, None)
        yield gelu(8, 128, dtype, 1, None)
        yield gelu_backward(512, 1024, dtype, 1)
        yield softmax(512, dtype, 1, is_causal=False)
        yield softmax(512, dtype, 1, is_causal=True)
    yield gelu(4096, 4096, torch.bfloat16, 2, None)


if __name__ == "__main__":
    main("activation", comparisons())
