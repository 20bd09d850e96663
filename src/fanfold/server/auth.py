"""Authentication of requests: tokens, sessions of browsers that presented one, and their roles.

Rules
* A token is 256 random bits. Only its digest is stored, here and in the user's configuration (`api.system`).
* On a loopback address, each start creates a token and prints it once, in a link. On other addresses, only
  the tokens in the user's configuration are valid, each with a role.
* The link is exchanged for a cookie, so that no address bar and no history contains the token. Sessions
  survive a restart of the server, so that open pages continue. They end after `SESSION_S`, or when their
  configured token is removed.
* A session that a user of this machine started is valid for that user only (see `owner_of_peer`).
* `operator` has all permissions, `viewer` can only read.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import struct
import time
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import parse_qs

import h11
import msgspec
from msgspec import Struct
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from fanfold.api.system import digest_of, new_token
from fanfold.errors import EXIT_PERMISSION, AuthorError, FanfoldError, WorldError
from fanfold.project_files import write_whole
from fanfold.server.requests import HEADERS, failure

Role: TypeAlias = Literal["viewer", "operator"]

SESSION_S = 14 * 24 * 3600
LINK = "link"
"""The name of every user of the printed link: the user who started the server."""
MAX_SESSIONS = 200
"""The maximum number of stored sessions; the oldest are dropped."""
MAX_FILE_BYTES = 256 * 1024


class Session(Struct, frozen=True):
    """A browser that presented a token. `digest` is of its cookie, `came_with` is the digest of the token."""

    digest: str
    role: Role
    came_with: str
    until: float
    user: int | None = None
    """The user of this machine who runs the browser, if known. The cookie is invalid for other users."""


class Principal(Struct, frozen=True):
    """The sender of a request. `name` distinguishes senders without revealing a secret."""

    role: Role
    name: str

    def must_be_operator(self) -> None:
        if self.role != "operator":
            raise forbidden("this is a read-only token")


def forbidden(message: str) -> WorldError:
    return WorldError("request.forbidden", message, exit_status=EXIT_PERMISSION)


class Admission:
    """Checks tokens and cookies. `file` stores sessions. `link` is the operator token of this start."""

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
        try:
            with file.open("rb") as opened:
                self._sessions = msgspec.json.decode(opened.read(MAX_FILE_BYTES), type=list[Session])
        except (OSError, msgspec.MsgspecError, RecursionError):
            self._sessions = []  # an unreadable file admits no user

    def with_token(self, token: str) -> Principal | None:
        """Return the principal of a token, or None. Compares all tokens, so that timing reveals nothing."""
        shown = digest_of(token)
        found: Principal | None = None
        if self._link is not None and hmac.compare_digest(shown, self._link):
            found = Principal("operator", LINK)
        for digest, role in self._configured.items():
            if hmac.compare_digest(shown, digest):
                found = Principal(role, shown)
        return found

    def with_cookie(self, cookie: str, user: int | None) -> Principal | None:
        """Return the principal of a cookie, or None. `user` runs the browser on this machine."""
        shown, now = digest_of(cookie), time.time()
        for session in self._sessions:
            known = hmac.compare_digest(shown, session.digest) and session.user in (None, user)
            if known and self._is_valid(session, now):
                name = LINK if session.came_with.startswith(f"{LINK}:") else session.came_with
                return Principal(self._configured.get(session.came_with, session.role), name)
        return None

    def _is_valid(self, session: Session, now: float) -> bool:
        """Return whether a session is valid: its time, and its token if that is a configured one."""
        from_link = session.came_with.startswith(f"{LINK}:")
        return session.until > now and (
            (from_link and self._link is not None) or session.came_with in self._configured
        )

    def begin_session(self, token: str, user: int | None) -> str | None:
        """Return the cookie of a new session for a token, or None if the token is invalid."""
        principal = self.with_token(token)
        if principal is None:
            return None
        cookie = new_token()
        came_with = f"{LINK}:{self._link}" if principal.name == LINK else principal.name
        session = Session(digest_of(cookie), principal.role, came_with, time.time() + SESSION_S, user)
        held = [one for one in self._sessions if self._is_valid(one, time.time())]
        self._sessions = [*held[-MAX_SESSIONS + 1 :], session]
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(self._file, msgspec.json.encode(self._sessions))
        return cookie


# -----------------------------------------------------------------------------------------------------------
# The user of this machine at the other end of a connection.
#
# Cookies belong to a host, not to a port. If a browser opens a page that another user of this machine serves,
# it sends the cookies of our console there. So a session is valid only for the user whose browser started it,
# and the kernel reports that user.

_HEADER = struct.Struct("=IHHII")
_WANTED = struct.Struct("=BBBBI")
_ENDS = struct.Struct("!HH16s16s")
_SOCKET = struct.Struct("=III")
_UID = struct.Struct("=I")
_UID_AT = 80
"""The offset of the user id: after the header, four bytes, two addresses and three numbers."""
_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST = 1
_ANY = 0xFFFFFFFF
_WAIT_S = 1.0

Address = tuple[str, int]


def owner_of_peer(client: Address | None, server: Address | None) -> int | None:
    """Return the user whose process connected from `client`; None for another machine, or if it is unknown.

    The kernel is asked about the client's socket, which takes some 50 microseconds.
    """
    if client is None or server is None:
        return None
    try:
        family = socket.AF_INET6 if ":" in client[0] else socket.AF_INET
        ends = (socket.inet_pton(family, end[0]).ljust(16, b"\0") for end in (client, server))
        body = _WANTED.pack(family, socket.IPPROTO_TCP, 0, 0, _ANY)
        body += _ENDS.pack(client[1], server[1], *ends) + _SOCKET.pack(0, _ANY, _ANY)
        header = _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, 1, 0)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as netlink:
            netlink.settimeout(_WAIT_S)
            netlink.sendto(header + body, (0, 0))
            reply = netlink.recv(4096)
        if _HEADER.unpack_from(reply)[1] != _BY_FAMILY:
            return None
        owner: int = _UID.unpack_from(reply, _UID_AT)[0]
    except (AttributeError, OSError, struct.error):  # no such socket here, or no such kernel
        return None
    return owner


# -----------------------------------------------------------------------------------------------------------
# The checks of every request: its host, its origin and its sender.
#
# Rules
# * The `Host` must be exactly one of ours, which defeats DNS rebinding (421 otherwise).
# * An `Origin`, if sent, must be exactly ours, and so must `Sec-Fetch-Site` (403 otherwise). A change with a
#   cookie needs an `Origin` or the header `X-Fanfold: 1`, which no form can send.
# * A cookie is valid only for the user of this machine whose browser received it.
# * Everything needs a token, also the files of the console. Exceptions: the request that brings the token
#   (`/?token=…`), and webhooks, which are signed.
# * Every response has the headers of `requests.HEADERS`.

PRINCIPAL = "fanfold.principal"
"""The key of the principal in the scope of a request."""
SIGNED = "/hooks/"
"""Messages below this path are verified by their signature and need no token."""
READING = frozenset({"GET", "HEAD", "OPTIONS"})
OWN_SITE = frozenset({"same-origin", "none"})
_NO_LINK_PAGE = """<!doctype html><meta charset="utf-8"><title>Fanfold</title>
<p>This console needs the link that <code>fanfold serve</code> printed when it was started.
"""


class RequestGuard:
    """Passes checked requests to `app`. `hosts` are the accepted values of `Host`."""

    def __init__(self, app: ASGIApp, access: Admission, hosts: Iterable[str], cookie: str) -> None:
        self._app = app
        self._access = access
        self._hosts = frozenset(hosts)
        self._origins = frozenset(f"http://{host}" for host in self._hosts)
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        try:
            self._check_origin(scope["method"], headers)
            entering = self._exchange_link(scope)
            if scope["path"].startswith(SIGNED):
                scope[PRINCIPAL] = Principal("viewer", "webhook")  # the signature is checked there
            elif entering is None:
                scope[PRINCIPAL] = self._principal(scope, headers)
        except FanfoldError as error:
            unknown = error.code == "request.unauthorized"
            if unknown and scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
                entering = HTMLResponse(_NO_LINK_PAGE, status_code=401)
            else:
                entering = failure(error, {"www-authenticate": "Bearer"} if unknown else None)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS:
                    headers[name.decode()] = value.decode()
            await send(message)

        await (entering or self._app)(scope, receive, send_with_headers)

    def _check_origin(self, method: str, headers: Headers) -> None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            raise AuthorError("request.host", "the Host header does not name this server")
        origins = headers.getlist("origin")
        if any(origin not in self._origins for origin in origins):
            raise forbidden("requests from pages of another origin are refused")
        site = headers.get("sec-fetch-site", "none")
        is_visit = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if site not in OWN_SITE and not is_visit:
            raise forbidden("requests from pages of another site are refused")

    def _exchange_link(self, scope: Scope) -> Response | None:
        """Answer the printed link: set a cookie, and redirect to the address without the token."""
        query = scope.get("query_string", b"")
        if scope["method"] != "GET" or scope["path"] != "/" or b"token=" not in query:
            return None
        try:
            tokens = parse_qs(query.decode("ascii"), max_num_fields=20).get("token", [])
        except ValueError:
            tokens = []
        cookie = self._access.begin_session(tokens[0], _user_of(scope)) if len(tokens) == 1 else None
        if cookie is None:
            raise _unknown()
        reply = RedirectResponse("/", status_code=303)
        reply.set_cookie(self._cookie, cookie, max_age=SESSION_S, httponly=True, samesite="strict", path="/")
        reply.headers["cache-control"] = "no-store"
        return reply

    def _principal(self, scope: Scope, headers: Headers) -> Principal:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme:
            found = self._access.with_token(token.strip()) if scheme.lower() == "bearer" else None
            if found is None:
                raise _unknown()
            return found
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            cookie = None
        found = self._access.with_cookie("" if cookie is None else cookie.value, _user_of(scope))
        if found is None:
            raise _unknown()
        if scope["method"] not in READING and "origin" not in headers and headers.get("x-fanfold") != "1":
            raise forbidden("a change needs the header X-Fanfold: 1, or an Origin")
        return found


def _user_of(scope: Scope) -> int | None:
    return owner_of_peer(scope.get("client"), scope.get("server"))


def _unknown() -> FanfoldError:
    return WorldError(
        "request.unauthorized",
        "this needs a token: Authorization: Bearer TOKEN",
        hint="fanfold serve prints a link that contains one",
        exit_status=EXIT_PERMISSION,
    )


# -----------------------------------------------------------------------------------------------------------
# Limits of connections, so that a silent or slow client does not keep other clients out.
#
# Every process on the machine can connect, even without a token. So the head of a request must arrive within
# `HEAD_S`. If `MAX_CONNECTIONS` are open, the connection that has been silent longest is closed, unless its
# request is being answered. A client that does not read its response is dropped after `WRITE_S`.

HEAD_S = 12.0
"""Longer than browsers keep a speculative connection open."""
WRITE_S = 20.0
"""The time for a client to read buffered data, during a response and when its connection closes."""
MAX_CONNECTIONS = 600
"""More than the limit of streams, and fewer than the usual limit of open files of a process."""


class BoundedConnection(H11Protocol):
    """A connection of uvicorn with a deadline for the head of a request."""

    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _received_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._received_at = self.loop.time()
        self._await_head()
        if len(self.connections) > MAX_CONNECTIONS:
            bounded = [one for one in self.connections if isinstance(one, BoundedConnection)]
            min(bounded, key=BoundedConnection.silent_since).transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received_at = self.loop.time()
        if self._deadline is None and self.conn.their_state is h11.IDLE:
            self._await_head()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._is_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._await_reading()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._is_read()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._await_reading()

    def _await_head(self) -> None:
        def close() -> None:
            self.transport.close()
            self._await_reading()  # closing waits until the client has read the buffered data

        self._deadline = self.loop.call_later(HEAD_S, close)

    def _await_reading(self) -> None:
        if self._unread is None:
            self._unread = self.loop.call_later(WRITE_S, self.transport.abort)

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def silent_since(self) -> float:
        """Return the time of the last received data; infinity while a request is being answered."""
        answered = getattr(self.cycle, "response_complete", True)  # no cycle before the first request
        return self._received_at if answered else float("inf")
