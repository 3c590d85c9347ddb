# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""TransformerLayer and MultiheadAttention against a composition of plain torch functions."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.utils.checkpoint

import transformer_engine.pytorch as te
from helpers.formats import FORMATS
from helpers.generators import random_tensor
from helpers.tolerances import assert_within
from helpers.transformer import ACTIVATIONS, LayerSpec, reference_layer
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling
from transformer_engine.pytorch.attention import RotaryPositionEmbedding
from transformer_engine.pytorch.attention.multi_head_attention import MultiheadAttention
from transformer_engine.pytorch.transformer import DropPath, TransformerLayer

HIDDEN, FFN, HEADS, LENGTH, SOURCE, BATCH = 16, 24, 4, 6, 5, 2
NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}


def make_layer(**options: Any) -> TransformerLayer:
    """A layer whose norms and biases are random too, so that every parameter matters."""
    layer = TransformerLayer(
        HIDDEN, FFN, HEADS, device=torch.get_default_device(), **{**NO_DROPOUT, **options}
    )
    with torch.no_grad():
        for i, parameter in enumerate(layer.parameters()):
            scale = 0.25 if parameter.dim() > 1 else 0.5
            parameter.add_(scale * random_tensor(tuple(parameter.shape), seed=100 + i))
    return layer


def layer_bound(expected: torch.Tensor, layers_deep: int = 1) -> float:
    """Error bound of a result that passed through a layer in FP32, from its largest magnitude.

    The longest chain of roundings runs through three norms, four GEMMs (sums of at most FFN and
    LENGTH products) and the softmax; the backward pass runs through it once more. Weights and
    norms here neither shrink nor grow a vector by more than a factor of 8.
    """
    chain = 8 * (3 * HIDDEN + FFN + SOURCE + LENGTH)
    unit = FORMATS[torch.float32].unit_roundoff
    return chain * layers_deep * unit * max(1.0, float(expected.detach().abs().max()))


def causal(rows: int, columns: int) -> torch.Tensor:
    return torch.ones(rows, columns, dtype=torch.bool).triu(1)


def check_layer(
    layer: TransformerLayer,
    spec: LayerSpec,
    hidden: torch.Tensor | None = None,
    reference_options: dict[str, Any] | None = None,
    **arguments: Any,
) -> None:
    """Forward, and the gradients of the input, of the encoder's output and of every parameter."""
    x = random_tensor((LENGTH, BATCH, HIDDEN), seed=1).requires_grad_()
    exact = x.detach().double().requires_grad_()
    options = dict(reference_options or {})
    pairs = [("input", x, exact)]
    if spec.decoder:
        source = random_tensor((SOURCE, BATCH, HIDDEN), seed=2).requires_grad_()
        exact_source = source.detach().double().requires_grad_()
        arguments["encoder_output"] = source.transpose(0, 1) if spec.batch_first else source
        options.setdefault("cross_hidden", torch.zeros(LENGTH, SOURCE, dtype=torch.bool))
        options["encoder_output"] = exact_source
        pairs.append(("encoder output", source, exact_source))
    state = {
        name: value.detach().double().requires_grad_() for name, value in layer.named_parameters()
    }
    hidden = causal(LENGTH, LENGTH) if hidden is None else hidden
    expected = reference_layer(spec, state, exact, hidden=hidden, **options)
    out = layer(x.transpose(0, 1) if spec.batch_first else x, **arguments)
    out = out.transpose(0, 1) if spec.batch_first else out
    assert_within(out, expected, layer_bound(expected), "output")
    grad = random_tensor(tuple(out.shape), seed=3)
    out.backward(grad)
    expected.backward(grad.double())
    pairs += [(name, value, state[name]) for name, value in layer.named_parameters()]
    for name, have, want in pairs:
        rows = LENGTH * BATCH  # a weight gradient is a sum over rows
        assert_within(have.grad, want.grad, rows * layer_bound(want.grad), f"gradient of {name}")


