# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training of one model in one precision: steps, checkpoints, evaluation, generation."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import transformer_engine.pytorch as te
from transformer_engine.common.recipe import (
    CustomRecipe,
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
    Recipe,
)

from .model import CharGPT, Sizes, TorchTwin
from .text import Corpus, draw_batch

WARMUP_FRACTION = 0.05
FINAL_LEARNING_RATE_FRACTION = 0.05
HELD_OUT_BATCHES = 16


@dataclass(frozen=True)
class Run:
    """A name for output, and what distinguishes one training run from the others.

    Attributes
    ----------
    title : str
        For people.
    autocast_dtype : torch.dtype, optional
        Of ``torch.autocast``; parameters and optimizer state are FP32 in every run.
    recipe : callable, optional
        Makes the low-precision recipe of the transformer layers' linear parts.
    tolerance : float
        Promised distance of the held-out loss from that of BF16, relative.
    is_twin : bool
        Plain torch layers instead of this library's.
    """

    title: str
    autocast_dtype: torch.dtype | None = None
    recipe: Callable[[], Recipe] | None = None
    tolerance: float = 0.02
    is_twin: bool = False


def custom_quantizer(role: te.QuantizerRole | None) -> te.Quantizer:
    """MXFP8 for inputs and weights, current scaling to E5M2 for gradients."""
    if role is not None and role.tensor_type == "grad_output":
        return te.Float8CurrentScalingQuantizer(te.DType.kFloat8E5M2, device=torch.device("cpu"))
    return te.MXFP8Quantizer(te.DType.kFloat8E4M3)


def hybrid_quantizer(role: te.QuantizerRole | None) -> te.Quantizer:
    """Inputs and weights in FP8 blocks for the forward product; all else in MXFP8."""
    backward = te.MXFP8Quantizer(te.DType.kFloat8E4M3)
    if role is None or role.tensor_type not in ("input", "weight"):
        return backward
    forward = te.Float8BlockQuantizer(
        te.DType.kFloat8E4M3,
        rowwise=True,
        columnwise=True,
        block_scaling_dim=2 if role.tensor_type == "weight" else 1,
    )
    return te.HybridQuantizer(rowwise_quantizer=forward, columnwise_quantizer=backward)


BF16 = torch.bfloat16
RUNS = {
    "fp32": Run("FP32"),
    "torch": Run("FP32, plain torch.nn", is_twin=True),
    "bf16": Run("BF16", BF16),
    "delayed": Run("FP8 delayed scaling", BF16, DelayedScaling),
    "current": Run("FP8 current scaling", BF16, Float8CurrentScaling),
    "block": Run("FP8 blocks", BF16, Float8BlockScaling),
    "mxfp8": Run("MXFP8", BF16, MXFP8BlockScaling),
    "nvfp4": Run("NVFP4", BF16, NVFP4BlockScaling, tolerance=0.04),
    "custom": Run(
        "Custom: MXFP8, gradients E5M2", BF16, lambda: CustomRecipe(qfactory=custom_quantizer)
    ),
    "hybrid": Run(
        "Hybrid: FP8 blocks, backward MXFP8",
        BF16,
        lambda: CustomRecipe(qfactory=hybrid_quantizer),
    ),
}


@dataclass(frozen=True)
class Settings:
    """What all runs of the example have in common."""

    sizes: Sizes
    steps: int
    batch: int
    learning_rate: float
    seed: int


