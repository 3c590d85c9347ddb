# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Train tiny GPTs with Megatron-core on this library, on CPUs over gloo.

    python -m megatron_client [SCENARIO ...] [--spec te|native|both] [--fp8 RECIPE ...]

(with tests/megatron on PYTHONPATH). Each scenario trains for a few steps with Megatron's own DDP,
optimizer and schedule, once of Megatron's native layers and once of TE layers. Both start from the
same weights, see the same batches and must give the same losses and gradient norms: the native
layers are the reference. With --fp8, TE layers train in BF16 and under Megatron's FP8 options too;
the FP8 losses must lie within 2 % of the BF16 losses, and must not be equal to them. Where Megatron
keeps the weights themselves in FP8, the losses must be those of FP8 with BF16 weights.

cuda_to_cpu_shim.py replaces the CUDA calls that Megatron makes; it patches torch alone.
Exit status: 0 when every scenario passed, 1 when one failed, 2 when something cannot be imported.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
import tempfile
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .scenarios import DENSE, FP8_RECIPES, SCENARIOS, Options, Scenario

if TYPE_CHECKING:
    from collections.abc import Callable

FP8_LOSS_TOLERANCE = 0.02
BF16_TOLERANCE = 3e-2  # another order of roundings, amplified over the steps
FP32_TOLERANCE = 2e-4


@dataclass(slots=True)
class Row:
    """What became of a scenario; `texts` are the cells of the table."""

    name: str
    is_good: bool = True
    texts: list[str] = field(default_factory=list)
    runs: dict[str, Any] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def fail(self, text: str) -> None:
        """Note why the scenario failed."""
        self.is_good = False
        self.errors.append(f"{self.name}: {text}")


def values(logs: list[dict[str, Any]], with_norms: bool) -> list[float]:
    """Losses (and gradient norms) of a run, in order."""
    return [
        value
        for step in logs
        for value in [*step["loss"], *([step["grad_norm"]] if with_norms else [])]
    ]


def apart(run: Any, reference: Any, with_norms: bool = True) -> float:
    """The largest relative difference of two runs."""
    pairs = zip(values(run, with_norms), values(reference, with_norms), strict=True)
    differences = [abs(a - b) / max(1e-6, abs(b)) for a, b in pairs]
    return max(d if math.isfinite(d) else math.inf for d in differences)  # max skips a NaN


def _tolerance(options: Options) -> float:
    if options.fp8:
        return FP8_LOSS_TOLERANCE
    return BF16_TOLERANCE if options.bf16 else FP32_TOLERANCE


