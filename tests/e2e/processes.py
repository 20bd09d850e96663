"""What goes on in processes, seen from outside through /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from tests.work import PATIENCE_S


def until(holds: Callable[[], bool], what: str) -> None:
    """Look until something holds; the kernel does not tell when."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def of_project(folder: Path) -> list[str]:
    """Command lines of living processes that work in a project, or were started with its folder at hand."""
    needle = os.fsencode(folder)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
                about = (line, (entry / "environ").read_bytes(), os.fsencode(os.readlink(entry / "cwd")))
            except OSError:
                continue  # gone, or a stranger's
            if line and any(needle in part for part in about):
                found.append(line.replace(b"\0", b" ").decode(errors="replace"))
    return found


def runs(words: str) -> bool:
    """Whether a process runs whose command line is exactly these words."""
    wanted = words.replace(" ", "\0").encode() + b"\0"
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "cmdline").read_bytes() == wanted:
                return True
        except OSError:
            continue
    return False


def waits_for_lock(pid: int) -> bool:
    """Whether a process waits for a file lock that somebody else holds."""
    lines = Path("/proc/locks").read_text().splitlines()
    return any(fields[1] == "->" and int(fields[5]) == pid for fields in map(str.split, lines))
