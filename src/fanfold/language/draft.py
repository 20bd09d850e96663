"""Drafts: the steps of a recipe between reading and planning, and their scopes.

Rules
* A scope is the top level of a file, or the body of a group or phase. An id is unique in its scope. If an
  inner step repeats an outer id, the nearest scope is used.
* A draft has everything that could be read. Unreadable parts were reported, and later passes must not report
  them again in other words.
* Edges connect steps of one scope. A reference from inside a group to a step outside adds the edge to the
  group, so `climb` finds the ancestor in the scope of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, cast

from msgspec import Struct, field

from fanfold.errors import FanfoldError
from fanfold.kernel.plan import EVERYTHING, JSON, Input, Output, Posture, RetryPolicy, Value, WorkspaceMode
from fanfold.language import tree
from fanfold.language.diagnostics import Span
from fanfold.language.keys import (
    ANYTHING,
    TEXT,
    Anything,
    Known,
    ListOf,
    ObjectOf,
    StepSyntax,
    described,
    known_from_schema,
    known_from_type,
)
from fanfold.language.tables import Entries, Notes, quoted
from fanfold.language.tree import Node, Scalar

# -----------------------------------------------------------------------------------------------------------
# The context of a compilation: the known roles, back ends, handlers and other recipes.
#
# They are passed in, because this package must not search for agents or functions itself.


class RoleFacts(Protocol):
    """The properties of a role that a recipe can conflict with."""

    @property
    def read_only(self) -> bool: ...
    @property
    def tools(self) -> tuple[str, ...] | None: ...
    @property
    def prompt_template(self) -> str | None: ...
    @property
    def backend(self) -> str | None: ...
    @property
    def command(self) -> tuple[str, ...]: ...
    @property
    def isolated(self) -> bool: ...


class Roles(Protocol):
    """The roles that steps can name."""

    @property
    def broken(self) -> Mapping[str, str]:
        """Why the file of a role cannot be used, by the role's name."""
        ...

    def names(self) -> Sequence[str]: ...

    def versions(self, name: str) -> Sequence[str]: ...

    def find(self, name: str, version: str | None = None) -> RoleFacts | None:
        """Return the role with that name and version; properties of one version do not apply to another."""
        ...


class Ceilings(Struct, frozen=True):
    """The maximum limits of a recipe; the user's configuration raises them."""

    concurrency: int = 16
    agents: int = 500
    slots: int = 4
    """How many steps run at once by default."""

    @property
    def highs(self) -> dict[str, int]:
        """Return the maximum of each key with such a limit, wherever a recipe uses it."""
        return {"max_concurrency": self.concurrency, "max_agents": self.agents}


class FoundRecipe(Struct, frozen=True):
    """A recipe that was found: its bytes and its source."""

    data: bytes
    file: str
    origin: str = "path"
    """`path`, `project`, `user` or `builtin`."""
    shadowed: tuple[str, ...] = ()
    """Files of the same name in folders that come later."""


class Recipes(Protocol):
    """The source of sub-workflows, usually `library.Library`."""

    def find(self, ref: str, relative_to: str | None = None) -> FoundRecipe:
        """Return the recipe for a reference; raises NotFoundError with a hint."""
        ...


class OwnCommand(Struct, frozen=True):
    """The command that tests or lints a project, and the file that defines it."""

    run: tuple[str, ...]
    file: str


class CompileContext(Struct, frozen=True):
    """Everything outside the file that determines whether the file is valid."""

    roles: Roles
    is_handler: Callable[[str], bool]
    handler_names: Callable[[], Sequence[str]]
    library: Recipes
    ceilings: Ceilings = field(default_factory=Ceilings)
    backend_problem: Callable[[str, Sequence[str]], FanfoldError | None] = field(default=lambda *_: None)
    """Returns why that agent back end cannot work for a role with that `command`; None if it can."""
    own_command: Callable[[str], OwnCommand | None] = field(default=lambda _: None)
    """Returns the project's own command for a gate (`tests`, `lint`); None if there is none."""
    is_tool: Callable[[str], bool] = field(default=lambda _: True)
    """Whether our agents have a tool with that name."""
    tool_names: Callable[[], Sequence[str]] = field(default=lambda: ())


