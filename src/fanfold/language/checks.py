"""Checks the common keys of all steps: edges, conditions, inputs, sets, schemas, retries.

Every field is checked separately, so that one mistake hides no other. Valid values are stored in the draft's
`facts` in the form of the plan. The types check their own keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import cast

from msgspec import Struct, field

from fanfold.kernel.claims import owner_of
from fanfold.kernel.paths import GlobError, check_glob, is_in_class, read_glob
from fanfold.kernel.plan import (
    EVERYTHING,
    JSON,
    USUAL_RETRY,
    Input,
    Limits,
    OnFailure,
    Output,
    Plan,
    RetryPolicy,
    WorkspaceMode,
)
from fanfold.language import tree
from fanfold.language.diagnostics import Source
from fanfold.language.draft import CompileContext, Draft, DraftScope, RoleFacts
from fanfold.language.json_text import schema_problem
from fanfold.language.keys import RETRY
from fanfold.language.references import (
    References,
    TextPlace,
    hint_to_owner,
    read_items,
    read_values,
    warn_of_variables,
)
from fanfold.language.tables import Entries, Notes, listed, quoted, read_entries, with_article
from fanfold.language.template import Hole, TemplateError, parse_template
from fanfold.language.tree import Node, Scalar, Sequence, find, plain

# -----------------------------------------------------------------------------------------------------------
# One recipe file while it is being compiled.


class Defaults(Struct):
    """The values for steps that do not set them."""

    agent: str | None = None
    model: str | None = None
    timeout_ms: int | None = None
    retry: RetryPolicy | None = None
    workspace_mode: WorkspaceMode | None = None
    runs_on: str = ""
    on_failure: OnFailure = "skip"


class Unit(Struct):
    """A file, its checked parts, and its plan if it has no errors."""

    source: Source
    notes: Notes
    around: CompileContext
    entries: Entries
    references: References
    inputs: dict[str, Input]
    input_nodes: dict[str, Scalar]
    source_hash: str
    file_name: str = ""
    """The name of the recipe if the file sets none: from the name of the file."""
    narrowed: bool = False
    """Whether the step that calls it is read-only, so that everything in it is."""
    defaults: Defaults = field(default_factory=Defaults)
    limits: Limits = field(default_factory=Limits)
    scope: DraftScope = field(default_factory=DraftScope)
    output: Output | None = None
    phased: bool = False
    calls: list[Draft] = field(default_factory=list)
    """Workflow steps, in the order of declaration."""
    plan: Plan | None = None
    writes: bool = False
    """Whether a step inside may change files."""
    claims: str = ""
    """Path of the first step that declares a `write_set`, here or in a sub-workflow."""
    height: int = 0
    """How many levels of sub-workflows there are below."""

    @property
    def name(self) -> str:
        return self.entries.text("name") or (self.file_name if self.entries.lacks("name") else "")

    @property
    def version(self) -> int:
        return self.entries.integer("version") or 1

    def drafts(self, scope: DraftScope | None = None) -> Iterator[Draft]:
        """Yield every step of the file, outer before inner, in the order of declaration."""
        for draft in (scope or self.scope).drafts:
            yield draft
            if draft.inner is not None:
                yield from self.drafts(draft.inner)


# -----------------------------------------------------------------------------------------------------------
# The keys of all steps.

ONCE = RetryPolicy(attempts=1)


RESERVED_TAGS = ("drive", "home")
"""Tags that name queues of the cluster itself."""


def check_tag(entries: Entries, notes: Notes) -> None:
    """Refuse a reserved tag in `runs_on`."""
    tag = entries.text("runs_on")
    if tag in RESERVED_TAGS:
        message = f"{quoted('runs_on')} cannot be {quoted(tag)}: the cluster uses this name itself"
        notes.error("recipe.bad_value", message, entries.nodes["runs_on"], "choose another tag")


def check_common(draft: Draft, unit: Unit, place: TextPlace) -> None:
    """Check the keys of a step that belong to no type; inner steps are checked separately."""
    references = unit.references
    check_edges(draft, unit.notes, references)
    check_conditions(draft, references)
    until = draft.repeat.nodes.get("until") if draft.repeat is not None else None
    if isinstance(until, Scalar):
        inside = TextPlace(draft, draft.inner or draft.scope, draft.names() | {"output"})
        draft.facts.until = references.expression(until, inside, "bool")
    # Check inputs, sets, schema, output names and retry.
    entries = draft.entries
    if "inputs" in entries.nodes:
        giving = TextPlace(draft, draft.scope, place.names, placing=True)
        draft.facts.inputs = read_values(entries.nodes["inputs"], references, giving)
    if "read_set" in entries.nodes or "write_set" in entries.nodes:
        facts, nodes = draft.facts, draft.entries.nodes
        if "read_set" in nodes:
            facts.read_set, facts.templated_sets = read_set("read_set", draft, references)
        if "write_set" in nodes:
            facts.write_set, templated = read_set("write_set", draft, references)
            facts.templated_sets |= templated
    if "output_schema" in entries.nodes:
        draft.facts.output_schema = read_schema(entries.nodes["output_schema"], unit.notes)
    if "retry" in entries.nodes:
        draft.facts.retry = read_retry(entries.nodes["retry"], unit.notes)
    check_tag(entries, unit.notes)
    seen: set[str] = set()
    syntax = draft.syntax
    allowed = syntax.output_names if syntax is not None and not draft.entries.has("output_schema") else ()
    for item in draft.entries.scalars("outputs"):
        if item.text in seen:
            unit.notes.error("recipe.bad_value", f"output {quoted(item.text)} is named twice", item)
        seen.add(item.text)
        if syntax is not None and allowed and item.text not in allowed:
            what = with_article(syntax.name)
            hint = unit.notes.did_you_mean(item.text, allowed) or f"{what} has the outputs {listed(allowed)}"
            unit.notes.error("recipe.bad_value", f"{what} has no output {quoted(item.text)}", item, hint)


def check_edges(draft: Draft, notes: Notes, references: References) -> None:
    """Check that `depends_on` names steps of the same scope."""
    for step_id, node in draft.written.items():
        if (target := draft.scope.by_id.get(step_id)) is not None:
            target.used = True
            continue
        hidden = references.elsewhere.get(step_id)
        outer = draft.scope.outer.find(step_id) if draft.scope.outer is not None else None
        owner = draft.scope.owner
        if outer is not None and owner is not None:
            hint = f"it is outside; put the edge on {quoted(owner.id)}, or refer to its output"
        elif hidden is not None and hidden.scope.owner is not None:
            hint = hint_to_owner(hidden, hidden.scope.owner)
        else:
            hint = notes.did_you_mean(step_id, draft.scope.by_id.keys() - {draft.id})
        what = "phase" if draft.phase else "step"
        message = f"{what} {quoted(draft.id)} depends on {quoted(step_id)}, which does not exist"
        notes.error("recipe.unknown_step", message if outer is None else message + " here", node, hint)


def check_conditions(draft: Draft, references: References) -> None:
    """Check `when` and `for_each` of a step or a phase."""
    entries = draft.entries
    around = draft.scope.names
    when = entries.nodes.get("when")
    if isinstance(when, Scalar):
        # Evaluated per item in a map, and before the first iteration of a loop, so it has no iteration. A
        # phase passes its items to its tasks and is evaluated once.
        items = {draft.item_name, "index"} if draft.item_name is not None and not draft.phase else set()
        place = TextPlace(draft, draft.scope, around | frozenset(name for name in items if name))
        draft.facts.when = references.expression(when, place, "bool")
    for_each = entries.nodes.get("for_each")
    if isinstance(for_each, Scalar):
        place = TextPlace(draft, draft.scope, around, placing=True)
        draft.facts.for_each = references.expression(for_each, place, "list")
    elif isinstance(for_each, Sequence):
        draft.facts.for_each = read_items(for_each, references, TextPlace(draft, draft.scope, around))


def read_retry(node: Node, notes: Notes) -> RetryPolicy:
    """Return a `retry` object; missing keys keep their defaults."""
    if (entries := read_entries(node, RETRY, notes)) is None:
        return USUAL_RETRY
    settings: dict[str, object] = {
        "attempts": entries.integer("attempts"),
        "backoff_ms": entries.milliseconds("backoff"),
        "max_backoff_ms": entries.milliseconds("max_backoff"),
        "on": tuple(item.text for item in entries.scalars("on")) if "on" in entries.nodes else None,
    }
    return RetryPolicy(**{name: value for name, value in settings.items() if value is not None})  # type: ignore[arg-type]  # checked words


# -----------------------------------------------------------------------------------------------------------
# Read-sets and write-sets: globs, checked as far as they are known before an instance exists.
#
# A set can contain templates of `inputs`, the item and its index, because these are known before the step is
# admitted. Outputs of other steps are not. A pattern with placeholders is checked with a harmless word in
# each of them, which finds `..` and unbalanced brackets of the author. The resolved pattern is checked again
# when the instance is created. Inserted values are literal there, so no placeholder can be inside `[…]`.
#
# A pattern for files that no step can change (of git, of Fanfold, of roles) could never be used. It is
# refused here, before the step does its work.

_STAND_IN = "x"


def read_set(key: str, draft: Draft, references: References) -> tuple[tuple[str, ...], bool]:
    """Return the patterns of `read_set` or `write_set`, and whether any contains a template."""
    return read_patterns(draft.entries.scalars(key), draft, references, writes=key == "write_set")


def read_patterns(
    nodes: Iterable[Scalar], draft: Draft, references: References, *, writes: bool
) -> tuple[tuple[str, ...], bool]:
    """Return the patterns of a step's list, and whether any contains a template."""
    templated = False
    patterns: list[str] = []
    for node in nodes:
        if "{{" in node.text:
            templated = True
            _check_templated(node, draft, references)
        else:
            _check_static(node, references, writes=writes)
        if node.text.startswith("!"):
            hint = "list what belongs to the set; ?name matches a file whose name begins with !"
            references.notes.error("recipe.bad_glob", "patterns cannot be negated", node.span(0, 1), hint)
        patterns.append(node.text)
    return tuple(patterns), templated


