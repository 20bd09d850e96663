"""Who may use the server: tokens, the sessions of browsers that came with one, and what each may do.

Rules
* A token is 256 random bits. Nothing on disk holds one: what is kept, here and in the user's configuration,
  is its digest (`operations.system.tokens`).
* On a loopback address a token is made at each start and shown once, as a link. Elsewhere only tokens count
  that the user's configuration lists, each with a role.
* The link is exchanged for a cookie, so that the token stands in no address bar and no history. Sessions
  outlive the server, or a page that is open could not go on when it is started again; they end after
  `SESSION_S`, and with the configured token they came from.
* A session that a user of this machine began is no other user's (`peers` says why that has to be said).
* `operator` may do everything, `viewer` may look.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from fanfold.errors import EXIT_PERMISSION, WorldError
from fanfold.runtime.operations.system.tokens import digest_of, new_token
from fanfold.trust.project_files import write_whole

Role: TypeAlias = Literal["viewer", "operator"]

SESSION_S = 14 * 24 * 3600
LINK = "link"
"""The name of whoever came by a link: always the user who started the server, whichever start it was."""
MAX_SESSIONS = 200
"""Kept at once; the oldest make room."""
MAX_FILE_BYTES = 256 * 1024


class Session(Struct, frozen=True):
    """A browser that showed a token once. `digest` is of its cookie, `came_with` of that token."""

    digest: str
    role: Role
    came_with: str
    until: float
    user: int | None = None
    """Whose browser it is, where that is a user of this machine: nobody else's is let in by its cookie."""


class Visitor(Struct, frozen=True):
    """Who asks for something. `name` tells one from another without giving anything away."""

    role: Role
    name: str

    def must_be_operator(self) -> None:
        if self.role != "operator":
            raise forbidden("this token may look, and nothing else")


def forbidden(message: str) -> WorldError:
    return WorldError("request.forbidden", message, exit_status=EXIT_PERMISSION)


class Admission:
    """`file` keeps the sessions. `link` is the token of this start, which lets an operator in."""

    def __init__(
        self,
        file: Path,
        *,
        link: str | None = None,
        operators: Iterable[str] = (),
        viewers: Iterable[str] = (),
    ) -> None:
        self._file = file
        self._configured: dict[str, Role] = dict.fromkeys(viewers, "viewer")
        self._configured |= dict.fromkeys(operators, "operator")
        self._link = None if link is None else digest_of(link)
        self._sessions = _read(file)

    def with_token(self, token: str) -> Visitor | None:
        """Who shows this token; every known one is compared, so that time tells nothing."""
        shown = digest_of(token)
        found: Visitor | None = None
        if self._link is not None and hmac.compare_digest(shown, self._link):
            found = Visitor("operator", LINK)
        for digest, role in self._configured.items():
            if hmac.compare_digest(shown, digest):
                found = Visitor(role, shown)
        return found

    def with_cookie(self, cookie: str, user: int | None) -> Visitor | None:
        """Whose browser shows this cookie; `user` of this machine started it."""
        shown, now = digest_of(cookie), time.time()
        for session in self._sessions:
            known = hmac.compare_digest(shown, session.digest) and session.user in (None, user)
            if known and self._holds(session, now):
                name = LINK if session.came_with.startswith(f"{LINK}:") else session.came_with
                return Visitor(self._configured.get(session.came_with, session.role), name)
        return None

    def _holds(self, session: Session, now: float) -> bool:
        """A session from a configured token ends with it; one from a link has only its time."""
        from_link = session.came_with.startswith(f"{LINK}:")
        return session.until > now and (
            (from_link and self._link is not None) or session.came_with in self._configured
        )

    def begin_session(self, token: str, user: int | None) -> str | None:
        """The cookie for the browser of a user that shows a token; None where the token is none."""
        visitor = self.with_token(token)
        if visitor is None:
            return None
        cookie = new_token()
        came_with = f"{LINK}:{self._link}" if visitor.name == LINK else visitor.name
        session = Session(digest_of(cookie), visitor.role, came_with, time.time() + SESSION_S, user)
        held = [one for one in self._sessions if self._holds(one, time.time())]
        self._sessions = [*held[-MAX_SESSIONS + 1 :], session]
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(self._file, msgspec.json.encode(self._sessions))
        return cookie


def _read(file: Path) -> list[Session]:
    try:
        with file.open("rb") as opened:
            return msgspec.json.decode(opened.read(MAX_FILE_BYTES), type=list[Session])
    except (OSError, msgspec.MsgspecError, RecursionError):
        return []  # nobody is let in by a file that cannot be read
