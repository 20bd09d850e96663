"""Folding a phase: one summary of all it gave, however much that is.

What fits one window is summed up by one session. What does not becomes a tree: each part of it is summed up
by a session of its own, their digests take the place of the parts, and so on until they fit one window.

Rules
* Every session of the tree has a log of its own, and one that had answered before a crash is not asked again.
* The sessions count: no more of them are started than the run may have agents. For a part that nobody could
  sum up, or that there is no agent for, an extract stands, and is named as one.
* What was cut or only extracted is told as a warning of the step, which the report shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct, structs

from fanfold.agents.backend import SessionFailed, SessionRequest
from fanfold.agents.local.weights import PROVIDER
from fanfold.kernel.events import NOTHING_SPENT, Failure, Usage
from fanfold.runtime.places.place import Place
from fanfold.runtime.records.attempt_sessions import PARTS_AT_ONCE, part_id
from fanfold.runtime.records.evidence import Digest
from fanfold.runtime.records.values import Piece
from fanfold.runtime.steps.phases.material import extract, pack
from fanfold.runtime.steps.step_type import Services, Tell

WINDOW_CHARS = 60_000
"""Of what a session sums up at once: about 15,000 tokens."""
LOCAL_WINDOW_CHARS = 4_000
DIGEST_CHARS = 1_600
MAX_LEVELS = 4
_PART = "This is one part of it; others sum up the rest. Keep decisions, results, numbers, names and paths."


class FoldMaterial(Struct, frozen=True):
    """What is left to be summed up by the last session, and what it took to come there."""

    text: str
    usage: Usage | None = None
    warning: Failure | None = None
    held: Failure | None = None
    """The run was paused, or its provider refuses everybody: the fold goes on when the run does."""


class Folding:
    """The sessions that sum up parts of what one fold is given."""

    def __init__(self, services: Services, request: SessionRequest, place: Place, progress: Tell) -> None:
        self._services = services
        self._request = request
        self._place = place
        self._progress = progress
        self._asked = 0
        self._usage: Usage | None = None
        self._extracted: list[str] = []
        self._held: Failure | None = None

    async def run(self, pieces: Sequence[Piece], agents_left: int) -> FoldMaterial:
        """Bring the pieces to where one session can sum them up."""
        window = window_of(self._request.role.model or self._services.frozen.default_model)
        groups, left_out = pack(pieces, window)
        for _ in range(MAX_LEVELS):
            if len(groups) <= 1:
                break
            digests = await self._level(groups, agents_left)
            if self._held is not None:
                return FoldMaterial("", self._usage, held=self._held)
            groups, cut = pack(digests, window)
            left_out += cut
        text = "\n\n".join(f"{one.name}:\n{one.text}" for one in (groups[0] if groups else ()))
        return FoldMaterial(text, self._usage, self._warning(left_out, len(groups) - 1))

    async def _level(self, groups: Sequence[Sequence[Piece]], agents_left: int) -> list[Piece]:
        places = asyncio.Semaphore(PARTS_AT_ONCE)

        async def digest(number: int, group: Sequence[Piece]) -> Piece:
            async with places:
                return await self._digest(number, group)

        first = self._asked
        most = max(0, agents_left - first)
        self._asked += min(len(groups), most)
        asked = [digest(first + index, group) for index, group in enumerate(groups[:most])]
        done = list(await asyncio.gather(*asked))
        return done + [self._extract(group, "no agent was left for it") for group in groups[most:]]

    async def _digest(self, number: int, group: Sequence[Piece]) -> Piece:
        name = _named(group)
        material = "\n\n".join(f"{one.name}:\n{one.text}" for one in group)
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
                durable=True,  # one that answered is not asked again
            )
            self._spend(result.usage)
            return Piece(name, str(result.output)[: DIGEST_CHARS * 2])
        except SessionFailed as error:
            self._spend(error.usage)
            if error.failure.code == "session.paused":
                self._held = error.failure
            why = error.failure.message or error.failure.code
            return self._extract(group, why)
        finally:
            self._place.evidence.append(Digest(session_id=session, part=number, why=why))

    def _extract(self, group: Sequence[Piece], why: str) -> Piece:
        name = _named(group)
        self._extracted.append(f"{name} ({why})")
        return Piece(name, f"(Extract; nobody summed it up.)\n{extract(group, DIGEST_CHARS)}")

    def _spend(self, usage: Usage | None) -> None:
        if usage is not None:
            self._usage = (self._usage or NOTHING_SPENT) + usage

    def _warning(self, left_out: int, dropped: int) -> Failure | None:
        told = []
        if left_out:
            told.append(f"{left_out:,} characters of long outputs were left out")
        if self._extracted:
            told.append(f"only extracts of {len(self._extracted)} parts: {'; '.join(self._extracted[:3])}")
        if dropped > 0:
            told.append(f"{dropped} digests were left out")
        if not told:
            return None
        hint = "the outputs themselves are whole: the run's folder has them, and a query finds words in them"
        message = f"the summary is not of everything: {', '.join(told)}"
        return Failure("agent", "fold.left_out", message, hint, retryable=False, step=self._request.step)


def window_of(model: str | None) -> int:
    """How much a session of this model is given to sum up."""
    return LOCAL_WINDOW_CHARS if (model or "").startswith(f"{PROVIDER}:") else WINDOW_CHARS


def _named(group: Sequence[Piece]) -> str:
    return group[0].name if len(group) == 1 else f"{group[0].name} to {group[-1].name}"
