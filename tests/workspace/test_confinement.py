"""Confinement: our own file operations stay beneath their folder, whatever is put in their way."""

import os
import threading
from pathlib import Path

import pytest

from fanfold.workspace import beneath
from fanfold.workspace.beneath import (
    PathProblem,
    ResolvedPath,
    open_folder,
    open_regular,
    open_top,
    resolve,
    walk_inside,
)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("CANARY")
    inside = tmp_path / "inside"
    (inside / "d/e").mkdir(parents=True)
    (inside / "d/e/f.txt").write_text("f")
    (inside / "up").symlink_to("..")
    (inside / "out").symlink_to("../outside")
    (inside / "absolute").symlink_to(tmp_path / "outside")
    (inside / "d/back").symlink_to("../d/e")
    (inside / "d/chain").symlink_to("../up/outside")
    (inside / "loop").symlink_to("loop")
    os.mkfifo(inside / "pipe")
    return inside


def read(top: Path, path: str) -> bytes:
    with resolve(str(top), path) as spot:
        handle = open_regular(spot, path)
        try:
            return os.read(handle, 100)
        finally:
            os.close(handle)


@pytest.mark.parametrize(
    "path",
    ["../outside/secret", "/etc/passwd", "d/../../outside/secret", "up/outside/secret", "out/secret",
     "absolute/secret", "d/chain/secret", "loop", "pipe", "a\0b", "x" * 5000, "d/e/f.txt/x", "d"],
)  # fmt: skip
def test_paths_that_lead_out_or_are_no_file_are_refused(top: Path, path: str):
    with pytest.raises(PathProblem):
        read(top, path)


def test_links_that_stay_inside_are_followed(top: Path):
    assert read(top, "d/back/f.txt") == b"f"


@pytest.mark.parametrize("kernel", [True, False], ids=["openat2", "walk"])
@pytest.mark.parametrize(
    "path", ["out", "absolute", "up/outside", "d/back", "d/chain", "../outside", "/etc", "pipe/x"]
)
def test_folders_are_opened_without_any_link(
    top: Path, path: str, kernel: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(beneath, "_openat2_works", kernel)
    handle = open_top(top)
    try:
        with pytest.raises((PathProblem, FileNotFoundError)):
            os.close(open_folder(handle, path))
        os.close(open_folder(handle, "d/e"))
    finally:
        os.close(handle)


@pytest.mark.parametrize("way", ["resolve", "open_folder", "walk_inside"])
def test_a_folder_swapped_for_a_link_never_leads_out(top: Path, way: str):
    (top / "swap").mkdir()
    (top / "swap/secret").write_text("inside")
    (top / "evil").symlink_to("../outside")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for one, other in (("swap", "aside"), ("evil", "swap"), ("swap", "evil"), ("aside", "swap")):
                os.rename(top / one, top / other)

    thread = threading.Thread(target=swap)
    thread.start()
    handle = open_top(top)
    found = 0
    try:
        tries = 0
        while tries < 3_000 or not found:  # a busy machine may let none through for long
            tries += 1
            assert tries < 3_000_000, "the race must let some reads through, or it proves nothing"
            try:
                if way == "resolve":
                    data = read(top, "swap/secret")
                else:
                    opener = open_folder if way == "open_folder" else lambda at, name: walk_inside(at, [name])
                    folder = opener(handle, "swap")
                    try:
                        inner = open_regular(ResolvedPath(folder, "secret", "swap/secret"), "swap/secret")
                        data = os.read(inner, 100)
                        os.close(inner)
                    finally:
                        os.close(folder)
            except (PathProblem, OSError):
                continue
            assert data == b"inside"
            found += 1
    finally:
        stop.set()
        thread.join()
        os.close(handle)