# -----------------------------------------------------------------------------------------------------------
# Roles in steps: `name` or `name@version`, known or refused.


class UnknownRole(Struct, frozen=True):
    """Replaces an unknown role, so that the rest of its step can be checked."""

    read_only: bool = False
    tools: tuple[str, ...] | None = None
    prompt_template: str | None = None
    backend: str | None = None
    command: tuple[str, ...] = ()
    isolated: bool = False


UNKNOWN = UnknownRole()


class NamedRole(Struct, frozen=True):
    """A role as a step names it, and its properties."""

    name: str
    version: str | None
    facts: RoleFacts
    known: bool = True


def find_role(
    text: str, at: Scalar | None, around: CompileContext, notes: Notes, otherwise: Span = (0, 0)
) -> NamedRole:
    """Return the role; an unknown role is reported at `at`, unless it is a default.

    A role with an unusable file is always reported, at `otherwise` if `at` is None.
    """
    name, marked, version = text.partition("@")
    roles = around.roles
    facts = roles.find(name)
    if name in roles.broken:  # another role with that name is not the intended one
        why = f"the file of role {quoted(name)} cannot be used: {roles.broken[name]}"
        place = otherwise if at is None else at.span(0, len(name))
        notes.error("recipe.broken_role", why, place, "correct the file, or remove it")
        return NamedRole(name, None, facts or UNKNOWN, known=False)
    if facts is None:
        if at is not None:
            hint = notes.did_you_mean(name, roles.names()) or "`fanfold agents` lists the roles known here"
            where = at.span(0, len(name))
            notes.error("recipe.unknown_role", f"there is no role {quoted(name)}", where, hint)
        return NamedRole(name, None, UNKNOWN, known=False)
    found = None
    if marked:
        versions = roles.versions(name)
        found = next(
            (candidate for candidate in versions if candidate.removeprefix("v") == version.removeprefix("v")),
            None,
        )
        if found is None:
            if at is not None:
                known = ", ".join(versions)
                hint = f"there are versions {known}" if known else "the role has no versions; leave out the @"
                message = f"role {quoted(name)} has no version {quoted(version)}"
                notes.error("recipe.unknown_role", message, at, hint)
            return NamedRole(name, version, facts)
        facts = roles.find(name, found) or facts
    # Refuse a role whose back end is unusable here, before the step starts.
    problem = (
        None if at is None or facts.backend is None else around.backend_problem(facts.backend, facts.command)
    )
    if at is not None and problem is not None:
        message, where = f"role {quoted(name)}: {problem.message}", at.span(0, len(name))
        notes.error("recipe.unknown_backend", message, where, problem.hint)
    return NamedRole(name, found, facts)


# -----------------------------------------------------------------------------------------------------------
# The results of checking a step, in the form for the plan.


class PhaseParts(Struct):
    """The parts of a phase that are not steps yet."""

    review: Entries | None = None
    verify: Entries | None = None
    converge: Entries | None = None
    reviewer: NamedRole | None = None
    gate: str = ""
    judge: object = None
    """The settings of the gate."""


