# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""FP8 casts against torch operators of equal or similar traffic.

The promise is about bandwidth: a BF16 -> E4M3 quantize with amax moves 3 bytes per element, torch's
BF16 `copy_` 4; the ratio compares bytes per second. Two threads are compared with one thread of the
copy: 1.5 times what is promised of one thread. Buffers are warm and reused, in huge pages where
the system has them, as the library allocates.
"""

import dataclasses
from collections.abc import Iterator

import torch

import transformer_engine  # noqa: F401  (registers transformer_engine_torch)
import transformer_engine_torch as tex
from benchmarks.harness import Case, Comparison, main, warm_empty

E4M3 = 7  # DType.kFloat8E4M3
DTYPE_OF = {torch.float32: 4, torch.float16: 5, torch.bfloat16: 6}  # values of DType


def _copy(source: torch.Tensor) -> Case:
    target = warm_empty(*source.shape, dtype=source.dtype)
    moved = 2 * source.numel() * source.element_size()
    return Case(f"torch copy_ {str(source.dtype)[6:]}", lambda: target.copy_(source), moved)


def quantize(
    rows: int, cols: int, dtype: torch.dtype, threads: int, *, goal: float | None = None
) -> Comparison:
    """Row-wise codes with amax, against torch's copy and its own cast (without amax)."""
    x = warm_empty(rows, cols, dtype=dtype).copy_(torch.randn(rows, cols))
    data = warm_empty(rows, cols, dtype=torch.uint8)
    scale, scale_inv, amax = torch.full((1,), 1.7), torch.empty(1), torch.zeros(1)
    as_fp8 = torch.empty(rows, cols, dtype=torch.float8_e4m3fn)
    moved = x.numel() * (x.element_size() + 1)

    def ours() -> None:
        tex.quantize_fp8(x, E4M3, scale=scale, data=data, scale_inv=scale_inv, amax=amax)

    baselines = [_copy(x), Case("torch copy_ to float8 (no amax)", lambda: as_fp8.copy_(x), moved)]
    if threads > 1:
        one_thread = [
            dataclasses.replace(baselines[0], name="torch copy_ on one thread", threads=1),
            Case("quantize_fp8 on one thread", ours, moved, threads=1),
        ]
        baselines = one_thread + baselines
    return Comparison(
        f"quantize {str(dtype)[6:]} -> e4m3 + amax, {rows}x{cols}",
        Case("quantize_fp8", ours, moved),
        baselines,
        threads,
        goal,
    )


def quantize_transpose(rows: int, cols: int, rowwise: bool, threads: int) -> Comparison:
    """Transposed codes, alone or beside the row-wise ones, from one pass over the input."""
    x = torch.randn(rows, cols, dtype=torch.bfloat16)
    data = torch.empty(rows, cols, dtype=torch.uint8) if rowwise else None
    data_transpose = torch.empty(cols, rows, dtype=torch.uint8)
    amax = torch.zeros(1)

    def ours() -> None:
        tex.quantize_fp8(x, E4M3, data=data, data_transpose=data_transpose, amax=amax)

    kind = "both" if rowwise else "transposed"
    return Comparison(
        f"quantize bfloat16 -> e4m3 {kind} + amax, {rows}x{cols}",
        Case("quantize_fp8", ours, x.numel() * (4 if rowwise else 3)),
        [_copy(x)],
        threads,
    )


def dequantize(rows: int, cols: int, dtype: torch.dtype, threads: int, exact: bool) -> Comparison:
    """Codes to high precision; `exact` has no scale."""
    data = torch.randint(0, 0x7F, (rows, cols), dtype=torch.uint8)
    output = torch.empty(rows, cols, dtype=dtype)
    scale_inv = None if exact else torch.full((1,), 0.6)

    def ours() -> None:
        tex.dequantize_fp8(
            data, E4M3, scale_inv=scale_inv, output_dtype=DTYPE_OF[dtype], output=output
        )

    as_fp8 = data.view(torch.float8_e4m3fn)
    moved = data.numel() * (1 + output.element_size())
    return Comparison(
        f"dequantize e4m3 -> {str(dtype)[6:]}{'' if exact else ' * scale_inv'}, {rows}x{cols}",
        Case("dequantize_fp8", ours, moved),
        [_copy(output), Case("torch copy_ from float8", lambda: output.copy_(as_fp8), moved)],
        threads,
    )


def transpose(rows: int, cols: int, threads: int) -> Comparison:
    """Bytes, against torch's transposed copy."""
    data = torch.randint(0, 255, (rows, cols), dtype=torch.uint8)
    output = torch.empty(cols, rows, dtype=torch.uint8)
    return Comparison(
        f"transpose_bytes {rows}x{cols}",
        Case("transpose_bytes", lambda: tex.transpose_bytes(data, output=output), 2 * data.numel()),
        [Case("torch t().copy_", lambda: output.copy_(data.t()), 2 * data.numel()), _copy(data)],
        threads,
    )


def amax(rows: int, cols: int, dtype: torch.dtype, threads: int) -> Comparison:
    """max |x|."""
    x = torch.randn(rows, cols, dtype=torch.float32).to(dtype)
    result = torch.zeros(1)
    moved = x.numel() * x.element_size()
    return Comparison(
        f"amax {str(dtype)[6:]} {rows}x{cols}",
        Case("compute_amax", lambda: tex.compute_amax(x, amax=result), moved),
        [Case("torch.aminmax", lambda: torch.aminmax(x), moved)],
        threads,
    )


def delayed_update(length: int, tensors: int) -> Comparison:
    """The update at the end of a step, against its main part in torch."""
    history = torch.rand(length, tensors) + 0.5
    scale, reduced = torch.ones(tensors), torch.rand(tensors) + 0.5

    def ours() -> None:
        tex.delayed_scaling_update(history, scale, reduced_amax=reduced, fp8_max=448.0)

    def baseline() -> None:
        history.copy_(history.roll(-1, 0))
        scale.copy_(448.0 / history.amax(0))

    return Comparison(
        f"delayed_scaling_update [{length}, {tensors}]",
        Case("delayed_scaling_update", ours),
        [Case("torch roll, amax, divide", baseline)],
    )


def comparisons() -> Iterator[Comparison]:
    """All problems; 4096 x 8192 BF16 are 64 MiB."""
    yield quantize(4096, 8192, torch.bfloat16, 1, goal=0.9)
    yield quantize(4096, 8192, torch.bfloat16, 2, goal=1.5 * 0.9)
    for rows, cols in ((1024, 1024), (64, 1024)):
        yield quantize(rows, cols, torch.bfloat16, 1)
    for dtype in (torch.float32, torch.float16):
        yield quantize(4096, 4096, dtype, 1)
    for threads in (1, 2):
        for rowwise in (False, True):
            yield quantize_transpose(4096, 4096, rowwise, threads)
    yield quantize_transpose(1024, 1024, True, 1)
    for dtype in (torch.bfloat16, torch.float32):
        for exact in (True, False):
            yield dequantize(4096, 4096, dtype, 1, exact)
    yield dequantize(1024, 1024, torch.bfloat16, 1, True)
    for size in (4096, 1024):
        yield transpose(size, size, 1)
    for dtype in (torch.bfloat16, torch.float32):
        yield amax(4096, 4096, dtype, 1)
    yield delayed_update(1024, 300)


if __name__ == "__main__":
    main("cast", comparisons())
