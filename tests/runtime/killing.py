"""A project whose processes are killed at chosen commits and resumed; see `dying.py`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from fanfold.agents.entries import Response
from fanfold.api.archives import verify
from fanfold.api.run_documents import run_document
from fanfold.engine.run_tree import RunTree
from fanfold.sessions.log import read_entries
from tests.dying_store import KeyedStore
from tests.work import PATIENCE_S

ROOT = Path(__file__).parent.parent.parent


class Doomed:
    """One run of a recipe in a folder of its own, and the processes that work on it."""

    def __init__(
        self, folder: Path, files: dict[str, str], recipe: str, script: str, edits: list[list[str]]
    ) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.project = folder / "project"
        for name, text in files.items():
            file = self.project / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (folder / "recipe.yaml").write_text(recipe)
        (folder / "script.yaml").write_text(script)
        (folder / "meddle.json").write_text(json.dumps(edits))
        self.calls_file = folder / "calls"
        self.calls_file.touch()
        self.root: str | None = None

    def start(self, kill_at: int = 0, when: str = "after") -> subprocess.Popen[str]:
        """An owner that works in the background."""
        command = [sys.executable, "-m", "tests.runtime.dying", str(self.folder), str(kill_at), when]
        return subprocess.Popen(
            [*command, *([self.root] if self.root else [])],
            env={**os.environ, "FANFOLD_SCRIPT_CALLS": str(self.calls_file)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def process(self, kill_at: int = 0, when: str = "after") -> int:
        """One owner, until it is killed or done; how many commits it made, 0 when it was killed."""
        process = self.start(kill_at, when)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode in ((0, -signal.SIGKILL) if kill_at else (0,)), err
        return self.heard(out)

    def heard(self, out: str) -> int:
        """Take in what an owner said."""
        lines = out.split("\n")
        self.root = lines[0] or self.root
        return int(lines[1].split()[1]) if len(lines) > 2 else 0

    def calls(self) -> list[str]:
        """Paths of the agents that were asked, in order."""
        return [line.split()[0] for line in self.calls_file.read_text().splitlines()]

    def answered(self, sessions: dict[str, str]) -> set[str]:
        """The paths among these whose session has given its answer; `sessions` is by path."""
        store = KeyedStore(self.project / ".fanfold")
        try:
            return {
                path
                for path, session in sessions.items()
                if any(
                    isinstance(one, Response) and one.output is not UNSET
                    for one in read_entries(store, session)
                )
            }
        finally:
            store.close()

    def document(self) -> dict[str, Any]:
        """The result, after checking the log."""
        store = KeyedStore(self.project / ".fanfold")
        try:
            assert self.root is not None
            assert verify(store, self.root).violations == []
            document: dict[str, Any] = msgspec.to_builtins(run_document(RunTree.load(store, self.root)))
            return document
        finally:
            store.close()

    def told(self) -> list[str]:
        """What the log says about workspaces, in order."""
        store = KeyedStore(self.project / ".fanfold")
        try:
            assert self.root is not None
            return [e.data["what"] for e in store.tree(self.root) if e.type == "workspace_event"]
        finally:
            store.close()

    def left(self) -> list[str]:
        """Workspaces that are still there."""
        folder = self.project / ".fanfold" / "subagents"
        return [entry.name for entry in folder.iterdir() if entry.is_dir()] if folder.exists() else []
