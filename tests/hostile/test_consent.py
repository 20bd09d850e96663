"""Every consent surface lists the same effects, whole; and they are what the executor then does."""

import asyncio
import json
import os
import re
import shlex
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from fanfold.agents.permissions import Action
from fanfold.api.permission import RunConsent
from fanfold.api.project import Project
from fanfold.api.recipes import check_recipe
from fanfold.api.run_documents import run_document
from fanfold.api.run_handle import RunHandle
from fanfold.api.run_options import Options
from fanfold.api.start import start, start_consent
from fanfold.api.tools import Form, FormAnswer, permit_by_forms
from fanfold.cli.questions import ask_permission
from fanfold.kernel.plan import JSON, Plan
from fanfold.language.consent import ConsentRequest, rows_of
from fanfold.language.inputs import bind_inputs
from fanfold.server.requests import AppState
from fanfold.server.routes import DryRunBody, foresee
from fanfold.steps.run_config import all_steps_below
from fanfold.wiring import wire
from tests.hostile.plans import REPORT, PlanMaker, forty

PLANS = list(forty())
EXECUTED = PLANS if os.environ.get("HOSTILE") == "all" else PLANS[::8]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    folder = tmp_path / "project"
    (folder / ".fanfold" / "workflows").mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FANFOLD_HOME", str(tmp_path / "home" / ".fanfold"))
    opened = wire(folder)
    yield opened
    opened.close()


def consent(project: Project, plan: Plan, inputs: Mapping[str, JSON], **options: Any) -> RunConsent:
    return start_consent(project, plan, bind_inputs(plan, inputs), Options(**options))


# The surfaces


def at_the_terminal(
    request: ConsentRequest, monkeypatch: pytest.MonkeyPatch, capsys: Any, answer: str
) -> tuple[str, bool]:
    """All that a person sees who turns every page and then answers, on a terminal of 80 columns, 24 rows."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setattr("sys.stdin", Answers(answer))
    capsys.readouterr()
    agreed = ask_permission(request)
    return capsys.readouterr().err, agreed


class Answers:
    """Gives the same answer at every page: it counts on the last one alone."""

    def __init__(self, answer: str) -> None:
        self._answer = answer

    def readline(self) -> str:
        return f"{self._answer}\n"


def unbroken(shown: str) -> list[str]:
    """The effects that a person reads, with the breaks of rows and pages taken out."""
    effects: list[str] = []
    for row in shown.splitlines():
        if numbered := re.match(r" {2,}\d+\. (.*)", row):
            effects.append(numbered[1])
        elif barred := re.match(r" {3,}│ (.*)", row):  # with two spaces, it continues a total
            effects[-1:] = [effects[-1] + barred[1]] if effects else [barred[1]]
    return effects


def by_forms(request: ConsentRequest) -> list[str]:
    """What an MCP client shows in its dialogs."""
    shown: list[str] = []

    async def fill_in(form: Form) -> FormAnswer:
        shown.append(form.message)
        return FormAnswer({"decision": form.properties["decision"]["enum"][0]})

    assert asyncio.run(permit_by_forms(fill_in, set(), request)) is True
    return unbroken("\n".join(shown))


class _Opened:
    """Where the endpoint finds the project."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def fresh(self) -> Project:
        return self._project


def on_the_console(project: Project, name: str, inputs: dict[str, JSON]) -> list[str]:
    desk = cast("AppState", _Opened(project))
    return foresee(desk, name, DryRunBody(inputs=inputs, scripted=True)).needs


def squeezed(effects: list[str]) -> list[str]:
    return [re.sub(r"\n", "", one).rstrip() for one in effects]


