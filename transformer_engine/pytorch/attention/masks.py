# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""What a query may see: mask types, sliding windows, padding.

Polarity everywhere: **True = masked out**. Each mask type is a window plus, maybe, padding plus,
maybe, a given tensor; :func:`get_attention_mask` is the definition that the backends, the
documentation and the tests share.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..constants import AttnMaskTypes

__all__ = ["MaskRule", "get_attention_mask", "normalize_mask_type", "resolve_mask_rule"]


def normalize_mask_type(
    attn_mask_type: str, who: str = "DotProductAttention", name: str = "attn_mask_type"
) -> str:
    """Canonical spelling: ``"padding,causal"`` and ``"causal_padding"`` mean
    ``"padding_causal"``.
    """
    canonical = (
        attn_mask_type.replace(",", "_") if isinstance(attn_mask_type, str) else attn_mask_type
    )
    if canonical == "causal_padding":
        canonical = "padding_causal"
    if canonical not in AttnMaskTypes:
        raise ValueError(
            f"{who}: {name} is {attn_mask_type!r}; it must be one of {', '.join(AttnMaskTypes)}."
        )
    return canonical


@dataclass(frozen=True, slots=True)
class MaskRule:
    """A mask type and a window in one form: causal is the window ``(left, 0)``.

    Query i sees key j iff ``i + shift - left <= j <= i + shift + right`` (-1: unbounded on that
    side), where shift is ``s_kv - s_q`` when `bottom_right` (actual lengths with padding) and else
    0; and neither is padding (`pads`); and the given mask says False (`arbitrary`).
    """

    name: str
    left: int
    right: int
    bottom_right: bool
    pads: bool
    arbitrary: bool

    @property
    def is_unbounded(self) -> bool:
        """No limit on j by position."""
        return self.left < 0 and self.right < 0

    @property
    def is_causal(self) -> bool:
        """The plain causal triangle: everything up to the diagonal."""
        return self.left < 0 and self.right == 0

    def shift(self, s_q: int, s_kv: int) -> int:
        """Column of the diagonal in row 0."""
        return s_kv - s_q if self.bottom_right else 0

    def can_hide_whole_rows(self, s_q: int, s_kv: int) -> bool:
        """Whether some query of this size may see nothing at all."""
        if self.pads or self.arbitrary or s_kv == 0:
            return True
        shift = self.shift(s_q, s_kv)
        above = self.right >= 0 and shift + self.right < 0
        below = self.left >= 0 and s_q - 1 + shift - self.left > s_kv - 1
        return above or below


def check_window(
    window_size: tuple[int, int] | None, who: str, name: str = "window_size"
) -> tuple[int, int] | None:
    """A pair of sides, each -1 or more."""
    if window_size is None:
        return None
    is_pair = isinstance(window_size, (tuple, list)) and len(window_size) == 2
    if not is_pair or not all(type(side) is int for side in window_size):
        raise TypeError(
            f"{who}: {name} is {window_size!r}; it must be a pair of int (left, right), -1 = "
            "unbounded."
        )
    left, right = window_size
    if left < -1 or right < -1:
        raise ValueError(
            f"{who}: {name} is ({left}, {right}); each side must be -1 (unbounded) or at least 0."
        )
    return left, right


def resolve_mask_rule(
    attn_mask_type: str,
    window_size: tuple[int, int] | None = None,
    bottom_right_diagonal: bool | None = None,
    who: str = "DotProductAttention",
) -> MaskRule:
    """Combine the three arguments that say where the diagonal runs and how far a query looks.

    Causal types force the right side to 0, and ``(-1, 0)`` with another type means ``(-1, -1)``;
    both warn. The diagonal is top-left for ``causal`` and ``padding_causal``, bottom-right for
    ``*_bottom_right``; other types take `bottom_right_diagonal`, by default True.
    """
    name = normalize_mask_type(attn_mask_type, who)
    window = check_window(window_size, who)
    causal = "causal" in name
    if causal:
        left, right = (-1, 0) if window is None else window
        if right != 0:
            warnings.warn(
                f"{who}: window_size is {window}; {name} needs a right side of 0, ({left}, 0) is "
                "used.",
                stacklevel=3,
            )
            right = 0
        bottom_right = name.endswith("bottom_right")
    else:
        left, right = (-1, -1) if window is None else window
        if (left, right) == (-1, 0):
            warnings.warn(
                f"{who}: window_size is (-1, 0), which is a causal mask; {name} is not causal, "
                "(-1, -1) is used.",
                stacklevel=3,
            )
            right = -1
        bottom_right = True if bottom_right_diagonal is None else bool(bottom_right_diagonal)
    return MaskRule(
        name, left, right, bottom_right, name.startswith("padding"), name == "arbitrary"
    )