def _check_static(node: Scalar, references: References, *, writes: bool) -> None:
    try:
        check_glob(node.text)
    except GlobError as error:
        place = node.span(error.position, error.position + 1)
        references.notes.error("recipe.bad_glob", error.message, place)
        return
    if owner := owner_of("/".join(read_glob(node.text).head)) if writes else "":
        hint = "leave it out: such a change is never merged, whatever write_set says"
        message = f"no step may write {quoted(node.text)}, which belongs to {owner}"
        references.notes.error("recipe.bad_value", message, node, hint)


def _check_templated(node: Scalar, draft: Draft, references: References) -> None:
    names = draft.items()
    references.template(node, TextPlace(draft, draft.scope, names), only_roots=names | {"inputs"})
    try:
        parts = parse_template(node.text)
    except TemplateError:
        return  # reported by the check above
    text = ""
    holes: list[int] = []
    origins: list[int] = []
    at = 0
    for part in parts:
        if isinstance(part, Hole):
            holes.append(len(text))
            text += _STAND_IN
            origins.append(part.start)
            at = node.text.index("}}", part.end) + 2
        else:
            text += part
            origins.extend(range(at, at + len(part)))
            at += len(part)
    try:
        check_glob(text)
    except GlobError as error:
        origin = origins[error.position] if error.position < len(origins) else len(node.text)
        references.notes.error("recipe.bad_glob", error.message, node.span(origin, origin + 1))
        return
    for hole in holes:
        if is_in_class(text, hole):
            place = node.span(origins[hole], origins[hole] + 1)
            message = "a value cannot be used in a character class"
            references.notes.error("recipe.bad_glob", message, place, "write {a,b} with a value for each")


