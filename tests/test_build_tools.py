# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tools of the build: what they find, on small made-up files."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import check_headers
import cmake_build
import cublas_headers
import cuda_compile
import cuda_toolkit
import cudnn_headers
import dependencies
import offline_kit
import pytest
import tree_stats
import wheel_headers

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


def ptxas_log(name, architecture, registers=32, shared="", spilled=0):
    return (
        f"ptxas info    : Compiling entry function '{name}' for '{architecture}'\n"
        f"ptxas info    : Function properties for {name}\n"
        f"    {2 * spilled} bytes stack frame, {spilled} bytes spill stores, "
        f"{spilled + 4 if spilled else 0} bytes spill loads\n"
        f"ptxas info    : Used {registers} registers, used 1 barriers{shared}\n"
        "ptxas info    : Compile time = 21.5 ms\n"
    )


def test_figures_are_read_from_what_ptxas_prints():
    log = "a.cu: remark\nptxas info    : 0 bytes gmem\n"
    log += ptxas_log("_Z1aPf", "sm_80", 40, ", 96 bytes cumulative stack size, 4352 bytes smem", 48)
    log += ptxas_log("k", "sm_80")
    log += "ptxas info    : Function properties for _Z6calledf\n"
    log += "    160 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    log += ptxas_log("_Z1aPf", "sm_90a", 24, ", 16 bytes smem, 400 bytes cmem[0]")
    assert cuda_compile.parse_ptxas(log) == {
        "_Z1aPf": {
            "sm_80": cuda_compile.Figures(40, 4352, 96, 48, 52),
            "sm_90a": cuda_compile.Figures(24, 16, 0, 0, 0),
        },
        "k": {"sm_80": cuda_compile.Figures(32, 0, 0, 0, 0)},
        "_Z6calledf": {"sm_80": cuda_compile.Figures(stack_bytes=160)},
    }


def test_functions_that_kernels_call_are_no_kernels_of_the_record(tmp_path):
    log = ptxas_log("k", "sm_80")
    log += "ptxas info    : Function properties for called\n"
    log += "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    file = compiled(tmp_path / "x.cu", log)
    record = json.loads(cuda_compile.to_json("13.0", [file]))
    assert list(record["files"]["x.cu"]["kernels"]) == ["k"]
    assert "x.cu                           1" in cuda_compile.to_table([file])
    committed = json.loads((ROOT / "benchmarks" / "results" / "cuda_kernels.json").read_text())
    for content in committed["files"].values():
        for name, by_architecture in content["kernels"].items():
            assert all(figures[0] > 0 for figures in by_architecture.values()), name


@pytest.mark.parametrize(
    ("demangled", "compact"),
    [
        ("te::cuda::(anonymous namespace)::scale_of(float const*, long)", "scale_of"),
        ("void te::cuda::a<(te::DType)3, false, 16>(float*)", "a<(DType)3,false,16>"),
        (
            "void te::(anonymous namespace)::a<te::Source<__half>, (anonymous namespace)::B>"
            "(te::Source<__half>, void (*)(int))",
            "a<Source<fp16>,B>",
        ),
        ("plain_name", "plain_name"),
    ],
)
def test_kernel_names_are_compact(demangled, compact):
    assert cuda_compile.compact_name(demangled) == compact


def test_kernels_whose_compact_names_are_equal_keep_their_whole_ones():
    if shutil.which("c++filt") is None:
        pytest.skip("c++filt is required; Debian: apt-get install binutils")
    names = cuda_compile.compact_names(["_ZN1n1aEf", "_ZN1n1aEi", "_ZN1n1bEi", "plain"])
    assert names == {
        "_ZN1n1aEf": "n::a(float)",
        "_ZN1n1aEi": "n::a(int)",
        "_ZN1n1bEi": "b",
        "plain": "plain",
    }


def test_a_spill_is_reported_unless_its_reason_is_given(monkeypatch):
    log = ptxas_log("quick", "sm_80") + ptxas_log("slow", "sm_80", 255, spilled=8)
    kernels = cuda_compile.parse_ptxas(log)
    kernels = {f"{name}<float>": figures for name, figures in kernels.items()}
    (problem,) = cuda_compile.check_spills(kernels)
    assert problem.startswith(
        "slow<float> spills on sm_80: 8 bytes stored, 12 loaded, 255 registers"
    )
    monkeypatch.setattr(cuda_compile, "ALLOWED_SPILLS", {"slow": "runs once", "quick": "was slow"})
    assert list(cuda_compile.check_spills(kernels)) == []
    (problem,) = cuda_compile.check_allowed_spills([kernels])
    assert problem == "ALLOWED_SPILLS names quick, which does not spill; remove the entry."


