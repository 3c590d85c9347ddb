# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layer normalization."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..cpp_extensions import steps
from .norm_module import NormModule
from .parameter_init import zeros_init

__all__ = ["LayerNorm"]


class LayerNorm(NormModule):
    """y = (x - mean) / sqrt(var + eps) * weight + bias over the trailing dimensions

    Statistics are FP32, the variance is biased (Ba et al. 2016, arXiv:1607.06450). Squares of the
    centred values have to stay in FP32's range: beyond magnitudes of about 1e18 results are 0 or
    NaN, as those of ``torch.nn.LayerNorm``.

    Parameters
    ----------
    normalized_shape : int or iterable of int
        Trailing dimensions to normalize together.
    eps : float, default 1e-5
        Finite, at least 0.
    sequence_parallel : bool, optional
        Sets the attribute of that name on the parameters; None leaves it out.
    params_dtype : torch.dtype, optional
        Deprecated synonym of `dtype`.
    zero_centered_gamma : bool, default False
        The weight is stored minus one and starts at 0.
    hidden_size : int, optional
        Deprecated synonym of `normalized_shape`.
    device : torch.device or str, default "cuda"
        "cuda" means CUDA when available, else the CPU.
    dtype : torch.dtype, optional
        Of the parameters: torch.float32, bfloat16 or float16; torch's default dtype when None.
    sm_margin : int or dict, default 0
        Accepted; multiprocessors to leave free on a GPU, for each of the passes "forward",
        "backward" and "inference" if it is a dict.
    name : str, optional
        For messages and debugging; ``Layer_<n>`` when None.

    Raises
    ------
    RuntimeError
        When a size or dtype is given twice, or no size at all.
    ValueError, TypeError
        For arguments outside the above.
    """

    _is_rmsnorm = False

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
        self._register("bias", zeros_init)
        self.reset_parameters(defer_init=self.weight.device.type == "meta")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalize.

        Parameters
        ----------
        input : torch.Tensor
            ``[..., *normalized_shape]``, FP32, BF16 or FP16.

        Returns
        -------
        torch.Tensor of the input's shape, in the autocast dtype inside ``torch.autocast``, else
        in the weight's dtype.

        Raises
        ------
        ValueError
            For other trailing dimensions.
        """
        if torch.compiler.is_compiling():
            return self._compiled_forward(input)
        return self._run_step(input)


steps.register_native_forward(LayerNorm.forward)
