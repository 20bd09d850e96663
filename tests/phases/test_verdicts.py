"""Critics and reviewers: verdicts with evidence that is looked up, votes on claims, honest ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fanfold.agents.tools.files import PublishedFiles
from fanfold.api.report import executive_report
from fanfold.api.result import Result
from fanfold.steps.phases import CitedEvidence, publish_phase
from fanfold.steps.values import MAX_CLAIMS, Piece, claims_of, objections, surviving, tally
from fanfold.wiring import wire
from tests.runtime.running import run

CRITIC = """
name: judged
phases:
  - id: work
    goal: Say hello
    tasks: [{id: say, agent: explorer, prompt: "Say it"}]
    verify: {gate: critic}
    converge: {max_iterations: 2}
output: "{{steps.work.output.tasks.say}}"
"""
REVIEWED = """
name: reviewed
phases:
  - id: look
    kind: understand
    tasks: [{id: scan, agent: explorer, prompt: "Look", output_schema: {type: object}}]
    review: {reviewers: 3}
  - {id: use, tasks: [{id: t, run: [echo, "{{steps.look.output.tasks.scan}}"]}]}
output: "{{steps.use.output.tasks.t}}"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_text("one = 1\ntwo = 2\nthree = 3\n\n\n\n\n\n\nten = 10\n")
    return tmp_path


def quote(words: str, line: int = 2, file: str = "a.py") -> dict[str, Any]:
    return {"file": file, "line": line, "quote": words}


def judged(folder: Path, *verdicts: dict[str, Any]) -> Result:
    steps = {f"work#{number}/verify": {"output": one} for number, one in enumerate(verdicts, 1)}
    return run(folder, CRITIC, json.dumps({"default": "hello", "steps": steps}))


def verdict(passed: bool, *evidence: dict[str, Any]) -> dict[str, Any]:
    return {"pass": passed, "feedback": "because", "evidence": list(evidence)}


def test_a_verdict_passes_on_evidence_that_is_there(project: Path):
    result = judged(project, verdict(True, quote("two = 2"), quote("hello", 1, "result")))
    assert (result.status, result.steps["work#1/verify"].output["pass"]) == ("completed", True)
    assert [one["found"] for one in result.steps["work#1/verify"].output["evidence"]] == [True, True]


@pytest.mark.parametrize(
    "invented",
    [
        quote("two = 3"), quote("two = 2", 10), quote("two = 2", 2, "b.py"), quote(" "),
        quote("two = 2", 2, "../a.py"), quote("goodbye", 1, "result"), {**quote("two = 3"), "found": True},
    ],
)  # fmt: skip
def test_a_missing_file_counts_against_the_verdict(project: Path, invented: dict[str, Any]):
    result = judged(project, verdict(True, quote("two = 2"), invented), verdict(True, invented))
    assert result.status == "partial"
    said = result.steps["work#1/verify"].output
    assert (said["pass"], said["evidence"][-1]["found"]) == (False, False)
    assert "quoted text that does not exist" in said["feedback"]
    error = result.steps["work"].error
    assert error is not None
    assert error.code == "step.not_converged"


def test_no_gate_passes_without_evidence(project: Path):
    result = judged(project, verdict(True), verdict(True, quote("ten = 10", 9)))
    assert result.status == "completed"
    assert "without any evidence" in result.steps["work#1/verify"].output["feedback"]


def test_a_critic_that_answers_outside_its_schema_never_passes(project: Path):
    result = judged(project, {"pass": "yes"}, {"verdict": "fine"})
    assert result.status == "partial"
    error = result.steps["work#1/verify"].error
    assert error is not None
    assert (error.kind, error.code) == ("invalid_output", "output.invalid")


def vote(claim: str, holds: bool, *evidence: dict[str, Any]) -> dict[str, Any]:
    return {"claim": claim, "holds": holds, "reason": f"{claim} {holds}", "evidence": list(evidence)}


def reviewed(folder: Path, output: Any, *reviewers: list[dict[str, Any]], more: Any = None) -> Result:
    steps: dict[str, Any] = {
        f"look#*/review[{index}]": {"output": {"verdicts": votes}} for index, votes in enumerate(reviewers)
    }
    steps["look#*/scan"] = {"output": output}
    return run(folder, REVIEWED, json.dumps({"default": "sum", "steps": {**steps, **(more or {})}}))


