# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0

"""What DotProductAttention does in regions whose recipe has FP8 attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from transformer_engine.common.recipe import Recipe

from ...cpp_extensions import cast as native_cast
from ...cpp_extensions import state as native_state
from ...cpp_extensions import steps
from ...module.base import TransformerEngineBaseModule, resolve_device
from ...quantization import FP8GlobalStateManager, autocast
from ...recipe_state import SLOTS_PER_GEMM, UNUSED_SLOT, QuantizerRole
from ..backends.base import AttentionSwitches, SureRunner
from ..backends.candidates import switches_from_environment
from ..dense import load, store
from ..fp8.boundary import Boundary, boundary_of, encode
from ..fp8.codes import Slots
from ..fp8.cudnn import FusedFloat8Attention, fused_refusal, make_fused
from ..fp8.function import Float8AttentionOptions, float8_attention
from ..fp8.recipes import NUM_GEMMS, Float8AttentionSettings, attention_roles
from ..problem import AttentionOperands, AttentionParams

__all__ = ["MAX_PLANS", "AttentionPlan", "Float8AttentionModule", "Float8Call"]

_WHO = "DotProductAttention"
_FLOAT8_CORES = (
    native_cast.Float8QuantizerCore,
    native_cast.Float8CurrentScalingQuantizerCore,
)
MAX_PLANS = 256  # call signatures remembered per module


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What one call signature resolves to."""

    run: SureRunner
    params: AttentionParams
    needs_operands: bool
    device_type: str
    has_dropout: bool


@dataclass(frozen=True, slots=True)
class Float8Call:
    """One call that may run in FP8; `plan` is for where it does not."""

    plan: AttentionPlan
    boundary: Boundary
    fp8_output: bool
    bf16_backward: bool


