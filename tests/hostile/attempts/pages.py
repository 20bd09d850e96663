"""Makes a network of its own, serves one hostile page at a public address, and runs a command in it.

unshare --user --map-root-user --net python3 pages.py WAY COMMAND…
"""

import fcntl
import gzip
import http.server
import socket
import struct
import subprocess
import sys
import threading
import time
from io import BufferedIOBase

ADDRESS = "93.184.216.34"


def gzipped(size: int) -> bytes:
    return gzip.compress(b"\0" * size)


def answer(way: str, out: BufferedIOBase) -> None:  # noqa: C901, PLR0912 - a list of ways
    def say(body: bytes, *headers: str, status: str = "200 OK") -> None:
        head = "\r\n".join(
            [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
        )
        out.write(head.encode() + b"\r\n\r\n" + body)

    html = "Content-Type: text/html"
    if way == "large":
        say(b"<p>" + b"words " * 10_000_000, html)
    elif way == "bomb":
        say(gzipped(2_000_000_000 // 8), html, "Content-Encoding: gzip")
    elif way == "deep":
        say(b"<div>" * 700_000, html)
    elif way == "slow":
        out.write(f"HTTP/1.1 200 OK\r\n{html}\r\n\r\n".encode())
        for _ in range(300):
            out.write(b"<p>words</p>")
            out.flush()
            time.sleep(1)
    elif way == "home":
        say(b"", "Location: http://127.0.0.1:1/", status="302 Found")
    elif way == "file":
        say(b"", "Location: file:///etc/passwd", status="302 Found")
    elif way == "circle":
        say(b"", f"Location: http://{ADDRESS}/again", status="302 Found")
    elif way == "headers":
        out.write(b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 50_000_000 + b"\r\n\r\n")
    elif way == "charset":
        say(b"words \xff\xfe" * 1000, "Content-Type: text/html; charset=zlib_codec")
    elif way == "terminal":
        text = "<title>\x1b[2J</title><p>\x1b]0;owned\x07\x9b31m\u202ewords</p>"
        say(text.encode(), html)
    elif way == "attributes":
        say(b"<a " + b"a='" * 500_000 + b">words", html)
    elif way == "binary":
        say(b"\x7fELF" + bytes(range(256)) * 4000, "Content-Type: application/octet-stream")


def bring_up(device: str, address: str | None = None) -> None:
    """Without `ip`, which not every machine has; names and numbers as `netdevice(7)` has them."""
    name, set_flags, set_address = device.encode(), 0x8914, 0x8916
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        if address is not None:
            wanted = struct.pack("16sH2s4s8x", name, socket.AF_INET, b"", socket.inet_aton(address))
            fcntl.ioctl(any_socket, set_address, wanted)
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sH22x", name, 1))  # up


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        try:
            answer(sys.argv[1], self.wfile)
        except OSError:
            pass  # the other side has had enough

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: what is printed is the command's."""


if __name__ == "__main__":
    bring_up("lo")
    bring_up("lo:1", ADDRESS)
    server = http.server.ThreadingHTTPServer((ADDRESS, 80), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.exit(subprocess.run(sys.argv[2:], check=False).returncode)