class Facts(Struct):
    """Filled in by the passes; missing keys of a step keep their defaults."""

    depends_on: tuple[str, ...] = ()
    when: str | None = None
    for_each: str | None = None
    inline: bool = False
    """Whether later steps see its failure instead of an output."""
    until: str = ""
    inputs: dict[str, Value] = field(default_factory=dict)
    output: Output | None = None
    output_schema: JSON = None
    retry: RetryPolicy | None = None
    read_set: tuple[str, ...] = EVERYTHING
    write_set: tuple[str, ...] = ()
    templated_sets: bool = False
    posture: Posture = "read_only"
    workspace_mode: WorkspaceMode = "shared"
    role: NamedRole | None = None
    body: Struct | None = None
    """The settings of a leaf step from the keys of its type."""
    workflow: str = ""
    """Key of the sub-workflow in the root plan."""
    child_writes: bool = False
    """Whether something in the sub-workflow may write."""
    child_claims: str = ""
    """Path of the first step in the sub-workflow that declares a `write_set`."""
    phase: PhaseParts = field(default_factory=PhaseParts)
    output_names: dict[str, Known] | None = None
    gives: Callable[[], Known] | None = None
    """Returns the known type of its output, if it depends on other steps or on a sub-workflow."""
    known_output: Known | None = None


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
        """Names inside besides `inputs` and `steps`: `item`, `index`, `iteration` …"""
        self.items = items
        """The part of `names` that a glob can use, because they are known before an instance starts."""
        self.drafts: list[Draft] = []
        self.by_id: dict[str, Draft] = {}
        self.by_expression_name: dict[str, Draft] = {}

    def outward(self) -> Iterator[DraftScope]:
        """Yield this scope and the scopes around it."""
        scope: DraftScope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer

    def find(self, step_id: str) -> Draft | None:
        """Return the step with an id: in this scope, or in the nearest outer one."""
        return next((scope.by_id[step_id] for scope in self.outward() if step_id in scope.by_id), None)

    def find_in_expression(self, name: str) -> Draft | None:
        """Return the step for a name in an expression, with `_` for `-`."""
        steps = (scope.by_expression_name.get(name) for scope in self.outward())
        return next((step for step in steps if step is not None), None)

    @property
    def last(self) -> Draft | None:
        return self.drafts[-1] if self.drafts else None


class TextSpan(Struct, frozen=True):
    """Characters `start` to `end` of a text.

    Their position in the file is computed on demand, because it needs a pass through the text and most
    recipes are correct.
    """

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
        """The syntax of its type; None if the type is unknown."""
        self.phase = False
        self.inner: DraftScope | None = None
        self.repeat: Entries | None = None
        self.item_name: str | None = None
        """Name of the item if the step is a map."""
        self.narrowed = False
        """Whether something around it is `read_only`."""
        self.written: dict[str, Scalar] = {}
        """Edges of `depends_on`."""
        self.implied: dict[str, tuple[TextSpan, Draft]] = {}
        """Edges of references: the position of the first one, and its step."""
        self.placed: set[str] = set()
        """Steps whose output the prompt or the inputs of an agent step insert themselves."""
        self.readers: dict[str, None] = {}
        """Steps of its scope that refer to it; "" is the output or the gate around it."""
        self.used = False
        """Whether another step, an expression or an output refers to it."""
        self.facts = Facts()

    @property
    def type(self) -> str | None:
        return self.syntax.name if self.syntax is not None else None

    @property
    def at(self) -> Node | Span:
        """The position of the step for messages: its id, or its start."""
        return self.entries.nodes.get("id") or self.entries.head()

    def names(self) -> frozenset[str]:
        """Return the names that the step's own fields can use."""
        names = self.scope.names
        if self.item_name is not None:
            names |= {self.item_name, "index"}
        if self.repeat is not None:
            names |= {"iteration", "feedback"}
        return names

    def items(self) -> frozenset[str]:
        """Return the names that the step's globs can use."""
        return self.scope.items | ({self.item_name, "index"} if self.item_name is not None else NO_NAMES)

    def climb(self, scope: DraftScope) -> Draft | None:
        """Return the step itself or the group around it in `scope`; None if the scope is inside."""
        return next((draft for draft in self.outward() if draft.scope is scope), None)

    def outward(self) -> Iterator[Draft]:
        """Yield this step and the groups around it."""
        draft: Draft | None = self
        while draft is not None:
            yield draft
            draft = draft.scope.owner


# -----------------------------------------------------------------------------------------------------------
# The type of a step's output that is known before the run, to check paths into it.
#
# Only certain facts are used: text has no fields, a map returns a list, `outputs` without a schema names all
# fields, an approval and a phase have fixed fields. Everything else can be any type, and a path into it is
# checked during the run.

_COUNTS = ("length", "size", "count")
"""Names for the number of items in other languages."""


def declared_names(draft: Draft) -> dict[str, Known]:
    """Return the names of `outputs`, in order."""
    if (names := draft.facts.output_names) is None:
        names = {item.text: cast(Known, ANYTHING) for item in draft.entries.scalars("outputs")}
        draft.facts.output_names = names
    return names