class Float8AttentionModule(TransformerEngineBaseModule):
    """Quantizers, their state and the FP8 forward of an attention module.

    Parameters
    ----------
    name : str, optional
        See TransformerEngineBaseModule.
    """

    num_gemms: ClassVar[int] = NUM_GEMMS
    has_linear_layers: ClassVar[bool] = False

    def __init__(self, name: str | None) -> None:
        super().__init__(name)
        self._switches: AttentionSwitches = switches_from_environment()
        self.deterministic = self._switches.deterministic
        self._float8 = Float8AttentionSettings.from_environment()
        self._fused_plans: dict[tuple[Any, ...], FusedFloat8Attention | None] = {}
        self._call_device: torch.device | None = None

    def _float8_boundary(self, query: Any) -> Boundary | None:
        """For a call that may run in FP8, where its tensors' scales stand; else None."""
        if self._step is not None or self._float8.wants_fp8(FP8GlobalStateManager.get_fp8_recipe()):
            return boundary_of(query) or Boundary()
        return None

    def _run_in_float8(
        self,
        options: Float8Call,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        operands: AttentionOperands | None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Run by the native step, which knows the quantizers and whether this repeats a forward."""
        self._call_device = q.device
        is_other = native_state.is_region_quantizing() and not self._float8.wants_fp8(
            FP8GlobalStateManager.get_fp8_recipe()
        )
        result: Tensor | tuple[Tensor, Tensor]
        if is_other:  # a recipe without FP8 attention
            with autocast(enabled=False):
                result = self._run_step(q, k, v, operands, options)
        else:
            result = self._run_step(q, k, v, operands, options)
        return result

    def _quantized_forward(
        self,
        call: steps.QuantizedCall,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        operands: AttentionOperands | None,
        options: Float8Call,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """One forward inside the step."""
        plan, boundary = options.plan, options.boundary
        if not (call.is_quantized or call.is_calibrating):
            return plan.run(q, k, v, operands)
        params = plan.params
        override = "high_precision" if options.bf16_backward else call.backward_override
        slots = Slots(call)
        float8_options = self._float8_options(params, override)
        max_logit = None
        out = self._run_fused(params, (q, k, v), operands, slots, float8_options, boundary)
        if out is None:
            out, max_logit = self._run_emulated(
                params, (q, k, v), operands, slots, float8_options, boundary
            )
        if options.fp8_output and call.is_quantized:
            out = encode(out, boundary, slots)
        return out if max_logit is None else (out, max_logit)

    def _float8_options(
        self, params: AttentionParams, backward: str | None
    ) -> Float8AttentionOptions:
        """`backward`: what the recipe or the call asks for, None for FP8."""
        backward = backward if self._float8.has_fp8_backward else "high_precision"
        return Float8AttentionOptions(
            softmax_scale=params.softmax_scale,
            groups=params.num_gqa_groups,
            dropout=params.attention_dropout,
            out_dtype=params.dtype,
            backward=backward or "quantized",
            keeps_output=self._float8.keeps_output,
            returns_max_logit=params.return_max_logit,
        )

    def _explain_float8(
        self, params: AttentionParams, *, bf16_backward: bool
    ) -> dict[str, str | None] | None:
        """What explain_backends says in a region with FP8 attention; None elsewhere."""
        recipe = FP8GlobalStateManager.get_fp8_recipe()
        if not (native_state.may_run_fp8_attention() and self._float8.wants_fp8(recipe)):
            return None
        self._call_device = params.device
        self.init_fp8_metadata()
        forward, backward = (
            [quantizer.native for quantizer in slots] for slots in self.quantizers.values()
        )
        slots = Slots.of_quantizers(forward, backward)
        override = "high_precision" if bf16_backward else getattr(recipe, "backward_override", None)
        options = self._float8_options(params, override)
        reason: str | None = "switched off by NVTE_FUSED_ATTN=0"
        if self._switches.fused:
            reason = fused_refusal(params, options, slots)
        if reason is None:
            _, reason = make_fused(
                params,
                options,
                slots,
                deterministic=self.deterministic,
                is_training=self.training,
            )
        unfused = None if self._switches.unfused else "switched off by NVTE_UNFUSED_ATTN=0"
        return {"FusedAttention": reason, "UnfusedDotProductAttention": unfused}

    def _run_fused(
        self,
        params: AttentionParams,
        qkv: tuple[Tensor, Tensor, Tensor],
        operands: AttentionOperands | None,
        slots: Slots,
        options: Float8AttentionOptions,
        boundary: Boundary,
    ) -> Tensor | None:
        """By cuDNN; None where it does not take the call."""
        is_offered = self._switches.fused and slots.call.is_quantized
        if not is_offered or fused_refusal(params, options, slots) is not None:
            return None
        # In training also without gradients: a checkpoint's two runs are to be alike.
        is_training = self.training or any(x.requires_grad for x in qkv)
        fused = self._fused_for(params, options, slots, is_training)
        return None if fused is None else fused(*qkv, operands, slots, boundary)

    def _fused_for(
        self,
        params: AttentionParams,
        options: Float8AttentionOptions,
        slots: Slots,
        is_training: bool,
    ) -> FusedFloat8Attention | None:
        key = (params, options, is_training, *(slots.kind(x) for x in ("qkv", "o", "do", "dqkv")))
        if key not in self._fused_plans:
            if len(self._fused_plans) >= MAX_PLANS:
                self._fused_plans.clear()
            made, _ = make_fused(
                params,
                options,
                slots,
                deterministic=self.deterministic,
                is_training=is_training,
            )
            self._fused_plans[key] = made
        return self._fused_plans[key]

    def _run_emulated(
        self,
        params: AttentionParams,
        qkv: tuple[Tensor, Tensor, Tensor],
        operands: AttentionOperands | None,
        slots: Slots,
        options: Float8AttentionOptions,
        boundary: Boundary,
    ) -> tuple[Tensor, Tensor | None]:
        """By plain tensor operations."""
        if not self._switches.unfused:
            raise ValueError(
                f"{_WHO}.forward: no backend accepts FP8 attention; FusedAttention: "
                f"{fused_refusal(params, options, slots) or 'cuDNN does not take the problem'}; "
                "UnfusedDotProductAttention: switched off by NVTE_UNFUSED_ATTN=0. Set it to 1, or "
                "fp8_dpa=False."
            )
        inputs = load(params, *qkv, operands)
        out, max_logit = float8_attention(
            inputs.q,
            inputs.k,
            inputs.v,
            bias=inputs.bias,
            sink=operands.softmax_offset if operands is not None else None,
            hidden=inputs.hidden,
            slots=slots,
            options=options,
            boundary=boundary,
        )
        return store(params, inputs, out), max_logit

    def _build_step(self) -> Any:
        return steps.PythonStep(f"{_WHO}.forward")

    def _state_recipe(self, recipe: Recipe) -> Recipe:
        return self._float8.state_recipe(recipe)

    def get_quantizer_roles(self, mode: str) -> list[QuantizerRole | None]:
        """``QuantizerRole("dpa", tensor, name)``: qkv, s and o; dqkv, do and dp (see fp8.recipes).

        Parameters
        ----------
        mode : {"forward", "backward"}
        """
        return attention_roles(mode, self.name)

    def init_fp8_metadata(self, num_gemms: int = NUM_GEMMS) -> None:
        """Make quantizers for the region in force, if attention runs in FP8 there."""
        if self._float8.wants_fp8(FP8GlobalStateManager.get_fp8_recipe()):
            super().init_fp8_metadata(num_gemms)

    def _parameter_device(self) -> torch.device:
        return resolve_device("cuda") if self._call_device is None else self._call_device

    def _accept_quantizers(self, quantizers: dict[str, list[Any]]) -> None:
        for mode, made in zip(SLOTS_PER_GEMM, quantizers.values(), strict=True):
            for role, quantizer in zip(self.get_quantizer_roles(mode), made, strict=True):
                if role != UNUSED_SLOT and not isinstance(quantizer.native, _FLOAT8_CORES):
                    tensor = "" if role is None else role.tensor_type
                    raise TypeError(
                        f"{_WHO}.forward: the recipe's quantizer for {tensor!r} is a "
                        f"{type(quantizer).__name__}; FP8 attention needs a Float8Quantizer, a "
                        "Float8CurrentScalingQuantizer or a DelayedScalingRequest. Change what "
                        'qfactory returns for module_type "dpa", or set fp8_dpa=False.'
                    )
                quantizer.set_usage(rowwise=True, columnwise=False)

    def __getstate__(self) -> dict[str, Any]:
        """Plans hold native objects, which neither copy nor pickle, and are rebuilt on demand."""
        return {**super().__getstate__(), "_fused_plans": {}}
