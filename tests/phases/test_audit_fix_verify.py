"""`audit-fix-verify` on the small repository kept here: wrong in the first round, right in the second."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from fanfold.wiring import BUILT_IN_RECIPES
from tests.runtime.killing import Doomed
from tests.sampling import spread
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

HERE = Path(__file__).parent
SHOP: dict[str, str] = yaml.safe_load((HERE / "shop.yaml").read_text())
RECIPE = (BUILT_IN_RECIPES / "audit-fix-verify.yaml").read_text()
ANSWERS = (HERE / "answers.yaml").read_text()
PACKAGES = ["cart", "prices"]
WHOLE = os.environ.get("KILL_TEST") == "all"
SAMPLES = 2


def shop(folder: Path) -> Path:
    """The repository in a folder of its own."""
    for name, text in SHOP.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


def fanfold(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fanfold.cli.main", *words]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The run that everything below looks at, and its document."""
    folder = shop(tmp_path_factory.mktemp("shop"))
    given = ["-i", f"packages={json.dumps(PACKAGES)}", "--script", str(HERE / "answers.yaml")]
    ran = fanfold(folder, "run", "audit-fix-verify", *given, "--yes", "--json")
    assert ran.returncode == 0, ran.stderr
    return folder, json.loads(ran.stdout)


def test_the_repository_s_own_tests_fail_then_pass(done: tuple[Path, Any]):
    folder, result = done
    assert result["status"] == "completed"
    first, second = (result["steps"][f"fix#{number}/verify"]["output"] for number in (1, 2))
    assert first["exit_code"] == 1
    assert "ValueError not raised" in first["stderr"]
    assert second["exit_code"] == 0
    assert subprocess.run([sys.executable, "-m", "unittest", "-q"], cwd=folder, check=False).returncode == 0


def test_the_words_of_tests_and_reviewers_reach_the_fixer(done: tuple[Path, Any]):
    folder, _ = done
    told = [fanfold(folder, "transcript", "last", f"fix#{n}/repair[0]").stdout for n in (1, 2)]
    for words in (
        "AssertionError: ValueError not raised",
        "The error is still swallowed",
        "cart/totals.py:15",
    ):
        assert words in told[1]
        assert words not in told[0]


def test_the_round_that_did_not_pass_is_shown_as_failed(done: tuple[Path, Any]):
    folder, _ = done
    shown = fanfold(folder, "inspect", "last").stdout
    line = next(line for line in shown.splitlines() if "fix#1" in line)
    assert "failed" in line
    assert "exit status 1" in line
    assert "fix#2" in shown


def test_the_report_says_what_changed_what_was_refuted_and_by_whom(done: tuple[Path, Any]):
    folder, result = done
    report = (folder / ".fanfold/runs" / result["run_id"] / "report.md").read_text()
    assert report.startswith("# audit-fix-verify: completed")
    assert "- modified cart/totals.py (fix#2/repair[0], merged)" in report
    assert "round 1 did not pass (exit status 1, refuted by its reviewers)" in report
    refuted = next(line for line in report.splitlines() if line.startswith("- fix#1 repair[0] refuted"))
    assert "review[0] refuted: The error is still swallowed [cart/totals.py:15]" in refuted
    assert "\n- fix#2 repair[0] survived" in report


def test_the_detected_command_is_shown_and_asked_for_before(tmp_path: Path):
    folder = shop(tmp_path)
    given = ["-i", f"packages={json.dumps(PACKAGES)}"]
    assert "python3 -m unittest" in fanfold(folder, "show", "audit-fix-verify").stdout
    assert "python3 -m" in fanfold(folder, "run", "audit-fix-verify", *given, "--dry-run").stdout
    refused = fanfold(folder, "run", "audit-fix-verify", *given, "--script", str(HERE / "answers.yaml"))
    assert refused.returncode == 4
    assert "unittest discover" in refused.stderr


class Killed(Doomed):
    """The same in processes that die at chosen commits."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SHOP, RECIPE, ANSWERS, [])
        (folder / "inputs.json").write_text(json.dumps({"packages": PACKAGES}))

    def outcome(self) -> Any:
        document = self.document()
        steps = {path: (one["status"], one["output"]) for path, one in document["steps"].items()}
        for path, (status, output) in steps.items():
            if path.endswith("/verify"):  # how long tests took is chance
                steps[path] = (status, output["exit_code"])
        text = (self.project / "cart/totals.py").read_text()
        return document["status"], document["output"], steps, text


@cache
def undisturbed(base: Path) -> tuple[Any, int]:
    run = Killed(base / "undisturbed")
    commits = run.process()
    return run.outcome(), commits


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("killed")


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_commit_and_resumed_it_ends_the_same(when: str, base: Path, tmp_path: Path):
    """A sample; `make kill-test` takes every commit."""
    expected, commits = undisturbed(base)
    for kill_at in range(1, commits + 1) if WHOLE else spread(SAMPLES, commits, when):
        run = Killed(tmp_path / str(kill_at))
        run.process(kill_at, when)
        run.process()
        assert run.outcome() == expected, kill_at
        shutil.rmtree(tmp_path / str(kill_at), ignore_errors=True)
