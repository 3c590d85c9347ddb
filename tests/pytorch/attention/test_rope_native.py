# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The native rotation: when it runs, that it equals the composed one, its derivatives."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers.formats import FORMATS
from helpers.generators import random_tensor, strided_copy
from helpers.tolerances import assert_identical, assert_within
from transformer_engine.pytorch.attention import rope
from transformer_engine.pytorch.attention.rope import (
    RotaryPositionEmbedding,
    apply_fused_qkv_rotary_pos_emb,
    apply_rotary_pos_emb,
)

HALF_AND_SINGLE = (torch.float32, torch.bfloat16, torch.float16)
ANY_NATIVE = pytest.mark.parametrize("dtype", HALF_AND_SINGLE)


@pytest.fixture
def composed_calls(monkeypatch) -> list[torch.dtype]:
    """dtypes of the tensors that torch operators rotated."""
    calls = []
    rotate = rope._rotate

    def counted(t, *arguments):
        calls.append(t.dtype)
        return rotate(t, *arguments)

    monkeypatch.setattr(rope, "_rotate", counted)
    return calls


@pytest.fixture
def composed(monkeypatch):
    """Makes every rotation one of torch operators."""

    def switch() -> None:
        monkeypatch.setattr(rope, "rotate", lambda *_: None)
        monkeypatch.setattr(rope, "split_and_rotate", lambda *_: None)

    return switch


def both_ways_bound(t: torch.Tensor) -> torch.Tensor:
    """Difference of two rotations of `t`, one number for all elements.

    Two FP32 rotations of the same angles: each has cos and sin to 2 ulp, two products and a sum
    of entries of a pair, and one rounding to the dtype.
    """
    largest = t.double().abs().amax() if t.numel() else torch.zeros((), dtype=torch.float64)
    one = 2 * largest * (8 * FORMATS[torch.float32].unit_roundoff + FORMATS[t.dtype].unit_roundoff)
    return 2 * one


@ANY_NATIVE
def test_fused_rotations_are_native_in_every_dtype_it_has(dtype, composed_calls):
    t, freqs = random_tensor((6, 2, 3, 8), dtype=dtype), RotaryPositionEmbedding(8)(6)
    leaf = t.clone().requires_grad_()
    apply_rotary_pos_emb(leaf, freqs, fused=True).sum().backward()
    apply_fused_qkv_rotary_pos_emb(t, freqs[..., :2], freqs[..., :2], (4, 2, 2))
    cu_seqlens = torch.tensor([0, 2, 6])
    apply_rotary_pos_emb(t[:, 0], freqs, "thd", cu_seqlens=cu_seqlens, fused=True)
    assert composed_calls == []
    apply_rotary_pos_emb(t, freqs)
    apply_rotary_pos_emb(t.double(), freqs, fused=True)
    assert composed_calls == [dtype, torch.float64]


PLACES = {
    "plain": {},
    "start": {"start_positions": torch.tensor([3, 0], dtype=torch.int32)},
    "wide start": {"start_positions": torch.tensor([1, 4])},
    "narrow start": {"start_positions": torch.tensor([1, 4], dtype=torch.int16)},
    "chunks": {"cp_size": 3, "cp_rank": 1},
    "packed": {"cu_seqlens": torch.tensor([0, 5, 5, 14], dtype=torch.int32)},
    "packed chunks": {"cu_seqlens": torch.tensor([0, 8, 12, 32]), "cp_size": 2, "cp_rank": 1},
    "packed start": {
        "cu_seqlens": torch.tensor([0, 5, 16]),
        "start_positions": torch.tensor([2, 7], dtype=torch.int32),
    },
}


@ANY_NATIVE
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [16, 6])
@pytest.mark.parametrize(
    ("tensor_format", "place"),
    [
        (tensor_format, place)
        for place, arguments in PLACES.items()
        for tensor_format in (["thd"] if "cu_seqlens" in arguments else ["sbhd", "bshd"])
    ],
)
def test_native_and_composed_rotations_agree(
    tensor_format, place, width, interleaved, dtype, composed
):
    arguments = PLACES[place]
    shape = {"sbhd": (16, 2, 3, 16), "bshd": (2, 16, 3, 16), "thd": (16, 3, 16)}[tensor_format]
    t, grad = (random_tensor(shape, dtype=dtype, seed=i) for i in (1, 2))
    freqs = random_tensor((48, 1, 1, width), seed=3) * 40
    runs = []
    for is_composed in (False, True):
        if is_composed:
            composed()
        leaf = t.clone().requires_grad_()
        out = apply_rotary_pos_emb(
            leaf, freqs, tensor_format, interleaved=interleaved, fused=True, **arguments
        )
        out.backward(grad)
        runs.append((out.detach(), leaf.grad))
    for i, moved in enumerate((t, grad)):
        assert_within(runs[0][i], runs[1][i].double(), both_ways_bound(moved), ("out", "grad")[i])


