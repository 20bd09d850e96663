"""What a program may do that works in the project itself, with `src/**` for its write-set.

Each leaves nothing of it in the project, or fails its step by name. The project is a repository with a dependency
folder of each kind, an ignored folder and a folder beside the write-set.
"""

# ruff: noqa: E501 - an attempt reads best in one line

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import stat

from tests.hostile.attempt import RUN, Attempt
from tests.hostile.worlds import World

IGNORED = "__pycache__/\nbuild/\nnode_modules/\n.venv/\nenv/\n"
FILES = {
    ".gitignore": IGNORED,
    "src/a.py": "a = 1\n",
    "docs/d.md": "docs\n",
    "build/out.o": "o\n",
    "src/__pycache__/old.pyc": "old\n",
    ".venv/pyvenv.cfg": "home = /usr/bin\n",
    ".venv/lib/python3/site-packages/m.py": "m = 1\n",
    "node_modules/.bin/tool": "#!/bin/sh\n",
    "env/pyvenv.cfg": "home = /usr/bin\n",
}
REFUSED = (
    r"Read-only|Permission denied|not permitted|not supported|cross-device|Invalid argument|busy|denied|Errno"
)
JUDGED = r"workspace\.violation|workspace\.guard_blocked"


def prepare(world: World) -> None:
    world.git("init", "-q", ".")
    world.git("add", "-A")
    world.git("commit", "-qm", "first")


def python(code: str) -> str:
    return f"python3 -c {shlex.quote(code)}"


def shared(name: str, code: str, *left: str, says: str = f"{JUDGED}|{REFUSED}", write_set: tuple[str, ...] = ("src/**",),
           stays: bool = True, agent: bool = False, **keys: object) -> Attempt:  # fmt: skip
    """`left` are paths that the program tries to leave: gone afterwards, or (where it `stays`) named in a failure."""
    argv = ["sh", "-c", f"exec 2>&1\n{code}\ntrue"]
    step: dict[str, object] = {"id": "a", "write_set": list(write_set), "workspace_mode": "shared", **keys}
    step |= {"agent": "worker", "prompt": "p"} if agent else {"run": argv}
    files = FILES | {"one.yaml": json.dumps({"name": "one", "steps": [step]})}
    if agent:
        call = {"tool": "run_command", "args": {"argv": argv}}
        files["script.yaml"] = json.dumps({"steps": {"a": {"output": "done", "tool_calls": [call]}}})

    def after(world: World) -> None:
        told = "\n".join(said.out + said.err for said in world.said)
        for path in left:
            if os.path.lexists(world.project / path):
                assert stays, f"{path} is still there\n{told}"
                assert world.said[0].status != 0, told
                assert re.search(rf"violation.*{re.escape(path.split('/')[0])}", told, re.DOTALL), told
        set_id = [
            path
            for path in world.project.rglob("*")
            if stat.S_ISREG(path.lstat().st_mode) and path.lstat().st_mode & 0o6000
        ]
        assert not set_id, told
        found = [path for path in world.project.rglob("*") if not path.is_symlink()]
        assert not [path for path in found if path.lstat().st_mode & 0o002], told
        assert (world.project / ".venv/lib/python3/site-packages/m.py").read_text() == "m = 1\n"
        assert (world.project / "node_modules/.bin/tool").read_text() == "#!/bin/sh\n"
        assert stat.S_IMODE(world.project.stat().st_mode) & 0o700 == 0o700

    return Attempt(
        name=name,
        files=files,
        plant=prepare,
        commands=(RUN, ("logs", "last", "--json"), ("transcript", "last", "a")),
        says=says,
        after=after,
        confined=True,
    )


def gone(name: str, code: str, *left: str, says: str = f"{JUDGED}|{REFUSED}", write_set: tuple[str, ...] = ("src/**",), agent: bool = False, **keys: object) -> Attempt:  # fmt: skip
    return shared(name, code, *left, says=says, write_set=write_set, stays=False, agent=agent, **keys)


