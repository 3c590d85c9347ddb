# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Warm-up and capture of every pass.

Captured work is a Python function per pass that runs the module, or the gradient of what the
forward's function left; it returns the static tensors that replays write. Regions carry
``_graph=True``: modules end no step of delayed scaling, and quantize weights by a flag.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..quantization import FP8GlobalStateManager, autocast
from .arguments import OWNER, Request, shared_inputs
from .device import CapturedGraph, GraphDevice
from .hooks import CaptureHooks
from .schedule import Kind, Pass
from .slot import OUTPUT, Shared, Slot
from .state import (
    kept_parameters,
    kept_random_state,
    quantized_modules,
    restore_fp8_tensors,
    save_fp8_tensors,
    set_capture_end,
    set_capture_start,
    tracked_generators,
)


def capture(request: Request, device: GraphDevice) -> list[Slot]:
    """The captured slots, in the order of the sample arguments.

    Scales, histories, random streams and attributes are afterwards as before.
    """
    quantized = [
        module
        for module, flag in zip(request.modules, request.quantization.enabled, strict=True)
        if flag
    ]
    recipe = request.quantization.recipe if quantized else None
    save_fp8_tensors(quantized, recipe)  # for the states of a checkpoint, which wait for their use
    saved = save_fp8_tensors(request.modules, None)
    set_capture_start()
    try:
        with (
            kept_random_state(device),
            kept_parameters(request.modules),
            _skip_flag(request) as flag,
        ):
            capturer = _Capturer(request, device, flag)
            capturer.warm_up()
            capturer.capture_all()
            return capturer.slots
    finally:
        restore_fp8_tensors(request.modules, saved)
        set_capture_end()


@contextlib.contextmanager
def _skip_flag(request: Request) -> Iterator[Tensor | None]:
    """The flag by which captured weights are skipped, while capturing not set; None without one."""
    state = FP8GlobalStateManager.quantization_state
    before = state.skip_fp8_weight_update_tensor
    if not request.quantization.caches:
        state.skip_fp8_weight_update_tensor = None
        try:
            yield None
        finally:
            state.skip_fp8_weight_update_tensor = before
        return
    tensor = next(iter(request.inputs[0].tensors), None)
    where = torch.device("cuda") if tensor is None else tensor.device
    if before is None or before.device != where:
        state.skip_fp8_weight_update_tensor = torch.zeros(1, device=where)
    FP8GlobalStateManager.set_skip_fp8_weight_update_tensor(False)
    yield state.skip_fp8_weight_update_tensor


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


