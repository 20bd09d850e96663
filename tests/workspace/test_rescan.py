"""A snapshot that goes by what it knows is the snapshot a full walk would make, whatever was done in between.

Random sequences of edits: `make hostile` tries many, the tests a few; a failure names its seed.
"""

import os
import random
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fanfold.workspace import bases
from fanfold.workspace.beneath import Manifest, open_top
from fanfold.workspace.children import Child
from fanfold.workspace.ignored import Ignoring
from fanfold.workspace.scan import Rescan, SnapshotLimits, scan_asking
from fanfold.workspace.workspaces import Workspaces
from tests.sampling import SEED
from tests.workspace.trees import git, held, repository, tree, write

pytestmark = pytest.mark.full

SEEDS = (
    range(60)
    if os.environ.get("HOSTILE") == "all"
    else (13, 40, *((2 * int(SEED) + n) % 60 for n in range(2)))
)
"""13 and 40 found something once: a mark that counts before the one that was known."""
EDITS = 40
NAMES = (
    "a.txt",
    "b.log",
    "c.py",
    "run.sh",
    "build",
    "keep.log",
    "ünï.txt",
    "node_modules",
    "odd",
    "Cargo.toml",
)
FOLDERS = ("", "src", "src/deep", "lib", "out", "new", "new/inner", "vendor")


