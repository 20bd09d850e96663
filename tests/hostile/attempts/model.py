"""What a model may ask of its tools, and say."""

# ruff: noqa: E501 - an attempt reads best in one line

from __future__ import annotations

import json
import os
from dataclasses import replace

from fanfold.kernel.claims import LOGINS
from tests.hostile.attempt import RUN, Attempt
from tests.hostile.attempts.repository import WRITES
from tests.hostile.worlds import World

LINKS = {"out": "@outside@", "key": "@home@/.ssh/id", "first": "second", "second": "out", "up": ".."}
NETWORK = 'name = "net"\ndescription = "d"\ndeveloper_instructions = "i"\nnetwork = true\n'
WITH_NET = "name: one\nsteps:\n  - {id: a, agent: net, prompt: p, write_set: ['**/*']}\n"
REFUSED = r"path_refused|leads out|outside|protected|refused|not_found|does not exist"
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil\u2066\x00"


def calls(name: str, *asked: tuple[str, dict[str, object]], says: str = REFUSED, recipe: str = WRITES, confined: bool = False,
          links: dict[str, str] = LINKS, commands: tuple[tuple[str, ...], ...] = (RUN, ("transcript", "last", "a"), ("logs", "last", "--json", "--tree"), ("diff", "last"))) -> Attempt:  # fmt: skip
    script = {
        "steps": {
            "a": {"output": "done", "tool_calls": [{"tool": tool, "args": args} for tool, args in asked]}
        }
    }
    files = {"one.yaml": recipe, "script.yaml": json.dumps(script), ".fanfold/agents/net.toml": NETWORK}
    return Attempt(name=name, files=files, links=links, commands=commands, says=says, confined=confined)


def reads(name: str, path: str, says: str = REFUSED) -> Attempt:
    return calls(name, ("read_file", {"path": path}), says=says)


def writes(name: str, path: str, says: str = REFUSED) -> Attempt:
    return calls(name, ("write_file", {"path": path, "content": "evil\n"}), says=says)


def runs(name: str, *argv: str, says: str, recipe: str = WRITES) -> Attempt:
    return calls(name, ("run_command", {"argv": list(argv)}), says=says, recipe=recipe, confined=True)


def fetches(name: str, url: str) -> Attempt:
    return calls(
        name,
        ("fetch_url", {"url": url}),
        says=r"private_address|bad_url|invalid_args|only|refused|tool\.",
        recipe=WITH_NET,
    )


def a_pipe(world: World) -> None:
    os.mkfifo(world.project / "pipe")


SAID = {
    "steps": {
        "a": {"output": ESCAPES.replace("\x00", "") + "words", "writes": {"\u202efile\x1b[31m.txt": "x"}}
    }
}
FAILED = {
    "steps": {
        "a": {
            "fail": {
                "class": "agent",
                "message": ESCAPES.replace("\x00", "") + "words",
                "hint": "\x1b[5mwords",
            }
        }
    }
}
LOOKS = (
    RUN,
    ("inspect", "last", "--steps"),
    ("logs", "last"),
    ("diff", "last"),
    ("explain", "last"),
    ("query", "words"),
    ("watch", "last"),
)
PATCH = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-# x\n+evil\n"
NEW = "--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+evil\n"
CONNECT = "import socket; socket.create_connection(('127.0.0.1', @port@), 2)"
NESTED = "mkdir -p inner && cd inner && git init -q . && git config core.fsmonitor 'touch @outside@/ran' && git config core.hooksPath . && echo t > t"

SHARES = (
    "name: one\nsteps:\n  - {id: a, agent: worker, prompt: p, write_set: ['**/*'], workspace_mode: shared}\n"
)
LENT = "lent-5b0e77c1"
CLOSED = "belongs to Fanfold|the login of an agent|dependency folder"


def beside(name: str, tool: str, says: str = CLOSED, **args: object) -> Attempt:
    """A tool of an agent in the project itself, beside logins, state and dependencies."""
    made = calls(
        name,
        (tool, args),
        says=says,
        recipe=SHARES,
        links={"state": ".fanfold", "agent": ".claude/.credentials.json"},
    )
    logins = dict.fromkeys((*LOGINS, *(f"me/{place}" for place in LOGINS)), LENT + "\n")
    tools = {
        ".venv/pyvenv.cfg": "",
        ".venv/m.py": "m\n",
        "env/pyvenv.cfg": "",
        "node_modules/m.js": "m\n",
        "sub/.fanfold/config.toml": LENT + "\n",
    }

    def after(world: World) -> None:
        assert LENT not in "".join(said.out + said.err for said in world.said)
        assert all((world.project / place).read_text() == LENT + "\n" for place in logins)
        assert sorted(path.name for path in world.project.rglob("*.pth")) == []
        assert (world.project / "node_modules/m.js").read_text() == "m\n"

    return replace(made, files={**made.files, **logins, **tools}, after=after)


