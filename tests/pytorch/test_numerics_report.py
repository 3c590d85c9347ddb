# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""`te.numerics_report`: its numbers, its names, and that it leaves everything as it was."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import transformer_engine.pytorch as te
from helpers.formats import E4M3, E5M2, FORMATS, decode_table, encode_reference
from helpers.ranks import ranks
from helpers.tolerances import gamma
from transformer_engine.common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)
from transformer_engine.pytorch.quantization import FP8GlobalStateManager

CURRENT = Float8CurrentScaling()
RECIPES = {
    "delayed": DelayedScaling(amax_history_len=4),
    "current": CURRENT,
    "blocks": Float8BlockScaling(),
    "mxfp8": MXFP8BlockScaling(),
    "nvfp4": NVFP4BlockScaling(),
    "custom": CustomRecipe(
        qfactory=lambda role: te.Float8CurrentScalingQuantizer(
            te.DType.kFloat8E4M3, device=torch.get_default_device()
        )
    ),
}
PRODUCTS = [
    *(("fprop", "input"), ("fprop", "weight"), ("dgrad", "grad_output")),
    *(("dgrad", "weight"), ("wgrad", "input"), ("wgrad", "grad_output")),
]


@pytest.fixture(autouse=True)
def fresh_state():
    yield
    FP8GlobalStateManager.reset()


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype)


def small_model() -> torch.nn.Module:
    return torch.nn.Sequential(
        te.TransformerLayer(
            *(32, 64, 2), hidden_dropout=0.1, attention_dropout=0.1, params_dtype=torch.float32
        ),
        torch.nn.BatchNorm1d(8),
        te.LayerNormLinear(32, 24),
    )


def snr_db(exact: torch.Tensor, other: torch.Tensor) -> float:
    exact, other = exact.double(), other.double()
    return 10 * math.log10((exact.square().sum() / (exact - other).square().sum()).item())


# --- numbers ----------------------------------------------------------------------------------


@pytest.mark.smoke
def test_a_linear_layer_has_six_operands_with_their_own_measures():
    layer, x, grad = te.Linear(48, 20), draw(10, 48), draw(10, 20)
    report = te.numerics_report(layer, x, recipe=CURRENT, grad_output=grad)
    assert [(row.gemm, row.operand) for row in report.rows] == PRODUCTS
    sources = {"input": x, "weight": layer.weight.detach(), "grad_output": grad}
    for row in report.rows:
        source = sources[row.operand]
        fmt = E5M2 if row.operand == "grad_output" else E4M3
        scale = torch.tensor(fmt.max_value) / source.abs().max()
        codes = encode_reference((source * scale).double(), fmt)
        values = (decode_table(fmt)[codes.long()].float() * (1 / scale)).double()
        assert row.format == f"{'E5M2' if fmt is E5M2 else 'E4M3'}/tensor"
        assert (row.module, row.call) == ("Linear", 0)
        assert row.shape == tuple(source.shape)
        assert row.amax == source.abs().max().item()
        assert row.scale_min == row.scale_max == pytest.approx(scale.item(), rel=1e-6)
        assert row.saturated == 0.0
        assert row.flushed == ((values == 0) & (source != 0)).double().mean().item()
        assert row.snr_db == pytest.approx(snr_db(source, values), abs=1e-6)


