"""Pages from the network: public ones, bounded, and nothing that only we can reach."""

import asyncio
import socket
from html.parser import HTMLParser

import pytest

from fanfold.agents.backend import ToolFailed
from fanfold.agents.tools.fetch import MAX_BYTES, FetchTools, is_public
from tests.work import PATIENCE_S


class Site:
    """A small web server: path to (status, headers, body)."""

    def __init__(self, pages):
        self.pages = pages
        self.port = 0
        self.open = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for writer in self.open:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader, writer):
        self.open.add(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        status, headers, body = self.pages[head.split(b" ")[1].decode()]
        if body is None:
            return  # it stays open and says nothing
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 {status} X\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        try:
            await writer.drain()
        except ConnectionError:
            pass
        writer.close()


def fetch(
    pages,
    path,
    *,
    allowed=lambda address: address == "127.0.0.1",
    timeout_s=PATIENCE_S,
    host="127.0.0.1",
    **args,
):
    async def main():
        async with Site(pages) as site:
            tools = FetchTools(allowed, timeout_s)
            return await tools.fetch_url({"url": f"http://{host}:{site.port}{path}", **args})

    return asyncio.run(main())


HTML = {"Content-Type": "text/html; charset=latin-1"}
PAGE = "<head><title>t</title></head><body><h1>Caf\xe9</h1><script>no()</script><p>one <b>two</b></p></body>"


@pytest.mark.full
def test_a_page_is_read_as_text_in_pieces():
    pages = {"/": (200, HTML, PAGE.encode("latin-1")), "/long": (200, {}, b"0123456789")}
    assert fetch(pages, "/")["text"] == "Café\none two"
    piece = fetch(pages, "/long", offset=2, limit=3)
    assert piece["text"] == "234"
    assert piece["next_offset"] == 5


@pytest.mark.full
def test_a_too_large_text_is_cut_and_marked():
    result = fetch({"/": (200, {}, b"x" * (MAX_BYTES + 1))}, "/", limit=2 * MAX_BYTES)
    assert len(result["text"]) == MAX_BYTES
    assert f"first {MAX_BYTES:,} bytes" in result["cut"]
    whole = fetch({"/": (200, {}, b"x" * MAX_BYTES)}, "/", limit=2 * MAX_BYTES)
    assert "cut" not in whole


@pytest.mark.full
def test_a_request_that_takes_too_long_is_given_up():
    with pytest.raises(ToolFailed) as failed:
        fetch({"/": (200, {}, None)}, "/", timeout_s=0.2)
    assert failed.value.code == "tool.timeout"


@pytest.mark.parametrize(
    "address",
    "127.0.0.1 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 0.0.0.0 100.64.0.1 224.0.0.1 255.255.255.255"
    " ::1 :: fe80::1 fc00::1 ff02::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 64:ff9b::7f00:1 2002:7f00:1::"
    " fe80::1%eth0 fec0::1 64:ff9b:1::a00:1 64:ff9b::a00:1 ::127.0.0.1 ::8.8.8.8 ::ffff:0:127.0.0.1"
    " ::ffff:0:8.8.8.8 192.0.0.8 192.0.0.170 192.88.99.1 ::ffff:192.0.0.8 64:ff9b::c000:8 2001::1 2001:db8::1"
    " 3fff::1 4000::1 5f00::1 100::1".split(),
)
def test_addresses_that_are_not_for_everybody_are_not_public(address):
    assert not is_public(address)


def test_public_addresses_are_public():
    assert is_public("93.184.216.34")
    assert is_public("2606:2800:220:1:248:1893:25c8:1946")
    assert is_public("::ffff:8.8.8.8")
    assert is_public("64:ff9b::808:808")


@pytest.mark.full
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.1", "[::1]", "0"])
def test_this_machine_is_not_reached_however_it_is_written(host):
    with pytest.raises(ToolFailed) as failed:
        fetch({"/": (200, {}, b"secret")}, "/", allowed=is_public, host=host)
    assert failed.value.code in ("tool.private_address", "tool.unreachable")


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://example.org/",
        "gopher://x",
        "http://",
        "//x",
        "http://a:b@example.org/",
        "x",
    ],
)
def test_only_web_addresses_are_fetched(url):
    with pytest.raises(ToolFailed) as failed:
        asyncio.run(FetchTools().fetch_url({"url": url}))
    assert failed.value.code == "tool.bad_url"


