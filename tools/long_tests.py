"""`make long`: run what `make test` only samples, and keep what came of it in `tests/long.json`.

    python -m tools.long_tests kill-test "fuzz N=5000"

A result belongs to a commit, so a tree with changes in it is refused. One that failed is kept as well: the
table in CONTRIBUTING.md says how each of them ended in its last run.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from datetime import UTC, datetime

import msgspec

from tools.tidy import ROOT

KEPT = ROOT / "tests" / "long.json"
COUNTS = re.compile(r"\d+ (?:passed|failed|skipped|errors?)\b")


class Outcome(msgspec.Struct, frozen=True):
    """How one of the long tests ended."""

    commit: str
    day: str
    took_s: int
    passed: bool
    said: str


def main(targets: list[str]) -> int:
    if not targets:
        raise SystemExit('which? make long TARGETS="kill-test hostile"')
    if changed := _git("status", "--porcelain", "--untracked-files=no", "--", f":!{KEPT.relative_to(ROOT)}"):
        raise SystemExit(f"commit these first, so that the results belong to a commit:\n{changed}")
    outcomes = {target: _run(target) for target in targets}
    now = dict(sorted({**kept(), **outcomes}.items()))
    KEPT.write_bytes(msgspec.json.format(msgspec.json.encode(now)) + b"\n")
    return 0 if all(outcome.passed for outcome in outcomes.values()) else 1


def kept() -> dict[str, Outcome]:
    """What each target came to the last time it was run."""
    return msgspec.json.decode(KEPT.read_bytes(), type=dict[str, Outcome]) if KEPT.exists() else {}


def table() -> str:
    """The kept outcomes for people."""
    rows = [
        f"| `make {target}` | {outcome.day}, `{outcome.commit}` | {_span(outcome.took_s)} "
        f"| {'passed' if outcome.passed else '**failed**'}: {outcome.said.replace('|', chr(92) + '|')} |"
        for target, outcome in kept().items()
    ]
    return "\n".join(["| command | run on | took | outcome |", "|---|---|---|---|", *rows])


def last_words(printed: list[str]) -> str:
    """The counts of pytest where it printed any, added up over its calls; else the last line."""
    counted: dict[str, int] = {}
    for line in printed:
        if re.search(r" in [\d.]+s\b", line):
            for number, what in (found.split() for found in COUNTS.findall(line)):
                counted[what] = counted.get(what, 0) + int(number)
    if counted:
        return ", ".join(f"{number:,} {what}" for what, number in counted.items())
    said = [line.strip() for line in printed if line.strip()]
    return said[-1] if said else "nothing"


def _run(target: str) -> Outcome:
    began = time.monotonic()
    with subprocess.Popen(
        ["make", "--no-print-directory", *target.split()],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        printed = []
        for line in process.stdout:
            sys.stdout.write(line)
            printed.append(line)
    return Outcome(
        commit=_git("rev-parse", "--short=9", "HEAD"),
        day=datetime.now(UTC).date().isoformat(),
        took_s=round(time.monotonic() - began),
        passed=process.returncode == 0,
        said=last_words(printed),
    )


def _span(seconds: int) -> str:
    return f"{seconds} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _git(*arguments: str) -> str:
    result = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return result.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