PLAIN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "defaults": ({}, {}),
    "fused, interleaved": ({"fuse_qkv_params": True}, {"interleaved_qkv": True}),
    "fused": ({"fuse_qkv_params": True, "qkv_weight_interleaved": False}, {}),
    "groups": ({"num_gqa_groups": 2}, {"groups": 2}),
    "groups, fused, interleaved": (
        {"num_gqa_groups": 2, "fuse_qkv_params": True},
        {"groups": 2, "interleaved_qkv": True},
    ),
    "one group": ({"num_gqa_groups": 1}, {"groups": 1}),
    "head size": ({"kv_channels": 6}, {"head_size": 6}),
    "RMSNorm": ({"normalization": "RMSNorm"}, {"normalization": "RMSNorm"}),
    "zero-centred": ({"zero_centered_gamma": True}, {"zero_centered_gamma": True}),
    "epsilon": ({"layernorm_epsilon": 0.1}, {"eps": 0.1}),
    "no bias": ({"bias": False}, {}),
    "post norm": ({"output_layernorm": True}, {"output_layernorm": True}),
    "residual after norm": (
        {"apply_residual_connection_post_layernorm": True},
        {"residual_post_norm": True},
    ),
    "both": (
        {"apply_residual_connection_post_layernorm": True, "output_layernorm": True},
        {"residual_post_norm": True, "output_layernorm": True},
    ),
    "post RMSNorm": (
        {"output_layernorm": True, "normalization": "RMSNorm", "zero_centered_gamma": True},
        {"output_layernorm": True, "normalization": "RMSNorm", "zero_centered_gamma": True},
    ),
    "batch first": ({"attn_input_format": "bshd"}, {"batch_first": True}),
    "learnable softmax": ({"softmax_type": "learnable"}, {"learnable_softmax": True}),
    "L2 of q and k": ({"qk_norm_type": "L2Normalization"}, {"qk_norm": "L2Normalization"}),
    "RMS of q and k": ({"qk_norm_type": "RMSNorm"}, {"qk_norm": "RMSNorm"}),
    "norm of q and k": (
        {"qk_norm_type": "LayerNorm", "qk_norm_eps": 0.1},
        {"qk_norm": "LayerNorm", "qk_eps": 0.1},
    ),
}


@pytest.mark.parametrize("layer_type", ["encoder", "decoder"])
@pytest.mark.parametrize("option", PLAIN)
def test_every_option(option, layer_type):
    options, changes = PLAIN[option]
    spec = LayerSpec(**changes, decoder=layer_type == "decoder")
    check_layer(make_layer(layer_type=layer_type, **options), spec)