# -----------------------------------------------------------------------------------------------------------
# `output_schema`: a valid, self-contained JSON Schema.
#
# A schema cannot refer to remote documents: checking and running a recipe must not depend on the network, and
# a frozen run must not change because of a remote document.

_REFERRING = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})


def read_schema(node: Node, notes: Notes) -> JSON:
    """Return the schema as data; problems are reported at their position in the schema."""
    schema = plain(node)
    if _refuse_remote(node, notes):
        return schema
    if (problem := schema_problem(schema)) is not None:
        where = find(node, problem.path)
        notes.error("recipe.bad_schema", f"not a JSON Schema: {problem.message}", where)
    return schema


def _refuse_remote(node: Node, notes: Notes) -> bool:
    refused = False
    if isinstance(node, tree.Sequence):
        for item in node.items:
            refused |= _refuse_remote(item, notes)
    elif isinstance(node, tree.Mapping):
        for word, value in node.entries:
            text = value.text if isinstance(value, Scalar) and isinstance(value.value, str) else None
            if word.text in _REFERRING and text is not None and not text.startswith("#"):
                hint = "put the other schema under `$defs` and refer to it as #/$defs/…"
                notes.error("recipe.bad_schema", "a schema cannot refer to another document", value, hint)
                refused = True
            else:
                refused |= _refuse_remote(value, notes)
    return refused


