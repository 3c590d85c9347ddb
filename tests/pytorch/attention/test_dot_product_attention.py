# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""DotProductAttention against pair-by-pair float64 attention, for every combination."""

from __future__ import annotations

import contextlib
import copy
import itertools
import pickle
import warnings
from typing import Any

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.attention import (
    AttentionCase,
    gradient_bound,
    output_bound,
    reference_attention,
)
from helpers.attention_module import Layout, cumulative, make_inputs, make_module
from helpers.generators import random_tensor
from helpers.tolerances import assert_within
from transformer_engine.common.recipe import DelayedScaling
from transformer_engine.pytorch.attention import (
    DotProductAttention,
    explain_attention_backends,
    get_attention_backend,
)

MASK_TYPES = (
    "no_mask",
    "causal",
    "causal_bottom_right",
    "padding",
    "padding_causal",
    "padding_causal_bottom_right",
    "arbitrary",
)
BIAS_TYPES = ("no_bias", "pre_scale_bias", "post_scale_bias", "alibi")
SOFTMAX_TYPES = ("vanilla", "off-by-one", "learnable")
TORCH_ONLY = {"NVTE_UNFUSED_ATTN": "0"}
UNFUSED_ONLY = {"NVTE_FLASH_ATTN": "0", "NVTE_FUSED_ATTN": "0"}
BACKENDS = {"torch": TORCH_ONLY, "unfused": UNFUSED_ONLY}


def make_case(mask_type: str, shape: str = "self", **options: Any) -> AttentionCase:
    """Two sequences of unequal length; `shape` says how many keys there are."""
    s_q, s_kv, lengths_q, lengths_kv = {
        "self": (6, 6, [6, 4], [6, 4]),
        "longer keys": (5, 8, [3, 5], [8, 2]),
        "longer queries": (7, 4, [7, 2], [3, 4]),
    }[shape]
    case = AttentionCase(mask_type, lengths_q, lengths_kv, s_q, s_kv, **options)
    if mask_type == "arbitrary":
        case.arbitrary = random_tensor((2, case.heads, s_q, s_kv), seed=7) > 0.3
        case.arbitrary[0, 1, 2] = True  # a query without any key
        case.arbitrary[1, :, :, 0] = True  # a key without any query
    if case.bias_type in ("pre_scale_bias", "post_scale_bias") and case.bias is None:
        case.bias = random_tensor((1, case.heads, s_q, s_kv), dtype=torch.float64, seed=8)
    if case.softmax_type == "off-by-one":
        case.offset = torch.zeros(case.heads)
    elif case.softmax_type == "learnable":
        case.offset = random_tensor((case.heads,), seed=9)
    return case


def accepting_backends(module: DotProductAttention, q, k, v, arguments) -> list[str]:
    reasons = module.explain_backends(q, k, v, **arguments)
    return [name for name, reason in reasons.items() if reason is None]


def check_against_reference(
    case: AttentionCase,
    layout: Layout,
    backend: str,
    monkeypatch,
    dtype=torch.float64,
    mask_as="lengths",
) -> None:
    """Forward and every gradient, with NaN in padding."""
    for name, value in BACKENDS[backend].items():
        monkeypatch.setenv(name, value)
    poisoned = make_inputs(case, dtype, padding=torch.nan)
    clean = [x.clone().requires_grad_() for x in make_inputs(case, torch.float64, padding=0.0)]
    leaves = [x.requires_grad_() for x in poisoned]
    if case.bias is not None:
        case.bias = case.bias.detach().clone().requires_grad_()
    arguments = layout.arguments(mask_as)
    if case.bias is not None:
        arguments["core_attention_bias"] = case.bias.detach().clone().requires_grad_()
    lengths = (case.lengths_q, case.lengths_kv, case.lengths_kv)
    packed = [layout.pack(x, n) for x, n in zip(leaves, lengths, strict=True)]
    module = make_module(case, layout.format)
    if not accepting_backends(module, *packed, arguments):
        with pytest.raises(ValueError, match="no backend accepts"):
            module(*packed, **arguments)
        return
    out = layout.unpack(module(*packed, **arguments))
    result = reference_attention(case, *clean)
    assert_within(out, result.out, output_bound(case, result, *clean, dtype=dtype), "out")
    grad_out = random_tensor(tuple(out.shape), dtype=dtype, seed=4)
    if layout.format == "thd":
        for b, n in enumerate(case.lengths_q):
            grad_out[b, n:] = 0
    out.backward(grad_out)
    result.out.backward(grad_out.double())
    bounds = gradient_bound(case, result, tuple(clean), grad_out, dtype)
    for name, leaf, expected, bound in zip("qkv", leaves, clean, bounds, strict=False):
        assert_within(leaf.grad, expected.grad, bound, f"d{name}")
    if case.is_padded():
        for b, n in enumerate(case.lengths_kv):
            assert not leaves[1].grad[b, n:].any() and not leaves[2].grad[b, n:].any()
    if case.bias is not None:
        bias = arguments["core_attention_bias"]
        assert_within(bias.grad, case.bias.grad, bounds[3].sum(0, keepdim=True), "dbias")
    if case.softmax_type == "learnable":
        p, v = result.probabilities, clean[2].detach().repeat_interleave(2, 2)
        rest = 1 - p.sum(-1)  # probability of the sink
        d_p = torch.einsum("bihd,bjhd->bhij", grad_out.double(), v)
        expected = -(rest * (p * d_p).sum(-1))
        magnitude = (rest * (p * d_p.abs()).sum(-1)).sum((0, 2))
        # The parameter is FP32, and so is its gradient.
        bound = bounds[3].sum((0, 2, 3)) + magnitude * torch.finfo(torch.float32).eps
        assert_within(module.softmax_offset.grad, expected.sum((0, 2)), bound, "doffset")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("softmax_type", SOFTMAX_TYPES)