@pytest.mark.parametrize("normalization", ["LayerNorm", "RMSNorm"])
def test_parallel_attention_and_mlp(normalization):
    layer = make_layer(parallel_attention_mlp=True, normalization=normalization)
    check_layer(layer, LayerSpec(parallel_mlp=True, normalization=normalization))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation):
    check_layer(make_layer(activation=activation), LayerSpec(activation=activation))


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("qk_norm", [None, "L2Normalization", "RMSNorm", "LayerNorm"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("as_pair", [False, True])
def test_rotary_embedding_and_norm_of_q_and_k(as_pair, interleaved, qk_norm, before):
    layer = make_layer(
        rotary_pos_interleaved=interleaved, qk_norm_type=qk_norm, qk_norm_before_rope=before
    )
    angles = RotaryPositionEmbedding(4, interleaved=interleaved)(LENGTH)
    spec = LayerSpec(rope_interleaved=interleaved, qk_norm=qk_norm, qk_norm_before_rope=before)
    check_layer(
        layer,
        spec,
        reference_options={"angles": angles.double()},
        rotary_pos_emb=(angles, angles) if as_pair else angles,
    )


def test_masks_windows_and_bias_reach_both_attentions():
    own = random_tensor((BATCH, 1, LENGTH, LENGTH), seed=5) > 0.5
    own[..., 0] = False
    cross = random_tensor((BATCH, 1, LENGTH, SOURCE), seed=6) > 0.5
    cross[..., 0] = False
    layer = make_layer(layer_type="decoder", self_attn_mask_type="arbitrary")
    check_layer(
        layer,
        LayerSpec(decoder=True),
        hidden=own,
        reference_options={"cross_hidden": cross},
        attention_mask=own,
        enc_dec_attn_mask=cross,
        enc_dec_attn_mask_type="arbitrary",
    )
    check_layer(make_layer(self_attn_mask_type="no_mask"), LayerSpec(), hidden=own & False)
    band = causal(LENGTH, LENGTH) | torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(-3)
    for layer, arguments in (
        (make_layer(window_size=(2, 0)), {}),
        (make_layer(), {"window_size": (2, 0)}),
    ):
        check_layer(layer, LayerSpec(), hidden=band, **arguments)
    bias = random_tensor((1, HEADS, LENGTH, LENGTH), seed=7)
    check_layer(
        make_layer(),
        LayerSpec(),
        reference_options={"added": bias.double()},
        core_attention_bias_type="post_scale_bias",
        core_attention_bias=bias,
    )


def test_padding_mask_and_lengths_agree_and_padding_has_no_influence():
    layer = make_layer(self_attn_mask_type="padding", attn_input_format="bshd")
    lengths = torch.tensor([4, 6])
    mask = (torch.arange(LENGTH) >= lengths[:, None])[:, None, None]
    cu_seqlens = torch.tensor([0, 4, 10], dtype=torch.int32)
    x = random_tensor((BATCH, LENGTH, HIDDEN), seed=1)
    by_mask = layer(x, mask)
    by_lengths = layer(x, cu_seqlens_q=cu_seqlens)
    assert torch.equal(by_mask, by_lengths)
    other = x.clone()
    other[0, 4:] = 7.0
    assert torch.equal(layer(other, mask)[0, :4], by_mask[0, :4])
    alone = layer(x[:1, :4], self_attn_mask_type="no_mask")
    assert_within(by_mask[:1, :4], alone, layer_bound(alone))


@pytest.mark.parametrize("rotary", [False, True])
def test_packed_sequences_equal_single_ones(rotary):
    layer = make_layer(self_attn_mask_type="padding_causal", attn_input_format="thd")
    cu_seqlens = torch.tensor([0, 4, 9], dtype=torch.int32)
    arguments = {"rotary_pos_emb": RotaryPositionEmbedding(4)(5)} if rotary else {}
    x = random_tensor((9, HIDDEN), seed=1)
    out = layer(x, cu_seqlens_q=cu_seqlens, max_seqlen_q=5, **arguments)
    dense = make_layer(self_attn_mask_type="causal")
    dense.load_state_dict(layer.state_dict())
    for start, end in ((0, 4), (4, 9)):
        alone = dense(x[start:end, None], **arguments)[:, 0]
        assert_within(out[start:end], alone, layer_bound(alone))


def test_batch_split_and_batch_permutation_change_nothing():
    layer = make_layer()
    x = random_tensor((LENGTH, 4, HIDDEN), seed=1)
    whole = layer(x)
    bound = layer_bound(whole)
    assert_within(torch.cat([layer(part) for part in x.split(1, 1)], 1), whole, bound)
    order = torch.tensor([2, 0, 3, 1])
    assert_within(layer(x[:, order]), whole[:, order], bound)


def test_recomputed_core_attention_changes_nothing():
    layer = make_layer(attention_dropout=0.5, hidden_dropout=0.5)
    grads = []
    for recompute in (False, True):
        torch.manual_seed(3)
        x = random_tensor((LENGTH, BATCH, HIDDEN), seed=1).requires_grad_()
        layer(x, checkpoint_core_attention=recompute).square().sum().backward()
        grads.append(x.grad)
    assert torch.equal(*grads)


def gradients_of(function, layer: torch.nn.Module, autocast: bool) -> list[torch.Tensor]:
    """Of the input and all parameters, from the same random numbers."""
    torch.manual_seed(3)
    x = random_tensor((LENGTH, BATCH, HIDDEN), seed=1).requires_grad_()
    layer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        out = function(x)
    out.square().sum().backward()
    return [x.grad, *(parameter.grad.clone() for parameter in layer.parameters())]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize(
    "kind", ["reentrant", "not reentrant", "library", "library, not reentrant"]
)
def test_recomputing_the_layer_changes_nothing(kind, dropout, autocast):
    layer = make_layer(
        hidden_dropout=dropout, attention_dropout=dropout, drop_path_rate=dropout / 2
    )
    run = torch.utils.checkpoint.checkpoint if "library" not in kind else te.checkpoint
    reentrant = "not reentrant" not in kind
    again = gradients_of(lambda x: run(layer, x, use_reentrant=reentrant), layer, autocast)
    for have, want in zip(again, gradients_of(layer, layer, autocast), strict=True):
        assert torch.equal(have, want)


def test_saved_tensor_hooks_see_the_whole_layer():
    layer = make_layer()
    expected = gradients_of(layer, layer, False)
    with torch.autograd.graph.save_on_cpu():
        for have, want in zip(gradients_of(layer, layer, False), expected, strict=True):
            assert torch.equal(have, want)


def test_copies_and_pickles_work_after_use():
    layer = make_layer(layer_type="decoder", qk_norm_type="RMSNorm")
    x = random_tensor((LENGTH, BATCH, HIDDEN), seed=1)
    expected = layer(x, encoder_output=x)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(x, encoder_output=x), expected)


def test_hidden_dropout_applies_to_each_branch_in_training_only():
    layer = make_layer(hidden_dropout=1.0)
    x = random_tensor((LENGTH, BATCH, HIDDEN), seed=1)
    assert torch.equal(layer(x), x)  # both branches are dropped, the residual is not
    layer.eval()
    reference = make_layer()
    reference.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), reference(x))


