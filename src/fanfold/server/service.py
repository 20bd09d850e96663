"""Serving one project: the address, the link that lets a browser in, and an end within two seconds."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import uvicorn
from msgspec import Struct

from fanfold.errors import AuthorError, WorldError
from fanfold.runtime.operations.system.tokens import new_token
from fanfold.runtime.views.installation import Served
from fanfold.server.admission import Admission
from fanfold.server.application import Application
from fanfold.server.connections import BoundedConnection
from fanfold.server.desk import Desk
from fanfold.server.idempotency import Idempotency
from fanfold.server.mounted import MakeMounted, MountedLater

GRACE_S = 1
"""What is under way when the server is to stop has this long; streams end at once."""
MAX_HEAD_BYTES = 64 * 1024


class Address(Struct, frozen=True):
    """Where to listen. A host that is not this machine's own is for configured tokens only."""

    host: str = "127.0.0.1"
    port: int = 8420

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class Tokens(Struct, frozen=True):
    """Digests of the tokens that the user's configuration lists."""

    operators: frozenset[str]
    viewers: frozenset[str]


def serve(
    desk: Desk,
    address: Address,
    tokens: Tokens,
    mcp: MakeMounted,
    *,
    take_over: Callable[[], list[str]],
    tell: Callable[[Served], None],
) -> None:
    """Serve until somebody stops it. `tell` is called once it can be reached."""
    _check(address, tokens)
    with _listen(address) as listening:
        port = int(listening.getsockname()[1])
        name = f"[{address.host}]" if ":" in address.host else address.host
        hosts = {f"{name}:{port}"} | (
            {f"localhost:{port}", f"127.0.0.1:{port}"} if address.is_loopback else set()
        )
        token = new_token() if address.is_loopback else None
        project = desk.history
        access = Admission(
            _kept_file(project.config.home, project.folder, "json"),
            link=token,
            operators=tokens.operators,
            viewers=tokens.viewers,
        )
        keys = Idempotency(_kept_file(project.config.home, project.folder, "requests.jsonl"))
        application = Application(desk, access, hosts, f"fanfold-{port}", keys, MountedLater(mcp))
        url = f"http://{name}:{port}/"
        link = None if token is None else f"{url}?token={token}"
        config = uvicorn.Config(
            application,
            log_level="error",  # anybody can send what is no request: that is not worth a line each
            access_log=False,
            server_header=False,
            lifespan="on",
            ws="none",
            http=BoundedConnection,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_graceful_shutdown=GRACE_S,
        )
        _Server(config, application, lambda: tell(Served(url, link, take_over()))).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Says when it has begun, and lets streams end when it is to stop."""

    def __init__(self, config: uvicorn.Config, application: Application, begun: Callable[[], None]) -> None:
        super().__init__(config)
        self._application = application
        self._begun = begun

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._begun()

    def handle_exit(self, sig: int, frame: object) -> None:
        """Somebody stops the server: that is how it ends, and no interruption. The second time, at once."""
        del sig, frame
        self._application.stopping()
        self.force_exit = self.should_exit
        self.should_exit = True


def _check(address: Address, tokens: Tokens) -> None:
    if address.is_loopback:
        return
    try:
        anywhere = ipaddress.ip_address(address.host).is_unspecified
    except ValueError:
        anywhere = False
    if anywhere:
        message = (
            f"--host {address.host} is every address of this machine, so no Host could be held against it"
        )
        raise AuthorError("server.address", message, hint="name the one address that people will use")
    if not tokens.operators and not tokens.viewers:
        raise AuthorError(
            "server.no_tokens",
            f"--host {address.host} can be reached by others, and no token is configured",
            hint="fanfold serve --new-token operator makes one, and says where its digest goes",
        )


def _listen(address: Address) -> socket.socket:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(found[0], socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(found[4])
        except BaseException:
            listening.close()
            raise
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        message = f"cannot listen on {address.host}:{address.port}: {reason}"
        raise WorldError(
            "server.address", message, hint="--port chooses another one, 0 any that is free"
        ) from None
    return listening


def _kept_file(home: Path, project: Path, kind: str) -> Path:
    """With the user, not with the project: what a checkout brings lets nobody in."""
    return home / "server" / f"{sha256(bytes(project)).hexdigest()[:16]}.{kind}"
