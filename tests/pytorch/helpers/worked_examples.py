# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Worked examples of docs/numerics: their text, the formulas behind them, the library's answers.

An example is a fenced block of `key: value` lines that begins with `example: <kind>`. A matrix has
its rows separated by `/`; `0*5` stands for five zeros; `|` marks the limits of blocks for the
reader. FP32 numbers are written with as many digits as tell them apart; codes in hexadecimal.
Keys of the two copies of a tensor begin with `row` or `column`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transformer_engine.pytorch.constants import DType
from transformer_engine.pytorch.cpp_extensions import cast as tex

from . import exact_quantization as exact

TORCH_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FP8_TYPES = {"e4m3": DType.kFloat8E4M3, "e5m2": DType.kFloat8E5M2}
SIGN_MASK = sum(1 << i for i, sign in enumerate(exact.HADAMARD_SIGNS) if sign < 0)
# kNvfp4 of a copy's flags (operand.h): transformed values. Taken off, they can be read as such.
FLAG_HADAMARD = 8


@dataclass(frozen=True)
class Example:
    """One block of a page."""

    page: str
    line: int
    kind: str
    fields: dict[str, str]

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {self.kind}"


def read_examples(page: Path) -> list[Example]:
    """All examples of a page."""
    found = []
    text = page.read_text()
    for block in re.finditer(
        r"^```yaml\n(example: .*?)^```$", text, flags=re.MULTILINE | re.DOTALL
    ):
        lines = [re.sub(r"\s+#.*", "", line) for line in block.group(1).splitlines()]
        pairs = [line.partition(":")[::2] for line in lines]
        fields = {key.strip(): value.strip() for key, value in pairs}
        line = text[: block.start()].count("\n") + 2
        found.append(Example(page.name, line, fields.pop("example"), fields))
    return found


def numbers(text: str) -> exact.Matrix:
    """A matrix of FP32 numbers."""
    return [
        [value for word in row.replace("|", " ").split() for value in _repeated(word)]
        for row in text.split("/")
    ]


def _repeated(word: str) -> list[Any]:
    value, _, count = word.partition("*")
    if value.startswith("0x"):
        return [int(value, 16)] * int(count or 1)
    return [np.float32(value)] * int(count or 1)


def as_matrix(value: Any) -> exact.Matrix:
    """A number, a row or a matrix as a matrix."""
    if not isinstance(value, list):
        return [[value]]
    return value if value and isinstance(value[0], list) else [value]


def is_same(a: Any, b: Any) -> bool:
    """Equal numbers, NaN equal to NaN, 0 not equal to -0."""
    if isinstance(a, float | np.floating) and isinstance(b, float | np.floating):
        if np.isnan(a) or np.isnan(b):
            return bool(np.isnan(a) and np.isnan(b))
        return bool(a == b and np.signbit(a) == np.signbit(b))
    return type(a) is type(b) and bool(a == b)


def same_matrix(a: exact.Matrix, b: exact.Matrix) -> bool:
    return [len(row) for row in a] == [len(row) for row in b] and all(
        is_same(x, y)
        for row, other in zip(a, b, strict=True)
        for x, y in zip(row, other, strict=True)
    )


def written(value: Any) -> str:
    """As the pages write it."""
    return " / ".join(" ".join(_word(x) for x in row) for row in as_matrix(value))


def _word(value: Any) -> str:
    if isinstance(value, int):
        return f"0x{value:02X}"
    text = str(value)
    return text[:-2] if text.endswith(".0") else text


# --- by the formulas ------------------------------------------------------------------------


def by_formula(example: Example) -> dict[str, Any]:
    """Every value of an example from its settings and its input."""
    fields = example.fields
    if example.kind == "delayed update":
        return exact.delayed_update(fields, numbers(fields["history"])[0])
    matrix = numbers(fields["input"])
    if example.kind in ("current scaling", "delayed cast"):
        rule = exact.current_scaling if example.kind == "current scaling" else exact.delayed_cast
        return rule(fields, matrix)
    results: dict[str, Any] = {}
    for prefix, columnwise in (("row", False), ("column", True)):
        if any(key.startswith(prefix + " ") for key in fields):
            copy = _copy_by_formula(example, matrix, columnwise)
            results |= {f"{prefix} {key}": value for key, value in copy.items()}
    return results


def _copy_by_formula(example: Example, matrix: exact.Matrix, columnwise: bool) -> dict[str, Any]:
    settings = example.fields
    if example.kind == "mxfp8":
        return exact.mxfp8_copy(settings, matrix, columnwise)
    stored = exact.transposed(matrix) if columnwise else matrix
    if example.kind == "fp8 blocks":
        return exact.fp8_block_copy(settings, stored)
    if not columnwise:
        settings = {key: value for key, value in settings.items() if key != "hadamard"}
    if "seed" in settings:
        return exact.nvfp4_stochastic_copy(settings, stored, columnwise)
    return exact.nvfp4_copy(settings, stored)


# --- by the library -------------------------------------------------------------------------


