# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Linear in high precision: forward and gradients against float64, and its own arguments."""

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.generators import DTYPES, random_tensor, strided_copy
from helpers.modules import (
    IN,
    OUT,
    assert_matches,
    assert_same,
    expected_results,
    make,
    make_input,
    output_gradient,
    run,
)
from helpers.tolerances import assert_identical
from transformer_engine.pytorch.module import userbuffers

SHAPES = ((IN,), (1, IN), (7, IN), (2, 3, IN), (2, 1, 3, IN), (0, IN), (2, 0, IN))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_results_match_float64(dtype, shape, bias):
    module, x = make("Linear", bias=bias, params_dtype=dtype), make_input(*shape, dtype=dtype)
    actual = run(module, x)
    assert actual["output"].shape == (*shape[:-1], OUT)
    assert actual.keys() == {"output", "inp", "weight"} | ({"bias"} if bias else set())
    expected = expected_results(module, x, output_gradient(actual["output"]))
    assert_matches(actual, expected)


@pytest.mark.smoke
def test_it_is_torchs_linear():
    module, twin = make("Linear"), torch.nn.Linear(IN, OUT)
    twin.load_state_dict({name: value.detach() for name, value in module.named_parameters()})
    x = make_input()
    expected = expected_results(module, x, output_gradient(run(module, x)["output"]))
    assert_matches(run(twin, x), expected)


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (0, 0)], ids=str)
def test_features_may_be_empty(sizes):
    module = te.Linear(*sizes, device=torch.get_default_device())
    x = torch.ones(5, sizes[0], requires_grad=True)
    with torch.no_grad():
        module.bias.fill_(2.0)
    y = module(x)
    assert_identical(y, torch.full((5, sizes[1]), 2.0))
    y.sum().backward()
    assert x.grad.shape == x.shape
    assert_identical(module.weight.grad, torch.zeros(sizes[1], sizes[0]))
    assert_identical(module.bias.grad, torch.full((sizes[1],), 5.0))


# ---- returned biases -----------------------------------------------------------------------------

SPLITS = {
    "whole": None,
    "sequence": ["query_", "key", "value"],
    "dict": {"query": 16, "key_": 8, "value": 16},
}


def split_of(name):
    if name == "sequence":
        return {"parameters_split": SPLITS["sequence"][:2]}
    return {"parameters_split": SPLITS[name]}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_returned_bias_is_not_added_and_gets_its_gradient(split, bias):
    plain = make("Linear", bias=bias, **split_of(split))
    returning = make("Linear", bias=bias, return_bias=True, **split_of(split))
    x = make_input()
    expected = run(plain, x)
    pair = returning(x)
    assert isinstance(pair, tuple)
    assert len(pair) == 2
    if not bias:
        assert pair[1] is None
        assert_identical(pair[0], expected["output"])
        return
    # The GEMM adds the bias before it rounds once; here the sum is rounded twice.
    total = pair[0] + pair[1]
    grad = output_gradient(total)
    assert_matches({"output": total.detach()}, expected_results_of(plain, x, grad))
    returning.zero_grad()
    total.backward(grad)
    for name, parameter in returning.named_parameters():
        if name.endswith("weight"):
            assert_identical(parameter.grad, expected[name], name)
        else:
            assert_matches({name: parameter.grad}, bias_sums(returning, grad))


def whole(module):
    """An unsplit module with the same weights, for the reference."""
    twin = make("Linear", bias=bool(module.bias_names))
    with torch.no_grad():
        twin.weight.copy_(torch.cat([getattr(module, name) for name in module.weight_names]))
        if module.bias_names:
            twin.bias.copy_(torch.cat([getattr(module, name) for name in module.bias_names]))
    return twin


def expected_results_of(module, x, grad):
    return expected_results(whole(module), x, grad)


def bias_sums(module, grad):
    results = expected_results_of(module, make_input(), grad)
    sums, row = {}, 0
    for name in module.bias_names:
        rows = getattr(module, name).numel()
        total = results["bias"]
        sums[name] = type(total)(total.value[row : row + rows], total.error[row : row + rows])
        row += rows
    return sums


def test_the_returned_bias_of_one_weight_is_the_parameter():
    module = make("Linear", return_bias=True)
    assert module(make_input())[1] is module.bias


