# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Delayed scaling over a process group: the state of all ranks is that of one process that sees
all their batches.
"""

import contextlib
import gc
import re

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.delayed_scaling import DelayedScalingModel
from helpers.generators import random_tensor
from helpers.ranks import ranks
from helpers.tolerances import assert_identical
from transformer_engine.common.recipe import CustomRecipe, DelayedScaling, Float8CurrentScaling
from transformer_engine.pytorch.quantization import DelayedScalingRequest

WIDTH, LENGTH, ROWS = 16, 4, 8
KEYS = ("scaling_fwd", "scaling_bwd")


def request(role):
    del role
    return DelayedScalingRequest(amax_history_len=LENGTH)


def request_unreduced(role):
    del role
    return DelayedScalingRequest(amax_history_len=LENGTH, reduce_amax=False)


def newest(history):
    return history[0].clone()


def request_forward(role):
    """Inputs and weights only, and with a callable."""
    if role is None or role.tensor_type not in ("input", "weight"):
        return te.IdentityQuantizer()
    return DelayedScalingRequest(amax_history_len=LENGTH, amax_compute_algo=newest)


RECIPES = {
    "delayed": DelayedScaling(amax_history_len=LENGTH),
    "most recent": DelayedScaling(amax_history_len=LENGTH, amax_compute_algo="most_recent"),
    "callable": DelayedScaling(amax_history_len=LENGTH, amax_compute_algo=lambda h: h.amax(0)),
    "custom": CustomRecipe(qfactory=request),
    "custom forward": CustomRecipe(qfactory=request_forward),
}


def state_of(module):
    """Scales and histories of both directions, where the recipe has them."""
    found = {}
    for key in KEYS:
        state = module.fp8_meta[key].delayed
        if state is not None:
            found[f"{key}.scale"] = state.scale.clone()
            found[f"{key}.amax_history"] = state.amax_history.clone()
    return found


def assert_same_state(actual, expected):
    assert actual.keys() == expected.keys()
    assert actual
    for name, value in expected.items():
        assert_identical(actual[name], value, name)


def make_model():
    torch.manual_seed(3)
    options = {"device": "cpu", "params_dtype": torch.bfloat16}
    return torch.nn.Sequential(
        te.Linear(WIDTH, WIDTH, **options),
        te.LayerNormLinear(WIDTH, 2 * WIDTH, **options),
        te.LayerNormMLP(2 * WIDTH, 3 * WIDTH, **options),
    )


def run_steps(recipe, model, rows, group=None, micro_batches=False):
    """Three steps on those rows of each step's batch; the gradient of a row depends on nothing
    else, so that each amax of the whole batch is the largest of its parts'.
    """
    for step in range(3):
        for part in range(2 if micro_batches else 1):
            size = torch.distributed.get_world_size()
            seed = 10 * step + part
            x = random_tensor((ROWS * size, WIDTH), seed=seed, dtype=torch.bfloat16) * (1 + step)
            gradient = random_tensor((ROWS * size, 2 * WIDTH), seed=seed + 5, dtype=torch.bfloat16)
            with te.autocast(recipe=recipe, amax_reduction_group=group):
                y = x[rows].requires_grad_()
                for module in model:
                    y = module(y, is_first_microbatch=part == 0 if micro_batches else None)
            y.backward(gradient[rows])


def equal_one_process(rank, name, micro_batches):
    size = torch.distributed.get_world_size()
    alone = torch.distributed.new_subgroups(1)[0]
    model, twin = make_model(), make_model()
    run_steps(
        RECIPES[name], model, slice(ROWS * rank, ROWS * (rank + 1)), micro_batches=micro_batches
    )
    run_steps(RECIPES[name], twin, slice(0, ROWS * size), alone, micro_batches)
    for module, other in zip(model, twin, strict=True):
        assert_same_state(state_of(module), state_of(other))
        assert (state_of(module)["scaling_fwd.scale"] != 1).sum() >= 2


@pytest.mark.slow  # may be the first to start the ranks
@pytest.mark.parametrize("micro_batches", [False, True], ids=["whole", "micro-batches"])
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("size", [2, 4])
def test_the_state_is_that_of_the_whole_batch(size, name, micro_batches):
    ranks(size).run(equal_one_process, name, micro_batches)


# ---- modules that not every rank uses ------------------------------------------------------------


def build_pair():
    return {
        name: te.Linear(WIDTH, WIDTH, bias=False, name=name, device="cpu") for name in ("a", "b")
    }


# Per step: how often each rank (the last entry: and all after it) calls each module.
USES = (
    ({"a": 2, "b": 1}, {"a": 1}),  # the second rank does not know b
    ({"a": 1}, {"b": 3}),
    ({"a": 1}, {"a": 1}),  # nobody uses b
    ({}, {"a": 1, "b": 1}),  # the first rank is idle
    ({"b": 1, "a": 1}, {"a": 1, "b": 2}),
)


def observed(step, rank, call):
    return float(1 + (7 * step + 3 * rank + 5 * call) % 11)


def use_unevenly(rank, name, all_uses):
    size = torch.distributed.get_world_size()
    modules = build_pair()
    models = {
        key: [DelayedScalingModel(LENGTH, most_recent="recent" in name) for _ in range(2)]
        for key in modules
    }
    for step, uses in enumerate(all_uses):
        with te.autocast(recipe=RECIPES[name]):
            for key, count in uses[min(rank, 1)].items():
                for call in range(count):
                    modules[key](torch.full((2, WIDTH), observed(step, rank, call)))
        for key, (of_input, of_weight) in models.items():
            calls = [(r, c) for r in range(size) for c in range(uses[min(r, 1)].get(key, 0))]
            if not calls:
                continue
            for each_rank, call in calls:
                of_input.observe(torch.tensor(observed(step, each_rank, call)))
            of_weight.observe(weight_of(modules[key]))
            of_input.update()
            of_weight.update()
    for key, module in modules.items():  # which all ranks know by now
        state = module.fp8_meta["scaling_fwd"].delayed
        for slot, model in enumerate(models[key]):
            assert state.amax_history[:, slot].tolist() == model.history
            assert state.scale[slot].item() == model.scale
    return [state_of(module) for module in modules.values()]


def weight_of(module):
    with torch.no_grad():
        return module.weight.detach()


@pytest.mark.slow  # may be the first to start the ranks
@pytest.mark.parametrize("name", ["delayed", "most recent", "custom"])
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_may_use_modules_differently(size, name):
    # Under a custom recipe a rank that has used no module yet does not know that it reduces.
    idle_first = [] if name == "custom" else [({"a": 1}, {})]
    first, *others = ranks(size).run(use_unevenly, name, (*idle_first, *USES))
    for other in others:
        for mine, its in zip(first, other, strict=True):
            assert_same_state(its, mine)


def use_other_modules_of_the_same_default_names(rank):
    """A rank that built another layer before still pairs its modules with those of the others."""
    if rank == 0:
        te.Linear(WIDTH, WIDTH, device="cpu")
        te.Linear(WIDTH, WIDTH, device="cpu")
    modules = [te.Linear(WIDTH, WIDTH, device="cpu") for _ in range(2)]
    with te.autocast(recipe=RECIPES["delayed"]):
        for index, module in enumerate(modules):
            module(torch.full((2, WIDTH), 1.0 + rank + 12 * index))
    return [module.fp8_meta["scaling_fwd"].scale[0].item() for module in modules]


@pytest.mark.slow  # may be the first to start the ranks
def test_default_names_need_not_be_the_same():
    assert ranks(2).run(use_other_modules_of_the_same_default_names) == [[448 / 2, 448 / 14]] * 2


# ---- other models of the same names --------------------------------------------------------------


def use(modules, value):
    with te.autocast(recipe=RECIPES["delayed"]):
        for module in modules:
            module(torch.full((2, WIDTH), float(value)))


def scales_of_inputs(modules):
    return [module.fp8_meta["scaling_fwd"].scale[0].item() for module in modules]


def train_beside_an_old_model(rank, who_used_it):
    """The old model lives on, on the first rank alone, which uses it again in between."""
    old = list(build_pair().values())
    for _ in range(3):  # more often than the new one
        use(old if who_used_it == "all" or rank == 0 else [], 64)
    if rank != 0:
        old = []
    new = list(build_pair().values())
    use(new, 1 + rank)
    use(old, 128)
    if who_used_it == "all":
        use(new if rank == 1 else [], 4)
    use(reversed(new), 1)
    gc.collect()
    return scales_of_inputs(new), scales_of_inputs(old)


@pytest.mark.slow  # may be the first to start the ranks
@pytest.mark.parametrize("who_used_it", ["all", "first"])
def test_an_old_model_of_one_rank_meets_no_new_one(who_used_it):
    newest = 4 if who_used_it == "all" else 2
    new = [448 / newest] * 2
    assert ranks(2).run(train_beside_an_old_model, who_used_it) == [
        (new, [448 / 128] * 2),
        (new, []),
    ]


def use_copies(rank):
    """Copies have one name; used in the same steps they are told apart by their order."""
    first, second = (te.Linear(WIDTH, WIDTH, name="a") for _ in range(2))
    for _ in range(2):
        with te.autocast(recipe=RECIPES["delayed"]):
            first(torch.full((2, WIDTH), 1.0 + rank))
            second(torch.full((2, WIDTH), 7.0 - rank))
    use([second] if rank == 0 else [], 14)
    return scales_of_inputs([first, second])


@pytest.mark.slow  # may be the first to start the ranks
def test_copies_are_told_apart_by_the_order_of_first_use():
    assert ranks(2).run(use_copies) == [[448 / 2, 448 / 14]] * 2


def build_models_one_after_the_other(rank):
    """Number of elements that are reduced, model by model."""
    del rank
    sizes, original = [], torch.distributed.all_reduce

    def counting(tensor, *args, **keywords):
        sizes.append(tensor.numel())
        return original(tensor, *args, **keywords)

    torch.distributed.all_reduce = counting
    try:
        for _ in range(4):
            modules = build_pair()
            for _ in range(2):
                use(modules.values(), 1)
            del modules
            gc.collect()
    finally:
        torch.distributed.all_reduce = original
    return [sizes[-1], *sizes[2::3]]


@pytest.mark.slow  # may be the first to start the ranks
def test_models_that_are_gone_are_reduced_no_more():
    for last, *sizes in ranks(2).run(build_models_one_after_the_other):
        assert len(sizes) == 4
        assert set(sizes) == {last}


# ---- groups --------------------------------------------------------------------------------------


def reduce_within_halves(rank):
    groups = [torch.distributed.new_group([0, 1]), torch.distributed.new_group([2, 3])]
    scales = []
    for recipe in (RECIPES["delayed"], RECIPES["custom"]):
        module = te.Linear(WIDTH, WIDTH, device="cpu")
        with te.autocast(recipe=recipe, amax_reduction_group=groups[rank // 2]):
            module(torch.full((2, WIDTH), 2.0**rank))
        scales.append(module.fp8_meta["scaling_fwd"].delayed.scale[0].item())
    for recipe in (
        DelayedScaling(amax_history_len=LENGTH, reduce_amax=False),
        CustomRecipe(qfactory=request_unreduced),
    ):
        module = te.Linear(WIDTH, WIDTH, device="cpu")
        with te.autocast(recipe=recipe):
            module(torch.full((2, WIDTH), 2.0**rank))
        scales.append(module.fp8_meta["scaling_fwd"].delayed.scale[0].item())
    return scales


@pytest.mark.slow  # may be the first to start the ranks
def test_only_the_group_given_is_reduced_over():
    found = ranks(4).run(reduce_within_halves)
    for rank, scales in enumerate(found):
        assert scales == [448 / (2, 8)[rank // 2]] * 2 + [448 / 2**rank] * 2


def scales_of_attention(rank):
    """The delayed scales after a step in which rank r saw sequences of r + 1 tokens."""
    found = []
    for recipe in (DelayedScaling(fp8_dpa=True), Float8CurrentScaling(fp8_dpa=True)):
        module = te.DotProductAttention(1, WIDTH, attn_mask_type="no_mask", name="attention")
        x = torch.full((rank + 1, 1, 1, WIDTH), 2.0**rank, requires_grad=True)
        with te.autocast(recipe=recipe):
            out = module(x, x, x)
        # Of equal keys each has the probability 1 / (rank + 1): the largest is rank 0's, 1.
        out.backward(torch.arange(1.0, out.numel() + 1).view_as(out) * 4.0**rank)
        states = (module.fp8_meta[key].delayed for key in KEYS)
        found.append([state.scale.tolist() for state in states])
    return found


def test_attention_under_both_recipes_reduces_its_delayed_slots():
    first, second = ranks(2).run(scales_of_attention)
    assert first == second
    (delayed_forward, delayed_backward), (current_forward, _) = first
    assert delayed_forward[2] == 448 / 2 and delayed_forward[8] == 448  # QKV, S
    assert delayed_backward[3] == torch.tensor(57344.0).div(4.0 * 2 * WIDTH).item()  # dO
    assert current_forward[8] == 448 and current_forward[2] == 1


def run_custom_without_delayed(rank):
    """No state, no communication: the ranks may do it at different times."""
    recipe = CustomRecipe(qfactory=lambda role: te.IdentityQuantizer())
    module = te.Linear(WIDTH, WIDTH, device="cpu")
    if rank == 0:
        with te.autocast(recipe=recipe):
            module(torch.ones(2, WIDTH)).sum().backward()
    return True


@pytest.mark.slow  # may be the first to start the ranks
def test_custom_recipes_without_delayed_scaling_do_not_communicate():
    assert ranks(2).run(run_custom_without_delayed) == [True, True]


# ---- current scaling and NVFP4 -------------------------------------------------------------------

CURRENT_AMAX = {
    "current": lambda **options: te.Float8CurrentScalingQuantizer(
        te.DType.kFloat8E4M3, torch.device("cpu"), **options
    ),
    "powers of two": lambda **options: te.Float8CurrentScalingQuantizer(
        te.DType.kFloat8E4M3, torch.device("cpu"), force_pow_2_scales=True, **options
    ),
    "nvfp4": te.NVFP4Quantizer,
    "nvfp4 tiles": lambda **options: te.NVFP4Quantizer(with_2d_quantization=True, **options),
}


def quantize_within_halves(rank):
    """Each rank's rows have the values of the whole's, where the group has the whole."""
    groups = [torch.distributed.new_group([0, 1]), torch.distributed.new_group([2, 3])]
    whole = random_tensor((128, 32), seed=4) * torch.linspace(1, 40, 128).view(-1, 1)
    for make in CURRENT_AMAX.values():
        for group, rows in ((groups[rank // 2], whole.chunk(2)[rank // 2]), (None, whole)):
            size = torch.distributed.get_world_size(group)
            reducing = make(with_amax_reduction=True, amax_reduction_group=group)
            part = reducing(rows.chunk(size)[torch.distributed.get_rank(group)])
            expected = make()(rows).dequantize().chunk(size)[torch.distributed.get_rank(group)]
            assert_identical(part.dequantize(), expected)
            zeros = reducing(torch.zeros(32, 32) if rank % 2 else rows[:32])  # one has nothing
            assert torch.isfinite(zeros.dequantize()).all()


@pytest.mark.slow  # may be the first to start the ranks
def test_ranks_quantize_their_rows_under_the_amax_of_the_group():
    ranks(4).run(quantize_within_halves)


# ---- ranks that do not fit together --------------------------------------------------------------


def name_another_kind_the_same(rank):
    if rank == 0:
        module = te.Linear(WIDTH, WIDTH, name="x.fc1", device="cpu")
    else:
        module = te.LayerNormMLP(WIDTH, WIDTH, name="x", device="cpu")
    with (
        pytest.raises(
            RuntimeError, match=r"autocast: x.fc1 has an amax history of shape .* on rank 1"
        ),
        te.autocast(recipe=RECIPES["delayed"]),
    ):
        module(torch.ones(2, WIDTH))


def use_another_kind_of_the_same_name_later(rank):
    kinds = (te.Linear(WIDTH, WIDTH, name="x.fc1"), te.LayerNormMLP(WIDTH, WIDTH, name="x"))
    for step in range(2):
        expected = contextlib.nullcontext()
        if step == 1:
            expected = pytest.raises(
                RuntimeError, match=r"autocast: x.fc1 has an amax history of shape .* on rank 1"
            )
        with expected, te.autocast(recipe=RECIPES["delayed"]):
            if rank == step:
                kinds[step](torch.ones(2, WIDTH))


def use_other_recipes(rank):
    """From the first step on, and when a rank changes its own; the state stays as it is."""
    usual = RECIPES["delayed"]
    for name, other in ("a", DelayedScaling(amax_history_len=7)), ("b", RECIPES["custom"]):
        module = te.Linear(WIDTH, WIDTH, name=name, device="cpu")
        for recipes in (usual, other), (usual, usual), (other, usual):
            texts = [re.escape(re.sub(" at 0x[0-9a-f]+", "", repr(recipe))) for recipe in recipes]
            expected = contextlib.nullcontext()
            if recipes[0] is not recipes[1]:
                rule = (
                    f"rank 0 of .* forward under .{texts[0]}., rank 1 a forward under .{texts[1]}."
                )
                expected = pytest.raises(RuntimeError, match=rule)
            with expected, te.autocast(recipe=recipes[rank]):
                module(torch.ones(2, WIDTH))
        if name == "a":  # another kind of recipe begins anew
            assert scales_of_inputs([module]) == [448], "only the second step counts"


def end_other_passes(rank):
    """A rank is a pass behind the others."""
    module = te.Linear(WIDTH, WIDTH, name="a")
    x = torch.ones(2, WIDTH, requires_grad=True)
    for _ in range(2):
        with te.autocast(recipe=RECIPES["delayed"]):
            y = module(x)
        y.sum().backward()
    with te.autocast(recipe=RECIPES["delayed"]):
        y = module(x)
    with pytest.raises(RuntimeError, match=r"rank 0 .* a forward under .* rank 1 a backward under"):
        if rank == 0:
            with te.autocast(recipe=RECIPES["delayed"]):
                module(x)
        else:
            y.sum().backward()


def use_one_name_twice(rank):
    """Twins of a name that a rank alone uses: which is which cannot be told."""
    copies = [te.Linear(WIDTH, WIDTH, name="a") for _ in range(2)]
    with (
        pytest.raises(
            RuntimeError, match=r"autocast: 2 modules named a .* on rank 0 of the .*, 1 on rank 1;"
        ),
        te.autocast(recipe=RECIPES["delayed"]),
    ):
        for module in copies[: 2 - rank]:
            module(torch.ones(2, WIDTH))


def use_one_name_later(rank):
    copies = [te.Linear(WIDTH, WIDTH, name="a") for _ in range(2)]
    with te.autocast(recipe=RECIPES["delayed"]):
        for module in copies[: 2 * rank]:
            module(torch.ones(2, WIDTH))
    with (
        pytest.raises(
            RuntimeError, match=r"1 modules named a .* on rank 0 .*, other ranks have used 2 before"
        ),
        te.autocast(recipe=RECIPES["delayed"]),
    ):
        for module in copies[: 1 - rank]:
            module(torch.ones(2, WIDTH))


MISFITS = (
    *(name_another_kind_the_same, use_another_kind_of_the_same_name_later),
    *(use_other_recipes, end_other_passes, use_one_name_twice, use_one_name_later),
)


@pytest.mark.slow  # may be the first to start the ranks
@pytest.mark.parametrize("function", MISFITS)
def test_ranks_that_do_not_fit_together_are_told_so(function):
    ranks(2).run(function)
