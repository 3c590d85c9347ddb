# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Recompute: same results, same random numbers, every kind of callable and argument."""

import warnings

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.ranks import ranks
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling
from transformer_engine.pytorch import distributed
from transformer_engine.pytorch.distributed import CudaRNGStatesTracker, checkpoint
from transformer_engine.pytorch.quantization import FP8GlobalStateManager

MODES = pytest.mark.parametrize("use_reentrant", [True, False], ids=["reentrant", "hooks"])


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.calls = 0

    def forward(self, x, scale=None, *, shift=None):
        self.calls += 1
        y = torch.relu(self.linear(x))
        y = y if scale is None else y * scale
        return y if shift is None else y + shift

    def method(self, x):
        return self.forward(x)


def make_input(seed=1):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def gradients(run, block, inputs):
    """(output, gradients of inputs and parameters) of one forward and backward pass."""
    block.zero_grad()
    for value in inputs:
        value.grad = None
    output = run()
    output.square().sum().backward()
    leaves = [*inputs, *block.parameters()]
    return [output.detach(), *(leaf.grad.clone() for leaf in leaves)]


def assert_same(actual, expected):
    assert len(actual) == len(expected)
    assert all(torch.equal(x, y) for x, y in zip(actual, expected, strict=True))


@MODES
def test_results_equal_those_without_recompute(use_reentrant):
    block, x = Block(), make_input()
    expected = gradients(lambda: block(x), block, [x])
    block.calls = 0
    actual = gradients(lambda: checkpoint(block, x, use_reentrant=use_reentrant), block, [x])
    assert_same(actual, expected)
    assert block.calls == 2


@MODES
def test_parameters_and_arguments_that_are_returned_stay_what_they_are(use_reentrant):
    """A layer with `return_bias` returns its parameter; torch's own recomputation never ends."""
    block, x = te.Linear(8, 8, device="cpu", return_bias=True), make_input()

    def run(recomputes):
        x.grad = None
        block.zero_grad()

        def call(value):
            return (*block(value), value, None)

        results = checkpoint(call, x, use_reentrant=use_reentrant) if recomputes else call(x)
        output, bias, argument, nothing = results
        assert nothing is None
        (output * bias + argument).square().sum().backward()
        return [output.detach(), x.grad, block.weight.grad, block.bias.grad]

    expected = [tensor.clone() for tensor in run(recomputes=False)]
    assert_same(run(recomputes=True), expected)
    assert block.bias.is_leaf
    assert block.bias.grad_fn is None


@MODES
@pytest.mark.parametrize("kind", ["bound method", "lambda", "function"])
def test_plain_callables_work(use_reentrant, kind):
    block, x = Block(), make_input()

    def function(value):
        return block(value)

    run = {"bound method": block.method, "lambda": lambda v: block(v), "function": function}[kind]
    expected = gradients(lambda: block(x), block, [x])
    actual = gradients(lambda: checkpoint(run, x, use_reentrant=use_reentrant), block, [x])
    assert_same(actual, expected)


@MODES
def test_keyword_tensors_get_gradients(use_reentrant):
    block, x, scale = Block(), make_input(1), make_input(2)
    shift_source = make_input(3)

    def run(wrap):
        shift = shift_source * 2  # not a leaf: its graph is used by others too
        output = wrap(x, scale=scale, shift=shift)
        return output + shift

    leaves = [x, scale, shift_source]
    expected = gradients(lambda: run(block), block, leaves)

    def wrapped(*args, **kwargs):
        return checkpoint(block, *args, use_reentrant=use_reentrant, **kwargs)

    assert_same(gradients(lambda: run(wrapped), block, leaves), expected)


@MODES
def test_none_and_other_objects_pass_through(use_reentrant):
    def function(x, nothing, number, *, text):
        assert (nothing, number, text) == (None, 3, "t")
        return x * number, None, text

    x = make_input()
    output, nothing, text = checkpoint(function, x, None, 3, text="t", use_reentrant=use_reentrant)
    output.sum().backward()
    assert (nothing, text) == (None, "t")
    assert torch.equal(x.grad, torch.full_like(x, 3.0))


