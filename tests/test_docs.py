# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every public name has a docstring, and its page is made from it."""

from __future__ import annotations

import enum

import make_docs
import pytest

from transformer_engine.common.recipe import DelayedScaling


def test_every_public_name_has_a_docstring():
    assert make_docs.undocumented(make_docs.public_names()) == []


def test_public_names_include_those_of_listed_modules():
    names = {f"{public.module}.{public.name}" for public in make_docs.public_names()}
    assert "transformer_engine.common.recipe.DelayedScaling" in names
    assert "transformer_engine.report.collect" in names


class Documented:
    """Text."""


class Undocumented(Documented):
    pass


class UndocumentedEnum(enum.IntEnum):
    A = 1


@pytest.mark.parametrize("value", [Undocumented, UndocumentedEnum, lambda: None])
def test_an_undocumented_name_is_found(value):
    names = [
        make_docs.PublicName("m", "right", Documented),
        make_docs.PublicName("m", "wrong", value),
    ]
    assert make_docs.undocumented(names) == ["m.wrong"]


def test_pages_hold_the_docstring_and_the_index_links_them(tmp_path):
    name = make_docs.PublicName("recipe", "DelayedScaling", DelayedScaling)
    make_docs.write_pages(tmp_path, [name])
    page = (tmp_path / "recipe.DelayedScaling.html").read_text()
    assert "amax_history_len" in page and "Number of steps remembered" in page
    assert name.page in (tmp_path / "index.html").read_text()
