# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run Megatron-core's CUDA-only host code on the CPU.

Megatron-core is written for GPUs: it asks ``torch.cuda`` for the current
device, builds tensors with ``device="cuda"``, keeps "cuda" RNG states, checks
tensors by their legacy type string and picks the ``nccl`` backend.  None of
that needs a GPU to *mean* something: this module maps each such question to
the CPU answer, so that the same Megatron code (and the Transformer Engine
layers beneath it) runs on CPU tensors over gloo.

Call :func:`install` BEFORE the first ``import megatron`` (Megatron binds some
names, ``torch.cuda._lazy_call`` for one, at import time)::

    import cuda_to_cpu_shim
    cuda_to_cpu_shim.install()
    import megatron.core

The shim only ever touches ``torch``; it patches no Megatron and no Transformer
Engine name, so what runs is the client's own code.  :func:`uninstall` puts
everything back.

What each group of patches is for, and which Megatron place needs it, is said
at the group.  Groups can be left out through ``install(skip={...})``:

    device   torch.cuda.current_device & co. answer "cpu"
    factory  torch.zeros(..., device="cuda") & co. build CPU tensors
    move     Tensor.cuda / Tensor.to("cuda") / Module.cuda stay on the CPU
    rng      torch.cuda RNG functions work on the CPU generator
    stream   streams, events, synchronize, nvtx ranges do nothing
    memory   memory statistics answer 0
    types    Tensor.type() of a CPU tensor says "torch.cuda.…"
    dist     "nccl" becomes "gloo"; device_id and NCCL options are dropped, nothing is coalesced
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import types as _types

import torch
import torch.distributed as dist

__all__ = ["GROUPS", "install", "installed", "uninstall"]

GROUPS = ("device", "factory", "move", "rng", "stream", "memory", "types", "dist")

_CPU = torch.device("cpu")
_undo: list = []
_log_filters: list = []


def installed() -> bool:
    """Whether the shim is in force."""
    return bool(_undo)


def _patch(owner, name, value):
    had = name in vars(owner) if hasattr(owner, "__dict__") else hasattr(owner, name)
    old = getattr(owner, name, None)
    _undo.append((owner, name, old, had))
    setattr(owner, name, value)


def _is_cuda_device(dev) -> bool:
    if dev is None or isinstance(dev, bool):
        return False
    if isinstance(dev, torch.device):
        return dev.type == "cuda"
    if isinstance(dev, str):
        return dev == "cuda" or dev.startswith("cuda:")
    return isinstance(dev, int)  # torch reads a bare int as a CUDA ordinal


def _cpu_if_cuda(dev):
    return _CPU if _is_cuda_device(dev) else dev


def _install_device(capability, available):
    cuda = torch.cuda
    if available:
        _patch(cuda, "is_available", lambda: True)

    def world():
        return int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))

    props = _types.SimpleNamespace(
        name="CPU (cuda_to_cpu_shim)",
        major=capability[0],
        minor=capability[1],
        total_memory=0,
        multi_processor_count=os.cpu_count() or 1,
        warp_size=1,
    )
    _patch(cuda, "current_device", lambda: _CPU)
    _patch(cuda, "device_count", world)
    _patch(cuda, "set_device", lambda device: None)
    _patch(cuda, "get_device_capability", lambda device=None: tuple(capability))
    _patch(cuda, "get_device_properties", lambda device=None: props)
    _patch(cuda, "get_device_name", lambda device=None: props.name)
    _patch(cuda, "_lazy_init", lambda: None)
    _patch(cuda, "device", lambda device=None: contextlib.nullcontext())


_FACTORIES = [
    "tensor",
    "as_tensor",
    "empty",
    "zeros",
    "ones",
    "full",
    "rand",
    "randn",
    "randint",
    "randperm",
    "arange",
    "linspace",
    "logspace",
    "eye",
    "empty_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "randint_like",
    "empty_strided",
    "scalar_tensor",
    "tril_indices",
    "triu_indices",
    "asarray",
]


def _install_factory():
    def wrap(fn):
        @functools.wraps(fn)
        def call(*args, **kwargs):
            if "device" in kwargs:
                kwargs["device"] = _cpu_if_cuda(kwargs["device"])
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
            return fn(*args, **kwargs)

        return call

    for name in _FACTORIES:
        _patch(torch, name, wrap(getattr(torch, name)))
    for name in ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor"):
        _patch(torch.Tensor, name, wrap(getattr(torch.Tensor, name)))