def by_library(example: Example) -> dict[str, Any]:
    """What the library computes of the same: codes, scales and values."""
    fields = example.fields
    if example.kind == "delayed update":
        return _library_update(fields)
    dtype = TORCH_TYPES[fields["input type"]]
    tensor = torch.tensor(numbers(fields["input"]), dtype=torch.float32).to(dtype)
    if example.kind in ("current scaling", "delayed cast"):
        return _library_per_tensor(example, tensor)
    if "seed" in fields:
        torch.manual_seed(int(fields["seed"]))
    core = _block_core(example)
    results: dict[str, Any] = {}
    for prefix, columnwise, copy in zip(
        ("row", "column"), (False, True), core.quantize(tensor), strict=True
    ):
        if copy is not None:
            answers = _library_copy(copy, tensor, columnwise)
            results |= {f"{prefix} {key}": value for key, value in answers.items()}
    return results


def _library_update(fields: dict[str, str]) -> dict[str, Any]:
    import transformer_engine_torch

    history = torch.tensor(numbers(fields["history"])[0])[:, None].contiguous()
    scale = torch.tensor([float(fields["scale before"])])
    transformer_engine_torch.delayed_scaling_update(
        history,
        scale,
        fp8_max=float(exact.FORMATS[fields["format"]].largest),
        margin=float(fields["margin"]),
        algo=fields["algorithm"],
    )
    return {"scale": _floats(scale)[0], "history after": _floats(history[:, 0])}


def _library_per_tensor(example: Example, tensor: torch.Tensor) -> dict[str, Any]:
    fields = example.fields
    fp8_dtype = int(FP8_TYPES[fields["format"]])
    answers: dict[str, Any] = {}
    if example.kind == "delayed cast":
        scale, amax = (
            torch.tensor([float(fields["scale"])]),
            torch.tensor([float(fields["amax before"])]),
        )
        core: Any = tex.Float8QuantizerCore(scale, amax, fp8_dtype, True, False)
    else:
        powers = fields["scales"] == "powers of two"
        core = tex.Float8CurrentScalingQuantizerCore(fp8_dtype, True, False, powers)
    data, _, scale_inv = core.quantize(tensor)
    if example.kind == "delayed cast":
        answers["amax after"] = _floats(amax)[0]
    values = tex.dequantize_fp8(
        data, fp8_dtype, scale_inv=scale_inv, output_dtype=int(DType.kFloat32)
    )
    return answers | {
        "codes": data.tolist(),
        "scale_inv": _floats(scale_inv)[0],
        "values": _floats(values),
    }


def _block_core(example: Example) -> Any:
    fields = example.fields
    shown = [key.partition(" ")[0] for key in fields if key not in ("row scaled",)]
    usages = ("row" in shown, "column" in shown)
    if example.kind == "fp8 blocks":
        dim = 1 if fields["block"] == "1x128" else 2
        powers = fields["scales"] == "powers of two"
        return tex.Float8BlockQuantizerCore(
            int(FP8_TYPES[fields["format"]]), *usages, 0.0, powers, dim
        )
    if example.kind == "mxfp8":
        return tex.MXFP8QuantizerCore(
            int(FP8_TYPES[fields["format"]]), *usages, fields["tiles"] == "yes"
        )
    is_transformed = fields.get("hadamard") == "yes"
    return tex.NVFP4QuantizerCore(
        *usages,
        is_transformed,
        is_transformed,
        fields.get("tiles") == "yes",
        "seed" in fields,
        fields.get("row scaled") == "yes",
        fields.get("4 over 6", ""),
        int(fields.get("scale max", "448")),
        SIGN_MASK,
    )


def _library_copy(copy: Any, tensor: torch.Tensor, columnwise: bool) -> dict[str, Any]:
    """One copy as stored, without the padding of its scales."""
    data, scale_inv, amax, kind, dtype, flags = copy
    rows, cols = tensor.shape
    if flags & FLAG_HADAMARD:
        rows, flags = -(-rows // 16) * 16, flags & ~FLAG_HADAMARD
    parts = (data, scale_inv, amax, kind, dtype, flags)
    held: tuple[Any, Any] = (None, parts) if columnwise else (parts, None)
    values = tex.dequantize_copies([rows, cols], held[0], held[1], int(DType.kFloat32))
    layout = tex.copy_layout(kind, dtype, flags, columnwise, rows, cols)
    values = values.t() if layout["is_transposed"] else values
    down, across, is_nvfp4 = *values.shape, amax is not None
    if is_nvfp4:
        scales, block = scale_inv, 16
        codes = torch.stack([data & 15, data >> 4], -1).flatten(1)[:, :across]
        scales = scales[:down, : -(-across // block)]
        if flags & 2:  # square tiles: shown once per tile
            scales = scales[::16]
        answers = {"amax": _floats(amax), "scale code": scales.tolist()}
    elif scale_inv.dtype == torch.uint8:
        codes = data
        block_rows, block_cols = (32, 1) if columnwise else (1, 32)
        scales = scale_inv[: -(-down // block_rows), : -(-across // block_cols)]
        if flags & 2:
            scales = scales[:, ::32] if columnwise else scales[::32]
        answers = {"scale code": scales.tolist()}
    else:
        codes = data
        is_blocks = kind == 2
        scales = scale_inv.t()[:down] if is_blocks else scale_inv
        scales = scales[:, : -(-across // 128)]
        answers = {"scale_inv": _floats(scales)}
    return answers | {"codes": codes.tolist(), "values": _floats(values)}


def _floats(tensor: torch.Tensor) -> Any:
    """Nested lists of numpy.float32."""
    if tensor.dim() == 0:
        return np.float32(tensor.item())
    return [_floats(part) for part in tensor]
