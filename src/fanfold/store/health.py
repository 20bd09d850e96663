"""Whether a project's database is sound, found out beside it and without changing it."""

from __future__ import annotations

from pathlib import Path

import apsw
from msgspec import Struct

from fanfold.store.folder import DATABASE

MAX_PROBLEMS = 20


class Health(Struct, frozen=True):
    """`problems` is empty for a database that is sound."""

    file: str
    bytes: int
    schema_version: int
    journal_mode: str
    problems: tuple[str, ...]


def sqlite_version() -> str:
    """The SQLite that is built into this installation, not the system's."""
    return apsw.sqlite_lib_version()


def examine(folder: Path) -> Health | None:
    """Look through the database of a `.fanfold` folder; None when there is none."""
    file = folder / DATABASE
    if not file.exists():
        return None
    size = sum(part.stat().st_size for part in (file, file.with_name(f"{DATABASE}-wal")) if part.exists())
    try:
        db = apsw.Connection(str(file.absolute()), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            found = [str(line) for (line,) in db.execute(f"PRAGMA quick_check({MAX_PROBLEMS})")]
            version = int(db.pragma("user_version"))
            mode = str(db.pragma("journal_mode"))
        finally:
            db.close()
    except apsw.Error as error:
        return Health(str(file), size, 0, "", (str(error),))
    return Health(str(file), size, version, mode, () if found == ["ok"] else tuple(found))
