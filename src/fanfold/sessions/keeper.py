"""The keeper: a small process between us and each command, which outlives neither of them.

A fork of the fork server becomes one (see `fork_server`): it uses the standard library alone.

Why a process of its own
* It adopts orphans (`PR_SET_CHILD_SUBREAPER`). Whatever a command starts, however often it forks away,
  changes session or clears its environment, stays a descendant of this one process and of no other, so it
  can be found and can be blamed on the right session. Doing this in our own process instead would make
  every library that lives there inherit strangers as children.
* It notices our death. LIFE is a pipe whose other end only we hold: end of file means that we are gone,
  even by `kill -9`, and then the tree is ended here. A death signal alone would reach one generation.
* It has one thread, so code may run between fork and exec. In our process, with its threads, that is
  unsafe (`preexec_fn`), and the programs that could do it for us are not installed everywhere.

Ending
* Ask: SIGTERM to every descendant. After the grace period: SIGKILL, to whole process groups because the
  kernel does that atomically (a fork either sees the signal or is hit by it), again and again until the
  kernel says that there is no child left, dead or alive. A process that forks faster than one can look is
  hit within a few rounds: each of its ancestors that ends makes it a child of ours, and looking at those
  takes microseconds.
* The same happens to what is left when the command itself ends: nothing outlives its command.

NEWS carries lines: `k PID` the keeper itself · `p PID` started · `d ERRNO` there is no
such folder · `x ERRNO` could not be executed · `e STATUS` the command ended ·
`l` something refuses to die. LIFE carries `t MILLISECONDS`: end now, with that much grace.
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
"""What is left of a command that ended, and of everything when our owner died, gets this long."""
STUBBORN_S = 5.0
LOOK_S = 0.01
SETTLE_S = 0.005
"""What ends with its command has this long to do so by itself: looking for it costs more."""
HELD_BACK = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""What a keeper does not obey, and whoever forks it does not either."""
_RESTORED = tuple(map(int, (*HELD_BACK, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)))
_DEFAULT = 0


def children_of(pid: int) -> list[int]:
    """The children of a process, zombies included; empty when it is gone."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:
        pass
    return found


def descendants_of(pid: int) -> list[tuple[int, int]]:
    """Everything below a process as (pid, its parent), nearest first."""
    found = [(child, pid) for child in children_of(pid)]
    for one, _ in found:  # the list grows while it is walked
        found += [(child, one) for child in children_of(one)]
    return found


def family_of(pid: int) -> tuple[int, int]:
    """Parent and process group of a process; zeros when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0, 0
    return int(fields[1]), int(fields[2])