@pytest.mark.parametrize("interleaved", [False, True])
def test_any_strides_give_the_same_bits(interleaved):
    t = random_tensor((6, 2, 4, 16), dtype=torch.bfloat16, seed=1)
    freqs = RotaryPositionEmbedding(8, interleaved=interleaved)(6)

    def run(x, **layout):
        return apply_rotary_pos_emb(x, freqs, interleaved=interleaved, fused=True, **layout)

    expected = run(t)
    wide = torch.zeros(6, 2, 5, 24, dtype=torch.bfloat16)
    wide[:, :, 1:, 3:19] = t  # rows that begin on no multiple of 16 bytes
    views = {
        "gaps": wide[:, :, 1:, 3:19],
        "step": strided_copy(t),
        "heads first": t.transpose(1, 2).contiguous().transpose(1, 2),
        "channels first": t.transpose(1, 3).contiguous().transpose(1, 3),
        "negated": torch._neg_view(-t),
        "expanded": t[:, :1].expand(6, 2, 4, 16),
    }
    for name, view in views.items():
        out = run(view)
        assert out.is_contiguous()
        assert_identical(out, run(view.contiguous().resolve_neg()), name)
    batch_first = run(t.transpose(0, 1), tensor_format="bshd")
    assert_identical(batch_first, expected.transpose(0, 1))


def test_gradients_of_any_strides():
    t = random_tensor((6, 2, 4, 8), seed=1).requires_grad_()
    freqs = RotaryPositionEmbedding(8)(6)
    grad = random_tensor((6, 2, 4, 8), seed=2)
    for view in (strided_copy(grad), torch._neg_view(-grad), grad[:1].expand(6, 2, 4, 8)):
        out = apply_rotary_pos_emb(t, freqs, fused=True)
        (dense,) = torch.autograd.grad(out, t, view.clone(), retain_graph=True)
        assert_identical(torch.autograd.grad(out, t, view)[0], dense)


@pytest.mark.parametrize("freqs_dtype", [torch.float64, torch.bfloat16])
def test_tables_of_other_dtypes_are_cast(freqs_dtype):
    t, freqs = random_tensor((6, 2, 1, 8), seed=1), RotaryPositionEmbedding(8)(6).to(freqs_dtype)
    expected = apply_rotary_pos_emb(t, freqs.float(), fused=True)
    assert_identical(apply_rotary_pos_emb(t, freqs, fused=True), expected)
    assert_identical(apply_rotary_pos_emb(t, freqs.expand(6, 1, 1, 8), fused=True), expected)


def test_angles_get_no_gradient_and_keep_theirs():
    freqs = RotaryPositionEmbedding(4)(3).requires_grad_()
    t = random_tensor((3, 1, 1, 4)).requires_grad_()
    apply_rotary_pos_emb(t, freqs, fused=True).sum().backward()
    assert freqs.grad is None and t.grad is not None


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_gradient_can_be_differentiated(interleaved):
    t = random_tensor((5, 2, 3, 8), seed=1).requires_grad_()
    grad = random_tensor((5, 2, 3, 8), seed=2).requires_grad_()
    weight = random_tensor((5, 2, 3, 8), seed=3)
    freqs = random_tensor((5, 1, 1, 6), seed=4)
    out = apply_rotary_pos_emb(t, freqs, interleaved=interleaved, fused=True)
    (first,) = torch.autograd.grad(out, t, grad, create_graph=True)
    # first = R^T grad, so that d <first, weight> / d grad = R weight; and so on.
    (second,) = torch.autograd.grad(first, grad, weight, create_graph=True)
    assert_identical(
        second, apply_rotary_pos_emb(weight, freqs, interleaved=interleaved, fused=True)
    )


def test_the_gradient_of_qkv_can_be_differentiated():
    qkv = random_tensor((5, 2, 2, 22), seed=1).requires_grad_()
    q_freqs, k_freqs = random_tensor((5, 1, 1, 4), seed=4), random_tensor((5, 1, 1, 2), seed=5)

    def split(x):
        return apply_fused_qkv_rotary_pos_emb(x, q_freqs, k_freqs, (12, 4, 6))

    parts = split(qkv)
    grads = [
        random_tensor(tuple(part.shape), seed=i).requires_grad_() for i, part in enumerate(parts)
    ]
    (plain,) = torch.autograd.grad(parts, qkv, grads, retain_graph=True)
    (first,) = torch.autograd.grad(parts, qkv, grads, create_graph=True)
    assert_identical(first, plain)
    weight = random_tensor((5, 2, 2, 22), seed=9)
    second = torch.autograd.grad(first, grads, weight)
    for have, want in zip(second, split(weight), strict=True):
        assert_identical(have, want)


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2)])
@pytest.mark.parametrize("create_graph", [False, True])
def test_parts_without_a_gradient_give_zeros(used, create_graph):
    qkv = random_tensor((5, 2, 2, 22), dtype=torch.bfloat16, seed=1).requires_grad_()
    freqs = RotaryPositionEmbedding(4)(5)
    parts = apply_fused_qkv_rotary_pos_emb(qkv, freqs, freqs, (12, 4, 6))
    grads = [random_tensor(tuple(x.shape), dtype=x.dtype, seed=i) for i, x in enumerate(parts)]
    zeroed = [g if i in used else torch.zeros_like(g) for i, g in enumerate(grads)]
    (expected,) = torch.autograd.grad(parts, qkv, zeroed, retain_graph=True)
    (have,) = torch.autograd.grad(
        [parts[i] for i in used], qkv, [grads[i] for i in used], create_graph=create_graph
    )
    assert_identical(have, expected)


