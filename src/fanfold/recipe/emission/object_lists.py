"""Prompts that were written one for each object of a list: the same words around values of that object.

Nothing is guessed here. An earlier output is a list of objects, or holds one, and every prompt is to the
letter what one template gives for one of them: as many prompts as objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from fanfold.kernel.plan import JSON
from fanfold.recipe.emission.pieces import Item, Piece, Pieces, hole, joined, replace_words
from fanfold.recipe.emission.quotes import Path
from fanfold.text.json_value import as_text

MAX_OBJECTS = 500
MAX_FIELDS = 50

Object: TypeAlias = dict[str, JSON]


class OverObjects(Struct, frozen=True):
    """Which delegations are one step for a list of objects, in the order of the list."""

    path: Path
    """Where the list is in the output."""
    objects: list[Object]
    members: list[int]
    first: int
    """Which of the objects the first prompt was for."""

    def with_items(self, pieces: Pieces) -> Pieces:
        """The prompt for the first object, with what it has of that object as references."""
        return _with_items(pieces, self.objects[self.first], self.objects)

    def text_with_items(self, text: str, place: int) -> str:
        """A glob for one object as a template for all of them."""
        pieces = _with_items((text,), self.objects[place], self.objects)
        return "".join(piece if isinstance(piece, str) else hole(piece) for piece in pieces)


def find_over_objects(prompts: Mapping[int, str], first: int, output: JSON) -> OverObjects | None:
    """Which of the prompts, that of `first` among them, one template gives for a list in `output`."""
    for path, objects in _lists(output, ()):
        for place, one in enumerate(objects):
            made = _with_items((prompts[first],), one, objects)
            if not any(isinstance(piece, Item) for piece in made):
                continue
            members = _written_for(made, objects, place, first, prompts)
            if members is not None:
                return OverObjects(path, objects, members, place)
    return None


def _lists(value: JSON, path: Path) -> Iterator[tuple[Path, list[Object]]]:
    if isinstance(value, list):
        objects = [one for one in value if isinstance(one, dict) and one]
        if 2 <= len(value) == len(objects) <= MAX_OBJECTS:
            yield path, objects
    elif isinstance(value, dict):
        for key, one in value.items():
            if key.isidentifier():
                yield from _lists(one, (*path, key))


def _with_items(pieces: Pieces, one: Object, objects: Sequence[Object]) -> Pieces:
    """A text with the values of an object, as far as they differ from object to object, as references."""
    made = replace_words(pieces, as_text(one), Item())
    fields = [
        (as_text(value), key)
        for key, value in list(one.items())[:MAX_FIELDS]
        if key.isidentifier()
        and isinstance(value, str | int | float)
        and not isinstance(value, bool)
        and as_text(value).strip()
        and any(other.get(key) != value for other in objects)
    ]
    for text, key in sorted(fields, key=lambda field: -len(field[0])):
        made = replace_words(made, text, Item((key,)))
    return made


def _written_for(
    made: Pieces, objects: Sequence[Object], place: int, first: int, prompts: Mapping[int, str]
) -> list[int] | None:
    """The prompt of every object, by its number; None unless each has one of its own."""
    members: list[int] = []
    for number, one in enumerate(objects):
        text = _filled(made, one)
        others = (
            other for other, prompt in prompts.items() if prompt == text and other not in (first, *members)
        )
        found = first if number == place else next(others, None)
        if found is None:
            return None
        members.append(found)
    return members


def _filled(made: Pieces, one: Object) -> str | None:
    """What a template gives for an object; None where the object lacks something."""
    words: list[Piece] = []
    for piece in made:
        if isinstance(piece, Item):
            if piece.path and piece.path[0] not in one:
                return None
            words.append(as_text(one[str(piece.path[0])] if piece.path else one))
        else:
            words.append(piece)
    whole = joined(words)
    return whole[0] if len(whole) == 1 and isinstance(whole[0], str) else None