# ---- split parameters ----------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["sequence", "dict"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("is_adjacent", [True, False])
def test_split_parameters_act_as_one(split, bias, is_adjacent):
    module = make("Linear", bias=bias, **split_of(split))
    if not is_adjacent:
        for name, parameter in list(module.named_parameters()):
            setattr(module, name, torch.nn.Parameter(parameter.detach().clone()))
    twin, x = whole(module), make_input()
    expected, actual = run(twin, x), run(module, x)
    assert_identical(actual["output"], expected["output"])
    assert_identical(actual["inp"], expected["inp"])
    weights = torch.cat([actual[name] for name in module.weight_names])
    assert_identical(weights, expected["weight"])
    if bias:
        biases = torch.cat([actual[name] for name in module.bias_names])
        assert_identical(biases, expected["bias"])


def test_split_names_and_shapes():
    module = make("Linear", parameters_split={"query": 16, "key_": 8, "value__": 16})
    shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    assert shapes == {
        "query_weight": (16, IN),
        "query_bias": (16,),
        "key_weight": (8, IN),
        "key_bias": (8,),
        "value_weight": (16, IN),
        "value_bias": (16,),
    }
    equal = make("Linear", parameters_split=("a", "b"))
    assert equal.a_weight.shape == equal.b_weight.shape == (OUT // 2, IN)
    # One buffer, so that the slices are concatenated without a copy.
    assert equal.a_weight.untyped_storage().data_ptr() == (
        equal.b_weight.untyped_storage().data_ptr()
    )


def test_frozen_slices_get_no_gradient():
    module = make("Linear", parameters_split=["a", "b"])
    module.a_weight.requires_grad_(False)
    module.b_bias.requires_grad_(False)
    x = make_input()
    actual = run(module, x)
    assert actual.keys() == {"output", "inp", "b_weight", "a_bias"}
    expected = run(whole(module), x)
    assert_identical(actual["b_weight"], expected["weight"][OUT // 2 :])
    assert_identical(actual["a_bias"], expected["bias"][: OUT // 2])


# ---- dtypes and layouts of parameters ------------------------------------------------------------


def test_a_weight_need_not_be_contiguous():
    module, x = make("Linear"), make_input()
    expected = run(module, x)
    module.weight = torch.nn.Parameter(module.weight.detach().t().contiguous().t())
    assert not module.weight.is_contiguous()
    assert_same(run(module, x), expected)
    module.weight = torch.nn.Parameter(strided_copy(module.weight.detach()))
    assert_same(run(module, x), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_torch_autocast_computes_in_its_dtype(dtype):
    module, x = make("Linear"), make_input()
    with torch.autocast("cpu", dtype):
        actual = run(module, x)
    assert actual["output"].dtype == dtype
    assert all(actual[name].dtype == torch.float32 for name in ("inp", "weight", "bias"))
    twin = make("Linear", params_dtype=dtype)
    rounded = x.detach().to(dtype).requires_grad_()
    expected = run(twin, rounded)
    assert_identical(actual["output"], expected["output"])
    assert_identical(actual["inp"], expected["inp"].float())
    grad = output_gradient(actual["output"])
    # Gradients of FP32 parameters are not rounded to the low precision.
    assert_matches(
        {"weight": actual["weight"], "bias": actual["bias"]},
        expected_results(twin, rounded, grad, dtype=dtype),
    )


def test_inputs_of_the_callers_stay_as_they_are():
    module = make("Linear")
    x = random_tensor((IN, 6), seed=5)
    before = x.clone()
    view = x.t().requires_grad_()
    module(view).sum().backward()
    assert_identical(x, before)


# ---- arguments -----------------------------------------------------------------------------------


def test_construction_errors_name_argument_value_and_remedy():
    cases = [
        (ValueError, {"parallel_mode": "both"}, r"Linear: parallel_mode is 'both'; .*'row'"),
        (
            ValueError,
            {"delay_wgrad_compute": True, "ub_bulk_wgrad": True},
            r"Linear: delay_wgrad_compute and ub_bulk_wgrad are both True",
        ),
        (ValueError, {"symmetric_ar_type": "x"}, r"Linear: symmetric_ar_type is 'x'"),
        (
            ValueError,
            {"tp_size": 3, "parallel_mode": "column"},
            r"Linear: out_features is 40; a multiple of the 3 tensor-parallel ranks",
        ),
        (
            ValueError,
            {"tp_size": 5, "parallel_mode": "row"},
            r"Linear: in_features is 24; a multiple of the 5 tensor-parallel ranks",
        ),
        (
            RuntimeError,
            {"tp_size": 4, "parallel_mode": "column", "parameters_split": {"a": 10, "b": 30}},
            r"Linear: parameters_split\['a'\] has 10 rows; a multiple of the 4",
        ),
        (TypeError, {"parameters_split": 3}, r"Linear: parameters_split is a int"),
        (TypeError, {"parameters_split": "qkv"}, r"Linear: parameters_split is a str"),
        (ValueError, {"parameters_split": []}, r"Linear: parameters_split is empty"),
        (ValueError, {"parameters_split": ["a", "b", "c"]}, r"parameters_split has 3 names"),
        (ValueError, {"parameters_split": {"a": 1}}, r"parameters_split has 1 rows together"),
        (ValueError, {"parameters_split": ["a", "a_"]}, r"parameters_split has the name 'a' twice"),
    ]
    for error, keywords, message in cases:
        with pytest.raises(error, match=message):
            te.Linear(IN, OUT, device=torch.get_default_device(), **keywords)


def test_overlap_flags_warn_once(monkeypatch):
    monkeypatch.setattr(userbuffers, "_told", set())
    with pytest.warns(UserWarning, match="Linear: ub_overlap_ag ask for userbuffers") as told:
        for _ in range(2):
            te.Linear(
                IN,
                OUT,
                device=torch.get_default_device(),
                sequence_parallel=True,
                ub_overlap_ag=True,
            )
    assert len(told) == 1


def test_forward_errors_name_argument_value_and_remedy():
    module = make("Linear")
    cases = [
        (ValueError, torch.zeros(2, 5), r"Linear\.forward: inp has shape \[2, 5\]; .* 24"),
        (ValueError, torch.zeros(()), r"Linear\.forward: inp has shape \[\]"),
        (TypeError, torch.zeros(2, IN, dtype=torch.float64), r"inp has dtype Double"),
        (TypeError, torch.zeros(2, IN, dtype=torch.int64), r"inp has dtype Long"),
        (TypeError, torch.zeros(2, IN, dtype=torch.bfloat16), r"parameter weight has dtype Float"),
        (TypeError, [1.0], r"Linear\.forward: inp has type list; a tensor is required"),
        (TypeError, None, r"Linear\.forward: inp has type NoneType"),
        (RuntimeError, torch.zeros(2, IN, device="meta"), r"Linear\.forward: inp is on meta"),
    ]
    for error, value, message in cases:
        with pytest.raises(error, match=message):
            module(value)


def test_calls_are_checked_as_python_checks_them():
    module, x = make("Linear"), make_input()
    for args, keywords, message in [
        ((), {}, r"forward\(\) missing 1 required positional argument: 'inp'"),
        ((x, None, False, False, 1), {}, r"forward\(\) takes 4 arguments but 5 were given"),
        ((x,), {"inp": x}, r"forward\(\) got multiple values for argument 'inp'"),
        ((x,), {"first": True}, r"forward\(\) got an unexpected keyword argument 'first'"),
    ]:
        with pytest.raises(TypeError, match=message):
            module(*args, **keywords)
    assert_identical(module(inp=x), module(x))
    assert_identical(module(**{"".join(["i", "np"]): x}), module(x))  # not interned


def test_parameters_are_checked():
    module, x = make("Linear"), make_input()
    module.weight = torch.nn.Parameter(torch.zeros(OUT, IN + 1))
    with pytest.raises(ValueError, match=r"parameter weight has shape \[40, 25\]; \[rows, 24\]"):
        module(x)
    module.weight = torch.nn.Parameter(torch.zeros(OUT - 1, IN))
    with pytest.raises(ValueError, match=r"the weights have 39 rows together; 40 are required"):
        module(x)
    module.weight = torch.nn.Parameter(torch.zeros(OUT, IN, device="meta"))
    with pytest.raises(
        RuntimeError, match=r"inp is on cpu and parameter weight is on meta; .* reset_parameters"
    ):
        module(x)
    module.weight = torch.nn.Parameter(torch.zeros(OUT, IN))
    module.bias = torch.nn.Parameter(torch.zeros(OUT + 1))
    with pytest.raises(ValueError, match=r"biases have 41 elements together; 40 are required"):
        module(x)


def test_weights_carry_the_attributes_trainers_read():
    for mode, dim in ((None, 0), ("column", 0), ("row", 1)):
        module = te.Linear(IN, OUT, device=torch.get_default_device(), parallel_mode=mode)
        attributes = (
            module.weight.tensor_model_parallel,
            module.weight.partition_dim,
            module.weight.partition_stride,
        )
        assert attributes == (True, dim, 1)
        assert hasattr(module.bias, "sequence_parallel") == (mode == "row")
        assert hasattr(module.bias, "tensor_model_parallel") == (mode == "column")


def test_without_bias_there_is_no_key_and_an_empty_attribute():
    module = make("Linear", bias=False)
    assert "bias" not in module.state_dict()
    assert not isinstance(module.bias, torch.nn.Parameter)
    assert module.bias.numel() == 0