@ANY_NATIVE
@pytest.mark.parametrize("tensor_format", ["sbhd", "bshd"])
def test_native_and_composed_qkv_agree(tensor_format, dtype, composed):
    qkv = random_tensor((5, 3, 2, 22), dtype=dtype, seed=1)
    q_freqs, k_freqs = RotaryPositionEmbedding(4)(9), 2 * RotaryPositionEmbedding(2)(9)
    runs = []
    for is_composed in (False, True):
        if is_composed:
            composed()
        leaf = strided_copy(qkv).requires_grad_()
        parts = apply_fused_qkv_rotary_pos_emb(leaf, q_freqs, k_freqs, (12, 4, 6), tensor_format)
        grads = [random_tensor(tuple(x.shape), dtype=dtype, seed=i) for i, x in enumerate(parts)]
        torch.autograd.backward(parts, grads)
        runs.append((*(part.detach() for part in parts), leaf.grad))
    for native, other in zip(*runs, strict=True):
        assert native.is_contiguous()
        bound = both_ways_bound(torch.cat([x.flatten() for x in (qkv, *grads)]))
        assert_within(native, other.double(), bound)


def test_empty_tensors():
    freqs = RotaryPositionEmbedding(4)(6)
    for shape in ((0, 2, 3, 4), (6, 0, 3, 4), (6, 2, 0, 4)):
        t = torch.zeros(shape, requires_grad=True)
        out = apply_rotary_pos_emb(t, freqs, fused=True)
        out.sum().backward()
        assert out.shape == t.grad.shape == shape
    qkv = torch.zeros(6, 0, 2, 12, requires_grad=True)
    parts = apply_fused_qkv_rotary_pos_emb(qkv, freqs, freqs, (4, 4, 4))
    torch.autograd.backward(parts, [torch.zeros_like(part) for part in parts])
    assert qkv.grad.shape == qkv.shape


def test_transforms_and_tensors_without_data_are_composed(composed_calls):
    freqs = RotaryPositionEmbedding(4)(5)
    t = random_tensor((3, 5, 1, 2, 4), seed=1)

    def run(x):
        return apply_rotary_pos_emb(x, freqs, fused=True)

    expected = torch.stack([run(x) for x in t])
    assert composed_calls == []
    assert_within(torch.vmap(run)(t), expected.double(), both_ways_bound(t))
    grad = torch.func.grad(lambda x: run(x).sum())(t[0])
    leaf = t[0].clone().requires_grad_()
    run(leaf).sum().backward()
    assert_within(grad, leaf.grad.double(), both_ways_bound(torch.ones_like(grad)))
    _, tangent = torch.func.jvp(run, (t[0],), (t[1],))
    assert_within(tangent, run(t[1]).double(), both_ways_bound(t))
    mode = FakeTensorMode()
    fake_t, fake_freqs = mode.from_tensor(t[0]), mode.from_tensor(freqs)
    assert apply_rotary_pos_emb(fake_t, fake_freqs, fused=True).shape == fake_t.shape
    assert len(composed_calls) == 4
    meta = apply_rotary_pos_emb(t[0].to("meta"), freqs.to("meta"), fused=True)
    assert meta.device.type == "meta" and meta.shape == t[0].shape


def test_batched_gradients_are_refused():
    t = random_tensor((5, 1, 2, 4)).requires_grad_()
    out = apply_rotary_pos_emb(t, RotaryPositionEmbedding(4)(5), fused=True)
    with pytest.raises(NotImplementedError, match="RotaryEmbeddingBackward: the gradient is a wr"):
        torch.autograd.grad(out, t, out.expand(3, *out.shape), is_grads_batched=True)


def test_an_angle_changed_in_place_is_noticed():
    t, freqs = random_tensor((5, 1, 2, 4)).requires_grad_(), RotaryPositionEmbedding(4)(5)
    out = apply_rotary_pos_emb(t, freqs, fused=True)
    freqs.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
