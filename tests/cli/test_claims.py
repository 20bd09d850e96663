"""Shared writers of several processes on the same files: one after the other, and none for ever."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

COUNT = """\
name: count
steps:
  - id: add
    for_each: "[1, 2, 3, 4, 5]"
    run: [python3, add.py]
    workspace_mode: shared
    write_set: [n.txt]
"""
ADD = """\
import pathlib, time
file = pathlib.Path("n.txt")
n = int(file.read_text())
time.sleep(0.05)
file.write_text(f"{n + 1}\\n")
"""
SLOW = """\
name: slow
steps:
  - {id: hold, agent: worker, prompt: Go, workspace_mode: shared, write_set: ["docs/**"]}
"""
QUICK = """\
name: quick
steps:
  - {id: want, agent: worker, prompt: Go, workspace_mode: shared, write_set: [docs/a.md], timeout: 5s}
  - {id: other, agent: worker, prompt: Go, workspace_mode: shared, write_set: [src/a.py]}
"""


@pytest.fixture
def files(project: Path) -> Path:
    (project / "n.txt").write_text("0\n")
    (project / "add.py").write_text(ADD)
    for name, text in (("count", COUNT), ("slow", SLOW), ("quick", QUICK)):
        (project / f"{name}.yaml").write_text(text)
    (project / "slow.script.yaml").write_text("default: {output: done, delay_ms: 3600000}\n")
    (project / "quick.script.yaml").write_text("default: ok\n")
    return project


def start(background: Callable[..., Any], recipe: str) -> Any:
    return background("run", f"{recipe}.yaml", "--script", f"{recipe}.script.yaml", "--yes", "--json")


def the_run(fanfold: Callable[..., Any], recipe: str) -> str:
    listed = fanfold("runs", "--json")
    found = listed.json() if listed.status == 0 else []  # its database is just being made
    runs = [run for run in found if run["recipe"] == recipe]
    return str(runs[0]["run_id"]) if runs else ""


def wait_for(fanfold, until, recipe, step, status):
    """The run of a recipe, when a step of it has come to a status."""
    deadline = time.monotonic() + PATIENCE_S
    while not (run := the_run(fanfold, recipe)):
        assert time.monotonic() < deadline
        time.sleep(0.03)
    until(lambda seen: seen["steps"].get(step, {}).get("status") == status, run)
    return run


def test_two_processes_lose_no_update(files, background):
    runs = [background("run", "count.yaml", "--yes", "--json") for _ in range(3)]
    for run in runs:
        out, err = run.communicate(timeout=PATIENCE_S)
        assert run.returncode == 0, (out, err)
    assert (files / "n.txt").read_text() == "15\n"


def test_a_step_waits_without_a_slot_for_files_of_another_run_and_names_it(fanfold, files, background, until):
    start(background, "slow")
    holder = wait_for(fanfold, until, "slow", "hold", "running")
    start(background, "quick")
    quick = wait_for(fanfold, until, "quick", "want", "waiting")
    until(lambda seen: seen["steps"]["other"]["status"] == "completed", quick)
    told = fanfold("explain", quick, "want", "--json").json()
    assert (told["reason"], told["blocked_by"]) == ("held", [f"run {holder}, step hold"])
    assert f"waits for files of run {holder}, step hold" in fanfold("logs", quick).out
    assert fanfold("verify", quick).status == 0
    assert fanfold("cancel", holder).status == 0
    done = until(lambda seen: seen["status"] == "completed", quick)
    assert done["steps"]["want"]["attempts"] == 1, "its time counts from when it has the files"


def test_changes_by_a_writer_of_another_run_are_no_violation(fanfold, files, background, until):
    (files / "wait.py").write_text(
        "import pathlib, time\n"
        "pathlib.Path('a.txt').write_text('begun')\n"
        "while not pathlib.Path('b.txt').exists(): time.sleep(0.02)\n"
    )
    step = "{id: one, run: [python3, %s], workspace_mode: shared, write_set: [%s]}"
    (files / "a.yaml").write_text(f"name: a\nsteps: [{step % ('wait.py', 'a.txt')}]\n")
    (files / "b.py").write_text("import pathlib\npathlib.Path('b.txt').write_text('x')\n")
    (files / "b.yaml").write_text(f"name: b\nsteps: [{step % ('b.py', 'b.txt')}]\n")
    waiting = background("run", "a.yaml", "--yes", "--json")
    deadline = time.monotonic() + PATIENCE_S
    while not (files / "a.txt").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert fanfold("run", "b.yaml", "--yes").status == 0
    out, _ = waiting.communicate(timeout=PATIENCE_S)
    assert waiting.returncode == 0, out


@pytest.mark.parametrize("how", ["killed", "paused"])
def test_the_files_of_an_owner_that_is_gone_are_free(fanfold, files, background, until, how):
    holding = start(background, "slow")
    holder = wait_for(fanfold, until, "slow", "hold", "running")
    start(background, "quick")
    quick = wait_for(fanfold, until, "quick", "want", "waiting")
    if how == "killed":
        holding.send_signal(signal.SIGKILL)
    else:
        assert fanfold("pause", holder).status == 0
    until(lambda seen: seen["status"] == "completed", quick)


def test_a_returning_process_waits_for_the_new_owner(fanfold, files, background, until):
    first = start(background, "slow")
    run = wait_for(fanfold, until, "slow", "hold", "running")
    first.send_signal(signal.SIGKILL)
    first.wait()
    (files / "slow2.yaml").write_text(SLOW.replace("name: slow", "name: slow2"))
    background("run", "slow2.yaml", "--script", "slow.script.yaml", "--yes")
    other = wait_for(fanfold, until, "slow2", "hold", "running")
    background("resume", run)
    until(lambda seen: seen["steps"]["hold"]["status"] == "waiting", run)
    assert fanfold("cancel", other).status == 0
    until(lambda seen: seen["steps"]["hold"]["status"] == "running", run)
    assert fanfold("cancel", run).status == 0
    assert fanfold("verify", "--all").status == 0
