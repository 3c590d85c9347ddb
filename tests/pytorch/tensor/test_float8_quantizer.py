# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Quantizers of per-tensor FP8: bytes, scales, usages, copies."""

import copy
import io
import math
import pickle
import warnings

import pytest
import torch

from helpers.formats import E4M3, E5M2
from helpers.generators import (
    MATRIX_SHAPES,
    all_bfloat16_values,
    random_tensor,
    strided_copy,
    wide_tensor,
)
from helpers.quantizers import (
    FLOAT8_QUANTIZERS,
    FP8_FORMATS,
    USAGES,
    current_quantizer,
    delayed_quantizer,
    reference_codes,
    reference_scale,
    reference_values,
)
from helpers.ranks import ranks
from helpers.tolerances import assert_identical
from transformer_engine.pytorch.constants import DType
from transformer_engine.pytorch.tensor import (
    Float8CurrentScalingQuantizer,
    Float8Quantizer,
    Float8Tensor,
    Float8TensorStorage,
)

FORMATS = pytest.mark.parametrize("fp8_dtype", FP8_FORMATS, ids=["E4M3", "E5M2"])
BOTH = pytest.mark.parametrize("make", FLOAT8_QUANTIZERS.values(), ids=FLOAT8_QUANTIZERS)


@pytest.mark.smoke
@FORMATS
@pytest.mark.parametrize("scale", [1.0, 0.125, 3.0])
def test_every_bfloat16_is_cast_by_the_rule(fp8_dtype, scale):
    fmt = FP8_FORMATS[fp8_dtype]
    values = all_bfloat16_values()
    values = values[~values.isnan()].view(-1, 2)
    tensor = delayed_quantizer(scale, fp8_dtype)(values)
    assert torch.equal(tensor._data, reference_codes(values, scale, fmt))
    assert torch.equal(tensor._transpose, tensor._data.t())
    assert tensor._scale_inv.item() == pytest.approx(1 / scale, rel=2**-23)
    assert tensor._quantizer.amax.item() == float("inf")


@BOTH
@FORMATS
def test_nan_stays_nan(make, fp8_dtype):
    tensor = make(fp8_dtype=fp8_dtype)(torch.tensor([[float("nan"), 1.0]]))
    assert tensor.dequantize().isnan().tolist() == [[True, False]]


@FORMATS
@pytest.mark.parametrize("shape", MATRIX_SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_current_scaling_uses_the_amax_of_the_tensor(fp8_dtype, shape, dtype, device):
    fmt = FP8_FORMATS[fp8_dtype]
    values = random_tensor(shape, dtype=dtype, device=device)
    amax = float(values.abs().max()) if values.numel() else 0.0
    scale = reference_scale(amax, fmt)
    tensor = current_quantizer(fp8_dtype)(values)
    assert torch.equal(tensor._data.cpu(), reference_codes(values.cpu(), scale, fmt))
    expected_scale_inv = torch.tensor([1.0]) / torch.tensor([scale])
    assert_identical(tensor._scale_inv.cpu(), expected_scale_inv)
    assert tensor.dtype is dtype


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([0.0, 0.0], 1.0),
        ([float("inf"), 1.0], 1.0),
        ([1e-42, 0.0], torch.finfo(torch.float32).max),
        ([3.0, -7.0], 64.0),
    ],
)
def test_current_scaling_at_the_edges(values, scale):
    tensor = current_quantizer()(torch.tensor([values]))
    assert tensor._scale_inv.item() == float(torch.tensor(1.0) / torch.tensor(scale))


def test_powers_of_two_round_the_scale_down():
    tensor = current_quantizer(force_pow_2_scales=True)(torch.tensor([[3.0, -5.0]]))
    assert tensor._scale_inv.item() == 2.0 ** -math.floor(math.log2(448 / 5))


def test_epsilon_bounds_the_amax_from_below():
    tensor = current_quantizer(amax_epsilon=7.0)(torch.tensor([[0.5, -1.0]]))
    assert tensor._scale_inv.item() == 1 / 64


def test_delayed_scaling_reads_the_scale_of_the_moment_and_raises_amax():
    scale, amax = torch.ones(1), torch.zeros(1)
    quantizer = Float8Quantizer(scale, amax, DType.kFloat8E4M3)
    assert quantizer(torch.tensor([3.0]))._scale_inv.item() == 1.0
    scale.fill_(2.0)
    assert quantizer(torch.tensor([1.0]))._scale_inv.item() == 0.5
    assert amax.item() == 3.0
    quantizer.calibrate(torch.tensor([1.5]))
    assert amax.item() == 1.5


