# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs side by side: one process each, as many at once as there are workers.

The matrices are small, so that one thread per run and several runs at once use the cores better
than one run after the other on all of them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .text import load_corpus
from .training import RUNS, Settings, Trainer

# Steps that are repeated from the checkpoint and compared with the uninterrupted run.
RESUMED_STEPS = 10
PROMPT = "The "
REPORT_EVERY_S = 0.2

OnStep = Callable[[str, int, float], None]


@dataclass(frozen=True)
class Job:
    """One run and what is to happen around it."""

    name: str
    settings: Settings
    folder: Path  # of the checkpoints
    resumes: bool  # start from the newest checkpoint there
    sample_length: int
    threads: int

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint after `step` steps lies."""
        return self.folder / f"{self.name}_step{step}.pt"

    @property
    def checkpoint_steps(self) -> tuple[int, int]:
        """Checkpoints are written half way and at the end."""
        return max(1, self.settings.steps // 2), self.settings.steps


@dataclass(frozen=True)
class Result:
    """What a run leaves for comparisons and output."""

    name: str
    losses: list[float]
    held_out_loss: float
    sample: str
    resumes_bitwise: bool
    seconds: float

    @property
    def title(self) -> str:
        """Name for people."""
        return RUNS[self.name].title

    @property
    def final_loss(self) -> float:
        """Mean training loss of the last twentieth of the steps."""
        last = self.losses[-max(1, len(self.losses) // 20) :]
        return sum(last) / len(last)


def _start(job: Job, trainer: Trainer) -> None:
    """Load the newest checkpoint, or remove those of an earlier run."""
    for step in reversed(job.checkpoint_steps):
        path = job.checkpoint(step)
        if job.resumes and path.exists():
            trainer.load(path)
            return
        path.unlink(missing_ok=True)


def _resumes_bitwise(job: Job, trainer: Trainer) -> bool:
    """Whether a new trainer repeats steps of `trainer` from the first checkpoint exactly.

    A gradient norm holds a bit of every weight, so equal norms and losses mean an equal state.
    """
    resumed = Trainer(RUNS[job.name], job.settings, trainer.corpus)
    resumed.load(job.checkpoint(job.checkpoint_steps[0]))
    last = min(resumed.step_count + RESUMED_STEPS, trainer.step_count)
    resumed.train_until(last)
    return (
        resumed.losses == trainer.losses[:last]
        and resumed.gradient_norms == trainer.gradient_norms[:last]
    )


def run_job(job: Job, on_step: OnStep) -> Result:
    """Train, save, evaluate, generate, and check that the checkpoint resumes exactly."""
    torch.set_num_threads(job.threads)
    start = time.perf_counter()
    trainer = Trainer(RUNS[job.name], job.settings, load_corpus())
    _start(job, trainer)
    for step in job.checkpoint_steps:
        if trainer.step_count < step:
            trainer.train_until(step, lambda done, loss: on_step(job.name, done, loss))
            trainer.save(job.checkpoint(step))
    return Result(
        job.name,
        trainer.losses,
        trainer.held_out_loss(),
        trainer.generate(PROMPT, job.sample_length),
        _resumes_bitwise(job, trainer),
        time.perf_counter() - start,
    )


# The parent's queue, in a worker process.
_steps: Any = None


def _start_worker(steps: Any) -> None:
    global _steps
    _steps = steps


def _run_in_worker(job: Job) -> Result:
    """`run_job`, with a few reports a second."""
    last_report = 0.0

    def report(name: str, step: int, loss: float) -> None:
        nonlocal last_report
        if (now := time.monotonic()) - last_report >= REPORT_EVERY_S:
            last_report = now
            _steps.put((name, step, loss))

    return run_job(job, report)


def _receive(steps: Any, on_step: OnStep) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            on_step(*steps.get_nowait())


def run_jobs(jobs: list[Job], workers: int, on_step: OnStep) -> Iterator[Result]:
    """Run all jobs; their results come as they end. An error in a job is raised here."""
    context = multiprocessing.get_context("spawn")  # a fork would copy torch's thread pool
    steps = context.Queue()
    with ProcessPoolExecutor(
        min(workers, len(jobs)), context, initializer=_start_worker, initargs=(steps,)
    ) as pool:
        pending = {pool.submit(_run_in_worker, job) for job in jobs}
        while pending:
            done, pending = wait(pending, timeout=REPORT_EVERY_S, return_when="FIRST_COMPLETED")
            _receive(steps, on_step)
            try:
                yield from (future.result() for future in done)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))
