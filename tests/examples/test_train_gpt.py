# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The example trains, keeps its promises, resumes, and says so when it does not."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
STEPS = 6
TINY = (
    *("--steps", str(STEPS), "--batch", "8", "--context", "16", "--hidden", "32"),
    *("--layers", "1", "--heads", "2", "--sample-length", "8", "--workers", "1"),
    *("--learning-rate", "0.01"),
)
RUNS = ["fp32", "torch", "bf16", "delayed", "current"]
MORE_RUNS = ["block", "mxfp8", "nvfp4", "custom", "hybrid"]


def run_example(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command a user types, from a folder that is not the repository's."""
    command = [sys.executable, str(EXAMPLES / "train_gpt.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=EXAMPLES.parent.parent)


def read_losses(folder: Path) -> dict[str, list[float]]:
    with (folder / "losses.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    return {
        name: [float(row[column]) for row in rows]
        for column, name in enumerate(header)
        if name != "step"
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Output folder and printed text of one complete run."""
    folder = tmp_path_factory.mktemp("output")
    process = run_example(*TINY, "--output", str(folder))
    assert process.returncode == 0, process.stdout + process.stderr
    return folder, process.stdout


@pytest.fixture
def train_gpt(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import train_gpt

    return train_gpt


@pytest.fixture
def result(train_gpt: ModuleType):
    return train_gpt.Result(
        name="fp32",
        losses=[4.0, 3.0],
        held_out_loss=3.0,
        sample="The ",
        resumes_bitwise=True,
        seconds=1.0,
    )


@pytest.mark.slow
def test_every_promise_is_checked_and_kept(finished):
    _, text = finished
    assert "BROKEN" not in text
    for promise in (
        "FP32 losses equal those of plain torch.nn layers in every step",
        "FP8 delayed scaling ends at the loss of BF16",
        "FP8 current scaling ends at the loss of BF16",
        "A checkpoint resumes bit for bit: all 5 runs",
    ):
        assert f"ok      {promise}" in text


@pytest.mark.slow
def test_it_leaves_losses_curves_samples_and_checkpoints(finished):
    folder, text = finished
    losses = read_losses(folder)
    assert list(losses) == RUNS
    assert all(len(values) == STEPS for values in losses.values())
    assert (folder / "losses.png").read_bytes().startswith(b"\x89PNG")
    for name in RUNS:
        sample = (folder / f"sample_{name}.txt").read_text()
        assert len(sample.rstrip("\n")) >= 8 and sample.startswith("The ")
        assert (folder / "checkpoints" / f"{name}_step{STEPS}.pt").is_file()
    assert (folder / "report.txt").read_text().strip() in text


@pytest.mark.slow
def test_twin_losses_agree_and_low_precision_differs(finished):
    """The four precisions are really four: their losses are close, but not the same numbers."""
    losses = read_losses(finished[0])
    # Six steps from equal weights: FP32 rounding has not grown beyond a few units yet.
    torch.testing.assert_close(
        torch.tensor(losses["fp32"]), torch.tensor(losses["torch"]), rtol=1e-5, atol=0
    )
    assert len({tuple(losses[name]) for name in RUNS if name != "torch"}) == 4
    assert all(values[-1] < values[0] for values in losses.values())


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Folder of the page and printed text of the recipes that the demonstration leaves out."""
    folder = tmp_path_factory.mktemp("compared")
    process = run_example(
        *(*TINY, "--recipe", ",".join(MORE_RUNS)),
        *("--output", str(folder / "output"), "--publish", str(folder)),
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return folder, process.stdout


@pytest.mark.slow
def test_every_other_recipe_trains_beside_bf16_and_resumes(compared):
    folder, text = compared
    losses = read_losses(folder / "output")
    assert list(losses) == ["bf16", *MORE_RUNS]
    assert "BROKEN" not in text and text.count("ends at the loss of BF16") == len(MORE_RUNS)
    assert "A checkpoint resumes bit for bit: all 6 runs" in text
    # Scales that are powers of two round alike as long as no value is below the smallest step, so
    # FP8 blocks, MXFP8 and their hybrid may agree; the others differ from BF16 and each other.
    assert len({tuple(losses[name]) for name in ("bf16", "mxfp8", "nvfp4", "custom")}) == 4


@pytest.mark.slow
def test_a_published_comparison_has_table_picture_and_data(compared, train_gpt):
    from char_gpt.output import page

    folder, _ = compared
    document = json.loads((folder / "recipes" / "losses.json").read_text())
    assert (folder / "recipes.md").read_text() == page(document, "recipes/losses.png")
    assert (folder / "recipes" / "losses.png").read_bytes().startswith(b"\x89PNG")
    losses = read_losses(folder / "output")
    for name, run in document["runs"].items():
        assert run["losses"] == [round(loss, 4) for loss in losses[name]]
        assert (run["tolerance"] is None) == (name == "bf16")


def test_the_committed_comparison_keeps_its_promises_and_is_what_the_page_shows(train_gpt):
    from char_gpt.output import page

    document = json.loads((ROOT / "docs" / "recipes" / "losses.json").read_text())
    assert (ROOT / "docs" / "recipes.md").read_text() == page(document, "recipes/losses.png")
    runs = document["runs"]
    assert set(runs) == set(train_gpt.RUNS)
    bf16 = runs["bf16"]["held_out_loss"]
    for name, run in runs.items():
        assert len(run["losses"]) == document["settings"]["steps"] >= 500
        assert run["distance"] == pytest.approx(abs(run["held_out_loss"] - bf16) / bf16, abs=1e-4)
        if train_gpt.RUNS[name].recipe is not None:
            assert run["distance"] <= run["tolerance"] == train_gpt.RUNS[name].tolerance
            assert run["tolerance"] == (0.04 if name == "nvfp4" else 0.02)


@pytest.mark.slow
def test_an_interrupted_run_continues_as_if_nothing_had_happened(finished):
    folder, _ = finished
    before = read_losses(folder)
    chosen = ["bf16", "delayed"]
    for name in chosen:
        (folder / "checkpoints" / f"{name}_step{STEPS}.pt").unlink()
    arguments = ["--resume", "--output", str(folder), "--recipe", ",".join(chosen)]
    process = run_example(*TINY, *arguments)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "step 1 of" not in process.stdout
    assert read_losses(folder) == {name: before[name] for name in chosen}


def test_resuming_with_other_settings_is_refused(train_gpt, tmp_path):
    from char_gpt.training import Trainer

    corpus = train_gpt.load_corpus()
    settings = train_gpt.make_jobs(train_gpt.parse_arguments(list(TINY)))[0].settings
    run = train_gpt.RUNS["bf16"]
    Trainer(run, settings, corpus).save(tmp_path / "state.pt")
    other = Trainer(run, replace(settings, seed=9), corpus)
    with pytest.raises(ValueError, match=r"Trainer\.load: .*train without --resume"):
        other.load(tmp_path / "state.pt")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--recipe", "fp16"],
            "known are fp32,bf16,delayed,current,block,mxfp8,nvfp4,custom,hybrid",
        ),
        (["--hidden", "30", "--heads", "4"], "must be a multiple of twice --heads"),
        (["--steps", "0"], "at least 1 is required"),
        (["--recipe", "fp32", "--publish", "x"], "--publish needs BF16 to compare with"),
        (["--recipe", "fp32", "--compare"], "not allowed with argument"),
    ],
)
def test_wrong_options_are_explained(train_gpt, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        train_gpt.main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_bf16_comes_along_with_every_low_precision_recipe(train_gpt):
    assert train_gpt.parse_arguments([]).recipe == ["fp32", "bf16", "delayed", "current"]
    assert train_gpt.parse_arguments(["--recipe", "mxfp8"]).recipe == ["bf16", "mxfp8"]
    assert train_gpt.parse_arguments(["--recipe", "fp32"]).recipe == ["fp32"]
    everything = train_gpt.parse_arguments(["--compare"]).recipe
    assert everything == [name for name in train_gpt.RUNS if name != "torch"]


def test_a_broken_twin_promise_is_found(train_gpt, result):
    far = replace(result, name="torch", losses=[4.0, 3.001])
    assert train_gpt.check_twin(result, replace(far, losses=[4.0, 3.0001])).holds
    check = train_gpt.check_twin(result, far)
    assert not check.holds and str(check).startswith("BROKEN")


@pytest.mark.parametrize("held_out_loss", [2.9, 3.1])
def test_a_broken_fp8_promise_is_found(train_gpt, result, held_out_loss):
    close = replace(result, name="delayed", held_out_loss=3.05)
    assert train_gpt.check_recipe(close, result).holds
    far = replace(close, held_out_loss=held_out_loss)
    assert not train_gpt.check_recipe(far, result).holds
    assert train_gpt.check_recipe(replace(far, name="nvfp4"), result).holds  # 3.3 % of 4 %


@pytest.mark.parametrize(
    "change", [{"resumes_bitwise": False}, {"losses": [4.0, float("nan")]}], ids=["resume", "nan"]
)
def test_a_broken_promise_makes_the_exit_code_1(train_gpt, result, monkeypatch, tmp_path, change):
    arguments = ["--recipe", "bf16", "--output", str(tmp_path)]
    good = replace(result, name="bf16")
    monkeypatch.setattr(train_gpt, "train", lambda jobs, workers: {"bf16": good})
    assert train_gpt.main(arguments) == 0
    bad = replace(good, **change)
    monkeypatch.setattr(train_gpt, "train", lambda jobs, workers: {"bf16": bad})
    assert train_gpt.main(arguments) == 1


def test_without_matplotlib_only_the_picture_is_missing(
    train_gpt, result, monkeypatch, capsys, tmp_path
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    train_gpt.write_files(tmp_path, [result], "report")
    assert "No losses.png: matplotlib is not installed" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "losses.csv",
        "report.txt",
        "sample_fp32.txt",
    ]


def test_without_rich_progress_is_printed_in_lines(train_gpt, monkeypatch, capsys):
    from char_gpt import progress

    jobs = train_gpt.make_jobs(train_gpt.parse_arguments(["--recipe", "bf16"]))
    monkeypatch.setattr(progress, "has_rich", False)
    lines = train_gpt.make_progress(jobs)
    lines.step("bf16", 1, 4.5)
    text = capsys.readouterr().out
    assert "rich is not installed" in text and "BF16: step 1 of 500, loss 4.500" in text


def test_the_same_held_out_text_in_every_run_and_none_of_it_in_training(train_gpt):
    corpus = train_gpt.load_corpus()
    assert len(corpus.train) > 5 * len(corpus.held_out) > 100_000
    held_out = corpus.decode(corpus.held_out)
    assert corpus.decode(corpus.encode(held_out[:100])) == held_out[:100]
    page = held_out[:400]
    assert page not in corpus.decode(corpus.train)
