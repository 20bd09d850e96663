"""Command steps: a program and its arguments."""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import field

from fanfold.recipe.checks.commands import read_arguments, read_environment
from fanfold.recipe.language.known_outputs import TEXT
from fanfold.recipe.language.step_syntax import ATTEMPT_KEYS, StepSyntax
from fanfold.recipe.types.body import Body
from fanfold.recipe.types.grammar import LeafGrammar, Written
from fanfold.text.tables.shapes import Key

SYNTAX = StepSyntax(
    name="command",
    decided_by=("run",),
    keys=(
        Key("run", "arguments", "Command as a list of arguments; text is split, never given to a shell."),
        Key("env", "variables", "Environment variables for the command."),
        Key("network", "boolean", "Allow the command to use the network.", "false"),
    ),
    takes=ATTEMPT_KEYS,
    instead={"inputs": "place values in `run` or `env` with {{…}}"},
    workspace="scratch",
    gives=TEXT,
    output_names=("exit_code", "stdout", "stderr"),
)


class CommandBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = SYNTAX
    run: tuple[str, ...] = ()
    """Argument templates; one argument stays one argument. Empty for a `tests` or `lint` gate that
    leaves the choice of command to the host."""
    env: dict[str, str] = field(default_factory=dict)
    network: bool = False
    gate: Literal["command", "tests", "lint"] | None = None


class CommandGrammar(LeafGrammar[CommandBody]):
    body = CommandBody

    def read(self, step: Written) -> CommandBody:
        entries, references, place = step.entries, step.unit.references, step.place
        return CommandBody(
            run=read_arguments(entries, references, place) if "run" in entries.nodes else (),
            env=read_environment(entries, references, place),
            network=entries.flag("network"),
        )
