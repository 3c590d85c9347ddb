# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""docs/numerics: every number of every worked example is the rule's and the library's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

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
