"""Runs a command that can connect to one proxy only, where there is no network namespace.

Run as `python -I -S connector.py GATE PROXY_PORT PORTS COMMAND…`, inside a Landlock sandbox. It uses only the
standard library. GATE is a file with the port of the proxy on the loopback and a secret. A connection of the
command to PROXY_PORT goes to that proxy. A connection to one of PORTS (numbers with commas, or `-`) goes
through the proxy to that loopback port. Every other connection is refused. It exits with the status of the
command.

Rules
* The command cannot connect by itself: a filter of system calls reports each `connect` to this process, which
  connects in its place and hands over the connection. The address is read once and never used again by the
  kernel, so the command cannot change it in between.
* Every other way to send is closed: no datagram or raw sockets, no protocols but TCP, no data with an address
  (TCP fast open), no listening.
* The command is in a Landlock domain of its own, below this process. It can neither read this process nor
  trace it, and it cannot connect even if the filter were bypassed (Landlock version 4).
* If this process ends, each `connect` of the command fails.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import os
import platform
import select
import signal
import socket
import struct
import sys

CREATE_RULESET, RESTRICT_SELF = 444, 446
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 4, 38
SET_MODE_FILTER, NEW_LISTENER, GET_NOTIF_SIZES = 1, 8, 3
NOTIF_RECV, NOTIF_SEND, NOTIF_ID_VALID, NOTIF_ADDFD = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
NOTICE, RESPONSE, ADD = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI"), struct.Struct("=QIIII")
SETFD = 1
MAKE_BLOCK = 1 << 11
FAST_OPEN = 0x20000000
IPPROTO_TCP = 6
REFUSED = 126
PATIENCE_S = 20.0
MAX_HEAD_BYTES = 16 * 1024
NUMBERS = {
    "x86_64": {
        "seccomp": 317, "connect": 42, "socket": 41, "listen": 50, "sendto": 44, "sendmsg": 46,
        "sendmmsg": 307,
    },
    "aarch64": {
        "seccomp": 277, "connect": 203, "socket": 198, "listen": 201, "sendto": 206, "sendmsg": 211,
        "sendmmsg": 269,
    },
}  # fmt: skip
LOAD, JEQ, JSET, RETURN, AND = 0x20, 0x15, 0x45, 0x06, 0x54
ALLOW, ERRNO, USER_NOTIF = 0x7FFF0000, 0x00050000, 0x7FC00000
EPERM, EACCES = 1, 13
FLAGS_AT = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}
"""The index of the argument with the flags."""

libc = ctypes.CDLL(None, use_errno=True)
Line = tuple[int, int, int, int]


class FilterProgram(ctypes.Structure):
    """A filter in the format of the kernel."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def is_available() -> bool:
    """Return whether this kernel and this user can hand over connections."""
    numbers = NUMBERS.get(platform.machine())
    if numbers is None:
        return False
    sizes = (ctypes.c_uint16 * 3)()
    if libc.syscall(numbers["seccomp"], GET_NOTIF_SIZES, 0, sizes) != 0:
        return False
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope", "rb") as file:
            return int(file.read()) < 2  # the memory of a child has to be readable
    except (OSError, ValueError):
        return True


def assemble(numbers: dict[str, int]) -> bytes:
    """Return the filter of the command. The sandbox has checked the architecture before."""

    def case(name: str, body: list[Line]) -> list[Line]:
        whole = [*body, (RETURN, 0, 0, ALLOW)]
        return [(LOAD, 0, 0, 0), (JEQ, 0, len(whole), numbers[name]), *whole]

    refuse: Line = (RETURN, 0, 0, ERRNO | EPERM)

    def argument(index: int) -> Line:
        return (LOAD, 0, 0, 16 + 8 * index)

    kinds: list[Line] = [
        argument(0),
        (JEQ, 2, 0, int(socket.AF_INET)),
        (JEQ, 1, 0, int(socket.AF_INET6)),
        (RETURN, 0, 0, ALLOW),
        argument(1),
        (AND, 0, 0, 0xF),
        (JEQ, 1, 0, int(socket.SOCK_STREAM)),
        refuse,
        argument(2),
        (JEQ, 2, 0, 0),
        (JEQ, 1, 0, IPPROTO_TCP),
        refuse,
    ]
    code = case("connect", [(RETURN, 0, 0, USER_NOTIF)])
    code += case("listen", [refuse])
    code += case("socket", kinds)
    for name, index in FLAGS_AT.items():
        code += case(name, [argument(index), (JSET, 0, 1, FAST_OPEN), refuse])
    code.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in code)


def checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), what)
    return result


def stand_below() -> None:
    """Enter a Landlock domain below the one of the parent, without a right to connect or listen."""
    version = libc.syscall(CREATE_RULESET, None, 0, 1)
    attributes = (ctypes.c_uint64 * 2)(MAKE_BLOCK, 3 if version >= 4 else 0)
    size = ctypes.c_size_t(16 if version >= 4 else 8)
    ruleset = checked(libc.syscall(CREATE_RULESET, attributes, size, 0), "Landlock")
    checked(libc.syscall(RESTRICT_SELF, ruleset, 0), "Landlock")
    os.close(ruleset)


