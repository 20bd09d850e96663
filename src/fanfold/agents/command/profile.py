"""Profiles: what is known of each agent that is a program, as data.

A profile is a small TOML file. Those that come with Fanfold are in `profiles/`; the user's own are in
`~/.fanfold/backends/`, where a file named like one of ours changes the keys it has and leaves the others. The
name of the file is what roles write (`backend = "claude"`). A project cannot bring any.

Rules
* What a program is called with is a list of words. `{prompt}` and the like are filled in; a word in angle
  brackets (`<model>`) stands for the words of `options` by that name, or for none where there is no value.
* What it says is read by a list of rules, see `events`.
* The user names what of theirs an agent may have: `credentials = ["login", "ANTHROPIC_API_KEY"]`. Nothing
  else that is secret reaches it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct, structs

from fanfold.agents.role import COMMAND, SPOKEN
from fanfold.errors import AuthorError

OURS = Path(__file__).parent / "profiles"
MAX_PROFILE_BYTES = 256 * 1024
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
_OWN = (
    "name",
    "like",
    "named",
    "file",
    "options",
    "events",
    "output",
    "acp",
    "call",
    "kept",
    "counts_all",
    "errors",
    "priced",
)
"""What is never taken from another profile: how it is called and how it speaks."""


def load_profiles(home: Path) -> dict[str, Profile]:
    """Every profile by name; `AuthorError` names a file of the user's that cannot be used."""
    folder = home / "backends"
    found = {
        name: structs.replace(one, file=str(folder / f"{name}.toml")) for name, one in _built_in().items()
    }
    for file in sorted(folder.glob("*.toml")) if folder.is_dir() else ():
        found[file.stem] = _own(file, found)
    return found


def find_profile(name: str, home: Path) -> Profile | None:
    """The profile of a back end that is a program; None for any other."""
    return OF_ROLES.get(name) or load_profiles(home).get(name)


def profile_names(home: Path) -> list[str]:
    """The names alone, without reading any; from now on they are known to mean programs."""
    names = {file.stem for folder in (OURS, home / "backends") for file in folder.glob("*.toml")}
    _programs.update(names)
    return sorted(names)


_programs: set[str] = set()


def is_program(backend: str) -> bool:
    """Whether a back end starts a program; one that a program of somebody else's brings is its own affair."""
    return backend in OF_ROLES or backend in _programs or (OURS / f"{backend}.toml").is_file()


@cache
def _built_in() -> dict[str, Profile]:
    said = {file.stem: _read(file) for file in sorted(OURS.glob("*.toml"))}
    return {name: msgspec.convert({**_alike(one, said), "name": name}, Profile) for name, one in said.items()}


def _alike(said: dict[str, Any], known: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """A profile with what it leaves to the one it is like."""
    other = known.get(said.get("like", ""), {})
    return {**{key: value for key, value in other.items() if key not in _OWN}, **said}


def _below(said: dict[str, Any], ours: Profile | None, known: Mapping[str, Profile]) -> dict[str, Any]:
    if ours is not None:
        return dict(msgspec.to_builtins(ours))
    other = known.get(said.get("like", ""))
    taken = {} if other is None else msgspec.to_builtins(other)
    return {key: value for key, value in taken.items() if key not in _OWN}


def _own(file: Path, known: Mapping[str, Profile]) -> Profile:
    try:
        said = _read(file)
        below = _below(said, known.get(file.stem), known)
        merged = {**_over(below, said), "name": file.stem, "named": "credentials" in said, "file": str(file)}
        return msgspec.convert(merged, Profile)
    except (OSError, ValueError) as error:  # what decoding and validation raise, too
        message = f"{file} cannot be used: {error}"
        raise AuthorError("backend.bad_profile", message, hint="docs/agents.md lists its keys") from None


def _over(below: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """The user's keys over ours; tables key by key, anything else whole."""
    merged = dict(below)
    for key, value in said.items():
        inner = below.get(key)
        merged[key] = _over(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def _read(file: Path) -> dict[str, Any]:
    import tomllib

    with file.open("rb") as opened:
        data = opened.read(MAX_PROFILE_BYTES + 1)
    if len(data) > MAX_PROFILE_BYTES:
        raise ValueError(f"it has more than {MAX_PROFILE_BYTES:,} bytes")
    return tomllib.loads(data.decode())
