# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Running error analysis: float64 values that carry a bound of their error.

Every operation gives the exact result of the values, and a bound of how far the same operation in
FP32, on operands that are themselves off, may be from it. So a composition of many operations gets
a bound by itself. Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition,
section 3.3 (running error bounds).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .formats import FORMATS
from .tolerances import gamma, rounding_bound, tensor_core_error

UNIT = FORMATS[torch.float32].unit_roundoff
Function = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Bounded:
    """A float64 tensor and the largest absolute error of each element."""

    value: torch.Tensor
    error: torch.Tensor
    is_fp8: bool = False  # an operand in FP8, as it was quantized

    @staticmethod
    def exact(tensor: torch.Tensor) -> Bounded:
        """Values that both sides agree on."""
        value = tensor.detach().double()
        return Bounded(value, torch.zeros_like(value))

    @property
    def magnitude(self) -> torch.Tensor:
        """Largest magnitude the other side may hold."""
        return self.value.abs() + self.error

    @property
    def shape(self) -> torch.Size:
        """Shape of the values."""
        return self.value.shape

    def _computed(self) -> Bounded:
        """The result of one FP32 operation: rounded once."""
        return Bounded(self.value, self.error + UNIT * self.magnitude)

    def __add__(self, other: Bounded) -> Bounded:
        return Bounded(self.value + other.value, self.error + other.error)._computed()

    def __neg__(self) -> Bounded:
        return Bounded(-self.value, self.error)

    def __sub__(self, other: Bounded) -> Bounded:
        return self + -other

    def __mul__(self, other: Bounded) -> Bounded:
        error = self.error * other.magnitude + self.value.abs() * other.error
        return Bounded(self.value * other.value, error)._computed()

    def __matmul__(self, other: Bounded) -> Bounded:
        value = self.value @ other.value
        propagated = self.error @ other.magnitude + self.value.abs() @ other.error
        # Two terms more: the scales of quantized operands.
        magnitudes = self.magnitude @ other.magnitude
        summed = gamma(self.shape[-1] + 3, torch.float32) * magnitudes
        if self.is_fp8 and other.is_fp8:
            summed = summed + tensor_core_error(magnitudes, self.shape[-1])
        return Bounded(value, propagated + summed)

    def sum(self, dim: int, keepdim: bool = False) -> Bounded:
        """Sum over one axis, in any order."""
        rounded = gamma(self.shape[dim] + 1, torch.float32) * self.magnitude
        return Bounded(
            self.value.sum(dim, keepdim=keepdim), (self.error + rounded).sum(dim, keepdim=keepdim)
        )

    def mean(self) -> Bounded:
        """Mean over the last axis, which stays with size 1."""
        total = self.sum(-1, keepdim=True)
        count = max(self.shape[-1], 1)
        return Bounded(total.value / count, total.error / count)._computed()

    def apply(self, function: Function, evaluation: Function | None = None) -> Bounded:
        """An elementwise function.

        Parameters
        ----------
        function : callable
            On float64 tensors. Its variation over the error interval is taken at nine points: all
            there is for a monotone function or one that jumps once inside.
        evaluation : callable, optional
            x -> error of computing the function at x, in units of FP32 roundoff.
        """
        value = function(self.value)
        error = torch.zeros_like(value)
        if self.error.numel() and float(self.error.max()) > 0:
            for step in torch.linspace(-1, 1, 9, dtype=torch.float64):
                error = torch.maximum(
                    error, (function(self.value + step * self.error) - value).abs()
                )
        if evaluation is not None:
            error = error + UNIT * evaluation(self.value)
        return Bounded(value, error)

    def rounded(self, dtype: torch.dtype) -> Bounded:
        """Stored in a dtype, or kept as it is: either is within the bound."""
        return Bounded(self.value, self.error + rounding_bound(self.magnitude, dtype))

    def reshape(self, *shape: int) -> Bounded:
        """As torch."""
        return Bounded(self.value.reshape(*shape), self.error.reshape(*shape))

    @property
    def T(self) -> Bounded:
        """Transpose of a matrix."""
        return Bounded(self.value.T, self.error.T, self.is_fp8)

    def halves(self) -> tuple[Bounded, Bounded]:
        """First and second half of the last axis."""
        half = self.shape[-1] // 2
        first = Bounded(self.value[..., :half], self.error[..., :half])
        return first, Bounded(self.value[..., half:], self.error[..., half:])


def joined(first: Bounded, second: Bounded) -> Bounded:
    """Inverse of `Bounded.halves`."""
    return Bounded(
        torch.cat([first.value, second.value], -1), torch.cat([first.error, second.error], -1)
    )
