"""How `fanfold smoke` runs a recipe, scripted or real, and gathers what its checks read."""

from __future__ import annotations

import asyncio

from fanfold.recipe.compile import compile_recipe
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.creation import create
from fanfold.runtime.operations.runs.options import Options
from fanfold.runtime.operations.system.smoke import Ran
from fanfold.sessions.log import read_entries


def run_smoke(project: Project, recipe: str, options: Options) -> tuple[Ran, RunTree]:
    """Run one of the recipes of smoke to its end, or to where it rests."""
    plan = compile_recipe(recipe.encode(), "smoke.yaml", project.around).plan
    assert plan is not None, "the recipes of smoke are checked by the tests"
    owned = create(project, plan, {}, options)
    asyncio.run(owned.host().start())
    owned.done()
    tree = owned.tree
    events = list(project.store.tree(tree.root.id))
    sessions = {
        envelope.data["step"]: list(read_entries(project.store, envelope.data["session_id"]))
        for envelope in events
        if envelope.type == "subagent_event" and envelope.data["status"] == "started"
    }
    outputs = {
        path: tree.blobs.get(node.output) for path, node in tree.root.nodes.items() if node.output is not None
    }
    return Ran(run_status(tree.state, tree.root), events, sessions, outputs), tree
