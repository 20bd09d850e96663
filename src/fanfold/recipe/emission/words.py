"""Words of a text: where each stands, and how much it tells about where the text comes from.

A word is *marked* when hardly anybody would write it by chance: a path, a name from code, an address, a long
number. It is *common* when anybody would (see `common_words`). Between the two are ordinary words, of which
several together tell something.
"""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec import Struct

from fanfold.recipe.emission.common_words import COMMON

MAX_WORDS = 50_000
"""Of one text; what comes after is not looked at."""

MAX_CACHED = 65_536

_WORD = re.compile(r"https?://[^\s<>\"')\]]*[\w/]|[./~]{0,3}\w[\w./@#'\u2019-]{0,300}\w/?|\w", re.UNICODE)
_ENDINGS = tuple("ations ation ities ings ions ity ing ion ies ers ed es er ly s e y".split())
_INNER_CAPITAL = re.compile(r"[a-z][A-Z]|[A-Z]{2,}[a-z]")
_MANY_DIGITS = 3
_SHORTEST_STEM = 4
_NOT_MARKED = frozenset({"e.g", "i.e", "a.m", "p.m", "n/a", "etc", "vs", "i/o"})


class Word(Struct, frozen=True, gc=False):
    """A word, lower-cased, and where it stands in its text."""

    text: str
    start: int
    end: int
    marked: bool

    @property
    def common(self) -> bool:
        return self.text in COMMON or len(self.text) == 1


def words_of(text: str) -> list[Word]:
    """The words of a text in order.

    >>> [word.text for word in words_of("Look at src/a.py, please.")]
    ['look', 'at', 'src/a.py', 'please']
    """
    found: list[Word] = []
    for match in _WORD.finditer(text):
        if len(found) == MAX_WORDS:
            break
        told = match[0]
        found.append(Word(told.lower(), match.start(), match.end(), is_marked(told)))
    return found


@lru_cache(maxsize=MAX_CACHED)
def is_marked(word: str) -> bool:
    """Whether a word is a name for one thing rather than part of the language.

    >>> [is_marked(word) for word in ("src/auth", "parse_tree", "HttpClient", "2026", "and/or", "battery")]
    [True, True, True, True, False, False]
    """
    low = word.lower()
    if low in _NOT_MARKED:
        return False
    if "://" in word:
        return True
    if sum(letter.isdigit() for letter in word) >= _MANY_DIGITS:
        return True
    pieces = [piece for piece in re.split(r"[/.@#_]+", low) if piece]
    if not any(letter.isalpha() for letter in low):
        return False
    if len(pieces) > 1:
        plain = all(piece in COMMON or len(piece) == 1 for piece in pieces)
        return "_" in word or "@" in word or "." in low.strip(".") or len(pieces) > 2 or not plain
    return low.startswith(("/", "~")) or bool(_INNER_CAPITAL.search(word.strip("./~")))


@lru_cache(maxsize=MAX_CACHED)
def stem(word: str) -> str:
    """What is left of a word without its ending, so that "expired" and "expires" are one.

    >>> stem("expired") == stem("expires")
    True
    """
    plain = word.replace("\u2019", "'").partition("'")[0]
    for ending in _ENDINGS:
        if plain.endswith(ending) and len(plain) - len(ending) >= _SHORTEST_STEM:
            return plain.removesuffix(ending)
    return plain
