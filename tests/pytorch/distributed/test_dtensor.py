# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parameters that are DTensors: torch's own tensor parallelism, outside quantized regions."""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import transformer_engine.pytorch as te
from helpers.generators import random_tensor
from helpers.ranks import ranks
from helpers.tolerances import assert_within, matmul_bound
from transformer_engine.common.recipe import Float8CurrentScaling


def distribute(module, mesh, placement):
    """Every parameter as a DTensor: rows divided, or a copy per rank."""
    for name, p in list(module.named_parameters()):
        whole = distribute_tensor(p.detach(), mesh, [placement])
        setattr(module, name, torch.nn.Parameter(whole))


def compute(rank):
    mesh = init_device_mesh("cpu", (2,))
    x, gradient = random_tensor((6, 32)), random_tensor((6, 48), seed=1)
    for placement in (Replicate(), Shard(0)):
        torch.manual_seed(2)
        module = te.Linear(32, 48, device="cpu")
        plain = {name: p.detach().clone() for name, p in module.named_parameters()}
        distribute(module, mesh, placement)
        inp = distribute_tensor(x, mesh, [Replicate()]).requires_grad_()
        y = module(inp)
        y.backward(distribute_tensor(gradient, mesh, [Replicate()]))
        weight = plain["weight"]
        for actual, a, b in (
            (y, x, weight.t()),
            (inp.grad, gradient, weight),
            (module.weight.grad, gradient.t(), x),
        ):
            # A sum over the rows of the weight may be one of two ranks' sums: one more term.
            bound = matmul_bound(a, b, output=torch.float32, extra_terms=2)
            expected = a.double() @ b.double() + (plain["bias"].double() if actual is y else 0)
            slack = plain["bias"].abs().double() * 2**-23 if actual is y else 0
            assert_within(actual.full_tensor(), expected, bound + slack)
        refusal = r"Linear.forward: \w+ is a DTensor; inside a quantized region plain tensors"
        for recipe in (Float8CurrentScaling(), None):
            with (
                te.autocast(recipe=recipe),
                pytest.raises(NotImplementedError, match=refusal),
            ):
                module(inp)
        with te.autocast(enabled=False), pytest.raises(RuntimeError, match="DTensor"):
            module(x)  # torch's refusal to mix the two


@pytest.mark.slow  # may be the first to start the ranks
def test_parameters_may_be_dtensors_outside_quantized_regions():
    ranks(2).run(compute)
