"""Waves: which steps would start together if every step took one tick.

This follows the rules of the scheduler (plan order, slots, caps of scopes, conflicts, no starvation) on
an expansion instead of a live run. Because every step ends with its tick, "running" is always just the
wave being built.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import product
from typing import NamedTuple

from fanfold.kernel.globs import read_glob
from fanfold.kernel.paths import overlaps, witness
from fanfold.kernel.plan import ApprovalAction
from fanfold.runtime.expansion import Expansion, Instance

MAX_LISTED = 1_000


class Claim(NamedTuple):
    """What decides conflicts. Steps with equal claims are interchangeable, so questions are asked once."""

    write_set: tuple[str, ...]
    read_set: tuple[str, ...]
    shared: bool

    def against(self, other: Claim) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """The two sets that collide, or None when both may run at once."""
        if self.write_set and other.write_set and overlaps(self.write_set, other.write_set):
            return self.write_set, other.write_set
        if self.write_set and self.shared and overlaps(self.write_set, other.read_set):
            return self.write_set, other.read_set
        if other.write_set and other.shared and overlaps(other.write_set, self.read_set):
            return other.write_set, self.read_set
        return None


def claim_of(node: Instance) -> Claim | None:
    """The claim of a step that holds a slot; approvals and joints touch nothing."""
    if node.step is None or isinstance(node.step.action, ApprovalAction):
        return None
    return Claim(node.write_set, node.read_set, node.step.workspace_mode == "shared")


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
        self.claims = [claim_of(node) for node in self.nodes]
        self.ready_since: dict[int, int] = {}
        self.parked: dict[Claim, int] = {}
        """Claims passed over because of a conflict → the earliest tick one of them became ready."""

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
        held: dict[Claim, None] = {}
        blocked: set[Claim] = set()
        live = [0] * len(self.caps)
        used = 0
        for i in sorted(self.ready_since):
            claim = self.claims[i]
            if claim is not None:
                caps = self.nodes[i].caps
                if used == self.slots or any(live[cap] >= self.caps[cap] for cap in caps):
                    continue
                if self._conflicts(i, claim, held, blocked):
                    continue
                held[claim] = None
                used += 1
                for cap in caps:
                    live[cap] += 1
            wave.append(i)
        for i in wave:
            del self.ready_since[i]
        self._forget_started(wave)
        return wave

    def _conflicts(self, i: int, claim: Claim, held: dict[Claim, None], blocked: set[Claim]) -> bool:
        if claim in blocked:
            return True
        since = self.ready_since[i]
        if any(claim.against(other) for other in held) or any(
            earlier < since and other != claim and other not in held and claim.against(other)
            for other, earlier in self.parked.items()
        ):
            blocked.add(claim)
            self.parked[claim] = min(since, self.parked.get(claim, since))
            return True
        return False

    def _forget_started(self, wave: list[int]) -> None:
        started = {self.claims[i] for i in wave}
        left = {self.claims[i] for i in self.ready_since}
        for claim in started - left:
            if claim is not None:
                self.parked.pop(claim, None)


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
    claims = [claim_of(node) for node in nodes]
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
