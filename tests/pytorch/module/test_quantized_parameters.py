# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Weights that are FP8 themselves: made under quantized_model_init, trained and drawn anew."""

import copy
import pickle
import warnings

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.generators import random_tensor
from helpers.modules import FACTORIES, IN, LINEAR_KINDS, OUT, make_input, output_gradient
from helpers.tolerances import assert_identical
from transformer_engine.common.recipe import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)
from transformer_engine.pytorch import Float8Tensor

KINDS = pytest.mark.parametrize("kind", LINEAR_KINDS)
RECIPES = {
    "delayed": DelayedScaling(amax_history_len=4),
    "current": Float8CurrentScaling(),
    "block": Float8BlockScaling(),
    "block rowwise": Float8BlockScaling(w_block_scaling_dim=1),
    "mxfp8": MXFP8BlockScaling(),
    "mxfp8 tiled": MXFP8BlockScaling(enable_2d_quantization=True),
    "nvfp4": NVFP4BlockScaling(),
    "nvfp4 untiled": NVFP4BlockScaling(disable_2d_quantization=True),
}
TENSORS = {
    "block": te.Float8BlockwiseQTensor,
    "mxfp8": te.MXFP8Tensor,
    "nvfp4": te.NVFP4Tensor,
}
RECIPE_NAMES = pytest.mark.parametrize("recipe_name", RECIPES)
WEIGHT_SLOTS = {"weight": 1, "fc1_weight": 1, "fc2_weight": 4}


def make_quantized(kind, recipe, seed=3, **options):
    torch.manual_seed(seed)
    with te.quantized_model_init(recipe=recipe, **options):
        return FACTORIES[kind](device=torch.get_default_device())


def tensor_class(recipe_name):
    return TENSORS.get(recipe_name.split()[0], Float8Tensor)


def weights_of(module):
    return {name: p for name, p in module.named_parameters() if p.dim() == 2}


@KINDS
@RECIPE_NAMES
def test_weights_are_quantized_and_norms_and_biases_are_not(kind, recipe_name):
    module = make_quantized(kind, RECIPES[recipe_name])
    for name, parameter in module.named_parameters():
        assert isinstance(parameter, torch.nn.Parameter)
        is_quantized = isinstance(parameter, tensor_class(recipe_name))
        assert is_quantized == (name in weights_of(module))
        assert parameter.requires_grad
        assert (name in WEIGHT_SLOTS) == (parameter.dim() == 2)


@KINDS
@RECIPE_NAMES
def test_the_preserved_value_is_what_was_quantized(kind, recipe_name):
    module = make_quantized(kind, RECIPES[recipe_name], preserve_high_precision_init_val=True)
    torch.manual_seed(3)
    plain = FACTORIES[kind](device=torch.get_default_device())
    for name, weight in weights_of(module).items():
        value = weight.get_high_precision_init_val()
        assert_identical(value, plain.get_parameter(name).detach(), name)
        assert value.device.type == "cpu"
        assert_identical(weight._quantizer(value).dequantize(), weight.detach().dequantize(), name)
        weight.clear_high_precision_init_val()
        assert weight.get_high_precision_init_val() is None


@pytest.mark.parametrize("recipe_name", RECIPES)
def test_a_value_that_the_caller_writes_after_construction_is_the_initial_one(recipe_name):
    """Megatron initializes on the CPU so: the method draws nothing, the weight is copied later."""
    recipe = RECIPES[recipe_name]
    with te.quantized_model_init(recipe=recipe, preserve_high_precision_init_val=True):
        module = te.Linear(
            64, 32, init_method=lambda weight: None, device=torch.get_default_device()
        )
    weight = module.weight
    assert not weight.dequantize().any()
    values = random_tensor((32, 64), seed=5)
    weight.data.copy_(values)
    assert_identical(weight.get_high_precision_init_val(), weight.dequantize().detach())
    assert (weight.dequantize() - values).abs().max() < values.abs().max() / 4
    weight.clear_high_precision_init_val()
    assert weight.get_high_precision_init_val() is None


