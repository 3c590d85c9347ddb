# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training saved and resumed: every recipe, quantized weights too, in every file format."""

from __future__ import annotations

import io
import itertools
import json
import tempfile

import pytest
import torch
import torch.distributed.checkpoint as distributed_checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import transformer_engine.pytorch as te
from helpers.modules import (
    FACTORIES,
    LINEAR_KINDS,
    assert_same,
    collect,
    make_input,
    output_gradient,
)
from helpers.ranks import ranks
from helpers.recipes import RECIPES, STATEFUL
from helpers.tolerances import assert_identical
from transformer_engine.pytorch.tensor.state_dict import flatten_state_dict, unflatten_state_dict

recipes = pytest.mark.parametrize("recipe", RECIPES)
kinds = pytest.mark.parametrize("kind", LINEAR_KINDS)
weights = pytest.mark.parametrize("has_quantized_weights", [False, True], ids=["bf16", "quantized"])
pytestmark = pytest.mark.usefixtures("one_thread")


class Training:
    """A module and AdamW, trained on data that depend on the step's number alone."""

    def __init__(self, kind, recipe, has_quantized_weights, seed=3):
        torch.manual_seed(seed)
        self.recipe = RECIPES[recipe]
        with te.quantized_model_init(has_quantized_weights, recipe=self.recipe):
            self.module = FACTORIES[kind](
                device=torch.get_default_device(), params_dtype=torch.bfloat16
            )
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=0.01)

    def step(self, number):
        """Output and gradients."""
        torch.manual_seed(number)  # stochastic rounding
        self.optimizer.zero_grad()
        x = make_input(6, 24, dtype=torch.bfloat16, seed=number)
        with te.autocast(recipe=self.recipe):
            y = self.module(x)
        y.backward(output_gradient(y))
        found = {name: t.clone() for name, t in collect(self.module, x, y).items()}
        self.optimizer.step()
        return found

    def momenta(self):
        """AdamW's state as one flat state dict."""
        return {
            f"{index}.{name}": value
            for index, state in self.optimizer.state_dict()["state"].items()
            for name, value in state.items()
        }


def assert_continue_alike(resumed, source, steps=(3, 4)):
    for number in steps:
        assert_same(resumed.step(number), source.step(number))
    assert_identical(resumed.module.get_extra_state(), source.module.get_extra_state())
    for (name, found), expected in zip(
        resumed.momenta().items(), source.momenta().values(), strict=True
    ):
        assert type(found) is type(expected)
        assert_identical(found, expected, name)


def trained(*arguments):
    source = Training(*arguments)
    for number in (1, 2):
        source.step(number)
    return source


# ---- file formats --------------------------------------------------------------------------------


@recipes
@weights
def test_torch_save_continues_to_the_bit(recipe, has_quantized_weights):
    kind = "LayerNormMLP"
    source = trained(kind, recipe, has_quantized_weights)
    file = io.BytesIO()
    torch.save([source.module.state_dict(), source.optimizer.state_dict()], file)
    file.seek(0)
    resumed = Training(kind, recipe, has_quantized_weights, seed=50)
    model, optimizer = torch.load(file, weights_only=True)
    resumed.module.load_state_dict(model)
    resumed.optimizer.load_state_dict(optimizer)
    assert_continue_alike(resumed, source)


def through_distributed_checkpoint(kind, recipe, has_quantized_weights, folder):
    """Save, resume and compare; in a process group if there is one."""
    no_dist = not torch.distributed.is_initialized()
    source = trained(kind, recipe, has_quantized_weights)
    model, optimizer = get_state_dict(source.module, source.optimizer)
    state = model | {"optimizer": optimizer}
    distributed_checkpoint.save(state, no_dist=no_dist, checkpoint_id=folder)
    resumed = Training(kind, recipe, has_quantized_weights, seed=50)
    model, optimizer = get_state_dict(resumed.module, resumed.optimizer)
    state = model | {"optimizer": optimizer}
    distributed_checkpoint.load(state, no_dist=no_dist, checkpoint_id=folder)
    optimizer = state.pop("optimizer")
    set_state_dict(
        resumed.module,
        resumed.optimizer,
        model_state_dict=state,
        optim_state_dict=optimizer,
    )
    assert_continue_alike(resumed, source)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@recipes
