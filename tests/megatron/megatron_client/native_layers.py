# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What Megatron's native layers need to be the reference of every scenario.

Import after `cuda_to_cpu_shim.install()`. The functions patch Megatron in this process.
"""

from __future__ import annotations

import re
import sys
import types

import megatron.core.models.backends as backends
import megatron.core.models.gpt.gpt_layer_specs as specs
import megatron.core.tensor_parallel.layers as layers
import megatron.core.transformer.torch_norm as torch_norm
import megatron.core.transformer.transformer_block as block
import torch
from megatron.core import parallel_state
from megatron.core.transformer import TransformerConfig

from .scenarios import Options


class _Norm(torch.nn.Module):
    """LayerNorm or RMSNorm whose parameters carry the mark of sequence parallelism."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.is_rms, self.eps = config.normalization == "RMSNorm", eps
        self.is_zero_centered = config.layernorm_zero_centered_gamma
        fill = torch.zeros if self.is_zero_centered else torch.ones
        self.weight = torch.nn.Parameter(fill(hidden_size, dtype=config.params_dtype))
        if not self.is_rms:
            self.bias = torch.nn.Parameter(torch.zeros(hidden_size, dtype=config.params_dtype))
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight + 1 if self.is_zero_centered else self.weight
        if self.is_rms:
            return torch.nn.functional.rms_norm(x, weight.shape, weight, self.eps)
        return torch.nn.functional.layer_norm(x, weight.shape, weight, self.bias, self.eps)


class PlainNorm:
    """Builds a `_Norm` from the keywords that Megatron gives its norms."""

    def __new__(
        cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: object
    ) -> _Norm:
        return _Norm(config, hidden_size, eps)


def use_plain_norms() -> None:
    """Put a plain norm in place of Megatron's, which refuses sequence parallelism and RMSNorm."""
    backends.LocalSpecProvider.layer_norm = lambda self, rms_norm=False, for_qk=False: PlainNorm
    block.LayerNormImpl = PlainNorm
    for module in (specs, block):
        for name in dir(module):
            if getattr(module, name) is torch_norm.WrappedTorchNorm:
                setattr(module, name, PlainNorm)


def accumulate_weight_gradients() -> None:
    """Stand in for apex, which Megatron's native output layer asks for fused accumulation."""

    def accumulate(x: torch.Tensor, grad: torch.Tensor, main_grad: torch.Tensor) -> None:
        main_grad.add_((grad.float().t() @ x.float()).to(main_grad.dtype))

    module = types.ModuleType("fused_weight_gradient_mlp_cuda")
    module.wgrad_gemm_accum_fp32 = module.wgrad_gemm_accum_fp16 = accumulate
    sys.modules[module.__name__] = module
    layers.fused_weight_gradient_mlp_cuda = module
    layers._grad_accum_fusion_available = True


def draw_by_name(net: torch.nn.Module, options: Options) -> None:
    """Draw the weights by their names, so that grouped and separate experts start alike."""
    local_experts = options.experts // options.ep
    first = parallel_state.get_expert_model_parallel_rank() * local_experts
    for name, parameter in net.named_parameters():
        if parameter.dim() < 2:
            continue
        key = name
        if separate := re.search(r"local_experts\.(\d+)\.(linear_fc[12])\.weight", name):
            expert, layer = separate.groups()
        elif grouped := re.search(r"experts\.(linear_fc[12])\.weight(\d+)", name):
            layer, expert = grouped.groups()
        else:
            expert = None
        if expert is not None:
            key = f"{name.split('experts')[0]}expert{int(expert) + first}.{layer}"
        seed = sum(ord(letter) * (i + 1) for i, letter in enumerate(key))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
