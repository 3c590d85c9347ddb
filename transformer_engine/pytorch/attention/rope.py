# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""Rotary position embeddings (Su et al., "RoFormer", arXiv:2104.09864).

Angles are FP32: ``angle[p, i] = p * base ** (-2 i / dim)``. A pair of channels ``(x, y)`` of a
token at position ``p`` becomes ``(x cos - y sin, y cos + x sin)``. The pairs are
``(i, i + dim / 2)``, or ``(2 i, 2 i + 1)`` when interleaved.

Fused rotations are one native pass (``common/include/transformer_engine/rope.h``), forward and
backward. Where native code cannot read the tensors (FP64, fake tensors, function transforms,
``torch.compile``) they are composed of torch operators, with the same arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ..arguments import check_choice, check_int, check_number, check_tensor, received
from ..cpp_extensions.rope import rotate, split_and_rotate

__all__ = [
    "RotaryPositionEmbedding",
    "apply_fused_qkv_rotary_pos_emb",
    "apply_rotary_pos_emb",
]

_FORMATS = ("sbhd", "bshd", "thd")


def _inverse_frequencies(dim: int, base: float, device: torch.device) -> Tensor:
    """``base ** (-2 i / dim)`` in FP32 ``[ceil(dim / 2)]``; powers are taken in FP64 and rounded
    once.
    """
    exponents = torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim
    return torch.pow(float(base), -exponents).to(device=device, dtype=torch.float32)


