# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Activation recompute: torch.utils.checkpoint, plus the random streams of all trackers.

Nothing here keeps FP8 state. Native modules notice by themselves that they run for the second time
and reuse what they recorded, so that torch.utils.checkpoint works without this file too. What it
adds: named random streams, the quantization region for code that asks for it, keyword arguments in
both modes, sharded saved inputs, and the two flags that other libraries ask for.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.checkpoint
from torch.distributed import ProcessGroup

from ..arguments import check_callables, check_flag, check_group, received
from ..cpp_extensions.state import autocast_state, set_autocast_state, set_recompute_phase
from .groups import get_distributed_world_size, is_distributed_ready
from .rng import SavedStreams
from .tensor_parallel import gather_split_1d_tensor, split_tensor_into_1d_equal_chunks

_is_recompute_enabled = False
_is_in_recompute_phase = False


@contextlib.contextmanager
def activation_recompute_forward(
    activation_recompute: bool = False, recompute_phase: bool = False
) -> Iterator[None]:
    """Mark a region as checkpointed, and as the first or the second run of it.

    Parameters
    ----------
    activation_recompute : bool, default False
        The region will be, or is being, run twice.
    recompute_phase : bool, default False
        This is the second run.
    """
    outside = (_is_recompute_enabled, _is_in_recompute_phase)
    _set_phase(activation_recompute, recompute_phase)
    try:
        yield
    finally:
        _set_phase(*outside)


def _set_phase(is_enabled: bool, is_second_run: bool) -> None:
    global _is_recompute_enabled, _is_in_recompute_phase
    _is_recompute_enabled, _is_in_recompute_phase = is_enabled, is_second_run
    set_recompute_phase(0 if not is_enabled else 2 if is_second_run else 1)


def is_fp8_activation_recompute_enabled() -> bool:
    """Whether the code runs inside a checkpointed region (either run of it)."""
    return _is_recompute_enabled


def in_fp8_activation_recompute_phase() -> bool:
    """Whether the code runs inside the second run of a checkpointed region."""
    return _is_in_recompute_phase


@contextlib.contextmanager
def _region_in_force(region: Any) -> Iterator[None]:
    """Put a quantization region of the past in force; leaving it updates nothing."""
    present = autocast_state()
    set_autocast_state(region)
    try:
        yield
    finally:
        set_autocast_state(present)


class _RunTwice:
    """A function that replays, in every run but the first, the random streams of the first."""

    def __init__(self, function: Callable[..., Any], keywords: tuple[str, ...], tracker: Any):
        self._function = function
        self._keywords = keywords
        self._tracker = tracker
        self._streams: SavedStreams | None = None
        self._region: Any = None

    def __call__(self, *args: Any) -> Any:
        """args: the positional arguments, then the values of the keywords."""
        count = len(args) - len(self._keywords)
        kwargs = dict(zip(self._keywords, args[count:], strict=True))
        if self._streams is None:
            self._streams = SavedStreams(self._tracker)
            self._region = autocast_state()
            self._region.first_module = False  # which owns the update after a backward pass
            with activation_recompute_forward(activation_recompute=True):
                return self._function(*args[:count], **kwargs)
        with (
            self._streams.replay(),
            _region_in_force(self._region),
            activation_recompute_forward(activation_recompute=True, recompute_phase=True),
        ):
            return self._function(*args[:count], **kwargs)


@dataclass(frozen=True, slots=True)
class _Options:
    distribute_saved_activations: bool
    get_rng_state_tracker: Callable[[], Any] | None
    tp_group: ProcessGroup | None
    use_reentrant: bool


