"""Which tests need a level of confinement that is not on every machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanfold.workspace.sandbox.levels import detect

HAS_BUBBLEWRAP = detect(Path(__file__).parents[1]).bubblewrap.available

needs_bubblewrap = pytest.mark.skipif(
    not HAS_BUBBLEWRAP, reason="no bubblewrap here, and Landlock alone cannot confine a program agent"
)
finds_what_strayed = pytest.mark.skipif(
    not HAS_BUBBLEWRAP, reason="no bubblewrap here, and Landlock refuses the write that would be found"
)
