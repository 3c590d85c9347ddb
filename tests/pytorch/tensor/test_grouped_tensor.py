# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Groups of tensors whose buffers are packed."""

import copy
import functools
import io

import pytest
import torch

from helpers.generators import random_tensor
from helpers.quantizers import (
    block_quantizer,
    current_quantizer,
    delayed_quantizer,
    mxfp8_quantizer,
)
from helpers.tolerances import assert_identical
from transformer_engine.pytorch.tensor import (
    Float8Tensor,
    GroupedTensor,
    GroupedTensorStorage,
    MXFP8Tensor,
    NVFP4Quantizer,
)

MAKERS = {
    "none": lambda: None,
    "delayed": delayed_quantizer,
    "current": current_quantizer,
    "mxfp8": mxfp8_quantizer,
    "tiles": block_quantizer,
    "nvfp4": functools.partial(NVFP4Quantizer, with_2d_quantization=True),
}
ALL = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
SHAPES = [(32, 48), (5, 48), (64, 48)]
WHOLE = (101, 48)


def values_of(seed=0, shapes=SHAPES):
    return [random_tensor(shape, seed=seed + i) for i, shape in enumerate(shapes)]


def make_group(make, seed=0, shapes=SHAPES):
    return GroupedTensor.from_tensors(values_of(seed, shapes), make())


def expected_values(make, tensors):
    quantizer = make()
    return [t if quantizer is None else quantizer(t).dequantize() for t in tensors]


def assert_packed(group):
    """The members' buffers are the packed ones, without gaps."""
    for name, packed in group._packed.items():
        at = packed.data_ptr()
        for member in group._members:
            buffer = getattr(member, name)
            assert buffer.data_ptr() == at
            at += buffer.numel() * buffer.element_size()
        assert at == packed.data_ptr() + packed.numel() * packed.element_size()


@pytest.mark.smoke
@ALL
def test_members_are_what_the_quantizer_makes_on_packed_buffers(make):
    group, expected = make_group(make), expected_values(make, values_of())
    assert isinstance(group, GroupedTensor)
    assert (group.num_tensors, group.tensor_shapes) == (3, SHAPES)
    assert (tuple(group.shape), tuple(group.size()), group.size(-1)) == (WHOLE, WHOLE, 48)
    assert_packed(group)
    members = group.split_into_quantized_tensors()
    for member, values in zip(members, expected, strict=True):
        plain = member if make() is None else member.dequantize()
        assert_identical(plain, values)
    assert_identical(group.dequantize(), torch.cat(expected))
    assert group.rowwise_data.dim() == 1
    assert (group.quantizer is None) == (make() is None)


def test_packed_buffers_have_the_names_of_their_parts():
    group = make_group(MAKERS["nvfp4"])
    for packed, field in (
        (group.rowwise_data, "_rowwise_data"),
        (group.columnwise_data, "_columnwise_data"),
        (group.scale_inv, "_rowwise_scale_inv"),
        (group.columnwise_scale_inv, "_columnwise_scale_inv"),
    ):
        parts = [getattr(member, field).reshape(-1) for member in group.quantized_tensors]
        assert torch.equal(packed, torch.cat(parts))
    plain = make_group(MAKERS["none"])
    assert plain.scale_inv is plain.columnwise_data is None
    assert plain.get_data_tensors() == (plain.rowwise_data, None)


def test_groups_say_how_their_members_differ():
    for shapes, same_first, same_last, shape in (
        ([(4, 8), (4, 8)], True, True, (8, 8)),
        ([(4, 8), (2, 8)], False, True, (6, 8)),
        ([(4, 8), (4, 2)], True, False, (40,)),
        ([(4, 8), (2, 4)], False, False, (40,)),
    ):
        group = make_group(mxfp8_quantizer, shapes=shapes)
        assert group.all_same_first_dim() is same_first
        assert group.all_same_last_dim() is same_last
        assert group.all_same_shape() is (same_first and same_last)
        assert group.varying_both_dims() is not (same_first or same_last)
        assert tuple(group.shape) == group.dequantize().shape == shape


@ALL
def test_writes_to_members_and_to_the_group_are_the_same(make):
    group, values = make_group(make), values_of(seed=5)
    packed = group.rowwise_data
    group.quantize(values)
    assert_identical(group.dequantize(), torch.cat(expected_values(make, values)))
    values = random_tensor(WHOLE, seed=9)
    version = group._version
    group.copy_(values)
    assert group._version > version
    parts = values.split([shape[0] for shape in SHAPES])
    assert_identical(group.dequantize(), torch.cat(expected_values(make, parts)))
    group.quantized_tensors[1].zero_()
    assert group.dequantize()[32:37].abs().max() == 0
    plain = group.dequantize()
    group.mul_(0.37)
    parts = (plain * 0.37).split([shape[0] for shape in SHAPES])
    assert_identical(group.dequantize(), torch.cat(expected_values(make, parts)))
    group.quantize_(plain, noop_flag=torch.ones(1))
    assert_identical(group.dequantize(), torch.cat(expected_values(make, parts)))
    assert group.rowwise_data.data_ptr() == packed.data_ptr()
    assert_packed(group)


