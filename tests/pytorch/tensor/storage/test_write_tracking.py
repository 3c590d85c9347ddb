# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tensors that share buffers, of which one is written without one of its copies."""

import copy
import io

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.generators import random_tensor
from helpers.quantizers import ALL_QUANTIZERS
from helpers.tolerances import assert_identical
from transformer_engine.common.recipe import Float8BlockScaling, MXFP8BlockScaling

# Formats in which one copy follows from the other, and those in which none does.
TILES = {name: ALL_QUANTIZERS[name] for name in ("tiles", "mxfp8_tiles", "nvfp4_tiles")}
APART = {name: ALL_QUANTIZERS[name] for name in ("blocks", "mxfp8", "nvfp4", "hybrid")}
FLOAT8 = {name: ALL_QUANTIZERS[name] for name in ("delayed", "current")}
ALIASES = {
    "detach": lambda tensor: tensor.detach(),
    "view": lambda tensor: tensor.view(-1, tensor.shape[-1]),
    "data": lambda tensor: tensor.data,
    "parameter": torch.nn.Parameter,
    "dtype": lambda tensor: tensor.to(torch.bfloat16),
}
SHAPE = (160, 144)
OTHER = {"rowwise": "columnwise", "columnwise": "rowwise"}


def formats(table):
    return pytest.mark.parametrize("make", table.values(), ids=table)


KEPT = pytest.mark.parametrize("kept", ["rowwise", "columnwise"])


def alias_of(tensor, kept, kind="detach"):
    """An alias that has, and makes, one copy only."""
    alias = ALIASES[kind](tensor)
    alias._quantizer.set_usage(**{OTHER[kept]: False})
    alias.update_usage(**{f"{OTHER[kept]}_usage": False})
    return alias


def write(alias, seed=7):
    values = random_tensor(SHAPE, seed=seed)
    with torch.no_grad():
        alias.quantize_(values.view(alias.shape))
    return values


def assert_same_buffers(actual, expected):
    for name, buffer in expected._buffers().items():
        held = actual._buffers()[name]
        assert held is buffer is None or torch.equal(held, buffer), name


@formats(TILES)
@KEPT
@pytest.mark.parametrize("kind", ALIASES)
@pytest.mark.parametrize(
    "read",
    [
        lambda tensor: tensor._native_operand() and tensor,
        lambda tensor: tensor.clone(),
        copy.deepcopy,
        lambda tensor: (tensor.update_usage(True, True), tensor)[1],
        lambda tensor: torch.load(saved(tensor), weights_only=False),
    ],
    ids=["operand", "clone", "deepcopy", "usage", "file"],
)
def test_tiles_are_made_again_from_the_copy_that_was_written(make, kept, kind, read):
    tensor = make()(random_tensor(SHAPE))
    values = write(alias_of(tensor, kept, kind))
    assert_same_buffers(read(tensor), make()(values))


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@formats(TILES)
@KEPT
def test_values_of_tiles_are_those_of_the_copy_that_was_written(make, kept):
    tensor = make()(random_tensor(SHAPE))
    values = write(alias_of(tensor, kept))
    if make is not TILES["nvfp4_tiles"]:  # a columnwise copy alone of which is not read
        other = tensor.detach()
        other.update_usage(**{f"{kept}_usage": False})
        assert_identical(other.dequantize(), make()(values).dequantize())
    assert_identical(tensor.dequantize(), make()(values).dequantize())


@formats(APART)
@KEPT
@pytest.mark.parametrize("kind", ALIASES)
def test_a_stale_copy_that_cannot_be_made_again_is_refused(make, kept, kind):
    tensor = make()(random_tensor(SHAPE))
    values = write(alias_of(tensor, kept, kind))
    reads = {
        "_native_operand": lambda t: t._native_operand(),
        "clone": lambda t: t.clone(),
        "update_usage": lambda t: t.update_usage(**{f"{kept}_usage": False}),
        "__reduce_ex__": saved,
    }
    for method, read in reads.items():
        message = rf"\.{method}: the {OTHER[kept]} copy is older than .* \(quantize_\)"
        with pytest.raises(RuntimeError, match=message):
            read(tensor)
        with pytest.raises(RuntimeError, match=message):
            read(tensor.detach())
    # The remedies: the newer copy alone, or new values.
    alone = tensor.detach()
    alone.update_usage(**{f"{OTHER[kept]}_usage": False})
    expected = make(**{OTHER[kept]: False})(values)
    assert_same_buffers(alone, expected)
    again = write(tensor, seed=8)
    assert_same_buffers(tensor.clone(), make()(again))


