# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tensor-parallel layers where calls are not ordinary: no rows, no gradients, recomputation, ..."""

import pytest
import torch

import transformer_engine.pytorch as te
from helpers.generators import random_tensor
from helpers.parallel import KINDS, Cut, build, make_pair, whole_tensors
from helpers.ranks import ranks
from helpers.tolerances import assert_identical
from transformer_engine.common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)

RECIPES = (
    None,
    DelayedScaling(),
    Float8CurrentScaling(),
    Float8BlockScaling(),
    MXFP8BlockScaling(),
    NVFP4BlockScaling(disable_stochastic_rounding=True),
    CustomRecipe(qfactory=lambda role: te.MXFP8Quantizer(te.DType.kFloat8E4M3)),
)


def region(recipe):
    return te.autocast(enabled=recipe is not None, recipe=recipe)


def part(kind, rank, **keywords):
    options = {"sequence": True, "dtype": torch.float32, **keywords}
    return make_pair(kind, Cut(rank, 2), **options).part


def own_input(kind, rank, rows=6):
    whole, _ = whole_tensors(kind, rows, torch.float32)
    return Cut(rank, 2).input(kind, whole, sequence=True).requires_grad_()


def check_no_rows(rank):
    for kind in KINDS:
        for recipe in RECIPES:
            module, x = part(kind, rank), own_input(kind, rank, rows=0)
            with region(recipe):
                output = module(x)
            output.sum().backward()
            assert output.shape[0] == 0
            assert x.grad.shape == x.shape
            for parameter in module.parameters():
                assert not parameter.grad.any()


def check_no_gradients(rank):
    for kind in KINDS:
        for recipe in RECIPES:
            module, x = part(kind, rank), own_input(kind, rank)
            with region(recipe):
                expected = module(x).detach()
            for mode in (torch.no_grad, torch.inference_mode):
                fresh = part(kind, rank)
                with mode(), region(recipe):
                    assert_identical(fresh(x), expected, f"{kind} {recipe}")


def check_frozen(rank):
    """Gradients of what is left are those of a module without frozen parameters."""
    for kind in KINDS:
        full, x = part(kind, rank), own_input(kind, rank)
        full(x).square().sum().backward()
        weights_frozen, y = part(kind, rank), own_input(kind, rank)
        for parameter in weights_frozen.parameters():
            parameter.requires_grad_(False)
        weights_frozen(y).square().sum().backward()
        assert_identical(y.grad, x.grad, kind)
        constant = part(kind, rank)
        constant(own_input(kind, rank).detach()).square().sum().backward()
        for (name, actual), expected in zip(
            constant.named_parameters(), full.parameters(), strict=True
        ):
            assert_identical(actual.grad, expected.grad, f"{kind} {name}")


def check_recomputation(rank):
    for kind in KINDS:
        for recipe in RECIPES:
            results = []
            for how in (None, True, False):
                module, x = part(kind, rank), own_input(kind, rank)
                with region(recipe):
                    output = (
                        module(x) if how is None else te.checkpoint(module, x, use_reentrant=how)
                    )
                output.square().sum().backward()
                results.append([x.grad, *(p.grad for p in module.parameters())])
            for repeated in results[1:]:
                for actual, expected in zip(repeated, results[0], strict=True):
                    assert_identical(actual, expected, f"{kind} {recipe}")


def check_backward_override(rank):
    """Sequence parallelism changes nothing in the weight gradient, whatever backward reads."""
    for mode in ("high_precision", "dequantized"):
        for recipe in (Float8CurrentScaling, Float8BlockScaling, MXFP8BlockScaling):
            for rows in (10, 256):  # a rank's rows are whole blocks or not
                gradients = []
                for sequence in (False, True):
                    module = part("column", rank, sequence=sequence)
                    x, _ = whole_tensors("column", rows, torch.float32)
                    x = Cut(rank, 2).input("column", x, sequence=sequence)
                    with te.autocast(recipe=recipe(backward_override=mode)):
                        output = module(x)
                    output.square().sum().backward()
                    gradients.append(module.weight.grad)
                assert_identical(gradients[1], gradients[0], f"{mode} {recipe}")


def check_quantized_parameters(rank):
    for kind in KINDS:
        for recipe in RECIPES[1:]:
            torch.manual_seed(4)
            with te.quantized_model_init(recipe=recipe):
                module = build(kind, tp_group=torch.distributed.group.WORLD, sequence_parallel=True)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            losses = []
            for _ in range(3):
                optimizer.zero_grad()
                with region(recipe):
                    output = module(own_input(kind, rank))
                loss = output.square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            assert losses[-1] < losses[0], f"{kind} {recipe}"


def check_compiled(rank):
    for kind in KINDS:
        module, x = part(kind, rank), own_input(kind, rank)
        expected = module(x)
        expected.square().sum().backward()
        gradient, x.grad = x.grad, None
        torch._dynamo.reset()
        actual = torch.compile(module, backend="aot_eager", fullgraph=True)(x)
        actual.square().sum().backward()
        assert_identical(actual.detach(), expected.detach(), kind)
        assert_identical(x.grad, gradient, kind)


def check_strided_inputs(rank):
    for kind in KINDS:
        module, x = part(kind, rank), own_input(kind, rank)
        expected = module(x).detach()
        strided = x.detach().transpose(0, 1).contiguous().transpose(0, 1)
        assert not strided.is_contiguous()
        assert_identical(module(strided).detach(), expected, kind)
        gradient = random_tensor((*expected.shape[1:], expected.shape[0]), seed=2)
        module(x).backward(gradient.movedim(-1, 0))


def check_quantized_tensors(rank):
    quantizer = te.Float8CurrentScalingQuantizer(te.DType.kFloat8E4M3, torch.device("cpu"))
    for kind in ("column", "row"):
        module, x = part(kind, rank), own_input(kind, rank).detach()
        with te.autocast(recipe=Float8CurrentScaling()):
            plain = module(quantizer(x).dequantize())
            given = module(quantizer(x))
            coded = module(x.requires_grad_(), fp8_output=True, fp8_grad=True)
        assert_identical(given.detach(), plain.detach(), kind)
        assert isinstance(coded, te.Float8Tensor)
        coded.sum().backward()
        assert isinstance(x.grad, te.Float8Tensor)


@pytest.mark.parametrize(
    "check",
    [
        check_no_rows,
        check_no_gradients,
        check_frozen,
        check_recomputation,
        check_backward_override,
        check_quantized_parameters,
        check_compiled,
        check_strided_inputs,
        check_quantized_tensors,
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_situation(check):
    ranks(2).run(check)
