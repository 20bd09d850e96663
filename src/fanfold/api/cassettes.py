"""Record runs as cassettes, and replay cassettes as tests.

Rules
* A cassette is read from the log of a run and from its merge receipts, never from the project as it is now,
  except for files that the run read in part or quoted.
* A test replays a cassette in a folder of its own, records the replay like any run, and compares the two. So
  what is recorded is what is compared, and an update writes the recording of the replay.
* Recipe and roles are those of the project now. Limits come from the recipe and the cassette, never from the
  configuration of the user who runs the test, so that a test means the same everywhere.
* Secrets are removed from a cassette as from a log.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, get_args

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from fanfold.agents.backend import SessionRequest
from fanfold.agents.backend_registry import SCRIPTED, BackendRegistry
from fanfold.agents.entries import AgentBegin, Entry, Response, StageEnd, ToolResult, UserInput
from fanfold.agents.role import Role
from fanfold.api.changes import spaces_of
from fanfold.api.history import find_run
from fanfold.api.ownership import RunParts, check_enabled, own
from fanfold.api.permission import permit
from fanfold.api.project import Parts, Project
from fanfold.api.run_documents import run_document, run_error
from fanfold.api.run_options import Options, settings_of
from fanfold.api.start import create, start_consent
from fanfold.engine import replay
from fanfold.engine.config import Config
from fanfold.engine.run_tree import RunTree, run_status
from fanfold.errors import AuthorError, FanfoldError, NotFoundError
from fanfold.kernel import events, state
from fanfold.kernel.plan import JSON, Plan
from fanfold.language import cassettes as tape
from fanfold.language.cassettes import AttemptRecord, Cassette, Content, Difference, content_of
from fanfold.language.inputs import bind_inputs
from fanfold.language.json_text import as_text
from fanfold.language.library import is_path
from fanfold.project_files import read_beneath, write_beneath
from fanfold.sessions.log import read_entries
from fanfold.steps.agent import AgentJob
from fanfold.steps.command import CommandJob
from fanfold.steps.function import FunctionJob
from fanfold.steps.ids import session_id
from fanfold.steps.order import Job, Question
from fanfold.steps.records import Digest, Resolve, workspace_fact
from fanfold.steps.step_type import Unrenderable, prepare, type_of
from fanfold.store.address import SqliteAddress
from fanfold.store.protocol import Store
from fanfold.workspace.merge import FileState, PathRevision

Mode: TypeAlias = Literal["loose", "strict", "live-changed"]
MAX_READ_BYTES = 1024 * 1024
_ENDED = r"(?s).* ended with status (-?\d+)(?:: (.*))?"
_ANSWER_TOOLS = ("final_output", "write_set")
"""Names in a session's log under which an answer is accepted or returned to the agent."""
_LINK = 0o120000
_MEMORY = "/dev/shm"  # noqa: S108 - the folder made there is private
_ROOM = 1024 * 1024 * 1024
_PREFIX = "fanfold-test-"
_LEFT_S = 60.0
"""From this age on, a folder that no process holds belongs to a process that was killed."""


# -----------------------------------------------------------------------------------------------------------
# Recording


def record(project: Project, run: str, folder: Path) -> Cassette:
    """Return the cassette of a run. `folder` is the folder of its file, from which it names its recipe."""
    found = find_run(project, run)
    tree, root = found.tree, found.tree.root
    if found.run is not root:
        message, hint = f"run {found.run.id} is a part of another run", f"record run {root.id}"
        raise AuthorError("cassette.child_run", message, hint=hint)
    if root.plan.open:
        raise AuthorError("cassette.open_run", "a chat or a subagent has no recipe to test")
    if project.has_owner(root.id):
        message = f"run {root.id} is still running"
        raise AuthorError("cassette.unfinished", message, hint="wait for its end")
    cassette = Recorder(project, tree).cassette(_recipe_name(project, root.plan, folder))
    assert cassette.result is not None, "it was recorded"
    first = events.event_of(next(tree.store.tree(root.id))).data
    had = (first.settings if isinstance(first, events.RunCreated) else None) or events.Settings()
    usual = settings_of(_plain_config(), root.plan, Options())
    limits = {
        name: getattr(had, name)
        for name in get_args(tape.LimitName)
        if getattr(had, name) not in (None, getattr(usual, name))
    }
    return replace(cassette, limits=limits, expect=tape.Expectations(status=cassette.result.status))