class Client:
    """Runs scenarios and judges them."""

    def __init__(self, settings: argparse.Namespace) -> None:
        from . import launch, training  # imports Megatron: after the shim

        self.settings = settings
        self.run_error = launch.RunError
        self.launch: Callable[..., Any] = launch.launch
        self.train = training.train

    def run(
        self, row: Row, label: str, spec: str, options: Options, ranks: int, *checkpoints: Any
    ) -> Any:
        """The logs of one run, or None where it failed; `checkpoints` are further arguments."""
        timeout = self.settings.timeout
        try:
            logs = self.launch(self.train, ranks, timeout, spec, options, *checkpoints)
        except self.run_error as error:
            row.fail(f"{label}: {error}")
            row.texts.append(f"{label} FAILED")
            return None
        row.runs[label] = logs
        return logs

    def _run_te(self, row: Row, label: str, scenario: Scenario, options: Options) -> Any:
        """A run of TE layers, and the last step on other numbers of ranks from its checkpoint."""
        if not scenario.resumed_on:
            return self.run(row, label, "te", options, scenario.ranks)
        with tempfile.TemporaryDirectory() as folder:
            logs = self.run(row, label, "te", options, scenario.ranks, folder)
            for size in scenario.resumed_on if logs else ():
                resumed_label = f"{label} resumed on {size}"
                other = replace(options, tp=size, sequence_parallel=size > 1)
                resumed = self.run(row, resumed_label, "te", other, size, None, folder)
                if resumed is None:
                    continue
                difference = apart(resumed, logs[-1:], with_norms=not options.fp8)
                tolerance = _tolerance(options)
                row.texts.append(f"{resumed_label} apart {difference:.1e}")
                if not difference <= tolerance:
                    row.fail(
                        f"{resumed_label} ranks: {difference:.2e} apart; {tolerance:g} allowed"
                    )
        return logs

    def judge(self, name: str, scenario: Scenario) -> Row:
        """Run a scenario in all its ways."""
        row = Row(name)
        native = te = None
        if scenario.native and self.settings.spec != "te":
            native = self.run(row, "native", "native", scenario.native_run(), scenario.ranks)
        if self.settings.spec != "native":
            te = self._run_te(row, "te", scenario, scenario.options)
        for label, logs in (("native", native), ("te", te)):
            if logs:
                row.texts.append(f"{label} {logs[-1]['loss'][-1]:.4f}")
        if native and te and scenario.is_compared:
            tolerance = _tolerance(scenario.options)
            difference = apart(te, native)
            row.texts.append(f"apart {difference:.1e} (<= {tolerance:g})")
            if not difference <= tolerance:
                row.fail(f"losses and norms are {difference:.2e} apart; {tolerance:g} is allowed")
        if self.settings.fp8:
            self._judge_fp8(row, scenario, te)
        return row

    def _judge_fp8(self, row: Row, scenario: Scenario, te: Any) -> None:
        options = replace(scenario.options, bf16=True)
        bf16 = te
        if not scenario.options.bf16:
            bf16 = self._run_te(row, "bf16", scenario, options)
        if bf16 is None:
            return
        for recipe in self.settings.fp8:
            logs = self._run_te(row, recipe, scenario, replace(options, fp8=recipe))
            if logs is None:
                continue
            difference = apart(logs, bf16, with_norms=False)
            row.texts.append(f"{recipe} {100 * difference:.2f} %")
            if not 0 < difference <= FP8_LOSS_TOLERANCE:
                row.fail(
                    f"{recipe}: losses are {100 * difference:.2f} % from BF16; more than 0 and at "
                    f"most {100 * FP8_LOSS_TOLERANCE:g} % is expected"
                )
            if options.fp8_parameters:
                self._judge_fp8_parameters(row, scenario, replace(options, fp8=recipe), logs)

    def _judge_fp8_parameters(
        self, row: Row, scenario: Scenario, options: Options, logs: Any
    ) -> None:
        """FP8 weights are casts of the same master weights: what is computed is the same."""
        options = replace(options, fp8_parameters=False)
        other = self.run(row, f"{options.fp8}, BF16 weights", "te", options, scenario.ranks)
        if other is not None and values(logs, False) != values(other, False):
            row.fail(f"{options.fp8}: losses with FP8 weights differ from those with BF16 weights")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="megatron_client", description="See the module.")
    parser.add_argument("scenario", nargs="*", help="default: those of dense models")
    parser.add_argument("--spec", choices=("te", "native", "both"), default="both")
    parser.add_argument("--fp8", nargs="+", choices=[*FP8_RECIPES, "none"], default=[])
    parser.add_argument("--list", action="store_true", help="name all scenarios")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for each run")
    parser.add_argument("--json", type=Path, help="file for all losses and gradient norms")
    settings = parser.parse_args(arguments)
    unknown = sorted(set(settings.scenario) - set(SCENARIOS))
    if unknown:
        parser.error(f"scenario {unknown[0]} is not known; --list names all")
    settings.fp8 = [recipe for recipe in settings.fp8 if recipe != "none"]
    return settings


def _missing() -> str | None:
    for name in ("megatron.core", "transformer_engine", "psutil"):  # psutil: for its checkpoints
        try:
            if importlib.util.find_spec(name) is None:
                return name
        except ModuleNotFoundError:
            return name
    return None


def _print_table(rows: list[Row]) -> None:
    width = max(len(row.name) for row in rows)
    for row in rows:
        print(f"{'ok  ' if row.is_good else 'FAIL'} {row.name:{width}s}  " + " | ".join(row.texts))
    for row in rows:
        for error in row.errors:
            print(error)
    good = sum(row.is_good for row in rows)
    print(f"{good} passed, {len(rows) - good} failed", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    settings = _parse(arguments)
    if settings.list:
        for name, scenario in SCENARIOS.items():
            print(f"{name:20s} ranks={scenario.ranks} {scenario.options}")
        return 0
    if (name := _missing()) is not None:
        print(f"megatron_client: {name} cannot be imported; it is needed.", file=sys.stderr)
        return 2
    # Not at the top: Megatron's checkpoints start interpreters that import this file once more.
    from . import cuda_to_cpu_shim

    cuda_to_cpu_shim.install()
    warnings.simplefilter("ignore")
    client = Client(settings)
    rows = []
    for name in settings.scenario or DENSE:
        print(f"running {name}", file=sys.stderr, flush=True)
        rows.append(client.judge(name, SCENARIOS[name]))
    _print_table(rows)
    if settings.json:
        report = {r.name: {"ok": r.is_good, "runs": r.runs, "errors": r.errors} for r in rows}
        settings.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all(row.is_good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
