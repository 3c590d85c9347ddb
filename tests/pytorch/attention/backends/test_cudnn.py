# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fused attention behind DotProductAttention, on whatever the core runs it with here.

Host memory is no device memory, so the candidate is made to accept it: the core's reference then
computes, or, where the emulated library is loaded, the stand-in for cuDNN.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from helpers.attention import AttentionCase, gradient_bound, output_bound, reference_attention
from helpers.attention_module import Layout, cumulative, make_inputs, make_module
from helpers.generators import random_tensor
from helpers.tolerances import assert_identical, assert_within
from transformer_engine.pytorch.attention import DotProductAttention
from transformer_engine.pytorch.attention.backends import cudnn
from transformer_engine.pytorch.attention.backends.base import AttentionSwitches
from transformer_engine.pytorch.attention.backends.cudnn import CudnnBackend
from transformer_engine.pytorch.cpp_extensions.attention import FusedAttention

NODE = "FusedAttentionBackward"
DTYPE = torch.float16
MASK_TYPES = (
    "no_mask",
    "causal",
    "causal_bottom_right",
    "padding",
    "padding_causal",
    "padding_causal_bottom_right",
)


@pytest.fixture(autouse=True)
def accept_host_memory(monkeypatch):
    """By the rules for kinds of problems alone."""

    def refusal(self, params, switches):
        return cudnn._against_kinds(params) if switches.fused else "switched off"

    monkeypatch.setattr(CudnnBackend, "refusal", refusal)


def make_case(mask_type: str, shape: str = "self", **options: Any) -> AttentionCase:
    s_q, s_kv, lengths_q, lengths_kv = {
        "self": (6, 6, [6, 4], [6, 4]),
        "longer keys": (5, 8, [3, 5], [8, 2]),
    }[shape]
    sizes = {"heads": 4, "groups": 2, "d_qk": 16, "d_v": 8}
    return AttentionCase(mask_type, lengths_q, lengths_kv, s_q, s_kv, **(sizes | options))


def check(case: AttentionCase, layout: Layout, dtype: torch.dtype = DTYPE, **options: Any) -> None:
    """Forward and every gradient; one node does it all."""
    clean = [x.double().requires_grad_() for x in make_inputs(case, dtype, padding=0.0)]
    leaves = [x.requires_grad_() for x in make_inputs(case, dtype, padding=torch.nan)]
    arguments = layout.arguments() | options
    bias = None
    if case.bias is not None:
        bias = case.bias.to(dtype).requires_grad_()
        case.bias = bias.detach().double().requires_grad_()
        arguments["core_attention_bias"] = bias
    lengths = (case.lengths_q, case.lengths_kv, case.lengths_kv)
    packed = [layout.pack(x, n) for x, n in zip(leaves, lengths, strict=True)]
    out = make_module(case, layout.format)(*packed, **arguments)
    assert out.grad_fn.name() == NODE
    out = layout.unpack(out)
    result = reference_attention(case, *clean)
    bound = output_bound(case, result, *clean, dtype=dtype, probability_dtype=dtype)
    assert_within(out, result.out, bound, "out")
    grad_out = random_tensor(tuple(out.shape), dtype=dtype, seed=4)
    if layout.format == "thd":
        for b, n in enumerate(case.lengths_q):
            grad_out[b, n:] = 0
    out.backward(grad_out)
    result.out.backward(grad_out.double())
    bounds = gradient_bound(case, result, tuple(clean), grad_out, dtype)
    for name, leaf, expected, limit in zip("qkv", leaves, clean, bounds, strict=False):
        assert_within(leaf.grad, expected.grad, limit, f"d{name}")
    if case.is_padded():
        for b, n in enumerate(case.lengths_kv):
            assert not leaves[1].grad[b, n:].any() and not leaves[2].grad[b, n:].any()
    if bias is not None:
        assert_within(bias.grad, case.bias.grad, bounds[3].sum(0, keepdim=True), "dbias")


