"""`fanfold completion`: the script that lets a shell complete commands, options, recipes, runs and roles.

The script asks `fanfold completion --words` for what fits. What is offered comes from the declarations of the
commands, so that a new option is completed without a word here. Only names are looked up, nothing is changed,
and whatever goes wrong offers nothing: a shell that waits for a key press is no place for an error.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module

import click

from fanfold.cli.command import Invocation, command
from fanfold.cli.terminal.output import plain, say
from fanfold.errors import FanfoldError

_SCRIPTS = {
    "bash": """\
_fanfold() {
    local IFS=$'\\n'
    local found=$(fanfold completion bash --words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    COMPREPLY=($(compgen -W "$found" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _fanfold fanfold
""",
    "zsh": """\
#compdef fanfold
_fanfold() {
    local -a found
    found=("${(@f)$(fanfold completion zsh --words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    [[ -n "${found[1]}" ]] && compadd -a found || _files
}
compdef _fanfold fanfold
""",
    "fish": """\
function __fanfold
    fanfold completion fish --words -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null
end
complete -c fanfold -f -a '(__fanfold)'
complete -c fanfold -n '__fish_seen_subcommand_from run check' -F
""",
}
_SETUP = {
    "bash": "fanfold completion bash > ~/.local/share/bash-completion/completions/fanfold",
    "zsh": "fanfold completion zsh > ~/.zfunc/_fanfold   (a folder of $fpath)",
    "fish": "fanfold completion fish > ~/.config/fish/completions/fanfold.fish",
}
_RECIPES = frozenset({"run", "show", "check"})
_ROLES = frozenset({"agents", "spawn"})
_MAX_RUNS = 50


@command(
    "completion",
    summary="Print the completion script of a shell",
    epilog="Set up with: " + "; ".join(_SETUP.values()),
)
@click.argument("shell", type=click.Choice(list(_SCRIPTS)))
@click.option("--words", is_flag=True, hidden=True)
@click.argument("typed", nargs=-1, type=click.UNPROCESSED, metavar="")
def completion_command(call: Invocation, shell: str, words: bool, typed: tuple[str, ...]) -> int:
    """Print a script for the shell to read. Commands, options, recipes, runs and roles are completed."""
    if not words:
        say(_SCRIPTS[shell])
        return 0
    with suppress(FanfoldError, OSError, ValueError):
        *before, last = typed or ("",)
        fitting = [word for word in _offered(call, before, last) if word.startswith(last)]
        say("".join(f"{plain(shlex.quote(word))}\n" for word in fitting))
    return 0


def _offered(call: Invocation, before: list[str], last: str) -> Iterable[str]:
    from fanfold.cli.main import COMMANDS

    if not before:
        return COMMANDS
    name = before[0]
    if name not in COMMANDS:
        return ()
    declared: click.Command = getattr(import_module(COMMANDS[name]), f"{name}_command")
    if last.startswith("-"):
        options = [one for one in declared.params if isinstance(one, click.Option) and not one.hidden]
        return [spelling for one in options for spelling in (*one.opts, *one.secondary_opts)]
    for one in declared.params:
        asked = isinstance(one, click.Option) and before[-1] in one.opts
        if isinstance(one.type, click.Choice) and (asked or isinstance(one, click.Argument)):
            return [str(choice) for choice in one.type.choices]
    return _names(call, name)


def _names(call: Invocation, name: str) -> Iterable[str]:
    from fanfold.cli.main import GROUPS
    from fanfold.cli.project import open_project

    with open_project(call, to_read=True) as project:
        if name in _RECIPES:
            return [one.name for one in project.library.list()]
        if name in _ROLES:
            return project.roles.names()
        if name in GROUPS["Run recipes"] or name in GROUPS["Look at runs"]:
            from fanfold.runtime.operations.history.listing import list_runs

            return ["last", *(head.run_id for head in list_runs(project, limit=_MAX_RUNS))]
    return ()
