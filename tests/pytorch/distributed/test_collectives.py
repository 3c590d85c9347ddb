# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Collectives along the first axis, plain and quantized."""

import pytest
import torch

from helpers.generators import random_tensor, strided_copy
from helpers.quantizers import current_quantizer, delayed_quantizer
from helpers.ranks import ranks
from transformer_engine.pytorch import distributed
from transformer_engine.pytorch.tensor import Float8Tensor, IdentityQuantizer

SHAPE = (3, 2, 5)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def part_of(rank, dtype=torch.float32):
    return random_tensor(SHAPE, seed=10 + rank, dtype=dtype) * (1 + 2 * rank)


def whole(dtype=torch.float32):
    return torch.cat([part_of(rank, dtype) for rank in range(2)])


def finish(result, handle, is_async):
    assert (handle is not None) is is_async
    if handle is not None:
        handle.wait()
    return result


def gather_plain(rank):
    for dtype in DTYPES:
        for is_async in (False, True):
            result = finish(
                *distributed.gather_along_first_dim(part_of(rank, dtype), None, is_async), is_async
            )
            assert torch.equal(result, whole(dtype))
    result, _ = distributed.gather_along_first_dim(strided_copy(part_of(rank)), process_group=None)
    assert torch.equal(result, whole())
    output = torch.zeros(6, 2, 5)
    result, _ = distributed.gather_along_first_dim(part_of(rank), None, output_tensor=output)
    assert result is output
    assert torch.equal(output, whole())
    empty, _ = distributed.gather_along_first_dim(torch.zeros(0, 4), None)
    assert empty.shape == (0, 4)
    for bad in (torch.zeros(5, 2, 5), torch.zeros(6, 2, 5, dtype=torch.float64)):
        with pytest.raises(ValueError, match="output_tensor has shape"):
            distributed.gather_along_first_dim(part_of(rank), None, output_tensor=bad)
    with pytest.raises(ValueError, match=r"inp has shape \(\)"):
        distributed.gather_along_first_dim(torch.zeros(()), None)


def gather_quantized(rank):
    for make in (delayed_quantizer, current_quantizer):
        for usages in ({}, {"columnwise": False}, {"rowwise": False}):
            for is_async in (False, True):
                quantizer = make(**usages)
                result = finish(
                    *distributed.gather_along_first_dim(
                        part_of(rank), None, is_async, quantizer=quantizer
                    ),
                    is_async,
                )
                expected = make(**usages)(whole())
                assert isinstance(result, Float8Tensor)
                assert result.get_usages() == expected.get_usages()
                for name in ("_data", "_transpose", "_scale_inv"):
                    mine, other = getattr(result, name), getattr(expected, name)
                    assert (mine is None) == (other is None)
                    assert mine is None or torch.equal(mine, other)
                assert quantizer.get_usages() == make(**usages).get_usages()


def gather_already_quantized(rank):
    # Delayed scaling: one scale by construction.
    shard = delayed_quantizer()(part_of(rank))
    result, _ = distributed.gather_along_first_dim(shard, None, quantizer=delayed_quantizer())
    assert torch.equal(result._data, delayed_quantizer()(whole())._data)
    # Current scaling without reduction: the ranks' scales differ, so bytes cannot be joined.
    shard = current_quantizer()(part_of(rank))
    result, _ = distributed.gather_along_first_dim(shard, None, quantizer=current_quantizer())
    values = torch.cat([current_quantizer()(part_of(r)).dequantize() for r in range(2)])
    assert torch.equal(result._data, current_quantizer()(values)._data)
    # With reduction they agree, and the bytes go as they are.
    shard = current_quantizer(with_amax_reduction=True)(part_of(rank))
    result, _ = distributed.gather_along_first_dim(shard, None, quantizer=current_quantizer())
    assert torch.equal(result._data, current_quantizer()(whole())._data)
    # Without a quantizer the result is plain.
    result, _ = distributed.gather_along_first_dim(delayed_quantizer()(part_of(rank)), None)
    assert torch.equal(result, delayed_quantizer()(whole()).dequantize())


def gather_into_quantized_output(rank):
    output = delayed_quantizer().make_empty((6, 2, 5))
    data = output._data
    result, _ = distributed.gather_along_first_dim(
        part_of(rank), None, quantizer=delayed_quantizer(), output_tensor=output
    )
    assert result is output
    assert output._data is data
    assert torch.equal(data, delayed_quantizer()(whole())._data)
    assert torch.equal(output._transpose, delayed_quantizer()(whole())._transpose)


def gather_other_formats(rank):
    with pytest.warns(UserWarning, match="IdentityQuantizer has no gather"):
        result, handle = distributed.gather_along_first_dim(
            part_of(rank), None, async_op=True, quantizer=IdentityQuantizer()
        )
    assert handle is None
    assert torch.equal(result.dequantize(), whole())


def coalesce(rank):
    results = []
    with torch.distributed._coalescing_manager(async_ops=True) as manager:
        for dtype in (torch.float32, torch.float32):
            result, handle = distributed.gather_along_first_dim(
                part_of(rank, dtype), None, external_coalescing=True
            )
            assert handle is None
            results.append(result)
    manager.wait()
    assert all(torch.equal(result, whole()) for result in results)