def become(command: list[str], line: socket.socket) -> None:
    """Filter the calls of this process, send the listener to the parent, and become the command."""
    try:
        checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        stand_below()
        numbers = NUMBERS[platform.machine()]
        code = assemble(numbers)
        program = FilterProgram(len(code) // 8, code)
        listener = checked(
            libc.syscall(numbers["seccomp"], SET_MODE_FILTER, NEW_LISTENER, ctypes.byref(program)), "seccomp"
        )
        socket.send_fds(line, [b"l"], [listener])
        os.close(listener)
        line.close()
        os.execvp(command[0], command)  # noqa: S606 - the command is an argument list, and it becomes this
    except OSError as error:
        sys.stderr.write(f"sandbox: {command[0]}: {os.strerror(error.errno or 0)}\n")
        sys.stderr.flush()
    os._exit(REFUSED)


class Connector:
    """Answers the connections of one command."""

    def __init__(self, gate: str, proxy_port: int, ports: list[int]) -> None:
        with open(gate) as file:
            port, secret = file.read().split()
        self._gate = int(port)
        self._secret = secret.encode()
        self._proxy_port = proxy_port
        self._ports = ports

    def serve(self, listener: int, child: int) -> None:
        """Answer until the command has ended."""
        ended = os.pidfd_open(child)
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.register(ended, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if listener in ready and ready[listener] & select.POLLIN:
                self._answer(listener)
            elif listener in ready:
                poll.unregister(listener)  # no process with the filter is left
            if ended in ready:
                return

    def _answer(self, listener: int) -> None:
        notice = bytearray(NOTICE.size)
        try:
            fcntl.ioctl(listener, NOTIF_RECV, notice)
        except OSError:
            return  # the process was killed meanwhile
        number, pid, _, _, _, _, handle, address, length, *_ = NOTICE.unpack(notice)
        error = EACCES
        try:
            made = self._connect(self._target(listener, number, pid, address, length))
            if made is not None:
                with made:
                    self._hand_over(listener, number, pid, handle, made)
                    error = 0
        except (OSError, ValueError) as failed:
            error = getattr(failed, "errno", None) or EACCES
        try:
            fcntl.ioctl(listener, NOTIF_SEND, bytearray(RESPONSE.pack(number, 0, -error, 0)))
        except OSError:
            pass

    def _target(self, listener: int, number: int, pid: int, address: int, length: int) -> int | None:
        """Return the loopback port that a process wants to reach; None for every other address."""
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            data = os.pread(memory.fileno(), min(length, 128), address)
        fcntl.ioctl(
            listener, NOTIF_ID_VALID, bytearray(struct.pack("=Q", number))
        )  # it is still that process
        if len(data) < 8:
            return None
        family, port = struct.unpack("=H", data[:2])[0], struct.unpack("!H", data[2:4])[0]
        if family == socket.AF_INET and data[4] == 127:
            return int(port)
        mapped = b"\0" * 10 + b"\xff\xff\x7f"
        is_local = data[8:24] == b"\0" * 15 + b"\1" or data[8:24].startswith(mapped)
        return int(port) if family == socket.AF_INET6 and is_local else None

    def _connect(self, port: int | None) -> socket.socket | None:
        if port is None or (port != self._proxy_port and port not in self._ports):
            return None
        made = socket.create_connection(("127.0.0.1", self._gate), PATIENCE_S)
        made.sendall(self._secret)
        if port != self._proxy_port:
            made.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            head = b""
            while not head.endswith(b"\r\n\r\n") and len(head) < MAX_HEAD_BYTES and (byte := made.recv(1)):
                head += byte
            if b" 200 " not in head.partition(b"\r\n")[0]:
                made.close()
                return None
        return made

    def _hand_over(self, listener: int, number: int, pid: int, handle: int, made: socket.socket) -> None:
        """Replace the socket of a process by a connected one with the same flags."""
        with open(f"/proc/{pid}/fdinfo/{handle}") as file:
            flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
        made.setblocking(not flags & os.O_NONBLOCK)
        added = ADD.pack(number, SETFD, made.fileno(), handle, flags & os.O_CLOEXEC)
        fcntl.ioctl(listener, NOTIF_ADDFD, bytearray(added))


def main(argv: list[str]) -> int:
    gate, proxy_port, ports, command = argv[1], int(argv[2]), argv[3], argv[4:]
    connector = Connector(gate, proxy_port, [int(port) for port in ports.split(",")] if ports != "-" else [])
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        become(command, theirs)
    theirs.close()
    checked(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "protect the memory")
    for number in (signal.SIGTERM, signal.SIGINT):  # the command gets its own signal; keep waiting for it
        signal.signal(number, lambda *_: None)
    handles = array.array("i")
    _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(handles.itemsize))
    for _, _, data in ancillary:
        handles.frombytes(data[: len(data) - len(data) % handles.itemsize])
    if handles:
        connector.serve(handles[0], child)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):  # end with the same signal
        killed_by = os.WTERMSIG(status)
        if killed_by not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(killed_by, signal.SIG_DFL)
        os.kill(os.getpid(), killed_by)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    status = main(sys.argv)
    sys.stdout.flush()
    os._exit(status & 0xFF)
