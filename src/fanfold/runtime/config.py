"""Configuration: one table of settings, read from files and environment, each value with its origin.

Later wins: defaults, project file (`.fanfold/config.toml`), user file (`~/.fanfold/config.toml`),
environment; flags are applied by the surface that has them. A value outside its range is an error that
names where it was written and what is allowed: silently clamping would hide what a run will do.

The key and the address of each provider of models are settings too, made from its row in `agents.providers`.

The limits of concurrency and agents have a soft maximum that `[ceilings]` may raise, since a large
machine may need more, but never by accident.

A project's file comes with a checkout, so it is not trusted with everything: it may not say where API
keys are sent, nor raise what the user's own file or the defaults allow. Keys themselves are read from the
environment alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from fanfold.agents.providers import PROVIDERS, Access, Provider
from fanfold.errors import AuthorError
from fanfold.text.patterns import regex
from fanfold.trust.project_files import read_beneath
from fanfold.trust.state import is_users_own

if TYPE_CHECKING:
    from fanfold.text.notes import Notes
    from fanfold.text.trees import tree

Kind: TypeAlias = Literal["switch", "integer", "text", "choice", "secret", "address", "names", "digests"]
Found: TypeAlias = dict[str, tuple[object, str]]

MAX_FILE_BYTES = 256 * 1024
MAX_CONCURRENCY_CEILING = 1_024
MAX_AGENTS_CEILING = 100_000
_LARGEST = 2**53
_DIGEST = regex(r"sha256:[0-9a-f]{64}")
_WORDS = {
    "on": True,
    "true": True,
    "yes": True,
    "1": True,
    "off": False,
    "false": False,
    "no": False,
    "0": False,
}


class Setting(Struct, frozen=True):
    """One row of the table: where it may be written and what it may be."""

    key: str
    """Section and name in the file: `workflows.max_agents`."""
    env: tuple[str, ...] = ()
    kind: Kind = "text"
    default: bool | int | str | None = None
    low: int = 0
    high: int = _LARGEST
    choices: tuple[str, ...] = ()
    raised_by: str = ""
    """The ceiling that may lift `high`."""
    not_in: tuple[str, ...] = ()
    """Files that may not set it (`project`, `user`)."""
    only_less: bool = False
    """A project's file may make it smaller than the default, never larger."""


def _both(name: str) -> tuple[str, ...]:
    return (f"FANFOLD_{name}", f"AGENT_{name}")


SETTINGS = (
    Setting("ceilings.concurrency", (), "integer", 16, 1, MAX_CONCURRENCY_CEILING, not_in=("project",)),
    Setting("ceilings.agents", (), "integer", 500, 1, MAX_AGENTS_CEILING, not_in=("project",)),
    Setting("workflows.enabled", _both("WORKFLOWS"), "switch", True),
    Setting(
        "workflows.max_concurrent",
        _both("WORKFLOW_MAX_CONCURRENT"),
        "integer",
        4,
        1,
        16,
        raised_by="ceilings.concurrency",
    ),
    Setting(
        "workflows.max_agents",
        _both("WORKFLOW_MAX_AGENTS"),
        "integer",
        64,
        1,
        500,
        raised_by="ceilings.agents",
    ),
    Setting("workflows.timeout_ms", _both("WORKFLOW_TIMEOUT_MS"), "integer", 1_800_000, 1),
    Setting("workflows.model", _both("WORKFLOW_MODEL")),
    Setting("agents.project_instructions", ("FANFOLD_PROJECT_INSTRUCTIONS",), "switch", True),
    Setting("environment.allow", ("FANFOLD_ENVIRONMENT_ALLOW",), "names", "", not_in=("project",)),
    Setting("permission.ask_above_agents", ("FANFOLD_ASK_ABOVE_AGENTS",), "integer", 20, not_in=("project",)),
    Setting("permission.ask_above_cents", ("FANFOLD_ASK_ABOVE_CENTS",), "integer", 100, not_in=("project",)),
    Setting("deliver.allow", (), "switch", False, not_in=("project",)),
    Setting("models.model", ("FANFOLD_MODEL",)),
    Setting("models.local_idle_s", ("FANFOLD_LOCAL_IDLE_S",), "integer", 300, 1, 86_400),
    Setting("sessions.max_threads", ("FANFOLD_MAX_THREADS",), "integer", 6, 1, 1_024, only_less=True),
    Setting("sessions.max_depth", ("FANFOLD_MAX_DEPTH",), "integer", 1, 0, 5, only_less=True),
    Setting("sessions.max_sessions", ("FANFOLD_MAX_SESSIONS",), "integer", 256, 1, 100_000, only_less=True),
    Setting("store.durability", ("FANFOLD_DURABILITY",), "choice", "full", choices=("full", "normal")),
    Setting("server.streams", ("FANFOLD_SERVER_STREAMS",), "integer", 256, 1, 10_000, not_in=("project",)),
    Setting("server.operators", (), "digests", "", not_in=("project",)),
    Setting("server.viewers", (), "digests", "", not_in=("project",)),
    Setting("store.url", ("FANFOLD_STORE",), "address", not_in=("project",)),
    Setting("cluster.temporal", ("FANFOLD_TEMPORAL",), "address", not_in=("project",)),
)
"""Those of providers come on top, made from their rows."""


