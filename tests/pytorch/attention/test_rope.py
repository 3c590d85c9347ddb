# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings against rotations of single channel pairs in float64."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch

from helpers.formats import FORMATS
from helpers.generators import random_tensor, strided_copy
from helpers.tolerances import assert_identical, assert_within
from transformer_engine.pytorch.attention.rope import (
    RotaryPositionEmbedding,
    apply_fused_qkv_rotary_pos_emb,
    apply_rotary_pos_emb,
)

FP32 = torch.float32


def exact_angles(positions: torch.Tensor, dim: int, base: float = 10000.0) -> torch.Tensor:
    """float64 [positions, dim / 2]."""
    frequencies = [base ** (-2 * i / dim) for i in range(dim // 2)]
    return positions.double()[:, None] * torch.tensor(frequencies, dtype=torch.float64)


def angle_bound(angles: torch.Tensor) -> torch.Tensor:
    """An FP32 angle is off by one rounding of the frequency and one of the product (and an ulp)."""
    return angles.abs() * 3 * FORMATS[FP32].unit_roundoff


def rotate_reference(
    t: torch.Tensor, angles: torch.Tensor, interleaved: bool, sign: int = 1
) -> torch.Tensor:
    """t [.., d] and angles [.., width / 2], one pair after the other, float64."""
    out = t.double().clone()
    width = 2 * angles.shape[-1]
    for i in range(width // 2):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + width // 2)
        cos, sin = angles[..., i].cos(), sign * angles[..., i].sin()
        x, y = t[..., a].double(), t[..., b].double()
        out[..., a] = x * cos - y * sin
        out[..., b] = y * cos + x * sin
    return out


def rotation_bound(
    t: torch.Tensor, angles: torch.Tensor, dtype: torch.dtype, fused: bool
) -> torch.Tensor:
    """Errors of the angle, of cos and sin, of two products and a sum, and of the last rounding.

    Each component is at most the norm of its pair, itself at most the row's largest entries.
    """
    math_dtype = torch.promote_types(dtype, FP32) if fused else dtype
    pair = 2 * t.double().abs().amax(-1, keepdim=True)
    angle = angle_bound(angles).max() if angles.numel() else 0.0
    steps = 4 * FORMATS[math_dtype].unit_roundoff + FORMATS[FP32].epsilon
    return pair * (angle + steps + FORMATS[dtype].unit_roundoff)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("percent", [1.0, 0.5])
def test_angles_are_exact_to_fp32(interleaved, percent):
    dim = int(32 * percent)
    module = RotaryPositionEmbedding(32, rotary_percent=percent, interleaved=interleaved)
    table = module(1024, offset=3)
    assert table.shape == (1024, 1, 1, dim) and table.dtype == FP32
    exact = exact_angles(torch.arange(1024) + 3, dim)
    expected = exact.repeat_interleave(2, 1) if interleaved else torch.cat((exact, exact), 1)
    assert_within(table[:, 0, 0], expected, angle_bound(expected))


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_of_any_device_type_leaves_the_angles(device_type, dtype):
    outside = RotaryPositionEmbedding(32)(max_seq_len=1024)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without a GPU, CUDA autocast warns and does nothing
        autocast = torch.autocast(device_type, dtype=dtype)
    with autocast:
        built_inside = RotaryPositionEmbedding(32)
        inside = built_inside(max_seq_len=1024)
    assert_identical(inside, outside)
    exact = exact_angles(torch.tensor([1023]), 32)[0]
    assert_within(inside[1023, 0, 0, :16], exact, angle_bound(exact))


@pytest.mark.parametrize("change", ["half", "bfloat16", "double"])
def test_casting_the_module_leaves_the_angles(change):
    module = torch.nn.Sequential(RotaryPositionEmbedding(16))
    expected = module[0](2048)
    assert_identical(getattr(copy.deepcopy(module), change)()[0](2048), expected)
    on_meta = copy.deepcopy(module).to("meta")
    assert_identical(on_meta.to_empty(device=torch.get_default_device())[0](2048), expected)


def test_inside_torch_device_meta_the_table_is_real():
    with torch.device("meta"):
        module = RotaryPositionEmbedding(8)
    assert_identical(module(5), RotaryPositionEmbedding(8)(5))


@pytest.mark.parametrize(("length", "ratio"), [(64, 1 / 4), (256, 1 / 4), (512, 64 / 512)])
def test_interpolation(length, ratio):
    module = RotaryPositionEmbedding(
        8, seq_len_interpolation_factor=4, pretrained_max_position_embeddings=64
    )
    expected = exact_angles(torch.arange(length) * ratio, 8)
    assert_within(module(length)[:, 0, 0, :4], expected, angle_bound(expected))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dim": 7}, ValueError, "dim gives 7 rotating channels"),
        ({"dim": 12, "rotary_percent": 0.25}, ValueError, "dim gives 3 rotating channels"),
        ({"dim": 4, "rotary_percent": 0.1}, ValueError, "dim gives 0 rotating channels"),
        ({"dim": 0}, ValueError, "dim is 0"),
        ({"dim": -2}, ValueError, "dim is -2"),
        ({"dim": "x"}, TypeError, "dim is 'x'"),
        ({"dim": 8.0}, TypeError, "dim is 8.0"),
        ({"rotary_percent": 0.0}, ValueError, "rotary_percent is 0.0"),
        ({"rotary_percent": -0.5}, ValueError, "rotary_percent is -0.5"),
        ({"rotary_percent": 1.5}, ValueError, "rotary_percent is 1.5"),
        ({"rotary_percent": math.nan}, ValueError, "rotary_percent is nan"),
        ({"rotary_percent": "a"}, TypeError, "rotary_percent is 'a'"),
        ({"rotary_base": 0}, ValueError, "rotary_base is 0"),
        ({"rotary_base": math.inf}, ValueError, "rotary_base is inf"),
        ({"rotary_base": None}, TypeError, "rotary_base is None"),
        ({"seq_len_interpolation_factor": 2}, ValueError, "seq_len_interpolation_factor is 2 and"),
        ({"seq_len_interpolation_factor": 0}, ValueError, "seq_len_interpolation_factor is 0;"),
        (
            {"pretrained_max_position_embeddings": -8},
            ValueError,
            "pretrained_max_position_embeddings is -8",
        ),
    ],
)
def test_constructor_refusals(arguments, error, message):
    with pytest.raises(error, match=f"^RotaryPositionEmbedding: {message}"):
        RotaryPositionEmbedding(**{"dim": 8, **arguments})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((-4,), ValueError, "max_seq_len is -4"),
        ((2.5,), TypeError, "max_seq_len is 2.5"),
        ((None,), TypeError, "max_seq_len is None"),
        ((4, "x"), TypeError, "offset is 'x'"),
        ((4, math.nan), ValueError, "offset is nan"),
    ],
)
def test_lengths_that_are_refused(arguments, error, message):
    with pytest.raises(error, match=f"^RotaryPositionEmbedding.forward: {message}"):
        RotaryPositionEmbedding(8)(*arguments)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("width", [8, 4])