def test_errors_are_those_against_fp32_arithmetic_on_the_same_values():
    layer, x, grad = te.Linear(48, 20), draw(10, 48), draw(10, 20)
    report = te.numerics_report(layer, x, recipe=CURRENT, grad_output=grad)
    leaf = x.clone().requires_grad_()
    with te.autocast(recipe=CURRENT):
        y = layer(leaf)
    y.backward(grad)
    weight = layer.weight.detach().double()
    exact = {
        "output": x.double() @ weight.t() + layer.bias.detach().double(),
        "grad_input": grad.double() @ weight,
        "grad weight": grad.double().t() @ x.double(),
    }
    results = {"output": y.detach(), "grad_input": leaf.grad, "grad weight": layer.weight.grad}
    assert [error.tensor for error in report.errors] == list(exact)
    for error in report.errors:
        reference, result = exact[error.tensor], results[error.tensor].double()
        # The report's reference is rounded in FP32: sums of k products.
        slack = gamma(50, FORMATS[torch.float32]) * 10
        assert error.relative_error == pytest.approx(
            ((result - reference).norm() / reference.norm()).item(), abs=slack
        )
        assert error.snr_db == pytest.approx(-20 * math.log10(error.relative_error), abs=1e-6)
        assert error.shape == tuple(result.shape)
        assert 0.001 < error.relative_error < 0.1


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("kind", ["Linear", "LayerNormLinear", "LayerNormMLP"])
def test_every_recipe_and_layer_is_reported(kind, recipe):
    layer = getattr(te, kind)(32, 40)
    report = te.numerics_report(layer, draw(3, 7, 32), recipe=recipe)
    names = [f"{kind}.fc1", f"{kind}.fc2"] if kind == "LayerNormMLP" else [kind]
    assert [(row.module, row.gemm, row.operand) for row in report.rows] == [
        (name, *product) for name in names for product in PRODUCTS
    ]
    weights = 2 if kind == "LayerNormMLP" else 1
    assert len(report.errors) == 2 + weights
    for row in report.rows:
        assert row.amax > 0 and row.scale_min <= row.scale_max
        # Gradients of an untrained layer with the scale 1 of delayed scaling can all vanish.
        assert row.snr_db > 10 or (recipe.delayed() and row.operand == "grad_output")
        assert 0 <= row.saturated <= 1 and 0 <= row.flushed <= 1
    assert report.recipe == repr(recipe)


def formats_of(recipe, **options) -> dict[tuple[str, str], str]:
    report = te.numerics_report(te.Linear(32, 40, **options), draw(32, 32), recipe=recipe)
    return {(row.gemm, row.operand): row.format for row in report.rows}


def test_formats_say_blocks_and_modes_per_product():
    assert list(formats_of(Float8BlockScaling()).values()) == [
        *("E4M3/1x128", "E4M3/128x128", "E4M3/1x128", "E4M3/128x128", "E4M3/1x128", "E4M3/1x128"),
    ]
    assert set(formats_of(MXFP8BlockScaling()).values()) == {"MXFP8-E4M3/32"}
    tiled = formats_of(MXFP8BlockScaling(enable_2d_quantization=True))
    assert tiled["fprop", "weight"] == tiled["dgrad", "weight"] == "MXFP8-E4M3/32x32"
    assert formats_of(NVFP4BlockScaling()) == {
        ("fprop", "input"): "NVFP4/16",
        ("fprop", "weight"): "NVFP4/16x16",
        ("dgrad", "grad_output"): "NVFP4/16+SR",
        ("dgrad", "weight"): "NVFP4/16x16",
        ("wgrad", "input"): "NVFP4/16+RHT",
        ("wgrad", "grad_output"): "NVFP4/16+RHT+SR",
    }
    rows = formats_of(
        NVFP4BlockScaling(
            disable_rht=True, disable_stochastic_rounding=True, row_scaled_activation=True
        )
    )
    assert rows["fprop", "input"] == "NVFP4/16+rows" and rows["wgrad", "input"] == "NVFP4/16"


def test_formats_name_four_over_six_where_it_is():
    options = {"disable_rht": True, "disable_stochastic_rounding": True}
    for tensors, expected in {
        "weights": ("NVFP4/16", "NVFP4/16x16+4over6"),
        "activations": ("NVFP4/16+4over6", "NVFP4/16x16"),
        "all": ("NVFP4/16+4over6", "NVFP4/16x16+4over6"),
    }.items():
        recipe = NVFP4BlockScaling(nvfp4_4over6=tensors, **options)
        found = formats_of(recipe)
        assert (found["fprop", "input"], found["fprop", "weight"]) == expected
        assert (found["wgrad", "input"], found["dgrad", "weight"]) == expected
        assert found["dgrad", "grad_output"] == found["wgrad", "grad_output"] == "NVFP4/16"
        with te.quantized_model_init(recipe=recipe):
            layer = te.Linear(32, 40)
        report = te.numerics_report(layer, draw(32, 32), recipe=recipe)
        weights = {row.format for row in report.rows if row.operand == "weight"}
        assert weights == {expected[1]}
    rows = formats_of(NVFP4BlockScaling(nvfp4_4over6="all", row_scaled_activation=True, **options))
    assert rows["fprop", "input"] == "NVFP4/16+rows+4over6"


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("share", ["one", "all"])
def test_nan_shows_as_nan_in_both_errors(recipe, share):
    layer, x = te.Linear(32, 40), draw(32, 32)
    x[(0, 0) if share == "one" else ...] = math.nan
    report = te.numerics_report(layer, x, recipe=recipe)
    inputs = [row for row in report.rows if row.operand == "input"]
    assert len(inputs) == 2 and all(math.isnan(row.snr_db) for row in inputs)
    assert all(math.isfinite(row.snr_db) for row in report.rows if row.operand == "weight")
    for error in report.errors:
        assert math.isnan(error.relative_error) == math.isnan(error.snr_db)
        if error.tensor in ("output", "grad weight"):
            assert math.isnan(error.snr_db)
    lines = str(report).split("\n\n")[2].splitlines()[2:]
    assert all(line.split()[-2:] == ["nan", "nan"] for line in lines if "output" in line)


