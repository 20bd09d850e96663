"""Going on with a run of adopted state: the user is asked as if it began now."""

from __future__ import annotations

from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.starting.permission import Attendant, permit
from fanfold.trust.adopted import is_adopted, permitted

KEPT_FROM_LOG = "goes on from results and answers in its log, which may be somebody else's"


def permit_adopted(project: Project, tree: RunTree, *, yes: bool, attendant: Attendant | None) -> None:
    """Return when a run may go on; one that was adopted only after somebody here said so."""
    root = tree.root.id
    if not is_adopted(project.folder, root):
        return
    frozen = tree.frozen()
    also = [KEPT_FROM_LOG, f"its agents work on: {', '.join(sorted(frozen.backends())) or frozen.backend}"]
    if frozen.permission == "auto":
        also.append("its agents run programs without asking")
    if frozen.unsafe:
        also.append("its programs run without a sandbox where there is none")
    permit(tree.state.plan, frozen.roles.get, "ask", yes=yes, attendant=attendant, also=also)
    permitted(project.folder, root)
