# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Public enumerations and tables."""

import importlib

import pytest
import torch

from transformer_engine.pytorch import constants
from transformer_engine.pytorch.constants import DType, TE_DType, TE_DType_To_Torch


@pytest.mark.smoke
def test_dtype_values_are_the_native_ones():
    values = {
        "kByte": 0,
        "kInt16": 1,
        "kInt32": 2,
        "kInt64": 3,
        "kFloat32": 4,
        "kFloat16": 5,
        "kBFloat16": 6,
        "kFloat8E4M3": 7,
        "kFloat8E5M2": 8,
        "kFloat8E8M0": 9,
        "kFloat4E2M1": 10,
    }
    assert {member.name: int(member) for member in DType} == values
    assert DType.kFloat8E4M3 == 7


def test_the_native_module_has_the_same_enumeration():
    native = importlib.import_module("transformer_engine_torch")
    assert native.DType is DType


def test_dtype_cast_accepts_members_integers_and_torch_dtypes():
    assert DType.cast(DType.kInt32) is DType.kInt32
    assert DType.cast(8) is DType.kFloat8E5M2
    assert DType.cast(torch.bfloat16) is DType.kBFloat16
    with pytest.raises(ValueError, match="99"):
        DType.cast(99)
    with pytest.raises(ValueError, match="complex64"):
        DType.cast(torch.complex64)
    with pytest.raises(TypeError, match="value is a str"):
        DType.cast("float32")


def test_dtype_tables_are_inverses():
    assert all(TE_DType_To_Torch[te] is dtype for dtype, te in TE_DType.items())
    assert TE_DType[torch.uint8] is DType.kByte
    assert TE_DType[torch.float8_e5m2] is DType.kFloat8E5M2


def test_slots_follow_the_gemms():
    forward = [member.name for member in constants.FP8FwdTensorIdx]
    assert forward[:4] == ["GEMM1_INPUT", "GEMM1_WEIGHT", "GEMM1_OUTPUT", "GEMM2_INPUT"]
    assert [int(member) for member in constants.FP8FwdTensorIdx] == list(range(9))
    backward = [member.name for member in constants.FP8BwdTensorIdx]
    assert backward[:3] == ["GRAD_OUTPUT1", "GRAD_INPUT1", "GRAD_OUTPUT2"]
    assert [int(member) for member in constants.FP8BwdTensorIdx] == list(range(6))


def test_attention_names():
    assert constants.GemmParallelModes == ("row", "column", None)
    assert constants.LayerTypes == ("encoder", "decoder")
    assert constants.AttnTypes == ("self", "cross")
    assert set(constants.AttnBiasTypes) == {
        *("pre_scale_bias", "post_scale_bias", "no_bias", "alibi"),
    }
    assert len(set(constants.QKVLayouts)) == 25
    assert len(set(constants.AttnMaskTypes)) == 7
