"""Whether a project's database is sound, found out beside it and without changing it."""

from __future__ import annotations

from pathlib import Path

import apsw

from fanfold.store.database.folder import DATABASE
from fanfold.store.database.presence import refuse_special
from fanfold.store.protocol import Health, StoreFault

MAX_PROBLEMS = 20


def engine() -> str:
    """The SQLite that is built into this installation, not the system's."""
    return f"SQLite {apsw.sqlite_lib_version()}"


def examine(folder: Path) -> Health:
    """Look through the database of a `.fanfold` folder."""
    file = folder / DATABASE
    size = sum(part.stat().st_size for part in (file, file.with_name(f"{DATABASE}-wal")) if part.exists())
    version, problems = 0, ["ok"]
    try:
        refuse_special(str(file))
        db = apsw.Connection(str(file.absolute()), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            problems = [str(line) for (line,) in db.execute(f"PRAGMA quick_check({MAX_PROBLEMS})")]
            version = int(db.pragma("user_version"))
        finally:
            db.close()
    except apsw.Error as error:
        problems = [str(error)]
    except StoreFault as fault:
        problems = [fault.message]
    return Health(str(file), size, version, () if problems == ["ok"] else tuple(problems))
