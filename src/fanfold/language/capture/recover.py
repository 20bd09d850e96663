"""Recovers a recipe from delegations: the graph that a person would have drawn.

    recover(delegations, request="Compare a.py, b.py and c.py", name="compare")

Rules
* Data makes edges. If an output, or a distinctive part of it, is in a later prompt, it becomes a reference
  (see `quotes`). Traces of an output without a position make an edge, and a guess.
* Time makes an edge only if nothing else explains the order: the earlier step may have changed files, and the
  later one may have seen them. Two read-only steps are not connected by their order alone.
* Certain results are distinguished from guesses. A placeholder that would not produce the original text is a
  guess, listed with that text.
* The same delegations produce the same recipe.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from fanfold.kernel.plan import JSON
from fanfold.kernel.state import COMPLETED
from fanfold.language.builder import Recipe
from fanfold.language.capture.quotes import (
    COMMON,
    Delegation,
    Emission,
    InputPiece,
    OmittedChild,
    OutputPiece,
    Piece,
    Pieces,
    QuotedPieces,
    Quotes,
    StandsFor,
    ValuePath,
    hole,
    joined,
    path_text,
    replace_words,
    split,
    template,
)
from fanfold.language.capture.shapes import Literal, find_literals, find_over_objects, find_shape, free_name
from fanfold.language.json_text import as_text
from fanfold.language.keys import RETRY_CLASSES
from fanfold.language.template import in_expression
from fanfold.language.terminal import shorten_line

# -----------------------------------------------------------------------------------------------------------
# From delegations to drafts of steps: which were retried, and which are one step for a list of items.
#
# Rules
# * A failed delegation that was repeated with the same prompt is one step with a retry. Other failed or
#   unfinished delegations are left out.
# * Children with the same role and settings, whose prompts have one shape and use the same outputs, are one
#   step over a list: for three or more, or for two if an earlier output is exactly that list.
# * The list is an earlier output if one is equal, in the same order; otherwise an input. If an output is a
#   list of objects, prompts with values of one object each are one step over that list.

FEWEST = 3
MAX_ITEM_CHARS = 300
MAX_ALIKE = 500
"""Maximum number of prompts that are compared with each other."""


class RecoveredStep(Struct):
    """A step that is being recovered; `members` are its delegations."""

    members: list[int]
    pieces: Pieces
    settings: dict[str, JSON]
    items: tuple[str, ...] = ()
    listed_by: int | None = None
    """The draft whose output is the list of items."""
    list_text: str = ""
    """The list as an expression, with `OUTPUT` for the output of that draft."""
    id: str = ""

    @property
    def is_map(self) -> bool:
        return bool(self.items)


OUTPUT = "\0"
ALL: ValuePath = ("*",)
"""Stands for the outputs of all members of a map."""
MAX_LABEL_WORDS = 8
"""Maximum length of the labels between the results of a list."""


def merge_attempts(delegations: Sequence[Delegation]) -> tuple[list[Delegation], list[OmittedChild]]:
    """Return the completed delegations, with their earlier failures; and the omitted ones."""
    kept = [delegation for delegation in delegations if delegation.status == COMPLETED]
    left: list[OmittedChild] = []
    for failed in (delegation for delegation in delegations if delegation.status != COMPLETED):
        again = next(
            (
                number
                for number, one in enumerate(kept)
                if (one.role, one.prompt) == (failed.role, failed.prompt) and one.asked > failed.ended
            ),
            None,
        )
        if again is None or failed.failure not in RETRY_CLASSES:
            ended = failed.failure or failed.ended
            why = f"it {failed.status.replace('_', ' ')}" if ended else f"it is {failed.status}"
            left.append(OmittedChild(failed.name, why))
        else:
            classes = (*kept[again].failed_as, failed.failure)
            kept[again] = structs.replace(kept[again], failed_as=classes)
    return kept, left


def make_drafts(
    delegations: Sequence[Delegation], taken: Sequence[QuotedPieces], pieces: Sequence[Pieces]
) -> list[RecoveredStep]:
    """Return drafts in the order in which their first member was requested."""
    drafts: list[RecoveredStep] = []
    used: set[int] = set()
    for number in range(len(delegations)):
        if number in used:
            continue
        peers = _peers(number, delegations, used)
        if (draft := _over_objects(number, peers, drafts, delegations, pieces)) is None:
            alike = [number]
            for other in peers:
                if (
                    other < number + MAX_ALIKE
                    and _independent(other, alike, delegations, taken)
                    and find_shape([pieces[number], pieces[other]]) is not None
                ):
                    alike.append(other)
            draft = _map_of(alike, drafts, delegations, pieces) if len(alike) > 1 else None
        if draft is None:
            draft = RecoveredStep([number], pieces[number], dict(delegations[number].settings))
        used.update(draft.members)
        drafts.append(draft)
    return drafts


def _peers(number: int, delegations: Sequence[Delegation], used: set[int]) -> list[int]:
    """Return later delegations that could be the same step for other items: with the same role and keys.

    A delegation that was retried, or is part of a longer conversation, has none.
    """
    continued = {delegation.continues for delegation in delegations}
    first = delegations[number]
    if first.continues or first.failed_as or first.name in continued:
        return []
    return [
        other
        for other, delegation in enumerate(delegations)
        if other > number
        and other not in used
        and not delegation.continues
        and delegation.name not in continued
        and _kind(delegation) == _kind(first)
    ]


def _over_objects(
    number: int,
    peers: Sequence[int],
    drafts: Sequence[RecoveredStep],
    delegations: Sequence[Delegation],
    pieces: Sequence[Pieces],
) -> RecoveredStep | None:
    """Return the step over a list of objects that starts with this delegation, if there is one."""
    if not peers:
        return None
    first = delegations[number]
    alike = [number, *(other for other in peers if not delegations[other].failed_as)]
    prompts = {other: delegations[other].prompt for other in alike}
    for listed, earlier in enumerate(drafts):
        source = delegations[earlier.members[0]]
        if earlier.is_map or isinstance(source.output, str) or source.ended >= first.asked:
            continue
        if (over := find_over_objects(prompts, number, source.output)) is None:
            continue
        rows = [delegations[member].settings for member in over.members]
        if (settings := _shared_settings(rows, over.text_with_items)) is None:
            continue
        shared = [piece for piece in pieces[number] if all(piece in pieces[n] for n in over.members)]
        flat = [
            piece.original if isinstance(piece, OutputPiece) and piece not in shared else piece
            for piece in pieces[number]
        ]
        return RecoveredStep(
            over.members,
            over.with_items(joined(flat)),
            settings,
            tuple(as_text(next(iter(item.values()))) for item in over.objects),
            listed,
            OUTPUT + path_text(over.path),
        )
    return None


def _shared_settings(
    rows: Sequence[dict[str, JSON]], templated: Callable[[str, int], str]
) -> dict[str, JSON] | None:
    """Return the common settings, with sets `templated` by the item's position; None if they differ."""
    made: list[dict[str, JSON]] = []
    for place, row in enumerate(rows):
        one = dict(row)
        for key in ("write_set", "read_set"):
            if key in one and any(other.get(key) != one[key] for other in rows):
                one[key] = [templated(glob, place) for glob in one[key]]
        made.append(one)
    return made[0] if all(one == made[0] for one in made) else None


