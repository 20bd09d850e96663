"""Calls of the user's own git and gh, which reach a server: one at a time, each known until it has ended.

Rules
* A process of ours may die while such a program is at work, and the program goes on without it. Who takes the
  delivery over would look, find nothing yet, and do the same again. So a call is written down before its
  program begins, and whoever comes next waits for that program to end before anything is looked up.
* What a program says goes into files. What it leaves behind (a connection that ssh keeps open) may hold its
  end of a pipe for hours, and is nothing to wait for.
* A program that takes too long is ended with all that it started.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
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

    def __init__(self, folder: Path, delivery: str) -> None:
        self._folder = folder
        self._note = folder / f"{delivery}.call"
        self._given = folder / f"{delivery}.given"

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], where: Path, stdin: bytes = b""
    ) -> EndedServerCall:
        """Call a program and hear what it says; `TimeoutError` when it does not end."""
        self._wait_for_earlier()
        write_whole(self._given, stdin)
        with (
            tempfile.TemporaryFile(dir=self._folder) as said,
            tempfile.TemporaryFile(dir=self._folder) as why,
        ):
            try:
                code = self._run(
                    [str(self._given), *command], environment, where, (said.fileno(), why.fileno())
                )
            finally:
                for left in (self._note, self._given):
                    left.unlink(missing_ok=True)
            said.seek(0)
            why.seek(0)
            return EndedServerCall(code, said.read(MAX_HEARD_BYTES), why.read(MAX_HEARD_BYTES))

    def _run(
        self, words: Sequence[str], environment: Mapping[str, str], where: Path, outputs: tuple[int, int]
    ) -> int:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _ONCE_KNOWN, *words], env=environment, cwd=where, stdin=subprocess.PIPE,
            stdout=outputs[0], stderr=outputs[1], start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        try:
            known = ProcessIdentity(boot_id(), process.pid, start_time(process.pid) or "", pid_namespace())
            write_whole(self._note, str(known).encode())
            process.stdin.write(b"known\n")
            process.stdin.close()
            return process.wait(PATIENCE_S)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeoutError from None
            raise
        finally:
            process.stdin.close()

    def _wait_for_earlier(self) -> None:
        """A process of another container cannot be seen, and is not waited for."""
        try:
            earlier = ProcessIdentity.parse(read_kept(self._note).decode("ascii", "replace"))
        except FileNotFoundError:
            return
        if earlier is None or not earlier.is_visible() or not earlier.is_alive():
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
