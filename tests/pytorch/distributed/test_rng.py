# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Named random number streams."""

import gc

import pytest
import torch

from transformer_engine.pytorch import distributed
from transformer_engine.pytorch.distributed import CudaRNGStatesTracker


def make_tracker(**seeds):
    tracker = CudaRNGStatesTracker()
    for name, seed in seeds.items():
        tracker.add(name, seed)
    return tracker


def draw(tracker, name):
    with tracker.fork(name):
        return torch.rand(4)


def test_a_stream_equals_the_default_generator_with_its_seed():
    tracker = make_tracker(a=7, b=8)
    first, second = draw(tracker, "a"), draw(tracker, "a")
    torch.manual_seed(7)
    assert torch.equal(first, torch.rand(4))
    assert torch.equal(second, torch.rand(4))
    assert not torch.equal(draw(tracker, "b"), first)


def test_the_default_generator_stands_still():
    before = torch.get_rng_state()
    tracker = make_tracker(a=7)
    draw(tracker, "a")
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(KeyError, match="mine"), tracker.fork("a"):
        torch.rand(3)
        raise KeyError("mine")
    assert torch.equal(torch.get_rng_state(), before)


def test_forks_nest():
    tracker, plain = make_tracker(a=7, b=8), make_tracker(a=7, b=8)
    expected = [draw(plain, "a"), draw(plain, "b"), draw(plain, "a")]
    with tracker.fork("a"):
        outer = torch.rand(4)
        inner = draw(tracker, "b")
        after = torch.rand(4)
    assert all(torch.equal(x, y) for x, y in zip((outer, inner, after), expected, strict=True))


def test_the_default_name_is_megatrons():
    tracker = CudaRNGStatesTracker()
    tracker.add("model-parallel-rng", 3)
    with tracker.fork():
        value = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(value, torch.rand(1))


def test_names_and_seeds_are_used_once():
    tracker = make_tracker(a=7)
    with pytest.raises(RuntimeError, match="seed 7 was used"):
        tracker.add("b", 7)
    with pytest.raises(RuntimeError, match="name 'a' is taken"):
        tracker.add("a", 8)
    assert sorted(tracker.states_) == ["a"]
    tracker.reset()
    tracker.add("a", 7)


def test_unknown_names_are_refused():
    with pytest.raises(KeyError, match="name is 'b'; the streams are"), make_tracker(a=1).fork("b"):
        pass


@pytest.mark.parametrize(
    ("states", "received"),
    [
        (None, "states is None; a dict of str"),
        ([1], r"states is \[1\]; a dict of str"),
        ({"a": 3}, r"states\['a'\] is 3; a dict of str"),
        ({1: torch.Generator()}, "states has the key 1; a dict of str"),
    ],
)
def test_set_states_needs_a_dict_of_streams(states, received):
    tracker = make_tracker(a=7)
    with pytest.raises(TypeError, match=f"CudaRNGStatesTracker.set_states: {received}"):
        tracker.set_states(states)
    assert sorted(tracker.states_) == ["a"]


@pytest.mark.parametrize(
    ("name", "seed", "error", "received"),
    [
        ("c", "x", TypeError, "seed is 'x'"),
        ("c", 1.5, TypeError, "seed is 1.5"),
        ("c", [1], TypeError, r"seed is \[1\]"),
        ("c", 2**70, ValueError, f"seed is {2**70}"),
        ("c", -(2**63) - 1, ValueError, f"seed is {-(2**63) - 1}"),
        (["c"], 1, TypeError, r"name is \['c'\]; a str is required"),
    ],
)
def test_streams_need_a_name_and_a_seed(name, seed, error, received):
    tracker = make_tracker(a=7)
    with pytest.raises(error, match=f"CudaRNGStatesTracker.add: {received}"):
        tracker.add(name, seed)
    assert (sorted(tracker.states_), tracker.seeds_) == (["a"], {7})


@pytest.mark.parametrize("seed", [-(2**63), -1, 2**64 - 1])
def test_the_ends_of_the_range_of_seeds_work(seed):
    assert draw(make_tracker(a=seed), "a").shape == (4,)


@pytest.mark.parametrize("is_tensor", [False, True])
def test_states_are_a_snapshot_that_can_be_restored_again(is_tensor):
    tracker = make_tracker(a=7)
    if is_tensor:
        tracker.set_states({"a": tracker.states_["a"].get_state()})
    saved = tracker.get_states()
    first = draw(tracker, "a")
    for _ in range(2):
        tracker.set_states(saved)
        assert torch.equal(draw(tracker, "a"), first)
    assert not torch.equal(draw(tracker, "a"), first)


def test_get_states_gives_a_dict_of_its_own_with_generators():
    tracker = make_tracker(a=7)
    states = tracker.get_states()
    assert isinstance(states["a"], torch.Generator)
    assert distributed.is_graph_safe_rng_state(states["a"])
    states.clear()
    assert sorted(tracker.states_) == ["a"]


def test_streams_can_be_set_from_state_tensors():
    tracker, twin = make_tracker(a=7), make_tracker(a=8)
    draw(tracker, "a")
    twin.set_states({"a": tracker.states_["a"].get_state()})
    assert not distributed.is_graph_safe_rng_state(twin.get_states()["a"])
    for _ in range(2):
        assert torch.equal(draw(tracker, "a"), draw(twin, "a"))


def test_subclasses_may_set_attributes_first():
    class Tracker(CudaRNGStatesTracker):
        def __init__(self):
            super().__init__()
            self.reset()

        def reset(self):
            super().reset()
            self._is_initialized = False

    tracker = Tracker()
    tracker.add("a", 1)
    assert draw(tracker, "a").shape == (4,)


def test_all_streams_of_living_trackers_are_found():
    gc.collect()
    tracker, other = make_tracker(one=1), make_tracker(two=2)
    found = distributed.get_all_rng_states()
    assert found["one"] is tracker.states_["one"]
    assert found["two"] is other.states_["two"]
    replacement = torch.Generator().manual_seed(9)
    distributed.set_all_rng_states({"two": replacement, "three": replacement})
    assert other.states_["two"] is replacement
    assert distributed.get_all_rng_states()["three"] is replacement
    distributed.set_all_rng_states({})
    assert "three" not in distributed.get_all_rng_states()
    del other
    gc.collect()
    assert "two" not in distributed.get_all_rng_states()


def test_graph_safe_streams_need_a_gpu():
    assert distributed.graph_safe_rng_available() is torch.cuda.is_available()
