# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The shared checks of public arguments: what they take, what they refuse, what they say."""

import numpy as np
import pytest
import torch

from transformer_engine.pytorch import arguments


def check_callable(who, name, value):
    arguments.check_callables(who, **{name: value})


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("check", "values"),
    [
        (arguments.check_int, [1, 7, np.int64(3), torch.tensor(2)]),
        (arguments.check_number, [0, -1.5, np.float32(2), torch.pi]),
        (arguments.check_probability, [0, 0.5, 1, np.float64(1)]),
        (arguments.check_share, [0, 0.5]),
        (arguments.check_epsilon, [0, 1e-5]),
        (arguments.check_flag, [True, False, 0, 1, np.bool_(True)]),
        (check_callable, [None, print]),
        (arguments.check_tensor, [torch.zeros(2), torch.nn.Parameter(torch.zeros(1))]),
        (arguments.check_params_dtype, [None, torch.float32, torch.bfloat16, torch.float16]),
        (arguments.check_group, [None, torch.distributed.ProcessGroup(0, 1)]),
        (arguments.check_group, [torch.distributed.GroupMember.NON_GROUP_MEMBER]),
    ],
)
def test_what_is_taken(check, values):
    for value in values:
        check("who", "name", value)


@pytest.mark.parametrize(
    ("check", "of_wrong_type", "out_of_range"),
    [
        (arguments.check_int, ["x", 2.0, None, True, (1,)], [0, -4]),
        (arguments.check_number, ["x", None, False, 1j], [NAN, INF]),
        (arguments.check_probability, ["x", None], [-0.1, 1.1, NAN]),
        (arguments.check_share, ["x", None], [-0.1, 1, NAN]),
        (arguments.check_epsilon, ["x", None], [-1e-9, INF, NAN]),
        (arguments.check_flag, ["no", None, 2, 1.0], []),
        (check_callable, [3, "x"], []),
        (arguments.check_tensor, [None, "x", [1.0], np.zeros(2)], []),
        (arguments.check_params_dtype, ["x", torch.int32, torch.float8_e4m3fn, 3], []),
        (arguments.check_group, [3, "x", object(), [0, 1]], []),
        (arguments.group_size, [3, "x", object()], []),
    ],
)
def test_what_is_refused(check, of_wrong_type, out_of_range):
    for value in of_wrong_type:
        with pytest.raises(TypeError, match=r"^who: name is .+; .*must "):
            check("who", "name", value)
    for value in out_of_range:
        with pytest.raises(ValueError, match=r"^who: name is .+; .*must "):
            check("who", "name", value)


@pytest.mark.parametrize("value", ["c", 3, None, ["a"], torch.zeros(2)])
def test_choices(value):
    arguments.check_choice("who", "name", "a", ("a", "b"))
    arguments.check_choice("who", "name", None, (None, "b"))
    with pytest.raises(ValueError, match=r"^who: name is .+; it must be one of a, b\."):
        arguments.check_choice("who", "name", value, ("a", "b"))


def test_messages_show_short_values_and_the_type_of_others():
    assert arguments.received("abc") == "'abc'"
    assert arguments.received((1, 2)) == "(1, 2)"
    assert arguments.received(list(range(100))) == "of type list"
    assert arguments.received(np.zeros(3)) == "of type ndarray"


def test_the_tensor_parallel_size():
    assert arguments.tensor_parallel_size("who", 2, None) == 2
    for size, group, error, name in ((0, None, ValueError, "size"), (1, 3, TypeError, "group")):
        with pytest.raises(error, match=f"^who: tp_{name} is "):
            arguments.tensor_parallel_size("who", size, group)
