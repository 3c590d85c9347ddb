# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Transforms, tracers and foreign tensors: modules behave as their torch.nn twins, exactly."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import transformer_engine.pytorch as te
from helpers.generators import random_tensor
from helpers.tolerances import assert_identical
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling

HIDDEN, FFN = 16, 24

MAKERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "Linear": (
        lambda: te.Linear(HIDDEN, FFN, device=torch.get_default_device()),
        lambda: nn.Linear(HIDDEN, FFN),
    ),
    "LayerNorm": (
        lambda: te.LayerNorm(HIDDEN, device=torch.get_default_device()),
        lambda: nn.LayerNorm(HIDDEN),
    ),
    "RMSNorm": (
        lambda: te.RMSNorm(HIDDEN, device=torch.get_default_device()),
        lambda: nn.RMSNorm(HIDDEN, eps=1e-5),
    ),
    "LayerNormLinear": (
        lambda: te.LayerNormLinear(HIDDEN, FFN, device=torch.get_default_device()),
        lambda: nn.Sequential(nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, FFN)),
    ),
    "LayerNormMLP": (
        lambda: te.LayerNormMLP(HIDDEN, FFN, device=torch.get_default_device()),
        lambda: nn.Sequential(
            nn.LayerNorm(HIDDEN),
            nn.Linear(HIDDEN, FFN),
            nn.GELU(approximate="tanh"),
            nn.Linear(FFN, HIDDEN),
        ),
    ),
}


@pytest.fixture(params=MAKERS)
def pair(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module]:
    """A module and its torch.nn twin with the same parameters, in the same order."""
    make, make_twin = MAKERS[request.param]
    torch.manual_seed(3)
    module, twin = make(), make_twin()
    with torch.no_grad():
        for parameter, other in zip(module.parameters(), twin.parameters(), strict=True):
            parameter.copy_(torch.randn_like(parameter) * 0.3)
            other.copy_(parameter)
    return module, twin


@pytest.fixture
def x() -> torch.Tensor:
    return random_tensor((5, HIDDEN), seed=11)


def _same(actual: Any, expected: Any) -> None:
    flat, _ = torch.utils._pytree.tree_flatten(actual)
    flat_expected, _ = torch.utils._pytree.tree_flatten(expected)
    assert len(flat) == len(flat_expected) > 0
    for got, want in zip(flat, flat_expected, strict=True):
        assert_identical(got, want)


def _parameters(module: nn.Module) -> tuple[list[str], tuple[torch.Tensor, ...]]:
    names, values = zip(*module.named_parameters(), strict=True)
    return list(names), tuple(value.detach() for value in values)


def _functional(module: nn.Module) -> Callable[..., torch.Tensor]:
    names, _ = _parameters(module)

    def call(values: tuple[torch.Tensor, ...], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))

    return call


def test_functional_call_runs_natively_with_the_given_parameters(pair, x):
    module, _ = pair
    _, values = _parameters(module)
    doubled = tuple(2 * value for value in values)
    result = _functional(module)(doubled, x)
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), doubled, strict=True):
            parameter.copy_(value)
        assert_identical(result, module(x))


def test_grad_transform(pair, x):
    module, twin = pair

    def gradients(model: nn.Module) -> Any:
        call = _functional(model)
        loss = torch.func.grad(lambda values, x: call(values, x).square().sum(), argnums=(0, 1))
        return loss(_parameters(model)[1], x)

    _same(gradients(module), gradients(twin))


def test_per_sample_gradients(pair, x):
    module, twin = pair

    def gradients(model: nn.Module) -> Any:
        call = _functional(model)
        gradient = torch.func.grad(lambda values, row: call(values, row[None]).square().sum())
        return torch.func.vmap(gradient, in_dims=(None, 0))(_parameters(model)[1], x)

    _same(gradients(module), gradients(twin))


def test_vmap_over_models(pair, x):
    module, twin = pair

    def ensemble(model: nn.Module) -> Any:
        stacked = tuple(torch.stack([v, v * 0.5, v + 1]) for v in _parameters(model)[1])
        return torch.func.vmap(_functional(model), in_dims=(0, None))(stacked, x)

    _same(ensemble(module), ensemble(twin))