def _recipe_name(project: Project, plan: Plan, folder: Path) -> str:
    """Return how a cassette in `folder` names the recipe of a run."""
    file = os.path.realpath(project.folder / plan.source_file) if plan.source_file else ""
    try:
        if file and os.path.realpath(project.library.find(plan.name).file) == file:
            return f"{plan.name}@{plan.version}"
    except FanfoldError:
        pass  # it is a file that the library does not know
    if not file or not Path(file).is_relative_to(project.folder):
        message = f"the recipe {plan.name} is not in a file of this project, so a test cannot find it"
        raise AuthorError("cassette.no_recipe", message, hint="save the recipe in the project, and run that")
    named = os.path.relpath(file, os.path.realpath(folder))
    return named if named.startswith("..") else f"./{named}"


def _plain_config() -> Config:
    """Return the configuration of a user who configured nothing."""
    nowhere = Path(os.devnull, "fanfold")
    return Config.read(nowhere, {"FANFOLD_HOME": str(nowhere), "HOME": str(nowhere)})


class _Revisions(Struct, frozen=True):
    """The files of one merge or proposal."""

    step: str
    files: tuple[PathRevision, ...]


class Recorder:
    """Reads a run tree into a cassette."""

    def __init__(self, project: Project, tree: RunTree) -> None:
        self._project = project
        self._tree = tree
        self._store = tree.store
        self._order: list[str] = []
        self._decisions: list[str] = []
        self._steps: dict[str, list[AttemptRecord]] = {}
        self._started: dict[tuple[str, int], int] = {}
        self._read: dict[str, str | None] = {}
        """Files that agents read before any agent wrote them: the text, or None if only a part is known."""
        self._touched: set[str] = set()

    def cassette(self, recipe: str) -> Cassette:
        tree, root = self._tree, self._tree.root
        raised = []
        for envelope in self._store.tree(root.id):
            event = events.event_of(envelope)
            data = event.data
            if isinstance(data, events.ValueDecided):
                self._note_decision(event.run, data)
            elif isinstance(data, events.RunResumed) and data.raised is not None:
                raised.append(data.raised)
            elif isinstance(data, events.StepEvent | events.SubagentEvent) and not data.late:
                self._note_step(event.run, event.at, data)
            elif envelope.type == "workspace_event":
                self._note_session(event.run, workspace_fact(envelope.data))
        usage, agents = tree.spent(root)
        result = tape.ResultRecord(
            status=run_status(tree.state, root),
            output=None if root.output is None else tree.blobs.get(root.output),
            error="" if (error := run_error(tree, root)) is None else error.message or error.code,
            order=tuple(self._order),
            decisions=tuple(self._decisions),
            changes=tuple(self._changes()),
            agents=agents,
            usage=usage,
        )
        files: dict[str, Content | None] = {}
        for file in (file for one in self._revisions for file in one.files):
            if file.path not in files:
                files[file.path] = None if file.before is None else self._content(file.before)
        attempts = [one for attempts in self._steps.values() for one in attempts]
        quoted = dict.fromkeys(name for one in attempts for name in _quoted(one.output))
        for path, text in (quoted | self._read).items():
            if path not in files and path not in self._touched:
                files[path] = text if text is not None else self._as_it_is(path)
        whole = Cassette(
            cassette=1,
            recipe=recipe,
            inputs=tree.values.inputs(root),
            raised=tuple(raised),
            files={path: content for path, content in sorted(files.items()) if content is not None},
            roles={name: _role_text(role) for name, role in sorted(tree.frozen().roles.items())},
            steps={path: tuple(attempts) for path, attempts in self._steps.items()},
            result=result,
        )
        return msgspec.json.decode(self._store.clean(msgspec.json.encode(whole)), type=Cassette)

    # Steps

    def _note_decision(self, run: str, data: events.ValueDecided) -> None:
        node = self._tree.state.runs[run].nodes.get(data.step)
        if node is None or (data.what == "admission" and node.step.when is None):
            return
        what = "when" if data.what == "admission" else data.what
        value = "fails" if data.error is not None else str(data.value).lower()
        self._decisions.append(f"{node.run.tree_path(node.path)} {what} {value}")

    def _note_step(self, run: str, at: int, data: events.StepEvent | events.SubagentEvent) -> None:
        node = self._tree.state.runs[run].nodes.get(data.step)
        if node is None:
            return
        path, attempt = node.run.tree_path(node.path), max(1, data.attempt)
        word = state.EVENT_WORDS.get(data.status, data.status)
        if word == state.SKIPPED:
            self._order.append(f"{path} skipped")
        elif node.kind != state.LEAF:
            return
        elif word in ("started", "waiting"):
            if (path, attempt) not in self._started:
                self._order.append(replay.order_line(path, attempt, "started"))
            self._started[path, attempt] = at
        elif word in state.TERMINAL:
            self._order.append(replay.order_line(path, attempt, word))
            error = data.error if word != state.COMPLETED else None
            one = AttemptRecord(
                status=state.COMPLETED if word == state.COMPLETED else word,  # a default is the same object
                fail=None if error is None else replace(error, step="", attempt=0, subject="", until=0),
                output=UNSET
                if data.output is None or data.reason == state.BY_DEFAULT
                else self._tree.blobs.get(data.output),
                ms=max(0, at - self._started.get((path, attempt), at)),
                usage=data.usage,
                reused=(path, attempt) not in self._started,
            )
            try:
                job = prepare(self._tree.values, node)
            except Unrenderable:
                return
            if job.performed or isinstance(job, Question):
                self._steps.setdefault(path, []).append(self._described(node, job, attempt, one))

    def _described(self, node: state.Node, job: Job, attempt: int, one: AttemptRecord) -> AttemptRecord:
        """Return an attempt with its request and its actions."""
        if isinstance(job, AgentJob):
            session = session_id(node.run.id, node.path, attempt)
            one = self._session(
                session, replace(one, role=type_of(node.step).who(job) or node.step.traits.role or "")
            )
        elif isinstance(job, CommandJob):
            one = _command(node, job, one)
        elif isinstance(job, FunctionJob):
            one = replace(one, function=job.handler, inputs=job.inputs)
        elif isinstance(job, Question):
            one = replace(one, question=job.question or "?")
        others = {call.tool for turn in one.turns for call in turn.calls} - replay.FILE_TOOLS
        if one.status == state.COMPLETED and (one.program or one.command or others):
            own = [f for r in self._revisions if r.step == node.run.tree_path(node.path) for f in r.files]
            writes = {file.path: None if file.after is None else self._content(file.after) for file in own}
            one = replace(one, writes=writes)
        return one

    def _session(self, session: str, one: AttemptRecord) -> AttemptRecord:
        entries = read_entries(self._store, session)
        if not entries:
            return one
        answer: JSON | msgspec.UnsetType = UNSET
        program = next((entry.program for entry in entries if isinstance(entry, AgentBegin)), "")
        for entry in entries:
            if isinstance(entry, Response | ToolResult | StageEnd) and entry.output is not UNSET:
                answer = entry.output
        turns = tuple(turn for turn in self._turns(entries, program) if turn.text or turn.calls)
        if answer is not UNSET and turns and turns[-1] == tape.TurnRecord(text=as_text(answer)):
            turns = turns[:-1]
        # A program's changes that were refused are not recorded, so its refusal is.
        if program and one.fail is not None and one.fail.kind in ("violation", "conflict"):
            answer = UNSET
        prompt = next((entry.text for entry in entries if isinstance(entry, UserInput)), None)
        return replace(one, prompt=prompt, program=program, turns=turns, output=answer)

    def _turns(self, entries: Sequence[Entry], program: str) -> Iterator[tape.TurnRecord]:
        results: dict[str, list[ToolResult]] = {}
        for entry in entries:
            if isinstance(entry, ToolResult):
                results.setdefault(entry.id, []).append(entry)
        for entry in entries:
            if isinstance(entry, Response) and entry.output is UNSET:
                calls = tuple(
                    self._call(call.tool, call.args, found.pop(0) if found else None, program)
                    for call in entry.tool_calls
                    if call.tool not in _ANSWER_TOOLS and (found := results.get(call.id, [])) is not None
                )
                yield tape.TurnRecord(text=entry.text, calls=calls)

    def _call(self, tool: str, args: JSON, result: ToolResult | None, program: str) -> tape.CallRecord:
        error = "" if result is None or result.error is None else result.error.code
        known = UNSET if result is None or error else result.result
        if tool in replay.FILE_TOOLS and not program:
            if isinstance(known, dict) and isinstance(path := known.get("path"), str):
                if tool != "read_file":
                    self._touched.add(path)
                elif path not in self._touched and path not in self._read:
                    text, given = str(known.get("text", "")), args if isinstance(args, dict) else {}
                    whole = not given.get("offset") and "next_offset" not in known and "\ufffd" not in text
                    self._read[path] = text if whole else None
            known = UNSET
        return tape.CallRecord(tool=tool, args=args, result=known, error=error)

    def _note_session(self, run: str, fact: object) -> None:
        """Record a session inside a step: one that resolved a conflict or summarized a part."""
        if not isinstance(fact, Resolve | Digest):
            return
        path = self._tree.state.runs[run].tree_path(fact.step)
        inner = f"{path}/resolve" if isinstance(fact, Resolve) else f"{path}/part[{fact.part}]"
        failed = isinstance(fact, Digest) and fact.why
        fail = events.Failure("agent", "fold.failed", fact.why) if failed else None
        session = self._session(fact.session_id, AttemptRecord(fail=fail))
        if session.prompt is not None:
            self._steps.setdefault(inner, []).append(session)

    # Files

    @cached_property
    def _revisions(self) -> list[_Revisions]:
        """The files of each merge, in order, then those of each proposal."""
        memory, runs = self._tree.memory, self._tree.state.runs
        spaces = spaces_of(self._project) if memory.merged else None
        if spaces is None:
            return []
        merges: list[tuple[int, _Revisions]] = []
        for (run, step), receipts in memory.receipts.items():
            for name in receipts:
                try:
                    receipt = spaces.receipts.get(name)
                except NotFoundError:
                    continue  # gc removed it
                merges.append((receipt.merged_ns, _Revisions(runs[run].tree_path(step), receipt.files)))
        proposals = {one.id: one for one in spaces.proposals()}
        waiting = {row.proposal: runs[run].tree_path(row.step) for run, row in memory.merged if row.proposal}
        proposed = [
            _Revisions(waiting[id], proposals[id].revision.files) for id in waiting if id in proposals
        ]
        return [*(one for _, one in sorted(merges, key=lambda pair: pair[0])), *proposed]

    def _changes(self) -> Iterator[str]:
        """Yield one line for each changed file."""
        known = {(one.step, file.path): file.after for one in self._revisions for file in one.files}
        for run, row in self._tree.memory.merged:
            step = self._tree.state.runs[run].tree_path(row.step)
            after = known.get((step, row.path))
            content = (
                after.oid[:12] if after is not None else "deleted" if row.kind == "deleted" else "unknown"
            )
            # What people did with a change later is not the work of the run.
            word = {"applied": "proposed", "undone": "merged"}.get(row.state, row.state)
            yield f"{step} {word} {content} {row.path}"

    def _content(self, file: FileState) -> Content | None:
        spaces = spaces_of(self._project)
        try:
            is_link = file.mode & 0o170000 == _LINK
            return None if spaces is None or is_link else self._clean(spaces.content(file.oid))
        except FanfoldError:
            return None  # it was too large to be kept

    def _as_it_is(self, path: str) -> Content | None:
        top = self._project.folder
        try:
            data = read_beneath(top, top / path, MAX_READ_BYTES + 1)
        except (OSError, ValueError):
            return None
        return self._clean(data) if len(data) <= MAX_READ_BYTES else None

    def _clean(self, data: bytes) -> Content:
        """Return the content of a file. A secret in base64 is not found, so it is removed before."""
        content = content_of(data)
        return content if isinstance(content, str) else content_of(self._store.clean(data))


