# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""torch.compile: whole graphs, the numbers of eager mode, and no needless compilation."""

from __future__ import annotations

import contextlib
import copy
import gc
import shutil
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.utils.checkpoint
from torch import nn

import transformer_engine.pytorch as te
from helpers.generators import random_tensor
from helpers.recipes import RECIPES as EVERY_RECIPE
from helpers.tolerances import assert_identical
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling, Recipe
from transformer_engine.pytorch.cpp_extensions import steps

HIDDEN, FFN = 16, 24
# Traces with autograd and runs the recorded operators one by one: torch's own then give eager bits.
BACKEND = "aot_eager"

MODULES: dict[str, Callable[..., nn.Module]] = {
    "Linear": lambda **kw: te.Linear(HIDDEN, FFN, device=torch.get_default_device(), **kw),
    "LayerNorm": lambda **kw: te.LayerNorm(HIDDEN, device=torch.get_default_device(), **kw),
    "RMSNorm": lambda **kw: te.RMSNorm(HIDDEN, device=torch.get_default_device(), **kw),
    "LayerNormLinear": lambda **kw: te.LayerNormLinear(
        HIDDEN, FFN, device=torch.get_default_device(), **kw
    ),
    "LayerNormMLP": lambda **kw: te.LayerNormMLP(
        HIDDEN, FFN, device=torch.get_default_device(), **kw
    ),
}
RECIPES: dict[str, Recipe | None] = {
    "high-precision": None,
    "delayed": DelayedScaling(amax_history_len=3),
    "current": Float8CurrentScaling(),
}
ALL_RECIPES = RECIPES | EVERY_RECIPE


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="session")
def needs_cpp_compiler() -> None:
    """inductor compiles its kernels for the CPU."""
    if shutil.which("g++") is None:
        pytest.skip("inductor needs a C++ compiler; install g++")


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def compiled(function: Any, **keywords: Any) -> Any:
    return torch.compile(function, backend=BACKEND, fullgraph=True, **keywords)


def region(recipe: Recipe | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if recipe is None else te.autocast(recipe=recipe)


def train(call: Any, module: nn.Module, x: torch.Tensor, recipe: Recipe | None) -> list[Any]:
    """Results and gradients of three iterations: delayed scaling then has scales of its own."""
    found: list[Any] = []
    torch.manual_seed(2)  # stochastic rounding
    for step in range(3):
        inp = (x * (step + 1)).detach().requires_grad_()
        with region(recipe):
            result = call(inp)
        outputs = [t for t in (result if isinstance(result, tuple) else (result,)) if t is not None]
        sum(output.float().square().sum() for output in outputs).backward()
        found += [*outputs, inp.grad, *(p.grad for p in module.parameters())]
        module.zero_grad()
    return found


def assert_all_identical(actual: list[Any], expected: list[Any]) -> None:
    assert len(actual) == len(expected) > 0
    for got, want in zip(actual, expected, strict=True):
        assert_identical(got.detach(), want.detach())


@pytest.mark.filterwarnings("ignore:Recipe type changed")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", MODULES)
def test_one_graph_gives_the_numbers_of_eager_mode_in_every_recipe(kind, dtype):
    module = MODULES[kind](params_dtype=dtype)
    twin = copy.deepcopy(module)
    x = random_tensor((5, HIDDEN), seed=4).to(dtype)
    call = compiled(module)
    for recipe in ALL_RECIPES.values():
        assert_all_identical(train(call, module, x, recipe), train(twin, twin, x, recipe))
    assert graphs() == 1


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_further_outputs(recipe):
    module = te.LayerNormLinear(
        HIDDEN,
        FFN,
        return_bias=True,
        return_layernorm_output=True,
        parameters_split=("query", "key"),
        device=torch.get_default_device(),
    )
    twin = copy.deepcopy(module)
    x = random_tensor((2, 3, HIDDEN), seed=4)
    assert_all_identical(train(compiled(module), module, x, recipe), train(twin, twin, x, recipe))


@pytest.mark.filterwarnings("ignore:Recipe type changed")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layer_type": "decoder", "normalization": "RMSNorm", "activation": "swiglu"},
        {"hidden_dropout": 0.2, "attention_dropout": 0.2, "num_gqa_groups": 1},
    ],
    ids=["encoder", "decoder", "dropout"],
)
def test_transformer_layer_compiles_as_a_whole(options):
    settings = {
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "device": torch.get_default_device(),
    } | options
    layer = te.TransformerLayer(HIDDEN, FFN, 2, **settings)
    twin = copy.deepcopy(layer)
    x = random_tensor((4, 2, HIDDEN), seed=5)
    inputs = {}
    if "layer_type" in options:
        inputs["encoder_output"] = random_tensor((3, 2, HIDDEN), seed=6)
    call = compiled(layer)
    for recipe in ALL_RECIPES.values():
        torch.manual_seed(1)
        actual = train(lambda t: call(t, **inputs), layer, x, recipe)
        torch.manual_seed(1)
        assert_all_identical(actual, train(lambda t: twin(t, **inputs), twin, x, recipe))
    assert graphs() == 1


