# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Root mean square normalization."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..cpp_extensions import steps
from .norm_module import NormModule

__all__ = ["RMSNorm"]


class RMSNorm(NormModule):
    """y = x / sqrt(mean(x^2) + eps) * weight over the trailing dimensions

    Statistics are FP32 (Zhang and Sennrich 2019, arXiv:1910.07467); as with `LayerNorm`,
    magnitudes beyond about 1e18 leave their range. There is no bias.

    Parameters
    ----------
    normalized_shape : int or iterable of int
        The trailing dimensions over which the mean square is taken.
    eps : float, default 1e-5
        Added to the mean square; finite, at least 0.
    zero_centered_gamma : bool, default False
        Store the weight minus one: it starts at 0 instead of 1.
    device : torch.device or str, default "cuda"
        Of the weight; "cuda" means the CPU where there is no CUDA.
    dtype : torch.dtype, optional
        Of the weight, as for `LayerNorm`.
    sequence_parallel : bool, optional
        Attribute to set on the weight; not set when None.
    sm_margin : int or dict, default 0
        Accepted, as by `LayerNorm`.
    params_dtype, hidden_size : optional
        Deprecated synonyms of `dtype` and `normalized_shape`.
    name : str, optional
        For messages and debugging.

    Raises
    ------
    RuntimeError, ValueError, TypeError
        As `LayerNorm`.
    """

    _is_rmsnorm = True

    def __init__(  # noqa: PLR0913  # public signature
        self,
        normalized_shape: Iterable[int] | int | None = None,
        eps: float = 1e-5,
        sequence_parallel: bool | None = None,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        hidden_size: int | None = None,
        *,
        device: torch.device | str = "cuda",
        dtype: torch.dtype | None = None,
        sm_margin: int | dict[str, int] = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(
            normalized_shape,
            eps,
            sequence_parallel,
            params_dtype,
            zero_centered_gamma,
            hidden_size,
            device=device,
            dtype=dtype,
            sm_margin=sm_margin,
            name=name,
        )
        self.reset_parameters(defer_init=self.weight.device.type == "meta")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalize; see `LayerNorm.forward`."""
        if torch.compiler.is_compiling():
            return self._compiled_forward(input)
        return self._run_step(input)


steps.register_native_forward(RMSNorm.forward)
