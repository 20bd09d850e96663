"""What a template or an expression may see at one place of a run.

Rules
* A step sees its run's inputs, the steps it depends on (its own edges and those of the groups around
  it), the item, index and iteration it stands in, and nothing else. A child run sees its inputs.
* Values are looked up when asked for: rendering a prompt costs what the prompt mentions.
* A step that failed with `on_failure: inline` shows its error text, marked as such, as its output. A
  step skipped by condition is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from fanfold.agents.backend import SUMMARY_CHARS
from fanfold.kernel.fold.tolerance import is_unsuccessful
from fanfold.kernel.lifecycle import COMPLETED, FAILED, SKIPPED, TIMED_OUT, UNSUCCESSFUL
from fanfold.kernel.nodes import MAP, SCOPE, Composite, Loop, Node, Run, Scope, State
from fanfold.kernel.plan import JSON, GroupAction
from fanfold.kernel.replies import BY_DEFAULT
from fanfold.runtime.records.artifacts import artifacts_for
from fanfold.runtime.records.failures import failure_value
from fanfold.runtime.records.memory import Memory
from fanfold.runtime.records.reviews import (
    Review,
    ReviewClaim,
    claims_of,
    objections,
    surviving,
    tally,
    to_value,
    told,
)
from fanfold.runtime.records.subagents import is_agent
from fanfold.store.blobs import Blobs
from fanfold.text.excerpts import shorten, shorten_middle, shorten_start
from fanfold.text.json_value import as_text
from fanfold.workspace.artifacts import ArtifactView

REVIEW, VERIFY = "review", "verify"
"""The steps of a phase that judge it."""
DIGEST_CHARS = 1_800
FEEDBACK_CHARS = 12_000
"""Of what was said about a round, in the prompts of the next."""
PROGRAM_CHARS = 4_000


class Piece(Struct, frozen=True):
    """One output of a phase, as text."""

    name: str
    text: str


class Values:
    def __init__(self, state: State, memory: Memory, blobs: Blobs) -> None:
        self._state = state
        self._memory = memory
        self._blobs = blobs

    @property
    def now(self) -> int:
        """The time by the log, in milliseconds since the epoch."""
        return self._state.now

    def receipts(self, run: Run) -> tuple[str, ...]:
        """What was merged by the steps of a run and of those below it."""
        return tuple(
            receipt
            for (owner, _), receipts in self._memory.receipts.items()
            if is_below(self._state.runs[owner], run)
            for receipt in receipts
        )

    def inputs(self, run: Run) -> dict[str, JSON]:
        name = self._memory.inputs.get(run.id)
        return self._blobs.get(name) if name is not None else {}

    def output(self, node: Node) -> JSON:
        """What dependents see as a step's output."""
        if node.output is not None:
            return self._blobs.get(node.output)
        if node.status in UNSUCCESSFUL and node.step.on_failure == "inline":
            return error_text(node)
        return None

    def at(self, node: Node) -> dict[str, JSON]:
        """The names a step's own templates and expressions may use."""
        names = self._surroundings(node)
        names["steps"] = StepsView(self, list(_visible(node)))
        return names

    def inside(self, scope: Composite, node: Node) -> dict[str, JSON]:
        """The names that the output of a group, or the gate of its loop, may use: its own steps too."""
        names = self._surroundings(node)
        names["steps"] = StepsView(self, [scope, *_visible(node)])
        return names

    def of_run(self, run: Run) -> dict[str, JSON]:
        """The names that the output of a run may use. What a step did not give is not null there but missing:
        an output with holes would look like an answer.
        """
        return {"inputs": self.inputs(run), "steps": StepsView(self, [run.scope], holes=False)}

    def gate(self, loop: Loop) -> dict[str, JSON]:
        """What `until` sees after an iteration."""
        body = last_iteration(loop)
        names = self.inside(body, loop) if isinstance(body, Scope) else self.at(loop)
        names["output"] = self.output(body)
        names["iteration"] = loop.iteration
        if isinstance(body, Scope) and (review := self.review(body)) is not None:
            names["review"] = to_value(review)
        return names

    def tasks(self, phase: Scope) -> dict[str, JSON]:
        """The outputs of a phase's tasks in one round, without what its reviewers refuted."""
        outputs = {child.step.id: self.output(child) for child in _tasks_of(phase)}
        review = self.review(phase)
        return outputs if review is None else surviving(outputs, _mapped(phase), review)

    def claims(self, phase: Scope) -> list[ReviewClaim]:
        """What reviewers of a phase are asked about."""
        done = [child for child in _tasks_of(phase) if child.status == COMPLETED]
        return claims_of({child.step.id: self.output(child) for child in done}, _mapped(phase))

    def pieces(self, phase: Scope) -> list[Piece]:
        """What a phase gave in one round, piece by piece: its tasks, what gate and reviewers said."""
        mapped, found = _mapped(phase), []
        for task, output in self.tasks(phase).items():
            if task in mapped and isinstance(output, list):
                found += [Piece(f"{task}[{index}]", _plainly(one)) for index, one in enumerate(output)]
            else:
                found.append(Piece(task, _plainly(output)))
        for child in phase.children:
            if child.step.id == VERIFY and child.status == COMPLETED:
                found.append(Piece(VERIFY, _plainly(self.output(child))))
        if (review := self.review(phase)) is not None:
            found.append(Piece(REVIEW, told(review)))
        return [one for one in found if one.text]

    def agents_left(self) -> int:
        """How many more sessions the run may start."""
        settlers = sum(self._memory.settlers.values())
        return max(0, self._state.max_agents - self._state.agents - settlers)

    def micro_usd_left(self, node: Node) -> int | None:
        """What an attempt of a step may spend before a budget in dollars is used up; None without one."""
        ledgers = [self._state.ledger, *(quota.ledger for quota in node.quotas)]
        limited = [one for one in ledgers if one is not None and one.max_micro_usd and not one.unpriced]
        left = [
            (one.max_micro_usd or 0) - one.spent_micro_usd - one.reserved_micro_usd + node.reservation[1]
            for one in limited
        ]
        return max(0, min(left)) if left else None

    def review(self, phase: Scope) -> Review | None:
        """What came of the review of one round; None where there is none, or it is not over.

        A reviewer that failed has no vote, and what the others said counts all the same: for the next round,
        and in the report. That the round did not pass follows from the failure.
        """
        step = next((child for child in phase.children if child.step.id == REVIEW), None)
        if not isinstance(step, Composite) or not is_phase(phase) or step.status not in (COMPLETED, FAILED):
            return None
        return tally(self.claims(phase), {child.path: self.output(child) for child in step.children})

    def _surroundings(self, node: Node) -> dict[str, JSON]:
        names: dict[str, JSON] = {"inputs": self.inputs(node.run)}
        child, parent = node, node.parent
        while parent is not None and parent.run is node.run:
            if parent.kind == MAP and parent.step.item_name not in names:
                index = child.order[-1]
                items = self._blobs.get(self._memory.items[parent.run.id, parent.path])
                names[parent.step.item_name] = items[index]
                names.setdefault("index", index)
            elif isinstance(parent, Loop) and "iteration" not in names:
                is_fold = child.step is parent.step.fold
                names["iteration"] = parent.iteration if is_fold else child.order[-1]
                names["feedback"] = self._feedback(parent, names["iteration"])
            child, parent = parent, parent.parent
        if node.run.plan.phased:
            names["digest"] = self.digest(node)
        return names

    def _feedback(self, loop: Loop, iteration: int) -> JSON:
        """What failed in the iteration before, or what its gate said of it; null in the first."""
        return self.said_of(loop.children[iteration - 2]) if iteration > 1 else None

    def said_of(self, body: Node) -> JSON:
        """What failed in one iteration, or what its gate said of it."""
        failed = [error_text(node) for node in _failed_within(body)]
        if not isinstance(body, Scope) or not is_phase(body):
            return "\n".join(failed) if failed and is_unsuccessful(body) else self.output(body)
        judges = (child for child in body.children if child.step.id == VERIFY)
        said = [_plainly(self.output(child)) for child in judges if child.status == COMPLETED]
        if (review := self.review(body)) is not None:
            said.append(objections(review))
        return shorten_middle("\n\n".join(text for text in (*said, *failed) if text), FEEDBACK_CHARS)

    def digest(self, node: Node) -> str:
        """The summaries of all phases that this one depends on, the first first, within a fixed size.

        Made of nothing else: what happens to have ended, or stands further up in the file, is not in it.
        """
        phase = node
        while phase.parent is not None and phase.parent is not node.run.scope:
            phase = phase.parent
        before = [other for other in _depended_on(phase) if other.status != SKIPPED]
        if not before:
            return ""
        share = DIGEST_CHARS // len(before)
        parts = []
        for other in before:
            output = self.output(other)
            told = output.get("summary") if isinstance(output, dict) and "summary" in output else output
            parts.append(shorten(f"{other.step.id}: {_plainly(told)}", share - 1))
        return "\n".join(parts)

    def artifacts(self, node: Node) -> ArtifactView:
        """What a step sees of the files that steps before it published."""
        return artifacts_for(self._memory, node)

    def summary(self, node: Node) -> str:
        """At most 600 characters about what a step gave, for dependents that did not ask for all of it."""
        told = self._memory.summaries.get((node.run.id, node.path))
        if told is None:
            output = self.output(node)
            told = as_text(output) if is_agent(node) and output is not None else _plainly(output)
        return shorten(told, SUMMARY_CHARS)


