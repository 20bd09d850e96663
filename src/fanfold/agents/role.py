"""What a role is, and what can be said about the file it came from."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from fanfold.text.json_value import JSON

SandboxMode: TypeAlias = Literal["read-only", "workspace-write", "danger-full-access"]

BUILT_IN = "built-in"
COMMAND, SPOKEN = "command", "acp"
"""The back ends for the program that a role itself names; one speaks the Agent Client Protocol with it."""
DEFAULT_MODEL = "default"
"""In a stage: the model that its session has anyway."""


class Stage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stage of a pipeline. Exactly one of `model`, `tool` and `agent` is set."""

    name: str = ""
    model: str | None = None
    """`default`, the one that the session has anyway, or a model's name."""
    tool: str | None = None
    agent: str | None = None
    prompt: str = "{{prompt}}"
    instructions: str | None = None
    """None: the role's."""
    tools: tuple[str, ...] | None = None
    max_turns: int | None = None
    output_schema: JSON = None
    args: dict[str, Any] = {}

    @property
    def kind(self) -> str:
        return "model" if self.model is not None else "tool" if self.tool is not None else "agent"


class CallGuard(Struct, frozen=True, omit_defaults=True):
    """A program of a role's file that judges calls of tools; see `toolbox.guards`."""

    matcher: str
    """Which tools, by the names that Claude Code has for them; empty: all."""
    command: str
    """A line for `sh -c`."""
    timeout_s: int = 60


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
    allowed_commands: tuple[tuple[str, ...], ...] = ()
    """Lists of patterns, each of which must let a command through; empty: any command."""
    guards: tuple[CallGuard, ...] = ()
    """Programs that are shown each call of a tool before it is made, and may deny it."""
    asks: bool = True
    """Whether a person may be asked for what it wants to do; if not, the answer is no."""
    isolated: bool = False
    """Whether it never works in the project itself, only in a snapshot."""
    max_turns: int | None = None
    backend: str | None = None
    command: tuple[str, ...] = ()
    mcp_servers: dict[str, dict[str, Any]] = {}
    project_servers: tuple[str, ...] = ()
    """Those of them that the project's `.mcp.json` defines, whoever wrote the role."""
    network: bool = False
    offline: bool = False
    """Says itself that nobody may be reached. An agent that is a program reaches its provider otherwise."""
    prompt_template: str | None = None
    pipeline: tuple[Stage, ...] = ()
    """Stages that run one after the other; empty: one model loop."""
    source: str = BUILT_IN
    """The file it was read from, or `built-in`."""
    brought: bool = False
    """Whether that file came with the project, and not from the user."""

    @property
    def read_only(self) -> bool:
        """True when steps of this role cannot change the workspace."""
        return self.sandbox_mode == "read-only"

    @property
    def needs_our_tools(self) -> str:
        """The key that only our own tools can keep to, not a program that brings its own; empty when none."""
        if self.guards:
            return "hooks"
        if self.allowed_commands:
            return "Bash(…)"
        return "" if self.asks else "permissionMode: dontAsk"


IGNORED = "role file ignored: "
"""How the message of a `role.invalid` begins."""


class Notice(Struct, frozen=True):
    """Something the user should see about a role file.

    Codes: `role.invalid` (not a role that can be read), `role.refused` (one that restricts itself in a way
    that cannot be kept here), `role.duplicate`, `role.unknown_tool`, `role.needs_network`, `role.model`,
    `role.lacks` (what it asks for and is not here), `role.no_server`, `role.renamed`, `role.misplaced` (in a
    folder where files of its kind are not looked for), `role.note`.
    """

    code: str
    message: str
    file: str
    line: int = 1
    severity: Literal["warning", "note"] = "warning"
    role: str = ""
    """The role that the file is about, as far as that is known."""
    column: int = 1
    help: str = ""
