# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What all formats with one scale per block do alike: copies, writes, files, parameters."""

import copy
import io
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch.distributed import checkpoint

from helpers.generators import random_tensor
from helpers.quantizers import ALL_QUANTIZERS, BLOCK_QUANTIZERS, USAGES, current_quantizer
from helpers.tolerances import assert_identical
from transformer_engine.pytorch.constants import DType
from transformer_engine.pytorch.tensor import (
    Float8BlockQuantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    QuantizedTensor,
)

BLOCKS = pytest.mark.parametrize("make", BLOCK_QUANTIZERS.values(), ids=BLOCK_QUANTIZERS)
ALL = pytest.mark.parametrize("make", ALL_QUANTIZERS.values(), ids=ALL_QUANTIZERS)
SHAPE = (6, 40, 56)


def make_tensor(make, shape=SHAPE, seed=0, dtype=torch.float32, **usages):
    return make(**usages)(random_tensor(shape, seed=seed, dtype=dtype))


def assert_same_buffers(actual, expected):
    held = actual._buffers()
    for name, buffer in expected._buffers().items():
        other = held[name]
        assert (other is None) == (buffer is None), name
        assert buffer is None or torch.equal(other, buffer), name


@ALL
@pytest.mark.parametrize("usages", USAGES.values(), ids=USAGES)
@pytest.mark.parametrize("shape", [(4, 128, 256), (96, 64), (0, 16), (5,), ()])
@pytest.mark.parametrize("is_internal", [False, True])
def test_the_logical_shape_is_reported_whatever_is_held(make, usages, shape, is_internal):
    quantizer = make(**usages)
    quantizer.internal = is_internal
    empty = quantizer.make_empty(shape)
    for tensor in (empty, quantizer(random_tensor(shape))):
        assert isinstance(tensor, torch.Tensor) is not is_internal
        assert tuple(tensor.shape) == tuple(tensor.size()) == shape
        for i in range(len(shape)):
            assert tensor.size(i) == tensor.size(i - len(shape)) == shape[i]
        assert (tensor.dim(), tensor.numel()) == (len(shape), math.prod(shape))
        assert tensor.dequantize().shape == shape


@BLOCKS
def test_quantizers_compare_by_value_and_copy_apart(make):
    quantizer = make()
    twin = quantizer.copy()
    assert twin == quantizer
    assert hash(twin) == hash(quantizer)
    twin.set_usage(columnwise=False)
    assert twin != quantizer
    assert quantizer.columnwise_usage
    assert quantizer != make(columnwise=False)
    assert quantizer != current_quantizer()
    for other in (copy.deepcopy(quantizer), pickle.loads(pickle.dumps(quantizer))):
        assert other == quantizer
        assert other._core is not quantizer._core
    assert type(quantizer).from_core(quantizer.native) == quantizer


@BLOCKS
def test_quantizers_refuse_what_they_cannot_do(make):
    quantizer, tensor = make(), make_tensor(make)
    before = tensor.clone()
    with pytest.raises(TypeError, match=r"update_quantized: dst is a Tensor"):
        quantizer.update_quantized(torch.zeros(2), torch.zeros(2))
    with pytest.raises(ValueError, match=r"update_quantized: src has shape \(2,\)"):
        quantizer.update_quantized(torch.zeros(2), tensor)
    with pytest.raises(TypeError, match=r"tensor has dtype torch\.int32"):
        quantizer(torch.zeros(2, dtype=torch.int32))
    for what in (None, [1.0], 2.0):
        with pytest.raises(TypeError, match=rf"tensor is a {type(what).__name__}; a torch\.Tensor"):
            quantizer(what)
    with pytest.raises(TypeError, match=r"quantize: tensor has layout torch\.sparse_coo"):
        quantizer(torch.eye(3).to_sparse())
    quantizer.set_usage(rowwise=False, columnwise=False)
    for call in (lambda: quantizer(torch.zeros(2)), lambda: quantizer.make_empty((2,))):
        with pytest.raises(ValueError, match="usage are both off"):
            call()
    assert_same_buffers(tensor, before)


