"""Names for things that have none: runs and sessions.

A run's id is random and short, so that a few characters of it are enough to mean it. A session's id
follows from the attempt it serves, so that a session that goes on after a crash finds its own log.
"""

from __future__ import annotations

import shlex
from functools import lru_cache
from hashlib import blake2b

from fanfold.kernel.nodes import Node

MAX_ROUNDS = 2
"""How often the conflict of one attempt is settled when the project keeps moving meanwhile."""
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
RUN_ID_CHARS = 12


def new_run_id() -> str:
    import secrets

    return "".join(secrets.choice(_ALPHABET) for _ in range(RUN_ID_CHARS))


@lru_cache(maxsize=4_096)
def session_id(run_id: str, path: str, attempt: int) -> str:
    """The session of one attempt; a new execution of it is the same session.

    >>> session_id("r", "gather", 1) == session_id("r", "gather", 1) != session_id("r", "gather", 2)
    True
    """
    return "s" + blake2b(f"{run_id}\0{path}\0{attempt}".encode(), digest_size=6).hexdigest()


def settling_ids(session: str) -> list[str]:
    """The sessions that may settle conflicts of an attempt, one for each round.

    >>> settling_ids("s1")
    ['s1-r1', 's1-r2']
    """
    return [f"{session}-r{number}" for number in range(1, MAX_ROUNDS + 1)]


def functions_id(root: str) -> str:
    """The mark of the processes that call a run's functions: they serve one attempt after another."""
    return f"{root}-functions"


def root_of(node: Node) -> str:
    """The id of the run that a person started."""
    run = node.run
    while run.parent is not None:
        run = run.parent
    return run.id


def typed_path(node: Node) -> str:
    """The path of a step from the root of its tree, quoted for a shell."""
    return shlex.quote(node.run.tree_path(node.path))
