# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writing to a view of a Float8Tensor: the whole holds the values, cast by one scale."""

import copy
import pickle

import pytest
import torch

from helpers.formats import E4M3
from helpers.generators import random_tensor
from helpers.quantizers import (
    FLOAT8_QUANTIZERS,
    current_quantizer,
    delayed_quantizer,
    reference_codes,
    reference_scale,
    reference_values,
)
from helpers.tolerances import assert_identical, assert_within, rounding_bound
from transformer_engine.pytorch.constants import DType
from transformer_engine.pytorch.tensor import Float8Quantizer, Float8Tensor

KINDS = pytest.mark.parametrize("kind", FLOAT8_QUANTIZERS)
SHAPE = (8, 6, 4)
VIEWS = {
    "select": lambda t: t[1],
    "select of the middle": lambda t: t[:, 2],
    "slice": lambda t: t[1:3],
    "steps": lambda t: t[..., ::3],
    "nested": lambda t: t[2:6][1],
    "nested and reshaped": lambda t: t[2:6].view(-1)[5:17],
    "split": lambda t: t.split(3)[1],
    "split by sizes": lambda t: t.split([1, 7])[1],
    "chunk": lambda t: t.chunk(4)[3],
    "unbind": lambda t: t.unbind()[5],
    "unbind of the last axis": lambda t: t.unbind(-1)[1],
    "narrow": lambda t: t.narrow(1, 2, 3),
    "transpose": lambda t: t.transpose(0, 1),
    "mT": lambda t: t.mT,
    "t of a part": lambda t: t[3].t(),
    "T of a part": lambda t: t[:, 1].T,
    "permute": lambda t: t.permute(2, 0, 1),
    "part of a transpose": lambda t: t.transpose(0, 2)[1],
    "movedim": lambda t: t.movedim(0, 2)[..., 1:],
    "view": lambda t: t.view(48, 4)[7],
    "reshape": lambda t: t.reshape(-1, 2)[11:30],
    "as_strided": lambda t: torch.as_strided(t, (3, 4), (24, 1), 8),
    "as_strided of a part": lambda t: t[3].as_strided((2, 3), (2, 1)),
    "diagonal": lambda t: t.diagonal(),
    "unfold": lambda t: t.unfold(0, 2, 2),
    "unsqueeze": lambda t: t.unsqueeze(1),
    "squeeze": lambda t: t[2:3].squeeze(),
    "squeeze of an axis": lambda t: t[2:3].squeeze(0),
    "expand to the same shape": lambda t: t.expand(SHAPE),
    "detach": lambda t: t.detach()[4],
    "data": lambda t: t.data[4:],
    "detached part": lambda t: t[4:].detach(),
    "data of a part": lambda t: t[4].data,
    "flatten": lambda t: t.flatten()[100:],
    "one element": lambda t: t[7, 5, 3],
    "nothing": lambda t: t[3:3],
    "everything": lambda t: t[:],
}
WRITES = {
    "fill_": lambda t: t.fill_(7.0),
    "fill_ with a huge value": lambda t: t.fill_(3e4),
    "copy_": lambda t: t.copy_(random_tensor(tuple(t.shape), seed=5) * 50),
    "copy_ broadcasts": lambda t: t.copy_(torch.tensor(2.5)),
    "copy_ converts": lambda t: t.copy_(torch.full((), 3, dtype=torch.int32)),
    "mul_": lambda t: t.mul_(3),
    "add_": lambda t: t.add_(1.5, alpha=2),
    "normal_": lambda t: t.normal_(std=3.0, generator=torch.Generator().manual_seed(1)),
    "zero_": lambda t: t.zero_(),
    "out": lambda t: torch.add(torch.ones(t.shape), 4.0, out=t),
    "foreach": lambda t: torch._foreach_mul_([t], 5.0),
    "setitem": lambda t: t.__setitem__(..., -20.0),
}


