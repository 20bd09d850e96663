"""Prompts in pieces: words as they were, and references to what will be known when the recipe runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct

from fanfold.recipe.emission.quotes import Path, Quote
from fanfold.text.template import literal


class Given(Struct, frozen=True):
    """What another delegation put out, or a value in it; `said` are the words that stood here."""

    source: int
    path: Path
    said: str
    exact: bool


class Item(Struct, frozen=True):
    """The item of the list that a step is done for, or a value in it."""

    path: Path = ()


class Named(Struct, frozen=True):
    """An input."""

    name: str


class Referred(Struct, frozen=True):
    """What a step of the recipe put out; `said` are the words that stood here."""

    step: str
    path: Path
    said: str
    exact: bool


Piece: TypeAlias = str | Given | Item | Named | Referred
Pieces: TypeAlias = tuple[Piece, ...]


def split(prompt: str, quotes: Sequence[Quote]) -> Pieces:
    """A prompt with its quotes, which come in order and do not overlap, taken out."""
    pieces: list[Piece] = []
    at = 0
    for quote in quotes:
        pieces += (
            prompt[at : quote.start],
            Given(quote.source, quote.path, prompt[quote.start : quote.end], quote.exact),
        )
        at = quote.end
    return joined([*pieces, prompt[at:]])


def joined(pieces: Sequence[Piece]) -> Pieces:
    """The same with neighbouring texts put together and empty ones left out."""
    whole: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and whole and isinstance(whole[-1], str):
            whole[-1] += piece
        elif piece != "":
            whole.append(piece)
    return tuple(whole)


def replace_words(pieces: Pieces, words: str, by: Piece) -> Pieces:
    """Put a reference wherever these words stand by themselves."""
    found: list[Piece] = []
    for piece in pieces:
        if not isinstance(piece, str) or words not in piece:
            found.append(piece)
            continue
        at = 0
        for start in occurrences(piece, words):
            found += (piece[at:start], by)
            at = start + len(words)
        found.append(piece[at:])
    return joined(found)


def occurrences(text: str, words: str) -> Iterator[int]:
    """Where these words stand, not as part of longer ones."""
    before = r"(?<![\w])" if words[:1].isalnum() else ""
    after = r"(?![\w])" if words[-1:].isalnum() else ""
    for match in re.finditer(f"{before}{re.escape(words)}{after}", text):
        yield match.start()


def hole(piece: Given | Item | Named | Referred) -> str:
    """How a template writes a reference."""
    match piece:
        case Item(path):
            return f"{{{{item{path_text(path)}}}}}"
        case Named(name):
            return f"{{{{inputs.{name}}}}}"
        case Referred(step, path):
            return f"{{{{steps.{step}.output{path_text(path)}}}}}"
        case Given():
            raise AssertionError("what was given is referred to by its step before it is written")


def path_text(path: Path) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def template(pieces: Pieces) -> str:
    """The template that these pieces are."""
    return "".join(literal(piece) if isinstance(piece, str) else hole(piece) for piece in pieces)
