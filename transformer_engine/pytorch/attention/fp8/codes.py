# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""FP8 codes of attention's tensors, and the slots that make them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...constants import DType
from ...cpp_extensions import cast as tex
from ...cpp_extensions.steps import QuantizedCall
from .recipes import BACKWARD_SLOTS, FORWARD_SLOTS

__all__ = ["Codes", "Scale", "Slots"]


@dataclass(frozen=True, slots=True)
class Scale:
    """What codes are read with: ``value = code * scale_inv`` (float32 [1])."""

    scale_inv: Tensor
    dtype: DType

    def encode(self, values: Tensor) -> Codes:
        """The codes of values that came from codes with this scale and were rounded to a dtype of
        at least BF16's precision since: FP8's steps are so much wider that none changes.
        """
        unused = torch.zeros_like(self.scale_inv)
        core = tex.Float8QuantizerCore(1.0 / self.scale_inv, unused, int(self.dtype), True, False)
        data, _, _ = core.quantize(values.contiguous())
        assert data is not None  # the rowwise copy, which is asked for
        return Codes(data, self)


@dataclass(frozen=True, slots=True)
class Codes:
    """One-byte codes and their scale."""

    data: Tensor  # uint8
    scale: Scale

    def values(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """What the codes stand for."""
        wide = tex.dequantize_fp8(self.data, int(self.scale.dtype), scale_inv=self.scale.scale_inv)
        return wide.to(dtype)


class Slots:
    """The quantizers of one call, by tensor; a calibrating call observes, and rounds nothing."""

    def __init__(self, call: QuantizedCall) -> None:
        self.call = call
        self._forward = call.forward_quantizers
        self._backward = call.backward_quantizers

    @classmethod
    def of_quantizers(cls, forward: list[Any], backward: list[Any]) -> Slots:
        """For questions about formats, without a call."""
        slots = cls.__new__(cls)
        slots._forward, slots._backward = forward, backward
        return slots

    def _core(self, tensor: str) -> Any:
        if tensor in FORWARD_SLOTS:
            return self._forward[FORWARD_SLOTS[tensor]]
        return self._backward[BACKWARD_SLOTS[tensor]]

    def is_delayed(self, tensor: str) -> bool:
        """Whether the scale is known before the tensor is."""
        return isinstance(self._core(tensor), tex.Float8QuantizerCore)

    def kind(self, tensor: str) -> tuple[DType, bool]:
        """Of the codes, and whether their scale is known before the tensor is."""
        return self.dtype(tensor), self.is_delayed(tensor)

    def dtype(self, tensor: str) -> DType:
        """Of the codes."""
        return DType.cast(self._core(tensor).fp8_dtype)

    def scale(self, tensor: str) -> Tensor:
        """Delayed scaling's scale of a gradient, float32 [1]."""
        scale: Tensor = self._core(tensor).scale
        return scale

    def raise_amax(self, tensor: str, amax: Tensor) -> None:
        """Observe an amax (float32 [1]) that a kernel has computed; a repeated forward does not."""
        if tensor in BACKWARD_SLOTS or not self.call.is_replay:
            observed = self._core(tensor).amax
            torch.maximum(observed, amax, out=observed)

    def encode(self, tensor: str, values: Tensor) -> Codes:
        """Quantize, with the amax observed where the scale is delayed."""
        core = self._core(tensor)
        data, _, scale_inv = core.quantize(values)
        return Codes(data, Scale(scale_inv, DType.cast(core.fp8_dtype)))

    def observe(self, tensor: str, values: Tensor) -> None:
        """Take the amax of a calibrating call's tensor."""
        self._core(tensor).calibrate(values)


def flat(parts: Sequence[Tensor]) -> Tensor:
    """All elements in one float32 row."""
    return torch.cat([part.reshape(-1).float() for part in parts])


def split_like(row: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """Undo `flat`."""
    pieces = row.split([math.prod(shape) for shape in shapes])
    return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
