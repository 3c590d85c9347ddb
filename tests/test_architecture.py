# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""The arrows between the parts of the library go one way, and nothing goes in circles.

Python   pytorch: modules, attention, ops, optimizers -> quantization, distributed -> tensor
         -> cpp_extensions -> the compiled module; everything may use common.
C++      csrc (bind -> steps -> the rest) -> public headers <- ops -> reference, cpu, cuda | no_cuda
         -> numerics -> core

Each rule is first shown to find what it forbids, in small trees that break it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from dependencies import (
    Edge,
    cycles,
    import_graph,
    include_edges,
    include_graph,
    is_ancestor,
    python_edges,
    reachable,
)

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "transformer_engine"
BINDING = "transformer_engine_torch"

# First name below transformer_engine.pytorch -> layer. A module imports from its own layer and
# those below. A new name has to be given a layer here.
PYTORCH_LAYERS: dict[str, int] = {
    name: layer
    for layer, names in enumerate(
        (
            (
                "arguments",
                "constants",
                "torch_version",
                "rank_errors",
                "cpp_extensions",
                "utils",
                "nvtx",
                "jit",
            ),
            ("quantized_tensor", "tensor"),
            (
                *(
                    "quantization",
                    "recipe_state",
                    "delayed_scaling",
                    "amax_reduction",
                    "distributed",
                    "cpu_offload",
                    "cpu_offload_v1",
                ),
                "userbuffers",
            ),
            (
                *("module", "attention", "ops", "optimizers", "transformer", "router", "ep"),
                *("permutation", "cross_entropy", "newton_schulz", "export", "onnx_extensions"),
                "softmax",
                *("graph", "triton"),
                *("numerics", "numerics_report"),
            ),
            ("fp8", "float8_tensor"),  # old import paths: re-exports
        )
    )
    for name in names
}
# The doors to the compiled module: the loader registers it, the report asks it for its backends.
BINDING_DOORS = ("transformer_engine.pytorch.cpp_extensions",)

# Folder of common/ -> folders that it may include, besides itself and the public headers.
COMMON_ARROWS: dict[str, set[str]] = {
    "include": set(),
    "core": set(),
    "numerics": {"core"},
    "reference": {"numerics", "core"},
    "cpu": {"numerics", "core"},
    "cuda": {"numerics", "core"},
    "no_cuda": {"cuda", "core"},  # of cuda only the declarations of its entry points
    "ops": {"reference", "cpu", "cuda", "no_cuda", "numerics", "core"},
}
# What the kernel files may reach of the standard library: headers without inline functions. The
# linker keeps one copy of an inline function, perhaps one compiled for another instruction set.
KERNEL_HEADERS = {"cstddef", "cstdint", "immintrin.h"}
INTRINSICS = {"immintrin.h", "arm_neon.h", "arm_sve.h"}
FRAMEWORK_HEADERS = ("ATen/", "c10/", "torch/", "pybind11/", "Python.h")


def _place(edge: Edge, rule: str) -> str:
    return f"{edge.source}:{edge.line} -> {edge.target}: {rule}"


def _pytorch_part(module: str) -> str | None:
    """First name below transformer_engine.pytorch; None for any other module."""
    prefix = f"{PACKAGE}.pytorch."
    return module[len(prefix) :].split(".")[0] if module.startswith(prefix) else None


def _layer_violations(edges: list[Edge]) -> list[str]:
    found = []
    for edge in edges:
        source, target = _pytorch_part(edge.source), _pytorch_part(edge.target)
        if source is None or target is None or not edge.is_internal or source == target:
            continue
        unknown = [
            name for name in (source, target) if name not in PYTORCH_LAYERS | {"reference": 0}
        ]
        if unknown:
            found.append(_place(edge, f"{unknown[0]} has no layer in PYTORCH_LAYERS"))
        elif target == "reference":
            found.append(_place(edge, "reference is for tests and documentation"))
        elif source != "reference" and PYTORCH_LAYERS[source] < PYTORCH_LAYERS[target]:
            found.append(_place(edge, "imports from a higher layer"))
    return found


def _is_package_with_parts(module: str, edges: list[Edge]) -> bool:
    """Whether a module is a package whose `__init__` collects from its own modules."""
    return any(edge.source == module and is_ancestor(module, edge.target) for edge in edges)


