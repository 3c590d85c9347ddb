# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Numbers of the source tree: sizes, arguments, comments, repetition, cycles, mirrored tests.

    python build_tools/tree_stats.py [--json]

Each row stands beside the aim it is read against. The numbers are a trend to watch, not a gate.

  file        a Python, C++ or CUDA file of the package that git tracks or would track
  function    Python: every `def`; C++ and CUDA: what lizard finds
  arguments   named parameters without a leading self, cls or ctx
  twice       share of code lines (white space folded; blank lines, comments, docstrings, imports
              and lone punctuation left out) in a run of 6 lines that stands at least twice
  mirrored    share of source files whose stem has a test file of the same stem
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import tokenize
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import lizard
from dependencies import Graph, cycles, import_graph, include_edges, include_graph, python_edges
from source_files import CPP_SUFFIXES, ROOT, list_files

RUN_LINES = 6
SOURCE = ROOT / "transformer_engine"
TESTS = ROOT / "tests"


@dataclass
class FileStats:
    """Line counts of one file, and its code lines in the form in which they are compared."""

    path: Path
    lines: int
    code: int = 0
    comments: int = 0
    docs: int = 0
    compared: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class FunctionStats:
    place: str
    lines: int
    arguments: int


def percentile(values: list[int], share: float) -> int:
    """The value below which a share of the values lies (nearest rank)."""
    if not values:
        return 0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 1) if whole else 0.0


