"""`fanfold smoke`: prove the promises here and now, without a network or on the configured provider."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fanfold.cli.command import Call, command
from fanfold.cli.output import paint, say, say_json
from fanfold.errors import EXIT_FAILED, EXIT_OK, AuthorError, FanfoldError
from fanfold.recipe.compile import compile_recipe
from fanfold.runtime.smoke import INVALID, PLAN, SCENARIOS, SCRIPT, Check, Ran
from fanfold.wiring import Wired, wire

if TYPE_CHECKING:
    from fanfold.runtime.project import Options, Project

VALIDATION = "validation"
ADVICE = {
    "timeout": "the model is slow: try again, or a faster model with FANFOLD_MODEL",
    "transport": "the provider cannot be reached: check the network and OPENAI_BASE_URL",
    "rate_limit": "the provider asks to slow down: wait a minute",
    "quota": "the account has no credit left",
    "permission": "the provider refused the key: check OPENAI_API_KEY or ANTHROPIC_API_KEY",
    "invalid_output": "the model did not keep to the output's shape: try a stronger model",
}


@command("smoke", summary="Prove that the promises hold here")
@click.option("--real", is_flag=True, help="Run a scenario on the configured provider.")
@click.option(
    "--scenario", type=click.Choice(list(SCENARIOS)), help="Which one; default with --real: all of them."
)
@click.option("--dry-run", is_flag=True, help="Say what would run; start nothing, write nothing.")
def smoke_command(call: Call, real: bool, scenario: str | None, dry_run: bool) -> int:
    """Run small recipes and check, from their logs, that they did what the scheduler promises.

    Without --real the agents are scripted and the project is a throw-away: no network, nothing left. With
    --real the scenarios run on whatever provider is configured and leave evidence in .fanfold/smoke.
    """
    if scenario is not None and not real:
        raise AuthorError("usage.conflicting_options", "--scenario goes with --real")
    if dry_run:
        names = ([scenario] if scenario else list(SCENARIOS)) if real else [VALIDATION, *(p[0] for p in PLAN)]
        return _report(call, [Check(name, True, "would run; nothing was started") for name in names])
    if real:
        return _report(call, [_real(call, name) for name in ([scenario] if scenario else SCENARIOS)])
    return _report(call, _scripted())


def _report(call: Call, checks: list[Check]) -> int:
    ok = all(check.ok for check in checks)
    if call.as_json:
        rows = [{"name": check.name, "ok": check.ok, "evidence": check.evidence} for check in checks]
        say_json({"ok": ok, "checks": rows})
    else:
        for check in checks:
            word = paint("ok", "green", call.colour) if check.ok else paint("failed", "red", call.colour)
            shown = check.evidence if isinstance(check.evidence, str) else json.dumps(check.evidence)
            say(f"{word:8} {check.name}  {shown[:160]}\n")
    return EXIT_OK if ok else EXIT_FAILED


def _scripted() -> list[Check]:
    from fanfold.runtime.project import Options

    with tempfile.TemporaryDirectory(prefix="fanfold-smoke-") as folder:
        wired = wire(Path(folder))
        compiled = compile_recipe(INVALID.encode(), "smoke.yaml", wired.around)
        codes = [diagnostic.code for diagnostic in compiled.report.diagnostics]
        checks = [Check(VALIDATION, compiled.plan is None and codes == ["recipe.unknown_step"], codes)]
        project = wired.open()
        try:
            options = Options(permission="auto", script=SCRIPT, script_file="smoke")
            checks += [check(_run(wired, project, recipe, options)[0]) for _, recipe, check in PLAN]
        finally:
            project.close()
    return checks


def _run(wired: Wired, project: Project, recipe: str, options: Options) -> tuple[Ran, dict[str, Any]]:
    from fanfold.runtime.views import result_document
    from fanfold.sessions.log import read_entries

    plan = compile_recipe(recipe.encode(), "smoke.yaml", wired.around).plan
    assert plan is not None, "the recipes of smoke are checked by the tests"
    tree = project.create(plan, {}, options)
    asyncio.run(project.host(tree).start())
    project.done(tree)
    events = list(project.store.tree(tree.root.id))
    prompts: dict[str, str] = {}
    for envelope in events:
        if envelope.type == "subagent_event" and envelope.data["status"] == "started":
            entries = read_entries(project.store, envelope.data["session_id"])
            asked = next((str(entry.get("text", "")) for entry in entries if entry["kind"] == "input"), "")
            prompts[envelope.data["step"]] = asked
    return Ran(tree.root.status, events, prompts), result_document(tree)


def _real(call: Call, name: str) -> Check:
    from fanfold.runtime.host import now_ms
    from fanfold.runtime.project import Options

    wired = wire(call.project)
    try:
        project = wired.open()
        try:
            ran, document = _run(wired, project, SCENARIOS[name], Options(permission="auto"))
        finally:
            project.close()
    except FanfoldError as error:
        return Check(name, False, {"code": error.code, "message": error.message, "hint": error.hint})
    folder = call.project / ".fanfold" / "smoke"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}-{now_ms()}.json"
    file.write_text(
        json.dumps({"scenario": name, "ok": ran.status == "completed", "result": document}, indent=1)
    )
    evidence: dict[str, Any] = {"run_id": document["run_id"], "status": ran.status, "evidence": str(file)}
    failed = [step["error"] for step in document["steps"].values() if step["error"] is not None]
    if failed:
        evidence["error"] = failed[0]
        evidence["what_to_do"] = failed[0]["hint"] or ADVICE.get(failed[0]["class"], "look at the run")
    return Check(name, ran.status == "completed", evidence)
