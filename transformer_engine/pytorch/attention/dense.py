# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""From any input format to ``[b, h, s, d]`` with one mask and one bias, and back.

Both dense backends share this step. It also keeps what stands in padding out of the result: padded
tokens are replaced by zeros before the first product, because ``0 * NaN`` would otherwise reach
valid positions (forward) and gradients (backward); the same substitution makes the gradients at
padded keys and values exactly 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .masks import Padding, check_arbitrary, hidden_pairs, padding_from_masks
from .problem import AttentionOperands, AttentionParams
from .resolve import check_padded_lengths, check_slots

WHO = "DotProductAttention.forward"


@dataclass(slots=True)
class DenseInputs:
    """The problem in ``[b, h, s, d]``; k and v have ``num_gqa_groups`` heads."""

    q: Tensor
    k: Tensor
    v: Tensor
    hidden: Tensor | None = None  # bool, broadcastable to [b, h, s_q, s_kv], True = masked out
    empty_rows: Tensor | None = None  # bool [.., .., s_q, 1]: queries without a visible key
    bias: Tensor | None = None  # broadcastable to [b, h, s_q, s_kv], added after scaling
    packing: PackedLayout | None = None  # how to return to thd


def alibi_slopes(num_heads: int, device: torch.device | str = "cpu") -> Tensor:
    """Slopes of ALiBi (Press et al., arXiv:2108.12409), FP32 ``[num_heads]``.

    With n the largest power of two up to the number of heads: ``2 ** (-8 (i + 1) / n)`` for the
    first n heads and ``2 ** (-4 (2 i + 1) / n)`` for the remaining ones.
    """
    if num_heads == 0:
        return torch.zeros(0, device=device)
    n = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (i + 1) / n) for i in range(n)]
    slopes += [2.0 ** (-4.0 * (2 * i + 1) / n) for i in range(num_heads - n)]
    return torch.tensor(slopes, dtype=torch.float32, device=device)


def alibi_bias(
    params: AttentionParams, slopes: Tensor | None, s_q: int, s_kv: int, padding: Padding | None
) -> Tensor:
    """``-|i + shift - j| * slope``, FP32 ``[1 or b, h, s_q, s_kv]``."""
    device, heads = params.device, params.num_heads
    if slopes is None:
        first = params.first_head
        slopes = alibi_slopes(params.total_heads or heads, device)[first : first + heads]
    slopes = slopes.to(device=device, dtype=torch.float32)
    shift: Tensor | int = params.mask.shift(s_q, s_kv)
    if padding is not None:
        shift = padding.shift if params.mask.bottom_right else 0
    distance = torch.arange(s_q, device=device)[:, None] - torch.arange(s_kv, device=device) + shift
    distance = distance.abs().to(torch.float32)
    if distance.dim() == 3:
        distance = distance[:, None]
    return -distance * slopes[..., None, None]


@dataclass(slots=True)
class PackedSide:
    """Where the tokens of one side (query or key) of a packed batch lie."""

    offsets: Tensor  # [b + 1] first row of each slot
    lengths: Tensor  # [b] valid tokens in each slot
    longest: int

    def unpack(self, x: Tensor) -> Tensor:
        """``[t, h, d]`` to ``[b, h, longest, d]``; rows behind a sequence hold arbitrary tokens."""
        tokens = x.shape[0]
        if tokens == 0:
            return (
                x.new_zeros((self.lengths.shape[0], x.shape[1], self.longest, x.shape[2])) + x.sum()
            )
        rows = self.offsets[:-1, None] + torch.arange(self.longest, device=x.device)
        rows = rows.clamp_(max=tokens - 1)
        return x.index_select(0, rows.flatten()).unflatten(0, tuple(rows.shape)).transpose(1, 2)


