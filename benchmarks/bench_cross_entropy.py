# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cross entropy against torch's, of logits in FP32."""

from collections.abc import Iterator

import torch

import transformer_engine.pytorch as te
from benchmarks.harness import Case, Comparison, main


def losses(rows: int, vocabulary: int, dtype: torch.dtype, with_backward: bool) -> Comparison:
    """Losses of each row; their sum's gradient too when asked for."""
    logits = torch.randn(1, rows, vocabulary).to(dtype).requires_grad_(with_backward)
    target = torch.randint(0, vocabulary, (1, rows))
    grad = torch.ones(1, rows)

    def finish(loss: torch.Tensor) -> None:
        if with_backward:
            torch.autograd.grad(loss, logits, grad.view(loss.shape))

    def formula() -> None:
        flat = logits.float().view(rows, vocabulary)
        finish(torch.nn.functional.cross_entropy(flat, target.view(-1), reduction="none"))

    moved = (3 if with_backward else 1) * logits.numel() * logits.element_size()
    passes = "forward, backward" if with_backward else "forward"
    return Comparison(
        f"cross entropy {str(dtype)[6:]} {rows} x {vocabulary} {passes}",
        Case(
            "parallel_cross_entropy",
            lambda: finish(te.parallel_cross_entropy(logits, target)),
            moved,
        ),
        [Case("torch", formula, moved)],
    )


def comparisons() -> Iterator[Comparison]:
    """All problems."""
    for rows, vocabulary in ((16, 1000), (512, 32000)):
        for dtype in (torch.float32, torch.bfloat16):
            for with_backward in (False, True):
                yield losses(rows, vocabulary, dtype, with_backward)


if __name__ == "__main__":
    main("cross_entropy", comparisons())
