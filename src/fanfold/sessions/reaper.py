"""The reaper: a small process between the owner process and each command. It ends with both.

The owner is the Fanfold process that starts the command. The reaper is a fork of the fork server (see
`fork_server_process`), so it uses only the standard library. Some names call it `keeper`.

Why a separate process
* It adopts orphans (`PR_SET_CHILD_SUBREAPER`). A process that the command starts may fork again, change its
  session or clear its environment. It stays a descendant of this reaper and of no other. So the reaper finds
  it and knows its session. In the owner process, every library would inherit foreign children instead.
* It detects the death of the owner. LIFE is a pipe whose other end only the owner holds. End of file means
  that the owner is dead, even by `kill -9`; the reaper then ends the tree. A death signal alone would reach
  only one generation.
* It has one thread, so code may run between fork and exec. In the owner process, with its threads, that is
  unsafe (`preexec_fn`). Programs that could do this instead are not installed everywhere.

Ending a tree
* First, SIGTERM to every descendant. After the grace period, SIGKILL to whole process groups, because the
  kernel does that atomically: a fork either sees the signal or is hit by it. This repeats until the kernel
  reports no child, dead or alive. A process that forks very fast is hit within a few rounds: when its
  ancestors end it becomes a child of the reaper, and listing children takes microseconds.
* The same happens to remaining processes when the command itself ends: no process outlives its command.

NEWS carries lines: `k PID` pid of the reaper · `p PID` started · `d ERRNO` the folder cannot be entered ·
`x ERRNO` could not be executed · `e STATUS` the command ended · `n` it was never executed, before `e` ·
`l` a process does not end after SIGKILL. LIFE carries `t MILLISECONDS`: end the tree now, with that grace
period.

The process that becomes the command reports its progress in a memory file: `s` it could not execute the
command, or `w` bubblewrap will execute it, and then `{ "exit-code": N }` from bubblewrap if it did. The
command itself never has the handle of that file. (Bubblewrap writes in pieces, which must not mix with the
lines of NEWS.)
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
ORPHANED_GRACE_S = 0.5
"""Grace period for processes that remain after the command ended, and for all after the owner died."""
STUBBORN_S = 5.0
WRAPPER_FAILED = 1
LOOK_S = 0.01
SETTLE_S = 0.005
"""How long processes may take to end together with their command, before the reaper searches for them."""
HELD_BACK = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that the reaper and the fork server ignore."""
_RESTORED = tuple(map(int, (*HELD_BACK, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)))
_DEFAULT = 0


def children_of(pid: int) -> list[int]:
    """Return the children of a process, including zombies; empty if it has ended."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:
        pass
    return found


def descendants_of(pid: int) -> list[tuple[int, int]]:
    """Return all descendants of a process as (pid, parent pid), nearest first."""
    found = [(child, pid) for child in children_of(pid)]
    for one, _ in found:  # the list grows while it is walked
        found += [(child, one) for child in children_of(one)]
    return found


def family_of(pid: int) -> tuple[int, int]:
    """Return parent and process group of a process; zeros if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0, 0
    return int(fields[1]), int(fields[2])