def compiled(source: Path, log: str, succeeded: bool = True) -> cuda_compile.Compiled:
    object_file = source.with_suffix(".o")
    object_file.write_bytes(bytes(2000))
    kernels = cuda_compile.parse_ptxas(log)
    return cuda_compile.Compiled(source, object_file, succeeded, log, 1.25, kernels)


def test_a_failed_compilation_is_reported_without_the_figures(tmp_path):
    log = ptxas_log("a", "sm_80") + 'x.cu(3): error: identifier "y" is undefined\n'
    (problem,) = cuda_compile.check_compiled(compiled(tmp_path / "x.cu", log, succeeded=False))
    assert problem == 'x.cu does not compile:\nx.cu(3): error: identifier "y" is undefined'


def test_a_file_without_a_kernel_for_an_architecture_is_reported(tmp_path):
    log = ptxas_log("a", "sm_80") + ptxas_log("a", "sm_90a")
    problems = list(cuda_compile.check_compiled(compiled(tmp_path / "x.cu", log)))
    assert problems == ["x.cu: ptxas reported no kernel for sm_100a"]
    assert list(cuda_compile.check_compiled(compiled(tmp_path / "host.cpp", ""))) == []


def test_the_record_and_the_table_hold_what_was_measured(tmp_path):
    log = "".join(ptxas_log("a", name, 33) for name in cuda_compile.ARCHITECTURES)
    log += "".join(ptxas_log("b", name, 90) for name in cuda_compile.ARCHITECTURES)
    cached = compiled(tmp_path / "host.cpp", "")
    cached.cpu_seconds = None
    files = [compiled(tmp_path / "x.cu", log), cached]
    record = json.loads(cuda_compile.to_json("13.0.88", files))
    assert record["compiler"] == "nvcc 13.0.88"
    assert record["object_bytes"] == 4000
    assert record["files"]["host.cpp"] == {
        "object_bytes": 2000,
        "cpu_seconds": None,
        "kernels": {},
    }
    figures = dict(
        zip(record["figures"], record["files"]["x.cu"]["kernels"]["b"]["sm_90a"], strict=True)
    )
    assert figures["registers"] == 90
    lines = [line.split() for line in cuda_compile.to_table(files).splitlines()]
    assert ["x.cu", "2", "90", "90", "90", "0", "0", "0", "2.0", "1.2"] in lines
    assert ["host.cpp", "0", "0", "0", "0", "0", "0", "0", "2.0", "ccache"] in lines
    assert lines.index(["90", "90", "90", "b"]) < lines.index(["33", "33", "33", "a"])


SASS = """
\t\tFunction : _Z4castIN8numerics4E4M3EEvPf
        /*0090*/                   F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C R5, R4, R7, RZ ;
        /*00a0*/                   F2FP.BF16.F32.PACK_AB R5, R4, R7 ;
\t\tFunction : _Z4castIN8numerics4E5M2EEvPf
        /*0090*/                   F2FP.F16.F32.PACK_AB R5, R4, R7 ;
\t\tFunction : _Z4castIN8numerics4E2M1EEvPf
        /*0090*/                   F2FP.SATFINITE.E2M1.F32.PACK_AB_MERGE_C R5, R4, R7, RZ ;
"""


def test_conversion_instructions_are_found_per_kernel():
    found = cuda_compile.parse_conversions(SASS.splitlines())
    assert list(found.values()) == [{"E4M3"}, set(), {"E2M1"}]


def test_a_kernel_of_a_format_without_its_instruction_is_reported(tmp_path):
    found = {tmp_path / "x.cu": cuda_compile.parse_conversions(SASS.splitlines())}
    (problem,) = cuda_compile.check_conversions("sm_90a", found)
    assert "E5M2" in problem and "emulated" in problem
    emulated = {path: {name: set() for name in kernels} for path, kernels in found.items()}
    assert len(list(cuda_compile.check_conversions("sm_100a", emulated))) == 3
    assert len(list(cuda_compile.check_conversions("sm_90a", emulated))) == 2
    assert list(cuda_compile.check_conversions("sm_80", emulated)) == []


