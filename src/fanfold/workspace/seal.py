"""Verifies that the state of a project was written by this user's Fanfold, for this very folder.

A project's `.fanfold` contains files of the repository (`workflows/`, `agents/`, `config.toml`) and state:
the database, unfinished merges, snapshots, runs. State decides which files Fanfold writes, so only the user's
own state is trusted. A clone, an archive or another user can put any files there.

Rules
* The seal proves that this user created the state for this folder. It contains the folder's path and inode,
  signed with a secret that never leaves the user's own folder. Without a valid seal, no other file is opened.
* It also records whether the database is keyed with that secret. If it is, a database without the key is
  never accepted in its place. If not (an older version created it, or it was adopted), it is keyed when it is
  next opened.
* State that came with a commit is foreign, even with a valid seal: git overwrites ignored files without a
  warning.
* A genuine seal of this user for another place is accepted in two cases: the other place no longer has it
  (the folder was moved), or only the folder was created again (restored from a cache or a backup). It is
  renewed, and the user gets a notice. A copy next to its original is foreign.
* Links, and files of other users, are foreign.
* Only files that Fanfold itself reads are state (`is_state`). Other files in the folder are never opened.
* `claim` writes a seal before the first state is created, and `require_ours` when it renews one.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from fanfold.errors import EXIT_PERMISSION, FanfoldError, WorldError
from fanfold.project_files import Closing, read_beneath, write_beneath, write_whole
from fanfold.workspace.layout import UnreadableIndex, find_repository, is_split, tracked_below

OWN_FOLDER = ".fanfold"
SEAL = "state.seal"
ADOPTED = "adopted.json"
"""The runs that were in the state when it was adopted; see `list_adopted`."""
SECRET = "secret"  # noqa: S105 - the name of the file that holds it
STATE = frozenset(
    (*"fanfold.db index index.lock runs wake subagents workspace smoke ctx".split(), SEAL, ADOPTED)
)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
STATE_PREFIXES = ("fanfold.db-", "index.old.")
"""Prefixes of other state files: files next to the database, and an index that is being removed."""
VERSION = 2
"""Seals of version 1 do not record whether the database is keyed."""
MAX_SEAL_BYTES = 16 * 1024
THEIRS = "the folder belongs to another user, who could replace whatever is in it"
MAKE_YOURS = "make the folder yours (chown), or work in a copy of the project"
HINT = "fanfold state show says what it holds, fanfold state adopt keeps it, fanfold state remove deletes it"


class StateForeign(WorldError):
    """The state is not from this user's Fanfold; none of it was read."""

    def __init__(self, folder: Path, why: str, hint: str = HINT) -> None:
        message = f"the state in {folder} is not from this user's Fanfold: {why}"
        details = {"folder": str(folder), "why": why}
        super().__init__("state.foreign", message, hint=hint, details=details, exit_status=EXIT_PERMISSION)
        self.why = why


def is_state(name: str) -> bool:
    """Return whether a file name in the folder is state. File systems may ignore case.

    >>> [name for name in ("fanfold.db-wal", "Runs", "README.md", "workflows") if is_state(name)]
    ['fanfold.db-wal', 'Runs']
    """
    plain = name.casefold()
    return plain in STATE or plain.startswith(STATE_PREFIXES)


def require_ours(project: Path, home: Path) -> str:
    """Raise `StateForeign` if there is foreign state; renew the seal of moved or restored state.

    Returns a notice if it was renewed.
    """
    folder = project / OWN_FOLDER
    why = why_foreign(project, home)
    if why:
        raise StateForeign(folder, why, _untrack_hint(project) or HINT)
    try:
        opened = os.open(project / OWN_FOLDER, _FOLDER)
    except OSError:
        return ""
    with Closing(opened) as handle:
        _, place = _read_seal(handle, project, home)
        if place:
            parsed = _parse_seal(handle)
            with suppress(OSError):  # in a read-only folder it is recognised again the next time
                _write_seal(handle, project, home, keyed=not isinstance(parsed, str) and parsed.keyed)
    if not place:
        return ""
    moved = place != os.path.realpath(project)
    return (
        f"the state of this project was {f'moved from {place}' if moved else 'restored'}; it continues here"
    )