def make_tensor(kind, dtype=torch.float32, shape=SHAPE, **usages):
    return FLOAT8_QUANTIZERS[kind](**usages)(random_tensor(shape, dtype=dtype))


def quantized(values, kind):
    """(codes, values in float32) of a float32 tensor, from the formulas of the format alone."""
    amax = float(values.abs().max()) if values.numel() else 0.0
    scale = reference_scale(amax, E4M3) if kind == "current" else 4.0
    scale_inv = torch.tensor(1.0) / torch.tensor(scale, dtype=torch.float32)
    codes = reference_codes(values, scale, E4M3)
    return codes, reference_values(codes, scale_inv.double().item(), E4M3).float()


def check(tensor, values, kind):
    """The tensor holds the values, and its transpose, made again, the same."""
    codes, expected = quantized(values, kind)
    assert_identical(tensor.dequantize(dtype=torch.float32), expected)
    tensor.update_usage(columnwise_usage=True)
    assert torch.equal(tensor._transpose, codes.reshape(-1, codes.shape[-1]).t())
    return expected


@KINDS
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_read_and_write_the_values_of_the_whole(kind, view):
    for write in WRITES.values():
        tensor = make_tensor(kind)
        plain = tensor.dequantize()
        part = view(tensor)
        assert isinstance(part, Float8Tensor)
        assert_identical(part.dequantize(), view(plain))
        if torch.empty_like(view(plain)).stride() == view(plain).stride():  # without gaps
            assert part.dequantize().stride() == view(plain).stride()
        values = part.dequantize()  # `normal_` takes its numbers in the order of memory
        write(part)
        write(values)
        view(plain).copy_(values)
        expected = check(tensor, plain, kind)
        assert_identical(part.dequantize(), view(expected))


@KINDS
def test_a_chain_of_writes_rounds_once_each(kind):
    tensor = make_tensor(kind)
    values = tensor.dequantize()
    views = [view for view in VIEWS.values() if view(tensor).numel()]
    parts = [view(tensor) for view in views]  # taken before the scale changes
    for step in range(40):
        i = step * 7 % len(views)
        factor = (2.5, -0.3, 1.7, 11.0, 0.02)[step % 5]
        parts[i].mul_(factor)
        view = views[i](values)
        view.copy_(view * factor)
        values = check(tensor, values, kind)


@KINDS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_rest_is_not_rounded_to_the_nominal_dtype(kind, dtype):
    tensor = make_tensor(kind, dtype)
    plain = tensor.dequantize(dtype=torch.float32)
    tensor[1:3].mul_(3)
    plain[1:3] = (plain[1:3].to(dtype) * 3).float()
    check(tensor, plain, kind)


@pytest.mark.parametrize("fmt", [DType.kFloat8E4M3, DType.kFloat8E5M2])
def test_unwritten_values_stay_while_the_largest_does(fmt):
    tensor = current_quantizer(fmt)(random_tensor(SHAPE))
    before = tensor._data.clone()
    largest = int(tensor.dequantize().abs().amax((1, 2)).argmax())
    for _ in range(50):
        tensor[(largest + 1) % 8].normal_(std=0.1)
    rest = torch.arange(8) != (largest + 1) % 8
    assert torch.equal(tensor._data[rest], before[rest])


@KINDS
def test_modules_parameters_can_be_written_in_parts(kind):
    weight = torch.nn.Parameter(make_tensor(kind, shape=(8, 8)))
    plain = weight.dequantize().detach().clone()
    version = weight._version
    with torch.no_grad():
        weight[0] = 7.0
        plain[0] = 7.0
        plain = check(weight, plain, kind)
        weight[2:5, 1] = random_tensor((3,), seed=4) * 30
        plain[2:5, 1] = random_tensor((3,), seed=4) * 30
        plain = check(weight, plain, kind)
        torch.nn.init.constant_(weight[:4], 3.25)
        plain[:4] = 3.25
        plain = check(weight, plain, kind)
        weight.T.mul_(3)
        check(weight, plain * 3, kind)
    assert weight._version == version + 4
    torch.nn.init.normal_(weight[:4], std=3.0)
    assert 3.0 < weight.dequantize()[:4].abs().max() < 30.0


