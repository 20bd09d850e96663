"""Gates that run a program: it passes when that ends with status 0."""

from __future__ import annotations

from typing import Literal

from fanfold.kernel.plan import Step
from fanfold.recipe.checks.commands import read_arguments
from fanfold.recipe.checks.references import TextPlace
from fanfold.recipe.checks.unit import Unit
from fanfold.recipe.drafts.draft import Draft
from fanfold.recipe.gates.gate import VERIFY, Gate, Judged
from fanfold.recipe.types.command import SYNTAX, CommandBody
from fanfold.text.notes import quoted
from fanfold.text.tables.entries import Entries
from fanfold.text.tables.shapes import Key


class CommandGate(Gate[tuple[str, ...]]):
    """`tests` and `lint` may leave the command to the project; a plain `command` says which."""

    keys = (Key("run", "arguments", "Command of the gate; `tests` and `lint` may leave it to the project."),)
    until = "steps.verify.output.exit_code == 0"

    def __init__(self, name: Literal["command", "tests", "lint"]) -> None:
        self.name = name
        self._gate: Literal["command", "tests", "lint"] = name

    def check(self, verify: Entries, draft: Draft, unit: Unit) -> tuple[str, ...]:
        if self.name == "command" and verify.lacks("run"):
            message = f"a {quoted('command')} gate needs {quoted('run')}"
            unit.notes.error("recipe.missing_key", message, verify.nodes["gate"])
        if "run" not in verify.nodes:
            return ()
        assert draft.inner is not None
        names = draft.inner.names - draft.items()
        return read_arguments(verify, unit.references, TextPlace(draft, draft.inner, names))

    def step(self, kept: tuple[str, ...], phase: Judged) -> Step:
        # Like every command without a write-set: in a snapshot that is thrown away.
        return phase.step(
            VERIFY,
            CommandBody(run=kept, gate=self._gate),
            outputs=SYNTAX.output_names,
            workspace_mode="isolated",
        )
