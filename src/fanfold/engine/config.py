"""Configuration: one table of settings, read from files and environment, each value with its origin.

Later sources win: defaults, project file (`.fanfold/config.toml`), user file (`~/.fanfold/config.toml`),
environment. Command-line flags are applied by the command that has them. A value outside its range is an
error that names its origin and the allowed range. Silent clamping would hide what a run will do.

The key and the address of each model provider are settings too, made from its row in `agents.providers`.
`[providers.NAME]` in the user's file adds a row: `PROVIDER_SETTINGS` are the keys of its table.

A user's value for `max_concurrent`, `max_agents` or `timeout_ms` is a cap for every recipe (`cap`). The
user's own file may exceed the range of the first two, since a large machine may need more. `[ceilings]` is
an older spelling of them.

A project's file comes with a checkout, so it is not fully trusted. It may not set where API keys are sent,
nor raise the limits of the user's own file or the defaults. Keys are read only from the environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from fanfold.agents.local.weights import (
    INSTALL_HINT,
    PROVIDER,
    PULL_HINT,
    SMOLLM2,
    LocalState,
    is_weights_file,
)
from fanfold.agents.providers import PRESETS, PROVIDERS, Access, Provider, Rate, configured
from fanfold.errors import AuthorError, WorldError
from fanfold.project_files import read_beneath
from fanfold.workspace.seal import is_users_own

if TYPE_CHECKING:
    from fanfold.language import tree
    from fanfold.language.tables import Notes

Kind: TypeAlias = Literal[
    "switch",
    "integer",
    "text",
    "choice",
    "secret",
    "address",
    "url",
    "names",
    "variable",
    "digests",
    "prices",
    "dollars",
    "texts",
    "paths",
]
Found: TypeAlias = dict[str, tuple[object, str]]

OLDER_NAMES = {
    "ceilings.concurrency": "workflows.max_concurrent",
    "ceilings.agents": "workflows.max_agents",
    "agents.max_threads": "sessions.max_threads",
    "agents.max_depth": "sessions.max_depth",
}
MAX_FILE_BYTES = 256 * 1024
MAX_CONCURRENCY_CEILING = 1_024
MAX_AGENTS_CEILING = 100_000
MAX_TEXT_CHARS = 1_000
"""The length of one text in a list of texts."""
MAX_PRICE = 1_000_000
"""The largest amount in dollars, per million tokens or per day."""
_LARGEST = 2**53
_URL = r"https?://[^/\s]"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = r"[^\W\d]\w*([.:][^\W\d]\w*)*"
"""The name of a variable or of a function (`package.module:callable`)."""
_ON, _OFF = ("on", "true", "yes", "1"), ("off", "false", "no", "0")
_WORDS: Mapping[str, bool] = dict.fromkeys(_ON, True) | dict.fromkeys(_OFF, False)


class Setting(Struct, frozen=True):
    """One row of the table of settings: where it may be set, and its allowed values."""

    key: str
    """Section and name in the file: `workflows.max_agents`."""
    env: tuple[str, ...] = ()
    kind: Kind = "text"
    default: bool | int | str | None = None
    low: int = 0
    high: int = _LARGEST
    choices: tuple[str, ...] = ()
    own_high: int = 0
    """The largest value in the user's own file, if it may exceed `high`."""
    not_in: tuple[str, ...] = ()
    """Files that may not set it (`project`, `user`)."""
    only_less: bool = False
    """Whether a project's file may only lower the default, never raise it."""


def _both(name: str) -> tuple[str, ...]:
    return (f"FANFOLD_{name}", f"AGENT_{name}")