@dataclass(slots=True)
class Padding:
    """Which rows and columns hold no token, and how long the sequences are."""

    hidden_q: Tensor  # [b, s_q] bool
    hidden_kv: Tensor  # [b, s_kv] bool
    lengths_q: Tensor | None = None  # [b] int; derived from hidden_q when it is asked for
    lengths_kv: Tensor | None = None

    @classmethod
    def from_lengths(
        cls, lengths_q: Tensor, lengths_kv: Tensor, s_q: int, s_kv: int, device: torch.device
    ) -> Padding:
        """Sequences fill the front of their rows."""
        lengths_q, lengths_kv = lengths_q.to(device), lengths_kv.to(device)
        return cls(
            torch.arange(s_q, device=device) >= lengths_q[:, None],
            torch.arange(s_kv, device=device) >= lengths_kv[:, None],
            lengths_q,
            lengths_kv,
        )

    @property
    def shift(self) -> Tensor:
        """Bottom-right diagonal of each sequence, int ``[b, 1, 1]``."""
        lengths_q = (~self.hidden_q).sum(-1) if self.lengths_q is None else self.lengths_q
        lengths_kv = (~self.hidden_kv).sum(-1) if self.lengths_kv is None else self.lengths_kv
        return (lengths_kv - lengths_q)[:, None, None]


def hidden_by_position(
    rule: MaskRule, s_q: int, s_kv: int, padding: Padding | None, device: torch.device
) -> Tensor | None:
    """Pairs outside the window, bool ``[1 or b, 1, s_q, s_kv]``; None when the window is
    unbounded.
    """
    if rule.is_unbounded:
        return None
    if padding is None or not rule.bottom_right:
        shift = 0 if padding is not None else rule.shift(s_q, s_kv)
        hidden = torch.zeros((s_q, s_kv), dtype=torch.bool, device=device)
        if rule.right >= 0:
            hidden |= torch.ones((s_q, s_kv), dtype=torch.bool, device=device).triu_(
                shift + rule.right + 1
            )
        if rule.left >= 0:
            hidden |= torch.ones((s_q, s_kv), dtype=torch.bool, device=device).tril_(
                shift - rule.left - 1
            )
        return hidden[None, None]
    distance = (
        torch.arange(s_kv, device=device)
        - torch.arange(s_q, device=device)[:, None]
        - padding.shift
    )
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if rule.right >= 0:
        hidden |= distance > rule.right
    if rule.left >= 0:
        hidden |= distance < -rule.left
    return hidden[:, None]


def hidden_pairs(
    rule: MaskRule,
    s_q: int,
    s_kv: int,
    padding: Padding | None,
    given: Tensor | None,
    device: torch.device,
) -> Tensor | None:
    """Union of window, padding and given mask, bool ``[1 or b, 1 or h, s_q, s_kv]``; None when
    nothing is hidden.
    """
    hidden = hidden_by_position(rule, s_q, s_kv, padding, device)
    if padding is not None:
        padded = padding.hidden_q[:, None, :, None] | padding.hidden_kv[:, None, None, :]
        hidden = padded if hidden is None else hidden | padded
    if given is not None:
        hidden = given if hidden is None else hidden | given
    return hidden


def check_mask(mask: Any, name: str, who: str) -> Tensor:
    """A mask must be a boolean tensor, because 0/1 and additive masks would silently mean
    something else.
    """
    if not isinstance(mask, Tensor):
        raise TypeError(
            f"{who}: {name} is a {type(mask).__name__}; it must be a boolean tensor, True = masked "
            "out."
        )
    if mask.dtype != torch.bool:
        raise TypeError(
            f"{who}: {name} has dtype {mask.dtype}; it must be torch.bool, True = masked out."
        )
    return mask


def _padding_row(mask: Tensor, batch: int, length: int, name: str, who: str) -> Tensor:
    """``[b, 1, 1, s]`` to ``[b, s]``."""
    check_mask(mask, name, who)
    shape = tuple(mask.shape)
    if len(shape) != 4 or shape[1:] != (1, 1, length) or shape[0] not in (1, batch):
        raise ValueError(
            f"{who}: {name} has shape {shape}; a padding mask here is ({batch}, 1, 1, {length}). "
            "For cross attention pass a pair (query mask, key mask); for a mask per pair use "
            "attn_mask_type='arbitrary'."
        )
    return mask[:, 0, 0, :].expand(batch, length)


