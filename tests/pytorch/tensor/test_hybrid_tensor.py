# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tensors whose rowwise and columnwise copies have formats of their own."""

import copy
import io
import pickle

import pytest
import torch
from torch.distributed import checkpoint

import transformer_engine.pytorch as te
from helpers.generators import random_tensor
from helpers.quantizers import (
    USAGES,
    block_quantizer,
    current_quantizer,
    delayed_quantizer,
    hybrid_quantizer,
    mxfp8_quantizer,
)
from helpers.tolerances import assert_identical
from transformer_engine.common.recipe import CustomRecipe, MXFP8BlockScaling
from transformer_engine.pytorch.tensor import (
    Float8TensorStorage,
    HybridQuantizedTensor,
    HybridQuantizedTensorStorage,
    HybridQuantizer,
    IdentityQuantizer,
    NVFP4Quantizer,
)

SHAPE = (6, 40, 48)
# Along the rows and along the columns.
PAIRS = {
    "mxfp8_blocks": lambda: (mxfp8_quantizer(), block_quantizer(dim=1)),
    "nvfp4_mxfp8": lambda: (NVFP4Quantizer(), mxfp8_quantizer()),
    "current_nvfp4": lambda: (current_quantizer(), NVFP4Quantizer()),
    "mxfp8_delayed": lambda: (mxfp8_quantizer(), delayed_quantizer()),
    "tiles_identity": lambda: (block_quantizer(), IdentityQuantizer()),
}
ALL = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)


def make_quantizer(pair, **settings):
    rowwise, columnwise = pair()
    return HybridQuantizer(rowwise_quantizer=rowwise, columnwise_quantizer=columnwise, **settings)


def make_tensor(pair=PAIRS["mxfp8_blocks"], seed=0, shape=SHAPE, **settings):
    return make_quantizer(pair, **settings)(random_tensor(shape, seed=seed))


def alone(quantizer, values, *, is_rowwise):
    """What a quantizer makes by itself."""
    quantizer.set_usage(rowwise=is_rowwise, columnwise=not is_rowwise)
    return quantizer(values)


def assert_same_buffers(actual, expected):
    expected = expected._buffers()
    for name, buffer in actual._buffers().items():
        assert (buffer is None) == (expected[name] is None), name
        assert buffer is None or torch.equal(buffer, expected[name]), name


@pytest.mark.smoke
@ALL
def test_each_half_is_what_its_quantizer_makes(pair):
    tensor, values = make_tensor(pair), random_tensor(SHAPE)
    rowwise, columnwise = pair()
    expected_rowwise = alone(rowwise, values, is_rowwise=True)
    expected_columnwise = alone(columnwise, values, is_rowwise=False)
    assert_same_buffers(tensor._rowwise_storage, expected_rowwise)
    assert_same_buffers(tensor._columnwise_storage, expected_columnwise)
    assert_identical(tensor.dequantize(), expected_rowwise.dequantize())
    tensor.update_usage(rowwise_usage=False)
    assert_identical(tensor.dequantize(), expected_columnwise.dequantize())
    assert tensor.get_usages() == {"rowwise": False, "columnwise": True}


@ALL
def test_the_columnwise_half_can_read_the_values_of_the_rowwise_one(pair):
    values = random_tensor(SHAPE)
    tensor = make_tensor(pair, columnwise_source="rowwise_dequantized")
    rowwise, columnwise = pair()
    source = alone(rowwise, values, is_rowwise=True).dequantize()
    expected = alone(columnwise, source, is_rowwise=False)
    assert_same_buffers(tensor._columnwise_storage, expected)
    quantizer = make_quantizer(pair, columnwise_source="rowwise_dequantized")
    quantizer.set_usage(rowwise=False)
    only = quantizer(values)
    assert only._rowwise_storage is None
    assert_same_buffers(only._columnwise_storage, expected)
    tensor.zero_()
    tensor.copy_(values)
    assert_same_buffers(tensor._columnwise_storage, expected)
    only.zero_()
    only.copy_(values)
    assert_same_buffers(only._columnwise_storage, expected)


@ALL
def test_native_steps_read_each_copy_from_its_half(pair):
    tensor = make_tensor(pair)
    rowwise, columnwise = tensor._native_operand()
    first, second = (half._native_operand() for _, half in tensor._halves())
    assert rowwise[0] is first[0][0]
    assert columnwise[0] is (second[1] or second[0])[0]
    tensor.update_usage(columnwise_usage=False)
    assert tensor._native_operand()[1] is None


@ALL
@pytest.mark.parametrize("usages", USAGES.values(), ids=USAGES)
def test_values_are_overwritten_in_place(pair, usages):
    quantizer = make_quantizer(pair)
    quantizer.set_usage(**usages)
    tensor, values = quantizer(random_tensor(SHAPE)), random_tensor(SHAPE, seed=1)
    buffers, before = tensor._buffers(), tensor.clone()
    tensor.quantize_(values, noop_flag=torch.ones(1))
    assert_same_buffers(tensor, before)
    tensor.quantize_(values)
    assert all(tensor._buffers()[name] is buffer for name, buffer in buffers.items())
    assert_same_buffers(tensor, quantizer(values))
    source = current_quantizer()(values)
    tensor.quantize_(source)
    assert_same_buffers(tensor, quantizer(source.dequantize()))
    empty = quantizer.make_empty(SHAPE)
    assert {n: b.shape for n, b in empty._buffers().items() if b is not None} == {
        n: b.shape for n, b in tensor._buffers().items() if b is not None
    }