def test_a_source_that_calls_a_codec_needs_its_instruction_in_some_kernel(tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_compile, "COMMON", tmp_path)
    (tmp_path / "pack.h").write_text("// not encode_fp8\nauto code = encode_e2m1_pair(a, b);\n")
    sources = [tmp_path / "a.cu", tmp_path / "b.cu"]
    for source in sources:
        source.write_text('#include "pack.h"\n')
    has_it = {sources[0]: {"k": set()}, sources[1]: {"k": {"E2M1"}}}
    assert list(cuda_compile.check_conversions("sm_100a", has_it)) == []
    lacks_it = {source: {"k": {"E4M3"}} for source in sources}
    (problem,) = cuda_compile.check_conversions("sm_100a", lacks_it)
    assert problem.startswith("pack.h converts E2M1, but no kernel on sm_100a")
    assert list(cuda_compile.check_conversions("sm_90a", lacks_it)) == []


def test_a_disassembler_needs_both_of_its_programs(tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_compile.cuda_toolkit, "DISASSEMBLER", tmp_path / "none")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    (tmp_path / "bin").mkdir()
    tool = make_tool(tmp_path / "bin", "cuobjdump", "exit 0\n")
    assert cuda_compile.find_disassembler(tmp_path) is None
    make_tool(tmp_path / "bin", "nvdisasm", "exit 0\n")
    assert cuda_compile.find_disassembler(tmp_path) == tool


def test_a_disassembler_that_fails_is_no_silent_success(tmp_path):
    tool = make_tool(tmp_path, "cuobjdump", "exit 3\n")
    with pytest.raises(RuntimeError, match=r"sm_90a.*x\.o failed with status 3"):
        cuda_compile.read_conversions(tool, tmp_path / "x.o", "sm_90a")


def test_every_cuda_source_is_compiled_for_every_architecture():
    sources = cuda_compile.find_sources([])
    assert {"cast.cu", "runtime.cpp"} <= {path.name for path in sources}
    command = cuda_compile.compile_command(Path("/toolkit"), sources[0], Path("x.o"))
    assert "arch=compute_90a,code=sm_90a" in command
    assert [path.name for path in cuda_compile.find_sources(["cast"])] == ["cast.cu"]


@pytest.mark.parametrize(
    ("statistic", "seconds_known"), [("cache_miss", True), ("direct_cache_hit", False)]
)
def test_a_cached_object_has_no_compile_time(tmp_path, monkeypatch, statistic, seconds_known):
    script = f'echo "# x.cu\n{statistic}" > "$CCACHE_STATSLOG"\necho "$1" said\n'
    make_tool(tmp_path, "ccache", script)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    file = cuda_compile.compile_one(tmp_path, cuda_compile.find_sources(["cast.cu"])[0], tmp_path)
    assert file.succeeded
    assert file.log == f"{tmp_path}/bin/nvcc said\n"
    assert (file.cpu_seconds is not None) is seconds_known


def test_cublas_headers_are_kept_from_a_wheel_and_found(tmp_path, monkeypatch):
    wheel = tmp_path / "nvidia_cublas.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("nvidia/cu13/include/cublasLt.h", "// header")
        archive.writestr("nvidia/cu13/lib/libcublasLt.so.13", "library")
    monkeypatch.setattr(cublas_headers, "FETCHED", tmp_path / "kept")
    monkeypatch.setattr(cublas_headers, "candidates", lambda: [tmp_path, tmp_path / "kept"])
    assert cublas_headers.find_headers() is None
    wheel_headers.keep_headers(wheel, tmp_path / "kept", is_flat=True)
    assert cublas_headers.find_headers() == tmp_path / "kept"
    assert [file.name for file in (tmp_path / "kept").iterdir()] == ["cublasLt.h"]


def test_missing_cublas_headers_are_reported_with_a_remedy(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cublas_headers, "candidates", lambda: [tmp_path])
    monkeypatch.setattr("sys.argv", ["cublas_headers.py"])
    assert cublas_headers.main() == 1
    assert "Install nvidia-cublas or pass --fetch" in capsys.readouterr().err


