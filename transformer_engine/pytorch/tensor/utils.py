# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Quantized primary weights under sharded optimizers: raw buffers, casting master weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import ProcessGroup

from ..cpp_extensions import cast as tex
from .float8_current_scaling import Float8CurrentScalingQuantizer
from .float8_quantizer import Float8Quantizer
from .float8_tensor import Float8Tensor
from .identity_tensor import IdentityTensor
from .mxfp8_tensor import MXFP8Tensor
from .quantizer import Quantizer
from .storage.float8_tensor_storage import Float8TensorStorage, count_write
from .storage.quantized_storage import QuantizedTensorStorage


def replace_raw_data(tensor: Any, new_raw_data: torch.Tensor) -> None:
    """Move a tensor's raw data into a given buffer, keeping its values.

    Parameters
    ----------
    tensor : Float8Tensor or IdentityTensor
        Afterwards holds `new_raw_data` itself; later in-place updates are visible in it.
    new_raw_data : torch.Tensor
        Contiguous, as many elements and the dtype of the raw data (uint8 for FP8), perhaps a part
        of a larger buffer.

    Raises
    ------
    ValueError
        For another dtype or size, or a tensor that has no raw data.
    NotImplementedError
        For MXFP8, whose scales would have to move too.
    """
    if isinstance(tensor, MXFP8Tensor):
        raise NotImplementedError("replace_raw_data: tensor is an MXFP8Tensor; it cannot be moved.")
    if isinstance(tensor, Float8Tensor):
        check_is_whole("replace_raw_data: tensor", tensor)
        is_transpose_current = not tensor._transpose_invalid
        tensor._data = _moved(tensor._data, new_raw_data)
        if is_transpose_current:
            tensor._mark_transpose_current()
    elif isinstance(tensor, IdentityTensor):
        tensor._hp_data = _moved(tensor._hp_data, new_raw_data)
    else:
        raise ValueError(
            f"replace_raw_data: tensor is a {type(tensor).__name__}; a Float8Tensor or an "
            "IdentityTensor is required."
        )


def check_is_whole(name: str, tensor: Float8TensorStorage) -> None:
    """Refuse views: what is done to their bytes or scale would be done to more than them."""
    if tensor._whole is not None:
        raise ValueError(
            f"{name} is a view, shape {tuple(tensor.shape)}, of a tensor of shape "
            f"{tuple(tensor._whole.shape)}; a tensor of its own is required. Pass the whole tensor."
        )


