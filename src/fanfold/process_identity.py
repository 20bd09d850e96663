"""Process identities: they name one process even if its pid is reused later.

Leases, snapshots, scratch folders and stragglers need to know whether the process that created them is still
alive. A pid alone is reused; machine, boot, pid and start time together are not. Only a process of this
machine can be known to be dead: its machine was started again, or it is gone from this pid namespace. A
process of another machine or of another pid namespace (another container) is invisible from here and counts
as alive. Code that must know better stores a heartbeat beside the identity, as leases do.
"""

from __future__ import annotations

import os
import re
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from msgspec import Struct

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MACHINE_ID = Path("/etc/machine-id")
STAT = "/proc/{pid}/stat"


class ProcessIdentity(Struct, frozen=True):
    """The identity of one process in one boot of a machine.

    >>> one = ProcessIdentity("b1", 7, "42", "9", "host-0a1b2c3d")
    >>> ProcessIdentity.parse(str(one)) == one
    True
    """

    boot_id: str
    pid: int
    started: str
    namespace: str
    """The pid namespace in which `pid` is valid; empty if the system has none."""
    machine: str = ""
    """The machine, as `machine_name` returns it; empty in records of this machine from earlier releases."""

    def __str__(self) -> str:
        own = f"{self.boot_id}:{self.pid}:{self.started}:{self.namespace}"
        return f"{own}:{self.machine}" if self.machine else own

    @classmethod
    def parse(cls, text: str) -> ProcessIdentity | None:
        """Return the identity that `str` wrote; None for any other text."""
        parts = text.split(":")
        if len(parts) not in (4, 5) or not parts[1].isdecimal():
            return None
        return cls(parts[0], int(parts[1]), *parts[2:])

    def is_alive(self) -> bool:
        """Whether this process may still be alive. A process of an earlier boot of this machine is not."""
        if not self.is_of_this_boot():
            return not self.is_of_this_machine()
        return not self.is_visible() or start_time(self.pid) == self.started

    def is_of_this_machine(self) -> bool:
        """Whether that process runs or ran on this machine."""
        return self.is_of_this_boot() or self.machine in ("", machine_name())

    def is_of_this_boot(self) -> bool:
        """Whether that process started on this machine, and the machine was not rebooted since."""
        return self.boot_id == boot_id()

    def is_visible(self) -> bool:
        """Whether the calling process could see that process if it were alive."""
        return self.is_of_this_boot() and self.namespace == pid_namespace() and _sees_its_own_namespace()

    @property
    def host(self) -> str:
        """The host name of its machine; empty if it was not recorded."""
        return self.machine.rpartition("-")[0]

    @property
    def place(self) -> str:
        """The process for messages: its number, and its machine or container if that is another one."""
        if not self.is_of_this_machine():
            return f"process {self.pid} on {self.host}"
        elsewhere = self.is_of_this_boot() and not self.is_visible()
        return f"process {self.pid}" + (" of another container" if elsewhere else "")


@cache
def this_process() -> ProcessIdentity:
    """Return the identity of the calling process."""
    pid = os.getpid()
    started = start_time("self" if BOOT_ID.exists() else pid) or ""
    return ProcessIdentity(boot_id(), pid, started, pid_namespace(), machine_name())


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


@cache
def machine_name() -> str:
    """Return host name and part of the machine id. Both count: disk images share ids, hosts share names."""
    name = re.sub(r"[^A-Za-z0-9.-]", "-", os.uname().nodename)[:64] or "unknown"
    try:
        found = MACHINE_ID.read_bytes().strip()
    except OSError:
        found = b""
    return f"{name}-{blake2b(found, digest_size=4).hexdigest()}"


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
