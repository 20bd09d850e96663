"""What steps changed: `fanfold diff`, `fanfold apply`, and what `fanfold gc` clears away of it."""

import asyncio
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fanfold.api.client import Client
from fanfold.api.run_options import Options
from fanfold.kernel.events import Event, Evidence
from fanfold.kernel.state import fingerprint
from fanfold.wiring import wire
from tests.kernel.drive import Drive, function, plan
from tests.work import long_enough_ms

pytestmark = pytest.mark.full

LINES = "".join(f"line {number}\n" for number in range(20))
CHILD = """\
name: child
steps: [{id: deep, agent: worker, prompt: x, write_set: ["src/deep.txt"], merge: propose}]
"""
RECIPE = """\
name: changes
steps:
  - {id: draft, agent: worker, prompt: x, write_set: ["src/a.txt", "src/new.txt"], merge: propose}
  - {id: now, agent: worker, prompt: x, write_set: ["src/now.txt"]}
  - {id: stray, run: [touch, src/stray.txt, outside.txt], write_set: ["src/stray.txt"]}
  - {id: kid, workflow: ./child.yaml}
  - {id: reads, agent: explorer, prompt: x}
output: "{{steps.now.output}}"
"""
SCRIPT = """\
default: ok
steps:
  draft: {writes: {"src/a.txt": "%s", "src/new.txt": "new\\n"}}
  now: {writes: {"src/now.txt": "now\\n"}}
  "kid/deep": {writes: {"src/deep.txt": "deep\\n"}}
"""


def edited(number, text):
    return LINES.replace(f"line {number}\n", f"{text}\n")


@pytest.fixture
def changed(fanfold, project):
    """A run whose steps proposed, merged and strayed; its id."""
    (project / "src").mkdir()
    (project / "src/a.txt").write_text(LINES)
    (project / "changes.yaml").write_text(RECIPE)
    (project / "child.yaml").write_text(CHILD)
    (project / "script.yaml").write_text(SCRIPT % edited(15, "theirs").replace("\n", "\\n"))
    result = fanfold("run", "changes.yaml", "--script", "script.yaml", "--yes", "--json")
    assert result.json()["status"] == "partial", result
    return result.json()["run_id"]


def steps(result):
    assert result.status == 0, result
    return {step["path"]: step for step in result.json()["steps"]}


def content(folder):
    files = [path for path in folder.rglob("*") if path.is_file() and ".fanfold" not in path.parts]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def bases(folder):
    return [one.name for one in (folder / ".fanfold/workspace/bases").iterdir() if one.is_dir()]


def log(fanfold, run, *more):
    lines = fanfold("logs", run, "--json", *more).out.splitlines()
    return [json.loads(line) for line in lines]


# diff


def test_diff_shows_every_step_that_changed_something_and_what_became_of_it(fanfold, changed):
    found = steps(fanfold("diff", changed, "--json"))
    assert {path: step["state"] for path, step in found.items()} == {
        "draft": "proposed",
        "now": "merged",
        "stray": "kept",
        "kid/deep": "proposed",
    }
    assert found["draft"]["changes"] == [
        {"path": "src/a.txt", "kind": "modified"},
        {"path": "src/new.txt", "kind": "added"},
    ]
    assert found["now"] == {
        "path": "now",
        "item": "",
        "state": "merged",
        "changes": [{"path": "src/now.txt", "kind": "added"}],
        "patch": found["now"]["patch"],
        "proposal": None,
        "workspace": None,
        "why": "",
        "left_out": [],
        "left_out_count": 0,
    }
    assert "+++ b/src/now.txt\n@@ -0,0 +1 @@\n+now\n" in found["now"]["patch"]
    assert found["stray"]["why"] == "workspace.violation"
    assert "b/outside.txt" in found["stray"]["patch"]
    assert Path(found["stray"]["workspace"], "outside.txt").exists()


