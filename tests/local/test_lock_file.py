"""Who serves a model is decided by a lock that dies with its holder."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanfold.agents.local import server_process
from fanfold.agents.local.server_process import ServerFiles, ServerRecord

HOLD = """
import sys, time
from pathlib import Path
from fanfold.agents.local import server_process as lock_file
place = lock_file.place_of(Path(sys.argv[1]), Path(sys.argv[2]))
handle = lock_file.hold(place)
if handle is not None and sys.argv[3] != "silent":
    lock_file.write(handle, lock_file.ServerRecord(__import__("os").getpid(), time.time(), "ready", 4711))
print("taken" if handle is None else "holds", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path) -> ServerFiles:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    place = server_process.place_of(tmp_path / "a.gguf", tmp_path)
    server_process.prepare(place)
    return place


@pytest.fixture
def holder(place: ServerFiles, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = start(place, tmp_path)
    yield process
    process.kill()
    process.communicate()


def start(place: ServerFiles, home: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(place.weights), str(home), *(words or ("speaks",))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "holds\n"
    return process


def test_a_released_lease_has_no_server(place):
    assert server_process.read(place) is None
    place.lock.write_bytes(b'{"pid":1,"started_at":0,"state":"ready","port":80}')
    assert server_process.read(place) is None


@pytest.mark.full
def test_a_holder_is_seen_with_its_process_and_port(place, holder):
    found = server_process.read(place)
    assert found is not None
    assert (found.pid, found.state, found.base_url) == (holder.pid, "ready", "http://127.0.0.1:4711/v1")


@pytest.mark.full
def test_there_is_one_holder(place, holder):
    assert server_process.hold(place) is None


@pytest.mark.full
def test_the_lock_of_a_killed_process_is_stale_at_once(place, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert b'"ready"' in place.lock.read_bytes()
    assert server_process.read(place) is None
    handle = server_process.hold(place)
    assert handle is not None
    os.close(handle)


@pytest.mark.full
def test_a_holder_that_has_not_spoken_is_loading(place, tmp_path):
    process = start(place, tmp_path, "silent")
    found = server_process.read(place)
    process.kill()
    process.communicate()
    assert found == ServerRecord(0, 0.0, "loading")


def test_a_shorter_record_replaces_a_longer_one_whole(place):
    handle = server_process.hold(place)
    assert handle is not None
    server_process.write(handle, ServerRecord(2**22, 1_800_000_000.123, "stopping", 65_535))
    server_process.write(handle, ServerRecord(1, 1.0, "ready", 1))
    assert server_process.read(place) == ServerRecord(1, 1.0, "ready", 1)
    os.close(handle)


def test_looking_does_not_keep_a_server_from_starting(place):
    import fcntl

    looker = os.open(place.lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(looker, fcntl.LOCK_SH)
    import threading

    threading.Timer(0.1, os.close, [looker]).start()
    handle = server_process.hold(place)
    assert handle is not None
    os.close(handle)


def test_other_weights_have_a_server_of_their_own(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.gguf").write_bytes(b"GGUF")
    a, b = (server_process.place_of(tmp_path / f"{name}.gguf", tmp_path) for name in "ab")
    assert a.lock != b.lock
    (tmp_path / "a.gguf").write_bytes(b"GGUF, changed")
    assert server_process.place_of(tmp_path / "a.gguf", tmp_path).lock != a.lock


def test_a_server_notices_that_its_address_file_is_gone(place):
    handle = server_process.hold(place)
    assert handle is not None
    assert server_process.is_still_there(place, handle)
    place.lock.unlink()
    assert not server_process.is_still_there(place, handle)
    place.lock.touch()
    assert not server_process.is_still_there(place, handle)
    os.close(handle)


def test_the_folder_is_its_owner_s_alone(place):
    assert place.lock.parent.stat().st_mode & 0o077 == 0
