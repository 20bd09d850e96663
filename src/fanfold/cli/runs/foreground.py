"""Driving a run in the foreground: progress, questions, and what Ctrl-C means.

Rules
* The first Ctrl-C (or SIGTERM) asks for a pause: what runs is stopped, everything is recorded, and the
  command that goes on is printed. The second gives up at once; the log is safe either way.
* On a terminal an open approval is asked there, while other processes may still answer it. Elsewhere the
  run ends its process when only people can go on.
* The lease is given back however this ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from fanfold.cli.command import Call
from fanfold.cli.runs.outcome import say_outcome
from fanfold.cli.terminal.output import on_terminal
from fanfold.cli.terminal.progress import Progress, open_progress, tell
from fanfold.errors import EXIT_INTERRUPTED, FanfoldError
from fanfold.kernel.events import Raised
from fanfold.runtime.hosting.host import Host
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.operations.project import Project

Begin: TypeAlias = Callable[[Host], Coroutine[Any, Any, None]]


def start(call: Call, project: Project, tree: RunTree) -> int:
    """Drive a run that was just created until it ends or rests; returns the exit status."""
    return _Foreground(call, project, tree).drive(lambda host: host.start())


def go_on(call: Call, project: Project, tree: RunTree, raised: Raised | None = None) -> int:
    """Drive a run that was taken over."""
    return _Foreground(call, project, tree).drive(lambda host: host.resume(raised))


class _Foreground:
    def __init__(self, call: Call, project: Project, tree: RunTree) -> None:
        self._call = call
        self._project = project
        self._tree = tree
        self._signals = 0
        self._work: asyncio.Task[None] | None = None
        self._host: Host | None = None
        self._progress: Progress | None = None

    def drive(self, begin: Begin) -> int:
        try:
            asyncio.run(self._drive(begin))
        except asyncio.CancelledError:
            self._give_back()
            tell(f"interrupted; resume it: fanfold resume {self._tree.root.id}\n")
            return EXIT_INTERRUPTED
        except BaseException:
            self._give_back()
            raise
        self._project.done(self._tree)
        return say_outcome(self._call, self._tree)

    async def _drive(self, begin: Begin) -> None:
        asking = on_terminal()
        host = self._host = self._project.host(self._tree, leave_when_waiting=not asking)
        progress = self._progress = open_progress(self._call.no_color)
        host.watchers.append(progress.update)
        host.on_progress.append(progress.hear)
        if asking:
            from fanfold.cli.terminal.questions import Desk

            desk = Desk(host, progress)
            host.watchers.append(desk.look)
            self._project.asker = desk.allow
        self._listen()
        self._work = asyncio.create_task(begin(host))
        try:
            await self._work
        finally:
            progress.close()

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                loop.add_signal_handler(number, self._signalled)
            except (ValueError, RuntimeError):
                return  # not the main thread: whoever runs us decides about signals

    def _signalled(self) -> None:
        self._signals += 1
        assert self._host is not None
        assert self._work is not None
        if self._signals == 1:
            if self._progress is not None:
                self._progress.suspend()
            tell("pausing; once more to stop at once\n")
            if self._progress is not None:
                self._progress.resume()
            self._host.pause("interrupted")
        elif self._signals == 2:
            self._work.cancel()
        else:
            os._exit(EXIT_INTERRUPTED)

    def _give_back(self) -> None:
        try:
            self._project.let_go(self._tree)
        except FanfoldError:
            pass  # the store itself failed; the lease is free as soon as this process is gone
