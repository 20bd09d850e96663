"""`make test-full`: run every test; retry a few failures alone, once per test and repository.

Rules
* At most five failed tests are retried, without others beside them. More failures are no accident.
* A test that passes on retry is recorded in tests/flaky.json, which is committed. The run counts as passed.
* A recorded test that fails again is not retried. The commit that fixes it removes the record.
* Each commit has its own order of tests, so that a test which needs another before it is found. TEST_ORDER
  sets another order; TEST_ORDER= keeps the order of the files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from tools.tidy import ROOT

MAX_RETRIED = 5
ALL = ("--tier", "full", "--numprocesses", "auto", "--dist", "worksteal")
ALONE = ("--numprocesses", "0", "--last-failed", "--last-failed-no-failures", "none")


def main(arguments: list[str], root: Path = ROOT, everything: tuple[str, ...] = ALL) -> int:
    """Return the exit status of the tests, after retries."""
    record = root / "tests" / "flaky.json"
    recorded: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
    cache = root / ".pytest_cache" / "v" / "cache" / "lastfailed"
    cache.unlink(missing_ok=True)  # failures of other runs, which this one may not repeat
    order = os.environ.get("TEST_ORDER", _commit(root))
    print(f"order of tests: TEST_ORDER={order}", file=sys.stderr)
    status = _pytest(root, *everything, *arguments, order=order)
    if status != 1:
        return status
    failed: list[str] = sorted(json.loads(cache.read_text())) if cache.exists() else []
    for test in sorted(recorded.keys() & set(failed)):
        print(f"not retried, since it passed on retry before: {test} ({recorded[test]})", file=sys.stderr)
    if not 0 < len(failed) <= MAX_RETRIED or recorded.keys() & set(failed):
        return status
    print(f"retrying alone: {', '.join(failed)}", file=sys.stderr)
    if _pytest(root, *ALONE) != 0:
        return status
    now = f"{datetime.now(UTC):%Y-%m-%d}, {_commit(root)}"
    record.write_text(json.dumps(recorded | dict.fromkeys(failed, now), indent=2, sort_keys=True) + "\n")
    print(f"passed on retry, recorded in {record.relative_to(root)}: commit it, or fix them", file=sys.stderr)
    return 0


def _pytest(root: Path, *arguments: str, order: str = "") -> int:
    environment = {**os.environ, "TEST_ORDER": order}
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, cwd=root, env=environment, check=False).returncode


def _commit(root: Path) -> str:
    command = ["git", "-C", str(root), "rev-parse", "--short=9", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "no commit"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
