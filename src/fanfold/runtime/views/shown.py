"""Events as surfaces print them: with everything that the log leaves out because it follows from the rest.

A log keeps no text twice and no field that its place tells, since that is what a step costs on the disk.
Whoever reads events to show them, or to hand them to a program, reads them through here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import structs

from fanfold.agents.backend import SUMMARY_CHARS
from fanfold.errors import NotFoundError
from fanfold.kernel.events import Envelope, SubagentEvent
from fanfold.runtime.records.subagents import completed
from fanfold.store.protocol import Store
from fanfold.text.excerpts import shorten
from fanfold.text.json_value import as_text


def shown(store: Store, envelopes: Iterable[Envelope]) -> Iterator[Envelope]:
    """The same events with plain JSON as their data, and every field of a `subagent_event`."""
    for envelope in envelopes:
        data = envelope.data
        if envelope.type == "subagent_event" and envelope.tree_seq:
            event = data if isinstance(data, SubagentEvent) else msgspec.convert(data, SubagentEvent)
            event = completed(event, envelope.run_id, envelope.depth)
            if event.output is not None and not event.summary:
                event = structs.replace(event, summary=_summary(store, event.output))
            data = structs.asdict(event)
        elif isinstance(data, dict):  # as a store gives it
            yield envelope
            continue
        yield structs.replace(envelope, data=msgspec.to_builtins(data))


def _summary(store: Store, output: str) -> str:
    """What is told of an output to those who did not ask for it."""
    try:
        return shorten(as_text(msgspec.json.decode(store.blob(output))), SUMMARY_CHARS)
    except NotFoundError:
        return ""
