"""Self-tests that verify in about a minute that this installation works on this machine.

The scripted self-test needs no network. It uses scripted agents and a real store in a temporary project, and
every check reads the log. The scenarios with a real provider are below.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, Struct, structs

from fanfold.agents.entries import Entry, ToolCall, ToolResult, UserInput
from fanfold.agents.local.weights import PROVIDER, SMOLLM2
from fanfold.api.approvals import ErrorBody, error_body, shown
from fanfold.api.project import Project
from fanfold.api.run_documents import RunDocument, exit_status, run_document
from fanfold.api.run_options import Options
from fanfold.api.start import create
from fanfold.api.system import SmokeCheck, SmokeReport
from fanfold.engine.run_tree import RunTree, run_status, wall_clock_ms
from fanfold.errors import EXIT_FAILED, EXIT_OK, FanfoldError
from fanfold.kernel.events import Envelope
from fanfold.language.compile import compile_recipe
from fanfold.language.leaf_steps import AgentBody, find_body
from fanfold.project_files import write_beneath
from fanfold.sessions.log import read_entries
from fanfold.steps.records import FileChange

RECIPES = Path(__file__).parent / "smoke_recipes"
ONE_BY_ONE = ["first started", "first finished", "second started", "second finished"]
"""The order of two agents if the second waits for the first."""


def recipe_text(name: str) -> str:
    """Return a recipe of a self-test, or the script of the scripted one."""
    return (RECIPES / f"{name}.yaml").read_text("utf-8")


class SmokeRun(Struct, frozen=True):
    """The recorded data of one self-test run."""

    status: str
    events: Sequence[Envelope]
    sessions: dict[str, list[Entry]]
    """The entries of the last session of each agent step."""
    outputs: dict[str, Any] = {}
    """The output of each step."""
    changes: Sequence[FileChange] = ()
    """Of a real run: the changes as listed in its result."""
    files: dict[str, str] = {}
    """Of a real run: the files in the writers' folder of the project, by path as in the recipe."""
    offers_tools: bool = True
    """Whether the model is offered tools."""

    def prompt(self, step: str) -> str:
        """Return the prompt of a step, as its session recorded it."""
        entries = self.sessions.get(step, [])
        return next((entry.text for entry in entries if isinstance(entry, UserInput)), "")


def parallel_readers(ran: SmokeRun) -> SmokeCheck:
    """Check that all readers ran at the same time."""
    most = live_at_once(ran)
    return SmokeCheck("parallel_readers", most == 3 and ran.status == "completed", {"live_at_once": most})


def live_at_once(ran: SmokeRun) -> int:
    """Return the maximum number of agents that ran at the same time."""
    live: dict[str, None] = {}
    most = 0
    for data in agent_events(ran):
        if data["status"] == "started":
            live[data["step"]] = None
        elif data["status"] in ("finished", "failed", "timed_out", "cancelled"):
            live.pop(data["step"], None)
        most = max(most, len(live))
    return most


def serialized_writers(ran: SmokeRun) -> SmokeCheck:
    """Check that the second writer started after the first had ended."""
    order = order_of(ran)
    return SmokeCheck("serialized_writers", order == ONE_BY_ONE, {"order": order})


def dependency_summaries(ran: SmokeRun) -> SmokeCheck:
    """Check that the dependent step got the output of its dependency, although its prompt did not name it."""
    prompt = ran.prompt("use")
    return SmokeCheck("dependency_summaries", "ultramarine" in prompt, {"prompt": prompt})


def lifecycle(ran: SmokeRun) -> SmokeCheck:
    """Check that the lifecycle of every session is in the log with all of its fields."""
    fields = "parent_id subagent_id session_id role task depth status workspace summary".split()
    lives: dict[str, list[str]] = {}
    complete = True
    for data in agent_events(ran):
        complete = complete and all(name in data for name in fields)
        lives.setdefault(data["step"], []).append(data["status"])
    ok = complete and bool(lives) and all(life == ["started", "finished"] for life in lives.values())
    return SmokeCheck("lifecycle", ok, {"lives": lives, "every_field": complete})


