# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What make_graphed_callables and its companions refuse, before anything is changed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import transformer_engine.pytorch as te
from helpers.graph_device import GraphsOnCpu
from transformer_engine.common.recipe import DelayedScaling
from transformer_engine.pytorch import graph
from transformer_engine.pytorch.graph.device import use_device

SIZE = 16


def make_module() -> te.Linear:
    return te.Linear(SIZE, SIZE, device="cpu")


def make_input() -> Tensor:
    return torch.randn(4, SIZE, requires_grad=True)


def call(modules: Any = None, sample_args: Any = None, **options: Any) -> Any:
    modules = make_module() if modules is None else modules
    sample_args = (make_input(),) if sample_args is None else sample_args
    listed = modules if isinstance(modules, tuple) else (modules,)
    with use_device(GraphsOnCpu([m for m in listed if isinstance(m, torch.nn.Module)])):
        return te.make_graphed_callables(modules, sample_args, **options)


PAIR = (make_module(), make_module())
TWO = ((make_input(),), (make_input(),))
BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "function": (
        {"modules": (len,)},
        TypeError,
        "modules holds of type builtin_function_or_method",
    ),
    "a number": ({"modules": 3}, TypeError, "modules is 3; it must be a torch.nn.Module or a"),
    "no module": ({"modules": ()}, ValueError, "modules is empty"),
    "samples": ({"modules": PAIR}, ValueError, "sample_args has 1 items; 2 are required"),
    "sample": (
        {"modules": PAIR, "sample_args": (make_input(), make_input())},
        TypeError,
        "sample_args holds of type Tensor; a tuple",
    ),
    "number": ({"sample_args": (3,)}, TypeError, "sample arguments hold 3; only tensors"),
    "keywords": (
        {"sample_kwargs": {"is_first_microbatch": True}},
        TypeError,
        "sample arguments hold True; only tensors",
    ),
    "keyword dict": (
        {"modules": PAIR, "sample_args": TWO, "sample_kwargs": ((), ())},
        TypeError,
        r"sample_kwargs holds \(\); a dict",
    ),
    "keyword count": (
        {"modules": PAIR, "sample_args": TWO, "sample_kwargs": ({},)},
        ValueError,
        "sample_kwargs has 1 items; 2 are required",
    ),
    "enabled": ({"enabled": "yes"}, TypeError, "enabled is 'yes'"),
    "enabled tuple": ({"enabled": (1,)}, TypeError, r"enabled is \(1,\); it must hold bools"),
    "enabled count": ({"enabled": (True, True)}, ValueError, "enabled has 2 flags; one for each"),
    "calibrating": ({"calibrating": "no"}, TypeError, "calibrating is 'no'"),
    "caches": ({"cache_quantized_params": "no"}, TypeError, "cache_quantized_params is 'no'"),
    "recipe": ({"recipe": "delayed"}, TypeError, "recipe is 'delayed'; it must be an instance"),
    "group": ({"amax_reduction_group": 3}, TypeError, "amax_reduction_group is 3"),
    "warm-up": ({"num_warmup_iters": -1}, ValueError, "num_warmup_iters is -1"),
    "warm-up type": ({"num_warmup_iters": 1.5}, TypeError, "num_warmup_iters is 1.5"),
    "unused": ({"allow_unused_input": "no"}, TypeError, "allow_unused_input is 'no'"),
    "retain": ({"retain_graph_in_backward": "no"}, TypeError, "retain_graph_in_backward is 'no'"),
    "clone": (
        {"clone_param_grads_on_return": "no"},
        TypeError,
        "clone_param_grads_on_return is 'no'",
    ),
    "reuse": (
        {"_reuse_graph_input_output_buffers": True},
        ValueError,
        "_reuse_graph_input_output_buffers is True without _order",
    ),
    "layers": (
        {"_num_layers_per_chunk": [1]},
        ValueError,
        r"_num_layers_per_chunk is \[1\] without _order",
    ),
    "pre hook": ({"pre_warmup_hook": 1}, TypeError, "pre_warmup_hook is 1"),
    "post hook": ({"post_warmup_hook": 1}, TypeError, "post_warmup_hook is 1"),
    "hooks": ({"capture_time_hooks": 1}, ValueError, "capture_time_hooks is 1; for each of the 1"),
    "hook key": (
        {"capture_time_hooks": [{"hooks": {}}]},
        TypeError,
        "capture_time_hooks holds of type dict",
    ),
    "hook kind": (
        {"capture_time_hooks": [{"forward_hooks": [len]}]},
        TypeError,
        "capture_time_hooks holds of type dict",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_refused(name):
    options, error, message = BAD[name]
    with pytest.raises(error, match=f"^make_graphed_callables: {message}"):
        call(**options)
    assert not graph.is_graph_capturing()


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("fp8_enabled", "enabled", True),
        ("fp8_calibrating", "calibrating", False),
        ("fp8_recipe", "recipe", DelayedScaling(amax_history_len=4)),
        ("fp8_group", "amax_reduction_group", None),
        ("fp8_weight_caching", "cache_quantized_params", True),
    ],
)
def test_old_names_warn_and_mean_the_new_ones(old, new, value):
    if value is not None:
        with pytest.warns(DeprecationWarning, match=f"{old} is deprecated; use {new}"):
            call(**{old: value})
        with pytest.raises(ValueError, match=f"{old} is .* and {new} .*two names of one argument"):
            call(**{old: value, new: value})


