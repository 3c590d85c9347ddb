# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Casting parts of master weights into quantized weights, as if the whole were cast at once.

Every rank has a flat part of each master weight. Scales follow from amaxes, of the tensor or of its
blocks, so the ranks' amaxes are reduced (MAX) first; then each rank casts its part. A class here is
what one rank does to one weight: `local_amaxes`, all before the reduction, then `cast`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..cpp_extensions import cast as tex
from .block_quantizer import BlockScaledQuantizer
from .float8_blockwise_tensor import Float8BlockQuantizer
from .float8_current_scaling import Float8CurrentScalingQuantizer
from .float8_quantizer import Float8Quantizer
from .mxfp8_tensor import MXFP8Quantizer
from .nvfp4_tensor import NVFP4Quantizer
from .storage.block_scaled_storage import BlockScaledTensorStorage, matrix_shape
from .storage.float8_blockwise_tensor_storage import Float8BlockwiseQTensorStorage
from .storage.float8_tensor_storage import Float8TensorStorage
from .storage.identity_tensor_storage import IdentityTensorStorage
from .storage.mxfp8_tensor_storage import MXFP8TensorStorage
from .storage.nvfp4_tensor_storage import NVFP4TensorStorage
from .storage.quantized_storage import QuantizedTensorStorage
from .storage.write_tracking import count_write

OWNER = "quantize_master_weights"


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank has of one master weight."""

    values: torch.Tensor | None  # flat, rounded to the model's dtype; None: nothing
    start: int  # where it begins in the flattened weight
    given: Any  # where to write instead of the weight, or None


def part_of(weight: Any, master: torch.Tensor | None, offset: int | None, given: Any) -> Part:
    """The part of a weight, checked to lie inside.

    Raises
    ------
    ValueError
        If it does not.
    """
    if master is None or master.numel() == 0:
        return Part(None, 0, None)
    values = master.detach().to(weight._dtype).reshape(-1)
    start = offset or 0
    if given is None and start + values.numel() > weight._shape.numel():
        raise ValueError(
            f"{OWNER}: a part of {values.numel()} elements begins at {start}, but the weight has "
            f"{weight._shape.numel()} elements; the part must lie inside."
        )
    return Part(values.float() if values.dtype == torch.float64 else values, start, given)


def _target(raw: torch.Tensor | None, part: Part, given: Any, per_element: float = 1) -> Any:
    """The flat bytes to write: a range of the weight's, or all of what the caller gave."""
    if part.values is None:
        return None
    count = int(part.values.numel() * per_element)
    if given is not None:
        if given.numel() != count:
            raise ValueError(
                f"{OWNER}: a shard has {given.numel()} elements; its part of the master weight has "
                f"{count}."
            )
        return given.view(-1)
    if raw is None:
        raise ValueError(f"{OWNER}: a weight holds no rowwise data; it is required.")
    start = int(part.start * per_element)
    return raw.view(-1)[start : start + count]


class MasterPart(ABC):
    """What one rank does to one weight."""

    def __init__(self, weight: Any, part: Part) -> None:
        self.weight = weight
        self.part = part

    @abstractmethod
    def local_amaxes(self) -> torch.Tensor:
        """float32, flat: the maxima of this rank's part, 0 where it has nothing."""

    @abstractmethod
    def cast(self, amaxes: torch.Tensor, keep_columnwise: bool) -> None:
        """Write this rank's part, and the scales of the whole, by the maxima of all ranks."""


class IdentityPart(MasterPart):
    """High precision: values are copied."""

    def __init__(self, weight: IdentityTensorStorage, part: Part) -> None:
        super().__init__(weight, part)
        given = getattr(part.given, "_hp_data", part.given)
        self._to = _target(weight._hp_data, part, given)

    def local_amaxes(self) -> torch.Tensor:
        return torch.zeros(0)

    def cast(self, amaxes: torch.Tensor, keep_columnwise: bool) -> None:
        if self._to is not None:
            self._to.copy_(self.part.values)
            count_write(self._to)


