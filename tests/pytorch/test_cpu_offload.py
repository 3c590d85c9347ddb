# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Activation offload. The CPU plays the device: every copy is then a copy within host memory."""

import contextlib
import gc
import weakref

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.generators import random_tensor
from helpers.quantizers import delayed_quantizer
from helpers.recipes import RECIPES
from transformer_engine.pytorch import cpu_offload, cpu_offload_v1
from transformer_engine.pytorch.cpu_offload import get_cpu_offload_context

ROWS, COLUMNS = 512, 512  # exactly the smallest size that is offloaded


@pytest.fixture
def host_is_device(monkeypatch):
    monkeypatch.setattr(cpu_offload, "_is_in_device_memory", lambda tensor: True)


class Layer(torch.nn.Module):
    """Saves its input and its activation."""

    def __init__(self, seed):
        super().__init__()
        self.weight = torch.nn.Parameter(random_tensor((COLUMNS, COLUMNS), seed=seed) / 30)

    def forward(self, x):
        return torch.sigmoid(x @ self.weight)


def make_model(layers=3):
    return [Layer(seed) for seed in range(layers)]


def gradients(model, run):
    x = random_tensor((ROWS, COLUMNS), seed=9).requires_grad_()
    run(x).square().sum().backward()
    grads = [x.grad, *(layer.weight.grad for layer in model)]
    for layer in model:
        layer.weight.grad = None
    return grads


def plain(model):
    def run(x):
        for layer in model:
            x = layer(x)
        return x

    return gradients(model, run)


def assert_same(actual, expected):
    assert all(torch.equal(x, y) for x, y in zip(actual, expected, strict=True))


def count_copies(monkeypatch):
    copies = []
    for name in ("copy_out", "copy_in"):
        original = getattr(cpu_offload._Transfers, name)

        def counted(self, tensor, *args, name=name, original=original):
            copies.append(name)
            return original(self, tensor, *args)

        monkeypatch.setattr(cpu_offload._Transfers, name, counted)
    return copies


@pytest.mark.parametrize("retain", [False, True])
def test_gradients_are_those_without_offload(host_is_device, monkeypatch, retain):
    model = make_model()
    expected = plain(model)
    copies = count_copies(monkeypatch)
    context, sync = get_cpu_offload_context(
        enabled=True, num_layers=1, model_layers=3, retain_pinned_cpu_buffers=retain
    )

    def run(x):
        for layer in model:
            with context:
                assert context.inside_context
                assert cpu_offload.is_cpu_offload_enabled()
                x = layer(x)
            x = sync(x)
        assert not cpu_offload.is_cpu_offload_enabled()
        return x

    for _ in range(2):
        assert_same(gradients(model, run), expected)
    # Input and output of the first layer, out and back in, in each of two passes.
    assert copies == ["copy_out", "copy_out", "copy_in", "copy_in"] * 2


def test_host_buffers_are_reused_when_retained(host_is_device):
    buffers = cpu_offload._HostBuffers(retain=True)
    first = buffers.take(torch.zeros(3))
    buffers.give(first)
    assert buffers.take(torch.zeros(3)) is first
    assert buffers.take(torch.zeros(3)) is not first
    forgetful = cpu_offload._HostBuffers(retain=False)
    forgetful.give(first)
    assert forgetful.take(torch.zeros(3)) is not first


def test_tensors_in_host_memory_are_left_alone(monkeypatch):
    model = make_model()
    copies = count_copies(monkeypatch)
    context, sync = get_cpu_offload_context(True, 1, 3)

    def run(x):
        for layer in model:
            with context:
                x = layer(x)
            x = sync(x)
        return x

    assert_same(gradients(model, run), plain(model))
    assert copies == []


def test_manual_order_frees_and_restores_memory(host_is_device):
    model = make_model(2)
    expected = plain(model)
    context, sync, synchronizer = get_cpu_offload_context(
        enabled=True, model_layers=2, manual_synchronization=True
    )
    alive = []

    def run(x):
        for index, layer in enumerate(model):
            with context:
                x = layer(x * 1.0)
            if index == 0:
                alive.append(weakref.ref(x))
            x = sync(x)
            synchronizer.start_offload_layer(index)
            synchronizer.release_activation_forward_gpu_memory(index)
        return x

    def run_and_reload(x):
        y = run(x)
        gc.collect()
        assert alive[-1]() is None, "the activation of layer 0 was freed"
        for index in (1, 0):
            synchronizer.start_reload_layer(index)
        return y

    assert_same(gradients(model, run_and_reload), expected)
    assert_same(gradients(model, run), expected)  # without a reload, fetched on demand