@pytest.mark.parametrize("mask_type", MASK_TYPES)
@pytest.mark.parametrize("qkv_format", ["sbhd", "bshd", "thd"])
def test_every_mask_window_and_format(qkv_format, mask_type):
    if qkv_format == "thd" and "padding" not in mask_type:
        return
    window = (2, 0) if "causal" in mask_type else (2, 1)
    for shape, size in itertools.product(("self", "longer keys"), (None, window)):
        case = make_case(mask_type, shape, window=size)
        check(case, Layout(case, qkv_format, gap=2 if qkv_format == "thd" else 0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("groups", [1, 4])
def test_dtypes_and_groups(groups, dtype):
    case = make_case("causal", groups=groups)
    check(case, Layout(case, "bshd"), dtype)


@pytest.mark.parametrize("mask_type", ["no_mask", "causal"])
@pytest.mark.parametrize("bias_heads", [1, 4])
def test_bias_and_its_gradient(bias_heads, mask_type):
    case = make_case(mask_type, "longer keys", bias_type="post_scale_bias")
    case.bias = random_tensor((1, 4, case.s_q, case.s_kv), dtype=torch.float64, seed=8)
    if bias_heads == 1:
        bias = case.bias[:, :1].to(DTYPE).requires_grad_()
        q, k, v = make_inputs(case, DTYPE)
        layout = Layout(case, "bshd")
        arguments = layout.arguments() | {"core_attention_bias": bias}
        shared = make_module(case)(q, k, v, **arguments)
        each = bias.detach().expand(1, 4, -1, -1).clone().requires_grad_()
        arguments["core_attention_bias"] = each
        separate = make_module(case)(q, k, v, **arguments)
        assert_identical(shared, separate)
        grad_out = random_tensor(tuple(shared.shape), dtype=DTYPE, seed=4)
        (shared_grad,) = torch.autograd.grad(shared, bias, grad_out)
        (each_grad,) = torch.autograd.grad(separate, each, grad_out)
        total = each_grad.double().sum(1, keepdim=True)
        limit = torch.finfo(DTYPE).eps * (each_grad.double().abs().sum(1, keepdim=True) + 2**-14)
        assert_within(shared_grad, total, limit)
    else:
        check(case, Layout(case, "bshd"))


def test_longest_sequences_are_read_where_they_are_not_given():
    case = make_case("padding_causal")
    check(case, Layout(case, "thd", gap=1), max_seqlen_q=None, max_seqlen_kv=None)


def test_packed_projections_and_any_strides():
    case = make_case("causal", groups=4, d_qk=8)
    mixed = random_tensor((2, 6, 3, 4, 8), dtype=DTYPE, seed=1).requires_grad_()
    module = make_module(case)
    out = module(qkv_layer=mixed, qkv_format="bshd")
    assert out.grad_fn.name() == NODE
    parts = [x.contiguous().detach().requires_grad_() for x in mixed.unbind(2)]
    expected = module(*parts, qkv_format="bshd")
    assert_identical(out, expected)
    grad_out = random_tensor(tuple(out.shape), dtype=DTYPE, seed=4)
    out.backward(grad_out.transpose(0, 1).contiguous().transpose(0, 1))
    expected.backward(grad_out)
    assert_identical(mixed.grad, torch.stack([x.grad for x in parts], 2))
    crooked = [x.detach().mT.contiguous().mT for x in parts]
    assert_identical(module(*crooked, qkv_format="bshd"), expected)


def dropped(**options: Any) -> tuple[DotProductAttention, list[torch.Tensor]]:
    case = make_case("causal")
    module = make_module(case, attention_dropout=0.4, **options)
    return module, [x.requires_grad_() for x in make_inputs(case, DTYPE)]


def test_dropout_repeats_with_the_generator_and_is_the_same_in_backward():
    module, (q, k, v) = dropped()
    torch.manual_seed(3)
    out = module(q, k, v)
    torch.manual_seed(3)
    assert_identical(module(q, k, v), out)
    assert not torch.equal(module(q, k, v), out)
    # The output is linear in v: <out, g> = <v, dv>, whatever was dropped.
    grad_out = random_tensor(tuple(out.shape), dtype=DTYPE, seed=4)
    out.backward(grad_out)
    products = (v.detach().double() * v.grad.double()).flatten()
    outputs = (out.detach().double() * grad_out.double()).flatten()
    limit = torch.finfo(DTYPE).eps * (products.abs().sum() + outputs.abs().sum())
    assert_within(products.sum(), outputs.sum(), limit)
    module.eval()
    assert_identical(module(q, k, v), make_module(make_case("causal"))(q, k, v))


def test_a_recomputed_attention_drops_the_same():
    module, inputs = dropped()
    torch.manual_seed(5)
    kept = module(*inputs)
    torch.manual_seed(5)
    recomputed = module(*inputs, checkpoint_core_attention=True)
    grad_out = random_tensor(tuple(kept.shape), dtype=DTYPE, seed=4)
    assert_identical(recomputed, kept)
    for mine, theirs in zip(
        torch.autograd.grad(recomputed, inputs, grad_out),
        torch.autograd.grad(kept, inputs, grad_out),
        strict=True,
    ):
        assert_identical(mine, theirs)


def test_the_node_behaves_as_autograd_wants():
    case = make_case("causal")
    q, k, v = make_inputs(case, DTYPE)
    module = make_module(case)
    assert module(q, k, v).grad_fn is None
    k.requires_grad_()
    with torch.no_grad():
        assert module(q, k, v).grad_fn is None
    moved = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: moved.append(x.shape) or x.clone(), lambda x: x
    ):
        out = module(q, k, v)
    assert len(moved) == 5  # query, key, value, statistics, output
    (first,) = torch.autograd.grad(out.sum(), k, retain_graph=True)
    (again,) = torch.autograd.grad(out.sum(), k, create_graph=True)
    assert_identical(first, again)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        again.sum().backward()
    out = module(q, k, v)
    k.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_what_cudnn_declines_runs_on_the_next_candidate():
    case = make_case("no_mask", "longer keys")
    q, k, v = make_inputs(case, DTYPE)
    module = make_module(case)
    row = random_tensor((1, 1, 1, case.s_kv), dtype=DTYPE, seed=8).requires_grad_()
    out = module(q, k, v, core_attention_bias_type="post_scale_bias", core_attention_bias=row)
    assert out.grad_fn.name() != NODE
    case.bias_type, case.bias = "post_scale_bias", row.detach()
    clean = [x.double() for x in (q, k, v)]
    result = reference_attention(case, *clean)
    bound = output_bound(case, result, *clean, dtype=DTYPE, probability_dtype=DTYPE)
    assert_within(out, result.out.flatten(2), bound.flatten(2))
    empty = module(q[:0], k[:0], v[:0])
    assert empty.shape == (0, case.s_q, 32)


def test_a_native_call_says_why_it_declines():
    native = FusedAttention(
        qkv_format="bshd",
        scale=1.0,
        dropout=0.0,
        left=-1,
        right=-1,
        is_bottom_right=False,
        has_lengths=False,
        has_bias=False,
        is_deterministic=False,
    )
    x = torch.zeros(0, 3, 2, 8, dtype=DTYPE)
    assert native(x, x, x, None, None, None, None, None, 0, 0) is None
    assert "empty" in native.reason
    y = torch.zeros(1, 3, 2, 8, dtype=DTYPE)
    assert native(y, y, y, None, None, None, None, None, 0, 0) is not None
    assert native.reason == ""
    with pytest.raises(TypeError, match="takes 10 arguments but 3 were given"):
        native(y, y, y)
    with pytest.raises(ValueError, match="qkv_format is 'hsbd'"):
        FusedAttention(
            qkv_format="hsbd",
            scale=1.0,
            dropout=0.0,
            left=-1,
            right=-1,
            is_bottom_right=False,
            has_lengths=False,
            has_bias=False,
            is_deterministic=False,
        )


def test_lengths_in_host_memory_are_checked():
    case = make_case("padding")
    q, k, v = make_inputs(case, DTYPE)
    wrong = torch.tensor([0, 7, 9], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"cu_seqlens_kv is \[0, 7, 9\] for sequences of 6 rows"):
        make_module(case)(q, k, v, cu_seqlens_q=cumulative([6, 4]), cu_seqlens_kv=wrong)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": torch.float32}, "it takes float16 and bfloat16, not torch.float32"),
        ({"softmax_type": "learnable"}, "softmax_type='learnable'"),
        ({"return_max_logit": True}, "return_max_logit=True"),
        ({"core_attention_bias_type": "alibi"}, "core_attention_bias_type='alibi'"),
        ({"core_attention_bias_type": "pre_scale_bias"}, "'pre_scale_bias'"),
        (
            {
                "core_attention_bias_type": "post_scale_bias",
                "core_attention_bias_dtype": torch.float32,
            },
            "not torch.float32 for torch.float16",
        ),
    ],
)
def test_kinds_that_are_refused(change, reason):
    assert reason in cudnn._against_kinds(replace(params_of("causal"), **change))


