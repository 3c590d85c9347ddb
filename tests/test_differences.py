# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""docs/differences.md is true: every row has a check here, and every check a row there."""

from __future__ import annotations

import ast
import functools
import operator
import pickle
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import transformer_engine
import transformer_engine.pytorch as te
from helpers.graph_device import GraphsOnCpu
from helpers.ranks import ranks
from transformer_engine.common.recipe import (
    DelayedScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    Recipe,
)
from transformer_engine.pytorch.attention.rope import apply_rotary_pos_emb
from transformer_engine.pytorch.distributed import symmetric_all_reduce
from transformer_engine.pytorch.graph.device import use_device
from transformer_engine.pytorch.module import compiled, userbuffers
from transformer_engine.pytorch.module.extra_state import decode
from transformer_engine.pytorch.module.sharding import WeightShard
from transformer_engine.pytorch.quantization import FP8GlobalStateManager
from transformer_engine.pytorch.tensor import utils as tensor_utils

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "differences.md").read_text()
BEHAVIOUR, MISSING = PAGE.split("## Not in this version")
CURRENT, DELAYED = Float8CurrentScaling(), DelayedScaling(amax_history_len=4)

behaviours: dict[str, Callable[[], None]] = {}
missing: dict[str, Callable[[], set[tuple[str, int]]]] = {}  # checks give (file, line) reached


def rows_of(text: str) -> list[str]:
    """The words in front of the table rows."""
    return re.findall(r"^\| `([a-z0-9-]+)`", text, flags=re.MULTILINE)


def row(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register the check of a row of the tables on behaviour."""

    def register(check: Callable[[], None]) -> Callable[[], None]:
        behaviours[name] = check
        return check

    return register


def refuses(name: str, *calls: Callable[[], object]) -> None:
    """Register calls that raise NotImplementedError because of a row of the last table."""

    def check() -> set[tuple[str, int]]:
        lines = set()
        for call in calls:
            with pytest.raises(NotImplementedError) as error:
                call()
            frames = traceback.extract_tb(error.tb)
            lines |= {(frame.filename, frame.lineno) for frame in frames}
        return lines

    missing[name] = check


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    torch.manual_seed(1234)
    yield
    FP8GlobalStateManager.reset()


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """A process group that claims a second rank; nothing is sent."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    torch.distributed.destroy_process_group()


def test_every_row_of_the_tables_has_a_check_and_the_reverse():
    assert rows_of(BEHAVIOUR) == list(behaviours)
    assert rows_of(MISSING) == list(missing)


@pytest.mark.parametrize("name", rows_of(BEHAVIOUR))
def test_behaviour_is_as_the_page_says(name):
    behaviours[name]()


@pytest.mark.parametrize("name", rows_of(MISSING))
def test_what_is_missing_raises_not_implemented_error(name, two_ranks):
    missing[name]()


def test_names_listed_as_missing_do_not_exist():
    items = re.findall(r"^- `(te[.\w]*)`:(.*?)(?=^- |\Z)", MISSING, flags=re.MULTILINE | re.DOTALL)
    listed = {place: re.findall(r"`(\w+)`", names) for place, names in items}
    assert len(listed["te"]) > 5 and "Fp8Padding" in listed["te"]
    assert len(listed["te.ops"]) == 2 and listed["te.cpp_extensions"] == ["general_gemm"]
    for place, names in listed.items():
        module = operator.attrgetter(place.removeprefix("te."))(te) if "." in place else te
        assert [name for name in names if hasattr(module, name)] == [], place


def refusal_sites() -> set[tuple[str, int]]:
    """(file, line) of each `raise NotImplementedError` whose message speaks of this version."""
    sites = set()
    for path in (ROOT / "transformer_engine").rglob("*.py"):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)):
            text = ast.get_source_segment(source, node) if isinstance(node, ast.Raise) else None
            if text and "NotImplementedError" in text and "this version" in text:
                sites.add((str(path), node.lineno))
    return sites


@pytest.mark.usefixtures("two_ranks")
def test_every_refusal_of_this_version_has_a_row():
    """The last table is complete: the checks of its rows reach all places that refuse."""
    reached = set().union(*(check() for check in missing.values()))
    sites = refusal_sites()
    assert len(sites) >= 5
    assert sites - reached == set()


# ---- helpers of the checks -------------------------------------------------------------------


def run(module: Callable[..., torch.Tensor], recipe: Recipe, x: torch.Tensor) -> torch.Tensor:
    """One call in a region of its own."""
    with te.autocast(recipe=recipe):
        return module(x)


def forward_history(module: torch.nn.Module) -> torch.Tensor:
    return module.fp8_meta["scaling_fwd"].amax_history


