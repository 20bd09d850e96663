"""What of a prompt was taken from the outputs before it.

Rules
* Only an output that was there when the prompt was written can be in it.
* Only what an output brought in tells anything. What the request, a prompt or an earlier output had said
  before is no sign of having read this one, and neither are common words.
* A *quote* is the whole output, a value of a structured one, or one part of it that nobody writes by chance:
  six words in a row, or a marked word with what stands around it in both texts. It has a place in the prompt.
  A whole output of one or two words is a quote, and a guess, if nobody had said one of them before.
* A *trace* has no place: several parts apart from each other, or three words that the output brought in.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct, structs

from fanfold.kernel.plan import JSON
from fanfold.recipe.emission.delegations import Delegation
from fanfold.recipe.emission.words import Word, stem, words_of
from fanfold.text.json_value import as_text

RUN = 6
"""Words in a row that nobody writes twice by chance."""
DISTINCT_IN_RUN = 4
TRACES = 3
"""Words that an output brought in, and that together tell that it was read."""
WHOLE_WORDS = 3
FEWEST_LETTERS = 4
"""Of a word that a whole output may be recognised by, where it has one or two."""
MAX_GAP = 3
"""Two parts of one output with at most this many words between are one."""
MAX_LEAVES = 2_000
AT_ONCE = -1
"""When the request was made: before everything."""

Path = tuple[str | int, ...]


class Quote(Struct, frozen=True):
    """A piece of a prompt that an output gave. `exact`: the hole would give these very words."""

    start: int
    end: int
    source: int
    path: Path = ()
    exact: bool = True


class Taken(Struct, frozen=True):
    """What one prompt took from outputs: pieces of it, and outputs that left traces without a place."""

    quotes: list[Quote]
    traces: list[int]


class _Seen:
    """Who brought a word, or a run of words, into the conversation."""

    def __init__(self) -> None:
        self.asked: dict[object, int] = {}
        """When a prompt, or the request, first had it."""
        self.given: defaultdict[object, list[int]] = defaultdict(list)
        """Which outputs have it."""

    def ask(self, key: object, at: int) -> None:
        self.asked[key] = min(at, self.asked.get(key, at))

    def give(self, key: object, by: int) -> None:
        if key and (not self.given[key] or self.given[key][-1] != by):
            self.given[key].append(by)


class Quotes:
    """Everything that was said, so that each prompt can be held against it."""

    def __init__(self, delegations: Sequence[Delegation], request: str) -> None:
        self._all = delegations
        self._prompts = [words_of(one.prompt) for one in delegations]
        self._outputs = [words_of(as_text(one.output)) for one in delegations]
        self._pairs = [_pairs(words) for words in self._outputs]
        self._words, self._runs, self._stems = _Seen(), _Seen(), _Seen()
        self._forms: dict[int, list[tuple[Path, str, bool]]] = {}
        self._earlier = [(AT_ONCE, request), *((one.asked, one.prompt) for one in delegations)]
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

    def of(self, number: int) -> Taken:
        """What the prompt of one delegation took from the outputs that were there."""
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
        return Taken(sorted(quotes, key=lambda quote: quote.start), sorted(traces))

    def _with_marks(self, quote: Quote, prompt: str) -> Quote:
        """A part that reaches the end of its output, with the full stop that stands there in both texts."""
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
            for path, text, exact in self._telling_forms(source):
                places = _places(prompt, text)
                found += (Quote(at, at + len(text), source, path, exact) for at in places)
        found.sort(key=lambda quote: (quote.start - quote.end, quote.start))
        kept: list[Quote] = []
        for quote in found:
            if all(quote.end <= other.start or other.end <= quote.start for other in kept):
                kept.append(quote)
        return kept

    def _telling_forms(self, source: int) -> list[tuple[Path, str, bool]]:
        """How an output may stand in a prompt, as far as finding it there tells anything."""
        if source not in self._forms:
            found = list(_forms(self._all[source].output))
            telling = [one for one in found if self._tells(one[1], source)]
            few = [one for one in found if one not in telling and self._names(one[0], one[1], source)]
            self._forms[source] = [*telling, *((path, text, False) for path, text, _ in few)]
        return self._forms[source]

    def _names(self, path: Path, text: str, source: int) -> bool:
        """Whether a text of few words is a name that this output brought in; a value of many, if of two."""
        words = words_of(text)
        if not words or len(words) >= WHOLE_WORDS or (path and len(words) == 1):
            return False
        return any(
            not word.common
            and len(word.text) >= FEWEST_LETTERS
            and word.text.isalpha()
            and self._brought(self._words, word.text, source)
            for word in words
        )

    def _tells(self, text: str, source: int) -> bool:
        """Whether finding this text somewhere tells that it came from this output."""
        words = words_of(text)
        telling = [word for word in words if not word.common]
        marked = any(word.marked for word in words)
        long = len(words) >= WHOLE_WORDS and bool(telling)
        if not (marked or long or any(_runs(words))):
            return False
        if len(words) >= RUN:
            return any(self._brought(self._runs, run, source) for run in _runs(words))
        if any(self._brought(self._words, word.text, source) for word in telling):
            return True
        return not self._said_before(text, source)

    def _said_before(self, text: str, source: int) -> bool:
        one = self._all[source]
        outputs = (other.output for other in self._all if other.ended < one.asked)
        return any(at < one.ended and text in said for at, said in self._earlier) or any(
            text in as_text(output) for output in outputs
        )

    def _brought(self, seen: _Seen, key: object, source: int) -> bool:
        """Whether an output was the first to say something, as far as its reader could know."""
        one = self._all[source]
        if seen.asked.get(key, one.ended) < one.ended:
            return False
        given = seen.given.get(key, ())
        return source in given and all(
            self._all[other].ended >= one.asked for other in given if other != source
        )

    # Parts

    def _parts(self, number: int, quotes: Sequence[Quote]) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Which outputs gave parts of the text that no quote covers, and where these stand."""
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
            spans = self._spans(words, free, hits[source] - claimed, self._pairs[source])
            if spans:
                claimed.update(at for first, last in spans for at in range(first, last + 1))
                yield source, [(words[first].start, words[last].end) for first, last in spans]
            else:  # another output has the same words
                yield source, []

    def _sources(self, seen: _Seen, key: object, number: int) -> list[int]:
        asked = self._all[number].asked
        given = seen.given.get(key, ())
        return [one for one in given if self._all[one].ended < asked and self._brought(seen, key, one)]

    def _spans(
        self, words: Sequence[Word], free: Sequence[bool], hits: set[int], pairs: set[tuple[str, str]]
    ) -> list[tuple[int, int]]:
        """Runs of words around the hits that stand so in the output, too."""
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
        """Outputs of which a prompt has several words, outside of quotes, that nobody had said before."""
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


