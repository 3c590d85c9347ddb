# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The deprecated import path of quantization."""

import importlib
import sys

import pytest

from transformer_engine.pytorch import quantization


@pytest.fixture
def old():
    sys.modules.pop("transformer_engine.pytorch.fp8", None)
    with pytest.warns(DeprecationWarning, match="pytorch.quantization"):
        return importlib.import_module("transformer_engine.pytorch.fp8")


def test_it_has_the_names_of_quantization(old):
    for name in quantization.__all__:
        assert getattr(old, name) is getattr(quantization, name)


def test_it_answers_what_is_supported(old):
    assert old.check_fp8_support() == (True, "")
    for name in ("mxfp8", "nvfp4", "fp8_block_scaling"):
        available, reason = getattr(old, f"check_{name}_support")()
        assert isinstance(available, bool)
        assert bool(reason) is not available
