"""Driving a run in the foreground: progress, questions, and what Ctrl-C means.

Rules
* The first Ctrl-C (or SIGTERM, or the SIGHUP of a terminal that was closed) asks for a pause: what runs is
  stopped, everything is recorded, and the command that goes on is printed. The second gives up at once; the
  log is safe either way. A terminal and the shell in it each say that it was closed: that is asked for once.
* Whoever reads what is told, or does not, holds up no run (`outbox`).
* On a terminal an open approval is asked there, while other processes may still answer it. Elsewhere the
  run ends its process when only people can go on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

from fanfold.cli.command import Invocation
from fanfold.cli.runs.outcome import say_outcome
from fanfold.cli.terminal.output import finish_telling, on_terminal, tell, wait_for_no_reader
from fanfold.cli.terminal.progress import open_progress
from fanfold.errors import EXIT_INTERRUPTED
from fanfold.kernel.events import Raised
from fanfold.runtime.operations.runs.handle import RunHandle
from fanfold.runtime.operations.runs.ownership import Owned
from fanfold.runtime.records.open_runs import how_to_resume

if TYPE_CHECKING:
    from fanfold.cli.terminal.questions import Questions

PERIOD_S = 0.05
"""Nobody reads faster; and a line at a time costs a short step as much as being recorded."""


class Foreground:
    """One run at this terminal: who is asked before it starts and while it runs, and who is told."""

    def __init__(self, call: Invocation) -> None:
        self._call = call
        wait_for_no_reader(sys.stderr)
        self._progress = open_progress(call.no_color)
        self.attendant: Questions | None = None
        if on_terminal():
            from fanfold.cli.terminal.questions import Questions

            self.attendant = Questions(self._progress)
        self._handle: RunHandle | None = None
        self._signals = 0

    def drive(self, owned: Owned, *, resumed: bool = False, raised: Raised | None = None) -> int:
        """Drive a run until it ends or rests, and say how it stands; returns the exit status."""
        try:
            with asyncio.Runner() as runner:
                # Before the runner listens to Ctrl-C in a way of its own, which would have to be replaced:
                # Python then describes it, with its task, and loads what reads source code for that.
                self.listen(runner.get_loop())
                runner.run(self.see_to(owned, resumed, raised))
        except asyncio.CancelledError:
            tell(f"interrupted; resume it: {how_to_resume(owned.tree.root.id)}\n")
            return EXIT_INTERRUPTED
        finally:
            finish_telling(sys.stderr)
        return say_outcome(self._call, owned.tree)

    async def see_to(self, owned: Owned, resumed: bool = False, raised: Raised | None = None) -> None:
        """Drive a run until it ends or rests, in a loop that listens to signals."""
        handle = self._handle = RunHandle(
            owned,
            resumed=resumed,
            raised=raised,
            leave_when_waiting=self.attendant is None,
            on_progress=self._progress.hear,
        )
        try:
            async for written in handle.follow(every_s=PERIOD_S):
                self._progress.update(written, handle.tree)
                if self.attendant is not None:
                    self.attendant.look(handle)
            await handle.wait()
        finally:
            self._progress.close()

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have signals pause and end the run that is driven in this loop next."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup: it is to outlive the terminal
            try:
                loop.add_signal_handler(number, self._signalled, number)
            except (ValueError, RuntimeError):
                return  # not the main thread: whoever runs us decides about signals

    def _signalled(self, number: signal.Signals) -> None:
        handle = self._handle
        assert handle is not None  # a loop takes up its first task before it hears of signals
        if number == signal.SIGHUP and self._signals:
            return
        self._signals += 1
        if self._signals == 1:
            self._progress.suspend()
            tell("pausing; once more to stop at once\n")
            self._progress.resume()
            handle.interrupt()
        elif self._signals == 2:
            handle.abort()
        else:
            os._exit(EXIT_INTERRUPTED)
