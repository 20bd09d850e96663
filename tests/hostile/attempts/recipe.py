"""What a recipe may say: commands, sets, references, expressions, names."""

# ruff: noqa: E501 - an attempt reads best in one line

from __future__ import annotations

import json

from tests.hostile.attempt import RUN, Attempt
from tests.hostile.worlds import World

LOOK = (
    ("check", "one.yaml"),
    ("show", "one.yaml"),
    ("run", "one.yaml", "--dry-run"),
    ("run", "one.yaml", "--script", "script.yaml"),
)
HEAD = "name: one\nsteps:\n"
RUNS = (RUN, ("inspect", "last", "--steps"), ("logs", "last", "--json"))


def step(**keys: object) -> dict[str, str]:
    return {"one.yaml": json.dumps({"name": "one", "steps": [{"id": "a", **keys}]})}


def program(
    name: str,
    code: str,
    says: str = r"completed|failed",
    commands: tuple[tuple[str, ...], ...] = RUNS,
    **keys: object,
) -> Attempt:
    return Attempt(
        name=name, files=step(run=["sh", "-c", code], **keys), commands=commands, says=says, confined=True
    )


def refused(name: str, files: dict[str, str], says: str) -> Attempt:
    return Attempt(name=name, files=files, commands=(*LOOK, RUN), says=says)


def handler(world: World) -> None:
    code = "import pathlib\npathlib.Path('@outside@/ran').write_text('x')\nimport fanfold\n@fanfold.function\ndef evil(): ...\n"
    world.write(world.project, {"evil.py": code, "one.yaml": HEAD + "  - {id: a, handler: evil}\n"})