def output_of(draft: Draft) -> Known:
    """Return the known type of a step's output, for a step that refers to it."""
    if (known := draft.facts.known_output) is None:
        draft.facts.known_output = ANYTHING  # for a cycle of steps that refer to each other
        known = single_output(draft)
        # A phase passes its `for_each` to its tasks: the phase itself is no map.
        if draft.item_name is not None and not draft.phase:
            # A failed item has `{"error": …}` in its place, whatever the type of the others.
            known = ListOf(ANYTHING if draft.facts.inline else known)
        draft.facts.known_output = known
    return known


def single_output(draft: Draft) -> Known:
    """Return the known type of the output for one item and one round."""
    entries = draft.entries
    if draft.phase:
        tasks = draft.inner.drafts if draft.inner is not None else []
        return ObjectOf({"tasks": ObjectOf({task.id: output_of(task) for task in tasks}), "summary": TEXT})
    if not entries.lacks("output_schema") or draft.syntax is None:
        schema = entries.nodes.get("output_schema")
        return known_from_schema(tree.plain(schema)) if schema is not None else ANYTHING
    if not entries.lacks("outputs"):
        return ObjectOf(declared_names(draft)) if "outputs" in entries.nodes else ANYTHING
    if draft.facts.gives is not None:
        return draft.facts.gives()
    if draft.inner is not None:
        written = draft.entries.nodes.get("output")
        if isinstance(written, tree.Mapping):
            return ObjectOf({word.text: ANYTHING for word, _ in written.entries})
        last = draft.inner.last
        if draft.entries.has("output") or last is None:
            return ANYTHING
        return output_of(last)
    return draft.syntax.gives_by(entries) if draft.syntax.gives_by is not None else draft.syntax.gives


def why_not_into(declared: Input | None, parts: tuple[str | int, ...]) -> tuple[str, str] | None:
    """Return why a path into an input is impossible (problem, hint), or None if it is possible."""
    known = known_from_type(declared.type, declared.enum) if declared is not None else ANYTHING
    if declared is None or not parts or isinstance(known, Anything | ObjectOf):
        return None
    name = f"inputs.{declared.name}"
    if not isinstance(known, ListOf):
        return f"{name} is {described(known)} and has no parts", ""
    if not isinstance(parts[0], str):
        return None
    counts = parts[0] in _COUNTS
    return (
        f"{name} is a list",
        f"size({name}) says how many it has" if counts else f"write {name}[0] for the first item",
    )


def why_not(known: Known, parts: tuple[str | int, ...], notes: Notes) -> tuple[str, str] | None:
    """Return why a path into an output is impossible (problem, hint), or None if it is possible."""
    for part in parts:
        if isinstance(known, Anything):
            return None
        if not isinstance(known, ListOf | ObjectOf):
            hint = "give the step an `output_schema` or `outputs`"
            return f"its output is {described(known)} and has no parts", hint
        if isinstance(known, ListOf):
            if isinstance(part, str):
                hint = "size(…) is their number" if part in _COUNTS else "write [0] for the first item"
                return f"its output is a list and has no field {quoted(part)}", hint
            known = known.element
            continue
        if not isinstance(part, str):
            return "its output is an object, not a list", "name a field"
        if part not in known.fields and known.open:
            return None
        if part not in known.fields:
            hint = notes.did_you_mean(part, known.fields) or "it has " + ", ".join(list(known.fields)[:20])
            return f"its output has no field {quoted(part)}", hint
        known = known.fields[part]
    return None


def unnamed_field(known: Known, parts: tuple[str | int, ...]) -> tuple[str, dict[str, Known]] | None:
    """Return the first field of a path that a schema allows but does not name, and the named fields."""
    for part in parts:
        if isinstance(known, ObjectOf) and isinstance(part, str):
            if part not in known.fields:
                return (part, known.fields) if known.open and known.fields else None
            known = known.fields[part]
        elif isinstance(known, ListOf) and isinstance(part, int):
            known = known.element
        else:
            return None
    return None