def signal_one(pid: int, parent: int, number: int, groups: set[int] | None = None) -> None:
    """Signal a descendant if the number still means the same process; with `groups`, its group too."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return  # gone
    try:
        # The handle is open, so from here on the number is not reused: what is read is what is signalled.
        now, group = family_of(pid)
        if now not in (parent, os.getpid()):
            return
        if groups is not None and group > 1 and group != os.getpgrp() and group not in groups:
            groups.add(group)
            os.killpg(group, number)
        signal.pidfd_send_signal(handle, number)
    except OSError:
        pass  # it ended in between, or is not ours to signal
    finally:
        os.close(handle)


class Keeper:
    """One command and everything that comes of it."""

    def __init__(self, life: int, news: int, wake: int, become: Callable[[list[str]], None]) -> None:
        self._life = life
        self._news = news
        self._wake = wake
        self._become_command = become
        self._command = 0

    def run(self, argv: list[str]) -> None:
        if not self._start(argv):
            return
        grace_s = self._wait_for_reason()
        self._ask(grace_s)
        self._kill()

    def _start(self, argv: list[str]) -> bool:
        """Start the command and tell; whether it could be executed."""
        parent = os.getpid()
        failed, failing = os.pipe()  # closed by exec, so end of file means that it went well
        pid = os.fork()
        if pid == 0:
            self._become(argv, parent, failing)
        os.close(failing)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):  # else readers would wait for us to close them
            os.dup2(nothing, stream)
        os.chdir("/")  # and nobody could remove the folder
        why = os.read(failed, 16)
        os.close(failed)
        if why:
            self._tell(f"x {why.decode()}")
            return False
        self._command = pid
        self._tell(f"p {pid}")
        return True

    def _become(self, argv: list[str], parent: int, failing: int) -> None:
        try:
            os.setsid()
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(127)
            for number in _RESTORED:  # not by `signal.signal`, which looks at much that a fork has to copy
                libc().signal(number, _DEFAULT)
            self._become_command(argv)
        except OSError as error:
            os.write(failing, str(error.errno).encode())
        finally:
            os._exit(127)

    def _wait_for_reason(self) -> float:
        """Wait until the command ends, somebody asks, or our owner dies; how much grace there is."""
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
        """Whether everything ended with the command, at once or nearly so."""
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
        self._signal_all(signal.SIGCONT, in_groups=False)  # a stopped process could not even end
        until = time.monotonic() + grace_s
        while not self._reap() and time.monotonic() < until:
            # Descendants that are not our children end unseen, so looking again is all there is.
            ready, _, _ = select.select([self._life, self._wake], [], [], LOOK_S)
            if self._wake in ready:
                os.read(self._wake, 4096)
            if self._life in ready:
                line = os.read(self._life, 64)
                if not line:
                    return  # our owner died: no more waiting
                until = min(until, time.monotonic() + _grace_s(line))

    def _kill(self) -> None:
        began = time.monotonic()
        rounds = told = 0
        while not self._reap():
            self._signal_all(signal.SIGKILL, in_groups=True)
            rounds += 1
            if rounds > 200:
                time.sleep(min(rounds / 100_000, 0.05))
            if not told and time.monotonic() - began > STUBBORN_S:
                self._tell("l")
                told = 1

    def _signal_all(self, number: int, in_groups: bool) -> None:
        if not LINUX:  # no /proc to look into: the command's own group is all that can be reached
            if self._command:
                os.killpg(self._command, number)
            return
        groups: set[int] | None = set() if in_groups else None
        for pid, parent in descendants_of(os.getpid()):
            signal_one(pid, parent, number, groups)

    def _reap(self) -> bool:
        """Take the exit statuses of dead children; True when there is none left, dead or alive."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return False
                if pid == self._command:
                    self._command = 0
                    self._tell(f"e {status}")
        except ChildProcessError:
            return True

    def _tell(self, line: str) -> None:
        try:
            os.write(self._news, line.encode() + b"\n")
        except OSError:
            pass  # nobody listens any more


def _grace_s(line: bytes) -> float:
    """What lines of `t MILLISECONDS` say at least; end of file is the death of our owner."""
    if not line:
        return ORPHANED_GRACE_S
    return min(int(word) for word in line.split()[1::2]) / 1_000


@cache
def libc() -> Any:
    """Loaded when it is first needed: whoever only looks at processes does without."""
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def warm_up() -> None:
    """Look up once what every fork of this process would look up for itself."""
    for function in ("prctl", "signal"):
        getattr(libc(), function)


def prctl(option: int, value: int) -> None:
    """Linux alone adopts orphans; elsewhere the keeper does what a process group allows."""
    if not LINUX:
        return
    libc().prctl(option, value, 0, 0, 0)


def keep(life: int, news: int, argv: list[str], become: Callable[[list[str]], None]) -> None:
    """Keep a command until nothing of it is left; `become` turns a fork of this process into it.

    Who forked this process made it deaf to `HELD_BACK`, and has something called on SIGCHLD that does nothing
    here: that a child ended is told through a pipe.
    """
    heard, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    os.write(news, b"k %d\n" % os.getpid())
    Keeper(life, news, heard, become).run(argv)


def name(mark: str) -> None:
    """Carry a mark by which a keeper is found whose owner is gone; see `stragglers`."""
    if LINUX:
        libc().prctl(PR_SET_NAME, mark.encode(), 0, 0, 0)
