# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""A module's recipe state as one pickle-free tensor, for `_extra_state` in state dicts.

Layout of the uint8 tensor, little endian: a header of 64 bytes (magic, version, kind, sizes), then
float32 values ``scale_fwd [n]``, ``amax_history_fwd [length, n]``, ``scale_bwd [m]``,
``amax_history_bwd [length, m]``. The size depends on the recipe and the module, not on how long it
has trained. A module without delayed-scaling state (a recipe without state, or no recipe yet: its
history length is unknown before a region names one) has an empty tensor, which is what checkpoint
code of frameworks takes for "no FP8".

torch.distributed.checkpoint loads tensors in place, hence only into ones of the same size: the
empty one grows then, see fresh_state.py.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import types
import zipfile
from dataclasses import dataclass
from typing import Any

import torch

from .fresh_state import fresh_state

MAGIC = b"TEXSTATE"
VERSION = 1
KIND_STATELESS = 0  # a header alone: written by early releases where now nothing is
KIND_DELAYED = 1
HEADER_BYTES = 64
_HEADER = struct.Struct("<8sHHIIII")  # magic, version, kind, n fwd, length fwd, n bwd, length bwd
_NAMES = ("scale_fwd", "amax_history_fwd", "scale_bwd", "amax_history_bwd")


class ExtraStateError(ValueError, RuntimeError):
    """A state that cannot be read; a RuntimeError too, which loaders have long caught."""


class ExtraStateTypeError(TypeError, RuntimeError):
    """An object that is no state; a RuntimeError too, which loaders have long caught."""


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

    def check(self, owner: str) -> None:
        """Raise ExtraStateError for shapes and values that no training can have left."""
        for scale_name, history_name in (_NAMES[:2], _NAMES[2:]):
            scale, history = getattr(self, scale_name), getattr(self, history_name)
            if scale.dim() != 1 or history.dim() != 2 or history.shape[1] != scale.numel():
                raise ExtraStateError(
                    f"{owner}: state has {scale_name} of shape {tuple(scale.shape)} and "
                    f"{history_name} of shape {tuple(history.shape)}; [n] and [length, n] are "
                    "required. The checkpoint is damaged."
                )
            if history.shape[0] == 0:
                raise ExtraStateError(
                    f"{owner}: state has {history_name} of length 0; at least 1 is required. "
                    "The checkpoint is damaged."
                )
            if not bool(((scale > 0) & scale.isfinite()).all()):
                raise ExtraStateError(
                    f"{owner}: state has {scale_name} {scale.tolist()}; positive finite values "
                    "are required. The checkpoint is damaged."
                )
            # Infinity and NaN are what a step that overflowed leaves.
            if bool((history < 0).any()):
                raise ExtraStateError(
                    f"{owner}: state has {history_name} with minimum "
                    f"{history[history < 0].min().item()}; maxima of magnitudes are required. "
                    "The checkpoint is damaged."
                )


def encode(buffers: DelayedScalingBuffers | None) -> torch.Tensor:
    """The uint8 CPU tensor for a state; empty for None: no delayed-scaling state."""
    if buffers is None:
        return fresh_state()
    length_fwd, n_fwd = buffers.amax_history_fwd.shape
    length_bwd, n_bwd = buffers.amax_history_bwd.shape
    header = _HEADER.pack(MAGIC, VERSION, KIND_DELAYED, n_fwd, length_fwd, n_bwd, length_bwd)
    values = torch.cat([t.detach().to("cpu", torch.float32).reshape(-1) for t in buffers.tensors()])
    state = torch.frombuffer(bytearray(header.ljust(HEADER_BYTES, b"\0")), dtype=torch.uint8)
    return torch.cat([state, values.view(torch.uint8)])


def decode(state: Any, owner: str) -> DelayedScalingBuffers | None:
    """Read what `encode` wrote, or a pickled state of older releases; None when there is none.

    Nothing in a pickle is executed: see `_RestrictedUnpickler`. `owner` opens the messages.

    Raises
    ------
    ExtraStateTypeError
        For another kind of object than None, a uint8 tensor or io.BytesIO.
    ExtraStateError
        For bytes that cannot be read or make no sense.
    """
    if state is None:
        return None
    if isinstance(state, torch.Tensor):
        data = _bytes_of(state, owner)
    elif isinstance(state, io.BytesIO):
        data = state.getvalue()
    else:
        raise ExtraStateTypeError(
            f"{owner}: state is a {type(state).__name__}; a uint8 tensor, io.BytesIO or None is "
            "required. Unsupported checkpoint format. Pass what get_extra_state returned."
        )
    if not data:
        return None
    reader = _decode_native if data.startswith(MAGIC) else _decode_pickle
    buffers = reader(data, owner)
    if buffers is not None:
        buffers.check(owner)
    return buffers


def _bytes_of(state: torch.Tensor, owner: str) -> bytes:
    if state.dtype != torch.uint8 or state.layout != torch.strided:
        raise ExtraStateTypeError(
            f"{owner}: state is a {state.layout} tensor of {state.dtype}; a strided one of "
            "torch.uint8 is required. Pass what get_extra_state returned."
        )
    if state.device.type == "meta":
        raise ExtraStateError(
            f"{owner}: state is on meta; a tensor with values is required. Load the checkpoint "
            "onto the CPU."
        )
    # tolist, not numpy: torch works without it.
    return bytes(state.detach().cpu().reshape(-1).tolist())


