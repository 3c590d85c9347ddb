# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The devices tests run on."""

import importlib
import os

import torch

# TE_TEST_DEVICE=cuda: tests that name no device make their tensors and modules there, so that the
# whole suite runs on a GPU.
TEST_DEVICE = os.environ.get("TE_TEST_DEVICE", "cpu")


def available_devices() -> list[torch.device]:
    """The CPU, and CUDA where both this machine and this build of the library have it."""
    devices = [torch.device("cpu")]
    if torch.cuda.is_available():
        # Imported here: tests of plain Python parts must run without the native modules.
        importlib.import_module("transformer_engine.pytorch")  # registers the native module
        native = importlib.import_module("transformer_engine_torch")
        if any(
            row["name"].startswith("cuda") and row["available"] for row in native.backend_statuses()
        ):
            devices.append(torch.device("cuda"))
    return devices