def residual(module: nn.Module, scale: torch.Tensor) -> Callable[[torch.Tensor], Any]:
    """The module's input is a buffer of the graph, which is used once more afterwards."""

    def call(x: torch.Tensor) -> Any:
        h = x * scale
        result = module(h)
        parts = result if isinstance(result, tuple) else (result,)
        return h + sum(part[..., :HIDDEN] for part in parts)

    return call


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("kind", [*MODULES, "with-outputs"])
def test_reused_buffers_of_a_compiled_graph(kind, recipe, needs_cpp_compiler):
    """inductor writes into memory that nothing in the graph needs any more."""
    if kind == "with-outputs":
        module = te.LayerNormLinear(
            HIDDEN, FFN, return_layernorm_output=True, device=torch.get_default_device()
        )
    else:
        module = MODULES[kind]()
    twin, scale = copy.deepcopy(module), torch.nn.Parameter(torch.tensor(1.5))
    x = random_tensor((5, 2, HIDDEN), seed=4)
    call = torch.compile(residual(module, scale), fullgraph=True)  # inductor
    actual = train(call, module, x, recipe)
    expected = train(residual(twin, scale), twin, x, recipe)
    assert_all_identical(actual, expected)


def test_parameters_computed_in_the_graph_keep_their_values(needs_cpp_compiler):
    module = MODULES["Linear"]()
    names, values = zip(*module.named_parameters(), strict=True)
    with torch.no_grad():  # small whole numbers: sums are exact in every order
        for value in values:
            value.copy_((value * 100).round().clamp(-3, 3))

    def call(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        scaled = {name: value * scale for name, value in zip(names, values, strict=True)}
        output = torch.func.functional_call(module, scaled, (x,))
        return output.sum() + sum((value + 1).square().sum() for value in scaled.values())

    found = []
    for function in (torch.compile(call), call):
        x, scale = random_tensor((5, HIDDEN), seed=4).round().requires_grad_(), torch.tensor(2.0)
        found.append(torch.autograd.grad(function(x, scale.requires_grad_()), (x, scale)))
    assert_all_identical(list(found[0]), list(found[1]))
    assert all(gradient.count_nonzero() > 0 for gradient in found[0])


def test_layers_built_alike_share_one_graph():
    layers = [MODULES["LayerNormMLP"]() for _ in range(10)]
    call = compiled(lambda layer, x: layer(x))
    x = random_tensor((5, HIDDEN), seed=4)
    for layer in layers:
        assert_identical(call(layer, x).detach(), layer(x).detach())
    assert graphs() == 1


def test_varying_batches_compile_twice():
    module = MODULES["Linear"]()
    call = compiled(module)
    for rows in (2, 3, 5, 8, 13):
        x = random_tensor((rows, HIDDEN), seed=rows)
        assert_identical(call(x).detach(), module(x).detach())
    assert graphs() <= 2  # fixed shapes, then any


def test_without_gradients_nothing_is_kept():
    module = MODULES["LayerNormMLP"]()
    x = random_tensor((5, HIDDEN), seed=4)
    call = compiled(module)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            result = call(x)
            assert_identical(result, module(x))
        assert not result.requires_grad


@pytest.mark.parametrize("frozen", ["weight", "bias", "input"])
def test_frozen_tensors_get_no_gradient(frozen):
    module = MODULES["Linear"]()
    x = random_tensor((5, HIDDEN), seed=4).requires_grad_(frozen != "input")
    if frozen != "input":
        getattr(module, frozen).requires_grad_(False)
    twin, x2 = copy.deepcopy(module), x.detach().clone().requires_grad_(x.requires_grad)
    compiled(module)(x).square().sum().backward()
    twin(x2).square().sum().backward()
    for got, want in zip((x, *module.parameters()), (x2, *twin.parameters()), strict=True):
        assert (got.grad is None) == (want.grad is None)
        if want.grad is not None:
            assert_identical(got.grad, want.grad)


def test_micro_batch_flag_reaches_the_weight_cache():
    module, x = MODULES["Linear"](), random_tensor((5, HIDDEN), seed=4)
    call = compiled(module)
    with te.autocast(recipe=Float8CurrentScaling()):
        first = call(x, is_first_microbatch=True)
        module.weight.data = module.weight.data.clone()  # the same values elsewhere
        assert_identical(call(x, is_first_microbatch=False).detach(), first.detach())


def test_torch_autocast():
    module = MODULES["LayerNormLinear"]()
    x = random_tensor((5, HIDDEN), seed=4)
    call = compiled(module)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = module(x)
        result = call(x)
    assert result.dtype == torch.bfloat16
    assert_identical(result.detach(), expected.detach())


def test_functional_parameters_inside_a_graph():
    module, x = MODULES["Linear"](), random_tensor((5, HIDDEN), seed=4)
    other = {name: (2 * p).detach().requires_grad_() for name, p in module.named_parameters()}

    def call(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, parameters, (x,))

    found = []
    for function in (compiled(call), call):
        output = function(other, x)
        found.append([output, *torch.autograd.grad(output.square().sum(), list(other.values()))])
    assert_all_identical(*found)
    assert module.weight.grad is None


def test_writing_to_a_weight_before_the_backward_is_an_error():
    module, x = MODULES["Linear"](), random_tensor((5, HIDDEN), seed=4).requires_grad_()
    output = compiled(module)(x)
    with torch.no_grad():
        module.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_two_backwards_of_one_graph():
    module, x = MODULES["Linear"](), random_tensor((5, HIDDEN), seed=4).requires_grad_()
    output = compiled(module)(x).sum()
    first = torch.autograd.grad(output, x, retain_graph=True)[0]
    assert_identical(torch.autograd.grad(output, x)[0], first)


def test_hooks_run_in_compiled_modules():
    module, x = MODULES["Linear"](), random_tensor((5, HIDDEN), seed=4)
    module.register_forward_hook(lambda module, args, output: output * 2)
    assert_identical(compiled(module)(x).detach(), module(x).detach())


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
@pytest.mark.parametrize("case", ["quantized-output", "fused-gradients", "quantized-weight"])
def test_what_graphs_cannot_hold_runs_between_them(case):
    options: dict[str, Any] = {}
    call_options: dict[str, Any] = {}
    recipe = Float8CurrentScaling()
    if case == "quantized-output":
        call_options["fp8_output"] = True
    elif case == "fused-gradients":
        options["fuse_wgrad_accumulation"] = True
    with te.quantized_model_init(enabled=case == "quantized-weight", recipe=recipe):
        module = MODULES["Linear"](**options)
    if case == "fused-gradients":
        module.weight.main_grad = torch.zeros(FFN, HIDDEN)
    x = random_tensor((5, HIDDEN), seed=4)

    def function(x: torch.Tensor) -> torch.Tensor:
        return module(x + 1, **call_options) * 2

    with te.autocast(recipe=recipe):
        expected = function(x)
        result = torch.compile(function, backend=BACKEND)(x)
    assert_identical(result.detach(), expected.detach())
    torch._dynamo.reset()
    with te.autocast(recipe=recipe), pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(function)(x)


def test_nothing_outlives_the_graph():
    module, x = MODULES["LayerNormMLP"](), random_tensor((5, HIDDEN), seed=4).requires_grad_()
    call = compiled(module)
    call(x).sum().backward()
    gc.collect()
    before = sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())
    for _ in range(20):
        call(x).sum().backward()
        call(x)  # no backward follows
    gc.collect()
    assert sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects()) <= before


