"""Homes of agents that are programs: who goes on gets a copy, whatever the program left there."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanfold.workspace import layout as trash
from fanfold.workspace.children import MAX_DEPTH, is_lent_by_another, note_lent, open_home
from fanfold.workspace.layout import Layout

pytestmark = pytest.mark.full


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    """A project's folders; what is deep in them is deleted by who can, since pytest itself cannot."""
    made = Layout(tmp_path)
    for folder in (made.homes, made.trash):
        folder.mkdir(parents=True)
    yield made
    subprocess.run(["rm", "-rf", str(made.homes), str(made.trash)], check=True)


def put_folders_into_folders(top: Path) -> None:
    """Deeper than any path is long, and than calls may be nested."""
    deep = os.open(top, os.O_RDONLY)
    for _ in range(2_500):
        os.mkdir("d", dir_fd=deep)
        below = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)


def test_a_copy_has_what_can_be_copied_and_follows_no_link(layout: Layout) -> None:
    home = open_home(layout, "s-one", "run")
    (home / "state").mkdir()
    (home / "state" / "said.jsonl").write_text("said before")
    os.utime(home / "state" / "said.jsonl", (1_000, 1_000))
    (home / "tool").write_text("#!/bin/sh\n")
    (home / "tool").chmod(0o755)
    (home / "outside").symlink_to("/etc")
    (home / "round").symlink_to("round")
    os.mkfifo(home / "pipe")
    with socket.socket(socket.AF_UNIX) as one, contextlib.chdir(home):
        one.bind("socket")  # a whole path may be too long for one
    put_folders_into_folders(home)
    copy = open_home(layout, "s-two", "run", "s-one")
    assert sorted(os.listdir(copy)) == ["d", "outside", "round", "state", "tool"]
    said = copy / "state" / "said.jsonl"
    assert (said.read_text(), said.stat().st_mtime) == ("said before", 1_000)
    assert os.access(copy / "tool", os.X_OK)
    assert os.readlink(copy / "outside") == "/etc"
    levels = [path for path, _, _ in os.walk(copy / "d")]
    assert len(levels) == MAX_DEPTH
    said.write_text("said later")
    assert (home / "state" / "said.jsonl").read_text() == "said before"


def test_a_home_is_deleted_however_deep_its_program_dug(layout: Layout) -> None:
    home = open_home(layout, "s-one", "run")
    put_folders_into_folders(home)
    trash.throw_away(home.parent, layout.trash)
    assert trash.empty(layout.trash)
    assert list(layout.trash.iterdir()) == []


LENDING = """\
import sys
from pathlib import Path
from fanfold.workspace.children import note_lent
note_lent(Path(sys.argv[1]), ["login"])
print("lent", flush=True)
sys.stdin.read()
"""


def test_a_suspended_process_learns_of_loans_by_live_processes(
    layout: Layout,
) -> None:
    home = open_home(layout, "s-one", "run")
    assert not is_lent_by_another(home)
    note_lent(home, ["login"])
    assert not is_lent_by_another(home)
    command = [sys.executable, "-c", LENDING, str(home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"lent\n"
        assert is_lent_by_another(home)
    assert not is_lent_by_another(home)
