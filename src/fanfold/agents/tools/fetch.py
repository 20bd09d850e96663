"""`fetch_url`: public pages for agents with network access, and nothing else.

Rules
* A host name is resolved here, once. Every address must be public, and the connection uses a checked address.
  So a later change of the name has no effect. The certificate must still match the name.
* Redirects are followed one by one, each with the same checks.
* Size, time and number of redirects are limited. There are no cookies, no credentials, no proxy, only `GET`.
  A page is converted to text in a separate process (`limited`), because its author determines how long that
  takes.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

import msgspec

from fanfold.agents.backend import ToolFailed
from fanfold.kernel.plan import JSON

if TYPE_CHECKING:
    import httpcore2

# -----------------------------------------------------------------------------------------------------------
# Work whose cost a model or a page determines: run in a separate process with limited memory and time.
#
# A regular expression can use gigabytes, and a page can keep a parser busy for minutes. In our own process,
# both would affect every session. In a separate process, the kernel ends them.
#
# Rules
# * The process runs our own code and gets values, not code: the name of a job from the table, and arguments.
# * It gets no environment variables except the locale, and only its three standard handles.

MAX_MEMORY_BYTES = 1024**3
MAX_CPU_S = 25
JOBS = {
    "search": ("fanfold.agents.tools.files", "search"),
    "page": ("fanfold.agents.tools.fetch", "page_text"),
}
"""Name → module and function. A function takes plain values and returns one, or raises `ToolFailed`."""


async def do_limited(job: str, *arguments: Any, timeout_s: float) -> Any:
    """Return the result of a job; raise `ToolFailed` if it fails or exceeds its limits."""
    # -I: no modules from the current folder or the environment.
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-c",
        f"from {__name__} import main; main()",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={"LC_ALL": "C.UTF-8"},
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await process.communicate(msgspec.msgpack.encode([job, arguments]))
    except TimeoutError:
        message = f"it took more than {timeout_s:g} s"
        raise ToolFailed("tool", "tool.timeout", message, "ask for less, or in simpler terms") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0 or not output:
        message = f"it took more than {MAX_MEMORY_BYTES // 1024**2} MB or {MAX_CPU_S} s"
        raise ToolFailed("tool", "tool.too_expensive", message, "ask for less, or in simpler terms")
    outcome, value = msgspec.msgpack.decode(output)
    if outcome == "failed":
        raise ToolFailed(*value)
    return value


def main() -> None:
    """Run one job from stdin in the separate process and write its outcome to stdout."""
    from importlib import import_module

    job, arguments = msgspec.msgpack.decode(sys.stdin.buffer.read())
    module, name = JOBS[job]
    work: Callable[..., Any] = getattr(import_module(module), name)
    for limit, most in ((resource.RLIMIT_AS, MAX_MEMORY_BYTES), (resource.RLIMIT_CPU, MAX_CPU_S)):
        resource.setrlimit(limit, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        outcome = ["done", work(*arguments)]
    except ToolFailed as failed:
        outcome = ["failed", [failed.failure.kind, failed.code, failed.message, failed.hint]]
    sys.stdout.buffer.write(msgspec.msgpack.encode(outcome))


LIMIT_CHARS = 20_000
MAX_BYTES = 4 * 1024 * 1024
MAX_REDIRECTS = 5
TIMEOUT_S = 30.0
READING_S = 20.0
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

Check = Callable[[str], bool]


def is_public(address: str) -> bool:
    """Return whether an address is publicly reachable.

    >>> is_public("127.0.0.1"), is_public("::ffff:10.0.0.1"), is_public("169.254.169.254")
    (False, False, False)
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is None:  # `is_global` only knows exceptions, and calls everything else global
            return ip in _EVERYBODY_S and ip.is_global and ip not in _EXAMPLES
        ip = inner
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _SPECIAL)


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_EVERYBODY_S = ipaddress.IPv6Network("2000::/3")
"""All public addresses that were ever assigned; no other range is public, whatever it embeds."""
_EXAMPLES = ipaddress.IPv6Network("3fff::/20")
_SPECIAL = (ipaddress.IPv4Network("192.0.0.0/24"), ipaddress.IPv4Network("192.88.99.0/24"))
"""Protocol assignments and relays without pages; not every Python version knows them."""


