"""Words of the user's request that prompts repeat: what a user of the recipe would want to say anew.

Rules
* Only words that stand in a prompt as they stand in the request: a whole request, what it puts in quotation
  marks, a marked word, a phrase that several prompts repeat. A phrase begins and ends with a word that is not
  common, so "research" in "research solid-state batteries" stays where it is.
* Longer ones come first, and what is in one of them is not looked for again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

from fanfold.recipe.emission.pieces import Named, Pieces, occurrences, replace_words
from fanfold.recipe.emission.words import Word, words_of

MAX_REQUEST_WORDS = 400
MAX_INPUTS = 12
SEVERAL = 2
_QUOTED = re.compile(
    r"\"([^\"\n]{2,200})\"|“([^”\n]{2,200})”|`([^`\n]{2,200})`|(?<!\w)'([^'\n]{2,200})'(?!\w)"
)
_FILE = re.compile(r"[^\s/]+\.\w{1,8}")


class Literal(Struct, frozen=True):
    """An input that was recovered: its name, and the words of the request that are its default."""

    name: str
    value: str


def find_literals(request: str, prompts: Sequence[Pieces]) -> list[Literal]:
    """The inputs that a request suggests, in the order they stand in it."""
    left = list(prompts)
    taken: dict[str, Literal] = {}
    for kind, value in _candidates(request, prompts):
        if len(taken) == MAX_INPUTS:
            break
        if value in taken or not any(_holds(prompt, value) for prompt in left):
            continue
        literal = Literal(free_name(kind, {one.name for one in taken.values()}), value)
        taken[value] = literal
        left = [replace_words(prompt, value, Named(literal.name)) for prompt in left]
    return sorted(taken.values(), key=lambda one: request.find(one.value))


def free_name(kind: str, taken: set[str]) -> str:
    """What an input is called: its kind, with a number where there is one of that name."""
    number, name = 1, kind
    while name in taken:
        number += 1
        name = f"{kind}_{number}"
    return name


def _candidates(request: str, prompts: Sequence[Pieces]) -> Iterator[tuple[str, str]]:
    """What each would be called, and its words; the surest first."""
    asked = request.strip()
    if len(words_of(asked)) > 1:
        yield "request", asked
    for match in _QUOTED.finditer(request):
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
    if _FILE.fullmatch(word.rpartition("/")[2]) and not word.endswith("/"):
        return "file"
    return "path" if "/" in word else "name"


def _phrases(request: str, words: Sequence[Word], prompts: Sequence[Pieces]) -> Iterator[str]:
    """The longest phrases of the request that several prompts have."""
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
    """Names in a single request, such as Lisbon: capitals inside a sentence."""
    for before, word in pairwise(words):
        text = request[word.start : word.end]
        between = request[before.end : word.start]
        if text[:1].isupper() and not word.common and not set(between) & set(".!?:\n"):
            yield text


def _holds(prompt: Pieces, words: str) -> bool:
    return any(
        next(occurrences(piece, words), None) is not None for piece in prompt if isinstance(piece, str)
    )
