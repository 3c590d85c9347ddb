# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What LayerNorm and RMSNorm share."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any, ClassVar

import torch

from ..cpp_extensions import steps
from . import compiled, composed
from .arguments import check_eps, check_flags, check_margin, check_shape, parameter_dtype
from .base import TransformerEngineBaseModule, resolve_device
from .parameter_init import InitMethod, ones_init, zeros_init


class NormModule(TransformerEngineBaseModule):
    """Parameters and step of a normalization module; see `LayerNorm` for the arguments."""

    _step_attributes = frozenset({"eps", "zero_centered_gamma", "normalized_shape"})
    num_gemms = 0
    _is_rmsnorm: ClassVar[bool]
    weight: torch.nn.Parameter
    bias: torch.nn.Parameter

    # No quantized operand, hence no recipe state and no `_extra_state` key.
    get_extra_state = torch.nn.Module.get_extra_state
    set_extra_state = torch.nn.Module.set_extra_state

    def __init__(  # noqa: PLR0913  # public signature
        self,
        normalized_shape: Iterable[int] | int | None,
        eps: float,
        sequence_parallel: bool | None,
        params_dtype: torch.dtype | None,
        zero_centered_gamma: bool,
        hidden_size: int | None,
        *,
        device: torch.device | str,
        dtype: torch.dtype | None,
        sm_margin: int | dict[str, int],
        name: str | None,
    ) -> None:
        super().__init__(name)
        owner = type(self).__name__
        shape = _one_of(owner, "normalized_shape", normalized_shape, "hidden_size", hidden_size)
        if shape is None:
            raise RuntimeError(
                f"{owner}: neither normalized_shape nor hidden_size is given; normalized_shape is "
                "required."
            )
        name_of_dtype = "dtype" if params_dtype is None else "params_dtype"
        dtype = _one_of(owner, "dtype", dtype, "params_dtype", params_dtype)
        name_of_shape = "normalized_shape" if hidden_size is None else "hidden_size"
        self.normalized_shape = check_shape(owner, name_of_shape, shape)
        check_eps(owner, eps)
        check_flags(
            owner, zero_centered_gamma=zero_centered_gamma, sequence_parallel=sequence_parallel
        )
        self.eps = eps
        self.zero_centered_gamma = zero_centered_gamma
        check_margin(owner, sm_margin)
        self.sm_margin = sm_margin
        self._marks_sequence_parallel = sequence_parallel
        self._placement = (
            resolve_device(device, owner),
            parameter_dtype(owner, name_of_dtype, dtype),
        )
        self._register("weight", zeros_init if zero_centered_gamma else ones_init)

    def _register(self, name: str, init_fn: InitMethod) -> None:
        device, dtype = self._placement
        parameter = torch.nn.Parameter(
            torch.empty(self.normalized_shape, device=device, dtype=dtype)
        )
        if self._marks_sequence_parallel is not None:
            parameter.sequence_parallel = self._marks_sequence_parallel  # type: ignore[attr-defined]
        self.register_parameter(name, parameter, init_fn=init_fn)

    def _build_step(self) -> Any:
        norm = steps.NormSpec(
            label=f"{type(self).__name__}.forward",
            is_rmsnorm=self._is_rmsnorm,
            weight_name="weight",
            bias_name="bias",
            hidden=math.prod(self.normalized_shape),
            epsilon=float(self.eps),
            zero_centered_gamma=bool(self.zero_centered_gamma),
        )
        return steps.NormStep(norm=norm, normalized_shape=list(self.normalized_shape))

    def _compiled_forward(self, input: torch.Tensor) -> torch.Tensor:
        """`forward` while torch.compile traces; see `compiled`."""
        if compiled.is_composed():
            return self._composed_forward(input)
        names = ["weight"] if self._is_rmsnorm else ["weight", "bias"]
        output, _ = compiled.run(self, input, names, out_shape=input.shape, dtype=self.weight.dtype)
        return output

    def _composed_forward(self, input: torch.Tensor) -> torch.Tensor:
        """`forward` of torch's operators; see `composed`."""
        label = f"{type(self).__name__}.forward"
        composed.check_device(label, input, "input", "weight", self.weight)
        shape = tuple(input.shape[max(input.dim() - len(self.normalized_shape), 0) :])
        if shape != self.normalized_shape:
            raise ValueError(
                f"{label}: input has shape {tuple(input.shape)}; trailing "
                f"dimensions {self.normalized_shape} (normalized_shape) are required."
            )
        return composed.norm(
            input,
            self.weight,
            None if self._is_rmsnorm else self.bias,
            eps=self.eps,
            zero_centered_gamma=self.zero_centered_gamma,
            dtype=composed.amp_dtype(input) or self.weight.dtype,
        )

    def extra_repr(self) -> str:
        shape = self.normalized_shape
        return (
            f"{shape[0] if len(shape) == 1 else shape}, eps={self.eps}, "
            f"zero_centered_gamma={self.zero_centered_gamma}"
        )


def _one_of(owner: str, name: str, value: Any, old_name: str, old_value: Any) -> Any:
    """The value under its current or its deprecated name."""
    if old_value is None:
        return value
    if value is not None:
        raise RuntimeError(
            f"{owner}: both {name} and its deprecated synonym {old_name} are given; one is "
            f"required. Use {name}."
        )
    warnings.warn(
        f"{owner}: {old_name} is deprecated; use {name}.", DeprecationWarning, stacklevel=4
    )
    return old_value