# -----------------------------------------------------------------------------------------------------------
# Commands: arguments and environment with templates, and scripts without templates.
#
# Rules
# * `run` is a list of arguments and never uses a shell. Text is split like words in a shell, for convenience.
#   A `{{path}}` in it stays in one piece, and its value stays part of one argument.
# * `shell` is a script for `sh -c`. No value becomes part of its text, because the output of a model would be
#   executed. Values are passed as variables, except variables that the shell or the loader obeys.

_VARIABLE = r"(?a)[A-Za-z_][A-Za-z0-9_]*"
_OBEYED = frozenset("BASH_ENV BASH_FUNC ENV HOME IFS OPTIND PATH PS4 PWD SHELL SHELLOPTS".split())
"""Variables that change the behavior of a script, besides all that start with `LD_`."""
_FIRST_STAND_IN = 0xF0000
"""Private characters that replace placeholders while text is split; no recipe contains them by accident."""


def read_arguments(entries: Entries, references: References, place: TextPlace) -> tuple[str, ...]:
    """Return the argument templates of `run`."""
    node = entries.nodes["run"]
    notes = references.notes
    if "inputs" in entries.keys:
        hint = "place values in `run` or `env` with {{…}}, or write a `shell` script"
        message = '"inputs" are variables of a `shell` script, and this step has none'
        notes.error("recipe.conflicting_keys", message, entries.keys["inputs"], hint)
    if isinstance(node, Scalar):
        if not _warn_of_shell_syntax(node, notes):
            warn_of_variables([node], notes, whole=True)
        arguments = _split(node, references.template(node, place, strict=False), notes)
    else:
        words = entries.scalars("run")
        warn_of_variables(words, notes, whole=False)
        arguments = tuple(references.template(item, place, strict=False) for item in words)
    if not arguments or not arguments[0].strip():
        notes.error("recipe.bad_value", "the command is empty", node)
    return arguments


def read_script(entries: Entries, notes: Notes) -> str:
    """Return the script of `shell`, or an empty text."""
    node = entries.nodes.get("shell")
    if not isinstance(node, Scalar):
        return ""
    if "{{" in node.text:
        at = node.text.index("{{")
        hint = 'give the value under `inputs` and write "$name" in the script'
        message = "a script cannot contain {{…}}: the value would be executed as part of it"
        notes.error("recipe.bad_template", message, node.span(at, at + 2), hint)
    if not node.text.strip():
        notes.error("recipe.bad_value", "the script is empty", node)
    given = {word.text for word, _ in entries.pairs("env")}
    for word, _ in entries.pairs("inputs"):
        if _is_usable(word, notes) and word.text in given:
            message = f"{quoted(word.text)} is in `env` too"
            notes.error("recipe.conflicting_keys", message, word, "keep one of them")
    return node.text


def _is_usable(word: Scalar, notes: Notes) -> bool:
    """Return whether a command can have a variable of this name."""
    problem = hint = ""
    if not re.fullmatch(_VARIABLE, word.text):
        problem, hint = f"{quoted(word.text)} cannot be the name of a variable", "use letters, digits and _"
    elif word.text in _OBEYED or word.text.startswith(("LD_", "BASH_FUNC_")):
        problem, hint = f"{word.text} would change what the script does", "choose another name"
    if problem:
        notes.error("recipe.bad_value", problem, word, hint)
    return not problem


