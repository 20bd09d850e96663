"""`make audit`: does anything that is pinned have a known vulnerability?

pip-audit asks a database of advisories on the network. A package that it could not look up may be vulnerable,
so the output counts such packages. If none could be looked up, the result is unknown (exit status 3) and
`make release` fails. CI fails for known vulnerabilities only.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from tools.tidy import ROOT

LOCKED = ("dev.txt", "local.txt", "audit.txt")
SOUND, VULNERABLE, UNKNOWN = 0, 1, 3


class Verdict(msgspec.Struct, frozen=True):
    """What came of an audit, and the exit status that says so."""

    status: int
    lines: tuple[str, ...]


def judge(packages: Iterable[dict[str, Any]]) -> Verdict:
    """What the rows that pip-audit prints as `dependencies` come to."""
    rows = {(row["name"], row.get("version", "")): row for row in packages}
    skipped = sorted(name for (name, _), row in rows.items() if "skip_reason" in row)
    found = [
        f"{name} {version}: {flaw['id']}{_fixed(flaw)}"
        for (name, version), row in sorted(rows.items())
        for flaw in row.get("vulns", ())
    ]
    looked_up = len(rows) - len(skipped)
    if not looked_up:
        return Verdict(
            UNKNOWN,
            (
                "not audited: the advisories could not be reached, so nothing is known",
                f"packages that were not looked up: {len(rows)}",
                "run `make audit` again where the network allows it",
            ),
        )
    lines = [*found, f"{looked_up} packages looked up, {len(found)} known vulnerabilities"]
    if skipped:
        lines.append(f"not looked up: {', '.join(skipped)}")
    return Verdict(VULNERABLE if found else UNKNOWN if skipped else SOUND, tuple(lines))


def _fixed(flaw: dict[str, Any]) -> str:
    versions = flaw.get("fix_versions") or ()
    return f", fixed in {', '.join(versions)}" if versions else ", not fixed yet"


def audit(program: Path, locked: Path) -> list[dict[str, Any]]:
    """The rows for one file of pins; none of its packages is installed for it."""
    options = ("--disable-pip", "--require-hashes", "--progress-spinner", "off", "--format", "json")
    ended = subprocess.run(
        [str(program), *options, "--requirement", str(locked)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    try:
        rows: list[dict[str, Any]] = msgspec.json.decode(ended.stdout)["dependencies"]
    except (msgspec.DecodeError, KeyError, TypeError):
        last = ended.stderr.strip().rpartition("\n")[2]
        sys.stderr.write(f"audit: pip-audit gave no answer about {locked.name}: {last}\n")
        return [{"name": locked.name, "skip_reason": last}]
    return rows


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="fanfold-audit-") as scratch:
        venv.create(scratch, with_pip=True)
        pip = [f"{scratch}/bin/python", "-m", "pip", "--disable-pip-version-check", "--no-input"]
        pins = ROOT / "requirements/audit.txt"
        install = [*pip, "install", "-qq", "--require-hashes", "--requirement", str(pins)]
        program = Path(scratch, "bin/pip-audit")
        if subprocess.run(install, check=False).returncode:
            rows = [{"name": name, "skip_reason": "pip-audit could not be fetched"} for name in LOCKED]
        else:
            rows = [row for name in LOCKED for row in audit(program, ROOT / "requirements" / name)]
    verdict = judge(rows)
    sys.stdout.write("".join(f"audit: {line}\n" for line in verdict.lines))
    return verdict.status


if __name__ == "__main__":
    sys.exit(main())
