# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What happens in one run of a model: calls of its layers, and what they quantize.

The native steps of the modules are replaced for the time of the run by new ones whose quantizers
record what they are given, so that what is seen are the very operands of the products.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from transformer_engine.common.recipe import Recipe

from ..cpp_extensions import state as tex
from ..cpp_extensions import steps
from ..module.base import STATE_KEYS, TransformerEngineBaseModule
from ..recipe_state import SLOTS_PER_GEMM, DelayedScalingRecipeState, RecipeState, native_recipe
from ..tensor import Float8Quantizer, QuantizedTensor, Quantizer
from .results import OperandRow
from .statistics import CopyStatistics, statistics_of

__all__ = ["Call", "Recorder", "floating_tensors", "plain_copy"]

# What the two copies of a tensor are for: (product, operand) of the rowwise and the columnwise one.
_PRODUCTS = {
    "input": ("fprop", "wgrad"),
    "weight": ("fprop", "dgrad"),
    "grad_output": ("dgrad", "wgrad"),
}
_ORDER = [
    *(("fprop", "input"), ("fprop", "weight"), ("dgrad", "grad_output")),
    *(("dgrad", "weight"), ("wgrad", "input"), ("wgrad", "grad_output")),
]


@dataclass
class Call:
    """One call of a module: what went in, what came out, and what was quantized in between."""

    module: TransformerEngineBaseModule
    name: str
    number: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[torch.Tensor | None] = field(default_factory=list)
    grad_outputs: dict[int, torch.Tensor] = field(default_factory=dict)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    # (gemm index, product, operand) -> measures
    operands: dict[tuple[int, str, str], CopyStatistics] = field(default_factory=dict)

    def add(
        self, gemm: int, operand: str, found: tuple[CopyStatistics | None, CopyStatistics | None]
    ) -> None:
        """Measures of the (rowwise, columnwise) use of a tensor; the first of each counts."""
        for product, statistics in zip(_PRODUCTS[operand], found, strict=True):
            if statistics is not None:
                self.operands.setdefault((gemm, product, operand), statistics)

    def rows(self) -> list[OperandRow]:
        names = self.module._gemm_names
        return [
            OperandRow(
                f"{self.name}.{names[gemm]}" if names[gemm] else self.name,
                self.number,
                product,
                operand,
                **vars(self.operands[gemm, product, operand]),
            )
            for gemm in range(len(names))
            for product, operand in _ORDER
            if (gemm, product, operand) in self.operands
            # Copies for a backward pass that did not come by were read by nothing.
            and (product == "fprop" or self.grad_outputs)
        ]


class _RecordingQuantizer(Quantizer):
    """Quantizes by another quantizer and reports the result."""

    def __init__(
        self, inner: Quantizer, record: Callable[[torch.Tensor, Any, dict[str, bool]], None]
    ) -> None:
        super().__init__(rowwise=True, columnwise=True)
        self._inner = inner
        self._record = record

    def quantize_impl(self, tensor: torch.Tensor) -> Any:
        usages = self.get_usages()
        self._inner.set_usage(**usages)
        quantized = self._inner.quantize_impl(tensor)
        self._record(tensor, quantized, usages)
        return quantized

    def update_quantized(
        self, src: torch.Tensor, dst: Any, *, noop_flag: torch.Tensor | None = None
    ) -> Any:
        return self._inner.update_quantized(src, dst, noop_flag=noop_flag)

    def copy(self) -> _RecordingQuantizer:
        return _RecordingQuantizer(self._inner, self._record)

    def is_requantization_safe(self) -> bool:
        return self._inner.is_requantization_safe()


_HALVES = ("rowwise_quantizer", "columnwise_quantizer")  # of a quantizer of two formats


def _half(quantizer: Quantizer, is_columnwise: bool) -> Quantizer:
    """The quantizer of one copy."""
    half = getattr(quantizer, _HALVES[is_columnwise], None)
    return half if isinstance(half, Quantizer) else quantizer


def _independent(quantizer: Quantizer) -> Quantizer:
    """A copy that leaves the module's scaling state as it is."""
    copied = quantizer.copy()
    copied.internal = False
    for part in (copied, *(_half(copied, is_columnwise) for is_columnwise in (False, True))):
        if isinstance(part, Float8Quantizer):
            part.amax = torch.zeros_like(part.amax)
    return copied


def _mode(quantizer: Quantizer, is_columnwise: bool) -> str:
    """What the bytes of a copy do not show."""
    half = _half(quantizer, is_columnwise)
    modes = {"nvfp4_use_4over6": "+4over6", "stochastic_rounding": "+SR"}
    return "".join(text for name, text in modes.items() if getattr(half, name, False))