@ALL
def test_copies_aliases_and_files(make):
    group = make_group(make)
    alias = group.detach()
    assert alias.rowwise_data.data_ptr() == group.rowwise_data.data_ptr()
    file = io.BytesIO()
    torch.save({"group": group, "weight": torch.nn.Parameter(group)}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    for twin in (group.clone(), copy.deepcopy(group), group.cpu(), *loaded.values()):
        assert isinstance(twin, GroupedTensor)
        assert_identical(twin.dequantize(), group.dequantize())
        assert_packed(twin)
    twin = loaded["group"]
    assert twin.rowwise_data.data_ptr() != group.rowwise_data.data_ptr()
    src = make_group(make, seed=7)
    group.copy_(src)
    for name, buffer in src._packed.items():
        assert torch.equal(group._packed[name], buffer)
    assert_identical((group + 1), group.dequantize() + 1)
    like = torch.empty_like(group)
    assert (type(like), like.tensor_shapes) == (GroupedTensor, SHAPES)
    assert type(group.new_empty(3, 4)) is torch.Tensor
    twin.data = src
    assert twin.rowwise_data.data_ptr() == src.rowwise_data.data_ptr()
    twin.data = torch.zeros(WHOLE)
    assert twin.dequantize().abs().max() == 0
    if make() is not None and make is not MAKERS["delayed"]:
        loaded["weight"].detach().quantize(values_of())  # the quantizer came along


@ALL
def test_a_group_can_be_a_parameter(make):
    weight = torch.nn.Parameter(make_group(make))
    plain = weight.dequantize().detach()
    (weight.dequantize() * 3).sum().backward()
    assert_identical(weight.grad, torch.full(WHOLE, 3.0))
    torch.optim.SGD([weight], lr=0.1).step()
    parts = plain.add(weight.grad, alpha=-0.1).split([shape[0] for shape in SHAPES])
    assert_identical(weight.dequantize().detach(), torch.cat(expected_values(make, parts)))


def test_usages_follow_the_members_format():
    group = make_group(block_quantizer)
    group.update_usage(columnwise_usage=False)
    assert group.columnwise_data is None
    assert group.get_usages() == {"rowwise": True, "columnwise": False}
    group.update_usage(columnwise_usage=True)
    assert_packed(group)
    assert group.columnwise_data is not None
    group = make_group(mxfp8_quantizer)
    alias = group.detach()
    alias.update_usage(columnwise_usage=False)
    assert group.columnwise_data is not None
    with pytest.raises(RuntimeError, match="there is no columnwise copy"):
        alias.update_usage(columnwise_usage=True)


def test_empty_groups_are_made_by_shape():
    group = GroupedTensor.make_grouped_tensor_with_shapes(
        2, [(4, 32), (8, 32)], mxfp8_quantizer(), dtype=torch.bfloat16
    )
    assert (tuple(group.shape), group.dtype) == ((12, 32), torch.bfloat16)
    assert [type(member) for member in group.quantized_tensors] == [MXFP8Tensor] * 2
    group.quantize(values_of(shapes=[(4, 32), (8, 32)]))
    plain = GroupedTensor.make_grouped_tensor_with_shapes(1, [(4,)])
    assert plain.quantized_tensors[0].shape == (4,)


def test_bad_arguments_are_refused():
    group = make_group(mxfp8_quantizer)
    before = group.dequantize()
    for call, message in (
        (lambda: group.quantize(values_of()[:2]), "quantize: tensors have shapes"),
        (lambda: group.quantize_(torch.zeros(3, 3)), r"quantize_: tensor has shape \(3, 3\)"),
        (lambda: GroupedTensor((2, 2), torch.float32, members=[]), "members is empty"),
        (lambda: GroupedTensor.from_tensors([]), "tensors is empty"),
        (
            lambda: GroupedTensor((2, 2), torch.float32, members=group.quantized_tensors),
            r"shape is \(2, 2\); \(101, 48\)",
        ),
        (
            lambda: GroupedTensor.make_grouped_tensor_with_shapes(2, [(4, 4)]),
            r"shapes are \[\(4, 4\)\]; 2",
        ),
        (lambda: GroupedTensor.make_grouped_tensor_with_shapes(0, []), "num_tensors is 0"),
        (lambda: torch.ops.aten.view.default(group, (48, 101)), "its own shape is required"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert_identical(group.dequantize(), before)


def test_views_are_copies_and_say_so():
    group = make_group(mxfp8_quantizer)
    assert type(group.view(WHOLE)) is GroupedTensor
    with pytest.warns(UserWarning, match="writes to it do not reach the tensor"):
        assert type(group.view(48, 101)) is torch.Tensor


def test_storages_save_and_restore_their_buffers():
    group = make_group(current_quantizer)
    storage = GroupedTensorStorage(**group.get_metadata())
    assert "Float8Tensor, tensor_shapes=[(32, 48)" in repr(storage)
    assert "Float8Tensor" in repr(group)
    assert isinstance(storage._members[0], Float8Tensor)
    expected = storage.dequantize()
    saved, same = storage.prepare_for_saving()
    assert same.rowwise_data is None
    assert storage.restore_from_saved([*saved, None]) == [None]
    assert_identical(storage.dequantize(), expected)
    other = GroupedTensorStorage(**make_group(current_quantizer, seed=3).get_metadata())
    storage.copy_from_storage(other)
    assert_identical(storage.dequantize(), other.dequantize())
    with pytest.raises((TypeError, ValueError), match="copy_from_storage: src"):
        storage.copy_from_storage(
            GroupedTensorStorage(**make_group(mxfp8_quantizer).get_metadata())
        )
