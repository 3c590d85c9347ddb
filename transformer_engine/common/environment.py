# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The one table of environment variables that the library and its build read.

`docs/environment.md` is rendered from it (`make docs`), `transformer_engine.report()` lists what is
set, and a test keeps it equal to what the sources read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

# When a variable is read.
BUILD = "build"  # by the build only
IMPORT = "import"  # once, while the package is imported
FIRST_USE = "first use"  # once, when the native library first needs it
CALL = "call"  # at every use: a change takes effect at once
MOMENTS = (BUILD, IMPORT, FIRST_USE, CALL)


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable: name, default text, effect, when it is read, accepted texts (none: any)."""

    name: str
    default: str
    effect: str
    when: str
    accepted: tuple[str, ...] = ()


_SWITCH = ("0", "1")
_FOUR_OVER_SIX = ("none", "weights", "activations", "all")

VARIABLES = (
    Variable("MAX_JOBS", "", "parallel jobs of the native build; empty: one per core", BUILD),
    Variable("NVTE_BUILD_MAX_JOBS", "", "the same, and wins over MAX_JOBS", BUILD),
    Variable("NVTE_BUILD_DEBUG", "0", "a debug build of the native files", BUILD, _SWITCH),
    Variable(
        "NVTE_BUILD_TORCH",
        "",
        "the torch requirement of an isolated build in an environment without torch; empty: the "
        "release that build_tools/backend.py pins",
        BUILD,
    ),
    Variable("NVTE_CMAKE_BUILD_DIR", "", "CMake's build folder; empty: build/cmake", BUILD),
    Variable("NVTE_CMAKE_EXTRA_ARGS", "", "further arguments of the cmake configuration", BUILD),
    Variable(
        "NVTE_PYTHON",
        "",
        "the interpreter whose torch is built against, for tools that build in an environment of "
        "their own (uv, build)",
        BUILD,
    ),
    Variable(
        "NVTE_USE_CUDA",
        "",
        "1 builds the CUDA backend, 0 does not; empty: where torch is a CUDA build and a CUDA "
        "toolkit is found",
        BUILD,
        ("", "0", "1"),
    ),
    Variable(
        "NVTE_CUDA_ARCHS",
        "",
        "GPU architectures of the CUDA backend, as nvcc names them, separated by semicolons; "
        "empty: 80;90a;100f;120f",
        BUILD,
    ),
    Variable("NVTE_USE_CCACHE", "1", "compile through ccache where it is found", BUILD, _SWITCH),
    Variable(
        "NVTE_FRAMEWORK",
        "",
        "comma list of pytorch, all, none. At build: what to build (empty: all). At import: what "
        "must be importable; a missing framework is otherwise a missing attribute",
        IMPORT,
    ),
    Variable(
        "NVTE_PROJECT_BUILDING",
        "0",
        "import the Python files without loading any native file (unless NVTE_RELEASE_BUILD)",
        IMPORT,
    ),
    Variable("NVTE_RELEASE_BUILD", "0", "with it NVTE_PROJECT_BUILDING has no effect", IMPORT),
    Variable(
        "NVTE_CPU_ISA",
        "",
        "highest instruction set of the CPU kernels; empty: the best the processor has",
        FIRST_USE,
        ("", "base", "avx2", "avx512", "avx512bf16"),
    ),
    Variable(
        "NVTE_TORCH_COMPILE",
        "",
        "torch.compile around elementwise functions: 0 never, 1 always; empty: for CUDA tensors",
        IMPORT,
        ("", "0", "1"),
    ),
    Variable(
        "NVTE_FLASH_ATTN",
        "1",
        "allow flash attention (read when an attention module is made): torch's fused operator is "
        "used if this or NVTE_FUSED_ATTN is 1",
        CALL,
        _SWITCH,
    ),
    Variable(
        "NVTE_FUSED_ATTN",
        "1",
        "allow fused attention (read when an attention module is made): cuDNN's on CUDA; torch's "
        "operator: see NVTE_FLASH_ATTN",
        CALL,
        _SWITCH,
    ),
    Variable(
        "NVTE_UNFUSED_FP8_UPDATE",
        "0",
        "compute delayed-scaling updates with torch operations, as recipes with callables do",
        CALL,
        _SWITCH,
    ),
    Variable(
        "NVTE_UNFUSED_ATTN",
        "1",
        "allow attention from plain tensor operations (read when an attention module is made)",
        CALL,
        _SWITCH,
    ),
    Variable(
        "NVTE_DPA_FP8_RECIPE",
        "",
        "the recipe of FP8 attention, whatever the region's is; F16: none; empty: the region's "
        "(read, as all of NVTE_DPA_*, when an attention module is made, and when a recipe is first "
        "used)",
        CALL,
        ("", "F16", "DelayedScaling", "Float8CurrentScaling", "MXFP8BlockScaling"),
    ),
    Variable(
        "NVTE_DPA_FP8_RECIPE_DPA",
        "0",
        "1 with NVTE_DPA_FP8_RECIPE: FP8 attention also where the recipe has fp8_dpa=False",
        CALL,
        _SWITCH,
    ),
    Variable(
        "NVTE_DPA_FP8_RECIPE_MHA",
        "0",
        "takes the place of the recipe's fp8_mha where NVTE_DPA_FP8_RECIPE is set",
        CALL,
        _SWITCH,
    ),
    Variable(
        "NVTE_DPA_FP8_FORMAT",
        "HYBRID",
        "format of FP8 attention by NVTE_DPA_FP8_RECIPE under NVFP4; other recipes have their own",
        CALL,
        ("HYBRID", "E4M3"),
    ),
    Variable(
        "NVTE_DPA_FP8DS_AMAX_ALGO",
        "most_recent",
        "how delayed scales that the recipe says nothing of, as current scaling's of the "
        "probabilities, take an amax from the history",
        CALL,
        ("most_recent", "max"),
    ),
    Variable("NVTE_DPA_FP8DS_AMAX_HISTLEN", "1", "length of that history, at least 1", CALL),
    Variable(
        "NVTE_DPA_FP8DS_REDUCE_AMAX",
        "1",
        "take these amaxes over the ranks of the amax reduction group",
        CALL,
        _SWITCH,
    ),
    Variable(
        "NVTE_DPA_FP8CS_O_in_F16",
        "1",
        "the backward of FP8 attention under current scaling reads the output as it was before "
        "quantization",
        CALL,
        _SWITCH,
    ),
    Variable(
        "NVTE_FP8_DPA_BWD",
        "1",
        "0: the backward of FP8 attention is that of the original inputs in high precision (read "
        "when an attention module is made)",
        CALL,
        _SWITCH,
    ),
    Variable(
        "NVTE_MASKED_SOFTMAX_FUSION",
        "1",
        "FusedScaleMaskSoftmax in one native pass (read when the module is made)",
        CALL,
        _SWITCH,
    ),
    Variable(
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
        "1",
        "0: only attention backends with a deterministic backward pass (read when an attention "
        "module is made)",
        CALL,
        _SWITCH,
    ),
    Variable("NVTE_NVTX_ENABLED", "0", "named ranges for profilers", FIRST_USE, _SWITCH),
    Variable(
        "NVTE_BACKWARD_OVERRIDE",
        "",
        "default of every recipe's backward_override; empty means None. Delayed scaling, the "
        "default recipe without a GPU, refuses both: autocast then needs a recipe",
        IMPORT,
        ("", "high_precision", "dequantized"),
    ),
    Variable(
        "NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES",
        "0",
        "Float8CurrentScaling rounds its scales down to powers of two",
        IMPORT,
        _SWITCH,
    ),
    Variable(
        "NVTE_FP8_BLOCK_SCALING_FP32_SCALES",
        "0",
        "Float8BlockScaling keeps full FP32 scales instead of powers of two",
        IMPORT,
        _SWITCH,
    ),
    Variable("NVTE_NVFP4_DISABLE_RHT", "0", "NVFP4 without Hadamard transform", IMPORT, _SWITCH),
    Variable(
        "NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING",
        "0",
        "NVFP4 gradients round to nearest even",
        IMPORT,
        _SWITCH,
    ),
    Variable(
        "NVTE_NVFP4_DISABLE_2D_QUANTIZATION",
        "0",
        "NVFP4 weights use 1x16 blocks instead of 16x16 tiles",
        IMPORT,
        _SWITCH,
    ),
    Variable(
        "NVTE_NVFP4_ROW_SCALED_ACTIVATION",
        "0",
        "NVFP4 forward activations with one global scale per row; needs "
        "NVTE_NVFP4_DISABLE_RHT=1, without which layers refuse the default NVFP4 recipe",
        IMPORT,
        _SWITCH,
    ),
    Variable(
        "NVTE_NVFP4_4OVER6",
        "none",
        "tensors whose blocks may map amax to 4; activations and all need "
        "NVTE_NVFP4_DISABLE_RHT=1, without which layers refuse the default NVFP4 recipe",
        IMPORT,
        _FOUR_OVER_SIX,
    ),
    Variable(
        "NVTE_NVFP4_4OVER6_E4M3_USE_256",
        "all",
        "tensors whose block scales are bounded by 256 instead of 448",
        IMPORT,
        _FOUR_OVER_SIX,
    ),
    Variable(
        "NVTE_NVFP4_4OVER6_ERR_MODE",
        "MAE",
        "error measure that decides between 4 and 6",
        IMPORT,
        ("MAE", "MSE", "mae", "mse"),
    ),
)
_BY_NAME = {variable.name: variable for variable in VARIABLES}


def read_text(name: str) -> str:
    """Text of a variable of the table; its default when it is not set.

    Raises
    ------
    ImportError
        If a variable that is read while the package is imported holds a text that the table does
        not list: importers handle ImportError only.
    ValueError
        The same for a variable that is read later.
    """
    variable = _BY_NAME[name]
    text = os.environ.get(name, variable.default)
    if variable.accepted and text not in variable.accepted:
        accepted = ", ".join(repr(choice) for choice in variable.accepted)
        error = ImportError if variable.when == IMPORT else ValueError
        raise error(
            f"transformer_engine: environment variable {name} is {text!r}; "
            f"one of {accepted} is required. Change or unset it."
        )
    return text


def read_switch(name: str) -> bool:
    """Whether a 0/1 variable of the table is 1."""
    return read_text(name) == "1"


def variables_in_force() -> dict[str, str]:
    """The variables of the table that are set in this process, with their texts."""
    return {
        variable.name: os.environ[variable.name]
        for variable in VARIABLES
        if variable.name in os.environ
    }


def render_markdown() -> str:
    """The table as the page docs/environment.md."""
    lines = [
        "# Environment variables",
        "",
        "Every variable that the library or its build reads, rendered from "
        "`transformer_engine/common/environment.py` by `make docs`.",
        "",
        "Read: `build` by the build only; `import` once while the package is imported; `first use` "
        "once, when the native library first needs it; `call` at every use.",
        "",
        "| variable | default | read | effect |",
        "| --- | --- | --- | --- |",
    ]
    for variable in sorted(VARIABLES, key=lambda row: (MOMENTS.index(row.when), row.name)):
        default = f"`{variable.default}`" if variable.default else "unset"
        choices = ", ".join(f"`{choice}`" for choice in variable.accepted if choice)
        effect = f"{variable.effect} ({choices})" if choices else variable.effect
        lines.append(f"| `{variable.name}` | {default} | {variable.when} | {effect} |")
    return "\n".join(lines) + "\n"
