"""Twelve isolated writers of one recipe on a user's repository, through the command line.

Their write-sets are apart, nested, equal, or overlap by a pattern. They run side by side in one copy of the
repository and one after the other in a second copy. Both must end with the same tree; the log must show that
what overlaps never ran at the same time and that what does not, did; and git must notice nothing but the
changed files.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.work import PATIENCE_S
from tests.workspace.trees import GIT, git, git_bytes, repository, tree, write

pytestmark = pytest.mark.full

RECIPE = """\
name: twelve
steps:
  - {id: guide, agent: worker, write_set: ["docs/**"], prompt: p}
  - {id: web, agent: worker, write_set: ["web/**"], prompt: p}
  - {id: data, agent: worker, write_set: ["data/*.csv"], prompt: p}
  - {id: whole, agent: worker, write_set: ["src/**"], prompt: p}
  - {id: leaf, agent: worker, write_set: ["src/a/*"], prompt: p}
  - {id: deep, agent: worker, write_set: ["src/a/deep/**/*.py"], prompt: p}
  - {id: first, agent: worker, write_set: [CHANGES.md], prompt: p}
  - {id: second, agent: worker, write_set: [CHANGES.md], prompt: p}
  - {id: toml, agent: worker, write_set: ["config/*.toml"], prompt: p}
  - {id: app, agent: worker, write_set: ["config/app.*"], prompt: p}
  - {id: locks, agent: worker, write_set: ["**/*.lock"], prompt: p}
  - {id: program, run: [python3, tools/make.py], write_set: [tools/run.sh]}
  # Three that break the rules: nothing of theirs may arrive.
  - {id: stray, agent: worker, write_set: ["notes/*.txt"], prompt: p}
  - {id: sneak, run: [tee, out/mine.txt, out.txt], write_set: ["out/*.txt"]}
  - {id: nothing, agent: worker, write_set: [], workspace_mode: isolated, prompt: p}
"""

SCRIPT = r"""
steps:
  guide: {delay_ms: 100, output: ok, writes: {docs/guide.md: "guide\n", docs/deep/new.md: "new\n"}}
  web: {delay_ms: 100, output: ok, writes: {web/app.js: "app\n"}, deletes: [web/old.js]}
  data: {delay_ms: 100, output: ok, writes: {data/local.csv: "1,2\n", data/more.csv: "3\n"}}
  whole: {delay_ms: 100, output: ok, writes: {src/top.py: "whole\n", src/a/one.py: "whole\n",
                                              src/a/deep/x.py: "whole\n"}}
  leaf: {delay_ms: 100, output: ok, deletes: [src/a/two.py],
         tool_calls: [{tool: edit_file, args: {path: src/a/one.py, old: whole, new: "whole, then leaf"}}]}
  deep: {delay_ms: 100, output: ok, writes: {src/a/deep/x.py: "deep\n", src/a/deep/er/y.py: "deep\n"}}
  first: {delay_ms: 100, output: ok, writes: {CHANGES.md: "first\n"}}
  second: {delay_ms: 100, output: ok,
           tool_calls: [{tool: edit_file, args: {path: CHANGES.md, old: "first\n", new: "first\nsecond\n"}}]}
  toml: {delay_ms: 100, output: ok, writes: {config/app.toml: "toml\n", config/db.toml: "toml\n"}}
  app: {delay_ms: 100, output: ok, writes: {config/app.ini: "app\n"},
        tool_calls: [{tool: edit_file, args: {path: config/app.toml, old: toml, new: "toml, then app"}}]}
  locks: {delay_ms: 100, output: ok, writes: {all.lock: "l\n", src/a/deep/er/in.lock: "l\n"}}
  stray: {delay_ms: 100, output: ok, writes: {notes/fine.txt: "no\n", README.md: "no\n"}}
  nothing: {delay_ms: 100, output: ok, writes: {free.txt: "no\n"}}
