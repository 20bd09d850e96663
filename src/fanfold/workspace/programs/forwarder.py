"""Forwards loopback ports inside a sandbox without a network to one socket outside.

Run as `python -I -S forwarder.py SOCKET PROXY_PORT PORTS COMMAND…`. It uses only the standard library. A
connection to PROXY_PORT goes to the proxy behind the socket. A connection to one of PORTS (numbers with
commas, or `-`) goes through the proxy to that loopback port outside. Then it runs the command and exits with
its status.

It makes no decisions, because it runs on the side of the agent. The proxy outside decides which hosts are
allowed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

CHUNK_BYTES = 64 * 1024
MAX_HEAD_BYTES = 16 * 1024


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes in one direction until the stream ends."""
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except (OSError, RuntimeError):
        writer.close()


async def lead(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, socket: str, port: int | None
) -> None:
    """Forward one connection through the socket."""
    try:
        far_reader, far_writer = await asyncio.open_unix_connection(socket)
    except OSError:
        writer.close()
        return
    try:
        if port is not None:
            far_writer.write(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            head = await far_reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in head.partition(b"\r\n")[0]:
                return
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass  # one side closed the connection
    finally:
        far_writer.close()
        writer.close()


async def run(socket: str, proxy_port: int, ports: list[int], command: list[str]) -> int:
    """Open the ports, run the command, and return its status."""
    for port in (proxy_port, *ports):
        inner = None if port == proxy_port else port

        async def serve(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inner: int | None = inner
        ) -> None:
            await lead(reader, writer, socket, inner)

        await asyncio.start_server(serve, "127.0.0.1", port)
    process = await asyncio.create_subprocess_exec(*command)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):  # the command gets its own signal; keep waiting for it
        loop.add_signal_handler(number, lambda: None)
    return await process.wait()


def main(argv: list[str]) -> int:
    socket, proxy_port, ports, command = argv[1], int(argv[2]), argv[3], argv[4:]
    wanted = [int(port) for port in ports.split(",")] if ports != "-" else []
    try:
        status = asyncio.run(run(socket, proxy_port, wanted, command))
    except OSError as error:
        sys.stderr.write(f"sandbox: {command[0]}: {error.strerror}\n")
        return 127
    if status < 0:  # killed by a signal: end with the same signal
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    status = main(sys.argv)
    sys.stdout.flush()
    os._exit(status & 0xFF)