SETTINGS = (
    Setting("workflows.enabled", _both("WORKFLOWS"), "switch", True),
    Setting(
        "workflows.max_concurrent",
        _both("WORKFLOW_MAX_CONCURRENT"),
        "integer",
        4,
        1,
        16,
        own_high=MAX_CONCURRENCY_CEILING,
    ),
    Setting(
        "workflows.max_agents",
        _both("WORKFLOW_MAX_AGENTS"),
        "integer",
        64,
        1,
        500,
        own_high=MAX_AGENTS_CEILING,
    ),
    Setting("workflows.timeout_ms", _both("WORKFLOW_TIMEOUT_MS"), "integer", 1_800_000, 1),
    Setting("workflows.model", _both("WORKFLOW_MODEL")),
    Setting("agents.project_instructions", ("FANFOLD_PROJECT_INSTRUCTIONS",), "switch", True),
    Setting("environment.allow", ("FANFOLD_ENVIRONMENT_ALLOW",), "names", "", not_in=("project",)),
    Setting("functions.allow", (), "names", "", not_in=("project",)),
    Setting("permission.ask_above_agents", ("FANFOLD_ASK_ABOVE_AGENTS",), "integer", 20, not_in=("project",)),
    Setting("permission.ask_above_cents", ("FANFOLD_ASK_ABOVE_CENTS",), "integer", 100, not_in=("project",)),
    Setting("deliver.allow", (), "switch", False, not_in=("project",)),
    Setting("budget.usd_per_day", ("FANFOLD_USD_PER_DAY",), "dollars", not_in=("project",)),
    Setting("budget.tokens_per_day", ("FANFOLD_TOKENS_PER_DAY",), "integer", None, 1, not_in=("project",)),
    Setting("models.model", ("FANFOLD_MODEL",)),
    Setting("models.silence_s", ("FANFOLD_SILENCE_S",), "integer", 120, 1, 86_400),
    Setting("models.prices", (), "prices", not_in=("project",)),
    Setting("models.local_idle_s", ("FANFOLD_LOCAL_IDLE_S",), "integer", 300, 1, 86_400),
    Setting("sessions.max_threads", ("FANFOLD_MAX_THREADS",), "integer", 6, 1, 1_024, only_less=True),
    Setting("sessions.max_depth", ("FANFOLD_MAX_DEPTH",), "integer", 1, 0, 5, only_less=True),
    Setting("sessions.max_sessions", ("FANFOLD_MAX_SESSIONS",), "integer", 256, 1, 100_000, only_less=True),
    Setting("store.durability", ("FANFOLD_DURABILITY",), "choice", "full", choices=("full", "normal")),
    Setting("server.streams", ("FANFOLD_SERVER_STREAMS",), "integer", 256, 1, 10_000, not_in=("project",)),
    Setting("server.operators", (), "digests", "", not_in=("project",)),
    Setting("server.viewers", (), "digests", "", not_in=("project",)),
    Setting(
        "notify.on",
        ("FANFOLD_NOTIFY_ON",),
        "names",
        "waiting paused failed finished limit",
        choices=("waiting", "paused", "failed", "finished", "limit"),
        not_in=("project",),
    ),
    Setting("notify.command", (), "texts", not_in=("project",)),
    Setting("notify.webhook", ("FANFOLD_NOTIFY_WEBHOOK",), "url", not_in=("project",)),
    Setting("notify.secret", ("FANFOLD_NOTIFY_SECRET",), "secret", not_in=("project", "user")),
    Setting("notify.desktop", (), "switch", False, not_in=("project",)),
    Setting("notify.console", ("FANFOLD_NOTIFY_CONSOLE",), "url", not_in=("project",)),
    Setting("workspace.include", (), "paths", not_in=("project",)),
    Setting("workspace.setup", (), "texts", not_in=("project",)),
    Setting("workspace.setup_network", (), "switch", False, not_in=("project",)),
    Setting("store.url", ("FANFOLD_STORE",), "address", not_in=("project",)),
    Setting("store.patience_s", ("FANFOLD_PATIENCE_S",), "integer", 60, 1, 3_600, not_in=("project",)),
    Setting("cluster.project", ("FANFOLD_PROJECT",), not_in=("project",)),
    Setting("cluster.temporal", ("FANFOLD_TEMPORAL",), "address", not_in=("project",)),
    Setting("cluster.heartbeat_s", ("FANFOLD_HEARTBEAT_S",), "integer", 15, 2, 300, not_in=("project",)),
)
"""All settings except those of providers, which `settings_of` adds."""


