"""Reads published files as an agent does."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fanfold.agents.backend import ToolFailed
from fanfold.agents.tools.files import PublishedFiles
from fanfold.kernel.plan import JSON
from fanfold.steps.phases import publish_phase
from fanfold.steps.values import Piece


def read_published(folder: Path, run_id: str, path: str) -> JSON:
    """What an agent of a run gets for a path; None for nothing. Two runs have published something."""
    for one in (run_id, "other"):
        publish_phase(folder, one, "look", [Piece("a", f"of {one}")], "sum")
    (folder / "config.toml").write_text("secret")
    files = PublishedFiles(folder, run_id)
    args = {"path": path.replace("RUN", run_id)}
    if not files.has(args):
        return None
    try:
        return asyncio.run(files.call("read_file", args))
    except ToolFailed:
        return None
