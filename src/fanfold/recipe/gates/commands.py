"""Gates that run a program: it passes when that ends with status 0."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from fanfold.kernel.plan import Step
from fanfold.recipe.checks.commands import read_arguments
from fanfold.recipe.checks.references import TextPlace
from fanfold.recipe.checks.unit import Unit
from fanfold.recipe.drafts.draft import Draft
from fanfold.recipe.gates.gate import VERIFY, Gate, Judged
from fanfold.recipe.language.syntaxes import COMMAND
from fanfold.recipe.types.command import CommandBody
from fanfold.text.notes import quoted
from fanfold.text.tables.entries import Entries
from fanfold.text.tables.shapes import Key
from fanfold.text.template import literal


class GateCommand(Struct, frozen=True):
    """The command of a gate, and the file of the project that says it, if the recipe does not."""

    run: tuple[str, ...] = ()
    file: str = ""


class CommandGate(Gate[GateCommand]):
    """`tests` and `lint` may leave the command to the project; a plain `command` says which."""

    keys = (Key("run", "arguments", "Command of the gate; `tests` and `lint` find the project's own."),)
    until = "steps.verify.output.exit_code == 0"

    def __init__(self, name: Literal["command", "tests", "lint"]) -> None:
        self.name = name

    def check(self, verify: Entries, draft: Draft, unit: Unit) -> GateCommand:
        if self.name == "command" and verify.lacks("run"):
            message = f"a {quoted('command')} gate needs {quoted('run')}"
            unit.notes.error("recipe.missing_key", message, verify.nodes["gate"])
        if "run" not in verify.nodes:
            return GateCommand() if self.name == "command" else self._own(verify, unit)
        assert draft.inner is not None
        names = draft.inner.names - draft.items()
        return GateCommand(read_arguments(verify, unit.references, TextPlace(draft, draft.inner, names)))

    def _own(self, verify: Entries, unit: Unit) -> GateCommand:
        own = unit.around.own_command(self.name)
        if own is not None:
            return GateCommand(tuple(literal(argument) for argument in own.run), own.file)
        message = f"nothing in this project says how to run its {self.name}"
        hint = f"write {quoted('run')} beside {quoted('gate')}, or use another gate"
        unit.notes.error("recipe.missing_key", message, verify.nodes["gate"], hint)
        return GateCommand()

    def step(self, kept: GateCommand, phase: Judged) -> Step:
        # Like every command without a write-set: in a snapshot that is thrown away.
        return phase.step(
            VERIFY,
            CommandBody(run=kept.run),
            description=f"the project's own {self.name}, by {kept.file}" if kept.file else "",
            outputs=COMMAND.output_names,
            workspace_mode="isolated",
        )
