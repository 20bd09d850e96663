"""Drafts: the steps of a recipe between reading and planning, and the scopes they live in.

Rules
* A scope is the top level of a file, or the body of a group or phase. An id is unique in its scope; the
  nearest scope wins when an inner step repeats an outer id.
* A draft keeps whatever could be read. What could not be read was reported; nothing later may report it
  again in other words.
* Edges join steps of one scope. A reference from inside a group to a step outside puts the edge on the
  group, so `climb` looks for the ancestor that lives where the target lives.
"""

from __future__ import annotations

from msgspec import Struct

from fanfold.recipe.drafts.facts import Facts
from fanfold.recipe.language.step_syntax import StepSyntax
from fanfold.text.diagnostics import Span
from fanfold.text.tables.entries import Entries
from fanfold.text.trees.tree import Scalar

NO_NAMES: frozenset[str] = frozenset()


class DraftScope:
    """Steps that see each other."""

    __slots__ = ("by_expression_name", "by_id", "drafts", "items", "names", "outer", "owner")

    def __init__(
        self,
        owner: Draft | None = None,
        outer: DraftScope | None = None,
        names: frozenset[str] = NO_NAMES,
        items: frozenset[str] = NO_NAMES,
    ) -> None:
        self.owner = owner
        self.outer = outer
        self.names = names
        """What may be named inside besides `inputs` and `steps`: `item`, `index`, `iteration` …."""
        self.items = items
        """Those of `names` that a glob may hold: known before an instance starts."""
        self.drafts: list[Draft] = []
        self.by_id: dict[str, Draft] = {}
        self.by_expression_name: dict[str, Draft] = {}

    def find(self, step_id: str) -> Draft | None:
        """The step meant by an id here: this scope's, or the nearest outer one's."""
        scope: DraftScope | None = self
        while scope is not None:
            if (draft := scope.by_id.get(step_id)) is not None:
                return draft
            scope = scope.outer
        return None

    def find_in_expression(self, name: str) -> Draft | None:
        """The same for a name as expressions spell it, with `_` for `-`."""
        scope: DraftScope | None = self
        while scope is not None:
            if (draft := scope.by_expression_name.get(name)) is not None:
                return draft
            scope = scope.outer
        return None

    @property
    def last(self) -> Draft | None:
        return self.drafts[-1] if self.drafts else None


class Words(Struct, frozen=True):
    """Characters `start` to `end` of a text. Where they stand in the file is found out when someone asks,
    because that costs a walk through the text and most recipes are right."""

    node: Scalar
    start: int
    end: int

    def span(self) -> Span:
        return self.node.span(self.start, self.end)


class Draft:
    """One step as far as it could be read."""

    __slots__ = (
        "dependents", "entries", "facts", "id", "implied", "inner", "item_name", "narrowed", "order", "path",
        "phase", "placed", "readers", "reads", "repeat", "scope", "syntax", "used", "written",
    )  # fmt: skip

    def __init__(self, step_id: str, entries: Entries, scope: DraftScope, path: str) -> None:
        self.id = step_id
        self.entries = entries
        self.scope = scope
        self.path = path
        self.order = len(scope.drafts)
        self.syntax: StepSyntax | None = None
        """How steps of its type are written; None when the type could not be told."""
        self.phase = False
        self.inner: DraftScope | None = None
        self.repeat: Entries | None = None
        self.item_name: str | None = None
        """Name of the item when the step is a map."""
        self.narrowed = False
        """Something around it says `read_only`."""
        self.written: dict[str, Scalar] = {}
        """Edges of `depends_on`."""
        self.implied: dict[str, tuple[Words, Draft]] = {}
        """Edges of references: where the first one stands, and in which step."""
        self.placed: set[str] = set()
        """Steps whose output the prompt or the inputs of an agent step place themselves."""
        self.readers: dict[str, None] = {}
        """Steps of its scope that refer to it; "" is the output or the gate of what is around it."""
        self.used = False
        """Some other step, an expression or an output looks at it."""
        self.facts = Facts()

    @property
    def type(self) -> str | None:
        return self.syntax.name if self.syntax is not None else None

    def names(self) -> frozenset[str]:
        """What the step's own fields may name."""
        names = self.scope.names
        if self.item_name is not None:
            names |= {self.item_name, "index"}
        if self.repeat is not None:
            names |= {"iteration", "feedback"}
        return names

    def items(self) -> frozenset[str]:
        """What the step's globs may name."""
        return self.scope.items | ({self.item_name, "index"} if self.item_name is not None else NO_NAMES)

    def climb(self, scope: DraftScope) -> Draft | None:
        """The step itself or the group around it that lives in `scope`; None when the scope is inside."""
        draft: Draft | None = self
        while draft is not None and draft.scope is not scope:
            draft = draft.scope.owner
        return draft
