# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the quantizers of all formats with one scale per block share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar, cast

import torch

from ..arguments import check_flag
from ..constants import DType
from .block_gather import Placement, gather_plan, has_whole_blocks
from .core_quantizer import CoreQuantizer, check_destination, check_output
from .quantizer import as_quantizable, is_noop
from .storage.block_scaled_storage import BlockScaledTensorStorage, Copy, copy_layout
from .storage.write_tracking import count_write, mark_written

_BlockQuantizerT = TypeVar("_BlockQuantizerT", bound="BlockScaledQuantizer")


class BlockScaledQuantizer(CoreQuantizer):
    """A quantizer around a native one that makes up to two copies, each with scales of its own.

    Any size can be quantized: the last block of a row takes the elements that are left, and scales
    are padded inside.
    """

    # Constructor keywords besides the usages; attributes have the same names.
    _setting_names: ClassVar[tuple[str, ...]]
    _storage_class: ClassVar[type[BlockScaledTensorStorage]]

    def __init__(self, settings: dict[str, Any], *, rowwise: bool, columnwise: bool) -> None:
        owner = type(self).__name__
        usages = (
            check_flag(owner, "rowwise", rowwise),
            check_flag(owner, "columnwise", columnwise),
        )
        super().__init__(
            self._make_core(settings, *usages), rowwise=usages[0], columnwise=usages[1]
        )

    @staticmethod
    def _make_core(settings: dict[str, Any], rowwise: bool, columnwise: bool) -> Any:
        """The native object for the settings."""
        raise NotImplementedError

    @property
    def fp8_dtype(self) -> DType:
        """`dtype`, under the name of the constructor's argument."""
        return self.dtype

    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._setting_names}

    # --- copies and comparison ------------------------------------------------------------------

    def copy(self: _BlockQuantizerT) -> _BlockQuantizerT:
        """A quantizer of its own with the same settings."""
        other: Any = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._core = self._make_core(self._settings(), self.rowwise_usage, self.columnwise_usage)
        self._copy_settings_to(other)
        return cast(_BlockQuantizerT, other)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        other = memo[id(self)] = self.copy()
        return other

    def __reduce__(self) -> Any:
        usages = {"rowwise": self.rowwise_usage, "columnwise": self.columnwise_usage}
        # Process groups cannot be pickled; a reduction is set up again by its owner.
        settings = self.copy_for_tensor()._settings()
        settings = {k: int(v) if isinstance(v, DType) else v for k, v in settings.items()}
        flags = (self.internal, self.optimize_for_gemm)
        return (_make_block_quantizer, (type(self), {**settings, **usages}, flags))

    def _value(self) -> tuple[Any, ...]:
        usages = (self.rowwise_usage, self.columnwise_usage, self.internal, self.optimize_for_gemm)
        return (type(self), *usages, *(_comparable(value) for value in self._settings().values()))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, BlockScaledQuantizer) and self._value() == other._value()

    def __hash__(self) -> int:
        try:
            return hash(self._value())
        except AttributeError:
            # torch.compile hashes what it meets, also an object whose __init__ has not ended.
            return object.__hash__(self)

    # --- shapes ---------------------------------------------------------------------------------

    def _layout(self, shape: Iterable[int], columnwise: bool) -> dict[str, Any]:
        return copy_layout(self._core.copy_format(columnwise), columnwise, shape)

    def get_scale_shape(self, shape: Iterable[int], columnwise: bool) -> tuple[int, ...]:
        """Shape of the scales of one copy of a tensor of some shape, padding included."""
        scales: tuple[int, ...] = self._layout(shape, columnwise)["scales"]
        return scales

    def get_columnwise_shape(self, shape: Iterable[int]) -> tuple[int, ...]:
        """Shape of the columnwise data of a tensor of some shape."""
        data: tuple[int, ...] = self._layout(shape, columnwise=True)["data"]
        return data

    # --- making tensors -------------------------------------------------------------------------

    def wrap_copies(
        self,
        rowwise: Copy | None,
        columnwise: Copy | None,
        *,
        shape: torch.Size,
        dtype: torch.dtype,
        requires_grad: bool = False,
    ) -> Any:
        cls = self._storage_class
        fields = cls.keywords_of_copies(rowwise, columnwise)
        if self.internal:
            return cls(shape=shape, dtype=dtype, quantizer=self, **fields)
        return cls.tensor_class(shape, dtype, quantizer=self, requires_grad=requires_grad, **fields)

    def _make_empty(
        self, shape: torch.Size, dtype: torch.dtype, requires_grad: bool, options: dict[str, Any]
    ) -> Any:
        self._check_usages("make_empty")
        copies = self._core.make_empty(list(shape), torch.empty(0, device=options["device"]))
        if options["pin_memory"]:
            copies = tuple(_pinned(made) for made in copies)
        return self.wrap_copies(*copies, shape=shape, dtype=dtype, requires_grad=requires_grad)

    def quantize_impl(self, tensor: torch.Tensor) -> Any:
        """Quantize without autograd into new buffers; see `Quantizer.quantize`."""
        self._check_usages("quantize")
        source = as_quantizable(f"{type(self).__name__}.quantize", tensor)
        return self.wrap_copies(*self._cast(source), shape=source.shape, dtype=tensor.dtype)

    def _cast(self, source: torch.Tensor) -> tuple[Copy | None, Copy | None]:
        copies: tuple[Copy | None, Copy | None] = self._core.quantize(source)
        return copies

    def _cast_into(
        self, source: torch.Tensor, rowwise: Copy | None, columnwise: Copy | None
    ) -> None:
        self._core.update(source, rowwise, columnwise)

    # --- gathering shards -----------------------------------------------------------------------

    def _gathers_rowwise_alone(self) -> bool:
        """Whether the columnwise copy is made from the gathered rowwise one: of square tiles."""
        return False

    def _shard_quantizer(self, shard: Any, group: Any) -> Any:
        """What quantizes a rank's part so that the parts form the whole; None if nothing does."""
        return self.copy()

    def _is_part_of_whole(self, shard: Any, group: Any) -> bool:
        """Whether ranks' quantized parts can be joined as they are."""
        return True

    def quantize_shard(self, shard: Any, group: Any) -> Any:
        """This rank's part, quantized so that all ranks' bytes form one tensor.

        None where blocks of the whole would have rows of two ranks.
        """
        self._check_usages("quantize")
        is_rowwise = self._gathers_rowwise_alone()
        maker = self._shard_quantizer(shard, group)
        if maker is None or not has_whole_blocks(shard, self._core.shard_rows()):
            return None
        if is_rowwise:
            maker.set_usage(rowwise=True, columnwise=False)
        maker.internal = True
        if isinstance(shard, self._storage_class):
            wanted = maker.get_usages()
            held = shard.get_usages()
            formats = [maker._core.copy_format(c) for c in (False, True)]
            is_alike = all(
                held[name] and shard._copy_format(bool(c)) == formats[c]
                for c, name in enumerate(wanted)
                if wanted[name]
            )
            shard._check_scales_readable("gather_along_first_dim")
            if is_alike and self._is_part_of_whole(shard, group):
                return shard
        return maker.quantize_impl(shard)

    def join_shards(
        self, shard: Any, ranks: int, out: Any
    ) -> tuple[Any, list[tuple[torch.Tensor, torch.Tensor]]]:
        shape = torch.Size((ranks * shard._shape[0], *shard._shape[1:]))
        maker = self.copy()
        if self._gathers_rowwise_alone():
            maker.set_usage(rowwise=True, columnwise=False)
        whole = maker._core.make_empty(list(shape), torch.empty(0, device=shard.device))
        if out is None:
            out = maker.wrap_copies(*whole, shape=shape, dtype=shard._dtype)
            out._quantizer = self if self.internal else self.copy_for_tensor()
        else:
            check_output("gather_along_first_dim", out, shape, self._storage_class)
            held = [out._copy(columnwise) for columnwise in (False, True)]
            if not self._gathers_rowwise_alone():  # copies that are not wanted would be stale
                out._drop_unwanted(self.rowwise_usage, self.columnwise_usage)
            out._take_copies(
                *(_reused(own, made) for own, made in zip(held, whole, strict=True)), self
            )
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        pending: list[Placement] = []
        for columnwise, made in enumerate(whole):
            if made is not None:
                own, later = gather_plan(shard, out, bool(columnwise), ranks)
                pairs += own
                pending += later
        mark_written(
            out._rowwise_data if whole[0] else None, out._columnwise_data if whole[1] else None
        )
        out._pending = pending
        return out, pairs

    # --- overwriting tensors --------------------------------------------------------------------

    def update_quantized(
        self, src: torch.Tensor, dst: Any, *, noop_flag: torch.Tensor | None = None
    ) -> Any:
        """Overwrite data and scales of a tensor; see `Quantizer.update_quantized`.

        All copies the tensor holds are written; those that only the quantizer makes are added.

        Raises
        ------
        TypeError, ValueError
            If `dst` is of another format, shape or block size.
        """
        owner = f"{type(self).__name__}.update_quantized"
        check_destination(owner, src, dst, self._storage_class)
        if is_noop(owner, noop_flag):
            return dst
        dst._check_scales_readable("quantize_")
        source = as_quantizable(owner, src).to(dst.device)
        copies = [self._destination(dst, columnwise) for columnwise in (False, True)]
        added = self._missing_copies(source, copies)
        copies = [own or new for own, new in zip(copies, added, strict=True)]
        self._cast_into(source, *copies)
        dst._take_copies(*copies, self)
        for buffer in dst._buffers().values():
            count_write(buffer)
        dst._after_bytes_written()
        return dst

    def _destination(self, dst: BlockScaledTensorStorage, columnwise: bool) -> Copy | None:
        """A copy that a tensor holds, to be written in this quantizer's format."""
        held = dst._copy(columnwise)
        return None if held is None else (*held[:3], *self._core.copy_format(columnwise))

    def _missing_copies(
        self, source: torch.Tensor, held: list[Copy | None]
    ) -> tuple[Copy | None, Copy | None]:
        """New copies for what the usages ask for and is not held."""
        wanted = (self.rowwise_usage, self.columnwise_usage)
        missing = [w and h is None for w, h in zip(wanted, held, strict=True)]
        if not any(missing):
            return None, None
        maker = self.copy()
        maker.set_usage(rowwise=missing[0], columnwise=missing[1])
        made: tuple[Copy | None, Copy | None] = maker._core.make_empty(list(source.shape), source)
        return made


def _reused(held: Copy | None, made: Copy | None) -> Copy | None:
    """A new copy in the buffers of one that is held, as far as they fit."""
    if held is None or made is None:
        return made
    buffers = [
        new if old is None or new is None or old.shape != new.shape else old.copy_(new)
        for old, new in zip(held[:3], made[:3], strict=True)
    ]
    return (*buffers, *made[3:])  # type: ignore[return-value]


def _pinned(made: Copy | None) -> Copy | None:
    if made is None:
        return None
    buffers = [None if buffer is None else buffer.pin_memory() for buffer in made[:3]]
    return (*buffers, *made[3:])  # type: ignore[return-value]


def _comparable(value: Any) -> Any:
    return id(value) if isinstance(value, torch.distributed.ProcessGroup) else value


def _make_block_quantizer(
    cls: type[BlockScaledQuantizer], keywords: dict[str, Any], flags: tuple[bool, bool]
) -> BlockScaledQuantizer:
    """Rebuild a pickled quantizer. The name and place are part of the file format."""
    quantizer = cls(**keywords)
    quantizer.internal, quantizer.optimize_for_gemm = flags
    return quantizer
