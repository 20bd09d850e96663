"""Questions to the search: phrases, beginnings of words, filters, scores that can be explained."""

from __future__ import annotations

import math
import re
import shutil
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from fanfold.store.protocol import Batch, OutputRow
from fanfold.store.search import Filters
from fanfold.testing.store_races import stored
from tests.store.test_search import Project

K1, B = 1.2, 0.75


@pytest.fixture
def project(tmp_path: Path):
    project = Project(tmp_path / ".fanfold")
    yield project
    project.store.close()


def test_a_phrase_is_found_where_its_words_stand_together(project: Project):
    project.add("r", "a", "the red owl sleeps")
    project.add("r", "b", "an owl, red with anger")
    assert project.found('"red owl"') == ["r:a"]
    assert set(project.found("red owl")) == {"r:a", "r:b"}
    assert set(project.found('"red owl" anger')) == {"r:a", "r:b"}
    assert set(project.found('"red owl')) == {"r:a", "r:b"}, "a quote that is never closed is none"
    assert project.found('"owl red"') == ["r:b"]
    assert project.found('""') == []


def test_a_beginning_finds_the_words_that_begin_so_and_shows_them(project: Project):
    project.add("r", "a", "x " * 300 + "dendrites grow")
    project.add("r", "b", "a dendrogram")
    project.add("r", "c", "nothing of it")
    assert set(project.found("dendr*")) == {"r:a", "r:b"}
    assert project.found("dendri*") == ["r:a"]
    assert "dendrites" in project.search.query("dendri*")[0].excerpt
    assert project.found("zzz*") == []
    assert project.found("*") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("我们对仓库进行了安全审计并修复了问题", "安全审计"),
        ("すべてのテストは成功しました", "テスト"),
        ("การทดสอบผ่านทั้งหมด", "ผ่าน"),
        ("결과를 검색어 목록에 적었다", "검색어"),
        ("das Café mit naïven Gästen", "cafe"),
        ("die Größe ist falsch", "GRÖSSE"),
        ("un œuf dur", "oeuf"),
        ("ein Ørsted", "orsted"),
    ],
)
def test_words_of_every_script_are_found_and_shown(project: Project, text: str, words: str):
    project.add("r", "a", f"{'before ' * 200}{text}{' behind' * 200}")
    project.add("r", "b", "nothing of it 审计 安全")
    hits = project.search.query(words)
    assert [hit.path for hit in hits] == ["a"]
    assert text.split(maxsplit=1)[0] in hits[0].excerpt


def test_letters_without_spaces_are_looked_for_together_and_beside_other_words(project: Project):
    project.add("r", "a", "版本v2已发布")
    project.add("r", "b", "布发 v2")
    assert project.found("发布") == ["r:a"]
    assert project.found("布发") == ["r:b"]
    assert set(project.found("v2发布")) == {"r:a", "r:b"}
    assert project.found('"v2已发布"') == ["r:a"]
    part = project.search.query("发布", explained=True)[0].parts
    assert isinstance(part, list)
    assert [one.wish for one in part] == ['"发布"']


def test_filters_by_recipe_phase_and_time(project: Project):
    project.add("r", "audit#1/scan[0]", "owls", at=1_000)
    project.add("r", "fix#1/verify", "owls", root="q", at=2_000, status="failed")
    assert project.found("owls", phase="audit") == ["r:audit#1/scan[0]"]
    assert project.found("owls", since=1_500) == ["r:fix#1/verify"]
    assert project.found("owls", since=1_000, phase="fix", status="failed") == ["r:fix#1/verify"]
    assert project.found("owls", since=-5) == ["r:fix#1/verify", "r:audit#1/scan[0]"]
    assert project.found("owls", recipe="none") == []


def test_equal_scores_are_in_the_same_order_however_the_index_came_to_be(project: Project):
    for number in range(60):
        project.add("r", f"s[{number}]", "the same words", root=f"tree {number}")
        if number % 7 == 0:
            project.search.query("same")  # a segment of its own
    first = project.found("same words", k=10)
    assert first == [f"r:s[{number}]" for number in range(59, 49, -1)]
    shutil.rmtree(project.folder / "index")
    assert Project(project.folder).found("same words", k=10) == first


