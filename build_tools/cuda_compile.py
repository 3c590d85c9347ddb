# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compile the CUDA sources as a release does, and say what their kernels take. Needs no GPU.

    python build_tools/cuda_compile.py [--output FOLDER] [--fetch] [names]

Compiles every .cu and .cpp file under transformer_engine/common/cuda (or those with one of the
names in their path) for sm_80, sm_90a and sm_100a with warnings as errors, through ccache where it
is installed, MAX_JOBS files at a time (default 2). Writes FOLDER/cuda_kernels.json and .txt
(default: build/logs): per kernel and architecture what ptxas reports, per file the size of the
object and the seconds that compiling took. Fails where

  - a file does not compile, or a .cu file has no kernel for an architecture;
  - a kernel spills registers and ALLOWED_SPILLS gives no reason, or a reason is not needed;
  - the machine code of a kernel of an FP8 or FP4 format lacks that format's conversion instructions
    on an architecture that has them (emulation takes many instructions instead of one). cuobjdump
    reads it: the toolkit's, one on PATH, triton's, or with --fetch the pinned one of
    requirements-cuda-disassembler.txt; without one this part is skipped, with a notice.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path

import cublas_headers
import cuda_toolkit
import cudnn_headers

ROOT = cuda_toolkit.ROOT
COMMON = ROOT / "transformer_engine" / "common"
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")
MOST_REGISTERS_SHOWN = 12

# Kernels that may spill: the name without template arguments, and why that is no loss.
ALLOWED_SPILLS: dict[str, str] = {}

# The architectures with conversion instructions of a format (F2FP.<...>.<format>.<...>).
CONVERTING = {
    "E4M3": ("sm_90a", "sm_100a"),
    "E5M2": ("sm_90a", "sm_100a"),
    "E2M1": ("sm_100a",),
}
# A source that calls these functions of device/convert.h needs one of the formats' instructions.
# E2M1 is decoded by arithmetic everywhere.
CODECS = {r"\b(en|de)code_fp8": ("E4M3", "E5M2"), r"\bencode_e2m1_pair": ("E2M1",)}


@dataclass(frozen=True)
class Figures:
    """What ptxas says of one kernel on one architecture."""

    registers: int = 0
    shared_bytes: int = 0  # static
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0

    @property
    def spills(self) -> bool:
        return self.spill_store_bytes + self.spill_load_bytes != 0


KernelFigures = dict[str, dict[str, Figures]]  # by name, then architecture


@dataclass
class Compiled:
    """One file: what its compiler said."""

    source: Path
    object_file: Path
    succeeded: bool
    log: str
    cpu_seconds: float | None  # user time; None where ccache had the object
    kernels: KernelFigures = field(default_factory=dict)  # names as the linker knows them

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def object_bytes(self) -> int:
        return self.object_file.stat().st_size if self.succeeded else 0


_ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def parse_ptxas(log: str) -> KernelFigures:
    """The figures in what `ptxas -v` prints.

    A function that kernels call (not inlined) has a frame and spills of its own: it is listed like
    a kernel, with 0 registers.
    """
    kernels: KernelFigures = {}
    name = architecture = ""
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            name, architecture = match.groups()
        elif match := _PROPERTIES.search(line):
            name = match[1]
        elif match := _FRAME.search(line):
            stack, stores, loads = map(int, match.groups())
            figures = Figures(stack_bytes=stack, spill_store_bytes=stores, spill_load_bytes=loads)
            kernels.setdefault(name, {})[architecture] = figures
        elif match := _USED.search(line):
            shared = _SHARED.search(line)
            kernels[name][architecture] = replace(
                kernels[name][architecture],
                registers=int(match[1]),
                shared_bytes=int(shared[1]) if shared else 0,
            )
    return kernels


def compact_name(demangled: str) -> str:
    """A demangled name without result, arguments and namespaces, and with short type names."""
    text = demangled.replace("(anonymous namespace)::", "")
    depth = start = 0
    end = len(text)
    for i, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if depth == 0 and letter == "(":
            end = i
            break
        if depth == 0 and letter == " ":
            start = i + 1
    text = re.sub(r"\b[a-z][a-z0-9_]*::", "", text[start:end])
    return text.replace("__nv_bfloat16", "bf16").replace("__half", "fp16").replace(", ", ",")


def base_name(compact: str) -> str:
    return compact.split("<")[0]


def compact_names(mangled: Iterable[str]) -> dict[str, str]:
    """Mangled names to compact ones; to the whole demangled ones where two would be the same."""
    names = list(dict.fromkeys(mangled))
    demangler = shutil.which("c++filt")
    if demangler is None or not names:
        return {name: name for name in names}
    command = [demangler]
    output = subprocess.run(command, input="\n".join(names), capture_output=True, text=True)
    whole = dict(zip(names, output.stdout.splitlines(), strict=True))
    compact = {name: compact_name(text) for name, text in whole.items()}
    shown = list(compact.values())
    return {n: compact[n] if shown.count(compact[n]) == 1 else whole[n] for n in names}