class Trainer:
    """A model, its optimizer and the state of its data stream.

    Everything that a later step depends on is in `state_dict`, so that a resumed run repeats the
    uninterrupted one bit for bit: weights, scaling state, optimizer, data stream, and the generator
    of stochastic rounding.
    """

    def __init__(self, run: Run, settings: Settings, corpus: Corpus) -> None:
        self.settings = settings
        self.corpus = corpus
        self.autocast_dtype = run.autocast_dtype
        self.recipe = run.recipe() if run.recipe is not None else None
        torch.manual_seed(settings.seed)
        model = CharGPT(settings.sizes)
        self.model: CharGPT | TorchTwin = model
        if run.is_twin:
            self.model = TorchTwin(settings.sizes)
            self.model.copy_weights(model)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            settings.learning_rate,
            betas=(0.9, 0.95),
            eps=1e-6,  # gradients that are rounding noise are not to be scaled up to full steps
            weight_decay=0.1,
        )
        self.stream = torch.Generator().manual_seed(settings.seed)
        self.losses: list[float] = []
        self.gradient_norms: list[float] = []

    @property
    def step_count(self) -> int:
        """Steps done."""
        return len(self.losses)

    def precision(self) -> contextlib.ExitStack:
        """The context in which the model runs."""
        stack = contextlib.ExitStack()
        if self.autocast_dtype is not None:
            stack.enter_context(torch.autocast("cpu", self.autocast_dtype))
        if self.recipe is not None:
            stack.enter_context(te.autocast(recipe=self.recipe))
        return stack

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy, in nats per character."""
        with self.precision():
            logits = self.model(inputs)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    def step(self) -> None:
        """One optimizer step on the next batch of the stream."""
        settings = self.settings
        batch = draw_batch(self.corpus.train, settings.batch, settings.sizes.context, self.stream)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(settings, self.step_count)
        self.optimizer.zero_grad()
        loss = self.loss(*batch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=1.0)
        self.optimizer.step()
        self.losses.append(loss.item())
        self.gradient_norms.append(norm.item())

    def train_until(self, step: int, on_step: Callable[[int, float], None] | None = None) -> None:
        """Train up to `step` steps in all; `on_step` hears of each step and its loss."""
        while self.step_count < step:
            self.step()
            if on_step is not None:
                on_step(self.step_count, self.losses[-1])

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values only, so that ``torch.load(weights_only=True)`` reads it."""
        return {
            "settings": asdict(self.settings),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "stream": self.stream.get_state(),
            "random": torch.get_rng_state(),
            "losses": list(self.losses),
            "gradient_norms": list(self.gradient_norms),
        }

    def save(self, path: Path) -> None:
        """Write a checkpoint; a crash in between leaves no half-written file under its name."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        torch.save(self.state_dict(), partial)
        partial.replace(path)

    def load(self, path: Path) -> None:
        """Continue from a checkpoint.

        Raises
        ------
        ValueError
            If it was written with other settings.
        """
        state = torch.load(path, weights_only=True)
        if state["settings"] != asdict(self.settings):
            raise ValueError(
                f"Trainer.load: {path} was written with {state['settings']}; this run has "
                f"{asdict(self.settings)}. Give the same options, or train without --resume."
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.stream.set_state(state["stream"])
        torch.set_rng_state(state["random"])
        self.losses = state["losses"]
        self.gradient_norms = state["gradient_norms"]

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """Mean loss over the same batches of held-out text for every run."""
        settings = self.settings
        stream = torch.Generator().manual_seed(settings.seed + 1)
        self.model.eval()
        losses = [
            self.loss(
                *draw_batch(self.corpus.held_out, settings.batch, settings.sizes.context, stream)
            ).item()
            for _ in range(HELD_OUT_BATCHES)
        ]
        self.model.train()
        return sum(losses) / len(losses)

    @torch.no_grad()
    def generate(self, prompt: str, length: int, temperature: float = 0.7) -> str:
        """Continue `prompt` by `length` characters, drawn from the model's distribution."""
        stream = torch.Generator().manual_seed(self.settings.seed + 2)
        tokens = self.corpus.encode(prompt)
        self.model.eval()
        for _ in range(length):
            with self.precision():
                logits = self.model(tokens[None, -self.settings.sizes.context :])
            probabilities = torch.softmax(logits[0, -1].float() / temperature, dim=-1)
            tokens = torch.cat([tokens, torch.multinomial(probabilities, 1, generator=stream)])
        self.model.train()
        return self.corpus.decode(tokens)


def learning_rate(settings: Settings, step: int) -> float:
    """Linear warm-up, then half a cosine down to a twentieth."""
    warmup = max(1, round(WARMUP_FRACTION * settings.steps))
    if step < warmup:
        return settings.learning_rate * (step + 1) / warmup
    progress = (step - warmup) / max(1, settings.steps - warmup)
    cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
    low = FINAL_LEARNING_RATE_FRACTION
    return settings.learning_rate * (low + (1.0 - low) * cosine)
