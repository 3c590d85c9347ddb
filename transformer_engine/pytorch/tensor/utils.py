# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Quantized primary weights under sharded optimizers: raw buffers, casting master weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.distributed import ProcessGroup

from .master_weights import (
    BlockPart,
    ExchangedPart,
    IdentityPart,
    MasterPart,
    PerTensorPart,
    check_complete,
    check_is_whole,
    exchanged_where_split,
    is_cast_by_parts,
    part_of,
)
from .quantizer import Quantizer
from .storage.block_scaled_storage import BlockScaledTensorStorage
from .storage.float8_blockwise_tensor_storage import Float8BlockwiseQTensorStorage
from .storage.float8_tensor_storage import Float8TensorStorage
from .storage.hybrid_tensor_storage import HybridQuantizedTensorStorage
from .storage.identity_tensor_storage import IdentityTensorStorage
from .storage.mxfp8_tensor_storage import MXFP8TensorStorage
from .storage.nvfp4_tensor_storage import NVFP4TensorStorage
from .storage.quantized_storage import QuantizedTensorStorage
from .storage.write_tracking import count_write, track_copies


def replace_raw_data(tensor: Any, new_raw_data: torch.Tensor) -> None:
    """Move a tensor's raw data into a given buffer, keeping its values.

    Parameters
    ----------
    tensor : QuantizedTensor
        Afterwards its rowwise data is `new_raw_data` itself; later in-place updates are visible in
        it.
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
    if isinstance(tensor, MXFP8TensorStorage):
        raise NotImplementedError(
            f"replace_raw_data: tensor is a {type(tensor).__name__}; it cannot be moved, its "
            "scales would have to move too. Keep its own buffers."
        )
    if isinstance(tensor, Float8TensorStorage):
        check_is_whole("replace_raw_data: tensor", tensor)
        is_transpose_current = not tensor._transpose_invalid
        tensor._data = _moved(tensor._data, new_raw_data)
        if is_transpose_current:
            tensor._mark_transpose_current()
    elif isinstance(tensor, (Float8BlockwiseQTensorStorage, NVFP4TensorStorage)):
        tensor._settle("replace_raw_data")
        tensor._rowwise_data = _moved(tensor._rowwise_data, new_raw_data)
        track_copies(tensor._rowwise_data, tensor._columnwise_data)
    elif isinstance(tensor, IdentityTensorStorage):
        tensor._hp_data = _moved(tensor._hp_data, new_raw_data)
    elif isinstance(tensor, HybridQuantizedTensorStorage) and tensor._rowwise_storage is not None:
        replace_raw_data(tensor._rowwise_storage, new_raw_data)
    else:
        raise ValueError(
            f"replace_raw_data: tensor is a {type(tensor).__name__}; a quantized tensor with "
            "rowwise data is required."
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
    model_weights : sequence of QuantizedTensor
        Overwritten where this rank owns them; scales are set on all ranks. Of FP8 blocks and NVFP4
        in square tiles, or without a columnwise copy, the rowwise copy is cast, of MXFP8 both.
        Other weights (1 x 128 and 1 x 16 blocks with a columnwise copy, four over six, NVFP4 whose
        columns are no multiple of 16 or a part of which begins or ends inside a byte, hybrid ones)
        need all values: the ranks exchange theirs in
        the model's dtype, and every rank writes all copies. Which copies they hold must be the
        same on all ranks.
    master_weights : sequence of torch.Tensor or None
        This rank's flat part of each; None if it owns nothing of it.
    start_offsets : sequence of int or None
        Where each part begins in the flattened weight, in elements.
    group : ProcessGroup or None
        Ranks that hold the other parts; None: all processes.
    fsdp_shard_model_weights : sequence, optional
        Where to write instead: this rank's uint8 shard (or a tensor around one; for MXFP8 the
        rowwise and the columnwise one) of each weight, as long as its part; entries may be None.
    manual_post_all_gather_processing : bool, default False
        The caller will call `post_all_gather_processing` after gathering the weights. Otherwise
        the columnwise copies that are made from rowwise ones are dropped. Transposes of per-tensor
        FP8 are declared stale in either case.

    Raises
    ------
    ValueError
        If the sequences differ in length, or a part does not fit into its weight; if the parts of
        a weight that is exchanged are not all its elements; for shards of NVFP4 whose columns are
        no multiple of 16, or that begin or end inside a byte.
    NotImplementedError
        For plain tensors, and for an exchanged weight that is rounded by chance.
    """
    count = len(model_weights)
    shards_given = fsdp_shard_model_weights or [None] * count
    lengths = (len(master_weights), len(start_offsets), len(shards_given))
    if any(length != count for length in lengths):
        raise ValueError(
            f"quantize_master_weights: {count} model_weights, but {lengths[0]} master_weights, "
            f"{lengths[1]} start_offsets and {lengths[2]} shards; one each is required."
        )
    parts = [
        _prepared(*given, group)
        for given in zip(model_weights, master_weights, start_offsets, shards_given, strict=True)
    ]
    if not parts:
        return
    parts = exchanged_where_split(parts, group)
    for weight in model_weights:
        if hasattr(weight, "clear_high_precision_init_val"):
            weight.clear_high_precision_init_val()
    check_complete(parts, group)
    local = [part.local_amaxes() for part in parts]
    amaxes = torch.cat(local)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(amaxes, op=torch.distributed.ReduceOp.MAX, group=group)
    for part, own in zip(parts, amaxes.split([a.numel() for a in local]), strict=True):
        part.cast(own, keep_columnwise=manual_post_all_gather_processing)
        if isinstance(part.weight, torch.Tensor):
            count_write(part.weight)


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