def test_jvp_and_hessian_vector_product(pair, x):
    module, twin = pair
    direction = random_tensor((5, HIDDEN), seed=12)

    def products(model: nn.Module) -> Any:
        def loss(x: torch.Tensor) -> torch.Tensor:
            return model(x).square().sum()

        return (
            torch.func.jvp(model, (x,), (direction,)),
            torch.func.jvp(torch.func.grad(loss), (x,), (direction,)),
            torch.func.vjp(model, x)[0],
        )

    _same(products(module), products(twin))


@pytest.mark.parametrize("target", ["input", "parameter"])
def test_forward_mode_tangents_arrive(pair, x, target):
    def tangent(model: nn.Module) -> torch.Tensor:
        names, values = _parameters(model)
        with forward_ad.dual_level():
            if target == "input":
                dual = forward_ad.make_dual(x, torch.ones_like(x))
                return forward_ad.unpack_dual(model(dual)).tangent
            duals = dict(zip(names, values, strict=True))
            duals[names[0]] = forward_ad.make_dual(values[0], torch.ones_like(values[0]))
            return forward_ad.unpack_dual(torch.func.functional_call(model, duals, (x,))).tangent

    module, twin = pair
    _same(tangent(module), tangent(twin))


def test_second_derivatives_inside_a_transform(x):
    module, twin = te.Linear(HIDDEN, 1, device=torch.get_default_device()), nn.Linear(HIDDEN, 1)
    with torch.no_grad():
        twin.weight.copy_(module.weight)
        twin.bias.copy_(module.bias)

    def hessian(model: nn.Module) -> Any:
        return torch.func.hessian(lambda row: model(row).pow(3).sum())(x[0])

    _same(hessian(module), hessian(twin))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_jit_trace_records_the_computation(pair, x):
    module, twin = pair
    traced = torch.jit.trace(module.eval(), (x,))
    other = random_tensor((3, HIDDEN), seed=13)
    assert_identical(traced(other), twin(other))
    with torch.no_grad():
        for parameter, its in zip(module.parameters(), twin.parameters(), strict=True):
            parameter.mul_(2)
            its.mul_(2)
    assert_identical(traced(other), twin(other))


def test_make_fx_and_export_record_the_computation(pair, x):
    module, twin = pair
    other = random_tensor((5, HIDDEN), seed=13)
    graph = make_fx(module, tracing_mode="fake", _allow_non_fake_inputs=True)(x)
    assert_identical(graph(other), twin(other))
    exported = torch.export.export(module, (x,), strict=False)
    assert_identical(exported.module()(other), twin(other))


def test_meta_and_fake_tensors_give_shapes(pair, x):
    module, twin = pair
    shape = twin(x).shape
    with torch._subclasses.fake_tensor.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        result = module(mode.from_tensor(x))
        assert isinstance(result, torch._subclasses.FakeTensor)
        assert result.shape == shape
    result = module.to("meta")(x.to("meta"))
    assert result.is_meta and result.shape == shape and result.requires_grad


def test_a_dispatch_mode_sees_the_operators(pair, x):
    module, twin = pair
    counts = []
    for model in (module, twin):
        with FlopCounterMode(display=False) as counter:
            model(x)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1]
    assert (counts[0] > 0) == any(p.dim() == 2 for p in module.parameters())


