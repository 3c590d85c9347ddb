# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compare every quantizer and module on a device with the CPU.

    python compare_devices.py [--device cuda] [--json FILE]

Quantized bytes must be equal. A module's result and gradients differ only by the order in which
products are summed, and by what follows from it. Their difference, relative in the Euclidean norm,
may be two half steps of BF16 (2^-8 each) for each product that lies on the way; under a quantized
recipe, where a value at a rounding boundary may take the other step, half a step of the coarsest
element type in use for every element. Prints a line per case; exits with 1 when one fails.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import transformer_engine.pytorch as te
from transformer_engine.common import recipe
from transformer_engine.pytorch.constants import DType

SHAPES = ((128, 256), (96, 80), (33, 48), (1, 64))
DTYPES = (torch.bfloat16, torch.float32, torch.float16)
STEP_BF16 = 2.0**-8
# Half a step, relative, of the element types of a recipe: gradients are E5M2 in hybrid recipes.
STEP = {"e4m3": 2.0**-4, "e5m2": 2.0**-3, "e2m1": 2.0**-2}


@dataclass(frozen=True)
class Outcome:
    """One case: what was compared, how far apart it is, how far it may be."""

    name: str
    difference: float
    limit: float

    @property
    def is_good(self) -> bool:
        return self.difference <= self.limit


def make_quantizers(device: torch.device) -> dict[str, Callable[[], Any]]:
    """Functions that make a quantizer of each kind for tensors on the device."""
    e4m3, e5m2 = DType.kFloat8E4M3, DType.kFloat8E5M2

    def delayed() -> Any:
        scale = torch.full([1], 4.0, device=device)
        return te.Float8Quantizer(scale, torch.zeros(1, device=device), e4m3)

    return {
        "delayed": delayed,
        "current": lambda: te.Float8CurrentScalingQuantizer(e5m2, device),
        "mxfp8": lambda: te.MXFP8Quantizer(e4m3),
        "mxfp8 tiles": lambda: te.MXFP8Quantizer(e4m3, with_2d_quantization=True),
        "blocks": lambda: te.Float8BlockQuantizer(
            e4m3, rowwise=True, columnwise=True, block_scaling_dim=1
        ),
        "blocks tiles": lambda: te.Float8BlockQuantizer(
            e4m3, rowwise=True, columnwise=True, block_scaling_dim=2
        ),
        "nvfp4": lambda: te.NVFP4Quantizer(),
        "nvfp4 tiles": lambda: te.NVFP4Quantizer(with_2d_quantization=True),
        "nvfp4 hadamard": lambda: te.NVFP4Quantizer(with_rht=True, with_post_rht_amax=True),
    }


def plain_tensors(tensor: Any) -> dict[str, torch.Tensor]:
    """The buffers of a quantized tensor."""
    metadata = tensor.get_metadata()
    return {key: value for key, value in metadata.items() if type(value) is torch.Tensor}


def compare_quantizers(device: torch.device) -> Iterator[Outcome]:
    on_cpu = make_quantizers(torch.device("cpu"))
    on_device = make_quantizers(device)
    for name, make in on_cpu.items():
        for dtype in DTYPES:
            for shape in SHAPES:
                x = torch.randn(shape, dtype=torch.float32).mul(3).to(dtype)
                expected = plain_tensors(make()(x))
                got = plain_tensors(on_device[name]()(x.to(device)))
                differing = sum(
                    int((got[key].cpu() != value).sum()) for key, value in expected.items()
                )
                yield Outcome(f"quantize {name} {dtype} {list(shape)}", float(differing), 0.0)


RECIPES: dict[str, tuple[recipe.Recipe | None, str]] = {
    "bf16": (None, "none"),
    "delayed": (recipe.DelayedScaling(), "e5m2"),
    "current": (recipe.Float8CurrentScaling(), "e5m2"),
    "blocks": (recipe.Float8BlockScaling(), "e4m3"),
    "mxfp8": (recipe.MXFP8BlockScaling(), "e4m3"),
    "nvfp4": (recipe.NVFP4BlockScaling(disable_stochastic_rounding=True), "e2m1"),
}


def make_modules() -> dict[str, tuple[Callable[[], torch.nn.Module], int]]:
    """Functions that make each module on the CPU, and how many products follow one another."""
    common: dict[str, Any] = {"params_dtype": torch.bfloat16, "device": "cpu"}
    return {
        "Linear": (lambda: te.Linear(128, 256, **common), 1),
        "LayerNormLinear": (lambda: te.LayerNormLinear(128, 256, **common), 1),
        "LayerNormMLP": (lambda: te.LayerNormMLP(128, 256, **common), 2),
        "TransformerLayer": (
            lambda: te.TransformerLayer(
                128, 256, 4, hidden_dropout=0.0, attention_dropout=0.0, **common
            ),
            6,
        ),
    }


def run_module(
    module: torch.nn.Module, x: torch.Tensor, rule: recipe.Recipe | None
) -> dict[str, torch.Tensor]:
    """Result and gradients of one step."""
    x = x.clone().requires_grad_()
    with te.autocast(enabled=rule is not None, recipe=rule):
        y = module(x)
    y.float().pow(2).mean().backward()
    results = {"output": y.detach(), "dgrad": x.grad}
    results |= {f"grad {name}": p.grad for name, p in module.named_parameters()}
    return {name: value.float().cpu() for name, value in results.items() if value is not None}


def relative_difference(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm().clamp_min(1e-30))


def compare_modules(device: torch.device) -> Iterator[Outcome]:
    for name, (make, products) in make_modules().items():
        for recipe_name, (rule, coarsest) in RECIPES.items():
            torch.manual_seed(0)
            module = make()
            x = torch.randn(32, 2, 128, dtype=torch.bfloat16)
            expected = run_module(copy.deepcopy(module), x, copy.deepcopy(rule))
            got = run_module(module.to(device), x.to(device), copy.deepcopy(rule))
            worst = max(relative_difference(got[key], expected[key]) for key in expected)
            limit = 2 * products * STEP_BF16 if rule is None else STEP[coarsest]
            yield Outcome(f"{name} {recipe_name}", worst, limit)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.manual_seed(1)
    outcomes = []
    for outcome in [*compare_quantizers(device), *compare_modules(device)]:
        outcomes.append(outcome)
        verdict = "ok  " if outcome.is_good else "FAIL"
        print(f"{verdict} {outcome.name}: {outcome.difference:.3g} (limit {outcome.limit:.3g})")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