PROVIDER_SETTINGS = (
    Setting("base_url", (), "url", not_in=("project",)),
    Setting("api_key_env", (), "variable", not_in=("project",)),
    Setting(
        "format", (), "choice", choices=("openai-chat", "openai-responses", "anthropic"), not_in=("project",)
    ),
    Setting("models", (), "texts", not_in=("project",)),
    Setting("prices", (), "prices", not_in=("project",)),
)
"""The keys of a table `[providers.NAME]`."""
_TABLES = "providers"
_PROVIDER_NAME = r"[a-z][a-z0-9_-]{0,31}"


def settings_of(providers: Iterable[Provider]) -> tuple[Setting, ...]:
    """All settings, including the address and the key of each provider."""
    own: list[Setting] = []
    for row in providers:
        if row.by_table:
            if row.needs_key:
                own.append(
                    Setting(row.key_setting, (row.key_variable,), "secret", not_in=("project", "user"))
                )
            continue
        own.append(Setting(row.address_setting, (row.address_variable,), "url", not_in=("project",)))
        own.append(Setting(row.key_setting, (row.key_variable,), "secret", not_in=("project", "user")))
    return (*SETTINGS, *own)


class Config(Struct, frozen=True):
    """The value and the origin of every setting.

    >>> Config.read(Path("."), environment={"FANFOLD_HOME": "/nonexistent"}).integer("workflows.max_agents")
    64
    """

    home: Path
    values: dict[str, bool | int | str | None]
    origins: dict[str, str]
    """`default`, a file's path, or the name of an environment variable."""
    providers: tuple[Provider, ...]
    """The model providers whose keys and addresses are among the settings."""
    own: frozenset[str] = frozenset()
    """The keys of the settings that the user set, in the environment or in their own file."""

    @staticmethod
    def read(
        project: Path, environment: Mapping[str, str], providers: Sequence[Provider] = PROVIDERS
    ) -> Config:
        """Read files and environment. Raises `AuthorError` that names an unusable value."""
        home = fanfold_home(environment)
        settings = settings_of(providers)
        known = {setting.key: setting for setting in settings}
        found: Found = {}
        own: set[str] = set()
        for whose, top, folder in (("project", project, project / ".fanfold"), ("user", home, home)):
            if whose == "user" or not is_users_own(project, home):
                read = _read_file(top, folder / "config.toml", whose, known)
                found.update(read)
                own.update(read if whose == "user" else ())
        in_file = frozenset(own)
        tables = sorted({key.split(".")[1] for key in filter(_is_in_table, found)})
        presets = [row for row in PRESETS if row.name not in tables]
        rows = (*providers, *presets, *(_provider(name, providers, found) for name in tables))
        settings = (*settings_of(rows), *map(_table_setting, filter(_is_in_table, found)))
        for setting in settings:
            # The first name is Fanfold's own and wins over the alias.
            name = next((name for name in setting.env if environment.get(name, "").strip()), None)
            if name is not None:
                found[setting.key] = (environment[name].strip(), name)
                own.add(setting.key)
                in_file -= {setting.key}
        values: dict[str, bool | int | str | None] = {}
        for setting in settings:
            if setting.key in found:
                by_file = setting.key in in_file
                values[setting.key] = _checked(setting, *found[setting.key], by_file)
            else:
                values[setting.key] = setting.default
        origins = {setting.key: found.get(setting.key, (None, "default"))[1] for setting in settings}
        return Config(home, values, origins, rows, frozenset(own))

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The settings that have a value here, those of configured providers included."""
        known = settings_of(self.providers)
        keys = {setting.key for setting in known}
        return (*known, *(_table_setting(key) for key in self.values if key not in keys))

    @property
    def access(self) -> Access:
        """The keys and addresses of providers."""
        return Access.of(self.values, self.providers)

    def integer(self, key: str) -> int:
        """The value of a numeric setting."""
        value = self.values[key]
        assert isinstance(value, int)
        return value

    def cap(self, key: str) -> tuple[int, str] | None:
        """The largest value that a recipe may request, with its origin; None if the user set no cap."""
        return (self.integer(key), self.origins[key]) if key in self.own else None

    def text(self, key: str) -> str | None:
        """The value of a text setting, or None if it is not set."""
        value = self.values[key]
        assert value is None or isinstance(value, str)
        return value

    def names(self, key: str) -> frozenset[str]:
        """The names in a setting that is a list of names."""
        return frozenset((self.text(key) or "").split())

    def texts(self, key: str) -> tuple[str, ...]:
        """The texts in a setting that is a list of texts or paths."""
        return tuple(json.loads(self.text(key) or "[]"))

    def switch(self, key: str) -> bool:
        """The value of an on/off setting."""
        return self.values[key] is True

    def switched_off(self) -> tuple[str, str]:
        """The origin of a disabled `workflows.enabled`, and the assignment that enables workflows again."""
        origin = self.origins["workflows.enabled"]
        return origin, f"{origin if origin.isidentifier() else 'FANFOLD_WORKFLOWS'}=on"


def recipe_ceilings(config: Config) -> tuple[int, int]:
    """The largest `max_concurrency` and `max_agents` of a recipe. A smaller cap of the user is no error."""
    caps = [(16, config.cap("workflows.max_concurrent")), (500, config.cap("workflows.max_agents"))]
    concurrency, agents = (max(usual, cap[0] if cap else 0) for usual, cap in caps)
    return concurrency, agents


def fanfold_home(environment: Mapping[str, str]) -> Path:
    """The user's own folder: `FANFOLD_HOME`, else `~/.fanfold`.

    It must be absolute, so that it does not depend on the working directory. A relative path would be in
    the current checkout, and in a different place for the process that resumes a run.
    """
    given = environment.get("FANFOLD_HOME", "").strip()
    allowed = "the absolute path of a folder"
    try:
        home = Path(given).expanduser() if given else user_home(environment) / ".fanfold"
    except RuntimeError:  # ~ of a user who is unknown on this machine
        raise _bad("FANFOLD_HOME", given, allowed) from None
    if not home.is_absolute():
        raise _bad("FANFOLD_HOME", given, allowed) if given else _bad("HOME", environment["HOME"], allowed)
    return home


def user_home(environment: Mapping[str, str]) -> Path:
    """The home folder according to the given environment, so that tests and services can set it."""
    given = environment.get("HOME", "").strip()
    return Path(given) if given else Path.home()


def _read_file(top: Path, file: Path, whose: str, known: Mapping[str, Setting]) -> Found:
    try:
        if whose == "project":
            data = read_beneath(top, file, MAX_FILE_BYTES + 1)
        else:  # the user's own file may be anywhere, also behind symbolic links
            with file.open("rb") as opened:
                data = opened.read(MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise AuthorError("config.unreadable", f"{file} cannot be read: {error.strerror}") from None
    # Imported late: most projects have no such file, and every import slows start-up.
    from fanfold.language.diagnostics import FileRefused
    from fanfold.language.tables import Notes
    from fanfold.language.toml_text import parse_toml
    from fanfold.language.yaml_text import TextFormat

    form = TextFormat(name="config", max_bytes=MAX_FILE_BYTES, clean_text=False, clean_values=False)
    found, source, report = parse_toml(data, str(file), form)
    settings = {} if found is None else _settings(found, Notes(report, source), whose, known)
    if not report.ok:
        raise FileRefused(report.diagnostics, {str(file): source})
    return settings


def _settings(top: tree.Mapping, notes: Notes, whose: str, known: Mapping[str, Setting]) -> Found:
    from fanfold.language import tree
    from fanfold.language.tables import quoted

    found: Found = {}
    for section, table in top.entries:
        if section.text == _TABLES:
            found |= _tables(table, section, notes, whose)
            continue
        inside = isinstance(table, tree.Mapping)
        for word, value in table.entries if isinstance(table, tree.Mapping) else [(section, table)]:
            key = f"{section.text}.{word.text}" if inside else word.text
            key = OLDER_NAMES.get(key, key)
            setting = known.get(key)
            if setting is None:
                hint = _near(key, word.text, section.text if inside else "", notes, known)
                notes.error(".unknown_key", f"{quoted(key)} is not a setting", word, hint)
            elif whose in setting.not_in:
                instead = f"set {setting.env[0]} in the environment" if setting.env else "use your own file"
                notes.error(".not_here", f'"{key}" may not be set in this file', word, f"{instead} instead")
            elif whose == "project" and setting.only_less and _is_more(tree.plain(value), setting.default):
                hint = f"at most {setting.default} here; your own file and the environment may set more"
                notes.error(".not_wider", f'"{key}" may not be raised in this file', word, hint)
            else:
                found[key] = (tree.plain(value), f"{notes.source.file} ({key})")
    return found


def _near(key: str, word: str, section: str, notes: Notes, known: Mapping[str, Setting]) -> str:
    """Return the nearest setting, else the settings of the nearest section, else the sections."""
    names = {one.rpartition(".")[2]: one for one in known}  # the section may be missing or wrong
    if near := notes.nearest(key, known) or names.get(notes.nearest(word, names) or ""):
        return f'did you mean "{near}"?'
    sections = list(dict.fromkeys(one.rpartition(".")[0] for one in known))
    if found := section if section in sections else notes.nearest(section, sections):
        inside = (one.rpartition(".")[2] for one in known if one.startswith(f"{found}."))
        return f"[{found}] has {', '.join(inside)}"
    return f"settings are in {', '.join(f'[{one}]' for one in sections)}"


def _tables(table: tree.Node, section: tree.Scalar, notes: Notes, whose: str) -> Found:
    """The values of every table `[providers.NAME]`, by their whole keys."""
    from fanfold.language import tree
    from fanfold.language.tables import quoted

    found: Found = {}
    if whose == "project":
        hint = "providers are configured in config.toml in your own folder (~/.fanfold)"
        notes.error(".not_here", '"providers" may not be set in this file', section, hint)
        return found
    keys = [setting.key for setting in PROVIDER_SETTINGS]
    for name, inner in table.entries if isinstance(table, tree.Mapping) else ():
        if not re.fullmatch(_PROVIDER_NAME, name.text) or not isinstance(inner, tree.Mapping):
            hint = "write a table [providers.NAME]; NAME has small letters, digits, _ and -"
            notes.error(".bad_value", f"{quoted(name.text)} is not a provider", name, hint)
            continue
        found[f"{_TABLES}.{name.text}"] = (True, f"{notes.source.file} ({_TABLES}.{name.text})")
        for word, value in inner.entries:
            key = f"{_TABLES}.{name.text}.{word.text}"
            if word.text in keys:
                found[key] = (tree.plain(value), f"{notes.source.file} ({key})")
                continue
            near = notes.nearest(word.text, keys)
            hint = f"did you mean {quoted(near)}?" if near else f"keys: {', '.join(keys)}"
            notes.error(".unknown_key", f"{quoted(key)} is not a setting", word, hint)
    return found


def _is_in_table(key: str) -> bool:
    return key.startswith(f"{_TABLES}.")


def _table_setting(key: str) -> Setting:
    """The setting of a value in a table `[providers.NAME]`, with its whole key."""
    _, _, name = key.split(".", 2) if key.count(".") > 1 else ("", "", "")
    row = next((setting for setting in PROVIDER_SETTINGS if setting.key == name), None)
    return Setting(key, (), "switch") if row is None else replace(row, key=key)


def _provider(name: str, known: Sequence[Provider], found: Found) -> Provider:
    """The provider of a table `[providers.NAME]`."""
    place = f"{_TABLES}.{name}"
    table: dict[str, Any] = {}
    for setting in PROVIDER_SETTINGS:
        if (key := f"{place}.{setting.key}") in found:
            table[setting.key] = _checked(setting, *found[key], by_file=True)
    for listed in ("models", "prices"):
        if listed in table:
            table[listed] = json.loads(table[listed])
    table["prices"] = {model: Rate(**rate) for model, rate in table.get("prices", {}).items()}
    try:
        return configured(name, known, table)
    except ValueError as error:
        raise AuthorError("config.bad_value", f"{found[place][1]}: {error}") from None


def _is_more(value: object, default: object) -> bool:
    return isinstance(value, int) and isinstance(default, int) and value > default


def _checked(setting: Setting, raw: object, origin: str, by_file: bool) -> bool | int | str:
    if setting.kind == "switch":
        value = raw if isinstance(raw, bool) else _WORDS.get(str(raw).lower())
        if value is None:
            raise _bad(origin, raw, "on or off")
        return value
    if setting.kind == "integer":
        high = max(setting.high, setting.own_high) if by_file else setting.high
        return _integer(raw, origin, setting.low, high)
    if setting.kind == "names":
        # Names from a list or from one text, as one text separated by spaces
        listed = raw.replace(",", " ").split() if isinstance(raw, str) else raw
        if not isinstance(listed, list) or not all(
            isinstance(text, str) and re.fullmatch(_NAME, text) for text in listed
        ):
            raise _bad(origin, raw, "a list of names")
        if setting.choices and not set(listed) <= set(setting.choices):
            raise _bad(origin, raw, f"a list of {', '.join(setting.choices)}")
        return " ".join(listed)
    readers: dict[str, Callable[[object, str], int | str]] = {
        "digests": _digests,
        "prices": _prices,
        "texts": _texts,
        "paths": _paths,
        "dollars": _dollars,
    }
    if (read := readers.get(setting.kind)) is not None:
        return read(raw, origin)
    if not isinstance(raw, str):
        raise _bad(origin, raw, "text")
    if setting.kind == "variable" and not re.fullmatch(_NAME, raw):  # not shown: it may be the key itself
        raise AuthorError("config.bad_value", f"{origin} must be the name of an environment variable")
    if setting.kind == "choice" and raw.lower() not in setting.choices:
        raise _bad(origin, raw, " or ".join(setting.choices))
    if setting.kind == "url" and raw and not re.match(_URL, raw):
        shown = raw.rpartition("@")[2].partition("?")[0]
        raise _bad(origin, shown, "an address with http:// or https:// before it")
    return raw.lower() if setting.kind == "choice" else raw


def _paths(raw: object, origin: str) -> str:
    """A list of files of a project, relative to it, as JSON. Files of git and Fanfold cannot be listed."""
    for path in json.loads(_texts(raw, origin)):
        names = path.split("/")
        if not names[0] or {"", ".", ".."} & {*names} or {".git", ".fanfold"} & {*map(str.lower, names)}:
            raise _bad(origin, path, "a list of files of the project, such as .env.test")
    return _texts(raw, origin)


def _texts(raw: object, origin: str) -> str:
    """A list of texts, as JSON."""
    listed = raw if isinstance(raw, list) else [None]
    if not all(
        isinstance(text, str) and 0 < len(text) <= MAX_TEXT_CHARS and text.isprintable() for text in listed
    ):
        raise _bad(origin, raw, f"a list of texts of at most {MAX_TEXT_CHARS} characters")
    return json.dumps(listed)


def _digests(raw: object, origin: str) -> str:
    """Digests of tokens, as one text separated by spaces. The tokens themselves are never stored."""
    listed = [one for one in (raw if isinstance(raw, list) else [raw]) if isinstance(one, str)]
    if (
        not listed
        or not all(map(_DIGEST.fullmatch, listed))
        or (isinstance(raw, list) and len(raw) > len(listed))
    ):
        raise _bad(origin, "[…]", "a list of digests, as fanfold serve --new-token operator prints them")
    return " ".join(listed)


def _dollars(raw: object, origin: str) -> int:
    """An amount in dollars, converted to micro-dollars."""
    try:
        amount = float(raw) if isinstance(raw, int | float | str) and not isinstance(raw, bool) else 0.0
    except ValueError:
        amount = 0.0
    if not 0.000_001 <= amount <= MAX_PRICE:
        raise _bad(origin, raw, f"dollars, more than 0 and at most {MAX_PRICE:,}")
    return round(amount * 1_000_000)


def _prices(raw: object, origin: str) -> str:
    """Dollars per million tokens, by model, as JSON.

    By default, cached input costs as much as other input.
    """
    allowed = 'a table of models: "NAME" = { input = 0.25, output = 2, cached = 0.025 }, dollars per million'
    rates: dict[str, dict[str, float]] = {}
    for name, given in raw.items() if isinstance(raw, dict) else ():
        known = isinstance(given, dict) and {"input", "output"} <= given.keys() <= {
            "input",
            "output",
            "cached",
        }
        amounts = given.values() if isinstance(given, dict) else ()
        if not known or not all(
            isinstance(amount, int | float) and not isinstance(amount, bool) and 0 <= amount <= MAX_PRICE
            for amount in amounts
        ):
            raise _bad(f"{origin} for {name}", given, allowed)
        rates[name] = {"cached": given["input"], **given}
    if not rates:
        raise _bad(origin, raw, allowed)
    return json.dumps(rates)


def _integer(raw: object, origin: str, low: int, high: int) -> int:
    allowed = f"a whole number from {low} to {high}" if high < _LARGEST else f"a whole number, at least {low}"
    text = str(raw) if isinstance(raw, int | str) and not isinstance(raw, bool) else ""
    if len(text) > 16 or not text.lstrip("-").isdecimal():
        raise _bad(origin, raw, allowed)
    value = int(text)
    if not low <= value <= high:
        raise _bad(origin, raw, allowed, code="config.out_of_range")
    return value


def _bad(origin: str, raw: object, allowed: str, code: str = "config.bad_value") -> AuthorError:
    shown = str(raw)[:60]
    return AuthorError(code, f"{origin} is {shown!r}, but must be {allowed}", details={"origin": origin})


# -----------------------------------------------------------------------------------------------------------
# The choice of the model for a step, and its reason
#
# The first match wins:
# 1. The model named by the step or its role, else by `--model`, else by `FANFOLD_MODEL` (or `models.model`
#    in a file).
# 2. The first provider of the table whose key is set, with that provider's default model.
# 3. The local model, if its library is installed and its weights are on this machine.
# 4. Otherwise an error that lists these options with the commands to type.
#
# A choice that cannot work (a provider without its key, weights that were never pulled) is refused here,
# before a run starts. This code does not inspect the machine: the caller passes in the local state.
#
# Recipes, roles and a project's file come with a checkout. They may name a model. They may name weights by
# path only if the user named them too, because a native library loads these weights as the user.

LOCAL_MODEL = f"{PROVIDER}:{SMOLLM2}"


class Choice(Struct, frozen=True):
    """A model and the reason it was chosen."""

    model: str
    """The model as the model back end accepts it: `openai:gpt-5.2`, `local:smollm2`."""
    name: str
    """The name of the model without its provider."""
    provider: Provider | None
    """The provider of the model, or None for a local model."""
    why: str
    fast_model: str | None = None
    """The model for small tasks, if no model was named."""


def choose_model(
    config: Config, local: LocalState, *, asked: str | None = None, flag: str | None = None
) -> Choice:
    """The model to use; a step or role names `asked`, the user's command line names `flag`.

    >>> from pathlib import Path
    >>> config = Config.read(Path("."), {"FANFOLD_HOME": "/nonexistent", "ANTHROPIC_API_KEY": "…"})
    >>> choose_model(config, LocalState(installed=False, pulled=False)).model
    'anthropic:claude-sonnet-4-6'
    """
    configured, origin = config.text("models.model"), config.origins["models.model"]
    if asked is not None:
        by_user = (flag, None if _is_of_project(config, origin) else configured)
        if is_weights_file(asked) and asked not in by_user:
            raise _not_here("the recipe or role", asked)
        return _named(asked, "the step or its role asks for it", config, local)
    if flag is not None:
        return _named(flag, "it was asked for", config, local)
    if configured is not None:
        if is_weights_file(configured) and _is_of_project(config, origin):
            raise _not_here(origin, configured)
        return _named(configured, f"{origin} says so", config, local)
    access = config.access
    reachable = [row for row in access.providers if access.is_usable(row)]
    usable = [row for row in reachable if row.default_model]
    if usable:
        # A provider with a key comes before a server that may need none.
        row = next((row for row in usable if row.name in access.keys), usable[0])
        if row.imitated is not None and row.name in access.addresses:
            origin = config.origins[row.address_setting]
            message = f"{origin} is set, but not which of that server's models to use"
            raise AuthorError("model.unnamed", message, hint=f"set FANFOLD_MODEL={row.name}:NAME")
        why = f"{row.key_variable} is set" if row.name in access.keys else "it is the configured provider"
        return Choice(row.default, row.default_model, row, why, row.fast)
    if local.ready:
        return Choice(LOCAL_MODEL, SMOLLM2, None, "no provider is configured, and the local model is here")
    if reachable:
        raise AuthorError(
            "model.unnamed",
            f"{reachable[0].name} is configured, but not which of its models to use",
            hint=f"set FANFOLD_MODEL={reachable[0].name}:NAME",
        )
    if local.installed:
        raise AuthorError(
            "provider.none",
            "no model: the local one has no weights yet, and no key is set",
            hint=f"{PULL_HINT}, which needs no key; or {_remote_ways(access)}",
        )
    raise AuthorError(
        "provider.none",
        "no model: no provider is configured and the local model is not installed",
        hint=f"use the local model, which needs no key: {INSTALL_HINT} && {PULL_HINT}; "
        f"or {_remote_ways(access)}",
    )


def _named(model: str, why: str, config: Config, local: LocalState) -> Choice:
    word, colon, rest = model.partition(":")
    if colon and rest and word == PROVIDER:
        if not local.installed:
            raise WorldError(
                "local.not_installed", f'"{model}" needs llama.cpp, which is not installed', hint=INSTALL_HINT
            )
        if model == LOCAL_MODEL and not local.pulled:
            raise WorldError(
                "local.not_pulled", f'the weights of "{model}" are not downloaded yet', hint=PULL_HINT
            )
        return Choice(model, rest, None, why)
    access = config.access
    meant = access.understand(model)
    if meant is None:
        raise AuthorError(
            "model.unknown_provider",
            f'"{model}" names an unknown provider',
            hint=f"write provider:name; providers are {', '.join([*access.words(), PROVIDER])}; "
            "a table [providers.NAME] in your own config.toml adds one",
        )
    if not access.is_usable(meant.provider):
        message, hint = access.why_unusable(meant.provider, model)
        raise AuthorError(
            "model.no_key", message, hint=f"{hint}, or choose a model that needs no key: {LOCAL_MODEL}"
        )
    return Choice(model, meant.name, meant.provider, why)


def _is_of_project(config: Config, origin: str) -> bool:
    return origin != "FANFOLD_MODEL" and not origin.startswith(f"{config.home / 'config.toml'} ")


def _not_here(where: str, model: str) -> AuthorError:
    return AuthorError(
        "model.not_here",
        f"{where} names weights by path ({model}); only the user may do that",
        hint=f"if you trust the file: FANFOLD_MODEL={model}",
    )


def _remote_ways(access: Access) -> str:
    keys = " or ".join(row.key_variable for row in access.providers if not row.by_table)
    servers = " or ".join(row.address_variable for row in access.providers if row.imitated is not None)
    return (
        f"set {keys}; or name a model with FANFOLD_MODEL (for a compatible server also {servers}); "
        "or try the recipe with scripted agents: --script FILE"
    )
