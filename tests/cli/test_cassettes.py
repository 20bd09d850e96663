"""Runs become tests: `fanfold record`, `fanfold test` and `fanfold compare`."""

import base64
import fcntl
import json
import os
import shutil
import signal
import time
import xml.etree.ElementTree as ET
from hashlib import blake2b
from pathlib import Path

import pytest

from fanfold.api import cassettes
from fanfold.api.suites import list_comparisons
from fanfold.language.cassettes import LONG_CHARS, MARKER, Cassette, ResultRecord, differences
from fanfold.wiring import BUILT_IN_RECIPES, wire
from tests.cli.agent_world import AgentWorld, step, writing
from tests.e2e.world import Provider
from tests.provider import Call, RecordedRequest, Reply, answer_with
from tests.sessions.trees import is_alive
from tests.work import PATIENCE_S
from tools.tidy import ROOT

RECIPE = """\
name: facts
inputs: [{name: topic, required: true}]
steps:
  - {id: look, agent: explorer, prompt: "Find out about {{inputs.topic}}.", retry: {attempts: 1}}
  - id: judge
    agent: mine
    prompt: "Judge {{steps.look.output}}"
    output_schema: {type: object, required: [good], properties: {good: {type: boolean}, note: {type: string}}}
  - id: polish
    when: steps.judge.output.good
    repeat: {until: "output == 'fine'", max_iterations: 3}
    agent: explorer
    prompt: Polish it.
  - {id: last, agent: explorer, prompt: "Read {{steps.look.output}}", depends_on: [polish]}
output: "{{steps.look.output}}"
"""
WRITER = """\
name: writer
steps:
  - {id: write, agent: worker, write_set: ["*.md"], merge: auto, prompt: Write.}
"""
SCRIPT = """\
steps:
  look: {output: three facts, usage: {input_tokens: 10, output_tokens: 5, cost_usd: 0.01}}
  judge: {output: {good: true}}
  "polish#1": rough
  "polish#2": fine
  last: {output: done, tool_calls: [{tool: read_file, args: {path: facts.md}}]}
  write:
    output: done
    tool_calls: [{tool: edit_file, args: {path: facts.md, old: old, new: newer}}]
    writes: {"more.md": "new\\n"}
"""
ROLE = "---\nname: mine\ndescription: Judges\ntools: [Read]\n---\nYou judge.\n"


@pytest.fixture
def recorded(project, fanfold):
    """A project with a recorded run of a recipe with a schema, a condition, a loop and a writer."""
    (project / "facts.yaml").write_text(RECIPE)
    (project / "answers.yaml").write_text(SCRIPT)
    (project / "facts.md").write_text("old\n")
    (project / ".claude" / "agents").mkdir(parents=True)
    (project / ".claude" / "agents" / "mine.md").write_text(ROLE)
    done = fanfold("run", "facts.yaml", "-i", "topic=owls", "--script", "answers.yaml", "--yes")
    assert done.status == 0, done.err
    assert fanfold("record", "last").status == 0
    shutil.rmtree(project / ".fanfold")  # nothing of the run is needed
    return project / "tests" / "facts.yaml"


@pytest.fixture
def writer(project, fanfold):
    """A project with a recorded run of an isolated writer."""
    (project / "writer.yaml").write_text(WRITER)
    (project / "answers.yaml").write_text(SCRIPT)
    (project / "facts.md").write_text("old\n")
    assert fanfold("run", "writer.yaml", "--script", "answers.yaml", "--yes").status == 0
    assert fanfold("record", "last").status == 0
    return project / "tests" / "writer.yaml"


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def kinds(report) -> list[str]:
    [case] = report["cases"]
    return [one["kind"] for one in case.get("differences", [])]


def test_a_recorded_run_replays_without_its_script_and_store(recorded, fanfold, project):
    done = fanfold("test")
    assert (done.status, "1 passed" in done.out) == (0, True), done.out
    assert not (project / ".fanfold" / "runs").exists()


def test_a_cassette_is_readable_and_holds_what_the_run_started_from(recorded):
    text = recorded.read_text()
    head, _, body = text.partition(MARKER)
    assert "recipe: ../facts.yaml" in head
    assert "topic: owls" in head
    assert "facts.md: |\n    old\n" in body
    assert "- look started\n" in body
    assert len(text) < 6_000


