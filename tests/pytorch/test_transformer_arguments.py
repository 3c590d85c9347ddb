# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What TransformerLayer, MultiheadAttention and DropPath refuse, and that a refused call leaves
their scaling state and the random state alone.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.generators import random_tensor
from transformer_engine.common.recipe import DelayedScaling
from transformer_engine.pytorch.attention.multi_head_attention import MultiheadAttention
from transformer_engine.pytorch.transformer import DropPath, TransformerLayer

NAN = float("nan")
HIDDEN, FFN, HEADS, LENGTH, BATCH = 32, 64, 4, 8, 2

# Argument, value, error: of the attention, which a layer passes on, and of the layer alone.
ATTENTION_OPTIONS = [
    ("num_gqa_groups", 3, ValueError),
    ("num_gqa_groups", 0, ValueError),
    ("num_gqa_groups", 8, ValueError),
    ("num_gqa_groups", 2.0, TypeError),
    ("kv_channels", 0, ValueError),
    ("kv_channels", -1, ValueError),
    ("kv_channels", (8, 8), TypeError),
    ("kv_channels", 8.0, TypeError),
    ("attention_dropout", 2.0, ValueError),
    ("attention_dropout", "x", TypeError),
    ("layernorm_epsilon", "x", TypeError),
    ("layernorm_epsilon", -1.0, ValueError),
    ("layer_number", -1, ValueError),
    ("layer_number", "x", TypeError),
    ("layer_number", 1.5, TypeError),
    ("window_size", "x", TypeError),
    ("window_size", (-2, 0), ValueError),
    ("normalization", 3, ValueError),
    ("tp_size", 0, ValueError),
    ("tp_size", "a", TypeError),
    ("tp_group", 3, TypeError),
    ("params_dtype", "x", TypeError),
    ("params_dtype", torch.int32, TypeError),
    ("params_dtype", torch.float8_e4m3fn, TypeError),
    ("init_method", 3, TypeError),
    ("output_layer_init_method", 3, TypeError),
    ("get_rng_state_tracker", 3, TypeError),
]
LAYER_OPTIONS = [
    ("hidden_dropout", 2.0, ValueError),
    ("hidden_dropout", -1, ValueError),
    ("hidden_dropout", NAN, ValueError),
    ("hidden_dropout", None, TypeError),
    ("drop_path_rate", -1, ValueError),
    ("drop_path_rate", 1, ValueError),
    ("drop_path_rate", 1.5, ValueError),
    ("drop_path_rate", NAN, ValueError),
    ("drop_path_rate", "x", TypeError),
    ("layer_type", ["encoder"], ValueError),
    ("attn_input_format", None, ValueError),
    ("enc_dec_window_size", "x", TypeError),
    ("seq_length", "x", TypeError),
    ("micro_batch_size", 0, ValueError),
]


@pytest.mark.parametrize(("name", "value", "error"), ATTENTION_OPTIONS + LAYER_OPTIONS)
def test_options_of_a_layer(name, value, error):
    with pytest.raises(error, match=f"^TransformerLayer: {name} is {re.escape(repr(value))}[; ]"):
        TransformerLayer(HIDDEN, FFN, HEADS, device=torch.get_default_device(), **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [*ATTENTION_OPTIONS, ("qk_norm_eps", "x", TypeError), ("attn_mask_type", "x", ValueError)],
)
def test_options_of_attention(name, value, error):
    with pytest.raises(error, match=f"^MultiheadAttention: {name} is {re.escape(repr(value))}[; ]"):
        MultiheadAttention(HIDDEN, HEADS, device=torch.get_default_device(), **{name: value})


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ((0, FFN, HEADS), ValueError, "hidden_size is 0"),
        ((-32, FFN, HEADS), ValueError, "hidden_size is -32"),
        ((32.0, FFN, HEADS), TypeError, "hidden_size is 32.0"),
        ((None, FFN, HEADS), TypeError, "hidden_size is None"),
        ((HIDDEN, 0, HEADS), ValueError, "ffn_hidden_size is 0"),
        ((HIDDEN, None, HEADS), TypeError, "ffn_hidden_size is None"),
        ((HIDDEN, FFN, 0), ValueError, "num_attention_heads is 0"),
        ((HIDDEN, FFN, -4), ValueError, "num_attention_heads is -4"),
        ((HIDDEN, FFN, "x"), TypeError, "num_attention_heads is 'x'"),
        ((HIDDEN, FFN, 3), ValueError, "hidden_size is 32 with num_attention_heads=3"),
    ],
)
def test_sizes(sizes, error, message):
    with pytest.raises(error, match=f"^TransformerLayer: {message}"):
        TransformerLayer(*sizes, device=torch.get_default_device())
    if "ffn" not in message:
        with pytest.raises(error, match=f"^MultiheadAttention: {message}"):
            MultiheadAttention(sizes[0], sizes[2], device=torch.get_default_device())


