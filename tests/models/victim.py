"""A process that runs a session through the real supervisor and store, and dies in the middle of a command.

Usage: python victim.py FOLDER URL EXECUTION die|live
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from fanfold.agents.backend import SessionRequest
from fanfold.agents.backend_registry import Backends
from fanfold.agents.models.session import ModelBackend
from fanfold.agents.tools.toolbox import SessionTools
from fanfold.sessions.supervisor import Supervisor
from fanfold.store.journal import Journal
from fanfold.store.sqlite import SqliteStore
from tests.models.sessions import access, request


class Ran(NamedTuple):
    exit_code: int = 0
    stdout: str = "ran"
    stderr: str = ""


async def main(folder: Path, url: str, execution: int, dies: bool) -> None:
    async def runner(_: SessionRequest, argv: Sequence[str], timeout_s: float) -> Ran:
        with (folder / "ran").open("a") as log:
            log.write(" ".join(argv) + "\n")
        if dies and list(argv) == ["second"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return Ran()

    backend = ModelBackend(access(url), toolbox=lambda asked: SessionTools(asked, runner=runner))
    store = SqliteStore(folder / "store")
    supervisor = Supervisor(Backends({"model": lambda: backend}))
    try:
        asked, journal = request(folder, execution=execution), Journal(store, "r1")
        result = await supervisor.run_step(asked, backend="model", journal=journal)
        sys.stdout.write(msgspec.json.encode([result.output, result.usage.input_tokens]).decode())
    finally:
        await supervisor.aclose()
        await backend.aclose()
        store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "die"))
