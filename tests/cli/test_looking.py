"""Looking into runs: runs, inspect, logs, explain, query, replay, verify, gc, doctor, init."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from tests.work import PATIENCE_S

RECIPE = """\
name: tour
inputs: [{name: words, type: array, default: [red, green]}]
steps:
  - {id: each, agent: explorer, for_each: inputs.words, prompt: "Describe {{item}}"}
  - {id: never, agent: explorer, when: "1 == 2", prompt: x}
  - {id: bad, agent: explorer, prompt: x, retry: {attempts: 2, backoff: 1ms, on: [transport]}}
  - {id: after, agent: explorer, prompt: "{{steps.bad.output}}"}
  - {id: kid, workflow: ./child.yaml, depends_on: [each]}
output: "{{steps.kid.output}}"
"""
CHILD = "name: child\nsteps: [{id: up, agent: summarizer, prompt: x}]\n"
SCRIPT = """\
default: OK from {{step}}
steps:
  "each[0]": {output: the colour of ripe strawberries}
  bad: {fail: {class: transport, message: connection reset}}
"""
ENVELOPE = [
    "log", "seq", "tree_seq", "at", "type", "data", "run_id", "root_run_id", "parent_run_id", "depth", "path",
    "epoch",
]  # fmt: skip


@pytest.fixture
def toured(fanfold, project):
    """A run that did a bit of everything; its id."""
    (project / "tour.yaml").write_text(RECIPE)
    (project / "child.yaml").write_text(CHILD)
    (project / "script.yaml").write_text(SCRIPT)
    result = fanfold("run", "tour.yaml", "--script", "script.yaml", "--json")
    assert result.json()["status"] == "partial"
    return result.json()["run_id"]


# Which run


def test_a_run_is_meant_by_a_unique_prefix_or_last(fanfold, toured):
    for name in (toured, toured[:5], "last"):
        assert fanfold("inspect", name, "--json").json()["run_id"] == toured


@pytest.mark.parametrize(
    "command", ["inspect", "logs", "explain", "resume", "watch", "cancel", "pause", "replay"]
)
def test_a_run_that_does_not_exist_is_not_found_and_nothing_is_made(fanfold, project, command):
    result = fanfold(command, "zzzz", "--json")
    assert (result.status, result.json()["error"]["code"]) == (6, "run.not_found")
    assert not (project / ".fanfold").exists()


def test_an_ambiguous_prefix_names_the_runs_it_could_mean(fanfold, project):
    (project / "s.yaml").write_text("default: ok\n")
    chats = [fanfold("chat", "x", "--script", "s.yaml", "--json").json()["run_id"] for _ in range(2)]
    result = fanfold("inspect", "chat-", "--json")
    assert (result.status, result.json()["error"]["code"]) == (2, "run.ambiguous")
    assert all(chat in str(result.json()["error"]) for chat in chats)
    nothing = fanfold("inspect", "", "--json")  # a variable that is not set
    assert (nothing.status, nothing.json()["error"]["code"]) == (6, "run.not_found")


# runs and inspect


def test_runs_are_listed_newest_first_by_their_heads(fanfold, project, toured):
    assert fanfold("run", "child.yaml", "--script", "script.yaml").status == 0
    heads = fanfold("runs", "--json").json()
    assert [head["recipe"] for head in heads] == ["child", "tour"]
    assert heads[1]["run_id"] == toured
    keys = {"run_id", "recipe", "version", "status", "parent_run_id", "created_at", "usage", "error"}
    assert keys <= set(heads[0])
    assert len(fanfold("runs", "--all", "--json").json()) == 3
    assert [head["recipe"] for head in fanfold("runs", "--status", "partial", "--json").json()] == ["tour"]
    assert len(fanfold("runs", "--limit", "1", "--json").json()) == 1
    text = fanfold("runs").out
    assert toured in text
    assert "tour@1" in text


def test_a_project_in_which_nothing_ran_has_no_runs(fanfold, project):
    assert fanfold("runs", "--json").json() == []
    assert "nothing has run" in fanfold("runs").out
    assert not (project / ".fanfold").exists()


def test_inspect_shows_the_tree_with_its_child_runs(fanfold, toured):
    document = fanfold("inspect", toured, "--json").json()
    assert (document["parent_run_id"], document["nesting_depth"], document["execution_path"]) == (None, 0, "")
    assert set(document["steps"]) == {"each", "each[0]", "each[1]", "never", "bad", "after", "kid"}
    assert document["steps"]["never"]["reason"] == "condition"
    child = document["runs"][0]
    assert (child["parent_run_id"], child["execution_path"], child["runs"]) == (toured, "kid", [])
    text = fanfold("inspect", toured).out
    for words in (
        "tour@1",
        "each[1]",
        "kid",
        "child@1",
        child["run_id"],
        "connection reset",
        "OK from kid/up",
    ):
        assert words in text
    full = fanfold("inspect", toured, "--steps", "--state").out
    assert "strawberries" in full
    assert "slots" in full


def test_inspecting_a_large_fan_out_stays_short_unless_every_step_is_asked_for(fanfold, project, toured):
    words = json.dumps([str(i) for i in range(30)])
    assert fanfold("run", "tour.yaml", "--script", "script.yaml", "-i", f"words={words}").status == 1
    assert "each[17]" not in fanfold("inspect", "last").out
    assert "30/30" in fanfold("inspect", "last").out
    assert "each[17]" in fanfold("inspect", "last", "--steps").out


# logs


def test_logs_in_json_are_the_envelopes_themselves(fanfold, toured):
    lines = [json.loads(line) for line in fanfold("logs", toured, "--json").out.splitlines()]
    assert all(list(line) == ENVELOPE for line in lines)
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert {line["log"] for line in lines} == {toured}
    tree = [json.loads(line) for line in fanfold("logs", toured, "--tree", "--json").out.splitlines()]
    assert [line["tree_seq"] for line in tree] == list(range(1, len(tree) + 1))
    assert {line["path"] for line in tree} == {"", "kid"}


def test_logs_as_text_describe_each_event(fanfold, toured):
    text = fanfold("logs", toured).out
    for words in ("run created", "each started (2 items)", "bad tries again", "never skipped (condition)"):
        assert words in text


# explain


@pytest.mark.parametrize(
    ("step", "status", "reason", "blocked_by"),
    [
        ("each[0]", "completed", "completed", []),
        ("never", "skipped", "condition", []),
        ("after", "skipped", "failure", ["bad"]),
        ("bad", "failed", "failed", []),
        ("kid/up", "completed", "completed", []),
    ],
)
def test_a_step_is_explained(fanfold, toured, step, status, reason, blocked_by):
    document = fanfold("explain", toured, step, "--json").json()
    assert [document[key] for key in ("path", "status", "reason", "blocked_by")] == [
        step,
        status,
        reason,
        blocked_by,
    ]


def test_retries_and_the_reason_for_the_start_are_reported(fanfold, toured):
    text = fanfold("explain", toured, "bad").out
    assert "connection reset" in text
    assert "tries again" in text
    assert "attempt 2" in text
    assert "could start when bad had ended" not in text


def test_the_cause_of_a_failure_and_the_way_to_retry_stand_once_in_an_explanation(fanfold, toured):
    lines = fanfold("explain", toured).out.splitlines()
    assert sum("connection reset" in line for line in lines) == 1, lines
    assert lines[1] == f"  retry what did not complete: fanfold retry {toured}"


def test_a_whole_run_is_explained_by_what_did_not_simply_complete(fanfold, toured):
    document = fanfold("explain", toured, "--json").json()
    assert (document["path"], document["status"], document["blocked_by"]) == ("", "partial", ["bad"])
    assert {step["path"] for step in document["steps"]} == {"never", "bad", "after"}
    missing = fanfold("explain", toured, "aftr", "--json")
    assert (missing.status, missing.json()["error"]["code"]) == (6, "step.not_found")
    assert missing.json()["error"]["hint"] == 'did you mean "after"?'


# query


def test_outputs_are_found_by_their_words(fanfold, toured):
    hits = fanfold("query", "ripe", "strawberries", "--json").json()["hits"]
    assert set(hits[0]) == {"run_id", "path", "role", "kind", "score", "excerpt"}
    assert (hits[0]["run_id"], hits[0]["path"], hits[0]["role"]) == (toured, "each[0]", "explorer")
    assert "strawberries" in hits[0]["excerpt"]
    for run in ("last", toured, toured[:6]):
        assert (
            fanfold("query", run, "strawberries", "-k", "1", "--json").json()["hits"][0]["path"] == "each[0]"
        )
    assert fanfold("query", "elephants", "--json").json() == {"hits": []}
    assert "each[0]" in fanfold("query", "strawberries").out


# replay and verify


def test_replaying_twice_gives_the_same_state_and_spends_nothing(fanfold, toured):
    first, second = (fanfold("replay", toured, "--json").json() for _ in range(2))
    assert first == second
    assert (first["ok"], first["status"]) == (True, "partial")
    checked = fanfold("replay", toured, "--verify", "--json").json()
    assert checked["fingerprint"] == first["fingerprint"]


def test_verify_finds_a_log_that_was_tampered_with(fanfold, project, toured):
    assert fanfold("verify", "--all", "--json").json()["ok"] is True
    assert fanfold("verify").status == 0
    with closing(sqlite3.connect(project / ".fanfold" / "fanfold.db", isolation_level=None)) as db:
        rows = db.execute("SELECT id, data FROM events").fetchall()
        number = next(id for id, data in rows if b'"finished"' in data and b'"each[0]"' in data)
        db.execute("DELETE FROM events WHERE id = ?", (number,))
    result = fanfold("verify", toured, "--json")
    assert (result.status, result.json()["ok"]) == (1, False)
    assert result.json()["runs"][0]["violations"]


@pytest.mark.full
@pytest.mark.parametrize("how", ["removed", "truncated", "replaced"])
def test_verify_all_finds_runs_that_have_a_folder_and_are_not_in_the_database(fanfold, project, toured, how):
    for file in (project / ".fanfold").glob("fanfold.db*"):
        file.unlink()
    if how == "truncated":
        (project / ".fanfold" / "fanfold.db").touch()
    elif how == "replaced":
        (project / "other.yaml").write_text('name: other\nsteps: [{id: one, set: {x: "1"}}]\n')
        assert fanfold("run", "other.yaml").status == 0
    result = fanfold("verify", "--all")
    assert result.status == 1
    assert f"run {toured} has a folder, but is not in the database" in result.out
    assert "nothing has run here" not in result.out
    assert fanfold("doctor").status == 1
    fanfold("gc")
    assert (project / ".fanfold" / "runs" / toured).is_dir(), "what is left of it is not old yet"


# gc


def test_only_runs_that_ended_long_ago_are_forgotten(fanfold, project, toured):
    (project / "wait.yaml").write_text('name: wait\nsteps: [{id: ok, approve: "Go?"}]\n')
    assert fanfold("run", "wait.yaml").status == 3
    assert fanfold("gc", "--json").json()["runs"] == []
    would = fanfold("gc", "--older-than", "0d", "--dry-run", "--json").json()
    assert would["runs"] == [toured]
    assert len(would["folders"]) == 2, "the run's and its child's"
    assert fanfold("inspect", toured).status == 0
    assert fanfold("gc", "--older-than", "0d", "--json").json()["runs"] == [toured]
    assert fanfold("inspect", toured).status == 6
    left = [path.name for path in (project / ".fanfold" / "runs").iterdir()]
    assert left == [head["run_id"] for head in fanfold("runs", "--json").json()]
    assert fanfold("query", "strawberries", "--json").json() == {"hits": []}
    assert fanfold("gc", "--older-than", "soon", "--json").json()["error"]["code"] == "usage.bad_value"


# doctor and init


@pytest.mark.full
def test_doctor_shows_each_value_and_where_it_is_from(fanfold, project, monkeypatch):
    monkeypatch.setenv("FANFOLD_MAX_THREADS", "3")
    monkeypatch.setenv("OPENAI_API_KEY", "secret-value")
    (project / ".fanfold").mkdir()
    (project / ".fanfold" / "config.toml").write_text("[workflows]\nmax_agents = 7\n")
    result = fanfold("doctor", "--json")
    config = {entry["key"]: (entry["value"], entry["origin"]) for entry in result.json()["config"]}
    assert config["sessions.max_threads"] == (3, "FANFOLD_MAX_THREADS")
    assert config["workflows.max_agents"][0] == 7
    assert "config.toml" in config["workflows.max_agents"][1]
    assert config["workflows.max_concurrent"] == (4, "default")
    assert "secret-value" not in result.out + fanfold("doctor").out
    names = {check["name"] for check in result.json()["checks"]}
    assert {"python", "store", "git", "sandbox", "roles", "recipes"} <= names


@pytest.mark.full
def test_doctor_reports_what_is_broken(fanfold, project, toured):
    assert fanfold("doctor").status == 0
    (project / ".fanfold" / "config.toml").write_text("[workflows]\nmax_agents = 0\n")
    (project / ".fanfold" / "agents").mkdir()
    result = fanfold("doctor", "--json")
    assert result.status == 1
    assert "max_agents" in next(c for c in result.json()["checks"] if c["name"] == "config")["message"]
    (project / ".fanfold" / "config.toml").unlink()
    (project / ".fanfold" / "agents" / "bad.toml").write_text("name = ")
    warned = fanfold("doctor", "--json")
    assert any(c["name"] == "roles" and c["level"] == "warning" for c in warned.json()["checks"])
    database = project / ".fanfold" / "fanfold.db"
    database.write_bytes(b"this is no database at all" * 500)
    for side in ("-wal", "-shm"):
        (project / ".fanfold" / f"fanfold.db{side}").unlink(missing_ok=True)
    broken = fanfold("doctor", "--json")
    assert broken.status == 1
    assert any(c["name"] == "store" and not c["ok"] for c in broken.json()["checks"])


@pytest.mark.full
def test_init_makes_a_project_that_runs_and_keeps_what_is_there(fanfold, project):
    created = fanfold("init", "--json").json()["created"]
    assert ".fanfold/config.toml" in created
    script = ".fanfold/workflows/first-steps/script.yaml"
    assert fanfold("check", "first-steps").status == 0
    assert fanfold("run", "first-steps", "--script", script).status == 0
    (project / ".fanfold" / "config.toml").write_text("# mine\n")
    again = fanfold("init", "--json").json()
    assert (again["created"], again["kept"]) == ([], created)
    assert (project / ".fanfold" / "config.toml").read_text() == "# mine\n"


# agents


def test_roles_are_listed_with_where_they_come_from_and_what_is_wrong(fanfold, project):
    folder = project / ".fanfold" / "agents"
    folder.mkdir(parents=True)
    mine = {"name": "explorer", "description": "Mine", "developer_instructions": "Look"}
    lines = [
        f"{key} = {json.dumps(value)}\n" for key, value in (mine | {"sandbox_mode": "read-only"}).items()
    ]
    (folder / "explorer.toml").write_text("".join(lines))
    (folder / "broken.toml").write_text("name = \n")
    document = fanfold("agents", "--json").json()
    roles = {role["name"]: role for role in document["roles"]}
    assert (roles["explorer"]["description"], roles["explorer"]["read_only"]) == ("Mine", True)
    assert roles["explorer"]["source"].endswith("explorer.toml")
    assert roles["researcher"]["description"] == "Mine", "an alias follows what its role has become"
    assert {warning["code"] for warning in document["warnings"]} == {"role.duplicate", "role.invalid"}
    listed = fanfold("agents")
    assert "worker" in listed.out
    assert "broken.toml:1" in listed.err


def test_one_role_is_shown_whole_and_a_mistyped_one_is_guessed(fanfold):
    assert fanfold("agents", "worker", "--json").json()["sandbox_mode"] == "workspace-write"
    assert fanfold("agents", "worker").out.startswith("worker")
    missing = fanfold("agents", "wroker", "--json")
    assert (missing.status, missing.json()["error"]["hint"]) == (6, 'did you mean "worker"?')


@pytest.mark.full
def test_a_text_of_several_lines_never_looks_like_several_rows(fanfold, project):
    (project / "r.yaml").write_text(
        "name: r\nsteps:\n  - {id: a, agent: explorer, prompt: x}\n"
        '  - {id: c, run: [echo, "three\\nfour"]}\n  - {id: ok, approve: "five\\nsix", depends_on: [c]}\n'
    )
    (project / "s.yaml").write_text(
        r'default: {fail: {class: agent, message: "one\ntwo", hint: "do\nthis"}}' + "\n"
    )
    said = fanfold("run", "r.yaml", "--script", "s.yaml", "--yes").err
    shown = [said] + [fanfold(*words).out for words in (["inspect", "last"], ["inspect", "last", "--steps"])]
    shown += [
        fanfold("explain", "last").out,
        fanfold("explain", "last", "a").out,
        fanfold("logs", "last").out,
    ]
    for text in shown:
        assert not [line for line in text.splitlines() if line.startswith(("two", "four", "six", "this"))]


# Where nothing may be written

# Root may write everywhere; without this capability it is held to what the modes say, like anybody.
HELD = ["setpriv", "--inh-caps=-dac_override", "--bounding-set=-dac_override", "--", "env"]


@pytest.fixture
def reading(project):
    """Run a command in a project whose `.fanfold` may not be written."""
    held = HELD if os.geteuid() == 0 else []
    if held and (not shutil.which("setpriv") or subprocess.run([*held, "true"], check=False).returncode):
        pytest.skip("needs a user who is not root: make test-full as one")
    kept = project / ".fanfold"

    def run(*arguments):
        paths = [kept, *kept.rglob("*")]
        modes = [path.stat().st_mode for path in paths]
        for path in paths:
            path.chmod(path.stat().st_mode & ~0o222)
        try:
            command = [*held, sys.executable, "-m", "fanfold.cli.main", *arguments]
            return subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_S, text=True)
        finally:
            for path, mode in zip(paths, modes, strict=True):
                path.chmod(mode)

    return run


LOOKING = [["runs"], ["inspect", "last"], ["logs", "last"], ["verify"], ["explain", "last"], ["query", "OK"]]


@pytest.mark.full
@pytest.mark.parametrize("arguments", LOOKING, ids=lambda arguments: arguments[0])
@pytest.mark.parametrize("killed", [False, True])
def test_looking_works_where_nothing_may_be_written(fanfold, project, reading, background, arguments, killed):
    (project / "r.yaml").write_text("name: r\nsteps: [{id: a, agent: explorer, prompt: x}]\n")
    (project / "s.yaml").write_text("default: OK\n")
    assert fanfold("run", "r.yaml", "--script", "s.yaml").status == 0
    if killed:  # its last writes are still in the write-ahead log
        (project / "slow.yaml").write_text("default: {output: OK, delay_ms: 3600000}\n")
        process = background("run", "r.yaml", "--script", "slow.yaml")
        deadline = time.monotonic() + PATIENCE_S
        while not fanfold("runs", "--status", "running", "--json").json():
            assert time.monotonic() < deadline
        process.kill()
        process.wait()
    seen = reading(*arguments, "--json")
    assert (seen.returncode, seen.stderr) == (0, "")
    assert seen.stdout == fanfold(*arguments, "--json").out


@pytest.mark.full
def test_asking_for_more_than_a_look_there_says_why_it_cannot_be(fanfold, project, reading):
    (project / "r.yaml").write_text("name: r\nsteps: [{id: ok, approve: 'Go on?'}]\n")
    assert fanfold("run", "r.yaml").status == 3
    refused = reading("approve", "last", "ok")
    assert refused.returncode == 1
    assert "error[store.read_only]" in refused.stderr


@pytest.mark.full
def test_items_are_called_by_their_value_or_by_what_key_says(fanfold, project):
    (project / "files.yaml").write_text(
        "name: files\nsteps:\n"
        "  - {id: file, for_each: '[\"src/a.py\", \"src/b.py\"]', run: [echo, '{{item}}']}\n"
        '  - {id: shop, for_each: \'[{"n": 7, "name": "x"}]\', as: one, key: one.n, run: [echo, y]}\n'
        '  - {id: told, for_each: \'[{"n": 7, "name": "Anna\\\\u001b[31m"}]\', run: [echo, y]}\n'
    )
    ran = fanfold("run", "files.yaml", "--yes")
    names = {"file[0] src/a.py", "file[1] src/b.py", "shop[0] 7", "told[0] Anna"}
    assert all(f"{name} started" in ran.err for name in names - {"told[0] Anna"})
    for command in ("inspect", "logs"):
        shown = fanfold(command, "last").out
        assert all(name in shown for name in names), shown
        assert "\x1b[31m" not in shown
    assert set(fanfold("inspect", "last", "--json").json()["steps"]) >= {"file[0]", "shop[0]"}


@pytest.mark.full
@pytest.mark.parametrize("way", ["made", "opened"])
def test_a_store_whose_making_was_cut_short_is_one_in_which_nothing_has_run(fanfold, project, way):
    """Killed, or just about to make its tables: there is a file, with nothing in it."""
    (project / "r.yaml").write_text("name: r\nsteps: [{id: a, set: {x: 1}}]\n")
    assert fanfold("run", "r.yaml").status == 0  # so that the folder is this user's
    for file in (project / ".fanfold").glob("fanfold.db*"):
        file.unlink()
    shutil.rmtree(project / ".fanfold" / "runs")
    database = project / ".fanfold" / "fanfold.db"
    database.touch(0o600)
    if way == "opened":
        with closing(sqlite3.connect(database)) as db:
            assert db.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    for words in ([], ["runs"], ["verify", "--all"], ["doctor"], ["query", "x"]):
        found = fanfold(*words)
        assert (found.status, found.err) == (0, ""), words
    assert "no run has started in" in fanfold("explain", "last").err
    assert fanfold("run", "r.yaml").status == 0
    assert fanfold("verify", "--all").status == 0


EACH = """\
name: each
steps:
  - {id: a, for_each: lists.range(9), agent: explorer, prompt: "{{item}}", retry: {attempts: 1}}
  - {id: b, agent: explorer, prompt: "{{steps.a.output}}"}
