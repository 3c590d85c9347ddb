# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a forward never does: import, search a module's attributes, ask about process groups, wait
for a device.
"""

from __future__ import annotations

import ctypes

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.counters import (
    GROUP_QUERIES,
    HostSynchronisation,
    group_queries,
    imports,
    module_lookups,
    no_host_synchronisation,
)
from helpers.overhead import HIDDEN, MODULES, RECIPES, Subject, make_subject

FORWARDS = 100

kinds = pytest.mark.parametrize("kind", MODULES)
recipes = pytest.mark.parametrize("recipe", RECIPES)


def region_and_step(subject: Subject) -> None:
    """What a training step does with one module."""
    with subject.region():
        subject.forward_backward()
    subject.drop_gradients()


@kinds
@recipes
def test_nothing_is_imported(kind, recipe):
    subject = make_subject(kind, recipe)
    assert imports(lambda: region_and_step(subject)) == []


@kinds
@recipes
def test_attributes_of_modules_are_read_from_their_dictionaries(kind, recipe):
    subject = make_subject(kind, recipe)

    def step() -> None:
        with subject.region():
            subject.forward_backward()

    assert module_lookups(step) == {}


@pytest.fixture(scope="module")
def process_group():
    """A default group of this process alone: without one nobody has anything to ask."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


@kinds
@recipes
def test_process_groups_are_not_asked_again(kind, recipe, process_group):
    subject = make_subject(kind, recipe)
    if hasattr(subject.module, "set_tensor_parallel_group"):
        subject.module.set_tensor_parallel_group(process_group)
        region_and_step(subject)

    def steps() -> None:
        for _ in range(FORWARDS):
            with subject.region():
                subject.forward_backward()

    assert group_queries(steps) == {}


@kinds
@recipes
def test_no_value_is_read_on_the_host(kind, recipe):
    subject = make_subject(kind, recipe)
    with no_host_synchronisation():
        region_and_step(subject)


class Slow(te.Linear):
    """Calls what `extra` names in each forward."""

    def __init__(self, extra) -> None:
        super().__init__(HIDDEN, HIDDEN, params_dtype=torch.bfloat16, device="cpu")
        self.extra = extra

    def forward(self, inp: torch.Tensor) -> torch.Tensor:
        output = super().forward(inp)
        self.extra(self, output)
        return output


def slow(extra) -> Subject:
    return make_subject("Linear", module=Slow(extra))


def import_statement(module, output):
    import math  # noqa: F401 - an import of what is loaded already


def native_import(module, output):
    ctypes.pythonapi.PyImport_ImportModule.restype = ctypes.py_object
    ctypes.pythonapi.PyImport_ImportModule(b"math")


@pytest.mark.parametrize("extra", [import_statement, native_import])
def test_an_import_is_noticed(extra):
    assert imports(slow(extra).forward) == ["math"]


def read_parameter(module, output):
    assert module.weight is not None


def write_attribute(module, output):
    torch.nn.Module.__setattr__(module, "counted", True)


@pytest.mark.parametrize(
    ("extra", "name"), [(read_parameter, "__getattr__"), (write_attribute, "__setattr__")]
)
def test_a_slow_attribute_path_is_noticed(extra, name):
    assert module_lookups(slow(extra).forward) == {name: 1}


@pytest.mark.parametrize("name", ["size", "rank"])
def test_a_question_to_the_group_itself_is_noticed(name, process_group):
    subject = slow(lambda module, output: getattr(process_group, name)())
    assert any(key.endswith(f".{name}") for key in group_queries(subject.forward))


@pytest.mark.parametrize("name", GROUP_QUERIES)
def test_a_query_is_noticed(name, process_group):
    arguments = {
        "get_group_rank": (process_group, 0),
        "get_global_rank": (process_group, 0),
        "get_process_group_ranks": (process_group,),
    }.get(name, ())
    query = getattr(torch.distributed, name)
    found = group_queries(slow(lambda module, output: query(*arguments)).forward)
    assert any(key.endswith(f".{name}") for key in found), found


READS = {
    # By name where the method itself is replaced: it is to be looked up when it is called.
    **{
        name: lambda value, name=name: getattr(value, name)()
        for name in ("item", "tolist", "cpu", "numpy")
    },
    "bool": bool,
    "int": int,
    "float": float,
    "native item": torch.ops.aten._local_scalar_dense.default,
    "native equal": lambda value: torch.equal(value, value),
}


@pytest.mark.parametrize("read", READS)
def test_a_read_of_a_value_is_noticed(read):
    subject = slow(lambda module, output: READS[read](output.detach().float().sum()))
    with pytest.raises(HostSynchronisation), no_host_synchronisation():
        subject.forward()


def test_reads_work_again_afterwards():
    with no_host_synchronisation():
        pass
    assert torch.ones(()).item() == 1.0 and torch.ones(2).tolist() == [1.0, 1.0]
    assert bool(torch.ones(())) and "item" not in torch.Tensor.__dict__