class StepsView(Mapping[str, Any]):
    """Steps by id: the nearest scope wins. Outputs are fetched when a step is asked for. Without `holes`, a
    step that failed, or was skipped for a failure, and left nothing has no output rather than a null.
    """

    def __init__(
        self,
        values: Values,
        places: list[Composite | tuple[Composite, tuple[str, ...]]],
        *,
        holes: bool = True,
    ) -> None:
        self._values = values
        self._places = places
        self._holes = holes

    def __getitem__(self, name: str) -> dict[str, JSON]:
        for place in self._places:
            scope, allowed = place if isinstance(place, tuple) else (place, None)
            if allowed is not None and name not in allowed:
                continue
            node = scope.run.nodes.get(f"{scope.path}/{name}" if scope.path else name)
            if node is not None:
                seen = step_view(self._values, node)
                if not self._holes and seen["output"] is None and is_unsuccessful(node):
                    del seen["output"]
                return seen
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        seen: dict[str, None] = {}
        for place in self._places:
            scope, allowed = place if isinstance(place, tuple) else (place, None)
            for name in allowed if allowed is not None else (child.step.id for child in scope.children):
                seen.setdefault(name)
        return iter(seen)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def step_view(values: Values, node: Node) -> dict[str, JSON]:
    """What `steps.<id>` is: output, status and error."""
    error = node.error if node.status != COMPLETED else None
    return {"output": values.output(node), "status": node.status, "error": failure_value(error, node)}