def why_foreign(project: Path, home: Path) -> str:
    """Return why the state of a project is foreign; empty if it is ours or there is none."""
    try:
        opened = os.open(project / OWN_FOLDER, _FOLDER)
    except FileNotFoundError:
        return ""
    except OSError:
        return "it is a link, a file, or may not be opened"
    with Closing(opened) as handle:
        state = sorted(filter(is_state, os.listdir(handle)))
        if not state:
            return ""
        if os.fstat(handle).st_uid != os.geteuid():
            return THEIRS
        for name in state:
            try:
                status = os.stat(name, dir_fd=handle, follow_symlinks=False)
            except FileNotFoundError:
                continue  # another process has just closed its database
            if stat.S_ISLNK(status.st_mode):
                return f'"{name}" is a link'
            if status.st_uid != os.geteuid():
                return f'"{name}" belongs to another user'
        return _read_seal(handle, project, home)[0] or _why_brought(project)


def claim(project: Path, home: Path) -> None:
    """Make the folder private and seal it, before the first state is written."""
    require_ours(project, home)
    folder = project / OWN_FOLDER
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = os.open(folder, _FOLDER)
    except OSError as error:
        message = f"{folder} cannot be used: {error.strerror}"
        hint = "check that the project's folder may be written and the disk has space"
        raise WorldError("store.cannot_open", message, hint=hint) from error
    with Closing(opened) as handle:
        status = os.fstat(handle)
        if status.st_uid != os.geteuid():
            raise StateForeign(folder, THEIRS, MAKE_YOURS)
        if stat.S_IMODE(status.st_mode) != 0o700:
            os.fchmod(handle, 0o700)  # our files in it must not be readable for other users
        if _read_seal(handle, project, home)[0]:
            # If a commit contains state, all state here would count as the commit's from now on.
            if why := _why_brought(project):
                raise StateForeign(folder, why, _untrack_hint(project))
            _write_seal(handle, project, home, keyed=True)


def chain_key(home: Path) -> bytes:
    """Return the key that binds stored data to this user; empty if there is no secret yet."""
    import hashlib

    secret = _read_secret(home)
    return hashlib.blake2b(b"fanfold chain", key=secret[:64], digest_size=32).digest() if secret else b""


def is_keyed(project: Path, home: Path) -> bool:
    """Return whether the verified seal records that the database is keyed."""
    try:
        opened = os.open(project / OWN_FOLDER, _FOLDER)
    except OSError:
        return False
    with Closing(opened) as handle:
        parsed = _parse_seal(handle)
        return not isinstance(parsed, str) and parsed.keyed and not _read_seal(handle, project, home)[0]


def note_keyed(project: Path, home: Path) -> None:
    """Record in the seal that the database is keyed now."""
    if is_keyed(project, home):
        return
    with Closing(os.open(project / OWN_FOLDER, _FOLDER)) as handle:
        _write_seal(handle, project, home, keyed=True)


def adopt(project: Path, home: Path) -> None:
    """Accept the existing state as the user's own. The user has inspected it and confirmed this."""
    folder = project / OWN_FOLDER
    with Closing(os.open(folder, _FOLDER)) as handle:
        if not any(map(is_state, os.listdir(handle))):
            message = f"there is no state in {folder}"
            raise WorldError("state.none", message, hint="nothing needs to be adopted")
        if os.fstat(handle).st_uid != os.geteuid():
            raise StateForeign(folder, THEIRS, MAKE_YOURS)
        os.fchmod(handle, 0o700)
        _write_seal(handle, project, home, keyed=False)
    require_ours(project, home)


def remove(project: Path) -> list[str]:
    """Delete all state and nothing else; return the deleted names. No link is followed."""
    folder = project / OWN_FOLDER
    if folder.is_symlink():
        os.unlink(folder)
        return [OWN_FOLDER]
    import shutil

    gone = sorted(filter(is_state, os.listdir(folder)))
    for name in gone:
        thing = folder / name
        if not thing.is_symlink() and thing.is_dir():
            make_removable(thing)
            shutil.rmtree(thing)
        else:
            thing.unlink()
    return gone