@KINDS
@RECIPE_NAMES
def test_drawing_anew_renews_the_preserved_value(kind, recipe_name):
    module = make_quantized(kind, RECIPES[recipe_name], preserve_high_precision_init_val=True)
    identities = {name: id(weight) for name, weight in weights_of(module).items()}
    torch.manual_seed(44)
    module.reset_parameters()
    torch.manual_seed(44)
    plain = FACTORIES[kind](device=torch.get_default_device())
    for name, weight in weights_of(module).items():
        assert id(weight) == identities[name]
        assert_identical(weight.get_high_precision_init_val(), plain.get_parameter(name).detach())
    without = make_quantized(kind, RECIPES[recipe_name])
    without.reset_parameters()
    assert not any(hasattr(w, "_high_precision_init_val") for w in weights_of(without).values())


@KINDS
@RECIPE_NAMES
def test_construction_on_meta_quantizes_in_reset_parameters(kind, recipe_name):
    recipe = RECIPES[recipe_name]
    with te.quantized_model_init(recipe=recipe):
        module = FACTORIES[kind](device="meta")
    assert not any(isinstance(weight, te.QuantizedTensor) for weight in weights_of(module).values())
    torch.manual_seed(3)
    module.reset_parameters()
    expected = make_quantized(kind, recipe)
    for name, weight in weights_of(module).items():
        assert isinstance(weight, tensor_class(recipe_name))
        assert_identical(weight.dequantize(), expected.get_parameter(name).dequantize(), name)


# ---- numbers -------------------------------------------------------------------------------------


def trained(module, x, recipe):
    """Output and all gradients of one step."""
    module.zero_grad()
    x.grad = None
    y = module_output(module, x, recipe)
    torch.manual_seed(8)
    y.backward(output_gradient(y))
    grads = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return {"output": y.detach(), "inp": x.grad, **grads}


@KINDS
@RECIPE_NAMES
def test_a_step_is_that_of_the_weights_it_was_made_from(kind, recipe_name):
    if recipe_name == "delayed":
        pytest.skip("a parameter keeps the scale it was cast with")
    recipe = RECIPES[recipe_name]
    module = make_quantized(kind, recipe)
    torch.manual_seed(3)
    plain = FACTORIES[kind](device=torch.get_default_device())
    x = make_input()
    found, expected = (trained(m, x.detach().requires_grad_(), recipe) for m in (module, plain))
    for name, value in expected.items():
        assert_identical(found[name], value, name)


@KINDS
@RECIPE_NAMES
def test_an_optimizer_works_on_the_values_and_rounds_once_an_operation(kind, recipe_name):
    recipe = RECIPES[recipe_name]
    module = make_quantized(kind, recipe)
    trained(module, make_input(), recipe)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    expected = {}
    for name, weight in weights_of(module).items():
        moved = weight.detach().dequantize().add(weight.grad, alpha=-0.5)
        expected[name] = weight._quantizer.copy()(moved).dequantize()
    optimizer.step()
    for name, weight in weights_of(module).items():
        assert_identical(weight.detach().dequantize(), expected[name], name)


@RECIPE_NAMES
@pytest.mark.parametrize("other_name", ["current", "block", "mxfp8", "nvfp4"])
@pytest.mark.filterwarnings("ignore:Recipe type changed")
def test_a_recipe_of_another_format_is_refused(recipe_name, other_name):
    module = make_quantized("Linear", RECIPES[recipe_name])
    if tensor_class(recipe_name) is tensor_class(other_name):
        assert torch.isfinite(module_output(module, make_input(), RECIPES[other_name])).all()
        return
    with pytest.raises(RuntimeError, match=r"^Recipe mismatch for 'weight'"):
        module_output(module, make_input(), RECIPES[other_name])


# ---- checkpoints ---------------------------------------------------------------------------------


@KINDS
@RECIPE_NAMES
def test_a_saved_model_continues_to_the_bit(kind, recipe_name, tmp_path):
    recipe = RECIPES[recipe_name]
    module = make_quantized(kind, recipe)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    x = make_input()
    for _ in range(2):
        trained(module, x, recipe)
        optimizer.step()
    torch.save(module.state_dict(), tmp_path / "model.pt")
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    twin = make_quantized(kind, recipe, seed=91)
    twin_optimizer = torch.optim.AdamW(twin.parameters(), lr=0.01)
    twin.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    twin_optimizer.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    for _ in range(2):
        found, expected = (trained(m, x.detach().requires_grad_(), recipe) for m in (twin, module))
        for name, value in expected.items():
            assert_identical(found[name], value, name)
        optimizer.step()
        twin_optimizer.step()


