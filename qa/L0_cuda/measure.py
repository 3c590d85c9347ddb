# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measure kernels and host time on a GPU.

    python measure.py [--json FILE] [--table FILE] [--size ROWSxCOLS] [--device cuda]

Kernels: bytes that must move over the time between events, as a share of what a copy of a tensor of
the same size moves (goal 0.85). Products: TFLOP/s, beside torch's BF16 product (goal for FP8: 1.7
times it). Host: the time that a forward call of a module takes to return, with an idle device,
beside torch.nn.Linear (goals: BF16 1.0, FP8 1.5). Medians; ours and the baseline take turns. A case
that raises is listed with its error, and the others are measured all the same; exits with 1 then.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import transformer_engine.pytorch as te
import transformer_engine_torch as tex
from transformer_engine.common import recipe
from transformer_engine.pytorch.attention.rope import apply_rotary_pos_emb
from transformer_engine.pytorch.constants import DType
from transformer_engine.pytorch.optimizers import multi_tensor_adam, multi_tensor_applier

ROUNDS = 20
HOST_CALLS = 200
BUSY_CYCLES = 400_000  # of the device, a few times the host time of a call


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(function: Callable[[], Any], device: torch.device) -> float:
    """Time of one call on the device."""
    if device.type != "cuda":
        start = time.perf_counter()
        function()
        return time.perf_counter() - start
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(BUSY_CYCLES)  # the host is ahead of the device: its time is not measured
    begin.record()
    function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def in_turns(
    functions: dict[str, Callable[[], Any]], device: torch.device
) -> tuple[dict[str, float], dict[str, str]]:
    """Median seconds of each, in turns after a warm-up; and the errors of those that fail."""
    errors: dict[str, str] = {}
    for name, function in functions.items():
        try:
            function()
            function()
            synchronize(device)
        except Exception as error:  # the others say more
            errors[name] = described(error)
    times: dict[str, list[float]] = {name: [] for name in functions if name not in errors}
    for _ in range(ROUNDS):
        for name, values in times.items():
            values.append(seconds_of(functions[name], device))
    return {name: statistics.median(values) for name, values in times.items()}, errors


def kernel_cases(
    rows: int, cols: int, device: torch.device
) -> dict[str, tuple[Callable[[], Any], float]]:
    """Each kernel's call, and the bytes that it must move per element of [rows, cols] BF16."""
    x = torch.randn(rows, cols, dtype=torch.bfloat16, device=device)
    wide = torch.randn(rows, 2 * cols, dtype=torch.bfloat16, device=device)
    weight, bias = torch.ones(2, cols, dtype=torch.bfloat16, device=device)
    scale = torch.ones(1, device=device)
    e4m3 = DType.kFloat8E4M3

    def delayed(columnwise: bool) -> Any:
        amax = torch.zeros(1, device=device)
        return te.Float8Quantizer(scale, amax, e4m3, rowwise=True, columnwise=columnwise)

    cases: dict[str, tuple[Callable[[], Any], float]] = {}
    quantizers = {
        "FP8": (delayed(False), 3.0),
        "FP8 and transpose": (delayed(True), 4.0),
        "FP8 blocks": (
            te.Float8BlockQuantizer(e4m3, rowwise=True, columnwise=True, block_scaling_dim=1),
            4.0 + 2 * 4 / 128,
        ),
        "MXFP8": (te.MXFP8Quantizer(e4m3), 4.0 + 2 / 32),
        "NVFP4": (te.NVFP4Quantizer(), 2 * 2.0 + 2 * (0.5 + 1 / 16)),
    }
    for name, (quantizer, bytes_per_element) in quantizers.items():
        cases[f"quantize {name}"] = (lambda q=quantizer: q(x), bytes_per_element)
    cases["layernorm forward"] = (lambda: tex.layernorm_fwd(x, weight, bias, 1e-5), 4.0)
    cases["rmsnorm forward"] = (lambda: tex.rmsnorm_fwd(x, weight, 1e-5), 4.0)
    cases["gelu"] = (lambda: tex.gelu(x), 4.0)
    cases["swiglu"] = (lambda: tex.swiglu(wide), 6.0)
    cases["gelu backward"] = (lambda: tex.dgelu(x, x), 4.0)  # the two inputs are one
    heads = x.view(rows, 1, -1, min(cols, 64))
    angles = te.RotaryPositionEmbedding(heads.shape[-1])(rows).to(device)
    cases["rotary embedding"] = (
        lambda: apply_rotary_pos_emb(heads, angles, fused=True),
        4.0,
    )
    logits = x.view(rows, 1, cols)
    target = torch.zeros(rows, 1, dtype=torch.int64, device=device)
    cases["cross entropy"] = (lambda: te.parallel_cross_entropy(logits, target), 2.0)
    state = [[torch.zeros(rows * cols, device=device)] for _ in range(4)]
    noop = torch.zeros(1, dtype=torch.int32, device=device)
    cases["Adam FP32"] = (  # reads gradient, parameter and moments, writes the latter three
        lambda: multi_tensor_applier(
            multi_tensor_adam, noop, state, 1e-3, 0.9, 0.999, 1e-8, 1, 1, True, 0.0
        ),
        28.0,
    )
    return cases


