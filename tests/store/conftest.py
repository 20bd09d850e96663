"""Where tests that only pretend to need a disk work."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """An empty folder in memory where the system has one: thousands of small files would wear a disk."""
    folder = Path(tempfile.mkdtemp(prefix="fanfold-", dir=MEMORY if MEMORY.is_dir() else None))
    yield folder
    shutil.rmtree(folder)