@pytest.mark.parametrize(
    ("file", "old", "new", "loose", "kind"),
    [
        ("facts.yaml", "Find out about", "Find everything about", "changed", "prompt"),
        (".claude/agents/mine.md", "You judge.", "You judge harshly.", "changed", "role"),
        (".claude/agents/mine.md", "tools: [Read]", "tools: [Grep]", "changed", "role"),
        ("facts.yaml", "required: [good]", "required: [note]", "failed", "schema"),
        ("facts.yaml", "steps.judge.output.good", "'!steps.judge.output.good'", "failed", "decision"),
        ("facts.yaml", "output == 'fine'", "output == 'rough'", "failed", "decision"),
        ("facts.yaml", "depends_on: [polish]", "depends_on: [look]", "failed", "order"),
        ("facts.yaml", 'output: "{{steps.look.output}}"', "output: fixed", "failed", "output"),
    ],
)
def test_a_change_is_caught(recorded, fanfold, project, file, old, new, loose, kind):
    change(project / file, old, new)
    done = fanfold("test", "--json")
    report = done.json()
    assert kind in kinds(report)
    assert (report["cases"][0]["status"], done.status) == (loose, int(loose == "failed"))
    assert fanfold("test", "--mode", "strict").status == 1


@pytest.mark.full
@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("merge: auto", "merge: propose", "files"),
        ("merge: auto", "merge: discard", "files"),
        ('write_set: ["*.md"]', 'write_set: ["*.txt"]', "tool"),
        ("agent: worker", "tools: [read_file, write_file], agent: worker", "tool"),
    ],
)
def test_a_changed_merge_rule_write_set_or_tool_list_is_caught(writer, fanfold, project, old, new, kind):
    assert fanfold("test").status == 0
    assert "facts.md: |\n    old\n" in writer.read_text()
    change(project / "writer.yaml", old, new)
    done = fanfold("test", "--json")
    assert (done.status, kind in kinds(done.json())) == (1, True), done.out
    (project / "facts.md").write_text("as it is now\n")
    assert fanfold("test", "--update").status == 0
    assert (project / "facts.md").read_text() == "as it is now\n", "the project itself is not touched"


@pytest.mark.full
def test_expected_changes_are_globs(writer, fanfold):
    change(writer, "expect:\n", "expect:\n  changes: ['*.md']\n")
    assert fanfold("test").status == 0
    change(writer, "['*.md']", "['facts.*', 'src/**']")
    out = fanfold("test").out
    assert "more.md is changed, and no pattern allows it" in out
    assert "nothing that matches src/** is changed" in out


def test_a_changed_prompt_is_shown_as_a_diff(recorded, fanfold, project):
    change(project / "facts.yaml", "Find out about", "Find everything about")
    out = fanfold("test").out
    assert "-Find out about owls." in out
    assert "+Find everything about owls." in out


def test_an_update_accepts_what_changed_and_keeps_the_users_lines(recorded, fanfold, project):
    change(recorded, "expect:\n", "# mine\nexpect:\n  agents_max: 9\n")
    change(project / "facts.yaml", "output == 'fine'", "output == 'rough'")
    assert "1 updated" in fanfold("test", "--update").out
    assert "# mine\nexpect:\n  agents_max: 9\n" in recorded.read_text()
    assert fanfold("test", "--mode", "strict").status == 0


@pytest.mark.parametrize(
    ("expectation", "message"),
    [
        ("status: failed", "status is completed, expected failed"),
        ("output: output.contains('cats')", "gives false"),
        ("output: steps.look.output.contains('facts') && inputs.topic == 'owls'", ""),
        ("output: nonsense", "an error"),
        ("changes: []", ""),
        ("changes: ['src/**']", "nothing that matches src/**"),
        ("agents_max: 1", "5 agents work, at most 1"),
        ("usd_max: 0.001", "spends $0.01, at most $0.001"),
    ],
)
def test_expectations_are_judged(recorded, fanfold, expectation, message):
    change(recorded, "expect:\n  status: completed\n", f"expect:\n  {expectation}\n")
    done = fanfold("test")
    assert done.status == (1 if message else 0), done.out
    assert message in done.out
    assert fanfold("test", "--update").status == done.status, "an update does not accept a broken expectation"


