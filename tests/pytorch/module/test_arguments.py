# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Constructor arguments of the wrong kind: refused by the argument's name, nothing is built."""

import re

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.modules import KINDS, LINEAR_KINDS, make, make_input
from helpers.tolerances import assert_identical

SIZE_NAMES = {
    "Linear": ("in_features", "out_features"),
    "LayerNormLinear": ("in_features", "out_features"),
    "LayerNormMLP": ("hidden_size", "ffn_hidden_size"),
}
BAD_SIZES = [
    (-1, ValueError, "is -1; at least 0 is required"),
    (4.0, TypeError, "is 4.0 of type float; an int is required"),
    ("4", TypeError, "is '4' of type str; an int is required"),
    (True, TypeError, "is True of type bool; an int is required"),
    (None, TypeError, "is None of type NoneType; an int is required"),
    ((4,), TypeError, re.escape("is (4,) of type tuple; an int is required")),
    (torch.tensor([4, 4]), TypeError, ".* of type Tensor; an int is required"),
]


def construct(kind, *sizes, **keywords):
    defaults = (8,) if kind.endswith("Norm") else (8, 8)
    return getattr(te, kind)(*(sizes or defaults), device=torch.get_default_device(), **keywords)


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("kind", LINEAR_KINDS)
@pytest.mark.parametrize(("value", "error", "message"), BAD_SIZES, ids=str)
def test_sizes(kind, position, value, error, message):
    sizes = [8, 8]
    sizes[position] = value
    with pytest.raises(error, match=rf"^{kind}: {SIZE_NAMES[kind][position]} {message}.*\. \w"):
        construct(kind, *sizes)


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (-1, ValueError, "normalized_shape is -1; at least 0"),
        (4.0, TypeError, "normalized_shape is 4.0 of type float; an int or a sequence"),
        ("4", TypeError, "normalized_shape is '4' of type str"),
        (True, TypeError, "normalized_shape is True of type bool"),
        ({4: 4}, TypeError, "normalized_shape is {4: 4} of type dict"),
        ((), ValueError, "normalized_shape is empty; at least one dimension"),
        ((2, -4), ValueError, r"normalized_shape\[1\] is -4; at least 0"),
        ((2, 4.5), TypeError, r"normalized_shape\[1\] is 4.5 of type float"),
        (("2", 4), TypeError, r"normalized_shape\[0\] is '2' of type str"),
    ],
    ids=str,
)
def test_normalized_shapes(kind, value, error, message):
    with pytest.raises(error, match=rf"^{kind}: {message}.*\. \w"):
        construct(kind, value)


class Four:
    """An integer that is no int, as numpy's are."""

    def __index__(self):
        return 4


@pytest.mark.parametrize("kind", KINDS)
def test_other_integers_are_sizes(kind):
    module = construct(kind, *([Four()] * (1 if kind.endswith("Norm") else 2)))
    assert module(torch.ones(2, 4)).shape == (2, 4)
    assert "Four" not in repr(module)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.float64, torch.float8_e4m3fn, "float32"])
def test_params_dtype(kind, dtype):
    is_norm = kind in ("LayerNorm", "RMSNorm")
    name = "dtype" if is_norm else "params_dtype"
    message = (
        rf"^{kind}: {name} is {dtype!r}; torch.float32, torch.bfloat16 or torch.float16 is req"
        rf".*\. Pass {name}"
    )
    with pytest.raises(TypeError, match=message):
        construct(kind, **{name: dtype})
    if is_norm:
        with (
            pytest.warns(DeprecationWarning, match="params_dtype"),
            pytest.raises(TypeError, match=message.replace(" dtype", " params_dtype")),
        ):
            construct(kind, params_dtype=dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_torchs_default_dtype(kind):
    try:
        torch.set_default_dtype(torch.bfloat16)
        assert all(p.dtype == torch.bfloat16 for p in construct(kind).parameters())
        torch.set_default_dtype(torch.float64)
        with pytest.raises(
            TypeError, match=r"dtype \(from torch.get_default_dtype\(\)\) is torch.fl"
        ):
            construct(kind)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "Linear"])
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("1e-5", TypeError, "eps is '1e-5' of type str; a number"),
        (None, TypeError, "eps is None of type NoneType; a number"),
        (True, TypeError, "eps is True of type bool; a number"),
        ([1e-5], TypeError, r"eps is \[1e-05\] of type list; a number"),
        (-1e-5, ValueError, "eps is -1e-05; a finite number of at least 0"),
        (float("nan"), ValueError, "eps is nan; a finite number"),
        (float("inf"), ValueError, "eps is inf; a finite number"),
    ],
    ids=str,
)
def test_eps(kind, value, error, message):
    with pytest.raises(error, match=rf"^{kind}: {message}.*\. \w"):
        construct(kind, eps=value)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "Linear"])
