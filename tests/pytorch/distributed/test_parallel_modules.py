# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Column-, row- and sequence-parallel modules equal the module of a single rank.

What both round to is an activation's dtype, once; before that, sums are FP32 in another order. So
FP32 results agree to a relative 1e-6 of the largest, BF16 ones to one rounding step of each element
besides that. Blocks of FP8 that end where a rank's part does may have another scale. Gradients that
a trainer adds up over ranks are rounded on each of them.
"""

import copy
import functools
import pickle

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.formats import FORMATS
from helpers.modules import randomize
from helpers.parallel import (
    IN,
    KINDS,
    Cut,
    build,
    cut_results,
    make_pair,
    randomize_with_one_scale,
    rescaled_mlp_bound,
    step,
    sum_marked,
    whole_tensors,
)
from helpers.ranks import ranks
from helpers.tolerances import assert_identical, assert_within
from transformer_engine.common.recipe import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)

# Those whose result does not depend on how a weight is split over ranks.
EXACT_RECIPES = {
    "delayed": DelayedScaling(),
    "block": Float8BlockScaling(),
    "mxfp8": MXFP8BlockScaling(),
}
# One scale for a tensor, that of a rank's part of the weight.
OTHER_RECIPES = {
    "current": Float8CurrentScaling(),
    "nvfp4": NVFP4BlockScaling(disable_stochastic_rounding=True),
}
RELATIVE = 1e-6


def assert_close(actual, expected, dtype, name, *, moved=0.0, of_largest=False):
    """Another order of FP32 sums, then one rounding.

    `moved`: bound of what else moves a result. `of_largest`: a rounding step of the largest
    element, where values that were rounded on the way (by a norm's or an activation's backward, on
    each rank) enter the result.
    """
    magnitude = expected.double().abs()
    bound = RELATIVE * magnitude.max() + moved
    if dtype != torch.float32:
        step_size = 2 * FORMATS[dtype].unit_roundoff
        bound = bound + step_size * (magnitude.max() if of_largest else magnitude * (1 + step_size))
    assert_within(actual, expected, bound, name)


def compare(pair, *, rows, region=None, seed=1, moved_bound=None):
    """One step of both; every result of the part against that of the whole.

    `moved_bound(kind, single, x, gradient)`: name -> how far a result of the whole may move.
    """
    kind, cut, sequence, dtype = pair.kind, pair.cut, pair.sequence, pair.dtype
    single, part = pair.modules
    x, gradient = whole_tensors(kind, rows, dtype, seed)
    with region() if region else te.autocast(enabled=False):
        expected = step(single, x, gradient)
    with region() if region else te.autocast(enabled=False):
        actual = step(
            part,
            cut.input(kind, x, sequence=sequence),
            cut.output(kind, gradient, sequence=sequence),
        )
    actual = sum_marked(part, actual)
    moved = {} if moved_bound is None else moved_bound(kind, single, x, gradient)
    moved = cut_results(kind, cut, moved, sequence=sequence)
    for name, value in cut_results(kind, cut, expected, sequence=sequence).items():
        is_summed_by_the_trainer = actual[name].dtype != value.dtype
        assert_close(
            *(actual[name], value, dtype, f"{kind} {name}"),
            moved=moved.get(name, 0.0),
            of_largest=is_summed_by_the_trainer or kind not in ("column", "row"),
        )
    return actual


def check_high_precision(rank, size):
    cut = Cut(rank, size)
    for dtype in (torch.float32, torch.bfloat16):
        for kind in KINDS:
            for sequence in (False, True):
                pair = make_pair(kind, cut, sequence=sequence, dtype=dtype)
                for rows in (size, 3 * size, 17 * size):
                    compare(pair, rows=rows)


@pytest.mark.parametrize("size", [2, 4])
def test_parts_equal_the_whole(size):
    ranks(size).run(check_high_precision, size)


def check_recipes(rank, size):
    cut = Cut(rank, size)
    for recipe in EXACT_RECIPES.values():
        for kind in KINDS:
            for sequence in (False, True):
                # Whole blocks of 128 columns are cut into those of a rank's 64.
                is_cut = recipe.float8_block_scaling() and "MLP" in kind
                prepare = randomize_with_one_scale if is_cut else randomize
                pair = make_pair(kind, cut, sequence=sequence, dtype=torch.float32, prepare=prepare)
                # Rows of a rank that are whole blocks, and others.
                for index, rows in enumerate((128 * size, 3 * size)):
                    compare(
                        pair,
                        rows=rows,
                        region=lambda recipe=recipe: te.autocast(recipe=recipe),
                        seed=10 * index + 1,
                        moved_bound=rescaled_mlp_bound if is_cut else None,
                    )


def test_parts_equal_the_whole_under_recipes_that_are_exact():
    ranks(2).run(check_recipes, 2)


def drop_shard(module):
    module.fc2_weight.zero_()


def double_scale(module):
    module.fc2_weight.mul_(2)


def double_scale_of_a_row(module):
    module.fc2_weight[5].mul_(2)


def lose_a_column(module):
    module.fc2_weight[:, 7].zero_()


MISTAKES = (drop_shard, double_scale, double_scale_of_a_row, lose_a_column)


def check_mistakes(rank):
    """What the last rank has is wrong: all ranks see it in the sum."""
    cut = Cut(rank, 2)
    for recipe in EXACT_RECIPES.values():
        for kind in ("LayerNormMLP", "gated LayerNormMLP"):
            for mistake in MISTAKES:
                pair = make_pair(
                    *(kind, cut),
                    sequence=False,
                    dtype=torch.float32,
                    prepare=randomize_with_one_scale,
                )
                if rank == 1:
                    with torch.no_grad():
                        mistake(pair.part)
                with pytest.raises(AssertionError, match=f"{kind} output: .* outside their bound"):
                    compare(
                        pair,
                        rows=128,
                        region=lambda recipe=recipe: te.autocast(recipe=recipe),
                        moved_bound=rescaled_mlp_bound,
                    )


def test_a_wrong_scale_and_a_dropped_part_are_noticed():
    ranks(2).run(check_mistakes)


def check_split_rows(rank):
    """With and without sequence parallelism a layer reads the same operands."""
    cut = Cut(rank, 2)
    for recipe in (*EXACT_RECIPES.values(), *OTHER_RECIPES.values()):
        for kind in ("column", "row", "LayerNormLinear"):
            for rows in (256, 6):
                whole = make_pair(kind, cut, sequence=False, dtype=torch.bfloat16).part
                shared = make_pair(kind, cut, sequence=True, dtype=torch.bfloat16).part
                x, gradient = whole_tensors(kind, rows, torch.bfloat16)
                results = []
                for sequence, module in ((False, whole), (True, shared)):
                    with te.autocast(recipe=recipe):
                        results.append(
                            step(
                                module,
                                cut.input(kind, x, sequence=sequence),
                                cut.output(kind, gradient, sequence=sequence),
                            )
                        )
                plain, split = results
                assert_identical(split["weight"], plain["weight"], f"{kind} {recipe}")
                if kind == "row":
                    expected = cut.rows(plain["output"])
                    assert_close(split["output"], expected, torch.bfloat16, "output")
                    assert_identical(split["inp"], plain["inp"], f"{kind} {recipe}")
                else:
                    assert_identical(split["output"], plain["output"], f"{kind} {recipe}")


def test_gathered_rows_are_those_of_one_tensor_under_every_recipe():
    ranks(2).run(check_split_rows)


def check_delayed_state(rank):
    cut = Cut(rank, 2)
    recipe = DelayedScaling(amax_history_len=3)
    pair = make_pair("LayerNormLinear", cut, sequence=True, dtype=torch.float32)
    single, part = pair.modules
    for index in range(4):
        compare(pair, rows=6, region=lambda: te.autocast(recipe=recipe), seed=index)
    for key in ("scaling_fwd", "scaling_bwd"):
        assert_identical(part.fp8_meta[key].scale, single.fp8_meta[key].scale, key)
        assert_identical(part.fp8_meta[key].amax_history, single.fp8_meta[key].amax_history, key)


def test_delayed_scaling_has_the_state_of_a_single_rank():
    ranks(2).run(check_delayed_state)


def check_norm_output(rank):
    cut = Cut(rank, 2)
    for kind in ("LayerNormLinear", "LayerNormMLP"):
        for sequence in (False, True):
            for is_gathered in (False, True):
                for recipe in (None, MXFP8BlockScaling()):
                    flags = {
                        "return_layernorm_output": True,
                        "return_layernorm_output_gathered": is_gathered,
                    }
                    single, part = make_pair(
                        kind, cut, sequence=sequence, dtype=torch.float32, **flags
                    ).modules
                    x, gradient = whole_tensors(kind, 6, torch.float32)
                    extra, _ = whole_tensors(kind, 6, torch.float32, seed=9)
                    results = []
                    own = cut.input(kind, x, sequence=sequence).requires_grad_()
                    x.requires_grad_()
                    for module, source in ((single, x), (part, own)):
                        with te.autocast(enabled=recipe is not None, recipe=recipe):
                            output, normalized = module(source)
                        is_part = module is part
                        is_whole = not (is_part and sequence) or is_gathered
                        mine = extra if is_whole else cut.rows(extra)
                        # Each rank uses the gathered output for half of the loss.
                        share = 0.5 if is_part and sequence and is_gathered else 1.0
                        grad = (
                            cut.output(kind, gradient, sequence=sequence) if is_part else gradient
                        )
                        ((output * grad).sum() + share * (normalized * mine).sum()).backward()
                        results.append(normalized.detach())
                    expected = results[0]
                    if sequence and not is_gathered:
                        expected = cut.rows(expected)
                    assert_identical(results[1], expected, kind)
                    assert_close(
                        *(own.grad, cut.input(kind, x.grad, sequence=sequence), x.dtype, kind),
                    )


def test_the_norm_output_may_be_returned_gathered():
    ranks(2).run(check_norm_output)


def check_variants(rank):
    """Arguments that change what is saved or when a weight gradient runs."""
    cut = Cut(rank, 2)
    for kind in KINDS:
        x, gradient = whole_tensors(kind, 128, torch.bfloat16)
        mine = cut.input(kind, x, sequence=True)
        grad = cut.output(kind, gradient, sequence=True)
        for recipe in (None, DelayedScaling(), Float8CurrentScaling(), MXFP8BlockScaling()):

            def run(part, recipe=recipe, mine=mine, grad=grad, **call):
                with te.autocast(enabled=recipe is not None, recipe=recipe):
                    return step(part, mine, grad, **call)

            def make(kind=kind, **keywords):
                return make_pair(kind, cut, sequence=True, dtype=torch.bfloat16, **keywords).part

            expected = run(make())
            variants = [({}, {"is_first_microbatch": True})]
            if "MLP" in kind:
                variants.append(({"checkpoint": True}, {}))
            if kind in ("column", "row") and not isinstance(recipe, DelayedScaling):
                variants.append(({"save_original_input": True}, {}))
            for keywords, call in variants:
                actual = run(make(**keywords), **call)
                for name, value in expected.items():
                    assert_identical(actual[name], value, f"{kind} {keywords} {name}")
            delayed = make(delay_wgrad_compute=True)
            found = run(delayed)
            delayed.backward_dw()
            fused = make(fuse_wgrad_accumulation=True)
            for parameter in fused.parameters():
                if parameter.dim() == 2:
                    parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)
            run(fused, is_first_microbatch=False)
            for name, parameter in delayed.named_parameters():
                assert_identical(parameter.grad, expected[name], f"{kind} delayed {name}")
                main_grad = getattr(dict(fused.named_parameters())[name], "main_grad", None)
                if main_grad is not None:
                    assert_identical(main_grad.bfloat16(), expected[name], f"{kind} fused {name}")
            assert_identical(found["inp"], expected["inp"], kind)


def test_variants_of_a_step_give_the_same_numbers():
    ranks(2).run(check_variants)


def check_live_attributes(rank):
    cut = Cut(rank, 2)
    single, part = make_pair("column", cut, sequence=True, dtype=torch.float32).modules
    x, _ = whole_tensors("column", 6, torch.float32)
    whole = cut.columns(single(x)).detach()
    assert_identical(part(cut.rows(x)).detach(), whole)
    part.sequence_parallel = False
    assert_identical(part(x).detach(), whole)
    part.sequence_parallel = True
    assert_identical(part(cut.rows(x)).detach(), whole)
    part.parallel_mode = None  # no exchange with other ranks
    assert_identical(part(x).detach(), whole)
    # A group given later.
    late = te.Linear(IN, IN, parallel_mode="row", tp_size=2, device="cpu")
    assert late.weight.shape == (IN, IN // 2)
    with pytest.raises(RuntimeError, match=r"Linear.forward: tp_size is 2 and tp_group is None"):
        late(torch.ones(2, IN // 2))
    with pytest.raises(TypeError, match=r"set_tensor_parallel_group: tp_group is 'g'"):
        late.set_tensor_parallel_group("g")
    alone = [torch.distributed.new_group([r]) for r in range(2)][rank]
    with pytest.raises(ValueError, match=r"tp_group has 1 ranks; 2 are required"):
        late.set_tensor_parallel_group(alone)
    late.set_tensor_parallel_group(torch.distributed.group.WORLD)
    assert late(torch.ones(2, IN // 2)).shape == (2, IN)


def test_parallel_attributes_take_effect_on_the_next_call():
    ranks(2).run(check_live_attributes)


def check_copies(rank):
    """Copies share the group; what comes out of a pickle is given one."""
    group = torch.distributed.group.WORLD
    layer = te.TransformerLayer(
        *(32, 32, 2),
        tp_group=group,
        set_parallel_mode=True,
        sequence_parallel=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        device="cpu",
    )
    x = torch.randn(2, 3, 32)
    expected = layer(x)
    for made in (copy.deepcopy(layer), copy.copy(layer)):
        assert made.tp_group is group and made.layernorm_mlp.tp_group is group
        assert torch.equal(made(x), expected)
    loaded = pickle.loads(pickle.dumps(layer))
    assert loaded.tp_group is None and loaded.layernorm_mlp.tp_size == 2
    with pytest.raises(RuntimeError, match="Call set_tensor_parallel_group first"):
        loaded(x)
    loaded.set_tensor_parallel_group(group)
    assert torch.equal(loaded(x), expected)


def test_copies_share_the_group():
    ranks(2).run(check_copies)


def check_errors(rank):
    cut = Cut(rank, 2)
    part = make_pair("row", cut, sequence=True, dtype=torch.float32).part
    with pytest.raises(ValueError, match=r"inp has shape \[3, 2, 32\]; .* a multiple of the 2"):
        part(torch.ones(3, 2, IN // 2))
    with pytest.raises(ValueError, match=r"inp has shape \[32\]; with sequence_parallel=True"):
        part(torch.ones(IN // 2))
    part = make_pair("column", cut, sequence=True, dtype=torch.float32).part
    recipe = DelayedScaling(reduce_amax=False)
    with te.autocast(recipe=recipe), pytest.raises(ValueError, match="does not reduce amaxes"):
        part(torch.ones(2, IN))
    # The other ranks have not been kept waiting by any of this.
    assert part(torch.ones(2, IN)).shape == (4, 48)


def test_errors_are_found_before_anything_is_sent():
    ranks(2).run(check_errors)


def check_foreign_group(rank):
    group = torch.distributed.new_group([0])  # where rank 1 is not
    options = {"tp_group": group, "device": "cpu"}
    makers = {
        "Linear": lambda: te.Linear(32, 48, parallel_mode="column", **options),
        "LayerNormLinear": lambda: te.LayerNormLinear(32, 48, parallel_mode="column", **options),
        "LayerNormMLP": lambda: te.LayerNormMLP(32, 48, set_parallel_mode=True, **options),
        "DotProductAttention": lambda: te.DotProductAttention(4, 8, tp_group=group),
        "MultiheadAttention": lambda: te.MultiheadAttention(
            32, 4, set_parallel_mode=True, **options
        ),
        "TransformerLayer": lambda: te.TransformerLayer(
            32, 48, 4, set_parallel_mode=True, **options
        ),
    }
    alone = {
        "Linear": te.Linear(32, 48, device="cpu"),
        "MultiheadAttention": te.MultiheadAttention(32, 4, device="cpu"),
        "TransformerLayer": te.TransformerLayer(32, 48, 4, device="cpu"),
    }
    setters = {
        f"{name}.set_tensor_parallel_group": functools.partial(
            module.set_tensor_parallel_group, group
        )
        for name, module in alone.items()
    }
    for name, call in {**makers, **setters}.items():
        if rank == 0:
            call()
            continue
        with pytest.raises(ValueError, match=f"^{name}: tp_group is a group without this rank, ra"):
            call()
    assert all(module.tp_group is (None if rank else group) for module in alone.values())


def test_a_group_without_this_rank_is_refused():
    ranks(2).run(check_foreign_group)


def check_initialization(rank, size):
    cut = Cut(rank, size)
    tracker = te.distributed.CudaRNGStatesTracker()
    tracker.add("model-parallel-rng", 5)
    for kind in KINDS:
        for get_tracker in (None, lambda: tracker):
            built = []
            for group in (None, torch.distributed.group.WORLD):
                torch.manual_seed(3)
                tracker.set_states({"model-parallel-rng": torch.get_rng_state()})
                keywords = {"tp_group": group, "get_rng_state_tracker": get_tracker}
                built.append(dict(build(kind, **keywords).named_parameters()))
            single, part = built
            for name, parameter in part.items():
                assert_identical(parameter, cut.parameter(kind, name, single[name]), name)


@pytest.mark.parametrize("size", [2, 4])
def test_weights_are_drawn_alike_for_every_number_of_ranks(size):
    ranks(size).run(check_initialization, size)