class PerTensorPart(MasterPart):
    """FP8 with one scale."""

    def __init__(self, weight: Float8TensorStorage, part: Part) -> None:
        super().__init__(weight, part)
        check_is_whole(f"{OWNER}: a weight", weight)
        quantizer = weight._quantizer
        if not isinstance(quantizer, (Float8Quantizer, Float8CurrentScalingQuantizer)):
            raise NotImplementedError(
                f"{OWNER}: a weight has quantizer {type(quantizer).__name__}; Float8Quantizer and "
                "Float8CurrentScalingQuantizer are supported in this version."
            )
        given = getattr(part.given, "_data", part.given)
        given = None if given is None else given.view(torch.uint8)
        self._to = _target(weight._data, part, given)

    def local_amaxes(self) -> torch.Tensor:
        amax = torch.zeros(1, dtype=torch.float32, device=self.weight._scale_inv.device)
        if self.part.values is not None:
            tex.compute_amax(self.part.values, amax=amax)
        return amax

    def cast(self, amaxes: torch.Tensor, keep_columnwise: bool) -> None:
        weight, quantizer = self.weight, self.weight._quantizer
        if isinstance(quantizer, Float8Quantizer):
            scale = quantizer.scale
            quantizer.amax.copy_(torch.maximum(quantizer.amax, amaxes))
        else:
            scale = quantizer.scale_from_amax(amaxes)
        weight._scale_inv.copy_(scale.reciprocal())
        if self._to is not None and self.part.values is not None:
            dtype = int(weight._fp8_dtype)
            tex.quantize_fp8(self.part.values, dtype, scale=scale, data=self._to)
            count_write(self._to)
        weight._reset_caches()


def check_is_whole(name: str, tensor: Float8TensorStorage) -> None:
    """Refuse views: what is done to their bytes or scale would be done to more than them."""
    if tensor._whole is not None:
        raise ValueError(
            f"{name} is a view, shape {tuple(tensor.shape)}, of a tensor of shape "
            f"{tuple(tensor._whole.shape)}; a tensor of its own is required. Pass the whole tensor."
        )


# --- formats whose copies need all values ---


class ExchangedPart(MasterPart):
    """A weight of which every rank quantizes the whole, from values that the ranks exchange.

    Exact for every format, also for columnwise copies that a flat part is spread over. All bytes of
    the weight are written, unless the caller gave a shard for those of the rowwise copy.
    """

    def __init__(self, weight: Any, part: Part, group: Any) -> None:
        super().__init__(weight, part)
        self._group = group
        self._raw, per_element = _rowwise_bytes(weight)
        quantizers = [weight._quantizer]
        quantizers += [
            getattr(quantizers[0], f"{n}_quantizer", None) for n in ("rowwise", "columnwise")
        ]
        if any(getattr(quantizer, "stochastic_rounding", False) for quantizer in quantizers):
            raise NotImplementedError(
                f"{OWNER}: a {type(weight).__name__} has stochastic_rounding=True, by which ranks "
                "would round differently; round to nearest is supported. Turn it off for weights."
            )
        self._shard = None
        if part.given is not None:
            if per_element != 1:
                _check_whole_bytes(matrix_shape(weight._shape), part)
            self._shard = _target(self._raw, part, _given_rowwise(part.given), per_element)
        self._first = int(part.start * per_element)

    def local_amaxes(self) -> torch.Tensor:
        return torch.zeros(0)

    def owned(self) -> int:
        """Number of elements of this rank's part."""
        return 0 if self.part.values is None else self.part.values.numel()

    def cast(self, amaxes: torch.Tensor, keep_columnwise: bool) -> None:
        weight = self.weight
        maker = weight._quantizer.copy_for_tensor()
        maker.set_usage(**weight.get_usages())
        maker.internal = True
        made = maker.quantize_impl(self._all_values())
        fresh, target = made._buffers(), self._shard
        for name, buffer in weight._buffers().items():
            if buffer is None or fresh[name] is None:
                continue
            if buffer is self._raw and target is not None:
                whole = fresh[name].view(-1)
                target.copy_(whole[self._first : self._first + target.numel()])
                count_write(target)
            else:
                buffer.copy_(fresh[name])
        weight._after_bytes_written()

    def _all_values(self) -> torch.Tensor:
        """The whole weight in its nominal dtype: the sum of disjoint bytes, which loses nothing."""
        weight, values = self.weight, self.part.values
        dtype = torch.float32 if weight._dtype == torch.float64 else weight._dtype
        whole = torch.zeros(weight._shape.numel(), dtype=dtype, device=weight.device)
        if values is not None:
            whole[self.part.start : self.part.start + values.numel()] = values
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(whole.view(torch.uint8), group=self._group)
        return whole.view(weight._shape)


def check_complete(parts: Sequence[MasterPart], group: Any) -> None:
    """Refuse parts to exchange that leave elements out, or have some twice."""
    exchanged = [part for part in parts if isinstance(part, ExchangedPart)]
    if not exchanged:
        return
    owned = torch.tensor([part.owned() for part in exchanged], device=exchanged[0].weight.device)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(owned, group=group)
    for part, count in zip(exchanged, owned.tolist(), strict=True):
        if count != part.weight._shape.numel():
            raise ValueError(
                f"{OWNER}: the parts of all ranks have {count} elements of a "
                f"{type(part.weight).__name__} of {part.weight._shape.numel()}; every element once "
                "is required where ranks exchange them. Pass all parts."
            )