def test_calibrating_current_scaling_does_nothing():
    quantizer = current_quantizer()
    before = hash(quantizer)
    quantizer.calibrate(torch.tensor([1.5]))
    assert hash(quantizer) == before


@BOTH
@pytest.mark.parametrize("usages", USAGES.values(), ids=USAGES)
@pytest.mark.parametrize("shape", [(4, 6, 8), (5,), (), (0, 16), (3, 0), (2, 3, 1)])
def test_usages_say_which_copies_are_made(make, usages, shape):
    quantizer = make(**usages)
    values = random_tensor(shape)
    tensor = quantizer(values)
    assert tensor.get_usages() == usages
    rows, columns = math.prod(shape[:-1]), shape[-1] if shape else 1
    if usages["rowwise"]:
        assert tensor._data.shape == shape
    if usages["columnwise"]:
        assert tensor._transpose.shape == (columns, rows)
    whole = make()(values)
    assert_identical(tensor.dequantize(), whole.dequantize())


@BOTH
def test_no_usage_at_all_is_an_error(make):
    quantizer = make(rowwise=False, columnwise=False)
    with pytest.raises(ValueError, match="usage are both off"):
        quantizer(torch.ones(2))
    with pytest.raises(ValueError, match="usage are both off"):
        quantizer.make_empty((2,))


@BOTH
def test_settings_live_in_the_native_object(make):
    quantizer = make()
    quantizer.set_usage(rowwise=False)
    assert quantizer._core.rowwise_usage is False
    assert quantizer.get_usages() == {"rowwise": False, "columnwise": True}
    quantizer._core.columnwise_usage = False
    quantizer._core.internal = True
    assert (quantizer.columnwise_usage, quantizer.internal) == (False, True)
    quantizer.dtype = DType.kFloat8E5M2
    assert quantizer._core.fp8_dtype == 8


@BOTH
def test_internal_gives_storages(make):
    quantizer = make()
    quantizer.internal = True
    storage = quantizer(torch.ones(2, 3))
    assert type(storage) is Float8TensorStorage
    assert storage.size() == (2, 3)
    assert type(quantizer.make_empty((2, 3))) is Float8TensorStorage


@BOTH
@pytest.mark.parametrize("shape", [(4, 128, 256), (8, 16)])
@pytest.mark.parametrize("usages", USAGES.values(), ids=USAGES)
@pytest.mark.parametrize("internal", [False, True])
def test_empty_tensors_report_the_requested_shape(make, shape, usages, internal):
    quantizer = make(**usages)
    quantizer.internal = internal
    tensor = quantizer.make_empty(shape, dtype=torch.bfloat16)
    assert tuple(tensor.shape) == shape
    assert tuple(tensor.size()) == shape
    for dim in range(-len(shape), len(shape)):
        assert tensor.size(dim) == shape[dim]
    assert tensor.dim() == len(shape)
    assert tensor.numel() == math.prod(shape)
    assert tensor.device == torch.get_default_device()
    assert tensor._dtype is torch.bfloat16


@BOTH
def test_noncontiguous_and_double_inputs(make):
    values = random_tensor((6, 10))
    expected = make()(values)
    for same in (strided_copy(values), values.t().contiguous().t(), values.double()):
        tensor = make()(same)
        assert torch.equal(tensor._data, expected._data)
        assert tensor.dtype is same.dtype


@BOTH
def test_a_quantized_input_is_dequantized_first(make):
    first = make()(random_tensor((4, 6)))
    second = make(fp8_dtype=DType.kFloat8E5M2)(first)
    assert torch.equal(second._data, make(fp8_dtype=DType.kFloat8E5M2)(first.dequantize())._data)


@BOTH
@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.bool, torch.uint8, torch.float8_e4m3fn, torch.complex64]
)
def test_other_dtypes_are_refused(make, dtype):
    with pytest.raises(TypeError, match=f"quantize: tensor has dtype {dtype}; float32, bfloat16"):
        make()(torch.ones(3).to(dtype))
    tensor = make()(torch.ones(3))
    with pytest.raises(TypeError, match=f"update_quantized: tensor has dtype {dtype}"):
        tensor.quantize_(torch.zeros(3).to(dtype))
    assert_identical(tensor.dequantize(), torch.ones(3))


