# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tensors of other classes as inputs, weights and gradients; torch's global settings; profiles."""

import pytest
import torch
from torch.utils._pytree import tree_map

from helpers.behaviour import ALL_CASES, PLAIN_CASES, QUANTIZED_CASES, outcome
from helpers.modules import IN, assert_same, collect, output_gradient
from helpers.tolerances import assert_identical

pytestmark = pytest.mark.usefixtures("one_thread")

CASES = pytest.mark.parametrize("case", ALL_CASES, ids=str)
PLAIN = pytest.mark.parametrize("case", PLAIN_CASES, ids=str)
QUANTIZED = pytest.mark.parametrize("case", QUANTIZED_CASES, ids=str)


def step(case, module=None, x=None, grad=None):
    """One forward and backward in the case's region: output, input gradient and parameters'."""
    module = module or case.make()
    x = case.input() if x is None else x
    output = case(module, x)
    output.backward(output_gradient(output) if grad is None else grad)
    return collect(module, x, output)


class Marked(torch.Tensor):
    """A subclass without methods: results of torch's functions are of it too."""


class Wrapped(torch.Tensor):
    """Has no data of its own; every operator runs on what it wraps."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def unwrap(value):
            return value.inner if isinstance(value, Wrapped) else value

        result = func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs or {}))
        return tree_map(lambda v: Wrapped(v) if isinstance(v, torch.Tensor) else v, result)


def as_marked(tensor):
    return tensor.detach().as_subclass(Marked)


def unmarked(tensor):
    return tensor.detach().as_subclass(torch.Tensor)


# ---- other classes -------------------------------------------------------------------------------


@PLAIN
@pytest.mark.parametrize("make", [as_marked, lambda x: Wrapped(x.detach())], ids=["plain", "wrap"])
@pytest.mark.parametrize("where", ["input", "weight", "every parameter"])
def test_the_outputs_class_is_the_twins(case, make, where):
    found = []
    for module in (case.make(), case.twin()):
        x = case.input().detach()
        if where == "input":
            x = make(x)
        for name, parameter in list(module.named_parameters()):
            if where == "every parameter" or (where == "weight" and name == case.weight_name):
                setattr(module, name, torch.nn.Parameter(make(parameter)))
                assert type(getattr(module, name)) is type(make(parameter))
        found.append(type(case(module, x)))
    assert found[0] is found[1]
    assert issubclass(found[0], (Marked, Wrapped))


@PLAIN
def test_gradients_reach_leaves_of_a_subclass(case):
    found = []
    for module in (case.make(), case.twin()):
        x = as_marked(case.input()).requires_grad_()
        module(x).sum().backward()
        found.append((type(x.grad), [type(p.grad) for p in module.parameters()]))
        assert all(torch.count_nonzero(p.grad) for p in module.parameters())
    assert found[0] == found[1]


@CASES
def test_parameters_and_buffers_are_plain_inputs(case):
    expected = step(case)
    parameter = torch.nn.Parameter(case.input().detach())
    results = step(case, x=parameter)
    assert_same(results, expected)
    output = case(case.make(), parameter)
    assert type(output) is torch.Tensor
    buffer = torch.nn.Buffer(case.input().detach())
    assert_identical(case(case.make(), buffer), expected["output"], "buffer")


@QUANTIZED
@pytest.mark.parametrize("make", [as_marked, lambda x: Wrapped(x.detach())], ids=["plain", "wrap"])
def test_a_quantized_region_refuses_other_classes_and_stays_usable(case, make):
    module = case.make()
    with pytest.raises(NotImplementedError, match=r"forward: inp is a (Marked|Wrapped); inside a"):
        case(module, make(case.input()))
    assert_same(step(case, module), step(case))


@CASES
def test_an_outputs_gradient_of_a_class_without_data_is_refused(case):
    output = case(case.make(), case.input())
    with pytest.raises(RuntimeError, match="is a Wrapped; a plain tensor or a quantized tensor"):
        output.backward(Wrapped(output_gradient(output)))


@PLAIN
def test_an_outputs_gradient_of_a_plain_subclass_is_its_values(case):
    grad = output_gradient(case.make()(case.input()))
    found = step(case, grad=as_marked(grad))
    assert_same({name: unmarked(value) for name, value in found.items()}, step(case, grad=grad))


# ---- views and strides ---------------------------------------------------------------------------

VIEWS = {
    "transposed": lambda x: x.t().contiguous().t(),
    "strided": lambda x: torch.stack([x, x], -1)[..., 0],
    "expanded": lambda x: x[:1].expand(6, IN),
    "offset": lambda x: torch.cat([x, x])[3:9],
    "reshaped": lambda x: x.view(2, 3, IN).transpose(0, 1),
    "conjugate": lambda x: torch.complex(x.float(), x.float()).real.to(x.dtype),
}


@CASES
@pytest.mark.parametrize("view", VIEWS)
def test_an_input_may_be_any_view(case, view):
    results = []
    for contiguous in (False, True):
        leaf = case.input()
        x = VIEWS[view](leaf)
        module = case.make()
        output = case(module, x.contiguous() if contiguous else x)
        output.backward(output_gradient(output))
        results.append(collect(module, leaf, output))
    assert_same(*results)


@CASES
def test_an_unused_part_of_an_input_stays_without_gradient(case):
    leaf = case.input(8, IN)
    module = case.make()
    output = case(module, leaf[1:7])
    output.backward(output_gradient(output))
    assert torch.count_nonzero(leaf.grad[[0, 7]]) == 0
    expected = step(case, x=leaf.detach()[1:7].requires_grad_())
    assert_identical(leaf.grad[1:7], expected["inp"], "gradient")


# ---- torch's settings ----------------------------------------------------------------------------


@CASES
def test_the_default_dtype_changes_nothing_after_construction(case):
    module, expected = case.make(), step(case)
    torch.set_default_dtype(torch.float64)
    try:
        assert_same(step(case, module), expected)
    finally:
        torch.set_default_dtype(torch.float32)


@CASES
def test_a_default_device_changes_nothing_after_construction(case):
    module, x, expected = case.make(), case.input(), step(case)
    grad = output_gradient(expected["output"])
    with torch.device("meta"):
        results = step(case, module, x, grad)
    assert_same(results, expected)


@CASES
def test_deterministic_algorithms_give_the_same_bits(case):
    expected = step(case)
    torch.use_deterministic_algorithms(True)
    try:
        assert_same(step(case), expected)
    finally:
        torch.use_deterministic_algorithms(False)


@CASES
@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_changes_no_bit(case, threads):
    expected = step(case)
    torch.set_num_threads(threads)
    assert_same(step(case), expected)


@PLAIN
@pytest.mark.parametrize(
    "value",
    [torch.ones(2, 7), torch.tensor(1.0), torch.ones(IN), torch.ones(0, IN), torch.ones(2, 0, IN)],
    ids=lambda value: str(tuple(value.shape)),
)
def test_shapes_are_accepted_where_the_twin_accepts_them(case, value):
    found = outcome(lambda: case.make()(value))
    expected = outcome(lambda: case.twin()(value))
    if isinstance(expected, type):  # other errors have other types: here the arguments are named
        assert found is ValueError
    else:
        assert found == expected


# ---- profiles ------------------------------------------------------------------------------------


@CASES
def test_a_profile_of_backward_names_the_node(case):
    module = case.make()
    output = case(module, case.input())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        output.sum().backward()
    names = [event.key for event in profile.key_averages()]
    assert names.count(output.grad_fn.name()) == 1


@CASES
def test_profiling_changes_no_bit(case):
    expected = step(case)
    with torch.profiler.profile(record_shapes=True, with_stack=True):
        assert_same(step(case), expected)
