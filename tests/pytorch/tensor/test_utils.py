# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Raw buffers and master weights of quantized primary weights."""

import functools
import math

import pytest
import torch

from helpers.generators import random_tensor, wide_tensor
from helpers.quantizers import (
    FLOAT8_QUANTIZERS,
    block_quantizer,
    current_quantizer,
    delayed_quantizer,
    hybrid_quantizer,
    mxfp8_quantizer,
)
from helpers.ranks import ranks
from helpers.tolerances import assert_identical
from transformer_engine.pytorch.tensor import (
    HybridQuantizer,
    IdentityQuantizer,
    NVFP4Quantizer,
    Quantizer,
)
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


# --- formats with one scale per block -----------------------------------------------------------

BLOCK_WEIGHTS = {
    "tiles": block_quantizer,
    "tiles_fp32": functools.partial(
        block_quantizer, force_pow_2_scales=False, amax_epsilon=2.0**-10
    ),
    "mxfp8": mxfp8_quantizer,
    "mxfp8_tiles": functools.partial(mxfp8_quantizer, tiles=True),
    "nvfp4": functools.partial(NVFP4Quantizer, with_2d_quantization=True),
    "nvfp4_256": functools.partial(NVFP4Quantizer, with_2d_quantization=True, nvfp4_e4m3_max=256),
}
BLOCKS = pytest.mark.parametrize("name", BLOCK_WEIGHTS)
BLOCK_SHAPE = (200, 160)


def make_block_weight(name, seed=0, **usages):
    values = random_tensor(BLOCK_SHAPE, seed=seed, dtype=torch.bfloat16)
    return torch.nn.Parameter(BLOCK_WEIGHTS[name](**usages)(values))


def wide_master(seed):
    """Magnitudes that differ much from block to block."""
    return wide_tensor(BLOCK_SHAPE, seed=seed).view(-1)


def assert_same_buffers(actual, expected):
    for key, buffer in expected._buffers().items():
        other = getattr(actual, key)
        assert (other is None) == (buffer is None), key
        assert buffer is None or torch.equal(other, buffer), key


@BLOCKS
@pytest.mark.parametrize("manual", [False, True])
def test_the_whole_of_a_block_scaled_weight_is_cast_as_by_its_quantizer(name, manual):
    weight, master = make_block_weight(name), wide_master(1)
    version = weight._version
    expected = BLOCK_WEIGHTS[name]()(master.view(BLOCK_SHAPE).bfloat16())
    tensor_utils.quantize_master_weights(
        [weight], [master], [0], None, manual_post_all_gather_processing=manual
    )
    assert weight._version > version
    assert torch.equal(weight._rowwise_data, expected._rowwise_data)
    assert torch.equal(weight._rowwise_scale_inv, expected._rowwise_scale_inv)
    assert weight.get_usages()["columnwise"] is (manual or name.startswith("mxfp8"))
    tensor_utils.post_all_gather_processing([weight])
    assert_same_buffers(weight, expected)