def last_iteration(loop: Loop) -> Node:
    """The body of the newest iteration (a fold, if there is one already, stands after it)."""
    return loop.children[loop.iteration - 1]


def error_text(node: Node) -> str:
    if node.error is None:
        return f"[{node.path} {node.status}]"
    return f"[{node.path} {node.status}: {node.error.code}] {node.error.message}"


def _visible(node: Node) -> Iterator[tuple[Composite, tuple[str, ...]]]:
    """The scopes around a node within its run, each with the ids that edges make visible."""
    current: Node | None = node
    while current is not None and current.parent is not None and current.parent.run is node.run:
        parent = current.parent
        if parent.kind == SCOPE:
            yield parent, current.step.depends_on
        current = parent


def _depended_on(node: Node) -> list[Node]:
    """Every step of the same scope that must end before this one; who is depended on stands first.

    The order follows from the edges and the names, not from where in the file a step stands.
    """
    ranks: dict[str, int] = {}
    prefix = node.path.removesuffix(node.step.id)

    def rank(current: Node) -> int:
        if current.step.id not in ranks:
            before = [rank(node.run.nodes[prefix + name]) for name in current.step.depends_on]
            ranks[current.step.id] = 1 + max(before, default=0)
        return ranks[current.step.id]

    rank(node)
    names = sorted((place, name) for name, place in ranks.items() if name != node.step.id)
    return [node.run.nodes[prefix + name] for _, name in names]


def _failed_within(top: Node) -> Iterator[Node]:
    """The steps at or below a node that failed first hand, in plan order."""
    below = [child for child in top.children if child.run is top.run] if isinstance(top, Composite) else []
    deeper = [node for child in below for node in _failed_within(child)]
    if deeper:
        yield from deeper
    elif top.status in (FAILED, TIMED_OUT):
        yield top


def _tasks_of(phase: Scope) -> list[Node]:
    return [child for child in phase.children if child.step.id not in (REVIEW, VERIFY)]


def _mapped(phase: Scope) -> frozenset[str]:
    return frozenset(child.step.id for child in phase.children if child.step.for_each is not None)


def is_phase(node: Node) -> bool:
    """Whether a node is a phase, or a round of one."""
    return isinstance(node.step.action, GroupAction) and node.step.action.phase


def _plainly(value: JSON) -> str:
    """A value as a person would read it in a prompt."""
    if value is None:
        return ""
    if isinstance(value, dict) and "exit_code" in value:
        said = _last_said(*(str(value.get(name) or "").strip() for name in ("stdout", "stderr")))
        return f"exit status {value['exit_code']}\n{said}"
    if isinstance(value, dict) and isinstance(value.get("feedback"), str):
        return str(value["feedback"])
    if isinstance(value, dict) and value.keys() == {"decision", "by", "comment", "edited"}:
        edited = f"\n{as_text(value['edited'])}" if value["edited"] is not None else ""
        comment = f": {value['comment']}" if value["comment"] else ""
        who = "Nobody answered in time, which means" if value["by"] == BY_DEFAULT else "A person answered"
        return f"{who} {value['decision']}{comment}{edited}"
    return as_text(value)


def _last_said(out: str, err: str) -> str:
    """The end of what a program wrote: what it wrote to one place does not push out all of the other."""
    out = shorten_start(out, max(PROGRAM_CHARS // 2, PROGRAM_CHARS - len(err)))
    return f"{out}\n{shorten_start(err, PROGRAM_CHARS - len(out))}".strip()


def is_below(run: Run | None, top: Run) -> bool:
    """Whether it is this run or one below it."""
    while run is not None and run is not top:
        run = run.parent
    return run is top
