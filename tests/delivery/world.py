"""A repository with a remote, a run that changes it, and a stand-in for `gh` that keeps what it was asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.work import PATIENCE_S

RECIPE = """\
name: deliver
steps:
  - {id: fix, agent: worker, write_set: ["*.txt"], prompt: fix}
  - {id: more, agent: worker, write_set: ["*.txt", ".github/**"], prompt: more, depends_on: fix}
  - id: pr
    depends_on: more
    deliver:
      branch: fix/owls
      message: "Fix owls\\n\\nAll of them."
      pull_request: {title: Fix owls, body: "They were broken.", base: main}
output: steps.pr.output
"""
SCRIPT = """\
steps:
  fix: {output: done, writes: {"f.txt": "a\\nB\\nc\\nd\\ne\\nmine\\n"}}
  more: {output: done, writes: {"g.txt": "new\\n", ".github/workflows/ci.yml": "on: push\\n"}}
"""
GH = """\
#!{python}
import json, os, sys
folder = {folder!r}
with open(folder + "/calls.jsonl", "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
if os.path.exists(folder + "/signed-out"):
    sys.stderr.write("To get started with GitHub CLI, please run:  gh auth login\\n")
    sys.exit(4)
state = folder + "/requests.json"
made = json.load(open(state)) if os.path.exists(state) else []
words = sys.argv[1:]
def value(name):
    return words[words.index(name) + 1] if name in words else ""
if words[:2] == ["pr", "list"]:
    print(json.dumps([one for one in made if one["head"] == value("--head")]))
elif words[:2] == ["pr", "create"]:
    one = {{"head": value("--head"), "base": value("--base"), "title": value("--title"), "state": "OPEN",
           "body": sys.stdin.read(), "headRefOid": "", "url": f"https://example.org/pr/{{len(made) + 1}}"}}
    with open(state + ".new", "w") as out:
        json.dump([*made, one], out)
    os.replace(state + ".new", state)
    print(one["url"])
else:
    sys.exit(2)
"""
KILLER = """\
#!/bin/sh
exec 9> {count}.lock; flock 9  # calls may be made at the same time
n=$(($(cat {count} 2>/dev/null || echo 0) + 1))
echo $n > {count}
exec 9>&-
if [ "$n" = "{at}" ] && [ {when} = before ]; then kill -9 $PPID; exit 1; fi
{real} "$@"
code=$?
if [ "$n" = "{at}" ] && [ {when} = after ]; then kill -9 $PPID; exit 1; fi
exit $code
"""


class World:
    """A project, its remote, the user's home and programs, all below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = folder / "project"
        self.remote = folder / "remote.git"
        self.programs = folder / "bin"
        self.gh = folder / "gh-state"
        for made in (self.project, self.programs, self.gh, folder / "home"):
            made.mkdir(parents=True)
        self.environment = {
            **os.environ,
            "HOME": str(folder / "home"),
            "FANFOLD_HOME": str(folder / "home/.fanfold"),
            "PATH": f"{self.programs}:{os.environ['PATH']}",
        }
        self._write(self.programs / "gh", GH.format(python=sys.executable, folder=str(self.gh)))
        self.git("config", "--global", "user.name", "Ann")
        self.git("config", "--global", "user.email", "ann@example.org")
        self.git("init", "-q", "-b", "main")
        (self.project / "f.txt").write_text("a\nb\nc\nd\ne\n")
        self.git("add", "-A")
        self.git("commit", "-qm", "first")
        self.git("init", "-q", "--bare", str(self.remote))
        self.git("remote", "add", "origin", str(self.remote))
        self.git("push", "-q", "origin", "main")
        self.git("fetch", "-q", "origin")
        (self.project / "f.txt").write_text("a\nb\nc\nd\ne\nmine\n")  # not committed, and never delivered
        (self.project / "d.yaml").write_text(RECIPE)
        (self.project / "s.yaml").write_text(SCRIPT)

    @staticmethod
    def _write(file: Path, text: str) -> None:
        file.write_text(text)
        file.chmod(0o755)

    def die_at(self, call: int, when: str) -> None:
        """Have the process die at a call of git or gh, before or after it did its work."""
        for name in ("git", "gh"):
            real = self.programs / f"{name}.real"
            if not real.exists():
                found = self.programs / name
                target = found if found.exists() else Path(self._which(name))
                if target == found:
                    found.rename(real)
                else:
                    real.symlink_to(target)
            text = KILLER.format(count=self.folder / "count", at=call, when=when, real=real)
            self._write(self.programs / name, text)

    def _which(self, name: str) -> str:
        import shutil

        found = shutil.which(name)
        assert found is not None
        return found

    def allow(self) -> None:
        """The user's own word that deliveries need no asking."""
        file = self.folder / "home/.fanfold/config.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text("[deliver]\nallow = true\n")

    def git(self, *words: str) -> str:
        real = self.programs / "git.real"
        program = str(real) if real.exists() else "git"
        done = subprocess.run(
            [program, *words],
            cwd=self.project,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def fanfold(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fanfold.cli.main", *words]
        return subprocess.run(
            command, cwd=self.project, env=self.environment, capture_output=True, text=True, check=False,
            timeout=PATIENCE_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.fanfold("run", "d.yaml", "--script", "s.yaml", "--yes", *words)

    def document(self) -> Any:
        return json.loads(self.fanfold("inspect", "last", "--json").stdout)

    # What came of it

    def requests(self) -> list[dict[str, str]]:
        file = self.gh / "requests.json"
        found: list[dict[str, str]] = json.loads(file.read_text()) if file.exists() else []
        return found

    def check_delivered_once(self) -> None:
        """One commit on one branch, here and there, one pull request, and nothing else is changed."""
        assert self.git("log", "--format=%s", "main..fix/owls").splitlines() == ["Fix owls"]
        branches = self.git("for-each-ref", "--format=%(refname)", "refs/heads").split()
        assert branches == ["refs/heads/fix/owls", "refs/heads/main"]
        there = self.git("ls-remote", "--heads", "origin").split()
        assert there[1::2] == ["refs/heads/fix/owls", "refs/heads/main"]
        assert there[0] == self.git("rev-parse", "fix/owls").strip()
        assert [(one["head"], one["base"]) for one in self.requests()] == [("fix/owls", "main")]
        assert self.git("show", "fix/owls:f.txt") == "a\nB\nc\nd\ne\n"
        assert self.git("symbolic-ref", "HEAD").strip() == "refs/heads/main"
        assert (self.project / "f.txt").read_text() == "a\nB\nc\nd\ne\nmine\n"
        assert self.git("diff", "--cached", "--name-only") == ""
        self.git("fsck", "--no-dangling")
