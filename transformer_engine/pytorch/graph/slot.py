# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The graphs of one module for one micro-batch, with the memory they read and write."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .arguments import SlotInputs
from .device import CapturedGraph, GraphDevice

OUTPUT = object()  # in Slot.output_leaves: the place of the next tensor


@dataclass(slots=True)
class Shared:
    """What the slots of one call of make_graphed_callables share.

    Attributes
    ----------
    skip_flag : torch.Tensor or None
        float32 [1] on the device: not 0 leaves quantized weights as they are. None: they are
        quantized in every replay.
    kept : list
        What graphs use without owning it: quantized weights, scales and histories.
    """

    device: GraphDevice
    skip_flag: Tensor | None
    clone_param_grads: bool
    kept: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Slot:
    """One module for one micro-batch.

    Attributes
    ----------
    inputs : list of torch.Tensor
        Static; aliases of the sample arguments' memory, leaves.
    live_outputs, live_gradients, live_wgrads : list
        What the captured functions left when they ran last: outputs as autograd knows them,
        gradients of `inputs` and `parameters` (None: there is none), and (parameter, gradient).
    output_leaves : list
        The module's result without its structure: OUTPUT for each tensor, other values as they are.
    outputs : list of torch.Tensor
        Static; the tensors among them.
    grad_outputs : list
        Static; for the outputs that require a gradient, else None.
    grad_inputs : list
        Static; for each of `inputs` and `parameters`, or None.
    placeholders : set of int
        Which of `parameters` get a placeholder, their gradients being in main_grad.
    wgrads : list
        (parameter, static gradient) that the graph of delayed weight gradients writes.
    generation : int
        Counts forward replays: a backward belongs to the latest.
    """

    module: torch.nn.Module
    shared: Shared | None  # None: it was reset
    signature: SlotInputs
    parameters: tuple[torch.nn.Parameter, ...]
    has_backward: bool
    inputs: list[Tensor]
    live_outputs: list[Any] = field(default_factory=list)
    live_gradients: list[Tensor | None] = field(default_factory=list)
    live_wgrads: list[tuple[torch.nn.Parameter, Tensor]] = field(default_factory=list)
    output_leaves: list[Any] = field(default_factory=list)
    output_spec: pytree.TreeSpec | None = None
    outputs: list[Tensor] = field(default_factory=list)
    grad_outputs: list[Tensor | None] = field(default_factory=list)
    grad_inputs: list[Tensor | None] = field(default_factory=list)
    placeholders: set[int] = field(default_factory=set)
    wgrads: list[tuple[torch.nn.Parameter, Tensor]] = field(default_factory=list)
    forward_graph: CapturedGraph | None = None
    backward_graph: CapturedGraph | None = None
    wgrad_graph: CapturedGraph | None = None
    forward_states: list[Any] = field(default_factory=list)  # of delayed scaling, native
    backward_states: list[Any] = field(default_factory=list)
    delayed_modules: list[Any] = field(default_factory=list)  # with delay_wgrad_compute
    generation: int = 0

    def reset(self) -> None:
        """Free graphs and memory."""
        for graph in (self.forward_graph, self.backward_graph, self.wgrad_graph):
            if graph is not None:
                graph.reset()
        self.forward_graph = self.backward_graph = self.wgrad_graph = None
        self.shared = None
        for items in (
            *(self.inputs, self.outputs, self.grad_outputs, self.grad_inputs, self.wgrads),
            *(self.forward_states, self.backward_states),
        ):
            items.clear()
        self.drop_live()

    def drop_live(self) -> None:
        """Let go of what the captured functions left."""
        for items in (self.live_outputs, self.live_gradients, self.live_wgrads):
            items.clear()
