# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the tensors of all formats with one scale per block share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .part_tensor import TensorPart
from .quantized_tensor import QuantizedTensor
from .quantizer import Quantizer
from .shared_view_tensor import SharedViewTensor
from .storage.block_scaled_storage import BlockScaledTensorStorage
from .storage.write_tracking import count_write


class BlockScaledTensor(SharedViewTensor, BlockScaledTensorStorage):  # type: ignore[misc]
    """A tensor held as data with one scale per block.

    Parameters
    ----------
    shape : sequence of int
        Logical shape.
    dtype : torch.dtype
        Nominal dtype.
    requires_grad : bool, default False
        As of any tensor.
    quantizer : Quantizer, optional
        Copied; what in-place updates quantize with.
    device : torch.device, optional
        Default that of the buffers.
    **fields
        Buffers and settings: the keywords of the format's storage.
    """

    def __new__(
        cls,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        requires_grad: bool = False,
        quantizer: Quantizer | None = None,
        device: torch.device | None = None,
        **fields: Any,
    ) -> Any:
        if device is None:
            buffers = (fields.get(keyword) for keyword in cls._buffer_keywords.values())
            held = next((buffer for buffer in buffers if buffer is not None), None)
            device = torch.get_default_device() if held is None else held.device
        self = QuantizedTensor._make_wrapper(cls, shape, dtype, device, requires_grad)
        self._init_fields(fields, None if quantizer is None else quantizer.copy_for_tensor())
        self._check_data()
        return self

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        values = "no data"
        if any(self.get_usages().values()):
            try:
                values = repr(self._dequantize_impl(self.dtype))
            except (NotImplementedError, RuntimeError):
                values = "not readable"
        settings = "".join(
            f"{setting.keyword}={value.name if hasattr(value, 'name') else value}, "
            for setting, value in (
                (setting, getattr(self, name)) for name, setting in self._settings.items()
            )
        )
        grad = f", requires_grad={self.requires_grad}" if self.requires_grad else ""
        return f"{type(self).__name__}({settings}data={values}{grad})"

    def _copy_marks(self, other: Any) -> None:
        other._pending = self._pending

    def _adopt(self, metadata: dict[str, Any], quantizer: Quantizer | None) -> None:
        fields = {k: v for k, v in metadata.items() if k not in ("shape", "dtype")}
        self._init_fields(fields, quantizer)

    def _copy_bytes_from(self, src: Any) -> bool:
        """Take over the copies that both hold; quantize the others from the source's values.

        False where not even one can be taken over as it is. A source without a quantizer
        (unpickled) counts as one of the same kind.
        """
        if isinstance(src, TensorPart):
            src = src.extracted()
        is_same_kind = (
            isinstance(src, BlockScaledTensor)
            and type(src)._settings is type(self)._settings
            and (src._quantizer is None or type(src._quantizer) is type(self._quantizer))
            and self._is_same_format(src)
        )
        if not is_same_kind:
            return False
        offered = src._current_copies("copy_")
        pairs = {c: (self._copy(c), offered[c]) for c in (False, True)}
        shared = [(own, other) for own, other in pairs.values() if own and other]
        missing = [c for c, (own, other) in pairs.items() if own is not None and other is None]
        if not shared:
            return False
        values = src._dequantize_impl(torch.float32) if missing else None
        for own, other in shared:
            for buffer, source in zip(own[:3], other[:3], strict=True):
                if buffer is not None and source is not None:
                    buffer.copy_(source)
                    count_write(buffer)
        if values is not None:
            part = self._part(missing)
            self._require_quantizer("copy_").update_quantized(values, part)
        self._after_bytes_written()
        return True

    def _part(self, columnwise: list[bool]) -> Any:
        """A storage of some of the copies, on the same buffers."""
        metadata = self.get_metadata()
        part = self._storage_type()(**metadata)
        part._drop_unwanted(False in columnwise, True in columnwise)
        return part

    def _reduce(self) -> Any:
        self._settle("__reduce_ex__")
        metadata = self.get_metadata()
        shape, dtype = tuple(metadata.pop("shape")), metadata.pop("dtype")
        quantizer = metadata.pop("quantizer")
        return (_make_block_scaled_tensor, (type(self), shape, dtype, metadata, quantizer))


def _make_block_scaled_tensor(
    cls: type[BlockScaledTensor],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    fields: dict[str, Any],
    quantizer: Quantizer | None,
) -> BlockScaledTensor:
    """Rebuild a pickled tensor. The name and place are part of the file format."""
    tensor: BlockScaledTensor = cls(shape, dtype, quantizer=quantizer, **fields)
    return tensor
