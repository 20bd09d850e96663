"""Process trees that do not want to end, and how to see whether they did."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from tests.work import PATIENCE_S

STUBBORN = "trap '' TERM HUP INT; echo $$ >> {pids}; while :; do sleep 0.05; done"

QUOTED = STUBBORN.replace("$$", "\\$\\$")

TREES = {
    # one line of shell each; {pids} is a file that every process writes its pid into
    "ignores SIGTERM": STUBBORN,
    "has children and grandchildren": (
        "(bash -c 'echo $$ >> {pids}; sleep 60 & wait' & wait) & echo $$ >> {pids}; wait"
    ),
    "leaves its session": 'setsid bash -c "' + QUOTED + '" & echo $$ >> {pids}; wait',
    "double-forks": '( (setsid bash -c "' + QUOTED + '" &) & ); echo $$ >> {pids}; sleep 60',
    "double-forks and clears its environment": (
        '( (setsid env -i bash -c "' + QUOTED + '" &) & ); echo $$ >> {pids}; sleep 60'
    ),
    "stops itself": "echo $$ >> {pids}; kill -STOP $$; sleep 60",
    "forks all the time": (
        "trap '' TERM; echo $$ >> {pids}; "
        "f() {{ while :; do (trap '' TERM; echo $BASHPID >> {pids}; sleep 0.2) & sleep 0.001; done; }};"
        " f & f & f"
    ),
}

HOPPER = """
import os, sys, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:  # each generation is a new session, lives for a moment and leaves an orphan behind
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()}\\n")
    if os.fork():
        os._exit(0)
    os.setsid()
"""


def pids_in(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not merely waiting to be reaped."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def mentions(text: str) -> list[int]:
    """Live processes other than this one with `text` in their command line."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            line = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in line and is_alive(int(name)):
            found.append(int(name))
    return found


def alive(pids: Path) -> list[int]:
    """What is left of a tree: the processes it wrote down, and those whose command line names its file."""
    return sorted({pid for pid in pids_in(pids) if is_alive(pid)} | set(mentions(str(pids))))


async def until(condition: Callable[[], object], limit_s: float = PATIENCE_S) -> None:
    """Wait for a condition, or fail."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.01)


def wait_until(condition: Callable[[], object], limit_s: float = PATIENCE_S) -> None:
    asyncio.run(until(condition, limit_s))
