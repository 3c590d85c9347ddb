# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reparametrized, pruned, tied, replaced, frozen and cast parameters act as on torch's modules."""

import pytest
import torch
from torch.nn.utils import parametrizations, parametrize, prune

from helpers.behaviour import ALL_CASES, DTYPE_CASES, PLAIN_CASES, QUANTIZED_CASES, Case
from helpers.modules import IN, OUT, assert_same, collect, make, output_gradient
from helpers.tolerances import assert_identical

pytestmark = pytest.mark.usefixtures("one_thread")

CASES = pytest.mark.parametrize("case", ALL_CASES, ids=str)
DTYPES = pytest.mark.parametrize("case", DTYPE_CASES, ids=str)
PLAIN = pytest.mark.parametrize("case", PLAIN_CASES, ids=str)
QUANTIZED = pytest.mark.parametrize("case", QUANTIZED_CASES, ids=str)


def step(case, module, retain_graph=False):
    """One forward and backward in the case's region: output, input gradient and parameters'."""
    x = case.input()
    module.zero_grad()
    output = case(module, x)
    output.backward(output_gradient(output), retain_graph=retain_graph)
    return collect(module, x, output)


class Doubled(torch.nn.Module):
    def forward(self, values):
        return values * 2

    def right_inverse(self, values):
        return values / 2


# ---- reparametrization ---------------------------------------------------------------------------

REPARAMETRIZATIONS = {
    "custom": lambda module, name: parametrize.register_parametrization(module, name, Doubled()),
    "weight norm": lambda module, name: parametrizations.weight_norm(module, name),
    "spectral norm": lambda module, name: parametrizations.spectral_norm(module, name),
    "old weight norm": lambda module, name: torch.nn.utils.weight_norm(module, name),
    "pruned": lambda module, name: prune.l1_unstructured(module, name, 0.5),
    "pruned twice": lambda module, name: prune.random_unstructured(
        prune.l1_unstructured(module, name, 0.5), name, 3
    ),
}


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
@CASES
@pytest.mark.parametrize("how", REPARAMETRIZATIONS)
def test_a_reparametrized_weight_is_the_plain_weight_and_passes_its_gradient_on(case, how):
    others = {name for name, _ in case.make().named_parameters()} - {case.weight_name}
    module = case.make().eval()  # spectral norm's power iterations stand still
    REPARAMETRIZATIONS[how](module, case.weight_name)
    results = step(case, module, retain_graph=True)
    weight = getattr(module, case.weight_name)
    plain = case.make()
    with torch.no_grad():
        plain.get_parameter(case.weight_name).copy_(weight)
    expected = step(case, plain)
    grad = expected.pop(case.weight_name)
    sources = {name: p for name, p in module.named_parameters() if name not in others}
    assert sources
    for name, value in zip(
        sources, torch.autograd.grad(weight, list(sources.values()), grad), strict=True
    ):
        expected[name] = value
    assert_same(results, expected)
    assert torch.count_nonzero(grad)


@PLAIN
def test_a_weight_reparametrized_after_a_forward_counts_from_the_next(case):
    module = case.make()
    before = module(case.input())
    prune.l1_unstructured(module, case.weight_name, 0.5)
    assert not torch.equal(module(case.input()), before)


@PLAIN
def test_parametrizations_come_and_go(case):
    module, twin = case.make(), case.twin()
    before = module(case.input())
    for current in (module, twin):
        parametrize.register_parametrization(current, case.weight_name, Doubled())
    assert_identical(module(case.input()), before, "parametrized")
    assert [name for name, _ in module.named_parameters()] == [
        name for name, _ in twin.named_parameters()
    ]
    with parametrize.cached():
        assert_identical(module(case.input()), before, "cached")
    setattr(module, case.weight_name, torch.zeros_like(getattr(module, case.weight_name)))
    assert not torch.equal(module(case.input()), before)
    parametrize.remove_parametrizations(module, case.weight_name)
    parametrize.remove_parametrizations(twin, case.weight_name)
    assert type(module) is type(case.make())
    assert list(dict(module.named_parameters())) == list(dict(twin.named_parameters()))
    assert torch.count_nonzero(module.get_parameter(case.weight_name)) == 0


@PLAIN
def test_pruning_can_be_made_permanent(case):
    module = case.make()
    prune.l1_unstructured(module, case.weight_name, 0.5)
    output = module(case.input())
    prune.remove(module, case.weight_name)
    assert_identical(module(case.input()), output, "output")
    parameter = module.get_parameter(case.weight_name)
    assert torch.count_nonzero(parameter) == parameter.numel() // 2
    assert not prune.is_pruned(module)


# ---- replaced and tied ---------------------------------------------------------------------------


