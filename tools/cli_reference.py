"""Reference of the command line, made from the commands themselves: docs/cli.md and the help text."""

from __future__ import annotations

from importlib import import_module

import click

from fanfold.cli.main import COMMANDS, GROUPS

_COMMON = ("project", "as_json", "no_color")
_EXITS = (
    (0, "completed"),
    (1, "failed, partial or timed out"),
    (2, "usage, configuration or recipe is wrong"),
    (3, "waiting for approval, or paused"),
    (4, "permission denied"),
    (5, "budget used up"),
    (6, "not found"),
    (7, "cancelled"),
    (70, "internal error"),
    (130, "interrupted"),
)


def load_commands() -> dict[str, click.Command]:
    """Every command by name, in the order of the help text."""
    return {name: getattr(import_module(module), f"{name}_command") for name, module in COMMANDS.items()}


def help_text() -> str:
    """What `fanfold --help` prints; kept as a constant because importing click would triple its cost."""
    commands = load_commands()
    width = max(map(len, commands))
    groups = []
    for title, names in GROUPS.items():
        lines = [f"  {name.ljust(width)}  {commands[name].get_short_help_str(90)}" for name in names]
        groups.append("\n".join([f"{title}:", *lines]))
    return _HELP.format(commands="\n\n".join(groups))


def reference_markdown() -> str:
    """The page docs/cli.md."""
    parts = [_INTRODUCTION]
    parts += [f"| {status} | {meaning} |\n" for status, meaning in _EXITS]
    for name, command in load_commands().items():
        parts += [f"\n## fanfold {name}\n\n", *_describe(name, command)]
    return "".join(parts)


def _describe(name: str, command: click.Command) -> list[str]:
    context = click.Context(command, info_name=f"fanfold {name}")
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [f"```\nfanfold {name} {usage}\n```\n\n"]
    paragraphs = [" ".join(block.split()) for block in (command.help or "").split("\n\n")]
    parts += [f"{paragraph}\n\n" for paragraph in paragraphs if paragraph]
    own = (p for p in command.params if isinstance(p, click.Option) and p.name not in _COMMON)
    rows = [_row(option, context) for option in own if not option.hidden]
    if rows:
        parts += ["| option | meaning |\n|---|---|\n", *rows]
    return parts


def _row(param: click.Option, context: click.Context) -> str:
    record = param.get_help_record(context)
    assert record is not None, f"{param.name} says nothing about itself"
    option, meaning = (cell.replace("|", "\\|") for cell in record)
    return f"| `{option}` | {meaning} |\n"


_HELP = """\
Fan a job out to a team of AI agents and fold one answer back.

Usage: fanfold COMMAND [OPTIONS] [ARGUMENTS]

{commands}

Options of every command:
  --project DIR  The project's folder; default: looked for from here upward.
  --json         One JSON document on stdout.
  --no-color     Plain text, also on a terminal.
  -h, --help     What the command does and takes.

  --version      Print the version.

First steps:
  fanfold init
  fanfold list
  fanfold run research-and-brief -i topic="solid-state batteries" --dry-run
"""

_INTRODUCTION = """\
# Command line

Every command takes `--json` (one document on stdout), `--project DIR` (default: the
nearest folder upward with a `.fanfold`, up to the top of the git repository, which else is the project),
`--no-color` and `--help`. Errors go to stderr as `error[code]: message` with a hint; with `--json` they are a
document `{"ok": false, "error": {"code", "message", "hint", "details"}}` on stdout. Colour is used only on a
terminal and never when `NO_COLOR` is set.

| exit status | meaning |
|---|---|
"""