def order_of(ran: SmokeRun) -> list[str]:
    """Return when agents started and finished, in the order of the log."""
    events = [data for data in agent_events(ran) if data["status"] in ("started", "finished")]
    return [f"{data['step']} {data['status']}" for data in events]


def agent_events(ran: SmokeRun) -> list[dict[str, Any]]:
    """Return the lifecycle events of the agents, in the order of the log."""
    return [envelope.data for envelope in ran.events if envelope.type == "subagent_event"]


PLAN: tuple[tuple[str, Callable[[SmokeRun], SmokeCheck]], ...] = (
    ("readers", parallel_readers),
    ("writers", serialized_writers),
    ("summaries", dependency_summaries),
    ("summaries", lifecycle),
)
"""The recipes of the scripted self-test with their checks; `validation` comes first and runs nothing."""
VALIDATION = "validation"
CLAIMS = (VALIDATION, *(check.__name__ for _, check in PLAN))


def would_run(names: Sequence[str]) -> SmokeReport:
    """List the checks of a self-test; nothing is started."""
    return _report([SmokeCheck(name, True, "would run; nothing was started") for name in names])


def run_scripted(open_project: Callable[[Path], Project]) -> SmokeReport:
    """Run all checks with scripted agents in a temporary project."""
    with tempfile.TemporaryDirectory(prefix="fanfold-smoke-") as folder:
        project = open_project(Path(folder))
        try:
            compiled = compile_recipe(
                recipe_text("invalid").encode(), "smoke.yaml", project.compile_context()
            )
            codes = [diagnostic.code for diagnostic in compiled.report.diagnostics]
            refused = compiled.plan is None and codes == ["recipe.unknown_step"]
            options = Options(permission="auto", script=recipe_text("script"), script_file="smoke")
            ran = [check(run_smoke(project, recipe_text(recipe), options)[0]) for recipe, check in PLAN]
        finally:
            project.close()
    return _report([SmokeCheck(VALIDATION, refused, codes), *ran])


def _report(checks: list[SmokeCheck]) -> SmokeReport:
    return SmokeReport(all(check.ok for check in checks), checks)


def run_smoke(project: Project, recipe: str, options: Options) -> tuple[SmokeRun, RunTree]:
    """Run one of the self-test recipes until it finishes, or waits."""
    plan = compile_recipe(recipe.encode(), "smoke.yaml", project.compile_context()).plan
    assert plan is not None, "the recipes of smoke are checked by the tests"
    owned = create(project, plan, {}, options, at_home=True)
    asyncio.run(owned.host(observed=False).start())
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
    return SmokeRun(run_status(tree.state, tree.root), events, sessions, outputs), tree


# -----------------------------------------------------------------------------------------------------------
# The self-test with a real provider: three small scenarios, each verified from its log
#
# A completed run proves little: an agent may have replied anything. So every scenario defines what the log
# must show, and fails without it. The content of replies is not checked. The checks are that the model
# replied, the order, the inputs, and the results.

FOLDER = "fanfold-smoke"
"""Placeholder in the recipes for the folder of the writers, which is new for each run."""
NOTE = f"{FOLDER}/note.txt"
ANSWER = f"{FOLDER}/answer.txt"
NO_TOOLS = "this model is offered none"
MAX_SHOWN_CHARS = 200

Evidence: TypeAlias = tuple[dict[str, Any], list[str]]
"""The evidence in a scenario's log, and the missing evidence."""


def micro_parallel(ran: SmokeRun) -> Evidence:
    """Check that both readers ran at the same time, and that both replied."""
    most = live_at_once(ran)
    missing = [] if most == 2 else ["the readers were not live at one moment"]
    missing += [f"{step} gave no answer" for step in ("left", "right") if not _reply_of(ran, step)]
    answers = {step: _reply_of(ran, step)[:MAX_SHOWN_CHARS] for step in ("left", "right")}
    return {"live_at_once": most, "answers": answers}, missing


