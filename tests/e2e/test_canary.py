"""Secrets are put everywhere a run could pick them up; then every byte it left and printed is searched."""

import pytest

from tests.e2e import canaries
from tests.e2e.world import MODELS, Done, Project, Provider

pytestmark = pytest.mark.full

MARK = "[redacted]"


SCRIPT = "../script.yaml"
"""Outside of the project: a snapshot of it would be one of the user's files."""


class Heard:
    """Runs commands and searches what they print."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def __call__(self, *arguments: str) -> Done:
        done = self._project(*arguments)
        assert canaries.found_in(done.out.encode()) == [], f"{arguments[0]} printed it: {done.out}"
        assert canaries.found_in(done.err.encode()) == [], f"{arguments[0]} said it: {done.err}"
        return done


@pytest.fixture
def heard(project: Project) -> Heard:
    canaries.set_up(project)
    project.file(SCRIPT).write_text(canaries.SCRIPT)
    project.environment |= canaries.CANARIES
    return Heard(project)


def run_to_the_end(heard: Heard, project: Project, *flags: str) -> None:
    """Run, look from all sides, answer with secrets, look again."""
    ran = heard("run", "leaky.yaml", "-i", f"hint={canaries.ALL}", "--yes", "--json", *flags)
    assert ran.status == 3, ran.err
    steps = ran.json["steps"]
    assert steps["said"]["output"] == " ".join([MARK] * 3)
    assert MARK in steps["complained"]["error"]["message"]
    assert MARK in steps["raised"]["error"]["message"]
    assert MARK in str(steps["computed"]["output"])
    assert MARK in str(steps["told"]["output"])
    assert steps["clean"]["output"] == {"stdout": "0\n"}, "the environment of a command holds a key"
    assert steps["failed"]["status"] == "failed", "its workspace is kept"
    answered = heard("reject", "last", "ask", "--comment", f"not with {canaries.ALL}")
    assert answered.status == 0, answered.err
    heard("resume", "last")
    for command in (
        ("inspect", "last", "--steps"),
        ("inspect", "last", "--json"),
        ("logs", "last", "--json", "--tree"),
        ("logs", "last"),
        ("explain", "last", "failed"),
        ("query", "canary"),
        ("query", canaries.CANARIES["OPENAI_API_KEY"], "--json"),
        ("replay", "last", "--json"),
        ("runs", "--json"),
    ):
        heard(*command)
    verified = heard("verify", "--all")
    assert verified.status == 0, verified.out
    assert canaries.leaks_below(project.folder / ".fanfold") == {}


def test_a_run_of_models_stores_prints_and_sends_no_secret(project: Project, heard: Heard):
    with Provider(canaries.answer, key=None) as provider:
        project.environment |= provider.addresses
        model = ("--model", MODELS["responses"])
        run_to_the_end(heard, project, *model)
        spawned = heard("spawn", "explorer", f"TOLD {canaries.ALL}", "--wait", "--json", *model)
        assert spawned.status == 0, spawned.out
        assert MARK in spawned.json["summary"]
    assert {asked.key for asked in provider.asked} <= set(canaries.CANARIES.values())
    heard_back = [one for asked in provider.asked for one in asked.messages if one.role != "assistant"]
    told = [part for one in heard_back for part in (one.text, *(text for _, text in one.results))]
    assert MARK in "".join(told)
    assert canaries.found_in("".join(told).encode()) == [], "a model is told what it did not say itself"
    assert canaries.leaks_below(project.folder / ".fanfold") == {}


def test_a_run_of_scripted_agents_stores_and_prints_no_secret(project: Project, heard: Heard):
    run_to_the_end(heard, project, "--script", SCRIPT)


def test_subagents_by_hand_store_and_print_no_secret(project: Project, heard: Heard):
    task = f"look at {canaries.ALL}"
    spawned = heard("spawn", "explorer", task, "--script", SCRIPT, "--wait", "--json")
    assert spawned.status == 0, spawned.out
    assert MARK in spawned.json["summary"]
    heard("send", spawned.json["id"], f"and {canaries.ALL}?", "--json")
    heard("wait", spawned.json["id"], "--json")
    heard("close", spawned.json["id"])
    assert MARK in heard("ps", "--all", "--json").out
    assert canaries.leaks_below(project.folder / ".fanfold") == {}


def test_output_of_a_background_run_contains_no_secret(project: Project, heard: Heard):
    started = heard(
        "run", "leaky.yaml", "-i", f"hint={canaries.ALL}", "--yes", "--script", SCRIPT, "--detach"
    )
    run = started.out.strip()
    assert heard("watch", run).status == 3
    said = project.folder / ".fanfold" / "runs" / run / "detached.log"
    assert MARK in said.read_text()
    assert canaries.leaks_below(project.folder / ".fanfold") == {}
