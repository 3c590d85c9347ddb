# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The interface of userbuffers."""

import pytest
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore

import transformer_engine.pytorch as te
from transformer_engine.pytorch.module import base, userbuffers

NONE, FP8 = te.UserBufferQuantizationMode.NONE, te.UserBufferQuantizationMode.FP8
SHAPE = (16, 8)


@pytest.fixture
def group(monkeypatch):
    monkeypatch.setattr(userbuffers, "_told", set())
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    te.destroy_ub()
    torch.distributed.destroy_process_group()


def test_without_process_groups_there_is_nothing_to_share():
    with pytest.raises(RuntimeError, match=r"initialize_ub: torch\.distributed is not initialized"):
        te.initialize_ub(SHAPE, 2)
    assert not base.is_ub_initialized()


def test_initialization_is_accepted_once(group):
    first = {"qkv_fprop": {"method": "ring_exchange", "num_sm": 1}}
    with pytest.warns(UserWarning, match="initialize_ub: it asks for userbuffers"):
        te.initialize_ub(
            SHAPE,
            2,
            quantization_modes=[NONE, FP8],
            ub_cfgs=[first, {"proj_fprop": {"atomic_gemm": True}}],
            bootstrap_backend="gloo",
        )
    assert base.is_ub_initialized() and not base.using_cublasmp_backend()
    with pytest.raises(RuntimeError, match="userbuffers are initialized already"):
        te.initialize_ub(SHAPE, 2, quantization_modes=[NONE])
    te.destroy_ub()
    assert not base.is_ub_initialized()
    with pytest.warns(DeprecationWarning, match="use_fp8 is deprecated"):
        base.initialize_ub(list(SHAPE), 2, use_fp8=True, ub_cfgs={"fc1_dgrad": {"method": "bulk"}})
    assert base.is_ub_initialized()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"shape": 3}, TypeError, "shape is 3"),
        ({"shape": (1, 2, 3)}, TypeError, r"shape is \(1, 2, 3\)"),
        ({"shape": (1, -2)}, ValueError, r"shape\[1\] is -2"),
        ({"tp_size": 0}, ValueError, "tp_size is 0"),
        ({"dtype": "bf16"}, TypeError, "dtype is 'bf16'"),
        ({"bootstrap_backend": "ucc"}, ValueError, "bootstrap_backend is 'ucc'"),
        ({"quantization_modes": []}, TypeError, r"quantization_modes is \[\]"),
        ({"quantization_modes": NONE}, TypeError, "a list of UserBufferQuantizationMode"),
        ({"ub_cfgs": 3}, TypeError, "ub_cfgs is 3"),
        ({"ub_cfgs": [{}, {}]}, ValueError, "ub_cfgs has 2 configurations; 1 are required"),
        ({"ub_cfgs": {"fc3_fprop": {}}}, ValueError, "'fc3_fprop'. is no layer"),
        ({"ub_cfgs": {"qkv_fprop": 1}}, TypeError, "'qkv_fprop'. is 1"),
        ({"ub_cfgs": {"qkv_fprop": {"sm": 1}}}, ValueError, r"has \['sm'\]"),
        ({"ub_cfgs": {"qkv_fprop": {"method": "ring"}}}, ValueError, "'method'. is 'ring'"),
        ({"ub_cfgs": {"qkv_fprop": {"method": "pipeline"}}}, ValueError, "is 'pipeline'"),
        ({"ub_cfgs": {"proj_fprop": {"atomic_gemm": True}}}, ValueError, "'atomic_gemm'. is set"),
        ({"with_cublasmp": True}, NotImplementedError, "with_cublasmp is True"),
    ],
)
def test_what_is_wrong_is_refused(group, arguments, error, message):
    arguments = {"shape": SHAPE, "tp_size": 2, "quantization_modes": [NONE], **arguments}
    with pytest.raises(error, match=f"initialize_ub: .*{message}"):
        te.initialize_ub(**arguments)
    assert not base.is_ub_initialized()
