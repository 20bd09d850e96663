"""At a terminal no command and no view lets anything through that a model, a program, a file or a role wrote.

Every command is walked, one that is new too: as usual, on runs full of hostile text, as JSON, and with
hostile text for an argument.
"""

# ruff: noqa: E501 - a way to call a command reads best in one line

import json
import os
import pty
import re
import signal
import sys
from pathlib import Path

import pytest

from fanfold.cli.main import COMMANDS, main
from tests.cli.test_hostile_text import ALLOWED, BROKEN, EVIL, toml
from tests.hostile.ways import LASTING, ways
from tests.text.test_terminal import is_harmless

pytestmark = pytest.mark.full

OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[0-9]*[A-D]|\r?\x1b\[2K|\r\n")
"""What we say to a terminal ourselves: colours, the cursor of the live tree, the ends of lines."""
SHOWN = json.dumps(ALLOWED, ensure_ascii=False)
PRINTS = json.dumps(
    ["sh", "-c", r"printf '\033]0;x\007\033[2J\233words'; printf '\033[5mwords' >&2; exit ${1:-0}", "sh"]
)
RECIPE = f"""
name: evil
description: {SHOWN}
inputs: [{{name: note, default: {SHOWN}}}]
steps:
  - {{id: one, agent: evil, prompt: {SHOWN}}}
  - {{id: two, agent: evil, prompt: "{{{{steps.one.output}}}} {{{{inputs.note}}}}"}}
  - {{id: three, agent: worker, prompt: p, write_set: ['**/*'], merge: propose}}
  - {{id: says, run: {PRINTS}}}
  - {{id: fails, run: {PRINTS[:-1]}, "3"]}}
  - {{id: asked, approve: "{{{{steps.one.output}}}}", show: "{{{{steps.one.output}}}}", depends_on: [one, says]}}
  - {{id: told, ask: "{{{{steps.one.output}}}}", depends_on: [one]}}
"""
SHORT = "\x1b]0;title\x07\x1b[2J\x9bwords\u202e"
QUOTED = json.dumps(SHORT)
OF_OTHERS = {
    "protoagent.yaml": f"name: brief\ndescription: {QUOTED}\n{QUOTED}: 1\nsteps:\n  - {{id: look, subagent: {QUOTED}, prompt: {QUOTED}, {QUOTED}: {QUOTED}}}\n",
    "conductor.yaml": f"workflow: {{name: {QUOTED}, entry_point: a, {QUOTED}: 1}}\nagents:\n  - {{name: a, prompt: {QUOTED}, {QUOTED}: 2, routes: [{{to: {QUOTED}}}]}}\n",
    "archon.yaml": f"name: x\ndescription: {QUOTED}\nnodes:\n  - {{id: a, prompt: {QUOTED}, {QUOTED}: 3}}\n  - {{id: {QUOTED}, bash: {QUOTED}}}\n",
    "crew.yaml": f"look:\n  description: {QUOTED}\n  expected_output: {QUOTED}\n  agent: {QUOTED}\n  {QUOTED}: 4\n",
    "script.js": f"export const meta = {{name: {QUOTED}, description: {QUOTED}}};\nconst a = await agent({QUOTED}, {{label: {QUOTED}, oddity: {QUOTED}}});\nodd({QUOTED});\n",
    "nothing.yaml": f"{QUOTED}: {QUOTED}\n",
}
"""Workflows of other systems, as they are and as they are not."""
DELEGATES = {"tool": "task", "args": {"role": "explorer", "task": SHORT, "name": "scout"}}
TALK = {
    "default": EVIL,
    "steps": {"lead": {"output": EVIL, "tool_calls": [DELEGATES, {"tool": SHORT, "args": {SHORT: SHORT}}]}},
}
CHATS = [
    ["chat", SHORT, "--script", "talk.json"],
    ["chat", EVIL, "--script", "talk.json", "--permission", "auto"],
    ["capture", "last"],
    ["capture", "last", "--request", EVIL],
    ["transcript", "last", "lead"],
    ["ps"],
]
SCRIPT = {
    "default": EVIL,
    "steps": {
        "one": EVIL,
        "two": {"fail": {"class": "agent", "message": EVIL, "hint": EVIL}},
        "three": {
            "output": EVIL,
            "writes": {"cod\u202egpj\x1b[31m.txt": EVIL},
            "tool_calls": [{"tool": "run_command", "args": {"argv": ["printf", EVIL]}}],
        },
    },
}
RUN = ["run", "evil.yaml", "--script", "script.json", "--yes"]
FURTHER = {
    "run": [RUN[1:], [*RUN[1:], "--json"], ["evil.yaml", "--script", "script.json"], ["evil.yaml", "--dry-run"], ["bad.yaml"]],
    "inspect": [["last", "--steps"], ["last", "--state"], ["last", "--json"]],
    "logs": [["last", "--json"], ["last", "--tree"]],
    "explain": [["last", "two"], ["last", "three", "--json"]],
    "transcript": [["last", "one"], ["last", "three"], ["last", "three", "--json"]],
    "diff": [["last", "three"], ["last", "--json"]],
    "apply": [["last", "three", "--dry-run"], ["last", "three"]],
    "query": [["words"], ["title", "--json"]],
    "show": [["evil.yaml"], ["evil.yaml", "--mermaid"], ["evil"]],
    "check": [["bad.yaml"], ["bad.yaml", "--format", "github"], ["evil.yaml"]],
    "agents": [["evil"], ["broken"], ["--json"]],
    "approve": [["last", "asked", "--comment", EVIL]],
    "fork": [["last", "--from", "one", "--yes"]],
    "spawn": [["evil", EVIL, "--script", "script.json", "--wait", "--yes"]],
    "send": [["last", EVIL]],
    "state": [["show"]],
    "convert": [[name] for name in OF_OTHERS],
    "whatif": [["last", "--max-concurrency", "2"], ["last", "--max-concurrency", "2", "--json"]],
    "undo": [["last", "--dry-run"], ["last", "three"]],
    "retry": [["last", "--dry-run"], ["last", "--dry-run", "--json"]],
    "answer": [["last", "told", EVIL]],
    "plan": [[EVIL, "--script", "plans.json"], [EVIL, "--script", "plans.json", "--json"], [EVIL, "--no-model", "--anyway"]],
    "export": [["last", "-o", "run.html"], ["last", "-o", f"{SHORT}.html"]],
    "import": [["run.html"], ["evil.html"], [f"{SHORT}.html"]],
    "replay": [["last", "--verify"]],
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name in ("agents", "workflows"):
        (folder / ".fanfold" / name).mkdir(parents=True)
    role = f'name = "evil"\ndescription = {toml(EVIL)}\ndeveloper_instructions = {toml(EVIL)}\n'
    (folder / ".fanfold/agents/evil.toml").write_text(role)
    broken = f'name = "broken"\ndescription = "x"\nsandbox_mode = {toml(EVIL)}\n'
    (folder / ".fanfold/agents/broken.toml").write_text(broken)
    (folder / ".fanfold/agents/e\x1b]0;x\x07.toml").write_text("x")
    for name in ("evil.yaml", ".fanfold/workflows/evil.yaml"):
        (folder / name).write_text(RECIPE)
    (folder / ".fanfold/workflows/bad.yaml").write_text(BROKEN)
    (folder / "bad.yaml").write_text(BROKEN)
    (folder / "one.yaml").write_text(RECIPE)
    for name in ("script.json", "script.yaml"):
        (folder / name).write_text(json.dumps(SCRIPT))
    (folder / "talk.json").write_text(json.dumps(TALK))
    (folder / "plans.json").write_text(json.dumps({"default": f"name: {SHORT}\nsteps: [{{id: {SHORT}}}]\n"}))
    (folder / "evil.html").write_text(f"<html><script type='application/json'>{SHORT}</script></html>")
    for name, text in OF_OTHERS.items():
        (folder / name).write_text(text)
    return folder


def test_no_shown_text_controls_the_terminal(project: Path, tmp_path: Path):
    walked = [RUN]
    for name in sorted(set(COMMANDS) - set(LASTING)):
        walked += [*ways(name, FURTHER), [name, EVIL], [name, "--help"]]
    walked += CHATS
    said = at_a_terminal(project, tmp_path / "home", walked)
    assert said.count("fanfold-walks") == len(walked), said[-3000:]
    for part in said.split("fanfold-walks ")[1:]:
        number, _, text = part.partition("\n")
        bad = {char for char in OWN.sub("\n", text) if not is_harmless(char)}
        assert not bad, (walked[int(number)], bad, text[:2000])
        assert "Traceback" not in text, (walked[int(number)], text[-3000:])
    first = said.split("fanfold-walks ")[1]
    assert "\nasked: " in first, "the question of an approval was not seen"
    assert first.count("]0;title") > 2, "what was said was not seen"


def at_a_terminal(project: Path, home: Path, walked: list[list[str]]) -> str:
    """What a terminal receives of these commands, with a mark before each. Every question is answered: no."""
    pid, handle = pty.fork()
    if pid == 0:
        try:
            _walk(project, home, walked)
        finally:
            os._exit(0)
    said = b""
    try:
        while data := os.read(handle, 65_536):
            said += data
            if data.rstrip().endswith((b"[y/N]", b">", b"?", b":")):
                os.write(handle, b"n\n")
    except OSError:
        pass  # the terminal is closed
    os.waitpid(pid, 0)
    os.close(handle)
    return said.decode(errors="backslashreplace").replace("\r\n", "\n")


def _walk(project: Path, home: Path, walked: list[list[str]]) -> None:
    os.chdir(project)
    home.mkdir()
    os.environ |= {"HOME": str(home), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "COLUMNS": "100"}
    os.environ.pop("FANFOLD_DEBUG", None)
    signal.alarm(240)
    terminal = os.open("/dev/tty", os.O_RDWR)
    for stream, number in ((sys.stdin, 0), (sys.stdout, 1), (sys.stderr, 2)):
        os.dup2(terminal, number)
        del stream
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", 1), open(2, "w", 1)  # noqa: SIM115 - of this process
    for number, arguments in enumerate(walked):
        sys.stdout.write(f"fanfold-walks {number}\n")
        try:
            main(arguments)
        except SystemExit:
            pass
        sys.stdout.flush()
