# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Who imports and includes whom: read from the sources, nothing is imported or compiled."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Graph = dict[str, set[str]]


@dataclass(frozen=True, slots=True)
class Edge:
    """One import or include: from which file and line, of what."""

    source: str  # dotted module, or path below the root
    target: str  # the same for one of the tree, else the text as written
    line: int
    is_internal: bool  # the target is one of the tree
    is_deferred: bool = False  # inside a function


def module_name(path: Path, root: Path) -> str:
    """Dotted name of a Python file below root; a package's is that of its `__init__`."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class _Imports(ast.NodeVisitor):
    """Collects the imports of one module; those for type checkers only do not count."""

    def __init__(self, package: str, known: set[str]):
        self.package = package  # what `from .` means
        self.known = known
        self.found: list[tuple[str, int, bool]] = []
        self.depth = 0

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.orelse:
                self.visit(child)
        else:
            self.generic_visit(node)

    def _visit_function(self, node: ast.AST) -> None:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_function

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.found.append((alias.name, node.lineno, self.depth > 0))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parents = self.package.split(".")
            parents = parents[: len(parents) - node.level + 1]
            base = ".".join([*parents, *([base] if base else [])])
        for alias in node.names:
            name = f"{base}.{alias.name}"
            target = name if name in self.known else base
            self.found.append((target, node.lineno, self.depth > 0))


def python_edges(files: list[Path], root: Path) -> list[Edge]:
    """All imports of the files; `from package import module` counts as an import of the module."""
    names = {path: module_name(path, root) for path in files}
    known = set(names.values())
    edges = []
    for path, name in names.items():
        is_package = path.name == "__init__.py"
        package = name if is_package else name.rpartition(".")[0]
        visitor = _Imports(package, known)
        visitor.visit(ast.parse(path.read_text(), str(path)))
        for target, line, is_deferred in visitor.found:
            if target != name:
                edges.append(Edge(name, target, line, target in known, is_deferred))
    return edges


def is_ancestor(package: str, module: str) -> bool:
    """Whether a package holds the module, at any depth."""
    return module.startswith(package + ".")


def import_graph(edges: list[Edge], with_deferred: bool = False) -> Graph:
    """Module -> modules whose code runs because of its imports.

    Importing `a.b.c` from outside `a.b` runs the `__init__` of `a.b`, too.
    """
    graph: Graph = {}
    for edge in edges:
        targets = graph.setdefault(edge.source, set())
        if not edge.is_internal or (edge.is_deferred and not with_deferred):
            continue
        targets.add(edge.target)
        parts = edge.target.split(".")
        for count in range(1, len(parts)):
            package = ".".join(parts[:count])
            if package != edge.source and not is_ancestor(package, edge.source):
                targets.add(package)
    return graph


_INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)


def include_edges(files: list[Path], root: Path, include_dirs: list[Path]) -> list[Edge]:
    """All includes of the files, looked up as a compiler does: beside the file, then in dirs."""
    known = {path.resolve(): path.relative_to(root).as_posix() for path in files}
    edges = []
    for path in files:
        text = path.read_text()
        for match in _INCLUDE.finditer(text):
            near = [path.parent] if match.group(1) == '"' else []
            places = [folder / match.group(2) for folder in near + include_dirs]
            found = next((known[p.resolve()] for p in places if p.resolve() in known), None)
            line = text.count("\n", 0, match.start()) + 1
            source = path.relative_to(root).as_posix()
            edges.append(Edge(source, found or match.group(2), line, found is not None))
    return edges


def include_graph(edges: list[Edge]) -> Graph:
    """File -> files of the tree that it includes."""
    graph: Graph = {}
    for edge in edges:
        targets = graph.setdefault(edge.source, set())
        if edge.is_internal:
            targets.add(edge.target)
    return graph


def reachable(graph: Graph, start: str) -> set[str]:
    """All that can be reached from a node, the node itself among it."""
    seen = {start}
    stack = [start]
    while stack:
        for target in graph.get(stack.pop(), ()):
            if target not in seen:
                seen.add(target)
                stack.append(target)
    return seen


def cycles(graph: Graph) -> Iterator[list[str]]:
    """Each set of two or more nodes that all reach one another, sorted, the largest first."""
    reach = {node: reachable(graph, node) for node in graph}
    done: set[str] = set()
    groups = []
    for node in sorted(graph):
        if node not in done:
            group = sorted(other for other in reach[node] if node in reach.get(other, ()))
            done.update(group)
            groups.append(group)
    yield from sorted((group for group in groups if len(group) > 1), key=len, reverse=True)