class Editor:
    """Does to a project what people and programs do to one."""

    def __init__(self, project: Path, chance: random.Random) -> None:
        self.project = project
        self.chance = chance
        self.done: list[str] = []

    def edit(self) -> None:
        deeds: list[Callable[[Path], None]] = [
            self.write, self.write, self.write, self.write_in_place, self.write_hidden, self.touch,
            self.remove, self.rename, self.rename, self.change_mode, self.link, self.make_folder,
            self.become_folder,
            self.ignore, self.mark, self.unmark, self.pipe, self.repeat, self.index,
        ]  # fmt: skip
        deed = self.chance.choice(deeds)
        here = self.project / self.chance.choice(FOLDERS)
        path = here / self.chance.choice(NAMES)
        self.done.append(f"{deed.__name__} {path.relative_to(self.project)}")
        if here.is_symlink() or (here.exists() and not here.is_dir()):
            return
        deed(path)

    def _some(self) -> bytes:
        return bytes(self.chance.choice(b"xyz") for _ in range(self.chance.choice((0, 4, 4, 4, 9))))

    def _any_file(self) -> Path | None:
        found = [path for path in self._everything() if stat.S_ISREG(path.lstat().st_mode)]
        return self.chance.choice(found) if found else None

    def _everything(self) -> list[Path]:
        found: list[Path] = []
        for here, folders, files in os.walk(self.project):
            folders[:] = [name for name in folders if name not in (".git", ".fanfold")]
            found += [Path(here, name) for name in (*folders, *files)]
        return sorted(found)

    def write(self, path: Path) -> None:
        """As most editors do: another file takes the name."""
        if path.is_dir() and not path.is_symlink():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name("beside.tmp")
        beside.write_bytes(self._some())
        os.replace(beside, path)

    def write_in_place(self, _: Path) -> None:
        """The same inode, the same size more often than not."""
        file = self._any_file()
        if file is not None:
            with file.open("r+b") as opened:
                opened.write(self._some()[: file.stat().st_size or 4])

    def write_hidden(self, _: Path) -> None:
        """The same inode, size and time of change: what only the change time tells."""
        file = self._any_file()
        if file is not None:
            before = file.stat()
            with file.open("r+b") as opened:
                opened.write(bytes(reversed(file.read_bytes())))
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    def touch(self, _: Path) -> None:
        file = self._any_file()
        if file is not None:
            os.utime(file, ns=(0, self.chance.choice((0, 10**18, 3 * 10**18))))

    def remove(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def rename(self, path: Path) -> None:
        """A file, or a folder with all that is in it."""
        others = [one for one in self._everything() if one not in (path, *path.parents)]
        if not others or os.path.lexists(path):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        os.rename(self.chance.choice(others), path)

    def change_mode(self, _: Path) -> None:
        file = self._any_file()
        if file is not None:
            file.chmod(self.chance.choice((0o644, 0o755, 0o600)))

    def link(self, path: Path) -> None:
        self.remove(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(self.chance.choice(("a.txt", "../src", "nowhere")))

    def make_folder(self, path: Path) -> None:
        if not os.path.lexists(path):
            path.mkdir(parents=True)

    def become_folder(self, path: Path) -> None:
        """A file becomes a folder, a folder a file."""
        was_folder = path.is_dir() and not path.is_symlink()
        self.remove(path)
        if was_folder:
            self.write(path)
        else:
            write(path, {"inside.txt": self._some()})

    def ignore(self, path: Path) -> None:
        rules = path.with_name(".gitignore")
        rules.parent.mkdir(parents=True, exist_ok=True)
        if rules.exists() and self.chance.random() < 0.4:
            rules.unlink()
        else:
            rules.write_text(
                self.chance.choice(("*.log\n", "*.log\n!keep.log\n", "build/\n", "deep/\n", "c.*\n", "new\n"))
            )

    def mark(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(self.chance.choice(("pyvenv.cfg", "CACHEDIR.TAG"))).write_text("")

    def unmark(self, _: Path) -> None:
        for path in self._everything():
            if path.name in ("pyvenv.cfg", "CACHEDIR.TAG"):
                path.unlink()

    def pipe(self, path: Path) -> None:
        if not os.path.lexists(path) and path.parent.is_dir():
            os.mkfifo(path)
        elif os.path.lexists(path) and stat.S_ISFIFO(path.lstat().st_mode):
            path.unlink()
            path.write_bytes(self._some())

    def repeat(self, _: Path) -> None:
        """The same bytes again."""
        file = self._any_file()
        if file is not None:
            file.write_bytes(file.read_bytes())

    def index(self, _: Path) -> None:
        for pipe in self._everything():
            if stat.S_ISFIFO(pipe.lstat().st_mode):
                pipe.unlink()  # git would not add it
        git(self.project, "add", "-A", "--", ".")


def walk(project: Path) -> Manifest:
    """The project as a walk sees it that knows nothing."""
    top = open_top(project)
    try:
        return scan_asking(top, Ignoring(project, project / ".fanfold/workspace/store.git"), SnapshotLimits())
    finally:
        os.close(top)


def check(project: Path, child: Child, told: str) -> None:
    """The snapshot has what a full walk finds, with the content that the project has."""
    now, known = walk(project), child.base.manifest
    assert known.files.keys() == now.files.keys(), told
    assert (known.folders, known.points) == (now.folders, now.points), told
    assert {path: entry.git_mode for path, entry in known.files.items()} == {
        path: entry.git_mode for path, entry in now.files.items()
    }, told
    own = (".git", ".fanfold")
    places = {path: ("folder", b"") for path in now.points if path.rpartition("/")[2] not in own}
    truth = {path: held(project / path) for path in (*now.files, *now.folders)}
    assert tree(child.path) == truth | places, told


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("in_git", [True, False])
def test_a_snapshot_by_memory_is_the_snapshot_of_a_full_walk(project: Path, seed: int, in_git: bool):
    files: dict[str, str | bytes] = {
        "src/a.txt": "aaaa", "src/deep/b.log": "bbbb", "lib/c.py": "cccc", "out/keep.log": "k",
        "vendor/run.sh": "#!",
    }  # fmt: skip
    if in_git:
        repository(project, files | {".gitignore": "*.tmp\n"})
    else:
        write(project, files)
    editor = Editor(project, random.Random(seed))
    if not in_git:
        editor.index = editor.repeat  # type: ignore[method-assign] # there is no index
    spaces = Workspaces(project)
    for number in range(EDITS):
        for _ in range(editor.chance.choice((0, 1, 1, 2, 5))):
            editor.edit()
        # Opened anew from time to time: then what is known comes from the disk.
        if number % 5 == 0:
            spaces = Workspaces(project)
        child = spaces.open_child("s1")
        try:
            check(project, child, f"seed {seed}: {'; '.join(editor.done)}")
        finally:
            spaces.close(child, keep=editor.chance.random() < 0.2)


def test_a_shortcut_that_sees_nothing_is_noticed(project: Path, monkeypatch: pytest.MonkeyPatch):
    repository(project, {"a.txt": "a"})
    spaces = Workspaces(project)
    spaces.close(spaces.open_child("s1"))
    monkeypatch.setattr(bases, "rescan", lambda _, known, *__: Rescan(known, set()))
    (project / "a.txt").write_text("b")
    child = spaces.open_child("s2")
    with pytest.raises(AssertionError, match="planted"):
        check(project, child, "planted")
    spaces.close(child)


def test_after_the_clock_was_set_back_nothing_is_taken_on_trust(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    repository(project, {"a.txt": "aaaa", "b.txt": "bbbb"})
    spaces = Workspaces(project)
    spaces.close(spaces.open_child("s1"))
    # What a write at a time that came twice looks like: the entry is the same, the content is not.
    for copy in (project / ".fanfold/workspace/bases").rglob("a.txt"):
        copy.write_bytes(b"AAAA")
    an_hour_ns, now = 3_600 * 10**9, time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() - an_hour_ns)
    child = spaces.open_child("s2")
    assert (child.path / "a.txt").read_text() == "aaaa"
    spaces.close(child)
