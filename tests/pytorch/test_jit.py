# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Optional compilation, and the elementwise functions that use it."""

import os
import subprocess
import sys
import warnings

import pytest
import torch

from helpers.generators import random_tensor
from helpers.tolerances import assert_within, gamma, sum_bound
from transformer_engine.pytorch import jit

EPS = 1e-6


def gelu_reference(x):
    return torch.nn.functional.gelu(x.double(), approximate="tanh")


def elementwise_bound(expected, steps):
    """A chain of roundings of values no larger than 1 + |expected|."""
    return gamma(steps, torch.float32) * (1 + expected.abs())


@pytest.mark.parametrize("has_bias", [True, False])
def test_bias_gelu_and_its_gradient(device, has_bias):
    inp = random_tensor((31, 17), device=device, seed=1) * 3
    grad_output = random_tensor((31, 17), device=device, seed=2)
    bias = random_tensor((17,), device=device, seed=3) if has_bias else None
    x = (inp.double() + (bias.double() if has_bias else 0)).requires_grad_()
    expected = gelu_reference(x)
    (expected_grad,) = torch.autograd.grad(expected, x, grad_output.double())
    # The cubic amplifies relative errors of its argument up to threefold; |x| < 16.
    assert_within(jit.bias_gelu_fused(inp, bias), expected, elementwise_bound(expected, 60))
    grad_bias, grad_input = jit.bgrad_dgelu_fused(grad_output, inp, bias)
    limit = elementwise_bound(grad_output.double(), 120)
    assert_within(grad_input, expected_grad, limit)
    if has_bias:
        exact = expected_grad.sum(0)
        assert_within(
            grad_bias, exact, limit.sum(0) + sum_bound(expected_grad, 0, output=torch.float32)
        )
    else:
        assert grad_bias is None


def test_an_empty_bias_counts_as_none():
    inp = random_tensor((3, 5))
    assert torch.equal(jit.bias_gelu_fused(inp, torch.empty(0)), jit.bias_gelu_fused(inp, None))
    assert jit.bgrad_dgelu_fused(inp, inp, torch.empty(0))[0] is None


def test_l2_normalization_and_its_gradient(device):
    x = random_tensor((7, 33), device=device, seed=1)
    grad_output = random_tensor((7, 33), device=device, seed=2)
    x64 = x.double().requires_grad_()
    expected = x64 / torch.sqrt(x64.square().sum(-1, keepdim=True) + EPS)
    (expected_grad,) = torch.autograd.grad(expected, x64, grad_output.double())
    output, rsqrt_norm = jit.l2normalization_fwd_fused(x, EPS)
    bound = gamma(33 + 8, torch.float32)
    assert_within(output, expected, bound * expected.abs())
    assert torch.equal(jit.l2normalization_fused(x, EPS), output)
    grad = jit.l2normalization_backward_fused(grad_output, x, rsqrt_norm, EPS)
    norms = grad_output.double().norm(dim=-1, keepdim=True) * rsqrt_norm.double()
    assert_within(grad, expected_grad, 4 * bound * norms)


@pytest.mark.parametrize("training", [True, False])
def test_bias_dropout_add(training):
    x, bias, residual = (random_tensor((4, 8), seed=seed) for seed in range(3))
    torch.manual_seed(5)
    expected = residual + torch.nn.functional.dropout(x + bias, 0.3, training)
    torch.manual_seed(5)
    assert torch.equal(jit.get_bias_dropout_add(training)(x, bias, residual, 0.3), expected)
    fused = jit.bias_dropout_add_fused_train if training else jit.bias_dropout_add_fused_inference
    torch.manual_seed(5)
    assert torch.equal(fused(x, bias, residual, 0.3), expected)


@pytest.mark.parametrize(
    "warmup",
    [
        jit.warmup_jit_bias_gelu_all_dtypes,
        jit.warmup_jit_bias_dropout_add_all_dtypes,
        jit.warmup_jit_l2normalization_all_dtypes,
    ],
)
def test_warming_up_leaves_the_rng_as_it_was(warmup):
    before = torch.get_rng_state()
    warmup(16, 4, 2)
    assert torch.equal(torch.get_rng_state(), before)


def count_compilations(monkeypatch):
    calls = []

    def fake_compile(function):
        calls.append(function)
        return function

    monkeypatch.setattr(torch, "compile", fake_compile)
    return calls


def test_nothing_compiles_before_the_first_call_or_on_the_cpu(monkeypatch):
    calls = count_compilations(monkeypatch)
    lazy = jit.lazy_compile(lambda x: x + 1)
    fused = jit.jit_fuser(lambda x: x + 1)
    assert calls == []
    assert lazy(1) == 2
    assert len(calls) == 1
    assert lazy(2) == 3
    assert len(calls) == 1
    fused(torch.ones(1))
    assert len(calls) == 1


def test_lazy_compile_is_inert_while_another_compilation_traces(monkeypatch):
    calls = count_compilations(monkeypatch)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert jit.lazy_compile(lambda x: x + 1)(1) == 2
    assert calls == []


def test_a_machine_that_cannot_compile_runs_uncompiled_with_one_warning(monkeypatch):
    import torch._dynamo.exc

    def failing(*args):
        raise torch._dynamo.exc.Unsupported("no compiler here")

    monkeypatch.setattr(torch, "compile", lambda function: failing)
    lazy = jit.lazy_compile(lambda x: x + 1)
    with pytest.warns(RuntimeWarning, match="torch.compile failed"):
        assert lazy(1) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lazy(2) == 3


def test_errors_of_the_function_itself_are_not_swallowed(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: function)

    @jit.lazy_compile
    def fails():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fails()


@pytest.mark.slow  # imports dynamo
@pytest.mark.parametrize(
    ("when", "skipped"),
    [(None, True), (lambda kwargs: "because", True), (lambda kwargs: None, False)],
)
def test_no_torch_dynamo_runs_the_function_outside_the_graph(when, skipped):
    seen = []

    @jit.no_torch_dynamo(when=when)
    def function(x):
        seen.append(torch.compiler.is_compiling())
        return x + 1

    compiled = torch.compile(lambda x: function(x * 2) * 3, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [9.0, 9.0]
    assert (True in seen) is not skipped


def test_environment_switches_compilation_off():
    code = (
        "import torch\n"
        "from transformer_engine.pytorch import jit\n"
        "f = lambda x: x\n"
        "assert jit.jit_fuser(f) is f\n"
        "x = torch.ones(2, 2)\n"
        "print(jit.bias_dropout_add_fused_inference(x, x, x, 0.5).sum().item())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NVTE_TORCH_COMPILE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.split() == ["12.0"], result.stderr
