# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Float8Tensor: torch operations, views, copies, parameters, files."""

import copy
import io
import pickle
import sys
import types

import pytest
import torch

from helpers.formats import E4M3
from helpers.generators import random_tensor
from helpers.quantizers import (
    FLOAT8_QUANTIZERS,
    FP8_FORMATS,
    current_quantizer,
    delayed_quantizer,
    reference_codes,
    reference_values,
)
from helpers.tolerances import assert_identical, assert_within, rounding_bound
from transformer_engine.pytorch.constants import DType
from transformer_engine.pytorch.tensor import Float8Tensor, QuantizedTensor

BOTH = pytest.mark.parametrize("make", FLOAT8_QUANTIZERS.values(), ids=FLOAT8_QUANTIZERS)
SHAPE = (6, 4, 10)


def make_tensor(make=delayed_quantizer, shape=SHAPE, seed=0, dtype=torch.float32, **usages):
    return make(**usages)(random_tensor(shape, seed=seed, dtype=dtype))


class MyTensor(Float8Tensor):
    """A user's subclass."""


# --- values -----------------------------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.parametrize("fp8_dtype", FP8_FORMATS, ids=["E4M3", "E5M2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_code_dequantizes_to_its_value(fp8_dtype, dtype):
    fmt = FP8_FORMATS[fp8_dtype]
    codes = torch.arange(256, dtype=torch.uint8).view(16, 16)
    tensor = Float8Tensor(
        shape=codes.shape,
        dtype=dtype,
        data=codes,
        fp8_scale_inv=torch.tensor([0.5]),
        fp8_dtype=fp8_dtype,
    )
    expected = reference_values(codes, 0.5, fmt).to(dtype)
    assert_identical(tensor.dequantize(), expected)
    assert_identical(tensor.dequantize(dtype=torch.float64).float(), expected.float())


def test_a_transpose_alone_can_be_dequantized():
    whole, transposed = make_tensor(), make_tensor(rowwise=False)
    assert transposed._data is None
    assert transposed.shape == whole.shape
    assert_identical(transposed.dequantize(), whole.dequantize())


@BOTH
@pytest.mark.parametrize("method", ["float", "half", "bfloat16"])
def test_float_half_and_bfloat16_give_plain_tensors(make, method):
    tensor = make_tensor(make)
    plain = getattr(tensor, method)()
    assert type(plain) is torch.Tensor
    assert_identical(plain, getattr(tensor.dequantize(), method)())


def test_a_scale_whose_memory_is_freed_is_refused():
    tensor = current_quantizer()(torch.ones(2, 3))
    tensor._scale_inv.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="scale_inv of 1 elements has no memory"):
        tensor.dequantize()


def test_printing_shows_format_scale_and_values():
    text = repr(make_tensor(shape=(2, 2)))
    assert "Float8Tensor(fp8_dtype=kFloat8E4M3, scale_inv=[0.25], data=tensor(" in text
    assert "Float8Tensor" in str(torch.nn.Parameter(make_tensor(rowwise=False)))
    assert "6x4x10" in repr(torch.nn.ParameterList([make_tensor()]))


@BOTH
def test_out_of_place_operations_give_plain_tensors(make):
    x, y = make_tensor(make, seed=1), make_tensor(make, seed=2)
    plain_x, plain_y = x.dequantize(), y.dequantize()
    for function in (
        torch.add,
        torch.mul,
        lambda a, b: torch.cat([a, b]),
        lambda a, b: a.transpose(0, 1) @ b.permute(1, 2, 0),
        lambda a, b: torch.where(a > b, a, b),
        lambda a, b: a.sum() + b.norm(),
    ):
        result = function(x, y)
        assert type(result) is torch.Tensor
        assert_identical(result, function(plain_x, plain_y))
    assert_identical(x + plain_y, plain_x + plain_y)
    assert_identical(plain_x + y, plain_x + plain_y)


