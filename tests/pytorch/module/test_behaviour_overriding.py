# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Subclasses, patched methods, the forms of a call, and attributes changed between calls."""

import functools
import inspect
import types

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.behaviour import ALL_CASES, PLAIN_CASES, QUANTIZED_CASES, Case, describe, outcome
from helpers.modules import FFN, IN, OUT, assert_same, make, make_input, randomize, run
from helpers.tolerances import assert_identical

pytestmark = pytest.mark.usefixtures("one_thread")

CASES = pytest.mark.parametrize("case", ALL_CASES, ids=str)
PLAIN = pytest.mark.parametrize("case", PLAIN_CASES, ids=str)
SIZES = {
    te.Linear: (IN, OUT),
    te.LayerNormLinear: (IN, OUT),
    te.LayerNormMLP: (IN, FFN),
    te.LayerNorm: (IN,),
    te.RMSNorm: (IN,),
}


def subclass_module(case, **methods):
    """A module of a subclass with those methods, and the parameters of `case.make()`."""
    base = type(case.make())
    module = type("Derived", (base,), methods)(*SIZES[base], device=torch.get_default_device()).to(
        case.dtype
    )
    module.load_state_dict(case.make().state_dict())
    return module


# ---- overriding ----------------------------------------------------------------------------------


@CASES
def test_a_subclass_may_extend_forward(case):
    base = type(case.make())
    module = subclass_module(case, forward=lambda self, x: base.forward(self, x * 2) + 1)
    x = case.input()
    assert_identical(case(module, x), case(case.make(), x * 2) + 1, "output")


@PLAIN
def test_a_subclass_may_replace_forward_and_take_other_arguments(case):
    module = subclass_module(case, forward=lambda _self, a, *, b: (b, a))
    assert module(1, b=2) == (2, 1)


@CASES
def test_a_subclass_may_override_call(case):
    base = type(case.make())
    calls = []

    def call(self, *args, **kwargs):
        calls.append(args)
        return base.__call__(self, *args, **kwargs)

    module = subclass_module(case, __call__=call)
    x = case.input()
    assert_identical(case(module, x), case(case.make(), x), "output")
    assert len(calls) == 1


@PLAIN
def test_a_subclass_without_methods_is_the_class(case):
    assert_same(run(subclass_module(case), case.input()), run(case.make(), case.input()))


@PLAIN
def test_a_subclass_of_several_bases_finds_forward_in_their_order(case):
    class Doubles:
        def forward(self, x):
            return super().forward(x) * 2

    base = type(case.make())
    module = type("Mixed", (Doubles, base), {})(*SIZES[base], device=torch.get_default_device())
    module.load_state_dict(case.make().state_dict())
    x = case.input()
    assert_identical(module(x), case.make()(x) * 2, "output")


@CASES
def test_forward_may_be_replaced_on_the_instance(case):
    module, plain, x = case.make(), case.make(), case.input()
    assert_identical(case(module, x), case(plain, x), "before")
    original = module.forward
    module.forward = lambda x: original(x) * 2
    assert_identical(case(module, x), case(plain, x) * 2, "replaced")
    del module.forward
    assert_identical(case(module, x), case(plain, x), "restored")


@PLAIN
def test_forward_may_be_a_bound_method_or_partial_of_the_instance(case):
    module, x = case.make(), case.input()
    expected = module(x) * 2
    module.forward = types.MethodType(lambda self, x: type(self).forward(self, x) * 2, module)
    assert_identical(module(x), expected, "method")
    module.forward = functools.partial(type(module).forward, module, x)
    assert_identical(module(), case.make()(x), "partial")


@PLAIN
def test_forward_may_be_patched_on_the_class(case, monkeypatch):
    module, x = case.make(), case.input()
    expected = module(x)
    base = type(module)
    original = base.forward
    monkeypatch.setattr(base, "forward", lambda self, x: original(self, x) * 2)
    assert_identical(module(x), expected * 2, "patched")
    monkeypatch.undo()
    assert_identical(module(x), expected, "restored")


