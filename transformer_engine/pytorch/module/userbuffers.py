# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The interface of userbuffers: buffers in which GEMMs and collectives of a layer overlap.

There are none in this version. What asks for them is checked and accepted, and collectives run
asynchronously where a product hides them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import torch

from ..arguments import received
from .arguments import check_flags, check_size

__all__ = [
    "UserBufferQuantizationMode",
    "destroy_ub",
    "initialize_ub",
    "is_ub_initialized",
    "using_cublasmp_backend",
]

OVERLAP = "collectives run asynchronously where a product hides them"
_WHO = "initialize_ub"
_BACKENDS = ("nccl", "gloo", "mpi")
_METHODS = ("ring_exchange", "pipeline", "bulk", "external")
_GATHERS = ("qkv_fprop", "fc1_fprop", "proj_dgrad", "fc2_dgrad", "proj_wgrad", "fc2_wgrad")
_LAYERS = (
    *_GATHERS,
    *("proj_fprop", "fc2_fprop", "qkv_dgrad", "fc1_dgrad", "qkv_wgrad", "fc1_wgrad"),
)
_KEYS = (
    *("method", "is_reduce_scatter", "num_sm", "cga_size", "set_sm_margin", "num_splits"),
    *("aggregate", "atomic_gemm", "use_ce", "fp8_buf", "comm_priority", "gemm_priority"),
    "pipeline_rs_overlap_first_gemm",
)


class UserBufferQuantizationMode(Enum):
    """What the buffers hold."""

    NONE = "none"
    FP8 = "fp8"


_is_initialized = False
_told: set[str] = set()


def is_ub_initialized() -> bool:
    """Whether `initialize_ub` was called, and `destroy_ub` not since."""
    return _is_initialized


def using_cublasmp_backend() -> bool:
    """Whether cuBLASMp runs the overlap: never in this version."""
    return False


def tell_once(owner: str, what: str, instead: str, *, stacklevel: int) -> None:
    """A warning, the first time in the process that `what` is asked for."""
    if instead not in _told:
        _told.add(instead)
        warnings.warn(
            f"{owner}: {what}, which this version does not have; {instead}.",
            UserWarning,
            stacklevel=stacklevel + 1,
        )


def initialize_ub(
    shape: Sequence[int],
    tp_size: int,
    use_fp8: bool = False,
    quantization_modes: Sequence[UserBufferQuantizationMode] | None = None,
    dtype: torch.dtype = torch.bfloat16,
    ub_cfgs: Mapping[str, Mapping[str, Any]] | Sequence[Mapping[str, Any]] | None = None,
    bootstrap_backend: str | None = None,
    with_cublasmp: bool = False,
) -> None:
    """Accept what sets up userbuffers; none are made.

    Parameters
    ----------
    shape : sequence of int
        [sequence length times batch, hidden] of the activations.
    tp_size : int
        Number of tensor-parallel ranks.
    use_fp8 : bool, default False
        Deprecated: `quantization_modes` says it.
    quantization_modes : list of UserBufferQuantizationMode, optional
    dtype : torch.dtype, default torch.bfloat16
        Of unquantized activations.
    ub_cfgs : dict of str to dict, or a list of one for each mode, optional
        Settings for each layer and pass, such as ``{"qkv_fprop": {"num_sm": 1}}``.
    bootstrap_backend : {None, "nccl", "gloo", "mpi"}
    with_cublasmp : bool, default False

    Raises
    ------
    RuntimeError
        If called twice without `destroy_ub`, or before torch.distributed is initialised.
    TypeError, ValueError
        For arguments outside the above.
    NotImplementedError
        For `with_cublasmp`.
    """
    global _is_initialized  # of the process
    if _is_initialized:
        raise RuntimeError(f"{_WHO}: userbuffers are initialized already. Call destroy_ub first.")
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise RuntimeError(
            f"{_WHO}: torch.distributed is not initialized. Call init_process_group first."
        )
    check_flags(_WHO, use_fp8=use_fp8, with_cublasmp=with_cublasmp)
    check_size(_WHO, "tp_size", tp_size, minimum=1)
    _check_shape(shape)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{_WHO}: dtype is {received(dtype)}; a torch.dtype is required.")
    if bootstrap_backend is not None and bootstrap_backend not in _BACKENDS:
        raise ValueError(
            f"{_WHO}: bootstrap_backend is {bootstrap_backend!r}; one of {_BACKENDS} or None is "
            "required."
        )
    modes = _checked_modes(quantization_modes, use_fp8)
    _check_configurations(ub_cfgs, modes)
    if with_cublasmp:
        raise NotImplementedError(
            f"{_WHO}: with_cublasmp is True; this version does not use cuBLASMp. Leave it False."
        )
    _is_initialized = True
    tell_once(_WHO, "it asks for userbuffers", OVERLAP, stacklevel=2)


