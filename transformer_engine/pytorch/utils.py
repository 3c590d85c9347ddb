# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Small functions that clients import from here: device facts, GLU layouts, weak references."""

from __future__ import annotations

import functools
from typing import Any

import torch

from transformer_engine.common.environment import read_switch


@functools.cache
def _compute_capability(device_index: int) -> tuple[int, int]:
    properties = torch.cuda.get_device_properties(device_index)
    return (properties.major, properties.minor)


def get_device_compute_capability() -> tuple[int, int]:
    """CUDA compute capability (major, minor) of the current device; (0, 0) without a GPU."""
    if not torch.cuda.is_available():
        return (0, 0)
    return _compute_capability(torch.cuda.current_device())


@functools.cache
def get_cudnn_version() -> tuple[int, int, int]:
    """cuDNN's (major, minor, patch); (0, 0, 0) when torch has none."""
    version = torch.backends.cudnn.version() or 0
    # cuDNN 9 encodes 10000 * major + 100 * minor + patch; before, 1000 * major + 100 * minor.
    major_step = 10000 if version >= 90000 else 1000
    return (version // major_step, version % major_step // 100, version % 100)


def is_bf16_available(return_reason: bool = False) -> bool | tuple[bool, str]:
    """Whether BF16 can be computed with: on every CPU, and from compute capability 8.0.

    Parameters
    ----------
    return_reason : bool, default False
        Return ``(available, reason)``; the reason is empty when available.
    """
    capability = get_device_compute_capability()
    available = capability == (0, 0) or capability >= (8, 0)
    reason = "" if available else "Device compute capability 8.0 or higher required for BF16."
    return (available, reason) if return_reason else available


def round_up_to_nearest_multiple(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`.

    Raises
    ------
    ValueError
        If `multiple` is not positive.
    """
    if multiple <= 0:
        raise ValueError(
            f"round_up_to_nearest_multiple: multiple is {multiple}; a positive number is required."
        )
    return -(-value // multiple) * multiple


@functools.cache
def _has_nvtx() -> bool:
    return read_switch("NVTE_NVTX_ENABLED") and torch.cuda.is_available()


def nvtx_range_push(msg: str) -> None:
    """Open a named range for profilers, if NVTE_NVTX_ENABLED is 1 and there is a GPU."""
    if _has_nvtx():
        torch.cuda.nvtx.range_push(msg)


def nvtx_range_pop(msg: str | None = None) -> None:
    """Close the innermost range opened by `nvtx_range_push`; `msg` is for the reader."""
    if _has_nvtx():
        torch.cuda.nvtx.range_pop()


def _glu_blocks(function: str, tensor: torch.Tensor, interleave_size: int) -> int:
    rows = tensor.shape[0] if tensor.dim() else 0
    if tensor.dim() == 0 or interleave_size < 1 or rows % (2 * interleave_size):
        raise ValueError(
            f"{function}: tensor has shape {tuple(tensor.shape)} and interleave_size is "
            f"{interleave_size}; the first dimension must be a multiple of 2 * interleave_size."
        )
    return rows // (2 * interleave_size)


def interleave_glu_tensor(tensor: torch.Tensor, interleave_size: int) -> torch.Tensor:
    """Turn [gate rows; linear rows] into alternating blocks of gate and linear rows.

    Parameters
    ----------
    tensor : torch.Tensor
        [2n, ...]: n gate rows, then n linear rows.
    interleave_size : int
        Rows per block; must divide n.

    Returns
    -------
    torch.Tensor
        Contiguous, same shape and dtype. `deinterleave_glu_tensor` is the inverse.
    """
    blocks = _glu_blocks("interleave_glu_tensor", tensor, interleave_size)
    parts = tensor.reshape(2, blocks, interleave_size, *tensor.shape[1:])
    return parts.transpose(0, 1).reshape(tensor.shape).contiguous()


def deinterleave_glu_tensor(tensor: torch.Tensor, interleave_size: int) -> torch.Tensor:
    """Inverse of `interleave_glu_tensor`; same arguments."""
    blocks = _glu_blocks("deinterleave_glu_tensor", tensor, interleave_size)
    parts = tensor.reshape(blocks, 2, interleave_size, *tensor.shape[1:])
    return parts.transpose(0, 1).reshape(tensor.shape).contiguous()


def make_weak_ref(x: Any) -> Any:
    """The same nested structure with tensors that share the memory but do not keep it alive.

    Parameters
    ----------
    x : torch.Tensor, number, str, None, or a tuple, list or dict of those
        Tensors must be plain and strided.

    Returns
    -------
    Any
        Reading a returned tensor after the original's memory was freed is undefined: the caller
        (graph replay) keeps the memory alive by other means.

    Raises
    ------
    TypeError
        For an object of any other type.
    """
    if isinstance(x, torch.Tensor):
        return _alias_without_owning(x)
    if isinstance(x, tuple):
        parts = [make_weak_ref(item) for item in x]
        return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
    if isinstance(x, list):
        return [make_weak_ref(item) for item in x]
    if isinstance(x, dict):
        return {key: make_weak_ref(item) for key, item in x.items()}
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    raise TypeError(
        f"make_weak_ref: x holds a {type(x).__name__}; tensors, numbers, text, None and tuples, "
        "lists and dicts of those are required."
    )


def _alias_without_owning(tensor: torch.Tensor) -> torch.Tensor:
    alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    if tensor.numel() == 0:
        return alias.new_empty(tensor.shape)
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    storage = torch._C._construct_storage_from_data_pointer(
        tensor.data_ptr(), tensor.device, (last + 1) * tensor.element_size()
    )
    return alias.set_(storage, 0, tensor.shape, tensor.stride())
