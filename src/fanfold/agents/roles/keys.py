"""The keys of role files: those that TOML has, those of front matter, and how people write the latter.

A key that is read and does nothing stands here with the reason; one that is not here is somebody else's, and
only noted.
"""

from __future__ import annotations

from fanfold.agents.role import SandboxMode
from fanfold.text.tables.shapes import Key, shape
from fanfold.text.trees.front_matter import Habits

SANDBOXES: dict[str, SandboxMode] = {
    "read-only": "read-only",
    "workspace-write": "workspace-write",
    "danger-full-access": "danger-full-access",
}
_COMMON = (
    Key("name", "text", "What steps call it."),
    Key("description", "text", "What it is for."),
    Key("version", "json", "Steps may ask for `name@version`."),
    Key("sandbox_mode", "word", "How much it may touch.", words=tuple(SANDBOXES)),
    Key("model", "text", "The model that does the work."),
    Key("reasoning_effort", "text", "How long that model thinks."),
    Key("fallback_models", "texts", "Models to ask when that one cannot answer."),
    Key("max_turns", "integer", "How often it may be asked.", low=1, high=10_000),
    Key("backend", "text", "Who does the work."),
    Key("command", "arguments", "The program that does the work."),
    Key("mcp_servers", "json", "Servers whose tools it has."),
    Key("network", "json", 'Whether it may reach the network; "provider" is what agents need themselves.'),
    Key("prompt_template", "template", "What a step without a prompt says."),
    Key("pipeline", "objects", "Stages that run one after the other."),
)
_OF_CODEX = ("approval_policy", "model_reasoning_summary", "model_verbosity", "nickname_candidates")
_SHOWN = ("background", "color")
TOML = shape(
    "role",
    "A role as Codex writes it.",
    *_COMMON,
    Key("instructions", "text", "What it is told."),
    Key("developer_instructions", "text", "The same.", alias="instructions"),
    Key("model_reasoning_effort", "text", "The same.", alias="reasoning_effort"),
    Key("tools", "texts", "The tools that it may use; all when none are named."),
    Key("default_permissions", "text", "The same as `sandbox_mode`, for the profiles of Codex itself."),
    Key("sandbox_workspace_write", "json", "Of which `network_access` counts."),
    Key("web_search", "json", "Not here."),
    Key("skills", "json", "Not here."),
    *(Key(name, "json", "Not ours to follow.") for name in _OF_CODEX),
    open=True,
)
MD = shape(
    "role",
    "A role as Claude Code writes it; the text below is what it is told.",
    *_COMMON,
    Key("effort", "text", "How long the model thinks.", alias="reasoning_effort"),
    Key("maxTurns", "integer", "How often it may be asked.", low=1, high=10_000, alias="max_turns"),
    Key("mcpServers", "json", "Servers whose tools it has.", alias="mcp_servers"),
    Key("tools", "json", "The tools that it may use; all when none are named."),
    Key("disallowedTools", "json", "Tools that it may not use."),
    *(
        Key(name, "json", "The same.", alias="tools")
        for name in ("allowed-tools", "allowed_tools", "allowedTools")
    ),
    *(
        Key(name, "json", "The same.", alias="disallowedTools")
        for name in ("disallowed-tools", "disallowed_tools")
    ),
    Key("permission", "json", "Of which what it denies counts, as other programs have it."),
    Key("permissions", "json", "The same.", alias="permission"),
    Key("readonly", "json", "`true` makes a reader of it, as in Cursor."),
    *(Key(name, "json", "The same.", alias="readonly") for name in ("readOnly", "read_only", "read-only")),
    Key("permissionMode", "text", "`plan` makes a reader of it, `dontAsk` answers its questions with no."),
    Key("isolation", "json", "`worktree` keeps it out of the project itself."),
    Key("hooks", "json", "Commands that judge its calls."),
    Key("memory", "json", "Not here."),
    Key("skills", "json", "Not here."),
    *(Key(name, "json", "Nothing hangs on it.") for name in _SHOWN),
    open=True,
)

# What else is written in front matter: a text that nobody indented ends there too.
_ELSEWHERE = (
    "argument-hint author category created initialprompt license maxtokens metadata mode omitclaudemd"
    " priority source tags temperature triggers updated"
)
HABITS = Habits(
    known=frozenset({*map(str.lower, MD.keys), *_ELSEWHERE.split()}),
    prose=frozenset({"description"}),
    repeated=frozenset({"color"}),
)
