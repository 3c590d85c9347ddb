# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What DotProductAttention refuses: constructor values, cumulative lengths, operands; and what a
rank of a tensor-parallel group computes.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from helpers.generators import random_tensor
from transformer_engine.pytorch.attention import DotProductAttention

NAN = float("nan")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 16), ValueError, "num_attention_heads is 0"),
        ((-4, 16), ValueError, "num_attention_heads is -4"),
        ((4.0, 16), TypeError, "num_attention_heads is 4.0"),
        (("4", 16), TypeError, "num_attention_heads is '4'"),
        ((None, 16), TypeError, "num_attention_heads is None"),
        ((True, 16), TypeError, "num_attention_heads is True"),
        ((4, 0), ValueError, "kv_channels is 0"),
        ((4, -16), ValueError, "kv_channels is -16"),
        ((4, 16.0), TypeError, "kv_channels is 16.0"),
        ((4, "x"), TypeError, "kv_channels is 'x'"),
        ((4, None), TypeError, "kv_channels is None"),
        ((4, (16,)), ValueError, "kv_channels is (16,)"),
        ((4, (16, 8, 4)), ValueError, "kv_channels is (16, 8, 4)"),
        ((4, (16, 0)), ValueError, "kv_channels[1] is 0"),
        ((4, (16.0, 8)), TypeError, "kv_channels[0] is 16.0"),
        ((4, 16, 0), ValueError, "num_gqa_groups is 0"),
        ((4, 16, -2), ValueError, "num_gqa_groups is -2"),
        ((4, 16, 8), ValueError, "num_gqa_groups is 8"),
        ((4, 16, 2.0), TypeError, "num_gqa_groups is 2.0"),
    ],
)
def test_sizes(arguments, error, message):
    with pytest.raises(error, match=f"^DotProductAttention: {re.escape(message)}[; ]"):
        DotProductAttention(*arguments)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("attention_dropout", 2.0, ValueError),
        ("attention_dropout", NAN, ValueError),
        ("attention_dropout", "x", TypeError),
        ("attention_dropout", None, TypeError),
        ("qkv_format", 3, ValueError),
        ("attn_mask_type", None, ValueError),
        ("window_size", (1.0, 0), TypeError),
        ("window_size", (True, 0), TypeError),
        ("tp_size", 0, ValueError),
        ("tp_size", -1, ValueError),
        ("tp_size", "a", TypeError),
        ("tp_group", 3, TypeError),
        ("layer_number", 0, ValueError),
        ("layer_number", "x", TypeError),
        ("attention_type", ["self"], ValueError),
        ("cp_group", 3, TypeError),
        ("softmax_scale", "x", TypeError),
        ("softmax_scale", NAN, ValueError),
        ("softmax_type", None, ValueError),
        ("get_rng_state_tracker", 3, TypeError),
    ],
)
def test_options(name, value, error):
    with pytest.raises(error, match=f"^DotProductAttention: {name} is {re.escape(repr(value))}; "):
        DotProductAttention(4, 16, **{name: value})


def test_a_pair_of_head_sizes():
    module = DotProductAttention(2, (4, 6), attn_mask_type="no_mask")
    x = random_tensor((3, 1, 2, 4))
    assert module(x, x, random_tensor((3, 1, 2, 6))).shape == (3, 1, 12)


# ---- cumulative lengths --------------------------------------------------------------------------