@BOTH
def test_empty_tensors_of_other_dtypes_and_sizes_are_refused(make):
    quantizer = make()
    for dtype in (torch.int32, torch.float8_e4m3fn, "float32"):
        with pytest.raises(TypeError, match=f"make_empty: dtype is {dtype}; float32"):
            quantizer.make_empty((2, 3), dtype=dtype)
    with pytest.raises(ValueError, match="make_empty: a size in shape is -1; "):
        quantizer.make_empty((-1, 3))
    with pytest.raises(TypeError, match=r"make_empty: a size in shape is 2\.5"):
        quantizer.make_empty((2.5, 3))
    tensor = quantizer(torch.ones(2, 3))
    for plain in (
        torch.empty_like(tensor, dtype=torch.bool),
        tensor.new_empty((2,), dtype=torch.int32),
        tensor.new_zeros((2,), dtype=torch.int64),
    ):
        assert type(plain) is torch.Tensor


@BOTH
def test_usages_are_flags(make):
    quantizer = make(rowwise=True, columnwise=False)
    with pytest.raises(TypeError, match="set_usage: rowwise is 'x'; it must be True or False"):
        quantizer.set_usage(rowwise="x", columnwise=True)
    with pytest.raises(TypeError, match="set_usage: columnwise is 2; it must be"):
        quantizer.set_usage(rowwise=False, columnwise=2)
    assert quantizer.get_usages() == {"rowwise": True, "columnwise": False}


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_that_cannot_be_are_refused(value):
    with pytest.raises(ValueError, match=r"Float8Quantizer: scale is .*; a positive finite"):
        Float8Quantizer(torch.tensor([value]), torch.zeros(1), DType.kFloat8E4M3)


def test_scale_and_amax_are_tensors():
    one = torch.ones(1)
    for name in ("scale", "amax"):
        arguments = {"scale": one, "amax": one, name: 3.0}
        with pytest.raises(
            TypeError, match=rf"Float8Quantizer: {name} is 3\.0; it must be a torch"
        ):
            Float8Quantizer(**arguments, fp8_dtype=DType.kFloat8E4M3)
        quantizer = delayed_quantizer()
        with pytest.raises(
            TypeError, match=rf"Float8Quantizer: {name} is 3\.0; it must be a torch"
        ):
            setattr(quantizer, name, 3.0)
        with pytest.raises(ValueError, match=rf"quantizer: {name} has shape \[2\]"):
            setattr(quantizer, name, torch.ones(2))
        assert quantizer.scale.item() == 4.0


@BOTH
def test_the_gradient_passes_straight_through(make):
    values = random_tensor((3, 4)).requires_grad_()
    output = make()(values)
    assert output.requires_grad
    grad = random_tensor((3, 4), seed=1)
    output.dequantize().backward(grad)
    assert torch.equal(values.grad, grad)


@BOTH
def test_nominal_dtype_can_be_chosen(make):
    values = random_tensor((3, 4))
    tensor = make()(values, dtype=torch.bfloat16)
    assert tensor.dtype is torch.bfloat16
    assert torch.equal(tensor._data, make()(values.bfloat16())._data)


@BOTH
@pytest.mark.parametrize("usages", USAGES.values(), ids=USAGES)
def test_update_equals_a_new_cast(make, usages):
    quantizer = make(**usages)
    tensor = quantizer(random_tensor((6, 10)))
    buffers = [buffer for buffer in tensor.get_data_tensors() if buffer is not None]
    values = wide_tensor((6, 10))
    assert quantizer(values, out=tensor) is tensor
    expected = quantizer(values)
    assert_identical(tensor.dequantize(), expected.dequantize())
    assert tensor.get_usages() == usages
    assert torch.equal(tensor._scale_inv, expected._scale_inv)
    assert all(any(buffer is now for now in tensor.get_data_tensors()) for buffer in buffers), (
        "updated in place"
    )
    if usages["columnwise"]:
        assert torch.equal(tensor._transpose, expected._transpose)