def reduce_scatter(rank):
    for dtype in DTYPES:
        inp = [random_tensor((4, 3), seed=seed, dtype=dtype) for seed in range(2)]
        expected = (inp[0] + inp[1])[2 * rank : 2 * rank + 2]
        for is_async in (False, True):
            result = finish(
                *distributed.reduce_scatter_along_first_dim(inp[rank], None, is_async), is_async
            )
            assert torch.equal(result, expected)
    output = torch.zeros(2, 3, dtype=dtype)
    result, _ = distributed.reduce_scatter_along_first_dim(
        strided_copy(inp[rank]), tp_group=None, output=output
    )
    assert result is output
    assert torch.equal(output, expected)
    quantized = delayed_quantizer()(inp[rank])
    plain = [delayed_quantizer()(value).dequantize() for value in inp]
    result, _ = distributed.reduce_scatter_along_first_dim(quantized, None)
    assert torch.equal(result, (plain[0] + plain[1])[2 * rank : 2 * rank + 2])
    for bad in (torch.zeros(3, 3), torch.zeros(())):
        with pytest.raises(ValueError, match="multiple of the group's 2 ranks"):
            distributed.reduce_scatter_along_first_dim(bad, None)


def all_reduce(rank):
    for function in (
        distributed.allreduce,
        lambda inp, group, is_async: distributed.symmetric_all_reduce(
            inp, group, is_async, all_reduce_type="nccl"
        ),
    ):
        for is_async in (False, True):
            inp = torch.full((3,), 1.0 + rank)
            result, handle = function(inp, None, is_async)
            finish(result, handle, is_async)
            assert result is inp
            assert inp.tolist() == [3.0] * 3
    for kind in ("multimem_all_reduce", "two_shot", "one_shot"):
        with pytest.raises(NotImplementedError, match=kind):
            distributed.symmetric_all_reduce(torch.zeros(1), None, all_reduce_type=kind)
    with pytest.raises(TypeError, match="all_reduce_type is 'other'"):
        distributed.symmetric_all_reduce(torch.zeros(1), None, all_reduce_type="other")


def split_and_gather(rank):
    tensor = random_tensor((4, 3))
    part = distributed.split_tensor_into_1d_equal_chunks(tensor, None)
    assert torch.equal(part, tensor.view(-1)[6 * rank : 6 * rank + 6])
    assert part.data_ptr() == tensor.view(-1)[6 * rank :].data_ptr()
    copied = distributed.split_tensor_into_1d_equal_chunks(tensor, None, new_buffer=True)
    assert copied.data_ptr() != part.data_ptr()
    gathered = distributed.gather_split_1d_tensor(copied, None)
    assert torch.equal(gathered.view(4, 3), tensor)
    with pytest.raises(ValueError, match="tensor has 3 elements"):
        distributed.split_tensor_into_1d_equal_chunks(torch.zeros(3), None)


def numbered(rank, rows, dtype):
    """Small integers, which every dtype holds exactly, also the sums over four ranks."""
    return (torch.arange(rows * 3).view(rows, 3) % 8 + rank).to(dtype)