def _command(node: state.Node, job: CommandJob, one: AttemptRecord) -> AttemptRecord:
    """Return the attempt of a command with the exit status and output that its result shows."""
    output, fail = one.output, one.fail
    one = replace(one, command=job.argv, output=UNSET)
    if fail is None and output is UNSET:
        return one  # it was stopped
    if fail is None:
        parts = output if node.step.outputs and isinstance(output, dict) else {"stdout": as_text(output)}
        code, texts = parts.get("exit_code", 0), {n: str(parts.get(n, "")) for n in ("stdout", "stderr")}
        return replace(one, exit_code=code if isinstance(code, int) else 0, **texts)
    shown = re.fullmatch(_ENDED, fail.message) if fail.code == "command.failed" else None
    return one if shown is None else replace(one, exit_code=int(shown[1]), stdout=shown[2] or "", fail=None)


def _quoted(output: Any) -> Iterator[str]:
    """Yield the files that a critic or reviewer quotes as evidence."""
    if isinstance(output, dict):
        if {"file", "line", "quote"} <= output.keys() and isinstance(output["file"], str):
            yield os.path.normpath(output["file"])
        output = list(output.values())
    for one in output if isinstance(output, list) else ():
        yield from _quoted(one)


def _role_text(role: Role) -> str:
    tools = "all" if role.tools is None else ", ".join(role.tools)
    return f"{role.sandbox_mode}, model: {role.model or 'default'}, tools: {tools}\n{role.instructions}"


