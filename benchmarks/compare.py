# Copyright (c) 2026, The Transformer Engine Project Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compare two result files: `python -m benchmarks.compare BEFORE.json AFTER.json`.

Prints the ratio of times for every case of ours in both files; the exit status is 1 when one became
slower by more than the noise, that is, when its quartile ranges do not overlap.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Change:
    """One case before and after: median seconds and quartiles."""

    name: str
    before: float
    after: float
    is_slower: bool
    is_faster: bool

    def __str__(self) -> str:
        verdict = "SLOWER" if self.is_slower else "faster" if self.is_faster else "within noise"
        ratio = self.after / self.before
        return (
            f"{self.name:64} {self.before * 1e6:11.1f} -> {self.after * 1e6:11.1f} us  "
            f"x {ratio:.2f}  {verdict}"
        )


def _cases(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {}
    for benchmark, content in document["benchmarks"].items():
        for result in content["results"]:
            ours = result["ours"]
            name = f"{benchmark}: {result['problem']}, {ours['threads']} thread(s), {ours['name']}"
            found[name] = ours
    return found


def compare(before: dict[str, Any], after: dict[str, Any]) -> list[Change]:
    """Changes of the cases that both documents hold, in the order of the second."""
    old, changes = _cases(before), []
    for name, new in _cases(after).items():
        if name in old:
            (old_low, old_high), (low, high) = old[name]["quartiles"], new["quartiles"]
            changes.append(
                Change(name, old[name]["seconds"], new["seconds"], low > old_high, high < old_low)
            )
    return changes


def main() -> int:
    """Read the files named on the command line, print, return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    options = parser.parse_args()
    documents = [json.loads(path.read_text()) for path in (options.before, options.after)]
    for label, document in zip(("before", "after"), documents, strict=True):
        for benchmark, content in document["benchmarks"].items():
            where = content["environment"]
            print(f"{label:6} {benchmark}: {where['date']}  {where['commit']}  {where['cpu']}")
    changes = compare(*documents)
    for change in changes:
        print(change)
    return 1 if any(change.is_slower for change in changes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
