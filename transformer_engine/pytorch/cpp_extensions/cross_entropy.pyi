# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
from torch import Tensor

def is_native(tensor: Tensor) -> bool: ...
def cross_entropy_statistics(
    input: Tensor, target: Tensor, vocabulary: tuple[int, int, int]
) -> Tensor: ...
def cross_entropy_loss(
    statistics: Tensor,
    target: Tensor,
    vocabulary: tuple[int, int, int],
    label_smoothing: float,
    is_mean: bool,
) -> tuple[Tensor, Tensor, Tensor]: ...
def cross_entropy_backward(
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    softmax: Tensor,
    weight: Tensor,
    vocabulary: tuple[int, int, int],
    label_smoothing: float,
    overwrites: bool,
) -> Tensor: ...