def list_state(project: Path) -> list[tuple[str, str, int]]:
    """List the state: name, type and size of each entry. No file is opened."""
    folder = project / OWN_FOLDER
    if folder.is_symlink():
        return [(OWN_FOLDER, "link", 0)]
    rows: list[tuple[str, str, int]] = []
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    for entry in entries:
        if not is_state(entry.name):
            continue
        if entry.is_symlink():
            rows.append((entry.name, "link", 0))
        elif entry.is_dir(follow_symlinks=False):
            rows.append((entry.name, "folder", size_below(entry.path)))
        else:
            found = entry.stat(follow_symlinks=False)
            rows.append((entry.name, "file" if stat.S_ISREG(found.st_mode) else "special", found.st_size))
    return rows


def is_users_own(project: Path, home: Path) -> bool:
    """Return whether the project's `.fanfold` is also the user's own: the project is the home folder."""
    return os.path.join(os.path.realpath(project), OWN_FOLDER) == os.path.realpath(home)


# The seal


def _read_seal(handle: int, project: Path, home: Path) -> tuple[str, str]:
    """Return why the seal is not valid, and the path it was made for if that is another one."""
    parsed = _parse_seal(handle)
    if isinstance(parsed, str):
        return parsed, ""
    import hmac

    secret, here, number = _read_secret(home), os.path.realpath(project), os.fstat(handle).st_ino
    if secret and hmac.compare_digest(parsed.mac, _sign(secret, parsed._replace(path=here, inode=number))):
        return "", ""
    signed = _sign(secret, parsed._replace(inode=parsed.inode or number))
    if not secret or not hmac.compare_digest(parsed.mac, signed):
        return "its seal is not of this user, or was made with another FANFOLD_HOME", ""
    if parsed.inode not in (0, number) and parsed.path != here:
        try:
            opened = os.open(Path(parsed.path) / OWN_FOLDER, _FOLDER)
        except OSError:
            return "", parsed.path
        with Closing(opened) as other:
            original = _parse_seal(other)
        if not isinstance(original, str) and original.mac == parsed.mac:
            return f"it is a copy of the state in {parsed.path}, which is adopted first", ""
    return "", parsed.path


class _Seal(NamedTuple):
    path: str
    inode: int
    """0 in seals without an inode."""
    version: int
    keyed: bool
    mac: str = ""


