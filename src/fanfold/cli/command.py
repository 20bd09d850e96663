"""The declaration of commands: click, with the options that all commands have."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import click
import msgspec
from msgspec import Struct

from fanfold.cli.output import (
    notify,
    on_terminal,
    paint,
    plain,
    print_json,
    print_text,
    wants_colour,
    wrap_text,
    write_nowhere,
)
from fanfold.errors import (
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_OK,
    AuthorError,
    BugError,
    FanfoldError,
    WorldError,
)
from fanfold.kernel.plan import JSON, Plan
from fanfold.language.diagnostics import nearest
from fanfold.language.inputs import parse_input_text
from fanfold.project_files import read_named, write_named

if TYPE_CHECKING:
    from fanfold.api.project import Project
    from fanfold.api.run_options import Options

F = TypeVar("F", bound=Callable[..., Any])


class _Option(click.Option):
    """A parameter whose help is one line and used as it is.

    click would load `inspect` to clean it, which takes a sixth of the time of a short command.
    """

    def __init__(self, *names: Any, help: str | None = None, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.help = help


class _Command(click.Command):
    """A command whose --help is declared like its other options."""

    _help: click.Option | None = None

    def get_help_option(self, ctx: click.Context) -> click.Option:
        del ctx
        if self._help is None:
            text = "Show this message and exit."
            names = ["-h", "--help", "shows_help"]
            self._help = _Option(
                names, is_flag=True, expose_value=False, is_eager=True, help=text, callback=_show_help
            )
        return self._help


def _show_help(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo(context.get_help(), color=context.color)
        context.exit()


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """Declare an option of a command, as `click.option` does."""
    return click.option(*names, cls=_Option, **settings)


def flag(name: str) -> str:
    """Return the flag of a field: `max_agents` is `--max-agents`."""
    return "--" + name.replace("_", "-")


def options_from(fields: type[Struct], *names: str) -> Callable[[F], F]:
    """Declare an option for each field of a struct, or for those named, with its type and help."""

    def declare(function: F) -> F:
        for field in reversed(msgspec.structs.fields(fields)):
            if names and field.name not in names:
                continue
            kind, description = get_args(field.type)
            kinds = get_args(kind)
            if get_origin(kind) is Literal:
                takes: Any = click.Choice(kinds)
            else:  # without bounds: click would check them with different messages
                takes = get_args(kinds[0])[0]
            function = option(flag(field.name), type=takes, **description.extra)(function)
        return function

    return declare


SCRIPT = option("--script", metavar="FILE", help="Use scripted agents instead of models.")
UNSAFE = option(
    "--unsafe-no-sandbox", is_flag=True, help="Run commands even if this machine cannot confine them."
)


class Invocation(Struct, frozen=True):
    """The common options of one call, and its output."""

    project: Path
    as_json: bool
    colour: bool
    """Whether stdout gets colour."""
    no_color: bool = False
    """Whether the user switched colour off, on stderr too."""

    @contextmanager
    def open_project(self, *, to_read: bool = False) -> Iterator[Project]:
        """Open the project and close it at the end. `to_read`: its store will not be changed."""
        from fanfold.wiring import wire  # not needed for help

        project = wire(self.project, to_read=to_read)
        if project.notice:
            notify(f"notice[state.moved]: {plain(project.notice)}\n")
        try:
            yield project
        finally:
            project.close()

    def require_yes(self, question: str, refused: FanfoldError, otherwise: str) -> None:
        """Ask a user at a terminal; raise `refused` if there is none, and with `otherwise` after a no."""
        if self.as_json or not on_terminal():
            raise refused
        if not click.confirm(question, err=True):
            raise WorldError(refused.code, otherwise, exit_status=refused.exit_status)

    def give(self, document: object, text: Callable[[], Iterable[str] | None]) -> None:
        """Print the document as JSON if requested, else the text that `text` yields or prints."""
        if self.as_json:
            print_json(document)
        elif (words := text()) is not None:
            print_text("".join(words))


def command(
    name: str, *, summary: str, epilog: str = "", prints_project: bool = True
) -> Callable[[Callable[..., Any]], click.Command]:
    """Declare a command. Its function gets an `Invocation` first and returns the exit status (None means 0).

    The docstring is the help page; `summary` is its line in `fanfold --help`. `prints_project`: the project
    is printed if it is not the current folder.
    """

    def declare(function: Callable[..., Any]) -> click.Command:
        def invoke(project: str | None, as_json: bool, no_color: bool, **rest: Any) -> Any:
            from fanfold.workspace.layout import project_folder  # not needed for help

            quiet = as_json or not prints_project
            folder = _project_here(quiet) if project is None else project_folder(project, "--project")
            call = Invocation(folder, as_json, wants_colour(sys.stdout, no_color), no_color)
            return function(call, **rest)

        invoke.__doc__ = function.__doc__
        # click's decorators collect the parameters of a function here.
        invoke.__dict__["__click_params__"] = getattr(function, "__click_params__", [])
        wrapped = option("--no-color", is_flag=True, help="Plain text, also on a terminal.")(invoke)
        wrapped = option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")(wrapped)
        wrapped = option(
            "--project", metavar="DIR", help="The project's folder; default: looked for from here upward."
        )(wrapped)
        return click.command(
            name,
            _Command,
            short_help=summary,
            epilog=epilog or None,
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        )(wrapped)

    return declare


def _project_here(quiet: bool) -> Path:
    """Return the project around the current folder; print it if it is another folder."""
    from fanfold.engine.config import fanfold_home, user_home
    from fanfold.workspace.layout import find_project

    own_folder, home = fanfold_home(os.environ), user_home(os.environ)
    folder = find_project(Path(), home=home, own_folder=own_folder)
    if folder == Path(os.path.realpath(".")):
        return Path()
    if not quiet:
        notify(f"project {plain(str(folder))}\n")
    return folder


# -----------------------------------------------------------------------------------------------------------
# What the user sees when a command cannot do what was asked.
#
# Every failure has the shape of `fanfold.errors`: `error[code]: message` and a hint on stderr, or with
# `--json` one document on stdout; click's own usage errors and our bugs included.

REPORT_HINT = "this is a bug in Fanfold: please report it with the command and what FANFOLD_DEBUG=1 shows"


def report(error: BaseException, arguments: list[str]) -> int:
    """Print `error` for the user; return the exit status."""
    if isinstance(error, BrokenPipeError):
        return end_quietly()
    if os.environ.get("FANFOLD_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        notify("interrupted\n")
        return EXIT_INTERRUPTED
    failure = _as_failure(error)
    complete_hint(failure, arguments)
    try:
        if wants_json(arguments):
            from fanfold.api.approvals import error_document

            print_json(error_document(failure))
        else:
            _print_error(failure, refuse_colour="--no-color" in arguments)
        sys.stdout.flush()
    except OSError as unreported_ends:  # there is no reader, or no room
        end_quietly()
        if not isinstance(unreported_ends, BrokenPipeError):
            _print_error(failure, refuse_colour="--no-color" in arguments)
    return failure.exit_status


def complete_hint(failure: FanfoldError, arguments: list[str]) -> None:
    """Return the complete command line if the hint of the error only adds an option to this one."""
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
    """Return whether the command line contains --json, even if the rest is invalid."""
    words = arguments[: arguments.index("--")] if "--" in arguments else arguments
    pairs = pairwise(words)
    return "--json" in words or "--format=json" in words or ("--format", "json") in pairs


def unknown_command(name: str, known: Iterable[str], noun: str = "") -> AuthorError:
    """Return the error for an unknown command, with the nearest one. `noun`: the group of the command."""
    near = nearest(name, tuple(known))
    path = f"{noun} {near}".lstrip()
    hint = f'did you mean "fanfold {path}"?' if near else "fanfold --help lists the commands"
    if name.endswith((".yaml", ".yml")):
        file = shlex.quote(name)
        hint = f"to check or run a recipe: fanfold check {file}, fanfold run {file}"
    missing = f'there is no command "{name}"' + (f" in the group {noun}" if noun else "")
    return AuthorError("usage.unknown_command", missing, hint=hint)


def unknown_option(word: str) -> AuthorError:
    """Return the error for an unknown option before the command."""
    return AuthorError(
        "usage.unknown_option",
        f'"{word}" is not an option of fanfold',
        hint="options of a command come after its name; fanfold --help lists the commands",
    )


def _as_failure(error: BaseException) -> FanfoldError:
    if isinstance(error, FanfoldError):
        return error
    if isinstance(error, click.ClickException):
        return _usage_failure(error)
    if isinstance(error, OSError) and error.strerror:
        name = f": {error.filename}" if error.filename else ""
        return WorldError("world.io", f"{error.strerror}{name}")
    kind = type(error).__name__
    return BugError("internal", f"{kind}: {str(error)[:300]}", hint=REPORT_HINT, exit_status=EXIT_INTERNAL)


def _usage_failure(error: click.ClickException) -> FanfoldError:
    if not isinstance(error, click.UsageError):
        return AuthorError("usage", error.format_message())
    message = " ".join(error.format_message().rstrip(".").split())
    context = error.ctx
    hint = (
        f"{context.command_path} --help shows how it is used"
        if context
        else "fanfold --help lists the commands"
    )
    message = re.sub("is not a valid integer( range)?", "is not an integer", message)
    message = re.sub("is not a valid float( range)?", "is not a number", message)
    near = getattr(error, "possibilities", None)
    param, typed = getattr(error, "param", None), error.message.partition("' is not one of ")[0].lstrip("'")
    if not near and param and isinstance(param.type, click.Choice) and typed != error.message:
        near = [choice for choice in [nearest(typed, param.type.choices)] if choice]
    if near:
        # click appends its own question to the message; ours stands in the hint line.
        message = message.partition(" Did you mean")[0].partition(" (Possible")[0].rstrip(".")
        hint = f"did you mean {' or '.join(sorted(near))}?"
    known = {
        "NoSuchOption": "usage.unknown_option",
        "MissingParameter": "usage.missing_argument",
        "BadParameter": "usage.bad_value",
        "BadOptionUsage": "usage.bad_option",
        "BadArgumentUsage": "usage.bad_argument",
    }
    return AuthorError(known.get(type(error).__name__, "usage"), message, hint=hint)


def _print_error(failure: FanfoldError, refuse_colour: bool) -> None:
    colour = wants_colour(sys.stderr, refuse_colour)
    rendered = getattr(failure, "rendered", None)
    if rendered is not None:  # a refused recipe: its diagnostics say it all
        notify(rendered(colour))
        return
    head = f"error[{failure.code}]"
    text = wrap_text(f"{head}: {plain(failure.message)}\n", "  ", sys.stderr)
    notify(text.replace(head, paint(head, "red", colour), 1))
    if failure.hint:
        notify(f"{paint('hint', 'cyan', colour)}: {plain(failure.hint)}\n")


def end_quietly() -> int:
    """End quietly after the reader closed the pipe (`fanfold list | head -1`), which is not a failure."""
    write_nowhere(sys.stdout)
    return EXIT_OK


# -----------------------------------------------------------------------------------------------------------
# Inputs as people give them: `-i name=value` and `--inputs FILE`.

MAX_FILE_BYTES = 16 * 1024 * 1024


def given_inputs(project: Path, plan: Plan, pairs: Sequence[str], file: str | None) -> dict[str, JSON]:
    """Return the inputs that the user passed, by name, without checking them."""
    given: dict[str, JSON] = {} if file is None else _read_inputs(project, Path(file))
    declared = {one.name: one for one in plan.inputs}
    seen: set[str] = set()
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            hint = f'for example -i {plan.inputs[0].name if plan.inputs else "name"}="some text"'
            raise AuthorError("usage.bad_input", f"-i {pair} is not NAME=VALUE", hint=hint)
        if name in seen:
            raise AuthorError("usage.bad_input", f'input "{name}" is given twice', hint="keep one of them")
        seen.add(name)
        if any("\ud800" <= char <= "\udfff" for char in text):  # bytes that are not UTF-8 arrive so
            raise AuthorError("usage.bad_input", f'input "{name}" is not UTF-8 text')
        given[name] = parse_input_text(declared[name], text) if name in declared else text
    return given


def read_file(project: Path, file: Path, most: int, flag: str = "", code: str = "usage.bad_file") -> bytes:
    """Return at most one byte more than `most` of a file; errors name the flag that named it."""
    try:
        return read_named(project, file, most + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a file name"
        there = "\0" not in str(file) and not file.is_absolute() and (project / file).is_file()
        hint = f"from here it is {os.path.relpath(project / file)}" if there else ""
        raise AuthorError(code, f"{flag} {file} cannot be read: {reason}".lstrip(), hint=hint) from None


def write_file(
    project: Path, file: Path, text: str, flag: str = "", hints: Mapping[type[OSError], str] | None = None
) -> None:
    """Write a file that the user named; with `hints` for errors, an existing file is not replaced."""
    try:
        write_named(project, file, text.encode("utf-8", "replace"), replace=hints is None)
    except OSError as error:
        message = f"{flag} {file} cannot be written: {error.strerror}".lstrip()
        raise AuthorError("usage.bad_file", message, hint=(hints or {}).get(type(error), "")) from None


def read_text_file(project: Path, file: Path, flag: str, code: str = "usage.bad_file") -> bytes:
    """Return the content of a file of limited size that a flag names."""
    data = read_file(project, file, MAX_FILE_BYTES, flag, code)
    if len(data) > MAX_FILE_BYTES:
        raise AuthorError(code, f"{flag} {file} is larger than 16 MiB")
    return data


def read_text(project: Path, file: Path, flag: str) -> str:
    """Return the text of a file that a flag names."""
    try:
        return read_text_file(project, file, flag).decode()
    except UnicodeDecodeError:
        raise AuthorError("usage.bad_file", f"{flag} {file} is not UTF-8 text") from None


def read_script(project: Path, file: Path) -> str:
    """Return the text of a script; raise now if it contains an error, not when its step starts."""
    from fanfold.agents.script import Script

    data = read_text_file(project, file, "--script", "usage.bad_script")
    return Script.load(data, str(file)).source


def read_options(project: Project, *, reads_script: bool = True, **given: Any) -> Options:
    """Return the options of a run from the flags of a command.

    Without `reads_script` the script is not read: a forecast only needs to know that it exists.
    """
    from fanfold.api.run_options import RunOptions  # most commands start no run

    named = {name: value for name, value in given.items() if value is not None}
    file, unsafe = named.pop("script", None), named.pop("unsafe_no_sandbox", False)
    text = read_script(project.folder, Path(file)) if file is not None and reads_script else file
    options = RunOptions(**named)
    return options.checked(
        project.config, script=text, script_file=file or "", unsafe_no_sandbox=unsafe, spell=flag
    )


def read_value(project: Path, file: Path, flag: str) -> JSON:
    """Return the content of a file: JSON from `.json`, text from any other."""
    data = read_text_file(project, file, flag)
    try:
        return msgspec.json.decode(data) if file.suffix == ".json" else data.decode()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise AuthorError("usage.bad_file", f"{flag} {file} cannot be used: {error}") from None


def _read_inputs(project: Path, file: Path) -> dict[str, JSON]:
    data = read_text_file(project, file, "--inputs", "usage.bad_inputs_file")
    if file.suffix == ".json":
        try:
            value: JSON = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            message = f"--inputs {file} is not valid JSON: {error}"
            raise AuthorError("usage.bad_inputs_file", message) from None
    else:  # by the same careful reader as recipes: no tags, no aliases
        from fanfold.language.tree import plain
        from fanfold.language.yaml_text import TextFormat, parse_yaml

        tree, _, report = parse_yaml(data, str(file), TextFormat(name="inputs file", clean_values=False))
        if (first := report.first_error) is not None:
            place = f"{file}:{first.range.start.line}:{first.range.start.column}"
            raise AuthorError("usage.bad_inputs_file", f"{place}: {first.message}", hint=first.help)
        value = None if tree is None else plain(tree)
    if not isinstance(value, dict):
        message = f"--inputs {file} must contain a map of input names to values"
        hint = 'for example {"topic": "solid-state batteries"}'
        raise AuthorError("usage.bad_inputs_file", message, hint=hint)
    return value