ATTEMPTS = (
    *(beside(f"reads {place}", "read_file", path=place) for place in LOGINS),
    beside("reads a login further down, in capitals", "read_file", path="me/.CODEX/AUTH.json", says=CLOSED + "|not_found|does not exist"),
    beside("reads a login through a link", "read_file", path="agent"),
    beside("reads the database beside it", "read_file", path=".fanfold/fanfold.db"),
    beside("reads the seal", "read_file", path=".fanfold/state.seal"),
    beside("reads state through a link", "read_file", path="state/fanfold.db"),
    beside("reads state of a folder inside", "read_file", path="sub/.fanfold/config.toml"),
    beside("lists state", "list_files", path=".fanfold"),
    beside("lists state through a link", "list_files", path="state/workspace"),
    beside("searches state", "search_files", pattern=".", path=".fanfold"),
    beside("searches logins", "search_files", pattern="lent-", says="done|matches"),
    beside("searches a login", "search_files", pattern=".", path=".codex/auth.json"),
    beside("edits a login", "edit_file", path=".codex/auth.json", old="lent", new="evil"),
    beside("patches a login", "apply_patch", patch="--- a/.codex/auth.json\n+++ b/.codex/auth.json\n@@ -1 +1 @@\n-x\n+evil\n"),
    beside("deletes state", "delete_file", path=".fanfold/state.seal"),
    beside("writes what Python runs at its start", "write_file", path=".venv/x.pth", content="import os\n"),
    beside("writes it into an environment known by its mark", "write_file", path="env/lib/x.pth", content="import os\n"),
    beside("edits a dependency", "edit_file", path="node_modules/m.js", old="m", new="evil"),
    beside("deletes a dependency", "delete_file", path="node_modules/m.js"),
    reads("reads above the workspace", "../outside/secret"),
    reads("reads by an absolute path", "@outside@/secret"),
    reads("reads through a link", "out/secret"),
    reads("reads a link to a key", "key"),
    reads("reads through links behind links", "first/secret"),
    reads("reads through a link to the folder above", "up/outside/secret"),
    reads("reads its own environment", "/proc/self/environ"),
    reads("reads the database", ".fanfold/fanfold.db"),
    reads("reads by a name with a NUL", "a.txt\x00/../../outside/secret", says=r"NUL|invalid|refused|tool\."),
    reads("reads by a name without end", "a/" * 40_000 + "x", says=r"long|invalid|refused|tool\."),
    Attempt(name="reads a pipe that nobody writes", plant=a_pipe, says=r"regular|refused|not_found|tool\.", files={"one.yaml": "name: one\nsteps:\n  - {id: a, agent: explorer, prompt: p}\n", "script.yaml": "steps: {a: {output: done, tool_calls: [{tool: read_file, args: {path: pipe}}]}}\n"}),
    calls("lists above the workspace", ("list_files", {"pattern": "../**"}), says=r"done|refused|invalid|tool\."),
    calls("lists through a link", ("list_files", {"pattern": "out/**"}), says=r"done|refused|tool\."),
    calls("searches behind links", ("search_files", {"pattern": "CANA", "glob": "**/*"}), says=r"done|tool\."),
    calls("searches with a pattern of gigabytes", ("search_files", {"pattern": "((a{1,3000}){1,3000}){1,3000}"}), says=r"too_expensive|bad_pattern|timeout|invalid|tool\."),
    calls("searches with a pattern that never ends", ("write_file", {"path": "b.txt", "content": "a" * 5000}), ("search_files", {"pattern": "(a|aa)+(a|aa)+(a|aa)+$x"}), says=r"done|tool\."),
    calls("searches with a pattern of a megabyte", ("search_files", {"pattern": "a" * 1_000_000}), says=r"long|invalid|bad_pattern|tool\."),
    calls("lists with a pattern that never ends", ("list_files", {"pattern": "**/" * 3000 + "x"}), says=r"long|invalid|done|tool\."),
    writes("writes above the workspace", "../outside/new"),
    writes("writes by an absolute path", "@home@/.bashrc"),
    writes("writes through a link", "out/new"),
    writes("writes onto a link", "key"),
    writes("writes through links behind links", "first/new"),
    writes("writes a hook", ".git/hooks/pre-commit"),
    writes("writes git's configuration in capitals", ".GIT/config"),
    writes("writes our configuration", ".fanfold/config.toml"),
    writes("writes a role of ours in capitals", ".Fanfold/agents/evil.toml"),
    writes("writes a role for Claude", ".claude/agents/evil.md"),
    writes("writes a role for Codex", "sub/.codex/agents/evil.toml"),
    writes("writes servers", ".mcp.json"),
    writes("writes servers further down, in capitals", "sub/.MCP.json"),
    calls("deletes above the workspace", ("delete_file", {"path": "../outside/secret"})),
    calls("deletes through a link", ("delete_file", {"path": "out/secret"})),
    calls("edits through a link", ("edit_file", {"path": "out/secret", "old": "#", "new": "evil"}), says=REFUSED + r"|tool\."),
    calls("patches above the workspace", ("apply_patch", {"patch": PATCH.format("../outside/secret")}), says=REFUSED + r"|tool\."),
    calls("patches a hook into place", ("apply_patch", {"patch": NEW.format(".git/hooks/post-checkout")}), says=REFUSED + r"|tool\."),
    Attempt(name="writes what is not its to write", files={"one.yaml": "name: one\nsteps:\n  - {id: a, agent: worker, prompt: p, write_set: [src/**]}\n", "script.yaml": "steps: {a: {output: done, writes: {script.yaml: evil}}}\n"}, says="violation|write_set|may not"),
    Attempt(name="runs a program that nobody allowed", commands=(("run", "one.yaml", "--script", "script.yaml"),), says="permission|denied",
            files={"one.yaml": WRITES, "script.yaml": "steps: {a: {output: done, tool_calls: [{tool: run_command, args: {argv: [touch, '@outside@/ran']}}]}}\n"}),
    runs("runs a program that writes outside", "touch", "@outside@/ran", says=r"command|touch|done"),
    runs("runs a program that reads a key", "cat", "@home@/.ssh/id", says=r"command|cat|done"),
    runs("runs a program that connects", "python3", "-c", CONNECT, says=r"command|done|refused|unreachable"),
    runs("runs a program that reads the environment of others", "sh", "-c", "cat /proc/[0-9]*/environ", says=r"command|done"),
    runs("runs a program that leaves a repository that runs programs", "sh", "-c", NESTED, says=r"completed|done|protected|violation|insufficient"),
    runs("runs a program that leaves links for the merge", "sh", "-c", "ln -s @outside@ z && ln -s z y && mkdir -p d && ln -s ../../outside d/e", says=r"completed|done|leads|violation|refused"),
    runs("runs a program that turns a folder into a link", "sh", "-c", "rm -rf out && ln -s @home@/.ssh .codex", says=r"completed|done|violation|protected|refused|command"),
    runs("runs a program with a NUL in its arguments", "touch", "a\x00b", says=r"NUL|invalid|tool\."),
    runs("runs a program with arguments beyond the kernel's limit", "touch", "x" * 3_000_000, says=r"long|large|invalid|tool\."),
    runs("runs a program that does not end with its step", "sh", "-c", "setsid sh -c 'sleep 2; touch @outside@/ran' >/dev/null 2>&1 &", says=r"completed|done|failed"),
    fetches("fetches from this machine", "http://127.0.0.1:@port@/"),
    fetches("fetches from this machine by name", "http://localhost:@port@/"),
    fetches("fetches from this machine in disguise", "http://0x7f.1:@port@/"),
    fetches("fetches from this machine as IPv6", "http://[::ffff:127.0.0.1]:@port@/"),
    fetches("fetches what clouds tell about a machine", "http://169.254.169.254/latest/meta-data/"),
    fetches("fetches a file", "file://@outside@/secret"),
    calls("calls a tool that is not there", ("sudo", {"argv": ["id"]}), says=r"sudo|unknown|tool\."),
    calls("calls with arguments nested without end", ("write_file", {"path": "x", "content": json.loads("[" * 400 + "]" * 400)}), says=r"deep|invalid|nest|tool\."),
    Attempt(name="says what drives terminals", files={"one.yaml": WRITES, "script.yaml": json.dumps(SAID)}, commands=LOOKS, says="words"),
    Attempt(name="fails with words that drive terminals", files={"one.yaml": WRITES, "script.yaml": json.dumps(FAILED)}, commands=LOOKS, says="words"),
)  # fmt: skip
