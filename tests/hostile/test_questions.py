"""A question shows exactly what will happen; what a project brings gets no secret the user did not name."""

import json
import os
import sys
from pathlib import Path

import pytest

from fanfold.agents.role import Role
from fanfold.agents.tools.mcp_servers import LentEnvironment, declare_server, read_server
from fanfold.api.permission import role_effects
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
def test_the_question_about_a_server_names_the_address_that_is_reached(
    settings: dict[str, object], shown: str
):
    assert declare_server("s", settings) == shown
    used = read_server("s", settings, {"GITHUB_TOKEN": "t", "HOME": "/h"})
    if used is not None and used.argv:
        assert shown.startswith(used.argv[0])
    role = Role(name="r", description="d", mcp_servers={"s": settings})
    *_, effect = role_effects(role, lambda _: None, "model")
    assert effect.text.endswith(shown)


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


@pytest.mark.full
def test_the_project_s_own_file_cannot_allow_a_secret(tmp_path: Path):
    world = World(tmp_path)
    (world.project / ".fanfold").mkdir()
    (world.project / ".fanfold/config.toml").write_text('[environment]\nallow = ["GITHUB_TOKEN"]\n')
    assert "config.not_here" in world.fanfold("check", "one.yaml").stderr


@pytest.mark.full
def test_questions_are_shown_page_by_page_and_granted_on_the_last_only(tmp_path: Path):
    world = World(tmp_path)
    commands = [["sh", "-c", f"echo {i}\n# {'x' * 500}{i}"] for i in range(40)]
    steps = [{"id": f"c{i}", "run": argv, "env": {"A": "b c"}} for i, argv in enumerate(commands)]
    (world.project / "many.yaml").write_text(json.dumps({"name": "many", "steps": steps}))
    screen = ask(world, "many.yaml", *["y"] * 16, "n")  # an early yes only turns the page
    assert screen.startswith(
        "many asks for permission.\n  40 commands\n   1. c0 runs: sh -c 'echo 0\n    │ # xxx"
    )
    assert "(page 1 of 17: Enter shows the next one, n refuses)" in screen
    pages = screen.split("n refuses) ")
    assert len(pages) == 17
    assert "c39 runs: sh -c 'echo 39" in pages[-1]
    assert "    │ with A='b c'\n" in pages[-1]
    assert "Run it? (m shows it again) [y/N]" in pages[-1]
    assert "[permission_denied]" in pages[-1]


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
    while b"[y/N]" not in said and b"n refuses)" not in said:
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
