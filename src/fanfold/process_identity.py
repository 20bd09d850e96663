"""Which process something belongs to, said so that a number used again later is not mistaken for it.

Leases, snapshots, scratch folders and stragglers all ask the same question: does the very process that made
this still live? A pid alone is reused; boot, pid and start time together are not. A process of another pid
namespace (another container) cannot be seen from here: it counts as alive, and who must know better keeps a
heartbeat beside the identity, as leases do.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Literal

from msgspec import Struct

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
STAT = "/proc/{pid}/stat"


class ProcessIdentity(Struct, frozen=True):
    """One process of one boot.

    >>> ProcessIdentity.parse(str(ProcessIdentity("b1", 7, "42", "9"))) == ProcessIdentity("b1", 7, "42", "9")
    True
    """

    boot_id: str
    pid: int
    started: str
    namespace: str
    """The pid namespace in which `pid` is its number; empty where there is no such thing."""

    def __str__(self) -> str:
        return f"{self.boot_id}:{self.pid}:{self.started}:{self.namespace}"

    @classmethod
    def parse(cls, text: str) -> ProcessIdentity | None:
        """The identity that `str` wrote; None for any other text."""
        parts = text.split(":")
        return cls(parts[0], int(parts[1]), *parts[2:]) if len(parts) == 4 and parts[1].isdecimal() else None

    def is_alive(self) -> bool:
        """Whether the very process may still be there; one of another boot is not."""
        if not self.is_of_this_boot():
            return False
        return not self.is_visible() or start_time(self.pid) == self.started

    def is_of_this_boot(self) -> bool:
        """Whether the machine ran on since that process lived."""
        return self.boot_id == boot_id()

    def is_visible(self) -> bool:
        """Whether this process could see that one if it lived."""
        return self.namespace == pid_namespace() and _sees_its_own_namespace()


@cache
def this_process() -> ProcessIdentity:
    """Names this process for as long as it lives."""
    pid = os.getpid()
    return ProcessIdentity(
        boot_id(), pid, start_time("self" if BOOT_ID.exists() else pid) or "", pid_namespace()
    )


os.register_at_fork(after_in_child=this_process.cache_clear)


def pid_namespace() -> str:
    """The pid namespace of this process; empty where there is no such thing."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return ""


def _sees_its_own_namespace() -> bool:
    """Whether /proc lists the processes that this one would call by the same numbers."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return True  # no /proc: the system's tools are asked, and there is but one namespace


@cache
def boot_id() -> str:
    """This boot of this machine."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return _ask("sysctl", "-n", "kern.bootsessionuuid") or "unknown boot"


def start_time(pid: int | Literal["self"]) -> str | None:
    """When the process started, in whatever unit the system counts; None when it is dead."""
    try:
        facts = Path(STAT.format(pid=pid)).read_bytes()
    except OSError:
        if BOOT_ID.exists():
            return None
        return _ask("ps", "-o", "lstart=", "-p", str(pid)) or None
    # The name of the program is in parentheses and may hold anything, parentheses included.
    fields = facts.rpartition(b")")[2].split()
    return None if fields[0] in b"ZX" else fields[19].decode()


def _ask(*command: str) -> str:
    """What a system tool says on one line, or nothing."""
    import subprocess  # only where there is no /proc

    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=5).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