def _moved(old: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
    if old is None:
        raise ValueError("replace_raw_data: tensor holds no rowwise data to move.")
    if old.dtype != new.dtype or old.numel() != new.numel() or not new.is_contiguous():
        raise ValueError(
            f"replace_raw_data: new_raw_data has dtype {new.dtype}, {new.numel()} elements and "
            f"strides {new.stride()}; {old.numel()} contiguous elements of {old.dtype} are "
            "required."
        )
    new = new.detach().view(old.shape)
    new.copy_(old)
    return new


@dataclass(frozen=True, slots=True)
class _Shard:
    """What one rank casts of one weight."""

    weight: Float8TensorStorage
    values: torch.Tensor | None  # flat, rounded to the model's dtype; None: nothing
    target: torch.Tensor | None  # flat uint8 of the same length


def quantize_master_weights(
    model_weights: Sequence[Any],
    master_weights: Sequence[torch.Tensor | None],
    start_offsets: Sequence[int | None],
    group: ProcessGroup | None,
    fsdp_shard_model_weights: Sequence[Any] | None = None,
    manual_post_all_gather_processing: bool = False,
) -> None:
    """Cast each rank's shards of the master weights into the quantized model weights.

    All ranks' shards together give exactly what casting the whole master weight gives: amaxes are
    reduced over the group first. Master values are rounded to the model's dtype before the cast.

    Parameters
    ----------
    model_weights : sequence of Float8Tensor
        Overwritten where this rank owns them; `scale_inv` is set on all ranks.
    master_weights : sequence of torch.Tensor or None
        This rank's flat part of each; None if it owns nothing of it.
    start_offsets : sequence of int or None
        Where each part begins in the flattened weight, in elements.
    group : ProcessGroup or None
        Ranks that hold the other parts; None: all processes.
    fsdp_shard_model_weights : sequence, optional
        Where to write instead: this rank's uint8 shard (or a tensor around one) of each weight, as
        long as its part; entries may be None.
    manual_post_all_gather_processing : bool, default False
        The caller will call `post_all_gather_processing` after gathering the weights. The
        transposes are declared stale in either case.

    Raises
    ------
    ValueError
        If the sequences differ in length, or a part does not fit into its weight.
    NotImplementedError
        For weights of other formats.
    """
    count = len(model_weights)
    shards_given = fsdp_shard_model_weights or [None] * count
    lengths = (len(master_weights), len(start_offsets), len(shards_given))
    if any(length != count for length in lengths):
        raise ValueError(
            f"quantize_master_weights: {count} model_weights, but {lengths[0]} master_weights, "
            f"{lengths[1]} start_offsets and {lengths[2]} shards; one each is required."
        )
    shards = [
        _prepare_shard(*parts)
        for parts in zip(model_weights, master_weights, start_offsets, shards_given, strict=True)
    ]
    if not shards:
        return
    amaxes = _reduced_amaxes(shards, group)
    for i, shard in enumerate(shards):
        _cast_shard(shard, amaxes[i : i + 1])


def cast_master_weights_to_fp8(
    model_weights: Sequence[Any],
    master_weights: Sequence[torch.Tensor | None],
    start_offsets: Sequence[int | None],
    group: ProcessGroup | None,
    fsdp_shard_model_weights: Sequence[Any] | None = None,
    manual_post_all_gather_processing: bool = False,
) -> None:
    """Former name of `quantize_master_weights`."""
    quantize_master_weights(
        model_weights,
        master_weights,
        start_offsets,
        group,
        fsdp_shard_model_weights,
        manual_post_all_gather_processing,
    )


def _prepare_shard(weight: Any, master: Any, offset: int | None, given: Any) -> _Shard:
    if not isinstance(weight, Float8TensorStorage):
        raise NotImplementedError(
            f"quantize_master_weights: model_weights holds a {type(weight).__name__}; only "
            "Float8Tensor weights are supported in this version."
        )
    check_is_whole("quantize_master_weights: a weight", weight)
    if hasattr(weight, "clear_high_precision_init_val"):
        weight.clear_high_precision_init_val()
    if master is None or master.numel() == 0:
        return _Shard(weight, None, None)
    values = master.detach().to(weight._dtype).reshape(-1)
    if given is not None:
        raw = given._data if isinstance(given, Float8TensorStorage) else given
        if raw is None or raw.numel() != values.numel():
            raise ValueError(
                f"quantize_master_weights: a shard has {0 if raw is None else raw.numel()} "
                f"elements; its part of the master weight has {values.numel()}."
            )
        return _Shard(weight, values, raw.view(torch.uint8).view(-1))
    start = offset or 0
    if weight._data is None or start + values.numel() > weight._data.numel():
        size = 0 if weight._data is None else weight._data.numel()
        raise ValueError(
            f"quantize_master_weights: a part of {values.numel()} elements begins at {start}, but "
            f"the weight holds {size} bytes; the part must lie inside."
        )
    return _Shard(weight, values, weight._data.view(-1)[start : start + values.numel()])


def _reduced_amaxes(shards: list[_Shard], group: ProcessGroup | None) -> torch.Tensor:
    """float32 [number of weights]: max |master| over all ranks' parts."""
    device = shards[0].weight._scale_inv.device
    amaxes = torch.zeros(len(shards), dtype=torch.float32, device=device)
    for i, shard in enumerate(shards):
        if shard.values is not None:
            tex.compute_amax(_high_precision(shard.values), amax=amaxes[i : i + 1])
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(amaxes, op=torch.distributed.ReduceOp.MAX, group=group)
    return amaxes


def _high_precision(values: torch.Tensor) -> torch.Tensor:
    is_wide = values.dtype == torch.float64
    return values.float() if is_wide else values


def _cast_shard(shard: _Shard, amax: torch.Tensor) -> None:
    weight = shard.weight
    quantizer = weight._quantizer
    if isinstance(quantizer, Float8Quantizer):
        scale = quantizer.scale
        quantizer.amax.copy_(torch.maximum(quantizer.amax, amax))
    elif isinstance(quantizer, Float8CurrentScalingQuantizer):
        scale = quantizer.scale_from_amax(amax)
    else:
        raise NotImplementedError(
            f"quantize_master_weights: a weight has quantizer {type(quantizer).__name__}; "
            "Float8Quantizer and Float8CurrentScalingQuantizer are supported in this version."
        )
    weight._scale_inv.copy_(scale.reciprocal())
    if shard.values is not None and shard.target is not None:
        tex.quantize_fp8(
            _high_precision(shard.values),
            int(weight._fp8_dtype),
            scale=scale,
            data=shard.target,
        )
        count_write(shard.target)
    weight._reset_caches()
    if isinstance(weight, torch.Tensor):
        count_write(weight)


def post_all_gather_processing(model_weights: Iterable[Any]) -> None:
    """After the bytes of weights were gathered: rebuild the copies made from them.

    Parameters
    ----------
    model_weights : iterable of Float8Tensor
        A transpose is made for each that has one, or whose quantizer makes one.

    Raises
    ------
    NotImplementedError
        For weights of other formats.
    """
    for weight in model_weights:
        if isinstance(weight, IdentityTensor):
            continue
        if not isinstance(weight, Float8TensorStorage):
            raise NotImplementedError(
                f"post_all_gather_processing: model_weights holds a {type(weight).__name__}; only "
                "Float8Tensor weights are supported in this version."
            )
        count_write(weight._data)
        quantizer = weight._quantizer
        if weight._transpose is not None or (quantizer is not None and quantizer.columnwise_usage):
            weight._create_transpose()


def clear_columnwise_cache(model_weights: Iterable[Any]) -> None:
    """Drop the columnwise copies that can be made again from the rowwise ones."""
    for weight in model_weights:
        if isinstance(weight, QuantizedTensorStorage) and weight.get_usages()["rowwise"]:
            weight.update_usage(rowwise_usage=True, columnwise_usage=False)


def is_custom(x: Any = None) -> bool:
    """Whether an object is a quantizer or quantized tensor of a class from outside this library."""
    is_ours = type(x).__module__.split(".")[0] == "transformer_engine"
    return isinstance(x, (Quantizer, QuantizedTensorStorage)) and not is_ours