def test_saturation_under_an_outgrown_scale_is_seen():
    layer, recipe = te.Linear(16, 16), DelayedScaling(amax_history_len=1)
    x = draw(64, 16)
    with te.autocast(recipe=recipe):
        layer(x)
    scale = layer.fp8_meta["scaling_fwd"].scale[0].item()
    report = te.numerics_report(layer, 8 * x, recipe=recipe)
    row = report.rows[0]
    assert row.scale_min == pytest.approx(scale, rel=1e-6)
    assert row.saturated == ((8 * x).abs().double() * scale >= 464).double().mean().item() > 0.1


def hybrid(role):
    """FP8 forward, MXFP8 backward; delayed scaling has state that must stay."""
    rowwise = te.Float8CurrentScalingQuantizer(
        te.DType.kFloat8E4M3, device=torch.get_default_device()
    )
    columnwise = te.MXFP8Quantizer(te.DType.kFloat8E5M2)
    if role is not None and role.tensor_type == "weight":
        rowwise = te.Float8Quantizer(torch.full((1,), 8.0), hybrid.amax, te.DType.kFloat8E4M3)
    return te.HybridQuantizer(rowwise_quantizer=rowwise, columnwise_quantizer=columnwise)


def test_each_half_of_a_hybrid_quantizer_has_its_rows():
    hybrid.amax = torch.zeros(1)
    found = formats_of(CustomRecipe(qfactory=hybrid))
    assert {name for (gemm, _), name in found.items() if gemm == "fprop"} == {"E4M3/tensor"}
    assert found["dgrad", "grad_output"] == "E4M3/tensor"
    assert found["dgrad", "weight"] == found["wgrad", "input"] == "MXFP8-E5M2/32"
    assert hybrid.amax.item() == 0


def test_a_custom_quantizer_of_the_users_is_shown_by_its_class():
    class Halves(te.IdentityQuantizer):
        def quantize_impl(self, tensor):
            return (tensor * 2).round() / 2

        def copy(self):
            return Halves()

    recipe = CustomRecipe(
        qfactory=lambda role: (
            Halves() if role and role.tensor_type == "input" else te.IdentityQuantizer()
        )
    )
    x = draw(9, 16)
    report = te.numerics_report(te.Linear(16, 8), x, recipe=recipe)
    first, weight = report.rows[:2]
    assert first.format == "Tensor" and weight.format == "float32"
    assert first.snr_db == pytest.approx(snr_db(x, (x * 2).round() / 2), abs=1e-6)
    assert first.flushed == ((x.abs() <= 0.25) & (x != 0)).double().mean().item()
    assert weight.snr_db == math.inf and weight.scale_min is None


# --- where layers are and when they run -------------------------------------------------------


def test_layers_of_a_transformer_have_their_names_in_the_order_of_calls():
    report = te.numerics_report(small_model().eval(), draw(8, 8, 32), recipe=CURRENT)
    names = list(dict.fromkeys(row.module for row in report.rows))
    mlp = "0.layernorm_mlp"
    assert names == [
        *("0.self_attention.layernorm_qkv", "0.self_attention.proj", f"{mlp}.fc1", f"{mlp}.fc2"),
        "2",
    ]
    assert [e.module for e in report.errors if e.tensor == "output"] == [*names[:2], mlp, "2"]


