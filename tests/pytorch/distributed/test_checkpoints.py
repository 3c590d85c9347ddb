# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint: saved by some number of ranks, continued by another."""

import contextlib
import functools
import itertools
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from helpers.data_parallel import build, input_of, plain, region
from helpers.formats import E4M3
from helpers.generators import random_tensor
from helpers.quantizers import (
    block_quantizer,
    current_quantizer,
    delayed_quantizer,
    mxfp8_quantizer,
)
from helpers.ranks import is_under_torchrun, ranks
from helpers.tolerances import assert_identical, assert_within, rounding_bound
from transformer_engine.pytorch.tensor import HybridQuantizer, NVFP4Quantizer, QuantizedTensor

PARTS = 4  # of a batch, divided among the ranks
STEPS = 6  # two of them before the checkpoint
# Recipe, whether weights are quantized, and the numbers of ranks on which training continues to the
# bit, besides that which saved. Under current scaling each rank's part of a weight has a scale of
# its own. So it has under NVFP4; there more ranks, or one, read the weights that the ranks that
# saved have gathered: the first loss is the same, the later ones follow from other parts.
CASES = {
    **{(name, False): (1, 2, 4) for name in ("none", "delayed", "current", "mxfp8")},
    **{(name, True): (1, 2, 4) for name in ("delayed", "recent", "block", "mxfp8")},
    **{("current", True): (), ("nvfp4", True): (1, 4)},
}


def cases(saved):
    """Two ranks save all of them."""
    return {case: sizes for case, sizes in CASES.items() if saved == 2 or case[1]}


