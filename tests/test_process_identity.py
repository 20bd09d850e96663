"""A process is told from another one that got its number later."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from fanfold.process_identity import ProcessIdentity, start_time, this_process


def test_a_process_is_known_by_its_boot_pid_and_start():
    myself = this_process()
    assert myself.is_alive()
    assert not replace(myself, boot_id="another boot").is_alive()
    assert not replace(myself, started="1").is_alive()
    assert replace(myself, started="1", namespace="another").is_alive(), "it cannot be seen from here"


def test_only_a_process_of_this_machine_can_be_known_to_be_dead():
    myself = this_process()
    remote = replace(myself, boot_id="another boot", machine="build-7-0a1b2c3d")
    assert remote.is_alive(), "its machine may be up"
    assert remote.place == f"process {myself.pid} on build-7"
    assert not replace(remote, machine=myself.machine).is_alive(), "this machine was started again"
    assert not replace(remote, machine="").is_alive(), "records of earlier releases are of this machine"
    renamed = replace(myself, machine="build-7-0a1b2c3d", started="1")
    assert not renamed.is_alive(), "the same boot is the same machine, whatever its name"
    assert ProcessIdentity.parse(str(remote)) == remote
    assert ProcessIdentity.parse("boot:7:42:9") == ProcessIdentity("boot", 7, "42", "9")


@pytest.mark.full
def test_a_finished_process_is_dead_even_before_its_parent_noticed():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = replace(this_process(), pid=child.pid, started=start_time(child.pid) or "")
    assert owner.is_alive()
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not owner.is_alive(), "a zombie owns nothing"
    child.communicate()
    assert not owner.is_alive()


@pytest.mark.full
@pytest.mark.skipif(not os.path.exists("/bin/ps"), reason="needs ps: apt-get install procps")
def test_without_a_process_file_system_ps_lists_live_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr("fanfold.process_identity.BOOT_ID", tmp_path / "missing")
    monkeypatch.setattr("fanfold.process_identity.STAT", f"{tmp_path}/missing/{{pid}}")
    started = start_time(os.getpid())
    assert started
    assert started == start_time(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert start_time(child.pid) is None


def test_an_invalid_identity_belongs_to_no_process():
    assert ProcessIdentity.parse("") is None
    assert ProcessIdentity.parse("boot:x:1:2") is None
    assert ProcessIdentity.parse("boot:1:2") is None
    myself = this_process()
    assert ProcessIdentity.parse(str(myself)) == myself


@pytest.mark.full
def test_a_process_may_call_itself_anything():
    """A name that is no text and looks like fields must not hide a process or break who asks."""
    code = "import ctypes; ctypes.CDLL(None).prctl(15, b'\\xff) Z 1 ('); print(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout
    child.stdout.readline()
    assert (start_time(child.pid) or "").isdecimal()
    child.kill()
    child.communicate()
