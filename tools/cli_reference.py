"""Reference of the command line, made from the commands themselves: docs/cli.md and the help text."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping
from importlib import import_module

import click

from fanfold.cli.main import COMMANDS, EVERYDAY, NOUNS

_COMMON = ("project", "as_json", "no_color")
_EXITS = (
    (0, "completed"),
    (1, "failed, partial or timed out"),
    (2, "usage, configuration or recipe is invalid"),
    (3, "waiting for a person or a timer, or paused"),
    (4, "permission denied"),
    (5, "paused at a budget or cap"),
    (6, "not found"),
    (7, "cancelled"),
    (70, "internal error"),
    (130, "interrupted"),
)


def load_commands() -> dict[str, click.Command]:
    """Every command by name."""
    return {name: getattr(import_module(module), f"{name}_command") for name, module in COMMANDS.items()}


def spellings() -> dict[str, str]:
    """How each command is listed, `recipe show` for example → its name, in the order of the help texts."""
    everyday = {name: name for names in EVERYDAY.values() for name in names.split()}
    grouped = {f"{noun} {word}": name for noun, words in NOUNS.items() for word, name in words.items()}
    return everyday | {listed: name for listed, name in grouped.items() if name not in everyday}


def help_texts() -> dict[str, str]:
    """What `fanfold --help` ("") and `fanfold NOUN --help` print."""
    commands = load_commands()
    groups = [
        "\n".join([f"{title}:", *_lines({name: name for name in names.split()}, commands)])
        for title, names in EVERYDAY.items()
    ]
    nouns = [f"  {noun:<9}{_NOUN_SUMMARIES[noun]}: {', '.join(words)}" for noun, words in NOUNS.items()]
    nouns = [line for text in nouns for line in textwrap.wrap(text, 80, subsequent_indent=" " * 11)]
    texts = {"": _HELP.format(commands="\n\n".join(groups), nouns="\n".join(nouns))}
    for noun, words in NOUNS.items():
        listed = "\n".join(_lines(words, commands))
        texts[noun] = _NOUN_HELP.format(noun=noun, summary=_NOUN_SUMMARIES[noun], commands=listed)
    return texts


def _lines(words: Mapping[str, str], commands: Mapping[str, click.Command]) -> list[str]:
    width = max(map(len, words))
    return [f"  {word.ljust(width)}  {commands[name].get_short_help_str(90)}" for word, name in words.items()]


def reference_markdown() -> str:
    """The page docs/cli.md."""
    parts = [_INTRODUCTION]
    parts += [f"| {status} | {meaning} |\n" for status, meaning in _EXITS]
    commands = load_commands()
    rows = {name: _rows(command) for name, command in commands.items()}
    uses = Counter(row for own in rows.values() for row in own.items())
    shared = dict(row for row, count in sorted(uses.items()) if count > 1)
    parts += [_SHARED, *(f"| `{option}` | {meaning} |\n" for option, meaning in shared.items())]
    for listed, name in spellings().items():
        parts += [f"\n## fanfold {listed}\n\n", *_describe(listed, name, commands[name])]
        own = [
            f"| `{option}` | {text} |\n" for option, text in rows[name].items() if shared.get(option) != text
        ]
        if own:
            parts += ["\n| option | meaning |\n|---|---|\n", *own]
        if common := [
            f"`{option.split(', ')[-1].split()[0]}`"
            for option, text in rows[name].items()
            if shared.get(option) == text
        ]:
            parts.append(f"\n{'Also' if own else 'Options:'} {', '.join(common)}.\n")
    return "".join(parts)


def _describe(listed: str, name: str, command: click.Command) -> list[str]:
    context = click.Context(command, info_name=f"fanfold {listed}")
    usage = " ".join(command.collect_usage_pieces(context))
    alias = "" if listed == name else f"    (or: fanfold {name})"
    paragraphs = [" ".join(block.split()) for block in (command.help or "").split("\n\n")]
    return [f"```\nfanfold {listed} {usage}{alias}\n```\n", *(f"\n{text}\n" for text in paragraphs if text)]


def _rows(command: click.Command) -> dict[str, str]:
    """The options of a command with their meanings, as cells of a table."""
    context = click.Context(command, info_name=command.name)
    own = [
        p for p in command.params if isinstance(p, click.Option) and p.name not in _COMMON and not p.hidden
    ]
    return dict(_row(option, context) for option in own)


def _row(param: click.Option, context: click.Context) -> tuple[str, str]:
    record = param.get_help_record(context)
    assert record is not None, f"{param.name} has no help text"
    option, meaning = (cell.replace("|", "\\|") for cell in record)
    return option, meaning


_NOUN_SUMMARIES = {
    "recipe": "Write recipes",
    "history": "Study, repeat and move runs",
    "agent": "Delegate tasks to agents",
    "system": "Look after this installation",
}

_HELP = """\
Fan a job out to a team of AI agents and fold one answer back.

Usage: fanfold COMMAND [OPTIONS] [ARGUMENTS]

{commands}

More commands; "fanfold recipe --help" describes a group:
{nouns}

Every command takes --project DIR, --json, --no-color and --help.
First steps:
  fanfold init
  fanfold recipe list
  fanfold run research-and-brief -i topic=batteries --dry-run
"""

_NOUN_HELP = """\
{summary}.

Usage: fanfold {noun} COMMAND [OPTIONS] [ARGUMENTS]

{commands}

"fanfold {noun} COMMAND --help" describes one of them.
"""

_INTRODUCTION = """\
# Command line

Every command takes `--json` (one document on stdout), `--project DIR`, `--no-color` and `--help`. The default
project is the nearest folder upward with a `.fanfold`, else the top of the git repository, else the current
folder. Errors go to stderr as `error[code]: message` with a hint, or with `--json` to stdout as
`{"ok": false, "error": {"code", "message", "hint", "details"}}`. `NO_COLOR` also switches colour off.

| exit status | meaning |
|---|---|
"""

_SHARED = """
Options that mean the same wherever a command has them:

| option | meaning |
|---|---|
"""
