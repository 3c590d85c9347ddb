# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Named random number streams, for dropout and initialization that differ between ranks."""

from __future__ import annotations

import contextlib
import functools
import operator
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from ..arguments import received
from ..cpp_extensions.report import backend_statuses

_MODEL_PARALLEL_RNG_TRACKER_NAME = "model-parallel-rng"
RNGState = torch.Generator | torch.Tensor

# Trackers made in this process, so that recompute and graph capture find every stream.
_trackers: weakref.WeakSet[CudaRNGStatesTracker] = weakref.WeakSet()
# Streams installed by set_all_rng_states that no tracker holds.
_loose_states: dict[str, RNGState] = {}


@functools.cache
def _is_cuda_build() -> bool:
    return any(row["name"] == "cuda" and row["available"] for row in backend_statuses())


def _default_generator() -> torch.Generator:
    """The generator that layers of this build draw from: the current GPU's, or the CPU's."""
    if _is_cuda_build() and torch.cuda.is_available():
        torch.cuda.init()
        return torch.cuda.default_generators[torch.cuda.current_device()]
    return torch.default_generator


def graph_safe_rng_available() -> bool:
    """Whether streams can be registered with CUDA graphs: on a GPU, for which torch has graphs."""
    return _default_generator().device.type == "cuda"


def is_graph_safe_rng_state(state: Any) -> bool:
    """Whether a stream is a generator object rather than a tensor of its state."""
    return isinstance(state, torch.Generator)


def _enter_stream(default: torch.Generator, stream: RNGState) -> None:
    if isinstance(stream, torch.Tensor):
        default.set_state(stream)
    elif default.device.type == "cuda":
        default.graphsafe_set_state(stream)
    else:  # a CPU generator has no shareable state object
        default.set_state(stream.get_state())


def _leave_stream(default: torch.Generator, stream: RNGState) -> RNGState:
    """The stream as the default generator left it, as the kind of object it was."""
    if isinstance(stream, torch.Tensor):
        return default.get_state()
    if default.device.type == "cuda":
        return default.graphsafe_get_state()
    stream.set_state(default.get_state())
    return stream


class CudaRNGStatesTracker:
    """Named random number streams that can take the default generator's place for a while.

    The streams belong to the device this build computes on: the current GPU, or the CPU.

    Attributes
    ----------
    states_ : dict of str to torch.Generator
        The streams; torch.Tensor for streams set from saved tensors.
    seeds_ : set of int
        Seeds used so far.
    """

    states_: dict[str, RNGState]
    seeds_: set[int]

    def __init__(self) -> None:
        self.states_ = {}
        self.seeds_ = set()
        _trackers.add(self)

    def reset(self) -> None:
        """Forget all streams and seeds."""
        self.states_ = {}
        self.seeds_ = set()

    def get_states(self) -> dict[str, RNGState]:
        """Copies of all streams as they are now, for `set_states`.

        `get_all_rng_states` gives the live generators, which draws change.
        """
        return {name: _copy(state) for name, state in self.states_.items()}

    def set_states(self, states: dict[str, RNGState]) -> None:
        """Replace all streams by copies of the given ones, which can thus be set again later.

        Raises
        ------
        TypeError
            If `states` is no dict of str to torch.Generator or torch.Tensor.
        """
        who = f"{type(self).__name__}.set_states"
        rule = "a dict of str to torch.Generator or torch.Tensor is required. Pass what get_states"
        if not isinstance(states, dict):
            raise TypeError(f"{who}: states is {received(states)}; {rule}() gave.")
        for name, state in states.items():
            if not isinstance(name, str):
                raise TypeError(f"{who}: states has the key {received(name)}; {rule}() gave.")
            if not isinstance(state, (torch.Generator, torch.Tensor)):
                raise TypeError(f"{who}: states[{name!r}] is {received(state)}; {rule}() gave.")
        self.states_ = {name: _copy(state) for name, state in states.items()}

    def add(self, name: str, seed: int) -> None:
        """Make a stream from a seed. The default generator is not disturbed.

        Raises
        ------
        RuntimeError
            If the name or the seed was used before: two streams of one seed would be equal.
        TypeError, ValueError
            If the name is no str, or the seed no int in -2**63 .. 2**64 - 1.
        """
        name, seed = _checked_stream(f"{type(self).__name__}.add", name, seed)
        if seed in self.seeds_:
            raise RuntimeError(
                f"{type(self).__name__}.add: seed {seed} was used before; every stream needs its "
                "own. Choose another, or call reset()."
            )
        if name in self.states_:
            raise RuntimeError(
                f"{type(self).__name__}.add: name {name!r} is taken; streams need different names. "
                "Choose another, or call reset()."
            )
        default = _default_generator()
        stream = default.clone_state() if default.device.type == "cuda" else torch.Generator()
        stream.manual_seed(seed)
        self.seeds_.add(seed)
        self.states_[name] = stream

    @contextlib.contextmanager
    def fork(self, name: str = _MODEL_PARALLEL_RNG_TRACKER_NAME) -> Iterator[None]:
        """Within the context, draw from a stream; afterwards, from where the default stood.

        Raises
        ------
        KeyError
            If there is no stream of that name.
        """
        if name not in self.states_:
            raise KeyError(
                f"{type(self).__name__}.fork: name is {name!r}; the streams are "
                f"{sorted(self.states_)}. Add it first with add(name, seed)."
            )
        default = _default_generator()
        is_cuda = default.device.type == "cuda"
        outside = default.graphsafe_get_state() if is_cuda else default.get_state()
        stream = self.states_[name]
        _enter_stream(default, stream)
        try:
            yield
        finally:
            self.states_[name] = _leave_stream(default, stream)
            _enter_stream(default, outside)


