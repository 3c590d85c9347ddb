# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Modules under activation recomputation: outputs, gradients and scaling state are those without,
bit for bit, in both modes of torch.utils.checkpoint and of checkpoint.
"""

import pytest
import torch
import torch.utils.checkpoint

import transformer_engine.pytorch as te
from helpers.generators import random_tensor
from helpers.modules import IN, KINDS, LINEAR_KINDS, assert_same, make, make_input, output_gradient
from helpers.modules import recipe_state as state_of
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling
from transformer_engine.pytorch.quantization import FP8GlobalStateManager

RECIPES = {
    "none": None,
    "delayed": DelayedScaling(amax_history_len=3),
    "current": Float8CurrentScaling(),
}
RECIPE_NAMES = pytest.mark.parametrize("recipe_name", RECIPES)


def _by(function, use_reentrant):
    def wrap(run, *args):
        return function(run, *args, use_reentrant=use_reentrant)

    return wrap


WRAPPERS = {
    "torch reentrant": _by(torch.utils.checkpoint.checkpoint, True),
    "torch hooks": _by(torch.utils.checkpoint.checkpoint, False),
    "te reentrant": _by(te.checkpoint, True),
    "te hooks": _by(te.checkpoint, False),
}
MODES = pytest.mark.parametrize("mode", WRAPPERS)


SAID_BY_NOBODY = (
    "torch's reentrant mode runs forward without grad mode, so that regions inside look like "
    "evaluation; checkpoint tells them apart"
)


def plain(run, *args):
    return run(*args)


def region(recipe):
    return te.autocast(enabled=recipe is not None, recipe=recipe)


def train(scenario, wrap, recipe, steps=3):
    """Everything a scenario leaves behind, after each of several steps."""
    FP8GlobalStateManager.reset()
    model = scenario.model()
    found = {}
    for step in range(steps):
        for parameter in model.parameters():
            parameter.grad = None
        for name, value in scenario.step(model, wrap, recipe, step).items():
            found[f"{step}.{name}"] = value.clone()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                found[f"{step}.{name}.grad"] = parameter.grad
        if recipe is not None and recipe.delayed():
            for index, module in enumerate(model.modules()):
                if "scaling_fwd" in getattr(module, "fp8_meta", {}):
                    for name, value in state_of(module).items():
                        found[f"{step}.{index}.{name}"] = value
        with torch.no_grad():  # so that a wrong gradient changes what follows
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.01 * parameter.grad
    FP8GlobalStateManager.reset()
    return found


def check(scenario, mode, recipe_name):
    recipe = RECIPES[recipe_name]
    expected = train(scenario, plain, recipe)
    assert_same(train(scenario, WRAPPERS[mode], recipe), expected)


def step_input(step, rows=6):
    return (random_tensor((rows, IN), seed=50 + step) * (1 + step)).requires_grad_()


class Scenario:
    """One forward of `function` under a region, one backward after it."""

    def __init__(self, function, model, region_is_inside=False):
        self.function = function
        self.make_model = model
        self.region_is_inside = region_is_inside

    def model(self):
        return self.make_model()

    def forward(self, model, wrap, recipe, x):
        def inside(value):
            with region(recipe):
                return self.function(model, value)

        if self.region_is_inside:
            return wrap(inside, x)
        with region(recipe):
            return wrap(lambda value: self.function(model, value), x)

    def step(self, model, wrap, recipe, step):
        x = step_input(step)
        output = self.forward(model, wrap, recipe, x)
        output.backward(output_gradient(output))
        return {"output": output.detach(), "inp": x.grad}


def square(**keywords):
    """A Linear that can be applied to its own output."""
    module = te.Linear(IN, IN, device=torch.get_default_device(), **keywords)
    with torch.no_grad():
        module.weight.copy_(random_tensor((IN, IN), seed=4) * 0.2)
    return module


INSIDE = pytest.mark.parametrize("is_inside", [False, True], ids=["region around", "region inside"])


@MODES
@RECIPE_NAMES
@INSIDE
@pytest.mark.parametrize("kind", KINDS)
def test_every_module(mode, recipe_name, is_inside, kind):
    def function(module, x):
        return module(x)

    check(Scenario(function, lambda: make(kind), is_inside), mode, recipe_name)


@MODES
@RECIPE_NAMES
@INSIDE
def test_a_module_called_several_times(mode, recipe_name, is_inside):
    def function(module, x):
        return module(torch.tanh(module(x)) + module(2 * x))

    check(Scenario(function, square, is_inside), mode, recipe_name)


@MODES
@RECIPE_NAMES
@INSIDE
def test_several_modules_and_plain_layers(mode, recipe_name, is_inside):
    def model():
        torch.manual_seed(5)
        return torch.nn.Sequential(
            te.LayerNormLinear(IN, 32, device=torch.get_default_device()),
            torch.nn.GELU(),
            torch.nn.Linear(32, IN),
            te.LayerNormMLP(IN, 40, device=torch.get_default_device(), activation="swiglu"),
            te.RMSNorm(IN, device=torch.get_default_device()),
        )

    check(Scenario(lambda module, x: module(x) + x, model, is_inside), mode, recipe_name)


@MODES
@pytest.mark.parametrize("recipe_name", ["delayed", "current"])
def test_regions_of_their_own_around_each_call(mode, recipe_name):
    # Two steps of delayed scaling in one checkpoint: the calls have different scales.
    recipe = RECIPES[recipe_name]

    def function(module, x):
        with te.autocast(recipe=recipe):
            y = module(x)
        with te.autocast(recipe=recipe):
            return module(torch.tanh(y))

    if mode == "torch reentrant" and recipe_name == "delayed":
        pytest.skip(SAID_BY_NOBODY)
    check(
        Scenario(function, square, region_is_inside=False), mode, "none" if False else recipe_name
    )


@MODES
@pytest.mark.parametrize("recipe_name", ["delayed", "current"])
def test_calls_in_and_out_of_a_region(mode, recipe_name):
    def function(module, x):
        y = module(x)
        with te.autocast(enabled=False):
            y = module(torch.tanh(y))
        return module(torch.tanh(y))

    check(Scenario(function, square), mode, recipe_name)


@MODES
@pytest.mark.parametrize("inner_mode", WRAPPERS)
@RECIPE_NAMES
@INSIDE
def test_checkpoints_inside_checkpoints(mode, inner_mode, recipe_name, is_inside):
    recipe = RECIPES[recipe_name]

    def function_of(inner):
        def function(module, x):
            y = module(x)
            y = inner(lambda value: module(torch.tanh(value)), y)
            return module(torch.tanh(inner(module, y)))

        return function

    def frozen():
        # Reentrant checkpoints add up the gradients of shared parameters in another order.
        return square().requires_grad_(False)

    expected = train(Scenario(function_of(plain), frozen, is_inside), plain, recipe)
    nested = Scenario(function_of(WRAPPERS[inner_mode]), frozen, is_inside)
    assert_same(train(nested, WRAPPERS[mode], recipe), expected)


@MODES
@pytest.mark.parametrize("inner_mode", WRAPPERS)
@RECIPE_NAMES
def test_every_layer_in_a_checkpoint_inside_one_around_all(mode, inner_mode, recipe_name):
    def function_of(inner):
        def function(layers, x):
            for layer in layers:
                x = inner(layer, torch.tanh(x))
            return x

        return function

    def model():
        return torch.nn.ModuleList([square(), make("LayerNormMLP"), square()])

    recipe = RECIPES[recipe_name]
    expected = train(Scenario(function_of(plain), model), plain, recipe)
    nested = Scenario(function_of(WRAPPERS[inner_mode]), model)
    assert_same(train(nested, WRAPPERS[mode], recipe), expected)


@MODES
@RECIPE_NAMES
def test_consecutive_checkpoints_of_one_module(mode, recipe_name):
    # No other node lies between them.
    class Chain(Scenario):
        def forward(self, model, wrap, recipe, x):
            with region(recipe):
                return wrap(model, wrap(model, wrap(model, x)))

    check(Chain(None, square), mode, recipe_name)


class Pipeline(Scenario):
    """Several micro-batches in flight: warm-up forwards, then one forward and one backward in turn,
    oldest first, then the rest.
    """

    def step(self, model, wrap, recipe, step, in_flight=3, count=7):
        inputs = [step_input(10 * step + i) for i in range(count)]
        outputs, found = [], {}
        for i in range(count + in_flight):
            if i < count:
                outputs.append(self.forward(model, wrap, recipe, inputs[i]))
                found[f"output{i}"] = outputs[i].detach()
            if i >= in_flight:
                j = i - in_flight
                outputs[j].backward(output_gradient(outputs[j]))
                found[f"inp{j}"] = inputs[j].grad
        return found


@MODES
@RECIPE_NAMES
@INSIDE
@pytest.mark.parametrize("kind", LINEAR_KINDS)
def test_several_micro_batches_in_flight(mode, recipe_name, is_inside, kind):
    if (mode, recipe_name, is_inside) == ("torch reentrant", "delayed", True):
        pytest.skip(SAID_BY_NOBODY)
    check(Pipeline(lambda module, x: module(x), lambda: make(kind), is_inside), mode, recipe_name)


@MODES
@RECIPE_NAMES
def test_micro_batches_whose_backward_comes_newest_first(mode, recipe_name):
    class Reversed(Scenario):
        def step(self, model, wrap, recipe, step):
            inputs = [step_input(10 * step + i) for i in range(4)]
            outputs = [self.forward(model, wrap, recipe, x) for x in inputs]
            for output in reversed(outputs):
                output.backward(output_gradient(output))
            return {f"inp{i}": x.grad for i, x in enumerate(inputs)}

    check(Reversed(lambda module, x: module(x), square), mode, recipe_name)


@MODES
@RECIPE_NAMES
def test_evaluation_between_forward_and_backward(mode, recipe_name):
    class Interrupted(Scenario):
        def step(self, model, wrap, recipe, step):
            x = step_input(step)
            output = self.forward(model, wrap, recipe, x)
            with torch.no_grad():
                in_high_precision = model(x.detach())
                with region(recipe):
                    evaluated = wrap(model, x.detach())
            with torch.inference_mode():
                model(x.detach())
            output.backward(output_gradient(output))
            values = {"output": output.detach(), "inp": x.grad}
            return {**values, "high": in_high_precision, "evaluated": evaluated}

    with pytest.warns(UserWarning) if mode == "torch reentrant" else _nothing():
        check(Interrupted(lambda module, x: module(x), square), mode, recipe_name)


class _nothing:
    def __enter__(self):
        return None

    def __exit__(self, *error):
        return None


@pytest.mark.parametrize("mode", ["torch hooks", "te hooks"])
@RECIPE_NAMES
def test_two_backwards_through_one_graph(mode, recipe_name):
    class Twice(Scenario):
        def step(self, model, wrap, recipe, step):
            x = step_input(step)
            output = self.forward(model, wrap, recipe, x)
            output.backward(output_gradient(output), retain_graph=True)
            output.backward(2 * output_gradient(output))
            return {"inp": x.grad}

    check(Twice(lambda module, x: module(torch.tanh(module(x))), square), mode, recipe_name)


@MODES
@pytest.mark.parametrize("recipe_name", ["delayed", "current"])
def test_cached_weights(mode, recipe_name):
    class Microbatches(Scenario):
        def step(self, model, wrap, recipe, step):
            found = {}
            for i, first in enumerate((True, False)):
                x = step_input(10 * step + i)
                with region(recipe):
                    output = wrap(
                        lambda value, first=first: model(value, is_first_microbatch=first), x
                    )
                output.backward(output_gradient(output))
                found.update({f"output{i}": output.detach(), f"inp{i}": x.grad})
            return found

    check(Microbatches(None, square), mode, recipe_name)


@MODES
@pytest.mark.parametrize("recipe_name", ["delayed", "current"])
def test_main_grads(mode, recipe_name):
    def model():
        module = square(fuse_wgrad_accumulation=True)
        module.weight.main_grad = torch.zeros(IN, IN)
        return module

    class Fused(Scenario):
        def step(self, model, wrap, recipe, step):
            found = super().step(model, wrap, recipe, step)
            return {**found, "main_grad": model.weight.main_grad}

    check(Fused(lambda module, x: module(torch.tanh(module(x))), model), mode, recipe_name)


@MODES
@RECIPE_NAMES
@INSIDE
@pytest.mark.parametrize("amp_is_inside", [False, True])
def test_torch_autocast(mode, recipe_name, is_inside, amp_is_inside):
    def model():
        torch.manual_seed(5)
        return torch.nn.Sequential(
            te.LayerNormLinear(IN, 32, device=torch.get_default_device()),
            torch.nn.Linear(32, IN),
            square(),
        )

    class Amp(Scenario):
        def forward(self, model, wrap, recipe, x):
            if amp_is_inside:
                return super().forward(model, wrap, recipe, x)
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(model, wrap, recipe, x)

    def function(module, x):
        if amp_is_inside:
            with torch.autocast("cpu", torch.bfloat16):
                return module(x)
        return module(x)

    check(Amp(function, model, is_inside), mode, recipe_name)


@MODES
@RECIPE_NAMES
def test_frozen_weights_and_branches(mode, recipe_name):
    def model():
        module = torch.nn.ModuleList([square(), square(bias=False), square()])
        module[0].weight.requires_grad_(False)
        module[1].weight.requires_grad_(False)
        return module

    class Branches(Scenario):
        def forward(self, model, wrap, recipe, x):
            with region(recipe):
                parts = wrap(lambda v: (model[1](model[0](v)), model[2](v)), x)
            # Reentrant checkpoints give zeros to an output that is not used, which torch does not.
            return parts[0] if "hooks" in mode else sum(parts)

    check(Branches(None, model), mode, recipe_name)


@MODES
@RECIPE_NAMES
def test_the_mlps_own_recomputation_inside(mode, recipe_name):
    def function(module, x):
        return module(x)

    check(Scenario(function, lambda: make("LayerNormMLP", checkpoint=True)), mode, recipe_name)


@MODES
def test_recomputation_needs_no_region_in_backward(mode):
    # The region of the first run is what counts, not the one around backward.
    module, x = square(), make_input()
    recipe, other = RECIPES["current"], DelayedScaling()
    with te.autocast(recipe=recipe):
        output = WRAPPERS[mode](module, x)
    twin, x_twin = square(), make_input()
    with te.autocast(recipe=recipe):
        expected = twin(x_twin)
    expected.backward(output_gradient(expected))
    with te.autocast(recipe=other):
        output.backward(output_gradient(output))
    assert_same({"inp": x.grad}, {"inp": x_twin.grad})
    assert "scaling_fwd" in module.fp8_meta
    assert module.fp8_meta["recipe"] is recipe


def test_more_forwards_in_flight_than_are_remembered():
    module = square()
    recipe = RECIPES["delayed"]
    wrap = WRAPPERS["te reentrant"]
    with te.autocast(recipe=recipe):
        oldest = wrap(module, make_input())
    for _ in range(600):
        with te.autocast(recipe=recipe):
            wrap(module, make_input())
    with pytest.raises(RuntimeError, match="recompute: the delayed-scaling scales of the forward"):
        oldest.sum().backward()


@pytest.mark.parametrize(
    "around",
    ["nothing", "hooks", "first", "all", "first, te", "all, te", "reentrant", "compiled"],
)
def test_a_frozen_first_module_leaves_the_backward_update_to_the_next(around):
    """Only a module with a backward can advance the backward scales at its end."""
    first = te.Linear(
        32, 32, params_dtype=torch.bfloat16, device=torch.get_default_device()
    ).requires_grad_(False)
    second = te.Linear(32, 32, params_dtype=torch.bfloat16, device=torch.get_default_device())

    def both(x):
        return second(first(x))

    def hooked(x):
        with torch.autograd.graph.save_on_cpu():
            return both(x)

    def torch_checkpoint(function, x, use_reentrant=False):
        return torch.utils.checkpoint.checkpoint(function, x, use_reentrant=use_reentrant)

    call = {
        "nothing": both,
        "hooks": hooked,
        "first": lambda x: second(torch_checkpoint(first, x)),
        "all": lambda x: torch_checkpoint(both, x),
        "first, te": lambda x: second(te.checkpoint(first, x, use_reentrant=False)),
        "all, te": lambda x: te.checkpoint(both, x, use_reentrant=False),
        "reentrant": lambda x: second(torch_checkpoint(first, x, use_reentrant=True)),
        "compiled": torch.compile(both, backend="aot_eager", fullgraph=True),
    }[around]
    for step in range(3):
        torch.manual_seed(step)
        x = torch.randn(16, 32, dtype=torch.bfloat16)
        second.zero_grad()
        with te.autocast(recipe=DelayedScaling()):
            output = call(x)
        (output.float().square() * 1e-6).sum().backward()
    assert second.fp8_meta["scaling_bwd"].scale[0] > 1e6
    assert second.weight.grad.count_nonzero() > 0