FLAG_NAMES = (
    *("rowwise_usage", "columnwise_usage", "internal", "force_pow_2_scales", "with_rht"),
    *("with_post_rht_amax", "with_2d_quantization", "stochastic_rounding", "row_scaled_nvfp4"),
    *("nvfp4_use_4over6", "with_random_sign_mask", "with_amax_reduction"),
)
OTHER_SETTINGS = {  # name -> what is refused, and how
    "amax_epsilon": [("x", TypeError, "finite and at least 0"), (-1.0, ValueError, "at least 0")],
    "block_scaling_dim": [(3, ValueError, "1 or 2"), ("x", ValueError, "1 or 2")],
    "nvfp4_e4m3_max": [(300, ValueError, "448 or 256"), (None, ValueError, "448 or 256")],
    "nvfp4_4over6_err_mode": [("max", ValueError, "one of MAE, MSE"), (3, ValueError, "MAE, MSE")],
    "amax_reduction_group": [(3, TypeError, "ProcessGroup")],
}


@ALL
def test_attributes_refuse_values_of_the_wrong_type(make):
    quantizer = make()
    refusals = {
        name: [(v, TypeError, "True or False") for v in ("no", 2, None)] for name in FLAG_NAMES
    }
    for name, values in {**refusals, **OTHER_SETTINGS}.items():
        if not hasattr(type(quantizer), name):
            continue
        before = getattr(quantizer, name)
        for value, error, rule in values:
            with pytest.raises(error, match=f"{type(quantizer).__name__}: {name} is .*{rule}"):
                setattr(quantizer, name, value)
            assert getattr(quantizer, name) is before or getattr(quantizer, name) == before


@pytest.mark.parametrize(
    ("cls", "settings"),
    [
        (NVFP4Quantizer, {"with_rht": True, "with_post_rht_amax": True}),
        (NVFP4Quantizer, {"with_rht": True, "with_random_sign_mask": False}),
        (NVFP4Quantizer, {"with_2d_quantization": True}),
        (NVFP4Quantizer, {"row_scaled_nvfp4": True}),
        (NVFP4Quantizer, {"nvfp4_use_4over6": True, "nvfp4_4over6_err_mode": "MSE"}),
        (NVFP4Quantizer, {"nvfp4_e4m3_max": 256}),
        (MXFP8Quantizer, {"with_2d_quantization": True}),
        (Float8BlockQuantizer, {"block_scaling_dim": 1, "force_pow_2_scales": False}),
        (Float8BlockQuantizer, {"amax_epsilon": 64.0}),
    ],
)
def test_settings_that_are_assigned_are_those_of_the_constructor(cls, settings):
    arguments = {
        NVFP4Quantizer: {},
        MXFP8Quantizer: {"fp8_dtype": DType.kFloat8E4M3},
        Float8BlockQuantizer: {
            "fp8_dtype": DType.kFloat8E4M3,
            "rowwise": True,
            "columnwise": True,
        },
    }[cls]
    quantizer = cls(**arguments)
    plain, native = quantizer.copy(), quantizer.native
    for name, value in settings.items():
        setattr(quantizer, name, value)
    built, x = cls(**arguments, **settings), random_tensor((96, 160))
    assert quantizer == built
    assert quantizer.native is native  # which modules hold
    assert_same_buffers(quantizer(x), built(x))
    assert (
        any(
            not torch.equal(own, other)
            for own, other in zip(
                *(q(x)._buffers().values() for q in (quantizer, plain)), strict=True
            )
            if own.shape == other.shape
        )
        or "block_scaling_dim" in settings
    )


def test_settings_that_exclude_each_other_are_refused_when_assigned():
    quantizer = NVFP4Quantizer(with_rht=True)
    for name in ("nvfp4_use_4over6", "row_scaled_nvfp4"):
        with pytest.raises(ValueError, match=f"{name} and with_rht are both True"):
            setattr(quantizer, name, True)
        assert not getattr(quantizer, name)
    quantizer = NVFP4Quantizer(row_scaled_nvfp4=True)
    with pytest.raises(ValueError, match="row_scaled_nvfp4 and with_amax_reduction are both True"):
        quantizer.with_amax_reduction = True