def _prepared(weight: Any, master: Any, offset: int | None, given: Any, group: Any) -> MasterPart:
    if isinstance(weight, Float8TensorStorage):
        return PerTensorPart(weight, part_of(weight, master, offset, given))
    is_block_scaled = isinstance(weight, BlockScaledTensorStorage)
    if is_block_scaled and (weight._quantizer is None or is_cast_by_parts(weight)):
        return BlockPart(weight, part_of(weight, master, offset, given))
    if is_block_scaled or isinstance(weight, HybridQuantizedTensorStorage):
        weight._require_quantizer("quantize_master_weights")
        return ExchangedPart(weight, part_of(weight, master, offset, given), group)
    if isinstance(weight, IdentityTensorStorage):
        return IdentityPart(weight, part_of(weight, master, offset, given))
    raise NotImplementedError(
        f"quantize_master_weights: model_weights holds a {type(weight).__name__}; only quantized "
        "weights are supported in this version."
    )


def post_all_gather_processing(model_weights: Iterable[Any]) -> None:
    """After the bytes of weights were gathered: rebuild the copies made from them.

    Parameters
    ----------
    model_weights : iterable of QuantizedTensor
        A columnwise copy is made for each that has one, or whose quantizer makes one. MXFP8 and
        high precision have nothing to derive.

    Raises
    ------
    NotImplementedError
        For plain tensors.
    """
    for weight in model_weights:
        _process_gathered(weight)


def _process_gathered(weight: Any) -> None:
    quantizer = getattr(weight, "_quantizer", None)
    is_wanted = quantizer is not None and quantizer.columnwise_usage
    if isinstance(weight, Float8TensorStorage):
        count_write(weight._data)
        if weight._data is not None and (weight._transpose is not None or is_wanted):
            weight._create_transpose()
    elif isinstance(weight, (Float8BlockwiseQTensorStorage, NVFP4TensorStorage)):
        for buffer in (weight._rowwise_data, weight._rowwise_scale_inv):
            count_write(buffer)
        is_possible = weight._rowwise_data is not None and weight._is_derivable()
        if is_possible and (weight._columnwise_data is not None or is_wanted):
            weight._create_columnwise()
        weight._after_bytes_written()
    elif isinstance(weight, MXFP8TensorStorage):
        weight._after_bytes_written()
    elif isinstance(weight, HybridQuantizedTensorStorage):
        for _, half in weight._halves():
            _process_gathered(half)
        weight._after_bytes_written()
    elif not isinstance(weight, IdentityTensorStorage):
        raise NotImplementedError(
            f"post_all_gather_processing: model_weights holds a {type(weight).__name__}; only "
            "quantized weights are supported in this version."
        )


def clear_columnwise_cache(model_weights: Iterable[Any]) -> None:
    """Drop the columnwise copies that can be made again from the rowwise ones."""
    for weight in model_weights:
        if isinstance(weight, QuantizedTensorStorage) and weight.get_usages()["rowwise"]:
            weight.update_usage(rowwise_usage=True, columnwise_usage=False)


def is_custom(x: Any = None) -> bool:
    """Whether an object is a quantizer or quantized tensor of a class from outside this library."""
    is_ours = type(x).__module__.split(".")[0] == "transformer_engine"
    return isinstance(x, (Quantizer, QuantizedTensorStorage)) and not is_ours
