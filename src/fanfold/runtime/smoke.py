"""Smoke: a minute's proof that the promises hold here, on this machine, with this installation.

The plain smoke needs no network: scripted agents, a real store in a throw-away project, and every claim is
read off the log. The real smoke runs one small scenario on whatever provider is configured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from fanfold.kernel.events import Envelope

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

SCENARIOS = {
    "micro_parallel": """
name: smoke-micro-parallel
limits: {timeout: 3m}
steps:
  - {id: left, agent: explorer, max_turns: 2, prompt: "Answer with the single word: left"}
  - {id: right, agent: explorer, max_turns: 2, prompt: "Answer with the single word: right"}
output: {left: steps.left.output, right: steps.right.output}
""",
    "dependency": """
name: smoke-dependency
limits: {timeout: 3m}
steps:
  - {id: first, agent: explorer, max_turns: 2, prompt: "Name one colour, in one word."}
  - id: second
    agent: explorer
    max_turns: 2
    depends_on: [first]
    prompt: "Somebody said: {{steps.first.output}}. Repeat it in one word."
""",
    "writer_controlled": """
name: smoke-writer-controlled
limits: {timeout: 3m}
steps:
  - id: write
    agent: worker
    max_turns: 3
    write_set: ["smoke/**"]
    merge: discard
    prompt: "Write the file smoke/hello.txt with the single line: hello. Then say done."
  - {id: look, agent: explorer, max_turns: 2, depends_on: [write], prompt: "Say done."}
""",
}
"""The real scenarios; the writer's changes are thrown away."""


class Check(Struct, frozen=True):
    """One claim: whether it held, and what the log showed."""

    name: str
    ok: bool
    evidence: Any


class Ran(Struct, frozen=True):
    """What one smoke run left behind."""

    status: str
    events: Sequence[Envelope]
    prompts: dict[str, str]
    """What each agent was asked, by step."""


def parallel_readers(ran: Ran) -> Check:
    """All readers were live at one moment."""
    live: dict[str, None] = {}
    most = 0
    for data in _agent_events(ran):
        if data["status"] == "started":
            live[data["step"]] = None
        elif data["status"] in ("finished", "failed", "timed_out", "cancelled"):
            live.pop(data["step"], None)
        most = max(most, len(live))
    return Check("parallel_readers", most == 3 and ran.status == "completed", {"live_at_once": most})


def serialized_writers(ran: Ran) -> Check:
    """The second writer started after the first had ended."""
    order = [
        f"{d['step']} {d['status']}" for d in _agent_events(ran) if d["status"] in ("started", "finished")
    ]
    wanted = ["first started", "first finished", "second started", "second finished"]
    return Check("serialized_writers", order == wanted, {"order": order})


def dependency_summaries(ran: Ran) -> Check:
    """The dependent was told what its dependency said, though its prompt did not ask for it."""
    prompt = ran.prompts.get("use", "")
    return Check("dependency_summaries", "ultramarine" in prompt, {"prompt": prompt})


def lifecycle(ran: Ran) -> Check:
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
    for data in _agent_events(ran):
        complete = complete and all(name in data for name in fields)
        lives.setdefault(data["step"], []).append(data["status"])
    ok = complete and bool(lives) and all(life == ["started", "finished"] for life in lives.values())
    return Check("lifecycle", ok, {"lives": lives, "every_field": complete})


def _agent_events(ran: Ran) -> list[dict[str, Any]]:
    return [envelope.data for envelope in ran.events if envelope.type == "subagent_event"]


PLAN: tuple[tuple[str, str, Callable[[Ran], Check]], ...] = (
    ("parallel_readers", READERS, parallel_readers),
    ("serialized_writers", WRITERS, serialized_writers),
    ("dependency_summaries", SUMMARIES, dependency_summaries),
    ("lifecycle", SUMMARIES, lifecycle),
)
"""What the plain smoke runs, in order; `validation` comes first and runs nothing."""
