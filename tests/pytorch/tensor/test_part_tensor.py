# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Parts of block-scaled tensors: what is written to them is in the tensor."""

import copy
import functools
import io
import pickle

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.copies import decode_stored
from helpers.generators import random_tensor
from helpers.quantizers import (
    ALL_QUANTIZERS,
    BLOCK_QUANTIZERS,
    USAGES,
    block_quantizer,
    current_quantizer,
    mxfp8_quantizer,
)
from helpers.tolerances import assert_identical
from transformer_engine.pytorch.tensor import GroupedTensor, HybridQuantizer, NVFP4Quantizer
from transformer_engine.pytorch.tensor.part_tensor import TensorPart

MAKERS = {
    **BLOCK_QUANTIZERS,
    "nvfp4_rows": functools.partial(NVFP4Quantizer, row_scaled_nvfp4=True),
    "hybrid": ALL_QUANTIZERS["hybrid"],
}
BLOCKS = pytest.mark.parametrize("make", BLOCK_QUANTIZERS.values(), ids=BLOCK_QUANTIZERS)
FORMATS = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
ROWS, COLS = 315, 140  # no multiples of a block
BLOCK_ROWS = {"mxfp8": 32, "mxfp8_tiles": 32, "blocks": 128, "tiles": 128}


def values_of(seed, largest=100.0, rows=ROWS):
    """Rows of different size; every 32nd holds the same maximum."""
    values = random_tensor((rows, COLS), seed=seed) * torch.linspace(0.1, 3, rows)[:, None]
    values[::32, 5] = largest
    return values


def buffers_of(tensor):
    return {name: b.clone() for name, b in tensor._buffers().items() if b is not None}


def assert_same(tensor, expected):
    held = expected if isinstance(expected, dict) else buffers_of(expected)
    actual = buffers_of(tensor)
    assert set(actual) == set(held)
    for name, buffer in held.items():
        assert torch.equal(actual[name], buffer), name


def decoded(tensor, columnwise):
    """float32 [rows, cols] of a copy, from the tables of its format."""
    values = decode_stored(tensor._copy(columnwise), columnwise, *tensor.shape)
    return (values.t() if columnwise else values).float().contiguous()


def alone(tensor, columnwise):
    """The same buffers of one copy."""
    alias = tensor.detach()
    alias.update_usage(rowwise_usage=not columnwise, columnwise_usage=columnwise)
    return alias


@FORMATS
@pytest.mark.parametrize("usages", USAGES.values(), ids=USAGES)
@pytest.mark.parametrize(("first", "last"), [(0, 128), (128, 256), (128, ROWS), (256, ROWS)])
def test_whole_blocks_are_copied_code_for_code(make, usages, first, last):
    if getattr(make, "keywords", {}).get("row_scaled_nvfp4") and usages["columnwise"]:
        pytest.skip("the columnwise copy has an amax of the whole, and no part of it")
    tensor, source = make(**usages)(values_of(0)), make(**usages)(values_of(1))
    merged, version = values_of(0), tensor._version
    merged[first:last] = values_of(1)[first:last]
    tensor[first:last].copy_(source[first:last])
    assert_same(tensor, make(**usages)(merged))
    assert tensor._version > version
    # As torch.distributed.checkpoint does with files of parts, and of wholes.
    for rows in (values_of(2)[first:last], values_of(3)[first:last]):
        tensor.narrow(0, first, last - first).detach().copy_(make(**usages)(rows))
        merged[first:last] = rows
        assert_same(tensor, make(**usages)(merged))
    part = make(**usages)(torch.zeros(last - first, COLS))
    part.copy_(source.narrow(0, first, last - first))
    assert_same(part, make(**usages)(values_of(1)[first:last]))


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4", "blocks"])
def test_rows_without_columnwise_copy_are_blocks_one_by_one(name):
    make = functools.partial(MAKERS[name], columnwise=False)
    tensor, source = make()(values_of(0)), make()(values_of(1))
    merged = values_of(0)
    merged[32:67] = values_of(1)[32:67]
    tensor[32:67].copy_(source[32:67])
    assert_same(tensor, make()(merged))


@BLOCKS
def test_a_copy_that_the_source_lacks_is_made_from_its_values(make):
    tensor, source = make()(values_of(0)), make(columnwise=False)(values_of(1))
    whole = make()(values_of(0))
    whole.copy_(source)
    for first in range(0, ROWS, 128):
        tensor[first : first + 128].copy_(source[first : first + 128])
    assert_same(tensor, whole)