def test_a_held_object_lives_as_long_as_the_storage():
    class Thing:
        pass

    thing = Thing()
    alive = weakref.ref(thing)
    holder = steps.hold_object(thing)
    view = holder[:1].detach().view(-1)
    assert steps.held_object(holder) is thing
    del thing, holder
    assert alive() is not None
    del view
    assert alive() is None


def test_a_copy_of_a_holder_is_refused():
    holder = steps.hold_object(object())
    with pytest.raises(ValueError, match="held_object: holder is a copy"):
        steps.held_object(holder.clone())
    for wrong in (holder[:1], holder.int(), torch.zeros(2)):
        with pytest.raises(TypeError, match="held_object: holder has shape"):
            steps.held_object(wrong)


@pytest.mark.parametrize("strict", [True, False])
def test_exported_programs_hold_plain_operators(strict):
    module, x = MODULES["LayerNormMLP"](), random_tensor((5, HIDDEN), seed=4)
    program = torch.export.export(module, (x,), strict=strict)
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert names and not any("transformer_engine" in name for name in names)
    bound = 2 * FFN * torch.finfo(torch.float32).eps
    assert (program.module()(x) - module(x)).abs().max() <= bound


@pytest.mark.parametrize("kind", MODULES)
def test_subclasses_and_replaced_calls_are_respected(kind):
    base = type(MODULES[kind]())

    class Doubling(base):  # type: ignore[misc,valid-type]
        def __call__(self, *args: Any, **keywords: Any) -> Any:
            return 2 * super().__call__(*args, **keywords)

    torch.manual_seed(0)
    module = MODULES[kind]()
    x = random_tensor((5, HIDDEN), seed=4)
    expected = module(x)
    module.__class__ = Doubling
    assert_identical(module(x).detach(), (2 * expected).detach())
    assert module.__class__.__mro__[1].__call__ is nn.Module.__call__


