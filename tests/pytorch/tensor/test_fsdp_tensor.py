# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of quantized parameters gathered by fully_shard's hooks."""

import functools
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from helpers.generators import random_tensor
from helpers.quantizers import (
    block_quantizer,
    current_quantizer,
    delayed_quantizer,
    mxfp8_quantizer,
)
from helpers.ranks import ranks
from helpers.tolerances import assert_identical, assert_within, gamma
from transformer_engine.pytorch.tensor import (
    HybridQuantizer,
    IdentityQuantizer,
    NVFP4Quantizer,
)


def hybrid():
    return HybridQuantizer(
        rowwise_quantizer=block_quantizer(), columnwise_quantizer=mxfp8_quantizer()
    )


MAKERS = {
    "delayed": delayed_quantizer,
    "identity": IdentityQuantizer,
    "mxfp8": mxfp8_quantizer,
    "mxfp8_tiles": functools.partial(mxfp8_quantizer, tiles=True),
    "tiles": block_quantizer,
    "nvfp4": functools.partial(NVFP4Quantizer, with_2d_quantization=True),
    "hybrid": hybrid,
}
ALL = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
SHAPE, PARTS = (256, 80), 2


def passes(*, is_backward=False, reshards=True):
    """A module under fully_shard, as far as the hooks look at it."""
    state = SimpleNamespace(name="PRE_BACKWARD" if is_backward else "FORWARD")
    group = SimpleNamespace(_reshard_after_forward=reshards, _training_state=state)
    fsdp_state = SimpleNamespace(_fsdp_param_groups=[group])
    return SimpleNamespace(_get_fsdp_state=lambda: fsdp_state)


