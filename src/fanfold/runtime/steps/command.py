"""Command steps: a program in the sandbox; its output is what it printed."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from fanfold.kernel.commands import Start
from fanfold.kernel.nodes import Node
from fanfold.kernel.plan import JSON, Step
from fanfold.recipe.types.command import CommandBody
from fanfold.runtime.records.ids import session_id
from fanfold.runtime.steps.step_type import (
    Execution,
    Job,
    LeafType,
    Outcome,
    Preparation,
    Services,
    StepLabel,
    failure,
    text_of,
)
from fanfold.text.excerpts import shorten_middle
from fanfold.text.json_value import as_text, read_json

if TYPE_CHECKING:
    from fanfold.sessions.processes import Ended

MAX_SAID_CHARS = 2_000
"""Kept of what a failed program said: people read it, and the next round of a loop is told it."""


class CommandJob(Job, frozen=True):
    argv: tuple[str, ...]
    env: dict[str, str]
    network: bool
    own_variables: tuple[str, ...] = ()
    """Of the user's environment; their values are looked up when it starts, and recorded nowhere."""


class CommandSteps(LeafType[CommandBody, CommandJob]):
    body = CommandBody
    starts_programs = True

    def label(self, _step: Step, said: CommandBody) -> StepLabel:
        return StepLabel("command", " ".join(said.run) or said.shell.strip())

    def declare(self, step: Step, said: CommandBody) -> str:
        shown = shlex.join(_arguments(said, said.run))
        if said.shell and step.inputs:
            shown += f" (with the variables {', '.join(step.inputs)})"
        if said.env_vars:
            shown += f" (with {', '.join(said.env_vars)} of your environment)"
        env = "".join(f"{name}={shlex.quote(value)} " for name, value in said.env.items())
        return f"runs{' with network' if said.network else ''}: {env}{shown}"

    def prepare(self, step: Preparation, said: CommandBody) -> CommandJob:
        argv = _arguments(said, tuple(text_of(part, step.names) for part in said.run))
        env = {name: text_of(value, step.names) for name, value in said.env.items()}
        variables = {name: as_text(value) for name, value in step.inputs.items()}
        return CommandJob(argv, env | variables, said.network, said.env_vars)

    async def perform(self, services: Services, execution: Execution[CommandJob]) -> Outcome:
        from fanfold.runtime.steps.programs.own_variables import why_withheld
        from fanfold.runtime.steps.programs.sandboxed import why_not_startable

        start, node, job, place = execution.start, execution.node, execution.job, execution.place
        if withheld := why_withheld(job.own_variables, services.granted.variables):
            code, message, hint = withheld.code, withheld.message, withheld.hint
            return Outcome(error=failure(node, start, "permission", code, message, hint, retryable=False))
        environment = job.env | {name: os.environ[name] for name in job.own_variables}
        if problem := why_not_startable(job.argv, environment):
            return Outcome(
                error=failure(node, start, "agent", "command.not_startable", problem, retryable=False)
            )
        try:
            ended = await services.programs.run(
                job.argv,
                place,
                session_id=session_id(start.run, start.step, start.attempt),
                # In a snapshot it may write what it likes, since nothing undeclared comes home.
                read_only=place.child is None and node.step.posture == "read_only",
                network=job.network,
                environment=environment,
                named=job.own_variables,
            )
        except FileNotFoundError:
            text = f"there is no program {job.argv[0]!r}"
            return Outcome(error=failure(node, start, "agent", "command.not_found", text, retryable=False))
        return _said(start, node, job, ended)

    def task(self, job: CommandJob) -> str:
        return f"Run the command: {' '.join(job.argv)}"


def _arguments(said: CommandBody, run: tuple[str, ...]) -> tuple[str, ...]:
    return ("sh", "-c", said.shell) if said.shell else run


def _said(start: Start, node: Node, job: CommandJob, ended: Ended) -> Outcome:
    """The outcome of a program that ran to its end."""
    parts = {"exit_code": ended.exit_code, "stdout": ended.stdout, "stderr": ended.stderr}
    if node.step.outputs:
        return Outcome({name: parts[name] for name in node.step.outputs if name in parts})
    output = ended.stdout.removesuffix("\n")
    if ended.exit_code != 0:
        # Many report on the one and only grumble on the other, and what they end with counts most.
        said = shorten_middle(_without_rules(f"{ended.stdout}\n{ended.stderr}"), MAX_SAID_CHARS, tail=2 / 3)
        text = f"{job.argv[0]} ended with status {ended.exit_code}" + (f": {said}" if said else "")
        return Outcome(error=failure(node, start, "agent", "command.failed", text))
    value: JSON = output
    if node.step.output_schema is not None:  # then the output is a value, not text
        try:
            value = read_json(output)
        except ValueError as error:
            text = f"{job.argv[0]} did not print one JSON value: {error}"
            return Outcome(error=failure(node, start, "invalid_output", "output.not_json", text))
    return Outcome(value)


def _without_rules(text: str) -> str:
    """What a program said, without the lines that only draw a line."""
    return "\n".join(line for line in text.strip().splitlines() if line.strip(" =-_*#+~"))
