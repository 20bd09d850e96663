"""A chat whose process is killed at a commit goes on: what was said, delegated and answered stays.

By default a sample of boundaries; `make kill-test` (KILL_TEST=all) takes every one.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fanfold.api.archives import verify
from fanfold.api.changes import undo
from fanfold.wiring import wire
from tests.kill.chatting import SAID
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

SCRIPT = """\
steps:
  lead:
    output: It is in a.py.
    tool_calls:
      - {tool: write_file, args: {path: note.txt, content: Look for the switch.}}
      - {tool: task, args: {role: explorer, task: Find the switch., name: scout}}
      - {tool: spawn_agent, args: {role: explorer, task: Look elsewhere., name: other}}
  scout: the switch is in a.py, line 3
default: fine
"""
COMMITS = 16
"""A whole turn takes about so many; a boundary behind the last is a chat that is not killed at all."""


def chat(folder: Path, kill_at: int, when: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.kill.chatting", str(folder), str(kill_at), when]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def boundaries() -> list[tuple[int, str]]:
    every = [(kill_at, when) for kill_at in range(1, COMMITS + 1) for when in ("before", "after")]
    return every if os.environ.get("KILL_TEST") == "all" else every[::5]


@pytest.mark.parametrize(("kill_at", "when"), boundaries())
def test_a_chat_killed_at_a_commit_continues(kill_at: int, when: str, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "script.yaml").write_text(SCRIPT)
    chat(tmp_path, kill_at, when)
    again = chat(tmp_path, 0, "after")
    assert again.stdout.startswith("completed It is in a.py. completed "), again.stdout + again.stderr
    project = wire(tmp_path / "project")
    try:
        head = project.store.heads(limit=-1)[0]
        tree = project.view(head.run_id)
        said = [node.step.description for node in tree.root.scope.children if node.path.startswith("lead")]
        assert said == [SAID, "Thank you."]
        assert verify(project.store, head.run_id).violations == []
        assert (project.folder / "note.txt").read_text() == "Look for the switch."
        merged = [(row.path, row.step) for row in tree.memory.changes[head.run_id]]
        assert merged == [("note.txt", "lead")], "what it changed is known, once"
        asyncio.run(undo(project, head.run_id, "lead"))
        assert not (project.folder / "note.txt").exists()
        assert not [one for one in (project.memory / "subagents").iterdir() if one.is_dir()]
    finally:
        project.close()
