"""Files that steps of a run left beside the project, as lists show them."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from fanfold.kernel.nodes import Run
from fanfold.runtime.hosting.run_tree import RunTree


class PublishedFile(Struct, frozen=True, kw_only=True):
    """`name` is its path below the run's `artifacts/`, `path` that from the project's folder."""

    run_id: str
    step: str
    """The step that published it last, by its path in its run."""
    name: str
    path: str
    size: int
    sha256: str


class ArtifactList(Struct, frozen=True):
    items: list[PublishedFile]


def artifacts_of(tree: RunTree, run: Run) -> Iterator[PublishedFile]:
    """What was published in one run; a run below it has a folder of its own."""
    for step, one in tree.memory.artifacts.get(run.id, {}).values():
        yield PublishedFile(
            run_id=run.id,
            step=step,
            name=one.path,
            path=f".fanfold/runs/{run.id}/artifacts/{one.path}",
            size=one.size,
            sha256=one.sha256,
        )


def artifacts_below(tree: RunTree, run: Run) -> Iterator[PublishedFile]:
    """What was published in a run and in those below it."""
    yield from artifacts_of(tree, run)
    for child in run.children:
        yield from artifacts_below(tree, child)
