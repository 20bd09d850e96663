"""The budget of a session, checked before each request of its agent.

Rules
* A request starts when every ledger of its step has room for its input and a short reply. Spent amounts and
  the estimates of requests in flight count as used. Ledgers are those of the run tree and of the recipes
  between its root and the step.
* The rest of the budget limits the reply. So a budget is exceeded by at most one request per running agent.
* If only requests in flight use the rest, the session waits until one of them ends.
* Otherwise the session stops with class `budget`. All paid work is recorded. The session continues from there
  when the run is resumed with a higher limit.
* Tokens of a budget are input that was not cached, plus output (`Usage.tokens`). Money counts cached input at
  its own price.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from fanfold.agents.providers import Rate
from fanfold.kernel.budget import Ledger
from fanfold.kernel.events import Failure, Usage

if TYPE_CHECKING:
    import asyncio

MIN_OUTPUT_TOKENS = 16
"""Some providers refuse a smaller limit."""
USUAL_OUTPUT_TOKENS = 500
"""The expected output of a request before the session has its own average."""
UNBOUNDED_OUTPUT = 1 << 40


class OutOfBudget(Exception):
    """The next request does not fit the budget; `failure` has the limit and how to continue."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class RequestNeed(Struct, frozen=True, kw_only=True):
    """The expected input and output of the next request."""

    uncached_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = USUAL_OUTPUT_TOKENS
    rate: Rate | None = None
    """None: the price of the model is unknown."""
    priced: bool = True
    """Whether its cost will be known."""

    def micro_usd(self, output_tokens: int = 0) -> float:
        if self.rate is None:
            return 0.0
        read = self.uncached_tokens * self.rate.input + self.cached_tokens * self.rate.cached
        return read + output_tokens * self.rate.output


NO_NEED = RequestNeed(output_tokens=0)


class RequestsInFlight:
    """The expected cost of all requests of one run tree without a response, by ledger."""

    def __init__(self) -> None:
        self._reserved: dict[int, list[float]] = {}
        self._waiting: list[asyncio.Future[None]] = []

    def reserved(self, ledger: Ledger) -> tuple[float, float]:
        tokens, micro_usd = self._reserved.get(id(ledger), (0, 0))
        return tokens, micro_usd

    def add(self, ledgers: Sequence[Ledger], tokens: float, micro_usd: float) -> None:
        for ledger in ledgers:
            row = self._reserved.setdefault(id(ledger), [0, 0])
            row[0] += tokens
            row[1] += micro_usd
        if tokens < 0 or micro_usd < 0:
            waiting, self._waiting = self._waiting, []
            for turn in waiting:
                if not turn.done():
                    turn.set_result(None)

    async def one_ends(self) -> None:
        """Return when a request in flight has ended."""
        import asyncio

        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        finally:
            with suppress(ValueError):
                self._waiting.remove(turn)


class OpenRequest:
    """A reservation for one request in flight; close it when the request ended."""

    __slots__ = ("_account", "_micro_usd", "_tokens", "max_output_tokens")

    def __init__(self, account: Account, max_output_tokens: int | None) -> None:
        self._account = account
        self._tokens = self._micro_usd = 0.0
        self.max_output_tokens = max_output_tokens
        """The maximum output of the reply; None: no budget limits it."""

    def reserve(self, tokens: float, micro_usd: float) -> None:
        """Replace the amounts that are reserved."""
        account = self._account
        account.requests.add(account.ledgers, tokens - self._tokens, micro_usd - self._micro_usd)
        self._tokens, self._micro_usd = tokens, micro_usd

    @property
    def is_used_up(self) -> bool:
        """Whether nothing is left of a budget, including this reservation."""
        return self._account.is_used_up

    def close(self) -> None:
        if self._tokens or self._micro_usd:
            self.reserve(0.0, 0.0)


class Caps(Protocol):
    """Limits beyond those of a run: the user's limit per day."""

    def today(self) -> Ledger: ...
    def add(self, usage: Usage) -> None: ...
    def used_up(self) -> Failure: ...
    def unpriced(self) -> Failure: ...


