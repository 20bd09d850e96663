"""Attempts of a program that works in the project itself to hide files where git ignores them.

The write-set is `src/**`. Git ignores folders and files by rules of every kind: of the project, of a folder, of the
repository, of a tool that marks its cache. After each attempt the listed paths are gone, or the step failed and named
them.
"""

# ruff: noqa: E501 - an attempt reads best in one line

from __future__ import annotations

import dataclasses

from tests.hostile.attempt import Attempt
from tests.hostile.attempts.shared import (
    AGAIN,
    FILES,
    IGNORED,
    JUDGED,
    REFUSED,
    gone,
    prepare,
    python,
    shared,
)
from tests.hostile.worlds import World

RULES = IGNORED + "attic/\nout/\n*.pyc\n*.so\nlink-*\n.mcp.json\n.claude/\nlocal.json\n"
TREE = {
    ".gitignore": RULES,
    "build/pkg/x.o": "o\n",
    "build/m.pyc": "plain\n",
    "build/p/__pycache__/old.pyc": "plain\n",
    "attic/kept/.claude/settings.json": "plain\n",
    "sub/.gitignore": "gen/\n",
    "sub/a.txt": "a\n",
    "sub/gen/g.o": "o\n",
    "sub/.mcp.json": "plain\n",
    "sub/.claude/settings.local.json": "plain\n",
    ".pytest_cache/x": "x\n",
}
KEPT = ("sub/.mcp.json", "sub/.claude/settings.local.json", "attic/kept/.claude/settings.json")


def plant(world: World) -> None:
    prepare(world)
    world.write(
        world.project,
        {"marked/CACHEDIR.TAG": "x\n", "excluded/x": "x\n", "mine/x": "x\n", "local.json": "{}\n"},
    )
    world.write(world.project / ".git", {"info/exclude": "excluded/\n"})
    world.write(world.home, {".config/git/ignore": "mine/\n"})


def hidden(attempt: Attempt) -> Attempt:
    """The same attempt in a project with ignored folders and files of every kind."""
    judge = attempt.after
    assert judge is not None

    def after(world: World) -> None:
        judge(world)
        told = "\n".join(said.out + said.err for said in world.said)
        for path in KEPT:
            file = world.project / path
            assert not file.is_file() or file.read_text() == "plain\n", f"{path} was changed\n{told}"
        if "m.pyc" in attempt.name:
            file = world.project / "build/m.pyc"
            assert not file.exists() or file.read_text() == "plain\n", told

    files = {**FILES, **TREE, **{name: text for name, text in attempt.files.items() if name not in FILES}}
    return dataclasses.replace(attempt, files=files, plant=plant, after=after)


def outside_git(name: str, code: str, *left: str, stays: bool = False) -> Attempt:
    """The same in a project that is no repository: folders of build tools are left out by their names."""
    attempt = shared(name, code, *left, stays=stays, says=DONE)
    made = {"Cargo.toml": "[package]\n", "target/debug/x": "x\n"}
    return dataclasses.replace(attempt, files={**attempt.files, **made}, plant=None)


SETTINGS = "mkdir -p {0}/.claude; echo evil > {0}/.claude/settings.json"
ENVIRONMENT = "mkdir -p {0}/lib; echo 'home = /usr/bin' > {0}/pyvenv.cfg; echo 'import os' > {0}/lib/x.pth"
MODULES = "mkdir -p {0}/node_modules/.bin; echo evil > {0}/node_modules/.bin/tsc"
BYTECODE = "mkdir -p {0}/__pycache__; echo evil > {0}/__pycache__/a.pyc"
BARE = "mkdir -p {0}/objects {0}/refs; echo '[core]' > {0}/config; echo 'ref: refs/heads/x' > {0}/HEAD"
DONE = f"completed|{JUDGED}|{REFUSED}"

