"""A recipe from what was delegated: the graph a person would have drawn.

    recover(delegations, request="Compare a.py, b.py and c.py", name="compare")

Rules
* Data makes edges: an output, or a part of it that nobody writes by chance, that stands in a later prompt
  becomes a reference (see `quotes`). Traces of an output without a place make an edge, and a guess.
* Time makes an edge only where nothing else explains why one came after the other: the earlier one may have
  changed files, which the later one may have seen. Two that only read do not hang together for having been
  asked one after the other.
* What is certain is told apart from what is guessed; a hole that would not give the words it was found in is
  among the guesses, with these words.
* The same delegations give the same recipe.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from msgspec import Struct

from fanfold.kernel.plan import JSON
from fanfold.recipe.builder import Recipe
from fanfold.recipe.emission.common_words import COMMON
from fanfold.recipe.emission.delegations import Delegation, Emission, StandsFor
from fanfold.recipe.emission.literals import Literal, find_literals, free_name
from fanfold.recipe.emission.pieces import (
    Given,
    Named,
    Pieces,
    Referred,
    hole,
    replace_words,
    split,
    template,
)
from fanfold.recipe.emission.quotes import Quotes
from fanfold.recipe.emission.recovered import (
    ALL,
    OUTPUT,
    RecoveredStep,
    collapse,
    make_drafts,
    merge_attempts,
    sources_of,
)
from fanfold.text.excerpts import shorten_line

MAX_ID_CHARS = 40
MAX_NAME_WORDS = 5
MAX_SAID_CHARS = 60
_NO_ID = re.compile(r"[^A-Za-z0-9_-]+")
_NO_NAME = re.compile(r"[^a-z0-9]+")
_LITTLE = frozenset(
    "a an and are at by can do does each for from how i if in into is it its me my of on or our please "
    "should so some that the their them then there these they this those to two was we were what when where "
    "which who why with you your".split()
)
"""Words that no step and no recipe is called after."""
MAX_NAME_TRIES = 8


class _Edge(Struct, frozen=True):
    source: int
    why: str
    certain: bool


class _Assembly:
    """One recipe in the making."""

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
        self._name_drafts()
        self.prompts = [self._resolve(draft) for draft in self.drafts]
        self.edges: list[dict[str, _Edge]] = []
        for number in range(len(self.drafts)):
            self.edges.append(self._edges(number))
        self._add_time()
        self.lists: dict[int, str] = {}
        self.literals: list[Literal] = []

    # Names

    def _name_drafts(self) -> None:
        taken: set[str] = set()
        for draft in self.drafts:
            names = self._possible_ids(draft)
            free = (name for name in names if name.replace("-", "_") not in taken)
            numbered = (f"{names[0]}-{number}" for number in range(2, len(self.drafts) + 2))
            name = next(free, "") or next(one for one in numbered if one.replace("-", "_") not in taken)
            taken.add(name.replace("-", "_"))  # expressions write `_` for `-`
            draft.id = name

    def _possible_ids(self, draft: RecoveredStep) -> list[str]:
        """What a step may be called, the best first: its name, else the first words of its prompt."""
        one = self.all[draft.members[0]]
        if one.chosen and not draft.is_map:
            return [one.name.replace("#", "-")]
        said = " ".join(piece for piece in draft.pieces if isinstance(piece, str))
        words = "".join(one for one in unicodedata.normalize("NFKD", said) if not unicodedata.combining(one))
        found = [word.lower()[:MAX_ID_CHARS] for word in re.findall(r"[A-Za-z][A-Za-z0-9]*", words)]
        telling = [word for word in found if word not in _LITTLE][:MAX_NAME_TRIES]
        return telling or [_NO_ID.sub("-", one.role).strip("-")[:MAX_ID_CHARS] or "step"]

    # References

    def _resolve(self, draft: RecoveredStep) -> Pieces:
        """What was given, as references to the steps that give it."""
        pieces = collapse(draft.pieces, self.drafts, self.all)
        return tuple(self._result(one) if isinstance(one, Given) else one for one in pieces)

    def _result(self, given: Given) -> Referred:
        draft = self.drafts[self.draft_of[given.source]]
        if given.path == ALL:
            return Referred(draft.id, (), given.said, given.exact)
        if not draft.is_map:
            return Referred(draft.id, given.path, given.said, given.exact)
        place = draft.members.index(given.source)
        return Referred(draft.id, (place, *given.path), given.said, given.exact)

    # Edges

    def _edges(self, number: int) -> dict[str, _Edge]:
        """The steps that one waits for, by id, and why."""
        draft = self.drafts[number]
        edges: dict[str, _Edge] = {}
        for piece in self.prompts[number]:
            if isinstance(piece, Referred):
                self._note(draft, piece)
                edges.setdefault(piece.step, _Edge(self._by_id(piece.step), "", certain=True))
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
                    told = f"{draft.id} goes on in the conversation of {self.drafts[other].id}"
                    self.recognised.append(told)
        certain = {edge.source for edge in edges.values() if edge.certain}
        return {
            name: edge
            for name, edge in edges.items()
            if edge.certain or not any(self._comes_after(one, edge.source) for one in certain)
        }

    def _note(self, draft: RecoveredStep, piece: Referred) -> None:
        where = hole(piece)
        if piece.exact:
            told = f"{draft.id} is given what {piece.step} put out: {where}"
            if told not in self.recognised:
                self.recognised.append(told)
            return
        said = shorten_line(piece.said, MAX_SAID_CHARS)
        self.guessed.append(f'{draft.id}: {where} stands where the prompt said "{said}"')
        self.stands_for.append(StandsFor(draft.id, where, piece.said))

    def _by_id(self, name: str) -> int:
        return next(number for number, draft in enumerate(self.drafts) if draft.id == name)

    def _comes_after(self, later: int, earlier: int) -> bool:
        """Whether one step waits for another by the edges so far."""
        if later == earlier or later >= len(self.edges):
            return False
        return any(
            edge.source == earlier or self._comes_after(edge.source, earlier)
            for edge in self.edges[later].values()
        )

    def _add_time(self) -> None:
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

    # Inputs

    def find_inputs(self) -> list[dict[str, JSON]]:
        inputs: list[dict[str, JSON]] = []
        names: set[str] = set()
        for number, draft in enumerate(self.drafts):
            if not draft.is_map or draft.listed_by is not None:
                continue
            name = _list_name(draft.items, names)
            names.add(name)
            self.lists[number] = f"inputs.{name}"
            inputs.append({"name": name, "type": "array", "default": list(draft.items)})
            told = f"{draft.id} is one step for each of {len(draft.items)} {name.replace('_', ' ')}"
            asked = all(item in self.request for item in draft.items)
            (self.recognised if asked else self.guessed).append(f"{told}, which became an input")
        for number, draft in enumerate(self.drafts):
            if draft.is_map and draft.listed_by is not None:
                listed = self.drafts[draft.listed_by].id
                given = f"steps.{listed.replace('-', '_')}.output"
                self.lists[number] = draft.list_text.replace(OUTPUT, given)
                self.recognised.append(f"{draft.id} is one step for each of what {listed} listed")
        prompts = [tuple(piece for piece in prompt) for prompt in self.prompts]
        self.literals = [one for one in find_literals(self.request, prompts) if one.name not in names]
        for literal in sorted(self.literals, key=lambda one: -len(one.value)):
            self.prompts = [
                replace_words(prompt, literal.value, Named(literal.name)) for prompt in self.prompts
            ]
        for literal in self.literals:
            inputs.append({"name": literal.name, "default": literal.value})
            said = shorten_line(literal.value, MAX_SAID_CHARS)
            self.recognised.append(f'input {literal.name} is what the request called "{said}"')
        return inputs

    # The recipe

    def steps(self) -> list[dict[str, JSON]]:
        return [self._step(number) for number in range(len(self.drafts))]

    def _step(self, number: int) -> dict[str, JSON]:
        draft = self.drafts[number]
        one = self.all[draft.members[0]]
        step: dict[str, JSON] = {"id": draft.id, "agent": one.role}
        edges = self.edges[number]
        if edges:
            step["depends_on"] = [other.id for other in self.drafts if other.id in edges]
        if draft.id in self.continued:
            step["continue"] = self.continued[draft.id]
        if number in self.lists:
            step["for_each"] = self.lists[number]
        step.update(draft.settings)
        if one.failed_as:
            classes = sorted(set(one.failed_as))
            step["retry"] = {"attempts": len(one.failed_as) + 1, "on": classes}
            self.recognised.append(f"{draft.id} was tried again after it failed ({', '.join(classes)})")
        if len(self.all) == 1 and one.tools:
            step["tools"] = sorted(set(one.tools))
            self.recognised.append(f"{draft.id} may use the tools that were used")
        step["prompt"] = template(self.prompts[number])
        return step

    def output(self) -> JSON:
        """What the steps that nobody waits for put out; of one, that is the default."""
        needed = {edge.source for edges in self.edges for edge in edges.values()}
        ends = [draft for number, draft in enumerate(self.drafts) if number not in needed]
        if len(ends) == 1:
            return None if ends[0] is self.drafts[-1] else f"{{{{steps.{ends[0].id}.output}}}}"
        return {draft.id.replace("-", "_"): f"steps.{draft.id}.output" for draft in ends}


def recover(delegations: Sequence[Delegation], *, request: str = "", name: str = "") -> Emission:
    """The recipe that would delegate the same again, for other inputs."""
    kept, left = merge_attempts(delegations)
    if not kept:
        return Emission(recipe=None, made_of={}, recognised=[], guessed=[], stands_for=[], left_out=left)
    assembly = _Assembly(kept, request)
    inputs = assembly.find_inputs()
    steps = assembly.steps()
    recipe = Recipe(
        name=name or _recipe_name(request or kept[0].prompt),
        description=shorten_line(request, 200) or None,
        inputs=inputs or None,
        steps=steps,
        output=assembly.output(),
    )
    return Emission(
        recipe=recipe,
        made_of={draft.id: [kept[one].name for one in draft.members] for draft in assembly.drafts},
        recognised=assembly.recognised,
        guessed=assembly.guessed,
        stands_for=assembly.stands_for,
        left_out=left,
    )


def _recipe_name(text: str) -> str:
    """A name made of the first words that tell something."""
    words = [word for word in _NO_NAME.sub(" ", text.lower()).split() if word not in _LITTLE]
    return "-".join(words[:MAX_NAME_WORDS])[:MAX_ID_CHARS].strip("-") or "captured"


def _list_name(items: Sequence[str], taken: set[str]) -> str:
    """What a list of such items is called."""
    if all("://" in item for item in items):
        kind = "urls"
    elif all(re.search(r"\.\w{1,8}$", item) and " " not in item for item in items):
        kind = "files"
    elif all("/" in item and " " not in item for item in items):
        kind = "paths"
    else:
        kind = (
            "topics"
            if any(word.lower() not in COMMON for item in items for word in item.split())
            else "items"
        )
    return free_name(kind, taken)
