# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compare every quantizer, module and kind of attention on a device with the CPU.

    python compare_devices.py [--device cuda] [--json FILE]

Quantized bytes must be equal. A module's result and gradients differ only by the order in which
products are summed, and by what follows from it. Their difference, relative in the Euclidean norm,
may be two half steps of BF16 (2^-8 each) for each product that lies on the way; under a quantized
recipe, where a value at a rounding boundary may take the other step, half a step of the coarsest
element type in use for every element. Attention has five products, forward and backward; the line
of a case names the backend that ran. Prints a line per case; exits with 1 when one fails. A case
that raises fails with its error, and the others run all the same.
"""

from __future__ import annotations

import argparse
import copy
import itertools
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
    """One case: what was compared, how far apart it is, how far it may be; or why it failed."""

    name: str
    difference: float
    limit: float
    error: str = ""

    @property
    def is_good(self) -> bool:
        return not self.error and self.difference <= self.limit

    def __str__(self) -> str:
        verdict = "ok  " if self.is_good else "FAIL"
        figures = self.error or f"{self.difference:.3g} (limit {self.limit:.3g})"
        return f"{verdict} {self.name}: {figures}"


def attempt(name: str, compare: Callable[[], Outcome]) -> Outcome:
    """The outcome of a case, or its error."""
    try:
        return compare()
    except Exception as error:  # whatever it is, the other cases say more
        return Outcome(name, 0.0, 0.0, f"{type(error).__name__}: {error}")


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
    for kind, dtype, shape in itertools.product(on_cpu, DTYPES, SHAPES):
        name = f"quantize {kind} {dtype} {list(shape)}"
        x = torch.randn(shape, dtype=torch.float32).mul(3).to(dtype)

        def compare(name: str = name, kind: str = kind, x: torch.Tensor = x) -> Outcome:
            expected = plain_tensors(on_cpu[kind]()(x))
            got = plain_tensors(on_device[kind]()(x.to(device)))
            differing = sum(int((got[key].cpu() != value).sum()) for key, value in expected.items())
            return Outcome(name, float(differing), 0.0)

        yield attempt(name, compare)


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


def compare_module(kind: str, recipe_name: str, device: torch.device) -> Outcome:
    make, products = make_modules()[kind]
    rule, coarsest = RECIPES[recipe_name]
    torch.manual_seed(0)
    module = make()
    x = torch.randn(32, 2, 128, dtype=torch.bfloat16)
    expected = run_module(copy.deepcopy(module), x, copy.deepcopy(rule))
    got = run_module(module.to(device), x.to(device), copy.deepcopy(rule))
    worst = max(relative_difference(got[key], expected[key]) for key in expected)
    limit = 2 * products * STEP_BF16 if rule is None else STEP[coarsest]
    return Outcome(f"{kind} {recipe_name}", worst, limit)


def compare_modules(device: torch.device) -> Iterator[Outcome]:
    for kind, rule in itertools.product(make_modules(), RECIPES):
        yield attempt(f"{kind} {rule}", lambda k=kind, r=rule: compare_module(k, r, device))


ATTENTION_PRODUCTS = 5  # Q K^T, P V, and dP, dS and the last ones of the gradients
LENGTHS = [48, 64, 17]

# Options of the module, of its call, and (s_q, s_kv).
ATTENTION: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[int, int]]] = {
    "full": ({"attn_mask_type": "no_mask"}, {}, (64, 96)),
    "causal": ({"attn_mask_type": "causal"}, {}, (64, 64)),
    "causal, odd sizes": ({"attn_mask_type": "causal"}, {}, (61, 61)),
    "causal bottom right": ({"attn_mask_type": "causal_bottom_right"}, {}, (64, 128)),
    "causal window": ({"attn_mask_type": "causal", "window_size": (16, 0)}, {}, (64, 64)),
    "window": ({"attn_mask_type": "no_mask", "window_size": (16, 8)}, {}, (64, 64)),
    "grouped": ({"attn_mask_type": "causal", "num_gqa_groups": 2}, {}, (64, 64)),
    "head sizes 192 and 128": (
        {"attn_mask_type": "causal", "kv_channels": (192, 128)},
        {},
        (64, 64),
    ),
    "bias": (
        {"attn_mask_type": "no_mask"},
        {"core_attention_bias_type": "post_scale_bias"},
        (64, 64),
    ),
    "padding": ({"attn_mask_type": "padding"}, {}, (64, 64)),
    "padding causal": ({"attn_mask_type": "padding_causal"}, {}, (64, 64)),
    "packed causal": (
        {"attn_mask_type": "padding_causal", "qkv_format": "thd"},
        {"max_seqlen_q": 64, "max_seqlen_kv": 64},
        (64, 64),
    ),
    "packed causal grouped": (
        {"attn_mask_type": "padding_causal", "qkv_format": "thd", "num_gqa_groups": 2},
        {"max_seqlen_q": 64, "max_seqlen_kv": 64},
        (64, 64),
    ),
}


def run_attention(name: str, device: torch.device) -> tuple[str, dict[str, torch.Tensor]]:
    """The backend, and result and gradients of one call, with the same numbers on any device."""
    options, call, (s_q, s_kv) = ATTENTION[name]
    options = {"kv_channels": 64, "qkv_format": "bshd"} | options
    is_packed = options["qkv_format"] == "thd"
    groups = options.get("num_gqa_groups", 4)
    channels = options["kv_channels"]
    d_qk, d_v = channels if isinstance(channels, tuple) else (channels, channels)
    generator = torch.Generator().manual_seed(1)

    def make(*shape: int) -> torch.Tensor:
        x = torch.randn(shape, generator=generator).bfloat16()
        return x.to(device).requires_grad_()

    def rows(tokens: int) -> tuple[int, ...]:
        return (sum(LENGTHS),) if is_packed else (len(LENGTHS), tokens)

    inputs = {
        "q": make(*rows(s_q), 4, d_qk),
        "k": make(*rows(s_kv), groups, d_qk),
        "v": make(*rows(s_kv), groups, d_v),
    }
    arguments = dict(call)
    if "padding" in options["attn_mask_type"]:
        ends = torch.tensor([0, *LENGTHS]).cumsum(0).to(device, torch.int32)
        arguments |= {"cu_seqlens_q": ends, "cu_seqlens_kv": ends}
    if "core_attention_bias_type" in arguments:
        inputs["core_attention_bias"] = make(1, 4, s_q, s_kv)
        arguments["core_attention_bias"] = inputs["core_attention_bias"]
    module = te.DotProductAttention(4, **options)
    leading = list(inputs.values())[:3]
    reasons = module.explain_backends(*leading, **arguments)
    backend = next(key for key, reason in reasons.items() if reason is None)
    out = module(*leading, **arguments)
    out.backward(torch.randn(out.shape, generator=generator).bfloat16().to(device))
    results = {"output": out} | {f"grad {key}": x.grad for key, x in inputs.items()}
    return backend, {key: value.detach().float().cpu() for key, value in results.items()}


def compare_attention_case(name: str, device: torch.device) -> Outcome:
    _, expected = run_attention(name, torch.device("cpu"))
    backend, got = run_attention(name, device)
    worst = max(relative_difference(got[key], expected[key]) for key in expected)
    return Outcome(f"attention {name} ({backend})", worst, 2 * ATTENTION_PRODUCTS * STEP_BF16)


def compare_attention(device: torch.device) -> Iterator[Outcome]:
    for name in ATTENTION:
        yield attempt(f"attention {name}", lambda n=name: compare_attention_case(n, device))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.manual_seed(1)
    outcomes = []
    cases = [compare_quantizers(device), compare_modules(device), compare_attention(device)]
    try:
        for outcome in itertools.chain(*cases):
            outcomes.append(outcome)
            print(outcome, flush=True)
    finally:
        if arguments.json is not None:
            found = [asdict(outcome) for outcome in outcomes]
            arguments.json.write_text(json.dumps(found, indent=1))
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