@pytest.mark.parametrize("bias_type", BIAS_TYPES)
@pytest.mark.parametrize("mask_type", MASK_TYPES)
@pytest.mark.parametrize("qkv_format", ["sbhd", "bshd", "thd"])
def test_every_mask_bias_softmax_and_format(
    qkv_format, mask_type, bias_type, softmax_type, backend, monkeypatch
):
    if qkv_format == "thd" and "padding" not in mask_type:
        return  # refused: test_thd_needs_a_padding_mask
    window = (2, 0) if "causal" in mask_type else (2, 1)
    for shape, size in itertools.product(("self", "longer keys"), (None, window)):
        case = make_case(
            mask_type, shape, bias_type=bias_type, softmax_type=softmax_type, window=size
        )
        layout = Layout(case, qkv_format, gap=2 if shape == "self" and qkv_format == "thd" else 0)
        check_against_reference(case, layout, backend, monkeypatch)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bottom_right", [None, True, False])
@pytest.mark.parametrize("mask_type", MASK_TYPES)
@pytest.mark.parametrize("shape", ["longer keys", "longer queries"])
@pytest.mark.parametrize("window", [None, (1, 0), (0, 2), (-1, 1), (3, -1)])
def test_every_window_and_diagonal(window, shape, mask_type, bottom_right, backend, monkeypatch):
    if "causal" in mask_type and window is not None:
        window = (window[0], 0)
    case = make_case(mask_type, shape, window=window, bottom_right=bottom_right)
    for qkv_format in ("bshd", "thd") if case.is_padded() else ("bshd",):
        check_against_reference(case, Layout(case, qkv_format), backend, monkeypatch)


