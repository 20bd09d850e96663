"""Names for things that have none: runs and sessions.

A run's id is random and short, so that a few characters of it are enough to mean it. A session's id
follows from the attempt it serves, so that a session that goes on after a crash finds its own log. Steps that
differ by a number, as items of a list do, follow one another, and so do their sessions: what thousands of
them record goes to one place of an index, one after another, and not to as many places as there are sessions.
"""

from __future__ import annotations

import os
import shlex
from functools import lru_cache
from hashlib import blake2b

from fanfold.kernel.nodes import Node
from fanfold.text.patterns import regex

MAX_ROUNDS = 2
"""How often the conflict of one attempt is settled when the project keeps moving meanwhile."""
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
RUN_ID_CHARS = 12
_NUMBER = regex(r"(?<![0-9])(?:0|[1-9][0-9]{0,13})(?=[^0-9]*\Z)")
"""The last number of a path, where it is written in one way alone."""
_DISTANCE = (1 << 28) + 1
"""Between sessions that follow one another: wide enough that the first characters tell them apart. It is odd,
so that no two numbers come out at the same place; and where each row begins follows from a hash, so sessions
of different rows meet no more often than by chance."""


def new_run_id() -> str:
    # Of 256 values eight stand for each of the 32 letters; `secrets` would load all of `random`.
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in os.urandom(RUN_ID_CHARS))


@lru_cache(maxsize=4_096)
def session_id(run_id: str, path: str, attempt: int) -> str:
    """The session of one attempt; a new execution of it is the same session.

    >>> session_id("r", "gather", 1) == session_id("r", "gather", 1) != session_id("r", "gather", 2)
    True
    """
    numbered = _NUMBER.search(path)
    number = 0
    if numbered is not None:
        number, path = int(numbered[0]), f"{path[: numbered.start()]}\0{path[numbered.end() :]}"
    begins = blake2b(f"{run_id}\0{path}\0{attempt}".encode(), digest_size=6).digest()
    place = int.from_bytes(begins) + number * _DISTANCE
    return f"s{place & 0xFFFF_FFFF_FFFF:012x}"


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
