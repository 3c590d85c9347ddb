# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The test scripts of qa/: they run from any folder, skip with a reason, and report failures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run_script(name: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {"PYTHON": sys.executable, "XML_LOG_DIR": str(tmp_path / "logs")} | environment
    return subprocess.run(
        ["bash", str(ROOT / "qa" / name / "test.sh")],
        env={key: text for key, text in os.environ.items() if key != "QA_STRICT"} | settings,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def bare_python(tmp_path) -> str:
    """An interpreter without any installed package."""
    path = tmp_path / "bare_python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("name", "need"),
    [
        ("L0_pytorch_unittest", "needs the Python module torch"),
        ("L0_pytorch_lint", "needs the Python module ruff"),
        ("L1_megatron_core", "needs the Python module torch"),
    ],
)
def test_a_missing_need_is_a_skip_with_a_reason(tmp_path, bare_python, name, need):
    result = run_script(name, tmp_path, PYTHON=bare_python)
    assert result.returncode == 0, result.stderr
    assert f"SKIP {name}: {need}" in result.stdout


@pytest.mark.parametrize(
    ("name", "need"),
    [("L0_cuda_emulated", "needs CUDA's headers"), ("L0_cuda_compile", "needs nvcc")],
)
def test_a_missing_cuda_toolkit_is_a_skip_with_a_reason(tmp_path, name, need):
    # An interpreter that finds no toolkit and cannot fetch one.
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    result = run_script(name, tmp_path, PYTHON=str(python))
    assert result.returncode == 0, result.stderr
    assert f"SKIP {name}: {need}" in result.stdout


def test_a_missing_compiler_is_a_skip_with_a_reason(tmp_path):
    result = run_script("L0_cppunittest", tmp_path, CXX="no-such-compiler")
    assert result.returncode == 0, result.stderr
    assert "SKIP L0_cppunittest: needs the compiler no-such-compiler" in result.stdout


def test_strict_mode_makes_a_skip_a_failure(tmp_path, bare_python):
    result = run_script("L0_pytorch_unittest", tmp_path, PYTHON=bare_python, QA_STRICT="1")
    assert result.returncode == 1
    assert "QA_STRICT" in result.stdout


def test_the_header_check_passes_on_this_tree(tmp_path):
    if not (ROOT / ".git").exists():
        pytest.skip("the source tree is no git checkout")
    result = run_script("L0_license", tmp_path)
    assert result.returncode == 0, result.stdout


def test_failures_are_collected_and_named(tmp_path):
    """Every case runs; the end names those that failed."""
    script = tmp_path / "L0_sample" / "test.sh"
    script.parent.mkdir()
    script.write_text(
        f'. "{ROOT}/qa/support.sh"\n'
        "run_case first false\nrun_case second echo ran second\nrun_case third false\nfinish\n"
    )
    environment = os.environ | {"XML_LOG_DIR": str(tmp_path / "logs"), "PYTHON": sys.executable}
    command = ["bash", str(script)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 1
    assert "ran second" in result.stdout
    assert result.stdout.splitlines()[-1] == "FAIL L0_sample: first third"


def test_the_gpu_run_skips_without_a_gpu(tmp_path):
    result = subprocess.run(
        ["bash", str(ROOT / "qa" / "L0_cuda" / "run.sh")],
        env={key: text for key, text in os.environ.items() if key != "QA_STRICT"}
        | {"PYTHON": sys.executable, "OUT": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert "SKIP L0_cuda: needs a GPU that torch can use" in result.stdout


STUB = """#!/bin/sh
echo "called: $*" >> "$CALLS"
case "$*" in
  *is_available*) exit 0 ;;
  *get_device_capability*) echo 90 ;;
  *find_spec*) exit 0 ;;
  *measure.py*) echo "{}" > "$OUT/cuda.json"; exit 1 ;;
  *) exit 1 ;;
esac
"""


def test_the_gpu_run_goes_on_after_failures_and_leaves_its_log(tmp_path):
    """With an interpreter that finds a GPU and fails whatever it is asked to do there."""
    python, out, calls = tmp_path / "python", tmp_path / "out", tmp_path / "calls"
    python.write_text(STUB)
    python.chmod(0o755)
    tree = tmp_path / "tree"
    (tree / "qa").mkdir(parents=True)
    for name in ("support.sh", "L0_cuda"):
        (tree / "qa" / name).symlink_to(ROOT / "qa" / name)
    settings = {"PYTHON": str(python), "OUT": str(out), "CALLS": str(calls), "TE_PATH": str(tree)}
    result = subprocess.run(
        ["bash", str(tree / "qa" / "L0_cuda" / "run.sh")],
        env={key: text for key, text in os.environ.items() if key != "QA_STRICT"} | settings,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1, result.stdout + result.stderr
    failed = "build build without C++ tests report parity measure graphs tests"
    last = f"FAIL L0_cuda: {failed}"
    assert result.stdout.splitlines()[-1] == last
    assert (out / "run.log").read_text().splitlines()[-1] == last
    assert sorted(path.name for path in out.iterdir()) == ["cuda.json", "run.log"]
    made = calls.read_text()
    for part in ("cmake_build.py --tests", "compare_devices.py", "-n 8", "tests/pytorch/cuda"):
        assert part in made, part


def test_the_comparison_of_devices_goes_on_after_an_error(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "qa" / "L0_cuda"))
    compare = pytest.importorskip("compare_devices")
    good = compare.attempt("a", lambda: compare.Outcome("a", 0.5, 1.0))
    assert good.is_good and str(good) == "ok   a: 0.5 (limit 1)"

    def fail() -> None:
        raise ValueError("no kernel")

    bad = compare.attempt("b", fail)
    assert not bad.is_good and str(bad) == "FAIL b: ValueError: no kernel"
    assert not compare.Outcome("c", float("nan"), 1.0).is_good


def test_measurements_go_on_after_an_error(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "qa" / "L0_cuda"))
    measure = pytest.importorskip("measure")

    def fail() -> None:
        raise RuntimeError("no algorithm")

    device = pytest.importorskip("torch").device("cpu")
    times, errors = measure.in_turns({"fails": fail, "works": lambda: None}, device)
    assert set(times) == {"works"} and errors == {"fails": "RuntimeError: no algorithm"}
    assert measure.as_table(
        [{"case": "x", "error": errors["fails"]}, {"case": "y", "us": 2.0}]
    ) == ("x: error RuntimeError: no algorithm\ny: us 2\n")


@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        ("compare_devices.py", (), "ok   LayerNormMLP nvfp4: 0 (limit 0.25)"),
        ("measure.py", ("--size", "64x64", "--product", "64"), "host Linear forward BF16"),
    ],
)
def test_the_scripts_of_the_gpu_run_work_on_the_cpu(tmp_path, script, arguments, words):
    result = subprocess.run(
        [sys.executable, str(ROOT / "qa" / "L0_cuda" / script), "--device", "cpu", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert words in result.stdout
