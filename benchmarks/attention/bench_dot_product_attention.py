# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""DotProductAttention against torch's operator called directly.

Tiny shapes show the host work of the module, larger ones that nothing is added to the kernel's
time. Packed sequences compare with one padded batch and a mask, the usual way without thd.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from benchmarks.harness import Case, Comparison, main
from transformer_engine.pytorch.attention import DotProductAttention

Shape = tuple[int, int, int, int]  # s, b, h, d


def _inputs(shape: Shape, dtype: torch.dtype, grad: bool) -> list[torch.Tensor]:
    return [torch.randn(shape).to(dtype).requires_grad_(grad) for _ in range(3)]


def _step(forward: Callable[[], torch.Tensor], grad: bool) -> Callable[[], object]:
    if not grad:
        return forward
    grad_out = torch.randn_like(forward())
    return lambda: forward().backward(grad_out)


def causal(shape: Shape, dtype: torch.dtype, grad: bool) -> Comparison:
    """Causal self attention, sbhd, against the same four torch calls without a module."""
    q, k, v = _inputs(shape, dtype, grad)
    module = DotProductAttention(shape[2], shape[3])

    def plain() -> torch.Tensor:
        heads = [x.permute(1, 2, 0, 3) for x in (q, k, v)]
        out = F.scaled_dot_product_attention(*heads, is_causal=True)
        return out.permute(2, 0, 1, 3).flatten(2)

    what = "forward + backward" if grad else "forward"
    return Comparison(
        f"causal {what} {str(dtype)[6:]} s, b, h, d = {shape}",
        Case("DotProductAttention", _step(lambda: module(q, k, v), grad)),
        [Case("torch operator", _step(plain, grad))],
    )


def packed(lengths: list[int], heads: int, size: int, grad: bool) -> Comparison:
    """Packed causal sequences against a padded batch with a mask."""
    longest, batch = max(lengths), len(lengths)
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    q, k, v = (torch.randn(sum(lengths), heads, size, requires_grad=grad) for _ in range(3))
    wide = [torch.randn(batch, heads, longest, size, requires_grad=grad) for _ in range(3)]
    module = DotProductAttention(heads, size, qkv_format="thd", attn_mask_type="padding_causal")

    def ours() -> torch.Tensor:
        return module(q, k, v, cu_seqlens_q=cu_seqlens, cu_seqlens_kv=cu_seqlens)

    def padded() -> torch.Tensor:
        inside = torch.arange(longest) < torch.tensor(lengths)[:, None, None, None]
        mask = inside & torch.ones(longest, longest, dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(*wide, attn_mask=mask)

    what = "forward + backward" if grad else "forward"
    return Comparison(
        f"packed {what} float32 lengths {lengths}, h, d = {heads}, {size}",
        Case("DotProductAttention thd", _step(ours, grad)),
        [Case("torch operator, padded batch", _step(padded, grad))],
    )


def comparisons() -> Iterator[Comparison]:
    """All problems."""
    for grad in (False, True):
        yield causal((4, 1, 2, 8), torch.float32, grad)
        yield causal((512, 2, 8, 64), torch.float32, grad)
        yield causal((512, 2, 8, 64), torch.bfloat16, grad)
        yield packed([512, 64, 200, 31], 8, 64, grad)


if __name__ == "__main__":
    main("dot_product_attention", comparisons())
