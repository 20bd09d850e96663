"""Artifacts: listed, and given away one by one."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from fanfold.runtime.operations.runs.files.artifacts import OpenedArtifact, list_artifacts, open_artifact
from fanfold.runtime.views.runs.artifacts import ArtifactList
from fanfold.server.desk import Desk
from fanfold.server.downloads import BYTES
from fanfold.server.endpoints.parameters import PRINTABLE, RunAsked, RunAt
from fanfold.server.routes import Routes

ROUTES = Routes()
ArtifactName: TypeAlias = Annotated[
    str, Meta(max_length=300, pattern=PRINTABLE, description="Its `name` in the list. A slash in it is %2F.")
]


class ArtifactAsked(RunAsked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    artifact: ArtifactName


@ROUTES.look("/api/runs/{run}/artifacts", "Files that steps left beside the project")
def show_artifacts(desk: Desk, asked: RunAt) -> ArtifactList:
    return list_artifacts(desk.history, asked.run, asked.at)


@ROUTES.get("/api/runs/{run}/artifacts/{artifact}", "One of them, to be kept", media=BYTES, gives_file=True)
def give_artifact(desk: Desk, asked: ArtifactAsked) -> OpenedArtifact:
    return open_artifact(desk.history, asked.run, asked.artifact)