def test_a_layer_that_is_used_twice_has_two_calls_with_their_own_gradients():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = te.Linear(16, 16)

        def forward(self, x):
            return self.layer(torch.tanh(self.layer(x)))

    model, x = Twice(), draw(6, 16)
    report = te.numerics_report(model, x, recipe=CURRENT)
    assert [row.call for row in report.rows] == [0] * 6 + [1] * 6
    inputs = [row.amax for row in report.rows if (row.gemm, row.operand) == ("fprop", "input")]
    with te.autocast(recipe=CURRENT):
        second = torch.tanh(model.layer(x))
    assert inputs == [x.abs().max().item(), second.abs().max().item()]
    outer, inner = (
        next(r.amax for r in report.rows if r.call == call and r.operand == "grad_output")
        for call in (1, 0)
    )
    with te.autocast(recipe=CURRENT):
        output = model(x)
    assert outer == pytest.approx((output / output.numel()).abs().max().item())
    assert inner != outer
    # Each call's weight gradient is compared with its own reference.
    assert all(e.relative_error < 0.2 for e in report.errors)
    assert sum(e.tensor == "grad weight" for e in report.errors) == 2


def test_the_region_around_the_call_gives_the_recipe():
    layer, x = te.Linear(16, 16), draw(4, 16)
    with te.autocast(recipe=MXFP8BlockScaling()):
        inside = te.numerics_report(layer, x)
        chosen = te.numerics_report(layer, x, recipe=CURRENT)
        assert FP8GlobalStateManager.get_fp8_recipe() == MXFP8BlockScaling()
    outside = te.numerics_report(layer, x)
    formats = [report.rows[0].format for report in (inside, chosen, outside)]
    assert formats == ["MXFP8-E4M3/32", "E4M3/tensor", "E4M3/tensor"]
    assert outside.recipe == repr(te.get_default_recipe())
    assert not FP8GlobalStateManager.is_fp8_enabled()


def test_regions_inside_the_model_count_for_what_runs_in_them():
    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.low, self.high = te.Linear(16, 16), te.Linear(16, 16)

        def forward(self, x):
            with te.autocast(recipe=MXFP8BlockScaling()):
                x = self.low(x)
            with te.autocast(enabled=False):
                return self.high(x)

    model = Mixed()
    report = te.numerics_report(model, draw(4, 16), recipe=CURRENT)
    assert {(row.module, row.format) for row in report.rows} == {("low", "MXFP8-E4M3/32")}
    errors = {e.module: e.relative_error for e in report.errors if e.tensor == "output"}
    assert errors["high"] < 1e-6 < errors["low"]
    assert "recipe" not in model.low.fp8_meta


@pytest.mark.parametrize("override", ["high_precision", "dequantized"])
def test_operands_that_stay_unquantized_have_no_row_but_results_have_errors(override):
    recipe = MXFP8BlockScaling(backward_override=override)
    report = te.numerics_report(te.Linear(32, 16), draw(8, 32), recipe=recipe)
    assert [(row.gemm, row.operand) for row in report.rows] == PRODUCTS[:2]
    errors = {error.tensor: error.relative_error for error in report.errors}
    assert set(errors) == {"output", "grad_input", "grad weight"}
    assert (errors["grad weight"] < 1e-6) == (override == "high_precision")


def test_frozen_weights_have_no_weight_gradient():
    layer = te.Linear(16, 16).requires_grad_(False)
    report = te.numerics_report(layer, draw(4, 16), recipe=CURRENT)
    assert [(row.gemm, row.operand) for row in report.rows] == PRODUCTS[:4]
    assert [error.tensor for error in report.errors] == ["output", "grad_input"]


def test_without_backward_only_fprop_is_reported():
    report = te.numerics_report(te.Linear(16, 16), draw(4, 16), recipe=CURRENT, backward=False)
    assert {row.gemm for row in report.rows} == {"fprop"}
    assert [error.tensor for error in report.errors] == ["output"]


@pytest.mark.parametrize("name", ["current", "mxfp8"])
def test_recomputation_changes_nothing(name):
    torch.manual_seed(3)
    plain = te.LayerNormMLP(32, 64)
    repeated = te.LayerNormMLP(32, 64, checkpoint=True)
    repeated.load_state_dict(plain.state_dict())

    class Checkpointed(torch.nn.Module):
        def forward(self, x):
            return checkpoint(plain, x, use_reentrant=False)

    checkpointed = Checkpointed()
    checkpointed.layer = plain
    x = draw(9, 32)
    expected = te.numerics_report(plain, x, recipe=RECIPES[name]).to_dict()
    for model in (repeated, checkpointed):
        found = te.numerics_report(model, x, recipe=RECIPES[name]).to_dict()
        for row in (*found["rows"], *found["errors"]):
            row["module"] = row["module"].replace("layer", "LayerNormMLP", 1)
        assert found == expected