def _install_move():
    orig_to, orig_mod_to = torch.Tensor.to, torch.nn.Module.to

    def tensor_to(self, *args, **kwargs):
        if args and not isinstance(args[0], (torch.dtype, torch.Tensor)):
            args = (_cpu_if_cuda(args[0]), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = _cpu_if_cuda(kwargs["device"])
        return orig_to(self, *args, **kwargs)

    def module_to(self, *args, **kwargs):
        if args and not isinstance(args[0], (torch.dtype, torch.Tensor)):
            args = (_cpu_if_cuda(args[0]), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = _cpu_if_cuda(kwargs["device"])
        return orig_mod_to(self, *args, **kwargs)

    orig_to_empty = torch.nn.Module.to_empty

    def to_empty(self, *, device, recurse=True):
        return orig_to_empty(self, device=_cpu_if_cuda(device), recurse=recurse)

    _patch(torch.Tensor, "to", tensor_to)
    _patch(torch.Tensor, "cuda", lambda self, *a, **k: self)
    _patch(torch.Tensor, "pin_memory", lambda self, *a, **k: self)
    _patch(torch.Tensor, "record_stream", lambda self, stream: None)
    _patch(torch.nn.Module, "to", module_to)
    _patch(torch.nn.Module, "cuda", lambda self, *a, **k: self)
    _patch(torch.nn.Module, "to_empty", to_empty)
    orig_load = torch.load

    def load(*args, **kwargs):
        if "map_location" in kwargs and not callable(kwargs["map_location"]):
            kwargs["map_location"] = _cpu_if_cuda(kwargs["map_location"])
        return orig_load(*args, **kwargs)

    _patch(torch, "load", load)


class _AnyIndex:
    """torch.cuda.default_generators: any index is the CPU generator."""

    def __getitem__(self, _):
        return torch.default_generator

    def __len__(self):
        return 1


class _DropForkWarning(logging.Filter):
    # The tracker's fork() warns when the CPU generator moved inside it; with
    # one generator playing both parts it always does.
    def filter(self, record):
        return "CPU RNG state changed within GPU RNG context" not in record.getMessage()


def _install_rng():
    cuda = torch.cuda

    def get(device="cuda"):
        return torch.get_rng_state()

    def put(new_state, device="cuda"):
        torch.set_rng_state(new_state)

    def seed(value):
        # torch.manual_seed itself calls torch.cuda.manual_seed_all: go to the generator.
        torch.default_generator.manual_seed(int(value))

    for owner in (cuda, cuda.random):
        _patch(owner, "get_rng_state", get)
        _patch(owner, "set_rng_state", put)
        _patch(owner, "manual_seed", seed)
        _patch(owner, "manual_seed_all", seed)
        _patch(owner, "initial_seed", torch.initial_seed)
        _patch(owner, "get_rng_state_all", lambda: [torch.get_rng_state()])
        _patch(owner, "set_rng_state_all", lambda states: torch.set_rng_state(states[0]))
    _patch(cuda, "default_generators", _AnyIndex())
    _patch(cuda, "_lazy_call", lambda fn, **_: fn())
    for name in ("megatron.core.tensor_parallel.random", "megatron_fsdp.utils"):
        flt = _DropForkWarning()
        logging.getLogger(name).addFilter(flt)
        _log_filters.append((name, flt))


class _Stream:
    def __init__(self, *a, **k):
        self.cuda_stream = 0
        self.device = _CPU

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return False

    def wait_stream(self, other):
        pass

    def wait_event(self, event):
        pass

    def record_event(self, event=None):
        return event or _Event()

    def synchronize(self):
        pass

    def query(self):
        return True


class _Event:
    def __init__(self, *a, **k):
        pass

    def record(self, stream=None):
        pass

    def wait(self, stream=None):
        pass

    def synchronize(self):
        pass

    def query(self):
        return True

    def elapsed_time(self, other):
        return 0.0


def _install_stream():
    cuda, one = torch.cuda, _Stream()
    _patch(cuda, "Stream", _Stream)
    _patch(cuda, "Event", _Event)
    _patch(cuda, "current_stream", lambda device=None: one)
    _patch(cuda, "default_stream", lambda device=None: one)
    _patch(cuda, "stream", lambda s: contextlib.nullcontext(s))
    _patch(cuda, "set_stream", lambda s: None)
    _patch(cuda, "synchronize", lambda device=None: None)
    _patch(cuda, "is_current_stream_capturing", lambda: False)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        _patch(cuda.nvtx, name, lambda *a, **k: None)
    _patch(cuda.nvtx, "range", lambda *a, **k: contextlib.nullcontext())


def _install_memory():
    cuda = torch.cuda
    for name in (
        *("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"),
        *("memory_usage", "utilization"),
    ):
        _patch(cuda, name, lambda *a, **k: 0)
    for name in (
        "empty_cache",
        "ipc_collect",
        "reset_peak_memory_stats",
        "reset_max_memory_allocated",
    ):
        _patch(cuda, name, lambda *a, **k: None)
    _patch(cuda, "memory_stats", lambda *a, **k: {})
    _patch(cuda, "mem_get_info", lambda *a, **k: (0, 0))


def _install_types():
    orig = torch.Tensor.type

    def tensor_type(self, dtype=None, *args, **kwargs):
        if dtype is None and not args and not kwargs:
            name = orig(self)
            if name.startswith("torch.") and not name.startswith("torch.cuda."):
                name = "torch.cuda." + name[len("torch.") :]
            return name
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            dtype = "torch." + dtype[len("torch.cuda.") :]
        return orig(self, dtype, *args, **kwargs)

    _patch(torch.Tensor, "type", tensor_type)


class _Works:
    """What a block of coalesced collectives yields: waits for all that it started."""

    def __init__(self):
        self.works = []

    def wait(self):
        while self.works:
            self.works.pop(0).wait()


def _install_coalescing():
    # Gloo makes of gathers that are coalesced one of the first one's dtype, whatever the others'
    # is (seen with a uint8 and a bfloat16 buffer): here each collective runs by itself.
    open_blocks = []

    @contextlib.contextmanager
    def coalescing_manager(group=None, device=None, async_ops=False):
        block = _Works()
        open_blocks.append(block)
        try:
            yield block
        finally:
            open_blocks.pop()

    def noting(collective):
        @functools.wraps(collective)
        def call(*args, **kwargs):
            work = collective(*args, **kwargs)
            if open_blocks and work is not None:
                open_blocks[-1].works.append(work)
            return work

        return call

    for owner in (dist, dist.distributed_c10d):
        _patch(owner, "_coalescing_manager", coalescing_manager)
        for name in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"):
            _patch(owner, name, noting(getattr(owner, name)))


def _install_dist(reuse_groups):
    _install_coalescing()
    made = {}

    def alive(group):
        return group is not None and group in dist.distributed_c10d._world.pg_map

    def gloo(backend):
        if isinstance(backend, str) and "nccl" in backend:
            return "gloo"
        return backend

    orig_init, orig_new, orig_barrier = dist.init_process_group, dist.new_group, dist.barrier
    orig_a2a = dist.all_to_all_single

    def as_list(sizes):
        # The MoE dispatcher turns split sizes into host numbers only when they
        # are CUDA tensors (moe_utils.maybe_move_tensor_to_cpu).
        return sizes.tolist() if isinstance(sizes, torch.Tensor) else sizes

    def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, **kwargs):
        return orig_a2a(
            output, input, as_list(output_split_sizes), as_list(input_split_sizes), **kwargs
        )

    def init_process_group(backend=None, *args, **kwargs):
        kwargs.pop("device_id", None)
        return orig_init(gloo(backend) or "gloo", *args, **kwargs)

    def new_group(ranks=None, timeout=None, backend=None, pg_options=None, *args, **kwargs):
        kwargs.pop("device_id", None)
        key = tuple(ranks) if ranks is not None else None
        if reuse_groups and alive(made.get(key)):
            return made[key]
        group = orig_new(ranks, timeout, gloo(backend), None, *args, **kwargs)
        if reuse_groups and isinstance(group, dist.ProcessGroup):
            made[key] = group
        return group

    def barrier(group=None, async_op=False, device_ids=None):
        return orig_barrier(group=group, async_op=async_op)

    for owner in (dist, dist.distributed_c10d):
        _patch(owner, "init_process_group", init_process_group)
        _patch(owner, "new_group", new_group)
        _patch(owner, "barrier", barrier)
        _patch(owner, "all_to_all_single", all_to_all_single)


def install(skip=(), capability=(0, 0), available=False, reuse_groups=False):
    """Put the shim in force.  ``skip``: names out of GROUPS to leave alone.
    ``capability``: what torch.cuda.get_device_capability answers.  ``available``: whether
    torch.cuda.is_available answers True (for tests that skip themselves without it).
    ``reuse_groups``: hand out one gloo group per set of ranks instead of a new one each time
    (gloo keeps threads per group, and a test run that sets up model parallelism hundreds of
    times in one process runs out of them; Megatron itself never frees its groups)."""
    if installed():
        return
    unknown = set(skip) - set(GROUPS)
    if unknown:
        raise ValueError(f"unknown shim groups: {sorted(unknown)}")
    for name in GROUPS:
        if name in skip:
            continue
        if name == "device":
            _install_device(capability, available)
        elif name == "dist":
            _install_dist(reuse_groups)
        else:
            globals()[f"_install_{name}"]()


def uninstall():
    """Take the shim out of force."""
    while _undo:
        owner, name, old, had = _undo.pop()
        if had:
            setattr(owner, name, old)
        else:
            delattr(owner, name)
    while _log_filters:
        name, flt = _log_filters.pop()
        logging.getLogger(name).removeFilter(flt)