def cast_blocks_on_two_ranks(rank):
    """Parts cut inside a row of blocks; the second weight belongs to rank 1 alone."""
    numel, seen = BLOCK_SHAPE[0] * BLOCK_SHAPE[1], []
    for name in BLOCK_WEIGHTS:
        weights = [make_block_weight(name, seed=1), make_block_weight(name, seed=2)]
        masters = [wide_master(3), wide_master(4)]
        cut = 150 * 160 + 46
        start, end = ((0, cut), (cut, numel))[rank]
        mine = [masters[0][start:end], masters[1] if rank == 1 else None]
        tensor_utils.quantize_master_weights(weights, mine, [start, 0], None)
        owned = [(start, end), (0, numel if rank == 1 else 0)]
        for weight, master, (first, last) in zip(weights, masters, owned, strict=True):
            expected = BLOCK_WEIGHTS[name]()(master.view(BLOCK_SHAPE).bfloat16())
            for key in ("_rowwise", "_columnwise") if "mxfp8" in name else ("_rowwise",):
                scales, data = getattr(weight, f"{key}_scale_inv"), getattr(weight, f"{key}_data")
                assert torch.equal(scales, getattr(expected, f"{key}_scale_inv")), name
                per_byte = 2 if "nvfp4" in name else 1
                part = slice(first // per_byte, last // per_byte)
                made = getattr(expected, f"{key}_data").view(-1)[part]
                assert torch.equal(data.view(-1)[part], made), name
            if "nvfp4" in name:
                assert torch.equal(weight._amax_rowwise, expected._amax_rowwise)
            seen.append(last - first)
    return seen


@pytest.mark.slow  # may be the first to start the ranks
def test_sharded_block_scaled_casts_equal_the_cast_of_the_whole():
    cut, numel = 150 * 160 + 46, BLOCK_SHAPE[0] * BLOCK_SHAPE[1]
    expected = [[cut, 0] * len(BLOCK_WEIGHTS), [numel - cut, numel] * len(BLOCK_WEIGHTS)]
    assert ranks(2).run(cast_blocks_on_two_ranks) == expected


@BLOCKS
def test_shards_of_block_scaled_weights_can_be_written_elsewhere(name):
    weight, master = make_block_weight(name), wide_master(1)
    data, numel = weight._rowwise_data.clone(), weight._rowwise_data.numel()
    shards = [torch.zeros(numel, dtype=torch.uint8) for _ in range(2)]
    given = tuple(shards) if "mxfp8" in name else shards[0]
    tensor_utils.quantize_master_weights([weight], [master], [0], None, [given])
    expected = BLOCK_WEIGHTS[name]()(master.view(BLOCK_SHAPE).bfloat16())
    assert torch.equal(shards[0], expected._rowwise_data.view(-1))
    if "mxfp8" in name:
        assert torch.equal(shards[1], expected._columnwise_data.view(-1))
    assert torch.equal(weight._rowwise_data, data)
    assert torch.equal(weight._rowwise_scale_inv, expected._rowwise_scale_inv)
    other = BLOCK_WEIGHTS[name]().make_empty(BLOCK_SHAPE, dtype=torch.bfloat16)
    tensor_utils.quantize_master_weights([weight], [master], [0], None, [other])
    assert torch.equal(other._rowwise_data, expected._rowwise_data)
    with pytest.raises(ValueError, match="a shard has 3 elements"):
        tensor_utils.quantize_master_weights([weight], [master], [0], None, [shards[0][:3]])


def test_identity_weights_take_the_values():
    weight, master = IdentityQuantizer()(torch.zeros(4, 8)), random_tensor((20,))
    tensor_utils.quantize_master_weights([weight], [master], [10], None)
    assert_identical(weight.dequantize().view(-1)[10:30], master)
    assert weight.dequantize().view(-1)[:10].abs().sum() == 0


# Weights that every rank quantizes as a whole, and those whose rowwise copy alone is cast by parts.
EXCHANGED_WEIGHTS = {
    "blocks": functools.partial(block_quantizer, dim=1),
    "blocks_fp32": functools.partial(block_quantizer, dim=1, force_pow_2_scales=False),
    "nvfp4": NVFP4Quantizer,
    "nvfp4_transformed": functools.partial(NVFP4Quantizer, with_rht=True, with_post_rht_amax=True),
    "four_over_six": functools.partial(
        NVFP4Quantizer, with_2d_quantization=True, nvfp4_use_4over6=True
    ),
    "four_over_six_rowwise": functools.partial(
        NVFP4Quantizer, nvfp4_use_4over6=True, nvfp4_4over6_err_mode="MSE", columnwise=False
    ),
    "hybrid": hybrid_quantizer,
    "hybrid_per_tensor": lambda: HybridQuantizer(
        rowwise_quantizer=NVFP4Quantizer(), columnwise_quantizer=current_quantizer()
    ),
    "hybrid_plain": lambda: HybridQuantizer(
        rowwise_quantizer=IdentityQuantizer(dtype=torch.bfloat16),
        columnwise_quantizer=delayed_quantizer(),
    ),
}
ROWWISE_WEIGHTS = {
    "blocks": functools.partial(block_quantizer, dim=1, columnwise=False),
    "blocks_fp32": functools.partial(
        block_quantizer, dim=1, columnwise=False, force_pow_2_scales=False, amax_epsilon=2.0**-9
    ),
    "nvfp4": functools.partial(NVFP4Quantizer, columnwise=False),
    "nvfp4_256": functools.partial(NVFP4Quantizer, columnwise=False, nvfp4_e4m3_max=256),
}


def weight_of(make, seed=0):
    return make()(random_tensor(BLOCK_SHAPE, seed=seed, dtype=torch.bfloat16))


def rowwise_bytes(weight):
    half = getattr(weight, "_rowwise_storage", weight)
    return next(buffer for buffer in half._buffers().values() if buffer is not None)


def test_the_whole_of_a_weight_that_needs_all_values_is_cast_as_by_its_quantizer():
    for make in (*EXCHANGED_WEIGHTS.values(), *ROWWISE_WEIGHTS.values()):
        weight, master = weight_of(make), wide_master(1)
        expected, buffers = make()(master.view(BLOCK_SHAPE).bfloat16()), weight._buffers()
        alias = weight.detach()
        tensor_utils.quantize_master_weights([weight], [master], [0], None)
        for checked in (weight, alias.clone()):
            for name, buffer in expected._buffers().items():
                assert buffer is None or torch.equal(checked._buffers()[name], buffer), name
        assert all(weight._buffers()[name] is buffer for name, buffer in buffers.items())
        tensor_utils.post_all_gather_processing([weight])
        assert_same_operand(weight, expected)


def assert_same_operand(actual, expected):
    for own, other in zip(actual._native_operand(), expected._native_operand(), strict=True):
        assert (own is None) == (other is None)
        for part, value in zip(own or (), other or (), strict=True):
            assert torch.equal(part, value) if torch.is_tensor(value) else part == value


def cast_all_on_some_ranks(rank, size):
    """Uneven parts, one rank without any. Returns how many bytes each rank wrote right."""
    numel, seen = BLOCK_SHAPE[0] * BLOCK_SHAPE[1], []
    cuts = [0, 64, 150 * 160 + 46, numel] if size == 3 else [0, 0, numel]
    start, end = cuts[rank], cuts[rank + 1]
    for table in (EXCHANGED_WEIGHTS, ROWWISE_WEIGHTS):
        for name, make in table.items():
            weight, master = weight_of(make, seed=1), wide_master(3)
            mine = master[start:end] if end > start else None
            tensor_utils.quantize_master_weights([weight], [mine], [start], None)
            expected = make()(master.view(BLOCK_SHAPE).bfloat16())
            if table is EXCHANGED_WEIGHTS:
                assert_same_operand(weight, expected)
            else:
                assert torch.equal(weight._rowwise_scale_inv, expected._rowwise_scale_inv)
                if "nvfp4" in name:
                    assert torch.equal(weight._amax_rowwise, expected._amax_rowwise)
            data, whole = rowwise_bytes(weight).view(-1), rowwise_bytes(expected).view(-1)
            first, last = (position * whole.numel() // numel for position in (start, end))
            assert torch.equal(data[first:last], whole[first:last]), name
            seen.append(last - first)
            # The same into a shard of this rank's own: the weight's bytes stay.
            shard, weight = torch.empty_like(whole[first:last]), weight_of(make, seed=1)
            before = rowwise_bytes(weight).clone()
            tensor_utils.quantize_master_weights([weight], [mine], [start], None, [shard])
            assert torch.equal(shard, whole[first:last]) or mine is None
            if mine is not None:
                assert torch.equal(rowwise_bytes(weight), before)
    return seen


@pytest.mark.slow  # may be the first to start the ranks
@pytest.mark.parametrize("size", [2, 3])
def test_sharded_casts_of_all_other_weights_equal_the_cast_of_the_whole(size):
    seen = ranks(size).run(cast_all_on_some_ranks, size)
    for name, *written in zip((*EXCHANGED_WEIGHTS, *ROWWISE_WEIGHTS), *seen, strict=True):
        per_byte = 2 if "nvfp4" in name or "six" in name or name == "hybrid_per_tensor" else 1
        assert sum(written) == BLOCK_SHAPE[0] * BLOCK_SHAPE[1] // per_byte, name


# NVFP4 whose rows of bytes end in filled-up blocks, or whose parts of two ranks meet in a byte, and
# where they meet.
UNEVEN_SHAPES = {(33, 17): 281, (33, 17, 1): 34, (5, 34): 38, (1, 1): 1, (35, 48): 817, (16, 16): 1}
UNEVEN_NVFP4 = {
    "tiles": functools.partial(NVFP4Quantizer, with_2d_quantization=True),
    "tiles_rowwise": functools.partial(NVFP4Quantizer, with_2d_quantization=True, columnwise=False),
    "blocks": NVFP4Quantizer,
    "blocks_rowwise": functools.partial(NVFP4Quantizer, columnwise=False),
}


def cast_uneven(rank, size):
    """Cast NVFP4 weights of uneven widths by parts; every rank must get the cast of the whole."""
    for shape, cut in UNEVEN_SHAPES.items():
        if size == 1 and shape[-1] % 16 == 0:
            continue  # cast by parts, as any weight of whole blocks
        start, end = ((0, cut), (cut, math.prod(shape)))[rank] if size == 2 else (0, None)
        for make in UNEVEN_NVFP4.values():
            weight = make()(random_tensor(shape, seed=1, dtype=torch.bfloat16))
            master = wide_tensor(shape, seed=3).view(-1)
            tensor_utils.quantize_master_weights([weight], [master[start:end]], [start], None)
            expected = make()(master.view(shape).bfloat16())
            assert_same_buffers(weight, expected)
            tensor_utils.post_all_gather_processing([weight])
            assert_same_operand(weight, expected)
            shard = torch.zeros(master[start:end].numel() // 2, dtype=torch.uint8)
            if len(shard):
                with pytest.raises(ValueError, match="a multiple of 16 columns are required"):
                    tensor_utils.quantize_master_weights(
                        [weight], [master[start:end]], [start], None, [shard]
                    )
                assert_same_operand(weight, expected)
    return len(UNEVEN_SHAPES)


def test_nvfp4_of_any_width_is_cast_as_by_its_quantizer():
    assert cast_uneven(0, 1) == len(UNEVEN_SHAPES)


@pytest.mark.slow  # may be the first to start the ranks
def test_sharded_casts_of_nvfp4_of_any_width_equal_the_cast_of_the_whole():
    assert ranks(2).run(cast_uneven, 2) == [len(UNEVEN_SHAPES)] * 2


def test_weights_that_cannot_be_exchanged_are_refused():
    weight = weight_of(EXCHANGED_WEIGHTS["blocks"])
    before = weight.dequantize()
    with pytest.raises(ValueError, match=r"parts of all ranks have 1024 elements .* of 32000;"):
        tensor_utils.quantize_master_weights([weight], [torch.ones(1024)], [0], None)
    with pytest.raises(ValueError, match="a shard has 7 elements"):
        tensor_utils.quantize_master_weights(
            [weight], [wide_master(1)], [0], None, [torch.zeros(7, dtype=torch.uint8)]
        )
    assert_identical(weight.dequantize(), before)
    weight.update_usage(rowwise_usage=False)
    with pytest.raises(ValueError, match="holds no rowwise data"):
        tensor_utils.quantize_master_weights([weight], [wide_master(1)], [0], None)
    weight = weight_of(functools.partial(NVFP4Quantizer, stochastic_rounding=True))
    with pytest.raises(NotImplementedError, match="stochastic_rounding=True"):
        tensor_utils.quantize_master_weights([weight], [wide_master(1)], [0], None)


def test_shards_inside_a_byte_are_refused():
    for start, count in ((1, 4), (0, 3)):
        weight = make_block_weight("nvfp4")
        before = weight.dequantize().detach()
        part, shard = [torch.ones(count)], torch.zeros(2, dtype=torch.uint8)
        with pytest.raises(ValueError, match="even numbers and a multiple of 16 columns"):
            tensor_utils.quantize_master_weights([weight], part, [start], None, [shard])
        with pytest.raises(ValueError, match=f"parts of all ranks have {count} elements"):
            tensor_utils.quantize_master_weights([weight], part, [start], None)
        assert_identical(weight.dequantize().detach(), before)
    weight = make_block_weight("tiles", rowwise=False)
    with pytest.raises(ValueError, match="holds no rowwise data"):
        tensor_utils.quantize_master_weights([weight], [torch.ones(4)], [0], None)


@pytest.mark.parametrize("name", ["tiles", "nvfp4"])
def test_raw_data_of_block_scaled_tensors_moves_into_a_buffer(name):
    weight = make_block_weight(name)
    expected, numel = weight.dequantize().detach(), weight._rowwise_data.numel()
    buffer = torch.zeros(numel + 10, dtype=torch.uint8)
    tensor_utils.replace_raw_data(weight, buffer[10:])
    assert weight._rowwise_data.data_ptr() == buffer[10:].data_ptr()
    assert_identical(weight.dequantize().detach(), expected)


def test_raw_data_of_mxfp8_and_hybrid_tensors():
    weight = make_block_weight("mxfp8")
    with pytest.raises(NotImplementedError, match="tensor is a MXFP8Tensor; it cannot be moved"):
        tensor_utils.replace_raw_data(weight, torch.zeros(32000, dtype=torch.uint8))
    quantizer = HybridQuantizer(
        rowwise_quantizer=current_quantizer(), columnwise_quantizer=mxfp8_quantizer()
    )
    hybrid, buffer = quantizer(random_tensor(SHAPE)), torch.zeros(60, dtype=torch.uint8)
    tensor_utils.replace_raw_data(hybrid, buffer)
    assert hybrid._rowwise_storage._data.data_ptr() == buffer.data_ptr()
    tensor_utils.post_all_gather_processing([hybrid])
