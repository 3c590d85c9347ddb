# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""LayerNorm and RMSNorm against torch, and against their memory traffic alone.

Every call allocates its results, as a module's call does. "allocation and
traffic alone" is a function of ours that reads and writes the same tensors with next to no
arithmetic; torch's clone or add moves the same bytes through torch's allocation.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

import transformer_engine  # noqa: F401  (registers transformer_engine_torch)
import transformer_engine_torch as tex
from benchmarks.harness import Case, Comparison, main

EPS = 1e-5


def forward(
    kind: str, rows: int, hidden: int, dtype: torch.dtype, threads: int, goal: float | None
) -> Comparison:
    """Output and statistics, against torch's norm of the same kind."""
    x = torch.randn(rows, hidden).to(dtype)
    weight, bias = torch.ones(hidden, dtype=dtype), torch.zeros(hidden, dtype=dtype)
    moved = 2 * x.numel() * x.element_size()
    if kind == "layernorm":
        ours = Case("layernorm_fwd", lambda: tex.layernorm_fwd(x, weight, bias, EPS), moved)
        torchs = Case("F.layer_norm", lambda: F.layer_norm(x, (hidden,), weight, bias, EPS), moved)
    else:
        ours = Case("rmsnorm_fwd", lambda: tex.rmsnorm_fwd(x, weight, EPS), moved)
        torchs = Case("F.rms_norm", lambda: F.rms_norm(x, (hidden,), weight, EPS), moved)
    return Comparison(
        f"{kind} forward {str(dtype)[6:]} {rows}x{hidden}",
        ours,
        [
            torchs,
            Case("allocation and traffic alone: relu", lambda: tex.relu(x), moved),
            Case("torch clone", x.clone, moved),
        ],
        threads,
        goal,
    )


def backward(
    kind: str, rows: int, hidden: int, dtype: torch.dtype, threads: int, goal: float | None
) -> Comparison:
    """All gradients, against torch's backward of the same norm."""
    x, grad = torch.randn(rows, hidden).to(dtype), torch.randn(rows, hidden).to(dtype)
    weight, bias = torch.ones(hidden, dtype=dtype), torch.zeros(hidden, dtype=dtype)
    moved = 3 * x.numel() * x.element_size()
    if kind == "layernorm":
        _, mean, rstd = tex.layernorm_fwd(x, weight, bias, EPS)
        ours = Case("layernorm_bwd", lambda: tex.layernorm_bwd(grad, x, mean, rstd, weight), moved)
        native = torch.ops.aten.native_layer_norm_backward.default
        statistics = torch.native_layer_norm(x, (hidden,), weight, bias, EPS)[1:]
        torchs = Case(
            "native_layer_norm_backward",
            lambda: native(grad, x, (hidden,), *statistics, weight, bias, [True, True, True]),
            moved,
        )
    else:
        _, _, rstd = tex.rmsnorm_fwd(x, weight, EPS)
        ours = Case("rmsnorm_bwd", lambda: tex.rmsnorm_bwd(grad, x, rstd, weight), moved)
        leaf, leaf_weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
        result = F.rms_norm(leaf, (hidden,), leaf_weight, EPS)

        def torch_backward() -> None:
            torch.autograd.grad(result, (leaf, leaf_weight), grad, retain_graph=True)

        torchs = Case("F.rms_norm's backward", torch_backward, moved)
    return Comparison(
        f"{kind} backward {str(dtype)[6:]} {rows}x{hidden}",
        ours,
        [
            torchs,
            Case("allocation and traffic alone: drelu", lambda: tex.drelu(grad, x), moved),
            Case("torch add", lambda: torch.add(x, grad), moved),
        ],
        threads,
        goal,
    )


def comparisons() -> Iterator[Comparison]:
    """The promised problem first, then others."""
    yield forward("layernorm", 4096, 4096, torch.bfloat16, 1, 1.4)
    yield backward("layernorm", 4096, 4096, torch.bfloat16, 1, 2.0)
    yield forward("rmsnorm", 4096, 4096, torch.bfloat16, 1, 5.0)
    yield backward("rmsnorm", 4096, 4096, torch.bfloat16, 1, None)
    for kind in ("layernorm", "rmsnorm"):
        for rows, hidden in ((512, 1024), (8, 128)):
            for dtype in (torch.bfloat16, torch.float32):
                yield forward(kind, rows, hidden, dtype, 1, None)
                yield backward(kind, rows, hidden, dtype, 1, None)
    yield forward("layernorm", 4096, 4096, torch.bfloat16, 2, None)
    yield backward("layernorm", 4096, 4096, torch.bfloat16, 2, None)


if __name__ == "__main__":
    main("normalization", comparisons())
