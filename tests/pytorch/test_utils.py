# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Device facts, GLU layouts, weak references."""

import collections

import pytest
import torch

from helpers.generators import random_tensor, strided_copy
from transformer_engine.pytorch import utils


def test_device_facts_without_a_gpu():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert utils.get_device_compute_capability() == (0, 0)
    if torch.version.cuda is None:  # a CUDA build has cuDNN without a GPU, too
        assert utils.get_cudnn_version() == (0, 0, 0)
    assert utils.is_bf16_available() is True
    assert utils.is_bf16_available(return_reason=True) == (True, "")


@pytest.mark.parametrize(
    ("value", "multiple", "expected"), [(0, 16, 0), (1, 16, 16), (16, 16, 16), (17, 16, 32)]
)
def test_round_up(value, multiple, expected):
    assert utils.round_up_to_nearest_multiple(value, multiple) == expected


def test_round_up_refuses_a_multiple_of_zero():
    with pytest.raises(ValueError, match="multiple is 0"):
        utils.round_up_to_nearest_multiple(3, 0)


@pytest.mark.parametrize("shape", [(12,), (12, 5), (24, 3, 2)])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_glu_interleaving_alternates_blocks(shape, size):
    tensor = random_tensor(shape)
    result = utils.interleave_glu_tensor(tensor, size)
    gate, linear = tensor.chunk(2)
    blocks = zip(gate.split(size), linear.split(size), strict=True)
    expected = torch.cat([rows for pair in blocks for rows in pair])
    assert torch.equal(result, expected)
    assert result.is_contiguous()
    assert torch.equal(utils.deinterleave_glu_tensor(result, size), tensor)


@pytest.mark.parametrize("function", [utils.interleave_glu_tensor, utils.deinterleave_glu_tensor])
@pytest.mark.parametrize(("shape", "size"), [((6, 2), 2), ((), 1), ((4,), 0)])
def test_glu_interleaving_names_what_does_not_fit(function, shape, size):
    with pytest.raises(ValueError, match=f"{function.__name__}: tensor has shape"):
        function(torch.zeros(shape), size)


def test_weak_references_share_memory_through_nested_structures(device):
    Pair = collections.namedtuple("Pair", "first second")
    tensors = [random_tensor((3, 4), device=device), strided_copy(random_tensor((2, 3)))]
    nested = {"a": [tensors[0], 3], "b": Pair(tensors[1].to(device), None), "c": ("text", 1.5)}
    weak = utils.make_weak_ref(nested)
    assert weak["a"][0].data_ptr() == nested["a"][0].data_ptr()
    nested["a"][0].fill_(7)
    assert torch.equal(weak["a"][0], nested["a"][0])
    assert torch.equal(weak["b"].first, nested["b"].first)
    assert isinstance(weak["b"], Pair)
    assert (weak["a"][1], weak["b"].second, weak["c"]) == (3, None, ("text", 1.5))


def test_weak_references_do_not_own_the_memory(device):
    tensor = random_tensor((64,), device=device)
    storage = tensor.untyped_storage()
    owners_before = torch._C._storage_Use_Count(storage._cdata)
    weak = utils.make_weak_ref(tensor)
    assert torch._C._storage_Use_Count(storage._cdata) == owners_before
    view = tensor[:]  # an owning alias, to show that the count would have moved
    assert torch._C._storage_Use_Count(storage._cdata) > owners_before
    assert view.data_ptr() == tensor.data_ptr()
    assert weak.untyped_storage().data_ptr() == tensor.data_ptr()
    assert utils.make_weak_ref(tensor[:0]).shape == (0,)


def test_weak_references_refuse_other_objects():
    with pytest.raises(TypeError, match="x holds a set"):
        utils.make_weak_ref([{1, 2}])


def test_profiler_ranges_are_harmless_without_a_gpu():
    utils.nvtx_range_push("a")
    utils.nvtx_range_pop("a")