def settings_of(providers: Iterable[Provider]) -> tuple[Setting, ...]:
    """Every setting there is, with the address and the key of each provider."""
    own: list[Setting] = []
    for row in providers:
        own.append(Setting(row.address_setting, (row.address_variable,), "address", not_in=("project",)))
        own.append(Setting(row.key_setting, (row.key_variable,), "secret", not_in=("project", "user")))
    return (*SETTINGS, *own)


class Config(Struct, frozen=True):
    """Every setting's value and where it came from.

    >>> Config.read(Path("."), environment={"FANFOLD_HOME": "/nonexistent"}).integer("workflows.max_agents")
    64
    """

    home: Path
    values: dict[str, bool | int | str | None]
    origins: dict[str, str]
    """`default`, a file's path, or the name of an environment variable."""
    providers: tuple[Provider, ...]
    """The providers of models whose keys and addresses are among the settings."""

    @staticmethod
    def read(
        project: Path, environment: Mapping[str, str], providers: Sequence[Provider] = PROVIDERS
    ) -> Config:
        """Read files and environment; `AuthorError` names whatever cannot be used."""
        home = fanfold_home(environment)
        settings = settings_of(providers)
        known = {setting.key: setting for setting in settings}
        found: Found = {}
        for whose, top, folder in (("project", project, project / ".fanfold"), ("user", home, home)):
            if whose == "user" or not is_users_own(project, home):
                found.update(_read_file(top, folder / "config.toml", whose, known))
        for setting in settings:
            # The first name is ours and wins over the alias.
            name = next((name for name in setting.env if environment.get(name, "").strip()), None)
            if name is not None:
                found[setting.key] = (environment[name].strip(), name)
        values: dict[str, bool | int | str | None] = {}
        for setting in settings:  # ceilings stand first in the table, so they are known when needed
            if setting.key in found:
                values[setting.key] = _checked(setting, *found[setting.key], values)
            else:
                values[setting.key] = setting.default
        origins = {setting.key: found.get(setting.key, (None, "default"))[1] for setting in settings}
        return Config(home, values, origins, tuple(providers))

    @property
    def access(self) -> Access:
        """The keys and addresses of providers."""
        return Access.of(self.values, self.providers)

    def integer(self, key: str) -> int:
        """A numeric setting."""
        value = self.values[key]
        assert isinstance(value, int)
        return value

    def text(self, key: str) -> str | None:
        """A text setting; None when nobody set it."""
        value = self.values[key]
        assert value is None or isinstance(value, str)
        return value

    def names(self, key: str) -> frozenset[str]:
        """A setting that lists names."""
        return frozenset((self.text(key) or "").split())

    def switch(self, key: str) -> bool:
        """An on/off setting."""
        return self.values[key] is True


def fanfold_home(environment: Mapping[str, str]) -> Path:
    """The user's own folder: `FANFOLD_HOME`, else `~/.fanfold`.

    It is the same from wherever a command is called: a relative one would be that of whatever checkout the
    command stands in, and another for the process that goes on with a run.
    """
    given = environment.get("FANFOLD_HOME", "").strip()
    allowed = "the absolute path of a folder"
    try:
        home = Path(given).expanduser() if given else user_home(environment) / ".fanfold"
    except RuntimeError:  # ~ of somebody who is not known here
        raise _bad("FANFOLD_HOME", given, allowed) from None
    if not home.is_absolute():
        raise _bad("FANFOLD_HOME", given, allowed) if given else _bad("HOME", environment["HOME"], allowed)
    return home


def user_home(environment: Mapping[str, str]) -> Path:
    """The home folder by the given environment, so tests and services can choose it."""
    given = environment.get("HOME", "").strip()
    return Path(given) if given else Path.home()


