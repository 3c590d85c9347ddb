# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What holds under every recipe: calibration, recomputation, copies, threads, data parallelism."""

from __future__ import annotations

import copy
import itertools
import pickle
import threading

import pytest
import torch
import torch.utils.checkpoint
from torch.nn.parallel import DistributedDataParallel

import transformer_engine.pytorch as te
from helpers.modules import (
    FACTORIES,
    LINEAR_KINDS,
    assert_same,
    collect,
    make,
    make_input,
    output_gradient,
)
from helpers.modules import run as run_plain
from helpers.ranks import ranks
from helpers.recipes import HISTORY_LENGTH, RECIPES, STATEFUL
from helpers.tolerances import assert_identical
from transformer_engine.common.recipe import CustomRecipe, DelayedScaling

pytestmark = pytest.mark.usefixtures("one_thread")
recipes = pytest.mark.parametrize("recipe", RECIPES)
kinds = pytest.mark.parametrize("kind", LINEAR_KINDS)
weights = pytest.mark.parametrize("has_quantized_weights", [False, True], ids=["bf16", "quantized"])
IN, HIDDEN, FFN, HEADS = 24, 48, 72, 4  # no multiples of a block


def build(kind, recipe, has_quantized_weights=False, seed=3, **options):
    torch.manual_seed(seed)
    with te.quantized_model_init(has_quantized_weights, recipe=RECIPES[recipe]):
        return FACTORIES[kind](
            device=torch.get_default_device(), params_dtype=torch.bfloat16, **options
        )


def run(recipe, module, number, call=None, **keywords):
    """One step with data and random bits of its number: output and gradients."""
    module.zero_grad()
    x = make_input(6, IN, dtype=torch.bfloat16, seed=number)
    with te.autocast(recipe=RECIPES[recipe]):
        y = (call or module)(x, **keywords)
    torch.manual_seed(number)  # stochastic rounding
    y.backward(output_gradient(y))
    return {name: t.clone() for name, t in collect(module, x, y).items()}


def histories(module):
    return {
        key: history.clone() for key, (_, history) in (module.get_fp8_meta_tensors() or {}).items()
    }


# ---- calibration ---------------------------------------------------------------------------------


@recipes
@kinds
def test_calibration_computes_in_high_precision_and_observes_for_delayed_scaling(kind, recipe):
    module, plain = build(kind, recipe), build(kind, recipe)
    for number in (1, 2):
        x, other = (make_input(6, IN, dtype=torch.bfloat16, seed=number) for _ in range(2))
        with te.autocast(enabled=False, calibrating=True, recipe=RECIPES[recipe]):
            found = run_plain(module, x)
        assert_same(found, run_plain(plain, other))
    assert module.fp8_calibration and not module.fp8
    assert (module.get_extra_state().numel() > 0) == (recipe in STATEFUL)
    if recipe not in STATEFUL:
        fresh = build(kind, recipe)
        assert_same(run(recipe, module, 3), run(recipe, fresh, 3))
        return
    observed = histories(module)["scaling_fwd"][0]
    weight_amaxes = [p.abs().max().float() for p in module.parameters() if p.dim() == 2]
    assert observed[1::3].tolist() == [amax.item() for amax in weight_amaxes]
    assert (observed[0::3] > 0).all()


# ---- micro-batches, shared modules, recomputation ------------------------------------------------


class Shared(torch.nn.Module):
    """Two modules, each used twice in a forward."""

    def __init__(self, kind, recipe):
        super().__init__()
        self.first = build(kind, recipe)
        width = self.first.out_features if kind != "LayerNormMLP" else IN
        self.second = te.Linear(
            width, IN, device=torch.get_default_device(), params_dtype=torch.bfloat16
        )

    def forward(self, x):
        for _ in range(2):
            x = self.second(self.first(x))
        return x


CHECKPOINTS = {
    "te": te.checkpoint,
    "reentrant": lambda f, x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=True),
    "not reentrant": lambda f, x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False),
}


@recipes
@pytest.mark.parametrize("kind", ["LayerNormLinear", "LayerNormMLP"])
@pytest.mark.parametrize("how", CHECKPOINTS)
def test_recomputation_of_shared_modules_changes_neither_numbers_nor_state(how, kind, recipe):
    recomputing, plain = Shared(kind, recipe), Shared(kind, recipe)
    for number in range(1, 7):  # two micro-batches in each of three iterations
        found = run(recipe, recomputing, number, lambda x: CHECKPOINTS[how](recomputing, x))
        assert_same(found, run(recipe, plain, number))
    for one, other in zip(recomputing.children(), plain.children(), strict=True):
        assert_identical(one.get_extra_state(), other.get_extra_state())