@formats({k: v for k, v in APART.items() if k != "hybrid"})
def test_values_are_those_of_the_newer_copy(make):
    tensor = make()(random_tensor(SHAPE))
    values = write(alias_of(tensor, "rowwise"))
    expected = make(columnwise=False)(values)
    assert_identical(tensor.dequantize(), expected.dequantize())
    copied = make()(random_tensor(SHAPE, seed=3))
    copied.copy_(tensor)
    assert torch.equal(copied._rowwise_data, expected._rowwise_data)
    again = make()(expected.dequantize())
    assert torch.equal(copied._columnwise_data, again._columnwise_data)
    copied.clone()  # both are of the same values


@formats({**TILES, **APART})
@KEPT
def test_a_copy_alone_is_refused_when_the_other_was_written(make, kept):
    tensor = make()(random_tensor(SHAPE))
    left, written = alias_of(tensor, OTHER[kept]), alias_of(tensor, kept)
    left._native_operand()
    write(written)
    with pytest.raises(RuntimeError, match=f"the {OTHER[kept]} copy is older"):
        left._native_operand()
    write(left)
    left._native_operand()


@formats({**TILES, **APART})
def test_copies_that_were_written_apart_have_no_order(make):
    tensor = make()(random_tensor(SHAPE))
    parts = [alias_of(tensor, kept) for kept in ("rowwise", "columnwise")]
    for seed, part in enumerate(parts):
        write(part, seed=5 + seed)
    for read in (lambda: tensor._native_operand(), tensor.dequantize):
        with pytest.raises(RuntimeError, match="one copy is older than"):
            read()
    values = write(tensor)
    assert_same_buffers(tensor.clone(), make()(values))


@formats(FLOAT8)
@KEPT
@pytest.mark.parametrize("kind", ALIASES)
def test_bytes_and_transposes_of_aliases_are_of_the_same_values(make, kept, kind):
    tensor = make()(random_tensor(SHAPE))
    written = alias_of(tensor, kept, kind)
    left = alias_of(tensor, OTHER[kept])
    values = write(written)
    expected = make()(values)
    # The bytes alone, or the transpose alone, are older than what was written.
    reads = {
        "_native_operand": lambda t: t._native_operand(),
        "dequantize": lambda t: t.dequantize(),
        "clone": lambda t: t.clone(),
        "__reduce_ex__": saved,
    }
    for method, read in reads.items():
        with pytest.raises(RuntimeError, match=rf"\.{method}: the {OTHER[kept]} copy is older"):
            read(left)
    if kept == "rowwise":  # a transpose beside newer bytes is made again
        tensor.update_usage(columnwise_usage=True)
        assert_same_buffers(tensor.clone(), expected)
    else:
        with pytest.raises(RuntimeError, match="the rowwise copy is older"):
            tensor.dequantize()
    values = write(tensor, seed=8)
    assert_same_buffers(tensor.clone(), make()(values))
    assert_identical(left.dequantize(), tensor.dequantize())


COPIES = {
    "clone": lambda tensor: tensor.clone(),
    "deepcopy": copy.deepcopy,
    "to": lambda tensor: tensor.to(copy=True),
    "file": lambda tensor: torch.load(saved(tensor), weights_only=False),
    "empty_like": torch.empty_like,
    "storage": lambda tensor: te.Float8Tensor.make_like(
        te.tensor.Float8TensorStorage(**tensor.clone().get_metadata())
    ),
    "buffers": lambda tensor: te.Float8Tensor.make_like(
        tensor,
        data=tensor._data.clone(),
        data_transpose=tensor._transpose.clone(),
    ),
}


