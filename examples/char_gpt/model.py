# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""A GPT over characters of `te.TransformerLayer`, and the same model of `torch.nn` layers."""

from __future__ import annotations

from dataclasses import dataclass

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


class Embedding(nn.Module):
    """Character and position embeddings, and the output layer tied to the former."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.characters = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.positions = nn.Embedding(sizes.context, sizes.hidden)
        for table in (self.characters, self.positions):
            nn.init.normal_(table.weight, std=INIT_STD)

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 [batch, length] -> [batch, length, hidden]"""
        return self.characters(tokens) + self.positions.weight[: tokens.shape[1]]

    def logits(self, states: Tensor) -> Tensor:
        """[batch, length, hidden] -> [batch, length, vocabulary]"""
        return F.linear(states, self.characters.weight)


class CharGPT(nn.Module):
    """Embedding, causal pre-norm transformer layers, norm, output layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = Embedding(sizes)
        self.layers = nn.ModuleList(
            te.TransformerLayer(
                sizes.hidden,
                4 * sizes.hidden,
                sizes.heads,
                hidden_dropout=0.0,
                attention_dropout=0.0,
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
        for layer in self.layers:
            states = layer(states)
        return self.embedding.logits(self.norm(states))


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


class TorchTwin(nn.Module):
    """`CharGPT` of torch's own layers. It shares the embedding's code, but no layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = Embedding(sizes)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                sizes.hidden,
                sizes.heads,
                4 * sizes.hidden,
                dropout=0.0,
                activation=_gelu,
                batch_first=True,
                norm_first=True,
            )
            for _ in range(sizes.layers)
        )
        self.norm = nn.LayerNorm(sizes.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 [batch, length] -> logits [batch, length, vocabulary]"""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        states = self.embedding(tokens)
        for layer in self.layers:
            states = layer(states, src_mask=mask, is_causal=True)
        return self.embedding.logits(self.norm(states))

    def copy_weights(self, model: CharGPT) -> None:
        """Take the weights of `model`, whose query, key and value weights are separate."""
        source = model.state_dict()
        values = {name: source[name] for name in source if not name.startswith("layers.")}
        values.pop("norm._extra_state", None)
        for number in range(len(self.layers)):
            values |= _twin_layer(source, f"layers.{number}.")
        self.load_state_dict(values)


# Name of torch.nn.TransformerEncoderLayer -> names of te.TransformerLayer, joined in this order.
_LAYER_NAMES = {
    "norm1.weight": ["self_attention.layernorm_qkv.layer_norm_weight"],
    "norm1.bias": ["self_attention.layernorm_qkv.layer_norm_bias"],
    "self_attn.in_proj_weight": [
        f"self_attention.layernorm_qkv.{part}_weight" for part in ("query", "key", "value")
    ],
    "self_attn.in_proj_bias": [
        f"self_attention.layernorm_qkv.{part}_bias" for part in ("query", "key", "value")
    ],
    "self_attn.out_proj.weight": ["self_attention.proj.weight"],
    "self_attn.out_proj.bias": ["self_attention.proj.bias"],
    "norm2.weight": ["layernorm_mlp.layer_norm_weight"],
    "norm2.bias": ["layernorm_mlp.layer_norm_bias"],
    "linear1.weight": ["layernorm_mlp.fc1_weight"],
    "linear1.bias": ["layernorm_mlp.fc1_bias"],
    "linear2.weight": ["layernorm_mlp.fc2_weight"],
    "linear2.bias": ["layernorm_mlp.fc2_bias"],
}


def _twin_layer(source: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        prefix + name: torch.cat([source[prefix + part] for part in parts])
        for name, parts in _LAYER_NAMES.items()
    }
