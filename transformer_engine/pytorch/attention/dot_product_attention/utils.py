# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""Questions about backends, without running attention."""

from __future__ import annotations

from ..backends.candidates import CANDIDATES, backend_reasons, switches_from_environment
from ..problem import AttentionParams

__all__ = ["AttentionParams", "explain_attention_backends", "get_attention_backend"]


def explain_attention_backends(attention_params: AttentionParams) -> dict[str, str | None]:
    """For each backend, in order of preference: None when it accepts, else the reason why it
    refuses.
    """
    return backend_reasons(attention_params, switches_from_environment())


def get_attention_backend(
    attention_params: AttentionParams,
) -> tuple[bool, None, bool, int, bool, list[bool]]:
    """Which family would run.

    cuDNN's attention is of the fused family. torch's operator picks flash or another fused kernel
    by itself; it counts as the fused family when ``NVTE_FUSED_ATTN`` allows that, else as the flash
    family.

    Returns
    -------
    tuple
        ``(use_flash, flash_version, use_fused, fused_sub_backend, use_unfused, [flash, fused,
        unfused])``: the family chosen (at most one is True), the flash version (always None), the
        fused sub-backend (1 when the fused family is chosen, else -1), and which families accept.
        Reasons: :func:`explain_attention_backends`.
    """
    switches = switches_from_environment()
    accepting = [
        name
        for name, reason in backend_reasons(attention_params, switches).items()
        if reason is None
    ]
    unfused = CANDIDATES[-1].name in accepting
    torch_fused = any(name not in (CANDIDATES[0].name, CANDIDATES[-1].name) for name in accepting)
    flash = torch_fused and switches.flash
    use_fused = CANDIDATES[0].name in accepting or (torch_fused and switches.fused)
    use_flash = flash and not use_fused
    use_unfused = unfused and not (use_fused or use_flash)
    available = [flash, use_fused, unfused]
    return use_flash, None, use_fused, 1 if use_fused else -1, use_unfused, available