@formats(FLOAT8)
@KEPT
@pytest.mark.parametrize("kind", COPIES)
def test_every_float8_tensor_knows_what_its_copies_hold(make, kept, kind):
    tensor = COPIES[kind](make()(random_tensor(SHAPE)))
    tensor._quantizer = tensor._quantizer or make()  # unpickled without
    tensor.update_usage(columnwise_usage=True)
    tensor = tensor.detach()
    left = tensor.detach()
    left.update_usage(**{f"{kept}_usage": False})
    values = write(alias_of(tensor, kept))
    for stale in (left, tensor) if kept == "columnwise" else (left,):
        with pytest.raises(RuntimeError, match=f"the {OTHER[kept]} copy is older"):
            stale.dequantize()
    if kept == "rowwise":  # a transpose beside newer bytes is made again
        tensor.update_usage(columnwise_usage=True)
        assert_same_buffers(tensor.clone(), make()(values))


@formats(FLOAT8)
def test_parts_of_float8_tensors_are_writes_to_the_bytes(make):
    tensor = make()(random_tensor(SHAPE))
    left = alias_of(tensor, "columnwise")
    tensor[3:5].fill_(0.5)
    assert len(tensor.dequantize()[3:5].unique()) == 1
    with pytest.raises(RuntimeError, match="the columnwise copy is older"):
        left.dequantize()


@formats(TILES)
def test_writes_past_the_quantizer_are_seen(make):
    tensor, values = make()(random_tensor(SHAPE)), random_tensor(SHAPE, seed=3)
    new = make()(values)
    for name in tensor._copy_fields[0]:
        getattr(tensor, name).copy_(getattr(new, name))
    assert_same_buffers(tensor.clone(), new)


@formats({**TILES, **APART})
def test_writes_to_all_copies_reach_all_aliases(make):
    tensor = make()(random_tensor(SHAPE))
    alias = tensor.view(-1, SHAPE[-1])
    for seed, one in enumerate((tensor, alias, alias.detach())):
        values = write(one, seed=seed)
        for other in (tensor, alias):
            assert_same_buffers(other.clone(), make()(values))
    tensor.copy_(make()(random_tensor(SHAPE, seed=9)))
    alias._native_operand()
    tensor.copy_from_storage(make()(random_tensor(SHAPE, seed=10)))
    alias._native_operand()


def test_parts_of_a_tensor_count_for_the_whole():
    make = ALL_QUANTIZERS["mxfp8"]
    tensor = make()(random_tensor((256, 64)))
    top, bottom = tensor.split(128)
    values = random_tensor((128, 64), seed=2)
    top.quantize_(values)
    assert torch.equal(tensor.clone().dequantize()[:128], make()(values).dequantize())
    bottom._native_operand()
    alone = alias_of(bottom, "rowwise")
    alone.quantize_(values)
    for stale in (tensor, bottom):
        with pytest.raises(RuntimeError, match="the columnwise copy is older"):
            stale._native_operand()
    tensor = make()(random_tensor((256, 64)))
    top = tensor.split(128)[0]
    left, whole = alias_of(top, "columnwise"), alias_of(tensor, "rowwise")
    whole.quantize_(random_tensor((256, 64), seed=4))
    with pytest.raises(RuntimeError, match="the columnwise copy is older"):
        left._native_operand()


@formats({**TILES, **APART})
def test_files_of_buffers_hold_plain_tensors(make):
    data = make()(random_tensor(SHAPE)).get_data_tensors()[0]
    assert torch.equal(torch.load(saved(data), weights_only=True), data)


@pytest.mark.parametrize(
    ("recipe", "is_exact"), [(Float8BlockScaling(), True), (MXFP8BlockScaling(), False)]
)
def test_gradients_of_a_layer_read_what_was_written(recipe, is_exact):
    with te.quantized_model_init(recipe=recipe):
        layer = te.Linear(SHAPE[1], SHAPE[0], bias=False)
        fresh = te.Linear(SHAPE[1], SHAPE[0], bias=False)
    values = write(alias_of(layer.weight, "rowwise"))
    with torch.no_grad():
        fresh.weight.quantize_(values)
    x = random_tensor((32, SHAPE[1]), seed=1).requires_grad_()
    grads = []
    for module in (layer, fresh):
        with te.autocast(recipe=recipe):
            if module is layer and not is_exact:
                with pytest.raises(RuntimeError, match="the columnwise copy is older"):
                    module(x)
                continue
            grads.append(torch.autograd.grad(module(x).square().sum(), x)[0])
    assert not is_exact or torch.equal(*grads)
