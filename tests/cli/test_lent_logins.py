"""A login that is lent to an agent: no other agent reads it, and it is recorded nowhere."""

import asyncio
import functools
import json
import signal
import sqlite3
import tomllib
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

import fanfold.agents.command
from fanfold.agents.backend import ToolFailed
from fanfold.agents.tools.files import FileTools, read_text
from fanfold.kernel.claims import LOGINS, why_unreadable
from tests.cli.agent_world import SUCCESS, AgentWorld, step
from tests.levels import needs_bubblewrap

CANARY = "canary-of-a-lent-login-8f21c07d"
PROFILES = Path(fanfold.agents.command.__file__).parent / "profiles"
PLACES = {
    "claude": ".claude/.credentials.json",
    "codex": ".codex/auth.json",
    "gemini": ".gemini/oauth_creds.json",
    "qwen": ".qwen/oauth_creds.json",
    "copilot": ".copilot/config.json",
    "goose": ".config/goose/secrets.yaml",
    "opencode": ".local/share/opencode/auth.json",
}


@pytest.fixture
def agents(project, tmp_path, monkeypatch):
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "COPILOT_HOME"):
        monkeypatch.delenv(name, raising=False)
    return AgentWorld(project, tmp_path / "home", monkeypatch)


def lend(agents: AgentWorld, name: str) -> None:
    login = agents.home / PLACES[name]
    login.parent.mkdir(parents=True)
    tokens = {"claudeAiOauth": {"accessToken": CANARY, "expiresAt": 4_000_000_000_000}, "token": CANARY}
    login.write_text(f"TOKEN: {CANARY}\n" if login.suffix == ".yaml" else json.dumps(tokens))
    agents.profile(name, 'credentials = ["login"]\n')


def found_in(*tops: Path) -> list[str]:
    """Files that hold it, also as content of a database or of an archive."""
    found = []
    for path in (path for top in tops for path in ([top] if top.is_file() else top.rglob("*"))):
        if not path.is_file():
            continue
        data = path.read_bytes()
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                data += b"".join(archive.read(name) for name in archive.namelist())
        if CANARY.encode() in data:
            found.append(str(path))
    return found


def test_every_login_of_a_profile_is_known_to_the_tools():
    places = set()
    for file in PROFILES.glob("*.toml"):
        state = tomllib.loads(file.read_text()).get("state", {})
        for login in state.get("login", ()):
            places.add(login[2:] if login.startswith("~/") else f"{state['folder']}/{login}")
    assert places == set(LOGINS)
    assert all(why_unreadable(place) for place in (*LOGINS, *(f"me/{place}" for place in LOGINS)))


@pytest.mark.parametrize(
    "place", [*LOGINS, ".fanfold/workspace/homes/s/home/.claude/x", ".FANFOLD/fanfold.db"]
)
def test_no_tool_reads_a_login_or_state(tmp_path: Path, place: str):
    file = tmp_path / place
    file.parent.mkdir(parents=True)
    file.write_text(CANARY)
    (tmp_path / "link").symlink_to(place)
    tools = FileTools(str(tmp_path), read_only=False)
    for path in (place, "link", f"./{place}"):
        with pytest.raises(ToolFailed) as refused:
            asyncio.run(tools.read_file({"path": path}))
        assert refused.value.code == "tool.path_refused"
        with pytest.raises(ToolFailed):
            read_text(str(tmp_path), path)
    with pytest.raises(ToolFailed):
        asyncio.run(tools.write_file({"path": place, "content": "evil"}))
    assert file.read_text() == CANARY


@pytest.mark.full
@pytest.mark.parametrize("name", SUCCESS)
@needs_bubblewrap
def test_a_login_that_an_agent_says_aloud_is_recorded_nowhere(agents, fanfold, project, tmp_path, name):
    lend(agents, name)
    lines = (Path(__file__).parent.parent / "agents/recorded" / SUCCESS[name]).read_text().splitlines()
    words = {"I wrote hello.txt.": f"My login is {CANARY}."}
    words |= {"I wrot": f"My login is {CANARY[:12]}", "e hell": CANARY[12:]}  # one of them speaks in pieces
    said = [functools.reduce(lambda line, word: line.replace(*word), words.items(), line) for line in lines]
    agents.install(name, {"lines": said, "writes": {"hello.txt": "hello\n"}})
    agents.role("coder", name)
    done = fanfold("run", agents.recipe(step("coder", write_set=["*.txt"])), "--yes", "--json")
    assert done.json()["status"] == "completed", done.out
    assert "My login is" in done.out, "it said so"
    commands = ("transcript last work", "logs last --json", "inspect last --json", "query login")
    shown = [done.out, *(fanfold(*command.split()).out for command in commands)]
    assert fanfold("export", "last", "--output", str(tmp_path / "run.zip")).status == 0
    assert CANARY not in "".join(shown)
    assert found_in(project, tmp_path / "run.zip") == []


@pytest.mark.full
@needs_bubblewrap
def test_another_agent_does_not_find_a_login_while_it_is_lent(agents, fanfold, background, until, project):
    lend(agents, "claude")
    agents.install("claude", {"says": SUCCESS["claude"], "then": "hang", "cut": 2})
    agents.role("coder", "claude")
    process = background("run", agents.recipe(step("coder", write_set=["*.txt"])), "--yes", "--json")
    until(lambda seen: seen["steps"].get("work", {}).get("status") == "running" and agents.homes())
    [home] = agents.homes()
    lent = (home / PLACES["claude"]).relative_to(project)
    assert CANARY in (project / lent).read_text()
    (project / "link").symlink_to(lent)
    calls = [
        ("read_file", {"path": str(lent)}),
        ("read_file", {"path": "link"}),
        ("list_files", {"path": ".fanfold"}),
        ("search_files", {"pattern": "canary", "path": ".fanfold/workspace"}),
        ("search_files", {"pattern": "canary"}),
        ("edit_file", {"path": str(lent), "old": "token", "new": "x"}),
        (
            "run_command",
            {"argv": ["sh", "-c", f"cat {project / lent} link /proc/[0-9]*/root{project / lent}"]},
        ),
        ("run_command", {"argv": ["grep", "-r", "canary", str(project)]}),
    ]
    spy = {
        "name": "spy",
        "steps": [{"id": "a", "agent": "worker", "prompt": "p", "workspace_mode": "shared"}],
    }
    (project / "spy.yaml").write_text(json.dumps(spy))
    told = ""
    for tool, args in calls:
        script = {"default": {"output": "done", "tool_calls": [{"tool": tool, "args": args}]}}
        (project / "script.yaml").write_text(json.dumps(script))
        done = fanfold("run", "spy.yaml", "--script", "script.yaml", "--yes", "--json")
        told += done.out + fanfold("transcript", done.json()["run_id"], "a").out
    assert told.count("this belongs to Fanfold") >= 5
    assert "canary-of" not in told
    process.send_signal(signal.SIGTERM)
    process.wait()
    (project / "link").unlink()
    assert found_in(project) == []
    with closing(sqlite3.connect(project / ".fanfold/fanfold.db")) as db:
        assert db.execute("SELECT count(*) FROM events").fetchone()[0] > 5
