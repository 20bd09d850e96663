"""Runs on models: which one each step asks, what every agent is told, and roles that work in stages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.world import Provider
from tests.provider import Call, Fault, RecordedRequest, Reply
from tests.runtime.test_preflight import CHAIN, PHASES, SONNET, STEP, Place

pytestmark = pytest.mark.full

HAIKU = "anthropic:claude-haiku-4-5"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider(lambda asked: Reply(text=f"said by {asked.model}")) as running:
        yield running


def told(asked: RecordedRequest) -> str:
    """The instructions of a request."""
    return str(asked.body["system"])


# -- the fast model


def test_a_fold_asks_the_fast_model_and_tasks_the_other(place: Place, provider: Provider) -> None:
    given = {**provider.environment, "FANFOLD_MODEL": SONNET, "FANFOLD_WORKFLOW_MODEL": HAIKU}
    done = place.run(PHASES, **given)
    assert done.status == "completed"
    assert [asked.model for asked in provider.asked] == ["claude-sonnet-4-6", "claude-haiku-4-5"]
    assert done.output["summary"] == "said by claude-haiku-4-5"


def test_the_user_s_choice_for_a_run_leaves_folds_to_the_fast_model(place: Place, provider: Provider) -> None:
    given = {**provider.environment, "AGENT_WORKFLOW_MODEL": HAIKU}
    place.run(PHASES, options={"model": SONNET}, **given)
    assert [asked.model for asked in provider.asked] == ["claude-sonnet-4-6", "claude-haiku-4-5"]


# -- conversations


def test_input_for_a_subagent_continues_its_conversation(place: Place, provider: Provider) -> None:
    given = {**provider.environment, "FANFOLD_MODEL": SONNET}
    for words in (["spawn", "explorer", "Who is there?", "--name", "a"], ["wait", "a"]):
        assert place.cli(*words, **given).returncode == 0
    for words in (["send", "a", "And who else?"], ["wait", "a"]):
        assert place.cli(*words, **given).returncode == 0
    first, second = [asked.body["messages"] for asked in provider.asked]
    assert second[: len(first)] == first
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert "And who else?" in str(second[-1])


def test_a_fork_at_a_turn_asks_the_model_with_the_conversation_up_to_it(
    place: Place, provider: Provider
) -> None:
    given = {**provider.environment, "FANFOLD_MODEL": SONNET}
    (place.folder / "notes.txt").write_text("a note\n")
    looks = Reply(calls=(Call("read_file", {"path": "notes.txt"}),))
    provider.script = lambda asked: Reply(text="done") if len(asked.body["messages"]) > 1 else looks
    run = place.run(STEP % ("explorer", ""), **given).run_id
    forked = place.cli("fork", run, "--from", "a", "--turn", "1", "--say", "Now stop.", **given)
    assert forked.returncode == 0, forked.stderr
    _, second, third = [asked.body["messages"] for asked in provider.asked]
    assert third[: len(second) - 1] == second[:-1]
    assert "a note" in str(third[-1])
    assert "Now stop." in str(third[-1])


# -- what the project tells every agent


def test_project_instructions_reach_the_model_as_they_were_at_the_start(
    place: Place, provider: Provider
) -> None:
    rules = place.folder / "AGENTS.md"
    rules.write_text("Speak like a sailor.\n")
    given = {**provider.environment, "FANFOLD_MODEL": SONNET}
    paused = place.run(CHAIN, options={"max_agents": 1}, **given)
    assert "Speak like a sailor." in told(provider.asked[0])
    rules.write_text("Speak like a judge.\n")
    assert place.cli("resume", paused.run_id, "--max-agents", "9", **given).returncode == 0
    assert "Speak like a sailor." in told(provider.asked[1])
    place.run(STEP % ("explorer", ""), **given)
    assert "Speak like a judge." in told(provider.asked[2])


def test_instructions_of_a_folder_reach_who_works_there_as_they_were_at_the_start(
    place: Place, provider: Provider
) -> None:
    rules = place.folder / "deck/CLAUDE.md"
    rules.parent.mkdir()
    rules.write_text("Speak like a sailor.\n")
    given = {**provider.environment, "FANFOLD_MODEL": SONNET}
    recipe = CHAIN.replace("agent:", "read_set: [deck/**], agent:")
    paused = place.run(recipe, options={"max_agents": 1}, **given)
    rules.write_text("Speak like a judge.\n")
    assert place.cli("resume", paused.run_id, "--max-agents", "9", **given).returncode == 0
    assert all("Speak like a sailor." in told(asked) for asked in provider.asked[:2])
    place.run(CHAIN, **given)
    assert not any("Speak like" in told(asked) for asked in provider.asked[2:])


def test_a_file_that_is_too_long_is_cut_and_marked_as_cut(place: Place, provider: Provider) -> None:
    (place.folder / "AGENTS.md").write_text("# A\nSpeak like a sailor.\n# B\n" + "word " * 10_000)
    (place.folder / "r.yaml").write_text(STEP % ("explorer", ""))
    done = place.cli("run", "r.yaml", **provider.environment, FANFOLD_MODEL=SONNET)
    assert "warning[instructions.cut]: AGENTS.md is too long" in done.stderr
    assert "Speak like a sailor." in told(provider.asked[0])


@pytest.mark.parametrize("by", ["environment", "file"])
def test_project_instructions_can_be_switched_off(place: Place, provider: Provider, by: str) -> None:
    (place.folder / "AGENTS.md").write_text("Speak like a sailor.\n")
    given = {**provider.environment, "FANFOLD_MODEL": SONNET}
    if by == "file":
        (place.folder / ".fanfold/config.toml").write_text("[agents]\nproject_instructions = false\n")
    else:
        given["FANFOLD_PROJECT_INSTRUCTIONS"] = "off"
    place.run(STEP % ("explorer", ""), **given)
    assert "sailor" not in told(provider.asked[0])


# -- stages

STAGES = """
[[pipeline]]
name = "look"
tool = "read_file"
args = {path = "a.txt"}

