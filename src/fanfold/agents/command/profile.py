"""Profiles: what is known of each agent that is a program, as data.

A profile is a small TOML file, see `profile_files`. Its name is what roles write (`backend = "claude"`).

Rules
* What a program is called with is a list of words. `{prompt}` and the like are filled in; a word in angle
  brackets (`<model>`) stands for the words of `options` by that name, or for none where there is no value.
* What it says is read by a list of rules, see `events`.
* The user names what of theirs an agent may have: `credentials = ["login", "ANTHROPIC_API_KEY"]`. Nothing
  else that is secret reaches it.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from fanfold.agents.role import COMMAND, SPOKEN

LOGIN = "login"
"""In `credentials`: the agent's own login, as it left it in its folder."""

Meaning: TypeAlias = Literal[
    "began", "said", "delta", "called", "returned", "trouble", "spent", "finished", "denied"
]
Prompt: TypeAlias = Literal["stdin", "argument", "file"]
Output: TypeAlias = Literal["text", "last_line", "json", "json_lines"]


class Rule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one kind of line means. `when` maps paths to values; `each` names a list to look at one by one."""

    when: dict[str, Any] = {}
    each: str = ""
    means: Meaning
    take: dict[str, str] = {}


class StateFolder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where an agent keeps what it knows, below the home of its user."""

    folder: str = ""
    variable: str = ""
    """The variable by which a user says that the folder is elsewhere."""
    config: tuple[str, ...] = ()
    """Files and folders in it that are configuration: every session gets a copy."""
    login: tuple[str, ...] = ()
    """Files in it, or from `~/`, that hold its login."""
    withheld: tuple[str, ...] = ()
    """Values in these that no session gets: a token that can be used up must stay with its user."""
    renewed: tuple[str, ...] = ()
    """Times in these that are set to now, so that nobody tries to renew what was withheld."""
    expires: str = ""
    """When the login runs out, in milliseconds."""
    addresses: dict[str, tuple[str, ...]] = {}
    """By file of the configuration: paths of addresses that it is to reach."""
    keys: dict[str, tuple[str, ...]] = {}
    """By file of the configuration: paths of names of variables that hold keys."""
    brought: tuple[str, ...] = ()
    """Files and folders of a project that it would obey: what they say to run nobody chose. It sees none."""


class Reach(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom it talks to, and what opens the door there."""

    keys: tuple[str, ...] = ()
    """Variables that hold keys: given to it only where the user names them."""
    plain: tuple[str, ...] = ()
    """Variables that are no secret, passed on where they are set."""
    addresses: tuple[str, ...] = ()
    """Variables with the address of its provider, passed on where they are set."""
    hosts: tuple[str, ...] = ()
    """What it reaches with `network = "provider"`, as `host` or `host:port`."""


class Profile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent that is a program."""

    name: str = ""
    program: str
    title: str = ""
    acp: bool = False
    """Whether it speaks the Agent Client Protocol; then it has no rules for its words."""
    mode: str = ""
    """Of an agent that speaks it: the mode in which it asks nobody."""
    like: str = ""
    """Another profile, which says everything that this one does not."""
    call: tuple[str, ...] = ()
    options: dict[str, tuple[str, ...]] = {}
    prompt: Prompt = "stdin"
    output: Output = "json_lines"
    servers: Literal["", "claude", "codex", "opencode", "file", "none"] = ""
    """How it takes MCP servers of a role: a file in the form of `.mcp.json`, or in its own way.
    One that speaks the protocol is given them with its session, unless this says `none`."""
    kept: Literal["", "words", "policy", "opencode"] = ""
    """How it is kept to the tools that a role lists: `options.only` with `{tools}` or, for a file of rules,
    with `{tools_file}`; or in its own way. Empty: it is not, and works only for roles that run commands."""
    tools: dict[str, tuple[str, ...]] = {}
    """Its own tools, by those of ours that they stand for."""
    ids: Literal["", "uuid", "name"] = ""
    """Whether it takes an id of ours for a new conversation, and of which form."""
    provider: str = ""
    """Whose models it has: what stands before the colon in the names of models."""
    model_form: str = "{model}"
    strict_schema: bool = False
    """Whether it takes only schemas in which nothing is optional and nothing else allowed."""
    counts_all: bool = False
    """Whether what it says it spent includes the turns before, of the same conversation."""
    priced: bool = False
    """Whether it says what it cost."""
    errors: tuple[str, ...] = ()
    """How words begin by which it tells an error as if it were an answer."""
    reasons: dict[str, str] = {}
    """What it calls the end at a limit: `max_turns` or `budget`."""
    idle_s: float = 600
    """How long it may say nothing."""
    patience_s: float = 60
    """How long it may go on telling of errors alone."""
    credentials: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    """The user's: what it may reach besides."""
    environment: dict[str, str] = {}
    state: StateFolder = StateFolder()
    access: Reach = Reach()
    events: tuple[Rule, ...] = ()
    named: bool = False
    """Whether the user's own file says which credentials it may have."""
    file: str = ""
    """Where the user's own file for it is, or would be: what hints name."""

    @property
    def resumes(self) -> bool:
        """Whether a conversation of it can go on in another process."""
        return self.acp or "resume" in self.options or "conversation" in self.options


PLAIN = Profile(name=COMMAND, program="", title="a command", output="text", named=True)
"""A role with a `command` of its own: the task on its standard input, its answer on standard output."""
TALKING = Profile(name=SPOKEN, program="", title="an agent", acp=True, named=True)
"""A role with a `command` of its own that speaks the Agent Client Protocol."""
OF_ROLES = {PLAIN.name: PLAIN, TALKING.name: TALKING}
"""Those for programs that roles name."""
