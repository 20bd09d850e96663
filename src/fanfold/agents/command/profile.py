"""Profiles: the properties of each agent that is a program, as data.

A profile is a small TOML file, see `profile_files`. Roles refer to it by name (`backend = "claude"`).

Rules
* The command line is a list of words. `{prompt}` and similar placeholders are filled in. A word in angle
  brackets (`<model>`) stands for the words of `options` with that name, or for none if there is no value.
* The output is read by a list of rules, see `events`.
* The user names the credentials of an agent: `credentials = ["login", "ANTHROPIC_API_KEY"]`. It gets no other
  secrets.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from fanfold.agents.role import COMMAND, SPOKEN

LOGIN = "login"
"""In `credentials`: the agent's own login, from the user's folder of the agent."""

Meaning: TypeAlias = Literal[
    "began",
    "said",
    "delta",
    "called",
    "returned",
    "trouble",
    "spending",
    "spent",
    "finished",
    "denied",
    "limited",
]
Prompt: TypeAlias = Literal["stdin", "argument", "file"]
Output: TypeAlias = Literal["text", "last_line", "json", "json_lines"]


class Rule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The meaning of one kind of line.

    `when` maps paths to values. `each` names a list whose elements are read one by one.
    """

    when: dict[str, Any] = {}
    each: str = ""
    means: Meaning
    take: dict[str, str] = {}


class StateFolder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The folder of an agent's configuration and login, below the user's home."""

    folder: str = ""
    variable: str = ""
    """The environment variable by which a user sets another folder."""
    config: tuple[str, ...] = ()
    """Files and folders of the configuration in it; every session gets a copy."""
    tools_of_users: dict[str, tuple[str, ...]] = {}
    """By configuration file: the entry that `fanfold mcp install` wrote. It is removed for agents of a run,
    because its tools are for the user's own sessions."""
    login: tuple[str, ...] = ()
    """Files with the login, relative to the folder or to `~/`."""
    withheld: tuple[str, ...] = ()
    """Values in the login files that no session gets. A token that can be used only once must stay with its
    user."""
    renewed: tuple[str, ...] = ()
    """Times in the login files that are set to now, so that no agent tries to renew the withheld values."""
    expires: str = ""
    """The expiry time of the login, in milliseconds."""
    addresses: dict[str, tuple[str, ...]] = {}
    """By configuration file: paths of the addresses that the agent reaches."""
    keys: dict[str, tuple[str, ...]] = {}
    """By configuration file: paths of the names of environment variables with keys."""
    brought: tuple[str, ...] = ()
    """Files and folders of a project that the agent would obey. The user did not choose their commands, so
    they are hidden from the agent."""


