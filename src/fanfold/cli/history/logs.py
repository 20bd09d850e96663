"""`fanfold logs` and `fanfold watch`: what was recorded, and what is being recorded right now."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import click

from fanfold.cli.command import Call, command
from fanfold.cli.history.following import PERIOD_S, Abandoned, follow
from fanfold.cli.stored import stored
from fanfold.cli.terminal.output import one_line, paint, say, say_json
from fanfold.cli.terminal.transitions import COLOURS, Transitions, clock
from fanfold.errors import EXIT_OK
from fanfold.kernel.events import Envelope
from fanfold.kernel.lifecycle import RUN_TERMINAL
from fanfold.kernel.plan import Step
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.operations.project import Project
from fanfold.store.protocol import RunHead

MAX_DETAIL_CHARS = 120


@command("logs", summary="Print a run's log, or follow it with -f")
@click.argument("run")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the run ends or rests.")
@click.option("--tree", is_flag=True, help="The logs of all child runs too, in the order things happened.")
def logs_command(call: Call, run: str, following: bool, tree: bool) -> int:
    """Print what was recorded about RUN, one line per event; with --json the events themselves."""
    with stored(call, to_read=True) as project:
        head = project.resolve(run)
        reader = _Reader(project, head, tree)
        show = _show_json if call.as_json else _Shown(project, head, tree, call.colour).show
        if not following:
            show(reader.fresh())
            return EXIT_OK
        for envelopes in follow(project, head.root_run_id, reader.fresh):
            show(iter(envelopes))
            sys.stdout.flush()
    return EXIT_OK


class _Reader:
    """Reads one log, or a whole tree's, from where it stopped before."""

    def __init__(self, project: Project, head: RunHead, tree: bool) -> None:
        self._store = project.store
        self._head = head
        self._tree = tree
        self._last = 0

    def fresh(self) -> Iterator[Envelope]:
        if self._tree:
            for envelope in self._store.tree(self._head.root_run_id, self._last):
                self._last = envelope.tree_seq
                yield envelope
        else:
            for envelope in self._store.log(self._head.run_id, self._last):
                self._last = envelope.seq
                yield envelope


def _show_json(envelopes: Iterator[Envelope]) -> None:
    for envelope in envelopes:
        say_json(envelope)


class _Shown:
    """Events as text: when, which, where, what."""

    def __init__(self, project: Project, head: RunHead, tree: bool, colour: bool) -> None:
        self._colour = colour
        self._tree = tree
        self._view = project.view(head.root_run_id)
        self._transitions = Transitions(self._find_step)

    def show(self, envelopes: Iterator[Envelope]) -> None:
        for envelope in envelopes:
            said = self._transitions.read(envelope)
            if said is None:
                name, text, shade = _raw(envelope)
            else:
                name, text, shade = said.path or "run", said.text, COLOURS.get(said.word, "bold")
            when = paint(clock(envelope.at), "dim", self._colour)
            place = envelope.tree_seq if self._tree else envelope.seq
            number = paint(f"{place:>5}", "dim", self._colour)
            painted = text if shade == "bold" else paint(text, shade, self._colour)
            say(f"{when} {number}  {paint(name, 'cyan', self._colour)} {painted}\n")

    def _find_step(self, run: str, path: str) -> Step | None:
        from fanfold.cli.terminal.progress import step_at

        found = step_at(self._view, run, path)
        if found is None:
            self._view.catch_up()
            found = step_at(self._view, run, path)
        return found


def _raw(envelope: Envelope) -> tuple[str, str, str]:
    """An event that is no transition of a step: its words as they are, shortened."""
    data = envelope.data if isinstance(envelope.data, dict) else {}
    step = str(data.get("step", ""))
    name = "/".join(part for part in (envelope.path, step) if part) or "run"
    words = [str(data.get(key)) for key in ("kind", "status", "what", "reason") if data.get(key)]
    if "value" in data:
        words.append(f"= {data['value']}")
    if not words:
        words = [envelope.type]
    return name, one_line(" ".join(words), MAX_DETAIL_CHARS), "dim"


@command("watch", summary="Watch a run live, whichever process drives it")
@click.argument("run")
def watch_command(call: Call, run: str) -> int:
    """Watch RUN until it has ended, or until no process drives it any more.

    Shows what `fanfold run` shows, prints the result, and ends with the same exit status. Interrupting it
    does not touch the run.
    """
    from fanfold.cli.runs.outcome import say_outcome

    with stored(call, to_read=True) as project:
        root = project.resolve(run).root_run_id
        tree = project.view(root)
        asyncio.run(_watch(call, project, tree))
        return say_outcome(call, tree)


async def _watch(call: Call, project: Project, tree: RunTree) -> None:
    from fanfold.cli.terminal.progress import open_progress

    progress = open_progress(call.no_color)
    abandoned = Abandoned(project, tree.root.id)
    try:
        progress.update(list(project.store.tree(tree.root.id)), tree)
        while tree.root.status not in RUN_TERMINAL:
            await asyncio.sleep(PERIOD_S)
            fresh = tree.catch_up()
            if fresh:
                progress.update(fresh, tree)
            elif abandoned.check():
                return
    finally:
        progress.close()