@KINDS
def test_parts_of_one_tensor_in_one_operation(kind):
    tensor = make_tensor(kind)
    plain = tensor.dequantize()
    torch._foreach_mul_(list(tensor.unbind()), 3.0)
    assert_rounded_in_steps(tensor, plain * 3, kind)


def assert_rounded_in_steps(tensor, exact, kind):
    """As many roundings as there are parts, each to the scale of then."""
    error = rounding_bound(exact, E4M3) + E4M3.smallest_step / 2 * tensor._scale_inv.double()
    if kind == "delayed":  # a fixed scale gives values that the next cast leaves alone
        assert_within(tensor.dequantize(), exact.clamp(-112, 112), error)
    else:
        assert_within(tensor.dequantize(), exact, SHAPE[0] * error)


def test_parts_that_overlap_in_one_operation_are_refused():
    tensor = make_tensor("current")
    before = tensor._data.clone()
    with pytest.raises(RuntimeError, match=r"two written tensors share bytes"):
        torch._foreach_mul_([tensor[0:2], tensor[1:3]], 3.0)
    with pytest.raises(RuntimeError, match=r"two written tensors share bytes"):
        torch._foreach_mul_([tensor, tensor.detach()], 3.0)
    assert torch.equal(tensor._data, before)


@KINDS
def test_an_optimizer_trains_a_part(kind):
    tensor = make_tensor(kind, shape=(8, 8))
    part = torch.nn.Parameter(tensor.detach()[2:4])
    plain = tensor.dequantize()
    optimizer = torch.optim.SGD([part], lr=1.0)
    for step in range(3):
        grad = random_tensor((2, 8), seed=20 + step) * 5
        part.grad = grad.clone()
        optimizer.step()
        plain[2:4] -= grad
        plain = check(tensor, plain, kind)


class RoundingLBFGS(torch.optim.LBFGS):
    """LBFGS on plain parameters that are rounded to a format after every step."""

    def __init__(self, parameter, quantizer, **options):
        super().__init__([parameter], **options)
        self.parameter, self.quantizer = parameter, quantizer

    # The other write, `_set_param`, brings back values that were rounded before.
    def _add_grad(self, *arguments):
        super()._add_grad(*arguments)
        with torch.no_grad():
            self.parameter.copy_(self.quantizer(self.parameter.detach()).dequantize())


@KINDS
@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_goes_the_way_of_a_twin_rounded_at_every_write(kind, line_search):
    weight = torch.nn.Parameter(make_tensor(kind, shape=(8, 8)))
    twin = torch.nn.Parameter(weight.dequantize().detach().clone())
    x = random_tensor((32, 8), seed=1)
    target = x @ random_tensor((8, 8), seed=2)
    options = {"max_iter": 8, "line_search_fn": line_search}
    twin_optimizer = RoundingLBFGS(twin, weight._quantizer, **options)
    losses = []
    for parameter, optimizer in (
        (weight, torch.optim.LBFGS([weight], **options)),
        (twin, twin_optimizer),
    ):

        def closure(parameter=parameter, optimizer=optimizer):
            optimizer.zero_grad()
            loss = (torch.nn.functional.linear(x, parameter) - target).square().mean()
            loss.backward()
            return loss

        first = closure().item()
        for _ in range(3):
            optimizer.step(closure)
        losses.append(closure().item())
        assert losses[-1] < first / 4
    assert losses[0] == losses[1]
    assert_identical(weight.dequantize().detach(), twin.detach())


