"""Folding a phase: one summary of all its outputs, of any size.

Outputs that fit into one window are summarized by one session. Larger outputs are summarized in a tree: a
separate session summarizes each part, and the digests replace the parts, until they fit into one window.

Rules
* Every session of the tree has its own log. A session that replied before a crash is not asked again.
* The sessions count as agents: no more are started than the run may have. If a part has no agent, or its
  session fails, an extract replaces the digest and is marked as an extract.
* The step warns about outputs that were cut or only extracted. The report shows the warning.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from fanfold.agents.backend import SessionFailed, SessionRequest, ToolFailed
from fanfold.agents.local.weights import PROVIDER
from fanfold.kernel.events import Failure, Usage
from fanfold.kernel.plan import JSON
from fanfold.kernel.state import COMPLETED, Loop, Node, Run, Scope
from fanfold.language.phases import RESULT
from fanfold.language.terminal import fair_shares, shorten_middle
from fanfold.project_files import Closing, read_beneath
from fanfold.steps.ids import is_held
from fanfold.steps.records import PARTS_AT_ONCE, Digest, part_id
from fanfold.steps.step_type import OnProgress, Services, add_usage
from fanfold.steps.values import Piece, Values, extract
from fanfold.store.database import private_folder

if TYPE_CHECKING:
    from fanfold.agents.tools.files import ArtifactFiles, PublishedFiles
    from fanfold.steps.step_workspace import StepWorkspace

# -----------------------------------------------------------------------------------------------------------
# The outputs of a phase as text of limited size, for agents that judge or summarize it
#
# Rules
# * A prompt has a fixed maximum size. Text that does not fit is cut visibly, every cut is counted, and the
#   whole output can always be searched (`query_workflow`).
# * Pieces keep their order, so that two hosts make the same prompt from the same outputs.

JUDGED_CHARS = 60_000
"""The maximum size of a phase's result for one critic or reviewer."""
MIN_SHARE = 300