def test_heads_that_do_not_divide_the_hidden_size_take_a_head_size():
    layer = TransformerLayer(HIDDEN, FFN, 3, kv_channels=8, device=torch.get_default_device())
    assert layer(torch.zeros(LENGTH, BATCH, HIDDEN)).shape == (LENGTH, BATCH, HIDDEN)


def test_an_unknown_activation():
    with pytest.raises(NotImplementedError, match="activation is 'x'"):
        TransformerLayer(HIDDEN, FFN, HEADS, activation="x", device=torch.get_default_device())


# ---- calls ---------------------------------------------------------------------------------------

X = torch.zeros(LENGTH, BATCH, HIDDEN)
INPUTS = [
    (None, TypeError, "is None"),
    ("x", TypeError, "is 'x'"),
    ([1, 2], TypeError, r"is \[1, 2\]"),
    (X.numpy(), TypeError, "is of type ndarray"),
    (X.to("meta"), ValueError, "is on meta"),
    (X.long(), TypeError, "has dtype torch.int64"),
    (X.bool(), TypeError, "has dtype torch.bool"),
    (X.to(torch.complex64), TypeError, "has dtype torch.complex64"),
    (X[..., :16], ValueError, r"has shape \(8, 2, 16\); sbhd needs 3 dimensions, \(s, b, 32\)"),
    (X[0], ValueError, r"has shape \(2, 32\)"),
    (X[None], ValueError, r"has shape \(1, 8, 2, 32\)"),
    (torch.tensor(1.0), ValueError, r"has shape \(\)"),
]
CALLS = [
    ({"attention_mask": torch.zeros(8, 8)}, TypeError, "attention_mask has torch.float32"),
    ({"enc_dec_attn_mask": torch.zeros(8, 8)}, TypeError, "enc_dec_attn_mask has torch.float32"),
    ({"self_attn_mask_type": "x"}, ValueError, "self_attn_mask_type is 'x'"),
    ({"enc_dec_attn_mask_type": "x"}, ValueError, "enc_dec_attn_mask_type is 'x'"),
    ({"window_size": 3}, TypeError, "window_size is 3"),
    ({"enc_dec_window_size": (1,)}, TypeError, r"enc_dec_window_size is \(1,\)"),
    ({"encoder_output": None}, ValueError, "encoder_output is None"),
]
OF_ATTENTION = [
    ({"attn_mask_type": "x"}, ValueError, "attn_mask_type is 'x'"),
    ({"window_size": 3}, TypeError, "window_size is 3"),
    ({"rotary_pos_emb": 3}, TypeError, "rotary_pos_emb is 3"),
    ({"rotary_pos_emb": (X, X, X)}, ValueError, "rotary_pos_emb is a sequence of 3"),
    ({"rotary_pos_emb": (X, 1)}, TypeError, r"rotary_pos_emb\[1\] is 1"),
    ({"encoder_output": None}, ValueError, "encoder_output is None"),
]


def state_of(module: torch.nn.Module) -> list[torch.Tensor]:
    """The random state, and all amaxes and scales that a call could have changed."""
    metas = [child.fp8_meta for child in module.modules() if hasattr(child, "fp8_meta")]
    states = [meta["scaling_fwd"] for meta in metas if "scaling_fwd" in meta]
    assert states
    tensors = [tensor for state in states for tensor in (state.amax_history, state.scale)]
    return [torch.get_rng_state(), *copy.deepcopy(tensors)]


