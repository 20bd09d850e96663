"""From delegations to drafts of steps: which were tried again, which are one step for a list of items.

Rules
* What failed and was asked for once more in the same words is one step that is tried again. What failed
  and was not is left out, and so is what has not ended.
* Children of one role and one set of circumstances, whose prompts have one shape and read the same outputs,
  are one step over a list: of three or more, or of two when an earlier output is that very list.
* The list is an earlier output where one is the same, in the same order; otherwise an input. Where an output
  is a list of objects, prompts with values of one object each are one step over that list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from fanfold.kernel.lifecycle import COMPLETED
from fanfold.kernel.plan import JSON
from fanfold.recipe.emission.delegations import Delegation, Omitted
from fanfold.recipe.emission.object_lists import find_over_objects
from fanfold.recipe.emission.pieces import Given, Piece, Pieces, joined, path_text
from fanfold.recipe.emission.quotes import Path, Taken
from fanfold.recipe.emission.shapes import find_shape
from fanfold.recipe.language.keys import RETRY_CLASSES
from fanfold.text.json_value import as_text

FEWEST = 3
MAX_ITEM_CHARS = 300
MAX_ALIKE = 500
"""Prompts that are held against each other."""


class RecoveredStep(Struct):
    """A step that is being recovered; `members` are the delegations it stands for."""

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
ALL: Path = ("*",)
"""Stands for the outputs of all members of a map."""
MAX_LABEL_WORDS = 8
"""Between the results of a list: what each is called."""


def merge_attempts(delegations: Sequence[Delegation]) -> tuple[list[Delegation], list[Omitted]]:
    """Those that completed, with the failures before; and those that are left out."""
    kept = [one for one in delegations if one.status == COMPLETED]
    left: list[Omitted] = []
    for failed in (one for one in delegations if one.status != COMPLETED):
        again = next(
            (
                number
                for number, one in enumerate(kept)
                if (one.role, one.prompt) == (failed.role, failed.prompt) and one.asked > failed.ended
            ),
            None,
        )
        if again is None or failed.failure not in RETRY_CLASSES:
            left.append(Omitted(failed.name, _why(failed)))
        else:
            classes = (*kept[again].failed_as, failed.failure)
            kept[again] = structs.replace(kept[again], failed_as=classes)
    return kept, left


def _why(one: Delegation) -> str:
    return f"it {one.status.replace('_', ' ')}" if one.failure or one.ended else f"it is {one.status}"


def make_drafts(
    delegations: Sequence[Delegation], taken: Sequence[Taken], pieces: Sequence[Pieces]
) -> list[RecoveredStep]:
    """Drafts in the order in which their first member was asked for."""
    drafts: list[RecoveredStep] = []
    used: set[int] = set()
    for number in range(len(delegations)):
        if number in used:
            continue
        draft = _over_objects(number, drafts, delegations, pieces, used)
        if draft is None:
            found = _alike(number, delegations, taken, pieces, used)
            draft = _map_of(found, drafts, delegations, pieces) if len(found) > 1 else None
        if draft is None:
            draft = RecoveredStep([number], pieces[number], dict(delegations[number].settings))
        used.update(draft.members)
        drafts.append(draft)
    return drafts


def _over_objects(
    number: int,
    drafts: Sequence[RecoveredStep],
    delegations: Sequence[Delegation],
    pieces: Sequence[Pieces],
    used: set[int],
) -> RecoveredStep | None:
    """The step over a list of objects that begins with this delegation, if one does."""
    one = delegations[number]
    spoken_to = {other.continues for other in delegations}
    if one.continues or one.failed_as or one.name in spoken_to:
        return None
    alike = {
        other
        for other, given in enumerate(delegations)
        if other not in used
        and not given.continues
        and not given.failed_as
        and given.name not in spoken_to
        and _kind(given) == _kind(one)
    }
    prompts = {other: delegations[other].prompt for other in sorted(alike) if other >= number}
    for listed, earlier in enumerate(drafts):
        source = delegations[earlier.members[0]]
        if earlier.is_map or isinstance(source.output, str) or source.ended >= one.asked:
            continue
        over = find_over_objects(prompts, number, source.output)
        if over is None:
            continue
        settings = _shared_settings([delegations[one].settings for one in over.members], over.text_with_items)
        if settings is None:
            continue
        shared = [piece for piece in pieces[number] if all(piece in pieces[n] for n in over.members)]
        flat = [
            piece.said if isinstance(piece, Given) and piece not in shared else piece
            for piece in pieces[number]
        ]
        return RecoveredStep(
            over.members,
            over.with_items(joined(flat)),
            settings,
            tuple(as_text(next(iter(one.values()))) for one in over.objects),
            listed,
            OUTPUT + path_text(over.path),
        )
    return None


def _shared_settings(
    rows: Sequence[dict[str, JSON]], templated: Callable[[str, int], str]
) -> dict[str, JSON] | None:
    """The settings of all, with sets `templated` by the place of their item; None where they differ still."""
    made: list[dict[str, JSON]] = []
    for place, row in enumerate(rows):
        one = dict(row)
        for key in ("write_set", "read_set"):
            if key in one and any(other.get(key) != one[key] for other in rows):
                one[key] = [templated(glob, place) for glob in one[key]]
        made.append(one)
    return made[0] if all(one == made[0] for one in made) else None


def _alike(
    number: int,
    delegations: Sequence[Delegation],
    taken: Sequence[Taken],
    pieces: Sequence[Pieces],
    used: set[int],
) -> list[int]:
    """Delegations that could be the same step as this one, for other items."""
    one = delegations[number]
    spoken_to = {other.continues for other in delegations}
    if one.continues or one.failed_as or one.name in spoken_to:
        return [number]
    found = [number]
    for other in range(number + 1, min(len(delegations), number + MAX_ALIKE)):
        if (
            other not in used
            and not delegations[other].continues
            and delegations[other].name not in spoken_to
            and _kind(delegations[other]) == _kind(one)
            and _independent(other, found, delegations, taken)
            and find_shape([pieces[number], pieces[other]]) is not None
        ):
            found.append(other)
    return found


def _kind(one: Delegation) -> Any:
    sets = {key: len(value) for key, value in one.settings.items() if key in ("write_set", "read_set")}
    rest = {key: value for key, value in one.settings.items() if key not in sets}
    return one.role, msgspec.json.encode(rest), sets


def _independent(
    other: int, found: Sequence[int], delegations: Sequence[Delegation], taken: Sequence[Taken]
) -> bool:
    """Whether one read the same outputs as these, and nothing of their own."""
    first = sources_of(taken[found[0]])
    mine = sources_of(taken[other])
    return not mine & set(found) and (mine == first or not _partial(mine ^ first, found, other, delegations))


def _partial(differ: set[int], found: Sequence[int], other: int, delegations: Sequence[Delegation]) -> bool:
    """Whether outputs that only some read came too late for the others: then they are in another place."""
    earliest = min(delegations[one].asked for one in (*found, other))
    return any(delegations[source].ended >= earliest for source in differ)


def sources_of(taken: Taken) -> set[int]:
    return {quote.source for quote in taken.quotes} | set(taken.traces)


def _map_of(
    found: list[int],
    drafts: Sequence[RecoveredStep],
    delegations: Sequence[Delegation],
    pieces: Sequence[Pieces],
) -> RecoveredStep | None:
    """The step over a list that these delegations are, if they are one."""
    shape = find_shape([pieces[one] for one in found])
    if shape is None:
        return None
    items = shape.items
    rows = [delegations[one].settings for one in found]
    settings = _shared_settings(rows, lambda glob, place: glob.replace(items[place], "{{item}}"))
    if settings is None:
        return None
    earliest = min(delegations[one].asked for one in found)
    draft = RecoveredStep(found, shape.pieces, settings, shape.items)
    for number, earlier in enumerate(drafts):
        if all(delegations[one].ended < earliest for one in earlier.members):
            text = _list_in(earlier, shape.items, delegations)
            if text is not None:
                draft.listed_by, draft.list_text = number, text
                return draft
    if len(found) < FEWEST or any(len(item) > MAX_ITEM_CHARS for item in shape.items):
        return None
    return draft


def _list_in(draft: RecoveredStep, items: tuple[str, ...], delegations: Sequence[Delegation]) -> str | None:
    """How the output of a draft gives just these items, as an expression; None when it does not."""
    if draft.is_map:
        outputs = [delegations[one].output for one in draft.members]
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


def _paths_to(value: JSON, wanted: list[str], path: Path) -> Iterator[Path]:
    if value == wanted:
        yield path
    elif isinstance(value, dict):
        for key, one in value.items():
            if key.isidentifier():
                yield from _paths_to(one, wanted, (*path, key))


def collapse(
    pieces: Pieces, drafts: Sequence[RecoveredStep], delegations: Sequence[Delegation]
) -> tuple[Piece, ...]:
    """Where all results of a map stand one after the other: one reference to the list of them."""
    for draft in drafts:
        if draft.is_map:
            pieces = _collapse_one(pieces, draft, delegations)
    return pieces


def _collapse_one(pieces: Pieces, draft: RecoveredStep, delegations: Sequence[Delegation]) -> Pieces:
    at = [n for n, one in enumerate(pieces) if isinstance(one, Given) and one.source in draft.members]
    found = [pieces[n] for n in at]
    order = [one.source for one in found if isinstance(one, Given) and one.path == ()]
    if order != draft.members or at[-1] - at[0] + 1 > 2 * len(at) - 1:
        return pieces
    between = [pieces[n] for n in range(at[0], at[-1]) if isinstance(pieces[n], str)]
    if any(len(str(text).split()) > MAX_LABEL_WORDS for text in between):
        return pieces
    said = "".join(one.said if isinstance(one, Given) else str(one) for one in pieces[at[0] : at[-1] + 1])
    head = str(pieces[at[0] - 1]) if at[0] and isinstance(pieces[at[0] - 1], str) else ""
    tail = str(pieces[at[-1] + 1]) if at[-1] + 1 < len(pieces) and isinstance(pieces[at[-1] + 1], str) else ""
    whole = msgspec.json.encode([delegations[one].output for one in draft.members]).decode()
    exact = head.endswith('["') and tail.startswith('"]') and f'["{said}"]' == whole
    if exact:
        before, label, after = head[:-2], "", tail[2:]
        said = whole
    else:
        label = _first_label(head, between, draft.items)
        before, after = head[: len(head) - len(label)], tail
        said = label + said
    made = Given(draft.members[0], ALL, said, exact)
    first = at[0] - (1 if head else 0)
    last = at[-1] + (1 if tail else 0)
    return joined([*pieces[:first], before, made, after, *pieces[last + 1 :]])


def _first_label(head: str, between: Sequence[Piece], items: Sequence[str]) -> str:
    """What stands before the first result as before the others: `a.py: `."""
    labels = {str(text).replace(item, OUTPUT) for text, item in zip(between, items[1:], strict=False)}
    if len(labels) != 1 or len(between) != len(items) - 1:
        return ""
    label = labels.pop().lstrip("\n,; ").replace(OUTPUT, items[0])
    return label if label and head.endswith(label) else ""
