"""Every way to make a child that this machine has, one after the other."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanfold.workspace import beneath, changes, children
from fanfold.workspace.workspaces import Workspaces
from tests.workspace.trees import METHODS


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Children are made in this way, or the test is skipped because the machine cannot."""
    wanted: str = request.param
    if wanted == "overlay" and os.geteuid() != 0:
        pytest.skip("needs root: sudo make test-full")
    monkeypatch.setattr(children, "_failed", set(METHODS[: METHODS.index(wanted)]))
    return wanted


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody cuts the power here. What is forced to disk, and when, `test_journal` sees from outside."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(beneath, "sync_file_system", lambda _: None)


@pytest.fixture(autouse=True)
def no_mount_left(tmp_path: Path) -> Iterator[None]:
    yield
    left = changes.mounts_below(tmp_path)
    for point in left:
        changes.lift(Path(point))
    assert not left, "every mount is taken away"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path / "project"


def made_by(spaces: Workspaces, session: str, method: str) -> None:
    """Skip when the machine cannot make children in the way asked for."""
    child = spaces.open_child(session)
    try:
        if child.method != method and not (child.method == "reflink" and method == "copy"):
            pytest.skip(f"needs a file system for {method}: make test-full on one")
    finally:
        spaces.close(child)
