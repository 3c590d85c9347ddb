# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""State dicts as plain tensors only, for file formats that know nothing of quantized ones.

A quantized tensor ``name`` becomes its buffers ``name:buffer0``, ``name:buffer1``, ... and a
description ``name:quantized``: JSON text as uint8. It says what the tensor's pickle says, in the
same order: which function makes it of which arguments. Reading calls only functions and classes
that ``torch.load(weights_only=True)`` may call, too; none of them does more than to hold its
arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ..arguments import received
from ..constants import DType
from .quantized_tensor import QuantizedTensor
from .quantizer import Quantizer
from .safe_globals import safe_globals

__all__ = ["flatten_state_dict", "unflatten_state_dict"]

VERSION = 1
DESCRIPTION = ":quantized"
BUFFER = ":buffer"
_PLAIN = (type(None), bool, int, float, str)


def flatten_state_dict(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the quantized tensors of a state dict by plain ones.

    For example for safetensors: ``save_file(flatten_state_dict(model.state_dict()), path)``.

    Parameters
    ----------
    state_dict : mapping of str to object
        Unchanged. What is no quantized tensor is passed on as it is.

    Returns
    -------
    dict
        The buffers are those of the quantized tensors, not copies, unless they are not contiguous.

    Raises
    ------
    ValueError
        If a name ends like one of the names that this function makes.
    TypeError
        For a quantized tensor, or a quantizer of one, of a class from outside this library.
    """
    flat: dict[str, Any] = {}
    for name, value in state_dict.items():
        _, colon, suffix = str(name).rpartition(":")
        if (colon + suffix).startswith((DESCRIPTION, BUFFER)):
            raise ValueError(
                f"flatten_state_dict: state_dict has the name {name!r}; names ending in "
                f"'{DESCRIPTION}' or '{BUFFER}<n>' are those of parts. Flatten it once only."
            )
        if isinstance(value, QuantizedTensor):
            flat.update(_Writer(name).parts(value.detach()))
        elif isinstance(value, torch.Tensor) and str(name).endswith("_extra_state"):
            flat[name] = value.as_subclass(torch.Tensor)  # also where that is a FreshState
        else:
            flat[name] = value
    return flat


def unflatten_state_dict(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Put the tensors together again that `flatten_state_dict` took apart.

    For example for safetensors: ``model.load_state_dict(unflatten_state_dict(load_file(path)))``.

    Parameters
    ----------
    state_dict : mapping of str to object
        Unchanged. Names without parts are passed on as they are.

    Returns
    -------
    dict
        Quantized tensors equal those of before byte for byte, on the same buffers as the parts.
        Like unpickled ones they may have no quantizer; modules load them all the same.

    Raises
    ------
    ValueError
        If a part is missing, or a description cannot be read; nothing in it is executed.
    """
    result: dict[str, Any] = {}
    for name, value in state_dict.items():
        owner, colon, suffix = str(name).rpartition(":")
        if colon + suffix == DESCRIPTION:
            result[owner] = _Reader(owner, state_dict).tensor(value)
        elif not (colon + suffix).startswith(BUFFER) or owner + DESCRIPTION not in state_dict:
            result[name] = value
    return result


def _names() -> dict[str, Any]:
    """What a description may name."""
    return {known.__name__: known for known in safe_globals()}


class _Writer:
    """The parts of one tensor."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._parts: dict[str, torch.Tensor] = {}

    def parts(self, tensor: Any) -> dict[str, torch.Tensor]:
        """Buffers by name, and the description."""
        text = json.dumps({"version": VERSION, "tensor": self._call(tensor._reduce())})
        description = torch.tensor(list(text.encode()), dtype=torch.uint8)
        return {self._name + DESCRIPTION: description, **self._parts}

    def _call(self, reduced: tuple[Any, ...]) -> Any:
        function, arguments = reduced
        return {"call": self._known(function), "arguments": self._all(arguments)}

    def _all(self, values: Iterable[Any]) -> list[Any]:
        return [self._node(value) for value in values]

    def _known(self, value: Any) -> str:
        name: str = value.__name__
        if _names().get(name) is not value:
            raise TypeError(
                f"flatten_state_dict: state_dict[{self._name!r}] is made with "
                f"{value.__module__}.{name}; only this library's own classes can be described. "
                "Save it with torch.save."
            )
        return name

    def _node(self, value: Any) -> Any:
        """JSON for one argument: a plain value, or an object with one key that says the kind."""
        if isinstance(value, DType):
            return {"DType": int(value)}
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, QuantizedTensor):  # a member of a group
            return self._call(value._reduce())
        if isinstance(value, torch.Tensor):
            part = f"{self._name}{BUFFER}{len(self._parts)}"
            self._parts[part] = value.detach().contiguous()
            return {"buffer": len(self._parts) - 1}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, type):
            return {"class": self._known(value)}
        if isinstance(value, (tuple, list)):
            return {"tuple": self._all(value)}
        if isinstance(value, dict):
            return {"dict": {key: self._node(item) for key, item in value.items()}}
        if isinstance(value, Quantizer):
            self._known(type(value))
            reduced: Any = value.__reduce_ex__(2)
            if reduced[0].__name__ == "__newobj__":  # by its attributes, the default
                return {"call": type(value).__name__, "state": self._node(reduced[2])}
            return self._call(reduced)
        raise TypeError(
            f"flatten_state_dict: state_dict[{self._name!r}] holds {received(value)}; only this "
            "library's own classes can be described. Save it with torch.save."
        )


class _Reader:
    """One tensor from its parts."""

    def __init__(self, name: str, state_dict: Mapping[str, Any]) -> None:
        self._name = name
        self._state_dict = state_dict
        self._readers: dict[str, Callable[[Any], Any]] = {
            "DType": DType,
            "buffer": self._buffer,
            "dtype": self._dtype,
            "class": lambda name: _names()[name],
            "tuple": lambda items: tuple(self._value(item) for item in items),
            "dict": lambda items: {key: self._value(item) for key, item in items.items()},
        }

    def tensor(self, description: Any) -> QuantizedTensor:
        """The quantized tensor of a description."""
        try:
            content = json.loads(bytes(description.tolist()))
            if content["version"] != VERSION:
                raise ValueError(f"version {content['version']}, not {VERSION}")
            tensor = self._value(content["tensor"])
            if not isinstance(tensor, QuantizedTensor):
                raise ValueError(f"it is of {received(tensor)}")
        except Exception as error:
            raise ValueError(
                f"unflatten_state_dict: '{self._name}{DESCRIPTION}' cannot be read "
                f"({type(error).__name__}: {error}); what flatten_state_dict wrote is required, "
                "with all buffers. The file is damaged, or of a newer release."
            ) from error
        return tensor

    def _buffer(self, index: int) -> torch.Tensor:
        value = self._state_dict[f"{self._name}{BUFFER}{int(index)}"]
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"buffer {index} is {received(value)}")
        return value

    def _dtype(self, name: str) -> torch.dtype:
        dtype = getattr(torch, name)
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"torch.{name} is no dtype")
        return dtype

    def _value(self, node: Any) -> Any:
        if isinstance(node, _PLAIN):
            return node
        if "call" in node:
            known = _names()[node["call"]]
            if "state" not in node:
                return known(*(self._value(item) for item in node["arguments"]))
            made = known.__new__(known)
            made.__dict__.update(self._value(node["state"]))
            return made
        (kind, content), *others = node.items()
        if others:
            raise ValueError(f"a value of the kinds {sorted(node)}")
        return self._readers[kind](content)
