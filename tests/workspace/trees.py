"""Projects for the tests of workspaces, and a way to compare trees to the last byte."""

import os
import stat
import subprocess
from pathlib import Path

METHODS = ("overlay", "overlay-userns", "copy")

GIT = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "protocol.file.allow",
    "GIT_CONFIG_VALUE_0": "always",
    "GIT_CONFIG_KEY_1": "maintenance.auto",  # newer gits tidy up behind our back, with a lock
    "GIT_CONFIG_VALUE_1": "false",
}


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | GIT).stdout


def write(top: Path, files: dict[str, str | bytes]) -> None:
    for path, content in files.items():
        file = top / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)


def repository(folder: Path, files: dict[str, str | bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main")
    write(folder, files)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "begin", "--allow-empty")
    return folder


def tree(top: Path, *, without: tuple[str, ...] = (".git", ".fanfold")) -> dict[str, tuple[str, bytes]]:
    """Everything below a folder: kind and content, by path."""
    found: dict[str, tuple[str, bytes]] = {}
    for here, folders, files in os.walk(top):
        folders[:] = [name for name in folders if name not in without]
        for name in (*folders, *files):
            if name in without:
                continue
            path = Path(here) / name
            found[str(path.relative_to(top))] = held(path)
    return found


def held(path: Path) -> tuple[str, bytes]:
    """What is at a path: kind and content."""
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return "link", os.fsencode(os.readlink(path))
    if stat.S_ISDIR(mode):
        return "folder", b""
    return "program" if mode & 0o100 else "file", path.read_bytes()


def git_bytes(project: Path) -> dict[str, tuple[str, bytes]]:
    """The user's repository, byte by byte."""
    return tree(project / ".git", without=())
