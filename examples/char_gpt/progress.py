# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Progress of several runs: bars in a terminal that has `rich`, else a line now and then."""

from __future__ import annotations

import sys
from types import TracebackType

from .jobs import Job, Result
from .training import RUNS

try:
    import rich.progress
except ModuleNotFoundError:  # an extra of this example, not of the library
    has_rich = False
else:
    has_rich = True

LINES_PER_RUN = 4


class Lines:
    """Prints a few lines per run."""

    def __init__(self, jobs: list[Job]) -> None:
        self.steps = jobs[0].settings.steps
        self.next_line = dict.fromkeys((job.name for job in jobs), 0)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def step(self, name: str, step: int, loss: float) -> None:
        """Hear of a step."""
        if step >= self.next_line[name]:
            self.next_line[name] = step + max(1, self.steps // LINES_PER_RUN)
            print(f"{RUNS[name].title}: step {step} of {self.steps}, loss {loss:.3f}", flush=True)

    def done(self, result: Result) -> None:
        """Hear of the end of a run."""
        print(
            f"{result.title}: done in {result.seconds:.0f} s, loss {result.final_loss:.3f}",
            flush=True,
        )


class Bars:
    """One bar per run."""

    def __init__(self, jobs: list[Job]) -> None:
        self.progress = rich.progress.Progress(
            rich.progress.TextColumn("{task.description:20}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("loss {task.fields[loss]:.3f}"),
            rich.progress.TimeElapsedColumn(),
        )
        self.tasks = {
            job.name: self.progress.add_task(
                RUNS[job.name].title, start=False, total=job.settings.steps, loss=float("nan")
            )
            for job in jobs
        }

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.progress.stop()

    def step(self, name: str, step: int, loss: float) -> None:
        """Hear of a step."""
        self.progress.start_task(self.tasks[name])
        self.progress.update(self.tasks[name], completed=step, loss=loss)

    def done(self, result: Result) -> None:
        """Hear of the end of a run."""
        self.step(result.name, len(result.losses), result.final_loss)
        self.progress.stop_task(self.tasks[result.name])


def make_progress(jobs: list[Job]) -> Lines | Bars:
    """What fits the terminal."""
    if not has_rich:
        print("No progress bar: rich is not installed. To have it: pip install rich")
    return Bars(jobs) if has_rich and sys.stdout.isatty() else Lines(jobs)
