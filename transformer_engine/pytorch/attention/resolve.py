# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""Checks of attention inputs. All of them need shapes and dtypes only, so they run once per call
signature.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from ..arguments import check_choice, check_tensor, received
from ..constants import AttnBiasTypes
from .problem import QKV_FORMATS

WHO = "DotProductAttention.forward"


def split_packed(
    query: Tensor | None,
    key: Tensor | None,
    value: Tensor | None,
    qkv_layer: Tensor | None,
    kv_layer: Tensor | None,
    interleave_dim: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Views of q, k, v in one tensor ``[.., 3, h, d]`` / ``[.., h, 3, d]``, or of k, v in one with
    2 instead of 3.
    """
    if qkv_layer is not None:
        if not (query is None and key is None and value is None and kv_layer is None):
            raise ValueError(
                f"{WHO}: qkv_layer is given together with other inputs; it already holds query, "
                "key and value. Pass it alone."
            )
        packed, name, parts = check_tensor(WHO, "qkv_layer", qkv_layer), "qkv_layer", 3
    else:
        if query is None or key is not None or value is not None:
            raise ValueError(
                f"{WHO}: kv_layer is given without query_layer or together with key_layer or "
                "value_layer; it holds key and value. Pass query_layer and kv_layer."
            )
        packed, name, parts = check_tensor(WHO, "kv_layer", kv_layer), "kv_layer", 2
    shape = tuple(packed.shape)
    if interleave_dim not in (-3, -2):
        raise ValueError(f"{WHO}: qkv_interleave_dim is {interleave_dim}; it must be -3 or -2.")
    if len(shape) not in (4, 5) or shape[interleave_dim] != parts:
        raise ValueError(
            f"{WHO}: {name} has shape {shape}; it must have 5 dimensions (4 for thd) and size "
            f"{parts} in dimension {interleave_dim}."
        )
    if packed.stride(-1) != 1:
        raise ValueError(
            f"{WHO}: {name} has stride {packed.stride(-1)} in its last dimension; it must be 1. "
            "Call contiguous()."
        )
    views = packed.unbind(interleave_dim)
    first = views[0] if query is None else query
    return first, views[-2], views[-1]


def check_qkv(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    qkv_format: str,
    heads: int,
    groups: int,
    dims: tuple[int, int],
) -> None:
    """Ranks, sizes, dtypes and devices of the three inputs."""
    if qkv_format not in QKV_FORMATS:
        raise ValueError(
            f"{WHO}: qkv_format is {qkv_format!r}; it must be one of {', '.join(QKV_FORMATS)}."
        )
    named = {"query_layer": query, "key_layer": key, "value_layer": value}
    for name, x in named.items():
        check_tensor(WHO, name, x)
        if not x.is_floating_point() or x.dtype.itemsize < 2:
            raise TypeError(
                f"{WHO}: {name} has dtype {x.dtype}; it must be FP16, BF16, FP32 or FP64."
            )
    if not query.dtype == key.dtype == value.dtype:
        raise TypeError(
            f"{WHO}: query_layer, key_layer and value_layer have dtypes {query.dtype}, "
            f"{key.dtype}, {value.dtype}; they must be the same."
        )
    if not query.device == key.device == value.device:
        raise ValueError(
            f"{WHO}: query_layer, key_layer and value_layer are on {query.device}, {key.device}, "
            f"{value.device}; they must be on one device."
        )
    if query.device.type == "meta":
        raise ValueError(
            f"{WHO}: query_layer, key_layer and value_layer are on meta; tensors with data are "
            "required. Move or make them on a real device."
        )
    rank = 3 if qkv_format == "thd" else 4
    expected = {
        "query_layer": (heads, dims[0]),
        "key_layer": (groups, dims[0]),
        "value_layer": (groups, dims[1]),
    }
    for name, x in named.items():
        shape = tuple(x.shape)
        if len(shape) != rank or shape[-2:] != expected[name]:
            raise ValueError(
                f"{WHO}: {name} has shape {shape}; {qkv_format} needs {rank} dimensions ending in "
                f"{expected[name]} (heads of this rank, head size)."
            )
    if key.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            f"{WHO}: key_layer has shape {tuple(key.shape)} and value_layer {tuple(value.shape)}; "
            "all but the head size must agree."
        )
    batch_dim = {"sbhd": 1, "bshd": 0}.get(qkv_format)
    if batch_dim is not None and query.shape[batch_dim] != key.shape[batch_dim]:
        raise ValueError(
            f"{WHO}: query_layer has batch size {query.shape[batch_dim]} and key_layer "
            f"{key.shape[batch_dim]}; they must agree."
        )


def check_cu_seqlens(named: dict[str, Tensor | None], sequences: int | None) -> int | None:
    """Cumulative lengths: int32 vectors of one size, ``sequences + 1`` when that is known.

    Returns the number of sequences, None when neither an argument nor a vector tells it.
    """
    size = None if sequences is None else sequences + 1
    for name, x in named.items():
        if x is None:
            continue
        if not isinstance(x, Tensor) or x.dtype != torch.int32:
            what = x.dtype if isinstance(x, Tensor) else received(x)
            raise TypeError(
                f"{WHO}: {name} is {what}; it must be a torch.int32 tensor of cumulative lengths."
            )
        size = x.shape[0] if size is None and x.dim() == 1 else size
        least = 2 if sequences is None else 1
        if x.dim() != 1 or size is None or x.shape[0] != size or size < least:
            raise ValueError(
                f"{WHO}: {name} has shape {tuple(x.shape)}; cumulative lengths of all sides are "
                f"vectors of one size, sequences + 1{'' if size is None else f' = {size}'}."
            )
    return None if size is None else size - 1


def check_padded_lengths(side: str, cu_seqlens: Tensor, size: int) -> None:
    """Cumulative lengths of an sbhd or bshd batch: from 0, each sequence within its `size` rows.

    Reads the values, so it is for lengths in host memory; elsewhere that would wait for the device.
    """
    ends = cu_seqlens.tolist()
    if ends[0] != 0 or any(not 0 <= b - a <= size for a, b in pairwise(ends)):
        raise ValueError(
            f"{WHO}: cu_seqlens_{side} is {ends} for sequences of {size} rows; it must start at 0, "
            "never decrease, and no length may exceed the rows."
        )


def check_slots(
    side: str, ends: list[int], offsets: list[int], tokens: int, longest: int | None
) -> None:
    """Cumulative lengths of a thd batch, and where its slots begin, as numbers."""
    lengths = [after - before for before, after in pairwise(ends)]
    slots = [after - before for before, after in pairwise(offsets)]
    fits = all(0 <= length <= slot for length, slot in zip(lengths, slots, strict=True))
    if not fits or ends[0] != 0 or offsets[0] != 0 or offsets[-1] > tokens:
        raise ValueError(
            f"{WHO}: cu_seqlens_{side} is {ends} and its padded form is {offsets} for {tokens} "
            "tokens; both must start at 0, never decrease, fit each other and stay within the "
            "tokens."
        )
    if longest is not None and longest < max(lengths):
        raise ValueError(
            f"{WHO}: max_seqlen_{side} is {longest} and a sequence has {max(lengths)} tokens; it "
            "must be at least the longest length. Pass None to have it read from cu_seqlens."
        )


def check_packed(mask_name: str, cu_seqlens_q: Tensor | None, cu_seqlens_kv: Tensor | None) -> None:
    """What thd needs."""
    if "padding" not in mask_name:
        raise ValueError(
            f"{WHO}: attn_mask_type is {mask_name!r}; thd needs a padding type, for example "
            "padding_causal for causal."
        )
    if cu_seqlens_q is None or cu_seqlens_kv is None:
        raise ValueError(f"{WHO}: cu_seqlens_q or cu_seqlens_kv is None; thd needs both.")


def check_bias(kind: str, bias: Tensor | None, device: torch.device) -> None:
    """Bias type against the tensor given for it. (Its shape is checked where the sequence sizes are
    known.)
    """
    check_choice(WHO, "core_attention_bias_type", kind, AttnBiasTypes)
    takes_tensor = kind in ("pre_scale_bias", "post_scale_bias")
    if takes_tensor != (bias is not None):
        raise ValueError(
            f"{WHO}: core_attention_bias is {'None' if bias is None else 'given'} with "
            f"core_attention_bias_type={kind!r}; pre_scale_bias and post_scale_bias need it, the "
            "other types do not take it."
        )
    if bias is None:
        return
    check_tensor(WHO, "core_attention_bias", bias)
    if not bias.is_floating_point() or bias.device != device:
        raise TypeError(
            f"{WHO}: core_attention_bias has dtype {bias.dtype} on {bias.device}; it must be "
            f"floating point on {device}."
        )


def check_alibi_slopes(kind: str, slopes: Tensor | None, batch: int | None, heads: int) -> None:
    """Slopes: one per head, or per sequence and head."""
    if slopes is None:
        return
    if kind != "alibi":
        raise ValueError(
            f"{WHO}: alibi_slopes is given with core_attention_bias_type={kind!r}; slopes belong "
            "to 'alibi'."
        )
    if not check_tensor(WHO, "alibi_slopes", slopes).is_floating_point():
        raise TypeError(
            f"{WHO}: alibi_slopes has dtype {slopes.dtype}; slopes must be floating point (FP32 is "
            "what they are computed in)."
        )
    if tuple(slopes.shape) not in ((heads,), (batch, heads)):
        raise ValueError(
            f"{WHO}: alibi_slopes has shape {tuple(slopes.shape)}; it must be ({heads},) or "
            f"({batch}, {heads}), one per head or per sequence and head."
        )
