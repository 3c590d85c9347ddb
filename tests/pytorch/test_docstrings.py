# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every constructor parameter of a public class is described where help() shows it."""

import enum
import inspect
import re

import pytest

import transformer_engine.pytorch as te
from transformer_engine.common import recipe

CLASSES = {
    name: value
    for module in (te, recipe)
    for name in module.__all__
    if inspect.isclass(value := getattr(module, name)) and not issubclass(value, enum.Enum)
}
# A request has the fields of the recipe that it asks for, by the same names.
DOCUMENTED_BY = {"DelayedScalingRequest": recipe.DelayedScaling}


def parameters_in(doc):
    """Names in the "Parameters" section of a docstring in NumPy style.

    They stand at the margin, separated by commas, before a colon; a line that ends in a comma goes
    on in the next.
    """
    section = re.search(
        r"^Parameters\n-+\n(.*?)(?=^\w+\n-+\n|\Z)", inspect.cleandoc(doc), re.M | re.S
    )
    if section is None:
        return set()
    text = re.sub(r",\s*\n\s*", ", ", section[1])
    heads = [line.split(" : ")[0] for line in text.splitlines() if re.match(r"[\w*]", line)]
    return {name.strip(" *") for head in heads for name in head.split(",")}


def documentation(cls):
    """Docstrings of a class and of its bases in this library."""
    for base in (DOCUMENTED_BY.get(cls.__name__, cls), *cls.__mro__):
        if base.__module__.startswith("transformer_engine"):
            yield from filter(None, (base.__doc__, getattr(base.__init__, "__doc__", None)))


def test_the_sections_are_read():
    doc = """Title

    Parameters
    ----------
    a, b : int
        Not, this : one.
    c, d,
    e
        Text.
    **options
        More.

    Raises
    ------
    ValueError
        Never.
    """
    assert parameters_in(doc) == {"a", "b", "c", "d", "e", "options"}
    assert parameters_in("Title") == set()


@pytest.mark.parametrize("name", CLASSES)
def test_every_constructor_parameter_is_described(name):
    cls = CLASSES[name]
    described = set().union(*map(parameters_in, documentation(cls)))
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    wanted = {
        parameter.name
        for parameter in inspect.signature(cls).parameters.values()
        if parameter.kind not in kinds and not parameter.name.startswith("_")
    }
    assert not wanted - described