def show(pieces: Sequence[Piece], limit: int = JUDGED_CHARS) -> tuple[str, int]:
    """The pieces in order, shortened to fit a limit, and the number of characters that were left out."""
    whole = sum(len(piece.text) for piece in pieces)
    seen = pieces if whole <= limit else pieces[: max(1, limit // MIN_SHARE)]
    shares = fair_shares([len(piece.text) for piece in seen], limit)
    shown = zip(seen, shares, strict=True)
    parts = [f"{piece.name}:\n{shorten_middle(piece.text, share)}" for piece, share in shown]
    if len(seen) < len(pieces):
        parts.append(f"[… {len(pieces) - len(seen)} more outputs are not shown; query_workflow finds them …]")
    return "\n\n".join(parts), whole - sum(shares)


def pack(pieces: Sequence[Piece], window: int) -> tuple[list[list[Piece]], int]:
    """Groups of pieces in order, each of which fits into a window, and the number of characters cut."""
    groups: list[list[Piece]] = []
    room, left_out = 0, 0
    for piece in pieces:
        text = piece.text if len(piece.text) <= window else shorten_middle(piece.text, window)
        left_out += max(0, len(piece.text) - window)
        needed = len(piece.name) + len(text) + 4
        if not groups or needed > room:
            groups.append([])
            room = window
        groups[-1].append(Piece(piece.name, text))
        room -= needed
    return groups, left_out


WINDOW_CHARS = 60_000
"""The amount of text that one session summarizes: about 15,000 tokens."""
LOCAL_WINDOW_CHARS = 4_000
DIGEST_CHARS = 1_600
MAX_LEVELS = 4
_PART = "This is one part of it; others sum up the rest. Keep decisions, results, numbers, names and paths."


class FoldMaterial(Struct, frozen=True):
    """The text for the last session of a fold, and the usage of the sessions before it."""

    text: str
    usage: Usage | None = None
    warning: Failure | None = None
    held: Failure | None = None
    """The failure that interrupts the fold: a pause or an unavailable provider. It continues with the run."""


class Folding:
    """The sessions that summarize parts of the input of one fold."""

    def __init__(
        self, services: Services, request: SessionRequest, place: StepWorkspace, progress: OnProgress
    ) -> None:
        self._services = services
        self._request = request
        self._place = place
        self._progress = progress
        self._started = 0
        self._usage: Usage | None = None
        self._extracted: list[str] = []
        self._held: Failure | None = None

    async def run(self, pieces: Sequence[Piece], agents_left: int) -> FoldMaterial:
        """Reduce the pieces until one session can summarize them."""
        model = self._request.role.model or self._services.frozen.default_model or ""
        window = LOCAL_WINDOW_CHARS if model.startswith(f"{PROVIDER}:") else WINDOW_CHARS
        groups, left_out = pack(pieces, window)
        for _ in range(MAX_LEVELS):
            if len(groups) <= 1:
                break
            digests = await self._summarize(groups, agents_left)
            if self._held is not None:
                return FoldMaterial("", self._usage, held=self._held)
            groups, cut = pack(digests, window)
            left_out += cut
        omissions = []
        if left_out:
            omissions.append(f"{left_out:,} characters of long outputs were left out")
        if self._extracted:
            omissions.append(
                f"only extracts of {len(self._extracted)} parts: {'; '.join(self._extracted[:3])}"
            )
        if len(groups) > 1:
            omissions.append(f"{len(groups) - 1} digests were left out")
        warning = None
        if omissions:
            hint = "the outputs are complete in the run's folder and in the search index"
            message = f"the summary is incomplete: {', '.join(omissions)}"
            step = self._request.step
            warning = Failure("agent", "fold.left_out", message, hint, retryable=False, step=step)
        text = "\n\n".join(f"{piece.name}:\n{piece.text}" for piece in (groups[0] if groups else ()))
        return FoldMaterial(text, self._usage, warning)

    async def _summarize(self, groups: Sequence[Sequence[Piece]], agents_left: int) -> list[Piece]:
        """The digests of one level of the tree."""
        import asyncio  # commands that only read runs load no event loop

        slots = asyncio.Semaphore(PARTS_AT_ONCE)

        async def digest(number: int, group: Sequence[Piece]) -> Piece:
            async with slots:
                return await self._digest(number, group)

        first = self._started
        most = max(0, agents_left - first)
        self._started += min(len(groups), most)
        work = [digest(first + index, group) for index, group in enumerate(groups[:most])]
        done = list(await asyncio.gather(*work))
        return done + [self._extract(group, "no agent was left for it") for group in groups[most:]]

    async def _digest(self, number: int, group: Sequence[Piece]) -> Piece:
        name = _named(group)
        material = "\n\n".join(f"{summary.name}:\n{summary.text}" for summary in group)
        session = part_id(self._request.session_id, number)
        request = structs.replace(
            self._request,
            session_id=session,
            step=f"{self._request.step}/part[{number}]",
            prompt=f"{self._request.prompt}\n\n{_PART}\n\n{material}",
        )
        why = ""
        try:
            result = await self._services.supervisor.run_step(
                request,
                backend=self._services.frozen.backend_of(request.role),
                on_progress=self._progress,
                journal=self._services.journal,
                durable=True,  # a session that replied is not asked again
            )
            self._usage = add_usage(self._usage, result.usage)
            return Piece(name, str(result.output)[: DIGEST_CHARS * 2])
        except SessionFailed as error:
            self._usage = add_usage(self._usage, error.usage)
            if is_held(error.failure):
                self._held = error.failure
            why = error.failure.message or error.failure.code
            return self._extract(group, why)
        finally:
            self._place.evidence.append(Digest(session_id=session, part=number, why=why))

    def _extract(self, group: Sequence[Piece], why: str) -> Piece:
        name = _named(group)
        self._extracted.append(f"{name} ({why})")
        return Piece(name, f"(Extract; it was not summarized.)\n{extract(group, DIGEST_CHARS)}")


def _named(group: Sequence[Piece]) -> str:
    return group[0].name if len(group) == 1 else f"{group[0].name} to {group[-1].name}"


# -----------------------------------------------------------------------------------------------------------
# Verification of the quotes of critics and reviewers
#
# Rules
# * A quote is found if its words are in the file on the given line, or within a few lines of it. Agents often
#   miscount lines, but rarely invent words by accident. White space is normalized.
# * Files are read in the workspace of the agent, up to a maximum size, without links that leave it. Artifacts
#   and published files of earlier phases, which the file tools show too, may also be quoted.
# * A quote that cannot be verified counts as not found. Statements of an agent about it do not count.

NEAR_LINES = 3
MAX_FILE_BYTES = 2 * 1024 * 1024


class CitedEvidence:
    """Verifies the quotes of one reply. Each file is read once.

    `beside` are files outside the workspace that an agent reads under special names.
    """

    def __init__(
        self, folder: str, judged: str, beside: Sequence[PublishedFiles | ArtifactFiles] = ()
    ) -> None:
        self._folder = Path(folder)
        self._beside = beside
        self._judged = _even(judged)
        self._lines: dict[str, list[str]] = {}

    def checked(self, answer: JSON) -> JSON:
        """The reply with `found` added to every piece of evidence: whether the quote was verified."""
        if isinstance(answer, list):
            return [self.checked(item) for item in answer]
        if not isinstance(answer, dict):
            return answer
        if {"file", "line", "quote"} <= answer.keys():
            return {**answer, "found": self.is_there(answer["file"], answer["line"], answer["quote"])}
        return {key: self.checked(value) for key, value in answer.items()}

    def is_there(self, file: Any, line: Any, quote: Any) -> bool:
        """Whether a quote is in the file near that line."""
        if not (isinstance(file, str) and isinstance(line, int) and isinstance(quote, str)):
            return False
        words = _even(quote)
        if not words:
            return False
        if file == RESULT:
            return words in self._judged
        if file not in self._lines:
            self._lines[file] = self._text(file).splitlines()
        first = max(0, line - 1 - NEAR_LINES)
        last = line + NEAR_LINES + quote.count("\n")
        return words in _even("\n".join(self._lines[file][first:last]))

    def _text(self, file: str) -> str:
        """The text of a file in the workspace or beside it; empty if it cannot be read."""
        top, inside = self._folder, os.path.relpath(file, self._folder) if os.path.isabs(file) else file
        try:
            for other in self._beside:
                if other.has({"path": file}):
                    top, inside = other.locate(file)
                    break
            if "\0" in inside or inside.split("/", 1)[0] in ("..", ".fanfold"):
                return ""
            return read_beneath(top, top / inside, MAX_FILE_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError, ToolFailed):
            return ""


def invented(answer: JSON) -> list[str]:
    """The locations in a verified reply whose quotes were not found."""
    return [f"{quote['file']}:{quote['line']}" for quote in quotes_in(answer) if not quote.get("found")]


def quotes_in(answer: JSON) -> Iterator[dict[str, JSON]]:
    """The pieces of evidence of a verdict, in order."""
    given = answer.get("evidence") if isinstance(answer, dict) else None
    for item in given if isinstance(given, list) else ():
        if isinstance(item, dict):
            yield item


def judged_verdict(verdict: dict[str, JSON]) -> dict[str, JSON]:
    """The verdict of a critic. It passes only with evidence, and if all of its quotes were found."""
    wrong = invented(verdict)
    if wrong:
        problem = f"The critic quoted text that does not exist ({', '.join(wrong[:5])}): do not rely on it."
    elif verdict.get("pass") and not any(True for _ in quotes_in(verdict)):
        problem = "The critic passed it without any evidence, which does not count."
    else:
        return verdict
    feedback = f"{verdict.get('feedback') or ''} {problem}".strip()
    return {**verdict, "pass": False, "feedback": feedback}


def _even(text: str) -> str:
    return " ".join(text.split())


# -----------------------------------------------------------------------------------------------------------
# Publishes the outputs of phases as files in `.fanfold/ctx/wf/<run>/<phase>/`, for users and agents.
#
# Rules
# * A phase is published when it is folded, before later phases start. It is published again with the other
#   files of the run, which are derived from the log. Outputs are complete, except for refuted findings.
# * Agents read them as `ctx/wf/<run>/…` through their file tools, only those of their own run.

SUMMARY = "summary"


def publish_phase(memory: Path, run_id: str, phase: str, pieces: Sequence[Piece], summary: str) -> None:
    """Write the files of one phase. `memory` is the project's `.fanfold` folder."""
    from fanfold.agents.tools.files import PUBLISHED

    home = memory
    for part in (*PUBLISHED.split("/"), run_id):
        home /= part
        private_folder(home)
    written = (*pieces, Piece(SUMMARY, summary)) if summary else pieces
    write_folder(home, phase, ((f"{one.name}.md", one.text.encode("utf-8", "replace")) for one in written))


def publish_run(memory: Path, values: Values, run: Run) -> None:
    """Write the files of every folded phase of a run."""
    for phase, fold in phases_of(run):
        body = phase.children[-2] if fold is not None and len(phase.children) > 1 else None
        if fold is not None and isinstance(body, Scope):
            summary = str(values.output(fold) or "")
            publish_phase(memory, run.id, phase.path, values.pieces(body), summary)


def phases_of(run: Run) -> Iterator[tuple[Loop, Node | None]]:
    """Every phase of a run, with its fold step if that has completed."""
    for node in run.scope.children:
        if isinstance(node, Loop) and node.step.fold is not None:
            last = node.children[-1] if node.children else None
            folded = last is not None and last.step is node.step.fold and last.status == COMPLETED
            yield node, last if folded else None


def write_folder(home: Path, name: str, files: Iterable[tuple[str, bytes]]) -> None:
    """Write all files to a new folder, which then replaces the old one.

    A reader never sees a partial file. Each file costs one folder update instead of three.
    """
    fresh = home / f".{name}.{os.getpid()}"
    _discard(fresh)
    fresh.mkdir(mode=0o700)
    made = {str(fresh)}
    for path, content in files:
        target = f"{fresh}/{path}"
        _make_folder(os.path.dirname(target), made)
        write_private(target, content)
    old = home / f".{name}.{os.getpid()}.old"
    try:
        if os.path.lexists(home / name):
            (home / name).rename(old)
        fresh.rename(home / name)
    except OSError:  # the next owner of the run writes these files too, with newer content
        _discard(fresh)
    _discard(old)


def _discard(path: Path) -> None:
    """Remove a folder with its content, or another file at this path.

    `rmtree` would open such a file, and block if it is a pipe.
    """
    if path.is_dir() and not path.is_symlink():
        import shutil  # imported late: rarely needed

        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _make_folder(folder: str, made: set[str]) -> None:
    """Create a folder and its missing parents, without access for other users."""
    if folder not in made:
        _make_folder(os.path.dirname(folder), made)
        os.mkdir(folder, 0o700)
        made.add(folder)


def write_private(path: str, content: bytes) -> None:
    """Write a file that other users cannot read.

    Python's `open` makes extra system calls and takes half as long again, for every output of a run.
    """
    with Closing(private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)) as file:
        left = memoryview(content)
        while left:
            left = left[os.write(file, left) :]


def private(path: str, flags: int) -> int:
    """Open a file with access for the user only, without following links."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