@pytest.mark.parametrize("tensor_format", ["sbhd", "bshd"])
def test_rotation_and_its_transpose(tensor_format, width, fused, interleaved, dtype):
    s, b = 7, 2
    shape = (s, b, 3, 8) if tensor_format == "sbhd" else (b, s, 3, 8)
    t = random_tensor(shape, dtype=dtype, seed=1).requires_grad_()
    freqs = RotaryPositionEmbedding(width, interleaved=interleaved)(s + 2)
    out = apply_rotary_pos_emb(t, freqs, tensor_format, interleaved=interleaved, fused=fused)
    angles = exact_angles(torch.arange(s), width)
    angles = angles[:, None, None] if tensor_format == "sbhd" else angles[None, :, None]
    bound = rotation_bound(t.detach(), angles, dtype, fused)
    assert out.dtype == dtype
    assert_within(out, rotate_reference(t.detach(), angles, interleaved), bound)
    grad = random_tensor(shape, dtype=dtype, seed=2)
    out.backward(grad)
    bound = rotation_bound(grad, angles, dtype, fused)
    assert_within(t.grad, rotate_reference(grad, angles, interleaved, sign=-1), bound)


def test_unfused_rounds_as_the_composed_formula():
    t = random_tensor((5, 2, 3, 8), dtype=torch.bfloat16)
    freqs = RotaryPositionEmbedding(8)(5)
    cos, sin = freqs.cos().bfloat16(), freqs.sin().bfloat16()
    turned = torch.cat((-t[..., 4:], t[..., :4]), -1)
    assert_identical(apply_rotary_pos_emb(t, freqs), t * cos + turned * sin)


def test_angles_get_no_gradient():
    freqs = RotaryPositionEmbedding(4)(3).requires_grad_()
    apply_rotary_pos_emb(random_tensor((3, 1, 1, 4)).requires_grad_(), freqs).sum().backward()
    assert freqs.grad is None


