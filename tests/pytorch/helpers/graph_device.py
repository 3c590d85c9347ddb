# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Graphs on the CPU: a replay runs the captured Python function again, into the same tensors.

What a GPU does and this shows: captured work runs at replays alone (a capture leaves scales,
histories, main_grad and random streams as they are), reads static inputs and writes static
outputs, and memory that was released may be overwritten by every graph captured later. Released
tensors are therefore filled with NaN by the replay of such a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from transformer_engine.pytorch.graph import (
    restore_fp8_tensors,
    save_fp8_tensors,
    set_capture_end,
    set_capture_start,
)


@dataclass
class ReplayedGraph:
    """A captured function and the tensors that its replays write."""

    device: GraphsOnCpu
    number: int
    work: Callable[[], list[Tensor]]
    results: list[Tensor]
    overwritten: list[Tensor]  # released before the capture
    pool: Any
    generators: list[torch.Generator]
    is_reset: bool = False

    def replay(self) -> None:
        """Run the function, and move its results to where the capture's lie."""
        assert not self.is_reset
        self.device.log.append(self.number)
        with torch.no_grad():
            for tensor in self.overwritten:
                tensor.fill_(float("nan"))
        set_capture_start()  # graphed modules run as they are
        try:
            results = self.work()
        finally:
            set_capture_end()
        with torch.no_grad():
            for static, result in zip(self.results, results, strict=True):
                if static.data_ptr() != result.data_ptr():
                    static.copy_(result)

    def reset(self) -> None:
        """Forget everything."""
        self.is_reset = True
        self.results = []
        del self.work


@dataclass
class GraphsOnCpu:
    """A `GraphDevice` whose graphs are Python functions.

    Attributes
    ----------
    modules : sequence of torch.nn.Module
        Whose state a capture leaves alone.
    log : list
        Numbers of the graphs replayed, and what streams and events were asked to do.
    """

    modules: Sequence[torch.nn.Module]
    type: str = "cpu"
    log: list[Any] = field(default_factory=list)
    graphs: list[ReplayedGraph] = field(default_factory=list)
    released: list[Tensor] = field(default_factory=list)
    is_on_side_stream: bool = False
    is_capturing: bool = False
    pools: int = 0

    def new_pool(self) -> Any:
        self.pools += 1
        return ("pool", self.pools)

    def default_generators(self) -> list[torch.Generator]:
        return [torch.default_generator]

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        self.is_on_side_stream = True
        yield
        self.is_on_side_stream = False

    def capture(
        self, work: Callable[[], list[Tensor]], pool: Any, generators: Sequence[torch.Generator]
    ) -> tuple[ReplayedGraph, list[Tensor]]:
        overwritten = list(self.released)
        with self._nothing_changes():
            self.is_capturing = True
            results = work()
            self.is_capturing = False
        number = len(self.graphs)
        graph = ReplayedGraph(self, number, work, results, overwritten, pool, list(generators))
        self.graphs.append(graph)
        return graph, results

    @contextmanager
    def _nothing_changes(self) -> Iterator[None]:
        states = save_fp8_tensors(self.modules, None)
        random = torch.get_rng_state()
        buffers = [
            value
            for module in self.modules
            for parameter in module.parameters()
            if (value := getattr(parameter, "main_grad", None)) is not None
        ]
        before = [buffer.clone() for buffer in buffers]
        yield
        restore_fp8_tensors(self.modules, states)
        torch.set_rng_state(random)
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)

    def release(self, tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            self.released.append(tensor)
        return tensor

    def replay(self, graph: ReplayedGraph, stream: Any, event: Any) -> None:
        if stream is None:
            graph.replay()
            return
        self.log.append(("wait for current", stream))
        graph.replay()
        self.log.append(("current waits for", stream if event is None else event))
