"""Which process something belongs to, said so that a number used again later is not mistaken for it."""

from __future__ import annotations

import os
from pathlib import Path

from fanfold.workspace.files.manifest import boot_id


def owner_now() -> str:
    """Names this process for as long as it lives."""
    return f"{boot_id()}:{os.getpid()}:{_started(os.getpid())}"


def is_of_this_boot(owner: str) -> bool:
    """Whether the machine ran on since that process lived."""
    return owner.partition(":")[0] == boot_id()


def is_alive(owner: str) -> bool:
    """Whether that process still runs on this machine."""
    boot, _, rest = owner.partition(":")
    pid, _, started = rest.partition(":")
    return boot == boot_id() and pid.isdigit() and started != "" and _started(int(pid)) == started


def _started(pid: int) -> str:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return fields[19].decode()
