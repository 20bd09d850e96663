"""What a person at a terminal sees and is asked, through a real one."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest

from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

GATED = """\
name: gated
steps:
  - {id: look, agent: explorer, prompt: x}
  - {id: ok, approve: "Ship {{steps.look.output}}?", depends_on: [look]}
  - {id: pick, approve: "Which one?", choices: [red, blue], depends_on: [ok]}
  - {id: ship, run: [echo, shipped], depends_on: [pick]}
"""
CLERK = """
name = "clerk"
description = "Keeps notes"
developer_instructions = "Keep notes."
[mcp_servers.notes]
command = "keep-notes"
args = ["--all"]
"""
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command whose standard streams are a terminal."""

    def __init__(self, *arguments: str) -> None:
        self._here, there = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fanfold.cli.main", *arguments],
            stdin=there,
            stdout=there,
            stderr=there,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30", "PYTHONUTF8": "1"},
            start_new_session=True,
        )
        os.close(there)
        self.screen = ""

    def until(self, words: str, timeout_s: float = PATIENCE_S) -> str:
        """Read on until the words are there; everything shown so far, without escapes."""
        deadline = time.monotonic() + timeout_s
        while words not in self.plain:
            ready, _, _ = select.select([self._here], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"no {words!r} in {self.plain[-1500:]!r}"
            if not self._read():
                break
        assert words in self.plain, self.plain[-1500:]
        return self.plain

    def type(self, text: str) -> None:
        os.write(self._here, text.encode())

    def end(self) -> tuple[int, str]:
        while self._read():
            pass
        os.close(self._here)
        return self.process.wait(timeout=PATIENCE_S), self.plain

    @property
    def plain(self) -> str:
        return ESCAPES.sub("", self.screen)

    def _read(self) -> bool:
        try:
            data = os.read(self._here, 65_536)
        except OSError:  # how a terminal says that nobody is at the other end
            return False
        self.screen += data.decode("utf-8", "replace")
        return bool(data)


@pytest.fixture
def gated(project):
    (project / "gated.yaml").write_text(GATED)
    (project / "script.yaml").write_text("default: {output: it, delay_ms: 300}\n")
    return ["run", "gated.yaml", "--script", "script.yaml"]


def test_permission_and_approvals_are_asked_at_the_terminal(gated, fanfold):
    terminal = Terminal(*gated)
    asked = terminal.until("Run it? [y/N]")
    assert "ship runs: echo shipped" in asked
    terminal.type("y\n")
    terminal.until("ok: Ship it?")
    terminal.type("perhaps\n")
    terminal.until("perhaps is none of the answers")
    terminal.type("approve looks fine\n")
    terminal.until("1) red  2) blue")
    terminal.type("2\n")
    status, screen = terminal.end()
    assert status == 0
    assert "shipped" in screen
    steps = fanfold("inspect", "last", "--json").json()["steps"]
    assert steps["ok"]["output"]["comment"] == "looks fine"
    assert steps["pick"]["output"]["decision"] == "blue"


def test_the_question_says_which_data_would_fit(project):
    schema = "{type: integer, minimum: 5}"
    (project / "q.yaml").write_text(f"name: q\nsteps: [{{id: q, ask: Many?, output_schema: {schema}}}]\n")
    terminal = Terminal("run", "q.yaml")
    terminal.until('JSON that fits {"type":"integer","minimum":5}, or later >')
    terminal.type("7\n")
    assert terminal.end()[0] == 0


def test_a_list_of_recipes_is_no_wider_than_the_terminal(project):
    _, screen = Terminal("list").end()
    assert "research-and-brief@1" in screen
    assert max(len(line) for line in screen.splitlines()) == 100


def test_a_permission_that_is_refused_ends_with_its_status(gated, fanfold):
    terminal = Terminal(*gated)
    terminal.until("Run it? [y/N]")
    terminal.type("\n")
    status, screen = terminal.end()
    assert status == 4
    assert "permission_denied" in screen
    assert fanfold("runs", "--json").json() == []


def test_spawn_names_the_programs_of_a_role_when_it_asks(project, fanfold):
    (project / ".fanfold" / "agents").mkdir(parents=True)
    (project / ".fanfold" / "agents" / "clerk.toml").write_text(CLERK)
    terminal = Terminal("spawn", "clerk", "x")
    asked = terminal.until("Run it? [y/N]")
    assert "clerk writes **/*" in asked
    assert "role clerk uses the MCP server notes: keep-notes --all" in asked
    terminal.type("n\n")
    status, screen = terminal.end()
    assert status == 4
    assert "permission_denied" in screen
    assert fanfold("ps", "--json").json() == []


def test_the_live_tree_shows_steps_as_they_go(gated):
    terminal = Terminal(*gated, "--yes")
    terminal.until("look")
    terminal.until("gated@1")
    terminal.until("ok: Ship it?")
    terminal.type("later\n")
    status, screen = terminal.end()
    assert status == 3
    assert "✓ look" in screen
    assert "? ok" in screen
    assert "fanfold approve" in screen
    assert "\x1b[" in terminal.screen


def test_an_approval_answered_elsewhere_is_withdrawn(gated, fanfold):
    terminal = Terminal(*gated, "--yes")
    terminal.until("ok: Ship it?")
    assert fanfold("approve", "last", "ok", "--json").json()["detached"] is False
    terminal.until("1) red  2) blue")
    assert fanfold("approve", "last", "pick", "--choice", "red").status == 0
    assert terminal.end()[0] == 0


def test_interrupting_while_a_question_stands_pauses_the_run(gated, fanfold):
    terminal = Terminal(*gated, "--yes")
    terminal.until("ok: Ship it?")
    terminal.process.send_signal(signal.SIGINT)
    status, screen = terminal.end()
    assert status == 3
    assert "fanfold resume" in screen
    assert fanfold("inspect", "last", "--json").json()["status"] == "paused"


def test_plain_output_on_a_terminal_has_no_colours(gated):
    terminal = Terminal(*gated, "--yes", "--no-color")
    terminal.until("ok: Ship it?")
    terminal.type("l\n")
    terminal.end()
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", terminal.screen)


def test_a_fork_is_asked_for_at_the_terminal(project, fanfold):
    (project / "r.yaml").write_text("name: r\nsteps: [{id: a, agent: explorer, prompt: x}]\n")
    (project / "script.yaml").write_text("default: ok\n")
    assert fanfold("run", "r.yaml", "--script", "script.yaml").status == 0
    terminal = Terminal("fork", "last", "--from", "a")
    asked = terminal.until("Fork and run? [y/N]")
    assert "runs again a" in asked
    terminal.type("n\n")
    assert terminal.end()[0] == 4
    assert len(fanfold("runs", "--json").json()) == 1


@pytest.mark.parametrize(("answer", "made"), [("y", True), ("n", False)])
def test_a_command_that_an_agent_chooses_is_asked_for_each_time(project, answer, made):
    (project / "agent.yaml").write_text("name: agent\nsteps: [{id: fix, agent: worker, prompt: x}]\n")
    call = "{tool: run_command, args: {argv: [touch, made.txt]}}"
    (project / "script.yaml").write_text(f"steps: {{fix: {{output: ok, tool_calls: [{call}]}}}}\n")
    terminal = Terminal("run", "agent.yaml", "--script", "script.yaml")
    terminal.until("Run it? [y/N]")
    terminal.type("y\n")
    terminal.until("fix wants to run:")
    terminal.until("│ touch made.txt")
    terminal.until("allow it? [y/N]")
    terminal.type(f"{answer}\n")
    status, shown = terminal.end()
    assert (project / "made.txt").exists() == made
    assert status == (0 if made else 1), shown
    assert ("permission_denied" in shown) == (not made)


def test_text_of_an_agent_cannot_control_the_terminal(project):
    """Its answer, its failure and what it asks reach the screen as signs; a pipe gets the answer as it is."""
    evil = "\x1b]0;owned\x07\x1b[2J\u202eabc\x9b31m"
    (project / "r.yaml").write_text("name: r\nsteps: [{id: a, agent: explorer, prompt: x}]\n")
    (project / "s.json").write_text(json.dumps({"steps": {"a": evil}}))
    status, _ = (shown := Terminal("run", "r.yaml", "--script", "s.json")).end()
    assert status == 0
    assert "␛]0;owned␇␛[2J<U+202E>abc<U+009B>31m" in shown.screen
    for sequence in ("\x1b]", "\x1b[2J", "\u202e", "\x9b", "\x07"):
        assert sequence not in shown.screen
    piped = subprocess.run(
        [sys.executable, "-m", "fanfold.cli.main", "run", "r.yaml", "--script", "s.json"],
        capture_output=True,
        check=True,
    )
    assert piped.stdout.decode() == f"{evil}\n"
