# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What Megatron-core relies on, without Megatron: names, keywords, and kindness where it errs."""

from __future__ import annotations

import importlib
import inspect
import io
import pickle
import warnings

import pytest
import torch

import transformer_engine
import transformer_engine.pytorch as te
from transformer_engine.common.recipe import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
)

# Without any one of these, `import megatron.core` raises (measured with 0.16.1).
HARD_NAMES = (
    "__version__",
    "common",
    "common.recipe.DelayedScaling",
    "pytorch.Linear",
    "pytorch.LayerNormLinear",
    "pytorch.DotProductAttention",
    "pytorch.GroupedLinear",
    "pytorch.ops.Sequential",
    "pytorch.ops.FusibleOperation",
    "pytorch.distributed.CudaRNGStatesTracker",
)
# The same, imported by the path of their module.
HARD_IMPORTS = (
    ("fp8", "FP8GlobalStateManager"),
    ("fp8", "fp8_autocast"),
    ("distributed", "activation_recompute_forward"),
    ("tensor", "QuantizedTensor"),
    ("router", "fused_compute_score_for_moe_aux_loss"),
    ("router", "fused_moe_aux_loss"),
    ("router", "fused_topk_with_score_function"),
)
# Megatron imports each block at once and does without where a name is missing: half a block, or one
# whose functions only refuse, would be used and fail.
SOFT_BLOCKS = {
    "permutation": (
        ("permutation", "moe_permute"),
        ("permutation", "moe_permute_with_probs"),
        ("permutation", "moe_unpermute"),
        ("permutation", "moe_sort_chunks_by_index"),
        ("permutation", "moe_sort_chunks_by_index_with_probs"),
    ),
    "optimizers": (
        ("optimizers", "FusedAdam"),
        ("optimizers", "FusedSGD"),
        ("optimizers", "multi_tensor_applier"),
        ("optimizers", "multi_tensor_l2norm"),
        ("optimizers", "multi_tensor_scale"),
    ),
    "graphs": (
        ("graph", "make_graphed_callables"),
        ("graph", "restore_fp8_tensors"),
        ("graph", "save_fp8_tensors"),
        ("graph", "set_capture_end"),
        ("graph", "set_capture_start"),
    ),
    "router GEMM": (("cpp_extensions", "general_gemm"), ("module.base", "get_workspace")),
    "padding": (("", "Fp8Padding"), ("", "Fp8Unpadding")),
    "inference layers": (
        ("constants", "TE_DType"),
        ("distributed", "gather_along_first_dim"),
        ("distributed", "reduce_scatter_along_first_dim"),
    ),
}


def find(module: str, name: str) -> object | None:
    path = "transformer_engine.pytorch" + (f".{module}" if module else "")
    try:
        return getattr(importlib.import_module(path), name, None)
    except ImportError:
        return None


@pytest.mark.parametrize("path", HARD_NAMES)
def test_hard_attribute_exists(path):
    owner = transformer_engine  # alone: Megatron imports no more before it names the rest
    for name in path.split("."):
        owner = getattr(owner, name)


@pytest.mark.parametrize(("module", "name"), HARD_IMPORTS)
def test_hard_name_can_be_imported(module, name):
    assert find(module, name) is not None


@pytest.mark.parametrize("block", SOFT_BLOCKS)
def test_soft_names_come_as_a_complete_block_or_not_at_all(block):
    found = [find(*path) is not None for path in SOFT_BLOCKS[block]]
    assert all(found) or not any(found)


def test_megatron_sees_the_options_of_the_optimizers():
    """It asks the signature which precision-aware options there are."""
    adam = inspect.signature(te.optimizers.FusedAdam).parameters
    assert {
        "master_weight_dtype",
        "exp_avg_dtype",
        "exp_avg_sq_dtype",
        "use_decoupled_grad",
    } <= set(adam)
    assert {"master_weights", "store_param_remainders", "adam_w_mode"} <= set(adam)
    assert {"params", "lr", "weight_decay", "momentum"} <= set(
        inspect.signature(te.optimizers.FusedSGD).parameters
    )


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: te.GroupedLinear(2, 32, 32), "grouped"),
        (lambda: te.ops.Sequential(), "fusible"),
        (lambda: te.ops.FusibleOperation(), "fusible"),
        (
            lambda: te.router.fused_topk_with_score_function(
                *(torch.zeros(4, 4), 2, False, None, None, None, "softmax", None)
            ),
            "router",
        ),
        (
            lambda: te.router.fused_compute_score_for_moe_aux_loss(
                logits=torch.zeros(4, 4), topk=2, score_function="softmax"
            ),
            "router",
        ),
        (
            lambda: te.router.fused_moe_aux_loss(
                probs=torch.zeros(4, 4),
                tokens_per_expert=torch.zeros(4),
                total_num_tokens=4,
                topk=2,
                num_experts=4,
                coeff=0.1,
            ),
            "router",
        ),
    ],
    ids=["grouped", "sequential", "operation", "topk", "scores", "loss"],
)
def test_a_hard_name_without_a_feature_behind_it_says_so(call, word):
    with pytest.raises(NotImplementedError, match=word):
        call()


