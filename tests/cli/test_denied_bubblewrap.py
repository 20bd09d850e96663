"""Where bubblewrap is installed and denied (AppArmor, containers, CI runners), Landlock confines agents."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fanfold.errors import WorldError
from fanfold.workspace import children, sandbox
from fanfold.workspace.programs import connector
from fanfold.workspace.sandbox import (
    MAC_HINT,
    NOT_LINUX,
    Level,
    Levels,
    check_reach,
    choose_level,
    how_to_allow,
)
from fanfold.workspace.workspaces import Workspaces
from tests.cli.agent_world import AgentWorld, step, writing
from tests.cli.conftest import Result
from tests.levels import needs_bubblewrap
from tests.work import PATIENCE_S

DENIALS = {
    "ubuntu": "bwrap: setting up uid map: Permission denied",
    "runner": "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
    "docker": "bwrap: No permissions to create new namespace, likely because the kernel does not allow it",
}
needs_landlock = pytest.mark.skipif(
    sandbox.abi() < sandbox.MIN_ABI or not connector.is_available(),
    reason="needs Landlock: make test-full on Linux 6.2 or newer",
)


@pytest.fixture
def agents(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AgentWorld:
    """A machine whose bwrap fails as it does on Ubuntu 24.04."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    world = AgentWorld(project, tmp_path / "home", monkeypatch)
    (world.bin / "bwrap").write_text(f'#!/bin/sh\necho "{DENIALS["ubuntu"]}" >&2\nexit 1\n')
    (world.bin / "bwrap").chmod(0o755)
    return world


@pytest.fixture
def listener() -> Iterator[Callable[[str], int]]:
    """Servers on this machine's loopback, each of which sends its name."""
    servers: list[socket.socket] = []

    def listen(name: str) -> int:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def serve() -> None:
            while True:
                try:
                    line, _ = server.accept()
                except OSError:
                    return
                with line:
                    line.recv(100)
                    line.sendall(name.encode())

        threading.Thread(target=serve, daemon=True).start()
        return int(server.getsockname()[1])

    yield listen
    for server in servers:
        server.close()