@BOTH
@pytest.mark.parametrize(
    "update",
    [
        lambda t: t.mul_(0.5),
        lambda t: t.add_(torch.ones(())),
        lambda t: t.add_(make_tensor(seed=5)),
        lambda t: t.zero_(),
        lambda t: t.clamp_(-1, 1),
        lambda t: torch.nn.init.constant_(t, 0.75),
        lambda t: torch.add(random_tensor(SHAPE), 1.0, out=t),
    ],
)
def test_in_place_operations_quantize_again(make, update):
    tensor = make_tensor(make)
    plain = tensor.dequantize()
    data, version = tensor._data, tensor._version
    with torch.no_grad():
        update(plain)
        result = update(tensor)
    assert result is tensor
    assert tensor._data is data
    assert tensor._version > version
    expected = make()(plain)
    assert torch.equal(tensor._data, expected._data)
    assert torch.equal(tensor._scale_inv, expected._scale_inv)
    assert torch.equal(tensor._transpose, expected._transpose)


def test_an_argument_given_twice_is_written_once():
    tensor = make_tensor()
    expected = delayed_quantizer()(tensor.dequantize() * 2)
    tensor.add_(tensor)
    assert torch.equal(tensor._data, expected._data)


def test_lists_of_written_tensors():
    tensors = [make_tensor(seed=seed) for seed in range(3)]
    plain = [tensor.dequantize() for tensor in tensors]
    torch._foreach_mul_(tensors, 0.5)
    torch._foreach_mul_(plain, 0.5)
    for tensor, values in zip(tensors, plain, strict=True):
        assert torch.equal(tensor._data, delayed_quantizer()(values)._data)


# --- copy_ ------------------------------------------------------------------------------------


@BOTH
def test_copying_between_equal_formats_copies_bytes_and_scale(make):
    src = make_tensor(make, seed=1)
    dst = make_tensor(make, seed=2)
    src._scale_inv.fill_(0.3)  # a scale no quantizer would give
    dst.copy_(src)
    assert torch.equal(dst._data, src._data)
    assert dst._scale_inv.item() == src._scale_inv.item()
    assert not dst._transpose_invalid
    assert torch.equal(dst._transpose, src._transpose)
    assert dst._data.data_ptr() != src._data.data_ptr()


def test_copying_without_the_sources_transpose_makes_it_anew():
    src, dst = make_tensor(seed=1, columnwise=False), make_tensor(seed=2)
    dst.copy_(src)
    assert torch.equal(dst._transpose, src._data.permute(2, 0, 1).reshape(10, 24))


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_copying_plain_values_quantizes_them(make, dtype):
    values = random_tensor(SHAPE, seed=3, dtype=dtype)
    dst = make_tensor(make)
    assert dst.copy_(values) is dst
    assert torch.equal(dst._data, make()(values)._data)
    dst.copy_(torch.tensor(1.5))
    assert_identical(dst.dequantize(), torch.full(SHAPE, 1.5))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32]
)
def test_copying_into_a_plain_tensor_dequantizes(dtype):
    src = make_tensor()
    dst = torch.zeros(SHAPE, dtype=dtype)
    assert dst.copy_(src) is dst
    assert_identical(dst, src.dequantize().to(dtype))


def test_copying_between_kinds_of_scaling_quantizes_again():
    src, dst = make_tensor(current_quantizer), make_tensor(delayed_quantizer)
    dst.copy_(src)
    assert torch.equal(dst._data, delayed_quantizer()(src.dequantize())._data)
    assert dst._scale_inv.item() == 0.25


# --- views and parts --------------------------------------------------------------------------


