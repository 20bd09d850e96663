"""Calls of the user's own git and gh, which reach a server: one at a time, each known until it has ended.

Rules
* A process of ours may die while such a program is at work, and the program goes on without it. Who takes the
  delivery over would look, find nothing yet, and do the same again. So a call is written down before its
  program begins, and whoever comes next waits for that program to end before anything is looked up.
  Two runs may deliver the very same commit at once: one begins after the other.
* Whoever was stopped between looking and calling may have lost its run meanwhile: each program begins only
  when its process may still act (`begin` raises otherwise).
* What a program says goes into files. What it leaves behind (a connection that ssh keeps open) may hold its
  end of a pipe for hours, and is nothing to wait for.
* A program that takes too long is ended with all that it started.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from fanfold.errors import WorldError
from fanfold.process_identity import ProcessIdentity, boot_id, pid_namespace, start_time
from fanfold.trust.project_files import write_whole
from fanfold.workspace.files.layout import read_kept

PATIENCE_S = 300
MAX_HEARD_BYTES = 4 * 1024 * 1024
"""Of each stream: a server says what it likes, and nobody needs more of it than a list of branches."""
_ONCE_KNOWN = 'read -r known && exec "$@" < "$0"'
"""Begins the program when it is told that its process is written down, and never when nobody is left to."""


class EndedServerCall(NamedTuple):
    code: int
    stdout: bytes
    stderr: bytes


class ServerCalls:
    """The calls for one delivery; `folder` is ours."""

    def __init__(self, folder: Path, delivery: str, begin: Callable[[], None]) -> None:
        self._folder = folder
        self._may_begin = begin
        self._note = folder / f"{delivery}.call"

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], where: Path, stdin: bytes = b""
    ) -> EndedServerCall:
        """Call a program and hear what it says; `TimeoutError` when it does not end."""
        with (
            tempfile.TemporaryFile(dir=self._folder) as given,
            tempfile.TemporaryFile(dir=self._folder) as said,
            tempfile.TemporaryFile(dir=self._folder) as why,
        ):
            given.write(stdin)
            given.flush()

            def waiting() -> subprocess.Popen[bytes]:
                return subprocess.Popen(
                    ["/bin/sh", "-c", _ONCE_KNOWN, f"/dev/fd/{given.fileno()}", *command],
                    env=environment, cwd=where, start_new_session=True, pass_fds=[given.fileno()],
                    stdin=subprocess.PIPE, stdout=said.fileno(), stderr=why.fileno(),
                )  # fmt: skip

            code = self._begin_and_end(waiting)
            said.seek(0)
            why.seek(0)
            return EndedServerCall(code, said.read(MAX_HEARD_BYTES), why.read(MAX_HEARD_BYTES))

    def _begin_and_end(self, waiting: Callable[[], subprocess.Popen[bytes]]) -> int:
        process, own = self._begin(waiting)
        try:
            return _hear(process)
        finally:
            with self._lock():
                if self._known() == own:  # nobody else has begun since
                    self._note.unlink(missing_ok=True)

    def _begin(
        self, waiting: Callable[[], subprocess.Popen[bytes]]
    ) -> tuple[subprocess.Popen[bytes], ProcessIdentity]:
        """Start a program and write it down, after whichever is at work."""
        earlier: ProcessIdentity | None = None
        while True:
            with self._lock():
                known = self._known()
                if known is None or known == earlier:
                    self._may_begin()
                    process = waiting()
                    try:
                        own = _identity(process)
                        write_whole(self._note, str(own).encode())
                    except BaseException:
                        _end(process)
                        raise
                    return process, own
            _wait_for(earlier := known)

    def _known(self) -> ProcessIdentity | None:
        """The program that is written down."""
        try:
            return ProcessIdentity.parse(read_kept(self._note).decode("ascii", "replace"))
        except FileNotFoundError:
            return None

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Held while a note is looked at and written, never while a program runs."""
        handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _identity(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    return ProcessIdentity(boot_id(), process.pid, start_time(process.pid) or "", pid_namespace())


def _hear(process: subprocess.Popen[bytes]) -> int:
    """Let a program begin that is written down, and wait for its end."""
    assert process.stdin is not None
    try:
        process.stdin.write(b"known\n")
        process.stdin.close()
        return process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program that has not ended, with all that it started."""
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(earlier: ProcessIdentity) -> None:
    """A process of another container cannot be seen, and is not waited for."""
    if not earlier.is_visible() or not earlier.is_alive():
        return
    try:
        handle = os.pidfd_open(earlier.pid)
    except ProcessLookupError:
        return
    try:
        ended = select.select([handle], [], [], PATIENCE_S)[0]
    finally:
        os.close(handle)
    if not ended:
        message = f"a program that this delivery called before is still at work (process {earlier.pid})"
        raise WorldError("deliver.interrupted", message, hint="wait for it or end it, then resume")
