"""Kill a merge before each system call that changes the parent or the journal, recover, and look at the tree.

Run as a program: `python killing.py FOLDER SCENARIO WHERE`. It forks once per call, which needs a process
without threads. WHERE is one of

    some     every third of the calls that touch the parent's own files, by the seed of the tests; the commit
    every    every call from the first of the journal to the end; and every call of the recoveries that have
             the most to do, from right before the commit and from right after it
    all      every call of the merge from its very beginning, and every call of the recovery from each of them
    none     nothing is killed: the calls of a merge are listed

Prints one JSON line; `why_not` in it says why nothing can be killed on this machine.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fanfold.workspace import beneath, children
from fanfold.workspace.merge_journal import MergeJournal
from fanfold.workspace.workspaces import Workspaces
from tests.sampling import SEED
from tests.workspace.tracing import Call, begin, calls_of, trace, why_not
from tests.workspace.trees import git_bytes, repository, tree, write

LINES = "".join(f"line {number}\n" for number in range(20))
FILES: dict[str, str | bytes] = {
    "a.txt": "a", "b.txt": "b", "d/c.txt": "c", "d/e/f.txt": "f", "g": "file", "h/i/j.txt": "j",
    "only/k.txt": "k", "tool": "t", "was-tool": "t", "both.txt": LINES, "moved.txt": LINES + "m\n",
    ".gitignore": "*.log\n", "n/o.txt": "o", "n/stays.log": "ignored, so it stays",
}  # fmt: skip
EXACT_MODES = {"a.txt": 0o640, "b.txt": 0o600, "d/e": 0o750, "was-tool": 0o755, "d/c.txt": 0o664}


def plant(project: Path) -> None:
    """A project with every kind of thing that a merge may replace."""
    repository(project, FILES)
    for path, mode in EXACT_MODES.items():
        (project / path).chmod(mode)
    for name, target in (("link", "a.txt"), ("link-gone", "b.txt"), ("link-file", "g"), ("file-link", "g")):
        (project / name).symlink_to(target)
    (project / "file-link").unlink()
    write(project, {"file-link": "a file yet"})
    for folder in ("hollow/inner", "void"):
        (project / folder).mkdir(parents=True)
    (project / "hollow").chmod(0o711)


def change(top: Path) -> None:
    """Content, modes, links, files for links and links for files, folders that come, go, fill and empty."""
    write(top, {"a.txt": "A", "new/deep/n.txt": "n", "d/c.txt": "C", "g2": "x", "void/full.txt": "v"})
    for path in ("b.txt", "d/e/f.txt", "only/k.txt", "n/o.txt", "link-gone"):
        os.unlink(top / path)
    os.rmdir(top / "d/e")
    shutil.rmtree(top / "hollow")
    os.chmod(top / "tool", 0o755)
    os.chmod(top / "was-tool", 0o644)
    for name, target in (("link", "d/c.txt"), ("file-link", "a.txt"), ("link-new", "tool")):
        (top / name).unlink(missing_ok=True)
        os.symlink(target, top / name)
    os.unlink(top / "link-file")
    write(top, {"link-file": "a file now"})
    os.mkdir(top / "empty")


def nothing(_: Path) -> None:
    pass


def change_more(top: Path) -> None:
    """That, and what git has to decide about: files that become folders, folders that become files, and
    lines of files that the user changes elsewhere.
    """
    change(top)
    os.unlink(top / "g")
    write(top, {"g/now/a/folder": "x"})
    shutil.rmtree(top / "h")
    write(top, {"h": "now a file"})
    for path in ("both.txt", "moved.txt"):
        write(top, {path: (top / path).read_text().replace("line 17\n", "theirs\n")})


def meddle(project: Path) -> None:
    """What the user does while the child works: git has to bring both together."""
    write(project, {"both.txt": LINES.replace("line 2\n", "ours\n")})
    os.rename(project / "moved.txt", project / "elsewhere.txt")


class Scenario(NamedTuple):
    change: Callable[[Path], None]
    meanwhile: Callable[[Path], None] = nothing
    exchanges: bool = True
    """Whether the file system can exchange two names."""
    undoes: bool = False
    """The merge was done, and what is killed is taking it back."""


SCENARIOS = {
    "alone": Scenario(change),
    "three-way": Scenario(change_more, meddle),
    "no-exchange": Scenario(change_more, meddle, exchanges=False),
    "undo": Scenario(change_more, meddle, undoes=True),
}


def look(top: Path) -> dict[str, tuple[int, bytes]]:
    """Everything in a project but git's and ours: exact modes, and contents."""
    found: dict[str, tuple[int, bytes]] = {}
    for here, folders, files in os.walk(top):
        folders[:] = [name for name in folders if name not in (".git", ".fanfold")]
        for name in (*folders, *files):
            path = os.path.join(here, name)
            mode = os.lstat(path).st_mode
            content = b""
            if stat.S_ISLNK(mode):
                content = os.fsencode(os.readlink(path))
            elif stat.S_ISREG(mode):
                content = Path(path).read_bytes()
            found[os.path.relpath(path, top)] = (mode, content)
    return found


def at_call(number: int) -> Callable[[object], bool]:
    """Says so of the n-th call."""
    left = [number]

    def judge(_: object) -> bool:
        left[0] -= 1
        return left[0] == 0

    return judge


