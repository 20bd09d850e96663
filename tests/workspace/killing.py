"""Kill a merge before each call that changes anything, recover, and say what the tree looked like.

Run as a program: `python killing.py FOLDER [again]`. It forks once per call, which needs a process without
threads; with `again`, the recovery is killed before each of its own calls too. Prints one JSON line.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from fanfold.workspace import children, syscalls
from fanfold.workspace.workspaces import Workspaces
from tests.workspace.trees import repository, tree, write

FILES: dict[str, str | bytes] = {
    "a.txt": "a",
    "b.txt": "b",
    "d/c.txt": "c",
    "d/e/f.txt": "f",
    "g": "file",
    "tool": "t",
}
CALLS = ("rename", "mkdir", "rmdir", "unlink", "link", "symlink", "chmod", "chown", "fsync", "write", "open")


def change(top: Path) -> None:
    write(top, {"a.txt": "A", "new/deep/n.txt": "n", "d/c.txt": "C", "g2": "x"})
    os.unlink(top / "b.txt")
    os.unlink(top / "d/e/f.txt")
    os.rmdir(top / "d/e")
    os.chmod(top / "tool", 0o755)
    os.symlink("a.txt", top / "link")
    os.mkdir(top / "hollow")


def die_at(number: int) -> None:
    """Have this process killed before its n-th call that changes something."""
    left = [number]

    def counting(real: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if real is not real_open or arguments[1] & os.O_CREAT:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        return call

    real_open = os.open
    for name in CALLS:
        setattr(os, name, counting(getattr(os, name)))
    syscalls.renameat2 = counting(syscalls.renameat2)


def killed(work: Any) -> bool:
    """Do something in a fork; whether it was killed."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - a fork must not go on as its parent
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return os.WIFSIGNALED(status)


def main(folder: Path, again: bool) -> None:
    children._failed.update({"overlay", "overlay-userns"})  # a fork must not share a mount
    project = repository(folder / "project", FILES)
    old = tree(project)
    seen = {"old": 0, "new": 0, "kills": 0, "second kills": 0}
    number = 0
    while True:
        number += 1
        shutil.rmtree(project)
        repository(project, FILES)
        spaces = Workspaces(project)
        child = spaces.open_child("s1")
        change(child.path)
        new = tree(child.path)

        def merge(number: int = number, spaces: Workspaces = spaces, child: children.Child = child) -> None:
            die_at(number)
            assert spaces.merge(child).ok

        if not killed(merge):
            break
        seen["kills"] += 1
        second = 0
        while again:
            second += 1

            def recover(second: int = second) -> None:
                die_at(second)
                Workspaces(project).recover()

            if not killed(recover):
                break
            seen["second kills"] += 1
        found = Workspaces(project).recover()
        assert found.left == (), found
        now = tree(project)
        assert now in (old, new), {path for path in now.keys() | old.keys() if now.get(path) != old.get(path)}
        seen["old" if now == old else "new"] += 1
        if now == new:  # it was done, so merging again must do nothing, whoever asks
            write(project, {"a.txt": "later work"})
            assert Workspaces(project).merge(child).ok
            assert (project / "a.txt").read_text() == "later work"
        assert os.listdir(project / ".fanfold/workspace/journal") == []
    assert tree(project) == new
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), len(sys.argv) > 2)