def test_reports_are_json_and_junit(recorded, fanfold, project):
    change(project / "facts.yaml", "depends_on: [polish]", "depends_on: [look]")
    report = fanfold("test", "--json", "--junit", "report.xml").json()
    assert (report["ok"], report["cases"][0]["file"]) == (False, "tests/facts.yaml")
    suite = ET.parse(project / "report.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "1", "0")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert "+last started" in (failure.text or "")


def test_a_recipe_that_is_gone_or_broken_is_an_error_of_its_case(recorded, fanfold, project):
    change(project / "facts.yaml", "prompt: Polish it.", "promt: Polish it.")
    done = fanfold("test")
    assert done.status == 1
    assert "recipe.unknown_key" in done.out


def test_a_new_step_has_no_answer(recorded, fanfold, project):
    change(
        project / "facts.yaml", 'output: "{{', '  - {id: more, agent: explorer, prompt: More.}\noutput: "{{'
    )
    out = fanfold("test").out
    assert "the cassette has no answer for more" in out
    assert "+more started" in out


def test_long_texts_stand_beside_the_cassette(project, fanfold):
    (project / "long.yaml").write_text("name: long\nsteps: [{id: a, agent: explorer, prompt: x}]\n")
    (project / "s.yaml").write_text(json.dumps({"default": "word " * LONG_CHARS}))
    fanfold("run", "long.yaml", "--script", "s.yaml")
    assert fanfold("record", "last", "-o", "tests/l.yaml").status == 0
    assert (project / "tests" / "l.yaml").stat().st_size < 2_000
    [text] = (project / "tests" / "l.d").iterdir()
    assert fanfold("test").status == 0
    text.write_text("other")
    done = fanfold("test")
    assert (done.status, "differs from the recorded text" in done.out) == (1, True)


def test_record_does_not_overwrite_a_cassette(recorded, fanfold):
    fanfold("run", "facts.yaml", "-i", "topic=owls", "--script", "answers.yaml", "--yes")
    assert "usage.exists" in fanfold("record", "last").err


@pytest.mark.full
def test_a_secret_is_not_in_the_cassette(project, fanfold, monkeypatch):
    canary = "canary-7f3a9c2e5b8d4610"
    monkeypatch.setenv("MY_API_KEY", canary)
    (project / "a.md").write_text(f"key {canary}\n")
    binary = b"\xff key " + canary.encode()
    (project / "b.md").write_bytes(binary)
    (project / "r.yaml").write_text(
        'name: r\nsteps: [{id: w, agent: worker, write_set: ["*.md"], prompt: "Use it"}]\n'
    )
    calls = [
        {"tool": "read_file", "args": {"path": "a.md"}},
        {"tool": "write_file", "args": {"path": "a.md", "content": f"new {canary}\n"}},
        {"tool": "write_file", "args": {"path": "b.md", "content": "text"}},
    ]
    (project / "s.yaml").write_text(
        json.dumps({"steps": {"w": {"output": f"it is {canary}", "tool_calls": calls}}})
    )
    assert fanfold("run", "r.yaml", "--script", "s.yaml", "--yes").status == 0
    assert fanfold("record", "last").status == 0
    for file in (project / "tests").rglob("*"):
        assert canary.encode() not in file.read_bytes()
    text = (project / "tests" / "r.yaml").read_text()
    assert "a.md: |\n    key [redacted]\n" in text
    assert base64.b64encode(binary).decode() not in text
    assert " key [redacted]\n" in text.partition("  b.md: ")[2]


def test_people_waits_and_timeouts_need_no_time(project, fanfold):
    (project / "p.yaml").write_text("""\
name: p
steps:
  - {id: nap, wait: 2h}
  - {id: ok, approve: "Go?", choices: [go, stop], depends_on: [nap]}
  - {id: who, ask: "Who?", timeout: 1h, default: nobody, depends_on: [ok]}
  - {id: end, agent: explorer, prompt: "{{steps.ok.output.decision}} {{steps.who.output}}"}
""")
    steps = {
        "ok": [{"question": "Go?", "output": {"decision": "go", "by": "ann"}, "ms": 1000}],
        "who": [{"question": "Who?"}],
        "end": [{"prompt": "go nobody", "output": "done"}],
    }
    (project / "tests").mkdir()
    case = {"cassette": 1, "recipe": "../p.yaml", "expect": {"status": "completed"}, "steps": steps}
    (project / "tests" / "p.yaml").write_text(json.dumps(case).replace('{"cassette": 1', '{\n"cassette": 1'))
    done = fanfold("test", "tests/p.yaml")
    assert done.status == 0, done.out
    assert fanfold("test", "tests/p.yaml", "--update").status == 0
    assert "nap started\n  - nap completed" in (project / "tests" / "p.yaml").read_text()


def test_two_runs_are_compared(recorded, fanfold, project):
    for topic in ("owls", "cats"):
        fanfold("run", "facts.yaml", "-i", f"topic={topic}", "--script", "answers.yaml", "--yes")
    ids = [run["run_id"] for run in fanfold("runs", "--json").json()]
    done = fanfold("compare", ids[1], ids[0])
    assert done.status == 0
    assert "+Find out about cats." in done.out
    assert f"--- {ids[1]}" in done.out
    assert f"+++ {ids[0]}" in done.out
    found = fanfold("compare", ids[1], ids[0], "--json").json()
    assert [found["runs"][side]["run_id"] for side in "ab"] == [ids[1], ids[0]]
    assert "prompt" in [one["kind"] for one in found["differences"]]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--jobs", "0"], "usage.out_of_range"),
        (["--repeat", "1001"], "usage.out_of_range"),
        (["--mode", "live-changed"], "usage.missing_option"),
        (["nothing"], "cassette.none"),
        (["facts.yaml"], "this file is not a cassette"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(recorded, fanfold, words, code):
    done = fanfold("test", *words)
    assert done.status != 0
    assert code in done.out + done.err


def test_a_folder_without_cassettes_is_an_error(project, fanfold):
    (project / "tests").mkdir()
    assert "cassette.none" in fanfold("test").err


# Coverage


def test_coverage_lists_reached_and_missing_branches(recorded, fanfold):
    [one] = fanfold("test", "--coverage", "--json").json()["coverage"]
    assert "polish: when true" in one["reached"]
    assert "polish: until false" in one["reached"]
    assert "polish: when false" in one["missing"]
    assert "polish: exhausted" in one["missing"]
    assert "judge: retry" in one["missing"]


def test_cases_are_generated_for_missing_branches(recorded, fanfold, project):
    report = fanfold("test", "--generate", "--json").json()
    [one] = report["coverage"]
    assert one["missing"] == []
    assert report["ok"]
    assert "tests/facts-polish-when-false.yaml" in report["generated"]
    assert fanfold("test", "--mode", "strict").status == 0
    assert fanfold("test", "--generate", "--json").json()["generated"] == []


# A cassette that came with a repository


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"files": {"../out.txt": "x"}}, "not a relative path"),
        ({"files": {"/etc/x": "x"}}, "not a relative path"),
        ({"files": {".git/hooks/pre-commit": "x"}}, "belongs to git or Fanfold"),
        ({"files": {f"f{i}": "" for i in range(2_001)}}, "at most 2,000"),
        ({"steps": {"a": [{"writes": {".fanfold/x": "x"}}]}}, "belongs to git or Fanfold"),
        ({"steps": {"a": [{"output": {"$file": "../../secret"}}]}}, "needs the 32 digits"),
        ({"steps": {"a": [{"output": {"$file": "0" * 32}}]}}, "cannot be read"),
        ({"steps": {"a": [{"ms": -1}]}}, "never negative"),
        ({"steps": {"a": [{"fail": {"class": "magic", "code": "x"}}]}}, "no failure class"),
        ({"result": {"status": "completed", "changes": ["a merged 1 /etc/x"]}}, "not a relative path"),
        ({"result": {"status": "completed", "changes": ["a merged 1 ../x"]}}, "not a relative path"),
        ({"files": {"a": {"base64": "a"}}}, "invalid base64"),
        ({"files": {"a": "x", "a/b": "x"}}, "Not a directory"),
        ({"recipe": "/etc/passwd"}, "not inside the project"),
        ({"recipe": "../../r.yaml"}, "not inside the project"),
        ({"unknown": 1}, "unknown field"),
        ({"cassette": 2}, "invalid enum value"),
    ],
)
def test_a_hostile_cassette_is_refused_with_its_place(project, fanfold, part, said):
    case = {"cassette": 1, "recipe": "../r.yaml", **part}
    (project / "r.yaml").write_text("name: r\nsteps: [{id: a, agent: explorer, prompt: x}]\n")
    (project.parent / "r.yaml").write_text("name: r\nsteps: [{id: a, agent: explorer, prompt: x}]\n")
    (project / "tests").mkdir()
    (project / "tests" / "h.yaml").write_text(json.dumps(case))
    done = fanfold("test", "tests/h.yaml")
    assert (done.status, said in done.out) == (1, True), done.out