def read_own_variables(entries: Entries, notes: Notes) -> tuple[str, ...]:
    """Return the names in `env_vars`, whose values come from the user's environment."""
    given = {word.text for key in ("env", "inputs") for word, _ in entries.pairs(key)}
    names: dict[str, None] = {}
    for word in entries.scalars("env_vars"):
        if _is_usable(word, notes) and (word.text in given or word.text in names):
            notes.error("recipe.conflicting_keys", f"{quoted(word.text)} is given twice", word, "keep one")
        names[word.text] = None
    if names and entries.flag("cache"):
        message = "output that depends on your environment is not cached for other runs"
        notes.error("recipe.conflicting_keys", message, entries.keys["cache"], "leave `cache` out")
    return tuple(names)


def _warn_of_shell_syntax(node: Scalar, notes: Notes) -> bool:
    """Warn about text for `run` with shell syntax, which the program would get as arguments."""
    import shlex

    try:
        words = shlex.split(node.text)
    except ValueError:
        return False  # reported when it is split
    signs = ("&&", "||", "|", ";", ">", ">>", "<", "2>", "2>&1", "&")
    found = next((word for word in words if word in signs or word.endswith(";")), None)
    bare = re.sub(r"'[^']*'|\"[^\"]*\"|\{\{.*?\}\}", "", node.text)
    found = found or next((sign for sign in ("*", "$(", "`") if sign in bare), None)
    if found is not None:
        hint = "write `shell:` for a script, or quote the literal text"
        message = f"no shell reads this: {quoted(found)} goes to {quoted(words[0])} as it is"
        notes.warning("recipe.shell_syntax", message, node, hint)
    return found is not None


def _split(node: Scalar, text: str, notes: Notes) -> tuple[str, ...]:
    pieces: list[str] = []
    first = max(_FIRST_STAND_IN, max(map(ord, text), default=0) + 1)

    def hide(piece: str) -> str:
        pieces.append(piece)
        return chr(first + len(pieces) - 1)

    try:
        parts = parse_template(text)
    except TemplateError:
        return ("?",)  # reported when the template was checked
    hidden = ""
    at = 0
    for part in parts:
        if isinstance(part, Hole):
            opened = text.rindex("{{", 0, part.start)
            closed = text.index("}}", part.end) + 2
            hidden += text[at:opened].replace("\\{{", hide("\\{{")) + hide(text[opened:closed])
            at = closed
    hidden += text[at:].replace("\\{{", hide("\\{{"))
    import shlex

    try:
        words = shlex.split(hidden)
    except ValueError as error:
        hint = "write the command as a list of arguments"
        notes.error("recipe.bad_value", f"the command cannot be split: {str(error).lower()}", node, hint)
        return ("?",)
    shown = {first + i: piece for i, piece in enumerate(pieces)}
    return tuple(word.translate(shown) for word in words)


def read_environment(entries: Entries, references: References, place: TextPlace) -> dict[str, str]:
    """Return the templates of `env` by variable."""
    found: dict[str, str] = {}
    for word, value in entries.pairs("env"):
        if not re.fullmatch(_VARIABLE, word.text):
            message = f"{quoted(word.text)} cannot be the name of a variable"
            references.notes.error("recipe.bad_value", message, word, "use letters, digits and _")
        if isinstance(value, Scalar):
            warn_of_variables([value], references.notes, whole=True)
            found[word.text] = references.template(value, place)
    return found


# -----------------------------------------------------------------------------------------------------------
# Postures: which steps can change files, and in which workspace.
#
# Rules
# * The role decides: a read-only role reads, others write. A function or command writes if it declares a
#   `write_set`, and reads otherwise.
# * `posture: read_only`, on the step or on anything around it, narrows. Nothing widens: a `write_set` on a
#   read-only step is a contradiction and is refused.
# * A step that continues the conversation of a read-only step is read-only. So instructions that arrived
#   without write permission cannot get it later.
# * Readers share the workspace, writers work in a snapshot. A command without a `write_set` also gets a
#   snapshot, which is discarded, because tests write caches. A function runs in the engine's own process,
#   so it always shares the workspace.
# * A group or workflow step counts as a writer if something inside may write. The target of a read-only
#   workflow step is compiled as a separate plan in which everything is read-only.


