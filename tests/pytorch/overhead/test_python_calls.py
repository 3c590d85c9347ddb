# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""How many calls Python sees in a forward, and in a forward with its backward."""

from __future__ import annotations

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.counters import python_calls
from helpers.overhead import HIDDEN, LIMITS, MODULES, RECIPES, make_subject

# What the project promises for a Linear forward, the caller's own frame included.
LINEAR_PROMISE = 5

kinds = pytest.mark.parametrize("kind", MODULES)
recipes = pytest.mark.parametrize("recipe", RECIPES)


@kinds
@recipes
def test_a_forward_stays_within_its_calls(kind, recipe):
    subject = make_subject(kind, recipe)
    with subject.region():
        calls = python_calls(subject.forward)
    assert sum(calls.values()) <= LIMITS[kind].calls, calls


@kinds
@recipes
def test_a_forward_and_backward_stay_within_their_calls(kind, recipe):
    subject = make_subject(kind, recipe)
    with subject.region():
        calls = python_calls(subject.forward_backward)
    assert sum(calls.values()) <= LIMITS[kind].calls_with_backward, calls


def test_linear_keeps_its_promise():
    subject = make_subject("Linear")
    calls = python_calls(lambda: subject.module(*subject.inputs))
    assert sum(calls.values()) <= LINEAR_PROMISE < LIMITS["TransformerLayer"].calls


@pytest.mark.parametrize("is_first_microbatch", [True, False])
def test_a_cached_weight_costs_no_calls(is_first_microbatch):
    subject = make_subject("Linear", "delayed")
    with subject.region():
        calls = python_calls(
            lambda: subject.module(*subject.inputs, is_first_microbatch=is_first_microbatch)
        )
    assert sum(calls.values()) <= 1 + LIMITS["Linear"].calls


class PythonForward(te.Linear):
    """A forward in Python, as a module without a native step has it."""

    def forward(self, inp: torch.Tensor) -> torch.Tensor:
        return super().forward(inp)


def python_forward() -> torch.nn.Module:
    return PythonForward(HIDDEN, HIDDEN, params_dtype=torch.bfloat16, device="cpu")


def hooked() -> torch.nn.Module:
    module = MODULES["Linear"]()
    module.register_forward_hook(lambda *arguments: None)
    return module


def plain() -> torch.nn.Module:
    return torch.nn.Linear(HIDDEN, HIDDEN, dtype=torch.bfloat16)


class PythonNode(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad


class PythonBackward(te.Linear):
    """Its backward enters Python."""

    def forward(self, inp: torch.Tensor) -> torch.Tensor:
        return PythonNode.apply(super().forward(inp))


@pytest.mark.parametrize("slow", [python_forward, hooked, plain])
def test_slower_forwards_are_noticed(slow):
    subject = make_subject("Linear", module=slow())
    assert sum(python_calls(subject.forward).values()) >= LINEAR_PROMISE > LIMITS["Linear"].calls


def test_python_in_the_backward_is_noticed():
    module = PythonBackward(HIDDEN, HIDDEN, params_dtype=torch.bfloat16, device="cpu")
    subject = make_subject("Linear", module=module)
    forward = sum(python_calls(subject.forward).values())
    both = python_calls(subject.forward_backward)
    backward = LIMITS["Linear"].calls_with_backward - LIMITS["Linear"].calls
    assert sum(both.values()) > forward + backward
    assert any("PythonNode.backward" in name for name in both)