def find_sources(names: list[str]) -> list[Path]:
    found = [*COMMON.glob("cuda/**/*.cu"), *COMMON.glob("cuda/**/*.cpp")]
    return sorted(path for path in found if not names or any(n in str(path) for n in names))


def compile_command(toolkit: Path, source: Path, object_file: Path) -> list[str]:
    command = [str(toolkit / "bin" / "nvcc"), "-std=c++20", "-c", "-O3", "--fmad=false"]
    for name in ARCHITECTURES:
        command += ["-gencode", f"arch={name.replace('sm', 'compute')},code={name}"]
    command += ["-Werror", "all-warnings", "-Xcompiler=-Wall,-Wextra"]
    # -isystem: the host compiler warns of unused parameters in CUDA's own headers, which nvcc
    # gives to it as if they were the project's.
    command += ["-Xptxas", "-v", "--compress-mode=size", "-isystem", str(toolkit / "include")]
    for headers in (cublas_headers.find_headers(), cudnn_headers.find_headers()):
        command += ["-isystem", str(headers)] if headers is not None else []
    return [*command, f"-I{COMMON}", f"-I{COMMON}/include", str(source), "-o", str(object_file)]


def run_timed(command: list[str], environment: Mapping[str, str]) -> tuple[int, str, float]:
    """Exit status, output, and user seconds of a command with the processes that it started."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        return process.returncode, output.read(), usage.ru_utime


def compile_one(toolkit: Path, source: Path, folder: Path) -> Compiled:
    stem = "_".join(source.relative_to(COMMON / "cuda").parts)
    object_file, ccache_log = folder / f"{stem}.o", folder / f"{stem}.ccache"
    ccache_log.unlink(missing_ok=True)
    ccache = shutil.which("ccache")
    command = compile_command(toolkit, source, object_file)
    environment = os.environ | {"CCACHE_STATSLOG": str(ccache_log)}
    status, log, seconds = run_timed([ccache, *command] if ccache else command, environment)
    was_cached = ccache_log.is_file() and re.search(
        r"^\w+_cache_hit$", ccache_log.read_text(), re.M
    )
    return Compiled(
        source, object_file, status == 0, log, None if was_cached else seconds, parse_ptxas(log)
    )


def check_compiled(file: Compiled) -> Iterator[str]:
    """What is wrong with the compilation itself."""
    if not file.succeeded:
        noise = re.compile(r"ptxas info|bytes stack frame")
        lines = [line for line in file.log.splitlines() if not noise.search(line)]
        yield f"{file.name} does not compile:\n" + "\n".join(lines[:60])
    elif file.source.suffix == ".cu":
        seen = {name for figures in file.kernels.values() for name in figures}
        for architecture in ARCHITECTURES:
            if architecture not in seen:
                yield f"{file.name}: ptxas reported no kernel for {architecture}"


def check_spills(kernels: KernelFigures) -> Iterator[str]:
    """Kernels (compact names) that spill without a reason."""
    for name, by_architecture in kernels.items():
        for architecture, figures in by_architecture.items():
            if figures.spills and base_name(name) not in ALLOWED_SPILLS:
                yield (
                    f"{name} spills on {architecture}: {figures.spill_store_bytes} bytes stored, "
                    f"{figures.spill_load_bytes} loaded, {figures.registers} registers; a kernel "
                    "must keep its values in registers. Lower the elements per thread, or name the "
                    "kernel and a reason in ALLOWED_SPILLS."
                )


def check_allowed_spills(all_kernels: Iterable[KernelFigures]) -> Iterator[str]:
    """Reasons that nothing needs any more."""
    spilling = {
        base_name(name)
        for kernels in all_kernels
        for name, by_architecture in kernels.items()
        if any(figures.spills for figures in by_architecture.values())
    }
    for name in sorted(ALLOWED_SPILLS.keys() - spilling):
        yield f"ALLOWED_SPILLS names {name}, which does not spill; remove the entry."


def find_disassembler(toolkit: Path) -> Path | None:
    """cuobjdump with the nvdisasm that it calls."""
    fetched = cuda_toolkit.DISASSEMBLER.glob("nvidia/cu*/bin")
    # Not imported: triton's folder is enough, and it may belong to a torch for another CUDA.
    triton = [Path(entry, "triton/backends/nvidia/bin") for entry in sys.path]
    on_path = [Path(entry) for entry in os.get_exec_path()]
    for folder in [toolkit / "bin", *on_path, *fetched, *triton]:
        if (folder / "cuobjdump").is_file() and (folder / "nvdisasm").is_file():
            return folder / "cuobjdump"
    return None


def parse_conversions(lines: Iterable[str]) -> dict[str, set[str]]:
    """Per kernel in `cuobjdump -sass` output: the formats that its instructions convert."""
    found: dict[str, set[str]] = {}
    formats: set[str] = set()
    for line in lines:
        if "F2FP." in line:
            instruction = line[line.index("F2FP.") :].split()[0].split(".")
            formats.update(CONVERTING.keys() & set(instruction))
        elif "Function : " in line:
            formats = found.setdefault(line.split("Function : ")[1].strip(), set())
    return found


def read_conversions(
    disassembler: Path, object_file: Path, architecture: str
) -> dict[str, set[str]]:
    environment = os.environ | {
        "PATH": os.pathsep.join([str(disassembler.parent), os.environ.get("PATH", "")])
    }
    command = [str(disassembler), "-sass", "-arch", architecture, str(object_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        found = parse_conversions(process.stdout or ())
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed with status {process.returncode}")
    return found


def included_sources(source: Path) -> set[Path]:
    """The file and all headers of the core that it includes, directly or not."""
    found: set[Path] = set()
    pending = [source]
    while pending:
        path = pending.pop()
        if path.is_file() and path not in found:
            found.add(path)
            names = re.findall(r'^#include "(\S+)"', path.read_text(), re.M)
            pending += [COMMON / name for name in names]
    return found


def required_by_sources(sources: Iterable[Path]) -> dict[Path, list[tuple[str, ...]]]:
    """Per file that calls a codec of device/convert.h: groups of formats, one of each needed."""
    required: dict[Path, list[tuple[str, ...]]] = {}
    for path in {path for source in sources for path in included_sources(source)}:
        if path.name != "convert.h":
            text = re.sub(r"//.*", "", path.read_text())
            needs = [formats for pattern, formats in CODECS.items() if re.search(pattern, text)]
            if needs:
                required[path] = needs
    return required


def check_conversions(
    architecture: str, by_source: Mapping[Path, Mapping[str, set[str]]]
) -> Iterator[str]:
    """What the machine code of the kernels (by source, then mangled name) lacks."""
    names = compact_names(name for kernels in by_source.values() for name in kernels)
    for kernels in by_source.values():
        for kernel, formats in kernels.items():
            for number_format, architectures in CONVERTING.items():
                if (
                    architecture in architectures
                    and number_format in kernel
                    and number_format not in formats
                ):
                    yield (
                        f"{names[kernel]} on {architecture} has no F2FP instruction of "
                        f"{number_format}: the conversion is emulated"
                    )
    for path, needs in required_by_sources(by_source).items():
        users = [source for source in by_source if path in included_sources(source)]
        converted = {f for user in users for formats in by_source[user].values() for f in formats}
        for group in needs:
            expected = [f for f in group if architecture in CONVERTING[f]]
            if expected and not converted & set(expected):
                yield (
                    f"{path.name} converts {' or '.join(expected)}, but no kernel on "
                    f"{architecture} has that F2FP instruction"
                )


def check_machine_code(disassembler: Path, files: list[Compiled], jobs: int) -> Iterator[str]:
    units = [file for file in files if file.source.suffix == ".cu" and file.succeeded]
    for architecture in ARCHITECTURES:
        if not any(architecture in names for names in CONVERTING.values()):
            continue
        with ThreadPoolExecutor(jobs) as pool:
            read = pool.map(
                lambda file, name=architecture: read_conversions(
                    disassembler, file.object_file, name
                ),
                units,
            )
            by_source = dict(zip([file.source for file in units], read, strict=True))
        converting = sum(
            bool(formats) for found in by_source.values() for formats in found.values()
        )
        print(f"cuda_compile: {architecture}: {converting} kernels convert by instruction")
        yield from check_conversions(architecture, by_source)


def compiler_version(toolkit: Path) -> str:
    command = [str(toolkit / "bin" / "nvcc"), "--version"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    match = re.search(r"V([\d.]+)", output)
    return match[1] if match else "unknown"


def with_compact_names(file: Compiled) -> KernelFigures:
    names = compact_names(file.kernels)
    return dict(sorted((names[name], figures) for name, figures in file.kernels.items()))


def is_kernel(by_architecture: Mapping[str, Figures]) -> bool:
    """Whether these are a kernel's figures; a function that kernels call has no registers."""
    return any(figures.registers > 0 for figures in by_architecture.values())


