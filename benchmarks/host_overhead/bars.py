# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is compared with what, and how little it must cost: the one table of gates and goals.

Numbers are host time of ours over host time of the baseline. "Upstream" is the library whose
interface this one has, measured in the same way in August 2026 (None where it needs a GPU for
that). A gate must hold; a goal is aimed at.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bar:
    """One row.

    Attributes
    ----------
    ours, baseline : str
        Names of cases (cases.py).
    title : str
        What runs, and over what.
    upstream : float or None
    gate, goal : float
    """

    ours: str
    baseline: str
    title: str
    upstream: float | None
    gate: float
    goal: float


NORM_LINEAR = "(nn.LayerNorm + nn.Linear)"
STACK = "the nn stack"
BLOCK = "a plain pre-LN block"
LINEAR = "nn.Linear"

BARS = (
    Bar("Linear fwd", "nn.Linear fwd", f"Linear forward, x {LINEAR}", 7.3, 1.0, 0.6),
    Bar("Linear no_grad", "nn.Linear no_grad", f"Linear no_grad, x {LINEAR}", 4.6, 1.0, 0.7),
    Bar("Linear chain", "nn.Linear chain", f"Linear fwd+bwd, x {LINEAR}", 3.9, 0.9, 0.7),
    Bar("LayerNorm fwd", "nn.LayerNorm fwd", "LayerNorm forward, x nn.LayerNorm", 10.9, 1.0, 0.6),
    Bar("RMSNorm fwd", "nn.LayerNorm fwd", "RMSNorm forward, x nn.LayerNorm", 10.2, 1.0, 0.6),
    Bar(
        *("LayerNormLinear fwd", "nn norm+linear fwd"),
        *(f"LayerNormLinear forward, x {NORM_LINEAR}", 3.7, 0.5, 0.33),
    ),
    Bar(
        *("LayerNormLinear chain", "nn norm+linear chain"),
        *(f"LayerNormLinear fwd+bwd, x {NORM_LINEAR}", 2.8, 0.7, 0.5),
    ),
    Bar("LayerNormMLP fwd", "nn stack fwd", f"LayerNormMLP forward, x {STACK}", 6.1, 0.4, 0.25),
    Bar("LayerNormMLP chain", "nn stack chain", f"LayerNormMLP fwd+bwd, x {STACK}", 3.8, 0.65, 0.5),
    Bar(
        "TransformerLayer fwd", "block fwd", f"TransformerLayer forward, x {BLOCK}", 11.0, 0.8, 0.5
    ),
    Bar(
        *("TransformerLayer chain", "block chain"),
        *(f"TransformerLayer fwd+bwd, x {BLOCK}", 5.1, 0.9, 0.6),
    ),
    *(
        bar
        for recipe in ("delayed", "current")
        for bar in (
            Bar(
                *(f"Linear {recipe} fwd", "nn.Linear fwd"),
                *(f"FP8 {recipe} Linear with its region, forward, x {LINEAR}", 22.0, 1.5, 1.0),
            ),
            Bar(
                *(f"Linear {recipe} chain", "nn.Linear chain"),
                *(f"FP8 {recipe} Linear with its region, fwd+bwd, x {LINEAR}", 8.1, 1.3, 0.9),
            ),
            Bar(
                *(f"LayerNormMLP {recipe} fwd", "nn stack fwd"),
                *(f"FP8 {recipe} LayerNormMLP forward, x {STACK}", 7.5, 0.8, 0.4),
            ),
            Bar(
                *(f"LayerNormMLP {recipe} chain", "nn stack chain"),
                *(f"FP8 {recipe} LayerNormMLP fwd+bwd, x {STACK}", 4.4, 1.0, 0.6),
            ),
            Bar(
                *(f"region {recipe}", "nn.Linear fwd"),
                *(f"empty autocast region, {recipe}, x {LINEAR} forward", 1.4, 0.2, 0.1),
            ),
        )
    ),
    *(
        bar
        for recipe, title in (("block", "FP8 block"), ("mxfp8", "MXFP8"), ("nvfp4", "NVFP4"))
        for bar in (
            Bar(
                *(f"Linear {recipe} fwd", "nn.Linear fwd"),
                *(f"{title} Linear with its region, forward, x {LINEAR}", None, 2.0, 1.0),
            ),
            Bar(
                *(f"Linear {recipe} chain", "nn.Linear chain"),
                *(f"{title} Linear with its region, fwd+bwd, x {LINEAR}", None, 1.6, 0.9),
            ),
            Bar(
                *(f"LayerNormMLP {recipe} fwd", "nn stack fwd"),
                *(f"{title} LayerNormMLP forward, x {STACK}", None, 0.8, 0.6),
            ),
            Bar(
                *(f"LayerNormMLP {recipe} chain", "nn stack chain"),
                *(f"{title} LayerNormMLP fwd+bwd, x {STACK}", None, 1.0, 0.7),
            ),
        )
    ),
)