def condition_names(tree: RunTree) -> dict[str, JSON]:
    """Return the names that the condition of an expectation sees."""
    document = msgspec.to_builtins(run_document(tree))
    return {name: document[name] for name in ("output", "status", "changes", "usage", "steps")} | {
        "inputs": tree.values.inputs(tree.root)
    }


# -----------------------------------------------------------------------------------------------------------
# Replaying


class CaseReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one test. `changed`: it passes, but steps are asked something else than recorded."""

    file: str
    status: Literal["passed", "changed", "failed", "error", "updated"]
    recipe: str = ""
    ms: int = 0
    differences: list[Difference] = []
    reached: list[str] = []
    """The points of the recipe that the replay reached; see `coverage`."""


class Suite:
    """Replays the cassettes of one project, in one process and one temporary store."""

    def __init__(
        self,
        project: Project,
        *,
        mode: Mode | None = None,
        budgets: Mapping[str, int | None] | None = None,
        yes: bool = False,
    ) -> None:
        self.project = project
        self.mode = mode
        self._yes = yes
        self.left = {name: most for name, most in (budgets or {}).items() if most is not None}
        """The remaining budget of all live runs together, by the names of `Options`."""
        self._plans: dict[str, Plan] = {}
        self._count = 0

    def __enter__(self) -> Self:
        # A merge waits for the disk several times; a file system in memory has none to wait for.
        memory = _MEMORY if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM else None
        parent = memory or tempfile.gettempdir()
        _remove_left(Path(parent))
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._held = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._held, fcntl.LOCK_EX)
        self._config = _plain_config()
        return self

    def __exit__(self, *_: object) -> None:
        if "_store" in self.__dict__:
            self._store.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._held)

    @cached_property
    def _store(self) -> Store:
        clean = self.project.backends.machine.redactor.encoded
        return SqliteAddress(folder=self._folder / "store", durability="normal", clean=clean).open()

    @property
    def limits(self) -> dict[str, Any]:
        """The limits of the next run that asks models; one that asks none needs nothing."""
        return {name: max(1, most) for name, most in self.left.items()}

    def spend(self, usage: events.Usage) -> None:
        """Subtract the usage of a run from the remaining budget."""
        for name, spent in (("budget_micro_usd", usage.micro_usd or 0), ("budget_tokens", usage.tokens)):
            if name in self.left:
                self.left[name] -= spent

    def plan_of(self, cassette: Cassette, file: Path) -> Plan:
        """Return the plan of the recipe of a cassette, as it is now."""
        name = cassette.recipe
        if is_path(name):
            real = Path(os.path.realpath(file.parent / name))
            if os.path.isabs(name) or not real.is_relative_to(self.project.folder):
                message = f"{file}: its recipe {name} is not inside the project"
                raise AuthorError("cassette.outside", message, hint="a test uses recipes of its own project")
            name = str(real)
        if name not in self._plans:
            self._plans[name] = self.project.plan_of(name, scripted=True)
        return self._plans[name]

    async def test(self, file: Path, *, update: bool = False) -> tuple[CaseReport, Cassette | None]:
        """Replay one cassette. Returns how the replay differs from it, and the recording of the replay."""
        since, shown = time.monotonic(), shown_name(file)
        new: Cassette | None = None
        try:
            cassette = tape.read_cassette(file, self.project.folder)
            plan = self.plan_of(cassette, file)
            live = self.mode == "live-changed"
            new, tree = await self.replay(cassette, plan, live=live)
            assert new.result is not None, "a replay has a result"
            found = tape.differences(cassette, new)
            if live:  # other answers are expected
                found = [one for one in found if one.kind in (*tape.REQUESTS, "status")]
            names = {} if cassette.expect.output is None else condition_names(tree)
            broken = list(tape.unmet(cassette.expect, new.result, names))
            report = CaseReport(file=shown, status="passed", recipe=plan.name, differences=found + broken)
            strict = (self.mode or cassette.mode) == "strict"
            if update and not broken and (found or cassette.result is None):
                tape.write_cassette(new, file, self.project.folder)
                report = replace(report, status="updated")
            elif broken or any(strict or one.kind not in tape.REQUESTS for one in found):
                report = replace(report, status="failed")
            elif found:
                report = replace(report, status="changed")
        except OSError as error:  # such as a name that is too long, or is a file and a folder
            problem = f"cassette.files: {error.strerror or error}"
            report = CaseReport(file=shown, status="error", differences=[Difference("error", problem)])
        except FanfoldError as error:
            text = f"{error.code}: {error.message}" + (f" ({error.hint})" if error.hint else "")
            rendered = getattr(error, "rendered", None)
            found = [Difference("error", text, diff="" if rendered is None else rendered(False))]
            report = CaseReport(file=shown, status="error", differences=found)
        return replace(report, ms=round((time.monotonic() - since) * 1_000)), new

    async def replay(self, cassette: Cassette, plan: Plan, *, live: bool = False) -> tuple[Cassette, RunTree]:
        """Replay a cassette. Returns the recording of the replay, and its tree."""
        self._count += 1
        folder = self._folder / f"{self._count}" / "project"
        limits: dict[str, Any] = {str(name): value for name, value in cassette.limits.items()}
        limits["permission"] = "auto" if self._yes or not live else "ask"
        limits |= self.limits if live else {}
        options = Options(**limits) if live else Options(**limits, script="", script_file=replay.CASSETTE)
        turns = replay.Turnstile(cassette, replay.SimulatedClock())
        parts = RunParts(
            executor=partial(_executor, turns),
            supervisor=partial(_supervisor, cassette if live else None),
            starts_programs=False,
        )
        try:
            project = self._project_for(cassette, folder, live)
            bound = bind_inputs(plan, cassette.inputs)
            check_enabled(project)
            if live:
                permit(start_consent(project, plan, bound, options), options.permission)
            owned = create(project, plan, bound, options, parts=parts)
            # After each pause for a limit, the run continues with the limit that was raised then.
            # No cassette raises the budget of a user who pays.
            for raised in (None, *(() if live else cassette.raised)):
                if raised is not None:
                    owned = own(project, owned.tree.root.id, parts=parts)
                turns.clock.advance_to(owned.tree.state.now)
                owned.tree.use_clock(turns.clock)
                host = replay.ReplayHost(owned.tree, owned.executors, turns)
                try:
                    await (host.start() if raised is None else host.resume(raised))
                finally:
                    owned.let_go()
                if owned.tree.root.status != state.PAUSED:
                    break
            new = Recorder(project, owned.tree).cassette(cassette.recipe)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder.parent, True)
        if live:
            self.spend(owned.tree.spent(owned.tree.root)[0])
        kept = ("inputs", "mode", "expect", "limits", "files")
        new = replace(new, **{name: getattr(cassette, name) for name in kept})
        return (_with_old_usage(cassette, new) if live else new), owned.tree

    def _project_for(self, cassette: Cassette, folder: Path, live: bool) -> Project:
        """Return a project in an empty folder with the files of a cassette."""
        folder.mkdir(parents=True)
        for path, content in cassette.files.items():
            write_beneath(folder, path, tape.bytes_of(content))
        mine = self.project.backends
        kind = replay.recorded_kind(cassette, replay.CASSETTE if live else SCRIPTED)
        backends = mine.with_kind(kind) if live else BackendRegistry((kind,), mine.machine)
        return project_in(
            folder, self.project, self._store, self.project.config if live else self._config, backends
        )


def _remove_left(parent: Path) -> None:
    """Remove the folders of this user's processes that were killed: nothing else frees their memory."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                found = os.fstat(handle)
                if found.st_uid == os.getuid() and time.time() - found.st_mtime > _LEFT_S:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)


