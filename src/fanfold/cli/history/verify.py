"""`fanfold replay` and `fanfold verify`: read logs again, and check that they keep every promise."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from fanfold.cli.command import Call, command
from fanfold.cli.project import open_project
from fanfold.cli.terminal.output import paint, plain, say, say_json
from fanfold.errors import EXIT_FAILED, EXIT_OK, AuthorError
from fanfold.runtime.operations.history.verify import Verdict, replay, verify


@command("replay", summary="Fold a run's log again without running anything")
@click.argument("run")
@click.option("--verify", "checked", is_flag=True, help="Check every invariant on the way.")
def replay_command(call: Call, run: str, checked: bool) -> int:
    """Read the log of RUN from its first event to its last and say where that leads.

    Nothing is executed and nothing is spent. Two replays of one log give the same fingerprint.
    """
    with open_project(call, to_read=True) as project:
        root = project.resolve(run).root_run_id
        verdict = verify(project.store, root) if checked else replay(project.store, root)
    if call.as_json:
        say_json(_document(verdict))
    else:
        say(f"{verdict.events} events, {verdict.status}, state {verdict.fingerprint}\n")
        say("".join(_violations(verdict, call.colour)))
    return EXIT_OK if verdict.ok else EXIT_FAILED


@command("verify", summary="Check that a run's log keeps every invariant")
@click.argument("run", required=False)
@click.option("--all", "everything", is_flag=True, help="Every run of the project.")
def verify_command(call: Call, run: str | None, everything: bool) -> int:
    """Check the log of RUN (default: `last`), or of every run, against every invariant."""
    if run is not None and everything:
        raise AuthorError("usage.conflicting_options", "name a run, or --all, not both")
    with open_project(call, to_read=True) as project:
        if everything and not project.has_runs:
            say_json({"ok": True, "runs": []}) if call.as_json else say("nothing has run here yet\n")
            return EXIT_OK
        if everything:
            roots = [head.run_id for head in project.store.heads(limit=sys.maxsize)]
        else:
            roots = [project.resolve(run or "last").root_run_id]
        verdicts = [verify(project.store, root) for root in roots]
    ok = all(verdict.ok for verdict in verdicts)
    if call.as_json:
        say_json({"ok": ok, "runs": [_document(verdict) for verdict in verdicts]})
    else:
        for verdict in verdicts:
            word = paint("ok", "green", call.colour) if verdict.ok else paint("broken", "red", call.colour)
            say(f"{verdict.run_id}  {word}  {verdict.events} events, {verdict.status or 'unreadable'}\n")
            say("".join(_violations(verdict, call.colour)))
    return EXIT_OK if ok else EXIT_FAILED


def _document(verdict: Verdict) -> dict[str, object]:
    return {
        "run_id": verdict.run_id,
        "ok": verdict.ok,
        "events": verdict.events,
        "status": verdict.status,
        "fingerprint": verdict.fingerprint,
        "violations": [{"invariant": one.number, "message": one.message} for one in verdict.violations],
    }


def _violations(verdict: Verdict, colour: bool) -> Iterator[str]:
    for one in verdict.violations:
        yield f"  {paint(f'invariant {one.number}', 'red', colour)}: {plain(one.message)}\n"
