"""Prompts of one shape: the same words around one different part, which is then the item of a list.

Two prompts have one shape if they differ only in one part, and every other difference is that same part. The
common words must be more than the different ones: two sentences that both start with "List" are no shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from msgspec import Struct

from fanfold.kernel.plan import JSON
from fanfold.language.capture.quotes import (
    InputPiece,
    Item,
    OutputPiece,
    Piece,
    Pieces,
    ValuePath,
    Word,
    hole,
    joined,
    occurrences,
    replace_words,
    words_of,
)
from fanfold.language.json_text import as_text

FEWEST_SHARED = 1
_PIECE_PATTERN = r"(?s)[\w./@#-]*\w/?|\s+|."

Token: TypeAlias = str | OutputPiece


class SharedWords(Struct, frozen=True):
    """The common parts of prompts, and the different part of each."""

    pieces: Pieces
    items: tuple[str, ...]


def find_shape(prompts: Sequence[Pieces]) -> SharedWords | None:
    """Return the common shape of all these prompts, if there is one.

    Values that all prompts use stay references; values that only some use may be the item.
    """
    shared = [piece for piece in prompts[0] if all(piece in prompt for prompt in prompts)]
    rows = [_tokens(prompt, shared) for prompt in prompts]
    if len({len(row) for row in rows}) == 1 and (shape := _aligned(rows)) is not None:
        return shape
    # The shape of prompts with the same start and end: the part between is the item.
    shortest = min(len(row) for row in rows)
    first = 0
    while first < shortest and all(row[first] == rows[0][first] for row in rows):
        first += 1
    last = 0
    while last < shortest - first and all(row[-1 - last] == rows[0][-1 - last] for row in rows):
        last += 1
    texts = [_text(row[first : len(row) - last]) for row in rows]
    head, tail = rows[0][:first], rows[0][len(rows[0]) - last :]
    if any(text is None for text in texts):
        return None
    items = [str(text) for text in texts]
    # Space at the edge of the different part belongs to the words around it.
    lead = {item[: len(item) - len(item.lstrip())] for item in items}
    trail = {item[len(item.rstrip()) :] for item in items}
    if len(lead) != 1 or len(trail) != 1:
        return None
    pieces = [*head, lead.pop(), Item(), trail.pop(), *tail]
    return _checked(joined(pieces), [item.strip() for item in items])


def _tokens(prompt: Pieces, shared: Sequence[Piece]) -> list[Token]:
    flat = [
        piece.original if isinstance(piece, OutputPiece) and piece not in shared else piece
        for piece in prompt
    ]
    tokens: list[Token] = []
    for piece in joined(flat):
        if isinstance(piece, str):
            tokens += re.findall(_PIECE_PATTERN, piece)
        elif isinstance(piece, OutputPiece):
            tokens.append(piece)
    return tokens


def _aligned(rows: Sequence[list[Token]]) -> SharedWords | None:
    """Return the shape of prompts with equal numbers of words: all differences contain the same item."""
    stretches: list[tuple[int, int]] = []
    for at in range(len(rows[0])):
        if all(row[at] == rows[0][at] for row in rows):
            continue
        if stretches and all(str(token).isspace() for token in rows[0][stretches[-1][1] : at]):
            stretches[-1] = (stretches[-1][0], at + 1)
        else:
            stretches.append((at, at + 1))
    if not stretches:
        return None
    # Where parts differ (`a.py`, `a.py.md`), the shortest is the item, and the rest is the same around it.
    texts = [[_text(row[slice(*stretch)]) for stretch in stretches] for row in rows]
    if any(text is None for row in texts for text in row):
        return None
    shortest = min(range(len(stretches)), key=lambda one: (len(str(texts[0][one])), one))
    items = [str(row[shortest]) for row in texts]
    pieces: list[Piece] = []
    at = 0
    for number, (first, last) in enumerate(stretches):
        around = {_around_item(str(row[number]), item) for row, item in zip(texts, items, strict=True)}
        if len(around) != 1 or None in around:
            return None
        before, after = next(iter(around)) or ("", "")
        pieces += [*rows[0][at:first], before, Item(), after]
        at = last
    return _checked(joined([*pieces, *rows[0][at:]]), items)


def _around_item(text: str, item: str) -> tuple[str, str] | None:
    before, found, after = text.partition(item)
    return (before, after) if found else None


def _checked(pieces: Pieces, items: Sequence[str]) -> SharedWords | None:
    if len(set(items)) != len(items) or not all(items):
        return None
    shared = sum(len(re.findall(r"\w+", piece)) for piece in pieces if isinstance(piece, str))
    longest = max(len(item.split()) for item in items)
    if shared < max(FEWEST_SHARED, longest) and not any(isinstance(piece, OutputPiece) for piece in pieces):
        return None
    return SharedWords(pieces, tuple(items))


def _text(tokens: Sequence[Token]) -> str | None:
    """Return the text of some tokens; None if they include a reference."""
    is_text = all(isinstance(token, str) for token in tokens)
    return "".join(map(str, tokens)) if is_text else None


# -----------------------------------------------------------------------------------------------------------
# Prompts that were written for each object of a list: the same words around values of that object.
#
# Nothing is guessed here. An earlier output is a list of objects, or contains one. Every prompt is exactly
# the result of one template for one object, and there are as many prompts as objects.

MAX_OBJECTS = 500
MAX_FIELDS = 50

Object: TypeAlias = dict[str, JSON]


class OverObjects(Struct, frozen=True):
    """The delegations that are one step for a list of objects, in the order of the list."""

    path: ValuePath
    """The path of the list in the output."""
    objects: list[Object]
    members: list[int]
    first: int
    """The index of the object of the first prompt."""

    def with_items(self, pieces: Pieces) -> Pieces:
        """Return the prompt for the first object, with its values of that object as references."""
        return _with_items(pieces, self.objects[self.first], self.objects)

    def text_with_items(self, text: str, place: int) -> str:
        """Return a glob for one object as a template for all of them."""
        pieces = _with_items((text,), self.objects[place], self.objects)
        return "".join(piece if isinstance(piece, str) else hole(piece) for piece in pieces)


def find_over_objects(prompts: Mapping[int, str], first: int, output: JSON) -> OverObjects | None:
    """Return the prompts, including `first`, that one template produces for a list in `output`."""
    for path, objects in _lists(output, ()):
        for place, one in enumerate(objects):
            made = _with_items((prompts[first],), one, objects)
            if not any(isinstance(piece, Item) for piece in made):
                continue
            if (members := _written_for(made, objects, place, first, prompts)) is not None:
                return OverObjects(path, objects, members, place)
    return None


def _lists(value: JSON, path: ValuePath) -> Iterator[tuple[ValuePath, list[Object]]]:
    if isinstance(value, list):
        objects = [item for item in value if isinstance(item, dict) and item]
        if 2 <= len(value) == len(objects) <= MAX_OBJECTS:
            yield path, objects
    elif isinstance(value, dict):
        for key, one in value.items():
            if key.isidentifier():
                yield from _lists(one, (*path, key))


def _with_items(pieces: Pieces, one: Object, objects: Sequence[Object]) -> Pieces:
    """Return a text with the values of an object as references, if they differ between objects."""
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
    """Return the prompt of every object, by its number; None unless each has its own."""
    members: list[int] = []
    for number, one in enumerate(objects):
        text = _filled(made, one)
        others = (
            other for other, prompt in prompts.items() if prompt == text and other not in (first, *members)
        )
        if (found := first if number == place else next(others, None)) is None:
            return None
        members.append(found)
    return members


def _filled(made: Pieces, one: Object) -> str | None:
    """Return the result of a template for an object; None if the object lacks a value."""
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


# -----------------------------------------------------------------------------------------------------------
# Words of the user's request that prompts repeat: the probable inputs of the recipe.
#
# Rules
# * Only words that are identical in a prompt and in the request: a whole request, its quoted parts, a marked
#   word, a phrase that several prompts repeat. A phrase starts and ends with a word that is not common, so
#   "research" in "research solid-state batteries" is not part of it.
# * Longer ones come first, and their parts are not searched again.

MAX_REQUEST_WORDS = 400
MAX_INPUTS = 12
SEVERAL = 2
_QUOTED = r"\"([^\"\n]{2,200})\"|“([^”\n]{2,200})”|`([^`\n]{2,200})`|(?<!\w)'([^'\n]{2,200})'(?!\w)"
_FILE = r"[^\s/]+\.\w{1,8}"


class Literal(Struct, frozen=True):
    """A recovered input: its name, and the words of the request that are its default."""

    name: str
    value: str


def find_literals(request: str, prompts: Sequence[Pieces]) -> list[Literal]:
    """Return the inputs that a request suggests, in their order in the request."""
    left = list(prompts)
    taken: dict[str, Literal] = {}
    for kind, value in _candidates(request, prompts):
        if len(taken) == MAX_INPUTS:
            break
        if value in taken or not any(_holds(prompt, value) for prompt in left):
            continue
        literal = Literal(free_name(kind, {field.name for field in taken.values()}), value)
        taken[value] = literal
        left = [replace_words(prompt, value, InputPiece(literal.name)) for prompt in left]
    return sorted(taken.values(), key=lambda one: request.find(one.value))


def free_name(kind: str, taken: set[str]) -> str:
    """Return a name for an input: its kind, with a number if that name is taken."""
    number, name = 1, kind
    while name in taken:
        number += 1
        name = f"{kind}_{number}"
    return name


def _candidates(request: str, prompts: Sequence[Pieces]) -> Iterator[tuple[str, str]]:
    """Yield the kind and the words of each candidate; the most certain first."""
    asked = request.strip()
    if len(words_of(asked)) > 1:
        yield "request", asked
    for match in re.finditer(_QUOTED, request):
        yield "text", next(group for group in match.groups() if group is not None)
    words = words_of(request)[:MAX_REQUEST_WORDS]
    phrases = list(_phrases(request, words, prompts))
    yield from (("topic", phrase) for phrase in phrases)
    for word in words:
        if word.marked:
            text = request[word.start : word.end]
            yield _kind_of(text), text
    if len(prompts) == 1:
        yield from (("topic", text) for text in _proper_names(request, words))


def _kind_of(word: str) -> str:
    if "://" in word:
        return "url"
    if not any(letter.isalpha() for letter in word):
        return "number"
    if re.fullmatch(_FILE, word.rpartition("/")[2]) and not word.endswith("/"):
        return "file"
    return "path" if "/" in word else "name"


def _phrases(request: str, words: Sequence[Word], prompts: Sequence[Pieces]) -> Iterator[str]:
    """Yield the longest phrases of the request that several prompts have."""
    found: list[tuple[int, int]] = []
    for first, word in enumerate(words):
        if word.common:
            continue
        best = None
        for last in range(first, len(words)):
            phrase = request[word.start : words[last].end]
            if "\n" in phrase or sum(_holds(prompt, phrase) for prompt in prompts) < SEVERAL:
                break
            if not words[last].common:
                best = last
        if best is not None and not any(one <= first and best <= other for one, other in found):
            found.append((first, best))
    found.sort(key=lambda span: (span[0] - span[1], span[0]))
    yield from (request[words[first].start : words[last].end] for first, last in found)


def _proper_names(request: str, words: Sequence[Word]) -> Iterator[str]:
    """Yield names in a single request, such as Lisbon: capitals inside a sentence."""
    for before, word in pairwise(words):
        text = request[word.start : word.end]
        between = request[before.end : word.start]
        if text[:1].isupper() and not word.common and not set(between) & set(".!?:\n"):
            yield text


def _holds(prompt: Pieces, words: str) -> bool:
    return any(
        next(occurrences(piece, words), None) is not None for piece in prompt if isinstance(piece, str)
    )
