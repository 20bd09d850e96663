"""Agents that are programs, on PATH: stand-ins that say what was recorded of the real ones."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

AGENTS = Path(__file__).parent.parent / "agents"
RECORDED = AGENTS / "recorded"
SUCCESS = {
    "claude": "claude-stream-json.jsonl",
    "codex": "codex-exec-json.jsonl",
    "opencode": "opencode-run-json.jsonl",
    "gemini": "gemini-stream-json.jsonl",
    "qwen": "qwen-stream-json.jsonl",
    "goose": "goose-stream-json.jsonl",
    "copilot": "copilot-json.jsonl",
}
SPEAKING = {
    "claude-agent-acp": ("claude-acp", "acp-claude.jsonl"),
    "codex-acp": ("codex-acp", "acp-codex.jsonl"),
    "opencode": ("opencode-acp", "acp-opencode.jsonl"),
    "copilot": ("copilot-acp", "acp-copilot.jsonl"),
    "gemini": ("gemini-acp", "acp-gemini-nofs.jsonl"),
    "goose": ("goose-acp", "acp-goose.jsonl"),
    "qwen": ("qwen-acp", "acp-qwen.jsonl"),
}
"""By program: the profile that speaks the protocol, and what was recorded."""
ROLE = """name = "{name}"
description = "Does what it is told"
developer_instructions = "You are careful."
backend = "{backend}"
{more}
"""


class AgentWorld:
    """A project with roles, and programs for them that the user has installed."""

    def __init__(self, project: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.project = project
        self.home = home
        self.bin = project.parent / "bin"
        self.bin.mkdir()
        home.mkdir(exist_ok=True)
        python = os.path.dirname(os.path.realpath(sys.executable))
        monkeypatch.setenv("PATH", f"{self.bin}:{python}:/usr/local/bin:/usr/bin:/bin")

    def install(self, name: str, *acts: dict[str, Any], speaks: bool = False) -> None:
        """Put a stand-in on PATH; one that `speaks` does so by the Agent Client Protocol."""
        program = self.bin / name
        source = (AGENTS / ("acp_stand_in.py" if speaks else "stand_in.py")).read_text()
        program.write_text(f"#!/usr/bin/env python3\n{source}")
        program.chmod(0o755)
        for act in acts:
            for one in (act, *act.get("told", {}).values()):
                for key in ("says", "errs"):
                    if key in one:
                        shutil.copy(RECORDED / one[key], self.bin)
        (self.bin / f"{name}.json").write_text(json.dumps({"acts": acts}))

    def role(self, name: str, backend: str, more: str = "") -> None:
        folder = self.project / ".fanfold" / "agents"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.toml").write_text(ROLE.format(name=name, backend=backend, more=more))

    def profile(self, name: str, text: str) -> None:
        """What the user says about an agent in their own folder."""
        folder = self.home / ".fanfold" / "backends"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.toml").write_text(text)

    def recipe(self, *steps: dict[str, Any], **more: Any) -> str:
        (self.project / "work.yaml").write_text(json.dumps({"name": "work", "steps": list(steps), **more}))
        return "work.yaml"

    def calls(self) -> list[dict[str, Any]]:
        """What the stand-ins were called with, in the order of sessions and calls."""
        found = sorted(self.homes(), key=lambda home: (home / "calls.jsonl").stat().st_mtime_ns)
        lines = [line for home in found for line in (home / "calls.jsonl").read_text().splitlines()]
        return [json.loads(line) for line in lines]

    def spoken(self) -> list[dict[str, Any]]:
        """What stand-ins that speak the protocol kept, in the order of sessions."""
        found = self.project.glob(".fanfold/workspace/homes/*/*/conversation.jsonl")
        files = sorted(found, key=lambda file: file.stat().st_mtime_ns)
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def homes(self) -> list[Path]:
        """The private homes of the sessions in which something was called."""
        return [file.parent for file in self.project.glob(".fanfold/workspace/homes/*/*/calls.jsonl")]


def step(agent: str, **more: Any) -> dict[str, Any]:
    return {"id": "work", "agent": agent, "prompt": "Write hello.txt", **more}


def writing(name: str, **more: Any) -> dict[str, Any]:
    """What an agent does that succeeds."""
    return {"says": SUCCESS[name], "writes": {"hello.txt": "hello\n"}, **more}