def test_old_names_reach_the_region():
    module = make_module()
    with pytest.warns(DeprecationWarning):
        call(module, fp8_enabled=True, fp8_recipe=DelayedScaling(amax_history_len=4))
    assert module.fp8 and module.fp8_meta["recipe"].amax_history_len == 4


def test_without_a_recipe_the_default_one_is_used():
    module = make_module()
    call(module, enabled=True)
    assert type(module.fp8_meta["recipe"]) is type(te.get_default_recipe())


@pytest.mark.parametrize(
    "register",
    [
        lambda m: m.register_forward_hook(lambda *_: None),
        lambda m: m.register_forward_pre_hook(lambda *_: None),
        lambda m: m.register_full_backward_hook(lambda *_: None),
        lambda m: m.register_full_backward_pre_hook(lambda *_: None),
    ],
)
def test_modules_must_not_have_hooks_but_get_them_afterwards(register):
    module = make_module()
    handle = register(module)
    with pytest.raises(RuntimeError, match=r"Linear has hooks; .* capture_time_hooks"):
        call(module)
    handle.remove()
    call(module)
    register(module)
    module(make_input())


def test_buffers_must_not_require_a_gradient():
    module = torch.nn.Linear(SIZE, SIZE, device="cpu")
    module.register_buffer("shift", torch.zeros(1, requires_grad=True))
    with pytest.raises(RuntimeError, match="buffer shift of Linear requires a gradient"):
        call(module)


def test_modules_are_in_one_mode():
    modules = (make_module(), make_module().eval())
    with pytest.raises(RuntimeError, match=r"modes \['train', 'eval'\]; one mode is required"):
        call(modules, TWO)


def test_a_cache_of_casts_would_be_read_by_replays():
    message = r"torch.autocast is on .* cache_enabled=False"
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(RuntimeError, match=message),
    ):
        call()
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        assert call()(make_input()).dtype == torch.bfloat16


