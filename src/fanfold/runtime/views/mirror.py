"""The mirror files under `.fanfold/runs/<run>/`: the report, the outputs of steps, what their agents said.

Files are written behind the log, for people and other tools; they are never read back and are made
again whenever they are missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from fanfold.kernel.lifecycle import RUN_TERMINAL
from fanfold.kernel.nodes import LEAF, Run
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.records.published import publish_run, write_folder, write_private
from fanfold.runtime.records.subagents import is_agent
from fanfold.runtime.views.runs.report import report_markdown
from fanfold.runtime.views.sessions.transcript_text import transcript_text
from fanfold.runtime.views.sessions.transcripts import speaker_of, transcript_of
from fanfold.store.database.folder import private_folder
from fanfold.workspace.artifacts import clear_staging

MAX_TRANSCRIPTS = 50
"""Of one run: to read a session takes twice as long as a step that does nothing, and whoever waits for the
run waits for these too. `fanfold transcript` shows any."""


def write_mirror(tree: RunTree, folder: Path) -> Path:
    """Write report, outputs and transcripts of every run of the tree; the root's report file."""
    for run in tree.state.runs.values():
        home = folder / run.id
        for one in (folder, home):
            private_folder(one)
        _replace(home / "report.md", report_markdown(tree, run))
        write_folder(home, "outputs", _outputs(tree, run))
        write_folder(home, "transcripts", _transcripts(tree, run))
        if run.status in RUN_TERMINAL:
            clear_staging(home)
        publish_run(folder.parent, tree.values, run)
    return folder / tree.root.id / "report.md"


def has_mirror(tree: RunTree, folder: Path) -> bool:
    """Whether the files are there, as far as a glance tells."""
    homes = [folder / run.id for run in tree.state.runs.values()]
    return all((home / name).exists() for home in homes for name in ("report.md", "outputs", "transcripts"))


def _outputs(tree: RunTree, run: Run) -> Iterator[tuple[str, bytes]]:
    for path, node in run.nodes.items():
        if node.output is not None:
            value = tree.blobs.get(node.output)
            if isinstance(value, str):
                yield f"{path}.md", value.encode("utf-8", "replace")
            else:
                yield f"{path}.json", msgspec.json.encode(value)


def _transcripts(tree: RunTree, run: Run) -> Iterator[tuple[str, bytes]]:
    """One file for each agent step, with all its attempts."""
    begun = (
        (path, node)
        for path, node in run.nodes.items()
        if node.kind == LEAF and node.attempt and is_agent(node)
    )
    for path, node in islice(begun, MAX_TRANSCRIPTS):
        speakers = (speaker_of(tree, node, attempt) for attempt in range(1, node.attempt + 1))
        told = [transcript_text(transcript_of(tree, one, owned=False)) for one in speakers]
        yield f"{path}.md", "\n".join(told).encode("utf-8", "replace")


def _replace(target: Path, text: str) -> None:
    """All or nothing: a reader never sees half a file."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    write_private(str(temporary), text.encode("utf-8", "replace"))
    temporary.replace(target)
