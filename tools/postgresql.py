"""A PostgreSQL server of its own for tests and the demo: in a temporary folder, reached by a socket file."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

HOMES = Path("/usr/lib/postgresql")


def program(name: str) -> str | None:
    """The newest installed program of the server."""
    found = sorted(HOMES.glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return str(found[-1]) if found else shutil.which(name)


class PostgresServer:
    """A running server. Its database `postgres` accepts every user of this machine who knows the folder."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fanfold-pg-"))
        self._data = self.folder / "data"
        self._become: Callable[[], None] | None = None
        if os.geteuid() == 0:  # the server refuses to run as root
            user = pwd.getpwnam("postgres")
            os.chown(self.folder, user.pw_uid, user.pw_gid)

            def become() -> None:
                os.setgid(user.pw_gid)
                os.setuid(user.pw_uid)

            self._become = become
        self._run("initdb", "-D", str(self._data), "-U", "fanfold", "-A", "trust", "-E", "UTF8", "--no-sync")
        with (self._data / "postgresql.conf").open("a") as out:
            out.write(
                f"listen_addresses = ''\nunix_socket_directories = '{self.folder}'\nmax_connections = 60\n"
            )
            out.write("fsync = on\nlog_min_messages = fatal\n")
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://fanfold@/postgres?host={self.folder}"

    def start(self) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-l", str(self._data / "log"), "-w", "-t", "60", "start")

    def stop(self, how: str = "immediate") -> None:
        self._run("pg_ctl", "-D", str(self._data), "-m", how, "-w", "-t", "60", "stop")

    def crash(self) -> None:
        """Restart as after a power cut."""
        self.stop("immediate")
        self.start()

    def require_password(self, user: str) -> None:
        """Have the server ask this user for a password."""
        rules = self._data / "pg_hba.conf"
        rules.write_text(f"local all {user} scram-sha-256\n{rules.read_text()}")
        self._run("pg_ctl", "-D", str(self._data), "reload")

    def dump(self) -> bytes:
        """Everything that is stored, as SQL. Values are hexadecimal."""
        found = program("pg_dumpall")
        assert found is not None
        return subprocess.run(
            [found, "-h", str(self.folder), "-U", "fanfold"], check=True, capture_output=True
        ).stdout

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, name: str, *arguments: str) -> None:
        found = program(name)
        assert found is not None, "needs PostgreSQL: tools/install-postgresql"
        env = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
        subprocess.run(
            [found, *arguments], check=True, preexec_fn=self._become, env=env, cwd="/",
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
