# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention under transforms that differentiate: torch's fused kernel has no second derivative."""

from __future__ import annotations

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.generators import random_tensor
from helpers.tolerances import assert_within, gamma
from transformer_engine.pytorch.attention import DotProductAttention

S, H, D = 5, 2, 4
Q, K, V = (random_tensor((S, 1, H, D), dtype=torch.float64, seed=seed) for seed in range(3))
CU = torch.tensor([0, 2, S], dtype=torch.int32)


def dense(q: torch.Tensor) -> torch.Tensor:
    return DotProductAttention(H, D, attn_mask_type="causal")(q, K, V)


def packed(q: torch.Tensor) -> torch.Tensor:
    module = DotProductAttention(H, D, attn_mask_type="padding_causal", qkv_format="thd")
    lengths = {"cu_seqlens_q": CU, "cu_seqlens_kv": CU, "max_seqlen_q": 3, "max_seqlen_kv": 3}
    return module(q[:, 0], K[:, 0], V[:, 0], **lengths)


def formula(q: torch.Tensor, is_packed: bool) -> torch.Tensor:
    """softmax(Q K^T / sqrt(d)) V over the pairs of a sequence with a key no later."""
    hidden = torch.ones(S, S, dtype=torch.bool).triu(1)
    if is_packed:
        hidden[2:, :2] = True
    scores = torch.einsum("ibhd,jbhd->bhij", q, K) / D**0.5
    return torch.einsum("bhij,jbhd->ibhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), V)


def loss_of(call, *arguments):
    return lambda q: call(q, *arguments).pow(2).sum()


def penalty(loss):
    """The gradient of a gradient penalty."""
    return torch.func.grad(lambda q: torch.func.grad(loss)(q).pow(2).sum())


def plain_forward_mode(loss):
    def run(q: torch.Tensor) -> torch.Tensor:
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(q, K)
            return torch.autograd.forward_ad.unpack_dual(loss(dual)).tangent

    return run


DERIVATIVES = {
    "hessian": torch.func.hessian,
    "penalty": penalty,
    "jvp": lambda loss: lambda q: torch.func.jvp(loss, (q,), (K,))[1],
    "per sample": lambda loss: lambda q: torch.func.vmap(torch.func.grad(loss))(q[None]),
    "forward mode": plain_forward_mode,
}


@pytest.mark.parametrize("backend", ["torch", "plain"])
@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("call", [dense, packed])
def test_derivatives_equal_those_of_the_formula(call, derivative, backend, monkeypatch):
    if derivative == "per sample" and call is packed:
        return  # lengths in host memory are one batch's
    if backend == "plain":
        monkeypatch.setenv("NVTE_FLASH_ATTN", "0")
        monkeypatch.setenv("NVTE_FUSED_ATTN", "0")
    have = DERIVATIVES[derivative](loss_of(call))(Q)
    want = DERIVATIVES[derivative](loss_of(formula, call is packed))(Q)
    assert want.abs().max() > 0.1
    # Three chains of sums over keys and channels, of terms no larger than a few times the result.
    steps = 3 * (S + D) * 16
    assert_within(have, want, gamma(steps, torch.float64) * (want.abs() + want.abs().max()))


def test_a_transformer_layer_has_a_hessian():
    layer = te.TransformerLayer(16, 32, 2, hidden_dropout=0.0, attention_dropout=0.0)
    x = random_tensor((2, 1, 16), seed=4)
    hessian = torch.func.hessian(lambda x: layer(x).pow(2).sum())(x).detach().view(32, 32)
    scale = hessian.abs().max()
    assert scale > 0.1
    # Order of differentiation does not matter.
    bound = gamma(32 * 64, torch.float32) * scale
    assert_within(hessian, hessian.T.double(), bound.expand(32, 32))
