"""Rows of runs: what lists show, kept beside the logs they are derived from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apsw
import msgspec

from fanfold.errors import AuthorError
from fanfold.kernel.events import Failure, Usage
from fanfold.store.protocol import RunHead, no_run
from fanfold.store.sealing import reseal

_FIXED = "run_id root_run_id parent_run_id nesting_depth execution_path recipe version created_at".split()
_CHANGING = (
    "status started_at ended_at inputs output error input_tokens output_tokens micro_usd agents forked_from"
).split()
_COLUMNS = ", ".join([*_FIXED, *_CHANGING])

_UPSERT = (
    f"INSERT INTO runs ({_COLUMNS}) VALUES ({', '.join('?' * len(_FIXED + _CHANGING))})"  # noqa: S608 - constants only
    f" ON CONFLICT (run_id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _CHANGING)}"
)
_SELECT = f"SELECT {_COLUMNS} FROM runs"  # noqa: S608 - constants only

_encode = msgspec.json.Encoder().encode


def _row(head: RunHead) -> tuple[Any, ...]:
    """What `_UPSERT` binds."""
    usage, error = head.usage, head.error
    return (
        head.run_id,
        head.root_run_id,
        head.parent_run_id,
        head.nesting_depth,
        head.execution_path,
        head.recipe,
        head.version,
        head.created_at,
        head.status,
        head.started_at,
        head.ended_at,
        head.inputs,
        head.output,
        None if error is None else _encode(error).decode(),
        usage.input_tokens,
        usage.output_tokens,
        usage.micro_usd,
        head.agents,
        head.forked_from,
    )


def write(db: apsw.Connection, heads: Sequence[RunHead]) -> None:
    """Make or change the rows of runs, inside a write transaction."""
    db.executemany(_UPSERT, [_row(head) for head in heads])
    for head in heads:
        reseal(db, "runs", "run_id = ?", head.run_id)


def _head(row: tuple[Any, ...]) -> RunHead:
    values = dict(zip(_FIXED + _CHANGING, row, strict=True))
    error = values.pop("error")
    usage = Usage(values.pop("input_tokens"), values.pop("output_tokens"), values.pop("micro_usd"))
    failure = None if error is None else msgspec.json.decode(error, type=Failure)
    return RunHead(**values, error=failure, usage=usage)


def select(db: apsw.Connection, rest: str, *values: Any) -> list[RunHead]:
    """Heads by the given end of a SELECT."""
    return [_head(row) for row in db.execute(f"{_SELECT} {rest}", values)]


def roots(db: apsw.Connection) -> list[str]:
    """Every tree that a log or the row of a run tells of, newest first."""
    rows = [
        *db.execute("SELECT log FROM logs WHERE log = root_run_id ORDER BY key DESC"),
        *db.execute("SELECT run_id FROM runs WHERE run_id = root_run_id ORDER BY id DESC"),
    ]
    return list(dict.fromkeys(root for (root,) in rows if isinstance(root, str)))


def resolve(db: apsw.Connection, prefix: str) -> str:
    """The run that people mean by the first letters of its id, or by `last`."""
    found: Iterator[tuple[str]]
    if prefix == "last":
        found = db.execute("SELECT run_id FROM runs WHERE run_id = root_run_id ORDER BY id DESC LIMIT 1")
    elif not prefix or not prefix.isascii():  # a variable that is not set; what came from a shell as bytes
        found = iter(())
    else:
        found = db.execute(
            "SELECT run_id FROM runs WHERE run_id >= ? AND run_id < ? ORDER BY run_id LIMIT 6",
            (prefix, prefix + "\U0010ffff"),
        )
    ids: list[str] = [run_id for (run_id,) in found]
    if not ids:
        raise no_run(prefix)
    if len(ids) > 1 and ids[0] != prefix:
        raise AuthorError(
            "run.ambiguous",
            f"{prefix!r} begins the ids of several runs: {', '.join(ids[:5])}{' …' if len(ids) > 5 else ''}",
            hint="give more letters of the id",
            details={"runs": ids[:5]},
        )
    return ids[0]
