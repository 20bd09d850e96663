"""Calls of git and gh: known until they end, whoever called them, and waited for no longer than they run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fanfold.store.protocol import LeaseLost
from fanfold.workspace import git
from fanfold.workspace.git import ServerCalls
from tests.delivery.world import World
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

STALLING = """\
#!/bin/sh
case "$*" in "pr create"*|*" push --no-verify"*) echo in > {reached}; sleep 3;; esac
exec {real} "$@"
"""


def may() -> None:
    """This process may act."""


def test_no_program_begins_for_who_lost_its_run(tmp_path: Path) -> None:
    def lost() -> None:
        raise LeaseLost("lease.lost", "another process goes on")

    with pytest.raises(LeaseLost):
        ServerCalls(tmp_path, "d", lost).run(["/usr/bin/touch", "made"], dict(os.environ), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_program_is_given_its_input_and_heard_on_both_outputs(tmp_path: Path) -> None:
    said = ServerCalls(tmp_path, "d", may).run(
        ["/bin/sh", "-c", 'cat; pwd; echo "$A" >&2; exit 3'], {"A": "b"}, tmp_path, b"x\n"
    )
    assert said == (3, f"x\n{tmp_path}\n".encode(), b"b\n")
    assert list(tmp_path.iterdir()) == []


def test_calls_for_one_delivery_follow_each_other_however_many_ask_at_once(tmp_path: Path) -> None:
    """As two runs do that deliver the very same commit."""
    inside = tmp_path / "inside"
    script = f"mkdir {inside} || exit 9; cat; rmdir {inside}"

    def call(number: int) -> tuple[int, bytes, bytes]:
        given = str(number).encode()
        return ServerCalls(tmp_path, "d", may).run(
            ["/bin/sh", "-c", script], dict(os.environ), tmp_path, given
        )

    with ThreadPoolExecutor(8) as threads:
        said = list(threads.map(call, range(24)))
    assert said == [(0, str(number).encode(), b"") for number in range(24)]
    assert list(tmp_path.iterdir()) == []


def test_processes_left_by_a_program_are_not_awaited(tmp_path: Path) -> None:
    """As ssh does that keeps its connection open for the next one."""
    said = ServerCalls(tmp_path, "d", may).run(
        ["/bin/sh", "-c", "sleep 600 & echo $!"], dict(os.environ), tmp_path
    )
    os.kill(int(said.stdout), signal.SIGKILL)
    assert said.code == 0


def test_a_program_that_never_ends_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git, "PATIENCE_S", 0.3)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(TimeoutError):
        ServerCalls(tmp_path, "d", may).run(
            ["/bin/sh", "-c", f"sleep 600 > {pipe} & wait"], dict(os.environ), tmp_path
        )
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # nobody has it open any more
    os.close(reader)


def test_no_program_starts_before_it_is_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process died before it could write the call down."""

    def die(*_: object) -> None:
        raise OSError("no space left")

    calls = ServerCalls(tmp_path, "d", may)
    monkeypatch.setattr(git, "start_time", die)
    with pytest.raises(OSError, match="no space"):
        calls.run(["/bin/sh", "-c", f"touch {tmp_path}/began"], dict(os.environ), tmp_path)
    assert not (tmp_path / "began").exists()


@pytest.mark.parametrize("program", ["gh", "git"])
def test_a_call_of_a_dead_process_is_awaited_and_not_repeated(tmp_path: Path, program: str) -> None:
    world = World(tmp_path)
    world.allow()
    world.die_at(-1, "never")  # the real ones are beside now
    reached = tmp_path / "reached"
    os.mkfifo(reached)
    text = STALLING.format(reached=reached, real=world.programs / f"{program}.real")
    (world.programs / program).write_text(text)
    words = [sys.executable, "-m", "fanfold.cli.main", "run", "d.yaml", "--script", "s.yaml", "--yes"]
    with subprocess.Popen(
        words, cwd=world.project, env=world.environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        assert reached.read_text() == "in\n"
        process.kill()
        process.wait(PATIENCE_S)
    reached.unlink()  # a second call would be let through
    done = world.fanfold("resume", "last", "--json")
    assert json.loads(done.stdout)["status"] == "completed", done.stderr
    world.check_delivered_once()
    assert not reached.exists()
