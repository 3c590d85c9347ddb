# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""Which recipes run attention in FP8, and which quantizer each of its tensors gets.

The state of an attention module has three GEMMs' worth of slots, of which six are used:

=====  =========  ====  ======================================================================
slot   direction  kind  tensor
=====  =========  ====  ======================================================================
QKV    forward    2     query, key and value together: one scale for the three
O      forward    3     the output
S      forward    8     the probabilities, after dropout
dQKV   backward   0     the gradients of query, key and value together
dO     backward   3     the gradient of the output
dP     backward   5     the gradient of the products Q K^T (of the scores, times the softmax scale)
=====  =========  ====  ======================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformer_engine.common.environment import read_switch, read_text
from transformer_engine.common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8CurrentScaling,
    Format,
    Recipe,
)

from ...recipe_state import (
    SLOTS_PER_GEMM,
    UNUSED_SLOT,
    DelayedScalingRequest,
    QuantizerRole,
    fp8_dtype_of,
)
from ...tensor import Float8CurrentScalingQuantizer

__all__ = [
    "BACKWARD_SLOTS",
    "FORWARD_SLOTS",
    "NUM_GEMMS",
    "Float8AttentionSettings",
    "attention_roles",
]

NUM_GEMMS = 3
FORWARD_SLOTS = {"qkv": 2, "o": 3, "s": 8}
BACKWARD_SLOTS = {"dqkv": 0, "do": 3, "dp": 5}
_DELAYED_WITH_CURRENT = ("s", "dp")  # unknown before the product that reads them begins

_WHO = "DotProductAttention.forward"


def attention_roles(mode: str, name: str) -> list[QuantizerRole | None]:
    """The roles of the slots of one direction, ``QuantizerRole("dpa", "qkv", name)`` and so on."""
    slots = FORWARD_SLOTS if mode == "forward" else BACKWARD_SLOTS
    roles: list[QuantizerRole | None] = [UNUSED_SLOT] * (NUM_GEMMS * SLOTS_PER_GEMM[mode])
    for tensor_type, slot in slots.items():
        roles[slot] = QuantizerRole("dpa", tensor_type, name)
    return roles


@dataclass(frozen=True)
class _CurrentScalingFactory:
    """Quantizers of attention under current scaling: S and dP have the scales of earlier steps."""

    recipe: Float8CurrentScaling
    delayed: DelayedScalingRequest

    def __call__(self, role: QuantizerRole) -> Any:
        if role.tensor_type in _DELAYED_WITH_CURRENT:
            return self.delayed
        is_forward = role.tensor_type in FORWARD_SLOTS
        recipe: Any = self.recipe
        params = recipe.fp8_quant_fwd_inp if is_forward else recipe.fp8_quant_bwd_grad
        return Float8CurrentScalingQuantizer(
            fp8_dtype_of(recipe, is_forward),
            force_pow_2_scales=params.power_2_scale,
            amax_epsilon=params.amax_epsilon,
        )


