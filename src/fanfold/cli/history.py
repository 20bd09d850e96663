"""Commands that read runs: `inspect`, `watch`, `logs`, `explain`, `query`."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence

import click
from msgspec import convert, structs

from fanfold.api import history
from fanfold.api.approvals import REASON_CHARS, gist, how_to_answer
from fanfold.api.display import FailureDocument, first_of, local_time, since_ms, step_usage
from fanfold.api.explain import MAX_STEPS, RETRY, explain_run, explain_step
from fanfold.api.history import find_run
from fanfold.api.project import Project
from fanfold.api.recipes import SuggestedSet
from fanfold.api.report import Transitions
from fanfold.api.run_documents import InspectDocument, InspectStepDocument, how_to_retry, indented
from fanfold.api.step_documents import (
    MAX_NOTE_CHARS,
    ExplainedRun,
    ExplainedStep,
    ExplanationDocument,
    Row,
    UsedSets,
    run_rows,
)
from fanfold.cli.command import Invocation, command, option
from fanfold.cli.output import (
    COLOURS,
    clock,
    first_lines,
    paint,
    plain,
    print_json,
    print_result,
    print_text,
    to_json,
    wrap_text,
)
from fanfold.cli.run_list import spent_text, took_text, usage_text
from fanfold.cli.step_text import change_lines, question_lines, step_lines
from fanfold.engine.run_tree import wall_clock_ms
from fanfold.errors import AuthorError
from fanfold.kernel.events import Envelope, Usage
from fanfold.kernel.explain import SENTENCES
from fanfold.kernel.state import FAILED, PAUSED, RUN_TERMINAL, TIMED_OUT, WAITING
from fanfold.language.terminal import one_line
from fanfold.store.protocol import RunHead
from fanfold.store.search import Filters, Hit

MAX_OUTPUT_LINES = 20
MAX_HELD = 12


@command("inspect", summary="Show a run: steps, child runs, result and cost")
@click.argument("run")
@click.argument("step", required=False)
@option("--steps", is_flag=True, help="Show every step with output and error.")
@option("--state", is_flag=True, help="Add the scheduler's state: limits, slots, blocked steps.")
@option("--output", is_flag=True, help="Print only the output of the run or STEP.")
def inspect_command(
    call: Invocation, run: str, step: str | None, steps: bool, state: bool, output: bool
) -> None:
    """Show RUN (an id, a prefix of one, or `last`), or one STEP of it by its path."""
    with call.open_project(to_read=True) as project:
        if output:
            given = (
                history.inspect(project, run) if step is None else history.inspect_step(project, run, step)
            )
            text = "" if given.output is None else f"{indented(given.output)}\n"
            call.give(given.output, lambda: print_result(text))
            return
        if step is not None:
            one = history.inspect_step(project, run, step)
            call.give(one, lambda: _step_text(one, call.colour))
            return
        found = find_run(project, run)
        if call.as_json:
            print_json(history.inspect_found(project, found, with_state=state))
        else:
            rows = run_rows(found.tree, found.run, wall_clock_ms(), every=steps)
            shown = {row.path for row in rows if steps or row.asks}
            document = history.inspect_found(project, found, with_state=state, only=shown)
            print_text("".join(_text(document, rows, steps, call.colour)))
            if changed := "".join(change_lines(found.tree, found.run)):
                print_text(f"\n{paint('Changed', 'bold', call.colour)}\n{changed}")
            if again := how_to_retry(found.tree):
                print_text(f"\n{paint(f'run again what did not complete: {again}', 'dim', call.colour)}\n")
            elif on := history.continue_command(
                found.tree, driven=bool(document.owner and document.owner.alive)
            ):
                print_text(f"\n{paint(f'continue it: {on}', 'dim', call.colour)}\n")


def _text(run: InspectDocument, rows: list[Row], steps: bool, colour: bool) -> Iterator[str]:
    yield f"{paint(f'{run.recipe}@{run.version}', 'bold', colour)}  run {run.run_id}  "
    yield paint(run.status, COLOURS.get(run.status, "blue"), colour)
    if run.status not in (*RUN_TERMINAL, WAITING, PAUSED) and not (run.owner and run.owner.alive):
        yield paint("  no process is running it", "yellow", colour)
    yield "\n"
    if run.output is not None:
        yield f"\n{paint('Output', 'bold', colour)}\n"
        lines = plain(indented(run.output)).splitlines() or [paint("(empty)", "dim", colour)]
        yield from (wrap_text(f"  {one}\n", "  ") for one in (lines if steps else lines[:MAX_OUTPUT_LINES]))
        if len(lines) > MAX_OUTPUT_LINES and not steps:
            yield f"  … {len(lines) - MAX_OUTPUT_LINES} more lines: fanfold inspect {run.run_id} --steps\n"
        yield "\n"
    for name, value in _heading(run):
        wrapped = wrap_text(f"  {name.ljust(9)} {value}", " " * 12)
        yield f"  {paint(name.ljust(9), 'dim', colour)}{wrapped[11:]}\n"
    yield f"\n{paint('Steps', 'bold', colour)}\n"
    # Without the failure that is shown above as the reason of the run.
    cause = None if run.error is None else gist(run.error, MAX_NOTE_CHARS)
    shown = [structs.replace(row, note="") if row.note == cause else row for row in rows]
    yield from step_lines(run, shown, every=steps, colour=colour)
    if run.state:
        yield f"\n{paint('State', 'bold', colour)}\n"
        known = structs.asdict(run.state)
        yield from (f"  {name}: {plain(to_json(value))}\n" for name, value in known.items())


def _step_text(step: InspectStepDocument, colour: bool) -> Iterator[str]:
    status = paint(step.status, COLOURS.get(step.status, "blue"), colour)
    item = f" {plain(step.item)}" if step.item else ""
    yield f"{paint(plain(step.path), 'bold', colour)}{item}  {step.role or step.type}  {status}"
    yield f" ({step.reason})\n" if step.reason else "\n"
    facts = [
        ("asked", one_line(step.task, 200)),
        ("attempts", str(step.attempts) if step.attempts > 1 else ""),
        ("started", local_time(step.started_at) if step.started_at else ""),
        ("ended", local_time(step.ended_at) if step.ended_at else ""),
        ("reads", plain(", ".join(step.read_set))),
        ("may write", plain(", ".join(step.write_set))),
        ("used", "" if step.usage is None else spent_text(step.usage)),
        ("holds", plain(first_of(step.holds, MAX_HELD))),
        ("because", "" if step.error is None else _because(step.error)),
        ("warning", "" if step.warning is None else _because(step.warning)),
    ]
    yield from (f"  {paint(name.ljust(9), 'dim', colour)} {value}\n" for name, value in facts if value)
    for row in step.changes:
        yield f"  {paint(row.state.ljust(9), 'dim', colour)} {plain(row.path)} ({row.kind})\n"
    if step.approval is not None:
        yield f"\n{paint('Asks', 'bold', colour)}\n"
        yield from question_lines(step.approval, colour)
        words = how_to_answer(step.run_id, step.path, step.approval)
        yield f"\n{paint(f'answer it: {plain(words)}', 'dim', colour)}\n"
    if step.output is not None:
        yield f"\n{paint('Output', 'bold', colour)}\n"
        yield from (f"  {line}\n" for line in plain(indented(step.output)).splitlines())
    if step.session_id is not None:
        hint = f"its transcript: fanfold transcript {step.run_id} {plain(shlex.quote(step.path))}"
        yield f"\n{paint(hint, 'dim', colour)}\n"


def _because(error: FailureDocument) -> str:
    """Return the whole message, with the output of a program line by line."""
    first, *rest = plain(f"{error.message} [{error.code}]").splitlines() or [error.code]
    return "\n".join([first, *(f"{' ' * 12}{line}" for line in rest)])


def _heading(run: InspectDocument) -> Iterator[tuple[str, str]]:
    if run.error is not None:
        step = f"{run.error.step}: " if run.error.step else ""
        yield "because", f"{step}{gist(run.error, REASON_CHARS)} [{run.error.code}]"
    yield "created", local_time(run.created_at) if run.created_at else ""
    if took := took_text(run):
        yield "took", took
    if run.parent_run_id is not None:
        yield "called by", f"{run.execution_path} of run {run.parent_run_id}"
    if run.forked_from is not None:
        yield "forked", f"from run {run.forked_from}"
    for name, value in run.inputs.items():
        yield "input", f"{name} = {one_line(indented(value), 80)}"
    if used := usage_text(run.usage):
        yield "used", used
    for wait in run.waits:
        yield "waits", wait.text


MAX_SHOWN = 40
MAX_PATHS = 8
MIN_ALIKE = 3
_NUMBER = r"(?<=\[)\d+(?=\])|(?<=#)\d+"
"""The number of an item or iteration in a path."""


@command("explain", summary="Explain why a step waits, was skipped or retried")
@click.argument("run")
@click.argument("step", required=False)
def explain_command(call: Invocation, run: str, step: str | None) -> None:
    """Explain RUN, or one STEP of it by its path."""
    with call.open_project(to_read=True) as project:
        found = explain_run(project, run) if step is None else explain_step(project, run, step)
    call.give(found, lambda: _text_explain(found, call.colour))


def _text_explain(found: ExplainedRun | ExplainedStep, colour: bool) -> Iterator[str]:
    status = paint(found.status, COLOURS.get(found.status, "blue"), colour)
    if isinstance(found, ExplainedRun):
        found = _with_causes_once(found)
        message, separator, command = one_line(found.message).partition(RETRY)
        yield f"{status}  {message}\n" + (f"  {separator[2:]}{command}\n" if command else "")
        steps = (wrap_text(f"  {one_line(line)}\n", "    ") for line in _alike_together(found.steps))
        yield from first_lines(steps, MAX_SHOWN, "  … {} more\n")
        if len(found.steps) == MAX_STEPS:
            yield f"  of the first {MAX_STEPS:,} steps that did not simply complete\n"
    else:
        yield f"{status}  {one_line(found.message)}\n"
        if found.ran_then:
            yield f"  {found.ran_then}\n"
        asked = f"{found.approval.question}\n{found.approval.show}" if found.approval else ""
        for line in asked.splitlines():
            yield f"  {paint('│', 'dim', colour)} {plain(line)}\n"
        if found.used:
            yield from _used(found.used, found.suggested or [], colour)
        for change in found.history:
            yield f"  {paint(clock(change.at or 0), 'dim', colour)} {change.text}\n"


def _with_causes_once(run: ExplainedRun) -> ExplainedRun:
    """Leave the cause of a failure, the longest that matches, to the step that failed first."""
    failed = [one for one in run.steps if one.status in (FAILED, TIMED_OUT) and not one.blocked_by]
    causes = sorted({one.message.partition(f" {SENTENCES[one.reason]}")[2] for one in failed}, key=len)

    def shorten(message: str) -> str:
        return next((message.replace(one, "", 1) for one in reversed(causes) if one in message), message)

    steps = [
        structs.replace(one, message=shorten(one.message)) if one.blocked_by else one for one in run.steps
    ]
    return structs.replace(run, message=shorten(run.message), steps=steps)


def _alike_together(steps: Sequence[ExplanationDocument]) -> Iterator[str]:
    """Yield a line for each step, and one for all instances of a step with the same reason.

    Failures are listed one by one, because each may need a different fix.
    """
    groups: dict[tuple[str, str], list[ExplanationDocument]] = {}
    for one in steps:
        # Compare without the path: the name of a step may be a word of the sentence.
        begins = one.message.find(f" {SENTENCES.get(one.reason, '')}", len(one.path))
        if begins < 0:  # it waits for a provider, or for a worker
            begins = len(one.path)
        why = re.sub(_NUMBER, "…", one.message[begins + 1 :])
        path = one.path if one.status in (FAILED, TIMED_OUT) else re.sub(_NUMBER, "…", one.path)
        groups.setdefault((path, why), []).append(one)
    for (_, why), alike in groups.items():
        if len(alike) >= MIN_ALIKE:
            yield f"{alike[0].path} … {alike[-1].path} ({len(alike)} steps): each {why}"
        else:
            yield from (one.message for one in alike)


def _used(used: UsedSets, suggested: list[SuggestedSet], colour: bool) -> Iterator[str]:
    rows = (("read", used.reads, used.unseen_reads), ("changed", used.writes, used.unseen_writes))
    for word, paths, unseen in rows:
        if paths:
            known = plain(first_of(paths, MAX_PATHS))
            yield f"  {paint(word, 'dim', colour)} {known}{f'; perhaps more: {unseen}' if unseen else ''}\n"
    if used.unmerged:
        yield f"  {paint(used.unmerged, 'dim', colour)}\n"
    for one in suggested:
        what = one.note or f"{one.key}: {to_json(one.proposed)}"
        yield f"  {paint('suggest', 'dim', colour)} {plain(what)}\n"


MAX_DETAIL_CHARS = 120
LINES_AT_ONCE = 500


@command("logs", summary="Print the log of a run, or follow it with -f")
@click.argument("run")
@click.argument("step", required=False)
@option("-f", "--follow", "following", is_flag=True, help="Follow until the run ends or rests.")
@option("--tree", is_flag=True, help="Include the logs of all child runs, in order.")
def logs_command(call: Invocation, run: str, step: str | None, following: bool, tree: bool) -> None:
    """Print the log of RUN, one line per event; with --json the events themselves.

    With STEP, a path or the name of a subagent: the events of that step and its sessions.
    """
    if step is not None and (following or tree):
        option = "--follow" if following else "--tree"
        hint = f"fanfold transcript {run} {shlex.quote(step)} --follow" if following else "leave --tree out"
        raise AuthorError("usage.conflict", f"{option} applies to the log of a run, not of a step", hint=hint)
    with call.open_project(to_read=True) as project:
        head = project.resolve(run)
        show = _show_json if call.as_json else _EventText(project, head, tree, call.colour).show
        if step is not None:
            show(history.read_step_log(project, run, step))
        elif following:
            import asyncio  # only --follow needs an event loop

            async def print_events() -> None:
                async for envelopes in history.follow_log(project, head, whole_tree=tree):
                    show(envelopes)
                    sys.stdout.flush()

            asyncio.run(print_events())
        else:
            show(history.read_log(project, head, whole_tree=tree, complete=call.as_json))


def _show_json(envelopes: Iterable[Envelope]) -> None:
    for envelope in envelopes:
        print_json(envelope)


class _EventText:
    """Yield events as text: time, number, place and content."""

    def __init__(self, project: Project, head: RunHead, tree: bool, colour: bool) -> None:
        self._colour = colour
        self._tree = tree
        self._project = project
        self._view = project.view(head.root_run_id)
        self._transitions = Transitions(self._view, name_items=True)

    def show(self, envelopes: Iterable[Envelope]) -> None:
        lines: list[str] = []
        for envelope in envelopes:
            if envelope.tree_seq > self._view.tree_seq:
                self._view.catch_up(self._project.store.tree(self._view.root.id, self._view.tree_seq))
            transition = self._transitions.read(envelope)
            if transition is None:
                name, text, shade = _raw(envelope)
            else:
                name, text = f"{transition.path or 'run'} {transition.item}".rstrip(), transition.text
                shade = COLOURS.get(transition.word, "bold")
            when = paint(clock(envelope.at), "dim", self._colour)
            place = envelope.tree_seq if self._tree else envelope.seq
            number = paint(f"{place:>5}", "dim", self._colour)
            painted = text if shade == "bold" else paint(text, shade, self._colour)
            lines.append(f"{when} {number}  {paint(name, 'cyan', self._colour)} {painted}\n")
            if len(lines) == LINES_AT_ONCE:
                print_text("".join(lines))
                lines.clear()
        print_text("".join(lines))


def _raw(envelope: Envelope) -> tuple[str, str, str]:
    """Return the shortened text of an event that is not a transition of a step."""
    data = envelope.data if isinstance(envelope.data, dict) else {}
    step = str(data.get("step", ""))
    name = "/".join(part for part in (envelope.path, step) if part) or "run"
    words = [str(data.get(key)) for key in ("kind", "status", "what", "reason") if data.get(key)]
    if data.get("kind") == "payment":
        words.append(spent_text(step_usage(convert(data["usage"], Usage))))
    if "value" in data:
        words.append(f"= {data['value']}")
    if not words:
        words = [envelope.type]
    return name, one_line(" ".join(words), MAX_DETAIL_CHARS), "dim"


@command("watch", summary="Watch a run live, whichever process owns it")
@click.argument("run")
def watch_command(call: Invocation, run: str) -> int:
    """Watch RUN until it has ended, or until no process drives it any more.

    It shows the progress of `fanfold run`, prints the result, and ends with the same exit status.
    Interrupting it does not affect the run.
    """
    from fanfold.cli.progress import open_progress
    from fanfold.cli.run import print_outcome

    with call.open_project(to_read=True) as project:
        root = project.resolve(run).root_run_id
        tree = project.view(root)
        import asyncio  # only --follow needs an event loop

        progress = open_progress(call.no_color)

        async def show_progress() -> None:
            try:
                with history.live_updates(project.store, root, progress.hear):
                    async for written in history.follow(project, root):
                        tree.catch_up(written)
                        progress.update(written, tree)
            finally:
                progress.close()

        asyncio.run(show_progress())
        return print_outcome(call, tree)


@command("query", summary="Search outputs, errors, prompts and transcripts")
@click.argument("words", nargs=-1, required=True, metavar="[RUN] WORDS...")
@option("-k", "most", type=click.IntRange(1, 1_000), default=5, metavar="N", help="Return at most N.")
@option("--run", metavar="RUN", help="Search this run and its child runs.")
@option("--recipe", metavar="NAME", help="Filter by recipe.")
@option("--phase", metavar="ID", help="Filter by phase.")
@option("--step", metavar="PATH", help="Filter by step, with its items and inner steps.")
@option("--role", metavar="NAME", help="Filter by role.")
@option("--status", metavar="S", help="Filter by status: completed, failed …")
@option("--kind", metavar="KIND", help="Search output, error, prompt, transcript or any.")
@option("--since", metavar="WHEN", help="Filter by end: an age (12h, 30d) or a date.")
@option("--explain", "explained", is_flag=True, help="Show what makes up each score.")
def query_command(
    call: Invocation,
    words: tuple[str, ...],
    most: int,
    run: str | None,
    since: str | None,
    explained: bool,
    **only: str | None,
) -> None:
    """Search outputs and errors for any of WORDS, in all runs or in RUN and its child runs.

    "words in quotes" match as a phrase; dendr* matches words that start with it. RUN is `last`, an id, or
    a unique prefix of at least four characters. Equal hits are listed newest first.
    """
    filters = Filters(**only, since=None if since is None else since_ms(since))
    with call.open_project(to_read=True) as project:
        named = history.named_run(project, words) if run is None else None
        asked = words if named is None else words[1:]
        found = history.query(project, asked, filters, run=run or named, most=most, explained=explained)
        nothing = "no output matches\n" if project.has_runs else "nothing has run here yet\n"
    call.give(found, lambda: (line for hit in found.hits for line in _text_query(hit, call.colour)))
    if not (found.hits or call.as_json):
        print_text(nothing)


def _text_query(hit: Hit, colour: bool) -> Iterator[str]:
    about = "  ".join(part for part in (hit.role, "" if hit.kind == "output" else hit.kind) if part)
    role = paint(f"  {about}", "dim", colour) if about else ""
    yield f"{paint(hit.run_id, 'dim', colour)} {paint(hit.path, 'cyan', colour)}{role}\n"
    yield f"  {plain(hit.excerpt)}\n"
    if not isinstance(hit.parts, list):
        return
    yield f"  score {hit.score:.3f}\n"
    for part in hit.parts:
        factors = f"rarity {part.rarity:.3f}, frequency {part.frequency:.3f}"
        yield f"    {part.score:.3f}  {plain(part.wish)}  ({factors})\n"