@pytest.mark.full
@needs_landlock
def test_an_agent_program_works_and_reaches_its_provider_only(
    agents: AgentWorld,
    fanfold: Callable[..., Result],
    listener: Callable[[str], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provider, other = listener("the provider"), listener("another server")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{provider}")
    asks = [f"CONNECT 127.0.0.1:{other} HTTP/1.1", f"CONNECT 127.0.0.1:{provider} HTTP/1.1"]
    agents.install("claude", writing("claude", connects=[provider, other], asks=asks))
    agents.role("coder", "claude")
    recipe = agents.recipe(step("coder", write_set=["*.txt"]))
    assert fanfold("run", recipe, "--dry-run", "--json").json()["would_run"] is True
    done = fanfold("run", recipe, "--yes", "--json").json()
    assert done["status"] == "completed", done["steps"]
    assert (agents.project / "hello.txt").read_text() == "hello\n"
    [call] = agents.calls()
    assert call["reached"] == {str(provider): "the provider", str(other): "PermissionError"}
    assert [call["answered"][line].split(" ")[1] for line in asks] == ["403", "200"]
    assert not list(agents.project.glob(".fanfold/workspace/homes/*/gate"))


@pytest.mark.full
@needs_landlock
def test_a_file_that_landlock_cannot_hide_is_refused_before_anything_is_spent(
    agents: AgentWorld, fanfold: Callable[..., Result]
) -> None:
    agents.install("claude", writing("claude"))
    agents.profile("claude", "credentials = []\n")
    agents.role("coder", "claude")
    (agents.project / ".mcp.json").write_text("{}")
    recipe = agents.recipe(step("coder", write_set=["*.txt"]))
    foreseen = fanfold("run", recipe, "--dry-run", "--json").json()
    assert foreseen["would_run"] is False
    assert ".mcp.json" in json.dumps(foreseen["warnings"])
    refused = fanfold("run", recipe, "--yes", "--json").json()
    assert refused["error"]["code"] == "sandbox.insufficient"
    assert not fanfold("runs", "--json").json(), "no run was made"
    assert "--unsafe-no-sandbox" in refused["error"]["hint"]
    accepted = fanfold("run", recipe, "--yes", "--unsafe-no-sandbox", "--json").json()
    assert accepted["status"] == "completed", accepted
    [seen] = sandboxes(fanfold)
    assert (seen["level"], "covered" in seen) == ("landlock", False), "what can be confined stays confined"
    assert seen["network"] is False


def sandboxes(fanfold: Callable[..., Result]) -> list[dict[str, Any]]:
    """What the log of the latest run says about its sandboxes."""
    facts = [json.loads(line)["data"] for line in fanfold("logs", "last", "--json").out.splitlines()]
    return [fact for fact in facts if fact.get("what") == "sandbox"]


@pytest.mark.full
@needs_landlock
@pytest.mark.parametrize("failed", [set(), {"overlay", "overlay-userns"}], ids=["overlay", "copy"])
def test_a_command_reads_git_and_dependencies_of_the_project_and_changes_neither(
    agents: AgentWorld, fanfold: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, failed: set[str]
) -> None:
    monkeypatch.setattr(children, "_failed", failed)
    folder = agents.project
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/check").write_text("#!/bin/sh\ncat node_modules/a/version\n")
    (folder / ".venv/bin/check").chmod(0o755)
    (folder / "node_modules/a").mkdir(parents=True)
    (folder / "node_modules/a/version").write_text("4.2\n")
    (folder / ".gitignore").write_text(".venv\nnode_modules\n.fanfold\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(folder)]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True, timeout=PATIENCE_S)
    tries = "touch .git/x; git commit --allow-empty -m y; echo 5 > node_modules/a/version; rm -r .venv/bin"
    recipe = agents.recipe(
        {"id": "log", "run": ["git", "log", "--format=%s"]},
        {"id": "check", "run": [".venv/bin/check"]},
        {"id": "tries", "shell": f"{tries}; echo b > b.txt; git status --short", "write_set": ["b.txt"]},
    )
    done = fanfold("run", recipe, "--yes", "--json").json()
    assert done["status"] == "completed", done["steps"]
    outputs = {path: step["output"].split() for path, step in done["steps"].items()}
    assert (outputs["log"], outputs["check"]) == (["first"], ["4.2"])
    assert "b.txt" in outputs["tries"]
    assert [change["path"] for change in done["changes"]] == ["b.txt"]
    assert (folder / "node_modules/a/version").read_text() == "4.2\n"
    assert (folder / ".venv/bin/check").exists()
    assert not (folder / ".git/x").exists()
    log = subprocess.run([*git, "log", "--format=%s"], capture_output=True, text=True, check=True)
    assert log.stdout.split() == ["first"]


@pytest.mark.full
@needs_landlock
@needs_bubblewrap
@pytest.mark.parametrize("failed", [set(), {"overlay", "overlay-userns"}], ids=["overlay", "copy"])
def test_a_workspace_is_continued_where_bubblewrap_was_allowed_meanwhile(
    agents: AgentWorld, monkeypatch: pytest.MonkeyPatch, failed: set[str]
) -> None:
    monkeypatch.setattr(children, "_failed", failed)
    subprocess.run(["git", "init", "-q", str(agents.project)], check=True, timeout=PATIENCE_S)
    spaces = Workspaces(agents.project)
    sandbox.detect.cache_clear()
    child = spaces.open_child("s1", write_set=["a.txt"])
    assert (child.path / ".git").readlink() == agents.project / ".git"
    (child.path / "a.txt").write_text("a\n")
    (agents.bin / "bwrap").unlink()
    for remembered in (sandbox.detect, sandbox.program):
        remembered.cache_clear()
    found = spaces.find_child("s1", epoch=1)
    assert found is not None
    assert not (found.path / ".git").is_symlink()
    assert (found.path / ".git").is_dir()
    assert [change.path for change in found.changes()] == ["a.txt"]


@pytest.mark.full
@needs_landlock
def test_a_link_replaced_by_a_repository_of_the_step_is_refused(
    agents: AgentWorld, fanfold: Callable[..., Result]
) -> None:
    subprocess.run(["git", "init", "-q", str(agents.project)], check=True, timeout=PATIENCE_S)
    recipe = agents.recipe(
        {"id": "work", "shell": "rm .git; mkdir .git; echo > .git/config", "write_set": ["**"]}
    )
    error = fanfold("run", recipe, "--yes", "--json").json()["steps"]["work"]["error"]
    assert error["code"] == "workspace.violation"
    assert (agents.project / ".git/HEAD").exists()


@pytest.mark.full
def test_doctor_names_the_denial_what_is_missing_and_what_allows_it(
    agents: AgentWorld, fanfold: Callable[..., Result]
) -> None:
    [finding] = [one for one in fanfold("doctor", "--json").json()["checks"] if one["name"] == "sandbox"]
    assert DENIALS["ubuntu"] in finding["message"]
    assert "install bubblewrap" not in finding["hint"], "it is installed"


@pytest.mark.full
def test_without_any_level_commands_are_refused_and_can_be_accepted(
    agents: AgentWorld, fanfold: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    monkeypatch.setattr(sandbox, "abi", lambda: 0)
    agents.install("claude", writing("claude"))
    agents.profile("claude", "credentials = []\n")
    agents.role("coder", "claude")
    recipe = agents.recipe(step("coder", write_set=["*.txt"]), {"id": "run", "run": ["true"]})
    assert fanfold("run", recipe, "--dry-run", "--json").json()["would_run"] is False
    refused = fanfold("run", recipe, "--yes", "--json")
    assert (refused.status, refused.json()["error"]["code"]) == (4, "sandbox.unavailable")
    accepted = fanfold("run", recipe, "--yes", "--unsafe-no-sandbox", "--json").json()
    assert accepted["status"] == "completed", accepted


@pytest.mark.parametrize(
    ("settings", "files", "expected"),
    [
        ({"kernel/apparmor_restrict_unprivileged_userns": "1"}, (), "/etc/apparmor.d/bwrap"),
        ({"kernel/apparmor_restrict_unprivileged_userns": "1"}, (), "restrict_unprivileged_userns=0"),
        ({"kernel/unprivileged_userns_clone": "0"}, (), "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
        ({"user/max_user_namespaces": "0"}, (), "sudo sysctl -w user.max_user_namespaces=15000"),
        ({"kernel/apparmor_restrict_unprivileged_userns": "1"}, (".dockerenv",), "seccomp=unconfined"),
        ({}, ("run/.containerenv",), "--security-opt systempaths=unconfined"),
        ({}, (), "allow user namespaces for /usr/bin/bwrap"),
    ],
)
def test_the_hint_that_allows_bubblewrap_depends_on_the_machine(
    tmp_path: Path, settings: dict[str, str], files: tuple[str, ...], expected: str
) -> None:
    for name, text in (*settings.items(), *((f"root/{name}", "") for name in files)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert expected in how_to_allow("/usr/bin/bwrap", tmp_path, tmp_path / "root")


def test_the_levels_decide_and_the_user_may_accept_the_risk() -> None:
    none = (
        Level("bubblewrap", False, "denied", fix="allow it"),
        Level("landlock", False, "not in this kernel"),
    )
    weak = none[0], Level("landlock", True, keeps_agents=False)
    with pytest.raises(WorldError, match="denied") as refused:
        choose_level(Levels(*none))
    assert refused.value.hint.startswith("allow it")
    assert choose_level(Levels(*none), unsafe=True) == "unsafe"
    with pytest.raises(WorldError, match="limited to its provider"):
        check_reach(Levels(*weak))
    check_reach(Levels(*weak), unsafe=True)
    check_reach(Levels(none[0], Level("landlock", True)))


def test_a_mac_is_refused_with_what_works_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    sandbox.detect.cache_clear()
    levels = sandbox.detect(tmp_path)
    sandbox.detect.cache_clear()
    assert levels.bubblewrap.why == levels.landlock.why == NOT_LINUX
    with pytest.raises(WorldError) as refused:
        choose_level(levels)
    assert refused.value.hint.startswith(MAC_HINT)


# -----------------------------------------------------------------------------------------------------------
# The connector itself

PROBE = """
import errno, json, os, socket, sys
def attempt(work):
    try: return str(work())
    except OSError as error: return errno.errorcode[error.errno]
def dial(host, port, family=socket.AF_INET):
    line = socket.socket(family); line.connect((host, port))
    line.sendall(b"hello"); return line.recv(100).decode()
gate, other = int(sys.argv[1]), int(sys.argv[2])
async def dial_async():
    import asyncio
    reader, writer = await asyncio.open_connection("127.0.0.1", 47113)
    writer.write(b"hello"); return (await reader.read(100)).decode()
import asyncio
print(json.dumps({
    "proxy": attempt(lambda: dial("127.0.0.1", 47113)),
    "proxy over IPv6": attempt(lambda: dial("::1", 47113, socket.AF_INET6)),
    "proxy, not blocking": attempt(lambda: asyncio.run(dial_async())),
    "the port of the gate": attempt(lambda: dial("127.0.0.1", gate)),
    "another server": attempt(lambda: dial("127.0.0.1", other)),
    "another machine": attempt(lambda: dial("192.0.2.1", 47113)),
    "datagrams": attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
    "datagrams over IPv6": attempt(lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)),
    "multipath": attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)),
    "SCTP": attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132)),
    "fast open": attempt(lambda: socket.socket().sendto(b"x", 0x20000000, ("127.0.0.1", other))),
    "fast open by message": attempt(
        lambda: socket.socket().sendmsg([b"x"], [], 0x20000000, ("127.0.0.1", other))),
    "listening": attempt(lambda: socket.socket().listen()),
    "memory of the connector": attempt(lambda: open(f"/proc/{os.getppid()}/mem", "rb")),
}))
sys.exit(7)
"""


@pytest.mark.full
@needs_landlock
def test_the_connector_lets_a_command_reach_the_gate_and_nothing_else(
    tmp_path: Path, listener: Callable[[str], int]
) -> None:
    gate, other = listener("gate"), listener("other")
    (tmp_path / "gate").write_text(f"{gate} secret")
    words = [sys.executable, "-I", "-S", connector.__file__, str(tmp_path / "gate"), "47113", "-"]
    words += [sys.executable, "-c", PROBE, str(gate), str(other)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 7, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    reached = {name for name, outcome in found.items() if outcome == "gate"}
    assert reached == {"proxy", "proxy over IPv6", "proxy, not blocking"}
    refused = {name for name, outcome in found.items() if outcome in ("EACCES", "EPERM")}
    assert reached | refused == set(found), found


@pytest.mark.full
@needs_landlock
def test_a_program_that_does_not_exist_ends_as_in_any_sandbox(tmp_path: Path) -> None:
    (tmp_path / "gate").write_text("1 secret")
    words = [sys.executable, "-I", "-S", connector.__file__, str(tmp_path / "gate"), "47113", "-", "/no/such"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == connector.REFUSED
    assert os.strerror(2) in ended.stderr