"""

OVERLAPPING = {
    ("whole", "leaf"), ("whole", "deep"), ("first", "second"), ("toml", "app"),
    *((other, "locks") for other in ("guide", "web", "whole", "leaf", "app")),
}  # fmt: skip
AT_ONCE = (
    {"guide", "web", "data", "whole", "first", "toml", "program", "stray", "sneak", "nothing"},
    {"leaf", "deep"},
)
"""Steps that nothing keeps apart, so that each must have lived beside all of the others."""
BREAKERS = {
    "stray": ("violation", "tool.outside_write_set"),
    "sneak": ("violation", "workspace.violation"),
    "nothing": ("permission", "permission_denied"),  # an empty set makes a reader, and readers are refused
}

COMMITTED: dict[str, str | bytes] = {
    ".gitignore": "*.tmp\n", "README.md": "read me\n", "CHANGES.md": "",
    "gone.txt": "g\n", "docs/guide.md": "old\n", "web/app.js": "old\n", "web/old.js": "old\n",
    "data/a.csv": "0\n", "src/top.py": "old\n", "src/a/one.py": "old\n", "src/a/two.py": "old\n",
    "src/a/deep/x.py": "old\n", "config/app.toml": "old\n", "out/mine.txt": "mine\n",
    "tools/run.sh": "#!/bin/sh\n",
    "tools/make.py": """\