def test_drop_path_drops_indices_of_the_first_dimension():
    path = DropPath(0.25)
    x = torch.ones(4096, 2, 3)
    out = path(x)
    kept = out[:, 0, 0] != 0
    assert torch.equal(out, torch.where(kept, 1 / 0.75, 0.0)[:, None, None].expand_as(x))
    assert abs(kept.double().mean().item() - 0.75) < 5 * (0.25 * 0.75 / 4096) ** 0.5
    assert path.eval()(x) is x
    with pytest.raises(ValueError, match=r"DropPath: drop_prob is 1\.0"):
        DropPath(1.0)


def test_drop_path_of_a_layer_spares_cross_attention():
    layer = make_layer(layer_type="decoder", drop_path_rate=0.999999)
    x = random_tensor((LENGTH, BATCH, HIDDEN), seed=1)
    source = random_tensor((SOURCE, BATCH, HIDDEN), seed=2)
    torch.manual_seed(0)
    out = layer(x, encoder_output=source)
    expected = x + layer.inter_attention(x, encoder_output=source, attn_mask_type="no_mask")
    assert_within(out, expected, layer_bound(expected))
    assert not torch.equal(layer.eval()(x, encoder_output=source), out)


QKV = tuple(f"{part}_{kind}" for part in ("query", "key", "value") for kind in ("weight", "bias"))
NORM = ("layer_norm_weight", "layer_norm_bias")
MLP = ("fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias")


def expected_keys(**children: tuple[str, ...]) -> set[str]:
    """`a__b=(...)` stands for keys a.b.<name>; modules with linear layers have an extra state."""
    keys = set()
    for path, names in children.items():
        keys |= {f"{path.replace('__', '.')}.{name}" for name in names}
    return keys


EXTRA = "_extra_state"
COMMON = {
    "self_attention__core_attention": (EXTRA,),
    "self_attention__proj": ("weight", "bias", EXTRA),
    "layernorm_mlp": (*NORM, *MLP, EXTRA),
}


@pytest.mark.parametrize(
    ("options", "children"),
    [
        ({}, {"self_attention__layernorm_qkv": (*NORM, *QKV, EXTRA)}),
        (
            {"fuse_qkv_params": True},
            {"self_attention__layernorm_qkv": (*NORM, "weight", "bias", EXTRA)},
        ),
        (
            {"normalization": "RMSNorm", "softmax_type": "learnable", "qk_norm_type": "RMSNorm"},
            {
                "self_attention__layernorm_qkv": ("layer_norm_weight", *QKV, EXTRA),
                "self_attention__core_attention": (EXTRA, "softmax_offset"),
                "self_attention__q_norm": ("weight",),
                "self_attention__k_norm": ("weight",),
                "layernorm_mlp": ("layer_norm_weight", *MLP, EXTRA),
            },
        ),
        (
            {"output_layernorm": True, "qk_norm_type": "LayerNorm"},
            {
                "self_attention__qkv": (*QKV, EXTRA),
                "self_attention__q_norm": ("weight", "bias"),
                "self_attention__k_norm": ("weight", "bias"),
                "layernorm": ("weight", "bias"),
            },
        ),
        (
            {"layer_type": "decoder"},
            {
                "self_attention__layernorm_qkv": (*NORM, *QKV, EXTRA),
                "inter_attention__layernorm_query": (*NORM, *QKV[:2], EXTRA),
                "inter_attention__key_value": (*QKV[2:], EXTRA),
                "inter_attention__core_attention": (EXTRA,),
                "inter_attention__proj": ("weight", "bias", EXTRA),
            },
        ),
        (
            {"bias": False},
            {
                "self_attention__layernorm_qkv": (*NORM, *QKV[0::2], EXTRA),
                "self_attention__proj": ("weight", EXTRA),
                "layernorm_mlp": (*NORM, "fc1_weight", "fc2_weight", EXTRA),
            },
        ),
    ],
)
def test_state_dict_keys(options, children):
    layer = make_layer(**options)
    keys = set(layer.state_dict())
    norms = {key for key in keys if key.endswith(("_norm._extra_state", "layernorm._extra_state"))}
    assert keys - norms == expected_keys(**{**COMMON, **children})
    make_layer(**options).load_state_dict(layer.state_dict())