class FetchTools:
    """The fetching tool of one session; `allowed` decides about addresses."""

    def __init__(self, allowed: Check = is_public, timeout_s: float = TIMEOUT_S) -> None:
        self._allowed = allowed
        self._timeout_s = timeout_s

    async def fetch_url(self, args: Mapping[str, Any]) -> JSON:
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                url, status, kind, data = await self._follow(args["url"])
        except TimeoutError as error:
            if not limit.expired():  # a timeout of the connection, not ours
                why = str(error) or "the connection timed out"
                raise ToolFailed("tool", "tool.unreachable", why) from None
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
            target = headers["location"]
            with suppress(UnicodeDecodeError):  # servers send UTF-8 where only ASCII is allowed
                target = target.encode("latin-1").decode()
            try:
                url = urljoin(url, target)
            except ValueError:
                message = f"{url} redirects to an invalid address: {target[:200]!a}"
                raise ToolFailed("tool", "tool.bad_url", message) from None
        raise ToolFailed("tool", "tool.redirects", f"more than {MAX_REDIRECTS} redirects")

    async def _get(self, url: str) -> tuple[int, dict[str, str], bytes]:
        import httpcore2

        sent: dict[bytes | str, bytes | str] = {
            "Host": urlsplit(url).netloc,
            "User-Agent": "fanfold",
            "Accept": "text/html, text/*, application/json, */*;q=0.5",
            "Accept-Encoding": "identity",
        }
        try:
            async with (
                httpcore2.AsyncConnectionPool(network_backend=_checked_backend(self._allowed)) as pool,
                pool.stream("GET", url, headers=sent) as response,
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


def clean_url(url: str) -> str:
    """Return an address in the form for a request, or raise `ToolFailed`.

    People and pages write addresses with spaces and letters outside ASCII.

    >>> clean_url("https://b\xfccher.example/Z\xfcrich?q=a b#top")
    'https://xn--bcher-kva.example/Z%C3%BCrich?q=a%20b'
    """
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
        # Names with an empty or too long part are refused here.
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
"""Characters that stay unchanged in a path; `%`, because encoded characters stay encoded."""


async def resolve_public(host: str, port: int, allowed: Check) -> str:
    """Return an address of a host, after a check that all its addresses are allowed."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # UnicodeError for names that are invalid
        raise ToolFailed("tool", "tool.unreachable", f'"{host}" has no address') from None
    addresses = [str(info[4][0]) for info in found]
    bad = next((address for address in addresses if not allowed(address)), None)
    if bad is not None or not addresses:
        message = f'"{host}" is not a public address ({bad})'
        raise ToolFailed("permission", "tool.private_address", message, "only public addresses are fetched")
    return addresses[0]


def _checked_backend(allowed: Check) -> httpcore2.AsyncNetworkBackend:
    """Return a network back end that connects only to checked addresses."""
    import httpcore2

    anywhere: Any = httpcore2.AnyIOBackend()

    class PublicAddressesOnly(httpcore2.AsyncNetworkBackend):
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

    return PublicAddressesOnly()


# -----------------------------------------------------------------------------------------------------------
# Pages as text, in any charset and for any structure of the page.

_SILENT = frozenset({"script", "style", "noscript", "template", "svg", "head"})
_BREAKS = frozenset("p div br li tr h1 h2 h3 h4 h5 h6 section article pre table ul ol".split())
_NO_CHARSETS = frozenset({"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape"})
"""Codecs of Python that produce text but are no charsets; some take very long for a page."""


def page_text(data: bytes, kind: str) -> str:
    """Return the text of a server's response of type `kind`; runs as a `limited` job.

    The charset is the one that the server names, if it exists. A page becomes one line per block.
    """
    import codecs

    charset = kind.partition("charset=")[2].partition(";")[0].strip(" \"'")
    try:
        if codecs.lookup(charset).name.replace("_", "-") in _NO_CHARSETS:
            charset = "utf-8"
        page = data.decode(charset, "replace")
    except (LookupError, ValueError):  # unknown, or not a text codec
        page = data.decode("utf-8", "replace")
    if "html" not in kind:
        return page
    reader = _TextExtractor()
    try:
        reader.feed(page)
    except AssertionError:  # raised by the parser for unknown declarations
        return page
    lines = (" ".join(line.split()) for line in "".join(reader.words).split("\n"))
    return "\n".join(line for line in lines if line)


class _TextExtractor(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SILENT:
            self._silent += 1
        elif tag in _BREAKS:
            self.words.append("\n")
        if tag == "a":
            target = dict(attrs).get("href") or ""
            if target.startswith("http"):
                self.words.append(f" ({target}) ")

    def handle_endtag(self, tag: str) -> None:
        if tag in _SILENT and self._silent:
            self._silent -= 1
        elif tag in _BREAKS:
            self.words.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.words.append(data)