def raised(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def attention(**options: object) -> te.DotProductAttention:
    return te.DotProductAttention(2, 16, qkv_format="bshd", **options)


def qkv(length: int = 4) -> torch.Tensor:
    return torch.randn(1, length, 2, 16, requires_grad=True)


# ---- errors ----------------------------------------------------------------------------------


@row("error-types")
def _() -> None:
    layer = te.Linear(32, 32)
    x = torch.randn(4, 32)
    error = raised(lambda: layer(torch.randn(4, 16)))
    assert type(error) is ValueError and "Linear.forward: inp has shape [4, 16]" in str(error)
    error = raised(lambda: layer(x.bfloat16()))
    assert type(error) is TypeError and "use torch.autocast" in str(error)
    error = raised(lambda: te.Linear(32, 32, parallel_mode="diagonal"))
    assert type(error) is ValueError and "'diagonal'" in str(error)
    packed = te.DotProductAttention(2, 16, qkv_format="thd")
    error = raised(lambda: packed(*[torch.randn(4, 2, 16)] * 3))
    assert type(error) is ValueError and "thd needs a padding type" in str(error)
    run(layer, DELAYED, x)
    before = forward_history(layer).clone()
    raised(lambda: run(layer, DELAYED, torch.randn(4, 16)))
    run(layer, DELAYED, x)
    assert before[-1, 0] == forward_history(layer)[-1, 0]


@row("refused-region")
def _() -> None:
    error = raised(lambda: te.autocast(recipe=object()).__enter__())
    assert isinstance(error, TypeError)
    assert not FP8GlobalStateManager.is_fp8_enabled()
    layer = te.Linear(32, 32)
    layer(torch.randn(4, 32))
    assert not layer.fp8


@row("validated-recipes")
def _() -> None:
    from transformer_engine.common.recipe import Format

    error = raised(lambda: DelayedScaling(fp8_format=Format.E5M2))
    assert type(error).__name__ == "ValidationError" and isinstance(error, ValueError)
    assert "DelayedScaling: fp8_format is Format.E5M2" in str(error)


@row("amp-hides-dtypes")
def _() -> None:
    layer, x = te.Linear(32, 32), torch.randn(4, 32).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        layer(x)
    assert isinstance(raised(lambda: layer(x)), TypeError)


# ---- devices ---------------------------------------------------------------------------------


@row("default-device")
def _() -> None:
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert te.Linear(8, 8, device="cuda").weight.device.type == expected
    with torch.device("meta"):
        assert te.Linear(8, 8).weight.device.type == "meta"


@row("cpu-tensors")
def _() -> None:
    for recipe in (CURRENT, DELAYED):
        layer = te.TransformerLayer(32, 64, 2, device="cpu")
        run(layer, recipe, torch.randn(3, 2, 32)).sum().backward()
        assert all(torch.isfinite(p.grad).all() for p in layer.parameters())
    ones = torch.ones(3, 5)
    assert torch.equal(current_quantizer()(ones).dequantize(), ones)


@row("compiled-modules")
def _() -> None:
    layer, x = te.TransformerLayer(32, 64, 4, hidden_dropout=0.0), torch.randn(4, 2, 32)
    call = torch.compile(layer.eval(), backend="aot_eager", fullgraph=True)
    for region in (nullcontext(), te.autocast(recipe=CURRENT)):
        with region:
            assert torch.equal(call(x), layer(x))


@row("amp-device")
def _() -> None:
    layer, x = te.Linear(8, 8, device="cpu"), torch.randn(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert layer(x).dtype == torch.float32


@row("availability")
def _() -> None:
    for answer in (
        te.is_fp8_available,
        te.is_mxfp8_available,
        te.is_fp8_block_scaling_available,
        te.is_nvfp4_available,
    ):
        assert answer(return_reason=True) == (True, "")
    if not torch.cuda.is_available():
        assert te.get_default_recipe() == DelayedScaling()
        assert te.is_bf16_available(return_reason=True) == (True, "")
        assert te.get_device_compute_capability() == (0, 0)
        assert te.get_cudnn_version() == (0, 0, 0)


@row("graphs")
def _() -> None:
    layer, x = te.Linear(16, 16, device="cpu"), torch.randn(4, 16)
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="no CUDA device"):
            te.make_graphed_callables(layer, (x,))
    with use_device(GraphsOnCpu([layer])):
        te.make_graphed_callables(layer, (x,))
    with pytest.raises(TypeError, match="the capture had no such argument"):
        layer(x, fp8_output=True)
    with pytest.raises(ValueError, match=r"input 0 has shape \(1, 16\)"):
        layer(x[:1])
    leaf = torch.nn.Parameter(torch.ones(4, 16))
    outer = torch.nn.Sequential(layer)
    with use_device(GraphsOnCpu([outer])):
        te.make_graphed_callables(outer, (leaf,))
    first = outer(leaf)
    first.sum().backward()
    kept, leaf.grad = leaf.grad, None
    second = outer(leaf)
    (2 * outer(leaf)).sum().backward()
    assert torch.equal(2 * kept, leaf.grad)
    with pytest.raises(RuntimeError, match="replayed again"):
        second.sum().backward()
    outer.reset()
    with pytest.raises(RuntimeError, match="the graph was reset"):
        outer(leaf)


@row("default-recipe")
def _() -> None:
    assert te.get_default_recipe() == DelayedScaling()


# ---- shapes ----------------------------------------------------------------------------------


@row("any-shape")
def _() -> None:
    layer = te.Linear(37, 41, params_dtype=torch.bfloat16)
    x = torch.randn(64, 37).bfloat16()
    x[0] *= 8  # the maximum is in both
    assert torch.equal(run(layer, CURRENT, x[:50]), run(layer, CURRENT, x)[:50])


@row("empty-input")
def _() -> None:
    layer, x = te.Linear(32, 48), torch.randn(2, 0, 32, requires_grad=True)
    y = run(layer, DELAYED, x)
    y.sum().backward()
    assert y.shape == (2, 0, 48) and x.grad.shape == x.shape
    assert not layer.weight.grad.any() and not layer.bias.grad.any()


# ---- recipes ---------------------------------------------------------------------------------


@row("any-block")
def _() -> None:
    x = torch.randn(7, 21)
    for quantizer in block_quantizers():
        assert quantizer.is_quantizable(x) and quantizer(x).dequantize().shape == (7, 21)
    assert te.NVFP4Quantizer(with_rht=True)(x)._columnwise_data is not None
    assert not te.NVFP4Quantizer(row_scaled_nvfp4=True).is_quantizable(x)


@row("fused-equals-unfused")
def _() -> None:
    for recipe in (CURRENT, DELAYED):
        fused = te.LayerNormLinear(48, 64, params_dtype=torch.bfloat16)
        norm = te.LayerNorm(48, dtype=torch.bfloat16)
        linear = te.Linear(48, 64, params_dtype=torch.bfloat16)
        linear.load_state_dict({"weight": fused.weight, "bias": fused.bias})
        unfused = torch.nn.Sequential(norm, linear)
        for _ in range(2):  # under delayed scaling the second has a scale other than 1
            x = torch.randn(7, 48).bfloat16().requires_grad_()
            copy = x.detach().clone().requires_grad_()
            gradient = torch.randn(7, 64).bfloat16()
            y, expected = run(fused, recipe, x), run(unfused, recipe, copy)
            y.backward(gradient)
            expected.backward(gradient)
            assert torch.equal(y, expected)
            assert torch.equal(x.grad, copy.grad)
            assert torch.equal(fused.weight.grad, linear.weight.grad)


@row("power-of-two")
def _() -> None:
    layer = te.Linear(32, 32)
    run(layer, Float8CurrentScaling(use_power_2_scales=True), torch.randn(8, 32))
    assert layer.quantizers["scaling_fwd"][0].force_pow_2_scales
    run(layer, CURRENT, torch.randn(8, 32))
    assert not layer.quantizers["scaling_fwd"][0].force_pow_2_scales


@row("recipe-change")
def _() -> None:
    layer, x = te.Linear(32, 32), torch.randn(8, 32)
    run(layer, DelayedScaling(amax_history_len=4), x)
    scale, newest = layer.fp8_meta["scaling_fwd"].scale.clone(), forward_history(layer)[-1].clone()
    run(layer, DelayedScaling(amax_history_len=8, margin=3), x)
    history = forward_history(layer)
    assert len(history) == 8 and torch.equal(history[-2], newest)
    assert torch.equal(layer.fp8_meta["scaling_fwd"].scale[:2] * 2**3, scale[:2])


@row("used-modules")
def _() -> None:
    used, unused, x = te.Linear(32, 32), te.Linear(32, 32), torch.randn(8, 32)
    run(lambda t: unused(used(t)), DELAYED, x).sum().backward()
    states = [unused.fp8_meta[key] for key in ("scaling_fwd", "scaling_bwd")]
    before = [state.amax_history.clone() for state in states]
    count = torch.count_nonzero(forward_history(used)[:, 0])
    run(used, DELAYED, x).sum().backward()
    for state, history in zip(states, before, strict=True):
        assert torch.equal(state.amax_history, history)
    assert torch.count_nonzero(forward_history(used)[:, 0]) == count + 1


@row("repeated-module")
def _() -> None:
    for first, second in ((1, 10), (10, 1)):
        layer, x = te.Linear(32, 32), torch.randn(8, 32)
        run(lambda t: (layer(first * t), layer(second * t)), DELAYED, x)  # noqa: B023  # run now
        assert forward_history(layer)[-1, 0] == 10 * x.abs().max()
        assert torch.count_nonzero(forward_history(layer)[:, 0]) == 1


def recompute_results(wrap: Callable[..., torch.Tensor], training: bool) -> list[torch.Tensor]:
    """Outputs, gradients and scaling state of three steps."""
    torch.manual_seed(7)
    layer = te.Linear(32, 32).train(training)
    results = []
    for _ in range(3):
        x = torch.randn(8, 32, requires_grad=True)
        y = run(lambda t: wrap(layer, t), DELAYED, x)
        y.square().sum().backward()
        results += [y.detach(), x.grad, layer.weight.grad.clone()]
        for key in ("scaling_fwd", "scaling_bwd"):
            state = layer.fp8_meta[key]
            results += [state.scale.clone(), state.amax_history.clone()]
    return results


@row("recompute")
def _() -> None:
    for training in (True, False):
        expected = recompute_results(lambda layer, x: layer(x), training)
        for mode in (True, False):
            found = recompute_results(
                lambda layer, x: torch_checkpoint(layer, x, use_reentrant=mode),  # noqa: B023
                training,
            )
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def use_unevenly(rank: int) -> tuple[float, float]:
    """Scales of the inputs of two modules, the second of which the last rank uses late."""
    layers = [te.Linear(32, 32, name=name) for name in ("first", "second")]
    for step in range(2):
        with te.autocast(recipe=DELAYED):
            y = layers[0](torch.full((4, 32), 2.0**rank))
            if step == 1 or rank == 0:
                layers[1](torch.full((4, 32), 4.0 ** (1 - step)))
        y.sum().backward()
    return tuple(layer.fp8_meta["scaling_fwd"].scale[0].item() for layer in layers)


@row("uneven-ranks")
def _() -> None:
    assert ranks(2).run(use_unevenly) == [(448 / 2, 448 / 4)] * 2


@row("zero-amax")
def _() -> None:
    histories = []
    for algorithm in ("max", lambda history: history.amax(dim=0)):
        layer = te.Linear(32, 32)
        recipe = DelayedScaling(amax_history_len=3, amax_compute_algo=algorithm)
        run(layer, recipe, torch.ones(4, 32))
        run(layer, recipe, torch.zeros(4, 32))
        histories.append(forward_history(layer)[:, 0].tolist())
    assert histories == [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]


# ---- weights and gradients -------------------------------------------------------------------


@row("parts-write")
def _() -> None:
    for quantizer in block_quantizers():
        tensor, source = (quantizer(torch.randn(256, 32).clamp(-2, 2)) for _ in range(2))
        tensor[:128].zero_()
        tensor.t()[:, 128:].fill_(1.0)
        assert tensor.dequantize().unique().tolist() == [0.0, 1.0]
        tensor.narrow(0, 128, 128).copy_(source[:128])
        codes = [t._rowwise_data.flatten(1) for t in (tensor, source)]
        assert torch.equal(codes[0][128:], codes[1][:128])
    tensor = te.MXFP8Quantizer(te.DType.kFloat8E4M3)(torch.randn(256, 32))
    assert [type(part).__name__ for part in tensor.split(128)] == ["MXFP8Tensor"] * 2
    with pytest.warns(UserWarning, match="writes to it do not reach the tensor"):
        assert type(tensor.view(64, 128)) is torch.Tensor


@row("no-stale-copy")
def _() -> None:
    quantizer = te.MXFP8Quantizer(te.DType.kFloat8E4M3)
    source, tensor = quantizer(torch.ones(32, 32)), quantizer(torch.zeros(32, 32))
    source.update_usage(columnwise_usage=False)
    tensor.copy_(source)
    tensor.update_usage(rowwise_usage=False)
    assert torch.equal(tensor.dequantize(), torch.ones(32, 32))


@row("columnwise-nvfp4")
def _() -> None:
    x = torch.ones(16, 32)
    assert torch.equal(te.NVFP4Quantizer(rowwise=False)(x).dequantize(), x)
    with pytest.raises(NotImplementedError, match="Hadamard-transformed"):
        te.NVFP4Quantizer(rowwise=False, with_rht=True)(x).dequantize()


@row("delayed-slices")
def _() -> None:
    layer = te.Linear(32, 32, parameters_split=["a", "b"], delay_wgrad_compute=True)
    x = torch.randn(8, 32)
    layer(x).sum().backward()
    assert layer.a_weight.grad is None
    layer.backward_dw()
    for weight in (layer.a_weight, layer.b_weight):
        torch.testing.assert_close(weight.grad, torch.ones(16, 8) @ x)


@row("second-derivatives")
def _() -> None:
    module, x = te.Linear(8, 8), torch.randn(4, 8, requires_grad=True)
    loss = (x + module(x)).pow(3).sum()
    (grad,) = torch.autograd.grad(loss, x, create_graph=True)
    assert "differentiable once" in str(raised(lambda: torch.autograd.grad(grad.sum(), x)))
    hessian = torch.func.hessian(lambda x: (x + module(x)).pow(3).sum())(x[0].detach())
    assert hessian.shape == (8, 8) and hessian.count_nonzero() > 0
    layer = te.TransformerLayer(8, 16, 2, hidden_dropout=0.0, attention_dropout=0.0)
    hessian = torch.func.hessian(lambda x: layer(x).pow(2).sum())(torch.randn(2, 1, 8))
    assert hessian.count_nonzero() > 0


@row("gathered-norm-output")
def _() -> None:
    options = {"return_layernorm_output": True, "return_layernorm_output_gathered": True}
    layer = te.LayerNormLinear(32, 32, **options)
    gradients = []
    for norm in (lambda t: layer(t)[1], torch.nn.LayerNorm(32)):
        torch.manual_seed(3)
        x = torch.randn(4, 32, requires_grad=True)
        (norm(x) * torch.randn(4, 32)).sum().backward()
        gradients.append(x.grad)
    assert gradients[0].abs().max() > 0.1
    torch.testing.assert_close(*gradients)


def fused_step(optimizer: type[torch.optim.Optimizer], weight: torch.Tensor) -> None:
    parameter = torch.nn.Parameter(weight)
    parameter.grad = torch.ones_like(weight)
    optimizer([parameter], lr=0.5, fused=True).step()


UNCOUNTED_WRITES = {
    "data": lambda weight: weight.data.mul_(2),
    "numpy": lambda weight: np.multiply(weight.numpy(), 2, out=weight.numpy()),
    "storage": lambda weight: weight.untyped_storage().copy_((2 * weight).untyped_storage()),
} | {
    name: functools.partial(fused_step, getattr(torch.optim, name))
    for name in ("AdamW", "Adam", "SGD", "Adagrad")
}


@row("stale-weight-cache")
def _() -> None:
    layer, x = te.Linear(32, 32, bias=False), torch.randn(8, 32)
    with torch.no_grad(), te.autocast(recipe=CURRENT):
        before = layer(x, is_first_microbatch=True)
        layer.weight.mul_(2)  # exact in FP8 with its own scale
        assert torch.equal(layer(x, is_first_microbatch=False), 2 * before)
        for name, write in UNCOUNTED_WRITES.items():
            version, old = layer.weight._version, layer(x, is_first_microbatch=True)
            write(layer.weight.detach())
            assert layer.weight._version == version, name
            expected = layer(x)
            assert not torch.equal(expected, old), name
            assert torch.equal(layer(x, is_first_microbatch=False), old), name
            assert torch.equal(layer(x, is_first_microbatch=True), expected), name


@row("reset-keeps-parameters")
def _() -> None:
    layer = te.Linear(8, 8)
    weight, values = layer.weight, layer.weight.detach().clone()
    weight.mark = "kept"
    layer.reset_parameters()
    assert layer.weight is weight and not torch.equal(values, weight)
    on_meta = te.Linear(8, 8, device="meta")
    on_meta.weight.mark = "kept"
    on_meta.reset_parameters()
    assert on_meta.weight.mark == "kept" and on_meta.weight.device.type != "meta"


@row("overlap-flags")
def _() -> None:
    names = ("ub_overlap_ag", "ub_overlap_rs", "ub_overlap_rs_dgrad", "ub_bulk_dgrad")
    layer = te.Linear(32, 32, **dict.fromkeys(names, True), ub_name="qkv")
    plain = te.Linear(32, 32)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(4, 32)
    assert torch.equal(layer(x), plain(x))


@row("symmetric-layers")
def _() -> None:
    userbuffers._told.clear()
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        options = {"tp_group": world(), "parallel_mode": "row"}
        with pytest.warns(UserWarning, match="'two_shot' asks .* the ordinary all-reduce runs"):
            layer = te.Linear(32, 32, symmetric_ar_type="two_shot", **options)
        assert layer(torch.ones(2, 16)).shape == (2, 32)
    finally:
        torch.distributed.destroy_process_group()


@row("whole-weights-drawn")
def _() -> None:
    layer = te.Linear(32, 32)
    shard = WeightShard(dim=0, rank=1, ranks=2)
    part = torch.empty(16, 32)
    torch.manual_seed(3)
    shard.draw(torch.nn.init.normal_, part)
    torch.manual_seed(3)
    torch.nn.init.normal_(layer.weight)
    assert torch.equal(part, layer.weight[16:])


def smoothed_losses(rank: int) -> list[float]:
    logits = torch.arange(8.0).view(1, 1, 8)[..., 4 * rank : 4 * rank + 4]
    target = torch.ones(1, 1, dtype=torch.int64)
    return te.parallel_cross_entropy(logits, target, 0.5, False, world()).flatten().tolist()


@row("smoothing-over-ranks")
def _() -> None:
    logits, target = torch.arange(8.0).view(1, 1, 8), torch.ones(1, 1, dtype=torch.int64)
    whole = torch.nn.functional.cross_entropy(logits[0], target[0], label_smoothing=0.5)
    first, second = ranks(2).run(smoothed_losses)
    assert first == second == pytest.approx([whole.item()])


@row("partial-sums")
def _() -> None:
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        layer = te.Linear(4, 1, tp_group=world(), parallel_mode="row", params_dtype=torch.bfloat16)
        with torch.no_grad():
            layer.weight.fill_(1)
            layer.bias.fill_(-256)
        # 256 + 0.5 needs more than the 8 bits of BF16 until the bias has been added.
        assert layer(torch.tensor([[256, 0.5]]).bfloat16()).item() == 0.5
    finally:
        torch.distributed.destroy_process_group()


# ---- optimizers ------------------------------------------------------------------------------


@row("sgd-bf16")
def _() -> None:
    weight = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    weight.grad = torch.ones_like(weight)
    te.optimizers.FusedSGD([weight], lr=0.5).step()
    assert weight.tolist() == [0.5] * 4


@row("sgd-first-step")
def _() -> None:
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    optimizer = te.optimizers.FusedSGD(weights, lr=1.0, momentum=0.5, dampening=0.5)
    for weight in weights:  # one step without, one with a gradient of the second
        weight.grad = torch.ones(2)
        optimizer.step()
    buffers = [optimizer.state[weight]["momentum_buffer"].tolist() for weight in weights]
    assert buffers == [[1.0, 1.0], [1.0, 1.0]]  # 0.5 * 1 + 0.5 * 1, and the gradient itself


@row("mixed-lists")
def _() -> None:
    flag = torch.zeros(1, dtype=torch.int32)
    inputs = [torch.ones(3), torch.ones(2, 3, dtype=torch.bfloat16).t()]
    outputs = [torch.empty(3, dtype=torch.float16), torch.empty(2, 3).t()]
    scale = te.optimizers.multi_tensor_scale
    te.optimizers.multi_tensor_applier(scale, flag, [inputs, outputs], 2.0)
    assert all((output == 2).all() for output in outputs)


@row("remainder-nan")
def _() -> None:
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    options = {"master_weights": True, "store_param_remainders": True}
    optimizer = te.optimizers.FusedAdam([weight], **options)
    every_bit = torch.tensor([2**31 - 1], dtype=torch.int32).view(torch.float32)  # as GPUs write it
    optimizer.set_scaled_state(weight, "master_param", every_bit)
    assert weight.isnan().all()
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert weight.isnan().all()


# ---- checkpoints -----------------------------------------------------------------------------


@row("extra-state-format")
def _() -> None:
    layer = te.Linear(32, 32)
    run(layer, DELAYED, torch.randn(8, 32)).sum().backward()
    state = layer.get_extra_state()
    run(layer, DELAYED, torch.randn(8, 32)).sum().backward()
    assert state.dtype == torch.uint8 and layer.get_extra_state().shape == state.shape
    assert isinstance(raised(lambda: pickle.loads(state.numpy().tobytes())), pickle.PickleError)
    other = te.Linear(32, 32)
    other.set_extra_state(state)
    assert torch.equal(other.get_extra_state(), state)


@row("extra-state-absent")
def _() -> None:
    layer, plain = te.Linear(16, 8), torch.nn.Linear(16, 8)
    layer.load_state_dict(plain.state_dict(), strict=True)
    assert torch.equal(layer.weight, plain.weight)


def write_to_shards(rank: int) -> tuple[float, list[int]]:
    """The amax that this rank's write has recorded, and the state that it would save."""
    with te.quantized_model_init(recipe=DELAYED):
        layer = te.Linear(32, 32, name="a")
    with te.autocast(recipe=DELAYED):
        layer.init_fp8_metadata()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
    with torch.no_grad():
        layer.weight.to_local().fill_(1.0 + rank)
    return forward_history(layer)[0, 1].item(), layer.get_extra_state().tolist()


@row("extra-state-of-shards")
def _() -> None:
    (first, state), (second, other) = ranks(2).run(write_to_shards)
    assert (first, second) == (1.0, 2.0)
    assert state == other
    buffers = decode(torch.tensor(state, dtype=torch.uint8), "test")
    assert buffers is not None
    assert buffers.amax_history_fwd[0].tolist() == [0.0, 2.0, 0.0]


@row("extra-state-kept")
def _() -> None:
    layer, x = te.Linear(32, 32), torch.randn(8, 32)
    run(layer, DELAYED, x)
    before = layer.get_extra_state()
    with torch.no_grad():
        layer(x)
    assert torch.equal(layer.get_extra_state(), before)


# ---- attention -------------------------------------------------------------------------------


@row("every-combination")
def _() -> None:
    sinks = attention(
        attn_mask_type="arbitrary",
        softmax_type="learnable",
        return_max_logit=True,
        num_gqa_groups=1,
    )
    keys = torch.randn(1, 4, 1, 16)
    out, maximum = sinks(
        qkv(),
        keys,
        keys,
        attention_mask=torch.zeros(1, 1, 4, 4, dtype=torch.bool),
        core_attention_bias_type="pre_scale_bias",
        core_attention_bias=torch.randn(1, 2, 4, 4),
        window_size=(1, 1),
    )
    assert out.shape == (1, 4, 32) and maximum.shape == (2,)


@row("masked-scores")
def _() -> None:
    q, keys, values = torch.full((1, 2, 2, 16), 100.0), torch.empty(1, 2, 2, 16), qkv(2).detach()
    keys[:, 0], keys[:, 1] = -100.0, 100.0  # scores -160000, and 160000 where masked
    out = attention(attn_mask_type="causal", softmax_scale=1.0)(q, keys, values)
    assert torch.equal(out[:, 0], values[:, 0].flatten(1))


@row("hidden-rows")
def _() -> None:
    x, mask = qkv(), torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    mask[:, :, 2] = True
    out = attention(attn_mask_type="arbitrary")(x, x, x, attention_mask=mask)
    out.sum().backward()
    assert not out[:, 2].any() and torch.isfinite(x.grad).all()


# ---- kept ------------------------------------------------------------------------------------


@row("unknown-recipe-arguments")
def _() -> None:
    assert DelayedScaling(params_dtype=torch.float32, margin=1) == DelayedScaling(margin=1)


@row("parallel-attributes")
def _() -> None:
    for module in (te.Linear(8, 8), te.LayerNormLinear(8, 8)):
        assert module.weight.tensor_model_parallel and module.weight.partition_dim == 0


@row("delayed-assignment")
def _() -> None:
    layer, x = te.Linear(8, 8, delay_wgrad_compute=True), torch.ones(4, 8)
    for _ in range(2):
        layer(x).sum().backward()
        layer.backward_dw()
        assert torch.equal(layer.weight.grad, torch.full((8, 8), 4.0))


@row("empty-returned-bias")
def _() -> None:
    x, options = torch.randn(4, 32), {"bias": False, "return_bias": True}
    assert te.Linear(32, 32, **options)(x)[1] is None
    assert te.LayerNormMLP(32, 32, **options)(x)[1] is None
    assert te.LayerNormLinear(32, 32, **options)(x)[1].numel() == 0


@row("module-casts")
def _() -> None:
    with te.quantized_model_init(recipe=CURRENT):
        layer = te.Linear(32, 32)
    data = layer.weight._data.clone()
    layer.bfloat16()
    assert layer.weight.dtype == torch.bfloat16 and torch.equal(layer.weight._data, data)
    assert torch.nn.Linear(2, 2).half().weight.dtype == torch.float16


@row("drop-path-rows")
def _() -> None:
    layer = te.TransformerLayer(
        32, 64, 2, drop_path_rate=0.5, hidden_dropout=0.0, attention_dropout=0.0
    )
    x = torch.randn(64, 3, 32)  # sbhd
    is_unchanged = layer(x) == x
    whole = is_unchanged.flatten(1).all(dim=1)
    assert 0 < whole.sum() < 64  # both branches dropped: a quarter of the positions
    for position in is_unchanged[~whole]:  # the samples of a position stand or fall together
        assert not position.all(dim=1).any()


@row("rope-rounding")
def _() -> None:
    angles, x = te.RotaryPositionEmbedding(32)(16), torch.randn(16, 2, 2, 32)
    exact = apply_rotary_pos_emb(x.bfloat16().float(), angles, fused=False)
    fused = apply_rotary_pos_emb(x.bfloat16(), angles, fused=True)
    unfused = apply_rotary_pos_emb(x.bfloat16(), angles, fused=False)
    assert torch.equal(fused, exact.bfloat16()) and not torch.equal(unfused, fused)


def broadcast_twice(rank: int) -> list[bool]:
    """Whether a fresh model has the first rank's values, after one load and after two."""

    def make() -> Any:
        with te.quantized_model_init(recipe=DELAYED):
            layer = te.Linear(32, 32, name="a", device="cpu")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))

    source, target = make(), make()
    run(source, DELAYED, torch.randn(8, 32))
    source.reshard()
    with torch.no_grad():  # under a scale that has followed from that run
        source.weight.to_local().mul_(1.1)
    saved = get_model_state_dict(source, options=StateDictOptions(full_state_dict=True))
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    found = []
    for _ in range(2):
        set_model_state_dict(target, dict(saved) if rank == 0 else {}, options=options)
        found.append(torch.equal(target.weight.full_tensor().dequantize(), saved["weight"]))
    return found


