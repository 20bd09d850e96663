"""A recipe of three roles, from the command line to the wire and back, for every wire format."""

import json

import pytest

from tests.e2e import team
from tests.e2e.world import MODELS, Project, Provider
from tests.provider import Fault, RecordedRequest, Reply

pytestmark = pytest.mark.full


@pytest.fixture(params=MODELS)
def wire(request: pytest.FixtureRequest) -> str:
    """The wire format: chat, responses or messages."""
    return str(request.param)


class Rough:
    """The team's answers, with each of these faults once before the answer at that point."""

    def __init__(self, faults: dict[tuple[str, int], Fault]) -> None:
        self._faults = dict(faults)

    def __call__(self, asked: RecordedRequest) -> Reply | Fault:
        return self._faults.pop(team.at(asked), None) or team.answer(asked)


def test_three_roles_read_edit_run_and_judge_through_a_429_and_a_broken_stream(project: Project, wire: str):
    team.set_up(project)
    faults = {
        ("EXPLORE", 0): Fault("rate_limit", retry_after_s=0.05),
        ("EXPLORE", 1): Fault("reset"),
        ("WORK", 2): Fault("reset", after=1),
        ("JUDGE", 1): Fault("overloaded", retry_after_s=0.01),
    }
    with Provider(Rough(faults)) as provider:
        done = project("run", "team.yaml", "--model", MODELS[wire], "--yes", "--json", **provider.environment)
    assert done.status == 0, done.err
    result = done.json
    assert result["output"] == team.VERDICT
    assert result["steps"]["work"]["output"] == team.WORKED
    assert {step["attempts"] for step in result["steps"].values()} == {1}, "faults of a wire are no failures"
    team.check_files(project)
    assert {asked.format for asked in provider.asked} == {wire}
    assert len(provider.given) == team.RESPONSES
    assert len(provider.asked) == team.RESPONSES + len(faults)
    assert provider.paid_twice() == []
    # Two streams broke off. Anthropic's format reports usage at their start; others that began are estimated.
    least = (2 * Reply().input_tokens, 2) if wire == "messages" else (0, 0)
    given = [reply for _, reply in provider.given]
    broken = (
        result["usage"]["input_tokens"] - sum(reply.input_tokens for reply in given),
        result["usage"]["output_tokens"] - sum(reply.output_tokens for reply in given),
    )
    assert least[0] <= broken[0] <= 4_000
    assert least[1] <= broken[1] <= 10
    assert result["usage"]["cost_usd"] is None, "nobody knows what a server of one's own charges"
    changed = {(change["path"], change["kind"]) for change in result["changes"]}
    added = {("notes/plan.md", "added"), ("notes/ran.txt", "added")}
    assert changed == {("greeting.py", "modified"), *added}
    assert project("verify", "--all").status == 0


def test_each_role_gets_its_allowed_tools_and_their_results(project: Project, wire: str):
    team.set_up(project)
    with Provider(team.answer) as provider:
        done = project("run", "team.yaml", "--model", MODELS[wire], "--yes", **provider.environment)
    assert done.status == 0, done.err
    assert json.loads(done.out) == team.VERDICT
    last = {team.role(asked): asked for asked in provider.asked}
    mutations = {"write_file", "edit_file", "apply_patch", "delete_file", "run_command"}
    assert mutations.isdisjoint(last["EXPLORE"].tools)
    assert mutations <= set(last["WORK"].tools)
    assert "final_output" in last["JUDGE"].tools
    seen = "".join(last["EXPLORE"].results.values())
    assert 'GREETING = \\"hello\\"' in seen
    results = list(last["WORK"].results.values())
    assert json.loads(results[3])["stdout"] == "good day\n", "the program ran on the worker's own files"
    assert "good evening" in "".join(last["JUDGE"].results.values()), "what was merged is there for the next"
