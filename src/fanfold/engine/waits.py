"""Decides when a host opens a wait, and which steps it defers. `kernel.waits` defines waits.

Rules
* A failure with a `subject` is not specific to the step: every step that needs the subject would fail. The
  step is interrupted, keeps the work that was paid for, and continues when the wait ends.
* If the end is known (`Failure.until`), the run waits until then. Otherwise it is an outage: the host retries
  after a growing back-off, for the time in `limits.outage`. Then the run pauses.
* A step whose role names other back ends continues with the first one that has no open wait.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
from msgspec.structs import replace

from fanfold.engine.config import Config
from fanfold.errors import WorldError
from fanfold.kernel.budget import Ledger
from fanfold.kernel.events import Failure, Usage, WaitOpened
from fanfold.kernel.state import Node, State
from fanfold.kernel.waits import MAX_DELAY_MS, next_attempt
from fanfold.steps.agent import AgentJob
from fanfold.steps.executor import StepExecutor
from fanfold.steps.order import Job, Order
from fanfold.steps.records import Memory, is_agent
from fanfold.store.database import insist

# -----------------------------------------------------------------------------------------------------------
# Daily caps on the spending of all agents of a user: `[budget]` in the user's own configuration
#
# The sums are rows of a small database in the user's folder, one per local calendar day. Every process of
# the user adds its payments there, for all projects: runs, chats, subagents.
#
# Rules
# * A payment is added in one statement, before it is recorded anywhere else. If the process dies in between,
#   the payment still counts.
# * Before each request the sum is read again, so a cap is exceeded by at most one request per running agent.
# * When a cap is used up, the step stops after its last recorded turn, and its run waits for midnight.
# * Only payments made while a cap is set are counted. Scripted agents cost nothing.
# * A model without a known price is refused if the only cap is in dollars (`budget.unpriced`).

FILE = "spending.sqlite"
EVERY_AGENT = "agents"
"""The subject of a wait that every agent step needs."""
_TABLE = "CREATE TABLE IF NOT EXISTS days (day TEXT PRIMARY KEY, tokens INTEGER, micro_usd INTEGER) STRICT"
_ADD = """
INSERT INTO days VALUES (?, ?, ?)
ON CONFLICT (day) DO UPDATE SET tokens = tokens + excluded.tokens, micro_usd = micro_usd + excluded.micro_usd
"""
BUSY_MS = 10_000


class DailyCaps:
    """The daily caps of the user, and the spending of today."""

    def __init__(
        self,
        home: Path,
        tokens: int | None,
        micro_usd: int | None,
        now: Callable[[], datetime] = lambda: datetime.now().astimezone(),
    ) -> None:
        self._home = home
        self._now = now
        self._ledger = Ledger(tokens, micro_usd)
        self._opened: apsw.Connection | None = None

    @classmethod
    def of(cls, config: Config) -> DailyCaps | None:
        """The caps that the user set, or None if there are none."""
        tokens, micro_usd = (config.values[key] for key in ("budget.tokens_per_day", "budget.usd_per_day"))
        assert not isinstance(tokens, str), "a whole number"
        assert not isinstance(micro_usd, str), "a whole number"
        return None if tokens is None and micro_usd is None else cls(config.home, tokens, micro_usd)

    def today(self) -> Ledger:
        """The caps, with the spending of all processes of the user today."""
        rows = self._do("SELECT tokens, micro_usd FROM days WHERE day = ?", (self._day(),))
        self._ledger.spent_tokens, self._ledger.spent_micro_usd = rows[0] if rows else (0, 0)
        return self._ledger

    def add(self, usage: Usage) -> None:
        """Add a payment to the sum of today."""
        self._do(_ADD, (self._day(), usage.tokens, usage.micro_usd or 0))

    def used_up(self) -> Failure:
        """The failure of a request that must wait until midnight."""
        ledger, now = self._ledger, self._now()
        midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
        caps: list[str] = []
        if ledger.max_tokens is not None:
            caps.append(f"{ledger.spent_tokens:,} of {ledger.max_tokens:,} tokens")
        if ledger.max_micro_usd is not None:
            caps.append(f"${ledger.spent_micro_usd / 1e6:.4f} of ${ledger.max_micro_usd / 1e6:.2f}")
        spent = " and ".join(caps)
        message = f"your cap for the day admits no further request: {spent} spent today, by all of your runs"
        hint = f"it continues at midnight; [budget] in {self._home}/config.toml raises the cap"
        until = round(midnight.timestamp() * 1_000)
        return Failure("budget", "budget.daily_cap", message, hint, True, subject=EVERY_AGENT, until=until)

    def unpriced(self) -> Failure:
        """The failure of a request whose model has no known price, under a cap in dollars."""
        message = "your cap in dollars for the day cannot be kept: the price of this model is not known"
        hint = f"set its price in [models.prices] of {self._home}/config.toml, or [budget] tokens_per_day too"
        return Failure("budget", "budget.unpriced", message, hint, retryable=False)

    def _day(self) -> str:
        return self._now().date().isoformat()

    def _do(self, statement: str, values: tuple[str | int, ...]) -> list[Any]:
        file = self._home / FILE
        try:
            if self._opened is None:
                self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
                opened = apsw.Connection(str(file))
                file.chmod(0o600)
                opened.set_busy_timeout(BUSY_MS)
                insist(lambda: opened.pragma("journal_mode", "WAL"))  # others may switch it at the same time
                opened.pragma("synchronous", "NORMAL")  # a killed process loses nothing
                opened.execute(_TABLE)
                self._opened = opened
            return self._opened.execute(statement, values).fetchall()
        except (apsw.Error, OSError) as error:
            message = f"what was spent today cannot be read or counted in {file}: {error}"
            hint = "make room for it or repair it, or remove the caps in [budget]"
            raise WorldError("budget.ledger", message, hint=hint) from None


def is_open_for(state: State, node: Node, subject: str) -> bool:
    """Whether an open wait keeps a step from starting. The probe of the wait may start."""
    wait = state.waits.get(subject)
    return wait is not None and wait.probe is not node


def defer(
    state: State, memory: Memory, node: Node, order: Order[Job], executor: StepExecutor
) -> tuple[str, Order[Job]]:
    """The subject of the wait that defers a step, and its order.

    An empty subject means that the step may start. The job then names another back end if necessary.
    """
    job = order.job
    if not is_agent(node) or not isinstance(job, AgentJob):
        return "", order
    if is_open_for(state, node, EVERY_AGENT):
        return EVERY_AGENT, order
    last = memory.subjects.get((node.run.id, node.path), "")
    named = executor.subjects(order)
    if last and last not in dict(named).values() and is_open_for(state, node, last):
        return last, order
    probes = node.subject in state.waits
    for backend, subject in named:
        if not is_open_for(state, node, subject):
            other = "" if backend == named[0][0] else backend
            if other or probes:
                order = replace(order, job=replace(job, backend=other, probe=probes))
            return "", order
    return named[0][1], order


def opening(state: State, node: Node, error: Failure, now: int) -> WaitOpened | Failure | None:
    """The consequence of a failure with a subject.

    It is a wait to open, the failure that pauses the run, or None if the wait is already open.
    """
    subject = error.subject
    wait = state.waits.get(subject)
    if (
        wait is not None
        and is_open_for(state, node, subject)
        and (wait.until > now or wait.probe is not None)
    ):
        return None
    tried = next_attempt(state, subject, now)
    if tried is None and not error.until:
        return error
    until = max(error.until, tried or now + MAX_DELAY_MS)  # the reset may have passed already
    reason = "daily_cap" if error.kind == "budget" else "limit" if error.until else "outage"
    count = 1 if wait is None else wait.count + 1
    return WaitOpened(
        subject=subject,
        reason=reason,
        until=until,
        count=count,
        probes=error.kind != "budget",
        error=error,
    )
