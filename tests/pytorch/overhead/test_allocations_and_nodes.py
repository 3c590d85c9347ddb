# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""How many tensors a call allocates, and how many autograd nodes it makes."""

from __future__ import annotations

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.counters import allocations, autograd_nodes
from helpers.overhead import HIDDEN, LIMITS, MODULES, RECIPES, TOKENS, make_subject

kinds = pytest.mark.parametrize("kind", MODULES)
recipes = pytest.mark.parametrize("recipe", RECIPES)


@kinds
@recipes
def test_a_forward_makes_few_nodes(kind, recipe):
    subject = make_subject(kind, recipe)
    with subject.region():
        nodes = autograd_nodes([subject.forward()])
    assert len(nodes) <= LIMITS[kind].nodes, nodes


@kinds
@recipes
def test_without_gradients_there_is_no_node(kind, recipe):
    subject = make_subject(kind, recipe)
    with torch.no_grad(), subject.region():
        assert autograd_nodes([subject.forward()]) == []


@kinds
@recipes
def test_a_forward_allocates_few_tensors(kind, recipe):
    subject = make_subject(kind, recipe)
    with subject.region():
        found = allocations(subject.forward)
    assert len(found) <= LIMITS[kind].allocations[recipe], found


@kinds
@recipes
def test_a_backward_allocates_few_tensors(kind, recipe):
    subject = make_subject(kind, recipe)
    with subject.region():
        found = allocations(subject.forward_backward)
    assert len(found) <= LIMITS[kind].allocations_with_backward[recipe], found


def test_linear_allocates_its_results_and_nothing_else():
    element = 2
    output = TOKENS * HIDDEN * element
    weight, bias = HIDDEN * HIDDEN * element, HIDDEN * element
    subject = make_subject("Linear")
    assert allocations(subject.forward) == [output]
    subject.drop_gradients()
    assert sorted(allocations(subject.forward_backward)) == sorted([output, output, weight, bias])


class Wasteful(te.Linear):
    """One tensor and one node more than needed."""

    def forward(self, inp: torch.Tensor) -> torch.Tensor:
        return super().forward(inp).clone()


def test_one_more_tensor_and_one_more_node_are_noticed():
    module = Wasteful(HIDDEN, HIDDEN, params_dtype=torch.bfloat16, device="cpu")
    subject = make_subject("Linear", module=module)
    limit = LIMITS["Linear"]
    assert len(allocations(subject.forward)) == limit.allocations["BF16"] + 1
    assert len(autograd_nodes([subject.forward()])) == limit.nodes + 1


def test_tensors_made_natively_are_noticed():
    linear = make_subject("Linear", "delayed")
    with linear.region():
        found = allocations(linear.forward)
    # The FP8 copies of input and weight are made in C++ and never seen by Python.
    assert TOKENS * HIDDEN in found and HIDDEN * HIDDEN in found


@pytest.mark.parametrize("recipe", ["delayed", "current"])
@pytest.mark.parametrize(
    ("kind", "weights"), [("Linear", 1), ("LayerNormLinear", 1), ("LayerNormMLP", 2)]
)
def test_a_kept_weight_is_not_quantized_again(kind, weights, recipe):
    """Bytes and their scale are what a quantization allocates."""
    subject = make_subject(kind, recipe)
    with subject.region():
        every_time = allocations(subject.forward)
        subject.module(*subject.inputs, is_first_microbatch=True)
        kept = allocations(lambda: subject.module(*subject.inputs, is_first_microbatch=False))
        with torch.no_grad():
            for name, parameter in subject.module.named_parameters():
                if name.endswith("weight") and parameter.dim() == 2:
                    parameter.add_(0)  # a write: what was kept is out of date
        anew = allocations(lambda: subject.module(*subject.inputs, is_first_microbatch=False))
    assert len(kept) == len(every_time) - 2 * weights
    assert len(anew) == len(every_time)
