"""`fanfold completion`: lets a shell complete commands, options, recipes, inputs, runs, steps and roles.

The script (`pages/completion.SHELL`) asks `fanfold completion --words` for what fits. That of zsh calls the
function that it defines: as a file of $fpath it is the body of that function. What is offered comes from the
declarations of the commands, so that a new option is completed without a word here. Only names are looked up,
nothing is changed, and whatever goes wrong offers nothing: a shell that waits for a key press is no place for
an error.

Names are those of files and recipes that came with a checkout, so no shell evaluates one: each is read as a
line, and put there in quotes. Of several, bash puts what they have in common onto the command line as it is:
one in which a shell would find something to do is not among them. A file whose name looks like an option is
offered with its folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module

import click

from fanfold.cli.command import Invocation, command, option
from fanfold.cli.main import COMMANDS, EVERYDAY, NOUNS, read_page
from fanfold.cli.output import print_text
from fanfold.errors import FanfoldError

_UNQUOTED = frozenset({"bash"})
"""Shells that put what several names have in common onto the line as it is; the others quote it."""
_FOLDERS = {
    "bash": ("~/.local/share/bash-completion/completions", "fanfold", ""),
    "zsh": ("~/.zfunc", "_fanfold", "  # a folder of $fpath"),
    "fish": ("~/.config/fish/completions", "fanfold.fish", ""),
}
_SETUP = "\n".join(
    f"mkdir -p {folder} && fanfold completion {shell} > {folder}/{file}{note}"
    for shell, (folder, file, note) in _FOLDERS.items()
)
"""A line for each shell, to be copied whole."""
_NAMED_BY = {"transcript name": "step", "agents name": "role", "show name": "recipe"}
"""Arguments whose name differs from the kind of their value."""
_ANSWERS = frozenset({"approve", "reject", "answer"})
"""Commands that answer questions of a run."""
_PLAIN = r"[\w@%+=:,./\[\]#-]+"
"""Words that no shell interprets. Brackets and # are in the paths of steps."""
_ACTIVE = ("-", "#", "=")
"""Characters that a shell interprets at the start of a word."""
_MAX_RUNS = 50
_MAX_STEPS = 500


@command(
    "completion",
    summary="Print the completion script of a shell",
    epilog="\b\nSet up with one of these:\n" + _SETUP,
    prints_project=False,
)
@click.argument("shell", type=click.Choice(list(_FOLDERS)))
@option("--words", is_flag=True, hidden=True)
@click.argument("typed", nargs=-1, type=click.UNPROCESSED, metavar="")
def completion_command(call: Invocation, shell: str, words: bool, typed: tuple[str, ...]) -> int:
    """Print a completion script: commands, options, recipes, inputs, runs, steps, roles."""
    if not words:
        print_text(read_page(f"completion.{shell}"))
        return 0
    with suppress(FanfoldError, OSError, ValueError):
        *before, last = typed or ("",)
        fitting = [word for word in _offered(call, before, last) if word.startswith(last)]
        fitting = [word for word in fitting if word.isprintable()]
        if shell in _UNQUOTED and len(fitting) > 1:  # one alone is quoted by the script
            fitting = [word for word in fitting if re.fullmatch(_PLAIN, word)]
        print_text("".join(f"{word}\n" for word in fitting))
    return 0


def _offered(call: Invocation, before: list[str], last: str) -> Iterable[str]:
    if not before:  # a word that was begun may be the short spelling of a grouped command
        return COMMANDS | NOUNS if last else [*" ".join(EVERYDAY.values()).split(), *NOUNS]
    name = before[0]
    if name in NOUNS:
        if len(before) == 1:
            return NOUNS[name]
        before = [NOUNS[name].get(before[1], ""), *before[2:]]
        name = before[0]
    if name not in COMMANDS:
        return ()
    declared: click.Command = getattr(import_module(COMMANDS[name]), f"{name}_command")
    if last.startswith("-"):
        options = [one for one in declared.params if isinstance(one, click.Option) and not one.hidden]
        return [spelling for one in options for spelling in (*one.opts, *one.secondary_opts)]
    valued = {
        spelling: one
        for one in declared.params
        if isinstance(one, click.Option) and not one.is_flag
        for spelling in one.opts
    }
    wanted: click.Parameter | None = valued.get(before[-1]) if len(before) > 1 else None
    given = [
        word
        for i, word in enumerate(before)
        if i and not word.startswith("-") and before[i - 1] not in valued
    ]
    if wanted is None:
        arguments = [one for one in declared.params if isinstance(one, click.Argument)]
        wanted = next((one for i, one in enumerate(arguments) if i == len(given) or one.nargs < 0), None)
    if wanted is None:
        return ()
    if isinstance(wanted.type, click.Choice):
        return [str(choice) for choice in wanted.type.choices]
    what = _NAMED_BY.get(f"{name} {wanted.name}") or wanted.name or ""
    return _names(call, f"open {what}" if name in _ANSWERS and what in ("run", "step") else what, given)


def _names(call: Invocation, what: str, given: list[str]) -> Iterable[str]:
    """Return the values in the project for an argument or option of this name."""

    kind = what.removeprefix("open ")
    if kind not in ("recipe", "recipes", "pairs", "role", "run", "step", "from_step"):
        return ()
    with call.open_project(to_read=True) as project:
        if what in ("recipe", "recipes"):
            from fanfold.api.recipes import recipe_files

            found = [os.path.relpath(file) for file in recipe_files(project.folder) if file.isprintable()]
            return [one.name for one in project.library.list()] + [
                f"./{file}" if file.startswith(_ACTIVE) else file for file in found
            ]
        if what == "pairs":
            from fanfold.api.recipes import check_recipe

            return [f"{one.name}=" for one in check_recipe(project, given[0]).runnable().inputs]
        if what == "role":
            return project.roles.names()
        if kind == "run":
            from fanfold.api.display import list_runs
            from fanfold.kernel.state import RUN_TERMINAL

            heads = list_runs(project, limit=_MAX_RUNS)
            return [
                "last",
                *(head.run_id for head in heads if kind == what or head.status not in RUN_TERMINAL),
            ]
        from fanfold.api.approvals import is_open
        from fanfold.api.history import find_run

        tree = find_run(project, given[0]).tree
        return [
            run.tree_path(path)
            for run in tree.state.runs.values()
            for path, node in run.nodes.items()
            if kind == what or is_open(node)
        ][:_MAX_STEPS]
