# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""docs/numerics.md and its pages per format: the worked examples, tables and sample are true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import transformer_engine.pytorch as te
from helpers import exact_quantization as exact
from helpers.worked_examples import (
    Example,
    as_matrix,
    by_formula,
    by_library,
    numbers,
    read_examples,
    same_matrix,
    written,
)

ROOT = Path(__file__).resolve().parent.parent
OVERVIEW = (ROOT / "docs" / "numerics.md").read_text()
FOLDER = ROOT / "docs" / "numerics"
PAGES = sorted(FOLDER.glob("*.md"))
EXAMPLES = [example for page in PAGES for example in read_examples(page)]
# Of each kind: what an example says beforehand. All else is computed.
SETTINGS = {
    "current scaling": {"format", "scales", "input type", "input"},
    "delayed cast": {"format", "scale", "amax before", "input type", "input"},
    "delayed update": {"format", "margin", "algorithm", "scale before", "history"},
    "fp8 blocks": {"format", "block", "scales", "input type", "input"},
    "mxfp8": {"format", "tiles", "input type", "input"},
    "nvfp4": {
        *("input type", "input", "tiles", "hadamard"),
        *("row scaled", "4 over 6", "scale max", "seed"),
    },
}


@pytest.fixture(autouse=True)
def quiet_overflow():
    """Infinities and NaN are among the examples."""
    with np.errstate(all="ignore"):
        yield