@KINDS
def test_a_part_of_a_transpose_alone_can_be_written(kind):
    tensor = make_tensor(kind, rowwise=False)
    plain = tensor.dequantize()
    for view in (lambda t: t[1:3], lambda t: t[..., 2], lambda t: t.mT, lambda t: t[1][2:]):
        part = view(tensor)
        assert isinstance(part, Float8Tensor)
        assert_identical(part.dequantize(), view(plain))
        part.mul_(3)
        view(plain).mul_(3)
        plain = quantized(plain, kind)[1]
        assert_identical(tensor.dequantize(), plain)


@KINDS
def test_bytes_with_strides_and_an_offset_of_their_own(kind):
    buffer = torch.zeros(3 + 2 * 48, dtype=torch.uint8)
    data = buffer[3:].view(8, 12)[:, ::2]
    tensor = Float8Tensor(
        shape=(8, 6),
        dtype=torch.float32,
        data=data,
        fp8_scale_inv=torch.ones(1),
        fp8_dtype=DType.kFloat8E4M3,
        quantizer=FLOAT8_QUANTIZERS[kind](columnwise=False),
    )
    tensor.copy_(random_tensor((8, 6)))
    plain = tensor.dequantize()
    tensor[2:4].mul_(20)
    plain[2:4].mul_(20)
    codes, expected = quantized(plain, kind)
    assert_identical(tensor.dequantize(), expected)
    assert torch.equal(data, codes)
    assert not buffer[:3].any()
    assert not buffer[3:].view(8, 12)[:, 1::2].any()
    with pytest.raises(ValueError, match=r"dst reaches bytes 0 to 96 of a tensor of 95 bytes"):
        tensor.as_strided((96,), (1,)).zero_()


def test_a_view_of_moved_bytes_is_taken_from_where_the_tensor_begins():
    from transformer_engine.pytorch.tensor.utils import replace_raw_data

    tensor = make_tensor("delayed", shape=(4, 4))
    replace_raw_data(tensor, torch.zeros(40, dtype=torch.uint8)[10:26])
    assert_identical(
        torch.as_strided(tensor, (2, 4), (4, 1), 4).dequantize(), tensor.dequantize()[1:3]
    )
    with pytest.raises(ValueError, match=r"replace_raw_data: tensor is a view"):
        replace_raw_data(tensor[1:3], torch.zeros(8, dtype=torch.uint8))


def test_a_view_of_another_dtype_is_refused():
    tensor = make_tensor("current")
    with pytest.raises(TypeError, match=r"Float8Tensor\.view: dtype is torch\.int32"):
        tensor.view(torch.int32)
    assert isinstance(tensor.view(torch.float32), Float8Tensor)


def test_an_expanded_view_is_not_written():
    tensor = make_tensor("current", shape=(4, 1))
    before = copy.deepcopy(tensor)
    with pytest.raises(RuntimeError, match=r"several elements share one byte"):
        tensor.expand(4, 3).mul_(2)
    assert_identical(tensor.dequantize(), before.dequantize())
    assert_identical(tensor.expand(4, 3).dequantize(), before.dequantize().expand(4, 3))


@KINDS
def test_failing_writes_change_nothing(kind):
    tensor = make_tensor(kind)
    before, scale_inv = tensor._data.clone(), tensor._scale_inv.clone()
    other = FLOAT8_QUANTIZERS[kind](fp8_dtype=DType.kFloat8E5M2)
    with pytest.raises(ValueError, match=r"dst is a view of a tensor of kFloat8E4M3"):
        other.update_quantized(torch.ones(6, 4), tensor[0])
    with pytest.raises(ValueError, match=r"src has shape \(3,\)"):
        tensor._quantizer.update_quantized(torch.ones(3), tensor[0])
    with pytest.raises(ValueError, match=r"src has scale_inv .* is a part of a tensor with"):
        tensor[0].copy_from_storage(current_quantizer(columnwise=False)(torch.ones(6, 4)))
    with pytest.raises(ValueError, match=r"src has fp8_dtype kFloat8E5M2; kFloat8E4M3"):
        tensor.copy_from_storage(other(torch.ones(SHAPE)))
    part = tensor[0]
    part._quantizer = None
    with pytest.raises(RuntimeError, match="has no quantizer"):
        part.mul_(2)
    assert torch.equal(tensor._data, before)
    assert torch.equal(tensor._scale_inv, scale_inv)


