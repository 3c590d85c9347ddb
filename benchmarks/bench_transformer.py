# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""TransformerLayer against the same layer composed of torch.nn modules.

The tiny shape shows host work, the larger one whole-layer speed. Both run causal attention without
dropout, with one fused query-key-value weight.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from benchmarks.harness import Case, Comparison, main
from transformer_engine.pytorch import TransformerLayer


@dataclass(frozen=True)
class Shape:
    """Sequence, batch, hidden, MLP width, heads."""

    s: int
    b: int
    hidden: int
    ffn: int
    heads: int


class PlainLayer(torch.nn.Module):
    """Pre-norm layer of torch.nn modules."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, options = shape.hidden, {"dtype": dtype}
        self.shape = shape
        self.norm1, self.norm2 = (torch.nn.LayerNorm(hidden, **options) for _ in range(2))
        self.qkv = torch.nn.Linear(hidden, 3 * hidden, **options)
        self.proj = torch.nn.Linear(hidden, hidden, **options)
        self.fc1 = torch.nn.Linear(hidden, shape.ffn, **options)
        self.fc2 = torch.nn.Linear(shape.ffn, hidden, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [s, b, hidden]."""
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, self.shape.heads, -1))
        q, k, v = heads.permute(2, 1, 3, 0, 4).unbind(0)
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(context.permute(2, 0, 1, 3).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


def _step(layer: torch.nn.Module, x: torch.Tensor, what: str) -> Callable[[], object]:
    if what == "forward + backward":
        grad_out = torch.randn_like(x)
        return lambda: layer(x).backward(grad_out)
    if what == "forward":
        return lambda: layer(x)

    def inference() -> torch.Tensor:
        with torch.no_grad():
            return layer(x)

    return inference


def layer(shape: Shape, dtype: torch.dtype, what: str) -> Comparison:
    """One layer, one pass."""
    ours = TransformerLayer(
        shape.hidden,
        shape.ffn,
        shape.heads,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        fuse_qkv_params=True,
        params_dtype=dtype,
        device="cpu",
    )
    x = torch.randn(shape.s, shape.b, shape.hidden).to(dtype).requires_grad_()
    return Comparison(
        f"layer {what} {str(dtype)[6:]} {shape}",
        Case("TransformerLayer", _step(ours, x, what)),
        [Case("torch.nn modules", _step(PlainLayer(shape, dtype), x, what))],
    )


def comparisons() -> Iterator[Comparison]:
    """All problems."""
    for shape in (Shape(4, 1, 32, 64, 2), Shape(256, 2, 512, 2048, 8)):
        for dtype in (torch.float32, torch.bfloat16):
            for what in ("inference", "forward", "forward + backward"):
                yield layer(shape, dtype, what)


if __name__ == "__main__":
    main("transformer", comparisons())
