"""What an agent brings into its private home: the user's configuration of it, and what opens its provider.

Rules
* The user's own folders are read and never written. What a session changes stays in its own home.
* Configuration is copied once, when the home is made. It is the user's own: links in it are followed, sizes
  are bounded.
* Credentials are those that the user named. They are put there when a program starts and taken away when it
  ends, so that none is kept with a conversation. What is lent is noted first: if we die meanwhile, whoever
  opens the project next takes it away.
* A login is copied without what can be used up: many providers take a refresh token once and give another
  one, and the user's own copy would be worth nothing. The agent works with the access token as long as that
  lasts; renewing it is left to the user's own agent.
* Variables pass by name alone: settings of the sandbox we run in ourselves, of other agents, of terminals do
  not.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from fanfold.agents.command.own_files import read_own
from fanfold.agents.command.profile import LOGIN, Profile
from fanfold.errors import WorldError
from fanfold.workspace.homes import (
    forget_lent,
    is_lent_by_another,
    note_lent,
    remove_beneath,
    write_beneath,
)

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_FILES = 2_000
MAX_BYTES = 64 * 1024 * 1024
MIN_SECRET_CHARS = 16


class Belongings:
    """What one agent may have of its user, on this machine."""

    def __init__(self, profile: Profile, environment: Mapping[str, str]) -> None:
        self._profile = profile
        self._environment = environment
        self._user = Path(environment.get("HOME") or Path.home())

    # ------------------------------------------------------------------------------ configuration

    def furnish(self, home: Path) -> None:
        """Copy the user's configuration into a new home."""
        state = self._profile.state
        target = home / state.folder
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        left = [MAX_FILES, MAX_BYTES]
        for name in state.config:
            _copy(self._folder() / name, target / name, left)

    def _folder(self) -> Path:
        state = self._profile.state
        given = self._environment.get(state.variable, "").strip() if state.variable else ""
        return Path(given).expanduser() if given else self._user / state.folder

    def _login_files(self) -> Iterator[tuple[Path, str]]:
        """Where each file of the login is, and where it belongs below a home."""
        for name in self._profile.state.login:
            if name.startswith("~/"):
                yield self._user / name[2:], name[2:]
            else:
                yield self._folder() / name, f"{self._profile.state.folder}/{name}"

    # -------------------------------------------------------------------------------- credentials

    def lend(self, home: Path, files: Mapping[str, bytes]) -> None:
        """Put there what is taken back when the agent ends: these files, by place, and the login, without
        what could be used up, if the user named it.
        """
        logins = list(self._login_files()) if LOGIN in self._profile.credentials else []
        if not (files or logins):
            return
        note_lent(home, [*files, *(place for _, place in logins)])
        for place, data in files.items():
            write_beneath(home, place, data)
        for source, place in logins:
            try:
                data = _read(source)
            except FileNotFoundError:
                continue
            write_beneath(home, place, self._without_renewal(data, source))

    def take_back(self, home: Path, files: Iterable[str]) -> None:
        """Take the login and these files out of a home, whatever the agent made of them. Where another
        process took the run over while this one was stopped, that one does.
        """
        if is_lent_by_another(home):
            return
        for place in (*files, *(place for _, place in self._login_files())):
            remove_beneath(home, place)
        forget_lent(home)

    def _without_renewal(self, data: bytes, source: Path) -> bytes:
        state = self._profile.state
        if not (state.withheld or state.expires):
            return data
        try:
            value = msgspec.json.decode(data)
        except msgspec.DecodeError:
            hint = f"log in again with {self._profile.program}"
            raise WorldError(
                "agent.bad_login", f"{source} is no login that is known here", hint=hint
            ) from None
        expires = next(iter(found_at(value, state.expires)), None) if state.expires else None
        if isinstance(expires, int | float) and expires < time.time() * 1_000:
            message = f"the login of {self._profile.title} has run out"
            hint = f"start {self._profile.program} once by yourself, which renews it; then try again"
            raise WorldError("agent.login_expired", message, hint=hint)
        for path in state.withheld:
            _put(value, path.split("."), "")
        for path in state.renewed:
            _put(value, path.split("."), datetime.now(UTC).isoformat().replace("+00:00", "Z"))
        return msgspec.json.encode(value)

    def variables(self) -> tuple[dict[str, str], frozenset[str]]:
        """The variables of a session, and which of them are secrets that the user named."""
        profile, ours = self._profile, self._environment
        found = {
            name: ours[name] for name in (*profile.access.plain, *profile.access.addresses) if ours.get(name)
        }
        named = frozenset(name for name in profile.credentials if name != LOGIN and ours.get(name))
        found |= {name: ours[name] for name in named}
        return {**found, **profile.environment}, named

    def secrets(self) -> list[str]:
        """What nobody may read of what the agent is lent, so that it can be taken out of its words."""
        values, named = self.variables()
        found = [values[name] for name in named]
        for source, _ in self._login_files() if LOGIN in self._profile.credentials else ():
            try:
                found += _texts(msgspec.json.decode(_read(source)))
            except (OSError, ValueError, WorldError):
                continue
        return [one for one in found if len(one) >= MIN_SECRET_CHARS]

    def offered(self) -> list[str]:
        """What there is on this machine that the user could name, and did not say anything about."""
        keys = [*self._profile.access.keys, *self._config_values(self._profile.state.keys)]
        found = [name for name in dict.fromkeys(keys) if self._environment.get(name)]
        login = any(source.is_file() for source, _ in self._login_files())
        return [*([LOGIN] if login else []), *found]

    # ------------------------------------------------------------------------------------ network

    def is_elsewhere(self) -> bool:
        """Whether somebody else than its own provider may be asked: what that costs is not known."""
        profile, ours = self._profile, self._environment
        return any(ours.get(name) for name in profile.access.addresses) or bool(
            self._config_values(profile.state.addresses)
        )

    def hosts(self) -> list[str]:
        """The `host:port` that the agent's provider is at."""
        profile, ours = self._profile, self._environment
        own = [ours[name] for name in profile.access.addresses if ours.get(name)]
        own += self._config_values(profile.state.addresses)
        wanted = [*own, *profile.access.hosts, *profile.hosts]
        return list(dict.fromkeys(filter(None, map(host_and_port, wanted))))

    def _config_values(self, by_file: Mapping[str, tuple[str, ...]]) -> list[str]:
        found: list[str] = []
        for name, paths in by_file.items():
            try:
                value = _decoded(name, _read(self._folder() / name))
            except (OSError, ValueError):
                continue  # the agent itself will say what is wrong with it
            for path in paths:
                found += [one for one in found_at(value, path) if isinstance(one, str)]
        return found