@pytest.mark.full
def test_a_hostile_cassette_starts_nothing_and_writes_nowhere_else(project, fanfold):
    (project / "r.yaml").write_text("""\
name: r
steps:
  - {id: run, run: [touch, ran.txt]}
  - {id: look, agent: explorer, prompt: x}
  - {id: write, agent: worker, write_set: ["a/*"], prompt: x}
""")
    touch = {"tool": "run_command", "args": {"argv": ["touch", str(project / "ran.txt")]}, "result": "ran"}
    write = {"tool": "write_file", "args": {"path": "a/ok.txt", "content": "x"}}
    away = {"tool": "write_file", "args": {"path": "../../away.txt", "content": "x"}}
    absolute = {"tool": "write_file", "args": {"path": str(project / "away.txt"), "content": "x"}}
    read = {"tool": "read_file", "args": {"path": "/etc/passwd"}}
    steps = {
        "run": [{"command": ["touch", str(project / "ran.txt")], "exit_code": 0, "writes": {"ran.txt": "x"}}],
        "look": [{"turns": [{"calls": [write, touch, read]}], "writes": {"look.txt": "x"}, "output": "ok"}],
        "write": [{"turns": [{"calls": [write, away, absolute, touch]}], "output": "ok"}],
    }
    (project / "tests").mkdir()
    (project / "tests" / "h.yaml").write_text(
        json.dumps({"cassette": 1, "recipe": "../r.yaml", "steps": steps}).replace("{", "{\n", 1)
    )
    before = sorted(path for path in project.parent.rglob("*") if ".fanfold" not in path.parts)
    done = fanfold("test", "tests/h.yaml", "--update", "--json")
    assert done.status == 0, done.out
    assert sorted(path for path in project.parent.rglob("*") if ".fanfold" not in path.parts) == before
    text = (project / "tests" / "h.yaml").read_text()
    assert "run failed" in text, "a command without a write_set writes nothing"
    assert "look failed" in text, "neither does a role that reads"
    assert "write merged" in text
    assert "away.txt " not in text.partition("changes:")[2]


