"""One budget tree: reserve before admission, settle on result.

Rules
* A reservation must fit what is left of its ledger and of every ledger above it: a child's allowance
  is part of its parent's.
* Money is whole micro-dollars, so that sums are exact on every machine.
* What was really spent counts even when it is more than was reserved; the next reservation then does
  not fit and the run pauses. Folding a log again spends nothing: it repeats the same numbers.
* Unknown is not zero: after spending at an unknown price, a limit in money alone admits nothing more.
  Beside a limit in tokens it counts what is known, and the tokens bound the rest.
* A guess (no attempt of the role has ended in this run) is cut to what is left while nothing is reserved:
  a guess must not stop a run that has money. While something is, it has to fit as it is: whoever waits
  then learns what the first one really took.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fanfold.kernel.events import Estimate, Usage

Amount = tuple[int, int]
"""(tokens, micro-dollars)"""

NOTHING: Amount = (0, 0)


class Ledger:
    """Limits, what was spent, and what running attempts may still spend. None: no limit."""

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
        """Something was spent whose price nobody knows."""

    @property
    def limited(self) -> bool:
        return self.max_tokens is not None or self.max_micro_usd is not None

    @property
    def in_flight(self) -> bool:
        return self.reserved_tokens > 0 or self.reserved_micro_usd > 0

    @property
    def unknowable(self) -> bool:
        """Money is the only limit, and nobody knows how much was spent."""
        return self.unpriced and self.max_micro_usd is not None and self.max_tokens is None

    def left(self) -> tuple[int | None, int | None]:
        """What can still be reserved; never below zero."""
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
    """What the next attempt of a role will probably spend; `ledgers` are those it must fit.

    With history: the mean of what this role spent in this run tree so far, rounded up. Without: the
    estimate that the run was created with. Always at least one token, and one micro-dollar where dollars
    are limited, so that an exhausted budget never admits anything.

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
    """Remember what an attempt of a role spent."""
    row = history.setdefault(role, [0, 0, 0])
    row[0] += 1
    row[1] += usage.tokens
    row[2] += usage.micro_usd or 0
