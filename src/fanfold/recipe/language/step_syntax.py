"""How steps of one type are written, as data: everything the compiler must know of a type that is no code.

Rules
* A step is of the type whose deciding key it has. Some types can also be told by a weaker key (`agent`), and
  then do without the deciding one.
* Of the keys that all types share some make sense only where a step has attempts, files or data; `takes`
  names those that a type has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Struct

from fanfold.recipe.language.keys import STEP_KEYS, STEP_WORDS, TAKEN_BY_SOME
from fanfold.recipe.language.known_outputs import ANYTHING, Known
from fanfold.text.tables.entries import Entries
from fanfold.text.tables.shapes import Key, Shape, shape

ATTEMPT_KEYS = TAKEN_BY_SOME - {"inputs"}
"""What steps with attempts of their own take: they can be retried, cached, and touch a workspace."""


class StepSyntax(Struct, frozen=True, kw_only=True):
    name: str
    keys: tuple[Key, ...]
    """Its own keys."""
    decided_by: tuple[str, ...]
    """Those that make a step one of this type."""
    hinted_by: tuple[str, ...] = ()
    """Those that do when no other key says what the step does."""
    takes: frozenset[str] = frozenset()
    """Those of the common keys that not every type has."""
    instead: Mapping[str, str] = {}
    """What to do instead of writing a key that means nothing here."""
    workspace: Literal["own", "scratch", "project", "claims", "none"] = "none"
    """See `kernel.plan.Traits`."""
    writes: bool = False
    """It may write although it declares no `write_set`."""
    answers: bool = False
    """When it only reads it is there for its output: one that nobody uses is worth a warning."""
    gives: Known = ANYTHING
    """Its output, when it declares neither a schema nor names."""
    gives_by: Callable[[Entries], Known] | None = None
    """The same, where it depends on what the step says."""
    output_names: tuple[str, ...] = ()
    """All that `outputs` may name without a schema; empty: anything."""

    @property
    def attempts(self) -> bool:
        return "retry" in self.takes


def step_shape(types: Mapping[str, StepSyntax]) -> Shape:
    """The table of a step's keys: those of every step, then those of each type."""
    every = [_with_types(key, types) for key in STEP_KEYS]
    own: dict[str, Key] = {}
    for syntax in types.values():
        for key in syntax.keys:
            known = own.get(key.name)
            if known is None:
                own[key.name] = _only(key, syntax.name)
                continue
            assert known.kind == key.kind, f"{known.only} and {syntax.name} give {key.name} another form"
            own[key.name] = _only(known, *known.only, syntax.name)
    doc = "One step. Its type follows from the key that says what it does."
    return shape("step", doc, *every, *own.values(), instead=STEP_WORDS)


def _with_types(key: Key, types: Mapping[str, StepSyntax]) -> Key:
    from msgspec.structs import replace

    if key.name == "type":
        return replace(key, words=tuple(types))
    if key.name not in TAKEN_BY_SOME:
        return key
    return _only(key, *(syntax.name for syntax in types.values() if key.name in syntax.takes))


def _only(key: Key, *types: str) -> Key:
    from msgspec.structs import replace

    return replace(key, only=types)