def _with_modes(
    quantizer: Quantizer | None, found: tuple[CopyStatistics | None, CopyStatistics | None]
) -> tuple[CopyStatistics | None, CopyStatistics | None]:
    """(rowwise, columnwise) measures whose formats name the modes of the quantizer too."""
    if quantizer is None:
        return found
    rowwise, columnwise = (
        None
        if measures is None
        else replace(measures, format=measures.format + _mode(quantizer, is_columnwise))
        for is_columnwise, measures in zip((False, True), found, strict=True)
    )
    return rowwise, columnwise


def _quantizers_for(module: TransformerEngineBaseModule, recipe: Recipe) -> list[list[Quantizer]]:
    """(forward, backward) as the module's next call under a recipe would use them."""
    present = module.fp8_meta.get("recipe")
    held = [module.quantizers[key] for key in STATE_KEYS]
    if present is not None and native_recipe(present) is native_recipe(recipe) and all(held):
        return [[_independent(quantizer) for quantizer in slots] for slots in held]
    module._check_parameter_formats(recipe)
    loaded = module.fp8_meta.get("loaded_buffers")
    made = []
    for mode, key in zip(SLOTS_PER_GEMM, STATE_KEYS, strict=True):
        state = RecipeState.create(
            recipe,
            mode=mode,
            num_quantizers=module.num_gemms * SLOTS_PER_GEMM[mode],
            device=module._parameter_device(),
            roles=module.get_quantizer_roles(mode),
        )
        state.inherit_state_from(module.fp8_meta.get(key))
        if loaded is not None and isinstance(state, DelayedScalingRecipeState):
            scale = loaded.scale_fwd if state.is_forward else loaded.scale_bwd
            state.scale = scale.to(state.scale.device, copy=True)
        made.append([_independent(quantizer) for quantizer in state.make_quantizers()])
    return made


def _weight_names(module: TransformerEngineBaseModule) -> list[str]:
    return [n for n, how in module.param_init_meta.items() if how.fp8_meta_index is not None]


def _given_statistics(
    given: QuantizedTensor,
) -> tuple[CopyStatistics | None, CopyStatistics | None]:
    """(rowwise, columnwise) measures of a tensor that comes quantized."""
    return _with_modes(given._quantizer, statistics_of(given, None, given.shape))


def floating_tensors(values: Any) -> list[torch.Tensor]:
    """The floating-point tensors of a module's result, in order."""
    if isinstance(values, torch.Tensor):
        return [values] if values.is_floating_point() else []
    if isinstance(values, Mapping):
        values = list(values.values())
    if isinstance(values, (tuple, list)):
        return [tensor for value in values for tensor in floating_tensors(value)]
    return []


