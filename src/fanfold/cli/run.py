"""`fanfold run`: check the recipe, bind its inputs, then run it or predict the run."""

from __future__ import annotations

import math
import sys

import click

from fanfold.cli.command import Call, command
from fanfold.cli.inputs import read_inputs
from fanfold.cli.opening import open_recipe, role_warnings
from fanfold.cli.output import say, say_json
from fanfold.errors import EXIT_OK, AuthorError


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
@click.option("--script", metavar="FILE", help="Scripted agents instead of models, for tests.")
def run_command(
    call: Call,
    recipe: str,
    pairs: tuple[str, ...],
    file: str | None,
    max_concurrency: int | None,
    budget_usd: float | None,
    budget_tokens: int | None,
    dry_run: bool,
    **later: object,
) -> int:
    """Run RECIPE, a file or the name of a recipe (fanfold list).

    The result goes to stdout, progress to stderr.
    """
    del later  # flags of a real run; accepted now so that scripts need not change
    project, opened = open_recipe(call, recipe)
    plan = opened.runnable()
    config = project.wired.config
    _check_numbers(max_concurrency, config.integer("ceilings.concurrency"), budget_usd, budget_tokens)
    inputs = read_inputs(plan, pairs, file)
    if not dry_run:
        raise AuthorError(
            "run.not_available",
            "this version cannot run recipes yet; it can check and predict them",
            hint=f"fanfold run {recipe} --dry-run",
        )
    from fanfold.runtime.dryrun import dry_run as predict

    warnings = [d.message for d in (*role_warnings(project), *opened.diagnostics)]
    enabled = config.switch("workflows.enabled")
    if not enabled:
        warnings.append(f"workflows are switched off ({config.origins['workflows.enabled']})")
    result, steps = predict(
        plan,
        inputs,
        max_concurrency=max_concurrency,
        default_concurrency=config.integer("workflows.max_concurrent"),
        default_agents=config.integer("workflows.max_agents"),
        budget_usd=budget_usd,
        warnings=warnings,
        allowed=enabled,
    )
    if call.as_json:
        say_json(result)
    else:
        from fanfold.cli.dry_run_text import render

        say(render(plan, result, steps, call.colour))
    return EXIT_OK


def _check_numbers(concurrency: int | None, ceiling: int, usd: float | None, tokens: int | None) -> None:
    if concurrency is not None and not 1 <= concurrency <= ceiling:
        raise AuthorError(
            "usage.out_of_range",
            f"--max-concurrency must be from 1 to {ceiling}, not {concurrency}",
            hint="[ceilings] concurrency in .fanfold/config.toml raises the maximum, to at most 1024",
        )
    if usd is not None and not (math.isfinite(usd) and usd > 0):
        raise AuthorError("usage.out_of_range", "--budget-usd must be more than 0")
    if tokens is not None and not 0 < tokens < sys.maxsize:
        raise AuthorError("usage.out_of_range", "--budget-tokens must be more than 0")
