# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Optimizer steps, norms and scaling of lists of tensors against torch's foreach and fused ones."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.harness import Case, Comparison, main
from transformer_engine.pytorch.optimizers import (
    FusedAdam,
    FusedSGD,
    multi_tensor_applier,
    multi_tensor_l2norm,
    multi_tensor_scale,
)

Shapes = list[tuple[int, ...]]
LARGE: Shapes = [(1024, 1024)] * 8
BLOCKS: Shapes = [(768, 768), (768,), (3072, 768), (3072,), (768, 3072), (768,)] * 4
SMALL: Shapes = [(64,)] * 200  # what a call costs the host


def parameters(shapes: Shapes, dtype: torch.dtype) -> list[torch.nn.Parameter]:
    """With gradients."""
    params = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
    for param in params:
        param.grad = torch.randn_like(param)
    return params


def step(
    make: Callable[..., Any], shapes: Shapes, dtype: torch.dtype, **options: Any
) -> Callable[[], object]:
    """A step of an optimizer that has states."""
    optimizer = make(parameters(shapes, dtype), lr=1e-5, **options)
    optimizer.step()
    run: Callable[[], object] = optimizer.step
    return run


def adam(name: str, shapes: Shapes, threads: int) -> Comparison:
    """AdamW in FP32."""
    moved = 28 * sum(torch.Size(shape).numel() for shape in shapes)
    of_torch = partial(step, torch.optim.AdamW, shapes, torch.float32)
    return Comparison(
        f"AdamW float32 {name}",
        Case("FusedAdam", step(FusedAdam, shapes, torch.float32), moved),
        [
            Case("torch foreach", of_torch(foreach=True), moved),
            Case("torch fused", of_torch(fused=True), moved),
        ],
        threads,
    )


def adam_bf16(name: str, options: dict[str, Any], bytes_per_element: int) -> Comparison:
    """BF16 parameters, against torch without masters."""
    numel = sum(torch.Size(shape).numel() for shape in LARGE)
    fused = step(torch.optim.AdamW, LARGE, torch.bfloat16, fused=True)
    ours = step(FusedAdam, LARGE, torch.bfloat16, **options)
    return Comparison(
        f"AdamW bfloat16 8x1024x1024 {name}",
        Case("FusedAdam", ours, bytes_per_element * numel),
        [Case("torch fused, BF16 states", fused, 14 * numel)],
    )


def sgd(name: str, shapes: Shapes, threads: int) -> Comparison:
    """Momentum, FP32."""
    moved = 20 * sum(torch.Size(shape).numel() for shape in shapes)
    of_torch = partial(step, torch.optim.SGD, shapes, torch.float32, momentum=0.9)
    return Comparison(
        f"SGD float32 {name}",
        Case("FusedSGD", step(FusedSGD, shapes, torch.float32, momentum=0.9), moved),
        [
            Case("torch foreach", of_torch(foreach=True), moved),
            Case("torch fused", of_torch(fused=True), moved),
        ],
        threads,
    )


def clipping(shapes: Shapes, threads: int) -> Iterator[Comparison]:
    """The norm of all gradients, and their scaling in place."""
    grads = [torch.randn(shape) for shape in shapes]
    flag = torch.zeros(1, dtype=torch.int32)
    moved = 4 * sum(grad.numel() for grad in grads)
    norm = partial(multi_tensor_applier, multi_tensor_l2norm, flag, [grads], False)
    of_torch = partial(torch.nn.utils.get_total_norm, grads, foreach=True)
    cases = [Case("torch foreach", of_torch, moved)]
    yield Comparison("norm float32", Case("multi_tensor_l2norm", norm, moved), cases, threads)
    scale = partial(multi_tensor_applier, multi_tensor_scale, flag, [grads, grads], 1.0)
    cases = [Case("torch foreach", partial(torch._foreach_mul_, grads, 1.0), 2 * moved)]
    yield Comparison("scale float32", Case("multi_tensor_scale", scale, 2 * moved), cases, threads)


def comparisons() -> Iterator[Comparison]:
    """Large and small tensors; those of four transformer blocks' MLPs and projections."""
    for name, shapes in (("8x1024x1024", LARGE), ("4 blocks", BLOCKS), ("200x64", SMALL)):
        yield adam(name, shapes, 1)
        yield sgd(name, shapes, 1)
    yield adam("8x1024x1024", LARGE, 2)
    masters = {"master_weights": True}
    yield adam_bf16("no masters", {}, 22)
    yield adam_bf16("FP32 masters", masters, 28)
    yield adam_bf16("remainders", {**masters, "store_param_remainders": True}, 26)
    few = {"exp_avg_dtype": torch.uint8, "exp_avg_sq_dtype": torch.float16}
    yield adam_bf16("masters, FP8 and FP16 moments", {**masters, **few}, 18)
    yield from clipping(LARGE, 1)


if __name__ == "__main__":
    main("multi_tensor", comparisons())
