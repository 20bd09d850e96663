"""The kinds of gates there are, and the keys of `verify` that follow from the list."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fanfold.recipe.gates.approval import ApprovalGate
from fanfold.recipe.gates.commands import CommandGate
from fanfold.recipe.gates.critic import CriticGate
from fanfold.recipe.gates.gate import Gate
from fanfold.recipe.language.keys import VERIFY_KEYS
from fanfold.text.tables.shapes import Key, Shape, shape


class GateTable:
    """Gates by name, in the order the reference names them."""

    def __init__(self, *gates: Gate[Any]) -> None:
        self.gates = {gate.name: gate for gate in gates}
        self.shape = self._shape()
        """All keys of `verify`."""

    def add(self, gate: Gate[Any]) -> None:
        """Make one more kind known."""
        self.gates[gate.name] = gate
        self.shape = self._shape()

    def _shape(self) -> Shape:
        own: dict[str, Key] = {}
        for gate in self.gates.values():
            for key in gate.keys:
                others = own[key.name].only if key.name in own else ()
                own[key.name] = replace(key, only=(*others, gate.name))
        gate_key, *rest = VERIFY_KEYS
        return shape(
            "verify",
            "The gate of a phase. One that cannot be evaluated fails, never passes.",
            replace(gate_key, words=tuple(self.gates)),
            *own.values(),
            *rest,
        )


GATES = GateTable(
    CommandGate("command"), CommandGate("tests"), CommandGate("lint"), CriticGate(), ApprovalGate()
)
