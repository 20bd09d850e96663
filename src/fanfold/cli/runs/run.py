"""`fanfold run`: check the recipe, bind its inputs, then run it or predict the run."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from fanfold.cli.command import Call, command
from fanfold.cli.inputs import bind_what_is_there, read_inputs, read_text_file
from fanfold.cli.recipes.opening import Opened, Project, open_recipe, role_warnings
from fanfold.cli.terminal.output import say, say_json
from fanfold.errors import EXIT_OK, AuthorError
from fanfold.kernel.plan import JSON, Plan

if TYPE_CHECKING:
    from fanfold.agents.role import Role
    from fanfold.runtime.operations.project import Options


class Flags(Struct, frozen=True, kw_only=True):
    """What the command line fixes for one run."""

    model: str | None
    agent_backend: str | None
    max_concurrency: int | None
    budget_usd: float | None
    budget_tokens: int | None
    permission: str | None
    yes: bool
    unsafe_no_sandbox: bool
    script: str | None


@command("run", summary="Run a recipe, or predict the run with --dry-run")
@click.argument("recipe")
@click.option(
    "-i", "--input", "pairs", multiple=True, metavar="NAME=VALUE", help="One input; may be repeated."
)
@click.option("--inputs", "file", metavar="FILE", help="Inputs as a JSON or YAML map; -i wins over it.")
@click.option("--model", metavar="M", help="Model for steps that name none.")
@click.option("--agent-backend", metavar="B", help="Back end for roles that name none.")
@click.option("--max-concurrency", type=int, metavar="N", help="How many steps may run at once.")
@click.option("--budget-usd", type=float, metavar="X", help="Pause before spending more than this.")
@click.option("--budget-tokens", type=int, metavar="N", help="Pause before using more tokens than this.")
@click.option(
    "--permission",
    type=click.Choice(["read_only", "ask", "auto"]),
    help="What may happen without asking; default: ask.",
)
@click.option(
    "--dry-run", is_flag=True, help="Show waves, conflicts, critical path and bounds; write nothing."
)
@click.option("--detach", is_flag=True, help="Return at once and go on in the background.")
@click.option("--yes", is_flag=True, help="Answer permission questions with yes; never an approval step.")
@click.option(
    "--unsafe-no-sandbox", is_flag=True, help="Run commands even where this machine cannot confine them."
)
@click.option("--script", metavar="FILE", help="Scripted agents instead of models, for tests.")
def run_command(
    call: Call,
    recipe: str,
    pairs: tuple[str, ...],
    file: str | None,
    dry_run: bool,
    detach: bool,
    **given: object,
) -> int:
    """Run RECIPE, a file or the name of a recipe (fanfold list).

    The result goes to stdout, progress to stderr. Ctrl-C pauses the run so that it can be resumed; a
    second one stops at once.
    """
    flags = Flags(**given)  # type: ignore[arg-type]  # click gives exactly these
    project, opened = open_recipe(call, recipe)
    plan = opened.runnable()
    _check_numbers(flags, project.wired.config.integer("ceilings.concurrency"))
    if dry_run:
        _predict(call, project, opened, *bind_what_is_there(plan, pairs, file), flags)
        return EXIT_OK
    inputs = read_inputs(plan, pairs, file)
    options = _options(flags)
    if project.wired.config.switch("workflows.enabled"):  # switched off, nothing is asked first
        _check_permission(plan, project.wired.roles.find, flags)
    _warn_of_roles(project, plan)
    running = project.wired.open()
    try:
        tree = running.create(plan, inputs, options)
        if detach:
            from fanfold.cli.runs.background import hand_over

            return hand_over(call, running, tree)
        from fanfold.cli.runs.foreground import start

        return start(call, running, tree)
    finally:
        running.close()


def _warn_of_roles(project: Project, plan: Plan) -> None:
    """What is odd about the files of roles that this run uses; other roles are not its business."""
    warnings = role_warnings(project)
    if not warnings:
        return
    from fanfold.cli.terminal.progress import tell
    from fanfold.runtime.records.frozen import freeze_roles

    used = {role.source for role in freeze_roles(plan, project.wired.roles.find).values()}
    for one in warnings:
        if one.file in used:
            tell(f"warning[{one.code}]: {one.message} ({one.file}:{one.range.start.line})\n")


def _options(flags: Flags) -> Options:
    from fanfold.runtime.operations.project import Options

    script = None if flags.script is None else _read_script(Path(flags.script))
    permission = flags.permission or "ask"
    return Options(
        max_concurrency=flags.max_concurrency,
        budget_tokens=flags.budget_tokens,
        budget_micro_usd=None if flags.budget_usd is None else round(flags.budget_usd * 1_000_000),
        permission="auto" if flags.yes and permission == "ask" else permission,
        unsafe_no_sandbox=flags.unsafe_no_sandbox,
        backend=flags.agent_backend,
        model=flags.model,
        script=script,
        script_file=flags.script or "",
    )


def _read_script(file: Path) -> str:
    """The text of a script that was checked: a mistake in it must not wait for the step it concerns."""
    from fanfold.agents.scripts.script import Script

    return Script.load(read_text_file(file, "--script", "usage.bad_script"), str(file)).source


def _check_permission(plan: Plan, find_role: Callable[[str], Role | None], flags: Flags) -> None:
    """One question at the start covers what the recipe declares."""
    from fanfold.cli.runs.permission import ask_permission

    ask_permission(plan, find_role, flags.permission or "ask", yes=flags.yes)


def _predict(
    call: Call, project: Project, opened: Opened, inputs: dict[str, JSON], missing: list[str], flags: Flags
) -> None:
    from fanfold.runtime.forecast.dryrun import dry_run as predict

    plan, config = opened.runnable(), project.wired.config
    warnings = [d.message for d in (*role_warnings(project), *opened.diagnostics)]
    enabled = config.switch("workflows.enabled")
    if not enabled:
        warnings.append(f"workflows are switched off ({config.origins['workflows.enabled']})")
    warnings += missing
    usable = True
    if flags.script is None and flags.agent_backend in (None, "model"):
        from fanfold.runtime.operations.preflight import foresee

        about_models, usable = foresee(plan, project.wired.roles.find, config, flags.model)
        warnings += about_models
    result, steps = predict(
        plan,
        inputs,
        max_concurrency=flags.max_concurrency,
        default_concurrency=config.integer("workflows.max_concurrent"),
        default_agents=config.integer("workflows.max_agents"),
        budget_usd=flags.budget_usd,
        warnings=warnings,
        allowed=enabled and usable and not missing,
    )
    if call.as_json:
        say_json(result)
    else:
        from fanfold.cli.runs.dry_run_text import render

        say(render(plan, result, steps, call.colour))


def _check_numbers(flags: Flags, ceiling: int) -> None:
    concurrency, usd, tokens = flags.max_concurrency, flags.budget_usd, flags.budget_tokens
    if concurrency is not None and not 1 <= concurrency <= ceiling:
        raise AuthorError(
            "usage.out_of_range",
            f"--max-concurrency must be from 1 to {ceiling}, not {concurrency}",
            hint="[ceilings] concurrency in .fanfold/config.toml raises the maximum, to at most 1024",
        )
    check_budget(usd, tokens)


def check_budget(usd: float | None, tokens: int | None) -> None:
    """Budgets are amounts one can spend."""
    if usd is not None and not (math.isfinite(usd) and usd > 0):
        raise AuthorError("usage.out_of_range", "--budget-usd must be more than 0")
    if tokens is not None and not 0 < tokens < sys.maxsize:
        raise AuthorError("usage.out_of_range", "--budget-tokens must be more than 0")