import os
made = os.open("tools/run.new", os.O_WRONLY | os.O_CREAT, 0o755)
os.write(made, open("tools/run.sh", "rb").read())
os.rename("tools/run.new", "tools/run.sh")
""",
}  # fmt: skip
DIRTY: dict[str, str | bytes] = {
    "README.md": "read me, I am being written\n", "docs/guide.md": "not committed\n", "staged.txt": "s\n",
    "scratch/idea.txt": "untracked\n", "data/local.csv": "untracked\n", "work.tmp": "ignored\n",
}  # fmt: skip
STATUS_BEFORE = {
    " M README.md", " M docs/guide.md", " D gone.txt", "A  staged.txt", "?? scratch/idea.txt",
    "?? data/local.csv",
}  # fmt: skip
STATUS_MERGED = {
    " M CHANGES.md", " M config/app.toml", " M src/a/deep/x.py", " M src/a/one.py", " M src/top.py",
    " M tools/run.sh", " M web/app.js", " D src/a/two.py", " D web/old.js", "?? all.lock",
    "?? config/app.ini", "?? config/db.toml", "?? data/more.csv", "?? docs/deep/new.md",
    "?? src/a/deep/er/in.lock", "?? src/a/deep/er/y.py",
}  # fmt: skip


class Ran(NamedTuple):
    """A run, its log, and what it left of a project."""

    project: Path
    result: dict[str, Any]
    log: list[dict[str, Any]]
    git_before: dict[str, tuple[str, bytes]]
    git_after: dict[str, tuple[str, bytes]]

    def places(self, step: str, **wanted: str) -> list[int]:
        """Where in the log a step is told of in these words."""
        return [
            event["seq"]
            for event in self.log
            if event["data"].get("step") == step and wanted.items() <= event["data"].items()
        ]

    def started(self, step: str) -> int:
        (found,) = self.places(step, status="started")
        return found

    def ended(self, step: str) -> int:
        words = ("finished", "completed", "failed")
        (found,) = [place for word in words for place in self.places(step, status=word)]
        return found


def plant(folder: Path) -> Path:
    project = repository(folder, COMMITTED)
    write(project, DIRTY)
    git(project, "add", "staged.txt")
    (project / "gone.txt").unlink()
    return project


def fanfold(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # A home of its own, and no answer from this one: what the machine is set to is not the test's.
    environment = {**os.environ, **GIT, "HOME": str(project.parent)}
    environment.pop("FANFOLD_HOME", None)
    command = [sys.executable, "-m", "fanfold.cli.main", *arguments]
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def status(project: Path) -> set[str]:
    found = git(project, "--no-optional-locks", "status", "--porcelain", "--untracked-files=all")
    return set(found.splitlines())


def run(project: Path, concurrency: int) -> Ran:
    before = git_bytes(project)
    options = ["--script", "../script.yaml", "--max-concurrency", str(concurrency), "--yes", "--json"]
    done = fanfold(project, "run", "../twelve.yaml", *options)
    assert done.returncode == 1, done.stdout + done.stderr  # three steps were to fail
    logged = fanfold(project, "logs", "last", "--json").stdout.splitlines()
    after = git_bytes(project)
    return Ran(project, json.loads(done.stdout), [json.loads(line) for line in logged], before, after)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("twelve")
    (made / "twelve.yaml").write_text(RECIPE)
    (made / "script.yaml").write_text(SCRIPT)
    plant(made / "project")
    assert status(made / "project") == STATUS_BEFORE
    shutil.copytree(made / "project", made / "serial", symlinks=True)
    return made


@pytest.fixture(scope="module")
def together(folder: Path) -> Ran:
    return run(folder / "project", 16)


@pytest.fixture(scope="module")
def serial(folder: Path) -> Ran:
    return run(folder / "serial", 1)


def test_the_tree_is_that_of_the_same_steps_one_after_the_other(together: Ran, serial: Ran) -> None:
    assert tree(together.project) == tree(serial.project)
    texts = {path: content.decode() for path, (_, content) in tree(together.project).items()}
    assert texts["src/a/one.py"] == "whole, then leaf\n"
    assert texts["src/a/deep/x.py"] == "deep\n"
    assert texts["CHANGES.md"] == "first\nsecond\n"
    assert texts["config/app.toml"] == "toml, then app\n"
    assert tree(together.project)["tools/run.sh"] == ("program", b"#!/bin/sh\n")


@pytest.mark.parametrize("ran", ["together", "serial"])
def test_git_status_shows_what_was_merged_and_what_was_there(
    ran: str, request: pytest.FixtureRequest
) -> None:
    found: Ran = request.getfixturevalue(ran)
    assert status(found.project) == STATUS_BEFORE | STATUS_MERGED
    assert (found.project / "README.md").read_bytes() == b"read me, I am being written\n"
    assert (found.project / "work.tmp").read_bytes() == b"ignored\n"


@pytest.mark.parametrize("ran", ["together", "serial"])
def test_the_users_repository_is_untouched_to_the_last_byte(ran: str, request: pytest.FixtureRequest) -> None:
    found: Ran = request.getfixturevalue(ran)
    assert "index" in found.git_before
    assert found.git_after == found.git_before


def test_a_dry_run_forecasts_the_overlaps(folder: Path) -> None:
    told = json.loads(fanfold(folder / "project", "run", "../twelve.yaml", "--dry-run", "--json").stdout)
    assert {(pair["a"], pair["b"]) for pair in told["conflicts"]} == OVERLAPPING


def test_the_log_shows_that_overlapping_writers_waited_for_each_others_merge(together: Ran) -> None:
    for earlier, later in OVERLAPPING:
        (merged,) = together.places(earlier, what="merge")
        assert merged < together.ended(earlier) < together.started(later), (earlier, later)


def test_the_log_shows_that_the_others_lived_at_the_same_time(together: Ran) -> None:
    for group in AT_ONCE:
        last_start = max(together.started(step) for step in group)
        assert last_start < min(together.ended(step) for step in group), group


def test_one_slot_runs_one_at_a_time_in_the_order_of_the_recipe(serial: Ran) -> None:
    steps = list(serial.result["steps"])
    for earlier, later in pairwise(steps):
        assert serial.ended(earlier) < serial.started(later)


def test_every_writer_is_merged_once_and_breakers_never(together: Ran) -> None:
    steps = together.result["steps"]
    kept = set(steps) - BREAKERS.keys()
    assert len(kept) == 12
    assert all(steps[step]["status"] == "completed" for step in kept)
    assert all(len(together.places(step, what="merge")) == 1 for step in kept)
    for step, (kind, code) in BREAKERS.items():
        error = steps[step]["error"]
        assert (steps[step]["status"], error["class"], error["code"]) == ("failed", kind, code)
        assert together.places(step, what="merge") == []
    assert not (together.project / "notes").exists()
    assert not (together.project / "out.txt").exists()
    assert not (together.project / "free.txt").exists()


def test_the_log_names_what_a_program_was_refused(together: Ran) -> None:
    (place,) = together.places("sneak", what="violation")
    (told,) = [event["data"] for event in together.log if event["seq"] == place]
    assert told["paths"] == [{"path": "out.txt", "why": "outside_write_set"}]


def test_the_log_of_both_runs_keeps_every_invariant(together: Ran, serial: Ran) -> None:
    for ran in (together, serial):
        checked = fanfold(ran.project, "verify", "last")
        assert checked.returncode == 0, checked.stdout + checked.stderr
