# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""A module's recipe state as one pickle-free tensor, for `_extra_state` in state dicts.

Layout of the uint8 tensor, little endian: a header of 64 bytes (magic, version, kind, sizes), then
float32 values ``scale_fwd [n]``, ``amax_history_fwd [length, n]``, ``scale_bwd [m]``,
``amax_history_bwd [length, m]``. A recipe without state has the header alone. The size depends on
the recipe and the module, not on how long it has trained.
"""

from __future__ import annotations

import io
import pickle
import struct
from dataclasses import dataclass
from typing import Any

import torch

from transformer_engine.common import recipe as recipes

MAGIC = b"TEXSTATE"
VERSION = 1
KIND_STATELESS = 0
KIND_DELAYED = 1
HEADER_BYTES = 64
_HEADER = struct.Struct("<8sHHIIII")  # magic, version, kind, n fwd, length fwd, n bwd, length bwd


@dataclass
class DelayedScalingBuffers:
    """Scales [n] and histories [length, n] of both directions, float32 on the CPU."""

    scale_fwd: torch.Tensor
    amax_history_fwd: torch.Tensor
    scale_bwd: torch.Tensor
    amax_history_bwd: torch.Tensor

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The four tensors in the order they are stored."""
        return (self.scale_fwd, self.amax_history_fwd, self.scale_bwd, self.amax_history_bwd)


def encode(buffers: DelayedScalingBuffers | None) -> torch.Tensor:
    """The uint8 CPU tensor for a state; None for a recipe without state or a fresh module."""
    if buffers is None:
        header = _HEADER.pack(MAGIC, VERSION, KIND_STATELESS, 0, 0, 0, 0)
        return torch.frombuffer(bytearray(header.ljust(HEADER_BYTES, b"\0")), dtype=torch.uint8)
    length_fwd, n_fwd = buffers.amax_history_fwd.shape
    length_bwd, n_bwd = buffers.amax_history_bwd.shape
    header = _HEADER.pack(MAGIC, VERSION, KIND_DELAYED, n_fwd, length_fwd, n_bwd, length_bwd)
    values = torch.cat([t.detach().to("cpu", torch.float32).reshape(-1) for t in buffers.tensors()])
    state = torch.frombuffer(bytearray(header.ljust(HEADER_BYTES, b"\0")), dtype=torch.uint8)
    return torch.cat([state, values.view(torch.uint8)])


def decode(state: Any) -> DelayedScalingBuffers | None:
    """Read what `encode` wrote, or a pickled state of older releases; None when there is none.

    Raises
    ------
    RuntimeError
        For an object, version or pickle that cannot be read.
    """
    if state is None:
        return None
    if isinstance(state, torch.Tensor):
        if state.numel() == 0:
            return None
        # tolist, not numpy: torch works without it.
        data = bytes(state.detach().cpu().contiguous().view(torch.uint8).tolist())
    elif isinstance(state, io.BytesIO):
        data = state.getvalue()
    else:
        raise RuntimeError(
            f"set_extra_state: state is a {type(state).__name__}; Unsupported checkpoint format. "
            "A uint8 tensor or io.BytesIO is required."
        )
    return _decode_native(data) if data.startswith(MAGIC) else _decode_pickle(data)


def _decode_native(data: bytes) -> DelayedScalingBuffers | None:
    _, version, kind, n_fwd, length_fwd, n_bwd, length_bwd = _HEADER.unpack_from(data)
    if version != VERSION or kind not in (KIND_STATELESS, KIND_DELAYED):
        raise RuntimeError(
            f"set_extra_state: state has version {version} and kind {kind}; this release reads "
            f"version {VERSION}. Load it with the release that wrote it."
        )
    if kind == KIND_STATELESS:
        return None
    shapes = ((n_fwd,), (length_fwd, n_fwd), (n_bwd,), (length_bwd, n_bwd))
    sizes = [torch.Size(shape).numel() for shape in shapes]
    if len(data) != HEADER_BYTES + 4 * sum(sizes):
        raise RuntimeError(
            f"set_extra_state: state has {len(data)} bytes; its header asks for "
            f"{HEADER_BYTES + 4 * sum(sizes)}. The checkpoint is damaged."
        )
    values = torch.frombuffer(bytearray(data[HEADER_BYTES:]), dtype=torch.float32)
    parts = [part.reshape(shape) for part, shape in zip(values.split(sizes), shapes, strict=True)]
    return DelayedScalingBuffers(*parts)


class _RestrictedUnpickler(pickle.Unpickler):
    """Reads tensors, recipes and plain containers, and nothing else.

    Pickles can run any code; here every name outside the list is an error.
    """

    _PLAIN = frozenset(
        {
            ("collections", "OrderedDict"),
            ("torch._utils", "_rebuild_tensor_v2"),
            ("torch", "FloatStorage"),
            ("torch.serialization", "_get_layout"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return lambda data: torch.load(io.BytesIO(data), weights_only=True)
        if (module, name) in self._PLAIN:
            return super().find_class(module, name)
        if module.startswith("transformer_engine.common.recipe"):
            candidate = getattr(recipes, name, None)
            if isinstance(candidate, type):
                return candidate
        raise pickle.UnpicklingError(f"{module}.{name} is not part of a recipe state")


def _decode_pickle(data: bytes) -> DelayedScalingBuffers | None:
    """A pickled dict of older releases: recipe, scales and histories by name."""
    try:
        state = _RestrictedUnpickler(io.BytesIO(data)).load()
    except Exception as error:
        raise RuntimeError(
            f"set_extra_state: the pickled state cannot be read ({error}); only recipes, tensors "
            "and plain values are accepted. Save the checkpoint again with a current release."
        ) from error
    names = ("scale_fwd", "amax_history_fwd", "scale_bwd", "amax_history_bwd")
    if not isinstance(state, dict) or not all(name in state for name in names):
        return None
    return DelayedScalingBuffers(*(state[name].float().cpu() for name in names))
