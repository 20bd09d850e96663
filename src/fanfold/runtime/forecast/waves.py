"""Waves: which steps would start together if every step took one tick.

This follows the rules of the scheduler (plan order, slots, caps of scopes, conflicts, no starvation) on
an expansion instead of a live run. Because every step ends with its tick, "running" is always just the
wave being built.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import product

from fanfold.kernel.paths import overlaps, witness
from fanfold.kernel.sets.globs import read_glob
from fanfold.runtime.forecast.expansion import Expansion, Instance

MAX_LISTED = 1_000


class Claim:
    """What decides conflicts. Steps that claim the same share one object, so questions are asked once."""

    __slots__ = ("read_set", "shared", "write_set")

    def __init__(self, write_set: tuple[str, ...], read_set: tuple[str, ...], shared: bool) -> None:
        self.write_set = write_set
        self.read_set = read_set
        self.shared = shared

    def against(self, other: Claim) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """The two sets that collide, or None when both may run at once."""
        if self.write_set and other.write_set and overlaps(self.write_set, other.write_set):
            return self.write_set, other.write_set
        if self.write_set and self.shared and overlaps(self.write_set, other.read_set):
            return self.write_set, other.read_set
        if other.write_set and other.shared and overlaps(other.write_set, self.read_set):
            return other.write_set, self.read_set
        return None


def claims_of(nodes: Sequence[Instance]) -> list[Claim | None]:
    """The claims of steps that hold a slot; approvals and joints touch nothing."""
    known: dict[tuple[object, ...], Claim] = {}
    claims: list[Claim | None] = []
    for node in nodes:
        if node.step is None or not node.step.traits.slot:
            claims.append(None)
            continue
        facts = (node.write_set, node.read_set, node.step.workspace_mode == "shared")
        claims.append(known.setdefault(facts, Claim(*facts)))
    return claims


class _Walk:
    """The state between two ticks."""

    def __init__(self, expansion: Expansion, slots: int) -> None:
        self.nodes = expansion.nodes
        self.caps = expansion.caps
        self.slots = slots
        self.after: list[list[int]] = [[] for _ in self.nodes]
        self.waiting = [len(node.needs) for node in self.nodes]
        for i, node in enumerate(self.nodes):
            for need in node.needs:
                self.after[need].append(i)
        self.claims = claims_of(self.nodes)
        self.ready_since: dict[int, int] = {}
        self.parked: set[int] = set()
        """Ready steps that were passed over because of a conflict; they reserve what they claim."""

    def end(self, done: Sequence[int], tick: int) -> None:
        """Steps that ended make others ready; joints pass it on at once."""
        stack = list(done)
        while stack:
            for i in self.after[stack.pop()]:
                self.waiting[i] -= 1
                if self.waiting[i] == 0:
                    if self.nodes[i].step is None:
                        stack.append(i)
                    else:
                        self.ready_since[i] = tick

    def choose(self) -> list[int]:
        """One walk over the ready steps in plan order."""
        wave: list[int] = []
        room = _Room(self._reservations())
        live = [0] * len(self.caps)
        used = 0
        for i in sorted(self.ready_since):
            claim = self.claims[i]
            if claim is not None:
                caps = self.nodes[i].caps
                if used == self.slots or any(live[cap] >= self.caps[cap] for cap in caps):
                    continue
                if claim in room.full or not room.fits(claim, self.ready_since[i]):
                    self.parked.add(i)
                    continue
                used += 1
                for cap in caps:
                    live[cap] += 1
            wave.append(i)
        for i in wave:
            del self.ready_since[i]
        self.parked.difference_update(wave)
        return wave

    def _reservations(self) -> dict[Claim, int]:
        """What parked steps claim → since when the oldest of them is ready."""
        oldest: dict[Claim, int] = {}
        for i in self.parked:
            claim, since = self.claims[i], self.ready_since[i]
            if claim is not None and since < oldest.get(claim, since + 1):
                oldest[claim] = since
        return oldest


class _Room:
    """The claims of one wave. Answers are kept, because thousands of steps may claim the same."""

    def __init__(self, reserved: dict[Claim, int]) -> None:
        self._reserved = reserved
        self._held: dict[Claim, None] = {}
        self.full: set[Claim] = set()
        """Claims for which there is no room any more in this wave."""
        self._too_late: set[tuple[Claim, int]] = set()

    def fits(self, claim: Claim, since: int) -> bool:
        """Take the claim into the wave, unless it collides with it or with an older step that waits."""
        if claim in self.full or (claim, since) in self._too_late:
            return False
        if any(claim.against(other) for other in self._held):
            self.full.add(claim)
            return False
        if any(older < since and claim.against(other) for other, older in self._reserved.items()):
            self._too_late.add((claim, since))
            return False
        self._held[claim] = None
        return True


def find_waves(expansion: Expansion, slots: int) -> list[list[int]]:
    """Node indices per wave."""
    walk = _Walk(expansion, slots)
    walk.end([i for i, node in enumerate(walk.nodes) if not node.needs], 0)
    waves: list[list[int]] = []
    while walk.ready_since:
        wave = walk.choose()
        assert wave, "with nothing running, the first ready step always fits"
        waves.append(wave)
        walk.end(wave, len(waves))
    return waves


def critical_path(expansion: Expansion) -> list[int]:
    """The longest chain of steps that wait for one another; ties go to the first declared."""
    nodes = expansion.nodes
    length = [0] * len(nodes)
    behind = [-1] * len(nodes)
    for i in _in_order(nodes):
        for need in nodes[i].needs:
            if length[need] > length[i] or (behind[i] < 0 and length[need] == length[i]):
                length[i], behind[i] = length[need], need
        length[i] += nodes[i].step is not None
    at = max(range(len(nodes)), key=lambda i: (length[i], -i), default=-1)
    chain: list[int] = []
    while at >= 0:
        if nodes[at].step is not None:
            chain.append(at)
        at = behind[at]
    return chain[::-1]


def find_conflicts(expansion: Expansion) -> tuple[list[tuple[str, str, str]], int]:
    """Pairs that no edge orders and that still may not run at once, with a path both claim; and how many.

    Whole sets of steps are compared at a time (bit sets), so thousands of equal writers stay cheap.
    """
    nodes = expansion.nodes
    claims = claims_of(nodes)
    members: dict[Claim, int] = {}
    for i, claim in enumerate(claims):
        if claim is not None:
            members[claim] = members.get(claim, 0) | 1 << i
    rivals = dict.fromkeys(members, 0)
    for one, other in _rival_claims(list(members)):
        rivals[one] |= members[other]
        rivals[other] |= members[one]
    if not any(rivals.values()):
        return [], 0
    ordered = _related(nodes)
    listed: list[tuple[str, str, str]] = []
    total = 0
    for i, claim in enumerate(claims):
        if claim is None or not rivals[claim]:
            continue
        later = (rivals[claim] & ~ordered[i]) >> (i + 1)
        total += later.bit_count()
        while later and len(listed) < MAX_LISTED:
            j = i + (later & -later).bit_length()
            later &= later - 1
            listed.append((nodes[i].path, nodes[j].path, _on(claim, claims[j])))
    return listed, total


def _rival_claims(claims: list[Claim]) -> Iterator[tuple[Claim, Claim]]:
    writes, reads = _Heads(), _Heads()
    for i, claim in enumerate(claims):
        writes.add(i, claim.write_set)
        reads.add(i, claim.read_set)
    for claim in claims:
        if claim.write_set:
            near = writes.near(claim.write_set)  # equal claims are rivals of each other too
            if claim.shared:
                near |= reads.near(claim.write_set)
            for j in sorted(near):
                if claim.against(claims[j]):
                    yield claim, claims[j]


class _Heads:
    """Sets by their literal first folders: those that differ there cannot meet, and most differ."""

    def __init__(self) -> None:
        self._at: dict[tuple[str, ...], list[int]] = {}
        self._below: dict[tuple[str, ...], list[int]] = {}

    def add(self, key: int, globs: Sequence[str]) -> None:
        for glob in globs:
            head = read_glob(glob).head
            self._at.setdefault(head, []).append(key)
            for depth in range(len(head) + 1):
                self._below.setdefault(head[:depth], []).append(key)

    def near(self, globs: Sequence[str]) -> set[int]:
        found: set[int] = set()
        for glob in globs:
            head = read_glob(glob).head
            found.update(self._below.get(head, ()))
            for depth in range(len(head)):
                found.update(self._at.get(head[:depth], ()))
        return found


def _on(claim: Claim, other: Claim | None) -> str:
    sets = claim.against(other) if other is not None else None
    pairs = product(*sets) if sets is not None else ()
    return next((found for a, b in pairs if (found := witness(a, b)) is not None), "")


def _related(nodes: Sequence[Instance]) -> list[int]:
    """For each node the bit set of all nodes before or after it by edges."""
    before = [0] * len(nodes)
    after = [0] * len(nodes)
    order = list(_in_order(nodes))
    for i in order:
        for need in nodes[i].needs:
            before[i] |= before[need] | 1 << need
    for i in reversed(order):
        for need in nodes[i].needs:
            after[need] |= after[i] | 1 << i
    return [a | b for a, b in zip(before, after, strict=True)]


def _in_order(nodes: Sequence[Instance]) -> Iterator[int]:
    """Every node after what it needs, otherwise in plan order."""
    waiting = [len(node.needs) for node in nodes]
    after: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        for need in node.needs:
            after[need].append(i)
    ready = [i for i, left in enumerate(waiting) if not left]
    heapify(ready)
    while ready:
        i = heappop(ready)
        yield i
        for j in after[i]:
            waiting[j] -= 1
            if not waiting[j]:
                heappush(ready, j)