@BOTH
def test_update_declares_an_unwanted_transpose_stale(make):
    tensor = make()(random_tensor((6, 10)))
    make(columnwise=False).update_quantized(random_tensor((6, 10), seed=1), tensor)
    assert tensor._transpose is not None
    assert tensor._transpose_invalid
    tensor.update_usage(columnwise_usage=True)
    assert torch.equal(tensor._transpose, tensor._data.t())


@BOTH
def test_a_noop_flag_leaves_everything_untouched(make):
    quantizer = make()
    tensor = quantizer(random_tensor((6, 10)))
    before = [buffer.clone() for buffer in (tensor._data, tensor._transpose, tensor._scale_inv)]
    amax = quantizer.amax.clone() if isinstance(quantizer, Float8Quantizer) else None
    tensor.quantize_(wide_tensor((6, 10)), noop_flag=torch.ones(1))
    after = (tensor._data, tensor._transpose, tensor._scale_inv)
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    assert not tensor._transpose_invalid
    if amax is not None:
        assert torch.equal(quantizer.amax, amax)
    tensor.quantize_(wide_tensor((6, 10)), noop_flag=torch.zeros(1))
    assert not torch.equal(tensor._data, before[0])


@BOTH
def test_update_refuses_other_shapes_and_objects(make):
    quantizer = make()
    tensor = quantizer(random_tensor((6, 10)))
    before = tensor._data.clone()
    with pytest.raises(ValueError, match=r"src has shape \(10, 6\)"):
        quantizer.update_quantized(random_tensor((10, 6)), tensor)
    with pytest.raises(TypeError, match="dst is a Tensor"):
        quantizer.update_quantized(random_tensor((6, 10)), torch.zeros(6, 10))
    assert torch.equal(tensor._data, before)


def test_multi_quantize_is_one_by_one():
    values = [random_tensor((2, 3), seed=seed) for seed in range(3)]
    results = current_quantizer().multi_quantize(values)
    assert all(
        torch.equal(result._data, current_quantizer()(value)._data)
        for result, value in zip(results, values, strict=True)
    )


def test_copies_of_delayed_scaling_share_scale_and_amax():
    quantizer = delayed_quantizer()
    quantizer.internal = True
    twin = quantizer.copy()
    assert twin.scale is quantizer.scale or twin.scale.data_ptr() == quantizer.scale.data_ptr()
    assert twin.amax.data_ptr() == quantizer.amax.data_ptr()
    assert twin.internal
    twin.set_usage(columnwise=False)
    assert quantizer.columnwise_usage
    assert twin != quantizer


def test_deep_copies_of_delayed_scaling_share_nothing_but_each_other():
    quantizer = delayed_quantizer()
    state = {"first": quantizer, "second": quantizer.copy(), "scale": quantizer.scale}
    twin = copy.deepcopy(state)
    quantizer.scale.fill_(9.0)
    assert twin["first"].scale.item() == 4.0
    assert twin["scale"].item() == 4.0


def test_current_scaling_compares_by_value():
    assert current_quantizer() == current_quantizer()
    assert hash(current_quantizer()) == hash(current_quantizer())
    others = [
        current_quantizer(DType.kFloat8E5M2),
        current_quantizer(columnwise=False),
        current_quantizer(force_pow_2_scales=True),
        current_quantizer(amax_epsilon=1.0),
        current_quantizer(with_amax_reduction=True),
    ]
    assert all(other != current_quantizer() for other in others)
    assert current_quantizer(amax_epsilon=1.0).copy() == current_quantizer(amax_epsilon=1.0)
    assert copy.deepcopy(current_quantizer()) == current_quantizer()


@BOTH
def test_quantizers_survive_pickle_and_weights_only(make):
    quantizer = make(columnwise=False)
    quantizer.internal = True
    file = io.BytesIO()
    torch.save(quantizer, file)
    file.seek(0)
    for twin in (
        pickle.loads(pickle.dumps(quantizer)),
        torch.load(file, weights_only=True),
    ):
        assert type(twin) is type(quantizer)
        assert (twin.dtype, twin.get_usages(), twin.internal) == (
            *(quantizer.dtype, quantizer.get_usages(), True),
        )