def test_looking_twice_shows_the_same_and_takes_nothing_over(fanfold, project, changed):
    records = {path: path.read_text() for path in project.glob(".fanfold/subagents/*/child.json")}
    assert records
    first = fanfold("diff", changed, "--json").out
    assert fanfold("diff", changed, "--json").out == first
    assert {path: path.read_text() for path in project.glob(".fanfold/subagents/*/child.json")} == records
    assert not list(project.glob(".fanfold/subagents/*/work.*"))


def test_diff_prints_a_patch_for_git(shell, project, changed, tmp_path):
    patch = tmp_path / "patch"
    patch.write_text(shell("diff", changed).out)
    subprocess.run(
        ["git", "apply", "--exclude=outside.txt", "--exclude=src/now.txt", str(patch)],
        cwd=project,
        check=True,
    )
    assert (project / "src/a.txt").read_text() == edited(15, "theirs")
    assert (project / "src/new.txt").read_text() == "new\n"
    assert (project / "src/deep.txt").read_text() == "deep\n"


@pytest.mark.parametrize("name", ["last", "prefix"])
def test_one_step_is_shown_by_its_path_also_inside_a_child_run(fanfold, changed, name):
    run = changed[:6] if name == "prefix" else name
    assert list(steps(fanfold("diff", run, "draft", "--json"))) == ["draft"]
    assert list(steps(fanfold("diff", run, "kid/deep", "--json"))) == ["kid/deep"]
    assert list(steps(fanfold("diff", run, "kid", "--json"))) == ["kid/deep"]
    child = fanfold("inspect", changed, "--json").json()["runs"][0]["run_id"]
    assert list(steps(fanfold("diff", child, "--json"))) == ["deep"]
    assert list(steps(fanfold("diff", child, "deep", "--json"))) == ["deep"]


def test_a_merge_names_the_command_that_takes_it_back_and_a_proposal_the_one_that_applies_it(
    fanfold, changed
):
    text = fanfold("diff", changed).out
    assert f"# now: 1 file merged; take them back: fanfold undo {changed} now\n" in text
    assert "\n+now\n" in text
    assert f"# draft: 2 files proposed; apply them: fanfold apply {changed} draft\n" in text
    assert "\n+theirs\n" in text


@pytest.mark.parametrize(
    ("step", "code"), [("drft", "step.not_found"), ("reads", "changes.none"), ("kid/up", "step.not_found")]
)
def test_a_missing_name_is_not_found(fanfold, changed, step, code):
    result = fanfold("diff", changed, step, "--json")
    assert (result.status, result.json()["error"]["code"]) == (6, code)


def test_a_run_that_changed_nothing_says_so(fanfold, project):
    (project / "r.yaml").write_text("name: r\nsteps: [{id: a, agent: explorer, prompt: x}]\n")
    (project / "s.yaml").write_text("default: ok\n")
    assert fanfold("run", "r.yaml", "--script", "s.yaml", "--yes").status == 0
    assert fanfold("diff", "last", "--json").json()["steps"] == []
    assert "changed anything" in fanfold("diff", "last").out
    assert not (project / ".fanfold/subagents").exists()


@pytest.mark.parametrize("command", [["diff", "zzzz"], ["apply", "zzzz", "a"]])
def test_a_run_that_does_not_exist_is_not_found_and_nothing_is_made(fanfold, project, command):
    result = fanfold(*command, "--json")
    assert (result.status, result.json()["error"]["code"]) == (6, "run.not_found")
    assert not (project / ".fanfold").exists()


def test_on_a_terminal_a_patch_is_coloured_and_cannot_act(project, fanfold):
    (project / "r.yaml").write_text(
        "name: r\nsteps: [{id: a, agent: worker, prompt: x, write_set: [n.txt], merge: propose}]\n"
    )
    (project / "s.yaml").write_text(
        r'steps: {a: {output: ok, writes: {n.txt: "\tevil \e]0;title\a text\n"}}}'
    )
    assert fanfold("run", "r.yaml", "--script", "s.yaml", "--yes").status == 0
    shown = on_terminal("diff", "last")
    assert "\x1b[32m+\tevil ␛]0;title␇ text\x1b[0m" in shown
    assert "\x1b]0;title" not in shown
    assert "\x1b[36m@@" in shown


