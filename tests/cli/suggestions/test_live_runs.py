"""What is suggested about runs that go on, were stopped, or lost their process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fanfold.wiring import wire
from tests.cli.suggestions.following import Fanfold, Follow, commands
from tests.cli.suggestions.places import filled, suggested
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

SLOW = """\
name: slow
steps:
  - {id: first, agent: explorer, prompt: x}
  - id: second
    run: [sh, -c, "until [ -e go ]; do sleep 0.1; done"]
    workspace_mode: shared
    depends_on: first
"""
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def slow(project: Path, background: Start, until: Any) -> subprocess.Popen[bytes]:
    """A run that is in its second step, in a process of its own, until there is a file `go`."""
    (project / "slow.yaml").write_text(SLOW)
    (project / "script.yaml").write_text("default: ok\n")
    process = background("run", "slow.yaml", "--script", "script.yaml", "--yes")
    until(lambda run: run["steps"].get("second", {}).get("status") == "running")
    return process


def killed(process: subprocess.Popen[bytes]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def run_id(fanfold: Fanfold) -> str:
    return str(fanfold("runs", "--json").json()[0]["run_id"])


@suggested(
    "api/ownership.py: fanfold watch",
    "api/fork.py: fanfold watch",
    "api/changes.py: fanfold cancel {} ends it",
    "cli/system.py: fanfold watch {}",
)
def test_while_another_process_drives_it(
    fanfold: Fanfold, follow: Follow, slow: subprocess.Popen[bytes], project: Path
) -> None:
    refused = [fanfold("resume", "last"), fanfold("retry", "last"), fanfold("undo", "last"), fanfold()]
    assert follow(refused[0], meanwhile=(project / "go").touch, may=(0, 2)) == ["watch", "pause"]
    slow.wait(PATIENCE_S)
    # It is over meanwhile: what is named is still found.
    assert follow(refused[1]) == ["watch", "resume"]
    assert follow(refused[2], may=(2,)) == ["cancel"]
    assert follow(refused[3])[0] == "watch"


@suggested(
    "steps/run_config.py: fanfold resume {}",
    "api/changes.py: fanfold resume {} continues it",
)
def test_when_a_person_pauses_it(fanfold: Fanfold, follow: Follow, project: Path, slow: object) -> None:
    paused, told, undone = fanfold("pause", "last"), fanfold(), fanfold("undo", "last")
    (project / "go").touch()
    assert follow(paused, may=(0,)) == ["resume"]
    assert follow(told)[0] == "resume"
    assert follow(undone, may=(0, 2)) == ["resume", "cancel"]


@suggested("steps/run_config.py: fanfold resume {}")
def test_when_it_is_interrupted(
    fanfold: Fanfold, follow: Follow, slow: subprocess.Popen[bytes], project: Path
) -> None:
    slow.send_signal(signal.SIGINT)
    _, told = slow.communicate(timeout=PATIENCE_S)
    said = told.decode()
    assert slow.returncode == 3
    assert "resume it: fanfold resume" in said
    (project / "go").touch()
    assert follow(said, may=(0,)) == ["resume"]


@suggested(
    "steps/run_config.py: fanfold resume {}",
    "api/system.py: or fanfold cancel",
)
def test_when_its_process_was_killed(
    fanfold: Fanfold, follow: Follow, slow: subprocess.Popen[bytes], project: Path
) -> None:
    killed(slow)
    told, diagnosis, why = fanfold(), fanfold("doctor"), fanfold("explain", "last")
    (project / "go").touch()
    assert "resume" in follow(why, may=(0,))
    assert follow(told)[0] == "resume"
    hint = diagnosis.out[diagnosis.out.index("fanfold resume") :].splitlines()[0]
    assert follow(hint, may=(0, 2)) == ["resume", "cancel"]


@suggested(
    "api/ownership.py: has the reason",
    "api/run_handle.py: the request stays",
    "store/leases.py: fanfold watch",
)
def test_when_a_process_does_not_do_what_it_was_asked(fanfold: Fanfold, follow: Follow, agents: Path) -> None:
    fanfold("run", "my agents.yaml", "--script", "ok.yaml")
    run = run_id(fanfold)
    assert follow(filled("api/run_handle.py: the request stays", run)) == ["resume"]
    assert follow(filled("api/ownership.py: has the reason", "detached.log", run)) == ["resume"]
    assert follow(filled("store/leases.py: fanfold watch", run)) == ["watch"]


@suggested("engine/requests.py: fanfold send {} --resume", "api/history.py: fanfold send {} --resume")
def test_of_a_subagent_that_lost_its_process(
    fanfold: Fanfold, follow: Follow, project: Path, until: Any
) -> None:
    (project / "s.yaml").write_text("default: {output: late, delay_ms: 3600000}\n")
    assert fanfold("spawn", "explorer", "look", "--name", "w", "--script", "s.yaml").status == 0
    until(lambda run: run["steps"].get("w", {}).get("status") == "running", "hand")
    with closing(wire(project)) as opened:
        owner = opened.store.owner("hand")
        assert owner is not None
        os.kill(owner[0].pid, signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE_S
        while opened.has_owner("hand"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    told, why = fanfold(), fanfold("explain", "hand")
    assert commands(told.out)[0] == commands(why.out)[0] == ["send", "w", "--resume"]
    resumed = fanfold("resume", "hand")
    assert commands(resumed.err) == [["send", "w", "--resume"]]
    assert commands(fanfold("inspect", "hand").out)[-1] == ["send", "w", "--resume"]
    refused = fanfold("send", "w", "hello?")
    assert "detached" in refused.err
    follow.did(why.out)
    assert follow(refused) == ["send"]
    assert fanfold("close", "w").status == 0


@suggested("api/changes.py: fanfold wait")
def test_of_a_subagent_that_still_works(fanfold: Fanfold, follow: Follow, project: Path, until: Any) -> None:
    (project / "s.yaml").write_text("default: {output: late, delay_ms: 3600000}\n")
    assert fanfold("spawn", "explorer", "look", "--name", "w", "--script", "s.yaml").status == 0
    until(lambda run: run["steps"].get("w", {}).get("status") == "running", "hand")
    refused = fanfold("undo", "hand")
    assert follow(refused, meanwhile=lambda: fanfold("close", "w"), may=(0, 1, 7)) == ["wait"]