def moved(name: str, code: str, *left: str) -> Attempt:
    """Under `**`, so that only its name is against it."""
    return shared(name, code, *left, write_set=("**",), stays=False)


def replaced(name: str, code: str, path: str, *, files: dict[str, str] | None = None, links: dict[str, str] | None = None,
             repositories: tuple[str, ...] = (), git_folder: str = "", isolated: bool = False, stays: bool = False) -> Attempt:  # fmt: skip
    """Under `**`: something is put where a kept thing is, or where one leads. At `path` there is nothing evil
    afterwards; where it `stays`, the step has failed.
    """
    made = {"one.yaml": json.dumps({"name": "one", "steps": [
        {"id": "a", "write_set": ["**"], "workspace_mode": "isolated" if isolated else "shared",
         "run": ["sh", "-c", f"exec 2>&1\n{code}\ntrue"]}]})}  # fmt: skip

    def plant(world: World) -> None:
        for folder in repositories:
            (world.project / folder).mkdir(parents=True, exist_ok=True)
            world.git("init", "-q", ".", folder=world.project / folder)
        world.write(world.project, files or {})
        if git_folder:
            world.git("init", "-q", "--separate-git-dir", git_folder, ".")
        else:
            world.git("init", "-q", ".")

    def after(world: World) -> None:
        told = "\n".join(said.out + said.err for said in world.said)
        file = world.project / path
        if file.exists() and "evil" in file.read_text():
            assert stays, f"{path} is evil\n{told}"
            assert world.said[0].status != 0, told
        if "plain" in (files or {}).get(path, ""):
            assert stays or file.exists(), f"{path} is gone\n{told}"
        for folder in repositories:
            if (world.project / folder).is_dir() and not stays:
                assert (world.project / folder / ".git/HEAD").exists(), f"{folder}/.git is gone\n{told}"

    return Attempt(name=name, files=made, links=links or {}, plant=plant, after=after, confined=True,
                   commands=(RUN, ("logs", "last", "--json")), says=f"{JUDGED}|{REFUSED}|can't create|cannot")  # fmt: skip


FORGED = "echo evil >> sub/.git/config"
AGENT = {"pkg/.claude/settings.json": "plain\n"}
SERVERS = {"pkg/.mcp.json": "plain\n"}
ENVIRONMENT = {"sub/.venv/pyvenv.cfg": "home = /usr/bin\n", "sub/.venv/m.py": "m = 1\n"}


PARTS = "mkdir -p src/b src/c/objects src/c/refs; echo 'ref: refs/heads/x' > src/b/HEAD; echo '[core]' > src/c/config"
HEAD = "mkdir src/b; echo 'ref: refs/heads/x' > src/b/HEAD; echo '[core]' > src/b/config"
CONTENT = "mkdir -p src/b/objects src/b/refs; touch src/b/objects/x src/b/refs/x"


def in_parts(name: str, first: str, second: str, mode: str = "shared", *, at_once: bool = False) -> Attempt:
    """Two steps that each make a part of a repository; after both there is none."""
    attempt = gone(name, first)
    judge = attempt.after
    assert judge is not None
    steps = [
        {
            "id": step,
            "write_set": ["src/**"],
            "workspace_mode": mode,
            "run": ["sh", "-c", f"exec 2>&1\n{code}\ntrue"],
        }
        for step, code in (("a", first), ("b", second))
    ]
    if at_once:
        steps[0]["write_set"] = ["src/b/HEAD", "src/b/config"]
        steps[1]["write_set"] = ["src/b/objects/**", "src/b/refs/**"]
    else:
        steps[1]["depends_on"] = ["a"]

    def after(world: World) -> None:
        judge(world)
        parts = [world.project / "src/b" / part for part in ("HEAD", "objects", "refs")]
        assert not all(map(os.path.lexists, parts)), "\n".join(said.out + said.err for said in world.said)

    files = {**attempt.files, "one.yaml": json.dumps({"name": "one", "steps": steps})}
    return dataclasses.replace(attempt, files=files, after=after)