@pytest.mark.parametrize("recipe", STATEFUL)
def test_a_step_of_a_shared_module_advances_its_state_once(recipe):
    module = Shared("LayerNormMLP", recipe)
    run(recipe, module, 1, lambda x: te.checkpoint(module, x))
    for history in histories(module.first).values():
        assert (history[-1] > 0).any() and not history[:-1].any()
        assert history.shape[0] == HISTORY_LENGTH


# ---- random bits ---------------------------------------------------------------------------------


def test_stochastic_rounding_follows_the_seed_and_not_the_threads():
    def gradients(threads, seed):
        torch.set_num_threads(threads)
        module = build("LayerNormMLP", "nvfp4")
        torch.manual_seed(seed)
        found = []
        for _ in range(2):
            module.zero_grad()
            x = make_input(300, IN, dtype=torch.bfloat16)
            with te.autocast(recipe=RECIPES["nvfp4"]):
                y = module(x)
            y.backward(output_gradient(y))
            found.append(x.grad)
        return found

    first, second = gradients(1, seed=5)
    assert not torch.equal(first, second)
    for other in (gradients(1, seed=5), gradients(2, seed=5)):
        assert_identical(other[0], first)
        assert_identical(other[1], second)
    assert not torch.equal(gradients(1, seed=6)[0], first)


# ---- layers of several modules -------------------------------------------------------------------


def make_layer(kind, recipe, has_quantized_weights=False, **options):
    torch.manual_seed(4)
    options = {
        "params_dtype": torch.bfloat16,
        "device": torch.get_default_device(),
        "attention_dropout": 0.0,
        **options,
    }
    with te.quantized_model_init(has_quantized_weights, recipe=RECIPES[recipe]):
        options["fuse_qkv_params"] = has_quantized_weights
        if kind == "MultiheadAttention":
            return te.MultiheadAttention(HIDDEN, HEADS, input_layernorm=True, **options)
        return te.TransformerLayer(HIDDEN, FFN, HEADS, hidden_dropout=0.0, **options)


def run_layer(recipe, layer, number, checkpoint=None, **keywords):
    layer.zero_grad()
    x = make_input(5, 3, HIDDEN, dtype=torch.bfloat16, seed=number)

    def call(inp):
        result = layer(inp, **keywords)
        return result[0] if isinstance(result, tuple) else result

    with te.autocast(recipe=RECIPES[recipe]):
        y = call(x) if checkpoint is None else checkpoint(call, x)
    torch.manual_seed(number)
    y.backward(output_gradient(y.detach()))
    return collect(layer, x, y)


@recipes
@weights
@pytest.mark.parametrize("kind", ["MultiheadAttention", "encoder", "swiglu"])
def test_layers_train_recompute_and_keep_weights(kind, recipe, has_quantized_weights):
    options = {"activation": "swiglu", "normalization": "RMSNorm"} if kind == "swiglu" else {}
    plain, *others = (
        make_layer(kind, recipe, has_quantized_weights, **options)
        for _ in range(2 + len(CHECKPOINTS))
    )
    for number in (1, 2):
        expected = run_layer(recipe, plain, number)
        assert len(expected) == 2 + len(list(plain.parameters()))
        assert all(value.isfinite().all() for value in expected.values())
        for layer, checkpoint in zip(others, CHECKPOINTS.values(), strict=False):
            assert_same(run_layer(recipe, layer, number, checkpoint), expected)
        if number == 1 or recipe not in STATEFUL:  # a kept weight keeps its scale
            found = run_layer(recipe, others[-1], number, is_first_microbatch=number == 1)
            assert_same(found, expected)


# ---- copies and threads --------------------------------------------------------------------------


@recipes
@weights
@kinds
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_between_steps_continues_alike(how, kind, recipe, has_quantized_weights):
    module = build(kind, recipe, has_quantized_weights)
    run(recipe, module, 1)
    twin = copy.deepcopy(module) if how == "deepcopy" else pickle.loads(pickle.dumps(module))
    for number in (2, 3):
        found = run(recipe, twin, number)
        assert_same(found, run(recipe, module, number))
        for each in (module, twin):
            torch.optim.SGD(each.parameters(), lr=0.1).step()


def test_threads_with_a_recipe_each_do_not_disturb_each_other():
    deterministic = [name for name in RECIPES if name != "nvfp4"]  # which draws

    def train(name, into):
        module = modules[name]
        into[name] = [run_without_seed(name, module, number) for number in range(4)]

    expected: dict[str, list] = {}
    modules = {name: build("LayerNormMLP", name) for name in deterministic}
    for name in deterministic:
        train(name, expected)
    for pair in itertools.combinations(deterministic, 2):
        modules.update({name: build("LayerNormMLP", name) for name in pair})
        found: dict[str, list] = {}
        threads = [threading.Thread(target=train, args=(name, found)) for name in pair]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name in pair:
            for one, other in zip(found[name], expected[name], strict=True):
                assert_same(one, other)