def check_refusals(module: torch.nn.Module, who: str, cases: list[Any]) -> None:
    arguments = {"hidden_states": random_tensor(X.shape), "encoder_output": random_tensor(X.shape)}
    with te.autocast(recipe=DelayedScaling(amax_history_len=2)):
        module(**arguments)
    before = state_of(module)
    with te.autocast(recipe=DelayedScaling(amax_history_len=2)):
        for wrong, error, message in cases:
            with pytest.raises(error, match=f"^{who}.forward: {message}"):
                module(**{**arguments, **wrong})
        for old, new in zip(before, state_of(module), strict=True):
            assert torch.equal(old, new)


def named_inputs(*names: str) -> list[Any]:
    cases = [({name: x}, error, f"{name} {text}") for name in names for x, error, text in INPUTS]
    # A missing one has a message of its own, see CALLS.
    return [case for case in cases if case[0].get("encoder_output", X) is not None]


def test_calls_of_a_layer():
    layer = TransformerLayer(
        HIDDEN, FFN, HEADS, layer_type="decoder", device=torch.get_default_device()
    )
    cases = named_inputs("hidden_states", "encoder_output") + CALLS
    check_refusals(layer, "TransformerLayer", cases)


@pytest.mark.parametrize("input_layernorm", [False, True])
def test_calls_of_attention(input_layernorm):
    module = MultiheadAttention(
        HIDDEN,
        HEADS,
        attention_type="cross",
        input_layernorm=input_layernorm,
        device=torch.get_default_device(),
    )
    cases = named_inputs("hidden_states", "encoder_output") + OF_ATTENTION
    check_refusals(module, "MultiheadAttention", cases)


@pytest.mark.parametrize(
    ("qkv_format", "form"), [("bshd", "(b, s, 32)"), ("sbhd", "(s, b, 32)"), ("thd", "(t, 32)")]
)
def test_the_message_about_a_shape_tells_the_format(qkv_format, form):
    module = MultiheadAttention(
        HIDDEN,
        HEADS,
        qkv_format=qkv_format,
        attn_mask_type="padding",
        device=torch.get_default_device(),
    )
    with pytest.raises(ValueError, match=re.escape(f"dimensions, {form}")):
        module(torch.zeros(2, 2, 2, HIDDEN))


def test_groups_that_are_none():
    for module in (
        TransformerLayer(HIDDEN, FFN, HEADS, device=torch.get_default_device()),
        MultiheadAttention(HIDDEN, HEADS, device=torch.get_default_device()),
    ):
        with pytest.raises(TypeError, match="set_tensor_parallel_group: tp_group is 3"):
            module.set_tensor_parallel_group(3)
        assert module.tp_group is None
        with pytest.raises(TypeError, match="cp_group is 3"):
            module.set_context_parallel_group(3, None, None)


def test_drop_path():
    for value, error in ((-0.1, ValueError), (1, ValueError), ("x", TypeError)):
        with pytest.raises(error, match=f"^DropPath: drop_prob is {value!r}"):
            DropPath(value)
    for value, error in ((None, TypeError), ([1.0], TypeError), (torch.tensor(1.0), ValueError)):
        with pytest.raises(error, match=r"^DropPath.forward: hidden_state "):
            DropPath(0.5)(value)


@pytest.mark.parametrize("kind", [TransformerLayer, MultiheadAttention])
def test_what_the_projections_cannot_do_is_refused_by_the_module_that_was_called(kind):
    sizes = (HIDDEN, FFN, HEADS) if kind is TransformerLayer else (HIDDEN, HEADS)
    who = kind.__name__
    with te.quantized_model_init():
        with pytest.raises(RuntimeError, match=f"^{who}: fuse_qkv_params is False inside"):
            kind(*sizes, device=torch.get_default_device())
        layer = kind(*sizes, fuse_qkv_params=True, device=torch.get_default_device())
    assert any(isinstance(weight, te.QuantizedTensor) for weight in layer.parameters())


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("kind", [TransformerLayer, MultiheadAttention])
def test_a_module_without_data_refuses_tensors_without_data(kind, amp):
    sizes = (HIDDEN, FFN, HEADS) if kind is TransformerLayer else (HIDDEN, HEADS)
    module = kind(*sizes, device="meta")
    message = f"^{kind.__name__}.forward: hidden_states is on meta"
    with (
        torch.autocast("cpu", torch.bfloat16, enabled=amp),
        pytest.raises(ValueError, match=message),
    ):
        module(X.to("meta"))