def exchanged_where_split(parts: Sequence[MasterPart], group: Any) -> list[MasterPart]:
    """The parts, those of NVFP4 exchanged where one of a rank begins or ends inside a byte."""
    settled = list(parts)
    packed = [
        index
        for index, part in enumerate(parts)
        if isinstance(part, BlockPart) and isinstance(part.weight, NVFP4TensorStorage)
    ]
    if not packed:
        return settled
    device = parts[packed[0]].weight.device
    is_split = torch.tensor([_splits_bytes(parts[i].part) for i in packed], device=device).int()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(is_split, op=torch.distributed.ReduceOp.MAX, group=group)
    for index, split in zip(packed, is_split.tolist(), strict=True):
        if split:
            settled[index] = ExchangedPart(parts[index].weight, parts[index].part, group)
    return settled


def _given_rowwise(given: Any) -> torch.Tensor:
    if isinstance(given, QuantizedTensorStorage):
        return _rowwise_bytes(given)[0]
    shard: torch.Tensor = given[0] if isinstance(given, (tuple, list)) else given
    return shard


def _rowwise_bytes(weight: Any) -> tuple[torch.Tensor, float]:
    """Data of the rowwise copy, and its elements per element of the weight."""
    half = getattr(weight, "_rowwise_storage", weight)
    raw = None
    for name in ("_rowwise_data", "_data", "_hp_data"):
        raw = getattr(half, name, raw)
    if raw is None:
        raise ValueError(f"{OWNER}: a weight holds no rowwise data; it is required.")
    return raw, 0.5 if isinstance(half, NVFP4TensorStorage) else 1


# --- formats with one scale per block -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _BlockCopy:
    """One copy of a weight that is cast by parts.

    The scales of blocks of `block` rows and columns follow from their amaxes alone; each stands for
    `stored` rows and columns of the copy.
    """

    columnwise: bool
    block: tuple[int, int]
    stored: tuple[int, int]
    scale_maker: BlockScaledQuantizer  # quantizes [n, 1] with a scale per row, by the same rule


