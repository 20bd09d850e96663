"""What a role is, and what can be said about the file it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias

from msgspec import Struct

SandboxMode: TypeAlias = Literal["read-only", "workspace-write", "danger-full-access"]

BUILT_IN = "built-in"


class Role(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One agent definition, whichever file format it came from."""

    name: str
    description: str
    instructions: str = ""
    version: str | None = None
    sandbox_mode: SandboxMode = "workspace-write"
    model: str | None = None
    reasoning_effort: str | None = None
    fallback_models: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None
    """None: every tool the sandbox allows."""
    max_turns: int | None = None
    backend: str | None = None
    command: tuple[str, ...] = ()
    mcp_servers: dict[str, dict[str, Any]] = {}
    project_servers: tuple[str, ...] = ()
    """Those of them that the project's `.mcp.json` defines, whoever wrote the role."""
    network: bool = False
    prompt_template: str | None = None
    pipeline: tuple[dict[str, Any], ...] = ()
    source: str = BUILT_IN
    """The file it was read from, or `built-in`."""

    @property
    def read_only(self) -> bool:
        """True when steps of this role cannot change the workspace."""
        return self.sandbox_mode == "read-only"

    def is_from(self, folder: Path) -> bool:
        """Whether it was read from a file below a folder."""
        return self.source != BUILT_IN and Path(self.source).resolve().is_relative_to(folder.resolve())


class Notice(Struct, frozen=True):
    """Something the user should see about a role file.

    Codes: `role.invalid`, `role.duplicate`, `role.unknown_tool`, `role.needs_network`, `role.model`,
    `role.note`.
    """

    code: str
    message: str
    file: str
    line: int = 1
    severity: Literal["warning", "note"] = "warning"
    role: str = ""
    """The role that the file is about, as far as that is known."""