def test_angles_of_the_two_halves_may_differ():
    t = random_tensor((4, 1, 2, 6), dtype=torch.float64, seed=1).requires_grad_()
    freqs = random_tensor((4, 1, 1, 6), dtype=torch.float32, seed=2)
    assert torch.autograd.gradcheck(lambda x: apply_rotary_pos_emb(x, freqs), (t,))
    assert torch.autograd.gradgradcheck(lambda x: apply_rotary_pos_emb(x, freqs), (t,))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("cp_size", [1, 2])
@pytest.mark.parametrize("start", [None, [3, 0, 5]])
def test_packed_sequences_restart_and_follow_context_parallel_chunks(start, cp_size, fused):
    lengths = [8, 4, 12]
    cu_seqlens = torch.tensor([0, 8, 12, 24], dtype=torch.int32)
    freqs = RotaryPositionEmbedding(6)(24)
    full = random_tensor((24, 2, 6), seed=1)
    start_positions = None if start is None else torch.tensor(start, dtype=torch.int32)
    expected = torch.cat(
        [
            rotate_reference(
                x, exact_angles(torch.arange(len(x)) + (start or [0] * 3)[i], 6)[:, None], False
            )
            for i, x in enumerate(full.split(lengths))
        ]
    )
    bound = rotation_bound(full, exact_angles(torch.tensor([24]), 6), FP32, fused)
    for rank in range(cp_size):
        index = torch.arange(24)
        if cp_size == 2:  # chunks r and 2 cp - 1 - r of each sequence
            pieces = [x.chunk(4) for x in index.split(lengths)]
            index = torch.cat([torch.cat((p[rank], p[3 - rank])) for p in pieces])
        out = apply_rotary_pos_emb(
            full[index], freqs, "thd", start_positions, False, fused, cu_seqlens, cp_size, rank
        )
        assert_within(out, expected[index], bound[index])


def test_packed_padding_and_empty_sequences():
    cu_seqlens = torch.tensor([0, 3, 3, 5], dtype=torch.int32)
    freqs = RotaryPositionEmbedding(4)(3)
    t = random_tensor((8, 1, 4))
    out = apply_rotary_pos_emb(t, freqs, "thd", cu_seqlens=cu_seqlens)
    positions = torch.tensor([0, 1, 2, 0, 1, 0, 0, 0])  # the last three belong to nobody
    assert_identical(out, apply_rotary_pos_emb(t[:, None], freqs[positions])[:, 0])
    empty = apply_rotary_pos_emb(t[:0], freqs, "thd", cu_seqlens=torch.zeros(2, dtype=torch.int32))
    assert empty.shape == (0, 1, 4)


@pytest.mark.parametrize("tensor_format", ["sbhd", "bshd"])
def test_context_parallel_chunks_of_a_dense_batch(tensor_format):
    freqs = RotaryPositionEmbedding(4)(8)
    t = random_tensor((8, 2, 3, 4), seed=1)
    expected = apply_rotary_pos_emb(t, freqs)
    for rank in range(2):
        chunks = torch.arange(8).chunk(4)
        index = torch.cat((chunks[rank], chunks[3 - rank]))
        local, want = t[index], expected[index]
        if tensor_format == "bshd":
            local, want = local.transpose(0, 1), want.transpose(0, 1)
        out = apply_rotary_pos_emb(local, freqs, tensor_format, cp_size=2, cp_rank=rank)
        assert_identical(out, want)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("tensor_format", ["sbhd", "bshd"])
def test_start_positions(tensor_format, fused):
    freqs = RotaryPositionEmbedding(4)(9)
    t = random_tensor((4, 3, 2, 4), seed=1)
    start = torch.tensor([0, 5, 2], dtype=torch.int32)
    expected = torch.stack(
        [
            apply_rotary_pos_emb(t[:, i : i + 1], freqs[p:], fused=fused)[:, 0]
            for i, p in enumerate(start.tolist())
        ],
        dim=1,
    )
    if tensor_format == "bshd":
        t, expected = t.transpose(0, 1), expected.transpose(0, 1)
    assert_identical(apply_rotary_pos_emb(t, freqs, tensor_format, start, fused=fused), expected)
    with pytest.raises(ValueError, match=r"start_positions lie in 0\.\.6 and freqs has 9"):
        apply_rotary_pos_emb(t, freqs, tensor_format, start + (start == 5), fused=fused)
    with pytest.raises(ValueError, match="start_positions has shape"):
        apply_rotary_pos_emb(t, freqs, tensor_format, start[:2], fused=fused)