def on_terminal(*arguments):
    """What a command prints to a terminal."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    program = [sys.executable, "-m", "fanfold.cli.main", *arguments]
    process = subprocess.Popen(program, stdout=follower, stderr=follower, stdin=follower, env=environment)
    os.close(follower)
    said = b""
    while True:
        try:
            read = os.read(leader, 65536)
        except OSError:  # how Linux says that nobody has the other end any more
            break
        if not read:
            break
        said += read
    process.wait()
    os.close(leader)
    return said.decode().replace("\r\n", "\n")


# apply


def test_a_proposal_is_merged_into_the_project_as_it_is_now_and_recorded(fanfold, project, changed):
    (project / "src/a.txt").write_text(edited(3, "ours"))
    result = fanfold("apply", changed, "draft", "--json")
    assert result.status == 0
    assert result.json()["changes"] == [
        {"path": "src/a.txt", "kind": "modified"},
        {"path": "src/new.txt", "kind": "added"},
    ]
    assert (project / "src/a.txt").read_text() == edited(3, "ours").replace("line 15\n", "theirs\n")
    assert (project / "src/new.txt").read_text() == "new\n"
    last = log(fanfold, changed)[-1]
    assert (last["type"], last["data"]["what"], last["data"]["step"]) == ("workspace_event", "apply", "draft")
    assert last["data"]["by"]
    assert fanfold("verify", changed).status == 0
    assert fanfold("replay", changed).status == 0


def test_applied_changes_are_shown_as_applied_everywhere(fanfold, project, changed):
    assert "draft proposes to change 2 files" in fanfold("resume", changed).err
    assert fanfold("apply", changed, "draft").status == 0
    states = {c["path"]: c["state"] for c in fanfold("inspect", changed, "--json").json()["changes"]}
    merged = {"src/a.txt": "applied", "src/new.txt": "applied", "src/now.txt": "merged"}
    assert states == {**merged, "src/deep.txt": "proposed"}
    assert steps(fanfold("diff", changed, "--json"))["draft"]["state"] == "applied"
    report = (project / ".fanfold/runs" / changed / "report.md").read_text()
    assert "- modified src/a.txt (draft, applied)" in report
    assert "- proposed, not applied: kid/deep:" in report
    assert "draft proposes" not in fanfold("resume", changed).err


def test_applying_again_changes_nothing_and_is_no_error(fanfold, project, changed):
    assert fanfold("apply", changed, "draft").status == 0
    (project / "src/a.txt").write_text("mine\n")
    events = len(log(fanfold, changed))
    again = fanfold("apply", changed, "draft", "--json")
    assert (again.status, again.json()["already"]) == (0, True)
    assert "applied before" in fanfold("apply", changed, "draft").out
    assert (project / "src/a.txt").read_text() == "mine\n"
    assert len(log(fanfold, changed)) == events


def test_a_dry_run_says_what_would_change_and_changes_nothing(fanfold, project, changed):
    before, events = content(project), len(log(fanfold, changed))
    result = fanfold("apply", changed, "draft", "--dry-run", "--json").json()
    assert (result["dry_run"], result["already"]) == (True, False)
    assert [change["path"] for change in result["changes"]] == ["src/a.txt", "src/new.txt"]
    assert "would apply draft: 2 files" in fanfold("apply", changed, "draft", "--dry-run").out
    assert content(project) == before
    assert len(log(fanfold, changed)) == events
    assert steps(fanfold("diff", changed, "--json"))["draft"]["state"] == "proposed"


def test_a_conflict_names_files_and_sides_and_changes_nothing(fanfold, project, changed):
    (project / "src/a.txt").write_text(edited(15, "ours"))
    before = content(project)
    for flags in ([], ["--dry-run"]):
        result = fanfold("apply", changed, "draft", "--json", *flags)
        error = result.json()["error"]
        assert (result.status, error["code"]) == (1, "workspace.conflict")
        (conflict,) = error["details"]["conflicts"]
        assert (conflict["path"], conflict["sides"]) == ("src/a.txt", "changed on both sides")
        assert {"base", "ours", "theirs"} <= conflict.keys()
        assert "fanfold diff" in error["hint"]
        assert content(project) == before
    assert steps(fanfold("diff", changed, "--json"))["draft"]["state"] == "proposed"
    (project / "src/a.txt").write_text(LINES)
    assert fanfold("apply", changed, "draft").status == 0


def test_a_file_deleted_meanwhile_is_a_conflict_that_says_who_did_what(fanfold, project, changed):
    (project / "src/a.txt").unlink()
    result = fanfold("apply", changed, "draft", "--json")
    assert result.json()["error"]["details"]["conflicts"][0]["sides"].startswith("deleted in the project")


@pytest.mark.parametrize(
    ("step", "code"),
    [("now", "changes.none"), ("reads", "changes.none"), ("kid", "changes.none"), ("nope", "step.not_found")],
)
def test_only_what_waits_can_be_applied(fanfold, changed, step, code):
    result = fanfold("apply", changed, step, "--json")
    assert (result.status, result.json()["error"]["code"]) == (6, code)


def test_a_proposal_of_a_child_run_is_recorded_in_the_childs_log(fanfold, project, changed):
    assert fanfold("apply", changed, "kid/deep").status == 0
    assert (project / "src/deep.txt").read_text() == "deep\n"
    child = fanfold("inspect", changed, "--json").json()["runs"][0]["run_id"]
    assert log(fanfold, child)[-1]["data"]["what"] == "apply"
    assert fanfold("apply", child, "deep", "--json").json()["already"] is True
    assert fanfold("verify", changed).status == 0


def test_dying_between_the_merge_and_the_log_loses_nothing_and_merges_nothing_twice(
    fanfold, project, changed
):
    proposal = steps(fanfold("diff", changed, "draft", "--json"))["draft"]["proposal"]
    spaces = wire(project).isolation.spaces
    assert spaces.apply(proposal, drop=False).ok  # and here the process dies
    (project / "src/a.txt").write_text("mine since\n")
    assert steps(fanfold("diff", changed, "--json"))["draft"]["state"] == "proposed"
    assert fanfold("apply", changed, "draft").status == 0
    assert (project / "src/a.txt").read_text() == "mine since\n"
    assert [e["data"]["what"] for e in log(fanfold, changed) if e["type"] == "workspace_event"][-1] == "apply"
    assert proposal not in [one.id for one in spaces.proposals()]


def test_a_live_run_records_what_is_applied_meanwhile(project, shell):
    (project / "r.yaml").write_text(
        "name: r\nsteps:\n"
        "  - {id: a, agent: worker, prompt: x, write_set: [n.txt], merge: propose}\n"
        "  - {id: ok, approve: 'Apply it?', depends_on: [a]}\n"
    )
    script = "steps: {a: {output: ok, writes: {n.txt: new}}}"

    async def work():
        async with Client(wire(project)) as client:
            run = await client.start(project / "r.yaml", options=Options(permission="auto", script=script))
            async for _ in run.events():
                if run.status == "waiting":
                    break
            applied = await asyncio.to_thread(shell, "apply", run.id, "a", "--json")
            again = await asyncio.to_thread(shell, "apply", run.id, "a", "--json")
            await run.approve("ok")
            return applied, again, await run.result()

    applied, again, result = asyncio.run(work())
    assert (applied.status, applied.json()["already"]) == (0, False)
    assert (again.status, again.json()["already"]) == (0, True)
    assert (project / "n.txt").read_text() == "new"
    assert (result.status, result.changes[0].state) == ("completed", "applied")
    assert shell("verify", result.run_id).status == 0


def test_a_paused_run_without_an_owner_is_notified_too_and_stays_paused(project, fanfold):
    (project / "r.yaml").write_text(
        "name: r\nsteps:\n"
        "  - {id: a, agent: worker, prompt: x, write_set: [n.txt], merge: propose}\n"
        "  - {id: ok, approve: 'Apply it?', depends_on: [a]}\n"
    )
    (project / "s.yaml").write_text("steps: {a: {output: ok, writes: {n.txt: new}}}")
    assert fanfold("run", "r.yaml", "--script", "s.yaml", "--yes").status == 3
    assert fanfold("apply", "last", "a").status == 0
    seen = fanfold("inspect", "last", "--json").json()
    assert (seen["status"], seen["changes"][0]["state"]) == ("waiting", "applied")
    assert fanfold("verify", "last").status == 0


def test_evidence_after_the_end_is_nothing_the_kernel_minds():
    run = Drive(plan(function("a")))
    run.report("a")
    known = fingerprint(run.state)
    run._append(Event("r", run.at + 5, Evidence("workspace_event", {"what": "apply", "step": "a"})))
    assert (run.status(), fingerprint(run.state)) == ("completed", known)
    assert run.auditor.close(run.state) == []


# gc


def test_gc_takes_workspaces_by_age_and_leaves_proposals_of_runs_that_stay(fanfold, project, changed):
    (kept,) = sessions(project)
    assert fanfold("gc", "--json").json()["workspaces"] == []
    age(project, kept)
    dry = fanfold("gc", "--dry-run", "--json").json()
    assert (dry["runs"], dry["workspaces"], dry["proposals"]) == ([], [kept], [])
    assert f"would remove workspace {kept}" in fanfold("gc", "--dry-run").out
    assert sessions(project) == [kept]
    assert fanfold("gc", "--json").json()["workspaces"] == [kept]
    assert sessions(project) == []
    assert bases(project)
    assert steps(fanfold("diff", changed, "--json"))["draft"]["state"] == "proposed"
    assert fanfold("apply", changed, "draft").status == 0


def test_with_a_run_go_its_proposals_and_workspaces(fanfold, project, changed):
    dry = fanfold("gc", "--older-than", "0d", "--dry-run", "--json").json()
    assert dry["runs"] == [changed]
    assert dry["workspaces"] == sessions(project)
    assert len(dry["proposals"]) == 2
    assert content_of_proposals(project)
    gone = fanfold("gc", "--older-than", "0d", "--json").json()
    assert gone == {**dry, "dry_run": False}
    assert (sessions(project), content_of_proposals(project)) == ([], [])
    assert os.listdir(project / ".fanfold/workspace/trash") == []
    assert bases(project) == []
    assert fanfold("run", "changes.yaml", "--script", "script.yaml", "--yes").status == 1
    assert bases(project)


@pytest.mark.parametrize("how", ["paused", "killed"])
def test_gc_never_deletes_the_workspace_of_a_run_that_can_continue(fanfold, project, background, until, how):
    (project / "r.yaml").write_text(
        "name: r\nsteps: [{id: a, agent: worker, prompt: x, write_set: [n.txt]}]\n"
    )
    answer = f"{{output: ok, delay_ms: {long_enough_ms(5_000)}, writes: {{n.txt: new}}}}"
    (project / "s.yaml").write_text(f"steps: {{a: {answer}}}")
    process = background("run", "r.yaml", "--script", "s.yaml", "--yes")
    until(lambda _: list(project.glob(".fanfold/subagents/*/child.json")))
    if how == "paused":
        assert fanfold("pause", "last").status == 0
    else:
        process.kill()
    process.wait()
    (session,) = sessions(project)
    age(project, session)
    assert fanfold("gc", "--older-than", "0d", "--json").json()["workspaces"] == []
    assert sessions(project) == [session]
    assert fanfold("cancel", "last").status == 0
    age(project, session)
    assert fanfold("gc", "--json").json()["workspaces"] == [session]


def sessions(project):
    folder = project / ".fanfold/subagents"
    return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.exists() else []


def age(project, session):
    """Let a workspace look as if it had been left two months ago."""
    then = time.time() - 60 * 86_400
    os.utime(project / ".fanfold/subagents" / session / "child.json", (then, then))


def content_of_proposals(project):
    return sorted(path.name for path in (project / ".fanfold/workspace/proposals").iterdir())
