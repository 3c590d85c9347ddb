# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""An autocast region costs the same however many modules the process holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.counters import allocations, imports, module_lookups, python_calls
from helpers.overhead import REGION_CALLS, Subject, make_subject
from transformer_engine.common.recipe import DelayedScaling, Recipe

MODULES = 200

recipes = pytest.mark.parametrize("recipe", REGION_CALLS)


class Region:
    """Enters and leaves, around `inside`."""

    def __init__(self, recipe: Recipe, inside: Any = None) -> None:
        self.recipe, self.inside = recipe, inside

    def __call__(self) -> None:
        with te.autocast(enabled=True, recipe=self.recipe):
            if self.inside is not None:
                self.inside()


def many(recipe: str) -> list[Subject]:
    """Modules that ran in FP8 and live on."""
    return [make_subject("Linear", recipe) for _ in range(MODULES)]


@recipes
def test_an_empty_region_stays_within_its_calls(recipe):
    subject = make_subject("Linear", recipe)
    region = Region(subject.recipe)
    region()
    calls = python_calls(region)
    assert sum(calls.values()) <= REGION_CALLS[recipe] + 1, calls  # Region.__call__
    assert allocations(region) == []
    assert imports(region) == []
    assert module_lookups(region) == {}


@recipes
def test_a_region_costs_the_same_with_many_modules(recipe):
    subject = make_subject("Linear", recipe)
    regions = [Region(subject.recipe), Region(subject.recipe, subject.forward)]
    before = [(python_calls(region), allocations(region)) for region in regions]
    others = many(recipe)
    after = [(python_calls(region), allocations(region)) for region in regions]
    assert before == after
    assert len(others) == MODULES


def forward_version(subject: Subject) -> int:
    """How often the forward state of a module was updated at the end of a region."""
    version: int = subject.module._quantizer_set.forward_state.version
    return version


class Visits:
    """An amax rule in Python: called once for every module that a region's end visits."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, history: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return history[0].clone()

    def __deepcopy__(self, memo: object) -> Visits:
        return self


def test_the_end_of_a_region_visits_the_modules_that_ran_in_it():
    visits = Visits()
    recipe = DelayedScaling(amax_compute_algo=visits)
    subjects = [make_subject("Linear", "delayed") for _ in range(MODULES)]
    for subject in subjects:
        Region(recipe, subject.forward)()
    visits.count = 0
    Region(recipe)()
    assert visits.count == 0
    Region(recipe, subjects[0].forward)()
    assert visits.count == 1

    def two() -> None:
        subjects[0].forward()
        subjects[1].forward()

    Region(recipe, two)()
    assert visits.count == 3


class VisitingRegion(Region):
    """A region whose exit walks over everything that was ever used, as a global list invites to."""

    known: list[Subject]

    def __call__(self) -> None:
        super().__call__()
        for subject in self.known:
            subject.module.fp8_meta.get("scaling_fwd")


def test_a_walk_over_all_modules_is_noticed():
    subject = make_subject("Linear", "delayed")
    region = VisitingRegion(subject.recipe)
    region.known = [subject]
    before = python_calls(region)
    region.known = many("delayed")
    assert sum(python_calls(region).values()) >= sum(before.values()) + MODULES - 1