def test_cudnn_headers_are_kept_with_their_folders(tmp_path, monkeypatch):
    folder = tmp_path / "cudnn" / "include"
    monkeypatch.setattr(cudnn_headers, "FETCHED", folder)
    frontend, library = tmp_path / "frontend.whl", tmp_path / "library.whl"
    with zipfile.ZipFile(frontend, "w") as archive:
        archive.writestr("include/cudnn_frontend.h", "// header")
        archive.writestr("include/cudnn_frontend/node/softmax.h", "// header")
        archive.writestr("cudnn/wrapper.py", "code")
    with zipfile.ZipFile(library, "w") as archive:
        archive.writestr("nvidia/cudnn_jit/include/cudnn.h", "// header")
        archive.writestr("nvidia/cudnn_jit/lib/libcudnn.so.9", "library")
    cudnn_headers.keep_headers(frontend)
    assert cudnn_headers.find_headers() is None
    cudnn_headers.keep_headers(library)
    assert cudnn_headers.find_headers() == folder
    kept = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))
    assert kept == ["cudnn.h", "cudnn_frontend.h", "cudnn_frontend/node/softmax.h"]


def test_missing_cudnn_headers_are_reported_with_a_remedy(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cudnn_headers, "FETCHED", tmp_path)
    monkeypatch.setattr("sys.argv", ["cudnn_headers.py"])
    assert cudnn_headers.main() == 1
    assert "fused attention is compiled with them. Pass --fetch" in capsys.readouterr().err


def test_the_cuda_backend_is_built_without_cudnn_headers(tmp_path, monkeypatch):
    monkeypatch.setenv("NVTE_USE_CUDA", "1")
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(tmp_path / "cuda")))
    monkeypatch.setattr(cublas_headers, "find_headers", lambda: tmp_path)
    monkeypatch.setattr(cudnn_headers, "find_headers", lambda: None)
    options = cmake_build.cuda_options(tmp_path, "")
    assert options["TE_USE_CUDA"] == "ON" and options["TE_CUDNN_INCLUDE"] == ""


@pytest.mark.parametrize(
    ("line", "is_cuda"),
    [("cuda: Optional[str] = None", False), ("cuda: str | None = '13.0'", True), ("", False)],
)
def test_a_cuda_build_of_torch_is_told_from_its_version_file(tmp_path, line, is_cuda):
    (tmp_path / "version.py").write_text(f"__version__ = '2.13.0'\n{line}\n")
    assert cmake_build.torch_has_cuda(tmp_path) is is_cuda


@pytest.mark.parametrize(("setting", "use"), [("0", "OFF"), ("", "OFF"), ("1", "ON")])
def test_the_cuda_backend_is_built_by_setting_or_by_torch(tmp_path, monkeypatch, setting, use):
    (tmp_path / "version.py").write_text("cuda: Optional[str] = None\n")
    monkeypatch.setenv("NVTE_USE_CUDA", setting)
    monkeypatch.setenv("NVTE_CUDA_ARCHS", "90a")
    monkeypatch.setenv("CUDA_HOME", str(make_toolkit(tmp_path / "cuda")))
    monkeypatch.setattr(cublas_headers, "find_headers", lambda: tmp_path)
    options = cmake_build.cuda_options(tmp_path, "ccache")
    assert options["TE_USE_CUDA"] == use
    assert ("TE_CUDA_ARCHS" in options) == (use == "ON")


def test_a_cuda_backend_that_cannot_be_built_is_an_error_with_a_remedy(monkeypatch):
    monkeypatch.setenv("NVTE_USE_CUDA", "1")
    monkeypatch.setattr(cublas_headers, "find_headers", lambda: None)
    monkeypatch.setattr(cuda_toolkit, "find_toolkit", lambda: ROOT)
    with pytest.raises(RuntimeError, match=r"no cublasLt.h is found.*--fetch"):
        cmake_build.cuda_options(None, "")