def measure_kernels(rows: int, cols: int, device: torch.device) -> list[dict[str, Any]]:
    source = torch.randn(rows, cols, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    results = []
    for name, (function, bytes_per_element) in kernel_cases(rows, cols, device).items():
        times, errors = in_turns({"copy": lambda: target.copy_(source), name: function}, device)
        if errors:
            results.append({"case": f"{name} {rows}x{cols}", "error": errors[name]})
            continue
        rate = bytes_per_element * rows * cols / times[name]
        copy_rate = 4.0 * rows * cols / times["copy"]
        results.append(
            {
                "case": f"{name} {rows}x{cols}",
                "GB/s": rate / 1e9,
                "copy GB/s": copy_rate / 1e9,
                "share of copy": rate / copy_rate,
            }
        )
    return results


def product_cases(size: int, device: torch.device) -> dict[str, Callable[[], Any]]:
    """Calls that multiply two [size, size] matrices into BF16, by format."""
    x = torch.randn(size, size, dtype=torch.bfloat16, device=device)
    w = torch.randn(size, size, dtype=torch.bfloat16, device=device)
    e4m3, bf16 = int(DType.kFloat8E4M3), int(DType.kBFloat16)
    core = tex.Float8CurrentScalingQuantizerCore(e4m3, rowwise=True, columnwise=False)
    (x_codes, _, x_scale), (w_codes, _, w_scale) = core.quantize(x), core.quantize(w)
    fp8 = {"a_scale_inv": x_scale, "b_scale_inv": w_scale, "a_dtype": e4m3, "b_dtype": e4m3}

    def multiply_fp8(**options: bool) -> Callable[[], Any]:
        return lambda: tex.gemm(x_codes, w_codes, out_dtype=bf16, **fp8, **options)

    cases: dict[str, Callable[[], Any]] = {
        "torch": lambda: torch.mm(x, w.t()),
        "BF16": lambda: tex.gemm(x, w),
        "FP8": multiply_fp8(),
        "FP8, fast accumulation": multiply_fp8(use_split_accumulator=False),
        "FP8, as for a weight gradient": multiply_fp8(a_transposed=True, b_transposed=True),
    }
    quantizers = {
        "MXFP8": te.MXFP8Quantizer(DType.kFloat8E4M3, columnwise=False),
        "NVFP4": te.NVFP4Quantizer(columnwise=False),
    }
    sizes = [size, size]
    for name, quantizer in quantizers.items():
        x_copy, w_copy = (quantizer._core.quantize(m)[0] for m in (x, w))
        cases[name] = lambda a=x_copy, b=w_copy: tex.gemm_copies(
            sizes, a, None, False, sizes, b, None, False, bf16
        )
    return cases


def measure_products(size: int, device: torch.device) -> list[dict[str, Any]]:
    flops = 2.0 * size**3
    times, errors = in_turns(product_cases(size, device), device)
    failed: list[dict[str, Any]] = [
        {"case": f"product {name} {size}^3", "error": error} for name, error in errors.items()
    ]
    return failed + [
        {
            "case": f"product {name} {size}^3",
            "TFLOP/s": flops / seconds / 1e12,
            "over torch BF16": times["torch"] / seconds,
        }
        for name, seconds in times.items()
    ]


def measure_attention(length: int, device: torch.device) -> list[dict[str, Any]]:
    """Causal attention of 16 heads of 64, forward and backward, beside torch's operator."""
    shape = (2, length, 16, 64)
    q, k, v = (
        torch.randn(shape, dtype=torch.bfloat16, device=device, requires_grad=True)
        for _ in range(3)
    )
    ours = te.DotProductAttention(16, 64, qkv_format="bshd", attn_mask_type="causal")

    def torch_forward() -> torch.Tensor:
        heads = (x.transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)

    def and_backward(forward: Callable[[], torch.Tensor]) -> Callable[[], Any]:
        def run() -> None:
            out = forward()
            torch.autograd.grad(out, (q, k, v), out)

        return run

    forwards = {"torch": torch_forward, "ours": lambda: ours(q, k, v)}
    results = []
    for name, flops in (("forward", 4), ("forward and backward", 14)):
        wrap = and_backward if "backward" in name else lambda forward: forward
        times, errors = in_turns({key: wrap(call) for key, call in forwards.items()}, device)
        if errors:
            error = "; ".join(errors.values())
            results.append({"case": f"attention {name} {length}", "error": error})
            continue
        amount = flops / 2 * shape[0] * shape[2] * length**2 * shape[3]
        results.append(
            {
                "case": f"attention {name} {length}",
                "TFLOP/s": amount / times["ours"] / 1e12,
                "over torch": times["torch"] / times["ours"],
            }
        )
    return results


def host_seconds(function: Callable[[], Any], device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    for _ in range(HOST_CALLS):
        function()
    elapsed = time.perf_counter() - start
    synchronize(device)
    return elapsed / HOST_CALLS


def measure_host(device: torch.device) -> list[dict[str, Any]]:
    """Forward calls on tiny tensors, whose kernels end before the next call is made."""
    settings: dict[str, Any] = {"params_dtype": torch.bfloat16, "device": device}
    x = torch.randn(16, 64, dtype=torch.bfloat16, device=device)
    plain = torch.nn.Linear(64, 64, dtype=torch.bfloat16, device=device)
    ours = te.Linear(64, 64, **settings)
    rules: dict[str, recipe.Recipe | None] = {
        "BF16": None,
        "FP8 delayed": recipe.DelayedScaling(),
        "FP8 current": recipe.Float8CurrentScaling(),
        "MXFP8": recipe.MXFP8BlockScaling(),
    }

    def call(rule: recipe.Recipe | None) -> None:
        with te.autocast(enabled=rule is not None, recipe=rule):
            ours(x)

    results: list[dict[str, Any]] = []
    for name, rule in rules.items():
        try:
            call(rule)
            plain(x)
            synchronize(device)
        except Exception as error:  # the others say more
            results.append({"case": f"host Linear forward {name}", "error": described(error)})
            continue
        pairs = [
            (host_seconds(lambda: plain(x), device), host_seconds(lambda r=rule: call(r), device))
            for _ in range(ROUNDS)
        ]
        base, own = (statistics.median(column) for column in zip(*pairs, strict=True))
        results.append(
            {
                "case": f"host Linear forward {name}",
                "us": own * 1e6,
                "nn.Linear us": base * 1e6,
                "over nn.Linear": own / base,
            }
        )
    return results


def as_table(results: list[dict[str, Any]]) -> str:
    lines = []
    for result in results:
        figures = [
            f"{key} {value}" if isinstance(value, str) else f"{key} {value:.3g}"
            for key, value in result.items()
            if key != "case"
        ]
        lines.append(f"{result['case']}: {', '.join(figures)}")
    return "\n".join(lines) + "\n"


def write(
    results: list[dict[str, Any]], device: torch.device, arguments: argparse.Namespace
) -> None:
    """What is known so far: after every section, as the time of a run is limited."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    record = {"device": name, "torch": torch.__version__, "results": results}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    if arguments.table is not None:
        arguments.table.write_text(as_table(results))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", default="4096x8192,8192x8192", help="of kernels, ROWSxCOLS,...")
    parser.add_argument("--product", type=int, default=8192, help="size of products")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    sections: dict[str, Callable[[], list[dict[str, Any]]]] = {}
    for size in arguments.size.split(","):
        rows, cols = map(int, size.split("x"))
        sections[f"kernels {size}"] = lambda r=rows, c=cols: measure_kernels(r, c, device)
    sections["products"] = lambda: measure_products(arguments.product, device)
    sections["attention"] = lambda: measure_attention(arguments.product // 2, device)
    sections["host"] = lambda: measure_host(device)
    results: list[dict[str, Any]] = []
    for name, measure in sections.items():
        try:
            found = measure()
        except Exception as error:  # the other sections say more
            found = [{"case": name, "error": described(error)}]
        print(as_table(found), end="", flush=True)
        results += found
        write(results, device, arguments)
    return int(any("error" in result for result in results))


if __name__ == "__main__":
    sys.exit(main())
