"""The piece of a text that shows why it was found."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from fanfold.store.search.letters import is_unspaced, without_accents

WIDTH = 240
MAX_MATCHES = 1_000
"""Looked at when choosing the piece; a text that says one word thousands of times reads alike anywhere."""

_SPACE = re.compile(r"\s+")
_LIGATURES = {"ss": "ß", "ae": "æ", "oe": "œ"}
"""Letters that the index writes as two."""


def excerpt(text: str, words: Sequence[str], width: int = WIDTH) -> str:
    """About `width` characters of `text`, on one line, where the most words stand together.

    A word that is rare in the text counts for more than one that is everywhere in it.

    >>> excerpt("one two three four five six seven", ["six"], 16)
    '…five six seven'
    """
    start = _densest(text, words, width)
    end = min(len(text), start + width)
    if start > 0:
        start = text.find(" ", start, start + 30) + 1 or start
    if end < len(text):
        cut = text.rfind(" ", max(start, end - 30), end)
        end = cut if cut > start else end
    piece = _SPACE.sub(" ", text[start:end]).strip()
    return f"{'…' if start > 0 else ''}{piece}{'…' if end < len(text) else ''}"


def _densest(text: str, words: Sequence[str], width: int) -> int:
    """Where to start so that the words within `width` characters are worth the most."""
    if not words or len(text) <= width:
        return 0
    found = islice(_standing(words, text).finditer(without_accents(text)), MAX_MATCHES)
    matches = [(match.start(), match[0].lower()) for match in found]
    worth = {word: 1 / count for word, count in Counter(word for _, word in matches).items()}
    best, best_worth, now, first = 0, 0.0, 0.0, 0
    inside: Counter[str] = Counter()
    for position, word in matches:
        now += 0.0 if inside[word] else worth[word]
        inside[word] += 1
        while position - matches[first][0] > width * 2 // 3:
            gone = matches[first][1]
            inside[gone] -= 1
            now -= 0.0 if inside[gone] else worth[gone]
            first += 1
        if now > best_worth + 1e-9:
            best, best_worth = matches[first][0], now
    return max(0, min(best - width // 6, len(text) - width))


def _standing(words: Sequence[str], text: str) -> re.Pattern[str]:
    """A pattern for words as the index has them, in a text without accents."""
    spaced = [re.escape(word) for word in words if not is_unspaced(word)]
    # Marks between letters are no part of them to the index.
    others = [r"[^\w\s]{0,2}".join(word) for word in words if is_unspaced(word)]
    if not text.isascii():
        for letters, ligature in _LIGATURES.items():
            spaced = [word.replace(letters, f"(?:{letters}|{ligature})") for word in spaced]
    whole = [rf"(?<![^\W_])(?:{'|'.join(spaced)})(?![^\W_])"] if spaced else []
    return re.compile("|".join((*whole, *others)), re.IGNORECASE)
