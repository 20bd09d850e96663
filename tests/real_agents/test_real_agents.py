"""The real agents, on a provider of ours: each changes files, is resumed, cancelled, kept to its provider.

`make agents-test` fetches them and runs this. What was seen goes into `seen.json`, from there to the docs.
"""

import os
import signal
from pathlib import Path

import pytest

from tests.real_agents.team import write_team
from tests.real_agents.world import (
    COMMANDS,
    SPEAKING,
    free_port,
    task,
    until,
)

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not os.environ.get("AGENTS_TEST"), reason="needs the real agents: make agents-test"),
]
WANTED = os.environ.get("AGENTS", "").split() or [*COMMANDS, *SPEAKING]


def note(seen, name, what, passed):
    seen.setdefault(name, {})[what] = passed


@pytest.mark.parametrize("name", WANTED)
def test_a_step_changes_files_and_reaches_its_provider_alone(world, seen, name):
    note(seen, name, "step", "no")
    note(seen, name, "network", "no")
    before = world.outside.files()
    with free_port() as other:
        port = other.getsockname()[1]
        line = f"exec 3<>/dev/tcp/127.0.0.1/{port}"
        probe = f"({line}) 2>/dev/null && echo reached > net.txt || echo kept > net.txt"
        acts = [{"write": "hello.txt", "text": "hello"}, {"run": f"bash -c '{probe}'"}]
        world.role("coder", name)
        step = {
            "id": "work",
            "agent": "coder",
            "prompt": task(*acts, say="I wrote it."),
            "write_set": ["*.txt"],
        }
        done = world.fanfold("run", world.recipe(step), "--yes")
    assert done["status"] == "completed", done["steps"]
    assert done["output"].endswith("I wrote it.")
    assert (world.project / "hello.txt").read_text() == "hello\n"
    note(seen, name, "step", "yes")
    assert (world.project / "net.txt").read_text() == "kept\n"
    note(seen, name, "network", "yes")
    note(seen, name, "usage", "yes" if done["usage"]["input_tokens"] else "no")
    assert world.outside.files() == before, "nothing of the session is in the user's own folders"


@pytest.mark.parametrize("name", WANTED)
def test_a_killed_session_continues(world, seen, name):
    note(seen, name, "resume", "no")
    world.role("coder", name)
    acts = [{"write": "hello.txt", "text": "hello"}]
    go = f"go-{name}"
    prompt = task(*acts, say="turns TURNS", wait=go)
    step = {"id": "work", "agent": "coder", "prompt": prompt, "write_set": ["*.txt"]}
    process = world.start("run", world.recipe(step), "--yes")

    def changed():
        told = (
            world.fanfold("transcript", "last", "work") if list(world.project.glob(".fanfold/*.db")) else {}
        )
        kinds = [entry["kind"] for entry in told.get("entries", ())]
        return "tool_result" in kinds and "agent" in kinds

    until(changed, "tool result")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    session = world.fanfold("transcript", "last", "work")["session_id"]
    until(lambda: not processes(session), "end of the agent")
    (world.signs / go).touch()
    done = world.fanfold("resume", "last")
    assert done["status"] == "completed", done["steps"]
    assert (world.project / "hello.txt").read_text() == "hello\n"
    begun = [one for one in world.fanfold("transcript", "last", "work")["entries"] if one["kind"] == "agent"]
    anew = [one["text"] for one in begun if one.get("text")]
    note(seen, name, "resume", "begins again" if anew else "yes")
    if not anew:
        assert int(done["output"].split()[-1]) >= 1, "the model was told what had been said before"


@pytest.mark.parametrize("name", WANTED)
def test_a_cancelled_session_leaves_no_process(world, seen, name):
    note(seen, name, "cancel", "no")
    own = world.outside.files()
    world.role("coder", name)
    prompt = task(say="never", wait="never")
    process = world.start("run", world.recipe({"id": "work", "agent": "coder", "prompt": prompt}), "--yes")
    asked = world.signs / "asked.jsonl"
    before = asked.read_text().count("\n") if asked.exists() else 0
    until(lambda: asked.exists() and asked.read_text().count("\n") > before, "request")
    session = world.fanfold("transcript", "last", "work")["session_id"]
    world.fanfold("cancel", "last")
    process.communicate(timeout=60)
    assert process.returncode == 7
    assert not processes(session)
    assert world.outside.files() == own, "nothing of the session is in the user's own folders"
    assert {path.name for path in world.project.iterdir()} == {".fanfold", "work.yaml"}
    note(seen, name, "cancel", "yes")


def test_claude_plans_two_codex_workers_write_side_by_side_and_a_model_reviews(world, seen):
    if not {"claude", "codex"} <= set(WANTED):
        pytest.skip("needs claude and codex: make agents-test")
    write_team(world.project)
    world.outside.environment |= {"FANFOLD_MODEL": "openai:m1"}
    plan = task(say="The plan.")
    acts = [{"run": "mkdir -p PART && echo x > PART/made.txt"}]
    told = task(*acts, say="Done.")
    recipe = (world.project / "team.yaml").read_text()
    recipe = recipe.replace("web/: {{inputs.task}}", f"web/: {{{{inputs.task}}}} {plan}".replace('"', '\\"'))
    for part in ("api", "web"):
        own = told.replace("PART", part).replace('"', '\\"')
        recipe = recipe.replace(f"concerns {part}/.", f"concerns {part}/. {own}")
    (world.project / "team.yaml").write_text(recipe)
    done = world.fanfold("run", "team.yaml", "-i", "task=Name it", "--yes")
    assert done["status"] == "completed", done["steps"]
    assert [(world.project / part / "made.txt").read_text() for part in ("api", "web")] == ["x\n", "x\n"]
    note(seen, "claude", "team", "yes")


def test_claude_stops_where_the_budget_of_the_run_ends(world):
    if "claude" not in WANTED:
        pytest.skip("needs claude: make agents-test")
    world.role("coder", "claude")
    acts = [{"write": f"{number}.txt", "text": "hello"} for number in range(3)]
    step = {"id": "work", "agent": "coder", "prompt": task(*acts, say="Done."), "write_set": ["*.txt"]}
    done = world.fanfold("run", world.recipe(step), "--yes", "--budget-usd", "0.000001")
    assert (done["status"], done["error"]["class"]) == ("paused", "budget")
    assert world.fanfold("run", "work.yaml", "--yes", "--budget-usd", "5")["status"] == "completed"


def processes(session: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if f"FANFOLD_SESSION={session}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found
