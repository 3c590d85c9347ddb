# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Native steps compute without the GIL, and touch no Python object meanwhile.

Python's debug allocator ends the process when an object is made or freed without the GIL, so that
one pass shows what otherwise takes two threads and bad luck.
"""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys, torch
import transformer_engine.pytorch as te
from torch.utils.checkpoint import checkpoint
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling

recipe = {"none": None, "delayed": DelayedScaling(), "current": Float8CurrentScaling()}[sys.argv[1]]
layers = torch.nn.Sequential(
    te.Linear(32, 32, parameters_split=["a", "b"]),
    te.LayerNorm(32),
    te.RMSNorm(32),
    te.LayerNormLinear(32, 32, normalization="RMSNorm"),
    te.LayerNormMLP(32, 48, activation="swiglu"),
    te.TransformerLayer(32, 48, 2),
)
for _ in range(2):
    with te.autocast(enabled=recipe is not None, recipe=recipe):
        y = layers(torch.randn(3, 2, 32))
        z = checkpoint(layers, y, use_reentrant=False)
    z.sum().backward(retain_graph=True)
    te.LayerNormMLP(32, 48, checkpoint=True)(y).sum().backward()
with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
    layers(y)
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["none", "delayed", "current"])
def test_steps_leave_python_alone_while_they_hold_no_gil(recipe):
    environment = {**os.environ, "PYTHONMALLOC": "debug"}
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, recipe], capture_output=True, text=True, env=environment
    )
    assert process.stdout == "done\n", process.stderr
