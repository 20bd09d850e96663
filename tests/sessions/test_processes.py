"""Processes: what they get, what is kept of what they say, and that nothing of them is left."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from fanfold.sessions.processes import (
    ExitStatus,
    ProcessTimeout,
    child_environment,
    end_session,
    end_tree,
    find_stragglers,
    run_process,
    start_process,
    sweep_stragglers,
)
from tests.sessions.trees import HOPPER, TREES, alive, is_alive, pids_in, until, wait_until
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

MINE = f"test-{os.getpid()}"
"""Sessions have unique ids: what is swept in one test process must not be another's."""


def run(*argv: str, **given) -> ExitStatus:
    return asyncio.run(run_process(argv, **{"cwd": "/", "session_id": MINE, **given}))


def command_for(tree: str, pids: Path) -> list[str]:
    if tree == "hops from session to session":
        return [sys.executable, "-c", HOPPER, str(pids)]
    return ["bash", "-c", TREES[tree].format(pids=pids)]


SINGLE = ("ignores SIGTERM", "stops itself")
ALL_TREES = [*TREES, "hops from session to session"]


def test_a_command_reads_its_input_and_hands_back_what_it_says():
    async def story() -> ExitStatus:
        script = ["bash", "-c", "cat; echo oops >&2; exit 3"]
        process = await start_process(script, cwd="/", session_id=MINE, stdin=b"hello\n")
        return ExitStatus(await process.wait(), *process.said())

    assert asyncio.run(story()) == ExitStatus(3, "hello\n", "oops\n")


def test_a_command_killed_by_a_signal_has_a_negative_exit_code():
    assert run("bash", "-c", "kill -SEGV $$").exit_code == -signal.SIGSEGV


def test_a_command_runs_in_its_folder(tmp_path):
    assert run("pwd", cwd=str(tmp_path)).stdout.strip() == str(tmp_path)


def test_a_program_that_does_not_exist_is_an_error_of_its_kind():
    with pytest.raises(FileNotFoundError):
        run("no-such-program-anywhere", env={"PATH": "/usr/bin:/bin"})


def test_a_file_that_may_not_be_executed_is_an_error_of_its_kind(tmp_path):
    (tmp_path / "text").write_text("hello")
    with pytest.raises(PermissionError):
        run(str(tmp_path / "text"))


def test_a_folder_that_does_not_exist_is_an_error_of_its_kind(tmp_path):
    with pytest.raises(FileNotFoundError, match="gone"):
        run("true", cwd=str(tmp_path / "gone"))


def test_beginning_and_end_of_too_much_output_are_kept():
    ended = run(
        "bash", "-c", "echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo last", max_output_bytes=200
    )
    assert ended.stdout.startswith("first\nxxx")
    assert ended.stdout.endswith("xxxlast\n")
    assert "bytes left out" in ended.stdout
    assert len(ended.stdout) < 300


def test_signals_and_descriptors_are_as_a_program_expects_them(tmp_path):
    held = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(held, True)
    try:
        look = (
            "import os, signal; print(signal.getsignal(signal.SIGTERM), sorted(os.listdir('/proc/self/fd')))"
        )
        said = run(sys.executable, "-c", look).stdout
    finally:
        os.close(held)
    assert said == "0 ['0', '1', '2', '3']\n"  # the fourth is the listing itself


