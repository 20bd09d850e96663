"""The locations of stores, and how to open them: SQLite below the project, or PostgreSQL.

The database module is imported on first use: most commands only check whether the project has a store.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

from msgspec import Struct

from fanfold.errors import AuthorError, NotFoundError
from fanfold.store import database
from fanfold.store.database import DATABASE, is_bare, is_protected
from fanfold.store.protocol import LEASE_S, PATIENCE_S, Clean, Health, Store, StoreFault, as_it_is

WITHOUT_TABLES = "store.read_only"
T = TypeVar("T")

MIN_LEASE_S = 5
"""A lease in PostgreSQL expires after `cluster.heartbeat_s`, but not earlier than this."""


class SqliteAddress(Struct, frozen=True, kw_only=True):
    """The location of a SQLite store (see `StoreAddress`); `folder` is the project's `.fanfold` folder."""

    folder: Path
    durability: Literal["full", "normal"] = "full"
    clean: Clean = as_it_is
    expiry_s: float = LEASE_S
    """Seconds until a lease expires if its owner does not renew it."""
    read_key: Callable[[], tuple[bytes, bool]] = lambda: (b"", True)
    """Return the key of the project's user, and whether a database without this key may get it. Called when
    the store is opened, because the user's first state is created together with their secret."""

    def exists(self) -> bool:
        """Return whether the store contains data, or may contain data."""
        return (self.folder / DATABASE).exists() and not is_bare(self.folder)

    def open(self) -> Store:
        """Open the store; create it if it is missing."""
        from fanfold.store.sqlite import SqliteStore

        key, adopts = self.read_key()
        return SqliteStore(
            self.folder,
            durability=self.durability,
            clean=self.clean,
            expiry_s=self.expiry_s,
            key=key,
            adopts=adopts,
        )

    def open_to_read(self) -> Store:
        """Open the existing store read-only. Raises `NotFoundError` if there is none."""
        if not self.exists():
            raise self._nothing_there()
        from fanfold.store.sqlite import SqliteStore

        key, adopts = self.read_key()
        try:
            return SqliteStore(self.folder, clean=self.clean, read_only=True, key=key, adopts=adopts)
        except StoreFault as fault:
            # Another process is creating the tables now, or died while it created them.
            if fault.code == WITHOUT_TABLES and not is_protected(self.folder):
                raise self._nothing_there() from None
            raise

    def _nothing_there(self) -> NotFoundError:
        message = f"no run has started in {self.folder.parent.resolve()} yet"
        hint = "fanfold list shows what can be run; --project DIR names another folder"
        return NotFoundError("run.not_found", message, hint=hint)

    def examine(self) -> Health | None:
        """Check the store for damage; None if there is no store."""
        return database.examine(self.folder) if self.exists() else None

    def engine(self) -> str:
        """Return the name and the version of the database engine."""
        return database.engine()


class PostgresAddress(Struct, frozen=True, kw_only=True):
    """The location of a PostgreSQL store (see `StoreAddress`); `project` is the name of the project there."""

    url: str
    project: str
    clean: Clean = as_it_is
    expiry_s: float = LEASE_S
    patience_s: float = PATIENCE_S

    @property
    def place(self) -> str:
        """The database for messages, without a password."""
        from fanfold.store.postgres_connections import shown

        return shown(self.url)

    def exists(self) -> bool:
        """Return whether the project has been opened in this database."""
        return self._look("SELECT 1 FROM fanfold.projects WHERE name = %s", self.project) is not None

    def open(self) -> Store:
        """Open the store of the project; the tables must exist."""
        return self._open(read_only=False)

    def open_to_read(self) -> Store:
        """Open the store read-only. Raises `NotFoundError` if the project has none."""
        return self._open(read_only=True)

    def _open(self, *, read_only: bool) -> Store:
        _require_psycopg()
        from fanfold.store.postgres import PostgresStore
        from fanfold.store.postgres_connections import check_url

        check_url(self.url)
        return PostgresStore(
            self.url,
            self.project,
            clean=self.clean,
            read_only=read_only,
            expiry_s=self.expiry_s,
            patience_s=self.patience_s,
        )

    def examine(self) -> Health | None:
        """Check the connection and the tables; None if the project has no data."""
        from fanfold.store.postgres_connections import shown
        from fanfold.store.postgres_tables import VERSION

        try:
            if not self.exists():
                return None
            size = self._look("SELECT pg_database_size(current_database())")
        except StoreFault as fault:
            return Health(shown(self.url), 0, 0, (fault.message,), fault.hint or "")
        stored = size if isinstance(size, int) else 0
        return Health(f"{shown(self.url)}, project {self.project}", stored, VERSION, ())

    def engine(self) -> str:
        """Return the name and the version of the server."""
        try:
            return f"PostgreSQL {str(self._look('SHOW server_version')).split()[0]}"
        except StoreFault:
            return "PostgreSQL"

    def init(self) -> tuple[int, int]:
        """Create or migrate the tables; return their format before and after."""
        from fanfold.store.postgres_tables import init

        return self._connected(init)

    def _look(self, query: str, *values: str) -> object:
        from fanfold.store.postgres_tables import require_version, version

        def look(db: Any, place: str) -> object:
            require_version(version(db), place)
            found = db.execute(query, values).fetchone()
            return None if found is None else found[0]

        return self._connected(look)

    def _connected(self, work: Callable[[Any, str], T]) -> T:
        """Return the result of `work` on a short connection, which waits for no outage."""
        _require_psycopg()
        import psycopg

        from fanfold.store.postgres_connections import ConnectionPool, check_url, fault, shown, unreachable

        check_url(self.url)
        try:
            with ConnectionPool(self.url).connect() as db:
                return work(db, shown(self.url))
        except psycopg.OperationalError as error:
            raise unreachable(self.url, error) from error
        except psycopg.Error as error:
            raise fault(self.url, error) from error


def _require_psycopg() -> None:
    from importlib.util import find_spec

    if find_spec("psycopg") is None:
        message = "a PostgreSQL store needs the package psycopg, which is not installed"
        raise AuthorError("store.no_driver", message, hint='install it: pip install "fanfold[cluster]"')