@KINDS
def test_bytes_of_the_same_scale_are_copied_exactly(kind):
    src, dst = make_tensor(kind), make_tensor(kind).clone()
    for tensor in (src, dst):
        tensor._scale_inv.fill_(0.3)  # a scale no quantizer would give
    src._data.copy_(torch.arange(192, dtype=torch.uint8).view(SHAPE) % 120)
    dst[2:5].copy_(src[2:5])
    assert torch.equal(dst._data[2:5], src._data[2:5])
    assert dst._scale_inv.item() == src._scale_inv.item()


@KINDS
def test_another_format_is_not_copied_under_an_aliass_nose(kind):
    tensor = make_tensor(kind)
    values = random_tensor(SHAPE, seed=3)
    other = FLOAT8_QUANTIZERS[kind](fp8_dtype=DType.kFloat8E5M2)(values)
    tensor.detach().copy_(other)
    check(tensor, other.dequantize(), kind)


def test_a_view_outlives_data_being_set_and_copies_are_their_own():
    tensor = make_tensor("current")
    part, twin = tensor[1], copy.deepcopy(tensor[1])
    tensor.data = random_tensor(SHAPE, seed=8)
    before = tensor.dequantize()
    part.fill_(9.0)
    twin.fill_(400.0)
    assert_identical(part.dequantize(), torch.full((6, 4), 9.0))
    assert_identical(tensor.dequantize(), before)
    tensor[0].data = part
    clone = tensor[2].clone()
    clone.fill_(1e3)
    assert_identical(tensor.dequantize(), before)


def test_gradients_reach_the_right_part_of_a_written_view():
    weight = make_tensor("delayed").requires_grad_()
    whole = weight.clone()
    whole[3].mul_(2)
    whole.transpose(0, 1)[1].mul_(4)
    grad = random_tensor(SHAPE, seed=2)
    whole.dequantize().backward(grad)
    expected = grad.clone()
    expected[3] *= 2
    expected[:, 1] *= 4
    assert_identical(weight.grad, expected)


@KINDS
def test_transposed_views_multiply_as_plain_ones(kind):
    weight, x = make_tensor(kind, shape=(8, 6)), random_tensor((3, 6), seed=1)
    plain = weight.dequantize()
    assert_identical(x @ weight.t(), x @ plain.t())
    assert_identical(torch.nn.functional.linear(x, weight), torch.nn.functional.linear(x, plain))
    assert_identical(torch.einsum("bi,oi->bo", x, weight), torch.einsum("bi,oi->bo", x, plain))
    clone = weight.t().clone()
    assert clone.stride() == plain.t().clone().stride()
    assert_identical(clone.mul_(1).dequantize(), plain.t())


def test_inference_mode():
    with torch.inference_mode():
        tensor = delayed_quantizer()(random_tensor(SHAPE))
        tensor[2].fill_(5.0)
        assert_identical(tensor[2].dequantize(), torch.full((6, 4), 5.0))
        tensor.update_usage(columnwise_usage=False)


# ---- parts of a file ---------------------------------------------------------------------------


def from_file(tensor):
    """What a checkpoint gives: the bytes and the scale, no quantizer."""
    return pickle.loads(pickle.dumps(tensor))


def quantizer_of_scale(scale):
    return Float8Quantizer(torch.tensor([scale]), torch.zeros(1), DType.kFloat8E4M3)


PARTINGS = {
    "halves": lambda t: t.chunk(2),
    "rows": lambda t: t.unbind(),
    "columns": lambda t: (t[..., :1], t[..., 1:]),
    "overlapping": lambda t: (t[:5], t[3:]),
}