@pytest.mark.parametrize("mask_as", ["lengths", "mask"])
@pytest.mark.parametrize("mask_type", ["padding", "padding_causal", "padding_causal_bottom_right"])
@pytest.mark.parametrize("shape", ["self", "longer keys"])
@pytest.mark.parametrize("qkv_format", ["sbhd", "bshd"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_masks_and_lengths_say_the_same(
    backend, qkv_format, shape, mask_type, mask_as, monkeypatch
):
    case = make_case(mask_type, shape)
    check_against_reference(case, Layout(case, qkv_format), backend, monkeypatch, mask_as=mask_as)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("mask_type", ["causal", "padding", "arbitrary"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_dtypes_and_groups(backend, mask_type, groups, dtype, monkeypatch):
    for name, value in BACKENDS[backend].items():
        monkeypatch.setenv(name, value)
    case = make_case(mask_type, groups=groups)
    q, k, v = make_inputs(case, dtype, padding=torch.nan)
    out = make_module(case)(q, k, v, **Layout(case, "bshd").arguments())
    clean = [x.double() for x in make_inputs(case, dtype, padding=0.0)]
    result = reference_attention(case, *clean)
    rounded = dtype if backend == "torch" and dtype.itemsize == 2 else None
    bound = output_bound(case, result, *clean, dtype=dtype, probability_dtype=rounded)
    assert out.dtype == dtype
    assert_within(out, result.out.flatten(2), bound.flatten(2))


def padding_mask_of_issue() -> tuple[torch.Tensor, torch.Tensor]:
    """Lengths 4 and 6 as a (2, 1, 1, 6) mask (True = excluded) and as cumulative lengths."""
    mask = torch.arange(6) >= torch.tensor([4, 6])[:, None]
    return mask[:, None, None, :], torch.tensor([0, 4, 10], dtype=torch.int32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["padding mask", "lengths", "arbitrary mask", "thd"])
@pytest.mark.parametrize("content", [0.0, 1e4, torch.inf, torch.nan])
def test_true_means_excluded_on_every_path(content, form, backend, monkeypatch):
    """Each path equals attention over the four valid tokens alone, whatever the padding holds."""
    for name, value in BACKENDS[backend].items():
        monkeypatch.setenv(name, value)
    mask, cu_seqlens = padding_mask_of_issue()
    q, k, v = (random_tensor((2, 6, 2, 8), dtype=torch.float64, seed=i) for i in range(3))
    leaves = [x.clone() for x in (q, k, v)]
    for x in leaves:
        # An arbitrary mask hides these keys from everyone, but says nothing of the queries there.
        x[0, 4:] = 0.0 if form == "arbitrary mask" and x is leaves[0] else content
        x.requires_grad_()
    arguments: dict[str, Any] = {"attn_mask_type": "padding", "qkv_format": "bshd"}
    inputs = leaves
    if form == "padding mask":
        arguments["attention_mask"] = mask
    elif form == "arbitrary mask":
        arguments.update(attn_mask_type="arbitrary", attention_mask=mask)
    else:
        arguments.update(cu_seqlens_q=cu_seqlens, cu_seqlens_kv=cu_seqlens)
    if form == "thd":
        inputs = [torch.cat((x[0, :4], x[1])) for x in leaves]
        arguments["qkv_format"] = "thd"
    module = DotProductAttention(2, 8)
    out = module(*inputs, **arguments)
    if form == "thd":
        out = torch.stack((torch.cat((out[:4], out.new_zeros(2, 16))), out[4:]))
    out[0, :4].sum().backward()
    alone = [x[:1, :4].clone().requires_grad_() for x in (q, k, v)]
    expected = module(*alone, attn_mask_type="no_mask", qkv_format="bshd")
    expected.sum().backward()
    tolerance = (
        64 * torch.finfo(torch.float64).eps * max(x.abs().max().item() for x in (q, k, v)) ** 3
    )
    assert_within(out[:1, :4], expected, tolerance, "valid positions")
    for name, leaf, want in zip("qkv", leaves, alone, strict=True):
        assert_within(leaf.grad[:1, :4], want.grad, 16 * tolerance, f"d{name}")
        assert not leaf.grad[0, 4:].any(), f"gradient of {name} at padding"
    assert out.isfinite().all()
    if form != "arbitrary mask":  # there a padded query sees the valid keys
        assert not out[0, 4:].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("softmax_type", ["vanilla", "off-by-one"])
def test_fully_masked_queries_give_zero_and_no_gradient(softmax_type, backend, monkeypatch):
    for name, value in BACKENDS[backend].items():
        monkeypatch.setenv(name, value)
    if backend == "torch" and softmax_type != "vanilla":
        return  # refused: test_reasons_are_listed_for_each_backend
    q, k, v = (random_tensor((2, 3, 2, 4), seed=i).requires_grad_() for i in range(3))
    mask = torch.zeros(2, 1, 3, 3, dtype=torch.bool)
    mask[0, :, 1] = True
    mask[1] = True
    module = DotProductAttention(2, 4, qkv_format="bshd", softmax_type=softmax_type)
    out = module(q, k, v, mask, attn_mask_type="arbitrary")
    out.sum().backward()
    assert not out[0, 1].any() and not out[1].any() and out[0, 0].all()
    for x in (q, k, v):
        assert x.grad.isfinite().all() and not x.grad[1].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mask_type", ["causal", "padding", "padding_causal_bottom_right"])
def test_splitting_the_batch_changes_nothing(mask_type, backend, monkeypatch):
    for name, value in BACKENDS[backend].items():
        monkeypatch.setenv(name, value)
    case = make_case(mask_type)
    q, k, v = make_inputs(case, torch.float32)
    mask, _ = padding_mask_of_issue()
    mask = mask if case.is_padded() else None
    module = make_module(case)
    whole = module(q, k, v, mask)
    for b in range(2):
        part = module(*(x[b : b + 1] for x in (q, k, v)), None if mask is None else mask[b : b + 1])
        bound = torch.finfo(torch.float32).eps * case.s_kv * float(v.abs().max())
        assert_within(part, whole[b : b + 1], bound)


@pytest.mark.parametrize("mask_type", ["padding", "padding_causal"])
def test_longer_padding_changes_nothing(mask_type):
    case = make_case(mask_type)
    q, k, v = make_inputs(case, torch.float32)
    module = make_module(case)
    arguments = Layout(case, "bshd").arguments()
    short = module(q, k, v, **arguments)
    wide = [torch.cat((x, torch.full_like(x, torch.nan)), 1) for x in (q, k, v)]
    bound = torch.finfo(torch.float32).eps * case.s_kv * float(v.abs().max())
    assert_within(module(*wide, **arguments)[:, :6], short, bound)


@pytest.mark.parametrize(
    ("shape", "which"),
    [
        ((2, 4, 5, 8), "bhss"),
        ((1, 4, 5, 8), "1hss"),
        ((2, 1, 5, 8), "b1ss"),
        ((1, 1, 5, 8), "11ss"),
        ((1, 1, 1, 8), "111s"),
    ],
)
@pytest.mark.parametrize("bias_type", ["pre_scale_bias", "post_scale_bias"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_bias_shapes_and_their_gradients(backend, bias_type, shape, which, monkeypatch):
    for name, value in BACKENDS[backend].items():
        monkeypatch.setenv(name, value)
    bias = random_tensor(shape, dtype=torch.float64, seed=5)
    case = make_case("no_mask", "longer keys", bias_type=bias_type, bias=bias.requires_grad_())
    q, k, v = make_inputs(case, torch.float64)
    mine = bias.detach().clone().requires_grad_()
    module = make_module(case)
    arguments = {"core_attention_bias_type": bias_type, "core_attention_bias": mine}
    if not accepting_backends(module, q, k, v, arguments):
        return  # refused: test_reasons_are_listed_for_each_backend
    out = module(q, k, v, **arguments)
    result = reference_attention(case, q, k, v)
    out.sum().backward()
    result.out.sum().backward()
    grad_out = torch.ones_like(result.out)
    bound = gradient_bound(case, result, (q, k, v), grad_out, torch.float64)[3]
    summed = tuple(d for d in range(4) if shape[d] == 1)
    bound = bound.sum(summed, keepdim=True) if summed else bound
    assert_within(mine.grad, bias.grad, 4 * bound, which)


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 20])
def test_default_alibi_slopes(heads):
    case = make_case("no_mask", bias_type="alibi", heads=heads, groups=1)
    q, k, v = make_inputs(case, torch.float64)
    out = make_module(case)(q, k, v, core_attention_bias_type="alibi")
    result = reference_attention(case, q, k, v)
    assert_within(out, result.out.flatten(2), 16 * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("per_batch", [False, True])
def test_given_alibi_slopes(per_batch):
    slopes = random_tensor((2, 4) if per_batch else (4,), seed=3).abs()
    case = make_case("causal_bottom_right", "longer keys", bias_type="alibi", slopes=slopes)
    check = {"core_attention_bias_type": "alibi", "alibi_slopes": slopes}
    q, k, v = make_inputs(case, torch.float32)
    out = make_module(case)(q, k, v, **check)
    exact = [x.double() for x in (q, k, v)]
    result = reference_attention(case, *exact)
    bound = output_bound(case, result, *exact, dtype=torch.float32)
    assert_within(out, result.out.flatten(2), bound.flatten(2))


@pytest.mark.parametrize("mask_type", MASK_TYPES)
@pytest.mark.parametrize("bias_type", BIAS_TYPES)
def test_max_logit(bias_type, mask_type):
    case = make_case(mask_type, bias_type=bias_type, softmax_type="learnable")
    q, k, v = make_inputs(case, torch.float64)
    arguments = Layout(case, "bshd").arguments()
    out, max_logit = make_module(case, return_max_logit=True)(q, k, v, **arguments)
    result = reference_attention(case, q, k, v)
    assert max_logit.shape == (4,) and not max_logit.requires_grad
    assert_within(out, result.out.flatten(2), 16 * torch.finfo(torch.float32).eps)  # FP32 offset
    assert_within(max_logit, result.logits.amax((0, 2, 3)), 16 * torch.finfo(torch.float64).eps)


def test_max_logit_of_half_inputs_is_fp32_and_empty_is_minus_infinity():
    module = DotProductAttention(2, 4, return_max_logit=True)
    x = random_tensor((3, 1, 2, 4), dtype=torch.bfloat16)
    out, max_logit = module(x, x, x)
    assert out.dtype == torch.bfloat16 and max_logit.dtype == torch.float32
    assert module(x[:0], x[:0], x[:0])[1].tolist() == [-torch.inf, -torch.inf]


def run_with_dropout(module, inputs, seed=0, **arguments):
    torch.manual_seed(seed)
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = module(*leaves, **arguments)
    out.square().sum().backward()
    return out.detach(), [x.grad for x in leaves]


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_keeps_the_mean_and_scales_what_stays(backend, monkeypatch):
    for name, value in BACKENDS[backend].items():
        monkeypatch.setenv(name, value)
    length, p = 64, 0.25
    q = torch.zeros(length, 4, 2, 4)  # equal scores: every probability is 1 / 64
    v = torch.eye(length)[:, None, None].expand(length, 4, 2, length)
    module = DotProductAttention(2, (4, length), attention_dropout=p, attn_mask_type="no_mask")
    out = module(q, q, v).unflatten(-1, (2, length))  # the dropped probabilities themselves
    kept = out > 0
    expected = torch.where(kept, 1 / length / (1 - p), 0.0)
    assert_within(out, expected, 8 * torch.finfo(torch.float32).eps / length)
    deviation = (p * (1 - p) / kept.numel()) ** 0.5
    assert abs(kept.double().mean().item() - (1 - p)) < 5 * deviation
    module.eval()
    assert (module(q, q, v) > 0).all()


class Tracker:
    """What a Megatron-like RNG tracker is to the module: a fork that swaps the generator state."""

    def __init__(self, seed: int) -> None:
        self.state = torch.Generator().manual_seed(seed).get_state()
        self.forks = 0

    @contextlib.contextmanager
    def fork(self):
        self.forks += 1
        ambient = torch.get_rng_state()
        torch.set_rng_state(self.state)
        try:
            yield
        finally:
            self.state = torch.get_rng_state()
            torch.set_rng_state(ambient)


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_recomputation_repeats_dropout_exactly(backend, tracked, monkeypatch):
    for name, value in BACKENDS[backend].items():
        monkeypatch.setenv(name, value)
    inputs = [random_tensor((6, 2, 2, 4), seed=i) for i in range(3)]
    results = []
    for recompute in (False, True):
        tracker = Tracker(5)
        module = DotProductAttention(
            2,
            4,
            attention_dropout=0.5,
            get_rng_state_tracker=(lambda t=tracker: t) if tracked else None,
        )
        results.append(run_with_dropout(module, inputs, checkpoint_core_attention=recompute))
        assert tracker.forks == int(tracked)
    (out, grads), (out_again, grads_again) = results
    assert torch.equal(out, out_again)
    for x, y in zip(grads, grads_again, strict=True):
        assert torch.equal(x, y)


def test_recomputation_with_every_operand():
    case = make_case("padding", bias_type="post_scale_bias", softmax_type="learnable")
    inputs = make_inputs(case, torch.float64)
    arguments = Layout(case, "bshd").arguments()
    grads = []
    for recompute in (False, True):
        module = make_module(case, return_max_logit=True)
        arguments["core_attention_bias"] = case.bias.detach().clone().requires_grad_()
        leaves = [x.clone().requires_grad_() for x in inputs]
        out, _ = module(*leaves, checkpoint_core_attention=recompute, **arguments)
        out.square().sum().backward()
        tensors = (*leaves, arguments["core_attention_bias"], module.softmax_offset)
        grads.append([x.grad for x in tensors])
    for x, y in zip(*grads, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_the_tracker_is_used_for_dropout_without_sequence_parallel_only(sequence_parallel):
    tracker = Tracker(1)
    module = DotProductAttention(
        2,
        4,
        attention_dropout=0.5,
        sequence_parallel=sequence_parallel,
        get_rng_state_tracker=lambda: tracker,
    )
    x = random_tensor((6, 2, 2, 4))
    module(x, x, x)
    assert tracker.forks == int(not sequence_parallel)
    module.eval()(x, x, x)
    assert tracker.forks == int(not sequence_parallel)


@pytest.mark.parametrize("dim", [-3, -2])
@pytest.mark.parametrize("qkv_format", ["sbhd", "bshd", "thd"])
def test_inputs_in_one_tensor(qkv_format, dim):
    leading = (6,) if qkv_format == "thd" else (3, 2)
    stack = random_tensor((*leading, 3, 2, 4), seed=1)
    stack = stack if dim == -3 else stack.transpose(-3, -2).contiguous()
    arguments: dict[str, Any] = {"qkv_format": qkv_format, "attn_mask_type": "padding_causal"}
    cu_seqlens = torch.tensor([0, 2, 6] if qkv_format == "thd" else [0, 2, 4], dtype=torch.int32)
    if qkv_format == "bshd":
        cu_seqlens = torch.tensor([0, 2, 3, 5], dtype=torch.int32)
    arguments.update(cu_seqlens_q=cu_seqlens, cu_seqlens_kv=cu_seqlens)
    module = DotProductAttention(2, 4)
    q, k, v = stack.unbind(dim)
    expected = module(q, k, v, **arguments)
    packed = module(qkv_layer=stack, qkv_interleave_dim=dim, **arguments)
    assert torch.equal(packed, expected)
    pair = torch.stack((k, v), dim)
    packed = module(query_layer=q, kv_layer=pair, qkv_interleave_dim=dim, **arguments)
    assert torch.equal(packed, expected)


def test_packed_lengths_may_be_left_to_the_module(monkeypatch):
    for name, value in UNFUSED_ONLY.items():
        monkeypatch.setenv(name, value)
    case = make_case("padding_causal", "longer keys")
    layout = Layout(case, "thd", gap=1)
    q, k, v = make_inputs(case, torch.float32)
    packed = layout.pack(q, case.lengths_q), *(layout.pack(x, case.lengths_kv) for x in (k, v))
    arguments = layout.arguments()
    module = make_module(case, "thd")
    expected = module(*packed, **arguments)
    for longest in (None, 64):
        arguments.update(max_seqlen_q=longest, max_seqlen_kv=longest)
        bound = case.s_kv * torch.finfo(torch.float32).eps * float(v.abs().max())
        assert_within(module(*packed, **arguments), expected, bound)
    arguments["max_seqlen_kv"] = 7
    with pytest.raises(ValueError, match="max_seqlen_kv is 7 and a sequence has 8 tokens"):
        module(*packed, **arguments)
    assert not expected[case.lengths_q[0]].any()  # the gap


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sizes", [(0, 2, 3), (3, 0, 3), (3, 2, 0), (0, 2, 0)])
@pytest.mark.parametrize("mask_type", ["causal", "no_mask", "arbitrary"])
def test_empty_inputs_are_ordinary(mask_type, sizes, backend, monkeypatch):
    for name, value in BACKENDS[backend].items():
        monkeypatch.setenv(name, value)
    s_q, b, s_kv = sizes
    q = torch.zeros(s_q, b, 2, 4, requires_grad=True)
    k, v = (torch.ones(s_kv, b, 2, 4, requires_grad=True) for _ in range(2))
    mask = torch.zeros(b, 1, s_q, s_kv, dtype=torch.bool) if mask_type == "arbitrary" else None
    out = DotProductAttention(2, 4)(q, k, v, mask, attn_mask_type=mask_type)
    assert out.shape == (s_q, b, 8) and not (s_kv == 0 and out.any())
    out.sum().backward()
    assert all(x.grad is not None and not x.grad.isnan().any() for x in (q, k, v))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lengths", [[0, 3], [0, 0], [2, 0, 1]])
def test_packed_empty_sequences(lengths, backend, monkeypatch):
    for name, value in BACKENDS[backend].items():
        monkeypatch.setenv(name, value)
    cu_seqlens = cumulative(lengths)
    x = [random_tensor((sum(lengths), 2, 4), seed=i).requires_grad_() for i in range(3)]
    module = DotProductAttention(2, 4, qkv_format="thd", attn_mask_type="padding_causal")
    out = module(*x, cu_seqlens_q=cu_seqlens, cu_seqlens_kv=cu_seqlens)
    assert out.shape == (sum(lengths), 8)
    out.sum().backward()
    assert all(t.grad is not None and t.grad.isfinite().all() for t in x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_casts_the_inputs_and_nothing_inside(backend, monkeypatch):
    for name, value in BACKENDS[backend].items():
        monkeypatch.setenv(name, value)
    case = make_case("causal")
    inputs = make_inputs(case, torch.float32)
    module = make_module(case)
    expected = module(*(x.bfloat16() for x in inputs))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module(*inputs), expected)
        assert torch.equal(module(*(x.bfloat16() for x in inputs)), expected)
        assert module(*(x.double() for x in inputs)).dtype == torch.float64
    assert module(*inputs).dtype == torch.float32


def test_per_call_arguments_override_and_attributes_are_live():
    x = random_tensor((6, 2, 2, 4))
    module = DotProductAttention(2, 4)
    causal, full = module(x, x, x), module(x, x, x, attn_mask_type="no_mask")
    assert not torch.equal(causal, full)
    module.attn_mask_type = "no_mask"
    assert torch.equal(module(x, x, x), full)
    assert torch.equal(module(x, x, x, attn_mask_type="causal"), causal)
    module.softmax_scale = 0.0
    assert_within(module(x, x, x), x.mean(0).flatten(1).expand(6, 2, 8), 1e-6)
    assert not torch.equal(module(x, x, x, window_size=(1, 1)), module(x, x, x))


@pytest.mark.parametrize("spelling", ["padding,causal", "causal_padding", "padding_causal"])
def test_spellings_of_padding_causal(spelling):
    assert DotProductAttention(2, 4, attn_mask_type=spelling).attn_mask_type == "padding_causal"


def test_a_forward_resolves_once_per_signature():
    module = DotProductAttention(2, 4)
    calls = []
    resolve = module._resolve
    module._resolve = lambda *args: calls.append(args) or resolve(*args)
    for length in (3, 3, 5, 3):
        x = torch.zeros(length, 1, 2, 4)
        module(x, x, x)
    assert len(calls) == 2
    for length in range(300):
        x = torch.zeros(length, 1, 2, 4)
        module(x, x, x)
    assert len(module._plans) <= 256


def test_copies_and_pickles_work_after_use():
    x = random_tensor((3, 1, 2, 4))
    module = DotProductAttention(2, 4, softmax_type="learnable")
    expected = module(x, x, x)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(x, x, x), expected)


def test_softmax_offset_and_reset():
    assert DotProductAttention(2, 4).softmax_offset is None
    off_by_one = DotProductAttention(2, 4, softmax_type="off-by-one")
    assert not off_by_one.softmax_offset.any() and "softmax_offset" not in off_by_one.state_dict()
    learnable = DotProductAttention(4, 4, softmax_type="learnable", tp_size=2).to("meta")
    learnable.reset_parameters()
    assert isinstance(learnable.softmax_offset, torch.nn.Parameter)
    assert learnable.softmax_offset.tolist() == [0.0, 0.0]
    assert "softmax_offset" in learnable.state_dict()


def test_tensor_parallel_ranks_hold_their_share():
    module = DotProductAttention(8, 4, num_gqa_groups=4, tp_size=2)
    q, k = torch.zeros(3, 1, 4, 4), torch.zeros(3, 1, 2, 4)
    assert module(q, k, k).shape == (3, 1, 16)
    with pytest.raises(ValueError, match="alibi_slopes is None with tp_size=2 and no tp_group"):
        module(q, k, k, core_attention_bias_type="alibi")


def test_reasons_are_listed_for_each_backend(monkeypatch):
    x = torch.zeros(3, 1, 2, 4)
    module = DotProductAttention(2, 4, softmax_type="off-by-one", return_max_logit=True)
    reasons = module.explain_backends(x, x, x)
    assert "return_max_logit" in reasons["TorchSDPA"]
    assert reasons["UnfusedDotProductAttention"] is None
    module.return_max_logit = False
    assert "softmax_type='off-by-one'" in module.explain_backends(x, x, x)["TorchSDPA"]
    bias = torch.zeros(1, 1, 3, 3)
    module = DotProductAttention(2, 4)
    biased = {"core_attention_bias_type": "pre_scale_bias", "core_attention_bias": bias}
    assert "pre_scale_bias" in module.explain_backends(x, x, x, **biased)["TorchSDPA"]
    biased["core_attention_bias_type"] = "post_scale_bias"
    half = x.bfloat16()
    assert (
        "cannot hold torch.float32"
        in module.explain_backends(half, half, half, **biased)["TorchSDPA"]
    )
    alibi = module.explain_backends(half, half, half, core_attention_bias_type="alibi")
    assert "alibi" in alibi["TorchSDPA"]
    for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"):
        monkeypatch.setenv(name, "0")
    module = DotProductAttention(2, 4)
    with pytest.raises(
        ValueError,
        match=r"no backend accepts this configuration; FusedAttention: switched off by "
        r"NVTE_FUSED_ATTN=0; TorchSDPAVarlen: switched off by NVTE_FLASH_ATTN=0 and "
        r"NVTE_FUSED_ATTN=0; TorchSDPA: .*NVTE_UNFUSED_ATTN=0",
    ):
        module(x, x, x)


def test_get_attention_backend_follows_the_switches(monkeypatch):
    x = torch.zeros(3, 1, 2, 4)
    module = DotProductAttention(2, 4)
    module(x, x, x)
    params = next(iter(module._plans.values())).params
    assert get_attention_backend(params) == (False, None, True, 1, False, [True, True, True])
    monkeypatch.setenv("NVTE_FUSED_ATTN", "0")
    assert get_attention_backend(params) == (True, None, False, -1, False, [True, False, True])
    monkeypatch.setenv("NVTE_FLASH_ATTN", "0")
    assert get_attention_backend(params) == (False, None, False, -1, True, [False, False, True])
    monkeypatch.setenv("NVTE_UNFUSED_ATTN", "0")
    assert get_attention_backend(params) == (False, None, False, -1, False, [False] * 3)
    assert all(explain_attention_backends(params).values())


@pytest.mark.parametrize(
    ("mask_type", "given", "used"),
    [
        ("causal", (-1, -1), (-1, 0)),
        ("causal", (2, 3), (2, 0)),
        ("no_mask", (-1, 0), (-1, -1)),
    ],
)
def test_windows_that_contradict_the_mask_type_warn(mask_type, given, used):
    x = random_tensor((6, 1, 2, 4))
    with pytest.warns(UserWarning, match="window_size is"):
        module = DotProductAttention(2, 4, attn_mask_type=mask_type, window_size=given)
    assert module.window_size == given
    with pytest.warns(UserWarning, match="window_size is"):
        out = module(x, x, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = DotProductAttention(2, 4, attn_mask_type=mask_type, window_size=used)(x, x, x)
    assert torch.equal(out, expected)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_gqa_groups": 3}, ValueError, "num_gqa_groups is 3 and num_attention_heads is 4"),
        ({"tp_size": 3}, ValueError, "num_gqa_groups is 4 and tp_size is 3"),
        ({"attention_dropout": 1.5}, ValueError, "attention_dropout is 1.5"),
        ({"qkv_format": "hsbd"}, ValueError, "qkv_format is 'hsbd'"),
        ({"attention_type": "both"}, ValueError, "attention_type is 'both'"),
        ({"softmax_type": "hard"}, ValueError, "softmax_type is 'hard'"),
        ({"attn_mask_type": "upper"}, ValueError, "attn_mask_type is 'upper'"),
        ({"window_size": 4}, TypeError, "window_size is 4"),
        ({"window_size": (-2, 0)}, ValueError, r"window_size is \(-2, 0\)"),
        ({"cp_comm_type": "mail"}, ValueError, "cp_comm_type is 'mail'"),
    ],
)
def test_constructor_refusals(arguments, error, message):
    with pytest.raises(error, match=message):
        DotProductAttention(4, 8, **arguments)


X = torch.zeros(3, 2, 2, 4)
T = torch.zeros(5, 2, 4)
CU = torch.tensor([0, 2, 5], dtype=torch.int32)
PADDED = {"attn_mask_type": "padding"}
THD = {"qkv_format": "thd", "attn_mask_type": "padding", "cu_seqlens_q": CU, "cu_seqlens_kv": CU}


@pytest.mark.parametrize(
    ("inputs", "arguments", "error", "message"),
    [
        ((X, X, X.double()), {}, TypeError, "have dtypes"),
        ((X.int(), X, X), {}, TypeError, "query_layer has dtype torch.int32"),
        ((None, X, X), {}, TypeError, "query_layer is None"),
        ((X, X, X.to("meta")), {}, ValueError, "are on cpu, cpu, meta"),
        ((X, X[:2], X), {}, ValueError, r"key_layer has shape \(2, 2, 2, 4\) and value_layer"),
        ((X, X[..., :3], X), {}, ValueError, r"key_layer has shape \(3, 2, 2, 3\)"),
        ((X, X, X[..., :3]), {}, ValueError, r"value_layer has shape \(3, 2, 2, 3\)"),
        ((X[:, :, :1], X, X), {}, ValueError, r"query_layer has shape \(3, 2, 1, 4\)"),
        ((T, X, X), {}, ValueError, "sbhd needs 4 dimensions"),
        ((X[:, :1], X, X), {}, ValueError, "batch size 1 and key_layer 2"),
        ((X, X, X), {"qkv_format": "sdbh"}, ValueError, "qkv_format is 'sdbh'"),
        ((X, X, X), {"attn_mask_type": "half"}, ValueError, "attn_mask_type is 'half'"),
        ((X, X, X), {"window_size": [1, 2, 3]}, TypeError, "window_size is"),
        ((X, X, X), PADDED, ValueError, "attention_mask, cu_seqlens_q and cu_seqlens_kv"),
        (
            (X, X, X),
            {**PADDED, "attention_mask": torch.zeros(2, 1, 1, 3)},
            TypeError,
            "attention_mask has dtype torch.float32",
        ),
        (
            (X, X, X),
            {**PADDED, "attention_mask": torch.zeros(2, 1, 3, 3, dtype=torch.bool)},
            ValueError,
            r"attention_mask has shape \(2, 1, 3, 3\)",
        ),
        (
            (X, X[:2], X[:2]),
            {**PADDED, "attention_mask": torch.zeros(2, 1, 1, 2, dtype=torch.bool)},
            ValueError,
            "attention_mask is one tensor for 3 queries and 2 keys",
        ),
        ((X, X, X), {**PADDED, "attention_mask": [CU]}, ValueError, "a sequence of 1"),
        ((X, X, X), {**PADDED, "attention_mask": [3, 4]}, TypeError, "attention_mask.0. is a int"),
        ((X, X, X), {"attn_mask_type": "arbitrary"}, ValueError, "attention_mask is None"),
        (
            (X, X, X),
            {"attn_mask_type": "arbitrary", "attention_mask": torch.zeros(3, 4, dtype=torch.bool)},
            ValueError,
            r"attention_mask has shape \(3, 4\)",
        ),
        ((T, T, T), {"qkv_format": "thd"}, ValueError, "attn_mask_type is 'causal'; thd needs"),
        ((T, T, T), {**THD, "cu_seqlens_kv": None}, ValueError, "cu_seqlens_kv is None; thd"),
        ((T, T, T), {**THD, "cu_seqlens_q": CU.long()}, TypeError, "cu_seqlens_q is torch.int64"),
        ((T, T, T), {**THD, "cu_seqlens_kv": CU[:2]}, ValueError, "cu_seqlens_kv has shape"),
        ((T, T, T), {**THD, "cu_seqlens_q": CU + 1}, ValueError, "cu_seqlens_q is .1, 3, 6."),
        (
            (X, X, X),
            {**PADDED, "cu_seqlens_q": CU[:2], "cu_seqlens_kv": CU[:2]},
            ValueError,
            "cu_seqlens_q has shape",
        ),
        (
            (X, X, X),
            {"core_attention_bias_type": "alibi", "core_attention_bias": X},
            ValueError,
            "core_attention_bias is given with core_attention_bias_type='alibi'",
        ),
        (
            (X, X, X),
            {"core_attention_bias_type": "post_scale_bias"},
            ValueError,
            "core_attention_bias is None",
        ),
        ((X, X, X), {"core_attention_bias_type": "late"}, ValueError, "core_attention_bias_type"),
        ((X, X, X), {"alibi_slopes": torch.ones(2)}, ValueError, "alibi_slopes is given"),
        (
            (X, X, X),
            {"core_attention_bias_type": "alibi", "alibi_slopes": torch.ones(3)},
            ValueError,
            r"alibi_slopes has shape \(3,\)",
        ),
        (
            (X, X, X),
            {"core_attention_bias_type": "post_scale_bias", "core_attention_bias": CU},
            TypeError,
            "core_attention_bias has dtype torch.int32",
        ),
        (
            (X, X, X),
            {"core_attention_bias_type": "post_scale_bias", "core_attention_bias": X},
            ValueError,
            r"core_attention_bias has shape \(3, 2, 2, 4\)",
        ),
        ((X, X, X), {"inference_params": object()}, NotImplementedError, "inference_params"),
        ((X, X, X), {"score_mod": print}, NotImplementedError, "score_mod"),
        ((X, X, X), {"score_mod_tensors": {}}, NotImplementedError, "score_mod"),
        ((X, None, None), {"qkv_layer": X}, ValueError, "qkv_layer is given together with"),
        ((None, X, X), {"kv_layer": X}, ValueError, "kv_layer is given without query_layer"),
        ((), {"qkv_layer": X[None], "qkv_interleave_dim": -1}, ValueError, "qkv_interleave_dim"),
        ((), {"qkv_layer": X[None]}, ValueError, r"qkv_layer has shape \(1, 3, 2, 2, 4\)"),
        (
            (),
            {"qkv_layer": torch.zeros(3, 2, 3, 4, 2).transpose(3, 4)},
            ValueError,
            "qkv_layer has stride",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:window_size")
def test_forward_refusals(inputs, arguments, error, message):
    with pytest.raises(error, match=f"DotProductAttention.forward: .*{message}"):
        DotProductAttention(2, 4)(*inputs, **arguments)


def test_context_parallelism_over_one_rank_only(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        group = torch.distributed.group.WORLD
        module = DotProductAttention(2, 4, cp_group=group)
        x = random_tensor((3, 1, 2, 4))
        expected = module(x, x, x)
        module.set_context_parallel_group(None, None, None, "all_gather")
        assert module.cp_group is None and module.cp_comm_type == "all_gather"
        assert torch.equal(module(x, x, x), expected)
    finally:
        torch.distributed.destroy_process_group()


def test_context_parallelism_over_more_ranks_is_refused(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 2)
    group = object()
    with pytest.raises(NotImplementedError, match=r"cp_group has \[2\] ranks"):
        DotProductAttention(2, 4, cp_group=group)
    module = DotProductAttention(2, 4)
    with pytest.raises(NotImplementedError, match=r"cp_group has \[2, 2\] ranks"):
        module.set_context_parallel_group([group, group], [0, 1], None, "a2a+p2p")
    assert module.cp_group is None and module.cp_comm_type == "p2p"
    module.cp_group = group  # clients also assign the attribute
    x = torch.zeros(3, 1, 2, 4)
    with pytest.raises(NotImplementedError, match="cp_group"):
        module(x, x, x)


def test_recipes_leave_attention_alone_unless_they_say_otherwise():
    x = random_tensor((3, 1, 2, 16), dtype=torch.bfloat16)
    module = DotProductAttention(2, 16)
    expected = module(x, x, x)
    with te.autocast(recipe=DelayedScaling()):
        assert torch.equal(module(x, x, x), expected)


@pytest.mark.smoke
def test_causal_self_attention_trains():
    x = random_tensor((4, 1, 2, 8)).requires_grad_()
    DotProductAttention(2, 8)(x, x, x).sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("softmax_type", SOFTMAX_TYPES)
def test_checkpoints_with_without_and_with_old_extra_state(softmax_type):
    module = torch.nn.ModuleDict({"core": DotProductAttention(2, 4, softmax_type=softmax_type)})
    state = module.state_dict()
    parameters = {"core.softmax_offset"} if softmax_type == "learnable" else set()
    assert state.keys() == parameters | {"core._extra_state"}
    module.load_state_dict(state)
    extra = state.pop("core._extra_state")
    module.load_state_dict(state)
    module.load_state_dict({**state, "core.fused_attention._extra_state": extra})
    with pytest.raises(ValueError, match="cannot be read"):
        module.load_state_dict({**state, "core._extra_state": torch.ones(9, dtype=torch.uint8)})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        module.load_state_dict({**state, "core.other": extra})
