"""Whether what Fanfold remembers of a project was written by this user's Fanfold, for this very folder.

A project's `.fanfold` holds what a repository may bring (`workflows/`, `agents/`, `config.toml`) and state:
the database, merges under way, snapshots, runs. State tells us what to write and where, so it is believed
only when it is ours. A clone, an archive or another user can put anything there.

Rules
* The seal says that this user made the state for this folder: the folder's path and inode, signed with a
  secret that never leaves the user's own folder. Without a seal that fits, nothing else is even opened.
* State that a commit brought is foreign whatever the seal says: git overwrites ignored files without a word.
* Links, and things of other users, are not ours.
* Looking changes nothing. Only `claim` writes, when the first state is about to be made.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from fanfold.errors import EXIT_PERMISSION, WorldError
from fanfold.trust.project_files import write_whole
from fanfold.trust.repository import UnreadableIndex, find_repository

OWN_FOLDER = ".fanfold"
BROUGHT = frozenset(("workflows", "agents", "config.toml", "recipe.schema.json", ".gitignore"))
"""What may come with a checkout; everything else in the folder is state."""
USERS = frozenset(("secret", "server", "backends", "models"))
"""What the user's own folder holds besides; it is that of a project too for who works in their home."""
SEAL = "state.seal"
ADOPTED = "adopted.json"
"""The runs that were there when state was adopted; see `trust.adopted`."""
SECRET = "secret"  # noqa: S105 - the name of the file that holds it
VERSION = 1
MAX_SEAL_BYTES = 16 * 1024
THEIRS = "the folder belongs to another user, who could replace whatever is in it"
MAKE_YOURS = "make the folder yours (chown), or work in a copy of the project"
HINT = "fanfold state show says what it holds, fanfold state adopt keeps it, fanfold state remove deletes it"


class StateForeign(WorldError):
    """There is state that is not ours; nothing of it was read."""

    def __init__(self, folder: Path, why: str, hint: str = HINT) -> None:
        message = f"the state in {folder} is not from this user's Fanfold: {why}"
        details = {"folder": str(folder), "why": why}
        super().__init__("state.foreign", message, hint=hint, details=details, exit_status=EXIT_PERMISSION)
        self.why = why


def require_ours(project: Path, home: Path) -> None:
    """Raise `StateForeign` unless there is no state here, or ours."""
    folder = project / OWN_FOLDER
    why = why_foreign(project, home)
    if why:
        raise StateForeign(folder, why, _untrack_hint(project, home) or HINT)


def why_foreign(project: Path, home: Path) -> str:
    """What is wrong with the state of a project; nothing when it is ours or there is none."""
    folder = project / OWN_FOLDER
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except OSError:
        return "it is a link, a file, or may not be opened"
    try:
        # A seal that another process is just writing is no state yet.
        names = (name for name in sorted(os.listdir(handle)) if not name.startswith(f".{SEAL}."))
        state = [name for name in names if name not in _kept_names(project, home)]
        if not state:
            return ""
        if os.fstat(handle).st_uid != os.geteuid():
            return THEIRS
        for name in state:
            try:
                found = os.stat(name, dir_fd=handle, follow_symlinks=False)
            except FileNotFoundError:
                continue  # another process has just closed its database
            if stat.S_ISLNK(found.st_mode):
                return f'"{name}" is a link'
            if found.st_uid != os.geteuid():
                return f'"{name}" belongs to another user'
        return _why_unsealed(handle, project, home) or _why_brought(project, home)
    finally:
        os.close(handle)


def claim(project: Path, home: Path) -> None:
    """Make the folder ours before the first state is written: private, and sealed."""
    require_ours(project, home)
    folder = project / OWN_FOLDER
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        message = f"{folder} cannot be used: {error.strerror}"
        hint = "check that the project's folder may be written and the disk has space"
        raise WorldError("store.cannot_open", message, hint=hint) from error
    try:
        status = os.fstat(handle)
        if status.st_uid != os.geteuid():
            raise StateForeign(folder, THEIRS, MAKE_YOURS)
        if stat.S_IMODE(status.st_mode) != 0o700:
            os.fchmod(handle, 0o700)  # whoever made it: what we keep in it is nobody else's to read
        if _why_unsealed(handle, project, home):
            # Where a commit names state, whatever is made here is taken for the commit's from then on.
            if why := _why_brought(project, home):
                raise StateForeign(folder, why, _untrack_hint(project, home))
            _write_seal(handle, project, home)
    finally:
        os.close(handle)


def adopt(project: Path, home: Path) -> None:
    """Take over what is there. The user has seen what it holds and says that it is theirs."""
    folder = project / OWN_FOLDER
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not set(os.listdir(handle)) - _kept_names(project, home):
            raise WorldError(
                "state.none", f"there is no state in {folder}", hint="nothing needs to be adopted"
            )
        if os.fstat(handle).st_uid != os.geteuid():
            raise StateForeign(folder, THEIRS, MAKE_YOURS)
        os.fchmod(handle, 0o700)
        _write_seal(handle, project, home)
    finally:
        os.close(handle)
    require_ours(project, home)


def remove(project: Path, home: Path) -> list[str]:
    """Delete all state, and leave what may come with a checkout and what is the user's own; the names that
    went. No link is followed.
    """
    folder = project / OWN_FOLDER
    if folder.is_symlink():
        os.unlink(folder)
        return [OWN_FOLDER]
    import shutil

    kept = _kept_names(project, home)
    gone = [name for name in sorted(os.listdir(folder)) if name not in kept]
    for name in gone:
        thing = folder / name
        if not thing.is_symlink() and thing.is_dir():
            make_removable(thing)
            shutil.rmtree(thing)
        else:
            thing.unlink()
    return gone