@MODES
@pytest.mark.parametrize("pass_tracker", [True, False])
def test_dropout_from_default_and_named_streams_is_replayed(use_reentrant, pass_tracker):
    tracker = CudaRNGStatesTracker()
    tracker.add("model-parallel-rng", 11)

    def function(x):
        y = torch.nn.functional.dropout(x, 0.5)
        with tracker.fork():
            return torch.nn.functional.dropout(y, 0.5)

    x = make_input()
    getter = (lambda: tracker) if pass_tracker else None
    output = checkpoint(function, x, get_rng_state_tracker=getter, use_reentrant=use_reentrant)
    default_after, named_after = torch.get_rng_state(), tracker.states_["model-parallel-rng"]
    state_after = named_after.get_state()
    output.sum().backward()
    assert torch.equal(x.grad, output.detach() / x.detach())
    # The second run used up nothing.
    assert torch.equal(torch.get_rng_state(), default_after)
    assert tracker.states_["model-parallel-rng"] is named_after
    assert torch.equal(named_after.get_state(), state_after)


class TensorStateTracker:
    """A tracker of another library: states are tensors, replaced rather than changed."""

    def __init__(self, seed):
        self.state = torch.Generator().manual_seed(seed).get_state()

    def get_states(self):
        return {"only": self.state}

    def set_states(self, states):
        self.state = states["only"]

    def draw(self, shape):
        generator = torch.Generator()
        generator.set_state(self.state)
        values = torch.rand(shape, generator=generator)
        self.state = generator.get_state()
        return values


@MODES
def test_trackers_of_other_libraries_are_replayed(use_reentrant):
    tracker = TensorStateTracker(5)
    x = make_input()
    output = checkpoint(
        lambda v: v * tracker.draw(v.shape),
        x,
        get_rng_state_tracker=lambda: tracker,
        use_reentrant=use_reentrant,
    )
    state_after = tracker.state.clone()
    output.sum().backward()
    assert torch.allclose(x.grad * x.detach(), output.detach())
    assert torch.equal(tracker.state, state_after)


@MODES
def test_torch_autocast_is_restored(use_reentrant):
    block, x = Block(), make_input()

    def run(wrap):
        with torch.autocast("cpu", torch.bfloat16):
            return wrap(x).float()

    expected = gradients(lambda: run(block), block, [x])

    def wrapped(value):
        return checkpoint(block, value, use_reentrant=use_reentrant)

    assert_same(gradients(lambda: run(wrapped), block, [x]), expected)