TILES = functools.partial(NVFP4Quantizer, with_2d_quantization=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("make", [NVFP4Quantizer, TILES], ids=["blocks", "tiles"])
def test_parts_under_other_amaxes_are_rounded_once(make, order, dtype):
    size, largest = 64, (100.0, 3200.0, 700.0)
    parts = [make()(values_of(i, n, size).to(dtype)) for i, n in enumerate(largest)]
    tensor = make()(values_of(9, 300.0, 3 * size).to(dtype))
    merged = [decoded(tensor, columnwise) for columnwise in (False, True)]
    for index in order:
        first, last = index * size, (index + 1) * size
        for columnwise, values in enumerate(merged):
            values[first:last] = decoded(parts[index], columnwise).to(dtype)
        tensor[first:last].copy_(parts[index])
        parts[index].zero_()  # what was copied stays what it was
        for columnwise, values in enumerate(merged):
            expected = make(rowwise=not columnwise, columnwise=bool(columnwise))(values)
            found = decoded(tensor, columnwise)
            assert_identical(found, decoded(expected, columnwise), str((index, columnwise)))
    assert tensor._amax_rowwise.item() == 3200.0
    tensor[size : 2 * size].zero_()
    assert tensor._amax_rowwise.item() < 3200.0


def test_a_write_in_between_is_not_undone():
    make = TILES
    tensor = make()(values_of(0, 10.0, 64))
    tensor[:32].copy_(make()(values_of(1, 20.0, 32)))
    tensor.zero_()
    tensor[32:].copy_(make()(values_of(2, 30.0, 32)))
    assert not tensor.dequantize()[:32].any()
    expected = make()(values_of(2, 30.0, 32)).dequantize()
    assert_identical(tensor.dequantize()[32:], expected)
    tensor._rowwise_data.zero_()  # past all of us
    tensor.update_usage(columnwise_usage=False)
    tensor[:32].copy_(make(columnwise=False)(values_of(1, 20.0, 32)))
    assert not tensor.dequantize()[32:].any()


@pytest.mark.parametrize("name", BLOCK_QUANTIZERS)
@pytest.mark.parametrize(("first", "last"), [(5, 37), (0, 4), (256, ROWS), (130, 131), (100, 260)])
def test_rows_of_values_are_quantized_in_the_tensor(name, first, last):
    make, block = BLOCK_QUANTIZERS[name], BLOCK_ROWS.get(name, ROWS)
    tensor, rows = make()(values_of(0)), random_tensor((last - first, COLS), seed=4)
    begin, end = first // block * block, min(-(-last // block) * block, ROWS)
    before = [decoded(tensor, c) for c in (False, True)]
    merged = [tensor.dequantize(), alone(tensor, columnwise=True).dequantize()]
    tensor[first:last].copy_(rows)
    for columnwise, old in enumerate(before):
        new = decoded(tensor, bool(columnwise))
        assert_identical(new[:begin], old[:begin])
        assert_identical(new[end:], old[end:])
        merged[columnwise][first:last] = rows
        quantizer = make(rowwise=not columnwise, columnwise=bool(columnwise))
        window = quantizer(merged[columnwise][begin:end])
        assert_identical(new[begin:end], decoded(window, bool(columnwise)))


@FORMATS
def test_rows_of_all_blocks_are_those_of_a_quantized_whole(make):
    usages = {"columnwise": False} if make is MAKERS["nvfp4_rows"] else {}
    tensor, merged = make(**usages)(values_of(0)), values_of(0)
    for first, last in ((128, 256), (0, 128), (256, ROWS)):
        merged[first:last] = values_of(1)[first:last]
        tensor[first:last].copy_(values_of(1)[first:last])
    assert_same(tensor, make(**usages)(values_of(1)))


VIEWS = [
    lambda t: t[2:4],
    lambda t: t[3],
    lambda t: t[..., ::3],
    lambda t: t.transpose(0, 1),
    lambda t: t.unsqueeze(0),
    lambda t: torch.as_strided(t, (3, 10), (80, 1), 40),
    lambda t: t[10:90][3:70].t()[4:9].unsqueeze(1),
    lambda t: t[40:60].view(4, 5, COLS)[1:3],
    lambda t: t.split([100, 215])[1],
    lambda t: t.split(32)[2],
    lambda t: t.unbind(1)[7],
    lambda t: t.diagonal(),
    lambda t: t[:3].expand(2, 3, COLS),
    lambda t: t[16:16],
    lambda t: t[:, 5:5],
    lambda t: t.narrow(1, 0, COLS).narrow(0, 3, 6),
    lambda t: t[20:30].detach(),
]


@pytest.mark.parametrize("make", [MAKERS[n] for n in ("mxfp8", "nvfp4_tiles", "hybrid")])
@pytest.mark.parametrize("take", VIEWS)
def test_parts_read_and_write_as_those_of_plain_tensors(make, take):
    tensor = make()(values_of(0))
    part, plain = take(tensor), tensor.dequantize()
    shown = take(plain)
    assert isinstance(part, TensorPart)
    assert (part.shape, part.stride(), part.dtype) == (shown.shape, shown.stride(), shown.dtype)
    assert_identical(part.dequantize(), shown)
    assert_identical(part + 1, shown + 1)
    if any(step == 0 for step in shown.stride()):
        with pytest.raises(RuntimeError, match="more than one element"):
            part.copy_(torch.ones(part.shape))
        return
    part.fill_(0.5)  # which every format holds, next to the maximum too
    shown.fill_(0.5)
    expected = make()(plain).dequantize()
    assert_identical(part.dequantize(), take(expected))
    tensor.copy_(values_of(6))
    assert_identical(part.dequantize(), take(tensor.dequantize()))


@BLOCKS
def test_one_rounding_of_the_written_elements(make):
    tensor = make()(random_tensor((128, 128)))
    part = tensor[:, 16:32]
    values = random_tensor((128, 16), seed=1)
    merged = tensor.dequantize()
    merged[:, 16:32] = values
    part.copy_(values)
    assert_identical(tensor.dequantize(), make()(merged).dequantize())
    part += 1
    merged = tensor.dequantize()
    assert_identical(part.dequantize(), merged[:, 16:32])


OPERATIONS = {
    "init": (slice(4), torch.nn.init.normal_),
    "zero": (slice(128), lambda t: t.zero_()),
    "out": (slice(128, 160), lambda t: torch.mul(torch.ones(32, COLS), 2.0, out=t)),
    "inplace": (slice(7, 9), lambda t: t.mul_(3.0)),
    "foreach": (slice(40, 50), lambda t: torch._foreach_add_([t], 2.0)),
    "index": (slice(300, 310), lambda t: t.__setitem__((2, slice(4, 8)), 1.5)),
    "quantize": (
        slice(160, 192),
        lambda t: getattr(t, "quantize_", t.copy_)(torch.full((32, COLS), 4.0)),
    ),
}


@FORMATS
@pytest.mark.parametrize(("rows", "operation"), OPERATIONS.values(), ids=OPERATIONS)
def test_operations_write_where_they_should(make, rows, operation):
    usages = {"columnwise": False} if make is MAKERS["nvfp4_rows"] else {}
    tensor = make(**usages)(values_of(0))
    merged, before = tensor.dequantize(), tensor._version
    torch.manual_seed(0)
    operation(merged[rows])
    torch.manual_seed(0)
    operation(tensor[rows])
    expected = make(**usages)(merged).dequantize()
    assert_identical(tensor[rows].dequantize(), expected[rows])
    assert_identical(tensor.dequantize()[rows], expected[rows])
    assert tensor._version > before


def test_a_flag_keeps_the_values():
    tensor = mxfp8_quantizer()(values_of(0))
    before = buffers_of(tensor)
    tensor[160:192].quantize_(torch.zeros(32, COLS), noop_flag=torch.ones(1))
    assert_same(tensor, before)
    tensor[160:192].quantize_(torch.zeros(32, COLS), noop_flag=torch.zeros(1))
    assert not tensor.dequantize()[160:192].any()


@pytest.mark.parametrize("name", ["current", "identity"])
def test_hybrids_with_a_scale_of_the_whole_are_quantized_as_wholes(name):
    quantizer = HybridQuantizer(
        rowwise_quantizer=mxfp8_quantizer(), columnwise_quantizer=ALL_QUANTIZERS[name]()
    )
    tensor = quantizer(values_of(0))
    merged = tensor.dequantize()
    source = quantizer(values_of(1)[:128])
    merged[:128] = source.dequantize()
    tensor[:128].copy_(source)
    assert_same(tensor, quantizer(merged))


def test_parts_of_groups_reach_the_members():
    values = [random_tensor((32, 48)), random_tensor((64, 48), seed=1)]
    group = GroupedTensor.from_tensors(values, mxfp8_quantizer())
    rows = random_tensor((20, 48), seed=2)
    merged = group.dequantize()
    merged[20:40] = rows
    group[20:40].copy_(rows)
    expected = GroupedTensor.from_tensors(merged.split([32, 64]), mxfp8_quantizer())
    assert_identical(group.dequantize(), expected.dequantize())


def test_a_copy_elsewhere_that_a_part_made_old_is_found():
    for make, is_made_again in ((mxfp8_quantizer, False), (block_quantizer, True)):
        tensor = make()(values_of(0))
        other = tensor.detach()
        other.update_usage(columnwise_usage=False)
        other[:128].copy_(make(columnwise=False)(values_of(1)[:128]))
        if is_made_again:
            merged = torch.cat([values_of(1)[:128], values_of(0)[128:]])
            tensor[128:256].copy_(make()(values_of(0)[128:256]))
            assert_same(tensor, make()(merged))
            continue
        before = buffers_of(tensor)
        for write in (
            lambda t: t[32:64].copy_(mxfp8_quantizer()(values_of(2)[32:64])),
            lambda t: t[32:64].fill_(1.0),
            lambda t: t._native_operand(),
        ):
            with pytest.raises(RuntimeError, match="the columnwise copy is older than"):
                write(tensor)
        assert_same(tensor, before)
    tensor = mxfp8_quantizer()(values_of(0))
    part = tensor[:32]
    tensor.update_usage(columnwise_usage=False)
    part.copy_(values_of(1)[:32])
    merged = torch.cat([values_of(1)[:32], values_of(0)[32:]])
    assert_same(tensor, mxfp8_quantizer(columnwise=False)(merged))


@FORMATS
def test_copies_are_of_the_format_where_there_are_whole_blocks(make):
    usages = {"columnwise": False} if make is MAKERS["nvfp4_rows"] else {}
    tensor = make(**usages)(values_of(0))
    expected, file = make(**usages)(values_of(0)[128:256]), io.BytesIO()
    torch.save(tensor[128:256], file)
    file.seek(0)
    for twin in (
        tensor[128:256].clone(),
        copy.deepcopy(tensor[128:256]),
        pickle.loads(pickle.dumps(tensor[128:256])),
        torch.load(file, weights_only=True),
    ):
        assert type(twin) is type(tensor)
        assert_same(twin, expected)
    before = buffers_of(tensor)
    tensor[128:256].clone().zero_()
    assert_same(tensor, before)
    plain = tensor[128:256].t().clone()
    assert type(plain) is torch.Tensor
    assert_identical(plain, tensor.dequantize()[128:256].t())


def test_gradients_pass_through_parts():
    weight = torch.nn.Parameter(mxfp8_quantizer()(values_of(0)))
    scale = random_tensor((40, COLS), seed=5)
    (weight[10:50].dequantize() * scale).sum().backward()
    expected = torch.zeros(ROWS, COLS)
    expected[10:50] = scale
    assert_identical(weight.grad, expected)
    weight.grad = None
    (weight[10:50] * scale).sum().backward()
    assert_identical(weight.grad, expected)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        weight[:4].zero_()
    with torch.no_grad():
        weight[:4].zero_()
    assert not weight.dequantize()[:4].any()


def test_modules_read_parts():
    torch.manual_seed(0)
    module = te.Linear(COLS, 32, device=torch.get_default_device())
    x = mxfp8_quantizer()(values_of(0))
    assert_identical(module(x[64:96]), module(x.dequantize()[64:96]))


def test_what_parts_cannot_do_is_refused():
    tensor = mxfp8_quantizer()(values_of(0))
    part, before = tensor[:32], buffers_of(tensor)
    with pytest.raises(ValueError, match=r"tensor has shape \(31, 140\); \(32, 140\) is required"):
        part.quantize_(torch.zeros(31, COLS))
    with pytest.raises(RuntimeError, match=r"TensorPart\.data: a part was assigned a Tensor"):
        part.data = torch.zeros(32, COLS)
    with pytest.raises(RuntimeError, match="two written tensors share bytes"):
        torch._foreach_add_([part, tensor[16:64]], 1.0)
    tensor._quantizer = None
    with pytest.raises(RuntimeError, match="the tensor has no quantizer"):
        tensor[:32].fill_(1.0)
    assert_same(tensor, before)
    swizzled = mxfp8_quantizer()(values_of(0))
    swizzled._with_gemm_swizzled_scales = True
    with pytest.raises(NotImplementedError, match="with_gemm_swizzled_scales is True"):
        swizzled[:32].zero_()
    with pytest.raises(TypeError):
        current_quantizer().update_quantized(torch.zeros(32, COLS), part)


def test_a_part_shows_its_values():
    text = repr(mxfp8_quantizer()(torch.ones(64, 32))[:1, :2])
    assert text == "TensorPart(of=MXFP8Tensor, data=tensor([[1., 1.]]))"