def test_a_search_is_not_carried_out_again(project, fanfold):
    """Its result depends on other files, and its pattern can take long."""
    recipe = "name: r\nsteps: [{id: a, agent: mine, prompt: x}]\n"
    (project / "r.yaml").write_text(recipe)
    (project / ".claude" / "agents").mkdir(parents=True)
    (project / ".claude" / "agents" / "mine.md").write_text(ROLE.replace("[Read]", "[Grep]"))
    (project / "tests").mkdir()
    calls = [{"tool": "search_files", "args": {"pattern": "("}}]  # it would fail
    case = {"cassette": 1, "recipe": "../r.yaml", "steps": {"a": [{"turns": [{"calls": calls}]}]}}
    (project / "tests" / "h.yaml").write_text(json.dumps(case))
    assert fanfold("test", "tests/h.yaml", "--update").status == 0
    text = (project / "tests" / "h.yaml").read_text()
    assert ("tool: search_files" in text, "bad_pattern" in text) == (True, False), text
    change(project / ".claude" / "agents" / "mine.md", "[Grep]", "[Read]")
    report = fanfold("test", "tests/h.yaml", "--json")
    assert (report.status, "tool" in kinds(report.json())) == (1, True), "the role lost the tool"


def test_a_link_is_not_followed(recorded, fanfold, project):
    outside = project.parent / "outside.yaml"
    shutil.move(recorded, outside)
    recorded.symlink_to(outside)
    assert "cassette.unreadable" in fanfold("test", "tests/facts.yaml").out


def test_one_long_text_named_many_times_does_not_fill_the_disk(project, fanfold):
    (project / "r.yaml").write_text("name: r\nsteps: [{id: a, agent: explorer, prompt: x}]\n")
    text = b"x" * 1_000_000
    name = blake2b(text, digest_size=16).hexdigest()
    (project / "tests/h.d").mkdir(parents=True)
    (project / "tests/h.d" / name).write_bytes(text)
    files = {f"f{number}": {"$file": name} for number in range(100)}
    (project / "tests/h.yaml").write_text(json.dumps({"cassette": 1, "recipe": "../r.yaml", "files": files}))
    done = fanfold("test", "tests/h.yaml")
    assert (done.status, "too large" in done.out) == (1, True), done.out


def test_a_diff_of_very_long_texts_shows_the_first_difference_at_once():
    lines = [f"line {number % 150}" for number in range(300_000)]
    before, after = (
        Cassette(cassette=1, recipe="r", result=ResultRecord(status="completed", output="\n".join(text)))
        for text in (lines, [*lines[:1_000], "another", *reversed(lines)])
    )
    (found,) = differences(before, after)
    assert "+another" in found.diff
    assert found.diff.count("\n") < 5_000


def test_a_folder_of_tests_that_leads_out_of_the_project_is_not_searched(project, fanfold):
    (project / "tests").symlink_to("/")
    done = fanfold("test", "--json")
    assert (done.status, done.json()["error"]["code"]) == (2, "cassette.outside")