def make_package(folder: Path, name: str, module: str) -> None:
    """A package as pip installs it into a folder."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / module).mkdir()
    (folder / module / "__init__.py").touch()
    files = [f"{module}/__init__.py", f"{info.name}/METADATA", f"{info.name}/RECORD"]
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files) + "../bin/tool,,\n")


def test_the_offline_kit_links_what_is_not_installed(tmp_path):
    kit, site = tmp_path / "kit", tmp_path / "site"
    make_package(kit, "lacking-here", "lacking_here")
    make_package(kit, "pytest", "pytest")
    assert offline_kit.link_lacking(kit, site) == ["lacking-here"]
    (site / "__pycache__").mkdir()
    (site / "of an earlier run").symlink_to(kit)
    assert offline_kit.link_lacking(kit, site) == ["lacking-here"]
    assert sorted(file.name for file in site.iterdir()) == [
        ".offline_kit",
        "__pycache__",
        "lacking-here-1.0.dist-info",
        "lacking_here",
    ]
    command = [sys.executable, "-c", "import lacking_here"]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": str(site)}, check=True)
    assert offline_kit.link_lacking(tmp_path / "none", site) == []
    assert sorted(file.name for file in site.iterdir()) == [".offline_kit", "__pycache__"]


def test_the_offline_kit_touches_no_folder_that_it_did_not_make(tmp_path, monkeypatch, capsys):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("all of it")
    (precious / "link").symlink_to(tmp_path)
    for folder in (precious, precious / "thesis.txt"):
        monkeypatch.setattr("sys.argv", ["offline_kit.py", "--link", str(folder)])
        assert offline_kit.main() == 1
        assert f"offline_kit: {folder}" in capsys.readouterr().err
    assert (precious / "thesis.txt").read_text() == "all of it"
    assert sorted(file.name for file in precious.iterdir()) == ["link", "thesis.txt"]


def test_the_offline_kit_refuses_a_kit_for_another_python(tmp_path):
    kit, site = tmp_path / "kit", tmp_path / "site"
    make_package(kit, "lacking-here", "lacking_here")
    (kit / "lacking_here" / "_core.cpython-39-x86_64-linux-gnu.so").touch()
    with pytest.raises(offline_kit.KitError, match=r"is for Python 3\.9; this is .*--python"):
        offline_kit.link_lacking(kit, site)
    assert not site.exists()
    here = "cpython-{}{}".format(*sys.version_info)
    (kit / "lacking_here" / f"_core.{here}-x86_64-linux-gnu.so").touch()
    assert offline_kit.link_lacking(kit, site) == ["lacking-here"]


@pytest.mark.parametrize("status", [0, 1])
def test_the_offline_kit_keeps_what_it_has_until_pip_is_done(tmp_path, monkeypatch, status):
    kit = tmp_path / "3rdparty" / "python"
    kit.mkdir(parents=True)
    (kit / "old").touch()

    def run_pip(command: list[str]) -> subprocess.CompletedProcess[str]:
        target = Path(command[command.index("--target") + 1])
        target.mkdir()
        (target / "new").touch()
        assert (kit / "old").exists()
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(offline_kit.subprocess, "run", run_pip)
    refusal = offline_kit.collect_packages("3.99", kit)
    assert (refusal is None) == (status == 0)
    assert [file.name for file in kit.iterdir()] == ["old" if status else "new"]
    assert list(kit.parent.iterdir()) == [kit]


def test_the_offline_kit_asks_for_the_pinned_packages_of_another_python(tmp_path):
    command = offline_kit.install_command("3.12", tmp_path)
    assert command[command.index("--python-version") + 1] == "3.12"
    names = {line.split(">")[0].split("=")[0] for line in offline_kit.requirements()}
    assert names == set(offline_kit.NAMES)
    assert set(offline_kit.requirements()) <= set(command)


def test_the_offline_kit_says_that_headers_are_missing(monkeypatch):
    monkeypatch.setattr(offline_kit.cudnn_headers, "find_headers", lambda: None)
    monkeypatch.setattr(offline_kit.cudnn_headers, "fetch_headers", lambda: False)
    refusal = offline_kit.collect_cudnn_headers()
    assert refusal is not None and "could not be fetched" in refusal
    monkeypatch.setattr(offline_kit.cudnn_headers, "fetch_headers", lambda: True)
    assert offline_kit.collect_cudnn_headers() is None


def test_the_offline_kit_says_where_googletest_comes_from(tmp_path):
    refusal = offline_kit.collect_googletest(tmp_path, tmp_path / "kept")
    assert refusal is not None and "libgtest-dev" in refusal
    (tmp_path / "CMakeLists.txt").touch()
    assert offline_kit.collect_googletest(tmp_path, tmp_path.parent / "kept") is None
    assert (tmp_path.parent / "kept" / "CMakeLists.txt").is_file()


def test_programs_for_a_gpu_link_no_stand_in():
    """Test files that need a stand-in for a library are no part of a GPU's programs."""
    folder = ROOT / "tests" / "cpp"
    rule = re.search(
        r'FILTER cuda_test_sources EXCLUDE REGEX "([^"]+)"', (folder / "CMakeLists.txt").read_text()
    )
    assert rule is not None
    for path in sorted((folder / "cuda").glob("*.cpp")):
        emulated = r"#if defined\(TE_CUDA_EMULATED\).*?#(else|endif)"
        text = re.sub(emulated, "", path.read_text(), flags=re.DOTALL)
        is_left_out = re.search(rule.group(1), path.as_posix()) is not None
        assert is_left_out or '"cuda/fake_' not in text, path.name