@dataclass(slots=True)
class PackedLayout:
    """The two sides of a packed batch."""

    q: PackedSide
    kv: PackedSide
    tokens_q: int

    def pack(self, out: Tensor) -> Tensor:
        """``[b, h, s_q, d_v]`` to ``[t, h * d_v]``; rows that belong to no sequence become 0."""
        side, device = self.q, out.device
        flat = out.transpose(1, 2).flatten(2).flatten(0, 1)
        token = torch.arange(self.tokens_q, device=device)
        if flat.shape[0] == 0:
            return flat.new_zeros((self.tokens_q, flat.shape[1])) + flat.sum()
        sequence = torch.searchsorted(side.offsets[1:], token, right=True).clamp_(
            max=side.lengths.shape[0] - 1
        )
        position = token - side.offsets[sequence]
        valid = position < side.lengths[sequence]
        row = torch.where(valid, sequence * side.longest + position, 0)
        return flat.index_select(0, row).masked_fill(~valid[:, None], 0)


def _packed_side(
    side: str, operands: AttentionOperands, longest: int | None, tokens: Tensor
) -> PackedSide:
    device = tokens.device
    cu_seqlens, cu_seqlens_padded = operands.packed_lengths(side)
    lengths = cu_seqlens[1:] - cu_seqlens[:-1]
    offsets = cu_seqlens if cu_seqlens_padded is None else cu_seqlens_padded
    # Reading the lengths waits for their device: done when it must be, and where nothing waits.
    if cu_seqlens.device.type == "cpu" and offsets.device.type == "cpu":
        check_slots(side, cu_seqlens.tolist(), offsets.tolist(), tokens.shape[0], longest)
    if longest is None:
        longest = int(lengths.max())
    offsets = offsets.to(device=device, dtype=torch.int64)
    return PackedSide(offsets, lengths.to(device=device, dtype=torch.int64), longest)


def _check_mask_device(mask: Tensor | tuple[Tensor, Tensor] | None, device: torch.device) -> None:
    for part in mask if isinstance(mask, (tuple, list)) else (mask,):
        if isinstance(part, Tensor) and part.device != device:
            raise ValueError(
                f"{WHO}: attention_mask is on {part.device} and the inputs on {device}; they must "
                f"be on one device. Call attention_mask.to({str(device)!r})."
            )


def _read_padding(
    params: AttentionParams, operands: AttentionOperands, s_q: int, s_kv: int
) -> Padding:
    """Padding of an sbhd or bshd batch from cumulative lengths or, without them, from the mask."""
    cu_q, cu_kv = operands.cu_seqlens_q, operands.cu_seqlens_kv
    if cu_q is not None and cu_kv is not None:
        for side, cu_seqlens, size in (("q", cu_q, s_q), ("kv", cu_kv, s_kv)):
            # The values are in host memory; elsewhere, and while compiling, they are not looked at.
            if cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling():
                check_padded_lengths(side, cu_seqlens, size)
        return Padding.from_lengths(
            cu_q[1:] - cu_q[:-1], cu_kv[1:] - cu_kv[:-1], s_q, s_kv, params.device
        )
    if operands.attention_mask is None:
        raise ValueError(
            f"{WHO}: attention_mask, cu_seqlens_q and cu_seqlens_kv are not all given; "
            f"{params.mask.name} needs a padding mask or both cumulative lengths."
        )
    _check_mask_device(operands.attention_mask, params.device)
    return padding_from_masks(operands.attention_mask, params.batch_size, s_q, s_kv, WHO)


def _without_padding(inputs: DenseInputs, hidden_q: Tensor, hidden_kv: Tensor) -> None:
    """Replace tokens that nobody may read by zeros. Masks: ``[b, s]``."""
    inputs.q = inputs.q.masked_fill(hidden_q[:, None, :, None], 0)
    hidden_kv = hidden_kv[:, None, :, None]
    inputs.k = inputs.k.masked_fill(hidden_kv, 0)
    inputs.v = inputs.v.masked_fill(hidden_kv, 0)


