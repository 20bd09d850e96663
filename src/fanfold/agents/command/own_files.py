"""Reading files of the user's own: as far as a limit, and never one that would keep us waiting."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_own(file: Path, limit: int) -> bytes:
    """All of a file, links followed; `ValueError` for what is too long, or is a pipe or the like."""
    handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError(f"{file} is no plain file")
        with open(handle, "rb", closefd=False) as opened:
            data = opened.read(limit + 1)
    finally:
        os.close(handle)
    if len(data) > limit:
        raise ValueError(f"{file} has more than {limit:,} bytes")
    return data
