# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Operands that users broke: refused before a kernel reads them, by module and parameter name."""

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import transformer_engine.pytorch as te
from helpers.modules import IN, OUT, make, make_input
from helpers.quantizers import current_quantizer
from helpers.tolerances import assert_within, matmul_bound
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling
from transformer_engine.pytorch.constants import DType

CURRENT = Float8CurrentScaling()

# ---- buffers of quantized tensors ----------------------------------------------------------------


def released(tensor):
    copy = tensor.clone()
    copy.untyped_storage().resize_(0)
    return copy


# name -> (attribute, replacement from the buffer, error, message)
BROKEN = {
    "float data": ("_data", lambda b: b.float(), TypeError, "_data of dtype Float"),
    "int8 data": ("_data", lambda b: b.to(torch.int8), TypeError, "_data of dtype Char"),
    "sparse data": (
        "_data",
        lambda b: b.to_sparse(),
        TypeError,
        "_data of dtype Byte and layout S",
    ),
    "list data": ("_data", lambda b: [1], TypeError, "_data of type list"),
    "no data": ("_data", lambda b: None, ValueError, "_data None; Byte values"),
    "short data": ("_data", lambda b: b[:-1], ValueError, r"_data of shape \["),
    "flat data": ("_data", lambda b: b.reshape(-1), ValueError, r"_data of shape \["),
    "long data": ("_data", lambda b: torch.cat([b, b]), ValueError, r"_data of shape \["),
    "released data": ("_data", released, ValueError, r"_data of \d+ elements without memory"),
    "meta data": ("_data", lambda b: b.to("meta"), ValueError, "_data on meta; cpu"),
    "quantized data": (
        *("_data", lambda b: current_quantizer()(torch.ones(b.shape))),
        *(TypeError, "_data of dtype Float"),
    ),
    "no scale": ("_scale_inv", lambda b: None, ValueError, "_scale_inv None; Float values"),
    "number": ("_scale_inv", lambda b: 0.5, TypeError, "_scale_inv of type float"),
    "double": ("_scale_inv", lambda b: b.double(), TypeError, "_scale_inv of dtype Double"),
    "bytes": ("_scale_inv", lambda b: b.view(torch.uint8), TypeError, "_scale_inv of dtype Byte"),
    "two scales": ("_scale_inv", lambda b: b.repeat(2), ValueError, r"_scale_inv of shape \[2\]"),
    "zero scales": ("_scale_inv", lambda b: b[:0], ValueError, r"_scale_inv of shape \[0\]"),
    "meta scale": ("_scale_inv", lambda b: b.to("meta"), ValueError, "_scale_inv on meta"),
    "released scale": (
        *("_scale_inv", released, ValueError, "_scale_inv of 1 elements without memory"),
    ),
    "wide dtype": ("_fp8_dtype", lambda b: DType.kFloat32, TypeError, "_fp8_dtype 4"),
}


def break_buffer(tensor, name):
    attribute, change, error, message = BROKEN[name]
    setattr(tensor, attribute, change(getattr(tensor, attribute)))
    if attribute == "_data":
        tensor._transpose = None
    return error, message


@pytest.mark.parametrize("name", BROKEN)
def test_broken_weights_are_refused(name):
    with te.quantized_model_init(recipe=CURRENT):
        module = te.Linear(IN, OUT, device=torch.get_default_device())
    error, message = break_buffer(module.weight, name)
    with (
        te.autocast(recipe=CURRENT),
        pytest.raises(error, match=rf"^Linear\.forward: weight has (a )?{message}.*\. \w"),
    ):
        module(make_input())


@pytest.mark.parametrize("name", BROKEN)
def test_broken_inputs_are_refused(name):
    module, x = make("Linear"), current_quantizer()(make_input().detach())
    error, message = break_buffer(x, name)
    with (
        te.autocast(recipe=CURRENT),
        pytest.raises(error, match=rf"^Linear\.forward: inp has (a )?{message}.*\. \w"),
    ):
        module(x)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_gradients_are_refused(name):
    module = make("Linear")
    with te.autocast(recipe=CURRENT):
        y = module(make_input())
    grad = current_quantizer(DType.kFloat8E5M2)(torch.ones_like(y))
    _, message = break_buffer(grad, name)
    with pytest.raises(RuntimeError, match=rf"^Linear\.backward: grad_output has (a )?{message}"):
        y.backward(grad)


def test_a_transpose_alone_is_enough():
    with te.quantized_model_init(recipe=CURRENT):
        module = te.Linear(IN, OUT, device=torch.get_default_device())
    x = make_input()
    with te.autocast(recipe=CURRENT):
        expected = module(x).detach()
        weight = module.weight.dequantize().detach()
        module.weight.update_usage(rowwise_usage=False, columnwise_usage=True)
        assert module.weight._data is None
        # The same products, perhaps summed in another order.
        operand = current_quantizer()(x).dequantize()
        bound = 2 * matmul_bound(operand, weight.t(), output=x.dtype, extra_terms=2, is_fp8=True)
        assert_within(module(x), expected, bound, "output")
        module.weight._transpose = module.weight._transpose[:-1]
        with pytest.raises(
            ValueError, match=r"weight has a _transpose of shape \[23, 40\]; \[24, 40\]"
        ):
            module(x)


