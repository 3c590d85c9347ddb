# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tools of the build: what they find, on small made-up files."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import check_headers
import cmake_build
import cuda_toolkit
import dependencies
import pytest
import tree_stats

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Copyright (c) 2026, The Transformer Engine Project Authors.\n"
IDENTIFIER = "# SPDX-License-Identifier: Apache-2.0\n"


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        (HEADER + IDENTIFIER, True),
        ("#!/usr/bin/env bash\n" + HEADER + IDENTIFIER, True),
        ((HEADER + IDENTIFIER).replace("#", "//"), True),
        ("", False),
        (HEADER, False),
        ("\n" + HEADER + IDENTIFIER, False),
        (HEADER + IDENTIFIER.replace("#", "//"), False),
        (HEADER + IDENTIFIER.replace("Apache-2.0", "MIT"), False),
    ],
)
def test_the_header_check_finds_files_without_the_header(tmp_path, text, is_right):
    path = tmp_path / "a.py"
    path.write_text(text)
    assert check_headers.files_without_header([path]) == ([] if is_right else [path])


def make_tool(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return path


@pytest.fixture
def only_path(tmp_path, monkeypatch):
    """A folder that is all of PATH, with an interpreter that has no tool beside it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere" / "python"))
    return tmp_path


def test_missing_tools_are_named_as_requirements(only_path):
    assert cmake_build.missing_tools() == ["cmake>=3.21", "ninja>=1.10"]
    with pytest.raises(
        RuntimeError, match=r"no cmake of version 3\.21 or newer.*pip install cmake"
    ):
        cmake_build.require_tool("cmake")


@pytest.mark.parametrize(
    ("script", "is_usable"),
    [
        ("echo cmake version 3.21.0", True),
        ("echo cmake version 4.0.1", True),
        ("echo cmake version 3.18.4", False),
        ("echo cmake version 3.30.0; exit 1", False),  # a wrapper that lost its package
    ],
)
def test_a_tool_counts_when_it_runs_and_is_new_enough(only_path, script, is_usable):
    tool = make_tool(only_path, "cmake", script + "\n")
    assert cmake_build.find_tool("cmake") == (str(tool) if is_usable else None)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [(None, True), ("", True), ("all", True), ("jax, pytorch", True), ("none", False)],
)
def test_nvte_framework_chooses_the_binding(monkeypatch, text, wanted):
    monkeypatch.delenv("NVTE_FRAMEWORK", raising=False)
    if text is not None:
        monkeypatch.setenv("NVTE_FRAMEWORK", text)
    assert cmake_build.wants_torch() is wanted


def test_the_torch_of_this_interpreter_is_found_with_its_version():
    torch = pytest.importorskip("torch")
    folder = cmake_build.find_torch_dir()
    assert folder == Path(torch.__file__).parent
    assert cmake_build.read_torch_version(folder) == torch.__version__


def test_the_torch_of_the_outer_environment_is_found_in_an_isolated_build(tmp_path):
    """As pip does it: a sitecustomize on PYTHONPATH hides the site-packages."""
    torch = pytest.importorskip("torch")
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n"
    )
    code = "import importlib.util, cmake_build\n"
    code += "print(importlib.util.find_spec('torch'), cmake_build.find_torch_dir())"
    paths = os.pathsep.join([str(tmp_path), str(ROOT / "build_tools")])
    command = [sys.executable, "-c", code]
    environment = os.environ | {"PYTHONPATH": paths}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["None", str(Path(torch.__file__).parent)]


def test_line_counts_of_a_python_file(tmp_path):
    path = tmp_path / "a.py"
    path.write_text('"""Doc."""\nimport os\n\n# why\nx = """\n# no comment\n"""\n')
    stats = tree_stats.read_file(path)
    assert (stats.docs, stats.comments, stats.code) == (1, 1, 4)
    assert stats.compared == ['x = """', "# no comment"]


def test_line_counts_of_a_cpp_file(tmp_path):
    path = tmp_path / "a.h"
    path.write_text('#include <a>\n// why\n/* and\n   how */\nint x;  // x\nauto s = "// no";\n}\n')
    stats = tree_stats.read_file(path)
    assert (stats.comments, stats.code) == (3, 4)
    assert stats.compared == ["int x;", 'auto s = "// no";']


def test_repeated_lines_count_from_six_on(tmp_path):
    def stats_of(name: str, count: int) -> tree_stats.FileStats:
        (tmp_path / name).write_text("".join(f"x{i} = {i}\n" for i in range(count)))
        return tree_stats.read_file(tmp_path / name)

    assert tree_stats.repeated_share([stats_of("a.py", 5), stats_of("b.py", 5)]) == 0
    assert tree_stats.repeated_share([stats_of("a.py", 6), stats_of("b.py", 9)]) == 80.0


def test_the_numbers_of_this_tree_are_there():
    numbers = tree_stats.measure()
    assert numbers["files"][0] > 50
    assert numbers["functions"][0] > 100


def test_cycles_are_whole_groups_and_the_largest_comes_first():
    graph = {"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"e"}, "e": {"c", "a"}, "f": {"a"}}
    assert list(dependencies.cycles(graph)) == [["c", "d", "e"], ["a", "b"]]


def test_the_benchmark_runner_finds_files_and_refuses_an_unknown_word(capsys):
    path = ROOT / "benchmarks" / "__main__.py"
    spec = importlib.util.spec_from_file_location("benchmark_runner", path)
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    assert "benchmarks.kernels.bench_cast" in runner.benchmark_modules()
    assert runner.main(["no such benchmark", "--rounds", "1"]) == 2
    assert "benchmarks.kernels.bench_cast" in capsys.readouterr().out


def make_toolkit(folder, version=13000, has_compiler=True):
    (folder / "include").mkdir(parents=True)
    (folder / "include" / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {version}\n")
    if has_compiler:
        (folder / "bin").mkdir()
        (folder / "bin" / "nvcc").write_text("")
    return folder


def test_a_cuda_toolkit_is_found_where_cuda_home_says(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(tmp_path / "cuda")))
    assert cuda_toolkit.find_toolkit() == tmp_path / "cuda"


@pytest.mark.parametrize(
    ("version", "has_compiler", "is_complete"),
    [(13000, True, True), (12080, True, True), (12060, True, False), (13000, False, False)],
)
def test_a_cuda_toolkit_needs_a_compiler_and_a_version(
    tmp_path, version, has_compiler, is_complete
):
    toolkit = make_toolkit(tmp_path / "cuda", version, has_compiler)
    assert cuda_toolkit.is_complete(toolkit) is is_complete


def test_a_missing_cuda_toolkit_is_reported_with_a_remedy(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cuda_toolkit, "candidates", lambda: [tmp_path])
    monkeypatch.setattr("sys.argv", ["cuda_toolkit.py"])
    assert cuda_toolkit.main() == 1
    assert "Set CUDA_HOME or pass --fetch" in capsys.readouterr().err
