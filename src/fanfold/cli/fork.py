"""`fanfold fork`, `retry` and `resume`: run steps again and keep every other result."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from fanfold.api.display import counted, first_of, price_text
from fanfold.api.fork import (
    ChosenAgents,
    Fork,
    ForkForecast,
    at_turn,
    forecast_fork,
    plan_fork,
    plan_retry,
    start_fork,
)
from fanfold.api.history import find_run
from fanfold.api.ownership import resume_detached, run_in_background, take_over, write_files
from fanfold.api.permission import permit_adopted
from fanfold.api.project import Project
from fanfold.api.run_options import RaisedLimits, check_raised
from fanfold.cli.ci import OutcomeOptions, ci_options
from fanfold.cli.command import (
    Invocation,
    command,
    flag,
    given_inputs,
    option,
    options_from,
    read_script,
    read_text,
)
from fanfold.cli.output import notify, paint, plain, print_json, wants_colour
from fanfold.cli.questions import confirm
from fanfold.cli.run import Foreground, print_detached, print_outcome
from fanfold.errors import EXIT_OK, AuthorError
from fanfold.kernel.state import RUN_TERMINAL

# -----------------------------------------------------------------------------------------------------------
# The forecast of a fork or retry, as text.

MAX_PATHS = 12
_TOP = r"[^/\[#]*"
"""Return the step of the recipe at the start of a path."""


def forecast_lines(forecast: ForkForecast, colour: bool, *, asks: bool) -> Iterator[str]:
    """Yield the forecast of a fork: reused and repeated steps, differences, cost, and questions (`asks`)."""
    yield f"{paint('fork of', 'bold', colour)} run {forecast.source_run_id}\n"
    recipe = forecast.recipe
    for title, paths in (
        ("changed", recipe.changed),
        ("tuned", recipe.tuned),
        ("added", recipe.added),
        ("removed", recipe.removed),
        ("roles", recipe.roles),
        ("recipe's", recipe.others),
    ):
        if paths:
            yield _line(paint(title.ljust(10), "yellow", colour), _listed(paths))
    yield _line("reuses", _listed(_gathered(forecast.reuses)))
    if forecast.keeps_failures:
        yield _line("tolerated", f"{_listed(forecast.keeps_failures)}; as before")
    yield _line("runs again", _listed(_gathered(forecast.runs_again)))
    for path, turn in forecast.goes_on.items():
        yield _line("continues", f"{plain(path)} after turn {turn} of its conversation")
    if forecast.merged:
        files = counted(sum(forecast.merged.values()), "file")
        what = f"{files} as merged by {_listed(list(forecast.merged))}"
        yield _line("leaves", f"{what}: fanfold diff {forecast.source_run_id}")
    for line in forecast.asks if asks else ():
        yield _line("asks", plain(line).replace("\n", "\n" + " " * 13))
    usage, guess = forecast.last_time, ""
    if tokens := usage.input_tokens + usage.output_tokens:  # the best estimate
        guess = f"; last time these took {tokens:,} tokens, {price_text(usage.cost_usd)}"
    yield _line("may cost", f"{counted(forecast.agents, 'agent')}{guess}")


def _line(title: str, text: str) -> str:
    return f"  {title.ljust(10)} {text}\n"


def _gathered(paths: Sequence[str]) -> list[str]:
    """Return paths; if there are many, those of one map, loop or group become one entry."""
    if len(paths) <= MAX_PATHS:
        return list(paths)
    held: dict[str, list[str]] = {}
    for path in paths:
        held.setdefault(re.match(_TOP, path)[0], []).append(path)  # type: ignore[index]  # matches every path
    return [f"{top} ({len(inside)} steps)" if len(inside) > 1 else inside[0] for top, inside in held.items()]


def _listed(paths: Sequence[str]) -> str:
    return plain(first_of(paths, MAX_PATHS)) or "nothing"


F = TypeVar("F", bound=Callable[..., object])


def fork_options(command: F) -> F:
    """Declare the flags of commands that create a run from another one: its agents and its start."""
    for declare in (
        option("--yes", is_flag=True, help="Skip the question; never answers an approval step."),
        option("--detach", is_flag=True, help="Return at once; the run continues in the background."),
        option("--dry-run", is_flag=True, help="Show what is reused and what runs again; start nothing."),
        option("--script", metavar="FILE", help="Use scripted agents for the steps that run again."),
        option("--agent-backend", metavar="B", help="Use back end B for roles that name none."),
        option("--model", metavar="M", help="Use model M for steps that name none."),
    ):
        command = declare(command)
    return command


def chosen_agents(
    project: Path, *, model: str | None, agent_backend: str | None, script: str | None
) -> ChosenAgents:
    """Return the agents that these flags choose."""
    text = None if script is None else read_script(project, Path(script))
    return ChosenAgents(model=model, backend=agent_backend, script=text, script_file=script or "")


@command("fork", summary="Start a new run from a step of an earlier one")
@click.argument("run")
@option("--from", "step", metavar="STEP", help="Run this step and its dependents again.")
@option("-i", "--input", "pairs", multiple=True, metavar="NAME=VALUE", help="Change an input; repeatable.")
@option(
    "--prompt", "prompts", multiple=True, metavar="STEP=FILE", help="Change the prompt of a top-level step."
)
@option(
    "--turn",
    type=click.IntRange(1),
    metavar="N",
    help="Continue the conversation of STEP after turn N.",
)
@option(
    "--say",
    "say_next",
    metavar="TEXT",
    help="With --turn: set the agent's next prompt.",
)
@fork_options
def fork_command(
    call: Invocation,
    run: str,
    step: str | None,
    pairs: tuple[str, ...],
    prompts: tuple[str, ...],
    turn: int | None,
    say_next: str | None,
    **again: Any,
) -> int:
    """Start a new run that reuses all results of RUN which the change does not affect.

    It first shows what is reused, what runs again and the possible cost; on a terminal it asks. The files
    of the project stay. With --turn the agent of STEP keeps its conversation up to that turn (numbers as
    in `fanfold transcript`); a subagent becomes a new one. The agents are those of RUN unless you name
    others; for an imported run you must.
    """
    at = at_turn(turn, say_next, names=("--turn", "--say"))
    with call.open_project() as project:
        source = find_run(project, run)
        who = {name: again.pop(name) for name in ("model", "agent_backend", "script")}
        agents = chosen_agents(project.folder, **who)
        if source.run.plan.open and step is not None and at is not None:
            if agents:
                raise AuthorError(
                    "usage.conflict", f"{step} keeps its agent when it continues a conversation"
                )
            from fanfold.api.subagents import fork_subagent  # few forks are of subagents

            child = asyncio.run(fork_subagent(project, step, at, yes=again["yes"]))
            call.give(child, lambda: f"{child.id}\n")
            return EXIT_OK
        path = None if step is None else source.tree_path(step)
        changed = given_inputs(project.folder, source.tree.state.plan, pairs, None)
        fork = plan_fork(source.tree, path, changed, _prompts(project.folder, prompts), at, agents)
        return run_fork(call, project, fork, "Fork and run?", **again)


def run_fork(
    call: Invocation, project: Project, fork: Fork, question: str, *, yes: bool, dry_run: bool, detach: bool
) -> int:
    """Print the forecast of a fork, ask on a terminal, then start it."""
    forecast = forecast_fork(project, fork)
    if dry_run and call.as_json:
        print_json(forecast)
        return EXIT_OK
    notify("".join(forecast_lines(forecast, wants_colour(sys.stderr, call.no_color), asks=dry_run)))
    if dry_run:
        return EXIT_OK
    terminal = Foreground(call)
    confirmed = partial(confirm, question) if terminal.prompter is not None else None
    owned = start_fork(project, fork, yes=yes, confirm=confirmed, prompter=terminal.prompter)
    if detach:
        run_in_background(owned)
        return print_detached(call, owned.tree)
    return terminal.drive(owned)


def _prompts(project: Path, pairs: Sequence[str]) -> dict[str, str]:
    prompts: dict[str, str] = {}
    for pair in pairs:
        step, equals, file = pair.partition("=")
        if not equals or not step or not file:
            raise AuthorError("usage.bad_value", f"--prompt {pair} is not STEP=FILE")
        prompts[step] = read_text(project, Path(file), "--prompt")
    return prompts


@command("retry", summary="Run the failed steps again; reuse completed ones")
@click.argument("run")
@fork_options
def retry_command(
    call: Invocation, run: str, dry_run: bool, detach: bool, yes: bool, **agents: str | None
) -> int:
    """Start a new run that repeats the unsuccessful steps of the finished RUN and their dependents.

    Unsuccessful steps failed, timed out, were cancelled, skipped or reverted with `fanfold undo`.
    Everything else is reused, with the inputs, limits, answers and agents of RUN. The current recipe
    applies: differences are shown, and completed steps that changed run again. The plan is shown first;
    on a terminal it asks. Files of the project stay. JSON of a dry run: {"source_run_id", "reuses",
    "runs_again", "keeps_failures", "agents", "last_time", "merged", "goes_on", "recipe": {"added",
    "removed", "changed", "tuned", "roles", "others"}, "asks"}.
    """
    with call.open_project() as project:
        source = find_run(project, run)
        fork = plan_retry(project, source.tree, chosen_agents(project.folder, **agents))
        return run_fork(call, project, fork, "Retry?", yes=yes, dry_run=dry_run, detach=detach)


@command("resume", summary="Continue a paused, waiting or interrupted run")
@click.argument("run")
@options_from(RaisedLimits)
@option("--wait", is_flag=True, help="Wait for the reset of a usage limit or an outage.")
@option("--detach", is_flag=True, help="Return at once; the run continues in the background.")
@option("--yes", is_flag=True, help="Permit the effects of an adopted run.")
@ci_options
def resume_command(call: Invocation, run: str, wait: bool, detach: bool, yes: bool, **given: Any) -> int:
    """Continue RUN: an id, a prefix of one, or `last`.

    Recipe, inputs, script and permission are those of the start. Completed steps do not run again. A
    provider that the run waits for is tried at once, or with --wait at its time. A finished run is only
    shown, and its files under `.fanfold/runs` are restored. A run of adopted state (fanfold state) shows
    its effects and asks first.
    """
    outcome = OutcomeOptions.taken_from(given, call.project)
    wanted = RaisedLimits(**given).limits(flag)
    with call.open_project() as project:
        root = project.resolve(run).root_run_id
        seen = project.view(root)
        if seen.root.status in RUN_TERMINAL:
            write_files(project, seen, if_missing=True)
            outcome.write(project, seen)
            return print_outcome(call, seen, quiet=outcome.quiet)
        raised = check_raised(project, seen, wanted)
        terminal = Foreground(call, quiet=outcome.quiet)
        permit_adopted(project, seen, yes=yes, prompter=terminal.prompter)
        if detach:
            resume_detached(project, root, raised, keep_waits=wait)
            return print_detached(call, seen)
        ask = None if terminal.prompter is None else terminal.prompter.allow
        owned = take_over(project, root, ask)
        status = terminal.drive(owned, resumed=True, raised=raised, keep_waits=wait)
        outcome.write(project, owned.tree)
        return status