def test_manual_order_is_checked(host_is_device):
    context, sync, synchronizer = get_cpu_offload_context(
        enabled=True, model_layers=2, manual_synchronization=True
    )
    with pytest.raises(ValueError, match="layer_id is 0; 0 layers"):
        synchronizer.start_offload_layer(0)
    with context:
        x = make_model(1)[0](torch.ones(ROWS, COLUMNS, requires_grad=True))
    sync(x)
    with pytest.raises(RuntimeError, match="not being offloaded"):
        synchronizer.release_activation_forward_gpu_memory(0)


def offload_all(function, *inputs):
    """Which of the tensors that a function saves are recorded."""
    context, _, _ = get_cpu_offload_context(enabled=True, manual_synchronization=True)
    with context:
        output = function(*inputs)
    records = context.layers[0]._records
    return output, records


def test_small_tensors_parameters_and_marked_ones_stay(host_is_device):
    big = torch.ones(ROWS, COLUMNS, requires_grad=True)
    other = big.detach() * 2
    assert len(offload_all(torch.mul, big, other)[1]) == 1
    small = torch.ones(ROWS, COLUMNS - 1, requires_grad=True)
    assert offload_all(torch.mul, small, small.detach() * 2)[1] == []
    parameter = torch.nn.Parameter(torch.ones(ROWS, COLUMNS))
    assert offload_all(torch.mul, big, parameter.detach().requires_grad_(False))[1] != []
    x = other.clone().requires_grad_()
    _, records = offload_all(lambda a: torch.nn.functional.linear(a, parameter), x)
    assert len(records) == 1, "the input, not the weight"
    marked = big.detach() * 2
    cpu_offload.mark_not_offload(marked, None)
    assert offload_all(torch.mul, big, marked)[1] == []


def test_marks_reach_the_buffers_of_quantized_tensors():
    tensor = delayed_quantizer()(torch.ones(4, 4))
    cpu_offload.mark_not_offload(tensor)
    assert tensor._data._is_offload_forbidden
    assert tensor._transpose._is_offload_forbidden


def test_quantized_tensors_are_moved_by_their_buffers(host_is_device):
    context, sync, synchronizer = get_cpu_offload_context(enabled=True, manual_synchronization=True)
    tensor = delayed_quantizer()(random_tensor((ROWS, COLUMNS)))
    x = torch.ones(ROWS, COLUMNS, requires_grad=True)
    with context:
        y = x * tensor
    data = tensor._data.clone()
    y = sync(y)
    synchronizer.start_offload_layer(0)
    synchronizer.release_activation_forward_gpu_memory(0)
    assert torch.equal(tensor._data, data)
    y.sum().backward()
    assert torch.equal(x.grad, tensor.dequantize())


@pytest.mark.parametrize("recipe", RECIPES)
def test_saved_operands_of_every_recipe_are_offloaded(host_is_device, monkeypatch, recipe):
    """Block-scaled copies are plain tensors to autograd."""
    monkeypatch.setattr(cpu_offload, "_MIN_OFFLOAD_NUMEL", 1 << 12)
    moved = []
    original = cpu_offload._Transfers.copy_out

    def noted(self, tensor, *args):
        moved.append(tensor.dtype)
        return original(self, tensor, *args)

    monkeypatch.setattr(cpu_offload._Transfers, "copy_out", noted)
    found = []
    for is_offloading in (False, True):
        torch.manual_seed(3)
        layers = [te.LayerNormMLP(128, 96, device=torch.get_default_device()) for _ in range(3)]
        context, sync = get_cpu_offload_context(is_offloading, num_layers=2, model_layers=3)
        x = random_tensor((96, 128), seed=9).requires_grad_()
        y = x * 1
        with te.autocast(recipe=RECIPES[recipe]):
            for layer in layers:
                with context:
                    y = layer(y)
                y = sync(y)
        y.square().sum().backward()
        found.append([x.grad, *(p.grad for layer in layers for p in layer.parameters())])
        assert bool(moved) is is_offloading
    assert_same(*found)
    assert moved.count(torch.uint8) >= 2 * 2  # codes of both inputs of two layers