@pytest.mark.full
def test_among_many_equal_results_the_newest_come_first(project: Project):
    blob = stored("the same words")
    project.add("r", "first", "the same words")
    for start in (0, 700):
        rows = [
            OutputRow(
                run_id="r", root_run_id=f"{start + number}", path=f"s[{start + number}]", blob=blob[0], at=1
            )
            for number in range(700)
        ]
        project.store.write([Batch(root="any", epoch=0, outputs=rows)])
        newest = [f"r:s[{number}]" for number in range(start + 699, start + 694, -1)]
        assert project.found("same") == newest
    project.add("r", "better", "same same same")
    best = ["r:better", *(f"r:s[{number}]" for number in range(1_399, 1_395, -1))]
    assert project.found("same") == best
    shutil.rmtree(project.folder / "index")
    assert Project(project.folder).found("same") == best


def test_an_explanation_adds_up_to_the_score(project: Project):
    project.add("r", "a", "owls and more owls, red ones")
    project.add("r", "b", "a red door")
    hit = project.search.query('owl* red "more owls" nothing', explained=True)[0]
    assert hit.path == "a"
    assert isinstance(hit.parts, list)
    assert [part.wish for part in hit.parts] == ["owl*", "red", '"more owls"']
    assert sum(part.score for part in hit.parts) == pytest.approx(hit.score, rel=1e-5)
    assert hit.parts[1].rarity == pytest.approx(math.log(1 + (2 - 2 + 0.5) / (2 + 0.5)), rel=1e-5)
    assert not isinstance(project.search.query("red")[0].parts, list)


def bm25(documents: list[list[str]], words: list[str]) -> dict[int, float]:
    """A reference: BM25 as the textbooks have it, with the document lengths as they are."""
    many = len(documents)
    average = sum(map(len, documents)) / many
    scores: dict[int, float] = {}
    counted = [Counter(document) for document in documents]
    for word in dict.fromkeys(words):
        having = sum(1 for counts in counted if word in counts)
        rarity = math.log(1 + (many - having + 0.5) / (having + 0.5))
        for number, counts in enumerate(counted):
            if frequency := counts[word]:
                length = len(documents[number]) / average
                weight = frequency * (K1 + 1) / (frequency + K1 * (1 - B + B * length))
                scores[number] = scores.get(number, 0.0) + rarity * weight
    return scores


def rank_correlation(one: list[int], other: list[int]) -> float:
    """Spearman's, of two orders of the same things."""
    places = {number: place for place, number in enumerate(other)}
    many = len(one)
    apart = sum((place - places[number]) ** 2 for place, number in enumerate(one))
    return 1 - 6 * apart / (many * (many**2 - 1))


@pytest.mark.full
def test_relevance_is_that_of_a_reference_bm25(project: Project):
    chance = Random(7)
    vocabulary = ["".join(chance.choices("abcdefghijklmnop", k=5)) for _ in range(120)]
    weights = [1 / rank for rank in range(1, 121)]
    texts = [" ".join(chance.choices(vocabulary, weights, k=chance.randint(20, 200))) for _ in range(150)]
    for number, text in enumerate(texts):
        project.add("r", f"s[{number}]", text)
    documents = [text.split() for text in texts]
    for _ in range(25):
        words = chance.choices(vocabulary, weights, k=chance.randint(1, 4))
        expected = bm25(documents, words)
        hits = project.search.query(" ".join(words), Filters(), k=1_000)
        found = [int(re.sub(r"\D", "", hit.path)) for hit in hits]
        assert set(found) == set(expected)
        wanted = sorted(expected, key=lambda number: -expected[number])
        if len(found) > 2:
            # The index keeps the lengths of documents in one byte each, so neighbours may change places.
            assert rank_correlation(found, wanted) > 0.97
        best = max(expected.values())
        assert expected[found[0]] == pytest.approx(best, rel=0.05)
