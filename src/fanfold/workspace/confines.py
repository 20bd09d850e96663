"""What a command may see: of a workspace, of the repository of its project, and of the machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fanfold.trust.repository import find_repository
from fanfold.workspace.files.layout import Layout
from fanfold.workspace.sandbox.policy import Policy, ProcessLimits, Rooms
from fanfold.workspace.snapshots.children import Child


def make_policy(
    layout: Layout,
    child: Child | None,
    points: Mapping[str, bool],
    *,
    read_only: bool,
    network: bool,
    environment: Mapping[str, str],
    limits: ProcessLimits,
    rooms: Rooms,
) -> Policy:
    """The confines of a command in a child, or in the shared workspace when there is none."""
    project = layout.project
    entrance = child.entrance if child else None
    return Policy(
        project=project,
        workspace=child.path if child else project,
        place=child.place if child else project,
        scratch=layout.scratch,
        namespaces=entrance.namespaces if entrance else None,
        read_only=read_only or (child is not None and child.read_only),
        network=network,
        environment=dict(environment),
        points=dict(points),
        repositories=_repositories(project),
        path=os.environ.get("PATH", os.defpath),
        home=Path.home(),
        rooms=rooms,
        limits=limits,
    )


def _repositories(project: Path) -> tuple[str, ...]:
    """Where git keeps what belongs to this work tree, as far as that is outside of it."""
    found = find_repository(project)
    if found is None or found.top != project:
        return ()
    folders = dict.fromkeys((found.common, found.folder))
    return tuple(str(folder) for folder in folders if not folder.is_relative_to(project))