@pytest.mark.full
def test_addresses_are_encoded_as_the_wire_wants_them():
    town = fetch({"/wiki/Z%C3%BCrich?q=a%20b%2F": (200, {}, b"a town")}, "/wiki/Zürich?q=a b%2F#top")
    assert town["text"] == "a town"
    assert fetch({"/": (200, {}, b"root")}, "", host="\uff11\uff12\uff17.0.0.1")["text"] == "root"


@pytest.mark.parametrize(
    "host",
    [
        "a..b",
        ".example.org",
        f"{'a' * 64}.example",
        "\xfc" * 70,
        "ex\u2100mple",
        "[bad",
        "\ud800",
    ],
)
def test_an_impossible_host_is_an_error_and_no_crash(host):
    with pytest.raises(ToolFailed) as failed:
        asyncio.run(FetchTools().fetch_url({"url": f"http://{host}/"}))
    assert failed.value.code == "tool.bad_url"


@pytest.mark.full
@pytest.mark.parametrize(
    "charset", ["hex", "zlib", "undefined", "idna", "punycode", "unicode_escape", "rot13", "nonsense", "a\0b"]
)
def test_a_charset_that_is_none_is_read_as_utf_8(charset):
    page = (200, {"Content-Type": f"text/plain; charset={charset}"}, "Zürich \\x41".encode())
    if "\0" in charset:
        with pytest.raises(ToolFailed):  # no header may hold it
            fetch({"/": page}, "/")
    else:
        assert fetch({"/": page}, "/")["text"] == "Zürich \\x41"


@pytest.mark.full
def test_a_page_that_no_parser_understands_is_given_as_it_is():
    page = "<p>one</p><![foo bar[ two"
    try:
        HTMLParser().feed(page)
        pytest.skip("needs an older Python: make test-all")
    except AssertionError:
        pass
    assert fetch({"/": (200, {"Content-Type": "text/html"}, page.encode())}, "/")["text"] == page


@pytest.mark.full
def test_a_redirect_to_an_invalid_address_is_an_error():
    for location in ("http://[bad", "http://a..b/", "http://x:99999/"):
        with pytest.raises(ToolFailed) as failed:
            fetch({"/": (302, {"Location": location}, b"")}, "/")
        assert failed.value.code == "tool.bad_url"


@pytest.mark.full
def test_a_redirect_written_in_utf_8_is_followed():
    pages = {"/": (302, {"Location": "/Zürich"}, b""), "/Z%C3%BCrich": (200, {}, b"a town")}
    assert fetch(pages, "/")["text"] == "a town"


@pytest.mark.full
def test_a_redirect_is_checked_like_an_address_that_was_asked_for():
    pages = {
        "/go": (302, {"Location": "/there"}, b""),
        "/there": (200, {}, b"arrived"),
        "/inside": (302, {"Location": "http://169.254.169.254/latest/meta-data"}, b""),
        "/file": (302, {"Location": "file:///etc/passwd"}, b""),
        "/round": (302, {"Location": "/round"}, b""),
    }
    assert fetch(pages, "/go")["text"] == "arrived"
    for path, code in (
        ("/inside", "tool.private_address"),
        ("/file", "tool.bad_url"),
        ("/round", "tool.redirects"),
    ):
        with pytest.raises(ToolFailed) as failed:
            fetch(pages, path)
        assert failed.value.code == code


def test_a_name_that_changes_its_meaning_between_check_and_use_changes_nothing(monkeypatch):
    answers = iter([["93.184.216.34"], ["127.0.0.1"]])
    connected = []

    async def main():
        loop = asyncio.get_running_loop()

        async def getaddrinfo(host, port, **_):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in next(answers)]

        async def connect(self, host, port, *rest):
            connected.append(host)
            raise httpcore2.ConnectError("stopped here")

        import httpcore2

        monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
        monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", connect)
        with pytest.raises(ToolFailed):
            await FetchTools().fetch_url({"url": "http://rebind.example/"})

    asyncio.run(main())
    assert connected == ["93.184.216.34"], "the connection goes to the address that was checked"


def test_a_name_with_one_private_address_among_others_is_refused(monkeypatch):
    async def main():
        async def getaddrinfo(host, port, **_):
            return [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in ("93.184.216.34", "10.0.0.1")
            ]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        with pytest.raises(ToolFailed) as failed:
            await FetchTools().fetch_url({"url": "https://mixed.example/"})
        assert failed.value.code == "tool.private_address"

    asyncio.run(main())
