# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ranks' rows gathered as quantized blocks are the quantized whole."""

import functools
import math
import warnings

import pytest
import torch

from helpers.generators import random_tensor
from helpers.quantizers import BLOCK_QUANTIZERS, USAGES, delayed_quantizer
from helpers.ranks import ranks
from transformer_engine.pytorch import distributed
from transformer_engine.pytorch.tensor import NVFP4Quantizer

BLOCK_FORMATS = {
    **BLOCK_QUANTIZERS,
    "transformed": functools.partial(NVFP4Quantizer, with_rht=True, with_post_rht_amax=True),
    "transformed_tiles": functools.partial(
        NVFP4Quantizer, with_rht=True, with_2d_quantization=True
    ),
    "four_over_six": functools.partial(NVFP4Quantizer, nvfp4_use_4over6=True, nvfp4_e4m3_max=256),
    "row_scaled": functools.partial(NVFP4Quantizer, row_scaled_nvfp4=True),
}
NVFP4 = [name for name, make in BLOCK_FORMATS.items() if isinstance(make(), NVFP4Quantizer)]
# Rows of a rank that are a multiple of nothing, of 16, of 32, of 128.
ROWS = {"odd": (5, 3), "16": (4, 12), "32": (2, 48), "128": (64, 2)}


def is_gathered_quantized(name, rows, columnwise):
    """Whether every block of the whole has rows of one rank."""
    is_tiled = "tiles" in name
    if name == "row_scaled" and columnwise:
        return False
    multiple = 32 if "mxfp8" in name else 128 if name in ("blocks", "tiles") else 16
    return math.prod(rows) % multiple == 0 if is_tiled or columnwise else True


def block_part(rank, rows, seed=0):
    return random_tensor((*rows, 80), seed=seed + rank, dtype=torch.bfloat16) * 4.0**rank


def assert_same_buffers(actual, expected):
    for name, buffer in expected._buffers().items():
        held = actual._buffers()[name]
        assert (held is None) == (buffer is None), name
        assert buffer is None or torch.equal(held, buffer), name


def gather_blocks(rank, size):
    """All formats, copies and numbers of rows; returns how many gathers were of quantized data."""
    count = 0
    for name, make in BLOCK_FORMATS.items():
        for usages in USAGES.values():
            for rows in ROWS.values():
                quantizer, is_async = make(**usages), bool(count % 2)
                quantizer.internal = bool(count % 3)
                is_quantized = is_gathered_quantized(name, rows, usages["columnwise"])
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    result, handle = distributed.gather_along_first_dim(
                        block_part(rank, rows), None, is_async, quantizer=quantizer
                    )
                assert is_quantized == (not caught), (name, usages, rows)
                if handle is not None:
                    handle.wait()
                whole = torch.cat([block_part(r, rows) for r in range(size)])
                expected = make(**usages)(whole)
                assert_same_buffers(result, expected)
                assert result.shape == whole.shape
                assert isinstance(result, torch.Tensor) is not quantizer.internal
                assert quantizer == result._quantizer or not quantizer.internal
                assert quantizer.get_usages() == usages
                count += is_quantized
    return count


def gather_quantized_blocks(rank):
    rows = ROWS["128"]
    for name, make in BLOCK_FORMATS.items():
        part, usages = block_part(rank, rows), {"columnwise": name != "row_scaled"}
        shard = make(**usages)(part)
        result, _ = distributed.gather_along_first_dim(shard, None, quantizer=make(**usages))
        parts = [block_part(r, rows) for r in range(2)]
        if name in NVFP4 and name != "row_scaled":
            # The ranks' amaxes differ, so that the values are quantized again.
            parts = [make()(values).dequantize() for values in parts]
        assert_same_buffers(result, make(**usages)(torch.cat(parts)))


def gather_blocks_into_output(rank):
    rows = ROWS["128"]
    whole = torch.cat([block_part(r, rows) for r in range(2)])
    for name, make in BLOCK_FORMATS.items():
        usages = {"columnwise": name != "row_scaled"}
        output = make(**usages).make_empty(whole.shape, dtype=torch.bfloat16)
        buffers = output._buffers()
        result, _ = distributed.gather_along_first_dim(
            block_part(rank, rows), None, quantizer=make(**usages), output_tensor=output
        )
        assert result is output
        assert all(output._buffers()[key] is buffer for key, buffer in buffers.items())
        assert_same_buffers(output, make(**usages)(whole))
        assert_same_buffers(output.clone(), make(**usages)(whole))
        for bad, error in (
            (make(**usages).make_empty((3, 80)), ValueError),
            (delayed_quantizer()(whole), TypeError),
        ):
            with pytest.raises(error, match=r"output_tensor (has shape|is a Float8Tensor)"):
                distributed.gather_along_first_dim(
                    block_part(rank, rows), None, quantizer=make(**usages), output_tensor=bad
                )


def coalesce_blocks(rank):
    rows = ROWS["128"]
    whole = torch.cat([block_part(r, rows) for r in range(2)])
    for name, make in BLOCK_FORMATS.items():
        usages, part = {"columnwise": name != "row_scaled"}, block_part(rank, rows)
        if name in NVFP4 and name != "row_scaled":
            with (
                torch.distributed._coalescing_manager(async_ops=True),
                pytest.raises(RuntimeError, match=r"coalescing manager .* with_amax_reduction"),
            ):
                distributed.gather_along_first_dim(
                    part, None, quantizer=make(**usages), external_coalescing=True
                )
            part = make(**usages, with_amax_reduction=True)(part)
        with torch.distributed._coalescing_manager(async_ops=True) as manager:
            result, handle = distributed.gather_along_first_dim(
                part, None, quantizer=make(**usages), external_coalescing=True
            )
        assert handle is None
        manager.wait()
        result.update_usage(rowwise_usage=True, **{"columnwise_usage": usages["columnwise"]})
        assert_same_buffers(result.clone(), make(**usages)(whole))


@pytest.mark.slow  # may be the first to start the ranks
@pytest.mark.parametrize("size", [2, 3])
def test_gathered_parts_are_the_quantized_whole(size):
    expected = sum(
        is_gathered_quantized(name, rows, usages["columnwise"])
        for name in BLOCK_FORMATS
        for usages in USAGES.values()
        for rows in ROWS.values()
    )
    assert ranks(size).run(gather_blocks, size) == [expected] * size


@pytest.mark.slow  # may be the first to start the ranks
@pytest.mark.parametrize(
    "function", [gather_quantized_blocks, gather_blocks_into_output, coalesce_blocks]
)
def test_quantized_parts_outputs_and_coalescing(function):
    ranks(2).run(function)
