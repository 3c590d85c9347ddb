# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""GEMM against torch's.

Layouts by pass: fprop reads both operands with k contiguous, dgrad the weight transposed, wgrad
both. Torch multiplies BF16 with oneDNN and FP32 with MKL; it has neither an FP8 GEMM of that speed
nor FP32 results of BF16 operands, so that FP8 is measured against BF16 and the BF16 weight gradient
into FP32 against torch's FP32 GEMM.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

import transformer_engine  # noqa: F401  (registers transformer_engine_torch)
import transformer_engine_torch as tex
from benchmarks.harness import Case, Comparison, main

E4M3 = 7  # DType.kFloat8E4M3
FPROP, DGRAD, WGRAD = (False, False), (False, True), (True, True)
PASSES = {FPROP: "fprop", DGRAD: "dgrad", WGRAD: "wgrad"}


@dataclass(frozen=True, slots=True)
class Problem:
    """D [m, n] = op(A) [m, k] op(B) [n, k]^T under a pair of layout flags."""

    m: int
    n: int
    k: int
    layout: tuple[bool, bool] = FPROP

    def text(self, types: str) -> str:
        return f"{types} {self.m}x{self.n}x{self.k} {PASSES[self.layout]}"

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def flags(self) -> dict[str, bool]:
        return {"a_transposed": self.layout[0], "b_transposed": self.layout[1]}

    def operands(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Storage of A and B."""
        shapes = [(self.m, self.k), (self.n, self.k)]
        a, b = (
            torch.randn(*(reversed(shape) if transposed else shape)).to(dtype)
            for shape, transposed in zip(shapes, self.layout, strict=True)
        )
        return a, b

    def fp8_operands(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The same as E4M3 codes."""
        a, b = self.operands(torch.float8_e4m3fn)
        return a.view(torch.uint8), b.view(torch.uint8)

    def torch_case(self, dtype: torch.dtype) -> Case:
        """torch.mm on operands of one type."""
        a, b = self.operands(dtype)
        left = a.t() if self.layout[0] else a
        right = b if self.layout[1] else b.t()
        out = torch.empty(self.m, self.n, dtype=dtype)
        name = f"torch.mm {str(dtype)[6:]}"
        return Case(name, partial(torch.mm, left, right, out=out), flops=self.flops)


def fp8(problem: Problem, threads: int = 1, *, goal: float | None = None) -> Comparison:
    """E4M3 operands and scales, BF16 result."""
    a, b = problem.fp8_operands()
    scale_inv = torch.full((1,), 0.5)
    run = partial(
        tex.gemm,
        a,
        b,
        a_dtype=E4M3,
        b_dtype=E4M3,
        a_scale_inv=scale_inv,
        b_scale_inv=scale_inv,
        out=torch.empty(problem.m, problem.n, dtype=torch.bfloat16),
        **problem.flags,
    )
    return Comparison(
        problem.text("fp8 -> bf16"),
        Case("tex.gemm", run, flops=problem.flops),
        [problem.torch_case(torch.bfloat16)],
        threads,
        goal,
    )


def high_precision(
    problem: Problem, dtype: torch.dtype, threads: int = 1, *, goal: float | None = None
) -> Comparison:
    """One type throughout."""
    a, b = problem.operands(dtype)
    out = torch.empty(problem.m, problem.n, dtype=dtype)
    return Comparison(
        problem.text(str(dtype)[6:]),
        Case("tex.gemm", partial(tex.gemm, a, b, out=out, **problem.flags), flops=problem.flops),
        [problem.torch_case(dtype)],
        threads,
        goal,
    )


def weight_gradient_into_float32(problem: Problem, threads: int = 1) -> Comparison:
    """BF16 operands added to an FP32 gradient, against torch.addmm of FP32 operands."""
    a, b = problem.operands(torch.bfloat16)
    out = torch.zeros(problem.m, problem.n)
    ours = partial(tex.gemm, a, b, out=out, accumulate=True, **problem.flags)
    wide_a, wide_b = a.float().t(), b.float()
    wide_out = torch.zeros(problem.m, problem.n)
    baseline = partial(torch.addmm, wide_out, wide_a, wide_b, out=wide_out)
    return Comparison(
        problem.text("bf16 += fp32"),
        Case("tex.gemm", ours, flops=problem.flops),
        [
            Case("torch.addmm float32", baseline, flops=problem.flops),
            problem.torch_case(torch.bfloat16),
        ],
        threads,
        goal=2.0,
    )


def few_rows(rows: int, dtype: torch.dtype | int, *, goal: float) -> Comparison:
    """Decoding: a few tokens times a 4096 x 4096 weight, against F.linear in BF16."""
    problem = Problem(rows, 4096, 4096)
    a, b = problem.operands(torch.bfloat16)
    out = torch.empty(rows, 4096, dtype=torch.bfloat16)
    if dtype == E4M3:
        ours = partial(tex.gemm, *problem.fp8_operands(), a_dtype=E4M3, b_dtype=E4M3, out=out)
    else:
        ours = partial(tex.gemm, a, b, out=out)
    linear = partial(torch.nn.functional.linear, a, b)
    return Comparison(
        problem.text("fp8 few rows" if dtype == E4M3 else "bf16 few rows"),
        Case("tex.gemm", ours, flops=problem.flops),
        [Case("F.linear bfloat16", linear, flops=problem.flops)],
        goal=goal,
    )


def comparisons() -> Iterator[Comparison]:
    """Large, few rows, and small enough for the call itself to count."""
    for layout in PASSES:
        yield fp8(Problem(1024, 1024, 1024, layout), goal=0.9)
    yield fp8(Problem(1024, 1024, 1024), threads=2)
    for layout in PASSES:
        yield high_precision(Problem(1024, 1024, 1024, layout), torch.bfloat16, goal=0.97)
    yield high_precision(Problem(1024, 1024, 1024), torch.float32, goal=1.0)
    yield weight_gradient_into_float32(Problem(1024, 1024, 1024, WGRAD))
    yield weight_gradient_into_float32(Problem(4096, 1024, 512, WGRAD))
    for rows in (1, 2, 3, 4):
        yield few_rows(rows, E4M3, goal=2.0)
        yield few_rows(rows, torch.bfloat16, goal=1.0)
    for rows in (8, 16):
        yield few_rows(rows, E4M3, goal=1.0)
        yield few_rows(rows, torch.bfloat16, goal=1.0)
    for rows in (32, 128):
        yield fp8(Problem(rows, 4096, 4096), goal=0.9)
    for size in (16, 64, 256):
        # No goal: tex.gemm parses 15 arguments, which the modules' native steps do not.
        yield fp8(Problem(size, size, size))
        for dtype in (torch.bfloat16, torch.float32):
            yield high_precision(Problem(size, size, size), dtype)


if __name__ == "__main__":
    main("gemm", comparisons())