def test_what_the_formats_promise():
    assert not delayed_quantizer().is_requantization_safe()
    assert current_quantizer().is_requantization_safe()
    for quantizer in (delayed_quantizer(), current_quantizer()):
        assert quantizer.supports_only_rowwise_all_gather()
        assert quantizer.is_quantizable(torch.zeros(3, 5))
        assert quantizer.get_scale_shape((4, 6, 8), columnwise=True) == (1,)
        assert quantizer.get_columnwise_shape((4, 6, 8)) == (8, 24)
        with pytest.raises(NotImplementedError, match="onnx_quantize"):
            quantizer.onnx_quantize(torch.zeros(1))
        with pytest.raises(NotImplementedError, match="onnx_dequantize"):
            quantizer.onnx_dequantize(torch.zeros(1))


def test_tensors_from_existing_bytes():
    codes = torch.arange(16, dtype=torch.uint8).view(2, 8)
    tensor = delayed_quantizer().create_tensor_from_data(codes, torch.bfloat16)
    assert isinstance(tensor, Float8Tensor)
    assert tensor._data.data_ptr() == codes.data_ptr()
    assert torch.equal(tensor.dequantize().double(), reference_values(codes, 0.25, E4M3))
    storage = delayed_quantizer().create_tensor_from_data(codes, internal=True)
    assert type(storage) is Float8TensorStorage
    scale_inv = torch.tensor([0.5])
    quantizer = current_quantizer(DType.kFloat8E5M2)
    tensor = quantizer.create_tensor_from_data(codes.view(torch.float8_e5m2), scale_inv=scale_inv)
    assert torch.equal(tensor.dequantize().double(), reference_values(codes, 0.5, E5M2))
    with pytest.raises(ValueError, match="scale_inv is None"):
        quantizer.create_tensor_from_data(codes)
    with pytest.raises(ValueError, match="data has dtype"):
        delayed_quantizer().create_tensor_from_data(codes.int())


def test_deprecated_arguments_of_current_scaling():
    with pytest.warns(DeprecationWarning, match="deprecated"):
        quantizer = current_quantizer(use_existing_amax=True, amax=torch.tensor([7.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = quantizer(torch.tensor([[1.0, 2.0]]))
    assert tensor._scale_inv.item() == 1 / 64
    with (
        pytest.warns(DeprecationWarning, match="deprecated"),
        pytest.raises(ValueError, match="amax is None"),
    ):
        current_quantizer(use_existing_amax=True)


@pytest.mark.parametrize("fp8_dtype", [DType.kFloat32, 6])
def test_other_types_are_refused(fp8_dtype):
    with pytest.raises(ValueError, match="fp8_dtype is k"):
        current_quantizer(fp8_dtype)
    with pytest.raises(ValueError, match="fp8_dtype is k"):
        delayed_quantizer(1.0, fp8_dtype)


def reduce_amax_on_two_ranks(rank):
    values = random_tensor((4, 8), seed=3) * (1 + rank)
    quantizer = Float8CurrentScalingQuantizer(
        DType.kFloat8E4M3, "cpu", with_amax_reduction=True, amax_reduction_group=None
    )
    tensor = quantizer(values)
    kept = tensor._quantizer
    return (
        *(tensor._scale_inv.item(), tensor._data.tolist(), tensor._transpose.tolist()),
        *(kept.with_amax_reduction, kept.amax_reduction_group),
    )


@pytest.mark.slow  # may be the first to start the ranks
def test_amaxes_are_reduced_over_a_group():
    results = ranks(2).run(reduce_amax_on_two_ranks)
    values = random_tensor((4, 8), seed=3)
    scale = reference_scale(float(values.abs().max()) * 2, E4M3)
    for rank, (scale_inv, data, transpose, with_reduction, group) in enumerate(results):
        assert scale_inv == float(torch.tensor(1.0) / torch.tensor(scale))
        expected = reference_codes(values * (1 + rank), scale, E4M3)
        assert data == expected.tolist()
        assert transpose == expected.t().tolist()
        assert (with_reduction, group) == (False, None)


@pytest.mark.parametrize("lost", ["scale", "amax"])
def test_a_scale_or_amax_on_another_device_is_refused(lost):
    state = {"scale": torch.ones(1), "amax": torch.zeros(1)}
    state[lost] = state[lost].to("meta")
    quantizer = Float8Quantizer(**state, fp8_dtype=DType.kFloat8E4M3)
    for call in (quantizer, quantizer.calibrate):
        with pytest.raises(ValueError, match=f"{lost} of the quantizer is on meta.*one device"):
            call(random_tensor((2, 16), device=torch.get_default_device()))
    if lost == "scale":
        assert quantizer.amax.item() == 0.0