@pytest.mark.full
def test_findings_survive_by_majority_and_the_others_leave_the_result(project: Path):
    names = [f"scan.findings[{index}]" for index in range(4)]
    found = [{"file": "a.py", "problem": number} for number in range(4)]
    real, unreal = quote("two = 2"), quote("two = 22")
    result = reviewed(
        project,
        {"findings": found, "note": "n"},
        [
            vote(names[0], True),
            vote(names[1], False, real),
            vote(names[2], False),
            vote(names[3], False, real),
        ],
        [vote(names[0], False, real), vote(names[1], False, real), vote(names[2], False, unreal)],
        [vote(names[0], True), vote(names[1], True), vote(names[2], True), vote("nonsense", False, real)],
    )
    assert result.status == "completed"
    fates = [one["fate"] for one in result.steps["look"].output["review"]["claims"]]
    assert fates == ["survived", "refuted", "survived", "refuted"]
    kept = json.loads(result.output)
    assert [one["problem"] for one in kept["findings"]] == [0, 2]
    assert kept["note"] == "n"
    opened = wire(project)
    report = executive_report(opened.view(result.run_id))
    opened.close()
    for words in ("] survived: ", "] refuted: ", "does not count (it quotes what is not there: a.py:2)"):
        assert words in report
    assert "review[1] refuted" in report


@pytest.mark.full
def test_a_result_that_is_refuted_as_a_whole_is_done_again_or_fails(project: Path):
    against = [vote("scan", False, quote("two = 2"))]
    result = reviewed(project, {"answer": 1}, against, against, [vote("scan", True)])
    assert (result.status, result.steps["look"].status) == ("partial", "failed")
    assert result.steps["look#2"].status == "completed"
    opened = wire(project)
    tree = opened.view(result.run_id)
    feedback = tree.values.at(tree.root.nodes["look#2/scan"])["feedback"]
    opened.close()
    assert "look#1/review[0]: scan False (a.py:2)" in feedback


def test_findings_with_a_tie_or_without_a_review_are_dropped(project: Path):
    claims = claims_of({"a": "text", "b": {"list": [{"x": 1}]}, "c": None}, frozenset())
    assert [(one.name, one.whole) for one in claims] == [("a", True), ("b.list[0]", False)]
    held, against = vote("a", True), vote("a", False, {**quote("two = 2"), "found": True})
    review = tally(claims, {"r1": {"verdicts": [held]}, "r2": {"verdicts": [against]}})
    assert [(one.name, one.fate) for one in review.claims] == [("a", "refuted"), ("b.list[0]", "unreviewed")]
    assert not review.holds
    assert not tally(claims, {"r1": {"verdicts": []}}).holds
    assert surviving({"b": {"list": [{"x": 1}]}}, frozenset(), review) == {"b": {"list": [{"x": 1}]}}


def test_a_reviewer_has_one_vote_on_a_claim_and_none_if_it_says_both():
    claims = claims_of({"a": "text"}, frozenset())
    against = vote("a", False, {**quote("two = 2"), "found": True})
    often = tally(
        claims,
        {
            "r1": {"verdicts": [against, against, against]},
            "r2": {"verdicts": [vote("a", True)]},
            "r3": {"verdicts": [vote("a", True)]},
        },
    )
    assert (often.holds, len(often.claims[0].votes)) == (True, 3)
    both = tally(
        claims, {"r1": {"verdicts": [against, vote("a", True)]}, "r2": {"verdicts": [vote("a", True)]}}
    )
    assert both.holds
    assert both.claims[0].votes[0].void