@weights
def test_distributed_checkpoints_continue_to_the_bit(recipe, has_quantized_weights, tmp_path):
    through_distributed_checkpoint("LayerNormMLP", recipe, has_quantized_weights, tmp_path)


def checkpoint_on_a_rank(rank, folder):
    for recipe in RECIPES:
        through_distributed_checkpoint("Linear", recipe, True, f"{folder}/{recipe}")


def test_distributed_checkpoints_of_two_ranks_continue_to_the_bit():
    with tempfile.TemporaryDirectory() as folder:
        ranks(2).run(checkpoint_on_a_rank, folder)


@recipes
@weights
def test_safetensors_continue_to_the_bit(recipe, has_quantized_weights, tmp_path):
    kind = "LayerNormMLP"
    safetensors = pytest.importorskip("safetensors.torch")
    source = trained(kind, recipe, has_quantized_weights)
    files = tmp_path / "model", tmp_path / "optimizer"
    for state, file in zip((source.module.state_dict(), source.momenta()), files, strict=True):
        safetensors.save_file(flatten_state_dict(state), file)
    resumed = Training(kind, recipe, has_quantized_weights, seed=50)
    resumed.step(9)  # makes AdamW's state
    model, momenta = (unflatten_state_dict(safetensors.load_file(file)) for file in files)
    resumed.module.load_state_dict(model)
    state = resumed.optimizer.state_dict()
    for name, value in momenta.items():
        index, _, key = name.partition(".")
        state["state"][int(index)][key] = value
    resumed.optimizer.load_state_dict(state)
    assert_continue_alike(resumed, source)


# ---- flat state dicts ----------------------------------------------------------------------------


def quantized_state(recipe):
    return trained("LayerNormMLP", recipe, True).module.state_dict()


@recipes
def test_a_flat_state_is_of_plain_tensors_and_shares_the_buffers(recipe):
    state = quantized_state(recipe)
    flat = flatten_state_dict(state)
    assert all(type(value) is torch.Tensor for value in flat.values())
    held = {
        buffer.data_ptr()
        for value in state.values()
        if isinstance(value, te.QuantizedTensor)
        for buffer in value._buffers().values()
        if buffer is not None
    }
    buffers = [value for name, value in flat.items() if ":buffer" in name]
    assert buffers and all(buffer.data_ptr() in held for buffer in buffers)
    for name, value in state.items():
        if name.endswith("_extra_state"):
            assert_identical(flat[name], value.as_subclass(torch.Tensor))
        elif not isinstance(value, te.QuantizedTensor):
            assert flat[name] is value


@recipes
def test_what_is_put_together_again_is_what_torch_load_gives(recipe):
    state = quantized_state(recipe)
    found = unflatten_state_dict(flatten_state_dict(state))
    assert list(found) == list(state)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    for name, expected in torch.load(file, weights_only=True).items():
        value = found[name]
        assert type(value) is type(expected) and value.dtype == expected.dtype
        if isinstance(value, te.QuantizedTensor):
            assert value._quantizer == expected._quantizer
            for key, buffer in expected._buffers().items():
                other = value._buffers()[key]
                assert (buffer is None) == (other is None)
                if buffer is not None:
                    assert_identical(other, buffer, f"{name} {key}")
        assert_identical(
            *(t.dequantize() if isinstance(t, te.QuantizedTensor) else t for t in (value, expected))
        )


def test_identity_and_delayed_hybrid_tensors_are_put_together_again():
    x = make_input(6, 24).detach()
    identity = te.IdentityQuantizer(dtype=torch.bfloat16)
    delayed = te.Float8Quantizer(torch.ones(1), torch.zeros(1), te.DType.kFloat8E4M3)
    hybrid = te.HybridQuantizer(rowwise_quantizer=delayed, columnwise_quantizer=identity)
    for quantizer in (identity, hybrid):
        (found,) = unflatten_state_dict(flatten_state_dict({"x": quantizer(x)})).values()
        assert type(found) is type(quantizer(x))
        assert_identical(found.dequantize(), quantizer(x).dequantize())
        assert_identical(found._quantizer(x).dequantize(), quantizer(x).dequantize())


class OwnTensor(te.MXFP8Tensor):
    """A user's."""