def signal_one(pid: int, parent: int, number: int, groups: set[int] | None = None) -> None:
    """Signal a descendant if the pid still means the same process; with `groups`, its group too."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return  # it has ended
    try:
        # While the handle is open, the pid is not reused: the checked process is the signalled one.
        now, group = family_of(pid)
        if now not in (parent, os.getpid()):
            return
        if groups is not None and group > 1 and group != os.getpgrp() and group not in groups:
            groups.add(group)
            os.killpg(group, number)
        signal.pidfd_send_signal(handle, number)
    except OSError:
        pass  # it ended in between, or we have no permission to signal it
    finally:
        os.close(handle)


class Reaper:
    """Runs one command and ends every process that comes from it."""

    def __init__(self, life: int, news: int, wake: int, become: Callable[[list[str], int], None]) -> None:
        self._life = life
        self._news = news
        self._wake = wake
        self._become_command = become
        self._command = 0
        self._status_fd = os.memfd_create("status") if LINUX else -1
        """The memory file in which the future command reports its progress; see the module head."""

    def run(self, argv: list[str]) -> None:
        if not self._start(argv):
            return
        grace_s = self._wait_for_reason()
        self._ask(grace_s)
        self._kill()

    def _start(self, argv: list[str]) -> bool:
        """Start the command and report it; return whether it could be executed."""
        parent = os.getpid()
        failed, failing = os.pipe()  # exec closes it, so end of file means success
        pid = os.fork()
        if pid == 0:
            self._become(argv, parent, failing)
        os.close(failing)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):  # else readers would wait until this process closes them
            os.dup2(nothing, stream)
        os.chdir("/")  # else the folder would stay in use
        why = os.read(failed, 16)
        os.close(failed)
        if why:
            self._report(f"x {why.decode()}")
            return False
        self._command = pid
        self._report(f"p {pid}")
        return True

    def _become(self, argv: list[str], parent: int, failing: int) -> None:
        try:
            os.setsid()
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(127)
            for number in _RESTORED:  # not `signal.signal`: it touches memory that a fork must copy
                libc().signal(number, _DEFAULT)
            self._become_command(argv, self._status_fd)
        except OSError as error:
            os.write(failing, str(error.errno).encode())
        finally:
            os._exit(127)

    def _wait_for_reason(self) -> float:
        """Wait until the command ends, or the owner asks for its end or dies; return the grace period."""
        poll = select.poll()
        poll.register(self._life, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            ready = {handle for handle, _ in poll.poll()}
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._reap()
                if self._command == 0:
                    return ORPHANED_GRACE_S
            if self._life in ready:
                return _grace_s(os.read(self._life, 64))

    def _settle(self) -> bool:
        """Whether all processes ended together with the command, within `SETTLE_S`."""
        until = time.monotonic() + SETTLE_S
        while not self._reap():
            if self._command or (left_s := until - time.monotonic()) <= 0:
                return False
            if not select.select([self._wake], [], [], left_s)[0]:
                return False
            os.read(self._wake, 4096)
        return True

    def _ask(self, grace_s: float) -> None:
        if self._settle() or grace_s <= 0:
            return
        self._signal_all(signal.SIGTERM, in_groups=False)
        self._signal_all(signal.SIGCONT, in_groups=False)  # a stopped process cannot handle SIGTERM
        until = time.monotonic() + grace_s
        while not self._reap() and time.monotonic() < until:
            # The end of descendants that are not children sends no signal, so poll.
            ready, _, _ = select.select([self._life, self._wake], [], [], LOOK_S)
            if self._wake in ready:
                os.read(self._wake, 4096)
            if self._life in ready:
                line = os.read(self._life, 64)
                if not line:
                    return  # the owner died: stop waiting
                until = min(until, time.monotonic() + _grace_s(line))

    def _kill(self) -> None:
        began = time.monotonic()
        rounds = reported = 0
        while not self._reap():
            self._signal_all(signal.SIGKILL, in_groups=True)
            rounds += 1
            if rounds > 200:
                time.sleep(min(rounds / 100_000, 0.05))
            if not reported and time.monotonic() - began > STUBBORN_S:
                self._report("l")
                reported = 1

    def _signal_all(self, number: int, in_groups: bool) -> None:
        if not LINUX:  # no /proc: only the command's own group can be reached
            if self._command:
                os.killpg(self._command, number)
            return
        groups: set[int] | None = set() if in_groups else None
        for pid, parent in descendants_of(os.getpid()):
            signal_one(pid, parent, number, groups)

    def _reap(self) -> bool:
        """Collect the exit statuses of dead children; True if no child remains, dead or alive."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return False
                if pid == self._command:
                    self._command = 0
                    if not self._was_executed(status):
                        self._report("n")
                    self._report(f"e {status}")
        except ChildProcessError:
            return True

    def _was_executed(self, status: int) -> bool:
        """Whether the command was executed. If not, bubblewrap exits with 1 and reports no exit code."""
        report = os.pread(self._status_fd, 4096, 0) if self._status_fd >= 0 else b""
        failed = report.startswith(b"w") and b'"exit-code"' not in report and status == WRAPPER_FAILED << 8
        return not failed and b"s\n" not in report

    def _report(self, line: str) -> None:
        try:
            os.write(self._news, line.encode() + b"\n")
        except OSError:
            pass  # the owner has closed NEWS


def _grace_s(line: bytes) -> float:
    """Return the shortest grace period of `t MILLISECONDS` lines; end of file means the owner died."""
    if not line:
        return ORPHANED_GRACE_S
    return min(int(word) for word in line.split()[1::2]) / 1_000


@cache
def libc() -> Any:
    """Return the C library. Loaded on first use: code that only lists processes does not need it."""
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def warm_up() -> None:
    """Look up the C functions once, so that forks of this process need not do it."""
    for function in ("prctl", "signal"):
        getattr(libc(), function)


def prctl(option: int, value: int) -> None:
    """Call prctl on Linux; do nothing elsewhere. Only on Linux can the reaper adopt orphans."""
    if not LINUX:
        return
    libc().prctl(option, value, 0, 0, 0)


def keep(life: int, news: int, argv: list[str], become: Callable[[list[str], int], None]) -> None:
    """Run a command and return when none of its processes remains.

    `become` turns a fork of this process into the command. Its second argument is the handle of the memory
    file for its progress.
    The fork server has set this process to ignore `HELD_BACK`. Its SIGCHLD handler does nothing here; a pipe
    reports the end of a child.
    """
    heard, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    os.write(news, b"k %d\n" % os.getpid())
    Reaper(life, news, heard, become).run(argv)


def name(mark: str) -> None:
    """Set the process name, by which `processes.find_stragglers` finds a reaper whose owner has ended."""
    if LINUX:
        libc().prctl(PR_SET_NAME, mark.encode(), 0, 0, 0)
