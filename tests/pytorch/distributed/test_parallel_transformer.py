# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""TransformerLayer over tensor-parallel ranks equals the layer of a single rank."""

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.generators import random_tensor
from helpers.modules import randomize
from helpers.ranks import ranks

HIDDEN, FFN, HEADS = 64, 96, 8
VARIANTS = (
    {},
    {"normalization": "RMSNorm", "bias": False, "num_gqa_groups": 4, "activation": "swiglu"},
    {"fuse_qkv_params": True, "qkv_weight_interleaved": True},
    {"parallel_attention_mlp": True},
    {"layer_type": "decoder"},
    {"apply_residual_connection_post_layernorm": True},
    {"output_layernorm": True},
    {"qk_norm_type": "RMSNorm"},
)


def part_of(name, whole, shape, rank, ranks_count, *, is_gated):
    """A rank's part of a parameter of the whole layer."""
    if whole.shape == shape:
        return whole.clone()
    if name.endswith(("proj.weight", "fc2_weight")):
        return whole.chunk(ranks_count, -1)[rank].clone()
    if "fc1" in name and is_gated:
        return torch.cat([half.chunk(ranks_count)[rank] for half in whole.chunk(2)])
    return whole.chunk(ranks_count)[rank].clone()


def assert_alike(actual, expected, name, relative=1e-6):
    """Relative to the whole: single elements of a long chain may be sums that cancel."""
    error = (actual.double() - expected.double()).norm() / expected.double().norm()
    assert error <= relative, f"{name}: {error:.2g}"


def run_layer(layer, x, gradient, encoder_output):
    x = x.clone().requires_grad_()
    output = layer(x, encoder_output=encoder_output)
    output.backward(gradient)
    return output.detach(), x.grad


def check_layer(rank, size, sequence):
    def mine(whole):
        return whole.chunk(size)[rank] if sequence else whole

    for variant in VARIANTS:
        common = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "device": "cpu", **variant}
        single = te.TransformerLayer(HIDDEN, FFN, HEADS, **common)
        randomize(single)
        with torch.no_grad():  # scores of order 1: the softmax magnifies no rounding
            for parameter in single.parameters():
                if parameter.dim() == 2:
                    parameter.mul_(0.25)
        part = te.TransformerLayer(
            *(HIDDEN, FFN, HEADS),
            tp_group=torch.distributed.group.WORLD,
            set_parallel_mode=True,
            sequence_parallel=sequence,
            **common,
        )
        wholes = dict(single.named_parameters())

        def cut(name, whole, shape, variant=variant):
            is_gated = variant.get("activation") == "swiglu"
            return part_of(name, whole, shape, rank, size, is_gated=is_gated)

        with torch.no_grad():
            for name, parameter in part.named_parameters():
                parameter.copy_(cut(name, wholes[name], parameter.shape))
        x, gradient, encoded = (random_tensor((8, 2, HIDDEN), seed=seed) for seed in range(3))
        encoded = encoded if "layer_type" in variant else None
        expected = run_layer(single, x, gradient, encoded)
        own = None if encoded is None else mine(encoded)
        actual = run_layer(part, mine(x), mine(gradient), own)
        for name, value, whole in zip(("output", "inp"), actual, expected, strict=True):
            assert_alike(value, mine(whole), f"{variant} {name}")
        for name, parameter in part.named_parameters():
            if "key_bias" in name:
                continue  # moves all scores of a row alike: the gradient is 0 but for rounding
            found = parameter.grad.clone()
            if getattr(parameter, "sequence_parallel", False):
                torch.distributed.all_reduce(found)
            whole = cut(name, wholes[name].grad, parameter.shape)
            # A softmax's backward subtracts sums that are nearly equal.
            assert_alike(found, whole, f"{variant} {name}", 4e-6)


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("size", [2, 4])
def test_a_layer_of_several_ranks_equals_that_of_one(size, sequence):
    ranks(size).run(check_layer, size, sequence)


def fused_rows(name, whole, rank, size, shape):
    """A rank's rows of a fused projection that is not interleaved: of query, key and value each."""
    groups = GROUPED["num_gqa_groups"]
    key = HIDDEN // HEADS * groups
    rows = [key, key] if "key_value" in name else [HIDDEN, key, key]
    return torch.cat([part.chunk(size)[rank] for part in whole.split(rows)]).view(shape)


GROUPED = {"num_gqa_groups": 4, "fuse_qkv_params": True, "qkv_weight_interleaved": False}


def check_drawing(rank, size):
    for variant in (*VARIANTS, GROUPED, {**GROUPED, "layer_type": "decoder"}):
        built = []
        for group in (None, torch.distributed.group.WORLD):
            torch.manual_seed(3)
            built.append(
                te.TransformerLayer(
                    *(HIDDEN, FFN, HEADS),
                    tp_group=group,
                    set_parallel_mode=True,
                    device="cpu",
                    **variant,
                )
            )
        single, part = (dict(layer.named_parameters()) for layer in built)
        is_gated = variant.get("activation") == "swiglu"
        for name, parameter in part.items():
            is_fused = "qkv.weight" in name or "key_value.weight" in name
            if is_fused and variant.get("qkv_weight_interleaved") is False:
                expected = fused_rows(name, single[name], rank, size, parameter.shape)
            else:
                expected = part_of(
                    name, single[name], parameter.shape, rank, size, is_gated=is_gated
                )
            assert torch.equal(parameter, expected), f"{variant} {name}"


@pytest.mark.parametrize("size", [2, 4])
def test_layers_are_drawn_alike_for_every_number_of_ranks(size):
    ranks(size).run(check_drawing, size)