def test_a_copy_that_only_the_quantizer_makes_is_added():
    tensor, values = make_tensor(), random_tensor(SHAPE, seed=1)
    for usage in ({"columnwise_usage": False}, {"rowwise_usage": False}):
        tensor.update_usage(**usage)
        tensor.copy_(values)
        assert_same_buffers(tensor, hybrid_quantizer()(values))


def test_the_quantizer_says_what_it_makes():
    quantizer = hybrid_quantizer()
    assert quantizer == quantizer.copy() == copy.deepcopy(quantizer)
    assert quantizer == pickle.loads(pickle.dumps(quantizer))
    assert hash(quantizer) == hash(quantizer.copy())
    assert quantizer != hybrid_quantizer(columnwise=False)
    assert quantizer.is_requantization_safe()
    assert quantizer.is_quantizable(torch.zeros(2, 2))
    assert not make_quantizer(PAIRS["nvfp4_mxfp8"]).is_requantization_safe()
    row_scaled = HybridQuantizer(
        rowwise_quantizer=NVFP4Quantizer(row_scaled_nvfp4=True, columnwise=False),
        columnwise_quantizer=mxfp8_quantizer(),
    )
    assert not row_scaled.is_quantizable(torch.zeros(16, 16))
    assert quantizer.fits_recipe(CustomRecipe(qfactory=lambda role: None))
    assert not quantizer.fits_recipe(MXFP8BlockScaling())


def test_delayed_scaling_halves_observe_into_the_buffers_given():
    delayed = delayed_quantizer(scale=2.0)
    quantizer = HybridQuantizer(rowwise_quantizer=delayed, columnwise_quantizer=mxfp8_quantizer())
    values = random_tensor(SHAPE)
    tensor = quantizer.copy()(values)
    assert delayed.amax.item() == values.abs().max()
    assert tensor._rowwise_storage._scale_inv.item() == 0.5
    delayed.amax.zero_()
    quantizer.calibrate(values)
    assert delayed.amax.item() == values.abs().max()


def test_bad_arguments_are_refused():
    good = {"rowwise_quantizer": mxfp8_quantizer(), "columnwise_quantizer": mxfp8_quantizer()}
    for name in good:
        with pytest.raises(TypeError, match=f"HybridQuantizer: {name} is None"):
            HybridQuantizer(**{**good, name: None})
    with pytest.raises(ValueError, match="columnwise_source is 'both'"):
        HybridQuantizer(**good, columnwise_source="both")
    quantizer = HybridQuantizer(**good)
    quantizer.set_usage(rowwise=False, columnwise=False)
    for call in (lambda: quantizer(torch.zeros(2)), lambda: quantizer.make_empty((2,))):
        with pytest.raises(ValueError, match="usage are both off"):
            call()
    with pytest.raises(ValueError, match="without one, shape and dtype are required"):
        HybridQuantizedTensorStorage(rowwise_storage=None, columnwise_storage=None)
    tensor = make_tensor()
    tensor.update_usage(columnwise_usage=False)
    with pytest.raises(RuntimeError, match="there is no columnwise copy"):
        tensor.update_usage(rowwise_usage=False, columnwise_usage=True)
    assert tensor.get_usages() == {"rowwise": True, "columnwise": False}


# --- torch operations -------------------------------------------------------------------------


@ALL
def test_writes_quantize_the_result_once(pair):
    tensor = make_tensor(pair)
    plain = tensor.dequantize()
    assert_identical(tensor * 2, plain * 2)
    tensor.mul_(0.37)
    assert_same_buffers(tensor, make_quantizer(pair)(plain * 0.37))


@ALL
def test_equal_halves_are_copied_as_bytes(pair):
    src, dst = make_tensor(pair, seed=1), make_tensor(pair, seed=2)
    for data in src.get_data_tensors():
        data.fill_(1)
    buffers = dst._buffers()
    dst.copy_(src)
    assert all(dst._buffers()[name] is buffer for name, buffer in buffers.items())
    assert_same_buffers(dst, src)
    other = make_tensor(PAIRS["nvfp4_mxfp8"], seed=3)
    if pair is not PAIRS["nvfp4_mxfp8"]:
        dst.copy_(other)
        assert_same_buffers(dst, make_quantizer(pair)(other.dequantize()))


@ALL
def test_a_copy_from_the_same_data_changes_nothing(pair):
    tensor = make_tensor(pair)
    before = tensor.clone()
    for source in (tensor, tensor.detach(), torch.nn.Parameter(tensor).detach()):
        tensor.copy_(source)
        tensor.copy_from_storage(source)
        tensor._native_operand()
        source._native_operand()
        assert_same_buffers(tensor.clone(), before)