def test_classes_from_outside_are_refused():
    tensor = OwnTensor.make_like(te.MXFP8Quantizer(te.DType.kFloat8E4M3)(torch.ones(2, 32)))
    with pytest.raises(TypeError, match=r"flatten_state_dict: state_dict\['w'\].*OwnTensor"):
        flatten_state_dict({"w": tensor})


def test_a_flat_state_cannot_be_flattened_again():
    flat = flatten_state_dict(quantized_state("mxfp8"))
    with pytest.raises(ValueError, match="state_dict has the name 'fc1_weight:quantized'"):
        flatten_state_dict({"bias": flat["fc1_bias"], **flat})


def altered(change):
    """A flat state with another description of fc1_weight."""
    flat = flatten_state_dict(quantized_state("mxfp8"))
    content = json.loads(bytes(flat["fc1_weight:quantized"].tolist()))
    change(content, flat)
    text = json.dumps(content).encode()
    flat.setdefault("fc1_weight:quantized", torch.tensor(list(text), dtype=torch.uint8))
    if flat["fc1_weight:quantized"].dtype == torch.uint8:
        flat["fc1_weight:quantized"] = torch.tensor(list(text), dtype=torch.uint8)
    return flat


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content, flat: content.update(version=2), "version 2, not 1"),
        (lambda content, flat: content.update(tensor=3), "it is of"),
        (lambda content, flat: content["tensor"].update(call="system"), "KeyError: 'system'"),
        (lambda content, flat: content["tensor"].update(call="__import__"), "KeyError"),
        (lambda content, flat: content.update(tensor={"dtype": "load"}), "torch.load is no dtype"),
        (lambda content, flat: content.update(tensor={"a": 1, "b": 2}), r"kinds \['a', 'b'\]"),
        (lambda content, flat: content.pop("tensor"), "KeyError"),
        (lambda content, flat: flat.pop("fc1_weight:buffer1"), "fc1_weight:buffer1"),
        (lambda content, flat: flat.update({"fc1_weight:buffer0": 3}), "buffer 0 is"),
        (
            lambda content, flat: flat.update({"fc1_weight:quantized": torch.ones(3)}),
            "cannot be read",
        ),
    ],
)
def test_damaged_descriptions_are_refused(change, reason):
    with pytest.raises(ValueError, match=rf"^unflatten_state_dict: 'fc1_weight:qua.*{reason}"):
        unflatten_state_dict(altered(change))


# ---- other states --------------------------------------------------------------------------------


def set_weights(module, state, extra_state=None):
    """By hand, and a recipe state that has seen nothing else."""
    module.set_extra_state(extra_state)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(state[name])


@recipes
@weights
@kinds
@pytest.mark.parametrize("was_used", [False, True])
def test_plain_weights_load_strictly_into_a_fresh_state(
    kind, recipe, has_quantized_weights, was_used
):
    target, fresh = (Training(kind, recipe, has_quantized_weights, seed=s) for s in (50, 60))
    if was_used:
        target.step(9)
        target.optimizer = torch.optim.AdamW(target.module.parameters(), lr=0.01)
    state = {
        name: value
        for name, value in Training(kind, recipe, False).module.state_dict().items()
        if not name.endswith("_extra_state")
    }
    target.module.load_state_dict(state, strict=True)
    set_weights(fresh.module, state)
    assert_continue_alike(target, fresh)


PAIRS = list(itertools.permutations(RECIPES, 2))


@pytest.mark.filterwarnings("ignore:Recipe type changed")
@weights
@pytest.mark.parametrize(("saved_under", "loaded_under"), PAIRS)
def test_a_state_of_another_recipe_gives_its_weights_and_a_fresh_state(
    saved_under, loaded_under, has_quantized_weights
):
    """But for delayed scaling and requests for it, which have the same state."""
    state = trained("Linear", saved_under, has_quantized_weights).module.state_dict()
    target, used, fresh = (
        Training("Linear", loaded_under, has_quantized_weights, seed=s) for s in (50, 55, 60)
    )
    used.step(9)
    used.optimizer = torch.optim.AdamW(used.module.parameters(), lr=0.01)
    for training in (target, used):
        training.module.load_state_dict(state)
    kept = state if {saved_under, loaded_under} == set(STATEFUL) else {}
    set_weights(fresh.module, state, kept.get("_extra_state"))
    for number in (3, 4):
        expected = fresh.step(number)
        assert_same(target.step(number), expected)
        assert_same(used.step(number), expected)
