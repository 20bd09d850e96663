"""A command at a real pseudo-terminal, and what stands on its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pyte

PATIENCE_S = 300
"""No bound on how fast anything is: a machine may have much else to do."""


class Screen:
    """A command at a terminal of a given size, and what stands on it."""

    program: tuple[str, ...] = (sys.executable, "-m", "fanfold.cli.main")
    """What the arguments are for; another kind of screen has another."""

    def __init__(
        self,
        columns: int,
        lines: int,
        folder: Path,
        *arguments: str,
        **environment: str,
    ) -> None:
        self._here, there = pty.openpty()
        self.received = b""
        """Every byte that reached the terminal."""
        self.resize(columns, lines)
        known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [*self.program, *arguments],
            stdin=there,
            stdout=there,
            stderr=there,
            cwd=folder,
            env={**known, "TERM": "xterm-256color", "PYTHONUTF8": "1", **environment},
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - one system call, and no thread of ours holds a lock
        )
        os.close(there)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._here, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)

    def type(self, text: str) -> None:
        """Press keys: `\r` is Enter, `\x03` Ctrl-C, `\x04` Ctrl-D, `\x1b\r` Alt-Enter."""
        os.write(self._here, text.encode())

    def until(self, *words: str, timeout_s: float = PATIENCE_S) -> list[str]:
        """The screen as soon as all the words stand on it."""
        deadline = time.monotonic() + timeout_s
        self._read()
        while not all(word in "\n".join(self.rows) for word in words):
            assert time.monotonic() < deadline, f"no {words} in\n" + "\n".join(self.rows)
            self._read()
        return self.rows

    def until_prompt(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until a chat shows its prompt; keys typed earlier are lost."""
        deadline = time.monotonic() + timeout_s
        while [row for row in self.rows if row][-1:] != [">"]:
            assert time.monotonic() < deadline, "no prompt in\n" + "\n".join(self.rows)
            self._read()

    def end(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait until the command has ended; its exit status. What it said last stands on the screen."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "it does not end:\n" + "\n".join(self.rows)
            self._read()
        self._read()
        return self.process.returncode

    def _read(self) -> None:
        if select.select([self._here], [], [], 0.2)[0]:
            try:
                received = os.read(self._here, 65_536)
            except OSError:  # the other end is closed
                return
            self.received += received
            self._stream.feed(received)

    @property
    def rows(self) -> list[str]:
        return [row.rstrip() for row in self._screen.display]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._here)


def _take_terminal() -> None:
    """In the child: its terminal is the one on stdin, so that Ctrl-C reaches it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