@ALL
def test_sources_and_flags_that_are_none_are_refused(make):
    tensor, values = make_tensor(make), random_tensor(SHAPE, seed=1)
    before = tensor.clone()
    for src in (None, [1.0]):
        with pytest.raises(
            TypeError, match=rf"update_quantized: tensor is a {type(src).__name__}; a torch"
        ):
            make().update_quantized(src, tensor)
    for flag, text in {
        "x": "a str",
        True: "a bool",
        torch.ones(2): r"a tensor of shape \(2,\) on cpu",
        torch.ones(1, device="meta"): r"a tensor of shape \(1,\) on meta",
    }.items():
        with pytest.raises(TypeError, match=f"update_quantized: noop_flag is {text}; a tensor of"):
            tensor.quantize_(values, noop_flag=flag)
    assert_same_buffers(tensor, before)
    quantizer = make()
    quantizer.internal = True
    tensor.quantize_(quantizer(values))  # a plain storage
    assert_identical(tensor.dequantize(), make()(make()(values).dequantize()).dequantize())


@ALL
def test_what_reads_memory_directly_reads_values_or_is_refused(make):
    tensor = make_tensor(make)
    expected = make()(tensor.dequantize().apply_(lambda x: 2 * x))
    assert tensor.apply_(lambda x: 2 * x) is tensor
    assert_same_buffers(tensor, expected)
    for read in (torch.from_dlpack, np.from_dlpack):
        with pytest.raises(BufferError, match=r"no memory of torch\.float32 to share"):
            read(tensor)
    with pytest.raises(RuntimeError, match="apply_: the tensor requires grad"):
        tensor.requires_grad_().apply_(lambda x: x)


@BLOCKS
@pytest.mark.parametrize("usages", USAGES.values(), ids=USAGES)
def test_values_are_overwritten_in_place(make, usages):
    tensor, values = make_tensor(make, **usages), random_tensor(SHAPE, seed=1)
    buffers, version = tensor._buffers(), tensor._version
    expected = make(**usages)(values)
    before = tensor.clone()
    tensor.quantize_(values, noop_flag=torch.ones(1))
    assert_same_buffers(tensor, before)
    assert tensor.quantize_(values, noop_flag=torch.zeros(1)) is tensor
    assert all(getattr(tensor, name) is buffer for name, buffer in buffers.items())
    assert tensor._version > version
    assert_same_buffers(tensor, expected)
    source = current_quantizer()(random_tensor(SHAPE, seed=2))
    tensor.quantize_(source)
    assert_same_buffers(tensor, make(**usages)(source.dequantize()))
    out = make(**usages).make_empty(SHAPE)
    assert make(**usages)(values, out=out) is out
    assert_same_buffers(out, expected)


@BLOCKS
def test_a_copy_that_only_the_quantizer_makes_is_added(make):
    tensor, values = make_tensor(make), random_tensor(SHAPE, seed=1)
    tensor.update_usage(columnwise_usage=False)
    tensor.copy_(values)
    assert_same_buffers(tensor, make()(values))


@BLOCKS
def test_gradients_pass_through_quantization_and_back(make):
    x = random_tensor(SHAPE).requires_grad_()
    scale = random_tensor(SHAPE, seed=1)
    (make()(x).dequantize() * scale).sum().backward()
    assert_identical(x.grad, scale)


@BLOCKS
def test_arithmetic_runs_on_dequantized_values(make):
    x, y = make_tensor(make, seed=1), make_tensor(make, seed=2)
    plain_x, plain_y = x.dequantize(), y.dequantize()
    for function in (
        torch.add,
        lambda a, b: torch.cat([a, b]),
        lambda a, b: torch.where(a > b, a, b).sum(),
        lambda a, b: a.float() + b.float(),
    ):
        result = function(x, y)
        assert type(result) is torch.Tensor
        assert_identical(result, function(plain_x, plain_y))
    assert x.half().dtype is torch.float16
    assert_identical(x.bfloat16(), plain_x.bfloat16())


@BLOCKS
@pytest.mark.parametrize(
    "update",
    [
        lambda t: t.mul_(0.37),
        lambda t: t.add_(random_tensor(SHAPE, seed=9)),
        lambda t: t.zero_(),
        lambda t: torch.nn.init.constant_(t, 0.7),
    ],
)
def test_writes_quantize_the_result_once(make, update):
    tensor = make_tensor(make)
    plain, buffers = tensor.dequantize(), tensor._buffers()
    with torch.no_grad():
        update(plain)
        assert update(tensor) is tensor
    assert all(getattr(tensor, name) is buffer for name, buffer in buffers.items())
    assert_same_buffers(tensor, make()(plain))


