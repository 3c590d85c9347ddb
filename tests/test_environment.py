# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The table of environment variables, what the sources read, and the docs page are equal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from transformer_engine.common import environment

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "transformer_engine" / "common" / "environment.py"
SOURCES = ("transformer_engine/**/*.py", "transformer_engine/**/*.cpp", "transformer_engine/**/*.h")
BUILD_SOURCES = ("build_tools/*.py", "setup.py")
NAME = re.compile(r'"((?:NVTE_\w+)|MAX_JOBS)"')


def cmake_options() -> set[str]:
    """NVTE_ names that are CMake options, which the build passes on its command line."""
    text = (ROOT / "CMakeLists.txt").read_text()
    return set(re.findall(r"^\s*(?:option|set)\((NVTE_\w+)", text, re.MULTILINE))


def names_in_sources() -> set[str]:
    files = [path for pattern in SOURCES + BUILD_SOURCES for path in ROOT.glob(pattern)]
    found = {name for path in files if path != TABLE for name in NAME.findall(path.read_text())}
    return found - cmake_options()


def test_every_variable_in_the_sources_is_in_the_table():
    assert names_in_sources() - {variable.name for variable in environment.VARIABLES} == set()


def test_every_variable_in_the_table_is_in_the_sources():
    assert {variable.name for variable in environment.VARIABLES} - names_in_sources() == set()


def test_names_are_listed_once_with_a_known_moment_and_an_accepted_default():
    names = [variable.name for variable in environment.VARIABLES]
    assert len(names) == len(set(names))
    for variable in environment.VARIABLES:
        assert variable.when in environment.MOMENTS
        assert not variable.accepted or variable.default in variable.accepted


def test_the_docs_page_is_rendered_from_the_table():
    page = (ROOT / "docs" / "environment.md").read_text()
    assert page == environment.render_markdown(), "run `make docs`"


def test_variables_in_force_are_those_that_are_set(monkeypatch):
    for variable in environment.VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    monkeypatch.setenv("NVTE_NVFP4_4OVER6", "weights")
    assert environment.variables_in_force() == {"NVTE_NVFP4_4OVER6": "weights"}


@pytest.mark.parametrize(
    ("name", "error"), [("NVTE_NVFP4_DISABLE_RHT", ImportError), ("NVTE_CPU_ISA", ValueError)]
)
def test_a_text_outside_the_table_is_refused_with_its_choices(monkeypatch, name, error):
    monkeypatch.setenv(name, "perhaps")
    with pytest.raises(error, match=rf"{name} is 'perhaps'; one of .* is required"):
        environment.read_text(name)