def settle_posture(draft: Draft, unit: Unit) -> None:
    """Set posture, sets and workspace of one step, and refuse contradictions."""
    if (syntax := draft.syntax) is None or syntax.workspace == "none":
        return
    entries = draft.entries
    notes = unit.notes
    role = draft.facts.role
    role_known = role is None or role.known
    declared = entries.nodes.get("write_set")
    claims = isinstance(declared, tree.Sequence) and bool(declared.items)
    reason = why_read_only(draft, None if role is None else role.facts, "" if role is None else role.name)
    if claims and reason:
        hint = "leave out the `write_set`, or let a step that may write do it"
        message = f"{reason}, so it can have no write_set"
        notes.error("recipe.conflicting_keys", message, entries.keys["write_set"], hint)
    writes = claims or (syntax.writes and not entries.has("write_set"))
    writes = writes and not reason
    posture = entries.text("posture")
    if posture == "writer" and not writes and role_known:
        message = f"{reason or 'without a write_set it reads'}; {quoted('posture')} can only narrow"
        notes.error("recipe.conflicting_keys", message, entries.nodes["posture"])
    snapshot = writes or (syntax.workspace == "scratch" and not claims)
    usual: WorkspaceMode = "isolated" if snapshot else "shared"
    written_mode = cast("WorkspaceMode | None", entries.text("workspace_mode"))
    mode = written_mode or unit.defaults.workspace_mode or usual
    if syntax.workspace == "project":
        mode = "shared"
        if written_mode == "isolated":
            message = (
                f"{with_article(syntax.name)} is Python code of this process and works in the project itself"
            )
            hint = "leave it out, or run the code as a command"
            notes.error("recipe.conflicting_keys", message, entries.nodes["workspace_mode"], hint)
    draft.facts.posture = "writer" if writes else "read_only"
    draft.facts.workspace_mode = mode
    if not writes:
        draft.facts.write_set = ()
    elif not claims:
        draft.facts.write_set = draft.facts.write_set or EVERYTHING
    if role_known:
        _refuse_what_needs_a_writer(draft, notes, writes=writes, mode=mode)


def why_read_only(draft: Draft, role: RoleFacts | None, name: str) -> str:
    """Return why the step cannot write, whatever it declares; empty if it can."""
    if draft.entries.text("posture") == "read_only":
        return "the step is read-only"
    if draft.narrowed:
        return "the step is inside a read-only step"
    if role is not None and role.read_only:
        return f"role {quoted(name)} is read-only"
    reader = _continued_reader(draft)
    return f"the step continues {quoted(reader)}, which only reads" if reader else ""


def _continued_reader(draft: Draft) -> str:
    """Return an earlier step of the conversation that is read-only by its own keys, not by its role."""
    seen = {draft.id}
    before = draft.entries.text("continue")
    while before is not None and before not in seen and (step := draft.scope.by_id.get(before)) is not None:
        declared = step.entries.nodes.get("write_set")
        claims_nothing = isinstance(declared, tree.Sequence) and not declared.items
        if step.entries.text("posture") == "read_only" or claims_nothing:
            return before
        seen.add(before)
        before = step.entries.text("continue")
    return ""


def _refuse_what_needs_a_writer(draft: Draft, notes: Notes, *, writes: bool, mode: str) -> None:
    entries = draft.entries
    for name in ("merge", "on_conflict", "require_changes"):
        if not entries.has(name) or (name == "require_changes" and not entries.flag(name)):
            continue
        if not writes:
            message = f"{quoted(name)} is for writers, and this step only reads"
            notes.error("recipe.conflicting_keys", message, entries.keys[name])
        elif mode == "shared":
            message = f"{quoted(name)} is for isolated writers, and this one works in the shared workspace"
            notes.error("recipe.conflicting_keys", message, entries.keys[name])
    if entries.flag("require_changes") and entries.text("merge") == "discard":
        message = f"{quoted('require_changes')} needs changes that are merged, and this step discards them"
        notes.error("recipe.conflicting_keys", message, entries.keys["require_changes"])
    if entries.flag("cache") and writes:
        message = f"{quoted('cache')} is for read-only steps, and this one writes"
        hint = "add `posture: read_only` if it only reads"
        notes.error("recipe.conflicting_keys", message, entries.keys["cache"], hint)
