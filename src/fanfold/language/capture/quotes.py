"""Finds the parts of a prompt that come from earlier outputs.

Rules
* Only an output that existed when the prompt was written can be in it.
* Only new content of an output counts. Text that the request, a prompt or an earlier output already contained
  is no evidence, and neither are common words.
* A *quote* is the whole output, a value of a structured one, or one distinctive part: six words in a row, or
  a marked word with the same neighbors in both texts. It has a position in the prompt. A whole output of one
  or two words is a quote, and a guess, if one of them is new.
* A *trace* has no position: several separate parts, or three new words of the output.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct, structs

from fanfold.kernel.plan import JSON
from fanfold.language.builder import Recipe
from fanfold.language.json_text import as_text
from fanfold.language.template import literal

# -----------------------------------------------------------------------------------------------------------
# The input and the result of a recovery, as plain data.
#
# A delegation is one child of an open run, from its log. Only the order of events is used: `asked` and
# `ended` are event numbers. If one delegation ended before another was requested, its number is smaller.


class Delegation(Struct, frozen=True, kw_only=True):
    """One child: its prompt, its settings and its output."""

    name: str
    chosen: bool
    """Whether the name was chosen; otherwise the step is named after the prompt."""
    role: str
    prompt: str
    output: JSON
    status: str
    """Its status: `completed`, or another outcome."""
    failure: str = ""
    """The class of its failure."""
    asked: int
    ended: int
    """0: it has not ended."""
    continues: str = ""
    """The delegation whose conversation this one continued."""
    settings: dict[str, JSON]
    """Other keys of its step, as in a recipe: sets, schema, workspace, deadline."""
    leaves_files: bool
    """Whether it may have changed files, which later steps may have seen."""
    failed_as: tuple[str, ...] = ()
    """Classes of the failures before it succeeded in a retry."""
    tools: tuple[str, ...] = ()
    """Tools that it used."""


class OmittedChild(Struct, frozen=True):
    """A child that is not a step of the recipe, with the reason."""

    name: str
    why: str


class StandsFor(Struct, frozen=True):
    """A placeholder that will not produce the original text, and that text."""

    step: str
    hole: str
    said: str


class Emission(Struct, frozen=True, kw_only=True):
    """A recipe, with its certain and its guessed parts."""

    recipe: Recipe | None
    """None if no delegation completed."""
    made_of: dict[str, list[str]]
    """The children of each step, in the order of its items."""
    recognised: list[str]
    guessed: list[str]
    stands_for: list[StandsFor]
    left_out: list[OmittedChild]


# -----------------------------------------------------------------------------------------------------------
# Words that are no evidence for the source of a text: two texts may share any number of them by chance.
#
# They are everyday English and the vocabulary of software work: a reviewer of a file will write "review" and
# "file". The list, `quotes.txt`, should be generous. A word too many loses an edge, which a person can
# add. A word too few invents an edge.

COMMON = frozenset(Path(__file__).with_suffix(".txt").read_text("utf-8").split())

# -----------------------------------------------------------------------------------------------------------
# Words of a text: their positions, and how far they identify the source of the text.
#
# A word is *marked* if it is rarely written by chance: a path, a name from code, an address, a long number.
# It is *common* if any text may contain it (see `COMMON`). Other words are ordinary, and several of
# them together are evidence.

MAX_WORDS = 50_000
"""Limit per text; the rest is ignored."""

MAX_CACHED = 65_536

_WORD = re.compile(r"https?://[^\s<>\"')\]]*[\w/]|[./~]{0,3}\w[\w./@#'\u2019-]{0,300}\w/?|\w", re.UNICODE)
_ENDINGS = tuple("ations ation ities ings ions ity ing ion ies ers ed es er ly s e y".split())
_INNER_CAPITAL = r"[a-z][A-Z]|[A-Z]{2,}[a-z]"
_MANY_DIGITS = 3
_SHORTEST_STEM = 4
_NOT_MARKED = frozenset({"e.g", "i.e", "a.m", "p.m", "n/a", "etc", "vs", "i/o"})


class Word(Struct, frozen=True, gc=False):
    """A word in lower case, and its position in the text."""

    text: str
    start: int
    end: int
    marked: bool

    @property
    def common(self) -> bool:
        return self.text in COMMON or len(self.text) == 1


def words_of(text: str) -> list[Word]:
    """Return the words of a text in order.

    >>> [word.text for word in words_of("Look at src/a.py, please.")]
    ['look', 'at', 'src/a.py', 'please']
    """
    found: list[Word] = []
    for match in _WORD.finditer(text):
        if len(found) == MAX_WORDS:
            break
        found.append(Word(match[0].lower(), match.start(), match.end(), is_marked(match[0])))
    return found


@lru_cache(maxsize=MAX_CACHED)
def is_marked(word: str) -> bool:
    """Return whether a word is the name of one thing and not part of the language.

    >>> [is_marked(word) for word in ("src/auth", "parse_tree", "HttpClient", "2026", "and/or", "battery")]
    [True, True, True, True, False, False]
    """
    low = word.lower()
    if low in _NOT_MARKED:
        return False
    if "://" in word or sum(letter.isdigit() for letter in word) >= _MANY_DIGITS:
        return True
    pieces = [piece for piece in re.split(r"[/.@#_]+", low) if piece]
    if not any(letter.isalpha() for letter in low):
        return False
    if len(pieces) > 1:
        plain = all(piece in COMMON or len(piece) == 1 for piece in pieces)
        return "_" in word or "@" in word or "." in low.strip(".") or len(pieces) > 2 or not plain
    return low.startswith(("/", "~")) or bool(re.search(_INNER_CAPITAL, word.strip("./~")))


@lru_cache(maxsize=MAX_CACHED)
def stem(word: str) -> str:
    """Return a word without its ending, so that "expired" and "expires" are equal.

    >>> stem("expired") == stem("expires")
    True
    """
    plain = word.replace("\u2019", "'").partition("'")[0]
    for ending in _ENDINGS:
        if plain.endswith(ending) and len(plain) - len(ending) >= _SHORTEST_STEM:
            return plain.removesuffix(ending)
    return plain


RUN = 6
"""Number of words in a row that are not repeated by chance."""
DISTINCT_IN_RUN = 4
TRACES = 3
"""Number of new words of an output that together prove that it was read."""
WHOLE_WORDS = 3
FEWEST_LETTERS = 4
"""Minimum length of a word that identifies a whole output of one or two words."""
MAX_GAP = 3
"""Two parts of one output with at most this many words between them are one."""
MAX_LEAVES = 2_000
AT_ONCE = -1
"""The time of the request: before everything."""

ValuePath = tuple[str | int, ...]


class Quote(Struct, frozen=True):
    """A part of a prompt from an output; `exact`: the placeholder would produce exactly this text."""

    start: int
    end: int
    source: int
    path: ValuePath = ()
    exact: bool = True


class QuotedPieces(Struct, frozen=True):
    """The parts of one prompt from outputs, and the outputs with traces without a position."""

    quotes: list[Quote]
    traces: list[int]


class _WordIndex:
    """The sources of each word, or run of words, in the conversation."""

    def __init__(self) -> None:
        self.asked: dict[object, int] = {}
        """When a prompt, or the request, first had it."""
        self.given: defaultdict[object, list[int]] = defaultdict(list)
        """The outputs that have it."""

    def ask(self, key: object, at: int) -> None:
        self.asked[key] = min(at, self.asked.get(key, at))

    def give(self, key: object, by: int) -> None:
        if key and (not self.given[key] or self.given[key][-1] != by):
            self.given[key].append(by)


class Quotes:
    """All texts of the conversation, for comparison with each prompt."""

    def __init__(self, delegations: Sequence[Delegation], request: str) -> None:
        self._all = delegations
        self._prompts = [words_of(delegation.prompt) for delegation in delegations]
        self._outputs = [words_of(as_text(delegation.output)) for delegation in delegations]
        self._pairs = [_pairs(words) for words in self._outputs]
        self._words, self._runs, self._stems = _WordIndex(), _WordIndex(), _WordIndex()
        self._forms: dict[int, list[tuple[ValuePath, str, bool]]] = {}
        self._earlier = [
            (AT_ONCE, request),
            *((delegation.asked, delegation.prompt) for delegation in delegations),
        ]
        self._note_asked(words_of(request), AT_ONCE)
        for number, one in enumerate(delegations):
            self._note_asked(self._prompts[number], one.asked)
            for word in self._outputs[number]:
                self._words.give(word.text, number)
                self._stems.give(stem(word.text), number)
            for run in _runs(self._outputs[number]):
                self._runs.give(run, number)

    def _note_asked(self, words: Sequence[Word], at: int) -> None:
        for word in words:
            self._words.ask(word.text, at)
            self._stems.ask(stem(word.text), at)
        for run in _runs(words):
            self._runs.ask(run, at)

    def of(self, number: int) -> QuotedPieces:
        """Return the parts of a delegation's prompt from the outputs that existed then."""
        one = self._all[number]
        before = [other for other, given in enumerate(self._all) if given.ended < one.asked]
        quotes = self._wholes(number, before)
        traces: list[int] = []
        for source, spans in self._parts(number, quotes):
            if len(spans) == 1:
                quotes.append(self._with_marks(Quote(*spans[0], source, exact=False), one.prompt))
            else:
                traces.append(source)
        sources = {quote.source for quote in quotes} | set(traces)
        traces += [source for source in self._read(number, before, quotes) if source not in sources]
        return QuotedPieces(sorted(quotes, key=lambda quote: quote.start), sorted(traces))

    def _with_marks(self, quote: Quote, prompt: str) -> Quote:
        """Return a part at the end of its output with the same final punctuation in both texts."""
        words, text = self._outputs[quote.source], as_text(self._all[quote.source].output).rstrip()
        mark = text[words[-1].end :]
        reaches = prompt[quote.start : quote.end].lower().endswith(words[-1].text)
        if not (mark and reaches and prompt.startswith(mark, quote.end)):
            return quote
        return structs.replace(quote, end=quote.end + len(mark))

    # Whole outputs, and values of structured ones

    def _wholes(self, number: int, before: Sequence[int]) -> list[Quote]:
        prompt = self._all[number].prompt
        found: list[Quote] = []
        for source in before:
            for path, text, exact in self._evident_forms(source):
                places = occurrences(prompt, text)
                found += (Quote(at, at + len(text), source, path, exact) for at in places)
        found.sort(key=lambda quote: (quote.start - quote.end, quote.start))
        kept: list[Quote] = []
        for quote in found:
            if all(quote.end <= other.start or other.end <= quote.start for other in kept):
                kept.append(quote)
        return kept

    def _evident_forms(self, source: int) -> list[tuple[ValuePath, str, bool]]:
        """Return the forms of an output in a prompt that are sufficient evidence."""
        if source not in self._forms:
            forms = list(_forms(self._all[source].output))
            evident = [form for form in forms if self._is_evidence(form[1], source)]
            few = [form for form in forms if form not in evident and self._names(form[0], form[1], source)]
            self._forms[source] = [*evident, *((path, text, False) for path, text, _ in few)]
        return self._forms[source]

    def _names(self, path: ValuePath, text: str, source: int) -> bool:
        """Return whether a text of few words is a new name in this output; an inner value needs two."""
        if not (words := words_of(text)) or len(words) >= WHOLE_WORDS or (path and len(words) == 1):
            return False
        return any(
            not word.common
            and len(word.text) >= FEWEST_LETTERS
            and word.text.isalpha()
            and self._brought(self._words, word.text, source)
            for word in words
        )

    def _is_evidence(self, text: str, source: int) -> bool:
        """Return whether this text is evidence that it came from this output."""
        words = words_of(text)
        distinctive = [word for word in words if not word.common]
        marked = any(word.marked for word in words)
        long = len(words) >= WHOLE_WORDS and bool(distinctive)
        if not (marked or long or any(_runs(words))):
            return False
        if len(words) >= RUN:
            return any(self._brought(self._runs, run, source) for run in _runs(words))
        if any(self._brought(self._words, word.text, source) for word in distinctive):
            return True
        delegation = self._all[source]
        outputs = (other.output for other in self._all if other.ended < delegation.asked)
        return not (
            any(at < delegation.ended and text in earlier_text for at, earlier_text in self._earlier)
            or any(text in as_text(output) for output in outputs)
        )

    def _brought(self, seen: _WordIndex, key: object, source: int) -> bool:
        """Return whether an output was the first with some content, as far as its reader could know."""
        one = self._all[source]
        if seen.asked.get(key, one.ended) < one.ended:
            return False
        given = seen.given.get(key, ())
        return source in given and all(
            self._all[other].ended >= one.asked for other in given if other != source
        )

    # Parts

    def _parts(self, number: int, quotes: Sequence[Quote]) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Yield the outputs with parts in the unquoted text, and the positions of the parts."""
        words = self._prompts[number]
        free = [not any(q.start < word.end and word.start < q.end for q in quotes) for word in words]
        hits: defaultdict[int, set[int]] = defaultdict(set)
        for at, word in enumerate(words):
            if word.marked and free[at]:
                for source in self._sources(self._words, word.text, number):
                    hits[source].add(at)
        for at, run in enumerate(_runs(words)):
            if all(free[at : at + RUN]):
                for source in self._sources(self._runs, run, number):
                    hits[source].update(range(at, at + RUN))
        claimed: set[int] = set()
        for source in sorted(hits, key=lambda one: (-len(hits[one]), one)):
            if spans := self._spans(words, free, hits[source] - claimed, self._pairs[source]):
                claimed.update(at for first, last in spans for at in range(first, last + 1))
                yield source, [(words[first].start, words[last].end) for first, last in spans]
            else:  # another output has the same words
                yield source, []

    def _sources(self, seen: _WordIndex, key: object, number: int) -> list[int]:
        asked = self._all[number].asked
        given = seen.given.get(key, ())
        return [one for one in given if self._all[one].ended < asked and self._brought(seen, key, one)]

    def _spans(
        self, words: Sequence[Word], free: Sequence[bool], hits: set[int], pairs: set[tuple[str, str]]
    ) -> list[tuple[int, int]]:
        """Return the runs of words around the hits that are also in the output."""
        spans: list[tuple[int, int]] = []
        for hit in sorted(hits):
            if spans and hit <= spans[-1][1]:
                continue
            first = last = hit
            while first > 0 and free[first - 1] and (words[first - 1].text, words[first].text) in pairs:
                first -= 1
            while (
                last + 1 < len(words) and free[last + 1] and (words[last].text, words[last + 1].text) in pairs
            ):
                last += 1
            while last - first < RUN and first < hit and words[first].common:
                first += 1
            while last - first < RUN and last > hit and words[last].common and not words[last].text.isdigit():
                last -= 1
            if spans and first - spans[-1][1] - 1 <= MAX_GAP:
                spans[-1] = (spans[-1][0], last)
            else:
                spans.append((first, last))
        return spans

    # Traces

    def _read(self, number: int, before: Sequence[int], quotes: Sequence[Quote]) -> Iterator[int]:
        """Yield outputs of which a prompt has several new words outside of quotes."""
        asked = self._all[number].asked
        counted: defaultdict[int, set[str]] = defaultdict(set)
        for word in self._prompts[number]:
            root = stem(word.text)
            quoted = any(quote.start < word.end and word.start < quote.end for quote in quotes)
            if quoted or word.common or word.marked or len(root) < len("abcd"):
                continue
            for source in self._stems.given.get(root, ()):
                if self._all[source].ended < asked and self._brought(self._stems, root, source):
                    counted[source].add(root)
        return (source for source in before if len(counted[source]) >= TRACES)


def _forms(output: JSON) -> Iterator[tuple[ValuePath, str, bool]]:
    """Yield the forms of an output in a prompt: path, text, and whether a placeholder produces it exactly."""
    if isinstance(output, str):
        yield (), output, True
        if output.strip() and output.strip() != output:
            yield (), output.strip(), False
        return
    if output is None:
        return
    yield (), as_text(output), True
    yield (), json.dumps(output, ensure_ascii=False), False
    yield (), json.dumps(output, ensure_ascii=False, indent=2), False
    yield from _leaves(output, (), [MAX_LEAVES])


def _leaves(value: JSON, path: ValuePath, left: list[int]) -> Iterator[tuple[ValuePath, str, bool]]:
    below: Iterator[tuple[str | int, JSON]] = iter(())
    if isinstance(value, dict):
        below = ((key, one) for key, one in value.items() if key.replace("_", "").replace("-", "").isalnum())
    elif isinstance(value, list):
        below = iter(enumerate(value))
    elif isinstance(value, str) and path:
        yield path, value, True
    for key, one in below:
        left[0] -= 1
        if left[0] <= 0:
            return
        if isinstance(one, dict | list):
            yield (*path, key), as_text(one), True
        yield from _leaves(one, (*path, key), left)


def _runs(words: Sequence[Word]) -> Iterator[tuple[str, ...]]:
    """Yield every `RUN` words in a row, by their first word; empty for repetitions of few words."""
    for at in range(len(words) - RUN + 1):
        run = tuple(word.text for word in words[at : at + RUN])
        yield run if len(set(run)) >= DISTINCT_IN_RUN else ()


def _pairs(words: Sequence[Word]) -> set[tuple[str, str]]:
    return {(one.text, other.text) for one, other in pairwise(words)}


# -----------------------------------------------------------------------------------------------------------
# Prompts in parts: text, and references to values that will be known in the run.


class OutputPiece(Struct, frozen=True):
    """The output of another delegation, or a value in it; `original` is the text in the prompt."""

    source: int
    path: ValuePath
    original: str
    exact: bool
    step: str = ""
    """The step of the recipe that has this output, when it is known."""


class Item(Struct, frozen=True):
    """The item of a step's list, or a value in it."""

    path: ValuePath = ()


