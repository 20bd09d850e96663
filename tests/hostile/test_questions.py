"""A question shows exactly what will happen; what a project brings gets no secret the user did not name."""

import json
import os
import sys
from pathlib import Path

import pytest

from fanfold.agents.role import Role
from fanfold.agents.toolbox.mcp.servers import LentEnvironment, declare_server, read_server
from fanfold.runtime.operations.runs.starting.permission import served_lines
from tests.hostile.test_state import World


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"command": "evil", "url": "https://fine.example"}, "evil"),
        ({"type": "http", "command": "evil", "url": "https://fine.example"}, "https://fine.example"),
        ({"command": ["a", "b c"], "args": ["d;e"]}, "a 'b c' 'd;e'"),
        ({"command": "x", "env": {"TOKEN": "${GITHUB_TOKEN}"}}, "x, with TOKEN=${GITHUB_TOKEN}"),
        (
            {"url": "https://a.example", "bearer_token_env_var": "GITHUB_TOKEN"},
            "https://a.example, with Authorization: Bearer ${GITHUB_TOKEN}",
        ),
        ({"url": "https://a.example/${HOME}"}, "https://a.example/${HOME}"),
        ({"enabled": False, "command": "x"}, "switched off"),
    ],
)
def test_what_is_asked_about_a_server_is_what_will_be_reached(settings: dict[str, object], shown: str):
    assert declare_server("s", settings) == shown
    used = read_server("s", settings, {"GITHUB_TOKEN": "t", "HOME": "/h"})
    if used is not None and used.argv:
        assert shown.startswith(used.argv[0])
    assert served_lines(Role(name="r", description="d", mcp_servers={"s": settings}))[-1].endswith(shown)


def test_a_project_s_server_gets_no_secret_that_the_user_did_not_name():
    ours = {"GITHUB_TOKEN": "secret-secret-secret", "LANG": "C", "NPM_TOKEN": "other-other-other"}
    lent = LentEnvironment(ours, frozenset({"NPM_TOKEN"}))
    assert dict(lent) == {"LANG": "C", "NPM_TOKEN": "other-other-other"}
    for settings in (
        {"command": "x", "env_vars": ["GITHUB_TOKEN"]},
        {"command": "x", "env": {"A": "${GITHUB_TOKEN}"}},
        {"command": "x", "args": ["${GITHUB_TOKEN:-none}"]},
        {"url": "https://a.example", "bearer_token_env_var": "GITHUB_TOKEN"},
        {"url": "https://a.example/${GITHUB_TOKEN}"},
    ):
        with pytest.raises(Exception, match="looks like a secret") as refused:
            read_server("s", settings, lent)
        assert "[environment] allow" in getattr(refused.value, "hint", "")
    allowed = read_server("s", {"command": "x", "env_vars": ["NPM_TOKEN", "LANG"]}, lent)
    assert allowed is not None
    assert allowed.environment == {"NPM_TOKEN": "other-other-other", "LANG": "C"}


def test_the_project_s_own_file_cannot_allow_a_secret(tmp_path: Path):
    world = World(tmp_path)
    (world.project / ".fanfold").mkdir()
    (world.project / ".fanfold/config.toml").write_text('[environment]\nallow = ["GITHUB_TOKEN"]\n')
    assert "config.not_here" in world.fanfold("check", "one.yaml").stderr


def test_nothing_that_is_asked_for_is_cut_or_hidden(tmp_path: Path):
    world = World(tmp_path)
    commands = [["sh", "-c", f"echo {i}\n# {'x' * 500}{i}"] for i in range(40)]
    steps = [{"id": f"c{i}", "run": argv, "env": {"A": "b c"}} for i, argv in enumerate(commands)]
    (world.project / "many.yaml").write_text(json.dumps({"name": "many", "steps": steps}))
    said = ask(world, "many.yaml", "n")
    for i in range(40):
        assert f"c{i} runs: A='b c' sh -c 'echo {i}␊# {'x' * 500}{i}'" in said
    assert "Run it (40 things; m shows them page by page)? [y/N]" in said


def test_what_scrolled_away_is_shown_page_by_page(tmp_path: Path):
    world = World(tmp_path)
    steps = [{"id": f"c{i}", "run": ["echo", f"{i}" * 60]} for i in range(40)]
    (world.project / "many.yaml").write_text(json.dumps({"name": "many", "steps": steps}))
    asked, _, paged = ask(world, "many.yaml", "m", "", "", "", "n").partition("page by page)? [y/N]")
    assert "(page" not in asked
    first, second, third, last = paged.split("; Enter goes on, q leaves)")  # of 70 rows, 22 at a time
    assert first.endswith("(page 1 of 4")
    assert third.endswith("(page 3 of 4")
    assert "  c15 runs: echo" in first
    assert "  c16 runs: echo" in second
    assert (
        last.index("  c39 runs: echo") < last.index("Run it (40 things") < last.index("[permission_denied]")
    )


def ask(world: World, recipe: str, *answers: str) -> str:
    """What a person sees at a terminal of 24 rows when the recipe asks."""
    import pty

    pid, handle = pty.fork()
    if pid == 0:
        os.chdir(world.project)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(world.home),
            "TERM": "dumb",
            "LC_ALL": "C.UTF-8",
        }
        command = [sys.executable, "-m", "fanfold.cli.main", "run", recipe, "--script", "script.yaml"]
        os.execve(sys.executable, command, environment)
    said = b""
    while b"[y/N]" not in said:
        said += os.read(handle, 65_536)
    os.write(handle, "".join(f"{answer}\n" for answer in answers).encode())
    try:
        while data := os.read(handle, 65_536):
            said += data
    except OSError:
        pass  # the terminal is closed
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 4
    return said.decode().replace("\r\n", "\n")