@row("broadcast-rounds")
def _() -> None:
    assert ranks(2).run(broadcast_twice) == [[False, True]] * 2


def block_quantizers() -> list[te.Quantizer]:
    dtype = te.DType.kFloat8E4M3
    return [
        te.MXFP8Quantizer(dtype),
        te.Float8BlockQuantizer(dtype, rowwise=True, columnwise=True),
        te.NVFP4Quantizer(),
    ]


# ---- not in this version ---------------------------------------------------------------------


def world() -> object:
    return torch.distributed.group.WORLD


def enter(recipe: Recipe) -> object:
    return te.autocast(recipe=recipe).__enter__()


def build_quantized(recipe: Recipe) -> object:
    with te.quantized_model_init(recipe=recipe):
        return te.Linear(32, 32)


def call_attention(**options: object) -> object:
    return attention()(qkv(), qkv(), qkv(), **options)


def current_quantizer() -> te.Quantizer:
    return te.Float8CurrentScalingQuantizer(te.DType.kFloat8E4M3, torch.device("cpu"))


refuses(
    "parallel-transforms",
    lambda: torch.func.vmap(te.Linear(32, 32, tp_group=world(), parallel_mode="row"))(
        torch.ones(2, 3, 16)
    ),
    lambda: compiled.refuse_gathered_norm_output(
        te.LayerNormLinear(
            *(32, 32),
            tp_group=world(),
            parallel_mode="column",
            sequence_parallel=True,
            return_layernorm_output=True,
            return_layernorm_output_gathered=True,
        )
    ),
    lambda: te.parallel_cross_entropy(
        torch.empty(2, 2, 4, device="meta"),
        torch.empty(2, 2, dtype=torch.int64, device="meta"),
        dist_process_group=world(),
    ),
)
refuses(
    "context-parallel",
    lambda: attention(cp_group=world()),
    lambda: attention().set_context_parallel_group(world(), [0, 1], None),
)
refuses("cublasmp", lambda: te.initialize_ub((8, 8), 2, with_cublasmp=True))
refuses(
    "symmetric-all-reduce", lambda: symmetric_all_reduce(torch.ones(2), all_reduce_type="two_shot")
)
refuses(
    "mxfp8-attention",
    lambda: run(lambda x: attention()(x, x, x), MXFP8BlockScaling(fp8_dpa=True), qkv()),
    lambda: run(lambda x: attention()(x, x, x), MXFP8BlockScaling(fp8_mha=True), qkv()),
)


