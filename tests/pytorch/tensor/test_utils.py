# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Raw buffers and master weights of quantized primary weights."""

import pytest
import torch

from helpers.generators import random_tensor
from helpers.quantizers import (
    FLOAT8_QUANTIZERS,
    current_quantizer,
    delayed_quantizer,
)
from helpers.ranks import ranks
from helpers.tolerances import assert_identical
from transformer_engine.pytorch.tensor import IdentityQuantizer, Quantizer
from transformer_engine.pytorch.tensor import utils as tensor_utils

BOTH = pytest.mark.parametrize("make", FLOAT8_QUANTIZERS.values(), ids=FLOAT8_QUANTIZERS)
SHAPE = (6, 10)


def make_weight(make, seed=0, dtype=torch.bfloat16):
    return torch.nn.Parameter(make()(random_tensor(SHAPE, seed=seed, dtype=dtype)))


@BOTH
def test_raw_data_moves_into_a_buffer_and_stays_there(make):
    weight = make_weight(make)
    expected = weight.dequantize().detach()
    buffer = torch.zeros(100, dtype=torch.uint8)
    tensor_utils.replace_raw_data(weight, buffer[20:80])
    assert_identical(weight.dequantize().detach(), expected)
    assert weight._data.data_ptr() == buffer[20:].data_ptr()
    assert not weight._transpose_invalid
    values = random_tensor(SHAPE, seed=1, dtype=torch.bfloat16)
    with torch.no_grad():
        weight.copy_(values)
    assert torch.equal(buffer[20:80].view(SHAPE), make()(values)._data)


def test_master_weights_are_not_cast_into_views():
    weight = make_weight(current_quantizer)
    data, scale_inv = weight._data.clone(), weight._scale_inv.clone()
    with pytest.raises(ValueError, match=r"quantize_master_weights: a weight is a view, shape"):
        tensor_utils.quantize_master_weights(
            [weight.detach()[:3]], [random_tensor((3, 10)) * 9], [0], None
        )
    assert torch.equal(weight._data, data)
    assert torch.equal(weight._scale_inv, scale_inv)


def test_raw_data_of_an_identity_tensor():
    tensor = IdentityQuantizer()(random_tensor(SHAPE))
    buffer = torch.zeros(60)
    tensor_utils.replace_raw_data(tensor, buffer)
    assert_identical(buffer.view(SHAPE), random_tensor(SHAPE))


@pytest.mark.parametrize(
    "buffer",
    [
        torch.zeros(60),
        torch.zeros(59, dtype=torch.uint8),
        torch.zeros(120, dtype=torch.uint8)[::2],
    ],
)
def test_buffers_that_do_not_fit_are_refused(buffer):
    weight = make_weight(delayed_quantizer)
    data = weight._data
    with pytest.raises(ValueError, match="new_raw_data has dtype"):
        tensor_utils.replace_raw_data(weight, buffer)
    assert weight._data is data


def test_tensors_without_raw_data_are_refused():
    with pytest.raises(ValueError, match="tensor is a Tensor"):
        tensor_utils.replace_raw_data(torch.zeros(3), torch.zeros(3))
    transposed = delayed_quantizer(rowwise=False)(random_tensor(SHAPE))
    with pytest.raises(ValueError, match="no rowwise data"):
        tensor_utils.replace_raw_data(transposed, torch.zeros(60, dtype=torch.uint8))


@BOTH
@pytest.mark.parametrize(
    "cast",
    [tensor_utils.cast_master_weights_to_fp8, tensor_utils.quantize_master_weights],
)
def test_parts_together_equal_the_whole(make, cast):
    weight, expected = make_weight(make), make_weight(make)
    master = random_tensor(SHAPE, seed=1) * 3
    with torch.no_grad():
        expected.copy_(master.to(torch.bfloat16))
    cleared = []
    weight.clear_high_precision_init_val = lambda: cleared.append(1)
    cast([weight], [master.view(-1)], [0], None)
    assert torch.equal(weight._data, expected._data)
    assert torch.equal(weight._scale_inv, expected._scale_inv)
    assert cleared == [1]
    assert weight._transpose_invalid
    if make is FLOAT8_QUANTIZERS["delayed"]:
        assert torch.equal(weight._quantizer.amax, expected._quantizer.amax)
    tensor_utils.post_all_gather_processing([weight])
    assert torch.equal(weight._transpose, weight._data.t())


