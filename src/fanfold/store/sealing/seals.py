"""A hash in each row that is no event, so that a changed column is found.

Events are chained (`chain.py`) and content is named by its hash. Everything else is sealed row by row: what
can be derived from the log is compared with it besides, and what cannot (whose turn it is, what was asked,
what may be reused) has nothing but its seal.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import apsw
import msgspec

SEAL_BYTES = 8

SEALED = {
    "logs": "key log root_run_id parent_run_id depth path reaches",
    "runs": "id run_id root_run_id parent_run_id nesting_depth execution_path recipe version status"
    " created_at started_at ended_at inputs output error input_tokens output_tokens micro_usd agents"
    " forked_from",
    "blobs": "id hash output run_id root_run_id path role status at",
    "leases": "root epoch boot_id pid started pid_namespace taken_at heartbeat_at expires_at",
    "requests": "id root run_id kind data at",
    "claims": "id root run_id step patterns held",
    "cache": "key blob run_id",
}
"""The columns of each table in the order in which they are hashed; the first one names the row."""

_COLUMNS = {table: ", ".join(columns.split()) for table, columns in SEALED.items()}
_RESEAL = {
    table: f"UPDATE {table} SET seal = seal({columns}) WHERE"  # noqa: S608 - constants only
    for table, columns in _COLUMNS.items()
}
_encode = msgspec.msgpack.Encoder().encode


def seal(*values: Any) -> bytes:
    """The hash of a row's values."""
    return blake2b(_encode(values), digest_size=SEAL_BYTES).digest()


def prepare(db: apsw.Connection) -> None:
    """Let statements of this connection call `seal`."""
    db.create_scalar_function("seal", seal, deterministic=True)


def reseal(db: apsw.Connection, table: str, where: str, *values: Any) -> None:
    """Seal rows again that were just made or changed."""
    db.execute(f"{_RESEAL[table]} {where}", values)


def changed(db: apsw.Connection, table: str, where: str = "1", *values: Any) -> Iterator[str]:
    """What to say of each row whose seal does not fit."""
    query = f"SELECT seal, {_COLUMNS[table]} FROM {table} WHERE {where}"  # noqa: S608 - constants only
    for found, *row in db.execute(query, values):
        if found != seal(*row):
            yield f"row {row[0]!r} of the table {table} was changed"