def test_eps_may_be_an_integer_or_zero(kind):
    for eps in (0, 1, 1e-12):
        assert construct(kind, eps=eps)(make_input(2, 8)).isfinite().all()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(
            (kind, name)
            for kind in LINEAR_KINDS
            for name in ("init_method", "get_rng_state_tracker")
        ),
        ("LayerNormMLP", "output_layer_init_method"),
    ],
)
@pytest.mark.parametrize("value", ["normal", 0.02, torch.ones(1)], ids=["str", "float", "tensor"])
def test_functions(kind, name, value):
    with pytest.raises(TypeError, match=rf"(?s)^{kind}: {name} is .*; a callable or None is req"):
        construct(kind, **{name: value})


FLAGS = {
    "Linear": ["sequence_parallel", "bias", "return_bias", "save_original_input", "ub_overlap_ag"],
    "LayerNormLinear": ["bias", "return_layernorm_output", "zero_centered_gamma"],
    "LayerNormMLP": ["fuse_wgrad_accumulation", "checkpoint", "set_parallel_mode", "return_bias"],
    "LayerNorm": ["zero_centered_gamma", "sequence_parallel"],
    "RMSNorm": ["zero_centered_gamma"],
}


@pytest.mark.parametrize(
    ("kind", "name"), [(k, name) for k, names in FLAGS.items() for name in names]
)
@pytest.mark.parametrize(
    "value",
    ["False", [], torch.zeros(8), 0.0, torch.nn.init.zeros_],
    ids=lambda value: type(value).__name__,
)
def test_flags(kind, name, value):
    with pytest.raises(TypeError, match=rf"(?s)^{kind}: {name} is .*; a bool is required"):
        construct(kind, **{name: value})


def test_other_arguments():
    cases = [
        ("Linear", TypeError, {"rng_tracker_name": 1}, "rng_tracker_name is 1 of type int; a str"),
        ("Linear", TypeError, {"ub_name": 1}, "ub_name is 1 of type int; a str"),
        ("Linear", TypeError, {"name": 3}, "name is 3 of type int; a str"),
        ("Linear", TypeError, {"tp_size": "2"}, "tp_size is '2' of type str; an int"),
        ("Linear", ValueError, {"tp_size": 0}, "tp_size is 0; at least 1"),
        ("Linear", TypeError, {"parameters_split": [1, 2]}, "parameters_split has the name 1"),
        ("Linear", TypeError, {"parameters_split": ["a.b", "c"]}, "parameters_split .* 'a.b'"),
        ("Linear", TypeError, {"parameters_split": ["_", "c"]}, "parameters_split .* '_'"),
        (
            *("Linear", TypeError, {"parameters_split": {"a": 4.0, "b": 4}}),
            r"parameters_split\['a'\] is 4.0 of type float",
        ),
        (
            *("Linear", ValueError, {"parameters_split": {"a": -1, "b": 9}}),
            r"parameters_split\['a'\] is -1; at least 0",
        ),
        (
            "LayerNormMLP",
            TypeError,
            {"activation": ["gelu"]},
            r"activation is \['gelu'\] of type l",
        ),
        ("LayerNormMLP", TypeError, {"activation_params": 7}, "activation_params is 7 of type int"),
        (
            *("LayerNormMLP", TypeError),
            {"activation": "clamped_swiglu", "activation_params": {"limit": "7"}},
            r"activation_params\['limit'\] is '7' of type str; a number",
        ),
    ]
    for kind, error, keywords, message in cases:
        with pytest.raises(error, match=rf"^{kind}: {message}"):
            construct(kind, **keywords)