def test_an_unused_parameter_is_an_error_unless_allowed():
    class Partly(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = make_module()
            self.unused = torch.nn.Parameter(torch.ones(1))

        def forward(self, inp: Tensor) -> Tensor:
            return self.used(inp)

    with pytest.raises(RuntimeError, match=r"unused of Partly requires .*allow_unused_input=True"):
        call(Partly())
    module = call(Partly(), allow_unused_input=True)
    module(make_input()).sum().backward()
    assert module.unused.grad is None and module.used.weight.grad is not None


def test_an_unused_input_is_named_by_its_number():
    class Ignoring(torch.nn.Module):
        def forward(self, inp: Tensor, other: Tensor) -> Tensor:
            return inp * 2

    with pytest.raises(RuntimeError, match="input 1 of Ignoring requires a gradient"):
        call(Ignoring(), (make_input(), make_input()))


def test_tensors_are_on_the_device_of_graphs():
    meta = torch.empty(4, SIZE, device="meta")
    with pytest.raises(ValueError, match="tensor 0 of the sample arguments is on meta; cpu is"):
        call(sample_args=(meta,))
    with pytest.raises(ValueError, match="weight of Linear is on meta; cpu is required"):
        call(te.Linear(SIZE, SIZE, device="meta"))


# ---- hooks of the capture ----------------------------------------------------------------------


def test_hooks_of_the_warm_up_run_on_its_stream():
    device = GraphsOnCpu([])
    calls: list[tuple[str, bool]] = []
    with use_device(device):
        te.make_graphed_callables(
            make_module(),
            (make_input(),),
            pre_warmup_hook=lambda: calls.append(("pre", device.is_on_side_stream)),
            post_warmup_hook=lambda: calls.append(("post", device.is_on_side_stream)),
        )
    assert calls == [("pre", True), ("post", True)]


def test_capture_time_hooks_run_around_what_is_recorded():
    calls: list[str] = []
    device = GraphsOnCpu([])
    module = make_module()

    def note(name: str, count: int):
        def hook(owner: torch.nn.Module, *given: Any) -> None:
            assert owner is module and len(given) == count and not device.is_capturing
            calls.append(name)

        return hook

    hooks = {
        "forward_pre_hooks": {0: note("before", 1), 1: note("before with keywords", 2)},
        "forward_pre_hooks_with_kwargs": {1: True},
        "forward_hooks": {0: note("after", 2), 1: note("after with keywords", 3)},
        "forward_hooks_with_kwargs": {1: True},
        "backward_pre_hooks": {0: note("before backward", 1)},
        "backward_hooks": {0: note("after backward", 2)},
    }
    with use_device(device):
        te.make_graphed_callables(
            (module,), ((make_input(),),), num_warmup_iters=1, capture_time_hooks=[hooks]
        )
    assert (
        calls
        == [
            *("before", "before with keywords", "after", "after with keywords"),
            *("before backward", "after backward"),
        ]
        * 2
    )
    calls.clear()
    module(make_input()).sum().backward()
    assert calls == []


def test_hooks_see_what_hooks_of_a_module_see():
    seen: dict[str, Any] = {}
    inp = make_input()
    module = make_module()
    eager = copy.deepcopy(module)
    hooks = {
        "forward_hooks": {0: lambda m, args, out: seen.update(out=out.detach().clone())},
        "backward_hooks": {0: lambda m, grad_in, grad_out: seen.update(shape=grad_in[0].shape)},
    }
    call(module, (inp,), capture_time_hooks=hooks)
    assert torch.equal(seen["out"], eager(inp)) and seen["shape"] == inp.shape


def test_a_hook_that_returns_something_is_an_error():
    hooks = {"forward_hooks": {"name": lambda *_: 3}}
    with pytest.raises(RuntimeError, match="hook 'name' of capture_time_hooks' forward_hooks ret"):
        call(capture_time_hooks=[hooks])


# ---- companions --------------------------------------------------------------------------------


def test_captures_are_announced():
    assert not graph.is_graph_capturing()
    graph.set_capture_start()
    assert graph.is_graph_capturing()
    graph.set_capture_end()
    assert not graph.is_graph_capturing()


@pytest.mark.parametrize("modules", [None, "text", [len], make_module()])
def test_states_are_those_of_a_list_of_modules(modules):
    with pytest.raises(TypeError, match="save_fp8_tensors: modules is"):
        graph.save_fp8_tensors(modules, None)
    with pytest.raises(TypeError, match="restore_fp8_tensors: modules is"):
        graph.restore_fp8_tensors(modules, [])


def test_states_are_saved_under_a_recipe():
    with pytest.raises(TypeError, match="save_fp8_tensors: recipe is 3"):
        graph.save_fp8_tensors([make_module()], 3)


@pytest.mark.parametrize("states", [None, [], [None, None]])
def test_states_of_other_modules_are_not_restored(states):
    with pytest.raises(ValueError, match=r"fp8_tensors is .* the 1 states"):
        graph.restore_fp8_tensors([make_module()], states)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_there_are_no_graphs():
    module = make_module()
    with pytest.raises(RuntimeError, match=r"make_graphed_callables: torch finds no CUDA device"):
        te.make_graphed_callables(module, (make_input(),))
    with pytest.raises(RuntimeError, match=r"graph_pool_handle: torch finds no CUDA device"):
        graph.graph_pool_handle()
    assert "forward" not in module.__dict__