@CASES
@pytest.mark.parametrize("how", ["assigned", "registered", "data", "state dict"])
def test_a_replaced_parameter_counts_from_the_next_call(case, how):
    module, other = case.make(), case.make(seed=20)
    x = case.input()
    case(module, x)
    case(other, x)  # equal scaling state
    for name, parameter in other.named_parameters():
        if how == "assigned":
            setattr(module, name, torch.nn.Parameter(parameter.detach().clone()))
        elif how == "registered":
            module.register_parameter(name, torch.nn.Parameter(parameter.detach().clone()))
        elif how == "data":
            getattr(module, name).data = parameter.detach().clone()
    if how == "state dict":
        module.load_state_dict(
            {name: parameter.detach() for name, parameter in other.named_parameters()},
            assign=True,
        )
    if case.recipe == "delayed":  # the amaxes seen so far are those of other weights
        module.load_state_dict({"_extra_state": other.get_extra_state()}, strict=False)
    assert_same(step(case, module), step(case, other))


@PLAIN
@pytest.mark.parametrize("kind", ["plain tensor", "non-leaf", "buffer"])
def test_a_weight_need_not_be_a_parameter(case, kind):
    module, x = case.make(), case.input()
    expected = step(case, case.make())
    leaf = module.get_parameter(case.weight_name)
    delattr(module, case.weight_name)
    with pytest.raises(AttributeError, match=case.weight_name):
        module(x)
    if kind == "buffer":
        module.register_buffer(case.weight_name, leaf.detach().clone())
    elif kind == "plain tensor":
        setattr(module, case.weight_name, leaf.detach().clone())
    else:
        setattr(module, case.weight_name, leaf * 1)
    results = step(case, module)
    grad = expected.pop(case.weight_name)
    assert_same(results, expected)
    if kind == "non-leaf":
        assert_identical(leaf.grad, grad, "gradient")


@CASES
def test_tied_weights_get_the_sum_of_both_gradients(case):
    first, second = case.make(), case.make()
    setattr(second, case.weight_name, getattr(first, case.weight_name))
    alone, also = step(case, case.make()), step(case, case.make())
    first.zero_grad()
    for module in (first, second):
        output = case(module, case.input())
        output.backward(output_gradient(output))
    total = alone[case.weight_name] + also[case.weight_name]
    assert_identical(getattr(first, case.weight_name).grad, total, "gradient")


def test_one_weight_serves_as_embedding_and_head():
    head = make("Linear", bias=False)
    embedding = torch.nn.Embedding(OUT, IN)
    embedding.weight = head.weight
    tokens = torch.tensor([3, 5, 3])
    output = head(embedding(tokens))
    grad = output_gradient(output)
    output.backward(grad)
    leaf = head.weight.detach().clone().requires_grad_()
    plain = make("Linear", bias=False)
    rows = torch.nn.functional.embedding(tokens, leaf)
    inner = rows.detach().requires_grad_()
    plain(inner).backward(grad)
    rows.backward(inner.grad)
    assert_identical(head.weight.grad, plain.weight.grad + leaf.grad, "gradient")


@pytest.mark.parametrize("kind", ["Linear", "LayerNormLinear", "LayerNormMLP"])
def test_a_bias_can_be_taken_away_and_put_back(kind):
    module, x = make(kind), Case(kind).input()
    name = "fc2_bias" if kind == "LayerNormMLP" else "bias"
    bias = getattr(module, name)
    with_bias = module(x)
    setattr(module, name, None)
    zero = make(kind)
    with torch.no_grad():
        getattr(zero, name).zero_()
    assert_identical(module(x), zero(x), "without")
    setattr(module, name, bias)
    assert_identical(module(x), with_bias, "with")


@PLAIN
def test_a_weight_of_another_shape_is_refused_in_the_next_call(case):
    module = case.make()
    module(case.input())
    setattr(module, case.weight_name, torch.nn.Parameter(torch.ones(5, 5, 5)))
    with pytest.raises(ValueError, match=rf"parameter {case.weight_name} has shape \[5, 5, 5\]"):
        module(case.input())


# ---- casts ---------------------------------------------------------------------------------------


@PLAIN
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_cast_module_is_a_module_made_in_that_dtype(case, dtype):
    module = case.make()
    module(case.input())
    assert module.to(dtype) is module
    fresh = case.make().to(dtype)
    made = Case(case.kind, dtype).make()
    made.load_state_dict(module.state_dict())
    expected = step(Case(case.kind, dtype), made)
    assert all(value.dtype == dtype for value in expected.values())
    assert_same(step(Case(case.kind, dtype), module), expected)
    assert_same(step(Case(case.kind, dtype), fresh), expected)
    for name, parameter in module.named_parameters():
        assert_identical(parameter, case.make().get_parameter(name).to(dtype), name)


