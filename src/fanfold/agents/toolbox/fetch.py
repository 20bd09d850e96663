"""`fetch_url`: public pages for agents that may use the network, and nothing else.

Rules
* A name is resolved here, once, every address it has must be a public one, and the connection goes to an
  address that was checked: a name that means something else a moment later changes nothing. The name is still
  what the certificate must be for.
* Redirects are followed by hand, each as if it had been asked for.
* Size, time and number of redirects are bounded. No cookies, no credentials, no proxy, `GET` alone. A page is
  made readable in a process of its own (`limited`): how long that takes, whoever wrote the page decides.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from fanfold.agents.toolbox import ToolFailed
from fanfold.agents.toolbox.limited import do_limited
from fanfold.kernel.plan import JSON

if TYPE_CHECKING:
    import httpcore2

LIMIT_CHARS = 20_000
MAX_BYTES = 4 * 1024 * 1024
MAX_REDIRECTS = 5
TIMEOUT_S = 30.0
READING_S = 20.0
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

Check = Callable[[str], bool]


def is_public(address: str) -> bool:
    """Whether an address is one that everybody can reach.

    >>> is_public("127.0.0.1"), is_public("::ffff:10.0.0.1"), is_public("169.254.169.254")
    (False, False, False)
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is None:  # `is_global` knows what is taken out of the rest, and calls the rest global
            return ip in _EVERYBODY_S and ip.is_global and ip not in _EXAMPLES
        ip = inner
    return ip.is_global and not ip.is_multicast and not any(ip in one for one in _SPECIAL)


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_EVERYBODY_S = ipaddress.IPv6Network("2000::/3")
"""All that was ever given out to be reached: no other range is, whatever it embeds."""
_EXAMPLES = ipaddress.IPv6Network("3fff::/20")
_SPECIAL = (ipaddress.IPv4Network("192.0.0.0/24"), ipaddress.IPv4Network("192.88.99.0/24"))
"""Protocols' own, and relays: nobody's pages, and not known to every Python."""


class FetchTools:
    """The fetching tool of one session. `allowed` decides about addresses."""

    def __init__(self, allowed: Check = is_public, timeout_s: float = TIMEOUT_S) -> None:
        self._allowed = allowed
        self._timeout_s = timeout_s

    async def fetch_url(self, args: Mapping[str, Any]) -> JSON:
        try:
            async with asyncio.timeout(self._timeout_s):
                url, status, kind, data = await self._follow(args["url"])
        except TimeoutError:
            raise ToolFailed("tool", "tool.timeout", f"no answer within {self._timeout_s:g} s") from None
        text = await do_limited("page", data[:MAX_BYTES], kind, timeout_s=READING_S)
        offset, limit = args.get("offset", 0), args.get("limit", LIMIT_CHARS)
        result: dict[str, JSON] = {"url": url, "status": status, "text": text[offset : offset + limit]}
        if offset + limit < len(text):
            result["next_offset"] = offset + limit
        if len(data) > MAX_BYTES:
            result["cut"] = f"only the first {MAX_BYTES:,} bytes were fetched"
        return result

    async def _follow(self, url: str) -> tuple[str, int, str, bytes]:
        for _ in range(MAX_REDIRECTS + 1):
            url = clean_url(url)
            status, headers, data = await self._get(url)
            if status not in _REDIRECTS or "location" not in headers:
                return url, status, headers.get("content-type", "text/plain").lower(), data
            url = _joined(url, headers["location"])
        raise ToolFailed("tool", "tool.redirects", f"more than {MAX_REDIRECTS} redirects")

    async def _get(self, url: str) -> tuple[int, dict[str, str], bytes]:
        import httpcore2

        try:
            async with (
                httpcore2.AsyncConnectionPool(network_backend=_checked_backend(self._allowed)) as pool,
                pool.stream("GET", url, headers=_headers(url)) as response,
            ):
                headers = {
                    name.decode("latin-1").lower(): value.decode("latin-1")
                    for name, value in response.headers
                }
                data = bytearray()
                if response.status not in _REDIRECTS:
                    async for piece in response.aiter_stream():
                        data += piece
                        if len(data) > MAX_BYTES:
                            break
                return response.status, headers, bytes(data)
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException) as error:
            raise ToolFailed(
                "tool", "tool.unreachable", f"{url}: {str(error) or type(error).__name__}"
            ) from None


