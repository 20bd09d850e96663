"""Globs, their overlap and the claim index, against slow and obviously right versions of themselves."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fanfold.kernel import claims
from fanfold.kernel.claims import ClaimIndex
from fanfold.kernel.paths import GlobError, check_glob, matches, overlaps, witness
from tests.sampling import examples
from tests.work import count_calls, patience

# The slow version: multiply braces out, split at '/', match by trying everything.

Token = tuple[str, str]  # (kind, text); kinds: char, any, star, deep, class, slash


def expand(pattern: str) -> list[list[Token]]:
    """Every brace expansion of a pattern as tokens; raises ValueError when it cannot be read."""
    expansions, rest = _expand(pattern, inside=False)
    assert not rest
    return expansions


def _expand(text: str, inside: bool) -> tuple[list[list[Token]], str]:
    done: list[list[Token]] = [[]]
    while text and not (inside and text[0] in ",}"):
        options, text = _expand_one(text)
        done = [before + after for before in done for after in options]
    return done, text


def _expand_one(text: str) -> tuple[list[list[Token]], str]:
    if text.startswith("**"):
        return [[("deep", "")]], text[2:]
    if text[0] == "[":
        close = text.find("]", 3 if text[1:2] and text[1] in "!^" else 2)
        if close < 0 or "/" in text[:close]:
            raise ValueError("unclosed class")
        return [[("class", text[1:close])]], text[close + 1 :]
    if text[0] == "{":
        options: list[list[Token]] = []
        while True:
            more, text = _expand(text[1:], inside=True)
            options += more
            if not text:
                raise ValueError("unclosed braces")
            if text[0] == "}":
                return options, text[1:]
    kinds = {"*": "star", "?": "any", "/": "slash"}
    return [[(kinds.get(text[0], "char"), text[0])]], text[1:]


def segments_of(tokens: list[Token]) -> list[list[Token]]:
    segments: list[list[Token]] = [[]]
    for token in tokens:
        if token[0] == "slash":
            segments.append([])
        else:
            segments[-1].append(token)
    return segments


def is_good_segment(segment: list[Token]) -> bool:
    spelled = "".join(text for _, text in segment) if all(kind == "char" for kind, _ in segment) else None
    return bool(segment) and spelled not in {".", ".."} and (("deep", "") not in segment or len(segment) == 1)


@lru_cache(maxsize=4_096)
def slow_read(pattern: str) -> list[list[list[Token]]] | None:
    """The expansions as lists of segments, or None when the pattern is not a glob."""
    try:
        read = [segments_of(tokens) for tokens in expand(pattern)]
    except ValueError:
        return None
    classes = [text for way in read for segment in way for kind, text in segment if kind == "class"]
    good = all(is_good_segment(segment) for way in read for segment in way)
    return read if good and all(class_test(text) for text in classes) else None


@lru_cache(maxsize=1_024)
def class_test(text: str) -> Callable[[str], bool] | None:
    negated = text[0] in "!^"
    text = text[1:] if negated else text
    ranges: list[tuple[str, str]] = []
    while text:
        width = 3 if len(text) >= 3 and text[1] == "-" else 1
        ranges.append((text[0], text[width - 1]))
        text = text[width:]
    if any(low > high for low, high in ranges):
        return None
    return lambda char: any(low <= char <= high for low, high in ranges) != negated


def slow_segment(segment: list[Token], text: str) -> bool:
    if not segment:
        return not text
    kind, what = segment[0]
    if kind == "star":
        return any(slow_segment(segment[1:], text[at:]) for at in range(len(text) + 1))
    if not text:
        return False
    test = class_test(what) if kind == "class" else None
    fits = kind == "any" or (kind == "char" and text[0] == what) or (test is not None and test(text[0]))
    return fits and slow_segment(segment[1:], text[1:])


def slow_way(way: list[list[Token]], path: list[str]) -> bool:
    if not way:
        return not path
    if way[0] == [("deep", "")]:
        return any(slow_way(way[1:], path[at:]) for at in range(len(path) + 1))
    return bool(path) and slow_segment(way[0], path[0]) and slow_way(way[1:], path[1:])


def slow_matches(pattern: str, path: str) -> bool:
    names = path.split("/")
    read = slow_read(pattern)
    assert read is not None
    return all(names) and any(slow_way(way, names) for way in read)


STRINGS = ["".join(chars) for size in range(1, 6) for chars in itertools.product("ab./", repeat=size)]
PATHS = [text for text in STRINGS if all(text.split("/"))]

pieces = st.sampled_from(["a", "b", ".", "*", "?", "[ab]", "[!a]", "[^.b]", "[a-b]", "[]-a]", "*"])
segments = st.one_of(
    st.just("**"),
    st.lists(pieces, min_size=1, max_size=3).map("".join),
)
plain = st.lists(segments, min_size=1, max_size=3).map("/".join)


def braces(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = st.lists(st.one_of(inner, st.just("")), min_size=1, max_size=3).map(
        lambda ways: f"{{{','.join(ways)}}}"
    )
    glued = st.tuples(
        st.sampled_from(["", "a", "a/", "*", "**/"]), group, st.sampled_from(["", "b", "/b", "*", "/**"])
    )
    return st.one_of(group, glued.map("".join))


globs = st.recursive(plain, braces, max_leaves=4).filter(lambda pattern: slow_read(pattern) is not None)


@given(st.text(alphabet="aab.//**?[]!-{},", min_size=1, max_size=9))
@settings(max_examples=examples(500), deadline=None)
def test_a_pattern_is_refused_exactly_when_one_of_its_expansions_is_no_glob(pattern):
    if slow_read(pattern) is not None:
        check_glob(pattern)
        return
    with pytest.raises(GlobError) as caught:
        check_glob(pattern)
    assert 0 <= caught.value.position < len(pattern)


@given(globs, st.lists(st.sampled_from(STRINGS), max_size=30))
@settings(max_examples=examples(300), deadline=None)
def test_matching_agrees_with_trying_everything(pattern, paths):
    for path in paths:
        assert matches([pattern], path) == slow_matches(pattern, path), path


@given(globs, globs)
@settings(max_examples=examples(200), deadline=None)
def test_overlap_agrees_with_all_short_paths_and_is_proven_by_its_witness(a, b):
    """Of no overlap, all paths up to a length are evidence; of overlap, the witness is a proof."""
    example = witness(a, b)
    assert overlaps((a,), (b,)) == overlaps((b,), (a,)) == (example is not None)
    if example is not None:
        assert slow_matches(a, example)
        assert slow_matches(b, example)
    else:
        assert not [path for path in PATHS if slow_matches(a, path) and slow_matches(b, path)]


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("src/**", "src src/a src/a/b src/.x", "srcs a/src src//a src/ /src"),
        ("**/*", "a a/b .git/x", "a/ /a a//b"),
        ("**", "a a/b", "/"),
        ("a/**/b", "a/b a/x/b a/x/y/b", "ab a/xb a//b"),
        ("*.py", "a.py .py", "a/b.py a.pyc"),
        ("a/*", "a/b a/.c", "a a/ a/b/c"),
        ("?", "a / é \U0001f600".replace(" / ", " "), "ab /"),
        ("[!a-c]x", "dx ]x -x", "ax bx /x x"),
        ("[]a]", "] a", "[ b"),
        ("[!]a]", "b [", "] a"),
        ("[a-]", "a -", "b"),
        ("[+-9]", "+ 5 .", "/ a"),
        ("[*][?][{]", "*?{", "abc"),
        ("{src,docs/api}/{*.py,**/x}", "src/a.py docs/api/b/c/x src/x", "docs/a.py src/b/a.py"),
        ("a{,b}c", "ac abc", "abbc"),
        ("a{/**,}", "a a/b/c", "ab"),
        ("{**,a}/z", "z q/z a/z", "zz"),
        ("{a,{b,c{d,e}}}x", "ax bx cdx cex", "cx dx"),
        ("a}b,c]", "a}b,c]", "ab"),
    ],
)
def test_hand_picked_matches(pattern, yes, no):
    assert [path for path in yes.split(" ") if not matches([pattern], path)] == []
    assert [path for path in no.split(" ") if matches([pattern], path)] == []


def test_no_path_or_no_pattern_never_matches():
    assert not matches(["**"], "")
    assert not matches(["a/**", "**"], "a/\0")
    assert not matches([], "a")
    assert not overlaps((), ("**",))
    assert matches(["b", "a"], "a")


@pytest.mark.parametrize(
    ("a", "b", "example"),
    [
        ("src/*.py", "src/a.py", "src/a.py"),
        ("src/*.py", "src/sub/a.py", None),
        ("src/*.py", "src/**", "src/a.py"),
        ("**/*.py", "src/**", "src/a.py"),
        ("[!a]", "a", None),
        ("[!a]", "[!b]", "c"),
        ("[a-m]", "[!a-l]", "m"),
        ("[a-m]", "[n-z]", None),
        ("a*b", "*c*", "acb"),
        ("a*", "*b", "ab"),
        ("a*", "a", "a"),
        ("*a", "*b", None),
        ("**", "**/*", "a"),
        ("a/**", "a", "a"),
        ("a/**/*", "a", None),
        ("a/**", "ab/**", None),
        ("{a,b}/**", "{c,d}/**", None),
        ("{a,b}/**", "**/{c,d}", "a/d"),
        ("*/*", "**/x/y/z", None),
        ("**/test_*", "tests/**/*_x.py", "tests/test_x.py"),
        ("[!\x01-\U0010fffe]", "?", "\U0010ffff"),
    ],
)
def test_hand_picked_overlaps(a, b, example):
    assert witness(a, b) == example
    assert overlaps((a,), (b,)) == overlaps((b,), (a,)) == (example is not None)


def test_sets_overlap_when_any_pair_does():
    assert overlaps(("docs/**", "src/*.py"), ("lib/**", "src/a.*"))
    assert not overlaps(("docs/**", "src/*.py"), ("lib/**", "src/a.c"))


@pytest.mark.parametrize(
    ("pattern", "position", "words"),
    [
        ("", 0, "empty"),
        ("/etc", 0, "absolute"),
        ("{a,/b}", 3, "absolute"),
        ("a//b", 2, "segment is empty"),
        ("a/b/", 3, "segment is empty"),
        ("**/", 2, "segment is empty"),
        ("a/{b,}", 1, "segment is empty"),
        ("{,a}", 0, "segment is empty"),
        ("..", 0, "'..'"),
        ("a/../b", 2, "'..'"),
        ("a/{.,b}.", 3, "'..'"),
        ("./a", 0, "'.'"),
        ("a/.", 2, "'.'"),
        ("a\\b", 1, "backslash"),
        ("ab\0", 2, "NUL"),
        ("a[bc", 1, "never closed"),
        ("a[]", 1, "never closed"),
        ("a[b/c]", 1, "never closed"),
        ("a[.-/]", 1, "never closed"),
        ("a{b,c", 1, "never closed"),
        ("{a,{b}", 0, "never closed"),
        ("x[az-a]", 3, "z-a"),
        ("[!\x01-\U0010ffff]", 0, "is empty"),
        ("a**b", 1, "whole segment"),
        ("a/**b", 2, "whole segment"),
        ("***", 0, "whole segment"),
        ("{**,x}a", 1, "whole segment"),
        ("x{**,a}", 2, "whole segment"),
        ("{" * 17 + "a" + "}" * 17, 16, "nested"),
        ("{a,b}" * 10, 45, "alternatives"),
        ("{" + "," * 1_000 + "}", 0, "alternatives"),
        ("a" * 1_025, 1_024, "longer"),
    ],
)
def test_each_refusal_says_why_and_where(pattern, position, words):
    with pytest.raises(GlobError) as caught:
        check_glob(pattern)
    assert (caught.value.position, caught.value.message) == (position, str(caught.value))
    assert words in caught.value.message


def test_a_bad_pattern_is_refused_even_when_another_pair_overlaps():
    with pytest.raises(GlobError):
        overlaps(("a", "b["), ("a",))
    with pytest.raises(GlobError):
        matches(["a", "b["], "a")
    with pytest.raises(GlobError):
        ClaimIndex().latest(("b[",))
    with pytest.raises(GlobError):
        ClaimIndex().add(1, ("a", "b["))


HOSTILE_PAIRS = [
    ("*a*a*a*a*a*a*a*a*a*b", "*b*b*b*b*b*b*b*b*b*a"),
    ("*a*a*a*a*a*a*a*a*a*b", "*a*a*a*a*a*a*a*a*a*a*c*b"),
    ("*a" * 511 + "*b", "?" * 1_023),
    ("*a" * 511 + "*b", "*a" * 511 + "c"),
    ("**/x/" * 8 + "y", "**/z/" * 8 + "**/y"),
    ("**/x/" * 204 + "y", "**/z/" * 204 + "**"),
    ("**/" * 300 + "a", "?/" * 510 + "b"),
    ("{*,**/x}/" * 8 + "y", "{z,**/x}/" * 8 + "?z"),
    (
        "{" + ",".join(f"**/x{n}" for n in range(120)) + "}",
        "{" + ",".join(f"**/y{n}/*z" for n in range(90)) + "}",
    ),
]


@pytest.mark.parametrize(("a", "b"), HOSTILE_PAIRS)
def test_hostile_patterns_are_answered(a, b):
    with patience():
        example = witness(a, b)
        assert matches([a], "a" * 1_000 + "/b") in {True, False}
    assert example is None or (matches([a], example) and matches([b], example))


# The claim index


class ListOfClaims:
    """The slow version: look at every claim."""

    def __init__(self) -> None:
        self.held: list[tuple[int, tuple[str, ...]]] = []

    def latest(self, patterns: tuple[str, ...], below: int | None) -> int | None:
        return max(
            (seq for seq, other in self.held if (below is None or seq < below) and overlaps(patterns, other)),
            default=None,
        )


LITERAL = "a b a/** b/** a/b a/b/** a/b/c a/b/c/** a/b/c/d/e a/b/c/d/** c/c/c/c/c d/1/** d/2/** d/3 **/* **"
LOOSE = "**/*.py a/*.py a/**/x a/b/*.py a/b/c/* *.md */b [!a]/** a/b/c/d/*.py */*/*/x d/* a/*/**/c"
BRACED = "{a,b}/** {a,b}/c/*.py a/{b,c} a/{b/**,x} {a,d/{1,2}}/x"
some_patterns = st.sampled_from(f"{LITERAL} {LOOSE} {BRACED}".split())
sets = st.lists(some_patterns, max_size=3).map(tuple)
operations = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "early", "remove", "oldest"]), sets, st.integers(0, 60)),
    max_size=60,
)


@given(
    operations,
    st.lists(st.tuples(sets, st.none() | st.integers(0, 60)), max_size=6),
    st.sampled_from([(3, 3, 0, -40), (2, 2, 1, 0), (256, 8, 16, 1_024)]),
)
@settings(max_examples=examples(300), deadline=None)
def test_the_index_answers_like_a_list_of_claims(steps, questions, limits):
    """With small limits runs are cut, heads are too deep, patience ends and idle sets are forgotten."""
    with pytest.MonkeyPatch.context() as patch:
        for name, limit in zip(("_RUN", "_MAX_DEPTH", "_PATIENCE", "_MAX_IDLE"), limits, strict=True):
            patch.setattr(claims, name, limit)
        index, model = ClaimIndex(), ListOfClaims()
        for number, (kind, patterns, pick) in enumerate(steps):
            if kind in {"remove", "oldest"}:
                if model.held:
                    claim = model.held.pop(0 if kind == "oldest" else pick % len(model.held))
                    index.remove(*claim)
            else:
                claim = (number if kind == "add" else pick, patterns)
                if claim in model.held:
                    with pytest.raises(ValueError, match="already"):
                        index.add(*claim)
                    continue
                model.held.append(claim)
                index.add(*claim)
            assert len(index) == len(model.held)
            assert index.latest(patterns, pick) == model.latest(patterns, pick)
        for patterns, below in questions:
            assert index.latest(patterns, below) == model.latest(patterns, below)


@pytest.mark.full
@given(st.lists(globs, min_size=1, max_size=6), globs)
@settings(max_examples=60, deadline=None)
def test_the_index_finds_overlaps_of_any_globs(held, question):
    assume(question not in held)
    index, model = ClaimIndex(), ListOfClaims()
    for seq, pattern in enumerate(held):
        index.add(seq, (pattern,))
        model.held.append((seq, (pattern,)))
    assert index.latest((question,)) == model.latest((question,), None)


def test_many_claims_in_any_order_are_answered_like_a_list():
    """Real limits: several runs, removal at both ends and in the middle, numbers that come late."""
    index, live = ClaimIndex(), []
    everything = ("**/*",)
    for seq in (*range(500, 2_000), *range(499, -1, -1)):
        index.add(seq, everything)
        live.append(seq)
    live.sort()
    for gone in (*range(300), *range(1_999, 1_700, -1), *range(600, 1_400)):
        index.remove(gone, everything)
        live.remove(gone)
    for below in range(0, 2_001, 7):
        assert index.latest(("a/*.py",), below) == max((seq for seq in live if seq < below), default=None)
    assert len(index) == len(live)


def test_sets_that_are_no_longer_claimed_are_forgotten():
    index = ClaimIndex()
    index.add(0, ("keep/**", "a/*.py"))
    for seq in range(1, 5_000):
        index.add(seq, (f"p{seq}/**",))
        assert index.latest((f"p{seq}/x",)) == seq
        index.remove(seq, (f"p{seq}/**",))
    assert len(index._sets) < 2_000
    assert (index.latest(("a/b.py",)), index.latest(("p7/**",)), len(index)) == (0, None, 1)


def test_patterns_too_long_to_be_asked_about_their_folder_still_count():
    index, folder = ClaimIndex(), "x" * 1_020
    for seq in range(40):
        index.add(seq, (f"{folder}/{seq:02}",))
    assert index.latest(("*/07",)) == 7
    assert index.latest(("*/**/47",)) is None


def test_many_different_characters_and_classes_are_read_right():
    """More than are remembered: what was learned is dropped and learned again."""
    pattern = "[!\u4e00]*"
    assert [chr(code) for code in range(0x4E00, 0x5200) if not matches([pattern], chr(code))] == ["\u4e00"]
    odd = [code for code in range(0x4E00, 0x5200) if not overlaps((f"[{chr(code)}]?",), (pattern,))]
    assert odd == [0x4E00]


def test_stars_on_both_sides_of_empty_braces_do_not_become_a_double_star():
    index = ClaimIndex()
    index.add(1, ("*{,a}*",))
    assert (index.latest(("b/c",)), index.latest(("b",))) == (None, 1)


def test_only_what_is_claimed_can_be_removed():
    index = ClaimIndex()
    index.add(1, ("a",))
    index.add(2, ("b",))
    for seq, patterns in ((1, ("b",)), (3, ("a",)), (1, ("c",))):
        with pytest.raises(KeyError):
            index.remove(seq, patterns)
    assert len(index) == 2


def test_numbers_of_claims_are_not_negative():
    with pytest.raises(ValueError, match="negative"):
        ClaimIndex().add(-1, ("a",))


def test_one_number_may_hold_two_sets():
    index = ClaimIndex()
    index.add(1, ("a/**",))
    index.add(1, ("b/**", "a/b"))
    index.remove(1, ("a/**",))
    assert (index.latest(("a/c",)), index.latest(("a/*",)), len(index)) == (None, 1, 1)


def calls_per_claim(count: int, claim: Callable[[int], tuple[str, ...]], question: tuple[str, ...]) -> float:
    index = ClaimIndex()
    sets = [claim(number) for number in range(count)]
    for number in range(count):
        index.add(number, sets[number])

    def come_and_go() -> None:
        for oldest in range(1_000):
            index.latest(question, below=oldest + count // 2)
            index.add(oldest + count, sets[oldest % count])
            index.remove(oldest, sets[oldest % count])

    return count_calls(come_and_go) / 1_000


@pytest.mark.parametrize(
    ("claim", "question"),
    [
        (lambda number: ("**/*",), ("**/*",)),
        (lambda number: (f"packages/p{number}/**",), ("packages/p7/**",)),
        (lambda number: (f"pkg/p{number}/**",), ("**/*",)),
        (lambda number: (f"pkg/p{number}.py",), ("pkg/**",)),
        (lambda number: (f"pkg/p{number}/**",), ("**/*.py",)),
        (lambda number: ("docs/**",), ("*.md",)),
        (lambda number: (f"docs/d{number}/**",), ("*.md",)),
    ],
    ids=[
        "identical",
        "distinct",
        "all-overlap",
        "files-overlap",
        "suffix",
        "identical-miss",
        "distinct-miss",
    ],
)
def test_a_claim_costs_the_same_among_ten_times_as_many(claim, question):
    """Twice is allowed, for what lies deeper; looking at every claim would cost ten times."""
    assert calls_per_claim(10_000, claim, question) < 2 * calls_per_claim(1_000, claim, question)