class Stage:
    """One project, planted anew whenever a merge was done in it."""

    def __init__(self, folder: Path, scenario: Scenario, *, everywhere: bool) -> None:
        self.project = folder / "project"
        self._template = folder / "template"
        self._scenario = scenario
        self._everywhere = everywhere
        plant(self._template)
        self.git = git_bytes(self._template)
        self.seen = {"old": 0, "new": 0, "kills": 0, "second kills": 0}
        self._is_old = False
        self._begin()
        self.old = look(self.project)
        self.calls = calls_of(self._merge)
        self.new = look(self.project)
        self._is_old = False

    def _begin(self) -> None:
        if self._is_old and self._scenario.undoes:
            return
        if self._is_old:
            objects = self.project / ".fanfold/workspace/store.git/objects"
            shutil.rmtree(objects)  # what is kept there already would not be written again
            objects.mkdir()
            return
        shutil.rmtree(self.project, ignore_errors=True)
        shutil.copytree(self._template, self.project, symlinks=True)
        self.spaces = Workspaces(self.project)
        self.child = self.spaces.open_child("s1")
        self._scenario.change(self.child.path)
        self._scenario.meanwhile(self.project)
        if self._scenario.undoes:
            self.before = look(self.project)
            self._receipt = self.spaces.merge(self.child).receipt
        self._is_old = True

    def _merge(self) -> None:
        """In a fork. What comes before the journal writes to the private store at most."""
        if self._everywhere:
            begin()
        else:
            real = MergeJournal.apply

            def apply(*arguments: Any) -> None:
                begin()
                real(*arguments)

            setattr(MergeJournal, "apply", apply)  # noqa: B010 - of this fork only, and mypy need not know
        self._do(self.spaces)

    def _do(self, spaces: Workspaces) -> None:
        if self._scenario.undoes:
            assert not spaces.undo([self._receipt]).blocked
        else:
            assert spaces.merge(self.child).ok

    def _recover(self) -> None:
        begin()
        Workspaces(self.project).recover()

    def kill_merge(self, number: int) -> None:
        self._begin()
        assert trace(self._merge, at_call(number)), "a merge makes the same calls each time"

    def kill(self, number: int) -> None:
        """Kill a merge before a call, and see that the tree is old or new; by turns, a process that opens the
        project finds it so and one that had it open all along.
        """
        self.kill_merge(number)
        self.seen["kills"] += 1
        if number % 2:
            bystander = self.spaces.open_child("bystander")
            assert look(self.project) in (self.old, self.new), "a snapshot of half a merge"
            seen = tree(bystander.path)
            assert {path: state for path, state in tree(self.project).items() if path in seen} == seen
            self.spaces.close(bystander)
        self.check()

    def kill_recoveries(self, number: int) -> None:
        """Kill the recovery of a merge that died at that call before each call of its own."""
        second = 0
        while True:
            second += 1
            self.kill_merge(number)
            if not trace(self._recover, at_call(second)):
                self.check()
                break
            self.seen["second kills"] += 1
            self.check()

    def check(self) -> None:
        """Open the project as the next process would, and look."""
        assert Workspaces(self.project).recover().left == ()
        now = look(self.project)
        assert now in (self.old, self.new), _difference(now, self.old) + _difference(now, self.new)
        self._is_old = now == self.old
        self.seen["old" if self._is_old else "new"] += 1
        assert os.listdir(self.project / ".fanfold/workspace/journal") == []
        assert git_bytes(self.project) == self.git
        if not self._is_old:
            self._merge_again()

    def _merge_again(self) -> None:
        """It was done, so doing it again must do nothing, whoever asks."""
        write(self.project, {"a.txt": "later work"})
        self._do(Workspaces(self.project))
        assert (self.project / "a.txt").read_text() == "later work"

    def finish(self) -> None:
        """Let the merge live at last: whatever was undone so often must come out whole."""
        self._begin()
        self._do(Workspaces(self.project))
        assert look(self.project) == self.new
        if self._scenario.undoes:
            assert self.new == self.before, _difference(self.new, self.before)
        self._merge_again()


def _difference(one: dict[str, Any], other: dict[str, Any]) -> list[Any]:
    paths = sorted(path for path in one.keys() | other.keys() if one.get(path) != other.get(path))
    return [(path, one.get(path), other.get(path)) for path in paths]


def commits(call: Call) -> bool:
    """Whether this is the call that makes a merge done."""
    return call.name.startswith("rename") and call.paths[-1].endswith("/done")


def touches(call: Call, project: Path) -> bool:
    """Whether a call changes the parent itself, which is all but what is ours."""
    here, ours = f"{project}/", f"{project}/.fanfold/"
    return any(f"{path}/".startswith(here) and not path.startswith(ours) for path in call.paths)


def refuse(*_: object) -> None:
    raise OSError(22, "no such flag here")


def main(folder: Path, scenario: Scenario, where: str) -> dict[str, Any]:
    children._failed.update({"overlay", "overlay-userns"})  # a fork must not share a mount
    if not scenario.exchanges:
        setattr(beneath, "renameat2", refuse)  # noqa: B010 - mypy need not know
    stage = Stage(folder, scenario, everywhere=where == "all")
    if where == "none":
        return {"calls": [[*call, touches(call, stage.project)] for call in stage.calls]}
    (commit,) = [number for number, call in enumerate(stage.calls, 1) if commits(call)]
    for number, call in enumerate(stage.calls, 1):
        around = number in (commit, commit + 1)
        is_drawn = number % 3 == int(SEED) % 3 and touches(call, stage.project)
        if where != "some" or around or is_drawn:
            stage.kill(number)
        if where == "all" or (where == "every" and around):
            stage.kill_recoveries(number)
    stage.finish()
    return stage.seen | {"calls": sorted({call.name for call in stage.calls})}


if __name__ == "__main__":
    if why := why_not():
        said: dict[str, Any] = {"why_not": why}
    else:
        said = main(Path(sys.argv[1]), SCENARIOS[sys.argv[2]], sys.argv[3])
    sys.stdout.write(json.dumps(said))
