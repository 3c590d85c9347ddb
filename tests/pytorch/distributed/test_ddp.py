# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel around modules of every recipe."""

import contextlib

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import transformer_engine.pytorch as te
from helpers.data_parallel import (
    ALL_RECIPES,
    Twin,
    assert_mean,
    assert_same_state,
    build,
    plain,
    run,
)
from helpers.ranks import ranks
from helpers.tolerances import assert_identical

RATE = 0.05
OPTIONS = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
}


def train(rank, recipe, has_quantized_weights, options):
    size = torch.distributed.get_world_size()
    model = build(recipe, has_quantized_weights)
    twin = Twin(recipe, build(recipe, has_quantized_weights), size)
    is_hybrid = has_quantized_weights and recipe == "hybrid"  # refused: see below
    parallel = DistributedDataParallel(model, init_sync=not is_hybrid, **OPTIONS[options])
    optimizer = torch.optim.SGD(parallel.parameters(), lr=RATE)
    for step in range(3):
        output = run(parallel, recipe, step, rank)
        outputs, parts = twin.step(step)
        assert_identical(output, outputs[rank], "output")
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        for name, gradient in gradients.items():
            assert_mean(gradient, parts[name], name)
        assert_same_state(model, twin.model)
        optimizer.step()
        optimizer.zero_grad()
        twin.apply(gradients, RATE)
        for (name, p), other in zip(model.named_parameters(), twin.model.parameters(), strict=True):
            assert_identical(plain(p), plain(other), name)


def train_all(rank, size, options):
    """Every recipe in one launch."""
    for recipe in ALL_RECIPES if size == 2 else ("none", "delayed", "mxfp8"):
        for has_quantized_weights in (False, True)[: 1 if recipe == "none" else 2]:
            train(rank, recipe, has_quantized_weights, options)


@pytest.mark.slow  # may be the first to start the ranks
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_train_as_one_process_with_all_batches(size, options):
    ranks(size).run(train_all, size, options)


def accumulate(rank, recipe):
    size = torch.distributed.get_world_size()
    model = build(recipe)
    twin = Twin(recipe, build(recipe), size)
    parallel = DistributedDataParallel(model)
    collected = {name: [] for name, _ in model.named_parameters()}
    for step in range(3):
        with parallel.no_sync() if step < 2 else contextlib.nullcontext():
            run(parallel, recipe, step, rank)
        for name, parts in twin.step(step)[1].items():
            collected[name] += parts
    for name, p in model.named_parameters():
        assert_mean(p.grad, collected[name], name, steps=3)
    assert_same_state(model, twin.model)


def accumulate_all(rank):
    for recipe in ("none", "delayed", "custom", "mxfp8"):
        accumulate(rank, recipe)


@pytest.mark.slow  # may be the first to start the ranks
def test_gradients_accumulate_without_synchronization():
    ranks(2).run(accumulate_all)


class Branches(torch.nn.Module):
    """The second branch is taken where the input says so."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.first, self.second, self.last = (
            te.Linear(16, 16, name=name, device="cpu") for name in ("first", "second", "last")
        )

    def forward(self, x, takes_second):
        y = self.second(x) if takes_second else self.first(x)
        return self.last(y)


def use_different_branches(rank):
    """Each rank uses one branch in the first step; all take the first one in the second."""
    recipe = ALL_RECIPES["delayed"]
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    twin, alone = Branches(), torch.distributed.new_subgroups(1)[0]
    inputs = [torch.full((4, 16), 1.0 + r) for r in range(2)]
    for step in range(2):
        takes_second = [step == 0 and r == 1 for r in range(2)]
        model.zero_grad()
        with te.autocast(recipe=recipe):
            output = model(inputs[rank], takes_second[rank])
        output.sum().backward()
        with te.autocast(recipe=recipe, amax_reduction_group=alone):
            outputs = [twin(x, takes) for x, takes in zip(inputs, takes_second, strict=True)]
        parameters = list(twin.parameters())
        *_, of_second, of_first = (
            torch.autograd.grad(y.sum(), parameters, allow_unused=True) for y in reversed(outputs)
        )
        if step == 1:
            break  # a first use is under a scale of 1, the twin's was the second one
        assert_identical(output.detach(), outputs[rank].detach(), "output")
        for index, (name, p) in enumerate(model.module.named_parameters()):
            parts = [part[index] for part in (of_first, of_second)]
            assert_mean(p.grad, [torch.zeros_like(p) if g is None else g for g in parts], name)
    return [
        [module.fp8_meta[key].scale.tolist() for key in ("scaling_fwd", "scaling_bwd")]
        for module in (model.module.first, model.module.last)
    ]


@pytest.mark.slow  # may be the first to start the ranks
def test_ranks_may_take_different_branches():
    first, second = ranks(2).run(use_different_branches)
    assert first == second


def broadcast_quantized(rank):
    """The weights of the first rank, to the bit of their values, with one and with many of them."""
    with pytest.raises(ValueError, match="pass init_sync=False"):
        DistributedDataParallel(build("hybrid", True))  # its columns are no copy of its rows
    for recipe in ALL_RECIPES:
        if recipe in ("none", "hybrid"):
            continue
        for model in (build(recipe, True), build(recipe, True)[:1]):
            before = [plain(p) for p in model.parameters()]
            if rank == 1:
                with torch.no_grad():
                    model[0].weight.mul_(2.0)
            DistributedDataParallel(model)
            for p, value in zip(model.parameters(), before, strict=True):
                assert_identical(plain(p), value)


@pytest.mark.slow  # may be the first to start the ranks
def test_quantized_parameters_are_those_of_the_first_rank():
    ranks(2).run(broadcast_quantized)