AGAIN = {"attempts": 2, "on": ["agent", "timeout"], "backoff": "10ms"}


def with_program(how: str) -> str:
    return f"cp /bin/sh src/s 2>/dev/null || : > src/s; {how}"


RAW = "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True)\ndef call(*a):\n    r = libc.syscall(*a)\n    if r < 0: raise OSError(ctypes.get_errno(), 'Errno')\n    return r\n"

ATTEMPTS = (
    # ------------------------------------------------------------------- beside the write-set
    shared("a file beside the write-set", "echo x > docs/x.md", "docs/x.md"),
    shared("a change beside the write-set with the time put back", "touch -r docs/d.md src/t; echo DOCS > docs/d.md; touch -r src/t docs/d.md; true", says=f"{JUDGED}|{REFUSED}"),
    shared("a file behind a link in the write-set", "ln -s ../docs src/l; echo x > src/l/y.md", "docs/y.md"),
    shared("a folder that becomes a link", "mv docs src/old && mkdir src/evil && ln -s src/evil docs", "src/evil"),
    shared("a file moved into the write-set", "mv docs/d.md src/d.md", "src/d.md"),
    shared("a pipe beside the write-set", python("import os; os.mkfifo('docs/p')"), "docs/p"),
    shared("a link that leads out of the project", "ln -s @outside@ src/out", "src/out", says=JUDGED),
    shared("a file beside the write-set before a failure", "echo x > docs/x.md; exit 3", "docs/x.md", says="violation|denied|Read-only"),
    shared("a file beside the write-set by an agent", "echo x > docs/x.md", "docs/x.md", agent=True),
    shared("a file beside the write-set before a failure that is tried again", "test -e docs/x.md && exit 0; echo x > docs/x.md; exit 3", "docs/x.md", retry=AGAIN),
    shared("a file beside the write-set before a time-out that is tried again", "test -e docs/x.md && exit 0; echo x > docs/x.md; sleep 60", "docs/x.md", retry=AGAIN, timeout="3s"),
    # --------------------------------------------------------------- hidden by names and marks
    shared("a file in a new dependency folder", "mkdir -p docs/node_modules && echo x > docs/node_modules/x.js", "docs/node_modules/x.js"),
    shared("a file in a new environment", "mkdir -p docs/venv/lib && echo x > docs/venv/lib/x.pth", "docs/venv/lib/x.pth"),
    shared("a file in a new folder of test environments", "mkdir -p docs/.tox/x && echo x > docs/.tox/x/y", "docs/.tox/x/y"),
    shared("a folder marked as an environment", "mkdir -p docs/e && touch docs/e/pyvenv.cfg && echo x > docs/e/x", "docs/e/x"),
    shared("a folder marked as a cache", "mkdir -p docs/c && touch docs/c/CACHEDIR.TAG && echo x > docs/c/x", "docs/c/x"),
    shared("a known folder marked as an environment", "touch docs/pyvenv.cfg && echo x >> docs/d.md", "docs/pyvenv.cfg"),
    shared("a known folder marked as a cache", "touch docs/CACHEDIR.TAG && echo x >> docs/d.md", "docs/CACHEDIR.TAG"),
    shared("a new file of ignore rules that ignores itself", "printf '*' > docs/.gitignore && echo x > docs/x", "docs/x"),
    shared("a new file of ignore rules in a new folder", "mkdir docs/n && printf '*' > docs/n/.gitignore && echo x > docs/n/x", "docs/n/x"),
    shared("more ignore rules of the project", "echo docs/x >> .gitignore && echo x > docs/x", "docs/x"),
    shared("ignore rules beside the repository", "mkdir -p .git/info; echo docs/x >> .git/info/exclude; echo x > docs/x", "docs/x"),
    gone("bytecode in a new cache", "mkdir docs/__pycache__; echo evil > docs/__pycache__/a.pyc", "docs/__pycache__/a.pyc", says="completed|denied"),
    gone("bytecode in a known cache", "echo evil > src/__pycache__/a.pyc", "src/__pycache__/a.pyc", says="completed"),
    gone("bytecode in a cache below another", "mkdir -p src/__pycache__/x/y; echo evil > src/__pycache__/x/y/a.pyc", "src/__pycache__/x", says="completed"),
    gone("bytecode in place of what was there", "echo evil > src/__pycache__/old.pyc", "src/__pycache__/old.pyc", says="completed"),
    gone("a payload in a new cache of a tool", "mkdir docs/.pytest_cache; echo evil > docs/.pytest_cache/x.py", "docs/.pytest_cache/x.py", says="completed|denied"),
    gone("bytecode under a write-set of everything", "mkdir -p src/__pycache__; echo evil > src/__pycache__/a.pyc", "src/__pycache__/a.pyc", says="completed", write_set=("**",)),
    # -------------------------------------------------------------------- repositories at any depth
    gone("a repository in the write-set", "git init -q src/sub; git -C src/sub config core.fsmonitor evil", "src/sub/.git"),
    gone("a repository far below", "mkdir -p src/a/b/c/d/.git; echo x > src/a/b/c/d/.git/config", "src/a/b/c/d/.git"),
    gone("a file that names a repository", "mkdir src/s; echo 'gitdir: ../evil' > src/s/.git", "src/s/.git"),
    gone("a repository in other letters", "mkdir -p src/s/.GIT; echo x > src/s/.GIT/config", "src/s/.GIT"),
    gone("a repository by its short name", "mkdir -p src/s/GIT~1; echo x > src/s/GIT~1/config", "src/s/GIT~1"),
    gone("a repository that is a link", "mkdir -p src/s src/evil; ln -s ../evil src/s/.git", "src/s/.git"),
    gone("a repository in an ignored folder", "mkdir -p build/x/.git; echo x > build/x/.git/config", "build/x/.git", says=f"{JUDGED}|{REFUSED}"),
    gone("a repository in a new dependency folder", "mkdir -p src/node_modules/p/.git; echo x > src/node_modules/p/.git/config", "src/node_modules/p/.git"),
    gone("a repository in a new marked folder", "mkdir -p src/e/lib/.git; touch src/e/pyvenv.cfg; echo x > src/e/lib/.git/config", "src/e/lib/.git"),
    gone("a repository in a folder that is closed", "mkdir -p src/x/.git; echo x > src/x/.git/config; chmod 000 src/x", "src/x/.git"),
    gone("a repository without a name", "mkdir -p src/bare/objects src/bare/refs; echo '[core]' > src/bare/config; echo 'ref: refs/heads/x' > src/bare/HEAD", "src/bare"),
    gone("a repository without a name whose parts are elsewhere", f"{PARTS}; echo ../c > src/b/commondir", "src/b/HEAD"),
    gone("a repository without a name whose parts are links", f"{PARTS}; ln -s ../c/objects ../c/refs src/b", "src/b/HEAD"),
    gone("a repository without a name whose head is a link", "mkdir -p src/b/objects src/b/refs; ln -s refs/heads/x src/b/HEAD", "src/b/HEAD"),
    in_parts("a repository without a name, made by two steps", HEAD, CONTENT),
    in_parts("a repository without a name, made by two steps in the other order", f"mkdir src/b; {CONTENT}", HEAD.partition(";")[2]),
    in_parts("a repository without a name, made by two isolated steps", HEAD, CONTENT, mode="isolated"),
    in_parts("a repository without a name, made by two isolated steps at once", HEAD, f"mkdir src/b; {CONTENT}", mode="isolated", at_once=True),
    moved("a repository without a name under a write-set of everything", "mkdir -p docs/b/objects docs/b/refs; echo 'ref: refs/heads/x' > docs/b/HEAD", "docs/b"),
    moved("a repository under a write-set of everything", "mkdir -p docs/s/.git; echo x > docs/s/.git/config", "docs/s/.git"),
    moved("instructions for an agent in a folder", "mkdir -p src/sub/.claude; echo x > src/sub/.claude/settings.json", "src/sub/.claude"),
    moved("servers for an agent in a folder", "mkdir -p src/sub; echo '{}' > src/sub/.mcp.json", "src/sub/.mcp.json"),
    moved("servers for an editor in a folder", "mkdir -p src/sub/.vscode; echo '{}' > src/sub/.vscode/mcp.json", "src/sub/.vscode/mcp.json"),
    moved("configuration of Fanfold in a folder", "mkdir -p src/sub/.fanfold; echo x > src/sub/.fanfold/config.toml", "src/sub/.fanfold"),
    gone("a repository by an agent", "mkdir -p src/s/.git; echo x > src/s/.git/config", "src/s/.git", agent=True),
    gone("a repository by a step that is cut short", "mkdir -p src/s/.git; echo x > src/s/.git/config; sleep 60", "src/s/.git", says="timed_out|timeout", timeout="3s"),
    # --------------------------------------------------------------------------- rights and modes
    shared("a file that all may write", "chmod 777 docs/d.md", says=f"{JUDGED}|{REFUSED}"),
    shared("a folder that all may write", "chmod 777 docs", says=f"{JUDGED}|{REFUSED}"),
    shared("a file of the write-set that all may write", "umask 0; echo x > src/n; chmod 777 src/n src/a.py", says=f"completed|{REFUSED}"),
    shared("a folder of the write-set that all may write", "umask 0; mkdir -p src/n/e; chmod 777 src/n/e src", says=f"completed|{REFUSED}"),
    shared("a project that all may write", "chmod 777 .", says=f"{JUDGED}|{REFUSED}"),
    gone("a repository in a project that is closed", "mkdir .git2 .claude; echo x > .claude/settings.json; chmod 555 .", ".claude", write_set=("**",)),
    gone("a repository in a project that cannot be read", "mkdir .claude; chmod 000 .", ".claude", write_set=("**",)),
    gone("a nested repository below a closed folder", "mkdir -p src/a/b/.git; chmod 555 src/a/b src/a src", "src/a/b/.git"),
    shared("a folder that cannot be read", "chmod 000 docs", says=f"{JUDGED}|{REFUSED}"),
    shared("a program that runs as its owner", with_program("chmod 4755 src/s"), says=REFUSED),
    shared("a program that runs as its group", with_program("chmod 2755 src/s"), says=REFUSED),
    shared("such a program by its handle", with_program(python("import os; os.fchmod(os.open('src/s', 0), 0o4755)")), says=REFUSED),
    shared("such a program made at once", python("import os; os.open('src/s', os.O_CREAT | os.O_WRONLY, 0o4755)"), says=REFUSED),
    shared("such a program made without a name", python("import os; os.open('src', os.O_TMPFILE | os.O_WRONLY, 0o6755)"), says=REFUSED),
    shared("such a program as a node", python("import os, stat; os.mknod('src/s', stat.S_IFREG | 0o4755)"), says=REFUSED),
    shared("such a program by a call that hides the mode", python(RAW + "import struct; call(437, -100, b'src/s', struct.pack('QQQ', os.O_CREAT | os.O_WRONLY, 0o4755, 0), 24)"), says=REFUSED),
    shared("such a program by the newest call for modes", with_program(python(RAW + "call(452, -100, b'src/s', 0o4755, 0)")), says=REFUSED),
    shared("such a program under a write-set of everything", with_program("chmod 6755 src/s"), says=REFUSED, write_set=("**",)),
    shared("an attribute of a file beside the write-set", python("import os; os.setxattr('docs/d.md', 'user.x', b'y')"), says=REFUSED),
    shared("an attribute of a file in the write-set", python("import os; os.setxattr('src/a.py', 'user.x', b'y')"), says=REFUSED),
    shared("rights for others by a list", python("import os; os.setxattr('docs/d.md', 'system.posix_acl_access', b'\\x02\\0\\0\\0')"), says=REFUSED),
    shared("a capability of a program", with_program(python("import os; os.setxattr('src/s', 'security.capability', bytes(20))")), says=REFUSED),
    shared("an owner of a file beside the write-set", python("import os; os.chown('docs/d.md', 12345, 12345)"), says=REFUSED),
    # ----------------------------------------------------------------------------- dependencies
    shared("code that Python runs at its start", "echo 'import os' > .venv/lib/python3/site-packages/x.pth", ".venv/lib/python3/site-packages/x.pth", says=REFUSED),
    shared("the same under a write-set of everything", "echo 'import os' > .venv/lib/python3/site-packages/x.pth", ".venv/lib/python3/site-packages/x.pth", says=REFUSED, write_set=("**",)),
    shared("the same by an agent", "echo 'import os' > .venv/lib/python3/site-packages/x.pth", ".venv/lib/python3/site-packages/x.pth", says=REFUSED, write_set=("**",), agent=True),
    shared("the same in an environment known by its mark", "echo x > env/x.pth", "env/x.pth", says=REFUSED, write_set=("**",)),
    shared("a tool among the dependencies", "echo evil >> node_modules/.bin/tool", says=REFUSED, write_set=("**",)),
    shared("another folder in place of the dependencies", "mv node_modules src/old; mkdir node_modules; echo x > node_modules/x.js", "node_modules/x.js", says=REFUSED, write_set=("**",)),
    shared("no dependencies any more", "rm -rf .venv node_modules", says=REFUSED, write_set=("**",)),
    shared("a dependency by a second name", "ln .venv/lib/python3/site-packages/m.py src/m.py && echo evil >> src/m.py", says=REFUSED, write_set=("**",)),
    # ------------------------------------------------------------------ in the place of kept things
    replaced("a nested repository, behind a folder that was moved", "mv sub s2; mkdir sub; cp -r s2/.git sub/.git; " + FORGED, "sub/.git/config", repositories=("sub",)),
    replaced("the same two folders up", "mv g g2; mkdir -p g/sub; cp -r g2/sub/.git g/sub/.git; echo evil >> g/sub/.git/config", "g/sub/.git/config", repositories=("g/sub",)),
    replaced("two nested repositories exchanged", "mv sub x; mv other sub; mv x other", "sub/.git/config", repositories=("sub", "other"), files={"other/.git/config": "evil\n"}),
    replaced("a nested repository written directly", FORGED, "sub/.git/config", repositories=("sub",)),
    replaced("a repository in an ignored folder, written directly", "echo evil >> build/sub/.git/config", "build/sub/.git/config", repositories=("build/sub",), files={".gitignore": "build/\n"}),
    replaced("a repository in an ignored folder, behind a folder that was moved", "mv build/sub build/s2; mkdir build/sub; cp -r build/s2/.git build/sub/.git; echo evil >> build/sub/.git/config", "build/sub/.git/config", repositories=("build/sub",), files={".gitignore": "build/\n"}),
    replaced("two repositories in an ignored folder exchanged", "mv build/sub build/x; mv build/other build/sub; mv build/x build/other", "build/sub/.git/config", repositories=("build/sub", "build/other"), files={".gitignore": "build/\n", "build/other/.git/config": "evil\n"}),
    replaced("the file of a submodule, behind a folder that was moved", "mv sub s2; mkdir sub; echo 'gitdir: ../evil' > sub/.git", "sub/.git", files={"sub/.git": "gitdir: ../.git/modules/plain\n", "sub/a": "a\n"}),
    replaced("settings of an agent, behind a folder that was moved", "mv pkg p2; mkdir pkg; cp -r p2/.claude pkg/; echo evil > pkg/.claude/settings.json", "pkg/.claude/settings.json", files=AGENT),
    replaced("settings of an agent written directly, below the top", "echo evil > pkg/.claude/settings.json", "pkg/.claude/settings.json", files=AGENT),
    replaced("settings of an agent exchanged for others", "mv pkg p3; mv p2 pkg; mv p3 p2", "pkg/.claude/settings.json", files=AGENT | {"p2/.claude/settings.json": "evil\n"}),
    replaced("servers of an agent, behind a folder that was moved", "mv pkg p2; mkdir pkg; echo evil > pkg/.mcp.json", "pkg/.mcp.json", files=SERVERS),
    replaced("servers of an agent written directly, below the top", "echo evil > pkg/.mcp.json", "pkg/.mcp.json", files=SERVERS),
    replaced("a dependency folder, behind a folder that was moved", "mv sub s2; mkdir sub; cp -r s2/.venv sub/.venv; echo evil > sub/.venv/x.pth", "sub/.venv/x.pth", files=ENVIRONMENT, stays=True),
    replaced("modules, behind a folder that was moved", "mv pkg p2; cp -r p2 pkg; echo evil > pkg/node_modules/a/index.js", "pkg/node_modules/a/index.js", files={"pkg/node_modules/a/index.js": "plain\n"}, stays=True),
    replaced("an environment in an ignored folder, written directly", "echo evil > build/e/x.pth", "build/e/x.pth", files={".gitignore": "build/\n", "build/e/pyvenv.cfg": "home = /usr/bin\n"}),
    replaced("an environment in an ignored folder, behind a folder that was moved", "mv build/z build/y; mkdir build/z; cp -r build/y/e build/z/e; echo evil > build/z/e/x.pth", "build/z/e/x.pth", files={".gitignore": "build/\n", "build/z/e/pyvenv.cfg": "home = /usr/bin\n"}, stays=True),
    replaced("settings of an agent in a folder with the mark of an environment", "mkdir -p q/y/.claude; touch q/pyvenv.cfg; echo evil > q/y/.claude/settings.json", "q/y/.claude/settings.json"),
    replaced("a pipe in a folder with the mark of an environment", "mkdir q; touch q/pyvenv.cfg; mkfifo q/evil", "q/none", stays=True),
    # ------------------------------------------------------------------ where kept things lead
    replaced("roles that a link names", "echo evil > conf/x.toml", "conf/x.toml", files={"conf/x.toml": "plain\n"}, links={".fanfold/agents": "../conf"}),
    replaced("the same in a snapshot", "echo evil > conf/x.toml", "conf/x.toml", files={"conf/x.toml": "plain\n"}, links={".fanfold/agents": "../conf"}, isolated=True),
    replaced("recipes that a link names, in a snapshot", "echo evil > conf/x.yaml", "conf/x.yaml", files={"conf/x.yaml": "plain\n"}, links={".fanfold/workflows": "../conf"}, isolated=True),
    replaced("one role that a link names, in a snapshot", "echo evil > conf/x.toml", "conf/x.toml", files={"conf/x.toml": "plain\n"}, links={".fanfold/agents/x.toml": "../../conf/x.toml"}, isolated=True),
    replaced("servers that a link below the top names", "echo evil > conf/m.json", "conf/m.json", files={"conf/m.json": "plain\n"}, links={"pkg/.mcp.json": "../conf/m.json"}),
    replaced("the same in a snapshot, below the top", "echo evil > conf/m.json", "conf/m.json", files={"conf/m.json": "plain\n"}, links={"pkg/.mcp.json": "../conf/m.json"}, isolated=True),
    replaced("settings that a link names, behind a folder that was moved", "mv a b; mkdir -p a/conf; echo evil > a/conf/m.json", ".claude/m.json", files={"a/conf/m.json": "plain\n"}, links={".claude": "a/conf"}, stays=True),
    replaced("hooks of a repository that is kept in the project", "echo evil > real/hooks/pre-commit", "real/hooks/pre-commit", git_folder="real"),
    replaced("hooks of such a repository in a snapshot", "mkdir -p real/hooks; echo evil > real/hooks/pre-commit", "real/hooks/pre-commit", git_folder="real", isolated=True),
    replaced("another one in place of such a repository", "mv real r2; cp -r r2 real; echo evil > real/hooks/pre-commit", "real/hooks/pre-commit", git_folder="real"),
)  # fmt: skip
