"""Counts that may only fall: lines, files, dialect and bare-participle class names of each package.

    python -m tools.ratchet           show each package with its budget
    python -m tools.ratchet --lower   record the counts of today where they are lower

`tools/ratchet.json` holds the recorded counts. `tests/test_tidy.py` fails when a count exceeds its record. A
package that must grow for a new feature raises its record in the same commit, with the reason in the message.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tools.tidy import ROOT

RECORD = ROOT / "tools" / "ratchet.json"
BUDGETS = {
    "kernel": 5_400,
    "language": 13_500,
    "store": 4_800,
    "workspace": 9_200,
    "agents": 11_000,
    "sessions": 1_700,
    "steps": 6_200,
    "engine": 5_400,
    "api": 9_800,
    "cli": 4_800,
    "server": 2_700,
    "cluster": 2_500,
    "testing": 2_500,
}
"""Lines of Python that a package is to have at most; `docs/architecture.md` says what is in each."""
DIALECT = {
    "nobody": re.compile(r"\b(?:no|some|any)body\b|\bwhoever\b", re.IGNORECASE),
    "told": re.compile(r"\b(?:told|tells?|telling|said)\b", re.IGNORECASE),
    "goes on": re.compile(r"\b(?:go|goes|going|gone) on\b", re.IGNORECASE),
    "mend": re.compile(r"\bmend(?:s|ed|ing)?\b", re.IGNORECASE),
    "come home": re.compile(r"\b(?:come|comes|came|bring|brings|brought) home\b", re.IGNORECASE),
}
"""Words of `told` and the like count where people read them and where code uses them as names."""
PARTICIPLES = frozenset(
    "Told Kept Given Left Held Shown Ran Found Said Made Seen Known Taken Sent Met Meant Begun Broken "
    "Written Drawn Chosen Lent Bound Lost Gone Done Built Spent Heard".split()
)


def counts(root: Path = ROOT / "src" / "fanfold") -> dict[str, dict[str, int]]:
    """By package: how often each counted thing occurs. Modules beside the packages count as one."""
    found: dict[str, Counter[str]] = {}
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root).parts
        package = found.setdefault(parts[0] if len(parts) > 1 else "modules", Counter())
        text = file.read_text("utf-8")
        package["files"] += 1
        package["lines"] += text.count("\n")
        for word, pattern in DIALECT.items():
            package[word] += len(pattern.findall(text))
        package["participles"] += sum(1 for _ in participles(ast.parse(text)))
    return {name: dict(count) for name, count in found.items()}


def participles(tree: ast.Module) -> Iterator[str]:
    """Classes whose whole name is a participle.

    >>> list(participles(ast.parse("class Told: ...\\nclass _Watched: ...\\nclass WatchedStep: ...")))
    ['Told', '_Watched']
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            name = node.name.lstrip("_")
            if name in PARTICIPLES or re.fullmatch(r"[A-Z][a-z]+(?<!e)ed", name):
                yield node.name


def exceeded(now: dict[str, dict[str, int]], record: dict[str, dict[str, int]]) -> list[str]:
    """What is above its record, in sentences.

    >>> exceeded({"kernel": {"lines": 7}}, {"kernel": {"lines": 6}})
    ['kernel: 7 lines, recorded 6']
    """
    return [
        f"{package}: {count} {what}, recorded {record.get(package, {}).get(what, 0)}"
        for package, row in now.items()
        for what, count in row.items()
        if count > record.get(package, {}).get(what, 0)
    ]


def main(arguments: list[str]) -> int:
    now = counts()
    if "--lower" in arguments:
        old = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        lowest = {
            package: {what: min(count, old.get(package, {}).get(what, count)) for what, count in row.items()}
            for package, row in now.items()
        }
        RECORD.write_text(json.dumps(lowest, indent=2, sort_keys=True) + "\n")
    for package, row in sorted(now.items()):
        rest = ", ".join(f"{count} {what}" for what, count in row.items() if what not in ("lines", "files"))
        budget = f" of {BUDGETS[package]}" if package in BUDGETS else ""
        print(f"{package:10} {row['files']:3} files {row['lines']:6} lines{budget}: {rest}")
    total = Counter[str]()
    for row in now.values():
        total.update(row)
    per_10k = {what: round(total[what] * 10_000 / total["lines"], 1) for what in DIALECT}
    print(f"all        {total['files']:3} files {total['lines']:6} lines; per 10,000 lines: {per_10k}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