def _parse_seal(handle: int) -> _Seal | str:
    """Return the parsed seal, or the reason why it cannot be read."""
    try:
        seal = os.open(SEAL, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
    except OSError:
        return "it has no seal"
    with os.fdopen(seal, "rb") as opened:
        regular = stat.S_ISREG(os.fstat(seal).st_mode)
        data = opened.read(MAX_SEAL_BYTES) if regular else b""
    try:
        raw: Any = json.loads(data)
        version, keyed = int(raw["version"]), raw.get("keyed") is True
        return _Seal(str(raw["project"]), int(raw.get("inode", 0)), version, keyed, str(raw["mac"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "its seal cannot be read"


def _write_seal(handle: int, project: Path, home: Path, *, keyed: bool) -> None:
    secret = _read_secret(home) or _make_secret(home)
    seal = _Seal(os.path.realpath(project), os.fstat(handle).st_ino, VERSION, keyed)
    document = {"version": VERSION, "project": seal.path, "inode": seal.inode, "keyed": keyed}
    write_whole(SEAL, json.dumps({**document, "mac": _sign(secret, seal)}).encode(), folder=handle)


def _sign(secret: bytes, seal: _Seal) -> str:
    import hmac

    parts: list[Any] = [seal.version, seal.path, seal.inode]
    text = json.dumps(parts if seal.version == 1 else [*parts, seal.keyed], ensure_ascii=True)
    return hmac.new(secret, text.encode(), "sha256").hexdigest()


def _read_secret(home: Path) -> bytes:
    try:
        return (home / SECRET).read_bytes()
    except OSError:
        return b""


def _make_secret(home: Path) -> bytes:
    """Create the secret of this user once; a concurrent second process uses the first one's."""
    file = home / SECRET
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = home / f".{SECRET}.{os.urandom(4).hex()}"
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(os.urandom(32))
        with suppress(FileExistsError):
            os.link(beside, file)
        os.unlink(beside)
        return file.read_bytes()
    except OSError as error:
        message = f"{file} cannot be made: {error.strerror}"
        raise WorldError(
            "state.no_secret", message, hint="set FANFOLD_HOME to a folder that you own"
        ) from error


# State in commits


def _why_brought(project: Path) -> str:
    """Return the reason if git's index contains state: then a commit brought it, despite a valid seal."""
    try:
        names = _tracked(project)
    except UnreadableIndex:
        return "git's index cannot be read, which could have brought it"
    return f'"{names[0]}" came with a commit' if names else ""


def _untrack_hint(project: Path) -> str:
    """Return the hint how to remove state from a repository; empty if it contains none."""
    try:
        names = _tracked(project)
    except UnreadableIndex:
        return ""
    if not names:
        return ""
    paths = shlex.join(f"{OWN_FOLDER}/{name}" for name in names)
    repository = find_repository(Path(os.path.realpath(project)))
    split = repository is not None and is_split(repository.index_file)
    whole = "; git update-index --no-split-index" if split else ""
    return f"take it out of the repository first, in the project's folder: git rm -r --cached {paths}{whole}"


def _tracked(project: Path) -> list[str]:
    """Return the names of state files in git's index."""
    repository = find_repository(Path(os.path.realpath(project)))
    if repository is None:
        return []
    below = os.path.relpath(os.path.realpath(project), repository.top)
    folder = OWN_FOLDER if below == "." else f"{below}/{OWN_FOLDER}"
    paths = tracked_below(repository.index_file, folder)
    names = (path.removeprefix(f"{folder}/").partition("/")[0] for path in paths)
    return [name for name in dict.fromkeys(names) if is_state(name)]


# Removing


def make_removable(top: Path) -> None:
    """Give folders the modes that deletion needs; folders of a snapshot may lack them."""
    for here, folders, _ in os.walk(top):
        for name in folders:
            inner = os.path.join(here, name)
            if not os.path.islink(inner):
                os.chmod(inner, 0o700)


def size_below(folder: str) -> int:
    """Return the total size of the files below a folder."""
    total = 0
    for here, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(here, name)).st_size
            except OSError:
                continue
    return total


# -----------------------------------------------------------------------------------------------------------
# Adopted runs: runs that were in state when it was adopted
#
# Another user may have written the permissions, replies and choice of back end in their logs. Such a run does
# not continue until the user has seen what it does and permitted it. It stays foreign after that: the
# permissions in its log never apply here.
#
# The list is part of the state. It is written before the state is adopted, as "every run", and made exact
# afterwards. A crash in between leaves too many runs on it, never too few, until the store is next opened.
# Changes require a lock, so that a name that another process adds meanwhile is not lost.

EVERY = "*"
PERMITTED = "permitted:"
"""The prefix of a run that the user permitted here. It never occurs in a run id."""
MAX_BYTES = 16 * 1024 * 1024


class RunAdopted(WorldError):
    """The run must not continue before this user has permitted it."""

    def __init__(self, root: str) -> None:
        message = f"run {root} was in this folder when its state was adopted; nobody here permitted it yet"
        hint = f"fanfold resume {root} shows what it does and asks"
        super().__init__("run.adopted", message, hint=hint, exit_status=EXIT_PERMISSION)


def adopt_with_runs(project: Path, home: Path) -> None:
    """Adopt the state; all its runs must be permitted before they continue."""
    _write(project, [EVERY])
    adopt(project, home)


def list_adopted(project: Path, list_runs: Callable[[], Iterable[str]]) -> None:
    """Replace "every run" by the actual runs, unless that was done before."""
    # a store that cannot be opened cannot be listed: every run stays on the list
    with suppress(OSError, FanfoldError):
        if EVERY not in _read(project):
            return
        with _locked(project):
            if EVERY in _read(project):
                known = [line for line in _read(project) if line.startswith(PERMITTED)]
                runs = [root for root in list_runs() if PERMITTED + root not in known]
                _write(project, sorted((*known, *runs)))


def is_foreign(project: Path, root: str) -> bool:
    """Return whether a run came from elsewhere, permitted here since or not."""
    listed = _listed(project)
    return root in listed or EVERY in listed or PERMITTED + root in listed


def add_adopted(project: Path, root: str) -> None:
    """Record that a single run came from elsewhere: it must be permitted like the runs of adopted state."""
    with _locked(project):
        _write(project, sorted({*_listed(project), root}))


def is_adopted(project: Path, root: str) -> bool:
    """Return whether a run must be permitted before it continues."""
    listed = _listed(project)
    return root in listed or EVERY in listed


def require_permitted(project: Path, root: str) -> None:
    """Raise `RunAdopted` if the user has not permitted the run."""
    if is_adopted(project, root):
        raise RunAdopted(root)


def permitted(project: Path, root: str) -> None:
    """Record that the user has seen what a run does, and permitted it."""
    with _locked(project):
        listed = _listed(project)
        if root in listed:
            _write(project, [PERMITTED + root if one == root else one for one in listed])


def _listed(project: Path) -> list[str]:
    try:
        return _read(project)
    except OSError:
        return [EVERY]


def _read(project: Path) -> list[str]:
    """Return the list; "every run" if the file is not a valid list."""
    try:
        data = read_beneath(project, project / OWN_FOLDER / ADOPTED, MAX_BYTES)
    except FileNotFoundError:
        return []
    try:
        listed = json.loads(data)
        return [str(root) for root in listed] if isinstance(listed, list) else [EVERY]
    except (ValueError, RecursionError):
        return [EVERY]


def _write(project: Path, listed: list[str]) -> None:
    write_beneath(project, f"{OWN_FOLDER}/{ADOPTED}", json.dumps(listed).encode(), mode=0o600)


@contextmanager
def _locked(project: Path) -> Iterator[None]:
    """Hold the lock of the list; it ends with its process, even if the process is killed."""
    with Closing(os.open(project / OWN_FOLDER, _FOLDER)) as folder:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield


# -----------------------------------------------------------------------------------------------------------
# Commands that the user always allows agents to run in a project, kept in the user's own folder
#
# Rules
# * They are stored under `FANFOLD_HOME`, never in the project: a checkout cannot bring a grant.
# * A grant belongs to one folder, by path and inode, as the seal of its state does. Another folder at the
#   same path has none.
# * Only the exact command line counts. A file that cannot be read holds no grant: then the user is asked.

GRANTS = "permissions.json"
MAX_GRANTS_BYTES = 4 * 1024 * 1024
MAX_COMMANDS = 1_000
"""The maximum per project; the oldest are dropped."""


class ProjectGrants:
    def __init__(self, home: Path, project: Path) -> None:
        self._home = home
        self._project = project

    def allows(self, command: str) -> bool:
        """Return whether the user always allows this command line in this project."""
        key = self._key()
        return key is not None and command in _granted_commands(self._read(), key)

    def add(self, command: str) -> None:
        """Always allow a command line from now on. Raises `OSError` if that cannot be stored."""
        key = self._key()
        if key is None:
            return
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self._home / f"{GRANTS}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = self._read()
            commands = [granted for granted in _granted_commands(known, key) if granted != command]
            known[key] = [*commands, command][-MAX_COMMANDS:]
            write_whole(self._home / GRANTS, json.dumps(known, indent=1).encode(), mode=0o600)

    def _key(self) -> str | None:
        try:
            return f"{os.path.realpath(self._project)}:{self._project.stat().st_ino}"
        except OSError:
            return None

    def _read(self) -> dict[str, Any]:
        try:
            with open(self._home / GRANTS, "rb") as file:
                known = json.loads(file.read(MAX_GRANTS_BYTES))
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}


def _granted_commands(known: dict[str, Any], key: str) -> list[str]:
    found = known.get(key)
    return [value for value in found if isinstance(value, str)] if isinstance(found, list) else []
