# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Host time of Megatron's TE layers over its native layers, on the CPU.

    python -m megatron_client.bench [--ranks 2] [--sequence-parallel] [--gate]

The sizes are so small that what is timed is Python and dispatch, not arithmetic. All contenders
take turns within each round, so that noise of the machine falls on all alike; a ratio is the
median over the rounds of one contender's time over the other's. With several ranks the layers are
tensor-parallel and the times are those of the last rank. --gate: exit with 1 where the forward of
TEColumnParallelLinear takes more than GATES allows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import cuda_to_cpu_shim

GATES = {1: 1.0, 2: 1.1}
"""Ranks -> most that the forward of a TE column layer may take, in forwards of a native one."""
GATED = "TEColumnParallelLinear"
MODES = ("forward", "no_grad", "forward+backward")


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is run, and how often."""

    sequence: int
    batch: int
    hidden: int
    heads: int
    rounds: int
    calls: int
    sequence_parallel: bool


Contender = tuple[str, str, Callable[[], Any]]
"""Name, name of the baseline, call."""


def _contenders(sizes: Sizes) -> list[Contender]:
    """The layers, each after its baseline; all inputs require gradients."""
    from megatron.core import parallel_state
    from megatron.core.extensions import transformer_engine as te_layers
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType

    ranks = torch.distributed.get_world_size()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
    model_parallel_cuda_manual_seed(7)
    hidden, dtype = sizes.hidden, torch.bfloat16
    config = TransformerConfig(
        num_layers=1,
        hidden_size=hidden,
        num_attention_heads=sizes.heads,
        use_cpu_initialization=True,
        params_dtype=dtype,
        bf16=True,
        tensor_model_parallel_size=ranks,
        sequence_parallel=sizes.sequence_parallel,
    )
    linear = {"config": config, "init_method": torch.nn.init.zeros_, "is_expert": False}
    column = linear | {"gather_output": False, "bias": True, "skip_bias_add": False}
    row = linear | {"input_is_parallel": True, "bias": True, "skip_bias_add": True}
    attention = {
        "config": config,
        "layer_number": 1,
        "attn_mask_type": AttnMaskType.causal,
        "attention_type": "self",
        "attention_dropout": 0.0,
    }

    local = sizes.sequence // ranks if sizes.sequence_parallel else sizes.sequence
    x = torch.randn(local, sizes.batch, hidden, dtype=dtype).requires_grad_()
    x_row = torch.randn(sizes.sequence, sizes.batch, hidden // ranks, dtype=dtype).requires_grad_()
    heads = (sizes.sequence, sizes.batch, sizes.heads // ranks, hidden // sizes.heads)
    q, k, v = (torch.randn(heads, dtype=dtype).requires_grad_() for _ in range(3))
    mask = torch.ones(1, 1, sizes.sequence, sizes.sequence).tril() < 0.5

    native_norm = torch.nn.LayerNorm(hidden, dtype=dtype)
    native_linear = torch.nn.Linear(hidden, hidden // ranks, dtype=dtype)
    native_column = ColumnParallelLinear(hidden, hidden, **column)
    native_row = RowParallelLinear(hidden, hidden, **row)
    native_attention = DotProductAttention(**attention)
    te_column = te_layers.TEColumnParallelLinear(hidden, hidden, **column)
    te_row = te_layers.TERowParallelLinear(hidden, hidden, **row)
    te_norm_column = te_layers.TELayerNormColumnParallelLinear(hidden, hidden, **column)
    te_norm = te_layers.TENorm(config, hidden)
    te_attention = te_layers.TEDotProductAttention(**attention)
    causal = AttnMaskType.causal
    return [
        ("ColumnParallelLinear", "ColumnParallelLinear", lambda: native_column(x)),
        ("nn.Linear", "ColumnParallelLinear", lambda: native_linear(x)),
        (GATED, "ColumnParallelLinear", lambda: te_column(x)),
        ("RowParallelLinear", "RowParallelLinear", lambda: native_row(x_row)),
        ("TERowParallelLinear", "RowParallelLinear", lambda: te_row(x_row)),
        ("norm + column", "norm + column", lambda: native_column(native_norm(x))),
        ("TELayerNormColumnParallelLinear", "norm + column", lambda: te_norm_column(x)),
        ("nn.LayerNorm", "nn.LayerNorm", lambda: native_norm(x)),
        ("TENorm", "nn.LayerNorm", lambda: te_norm(x)),
        ("DotProductAttention", "DotProductAttention", lambda: native_attention(q, k, v, mask)),
        (
            *("TEDotProductAttention", "DotProductAttention"),
            lambda: te_attention(q, k, v, None, attn_mask_type=causal),
        ),
    ]


def _with_backward(call: Callable[[], Any]) -> Callable[[], None]:
    result = call()
    grad = torch.ones_like(result[0] if isinstance(result, tuple) else result)

    def run() -> None:
        result = call()
        (result[0] if isinstance(result, tuple) else result).backward(grad)

    return run


def measure(sizes: Sizes) -> dict[str, dict[str, list[float]]]:
    """Mode -> contender -> microseconds of a call in each round; run it on every rank."""
    found: dict[str, dict[str, list[float]]] = {}
    contenders = _contenders(sizes)
    for mode in MODES:
        calls = {name: call for name, _, call in contenders}
        if mode == "forward+backward":
            calls = {name: _with_backward(call) for name, call in calls.items()}
        times: dict[str, list[float]] = {name: [] for name in calls}
        with torch.set_grad_enabled(mode != "no_grad"):
            for i in range(-max(1, sizes.rounds // 10), sizes.rounds):  # negative ones warm up
                for name, call in calls.items():
                    started = time.perf_counter()
                    for _ in range(sizes.calls):
                        call()
                    if i >= 0:
                        times[name].append((time.perf_counter() - started) / sizes.calls * 1e6)
        found[mode] = times
    found["baselines"] = {name: baseline for name, baseline, _ in contenders}  # type: ignore[misc]
    return found


def ratio(times: list[float], baseline: list[float]) -> float:
    """Median over the rounds of time over time."""
    return statistics.median(a / b for a, b in zip(times, baseline, strict=True))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="megatron_client.bench", description="See the module.")
    for name, default in {
        "ranks": 1,
        "sequence": 8,
        "batch": 1,
        "hidden": 64,
        "heads": 4,
        "rounds": 200,
        "calls": 20,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    parser.add_argument("--sequence-parallel", action="store_true")
    parser.add_argument("--gate", action="store_true", help="fail where the gate is missed")
    parser.add_argument("--json", type=Path, help="file for the times of all rounds")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    settings = _parse(arguments)
    # Without the parts that wrap functions of torch which layers call: they would cost time.
    cuda_to_cpu_shim.install(skip=("factory", "move", "types"))
    warnings.simplefilter("ignore")
    from .launch import launch

    fields = ("sequence", "batch", "hidden", "heads", "rounds", "calls", "sequence_parallel")
    sizes = Sizes(**{name: getattr(settings, name) for name in fields})
    import megatron.core.extensions.transformer_engine  # noqa: F401  # once, not in every rank

    found = launch(measure, settings.ranks, 900, sizes)
    baselines = found.pop("baselines")
    title = f"{settings.ranks} ranks, " + ", ".join(f"{f} {getattr(sizes, f)}" for f in fields)
    for mode, times in found.items():
        print(f"[{mode}] {title}")
        for name, baseline in baselines.items():
            text = f"  {name:32s} {statistics.median(times[name]):8.2f} us"
            if name != baseline:
                text += f"  x {baseline} {ratio(times[name], times[baseline]):.2f}"
            print(text)
    if settings.json:
        settings.json.write_text(json.dumps(found) + "\n")
    gated = ratio(found["forward"][GATED], found["forward"][baselines[GATED]])
    gate = GATES.get(settings.ranks, max(GATES.values()))
    is_good = gated <= gate
    print(f"{'ok  ' if is_good else 'MISS'} {GATED} forward {gated:.2f} x native; gate {gate:g}")
    return int(settings.gate and not is_good)


if __name__ == "__main__":
    sys.exit(main())
