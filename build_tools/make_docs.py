# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Render the reference pages: docs/environment.md, and one page per public name in docs/api.

Public is what the `__all__` of a public module lists; the pages come from the docstrings, through
pdoc. A public name without a docstring is an error.
"""

from __future__ import annotations

import html
import importlib
import inspect
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pdoc.doc
import pdoc.render

ROOT = Path(__file__).resolve().parent.parent
PUBLIC_MODULES = (
    "transformer_engine",
    "transformer_engine.common",
    "transformer_engine.common.recipe",
    "transformer_engine.pytorch",
)


@dataclass(frozen=True)
class PublicName:
    """One documented object: its public module, its name there, itself."""

    module: str
    name: str
    value: Any

    @property
    def page(self) -> str:
        return f"{self.module}.{self.name}.html"

    @property
    def docstring(self) -> str:
        """Its own docstring: neither a base class's nor the one that a dataclass makes up."""
        if inspect.isclass(self.value):
            text = self.value.__dict__.get("__doc__") or ""
            return "" if text.startswith(f"{self.value.__name__}(") else inspect.cleandoc(text)
        return inspect.getdoc(self.value) or ""


def public_names(modules: tuple[str, ...] = PUBLIC_MODULES) -> list[PublicName]:
    """All public classes and functions; modules that a public module lists are looked into, too."""
    found: list[PublicName] = []
    queue, seen = list(modules), set(modules)
    while queue:
        module = importlib.import_module(queue.pop(0))
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if isinstance(value, ModuleType):
                if value.__name__ not in seen and value.__name__.startswith("transformer_engine"):
                    seen.add(value.__name__)
                    queue.append(value.__name__)
            elif callable(value):
                found.append(PublicName(module.__name__, name, value))
    return found


def undocumented(names: list[PublicName]) -> list[str]:
    return [f"{name.module}.{name.name}" for name in names if not name.docstring]


def render_page(public: PublicName) -> str:
    """The page of one name: pdoc's page of a module that holds only this name."""
    alone = ModuleType(f"{public.module}.{public.name}")
    alone.__dict__.update({"__all__": [public.name], public.name: public.value})
    with warnings.catch_warnings():
        # pdoc warns of names that other libraries import for type checkers only.
        warnings.simplefilter("ignore", UserWarning)
        return pdoc.render.html_module(pdoc.doc.Module(alone), {})


def render_index(names: list[PublicName]) -> str:
    parts = ["<!doctype html><meta charset='utf-8'><title>transformer_engine</title>"]
    parts.append("<style>body{font-family:sans-serif;max-width:60em;margin:2em auto}</style>")
    parts.append("<h1>transformer_engine</h1>")
    for module in dict.fromkeys(name.module for name in names):
        parts.append(f"<h2>{module}</h2><ul>")
        for name in (name for name in names if name.module == module):
            summary = html.escape(name.docstring.split("\n")[0])
            parts.append(f"<li><a href='{name.page}'><code>{name.name}</code></a> {summary}</li>")
        parts.append("</ul>")
    return "\n".join(parts) + "\n"


def write_pages(folder: Path, names: list[PublicName]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.html"):
        old.unlink()
    pdoc.render.configure(docformat="numpy", show_source=False, search=False)
    for name in names:
        (folder / name.page).write_text(render_page(name))
    (folder / "index.html").write_text(render_index(names))


def main() -> int:
    environment = importlib.import_module("transformer_engine.common.environment")
    (ROOT / "docs" / "environment.md").write_text(environment.render_markdown())
    names = public_names()
    missing = undocumented(names)
    if missing:
        print("public names without a docstring:", *missing, sep="\n  ")
        return 1
    write_pages(ROOT / "docs" / "api", names)
    print(f"{len(names)} pages in docs/api, begin at docs/api/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