def _doc_lines(tree: ast.Module) -> set[int]:
    """Line numbers of docstrings."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                found.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found


def _python_lines(stats: FileStats, text: str) -> None:
    tree = ast.parse(text)
    docs = _doc_lines(tree)
    imports: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imports.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    comment_only: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
            comment_only.add(token.start[0])
    for number, line in enumerate(text.splitlines(), 1):
        if number in docs:
            stats.docs += 1
        elif number in comment_only:
            stats.comments += 1
        elif line.strip():
            stats.code += 1
            if number not in imports:
                stats.compared.append(line)


_CPP_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


def _cpp_lines(stats: FileStats, text: str) -> None:
    def blank(match: re.Match[str]) -> str:
        keep = match.group().startswith('"')
        return match.group() if keep else "\n" * match.group().count("\n")

    stripped = _CPP_COMMENT.sub(blank, text).split("\n")
    for original, line in zip(text.split("\n"), stripped, strict=True):
        if line.strip():
            stats.code += 1
            if not line.lstrip().startswith(("#include", "#pragma", "using ", "namespace ")):
                stats.compared.append(line)
        elif original.strip():
            stats.comments += 1


def read_file(path: Path) -> FileStats:
    """Count the lines of a file."""
    text = path.read_text()
    stats = FileStats(path, len(text.splitlines()))
    if path.suffix == ".py":
        _python_lines(stats, text)
    else:
        _cpp_lines(stats, text)
    folded = (re.sub(r"\s+", " ", line.strip()) for line in stats.compared)
    stats.compared = [line for line in folded if re.search(r"\w", line)]
    return stats


def python_functions(path: Path) -> list[FunctionStats]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            skip = bool(names) and names[0].arg in ("self", "cls", "ctx")
            place = f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            found.append(FunctionStats(place, lines, len(names) - skip))
    return found


def cpp_functions(path: Path) -> list[FunctionStats]:
    # lizard goes by the name's ending and does not know .cu and .cuh.
    name = str(path.with_suffix(".cpp"))
    analysis = lizard.analyze_file.analyze_source_code(name, path.read_text())
    return [
        FunctionStats(
            f"{path.relative_to(ROOT)}:{function.start_line} {function.name}",
            function.end_line - function.start_line + 1,
            function.parameter_count,
        )
        for function in analysis.function_list
    ]


def repeated_share(files: list[FileStats]) -> float:
    """Percent of the compared lines that lie in a run of RUN_LINES which stands twice or more."""
    places = defaultdict(list)
    for number, stats in enumerate(files):
        for start in range(len(stats.compared) - RUN_LINES + 1):
            places[tuple(stats.compared[start : start + RUN_LINES])].append((number, start))
    marked = {
        (number, line)
        for found in places.values()
        if len(found) > 1
        for number, start in found
        for line in range(start, start + RUN_LINES)
    }
    return percent(len(marked), sum(len(stats.compared) for stats in files))


def mirrored_share(sources: list[FileStats], tests: list[FileStats]) -> float:
    stems = {re.sub(r"^test_", "", stats.path.stem) for stats in tests}
    bodies = [stats.path.stem for stats in sources if stats.path.stem != "__init__"]
    return percent(sum(stem in stems for stem in bodies), len(bodies))


def largest_cycle(graph: Graph) -> int:
    return max((len(cycle) for cycle in cycles(graph)), default=0)


def measure() -> dict[str, tuple[object, str]]:
    """Name -> (value, aim) for every number."""
    paths = list_files((".py", *CPP_SUFFIXES))
    sources = [read_file(path) for path in paths if path.is_relative_to(SOURCE)]
    tests = [read_file(path) for path in paths if path.is_relative_to(TESTS)]
    python = [stats for stats in sources if stats.path.suffix == ".py"]
    cpp = [stats.path for stats in sources if stats.path.suffix != ".py"]
    functions = [found for stats in python for found in python_functions(stats.path)]
    functions += [found for path in cpp for found in cpp_functions(path)]
    functions.sort(key=lambda found: found.lines, reverse=True)
    by_arguments = sorted(functions, key=lambda found: found.arguments, reverse=True)
    lines = [stats.lines for stats in sources]
    lengths = [found.lines for found in functions]
    counts = [found.arguments for found in functions]
    code = sum(stats.code for stats in sources)
    edges = python_edges([stats.path for stats in python], ROOT)
    common = SOURCE / "common"
    includes = include_edges(cpp, ROOT, [common, common / "include", SOURCE / "pytorch" / "csrc"])
    return {
        "files": (len(sources), ""),
        "lines": (sum(lines), ""),
        "file lines, median": (percentile(lines, 0.5), "under 200"),
        "file lines, 95 %": (percentile(lines, 0.95), "under 800"),
        "files over 1000 lines": (sum(count > 1000 for count in lines), "look twice"),
        "functions": (len(functions), ""),
        "function lines, 95 %": (percentile(lengths, 0.95), "under 60"),
        "function lines, 99 %": (percentile(lengths, 0.99), "under 120"),
        "functions over 100 lines": (sum(count > 100 for count in lengths), "look twice"),
        "arguments, 95 %": (percentile(counts, 0.95), "at most 6"),
        "functions over 8 arguments": (sum(count > 8 for count in counts), "look twice"),
        "code lines standing twice, %": (repeated_share(sources), "under 5"),
        "comment lines per code line, %": (
            percent(sum(stats.comments for stats in sources), code),
            "about 20 in kernels",
        ),
        "docstring lines per Python code line, %": (
            percent(sum(s.docs for s in python), sum(s.code for s in python)),
            "",
        ),
        "test code per code": (round(sum(s.code for s in tests) / max(1, code), 2), ""),
        "files with a test of their name, %": (mirrored_share(sources, tests), ""),
        "largest import cycle": (largest_cycle(import_graph(edges, with_deferred=True)), "0"),
        "largest include cycle": (largest_cycle(include_graph(includes)), "0"),
        "longest functions": ([f"{found.lines} {found.place}" for found in functions[:5]], ""),
        "most arguments": ([f"{found.arguments} {found.place}" for found in by_arguments[:5]], ""),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Print numbers of the source tree.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    numbers = measure()
    if parser.parse_args().json:
        print(json.dumps({name: value for name, (value, _) in numbers.items()}, indent=1))
        return
    for name, (value, aim) in numbers.items():
        if isinstance(value, list):
            print(name, *(f"\n  {row}" for row in value), sep="")
        else:
            print(f"{name:<42} {value:>8}  {aim}".rstrip())


if __name__ == "__main__":
    main()
