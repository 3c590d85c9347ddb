# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Copies, pickles, saved modules, lifetime and threads."""

import copy
import functools
import gc
import io
import os
import pickle
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.behaviour import ALL_CASES, DTYPE_CASES, PLAIN_CASES, QUANTIZED_CASES, RECIPES
from helpers.modules import assert_same, collect, output_gradient, recipe_state
from helpers.tolerances import assert_identical

pytestmark = pytest.mark.usefixtures("one_thread")

CASES = pytest.mark.parametrize("case", ALL_CASES, ids=str)
DTYPES = pytest.mark.parametrize("case", DTYPE_CASES, ids=str)
PLAIN = pytest.mark.parametrize("case", PLAIN_CASES, ids=str)
DELAYED = pytest.mark.parametrize(
    "case", [case for case in QUANTIZED_CASES if case.recipe == "delayed"], ids=str
)


@pytest.fixture
def quick_collection():
    """Only what a test makes is collected."""
    gc.freeze()
    yield
    gc.unfreeze()


def step(case, module, seed=1):
    """One forward and backward in the case's region: output, input gradient and parameters'."""
    x = case.input(seed=seed)
    module.zero_grad()
    output = case(module, x)
    output.backward(output_gradient(output))
    return collect(module, x, output)


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "saved": saved_and_loaded,
}


# ---- copies --------------------------------------------------------------------------------------


@CASES
@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("calls_before", [0, 2])
def test_a_copy_computes_the_same_and_is_independent(case, how, calls_before):
    module = case.make()
    for _ in range(calls_before):
        step(case, module)
    module.note = ["kept"]
    other = COPIES[how](module)
    assert type(other) is type(module)
    assert repr(other) == repr(module)
    assert other.note == ["kept"]
    assert other.note is not module.note
    pairs = dict(other.named_parameters())
    for name, parameter in module.named_parameters():
        assert_identical(pairs[name], parameter, name)
        assert pairs[name].data_ptr() != parameter.data_ptr()
        assert pairs[name].requires_grad == parameter.requires_grad
    found = step(case, other)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert_same(found, step(case, module))


@CASES
def test_a_shallow_copy_shares_parameters_but_computes_by_itself(case):
    module = case.make()
    step(case, module)
    other = copy.copy(module)
    assert dict(other.named_parameters()) == dict(module.named_parameters())
    expected = case.make()
    step(case, expected)
    assert_same(step(case, other), step(case, expected))


@DELAYED
def test_a_module_and_its_shallow_copy_scale_as_one_module(case):
    module, alone = case.make(), case.make()
    step(case, module)
    other = copy.copy(module)
    found = [step(case, current, seed) for current, seed in ((other, 5), (module, 6), (other, 7))]
    step(case, alone)
    for seed, results in zip((5, 6, 7), found, strict=True):
        assert_same(results, step(case, alone, seed))
    assert_same(recipe_state(module), recipe_state(alone))
    assert_identical(module.get_extra_state(), alone.get_extra_state(), "extra state")


@DELAYED
@pytest.mark.filterwarnings("ignore:Recipe type changed:UserWarning")
def test_another_recipe_on_a_shallow_copy_leaves_the_original_alone(case):
    module = case.make()
    step(case, module)
    before = recipe_state(module), module.get_extra_state()
    other = copy.copy(module)
    with te.autocast(recipe=RECIPES["current"]):
        other(case.input())
    assert_same(recipe_state(module), before[0])
    assert_identical(module.get_extra_state(), before[1], "extra state")


@CASES
def test_a_copy_keeps_hooks_gradients_and_frozen_parameters(case):
    module = case.make()
    step(case, module)
    first = next(iter(module.parameters())).requires_grad_(False)
    module.register_forward_hook(_double)
    module.eval()
    other = copy.deepcopy(module)
    assert not other.training
    assert not next(iter(other.parameters())).requires_grad
    assert all(a.grad is None for a in other.parameters()) == all(
        a.grad is None for a in copy.deepcopy(case.twin()).parameters()
    )
    assert first.grad is not None
    assert_identical(case(other, case.input()), case(module, case.input()), "hooked")
    assert len(other._forward_hooks) == 1


def _ignore(*_arguments):
    return None


