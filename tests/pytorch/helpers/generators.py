# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tensors and shapes tests draw from."""

import torch

# Empty, one row, one column, primes, one beside a power of two, a multiple of 16.
MATRIX_SHAPES = ((0, 16), (1, 16), (7, 1), (13, 31), (33, 65), (64, 32))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def placed(tensor: torch.Tensor, device: torch.device | str | None) -> torch.Tensor:
    """On a device; None: where factory functions make tensors."""
    return tensor.to(torch.empty(0).device if device is None else device)


def random_tensor(
    shape: tuple[int, ...],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> torch.Tensor:
    """Normally distributed values, the same on every device for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    return placed(values.to(dtype), device)


def wide_tensor(
    shape: tuple[int, ...],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> torch.Tensor:
    """Values spread over 24 powers of two, so that FP8 casts saturate, round and underflow."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
    exponents = uniform * 24 - 14
    signs = torch.randint(0, 2, shape, generator=generator, device="cpu") * 2 - 1
    return placed((signs * torch.exp2(exponents)).to(dtype), device)


def special_values(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Zeros of both signs, infinities, NaN, extremes and subnormals of a dtype, one row."""
    info = torch.finfo(dtype)
    step = info.smallest_normal * info.eps
    magnitudes = [0.0, float("inf"), info.max, info.smallest_normal, step, 3 * step, 1.0, 448.0]
    values = [sign * value for value in magnitudes for sign in (1.0, -1.0)]
    return torch.tensor([*values, float("nan")], dtype=torch.float64).to(dtype)


def all_bfloat16_values() -> torch.Tensor:
    """Every bfloat16, NaNs and infinities included: [65536]."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    return bits.view(torch.bfloat16)


def strided_copy(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in a layout that is not contiguous (every second column of a buffer)."""
    buffer = tensor.new_zeros((*tensor.shape[:-1], 2 * tensor.shape[-1]))
    view = buffer[..., ::2]
    view.copy_(tensor)
    return view
