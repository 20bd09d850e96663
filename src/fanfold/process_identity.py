"""Process identities: they name one process even if its pid is reused later.

Leases, snapshots, scratch folders and stragglers need to know whether the process that created them is still
alive. A pid alone is reused; boot, pid and start time together are not. A process of another pid namespace
(another container) is invisible from here and counts as alive. Code that must know better stores a heartbeat
beside the identity, as leases do.
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
    """The identity of one process in one boot of a machine.

    >>> ProcessIdentity.parse(str(ProcessIdentity("b1", 7, "42", "9"))) == ProcessIdentity("b1", 7, "42", "9")
    True
    """

    boot_id: str
    pid: int
    started: str
    namespace: str
    """The pid namespace in which `pid` is valid; empty if the system has none."""

    def __str__(self) -> str:
        return f"{self.boot_id}:{self.pid}:{self.started}:{self.namespace}"

    @classmethod
    def parse(cls, text: str) -> ProcessIdentity | None:
        """Return the identity that `str` wrote; None for any other text."""
        parts = text.split(":")
        return cls(parts[0], int(parts[1]), *parts[2:]) if len(parts) == 4 and parts[1].isdecimal() else None

    def is_alive(self) -> bool:
        """Whether this process may still be alive. A process of another boot is not."""
        if not self.is_of_this_boot():
            return False
        return not self.is_visible() or start_time(self.pid) == self.started

    def is_of_this_boot(self) -> bool:
        """Whether the machine was not rebooted since that process started."""
        return self.boot_id == boot_id()

    def is_visible(self) -> bool:
        """Whether the calling process could see that process if it were alive."""
        return self.namespace == pid_namespace() and _sees_its_own_namespace()


@cache
def this_process() -> ProcessIdentity:
    """Return the identity of the calling process."""
    pid = os.getpid()
    return ProcessIdentity(
        boot_id(), pid, start_time("self" if BOOT_ID.exists() else pid) or "", pid_namespace()
    )


os.register_at_fork(after_in_child=this_process.cache_clear)


def pid_namespace() -> str:
    """Return the pid namespace of the calling process; empty if the system has none."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return ""


def _sees_its_own_namespace() -> bool:
    """Whether /proc shows the pid namespace of the calling process."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return True  # no /proc: system tools are used, and there is only one namespace


@cache
def boot_id() -> str:
    """Return the id of the current boot of this machine."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return _ask("sysctl", "-n", "kern.bootsessionuuid") or "unknown boot"


def start_time(pid: int | Literal["self"]) -> str | None:
    """Return the start time of a process in the unit of the system; None if it is dead."""
    try:
        facts = Path(STAT.format(pid=pid)).read_bytes()
    except OSError:
        if BOOT_ID.exists():
            return None
        return _ask("ps", "-o", "lstart=", "-p", str(pid)) or None
    # The program name is in parentheses and may contain any character, even parentheses.
    fields = facts.rpartition(b")")[2].split()
    return None if fields[0] in b"ZX" else fields[19].decode()


def _ask(*command: str) -> str:
    """Return the output of a system tool; empty if it fails."""
    import subprocess  # only where there is no /proc

    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=5).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
