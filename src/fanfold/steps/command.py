"""Command steps: a program runs in the sandbox, and the text that it prints is the output."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from fanfold.agents.redaction import MIN_SECRET_CHARS, looks_secret
from fanfold.errors import WorldError
from fanfold.kernel.plan import JSON, Step
from fanfold.language.checks import read_arguments, read_environment, read_own_variables, read_script
from fanfold.language.consent import Effect
from fanfold.language.json_text import as_text, read_json
from fanfold.language.leaf_steps import CommandBody, WrittenStep
from fanfold.language.terminal import shorten_middle
from fanfold.steps.order import Job, Order, Outcome
from fanfold.steps.step_type import Execution, Filling, LeafType, Services, StepLabel

if TYPE_CHECKING:
    from fanfold.sessions.processes import ExitStatus

MAX_SHOWN_CHARS = 2_000
"""The length of program output in a failure. People read it, and the next iteration of a loop gets it."""


class CommandJob(Job, frozen=True):
    """The job of a command step."""

    argv: tuple[str, ...]
    env: dict[str, str]
    network: bool
    own_variables: tuple[str, ...] = ()
    """The user's environment variables to pass. Their values are read at the start and never recorded."""


class CommandSteps(LeafType[CommandBody, CommandJob]):
    """The step type of commands."""

    body = CommandBody
    job = CommandJob
    starts_programs = True

    def from_recipe(self, step: WrittenStep) -> CommandBody:
        entries, references, place = step.entries, step.unit.references, step.place
        return CommandBody(
            run=read_arguments(entries, references, place) if "run" in entries.nodes else (),
            shell=read_script(entries, references.notes),
            env=read_environment(entries, references, place),
            env_vars=read_own_variables(entries, references.notes),
            network=entries.flag("network"),
        )

    def label(self, _step: Step, settings: CommandBody) -> StepLabel:
        return StepLabel("command", " ".join(settings.run) or settings.shell.strip())

    def effects(self, step: Step, settings: CommandBody, filling: Filling) -> Iterator[Effect]:
        job = self.prepare(filling, settings)
        # The program comes first: long variables before it would push it out of view.
        rows = [shlex.join(job.argv)]
        rows += [f"with {name}={shlex.quote(value)}" for name, value in job.env.items()]
        rows += [f"with your variable {name}" for name in job.own_variables]
        if step.write_set:
            where = ", in the project itself" if step.workspace_mode == "shared" else ""
            rows.append(f"may write {', '.join(map(filling.pattern, step.write_set))}{where}")
        yield Effect(step.id, "command", "runs", "\n".join(rows), network=job.network)

    def prepare(self, step: Filling, settings: CommandBody) -> CommandJob:
        argv = tuple(step.text(part) for part in settings.run)
        if settings.shell:
            argv = ("sh", "-c", settings.shell)
        env = {name: step.text(value) for name, value in settings.env.items()}
        variables = {name: as_text(value) for name, value in step.inputs.items()}
        return CommandJob(argv, env | variables, settings.network, settings.env_vars)

    async def perform(self, services: Services, execution: Execution[CommandJob]) -> Outcome:
        from fanfold.steps.programs import SETUP_FAILED, why_not_startable

        order, job, place = execution.order, execution.job, execution.place
        if withheld := why_withheld(job.own_variables, services.granted.variables):
            code, message, hint = withheld.code, withheld.message, withheld.hint
            return Outcome(error=order.failure("permission", code, message, hint, retryable=False))
        environment = job.env | {name: os.environ[name] for name in job.own_variables}
        if problem := why_not_startable(job.argv, environment):
            return Outcome(error=order.failure("agent", "command.not_startable", problem, retryable=False))
        try:
            ended = await services.programs.run(
                job.argv,
                place,
                session_id=order.session,
                # In a snapshot it may write anywhere, since undeclared changes are never merged.
                read_only=place.child is None and order.step.posture == "read_only",
                network=job.network,
                environment=environment,
                named=job.own_variables,
            )
        except FileNotFoundError:
            text = f"there is no program {job.argv[0]!r}"
            return Outcome(error=order.failure("agent", "command.not_found", text, retryable=False))
        except OSError as error:
            text = f"{job.argv[0]} cannot be executed: {error.strerror}"
            return Outcome(error=order.failure("agent", "command.not_startable", text, retryable=False))
        except WorldError as error:
            if error.code != SETUP_FAILED:
                raise
            return Outcome(error=order.failure("transport", error.code, error.message, error.hint))
        return result_of(order, ended)

    def task(self, job: CommandJob) -> str:
        return f"Run the command: {' '.join(job.argv)}"


def result_of(order: Order[CommandJob], ended: ExitStatus) -> Outcome:
    """The outcome of a program that ran to its end."""
    step, program = order.step, order.job.argv[0]
    parts = {"exit_code": ended.exit_code, "stdout": ended.stdout, "stderr": ended.stderr}
    if step.outputs:
        return Outcome({name: parts[name] for name in step.outputs if name in parts})
    output = ended.stdout.removesuffix("\n")
    if ended.exit_code != 0:
        # Programs differ in which stream has the errors, and the end of the output matters most.
        printed = f"{ended.stdout}\n{ended.stderr}".strip().splitlines()
        lines = [line for line in printed if line.strip(" =-_*#+~")]  # without lines that are only rulers
        shown = shorten_middle("\n".join(lines), MAX_SHOWN_CHARS, tail=2 / 3)
        text = f"{program} ended with status {ended.exit_code}" + (f": {shown}" if shown else "")
        return Outcome(error=order.failure("agent", "command.failed", text))
    value: JSON = output
    if step.output_schema is not None:  # then the output is a value, not text
        try:
            value = read_json(output)
        except ValueError as error:
            text = f"{program} did not print one JSON value: {error}"
            return Outcome(error=order.failure("invalid_output", "output.not_json", text))
    return Outcome(value)


# -----------------------------------------------------------------------------------------------------------
# The user's environment variables that a command requests by name (`env_vars`)
#
# A recipe may come from a third party, and a script may have approved it. So a variable is passed only if the
# user's own configuration lists its name, and only to that command. The value is read from the environment
# when the command starts. It is in no plan, event or output: stored text is masked.

SETTING = "environment.allow"


def why_withheld(names: Iterable[str], allowed: Collection[str]) -> WorldError | None:
    """The first reason why one of these variables cannot be passed, or None."""
    wanted = tuple(names)
    if missing := [name for name in wanted if name not in allowed]:
        listed = ", ".join(f'"{name}"' for name in (*sorted(allowed), *missing))
        message = f"{', '.join(missing)} of your environment is requested, but not allowed"
        hint = (
            f"in your own config.toml: [environment] allow = [{listed}]; for one run: --env-from {missing[0]}"
        )
        return WorldError("variable.not_allowed", message, hint=hint)
    for name in wanted:
        value = os.environ.get(name, "")
        if not value:
            message = f"{name} is not set in your environment"
            return WorldError("variable.not_set", message, hint=f"export {name}=…")
        if looks_secret(name) and len(value) < MIN_SECRET_CHARS:
            message = f"{name} has fewer than {MIN_SECRET_CHARS} characters, so it cannot be masked"
            hint = "give it a longer value, or another name"
            return WorldError("variable.too_short", message, hint=hint)
    return None
