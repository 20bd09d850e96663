"""What a person can do about a run as it stands: the command that lets it go on."""

from __future__ import annotations

from fanfold.kernel.lifecycle import RUN_TERMINAL, WAITING
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.operations.runs.starting.limits import how_to_raise
from fanfold.runtime.views.approvals import how_to_answer, open_approvals


def how_to_go_on(tree: RunTree) -> str:
    """The command that answers, raises what is reached, or resumes; empty for a run that is over or open."""
    status = run_status(tree.state, tree.root)
    if status in RUN_TERMINAL or tree.root.growing:
        return ""
    if status == WAITING:
        asked = open_approvals(tree)
        return how_to_answer(tree.root.id, asked[0]) if asked else ""
    if tree.state.pausing == "budget":
        return how_to_raise(tree)
    return f"fanfold resume {tree.root.id}" if tree.state.pausing else ""