def ends(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("backend", ["TorchSDPA", "UnfusedDotProductAttention"])
@pytest.mark.parametrize("side", ["q", "kv"])
@pytest.mark.parametrize("qkv_format", ["sbhd", "bshd"])
@pytest.mark.parametrize(
    "wrong", [(0, 3, 20), (0, 5, 3), (0, 9, 10), (-1, 3, 8), (1, 3, 8), (0, -2, 3)]
)
def test_lengths_of_padded_batches(wrong, qkv_format, side, backend, monkeypatch):
    if backend != "TorchSDPA":
        monkeypatch.setenv("NVTE_FLASH_ATTN", "0")
        monkeypatch.setenv("NVTE_FUSED_ATTN", "0")
    module = DotProductAttention(2, 4, qkv_format=qkv_format, attn_mask_type="padding")
    x = torch.zeros((2, 8, 2, 4) if qkv_format == "bshd" else (8, 2, 2, 4))
    lengths = {"cu_seqlens_q": ends(0, 3, 11), "cu_seqlens_kv": ends(0, 8, 8)}
    assert module(x, x, x, **lengths).shape == (*x.shape[:2], 8)
    lengths[f"cu_seqlens_{side}"] = ends(*wrong)
    with pytest.raises(
        ValueError,
        match=rf"forward: cu_seqlens_{side} is {re.escape(str(list(wrong)))} for sequences of 8 ",
    ):
        module(x, x, x, **lengths)


@pytest.mark.parametrize("mask_type", ["padding", "no_mask", "causal"])
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (ends(0, 3), ValueError, r"has shape \(2,\)"),
        (ends(0, 3, 8, 9), ValueError, r"has shape \(4,\)"),
        (ends(0, 3, 8)[None], ValueError, r"has shape \(1, 3\)"),
        (ends(0, 3, 8).long(), TypeError, "is torch.int64"),
        (ends(0, 3, 8).float(), TypeError, "is torch.float32"),
        ([0, 3, 8], TypeError, r"is \[0, 3, 8\]"),
        ("x", TypeError, "is 'x'"),
    ],
)
@pytest.mark.parametrize("side", ["q", "kv"])
def test_lengths_that_are_none_whatever_the_mask(side, wrong, error, message, mask_type):
    module = DotProductAttention(2, 4, qkv_format="bshd", attn_mask_type=mask_type)
    x = torch.zeros(2, 8, 2, 4)
    lengths: dict[str, Any] = {"cu_seqlens_q": ends(0, 3, 8), "cu_seqlens_kv": ends(0, 3, 8)}
    lengths[f"cu_seqlens_{side}"] = wrong
    with pytest.raises(error, match=f"^DotProductAttention.forward: cu_seqlens_.* {message}"):
        module(x, x, x, **lengths)


@pytest.mark.parametrize("softmax_type", ["vanilla", "off-by-one"])  # packed, and dense
@pytest.mark.parametrize(
    ("lengths", "padded", "longest", "message"),
    [
        ((0, 3, 20), None, None, "stay within the tokens"),
        ((0, 5, 3), None, None, "never decrease"),
        ((-1, 5, 16), None, None, "start at 0"),
        ((1, 5, 16), None, None, "start at 0"),
        ((0, 3, 6), (0, 2, 8), None, "fit each other"),
        ((0, 3, 6), (0, 15, 8), None, "never decrease"),
        ((0, 3, 6), (0, 4, 18), None, "stay within the tokens"),
        ((0, 3, 16), None, 4, "max_seqlen_q is 4 and a sequence has 13 tokens"),
        ((0, 3, 16), None, -4, "max_seqlen_q is -4; it must be an int, at least 0"),
    ],
)
def test_lengths_of_packed_batches(lengths, padded, longest, message, softmax_type):
    module = DotProductAttention(
        2, 4, qkv_format="thd", attn_mask_type="padding", softmax_type=softmax_type
    )
    x = torch.zeros(16, 2, 4)
    options: dict[str, Any] = {"cu_seqlens_q": ends(*lengths), "cu_seqlens_kv": ends(*lengths)}
    if padded is not None:
        options["cu_seqlens_q_padded"] = options["cu_seqlens_kv_padded"] = ends(*padded)
    with pytest.raises(ValueError, match=f"^DotProductAttention.forward: .*{message}"):
        module(x, x, x, **options, max_seqlen_q=longest, max_seqlen_kv=longest)


# ---- operands ------------------------------------------------------------------------------------