def to_json(version: str, files: list[Compiled]) -> str:
    """The record: one line per kernel, so that a change of one is one line."""
    head = {
        "compiler": f"nvcc {version}",
        "figures": [f.name for f in fields(Figures)],
        "object_bytes": sum(file.object_bytes for file in files),
    }
    parts = []
    for file in files:
        kernels = ",".join(
            f"\n   {json.dumps(name)}: "
            + json.dumps({a: astuple(f) for a, f in by_architecture.items()})
            for name, by_architecture in with_compact_names(file).items()
            if is_kernel(by_architecture)
        )
        seconds = None if file.cpu_seconds is None else round(file.cpu_seconds, 1)
        parts.append(
            f'  {json.dumps(file.name)}: {{"object_bytes": {file.object_bytes}, '
            f'"cpu_seconds": {json.dumps(seconds)}, "kernels": {{{kernels}}}}}'
        )
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    return "\n".join(["{", *lines, ' "files": {', ",\n".join(parts), " }", "}"]) + "\n"


def to_table(files: list[Compiled]) -> str:
    """The same as text: a row per file, and the kernels with the most registers."""
    columns = "".join(f"{name:>8}" for name in ARCHITECTURES)
    rows = [
        "largest value of a file's kernels; registers per architecture",
        f"{'file':<24}{'kernels':>8}{columns}{'shared':>8}{'stack':>7}{'spilled':>8}"
        f"{'object KB':>11}{'CPU s':>8}",
    ]
    counts = {file.source: sum(map(is_kernel, file.kernels.values())) for file in files}
    for file in files:
        all_figures = [f for figures in file.kernels.values() for f in figures.values()]
        registers = "".join(
            f"{max((k[a].registers for k in file.kernels.values() if a in k), default=0):8}"
            for a in ARCHITECTURES
        )
        shared, stack, spilled = (
            max((getattr(f, name) for f in all_figures), default=0)
            for name in ("shared_bytes", "stack_bytes", "spill_store_bytes")
        )
        seconds = "ccache" if file.cpu_seconds is None else f"{file.cpu_seconds:.1f}"
        rows.append(
            f"{file.name:<24}{counts[file.source]:8}{registers}{shared:8}{stack:7}{spilled:8}"
            f"{file.object_bytes / 1e3:11.1f}{seconds:>8}"
        )
    total = sum(file.object_bytes for file in files)
    count = sum(counts.values())
    rows += [f"{'total':<24}{count:8}{'':47}{total / 1e3:11.1f}", "", "most registers"]
    kernels = [(n, figures) for file in files for n, figures in with_compact_names(file).items()]
    kernels.sort(key=lambda kernel: -max(f.registers for f in kernel[1].values()))
    for name, figures in kernels[:MOST_REGISTERS_SHOWN]:
        registers = " ".join(
            f"{figures[a].registers if a in figures else 0:3}" for a in ARCHITECTURES
        )
        rows.append(f"  {registers}  {name}")
    framed = [n for n, figures in kernels if any(f.stack_bytes for f in figures.values())]
    rows += ["", f"with a stack frame: {len(framed)}", *(f"  {name}" for name in framed)]
    return "\n".join(rows) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only files with one of these in their path")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "logs")
    parser.add_argument("--fetch", action="store_true", help="fetch a toolkit, a disassembler")
    arguments = parser.parse_args()
    started = time.monotonic()
    toolkit = cuda_toolkit.require_toolkit(arguments.fetch)
    if toolkit is None:
        return 1
    sources = find_sources(arguments.names)
    jobs = int(os.environ.get("MAX_JOBS") or min(2, os.cpu_count() or 1))
    folder = ROOT / "build" / "cuda_compile"
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        files = list(pool.map(lambda source: compile_one(toolkit, source, folder), sources))

    problems = [problem for file in files for problem in check_compiled(file)]
    all_kernels = [with_compact_names(file) for file in files]
    problems += [problem for kernels in all_kernels for problem in check_spills(kernels)]
    if not arguments.names:
        problems += check_allowed_spills(all_kernels)
    disassembler = find_disassembler(toolkit)
    if disassembler is None and arguments.fetch:
        cuda_toolkit.fetch_disassembler()
        disassembler = find_disassembler(toolkit)
    if disassembler is None:
        print("cuda_compile: no cuobjdump with nvdisasm; conversion instructions are not checked")
    else:
        problems += check_machine_code(disassembler, files, jobs)

    arguments.output.mkdir(parents=True, exist_ok=True)
    record = arguments.output / "cuda_kernels.json"
    record.write_text(to_json(compiler_version(toolkit), files))
    table = to_table(files)
    record.with_suffix(".txt").write_text(table)
    print(table, *problems, sep="\n")
    print(f"cuda_compile: {len(files)} files in {time.monotonic() - started:.1f} s; see {record}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
