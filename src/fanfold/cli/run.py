"""`fanfold run`: check the recipe, bind its inputs, then run it or predict the run."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct, structs

from fanfold.api.approvals import default_due, how_to_answer, named_path, open_approvals
from fanfold.api.display import duration
from fanfold.api.graph import label, shown
from fanfold.api.limits import check_agents, check_budget, check_concurrency, how_to_raise, micro_usd
from fanfold.api.ownership import OwnedRun
from fanfold.api.project import Project
from fanfold.api.recipes import CheckedRecipe, check_recipe, role_warnings
from fanfold.api.run_documents import exit_status, how_to_retry, indented, run_error, waiting_proposals
from fanfold.api.run_handle import RunHandle
from fanfold.api.step_documents import last_objections
from fanfold.cli.command import PERMISSION, UNSAFE, Invocation, command, given_inputs, option, read_options
from fanfold.cli.output import (
    COLOURS,
    clock,
    finish_telling,
    hand_over,
    on_terminal,
    paint,
    plain,
    say,
    say_json,
    tell,
    wait_for_no_reader,
    wants_colour,
)
from fanfold.cli.progress import open_progress
from fanfold.cli.step_text import change_lines
from fanfold.engine.forecast_documents import DryRun, ForeseenConflict
from fanfold.engine.run_tree import RunTree, run_status
from fanfold.errors import EXIT_INTERRUPTED, EXIT_OK, AuthorError
from fanfold.kernel.events import LimitsRaised
from fanfold.kernel.paths import overlaps
from fanfold.kernel.plan import JSON, Plan
from fanfold.kernel.state import CANCELLED, RUN_TERMINAL, WAITING, Node, is_shared_writer
from fanfold.language.inputs import bind_inputs, bind_known
from fanfold.language.terminal import one_line
from fanfold.steps.run_config import how_to_resume

if TYPE_CHECKING:
    from fanfold.api.permission import Options
    from fanfold.cli.questions import Questions


class RunFlags(Struct, frozen=True, kw_only=True):
    """What the command line fixes for one run."""

    model: str | None
    agent_backend: str | None
    max_concurrency: int | None
    max_agents: int | None
    budget_usd: float | None
    budget_tokens: int | None
    permission: str | None
    yes: bool
    unsafe_no_sandbox: bool
    script: str | None


@command("run", summary="Run a recipe, or predict the run with --dry-run")
@click.argument("recipe")
@option("-i", "--input", "pairs", multiple=True, metavar="NAME=VALUE", help="One input; may be repeated.")
@option("--inputs", "file", metavar="FILE", help="Inputs as a JSON or YAML map; -i wins over it.")
@option("--model", metavar="M", help="Model for steps that name none.")
@option("--agent-backend", metavar="B", help="Back end for roles that name none.")
@option("--max-concurrency", type=int, metavar="N", help="How many steps may run at once.")
@option("--max-agents", type=int, metavar="N", help="How many agents the whole run may start.")
@option("--budget-usd", type=float, metavar="X", help="Pause before spending more than this.")
@option("--budget-tokens", type=int, metavar="N", help="Pause before using more tokens than this.")
@PERMISSION
@option("--dry-run", is_flag=True, help="Show waves, conflicts, critical path and bounds; write nothing.")
@option("--show-prompts", is_flag=True, help="With --dry-run: print the prompts that agents will get.")
@option("--detach", is_flag=True, help="Return at once and go on in the background.")
@option("--yes", is_flag=True, help="Answer permission questions with yes; never an approval step.")
@UNSAFE
@option("--script", metavar="FILE", help="Scripted agents instead of models, for tests.")
def run_command(
    call: Invocation,
    recipe: str,
    pairs: tuple[str, ...],
    file: str | None,
    dry_run: bool,
    show_prompts: bool,
    detach: bool,
    **given: object,
) -> int:
    """Run RECIPE, a file or the name of a recipe (fanfold list).

    The result goes to stdout, progress to stderr. Ctrl-C pauses the run so that it can be resumed; a
    second one stops at once. SIGTERM and a terminal that is closed pause it too.
    """
    if show_prompts and not dry_run:
        raise AuthorError("usage.missing_option", "--show-prompts predicts prompts", hint="add --dry-run")
    flags = RunFlags(**given)  # type: ignore[arg-type]  # click gives exactly these
    with call.open_project() as project:
        checked = check_recipe(project, recipe, scripted=flags.script is not None)
        plan = checked.runnable()
        check_concurrency(project.config, flags.max_concurrency, "--max-concurrency")
        check_agents(project.config, flags.max_agents, "--max-agents")
        check_budget(flags.budget_usd, flags.budget_tokens, ("--budget-usd", "--budget-tokens"))
        typed = given_inputs(project.folder, plan, pairs, file)
        if dry_run:
            _predict(call, project, checked, *bind_known(plan, typed), flags, show_prompts)
            return EXIT_OK
        inputs = bind_inputs(plan, typed)
        for one in role_warnings(project, [plan]).used:
            place = f"{one.file}:{one.range.start.line}"
            tell(f"warning[{one.code}]: {one_line(one.message)} ({one_line(place)})\n")
        return _run(call, project, plan, inputs, flags, detach)


def _run(
    call: Invocation, project: Project, plan: Plan, inputs: dict[str, JSON], flags: RunFlags, detach: bool
) -> int:
    # A prediction needs none of what carries out a run.
    from fanfold.api.permission import capped_limits
    from fanfold.api.start import start

    options = _options(project.folder, flags, flags.script)
    terminal = Foreground(call)
    owned = start(project, plan, inputs, options, yes=flags.yes, attendant=terminal.attendant)
    for line in capped_limits(project.config, plan, options):
        tell(f"warning[limits.capped]: {one_line(line)}\n")
    for name in owned.tree.frozen().instructions.cut:
        tell(f"warning[instructions.cut]: {one_line(name)} is too long: agents are told its first sections\n")
    if detach:
        from fanfold.api.ownership import hand_over

        hand_over(owned)
        return say_detached(call, owned.tree)
    return terminal.drive(owned)


def _options(project: Path, flags: RunFlags, script: str | None) -> Options:
    given = structs.asdict(structs.replace(flags, script=script))
    given["budget_micro_usd"] = micro_usd(given.pop("budget_usd"))
    del given["yes"]
    return read_options(project, **given)


def _predict(
    call: Invocation,
    project: Project,
    checked: CheckedRecipe,
    inputs: dict[str, JSON],
    missing: list[str],
    flags: RunFlags,
    show_prompts: bool,
) -> None:
    from fanfold.api.start import foresee_run

    # Whether there is a script matters, not what it says.
    options = structs.replace(_options(project.folder, flags, None), script=flags.script)
    result, steps = foresee_run(project, checked, inputs, options, missing, show_prompts=show_prompts)

    def text() -> str:

        return render(checked.runnable(), result, steps, call.colour)

    call.give(result, text)


# -----------------------------------------------------------------------------------------------------------
# How a run is reported to whoever started, resumed or forked it: result on stdout, summary on stderr.
#
# `run`, `resume` and `fork` print the same things and end with the same status, also for a run that ended
# long ago, so that a script need not know which of them it was that finished the work.

MAX_FAILURES = 5
MAX_REASON_CHARS = 400
MAX_WORDS = 8
"""Lines of what a program said last."""
NO_FLAG = "no flag raises it: the limit is one of a phase or child recipe, or the highest there is"


def say_detached(call: Invocation, tree: RunTree) -> int:
    """Say at once which run goes on in the background."""
    if call.as_json:
        from fanfold.api.report import reported_document

        say_json(reported_document(tree))
    else:
        say(f"{tree.root.id}\n")
        tell(f"goes on in the background; follow it: fanfold watch {tree.root.id}\n")
    return EXIT_OK


def say_outcome(call: Invocation, tree: RunTree) -> int:
    """Print the result and what a person should know beside it; returns the exit status."""
    try:
        _say_result(call, tree)
    except BrokenPipeError:
        from fanfold.cli.command import reader_left

        reader_left()  # who ran it may not care for the answer; the status still tells how it went
    colour = wants_colour(sys.stderr, call.no_color)
    tell("".join(_summary(call, tree, colour)))
    return exit_status(tree)


def _say_result(call: Invocation, tree: RunTree) -> None:
    if call.as_json:
        from fanfold.api.report import reported_document

        say_json(reported_document(tree))
    elif tree.root.output is not None:
        text = indented(tree.blobs.get(tree.root.output))
        hand_over(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()


def _summary(call: Invocation, tree: RunTree, colour: bool) -> list[str]:
    status = run_status(tree.state, tree.root)
    lines = [f"{paint(status, COLOURS.get(status, 'bold'), colour)}  {_facts(tree)}\n"]
    lines += change_lines(tree, tree.root)
    lines += _proposals(tree)
    lines += _left_behind(tree)
    if status in RUN_TERMINAL:
        return lines + _failures(call, tree, colour) + _warnings(tree, colour) + _again(tree)
    held = run_error(tree, tree.root)
    if status == WAITING:
        lines += _how_to_answer(tree, colour)
        lines += _how_to_say_more(tree)
    elif held is not None and tree.state.pausing == "budget":
        lines.append(f"  {held.message}\n")
        raising = how_to_raise(tree)
        lines.append(f"  raise it: {raising}\n" if raising else f"  {NO_FLAG}\n")
    else:
        if held is not None and tree.memory.held_by is not None:
            lines.append(f"  {one_line(held.message)} [{held.code}]\n")
            lines.append(f"    {one_line(held.hint)}\n")
        lines.append(f"  resume it: {how_to_resume(tree.root.id)}\n")
    return lines


def _facts(tree: RunTree) -> str:
    usage, agents = tree.spent(tree.root)
    parts = [f"run {tree.root.id}"]
    started, ended = tree.memory.run_started.get(tree.root.id), tree.memory.run_ended.get(tree.root.id)
    if started and ended:
        parts.append(duration(ended - started))
    if agents:
        parts.append(f"{agents} agent{'' if agents == 1 else 's'}")
    if usage.tokens:
        parts.append(f"{usage.tokens:,} tokens")
    if usage.micro_usd:
        parts.append(f"${usage.micro_usd / 1_000_000:.4f}")
    return " · ".join(parts)


def _how_to_answer(tree: RunTree, colour: bool) -> list[str]:
    from fanfold.cli.step_text import shown_lines

    lines: list[str] = []
    for approval in open_approvals(tree)[:MAX_FAILURES]:
        lines.append(f"  {approval.path}: {one_line(approval.question)}\n")
        whole = f"fanfold inspect {tree.root.id} {shlex.quote(approval.path)}"
        lines += shown_lines(approval.show, approval, "    ", colour, rest=whole)
        lines.append(f"    answer it: {how_to_answer(tree.root.id, approval.path, approval)}\n")
        if (due := default_due(tree, approval.path)) is not None:
            lines.append(f"    from {clock(due)} on its default answers: fanfold resume {tree.root.id}\n")
    return lines


def _how_to_say_more(tree: RunTree) -> list[str]:
    """An open run waits for nothing but somebody who asks for something."""
    if not tree.root.growing:
        return []
    from fanfold.api.history import how_to_go_on

    on = how_to_go_on(tree, driven=False)
    return [f"  go on: {on}\n"] if on else []


def _proposals(tree: RunTree) -> list[str]:
    """What waits to be applied, and the command that shows it."""
    waiting = waiting_proposals(tree)
    lines = [
        f"  {one_line(path)} proposes to change {files} file{'' if files == 1 else 's'}:"
        f" fanfold diff {tree.root.id} {one_line(shlex.quote(path))}\n"
        for path, files in list(waiting.items())[:MAX_FAILURES]
    ]
    if len(waiting) > MAX_FAILURES:
        lines.append(f"  and {len(waiting) - MAX_FAILURES} more: fanfold diff {tree.root.id}\n")
    return lines


def _left_behind(tree: RunTree) -> list[str]:
    """Steps that wrote files of which none came home: what looks like work that was lost."""
    home = {(run, row.step) for run, rows in tree.memory.changes.items() for row in rows}
    bare = [(at, left.count) for at, left in tree.memory.left_out.items() if at not in home]
    lines: list[str] = []
    for (run, step), count in bare[:MAX_FAILURES]:
        path = one_line(tree.state.runs[run].tree_path(step))
        files = f"{count} file{'' if count == 1 else 's'}"
        lines.append(
            f"  {path} wrote only {files} that git ignores: fanfold diff {tree.root.id} {shlex.quote(path)}\n"
        )
    return lines


def _failures(call: Invocation, tree: RunTree, colour: bool) -> list[str]:
    """What failed first hand; a group or map fails only because of what it holds."""
    failed = [node for run in tree.state.runs.values() for node in run.nodes.values() if _failed(node)]
    lines: list[str] = []
    for node in failed[:MAX_FAILURES]:
        lines += _failure_lines(tree, node, colour) + _kept_work(call, tree, node)
    if len(failed) > MAX_FAILURES:
        lines.append(f"  and {len(failed) - MAX_FAILURES} more: fanfold inspect {tree.root.id} --steps\n")
    error = tree.root.error
    if not failed and error is not None:
        from fanfold.api.approvals import gist

        lines.append(f"  {gist(error, MAX_REASON_CHARS)} [{error.code}]\n")
        lines += [f"    {one_line(error.hint)}\n"] if error.hint else []
    return lines


def _kept_work(call: Invocation, tree: RunTree, node: Node) -> list[str]:
    from fanfold.api.changes import has_left_work

    if not has_left_work(call.project, node):
        return []
    path = one_line(node.run.tree_path(node.path))
    return [f"    what it changed is kept: fanfold diff {tree.root.id} {shlex.quote(path)}\n"]


def _again(tree: RunTree) -> list[str]:
    again = how_to_retry(tree)
    what = "what is left" if tree.root.status == CANCELLED else "what failed"
    return [f"  run again {what}: {again}\n"] if again else []


def _warnings(tree: RunTree, colour: bool) -> list[str]:
    """What went wrong in steps that completed all the same."""
    told = [node for run in tree.state.runs.values() for node in run.nodes.values() if _is_warned(node)]
    return [
        f"  {paint(node.run.tree_path(node.path), 'cyan', colour)} {paint('warning', 'yellow', colour)}:"
        f" {one_line(node.error.message)}\n"
        for node in told[:MAX_FAILURES]
        if node.error is not None
    ]


def _is_warned(node: Node) -> bool:
    return node.error is not None and node.status == "completed" and node.step.traits.ends is None


def _failed(node: Node) -> bool:
    return (
        node.error is not None
        and node.status in ("failed", "timed_out")
        and getattr(node, "failed_child", None) is None
    )


def _failure_lines(tree: RunTree, node: Node, colour: bool) -> list[str]:
    from fanfold.api.approvals import GIST_CHARS, gist, last_words

    error = node.error
    assert error is not None
    path = named_path(tree, node)
    attempts = f" after {node.attempt} attempts" if node.attempt > 1 else ""
    tolerated = " and was tolerated" if node.run.status == "completed" else ""
    how = f"{node.status.replace('_', ' ')}{attempts}{tolerated}"
    most = GIST_CHARS if tolerated else MAX_REASON_CHARS
    said = gist(error, most)
    if error.code == "step.timeout" and node.step.timeout_ms is not None:  # it says no more than its status
        said = f"its timeout is {duration(node.step.timeout_ms)}"
    lines = [f"  {paint(path, 'cyan', colour)} {how}: {said} [{error.code}]\n"]
    if not tolerated:
        words = last_words(error, MAX_WORDS) or last_objections(tree, node)
        lines += (f"    {paint('│', 'dim', colour)} {one_line(said, MAX_REASON_CHARS)}\n" for said in words)
    return [*lines, f"    {one_line(error.hint)}\n"] if error.hint else lines


# -----------------------------------------------------------------------------------------------------------
# Driving a run in the foreground: progress, questions, and what Ctrl-C means.
#
# Rules
# * The first Ctrl-C (or SIGTERM, or the SIGHUP of a terminal that was closed) asks for a pause: what runs is
#   stopped, everything is recorded, and the command that goes on is printed. The second gives up at once;
# the
#   log is safe either way. A terminal and the shell in it each say that it was closed: that is asked for
# once.
# * Whoever reads what is told, or does not, holds up no run (`outbox`).
# * On a terminal an open approval is asked there, while other processes may still answer it. Elsewhere the
#   run ends its process when only people can go on.

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
            from fanfold.cli.questions import Questions

            self.attendant = Questions(self._progress)
        self._handle: RunHandle | None = None
        self._signals = 0

    def drive(
        self,
        owned: OwnedRun,
        *,
        resumed: bool = False,
        raised: LimitsRaised | None = None,
        keep_waits: bool = False,
    ) -> int:
        """Drive a run until it ends or rests, and say how it stands; returns the exit status."""
        try:
            with asyncio.Runner() as runner:
                # Before the runner listens to Ctrl-C in a way of its own, which would have to be replaced:
                # Python then describes it, with its task, and loads what reads source code for that.
                self.listen(runner.get_loop())
                runner.run(self.see_to(owned, resumed, raised, keep_waits))
        except asyncio.CancelledError:
            tell(f"interrupted; resume it: {how_to_resume(owned.tree.root.id)}\n")
            return EXIT_INTERRUPTED
        finally:
            finish_telling(sys.stderr)
        return say_outcome(self._call, owned.tree)

    async def see_to(
        self,
        owned: OwnedRun,
        resumed: bool = False,
        raised: LimitsRaised | None = None,
        keep_waits: bool = False,
    ) -> None:
        """Drive a run until it ends or rests, in a loop that listens to signals."""
        handle = self._handle = RunHandle(
            owned,
            resumed=resumed,
            raised=raised,
            keep_waits=keep_waits,
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


# -----------------------------------------------------------------------------------------------------------
# A dry run for people: what starts together, what waits for what, and how much it may take.

MAX_STEPS_PER_WAVE = 12
MAX_WAVES = 40
MAX_CONFLICTS = 8
MAX_PATH_STEPS = 12


def render(plan: Plan, result: DryRun, steps: Mapping[str, Node], colour: bool) -> str:
    """The whole report."""
    parts = [
        f"{paint(f'{plan.name}@{plan.version}', 'bold', colour)}  dry run, nothing was started or written\n",
        *_waves(result, steps, colour),
        *_conflicts(result, steps, colour),
        *_bounds(result, colour),
        *_warnings_dry_run_text(result, colour),
        *_prompts(result, colour),
    ]
    return "".join(parts)


def _waves(result: DryRun, steps: Mapping[str, Node], colour: bool) -> Iterator[str]:
    if not result.waves:
        yield "\nNo step would start.\n"
    shown_waves = result.waves[:MAX_WAVES]
    listed = [path for wave in shown_waves for path in wave[:MAX_STEPS_PER_WAVE]]
    names = max((len(path) for path in listed), default=0)
    roles = max((len(_who(steps[path])) for path in listed), default=0)
    for number, wave in enumerate(shown_waves, 1):
        together = f", {len(wave)} together" if len(wave) > 1 else ""
        yield f"\n{paint(f'Wave {number}', 'bold', colour)}{paint(together, 'dim', colour)}\n"
        for path in wave[:MAX_STEPS_PER_WAVE]:
            who = _who(steps[path]).ljust(roles)
            does, hue = _does(steps[path])
            yield f"  {paint(plain(path).ljust(names), 'cyan', colour)}  {who}  {paint(does, hue, colour)}\n"
            yield from _whole_command(steps[path], colour)
        if len(wave) > MAX_STEPS_PER_WAVE:
            yield f"  … and {len(wave) - MAX_STEPS_PER_WAVE} more\n"
    if len(result.waves) > MAX_WAVES:
        yield f"\n… and {len(result.waves) - MAX_WAVES} more waves (--json has them all)\n"


def _whole_command(node: Node, colour: bool) -> Iterator[str]:
    """Of a command that says what it is for, as one that the project's files decide does."""
    if node.step.type == "command" and node.step.description:
        said = f"{one_line(node.step.description)}: {one_line(label(node.step).subtitle)}"
        yield f"    {paint(said, 'dim', colour)}\n"


