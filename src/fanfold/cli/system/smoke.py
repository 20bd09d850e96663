"""`fanfold smoke`: prove the promises here and now, without a network or on the configured provider."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from fanfold.cli.command import Call, command
from fanfold.cli.terminal.output import one_line, paint, say, say_json
from fanfold.errors import EXIT_FAILED, EXIT_OK, AuthorError
from fanfold.recipe.compile import compile_recipe
from fanfold.runtime.operations.system.real_smoke import SCENARIOS
from fanfold.runtime.operations.system.smoke import INVALID, PLAN, SCRIPT, Check
from fanfold.wiring import wire

VALIDATION = "validation"


@command("smoke", summary="Prove that the promises hold here")
@click.option("--real", is_flag=True, help="Run a scenario on the configured provider.")
@click.option(
    "--scenario", type=click.Choice(list(SCENARIOS)), help="Which one; default with --real: all of them."
)
@click.option("--dry-run", is_flag=True, help="Say what would run; start nothing, write nothing.")
def smoke_command(call: Call, real: bool, scenario: str | None, dry_run: bool) -> int:
    """Run small recipes and check, from their logs, that they did what the scheduler promises.

    Without --real the agents are scripted and the project is a throw-away: no network, nothing left. With
    --real the scenarios run on whatever provider is configured and leave evidence in .fanfold/smoke; files
    that agents write are removed again. A scenario whose log does not show what it should is not ok, also
    when its run completed. The first one that meets an error (a refused key, no network) is the last.

    With --json: {"ok", "checks": [{"name", "ok", "evidence"}]}, and "error" with what to do (its hint) where
    a real scenario is not ok.
    """
    if scenario is not None and not real:
        raise AuthorError("usage.conflicting_options", "--scenario goes with --real")
    names = [scenario] if scenario else list(SCENARIOS)
    if dry_run:
        names = names if real else [VALIDATION, *(row[0] for row in PLAN)]
        return _report(call, [Check(name, True, "would run; nothing was started") for name in names])
    if not real:
        return _report(call, _scripted())
    from fanfold.cli.system.real_smoke import Trouble, run_scenario

    checks: list[Check] = []
    trouble: Trouble | None = None
    for name in names:
        if trouble is not None and trouble.stops:
            checks.append(Check(name, False, f"not started: {trouble.error['code']} came before"))
            continue
        check, met = run_scenario(call.project, name)
        checks.append(check)
        trouble = trouble or met
    if trouble is None:
        return _report(call, checks)
    return _report(call, checks, trouble.error, trouble.exit_status)


def _report(
    call: Call, checks: list[Check], error: dict[str, Any] | None = None, status: int = EXIT_FAILED
) -> int:
    ok = all(check.ok for check in checks)
    if call.as_json:
        rows = [{"name": check.name, "ok": check.ok, "evidence": check.evidence} for check in checks]
        say_json({"ok": ok, "checks": rows, **({"error": error} if error is not None else {})})
    else:
        for check in checks:
            word = paint("ok", "green", call.colour) if check.ok else paint("failed", "red", call.colour)
            shown = check.evidence if isinstance(check.evidence, str) else json.dumps(check.evidence)
            say(f"{word:8} {check.name}  {shown[:160]}\n")
        if error is not None:
            sys.stderr.write(f"error[{error['code']}]: {one_line(error['message'])}\n")
            sys.stderr.write(f"hint: {one_line(error['hint'])}\n")
    return EXIT_OK if ok else status


def _scripted() -> list[Check]:
    from fanfold.cli.system.smoke_runs import run_smoke
    from fanfold.runtime.operations.runs.options import Options

    with tempfile.TemporaryDirectory(prefix="fanfold-smoke-") as folder:
        project = wire(Path(folder))
        compiled = compile_recipe(INVALID.encode(), "smoke.yaml", project.around)
        codes = [diagnostic.code for diagnostic in compiled.report.diagnostics]
        checks = [Check(VALIDATION, compiled.plan is None and codes == ["recipe.unknown_step"], codes)]
        try:
            options = Options(permission="auto", script=SCRIPT, script_file="smoke")
            checks += [check(run_smoke(project, recipe, options)[0]) for _, recipe, check in PLAN]
        finally:
            project.close()
    return checks