def test_quantized_parameters_have_range_and_scales_alone():
    with te.quantized_model_init(recipe=CURRENT):
        layer = te.Linear(32, 16)
    report = te.numerics_report(layer, draw(8, 32), recipe=CURRENT)
    weights = [row for row in report.rows if row.operand == "weight"]
    assert [row.gemm for row in weights] == ["fprop", "dgrad"]
    for row in weights:
        assert row.amax == layer.weight.dequantize().abs().max().item()
        assert row.scale_min == pytest.approx(1 / layer.weight._scale_inv.item())
        assert (row.saturated, row.flushed, row.snr_db) == (None, None, None)
    # The reference takes the values that the parameter holds.
    assert next(e for e in report.errors if e.tensor == "output").relative_error < 0.05


def test_a_quantized_input_is_shown_as_it_came():
    x = RECIPES["custom"].qfactory(None)(draw(8, 32))
    report = te.numerics_report(te.Linear(32, 16), x, recipe=CURRENT)
    row = report.rows[0]
    assert (row.gemm, row.operand, row.snr_db) == ("fprop", "input", None)
    assert row.amax == x.dequantize().abs().max().item()


def test_low_precision_activations_and_keyword_arguments():
    layer = te.Linear(32, 16)
    with torch.autocast("cpu", torch.bfloat16):
        report = te.numerics_report(
            layer, (), recipe=CURRENT, kwargs={"inp": draw(8, 32), "is_first_microbatch": True}
        )
    assert len(report.rows) == 6
    # Results are BF16 here: half a unit of 2^-8 at most beside FP8's own error.
    assert report.errors[0].relative_error < 0.06


def test_empty_inputs_have_no_error():
    for recipe in RECIPES.values():
        report = te.numerics_report(te.Linear(32, 16), torch.empty(0, 32), recipe=recipe)
        assert len(report.rows) == 6
        assert all(error.relative_error == 0 for error in report.errors)


def test_it_works_where_gradients_are_off():
    layer, x = te.Linear(16, 16), draw(4, 16)
    expected = te.numerics_report(layer, x, recipe=CURRENT)
    with torch.no_grad():
        assert te.numerics_report(layer, x, recipe=CURRENT) == expected
    with torch.inference_mode():
        assert te.numerics_report(layer, x, recipe=CURRENT) == expected


# --- everything stays -------------------------------------------------------------------------


def state_of(model: torch.nn.Module) -> dict:
    """What a report must not change."""
    hooks = (
        "_forward_hooks",
        "_forward_pre_hooks",
        "_forward_hooks_with_kwargs",
        "_backward_hooks",
    )
    return {
        "values": {name: value.clone() for name, value in model.state_dict().items()},
        "identities": [id(p) for p in model.parameters()],
        "gradients": [
            (id(p.grad), p.grad.clone()) for p in model.parameters() if p.grad is not None
        ],
        "attributes": [
            {
                key: id(value)
                for key, value in vars(module).items()
                if not isinstance(value, (bool, int, float, str))
            }
            for module in model.modules()
        ],
        "hooks": [len(getattr(m, name)) for m in model.modules() for name in hooks],
        "steps": [id(getattr(m, "_step", None)) for m in model.modules()],
        "flags": [m.training for m in model.modules()],
        "random": torch.get_rng_state(),
    }


