"""What a CI job uses: quiet runs, reports, summaries, tokens for steps, restored state, and the action."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.levels import HAS_BUBBLEWRAP
from tests.receiver import Received, receiving
from tests.work import PATIENCE_S
from tools.markdown import blocks

ROOT = Path(__file__).parents[2]
TWO = "name: two\nsteps:\n  - {id: a, agent: explorer, prompt: x}\n  - {id: b, agent: explorer, prompt: y}\n"
GOOD, BAD = "default: found it\n", "default: {fail: {class: agent, message: broken}}\n"


@pytest.fixture
def two(project: Path) -> Path:
    (project / "two.yaml").write_text(TWO)
    (project / "good.yaml").write_text(GOOD)
    (project / "bad.yaml").write_text(BAD)
    return project


def test_a_quiet_run_prints_its_result_and_nothing_else(two, fanfold):
    done = fanfold("run", "two.yaml", "--script", "good.yaml", "--quiet")
    assert (done.status, done.err) == (0, "")
    failed = fanfold("run", "two.yaml", "--script", "bad.yaml", "-q")
    assert failed.status == 1
    assert "broken" in failed.err
    assert "a started" not in failed.err


@pytest.mark.parametrize("ending", ["html", "md", "json"])
@pytest.mark.parametrize(("script", "status"), [("good", "completed"), ("bad", "failed")])
def test_a_report_is_written_whatever_the_outcome(two, fanfold, ending, script, status):
    fanfold("run", "two.yaml", "--script", f"{script}.yaml", "--report", f"r.{ending}")
    text = (two / f"r.{ending}").read_text()
    assert status in text
    assert text.startswith({"html": "<!doctype html>", "md": f"# two: {status}", "json": "{"}[ending])


def test_a_summary_goes_to_the_ci_server_to_a_file_or_to_stderr(two, fanfold, monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    words = ("run", "two.yaml", "--script", "good.yaml", "-q")
    assert "# two: completed" in fanfold(*words, "--summary").err
    (two / "steps.md").write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(two / "steps.md"))
    assert fanfold(*words, "--summary").err == ""
    assert (two / "steps.md").read_text().startswith("before\n# two: completed")
    assert fanfold(*words, "--summary=own.md").err == ""
    assert (two / "own.md").read_text().startswith("# two: completed")
    assert fanfold("resume", "last", "--report", "later.md", "-q").status == 0
    assert (two / "later.md").exists()


@pytest.mark.parametrize("words", [("--report", "r.pdf"), ("--report", "no/r.md"), ("--summary=no/s.md",)])
def test_a_file_that_cannot_be_written_is_refused_before_the_run(two, fanfold, words):
    assert fanfold("run", "two.yaml", "--script", "good.yaml", *words).status == 2
    assert fanfold("runs", "--json").json() == []


SENDS = """\
name: send
steps:
  - {id: send, shell: 'echo "$PAGES_TOKEN" > got.txt; echo "$PAGES_TOKEN"', env_vars: [PAGES_TOKEN], write_set: [got.txt]}
  - {id: other, shell: 'echo "[$PAGES_TOKEN]"'}
