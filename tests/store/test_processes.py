"""Several processes in one project: nobody sees a lock, nothing is lost, and a kill loses nothing said."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from random import Random

import pytest

from fanfold.process_identity import this_process
from fanfold.store.protocol import LeaseHeld
from fanfold.store.sqlite import SqliteStore
from fanfold.testing.store_races import Tree
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
LONG = bool(os.environ.get("FANFOLD_LONG"))
PROCESSES = 4
STEPS = 200 if LONG else 40
KILLS = 40 if LONG else 6

PRELUDE = """
import sys
from pathlib import Path
from fanfold.process_identity import this_process
from fanfold.store.protocol import Request
from fanfold.store.sqlite import SqliteStore
from fanfold.testing.store_races import Tree
folder, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
"""


def start(code: str, folder: Path, name: str, count: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code), str(folder), name, str(count)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(processes: "list[subprocess.Popen[str]]") -> list[str]:
    """Their outputs; none may have complained."""
    results = [process.communicate(timeout=PATIENCE_S) for process in processes]
    assert [error for _, error in results] == [""] * len(processes)
    return [output for output, _ in results]


def test_processes_that_open_write_and_ask_at_once_never_see_a_lock(tmp_path: Path):
    code = """
        store = SqliteStore(folder)
        tree = Tree(name, store.acquire(name, this_process()).epoch)
        for number in range(count):
            store.write([tree.step()])
            store.request(Request(root="shared", run_id=name, kind="input", data={"n": number}, at=number))
            list(store.tree(name, after=tree.place - 1))
        store.close()
    """
    folder = tmp_path / ".fanfold"
    finish([start(code, folder, f"r{number}", STEPS) for number in range(PROCESSES)])
    store = SqliteStore(folder)
    for number in range(PROCESSES):
        assert [event.tree_seq for event in store.tree(f"r{number}")] == list(range(1, 2 * STEPS + 1))
    asked = [(request.run_id, request.data["n"]) for request in store.requests("shared")]
    assert sorted(asked) == [(f"r{process}", n) for process in range(PROCESSES) for n in range(STEPS)]
    assert len(store.output_rows(limit=10_000)) == PROCESSES * STEPS
    store.close()


def test_only_one_of_many_processes_gets_the_lease(tmp_path: Path):
    code = """
        from fanfold.store.protocol import LeaseHeld
        store = SqliteStore(folder)
        try:
            print(store.acquire("r1", this_process()).epoch)
        except LeaseHeld:
            print("held")
        sys.stdout.flush()
        sys.stdin.read()
    """
    processes = [start(code, tmp_path, "", 0) for _ in range(PROCESSES)]
    answers = []
    for process in processes:
        assert process.stdout
        answers.append(process.stdout.readline().strip())
    assert sorted(answers) == ["1", "held", "held", "held"]
    for process in processes:
        process.kill()
        process.communicate()


def test_a_killed_process_keeps_its_word(tmp_path: Path):
    code = """
        store = SqliteStore(folder)
        tree = Tree(name, store.acquire(name, this_process()).epoch)
        last = list(store.log(name))
        tree.place = len(last)
        tree.seqs[name] = len(last)
        while True:
            store.write([tree.step("words " * (tree.place % 700))])
            print(tree.place, flush=True)
    """
    rng = Random(7)
    promised = 0
    for kill in range(1, KILLS + 1):
        process = start(code, tmp_path, "r1", 0)
        assert process.stdout
        assert process.stdout.readline(), "the process must get to work"
        time.sleep(rng.random() * 0.15)  # not to wait for something: to be killed anywhere
        process.send_signal(signal.SIGKILL)
        output, error = process.communicate()
        assert error == ""
        # The kill may cut a line in two; only a whole line was said.
        lines = output.splitlines(keepends=True)
        promised = max([promised, *(int(line) for line in lines if line.endswith("\n"))])
        store = SqliteStore(tmp_path)
        events = list(store.tree("r1"))
        assert [event.tree_seq for event in events] == list(range(1, len(events) + 1))
        assert len(events) >= promised
        assert len(events) % 2 == 0, "half of a transaction"
        assert max(event.epoch for event in events) == kill, "a dead owner's lease is taken at once"
        assert store._db.pragma("integrity_check") == "ok"
        store.close()


def test_a_held_lease_is_explained(tmp_path: Path):
    store = SqliteStore(tmp_path)
    store.acquire("r1", this_process())
    with pytest.raises(LeaseHeld) as held:
        store.acquire("r1", this_process())
    assert str(os.getpid()) in held.value.message
    assert held.value.hint
    store.write([Tree("r1", 1).step()])
    store.close()
