"""`fanfold logs` and `fanfold watch`: what was recorded, and what is being recorded right now."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable

import click

from fanfold.cli.command import Invocation, command, option
from fanfold.cli.terminal.output import paint, say, say_json
from fanfold.cli.terminal.statuses import COLOURS, clock
from fanfold.errors import AuthorError
from fanfold.kernel.events import Envelope
from fanfold.kernel.plan import Step
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.operations.history.logs import follow_log, read_log, read_step_log
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.follow import follow
from fanfold.runtime.views.items import item_around_at
from fanfold.runtime.views.runs.transitions import Transitions, step_at
from fanfold.store.protocol import RunHead
from fanfold.text.terminal import one_line

MAX_DETAIL_CHARS = 120
LINES_AT_ONCE = 500


@command("logs", summary="Print a run's log, or follow it with -f")
@click.argument("run")
@click.argument("step", required=False)
@option("-f", "--follow", "following", is_flag=True, help="Go on until the run ends or rests.")
@option("--tree", is_flag=True, help="The logs of all child runs too, in the order things happened.")
def logs_command(call: Invocation, run: str, step: str | None, following: bool, tree: bool) -> None:
    """Print what was recorded about RUN, one line per event; with --json the events themselves.

    With STEP, a path or the name of a subagent: what its run and its own sessions recorded about it.
    """
    if step is not None and (following or tree):
        option = "--follow" if following else "--tree"
        hint = f"fanfold transcript {run} {shlex.quote(step)} --follow" if following else "leave --tree out"
        raise AuthorError("usage.conflict", f"{option} is for the log of a run", hint=hint)
    with call.open_project(to_read=True) as project:
        head = project.resolve(run)
        show = _show_json if call.as_json else _Shown(project, head, tree, call.colour).show
        if step is not None:
            show(read_step_log(project, run, step))
        elif following:
            import asyncio  # only who follows needs an event loop

            asyncio.run(_follow(project, head, tree, show))
        else:
            show(read_log(project, head, whole_tree=tree))


async def _follow(
    project: Project, head: RunHead, tree: bool, show: Callable[[Iterable[Envelope]], None]
) -> None:
    async for envelopes in follow_log(project, head, whole_tree=tree):
        show(envelopes)
        sys.stdout.flush()


def _show_json(envelopes: Iterable[Envelope]) -> None:
    for envelope in envelopes:
        say_json(envelope)


class _Shown:
    """Events as text: when, which, where, what."""

    def __init__(self, project: Project, head: RunHead, tree: bool, colour: bool) -> None:
        self._colour = colour
        self._tree = tree
        self._project = project
        self._view = project.view(head.root_run_id)
        self._transitions = Transitions(
            self._find_step, lambda run, path: item_around_at(self._view, run, path)
        )

    def show(self, envelopes: Iterable[Envelope]) -> None:
        lines: list[str] = []
        for envelope in envelopes:
            said = self._transitions.read(envelope)
            if said is None:
                name, text, shade = _raw(envelope)
            else:
                name, text, shade = said.path or "run", said.text, COLOURS.get(said.word, "bold")
                name = f"{name} {said.item}" if said.item else name
            when = paint(clock(envelope.at), "dim", self._colour)
            place = envelope.tree_seq if self._tree else envelope.seq
            number = paint(f"{place:>5}", "dim", self._colour)
            painted = text if shade == "bold" else paint(text, shade, self._colour)
            lines.append(f"{when} {number}  {paint(name, 'cyan', self._colour)} {painted}\n")
            if len(lines) == LINES_AT_ONCE:
                say("".join(lines))
                lines.clear()
        say("".join(lines))

    def _find_step(self, run: str, path: str) -> Step | None:
        found = step_at(self._view, run, path)
        if found is None:
            self._view.catch_up(self._project.store.tree(self._view.root.id, self._view.tree_seq))
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
def watch_command(call: Invocation, run: str) -> int:
    """Watch RUN until it has ended, or until no process drives it any more.

    Shows what `fanfold run` shows, prints the result, and ends with the same exit status. Interrupting it
    does not touch the run.
    """
    from fanfold.cli.runs.outcome import say_outcome

    with call.open_project(to_read=True) as project:
        root = project.resolve(run).root_run_id
        tree = project.view(root)
        import asyncio  # only who follows needs an event loop

        asyncio.run(_watch(call, project, tree))
        return say_outcome(call, tree)


async def _watch(call: Invocation, project: Project, tree: RunTree) -> None:
    from fanfold.cli.terminal.progress import open_progress

    progress = open_progress(call.no_color)
    try:
        async for written in follow(project, tree.root.id):
            tree.catch_up(written)
            progress.update(written, tree)
    finally:
        progress.close()