def _double(_module, _args, output):
    return output * 2


@CASES
def test_a_copy_taken_between_forward_and_backward_changes_nothing(case):
    expected = step(case, case.make())
    module, x = case.make(), case.input()
    output = case(module, x)
    copy.deepcopy(module)
    copy.copy(module)
    output.backward(output_gradient(output))
    assert_same(collect(module, x, output), expected)


@CASES
@pytest.mark.parametrize("through_file", [False, True])
def test_state_dicts_carry_everything_over(case, through_file):
    module = case.make()
    for _ in range(2):
        step(case, module)
    state = module.state_dict()
    if through_file:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
    other = case.make(seed=40)
    incompatible = other.load_state_dict(state)
    assert not incompatible.missing_keys
    assert not incompatible.unexpected_keys
    assert_same(step(case, other), step(case, module))


@PLAIN
def test_a_class_may_be_exchanged(case):
    module = case.make()
    module(case.input())
    base = type(module)
    module.__class__ = type("Doubles", (base,), {"forward": lambda s, x: base.forward(s, x) * 2})
    assert_identical(module(case.input()), case.make()(case.input()) * 2, "output")


@pytest.mark.usefixtures("quick_collection")
@DTYPES
@pytest.mark.parametrize("conversion", ["swap", "overwrite"])
def test_torchs_ways_to_convert_parameters_work(case, conversion):
    setting = getattr(torch.__future__, f"set_{conversion}_module_params_on_conversion")
    module = case.make()
    step(case, module)
    module.zero_grad()
    gc.collect()
    setting(True)
    try:
        module.to(torch.float16)
        module.load_state_dict(module.state_dict())
    finally:
        setting(False)
    x = case.input().detach().half()
    assert_identical(module(x), case.make().half()(x), "output")


# ---- lifetime ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick_collection")
@CASES
@pytest.mark.parametrize("when", ["unused", "with graph", "after backward", "in evaluation"])
def test_a_module_dies_with_its_last_reference(case, when):
    module, output = case.make(), None
    parameters = [weakref.ref(parameter) for parameter in module.parameters()]
    if when == "in evaluation":
        with torch.no_grad():
            case(module, case.input())
    elif when != "unused":
        output = case(module, case.input())
    if when == "after backward":
        output.sum().backward()
        output = None
    died = weakref.ref(module)
    del module
    gc.collect()
    assert died() is None
    if output is not None:
        assert any(parameter() is not None for parameter in parameters)  # the graph needs them
        output.sum().backward()
        del output
        gc.collect()
    assert all(parameter() is None for parameter in parameters)


@pytest.mark.usefixtures("quick_collection")
@CASES
def test_a_module_in_a_cycle_is_collected(case):
    module = case.make()
    module.cycle = [module]
    module.register_forward_hook(functools.partial(_ignore, module))
    module.forward = module.forward  # a bound method: another cycle
    step(case, module)
    died = weakref.ref(module)
    del module
    gc.collect()
    assert died() is None


@pytest.mark.usefixtures("quick_collection")
@CASES
def test_inputs_and_outputs_die_after_backward(case):
    module = case.make()
    for _ in range(2):
        x = case.input()
        output = case(module, x)
        references = [weakref.ref(x), weakref.ref(output)]
        output.sum().backward()
        del x, output
        gc.collect()
        assert [reference() for reference in references] == [None] * 2


@pytest.mark.usefixtures("quick_collection")
@CASES
def test_repeated_calls_keep_the_number_of_objects(case):
    module = case.make()

    def count():
        for _ in range(3):
            step(case, module)
        gc.collect()
        return len(gc.get_objects())

    count()
    first = count()
    assert count() <= first + 2  # noise of the interpreter's own caches


# ---- threads and processes -----------------------------------------------------------------------


