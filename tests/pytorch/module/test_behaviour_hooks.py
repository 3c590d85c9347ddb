# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hooks of every kind run as they do on torch's own modules, and go when they are removed."""

import pytest
import torch
from torch.nn.modules import module as module_hooks

from helpers.behaviour import ALL_CASES, PLAIN_CASES, Case, describe
from helpers.modules import assert_same, collect, output_gradient
from helpers.tolerances import assert_identical

pytestmark = pytest.mark.usefixtures("one_thread")

CASES = pytest.mark.parametrize("case", ALL_CASES, ids=str)
PLAIN = pytest.mark.parametrize("case", PLAIN_CASES, ids=str)


def run(case, module, grad=None, x=None):
    """One forward and backward in the case's region."""
    x = case.input() if x is None else x
    module.zero_grad()
    output = case(module, x)
    output.backward(output_gradient(output) if grad is None else grad)
    return collect(module, x, output)


def recorder(log, name):
    def hook(*arguments):
        log.append((name, describe(arguments)))

    return hook


# Each registers a hook that writes to `log`, and returns its handle.
MODULE_HOOKS = {
    "forward": lambda module, log: module.register_forward_hook(recorder(log, "forward")),
    "forward with kwargs": lambda module, log: module.register_forward_hook(
        recorder(log, "kwargs"), with_kwargs=True
    ),
    "always called": lambda module, log: module.register_forward_hook(
        recorder(log, "always"), always_call=True
    ),
    "prepended": lambda module, log: module.register_forward_hook(
        recorder(log, "prepended"), prepend=True
    ),
    "pre": lambda module, log: module.register_forward_pre_hook(recorder(log, "pre")),
    "pre with kwargs": lambda module, log: module.register_forward_pre_hook(
        recorder(log, "pre kwargs"), with_kwargs=True
    ),
    "full backward": lambda module, log: module.register_full_backward_hook(
        recorder(log, "backward")
    ),
    "backward pre": lambda module, log: module.register_full_backward_pre_hook(
        recorder(log, "backward pre")
    ),
    "global forward": lambda _module, log: module_hooks.register_module_forward_hook(
        recorder(log, "global forward")
    ),
    "global pre": lambda _module, log: module_hooks.register_module_forward_pre_hook(
        recorder(log, "global pre")
    ),
    "global backward": lambda _module, log: module_hooks.register_module_full_backward_hook(
        recorder(log, "global backward")
    ),
    "global backward pre": lambda _module, log: (
        module_hooks.register_module_full_backward_pre_hook(recorder(log, "global backward pre"))
    ),
}


@CASES
@pytest.mark.parametrize("hook", MODULE_HOOKS)
def test_a_hook_sees_what_the_twins_sees_until_it_is_removed(case, hook):
    expected = run(case, case.make())
    module, twin = case.make(), case.twin()
    log, twin_log = [], []
    handle = MODULE_HOOKS[hook](module, log)
    results = run(case, module)
    handle.remove()
    handle = MODULE_HOOKS[hook](twin, twin_log)
    run(case, twin)
    handle.remove()
    assert log == twin_log
    assert len(log) == 1
    assert_same(results, expected)
    run(case, module)
    assert len(log) == 1


@PLAIN
def test_all_hooks_together_run_in_the_twins_order(case):
    logs = []
    for module in (case.make(), case.twin()):
        log = []
        handles = [register(module, log) for register in MODULE_HOOKS.values()]
        run(case, module)
        for handle in handles:
            handle.remove()
        logs.append(log)
    assert logs[0] == logs[1]
    assert len(logs[0]) == len(MODULE_HOOKS)


@PLAIN
def test_keyword_inputs_reach_hooks_as_keywords(case):
    log = []
    module = case.make()
    module.register_forward_pre_hook(recorder(log, "pre"), with_kwargs=True)
    module.register_forward_hook(recorder(log, "post"), with_kwargs=True)
    x = case.input()
    output = module(**{case.input_name: x})
    given = {case.input_name: describe(x)}
    assert log == [
        ("pre", ("module", (), given)),
        ("post", ("module", (), given, describe(output))),
    ]


@PLAIN
def test_a_failing_forward_still_calls_hooks_that_always_run(case):
    logs = []
    for module in (case.make(), case.twin()):
        log = []
        module.register_forward_hook(recorder(log, "plain"))
        module.register_forward_hook(recorder(log, "always"), always_call=True)
        with pytest.raises((RuntimeError, ValueError)):
            module(torch.ones(2, 7))
        logs.append(log)
    assert logs[0] == logs[1]
    assert [name for name, _ in logs[0]] == ["always"]


@CASES
def test_a_forward_hook_replaces_the_output(case):
    module = case.make()
    grad = output_gradient(case(case.make(), case.input()))
    expected = run(case, case.make(), grad=2 * grad)
    expected["output"] = expected["output"] * 2
    module.register_forward_hook(lambda _module, _args, output: output * 2)
    assert_same(run(case, module, grad=grad), expected)


@CASES
def test_a_pre_hook_replaces_the_input(case):
    x = case.input()
    other = case.input(seed=2)
    expected = run(case, case.make(), x=other)
    module = case.make()
    module.register_forward_pre_hook(lambda _module, _args: (other,))
    other.grad = None
    results = run(case, module, x=x)
    assert x.grad is None
    assert_same({**results, "inp": other.grad}, expected)


@CASES
def test_a_backward_hook_replaces_the_inputs_gradient(case):
    expected = run(case, case.make())
    expected["inp"] = expected["inp"] * 3
    module = case.make()
    module.register_full_backward_hook(lambda _module, grads, _outputs: (grads[0] * 3,))
    assert_same(run(case, module), expected)


