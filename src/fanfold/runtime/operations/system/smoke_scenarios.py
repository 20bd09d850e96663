"""Running the scenarios of the real smoke: keep the evidence, and say what to do when one went wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from fanfold.errors import EXIT_FAILED, EXIT_OK, FanfoldError
from fanfold.runtime.hosting.clock import wall_clock_ms
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.starting.options import Options
from fanfold.runtime.operations.system.real_smoke import FOLDER, SCENARIOS, Left
from fanfold.runtime.operations.system.smoke import Ran, run_smoke
from fanfold.runtime.views.errors import ErrorBody, error_body
from fanfold.runtime.views.installation import SmokeCheck, SmokeReport
from fanfold.runtime.views.runs.documents import RunDocument, exit_status, run_document
from fanfold.trust.project_files import write_beneath

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


class Trouble(NamedTuple):
    """Why a scenario is not ok, and how a command ends that ran it."""

    error: ErrorBody
    exit_status: int = EXIT_FAILED
    stops: bool = True
    """Whether the scenarios behind it would meet the same."""


def run_scenarios(
    open_project: Callable[[], Project], folder: Path, names: Sequence[str]
) -> tuple[SmokeReport, int]:
    """Run scenarios on the configured provider, up to the first that meets an error; the exit status too."""
    checks: list[SmokeCheck] = []
    trouble: Trouble | None = None
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
) -> tuple[SmokeCheck, Trouble | None]:
    """Run a scenario in a project."""
    recipe, shows = SCENARIOS[name]
    own = f"{FOLDER}-{wall_clock_ms()}"
    try:
        project = open_project()
        try:
            given = Options(permission="auto")
            ran, tree = run_smoke(project, recipe.replace(FOLDER, own), given)
            left = _left(ran, tree, folder, own)
            document, status = run_document(tree), exit_status(tree)
        finally:
            project.close()
            shutil.rmtree(folder / own, ignore_errors=True)  # the user's project is not ours to fill
    except FanfoldError as error:
        about = structs.replace(error_body(error), details={**error.details, "scenario": name})
        refused = SmokeCheck(name, False, {"error": about, "what_to_do": error.hint})
        return refused, Trouble(about, error.exit_status)
    shown = shows(left)
    ok = ran.status == "completed" and not shown.missing
    evidence: dict[str, Any] = {"run_id": document.run_id, "status": ran.status, **shown.evidence}
    if shown.missing:
        evidence["missing"] = shown.missing
    trouble = None if ok else _trouble(name, document, shown.missing, status)
    if trouble is not None:
        evidence |= {"error": trouble.error, "what_to_do": trouble.error.hint}
    file = _keep(folder, name, {"scenario": name, "ok": ok, "evidence": evidence, "result": document})
    return SmokeCheck(name, ok, {**evidence, "evidence": str(file)}), trouble


def _left(ran: Ran, tree: RunTree, folder: Path, own: str) -> Left:
    """What is checked, with the folder named as in the recipe."""
    from fanfold.agents.local.weights import PROVIDER, SMOLLM2
    from fanfold.recipe.types.agent import AgentBody
    from fanfold.recipe.types.body import find_body

    frozen = tree.frozen()
    bodies = [find_body(AgentBody, node.step) for node in tree.root.nodes.values()]
    models = {frozen.model_of(said) or frozen.default_model for said in bodies if said is not None}
    rows = tree.memory.changes.get(tree.root.id, [])
    changes = [structs.replace(row, path=row.path.replace(own, FOLDER)) for row in rows]
    files = {
        f"{FOLDER}/{file.name}": file.read_text(errors="replace")[:MAX_FILE_CHARS]
        for file in sorted((folder / own).glob("*.txt"))
        if file.is_file() and not file.is_symlink()
    }
    return Left(ran, changes, files, f"{PROVIDER}:{SMOLLM2}" not in models)


def _trouble(name: str, document: RunDocument, missing: list[str], status: int) -> Trouble:
    """What went wrong first hand: a step's error, else the run's own, else what the log does not show."""
    details = {"scenario": name, "run_id": document.run_id, "status": document.status}
    met = [step.error for step in document.steps.values() if step.error is not None]
    met += [] if document.error is None else [document.error]
    met.sort(key=lambda error: error.kind == "cancelled")  # what others were stopped for comes first
    if not met:
        message = f"{name}: {'; '.join(missing) or 'the run did not complete'}"
        return Trouble(ErrorBody(UNPROVEN, message, WEAK, details), status or EXIT_FAILED, stops=False)
    error = met[0]
    hint = error.hint or ADVICE.get(error.kind, WEAK)
    details["class"] = error.kind
    return Trouble(ErrorBody(error.code, error.message, hint, details), status or EXIT_FAILED)


def _keep(folder: Path, name: str, document: dict[str, Any]) -> Path:
    path = f".fanfold/smoke/{name}-{wall_clock_ms()}.json"
    write_beneath(folder, path, msgspec.json.format(msgspec.json.encode(document), indent=1))
    return folder / path