def run_without_seed(recipe, module, number):
    """As `run`, leaving the generator, which threads share, alone."""
    module.zero_grad()
    x = make_input(6, IN, dtype=torch.bfloat16, seed=number)
    with te.autocast(recipe=RECIPES[recipe]):
        y = module(x)
    y.backward(output_gradient(y))
    return {name: t.clone() for name, t in collect(module, x, y).items()}


# ---- data parallelism ----------------------------------------------------------------------------


def train_in_parallel(rank):
    """DDP's gradients are the mean of those of both ranks' batches."""
    for name in ("current", "block", "mxfp8", "hybrid"):
        module, twin = (build("LayerNormMLP", name) for _ in range(2))
        parallel = DistributedDataParallel(module)
        for number in (1, 2):
            run(name, module, 2 * number + rank, parallel)
            parts = [run(name, twin, 2 * number + other) for other in range(2)]
            for key, parameter in module.named_parameters():
                mean = (parts[0][key] / 2) + (parts[1][key] / 2)
                assert_identical(parameter.grad, mean, f"{name} {key}")


@pytest.mark.slow  # starts processes
def test_two_ranks_average_their_gradients():
    ranks(2).run(train_in_parallel)


# ---- frozen weights ------------------------------------------------------------------------------


class Counting(te.Quantizer):
    """Identity that notes the usages of each cast."""

    def __init__(self, role, log):
        super().__init__(rowwise=True, columnwise=True)
        self.role, self.log = role, log

    def quantize_impl(self, tensor):
        self.log.append((self.role.tensor_type, self.columnwise_usage, self.rowwise_usage))
        return tensor

    def update_quantized(self, src, dst, *, noop_flag=None):
        raise NotImplementedError

    def copy(self):
        return Counting(self.role, self.log)


@recipes
@kinds
def test_frozen_weights_cost_nothing(kind, recipe):
    """No gradient, none of its products, and no copy of the input is kept for it."""

    def kept_bytes(module):
        own = {p.data_ptr() for p in module.parameters()}
        kept: list[int] = []

        def pack(tensor):
            if tensor.data_ptr() not in own:
                kept.append(tensor.numel() * tensor.element_size())
            return tensor

        x = make_input(40, IN, dtype=torch.bfloat16)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            with te.autocast(recipe=RECIPES[recipe]):
                y = module(x)
            y.backward(output_gradient(y))
        assert x.grad is not None
        return sum(kept)

    trained, frozen = build(kind, recipe), build(kind, recipe)
    matrices = [name for name, p in frozen.named_parameters() if p.dim() == 2]
    for name in matrices:
        frozen.get_parameter(name).requires_grad_(False)
    saved = kept_bytes(trained) - kept_bytes(frozen)
    element_bits = 4 if recipe == "nvfp4" else 8
    assert saved >= sum(40 * trained.get_parameter(n).shape[1] for n in matrices) * element_bits / 8
    for name, parameter in frozen.named_parameters():
        assert (parameter.grad is None) == (name in matrices)


@kinds
def test_frozen_weights_ask_for_no_columnwise_copies(kind):
    log: list[tuple[str, bool, bool]] = []
    recipe = CustomRecipe(
        lambda role: te.IdentityQuantizer() if role is None else Counting(role, log)
    )
    module = make(kind)
    for parameter in module.parameters():
        if parameter.dim() == 2:
            parameter.requires_grad_(False)
    with te.autocast(recipe=recipe):
        y = module(make_input(6, IN))
    y.backward(output_gradient(y))
    gemms = module.num_gemms
    assert log.count(("input", False, True)) == gemms
    assert log.count(("weight", True, True)) == gemms
    assert log.count(("grad_output", False, True)) == gemms
    assert len(log) == 3 * gemms


# ---- other lengths, other recipes ----------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Recipe type changed")
@kinds
def test_history_lengths_and_recipes_can_change_between_iterations(kind):
    module = build(kind, "delayed")

    def step(recipe, number):
        x = make_input(6, IN, dtype=torch.bfloat16, seed=number)
        with te.autocast(recipe=recipe):
            y = module(x)
        y.backward(output_gradient(y))

    short, long = (DelayedScaling(amax_history_len=length) for length in (4, 16))
    for number in range(3):
        step(short, number)
    before = histories(module)
    with te.autocast(recipe=long):
        module.init_fp8_metadata()
    for key, history in histories(module).items():
        assert history.shape[0] == 16
        assert_identical(history[-3:], before[key][-3:])
        assert not history[1:-3].any()
    step(long, 4)
    for name in ("current", "block", "mxfp8", "nvfp4", "hybrid"):
        step(RECIPES[name], 5)
    fresh = build(kind, "delayed", seed=8)
    fresh.load_state_dict(module.state_dict())
    assert_same(run("delayed", module, 6), run("delayed", fresh, 6))