@pytest.mark.parametrize("made", PLANS, ids=lambda made: made.name)
def test_every_surface_lists_the_same_effects(
    project: Project, made: PlanMaker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made.put(project.folder / ".fanfold" / "workflows")
    made.put(project.folder)
    made.bring(project.folder)
    plan = check_recipe(project, f"{made.name}.yaml", scripted=True).runnable()
    asked = consent(project, plan, made.inputs, script=made.script)
    request = asked.request
    console = on_the_console(project, made.name, made.inputs)
    assert squeezed(console) == squeezed(asked.needs)
    chat = Action("spawn", "x", request=request).question
    assert squeezed(unbroken("\n".join(rows_of(chat, 10_000)))) == squeezed(console)
    assert squeezed(by_forms(request)) == squeezed(console)
    shown, agreed = at_the_terminal(request, monkeypatch, capsys, "y")
    assert agreed
    assert squeezed(unbroken(shown)) == squeezed(console)


# What is executed


def predicted(asked: RunConsent) -> set[str]:
    """Each effect as what it will be seen to have done.

    Effects of a role are those of its agent, and a script takes its place.
    """
    found: set[str] = set()
    for effect in asked.effects:
        if effect.who.startswith("role "):
            continue
        what = effect.what
        if placed := re.search(r"\nruns_on: (.*)", what):
            found.add(f"{effect.who} for {placed[1]}")
            what = what.replace(placed[0], "")
        if writes := re.search(r"\nmay write (.*)", what):
            found.add(f"wrote {writes[1]}")
            what = what.replace(writes[0], "")
        if given := re.search(r"\nwhere (\w+) gives made = (.*)", what):
            text = what[: given.start()].replace(f"{{{{steps.{given[1]}.output.made}}}}", PLACED)
            found.add(_command(text, json.loads(given[2]), effect.network))
            continue
        rows = what.split("\nwhere item is each of ")
        items = json.loads(rows[1]) if len(rows) > 1 else [None]
        for item in items:
            text = rows[0] if item is None else rows[0].replace("{{item}}", PLACED)
            if effect.kind == "write":
                found.add(f"{'proposed' if 'propose' in effect.does else 'wrote'} {what}")
            elif effect.kind == "function":
                found.add(f"called {what}")
            else:
                found.add(_command(text, item, effect.network))
    return found


PLACED = "\ue000"
"""Where an item goes, in a text whose quoting was made without it."""


def _command(text: str, item: str | None, network: bool) -> str:
    words = shlex.split(text)
    at = len(words)
    variables: dict[str, str] = {}
    while at >= 2 and words[at - 2] == "with":
        name, _, value = words[at - 1].partition("=")
        variables[name] = value
        at -= 2
    words = [word.replace(PLACED, item or "") for word in words[:at]]
    arguments = [variables["V_B"]] if words[0] == "sh" else words[2:]
    return json.dumps([arguments, variables, network], sort_keys=True)


def performed(plan: Plan, document: Any, children: list[Any]) -> set[str]:
    """What the run reports by itself; workers are chosen by the steps of the plan."""
    found = {f"wrote {change.path}" for change in document.changes}
    found |= {f"{step.id} for {step.runs_on}" for step in all_steps_below(plan) if step.runs_on}
    for whole in (document, *children):
        for path, step in whole.steps.items():
            if "[" not in path and f"{path}[0]" in whole.steps:
                continue  # the list of what its items report
            if step.type == "command" and step.output is not None:
                found.add(json.dumps(json.loads(step.output), sort_keys=True))
            elif step.type == "function":
                given = ", ".join(f"{name}={_encoded(value)}" for name, value in step.output["given"].items())
                found.add(f"called handlers:report({given})")
    return found


def _encoded(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@pytest.fixture
def reachable(project: Project) -> Iterator[None]:
    """A server of this machine; `port` tells the programs of a project where it is."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        (project.folder / "port").write_text(str(server.getsockname()[1]))
        yield


def carry_out(project: Project, plan: Plan, inputs: dict[str, JSON], **options: Any) -> set[str]:
    async def run() -> tuple[Any, list[Any]]:
        owned = start(project, plan, inputs, Options(**options), yes=True)
        await RunHandle(owned).wait()
        tree = owned.tree
        children = [run_document(tree, one) for one in tree.state.runs.values() if one is not tree.root]
        return run_document(tree), children

    document, children = asyncio.run(run())
    assert document.status == "completed", document.error
    return performed(plan, document, children)


@pytest.mark.full
@pytest.mark.usefixtures("reachable")
@pytest.mark.parametrize("made", EXECUTED, ids=lambda made: made.name)
def test_the_list_is_what_the_executor_does(project: Project, made: PlanMaker) -> None:
    made.put(project.folder)
    made.bring(project.folder)
    plan = check_recipe(project, f"{made.name}.yaml", scripted=True).runnable()
    asked = consent(project, plan, made.inputs, script=made.script)
    assert carry_out(project, plan, made.inputs, script=made.script) == predicted(asked)
    assert {file.name for file in project.folder.glob("made/*")} == {
        one.removeprefix("wrote made/") for one in predicted(asked) if one.startswith("wrote")
    }


@pytest.mark.full
@pytest.mark.usefixtures("reachable")
@pytest.mark.parametrize("network", [False, True])
def test_the_setup_command_of_the_list_is_what_is_executed(project: Project, network: bool) -> None:
    command = ["sh", "-c", 'python3 report.py "$@" > by-setup', "two words", "$HOME", "-rf"]
    home = Path(os.environ["FANFOLD_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    settings = f"setup = {json.dumps(command)}\nsetup_network = {json.dumps(network)}"
    (home / "config.toml").write_text(f"[workspace]\n{settings}\n")
    steps = [{"id": "show", "run": ["cat", "by-setup"]}]
    for name, text in {
        "report.py": REPORT,
        ".gitignore": "by-setup\n",
        "one.yaml": json.dumps({"steps": steps}),
    }.items():
        (project.folder / name).write_text(text)
    opened = wire(project.folder)
    try:
        plan = check_recipe(opened, "one.yaml").runnable()
        (listed,) = [one for one in consent(opened, plan, {}).effects if one.kind == "setup"]
        assert shlex.split(listed.what) == command
        assert carry_out(opened, plan, {}) == {json.dumps([command[4:], {}, listed.network])}
    finally:
        opened.close()