@KINDS
@RECIPE_NAMES
def test_plain_weights_load_strictly_and_are_quantized(kind, recipe_name):
    recipe = RECIPES[recipe_name]
    module = make_quantized(kind, recipe, seed=5)
    torch.manual_seed(3)
    state = {
        name: value
        for name, value in FACTORIES[kind](device=torch.get_default_device()).state_dict().items()
        if not name.endswith("_extra_state")
    }
    module.load_state_dict(state, strict=True)
    for name, weight in weights_of(module).items():
        assert isinstance(weight, tensor_class(recipe_name))
        expected = weight._quantizer.copy()(state[name]).dequantize()
        assert_identical(weight.detach().dequantize(), expected, name)


# ---- training ------------------------------------------------------------------------------------


@KINDS
@RECIPE_NAMES
def test_adamw_lowers_the_loss(kind, recipe_name):
    recipe = RECIPES[recipe_name]
    module = make_quantized(kind, recipe)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.02)
    x = make_input(32, IN).detach()
    target = output_gradient(module_output(module, x, recipe).detach(), seed=9)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (module_output(module, x, recipe) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    kept = tensor_class(recipe_name)
    assert all(isinstance(weight, kept) for weight in weights_of(module).values())
    assert losses[-1] < 0.8 * losses[0]


def module_output(module, x, recipe):
    with te.autocast(recipe=recipe):
        return module(x)


@KINDS
@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("how", ["recipe", "by hand"])
def test_writes_are_observed_in_the_history_in_force(kind, length, how):
    module = make_quantized(kind, RECIPES["delayed"])
    if how == "recipe":
        with te.autocast(recipe=DelayedScaling(amax_history_len=length)):
            module.init_fp8_metadata()
    else:
        module.adjust_amax_history_length(length)
    assert_writes_are_observed(module, length)


@KINDS
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copys_writes_are_observed_in_its_own_history(kind, copied):
    source = make_quantized(kind, RECIPES["delayed"])
    module = copied(source)
    with te.autocast(recipe=RECIPES["delayed"]):
        module.init_fp8_metadata()
    before = source.fp8_meta["scaling_fwd"].amax_history.clone()
    assert_writes_are_observed(module, 4)
    assert_identical(source.fp8_meta["scaling_fwd"].amax_history, before)


def assert_writes_are_observed(module, length):
    state = module.fp8_meta["scaling_fwd"]
    assert state.amax_history.shape[0] == length
    for value, (name, weight) in enumerate(weights_of(module).items(), start=50):
        with torch.no_grad():
            weight.copy_(torch.full(weight.shape, float(value)))
        assert state.amax_history[0, WEIGHT_SLOTS[name]] == value
        assert weight._quantizer.scale.data_ptr() == state.scale[WEIGHT_SLOTS[name]].data_ptr()


# ---- outside a region ----------------------------------------------------------------------------


@KINDS
def test_use_outside_a_region_warns_once_for_each_weight(kind):
    module = make_quantized(kind, RECIPES["current"])
    x = make_input()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with te.autocast(recipe=RECIPES["current"]):
            module(x)
        assert not caught
        for _ in range(3):
            y = module(x)
    texts = [str(warning.message) for warning in caught]
    assert texts == [
        f"{kind}.forward: {name} is quantized and the call outside a quantized region; it is "
        "dequantized for each call. Use te.autocast."
        for name in weights_of(module)
    ]
    plain = FACTORIES[kind](device=torch.get_default_device())
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            value = module.get_parameter(name)
            parameter.copy_(value.dequantize() if name in weights_of(module) else value)
    assert_identical(y.detach(), plain(x).detach())


def test_the_warning_can_be_an_error():
    module = make_quantized("Linear", RECIPES["current"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=r"^Linear\.forward: weight is quantized"):
            module(make_input())


def test_slices_cannot_be_quantized():
    message = r"^Linear: parameters_split has 2 slices inside quantized_model_init"
    with (
        te.quantized_model_init(recipe=RECIPES["current"]),
        pytest.raises(RuntimeError, match=message),
    ):
        te.Linear(IN, OUT, device=torch.get_default_device(), parameters_split=["a", "b"])