@CASES
def test_float64_is_refused_by_name_and_casting_back_works(case):
    module = case.make()
    expected = step(case, case.make())
    module.double()
    with pytest.raises(TypeError, match=f"{case.input_name} has dtype Double; float32, float16 or"):
        case(module, case.input().double())
    if not case.kind.endswith("Norm"):
        with pytest.raises(TypeError, match="has dtype Double and the input"):
            case(module, case.input())
    module.to(case.dtype)
    assert_same(step(case, module), expected)


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
def test_norms_refuse_float64_weights(kind):
    with pytest.raises((TypeError, ValueError), match=r"Double|float64"):
        make(kind).double()(Case(kind).input())


@PLAIN
def test_apply_reaches_the_parameters(case):
    module = case.make()
    module(case.input())
    seen = []

    def zero(child):
        seen.append(child)
        for parameter in child.parameters(recurse=False):
            torch.nn.init.zeros_(parameter)

    module.apply(zero)
    assert seen == [module]
    assert torch.count_nonzero(module(case.input())) == 0


@CASES
def test_zero_grad_and_accumulation(case):
    module, expected = case.make(), step(case, case.make())
    module.zero_grad()
    assert all(parameter.grad is None for parameter in module.parameters())
    output = case(module, case.input())
    grad = output_gradient(output)
    output.backward(grad)
    for name, parameter in module.named_parameters():
        assert_identical(parameter.grad, expected[name], name)
    kept = {name: parameter.grad for name, parameter in module.named_parameters()}
    if case.recipe == "plain":
        case(module, case.input()).backward(grad)
        for name, parameter in module.named_parameters():
            assert parameter.grad is kept[name]
            assert_identical(parameter.grad, 2 * expected[name], name)
    module.zero_grad(set_to_none=False)
    assert all(torch.count_nonzero(parameter.grad) == 0 for parameter in module.parameters())


@CASES
def test_train_and_eval_compute_the_same(case):
    module = case.make()
    assert module.training
    assert module.eval() is module
    assert not module.training
    results = step(case, module)
    assert_same(results, step(case, case.make()))


# ---- frozen parameters ---------------------------------------------------------------------------


def subsets(names):
    """None, each, all but each, all."""
    alone = [{name} for name in names]
    return [set(), *alone, *[set(names) - name for name in alone], set(names)]


def saved_by(case, module, x):
    """What a forward keeps: parameters by name, "x", anything else by its number of elements."""
    known = {parameter.data_ptr(): name for name, parameter in module.named_parameters()}
    known[x.data_ptr()] = "x"
    kept = []

    def pack(tensor):
        kept.append(known.get(tensor.data_ptr(), f"{tensor.numel()}"))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = case(module, x)
    return sorted(kept), output


@DTYPES
@pytest.mark.parametrize("wants_input", [True, False])
def test_frozen_parameters_save_no_more_than_the_twin(case, wants_input):
    names = [name for name, _ in case.make().named_parameters()]
    for frozen in subsets(names):
        kept = []
        for module in (case.make(), case.twin()):
            for name in frozen:
                module.get_parameter(name).requires_grad_(False)
            x = case.input().detach().requires_grad_(wants_input)
            saved, output = saved_by(case, module, x)
            assert output.requires_grad == (wants_input or len(frozen) < len(names))
            kept.append(saved)
        beta = "bias" if case.kind == "LayerNorm" else "layer_norm_bias"
        expected = [name for name in kept[1] if name != beta]  # torch keeps it for its double
        if case.kind == "RMSNorm":  # torch's own has no fused kernel here, and keeps more
            expected = expected and ["6", "weight", "x"]
        assert kept[0] == expected, f"frozen {frozen}"


@QUANTIZED
def test_frozen_weights_save_no_quantized_input(case):
    names = [name for name, _ in case.make().named_parameters()]
    weights = [name for name in names if case.make().get_parameter(name).dim() == 2]
    for frozen in subsets(weights):
        module = case.make()
        for name in frozen:
            module.get_parameter(name).requires_grad_(False)
        kept = []

        def pack(tensor, kept=kept):
            kept.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            case(module, case.input())
        codes = [tensor for tensor in kept if tensor.dtype == torch.uint8]
        inputs = [tensor for tensor in codes if tensor.shape[0] == 6]
        assert len(inputs) == len(weights) - len(frozen)
        assert len(codes) == len(inputs) + len(weights)  # each weight, for the input's gradient


@CASES
def test_frozen_parameters_get_no_gradient_and_change_nothing_for_the_others(case):
    expected = step(case, case.make())
    names = [name for name, _ in case.make().named_parameters()]
    for frozen in subsets(names):
        module = case.make()
        for name in frozen:
            module.get_parameter(name).requires_grad_(False)
        assert_same(
            step(case, module),
            {name: value for name, value in expected.items() if name not in frozen},
        )


@CASES
def test_freezing_between_forward_and_backward_acts_as_on_the_twin(case):
    outcomes = []
    for module in (case.make(), case.twin()):
        x = case.input()
        output = case(module, x)
        module.requires_grad_(False)
        output.sum().backward()
        outcomes.append([parameter.grad is None for parameter in module.parameters()])
    assert outcomes[0] == outcomes[1]
