"""The project that a command works on, put together by wiring and closed when the command ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fanfold.cli.command import Invocation
from fanfold.runtime.operations.project import Project
from fanfold.wiring import wire


@contextmanager
def open_project(call: Invocation, *, to_read: bool = False) -> Iterator[Project]:
    """The project that `--project` names. `to_read`: nothing in its store will be changed."""
    project = wire(call.project, to_read=to_read)
    try:
        yield project
    finally:
        project.close()