@pytest.mark.parametrize("by_context", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("options", [{}, {"layer_type": "decoder", "output_layernorm": True}])
def test_construction_on_meta_and_reset(options, fused, by_context):
    options = {"fuse_qkv_params": fused, "softmax_type": "learnable", **NO_DROPOUT, **options}
    if by_context:
        with torch.device("meta"):
            layer = TransformerLayer(HIDDEN, FFN, HEADS, **options)
    else:
        layer = TransformerLayer(HIDDEN, FFN, HEADS, device="meta", **options)
    assert all(p.is_meta for n, p in layer.named_parameters() if "softmax_offset" not in n)
    for module in layer.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    assert not any(parameter.is_meta for parameter in layer.parameters())
    for name, parameter in layer.named_parameters():
        if parameter.dim() == 2:
            assert 0.5 < parameter.std().item() / 0.023 < 2, name
        else:
            value = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            assert (parameter == value).all(), name
    x = random_tensor((LENGTH, BATCH, HIDDEN), seed=1)
    assert layer(x, encoder_output=x).isfinite().all()


def test_initialisation_methods_are_used_where_they_belong():
    layer = make_layer()  # draws, so that defaults are not constants
    del layer
    layer = TransformerLayer(
        HIDDEN,
        FFN,
        HEADS,
        device=torch.get_default_device(),
        init_method=lambda w: torch.nn.init.constant_(w, 2.0),
        output_layer_init_method=lambda w: torch.nn.init.constant_(w, 3.0),
    )
    for name, parameter in layer.named_parameters():
        if parameter.dim() == 2:
            output = name.endswith(("proj.weight", "fc2_weight"))
            assert (parameter == (3.0 if output else 2.0)).all(), name


def test_autocast_gives_the_autocast_dtype():
    layer = make_layer()
    x = random_tensor((LENGTH, BATCH, HIDDEN), seed=1).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert x.grad.dtype == torch.float32
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in layer.parameters())
    exact = layer(x).detach()
    # Four BF16 GEMMs, two norms and the softmax: each rounds its result once.
    bound = 16 * FORMATS[torch.bfloat16].epsilon * float(exact.abs().max())
    assert_within(out, exact, bound)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_parameters(dtype):
    layer = make_layer(params_dtype=dtype)
    x = random_tensor((LENGTH, BATCH, HIDDEN), dtype=dtype, seed=1)
    out = layer(x)
    assert out.dtype == dtype
    twin = make_layer()
    twin.load_state_dict(
        {k: v.float() if v.is_floating_point() else v for k, v in layer.state_dict().items()}
    )
    exact = twin(x.float()).detach()
    bound = 16 * FORMATS[dtype].epsilon * float(exact.abs().max())
    assert_within(out, exact, bound)


def test_parallel_groups_reach_the_descendants(monkeypatch):
    layer = make_layer(layer_type="decoder")
    group = object()
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: 1)
    layer.set_tensor_parallel_group(group)
    for module in (layer, layer.self_attention, layer.self_attention.proj, layer.layernorm_mlp):
        assert module.tp_group is group
    assert layer.inter_attention.core_attention.tp_group is group
    layer.set_context_parallel_group(None, None, None, "all_gather")
    for attention in (layer.self_attention, layer.inter_attention):
        assert attention.core_attention.cp_comm_type == "all_gather"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer_type": "middle"}, "layer_type is 'middle'"),
        ({"normalization": "BatchNorm"}, "normalization is 'BatchNorm'"),
        ({"parallel_attention_mlp": True, "layer_type": "decoder"}, "layer_type is 'decoder'"),
        ({"parallel_attention_mlp": True, "output_layernorm": True}, "output_layernorm is True"),
        (
            {"parallel_attention_mlp": True, "apply_residual_connection_post_layernorm": True},
            "apply_residual_connection_post_layernorm is True",
        ),
        ({"fuse_wgrad_accumulation": True}, "fuse_wgrad_accumulation is True"),
        ({"self_attn_mask_type": "lower"}, "self_attn_mask_type is 'lower'"),
        ({"enc_dec_attn_mask_type": "lower"}, "enc_dec_attn_mask_type is 'lower'"),
        ({"drop_path_rate": 1.0}, "drop_path_rate is 1.0"),
        ({"num_gqa_groups": 3}, "num_gqa_groups is 3"),
        ({"layer_number": 0}, "layer_number is 0"),
        ({"qk_norm_type": "GroupNorm"}, "qk_norm_type is 'GroupNorm'"),
        ({"attn_input_format": "hsbd"}, "attn_input_format is 'hsbd'"),
        ({"softmax_type": "hard"}, "softmax_type is 'hard'"),
    ],
)
def test_constructor_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        TransformerLayer(HIDDEN, FFN, HEADS, device=torch.get_default_device(), **options)