def in_threads(*bodies):
    """Run all at once; the results, or the first exception."""
    results = [None] * len(bodies)
    start = threading.Barrier(len(bodies))

    def run(index):
        start.wait()
        try:
            results[index] = bodies[index]()
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@CASES
def test_threads_may_run_different_modules(case):
    modules = [case.make(seed=7 + 10 * index) for index in range(3)]
    if case.recipe == "delayed":
        expected = [case(case.make(seed=7 + 10 * index), case.input()) for index in range(3)]
        found = in_threads(*[lambda m=m: case(m, case.input()) for m in modules])
        for value, other in zip(found, expected, strict=True):
            assert_identical(value, other, "output")
        return
    expected = [step(case, case.make(seed=7 + 10 * index)) for index in range(3)]

    def repeat(module):
        return [step(case, module) for _ in range(8)]

    for results, reference in zip(
        in_threads(*[lambda m=m: repeat(m) for m in modules]), expected, strict=True
    ):
        for result in results:
            assert_same(result, reference)


@pytest.mark.parametrize("case", [c for c in ALL_CASES if c.recipe != "delayed"], ids=str)
def test_threads_may_run_the_same_module(case):
    module = case.make()  # made in one of them: the first calls race for the step
    expected = step(case, case.make())
    names = [name for name, _ in module.named_parameters()]

    def repeat():
        for _ in range(8):
            x = case.input()
            output = case(module, x)
            grads = torch.autograd.grad(output, [x, *module.parameters()], output_gradient(output))
            found = dict(zip(["inp", *names], grads, strict=True))
            assert_same({"output": output.detach(), **found}, expected)

    in_threads(repeat, repeat, repeat)


@pytest.mark.parametrize("case", [c for c in QUANTIZED_CASES if c.recipe == "current"], ids=str)
def test_threads_may_renew_one_modules_cached_weight(case):
    module = case.make()
    expected = step(case, case.make())

    def repeat(offset):
        for index in range(30):
            x = case.input()
            output = case(module, x, is_first_microbatch=(index + offset) % 2 == 0)
            (grad,) = torch.autograd.grad(output, x, output_gradient(output))
            assert_identical(output, expected["output"], "output")
            assert_identical(grad, expected["inp"], "gradient")

    in_threads(*[lambda offset=offset: repeat(offset) for offset in range(4)])


def test_a_thread_has_its_own_region():
    case = PLAIN_CASES[0]
    module = case.make()
    plain = module(case.input())
    with te.autocast(recipe=RECIPES["current"]):
        quantized = case.make()(case.input())
    assert not torch.equal(plain, quantized)
    inside = threading.Event()
    done = threading.Event()

    def with_region():
        with te.autocast(recipe=RECIPES["current"]):
            inside.set()
            assert done.wait(60)
            return case.make()(case.input())

    def without():
        assert inside.wait(60)
        output = module(case.input())
        done.set()
        return output

    found = in_threads(with_region, without)
    assert_identical(found[0], quantized, "inside")
    assert_identical(found[1], plain, "outside")


def test_gradient_modes_of_one_thread_do_not_reach_another():
    case = PLAIN_CASES[0]
    module = case.make()
    with torch.no_grad():
        outputs = in_threads(lambda: module(case.input()), lambda: module(case.input()))
        assert not module(case.input()).requires_grad
    assert all(output.requires_grad for output in outputs)


SPAWN = """
import torch
import torch.multiprocessing as multiprocessing
import transformer_engine.pytorch as te
from transformer_engine.common.recipe import Float8CurrentScaling


def child(rank, modules, queue):
    x = torch.ones(2, 16)
    with te.autocast(recipe=Float8CurrentScaling()):
        queue.put([module(x).tolist() for module in modules])
    with torch.no_grad():
        modules[0].weight.zero_()


if __name__ == "__main__":
    modules = [
        te.Linear(16, 16, device="cpu"),
        te.LayerNormMLP(16, 16, device="cpu"),
        te.LayerNorm(16, device="cpu"),
    ]
    with te.autocast(recipe=Float8CurrentScaling()):
        expected = [module(torch.ones(2, 16)).tolist() for module in modules]
    for module in modules:
        module.share_memory()
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(child, args=(modules, queue), nprocs=1)
    assert queue.get() == expected
    assert torch.count_nonzero(modules[0].weight) == 0
    assert torch.count_nonzero(modules[0](torch.ones(2, 16))) == 0
    print("done")
"""


@pytest.mark.slow
def test_used_modules_go_to_spawned_processes(tmp_path):
    script = tmp_path / "spawn.py"
    script.write_text(SPAWN)
    root = Path(te.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment
    )
    assert process.stdout == "done\n", process.stderr