def _decode_native(data: bytes, owner: str) -> DelayedScalingBuffers | None:
    if len(data) < HEADER_BYTES:
        raise ExtraStateError(
            f"{owner}: state has {len(data)} bytes; a header of {HEADER_BYTES} is required. "
            "The checkpoint is damaged."
        )
    _, version, kind, n_fwd, length_fwd, n_bwd, length_bwd = _HEADER.unpack_from(data)
    if version != VERSION or kind not in (KIND_STATELESS, KIND_DELAYED):
        raise ExtraStateError(
            f"{owner}: state has version {version} and kind {kind}; this release reads "
            f"version {VERSION}. Load it with the release that wrote it."
        )
    if kind == KIND_STATELESS:
        return None
    shapes = ((n_fwd,), (length_fwd, n_fwd), (n_bwd,), (length_bwd, n_bwd))
    sizes = [math.prod(shape) for shape in shapes]
    if len(data) != HEADER_BYTES + 4 * sum(sizes):
        raise ExtraStateError(
            f"{owner}: state has {len(data)} bytes; its header asks for "
            f"{HEADER_BYTES + 4 * sum(sizes)}. The checkpoint is damaged."
        )
    values = _floats(data[HEADER_BYTES:])
    parts = [part.reshape(shape) for part, shape in zip(values.split(sizes), shapes, strict=True)]
    return DelayedScalingBuffers(*parts)


def _floats(data: bytes) -> torch.Tensor:
    if not data:
        return torch.empty(0)  # frombuffer takes no empty buffer
    return torch.frombuffer(bytearray(data), dtype=torch.float32)


class _Inert:
    """Stands for an object of a pickle whose content is not used, such as a recipe."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        del args, keywords

    def __new__(cls, *args: Any, **keywords: Any) -> _Inert:
        del args, keywords
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        del state


class _RestrictedUnpickler(pickle.Unpickler):
    """Reads tensors and plain containers; recipes become `_Inert`; all else is an error.

    Pickles can run any code; here every name outside the list is refused before it is looked up.
    """

    _PLAIN = frozenset(
        {
            ("collections", "OrderedDict"),
            ("torch._utils", "_rebuild_tensor_v2"),
            *(
                ("torch", f"{kind}Storage")
                for kind in ("Float", "Double", "Half", "BFloat16", "Byte", "Long", "Int", "Bool")
            ),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for a name, or UnpicklingError."""
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return lambda data: torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
        if (module, name) == ("_codecs", "encode"):  # bytes in protocol 2
            return lambda text, _: text.encode("latin1")
        if name == "getattr" and module in ("builtins", "__builtin__"):  # enums of some Pythons
            return _Inert
        if (module, name) in self._PLAIN:
            return super().find_class(module, name)
        if f"{module}.".startswith("transformer_engine.common.recipe."):
            return _Inert
        raise pickle.UnpicklingError(f"{module}.{name} is not part of a recipe state")


def _restricted_load(file: Any, **keywords: Any) -> Any:
    return _RestrictedUnpickler(file, **keywords).load()


# What torch.load takes as pickle_module; it derives its reader from Unpickler.
_RESTRICTED_PICKLE: Any = types.SimpleNamespace(
    __name__="restricted_pickle", Unpickler=_RestrictedUnpickler, load=_restricted_load
)


def _unpickle(data: bytes) -> Any:
    """What pickle.dumps or torch.save wrote, without executing any of it."""
    file = io.BytesIO(data)
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            if any(name.endswith("constants.pkl") for name in archive.namelist()):
                raise pickle.UnpicklingError("it is a TorchScript archive")
    else:
        value = _RestrictedUnpickler(io.BytesIO(data)).load()
        if value != torch.serialization.MAGIC_NUMBER:  # what torch.save wrote before zip files
            return value
    return torch.load(
        io.BytesIO(data), map_location="cpu", weights_only=False, pickle_module=_RESTRICTED_PICKLE
    )


def _decode_pickle(data: bytes, owner: str) -> DelayedScalingBuffers | None:
    """A pickled dict of older releases: scales and histories by name, and things not used here."""
    try:
        state = _unpickle(data)
    except Exception as error:
        raise ExtraStateError(
            f"{owner}: the pickled state of {len(data)} bytes cannot be read ({error}); only "
            "recipes, tensors and plain values are accepted. Save the checkpoint again with a "
            "current release, or leave _extra_state out to start with fresh scales."
        ) from error
    if not isinstance(state, dict) or not any(name in state for name in _NAMES):
        return None  # of a recipe without state
    tensors = []
    for name in _NAMES:
        value = state.get(name)
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            found = "is missing" if name not in state else f"is a {_kind_of(value)}"
            raise ExtraStateError(
                f"{owner}: {name} in the pickled state {found}; tensors of floats are required "
                f"for {', '.join(_NAMES)}. The checkpoint is damaged."
            )
        tensors.append(value.detach().float().cpu())
    return DelayedScalingBuffers(*tensors)


def _kind_of(value: Any) -> str:
    return f"tensor of {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
