"""Processes of sessions whose owner is gone, found by the mark in their environment, keepers by their name.

A keeper ends its tree when its owner dies, so there is normally nothing to find. This is for what is left
when the keeper was killed too: marked processes and everything below them. A process that was started
with an empty environment and then lost all its marked ancestors cannot be told from anybody else's.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Collection
from hashlib import blake2b

from fanfold.process_identity import start_time
from fanfold.sessions.environment import MARKER
from fanfold.sessions.keeper import descendants_of, family_of

LIMIT_S = 5.0
KEEPERS_S = 1.5
LOOK_S = 0.005
KEEPER = "keep-"


def find_stragglers(session_ids: Collection[str]) -> dict[int, str]:
    """Live marked processes of these sessions and what is below them: pid and when it started."""
    marks = frozenset(f"{MARKER}={session_id}".encode() for session_id in session_ids)
    keepers = frozenset(keeper_mark(session_id).encode() for session_id in session_ids)
    spared = _own_line()
    found: dict[int, str] = {}
    for name in os.listdir("/proc") if marks and os.path.isdir("/proc") else ():
        if not name.isdigit() or not (_name_of(name) in keepers or _is_marked(name, marks)):
            continue
        for pid in (int(name), *(pid for pid, _ in descendants_of(int(name)))):
            if pid not in spared and (started := start_time(pid)):
                found[pid] = started
    return found


def sweep_stragglers(session_ids: Collection[str]) -> list[int]:
    """End every process of these sessions, at once; the pids that were killed.

    Called before a run is continued: what its last owner left behind must not write next to us. Keepers are
    left to finish, since they alone can find what hides, and killed when they do not.
    """
    killed: set[int] = set()
    began = time.monotonic()
    while (found := find_stragglers(session_ids)) and (waited := time.monotonic() - began) < LIMIT_S:
        for pid, started in found.items():
            if (waited > KEEPERS_S or not _is_keeper(pid)) and _kill(pid, started):
                killed.add(pid)
        _until_one_ends(found)
    return sorted(killed)


def _until_one_ends(pids: Collection[int]) -> None:
    """Return when one of these processes has ended, or after a moment: there may be new ones."""
    ends = select.poll()
    handles: list[int] = []
    try:
        for pid in pids:
            try:
                handles.append(os.pidfd_open(pid))
            except OSError:
                return  # it has ended
            ends.register(handles[-1], select.POLLIN)
        ends.poll(LOOK_S * 1_000)
    finally:
        for handle in handles:
            os.close(handle)


def wait_for_end(pid: int) -> None:
    """Return when a process that is about to end has done so."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return  # gone
    try:
        select.select([handle], [], [], LIMIT_S)
    finally:
        os.close(handle)


def _kill(pid: int, started: str) -> bool:
    """Kill a process if the number still means the one that was found."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if start_time(pid) == started:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            return True
    except OSError:
        pass  # it ended in between, or is not ours to signal
    finally:
        os.close(handle)
    return False


def keeper_mark(session_id: str) -> str:
    """The name of a process that keeps a tree of a session: as much as the kernel has room for."""
    return KEEPER + blake2b(session_id.encode("utf-8", "surrogateescape"), digest_size=5).hexdigest()


def _is_keeper(pid: int) -> bool:
    return _name_of(str(pid)).startswith(KEEPER.encode())


def _name_of(pid: str) -> bytes:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().rstrip(b"\n")
    except OSError:
        return b""  # gone


def _is_marked(pid: str, marks: Collection[bytes]) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(variable in marks for variable in file.read().split(b"\0"))
    except OSError:
        return False  # gone, or not ours to look at


def _own_line() -> set[int]:
    """This process and its ancestors: a session may well be what started us."""
    line: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in line:
        line.add(pid)
        pid = family_of(pid)[0]
    return line
