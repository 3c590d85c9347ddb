# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""fully_shard (FSDP2) and FullyShardedDataParallel (FSDP1) around modules of every recipe."""

import warnings

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as TorchFSDP
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

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
from helpers.formats import E4M3, decode_table, encode_reference
from helpers.ranks import ranks
from helpers.tolerances import assert_identical
from transformer_engine.pytorch import distributed

RATE = 0.05
# One scale for the whole weight: each rank rounds its rows under their own when it writes them,
# and under that of all ranks when they are gathered.
ROUNDED_TWICE = ("current", "nvfp4")
MODES = {
    "reshard": {},
    "keep": {"reshard_after_forward": False},
    "reduce in FP32": {"mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32)},
}


def shard(model, mode):
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for module in model:
        fully_shard(module, mesh=mesh, **MODES[mode])
    return fully_shard(model, mesh=mesh, **MODES[mode])


def gathered(model):
    """Values of the whole parameters, as the next forward reads them."""
    for module in model:
        module.unshard()
    values = {name: plain(p).clone() for name, p in model.named_parameters()}
    for module in model:
        module.reshard()
    return values


def train(rank, recipe, has_quantized_weights, mode):
    size = torch.distributed.get_world_size()
    model = build(recipe, has_quantized_weights, hidden=256)
    twin = Twin(recipe, build(recipe, has_quantized_weights, hidden=256), size)
    shard(model, mode)
    for p in model.parameters():
        is_quantized = has_quantized_weights and p.dim() == 2
        assert isinstance(p._local_tensor, te.QuantizedTensor) == is_quantized
    shards = Shards(twin.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(3):
        output = run(model, recipe, step, rank)
        outputs, parts = twin.step(step)
        assert_identical(output, outputs[rank], "output")
        gradients = {name: p.grad.full_tensor() for name, p in model.named_parameters()}
        for name, gradient in gradients.items():
            assert_mean(gradient, parts[name], name)
        assert_same_state(model, twin.model)
        optimizer.step()
        optimizer.zero_grad()
        twin.apply(gradients, RATE)
        if recipe in ROUNDED_TWICE:
            shards.step(gradients)
        for name, values in gathered(model).items():
            assert_identical(values, plain(twin.model.get_parameter(name)), name)
        if recipe not in ROUNDED_TWICE:  # the optimizer's writes of all ranks included
            for module, other in zip(model, twin.model, strict=True):
                assert_identical(module.get_extra_state(), other.get_extra_state(), module.name)


class Shards:
    """The quantized weights of a twin as the ranks hold them: rows under a scale of their own."""

    def __init__(self, twin):
        size = torch.distributed.get_world_size()
        self._twin = twin
        self._values = {
            name: list(weight.dequantize().detach().chunk(size))
            for name, weight in twin.named_parameters()
            if isinstance(weight, te.QuantizedTensor)
        }

    def step(self, gradients):
        """An SGD step of every rank; then the twin reads what is gathered."""
        for name, values in self._values.items():
            weight, parts = self._twin.get_parameter(name), []
            for index, gradient in enumerate(gradients[name].chunk(len(values))):
                rows = torch.nn.Parameter(values[index].clone())
                rows.grad = gradient
                torch.optim.SGD([rows], lr=RATE).step()
                parts.append(weight._quantizer(rows.detach()))
                values[index] = parts[-1].dequantize()
            with torch.no_grad():
                weight.copy_(torch.cat([rounded_again(part, parts) for part in parts]))
                if hasattr(weight, "_scale_inv"):  # up to a rounding, by the largest value
                    weight._scale_inv.copy_(max(part._scale_inv for part in parts))


def rounded_again(part, parts):
    """Values of a rank's rows under the common scale."""
    if not hasattr(part, "_scale_inv"):  # NVFP4: that of the largest amax, chosen by the twin
        return part.dequantize()
    common = max(each._scale_inv for each in parts)
    if part._scale_inv == common:
        return plain(part)
    codes = encode_reference((plain(part) * common.reciprocal()).double(), E4M3)
    return (decode_table(E4M3)[codes.int()] * common.double()).float()


def train_all(rank, size, mode):
    """Every recipe in one launch; four ranks with fewer rows than FP8 tiles have."""
    for recipe in ALL_RECIPES if size < 4 else ("none", "delayed", "mxfp8"):
        # The columnwise half of the hybrid weights is per-tensor FP8, whose rows are columns.
        for has_quantized_weights in (False, True)[: 1 if recipe in ("none", "hybrid") else 2]:
            train(rank, recipe, has_quantized_weights, mode)


@pytest.mark.slow  # may be the first to start the ranks
@pytest.mark.parametrize(
    ("size", "mode"), [(1, "reshard"), (4, "reshard"), *((2, mode) for mode in MODES)]
)
def test_ranks_train_as_one_process_with_all_batches(size, mode):
    ranks(size).run(train_all, size, mode)


def train_in_mixed_precision(rank, recipe):
    """FP32 parameters, computed with in BF16; gradients are summed in FP32."""
    size = torch.distributed.get_world_size()
    model = build(recipe, hidden=64)
    twin = Twin(recipe, build(recipe, hidden=64), size)
    model.float()
    mesh = init_device_mesh("cpu", (size,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (*model, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    output = run(model, recipe, 0, rank)
    outputs, parts = twin.step(0)
    assert_identical(output, outputs[rank], "output")
    for name, p in model.named_parameters():
        gradient = p.grad.full_tensor()
        assert gradient.dtype == torch.float32
        assert_mean(gradient, parts[name], name)
    assert_same_state(model, twin.model)


def train_under_fsdp1(rank, recipe):
    """Flat shards; the quantized copies of the weights are made from what is gathered."""
    model = build(recipe, hidden=64)
    twin = Twin(recipe, build(recipe, hidden=64), 2)
    wrapped = distributed.FullyShardedDataParallel(
        model, use_orig_params=True, device_id=torch.device("cpu")
    )
    assert all(module.fsdp_group is wrapped.process_group for module in model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=RATE)
    for step in range(2):
        output = run(wrapped, recipe, step, rank)
        outputs, parts = twin.step(step)
        assert_identical(output, outputs[rank], "output")
        with TorchFSDP.summon_full_params(wrapped, with_grads=True):
            gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        for name, gradient in gradients.items():
            assert_mean(gradient, parts[name], name)
        assert_same_state(model, twin.model)
        optimizer.step()
        optimizer.zero_grad()
        twin.apply(gradients, RATE)


def train_with_every_recipe(rank, how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for recipe in ALL_RECIPES:
            how_to = {"mixed": train_in_mixed_precision, "fsdp1": train_under_fsdp1}
            how_to[how](rank, recipe)


@pytest.mark.slow  # may be the first to start the ranks
@pytest.mark.parametrize("how", ["mixed", "fsdp1"])
def test_shards_of_other_kinds_train_as_one_process(how):
    ranks(2).run(train_with_every_recipe, how)


def test_columns_of_a_weight_may_come_after_the_forward():
    torch.manual_seed(1)
    recipe = ALL_RECIPES["mxfp8"]
    with te.quantized_model_init(recipe=recipe):
        module = te.Linear(64, 64, device="cpu", params_dtype=torch.bfloat16)
    x = torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True)
    with te.autocast(recipe=recipe):
        module(x).sum().backward()
    expected, x.grad = x.grad, None
    whole = module.weight.detach().clone()
    module.weight.update_usage(columnwise_usage=False)
    with te.autocast(recipe=recipe):
        y, z = module(x), module(x)
    with pytest.raises(RuntimeError, match="weight has no columnwise copy, which the gradient"):
        z.sum().backward()
    x.grad = None
    module.weight.data = whole  # as fully_shard does: the same parameter around other buffers
    y.sum().backward()
    assert_identical(x.grad, expected)
