"""Subagents that write: apart from the project while they work, in it as a whole or not at all afterwards."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from fanfold.agents.entries import ToolResult
from fanfold.api.agents import find_role
from fanfold.api.run_options import Options
from fanfold.api.start import create_open, freeze
from fanfold.api.subagents import Task, list_subagents, make_step
from fanfold.engine.requests import AddRequest, to_row
from fanfold.kernel.plan import Plan
from fanfold.sessions.log import read_entries
from fanfold.steps.run_config import to_json
from fanfold.wiring import wire
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

LINES = "".join(f"line {i}\n" for i in range(1, 10))


def edited(line: int, text: str) -> str:
    return LINES.replace(f"line {line}\n", f"{text}\n")


def command(*argv: str) -> dict[str, Any]:
    return {"tool": "run_command", "args": {"argv": list(argv)}}


def write(path: str, content: str) -> dict[str, Any]:
    return {"tool": "write_file", "args": {"path": path, "content": content}}


# Git's folder is there for programs in a snapshot: the one door through which a test can reach them.
GATE = command("sh", "-c", "until test -e .git/gate; do sleep 0.02; done")


class Agents:
    """Spawns scripted workers in a git repository and looks at what becomes of them."""

    def __init__(self, fanfold: Any, folder: Path) -> None:
        self.run = fanfold
        self.folder = folder
        self.count = 0

    def script(self, name: str, *answers: dict[str, Any]) -> str:
        """One answer for each turn."""
        file = self.folder.parent / f"script-{name}.yaml"
        turns = {f"{name}#{i}" if i > 1 else name: answer for i, answer in enumerate(answers, 1)}
        file.write_text(json.dumps({"steps": turns}))
        return str(file)

    def spawn(self, answer: dict[str, Any] | list[dict[str, Any]], *flags: str) -> dict[str, Any]:
        answers = answer if isinstance(answer, list) else [answer]
        self.count += 1
        name = f"w{self.count}"
        given = ("--name", name, "--script", self.script(name, *answers), "--yes", "--json")
        result = self.run("spawn", "worker", "work", *given, *flags)
        assert result.status in (0, 1), result.out
        return dict(result.json())

    def wait(self, child: dict[str, Any]) -> dict[str, Any]:
        return dict(self.run("wait", child["id"], "--json", "--timeout", "60").json()[0])

    def until(self, expected: Any) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not expected():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def send(self, child: dict[str, Any], *words: str) -> Any:
        return self.run("send", child["id"], *words, "--json")

    def store(self, look: Any) -> Any:
        opened = wire(self.folder)
        try:
            return look(opened.store)
        finally:
            opened.close()

    def has_done(self, child: dict[str, Any], calls: int) -> bool:
        entries = self.store(lambda store: read_entries(store, child["session_id"]))
        return len([entry for entry in entries if isinstance(entry, ToolResult)]) >= calls

    def ran(self, child: dict[str, Any]) -> list[Any]:
        """What came of the commands of its last turn."""
        entries = self.store(lambda store: read_entries(store, child["session_id"]))
        return [one.result for one in entries if isinstance(one, ToolResult) and one.tool == "run_command"]

    def evidence(self, child: dict[str, Any]) -> list[str]:
        log = self.store(lambda store: [one for one in store.log("hand") if one.type == "workspace_event"])
        return [one.data["what"] for one in log if one.data["step"].partition("#")[0] == child["id"]]

    def open_gate(self) -> None:
        (self.folder / ".git" / "gate").touch()

    def kept(self) -> list[str]:
        """The sessions whose workspaces are still there."""
        folder = self.folder / ".fanfold" / "subagents"
        return sorted(one.name for one in folder.iterdir() if one.is_dir())

    def until_nothing_is_kept(self) -> None:
        self.until(lambda: self.kept() == [])

    def status(self) -> list[str]:
        """What git sees as changed."""
        done = subprocess.run(["git", "status", "--short"], capture_output=True, text=True, check=True)
        return sorted(line.split()[-1] for line in done.stdout.splitlines())

    def kill_host(self) -> None:
        found = self.store(lambda store: store.owner("hand"))
        assert found is not None
        os.kill(found[0].pid, signal.SIGKILL)
        self.until(lambda: self.run("ps", "--json").json()[0]["status"] == "detached")


@pytest.fixture
def agents(fanfold, project):
    git = ["git", "-c", "user.name=n", "-c", "user.email=n@example.org"]
    (project / "a.txt").write_text(LINES)
    (project / ".gitignore").write_text(".fanfold/\n")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "begin"]):
        subprocess.run([*git, *arguments], check=True)
    agents = Agents(fanfold, project)
    yield agents
    agents.open_gate()
    for child in fanfold("ps", "--json").json():
        fanfold("close", child["id"])


def test_a_writer_works_in_a_snapshot_and_its_changes_are_merged_when_it_is_done(agents, project):
    look = command("sh", "-c", "pwd; ls; echo made > made.txt; echo bad > .git/bad")
    child = agents.spawn({"output": "done", "tool_calls": [write("a.txt", edited(1, "ONE")), look, GATE]})
    agents.until(lambda: agents.has_done(child, 2))
    assert (project / "a.txt").read_text() == LINES
    assert agents.status() == []
    seen = agents.run("ps", "--json").json()[0]
    assert seen["workspace"] == str(project / ".fanfold" / "subagents" / child["session_id"] / "workspace")
    (project / "mine.txt").write_text("mine\n")
    agents.open_gate()
    done = agents.wait(child)
    assert (done["status"], done["workspace"]) == ("completed", None)
    assert done["changes"] == [{"path": "a.txt", "kind": "modified"}, {"path": "made.txt", "kind": "added"}]
    assert (project / "a.txt").read_text() == edited(1, "ONE")
    assert agents.status() == ["a.txt", "made.txt", "mine.txt"]
    agents.until_nothing_is_kept()
    results = agents.ran(done)
    assert results[0]["stdout"] == f"{project}\na.txt\n"  # at the project's own place, as it was at the start
    assert "Read-only file system" in results[0]["stderr"]


def test_the_whole_story_is_in_the_logs(agents, project):
    child = agents.spawn({"output": "done", "tool_calls": [write("b.txt", "b\n"), command("true")]}, "--wait")
    assert agents.evidence(child) == ["snapshot", "sandbox", "merge"]
    lines = [json.loads(line) for line in agents.run("logs", "hand", "--json").out.splitlines()]
    life = [line["data"] for line in lines if line["type"] == "subagent_event"]
    assert [one["status"] for one in life] == ["queued", "started", "finished"]
    for one in life:
        assert (one["parent_id"], one["subagent_id"], one["session_id"]) == (
            "hand",
            "w1",
            child["session_id"],
        )
        assert (one["role"], one["task"], one["depth"]) == ("worker", "work", 1)
        assert (one["workspace"], one["summary"]) == ("isolated", "done" if one is life[-1] else "")
    assert "added b.txt" in agents.run("wait", child["id"]).out


def test_changes_outside_the_write_set_fail_the_turn_and_are_not_merged(agents, project):
    stray = command("sh", "-c", "mkdir docs; echo x > docs/x.md; echo y > stray.txt")
    tidy = command("rm", "stray.txt")
    answers = [{"output": "done", "tool_calls": [stray]}, {"output": "better", "tool_calls": [tidy]}]
    child = agents.spawn(answers, "--write-set", "docs/**", "--write-set", "*.md", "--wait")
    assert (child["status"], child["error"]["class"]) == ("failed", "violation")
    assert child["error"]["code"] == "workspace.violation"
    assert "stray.txt" in child["error"]["message"]
    assert child["violations"] == [{"path": "stray.txt", "why": "outside_write_set"}]
    assert child["changes"] == []
    assert agents.status() == []
    assert agents.kept() == [child["session_id"]]
    assert Path(child["workspace"]).parent.name == child["session_id"]
    listed = agents.run("ps", "--json").json()[0]  # it is over, but it waits for somebody
    assert (listed["violations"], listed["workspace"]) == (child["violations"], child["workspace"])
    assert agents.evidence(child) == ["snapshot", "sandbox", "violation"]

    assert agents.send(child, "take it back").status == 0  # and it goes on where it was
    done = agents.wait(child)
    assert (done["status"], done["changes"]) == ("completed", [{"path": "docs/x.md", "kind": "added"}])
    assert agents.evidence(child)[3:] == ["reopened", "sandbox", "merge"]
    assert (project / "docs" / "x.md").read_text() == "x\n"
    agents.until_nothing_is_kept()
    assert agents.run("ps", "--json").json() == []


def test_a_tool_refuses_what_lies_outside_of_the_write_set(agents):
    child = agents.spawn({"output": "done", "writes": {"b.txt": "b\n"}}, "--write-set", "docs/**", "--wait")
    assert (child["status"], child["error"]["class"]) == ("failed", "violation")
    assert child["error"]["code"] == "tool.outside_write_set"
    assert agents.status() == []


def test_a_change_that_contradicts_one_made_meanwhile_is_a_conflict(agents, project):
    child = agents.spawn({"output": "done", "tool_calls": [write("a.txt", edited(5, "ITS")), GATE]})
    agents.until(lambda: agents.has_done(child, 1))
    (project / "a.txt").write_text(edited(5, "MINE"))
    agents.open_gate()
    failed = agents.wait(child)
    assert (failed["status"], failed["error"]["class"]) == ("failed", "conflict")
    assert [one["path"] for one in failed["conflicts"]] == ["a.txt"]
    assert set(failed["conflicts"][0]) >= {"base", "ours", "theirs"}
    assert (project / "a.txt").read_text() == edited(5, "MINE")
    assert agents.kept() == [child["session_id"]]
    assert agents.run("wait", child["id"]).status == 1
    kept = agents.run("diff", "hand", child["id"], "--json").json()["steps"][0]
    assert (kept["state"], kept["why"]) == ("kept", "workspace.conflict")
    assert "+ITS" in kept["patch"].splitlines()
    assert agents.run("close", child["id"], "--json").json()["workspace"] is None
    agents.until_nothing_is_kept()


def test_writers_of_the_same_files_follow_each_other_and_others_work_side_by_side(agents, project):
    answer = {"output": "one", "tool_calls": [write("a.txt", edited(1, "ONE")), GATE]}
    first = agents.spawn(answer, "--write-set", "*.txt")
    agents.until(lambda: agents.has_done(first, 1))
    second = agents.spawn({"output": "two", "tool_calls": [command("cat", "a.txt")]}, "--write-set", "a.*")
    third = {"output": "three", "writes": {"docs/b.md": "b\n"}}
    apart = agents.spawn(third, "--write-set", "docs/**", "--wait")
    assert apart["status"] == "completed"
    assert agents.run("wait", second["id"], "--timeout", "0", "--json").json()[0]["status"] == "queued"
    why = agents.run("explain", "hand", second["id"], "--json").json()
    assert (why["reason"], why["blocked_by"]) == ("conflict", [first["id"]])
    agents.open_gate()
    assert agents.wait(first)["status"] == "completed"
    done = agents.wait(second)
    (seen,) = [ran["stdout"] for ran in agents.ran(done)]
    assert seen == edited(1, "ONE")


def test_a_proposal_leaves_the_project_alone_and_waits(agents, project):
    turns = [{"output": "done", "writes": {"b.txt": "b\n"}}, {"output": "more"}]
    child = agents.spawn(turns, "--merge", "propose", "--wait")
    assert (child["status"], child["changes"]) == ("completed", [{"path": "b.txt", "kind": "added"}])
    assert agents.status() == []
    agents.until_nothing_is_kept()
    refused = agents.send(child, "and more")
    assert refused.json()["error"]["code"] == "subagent.proposal_waits"
    assert agents.wait(child)["proposal"] == child["proposal"]
    assert [one["proposal"] for one in agents.run("ps", "--json").json()] == [child["proposal"]]
    shown = agents.run("diff", "hand", child["id"], "--json").json()
    assert (shown["run_id"], shown["steps"][0]["state"]) == ("hand", "proposed")
    assert "+b" in shown["steps"][0]["patch"].splitlines()
    assert f"fanfold apply hand {child['id']}\n" in agents.run("diff", "hand", child["id"]).out

    would = agents.run("apply", "hand", child["id"], "--dry-run", "--json").json()
    assert (would["changes"], agents.status()) == ([{"path": "b.txt", "kind": "added"}], [])
    applied = agents.run("apply", "hand", child["id"], "--json").json()
    assert (applied["proposal"], applied["changes"]) == (child["proposal"], would["changes"])
    assert (project / "b.txt").read_text() == "b\n"
    assert agents.evidence(child) == ["snapshot", "merge", "apply"]
    assert agents.wait(child)["proposal"] is None
    assert agents.run("ps", "--json").json() == []
    assert agents.run("diff", "hand", child["id"], "--json").json()["steps"][0]["state"] == "applied"
    assert agents.run("apply", "hand", child["id"], "--json").json() == {**applied, "already": True}
    assert agents.send(child, "and more").status == 0
    assert agents.wait(child)["status"] == "completed"


def test_a_proposal_that_contradicts_the_project_is_not_applied(agents, project):
    answer = {"output": "done", "writes": {"a.txt": edited(5, "ITS")}}
    child = agents.spawn(answer, "--merge", "propose", "--wait")
    (project / "a.txt").write_text(edited(5, "MINE"))
    refused = agents.run("apply", "hand", child["id"], "--json")
    assert (refused.status, refused.json()["error"]["code"]) == (1, "workspace.conflict")
    assert [one["path"] for one in refused.json()["error"]["details"]["conflicts"]] == ["a.txt"]
    (project / "a.txt").write_text(edited(1, "MINE"))
    assert agents.run("apply", "hand", child["id"]).status == 0
    assert (project / "a.txt").read_text() == edited(5, "ITS").replace("line 1\n", "MINE\n")


def test_a_turn_does_not_begin_behind_a_proposal_it_would_not_see(agents, project):
    first = {"output": "one", "tool_calls": [write("b.txt", "b\n"), GATE]}
    child = agents.spawn([first, {"output": "two", "writes": {"c.txt": "c\n"}}], "--merge", "propose")
    agents.until(lambda: agents.has_done(child, 1))
    assert agents.send(child, "one more").status == 0
    agents.open_gate()
    done = agents.wait(child)
    assert (done["status"], done["error"]["code"]) == ("failed", "subagent.proposal_waits")
    assert agents.run("apply", "hand", child["id"]).status == 0
    assert agents.send(child, "one more").status == 0
    assert agents.wait(child)["status"] == "failed", "the script has no third turn"
    assert agents.status() == ["b.txt"]


def test_changes_are_dropped_when_that_was_asked_for(agents, project):
    answer = {"output": "done", "writes": {"b.txt": "b\n"}}
    child = agents.spawn(answer, "--merge", "discard", "--wait")
    assert (child["status"], child["changes"]) == ("completed", [{"path": "b.txt", "kind": "added"}])
    assert child["proposal"] is None
    assert agents.run("apply", "hand", child["id"], "--json").json()["error"]["code"] == "changes.none"
    shown = agents.run("diff", "hand", child["id"], "--json").json()["steps"][0]
    assert (shown["state"], shown["patch"]) == ("discarded", None)
    assert agents.status() == []
    agents.until_nothing_is_kept()
    assert "discarded" in agents.run("wait", child["id"]).out


def test_a_writer_may_share_the_project(agents, project):
    child = agents.spawn({"output": "done", "tool_calls": [write("b.txt", "b\n"), GATE]}, "--shared")
    agents.until(lambda: agents.has_done(child, 1))
    assert (project / "b.txt").read_text() == "b\n"
    agents.open_gate()
    done = agents.wait(child)
    assert (done["status"], done["changes"], done["workspace"]) == ("completed", None, str(project))
    assert agents.evidence(child) == ["sandbox"]


STRAY = command("sh", "-c", "mkdir -p other src; echo x > other/x.txt; echo y > src/y.txt")


def paths(rows):
    return [row["path"] for row in rows]


def test_a_write_outside_the_set_fails_with_the_list_of_paths(agents, project):
    child = agents.spawn({"output": "done", "tool_calls": [STRAY]}, "--shared", "--write-set", "src/**")
    done = agents.wait(child)
    assert (done["status"], done["error"]["code"]) == ("failed", "workspace.violation")
    assert "other/x.txt; it works in the project itself" in done["error"]["message"]
    assert paths(done["violations"]) == ["other/x.txt"]
    (listed,) = agents.run("ps", "--all", "--json").json()
    assert paths(listed["violations"]) == ["other/x.txt"]
    assert (project / "other" / "x.txt").exists()


@pytest.mark.parametrize("flags", [(), ("--write-set", "src/**")])
def test_no_step_may_write_role_files(agents, flags):
    plant = command("sh", "-c", "mkdir -p .claude/agents; echo x > .claude/agents/a.md")
    child = agents.spawn({"output": "done", "tool_calls": [plant]}, "--shared", *flags)
    done = agents.wait(child)
    assert (done["status"], done["error"]["code"]) == ("failed", "workspace.violation")
    assert any(path.startswith(".claude") for path in paths(done["violations"]))


def test_a_turn_inside_the_write_set_completes_and_the_next_is_checked_again(agents):
    inside = command("sh", "-c", "mkdir -p src; echo y > src/y.txt")
    turns = [{"output": "one", "tool_calls": [inside]}, {"output": "two", "tool_calls": [STRAY]}]
    child = agents.spawn(turns, "--shared", "--write-set", "src/**")
    done = agents.wait(child)
    assert (done["status"], done["violations"]) == ("completed", [])
    assert agents.send(child, "more").status == 0
    again = agents.wait(child)
    assert (again["status"], paths(again["violations"])) == ("failed", ["other/x.txt"])


def test_each_turn_starts_from_the_project_as_it_is_then(agents, project):
    look = command("cat", "b.txt", "mine.txt")
    child = agents.spawn(
        [{"output": "one", "writes": {"b.txt": "b\n"}}, {"output": "two", "tool_calls": [look]}]
    )
    assert agents.wait(child)["status"] == "completed"
    (project / "mine.txt").write_text("mine\n")
    agents.send(child, "look again")
    done = agents.wait(child)
    assert (done["summary"], done["changes"]) == ("two", [])
    assert [ran["stdout"] for ran in agents.ran(done)] == ["b\nmine\n"]


def test_input_for_a_running_writer_finds_what_its_turn_before_merged(agents, project):
    first = {"output": "one", "tool_calls": [write("b.txt", "b\n"), GATE]}
    child = agents.spawn([first, {"output": "two", "tool_calls": [command("rm", "b.txt")]}])
    agents.until(lambda: agents.has_done(child, 1))
    agents.send(child, "take it away again")
    agents.open_gate()
    done = agents.wait(child)
    assert (done["summary"], done["changes"]) == ("two", [{"path": "b.txt", "kind": "deleted"}])
    assert agents.evidence(child).count("merge") == 2
    assert agents.status() == []


def test_a_writer_whose_host_was_killed_continues_in_its_own_workspace(agents, project, monkeypatch):
    calls = project.parent / "calls"
    monkeypatch.setenv("FANFOLD_SCRIPT_CALLS", str(calls))
    last = write("c.txt", "c\n")
    first = {"output": "one", "tool_calls": [write("b.txt", "b\n"), GATE, last]}
    child = agents.spawn([first, {"output": "two", "writes": {"d.txt": "d\n"}}])
    agents.until(lambda: agents.has_done(child, 1))
    agents.kill_host()
    assert agents.status() == []
    assert agents.kept() == [child["session_id"]]
    refused = agents.send(child, "go on").json()["error"]
    assert (refused["code"], "--resume" in refused["hint"]) == ("subagent.detached", True)
    (project / "a.txt").write_text(edited(1, "MINE"))
    agents.open_gate()
    assert agents.send(child, "and d", "--resume").status == 0
    done = agents.wait(child)
    assert (done["status"], done["summary"], done["turns"]) == ("completed", "two", 2)
    assert agents.status() == ["a.txt", "b.txt", "c.txt", "d.txt"]
    assert agents.evidence(child)[0] == "reopened"
    agents.until_nothing_is_kept()
    assert calls.read_text() == "w1 1 1\nw1 1 2\nw1#2 1 1\n"


def test_resuming_is_for_those_whose_host_was_killed(agents):
    child = agents.spawn({"output": "done"}, "--wait")
    refused = agents.send(child, "--resume").json()["error"]
    assert refused["code"] == "subagent.not_detached"
    assert agents.run("send", child["id"]).status == 2


def test_cancelling_keeps_the_work_and_closing_throws_it_away(agents):
    child = agents.spawn({"output": "done", "tool_calls": [write("b.txt", "b\n"), GATE]})
    agents.until(lambda: agents.has_done(child, 1))
    cancelled = agents.run("close", child["id"], "--json").json()
    assert cancelled["status"] == "cancelled"
    assert agents.kept() == [child["session_id"]]
    closed = agents.run("close", child["id"], "--json").json()
    assert (closed["status"], closed["workspace"]) == ("closed", None)
    assert agents.run("ps", "--json").json() == []
    agents.until_nothing_is_kept()
    assert agents.status() == []


def test_a_command_without_a_user_to_allow_it_is_denied_also_after_later_input(agents, project):
    answer = {"output": "done", "tool_calls": [write("b.txt", "b\n"), command("touch", "c.txt")]}
    script = Path(agents.script("asked", answer, dict(answer))).read_text()
    opened = wire(project)
    create_open(opened, "hand")
    step = make_step(Task(role="worker", task="t", name="asked"), find_role(opened.roles, "worker"))
    frozen, _ = freeze(opened, Plan(name="asked", steps=(step,)), Options(script=script))
    request = AddRequest(step=step, frozen=to_json(frozen), key="k")
    for _ in range(2):  # asked for twice, it is added once
        opened.store.request(to_row("hand", "hand", request, 0))
    agents.run("ps")  # looking starts nobody
    assert list_subagents(opened) == []
    opened.close()
    child = agents.spawn({"output": "another"}, "--wait")
    assert (child["id"], child["permission"]) == ("w1", "auto")
    for turns in (1, 2):
        failed = agents.wait({"id": "asked"})
        assert (failed["status"], failed["turns"], failed["permission"]) == ("failed", turns, "ask")
        assert (failed["error"]["class"], failed["error"]["code"]) == ("permission", "permission_denied")
        agents.send(failed, "try again")
    assert agents.status() == []


def test_a_timed_out_conversation_continues_where_it_stopped(agents, project):
    first = {"output": "one", "tool_calls": [write("b.txt", "b\n"), GATE]}
    child = agents.spawn([first, {"output": "two"}], "--timeout", "1", "--wait")
    assert (child["status"], child["error"]["class"]) == ("timed_out", "timeout")
    assert agents.kept() == [child["session_id"]]
    agents.send(child, "enough")
    done = agents.wait(child)
    assert (done["status"], done["changes"]) == ("completed", [{"path": "b.txt", "kind": "added"}])


def test_permission_can_be_given_without_a_question(agents):
    script = agents.script("w", {"output": "done", "tool_calls": [command("touch", "b.txt")]})
    flags = ["--name", "w", "--permission", "auto", "--wait", "--json"]
    child = agents.run("spawn", "worker", "work", "--script", script, *flags).json()
    assert (child["status"], child["permission"], agents.status()) == ("completed", "auto", ["b.txt"])


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (["explorer", "x", "--write-set", "a"], 2, "usage.conflict"),
        (["explorer", "x", "--merge", "auto"], 2, "usage.conflict"),
        (["explorer", "x", "--shared"], 2, "usage.conflict"),
        (["worker", "x", "--yes", "--shared", "--merge", "auto"], 2, "usage.conflict"),
        (["worker", "x", "--yes", "--shared", "--on-conflict", "resolve"], 2, "usage.conflict"),
        (["worker", "x", "--yes", "--write-set", "/etc/**"], 2, "usage.bad_value"),
        (["worker", "x", "--yes", "--permission", "read_only"], 4, "permission_denied"),
        (["worker", "x"], 4, "permission_denied"),
        (["explorer", "x", "--merge", "sometimes"], 2, "usage.bad_value"),
    ],
)
def test_an_unfit_value_is_refused_before_the_run(agents, project, arguments, status, code):
    refused = agents.run("spawn", *arguments, "--json")
    assert (refused.status, refused.json()["error"]["code"]) == (status, code)
    assert not (project / ".fanfold" / "subagents").exists()