def _places(prompt: str, text: str) -> Iterator[int]:
    """Where a text stands, not as a part of longer words."""
    at = prompt.find(text)
    while at >= 0:
        end = at + len(text)
        inside = (text[0].isalnum() and prompt[at - 1 : at].isalnum()) or (
            text[-1].isalnum() and prompt[end : end + 1].isalnum()
        )
        if not inside:
            yield at
        at = prompt.find(text, end)


def _forms(output: JSON) -> Iterator[tuple[Path, str, bool]]:
    """How an output may stand in a prompt: where in it, the text, whether a hole gives just that."""
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
    left = [MAX_LEAVES]
    yield from _leaves(output, (), left)


def _leaves(value: JSON, path: Path, left: list[int]) -> Iterator[tuple[Path, str, bool]]:
    below: Iterator[tuple[str | int, JSON]] = iter(())
    if isinstance(value, dict):
        below = ((key, one) for key, one in value.items() if _is_name(key))
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


def _is_name(key: str) -> bool:
    """Whether a path of a template can name this key."""
    return key.replace("_", "").replace("-", "").isalnum()


def _runs(words: Sequence[Word]) -> Iterator[tuple[str, ...]]:
    """Every `RUN` words in a row, numbered by their first word; the same few words repeated are none."""
    for at in range(len(words) - RUN + 1):
        run = tuple(word.text for word in words[at : at + RUN])
        yield run if len(set(run)) >= DISTINCT_IN_RUN else ()


def _pairs(words: Sequence[Word]) -> set[tuple[str, str]]:
    return {(one.text, other.text) for one, other in pairwise(words)}
