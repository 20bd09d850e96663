"""Which user of this machine is at the other end of a connection.

Cookies know hosts and no ports: a page that another user of this machine serves is given those of our
console by a browser that opens it. So a session is worth something only to the user whose browser began it,
and the kernel says which user that is.
"""

from __future__ import annotations

import socket
import struct

_HEADER = struct.Struct("=IHHII")
_WANTED = struct.Struct("=BBBBI")
_ENDS = struct.Struct("!HH16s16s")
_SOCKET = struct.Struct("=III")
_UID = struct.Struct("=I")
_UID_AT = 80
"""Behind the header, four bytes, the socket's two ends and three numbers."""
_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST = 1
_ANY = 0xFFFFFFFF
_WAIT_S = 1.0

Address = tuple[str, int]


def owner_of_peer(client: Address | None, server: Address | None) -> int | None:
    """The user whose process connected from `client`; None for another machine, or where nobody can tell."""
    if client is None or server is None:
        return None
    try:
        return _ask(client, server)
    except (AttributeError, OSError, struct.error):  # no such socket here, or no such kernel
        return None


def _ask(client: Address, server: Address) -> int | None:
    """One question to the kernel about the socket that is the client's: some 50 microseconds."""
    family = socket.AF_INET6 if ":" in client[0] else socket.AF_INET
    ends = (socket.inet_pton(family, end[0]).ljust(16, b"\0") for end in (client, server))
    body = _WANTED.pack(family, socket.IPPROTO_TCP, 0, 0, _ANY)
    body += _ENDS.pack(client[1], server[1], *ends) + _SOCKET.pack(0, _ANY, _ANY)
    header = _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asked:
        asked.settimeout(_WAIT_S)
        asked.sendto(header + body, (0, 0))
        told = asked.recv(4096)
    if _HEADER.unpack_from(told)[1] != _BY_FAMILY:
        return None
    owner: int = _UID.unpack_from(told, _UID_AT)[0]
    return owner
