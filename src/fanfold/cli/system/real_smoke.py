"""One scenario of the real smoke: run it, keep the evidence, and say what to do when it went wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from fanfold.cli.runs.outcome import exit_status
from fanfold.cli.system.smoke_runs import run_smoke
from fanfold.errors import EXIT_FAILED, FanfoldError
from fanfold.runtime.hosting.host import now_ms
from fanfold.runtime.operations.runs.options import Options
from fanfold.runtime.operations.system.real_smoke import FOLDER, SCENARIOS, Left
from fanfold.runtime.operations.system.smoke import Check, Ran
from fanfold.runtime.views.documents import result_document
from fanfold.wiring import wire

if TYPE_CHECKING:
    from fanfold.runtime.hosting.run_tree import RunTree

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
WEAK = "try again, or a stronger model with FANFOLD_MODEL; the file of evidence and fanfold logs show the run"


class Trouble(Struct, frozen=True):
    """Why a scenario is not ok, as scripts are told, and how the command ends."""

    error: dict[str, Any]
    """With `code`, `message`, `hint` and `details`, as errors of every command."""
    exit_status: int = EXIT_FAILED
    stops: bool = True
    """Whether the scenarios behind it would meet the same."""


def run_scenario(folder: Path, name: str) -> tuple[Check, Trouble | None]:
    """Run a scenario in a project."""
    recipe, shows = SCENARIOS[name]
    own = f"{FOLDER}-{now_ms()}"
    try:
        project = wire(folder)
        try:
            given = Options(permission="auto")
            ran, tree = run_smoke(project, recipe.replace(FOLDER, own), given)
            left = _left(ran, tree, folder, own)
            document, status = result_document(tree), exit_status(tree)
        finally:
            project.close()
            shutil.rmtree(folder / own, ignore_errors=True)  # the user's project is not ours to fill
    except FanfoldError as error:
        about = error.as_json()["error"]
        assert isinstance(about, dict)
        about = {**about, "details": {**error.details, "scenario": name}}
        refused = Check(name, False, {"error": about, "what_to_do": error.hint})
        return refused, Trouble(about, error.exit_status)
    shown = shows(left)
    ok = ran.status == "completed" and not shown.missing
    evidence: dict[str, Any] = {"run_id": document["run_id"], "status": ran.status, **shown.evidence}
    if shown.missing:
        evidence["missing"] = shown.missing
    trouble = None if ok else _trouble(name, document, shown.missing, status)
    if trouble is not None:
        evidence |= {"error": trouble.error, "what_to_do": trouble.error["hint"]}
    file = _keep(folder, name, {"scenario": name, "ok": ok, "evidence": evidence, "result": document})
    return Check(name, ok, {**evidence, "evidence": str(file)}), trouble


def _left(ran: Ran, tree: RunTree, folder: Path, own: str) -> Left:
    """What is checked, with the folder named as in the recipe."""
    from fanfold.agents.local.weights import PROVIDER, SMOLLM2
    from fanfold.recipe.types.agent import AgentBody
    from fanfold.recipe.types.body import find_body
    from fanfold.runtime.records.frozen import from_json

    assert tree.memory.frozen is not None, "a run that was created fixed its models"
    frozen = from_json(tree.blobs.get(tree.memory.frozen))
    bodies = [find_body(AgentBody, node.step) for node in tree.root.nodes.values()]
    models = {frozen.model_of(said) or frozen.default_model for said in bodies if said is not None}
    changes = [
        {**row, "path": row["path"].replace(own, FOLDER)} for row in tree.memory.changes.get(tree.root.id, [])
    ]
    files = {
        f"{FOLDER}/{file.name}": file.read_text(errors="replace")[:MAX_FILE_CHARS]
        for file in sorted((folder / own).glob("*.txt"))
        if file.is_file() and not file.is_symlink()
    }
    return Left(ran, changes, files, f"{PROVIDER}:{SMOLLM2}" not in models)


def _trouble(name: str, document: dict[str, Any], missing: list[str], status: int) -> Trouble:
    """What went wrong first hand: a step's error, else the run's own, else what the log does not show."""
    details = {"scenario": name, "run_id": document["run_id"], "status": document["status"]}
    errors = [step["error"] for step in document["steps"].values()] + [document["error"]]
    met = [error for error in errors if error is not None]
    met.sort(key=lambda error: error["class"] == "cancelled")  # what others were stopped for comes first
    if not met:
        message = f"{name}: {'; '.join(missing) or 'the run did not complete'}"
        unproven = {"code": UNPROVEN, "message": message, "hint": WEAK, "details": details}
        return Trouble(unproven, status or EXIT_FAILED, stops=False)
    error = met[0]
    hint = error["hint"] or ADVICE.get(error["class"], WEAK)
    details["class"] = error["class"]
    told = {"code": error["code"], "message": error["message"], "hint": hint, "details": details}
    return Trouble(told, status or EXIT_FAILED)


def _keep(folder: Path, name: str, document: dict[str, Any]) -> Path:
    kept = folder / ".fanfold" / "smoke"
    kept.mkdir(parents=True, exist_ok=True)
    file = kept / f"{name}-{now_ms()}.json"
    file.write_text(json.dumps(document, indent=1))
    return file