def _kind(one: Delegation) -> Any:
    sets = {key: len(value) for key, value in one.settings.items() if key in ("write_set", "read_set")}
    rest = {key: value for key, value in one.settings.items() if key not in sets}
    return one.role, msgspec.json.encode(rest), sets


def _independent(
    other: int, found: Sequence[int], delegations: Sequence[Delegation], taken: Sequence[QuotedPieces]
) -> bool:
    """Return whether one used the same outputs as these, and none of their own."""
    differ = sources_of(taken[found[0]]) ^ sources_of(taken[other])
    # An output that only some used may have come too late for the others.
    earliest = min(delegations[one].asked for one in (*found, other))
    late = any(delegations[source].ended >= earliest for source in differ)
    return not late and not sources_of(taken[other]) & set(found)


def sources_of(taken: QuotedPieces) -> set[int]:
    return {quote.source for quote in taken.quotes} | set(taken.traces)


def _map_of(
    found: list[int],
    drafts: Sequence[RecoveredStep],
    delegations: Sequence[Delegation],
    pieces: Sequence[Pieces],
) -> RecoveredStep | None:
    """Return the step over a list for these delegations, if they form one."""
    if (shape := find_shape([pieces[one] for one in found])) is None:
        return None
    items = shape.items
    rows = [delegations[one].settings for one in found]
    settings = _shared_settings(rows, lambda glob, place: glob.replace(items[place], "{{item}}"))
    if settings is None:
        return None
    earliest = min(delegations[one].asked for one in found)
    draft = RecoveredStep(found, shape.pieces, settings, shape.items)
    for number, earlier in enumerate(drafts):
        ended = all(delegations[member].ended < earliest for member in earlier.members)
        if ended and (text := _list_in(earlier, shape.items, delegations)) is not None:
            draft.listed_by, draft.list_text = number, text
            return draft
    if len(found) < FEWEST or any(len(item) > MAX_ITEM_CHARS for item in shape.items):
        return None
    return draft