class Account:
    """The limits and the spending of one attempt of a step; `pay` records a payment in the run's log."""

    def __init__(
        self,
        ledgers: Sequence[Ledger] = (),
        requests: RequestsInFlight | None = None,
        pay: Callable[[Usage, str], None] = lambda _usage, _model: None,
        caps: Caps | None = None,
    ) -> None:
        self.ledgers = ledgers if caps is None else (*ledgers, caps.today())
        self.requests = requests or RequestsInFlight()
        self._pay = pay
        self._caps = caps

    @property
    def is_limited(self) -> bool:
        return any(ledger.limited for ledger in self.ledgers)

    def paid(self, usage: Usage, model: str = "") -> None:
        """Count and record the cost of a request."""
        if self._caps is not None:
            self._caps.add(usage)
        self._pay(usage, model)

    def micro_usd_left(self) -> int | None:
        """Return the rest of the smallest budget in micro-dollars; None without one."""
        limited = [
            ledger.max_micro_usd - ledger.spent_micro_usd - self.requests.reserved(ledger)[1]
            for ledger in self.ledgers
            if ledger.max_micro_usd is not None and not ledger.unpriced
        ]
        return max(0, int(min(limited))) if limited else None

    async def open_request(self, need: RequestNeed) -> OpenRequest:
        """Wait until a request fits the budget and reserve it; raise `OutOfBudget` if it never will."""
        if not self.is_limited:
            return OpenRequest(self, None)
        while True:
            if self._caps is not None:
                cap = self._caps.today()
                if cap.max_micro_usd is not None and cap.max_tokens is None and not need.priced:
                    raise OutOfBudget(self._caps.unpriced())
            room, _ = self._room(need, in_flight=True)
            if room >= MIN_OUTPUT_TOKENS:
                break
            alone, ledger = self._room(need, in_flight=False)
            if alone < MIN_OUTPUT_TOKENS:
                capped = self._caps is not None and ledger is self.ledgers[-1]
                raise OutOfBudget(self._caps.used_up() if capped and self._caps else _used_up(ledger, need))
            await self.requests.one_ends()
        opened = OpenRequest(self, None if room >= UNBOUNDED_OUTPUT else int(room))
        expected = min(need.output_tokens, int(room))
        opened.reserve(need.uncached_tokens + expected, need.micro_usd(expected))
        return opened

    @property
    def is_used_up(self) -> bool:
        """Whether nothing is left of a budget."""
        if self._caps is not None:
            self._caps.today()
        return self._room(NO_NEED, in_flight=True)[0] <= 0

    def cap_reached(self) -> Failure | None:
        """Return why the user's limit for the day is reached; None if it is not."""
        if self._caps is None:
            return None
        return self._caps.used_up() if 0 in self._caps.today().left() else None

    def _room(self, need: RequestNeed, *, in_flight: bool) -> tuple[float, Ledger | None]:
        """Return how many tokens a reply can have, and the ledger that limits it."""
        least: tuple[float, Ledger | None] = (UNBOUNDED_OUTPUT, None)
        for ledger in self.ledgers:
            tokens, micro_usd = self.requests.reserved(ledger) if in_flight else (0, 0)
            room: float = UNBOUNDED_OUTPUT
            if ledger.max_tokens is not None:
                room = ledger.max_tokens - ledger.spent_tokens - tokens - need.uncached_tokens
            if ledger.max_micro_usd is not None:
                money = ledger.max_micro_usd - ledger.spent_micro_usd - micro_usd - need.micro_usd()
                if ledger.unknowable:
                    room = 0
                elif need.rate is not None and need.rate.output:
                    room = min(room, money / need.rate.output)
                elif money <= 0:
                    room = 0
            if room < least[0]:
                least = room, ledger
        return least


def _used_up(ledger: Ledger | None, need: RequestNeed) -> Failure:
    assert ledger is not None, "a ledger without a limit has room"
    spent, of, wanted = f"{ledger.spent_tokens:,}", f"{ledger.max_tokens or 0:,} tokens", need.uncached_tokens
    next_one = f"{wanted:,} tokens" if wanted else ""
    if ledger.max_tokens is None or ledger.max_tokens - ledger.spent_tokens - wanted >= MIN_OUTPUT_TOKENS:
        spent, of = f"${ledger.spent_micro_usd / 1e6:.4f}", f"${(ledger.max_micro_usd or 0) / 1e6:.4f}"
        next_one = f"${need.micro_usd() / 1e6:.4f}" if need.micro_usd() >= 100 else ""
    message = f"the budget is used up: {spent} of {of} spent"
    if ledger.unknowable:
        message = "the budget in dollars cannot be enforced: the price of the spent tokens is unknown"
    elif next_one:
        message += f", and the next request needs about {next_one} for its input"
    hint = "resume the run with a higher budget: it continues after the last recorded turn"
    return Failure("budget", "session.budget", message, hint, retryable=False)


UNLIMITED = Account()
"""For sessions outside of any run."""
