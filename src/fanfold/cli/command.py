"""How commands are declared: click, with the options every command has."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct

from fanfold.cli.terminal.output import plain, say, say_json, tell, wants_colour

if TYPE_CHECKING:
    from fanfold.runtime.operations.project import Project


F = TypeVar("F", bound=Callable[..., Any])


class _Option(click.Option):
    """Its help is one line and needs no cleaning: click would load Python's `inspect` for that, which costs a
    short command a sixth of its time.
    """

    def __init__(self, *names: Any, help: str | None = None, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.help = help


class _Command(click.Command):
    """With an option for help that is made like the others."""

    _help: click.Option | None = None

    def get_help_option(self, ctx: click.Context) -> click.Option:
        del ctx
        if self._help is None:
            said = "Show this message and exit."
            names = ["-h", "--help", "shows_help"]
            self._help = _Option(
                names, is_flag=True, expose_value=False, is_eager=True, help=said, callback=_show_help
            )
        return self._help


def _show_help(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo(context.get_help(), color=context.color)
        context.exit()


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """Declare an option of a command, as `click.option` does."""
    return click.option(*names, cls=_Option, **settings)


PERMISSION = option(
    "--permission",
    type=click.Choice(["read_only", "ask", "auto"]),
    help="What may happen without asking; default: ask.",
)
UNSAFE = option(
    "--unsafe-no-sandbox", is_flag=True, help="Run commands even where this machine cannot confine them."
)


class Invocation(Struct, frozen=True):
    """What the common options said."""

    project: Path
    as_json: bool
    colour: bool
    """On stdout."""
    no_color: bool = False
    """Colour was refused, on stderr too."""

    @contextmanager
    def open_project(self, *, to_read: bool = False) -> Iterator[Project]:
        """The project, put together and closed again. `to_read`: nothing in its store will be changed."""
        from fanfold.wiring import wire  # whoever only asks for help need not wait for it

        project = wire(self.project, to_read=to_read)
        try:
            yield project
        finally:
            project.close()

    def give(self, document: object, text: Callable[[], Iterable[str] | None]) -> None:
        """One document where JSON is wanted, else what `text` gives, or says by itself."""
        if self.as_json:
            say_json(document)
        elif (words := text()) is not None:
            say("".join(words))


def command(
    name: str, *, summary: str, epilog: str = "", says_where: bool = True
) -> Callable[[Callable[..., Any]], click.Command]:
    """Declare a command. Its function gets an `Invocation` first and returns the exit status (None means 0).

    The docstring is the help page; `summary` is its line in `fanfold --help`. `says_where`: the project is
    told where it is not the current folder.
    """

    def declare(function: Callable[..., Any]) -> click.Command:
        def invoke(project: str | None, as_json: bool, no_color: bool, **rest: Any) -> Any:
            quiet = as_json or not says_where
            folder = _project_here(quiet) if project is None else _project_named(project)
            call = Invocation(folder, as_json, wants_colour(sys.stdout, no_color), no_color)
            return function(call, **rest)

        invoke.__doc__ = function.__doc__
        # Where click's decorators collect a function's parameters before it becomes a command.
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


def _project_named(given: str) -> Path:
    from fanfold.trust.location import project_folder

    return project_folder(given, "--project")


def _project_here(quiet: bool) -> Path:
    """The project around the current folder; told, where it is another one."""
    from fanfold.runtime.config import fanfold_home, user_home
    from fanfold.trust.location import find_project

    own_folder, home = fanfold_home(os.environ), user_home(os.environ)
    folder = find_project(Path(), home=home, own_folder=own_folder)
    if folder == Path(os.path.realpath(".")):
        return Path()
    if not quiet:
        tell(f"project {plain(str(folder))}\n")
    return folder