def shards_of(make, values):
    """Each rank's rows; for NVFP4 under the amax of all."""
    whole, parts = make()(values), []
    for part in values.split(SHAPE[0] // PARTS):
        shard = make().make_empty(part.shape)
        if hasattr(shard, "_amax_rowwise"):
            copies = [shard._copy(False), shard._copy(True)]
            for copy in copies:
                copy[2].copy_(whole._amax_rowwise)
            make()._core.cast(part, *copies)
        else:
            shard.copy_(part)
        parts.append(shard)
    return whole, parts


def gather(parts, module, out=None):
    """What torch does with the hooks, in one process."""
    inputs, metadata = [], []
    for part in parts:
        buffers, info = part.fsdp_pre_all_gather(None, SHAPE, (SHAPE[1], 1), module, None)
        inputs.append(buffers)
        metadata.append(info)
    outputs = tuple(
        torch.cat([buffer.reshape(-1) for buffer in buffers]).view(-1, *buffers[0].shape[1:])
        for buffers in zip(*inputs, strict=True)
    )
    return parts[0].fsdp_post_all_gather(outputs, metadata[0], torch.float32, out=out)


def assert_held_buffers_equal(actual, expected):
    held = {name: buffer for name, buffer in actual._buffers().items() if buffer is not None}
    assert held
    for name, buffer in held.items():
        assert torch.equal(buffer, expected._buffers()[name]), name


@ALL
@pytest.mark.parametrize(
    "module",
    [None, passes(), passes(is_backward=True), passes(reshards=False)],
    ids=["unknown", "forward", "backward", "kept"],
)
def test_gathered_rows_are_the_whole(make, module):
    whole, parts = shards_of(make, random_tensor(SHAPE))
    tensor, inner = gather(parts, module)
    assert (type(tensor), tensor.shape, inner) == (type(whole), SHAPE, ())
    assert_held_buffers_equal(tensor, whole)
    alias = torch.as_strided(tensor, SHAPE, (SHAPE[1], 1), storage_offset=0)
    assert type(alias) is type(whole)
    whole, parts = shards_of(make, random_tensor(SHAPE, seed=1))
    parameter = torch.nn.Parameter(alias)
    assert gather(parts, module, out=parameter) is None
    assert_held_buffers_equal(parameter, whole)


def test_the_pass_decides_which_copies_are_gathered():
    _, parts = shards_of(mxfp8_quantizer, random_tensor(SHAPE))
    for module, usages in (
        (passes(), {"rowwise": True, "columnwise": False}),
        (passes(is_backward=True), {"rowwise": False, "columnwise": True}),
        (passes(reshards=False), {"rowwise": True, "columnwise": True}),
    ):
        assert gather(parts, module)[0].get_usages() == usages
    for part in parts:
        part.update_usage(columnwise_usage=False)
    tensor, _ = gather(parts, passes(is_backward=True))
    assert tensor.get_usages() == {"rowwise": True, "columnwise": False}


def test_rows_that_cannot_be_gathered_are_refused():
    def pre(tensor, module=None):
        return tensor.fsdp_pre_all_gather(None, tensor.shape, None, module, None)

    values = random_tensor((48, 32))
    for tensor, message in (
        (mxfp8_quantizer()(values), "this rank has 48 rows; a multiple of 32 is required"),
        (block_quantizer()(values), "this rank has 48 rows; a multiple of 128 is required"),
        (block_quantizer(dim=1)(values), "is_2D_scaled is False"),
        (NVFP4Quantizer()(values), "with_2d_quantization is False"),
        (block_quantizer(rowwise=False)(values), "holds only its columnwise copy"),
        (current_quantizer(rowwise=False)(values), "holds only its transpose"),
        (
            NVFP4Quantizer(with_2d_quantization=True)(values[:40]),
            "this rank has 40 rows; a multiple of 16 is required",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            pre(tensor)
    tensor = mxfp8_quantizer()(values[:32])
    tensor._with_gemm_swizzled_scales = True
    with pytest.raises(NotImplementedError, match="with_gemm_swizzled_scales is True"):
        pre(tensor)


def gather_on_two_ranks(rank):
    """Shards whose scales differ, until the hooks bring them under one."""
    mesh = init_device_mesh("cpu", (2,))
    values = random_tensor(SHAPE) * torch.linspace(1, 50, SHAPE[0]).view(-1, 1)
    mine = values.split(128)[rank]
    for make in (current_quantizer, MAKERS["nvfp4"]):
        part = make()(mine)
        before = part.clone()
        buffers, metadata = part.fsdp_pre_all_gather(mesh, SHAPE, None, None, None)
        outputs = []
        for buffer in buffers:
            output = buffer.new_empty((2 * buffer.shape[0], *buffer.shape[1:]))
            torch.distributed.all_gather_into_tensor(output, buffer.contiguous())
            outputs.append(output)
        tensor, _ = part.fsdp_post_all_gather(tuple(outputs), metadata, torch.float32)
        expected = make()(torch.cat([make()(half).dequantize() for half in values.split(128)]))
        assert_held_buffers_equal(tensor, expected)
        assert_held_buffers_equal(part, before)
    quantizer = HybridQuantizer(
        rowwise_quantizer=current_quantizer(), columnwise_quantizer=IdentityQuantizer()
    )
    part = quantizer(mine)
    buffers, metadata = part.fsdp_pre_all_gather(mesh, SHAPE, None, None, None)
    common = metadata.shard._rowwise_storage._scale_inv
    return common.item()


@pytest.mark.slow  # may be the first to start the ranks
def test_scales_become_common_before_rows_are_gathered():
    first, second = ranks(2).run(gather_on_two_ranks)
    assert first == second


class Scaled(torch.nn.Module):
    """y = x w^T from a quantized weight."""

    def __init__(self, weight):
        super().__init__()
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x):
        return x @ self.weight.dequantize().t()


def train_under_fully_shard(rank):
    """One step; the result is that of the whole weight, each rank's rows rounded once."""
    mesh = init_device_mesh("cpu", (2,))
    inputs = [random_tensor((8, 64), seed=2 + i) for i in range(2)]
    x, rate = inputs[rank], 20.0
    for make in (current_quantizer, mxfp8_quantizer, hybrid):
        weight = make()(random_tensor((256, 64)) * 0.1)
        plain = weight.dequantize().requires_grad_()
        losses = [(each @ plain.t()).square().mean() for each in inputs]
        (sum(losses) / 2).backward()
        model = Scaled(weight)
        fully_shard(model, mesh=mesh, reshard_after_forward=True)
        assert type(model.weight._local_tensor) is type(weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        y = model(x)
        assert_identical(y, x @ plain.detach().t())
        y.square().mean().backward()
        assert_within(
            model.weight.grad._local_tensor,
            plain.grad.split(128)[rank],
            plain.grad.abs().max() * gamma(32, torch.float32),
        )
        grads = [torch.empty(128, 64) for _ in range(2)]
        torch.distributed.all_gather(grads, model.weight.grad._local_tensor)
        optimizer.step()
        halves = [
            make()(half - rate * grad).dequantize()
            for half, grad in zip(plain.detach().split(128), grads, strict=True)
        ]
        with torch.no_grad():
            assert_identical(model(x), x @ make()(torch.cat(halves)).dequantize().t())
        assert (torch.cat(halves) - plain).abs().max() > 0
    return True


def gather_uneven_rows(rank):
    """Ranks with fewer rows than others, or none."""
    mesh = init_device_mesh("cpu", (4,))
    for rows in (5, 6, 15):
        for make in (current_quantizer, delayed_quantizer):
            weight = make()(random_tensor((rows, 16)))
            model, expected = Scaled(weight), weight.dequantize()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fully_shard(model, mesh=mesh)
            for _ in range(2):  # the second time into the memory of the first
                model.unshard()
                assert_identical(model.weight.dequantize(), expected)
                model.reshard()
            x = random_tensor((8, 16), seed=1)
            (model(x).sum()).backward()
            full = model.weight.grad.full_tensor()
            bound = gamma(8 + 4, torch.float32) * x.abs().sum(0)
            assert_within(full, x.sum(0).expand(rows, 16), bound)


@pytest.mark.slow  # may be the first to start the ranks
def test_rows_are_gathered_that_no_equal_parts_make():
    ranks(4).run(gather_uneven_rows)


@pytest.mark.slow  # may be the first to start the ranks
def test_parameters_train_under_fully_shard():
    assert ranks(2).run(train_under_fully_shard) == [True, True]


@pytest.mark.parametrize("name", ["tiles", "nvfp4", "mxfp8_tiles", "hybrid"])
def test_a_rank_keeps_its_rows_as_they_were(name):
    """What fully_shard does: zeros of the rows of a rank, into which they are copied."""
    shape = (SHAPE[0], 96)  # whole blocks of every format
    tensor = MAKERS[name]()(random_tensor(shape))
    shards = []
    for part in tensor.chunk(PARTS):
        zeros = tensor.new_zeros(part.shape)
        assert (type(zeros), zeros.get_usages()) == (type(tensor), tensor.get_usages())
        assert_identical(zeros.dequantize(), torch.zeros(128, 96))
        zeros.narrow(0, 0, 128).copy_(part)
        shards.append(zeros)
    inputs = [shard.fsdp_pre_all_gather(None, shape, None, None, None) for shard in shards]
    outputs = [torch.cat(buffers) for buffers in zip(*(i[0] for i in inputs), strict=True)]
    whole, _ = shards[0].fsdp_post_all_gather(tuple(outputs), inputs[0][1], torch.float32)
    assert_held_buffers_equal(whole, tensor)
    before = bytes_of(tensor)
    shards[0].zero_()
    assert_held_buffers_equal(tensor, SimpleNamespace(_buffers=lambda: before))


@pytest.mark.parametrize("name", ["tiles", "nvfp4", "hybrid"])
def test_zeros_of_no_whole_blocks_or_uneven_parts_are_plain(name):
    tensor = MAKERS[name]()(random_tensor((272, 80)))
    for rows in (8, 256):
        assert type(tensor.new_zeros((rows, 80))) is torch.Tensor


def pair(rowwise, columnwise):
    return HybridQuantizer(rowwise_quantizer=rowwise, columnwise_quantizer=columnwise)


PARTED = {
    "tiles": MAKERS["tiles"],
    "nvfp4": MAKERS["nvfp4"],
    "mxfp8": mxfp8_quantizer,
    "hybrid": hybrid,
    "hybrid_nvfp4": lambda: pair(MAKERS["nvfp4"](), mxfp8_quantizer()),
    "hybrid_current": lambda: pair(current_quantizer(), mxfp8_quantizer()),
    "hybrid_identity": lambda: pair(IdentityQuantizer(), mxfp8_quantizer()),
}


def bytes_of(tensor):
    return {k: b.clone() for k, b in tensor._buffers().items() if b is not None}


@pytest.mark.parametrize("name", PARTED)
@pytest.mark.parametrize("size", [128, 32])
def test_a_write_to_a_part_leaves_the_other_parts_as_they_were(name, size):
    tensor = PARTED[name]()(random_tensor(SHAPE))
    parts = tensor.split(size)
    others = [part.dequantize() for part in parts[1:]]
    parts[0].quantize_(random_tensor((size, SHAPE[1]), seed=5))
    parts[0].zero_()
    assert not tensor.dequantize()[:size].any()
    for part, before in zip(parts[1:], others, strict=True):
        assert_identical(part.dequantize(), before)


@ALL
def test_a_write_to_the_gathered_tensor_leaves_the_shards_as_they_were(make):
    _, parts = shards_of(make, random_tensor(SHAPE))
    before = [bytes_of(part) for part in parts]
    gather(parts, None)[0].quantize_(random_tensor(SHAPE, seed=6) * 64)
    for part, held in zip(parts, before, strict=True):
        assert_held_buffers_equal(part, SimpleNamespace(_buffers=lambda held=held: held))


@pytest.mark.parametrize("name", PARTED)
def test_every_pass_gathers_into_the_memory_of_the_first(name):
    part = PARTED[name]()(random_tensor((128, SHAPE[1])))
    sizes = {
        tuple(
            (buffer.dtype, buffer.numel())
            for buffer in part.fsdp_pre_all_gather(None, SHAPE, None, module, None)[0]
        )
        for module in (passes(), passes(is_backward=True))
    }
    assert len(sizes) == 1


def keep_the_largest_scale(rank):
    """Rows under the largest scale keep their bytes; rows of zeros have no say."""
    mesh = init_device_mesh("cpu", (2,))
    values = [random_tensor((8, 16)) * 100, random_tensor((8, 16), seed=1)]
    shard = current_quantizer()(values[rank])
    gathered = shard._fsdp_shard(mesh, (16, 16))
    whole = current_quantizer()(torch.cat(values))
    assert torch.equal(gathered._scale_inv, whole._scale_inv)
    if rank == 0:
        assert gathered is shard
    zeros_or_small = current_quantizer()(values[1] * rank)
    assert torch.equal(
        zeros_or_small._fsdp_shard(mesh, (16, 16))._scale_inv,
        current_quantizer()(values[1])._scale_inv,
    )


@pytest.mark.slow  # may be the first to start the ranks
def test_the_common_scale_is_that_of_the_whole():
    ranks(2).run(keep_the_largest_scale)