def test_views_share_bytes_and_keep_a_transpose_that_still_fits():
    tensor = make_tensor()
    flat_rows = tensor.view(24, 10)
    assert isinstance(flat_rows, Float8Tensor)
    assert flat_rows._data.data_ptr() == tensor._data.data_ptr()
    assert flat_rows._transpose is tensor._transpose
    flat = tensor.view(-1)
    assert flat._transpose is None
    assert_identical(flat.dequantize(), tensor.dequantize().view(-1))
    for shape in ((6, 40), (2, 3, 4, 10), (240,)):
        assert_identical(tensor.reshape(shape).dequantize(), tensor.dequantize().reshape(shape))
        assert isinstance(tensor.reshape(shape), Float8Tensor)


def test_a_view_of_a_transpose_alone_is_refused():
    with pytest.raises(NotImplementedError, match="holds only its transpose"):
        make_tensor(rowwise=False).view(-1)


@BOTH
@pytest.mark.parametrize(
    "take",
    [
        lambda t: t[2:4],
        lambda t: t[3],
        lambda t: t[:, 1],
        lambda t: t[..., 2:7],
        lambda t: t[..., ::3],
        lambda t: t.split(4)[1],
        lambda t: t.split([1, 5])[0],
        lambda t: t.chunk(3)[2],
        lambda t: t.narrow(1, 1, 2),
        lambda t: torch.as_strided(t, (3, 10), (80, 1), 40),
    ],
)
def test_parts_share_bytes_and_writing_them_leaves_the_rest_alone(make, take):
    tensor = make_tensor(make)
    plain = tensor.dequantize()
    part = take(tensor)
    assert isinstance(part, Float8Tensor)
    assert_identical(part.dequantize(), take(plain))
    values = random_tensor(tuple(part.shape), seed=7) * 0.5
    part.copy_(values)
    scale = 1 / tensor._scale_inv.item()
    take(plain).copy_(
        reference_values(reference_codes(values, scale, E4M3), 1.0, E4M3) * tensor._scale_inv
    )
    assert_identical(tensor.dequantize(), plain)
    assert tensor._transpose_invalid, "made from bytes that are no longer there"
    tensor.update_usage(columnwise_usage=True)
    assert torch.equal(tensor._transpose, tensor._data.view(24, 10).t())


@BOTH
def test_writing_through_a_whole_view_is_seen_everywhere(make):
    tensor = make_tensor(make)
    values = random_tensor((240,), seed=3) * 2
    tensor.view(-1).copy_(values)
    expected = make()(values)
    assert torch.equal(tensor._data.view(-1), expected._data)
    assert torch.equal(tensor._scale_inv, expected._scale_inv)
    assert tensor._transpose_invalid


def test_a_full_slice_is_no_part():
    tensor = make_tensor(current_quantizer)
    whole = tensor[:]
    assert whole._transpose is tensor._transpose
    values = random_tensor(SHAPE, seed=3) * 1000
    whole.copy_(values)
    assert torch.equal(tensor._data, current_quantizer()(values)._data)


# --- aliases and copies ------------------------------------------------------------------------


def test_detach_shares_buffers_and_keeps_a_users_class():
    tensor = MyTensor(
        shape=(4, 5),
        dtype=torch.bfloat16,
        data=torch.zeros(4, 5, dtype=torch.uint8),
        fp8_scale_inv=torch.ones(1),
        fp8_dtype=DType.kFloat8E5M2,
        requires_grad=True,
        quantizer=delayed_quantizer(fp8_dtype=DType.kFloat8E5M2),
    )
    for alias in (tensor.detach(), tensor.data, tensor.view(4, 5).detach()):
        assert type(alias) is MyTensor
        assert not alias.requires_grad
        assert alias._data.data_ptr() == tensor._data.data_ptr()
        assert alias.dtype is torch.bfloat16
        assert alias._fp8_dtype is DType.kFloat8E5M2
    assert type(tensor.clone()) is MyTensor


def test_detach_shares_the_write_count_and_data_does_not():
    tensor = make_tensor()
    detached, data = tensor.detach(), tensor.data
    detached.zero_()
    assert tensor._version == 1
    data.zero_()
    assert tensor._version == 1