@CASES
def test_a_backward_pre_hook_replaces_the_outputs_gradient(case):
    grad = output_gradient(case(case.make(), case.input()))
    expected = run(case, case.make(), grad=grad * 2)
    module = case.make()
    module.register_full_backward_pre_hook(lambda _module, grads: (grads[0] * 2,))
    assert_same(run(case, module, grad=grad), expected)


@PLAIN
def test_a_hook_added_by_a_hook_runs_from_the_next_call(case):
    module, log = case.make(), []

    def adds(module, _args):
        module.register_forward_hook(recorder(log, "added"))
        handle.remove()

    handle = module.register_forward_pre_hook(adds)
    twin, twin_log = case.twin(), []

    def adds_to_twin(module, _args):
        module.register_forward_hook(recorder(twin_log, "added"))
        twin_handle.remove()

    twin_handle = twin.register_forward_pre_hook(adds_to_twin)
    for _ in range(2):
        module(case.input())
        twin(case.input())
    assert log == twin_log
    assert log


@PLAIN
def test_an_exception_in_a_hook_reaches_the_caller_and_leaves_the_module_usable(case):
    module = case.make()
    expected = run(case, case.make())

    def fails(*_arguments):
        raise LookupError("from the hook")

    for register in (
        module.register_forward_hook,
        module.register_forward_pre_hook,
        module.register_full_backward_hook,
        module.register_full_backward_pre_hook,
    ):
        handle = register(fails)
        with pytest.raises(LookupError, match="from the hook"):
            run(case, module)
        handle.remove()
    assert_same(run(case, module), expected)


def test_the_old_backward_hook_runs_with_torchs_warning():
    logs = []
    case = Case("Linear")
    for module in (case.make(), case.twin()):
        log = []
        module.register_backward_hook(recorder(log, "old"))
        with pytest.warns(FutureWarning, match="non-full backward hook"):
            run(case, module)
        logs.append([name for name, _ in log])
    assert logs == [["old"], ["old"]]


# ---- parameters ----------------------------------------------------------------------------------


@CASES
def test_parameter_hooks_replace_gradients(case):
    expected = run(case, case.make())
    module = case.make()
    for parameter in module.parameters():
        parameter.register_hook(lambda grad: grad * 4)
    results = run(case, module)
    for name, parameter in module.named_parameters():
        assert_identical(results[name], expected[name] * 4, name)
        assert parameter.grad.dtype == parameter.dtype


@CASES
def test_post_accumulate_hooks_run_once_per_parameter_and_may_drop_the_gradient(case):
    expected = run(case, case.make())
    module, seen = case.make(), {}
    names = {parameter: name for name, parameter in module.named_parameters()}

    def take(parameter):
        assert names[parameter] not in seen
        seen[names[parameter]] = parameter.grad
        parameter.grad = None

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(take)
    results = run(case, module)
    assert all(parameter.grad is None for parameter in module.parameters())
    assert_same({**results, **seen}, expected)


@CASES
def test_input_hooks_and_retained_gradients(case):
    expected = run(case, case.make())
    x, seen = case.input(), []
    inner = x * 1
    inner.retain_grad()
    inner.register_hook(seen.append)
    output = case(case.make(), inner)
    output.register_hook(seen.append)
    output.retain_grad()
    grad = output_gradient(output)
    output.backward(grad)
    assert_identical(seen[0], grad, "output hook")
    assert_identical(output.grad, grad, "output.grad")
    for value in (seen[1], inner.grad, x.grad):
        assert_identical(value, expected["inp"], "input gradient")


# ---- state dicts ---------------------------------------------------------------------------------


@PLAIN
def test_state_dict_hooks_run_as_the_twins(case):
    logs = []
    for module in (case.make(), case.twin()):
        log = []

        def record(name, log=log):
            def hook(*arguments):
                log.append(
                    (name, len(arguments), [type(value).__name__ for value in arguments[1:]])
                )

            return hook

        handles = [
            module.register_state_dict_pre_hook(record("save pre")),
            module.register_state_dict_post_hook(record("save post")),
            module.register_load_state_dict_pre_hook(record("load pre")),
            module.register_load_state_dict_post_hook(record("load post")),
        ]
        module.load_state_dict(module.state_dict())
        for handle in handles:
            handle.remove()
        module.load_state_dict(module.state_dict())
        logs.append(log)
    assert logs[0] == logs[1]
    assert [entry[0] for entry in logs[0]] == ["save pre", "save post", "load pre", "load post"]


@PLAIN
def test_state_dict_hooks_may_rename_keys(case):
    module = case.make()

    def shout(_module, state, prefix, _metadata):
        for key in list(state):
            state[prefix + "X" + key.removeprefix(prefix)] = state.pop(key)

    def whisper(_module, state, prefix, *_others):
        for key in list(state):
            state[prefix + key.removeprefix(prefix).removeprefix("X")] = state.pop(key)

    module.register_state_dict_post_hook(shout)
    other = case.make(seed=30)
    other.register_load_state_dict_pre_hook(whisper)
    saved = module.state_dict()
    assert all(key.startswith("X") for key in saved)
    other.load_state_dict(saved)
    for name, parameter in other.named_parameters():
        assert_identical(parameter, module.get_parameter(name), name)


# ---- registration --------------------------------------------------------------------------------


def test_global_registration_hooks_see_parameters_and_may_replace_them():
    seen = []

    def replace(_module, name, parameter):
        seen.append(name)
        return None if parameter is None else torch.nn.Parameter(parameter.detach().double())

    with module_hooks.register_module_parameter_registration_hook(replace):
        module = Case("LayerNormMLP").make()
    assert seen == [name for name, _ in module.named_parameters()]
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float64}