def dependency(ran: SmokeRun) -> Evidence:
    """Check that the second agent started after the first had ended, and got its reply."""
    order, reply, prompt = order_of(ran), _reply_of(ran, "first"), ran.prompt("second")
    # A failed first attempt is started again: that is no violation of the order.
    one_by_one = [moment for moment, _ in groupby(order)] == ONE_BY_ONE
    missing = [] if one_by_one else ["the second agent did not begin after the first had ended"]
    if not reply:
        missing.append("first gave no answer")
    elif reply[:MAX_SHOWN_CHARS] not in prompt:  # a long reply is shortened before it is passed on
        missing.append("the second agent did not get the reply of the first")
    if not _reply_of(ran, "second"):
        missing.append("second gave no answer")
    return {"order": order, "first_said": reply[:MAX_SHOWN_CHARS], "second_was_asked": prompt}, missing


def writer_controlled(ran: SmokeRun) -> Evidence:
    """Check that writers with overlapping sets ran one by one in isolation, and their files were merged."""
    order = order_of(ran)
    places = {data["step"]: data["workspace"] for data in agent_events(ran) if data["status"] == "started"}
    merged = {(row.step, row.path) for row in ran.changes if row.state == "merged"}
    evidence: dict[str, Any] = {
        "order": order,
        "workspaces": places,
        "merged": [f"{step}: {path}" for step, path in sorted(merged)],
        "files": {path: text[:MAX_SHOWN_CHARS] for path, text in ran.files.items()},
    }
    one_by_one = live_at_once(ran) == 1 and {"first finished", "second finished"} <= set(order)
    missing = [] if one_by_one else ["the writers did not work one after the other"]
    if places != {"first": "isolated", "second": "isolated"}:
        missing.append("the writers did not work isolated")
    reply = _reply_of(ran, "second")
    if ("keep", ANSWER) not in merged or not reply or ran.files.get(ANSWER, "").strip() != reply:
        missing.append(f"the command did not write the agent's answer to {ANSWER}")
    if not ran.offers_tools:
        missing.append("no agent wrote anything: the model is offered no tools")
        return {**evidence, "tools": NO_TOOLS}, missing
    calls = {step: _tool_calls(ran, step) for step in ("first", "second")}
    for step, tools in calls.items():
        if not tools:
            missing.append(f"{step} called no tool that writes")
        elif (step, NOTE) not in merged:
            missing.append(f"nothing that {step} wrote to {NOTE} was merged")
    if not ran.files.get(NOTE, "").strip():
        missing.append(f"{NOTE} is not in the project")
    return {**evidence, "tools": calls}, missing


def _reply_of(ran: SmokeRun, step: str) -> str:
    output = ran.outputs.get(step)
    return output.strip() if isinstance(output, str) else ""


def _tool_calls(ran: SmokeRun, step: str) -> list[str]:
    """Return the file-changing tools that an agent called successfully.

    Only calls that may change something are recorded before they start.
    """
    entries = ran.sessions.get(step, [])
    results = (entry for entry in entries if isinstance(entry, ToolResult))
    fine = {entry.id for entry in results if entry.result is not UNSET and entry.result is not None}
    return [entry.tool for entry in entries if isinstance(entry, ToolCall) and entry.id in fine]


SCENARIOS = {one.__name__: one for one in (micro_parallel, dependency, writer_controlled)}
"""The check of each scenario's log, by name. Its recipe has the same name."""

# -----------------------------------------------------------------------------------------------------------
# Run the scenarios with a real provider, store the evidence, and advise after a failure

MAX_FILE_CHARS = 100_000
ADVICE = {
    "timeout": "the model is slow: try again, or a faster model with FANFOLD_MODEL",
    "transport": "the provider cannot be reached: check the network, and its address if you set one",
    "rate_limit": "the provider asks to slow down: wait a minute",
    "quota": "the account has no credit left",
    "permission": "the provider refused the key: fanfold models shows which are set",
    "invalid_output": "the model did not keep to the output's shape: try a stronger model",
    "tool": "a program could not do its part: fanfold doctor shows what is missing here",
}
UNPROVEN = "smoke.unproven"
WEAK = "try again, or a stronger model with FANFOLD_MODEL; the file of evidence shows the run"


class ScenarioFailure(NamedTuple):
    """Why a scenario failed, and the exit status of the command."""

    error: ErrorBody
    exit_status: int = EXIT_FAILED
    stops: bool = True
    """Whether later scenarios would fail for the same reason."""


