# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the native Float8Attention: the formulas of transformer_engine/attention.h in
float64, with codes of `formats`; for the Python around it, on any device.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from transformer_engine.pytorch.constants import DType, TE_DType_To_Torch

from .formats import E4M3, E5M2, decode_table, encode_reference

_FORMATS = {DType.kFloat8E4M3: E4M3, DType.kFloat8E5M2: E5M2}


class FakeFloat8Attention:
    """Takes what the native class takes; counts its calls."""

    calls: ClassVar[list[str]] = []
    declines: ClassVar[bool] = False

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.reason = ""

    def refusal(self, sizes: dict[str, int], device_index: int, is_training: bool) -> str | None:
        assert set(sizes) >= {"batch", "heads", "groups", "queries", "keys", "size_qk", "size_v"}
        assert is_training and device_index == 0
        return None

    def _values(self, data: torch.Tensor, name: str, descale: torch.Tensor | None) -> torch.Tensor:
        """[b, h, s, d] of codes or, where the dtype is no FP8, of numbers."""
        fmt = _FORMATS.get(DType(self.options[name]))
        if fmt is None:
            assert data.dtype == TE_DType_To_Torch[DType(self.options[name])] and descale is None
            values = data.double()
        else:
            assert data.dtype == torch.uint8 and descale is not None
            assert descale.shape == (1,) and descale.dtype == torch.float32
            values = decode_table(fmt)[data.long()] * descale.double()
        return values.permute(1, 2, 0, 3) if self._is_sbhd else values.transpose(1, 2)

    @property
    def _is_sbhd(self) -> bool:
        return bool(self.options["qkv_format"] == "sbhd")

    def _stored(self, x: torch.Tensor, name: str, scale: torch.Tensor | None) -> torch.Tensor:
        """[b, h, s, d] back in the layout and dtype."""
        x = (x.permute(2, 0, 1, 3) if self._is_sbhd else x.transpose(1, 2)).contiguous()
        fmt = _FORMATS.get(DType(self.options[name]))
        if fmt is None:
            assert scale is None
            return x.to(TE_DType_To_Torch[DType(self.options[name])])
        assert scale is not None and scale.shape == (1,)
        return encode_reference(x * scale.double(), fmt)

    def _round(self, x: torch.Tensor, name: str, scale: torch.Tensor, descale: torch.Tensor) -> Any:
        fmt = _FORMATS[DType(self.options[name])]
        codes = encode_reference(x * scale.double(), fmt)
        return decode_table(fmt)[codes.long()] * descale.double()

    def _scores(self, q: torch.Tensor, k: torch.Tensor, cu_q: Any, cu_kv: Any) -> torch.Tensor:
        options = self.options
        queries, keys = q.shape[2], k.shape[2]
        i, j = torch.arange(queries)[:, None], torch.arange(keys)
        visible = torch.ones(q.shape[0], 1, queries, keys, dtype=torch.bool)
        shift = torch.zeros(q.shape[0], 1, 1, 1, dtype=torch.int64)
        assert options["has_lengths"] == (cu_q is not None)
        if cu_q is not None:
            lengths_q, lengths_kv = (x.diff().view(-1, 1, 1, 1) for x in (cu_q, cu_kv))
            visible = visible & (i < lengths_q) & (j < lengths_kv)
            shift = lengths_kv - lengths_q
        elif options["is_bottom_right"]:
            shift = shift + keys - queries
        if not options["is_bottom_right"]:
            shift = torch.zeros_like(shift)
        if options["right"] >= 0:
            visible = visible & (j <= i + shift + options["right"])
        if options["left"] >= 0:
            visible = visible & (j >= i + shift - options["left"])
        scores = options["scale"] * q @ k.transpose(-1, -2)
        return scores.masked_fill(~visible, -torch.inf)

    def _repeat(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.repeat_interleave(heads // x.shape[1], 1)

    def forward(  # noqa: PLR0913 - the native signature
        self, q: Any, k: Any, v: Any, cu_q: Any, cu_kv: Any, descale_q: Any, descale_k: Any,
        descale_v: Any, scale_s: Any, descale_s: Any, scale_o: Any, is_training: bool, /,
    ) -> Any:  # fmt: skip
        self.calls.append("forward")
        if self.declines:
            self.reason = "declined"
            return None
        q = self._values(q, "dtype", descale_q)
        k = self._repeat(self._values(k, "dtype", descale_k), q.shape[1])
        v = self._repeat(self._values(v, "dtype", descale_v), q.shape[1])
        scores = self._scores(q, k, cu_q, cu_kv)
        statistics = torch.logsumexp(scores, -1, keepdim=True)
        p = torch.exp(scores - statistics).nan_to_num(0.0)
        out = self._round(p, "dtype", scale_s, descale_s) @ v
        stored = self._stored(out, "out_dtype", scale_o)
        amaxes = torch.stack((p.amax(), out.abs().amax())).float()
        return stored, statistics.float() if is_training else None, amaxes[:1], amaxes[1:]

    def backward(  # noqa: PLR0913 - the native signature
        self, q: Any, k: Any, v: Any, o: Any, grad_o: Any, statistics: Any, cu_q: Any, cu_kv: Any,
        descale_q: Any, descale_k: Any, descale_v: Any, descale_o: Any, descale_grad_o: Any,
        scale_s: Any, descale_s: Any, scale_dp: Any, descale_dp: Any,
        scale_dq: Any, scale_dk: Any, scale_dv: Any, /,
    ) -> Any:  # fmt: skip
        self.calls.append("backward")
        groups = k.shape[-2]
        q = self._values(q, "dtype", descale_q)
        heads = q.shape[1]
        k = self._repeat(self._values(k, "dtype", descale_k), heads)
        v = self._repeat(self._values(v, "dtype", descale_v), heads)
        o = self._values(o, "saved_out_dtype", descale_o)
        grad = self._values(grad_o, "grad_out_dtype", descale_grad_o)
        scores = self._scores(q, k, cu_q, cu_kv)
        p = torch.exp(scores - statistics.double()).nan_to_num(0.0)
        p8 = self._round(p, "dtype", scale_s, descale_s)
        delta = (grad * o).sum(-1, keepdim=True)
        ds = self.options["scale"] * p * (grad @ v.transpose(-1, -2) - delta)
        ds8 = self._round(ds, "grad_out_dtype", scale_dp, descale_dp)

        def by_group(x: torch.Tensor) -> torch.Tensor:
            return x.unflatten(1, (groups, heads // groups)).sum(2)

        dq, dk, dv = ds8 @ k, by_group(ds8.mT @ q), by_group(p8.mT @ grad)
        amaxes = torch.stack([x.abs().amax() for x in (dq, dk, dv, ds)]).float()
        scales = (scale_dq, scale_dk, scale_dv)
        stored = [
            self._stored(x, "grad_dtype", scale)
            for x, scale in zip((dq, dk, dv), scales, strict=True)
        ]
        return (*stored, *amaxes.split(1))