_IN_GIT = (
    # ------------------------------------------------------------- protected names in an ignored folder
    gone("settings of an agent in an ignored folder", SETTINGS.format("build"), "build/.claude"),
    gone("settings of an agent deep in an ignored folder", SETTINGS.format("build/a/b/c"), "build/a/b/c/.claude"),
    gone("settings of an agent in other letters", "mkdir build/.CLAUDE; echo x > build/.CLAUDE/settings.json", "build/.CLAUDE"),
    gone("settings of an agent by another spelling", "mkdir 'build/.\uff43laude'; echo x > 'build/.\uff43laude/settings.json'", "build/.\uff43laude"),
    gone("settings of an agent by a short name", "mkdir build/CLAUDE~1; echo x > build/CLAUDE~1/settings.json", "build/CLAUDE~1"),
    gone("servers of an agent in an ignored folder", "echo '{}' > build/.mcp.json", "build/.mcp.json"),
    gone("settings without a dot in an ignored folder", "echo '{}' > build/opencode.json", "build/opencode.json"),
    gone("servers of an editor in an ignored folder", "mkdir build/.vscode; echo '{}' > build/.vscode/mcp.json", "build/.vscode/mcp.json"),
    gone("hooks of a service in an ignored folder", "mkdir -p build/.github/hooks; echo x > build/.github/hooks/h", "build/.github/hooks"),
    gone("roles of Fanfold in an ignored folder", "mkdir -p build/.fanfold/agents; echo x > build/.fanfold/agents/x.md", "build/.fanfold"),
    gone("a link in place of settings in an ignored folder", "mkdir src/evil; ln -s ../src/evil build/.claude", "build/.claude"),
    shared("a link in place of an editor's folder in an ignored folder", "mkdir src/evil; echo '{}' > src/evil/mcp.json; ln -s ../src/evil build/.vscode", "build/.vscode"),
    gone("settings in an ignored folder by an agent", SETTINGS.format("build"), "build/.claude", agent=True),
    gone("settings in an ignored folder before a failure", SETTINGS.format("build") + "; exit 3", "build/.claude", says="violation|denied|Read-only"),
    gone("settings in an ignored folder by a step that is cut short", SETTINGS.format("build") + "; sleep 60", "build/.claude", says="timed_out|timeout", timeout="3s"),
    gone("settings in an ignored folder under a write-set of everything", SETTINGS.format("build"), "build/.claude", write_set=("**",)),
    gone("settings in an ignored folder that the write-set names", SETTINGS.format("build"), "build/.claude", write_set=("build/**",)),
    gone("settings in an ignored folder that is closed", SETTINGS.format("build/x") + "; chmod 000 build/x", "build/x/.claude"),
    gone("settings in an ignored folder that cannot be listed", SETTINGS.format("build/x") + "; chmod 333 build/x build", "build/x/.claude"),
    gone("settings below a cache of bytecode", SETTINGS.format("src/__pycache__"), "src/__pycache__/.claude"),
    # ----------------------------------------------------------------------- every kind of ignore rule
    gone("settings where a folder's own rules ignore", SETTINGS.format("sub/gen"), "sub/gen/.claude"),
    gone("settings where the repository's own list ignores", SETTINGS.format("excluded"), "excluded/.claude"),
    gone("settings in a folder that a tool marked as its cache", SETTINGS.format("marked"), "marked/.claude"),
    gone("settings in the cache of a tool", SETTINGS.format(".pytest_cache"), ".pytest_cache/.claude"),
    gone("settings in a new ignored folder", SETTINGS.format("out"), "out/.claude"),
    gone("settings behind new rules in an ignored folder", "printf '*' > build/.gitignore; " + SETTINGS.format("build"), "build/.claude"),
    gone("settings behind new rules in the write-set", "mkdir src/n; printf '*' > src/n/.gitignore; " + SETTINGS.format("src/n"), "src/n/.claude"),
    gone("settings where the user's own list ignores", SETTINGS.format("mine"), "mine/.claude"),
    gone("ignored servers of an agent in a folder", "mkdir src/s; echo '{}' > src/s/.mcp.json", "src/s/.mcp.json"),
    # ------------------------------------------------------------------- ignored files that were there
    gone("ignored settings of an agent, changed", "echo evil > sub/.claude/settings.local.json"),
    gone("ignored settings of an agent, added to", "echo evil > sub/.claude/settings.json", "sub/.claude/settings.json"),
    gone("ignored servers of an agent, changed", "echo evil > sub/.mcp.json"),
    gone("ignored servers of an agent, replaced", "echo evil > src/x; mv -f src/x sub/.mcp.json"),
    gone("settings that were in an ignored folder, changed", "echo evil > attic/kept/.claude/settings.json"),
    gone("settings that were in an ignored folder, behind a folder that was moved", "mv attic/kept attic/k2; " + SETTINGS.format("attic/kept")),
    gone("ignored settings behind a folder that was moved", "mv sub src/s2; " + SETTINGS.format("sub"), "sub/.claude/settings.json"),
    gone("an ignored file that becomes settings", "mkdir build/.claude; mv local.json build/.claude/settings.json", "build/.claude"),
    # ----------------------------------------------------------------------------- what programs load
    shared("an environment in an ignored folder", ENVIRONMENT.format("build/v"), "build/v/lib/x.pth"),
    shared("an ignored folder that becomes an environment", ENVIRONMENT.format("build"), "build/lib/x.pth"),
    shared("an environment in a new ignored folder", ENVIRONMENT.format("out/v"), "out/v/lib/x.pth"),
    shared("modules in an ignored folder", MODULES.format("build"), "build/node_modules/.bin/tsc"),
    shared("modules deep in an ignored folder", MODULES.format("build/a/b"), "build/a/b/node_modules/.bin/tsc"),
    shared("modules where the repository's own list ignores", MODULES.format("excluded"), "excluded/node_modules/.bin/tsc"),
    shared("modules by an agent in an ignored folder", MODULES.format("build"), "build/node_modules/.bin/tsc", agent=True),
    shared("modules in an ignored folder before a failure that is tried again", "test -e build/node_modules && exit 0; " + MODULES.format("build") + "; exit 3", "build/node_modules", retry=AGAIN),
    shared("modules in a closed ignored folder", MODULES.format("build/x") + "; chmod 000 build/x", "build/x/node_modules"),
    gone("a repository in modules that are closed", "mkdir -p src/node_modules/p/.git; echo x > src/node_modules/p/.git/config; chmod 000 src/node_modules/p", "src/node_modules/p/.git"),
    gone("bytecode in an ignored folder", BYTECODE.format("build"), "build/__pycache__/a.pyc", says=DONE),
    gone("bytecode deep in an ignored folder", BYTECODE.format("build/a/b"), "build/a/b/__pycache__/a.pyc", says=DONE),
    gone("bytecode in a cache in an ignored folder", "echo evil > build/p/__pycache__/b.pyc", "build/p/__pycache__/b.pyc", says=DONE),
    gone("bytecode in place of old bytecode in an ignored folder", "echo evil > build/p/__pycache__/old.pyc", "build/p/__pycache__/old.pyc", says=DONE),
    gone("bytecode without source in an ignored folder", "echo evil > build/n.pyc", "build/n.pyc", says=DONE),
    gone("bytecode in place of m.pyc in an ignored folder", "echo evil > build/m.pyc", says=DONE),
    gone("bytecode without source beside the write-set", "echo evil > docs/d.pyc", "docs/d.pyc", says=DONE),
    gone("bytecode without source in the write-set", "echo evil > src/json.pyc", "src/json.pyc", says=DONE),
    gone("bytecode in a new ignored folder", BYTECODE.format("out"), "out/__pycache__/a.pyc", says=DONE),
    gone("bytecode in a closed ignored folder", BYTECODE.format("build/x") + "; chmod 000 build/x", "build/x/__pycache__/a.pyc", says=DONE),
    gone("a repository without a name in an ignored folder", BARE.format("build/b"), "build/b/HEAD"),
    gone("a repository without a name in a new ignored folder", BARE.format("out"), "out/HEAD"),
    gone("a repository without a name in an ignored folder whose parts are elsewhere", "mkdir -p build/b build/c/objects build/c/refs; echo 'ref: refs/heads/x' > build/b/HEAD; echo ../c > build/b/commondir", "build/b/HEAD"),
    gone("an ignored folder that becomes a repository", BARE.format("build/pkg"), "build/pkg/HEAD"),
    # ----------------------------------------------------------------------------------------- links
    shared("a link in an ignored folder that leads out", "ln -s @home@/.bashrc build/x", "build/x", says=JUDGED),
    shared("a link in an ignored folder to hooks", "ln -s ../.git/hooks build/h", "build/h", says=JUDGED),
    shared("a link in place of an ignored file", "ln -sf @home@/.bashrc build/out.o", says=JUDGED),
    shared("an ignored link that leads out", "ln -s @outside@ link-x", "link-x", says=f"{JUDGED}|{REFUSED}"),
    shared("an ignored link to settings", "ln -s ../sub/.claude src/link-x", "src/link-x", says=JUDGED),
    shared("a link in place of an ignored file at the top", "ln -sf @home@/.bashrc local.json", says=f"{JUDGED}|{REFUSED}"),
    shared("a link in place of modules in an ignored folder", "mkdir src/m; ln -s ../src/m build/node_modules", "build/node_modules", says=JUDGED),
    shared("a link in place of an environment in an ignored folder", "mkdir src/v; ln -s ../src/v build/.venv", "build/.venv", says=JUDGED),
    shared("a link in place of modules in a new ignored folder", "mkdir src/m out; ln -s ../src/m out/node_modules", "out/node_modules"),
    gone("a link in place of bytecode in an ignored folder", "mkdir src/c; ln -s ../src/c build/__pycache__", "build/__pycache__", says=DONE),
    gone("a link in place of bytecode in the write-set", "mkdir -p src/n/c; ln -s c src/n/__pycache__", "src/n/__pycache__", says=DONE),
    gone("a link in place of bytecode without source in an ignored folder", "echo evil > src/x; ln -s ../src/x build/n.pyc", "build/n.pyc", says=DONE),
    gone("bytecode without source in a snapshot", "echo evil > src/json.pyc", "src/json.pyc", says=DONE, workspace_mode="isolated"),
    gone("a link in place of bytecode in a snapshot", "mkdir -p src/n/c; echo evil > src/n/c/a.pyc; ln -s c src/n/__pycache__", "src/n/__pycache__", "src/n/c/a.pyc", says=DONE, workspace_mode="isolated"),
    gone("a link in place of modules in a snapshot", "mkdir -p src/n/m; ln -s m src/n/node_modules", "src/n/node_modules", says=DONE, workspace_mode="isolated"),
    gone("a link in place of an ignored folder", "mv build src/b; ln -s src/b build; " + SETTINGS.format("src/b"), "src/b/.claude"),
    # ------------------------------------------------------------------------------ kinds and modes
    gone("a pipe in an ignored folder", python("import os; os.mkfifo('build/pipe')"), "build/pipe", says=DONE),
    gone("a pipe in a new ignored folder", python("import os; os.mkdir('out'); os.mkfifo('out/p')"), "out/p", says=DONE),
    gone("a pipe in place of an ignored file", python("import os; os.remove('build/out.o'); os.mkfifo('build/out.o')"), "build/out.o", says=DONE),
    gone("a socket in an ignored folder", python("import socket; socket.socket(socket.AF_UNIX).bind('build/s')"), "build/s", says=DONE),
    gone("an ignored file that all may write", "chmod 666 build/out.o", says=DONE),
    gone("an ignored file at the top that all may write", "chmod 666 local.json", says=DONE),
    gone("a new ignored file that all may write", "umask 0; echo x > build/n; chmod 666 build/n", says=DONE),
    gone("an ignored folder that all may write", "chmod 777 build/pkg build", says=DONE),
    gone("a new ignored folder that all may write", "umask 0; mkdir -p out/n; chmod 777 out/n", says=DONE),
)  # fmt: skip

ATTEMPTS = (
    *map(hidden, _IN_GIT),
    outside_git("settings in the folder of a build tool", SETTINGS.format("target"), "target/.claude"),
    outside_git("modules in the folder of a build tool", MODULES.format("target"), "target/node_modules", stays=True),
    outside_git("bytecode in the folder of a build tool", BYTECODE.format("target/debug"), "target/debug/__pycache__/a.pyc"),
)  # fmt: skip