def test_other_tensor_subclasses_are_refused_by_name():
    module, x = make("Linear"), TwoTensor(torch.ones(2, IN), torch.ones(2, IN))
    message = r"^Linear\.forward: inp is a TwoTensor; .* plain tensors"
    with (
        te.autocast(recipe=CURRENT),
        pytest.raises((NotImplementedError, RuntimeError), match=message),
    ):
        module(x)


# ---- parameters ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Linear", "weight"),
        ("LayerNormLinear", "weight"),
        ("LayerNormLinear", "layer_norm_weight"),
        ("LayerNormMLP", "fc1_weight"),
        ("LayerNormMLP", "fc2_weight"),
        ("LayerNorm", "weight"),
        ("LayerNorm", "bias"),
        ("RMSNorm", "weight"),
    ],
)
def test_a_parameter_of_none_is_called_that(kind, name):
    module = make(kind)
    setattr(module, name, None)
    with pytest.raises(ValueError, match=rf"^{kind}\.forward: parameter {name} is None; a tensor"):
        module(make_input())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (torch.zeros(4, IN), "weight has 4 rows; 40 are required"),
        (torch.zeros(OUT, IN + 1), r"weight has shape \[40, 25\] and dtype Float; \[rows, 24\]"),
        (
            torch.zeros(OUT, IN, dtype=torch.bfloat16),
            ".* and dtype BFloat16; .* and Float are required",
        ),
        (torch.zeros(OUT * IN), r"weight has shape \[960\]"),
    ],
    ids=["rows", "columns", "dtype", "flat"],
)
def test_values_swapped_before_backward_are_refused_by_name(data, message):
    module = make("Linear")
    y = module(make_input())
    module.weight.data = data
    with pytest.raises(RuntimeError, match=rf"^Linear\.backward: {message}"):
        y.sum().backward()


@pytest.mark.parametrize("name", ["fc1_weight", "fc2_weight"])
def test_swapped_values_of_the_mlp_are_refused_by_name(name):
    module = make("LayerNormMLP")
    y = module(make_input())
    weight = getattr(module, name)
    weight.data = weight.data[:-1]
    with pytest.raises(RuntimeError, match=rf"^LayerNormMLP\.backward: {name} has \d+ rows; \d+ a"):
        y.sum().backward()


def test_swapped_slices_are_refused_by_name():
    module = make("Linear", parameters_split=["a", "b"])
    y = module(make_input())
    module.b_weight.data = module.b_weight.data[:, :-1]
    with pytest.raises(RuntimeError, match=r"^Linear\.backward: b_weight has shape \[20, 23\]"):
        y.sum().backward()


# ---- main_grad -----------------------------------------------------------------------------------

MAIN_GRADS = {
    "none": (None, "is missing; fuse_wgrad_accumulation=True needs one"),
    "number": (3, "has type int; a tensor is required"),
    "int32": (torch.zeros(OUT, IN, dtype=torch.int32), "has dtype Int and layout Strided"),
    "float64": (torch.zeros(OUT, IN, dtype=torch.float64), "has dtype Double"),
    "sparse": (torch.zeros(OUT, IN).to_sparse(), "has dtype Float and layout Sparse"),
    "meta": (torch.zeros(OUT, IN, device="meta"), "is on meta; cpu is required"),
    "short": (torch.zeros(OUT - 1, IN), r"has shape \[39, 24\]; the weight's shape \[40, 24\]"),
}


@pytest.mark.parametrize("is_delayed", [False, True])
@pytest.mark.parametrize("recipe", [None, DelayedScaling()], ids=["hp", "delayed"])
@pytest.mark.parametrize("name", MAIN_GRADS)
def test_main_grads_are_checked_by_name(name, recipe, is_delayed):
    main_grad, message = MAIN_GRADS[name]
    module = make("Linear", fuse_wgrad_accumulation=True, delay_wgrad_compute=is_delayed)
    module.weight.main_grad = main_grad
    with te.autocast(enabled=recipe is not None, recipe=recipe):
        y = module(make_input())
    # Autograd gives every error of a backward as RuntimeError.
    with pytest.raises(
        (RuntimeError, TypeError, ValueError),
        match=rf"^Linear\.backward: weight\.main_grad {message}",
    ):
        y.sum().backward()
        module.backward_dw()


def test_main_grads_of_a_slice_and_of_the_mlp_are_named():
    module = make("Linear", fuse_wgrad_accumulation=True, parameters_split=["a", "b"])
    module.a_weight.main_grad = torch.zeros_like(module.a_weight)
    with pytest.raises(RuntimeError, match=r"^Linear\.backward: b_weight\.main_grad is missing"):
        module(make_input()).sum().backward()
    assert not module.a_weight.main_grad.any()
    mlp = make("LayerNormMLP", fuse_wgrad_accumulation=True)
    mlp.fc2_weight.main_grad = torch.zeros_like(mlp.fc2_weight)
    with pytest.raises(RuntimeError, match=r"^LayerNormMLP\.backward: fc1_weight\.main_grad is mi"):
        mlp(make_input()).sum().backward()