@BLOCKS
def test_lists_of_tensors_are_written(make):
    tensors = [make_tensor(make, seed=seed) for seed in range(2)]
    plain = [tensor.dequantize() for tensor in tensors]
    torch._foreach_mul_(tensors, 0.37)
    torch._foreach_mul_(plain, 0.37)
    for tensor, values in zip(tensors, plain, strict=True):
        assert_same_buffers(tensor, make()(values))


@BLOCKS
def test_an_optimizer_step_is_dequantize_step_quantize(make):
    weight = torch.nn.Parameter(make_tensor(make))
    plain = torch.nn.Parameter(weight.dequantize().detach())
    ours, theirs = (torch.optim.AdamW([p], lr=0.1, weight_decay=0.3) for p in (weight, plain))
    for step in range(3):
        weight.grad = random_tensor(SHAPE, seed=20 + step)
        plain.grad = weight.grad.clone()
        with torch.no_grad():
            plain.copy_(weight.dequantize())
        ours.step()
        theirs.step()
    # Weight decay, then the update: two writes, each with its rounding.
    reference = torch.nn.Parameter(make_tensor(make).dequantize())
    optimizer = torch.optim.AdamW([reference], lr=0.1, weight_decay=0.0)
    for step in range(3):
        reference.grad = random_tensor(SHAPE, seed=20 + step)
        with torch.no_grad():
            reference.copy_(make()(reference.detach() * (1 - 0.1 * 0.3)).dequantize())
            optimizer.step()
            reference.copy_(make()(reference.detach()).dequantize())
    assert_identical(weight.dequantize().detach(), reference.detach())


# --- copies -----------------------------------------------------------------------------------


@BLOCKS
@pytest.mark.parametrize("usages", USAGES.values(), ids=USAGES)
def test_equal_copies_are_copied_as_bytes(make, usages):
    src, dst = make_tensor(make, seed=1, **usages), make_tensor(make, seed=2, **usages)
    for tensor in (src, dst):
        tensor._quantizer.set_usage(**usages)
    for data in src.get_data_tensors():
        if data is not None:
            data.fill_(1)  # what no input gives
    buffers = dst._buffers()
    dst.copy_(src)
    assert all(getattr(dst, name) is buffer for name, buffer in buffers.items())
    assert_same_buffers(dst, src)


@BLOCKS
def test_a_copy_the_source_lacks_is_quantized_from_its_values(make):
    src, dst = make_tensor(make, seed=1, columnwise=False), make_tensor(make, seed=2)
    dst.copy_(src)
    expected = make(rowwise=False)(src.dequantize())
    assert torch.equal(dst._rowwise_data, src._rowwise_data)
    assert torch.equal(dst._columnwise_data, expected._columnwise_data)
    assert torch.equal(dst._columnwise_scale_inv, expected._columnwise_scale_inv)
    narrow, wide = make_tensor(make, seed=2, columnwise=False), make_tensor(make, seed=1)
    narrow.copy_(wide)
    assert torch.equal(narrow._rowwise_data, wide._rowwise_data)
    assert narrow._columnwise_data is None


@BLOCKS
def test_copying_plain_and_other_formats_quantizes(make):
    dst, values = make_tensor(make), random_tensor(SHAPE, seed=3, dtype=torch.bfloat16)
    dst.copy_(values)
    assert_same_buffers(dst, make()(values))
    other = current_quantizer()(values)
    dst.copy_(other)
    assert_same_buffers(dst, make()(other.dequantize()))
    dst.copy_(torch.tensor(1.5))
    assert_same_buffers(dst, make()(torch.full(SHAPE, 1.5)))
    plain = torch.empty(SHAPE, dtype=torch.bfloat16)
    plain.copy_(dst)
    assert_identical(plain, dst.dequantize(dtype=torch.bfloat16))


@BLOCKS
def test_aliases_share_and_clones_do_not(make):
    class MyTensor(type(make_tensor(make))):
        """A user's subclass."""

    tensor = MyTensor.make_like(make_tensor(make))
    for alias in (tensor.detach(), tensor.data):
        assert type(alias) is MyTensor
        assert alias._rowwise_data is tensor._rowwise_data
    for twin in (tensor.clone(), copy.deepcopy(tensor), tensor.to("cpu", copy=True)):
        assert type(twin) is MyTensor
        assert_same_buffers(twin, tensor)
        assert twin._rowwise_data.data_ptr() != tensor._rowwise_data.data_ptr()
        assert twin._quantizer == tensor._quantizer
        assert twin._quantizer is not tensor._quantizer
    assert tensor.cpu() is tensor
    half = tensor.to(torch.bfloat16)
    assert (type(half), half.dtype) == (MyTensor, torch.bfloat16)
    assert half._rowwise_data is tensor._rowwise_data


