# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What graphs need of a device: capture, replay, streams, and memory without an owner.

`CudaGraphs` is the implementation. Everything else of the package knows this interface alone, so
that tests on the CPU can stand another one in (`use_device`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from ..utils import make_weak_ref


class CapturedGraph(Protocol):
    """Recorded work."""

    def replay(self) -> None:
        """Run it again, in the same memory."""

    def reset(self) -> None:
        """Free it."""


class GraphDevice(Protocol):
    """A device with graphs."""

    type: str  # of its tensors

    def new_pool(self) -> Any:
        """Memory that graphs which run one after the other may share."""

    def default_generators(self) -> list[torch.Generator]:
        """Those that work on this device draws from, the host's included."""

    def side_stream(self) -> AbstractContextManager[None]:
        """Warm-up: on another stream, with nothing else at work before and after."""

    def capture(
        self, work: Callable[[], list[Tensor]], pool: Any, generators: Sequence[torch.Generator]
    ) -> tuple[CapturedGraph, list[Tensor]]:
        """Record `work`; each replay writes the tensors that it returned here."""

    def release(self, tensor: Tensor) -> Tensor:
        """The same memory without an owner: graphs captured from now on may use it."""

    def replay(self, graph: CapturedGraph, stream: Any, event: Any) -> None:
        """Run a graph on `stream` (None: the current one), after what the current one has to do.

        The current stream then waits for `event`, which the graph records, or for its end.
        """


class CudaGraphs:
    """CUDA graphs, through `torch.cuda`."""

    type = "cuda"

    def __init__(self) -> None:
        # Warm-up and capture share a stream: what libraries keep for each stream is there then.
        self._stream = torch.cuda.Stream()

    def new_pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def default_generators(self) -> list[torch.Generator]:
        torch.cuda.init()
        device = torch.cuda.current_device()
        return [torch.cuda.default_generators[device], torch.default_generator]

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.synchronize()

    def capture(
        self, work: Callable[[], list[Tensor]], pool: Any, generators: Sequence[torch.Generator]
    ) -> tuple[CapturedGraph, list[Tensor]]:
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            if generator.device.type == "cuda":
                graph.register_generator_state(generator)
        # Of this thread alone: those of collectives ask their events meanwhile.
        with torch.cuda.graph(
            graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            results = work()
        return graph, results

    def release(self, tensor: Tensor) -> Tensor:
        weak: Tensor = make_weak_ref(tensor)
        return weak

    def replay(self, graph: CapturedGraph, stream: Any, event: Any) -> None:
        current = torch.cuda.current_stream()
        if stream is None or stream == current:
            graph.replay()
            return
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            graph.replay()
        if event is not None:
            current.wait_event(event)
        else:
            current.wait_stream(stream)


_stand_ins: list[GraphDevice] = []


@contextmanager
def use_device(device: GraphDevice) -> Iterator[None]:
    """Capture on another device than CUDA (tests)."""
    _stand_ins.append(device)
    try:
        yield
    finally:
        _stand_ins.remove(device)


def graph_device(owner: str) -> GraphDevice:
    """The device to capture on.

    Raises
    ------
    RuntimeError
        Without CUDA.
    """
    if _stand_ins:
        return _stand_ins[-1]
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"{owner}: torch finds no CUDA device; graphs are CUDA graphs. On the CPU call the "
            "modules as they are: there is no launch to save."
        )
    return CudaGraphs()
