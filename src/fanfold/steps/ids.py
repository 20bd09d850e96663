"""Ids of runs and sessions.

The id of a run is random and short, so that a few characters identify it. The id of a session is derived from
its attempt, so that a session that continues after a crash finds its own log. Steps that differ only by a
number, such as items of a list, have consecutive session ids. So the records of thousands of sessions go to
one region of an index, in order, instead of thousands of regions.
"""

from __future__ import annotations

import os
import re
import shlex
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from fanfold.kernel.events import Failure
from fanfold.kernel.plan import JSON
from fanfold.kernel.state import Node

MAX_ROUNDS = 2
"""How often an agent may resolve the conflicts of one attempt while the project tree keeps changing."""
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
RUN_ID_CHARS = 12
_NUMBER = r"(?<![0-9])(?:0|[1-9][0-9]{0,13})(?=[^0-9]*\Z)"
"""The last number of a path, if it is in canonical form."""
_DISTANCE = (1 << 28) + 1
"""The distance between consecutive session ids.

It is large enough that the first characters distinguish them. It is odd, so that no two numbers give the same
id. The start of each sequence is a hash, so ids of different sequences collide only by chance.
"""


def new_run_id() -> str:
    """A new random run id."""
    # Each of the 32 letters has 8 of the 256 byte values; `secrets` would load all of `random`.
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in os.urandom(RUN_ID_CHARS))


def run_id_of(*names: str) -> str:
    """The id of a run that is started at most once for what the names identify."""
    digest = blake2b("\0".join(names).encode(), digest_size=RUN_ID_CHARS).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest)


@lru_cache(maxsize=4_096)
def session_id(run_id: str, path: str, attempt: int) -> str:
    """The session id of one attempt. All executions of the attempt share it.

    >>> session_id("r", "gather", 1) == session_id("r", "gather", 1) != session_id("r", "gather", 2)
    True
    """
    numbered = re.search(_NUMBER, path)
    number = 0
    if numbered is not None:
        number, path = int(numbered[0]), f"{path[: numbered.start()]}\0{path[numbered.end() :]}"
    begins = blake2b(f"{run_id}\0{path}\0{attempt}".encode(), digest_size=6).digest()
    place = int.from_bytes(begins) + number * _DISTANCE
    return f"s{place & 0xFFFF_FFFF_FFFF:012x}"


def execution_id(root: str, path: str, attempt: int, execution: int) -> str:
    """The id of one execution of a step in a cluster: its address in the tree of runs."""
    return f"{root}/{path}/{attempt}.{execution}"


def drive_id(root: str) -> str:
    """The id of the work in a cluster that drives a run tree."""
    return f"{root}/drive"


class TraceParent(NamedTuple):
    """A W3C trace context: hexadecimal ids of a trace and of the span above."""

    trace: str
    span: str
    sampled: bool


def read_traceparent(text: str) -> TraceParent | None:
    """Parse `TRACEPARENT`; None if it is not valid, as the W3C recommends.

    >>> read_traceparent(f"00-{'a' * 32}-{'b' * 16}-01").sampled
    True
    """
    found = re.fullmatch(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", text.strip())
    if found is None or not int(found[1], 16) or not int(found[2], 16):
        return None
    return TraceParent(found[1], found[2], bool(int(found[3], 16) & 1))


def trace_id(root: str) -> str:
    """The trace of a run tree that was started outside of any trace."""
    return blake2b(f"trace\0{root}".encode(), digest_size=16).hexdigest()


def span_id(*names: str) -> str:
    """The span of a run, a step's attempt, or an activity of a session; the same in every process."""
    return blake2b("\0".join(names).encode(), digest_size=8).hexdigest()


def settling_ids(session: str) -> list[str]:
    """The sessions that may resolve merge conflicts of an attempt, one for each round.

    >>> settling_ids("s1")
    ['s1-r1', 's1-r2']
    """
    return [f"{session}-r{number}" for number in range(1, MAX_ROUNDS + 1)]


def functions_id(root: str) -> str:
    """The session id of the processes that call a run's functions. They serve many attempts."""
    return f"{root}-functions"


def root_of(node: Node) -> str:
    """The id of the root run of a step."""
    run = node.run
    while run.parent is not None:
        run = run.parent
    return run.id


def typed_path(node: Node) -> str:
    """The path of a step from the root of its tree, quoted for a shell."""
    return shlex.quote(node.run.tree_path(node.path))


# -----------------------------------------------------------------------------------------------------------
# Failures: their value for scripts, templates and expressions, and those that concern a whole run


WORKER_LOST = "worker.lost"
"""The code of a failure: the worker of an execution is gone. Another execution of the attempt follows."""


def is_provider_refusal(failure: Failure) -> bool:
    """Whether a provider refuses the user's requests, so that every other agent step would fail too."""
    if failure.kind == "quota":
        return True
    refused = failure.code.startswith("model.") or failure.code == "agent.key_refused"
    return failure.kind == "permission" and refused


def is_out_of_budget(failure: Failure) -> bool:
    """Whether a session stopped because of a budget. Its step continues when the run is resumed."""
    return failure.kind == "budget" and failure.code in ("session.budget", "agent.budget")


def is_held(failure: Failure) -> bool:
    """Whether an agent continues the attempt later: after a pause, a refusal of its provider, or a budget."""
    stopped = failure.code == "session.paused" or is_out_of_budget(failure)
    return stopped or bool(failure.subject) or is_provider_refusal(failure)


INTERRUPTIONS = frozenset(("timeout", "transport", "rate_limit", "quota", "budget", "cancelled"))
"""Failure classes that interrupt an agent. Any other class judges its work, which then starts again."""


def is_interruption(failure: Failure | None) -> bool:
    """Whether an attempt was interrupted, so that the next one may continue its conversation."""
    return failure is None or failure.kind in INTERRUPTIONS


def failure_value(failure: Failure | None, node: Node | None = None) -> dict[str, JSON] | None:
    """A failure as a value for scripts, templates and expressions. `node` is the failed step."""
    if failure is None:
        return None
    return {
        "class": failure.kind,
        "code": failure.code,
        "message": failure.message,
        "hint": failure.hint,
        "retryable": failure.retryable,
        "step": failure.step or (node.path if node is not None else ""),
        "attempt": failure.attempt or (node.attempt if node is not None else 0),
    }
