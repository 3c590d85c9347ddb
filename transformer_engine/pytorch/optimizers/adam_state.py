# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Storage of an optimizer's state in fewer bits.

FP16 and FP8 (E4M3, as uint8) hold value / scale with one FP32 scale per tensor, which brings the
largest magnitude to R: 32752 for FP16, half of its largest number, 448 for FP8. A tensor of zeros,
or one that is not finite, has scale 1.
"""

from __future__ import annotations

from typing import Any

import torch

from ..constants import DType
from ..cpp_extensions import cast as tex
from ..cpp_extensions.multi_tensor import multi_tensor_scale_tensor
from .multi_tensor_apply import local_tensor

_CHUNK_SIZE = 65536
SCALED_MAX = {torch.float16: 32752.0, torch.uint8: 448.0}


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor without gaps, whatever the order of its axes."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def store_scaled(
    values: torch.Tensor, stored: torch.Tensor, scale: torch.Tensor, flag: torch.Tensor
) -> None:
    """Write FP32 values, of the layout of `stored`, to it and to its scale, float32 [1]."""
    source, target = flat(values), flat(stored)
    amax = tex.compute_amax(source)
    inverse = tex.compute_scale_from_amax(amax, fp8_max=SCALED_MAX[stored.dtype], scale_inv=scale)
    if stored.dtype is torch.uint8:
        tex.quantize_fp8(source, int(DType.kFloat8E4M3), scale=inverse, data=target)
    else:
        # Whether values are finite is not asked: the flag is thrown away.
        multi_tensor_scale_tensor(_CHUNK_SIZE, flag.clone(), [[source], [target]], inverse)


def store_with_scale(
    values: torch.Tensor, stored: torch.Tensor, scale: torch.Tensor, flag: torch.Tensor
) -> bool:
    """Write FP32 values to `stored` by the scale that they had.

    Returns
    -------
    bool
        Whether `stored` now stands for exactly these values; False for a scale they never had.
    """
    source, target, inverse = flat(values), flat(stored), scale.reciprocal()
    if stored.dtype is torch.uint8:
        tex.quantize_fp8(source, int(DType.kFloat8E4M3), scale=inverse, data=target)
    else:
        multi_tensor_scale_tensor(_CHUNK_SIZE, flag.clone(), [[source], [target]], inverse)
    return torch.equal(flat(load_scaled(stored, scale, flag)), source)


def load_scaled(stored: torch.Tensor, scale: torch.Tensor, flag: torch.Tensor) -> torch.Tensor:
    """The values of a stored tensor, FP32, in its layout."""
    values = torch.empty_like(stored, dtype=torch.float32)
    source, target = flat(stored), flat(values)
    if stored.dtype is torch.uint8:
        tex.dequantize_fp8(source, int(DType.kFloat8E4M3), scale_inv=scale, output=target)
    else:
        multi_tensor_scale_tensor(_CHUNK_SIZE, flag.clone(), [[source], [target]], scale)
    return values


def split_master(master: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """FP32 numbers as their BF16 neighbours and int16 remainders, as the native step keeps them."""
    bits = torch.where(master.isnan(), torch.nan, master).view(torch.int32)
    low = (bits & 0xFFFF).to(torch.int16)
    high = ((bits + ((bits & 0x8000) << 1)) >> 16).to(torch.int16)
    return high.view(torch.bfloat16), low


def join_master(rounded: torch.Tensor, remainder: torch.Tensor) -> torch.Tensor:
    """What `split_master` divided, exactly."""
    low = remainder.to(torch.int32)
    high = rounded.detach().view(torch.int16).to(torch.int32)
    return ((high << 16) - ((low & 0x8000) << 1) | (low & 0xFFFF)).view(torch.float32)


def wrapped_like(param: Any, local: torch.Tensor) -> torch.Tensor:
    """This rank's part of a state as a DTensor where the parameter is one."""
    if local_tensor(param) is param:
        return local
    # The class of a parameter may be a subclass that torch makes.
    dtensor: Any = next(c for c in type(param).__mro__ if c.__name__ == "DTensor")
    return dtensor.from_local(
        local,
        param.device_mesh,
        param.placements,
        run_check=False,
        shape=param.shape,
        stride=param.stride(),
    )