@BOTH
@pytest.mark.parametrize(
    "duplicate", [torch.clone, copy.deepcopy, lambda t: t.to("cpu", copy=True)]
)
def test_copies_own_their_buffers(make, duplicate):
    tensor = make_tensor(make)
    twin = duplicate(tensor)
    assert type(twin) is Float8Tensor
    for name in ("_data", "_transpose", "_scale_inv"):
        mine, other = getattr(tensor, name), getattr(twin, name)
        assert torch.equal(mine, other)
        assert mine.data_ptr() != other.data_ptr()
    twin.mul_(2.0)
    assert torch.equal(tensor._data, make_tensor(make)._data)
    assert type(twin._quantizer) is type(tensor._quantizer)


def test_a_copy_drops_a_stale_transpose():
    tensor = make_tensor()
    tensor._reset_caches()
    assert tensor.clone()._transpose is None


def test_a_part_copied_is_a_whole():
    part = make_tensor(current_quantizer)[1:3]
    twin = part.clone()
    values = random_tensor((2, 4, 10), seed=4) * 100
    twin.copy_(values)
    assert torch.equal(twin._data, current_quantizer()(values)._data)
    assert part.contiguous()._data.is_contiguous()


def test_clone_and_to_are_differentiable():
    tensor = make_tensor().requires_grad_()
    grad = random_tensor(SHAPE, seed=1)
    for function in (torch.clone, lambda t: t.to(torch.bfloat16), lambda t: t.view(SHAPE)):
        tensor.grad = None
        function(tensor).dequantize(dtype=torch.float32).backward(grad)
        assert_within(tensor.grad, grad, rounding_bound(grad, torch.bfloat16))


def test_to_changes_the_nominal_dtype_only():
    tensor = make_tensor()
    for other in (
        tensor.to(torch.bfloat16),
        tensor.to("cpu", torch.bfloat16),
        tensor.to(dtype=torch.bfloat16),
        tensor.to(torch.zeros(1, dtype=torch.bfloat16)),
    ):
        assert isinstance(other, Float8Tensor)
        assert other.dtype is torch.bfloat16
        assert other._data.data_ptr() == tensor._data.data_ptr()
    assert tensor.to(torch.float32) is tensor
    assert tensor.cpu() is tensor
    plain = torch.ops.aten._to_copy.default(tensor, dtype=torch.bfloat16)
    assert type(plain) is torch.Tensor


def test_new_tensors_of_the_same_class():
    tensor = make_tensor(rowwise=True, columnwise=False)
    empty = torch.empty_like(tensor, dtype=torch.bfloat16)
    assert isinstance(empty, Float8Tensor)
    assert (empty.shape, empty.dtype) == (tensor.shape, torch.bfloat16)
    assert empty.get_usages() == {"rowwise": True, "columnwise": False}
    assert isinstance(tensor.new_empty((3, 4)), Float8Tensor)
    zeros = tensor.new_zeros((2, 3))
    assert isinstance(zeros, Float8Tensor)
    assert_identical(zeros.dequantize(), torch.zeros(2, 3))
    assert torch.equal(zeros._scale_inv, tensor._scale_inv)
    assert zeros._scale_inv.data_ptr() != tensor._scale_inv.data_ptr()
    assert type(torch.zeros_like(tensor)) is torch.Tensor
    tensor._quantizer = None
    with pytest.raises(RuntimeError, match="has no quantizer"):
        torch.empty_like(tensor)


def test_storage_is_empty_and_memory_is_not_pinned():
    tensor = make_tensor()
    assert tensor.untyped_storage().nbytes() == 0
    assert tensor.is_pinned() is False


def test_make_like_shares_what_is_not_replaced():
    tensor = make_tensor()
    other = Float8Tensor.make_like(tensor, data=torch.zeros(SHAPE, dtype=torch.uint8))
    assert other._scale_inv is tensor._scale_inv
    assert_identical(other.dequantize(), torch.zeros(SHAPE))
    assert Float8Tensor.make_like(tensor, requires_grad=True).requires_grad