def cast_master(quantizer: te.Quantizer, without: bool = False) -> None:
    weight = quantizer(torch.ones(16, 16))
    if without:
        weight._quantizer = None
    tensor_utils.quantize_master_weights([weight], [None], [0], None)


refuses(
    "master-weights",
    lambda: tensor_utils.quantize_master_weights([torch.ones(3)], [None], [0], None),
    lambda: cast_master(current_quantizer(), without=True),
    lambda: cast_master(te.NVFP4Quantizer(with_2d_quantization=True), without=True),
    lambda: cast_master(te.NVFP4Quantizer(stochastic_rounding=True)),
    lambda: tensor_utils.post_all_gather_processing([torch.ones(3)]),
)
refuses(
    "onnx",
    lambda: current_quantizer().onnx_quantize(torch.ones(2)),
    lambda: current_quantizer().onnx_dequantize(torch.ones(2)),
)
refuses(
    "key-value-cache",
    lambda: te.InferenceParams(1, 8),
    lambda: call_attention(inference_params=object()),
    lambda: te.MultiheadAttention(32, 2)(torch.randn(4, 1, 32), inference_params=object()),
)
refuses(
    "score-functions",
    lambda: call_attention(score_mod=lambda graph, score, tensors: score),
    lambda: call_attention(score_mod_tensors={"x": torch.ones(1)}),
)
refuses(
    "quantized-transforms",
    lambda: run(te.Linear(32, 32), Float8CurrentScaling(), torch.randn(4, 32, device="meta")),
    lambda: run(torch.func.vmap(te.LayerNormMLP(32, 32)), DELAYED, torch.randn(2, 4, 32)),
)


