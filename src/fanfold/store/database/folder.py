"""The project's `.fanfold` folder: what is private in it, and what git sees of it.

The folder is shared with people (recipes, roles and configuration live in it), so only what Fanfold
itself writes is closed to others: the database and the folders made through `private_folder`.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import apsw

from fanfold.store.database.presence import refuse_network, refuse_special
from fanfold.store.protocol import Health, StoreFault

DATABASE = "fanfold.db"
PAGE_BYTES = 4_096
"""SQLite's; each table takes one at least, and the list of them the first."""

GITIGNORE = """\
# Written by Fanfold. Recipes, roles and configuration belong in version control; the rest is this machine's.
*
!config.toml
!agents/
!agents/**
!workflows/
!workflows/**
"""
MAX_PROBLEMS = 20


def prepare(folder: Path) -> Path:
    """Make the folder where it is missing and may be; the path of its database."""
    refuse_network(folder)
    database = folder / DATABASE
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _ignore_state(folder)
        # The database's side files inherit its permissions. A file that is there is not even opened: closing
        # it would drop the locks that another connection of this process holds on it.
        os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise StoreFault(
            "store.cannot_open",
            f"{folder} cannot be used: {error.strerror}",
            hint="check that the project's folder may be written and the disk has space",
            details={"file": str(database)},
        ) from error
    return database


def is_protected(folder: Path) -> bool:
    """Whether there is a database here that this process may read and must leave as it is."""
    database = folder / DATABASE
    if not database.exists() or not os.access(database, os.R_OK):
        return False
    return not (os.access(folder, os.W_OK | os.X_OK) and os.access(database, os.W_OK))


def is_bare(folder: Path) -> bool:
    """Whether there is a database without anything in it, not even tables: somebody makes it at this moment,
    or died on the way. Told by sizes alone: closing the file would drop the locks of this process.
    """
    try:
        known = os.lstat(folder / DATABASE)
        if not stat.S_ISREG(known.st_mode) or known.st_size not in (0, PAGE_BYTES):
            return False
        return os.stat(f"{folder / DATABASE}-wal").st_size == 0
    except FileNotFoundError:  # of the log: the file itself is there
        return True
    except OSError:
        return False


def private_folder(folder: Path) -> Path:
    """Make a folder that nobody else may enter; a link in its place would have us write elsewhere."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "it is a link", str(folder))
    return folder


def _ignore_state(folder: Path) -> None:
    """Keep git from state, unless there is a file or a link of that name: a repository may have brought it,
    and what is written through a link lands where the link says.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        made = os.open(folder / ".gitignore", flags, 0o644)
    except FileExistsError:
        return
    with os.fdopen(made, "w") as out:
        out.write(GITIGNORE)


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