def test_views_can_be_offloaded_as_their_base(host_is_device):
    base = random_tensor((2, ROWS, COLUMNS))
    views = list(base.unbind())
    cpu_offload.start_offload(*views, None, offload_base_tensor=True)
    x = torch.ones(ROWS, COLUMNS, requires_grad=True)

    def function(a):
        return a * views[0] + a * views[1]

    output, records = offload_all(function, x)
    assert len(records) == 1
    for record in records:
        record.start_offload()
        record.release()
    output.sum().backward()
    assert torch.equal(x.grad, base.sum(0))


def test_backward_can_run_twice(host_is_device):
    model = make_model(1)
    context, sync = get_cpu_offload_context(True, 0, 2)
    x = random_tensor((ROWS, COLUMNS)).requires_grad_()
    with context:
        y = model[0](x)
    y = sync(y).sum()
    y.backward(retain_graph=True)
    first = x.grad.clone()
    y.backward()
    assert torch.equal(x.grad, 2 * first)


@pytest.mark.parametrize(
    ("arguments", "error", "received"),
    [
        ((True, -1, 2), ValueError, "num_layers is -1; it must be an int, at least 0"),
        ((False, "x", 2), TypeError, "num_layers is 'x'; it must be an int"),
        ((True, 1, "x"), TypeError, "model_layers is 'x'; it must be an int"),
        ((True, 0, -1), ValueError, "model_layers is -1"),
        (("x", 1, 2), TypeError, "enabled is 'x'; it must be True or False"),
    ],
)
def test_numbers_of_layers_and_flags_are_checked(arguments, error, received):
    with pytest.raises(error, match=f"get_cpu_offload_context: {received}"):
        get_cpu_offload_context(*arguments)


def test_misuse_of_context_and_function():
    context, sync = get_cpu_offload_context(True, 1, 3)
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="no layer has run"):
        sync(x)
    with context:
        with pytest.raises(RuntimeError, match="active already"), context:
            pass
        with pytest.raises(RuntimeError, match="inside the offload context"):
            sync(x)
    with pytest.raises(ValueError, match="requires_grad False"):
        sync(x.detach())
    sync(x)
    with pytest.raises(RuntimeError, match="no layer has run"):
        sync(x)


def test_disabled_contexts_do_nothing():
    context, sync = get_cpu_offload_context()
    assert isinstance(context, contextlib.nullcontext)
    x = torch.ones(1)
    with context:
        assert sync(x) is x
    assert not cpu_offload.is_cpu_offload_enabled()
    # As Megatron calls it in every block, with whatever the configuration holds.
    assert len(get_cpu_offload_context(False, 0, 1, False, True, True)) == 2
    assert len(get_cpu_offload_context(manual_synchronization=True)) == 3


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"num_layers": 3, "model_layers": 3}, "num_layers is 3"),
        ({"model_layers": 3, "offload_activations": False}, "offload_activations is False"),
        ({"model_layers": 3, "offload_stream": object()}, "offload_stream is given"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, match):
    with pytest.raises(ValueError, match=match):
        get_cpu_offload_context(enabled=True, **arguments)


def test_warnings():
    with pytest.warns(UserWarning, match="model_layers - 1"):
        get_cpu_offload_context(True, 2, 3)
    for name in ("offload_weights", "double_buffering"):
        with pytest.warns(DeprecationWarning, match=name):
            get_cpu_offload_context(True, 1, 3, **{name: True})


def test_the_first_version_has_six_arguments(monkeypatch):
    context, sync = cpu_offload_v1.get_cpu_offload_context(True, 1, 3, True, False, False)
    assert context.inside_context is False
    assert callable(sync)
    monkeypatch.setattr(cpu_offload_v1, "CPUOffloadEnabled", True)
    cpu_offload_v1.mark_activation_offload(torch.zeros(1))
