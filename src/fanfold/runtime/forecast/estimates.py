"""What one attempt of a role will probably spend: what budgets reserve before a run knows better.

Rules
* What the same role spent with the same models lately, in runs of this project: the mean of its last
  sessions. Only the newest runs and the beginning of their logs are read: a large store costs no more.
* Without that, `TOKENS` for each loop of a model that the role has, three quarters of them read and one
  quarter written.
* Money is that many tokens at the list price of the dearest model the role may use.
* The numbers go into the first event of a run. Once a role has spent something in the run itself, the kernel
  goes by that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

import msgspec

from fanfold.agents.entries import Compaction, Response
from fanfold.agents.models.prices import list_price
from fanfold.kernel.events import NOTHING_SPENT, Estimate, SubagentEvent, Usage
from fanfold.runtime.config import Config
from fanfold.runtime.forecast.model_uses import ModelUse
from fanfold.runtime.model_choice import Choice
from fanfold.runtime.records.ids import session_id
from fanfold.sessions.log import read_entries
from fanfold.store.protocol import Store

TOKENS = 4_000
INPUT_TOKENS = 3_000
RUNS = 20
EVENTS = 250
"""Of each run. With `RUNS`, 5,000 in all: some milliseconds."""
SESSIONS = 10
"""Of each role: enough for a mean, and older ones say little."""


class Prices:
    """List prices of the models that were chosen, by the names they were asked for."""

    def __init__(self, chosen: Mapping[str | None, Choice], config: Config) -> None:
        self._chosen = chosen
        self._access = config.access

    def of(self, model: str | None, input_tokens: int, output_tokens: int) -> int | None:
        """Micro-dollars; None where nobody knows: models on this machine, servers of somebody else's."""
        choice = self._chosen[model]
        prices = None if choice.provider is None else self._access.prices(choice.provider)
        return None if prices is None else list_price(choice.name, prices, input_tokens, output_tokens)

    def unpriced(self, model: str | None) -> str | None:
        """The model that is meant, if its price is unknown and it may be used at all."""
        if model not in self._chosen or self.of(model, 1, 1) is not None:
            return None
        return self._chosen[model].model

    def recorded(self, model: str | None) -> str:
        """The model as the responses in a session's log name it."""
        choice = self._chosen[model]
        if choice.provider is None:
            return f"openai-chat:{Path(choice.name).stem}"
        return choice.model

    def knows(self, model: str | None) -> bool:
        return model in self._chosen


def estimates_of(uses: Iterable[ModelUse], prices: Prices, store: Store | None = None) -> dict[str, Estimate]:
    """By role: what one attempt will probably spend; without a store, what is usual for any role."""
    by_role: dict[str, list[ModelUse]] = {}
    for use in uses:
        if prices.knows(use.model):
            by_role.setdefault(use.role, []).append(use)
    models = {role: {prices.recorded(use.model) for use in given} for role, given in by_role.items()}
    history = {} if store is None else _history(store, models)
    return {role: _estimate(given, prices, history.get(role, [])) for role, given in by_role.items()}


def _estimate(uses: list[ModelUse], prices: Prices, history: list[Usage]) -> Estimate:
    if not history:
        loops = max(use.loops for use in uses)
        tokens, read = loops * TOKENS, loops * INPUT_TOKENS
        return Estimate(tokens=tokens, micro_usd=_dearest(uses, prices, read, tokens - read))
    total = sum(history, NOTHING_SPENT)
    count = len(history)
    read, written = -(-total.input_tokens // count), -(-total.output_tokens // count)
    if total.micro_usd is None:
        return Estimate(tokens=read + written, micro_usd=_dearest(uses, prices, read, written))
    return Estimate(tokens=read + written, micro_usd=-(-total.micro_usd // count))


def _dearest(uses: list[ModelUse], prices: Prices, input_tokens: int, output_tokens: int) -> int:
    return max(prices.of(use.model, input_tokens, output_tokens) or 0 for use in uses)


def _history(store: Store, models: Mapping[str, set[str]]) -> dict[str, list[Usage]]:
    """What the last completed sessions of each role spent, those with other models left out."""
    found: dict[str, list[Usage]] = {}
    looked: dict[str, int] = {}
    for head in store.heads(limit=RUNS):
        for envelope in islice(store.tree(head.run_id), EVENTS):
            if envelope.type != "subagent_event" or envelope.data["status"] != "finished":
                continue
            ended = msgspec.convert(envelope.data, SubagentEvent)
            role, usage = ended.role, ended.usage
            if role not in models or usage is None or not usage.tokens or looked.get(role, 0) == SESSIONS:
                continue
            looked[role] = looked.get(role, 0) + 1
            session = session_id(envelope.run_id, ended.step, ended.attempt)
            if _models_in(store, session) <= models[role]:
                found.setdefault(role, []).append(usage)
    return found


def _models_in(store: Store, session: str) -> set[str]:
    """The models that answered in a session; scripted ones have no name, and match nothing."""
    entries = read_entries(store, session)
    return {entry.model for entry in entries if isinstance(entry, Response | Compaction)} or {""}
