"""Waking whoever waits for the store: across processes, without polling, and harmlessly when it fails."""

import asyncio
import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fanfold.api.history import follow_tree
from fanfold.store import protocol, sqlite
from fanfold.store.protocol import RECHECK_S
from fanfold.store.sqlite import Signals, SqliteStore
from fanfold.testing.store_races import Tree
from tests.work import PATIENCE_S

SOON_S = RECHECK_S / 2
"""Sooner than looking again without being told."""


@pytest.fixture
def here(tmp_path: Path):
    made = Signals(tmp_path)
    yield made
    made.close()


def test_a_signal_reaches_all_its_listeners_and_no_others(here: Signals, tmp_path: Path):
    there = Signals(tmp_path)
    waiting = [here.listen("commits", "r1"), there.listen("commits", "r1")]
    others = [here.listen("requests", "r1"), here.listen("commits", "another")]
    here.give("commits", "r1")
    here.give("commits", "r1")
    assert [one.wait_blocking(PATIENCE_S) for one in waiting] == [True, True]
    assert [one.wait_blocking(0) for one in (*waiting, *others)] == [False] * 4, "once, whatever came before"
    for one in (*waiting, *others):
        one.close()
    there.close()


def test_a_listener_hears_what_was_signalled_before_it_waited(here: Signals):
    with here.listen("commits", "r1") as listener:
        here.give("commits", "r1")
        assert asyncio.run(listener.wait(0))
        assert not asyncio.run(listener.wait(0.01))


@pytest.mark.skipif(sys.platform != "linux", reason="needs inotify: make test-full on Linux")
def test_the_next_listener_takes_over_the_watch_without_earlier_signals(here: Signals):
    others = _open_watches()  # of whatever was tested before in this process
    for round_number in range(sqlite.MAX_IDLE + 2):
        first, second = f"r{round_number}", f"s{round_number}"
        listeners = [here.listen("commits", name) for name in (first, second)]
        here.give("commits", first)
        assert [one.wait_blocking(0) for one in reversed(listeners)] == [False, True]
        here.give("commits", first)
        here.give("commits", second)
        for one in listeners:
            one.close()
    assert _open_watches() - others == 2
    many = [here.listen("commits", f"r{number}") for number in range(2 * sqlite.MAX_IDLE)]
    for one in many:
        one.close()
    assert _open_watches() - others == sqlite.MAX_IDLE
    late = here.listen("commits", "r1")
    here.close()
    late.close()
    assert _open_watches() == others


@pytest.mark.full
def test_a_fork_that_stops_listening_does_not_stop_the_process_it_comes_from(here: Signals):
    with here.listen("commits", "r1") as listener:
        child = os.fork()
        if child == 0:
            listener.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        here.give("commits", "r1")
        assert listener.wait_blocking(0)


def _open_watches() -> int:
    """How many this process has."""
    files = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(os.path.lexists(file) and "inotify" in os.readlink(file) for file in files)


def test_a_cancelled_wait_can_be_waited_for_again(here: Signals):
    async def wait_twice(listener: sqlite.FileSignal) -> bool:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(listener.wait(), 0.01)
        here.give("commits", "r1")
        return await listener.wait(SOON_S)

    with here.listen("commits", "r1") as listener:
        assert asyncio.run(wait_twice(listener))