def assert_same_state(before: dict, after: dict) -> None:
    for name, value in before["values"].items():
        assert torch.equal(value, after["values"][name]), name
    for (identity, grad), (other, now) in zip(before["gradients"], after["gradients"], strict=True):
        assert identity == other and torch.equal(grad, now)
    for key in ("identities", "attributes", "hooks", "steps", "flags"):
        assert before[key] == after[key], key
    assert torch.equal(before["random"], after["random"])


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, recipe) -> float:
    with te.autocast(recipe=recipe):
        loss = model(draw(8, 8, 32)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_report_in_the_middle_of_training_leaves_no_trace(recipe):
    def run(with_report: bool) -> list[float]:
        torch.manual_seed(5)
        model = small_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(2):
            losses.append(train_step(model, optimizer, recipe))
            if with_report:
                before = state_of(model)
                te.numerics_report(model, torch.ones(8, 8, 32), recipe=recipe)
                te.numerics_report(model, torch.ones(8, 8, 32), recipe=MXFP8BlockScaling())
                assert_same_state(before, state_of(model))
            optimizer.zero_grad()
        return losses

    assert run(with_report=True) == run(with_report=False)


def test_a_report_before_the_first_step_leaves_no_trace():
    model = small_model()
    before = state_of(model)
    te.numerics_report(model, draw(8, 8, 32), recipe=DelayedScaling())
    torch.set_rng_state(before["random"])  # the input was drawn here
    assert_same_state(before, state_of(model))
    assert all("recipe" not in m.fp8_meta for m in model.modules() if hasattr(m, "fp8_meta"))


def test_a_loaded_scaling_state_is_used_and_keeps_waiting():
    trained, fresh = te.Linear(16, 16), te.Linear(16, 16)
    recipe = DelayedScaling(amax_history_len=2)
    with te.autocast(recipe=recipe):
        trained(4 * draw(8, 16))
    fresh.load_state_dict(trained.state_dict())
    report = te.numerics_report(fresh, draw(8, 16), recipe=recipe)
    scale = trained.fp8_meta["scaling_fwd"].scale[0].item()
    assert report.rows[0].scale_min == pytest.approx(scale, rel=1e-6) and scale != 1
    assert fresh.fp8_meta["loaded_buffers"] is not None
    assert torch.equal(fresh.get_extra_state(), trained.get_extra_state())


def test_an_error_in_the_model_leaves_no_trace():
    model = small_model()
    model.append(torch.nn.Linear(7, 7))
    before = state_of(model)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        te.numerics_report(model, torch.ones(8, 8, 32), recipe=CURRENT)
    assert_same_state(before, state_of(model))
    assert not FP8GlobalStateManager.is_fp8_enabled()


def test_buffers_for_weight_gradients_stay():
    layer = te.Linear(16, 16, fuse_wgrad_accumulation=True, delay_wgrad_compute=True)
    layer.weight.main_grad = torch.ones(16, 16)
    report = te.numerics_report(layer, draw(4, 16), recipe=CURRENT)
    assert [error.tensor for error in report.errors] == ["output", "grad_input", "grad weight"]
    assert torch.equal(layer.weight.main_grad, torch.ones(16, 16)) and layer.weight.grad is None
    assert layer.fuse_wgrad_accumulation and layer.delay_wgrad_compute
    assert len(layer.wgrad_store) == 0


def test_hooks_of_the_model_run_and_stay():
    layer, seen = te.Linear(16, 16), []
    layer.register_forward_pre_hook(lambda module, args: (2 * args[0],))
    layer.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    layer.weight.register_hook(lambda gradient: 3 * gradient)
    x = draw(4, 16)
    report = te.numerics_report(layer, x, recipe=CURRENT)
    assert report.rows[0].amax == 2 * x.abs().max().item()
    assert seen == [(4, 16)]
    assert all(error.relative_error < 0.1 for error in report.errors)


def test_random_state_trackers_stay():
    tracker = te.CudaRNGStatesTracker()
    tracker.add("model-parallel-rng", 7)
    layer = te.TransformerLayer(
        32, 64, 2, attention_dropout=0.5, get_rng_state_tracker=lambda: tracker
    )
    (generator,) = tracker.states_.values()
    state = generator.get_state()
    te.numerics_report(layer, draw(4, 2, 32), recipe=CURRENT)
    assert tracker.states_["model-parallel-rng"] is generator
    assert torch.equal(generator.get_state(), state)
    with tracker.fork():
        torch.rand(1)
    assert not torch.equal(generator.get_state(), state)


def test_a_compiled_model_is_reported_inside():
    model = torch.nn.Sequential(te.Linear(16, 16))
    check_inside(torch.compile(model, backend="eager"))


def check_inside(wrapped):
    report = te.numerics_report(wrapped, draw(4, 16), recipe=CURRENT)
    assert {row.module for row in report.rows} == {"0"}


def report_in_parallel(_rank):
    parallel = DistributedDataParallel(torch.nn.Sequential(te.Linear(16, 16)))
    check_inside(parallel)
    parallel(draw(4, 16)).sum().backward()  # its own bookkeeping is intact


@pytest.mark.slow  # starts processes
def test_a_data_parallel_model_is_reported_inside():
    ranks(2).run(report_in_parallel)


# --- text and data ----------------------------------------------------------------------------


def test_the_text_is_two_aligned_tables():
    model = torch.nn.Sequential(te.Linear(16, 16), te.LayerNormMLP(16, 32))
    report = te.numerics_report(model, draw(4, 16), recipe=MXFP8BlockScaling())
    recipe, operands, errors = str(report).split("\n\n")
    assert recipe == repr(MXFP8BlockScaling()) and repr(report) == str(report)
    for text, rows, title in (
        (operands, report.rows, "SNR dB"),
        (errors, report.errors, "relative error"),
    ):
        lines = text.splitlines()
        assert len(lines) == 2 + len(rows) and set(lines[1]) == {"-"}
        end = lines[0].index(title) + len(title)
        assert title in lines[0]
        assert all(line[end - 1] != " " and line[end : end + 1] in ("", " ") for line in lines[2:])
    assert "1.fc1" in operands and "MXFP8-E4M3/32" in operands


def test_repeated_calls_and_unknown_measures_have_a_text():
    row = te.OperandRow(
        "layer", 2, "fprop", "weight", "E4M3/tensor", (3, 4), 1.5, 2.0, 2.0, None, None, None
    )
    text = str(te.NumericsReport("recipe", [row], []))
    line = text.splitlines()[4]
    assert line.split() == ["layer[2]", "fprop", "weight", "E4M3/tensor", "3x4", "1.5", "2", *"---"]


def test_the_data_are_plain_values():
    report = te.numerics_report(te.Linear(16, 16), draw(4, 16), recipe=CURRENT)
    data = json.loads(json.dumps(report.to_dict()))
    assert data["recipe"] == repr(CURRENT)
    assert data["rows"][0]["shape"] == [4, 16] and len(data["errors"]) == 3
    assert data["rows"][0]["snr_db"] == report.rows[0].snr_db


# --- arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"module": 3}, TypeError, "module is 3; a torch.nn.Module is required"),
        (
            {"module": torch.nn.Linear(4, 4)},
            ValueError,
            "module is a Linear without a Linear, LayerNormLinear or LayerNormMLP",
        ),
        ({"recipe": "fp8"}, TypeError, "recipe is 'fp8'; an instance of a recipe class, or None"),
        ({"recipe": Float8CurrentScaling}, TypeError, "recipe is of type type"),
        ({"kwargs": [1]}, TypeError, r"kwargs is \[1\]; a dict of keyword arguments"),
        ({"backward": "no"}, TypeError, "backward is 'no'; it must be True or False"),
        ({"grad_output": 1.0}, TypeError, "grad_output is 1.0; it must be a torch.Tensor"),
        (
            {"grad_output": torch.zeros(2, 2)},
            ValueError,
            r"grad_output has shape \(2, 2\); \(4, 16\), the shape of the output",
        ),
    ],
)
def test_wrong_arguments_are_refused_by_name(arguments, error, message):
    layer = te.Linear(16, 16)
    before = state_of(layer)
    given = {"module": layer, "input": torch.ones(4, 16), "recipe": CURRENT, **arguments}
    with pytest.raises(error, match=f"numerics_report: {message}"):
        te.numerics_report(given.pop("module"), given.pop("input"), **given)
    assert_same_state(before, state_of(layer))


def test_a_model_that_returns_no_tensor_is_refused():
    class Silent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = te.Linear(16, 16)

        def forward(self, x):
            return self.layer(x).sum().item()

    with pytest.raises(TypeError, match=r"module returned .*; a floating-point tensor"):
        te.numerics_report(Silent(), draw(4, 16), recipe=CURRENT)


def test_quantized_parameters_of_another_format_are_refused():
    with te.quantized_model_init(recipe=CURRENT):
        layer = te.Linear(32, 16)
    with pytest.raises(RuntimeError, match="Recipe mismatch for 'weight'"):
        te.numerics_report(layer, draw(8, 32), recipe=MXFP8BlockScaling())