"""


def test_instances_that_are_where_they_are_for_one_reason_are_explained_together(fanfold, project):
    (project / "each.yaml").write_text(EACH)
    failed = "{fail: {class: agent, message: no}}"
    (project / "s.yaml").write_text(
        f'default: ok\nsteps: {{"a[0]": {failed}, "a[1]": {failed}, "a[2]": {failed}}}\n'
    )
    assert fanfold("run", "each.yaml", "--script", "s.yaml", "--max-agents", "4").status == 5
    said = fanfold("explain", "last").out.splitlines()[3:]
    assert said == [
        *(f"  a[{n}] {n} failed: no" for n in range(3)),
        "  a[4] … a[8] (5 steps): each is held back: no agents are left under the limit",
    ]
    assert len(fanfold("explain", "last", "--json").json()["steps"]) == 10
    assert fanfold("cancel", "last").status == 0
    assert "  a[4] … a[8] (5 steps): each was cancelled\n" in fanfold("explain", "last").out


@pytest.mark.full
def test_steps_that_are_called_as_what_they_do_are_explained_together_too(
    fanfold, project, background, until
):
    each = "{id: runs, for_each: lists.range(3), agent: explorer, prompt: x}"
    (project / "r.yaml").write_text(f"name: r\nsteps: [{each}]\n")
    (project / "s.yaml").write_text("default: {output: x, delay_ms: 3600000}\n")
    background("run", "r.yaml", "--script", "s.yaml")
    until(lambda run: [run["steps"].get(f"runs[{n}]", {}).get("status") for n in range(3)] == ["running"] * 3)
    assert "  runs[0] … runs[2] (3 steps): each is running\n" in fanfold("explain", "last").out
    assert fanfold("cancel", "last").status == 0