@dataclass(frozen=True, slots=True)
class Float8AttentionSettings:
    """What the environment says of FP8 attention; see docs/environment.md."""

    recipe: str  # "": that of the region
    dpa: bool
    mha: bool
    fp8_format: Format
    amax_compute_algo: Any  # "most_recent" or "max"
    amax_history_len: int
    reduce_amax: bool
    has_fp8_backward: bool
    keeps_output: bool  # current scaling's backward reads the output as it was before quantization

    @classmethod
    def from_environment(cls) -> Float8AttentionSettings:
        """The settings, now.

        Raises
        ------
        ValueError
            For a text that is not accepted.
        """
        length = read_text("NVTE_DPA_FP8DS_AMAX_HISTLEN")
        if not (length.isascii() and length.isdigit() and int(length) >= 1):
            raise ValueError(
                f"transformer_engine: environment variable NVTE_DPA_FP8DS_AMAX_HISTLEN is "
                f"{length!r}; a number of at least 1 is required. Change or unset it."
            )
        return cls(
            recipe=read_text("NVTE_DPA_FP8_RECIPE"),
            dpa=read_switch("NVTE_DPA_FP8_RECIPE_DPA"),
            mha=read_switch("NVTE_DPA_FP8_RECIPE_MHA"),
            fp8_format=Format[read_text("NVTE_DPA_FP8_FORMAT")],
            amax_compute_algo=read_text("NVTE_DPA_FP8DS_AMAX_ALGO"),
            amax_history_len=int(length),
            reduce_amax=read_switch("NVTE_DPA_FP8DS_REDUCE_AMAX"),
            has_fp8_backward=read_switch("NVTE_FP8_DPA_BWD"),
            keeps_output=read_switch("NVTE_DPA_FP8CS_O_in_F16"),
        )

    def wants_fp8(self, recipe: Recipe) -> bool:
        """Whether attention runs in FP8 under the region's recipe."""
        if getattr(recipe, "fp8_dpa", False) or getattr(recipe, "fp8_mha", False):
            return self.recipe != "F16"
        return bool(self.recipe) and self.recipe != "F16" and (self.dpa or self.mha)

    def wants_fp8_boundaries(self, recipe: Recipe) -> bool:
        """Whether query, key, value and output pass the module's boundary in FP8, too."""
        asked = self.mha if self.recipe else getattr(recipe, "fp8_mha", False)
        return asked and self.wants_fp8(recipe)

    def state_recipe(self, recipe: Recipe) -> Recipe:
        """The recipe of the attention's quantizers where the region has `recipe`.

        Raises
        ------
        NotImplementedError
            MXFP8 attention.
        ValueError
            A recipe that has no FP8 attention.
        """
        name = self.recipe or _family(recipe)
        if name == "DelayedScaling":
            return recipe if isinstance(recipe, DelayedScaling) else self._delayed(recipe)
        if name == "Float8CurrentScaling":
            if not isinstance(recipe, Float8CurrentScaling):
                recipe = Float8CurrentScaling(fp8_format=self._format(recipe))
            return CustomRecipe(qfactory=_CurrentScalingFactory(recipe, self._request(recipe)))
        if name == "CustomRecipe":
            return recipe
        if name == "MXFP8BlockScaling":
            raise NotImplementedError(
                f"{_WHO}: the recipe {type(recipe).__name__} asks for attention in MXFP8; this "
                "version has FP8 attention with one scale per tensor. Set fp8_dpa=False and "
                "fp8_mha=False, or NVTE_DPA_FP8_RECIPE=Float8CurrentScaling."
            )
        raise ValueError(
            f"{_WHO}: the recipe {type(recipe).__name__} has fp8_dpa=True or fp8_mha=True; it has "
            "no FP8 attention. Set both to False, or say by NVTE_DPA_FP8_RECIPE which recipe "
            "attention takes."
        )

    def _format(self, recipe: Recipe) -> Format:
        """NVFP4 has no FP8 format of its own for attention."""
        return self.fp8_format if recipe.nvfp4() else getattr(recipe, "fp8_format", Format.HYBRID)

    def _request(self, recipe: Recipe) -> DelayedScalingRequest:
        return DelayedScalingRequest(
            fp8_format=self._format(recipe),
            amax_history_len=self.amax_history_len,
            amax_compute_algo=self.amax_compute_algo,
            reduce_amax=self.reduce_amax,
        )

    def _delayed(self, recipe: Recipe) -> DelayedScaling:
        return DelayedScaling(
            fp8_format=self._format(recipe),
            amax_history_len=self.amax_history_len,
            amax_compute_algo=self.amax_compute_algo,
            reduce_amax=self.reduce_amax,
            backward_override=None,
        )


def _family(recipe: Recipe) -> str:
    families = (DelayedScaling, Float8CurrentScaling, CustomRecipe)
    for family in families:
        if isinstance(recipe, family):
            return family.__name__
    return "MXFP8BlockScaling" if recipe.mxfp8() else type(recipe).__name__