def run_scenarios(
    open_project: Callable[[], Project], folder: Path, names: Sequence[str]
) -> tuple[SmokeReport, int]:
    """Run scenarios with the configured provider until one fails; return the report and the exit status."""
    checks: list[SmokeCheck] = []
    trouble: ScenarioFailure | None = None
    for name in names:
        if trouble is not None and trouble.stops:
            checks.append(SmokeCheck(name, False, f"not started: {trouble.error.code} came before"))
            continue
        check, met = run_scenario(open_project, folder, name)
        checks.append(check)
        trouble = trouble or met
    ok = all(check.ok for check in checks)
    if trouble is None:
        return SmokeReport(ok, checks), EXIT_OK
    return SmokeReport(ok, checks, trouble.error), trouble.exit_status


def run_scenario(
    open_project: Callable[[], Project], folder: Path, name: str
) -> tuple[SmokeCheck, ScenarioFailure | None]:
    """Run one scenario in a project."""
    own = f"{FOLDER}-{wall_clock_ms()}"
    try:
        project = open_project()
        try:
            given = Options(permission="auto")
            ran, tree = run_smoke(project, recipe_text(name).replace(FOLDER, own), given)
            # Collect the data that is checked, with the folder named as in the recipe.
            frozen = tree.frozen()
            bodies = [find_body(AgentBody, node.step) for node in tree.root.nodes.values()]
            models = {frozen.model_of(body) or frozen.default_model for body in bodies if body is not None}
            rows = tree.memory.changes.get(tree.root.id, [])
            changes = [structs.replace(row, path=row.path.replace(own, FOLDER)) for row in rows]
            files = {
                f"{FOLDER}/{file.name}": file.read_text(errors="replace")[:MAX_FILE_CHARS]
                for file in sorted((folder / own).glob("*.txt"))
                if file.is_file() and not file.is_symlink()
            }
            has_tools = f"{PROVIDER}:{SMOLLM2}" not in models
            ran = structs.replace(ran, changes=changes, files=files, offers_tools=has_tools)
            document, status = run_document(tree), exit_status(tree)
        finally:
            project.close()
            shutil.rmtree(folder / own, ignore_errors=True)  # the user's project must stay clean
    except FanfoldError as error:
        about = structs.replace(error_body(error), details={**error.details, "scenario": name})
        refused = SmokeCheck(name, False, {"error": about, "what_to_do": error.hint})
        return refused, ScenarioFailure(about, error.exit_status)
    found, missing = SCENARIOS[name](ran)
    ok = ran.status == "completed" and not missing
    evidence = {"run_id": document.run_id, "status": ran.status, **found}
    if missing:
        evidence["missing"] = missing
    trouble = None if ok else _trouble(name, document, missing, status)
    if trouble is not None:
        evidence |= {"error": trouble.error, "what_to_do": trouble.error.hint}
    kept = {"scenario": name, "ok": ok, "evidence": evidence, "result": document}
    path = f".fanfold/smoke/{name}-{wall_clock_ms()}.json"
    write_beneath(folder, path, msgspec.json.format(msgspec.json.encode(kept), indent=1))
    return SmokeCheck(name, ok, {**evidence, "evidence": str(folder / path)}), trouble


def _trouble(name: str, document: RunDocument, missing: list[str], status: int) -> ScenarioFailure:
    """Return the first cause: a step's error, else the run's own error, else the missing evidence."""
    details = {"scenario": name, "run_id": document.run_id, "status": document.status}
    met = [step.error for step in document.steps.values() if step.error is not None]
    met += [] if document.error is None else [document.error]
    met.sort(key=lambda error: error.kind == "cancelled")  # the cause comes before cancelled steps
    if not met:
        message = f"{name}: {'; '.join(missing) or 'the run did not complete'}"
        return ScenarioFailure(
            ErrorBody(UNPROVEN, message, WEAK, details), status or EXIT_FAILED, stops=False
        )
    error = met[0]
    hint = error.hint or ADVICE.get(error.kind, WEAK)
    details["class"] = error.kind
    return ScenarioFailure(ErrorBody(error.code, error.message, hint, details), status or EXIT_FAILED)