[[pipeline]]
name = "draft"
model = true
prompt = "{{prompt}}: {{stages.look.text}}"

[[pipeline]]
agent = "judge"
prompt = "Judge {{previous}}"
"""


@pytest.mark.proof("HTTP provider")
def test_a_role_in_stages_answers_a_step_and_a_resume_repeats_no_stage(place: Place) -> None:
    (place.folder / "a.txt").write_text("hello")
    place.role(STAGES)
    place.role(f'model = "{HAIKU}"\n', name="judge")
    broke = True

    def answer(asked: RecordedRequest) -> Reply | Fault:
        if asked.prompt.startswith("Judge"):
            return Fault("quota") if broke else Reply(text="just")
        return Reply(text=f"draft of <{asked.prompt}>")

    with Provider(answer) as provider:
        given = {**provider.environment, "FANFOLD_MODEL": SONNET}
        paused = place.run(STEP % ("scout", ""), **given)
        assert (paused.status, paused.steps["a"].status) == ("paused", "waiting")
        broke = False
        place.role('[[pipeline]]\nmodel = true\nprompt = "edited"\n')
        place.role("", name="judge")
        done = place.resume(paused.run_id, **given)
        assert (done.status, done.output) == ("completed", "just")
        asked = [(one.model, one.prompt) for one in provider.asked]
        assert asked[0] == ("claude-sonnet-4-6", "go: hello")
        assert set(asked[1:]) == {("claude-haiku-4-5", "Judge draft of <go: hello>")}
        assert done.usage.input_tokens == 20


def test_a_subagent_by_hand_works_in_the_stages_of_its_role(place: Place) -> None:
    (place.folder / "a.txt").write_text("hello")
    place.role(STAGES)
    place.role(f'model = "{HAIKU}"\n', name="judge")
    with Provider(lambda asked: Reply(text=f"<{asked.prompt}>")) as provider:
        given = {**provider.environment, "FANFOLD_MODEL": SONNET}
        done = place.cli("spawn", "scout", "go", "--wait", **given)
        assert done.stdout == "<Judge <go: hello>>\n", done.stderr
        assert [one.model for one in provider.asked] == ["claude-sonnet-4-6", "claude-haiku-4-5"]


def test_a_scripted_agent_answers_for_all_its_stages(place: Place) -> None:
    place.role(STAGES)
    place.role("", name="judge")
    assert place.run(STEP % ("scout", ""), options={"script": "default: at once"}).output == "at once"


def test_the_step_s_schema_binds_a_tool_that_comes_last(place: Place) -> None:
    (place.folder / "a.txt").write_text("hello")
    place.role('[[pipeline]]\ntool = "read_file"\nargs = {path = "{{prompt}}"}\n')
    recipe = "name: r\nsteps: [{id: a, agent: scout, prompt: a.txt, output_schema: {type: %s}}]\n"
    assert place.run(recipe % "object").output["text"] == "hello"
    failed = place.run(recipe % "array")
    assert failed.status == "failed"
    assert failed.steps["a"].error is not None
    assert failed.steps["a"].error.kind == "invalid_output"
