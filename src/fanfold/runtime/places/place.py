"""Where one execution of a step works, and what becomes of it there.

Every step that touches files has one while it works, most of them the project itself: so it is kept small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

if TYPE_CHECKING:
    from fanfold.runtime.records.evidence import WorkspaceFact
    from fanfold.workspace.artifacts import ArtifactRoom
    from fanfold.workspace.merges.merge import Merged
    from fanfold.workspace.sandbox.start import Launch
    from fanfold.workspace.snapshots.changes import FoundChanges
    from fanfold.workspace.snapshots.children import Child

SAID = "outcome.json"
"""In the folder of a snapshot: what its step said, once it had. A turn that goes on in what another left
has a file of its own."""


class Place:
    """Where one execution works. `child` is None when it works in the project itself."""

    __slots__ = (
        "artifacts", "child", "evidence", "found", "is_new", "merged", "path", "rounds", "said", "said_in",
    )  # fmt: skip

    def __init__(self, path: str, child: Child | None) -> None:
        self.path = path
        self.child = child
        self.evidence: list[WorkspaceFact] = []
        self.is_new = True
        """Nothing of an earlier execution is in here."""
        self.said_in = SAID
        self.said: bytes | None = None
        """What an earlier execution of the step said when it had done its work."""
        self.merged: Merged | None = None
        """What was merged by an earlier execution, where the snapshot itself is lost."""
        self.found: FoundChanges | None = None
        """What was in it when it was merged, also of files that the project ignores."""
        self.rounds: list[Place] = []
        """Where its conflicts are settled."""
        self.artifacts: ArtifactRoom | None = None
        """Where it makes files that are kept beside the project."""

    def note_sandbox(self, launch: Launch) -> None:
        """A program runs here, at this level of the sandbox and seeing this; the log says so once."""
        from fanfold.runtime.records.evidence import Sandboxed

        fact = Sandboxed(level=launch.level, **structs.asdict(launch.sight))
        if fact not in self.evidence:
            self.evidence.append(fact)
