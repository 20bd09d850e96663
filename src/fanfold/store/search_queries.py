"""The query language of search: words, "phrases in quotes", and prefixes of words (`dendr*`).

Rules
* Any word, phrase or prefix may match, and each match adds to the score. A query is split into words exactly
  like the indexed text. No query is invalid: an unclosed quote is not a quote, and a star without a prefix is
  ignored.
* Adjacent letters of scripts without spaces are searched together, like a phrase.
* A prefix matches the words that start with it, at most the first hundred.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    import tantivy

# -----------------------------------------------------------------------------------------------------------
# Normalization of letters: scripts without spaces, and letters with accents
#
# The index splits text into words at every character that is neither letter nor digit. Chinese, Japanese,
# Thai and other scripts put nothing between words, so a whole sentence would be one word. In these scripts
# every letter is indexed as a word, and a query for a word is a phrase of letters.

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff"
)
_LETTER = f"[{_UNSPACED}]"
_RUNS = f"[{_UNSPACED}]+|[^{_UNSPACED}]+"


def spaced(text: str) -> str:
    """Return the text with spaces around letters of scripts without spaces.

    >>> spaced("see 安全").split()
    ['see', '安', '全']
    """
    return text if text.isascii() else re.sub(_LETTER, r" \g<0> ", text)


def is_unspaced(text: str) -> bool:
    """Return whether a text starts in a script without spaces."""
    return re.match(_LETTER, text) is not None


def runs(text: str) -> list[str]:
    """Split a text into pieces written with spaces and pieces written without, in order.

    >>> runs("ok安全ok")
    ['ok', '安全', 'ok']
    """
    return [text] if text.isascii() else re.findall(_RUNS, text)


class _Plain(dict[int, int]):
    """Maps letters to the letter without accents if that is one ASCII letter; keeps all others."""

    def __missing__(self, code: int) -> int:
        base = unicodedata.normalize("NFD", chr(code))[0]
        self[code] = found = ord(base) if base.isascii() else code
        return found


_PLAIN = _Plain(str.maketrans("øØłŁđĐı", "oOlLdDi"))


def without_accents(text: str) -> str:
    """Return the text without accents, with the same length.

    >>> without_accents("Café 검색")
    'Cafe 검색'
    """
    return text if text.isascii() else text.translate(_PLAIN)


MAX_WORDS = 32
MAX_CHARACTERS = 10_000
MAX_BEGUN = 100
MIN_PREFIX = 2
_PIECE = r'"([^"]*)"|(\S+)'


class SearchWish(Struct, frozen=True):
    """One word, phrase or prefix of a query; `words` are normalized like the index."""

    words: tuple[str, ...]
    kind: str
    """`word`, `phrase` or `prefix`."""

    @property
    def sought(self) -> list[str]:
        """The words as they appear in a text; letters of scripts without spaces are joined."""
        found: list[str] = []
        for index, word in enumerate(self.words):
            if index and is_unspaced(word) and is_unspaced(self.words[index - 1]):
                found[-1] += word
            else:
                found.append(word)
        return found

    @property
    def shown(self) -> str:
        words = " ".join(self.sought)
        return f'"{words}"' if self.kind == "phrase" else f"{words}*" if self.kind == "prefix" else words


class ScorePart(Struct, frozen=True):
    """The contribution of one part of a query to a score: the two factors of BM25, and their product."""

    wish: str
    score: float
    rarity: float
    """Inverse document frequency."""
    frequency: float
    """How often it occurs, relative to the length of the output; saturates."""


def understand(text: str, cut: Callable[[str], list[str]]) -> list[SearchWish]:
    """Parse a query into its words, phrases and prefixes; `cut` splits a text into words like the index."""
    wishes: dict[SearchWish, None] = {}
    for piece in re.finditer(_PIECE, text[:MAX_CHARACTERS]):
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
    """Return the query of the index for one word, phrase or prefix."""
    from tantivy import Occur, Query

    if wish.kind == "phrase":
        return Query.phrase_query(schema, "text", list(wish.words))
    if wish.kind == "word":
        return Query.term_query(schema, "text", wish.words[0], "freq")
    begun = begun_with(wish, searcher)
    if not begun:
        return Query.empty_query()
    return Query.boolean_query(
        [(Occur.Should, Query.term_query(schema, "text", term, "freq")) for term in begun]
    )


def begun_with(wish: SearchWish, searcher: tantivy.Searcher) -> list[str]:
    """Return the words of the index that start with a prefix."""
    found = searcher.terms_with_prefix("text", wish.words[0], limit=MAX_BEGUN)
    return sorted(term for term, _ in found)


def score_part(
    wish: SearchWish, query: tantivy.Query, searcher: tantivy.Searcher, address: tantivy.DocAddress
) -> ScorePart | None:
    """Return the contribution of one part of a query to the score of an output; None without a match."""
    try:
        explanation = json.loads(query.explain(searcher, address).to_json())
    except ValueError:
        return None
    facts = list(_facts(explanation))
    rarity = sum(value for name, value in facts if name.startswith("idf"))
    frequency = sum(value for name, value in facts if name.startswith("freq /"))
    return ScorePart(wish.shown, float(explanation["value"]), rarity, frequency)


def _facts(explanation: dict[str, Any]) -> Iterator[tuple[str, float]]:
    yield str(explanation.get("description", "")), float(explanation.get("value", 0.0))
    for part in explanation.get("details", ()):
        yield from _facts(part)


def words_shown(wishes: Sequence[SearchWish], searcher: tantivy.Searcher) -> list[str]:
    """Return the words that an excerpt should show."""
    found: list[str] = []
    for wish in wishes:
        found += begun_with(wish, searcher) if wish.kind == "prefix" else wish.sought
    return list(dict.fromkeys(found))


# -----------------------------------------------------------------------------------------------------------
# Excerpts: the part of a text that shows why it was found

WIDTH = 240
MAX_MATCHES = 1_000
"""The number of matches considered for an excerpt. More matches of the same word would not improve it."""

_SPACE = r"\s+"
_LIGATURES = {"ss": "ß", "ae": "æ", "oe": "œ"}
"""Letters that the index stores as two letters."""


def excerpt(text: str, words: Sequence[str], width: int = WIDTH) -> str:
    """Return about `width` characters of `text`, on one line, where most of the words occur together.

    A word that is rare in the text counts more than a frequent one.

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
    piece = re.sub(_SPACE, " ", text[start:end]).strip()
    return f"{'…' if start > 0 else ''}{piece}{'…' if end < len(text) else ''}"


def _densest(text: str, words: Sequence[str], width: int) -> int:
    """Return the start of the part of `width` characters with the highest total weight of words."""
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
    """Return a pattern that finds normalized words in a text without accents."""
    spaced = [re.escape(word) for word in words if not is_unspaced(word)]
    # The index ignores punctuation between these letters.
    others = [r"[^\w\s]{0,2}".join(word) for word in words if is_unspaced(word)]
    if not text.isascii():
        for letters, ligature in _LIGATURES.items():
            spaced = [word.replace(letters, f"(?:{letters}|{ligature})") for word in spaced]
    whole = [rf"(?<![^\W_])(?:{'|'.join(spaced)})(?![^\W_])"] if spaced else []
    return re.compile("|".join((*whole, *others)), re.IGNORECASE)