class Reach(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The provider of the agent: environment variables and hosts."""

    keys: tuple[str, ...] = ()
    """Environment variables with keys; passed on only if the user names them."""
    plain: tuple[str, ...] = ()
    """Environment variables without secrets, passed on if they are set."""
    addresses: tuple[str, ...] = ()
    """Environment variables with the address of the provider, passed on if they are set."""
    hosts: tuple[str, ...] = ()
    """Hosts for `network = "provider"`, as `host` or `host:port`."""


class LimitWords(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The output by which an agent reports a usage limit as text."""

    seen: str
    """The date on which this output was seen."""
    pattern: str
    """A regular expression; its group `when` is the time of the reset, see `limits.reset_at`."""


class Profile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent that is a program."""

    name: str = ""
    program: str
    title: str = ""
    acp: bool = False
    """Whether it uses the Agent Client Protocol. Then it has no rules for its output."""
    mode: str = ""
    """For an agent with that protocol: the mode in which it asks no questions."""
    meta: dict[str, str] = {}
    """For an agent with that protocol: what `_meta` of its sessions contains, by path, such as `{model}`."""
    like: str = ""
    """Another profile, from which this one takes the keys it does not set."""
    call: tuple[str, ...] = ()
    options: dict[str, tuple[str, ...]] = {}
    prompt: Prompt = "stdin"
    output: Output = "json_lines"
    servers: Literal["", "claude", "codex", "opencode", "file", "none"] = ""
    """How it receives the MCP servers of a role: a file in the form of `.mcp.json`, or its own way. An agent
    with the protocol receives them with its session, unless this is `none`."""
    kept: Literal["", "words", "policy", "opencode"] = ""
    """How it is limited to the tools that a role lists: `options.only` with `{tools}` or, for a file of
    rules, with `{tools_file}`; or its own way. Empty: it is not limited, and works only for roles that can
    run commands."""
    tools: dict[str, tuple[str, ...]] = {}
    """Its own tools, by our tools that they correspond to."""
    ids: Literal["", "uuid", "name"] = ""
    """Whether it accepts our id for a new conversation, and in which form."""
    provider: str = ""
    """The provider of its models: the part before the colon in names of models."""
    model_form: str = "{model}"
    strict_schema: bool = False
    """Whether it accepts only schemas without optional or additional properties."""
    counts_all: bool = False
    """Whether its reported usage includes the earlier turns of the same conversation."""
    usage_files: str = ""
    """A pattern for files in its home to which it writes lines while it works; `asides` are their rules."""
    named_by_minute: bool = False
    """Whether it names such a file by the minute. Then it overwrites the file if a conversation continues in
    the minute in which it started."""
    priced: bool = False
    """Whether it reports its cost."""
    errors: tuple[str, ...] = ()
    """Prefixes of output that is an error in the form of an answer."""
    retrying: str = ""
    """A regular expression for the start of a line on stderr that reports a retry."""
    limits: tuple[LimitWords, ...] = ()
    reasons: dict[str, str] = {}
    """Its names for an end at a limit: `max_turns` or `budget`."""
    idle_s: float = 600
    """How long it can produce no output."""
    patience_s: float = 60
    """How long it can report only errors."""
    credentials: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    """Additional hosts that the user allows."""
    environment: dict[str, str] = {}
    files: dict[str, str] = {}
    """Files that it receives, by their path in its home."""
    state: StateFolder = StateFolder()
    access: Reach = Reach()
    events: tuple[Rule, ...] = ()
    asides: tuple[Rule, ...] = ()
    """Rules for lines that it writes to stderr or `usage_files`: usage as it arrives, and the reason for a
    wait. A variant with the protocol writes the same lines."""
    named: bool = False
    """Whether the user's own file sets its credentials."""
    file: str = ""
    """The path of the user's own file for it, even if it does not exist; used in hints."""

    @property
    def resumes(self) -> bool:
        """Whether a conversation can continue in another process."""
        return self.acp or "resume" in self.options or "conversation" in self.options


PLAIN = Profile(name=COMMAND, program="", title="a command", output="text", named=True)
"""A role with its own `command`: the task is on standard input, the answer on standard output."""
TALKING = Profile(name=SPOKEN, program="", title="an agent", acp=True, named=True)
"""A role with its own `command` that uses the Agent Client Protocol."""
OF_ROLES = {PLAIN.name: PLAIN, TALKING.name: TALKING}
"""The profiles for programs that roles name."""

# -----------------------------------------------------------------------------------------------------------
# The names of profiles, to identify back ends that start a program without reading a profile.
#
# Every run needs them, and few runs have an agent that is a program. So this part imports little.

OURS = Path(__file__).parent / "profiles"
NAMED_BY_ROLES = (COMMAND, SPOKEN)
"""Back ends for programs that roles name."""
TAKEN = frozenset(("model", "local", "scripted", *NAMED_BY_ROLES))
"""Back ends that are not profiles; a file with such a name would never be used."""

_programs: set[str] = set()


def profile_names(home: Path) -> list[str]:
    """Return the names without reading the files, and remember them for `is_program`."""
    ours = (file for file in os.listdir(OURS) if file.endswith(".toml"))  # glob would compile a pattern
    names = {os.path.splitext(file)[0] for file in (*ours, *(own.name for own in own_profiles(home)))} - TAKEN
    _programs.update(names)
    return sorted(names)


def is_program(backend: str) -> bool:
    """Return whether a back end starts a program."""
    return backend in NAMED_BY_ROLES or backend in _programs or (OURS / f"{backend}.toml").is_file()


def own_profiles(home: Path) -> list[Path]:
    """Return the user's own profile files."""
    folder = home / "backends"
    return sorted(folder.glob("*.toml")) if folder.is_dir() else []
