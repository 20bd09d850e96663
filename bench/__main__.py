"""Run the benchmarks, print their tables, keep the figures as JSON, fail when a bar is missed.

    python -m bench [SECTION…] [--out FILE] [--rounds N]
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

from fanfold import __version__

Table = dict[str, dict[str, float]]
SECTIONS = ("kernel", "startup")
RESULTS = Path(__file__).parent / "results"


class Section(Protocol):
    """What a benchmark module offers."""

    __doc__: str

    def measure(self, rounds: int) -> Table: ...
    def failures(self, table: Table) -> list[str]: ...


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], default=[])
    parser.add_argument("--out", type=Path, default=RESULTS / "latest.json")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(argv)
    versions = {"fanfold": __version__, "python": platform.python_version(), "machine": platform.machine()}
    results: dict[str, object] = {"command": "make bench", "versions": versions, "rounds": options.rounds}
    missed: list[str] = []
    for name in options.sections or SECTIONS:
        section = cast(Section, importlib.import_module(f"bench.{name}"))
        table = section.measure(options.rounds)
        results[name] = table
        print(f"\n{section.__doc__.splitlines()[0]}\n")
        _print_table(table)
        missed += [f"{name}: {problem}" for problem in section.failures(table)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    for problem in missed:
        print(f"missed: {problem}", file=sys.stderr)
    print(f"\nwritten to {options.out}")
    return 1 if missed else 0


def _print_table(table: Table) -> None:
    columns = list(dict.fromkeys(column for row in table.values() for column in row))
    width = max(len(name) for name in table)
    print(" " * width, *(f"{column:>16}" for column in columns))
    for name, row in table.items():
        cells = (f"{row[column]:>16.2f}" if column in row else " " * 16 for column in columns)
        print(f"{name:<{width}}", *cells)


if __name__ == "__main__":
    sys.exit(main())
