"""What became of a round of a loop reaches the next one by itself, unless the recipe says who hears of it."""

from pathlib import Path

import pytest

import fanfold
from fanfold.steps.agent import FROM_ROUND_BEFORE

CRITIC = (
    "{id: judge, agent: critic, depends_on: [write], prompt: Judge it.,"
    " output_schema: {type: object, properties: {good: {type: boolean}, feedback: {type: string}}}}"
)
WRITE = "{id: write, agent: explorer, prompt: Write it.}"
ROUNDS = """\
steps:
  "go#1/judge": {good: false, feedback: too long}
  "go#*/judge": {good: true, feedback: fine}
  "go#*/write": a text
  "go#*/each[*]": a part
  "go#1": not yet
  "go#2": done
"""


def heard(project: Path, loop: str) -> dict[str, str]:
    """What each agent of a loop was asked, by its path."""
    recipe = project / "loop.yaml"
    recipe.write_text(f"name: loop\nsteps:\n  - {{id: go, {loop}}}\n")
    with fanfold.open_sync(project) as ff:
        result = ff.run(str(recipe), options=fanfold.Options(script=ROUNDS))
        assert result.ok, result
        agents = [path for path, step in result.steps.items() if step.type == "agent" and step.attempts]
        told = {path: ff.transcript(result.run_id, path) for path in agents}
    return {path: one.entries[0].text or "" for path, one in told.items() if one.entries}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FANFOLD_HOME", raising=False)
    return tmp_path


def test_the_agent_with_which_a_round_begins_hears_of_the_last_and_a_later_one_does_not(
    project: Path,
) -> None:
    asked = heard(project, f"repeat: {{until: steps.judge.output.good}}, steps: [{WRITE}, {CRITIC}]")
    assert asked["go#1/write"] == "Write it."
    assert asked["go#2/write"].startswith(f"Write it.\n\n{FROM_ROUND_BEFORE}\n")
    assert "too long" in asked["go#2/write"]
    assert asked["go#2/judge"] == asked["go#1/judge"]


def test_every_item_with_which_a_round_begins_hears_of_the_last(project: Path) -> None:
    each = "{id: each, for_each: '[1, 2]', agent: explorer, prompt: Part.}"
    asked = heard(project, f"repeat: {{until: iteration == 2}}, steps: [{each}]")
    assert asked["go#1/each[0]"] == "Part."
    for path in ("go#2/each[0]", "go#2/each[1]"):
        assert asked[path] == f'Part.\n\n{FROM_ROUND_BEFORE}\n["a part","a part"]'


def test_a_step_that_is_repeated_hears_what_it_gave(project: Path) -> None:
    asked = heard(project, "repeat: {until: output == 'done'}, agent: explorer, prompt: Try.")
    assert asked == {"go#1": "Try.", "go#2": f"Try.\n\n{FROM_ROUND_BEFORE}\nnot yet"}


def test_a_placed_instruction_reaches_no_other_agent(project: Path) -> None:
    critic = CRITIC.replace("Judge it.", '"Judge it. {{feedback.feedback}}"')
    asked = heard(project, f"repeat: {{until: steps.judge.output.good}}, steps: [{WRITE}, {critic}]")
    assert asked["go#2/write"] == "Write it."
    assert "Judge it. too long" in asked["go#2/judge"]