def computed(example: Example) -> dict[str, str]:
    """The fields an example claims."""
    return {k: v for k, v in example.fields.items() if k not in SETTINGS[example.kind]}


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_every_number_of_a_page_follows_from_the_rule(example):
    answers = by_formula(example)
    claims = computed(example)
    assert len(claims) >= 2
    for key, text in claims.items():
        is_right = same_matrix(numbers(text), as_matrix(answers[key]))
        assert is_right, f"{key}: {written(answers[key])} is right"


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_the_library_computes_the_same(example):
    expected, answers = by_formula(example), by_library(example)
    assert len(answers) >= 2
    for key, value in answers.items():
        assert same_matrix(as_matrix(value), as_matrix(expected[key])), (
            f"{key}: the library has {written(value)}, the rule {written(expected[key])}"
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_shows_rule_codes_values_and_special_inputs(page):
    assert "## Rule" in page.read_text()
    examples = read_examples(page)
    assert len(examples) >= 5
    inputs = " ".join(example.fields.get("input", "") for example in examples).split()
    assert {"inf", "nan", "-0", "1e-45"} <= set(inputs)
    claims = [key for example in examples for key in computed(example)]
    assert any(key.endswith("codes") for key in claims)
    assert any(key.endswith("values") for key in claims)


def test_a_wrong_digit_is_found():
    example = next(e for e in EXAMPLES if e.kind == "mxfp8")
    claim = example.fields["row values"]
    assert not same_matrix(numbers(claim.replace("1024", "1025")), numbers(claim))
    assert not same_matrix(numbers("-0"), numbers("0"))
    assert not same_matrix(numbers("0x7F"), numbers("127"))


def test_the_pages_are_those_of_the_formats():
    names = {page.stem for page in PAGES}
    assert names == {"float8_per_tensor", "float8_blocks", "mxfp8", "nvfp4"}
    assert {example.kind for example in EXAMPLES} == set(SETTINGS)


# --- the overview -----------------------------------------------------------------------------


def section(heading: str) -> str:
    return OVERVIEW.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def table_rows(text: str) -> list[list[str]]:
    """The body of the first table, cells stripped of backticks."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip("` ") for cell in line.strip("|").split("|")] for line in lines[2:]]


def power(text: str) -> float:
    base, _, exponent = text.partition("^")
    return float(base) ** int(exponent or 1)


def decoded(fmt: exact.MiniFloat, codes: list[int]) -> torch.Tensor:
    """What the library makes of codes of an 8-bit format."""
    data = torch.tensor([codes], dtype=torch.uint8)
    dtype = {exact.E4M3: te.DType.kFloat8E4M3, exact.E5M2: te.DType.kFloat8E5M2}[fmt]
    scale_inv = torch.ones(1)
    return te.Float8Tensor(
        shape=data.shape, dtype=torch.float32, data=data, fp8_scale_inv=scale_inv, fp8_dtype=dtype
    ).dequantize()[0]


def special_codes(values: torch.Tensor, test: str) -> str:
    codes = [code for code, value in enumerate(values) if getattr(value, test)()]
    runs: list[list[int]] = []
    for code in codes:
        if runs and code == runs[-1][-1] + 1:
            runs[-1].append(code)
        else:
            runs.append([code])
    texts = [f"0x{r[0]:02X}" + (f" to 0x{r[-1]:02X}" if len(r) > 1 else "") for r in runs]
    return ", ".join(texts) or "-"


def test_the_table_of_element_formats_is_that_of_all_codes():
    rows = {row[0]: row[1:] for row in table_rows(section("Element formats"))}
    assert set(rows) == {"E4M3", "E5M2", "E2M1", "E8M0 (scales)"}
    for name, fmt in (("E4M3", exact.E4M3), ("E5M2", exact.E5M2), ("E2M1", exact.E2M1)):
        bits, largest, normal, smallest, infinity, nan = rows[name]
        assert [int(x) for x in bits.split(",")] == [
            *(1, fmt.bits - 1 - fmt.mantissa_bits, fmt.mantissa_bits)
        ]
        assert float(largest) == fmt.magnitudes[-1]
        assert power(normal) == fmt.magnitudes[2**fmt.mantissa_bits]
        assert power(smallest) == fmt.magnitudes[1]
        if fmt.bits == 8:
            values = decoded(fmt, list(range(256)))
            assert special_codes(values, "isinf") == infinity
            assert special_codes(values, "isnan") == nan
            assert values[values.isfinite()].max() == float(largest)
        else:
            assert infinity == nan == "-"


RECIPE_ROWS = table_rows(section("The three products of a linear layer"))


@pytest.mark.parametrize("row", RECIPE_ROWS, ids=[row[0] for row in RECIPE_ROWS])
def test_the_table_of_operands_is_what_products_read(row):
    from transformer_engine.common import recipe as recipes

    recipe = eval(row[0], vars(recipes))
    layer = te.Linear(64, 64)
    report = te.numerics_report(layer, torch.randn(64, 64), recipe=recipe)
    found = {(r.gemm, r.operand): r.format for r in report.rows}
    assert row[1:] == [
        f"{found['fprop', 'input']}, {found['wgrad', 'input']}",
        f"{found['fprop', 'weight']}, {found['dgrad', 'weight']}",
        f"{found['dgrad', 'grad_output']}, {found['wgrad', 'grad_output']}",
    ]


def test_operands_of_one_product_may_have_different_formats():
    from transformer_engine.common.recipe import CustomRecipe

    made = {
        "input": lambda: te.MXFP8Quantizer(te.DType.kFloat8E4M3),
        "weight": lambda: te.NVFP4Quantizer(),
        "grad_output": lambda: te.Float8CurrentScalingQuantizer(
            te.DType.kFloat8E5M2, device=torch.device("cpu")
        ),
    }
    recipe = CustomRecipe(qfactory=lambda role: made[role.tensor_type if role else "input"]())
    report = te.numerics_report(te.Linear(48, 40), torch.randn(33, 48), recipe=recipe)
    assert {row.format.split("/")[0] for row in report.rows} == {"MXFP8-E4M3", "NVFP4", "E5M2"}
    # NVFP4 weights have the largest error, about 2^-2 of a value; products average it.
    assert all(error.relative_error < 0.25 for error in report.errors)


def test_roles_are_those_of_the_page():
    from transformer_engine.common.recipe import CustomRecipe

    asked = []

    def factory(role):
        asked.append(role)
        return te.IdentityQuantizer()

    layer = te.Linear(16, 16, name="layer")
    with te.autocast(recipe=CustomRecipe(qfactory=factory)):
        layer(torch.randn(2, 16))
    kinds = ("input", "weight", "grad_output")
    assert [role for role in asked if role is not None] == [
        te.QuantizerRole("linear", kind, "layer") for kind in kinds
    ]
    assert asked.count(None) == 2


# --- the sample report ------------------------------------------------------------------------


def structure(text: str) -> list[list[str]]:
    """Columns and names; a range counts as one cell, numbers count as numbers."""
    lines = []
    for line in text.strip().splitlines()[1:]:
        cells = [re.sub(r"^[0-9.e+-]+( \.\. [0-9.e+-]+)?( %)?$", "#", c) for c in _cells(line)]
        lines.append(cells)
    return lines


def _cells(line: str) -> list[str]:
    return re.split(r"  +", line.strip())


NUMBER = re.compile(r"(?<!\S)-?[0-9][0-9.]*(?:e[+-]?[0-9]+)?(?!\S)")


def last_digit(text: str) -> float:
    digits, _, exponent = text.partition("e")
    return 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


def assert_same_number(printed: str, shown: str) -> None:
    """To one unit of the last digit, and one BF16 step: sums of other CPUs run in another order."""
    unit = min(last_digit(printed), last_digit(shown))  # zeros at the end are not printed
    slack = 1.001 * unit + 2.0**-8 * abs(float(shown))
    assert abs(float(printed) - float(shown)) <= slack, f"{printed} is printed, {shown} shown"


def assert_same_numbers(printed: str, shown: str) -> None:
    for new, old in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        assert_same_number(new, old)


def test_a_number_of_another_report_is_found():
    line = "fc1  48x256  9.72e-06  6.18e+05 .. 6.29e+06     0.00 %   9.55 %    17.3"
    assert len(NUMBER.findall(line)) == 6
    assert_same_numbers(line, line.replace("17.3", "17.4"))
    for old, new in {
        "9.72e-06": "9e-06",
        "6.18e+05": "6.67e+05",
        "6.29e+06": "5.74e+06",
        "0.00": "0.02",
        "9.55": "8.98",
        "17.3": "17.6",
    }.items():
        with pytest.raises(AssertionError, match="is printed"):
            assert_same_numbers(line, line.replace(old, new))


@pytest.mark.slow
def test_the_sample_report_is_what_the_code_prints(tmp_path):
    part = section("What a recipe does to your model")
    (code,) = re.findall(r"```python\n(.*?)```", part, flags=re.DOTALL)
    (text,) = re.findall(r"```text\n(.*?)```", part, flags=re.DOTALL)
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    printed, shown = process.stdout, text
    assert printed.splitlines()[0] == shown.splitlines()[0]
    assert structure(printed) == structure(shown)
    assert len(structure(shown)) > 18
    assert_same_numbers(printed, shown)


def test_the_margin_of_mxfp8_changes_nothing():
    from transformer_engine.common.recipe import MXFP8BlockScaling

    layer, x = te.Linear(32, 16), torch.randn(4, 32)
    plain, wide = (
        te.numerics_report(layer, x, recipe=MXFP8BlockScaling(margin=margin)) for margin in (0, 3)
    )
    assert plain.rows == wide.rows and plain.errors == wide.errors
