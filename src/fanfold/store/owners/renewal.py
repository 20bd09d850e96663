"""Keeping leases alive, and knowing at any moment whether one is: for every store that has leases.

Rules
* A thread renews each lease after a third of its time, whatever the rest of the process is busy with.
* A lease is known to be live for two thirds of its time: the last third is for what lies between asking and
  beginning. After that renewal is overdue (the process was stopped, the machine slept, the disk hangs), and
  whoever wants to begin an effect renews first or learns that another process has taken over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from fanfold.store.owners.leases import boot_clock_ms
from fanfold.store.protocol import Lease, LeaseLost, StoreFault


class Renewal:
    """`renew` extends leases in the store, in one go, and answers which of them are lost; any thread may call
    it. `on_loss` hears of a lease that was found lost while nobody asked for it.
    """

    def __init__(
        self,
        renew: Callable[[Sequence[Lease]], Mapping[Lease, LeaseLost]],
        on_loss: Callable[[Lease], None],
        expiry_s: float,
    ) -> None:
        self._renew = renew
        self._on_loss = on_loss
        self._live_ms = int(expiry_s * 1_000 * 2 / 3)
        self._period_s = expiry_s / 3
        self._live_until: dict[Lease, int] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, lease: Lease, taken_at: int) -> None:
        """Renew from now on a lease that was taken at a time of the boot clock."""
        self._live_until[lease] = taken_at + self._live_ms
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fanfold leases", daemon=True)
            self._thread.start()

    def drop(self, lease: Lease) -> None:
        """It is given back, or was lost."""
        self._live_until.pop(lease, None)

    def confirm(self, lease: Lease) -> None:
        """Return when the lease is live; raises `LeaseLost` when it is not."""
        if boot_clock_ms() < self._live_until.get(lease, 0):
            return
        for loss in self._extend([lease]).values():
            raise loss

    def close(self) -> None:
        """Renew nothing any more: leases that were not given back run out."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        self._live_until.clear()

    def _extend(self, leases: Sequence[Lease]) -> Mapping[Lease, LeaseLost]:
        now = boot_clock_ms()
        lost = self._renew(leases)
        for lease in leases:
            if lease in lost:
                self.drop(lease)
            elif lease in self._live_until:  # else it was given back meanwhile
                self._live_until[lease] = now + self._live_ms
        return lost

    def _run(self) -> None:
        while not self._closed.wait(self._period_s):
            try:
                lost = self._extend(list(self._live_until))
            except StoreFault:
                continue  # they become overdue, and who asks for one tries again and learns why
            for lease in lost:
                self._on_loss(lease)