def _list_in(draft: RecoveredStep, items: tuple[str, ...], delegations: Sequence[Delegation]) -> str | None:
    """Return the expression for exactly these items in the output of a draft; None if there is none."""
    if draft.is_map:
        outputs = [delegations[member].output for member in draft.members]
        return OUTPUT if outputs == list(items) else None
    output = delegations[draft.members[0]].output
    if isinstance(output, str):
        lines = output.splitlines()
        if lines == list(items):
            return f"lines({OUTPUT})"
        for bullet in ("- ", "* "):
            if lines == [bullet + item for item in items]:
                return f"lines({OUTPUT}).map(line, line.substring({len(bullet)}))"
        return None
    path = next(_paths_to(output, list(items), ()), None)
    return None if path is None else OUTPUT + path_text(path)


def _paths_to(value: JSON, wanted: list[str], path: ValuePath) -> Iterator[ValuePath]:
    if value == wanted:
        yield path
    elif isinstance(value, dict):
        for key, one in value.items():
            if key.isidentifier():
                yield from _paths_to(one, wanted, (*path, key))


def collapse(
    pieces: Pieces, drafts: Sequence[RecoveredStep], delegations: Sequence[Delegation]
) -> tuple[Piece, ...]:
    """Replace all consecutive results of a map by one reference to their list."""
    for draft in drafts:
        if draft.is_map:
            pieces = _collapse_one(pieces, draft, delegations)
    return pieces


def _collapse_one(pieces: Pieces, draft: RecoveredStep, delegations: Sequence[Delegation]) -> Pieces:
    at = [
        n
        for n, piece in enumerate(pieces)
        if isinstance(piece, OutputPiece) and piece.source in draft.members
    ]
    outputs = [pieces[n] for n in at]
    order = [piece.source for piece in outputs if isinstance(piece, OutputPiece) and piece.path == ()]
    if order != draft.members or at[-1] - at[0] + 1 > 2 * len(at) - 1:
        return pieces
    between = [pieces[n] for n in range(at[0], at[-1]) if isinstance(pieces[n], str)]
    if any(len(str(text).split()) > MAX_LABEL_WORDS for text in between):
        return pieces
    original = "".join(
        piece.original if isinstance(piece, OutputPiece) else str(piece)
        for piece in pieces[at[0] : at[-1] + 1]
    )
    head = str(pieces[at[0] - 1]) if at[0] and isinstance(pieces[at[0] - 1], str) else ""
    tail = str(pieces[at[-1] + 1]) if at[-1] + 1 < len(pieces) and isinstance(pieces[at[-1] + 1], str) else ""
    whole = msgspec.json.encode([delegations[piece].output for piece in draft.members]).decode()
    exact = head.endswith('["') and tail.startswith('"]') and f'["{original}"]' == whole
    if exact:
        before, label, after = head[:-2], "", tail[2:]
        original = whole
    else:
        label = _first_label(head, between, draft.items)
        before, after = head[: len(head) - len(label)], tail
        original = label + original
    whole_output = OutputPiece(draft.members[0], ALL, original, exact)
    first = at[0] - (1 if head else 0)
    last = at[-1] + (1 if tail else 0)
    return joined([*pieces[:first], before, whole_output, after, *pieces[last + 1 :]])


