# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence

from torch import Tensor

_Lists = Sequence[Sequence[Tensor]]

def multi_tensor_scale(
    chunk_size: int, noop_flag: Tensor, tensor_lists: _Lists, scale: float
) -> None: ...
def multi_tensor_scale_tensor(
    chunk_size: int, noop_flag: Tensor, tensor_lists: _Lists, scale: Tensor
) -> None: ...
def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: _Lists, per_tensor: bool | None = None
) -> tuple[Tensor, Tensor]: ...
def multi_tensor_unscale_l2norm(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: _Lists,
    inv_scale: Tensor,
    per_tensor: bool | None = None,
) -> tuple[Tensor, Tensor]: ...
def multi_tensor_adam(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: _Lists,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: bool,
    weight_decay: float,
) -> None: ...
def multi_tensor_adam_param_remainder(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: _Lists,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: bool,
    weight_decay: float,
) -> None: ...
def multi_tensor_adam_fp8(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: _Lists,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: bool,
    weight_decay: float,
    fp8_dtype: int,
) -> None: ...
def multi_tensor_adam_capturable(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: _Lists,
    lr: Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: Tensor,
    mode: int,
    bias_correction: bool,
    weight_decay: float,
    inv_scale: Tensor,
) -> None: ...
def multi_tensor_adam_capturable_master(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: _Lists,
    lr: Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: Tensor,
    mode: int,
    bias_correction: bool,
    weight_decay: float,
    inv_scale: Tensor,
) -> None: ...
def multi_tensor_sgd(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: _Lists,
    weight_decay: float,
    momentum: float,
    dampening: float,
    lr: float,
    nesterov: bool,
    first_run: bool,
    wd_after_momentum: bool,
    scale: float,
) -> None: ...
def multi_tensor_compute_scale_and_scale_inv(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: _Lists,
    max_fp8: float,
    force_pow_2_scales: bool,
    epsilon: float,
) -> None: ...
def multi_tensor_compute_scale_inv_e8m0(
    chunk_size: int, noop_flag: Tensor, tensor_lists: _Lists
) -> None: ...
