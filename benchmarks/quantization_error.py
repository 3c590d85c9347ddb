# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What quantization costs in accuracy: error of every format for three kinds of tensors.

    python -m benchmarks.quantization_error
    python -m benchmarks.quantization_error --json docs/numerics/quantization_error.json \
        --page docs/numerics.md --plot docs/numerics/quantization_error.png

Nothing is timed, and seeds are fixed: other machines give the same numbers, up to the last bits of
what torch.randn draws. Tensors are FP32 [512, 1024], of

* a normal distribution;
* Student's t distribution with 3 degrees of freedom, whose tails are heavy;
* a normal distribution whose columns 7, 107, 207, ... are 100 times as large, outlier channels; the
  errors of all other columns are looked at.

The signal-to-noise ratio is 10 log10(sum x^2 / sum (x - x')^2), the relative error of an element
|x - x'| / |x|. Copies of the Hadamard-transformed tensor are compared with the transformed tensor.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import transformer_engine.pytorch as te
from transformer_engine.pytorch.numerics.statistics import (
    copy_values,
    hadamard_transformed,
    signal_to_noise_db,
)

ROWS, COLS = 512, 1024
BEGIN, END = "<!-- quantization error: begin -->", "<!-- quantization error: end -->"
E4M3, E5M2 = te.DType.kFloat8E4M3, te.DType.kFloat8E5M2
# Where relative errors are averaged: by log2(|x| / max |x|), from -BINS to 0.
BINS = 20


def normal() -> torch.Tensor:
    return torch.randn(ROWS, COLS)


def student_t() -> torch.Tensor:
    return torch.distributions.StudentT(3.0).sample((ROWS, COLS))


def outlier_channels() -> torch.Tensor:
    x = torch.randn(ROWS, COLS)
    x[:, OUTLIERS] *= 100
    return x


OUTLIERS = slice(7, None, 100)
TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "normal": normal,
    "Student t": student_t,
    "beside outliers": outlier_channels,
}


def looked_at(name: str) -> torch.Tensor:
    """bool [COLS]"""
    columns = torch.ones(COLS, dtype=torch.bool)
    if name == "beside outliers":
        columns[OUTLIERS] = False
    return columns


@dataclass(frozen=True)
class Format:
    """A quantizer, and which of its copies is looked at; BF16 has none."""

    name: str
    quantizer: te.Quantizer | None
    is_columnwise: bool = False

    @property
    def is_transformed(self) -> bool:
        """Whether the copy is that of the Hadamard-transformed tensor."""
        return self.is_columnwise and getattr(self.quantizer, "with_rht", False)


def current(dtype: te.DType) -> te.Quantizer:
    return te.Float8CurrentScalingQuantizer(dtype, device=torch.device("cpu"))


def blocks(dim: int) -> te.Quantizer:
    return te.Float8BlockQuantizer(E4M3, rowwise=True, columnwise=True, block_scaling_dim=dim)


FORMATS = (
    Format("BF16", None),
    Format("FP8 E4M3, per tensor", current(E4M3)),
    Format("FP8 E5M2, per tensor", current(E5M2)),
    Format("FP8 E4M3, blocks of 1 x 128", blocks(1)),
    Format("FP8 E4M3, blocks of 128 x 1", blocks(1), True),
    Format("FP8 E4M3, tiles of 128 x 128", blocks(2)),
    Format("MXFP8 E4M3, 1 x 32", te.MXFP8Quantizer(E4M3)),
    Format("MXFP8 E4M3, 32 x 1", te.MXFP8Quantizer(E4M3), True),
    Format("MXFP8 E5M2, 1 x 32", te.MXFP8Quantizer(E5M2)),
    Format("NVFP4, 1 x 16", te.NVFP4Quantizer()),
    Format("NVFP4, 16 x 1", te.NVFP4Quantizer(), True),
    Format("NVFP4, 16 x 1, Hadamard", te.NVFP4Quantizer(with_rht=True), True),
    Format("NVFP4, 16 x 16", te.NVFP4Quantizer(with_2d_quantization=True)),
    Format("NVFP4, 1 x 16, row-scaled", te.NVFP4Quantizer(row_scaled_nvfp4=True)),
    Format(
        "NVFP4, 1 x 16, four over six",
        te.NVFP4Quantizer(nvfp4_use_4over6=True, nvfp4_e4m3_max=256),
    ),
    Format("NVFP4, 1 x 16, stochastic", te.NVFP4Quantizer(stochastic_rounding=True)),
)


def relative_errors(exact: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """|x - x'| / |x| of the x that are not 0, FP64."""
    exact, values = exact.double().flatten(), values.double().flatten()
    is_some = exact != 0
    return ((exact - values).abs() / exact.abs())[is_some]


def profile(exact: torch.Tensor, values: torch.Tensor) -> list[float | None]:
    """Root mean square of the relative errors, by magnitude: from 2^-BINS of the amax to all."""
    wide = exact.double().flatten()
    wide = wide[wide != 0]
    places = torch.log2(wide.abs() / wide.abs().max()).floor().clamp(-BINS, -1).long() + BINS
    sums = torch.zeros(BINS, dtype=torch.float64)
    counts = torch.zeros(BINS, dtype=torch.float64)
    errors = relative_errors(exact, values)
    sums.index_add_(0, places, errors.square())
    counts.index_add_(0, places, torch.ones_like(errors))
    return [
        None if count < 10 else round((total / count) ** 0.5, 6)
        for total, count in zip(sums.tolist(), counts.tolist(), strict=True)
    ]


def measure_one(fmt: Format, x: torch.Tensor, columns: torch.Tensor) -> dict[str, Any]:
    """Ratio, largest relative error, share of flushed values and the profile of one format."""
    if fmt.quantizer is None:
        quantized: Any = te.IdentityQuantizer(dtype=torch.bfloat16)(x)
    else:
        fmt.quantizer.set_usage(rowwise=not fmt.is_columnwise, columnwise=fmt.is_columnwise)
        quantized = fmt.quantizer(x)
    parts = quantized._native_operand()[fmt.is_columnwise]
    values = copy_values(parts, fmt.is_columnwise, x.shape)[:, columns]
    exact = (hadamard_transformed(x.double()) if fmt.is_transformed else x)[:, columns]
    return {
        "snr_db": round(signal_to_noise_db(exact, values), 3),
        "largest_relative_error": round(relative_errors(exact, values).max().item(), 4),
        "flushed": round(((values == 0) & (exact != 0)).double().mean().item(), 6),
        "profile": profile(exact, values),
    }


def measure() -> dict[str, dict[str, dict[str, Any]]]:
    """tensor -> format -> numbers"""
    results = {}
    for index, (name, draw) in enumerate(TENSORS.items()):
        torch.manual_seed(index)
        x, columns = draw(), looked_at(name)
        results[name] = {fmt.name: measure_one(fmt, x, columns) for fmt in FORMATS}
    return results


def percent(share: float, digits: int) -> str:
    """With fewer digits where it is large."""
    return f"{100 * share:.{digits if share < 10 else 0}f} %"


def table(results: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """A Markdown table: ratio, largest relative error and flushed share of each tensor."""
    header = ["format"]
    for name in results:
        header += [f"{name}: SNR, dB", "largest error", "flushed"]
    rows = [header, ["---", *["---:"] * (len(header) - 1)]]
    for fmt in next(iter(results.values())):
        cells = [fmt]
        for numbers in (by_format[fmt] for by_format in results.values()):
            cells += [
                f"{numbers['snr_db']:.1f}",
                percent(numbers["largest_relative_error"], 1),
                percent(numbers["flushed"], 2),
            ]
        rows.append(cells)
    return ["| " + " | ".join(cells) + " |" for cells in rows]


def render(page: str, results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The page with the table between its marks."""
    text = "\n".join([BEGIN, *table(results), END])
    return re.sub(f"{BEGIN}.*{END}", lambda _: text, page, flags=re.DOTALL)


# Formats whose errors are drawn over the magnitude.
CURVES = (
    *("BF16", "FP8 E4M3, per tensor", "FP8 E5M2, per tensor", "FP8 E4M3, blocks of 1 x 128"),
    *("MXFP8 E4M3, 1 x 32", "NVFP4, 1 x 16"),
)


def draw(results: dict[str, dict[str, dict[str, Any]]], path: Path) -> None:
    """Write a PNG file. Needs matplotlib (requirements-dev.txt)."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (bars, curves) = pyplot.subplots(1, 2, figsize=(13, 5.5), width_ratios=(1.2, 1))
    names = [fmt.name for fmt in FORMATS]
    height = 0.8 / len(results)
    for index, (tensor, by_format) in enumerate(results.items()):
        places = [place + (index - 1) * height for place in range(len(names))]
        bars.barh(places, [by_format[name]["snr_db"] for name in names], height, label=tensor)
    bars.set_yticks(range(len(names)), names)
    bars.invert_yaxis()
    bars.set_xlabel("signal-to-noise ratio, dB (more is better)")
    bars.legend(loc="lower right")
    magnitudes = [2.0 ** (bin_ - BINS + 0.5) for bin_ in range(BINS)]
    for name in CURVES:
        points = zip(magnitudes, results["Student t"][name]["profile"], strict=True)
        known = [(magnitude, error) for magnitude, error in points if error is not None]
        curves.plot(*zip(*known, strict=True), marker=".", label=name)
    curves.set_xscale("log", base=2)
    curves.set_yscale("log")
    curves.set_xlabel("magnitude over the tensor's largest (Student t)")
    curves.set_ylabel("relative error, root mean square (less is better)")
    curves.grid(alpha=0.3)
    curves.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 0.1))
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantization_error")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--page", type=Path, help="put the table into this Markdown file")
    parser.add_argument("--plot", type=Path, help="draw this PNG file")
    options = parser.parse_args(argv)
    results = measure()
    print("\n".join(table(results)))
    if options.json is not None:
        # One line per format.
        options.json.write_text(json.dumps(results).replace("}, ", "},\n") + "\n")
    if options.page is not None:
        options.page.write_text(render(options.page.read_text(), results))
    if options.plot is not None:
        draw(results, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
