"""An agent that is a program gets what its user named, reaches its provider, and leaves nothing behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fanfold.agents.backend import FIRST_PROXY_PORT
from fanfold.workspace.programs import connector
from tests.cli.agent_world import AgentWorld, step, writing
from tests.hostile.worlds import without_bubblewrap
from tests.levels import needs_bubblewrap
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

TOKENS = {
    "accessToken": "access-token-of-the-user",
    "refreshToken": "refresh-token-of-the-user",
    "expiresAt": 4_000_000_000_000,
}


@pytest.fixture
def agents(project, tmp_path, monkeypatch):
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    return AgentWorld(project, tmp_path / "home", monkeypatch)


@pytest.fixture
def listeners():
    """Ports of this machine's loopback, behind each of which somebody says who they are."""
    servers = []

    def listen(words):
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def serve():
            while True:
                try:
                    line, _ = server.accept()
                except OSError:
                    return
                with line:
                    line.recv(100)
                    line.sendall(words.encode())

        threading.Thread(target=serve, daemon=True).start()
        return server.getsockname()[1]

    yield listen
    for server in servers:
        server.close()


def run(fanfold, recipe, *flags):
    return fanfold("run", recipe, "--yes", "--json", *flags).json()


@needs_bubblewrap
def test_the_environment_holds_what_was_named_and_nothing_of_ours(agents, fanfold, monkeypatch):
    monkeypatch.setenv("IS_SANDBOX", "1")
    monkeypatch.setenv("CLAUDECODE", "1")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key-of-the-user-0123456789")
    monkeypatch.setenv("OPENAI_API_KEY", "other-key-of-the-user-0123")
    agents.install("claude", writing("claude"))
    agents.profile("claude", 'credentials = ["ANTHROPIC_API_KEY"]\n')
    agents.role("coder", "claude")
    assert run(fanfold, agents.recipe(step("coder")))["status"] == "completed"
    [call] = agents.calls()
    given = call["environment"]
    assert given["ANTHROPIC_API_KEY"] == "key-of-the-user-0123456789"
    assert given["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
    assert not {"IS_SANDBOX", "CLAUDECODE", "OPENAI_API_KEY", "FANFOLD_HOME"} & set(given)


@needs_bubblewrap
def test_no_credential_is_lent_before_the_user_names_it(agents, fanfold, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key-of-the-user-0123456789")
    agents.install("claude", writing("claude"))
    agents.role("coder", "claude")
    error = run(fanfold, agents.recipe(step("coder")))["error"]
    assert "no credentials are configured for Claude Code" in error["message"]
    assert 'credentials = ["ANTHROPIC_API_KEY"]' in json.dumps(error).replace('\\"', '"')
    agents.profile("claude", "credentials = []\n")
    assert run(fanfold, agents.recipe(step("coder")))["status"] == "completed"
    [call] = agents.calls()
    assert "ANTHROPIC_API_KEY" not in call["environment"]


@needs_bubblewrap
def test_a_login_is_lent_without_what_could_be_used_up_and_the_user_s_own_stays_as_it_was(
    agents, fanfold, project
):
    login = agents.home / ".claude" / ".credentials.json"
    login.parent.mkdir()
    login.write_text(json.dumps({"claudeAiOauth": TOKENS}))
    (agents.home / ".claude" / "settings.json").write_text('{"model": "opus"}')
    before = login.read_bytes()
    refreshed = json.dumps({"claudeAiOauth": {"accessToken": "stolen"}})
    lines = ['{"type":"assistant","message":{"content":[{"type":"text","text":"access-token-of-the-user"}]}}']
    act = writing("claude", reads=["~/.claude/.credentials.json", "~/.claude/settings.json"])
    act["writes"] |= {"~/.claude/settings.json": "{}"}
    act["later"] = {"~/.claude/.credentials.json": refreshed}
    agents.install("claude", {**act, "lines": lines})
    agents.profile("claude", 'credentials = ["login"]\n')
    agents.role("coder", "claude")
    assert run(fanfold, agents.recipe(step("coder", write_set=["*.txt"])))["status"] == "completed"
    [call] = agents.calls()
    lent = json.loads(call["read"]["~/.claude/.credentials.json"])["claudeAiOauth"]
    assert (lent["accessToken"], lent["refreshToken"]) == ("access-token-of-the-user", "")
    assert login.read_bytes() == before
    assert (agents.home / ".claude" / "settings.json").read_text() == '{"model": "opus"}'
    [home] = agents.homes()
    assert not (home / ".claude" / ".credentials.json").exists(), "it is taken back"
    told = fanfold("transcript", "last", "work").out
    assert "access-token-of-the-user" not in told
    known = [".credentials.json", "claude.toml", "settings.json", *_own_files(agents.home)]
    assert sorted(path.name for path in agents.home.rglob("*") if path.is_file()) == sorted(known)


@pytest.mark.parametrize("then", [("pause", "last"), ("run", "other.yaml", "--script", "script.yaml")])
@needs_bubblewrap
def test_a_login_that_was_lent_when_we_were_killed_is_taken_back_by_the_next_command(
    agents, fanfold, background, until, project, then
):
    login = agents.home / ".claude" / ".credentials.json"
    login.parent.mkdir()
    login.write_text(json.dumps({"claudeAiOauth": TOKENS}))
    (project / "other.yaml").write_text("name: other\nsteps: [{id: a, agent: explorer, prompt: p}]\n")
    (project / "script.yaml").write_text("default: done\n")
    agents.install("claude", {**writing("claude"), "then": "hang", "cut": 2})
    agents.profile("claude", 'credentials = ["login"]\n')
    agents.role("coder", "claude")
    process = background("run", agents.recipe(step("coder", write_set=["*.txt"])), "--yes", "--json")
    until(lambda seen: seen["steps"].get("work", {}).get("status") == "running" and agents.homes())
    [home] = agents.homes()
    assert (home / ".claude" / ".credentials.json").exists()
    fanfold("runs")
    assert (home / ".claude" / ".credentials.json").exists(), "its agent works with it"
    process.send_signal(signal.SIGKILL)
    process.wait()
    fanfold(*then)
    assert not (home / ".claude" / ".credentials.json").exists()
    assert not [
        path for path in project.rglob("*") if path.is_file() and b"access-token" in path.read_bytes()
    ]
    assert json.loads(login.read_text())["claudeAiOauth"] == TOKENS


def _own_files(home: Path) -> list[str]:
    """What Fanfold itself keeps in the user's folder."""
    return sorted(path.name for path in (home / ".fanfold").iterdir() if path.is_file())


@needs_bubblewrap
def test_a_login_that_has_run_out_says_how_to_renew_it(agents, fanfold):
    login = agents.home / ".claude" / ".credentials.json"
    login.parent.mkdir()
    login.write_text(json.dumps({"claudeAiOauth": {**TOKENS, "expiresAt": 1}}))
    agents.install("claude", writing("claude"))
    agents.profile("claude", 'credentials = ["login"]\n')
    agents.role("coder", "claude")
    error = run(fanfold, agents.recipe(step("coder")))["steps"]["work"]["error"]
    assert error["code"] == "agent.login_expired"
    assert "start claude once" in error["hint"]


@pytest.mark.parametrize(
    ("network", "provider", "other"),
    [("", "provider", "other"), ('network = "provider"', "provider", "other"), ("network = false", "", "")],
)
@needs_bubblewrap
def test_the_provider_is_reached_and_no_other_port(
    agents, fanfold, monkeypatch, listeners, network, provider, other
):
    own, others = listeners("provider"), listeners("other")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{own}")
    agents.install("claude", writing("claude", connects=[own, others]))
    agents.role("coder", "claude", network)
    assert run(fanfold, agents.recipe(step("coder")))["status"] == "completed"
    [call] = agents.calls()
    refused = "ConnectionRefusedError"
    assert call["reached"] == {str(own): provider or refused, str(others): refused}
    assert other in ("", "other")


def test_with_a_network_everybody_is_reached(agents, fanfold, listeners):
    others = listeners("other")
    agents.install("claude", writing("claude", connects=[others]))
    agents.role("coder", "claude", "network = true")
    assert run(fanfold, agents.recipe(step("coder")))["status"] == "completed"
    [call] = agents.calls()
    assert call["reached"] == {str(others): "other"}


@pytest.mark.parametrize("port", [80, FIRST_PROXY_PORT])
@needs_bubblewrap
def test_a_provider_whose_port_cannot_be_opened_inside_is_reached_through_the_proxy(
    agents, fanfold, monkeypatch, port
):
    monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{port}")
    agents.install("claude", writing("claude", asks=["CONNECT 127.0.0.1:9 HTTP/1.1"]))
    agents.role("coder", "claude")
    done = run(fanfold, agents.recipe(step("coder")))
    assert done["status"] == "completed", done["steps"]
    [call] = agents.calls()
    assert [words.split(" ")[1] for words in call["answered"].values()] == ["403"], "the proxy is there"
    assert ("NO_PROXY" in call["environment"]) is (port != 80)


@needs_bubblewrap
def test_the_proxy_lets_through_to_the_provider_alone(agents, fanfold, monkeypatch, listeners):
    own, others = listeners("provider"), listeners("other")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{own}")
    asks = [
        f"CONNECT 127.0.0.1:{others} HTTP/1.1",
        f"CONNECT 127.0.0.1:{own} HTTP/1.1",
        "CONNECT a b",
        "junk",
    ]
    agents.install("claude", writing("claude", asks=asks))
    agents.role("coder", "claude")
    assert run(fanfold, agents.recipe(step("coder")))["status"] == "completed"
    [call] = agents.calls()
    said = [call["answered"][one] for one in asks]
    assert [words.split(" ")[1] for words in said] == ["403", "200", "403", "403"]


@pytest.mark.parametrize("name", ["claude", "codex"])
@needs_bubblewrap
def test_a_killed_session_continues_in_the_agent_s_own_conversation(
    agents, fanfold, background, until, project, name
):
    resumed = {"claude": "claude-resume.json", "codex": "codex-resume.jsonl"}[name]
    begins = {**writing(name), "then": "hang", "cut": 2}
    agents.install(name, begins, {"says": resumed})
    agents.role("coder", name)
    process = background("run", agents.recipe(step("coder", write_set=["*.txt"])), "--yes", "--json")
    until(lambda seen: seen["steps"].get("work", {}).get("status") == "running" and agents.homes())
    session = fanfold("transcript", "last", "work", "--json").json()["session_id"]
    _until_begun(fanfold)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = fanfold("resume", "last", "--json").json()
    assert done["status"] == "completed", done["steps"]
    assert (project / "hello.txt").read_text() == "hello\n"
    _, second = agents.calls()
    begun = fanfold("transcript", "last", "work", "--json").json()
    assert begun["session_id"] == session
    known = {entry["id"] for entry in begun["entries"] if entry["kind"] == "agent" and entry.get("id")}
    assert known & set(second["argv"])
    assert "You were interrupted" in second["stdin"]
    assert "Write hello.txt" in second["stdin"]
    assert not _left(session)


def _until_begun(fanfold) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        told = fanfold("transcript", "last", "work", "--json").json()
        if any(entry["kind"] == "agent" and entry.get("id") for entry in told.get("entries", ())):
            return
        assert time.monotonic() < deadline, told
        time.sleep(0.05)


def _left(session: str) -> list[str]:
    """Processes that belong to a session."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if f"FANFOLD_SESSION={session}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


STARTS = 50 if os.environ.get("AGENTS_TEST") else 3


@needs_bubblewrap
def test_starts_and_kills_leave_nothing(agents, fanfold, background, until, project):
    agents.install("codex", {**writing("codex"), "then": "hang", "spawns": True})
    agents.role("coder", "codex")
    recipe = agents.recipe(step("coder", write_set=["*.txt"]))
    for _ in range(STARTS):
        known = len(agents.homes())
        process = background("run", recipe, "--yes")
        deadline = time.monotonic() + PATIENCE_S
        while len(agents.homes()) == known:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + PATIENCE_S
    while (left := _processes_of(agents.bin)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
    for run_id in [row["run_id"] for row in fanfold("runs", "--limit", "100", "--json").json()]:
        assert fanfold("cancel", run_id).status in (0, 7)
    assert fanfold("gc", "--older-than", "0m").status == 0
    assert not agents.homes()
    mounts = Path("/proc/self/mountinfo").read_text()
    assert str(project) not in mounts
    user = [path for path in agents.home.rglob("*") if ".fanfold" not in path.parts]
    assert user == []


def _processes_of(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words:
            found.append(words)
    return found


@needs_bubblewrap
def test_links_that_an_agent_leaves_in_its_home_lead_us_nowhere(agents, fanfold, project, tmp_path):
    """A second turn finds what the first left: links in place of the folders that we write to."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "provider.sock").write_text("of another agent")
    login = agents.home / ".claude" / ".credentials.json"
    login.parent.mkdir()
    login.write_text(json.dumps({"claudeAiOauth": TOKENS}))
    (agents.home / ".claude" / "settings.json").write_text("{}")
    links = {"~/.claude": str(victim), "~/.fanfold": str(victim)}
    agents.install("claude", writing("claude", links=links), writing("claude"))
    agents.profile("claude", 'credentials = ["login"]\n')
    agents.role("coder", "claude")
    name = fanfold("spawn", "coder", "Write hello.txt", "--yes", "--json").json()["id"]
    fanfold("wait", name)
    fanfold("send", name, "And now?")
    fanfold("wait", name)
    assert [file.read_text() for file in victim.iterdir()] == ["of another agent"]
    assert json.loads(login.read_text())["claudeAiOauth"] == TOKENS


@needs_bubblewrap
def test_a_read_only_agent_cannot_write_the_project(agents, fanfold, project):
    agents.install("claude", writing("claude"))
    agents.role("reader", "claude", 'sandbox_mode = "read-only"')
    assert run(fanfold, agents.recipe(step("reader")))["status"] == "completed"
    [call] = agents.calls()
    assert call["wrote"] == {"hello.txt": "Read-only file system"}
    assert not (project / "hello.txt").exists()


def test_an_agent_that_cannot_be_limited_to_its_provider_is_not_started(agents, fanfold, monkeypatch):
    monkeypatch.setenv("PATH", f"{agents.bin}:{without_bubblewrap()}")
    monkeypatch.setattr(connector, "is_available", lambda: False)
    agents.install("claude", writing("claude"))
    agents.role("coder", "claude")
    assert run(fanfold, agents.recipe(step("coder")))["error"]["code"] == "sandbox.insufficient"
    agents.role("coder", "claude", "network = false")
    done = run(fanfold, agents.recipe(step("coder", write_set=["*.txt"])))
    assert done["status"] == "completed", done["steps"]


@needs_bubblewrap
def test_a_tool_of_python_is_found_with_its_environment(agents, fanfold):
    """As pipx and uv install them: a link in the home to a script that names a Python of its own."""
    environment = agents.home / ".local" / "share" / "tools" / "own"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    [packages] = environment.glob("lib/python3*/site-packages")
    (packages / "owned.py").write_text("WORDS = 'I have my modules.'\n")
    script = environment / "bin" / "own"
    script.write_text(f"#!{environment}/bin/python\nimport owned\nprint(owned.WORDS)\n")
    script.chmod(0o755)
    (agents.bin / "own").symlink_to(script)
    (agents.home / "private.txt").write_text("of the user")
    agents.role("coder", "command", 'command = ["own"]')
    assert run(fanfold, agents.recipe(step("coder")))["output"] == "I have my modules."
    script.write_text(
        f"#!{environment}/bin/python\nfrom pathlib import Path\n"
        "print((Path.home() / 'private.txt').exists(), Path.home())\n"
    )
    assert run(fanfold, agents.recipe(step("coder")))["output"].startswith("False")


BROUGHT = {
    "claude": (".claude/settings.json", ".mcp.json"),
    "codex": (".codex/config.toml",),
    "gemini": (".gemini/settings.json", ".env"),
    "opencode": ("opencode.json", ".opencode/plugin/evil.js"),
    "copilot": (".mcp.json", ".github/hooks/evil.json"),
    "qwen": (".qwen/settings.json",),
}


@pytest.mark.parametrize("name", BROUGHT)
@needs_bubblewrap
def test_programs_named_by_a_project_are_empty_for_an_agent_unless_the_user_allows_them(
    agents, fanfold, project, name
):
    for path in BROUGHT[name]:
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text("run something")
    agents.install(name, writing(name, tries=list(BROUGHT[name])))
    agents.role("coder", name)
    recipe = agents.recipe(step("coder", write_set=["*.txt"]))
    done = run(fanfold, recipe)
    assert done["status"] == "completed"
    agents.profile(name, "credentials = []\n[state]\nbrought = []\n")
    assert run(fanfold, recipe)["status"] == "completed"
    covered, trusted = agents.calls()
    assert set(covered["tried"].values()) <= {"", "{}\n", "No such file or directory"}
    assert set(trusted["tried"].values()) == {"run something"}
    for path in BROUGHT[name]:
        assert (project / path).read_text() == "run something"
    log = [json.loads(line) for line in fanfold("logs", done["run_id"], "--json").out.splitlines()]
    [seen] = [one["data"]["covered"] for one in log if one["data"].get("covered")]
    assert {path.split("/")[0] for path in seen} == {path.split("/")[0] for path in BROUGHT[name]}


@needs_bubblewrap
def test_a_link_in_place_of_what_is_hidden_keeps_an_agent_from_being_started(agents, fanfold, project):
    (project / "elsewhere").mkdir()
    (project / ".gemini").symlink_to("elsewhere")
    agents.install("gemini", writing("gemini"))
    agents.role("coder", "gemini")
    error = run(fanfold, agents.recipe(step("coder")))["error"]
    assert error["code"] == "agent.brought_link"
    assert "brought = []" in error["hint"]
    assert agents.calls() == []


def test_an_agent_that_cannot_be_isolated_is_not_started(agents, fanfold, project, monkeypatch):
    (project / ".gemini").mkdir()
    (project / ".gemini" / "settings.json").write_text("{}")
    monkeypatch.setenv("PATH", f"{agents.bin}:{without_bubblewrap()}")
    agents.install("gemini", writing("gemini"))
    agents.role("coder", "gemini", "network = false")
    assert run(fanfold, agents.recipe(step("coder")))["error"]["code"] == "sandbox.insufficient"
    assert agents.calls() == []