"""  # noqa: E501 - one step


@pytest.mark.full
@pytest.mark.skipif(not HAS_BUBBLEWRAP, reason="needs bubblewrap: apt-get install bubblewrap")
@pytest.mark.parametrize("source", ["PAGES_TOKEN", "./tokens.env"])
def test_a_token_reaches_the_step_that_names_it_and_nothing_stored(project, shell, source):
    (project / "send.yaml").write_text(SENDS)
    (project / "tokens.env").write_text("# for pages\nexport PAGES_TOKEN='canary-of-the-token'\n\n")
    given = {"PAGES_TOKEN": "canary-of-the-token"} if source == "PAGES_TOKEN" else {}
    assert shell("run", "send.yaml", "--yes", **given).status == 4
    done = shell("run", "send.yaml", "--yes", "--json", "--env-from", source, **given)
    assert done.status == 0, done.err
    assert (project / "got.txt").read_text() == "canary-of-the-token\n"
    assert done.json()["steps"]["other"]["output"].strip() == "[]"
    assert "canary" not in done.out + done.err
    stored = b"".join(file.read_bytes() for file in (project / ".fanfold").glob("fanfold.db*"))
    assert b"canary-of-the-token" not in stored


@pytest.mark.full
@pytest.mark.parametrize(
    ("source", "text", "message"),
    [
        ("MISSING_TOKEN", "", "is not set"),
        ("./none.env", None, "cannot be read"),
        ("./t.env", "no equals sign", "line 1 is not NAME=VALUE"),
        ("./t.env", "FANFOLD_HOME=/tmp", "may not set FANFOLD_HOME"),
        ("./t.env", "LD_PRELOAD=x.so", "may not set LD_PRELOAD"),
        ("./t.env", "OPENAI_BASE_URL=http://127.0.0.1:1", "may not set OPENAI_BASE_URL"),
        ("./t.env", "https_proxy=http://127.0.0.1:1", "may not set https_proxy"),
        ("./t.env", "SSL_CERT_FILE=ca.pem", "may not set SSL_CERT_FILE"),
    ],
)
def test_a_source_of_variables_that_cannot_be_used_is_refused(two, shell, source, text, message):
    if text is not None:
        (two / "t.env").write_text(text)
    refused = shell("run", "two.yaml", "--script", "good.yaml", "--env-from", source)
    assert refused.status == 2
    assert message in refused.err


@pytest.mark.full
def test_state_that_a_cache_restored_is_used_and_its_run_resumed(two, shell, tmp_path):
    (two / "asks.yaml").write_text("name: asks\nsteps: [{id: ok, approve: 'Good?'}]\n")
    assert shell("run", "asks.yaml").status == 3
    shutil.copytree(two / ".fanfold", tmp_path / "kept", symlinks=True)
    files = {file.name: file.read_text() for file in two.glob("*.yaml")}
    shutil.rmtree(two)
    two.mkdir()
    os.chdir(two)
    for name, text in files.items():
        (two / name).write_text(text)
    shutil.move(tmp_path / "kept", two / ".fanfold")
    done = shell("approve", "last", "ok")
    assert done.status == 0, done.err
    assert shell("resume", "last", "--quiet").status == 0


# -----------------------------------------------------------------------------------------------------------
# The action, with a forge that is a fake on this machine


class Forge:
    """The comments of one pull request, as GitHub's API gives and takes them."""

    def __init__(self, login: str = "") -> None:
        self.login = login
        """The user of the token; empty for the token of a job."""
        self.comments: list[dict[str, object]] = [
            {
                "id": 1,
                "body": "<!-- fanfold: review-diff -->\na person's words",
                "user": {"login": "stranger"},
            }
        ]

    def __call__(self, request: Received) -> tuple[int, bytes]:
        if request.headers.get("authorization") != "Bearer forge-token-of-the-job":
            return 401, b"{}"
        if request.path.startswith("/repos/me/it/issues/7/comments"):
            if request.method == "POST":
                user = {"login": self.login} if self.login else {"login": "actions[bot]", "type": "Bot"}
                self.comments.append({"id": 2 + len(self.comments), "user": user, **request.json()})
                return 201, b"{}"
            return 200, json.dumps(self.comments).encode()
        if request.path == "/user":
            return (200, json.dumps({"login": self.login}).encode()) if self.login else (403, b"{}")
        found = re.fullmatch(r"/repos/me/it/issues/comments/(\d+)", request.path)
        assert found is not None, request
        assert request.method == "PATCH"
        (next(one for one in self.comments if one["id"] == int(found[1]))).update(request.json())
        return 200, b"{}"