class InputPiece(Struct, frozen=True):
    """An input."""

    name: str


Piece: TypeAlias = str | OutputPiece | Item | InputPiece
Pieces: TypeAlias = tuple[Piece, ...]


def split(prompt: str, quotes: Sequence[Quote]) -> Pieces:
    """Return a prompt split at its quotes, which are in order and do not overlap."""
    pieces: list[Piece] = []
    at = 0
    for quote in quotes:
        pieces += (
            prompt[at : quote.start],
            OutputPiece(quote.source, quote.path, prompt[quote.start : quote.end], quote.exact),
        )
        at = quote.end
    return joined([*pieces, prompt[at:]])


def joined(pieces: Sequence[Piece]) -> Pieces:
    """Return the parts with adjacent texts joined and empty ones removed."""
    whole: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and whole and isinstance(whole[-1], str):
            whole[-1] += piece
        elif piece != "":
            whole.append(piece)
    return tuple(whole)


def replace_words(pieces: Pieces, words: str, by: Piece) -> Pieces:
    """Replace every separate occurrence of these words by a reference."""
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
    """Yield the positions of these words that are not inside longer ones."""
    before = r"(?<![\w])" if words[:1].isalnum() else ""
    after = r"(?![\w])" if words[-1:].isalnum() else ""
    for match in re.finditer(f"{before}{re.escape(words)}{after}", text):
        yield match.start()


def hole(piece: OutputPiece | Item | InputPiece) -> str:
    """Return a reference in the notation of templates."""
    match piece:
        case Item(path):
            return f"{{{{item{path_text(path)}}}}}"
        case InputPiece(name):
            return f"{{{{inputs.{name}}}}}"
        case OutputPiece(path=path, step=step):
            return f"{{{{steps.{step}.output{path_text(path)}}}}}"


def path_text(path: ValuePath) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def template(pieces: Pieces) -> str:
    """Return the template for these parts."""
    return "".join(literal(piece) if isinstance(piece, str) else hole(piece) for piece in pieces)