@BOTH
def test_a_rank_without_a_part_writes_nothing(make):
    weight = make_weight(make)
    data = weight._data.clone()
    tensor_utils.quantize_master_weights([weight], [None], [None], None)
    assert torch.equal(weight._data, data)


def test_shards_can_be_written_elsewhere():
    weight = make_weight(current_quantizer)
    data = weight._data.clone()
    master = random_tensor((60,), seed=1)
    shard = torch.zeros(60, dtype=torch.uint8)
    tensor_utils.quantize_master_weights(
        [weight], [master], [0], None, fsdp_shard_model_weights=[shard]
    )
    expected = current_quantizer()(master.bfloat16())
    assert torch.equal(shard, expected._data)
    assert torch.equal(weight._scale_inv, expected._scale_inv)
    assert torch.equal(weight._data, data)
    with pytest.raises(ValueError, match="a shard has 3 elements"):
        tensor_utils.quantize_master_weights([weight], [master], [0], None, [shard[:3]])


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (lambda w: ([w], [], [0], None), ValueError, "1 model_weights, but 0 master"),
        (lambda w: ([w], [torch.zeros(10)], [55], None), ValueError, "begins at 55"),
        (lambda w: ([torch.zeros(3)], [None], [0], None), NotImplementedError, "holds a Tensor"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, error, match):
    with pytest.raises(error, match=match):
        tensor_utils.quantize_master_weights(*arguments(make_weight(delayed_quantizer)))


def test_a_weight_without_a_quantizer_is_refused():
    weight = make_weight(delayed_quantizer)
    weight._quantizer = None
    with pytest.raises(NotImplementedError, match="quantizer NoneType"):
        tensor_utils.quantize_master_weights([weight], [torch.zeros(60)], [0], None)


def test_nothing_to_do_is_fine():
    tensor_utils.quantize_master_weights([], [], [], None)
    tensor_utils.post_all_gather_processing([IdentityQuantizer()(torch.zeros(3))])
    with pytest.raises(NotImplementedError, match="holds a Tensor"):
        tensor_utils.post_all_gather_processing([torch.zeros(3)])


def test_columnwise_caches_are_cleared():
    weight = make_weight(delayed_quantizer)
    tensor_utils.clear_columnwise_cache([weight, torch.zeros(3)])
    assert weight.get_usages() == {"rowwise": True, "columnwise": False}


def test_custom_quantizers_are_told_from_ours():
    class Mine(IdentityQuantizer):
        pass

    assert tensor_utils.is_custom(Mine())
    assert not tensor_utils.is_custom(IdentityQuantizer())
    assert not tensor_utils.is_custom(None)
    assert not tensor_utils.is_custom(torch.zeros(1))
    assert isinstance(Mine(), Quantizer)


def cast_on_two_ranks(rank):
    """Uneven parts; the second weight belongs to rank 1 alone. Returns bytes after gathering."""
    seen = []
    for name in FLOAT8_QUANTIZERS:
        make = FLOAT8_QUANTIZERS[name]
        weights = [make_weight(make, seed=1), make_weight(make, seed=2)]
        masters = [random_tensor((60,), seed=3) * 5, random_tensor((60,), seed=4) * 7]
        start, end = ((0, 25), (25, 60))[rank]
        mine = [masters[0][start:end], masters[1] if rank == 1 else None]
        tensor_utils.quantize_master_weights(weights, mine, [start, 0], None)
        owned = [slice(start, end), slice(0, 60 if rank == 1 else 0)]
        for weight, master, part in zip(weights, masters, owned, strict=True):
            expected = make()(master.bfloat16())
            assert torch.equal(weight._scale_inv, expected._scale_inv)
            assert torch.equal(weight._data.view(-1)[part], expected._data[part])
            seen.append(weight._data.view(-1)[part].numel())
    return seen


@pytest.mark.slow  # may be the first to start the ranks
def test_sharded_casts_equal_the_cast_of_the_whole():
    assert ranks(2).run(cast_on_two_ranks) == [[25, 0] * 2, [35, 60] * 2]