def make(recipe, has_quantized_weights, hidden=None):
    """A sharded model and its optimizer."""
    # Four ranks have whole blocks of rows.
    hidden = hidden or (512 if recipe == "block" else 128)
    model = build(recipe, has_quantized_weights, hidden=hidden)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for module in model:
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # Gradients are summed: they, and so their scales, are those of any number of ranks.
    for module in (*model, model):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # which gloo needs
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def train(model, optimizer, recipe, steps, rank):
    """Loss of each step. All parts run forward, and count for amaxes; the loss is that of one part,
    so that the sum of gradients over any number of ranks is exact.
    """
    losses = []
    for number in steps:
        count = PARTS // torch.distributed.get_world_size()
        parts = range(rank * count, (rank + 1) * count)
        with region(recipe):
            outputs = [model(input_of(number, part)) for part in parts]
        weights = [float(part == number % PARTS) for part in parts]
        loss = sum(
            weight * output.float().square().mean()
            for weight, output in zip(weights, outputs, strict=True)
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        torch.distributed.all_reduce(total)
        losses.append(total.item())
    return losses


@contextlib.contextmanager
def quiet():
    """fully_shard makes plain views of what it shards; the checkpoint warns of its own types."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def train_and_save(rank, folder, case):
    """Losses after the checkpoint, without interruption; `case` is what `make` takes."""
    with quiet():
        model, optimizer = make(*case)
        train(model, optimizer, case[0], range(2), rank)
        states = get_state_dict(model, optimizer)
        path = f"{folder}/{case}"
        dcp.save(dict(zip(("model", "optimizer"), states, strict=True)), checkpoint_id=path)
        return train(model, optimizer, case[0], range(2, STEPS), rank)


def load_and_train(rank, folder, case):
    """Losses after the checkpoint."""
    with quiet():
        model, optimizer = make(*case)
        states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.load(states, checkpoint_id=f"{folder}/{case}")
        set_state_dict(
            model,
            optimizer,
            model_state_dict=states["model"],
            optim_state_dict=states["optimizer"],
        )
        return train(model, optimizer, case[0], range(2, STEPS), rank)


def save(rank, folder):
    """Losses after the checkpoint, without interruption, by case."""
    saved = torch.distributed.get_world_size()
    return {case: train_and_save(rank, folder, case) for case in cases(saved)}


def resume(rank, folder, saved):
    """Losses after the checkpoint, by case."""
    size = torch.distributed.get_world_size()
    return {
        case: load_and_train(rank, folder, case)
        for case, sizes in cases(saved).items()
        if size in (saved, *sizes)
    }


@pytest.mark.slow  # starts processes
@pytest.mark.parametrize("saved", [2, 4])
def test_training_continues_on_another_number_of_ranks(tmp_path, saved):
    if is_under_torchrun():
        pytest.skip("needs three numbers of ranks")
    uninterrupted = ranks(saved).run(save, str(tmp_path))[0]
    for size in (1, 2, 4):
        for resumed in ranks(size).run(resume, str(tmp_path), saved):
            assert resumed
            for case, losses in resumed.items():
                count = 1 if case == ("nvfp4", True) and size != saved else len(losses)
                assert losses[:count] == uninterrupted[case][:count], (case, size)
                assert losses[-1] < losses[0]


# --- weights, code for code -------------------------------------------------------------------

SHAPE = (512, 96)
# Formats whose rows do not depend on those of other ranks, and those with a scale of the whole.
APART = {
    "tiles": block_quantizer,
    "mxfp8": mxfp8_quantizer,
    "mxfp8_tiles": functools.partial(mxfp8_quantizer, tiles=True),
    "hybrid": lambda: HybridQuantizer(
        rowwise_quantizer=block_quantizer(), columnwise_quantizer=mxfp8_quantizer()
    ),
    "delayed": functools.partial(delayed_quantizer, scale=1.0),
}
TOGETHER = {
    "nvfp4": functools.partial(NVFP4Quantizer, with_2d_quantization=True),
    "current": current_quantizer,
}
UNEVEN_ROWS = 510  # 128, 128, 128 and 126 rows on four ranks


def values_of(seed, rows=SHAPE[0]):
    """Rows of very different size, so that the ranks' rows have amaxes of their own."""
    steps = torch.linspace(0.5, 40, rows)[:, None]
    return random_tensor((rows, SHAPE[1]), seed=seed) * steps


def rows_on(size, rows):
    """(first, last + 1) of each rank's rows, as torch divides them."""
    count = -(-rows // size)
    return [(min(r * count, rows), min((r + 1) * count, rows)) for r in range(size)]


def sharded(make, values):
    """The sharded weight of a module, holding what each rank quantizes of its rows."""
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(make()(values))
    size, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    with quiet():
        fully_shard(module, mesh=init_device_mesh("cpu", (size,)))
    with torch.no_grad():
        first, last = rows_on(size, len(values))[rank]
        module.weight._local_tensor.copy_(values[first:last])
    return module


def save_weights(rank, folder):
    for name, make in {**APART, **TOGETHER}.items():
        dcp.save(sharded(make, values_of(0)).state_dict(), checkpoint_id=f"{folder}/{name}")


def load_weights(rank, folder):
    """This rank's rows, by format: buffers and values."""
    found = {}
    for name, make in {**APART, **TOGETHER}.items():
        module = sharded(make, values_of(1))
        dcp.load(module.state_dict(), checkpoint_id=f"{folder}/{name}")
        local = module.weight._local_tensor
        assert isinstance(local, QuantizedTensor)
        buffers = {key: b for key, b in local._buffers().items() if b is not None}
        found[name] = buffers, local.dequantize()
    return found


def assert_same_codes(buffers, expected):
    for key, buffer in expected._buffers().items():
        is_made_on_demand = key == "_transpose"
        assert buffer is None or is_made_on_demand or torch.equal(buffers[key], buffer), key


def check_weights(found, saved, size, rank):
    """A rank's rows are those of the values, or, under one scale, of what was saved."""
    for name, make in APART.items():
        assert_same_codes(found[name][0], make()(values_of(0).chunk(size)[rank]))
    for name, make in TOGETHER.items():
        parts = [make()(part) for part in values_of(0).chunk(saved)]
        buffers, values = found[name]
        if size >= saved:  # rows of a saved part, under its scale
            rows, before = SHAPE[0] // size, rank * saved // size
            whole = parts[before].dequantize()
            begin = rank * rows - before * SHAPE[0] // saved
            assert_identical(values, whole[begin : begin + rows], name)
        joined = torch.cat([part.dequantize() for part in parts]).chunk(size)[rank]
        if size < saved and name == "nvfp4":
            assert_same_codes(buffers, make()(joined))
        if size < saved and name == "current":  # rounded with each part that is copied
            scale_inv = buffers["_scale_inv"]
            bound = rounding_bound(joined / scale_inv, E4M3) * scale_inv
            assert_within(values, joined, bound * (saved // size), name)


@pytest.mark.slow  # starts processes
@pytest.mark.parametrize(("saved", "sizes"), [(1, (2, 4)), (2, (1, 2, 4)), (4, (1, 2, 4))])
def test_weights_are_loaded_code_for_code(tmp_path, saved, sizes):
    if is_under_torchrun():
        pytest.skip("needs three numbers of ranks")
    ranks(saved).run(save_weights, str(tmp_path))
    for size in sizes:
        for rank, found in enumerate(ranks(size).run(load_weights, str(tmp_path))):
            check_weights(found, saved, size, rank)


def save_uneven(rank, folder):
    for name, make in {**APART, **TOGETHER}.items():
        module = sharded(make, values_of(0, UNEVEN_ROWS))
        dcp.save(module.state_dict(), checkpoint_id=f"{folder}/{name}")


def load_uneven(rank, folder):
    """This rank's rows and the whole weight as a forward reads it, by format."""
    found = {}
    for name, make in {**APART, **TOGETHER}.items():
        module = sharded(make, values_of(1, UNEVEN_ROWS))
        dcp.load(module.state_dict(), checkpoint_id=f"{folder}/{name}")
        local = plain(module.weight._local_tensor)
        module.unshard()
        found[name] = local, plain(module.weight)
    return found


@pytest.mark.slow  # starts processes
@pytest.mark.parametrize(("saved", "sizes"), [(1, (4,)), (4, (1, 2, 4))])
def test_uneven_rows_are_loaded(tmp_path, saved, sizes):
    """Rows that are no whole blocks are kept in high precision; FP8 of one scale has no blocks."""
    if is_under_torchrun():
        pytest.skip("needs three numbers of ranks")
    ranks(saved).run(save_uneven, str(tmp_path))
    values = values_of(0, UNEVEN_ROWS)
    scale_inv = values.abs().max() / E4M3.max_value
    # By the ranks that saved, as their parts are loaded, and as they are gathered.
    bound = (saved + 2) * rounding_bound(values / scale_inv, E4M3) * scale_inv
    for size in sizes:
        results = ranks(size).run(load_uneven, str(tmp_path))
        for name in (*APART, *TOGETHER):
            joined = torch.cat([found[name][0] for found in results])
            for whole in (joined, *(found[name][1] for found in results)):
                if name == "current":
                    assert_within(whole, values, bound, f"{name} on {size}")
                elif name == "delayed":
                    expected = APART[name]()(values).dequantize()
                    assert_identical(whole, expected, f"{name} on {size}")
                else:
                    assert_identical(whole, values, f"{name} on {size}")


# Recipe, and whether weights are quantized. The first one's state stays empty.
BROADCAST = (("none", False), ("delayed", False), ("recent", True), ("current", True))
FULL = StateDictOptions(full_state_dict=True)
FROM_FIRST_RANK = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def broadcast(rank):
    """By case: the first rank's full state, and a fresh model's after loading it once and twice."""
    found = {}
    for recipe, has_quantized_weights in BROADCAST:
        with quiet():
            model, optimizer = make(recipe, has_quantized_weights)
            train(model, optimizer, recipe, range(1), rank)
            states = [get_model_state_dict(model, options=FULL)]
            fresh, _ = make(recipe, has_quantized_weights)
            for _ in range(2):
                saved = dict(states[0]) if rank == 0 else {}
                set_model_state_dict(fresh, saved, options=FROM_FIRST_RANK)
                states.append(get_model_state_dict(fresh, options=FULL))
        found[recipe, has_quantized_weights] = states
    return found


def check_loaded(saved, loaded, is_rounded_again):
    assert loaded.keys() == saved.keys()
    for key, value in saved.items():
        if is_rounded_again and key.endswith("weight") and value.dim() == 2:
            assert_within(loaded[key], value, rounding_bound(value, E4M3), key)  # the scale is 1
        else:
            assert_identical(loaded[key], value, key)


@pytest.mark.slow  # starts processes
def test_a_full_state_is_broadcast_into_a_fresh_model():
    """What the first rank alone has; under delayed scaling the second load knows the scale."""
    results = ranks(2).run(broadcast)
    for found in results:
        for case, (_, once, twice) in found.items():
            saved = results[0][case][0]
            check_loaded(saved, once, is_rounded_again=case == ("recent", True))
            check_loaded(saved, twice, is_rounded_again=False)


# --- rows that the ranks do not divide, under a scale ---------------------------------------------

# On two ranks one has a row less; on four the last has less, or none at all.
ROW_COUNTS = (3, 5, 131)
UNEVEN_SIZES = pytest.mark.parametrize(("saved", "sizes"), [(1, (2, 4)), (2, (2, 4)), (4, (2, 4))])
# The saved and the loading weights' scales differ, and neither is that of zeros, 1.0.
SCALED = {
    "delayed": (functools.partial(delayed_quantizer, scale=8.0), lambda: delayed_quantizer(0.25)),
    "current": (current_quantizer, current_quantizer),
}


def save_scaled(rank, folder):
    for name, rows in itertools.product(SCALED, ROW_COUNTS):
        module = sharded(SCALED[name][0], values_of(0, rows))
        dcp.save(module.state_dict(), checkpoint_id=f"{folder}/{name}_{rows}")


def codes_of(tensor):
    return tensor._data.clone(), tensor._scale_inv.clone()


def load_scaled(rank, folder, size_before):
    """(codes, scale) of this rank's rows and of the whole as a forward reads it, by case."""
    found = {}
    for name, rows in itertools.product(SCALED, ROW_COUNTS):
        module = sharded(SCALED[name][1], size_before * values_of(1, rows))
        dcp.load(module.state_dict(), checkpoint_id=f"{folder}/{name}_{rows}")
        local = codes_of(module.weight._local_tensor)
        module.unshard()
        found[name, rows] = local, codes_of(module.weight)
    return found


def assert_codes_identical(found, data, scale_inv):
    assert torch.equal(found[0], data)
    assert torch.equal(found[1], scale_inv)


@pytest.mark.slow  # starts processes
@UNEVEN_SIZES
def test_uneven_rows_keep_their_codes_and_scale(tmp_path, saved, sizes):
    if is_under_torchrun():
        pytest.skip("needs three numbers of ranks")
    ranks(saved).run(save_scaled, str(tmp_path))
    for size, rows in itertools.product(sizes, ROW_COUNTS):
        # Parts under scales of their own are rounded with what is there: of a similar size.
        results = ranks(size).run(load_scaled, str(tmp_path), 64 if saved == 1 else 1)
        values = values_of(0, rows)
        expected = SCALED["delayed"][0]()(values)
        for found, (first, last) in zip(results, rows_on(size, rows), strict=True):
            local, whole = found["delayed", rows]
            assert_codes_identical(whole, expected._data, expected._scale_inv)
            if last > first:  # a scale of no rows means nothing
                assert_codes_identical(local, expected._data[first:last], expected._scale_inv)
        check_current(results, rows, saved)


def check_current(results, rows, saved):
    """Rows of one saved part are as saved; the whole is rounded once more, under one scale."""
    values = values_of(0, rows)
    kept = [values[a:b] for a, b in rows_on(saved, rows)]
    parts = [current_quantizer()(part) for part in kept]
    wholes = [found["current", rows][1] for found in results]
    for found, (first, last) in zip(results, rows_on(len(results), rows), strict=True):
        local = found["current", rows][0]
        for (begin, end), part in zip(rows_on(saved, rows), parts, strict=True):
            if begin <= first < last <= end:
                codes = part._data[first - begin : last - begin]
                assert_codes_identical(local, codes, part._scale_inv)
    for whole in wholes:
        assert_codes_identical(whole, *wholes[0])
    largest = values.abs().max() / E4M3.max_value
    # When saved, as a part of each of the saved ranks is put in, and as they are gathered.
    bound = (saved + 2) * rounding_bound(values / largest, E4M3) * largest
    data, scale_inv = wholes[0]
    assert_within(data.view(torch.float8_e4m3fn).float() * scale_inv, values, bound)
    if saved == 1:  # also where a rank has no rows, and its scale is that of the weights before
        assert_codes_identical(wholes[0], parts[0]._data, parts[0]._scale_inv)


def load_live_state(rank):
    """A state dict of tensors in memory, whose scale is not the module's."""
    for makers, rows in itertools.product(SCALED.values(), ROW_COUNTS):
        source = sharded(makers[0], values_of(0, rows))
        module = sharded(makers[1], 64 * values_of(1, rows))
        with quiet():
            state = {key: value.clone() for key, value in source.state_dict().items()}
            module.load_state_dict(state)
        expected, found = (m.weight._local_tensor for m in (source, module))
        if found.shape[0] > 0:
            assert_codes_identical(codes_of(found), *codes_of(expected))
        for each in (source, module):
            each.unshard()
        assert_codes_identical(codes_of(module.weight), *codes_of(source.weight))


@pytest.mark.slow  # may be the first to start the ranks
@pytest.mark.parametrize("size", [2, 4])
def test_uneven_rows_take_over_a_state_dict(size):
    ranks(size).run(load_live_state)


UNEVEN_CASES = [("delayed", True, 131), ("recent", True, 131), ("recent", True, 3)]


def save_uneven_training(rank, folder):
    return [train_and_save(rank, folder, case) for case in UNEVEN_CASES]


def resume_uneven_training(rank, folder):
    return [load_and_train(rank, folder, case) for case in UNEVEN_CASES]


@pytest.mark.slow  # starts processes
@UNEVEN_SIZES
def test_training_on_uneven_rows_continues(tmp_path, saved, sizes):
    if is_under_torchrun():
        pytest.skip("needs three numbers of ranks")
    uninterrupted = ranks(saved).run(save_uneven_training, str(tmp_path))[0]
    for size in sizes:
        for resumed in ranks(size).run(resume_uneven_training, str(tmp_path)):
            assert resumed == uninterrupted, (saved, size)
            assert all(losses[-1] < losses[0] for losses in resumed)