def test_buffers_that_do_not_fit_the_shape_are_refused():
    with pytest.raises(ValueError, match=r"data has shape \(3,\)"):
        Float8Tensor.make_like(make_tensor(), data=torch.zeros(3, dtype=torch.uint8))


# --- usages ------------------------------------------------------------------------------------


def test_the_transpose_is_made_on_demand_and_dropped():
    tensor = make_tensor(columnwise=False)
    tensor.update_usage()
    assert tensor.get_usages() == {"rowwise": True, "columnwise": False}
    tensor.update_usage(columnwise_usage=True)
    assert torch.equal(tensor._transpose, tensor._data.view(24, 10).t())
    tensor.update_usage(columnwise_usage=False)
    assert tensor._transpose is None
    tensor.update_usage(columnwise_usage=True, rowwise_usage=False)
    assert tensor._data is None
    assert tensor.shape == SHAPE
    with pytest.raises(RuntimeError, match="rowwise bytes are not rebuilt"):
        tensor.update_usage(rowwise_usage=True, columnwise_usage=False)
    assert tensor.get_usages() == {"rowwise": False, "columnwise": True}, "unchanged"


def test_caches_are_reset_and_removed():
    tensor = make_tensor()
    buffer = tensor._transpose
    tensor._reset_caches()
    assert tensor._transpose_invalid
    tensor._data.fill_(3)
    tensor._create_transpose()
    assert tensor._transpose is buffer
    assert not tensor._transpose_invalid
    assert torch.equal(buffer, torch.full_like(buffer, 3))
    tensor._transpose_invalid = True
    assert tensor._transpose_invalid
    tensor._transpose_invalid = False
    assert not tensor._transpose_invalid
    tensor.remove_caches()
    assert tensor._transpose is None


def test_writing_the_raw_bytes_makes_the_transpose_stale():
    tensor = make_tensor()
    assert not tensor._transpose_invalid
    tensor._data.view(-1)[3] = 7
    assert tensor._transpose_invalid


# --- .data -------------------------------------------------------------------------------------


@BOTH
def test_setting_data_to_a_plain_tensor_quantizes_into_fresh_buffers(make):
    tensor = make_tensor(make).requires_grad_()
    pointer = tensor._data.data_ptr()
    values = random_tensor((3, 5), seed=1, dtype=torch.bfloat16)
    tensor.data = values
    assert (tensor.shape, tensor.dtype) == (torch.Size((3, 5)), torch.bfloat16)
    assert tensor._data.data_ptr() != pointer
    assert torch.equal(tensor._data, make()(values)._data)
    assert tensor.requires_grad is False, "follows the source"
    assert (tensor * 1).shape == (3, 5)


@BOTH
def test_setting_data_to_a_quantized_tensor_adopts_its_buffers(make):
    tensor, other = make_tensor(make), make_tensor(make, shape=(3, 5), seed=1)
    tensor.data = other
    assert tensor.shape == (3, 5)
    assert tensor._data.data_ptr() == other._data.data_ptr()
    assert tensor._scale_inv is other._scale_inv
    assert tensor._quantizer is not other._quantizer


def test_setting_data_without_a_quantizer():
    tensor = make_tensor()
    tensor._quantizer = None
    with pytest.raises(AssertionError, match="no quantizer"):
        tensor.data = torch.zeros(SHAPE)
    tensor.data = make_tensor(seed=2)
    with pytest.raises(RuntimeError, match=r"quantize_: the tensor has no quantizer"):
        pickle.loads(pickle.dumps(tensor)).quantize_(torch.zeros(SHAPE))


# --- parameters and modules ---------------------------------------------------------------------


class Holder(torch.nn.Module):
    def __init__(self, make=delayed_quantizer):
        super().__init__()
        self.weight = torch.nn.Parameter(make_tensor(make, shape=(8, 16)))
        self.bias = torch.nn.Parameter(torch.zeros(8))
        self.register_buffer("steps", torch.zeros(1, dtype=torch.int64))

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight, self.bias)