class RegionReader(torch.nn.Module):
    """Not one of ours: asks for the region in force, as user code may."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        manager = FP8GlobalStateManager
        self.seen.append((manager.is_fp8_enabled(), manager.get_fp8_recipe()))
        return x * x


@MODES
def test_the_quantization_region_is_in_force_again(use_reentrant):
    reader, recipe = RegionReader(), Float8CurrentScaling()
    with te.autocast(recipe=recipe):
        output = checkpoint(reader, make_input(), use_reentrant=use_reentrant)
    output.sum().backward()
    assert [(enabled, seen is recipe) for enabled, seen in reader.seen] == [(True, True)] * 2
    assert not FP8GlobalStateManager.is_fp8_enabled()


def train(recipe, run):
    """Outputs, gradients and scaling state of three steps of one layer."""
    FP8GlobalStateManager.reset()
    torch.manual_seed(0)
    layer = te.Linear(32, 32)
    seen = []
    for step in range(3):
        x = torch.randn(16, 32, generator=torch.Generator().manual_seed(step)).requires_grad_()
        output = run(layer, x, recipe)
        output.square().sum().backward()
        seen += [output.detach(), x.grad, layer.weight.grad.clone()]
        layer.weight.grad = None
        if recipe.delayed():
            for key in ("scaling_fwd", "scaling_bwd"):
                state = layer.fp8_meta[key]
                seen += [state.scale.clone(), state.amax_history.clone()]
    FP8GlobalStateManager.reset()
    return seen


def outer_region(call):
    def run(layer, x, recipe):
        with te.autocast(recipe=recipe):
            return call(layer, x)

    return run


def inner_region(call):
    def run(layer, x, recipe):
        def function(value):
            with te.autocast(recipe=recipe):
                return layer(value)

        return call(function, x)

    return run


@MODES
@pytest.mark.parametrize("region", [outer_region, inner_region])
@pytest.mark.parametrize("wrap", [checkpoint, torch.utils.checkpoint.checkpoint])
@pytest.mark.parametrize(
    "recipe",
    [DelayedScaling(amax_history_len=4), Float8CurrentScaling()],
    ids=["delayed", "current"],
)
def test_quantized_layers_train_identically(use_reentrant, region, wrap, recipe):
    expected = train(recipe, region(lambda function, x: function(x)))
    actual = train(
        recipe, region(lambda function, x: wrap(function, x, use_reentrant=use_reentrant))
    )
    assert_same(actual, expected)


@MODES
def test_the_flags_tell_the_two_runs_apart(use_reentrant):
    seen = []

    def function(x):
        seen.append(
            (
                distributed.is_fp8_activation_recompute_enabled(),
                distributed.in_fp8_activation_recompute_phase(),
            )
        )
        return x * x  # which saves x: without saved tensors nothing is recomputed

    checkpoint(function, make_input(), use_reentrant=use_reentrant).sum().backward()
    assert seen == [(True, False), (True, True)]
    assert distributed.is_fp8_activation_recompute_enabled() is False
    with distributed.activation_recompute_forward(activation_recompute=True, recompute_phase=True):
        with distributed.activation_recompute_forward():
            assert distributed.in_fp8_activation_recompute_phase() is False
        assert distributed.in_fp8_activation_recompute_phase() is True


def test_without_gradients_the_function_just_runs():
    seen = []

    def function(x):
        seen.append(distributed.is_fp8_activation_recompute_enabled())
        return x * 2

    with torch.no_grad():
        assert not checkpoint(function, make_input()).requires_grad
    assert seen == [True]


def test_reentrant_without_an_input_that_needs_gradients_gives_none_and_no_warning():
    block, x = Block(), make_input().detach()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output = checkpoint(block, x)
    assert not output.requires_grad


def test_reentrant_outputs_without_gradients_are_an_error_in_the_backward_pass():
    def function(x):
        return x.detach() * 2

    output = checkpoint(function, make_input())
    with pytest.raises(RuntimeError, match="requires_grad"):
        output.sum().backward()


@MODES
def test_nested_checkpoints(use_reentrant):
    block, x = Block(), make_input()
    expected = gradients(lambda: block(block(x)), block, [x])

    def inner(value):
        return checkpoint(block, value, use_reentrant=use_reentrant)

    def outer(value):
        return inner(inner(value))

    actual = gradients(lambda: checkpoint(outer, x, use_reentrant=use_reentrant), block, [x])
    assert_same(actual, expected)


def test_the_old_positional_order_is_accepted_with_a_warning():
    block, x = Block(), make_input()
    expected = gradients(lambda: block(x), block, [x])
    with pytest.warns(DeprecationWarning, match="by position"):
        actual = gradients(lambda: checkpoint(block, False, None, None, x), block, [x])
    assert_same(actual, expected)


def test_a_bool_for_the_function_is_not_taken_for_the_old_order():
    output = checkpoint(lambda flag, x: x * 2 if flag else x, True, make_input())
    assert torch.equal(output, make_input() * 2)


def test_torch_options_reach_torch():
    with pytest.raises(ValueError, match="context_fn"):
        checkpoint(Block(), make_input(), context_fn=lambda: None)
    entered = []

    class Context:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            entered.append(self.name)

        def __exit__(self, *args):
            return None

    output = checkpoint(
        Block(),
        make_input(),
        use_reentrant=False,
        context_fn=lambda: (Context("forward"), Context("recompute")),
        determinism_check="none",
        debug=False,
    )
    output.sum().backward()
    assert entered == ["forward", "recompute"]


def test_distributed_activations_need_torch_distributed():
    with pytest.raises(RuntimeError, match="distribute_saved_activations is True"):
        checkpoint(Block(), make_input(), distribute_saved_activations=True)


def test_distributed_activations_have_no_effect_without_reentrance():
    with pytest.warns(UserWarning, match="no effect"):
        checkpoint(
            Block(), make_input(), distribute_saved_activations=True, use_reentrant=False
        ).sum().backward()


def distribute_on_two_ranks(rank):
    block, x = Block(), make_input()
    expected = gradients(lambda: block(x), block, [x])
    shards = []
    split = distributed.recompute.split_tensor_into_1d_equal_chunks

    def record(tensor, *args, **kwargs):
        shards.append(split(tensor, *args, **kwargs))
        return shards[-1]

    distributed.recompute.split_tensor_into_1d_equal_chunks = record
    try:
        actual = gradients(
            lambda: checkpoint(block, x, distribute_saved_activations=True), block, [x]
        )
    finally:
        distributed.recompute.split_tensor_into_1d_equal_chunks = split
    assert_same(actual, expected)
    assert [tuple(shard.shape) for shard in shards] == [(x.numel() // 2,)]
    with pytest.raises(ValueError, match="the first argument is of 3 elements"):
        checkpoint(block, torch.zeros(3), distribute_saved_activations=True)
    with pytest.raises(ValueError, match="the first argument is missing"):
        checkpoint(block, distribute_saved_activations=True)


@pytest.mark.slow  # torch imports its compiler in every rank
def test_saved_inputs_are_spread_over_the_ranks():
    ranks(2).run(distribute_on_two_ranks)


@pytest.mark.parametrize(
    ("function", "options", "received"),
    [
        (3, {}, "function is 3; it must be callable"),
        (None, {}, "function is None; it must be callable"),
        (abs, {"use_reentrant": "x"}, "use_reentrant is 'x'; it must be True or False"),
        (abs, {"use_reentrant": None}, "use_reentrant is None; it must be True or False"),
        (abs, {"distribute_saved_activations": "x"}, "distribute_saved_activations is 'x'"),
        (abs, {"get_rng_state_tracker": "x"}, "get_rng_state_tracker is 'x'; it must be callable"),
        (abs, {"tp_group": "x"}, "tp_group is 'x'; it must be a torch.distributed.ProcessGroup"),
    ],
)
@pytest.mark.parametrize("with_grad", [False, True])
def test_options_of_another_kind_are_refused(function, options, received, with_grad):
    with (
        torch.set_grad_enabled(with_grad),
        pytest.raises(TypeError, match=f"checkpoint: {received}"),
    ):
        checkpoint(function, make_input(), **options)


def distribute_under_a_recipe(rank):
    """Halves of four ranks keep their parts of the first argument, of two modules in a row."""
    groups = [torch.distributed.new_group([0, 1]), torch.distributed.new_group([2, 3])]
    recipe = DelayedScaling(amax_history_len=4)
    torch.manual_seed(3)
    layers = torch.nn.Sequential(te.LayerNormLinear(16, 16), te.LayerNormMLP(16, 32)).to("cpu")
    twin = torch.nn.Sequential(te.LayerNormLinear(16, 16), te.LayerNormMLP(16, 32)).to("cpu")
    twin.load_state_dict(layers.state_dict())
    for step in range(2):
        results = []
        for model, is_distributed in ((layers, True), (twin, False)):
            x = make_input(step).view(2, 16).detach().requires_grad_()
            with te.autocast(recipe=recipe):
                y = x * 1  # not a leaf
                for layer in model:
                    y = checkpoint(
                        layer,
                        y,
                        distribute_saved_activations=is_distributed,
                        tp_group=groups[rank // 2] if is_distributed else None,
                    )
            model.zero_grad()
            y.square().sum().backward()
            results.append([y.detach(), x.grad, *(p.grad.clone() for p in model.parameters())])
        assert_same(*results)
    for layer, other in zip(layers, twin, strict=True):
        for key, buffers in layer.get_fp8_meta_tensors().items():
            assert_same(buffers, other.get_fp8_meta_tensors()[key])


@pytest.mark.slow  # may be the first to start the ranks
def test_saved_inputs_are_spread_over_groups_under_a_recipe():
    ranks(4).run(distribute_under_a_recipe)
