# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Megatron-core trains dense GPTs of TE layers as it does of its own, and under FP8 as in BF16."""

from __future__ import annotations

import json

import pytest

from megatron_client.scenarios import DENSE, FP8_RECIPES

pytestmark = pytest.mark.slow

# Scenarios of a group share one import of Megatron.
GROUPS = {
    "precision": ("dense", "dense_bf16", "llama", "gpu_init", "dropout", "precision_aware"),
    "memory": (
        *("recompute_full", "recompute_select", "recompute_modules"),
        *("grad_accum_fusion", "te_rng_tracker"),
    ),
    "architecture": ("qk_layernorm", "zero_centered", "rope_fusion", "window"),
    "pipeline": ("pp2",),
    "fp8_parameters": ("fp8_parameters", "dp2_fp8_parameters", "tp2_fp8_parameters"),
    "tensor_parallel": ("tp2", "tp2_bf16", "tp2_sp", "tp2_gpu_init", "tp2_sp_checkpoint"),
}


def test_every_dense_scenario_is_run():
    elsewhere = {"checkpoint", "tp2_sp_resharded"}
    assert sorted({*sum(GROUPS.values(), ()), *elsewhere}) == sorted(DENSE)


@pytest.mark.parametrize("group", GROUPS)
def test_scenarios_pass(run_python, group):
    """Losses and gradient norms as with native layers; FP8 losses within 2 % of BF16."""
    result = run_python("-m", "megatron_client", *GROUPS[group], "--fp8", *FP8_RECIPES)
    assert result.returncode == 0, result.stdout + result.stderr


def test_training_goes_on_from_a_distributed_checkpoint_to_the_bit(run_python, tmp_path):
    """Loading restores the scaling state too: nothing tells the run from an uninterrupted one."""
    report_path = tmp_path / "report.json"
    arguments = ["dense", "checkpoint", "--fp8", *FP8_RECIPES, "--json", str(report_path)]
    result = run_python("-m", "megatron_client", *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(report_path.read_text())
    assert set(report["dense"]["runs"]) == {"native", "te", "bf16", *FP8_RECIPES}
    for label, logs in report["checkpoint"]["runs"].items():
        assert logs == report["dense"]["runs"][label], label


def test_training_goes_on_with_other_numbers_of_ranks(run_python):
    """A checkpoint of two tensor-parallel ranks, on one and on four."""
    result = run_python("-m", "megatron_client", "tp2_sp_resharded", "--fp8", "delayed")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("resumed on 4") == 3


def test_missing_features_are_named(run_python, tmp_path):
    """What this version lacks ends in an error that says so, not in one that puzzles."""
    report_path = tmp_path / "report.json"
    names = {"op_fuser_mlp": "fusible", "moe_grouped": "grouped", "cp2": "context parallel"}
    arguments = [*names, "--spec", "te", "--json", str(report_path)]
    result = run_python("-m", "megatron_client", *arguments)
    assert result.returncode == 1, result.stdout + result.stderr
    report = json.loads(report_path.read_text())
    for name, word in names.items():
        (error,) = report[name]["errors"]
        assert "NotImplementedError" in error
        assert word in error.lower()