class Recorder:
    """Everything that happens in one run of a model."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.modules = {
            name or type(module).__name__: module
            for name, module in model.named_modules()
            if isinstance(module, TransformerEngineBaseModule) and module.has_linear_layers
        }
        self.calls: list[Call] = []
        self._latest: dict[int, Call] = {}  # id(module) -> its call in progress
        self._aliased: dict[int, dict[str, Any]] = {}  # id(module) -> parameters behind aliases

    # -- around the run --

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Modules record while this is active, and are as before afterwards."""
        handles: list[Any] = []
        saved = [(module, self._put_aside(module)) for module in self.modules.values()]
        try:
            for name, module in self.modules.items():
                if module.num_gemms:
                    handles += self._watch(name, module)
            yield
        finally:
            for handle in handles:
                handle.remove()
            for module, (fields, step) in saved:
                self._unalias(module)
                for key, value in fields.items():
                    if value is _ABSENT:
                        module.__dict__.pop(key, None)
                    else:
                        module.__dict__[key] = value
                module._step = step

    def _put_aside(self, module: TransformerEngineBaseModule) -> tuple[dict[str, Any], Any]:
        fields = {key: module.__dict__.get(key, _ABSENT) for key in _REPLACED}
        step = module._step
        module._step = None
        module.__dict__.pop("_previous_step", None)
        module.__dict__["_quantizer_set"] = None
        module.__dict__["_make_quantizers"] = lambda recipe: self._make_quantizers(module, recipe)
        for option in ("fuse_wgrad_accumulation", "delay_wgrad_compute"):
            if option in module.__dict__:  # gradients are to come through autograd
                module.__dict__[option] = False
        return fields, step

    def _make_quantizers(self, module: TransformerEngineBaseModule, recipe: Recipe) -> None:
        slots = [
            [
                self._recording(module, quantizer, mode, slot)
                for slot, quantizer in enumerate(quantizers)
            ]
            for mode, quantizers in zip(
                SLOTS_PER_GEMM, _quantizers_for(module, recipe), strict=True
            )
        ]
        natives = [[quantizer.native for quantizer in quantizers] for quantizers in slots]
        quantizer_set = steps.QuantizerSet(native_recipe(recipe), *natives)
        module.__dict__["_quantizer_set"] = quantizer_set
        if module._step is not None:
            module._step.set_quantizers(quantizer_set)

    def _recording(
        self, module: TransformerEngineBaseModule, quantizer: Quantizer, mode: str, slot: int
    ) -> Quantizer:
        gemm, position = divmod(slot, SLOTS_PER_GEMM[mode])
        operands = {"forward": ("input", "weight"), "backward": ("grad_output",)}[mode]
        if position >= len(operands):
            return quantizer  # of results: no operand of the module's own products
        operand = operands[position]

        def record(tensor: torch.Tensor, quantized: Any, usages: dict[str, bool]) -> None:
            call = self._latest.get(id(module))
            if call is not None:
                found = statistics_of(quantized, tensor, tensor.shape)
                rowwise, columnwise = _with_modes(quantizer, found)
                used = (
                    rowwise if usages["rowwise"] else None,
                    columnwise if usages["columnwise"] else None,
                )
                call.add(gemm, operand, used)

        return _RecordingQuantizer(quantizer, record)

    # -- during the run --

    def _watch(self, name: str, module: TransformerEngineBaseModule) -> list[Any]:
        def before(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if tex.is_in_backward():
                return None  # recomputation repeats a call that is known
            return self._begin(name, module, args, kwargs)

        def after(_module: Any, _args: Any, _kwargs: Any, output: Any) -> None:
            if not tex.is_in_backward():
                self._end(module, output)

        return [
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after, with_kwargs=True, prepend=True),
        ]

    def _begin(
        self,
        name: str,
        module: TransformerEngineBaseModule,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        number = sum(call.module is module for call in self.calls)
        call = Call(module, name, number, *_detached((args, kwargs)))
        self.calls.append(call)
        self._latest[id(module)] = call
        self._alias_weights(call)
        self._add_given(call, args, kwargs)

        def observed(value: Any, key: str) -> Any:
            if not _can_be_aliased(value):
                return value
            return _alias(value, call.gradients, key)

        # The gradient of an alias is this call's share of the gradient of the tensor.
        new_args = tuple(observed(value, f"argument {i}") for i, value in enumerate(args))
        return new_args, {key: observed(value, f"argument {key}") for key, value in kwargs.items()}

    def _add_given(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Tensors that come quantized: an input, and weights of `quantized_model_init`."""
        module = call.module
        given = args[0] if args else kwargs.get("inp")
        if isinstance(given, QuantizedTensor):
            call.add(0, "input", _given_statistics(given))
        for name in _weight_names(module):
            weight = module._parameters.get(name)
            if isinstance(weight, QuantizedTensor):
                slot = module.param_init_meta[name].fp8_meta_index or 0
                call.add(slot // SLOTS_PER_GEMM["forward"], "weight", _given_statistics(weight))

    def _alias_weights(self, call: Call) -> None:
        module = call.module
        self._unalias(module)
        for name in _weight_names(module):
            weight = module._parameters.get(name)
            if weight is not None and _can_be_aliased(weight):
                self._aliased.setdefault(id(module), {})[name] = weight
                module._parameters[name] = _alias(weight, call.gradients, f"grad {name}")

    def _unalias(self, module: TransformerEngineBaseModule) -> None:
        module._parameters.update(self._aliased.pop(id(module), {}))

    def _end(self, module: TransformerEngineBaseModule, output: Any) -> None:
        self._unalias(module)
        call = self._latest[id(module)]
        for index, tensor in enumerate(floating_tensors(output)):
            call.outputs.append(plain_copy(tensor))
            if tensor.requires_grad:
                tensor.register_hook(self._on_gradient(call, index))

    def _on_gradient(self, call: Call, index: int) -> Callable[[torch.Tensor], None]:
        def observe(gradient: torch.Tensor) -> None:
            # Right before the module's own backward: what is quantized next belongs to this call.
            self._latest[id(call.module)] = call
            call.grad_outputs[index] = plain_copy(gradient)

        return observe


class _Absent:
    """Marks an attribute that was not there."""


_ABSENT = _Absent()
# Attributes of a module that the run replaces.
_REPLACED = (
    *("_quantizer_set", "_previous_step", "_make_quantizers"),
    *("fuse_wgrad_accumulation", "delay_wgrad_compute"),
)


def _can_be_aliased(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and not isinstance(value, QuantizedTensor)
        and value.requires_grad
        and torch.is_grad_enabled()
    )


def _alias(tensor: torch.Tensor, gradients: dict[str, torch.Tensor], key: str) -> torch.Tensor:
    """A view of a tensor whose gradient is noted."""
    alias = tensor.view_as(tensor)

    def note(gradient: torch.Tensor) -> None:
        gradients[key] = plain_copy(gradient)

    alias.register_hook(note)
    return alias


def plain_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A plain copy of the values, which later writes do not reach."""
    tensor = tensor.detach()
    return tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor.clone()


def _detached(value: Any) -> Any:
    """The same nest with plain copies of its tensors."""
    if isinstance(value, torch.Tensor):
        return plain_copy(value)
    if isinstance(value, dict):
        return {key: _detached(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_detached(item) for item in value)
    return value
