"""`fanfold replay` and `fanfold verify`: read logs again, and check that they keep every promise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from fanfold.cli.command import Invocation, command, option
from fanfold.cli.terminal.output import paint, plain
from fanfold.errors import EXIT_FAILED, EXIT_OK, AuthorError
from fanfold.kernel.invariants import InvariantViolation
from fanfold.runtime.operations.history.verify import Audit, replay_run, verify_all, verify_run


@command("replay", summary="Fold a run's log again without running anything")
@click.argument("run")
@option("--verify", "checked", is_flag=True, help="Check every invariant on the way.")
def replay_command(call: Invocation, run: str, checked: bool) -> int:
    """Read the log of RUN from its first event to its last and say where that leads.

    Nothing is executed and nothing is spent. Two replays of one log give the same fingerprint.
    """
    with call.open_project(to_read=True) as project:
        audited = replay_run(project, run, checked=checked)
    where = f"{audited.events} events, {audited.status}, state {audited.fingerprint}\n"
    call.give(audited, lambda: [where, *_violations(audited.violations, call.colour)])
    return EXIT_OK if audited.ok else EXIT_FAILED


@command("verify", summary="Check that what is stored is what was written, and holds")
@click.argument("run", required=False)
@option("--all", "everything", is_flag=True, help="Everything that the project has stored.")
def verify_command(call: Invocation, run: str | None, everything: bool) -> int:
    """Check RUN (default: `last`), or everything that is stored, against every invariant.

    Whatever was changed, removed or put in another order since it was written is found: each commit of a log
    carries the hash of all before it and of the state that it led to.
    """
    if run is not None and everything:
        raise AuthorError("usage.conflicting_options", "name a run, or --all, not both")
    with call.open_project(to_read=True) as project:
        audit = verify_all(project) if everything else verify_run(project, run or "last")
    call.give(audit, lambda: _text(audit, call.colour))
    return EXIT_OK if audit.ok else EXIT_FAILED


def _text(audit: Audit, colour: bool) -> Iterator[str]:
    for one in audit.runs:
        word = paint("ok", "green", colour) if one.ok else paint("broken", "red", colour)
        yield f"{one.run_id}  {word}  {one.events} events, {one.status or 'unreadable'}\n"
        yield from _violations(one.violations, colour)
    if audit.violations:
        yield f"store  {paint('broken', 'red', colour)}\n"
        yield from _violations(audit.violations, colour)
    if not audit.runs:
        yield "nothing has run here yet\n"


def _violations(found: Iterable[InvariantViolation], colour: bool) -> Iterator[str]:
    for one in found:
        yield f"  {paint(f'invariant {one.number}', 'red', colour)}: {plain(one.message)}\n"