def in_groups_of_every_size(rank):
    """All ranks, and halves of them; each result is that of plain tensor operations."""
    size = torch.distributed.get_world_size()
    members = [list(range(size)), list(range(size // 2)), list(range(size // 2, size))]
    for ranks_inside in members:
        group = torch.distributed.new_group(ranks_inside)
        if rank not in ranks_inside:
            continue
        count, index = len(ranks_inside), ranks_inside.index(rank)
        for dtype in (*DTYPES, torch.int64):
            whole_rows = [numbered(r, 2 * count, dtype) for r in ranks_inside]
            total = torch.stack(whole_rows).sum(0).to(dtype)
            mine = strided_copy(whole_rows[index])
            result, _ = distributed.gather_along_first_dim(mine, group)
            assert torch.equal(result, torch.cat(whole_rows))
            result, _ = distributed.reduce_scatter_along_first_dim(mine, group)
            assert torch.equal(result, total.chunk(count)[index])
            for is_async in (False, True):
                mine = strided_copy(whole_rows[index])
                finish(*distributed.allreduce(mine, group, is_async), is_async and count > 1)
                assert torch.equal(mine, total)
        part = distributed.split_tensor_into_1d_equal_chunks(total, group)
        assert torch.equal(distributed.gather_split_1d_tensor(part, group), total.view(-1))


def leave_autograd_alone(rank):
    leaf = torch.full((2, 3), 1.0 + rank, requires_grad=True)
    for inp in (leaf, leaf * 1):
        gathered, _ = distributed.gather_along_first_dim(inp, None)
        scattered, _ = distributed.reduce_scatter_along_first_dim(inp, None)
        assert not gathered.requires_grad and not scattered.requires_grad
        assert gathered.tolist() == [[1.0] * 3] * 2 + [[2.0] * 3] * 2
        assert scattered.tolist() == [[3.0] * 3]
    assert distributed.allreduce(leaf, None)[0] is leaf
    assert leaf.tolist() == [[3.0] * 3] * 2


def gather_float8(rank):
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        parts = [torch.tensor([1.0 + r, -2.0]).to(dtype) for r in range(2)]
        result, _ = distributed.gather_along_first_dim(parts[rank], None)
        assert result.dtype == dtype
        assert result.float().tolist() == [1.0, -2.0, 2.0, -2.0]


def refuse_what_does_not_fit(rank):
    inp = torch.ones(4, 2)
    for bad in (torch.zeros(5), torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, 2).t()):
        with pytest.raises(ValueError, match="reduce_scatter_along_first_dim: output has shape"):
            distributed.reduce_scatter_along_first_dim(inp, None, output=bad)
    quantized = delayed_quantizer()(inp)
    for function in (distributed.allreduce, distributed.symmetric_all_reduce):
        with pytest.raises(TypeError, match="inp is a Float8Tensor; a plain tensor is required"):
            function(quantized, None)
    assert torch.equal(quantized.dequantize(), inp)
    first_only = torch.distributed.new_group([0])
    both = torch.distributed.new_group([0, 1])
    torch.distributed.destroy_process_group(both)
    names = ("gather_along_first_dim", "reduce_scatter_along_first_dim", "allreduce")
    for name in (*names, "symmetric_all_reduce"):
        with pytest.raises(ValueError, match=f"{name}: .*group that torch.distributed no longer"):
            getattr(distributed, name)(inp, both)
        if rank == 1:
            with pytest.raises(ValueError, match=f"{name}: .*group is a group without this rank"):
                getattr(distributed, name)(inp, first_only)


@pytest.mark.slow  # may be the first to start the ranks
@pytest.mark.parametrize("size", [2, 4])
def test_in_groups_of_every_size(size):
    ranks(size).run(in_groups_of_every_size)


@pytest.mark.slow  # may be the first to start the ranks
@pytest.mark.parametrize(
    "function",
    [
        *(leave_autograd_alone, gather_float8, refuse_what_does_not_fit),
        *(gather_plain, gather_quantized, gather_already_quantized, gather_into_quantized_output),
        *(gather_other_formats, coalesce, reduce_scatter, all_reduce, split_and_gather),
    ],
    ids=lambda function: function.__name__,
)
def test_on_two_ranks(function):
    ranks(2).run(function)


def test_a_process_alone_communicates_nothing():
    inp = part_of(0)
    assert distributed.gather_along_first_dim(inp, None, async_op=True) == (inp, None)
    assert distributed.reduce_scatter_along_first_dim(inp, None) == (inp, None)
    assert distributed.allreduce(inp) == (inp, None)
    assert distributed.symmetric_all_reduce(inp) == (inp, None)
    result, handle = distributed.gather_along_first_dim(inp, None, quantizer=delayed_quantizer())
    assert handle is None
    assert torch.equal(result._data, delayed_quantizer()(inp)._data)
    shard = delayed_quantizer(columnwise=False)(inp)
    result, _ = distributed.gather_along_first_dim(shard, None, quantizer=delayed_quantizer())
    assert result is shard
    assert result.get_usages() == {"rowwise": True, "columnwise": True}
    output = torch.zeros(SHAPE)
    assert distributed.gather_along_first_dim(inp, None, output_tensor=output)[0] is output
    assert torch.equal(output, inp)
    output = torch.zeros(SHAPE)
    assert distributed.reduce_scatter_along_first_dim(inp, None, output=output)[0] is output
    assert torch.equal(output, inp)
    shard = delayed_quantizer()(inp)
    result, _ = distributed.reduce_scatter_along_first_dim(shard, None)
    assert torch.equal(result, shard.dequantize())
    bad = torch.zeros(1)
    with pytest.raises(ValueError, match="output_tensor has shape"):
        distributed.gather_along_first_dim(inp, None, output_tensor=bad)
    with pytest.raises(ValueError, match="output has shape"):
        distributed.reduce_scatter_along_first_dim(inp, None, output=bad)


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("gather_along_first_dim", "process_group"),
        ("reduce_scatter_along_first_dim", "tp_group"),
        ("allreduce", "tp_group"),
        ("symmetric_all_reduce", "tp_group"),
    ],
)
def test_a_process_alone_checks_tensor_and_group(name, group):
    function = getattr(distributed, name)
    with pytest.raises(TypeError, match=f"{name}: {group} is 'x'; it must be a torch.distributed"):
        function(part_of(0), "x")
    with pytest.raises(TypeError, match=f"{name}: inp is 'x'; it must be a torch.Tensor"):
        function("x", None)
    with pytest.raises(TypeError, match=f"{name}: async_op is 'foo'; it must be True or False"):
        function(part_of(0), None, "foo")


@pytest.mark.parametrize("kind", ["foo", False, None])
def test_a_process_alone_refuses_unknown_kinds_of_all_reduce(kind):
    with pytest.raises(TypeError, match=f"symmetric_all_reduce: all_reduce_type is {kind!r}; one"):
        distributed.symmetric_all_reduce(part_of(0), None, False, kind)