def test_a_wait_that_is_cancelled_as_its_listener_is_closed_leaves_the_watch_to_the_next(here: Signals):
    async def wait_and_close() -> bool:
        listener = here.listen("commits", "r1")
        waiting = asyncio.create_task(listener.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        listener.close()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        with here.listen("commits", "r2") as following:
            here.give("commits", "r2")
            return await following.wait(SOON_S)

    assert asyncio.run(wait_and_close())


def test_a_thread_that_waits_is_woken(here: Signals):
    with here.listen("commits", "r1") as listener:
        answers: list[bool] = []
        waiter = threading.Thread(target=lambda: answers.append(listener.wait_blocking(SOON_S)))
        waiter.start()
        here.give("commits", "r1")
        waiter.join()
    assert answers == [True]


def test_a_process_that_misses_a_signal_polls_soon(here: Signals, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(protocol, "RECHECK_S", 0.05)
    with here.listen("commits", "r1") as listener:
        assert listener.wait_blocking()
        assert asyncio.run(listener.wait())


@pytest.mark.skipif(sys.platform != "linux", reason="needs inotify: make test-full on Linux")
def test_without_watches_left_everybody_looks_again_before_long(
    here: Signals, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(protocol, "RECHECK_S", 0.05)
    libc = ctypes.CDLL(None)
    taken = [libc.inotify_init1(0)]
    while taken[-1] >= 0:
        taken.append(libc.inotify_init1(0))
    try:
        with here.listen("commits", "r1") as listener:
            here.give("commits", "r1")
            assert listener.wait_blocking()
            assert not listener.wait_blocking(0.01)
            assert asyncio.run(listener.wait())
    finally:
        for file in taken[:-1]:
            os.close(file)


def test_a_folder_that_may_not_be_written_is_no_error(tmp_path: Path):
    blocked = Signals(tmp_path / "missing" / "folder")
    blocked.give("commits", "r1")
    with blocked.listen("commits", "r1") as listener:
        assert not listener.wait_blocking(0.01)


def test_a_link_in_the_place_of_a_signal_is_not_followed(here: Signals, tmp_path: Path):
    here.listen("commits", "r1").close()
    (made,) = (tmp_path / "wake").iterdir()
    made.unlink()
    target = tmp_path / "target"
    made.symlink_to(target)
    here.give("commits", "r1")
    assert not target.exists()


FOLLOWER = """
import asyncio, sys
from pathlib import Path
from fanfold.api.history import follow_tree
from fanfold.store import protocol, sqlite
from fanfold.store.sqlite import SqliteStore

protocol.RECHECK_S = 3_600  # who is not told learns of nothing

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    seen = 0
    async for fresh in follow_tree(store, "r1", int(sys.argv[2])):
        print(*(event.tree_seq for event in fresh), flush=True)
        seen += len(fresh)
        if seen >= int(sys.argv[3]):
            return

asyncio.run(main())
"""


@pytest.mark.full
def test_followers_in_other_processes_see_each_commit_at_once(tmp_path: Path):
    store, tree = SqliteStore(tmp_path, durability="normal"), Tree("r1")
    store.write([tree.step()])
    arguments = [sys.executable, "-c", FOLLOWER, str(tmp_path)]
    followers = [
        subprocess.Popen([*arguments, str(after), str(22 - after)], stdout=subprocess.PIPE, text=True)
        for after in (0, 1, 2)
    ]
    killed = subprocess.Popen([*arguments, "0", "99"], stdout=subprocess.PIPE, text=True)
    for one in (*followers, killed):
        assert one.stdout is not None
        one.stdout.readline()  # it listens, and has read what is there
    killed.kill()
    killed.communicate()
    for _ in range(10):
        store.write([tree.step()])
    seen = [[int(word) for word in one.communicate(timeout=PATIENCE_S)[0].split()] for one in followers]
    assert [numbers[-20:] for numbers in seen] == [list(range(3, 23))] * 3
    store.close()


def test_following_says_when_it_is_time_to_ask_for_the_owner(tmp_path: Path):
    store, tree = SqliteStore(tmp_path, durability="normal"), Tree("r1")

    async def read() -> list[int]:
        counts = []
        async for fresh in follow_tree(store, "r1"):
            counts.append(len(fresh))
            if len(counts) == 1:
                store.write([tree.step()])
            elif len(counts) == 2:
                store.release(store.acquire("r1"))
            else:
                break
        return counts

    assert asyncio.run(read()) == [0, 2, 0]
    store.close()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("elsewhere")])
def test_a_file_in_place_of_a_signal_blocks_no_process(here: Signals, tmp_path: Path, make):
    with here.listen("commits", "r1"):
        (file,) = (tmp_path / "wake").iterdir()
    file.unlink()
    make(file)
    fresh = Signals(tmp_path)
    giving = threading.Thread(target=fresh.give, args=("commits", "r1"), daemon=True)
    giving.start()
    giving.join(PATIENCE_S)
    assert not giving.is_alive(), "it waits for somebody who writes"
    with fresh.listen("commits", "r1") as listener:
        assert listener.wait_blocking(0) is False
    assert not (tmp_path / "wake/elsewhere").exists()
    fresh.close()