def test_a_symbolic_trace_is_refused_and_other_tracers_take_its_place():
    module, x = te.LayerNorm(8), torch.randn(2, 8)
    with pytest.raises(TypeError, match="input has type Proxy"):
        torch.fx.symbolic_trace(module)
    torch.testing.assert_close(make_fx(module)(x)(x), module(x))
    torch.testing.assert_close(torch.export.export(module, (x,)).module()(x), module(x))


refuses(
    "transformed-gradients",
    lambda: torch.func.vmap(te.Linear(32, 32, fuse_wgrad_accumulation=True))(torch.randn(4, 32)),
    lambda: torch.func.vmap(te.Linear(32, 32, delay_wgrad_compute=True))(torch.randn(4, 32)),
)
refuses(
    "expert-layers",
    lambda: te.GroupedLinear(2, 32, 32),
    lambda: te.router.fused_topk_with_score_function(torch.ones(2, 4), 1, False),
    lambda: te.router.fused_compute_score_for_moe_aux_loss(torch.ones(2, 4), 1, "softmax"),
    lambda: te.router.fused_moe_aux_loss(torch.ones(2, 4), torch.ones(4), 2, 4, 1, 0.1),
)
refuses("fusible-operations", lambda: te.ops.Sequential(), lambda: te.ops.FusibleOperation())
refuses(
    "cuda",
    lambda: current_quantizer()(torch.empty(4, 32, device="meta")),
)


def test_two_combinations_exist_in_no_version():
    for call in (
        lambda: te.LayerNormLinear(32, 32, parallel_mode="row"),
        lambda: te.LayerNormMLP(32, 32, activation="situglu"),
    ):
        with pytest.raises(NotImplementedError):
            call()


def test_the_interface_level_is_the_one_the_page_names():
    level = re.search(r"interface level (\d+\.\d+)", PAGE).group(1)
    assert transformer_engine.__version__.startswith(f"{level}.")