@pytest.mark.parametrize("parting", PARTINGS)
def test_parts_of_a_file_make_the_whole_bit_for_bit(parting):
    saved = quantizer_of_scale(100.0)(random_tensor(SHAPE, seed=1))
    tensor = quantizer_of_scale(1.0)(random_tensor(SHAPE, seed=2))
    for part, its in zip(
        PARTINGS[parting](tensor), PARTINGS[parting](from_file(saved)), strict=True
    ):
        part.copy_(its)
    assert_identical(tensor._data, saved._data)
    assert_identical(tensor._scale_inv, saved._scale_inv)
    tensor.update_usage(rowwise_usage=True, columnwise_usage=True)
    assert_identical(tensor._transpose, saved._transpose)


def test_parts_of_a_file_under_other_scales_are_rounded():
    saved = [quantizer_of_scale(s)(random_tensor((4, 6, 4), seed=1)) for s in (100.0, 50.0)]
    tensor = quantizer_of_scale(1.0)(random_tensor(SHAPE, seed=2))
    for part, its in zip(tensor.chunk(2), saved, strict=True):
        part.copy_(from_file(its))
    assert tensor._scale_inv.item() == 1.0
    values = torch.cat([its.dequantize() for its in saved])
    assert_identical(tensor.dequantize(), quantizer_of_scale(1.0)(values).dequantize())


@pytest.mark.parametrize("is_file", [True, False])
@pytest.mark.parametrize("parting", PARTINGS)
def test_parts_next_to_zeros_are_copied_with_their_scale(parting, is_file):
    """As fully_shard fills up the parts of the last ranks."""
    saved = quantizer_of_scale(100.0)(random_tensor(SHAPE, seed=1))
    for index, source in enumerate(PARTINGS[parting](saved)):
        tensor = quantizer_of_scale(1.0)(random_tensor(SHAPE, seed=2))
        part = PARTINGS[parting](tensor)[index]
        values = part.dequantize()
        tensor.zero_()
        part.copy_(values)
        tensor.update_usage(rowwise_usage=True, columnwise_usage=True)
        part.copy_(from_file(source) if is_file else source)
        assert_identical(part._data, source._data)
        assert_identical(tensor._scale_inv, saved._scale_inv)
        expected = torch.zeros(SHAPE)
        PARTINGS[parting](expected)[index].copy_(source.dequantize())
        assert_identical(tensor.dequantize(), expected)
        tensor.update_usage(rowwise_usage=False, columnwise_usage=True)
        assert_identical(tensor.dequantize(), expected)


def test_a_part_next_to_other_values_is_cast_under_the_scale_of_the_whole():
    source = quantizer_of_scale(100.0)(random_tensor((2, 6, 4), seed=1))
    tensor = quantizer_of_scale(1.0)(random_tensor(SHAPE, seed=2))
    rest = tensor[2:].dequantize()
    tensor[:2].copy_(source)
    assert tensor._scale_inv.item() == 1.0
    assert_identical(tensor[2:].dequantize(), rest)
    expected = quantizer_of_scale(1.0)(source.dequantize())
    assert_identical(tensor[:2].dequantize(), expected.dequantize())


@pytest.mark.parametrize("write", ["whole", "part", "bytes"])
def test_a_write_in_between_is_not_lost(write):
    saved = from_file(quantizer_of_scale(100.0)(random_tensor(SHAPE, seed=1)))
    tensor = quantizer_of_scale(1.0)(random_tensor(SHAPE, seed=2))
    tensor[:4].copy_(saved[:4])
    if write == "whole":
        tensor.fill_(2.0)
    elif write == "part":
        tensor[:1].fill_(2.0)
    else:
        tensor._data.copy_(tensor._data.flip(0))
    expected = tensor.dequantize()
    tensor[4:].copy_(saved[4:])
    assert tensor._scale_inv.item() == 1.0
    assert_identical(tensor[:4].dequantize(), expected[:4])
