"""`fanfold smoke`: prove the promises here and now, without a network or on the configured provider."""

from __future__ import annotations

import click

from fanfold.cli.command import Invocation, command, option
from fanfold.cli.terminal.output import paint, say, tell, to_json
from fanfold.errors import EXIT_FAILED, EXIT_OK, AuthorError
from fanfold.runtime.operations.system.real_smoke import SCENARIOS
from fanfold.runtime.operations.system.smoke import CLAIMS, run_scripted, would_run
from fanfold.runtime.views.installation import SmokeReport
from fanfold.text.terminal import one_line
from fanfold.wiring import wire


@command("smoke", summary="Prove that the promises hold here")
@option("--real", is_flag=True, help="Run a scenario on the configured provider.")
@option("--scenario", type=click.Choice(list(SCENARIOS)), help="Which one; default with --real: all of them.")
@option("--dry-run", is_flag=True, help="Say what would run; start nothing, write nothing.")
def smoke_command(call: Invocation, real: bool, scenario: str | None, dry_run: bool) -> int:
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
    status = EXIT_FAILED
    if dry_run:
        report = would_run(names if real else CLAIMS)
    elif not real:
        report = run_scripted(wire)
    else:
        from fanfold.runtime.operations.system.smoke_scenarios import run_scenarios

        report, status = run_scenarios(lambda: wire(call.project), call.project, names)
    call.give(report, lambda: _say(report, call.colour))
    return EXIT_OK if report.ok else status


def _say(report: SmokeReport, colour: bool) -> None:
    for check in report.checks:
        word = paint("ok", "green", colour) if check.ok else paint("failed", "red", colour)
        shown = check.evidence if isinstance(check.evidence, str) else to_json(check.evidence)
        say(f"{word:8} {check.name}  {one_line(shown, 160)}\n")
    if report.error is not None:
        tell(f"error[{report.error.code}]: {one_line(report.error.message)}\n")
        tell(f"hint: {one_line(report.error.hint)}\n")
