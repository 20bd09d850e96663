"""Which tests need a level of confinement that is not on every machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanfold.workspace.sandbox import detect

NEEDS_BUBBLEWRAP = "needs bubblewrap: apt-get install bubblewrap"
HAS_BUBBLEWRAP = detect(Path(__file__).parents[1]).bubblewrap.available

needs_bubblewrap = pytest.mark.skipif(not HAS_BUBBLEWRAP, reason=NEEDS_BUBBLEWRAP)
finds_what_strayed = pytest.mark.skipif(not HAS_BUBBLEWRAP, reason=NEEDS_BUBBLEWRAP)


def needs(level: str) -> str:
    """Why a test is skipped that needs a level which is not here."""
    return (
        NEEDS_BUBBLEWRAP if level == "bubblewrap" else "needs Landlock: make test-full on Linux 5.13 or newer"
    )