def test_the_environment_is_an_allow_list(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    monkeypatch.setenv("SOMETHING_ELSE", "canary")
    monkeypatch.setenv("LC_TIME", "C")
    said = run("env", env={"GIVEN": "by the step", "RENAMED": "sk-canary", "ANTHROPIC_API_KEY": "x"}).stdout
    assert "canary" not in said
    assert "ANTHROPIC" not in said
    names = {line.partition("=")[0] for line in said.splitlines()}
    assert {"PATH", "HOME", "LC_TIME", "GIVEN", "FANFOLD_SESSION"} <= names
    assert f"FANFOLD_SESSION={MINE}\n" in said


def test_a_step_cannot_take_another_session_s_mark():
    assert child_environment("mine", {"FANFOLD_SESSION": "other"})["FANFOLD_SESSION"] == "mine"


@pytest.mark.full
@pytest.mark.parametrize("tree", ALL_TREES)
def test_a_cancelled_command_leaves_nothing_alive(tree, tmp_path):
    pids = tmp_path / "pids"

    async def cancel() -> float:
        work = asyncio.create_task(
            run_process(command_for(tree, pids), cwd="/", session_id=f"{MINE}-cancel", grace_s=0.3)
        )
        await until(lambda: len(pids_in(pids)) >= (1 if tree in SINGLE else 2))
        began = time.monotonic()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        return time.monotonic() - began

    assert asyncio.run(cancel()) < PATIENCE_S
    assert alive(pids) == []


@pytest.mark.parametrize("turns", range(12))
def test_a_command_cancelled_while_it_is_being_started_ends_at_once(turns):
    async def cancelled() -> None:
        task = asyncio.create_task(run_process(["sleep", "600"], cwd="/", session_id=MINE, grace_s=0.1))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait_for(asyncio.wait({task}), PATIENCE_S)
        assert task.cancelled()

    asyncio.run(cancelled())
    assert not find_stragglers([MINE])


@pytest.mark.parametrize("tree", ["double-forks and clears its environment", "forks all the time"])
def test_a_command_out_of_time_leaves_nothing_alive(tree, tmp_path):
    pids = tmp_path / "pids"
    with pytest.raises(ProcessTimeout) as caught:
        run(*command_for(tree, pids), timeout_s=0.5, grace_s=0.2)
    assert caught.value.ended.exit_code < 0
    assert alive(pids) == []


def test_background_processes_of_a_command_end_with_it(tmp_path):
    pids = tmp_path / "pids"
    ended = run("bash", "-c", TREES["double-forks"].format(pids=pids).replace("sleep 60", "echo done"))
    assert (ended.exit_code, ended.stdout) == (0, "done\n")
    assert alive(pids) == []


def test_a_command_that_ends_when_asked_is_not_killed():
    async def ask() -> ExitStatus:
        process = await start_process(
            ["bash", "-c", "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done"],
            cwd="/",
            session_id=f"{MINE}-ask",
        )
        await until(lambda: process.said()[0])
        await end_tree(process)
        return ExitStatus(await process.wait(), *process.said())

    ended = asyncio.run(ask())
    assert (ended.exit_code, ended.stdout) == (7, "ready\nbye\n")


def test_ending_a_session_ends_all_of_its_trees_and_no_other(tmp_path):
    async def end() -> None:
        mine = [
            await start_process(["sleep", "60"], cwd="/", session_id=f"{MINE}-mine"),
            await start_process(["sleep", "60"], cwd="/", session_id=f"{MINE}-mine"),
        ]
        other = await start_process(["sleep", "60"], cwd="/", session_id=f"{MINE}-other")
        await end_session(f"{MINE}-mine")
        assert [is_alive(process.pid) for process in (*mine, other)] == [False, False, True]
        await end_session(f"{MINE}-other", grace_s=0)
        assert await other.wait() == -signal.SIGKILL

    asyncio.run(end())


def test_an_interactive_process_is_talked_to():
    async def talk() -> tuple[bytes, int]:
        process = await start_process(["cat"], cwd="/", session_id=f"{MINE}-talk", interactive=True)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"hello\n")
        line = await process.stdout.readline()
        process.stdin.close()
        return line, await process.wait()

    assert asyncio.run(talk()) == (b"hello\n", 0)


def test_a_killed_keeper_takes_its_command_along_and_the_mark_finds_the_rest(tmp_path):
    pids = tmp_path / "pids"

    async def kill() -> int:
        process = await start_process(
            ["bash", "-c", TREES["double-forks"].format(pids=pids)], cwd="/", session_id=f"{MINE}-keeper"
        )
        await until(lambda: len(pids_in(pids)) == 2)
        os.kill(process.keeper, signal.SIGKILL)
        return await process.wait()

    assert asyncio.run(kill()) == -signal.SIGKILL
    assert alive(pids) == []


OWNER = """
import asyncio, sys
from fanfold.sessions.processes import run_process

async def main():
    await asyncio.gather(*(
        run_process(["bash", "-c", line], cwd="/", session_id=f"{sys.argv[1]}-{i}")
        for i, line in enumerate(sys.argv[2:])
    ))

asyncio.run(main())
"""


def start_owner(name: str, pids: Path, trees: list[str], expected: int) -> subprocess.Popen[bytes]:
    lines = [TREES[tree].format(pids=pids) for tree in trees]
    owner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(OWNER), name, *lines])
    wait_until(lambda: len(pids_in(pids)) >= expected)
    return owner


@pytest.mark.full
def test_no_process_outlives_a_killed_owner(tmp_path):
    pids = tmp_path / "pids"
    trees = ["ignores SIGTERM", "leaves its session", "double-forks and clears its environment"]
    owner = start_owner(f"{MINE}-owner", pids, trees, 5)
    owner.kill()
    owner.wait()
    wait_until(lambda: alive(pids) == [])
    assert len(pids_in(pids)) >= 5, "there was something to outlive it"


@pytest.mark.full
def test_processes_of_a_dead_owner_whose_keeper_died_too_are_swept_by_their_mark(tmp_path):
    pids = tmp_path / "pids"
    owner = start_owner(f"{MINE}-sweep", pids, ["double-forks"], 2)
    keeper = next(pid for pid in find_stragglers([f"{MINE}-sweep-0"]) if pid not in pids_in(pids))
    owner.send_signal(signal.SIGSTOP)
    os.kill(keeper, signal.SIGKILL)  # the command dies with its keeper, what it left behind does not
    owner.kill()
    owner.wait()
    assert alive(pids) != []
    assert sweep_stragglers(["somebody else"]) == []
    assert sweep_stragglers([f"{MINE}-sweep-0"]) != []
    assert alive(pids) == []


@pytest.mark.full
def test_a_sweep_waits_for_keepers_that_are_still_at_it(tmp_path):
    pids = tmp_path / "pids"
    owner = start_owner(f"{MINE}-late", pids, ["double-forks and clears its environment"], 2)
    owner.kill()
    owner.wait()
    sweep_stragglers([f"{MINE}-late-0"])
    assert alive(pids) == []


def test_a_hundred_commands_at_once(tmp_path):
    async def many() -> list[ExitStatus]:
        return await asyncio.gather(
            *(run_process(["echo", str(i)], cwd="/", session_id=f"{MINE}-{i}") for i in range(100))
        )

    assert [ended.stdout for ended in asyncio.run(many())] == [f"{i}\n" for i in range(100)]