def destroy_ub() -> None:
    """Undo `initialize_ub`; nothing without it."""
    global _is_initialized  # of the process
    _is_initialized = False


def _check_shape(shape: Any) -> None:
    if isinstance(shape, (str, bytes)) or not isinstance(shape, Sequence) or len(shape) != 2:
        raise TypeError(
            f"{_WHO}: shape is {received(shape)}; [rows, hidden] is required: the sequence length "
            "times the batch, and the hidden size."
        )
    for index, size in enumerate(shape):
        check_size(_WHO, f"shape[{index}]", size)


def _checked_modes(modes: Any, use_fp8: bool) -> list[UserBufferQuantizationMode]:
    if modes is None:
        warnings.warn(
            f"{_WHO}: use_fp8 is deprecated; pass quantization_modes.",
            DeprecationWarning,
            stacklevel=3,
        )
        return [UserBufferQuantizationMode.FP8 if use_fp8 else UserBufferQuantizationMode.NONE]
    is_list = isinstance(modes, (list, tuple)) and len(modes) > 0
    if not is_list or not all(isinstance(mode, UserBufferQuantizationMode) for mode in modes):
        raise TypeError(
            f"{_WHO}: quantization_modes is {received(modes)}; a list of "
            "UserBufferQuantizationMode is required."
        )
    return list(modes)


def _check_configurations(configurations: Any, modes: list[UserBufferQuantizationMode]) -> None:
    if configurations is None:
        return
    several = configurations
    if isinstance(configurations, Mapping):
        several = [configurations] * len(modes)
    if not isinstance(several, (list, tuple)) or not all(isinstance(c, Mapping) for c in several):
        raise TypeError(
            f"{_WHO}: ub_cfgs is {received(configurations)}; a dict of layer -> settings, or a "
            "list of one for each mode, is required."
        )
    if len(several) != len(modes):
        raise ValueError(
            f"{_WHO}: ub_cfgs has {len(several)} configurations; {len(modes)} are required, one "
            "for each of quantization_modes."
        )
    for mode, configuration in zip(modes, several, strict=True):
        for layer, settings in configuration.items():
            _check_layer(layer, settings, mode)


def _check_layer(layer: Any, settings: Any, mode: UserBufferQuantizationMode) -> None:
    name = f"ub_cfgs[{layer!r}]"
    if layer not in _LAYERS:
        raise ValueError(f"{_WHO}: {name} is no layer; one of {_LAYERS} is required.")
    if not isinstance(settings, Mapping):
        raise TypeError(f"{_WHO}: {name} is {received(settings)}; a dict is required.")
    unknown = [key for key in settings if key not in _KEYS]
    if unknown:
        raise ValueError(f"{_WHO}: {name} has {unknown}; the keys of {_KEYS} are allowed.")
    method = settings.get("method")
    if method is not None and method not in _METHODS:
        raise ValueError(f"{_WHO}: {name}['method'] is {method!r}; one of {_METHODS} is required.")
    if method == "pipeline" and layer in _GATHERS:
        raise ValueError(
            f"{_WHO}: {name}['method'] is 'pipeline', which is for reduce-scatters; the input of "
            "this product is gathered. Use 'ring_exchange'."
        )
    if settings.get("atomic_gemm") and mode is not UserBufferQuantizationMode.FP8:
        raise ValueError(
            f"{_WHO}: {name}['atomic_gemm'] is set for unquantized buffers; "
            "UserBufferQuantizationMode.FP8 is required for it."
        )