def test_the_version_passes_every_gate_of_megatron():
    from packaging.version import Version

    assert Version(str(transformer_engine.__version__)) >= Version("2.10.0")


@pytest.mark.parametrize("norm", [te.LayerNorm, te.RMSNorm])
@pytest.mark.parametrize("size", ["hidden_size", "normalized_shape"])
def test_norms_take_both_spellings_and_warn_once(norm, size):
    """Megatron builds hundreds of them with the deprecated keywords."""
    options = {size: 8, "eps": 1e-5, "sequence_parallel": True, "zero_centered_gamma": True}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            module = norm(**options, params_dtype=torch.bfloat16, device=torch.device("cpu"))
    assert len(caught) == (2 if size == "hidden_size" else 1)
    assert module.weight.shape == (8,)
    assert module.weight.dtype == torch.bfloat16
    assert module.weight.sequence_parallel is True


def test_delayed_scaling_swallows_the_keywords_that_megatron_adds():
    """Its subclass passes the keywords of layers, and survives pickling as the base class."""
    recipe = DelayedScaling(
        margin=0,
        amax_history_len=4,
        override_linear_precision=(False, False, False),
        fp8_dpa=False,
        fp8_mha=False,
        params_dtype=torch.float32,
        device="cpu",
    )
    again = pickle.loads(pickle.dumps(recipe))
    assert isinstance(again, DelayedScaling)
    assert again.amax_history_len == 4
    assert (again.delayed(), again.mxfp8(), again.nvfp4()) == (True, False, False)


def test_model_init_shows_the_keywords_that_megatron_looks_for():
    names = set(inspect.signature(te.fp8_model_init).parameters)
    assert {"recipe", "preserve_high_precision_init_val"} <= names


def test_the_method_that_megatron_calls_to_skip_weight_updates_is_there():
    manager = importlib.import_module("transformer_engine.pytorch.fp8").FP8GlobalStateManager
    try:
        manager.set_skip_fp8_weight_update_tensor(True)
    finally:
        manager.set_skip_fp8_weight_update_tensor(False)


def encoded(state: object) -> torch.Tensor:
    """A state in the way in which Megatron's hook writes one: the bytes of its pickle."""
    return torch.tensor(list(pickle.dumps(state)), dtype=torch.uint8)


@pytest.mark.parametrize(
    "recipe", [Float8CurrentScaling(), MXFP8BlockScaling(), Float8BlockScaling()]
)
def test_a_state_that_megatron_pickled_for_a_stateless_recipe_is_taken(recipe):
    module = te.Linear(32, 32, device="cpu")
    module.set_extra_state(encoded({"recipe": recipe, "extra_fp8_variables": {"num_gemms": 1}}))
    assert module(torch.zeros(1, 32)).shape == (1, 32)


@pytest.mark.parametrize(
    "state", [None, io.BytesIO(), torch.empty(0, dtype=torch.uint8)], ids=["none", "bytes", "empty"]
)
def test_an_empty_extra_state_of_any_kind_is_taken(state):
    te.Linear(32, 32, device="cpu").set_extra_state(state)


def test_the_extra_state_is_empty_without_fp8():
    """No elements mean "no FP8" to Megatron's decoder."""
    state = te.Linear(32, 32, device="cpu").get_extra_state()
    assert state.numel() == 0
    assert (state.dtype, state.device.type) == (torch.uint8, "cpu")


def test_a_delayed_scaling_state_that_cannot_be_read_is_refused_clearly():
    module = te.Linear(32, 32, device="cpu")
    state = {"recipe": DelayedScaling(), "scale_fwd": torch.ones(3), "extra_fp8_variables": {}}
    with pytest.raises((ValueError, TypeError), match=r"extra.state"):
        module.set_extra_state(encoded(state))


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dummy_weight_gradients_are_on_the_cpu(zero, dtype):
    from transformer_engine.pytorch.module.base import get_dummy_wgrad

    dummy = get_dummy_wgrad([3, 5], dtype, zero=zero)
    assert (tuple(dummy.shape), dummy.dtype, dummy.device.type) == ((3, 5), dtype, "cpu")
    assert not dummy.requires_grad
    assert not zero or not dummy.any()


def test_the_offload_context_takes_megatrons_positional_arguments():
    """Every transformer block builds one, offloading or not, and enters it once per layer."""
    context, synchronize = te.get_cpu_offload_context(False, 0, 2, True, False, False)
    x = torch.ones(2, 2, requires_grad=True)
    for _ in range(2):
        with context:
            y = x * 2
        synchronize(y)


@pytest.mark.parametrize("module", ["linear", "layernorm_linear", "layernorm"])
def test_modules_that_megatron_patches_can_be_imported(module):
    importlib.import_module(f"transformer_engine.pytorch.module.{module}")