def _checked_stream(who: str, name: Any, seed: Any) -> tuple[str, int]:
    """Name and seed of a new stream."""
    if not isinstance(name, str):
        raise TypeError(f"{who}: name is {received(name)}; a str is required. Pass str(name).")
    rule = "an int in -2**63 .. 2**64 - 1 is required. Pass an int in that range."
    try:
        number = operator.index(seed)
    except TypeError:
        raise TypeError(f"{who}: seed is {received(seed)}; {rule}") from None
    if not -(2**63) <= number < 2**64:
        raise ValueError(f"{who}: seed is {number}; {rule}")
    return name, number


def get_all_rng_states() -> dict[str, RNGState]:
    """Streams of all living trackers, by name; those of `set_all_rng_states` too."""
    states = dict(_loose_states)
    for tracker in _trackers:
        states.update(tracker.states_)
    return states


def set_all_rng_states(states: dict[str, RNGState]) -> None:
    """Install streams by name: in each tracker that has the name, else for later readers only."""
    _loose_states.clear()
    for name, state in states.items():
        holders = [tracker for tracker in _trackers if name in tracker.states_]
        for tracker in holders:
            tracker.states_[name] = state
        if not holders:
            _loose_states[name] = state


class SavedStreams:
    """The streams of all trackers at one moment, to be replayed later.

    Parameters
    ----------
    extra : object, optional
        A tracker of another library (``get_states()``, ``set_states(dict)``).
    """

    def __init__(self, extra: Any = None) -> None:
        trackers: list[Any] = list(_trackers)
        if extra is not None and extra not in trackers:
            trackers.append(extra)
        self._saved = [
            (tracker, {name: _copy(state) for name, state in _live_states(tracker).items()})
            for tracker in trackers
        ]

    @contextlib.contextmanager
    def replay(self) -> Iterator[None]:
        """Within the context the streams are as they were saved; the live ones stand still."""
        live = [(tracker, _live_states(tracker)) for tracker, _ in self._saved]
        for tracker, states in self._saved:
            _install(tracker, {name: _copy(state) for name, state in states.items()})
        try:
            yield
        finally:
            for tracker, states in live:
                _install(tracker, states)


# A captured graph may hold the streams of our trackers: these come back, not copies of them.
def _live_states(tracker: Any) -> dict[str, RNGState]:
    is_ours = isinstance(tracker, CudaRNGStatesTracker)
    return tracker.states_ if is_ours else tracker.get_states()


def _install(tracker: Any, states: dict[str, RNGState]) -> None:
    if isinstance(tracker, CudaRNGStatesTracker):
        tracker.states_ = states
    else:
        tracker.set_states(states)


def _copy(state: RNGState) -> RNGState:
    return state.clone_state() if isinstance(state, torch.Generator) else state.clone()
