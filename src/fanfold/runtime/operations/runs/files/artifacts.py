"""Artifacts of a run: which there are, and one of them opened to be taken away."""

from __future__ import annotations

from io import BufferedReader

from msgspec import Struct

from fanfold.errors import NotFoundError, WorldError
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.project import Project
from fanfold.runtime.views.runs.documents import ArtifactList, PublishedFile, artifacts_below, artifacts_of
from fanfold.workspace.artifacts import is_whole, open_published


class OpenedArtifact(Struct, frozen=True):
    """A file that is open, and what was recorded of it. Whoever has it closes it."""

    about: PublishedFile
    file: BufferedReader

    def check(self) -> None:
        """Raise unless it is still, byte for byte, what the step published. Reads all of it."""
        if not is_whole(self.file, self.about.size, self.about.sha256):
            message = f"artifacts/{self.about.name} of run {self.about.run_id} is not what the step published"
            raise WorldError("artifact.changed", message, hint="fork from the step that made it")


def list_artifacts(project: Project, run: str, at: int | None = None) -> ArtifactList:
    """Those of a run and of the runs below it."""
    found = find_run(project, run, at)
    return ArtifactList(list(artifacts_below(found.tree, found.run)))


def open_artifact(project: Project, run: str, name: str) -> OpenedArtifact:
    """A published file by its name below `artifacts/`: only what the log names can be opened."""
    found = find_run(project, run)
    about = next((one for one in artifacts_of(found.tree, found.run) if one.name == name), None)
    if about is None:
        hint = f"GET /api/runs/{found.run.id}/artifacts lists them"
        raise NotFoundError("artifact.not_found", f"run {found.run.id} published no such file", hint=hint)
    try:
        file = open_published(project.runs_folder, found.run.id, name)
    except OSError:
        message = f"artifacts/{name} of run {found.run.id} is gone"
        hint = "it was removed, or the run was imported without its files; fork from the step that made it"
        raise NotFoundError("artifact.lost", message, hint=hint) from None
    return OpenedArtifact(about, file)