def _headers(url: str) -> list[tuple[bytes, bytes]]:
    return [
        (b"Host", urlsplit(url).netloc.encode("ascii")),
        (b"User-Agent", b"fanfold"),
        (b"Accept", b"text/html, text/*, application/json, */*;q=0.5"),
        (b"Accept-Encoding", b"identity"),
    ]


def clean_url(url: str) -> str:
    """An address as it goes over the wire, or `ToolFailed`: people and pages write them as they are read.

    >>> clean_url("https://b\xfccher.example/Z\xfcrich?q=a b#top")
    'https://xn--bcher-kva.example/Z%C3%BCrich?q=a%20b'
    """
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
        # Names are refused here when a part of them is empty or too long.
        host = host.encode("ascii" if ":" in host else "idna").decode("ascii")
    except ValueError:
        raise ToolFailed("tool", "tool.bad_url", f"this is no address: {url[:200]!a}") from None
    if parts.scheme not in ("http", "https") or not host or not url.isprintable():
        message = f"only http and https addresses are fetched: {url[:200]!a}"
        raise ToolFailed("tool", "tool.bad_url", message)
    if parts.username is not None or port == 0:
        raise ToolFailed("permission", "tool.bad_url", "addresses with user names are not fetched")
    where = (f"[{host}]" if ":" in host else host) + ("" if port is None else f":{port}")
    path, query = quote(parts.path, safe=_PLAIN), quote(parts.query, safe=f"{_PLAIN}?")
    return urlunsplit((parts.scheme, where, path, query, ""))


_PLAIN = "/%:@!$&'()*+,;="
"""What may stand in a path as it is; `%`, because what is encoded already stays so."""


def _joined(url: str, location: str) -> str:
    """Where a redirect leads. Servers send UTF-8 where only ASCII is allowed."""
    try:
        location = location.encode("latin-1").decode()
    except UnicodeDecodeError:
        pass  # then it means what it says
    try:
        return urljoin(url, location)
    except ValueError:
        message = f"{url} leads to what is no address: {location[:200]!a}"
        raise ToolFailed("tool", "tool.bad_url", message) from None


async def resolve_public(host: str, port: int, allowed: Check) -> str:
    """An address of a host, after all of them were found to be allowed."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the second for names that cannot be one
        raise ToolFailed("tool", "tool.unreachable", f'"{host}" has no address') from None
    addresses = [str(info[4][0]) for info in found]
    bad = next((one for one in addresses if not allowed(one)), None)
    if bad is not None or not addresses:
        message = f'"{host}" is not a public address ({bad})'
        raise ToolFailed("permission", "tool.private_address", message, "only public addresses are fetched")
    return addresses[0]


def _checked_backend(allowed: Check) -> httpcore2.AsyncNetworkBackend:
    """A network that connects to checked addresses only."""
    import httpcore2

    anywhere: Any = httpcore2.AnyIOBackend()

    class Checked(httpcore2.AsyncNetworkBackend):
        async def connect_tcp(
            self,
            host: str,
            port: int,
            timeout: float | None = None,  # noqa: ASYNC109 - the library's signature
            local_address: str | None = None,
            socket_options: Iterable[Any] | None = None,
        ) -> httpcore2.AsyncNetworkStream:
            address = await resolve_public(host, port, allowed)
            stream: httpcore2.AsyncNetworkStream = await anywhere.connect_tcp(
                address, port, timeout, local_address, socket_options
            )
            return stream

        async def sleep(self, seconds: float) -> None:
            await anywhere.sleep(seconds)

    return Checked()