@CASES
def test_forward_called_directly_skips_hooks(case):
    module, x = case.make(), case.input()
    module.register_forward_hook(lambda *_arguments: pytest.fail("the hook ran"))
    with case.region():
        output = module.forward(x)
    assert_identical(output, case(case.make(), x), "output")


@CASES
def test_a_module_inside_a_container_is_the_module(case):
    x = case.input()
    container = torch.nn.Sequential(torch.nn.Identity(), case.make())
    assert_identical(case(container, x), case(case.make(), x), "output")


# ---- the form of a call --------------------------------------------------------------------------


def bad_calls(case, x):
    name = case.input_name
    return {
        "nothing": ((), {}),
        "unknown keyword": ((x,), {"unknown": 1}),
        "twice": ((x,), {name: x}),
        "too many": ((x,) + (None,) * 9, {}),
        "another module's name": ((), {"x": x}),
    }


def python_error(case, args, kwargs):
    """What Python says for a function with forward's signature."""
    with pytest.raises(TypeError) as info:
        inspect.signature(case.make().forward).bind(*args, **kwargs)
    return info.type


@PLAIN
@pytest.mark.parametrize("form", bad_calls(PLAIN_CASES[0], None))
def test_wrong_arguments_are_type_errors_on_every_path(case, form):
    args, kwargs = bad_calls(case, case.input())[form]
    expected = python_error(case, args, kwargs)
    module = case.make()
    for call in (module, module.forward):
        with pytest.raises(expected, match=r"forward\(\)"):
            call(*args, **kwargs)
    module.register_forward_hook(lambda *_arguments: None)  # the path of torch.nn.Module
    with pytest.raises(expected, match=r"forward\(\)"):
        module(*args, **kwargs)


@CASES
def test_the_input_may_be_given_by_name(case):
    x = case.input()
    keyword = case.make()
    expected = case(case.make(), x)
    assert_identical(case(keyword, **{case.input_name: x}), expected, "keyword")
    name = "".join([case.input_name[:1], case.input_name[1:]])  # equal, but not interned
    assert_identical(case(case.make(), **{name: x}), expected, "not interned")


@PLAIN
def test_an_input_of_another_type_is_a_type_error(case):
    for value in (None, 1.5, [1.0] * IN, "text", case.make()):
        with pytest.raises(TypeError, match=f"forward: {case.input_name} has type"):
            case.make()(value)


@PLAIN
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
def test_a_sparse_input_ends_as_the_twins(case, layout):
    x = case.input().detach().to_sparse(layout=layout)
    found = outcome(lambda: case.make()(x))
    assert found == outcome(lambda: case.twin()(x))
    assert (found == describe(case.make()(case.input()))) == (case.kind == "Linear")


@PLAIN
def test_the_signature_is_introspectable(case):
    module = case.make()
    assert next(iter(inspect.signature(module.forward).parameters)) == case.input_name
    assert callable(module)
    assert isinstance(module, torch.nn.Module)


# ---- attributes after the first forward ----------------------------------------------------------


@pytest.mark.parametrize("kind", ["LayerNormLinear", "LayerNormMLP", "LayerNorm", "RMSNorm"])
@pytest.mark.parametrize(("attribute", "value"), [("eps", 0.5), ("zero_centered_gamma", True)])
def test_norm_attributes_are_read_live(kind, attribute, value):
    module, x = make(kind), make_input()
    before = module(x)
    setattr(module, attribute, value)
    fresh = make(kind, **{attribute: value})
    fresh.load_state_dict(module.state_dict())
    assert_same(run(module, x), run(fresh, make_input()))
    assert not torch.equal(before, module(x))


@pytest.mark.parametrize("case", QUANTIZED_CASES + PLAIN_CASES[:3], ids=str)
def test_return_bias_is_read_live(case):
    module, x = case.make(), case.input()
    assert isinstance(case(module, x), torch.Tensor)
    module.return_bias = True
    output, bias = case(module, x)
    fresh = case.make(return_bias=True)
    case(fresh, x)  # delayed scaling: as many calls as `module` had
    assert_identical(output, case(fresh, x)[0], "output")
    assert bias is (module.fc2_bias if case.kind == "LayerNormMLP" else module.bias)
    module.return_bias = False
    assert isinstance(case(module, x), torch.Tensor)


