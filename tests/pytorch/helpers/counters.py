# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a call does on the host, counted: no clock, the same numbers on every machine.

Each function runs a callable once and says what happened meanwhile. Used by tests/pytorch/overhead
and by benchmarks/host_overhead.
"""

from __future__ import annotations

import builtins
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor

Run = Callable[[], object]


def python_calls(run: Run) -> Counter[str]:
    """Python functions entered and C functions called from Python, by qualified name.

    Calls that C code makes to C code are not seen by Python, and cost little. `run` itself counts
    when it is a Python function.
    """
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            name = getattr(code, "co_qualname", code.co_name)  # co_qualname: Python 3.11
            calls[f"{frame.f_globals.get('__name__')}.{name}"] += 1
        elif event == "c_call":
            calls[f"{argument.__module__}.{argument.__qualname__}"] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    del calls["sys.setprofile"]
    return calls


def module_lookups(run: Run) -> Counter[str]:
    """Entries into attribute paths written in Python: of `torch.nn.Module`, or a class of ours."""
    found: Counter[str] = Counter()
    for name, count in python_calls(run).items():
        last = name.rpartition(".")[2]
        if last in ("__getattr__", "__setattr__", "__delattr__"):
            found[last] += count
    return found


def imports(run: Run) -> list[str]:
    """Names given to `__import__`, also for modules that are loaded already."""
    names: list[str] = []
    original = builtins.__import__

    def note(name: str, *arguments: Any, **keywords: Any) -> Any:
        names.append(name)
        return original(name, *arguments, **keywords)

    builtins.__import__ = note
    try:
        run()
    finally:
        builtins.__import__ = original
    return names


GROUP_QUERIES = (
    *("get_world_size", "get_rank", "get_group_rank", "get_global_rank", "is_initialized"),
    *("get_process_group_ranks", "get_backend", "is_available"),
)


def group_queries(run: Run) -> Counter[str]:
    """Calls of the functions of `torch.distributed` that ask about process groups."""
    found: Counter[str] = Counter()
    for name, count in python_calls(run).items():
        last = name.rpartition(".")[2]
        asks_torch = name.startswith("torch.distributed.") and last in GROUP_QUERIES
        asks_group = name.startswith("torch._C.") and last in ("size", "rank")
        if asks_torch or asks_group:
            found[name] += count
    return found


def allocations(run: Run) -> list[int]:
    """Bytes of each tensor storage that is allocated on the CPU, also from C++."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        run()
    results = profile.profiler.kineto_results
    return [
        event.nbytes()
        for event in results.events()
        if event.name() == "[memory]" and event.nbytes() > 0
    ]


def autograd_nodes(outputs: Iterable[Tensor]) -> list[str]:
    """Names of the nodes behind `outputs`; leaves' accumulators, which are kept, do not count."""
    pending = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen = set(pending)
    names = []
    while pending:
        node = pending.pop()
        if node.name() != "torch::autograd::AccumulateGrad":
            names.append(node.name())
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                pending.append(child)
    return names


class HostSynchronisation(AssertionError):
    """A tensor's value was read on the host, which waits for a device."""


# Python-visible ways to a value; aten::_local_scalar_dense below is what native code ends in.
_READS = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")
_OPERATORS = ("aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::nonzero")


@contextmanager
def no_host_synchronisation() -> Iterator[None]:
    """Raise HostSynchronisation where the host reads a tensor's value.

    Methods of `torch.Tensor` and waits for a CUDA device raise where they are called; operators
    that native code calls are found by the profiler and raise at the end.
    """
    originals: list[tuple[Any, str, Any]] = []

    def refuse(owner: Any, name: str) -> None:
        def raising(*arguments: Any, **keywords: Any) -> Any:
            raise HostSynchronisation(f"{owner.__name__}.{name} was called")

        originals.append((owner, name, owner.__dict__.get(name)))
        setattr(owner, name, raising)

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for name in _READS:
            refuse(Tensor, name)
        refuse(torch.cuda, "synchronize")
        try:
            yield
        finally:
            for owner, name, original in originals:
                if original is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, original)
    found = {event.name() for event in profile.profiler.kineto_results.events()}
    found &= set(_OPERATORS)
    if found:
        raise HostSynchronisation(f"native code called {', '.join(sorted(found))}")


def run_backward(output: Tensor, grad: Tensor) -> None:
    """`output.backward(grad)` without the Python around the engine, which is torch's own."""
    engine = torch.autograd.Variable._execution_engine
    engine.run_backward(
        (output,), (grad,), False, False, (), allow_unreachable=True, accumulate_grad=True
    )
