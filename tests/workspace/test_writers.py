"""Twelve isolated writers on one repository leave what the same work one after the other leaves."""

import os
import threading
from pathlib import Path

import pytest

from fanfold.workspace.workspaces import Workspaces
from tests.workspace.trees import git, git_bytes, repository, tree, write

pytestmark = pytest.mark.full

LINES = [f"line {number}\n" for number in range(60)]


def work(number: int, top: Path) -> list[str]:
    """What a writer does, and its write-set: disjoint, nested, or overlapping with the others'."""
    if number < 4:  # disjoint
        write(top, {f"pkg{number}/main.py": f"rewritten by {number}\n", f"pkg{number}/new.py": "new\n"})
        os.unlink(top / f"pkg{number}/old.py")
        return [f"pkg{number}/**"]
    if number < 8:  # one inside the other's
        folder = "/".join(["nest"] * (number - 3))
        write(top, {f"{folder}/w{number}.txt": f"{number}\n"})
        return [f"{folder}/**"]
    # the same file, each another line
    lines = (top / "shared.txt").read_text().splitlines(keepends=True)
    lines[(number - 8) * 15] = f"by {number}\n"
    (top / "shared.txt").write_text("".join(lines))
    return ["shared.txt"]


def begin(folder: Path) -> Path:
    files: dict[str, str | bytes] = {"shared.txt": "".join(LINES), "README.md": "r\n"}
    for number in range(4):
        files |= {f"pkg{number}/main.py": "m\n", f"pkg{number}/old.py": "o\n"}
    return repository(folder, files)


def test_twelve_writers_equal_their_serial_result(tmp_path: Path, method: str):
    serial = begin(tmp_path / "serial")
    sets = [work(number, serial) for number in range(12)]
    project = begin(tmp_path / "project")
    write(project, {"uncommitted.txt": "mine\n"})
    before, status = git_bytes(project), git(project, "status", "--porcelain")
    spaces = Workspaces(project)
    opened = [spaces.open_child(f"w{number}", write_set=sets[number]) for number in range(12)]
    failed: list[object] = []

    def write_and_merge(number: int) -> None:
        work(number, opened[number].path)
        merged = spaces.merge(opened[number], sets[number])
        if not merged.ok:
            failed.append(merged)
        spaces.close(opened[number])

    threads = [threading.Thread(target=write_and_merge, args=[number]) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert tree(project) == tree(serial) | {"uncommitted.txt": ("file", b"mine\n")}
    assert git_bytes(project) == before
    shown = set(git(project, "status", "--porcelain", "-uall").splitlines()) - set(status.splitlines())
    assert shown == set(git(serial, "status", "--porcelain", "-uall").splitlines())
    assert os.listdir(project / ".fanfold/subagents") == [".gitignore"]