def _grid(shape: tuple[int, int], block: tuple[int, int]) -> tuple[int, int]:
    return -(-shape[0] // block[0]), -(-shape[1] // block[1])


def _tiles(matrix: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """[rows of blocks, columns of blocks, elements of a block] of a matrix filled up with 0."""
    down, across = _grid((matrix.shape[0], matrix.shape[1]), block)
    padded = matrix.new_zeros(down * block[0], across * block[1])
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    parted = padded.view(down, block[0], across, block[1]).transpose(1, 2)
    return parted.reshape(down, across, block[0] * block[1])


class BlockPart(MasterPart):
    """A weight with one scale per block.

    The rows of blocks that hold this rank's part are quantized as a matrix of its own; where other
    ranks have the maximum of a block, that maximum stands in for their elements.
    """

    def __init__(self, weight: BlockScaledTensorStorage, part: Part) -> None:
        super().__init__(weight, part)
        self._matrix = matrix_shape(weight._shape)
        self._copies = [c for c in _copies_of(weight) if weight._copy(c.columnwise) is not None]
        if not self._copies:
            raise ValueError(f"{OWNER}: a weight holds no rowwise data; it is required.")
        per_element = 1.0
        if isinstance(weight, NVFP4TensorStorage):
            if part.given is not None:
                _check_whole_bytes(self._matrix, part)
            per_element = 0.5
        self._targets = [
            _target(
                weight._copy(copy.columnwise)[0],  # type: ignore[index]  # it is held
                part,
                _given_bytes(part.given, copy.columnwise),
                per_element,
            )
            for copy in self._copies
        ]

    def _rows(self, block_rows: int) -> tuple[int, int]:
        """The whole rows of blocks that hold the part."""
        rows, cols = self._matrix
        assert self.part.values is not None
        end = self.part.start + self.part.values.numel()
        first = self.part.start // cols // block_rows * block_rows
        last = -(-end // cols)
        return first, min(rows, -(-last // block_rows) * block_rows)

    def _placed(self, first: int, last: int, source: torch.Tensor) -> torch.Tensor:
        """A matrix of some rows of the weight that holds `source` at the part's place, else 0."""
        cols = self._matrix[1]
        flat = source.new_zeros((last - first) * cols)
        start = self.part.start - first * cols
        flat[start : start + source.numel()] = source
        return flat.view(last - first, cols)

    def local_amaxes(self) -> torch.Tensor:
        device = self.weight.device
        return torch.cat([self._copy_amaxes(copy).view(-1) for copy in self._copies]).to(device)

    def _copy_amaxes(self, copy: _BlockCopy) -> torch.Tensor:
        amaxes = torch.zeros(_grid(self._matrix, copy.block), dtype=torch.float32)
        values = self.part.values
        if values is not None:
            first, last = self._rows(copy.block[0])
            blocks = _tiles(self._placed(first, last, values), copy.block)
            top = first // copy.block[0]
            amaxes[top : top + blocks.shape[0]] = _amax(blocks)
        return amaxes

    def cast(self, amaxes: torch.Tensor, keep_columnwise: bool) -> None:
        sizes = [_grid(self._matrix, copy.block) for copy in self._copies]
        parts = amaxes.split([down * across for down, across in sizes])
        for copy, part, size, target in zip(self._copies, parts, sizes, self._targets, strict=True):
            self._cast_copy(copy, part.view(size), target)
        is_derived = len(self._copies) == 1 and not self._copies[0].columnwise
        if is_derived and not keep_columnwise:
            self.weight.update_usage(rowwise_usage=True, columnwise_usage=False)

    def _cast_copy(self, copy: _BlockCopy, amaxes: torch.Tensor, target: Any) -> None:
        weight = self.weight
        _, scales, amax = weight._copy(copy.columnwise)[:3]
        tensor_amax = amaxes.amax().view(1) if amaxes.numel() else amaxes.new_zeros(1)
        if amax is not None:
            amax.copy_(tensor_amax)
            count_write(amax)
        if amaxes.numel():
            _write_scales(weight, copy, amaxes, tensor_amax)
            count_write(scales)
        if target is None or self.part.values is None:
            return
        first, last = self._rows(copy.block[0])
        matrix = self._placed(first, last, self.part.values)
        top, count = first // copy.block[0], _grid((last - first, 1), copy.block)[0]
        owned = self._placed(first, last, torch.ones_like(self.part.values, dtype=torch.bool))
        _stand_in(matrix, owned, amaxes[top : top + count], copy.block)
        made = _quantized(weight._quantizer, matrix, copy.columnwise, tensor_amax)[0]
        per_element = target.numel() / self.part.values.numel()
        start = int((self.part.start - first * self._matrix[1]) * per_element)
        target.copy_(made.view(-1)[start : start + target.numel()])
        count_write(target)


def _amax(blocks: torch.Tensor) -> torch.Tensor:
    """float32 maxima of |x| over the last axis, NaN skipped."""
    return blocks.float().abs().nan_to_num(nan=0.0, posinf=torch.inf).amax(-1)


def _stand_in(
    matrix: torch.Tensor, owned: torch.Tensor, amaxes: torch.Tensor, block: tuple[int, int]
) -> None:
    """Put the amax of each block where it has an element of another rank, if it is not there."""
    blocks = _tiles(matrix, block)
    is_lower = _amax(blocks) < amaxes
    # An element outside the matrix is nobody's; one of another rank exists where the amax does.
    is_foreign = _tiles(~owned, block)
    position = is_foreign.to(torch.uint8).argmax(-1)
    down, across = is_lower.nonzero(as_tuple=True)
    inside = position[down, across]
    rows = down * block[0] + inside // block[1]
    cols = across * block[1] + inside % block[1]
    matrix[rows, cols] = amaxes[down, across].to(matrix.dtype)


def _quantized(
    quantizer: Any, matrix: torch.Tensor, columnwise: bool, tensor_amax: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(data, scales) of one copy of a matrix; for NVFP4 under a given amax."""
    maker = quantizer.copy_for_tensor()
    maker.set_usage(rowwise=not columnwise, columnwise=columnwise)
    copies = maker._core.make_empty(list(matrix.shape), matrix)
    made = copies[columnwise]
    if made[2] is None:
        maker._core.update(matrix, *copies)
    else:
        made[2].copy_(tensor_amax)
        maker._core.cast(matrix, *copies)
    return made[0], made[1]


def _write_scales(
    weight: BlockScaledTensorStorage,
    copy: _BlockCopy,
    amaxes: torch.Tensor,
    tensor_amax: torch.Tensor,
) -> None:
    """The scales of the whole weight, as the format's quantizer gives them for these amaxes."""
    held = weight._copy(copy.columnwise)
    assert held is not None and held[1] is not None
    scales, dtype = held[1], weight._dtype
    kernel_dtype = torch.float32 if dtype == torch.float64 else dtype
    column = amaxes.reshape(-1, 1).to(kernel_dtype)
    made = _quantized(copy.scale_maker, column, False, tensor_amax)[1]
    by_row = made[0] if isinstance(copy.scale_maker, Float8BlockQuantizer) else made[:, 0]
    grid = by_row[: column.shape[0]].view(amaxes.shape)
    for axis in (0, 1):
        grid = grid.repeat_interleave(copy.block[axis] // copy.stored[axis], axis)
    down, across = _grid(matrix_shape(weight._shape), copy.stored)
    if isinstance(weight, Float8BlockwiseQTensorStorage) and not weight._is_2D_scaled:
        scales = scales.t()  # as they are stored
    scales[:down, :across] = grid[:down, :across]


def _splits_bytes(part: Part) -> bool:
    return part.values is not None and bool(part.start % 2 or part.values.numel() % 2)


def _check_whole_bytes(matrix: tuple[int, int], part: Part) -> None:
    count = 0 if part.values is None else part.values.numel()
    if count and (matrix[1] % 16 or _splits_bytes(part)):
        raise ValueError(
            f"{OWNER}: a shard for a part of {count} elements begins at {part.start} of an NVFP4 "
            f"weight with {matrix[1]} columns; even numbers and a multiple of 16 columns are "
            "required, so that parts are whole bytes. Pad the weight, or pass no shards."
        )


def _given_bytes(given: Any, columnwise: bool) -> Any:
    """The buffer of one copy among those the caller gave: a tensor's, a pair's, or a buffer."""
    if isinstance(given, BlockScaledTensorStorage):
        return given._columnwise_data if columnwise else given._rowwise_data
    return given[columnwise] if isinstance(given, (tuple, list)) else given


def is_cast_by_parts(weight: BlockScaledTensorStorage) -> bool:
    """Whether the copies that cannot be made from others follow from the maxima of blocks.

    Not those of formats that look at all elements of a block or a row (four over six, row scales),
    nor a columnwise copy that is stored transposed: a flat part of the weight is spread over it.
    Nor NVFP4 whose rows of bytes are filled up to whole blocks: a flat part of the weight is no
    range of its bytes.
    """
    holds_columnwise = weight._copy(columnwise=True) is not None
    if isinstance(weight, NVFP4TensorStorage):
        quantizer = weight._quantizer
        is_by_maxima = not (quantizer.nvfp4_use_4over6 or quantizer.row_scaled_nvfp4)
        is_by_maxima = is_by_maxima and matrix_shape(weight._shape)[1] % 16 == 0
        return is_by_maxima and (weight._is_derivable() or not holds_columnwise)
    is_transposed = isinstance(weight, Float8BlockwiseQTensorStorage)
    return not is_transposed or weight._is_derivable() or not holds_columnwise


def _copies_of(weight: BlockScaledTensorStorage) -> list[_BlockCopy]:
    """The copies of a weight that are cast; others are made from these after gathering."""
    quantizer = weight._quantizer
    if isinstance(weight, Float8BlockwiseQTensorStorage) and isinstance(
        quantizer, Float8BlockQuantizer
    ):
        maker: BlockScaledQuantizer = Float8BlockQuantizer(
            quantizer.dtype,
            rowwise=True,
            columnwise=False,
            amax_epsilon=quantizer.amax_epsilon,
            force_pow_2_scales=quantizer.force_pow_2_scales,
            block_scaling_dim=1,
        )
        block = (128, 128) if weight._is_2D_scaled else (1, 128)
        return [_BlockCopy(False, block, block, maker)]
    if isinstance(weight, MXFP8TensorStorage) and isinstance(quantizer, MXFP8Quantizer):
        maker, tile = MXFP8Quantizer(quantizer.dtype, columnwise=False), (32, 32)
        has_tiles = quantizer.with_2d_quantization
        return [
            _BlockCopy(columnwise, tile if has_tiles else stored, stored, maker)
            for columnwise, stored in ((False, (1, 32)), (True, (32, 1)))
        ]
    if isinstance(weight, NVFP4TensorStorage) and isinstance(quantizer, NVFP4Quantizer):
        maker = NVFP4Quantizer(columnwise=False, nvfp4_e4m3_max=quantizer.nvfp4_e4m3_max)
        block = (16, 16) if quantizer.with_2d_quantization else (1, 16)
        return [_BlockCopy(False, block, (1, 16), maker)]
    raise NotImplementedError(
        f"{OWNER}: a {type(weight).__name__} has quantizer {type(quantizer).__name__}; one of its "
        "own format is required in this version."
    )