def _first_label(head: str, between: Sequence[Piece], items: Sequence[str]) -> str:
    """Return the label before the first result if the others have the same: `a.py: `."""
    labels = {str(text).replace(item, OUTPUT) for text, item in zip(between, items[1:], strict=False)}
    if len(labels) != 1 or len(between) != len(items) - 1:
        return ""
    label = labels.pop().lstrip("\n,; ").replace(OUTPUT, items[0])
    return label if label and head.endswith(label) else ""


MAX_ID_CHARS = 40
MAX_NAME_WORDS = 5
MAX_SHOWN_CHARS = 60
_NO_ID = r"[^A-Za-z0-9_-]+"
_NO_NAME = r"[^a-z0-9]+"
_LITTLE = frozenset(
    "a an and are at by can do does each for from how i if in into is it its me my of on or our please "
    "should so some that the their them then there these they this those to two was we were what when where "
    "which who why with you your".split()
)
"""Words that are never part of the name of a step or a recipe."""
MAX_NAME_TRIES = 8


class _Edge(Struct, frozen=True):
    source: int
    why: str
    certain: bool


class _Assembly:
    """One recipe while it is assembled."""

    def __init__(self, delegations: Sequence[Delegation], request: str) -> None:
        self.all = delegations
        self.request = request
        quotes = Quotes(delegations, request)
        self.taken = [quotes.of(number) for number in range(len(delegations))]
        pieces = [split(one.prompt, taken.quotes) for one, taken in zip(delegations, self.taken, strict=True)]
        self.drafts = make_drafts(delegations, self.taken, pieces)
        self.draft_of = {member: n for n, draft in enumerate(self.drafts) for member in draft.members}
        self.recognised: list[str] = []
        self.guessed: list[str] = []
        self.stands_for: list[StandsFor] = []
        self.continued: dict[str, str] = {}
        taken: set[str] = set()
        for draft in self.drafts:
            names = self._possible_ids(draft)
            free = (name for name in names if in_expression(name) not in taken)
            numbered = (f"{names[0]}-{number}" for number in range(2, len(self.drafts) + 2))
            name = next(free, "") or next(one for one in numbered if in_expression(one) not in taken)
            taken.add(in_expression(name))
            draft.id = name
        self.prompts = [self._resolve(draft) for draft in self.drafts]
        self.edges: list[dict[str, _Edge]] = []
        for number in range(len(self.drafts)):
            self.edges.append(self._edges(number))
        for later, draft in enumerate(self.drafts):
            first = min(self.all[member].asked for member in draft.members)
            for earlier in range(later - 1, -1, -1):
                other = self.drafts[earlier]
                writes = any(self.all[member].leaves_files for member in other.members)
                ended = max(self.all[member].ended for member in other.members)
                if writes and ended < first and not self._comes_after(later, earlier):
                    why = f"it was asked for after {other.id}, which may have changed files"
                    self.edges[later][other.id] = _Edge(earlier, why, certain=False)
        for later, draft in enumerate(self.drafts):
            for edge in self.edges[later].values():
                if edge.why:
                    self.guessed.append(f"{draft.id} waits for {self.drafts[edge.source].id}: {edge.why}")
        self.lists: dict[int, str] = {}
        self.literals: list[Literal] = []

    # Names

    def _possible_ids(self, draft: RecoveredStep) -> list[str]:
        """Return the possible ids of a step, the best first: its name, or the first words of its prompt."""
        first = self.all[draft.members[0]]
        if first.chosen and not draft.is_map:
            return [first.name.replace("#", "-")]
        text = " ".join(piece for piece in draft.pieces if isinstance(piece, str))
        letters = (char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
        words = [word.lower() for word in re.findall(r"[A-Za-z][A-Za-z0-9]*", "".join(letters))]
        names = [word[:MAX_ID_CHARS] for word in words if word not in _LITTLE][:MAX_NAME_TRIES]
        return names or [re.sub(_NO_ID, "-", first.role).strip("-")[:MAX_ID_CHARS] or "step"]

    # References

    def _resolve(self, draft: RecoveredStep) -> Pieces:
        """Return the prompt with references to the steps that produced its parts."""
        resolved: list[Piece] = []
        for piece in collapse(draft.pieces, self.drafts, self.all):
            if not isinstance(piece, OutputPiece):
                resolved.append(piece)
                continue
            source = self.drafts[self.draft_of[piece.source]]
            path = () if piece.path == ALL else piece.path
            if source.is_map and piece.path != ALL:
                path = (source.members.index(piece.source), *path)
            resolved.append(structs.replace(piece, step=source.id, path=path))
        return tuple(resolved)

    # Edges

    def _edges(self, number: int) -> dict[str, _Edge]:
        """Return the dependencies of a step by id, with the reasons."""
        draft = self.drafts[number]
        edges: dict[str, _Edge] = {}
        for piece in self.prompts[number]:
            if isinstance(piece, OutputPiece):
                self._note(draft, piece)
                edges.setdefault(piece.step, _Edge(self.draft_of[piece.source], "", certain=True))
        if draft.listed_by is not None:
            listed = self.drafts[draft.listed_by]
            edges.setdefault(listed.id, _Edge(draft.listed_by, "", certain=True))
        for member in draft.members:
            for source in sorted(sources_of(self.taken[member])):
                other = self.draft_of[source]
                why = f"its prompt has words that {self.drafts[other].id} brought in"
                edges.setdefault(self.drafts[other].id, _Edge(other, why, certain=False))
            before = self.all[member].continues
            for source, one in enumerate(self.all[:member]):
                if one.name == before:
                    other = self.draft_of[source]
                    edges[self.drafts[other].id] = _Edge(other, "", certain=True)
                    self.continued[draft.id] = self.drafts[other].id
                    finding = f"{draft.id} continues the conversation of {self.drafts[other].id}"
                    self.recognised.append(finding)
        certain = {edge.source for edge in edges.values() if edge.certain}
        return {
            name: edge
            for name, edge in edges.items()
            if edge.certain or not any(self._comes_after(one, edge.source) for one in certain)
        }

    def _note(self, draft: RecoveredStep, piece: OutputPiece) -> None:
        placeholder = hole(piece)
        if piece.exact:
            finding = f"{draft.id} is given what {piece.step} put out: {placeholder}"
            if finding not in self.recognised:
                self.recognised.append(finding)
            return
        shown = shorten_line(piece.original, MAX_SHOWN_CHARS)
        self.guessed.append(f'{draft.id}: {placeholder} replaces this text of the prompt: "{shown}"')
        self.stands_for.append(StandsFor(draft.id, placeholder, piece.original))

    def _comes_after(self, later: int, earlier: int) -> bool:
        """Return whether one step depends on another by the edges so far."""
        if later == earlier or later >= len(self.edges):
            return False
        return any(
            edge.source == earlier or self._comes_after(edge.source, earlier)
            for edge in self.edges[later].values()
        )

    # Inputs

    def find_inputs(self) -> list[dict[str, JSON]]:
        inputs: list[dict[str, JSON]] = []
        names: set[str] = set()
        for number, draft in enumerate(self.drafts):
            if not draft.is_map or draft.listed_by is not None:
                continue
            # A name for a list of such items.
            if all("://" in item for item in draft.items):
                kind = "urls"
            elif all(re.search(r"\.\w{1,8}$", item) and " " not in item for item in draft.items):
                kind = "files"
            elif all("/" in item and " " not in item for item in draft.items):
                kind = "paths"
            else:
                words = (word for item in draft.items for word in item.split())
                kind = "topics" if any(word.lower() not in COMMON for word in words) else "items"
            name = free_name(kind, names)
            names.add(name)
            self.lists[number] = f"inputs.{name}"
            inputs.append({"name": name, "type": "array", "default": list(draft.items)})
            finding = f"{draft.id} is one step for each of {len(draft.items)} {name.replace('_', ' ')}"
            requested = all(item in self.request for item in draft.items)
            (self.recognised if requested else self.guessed).append(f"{finding}, which became an input")
        for number, draft in enumerate(self.drafts):
            if draft.is_map and draft.listed_by is not None:
                listed = self.drafts[draft.listed_by].id
                given = f"steps.{in_expression(listed)}.output"
                self.lists[number] = draft.list_text.replace(OUTPUT, given)
                self.recognised.append(f"{draft.id} is one step for each of what {listed} listed")
        prompts = [tuple(piece for piece in prompt) for prompt in self.prompts]
        self.literals = [
            literal for literal in find_literals(self.request, prompts) if literal.name not in names
        ]
        for literal in sorted(self.literals, key=lambda literal: -len(literal.value)):
            self.prompts = [
                replace_words(prompt, literal.value, InputPiece(literal.name)) for prompt in self.prompts
            ]
        for literal in self.literals:
            inputs.append({"name": literal.name, "default": literal.value})
            shown = shorten_line(literal.value, MAX_SHOWN_CHARS)
            self.recognised.append(f'input {literal.name} is what the request called "{shown}"')
        return inputs

    # The recipe

    def steps(self) -> list[dict[str, JSON]]:
        steps: list[dict[str, JSON]] = []
        for number, draft in enumerate(self.drafts):
            first = self.all[draft.members[0]]
            step: dict[str, JSON] = {"id": draft.id, "agent": first.role}
            if edges := self.edges[number]:
                step["depends_on"] = [other.id for other in self.drafts if other.id in edges]
            if draft.id in self.continued:
                step["continue"] = self.continued[draft.id]
            if number in self.lists:
                step["for_each"] = self.lists[number]
            step.update(draft.settings)
            if first.failed_as:
                classes = sorted(set(first.failed_as))
                step["retry"] = {"attempts": len(first.failed_as) + 1, "on": classes}
                self.recognised.append(f"{draft.id} was tried again after it failed ({', '.join(classes)})")
            if len(self.all) == 1 and first.tools:
                step["tools"] = sorted(set(first.tools))
                self.recognised.append(f"{draft.id} may use the tools that were used")
            step["prompt"] = template(self.prompts[number])
            steps.append(step)
        return steps

    def output(self) -> JSON:
        """Return the outputs of the steps without dependents; a single last step is the default."""
        needed = {edge.source for edges in self.edges for edge in edges.values()}
        ends = [draft for number, draft in enumerate(self.drafts) if number not in needed]
        if len(ends) == 1:
            return None if ends[0] is self.drafts[-1] else f"{{{{steps.{ends[0].id}.output}}}}"
        return {in_expression(draft.id): f"steps.{draft.id}.output" for draft in ends}


def recover(delegations: Sequence[Delegation], *, request: str = "", name: str = "") -> Emission:
    """Return the recipe that would repeat the delegations, for other inputs."""
    kept, left = merge_attempts(delegations)
    if not kept:
        return Emission(recipe=None, made_of={}, recognised=[], guessed=[], stands_for=[], left_out=left)
    assembly = _Assembly(kept, request)
    inputs = assembly.find_inputs()
    steps = assembly.steps()
    words = re.sub(_NO_NAME, " ", (request or kept[0].prompt).lower()).split()
    meaningful = [word for word in words if word not in _LITTLE]
    usual = "-".join(meaningful[:MAX_NAME_WORDS])[:MAX_ID_CHARS].strip("-")
    recipe = Recipe(
        name=name or usual or "captured",
        description=shorten_line(request, 200) or None,
        inputs=inputs or None,
        steps=steps,
        output=assembly.output(),
    )
    return Emission(
        recipe=recipe,
        made_of={draft.id: [kept[member].name for member in draft.members] for draft in assembly.drafts},
        recognised=assembly.recognised,
        guessed=assembly.guessed,
        stands_for=assembly.stands_for,
        left_out=left,
    )