def test_parameters_are_parameters_and_quantized():
    weight = Holder().weight
    assert isinstance(weight, torch.nn.Parameter)
    assert isinstance(weight, QuantizedTensor)
    assert isinstance(weight, Float8Tensor)
    assert weight.requires_grad


def test_the_gradient_accumulator_is_found_through_expand_as():
    weight = Holder().weight
    expanded = weight.expand_as(weight)  # in older torch its node lives no longer
    (accumulator, _) = expanded.grad_fn.next_functions[0]
    assert accumulator.variable is weight
    assert_identical(
        weight[0].expand_as(torch.zeros(3, 16)).dequantize(),
        weight.dequantize()[0].expand(3, 16),
    )


OPTIMIZERS = {
    "AdamW": lambda p, foreach: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1, foreach=foreach),
    "SGD": lambda p, foreach: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=foreach),
}


@BOTH
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_update_quantized_parameters(make, foreach, name):
    """Three steps follow a FP32 optimizer as far as one rounding per write allows."""
    module = Holder(make)
    weight = module.weight
    twin = torch.nn.Parameter(weight.dequantize().detach().clone())
    optimizer = OPTIMIZERS[name]([weight], foreach)
    twin_optimizer = OPTIMIZERS[name]([twin], foreach)
    writes_per_step = 3
    bound = torch.zeros(weight.shape, dtype=torch.float64)
    for step in range(3):
        grad = random_tensor((8, 16), seed=10 + step)
        weight.grad, twin.grad = grad.clone(), grad.clone()
        version = weight._version
        optimizer.step()
        twin_optimizer.step()
        assert weight._version > version
        scaled = rounding_bound(twin.detach().abs() + bound, E4M3)
        scaled = torch.maximum(scaled, E4M3.smallest_step / 2 * weight._scale_inv.double())
        bound = bound + writes_per_step * 2 * scaled
        assert_within(weight.dequantize(), twin, bound)
        moments = optimizer.state[weight].values()
        assert all(type(value) is not Float8Tensor for value in moments)
    assert torch.equal(weight._transpose, weight._data.t()) or weight._transpose_invalid


def test_backward_gives_plain_gradients():
    module = Holder()
    x = random_tensor((3, 16), seed=1)
    module(x).sum().backward()
    assert type(module.weight.grad) is torch.Tensor
    assert_within(module.weight.grad, x.sum(0).expand(8, 16), 1e-5 * x.abs().sum(0).expand(8, 16))


@pytest.mark.parametrize(
    ("cast", "dtype"),
    [
        (torch.nn.Module.half, torch.float16),
        (torch.nn.Module.bfloat16, torch.bfloat16),
        (lambda module: module.half().float(), torch.float32),
        (lambda module: module.to(torch.bfloat16), torch.bfloat16),
    ],
)
def test_casting_a_module_keeps_the_bytes_of_quantized_parameters(cast, dtype):
    module = Holder()
    weight, data = module.weight, module.weight._data.clone()
    weight.user_tag = "mine"
    assert cast(module) is module
    assert module.weight is weight
    assert weight.user_tag == "mine"
    assert weight.dtype is module.bias.dtype is dtype
    assert module.steps.dtype is torch.int64
    assert torch.equal(weight._data, data)
    assert weight.requires_grad
    assert module(torch.zeros(2, 16, dtype=dtype)).dtype is dtype


def test_casting_a_module_to_double_keeps_it_trainable():
    module = Holder().double()
    assert isinstance(module.weight, Float8Tensor)
    assert module.weight.dtype is torch.float64
    assert module.weight.requires_grad


def test_casts_of_ordinary_modules_are_unchanged():
    module = torch.nn.BatchNorm1d(3).half()
    assert module.weight.dtype is torch.float16
    assert module.num_batches_tracked.dtype is torch.int64
    assert torch.nn.Module.half.__doc__