def _who(node: Node) -> str:
    return plain(shown(label(node.step).subtitle))


def _does(node: Node) -> tuple[str, str]:
    if node.write_set:
        sets = ", ".join(node.write_set[:3]) + (" …" if len(node.write_set) > 3 else "")
        where = " in the shared workspace" if is_shared_writer(node) else ""
        return plain(f"writes {sets}{where}"), "yellow"
    kind = label(node.step).kind
    return {"reader": ("reads", "green"), "approval": ("approval", "magenta")}.get(kind, (kind, "dim"))


def _conflicts(result: DryRun, steps: Mapping[str, Node], colour: bool) -> Iterator[str]:
    if not result.conflicts_total:
        return
    number = f"{result.conflicts_total:,}"
    yield f"\n{paint('Conflicts', 'bold', colour)} ({number}): not at the same time, though no edge says so\n"
    for conflict in result.conflicts[:MAX_CONFLICTS]:
        yield f"  {_explain(conflict, steps)}\n"
    if result.conflicts_total > MAX_CONFLICTS:
        yield f"  … and {result.conflicts_total - MAX_CONFLICTS:,} more\n"


def _explain(conflict: ForeseenConflict, steps: Mapping[str, Node]) -> str:
    a, b = steps[conflict.a], steps[conflict.b]
    on = plain(conflict.on)
    if overlaps(a.write_set, b.write_set):
        # Of sets that hold everything any path is an example, and one that looks like a step misleads.
        what = "every file" if _writes_all(a) and _writes_all(b) else on
        return f"{plain(conflict.a)} and {plain(conflict.b)} may both write {what}"
    first = is_shared_writer(a) and overlaps(a.write_set, b.read_set)
    writer, reader = (conflict.a, conflict.b) if first else (conflict.b, conflict.a)
    return f"{plain(writer)} writes {on} in the shared workspace, where {plain(reader)} reads it"


