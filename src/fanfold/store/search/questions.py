"""What a question to the search says: words, "phrases in quotes", and beginnings of words (`dendr*`).

Rules
* Any word, phrase or beginning may match; each that does adds to the score. Words are cut exactly as the
  indexed text was, so that there is no such thing as a wrong question: a quote that is never closed is no
  quote, a star that begins nothing is none.
* Letters of scripts without spaces that stand together are looked for together, like a phrase.
* A beginning stands for the words that begin so, the first hundred of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from fanfold.store.search.letters import is_unspaced, runs, spaced

if TYPE_CHECKING:
    import tantivy

MAX_WORDS = 32
MAX_CHARACTERS = 10_000
MAX_BEGUN = 100
MIN_PREFIX = 2
_PIECE = re.compile(r'"([^"]*)"|(\S+)')


class SearchWish(Struct, frozen=True):
    """One thing that is looked for; `words` are as the index has them."""

    words: tuple[str, ...]
    kind: str
    """`word`, `phrase` or `prefix`."""

    @property
    def sought(self) -> list[str]:
        """The words as they stand in a text, letters of scripts without spaces together."""
        found: list[str] = []
        for index, word in enumerate(self.words):
            if index and is_unspaced(word) and is_unspaced(self.words[index - 1]):
                found[-1] += word
            else:
                found.append(word)
        return found

    @property
    def shown(self) -> str:
        said = " ".join(self.sought)
        return f'"{said}"' if self.kind == "phrase" else f"{said}*" if self.kind == "prefix" else said


class ScorePart(Struct, frozen=True):
    """What one word, phrase or beginning adds to a score: BM25's two factors, and their product."""

    wish: str
    score: float
    rarity: float
    """Inverse document frequency."""
    frequency: float
    """How often it stands there, against the length of the output; saturates."""


def understand(text: str, cut: Callable[[str], list[str]]) -> list[SearchWish]:
    """The wishes in a question; `cut` makes the index's words of a text."""
    wishes: dict[SearchWish, None] = {}
    for piece in _PIECE.finditer(text[:MAX_CHARACTERS]):
        for wish in _wishes(piece, cut):
            wishes.setdefault(wish)
        if len(wishes) >= MAX_WORDS:
            break
    return list(wishes)[:MAX_WORDS]


def _wishes(piece: re.Match[str], cut: Callable[[str], list[str]]) -> Iterator[SearchWish]:
    quoted, plain = piece[1], piece[2]
    if quoted is not None:
        yield from _together(tuple(cut(spaced(quoted))))
        return
    for run in runs(plain):
        words = tuple(cut(spaced(run)))
        if is_unspaced(run):
            yield from _together(words)
            continue
        begins = run.endswith("*") and bool(words) and len(words[-1]) >= MIN_PREFIX
        for index, word in enumerate(words):
            yield SearchWish((word,), "prefix" if begins and index == len(words) - 1 else "word")


def _together(words: tuple[str, ...]) -> Iterator[SearchWish]:
    if words:
        yield SearchWish(words[:MAX_WORDS], "phrase" if len(words) > 1 else "word")


def query_of(wish: SearchWish, searcher: tantivy.Searcher, schema: tantivy.Schema) -> tantivy.Query:
    """The wish in the index's terms."""
    from tantivy import Occur, Query

    if wish.kind == "phrase":
        return Query.phrase_query(schema, "text", list(wish.words))
    if wish.kind == "word":
        return Query.term_query(schema, "text", wish.words[0], "freq")
    begun = begun_with(wish, searcher)
    if not begun:
        return Query.empty_query()
    return Query.boolean_query(
        [(Occur.Should, Query.term_query(schema, "text", one, "freq")) for one in begun]
    )


def begun_with(wish: SearchWish, searcher: tantivy.Searcher) -> list[str]:
    """The words of the index that begin so."""
    found = searcher.terms_with_prefix("text", wish.words[0], limit=MAX_BEGUN)
    return sorted(term for term, _ in found)


def score_part(
    wish: SearchWish, query: tantivy.Query, searcher: tantivy.Searcher, address: tantivy.DocAddress
) -> ScorePart | None:
    """What a wish adds to the score of an output; None where it does not match it."""
    try:
        told = json.loads(query.explain(searcher, address).to_json())
    except ValueError:
        return None
    facts = list(_facts(told))
    rarity = sum(value for name, value in facts if name.startswith("idf"))
    frequency = sum(value for name, value in facts if name.startswith("freq /"))
    return ScorePart(wish.shown, float(told["value"]), rarity, frequency)


def _facts(told: dict[str, Any]) -> Iterator[tuple[str, float]]:
    yield str(told.get("description", "")), float(told.get("value", 0.0))
    for part in told.get("details", ()):
        yield from _facts(part)


def words_shown(wishes: Sequence[SearchWish], searcher: tantivy.Searcher) -> list[str]:
    """The words that an excerpt should show."""
    found: list[str] = []
    for wish in wishes:
        found += begun_with(wish, searcher) if wish.kind == "prefix" else wish.sought
    return list(dict.fromkeys(found))
