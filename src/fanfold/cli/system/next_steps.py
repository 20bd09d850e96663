"""`fanfold` alone: what to do next here. What waits for a person comes first, then what can go on."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable

from msgspec import Struct

from fanfold.cli.command import Invocation, command
from fanfold.cli.terminal.output import paint, plain
from fanfold.kernel.lifecycle import COMPLETED, PAUSED, RUN_TERMINAL, RUNNING, WAITING
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.history.listing import list_runs
from fanfold.runtime.operations.history.runs import how_to_go_on
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.recipes.checked import recipe_files
from fanfold.runtime.records.open_runs import how_to_resume, is_chat, is_kept_open
from fanfold.runtime.views.runs.rows import RunRow

MAX_RUNS = 5
LOOKED_AT = 50
"""Latest runs among which those that wait or can go on are told first."""
FIRST_RECIPE = "research-and-brief"


class Suggestion(Struct, frozen=True):
    """Something that can be done here, and the command that does it."""

    what: str
    command: str


@command("", summary="What to do next here")
def next_command(call: Invocation) -> None:
    """Say what waits for you in this project, and what you can do next."""
    with call.open_project(to_read=True) as project:
        runs = _worth_telling(list_runs(project, limit=LOOKED_AT))
        own = [one.name for one in project.library.list() if one.origin == "project"]
        files = [os.path.relpath(file) for file in recipe_files(project.folder) if file.isprintable()]
        found = [_about(project, run) for run in runs[:MAX_RUNS]]
    found += _about_recipes([*own, *files], bool(runs))
    told = [*found, Suggestion("All commands", "fanfold --help")]
    lines = (f"{plain(one.what)}\n  {paint(plain(one.command), 'cyan', call.colour)}\n" for one in told)
    call.give(found, lambda: lines)


def _worth_telling(runs: Iterable[RunRow]) -> list[RunRow]:
    """What is open first; then what failed and did not succeed since, and of what completed the latest."""
    completed: set[str] = set()
    told: list[RunRow] = []
    for run in runs:  # newest first
        if run.status == COMPLETED:
            told += [] if completed else [run]
            completed.add(run.recipe)
        elif run.status not in RUN_TERMINAL or run.recipe not in completed:
            told.append(run)
    return sorted(told, key=lambda run: run.status in RUN_TERMINAL or _is_idle(run))


def _is_idle(run: RunRow) -> bool:
    """Whether it is a run that nobody has to end, and in which nothing runs."""
    if run.status not in (WAITING, PAUSED):
        return False
    return is_kept_open(run.run_id)


def _about(project: Project, run: RunRow) -> Suggestion:
    named = f"{run.recipe}, run {run.run_id},"
    if run.status == RUNNING:
        if run.owner and run.owner.alive:
            return Suggestion(f"{named} is running", f"fanfold watch {run.run_id}")
        on = how_to_go_on(find_run(project, run.run_id).tree, driven=False)
        return Suggestion(f"{named} lost its process", on or how_to_resume(run.run_id))
    if _is_idle(run):
        return _about_open(project, run)
    if run.status not in RUN_TERMINAL:
        driven = bool(run.owner and run.owner.alive)
        on = how_to_go_on(find_run(project, run.run_id).tree, driven=driven)
        return Suggestion(f"{named} is {run.status}", on or f"fanfold explain {run.run_id}")
    verb = "inspect" if run.status == "completed" else "explain"
    return Suggestion(f"{named} is {run.status.replace('_', ' ')}", f"fanfold {verb} {run.run_id}")


def _about_open(project: Project, run: RunRow) -> Suggestion:
    """A chat that was left, or the run of subagents started by hand: what it is, and how to go on in it."""
    tree = find_run(project, run.run_id).tree
    if tree.state.approvals:
        return Suggestion(f"{run.recipe}, run {run.run_id}, is {run.status}", f"fanfold explain {run.run_id}")
    on = how_to_go_on(tree, driven=False)
    if is_chat(run.run_id):
        return Suggestion(f"{run.run_id}, a chat, was left", on)
    if on:
        return Suggestion(f"{run.run_id}, the run of subagents, is {run.status}", on)
    named = f"{run.run_id}, the run of subagents that are spawned by hand, is open; nothing runs in it"
    return Suggestion(named, "fanfold ps --all")


def _about_recipes(own: list[str], has_runs: bool) -> list[Suggestion]:
    if own:
        told = [Suggestion(f"What {own[0]} does and takes", f"fanfold show {shlex.quote(own[0])}")]
        if len(own) > 1:
            told.append(Suggestion(f"Are all {len(own)} recipes of this project sound", "fanfold check"))
        return told
    found = [Suggestion("Begin a project: a recipe to look at, and its script", "fanfold init")]
    if not has_runs:
        tried = f'fanfold run {FIRST_RECIPE} -i topic="solid-state batteries" --dry-run'
        found.append(Suggestion("See what a built-in recipe would do, without running it", tried))
    return found
