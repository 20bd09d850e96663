"""One tree of budgets: reserve before admission, settle on result.

Rules
* A reservation must fit the rest of its ledger and of every ledger above it: the budget of a child is
  part of its parent's budget.
* Money is in whole micro-dollars, so that sums are exact on every machine.
* Actual spending counts even if it exceeds the reservation. The next reservation then does not fit, and the
  run pauses. Folding a log again spends nothing: it repeats the same numbers.
* Unknown is not zero. After spending at an unknown price, a ledger limited only in money admits nothing more.
  A ledger that also limits tokens counts the known prices, and its tokens bound the rest.
* A guess is an estimate for a role of which no attempt has ended in this run. While a ledger has no
  reservation, the guess is cut to the rest of that ledger: a guess must not stop a run that has money.
  While a ledger has a reservation, the guess must fit uncut. A step that waits then gets an estimate from
  the actual spending of the first attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fanfold.kernel.events import Estimate, Usage

Amount = tuple[int, int]
"""(tokens, micro-dollars)"""

NOTHING: Amount = (0, 0)


class Ledger:
    """Limits, spending and the reservations of running attempts. None: no limit."""

    __slots__ = ("max_micro_usd", "max_tokens", "reserved_micro_usd", "reserved_tokens", "spent_micro_usd",
                 "spent_tokens", "unpriced")  # fmt: skip

    def __init__(self, max_tokens: int | None, max_micro_usd: int | None) -> None:
        self.max_tokens = max_tokens
        self.max_micro_usd = max_micro_usd
        self.spent_tokens = 0
        self.spent_micro_usd = 0
        self.reserved_tokens = 0
        self.reserved_micro_usd = 0
        self.unpriced = False
        """Whether some spending has an unknown price."""

    @property
    def limited(self) -> bool:
        return self.max_tokens is not None or self.max_micro_usd is not None

    @property
    def in_flight(self) -> bool:
        return self.reserved_tokens > 0 or self.reserved_micro_usd > 0

    @property
    def unknowable(self) -> bool:
        """Whether money is the only limit and the amount spent is unknown."""
        return self.unpriced and self.max_micro_usd is not None and self.max_tokens is None

    def left(self) -> tuple[int | None, int | None]:
        """Return the tokens and micro-dollars that can still be reserved; never below zero."""
        tokens = micro_usd = None
        if self.max_tokens is not None:
            tokens = max(0, self.max_tokens - self.spent_tokens - self.reserved_tokens)
        if self.max_micro_usd is not None:
            micro_usd = max(0, self.max_micro_usd - self.spent_micro_usd - self.reserved_micro_usd)
            if self.unknowable:
                micro_usd = 0
        return tokens, micro_usd

    def fits(self, amount: Amount) -> bool:
        tokens, micro_usd = self.left()
        return (tokens is None or amount[0] <= tokens) and (micro_usd is None or amount[1] <= micro_usd)

    def reserve(self, amount: Amount) -> None:
        self.reserved_tokens += amount[0]
        self.reserved_micro_usd += amount[1]

    def release(self, amount: Amount) -> None:
        self.reserved_tokens -= amount[0]
        self.reserved_micro_usd -= amount[1]

    def spend(self, usage: Usage) -> None:
        self.spent_tokens += usage.tokens
        self.spent_micro_usd += usage.micro_usd or 0
        if usage.micro_usd is None and usage.tokens:
            self.unpriced = True


def estimate(
    role: str,
    estimates: Mapping[str, Estimate],
    history: Mapping[str, list[int]],
    ledgers: Sequence[Ledger],
) -> Amount:
    """Estimate the spending of the next attempt of a role; the reservation must fit all `ledgers`.

    With history: the mean spending of this role in this run tree so far, rounded up. Without history: the
    estimate that the run was created with. The result is at least one token, and at least one micro-dollar
    if money is limited. So an exhausted budget never admits an attempt.

    >>> estimate("worker", {}, {"worker": [2, 30, 0]}, [Ledger(100, None)])
    (15, 0)
    >>> estimate("worker", {}, {}, [Ledger(100, None)])
    (100, 0)
    """
    least_usd = int(any(ledger.max_micro_usd is not None for ledger in ledgers))
    settled = history.get(role)
    if settled and settled[0]:
        count, tokens, micro_usd = settled
        return max(1, -(-tokens // count)), max(least_usd, -(-micro_usd // count))
    guess = estimates.get(role) or estimates.get("*") or Estimate()
    tokens, micro_usd = guess.tokens, guess.micro_usd
    for ledger in ledgers:
        if not ledger.in_flight:
            left = ledger.left()
            tokens = tokens if left[0] is None else min(tokens, left[0])
            micro_usd = micro_usd if left[1] is None else min(micro_usd, left[1])
    return max(1, tokens), max(least_usd, micro_usd)


def settle_history(history: dict[str, list[int]], role: str, usage: Usage) -> None:
    """Add the spending of one attempt to the history of its role."""
    row = history.setdefault(role, [0, 0, 0])
    row[0] += 1
    row[1] += usage.tokens
    row[2] += usage.micro_usd or 0