def padding_from_masks(
    attention_mask: Tensor | tuple[Tensor, Tensor], batch: int, s_q: int, s_kv: int, who: str
) -> Padding:
    """Padding from ``[b, 1, 1, s]`` masks: one for self attention, a pair (query, key) for cross
    attention.
    """
    if isinstance(attention_mask, (tuple, list)):
        if len(attention_mask) != 2:
            raise ValueError(
                f"{who}: attention_mask is a sequence of {len(attention_mask)}; it must be a pair "
                "(query mask, key mask)."
            )
        mask_q, mask_kv = attention_mask
        hidden_q = _padding_row(mask_q, batch, s_q, "attention_mask[0]", who)
        return Padding(hidden_q, _padding_row(mask_kv, batch, s_kv, "attention_mask[1]", who))
    hidden_kv = _padding_row(attention_mask, batch, s_kv, "attention_mask", who)
    if s_q != s_kv:
        raise ValueError(
            f"{who}: attention_mask is one tensor for {s_q} queries and {s_kv} keys; with "
            "different lengths it must be a pair (query mask, key mask)."
        )
    return Padding(hidden_kv, hidden_kv)


def check_arbitrary(mask: Any, full_shape: tuple[int, ...], who: str) -> Tensor:
    """The mask of ``attn_mask_type="arbitrary"``: broadcastable to ``[b, h, s_q, s_kv]``."""
    if mask is None:
        raise ValueError(
            f"{who}: attention_mask is None; attn_mask_type='arbitrary' needs a boolean mask."
        )
    mask = check_mask(mask, "attention_mask", who)
    shape = tuple(mask.shape)
    aligned = (1,) * (4 - len(shape)) + shape
    if len(aligned) != 4 or any(
        have not in (1, want) for have, want in zip(aligned, full_shape, strict=True)
    ):
        raise ValueError(
            f"{who}: attention_mask has shape {shape}; it must broadcast to {full_shape} (b, h, "
            "s_q, s_kv)."
        )
    return mask.view(aligned) if len(shape) < 4 else mask


def get_attention_mask(  # noqa: PLR0913 - public signature
    attn_mask_type: str,
    s_q: int,
    s_kv: int,
    *,
    window_size: tuple[int, int] | None = None,
    bottom_right_diagonal: bool | None = None,
    lengths_q: Tensor | None = None,
    lengths_kv: Tensor | None = None,
    attention_mask: Tensor | tuple[Tensor, Tensor] | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """The boolean mask of any mask type and window; True = masked out.

    Parameters
    ----------
    attn_mask_type : str
        One of ``AttnMaskTypes``.
    s_q, s_kv : int
        Sizes of the query and key axes.
    window_size : tuple of int, optional
        ``(left, right)``, -1 = unbounded.
    bottom_right_diagonal : bool, optional
        Alignment for the types that leave it open.
    lengths_q, lengths_kv : torch.Tensor, optional
        Integer ``[b]``: tokens at the front of each row, for padding types. `lengths_kv` defaults
        to `lengths_q`.
    attention_mask : torch.Tensor or pair, optional
        Padding masks ``[b, 1, 1, s]`` instead of lengths, or the mask of ``"arbitrary"``.
    device : torch.device
        Where to build the mask when no tensor argument says so.

    Returns
    -------
    torch.Tensor
        Bool ``[1 or b, 1 or h, s_q, s_kv]``.

    Raises
    ------
    ValueError, TypeError
        Unknown type, bad window, a padding type without lengths or mask, a mask of another shape or
        dtype.
    """
    who = "get_attention_mask"
    rule = resolve_mask_rule(attn_mask_type, window_size, bottom_right_diagonal, who)
    padding, given = None, None
    device = torch.device(device)
    if rule.pads:
        if lengths_q is not None:
            device = lengths_q.device
            lengths_kv = lengths_q if lengths_kv is None else lengths_kv
            padding = Padding.from_lengths(lengths_q, lengths_kv, s_q, s_kv, device)
        elif attention_mask is not None:
            first = (
                attention_mask[0] if isinstance(attention_mask, (tuple, list)) else attention_mask
            )
            padding = padding_from_masks(attention_mask, first.shape[0], s_q, s_kv, who)
            device = first.device
        else:
            raise ValueError(
                f"{who}: lengths_q and attention_mask are None; {rule.name} needs one of them."
            )
    elif rule.arbitrary:
        shape = tuple(attention_mask.shape[-4:]) if isinstance(attention_mask, Tensor) else (1,) * 4
        full = (*((1,) * (4 - len(shape)) + shape)[:2], s_q, s_kv)
        given = check_arbitrary(attention_mask, full, who)
        device = given.device
    hidden = hidden_pairs(rule, s_q, s_kv, padding, given, device)
    if hidden is None:
        return torch.zeros((1, 1, s_q, s_kv), dtype=torch.bool, device=device)
    return hidden.expand(hidden.shape[0], hidden.shape[1], s_q, s_kv)