@pytest.mark.parametrize("kind", LINEAR_KINDS)
@pytest.mark.parametrize(
    "value", ["x", "", [], 0.5, torch.ones(1), test_flags], ids=lambda value: type(value).__name__
)
def test_is_first_microbatch(kind, value):
    module, x = make(kind), make_input()
    message = (
        rf"(?s)^{kind}\.forward: is_first_microbatch is .*; True, False or None is required\. "
    )
    with pytest.raises(TypeError, match=message):
        module(x, is_first_microbatch=value)
    for allowed in (None, True, False, 1, 0):
        assert_identical(module(x, allowed), module(x))


MODULES = [
    ("Linear", (8, 8)),
    ("LayerNormLinear", (8, 8)),
    ("LayerNormMLP", (8, 8)),
    ("LayerNorm", (8,)),
    ("RMSNorm", (8,)),
    ("MultiheadAttention", (32, 4)),
    ("TransformerLayer", (32, 64, 4)),
]
EVERY_KIND = pytest.mark.parametrize(("kind", "sizes"), MODULES, ids=[kind for kind, _ in MODULES])


@EVERY_KIND
@pytest.mark.parametrize(
    ("device", "error", "received"),
    [
        ("foo", ValueError, "device is 'foo'"),
        ("cpu:x", ValueError, "device is 'cpu:x'"),
        (3.5, TypeError, "device is 3.5"),
        ([1], TypeError, r"device is \[1\]"),
    ],
)
def test_what_is_no_device_is_refused(kind, sizes, device, error, received):
    with pytest.raises(error, match=f"^{kind}: {received}; a torch.device or the name of one"):
        getattr(te, kind)(*sizes, device=device)


@EVERY_KIND
def test_unknown_keywords_are_reported_for_the_class_that_was_called(kind, sizes):
    with pytest.raises(TypeError, match=rf"^{kind}.__init__\(\) got an unexpected .* 'foo'"):
        getattr(te, kind)(*sizes, foo=1)


@pytest.mark.parametrize(
    ("kind", "sizes", "name"),
    [
        ("Linear", (8, 8), "weight"),
        ("Linear", (8, 8), "bias"),
        ("LayerNorm", (8,), "weight"),
        ("LayerNorm", (8,), "bias"),
        ("RMSNorm", (8,), "weight"),
        ("LayerNormLinear", (8, 8), "layer_norm_bias"),
        ("LayerNormMLP", (8, 8), "fc2_weight"),
    ],
)
def test_a_deleted_parameter_is_named(kind, sizes, name):
    module = getattr(te, kind)(*sizes, device=torch.get_default_device())
    x = torch.randn(3, 8)
    expected = module(x)
    parameter = getattr(module, name)
    delattr(module, name)
    with pytest.raises(
        AttributeError, match=rf"^{kind}.forward: parameter {name} is missing; a ten"
    ):
        module(x)
    module.register_parameter(name, parameter)
    assert torch.equal(module(x), expected)


def test_what_a_computed_parameter_raises_is_passed_on():
    class Computed(te.Linear):
        @property
        def scale(self):
            raise AttributeError("no such scale")

        @property
        def bias(self):
            return self.scale

        @bias.setter
        def bias(self, value):
            pass

    module = Computed(8, 8, device=torch.get_default_device())
    module._parameters.pop("bias", None)
    with pytest.raises(AttributeError):
        module(torch.randn(3, 8))
