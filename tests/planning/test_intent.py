"""Whether a request is work for a workflow: the patterns on labelled requests, and the model before them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from fanfold.api.planning import MAX_CHARS, IntentPattern, Suitability, judge, patterns, workflow_suitable
from fanfold.wiring import wire
from tests.e2e.world import Provider
from tests.provider import Fault, Reply, answer_with
from tests.work import patience

REQUESTS = yaml.safe_load((Path(__file__).parent / "requests.yaml").read_text())
SONNET = "anthropic:claude-sonnet-4-6"
HAIKU = "anthropic:claude-haiku-4-5"


def accuracy(half: str) -> float:
    """Balanced: the mean of the two classes' own."""
    many = [judge(one).suitable for one in REQUESTS[half]["many"]]
    one = [not judge(one).suitable for one in REQUESTS[half]["one"]]
    return (sum(many) / len(many) + sum(one) / len(one)) / 2


def test_there_are_enough_requests_of_both_classes_and_none_twice():
    every = [one for half in REQUESTS.values() for group in half.values() for one in group]
    assert len(every) == len(set(every)) >= 120
    sizes = {"seen": 40, "held_out": 40, "unseen": 30}
    assert all(len(group) >= sizes[name] for name, part in REQUESTS.items() for group in part.values())


@pytest.mark.parametrize("half", ["seen", "held_out", "unseen"])
def test_the_patterns_alone_are_right_about_nine_of_ten(half: str):
    assert accuracy(half) >= 0.9


@pytest.mark.parametrize("row", patterns(), ids=lambda row: row.name)
def test_every_pattern_decides_some_request(row: IntentPattern):
    every = [one for half in REQUESTS.values() for group in half.values() for one in group]
    every += ["", "Gather what is known about heat pumps and write a cited brief"]
    assert any(judge(one).pattern == row.name for one in every)


def test_politeness_changes_nothing():
    for one in ("Audit this function", "Migrate all 500 files to TypeScript", "Why is it red?"):
        assert judge(f"Hi, could you please {one[0].lower()}{one[1:]}").pattern == judge(one).pattern


LONG_PIECES = ["all ", "find fix ", "a ", "plan implement ", "\u4e2a", "5 x ", "the the "]


@pytest.mark.parametrize("piece", LONG_PIECES)
def test_no_request_is_judged_without_end(piece: str):
    with patience():
        judge(piece * MAX_CHARS)


def ask(folder: Path, text: str, environment: Mapping[str, str]) -> Suitability:
    project = wire(folder, {"FANFOLD_HOME": str(folder / "home"), **environment})
    try:
        return asyncio.run(workflow_suitable(project, text, patience_s=120))
    finally:
        project.close()


@pytest.mark.full
def test_the_fast_model_answers_with_its_reason(tmp_path: Path):
    with Provider(lambda _: answer_with({"suitable": True, "reason": "many files"})) as provider:
        given = {**provider.environment, "FANFOLD_MODEL": SONNET, "FANFOLD_WORKFLOW_MODEL": HAIKU}
        told = ask(tmp_path, "Audit this function", given)
        assert (told.suitable, told.reason, told.by) == (True, "many files", "model")
        assert told.usage is not None
        assert (told.usage.input_tokens, told.usage.agents) == (10, 1)
        assert [asked.model for asked in provider.asked] == ["claude-haiku-4-5"]
    assert not (tmp_path / ".fanfold").exists(), "a question leaves nothing behind"


@pytest.mark.full
@pytest.mark.parametrize("script", [Fault("bad_key"), Reply(text="I would rather not say")])
def test_the_patterns_answer_when_the_model_does_not(tmp_path: Path, script: Fault | Reply):
    with Provider(lambda _: script) as provider:
        told = ask(tmp_path, "Audit this function", {**provider.environment, "FANFOLD_MODEL": SONNET})
    assert (told.suitable, told.by, told.pattern) == (False, "patterns", "one place")
    assert "gave no answer" in told.note


def test_without_a_model_the_patterns_answer_and_say_why(tmp_path: Path):
    told = ask(tmp_path, "Migrate all 500 files to TypeScript", {})
    assert (told.suitable, told.by) == (True, "patterns")
    assert told.note