def load(
    params: AttentionParams, q: Tensor, k: Tensor, v: Tensor, operands: AttentionOperands | None
) -> DenseInputs:
    """Bring the inputs to ``[b, h, s, d]`` and build mask and bias."""
    operands = AttentionOperands() if operands is None else operands
    if params.qkv_format == "sbhd":
        inputs = DenseInputs(q.permute(1, 2, 0, 3), k.permute(1, 2, 0, 3), v.permute(1, 2, 0, 3))
    elif params.qkv_format == "bshd":
        inputs = DenseInputs(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    else:
        side_q = _packed_side("q", operands, params.max_seqlen_q, q)
        side_kv = _packed_side("kv", operands, params.max_seqlen_kv, k)
        inputs = DenseInputs(side_q.unpack(q), side_kv.unpack(k), side_kv.unpack(v))
        inputs.packing = PackedLayout(side_q, side_kv, q.shape[0])
    rule = params.mask
    if rule.is_unbounded and not params.needs_operands:
        return inputs
    _mask_and_bias(params, inputs, operands)
    return inputs


def _mask_and_bias(
    params: AttentionParams, inputs: DenseInputs, operands: AttentionOperands
) -> None:
    rule = params.mask
    s_q, s_kv = inputs.q.shape[2], inputs.k.shape[2]
    padding, given = None, None
    if inputs.packing is not None:
        sides = inputs.packing
        padding = Padding.from_lengths(sides.q.lengths, sides.kv.lengths, s_q, s_kv, params.device)
    elif rule.pads:
        padding = _read_padding(params, operands, s_q, s_kv)
    elif rule.arbitrary:
        full_shape = (params.batch_size, params.num_heads, s_q, s_kv)
        _check_mask_device(operands.attention_mask, params.device)
        given = check_arbitrary(operands.attention_mask, full_shape, WHO)
    hidden = hidden_pairs(rule, s_q, s_kv, padding, given, params.device)
    inputs.hidden = hidden
    if hidden is not None and rule.can_hide_whole_rows(s_q, s_kv):
        inputs.empty_rows = hidden.all(-1, keepdim=True)
    if padding is not None:
        _without_padding(inputs, padding.hidden_q, padding.hidden_kv)
    elif given is not None and hidden is not None and inputs.empty_rows is not None:
        batch = hidden.shape[0]
        hidden_q = inputs.empty_rows.all(1)[..., 0].expand(batch, s_q)
        _without_padding(inputs, hidden_q, hidden.all(2).all(1).expand(batch, s_kv))
    inputs.bias = _bias(params, operands, s_q, s_kv, padding)


def _bias(
    params: AttentionParams,
    operands: AttentionOperands,
    s_q: int,
    s_kv: int,
    padding: Padding | None,
) -> Tensor | None:
    kind, bias = params.core_attention_bias_type, operands.bias
    if kind == "no_bias":
        return None
    if kind == "alibi":
        return alibi_bias(params, operands.alibi_slopes, s_q, s_kv, padding)
    assert bias is not None  # see check_bias
    shape = tuple(bias.shape)
    batch, heads = params.batch_size, params.num_heads
    fits = (
        len(shape) == 4 and shape[0] in (1, batch) and shape[1] in (1, heads) and shape[3] == s_kv
    )
    if not fits or not (shape[2] == s_q or shape[:3] == (1, 1, 1)):
        raise ValueError(
            f"{WHO}: core_attention_bias has shape {shape}; with b={batch}, h={heads}, s_q={s_q}, "
            f"s_kv={s_kv} it must be [b, h, s_q, s_kv], [1, h, s_q, s_kv], [b, 1, s_q, s_kv], [1, "
            "1, s_q, s_kv] or [1, 1, 1, s_kv]."
        )
    if kind == "pre_scale_bias":
        wide = torch.promote_types(
            bias.dtype, torch.float32
        )  # the product must not round to 8 bits
        return bias.to(wide) * params.softmax_scale
    return bias


def store(params: AttentionParams, inputs: DenseInputs, out: Tensor) -> Tensor:
    """``[b, h, s_q, d_v]`` back to the input format, heads flattened; rows without a visible key
    become 0.
    """
    if inputs.empty_rows is not None:
        out = out.masked_fill(inputs.empty_rows, 0)
    if inputs.packing is not None:
        return inputs.packing.pack(out)
    if params.qkv_format == "sbhd":
        return out.permute(2, 0, 1, 3).flatten(2)
    return out.transpose(1, 2).flatten(2)
