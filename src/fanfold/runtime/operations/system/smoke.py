"""Smoke: a minute's proof that the promises hold here, on this machine, with this installation.

The plain smoke needs no network: scripted agents, a real store in a throw-away project, and every claim is
read off the log. The scenarios of the real smoke are in `real_smoke`.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from fanfold.agents.entries import Entry, UserInput
from fanfold.kernel.events import Envelope
from fanfold.recipe.compile import compile_recipe
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.starting.creation import create
from fanfold.runtime.operations.runs.starting.options import Options
from fanfold.runtime.views.installation import SmokeCheck, SmokeReport
from fanfold.runtime.views.shown import shown
from fanfold.sessions.log import read_entries

READERS = """
name: smoke-readers
steps:
  - {id: one, agent: explorer, prompt: "Say one."}
  - {id: two, agent: explorer, prompt: "Say two."}
  - {id: three, agent: explorer, prompt: "Say three."}
"""
WRITERS = """
name: smoke-writers
steps:
  - {id: first, agent: worker, write_set: ["notes/*.md"], prompt: "Write notes/a.md."}
  - {id: second, agent: worker, write_set: ["notes/a.md"], prompt: "Improve notes/a.md."}
"""
SUMMARIES = """
name: smoke-summaries
steps:
  - {id: gather, agent: explorer, prompt: "Name a colour."}
  - {id: use, agent: explorer, depends_on: [gather], prompt: "Say what you were given."}
"""
INVALID = """
name: smoke-invalid
steps:
  - {id: a, agent: explorer, depends_on: [missing], prompt: "x"}
"""
SCRIPT = """
default: {output: "{{step}} is done", delay_ms: 30}
steps: {gather: {output: ultramarine, delay_ms: 1}}
"""
ONE_BY_ONE = ["first started", "first finished", "second started", "second finished"]
"""The order of two agents of which the second waits for the first."""


class Ran(Struct, frozen=True):
    """What one smoke run left behind."""

    status: str
    events: Sequence[Envelope]
    sessions: dict[str, list[Entry]]
    """What the last session of each agent step recorded."""
    outputs: dict[str, Any] = {}
    """What each step gave back."""

    def prompt(self, step: str) -> str:
        """What the agent of a step was asked, as its session recorded it."""
        entries = self.sessions.get(step, [])
        return next((entry.text for entry in entries if isinstance(entry, UserInput)), "")


def parallel_readers(ran: Ran) -> SmokeCheck:
    """All readers were live at one moment."""
    most = live_at_once(ran)
    return SmokeCheck("parallel_readers", most == 3 and ran.status == "completed", {"live_at_once": most})


def live_at_once(ran: Ran) -> int:
    """How many agents were live at one moment, at most."""
    live: dict[str, None] = {}
    most = 0
    for data in agent_events(ran):
        if data["status"] == "started":
            live[data["step"]] = None
        elif data["status"] in ("finished", "failed", "timed_out", "cancelled"):
            live.pop(data["step"], None)
        most = max(most, len(live))
    return most


def serialized_writers(ran: Ran) -> SmokeCheck:
    """The second writer started after the first had ended."""
    order = order_of(ran)
    return SmokeCheck("serialized_writers", order == ONE_BY_ONE, {"order": order})


def dependency_summaries(ran: Ran) -> SmokeCheck:
    """The dependent was told what its dependency said, though its prompt did not ask for it."""
    prompt = ran.prompt("use")
    return SmokeCheck("dependency_summaries", "ultramarine" in prompt, {"prompt": prompt})


def lifecycle(ran: Ran) -> SmokeCheck:
    """Every session's life is in the log with all of its fields."""
    fields = (
        "parent_id",
        "subagent_id",
        "session_id",
        "role",
        "task",
        "depth",
        "status",
        "workspace",
        "summary",
    )
    lives: dict[str, list[str]] = {}
    complete = True
    for data in agent_events(ran):
        complete = complete and all(name in data for name in fields)
        lives.setdefault(data["step"], []).append(data["status"])
    ok = complete and bool(lives) and all(life == ["started", "finished"] for life in lives.values())
    return SmokeCheck("lifecycle", ok, {"lives": lives, "every_field": complete})


def order_of(ran: Ran) -> list[str]:
    """When agents started and finished, in the order of the log."""
    told = [data for data in agent_events(ran) if data["status"] in ("started", "finished")]
    return [f"{data['step']} {data['status']}" for data in told]


def agent_events(ran: Ran) -> list[dict[str, Any]]:
    """The lives of the agents, in the order of the log."""
    return [envelope.data for envelope in ran.events if envelope.type == "subagent_event"]


PLAN: tuple[tuple[str, str, Callable[[Ran], SmokeCheck]], ...] = (
    ("parallel_readers", READERS, parallel_readers),
    ("serialized_writers", WRITERS, serialized_writers),
    ("dependency_summaries", SUMMARIES, dependency_summaries),
    ("lifecycle", SUMMARIES, lifecycle),
)
"""What the plain smoke runs, in order; `validation` comes first and runs nothing."""


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
