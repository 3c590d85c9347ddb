# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Modes, graphs and saved tensors: what autograd offers on torch's modules, it offers here."""

import warnings

import pytest
import torch
from torch.autograd import graph

from helpers.behaviour import ALL_CASES, DTYPE_CASES, PLAIN_CASES, QUANTIZED_CASES, Case, describe
from helpers.modules import assert_same, collect, make, make_input, output_gradient
from helpers.tolerances import assert_identical

pytestmark = pytest.mark.usefixtures("one_thread")

CASES = pytest.mark.parametrize("case", ALL_CASES, ids=str)
DTYPES = pytest.mark.parametrize("case", DTYPE_CASES, ids=str)
PLAIN = pytest.mark.parametrize("case", PLAIN_CASES, ids=str)
QUANTIZED = pytest.mark.parametrize("case", QUANTIZED_CASES, ids=str)
NODE_NAMES = {
    "Linear": "LinearBackward",
    "LayerNormLinear": "LayerNormLinearBackward",
    "LayerNormMLP": "LayerNormMLPBackward",
    "LayerNorm": "LayerNormBackward",
    "RMSNorm": "RMSNormBackward",
}


def step(case, module=None, x=None, **keywords):
    """One forward and backward in the case's region: output, input gradient and parameters'."""
    module = module or case.make()
    x = case.input() if x is None else x
    module.zero_grad()
    output = case(module, x)
    output.backward(output_gradient(output), **keywords)
    return collect(module, x, output)


def both(case):
    """The module and its twin."""
    return (case.make(), case.twin())


# ---- modes ---------------------------------------------------------------------------------------


@CASES
def test_gradient_modes_are_the_twins(case):
    seen = []
    for module in both(case):
        x = case.input()
        flags = []

        def call(module=module, x=x, flags=flags):
            output = case(module, x)
            flags.append((output.requires_grad, output.is_leaf, output.is_inference()))

        call()
        with torch.no_grad():
            call()
            with torch.enable_grad():
                call()
        with torch.inference_mode():
            call()
            with torch.inference_mode(False), torch.enable_grad():
                call()
            with torch.enable_grad():  # makes no difference inside inference mode
                call()
        with torch.set_grad_enabled(False):
            call()
        module.requires_grad_(False)
        call()
        x = x.detach()
        flags.append(case(module, x).requires_grad)
        seen.append(flags)
    assert seen[0] == seen[1]


@CASES
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_a_graph_the_output_is_the_same_and_nothing_is_saved(case, mode):
    expected = case(case.make(), case.input())
    saving = graph.saved_tensors_hooks(lambda _tensor: pytest.fail("saved"), lambda tensor: tensor)
    with saving, mode():
        output = case(case.make(), case.input())
    assert_identical(output, expected, "output")
    assert output.grad_fn is None


@DTYPES
def test_inference_tensors_are_refused_where_the_twin_refuses_them(case):
    with torch.inference_mode():
        x = case.input().detach() * 1
    module = case.make()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        case(module, x)
    module.requires_grad_(False)
    assert not case(module, x).requires_grad
    assert_same(step(case, module.requires_grad_()), step(case))


@CASES
def test_a_module_used_in_inference_mode_first_trains_afterwards(case):
    results = []
    for mode in (torch.inference_mode, torch.no_grad):
        module = case.make()
        with mode():
            case(module, case.input())
        results.append(step(case, module))
    assert_same(*results)


# ---- the graph -----------------------------------------------------------------------------------


@CASES
def test_the_node_has_a_name_and_the_twins_leaves(case):
    module, x = case.make(), case.input()
    output = case(module, x)
    assert output.grad_fn.name() == NODE_NAMES[case.kind]
    assert output.output_nr == 0
    assert not output._is_view()
    assert output._version == 0
    leaves = [node.variable for node, _ in output.grad_fn.next_functions]
    assert leaves[0] is x
    assert sorted(map(id, leaves[1:])) == sorted(map(id, module.parameters()))


@CASES
def test_a_second_backward_needs_a_kept_graph(case):
    module, x = case.make(), case.input()
    expected = step(case)
    output = case(module, x)
    grad = output_gradient(output)
    output.backward(grad, retain_graph=True)
    first = collect(module, x, output)
    assert_same(first, expected)
    x.grad = None
    module.zero_grad()
    output.backward(grad)
    if case.recipe != "delayed":  # whose scales have moved on
        assert_same(collect(module, x, output), expected)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        output.backward(grad)


@CASES
def test_gradients_can_be_asked_for_one_by_one(case):
    expected = step(case)
    names = [name for name, _ in case.make().named_parameters()]
    for name in ("inp", *names):
        module, x = case.make(), case.input()
        output = case(module, x)
        target = x if name == "inp" else module.get_parameter(name)
        unused = torch.ones(1, requires_grad=True)
        found, nothing = torch.autograd.grad(
            output, [target, unused], output_gradient(output), allow_unused=True
        )
        assert_identical(found, expected[name], name)
        assert nothing is None
        assert x.grad is None
        assert all(parameter.grad is None for parameter in module.parameters())


