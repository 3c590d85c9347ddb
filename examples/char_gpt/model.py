# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""A GPT over characters of `te.TransformerLayer`, and the same model of `torch.nn` layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import transformer_engine.pytorch as te

INIT_STD = 0.023


@dataclass(frozen=True)
class Sizes:
    """What fixes the shapes of all parameters."""

    vocabulary: int
    context: int = 64  # characters the model looks back
    hidden: int = 128
    layers: int = 4
    heads: int = 4


class CharGPT(nn.Module):
    """Embedding, causal pre-norm transformer layers with rotary positions, norm, tied output."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        nn.init.normal_(self.embedding.weight, std=INIT_STD)
        self.rotary = te.RotaryPositionEmbedding(sizes.hidden // sizes.heads)
        # Each layer adds twice to the residual stream: smaller there, so that its size stays.
        output_std = INIT_STD / math.sqrt(2 * sizes.layers)
        self.layers = nn.ModuleList(
            te.TransformerLayer(
                sizes.hidden,
                4 * sizes.hidden,
                sizes.heads,
                hidden_dropout=0.0,
                attention_dropout=0.0,
                init_method=partial(nn.init.normal_, std=INIT_STD),
                output_layer_init_method=partial(nn.init.normal_, std=output_std),
                layer_number=number,
                self_attn_mask_type="causal",
                attn_input_format="bshd",
                device="cpu",
            )
            for number in range(1, sizes.layers + 1)
        )
        self.norm = te.LayerNorm(sizes.hidden, device="cpu")

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 [batch, length] -> logits [batch, length, vocabulary]"""
        states = self.embedding(tokens)
        angles = self.rotary(tokens.shape[1])
        for layer in self.layers:
            states = layer(states, rotary_pos_emb=angles)
        return F.linear(self.norm(states), self.embedding.weight)


class TorchLayer(nn.Module):
    """The transformer layer in plain torch."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.proj = nn.Linear(hidden, hidden)
        self.fc1 = nn.Linear(hidden, 4 * hidden)
        self.fc2 = nn.Linear(4 * hidden, hidden)

    def forward(self, states: Tensor) -> Tensor:
        """[batch, length, hidden] -> the same"""
        qkv = self.qkv(self.norm1(states)).unflatten(-1, (3, self.heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # [batch, heads, length, head size] each
        attended = F.scaled_dot_product_attention(rotate(query), rotate(key), value, is_causal=True)
        states = states + self.proj(attended.transpose(1, 2).flatten(2))
        hidden = F.gelu(self.fc1(self.norm2(states)), approximate="tanh")
        return states + self.fc2(hidden)


def rotate(x: Tensor) -> Tensor:
    """Rotary positions (arXiv:2104.09864): turn the pairs (i, i + d/2) of [..., length, d]."""
    length, size = x.shape[-2:]
    speeds = 10000.0 ** (-torch.arange(0, size, 2) / size)
    angles = torch.arange(length)[:, None] * speeds
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class TorchTwin(nn.Module):
    """`CharGPT` without this library."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.layers = nn.ModuleList(
            TorchLayer(sizes.hidden, sizes.heads) for _ in range(sizes.layers)
        )
        self.norm = nn.LayerNorm(sizes.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 [batch, length] -> logits [batch, length, vocabulary]"""
        states = self.embedding(tokens)
        for layer in self.layers:
            states = layer(states)
        return F.linear(self.norm(states), self.embedding.weight)

    def copy_weights(self, model: CharGPT) -> None:
        """Take the weights of `model`, whose query, key and value weights are separate."""
        source = model.state_dict()
        names = {name: [name] for name in ("embedding.weight", "norm.weight", "norm.bias")}
        for number in range(len(self.layers)):
            for name, parts in _LAYER_NAMES.items():
                prefix = f"layers.{number}."
                names[prefix + name] = [prefix + part for part in parts]
        self.load_state_dict(
            {name: torch.cat([source[part] for part in parts]) for name, parts in names.items()}
        )


# Name in TorchLayer -> names in te.TransformerLayer, joined in this order.
_LAYER_NAMES = {
    "norm1.weight": ["self_attention.layernorm_qkv.layer_norm_weight"],
    "norm1.bias": ["self_attention.layernorm_qkv.layer_norm_bias"],
    "qkv.weight": [
        f"self_attention.layernorm_qkv.{part}_weight" for part in ("query", "key", "value")
    ],
    "qkv.bias": [f"self_attention.layernorm_qkv.{part}_bias" for part in ("query", "key", "value")],
    "proj.weight": ["self_attention.proj.weight"],
    "proj.bias": ["self_attention.proj.bias"],
    "norm2.weight": ["layernorm_mlp.layer_norm_weight"],
    "norm2.bias": ["layernorm_mlp.layer_norm_bias"],
    "fc1.weight": ["layernorm_mlp.fc1_weight"],
    "fc1.bias": ["layernorm_mlp.fc1_bias"],
    "fc2.weight": ["layernorm_mlp.fc2_weight"],
    "fc2.bias": ["layernorm_mlp.fc2_bias"],
}