@BLOCKS
def test_empty_tensors_of_the_same_class(make):
    tensor = make_tensor(make, columnwise=False)
    like = torch.empty_like(tensor)
    assert type(like) is type(tensor)
    assert like.get_usages() == {"rowwise": True, "columnwise": False}
    new = tensor.new_empty(2, 32)
    assert (type(new), new.shape) == (type(tensor), (2, 32))
    tensor._quantizer = None
    with pytest.raises(RuntimeError, match="has no quantizer"):
        torch.empty_like(tensor)


@BLOCKS
def test_setting_data_adopts_buffers_or_quantizes(make):
    weight = torch.nn.Parameter(make_tensor(make))
    other = make_tensor(make, (3, 64), seed=1, dtype=torch.bfloat16)
    weight.data = other
    assert (weight.shape, weight.dtype) == ((3, 64), torch.bfloat16)
    assert weight._rowwise_data is other._rowwise_data
    assert weight._quantizer is not other._quantizer
    values = random_tensor(SHAPE, seed=2)
    weight.data = values
    assert_same_buffers(weight, make()(values))
    weight._quantizer = None
    with pytest.raises(AssertionError, match="has no quantizer"):
        weight.data = values


# --- views and parts --------------------------------------------------------------------------


@BLOCKS
@pytest.mark.parametrize(
    "index",
    [
        3,
        slice(1, 4),
        (slice(None), 2),
        (Ellipsis, slice(None, None, 3)),
        [0, 2],
        torch.arange(6) > 2,
        slice(None),
        Ellipsis,
    ],
    ids=str,
)
def test_assignments_to_parts_reach_the_tensor(make, index):
    tensor = make_tensor(make)
    plain, version = tensor.dequantize(), tensor._version
    plain[index] = 2.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor[index] = 2.5
    assert_same_buffers(tensor, make()(plain))
    assert tensor._version > version
    other = make_tensor(make, seed=3)
    tensor[...] = other  # equal formats: the bytes
    assert_same_buffers(tensor, other)
    leaf = tensor.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        leaf[index] = 0.0
    assert_same_buffers(leaf, tensor)


def shapes_of(result):
    """Shapes of one result or several, all of which can be read."""
    plain = [getattr(r, "dequantize", lambda r=r: r)() for r in result]
    return [tuple(value.shape) for value in plain]


@ALL
@pytest.mark.parametrize("shape", [(0, 64), (0, 128), (32, 0), (256, 0), (0, 0), (2, 32, 0)])
@pytest.mark.filterwarnings("ignore:.*(copy|copies)")
def test_empty_tensors_are_split_and_viewed_like_plain_ones(make, shape):
    tensor, plain = make_tensor(make, shape), torch.zeros(shape)
    for size in (16, 32, 128):
        assert shapes_of(tensor.split(size)) == shapes_of(plain.split(size)), size
    for count in (1, 2):
        assert shapes_of(tensor.chunk(count)) == shapes_of(plain.chunk(count)), count
        assert shapes_of(tensor.chunk(count, -1)) == shapes_of(plain.chunk(count, -1)), count
    for view in ((-1,), (0,), shape, (0, 5), (0, *shape)):
        assert shapes_of([tensor.view(view)]) == shapes_of([plain.view(view)]), view


@pytest.mark.parametrize("name", ["mxfp8", "mxfp8_tiles"])
@pytest.mark.parametrize("rows", [32, 128])
def test_a_split_into_one_part_shares_the_data(name, rows):
    make = ALL_QUANTIZERS[name]
    tensor = make_tensor(make, (rows, 64))
    (part,) = tensor.split(rows)
    part.quantize_(random_tensor((rows, 64), seed=1))
    assert_identical(part.dequantize(), tensor.dequantize())
    assert_same_buffers(tensor, make()(random_tensor((rows, 64), seed=1)))