class _Counting(torch.Tensor):
    """Counts the torch functions called on it."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_class_that_overrides_torch_functions_is_asked(pair, x):
    module, twin = pair
    before = _Counting.calls
    result = module(x.as_subclass(_Counting))
    assert type(result) is _Counting
    assert _Counting.calls > before
    assert_identical(result.as_subclass(torch.Tensor).detach(), twin(x).detach())


@pytest.mark.parametrize("which", ["input", "parameter", "gradient"])
def test_a_negative_bit_is_respected(pair, x, which):
    module, twin = pair

    def run(model: nn.Module, negate: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        names, values = _parameters(model)
        inp = (negate(x) if which == "input" else x).requires_grad_()
        leaves = [value.clone().requires_grad_() for value in values]
        used = [negate(leaf) if which == "parameter" else leaf for leaf in leaves]
        output = torch.func.functional_call(model, dict(zip(names, used, strict=True)), (inp,))
        grad = torch.ones_like(output)
        return output, *torch.autograd.grad(
            output, (inp, *leaves), negate(grad) if which == "gradient" else grad
        )

    def lazily(tensor: torch.Tensor) -> torch.Tensor:
        return torch._neg_view(tensor)

    assert lazily(x).is_neg()
    if which == "parameter":
        _same(run(module, lazily), run(twin, lazily))
        return
    for region in (nullcontext(), te.autocast(recipe=Float8CurrentScaling())):
        with region:
            _same(run(module, lazily), run(module, torch.neg))


def test_nested_input_behaves_as_in_torch(x):
    module, twin = te.Linear(HIDDEN, FFN, device=torch.get_default_device()), nn.Linear(HIDDEN, FFN)
    with torch.no_grad():
        twin.weight.copy_(module.weight)
        twin.bias.copy_(module.bias)
    parts = torch.nested.nested_tensor([x[:2], x[2:]], layout=torch.jagged)
    _same([*module(parts).unbind()], [*twin(parts).unbind()])


@pytest.mark.parametrize(
    "recipe", [DelayedScaling(), Float8CurrentScaling()], ids=["delayed", "current"]
)
def test_quantized_regions_refuse_transforms_by_name(x, recipe):
    module = te.Linear(HIDDEN, FFN, device=torch.get_default_device())
    with te.autocast(recipe=recipe):
        with pytest.raises(NotImplementedError, match=r"Linear\.forward: .*function transform"):
            torch.func.vmap(module)(x)
        with pytest.raises(NotImplementedError, match=r"Linear\.forward: inp is on meta"):
            module(x.to("meta"))
        with (
            forward_ad.dual_level(),
            pytest.raises(NotImplementedError, match="inp has a forward-mode tangent"),
        ):
            module(forward_ad.make_dual(x, x))
        with pytest.raises(NotImplementedError, match="layout"):
            module(x.to_sparse())
        assert module(x).shape == (5, FFN)  # and nothing is left behind


def test_a_dispatch_mode_does_not_disturb_a_quantized_region(x):
    module = te.Linear(HIDDEN, FFN, device=torch.get_default_device())
    with te.autocast(recipe=Float8CurrentScaling()):
        expected = module(x)
        with FlopCounterMode(display=False):
            assert_identical(module(x), expected)


def test_bad_arguments_are_named_in_a_transform(x):
    module = te.Linear(HIDDEN, FFN, device=torch.get_default_device())
    with pytest.raises(ValueError, match=r"Linear\.forward: inp has shape .*last dimension of 16"):
        torch.func.vmap(module)(x[:, :7])
    with pytest.raises(TypeError, match=r"Linear\.forward: parameter weight has dtype"):
        torch.func.vmap(module)(x.bfloat16())
    with pytest.raises(ValueError, match=r"LayerNorm\.forward: input has shape .*trailing"):
        torch.func.vmap(te.LayerNorm(HIDDEN, device=torch.get_default_device()))(x[:, :7])
    fused = te.Linear(HIDDEN, FFN, device=torch.get_default_device(), fuse_wgrad_accumulation=True)
    with pytest.raises(NotImplementedError, match="fuse_wgrad_accumulation is True"):
        torch.func.vmap(fused)(x)


ACTIVATIONS = sorted(te.module.layernorm_mlp.ACTIVATIONS)


@pytest.mark.parametrize("zero_centered_gamma", [False, True])
@pytest.mark.parametrize("normalization", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_composed_and_native_mlp_agree(x, activation, normalization, zero_centered_gamma):
    module = te.LayerNormMLP(
        HIDDEN,
        FFN,
        activation=activation,
        normalization=normalization,
        zero_centered_gamma=zero_centered_gamma,
        return_bias=True,
        return_layernorm_output=True,
        device=torch.get_default_device(),
    )
    native = module(x)
    composed = torch.func.vmap(module)(x[None])
    # Sums of up to 2 * FFN FP32 products, in two orders, of values of order 1.
    bound = 2 * FFN * torch.finfo(torch.float32).eps
    for got, want in zip(composed, native, strict=True):
        got = got[0] if got.dim() > want.dim() else got
        assert (got - want).abs().max() <= bound * max(1.0, float(want.detach().abs().max()))


def test_options_of_linear_agree(x):
    split = te.Linear(
        HIDDEN,
        FFN,
        parameters_split=("a", "b"),
        return_bias=True,
        device=torch.get_default_device(),
    )
    output, bias = torch.func.vmap(split)(x[None])
    assert bias.shape == (1, FFN) and output.shape == (1, 5, FFN)
    bound = 2 * HIDDEN * torch.finfo(torch.float32).eps
    assert (output[0] - split(x)[0]).abs().max() <= bound
    fused = te.LayerNormLinear(
        HIDDEN, FFN, bias=False, return_bias=True, device=torch.get_default_device()
    )
    output, bias = torch.func.vmap(fused)(x[None])
    assert bias.numel() == 0
    assert (output[0] - fused(x)[0]).abs().max() <= bound


def test_torch_autocast_rounds_as_the_native_step(pair, x):
    module, _ = pair
    with torch.autocast("cpu", dtype=torch.bfloat16):
        native = module(x)
        composed = torch.func.vmap(module)(x[None])[0]
    assert composed.dtype == native.dtype == torch.bfloat16
    # Equal formulas, each intermediate rounded to BF16; a sum at a rounding boundary may fall on
    # either side: two steps of the largest value.
    step = torch.finfo(torch.bfloat16).eps * native.detach().abs().max().float()
    assert (composed.float() - native.float()).abs().max() <= 2 * step


@pytest.mark.parametrize("call", ["batched", "vectorized", "tangent"])
def test_transforms_around_a_native_backward_are_refused(pair, x, call):
    module, _ = pair
    inp = x.clone().requires_grad_()
    output = module(inp)
    grad = torch.ones_like(output)
    message = r"Backward: the gradient (is a wrapper of a transform|has a forward-mode tangent)"
    with pytest.raises(NotImplementedError, match=message):
        if call == "batched":
            torch.autograd.grad(output, inp, grad.expand(3, *grad.shape), is_grads_batched=True)
        elif call == "vectorized":
            torch.autograd.functional.jacobian(module, inp, vectorize=True)
        else:
            with forward_ad.dual_level():
                torch.autograd.grad(output, inp, forward_ad.make_dual(grad, grad))
    (gradient,) = torch.autograd.grad(module(inp), inp, grad)
    assert torch.isfinite(gradient).all()


class _Names(torch.overrides.TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def test_a_function_mode_sees_the_functions(pair, x):
    module, twin = pair
    with _Names() as seen:
        result = module(x)
    with _Names() as expected:
        twin(x)
    assert {"linear", "layer_norm", "rms_norm", "gelu"} & set(expected.names) <= set(seen.names)
    assert_identical(result.detach(), twin(x).detach())


def test_a_device_context_keeps_the_native_step(pair, x):
    module, _ = pair
    with torch.device("cpu"):
        assert module(x).grad_fn.name().startswith(type(module).__name__)


def test_a_profiler_sees_one_range_per_module(pair, x):
    module, _ = pair
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        module(x).sum().backward()
    names = [event.name for event in profile.events()]
    assert names.count(f"{type(module).__name__}.forward") == 1
    assert any(f"{type(module).__name__}Backward" in name for name in names)


@pytest.mark.parametrize("where", ["class", "instance"])
def test_an_overridden_call_impl_is_respected(where, x):
    module = te.Linear(HIDDEN, FFN, device=torch.get_default_device())
    if where == "class":
        module.__class__ = type("Other", (te.Linear,), {"_call_impl": lambda self, x: "mine"})
    else:
        object.__setattr__(module, "_call_impl", lambda x: "mine")
    twin = nn.Linear(HIDDEN, FFN)
    if where == "class":
        twin.__class__ = type("Other", (nn.Linear,), {"_call_impl": lambda self, x: "mine"})
    else:
        object.__setattr__(twin, "_call_impl", lambda x: "mine")
    assert module(x) == twin(x) == "mine"


def test_a_symbolic_trace_may_treat_modules_as_leaves(pair, x):
    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, module: nn.Module, name: str) -> bool:
            return True

    module, _ = pair
    model = nn.Sequential(module)
    graph = torch.fx.GraphModule(model, Tracer().trace(model))
    assert [node.op for node in graph.graph.nodes] == ["placeholder", "call_module", "output"]
    assert_identical(graph(x).detach(), module(x).detach())
