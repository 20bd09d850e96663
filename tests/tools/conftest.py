"""A project in a folder of its own, and sessions that call tools in it."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fanfold.api import subagents
from fanfold.api.project import Project
from fanfold.api.run_options import Options
from fanfold.api.subagents import LIVE
from fanfold.api.tool_registry import call_tool
from fanfold.api.tools import Form, FormAnswer, ToolContext, permit_by_forms
from fanfold.language.consent import ConsentRequest
from fanfold.wiring import wire

RECIPES = {
    "read-two": """\
name: read-two
description: Two readers and a summary
inputs: [{name: topic, required: true}]
steps:
  - {id: a, agent: explorer, prompt: "Look at {{inputs.topic}} one way."}
  - {id: b, agent: explorer, prompt: "Look at {{inputs.topic}} another way."}
  - {id: sum, agent: explorer, prompt: "Sum up {{steps.a.output}} and {{steps.b.output}}."}
""",
    "write-one": """\
name: write-one
steps:
  - {id: w, agent: worker, write_set: ["out.txt"], prompt: "Write it."}
""",
    "ask-first": """\
name: ask-first
steps:
  - {id: look, agent: explorer, prompt: "Look."}
  - {id: ok, approve: "Ship {{steps.look.output}}?"}
  - {id: after, agent: explorer, depends_on: [ok], prompt: "Ship it."}
""",
}
SCRIPT = "default: OK from {{step}}\n"
SLOW = "default: {output: at last, delay_ms: 3600000}\n"


class Persona:
    """A person who gives prepared answers, and remembers what they were asked."""

    def __init__(self, *answers: dict[str, Any] | None) -> None:
        self._answers = list(answers)
        self.asked: list[Form] = []

    async def fill_in(self, form: Form) -> FormAnswer | None:
        self.asked.append(form)
        return FormAnswer(self._answers.pop(0))

    async def permit(self, request: ConsentRequest) -> bool | None:
        return await permit_by_forms(self.fill_in, set(), request)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty project that is the current folder; nothing of it is left running."""
    folder = tmp_path / "project"
    (folder / ".fanfold" / "workflows").mkdir(parents=True)
    for name, text in RECIPES.items():
        (folder / ".fanfold" / "workflows" / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FANFOLD_HOME", str(tmp_path / "home" / ".fanfold"))
    yield folder
    opened = wire(folder)
    if opened.has_runs:
        for child in subagents.list_subagents(opened):
            if child.status in LIVE:
                asyncio.run(subagents.close(opened, child.id))
    opened.close()


@pytest.fixture
def opened(project: Path) -> Iterator[Project]:
    found = wire(project)
    yield found
    found.close()


@pytest.fixture
def call(opened: Project) -> Callable[..., dict[str, Any]]:
    """Call a tool as a root session would; `auto`, unless something else is said."""

    def use(
        name: str,
        args: dict[str, Any] | None = None,
        *,
        permission: str = "auto",
        person: Persona | None = None,
        script: str = SCRIPT,
        report: list[str] | None = None,
    ) -> dict[str, Any]:
        async def hear(line: str) -> None:
            if report is not None:
                report.append(line)

        caller = ToolContext(
            project=opened,
            options=Options(permission=permission, script=script),
            person=person,
            report=hear,
        )
        return asyncio.run(call_tool(caller, name, args or {}))

    return use