@pytest.mark.full
@pytest.mark.parametrize("also", [{}, {"agent": [{"output": "x", "ms": 10**15}]}])
def test_a_recorded_time_beyond_every_limit_stops_the_replay_and_is_no_bug(project, fanfold, also):
    agent = "{id: agent, agent: explorer, prompt: x}"
    (project / "r.yaml").write_text(
        f"name: r\nsteps: [{agent}, {{id: a, run: [ls]}}, {{id: b, run: [ls]}}]\n"
    )
    (project / "tests").mkdir()
    steps = {"a": [{"exit_code": 0, "ms": 10**15}], "b": [{"exit_code": 0}], **also}
    case = {"cassette": 1, "recipe": "../r.yaml", "steps": steps}
    (project / "tests/h.yaml").write_text(json.dumps(case))
    done = fanfold("test", "tests/h.yaml")
    assert done.status in (0, 1), done.err


def test_a_cassette_has_no_file_outside_the_copy_of_a_live_run_deleted(project, fanfold, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "kept.txt").write_text("x")
    (project / "link").symlink_to(outside)
    (project / "added.txt").write_text("x")
    (project / "r.yaml").write_text("name: r\nsteps: [{id: a, run: [ls]}]\n")
    (project / "tests").mkdir()
    changes = ["a merged 1 link/kept.txt", "a merged 1 added.txt", "a merged 1 tests", "a merged 1 r.yaml/x"]
    case = {"cassette": 1, "recipe": "../r.yaml", "result": {"status": "completed", "changes": changes}}
    (project / "tests/h.yaml").write_text(json.dumps(case))
    done = fanfold("test", "tests/h.yaml", "--model", "anthropic:claude-haiku-4-5", "--json")
    assert done.json()["error"]["code"] == "permission_denied", done.out
    assert (outside / "kept.txt").exists()
    assert (project / "added.txt").exists()


# Agents that are programs, commands and processes


@pytest.mark.full
def test_programs_commands_and_functions_answer_from_the_record(project, tmp_path, monkeypatch, fanfold):
    agents = AgentWorld(project, tmp_path / "home", monkeypatch)
    agents.install("claude", writing("claude"))
    agents.role("coder", "claude")
    (project / "handlers.py").write_text(
        "import fanfold\n\n\n@fanfold.function\ndef count(text):\n    return {'chars': len(text)}\n"
    )
    recipe = agents.recipe(
        step("coder", write_set=["*.txt"]),
        {"id": "test", "run": ["cat", "hello.txt"], "depends_on": ["work"]},
        {"id": "made", "shell": "echo made > made.bin", "write_set": ["*.bin"], "depends_on": ["test"]},
        {"id": "fails", "shell": "echo no; exit 3", "depends_on": ["made"], "on_failure": "inline"},
        {"id": "count", "handler": "count", "inputs": {"text": "steps.test.output"}},
        output={"n": "steps.count.output.chars", "failed": "steps.fails.error.message"},
    )
    done = fanfold("run", recipe, "--yes", "--json").json()
    assert done["output"]["n"] == 5, done
    assert fanfold("record", "last").status == 0
    shutil.rmtree(agents.bin)
    for name in ("hello.txt", "made.bin"):
        (project / name).unlink()
    shown = fanfold("test")
    assert (shown.status, "1 passed" in shown.out) == (0, True), shown.out
    text = (project / "tests" / "work.yaml").read_text()
    assert "program: claude" in text
    assert "exit_code: 3" in text


MODELS = """\
name: asks
steps:
  - {id: look, agent: explorer, prompt: Look at a.txt.}
  - id: judge
    agent: explorer
    prompt: "Judge: {{steps.look.output}}"
    output_schema: {type: object, required: [good], properties: {good: {type: boolean}}}
  - {id: write, agent: worker, write_set: ["*.txt"], depends_on: [judge], prompt: Write b.txt.}
"""


def answer(asked: RecordedRequest) -> Reply:
    """A model that reads a file, judges, and writes a file."""
    if asked.prompt.startswith("Look") and not asked.results:
        return Reply(calls=(Call("read_file", {"path": "a.txt"}),))
    if asked.prompt.startswith("Judge"):
        return answer_with({"good": "weak" not in asked.model}, asked)
    if asked.prompt.startswith("Write") and not asked.results:
        return Reply(calls=(Call("write_file", {"path": "b.txt", "content": "b\\n"}),))
    return Reply(text=f"seen: {asked.prompt[:60]}")