def test_forward_refusals():
    layer = make_layer(layer_type="decoder", self_attn_mask_type="arbitrary")
    x = torch.zeros(LENGTH, BATCH, HIDDEN)
    ints = torch.zeros(1, 1, LENGTH, LENGTH, dtype=torch.int64)
    with pytest.raises(TypeError, match=r"attention_mask has torch\.int64 at \[0\]"):
        layer(x, ints, encoder_output=x)
    with pytest.raises(TypeError, match=r"enc_dec_attn_mask has torch\.int64, int at \[1, 2\]"):
        layer(x, ints.bool(), encoder_output=x, enc_dec_attn_mask=[ints.bool(), ints, 3])
    with pytest.raises(ValueError, match="encoder_output is None"):
        layer(x, ints.bool())
    with pytest.raises(NotImplementedError, match="inference_params"):
        layer(x, ints.bool(), encoder_output=x, inference_params=object())
    with pytest.raises(ValueError, match="attn_mask_type is 'lower'"):
        layer(x, self_attn_mask_type="lower", encoder_output=x)


@pytest.mark.parametrize("attention_type", ["self", "cross"])
@pytest.mark.parametrize("norm_out", [False, True])
@pytest.mark.parametrize("return_bias", [False, True])
@pytest.mark.parametrize("input_layernorm", [False, True])
def test_what_multihead_attention_returns(input_layernorm, return_bias, norm_out, attention_type):
    options = {"input_layernorm": input_layernorm, "attention_type": attention_type}
    options.update(attention_dropout=0.0, device=torch.get_default_device())
    module = MultiheadAttention(
        HIDDEN, HEADS, return_bias=return_bias, return_layernorm_output=norm_out, **options
    )
    torch.nn.init.normal_(module.proj.bias)
    plain = MultiheadAttention(HIDDEN, HEADS, **options)
    plain.load_state_dict(module.state_dict())
    x = random_tensor((LENGTH, BATCH, HIDDEN), seed=1)
    arguments = {"encoder_output": x} if attention_type == "cross" else {}
    outputs = module(x, **arguments)
    expected = plain(x, **arguments)
    has_norm = norm_out and input_layernorm
    if not (return_bias or has_norm):
        assert torch.equal(outputs, expected)
        return
    assert len(outputs) == 1 + return_bias + has_norm
    total = outputs[0] + outputs[1] if return_bias else outputs[0]
    assert_within(total, expected, layer_bound(expected))
    if has_norm:
        normed = torch.nn.functional.layer_norm(x, (HIDDEN,))
        assert_within(outputs[-1], normed, layer_bound(normed))


@pytest.mark.parametrize("recipe", [DelayedScaling(), Float8CurrentScaling()])
def test_a_layer_learns_in_fp8(recipe):
    layer = TransformerLayer(
        32, 64, 2, params_dtype=torch.bfloat16, device=torch.get_default_device(), **NO_DROPOUT
    )
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    x, target = (random_tensor((16, 2, 32), dtype=torch.bfloat16, seed=i) for i in (1, 2))
    losses = []
    for _ in range(20):
        with te.autocast(recipe=recipe):
            out = layer(x)
        loss = (out.float() - target.float()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.smoke
def test_a_layer_learns():
    layer = TransformerLayer(HIDDEN, FFN, HEADS, device=torch.get_default_device(), **NO_DROPOUT)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    x, target = (
        random_tensor((LENGTH, BATCH, HIDDEN), seed=1),
        random_tensor((LENGTH, BATCH, HIDDEN), seed=2),
    )
    losses = []
    for _ in range(20):
        loss = (layer(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
