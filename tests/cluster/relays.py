"""Relays between a process and its servers. A silent relay is a partition: nothing arrives or is closed."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

CHUNK = 65_536


class Relay:
    """Listens on loopback and passes everything on to a server, at `port` or at a socket file.

    `delay_s` is added to each chunk in each direction.
    """

    def __init__(self, target: int | Path, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self._target = target
        self._passes = threading.Event()
        self._passes.set()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        self._passes.clear()

    def heal(self) -> None:
        self._passes.set()

    def close(self) -> None:
        self._passes.set()
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._passes.wait()
        try:
            if isinstance(self._target, int):
                far = socket.create_connection(("127.0.0.1", self._target))
            else:
                far = socket.socket(socket.AF_UNIX)
                far.connect(str(self._target))
        except OSError:
            near.close()
            return
        self._sockets |= {near, far}
        for source, sink in ((near, far), (far, near)):
            if source.family != socket.AF_UNIX:
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while chunk := source.recv(CHUNK):
                if self.delay_s:
                    time.sleep(self.delay_s)
                self._passes.wait()
                sink.sendall(chunk)
        self._passes.wait()
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
            self._sockets.discard(one)