def test_a_patched_module_call_is_seen(monkeypatch):
    module, x = MODULES["Linear"](), random_tensor((5, HIDDEN), seed=4)
    expected = module(x)
    seen = []
    original = nn.Module.__call__

    def call(self: nn.Module, *args: Any, **keywords: Any) -> Any:
        seen.append(type(self).__name__)
        return original(self, *args, **keywords)

    monkeypatch.setattr(nn.Module, "__call__", call)
    assert_identical(module(x).detach(), expected.detach())
    monkeypatch.undo()
    module(x)
    assert seen == ["Linear"]


def _layers() -> dict[str, Callable[[], nn.Module]]:
    quiet = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "device": torch.get_default_device()}
    return {
        "TransformerLayer": lambda: te.TransformerLayer(HIDDEN, FFN, 2, **quiet),
        "MultiheadAttention": lambda: te.MultiheadAttention(
            HIDDEN, 2, attention_dropout=0.0, device=torch.get_default_device()
        ),
    }


def _parts(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("kind", _layers())
def test_layers_with_a_python_forward_keep_what_module_calls_do(kind):
    layer, x = _layers()[kind](), random_tensor((4, 2, HIDDEN), seed=5)
    plain = layer(x)
    seen = []
    handles = [
        layer.register_forward_pre_hook(lambda module, args: seen.append("before")),
        layer.register_forward_hook(lambda module, args, output: seen.append("after")),
        layer.register_full_backward_hook(lambda module, *grads: seen.append("backward")),
    ]
    output = layer(x.requires_grad_())
    _parts(output)[0].sum().backward()
    assert seen == ["before", "after", "backward"]
    for handle in handles:
        handle.remove()
    layer.forward = lambda x: "replaced"
    assert layer(x) == "replaced"
    del layer.forward

    class Other(type(layer)):  # type: ignore[misc]
        def forward(self, *args: Any, **keywords: Any) -> Any:
            return "other", super().forward(*args, **keywords)

    layer.__class__ = Other
    name, again = layer(x)
    assert name == "other"
    for got, want in zip(*map(_parts, (again, plain)), strict=True):
        assert (got is want is None) or torch.equal(got, want)
    with pytest.raises(TypeError, match="nonsense"):
        layer(x, nonsense=1)


TRANSFORMS: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "jvp": lambda module, x: torch.func.jvp(module, (x,), (x,)),
    "vmap": lambda module, x: torch.func.vmap(module)(x),
    "grad": lambda module, x: torch.func.grad(lambda y: module(y).square().sum())(x),
    "jacrev": lambda module, x: torch.func.jacrev(module)(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_function_transforms_inside_a_graph(transform):
    module, x = MODULES["Linear"](), random_tensor((5, HIDDEN), seed=4)
    result = compiled(lambda x: TRANSFORMS[transform](module, x))(x)
    expected = TRANSFORMS[transform](module, x)
    for got, want in zip(_parts(result), _parts(expected), strict=True):
        assert want.count_nonzero() > 0
        assert_identical(got.detach(), want.detach())


def test_hooks_of_parameters_run_once():
    module, x = MODULES["Linear"](), random_tensor((5, HIDDEN), seed=4)
    twin, counts = copy.deepcopy(module), []
    for model in (module, twin):
        model.weight.register_hook(lambda grad: counts.append(1) or grad * 2)
    handle = torch.autograd.graph.register_multi_grad_hook(
        [module.weight, module.bias], lambda grads: counts.append(len(grads))
    )
    compiled(module)(x).square().sum().backward()
    handle.remove()
    assert counts == [1, 2]
    twin(x).square().sum().backward()
    assert_identical(module.weight.grad, twin.weight.grad)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_another_view_of_a_parameter_is_another_parameter(recipe):
    module = te.Linear(HIDDEN, HIDDEN, bias=False, device=torch.get_default_device())
    x = random_tensor((5, HIDDEN), seed=4)

    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, {"weight": module.weight.t()}, (x,))

    function = compiled(call)
    twin = te.Linear(HIDDEN, HIDDEN, bias=False, device=torch.get_default_device())
    with torch.no_grad():
        twin.weight.copy_(module.weight.t())
    with region(recipe):
        result = function(x)
    with region(recipe):
        assert_identical(result.detach(), twin(x).detach())


def test_recomputation_in_a_graph_is_refused_where_its_scales_are_unknown():
    module = MODULES["Linear"](params_dtype=torch.bfloat16)

    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False).sin()

    for recipe in (None, Float8CurrentScaling()):
        torch._dynamo.reset()
        x = random_tensor((5, HIDDEN), seed=4).bfloat16().requires_grad_()
        found = []
        for function in (compiled(call), call):
            with region(recipe):
                output = function(x)
                leaves = [x, *module.parameters()]
                found.append([output, *torch.autograd.grad(output.sum(), leaves)])
        assert_all_identical(*found)
    message = r"Linear\.forward: activations of a quantized forward are recomputed"
    for recipe in (DelayedScaling(), Float8CurrentScaling()):
        with te.autocast(recipe=recipe):
            output = compiled(call)(x)
        with pytest.raises(NotImplementedError, match=message):
            output.sum().backward()


def test_a_class_may_borrow_a_native_forward():
    """Only modules with a step run one; another class gets Python's own error, not a crash."""

    class Borrower(te.MultiheadAttention):
        forward = te.Linear.forward  # type: ignore[assignment]

    borrower = Borrower(HIDDEN, 2, device=torch.get_default_device())
    with pytest.raises(AttributeError, match="_run_step"):
        borrower(random_tensor((4, 2, HIDDEN), seed=5))