class _Capturer:
    """The slots of one request on their way to graphs."""

    def __init__(self, request: Request, device: GraphDevice, flag: Tensor | None) -> None:
        self._request, self._device = request, device
        options = request.options
        self._shared = Shared(device, flag, options.clone_param_grads)
        self._pool = options.pool if options.pool is not None else device.new_pool()
        self._hooks = [
            CaptureHooks(module, hooks)
            for module, hooks in zip(request.modules, options.hooks, strict=True)
        ]
        inputs = request.inputs
        if options.reuse_buffers:
            inputs = shared_inputs(inputs, request.schedule)
        self.slots = [self._make_slot(i, inputs[i]) for i in range(len(inputs))]
        self._free_grad_outputs: dict[Any, list[Tensor]] = {}

    def _make_slot(self, index: int, signature: Any) -> Slot:
        module = self._request.modules[self._request.schedule.modules[index]]
        return Slot(
            module=module,
            shared=self._shared,
            signature=signature,
            parameters=tuple(p for p in module.parameters() if p.requires_grad),
            has_backward=module.training and torch.is_grad_enabled(),
            inputs=[_leaf(tensor) for tensor in signature.tensors],
            delayed_modules=[m for m in quantized_modules([module]) if m.need_backward_dw()],
        )

    # ---- the work of a pass ------------------------------------------------------------------

    def _region(self, index: int) -> autocast:
        quantization = self._request.quantization
        return autocast(
            enabled=quantization.enabled[self._request.schedule.modules[index]],
            calibrating=quantization.calibrating,
            recipe=quantization.recipe,
            amax_reduction_group=quantization.group,
            _graph=True,
        )

    def _forward(self, index: int) -> list[Tensor]:
        """Run the module; the static outputs."""
        slot = self.slots[index]
        args, keywords = bound_arguments(slot)
        with torch.set_grad_enabled(slot.has_backward), self._region(index):
            output = slot.module(*args, **keywords)
        slot.live_outputs, slot.output_spec = pytree.tree_flatten(output)
        return [leaf.detach() for leaf in slot.live_outputs if isinstance(leaf, Tensor)]

    def _backward(self, index: int) -> list[Tensor]:
        """The gradients of the slot's inputs and parameters; those that there are."""
        slot = self.slots[index]
        wanted = [t for t in (*slot.inputs, *slot.parameters) if t.requires_grad]
        outputs = [t for t in slot.live_outputs if isinstance(t, Tensor) and t.requires_grad]
        found: list[Tensor | None] = [None] * len(wanted)
        if outputs and wanted:
            found = list(
                torch.autograd.grad(
                    outputs,
                    wanted,
                    [grad for grad in slot.grad_outputs if grad is not None],
                    retain_graph=self._request.options.retain_graph_in_backward,
                    allow_unused=True,
                )
            )
        gradients = iter(found)
        slot.live_gradients = [
            next(gradients) if t.requires_grad else None for t in (*slot.inputs, *slot.parameters)
        ]
        return [gradient for gradient in found if gradient is not None]

    def _delayed_wgrads(self, index: int) -> list[Tensor]:
        slot = self.slots[index]
        pairs = [
            pair
            for module in slot.delayed_modules
            for pair in module._run_delayed_wgrads()
            if pair[1] is not None
        ]
        slot.live_wgrads = pairs
        return [gradient for _, gradient in pairs]

    # ---- warm-up -----------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Run each slot as often as asked for, with gradients of zero."""
        options = self._request.options
        with self._device.side_stream():
            if options.pre_warmup_hook is not None:
                options.pre_warmup_hook()
            for index, slot in enumerate(self.slots):
                for _ in range(options.num_warmup_iters):
                    self._with_forward_hooks(index, lambda index=index: self._forward(index))
                    if slot.has_backward:
                        self._make_grad_outputs(slot)
                        self._with_backward_hooks(index, lambda index=index: self._backward(index))
                        self._delayed_wgrads(index)
                slot.drop_live()
            if options.post_warmup_hook is not None:
                options.post_warmup_hook()

    def _with_forward_hooks(self, index: int, run: Callable[[], Any]) -> Any:
        slot = self.slots[index]
        hooks = self._hooks[self._request.schedule.modules[index]]
        if not hooks:
            return run()
        args, keywords = bound_arguments(slot)
        hooks.before_forward(args, keywords)
        result = run()
        hooks.after_forward(args, keywords, output_of(slot, slot.live_outputs))
        return result

    def _with_backward_hooks(self, index: int, run: Callable[[], Any]) -> Any:
        slot = self.slots[index]
        hooks = self._hooks[self._request.schedule.modules[index]]
        if not hooks:
            return run()
        grad_outputs = tuple(slot.grad_outputs)
        hooks.before_backward(grad_outputs)
        result = run()
        hooks.after_backward(tuple(slot.live_gradients[: len(slot.inputs)]), grad_outputs)
        return result

    # ---- capture -----------------------------------------------------------------------------

    def capture_all(self) -> None:
        """Record every pass of the schedule."""
        run = {
            Kind.FORWARD: self._capture_forward,
            Kind.BACKWARD: self._capture_backward,
            Kind.WGRAD: self._capture_wgrad,
        }
        for item in self._request.schedule.passes:
            if item.kind is Kind.FORWARD or self.slots[item.slot].has_backward:
                run[item.kind](item.slot)
            if self._request.options.reuse_buffers:
                self._release(item)
        for slot in self.slots:
            slot.drop_live()
            self._note_states(slot)
        for module in quantized_modules(self._request.modules):
            step = module._latest_step()
            if step is not None:
                self._shared.kept += [module._quantizer_set, *step.take_captured_weights()]

    def _capture(self, work: Callable[[], list[Tensor]]) -> tuple[CapturedGraph, list[Tensor]]:
        return self._device.capture(work, self._pool, tracked_generators())

    def _capture_forward(self, index: int) -> None:
        slot = self.slots[index]
        slot.forward_graph, slot.outputs = self._with_forward_hooks(
            index, lambda: self._capture(lambda: self._forward(index))
        )
        leaves = slot.live_outputs
        slot.output_leaves = [OUTPUT if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        slot.has_backward &= any(isinstance(t, Tensor) and t.requires_grad for t in leaves)

    def _capture_backward(self, index: int) -> None:
        slot = self.slots[index]
        self._make_grad_outputs(slot)
        slot.backward_graph, gradients = self._with_backward_hooks(
            index, lambda: self._capture(lambda: self._backward(index))
        )
        # The graph writes these; a parameter whose gradient goes elsewhere is no part of it.
        rest = iter(gradients)
        slot.grad_inputs = [None if g is None else next(rest) for g in slot.live_gradients]
        self._check_gradients(slot)

    def _capture_wgrad(self, index: int) -> None:
        slot = self.slots[index]
        if not slot.delayed_modules:
            return
        slot.wgrad_graph, gradients = self._capture(lambda: self._delayed_wgrads(index))
        slot.wgrads = [
            (parameter, gradient)
            for (parameter, _), gradient in zip(slot.live_wgrads, gradients, strict=True)
        ]

    def _make_grad_outputs(self, slot: Slot) -> None:
        """Buffers for the gradients of outputs, of zeros: a warm-up adds nothing to main_grad."""
        slot.grad_outputs = [
            self._grad_output(leaf) if leaf.requires_grad else None
            for leaf in slot.live_outputs
            if isinstance(leaf, Tensor)
        ]

    def _grad_output(self, output: Tensor) -> Tensor:
        free = self._free_grad_outputs.get(_likeness(output))
        if free:
            return free.pop().zero_()
        return torch.zeros_like(output, memory_format=torch.contiguous_format).detach()

    def _check_gradients(self, slot: Slot) -> None:
        """Note placeholders; RuntimeError for a tensor that the outputs do not depend on."""
        delayed = {id(p) for m in slot.delayed_modules for p in m.parameters()}
        for i, parameter in enumerate(slot.parameters):
            gradient = slot.grad_inputs[len(slot.inputs) + i]
            is_fused = getattr(parameter, "main_grad", None) is not None
            if is_fused and gradient is not None and _is_placeholder(parameter):
                slot.placeholders.add(i)
            if is_fused:
                delayed.add(id(parameter))
        if self._request.options.allow_unused_input:
            return
        tensors = zip((*slot.inputs, *slot.parameters), slot.grad_inputs, strict=True)
        names = {id(p): name for name, p in slot.module.named_parameters()}
        for i, (tensor, gradient) in enumerate(tensors):
            if tensor.requires_grad and gradient is None and id(tensor) not in delayed:
                name = names.get(id(tensor), f"input {i}")
                raise RuntimeError(
                    f"{OWNER}: {name} of {type(slot.module).__name__} requires a gradient and no "
                    "output depends on it. Pass allow_unused_input=True, or freeze it."
                )

    def _note_states(self, slot: Slot) -> None:
        """The delayed-scaling states that replays of the slot use."""
        for module in quantized_modules([slot.module]):
            quantizers = module._quantizer_set
            if quantizers is not None and module.fp8:
                slot.forward_states += _present(quantizers.forward_state)
                slot.backward_states += _present(quantizers.backward_state)

    # ---- reuse of memory ---------------------------------------------------------------------

    def _release(self, item: Pass) -> None:
        """Give memory that nobody reads any more to the graphs captured after this one.

        In replays everything runs in the order of the capture. After a slot's last pass nobody
        reads its outputs (the next layer copied them, and its backward is done) nor the gradients
        of its outputs. Gradients of inputs are copied by the backward of the layer before; those
        of a chunk's first layer go to another chunk or rank, at a time we do not know, and stay.
        """
        slot = self.slots[item.slot]
        if not slot.has_backward:
            return
        if item.kind is Kind.BACKWARD:
            following = self._request.schedule.following.get(item.slot)
            if following is not None:
                self._release_gradients(self.slots[following], of_inputs=True)
        elif item.kind is Kind.WGRAD:
            slot.drop_live()
            own = {p.data_ptr() for p in (*slot.parameters, *slot.inputs)}
            slot.outputs = [
                t if t.data_ptr() in own else self._device.release(t) for t in slot.outputs
            ]
            for grad in slot.grad_outputs:
                if grad is not None:
                    self._free_grad_outputs.setdefault(_likeness(grad), []).append(grad)
            if self._shared.clone_param_grads:
                self._release_gradients(slot, of_inputs=False)

    def _release_gradients(self, slot: Slot, *, of_inputs: bool) -> None:
        count = len(slot.inputs)
        for i, gradient in enumerate(slot.grad_inputs):
            is_placeholder = i - count in slot.placeholders
            is_own = gradient is not None and not is_placeholder and not self._is_buffer(gradient)
            if is_own and (i < count) == of_inputs:
                slot.grad_inputs[i] = self._device.release(gradient)

    def _is_buffer(self, gradient: Tensor) -> bool:
        """Whether it is a buffer for gradients of outputs, passed through."""
        buffers = {t.data_ptr() for slot in self.slots for t in slot.grad_outputs if t is not None}
        return gradient.data_ptr() in buffers


def _likeness(tensor: Tensor) -> Any:
    return tensor.shape, tensor.dtype, tensor.device


def _is_placeholder(parameter: Tensor) -> bool:
    """Whether backward gives autograd a placeholder for the parameter: trainers ask for it so."""
    return hasattr(parameter, "grad_added_to_main_grad")


def _present(state: Any) -> list[Any]:
    return [] if state is None else [state]


def bound_arguments(slot: Slot) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call's arguments, made of the static inputs."""
    signature = slot.signature
    count = signature.spec.num_leaves
    args = pytree.tree_unflatten(slot.inputs[:count], signature.spec)
    keywords = {}
    for name, spec in zip(signature.keywords, signature.keyword_specs, strict=True):
        leaves = slot.inputs[count : count + spec.num_leaves]
        keywords[name] = pytree.tree_unflatten(leaves, spec)
        count += spec.num_leaves
    return args, keywords


def output_of(slot: Slot, leaves: list[Any]) -> Any:
    """The module's result, made of the leaves."""
    assert slot.output_spec is not None
    return pytree.tree_unflatten(leaves, slot.output_spec)