@pytest.mark.parametrize("pair", ["mxfp8_blocks", "mxfp8_mxfp8", "tiles_mxfp8"])
def test_distributed_checkpoints_load_into_layers(pair, tmp_path):
    makers = {"mxfp8": mxfp8_quantizer, "blocks": lambda: block_quantizer(dim=1)}
    makers["tiles"] = block_quantizer
    rowwise, columnwise = (makers[name] for name in pair.split("_"))
    recipe = CustomRecipe(qfactory=lambda _: make_quantizer(lambda: (rowwise(), columnwise())))
    layers = []
    for _ in range(2):
        with te.quantized_model_init(recipe=recipe):
            layers.append(te.Linear(64, 32, bias=False, device=torch.get_default_device()))
    saved, target = layers
    checkpoint.save(saved.state_dict(), checkpoint_id=tmp_path)
    state = target.state_dict()
    checkpoint.load(state, checkpoint_id=tmp_path)
    target.load_state_dict(state)  # on the same data: the way of torch's guide
    assert_same_buffers(target.weight, saved.weight)
    x = random_tensor((32, 64))
    with te.autocast(recipe=recipe):
        assert_identical(target(x), saved(x))


@ALL
def test_aliases_share_and_clones_do_not(pair):
    tensor = make_tensor(pair)
    alias = tensor.detach()
    assert alias.get_data_tensors()[0] is tensor.get_data_tensors()[0]
    alias.update_usage(columnwise_usage=False)
    assert tensor.get_usages()["columnwise"]
    for twin in (tensor.clone(), copy.deepcopy(tensor), tensor.to("cpu", copy=True)):
        assert type(twin) is HybridQuantizedTensor
        assert_same_buffers(twin, tensor)
        assert twin.get_data_tensors()[0].data_ptr() != tensor.get_data_tensors()[0].data_ptr()
    assert tensor.to(torch.bfloat16).dtype is torch.bfloat16
    like = torch.empty_like(tensor)
    assert (type(like), like.get_usages()) == (HybridQuantizedTensor, tensor.get_usages())


def test_views_that_both_formats_can_share():
    tensor = make_tensor()
    view = tensor.view(240, 48)
    assert type(view) is HybridQuantizedTensor
    assert_identical(view.dequantize(), tensor.dequantize().view(240, 48))
    values = random_tensor((240, 48), seed=4)
    view.copy_(values)
    assert_same_buffers(tensor, hybrid_quantizer()(values.view(SHAPE)))
    with pytest.warns(UserWarning, match=r"view: shape is \(40, 288\)"):
        assert type(tensor.view(40, 288)) is torch.Tensor
    with pytest.raises(ValueError, match="one that both formats can share is required"):
        torch.ops.aten.view.default(tensor, (40, 288))
    weight = torch.nn.Parameter(tensor)
    weight.view(240, 48).dequantize().sum().backward()
    assert_identical(weight.grad, torch.ones(SHAPE))


@ALL
def test_setting_data_adopts_buffers_or_quantizes(pair):
    weight = torch.nn.Parameter(make_tensor(pair))
    other = make_tensor(pair, seed=1, shape=(2, 64))
    weight.data = other
    assert weight.shape == (2, 64)
    assert weight._rowwise_storage is other._rowwise_storage
    values = random_tensor(SHAPE, seed=2)
    weight.data = values
    assert_same_buffers(weight, make_quantizer(pair)(values))


@ALL
def test_files_hold_both_halves(pair):
    tensor, file = make_tensor(pair), io.BytesIO()
    torch.save({"tensor": tensor, "weight": torch.nn.Parameter(tensor)}, file)
    for weights_only in (True, False):
        file.seek(0)
        loaded = torch.load(file, weights_only=weights_only)
        for value in loaded.values():
            assert isinstance(value, HybridQuantizedTensor)
            assert_same_buffers(value, tensor)
            assert value.get_usages() == tensor.get_usages()


def test_printing_shows_formats_and_values():
    assert "MXFP8TensorStorage, Float8BlockwiseQTensorStorage, data=tensor(" in repr(make_tensor())
    storage = HybridQuantizedTensorStorage(**make_tensor().get_metadata())
    assert "rowwise=MXFP8TensorStorage" in repr(storage)


def test_raw_copies_need_the_same_formats():
    tensor, other = make_tensor(), make_tensor(PAIRS["mxfp8_delayed"])
    before = tensor.clone()
    with pytest.raises((TypeError, ValueError), match="copy_from_storage: src"):
        tensor.copy_from_storage(other)
    assert_same_buffers(tensor, before)
    part = make_tensor(seed=1)
    part.update_usage(columnwise_usage=False)
    with pytest.raises(ValueError, match="copy_from_storage: src has shape"):
        tensor.copy_from_storage(part)
    with pytest.raises(TypeError, match="copy_from_storage: src is a Float8TensorStorage"):
        tensor.copy_from_storage(
            Float8TensorStorage(
                data=torch.zeros(SHAPE, dtype=torch.uint8),
                fp8_scale_inv=torch.ones(1),
                fp8_dtype=7,
            )
        )