def _is_old_positional_order(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """(bool, callable or None, group or None, ...), as before these were keywords."""
    return (
        len(args) >= 3
        and isinstance(args[0], bool)
        and (args[1] is None or (callable(args[1]) and not isinstance(args[1], torch.Tensor)))
        and (args[2] is None or isinstance(args[2], ProcessGroup))
        and not {"distribute_saved_activations", "get_rng_state_tracker", "tp_group"} & set(kwargs)
    )


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function; save only its inputs, and call it again in the backward pass.

    Parameters
    ----------
    function : callable
        Module, bound method, function or lambda.
    *args
        Its positional arguments, tensors or not.
    distribute_saved_activations : bool, default False
        Keep only this rank's part of the first argument (split evenly over `tp_group`) and gather
        it before the second run. Only with `use_reentrant=True`; ignored with a warning otherwise.
    get_rng_state_tracker : callable, optional
        Gives a tracker of another library whose streams are to be replayed. Those of every
        `CudaRNGStatesTracker` are replayed in any case.
    tp_group : ProcessGroup, optional
        For `distribute_saved_activations`; default all processes.
    use_reentrant : bool, default True
        True: one autograd node around the function; no gradient flows, not even to parameters,
        if no tensor argument needs one. False: torch's mode on saved-tensor hooks; the function
        runs to its end when recomputed.
    context_fn, determinism_check, debug
        As torch.utils.checkpoint.checkpoint, for `use_reentrant=False`.
    **kwargs
        Further keyword arguments reach the function.

    Returns
    -------
    Any
        What the function returns.

    Raises
    ------
    RuntimeError
        For `distribute_saved_activations` without torch.distributed, or (from torch, in the
        backward pass) if no output of a reentrant checkpoint needs a gradient.
    ValueError
        If the first argument cannot be distributed evenly.
    TypeError
        For a function that cannot be called, or an option of another kind.
    """
    if _is_old_positional_order(args, kwargs):
        warnings.warn(
            "checkpoint: distribute_saved_activations, get_rng_state_tracker and tp_group are "
            "given by position; pass them as keywords.",
            DeprecationWarning,
            stacklevel=2,
        )
        names = ("distribute_saved_activations", "get_rng_state_tracker", "tp_group")
        kwargs.update(zip(names, args[:3], strict=True))
        args = args[3:]
    options = _Options(
        distribute_saved_activations=kwargs.pop("distribute_saved_activations", False),
        get_rng_state_tracker=kwargs.pop("get_rng_state_tracker", None),
        tp_group=kwargs.pop("tp_group", None),
        use_reentrant=kwargs.pop("use_reentrant", True),
    )
    _check_options(function, options)
    torch_options: dict[str, Any] = {
        name: kwargs.pop(name)
        for name in ("context_fn", "determinism_check", "debug")
        if name in kwargs
    }
    if options.distribute_saved_activations:
        _check_distribution(options, args)
    if not torch.is_grad_enabled():
        with activation_recompute_forward(activation_recompute=True):
            return function(*args, **kwargs)
    tracker = options.get_rng_state_tracker and options.get_rng_state_tracker()
    # Keyword tensors go by position: torch's reentrant mode tracks only those.
    run = _RunTwice(function, tuple(kwargs), tracker)
    args = (*args, *kwargs.values())
    if options.use_reentrant:
        return _reentrant(run, args, options, torch_options)
    # Without early stop: a module's work after its last saved tensor counts too.
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        return torch.utils.checkpoint.checkpoint(run, *args, use_reentrant=False, **torch_options)


def _reentrant(
    run: _RunTwice, args: tuple[Any, ...], options: _Options, torch_options: dict[str, Any]
) -> Any:
    if not any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args):
        # What torch would do, without its warning.
        with torch.no_grad():
            return run(*args)
    with contextlib.ExitStack() as stack:
        if (
            options.distribute_saved_activations
            and get_distributed_world_size(options.tp_group) > 1
        ):
            stack.enter_context(_ShardSaved(args[0], options.tp_group).hooks())
        call = functools.partial(_detached_first_run, run)
        return torch.utils.checkpoint.checkpoint(call, *args, use_reentrant=True, **torch_options)


def _detached_first_run(run: _RunTwice, *args: Any) -> Any:
    """Call `run`; what the first run returns of tensors that exist already are aliases.

    Torch makes all that is returned results of the checkpoint. A parameter among them, which a
    layer with `return_bias` returns, would itself become one, and its backward would lead back to
    the checkpoint without end.
    """
    result = run(*args)
    if torch.is_grad_enabled():  # the second run, whose results are not handed out
        return result

    def alias(value: Any) -> Any:
        has_history = isinstance(value, torch.Tensor) and value.requires_grad
        is_argument = any(value is argument for argument in args)  # which torch looks after
        return value.detach() if has_history and not is_argument else value

    return tuple(map(alias, result)) if isinstance(result, tuple) else alias(result)


def _check_options(function: Any, options: _Options) -> None:
    who = "checkpoint"
    if not callable(function):
        raise TypeError(
            f"{who}: function is {received(function)}; it must be callable. Pass the module or "
            "function itself, then its arguments."
        )
    check_flag(who, "distribute_saved_activations", options.distribute_saved_activations)
    check_flag(who, "use_reentrant", options.use_reentrant)
    check_callables(who, get_rng_state_tracker=options.get_rng_state_tracker)
    check_group(who, "tp_group", options.tp_group)


def _check_distribution(options: _Options, args: tuple[Any, ...]) -> None:
    if not options.use_reentrant:
        warnings.warn(
            "checkpoint: distribute_saved_activations has no effect with use_reentrant=False.",
            UserWarning,
            stacklevel=3,
        )
        return
    if not is_distributed_ready():
        raise RuntimeError(
            "checkpoint: distribute_saved_activations is True, but torch.distributed is not "
            "initialised; activations are split over a process group. Call init_process_group."
        )
    size = get_distributed_world_size(options.tp_group)
    if not args or not isinstance(args[0], torch.Tensor) or args[0].numel() % size:
        found = "missing"
        if args:
            is_tensor = isinstance(args[0], torch.Tensor)
            found = f"of {args[0].numel()} elements" if is_tensor else type(args[0]).__name__
        raise ValueError(
            f"checkpoint: the first argument is {found}; with distribute_saved_activations "
            f"a tensor whose number of elements is a multiple of {size} is required."
        )


class _ShardSaved:
    """Saved-tensor hooks that keep only this rank's flat part of one tensor."""

    def __init__(self, tensor: torch.Tensor, group: ProcessGroup | None):
        self._address = tensor.data_ptr()
        self._shape = tensor.shape
        self._group = group

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: torch.Tensor) -> tuple[bool, torch.Tensor]:
        is_it = tensor.data_ptr() == self._address and tensor.shape == self._shape
        if not is_it:
            return (False, tensor)
        return (True, split_tensor_into_1d_equal_chunks(tensor, self._group, new_buffer=True))

    def _unpack(self, packed: tuple[bool, torch.Tensor]) -> torch.Tensor:
        is_shard, tensor = packed
        if not is_shard:
            return tensor
        return gather_split_1d_tensor(tensor, self._group).view(self._shape)
