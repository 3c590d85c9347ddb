# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
from typing import Any

import torch

def layernorm_fwd(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    ln_out: Any = None,
    quantizer: Any = None,
    otype: int | None = None,
    sm_margin: int = 0,
    zero_centered_gamma: bool = False,
) -> tuple[Any, torch.Tensor, torch.Tensor]: ...
def layernorm_bwd(
    dz: torch.Tensor,
    x: torch.Tensor,
    mu: torch.Tensor,
    rsigma: torch.Tensor,
    gamma: torch.Tensor,
    sm_margin: int = 0,
    zero_centered_gamma: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]: ...
def rmsnorm_fwd(
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    ln_out: Any = None,
    quantizer: Any = None,
    otype: int | None = None,
    sm_margin: int = 0,
    zero_centered_gamma: bool = False,
) -> tuple[Any, None, torch.Tensor]: ...
def rmsnorm_bwd(
    dz: torch.Tensor,
    x: torch.Tensor,
    rsigma: torch.Tensor,
    gamma: torch.Tensor,
    sm_margin: int = 0,
    zero_centered_gamma: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]: ...
def rmsnorm_bwd_add(
    dz: torch.Tensor,
    x: torch.Tensor,
    add: torch.Tensor,
    rsigma: torch.Tensor,
    gamma: torch.Tensor,
    sm_margin: int = 0,
    zero_centered_gamma: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]: ...