@pytest.fixture
def models(project, monkeypatch):
    (project / "asks.yaml").write_text(MODELS)
    (project / "a.txt").write_text("a\n")
    with Provider(answer) as provider:
        for name, value in {**provider.environment, "FANFOLD_MODEL": "anthropic:claude-haiku-4-5"}.items():
            monkeypatch.setenv(name, value)
        yield provider


@pytest.mark.full
def test_a_run_on_models_replays_without_them_and_asks_only_for_what_changed(models, fanfold, project):
    assert fanfold("run", "asks.yaml", "--yes").status == 0
    assert fanfold("record", "last").status == 0
    (project / "b.txt").unlink()
    asked = len(models.asked)
    assert fanfold("test", "--mode", "strict").out.startswith("passed")
    change(project / "asks.yaml", "Look at a.txt.", "Look closely at a.txt.")
    assert fanfold("test").out.startswith("changed")
    assert len(models.asked) == asked, "no model is asked"
    live = ["test", "--mode", "live-changed", "--budget-tokens", "90000"]
    assert "permission_denied" in fanfold(*live).out
    assert "budget reached" in fanfold(*live[:-1], "1", "--yes").out
    done = fanfold(*live, "--yes")
    assert done.status == 0, done.out
    prompts = [one.prompt[:5] for one in models.asked[asked:]]
    assert prompts == ["Look ", "Look ", "Judge"], "the writer and its file come from the recording"
    assert not (project / "b.txt").exists()
    assert fanfold(*live, "--yes", "--update").status == 0
    assert fanfold("test", "--mode", "strict").status == 0


@pytest.mark.full
def test_a_cassette_does_not_raise_the_budget_of_a_live_replay(models, fanfold, project):
    (project / "r.yaml").write_text("""\
name: r
steps:
  - {id: a, agent: explorer, prompt: one}
  - {id: b, agent: explorer, prompt: two, depends_on: [a]}
""")
    (project / "tests").mkdir()
    case = {"cassette": 1, "recipe": "../r.yaml", "raised": [{"budget_tokens": 10**9}], "steps": {}}
    (project / "tests/h.yaml").write_text(json.dumps(case))
    fanfold("test", "tests/h.yaml", "--mode", "live-changed", "--budget-tokens", "10", "--yes")
    assert models.asked == [], "ten tokens are fewer than a request needs"


@pytest.mark.full
def test_models_are_compared_by_the_expectations(models, fanfold, project):
    assert fanfold("run", "asks.yaml", "--yes").status == 0
    assert fanfold("record", "last").status == 0
    cassette = project / "tests" / "asks.yaml"
    change(cassette, "expect:\n", "expect:\n  output: steps.judge.output.good && changes.size() == 1\n")
    words = ["--model", "anthropic:claude-haiku-4-5", "--model", "anthropic:weak", "--repeat", "3", "--json"]
    denied = fanfold("test", *words)
    assert denied.json()["error"]["code"] == "permission_denied"
    done = fanfold("test", *words, "--yes")
    good, weak = done.json()["models"]
    assert (good["passed"], good["runs"], weak["passed"], weak["runs"]) == (3, 3, 0, 3), done.out
    assert (round(good["low"], 2), good["high"]) == (0.44, 1.0)
    assert weak["problems"]
    assert done.status == 1
    table = fanfold("test", *words[:-1], "--yes").out
    assert "95 % interval" in table
    assert "3/3" in table
    latest, before = list_comparisons(wire(project)).items  # as the console shows them
    assert [(row.model, row.passed) for row in latest.rows] == [(words[1], 3), (words[3], 0)]
    assert before.at <= latest.at


@pytest.mark.full
def test_one_budget_is_for_all_live_runs_together(models, fanfold, project):
    models.script = lambda _: Reply(text="seen", input_tokens=30_000)
    (project / "r.yaml").write_text("name: r\nsteps: [{id: a, agent: explorer, prompt: Look}]\n")
    (project / "tests").mkdir()
    for number in range(6):
        (project / f"tests/c{number}.yaml").write_text("cassette: 1\nrecipe: ../r.yaml\n")
    limit = ["--budget-tokens", "100000", "--yes", "--json"]
    done = fanfold("test", "tests/c0.yaml", "--model", "anthropic:claude-haiku-4-5", "--repeat", "9", *limit)
    [row] = done.json()["models"]
    assert (row["runs"], row["passed"], len(models.asked)) == (4, 4, 4), row
    cases = fanfold("test", "--mode", "live-changed", *limit).json()["cases"]
    assert len(cases) == 6
    assert len(models.asked) == 8, "four more fit into the limit"


