"""Random `.fanfold` folders, as a hostile checkout, a broken disk or a careless hand may leave them.

A seed gives the same tree every time. Half of them are state that was ours and then was damaged: refused
state is never opened, so only damaged state shows whether its readers hold.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

STATE = (
    "fanfold.db", "fanfold.db-wal", "fanfold.db-shm", "state.seal", "subagents", "workspace", "runs", "index",
    "workspace/journal", "workspace/journal/m1", "workspace/bases", "workspace/store.git", "workspace/lock",
    "workspace/store.git/config", "workspace/store.git/HEAD", "workspace/proposals", "workspace/trash",
    "subagents/s1", "subagents/s1/child.json", "subagents/s1/merged.json", "runs/abc", "runs/abc/report.md",
    "index/version", "index.lock", "smoke", "wake", "..odd", " ", "-rf", "a\nb", "é", "unknown",
)  # fmt: skip
BROUGHT = (
    "workflows", "workflows/one.yaml", "workflows/one@2.yaml", "workflows/two/recipe.yaml", "agents",
    "agents/scout.toml", "agents/.toml", "config.toml", ".gitignore", "recipe.schema.json",
)  # fmt: skip
TEXTS = (
    b"", b"\0" * 100, b"SQLite format 3\0" + b"\0" * 84, b"{", b"[]", b'{"version": 1}', b"\xff\xfe\x00",
    b"name: one\nsteps: [{id: a, agent: explorer, prompt: p}]\n", b"name: one\nsteps: &a [*a]\n",
    b'name = "scout"\ndescription = "d"\n', b"[workflows]\nmax_agents = 5\n",
    b"[sessions]\nmax_threads = 5\n", b"a: " * 5_000, b"[" * 5_000, b"x" * 300_000,
    b"gitdir: /etc\n", b"\x1b[2J\x07",
)  # fmt: skip


class Maker:
    """Builds one tree. `outside` is a folder that nothing may touch."""

    def __init__(self, seed: int, outside: Path) -> None:
        self._random = random.Random(seed)
        self._outside = outside
        self._kinds: dict[str, Callable[[Path], None]] = {
            "file": self._file,
            "folder": lambda path: path.mkdir(),
            "link to a folder": lambda path: path.symlink_to(self._outside),
            "link to a file": lambda path: path.symlink_to(self._outside / "secret"),
            "link to nothing": lambda path: path.symlink_to("nowhere"),
            "link to itself": lambda path: path.symlink_to(path.name),
            "pipe": os.mkfifo,
            "socket": _socket,
        }

    def plant(self, own: Path) -> None:
        """A folder that came with a checkout."""
        if self._random.random() < 0.05:
            own.symlink_to(self._outside)
            return
        own.mkdir(exist_ok=True)
        for name in self._random.sample(STATE + BROUGHT, self._random.randint(1, 8)):
            self._put(own / name)

    def damage(self, own: Path) -> None:
        """State that was ours, with some of it replaced, cut short or gone."""
        there = [path for path in sorted(own.rglob("*")) if path.name not in ("state.seal", ".gitignore")]
        for path in self._random.sample(there, min(len(there), self._random.randint(1, 4))):
            if not os.path.lexists(path):
                continue
            if self._random.random() < 0.4 and path.is_file() and not path.is_symlink():
                with path.open("r+b") as file:
                    size = path.stat().st_size
                    file.truncate(self._random.randint(0, size))
                    file.seek(self._random.randint(0, size))
                    file.write(self._random.choice(TEXTS)[:200])
                continue
            _remove(path)
            if self._random.random() < 0.8:
                self._put(path)
        if self._random.random() < 0.5:
            self._put(own / self._random.choice(BROUGHT))

    def _put(self, path: Path) -> None:
        parents = [
            parent for parent in path.parents if parent.name == ".fanfold" or ".fanfold" in parent.parts
        ]
        for parent in reversed(parents):
            if not os.path.lexists(parent):
                parent.mkdir()
            elif not parent.is_dir() or parent.is_symlink():
                return
        if os.path.lexists(path):
            return
        kind = self._random.choices(list(self._kinds), [6, 2, 1, 1, 1, 1, 1, 1])[0]
        self._kinds[kind](path)
        if not path.is_symlink() and self._random.random() < 0.15:
            path.chmod(self._random.choice((0, 0o400, 0o777, 0o4755)))

    def _file(self, path: Path) -> None:
        path.write_bytes(self._random.choice(TEXTS))


def _socket(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    made = socket.socket(socket.AF_UNIX)
    try:
        made.bind(f"/proc/self/fd/{here}/{path.name}")  # the path itself may be too long for a socket
    finally:
        made.close()
        os.close(here)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()