def python_violations(root: Path) -> list[str]:
    """What the Python files of a tree do against the rules, one line each."""
    files = sorted((root / PACKAGE).rglob("*.py"))
    packages = {".".join(p.parent.relative_to(root).parts) for p in files if p.stem == "__init__"}
    edges = python_edges(files, root)
    found = _layer_violations(edges)
    for edge in edges:
        in_common = edge.source.startswith(f"{PACKAGE}.common")
        top = edge.target.split(".")[0]
        if is_ancestor(edge.target, edge.source) and edge.source not in packages:
            found.append(_place(edge, "imports a package that it is part of"))
        if edge.is_deferred and edge.is_internal:
            found.append(_place(edge, "imports a module of the library inside a function"))
        if in_common and (top == "torch" or is_ancestor(f"{PACKAGE}.pytorch", edge.target + ".")):
            found.append(_place(edge, "common knows no framework"))
        if top == BINDING and not edge.source.startswith(BINDING_DOORS):
            found.append(_place(edge, "only cpp_extensions imports the compiled module"))
        if edge.target.startswith(f"{PACKAGE}.debug") and ".debug" not in edge.source:
            found.append(_place(edge, "nothing imports debug"))
        if top in ("tests", "helpers", "benchmarks", "build_tools", "examples"):
            found.append(_place(edge, "the library imports nothing outside it"))
    found += ["import cycle: " + ", ".join(cycle) for cycle in cycles(import_graph(edges))]
    return found


def _common_violations(edge: Edge) -> list[str]:
    folder = edge.source.split("/")[2]
    found = []
    if edge.is_internal:
        parts = edge.target.split("/")
        if parts[1] != "common":
            found.append(_place(edge, "the core includes nothing of a framework's binding"))
        elif parts[2] not in COMMON_ARROWS[folder] | {folder, "include"}:
            found.append(_place(edge, f"{folder}/ may not include {parts[2]}/"))
    elif edge.target.startswith(FRAMEWORK_HEADERS):
        found.append(_place(edge, "the core knows neither torch nor Python"))
    if edge.target in INTRINSICS and "/cpu/simd/" not in edge.source:
        found.append(_place(edge, "intrinsics belong into cpu/simd"))
    return found


def _binding_violations(edge: Edge) -> list[str]:
    if not edge.is_internal:
        rule = "torch/extension.h takes 20 s to compile; include what is used"
        return [_place(edge, rule)] if edge.target == "torch/extension.h" else []
    if "/common/" in edge.target:
        is_public = "/common/include/" in edge.target
        return [] if is_public else [_place(edge, "a binding includes public headers only")]

    def level(path: str) -> int:
        name = path.split("/csrc/")[1]
        return 2 if name.startswith(("bind", "module")) else 1 if name.startswith("steps/") else 0

    is_wrong = level(edge.source) < level(edge.target)
    return [_place(edge, "bind -> steps -> the rest is the order")] if is_wrong else []


def cpp_violations(root: Path) -> list[str]:
    """What the C++ and CUDA files of a tree do against the rules, one line each."""
    common, csrc = root / PACKAGE / "common", root / PACKAGE / "pytorch" / "csrc"
    suffixes = {".h", ".cpp", ".cu", ".cuh"}
    files = sorted(path for path in (root / PACKAGE).rglob("*") if path.suffix in suffixes)
    edges = include_edges(files, root, [common, common / "include", csrc])
    found = []
    for edge in edges:
        in_csrc = edge.source.startswith(f"{PACKAGE}/pytorch/csrc/")
        found += _binding_violations(edge) if in_csrc else _common_violations(edge)
    graph = include_graph(edges)
    for start in sorted(node for node in graph if "/cpu/kernels/" in node):
        reached = reachable(graph, start)
        for edge in edges:
            is_external = edge.source in reached and not edge.is_internal
            if is_external and edge.target not in KERNEL_HEADERS:
                found.append(_place(edge, f"reached by the kernel file {start}"))
    return found + ["include cycle: " + ", ".join(cycle) for cycle in cycles(graph)]


def test_python_imports_follow_the_architecture():
    assert python_violations(ROOT) == []


def test_cpp_includes_follow_the_architecture():
    assert cpp_violations(ROOT) == []


def test_one_file_knows_how_torch_counts_its_nodes():
    """Releases of torch differ in it, and that of the tests shows only its own way."""
    binding = ROOT / PACKAGE / "pytorch" / "csrc"
    own_ways = re.compile(r"autograd/node\.h|make_intrusive<[\w:]*(Node|Error)>|deleteNode")
    found = [
        str(path.relative_to(binding))
        for path in sorted(binding.rglob("*.*"))
        if path.suffix in (".cpp", ".h") and own_ways.search(path.read_text())
    ]
    assert found == ["autograd_node.h"]


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for folder in path.parents:
            if path.suffix == ".py" and folder.is_relative_to(root / PACKAGE):
                (folder / "__init__.py").touch()
    return root


def test_a_right_python_tree_passes(tmp_path):
    files = {
        "pytorch/module/linear.py": "from ..tensor.storage import cast\nimport torch\n",
        "pytorch/module/__init__.py": "from .linear import Linear\n",
        "pytorch/tensor/storage.py": "from .. import cpp_extensions as tex\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from ..module.linear import Linear\n",
        "pytorch/tensor/__init__.py": "from .storage import cast\n",
        "pytorch/cpp_extensions.py": "import transformer_engine_torch\n",
        "common/recipe.py": "def load():\n    import onnx\n",
    }
    assert python_violations(write_tree(tmp_path, files)) == []


