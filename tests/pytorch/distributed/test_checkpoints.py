# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint: saved by two ranks, continued by one, two and four."""

import contextlib
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from helpers.data_parallel import build, input_of, region
from helpers.ranks import is_under_torchrun, ranks

PARTS = 4  # of a batch, divided among the ranks
STEPS = 6  # two of them before the checkpoint
# Recipe, whether weights are quantized, and the numbers of ranks on which training continues to the
# bit. Under current scaling each rank's part of a weight has a scale of its own, and parts of
# block-scaled weights cannot be written to; see docs/differences.md.
CASES = {
    **{(name, False): (1, 2, 4) for name in ("none", "delayed", "current", "mxfp8")},
    **{("delayed", True): (1, 2, 4), ("recent", True): (1, 2, 4)},
    **{("block", True): (2, 4), ("mxfp8", True): (2, 4), ("current", True): (2,)},
}


def make(recipe, has_quantized_weights):
    """A sharded model and its optimizer."""
    # Four ranks have whole blocks of rows.
    model = build(recipe, has_quantized_weights, hidden=512 if recipe == "block" else 128)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for module in model:
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # Gradients are summed: they, and so their scales, are those of any number of ranks.
    for module in (*model, model):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # which gloo needs
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def train(model, optimizer, recipe, steps, rank):
    """Loss of each step. All parts run forward, and count for amaxes; the loss is that of one part,
    so that the sum of gradients over any number of ranks is exact.
    """
    losses = []
    for number in steps:
        count = PARTS // torch.distributed.get_world_size()
        parts = range(rank * count, (rank + 1) * count)
        with region(recipe):
            outputs = [model(input_of(number, part)) for part in parts]
        weights = [float(part == number % PARTS) for part in parts]
        loss = sum(
            weight * output.float().square().mean()
            for weight, output in zip(weights, outputs, strict=True)
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        torch.distributed.all_reduce(total)
        losses.append(total.item())
    return losses


@contextlib.contextmanager
def quiet():
    """fully_shard makes plain views of what it shards; the checkpoint warns of its own types."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def save(rank, folder):
    """Losses after the checkpoint, without interruption, by case."""
    losses = {}
    for recipe, has_quantized_weights in CASES:
        with quiet():
            model, optimizer = make(recipe, has_quantized_weights)
            train(model, optimizer, recipe, range(2), rank)
            states = get_state_dict(model, optimizer)
            path = f"{folder}/{recipe}_{has_quantized_weights}"
            dcp.save(dict(zip(("model", "optimizer"), states, strict=True)), checkpoint_id=path)
            losses[recipe, has_quantized_weights] = train(
                model, optimizer, recipe, range(2, STEPS), rank
            )
    return losses


def resume(rank, folder):
    """Losses after the checkpoint, by case."""
    losses = {}
    for (recipe, has_quantized_weights), sizes in CASES.items():
        if torch.distributed.get_world_size() not in sizes:
            continue
        with quiet():
            model, optimizer = make(recipe, has_quantized_weights)
            states = dict(
                zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True)
            )
            dcp.load(states, checkpoint_id=f"{folder}/{recipe}_{has_quantized_weights}")
            set_state_dict(
                model,
                optimizer,
                model_state_dict=states["model"],
                optim_state_dict=states["optimizer"],
            )
            losses[recipe, has_quantized_weights] = train(
                model, optimizer, recipe, range(2, STEPS), rank
            )
    return losses


@pytest.mark.slow  # starts processes
def test_training_continues_on_another_number_of_ranks(tmp_path):
    if is_under_torchrun():
        pytest.skip("needs three numbers of ranks")
    uninterrupted = ranks(2).run(save, str(tmp_path))[0]
    for size in (1, 2, 4):
        for resumed in ranks(size).run(resume, str(tmp_path)):
            assert resumed == {case: uninterrupted[case] for case in resumed}
            assert resumed
