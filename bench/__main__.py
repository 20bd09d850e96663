"""Run the benchmarks, print their tables, keep the figures as JSON, fail when a bar is missed.

    python -m bench [SECTION…] [--quick] [--rounds N] [--keep] [--out FILE]

Whatever is compared is measured in one run on one machine, and bars are ratios wherever they can be. With
`--quick` what needs other packages or long measurements is left out, and it takes less than two minutes. The
figures of a whole run are kept in `results/latest.json`, from which `make fix` writes those in the README. A
run of some sections writes beside it, to a file that is not kept, or with `--keep` replaces these sections
there; each says when it was measured, and how busy others kept the machine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, cast

from fanfold import __version__
from fanfold.store.database import file_system

Table = dict[str, dict[str, float]]
SECTIONS = (
    "kernel",
    "startup",
    "bounds",
    "sizes",
    "search",
    "workspace",
    "writers",
    "waits",
    "agents",
    "growth",
    "children",
    "durable",
    "cluster",
    "sizing",
)
QUICK = ("kernel", "startup", "sizes")
QUICK_ROUNDS = 5
RESULTS = Path(__file__).parent / "results"
KEPT, PASSING = RESULTS / "latest.json", RESULTS / "some.json"


class Section(Protocol):
    """What a benchmark module offers."""

    __doc__: str

    def measure(self, rounds: int) -> Table: ...
    def failures(self, table: Table) -> list[str]: ...


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], default=[], metavar="SECTION",
                        help=", ".join(SECTIONS))  # fmt: skip
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}, few rounds")
    parser.add_argument("--rounds", type=int, help="turns of each contender; the best counts (7)")
    parser.add_argument("--keep", action="store_true", help="replace these sections in the kept figures")
    parser.add_argument("--out", type=Path, help="where the figures go")
    options = parser.parse_args(argv)
    sections = options.sections or (QUICK if options.quick else SECTIONS)
    whole = set(sections) == set(SECTIONS)
    out = options.out or (KEPT if whole or options.keep else PASSING)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else 7)
    known: dict[str, object] = json.loads(out.read_text()) if options.keep and out.exists() else {}
    results = {name: figures for name, figures in known.items() if name in SECTIONS} | {
        "versions": {"fanfold": __version__, "python": platform.python_version()},
        "machine": machine(),
    }
    missed: list[str] = []
    for name in sections:
        section = cast(Section, importlib.import_module(f"bench.{name}"))
        how: dict[str, object] = {
            "command": f"python -m bench {name} --rounds {rounds}",
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
            "load_before": round(os.getloadavg()[0], 1),
        }
        table = section.measure(rounds)
        told: dict[str, dict[str, str]] = getattr(section, "facts", {})
        problems = section.failures(table)
        how["load_after"] = round(os.getloadavg()[0], 1)
        results[name] = how | {"table": table, "missed": problems} | ({"facts": told} if told else {})
        print(f"\n{section.__doc__.splitlines()[0]}\n")
        _print_table(table)
        for who, said in told.items():
            print(f"{who}: {', '.join(f'{key} {value}' for key, value in said.items())}")
        missed += [f"{name}: {problem}" for problem in problems]
        # After each section: a long run that is cut short keeps what it found.
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(results, indent=1) + "\n")
    for problem in missed:
        print(f"missed: {problem}", file=sys.stderr)
    print(f"\nwritten to {out}")
    return 1 if missed else 0


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpus": os.cpu_count(),
        "kind": platform.machine(),
        "processor": found[1] if found else "unknown",
        "memory_gb": round(memory),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "file_system": file_system(Path(__file__).parent) or "unknown",
    }


def _print_table(table: Table) -> None:
    """One table, or one for each kind of row where rows have nothing in common."""
    kinds: dict[tuple[str, ...], dict[str, dict[str, float]]] = {}
    for name, row in table.items():
        kind = next((known for known in kinds if set(known) & set(row)), tuple(row))
        kinds.setdefault(kind, {})[name] = row
    width = max(len(name) for name in table)
    for rows in kinds.values():
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        print(" " * width, *(f"{column:>{max(10, len(column))}}" for column in columns))
        for name, row in rows.items():
            cells = (_cell(row, column) for column in columns)
            print(f"{name:<{width}}", *cells)


def _cell(row: dict[str, float], column: str) -> str:
    width = max(10, len(column))
    if column not in row:
        return " " * width
    value = row[column]
    return f"{value:>{width}.0f}" if value >= 1_000 or value == int(value) else f"{value:>{width}.2f}"


if __name__ == "__main__":
    sys.exit(main())