@CASES
def test_a_tensor_that_has_no_part_is_an_error(case):
    unused = torch.ones(1, requires_grad=True)
    output = case(case.make(), case.input())
    with pytest.raises(RuntimeError, match="appears to not have been used in the graph"):
        torch.autograd.grad(output.sum(), unused)


@CASES
def test_backward_into_chosen_inputs_only(case):
    expected = step(case)
    x, module = case.input(), case.make()
    assert_identical(step(case, module, x, inputs=[x])["inp"], expected["inp"], "inp")
    assert all(parameter.grad is None for parameter in module.parameters())


@CASES
def test_a_second_derivative_is_a_clear_error(case):
    x = case.input()
    output = case(case.make(), x)
    (grad,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    message = r"Backward: trying to differentiate twice a function that is differentiable once"
    with pytest.raises(RuntimeError, match=message):
        grad.sum().backward()


@CASES
@pytest.mark.parametrize("target", ["input", "parameter", "gradient"])
def test_a_second_derivative_through_another_path_is_an_error_too(case, target):
    """As with a residual connection: the engine visits only what leads to what is asked for."""
    module, x = case.make(), case.input()
    output = case(module, x)
    weight = output.detach().clone().requires_grad_()
    loss = (output * weight).sum() + x.square().sum()
    (grad,) = torch.autograd.grad(loss, x, create_graph=True)
    wanted = {"input": x, "parameter": next(module.parameters()), "gradient": weight}[target]
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(grad.sum(), wanted)


@CASES
def test_create_graph_changes_no_first_derivative(case):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*create_graph=True.*", category=UserWarning)
        found = step(case, create_graph=True)
    assert_same({name: value.detach() for name, value in found.items()}, step(case))


@CASES
def test_hooks_on_the_node_run_as_on_the_twins(case):
    logs = []
    for module in both(case):
        log = []
        output = case(module, case.input())

        def before(grads, log=log):
            log.append(("before", describe(grads)))

        def after(_inputs, outputs, log=log):
            log.append(("after", describe(outputs)))

        output.grad_fn.register_prehook(before)
        output.grad_fn.register_hook(after)
        output.sum().backward()
        logs.append(log)
    assert logs[0] == logs[1]
    assert [name for name, _ in logs[0]] == ["before", "after"]


@CASES
def test_hooks_on_the_node_replace_gradients(case):
    output = case(case.make(), case.input())
    expected = step(case)
    module, x = case.make(), case.input()
    output = case(module, x)
    output.grad_fn.register_hook(lambda grads, _outputs: tuple(grad * 2 for grad in grads))
    output.backward(output_gradient(output))
    found = collect(module, x, output)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert_identical(value, expected[name] * (1 if name == "output" else 2), name)


@CASES
def test_one_hook_for_several_gradients(case):
    seen = []
    for module in both(case):
        log = []
        handle = graph.register_multi_grad_hook(
            list(module.parameters()), lambda grads, log=log: log.append(describe(grads))
        )
        case(module, case.input()).sum().backward()
        handle.remove()
        seen.append(log)
    assert seen[0] == seen[1]
    assert len(seen[0]) == 1


@CASES
@pytest.mark.parametrize("form", ["expanded", "transposed", "strided"])
def test_the_outputs_gradient_may_have_any_strides(case, form):
    output = case(case.make(), case.input())
    grad = output_gradient(output)
    if form == "expanded":
        grad = grad[:1].expand(output.shape)
    elif form == "transposed":
        grad = grad.t().contiguous().t()
    else:
        grad = torch.stack([grad, grad], -1)[..., 0]
    assert not grad.is_contiguous()
    results = []
    for current in (grad, grad.contiguous()):
        module, x = case.make(), case.input()
        output = case(module, x)
        output.backward(current)
        results.append(collect(module, x, output))
    assert_same(*results)


@CASES
def test_anomaly_mode_names_the_node_and_the_forward(case):
    output_shape = case(case.make(), case.input()).shape
    with torch.autograd.set_detect_anomaly(True):
        output = case(case.make(), case.input())
        assert output.grad_fn.metadata["traceback_"]
        with (
            pytest.warns(UserWarning, match=f"Error detected in {NODE_NAMES[case.kind]}"),
            pytest.raises(RuntimeError, match=f"'{NODE_NAMES[case.kind]}' returned nan values"),
        ):
            output.backward(torch.full(output_shape, float("nan"), dtype=case.dtype))
        assert_same(step(case), step(case))  # nothing to object to


# ---- changes between forward and backward --------------------------------------------------------


def changed(case, module, change):
    """The type of what backward raises when `change(module, x)` came in between; else gradients."""
    leaf = case.input()
    x = leaf * 1
    output = case(module, x)
    grad = output_gradient(output)
    with torch.no_grad():
        change(module, x)
    try:
        output.backward(grad)
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return RuntimeError
    return collect(module, leaf, output)


CHANGES = {
    "input": lambda _module, x: x.add_(1),
    "view of input": lambda _module, x: x[0].zero_(),
    "weights": lambda module, _x: [p.add_(1) for p in module.parameters() if p.dim() == 2],
    "norm weight": lambda module, _x: [
        p.add_(1) for name, p in module.named_parameters() if name == "layer_norm_weight"
    ],
}


@DTYPES
@pytest.mark.parametrize("change", CHANGES)
def test_changes_before_backward_are_noticed_where_the_twin_notices_them(case, change):
    found = changed(case, case.make(), CHANGES[change])
    if change.endswith("input"):
        assert found is RuntimeError
    else:
        twins = changed(case, case.twin(), CHANGES[change])
        assert (found is RuntimeError) == (twins is RuntimeError)
    if found is not RuntimeError:
        assert_same(found, step(case))


@QUANTIZED
@pytest.mark.parametrize("change", CHANGES)
def test_quantized_copies_are_not_touched_by_changes(case, change):
    found = changed(case, case.make(), CHANGES[change])
    reads_changed = case.kind != "Linear" and change != "weights"  # norms keep what they read
    if reads_changed:
        assert found is RuntimeError
    else:
        assert_same(found, step(case))


@CASES
def test_the_bias_may_change_before_backward(case):
    biases = [name for name, _ in case.make().named_parameters() if name.endswith("bias")]

    def change(module, _x):
        for name in biases:
            module.get_parameter(name).add_(1)

    assert_same(changed(case, case.make(), change), step(case))


@DTYPES
def test_backward_reads_parameters_whose_data_was_exchanged(case):
    # What sharded training relies on: it frees parameters after forward and gathers them again.
    def change(module, _x):
        for parameter in module.parameters():
            parameter.data = torch.zeros_like(parameter)

    assert torch.count_nonzero(changed(case, case.make(), change)["inp"]) == 0


@CASES
@pytest.mark.parametrize("form", ["whole", "view"])
def test_the_output_may_be_changed_in_place(case, form):
    expected = step(case)
    module, x = case.make(), case.input()
    output = case(module, x)
    grad = output_gradient(output)
    if form == "whole":
        output.mul_(2)
        output.backward(grad / 2)
    else:
        output[:3].mul_(2)
        output[3:].mul_(2)
        output.backward(grad / 2)
    assert_same(collect(module, x, output / 2), expected)


# ---- saved tensors -------------------------------------------------------------------------------


@CASES
def test_saved_tensors_may_live_elsewhere(case):
    expected = step(case)
    with graph.save_on_cpu():
        assert_same(step(case), expected)
    kept = []

    def pack(tensor):
        kept.append(tensor.clone())
        return len(kept) - 1

    with graph.saved_tensors_hooks(pack, lambda index: kept[index]):
        assert_same(step(case), expected)
    assert kept


@CASES
def test_what_hooks_unpack_is_what_backward_reads(case):
    module, x = case.make(), case.input()
    with graph.saved_tensors_hooks(lambda tensor: tensor, torch.zeros_like):
        output = case(module, x)
    output.backward(output_gradient(output))
    assert torch.count_nonzero(x.grad) == 0


@CASES
def test_an_error_in_a_saved_tensor_hook_reaches_the_caller(case):
    def fails(_tensor):
        raise LookupError("from the hook")

    with (
        graph.saved_tensors_hooks(fails, lambda tensor: tensor),
        pytest.raises(LookupError, match="from the hook"),
    ):
        case(case.make(), case.input())
    with graph.saved_tensors_hooks(lambda tensor: tensor, fails):
        output = case(case.make(), case.input())
    with pytest.raises(LookupError, match="from the hook"):
        output.sum().backward()


@CASES
def test_disabled_saved_tensor_hooks_are_no_obstacle(case):
    with graph.disable_saved_tensors_hooks("not here"):
        assert_same(step(case), step(case))


@PLAIN
def test_mutation_may_be_allowed(case):
    results = []
    for mutates in (False, True):
        with graph.allow_mutation_on_saved_tensors():
            module, leaf = case.make(), case.input()
            x = leaf * 1
            output = case(module, x)
            if mutates:
                with torch.no_grad():
                    for tensor in (x, *module.parameters()):
                        tensor.zero_()
            output.backward(output_gradient(output))
        results.append(collect(module, leaf, output))
    assert_same(*results)


@PLAIN
def test_jacobians_are_the_rows_of_single_backwards(case):
    module = case.make().requires_grad_(False)
    x = make_input(2, 24)
    jacobian = torch.autograd.functional.jacobian(lambda x: module(x)[1, :3], x)
    for index in range(3):
        (row,) = torch.autograd.grad(module(x)[1, index], x)
        assert_identical(jacobian[index], row, "row")


def test_two_outputs_of_one_node_have_their_numbers():
    output, norm_output = make("LayerNormLinear", return_layernorm_output=True)(make_input())
    assert output.grad_fn is norm_output.grad_fn
    assert (output.output_nr, norm_output.output_nr) == (0, 1)
    assert Case("LayerNormLinear").make()(make_input()).grad_fn is not output.grad_fn