def test_deep_copies_of_modules_train_apart():
    module = Holder()
    module.weight.user_tag = ["mine"]
    module.weight.get_initial = types.MethodType(lambda weight: torch.zeros(1), module.weight)
    module.weight.grad = torch.ones(8, 16)
    twin = copy.deepcopy(module)
    assert isinstance(twin.weight, torch.nn.Parameter)
    assert isinstance(twin.weight, Float8Tensor)
    assert twin.weight.user_tag == ["mine"]
    assert twin.weight.user_tag is not module.weight.user_tag
    assert torch.equal(twin.weight.grad, module.weight.grad)
    torch.optim.SGD(twin.parameters(), lr=1.0).step()
    assert torch.equal(module.weight._data, Holder().weight._data)
    assert not torch.equal(twin.weight._data, module.weight._data)
    assert torch.equal(module.weight.get_initial(), torch.zeros(1))
    assert twin.weight.get_initial.__self__ is twin.weight
    tied = torch.nn.ModuleList([module, module])
    twins = copy.deepcopy(tied)
    assert twins[0].weight is twins[1].weight


def test_deep_copies_of_results_are_refused():
    tensor = make_tensor().requires_grad_().view(-1)
    with pytest.raises(RuntimeError, match="only leaves"):
        copy.deepcopy(tensor)


# --- files -------------------------------------------------------------------------------------


def through_file(value, weights_only):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


@BOTH
@pytest.mark.parametrize("usages", [{}, {"columnwise": False}, {"rowwise": False}])
def test_files_keep_the_bytes(make, usages):
    tensor = make_tensor(make, dtype=torch.bfloat16, **usages)
    tensor._scale_inv.fill_(0.3)  # quantizing again would not give these bytes
    for twin in (
        through_file({"t": tensor}, weights_only=True)["t"],
        pickle.loads(pickle.dumps(tensor)),
    ):
        assert type(twin) is Float8Tensor
        assert (twin.shape, twin.dtype) == (tensor.shape, tensor.dtype)
        assert twin._fp8_dtype is tensor._fp8_dtype
        for name in ("_data", "_scale_inv") if tensor._data is not None else ("_transpose",):
            assert torch.equal(getattr(twin, name), getattr(tensor, name))
        assert twin._quantizer is None


def test_state_dicts_round_trip_through_files():
    module = Holder()
    module.weight.data.mul_(1.25)
    module.weight._scale_inv.fill_(0.3)
    state = through_file(module.state_dict(), weights_only=True)
    assert isinstance(state["weight"], Float8Tensor)
    other = Holder()
    other.load_state_dict(state)
    assert torch.equal(other.weight._data, module.weight._data)
    assert other.weight._scale_inv.item() == module.weight._scale_inv.item()
    assert other.weight._quantizer is not None


def test_plain_state_is_quantized_when_loaded():
    module = Holder()
    values = random_tensor((8, 16), seed=9)
    module.load_state_dict({"weight": values}, strict=False)
    assert torch.equal(module.weight._data, delayed_quantizer()(values)._data)


def test_pickled_parameters_stay_parameters():
    parameter = torch.nn.Parameter(make_tensor(), requires_grad=False)
    parameter.user_tag = "mine"
    parameter.bound = types.MethodType(lambda weight: weight, parameter)
    twin = pickle.loads(pickle.dumps(parameter))
    assert isinstance(twin, torch.nn.Parameter)
    assert twin.user_tag == "mine"
    assert not hasattr(twin, "bound")
    assert isinstance(twin, Float8Tensor)
    assert not twin.requires_grad


def test_the_deprecated_import_path_warns():
    sys.modules.pop("transformer_engine.pytorch.float8_tensor", None)
    with pytest.warns(DeprecationWarning, match=r"tensor\.float8_tensor"):
        import transformer_engine.pytorch.float8_tensor as old
    assert old.Float8Tensor is Float8Tensor
