"""A project of its own for every test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.world import Project, clean_environment


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """An empty project; the user's own files and keys are out of reach."""
    folder = tmp_path / "project"
    folder.mkdir()
    made = Project(folder, clean_environment(tmp_path / "home"))
    yield made
    made.end()