def list_state(project: Path, home: Path) -> list[tuple[str, str, int]]:
    """What state there is: name, what kind of thing it is, and how large. Nothing is opened."""
    folder = project / OWN_FOLDER
    if folder.is_symlink():
        return [(OWN_FOLDER, "link", 0)]
    rows: list[tuple[str, str, int]] = []
    kept = _kept_names(project, home)
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    for entry in entries:
        if entry.name in kept:
            continue
        if entry.is_symlink():
            rows.append((entry.name, "link", 0))
        elif entry.is_dir(follow_symlinks=False):
            rows.append((entry.name, "folder", _size_below(entry.path)))
        else:
            found = entry.stat(follow_symlinks=False)
            rows.append((entry.name, "file" if stat.S_ISREG(found.st_mode) else "special", found.st_size))
    return rows


def is_users_own(project: Path, home: Path) -> bool:
    """Whether a project's folder is the user's own as well: somebody works in their home."""
    return os.path.join(os.path.realpath(project), OWN_FOLDER) == os.path.realpath(home)


def _kept_names(project: Path, home: Path) -> frozenset[str]:
    """The names that are no state."""
    return BROUGHT | USERS if is_users_own(project, home) else BROUGHT


# The seal


def _why_unsealed(handle: int, project: Path, home: Path) -> str:
    try:
        seal = os.open(SEAL, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
    except OSError:
        return "it has no seal"
    with os.fdopen(seal, "rb") as opened:
        regular = stat.S_ISREG(os.fstat(seal).st_mode)
        data = opened.read(MAX_SEAL_BYTES) if regular else b""
    try:
        said: Any = json.loads(data)
        mac, path = str(said["mac"]), str(said["project"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "its seal cannot be read"
    import hmac

    secret = _read_secret(home)
    expected = _sign(secret, os.path.realpath(project), os.fstat(handle).st_ino)
    if secret and hmac.compare_digest(mac, expected):
        return ""
    if secret and path != os.path.realpath(project):
        return "it was made for another folder; a project that was moved or copied is adopted"
    return "its seal is not of this user, or was made with another FANFOLD_HOME"


def _write_seal(handle: int, project: Path, home: Path) -> None:
    secret = _read_secret(home) or _make_secret(home)
    path = os.path.realpath(project)
    said = {"version": VERSION, "project": path, "mac": _sign(secret, path, os.fstat(handle).st_ino)}
    write_whole(SEAL, json.dumps(said).encode(), folder=handle)


def _sign(secret: bytes, path: str, inode: int) -> str:
    import hmac

    text = json.dumps([VERSION, path, inode], ensure_ascii=True)
    return hmac.new(secret, text.encode(), "sha256").hexdigest()


def _read_secret(home: Path) -> bytes:
    try:
        return (home / SECRET).read_bytes()
    except OSError:
        return b""


def _make_secret(home: Path) -> bytes:
    """A secret of this user's, made once; whoever comes second takes the first one's."""
    file = home / SECRET
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = home / f".{SECRET}.{os.urandom(4).hex()}"
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(os.urandom(32))
        try:
            os.link(beside, file)
        except FileExistsError:
            pass
        os.unlink(beside)
        return file.read_bytes()
    except OSError as error:
        message = f"{file} cannot be made: {error.strerror}"
        raise WorldError("state.no_secret", message, hint="set FANFOLD_HOME to a folder of yours") from error


# What a commit brought


def _why_brought(project: Path, home: Path) -> str:
    """Whether git's index names state: then a commit put it here, whoever sealed the folder before."""
    try:
        names = _tracked(project, home)
    except UnreadableIndex:
        return "git's index cannot be read, which could have brought it"
    return f'"{names[0]}" came with a commit' if names else ""


def _untrack_hint(project: Path, home: Path) -> str:
    """How state is taken out of a repository that has it; nothing where it has none."""
    import shlex

    try:
        names = _tracked(project, home)
    except UnreadableIndex:
        return ""
    if not names:
        return ""
    paths = shlex.join(f"{OWN_FOLDER}/{name}" for name in names)
    whole = "; git update-index --no-split-index" if _is_split(project) else ""
    return f"take it out of the repository first, in the project's folder: git rm -r --cached {paths}{whole}"


def _is_split(project: Path) -> bool:
    from fanfold.trust.git_index import is_split

    repository = find_repository(Path(os.path.realpath(project)))
    return repository is not None and is_split(repository.index_file)


def _tracked(project: Path, home: Path) -> list[str]:
    """What git's index names of the state, by name in the folder."""
    repository = find_repository(Path(os.path.realpath(project)))
    if repository is None:
        return []
    from fanfold.trust.git_index import tracked_below

    below = os.path.relpath(os.path.realpath(project), repository.top)
    folder = OWN_FOLDER if below == "." else f"{below}/{OWN_FOLDER}"
    paths = tracked_below(repository.index_file, folder)
    names = (path.removeprefix(f"{folder}/").partition("/")[0] for path in paths)
    kept = _kept_names(project, home)
    return [name for name in dict.fromkeys(names) if name not in kept]


# Removing


def make_removable(top: Path) -> None:
    """Give folders back the modes that removing needs: a snapshot's may be without them."""
    for here, folders, _ in os.walk(top):
        for name in folders:
            inner = os.path.join(here, name)
            if not os.path.islink(inner):
                os.chmod(inner, 0o700)


def _size_below(folder: str) -> int:
    total = 0
    for here, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(here, name)).st_size
            except OSError:
                continue
    return total