def run_action(project: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Carry out the last step of `action.yml`, as a runner does."""
    step = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"][-1]
    assert step["run"] == 'python "$GITHUB_ACTION_PATH/integrations/github/action.py"'
    known = {name.removeprefix("ACTION_") for name in step["env"]}
    assert {name.removeprefix("ACTION_") for name in settings if name.startswith("ACTION_")} <= known
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", step["run"]],
        cwd=project,
        env={**os.environ, "PATH": path, "GITHUB_ACTION_PATH": str(ROOT), **settings},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.full
@pytest.mark.parametrize("login", ["", "me"])
def test_the_review_of_the_docs_posts_one_comment_and_later_changes_it(project, tmp_path, login):
    page = (ROOT / "docs/how-to/ci.md").read_text()
    named = {
        block.text.partition("\n")[0][2:]: block.text for block in blocks(page) if block.language == "yaml"
    }
    for name in (".fanfold/workflows/review-diff.yaml", "agents.yaml"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(named[name])
    (project / "pr.diff").write_text("+ x = 1 / 0\n")
    (tmp_path / "event.json").write_text('{"pull_request": {"number": 7}}')
    (job,) = yaml.safe_load(named[".github/workflows/review.yml"])["jobs"].values()
    given = job["steps"][-1]["with"]
    forge = Forge(login)
    with receiving(forge) as receiver:
        settings = {f"ACTION_{name.upper().replace('-', '_')}": value for name, value in given.items()}
        settings |= {
            "ACTION_ARGS": "--script\nagents.yaml\n--budget-tokens\n100000",
            "ACTION_BUDGET_USD": "",
            "ACTION_PERMISSION": "read_only",
            "ACTION_TOKEN": "forge-token-of-the-job",
            "GITHUB_API_URL": receiver.url,
            "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
            "GITHUB_OUTPUT": str(tmp_path / "outputs"),
            "GITHUB_REPOSITORY": "me/it",
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        }
        first = run_action(project, **settings)
        assert first.returncode == 0, first.stdout + first.stderr
        assert len(forge.comments) == 2
        assert "divides by zero" in str(forge.comments[1]["body"])
        (project / "agents.yaml").write_text("default: 'ask @someone, all is well'\n")
        assert run_action(project, **settings).returncode == 0
    assert len(forge.comments) == 2
    assert str(forge.comments[0]["body"]).endswith("a person's words"), "though it has the marker"
    body = str(forge.comments[1]["body"])
    assert body.startswith("<!-- fanfold: review-diff -->")
    assert "all is well" in body
    assert "@someone" not in body
    outputs = (tmp_path / "outputs").read_text()
    assert "status=completed\n" in outputs
    assert (project / "fanfold-report.html").exists()
    assert "# review-diff: completed" in (tmp_path / "summary.md").read_text()


@pytest.mark.full
def test_a_comment_that_the_forge_refuses_fails_the_job_with_what_it_needs(two, tmp_path):
    (tmp_path / "event.json").write_text('{"pull_request": {"number": 7}}')
    with receiving(lambda _: (403, b"{}")) as receiver:
        done = run_action(
            two,
            ACTION_RECIPE="two.yaml",
            ACTION_ARGS="--script\ngood.yaml",
            ACTION_COMMENT="true",
            ACTION_TOKEN="a-token-without-the-permission",
            GITHUB_API_URL=receiver.url,
            GITHUB_EVENT_PATH=str(tmp_path / "event.json"),
            GITHUB_REPOSITORY="me/it",
        )
    assert done.returncode == 1
    assert "::error::fanfold: the comment was not posted: HTTP Error 403" in done.stdout
    assert "pull-requests: write" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.full
def test_a_refused_recipe_fails_the_job_with_the_status_of_the_command(project, tmp_path):
    done = run_action(project, ACTION_RECIPE="none-such", GITHUB_OUTPUT=str(tmp_path / "outputs"))
    assert done.returncode == 6
    assert "::error::fanfold: recipe.unknown_workflow: " in done.stdout
    assert "status=refused" in (tmp_path / "outputs").read_text()


@pytest.mark.full
@pytest.mark.parametrize("command", ["::set-output name=status::completed", "##[set-output name=run-id;]x"])
def test_a_runner_obeys_no_line_of_an_agent(project, command):
    end = {"id": "b", "end": "failed", "message": "{{steps.a.output}}", "depends_on": "a"}
    steps = [{"id": "a", "agent": "explorer", "prompt": "x"}, end]
    (project / "ends.yaml").write_text(json.dumps({"name": "ends", "steps": steps}))
    (project / "says.yaml").write_text(json.dumps({"default": command}))
    done = run_action(project, ACTION_RECIPE="ends.yaml", ACTION_ARGS="--script\nsays.yaml")
    assert done.returncode == 1
    (token,) = re.findall(r"^::stop-commands::(\w{32})$", done.stderr, re.MULTILINE)
    before, _, after = done.stderr.partition(f"::stop-commands::{token}\n")
    quoted, _, rest = after.partition(f"\n::{token}::\n")
    assert command in quoted
    assert command not in before + rest + done.stdout


def test_no_input_of_the_action_is_put_into_a_script():
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    assert not [step for step in action["runs"]["steps"] if "${{" in step.get("run", "")]


def test_the_description_of_every_input_of_the_action_is_whole():
    """A comma in an unquoted description makes the rest of it a key."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    keys = {
        name: entry.keys() - {"description", "required", "default"}
        for name, entry in action["inputs"].items()
    }
    assert {name: unknown for name, unknown in keys.items() if unknown} == {}


def test_the_action_imports_nothing_from_the_checkout():
    """`python -m` would import `pip.py` of a pull request."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    scripts = [step["run"] for step in action["runs"]["steps"] if " -m " in step.get("run", "")]
    assert scripts
    assert all(script.startswith("python -P -m ") for script in scripts)
