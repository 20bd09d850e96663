"""Virtual environments for what we are measured against, made from the package index when first needed.

Each peer has its own, under `bench/.peers/`: their dependencies are none of ours. A peer that cannot be
installed is reported as missing; nothing is made up for it.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

PEERS = Path(__file__).parent / ".peers"
PACKAGES = {
    "dbos": ("dbos",),
    "langgraph": ("langgraph", "langgraph-checkpoint-sqlite"),
}


def interpreter(peer: str) -> str | None:
    """The Python of a peer's environment; None when the peer cannot be installed."""
    home = PEERS / peer
    python = home / "bin" / "python"
    stamp = home / ".ready"
    if not stamp.exists():
        print(f"installing {', '.join(PACKAGES[peer])} …", file=sys.stderr, flush=True)
        venv.create(home, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", *PACKAGES[peer]]
        with (PEERS / f"{peer}.log").open("w") as log:
            if subprocess.run(command, stdout=log, stderr=log, check=False).returncode != 0:
                print(f"{peer} cannot be installed; see {log.name}", file=sys.stderr, flush=True)
                return None
        stamp.touch()
    return str(python)
