# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .state import DelayedScalingState, NativeRecipe

class QuantizerSet:
    def __init__(
        self,
        recipe: NativeRecipe,
        forward: Sequence[Any],
        backward: Sequence[Any],
        forward_state: DelayedScalingState | None = None,
        backward_state: DelayedScalingState | None = None,
    ) -> None: ...

class NormSpec:
    def __init__(
        self,
        *,
        label: str,
        is_rmsnorm: bool,
        weight_name: str,
        bias_name: str,
        hidden: int,
        epsilon: float,
        zero_centered_gamma: bool,
    ) -> None: ...

class Sharding:
    def __init__(
        self,
        *,
        owner: str,
        parallel_mode: str,
        sequence_parallel: bool,
        group: torch.distributed.ProcessGroup,
    ) -> None: ...

class LinearSpec:
    def __init__(
        self,
        *,
        label: str,
        weight_names: Sequence[str],
        bias_names: Sequence[str],
        in_features: int,
        out_features: int,
        gemm: int = 0,
        fuse_wgrad_accumulation: bool = False,
        delay_wgrad_compute: bool = False,
        sharding: Sharding | None = None,
    ) -> None: ...

class ModuleStep:
    def set_quantizers(self, quantizers: QuantizerSet) -> None: ...
    def inherit(self, previous: ModuleStep) -> None: ...
    def take_captured_weights(self) -> list[torch.Tensor]: ...
    def run_delayed_wgrads(self) -> list[tuple[torch.Tensor, torch.Tensor | None]]: ...
    @property
    def was_quantized(self) -> bool: ...
    @property
    def was_calibrating(self) -> bool: ...
    @property
    def activation_dtype(self) -> torch.dtype | None: ...
    @property
    def delayed_wgrad_count(self) -> int: ...

class QuantizedCall:
    @property
    def is_quantized(self) -> bool: ...
    @property
    def is_calibrating(self) -> bool: ...
    @property
    def is_replay(self) -> bool: ...
    @property
    def forward_scales(self) -> torch.Tensor | None: ...
    @property
    def backward_override(self) -> str | None: ...
    @property
    def forward_quantizers(self) -> list[Any]: ...
    @property
    def backward_quantizers(self) -> list[Any]: ...
    def finish_backward(self) -> None: ...

class PythonStep(ModuleStep):
    def __init__(self, name: str) -> None: ...

class LinearStep(ModuleStep):
    def __init__(
        self,
        *,
        name: str,
        linear: LinearSpec,
        norm: NormSpec | None = None,
        return_bias: bool = False,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        save_original_input: bool = False,
    ) -> None: ...

class NormStep(ModuleStep):
    def __init__(self, *, norm: NormSpec, normalized_shape: Sequence[int]) -> None: ...

class NormMLPStep(ModuleStep):
    def __init__(
        self,
        *,
        name: str,
        norm: NormSpec,
        fc1: LinearSpec,
        fc2: LinearSpec,
        activation: int,
        activation_params: Mapping[str, float] = ...,
        return_bias: bool = False,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        recomputes: bool = False,
    ) -> None: ...

class StepModule:
    _step: ModuleStep | None
    def _run_step(self, *args: Any, **kwargs: Any) -> Any: ...

def register_native_forward(forward: Callable[..., Any]) -> None: ...
def enable_fast_call(type: type) -> None: ...
def hold_object(held: object) -> torch.Tensor: ...
def held_object(holder: torch.Tensor) -> Any: ...
def call_above_autograd(body: Callable[[], Any]) -> Any: ...
def detach_edges(output: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]: ...