def shown_name(file: Path) -> str:
    """Return how reports name a cassette."""
    return os.path.relpath(file)


def project_in(
    folder: Path, mine: Project, store: Store, config: Config, backends: BackendRegistry
) -> Project:
    """Return a project in another folder that has the recipes and roles of this one."""
    parts = Parts(
        load_library=lambda: mine.library,
        load_roles=lambda: mine.roles,
        load_address=lambda: mine.address,
        load_backends=lambda: backends,
        load_continuation=lambda: mine.continuation,
        make_root_tools=lambda _project, _frozen, _ask, _request, own: own,
    )
    project = Project(folder, config, parts=parts)
    project.store = store
    return project


def _executor(turns: replay.Turnstile, *given: Any) -> replay.ReplayExecutor:
    executor = replay.ReplayExecutor(*given)
    executor.turns = turns
    return executor


def _supervisor(live: Cassette | None, backends: Any, **more: Any) -> replay.ReplaySupervisor:
    supervisor = replay.ReplaySupervisor(backends, **more)
    supervisor.asks = None if live is None else partial(_is_changed, live)
    return supervisor


def _is_changed(cassette: Cassette, request: SessionRequest) -> bool:
    """Whether a session is asked something else than the recorded one."""
    one = cassette.attempt(request.step, request.attempt)
    if one is None or one.prompt != request.prompt:
        return True
    return not cassette.roles.get(one.role, "").endswith(request.role.instructions)


def _with_old_usage(old: Cassette, new: Cassette) -> Cassette:
    """Return a recording in which answers that cost nothing have the spending of the first recording."""
    steps: dict[str, tuple[AttemptRecord, ...]] = {}
    for path, attempts in new.steps.items():
        pairs = [(one, old.attempt(path, number)) for number, one in enumerate(attempts, 1)]
        steps[path] = tuple(
            one
            if before is None or (one.usage is not None and one.usage.tokens)
            else replace(one, usage=before.usage)
            for one, before in pairs
        )
    spent = [one.usage for attempts in steps.values() for one in attempts if one.usage is not None]
    assert new.result is not None, "it was recorded"
    return replace(new, steps=steps, result=replace(new.result, usage=sum(spent, events.NOTHING_SPENT)))