@pytest.mark.full
def test_outputs_of_other_reviewers_are_kept_when_one_fails(project: Path):
    against = [vote("scan", False, quote("two = 2"))]
    broken = {"look#*/review[1]": {"fail": {"class": "agent", "message": "lost its way"}}}
    result = reviewed(project, {"answer": 1}, against, [], [vote("scan", True)], more=broken)
    assert (result.status, result.steps["look"].status) == ("partial", "failed")
    opened = wire(project)
    tree = opened.view(result.run_id)
    feedback = tree.values.at(tree.root.nodes["look#2/scan"])["feedback"]
    report = executive_report(tree)
    opened.close()
    assert "look#1/review[0]: scan False (a.py:2)" in feedback
    assert "lost its way" in feedback
    assert "review[0] refuted: scan False" in report


@pytest.mark.full
def test_a_critic_may_quote_an_artifact_of_what_it_judges(project: Path):
    writes = {
        "tool": "write_file",
        "args": {"path": "artifacts/report.md", "content": "one\nan owl sleeps\n"},
    }
    steps = {
        "work#*/say": {"output": "done", "tool_calls": [writes]},
        "work#1/verify": {"output": verdict(True, quote("an owl wakes", 2, "artifacts/report.md"))},
        "work#2/verify": {"output": verdict(True, quote("an owl sleeps", 2, "artifacts/report.md"))},
    }
    recipe = CRITIC.replace("agent: explorer", "agent: worker, write_set: [b.py]")
    result = run(project, recipe, json.dumps({"default": "sum", "steps": steps}))
    assert result.status == "completed"
    passed = [result.steps[f"work#{number}/verify"].output["pass"] for number in (1, 2)]
    assert passed == [False, True]


def test_artifacts_of_earlier_phases_may_be_quoted(project: Path):
    (project / ".fanfold").mkdir()
    for name in ("mine", "other"):
        publish_phase(project / ".fanfold", name, "look", [Piece("scan", f"words of {name}")], "")
    cited = CitedEvidence(str(project), "", [PublishedFiles(project / ".fanfold", "mine")])
    assert cited.is_there("ctx/wf/mine/look/scan.md", 1, "words of mine")
    for file in ("ctx/wf/other/look/scan.md", "ctx/wf/mine/../other/look/scan.md", "ctx/wf/mine2/x"):
        assert not cited.is_there(file, 1, "words of other")


@pytest.mark.full
def test_a_finding_without_a_valid_vote_is_not_called_refuted(project: Path):
    unproven = [vote("scan", False)]
    result = reviewed(project, {"answer": 1}, unproven, unproven, [vote("scan", True, quote("two = 22"))])
    assert result.steps["look"].status == "failed"
    opened = wire(project)
    tree = opened.view(result.run_id)
    feedback = tree.values.at(tree.root.nodes["look#2/scan"])["feedback"]
    report = executive_report(tree)
    opened.close()
    assert feedback == "No vote that counts was given on scan, which does not pass."
    assert "did not pass (no vote that counts on 1 result)" in report


def test_more_results_than_are_reviewed_in_a_round_say_so():
    claims = claims_of({"t": ["text"] * (MAX_CLAIMS + 7)}, frozenset({"t"}))
    held = {"verdicts": [vote(one.name, True) for one in claims[:MAX_CLAIMS]]}
    review = tally(claims, {"r1": held})
    assert not review.holds
    assert f"t[{MAX_CLAIMS}]" in objections(review)
    assert "and 2 more" in objections(review)
    assert f"Of {MAX_CLAIMS + 7} claims {MAX_CLAIMS} are reviewed in one round." in objections(review)


@pytest.mark.full
def test_reviewers_and_rounds_count_against_the_cap(project: Path):
    result = run(project, REVIEWED, '{"default": "x"}', options={"max_agents": 3})
    assert result.status in ("paused", "partial", "failed")
    assert result.usage.agents <= 3


def test_quotes_are_looked_up_beneath_the_project_alone(project: Path):
    outside = project.parent / "outside.txt"
    outside.write_text("secret words\n")
    (project / "link.txt").symlink_to(outside)
    cited = CitedEvidence(str(project), "the result")
    assert cited.is_there(str(project / "a.py"), 1, "one   =  1")
    for file in ("link.txt", "../outside.txt", str(outside), ".fanfold/x", "a\0b"):
        assert not cited.is_there(file, 1, "secret words")
    assert cited.is_there("a.py", 1, "one = 1\ntwo = 2")