def _writes_all(node: Node) -> bool:
    return "**/*" in node.write_set or "**" in node.write_set


def _bounds(result: DryRun, colour: bool) -> Iterator[str]:
    path = [plain(step) for step in result.critical_path]
    if len(path) > MAX_PATH_STEPS:
        path = [*path[: MAX_PATH_STEPS - 1], "…", path[-1]]
    length = len(result.critical_path)
    facts = [
        ("Critical path", f"{' → '.join(path)}  ({length} step{'s' * (length != 1)})"),
        ("Agents", result.agents.told()),
        ("Cost", _cost(result.cost.usd_max)),
    ]
    yield "\n"
    for name, value in facts:
        yield f"{paint(name.ljust(14), 'bold', colour)} {value}\n"


def _cost(usd: float | None) -> str:
    if usd is None:
        return "no bound; --budget-usd sets one"
    return "nothing" if usd == 0 else f"at most ${usd:,.2f}"


def _warnings_dry_run_text(result: DryRun, colour: bool) -> Iterator[str]:
    if result.warnings:
        yield "\n"
    for warning in result.warnings:
        yield f"{paint('warning', 'yellow', colour)}: {plain(warning)}\n"
    if not result.would_run:
        yield f"{paint('It would not run as it is.', 'red', colour)}\n"


def _prompts(result: DryRun, colour: bool) -> Iterator[str]:
    for one in result.prompts or ():
        yield f"\n{paint(f'Prompt of {plain(one.path)}', 'bold', colour)} ({plain(one.role)})\n"
        for name, text in (("system", one.system), ("prompt", one.prompt)):
            yield f"  {paint(name, 'cyan', colour)}\n"
            yield from (f"    {line}\n" for line in plain(text).splitlines())
