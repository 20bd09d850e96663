"""The process in which subagents by hand run: `python -m fanfold.cli.agents.hand_host PROJECT`.

Started by `fanfold spawn` and `fanfold send` when there is none, in a session of its own; it ends by itself
when nothing runs any more.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from fanfold.runtime.operations.by_hand import HAND, serve
from fanfold.runtime.operations.project import Project
from fanfold.store.protocol import LeaseHeld
from fanfold.wiring import supervise_by_hand, wire


def start_host(project: Project) -> None:
    """Have a host in the background, unless there is one."""
    if project.has_owner(HAND):
        return
    log = project.folder / ".fanfold" / "host.log"
    with os.fdopen(
        os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab"
    ) as opened:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fanfold.cli.agents.hand_host", str(project.folder)],
            cwd=project.folder,
            stdin=subprocess.DEVNULL,
            stdout=opened,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    process.returncode = 0  # nobody here waits for it


async def _host(folder: Path) -> None:
    project = wire(folder)
    work = asyncio.ensure_future(serve(project, supervise_by_hand(project)))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    try:
        await work
    except (LeaseHeld, asyncio.CancelledError):
        pass  # another host was quicker, or this one is no longer wanted
    finally:
        project.close()


if __name__ == "__main__":
    asyncio.run(_host(Path(sys.argv[1])))
