"""Commands about the installation and the project: `doctor`, `gc`, `init`, `serve`, `smoke`, `state`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator

import click
from msgspec import Struct

from fanfold import __version__
from fanfold.api import system
from fanfold.api.display import RunRow, age_ms, counted, list_runs
from fanfold.api.history import continue_command, find_run
from fanfold.api.project import Project
from fanfold.api.recipes import recipe_files
from fanfold.api.smoke import CLAIMS, SCENARIOS, run_scenarios, run_scripted, would_run
from fanfold.cli.command import Invocation, command, option
from fanfold.cli.output import notify, paint, plain, print_text, to_json
from fanfold.engine.config import fanfold_home
from fanfold.errors import EXIT_FAILED, EXIT_OK, EXIT_PERMISSION, AuthorError, WorldError
from fanfold.kernel.state import COMPLETED, PAUSED, RUN_TERMINAL, RUNNING, WAITING
from fanfold.language.terminal import one_line
from fanfold.steps.run_config import how_to_resume, is_chat, is_kept_open
from fanfold.wiring import serve, wire

_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


@command("doctor", summary="Check configuration, store, programs and roles")
def doctor_command(call: Invocation) -> int:
    """Check this installation and this project; exit status 1 if something is broken."""
    found = system.examine(call.project, lambda: wire(call.project, to_read=True), __version__)
    call.give(found, lambda: _text(found, call.colour))
    return EXIT_OK if found.ok else EXIT_FAILED


def _text(found: system.Examination, colour: bool) -> Iterator[str]:
    yield f"{paint('fanfold ' + found.version, 'bold', colour)}  {found.project}\n\n"
    for check in found.checks:
        word = paint(check.level.ljust(7), _COLOURS[check.level], colour)
        yield f"  {word} {check.name.ljust(8)} {plain(check.message)}\n"
        for detail in check.details:
            yield f"  {'':16} {paint(plain(detail), 'dim', colour)}\n"
        if check.hint:
            yield f"  {'':16} {paint('hint', 'cyan', colour)}: {plain(check.hint)}\n"
    if not found.config:
        return
    yield f"\n{paint('Configuration', 'bold', colour)}\n"
    words = {True: "on", False: "off", None: "not set"}
    values = [
        words[one.value] if isinstance(one.value, bool | None) else plain(str(one.value))
        for one in found.config
    ]
    shown = [(one.key, value, one.origin) for one, value in zip(found.config, values, strict=True)]
    widths = [max(len(row[column]) for row in shown) for column in (0, 1)]
    for key, value, origin in shown:
        line = f"  {key.ljust(widths[0])}  {value.ljust(widths[1])}"
        yield f"{line}  {paint(plain(origin), 'dim', colour)}\n"


@command("gc", summary="Delete old runs and their files")
@option(
    "--older-than",
    default="30d",
    metavar="AGE",
    help="Delete runs older than 12h, 30d (default), 8w; 0d: all.",
)
@option("--dry-run", is_flag=True, help="Show what would be deleted; delete nothing.")
def gc_command(call: Invocation, older_than: str, dry_run: bool) -> None:
    """Delete runs that ended more than AGE ago: their logs, outputs, sessions, files and proposals.

    Workspaces of failed or interrupted steps are deleted at the same age, also those of runs that stay.
    Unfinished runs are never touched. The run of subagents is deleted when all of them finished that long
    ago. Data that other runs refer to stays, and so do the proposals of runs that stay.
    """
    age = age_ms(older_than)
    if age is None:
        message = f"--older-than {older_than} is not an age"
        raise AuthorError("usage.bad_value", message, hint="write 90m, 12h, 30d or 8w")
    with call.open_project() as project:
        removed = system.collect(project, age, dry_run=dry_run)
    verb = "would remove" if dry_run else "removed"
    named = [("", removed.runs), ("workspace ", removed.workspaces), ("proposal ", removed.proposals)]
    lines = [f"{verb} {word}{plain(name)}\n" for word, names in named for name in names]
    counts = [counted(len(names), word.strip()) for word, names in named[1:] if names]
    lines.append(f"{verb} {', '.join([counted(len(removed.runs), 'run'), *counts])}\n")
    call.give(removed, lambda: lines)


@command("init", summary="Set up a project with an example recipe and script")
def init_command(call: Invocation) -> None:
    """Create `.fanfold/` with a commented configuration and an example. Existing files are kept."""
    made = system.initialise(call.project)
    lines = [f"{paint('created', 'green', call.colour)} {name}\n" for name in made.created]
    lines += [f"{paint('kept', 'dim', call.colour)}    {name}\n" for name in made.kept]
    lines.append(
        f"\nTry it, without any model:\n  fanfold run {system.RECIPE_NAME} --script {system.SCRIPT_FILE}\n"
    )
    call.give(made, lambda: lines)


# -----------------------------------------------------------------------------------------------------------
# `fanfold` without a command: suggestions. Waiting runs come first, then those that can continue.

MAX_RUNS = 5
LOOKED_AT = 50
"""The number of latest runs to list; those that wait or can continue are listed first."""
FIRST_RECIPE = "research-and-brief"


class Suggestion(Struct, frozen=True):
    """A suggestion: its reason and its command."""

    what: str
    command: str


@command("", summary="What to do next here")
def next_command(call: Invocation) -> None:
    """Say what waits for you in this project, and what you can do next."""
    with call.open_project(to_read=True) as project:
        runs = _worth_showing(list_runs(project, limit=LOOKED_AT))
        own = [one.name for one in project.library.list() if one.origin == "project"]
        files = [os.path.relpath(file) for file in recipe_files(project.folder) if file.isprintable()]
        found = [_suggestion_for(project, run) for run in runs[:MAX_RUNS]]
    found += _suggestions_for_recipes([*own, *files], bool(runs))
    suggestions = [*found, Suggestion("All commands", "fanfold --help")]
    lines = (
        f"{plain(one.what)}\n  {paint(plain(one.command), 'cyan', call.colour)}\n" for one in suggestions
    )
    call.give(found, lambda: lines)


def _worth_showing(runs: Iterable[RunRow]) -> list[RunRow]:
    """Return runs by urgency: open ones, failed ones without a later success, the latest completed."""
    completed: set[str] = set()
    listed: list[RunRow] = []
    for run in runs:  # newest first
        if run.status == COMPLETED:
            listed += [] if completed else [run]
            completed.add(run.recipe)
        elif run.status not in RUN_TERMINAL or run.recipe not in completed:
            listed.append(run)
    return sorted(listed, key=lambda run: run.status in RUN_TERMINAL or _is_idle(run))


def _is_idle(run: RunRow) -> bool:
    """Return whether a run is an open run without running work."""
    return run.status in (WAITING, PAUSED) and is_kept_open(run.run_id)


def _suggestion_for(project: Project, run: RunRow) -> Suggestion:
    named = f"{run.recipe}, run {run.run_id},"
    if run.status == RUNNING:
        if run.owner and run.owner.alive:
            return Suggestion(f"{named} is running", f"fanfold watch {run.run_id}")
        on = continue_command(find_run(project, run.run_id).tree, driven=False)
        return Suggestion(f"{named} lost its process", on or how_to_resume(run.run_id))
    if _is_idle(run):  # a closed chat or the run of subagents
        tree = find_run(project, run.run_id).tree
        if tree.state.approvals:
            return Suggestion(f"{named} is {run.status}", f"fanfold explain {run.run_id}")
        on = continue_command(tree, driven=False)
        if is_chat(run.run_id):
            return Suggestion(f"{run.run_id}, a chat, was left", on)
        if on:
            return Suggestion(f"{run.run_id}, the run of subagents, is {run.status}", on)
        spawned = f"{run.run_id}, the run of subagents that are spawned by hand, is open; nothing runs in it"
        return Suggestion(spawned, "fanfold ps --all")
    if run.status not in RUN_TERMINAL:
        driven = bool(run.owner and run.owner.alive)
        on = continue_command(find_run(project, run.run_id).tree, driven=driven)
        return Suggestion(f"{named} is {run.status}", on or f"fanfold explain {run.run_id}")
    verb = "inspect" if run.status == "completed" else "explain"
    return Suggestion(f"{named} is {run.status.replace('_', ' ')}", f"fanfold {verb} {run.run_id}")


def _suggestions_for_recipes(own: list[str], has_runs: bool) -> list[Suggestion]:
    if own:
        suggestions = [Suggestion(f"What {own[0]} does and takes", f"fanfold show {shlex.quote(own[0])}")]
        if len(own) > 1:
            suggestions.append(
                Suggestion(f"Are all {len(own)} recipes of this project sound", "fanfold check")
            )
        return suggestions
    found = [Suggestion("Begin a project: a recipe to look at, and its script", "fanfold init")]
    if not has_runs:
        tried = f'fanfold run {FIRST_RECIPE} -i topic="solid-state batteries" --dry-run'
        found.append(Suggestion("See what a built-in recipe would do, without running it", tried))
    return found


@command("serve", summary="Serve the console and the HTTP API of this project")
@option(
    "--port", type=click.IntRange(0, 65_535), metavar="N", default=8420, show_default=True,
    help="Listen on port N; 0: any free port.",
)  # fmt: skip
@option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Listen on this address of the machine.",
)
@option("--take-over", is_flag=True, help="Continue runs whose process has died.")
@option(
    "--new-token",
    type=click.Choice(["operator", "viewer"]),
    help="Create a token for a public address; serve nothing.",
)
def serve_command(call: Invocation, port: int, host: str, take_over: bool, new_token: str | None) -> None:
    """Serve the console, the API under /api, and MCP at /mcp, until Ctrl-C.

    The link that opens the console is printed once. Runs that are started here have processes of their
    own and continue when the server stops. An address that other machines reach accepts only tokens of
    your own configuration (server.operators, server.viewers list their digests); --new-token creates one.
    """
    if new_token is not None:
        made = system.make_token(new_token, fanfold_home(os.environ))
        call.give(made, lambda: f"{made.token}\n")
        if not call.as_json:
            notify(f"shown this once. In your own configuration, {made.file}:\n\n[server]\n{made.line}\n")
        return

    def report_address(served: system.ServeAddress) -> None:
        call.give(served, lambda: f"{served.link or served.url}\n")
        if not call.as_json:
            for run in served.taken_over:
                notify(f"run {plain(run)} continues\n")
            notify("Ctrl-C stops the server; runs continue\n")
        sys.stdout.flush()  # the parent process may read it from a pipe

    serve(call.project, host, port, version=__version__, take_over=take_over, on_ready=report_address)


@command("smoke", summary="Run a self-test")
@option("--real", is_flag=True, help="Run a scenario on the configured provider.")
@option("--scenario", type=click.Choice(list(SCENARIOS)), help="Run only this scenario.")
@option("--dry-run", is_flag=True, help="Show the scenarios; start and write nothing.")
def smoke_command(call: Invocation, real: bool, scenario: str | None, dry_run: bool) -> int:
    """Run small recipes and check their logs against the scheduler's guarantees.

    Without --real the agents are scripted and the project is temporary: no network, no leftovers. With
    --real the scenarios run on the configured provider and leave evidence in .fanfold/smoke. A scenario
    without the expected log fails even if its run completed. The first provider error (a refused key, no
    network) ends the test. JSON: {"ok", "checks": [{"name", "ok", "evidence"}], "error"}.
    """
    if scenario is not None and not real:
        raise AuthorError("usage.conflicting_options", "--scenario needs --real")
    names = [scenario] if scenario else list(SCENARIOS)
    status = EXIT_FAILED
    if dry_run:
        report = would_run(names if real else CLAIMS)
    elif not real:
        report = run_scripted(wire)
    else:
        report, status = run_scenarios(lambda: wire(call.project), call.project, names)
    call.give(report, lambda: _print_smoke(report, call.colour))
    return EXIT_OK if report.ok else status


def _print_smoke(report: system.SmokeReport, colour: bool) -> None:
    for check in report.checks:
        word = paint("ok", "green", colour) if check.ok else paint("failed", "red", colour)
        shown = check.evidence if isinstance(check.evidence, str) else to_json(check.evidence)
        print_text(f"{word:8} {check.name}  {one_line(shown, 160)}\n")
    if report.error is not None:
        notify(f"error[{report.error.code}]: {one_line(report.error.message)}\n")
        notify(f"hint: {one_line(report.error.hint)}\n")


_KIB = 1024


@command("state", summary="Show, adopt or remove state that was copied here")
@click.argument("action", type=click.Choice(["show", "adopt", "remove"]), default="show")
@option("--yes", is_flag=True, help="adopt, remove: skip the question.")
def state_command(call: Invocation, action: str, yes: bool) -> None:
    """Manage the stored state of this project: runs, snapshots, pending merges.

    State is used only if your own Fanfold made it for this folder; commands refuse any other. show lists
    it with the reason for a refusal, without opening it. adopt accepts it, for your own project that was
    moved, copied or restored; its unfinished runs ask before they continue (fanfold resume). remove
    deletes it; recipes, roles and configuration stay.
    """
    home = fanfold_home(os.environ)
    seen = system.show_state(call.project, home)
    wanted = seen.standing == "foreign" if action == "adopt" else seen.standing != "none"
    if action != "show" and wanted and not yes:
        message = f"not on a terminal, so no user can confirm: {action} {seen.folder}"
        refused = WorldError("state.unconfirmed", message, hint="add --yes", exit_status=EXIT_PERMISSION)
        question = "Take it over as it is?" if action == "adopt" else "Delete it?"
        call.require_yes(_text_state(seen) + question, refused, "nothing was changed")
    if action == "remove":
        seen = system.remove_state(call.project, home)
    elif action == "adopt":
        seen = system.adopt_state(call.project, home, lambda: _roots(call))
    call.give(seen, lambda: _text_state(seen))


def _roots(call: Invocation) -> list[str]:
    with call.open_project(to_read=True) as project:
        return [head.run_id for head in project.heads()]


def _text_state(seen: system.StateView) -> str:
    words = {"none": "no state", "ours": "yours", "foreign": f"not yours: {seen.why}"}
    lines = [f"{one_line(seen.folder)}: {one_line(words[seen.standing])}"]
    lines += [f"  removed {one_line(name)}" for name in seen.removed]
    for part in seen.parts:
        size = f", {max(1, part.bytes // _KIB) if part.bytes else 0:,} KiB" if part.kind != "link" else ""
        lines.append(f"  {one_line(part.name)}  {part.kind}{size}")
    if seen.standing == "foreign":
        lines.append("fanfold state adopt takes it over, fanfold state remove deletes it")
    return "\n".join(lines) + "\n"