@pytest.mark.parametrize("kind", ["LayerNormLinear", "LayerNormMLP"])
def test_normalization_and_its_output_are_read_live(kind):
    module, x = make(kind), make_input()
    module(x)
    module.return_layernorm_output = True
    assert_identical(
        module(x)[1], make(kind, return_layernorm_output=True)(x)[1], "return_layernorm_output"
    )
    module.return_layernorm_output = False
    module.normalization = "RMSNorm"
    fresh = make(kind, normalization="RMSNorm")
    fresh.load_state_dict(
        {key: value for key, value in module.state_dict().items() if key != "layer_norm_bias"}
    )
    assert_identical(module(x), fresh(x), "normalization")


def saved_numel(module, x):
    """Elements that a forward saves for backward."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        module(x)
    return sum(tensor.numel() for tensor in saved)


def test_activation_and_checkpoint_are_read_live():
    module, x = make("LayerNormMLP"), make_input()
    module(x)
    module.activation = "relu"
    assert_same(run(module, x), run(make("LayerNormMLP", activation="relu"), make_input()))
    before = saved_numel(module, x)
    module.checkpoint = True
    fresh = make("LayerNormMLP", activation="relu", checkpoint=True)
    assert saved_numel(module, x) == saved_numel(fresh, x) < before


@pytest.mark.parametrize("case", QUANTIZED_CASES + PLAIN_CASES[:3], ids=str)
def test_fuse_wgrad_accumulation_is_read_live(case):
    module, x = case.make(), case.input()
    case(module, x)
    module.fuse_wgrad_accumulation = True
    weights = [p for name, p in module.named_parameters() if p.dim() == 2]
    for weight in weights:
        weight.main_grad = torch.zeros(weight.shape)
    plain = case.make()
    case(plain, case.input())
    for current in (plain, module):
        output = case(current, x)
        output.backward(torch.ones_like(output))
    for weight, other in zip(weights, [p for p in plain.parameters() if p.dim() == 2], strict=True):
        assert torch.count_nonzero(weight.main_grad)
        assert_identical(weight.main_grad.to(case.dtype), other.grad, "main_grad")


@pytest.mark.parametrize("kind", ["Linear", "LayerNormLinear", "LayerNormMLP"])
def test_use_bias_is_read_live(kind):
    module, x = make(kind), make_input()
    module(x)
    module.use_bias = False
    fresh = make(kind, bias=False)
    fresh.load_state_dict(module.state_dict(), strict=False)
    assert_identical(module(x), fresh(x), "output")


@PLAIN
def test_attributes_of_the_users_are_kept(case):
    module = case.make()
    module.note = {"a": 1}
    module.child = torch.nn.ReLU()
    module.extra = torch.nn.Parameter(torch.ones(3))
    module.register_buffer("counter", torch.zeros(1))
    module.counter = torch.ones(1)
    assert module.note == {"a": 1}
    assert dict(module.named_children()) == {"child": module.child}
    assert "extra" in dict(module.named_parameters())
    assert_identical(module.state_dict()["counter"], torch.ones(1), "buffer")
    with pytest.raises(TypeError, match="cannot assign"):
        module.extra = 3
    module.extra = None
    assert "extra" not in dict(module.named_parameters())
    del module.counter, module.child
    assert "counter" not in module.state_dict()
    with pytest.raises(AttributeError, match="counter"):
        _ = module.counter
    assert_identical(module(case.input()), case.make()(case.input()), "output")


def test_randomized_modules_differ_from_fresh_ones():
    # What the comparisons above rest on: parameters that matter.
    module = te.Linear(IN, OUT, device=torch.get_default_device())
    before = module.weight.clone()
    randomize(module)
    assert not torch.equal(before, module.weight)
    assert Case("Linear").make().bias.abs().min() > 0