ALIBI = {"core_attention_bias_type": "alibi"}
BIAS = {"core_attention_bias_type": "post_scale_bias"}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({**BIAS, "core_attention_bias": "x"}, TypeError, "core_attention_bias is 'x'"),
        ({**ALIBI, "alibi_slopes": "x"}, TypeError, "alibi_slopes is 'x'"),
        ({**ALIBI, "alibi_slopes": torch.ones(2).long()}, TypeError, "alibi_slopes has dtype"),
        (
            {**ALIBI, "alibi_slopes": torch.ones(3, 2)},
            ValueError,
            r"alibi_slopes has shape \(3, 2\); it must be \(2,\) or \(1, 2\)",
        ),
        (
            {"attn_mask_type": "arbitrary", "attention_mask": torch.ones(3, 3).bool().to("meta")},
            ValueError,
            "attention_mask is on meta and the inputs on cpu",
        ),
        (
            {
                "attn_mask_type": "padding",
                "attention_mask": (torch.zeros(1, 1, 1, 3).bool().to("meta"),) * 2,
            },
            ValueError,
            "attention_mask is on meta and the inputs on cpu",
        ),
        (
            {"qkv_format": "thd", "attn_mask_type": "padding", "max_seqlen_q": "a"},
            TypeError,
            "max_seqlen_q is 'a'",
        ),
    ],
)
def test_operands(options, error, message):
    x = torch.zeros(3, 1, 2, 4)
    if options.get("qkv_format") == "thd":
        x = x[:, 0]
        options = {**options, "cu_seqlens_q": ends(0, 3), "cu_seqlens_kv": ends(0, 3)}
    with pytest.raises(error, match=f"^DotProductAttention.forward: {message}"):
        DotProductAttention(2, 4)(x, x, x, **options)


def test_inputs_without_data():
    x = torch.zeros(3, 1, 2, 4, device="meta")
    with pytest.raises(ValueError, match="query_layer, key_layer and value_layer are on meta"):
        DotProductAttention(2, 4)(x, x, x)
    with pytest.raises(TypeError, match="qkv_layer is 'x'"):
        DotProductAttention(2, 4)(qkv_layer="x")


# ---- tensor parallelism --------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"core_attention_bias_type": "alibi"}])
def test_tensor_parallel_ranks_together_compute_all_heads(options, monkeypatch):
    """Attention mixes no heads, so ranks need no communication: each computes its own heads."""
    heads, groups, ranks, size = 8, 4, 2, 4
    q = random_tensor((5, 2, heads, size), seed=1)
    k, v = (random_tensor((5, 2, groups, size), seed=seed) for seed in (2, 3))
    expected = DotProductAttention(heads, size, num_gqa_groups=groups)(q, k, v, **options)
    group = torch.distributed.ProcessGroup(0, ranks)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: ranks)
    parts = []
    for rank in range(ranks):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda group, rank=rank: rank)
        module = DotProductAttention(heads, size, num_gqa_groups=groups, tp_group=group)
        mine = (x.chunk(ranks, 2)[rank] for x in (q, k, v))
        parts.append(module(*mine, **options))
    assert torch.equal(torch.cat(parts, -1), expected)


@pytest.mark.parametrize("mask", ["no_mask", "causal", "padding"])
@pytest.mark.parametrize("amp", [False, True])
def test_tensors_without_data_are_refused(mask, amp):
    module = DotProductAttention(2, 8)
    x = torch.empty(3, 1, 2, 8, device="meta")
    real = torch.zeros(3, 1, 2, 8)
    with torch.autocast("cpu", torch.bfloat16, enabled=amp):
        with pytest.raises(
            ValueError, match=r"DotProductAttention.forward: .* are on meta; tensors"
        ):
            module(x, x, x, attn_mask_type=mask)
        with pytest.raises((TypeError, ValueError), match=r"DotProductAttention.forward: .* meta"):
            module(real, x, x, attn_mask_type=mask)
