"""`fanfold run`: check the recipe, bind its inputs, then run it or predict the run."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from fanfold.api.approvals import (
    GIST_CHARS,
    due_at,
    gist,
    how_to_answer,
    last_output_lines,
    named_path,
    open_approvals,
)
from fanfold.api.display import counted, duration
from fanfold.api.graph import label, shown
from fanfold.api.history import continue_command, follow, live_updates, until
from fanfold.api.ownership import OwnedRun, run_in_background
from fanfold.api.recipes import check_recipe, role_warnings
from fanfold.api.report import reported_document
from fanfold.api.run_documents import exit_status, how_to_retry, indented, run_error, waiting_proposals
from fanfold.api.run_handle import RunHandle
from fanfold.api.run_options import RunOptions, capped_limits, how_to_raise
from fanfold.api.start import forecast_run, start
from fanfold.api.step_documents import last_objections
from fanfold.cli.ci import OutcomeOptions, ci_options
from fanfold.cli.command import (
    SCRIPT,
    UNSAFE,
    Invocation,
    command,
    end_quietly,
    given_inputs,
    option,
    options_from,
    read_options,
)
from fanfold.cli.output import (
    COLOURS,
    MAX_FAILURES,
    Progress,
    clock,
    flush_notices,
    notify,
    on_terminal,
    paint,
    plain,
    print_json,
    print_result,
    print_text,
    wait_for_no_reader,
    wants_colour,
    wrap_text,
)
from fanfold.cli.progress import open_progress
from fanfold.cli.step_text import change_lines, pulled, shown_lines
from fanfold.engine.dry_run import DryRun, ForeseenConflict
from fanfold.engine.run_tree import RunTree, run_status
from fanfold.errors import EXIT_INTERRUPTED, EXIT_OK, AuthorError, WorldError
from fanfold.kernel.events import LimitsRaised
from fanfold.kernel.paths import overlaps
from fanfold.kernel.plan import Plan
from fanfold.kernel.state import CANCELLED, RUN_TERMINAL, WAITING, Node, is_shared_writer
from fanfold.language.inputs import bind_known
from fanfold.language.terminal import one_line
from fanfold.steps.run_config import how_to_resume

if TYPE_CHECKING:
    from fanfold.api.project import Project
    from fanfold.cli.questions import Questions


@command("run", summary="Run a recipe, or forecast the run with --dry-run")
@click.argument("recipe")
@option("-i", "--input", "pairs", multiple=True, metavar="NAME=VALUE", help="Set an input; repeatable.")
@option("--inputs", "file", metavar="FILE", help="Read inputs from a JSON or YAML map; -i overrides.")
@options_from(RunOptions)
@option("--dry-run", is_flag=True, help="Forecast waves, conflicts and cost bounds; write nothing.")
@option("--show-prompts", is_flag=True, help="With --dry-run: print the prompts that agents will get.")
@option("--detach", is_flag=True, help="Return at once; the run continues in the background.")
@option("--yes", is_flag=True, help="Answer permission questions with yes, never approvals.")
@ci_options
@UNSAFE
@SCRIPT
def run_command(
    call: Invocation,
    recipe: str,
    pairs: tuple[str, ...],
    file: str | None,
    dry_run: bool,
    show_prompts: bool,
    detach: bool,
    **given: Any,
) -> int:
    """Run RECIPE, a file or the name of a recipe (fanfold list).

    The result goes to stdout, progress to stderr. Ctrl-C pauses the run so that it can be resumed; a
    second one stops at once. SIGTERM and a closed terminal also pause it.
    """
    outcome = OutcomeOptions.taken_from(given, call.project)
    if detach and (outcome.report is not None or outcome.summary is not None):
        message = "--detach returns before there is a report or a summary"
        raise AuthorError("usage.conflicting_options", message, hint="leave one of them out")
    if show_prompts and not dry_run:
        raise AuthorError("usage.missing_option", "--show-prompts needs --dry-run", hint="add --dry-run")
    yes, script = bool(given.pop("yes")), given["script"]
    with call.open_project() as project:
        checked = check_recipe(project, recipe, scripted=script is not None)
        plan = checked.runnable()
        options = read_options(project, reads_script=not dry_run, **given)
        if trace := os.environ.get("TRACEPARENT"):
            options = structs.replace(options, traceparent=trace)
        inputs = given_inputs(project.folder, plan, pairs, file)
        if dry_run:
            bound, missing = bind_known(plan, inputs)
            result, steps = forecast_run(project, checked, bound, options, missing, show_prompts=show_prompts)
            call.give(result, lambda: render(plan, result, steps, call.colour))
            return EXIT_OK
        for one in role_warnings(project, [plan]).used:
            place = one_line(f"{one.file}:{one.range.start.line}")
            notify(wrap_text(f"warning[{one.code}]: {one_line(one.message)} ({place})\n", "  ", sys.stderr))
        terminal = Foreground(call, quiet=outcome.quiet)
        owned = start(project, plan, inputs, options, yes=yes, prompter=terminal.prompter)
        for line in capped_limits(project.config, plan, options):
            notify(wrap_text(f"warning[limits.capped]: {one_line(line)}\n", "  ", sys.stderr))
        for name in owned.tree.frozen().instructions.cut:
            message = f"{one_line(name)} is too long: agents get its first sections"
            notify(wrap_text(f"warning[instructions.cut]: {message}\n", "  ", sys.stderr))
        if detach:
            run_in_background(owned)
            return print_detached(call, owned.tree)
        status = terminal.drive(owned)
        outcome.write(project, owned.tree)
        return status


# -----------------------------------------------------------------------------------------------------------
# The outcome of a started, resumed or forked run: result on stdout, summary on stderr.
#
# `run`, `resume` and `fork` print the same and exit with the same status, also for a run that finished
# earlier, so a script does not need to know which command finished the work.

MAX_REASON_CHARS = 400
MAX_WORDS = 8
"""The number of lines of the last output of a program to show."""
NO_FLAG = "no flag raises it: the limit is one of a phase or child recipe, or the highest there is"


def print_detached(call: Invocation, tree: RunTree) -> int:
    """Print the id of a run that continues in the background."""
    if call.as_json:
        print_json(reported_document(tree))
    else:
        print_text(f"{tree.root.id}\n")
        notify(f"continues in the background; follow it: fanfold watch {tree.root.id}\n")
    return EXIT_OK


def print_outcome(call: Invocation, tree: RunTree, *, quiet: bool = False) -> int:
    """Print the result and the summary of a run; return the exit status.

    With `quiet`, print only the result of a completed run.
    """
    try:
        if call.as_json:
            print_json(reported_document(tree))
        elif tree.root.output is not None:
            text = indented(tree.blobs.get(tree.root.output))
            print_result(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        end_quietly()  # the exit status still reports the outcome
    status = exit_status(tree)
    if not quiet or status != EXIT_OK:
        notify("".join(_summary(call, tree, wants_colour(sys.stderr, call.no_color))))
    return status


def _summary(call: Invocation, tree: RunTree, colour: bool) -> list[str]:
    status = run_status(tree.state, tree.root)
    lines = [f"{paint(status, COLOURS.get(status, 'bold'), colour)}  {_facts(tree)}\n"]
    lines += change_lines(tree, tree.root) if tree.memory.changes else ()
    lines += _unmerged(tree)
    if status in RUN_TERMINAL:
        lines += _failures(call, tree, colour) + _warnings(tree, colour)
        if again := how_to_retry(tree):
            what = "what is left" if tree.root.status == CANCELLED else "what failed"
            lines.append(f"  run again {what}: {again}\n")
        return lines
    held = run_error(tree, tree.root)
    if status == WAITING:
        for approval in open_approvals(tree)[:MAX_FAILURES]:
            lines.append(f"  {approval.path}: {one_line(approval.question)}\n")
            whole = f"fanfold inspect {tree.root.id} {shlex.quote(approval.path)}"
            lines += shown_lines(approval.show, approval, "    ", colour, rest=whole)
            lines.append(f"    answer it: {how_to_answer(tree.root.id, approval.path, approval)}\n")
            if approval.default is not None and (due := due_at(tree, approval.path)) is not None:
                lines.append(f"    from {clock(due)} on its default answers: fanfold resume {tree.root.id}\n")
        if tree.root.growing:  # an open run, which waits only for requests
            on = continue_command(tree, driven=False)
            lines += [f"  continue it: {on}\n"] if on else []
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
    started, ended = tree.memory.run_started.get(tree.root.id), tree.memory.run_ended.get(tree.root.id)
    parts = (
        f"run {tree.root.id}",
        duration(ended - started) if started and ended else "",
        counted(agents, "agent") if agents else "",
        f"{usage.tokens:,} tokens" if usage.tokens else "",
        f"${usage.micro_usd / 1_000_000:.4f}" if usage.micro_usd else "",
    )
    return " · ".join(filter(None, parts))


def _unmerged(tree: RunTree) -> list[str]:
    """List open proposals, and steps of which no file was merged, with the commands that show the changes."""
    waiting = waiting_proposals(tree)
    lines = [
        f"  {one_line(path)} proposes to change {counted(files, 'file')}:"
        f" fanfold diff {tree.root.id} {one_line(shlex.quote(path))}\n"
        for path, files in list(waiting.items())[:MAX_FAILURES]
    ]
    if len(waiting) > MAX_FAILURES:
        lines.append(f"  and {len(waiting) - MAX_FAILURES} more: fanfold diff {tree.root.id}\n")
    merged = {(run, row.step) for run, rows in tree.memory.changes.items() for row in rows}
    bare = [(at, left.count) for at, left in tree.memory.left_out.items() if at not in merged]
    for (run, step), count in bare[:MAX_FAILURES]:
        path, files = one_line(tree.state.runs[run].tree_path(step)), counted(count, "file")
        lines.append(
            f"  {path} wrote only {files} that git ignores: fanfold diff {tree.root.id} {shlex.quote(path)}\n"
        )
    return lines


def _failures(call: Invocation, tree: RunTree, colour: bool) -> list[str]:
    """List the steps that failed. A group or map that failed because of a step inside it does not count."""
    unsuccessful = (node for node in tree.nodes() if node.error and node.status in ("failed", "timed_out"))
    failed = [node for node in unsuccessful if getattr(node, "failed_child", None) is None]
    lines: list[str] = []
    for node in failed[:MAX_FAILURES]:
        from fanfold.api.changes import has_left_work  # only failed runs need it

        lines += _failure_lines(tree, node, colour)
        if has_left_work(call.project, node):
            path = shlex.quote(one_line(node.run.tree_path(node.path)))
            lines.append(f"    what it changed is kept: fanfold diff {tree.root.id} {path}\n")
    if len(failed) > MAX_FAILURES:
        lines.append(f"  and {len(failed) - MAX_FAILURES} more: fanfold inspect {tree.root.id} --steps\n")
    error = tree.root.error
    if not failed and error is not None:
        lines.append(f"  {gist(error, MAX_REASON_CHARS)} [{error.code}]\n")
        lines += [f"    {one_line(error.hint)}\n"] if error.hint else []
    return lines


def _warnings(tree: RunTree, colour: bool) -> list[str]:
    """List the warnings of completed steps."""
    word = paint("warning", "yellow", colour)
    lines = [
        f"  {paint(node.run.tree_path(node.path), 'cyan', colour)} {word}: {one_line(node.error.message)}\n"
        for node in tree.nodes()
        if node.error is not None and node.status == "completed" and node.step.traits.ends is None
    ]
    return lines[:MAX_FAILURES]


def _failure_lines(tree: RunTree, node: Node, colour: bool) -> list[str]:
    error = node.error
    assert error is not None
    path = named_path(tree, node)
    attempts = f" after {node.attempt} attempts" if node.attempt > 1 else ""
    tolerated = " and was tolerated" if node.run.status == "completed" else ""
    how = f"{node.status.replace('_', ' ')}{attempts}{tolerated}"
    most = GIST_CHARS if tolerated else MAX_REASON_CHARS
    reason = gist(error, most)
    if error.code == "step.timeout" and node.step.timeout_ms is not None:  # it repeats the status
        reason = f"its timeout is {duration(node.step.timeout_ms)}"
    wrapped = wrap_text(f"  {path} {how}: {reason} [{error.code}]\n", "    ", sys.stderr)
    lines = [wrapped.replace(path, paint(path, "cyan", colour), 1)]
    if not tolerated:
        words = last_output_lines(error, MAX_WORDS) or last_objections(tree, node)
        lines += (
            f"    {paint('│', 'dim', colour)} {one_line(reason, MAX_REASON_CHARS)}\n" for reason in words
        )
    return [*lines, f"    {one_line(error.hint)}\n"] if error.hint else lines


# -----------------------------------------------------------------------------------------------------------
# A run in the foreground: progress, questions and Ctrl-C.
#
# Rules
# * The first Ctrl-C (or SIGTERM, or the SIGHUP of a closed terminal) requests a pause: running work is
#   stopped, everything is recorded, and the command that continues the run is printed. The second aborts at
#   once; the log is safe either way. A terminal and its shell both send SIGHUP: it is counted once.
# * A slow or missing reader of the notices delays no run (`cli.output`).
# * On a terminal an open approval is asked there, while other processes may still answer it. Elsewhere the
#   run ends its process when it waits only for people.

REMIND_S = 5.0
"""When to report that no worker has taken a run."""
PERIOD_S = 0.05
"""The interval of printed lines: printing a line costs as much as recording a short step."""


class Foreground:
    """A run in the foreground, with its questions and its progress."""

    def __init__(self, call: Invocation, *, quiet: bool = False) -> None:
        self._call = call
        self._quiet = quiet
        wait_for_no_reader(sys.stderr)
        self._progress = Progress() if quiet else open_progress(call.no_color)
        self.prompter: Questions | None = None
        if on_terminal():
            from fanfold.cli.questions import Questions

            self.prompter = Questions(self._progress)
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
        """Drive a run until it finishes or waits; print the outcome and return the exit status."""
        if owned.project.continuation.takes(owned.project, owned.tree.root.id):
            return self._follow(owned, raised, keep_waits)
        try:
            with asyncio.Runner() as runner:
                # Set before the runner installs its own handler for Ctrl-C, which we would have to replace:
                # Python then describes it, with its task, and loads what reads source code for that.
                self.listen(runner.get_loop())
                runner.run(self.drive_in_loop(owned, resumed, raised, keep_waits))
        except asyncio.CancelledError:
            notify(f"interrupted; resume it: {how_to_resume(owned.tree.root.id)}\n")
            return EXIT_INTERRUPTED
        finally:
            flush_notices(sys.stderr)
        return print_outcome(self._call, owned.tree, quiet=self._quiet)

    def _follow(self, owned: OwnedRun, raised: LimitsRaised | None, keep_waits: bool) -> int:
        """Let workers of the cluster drive a run, and show its progress until it finishes or waits."""
        project, root = owned.project, owned.tree.root.id
        owned.let_go()
        starting = project.continuation.continue_run(project, root, raised, keep_waits=keep_waits)
        tree = project.view(root)

        def is_taken() -> bool | None:
            return None if any(row.kind == "continue" for row in project.store.requests(root)) else True

        def remind() -> None:
            if not project.has_owner(root) and project.resolve(root).status not in RUN_TERMINAL:
                notify("no worker drives the run yet; fanfold cluster status shows the workers\n")

        async def show() -> None:
            asyncio.get_running_loop().call_later(REMIND_S, remind)
            while not await until(project, root, is_taken, REMIND_S):
                pass  # a paused run still rests until then
            with live_updates(project.store, root, self._progress.hear):
                async for written in follow(project, root, tree.tree_seq, starting=starting):
                    tree.catch_up(written)
                    self._progress.update(written, tree)

        try:
            asyncio.run(show())
        except KeyboardInterrupt:
            notify(f"interrupted; the workers continue the run, and fanfold watch {root} follows it\n")
            return EXIT_INTERRUPTED
        finally:
            self._progress.close()
            flush_notices(sys.stderr)
        self._pull(project, tree)
        return print_outcome(self._call, tree, quiet=self._quiet)

    def _pull(self, project: Project, tree: RunTree) -> None:
        """Merge the changes of a run with its own tree into the folder in which it was started."""
        if tree.root.status not in RUN_TERMINAL or not tree.frozen().tree:
            return
        from fanfold.api.changes import pull

        try:
            done = pull(project, tree.root.id)
        except WorldError as error:
            notify(f"the folder was not changed: {error.message}\n  {error.hint}\n")
            return
        if done.changes and not self._quiet:
            notify("".join(pulled(done)))

    async def drive_in_loop(
        self,
        owned: OwnedRun,
        resumed: bool = False,
        raised: LimitsRaised | None = None,
        keep_waits: bool = False,
    ) -> None:
        """Drive a run until it finishes or waits, in an event loop that handles signals."""
        handle = self._handle = RunHandle(
            owned,
            resumed=resumed,
            raised=raised,
            keep_waits=keep_waits,
            leave_when_waiting=self.prompter is None,
            on_progress=self._progress.hear,
        )
        try:
            async for written in handle.follow(every_s=PERIOD_S):
                self._progress.update(written, handle.tree)
                if self.prompter is not None:
                    self.prompter.look(handle)
            await handle.wait()
        finally:
            self._progress.close()

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let signals pause and abort the next run of this loop."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup: the run must outlive the terminal
            try:
                loop.add_signal_handler(number, self._signalled, number)
            except (ValueError, RuntimeError):
                return  # not the main thread: the embedding program handles signals

    def _signalled(self, number: signal.Signals) -> None:
        handle = self._handle
        assert handle is not None  # a loop starts its first task before it handles signals
        if number == signal.SIGHUP and self._signals:
            return
        self._signals += 1
        if self._signals == 1:
            self._progress.suspend()
            notify("pausing; once more to stop at once\n")
            self._progress.resume()
            handle.interrupt()
        elif self._signals == 2:
            handle.abort()
        else:
            os._exit(EXIT_INTERRUPTED)


# -----------------------------------------------------------------------------------------------------------
# A dry run as text: waves, conflicts, and the expected time and cost.

MAX_STEPS_PER_WAVE = 12
MAX_WAVES = 40
MAX_CONFLICTS = 8
MAX_PATH_STEPS = 12


def render(plan: Plan, result: DryRun, steps: Mapping[str, Node], colour: bool) -> Iterator[str]:
    """Yield the report of a dry run."""
    yield f"{paint(f'{plan.name}@{plan.version}', 'bold', colour)}  dry run, nothing was started or written\n"
    yield from _waves(result, steps, colour)
    yield from _conflicts(result, steps, colour)
    path = [plain(step) for step in result.critical_path]
    if len(path) > MAX_PATH_STEPS:
        path = [*path[: MAX_PATH_STEPS - 1], "…", path[-1]]
    usd = result.cost.usd_max
    cost = "no bound; --budget-usd sets one" if usd is None else f"at most ${usd:,.2f}" if usd else "nothing"
    yield "\n"
    for name, value in (
        ("Critical path", f"{' → '.join(path)}  ({counted(len(result.critical_path), 'step')})"),
        ("Agents", result.agents.told()),
        ("Cost", cost),
    ):
        yield f"{paint(name.ljust(14), 'bold', colour)} {value}\n"
    if result.warnings:
        yield "\n"
    for warning in result.warnings:
        yield paint("warning", "yellow", colour) + wrap_text(f"warning: {plain(warning)}\n", "  ")[7:]
    if not result.would_run:
        yield f"{paint('It would not run as it is.', 'red', colour)}\n"
    for one in result.prompts or ():
        yield f"\n{paint(f'Prompt of {plain(one.path)}', 'bold', colour)} ({plain(one.role)})\n"
        for name, text in (("system", one.system), ("prompt", one.prompt)):
            yield f"  {paint(name, 'cyan', colour)}\n"
            yield from (f"    {line}\n" for line in plain(text).splitlines())


def _waves(result: DryRun, steps: Mapping[str, Node], colour: bool) -> Iterator[str]:
    if not result.waves:
        yield "\nNo step would start.\n"
    shown_waves = result.waves[:MAX_WAVES]
    listed = [path for wave in shown_waves for path in wave[:MAX_STEPS_PER_WAVE]]
    names = max((len(path) for path in listed), default=0)
    who = {path: plain(shown(label(steps[path].step).subtitle)) for path in listed}
    roles = max(map(len, who.values()), default=0)
    for number, wave in enumerate(shown_waves, 1):
        together = f", {len(wave)} together" if len(wave) > 1 else ""
        yield f"\n{paint(f'Wave {number}', 'bold', colour)}{paint(together, 'dim', colour)}\n"
        for path in wave[:MAX_STEPS_PER_WAVE]:
            node = steps[path]
            (does, hue), role = _does(node), who[path].ljust(roles)
            yield f"  {paint(plain(path).ljust(names), 'cyan', colour)}  {role}  {paint(does, hue, colour)}\n"
            if node.step.type == "command" and node.step.description:
                text = f"{one_line(node.step.description)}: {one_line(label(node.step).subtitle)}"
                yield f"    {paint(text, 'dim', colour)}\n"
        if len(wave) > MAX_STEPS_PER_WAVE:
            yield f"  … and {len(wave) - MAX_STEPS_PER_WAVE} more\n"
    if len(result.waves) > MAX_WAVES:
        yield f"\n… and {len(result.waves) - MAX_WAVES} more waves (--json has them all)\n"


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
        # For sets that contain everything, an example path would be misleading.
        writes_all = all(set(node.write_set) & {"**/*", "**"} for node in (a, b))
        what = "every file" if writes_all else on
        return f"{plain(conflict.a)} and {plain(conflict.b)} may both write {what}"
    first = is_shared_writer(a) and overlaps(a.write_set, b.read_set)
    writer, reader = (conflict.a, conflict.b) if first else (conflict.b, conflict.a)
    return f"{plain(writer)} writes {on} in the shared workspace, where {plain(reader)} reads it"
