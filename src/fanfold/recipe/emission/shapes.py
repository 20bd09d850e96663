"""Prompts of one shape: the same words around one thing that differs, which is then the item of a list.

Two prompts have one shape when they agree in everything but one stretch of words, and wherever else they
differ they differ by that stretch. The words they share must be more than those that differ: two sentences
that both begin with "List" are no shape.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from fanfold.recipe.emission.pieces import Given, Item, Piece, Pieces, joined

FEWEST_SHARED = 1
_TOKEN = re.compile(r"[\w./@#-]*\w/?|\s+|.", re.DOTALL)

Token: TypeAlias = str | Given


class SharedWords(Struct, frozen=True):
    """What prompts have in common, and in what each differs."""

    pieces: Pieces
    items: tuple[str, ...]


def find_shape(prompts: Sequence[Pieces]) -> SharedWords | None:
    """The one shape of all these prompts, if they have one.

    What all of them were given stays a reference; what only some were given may be the item.
    """
    shared = [piece for piece in prompts[0] if all(piece in prompt for prompt in prompts)]
    rows = [_tokens(prompt, shared) for prompt in prompts]
    if len({len(row) for row in rows}) == 1:
        shape = _aligned(rows)
        if shape is not None:
            return shape
    return _around(rows)


def _tokens(prompt: Pieces, shared: Sequence[Piece]) -> list[Token]:
    flat = [piece.said if isinstance(piece, Given) and piece not in shared else piece for piece in prompt]
    tokens: list[Token] = []
    for piece in joined(flat):
        if isinstance(piece, str):
            tokens += _TOKEN.findall(piece)
        elif isinstance(piece, Given):
            tokens.append(piece)
    return tokens


def _aligned(rows: Sequence[list[Token]]) -> SharedWords | None:
    """Prompts of as many words each: all places where they differ hold the same item."""
    stretches: list[tuple[int, int]] = []
    for at in range(len(rows[0])):
        if all(row[at] == rows[0][at] for row in rows):
            continue
        if stretches and all(_is_space(rows[0][between]) for between in range(stretches[-1][1], at)):
            stretches[-1] = (stretches[-1][0], at + 1)
        else:
            stretches.append((at, at + 1))
    if not stretches:
        return None
    items = [_text(row[slice(*stretches[0])]) for row in rows]
    for stretch in stretches:
        if [_text(row[slice(*stretch)]) for row in rows] != items:
            return _same_core(rows, stretches)
    return _shape(rows[0], stretches, items)


def _same_core(rows: Sequence[list[Token]], stretches: Sequence[tuple[int, int]]) -> SharedWords | None:
    """Words that differ in a part of them only, as in `a.py` and `a.py.md`: the shortest is the item."""
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


def _around(rows: Sequence[list[Token]]) -> SharedWords | None:
    """Prompts that begin and end alike: what stands between is the item."""
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
    # Space at the edge of what differs belongs to the words around it.
    lead = {item[: len(item) - len(item.lstrip())] for item in items}
    trail = {item[len(item.rstrip()) :] for item in items}
    if len(lead) != 1 or len(trail) != 1:
        return None
    pieces = [*head, lead.pop(), Item(), trail.pop(), *tail]
    return _checked(joined(pieces), [item.strip() for item in items])


def _shape(
    row: Sequence[Token], stretches: Sequence[tuple[int, int]], items: Sequence[str | None]
) -> SharedWords | None:
    if any(item is None for item in items):
        return None
    pieces: list[Piece] = []
    at = 0
    for first, last in stretches:
        pieces += [*row[at:first], Item()]
        at = last
    return _checked(joined([*pieces, *row[at:]]), [str(item) for item in items])


def _checked(pieces: Pieces, items: Sequence[str]) -> SharedWords | None:
    if len(set(items)) != len(items) or not all(items):
        return None
    shared = sum(len(re.findall(r"\w+", piece)) for piece in pieces if isinstance(piece, str))
    longest = max(len(item.split()) for item in items)
    if shared < max(FEWEST_SHARED, longest) and not any(isinstance(piece, Given) for piece in pieces):
        return None
    return SharedWords(pieces, tuple(items))


def _text(tokens: Sequence[Token]) -> str | None:
    """The words of a stretch; None when something that was given is in it."""
    return "".join(str(one) for one in tokens) if all(isinstance(one, str) for one in tokens) else None


def _is_space(token: Token) -> bool:
    return isinstance(token, str) and token.isspace()
