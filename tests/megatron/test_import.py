# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""`import megatron.core` beside this library, sound or broken, on a machine without a GPU."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.slow

# Imports all of Megatron that imports this library; prints, as JSON, what each module made of it.
PROBE = """
import importlib, json, sys, warnings
warnings.simplefilter("ignore")
for name in ("core", "core.extensions.transformer_engine", "core.transformer.cuda_graphs",
             "core.tensor_parallel.inference_layers", "core.models.gpt.gpt_layer_specs",
             "core.optimizer", "core.optimizer.clip_grads", "core.fp8_utils", "core.fp4_utils",
             "core.transformer.moe.moe_layer", "core.transformer.multi_latent_attention"):
    importlib.import_module("megatron." + name)
modules = {name: module for name, module in sys.modules.items() if name.startswith("megatron.")}
flags = {f"{name}.{flag}": bool(getattr(module, flag)) for name, module in modules.items()
         for flag in dir(module) if flag.startswith("HAVE_TE")}
extension = modules["megatron.core.extensions.transformer_engine"]
print(json.dumps({
    "flags": flags,
    "none": [name for name in dir(extension) if getattr(extension, name) is None],
}))
"""


@pytest.fixture(scope="module")
def found(run_python) -> dict[str, Any]:
    result = run_python("-c", PROBE)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_every_module_of_megatron_finds_the_library(found):
    flags = found["flags"]
    assert flags["megatron.core.extensions.transformer_engine.HAVE_TE"]
    assert [name for name, flag in flags.items() if not flag] == []


def test_features_that_this_version_lacks_are_absent_rather_than_broken(found):
    """Megatron falls back to its own code where a name is absent."""
    names = found["none"]
    assert {"fused_permute", "te_general_gemm"} <= set(names)
    assert "te_parallel_cross_entropy" not in names
    assert {"Fp8Padding", "Fp8Unpadding"} <= set(names)
    assert "fused_topk_with_score_function" not in names  # its absence ends the import


@pytest.mark.parametrize("broken", ["missing", "not an object file"])
def test_a_broken_library_is_named(run_python, copy, broken):
    """Megatron takes only a missing package for none: the user is to see what to mend."""
    library = copy / "transformer_engine" / "libtransformer_engine.so"
    library.unlink()
    if broken != "missing":
        library.write_text(broken)
    result = run_python("-c", PROBE, package_parent=copy)
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("transformer_engine.common.loader.NativeLibraryError:"), result.stderr
    assert str(library) in last
