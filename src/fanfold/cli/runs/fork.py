"""`fanfold fork`: run again from one step on, keeping every result the change does not reach."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import click
from msgspec import Struct

from fanfold.cli.command import Invocation, command, option
from fanfold.cli.inputs import given_inputs, read_script, read_text_file
from fanfold.cli.runs.foreground import Foreground
from fanfold.cli.runs.fork_text import forecast_lines
from fanfold.cli.runs.outcome import say_detached
from fanfold.cli.terminal.output import say_json, tell, wants_colour
from fanfold.cli.terminal.questions import confirm
from fanfold.errors import EXIT_OK, AuthorError
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.again.fork import (
    AtTurn,
    ChosenAgents,
    Fork,
    at_turn,
    foretell,
    plan_fork,
    start_fork,
)
from fanfold.runtime.operations.runs.background import hand_over

F = TypeVar("F", bound=Callable[..., object])


class ForkFlags(Struct, frozen=True, kw_only=True):
    """What the command line says about one fork."""

    step: str | None
    pairs: tuple[str, ...]
    prompts: tuple[str, ...]
    turn: int | None
    say_next: str | None
    model: str | None
    agent_backend: str | None
    script: str | None
    dry_run: bool
    detach: bool
    yes: bool


def again_options(command: F) -> F:
    """The flags of every command that makes a new run of another one: who works, and how it begins."""
    for declare in (
        option("--yes", is_flag=True, help="Do not ask; never answers an approval step."),
        option("--detach", is_flag=True, help="Return at once and go on in the background."),
        option("--dry-run", is_flag=True, help="Only say what would be reused and what would run again."),
        option("--script", metavar="FILE", help="Scripted agents for what runs again."),
        option(
            "--agent-backend", metavar="B", help="Back end for roles that name none; of a scripted run too."
        ),
        option("--model", metavar="M", help="Model for steps that name none; of a scripted run too."),
    ):
        command = declare(command)
    return command


def chosen_agents(
    project: Path, *, model: str | None, agent_backend: str | None, script: str | None
) -> ChosenAgents:
    """Who works, as these flags say."""
    text = None if script is None else read_script(project, Path(script))
    return ChosenAgents(model=model, backend=agent_backend, script=text, script_file=script or "")


@command("fork", summary="Run again from a step on, reusing what the change does not reach")
@click.argument("run")
@option("--from", "step", metavar="STEP", help="Run this step again, and everything that depends on it.")
@option(
    "-i", "--input", "pairs", multiple=True, metavar="NAME=VALUE", help="A changed input; may be repeated."
)
@option(
    "--prompt", "prompts", multiple=True, metavar="STEP=FILE", help="A changed prompt of a top-level step."
)
@option(
    "--turn",
    type=click.IntRange(1),
    metavar="N",
    help="Go on with the conversation of STEP as it was after this turn, instead of beginning it anew.",
)
@option(
    "--say", "say_next", metavar="TEXT", help="With --turn: what its agent is told next; default: to go on."
)
@again_options
def fork_command(call: Invocation, run: str, **given: object) -> int:
    """Make a new run out of RUN that keeps all results not reached by the change, then run it.

    Says first what is reused, what runs again and what that may cost; on a terminal it asks. The files of
    the project stay as they are now. With --turn the agent of STEP keeps what was said up to that turn, as
    `fanfold transcript` numbers them. A subagent is forked at a turn too: into a new one of its run.
    The agents are those of RUN, unless others are named; an imported run has none that this user chose.
    """
    flags = ForkFlags(**given)  # type: ignore[arg-type]  # click gives exactly these
    at = at_turn(flags.turn, flags.say_next, said=("--turn", "--say"))
    with call.open_project() as project:
        source = find_run(project, run)
        agents = chosen_agents(
            project.folder, model=flags.model, agent_backend=flags.agent_backend, script=flags.script
        )
        if source.run.plan.open and flags.step is not None and at is not None:
            if agents:
                raise AuthorError("usage.conflict", f"{flags.step} goes on with the agent that it has")
            return _fork_subagent(call, project, flags.step, at, flags.yes)
        path = None if flags.step is None else source.tree_path(flags.step)
        changed = given_inputs(project.folder, source.tree.state.plan, flags.pairs, None)
        prompts = _prompts(project.folder, flags.prompts)
        fork = plan_fork(source.tree, path, changed, prompts, at, agents)
        return carry_out(
            call, project, fork, "Fork and run?", yes=flags.yes, dry_run=flags.dry_run, detach=flags.detach
        )


def carry_out(
    call: Invocation, project: Project, fork: Fork, question: str, *, yes: bool, dry_run: bool, detach: bool
) -> int:
    """Say what a fork would do, ask on a terminal, then do it."""
    forecast = foretell(fork)
    if dry_run and call.as_json:
        say_json(forecast)
        return EXIT_OK
    tell("".join(forecast_lines(forecast, wants_colour(sys.stderr, call.no_color))))
    if dry_run:
        return EXIT_OK
    terminal = Foreground(call)
    confirmed = partial(confirm, question) if terminal.attendant is not None else None
    owned = start_fork(project, fork, yes=yes, confirm=confirmed, attendant=terminal.attendant)
    if detach:
        hand_over(owned)
        return say_detached(call, owned.tree)
    return terminal.drive(owned)


def _fork_subagent(call: Invocation, project: Project, step: str, at: AtTurn, yes: bool) -> int:
    import asyncio

    from fanfold.runtime.operations.agents.subagents import fork_subagent

    child = asyncio.run(fork_subagent(project, step, at, yes=yes))
    call.give(child, lambda: f"{child.id}\n")
    return EXIT_OK


def _prompts(project: Path, pairs: Sequence[str]) -> dict[str, str]:
    prompts: dict[str, str] = {}
    for pair in pairs:
        step, equals, file = pair.partition("=")
        if not equals or not step or not file:
            raise AuthorError("usage.bad_value", f"--prompt {pair} is not STEP=FILE")
        try:
            prompts[step] = read_text_file(project, Path(file), "--prompt").decode()
        except UnicodeDecodeError:
            raise AuthorError("usage.bad_file", f"--prompt {file} is not UTF-8 text") from None
    return prompts
