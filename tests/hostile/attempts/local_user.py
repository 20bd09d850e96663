"""What another user of the same machine may prepare, read and write."""

# ruff: noqa: E501 - an attempt reads best in one line

from __future__ import annotations

import os
from collections.abc import Callable

from tests.hostile.attempt import RUN, Attempt
from tests.hostile.attempts.repository import FOREIGN, LOOK, WRITES, WRITTEN, configure_git
from tests.hostile.worlds import SOMEBODY, World

OPEN = ("sh", "-c", 'umask 0; exec "$@"', "sh")
"""Whatever the victim's umask."""


def belongs_to_another(*names: str, mode: int = 0o777) -> Callable[[World], None]:
    def plant(world: World) -> None:
        for name in names:
            path = world.project / name
            if not path.exists():
                path.mkdir(parents=True)
            path.chmod(mode if path.is_dir() else 0o666)
            os.chown(path, SOMEBODY, SOMEBODY)

    return plant


def has_to_fail(*argv: str) -> Callable[[World], None]:
    """The attacker does something when the victim is done."""

    def after(world: World) -> None:
        ended = world.execute([world.filled(word) for word in argv], SOMEBODY)
        assert ended.returncode != 0, ended.stdout

    return after


def looks(name: str, *argv: str, commands: tuple[tuple[str, ...], ...] = (RUN, ("query", "done"))) -> Attempt:
    return Attempt(
        name=name, commands=commands, behind=OPEN, after=has_to_fail(*argv), says="done", only_as_root=True
    )


def shell(name: str, code: str, **more: tuple[tuple[str, ...], ...]) -> Attempt:
    return looks(name, "sh", "-c", code, **more)


def open_folder(world: World) -> None:
    """The project lies open to everybody, as on a shared disk."""
    world.project.chmod(0o777)


def their_repository(world: World) -> None:
    configure_git(world)
    for here, folders, files in os.walk(world.project / ".git"):
        for name in (".", *folders, *files):
            os.chown(os.path.join(here, name), SOMEBODY, SOMEBODY, follow_symlinks=False)


def above(world: World) -> None:
    """A state folder of theirs above the project, as one can make in a place for temporary files."""
    world.write(
        world.top,
        {
            ".fanfold/config.toml": "[workflows]\nenabled = false\n",
            ".fanfold/workflows/planted.yaml": "name: planted\nsteps: []\n",
        },
    )
    for here, folders, files in os.walk(world.top / ".fanfold"):
        for name in (".", *folders, *files):
            os.chown(os.path.join(here, name), SOMEBODY, SOMEBODY)


def database_of_theirs(world: World) -> None:
    world.write(world.project, {".fanfold/fanfold.db": "SQLite format 3\0"})
    os.chown(world.project / ".fanfold/fanfold.db", SOMEBODY, SOMEBODY)


def a_folder_like_ours(world: World) -> None:
    """Temporary folders of ours have a prefix: theirs are there first."""
    shared = world.top / "free/tmp"
    shared.mkdir(parents=True)
    shared.chmod(0o1777)
    for name in ("fanfold", "fanfold-query-", "fanfold-smoke-"):
        (shared / name).symlink_to(world.outside)
        os.chown(shared / name, SOMEBODY, SOMEBODY, follow_symlinks=False)


def nothing_open_in_temp(world: World) -> None:
    left = [
        name
        for name in os.listdir(world.top / "free/tmp")
        if not (world.top / "free/tmp" / name).is_symlink()
    ]
    assert left == [], left


DB, RUNS = "@project@/.fanfold/fanfold.db", "@project@/.fanfold/runs"
ASKS = {
    "one.yaml": "name: one\nsteps:\n  - {id: a, agent: explorer, prompt: p}\n  - {id: ok, approve: go on?, depends_on: [a]}\n"
}
ATTEMPTS = (
    looks("reads the database", "cat", DB),
    shell("reads the log that is not written back yet", "cat @project@/.fanfold/fanfold.db-*"),
    shell("reads outputs", "cat @project@/.fanfold/runs/*/report.md @project@/.fanfold/runs/*/outputs/*"),
    looks("lists runs", "ls", RUNS),
    looks("lists the index", "ls", "@project@/.fanfold/index"),
    looks("reads the seal", "cat", "@project@/.fanfold/state.seal"),
    looks("reads the secret", "cat", "@home@/.fanfold/secret"),
    looks("writes the database", "sh", "-c", f"echo x >> {DB}"),
    looks("replaces the database", "sh", "-c", f"mv {DB} @project@/.fanfold/old || rm -f {DB} && test ! -e {DB} && false"),
    looks("plants a recipe", "touch", "@project@/.fanfold/workflows/evil.yaml"),
    looks("plants a request", "sh", "-c", "touch @project@/.fanfold/wake && ls @project@/.fanfold"),
    shell("reads what a kept workspace holds", "ls @project@/.fanfold/subagents @project@/.fanfold/workspace", commands=(RUN,)),
    looks("answers for the victim", "sh", "-c", "cd @project@ && python3 -c \"import sqlite3; sqlite3.connect('file:.fanfold/fanfold.db?mode=rw', uri=True).execute('select 1 from sqlite_master').fetchall()\""),
    Attempt(name="owns the state folder", plant=belongs_to_another(".fanfold"), commands=LOOK, says="another user|state.foreign|store.cannot_open", only_as_root=True),
    Attempt(name="owns the state folder, with roles in it", plant=belongs_to_another(".fanfold", ".fanfold/agents"), commands=LOOK, says="another user|state.foreign|store.cannot_open", only_as_root=True),
    Attempt(name="owns the database", plant=database_of_theirs, commands=LOOK, says=FOREIGN, only_as_root=True),
    Attempt(name="owns runs", plant=belongs_to_another(".fanfold/runs"), commands=LOOK, says=FOREIGN, only_as_root=True),
    Attempt(name="owns the repository, which runs programs", plant=their_repository, commands=(RUN, ("diff", "last"), ("doctor",)), says="completed|another|owner", only_as_root=True),
    Attempt(name="owns a state folder above", plant=above, commands=(RUN, ("list",), ("doctor",)), says="done", only_as_root=True),
    Attempt(name="may write the project, which is not the state's folder", plant=open_folder, behind=OPEN, after=has_to_fail("touch", "@project@/.fanfold/x"), says="done", only_as_root=True),
    Attempt(name="was first in the place for temporary files", plant=a_folder_like_ours, environment={"TMPDIR": "@top@/free/tmp"}, commands=(RUN, ("query", "done")), after=nothing_open_in_temp, says="done", only_as_root=True),
    Attempt(name="reads what a program of the victim left in its snapshot", behind=OPEN, files={"one.yaml": WRITES, "script.yaml": WRITTEN.replace("output: done", "fail: {class: agent, message: no}").replace(", writes", ", tool_calls: [], writes")},
            after=has_to_fail("sh", "-c", "ls @project@/.fanfold/subagents/*/*"), says="failed|error", only_as_root=True),
    Attempt(name="reads a question that waits", behind=OPEN, files=ASKS, after=has_to_fail("sh", "-c", "cat @project@/.fanfold/runs/*/*"), says="waiting|go on", only_as_root=True),
)  # fmt: skip
