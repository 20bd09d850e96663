"""`fanfold fork`: run again from one step on, keeping every result the change does not reach."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from fanfold.cli.command import Call, command
from fanfold.cli.inputs import given_inputs, read_text_file
from fanfold.cli.runs.permission import ask_permission
from fanfold.cli.stored import find_step, stored
from fanfold.cli.terminal.output import paint, plain, wants_colour
from fanfold.cli.terminal.progress import tell
from fanfold.errors import AuthorError, WorldError
from fanfold.kernel.events import Usage
from fanfold.kernel.state import find_node
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.operations.project import Lineage, Options
from fanfold.runtime.operations.runs.fork import Fork, plan_fork
from fanfold.runtime.records.frozen import Frozen
from fanfold.runtime.views.documents import total_usage

MAX_PATHS = 12


@command("fork", summary="Run again from a step on, reusing what the change does not reach")
@click.argument("run")
@click.option(
    "--from", "step", metavar="STEP", help="Run this step again, and everything that depends on it."
)
@click.option(
    "-i", "--input", "pairs", multiple=True, metavar="NAME=VALUE", help="A changed input; may be repeated."
)
@click.option(
    "--prompt", "prompts", multiple=True, metavar="STEP=FILE", help="A changed prompt of a top-level step."
)
@click.option("--yes", is_flag=True, help="Do not ask; never answers an approval step.")
def fork_command(
    call: Call, run: str, step: str | None, pairs: tuple[str, ...], prompts: tuple[str, ...], yes: bool
) -> int:
    """Make a new run out of RUN that keeps all results not reached by the change, then run it.

    Says first what is reused, what runs again and what that may cost; on a terminal it asks. The files of
    the project stay as they are now.
    """
    if step is None and not pairs and not prompts:
        raise AuthorError(
            "usage.missing_option",
            "a fork needs a change",
            hint="--from STEP, -i NAME=VALUE or --prompt STEP=FILE",
        )
    with stored(call) as project:
        head = project.resolve(run)
        source = project.view(head.root_run_id)
        path = None
        if step is not None:
            node = find_step(source, source.state.runs.get(head.run_id, source.root), step)
            path = node.run.tree_path(node.path)
        changed = given_inputs(source.state.plan, pairs, None)
        fork = plan_fork(source, path, changed, _prompts(prompts))
        tell("".join(_foretell(source, fork, wants_colour(sys.stderr, call.no_color))))
        frozen = project.frozen(source)
        _may_start(fork, frozen, yes)
        lineage = Lineage(
            run_id=source.root.id, kept=fork.kept, roles=frozen.roles, default_model=frozen.default_model
        )
        tree = project.create(fork.plan, fork.inputs, _options(source, frozen), lineage)
        from fanfold.cli.runs.foreground import start

        return start(call, project, tree)


def _prompts(pairs: Sequence[str]) -> dict[str, str]:
    prompts: dict[str, str] = {}
    for pair in pairs:
        step, equals, file = pair.partition("=")
        if not equals or not step or not file:
            raise AuthorError("usage.bad_value", f"--prompt {pair} is not STEP=FILE")
        try:
            prompts[step] = read_text_file(Path(file), "--prompt").decode()
        except UnicodeDecodeError:
            raise AuthorError("usage.bad_file", f"--prompt {file} is not UTF-8 text") from None
    return prompts


def _may_start(fork: Fork, frozen: Frozen, yes: bool) -> None:
    from fanfold.cli.terminal.output import on_terminal

    if on_terminal() and not yes:
        from fanfold.cli.terminal.questions import confirm

        ask_permission(fork.plan, frozen.roles.get, frozen.permission, yes=True)
        if not confirm("Fork and run?"):
            raise WorldError("permission_denied", "the fork was not started", exit_status=4)
        return
    ask_permission(fork.plan, frozen.roles.get, frozen.permission, yes=yes)


def _options(source: RunTree, frozen: Frozen) -> Options:
    """A fork runs under the limits and with the agents of the run it comes from."""
    settings = source.state.settings
    return Options(
        max_concurrency=settings.max_concurrency,
        max_agents=settings.max_agents,
        budget_tokens=settings.budget_tokens,
        budget_micro_usd=settings.budget_micro_usd,
        timeout_ms=settings.timeout_ms,
        permission=frozen.permission,
        backend=frozen.backend,
        model=frozen.model,
        script=frozen.script,
        script_file=frozen.script_file,
    )


def _foretell(source: RunTree, fork: Fork, colour: bool) -> list[str]:
    """What the fork will do, before it does anything."""
    agents = f"{fork.agents} agent{'' if fork.agents == 1 else 's'}"
    return [
        f"{paint('fork of', 'bold', colour)} run {source.root.id}\n",
        f"  reuses     {_listed(list(fork.kept))}\n",
        f"  runs again {_listed(list(fork.again))}\n",
        f"  may cost   {agents}{_price(source, fork)}\n",
    ]


def _listed(paths: list[str]) -> str:
    if not paths:
        return "nothing"
    more = f" and {len(paths) - MAX_PATHS} more" if len(paths) > MAX_PATHS else ""
    return plain(", ".join(paths[:MAX_PATHS])) + more


def _price(source: RunTree, fork: Fork) -> str:
    """What the same steps took last time; the best guess there is."""
    nodes = [node for path in fork.again if (node := find_node(source.state, path)) is not None]
    usage: Usage = total_usage(source, nodes)
    if not usage.tokens:
        return ""
    price = "price unknown" if usage.micro_usd is None else f"${usage.micro_usd / 1_000_000:.4f}"
    return f"; last time these took {usage.tokens:,} tokens, {price}"