def _read_file(top: Path, file: Path, whose: str, known: Mapping[str, Setting]) -> Found:
    try:
        read = partial(read_beneath, top) if whose == "project" else _read_own
        data = read(file, MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise AuthorError("config.unreadable", f"{file} cannot be read: {error.strerror}") from None
    # Most projects have no such file, and start-up pays for every import.
    from fanfold.text.notes import Notes
    from fanfold.text.refusal import FileRefused
    from fanfold.text.trees.toml import parse_toml
    from fanfold.text.trees.yaml import TextFormat

    form = TextFormat(name="config", max_bytes=MAX_FILE_BYTES, clean_text=False, clean_values=False)
    found, source, report = parse_toml(data, str(file), form)
    settings = {} if found is None else _settings(found, Notes(report, source), whose, known)
    if not report.ok:
        raise FileRefused(report.diagnostics, {str(file): source})
    return settings


def _read_own(file: Path, max_bytes: int) -> bytes:
    """The user may keep their file where they like, behind links too."""
    with file.open("rb") as opened:
        return opened.read(max_bytes)


def _settings(top: tree.Mapping, notes: Notes, whose: str, known: Mapping[str, Setting]) -> Found:
    from fanfold.text.notes import quoted
    from fanfold.text.trees import tree

    found: Found = {}
    for section, table in top.entries:
        inside = isinstance(table, tree.Mapping)
        for word, value in table.entries if isinstance(table, tree.Mapping) else [(section, table)]:
            key = f"{section.text}.{word.text}" if inside else word.text
            setting = known.get(key)
            if setting is None:
                near = notes.did_you_mean(key, known) or f"settings: {', '.join(known)}"
                notes.error(".unknown_key", f"{quoted(key)} is no setting", word, near)
            elif whose in setting.not_in:
                instead = f"set {setting.env[0]} in the environment" if setting.env else "use your own file"
                notes.error(".not_here", f'"{key}" may not be set in this file', word, f"{instead} instead")
            elif whose == "project" and setting.only_less and _is_more(tree.plain(value), setting.default):
                hint = f"at most {setting.default} here; your own file and the environment may say more"
                notes.error(".not_wider", f'"{key}" may not be raised in this file', word, hint)
            else:
                found[key] = (tree.plain(value), f"{notes.source.file} ({key})")
    return found


def _is_more(value: object, default: object) -> bool:
    return isinstance(value, int) and isinstance(default, int) and value > default


def _checked(
    setting: Setting, raw: object, origin: str, known: Mapping[str, bool | int | str | None]
) -> bool | int | str:
    if setting.kind == "switch":
        value = raw if isinstance(raw, bool) else _WORDS.get(str(raw).lower())
        if value is None:
            raise _bad(origin, raw, "on or off")
        return value
    if setting.kind == "integer":
        ceiling = known.get(setting.raised_by)
        high = max(setting.high, ceiling) if isinstance(ceiling, int) else setting.high
        return _integer(raw, origin, setting.low, high)
    if setting.kind == "names":
        return _names(raw, origin)
    if setting.kind == "digests":
        return _digests(raw, origin)
    if not isinstance(raw, str):
        raise _bad(origin, raw, "text")
    if setting.kind == "choice" and raw.lower() not in setting.choices:
        raise _bad(origin, raw, " or ".join(setting.choices))
    return raw.lower() if setting.kind == "choice" else raw


def _names(raw: object, origin: str) -> str:
    """Names as a list, or in one text; kept as one text with a space between them."""
    listed = raw.replace(",", " ").split() if isinstance(raw, str) else raw
    if not isinstance(listed, list) or not all(isinstance(one, str) and one.isidentifier() for one in listed):
        raise _bad(origin, raw, "a list of names")
    return " ".join(listed)


def _digests(raw: object, origin: str) -> str:
    """Digests of tokens, kept as one text with a space between them; no token itself is ever written here."""
    listed = [one for one in (raw if isinstance(raw, list) else [raw]) if isinstance(one, str)]
    if (
        not listed
        or not all(map(_DIGEST.fullmatch, listed))
        or (isinstance(raw, list) and len(raw) > len(listed))
    ):
        raise _bad(origin, "[…]", "a list of digests, as fanfold serve --new-token operator prints them")
    return " ".join(listed)


def _integer(raw: object, origin: str, low: int, high: int) -> int:
    allowed = f"a whole number from {low} to {high}" if high < _LARGEST else f"a whole number, at least {low}"
    text = str(raw)
    if (
        isinstance(raw, bool)
        or not isinstance(raw, (int, str))
        or len(text) > 16
        or not text.lstrip("-").isdecimal()
    ):
        raise _bad(origin, raw, allowed)
    value = int(text)
    if not low <= value <= high:
        raise _bad(origin, raw, allowed, code="config.out_of_range")
    return value


def _bad(origin: str, raw: object, allowed: str, code: str = "config.bad_value") -> AuthorError:
    shown = str(raw)[:60]
    return AuthorError(code, f"{origin} is {shown!r}, but must be {allowed}", details={"origin": origin})
