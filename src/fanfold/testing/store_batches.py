"""Batches for the tests of stores: run trees whose events are numbered as an owner would number them."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

from fanfold.kernel.events import Data, Envelope, Evidence, StepEvent, type_name
from fanfold.store.protocol import Batch, OutputRow, RunHead


def stored(value: object) -> tuple[str, bytes]:
    """Return a value as a blob: its hash and its content."""
    content = msgspec.json.encode(value)
    return blake2b(content, digest_size=16).hexdigest(), content


def head(run: str, root: str = "", parent: str | None = None, **changes: Any) -> RunHead:
    values: dict[str, Any] = {
        "run_id": run,
        "root_run_id": root or run,
        "parent_run_id": parent,
        "nesting_depth": 0 if parent is None else 1,
        "execution_path": "" if parent is None else "kids[0]",
        "recipe": "review",
        "version": 1,
        "status": "running",
        "created_at": 1_700_000_000_000,
    }
    return RunHead(**(values | changes))


class Tree:
    """The writer of one run tree; it knows the next number of every log."""

    def __init__(self, root: str, epoch: int = 0) -> None:
        self.root = root
        self.epoch = epoch
        self.place = 0
        self.seqs: dict[str, int] = {}
        self.envelopes: list[Envelope] = []
        """All batches so far, in order."""

    def event(self, data: Data | None = None, *, run: str = "", depth: int = 0) -> Envelope:
        """Return the next event of the log of the root or of a child run."""
        self.place += 1
        return self._envelope(run or self.root, self.place, data, run or self.root, depth)

    def session(
        self, session: str, data: Data | None = None, *, run: str = "", depth: int = 0, execution: int = 1
    ) -> Envelope:
        """Return the next entry of the log of a session."""
        path = "kids[0]/a" if run else "a"
        return self._envelope(session, 0, data, run or self.root, depth, path, execution)

    def _envelope(
        self,
        log: str,
        place: int,
        data: Data | None,
        run: str,
        depth: int,
        path: str = "",
        execution: int | None = None,
    ) -> Envelope:
        seq = self.seqs[log] = self.seqs.get(log, 0) + 1
        data = data or StepEvent(f"step{seq}", "completed", 1, 1, summary="did it")
        child = run != self.root
        envelope = Envelope(
            log=log,
            seq=seq,
            tree_seq=place,
            at=1_700_000_000_000 + len(self.envelopes),
            type=type_name(data),
            data=msgspec.to_builtins(data.data if isinstance(data, Evidence) else data),
            run_id=run,
            root_run_id=self.root,
            parent_run_id=self.root if child else None,
            depth=depth,
            path=path or ("kids[0]" if child else ""),
            epoch=self.epoch if execution is None else execution,
        )
        self.envelopes.append(envelope)
        return envelope

    def step(self, text: str = "") -> Batch:
        """Return the batch of the end of a step: two events, an output and a head."""
        number = self.place // 2 + 1
        blob = stored(text or f"output {number} of {self.root}")
        data = StepEvent(f"step{number}", "completed", 1, 1, output=blob[0])
        envelopes = [self.event(data), self.event(StepEvent(f"step{number + 1}", "running", 1, 1))]
        output = OutputRow(
            run_id=self.root,
            root_run_id=self.root,
            path=f"step{number}",
            role="critic",
            blob=blob[0],
            at=number,
        )
        return Batch(
            root=self.root,
            epoch=self.epoch,
            envelopes=envelopes,
            blobs=[blob],
            outputs=[output],
            heads=[head(self.root, agents=number)],
        )
