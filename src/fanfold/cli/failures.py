"""What the user sees when a command cannot do what was asked.

Every failure has the shape of `fanfold.errors`: `error[code]: message` and a hint on stderr, or with
`--json` one document on stdout; click's own usage errors and our bugs included.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

from fanfold.errors import (
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_OK,
    AuthorError,
    BugError,
    FanfoldError,
    WorldError,
)

if TYPE_CHECKING:
    import click

REPORT_HINT = "this is a bug in Fanfold: please report it with the command and what FANFOLD_DEBUG=1 shows"

_CLICKS_WORDS = {
    "is not a valid integer range": "is no whole number",
    "is not a valid integer": "is no whole number",
    "is not a valid float range": "is no number",
    "is not a valid float": "is no number",
}
"""What click says of numbers, as people say it."""


def report(error: BaseException, arguments: list[str]) -> int:
    """Tell the user about `error`; returns the exit status."""
    if isinstance(error, BrokenPipeError):
        return reader_left()
    if os.environ.get("FANFOLD_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        from fanfold.cli.terminal.output import tell

        tell("interrupted\n")
        return EXIT_INTERRUPTED
    failure = _as_failure(error)
    complete_hint(failure, arguments)
    try:
        if wants_json(arguments):
            from fanfold.cli.terminal.output import say_json
            from fanfold.runtime.views.errors import error_document

            say_json(error_document(failure))
        else:
            _say_error(failure, refuse_colour="--no-color" in arguments)
        sys.stdout.flush()
    except OSError as unheard:  # nobody reads it, or there is no room for it
        reader_left()
        if not isinstance(unheard, BrokenPipeError):
            _say_error(failure, refuse_colour="--no-color" in arguments)
    return failure.exit_status


def complete_hint(failure: FanfoldError, arguments: list[str]) -> None:
    """Where one more option is all that is missing, say the whole command, with everything that was given."""
    more: list[str] = []
    if failure.code == "permission_denied" and "--yes" in failure.hint and "--yes" not in arguments:
        more = ["--yes"]
    elif failure.code == "recipe.missing_input" and "run" in arguments:
        examples = failure.details.get("examples")
        pairs = examples.items() if isinstance(examples, dict) else ()
        more = [word for name, value in pairs for word in ("-i", f"{name}={value}")]
    if not more:
        return
    from fanfold.agents.redaction import Redactor

    at = arguments.index("--") if "--" in arguments else len(arguments)
    command = shlex.join(["fanfold", *arguments[:at], *more, *arguments[at:]])
    if Redactor.of(os.environ).text(command) != command:
        return  # who typed a secret is not shown it, in a log of a CI server perhaps
    before = f"{failure.hint}; " if failure.hint and more != ["--yes"] else ""
    failure.hint = f"{before}{'to permit it' if more == ['--yes'] else 'for example'}: {command}"


def wants_json(arguments: list[str]) -> bool:
    """True when the command line asks for JSON, also when the rest of it could not be understood."""
    words = arguments[: arguments.index("--")] if "--" in arguments else arguments
    pairs = pairwise(words)
    return "--json" in words or "--format=json" in words or ("--format", "json") in pairs


def unknown_command(name: str, known: Iterable[str]) -> AuthorError:
    """A mistyped command, with the nearest one as a hint."""
    from fanfold.text.spelling import nearest

    near = nearest(name, tuple(known))
    hint = f'did you mean "fanfold {near}"?' if near else "fanfold --help lists the commands"
    if name.endswith((".yaml", ".yml")):
        file = shlex.quote(name)
        hint = f"to check or run a recipe: fanfold check {file}, fanfold run {file}"
    return AuthorError("usage.unknown_command", f'there is no command "{name}"', hint=hint)


def unknown_option(word: str) -> AuthorError:
    """An option before any command that is none of the common ones."""
    return AuthorError(
        "usage.unknown_option",
        f'"{word}" is not an option of fanfold',
        hint="options of a command come after its name; fanfold --help lists the commands",
    )


def _as_failure(error: BaseException) -> FanfoldError:
    if isinstance(error, FanfoldError):
        return error
    usage = _usage_failure(error)
    if usage is not None:
        return usage
    if isinstance(error, OSError) and error.strerror:
        name = f": {error.filename}" if error.filename else ""
        return WorldError("world.io", f"{error.strerror}{name}")
    kind = type(error).__name__
    return BugError("internal", f"{kind}: {str(error)[:300]}", hint=REPORT_HINT, exit_status=EXIT_INTERNAL)


def _usage_failure(error: BaseException) -> FanfoldError | None:
    if "click" not in sys.modules:  # then it cannot be click's error, and click need not be loaded
        return None
    import click

    if not isinstance(error, click.ClickException):
        return None
    if not isinstance(error, click.UsageError):
        return AuthorError("usage", error.format_message())
    message = " ".join(error.format_message().rstrip(".").split())
    context = error.ctx
    hint = (
        f"{context.command_path} --help shows how it is used"
        if context
        else "fanfold --help lists the commands"
    )
    for theirs, ours in _CLICKS_WORDS.items():
        message = message.replace(theirs, ours)
    near = getattr(error, "possibilities", None) or _meant_choice(error)
    if near:
        # click appends its own question to the message; ours stands in the hint line.
        message = message.partition(" Did you mean")[0].partition(" (Possible")[0].rstrip(".")
        hint = f"did you mean {' or '.join(sorted(near))}?"
    return AuthorError(_usage_code(error), message, hint=hint)


def _meant_choice(error: click.UsageError) -> list[str]:
    """Which of the words that an argument or option takes was probably meant."""
    import click

    param = getattr(error, "param", None)
    typed = error.message.partition("' is not one of ")[0].lstrip("'")
    if param is None or not isinstance(param.type, click.Choice) or typed == error.message:
        return []
    from fanfold.text.spelling import nearest

    near = nearest(typed, param.type.choices)
    return [near] if near else []


def _usage_code(error: object) -> str:
    known = {
        "NoSuchOption": "usage.unknown_option",
        "MissingParameter": "usage.missing_argument",
        "BadParameter": "usage.bad_value",
        "BadOptionUsage": "usage.bad_option",
        "BadArgumentUsage": "usage.bad_argument",
    }
    return known.get(type(error).__name__, "usage")


def _say_error(failure: FanfoldError, refuse_colour: bool) -> None:
    from fanfold.cli.terminal.output import paint, plain, tell, wants_colour

    colour = wants_colour(sys.stderr, refuse_colour)
    rendered = getattr(failure, "rendered", None)
    if rendered is not None:  # a refused recipe: its diagnostics say it all
        tell(rendered(colour))
        return
    head = paint(f"error[{failure.code}]", "red", colour)
    tell(f"{head}: {plain(failure.message)}\n")
    if failure.hint:
        tell(f"{paint('hint', 'cyan', colour)}: {plain(failure.hint)}\n")


def reader_left() -> int:
    """`fanfold list | head -1`: the reader has what it wanted, so this is no failure."""
    from fanfold.cli.terminal.output import write_nowhere

    write_nowhere(sys.stdout)
    return EXIT_OK
