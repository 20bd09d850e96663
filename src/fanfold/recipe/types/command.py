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
from fanfold.recipe.language.step_syntax import StepSyntax
from fanfold.recipe.language.syntaxes import COMMAND
from fanfold.recipe.types.body import Body
from fanfold.recipe.types.grammar import LeafGrammar, Written


class CommandBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = COMMAND
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
