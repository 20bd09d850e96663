"""Command steps: a program and its arguments, or a script for the shell."""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from fanfold.recipe.checks.commands import (
    read_arguments,
    read_environment,
    read_own_variables,
    read_script,
)
from fanfold.recipe.language.known_outputs import TEXT
from fanfold.recipe.language.step_syntax import ATTEMPT_KEYS, StepSyntax
from fanfold.recipe.types.body import Body
from fanfold.recipe.types.grammar import LeafGrammar, Written
from fanfold.text.tables.shapes import Key

SYNTAX = StepSyntax(
    name="command",
    decided_by=("run", "shell"),
    keys=(
        Key("run", "arguments", "Command as a list of arguments; text is split, never given to a shell."),
        Key(
            "shell",
            "text",
            "Script for `sh -c`; its `inputs` are variables of that name, never part of its text.",
        ),
        Key("env", "variables", "Environment variables for the command."),
        Key(
            "env_vars",
            "texts",
            "Names of variables of the user's environment; their own configuration must list them.",
        ),
        Key("network", "boolean", "Allow the command to use the network.", "false"),
    ),
    takes=ATTEMPT_KEYS | {"inputs"},
    workspace="scratch",
    gives=TEXT,
    output_names=("exit_code", "stdout", "stderr"),
)


class CommandBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = SYNTAX
    run: tuple[str, ...] = ()
    """Argument templates; one argument stays one argument. Empty where there is a script instead."""
    shell: str = ""
    """A script instead of arguments. The step's inputs are its variables."""
    env: dict[str, str] = field(default_factory=dict)
    env_vars: tuple[str, ...] = ()
    network: bool = False


class CommandGrammar(LeafGrammar[CommandBody]):
    body = CommandBody

    def read(self, step: Written) -> CommandBody:
        entries, references, place = step.entries, step.unit.references, step.place
        return CommandBody(
            run=read_arguments(entries, references, place) if "run" in entries.nodes else (),
            shell=read_script(entries, references.notes),
            env=read_environment(entries, references, place),
            env_vars=read_own_variables(entries, references.notes),
            network=entries.flag("network"),
        )
