# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""fp8_mha: what passes between the projections and attention is FP8, code for code."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.generators import random_tensor
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling
from transformer_engine.pytorch.attention.fp8.boundary import Boundary

RECIPES = {
    "delayed": DelayedScaling(fp8_mha=True, amax_history_len=2),
    "current": Float8CurrentScaling(fp8_mha=True),
}
HIDDEN, HEADS = 64, 4


def make_attention(**options: Any) -> te.MultiheadAttention:
    options = {"attention_dropout": 0.0, "fuse_qkv_params": True, **options}
    return te.MultiheadAttention(HIDDEN, HEADS, params_dtype=torch.bfloat16, **options)


def codes_of(*tensors: Any) -> list[int]:
    """All bytes, in ascending order: joining and permuting does not change them."""
    return sorted(torch.cat([x.flatten() for x in tensors]).tolist())


class Watch:
    """What passes the boundaries of one attention module."""

    def __init__(self, module: te.MultiheadAttention, monkeypatch: Any) -> None:
        self.seen: dict[str, Any] = {}
        project = module.layernorm_qkv if module.input_layernorm else module.qkv
        project.register_forward_hook(self._on_projection)
        module.proj.register_forward_pre_hook(self._on_output)
        encode, rounded = Boundary.encode_inputs, Boundary.round_input_gradients
        grad_encode = Boundary.encode_output_gradient

        def encode_inputs(boundary: Any, *args: Any) -> Any:
            self.seen["inputs"] = encode(boundary, *args)
            return self.seen["inputs"]

        def encode_output_gradient(boundary: Any, *args: Any) -> Any:
            self.seen["do"] = grad_encode(boundary, *args)
            return self.seen["do"]

        def round_input_gradients(boundary: Any, *args: Any) -> Any:
            values = rounded(boundary, *args)
            scale = boundary.input_gradient_scale
            if scale is not None:
                self.seen["dqkv"] = [scale.encode(x) for x in values]
            return values

        monkeypatch.setattr(Boundary, "encode_inputs", encode_inputs)
        monkeypatch.setattr(Boundary, "encode_output_gradient", encode_output_gradient)
        monkeypatch.setattr(Boundary, "round_input_gradients", round_input_gradients)

    def _on_projection(self, _module: Any, _args: Any, output: Any) -> None:
        self.seen["mixed"] = output
        output.register_hook(lambda grad: self.seen.update({"grad of mixed": grad}))

    def _on_output(self, _module: Any, args: Any) -> None:
        self.seen["context"] = args[0]
        args[0].register_hook(lambda grad: self.seen.update({"grad of context": grad}))


def run(module: Any, recipe: Any, **arguments: Any) -> list[torch.Tensor]:
    x = random_tensor((5, 2, HIDDEN), dtype=torch.bfloat16, seed=1).requires_grad_()
    with te.autocast(recipe=recipe):
        out = module(x, **arguments)
    for parameter in module.parameters():
        parameter.grad = None
    out.backward(random_tensor(out.shape, dtype=out.dtype, seed=2))
    return [out.detach(), x.grad, *(p.grad for p in module.parameters())]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("input_layernorm", [False, True])
@pytest.mark.parametrize("groups", [4, 2])
def test_every_boundary_is_fp8(recipe, input_layernorm, groups, monkeypatch):
    module = make_attention(input_layernorm=input_layernorm, num_gqa_groups=groups)
    watch = Watch(module, monkeypatch)
    for _ in range(2):
        run(module, recipe)
        seen = watch.seen
        for name in ("mixed", "context", "grad of context", "grad of mixed"):
            assert isinstance(seen[name], te.Float8Tensor), name
        assert codes_of(seen["mixed"]._data) == codes_of(*(x.data for x in seen["inputs"]))
        assert torch.equal(seen["inputs"][0].scale.scale_inv, seen["mixed"]._scale_inv)
        assert codes_of(seen["grad of context"]._data) == codes_of(seen["do"].data)
        assert torch.equal(seen["do"].scale.scale_inv, seen["grad of context"]._scale_inv)
        assert codes_of(seen["grad of mixed"]._data) == codes_of(*(x.data for x in seen["dqkv"]))
        assert seen["grad of mixed"]._fp8_dtype == te.DType.kFloat8E5M2


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("between", ["rope", "norm"])
def test_what_computes_between_gets_high_precision(recipe, between, monkeypatch):
    options = {"qk_norm_type": "RMSNorm"} if between == "norm" else {}
    module = make_attention(**options)
    watch = Watch(module, monkeypatch)
    angles = te.RotaryPositionEmbedding(HIDDEN // HEADS)(5) if between == "rope" else None
    run(module, recipe, rotary_pos_emb=angles)
    assert not isinstance(watch.seen["mixed"], te.Float8Tensor)
    assert isinstance(watch.seen["context"], te.Float8Tensor)
    assert isinstance(watch.seen["grad of context"], te.Float8Tensor)


def test_fp8_dpa_alone_keeps_the_boundaries_in_high_precision(monkeypatch):
    module = make_attention()
    watch = Watch(module, monkeypatch)
    run(module, DelayedScaling(fp8_dpa=True))
    for name in ("mixed", "context", "grad of context", "grad of mixed"):
        assert not isinstance(watch.seen[name], te.Float8Tensor), name


def make_layer() -> te.TransformerLayer:
    return te.TransformerLayer(
        HIDDEN, 128, HEADS, num_gqa_groups=2, hidden_dropout=0.1, attention_dropout=0.1,
        fuse_qkv_params=True, params_dtype=torch.bfloat16,
    )  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("kind", ["hooks", "reentrant", "te"])
def test_a_recomputed_layer_repeats_every_bit(recipe, kind):
    layer = make_layer()
    twin = copy.deepcopy(layer)

    def recomputed(x: torch.Tensor) -> Any:
        if kind == "te":
            return te.checkpoint(twin, x)
        return torch.utils.checkpoint.checkpoint(twin, x, use_reentrant=kind == "reentrant")

    recomputed.parameters = twin.parameters  # type: ignore[attr-defined]
    for seed in range(3):
        torch.manual_seed(seed)
        expected = run(layer, recipe)
        torch.manual_seed(seed)
        actual = run(recomputed, recipe)
        assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_hooks_that_replace_the_query_fall_back_to_the_slot(recipe):
    """The scale of a query travels with it; another query is quantized like any."""
    module = make_attention()
    module.core_attention.register_forward_pre_hook(lambda _, args: (args[0].clone(), *args[1:]))
    expected = run(make_twin(module), recipe)
    actual = run(module, recipe)
    assert actual[0].isfinite().all()
    assert (actual[0] - expected[0]).norm() < 0.2 * expected[0].norm()
    history = module.core_attention.fp8_meta["scaling_fwd"].delayed
    if isinstance(recipe, DelayedScaling):
        assert history.amax_history[-1, 2] > 0


def make_twin(module: Any) -> Any:
    twin = copy.deepcopy(module)
    twin.core_attention._forward_pre_hooks.clear()
    return twin