def test_strided_input_and_empty_input():
    freqs = RotaryPositionEmbedding(4)(6)
    t = random_tensor((6, 2, 3, 4))
    assert_identical(apply_rotary_pos_emb(strided_copy(t), freqs), apply_rotary_pos_emb(t, freqs))
    assert apply_rotary_pos_emb(t[:0], freqs).shape == (0, 2, 3, 4)


@pytest.mark.parametrize("tensor_format", ["sbhd", "bshd"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_fused_qkv_equals_its_parts(interleaved, tensor_format):
    groups, head = 2, 4
    qkv = random_tensor((5, 3, groups, 3 * head + head + 6), dtype=torch.bfloat16, seed=1)
    q_freqs, k_freqs = RotaryPositionEmbedding(4)(9), 2 * RotaryPositionEmbedding(2)(9)
    leaf, twin = qkv.clone().requires_grad_(), qkv.clone().requires_grad_()
    out = apply_fused_qkv_rotary_pos_emb(
        leaf, q_freqs, k_freqs, [12, 4, 6], tensor_format, interleaved=interleaved
    )
    q, k, v = twin.split([12, 4, 6], -1)
    options = {"tensor_format": tensor_format, "interleaved": interleaved, "fused": True}
    expected = (
        apply_rotary_pos_emb(q.reshape(5, 3, groups * 3, head), q_freqs, **options),
        apply_rotary_pos_emb(k, k_freqs, **options),
        v,
    )
    grads = [random_tensor(tuple(x.shape), dtype=torch.bfloat16, seed=i) for i, x in enumerate(out)]
    for have, want in zip(out, expected, strict=True):
        assert have.is_contiguous()
        assert_identical(have, want)
    torch.autograd.backward(out, grads)
    torch.autograd.backward(expected, grads)
    assert_identical(leaf.grad, twin.grad)


def test_fused_qkv_start_positions_and_context_parallel():
    qkv, freqs = random_tensor((4, 2, 1, 12), seed=1), RotaryPositionEmbedding(4)(16)
    start = torch.tensor([1, 7], dtype=torch.int32)
    q, k, _ = apply_fused_qkv_rotary_pos_emb(qkv, freqs, freqs, (4, 4, 4), start_positions=start)
    assert_identical(
        q, apply_rotary_pos_emb(qkv[..., :4], freqs, start_positions=start, fused=True)
    )
    q, k, _ = apply_fused_qkv_rotary_pos_emb(qkv, freqs, freqs, (4, 4, 4), cp_size=2, cp_rank=1)
    assert_identical(
        k, apply_rotary_pos_emb(qkv[..., 4:8], freqs, cp_size=2, cp_rank=1, fused=True)
    )


T, FREQS = torch.zeros(4, 2, 1, 4), torch.zeros(8, 1, 1, 4)
CU = torch.tensor([0, 4], dtype=torch.int32)
THD = {"t": T[:, 0], "tensor_format": "thd", "cu_seqlens": CU}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tensor_format": "hsbd"}, "tensor_format is 'hsbd'"),
        ({"tensor_format": "thd", "cu_seqlens": CU}, r"t has shape \(4, 2, 1, 4\); thd needs 3"),
        ({"t": T[:, 0], "tensor_format": "thd"}, "cu_seqlens is None"),
        ({"t": T[:, 0], "tensor_format": "thd", "cu_seqlens": CU.float()}, "cu_seqlens has shape"),
        ({"freqs": FREQS[:3]}, "freqs has 3 positions; t needs 4"),
        ({"freqs": FREQS[:, 0]}, r"freqs has shape \(8, 1, 4\)"),
        ({"freqs": torch.zeros(8, 1, 1, 6)}, "freqs rotates 6 channels and the head size is 4"),
        ({"cp_size": 2, "cp_rank": 2}, "cp_rank is 2 and cp_size is 2"),
        ({"cp_size": 0}, "cp_size is 0"),
        ({"cp_rank": -1}, "cp_rank is -1"),
        ({"t": T[:3], "cp_size": 2}, "t holds 3 positions"),
        ({"freqs": FREQS.to("meta")}, "freqs is on meta"),
        ({"start_positions": torch.ones(2).bool()}, "start_positions has shape"),
        ({**THD, "cu_seqlens": torch.tensor([0, 3, 20])}, r"cu_seqlens is \[0, 3, 20\]"),
        ({**THD, "cu_seqlens": torch.tensor([0, 3, 2])}, r"cu_seqlens is \[0, 3, 2\]"),
        ({**THD, "cu_seqlens": torch.tensor([1, 4])}, r"cu_seqlens is \[1, 4\]"),
        ({**THD, "cu_seqlens": CU[:1]}, "cu_seqlens has shape"),
        (
            {**THD, "cu_seqlens": torch.tensor([0, 6]), "cp_size": 2},
            r"cu_seqlens is \[0, 6\], .*multiple of 4\.",
        ),
        (
            {**THD, "cu_seqlens": torch.tensor([0, 3, 8]), "cp_size": 2, "fused": True},
            r"cu_seqlens is \[0, 3, 8\], sequences of \[3, 5\] tokens; .*Pad the sequences",
        ),
        ({**THD, "freqs": FREQS[:3]}, r"sequences of \[4\] tokens start at \[0\] and freqs has 3"),
        (
            {**THD, "start_positions": torch.tensor([5])},
            r"sequences of \[4\] tokens start at \[5\]",
        ),
        ({**THD, "start_positions": torch.tensor([-1])}, r"sequences .* start at \[-1\]"),
    ],
)
def test_refusals(arguments, message):
    arguments = {"t": T, "freqs": FREQS, **arguments}
    with pytest.raises(ValueError, match=rf"apply_rotary_pos_emb: {message}"):
        apply_rotary_pos_emb(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"freqs": FREQS.long()}, r"freqs has dtype torch\.int64"),
        ({"freqs": None}, "freqs is None"),
        ({"t": T.long()}, r"t has dtype torch\.int64"),
        ({"t": T.numpy()}, "t is of type ndarray"),
        ({"start_positions": [0, 0]}, r"start_positions is \[0, 0\]"),
        ({**THD, "cu_seqlens": [0, 4]}, r"cu_seqlens is \[0, 4\]"),
        ({"cp_size": "a"}, "cp_size is 'a'"),
    ],
)
def test_wrong_types_are_refused(arguments, message):
    with pytest.raises(TypeError, match=rf"^apply_rotary_pos_emb: {message}"):
        apply_rotary_pos_emb(**{"t": T, "freqs": FREQS, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tensor_format": "thd"}, "tensor_format is 'thd'"),
        ({"cu_seqlens": CU}, "cu_seqlens is given"),
        ({"start_positions": CU, "cp_size": 2}, "start_positions is given with cp_size=2"),
        ({"qkv_split_arg_list": [4, 4, 5]}, r"qkv_split_arg_list is \[4, 4, 5\]"),
        ({"qkv_split_arg_list": [5, 4, 3]}, r"qkv_split_arg_list is \[5, 4, 3\]"),
        ({"qkv_split_arg_list": [-4, 4, 12]}, r"qkv_split_arg_list\[0\] is -4"),
        ({"qkv": T[0]}, r"qkv has shape \(2, 1, 4\)"),
        ({"k_freqs": FREQS[:3]}, "freqs has 3 positions; qkv needs 4"),
    ],
)
def test_fused_qkv_refusals(arguments, message):
    arguments = {
        "qkv": torch.zeros(4, 2, 1, 12),
        "q_freqs": FREQS,
        "k_freqs": FREQS,
        "qkv_split_arg_list": [4, 4, 4],
        **arguments,
    }
    with pytest.raises(ValueError, match=rf"apply_fused_qkv_rotary_pos_emb: {message}"):
        apply_fused_qkv_rotary_pos_emb(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"qkv": None}, "qkv is None"),
        ({"q_freqs": None}, "q_freqs is None"),
        ({"qkv_split_arg_list": None}, "qkv_split_arg_list is None"),
        ({"qkv_split_arg_list": [4, 4, 4.0]}, r"qkv_split_arg_list\[2\] is 4\.0"),
    ],
)
def test_fused_qkv_wrong_types_are_refused(arguments, message):
    whole = {"qkv": torch.zeros(4, 2, 1, 12), "q_freqs": FREQS, "k_freqs": FREQS}
    arguments = {**whole, "qkv_split_arg_list": [4, 4, 4], **arguments}
    with pytest.raises(TypeError, match=rf"^apply_fused_qkv_rotary_pos_emb: {message}"):
        apply_fused_qkv_rotary_pos_emb(**arguments)


def test_inverse_frequencies_use_the_given_base():
    module = RotaryPositionEmbedding(8, rotary_base=500000.0)
    expected = torch.tensor([math.pow(500000.0, -2 * i / 8) for i in range(4)], dtype=FP32)
    assert_identical(module.inv_freq, expected)
    assert dict(module.named_buffers()).keys() == {"inv_freq"}