@pytest.mark.parametrize(
    ("files", "rule"),
    [
        ({"pytorch/tensor/a.py": "from ..module import b", "pytorch/module/b.py": ""}, "higher"),
        (
            {"pytorch/module/a.py": "from ..reference import b", "pytorch/reference/b.py": ""},
            "tests",
        ),
        ({"pytorch/sundry/a.py": "from ..tensor import b", "pytorch/tensor/b.py": ""}, "no layer"),
        ({"pytorch/tensor/a.py": "from transformer_engine import pytorch"}, "part of"),
        ({"pytorch/tensor/a.py": "from . import b"}, "part of"),
        (
            {"pytorch/tensor/a.py": "def f():\n    from . import b", "pytorch/tensor/b.py": ""},
            "inside",
        ),
        ({"common/a.py": "import torch"}, "no framework"),
        ({"common/a.py": "from ..pytorch import b", "pytorch/b.py": ""}, "no framework"),
        ({"pytorch/module/a.py": "import transformer_engine_torch as tex"}, "only cpp_extensions"),
        ({"pytorch/module/a.py": "from ...debug import b", "debug/b.py": ""}, "debug"),
        ({"pytorch/module/a.py": "from helpers.b import c"}, "outside"),
        (
            {"pytorch/module/a.py": "from . import b", "pytorch/module/b.py": "from . import a"},
            "cycle: transformer_engine.pytorch.module.a, transformer_engine.pytorch.module.b",
        ),
        (  # through the __init__ of another package
            {
                "pytorch/ops/a.py": "from ..module import b",
                "pytorch/module/__init__.py": "from . import c",
                "pytorch/module/b.py": "",
                "pytorch/module/c.py": "from ..ops import a",
            },
            "import cycle",
        ),
    ],
)
def test_a_wrong_python_tree_is_found(tmp_path, files, rule):
    violations = python_violations(write_tree(tmp_path, files))
    assert any(rule in violation for violation in violations), violations


def test_a_right_cpp_tree_passes(tmp_path):
    files = {
        "common/include/transformer_engine/cast.h": "#include <vector>\n",
        "common/ops/cast.cpp": '#include <transformer_engine/cast.h>\n#include "cpu/cast.h"\n',
        "common/cpu/cast.h": '#include "numerics/codec.h"\n',
        "common/cpu/kernels/cast.cpp": '#include "cpu/simd/vec.h"\n#include "numerics/codec.h"\n',
        "common/cpu/simd/vec.h": "#include <immintrin.h>\n",
        "common/numerics/codec.h": "#include <cstdint>\n",
        "pytorch/csrc/bind_a.cpp": '#include <transformer_engine/cast.h>\n#include "steps/s.h"\n',
        "pytorch/csrc/steps/s.h": '#include "views.h"\n',
        "pytorch/csrc/views.h": "#include <ATen/core/Tensor.h>\n",
    }
    assert cpp_violations(write_tree(tmp_path, files)) == []


@pytest.mark.parametrize(
    ("files", "rule"),
    [
        (
            {"common/core/a.h": '#include "ops/b.h"', "common/ops/b.h": ""},
            "core/ may not include ops/",
        ),
        ({"common/cpu/a.h": '#include "cuda/b.h"', "common/cuda/b.h": ""}, "may not include cuda/"),
        (
            {"common/numerics/a.h": '#include "cpu/b.h"', "common/cpu/b.h": ""},
            "may not include cpu/",
        ),
        (
            {"common/core/a.h": '#include "../../pytorch/csrc/b.h"', "pytorch/csrc/b.h": ""},
            "binding",
        ),
        ({"common/ops/a.cpp": "#include <ATen/ATen.h>"}, "neither torch nor Python"),
        ({"common/cpu/kernels/a.cpp": "#include <immintrin.h>"}, "intrinsics"),
        (
            {
                "common/cpu/kernels/a.cpp": '#include "cpu/b.h"',
                "common/cpu/b.h": "#include <vector>",
            },
            "reached by the kernel file",
        ),
        ({"pytorch/csrc/a.cpp": '#include "core/b.h"', "common/core/b.h": ""}, "public headers"),
        ({"pytorch/csrc/a.cpp": "#include <torch/extension.h>"}, "20 s"),
        ({"pytorch/csrc/views.h": '#include "steps/b.h"', "pytorch/csrc/steps/b.h": ""}, "order"),
        ({"pytorch/csrc/steps/a.h": '#include "bind.h"', "pytorch/csrc/bind.h": ""}, "order"),
        (
            {"common/core/a.h": '#include "core/b.h"', "common/core/b.h": '#include "core/a.h"'},
            "include cycle: transformer_engine/common/core/a.h, transformer_engine/common/core/b.h",
        ),
    ],
)
def test_a_wrong_cpp_tree_is_found(tmp_path, files, rule):
    violations = cpp_violations(write_tree(tmp_path, files))
    assert any(rule in violation for violation in violations), violations