def params_of(mask_type: str, **arguments: Any) -> Any:
    case = make_case(mask_type)
    module = make_module(case)
    module(*make_inputs(case, DTYPE), **arguments)
    return next(iter(module._plans.values())).params


def test_masks_that_are_refused():
    hidden = torch.zeros(1, 1, 6, 6, dtype=torch.bool)
    arbitrary = params_of("arbitrary", attention_mask=hidden)
    assert cudnn._against_kinds(arbitrary) == "it has no arbitrary mask"
    padded = params_of("padding", attention_mask=hidden[:, :, :1])
    assert "it takes cu_seqlens_q and cu_seqlens_kv" in cudnn._against_kinds(padded)
    assert cudnn._against_kinds(params_of("causal")) is None


def test_the_candidate_is_for_cuda_and_obeys_its_switch(monkeypatch):
    monkeypatch.undo()
    params = params_of("causal")
    candidate = CudnnBackend()
    reason = candidate.refusal(params, AttentionSwitches())
    assert reason == "it needs a CUDA device, the tensors are on cpu"
    reason = candidate.refusal(params, AttentionSwitches(fused=False))
    assert reason == "switched off by NVTE_FUSED_ATTN=0"
    q, k, v = make_inputs(make_case("causal"), DTYPE)
    reasons = make_module(make_case("causal")).explain_backends(q, k, v)
    assert next(iter(reasons)) == candidate.name
    assert reasons[candidate.name] is not None and reasons["TorchSDPA"] is None


def test_the_core_names_what_cuda_lacks_here():
    reason = cudnn.native_refusal(params_of("causal"), False)
    assert reason is None or "CUDA" in reason or "cuDNN" in reason or "sm_" in reason
