"""What every request passes first: is it for this server, from this server's pages, and from somebody known.

Rules
* The `Host` must be exactly one of ours: a name that an attacker's page was rebound to is not (421).
* An `Origin`, where there is one, must be exactly ours, and so must what the browser says of the site (403).
  A change that comes with a cookie needs an `Origin` or the header `X-Fanfold: 1`, which no form can send.
* A cookie counts only in the hands of the user of this machine whose browser it was given to.
* Everything needs a token, files of the console too, but for the one request that brings it: `/?token=…`.
* Every reply has the headers of `replies.HEADERS`.
"""

from __future__ import annotations

from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fanfold.errors import EXIT_PERMISSION, AuthorError, FanfoldError, WorldError
from fanfold.server.admission import SESSION_S, Admission, Visitor, forbidden
from fanfold.server.peers import owner_of_peer
from fanfold.server.replies import HEADERS, failure

VISITOR = "fanfold.visitor"
"""Where in a request's scope its visitor is found."""
READING = frozenset({"GET", "HEAD", "OPTIONS"})
OWN_SITE = frozenset({"same-origin", "none"})
_WAY_IN = """<!doctype html><meta charset="utf-8"><title>Fanfold</title>
<p>This console needs the link that <code>fanfold serve</code> printed when it was started.
"""


class RequestGuard:
    """Lets requests through to `app`. `hosts` are the values of `Host` that mean this server."""

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
            entering = self._enter(scope)
            if entering is None:
                scope[VISITOR] = self._visitor(scope, headers)
        except FanfoldError as error:
            entering = self._refuse(error, scope, headers)
        await (entering or self._app)(scope, receive, _with_headers(send))

    def _check_origin(self, method: str, headers: Headers) -> None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            raise AuthorError("request.host", "this server is not meant by that Host")
        origins = headers.getlist("origin")
        if any(origin not in self._origins for origin in origins):
            raise forbidden("a page of another origin may not ask this server")
        site = headers.get("sec-fetch-site", "none")
        is_visit = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if site not in OWN_SITE and not is_visit:
            raise forbidden("a page of another site may not ask this server")

    def _enter(self, scope: Scope) -> Response | None:
        """The reply to the link that was printed: a cookie, and the address without the token."""
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

    def _visitor(self, scope: Scope, headers: Headers) -> Visitor:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme:
            found = self._access.with_token(token.strip()) if scheme.lower() == "bearer" else None
            if found is None:
                raise _unknown()
            return found
        found = self._access.with_cookie(_cookie_of(headers, self._cookie), _user_of(scope))
        if found is None:
            raise _unknown()
        if scope["method"] not in READING and "origin" not in headers and headers.get("x-fanfold") != "1":
            raise forbidden("a change needs the header X-Fanfold: 1, or an Origin")
        return found

    def _refuse(self, error: FanfoldError, scope: Scope, headers: Headers) -> Response:
        is_page = scope["method"] == "GET" and "text/html" in headers.get("accept", "")
        if error.code == "request.unauthorized" and is_page:
            return HTMLResponse(_WAY_IN, status_code=401)
        unknown = {"www-authenticate": "Bearer"} if error.code == "request.unauthorized" else None
        return failure(error, unknown)


def _user_of(scope: Scope) -> int | None:
    return owner_of_peer(scope.get("client"), scope.get("server"))


def _cookie_of(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _unknown() -> FanfoldError:
    return WorldError(
        "request.unauthorized",
        "this needs a token: Authorization: Bearer TOKEN",
        hint="fanfold serve prints a link that holds one",
        exit_status=EXIT_PERMISSION,
    )


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS:
                headers[name.decode()] = value.decode()
        await send(message)

    return send_with_headers