SECOND = """\
name: one
steps:
  - {id: a, run: [sh, -c, "rm -rf node_modules; ln -s @home@ node_modules; ln -s @home@/.ssh .venv; true"], write_set: ['**/*']}
  - {id: b, run: [sh, -c, "cat node_modules/.ssh/id .venv/id node_modules/.netrc; true"], depends_on: [a]}
"""
SHARED = """\
name: one
steps:
  - {id: a, run: [sh, -c, "mkdir -p s && cd s && ln -s @home@ node_modules; git init -q . ; git config core.fsmonitor 'touch @outside@/ran'; true"], write_set: ['**/*'], workspace_mode: shared}
  - {id: b, agent: worker, prompt: p, write_set: ['**/*'], depends_on: [a]}
"""
PROTECTED = "mkdir -p .claude/agents .CODEX/agents sub/.fanfold; echo x > .claude/agents/e.md; echo x > .CODEX/agents/e.toml; echo x > .mcp.json; echo x > sub/.fanfold/config.toml; true"
ATTEMPTS = (
    Attempt(name="commands while it is only looked at", files=step(run=["touch", "@outside@/ran"]), commands=LOOK, says="permission|denied"),
    Attempt(name="functions while it is only looked at", plant=handler, commands=LOOK[:3], says="evil|one"),
    Attempt(name="functions that nobody allowed", plant=handler, commands=(LOOK[3],), says="permission|denied"),
    refused("an alias that grows without end", {"one.yaml": "a: &a [x,x]\nb: &b [*a,*a]\nname: one\nsteps: *b\n"}, "error"),
    refused("nesting without end", {"one.yaml": "name: one\nsteps: " + "[" * 20_000}, "error"),
    refused("a tag that makes objects", {"one.yaml": "name: one\nsteps: !!python/object/apply:os.system ['touch @outside@/ran']\n"}, "error"),
    refused("a file of many megabytes", {"one.yaml": "name: one\n# " + "x" * 5_000_000 + "\nsteps: []\n"}, "error"),
    refused("an expression that never ends", step(agent="explorer", prompt="p", when="[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, [1,2,3,4,5,6,7,8,9].all(d, [1,2,3,4,5,6,7,8,9].all(e, [1,2,3,4,5,6,7,8,9].all(f, [1,2,3,4,5,6,7,8,9].all(g, [1,2,3,4,5,6,7,8,9].all(h, true))))))))"), "error|failed"),
    refused("a schema somewhere else", step(agent="explorer", prompt="p", output_schema={"$ref": "http://127.0.0.1:@port@/x.json"}), "error"),
    refused("a schema in a file", step(agent="explorer", prompt="p", output_schema={"$ref": "file://@outside@/secret"}), "error"),
    refused("a set above the project", step(agent="worker", prompt="p", write_set=["../outside/**"]), "error"),
    refused("a set by an absolute path", step(agent="worker", prompt="p", write_set=["@outside@/**"]), "error"),
    refused("a workflow above the project", step(workflow="../outside/secret.yaml", inputs={}), "error"),
    refused("a workflow by an absolute path", step(workflow="@outside@/secret", inputs={}), "error"),
    Attempt(name="a workflow through a link", files=step(workflow="./linked.yaml", inputs={}), links={"linked.yaml": "@outside@/secret"}, commands=(*LOOK, RUN), says="error"),
    refused("a name that leads out", {"one.yaml": "name: ../../outside/x\nsteps: [{id: a, agent: explorer, prompt: p}]\n"}, "error"),
    refused("a step whose name leads out", {"one.yaml": "name: one\nsteps: [{id: ../../x, agent: explorer, prompt: p}]\n"}, "error"),
    refused("a name that drives terminals", {"one.yaml": 'name: "\\e[2Jone"\nsteps: [{id: "a\\u202e", agent: "\\x9b31m", prompt: p}]\n'}, "error"),
    refused("a description that drives terminals", {"one.yaml": 'name: one\ndescription: "\\e]0;owned\\a\\e[2J"\nsteps: [{id: a, agent: explorer, prompt: "\\e[5m"}]\n'}, "one"),
    refused("a list of a million items", step(agent="explorer", prompt="{{item}}", for_each="inputs.n") | {"n": ""}, "error"),
    program("a program that writes outside", "touch @outside@/ran /etc/fanfold-was-here; echo evil >> @home@/.bashrc; rm -f @outside@/secret; mv @home@/.netrc x"),
    program("a program that reads homes", "cat @home@/.ssh/id @home@/.netrc @outside@/secret ~/.ssh/id ~root/.ssh/id_rsa; ls -a @home@; true"),
    program("a program that reads the environment", "env; cat /proc/$PPID/environ /proc/1/environ; true"),
    program("a program that connects", "python3 -c \"import socket; socket.create_connection(('127.0.0.1', @port@), 2)\""),
    program("a program that drives the terminal", "printf '\\033[2J\\033]0;owned\\007\\233words'; printf '\\033[5mwords' >&2; exit 3", says="words"),
    program("a program that replaces git's folder", "rm -rf .git; mkdir .git; echo '[core]\n fsmonitor = touch @outside@/ran' > .git/config; true", write_set=["**/*"]),
    program("a program that writes what instructs others", PROTECTED, says="protected|violation|failed|Read-only|refused", write_set=["**/*"]),
    program("a program that shares the project and writes hooks", "mkdir -p .git/hooks; echo x > .git/hooks/pre-commit; echo x > .mcp.json; true", says=r"failed|completed|protected", write_set=["**/*"], workspace_mode="shared"),
    program("a program that leaves a link for the host", "ln -s @outside@ runs; ln -s @home@/.bashrc out.txt; ln -s /etc/passwd p; true", says="failed|completed|leads", write_set=["**/*"]),
    program("a program that outlives its step", "(setsid sh -c 'sleep 2; touch @outside@/ran' >/dev/null 2>&1 &) ; true"),
    program("a program that reads our database", "cat .fanfold/fanfold.db @project@/.fanfold/fanfold.db @project@/.fanfold/state.seal; ls @project@/.fanfold/runs; true"),
    program("variables that load code", "true", env={"LD_PRELOAD": "@project@/evil.so", "PYTHONPATH": "@project@", "BASH_ENV": "@project@/evil.sh", "PYTHONSTARTUP": "@project@/x"}),
    program("variables for what makes the sandbox", "true", env={"FANFOLD_GIVEN_X": "1", "FANFOLD_SESSION": "x", "GIT_DIR": "@outside@", "PATH": "@project@"}, says="completed|failed|error"),
    Attempt(name="a program of the project named like a tool", files={**step(run=["./git", "status"]), "git": "#!/bin/sh\ntouch @outside@/ran\n"}, commands=RUNS, says="failed", confined=True),
    Attempt(name="a folder that is a link for the next step", files={"one.yaml": SECOND, "node_modules/m.js": "m", ".gitignore": "node_modules\n.venv\n"}, commands=RUNS, says="completed|failed|partial", confined=True),
    Attempt(name="a repository inside for the next step", files={"one.yaml": SHARED}, commands=(RUN, ("diff", "last")), says="completed|failed|partial", confined=True),
)  # fmt: skip