def host_and_port(address: str) -> str:
    """Where an address leads, as `host:port`; empty for what is none.

    >>> host_and_port("http://127.0.0.1:8791/v1"), host_and_port("api.openai.com")
    ('127.0.0.1:8791', 'api.openai.com:443')
    """
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(address if "://" in address else f"https://{address}")
        port = parts.port or (80 if parts.scheme in ("http", "ws") else 443)
    except ValueError:
        return ""
    return f"{parts.hostname.lower()}:{port}" if parts.hostname else ""


def found_at(value: Any, path: str) -> list[Any]:
    """What is at a path of names with dots; `*` is every name.

    >>> found_at({"a": {"x": {"u": 1}, "y": {"u": 2}}}, "a.*.u")
    [1, 2]
    """
    found = [value]
    for name in path.split("."):
        tables = [one for one in found if isinstance(one, dict)]
        found = [inner for one in tables for key, inner in one.items() if name in ("*", key)]
    return found


def _put(value: Any, path: list[str], text: str) -> None:
    if not isinstance(value, dict):
        return
    for key in list(value):
        if path[0] not in ("*", key):
            continue
        if len(path) == 1:
            value[key] = text
        else:
            _put(value[key], path[1:], text)


def _texts(value: Any) -> list[str]:
    """Every text in a value; names are none."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for one in inner for text in _texts(one)]


def _decoded(name: str, data: bytes) -> Any:
    if name.endswith(".toml"):
        import tomllib

        return tomllib.loads(data.decode())
    return msgspec.json.decode(data)


def _read(file: Path) -> bytes:
    try:
        return read_own(file, MAX_FILE_BYTES)
    except ValueError as error:
        raise WorldError("agent.bad_config", str(error)) from None


def _copy(source: Path, target: Path, left: list[int]) -> None:
    """Copy a file or folder as far as the bounds allow."""
    if source.is_file():
        size = source.stat().st_size
        left[0], left[1] = left[0] - 1, left[1] - size
        if size <= MAX_FILE_BYTES and left[0] >= 0 and left[1] >= 0:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            target.chmod(0o600 | (source.stat().st_mode & 0o100))
    elif source.is_dir() and left[0] >= 0:
        for entry in sorted(source.iterdir()):
            _copy(entry, target / entry.name, left)
