"""Commands that the user always allows agents to run in a project, kept in the user's own folder.

Rules
* They are stored under `FANFOLD_HOME`, never in the project: a checkout cannot bring a grant.
* A grant belongs to one folder, by path and inode, as the seal of its state does. Another folder at the same
  path has none.
* Only the exact command line counts. A file that cannot be read holds no grant: then the user is asked.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from fanfold.project_files import write_whole

FILE = "permissions.json"
MAX_BYTES = 4 * 1024 * 1024
MAX_COMMANDS = 1_000
"""The maximum per project; the oldest are dropped."""


class ProjectGrants:
    def __init__(self, home: Path, project: Path) -> None:
        self._home = home
        self._project = project

    def allows(self, command: str) -> bool:
        """Return whether the user always allows this command line in this project."""
        key = self._key()
        return key is not None and command in _commands(self._read(), key)

    def add(self, command: str) -> None:
        """Always allow a command line from now on. Raises `OSError` if that cannot be stored."""
        key = self._key()
        if key is None:
            return
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self._home / f"{FILE}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = self._read()
            commands = [one for one in _commands(known, key) if one != command]
            known[key] = [*commands, command][-MAX_COMMANDS:]
            write_whole(self._home / FILE, json.dumps(known, indent=1).encode(), mode=0o600)

    def _key(self) -> str | None:
        try:
            return f"{os.path.realpath(self._project)}:{self._project.stat().st_ino}"
        except OSError:
            return None

    def _read(self) -> dict[str, Any]:
        try:
            with open(self._home / FILE, "rb") as file:
                known = json.loads(file.read(MAX_BYTES))
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}


def _commands(known: dict[str, Any], key: str) -> list[str]:
    found = known.get(key)
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
