"""Jobs of the cluster: their queues, ids and payloads.

A job is a standalone activity of Temporal. There are two kinds: `drive` drives a run, and `execute` performs
one execution of one step for the driver.

Rules
* A payload is an address and hashes, never a value, and has at most `MAX_PAYLOAD_BYTES`. Orders and outcomes
  are blobs in the store.
* The id of a job follows from the address of its work. Asking for the same work again is safe.
* The version in the names of queues is the version of orders: workers of two versions run side by side.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from fanfold.errors import BugError
from fanfold.steps.order import Job, Order

ORDER_VERSION = 1
MAX_PAYLOAD_BYTES = 4_096


def queue_of(tag: str) -> str:
    """The queue of the steps with a tag.

    >>> queue_of("gpu")
    'fanfold:1:gpu'
    """
    return f"fanfold:{ORDER_VERSION}:{tag}"


DRIVE_QUEUE = queue_of("drive")


def worker_queue(name: str) -> str:
    """The queue of one worker, for requests to it."""
    return queue_of(f"worker:{name}")


class ExecutionTicket(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The payload of an `execute` job: where the log records the start of the execution."""

    root: str
    run: str
    path: str
    attempt: int
    execution: int
    seq: int
    """The number of the `started` event in the log of the run. The event names the order."""
    tokens: int | None = None
    """The tokens that the budget of the run leaves to the step; None: no limit."""
    micro_usd: int | None = None

    @classmethod
    def of(cls, order: Order[Job], seq: int) -> ExecutionTicket:
        number = {"attempt": order.attempt, "execution": order.execution, "seq": seq}
        return cls(root=order.root, run=order.run, path=order.path, **number)


class ExecutionReport(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The result of an `execute` job."""

    outcome: str = ""
    """The blob of the outcome; empty if there is none, and another execution must follow."""
    lost: str = ""
    """Why there is no outcome."""
    link: str = ""
    """The last link of the chain of the session's log."""
    worker: str = ""
    machine: str = ""
    version: str = ""


def encode(payload: ExecutionTicket | ExecutionReport) -> str:
    """The payload as JSON text."""
    encoded = msgspec.json.encode(payload)
    if len(encoded) > MAX_PAYLOAD_BYTES:
        raise BugError("cluster.payload", f"a payload of {len(encoded)} bytes is over {MAX_PAYLOAD_BYTES}")
    return encoded.decode()