class RotaryPositionEmbedding(torch.nn.Module):
    """Table of rotation angles.

    Parameters
    ----------
    dim : int
        Head size. With ``rotary_percent < 1`` the embedding covers ``int(dim * rotary_percent)``
        channels.
    rotary_percent : float
        Share of the channels that rotate.
    seq_len_interpolation_factor : int, optional
        Positions are divided by this factor (linear interpolation); needs
        `pretrained_max_position_embeddings`.
    pretrained_max_position_embeddings : int, optional
        Longest sequence of pre-training. When ``max_seq_len`` exceeds this times the factor,
        positions are scaled by ``pretrained_max_position_embeddings / max_seq_len`` instead.
        Without a factor it has no effect.
    rotary_base : float
        Base of the geometric progression of frequencies.
    interleaved : bool
        Pair neighbouring channels instead of the two halves.

    Attributes
    ----------
    inv_freq : torch.Tensor
        Buffer, FP32 ``[dim / 2]``. Stays FP32 (and keeps its values) under ``.half()``,
        ``.to(dtype)`` and ``.to_empty()``, because 8 bits of mantissa cannot hold the angle of a
        far position.
    """

    inv_freq: Tensor

    def __init__(
        self,
        dim: int,
        rotary_percent: float = 1.0,
        seq_len_interpolation_factor: int | None = None,
        pretrained_max_position_embeddings: int | None = None,
        rotary_base: float = 10000.0,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        who = "RotaryPositionEmbedding"
        dim = check_int(who, "dim", dim)
        rule = "0 < rotary_percent <= 1 must hold."
        check_number(who, "rotary_percent", rotary_percent, rule, lambda x: 0.0 < x <= 1.0)
        rule = "it must be a finite number above 0."
        for name, value in (
            ("rotary_base", rotary_base),
            ("seq_len_interpolation_factor", seq_len_interpolation_factor),
            ("pretrained_max_position_embeddings", pretrained_max_position_embeddings),
        ):
            if value is not None or name == "rotary_base":
                check_number(who, name, value, rule, lambda x: 0.0 < x < math.inf)
        if rotary_percent < 1.0:
            dim = int(dim * rotary_percent)
        if dim <= 0 or dim % 2 != 0:
            raise ValueError(
                f"RotaryPositionEmbedding: dim gives {dim} rotating channels; they turn in pairs, "
                "so the number must be even and positive. Choose another dim or rotary_percent."
            )
        if seq_len_interpolation_factor is not None and pretrained_max_position_embeddings is None:
            raise ValueError(
                "RotaryPositionEmbedding: seq_len_interpolation_factor is "
                f"{seq_len_interpolation_factor} and pretrained_max_position_embeddings is None; "
                "interpolation needs both. Pass the longest sequence of pre-training."
            )
        self.dim = dim
        self.rotary_base = rotary_base
        self.interleaved = interleaved
        self.seq_len_interpolation_factor = seq_len_interpolation_factor
        self.pretrained_max_position_embeddings = pretrained_max_position_embeddings
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.register_buffer("inv_freq", _inverse_frequencies(dim, rotary_base, device))

    def _apply(
        self, fn: Callable[[Tensor], Tensor], recurse: bool = True
    ) -> RotaryPositionEmbedding:
        before = self.inv_freq
        super()._apply(fn, recurse)
        device = self.inv_freq.device
        if before.device.type == "meta":
            self.inv_freq = _inverse_frequencies(self.dim, self.rotary_base, device)
        else:
            self.inv_freq = before.to(device=device)
        return self

    def forward(self, max_seq_len: int, offset: int = 0) -> Tensor:
        """Angles of the positions ``offset ... offset + max_seq_len - 1``.

        Only element-wise products are used, which no autocast mode casts, so the result is the same
        FP32 tensor inside and outside ``torch.autocast`` of any device type.

        Returns
        -------
        torch.Tensor
            FP32 ``[max_seq_len, 1, 1, dim]``.

        Raises
        ------
        ValueError, TypeError
            `max_seq_len` is no int or negative, `offset` no number.
        """
        who = "RotaryPositionEmbedding.forward"
        if not torch.compiler.is_compiling():  # where sizes may be symbols
            max_seq_len = check_int(who, "max_seq_len", max_seq_len, minimum=0)
            if not isinstance(offset, Tensor):
                check_number(who, "offset", offset)
        inv_freq = self.inv_freq
        positions = torch.arange(max_seq_len, device=inv_freq.device, dtype=torch.float32) + offset
        factor = self.seq_len_interpolation_factor
        pretrained = self.pretrained_max_position_embeddings
        if factor is not None and pretrained is not None:
            if max_seq_len > pretrained * factor:
                positions = positions * (pretrained / max_seq_len)
            else:
                positions = positions * (1 / factor)
        angles = positions[:, None] * inv_freq
        angles = angles.repeat_interleave(2, dim=-1) if self.interleaved else angles.repeat(1, 2)
        return angles[:, None, None, :]

    def extra_repr(self) -> str:
        """Shown by ``print(module)``."""
        return f"dim={self.dim}, rotary_base={self.rotary_base}, interleaved={self.interleaved}"


@dataclass(frozen=True, slots=True)
class _Placement:
    """Where the tokens of a tensor stand in their sequences."""

    tensor_format: str
    start_positions: Tensor | None
    cu_seqlens: Tensor | None
    cp_size: int
    cp_rank: int
    name: str = "t"  # of the tensor, for messages


def _local_positions(length: int, cp_size: int, cp_rank: int, device: torch.device) -> Tensor:
    """Positions of the `length` tokens that a rank holds of one sequence, int64 ``[length]``.

    With context parallelism a sequence is cut into ``2 cp_size`` chunks; rank r holds chunk r and
    chunk ``2 cp_size - 1 - r``, which balances the work of a causal mask.
    """
    positions = torch.arange(length, device=device)
    if cp_size == 1:
        return positions
    half = length // 2
    first = positions[:half] + cp_rank * half
    second = positions[: length - half] + (2 * cp_size - cp_rank - 1) * half
    return torch.cat((first, second))


def _packed_positions(tokens: int, place: _Placement, device: torch.device) -> Tensor:
    """Positions of packed tokens, int64 ``[tokens]``: each sequence starts at 0 (or its start
    position).
    """
    assert place.cu_seqlens is not None  # see _check_placement
    cu_seqlens = place.cu_seqlens.to(device=device, dtype=torch.int64)
    if place.cp_size > 1:
        cu_seqlens = cu_seqlens // place.cp_size
    token = torch.arange(tokens, device=device)
    sequence = torch.searchsorted(cu_seqlens[1:], token, right=True).clamp_(
        max=cu_seqlens.shape[0] - 2
    )
    position = token - cu_seqlens[sequence]
    length = (cu_seqlens[1:] - cu_seqlens[:-1])[sequence]
    inside = position < length  # False behind the last sequence: such tokens belong to nobody
    if place.cp_size > 1:
        half = length // 2
        shift = torch.where(
            position < half,
            place.cp_rank * half,
            (2 * place.cp_size - place.cp_rank - 1) * half - half,
        )
        position = position + shift
    if place.start_positions is not None:
        position = position + place.start_positions.to(device=device, dtype=torch.int64)[sequence]
    return torch.where(inside, position, 0)


def _angles_of_tokens(freqs: Tensor, shape: Sequence[int], place: _Placement) -> Tensor:
    """The row of `freqs` that belongs to each token, shaped to broadcast against ``[..., heads,
    channels]``.
    """
    table = freqs[:, 0, 0, :]
    device = table.device
    if place.tensor_format == "thd":
        return table.index_select(0, _packed_positions(shape[0], place, device))[:, None, :]
    batch_first = place.tensor_format == "bshd"
    length = shape[1] if batch_first else shape[0]
    start = place.start_positions
    if start is None:
        if place.cp_size == 1:
            angles = table[:length]
        else:
            angles = table.index_select(
                0, _local_positions(length, place.cp_size, place.cp_rank, device)
            )
        return angles[None, :, None, :] if batch_first else angles[:, None, None, :]
    positions = _local_positions(length, place.cp_size, place.cp_rank, device)
    start = start.to(device=device, dtype=torch.int64)
    index = start[:, None] + positions if batch_first else positions[:, None] + start
    return table[index][:, :, None, :]


def _swap_pairs(x: Tensor, interleaved: bool) -> Tensor:
    """Exchange the two channels of each pair."""
    if interleaved:
        return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return torch.roll(x, x.shape[-1] // 2, -1)


def _rotate(t: Tensor, angles: Tensor, interleaved: bool, fused: bool) -> Tensor:
    """``t cos + swap(t) sin``, the sine negated in the first channel of each pair.

    Works in place on the swapped copy, because fresh memory costs more than the arithmetic. The
    autograd formulas of these operators are the transposed rotation, so there is no node of our
    own. Fused arithmetic is FP32 and rounds once; unfused, cos and sin have the dtype of `t` and
    each operation rounds (which a fused multiply-add would not).
    """
    dtype = t.dtype
    is_half = dtype.itemsize == 2
    angles = angles.detach().to(torch.float32)
    width = angles.shape[-1]
    cos, sin = angles.cos(), angles.sin()
    first = (Ellipsis, slice(0, None, 2)) if interleaved else (Ellipsis, slice(0, width // 2))
    sin[first].neg_()
    is_partial = width != t.shape[-1]
    turning = t[..., :width] if is_partial else t
    turned = _swap_pairs(turning, interleaved)
    if is_half and not fused:
        turned = turned.mul_(sin.to(dtype)).add_(turning * cos.to(dtype))
    elif is_half:
        turned = turned.to(torch.float32).mul_(sin).addcmul_(turning.to(torch.float32), cos)
        turned = turned.to(dtype)
    else:
        turned = turned.mul_(sin.to(dtype)).addcmul_(turning, cos.to(dtype))
    return torch.cat((turned, t[..., width:]), -1) if is_partial else turned


def _check_table(freqs: Tensor, t: Tensor, head_size: int, name: str, who: str) -> None:
    shape = tuple(check_tensor(who, name, freqs).shape)
    if len(shape) != 4 or shape[1] != 1 or shape[2] != 1:
        raise ValueError(
            f"{who}: {name} has shape {shape}; it must be [positions, 1, 1, channels], as "
            "RotaryPositionEmbedding returns it."
        )
    if shape[3] > head_size or shape[3] % 2 != 0:
        raise ValueError(
            f"{who}: {name} rotates {shape[3]} channels and the head size is {head_size}; channels "
            "turn in pairs, so their number must be even and at most the head size."
        )
    if not freqs.is_floating_point():
        raise TypeError(
            f"{who}: {name} has dtype {freqs.dtype}; angles must be floating point (FP32 is exact)."
        )
    if freqs.device != t.device:
        raise ValueError(
            f"{who}: {name} is on {freqs.device} and what it rotates on {t.device}; they "
            "must be on one device."
        )


def _is_integer(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


def _check_packed(tokens: int, rows: int, place: _Placement, who: str) -> None:
    """Cumulative lengths against the tokens and the table, where no device has to be waited for."""
    cu_seqlens, start = place.cu_seqlens, place.start_positions
    on_host = all(x is None or x.device.type == "cpu" for x in (cu_seqlens, start))
    if cu_seqlens is None or not on_host or torch.compiler.is_compiling():
        return
    ends = cu_seqlens.tolist()
    lengths = [after - before for before, after in pairwise(ends)]
    if ends[0] != 0 or min(lengths) < 0 or ends[-1] > tokens * place.cp_size:
        raise ValueError(
            f"{who}: cu_seqlens is {ends} and t has {tokens} tokens on each of {place.cp_size} "
            "ranks; it must start at 0, never decrease and stay within the tokens."
        )
    if place.cp_size > 1 and any(length % (2 * place.cp_size) != 0 for length in lengths):
        raise ValueError(
            f"{who}: cu_seqlens is {ends}, sequences of {lengths} tokens; with "
            f"cp_size={place.cp_size} a rank holds two equal chunks of each, so every length must "
            f"be a multiple of {2 * place.cp_size}. Pad the sequences."
        )
    starts = [0] * len(lengths) if start is None else start.tolist()
    needed = max(first + length for first, length in zip(starts, lengths, strict=True))
    if needed > rows or min(starts) < 0:
        raise ValueError(
            f"{who}: sequences of {lengths} tokens start at {starts} and freqs has {rows} "
            f"positions; {needed} are needed. Build freqs for a longer sequence."
        )


def _check_start_positions(
    place: _Placement, batch: int, length: int | None, rows: int, who: str, wait: bool
) -> None:
    start = place.start_positions
    if start is None:
        return
    if tuple(start.shape) != (batch,) or not _is_integer(start):
        raise ValueError(
            f"{who}: start_positions has shape {tuple(start.shape)} and dtype {start.dtype}; it "
            f"must be an integer tensor of shape ({batch},), one start per sequence."
        )
    # The values are on the host anyway for a CPU tensor; elsewhere reading them would stall the
    # device.
    if length is not None and batch > 0 and (wait or start.device.type == "cpu"):
        needed = int(start.max()) + length * place.cp_size
        if needed > rows or int(start.min()) < 0:
            raise ValueError(
                f"{who}: start_positions lie in {int(start.min())}..{int(start.max())} and freqs "
                f"has {rows} positions; {needed} are needed. Build freqs for a longer sequence."
            )


def _check_length(length: int, rows: int, place: _Placement, who: str) -> None:
    """A dense sequence against the chunks of context parallelism and the table."""
    if place.cp_size > 1 and length % 2 != 0:
        raise ValueError(
            f"{who}: {place.name} holds {length} positions of each sequence; with "
            f"cp_size={place.cp_size} a rank holds two equal chunks, so the number must be "
            "even. Pad the sequences to a multiple of 2 * cp_size."
        )
    if length * place.cp_size > rows:
        raise ValueError(
            f"{who}: freqs has {rows} positions; {place.name} needs "
            f"{length * place.cp_size}. Build freqs for a longer sequence."
        )


def _check_placement(t: Tensor, place: _Placement, who: str) -> None:
    """Checks which need no value of a tensor."""
    tensor_format = place.tensor_format
    check_choice(who, "tensor_format", tensor_format, _FORMATS)
    if not check_tensor(who, place.name, t).is_floating_point():
        raise TypeError(
            f"{who}: {place.name} has dtype {t.dtype}; it must be floating point. Cast it first."
        )
    for name, operand in (
        ("cu_seqlens", place.cu_seqlens),
        ("start_positions", place.start_positions),
    ):
        if operand is not None:
            check_tensor(who, name, operand)
    check_int(who, "cp_size", place.cp_size)
    check_int(who, "cp_rank", place.cp_rank, minimum=0)
    rank = 3 if tensor_format == "thd" else 4
    if t.dim() != rank:
        raise ValueError(
            f"{who}: {place.name} has shape {tuple(t.shape)}; {tensor_format} needs {rank} "
            "dimensions. Reshape it or name another tensor_format."
        )
    if place.cp_rank >= place.cp_size:
        raise ValueError(
            f"{who}: cp_rank is {place.cp_rank} and cp_size is {place.cp_size}; 0 <= cp_rank < "
            "cp_size must hold."
        )
    cu_seqlens = place.cu_seqlens
    if tensor_format == "thd":
        if cu_seqlens is None:
            raise ValueError(
                f"{who}: cu_seqlens is None; thd needs the cumulative lengths of the packed "
                "sequences."
            )
        if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2 or not _is_integer(cu_seqlens):
            raise ValueError(
                f"{who}: cu_seqlens has shape {tuple(cu_seqlens.shape)} and dtype "
                f"{cu_seqlens.dtype}; it must be an integer vector of sequences + 1 cumulative "
                "lengths."
            )


def apply_rotary_pos_emb(  # noqa: PLR0913 - public signature
    t: Tensor,
    freqs: Tensor,
    tensor_format: str = "sbhd",
    start_positions: Tensor | None = None,
    interleaved: bool = False,
    fused: bool = False,
    cu_seqlens: Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> Tensor:
    """Rotate the leading ``freqs.shape[-1]`` channels of each head; the other channels pass
    through.

    Parameters
    ----------
    t : torch.Tensor
        ``[s, b, h, d]``, ``[b, s, h, d]`` or ``[t, h, d]``, any strides, any floating dtype.
    freqs : torch.Tensor
        Angles ``[positions, 1, 1, channels]``; receives no gradient.
    tensor_format : {"sbhd", "bshd", "thd"}
    start_positions : torch.Tensor, optional
        Integer ``[b]``: position of the first token of each sequence.
    interleaved : bool
        Pair neighbouring channels instead of the two halves.
    fused : bool
        True: one native pass, whose arithmetic is FP32 and rounds once. False: torch operators;
        cos and sin are rounded to the dtype of `t` first and each operation rounds.
    cu_seqlens : torch.Tensor, optional
        thd only: cumulative (padded) lengths ``[b + 1]`` over all ranks; they are divided by
        `cp_size` inside, so that with ``cp_size > 1`` each length must be a multiple of
        ``2 cp_size``. Tokens behind the last sequence count as position 0. Values on a GPU are
        not waited for: there, lengths are not checked, and a position outside `freqs` gives NaN in
        the channels that turn (fused), or the device's own error.
    cp_size, cp_rank : int
        Context parallelism: this rank holds chunks ``cp_rank`` and ``2 cp_size - 1 - cp_rank`` of
        each sequence.

    Returns
    -------
    torch.Tensor
        Same shape and dtype as `t`.

    Raises
    ------
    ValueError
        Unknown format, a shape that does not fit, positions beyond the table, `cu_seqlens` that is
        missing or does not fit.
    TypeError
        No tensor, or one of another kind of dtype.
    """
    who = "apply_rotary_pos_emb"
    place = _Placement(tensor_format, start_positions, cu_seqlens, cp_size, cp_rank)
    _check_placement(t, place, who)
    shape = t.shape
    _check_table(freqs, t, shape[-1], "freqs", who)
    rows = freqs.shape[0]
    if tensor_format == "thd" and cu_seqlens is not None:
        _check_start_positions(place, cu_seqlens.shape[0] - 1, None, rows, who, False)
        _check_packed(shape[0], rows, place, who)
    else:
        batch, length = (shape[0], shape[1]) if tensor_format == "bshd" else (shape[1], shape[0])
        _check_start_positions(place, batch, length, rows, who, not fused)
        _check_length(length, rows, place, who)
        cu_seqlens = None
    if fused and not torch.compiler.is_compiling():
        layout = _FORMATS.index(tensor_format)
        out = rotate(t, freqs, layout, interleaved, start_positions, cu_seqlens, cp_size, cp_rank)
        if out is not None:
            return out
    return _rotate(t, _angles_of_tokens(freqs, shape, place), interleaved, fused)


def apply_fused_qkv_rotary_pos_emb(  # noqa: PLR0913 - public signature
    qkv: Tensor,
    q_freqs: Tensor,
    k_freqs: Tensor,
    qkv_split_arg_list: Sequence[int],
    tensor_format: str = "sbhd",
    start_positions: Tensor | None = None,
    interleaved: bool = False,
    cu_seqlens: Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split an interleaved QKV projection and rotate its query and key; FP32 arithmetic, one
    rounding.

    Parameters
    ----------
    qkv : torch.Tensor
        ``[s, b, g, q + k + v]`` or ``[b, s, g, q + k + v]``: for each of g groups, the channels of
        its query heads, its key head and its value head.
    q_freqs, k_freqs : torch.Tensor
        Angles ``[positions, 1, 1, channels]``.
    qkv_split_arg_list : sequence of int
        The three widths q, k, v; k is the head size and q a multiple of it.
    tensor_format : {"sbhd", "bshd"}
    start_positions, interleaved, cp_size, cp_rank
        As in :func:`apply_rotary_pos_emb`; `start_positions` cannot be combined with ``cp_size >
        1``.
    cu_seqlens : None
        Accepted for symmetry; packed sequences (thd) are not possible in this layout.

    Returns
    -------
    tuple of torch.Tensor
        Contiguous q ``[.., .., g * q / k, k]``, k ``[.., .., g, k]``, v ``[.., .., g, v]``.
    """
    who = "apply_fused_qkv_rotary_pos_emb"
    if tensor_format not in ("sbhd", "bshd"):
        raise ValueError(
            f"{who}: tensor_format is {tensor_format!r}; it must be sbhd or bshd. Use "
            "apply_rotary_pos_emb."
        )
    if cu_seqlens is not None:
        raise ValueError(
            f"{who}: cu_seqlens is given; packed sequences are not possible here. Use "
            "apply_rotary_pos_emb."
        )
    if start_positions is not None and cp_size > 1:
        raise ValueError(
            f"{who}: start_positions is given with cp_size={cp_size}; only one of them may be used."
        )
    place = _Placement(tensor_format, start_positions, None, cp_size, cp_rank, "qkv")
    _check_placement(qkv, place, who)
    if not isinstance(qkv_split_arg_list, (tuple, list)):
        raise TypeError(
            f"{who}: qkv_split_arg_list is {received(qkv_split_arg_list)}; it must be three widths "
            "(q, k, v)."
        )
    widths = tuple(
        check_int(who, f"qkv_split_arg_list[{i}]", width, minimum=0)
        for i, width in enumerate(qkv_split_arg_list)
    )
    shape = tuple(qkv.shape)
    if len(widths) != 3 or sum(widths) != shape[-1] or widths[1] <= 0 or widths[0] % widths[1] != 0:
        raise ValueError(
            f"{who}: qkv_split_arg_list is {list(widths)} and qkv has shape {shape}; it must be "
            "three widths (q, k, v) that add up to the last size, q a multiple of k."
        )
    head_size = widths[1]
    batch, length = (shape[0], shape[1]) if tensor_format == "bshd" else (shape[1], shape[0])
    for name, table in (("q_freqs", q_freqs), ("k_freqs", k_freqs)):
        _check_table(table, qkv, head_size, name, who)
        _check_start_positions(place, batch, length, table.shape[0], who, False)
        _check_length(length, table.shape[0], place, who)
    if not torch.compiler.is_compiling():
        layout = _FORMATS.index(tensor_format)
        parts = split_and_rotate(
            qkv, q_freqs, k_freqs, *widths, layout, interleaved, start_positions, cp_size, cp_rank
        )
        if parts is not None:
            return parts
    query, key, value = qkv.split(widths, dim=-1)
    query = query.unflatten(-1, (widths[0] // head_size, head_size))
    query_angles = _angles_of_tokens(q_freqs, shape, place)
    key_angles = query_angles if k_freqs is q_freqs else _angles_of_tokens(k_freqs, shape, place)
    return (
        _rotate(query, query_angles.unsqueeze(2), interleaved, True).flatten(2, 3),
        _rotate(key, key_angles, interleaved, True),
        value.contiguous(),
    )