@BLOCKS
def test_parts_that_are_everything_share_the_data(make):
    tensor = make_tensor(make)
    for take in (
        lambda t: t[:],
        lambda t: t[0:6],
        lambda t: t.view(SHAPE),
        lambda t: torch.as_strided(t, SHAPE, (2240, 56, 1)),
        lambda t: t.view(torch.float32),
    ):
        part = take(tensor)
        assert type(part) is type(tensor)
        part.copy_(random_tensor(SHAPE, seed=4))
        assert_identical(part.dequantize(), tensor.dequantize())
    with pytest.raises(TypeError, match=r"dtype is torch\.int32"):
        tensor.view(torch.int32)


# --- files ------------------------------------------------------------------------------------


@BLOCKS
@pytest.mark.parametrize("usages", USAGES.values(), ids=USAGES)
def test_files_hold_buffers_and_quantizer(make, usages):
    tensor = make_tensor(make, dtype=torch.bfloat16, **usages)
    weight = torch.nn.Parameter(make_tensor(make))
    file = io.BytesIO()
    torch.save({"tensor": tensor, "weight": weight}, file)
    for weights_only in (True, False):
        file.seek(0)
        loaded = torch.load(file, weights_only=weights_only)
        assert type(loaded["tensor"]) is type(tensor)
        assert loaded["tensor"].dtype is torch.bfloat16
        assert_same_buffers(loaded["tensor"], tensor)
        assert loaded["tensor"]._quantizer == tensor._quantizer
        assert isinstance(loaded["weight"], torch.nn.Parameter)
        assert loaded["weight"].requires_grad
        assert_same_buffers(loaded["weight"], weight)
    assert_same_buffers(pickle.loads(pickle.dumps(tensor)), tensor)


@ALL
def test_distributed_checkpoints_bring_the_buffers_back(make, tmp_path):
    tensor, target = make_tensor(make), torch.nn.Parameter(make_tensor(make, seed=1))
    state = {"weight": target}
    checkpoint.save({"weight": torch.nn.Parameter(tensor)}, checkpoint_id=tmp_path)
    checkpoint.load(state, checkpoint_id=tmp_path)
    assert state["weight"] is target
    assert_same_buffers(target, tensor)


@BLOCKS
def test_buffers_survive_files_that_hold_plain_tensors_only(make, tmp_path):
    files = pytest.importorskip("safetensors.torch")
    tensor = make_tensor(make)
    buffers = {name: b for name, b in tensor._buffers().items() if b is not None}
    files.save_file(buffers, tmp_path / "weight.safetensors")
    loaded = files.load_file(tmp_path / "weight.safetensors")
    keywords = {tensor._buffer_keywords[name]: buffer for name, buffer in loaded.items()}
    assert_same_buffers(type(tensor).make_like(tensor, **keywords), tensor)


@BLOCKS
def test_state_dicts_carry_values_between_formats(make):
    """As dequantized values, which is how formats without classes (safetensors) store them."""
    layer = torch.nn.Linear(56, 40, bias=False)
    layer.weight = torch.nn.Parameter(make_tensor(make, (40, 56)))
    plain = {name: value.dequantize() for name, value in layer.state_dict().items()}
    other = torch.nn.Linear(56, 40, bias=False)
    other.load_state_dict(plain)
    assert_identical(other.weight.detach(), layer.weight.detach().dequantize())
    layer.load_state_dict({"weight": random_tensor((40, 56), seed=8)})
    assert_same_buffers(layer.weight, make()(random_tensor((40, 56), seed=8)))


@BLOCKS
def test_printing_shows_format_and_values(make):
    tensor = make_tensor(make, (2, 2))
    text = repr(tensor)
    assert text.startswith(f"{type(tensor).__name__}(")
    assert "kFloat" in text
    assert "data=tensor(" in text
    assert "requires_grad=True" in repr(torch.nn.Parameter(tensor))
    tensor.prepare_for_saving()
    assert "no data" in repr(tensor)


@BLOCKS
def test_float64_and_deepcopied_parameters(make):
    tensor = make_tensor(make)
    assert_identical(tensor.dequantize(dtype=torch.float64).float(), tensor.dequantize())
    weight = torch.nn.Parameter(tensor)
    weight.note = "w"
    twin = copy.deepcopy(weight)
    assert isinstance(twin, torch.nn.Parameter)
    assert isinstance(twin, QuantizedTensor)
    assert twin.note == "w"
    assert_same_buffers(twin, weight)