@pytest.mark.full
def test_a_model_without_a_run_within_the_budget_does_not_pass(models, fanfold, project):
    assert fanfold("run", "asks.yaml", "--yes").status == 0
    assert fanfold("record", "last").status == 0
    words = ["--model", "anthropic:claude-haiku-4-5", "--budget-tokens", "1", "--yes", "--json"]
    done = fanfold("test", *words)
    [row] = done.json()["models"]
    assert (row["runs"], row["passed"], done.status) == (0, 0, 1), row
    assert row["problems"]


@pytest.mark.full
def test_a_large_suite_uses_several_processes(recorded, fanfold, project):
    for number in range(25):
        shutil.copy(recorded, recorded.with_name(f"copy{number}.yaml"))
    report = fanfold("test", "--jobs", "2", "--json").json()
    assert len(report["cases"]) == 26
    assert report["ok"]
    assert [case["file"] for case in report["cases"]] == sorted(case["file"] for case in report["cases"])


@pytest.mark.full
def test_processes_of_a_killed_suite_end_with_it(recorded, background):
    for number in range(60):
        shutil.copy(recorded, recorded.with_name(f"copy{number}.yaml"))
    suite = background("test", "--jobs", "2")
    listed = Path(f"/proc/{suite.pid}/task/{suite.pid}/children")
    own = Path(f"/proc/{suite.pid}/cmdline").read_bytes()
    while True:
        assert suite.poll() is None
        workers = listed.read_text().split()  # one that has not yet executed its program is still a copy
        if len(workers) == 2 and own not in [Path(f"/proc/{one}/cmdline").read_bytes() for one in workers]:
            break
    for worker in workers:
        os.kill(int(worker), signal.SIGSTOP)  # they cannot end by themselves
    suite.kill()
    suite.wait(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while any(is_alive(int(worker)) for worker in workers):
        assert time.monotonic() < deadline


def test_shared_memory_of_killed_suites_is_removed(recorded, fanfold, tmp_path, monkeypatch):
    monkeypatch.setattr(cassettes, "_MEMORY", str(tmp_path))
    held, left, fresh = (tmp_path / f"fanfold-test-{name}" for name in ("held", "left", "fresh"))
    for folder in (held, left, fresh):
        (folder / "store").mkdir(parents=True)
    for folder in (held, left):
        os.utime(folder, (0, 0))
    holding = os.open(held, os.O_RDONLY)
    fcntl.flock(holding, fcntl.LOCK_EX)
    assert fanfold("test").status == 0
    os.close(holding)
    assert sorted(tmp_path.glob("fanfold-test-*")) == [fresh, held]


@pytest.mark.full
def test_a_run_on_a_real_local_model_replays_the_same_a_hundred_times(tmp_path, monkeypatch):
    """The cassette was recorded from a run on the local model: see tests/cassettes/local/facts.yaml."""
    import asyncio

    from fanfold.api.cassettes import Suite
    from fanfold.wiring import wire

    project = tmp_path / "another" / "path"
    shutil.copytree(ROOT / "tests" / "cassettes" / "local", project)
    monkeypatch.setenv("HOME", str(tmp_path / "another home"))
    monkeypatch.delenv("FANFOLD_HOME", raising=False)

    async def replay() -> set[bytes]:
        import msgspec

        with Suite(wire(project), mode="strict") as suite:
            found = [await suite.test(project / "tests" / "facts.yaml") for _ in range(100)]
        assert {report.status for report, _ in found} == {"passed"}
        return {msgspec.json.encode(recording) for _, recording in found}

    assert len(asyncio.run(replay())) == 1


@pytest.mark.proof("recorded runs")
def test_the_cassettes_of_examples_and_built_in_recipes_pass(project, fanfold):
    """Isolated writers start git, which decides what is ignored; everything else is in this process."""
    shutil.copytree(ROOT / "examples", project / "examples")
    shutil.copytree(ROOT / "tests" / "cassettes", project / "cassettes")
    (project / "tests").mkdir()
    (project / "tests" / "test_a.py").write_text("import unittest\n")  # the tests that a gate runs
    done = fanfold("test", "--jobs", "1", "--json", "examples", "cassettes")
    report = done.json()
    failed = [case for case in report["cases"] if case["status"] not in ("passed", "changed")]
    assert done.status == 0, f"`fanfold test --update examples tests/cassettes` accepts changes: {failed}"
    examples = {file.parent.name for file in (ROOT / "examples").glob("*/recipe.yaml")}
    recipes = {file.stem for file in BUILT_IN_RECIPES.glob("*.yaml")}
    assert {Path(case["file"]).stem for case in report["cases"]} == examples | recipes | {"facts"}
