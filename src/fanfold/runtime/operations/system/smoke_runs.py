"""Running the recipes of smoke, and gathering what its checks read."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from fanfold.recipe.compile import compile_recipe
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.starting.creation import create
from fanfold.runtime.operations.runs.starting.options import Options
from fanfold.runtime.operations.system.smoke import INVALID, PLAN, SCRIPT, Ran
from fanfold.runtime.views.installation import SmokeCheck, SmokeReport
from fanfold.runtime.views.shown import shown
from fanfold.sessions.log import read_entries

VALIDATION = "validation"
CLAIMS = (VALIDATION, *(name for name, _, _ in PLAN))


def would_run(names: Sequence[str]) -> SmokeReport:
    """What a smoke would check; nothing is started."""
    return _report([SmokeCheck(name, True, "would run; nothing was started") for name in names])


def run_scripted(open_project: Callable[[Path], Project]) -> SmokeReport:
    """Check every claim with scripted agents in a project that is thrown away."""
    with tempfile.TemporaryDirectory(prefix="fanfold-smoke-") as folder:
        project = open_project(Path(folder))
        try:
            compiled = compile_recipe(INVALID.encode(), "smoke.yaml", project.around)
            codes = [diagnostic.code for diagnostic in compiled.report.diagnostics]
            refused = compiled.plan is None and codes == ["recipe.unknown_step"]
            options = Options(permission="auto", script=SCRIPT, script_file="smoke")
            ran = [check(run_smoke(project, recipe, options)[0]) for _, recipe, check in PLAN]
        finally:
            project.close()
    return _report([SmokeCheck(VALIDATION, refused, codes), *ran])


def _report(checks: list[SmokeCheck]) -> SmokeReport:
    return SmokeReport(all(check.ok for check in checks), checks)


def run_smoke(project: Project, recipe: str, options: Options) -> tuple[Ran, RunTree]:
    """Run one of the recipes of smoke to its end, or to where it rests."""
    plan = compile_recipe(recipe.encode(), "smoke.yaml", project.around).plan
    assert plan is not None, "the recipes of smoke are checked by the tests"
    owned = create(project, plan, {}, options)
    asyncio.run(owned.host().start())
    owned.done()
    tree = owned.tree
    events = list(shown(project.store, project.store.tree(tree.root.id)))
    sessions = {
        envelope.data["step"]: list(read_entries(project.store, envelope.data["session_id"]))
        for envelope in events
        if envelope.type == "subagent_event" and envelope.data["status"] == "started"
    }
    outputs = {
        path: tree.blobs.get(node.output) for path, node in tree.root.nodes.items() if node.output is not None
    }
    return Ran(run_status(tree.state, tree.root), events, sessions, outputs), tree
