"""The runs of a project, for every command that looks at one or asks something of it.

A project in which nothing ran yet has no database; looking must not make one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fanfold.cli.command import Call
from fanfold.errors import NotFoundError
from fanfold.wiring import wire

if TYPE_CHECKING:
    from fanfold.runtime.operations.project import Project


def has_runs(call: Call) -> bool:
    """Whether anything was ever recorded in this project."""
    from fanfold.store.folder import DATABASE

    return (call.project / ".fanfold" / DATABASE).exists()


@contextmanager
def stored(call: Call) -> Iterator[Project]:
    """The project with its store; refused when there is none."""
    if not has_runs(call):
        raise NotFoundError(
            "run.not_found",
            f"nothing has run in {call.project.resolve()} yet",
            hint="fanfold run RECIPE starts a run; --project DIR names another folder",
        )
    project = wire(call.project).open()
    try:
        yield project
    finally:
        project.close()
