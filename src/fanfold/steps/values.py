"""The values that templates and expressions of a step can use.

Rules
* A step sees the inputs of its run, the steps it depends on (by its own edges and those of the groups around
  it), and its item, index and iteration. It sees nothing else. A child run sees its inputs.
* Values are looked up on demand, so rendering a prompt reads only the values that it mentions.
* A step that failed with `on_failure: inline` shows its error text, marked as such, as its output. A
  step skipped by condition is null.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fanfold.agents.backend import SUMMARY_CHARS
from fanfold.kernel.events import Failure
from fanfold.kernel.plan import JSON, GroupAction, Step
from fanfold.kernel.progress import is_unsuccessful
from fanfold.kernel.state import (
    BY_DEFAULT,
    COMPLETED,
    FAILED,
    MAP,
    SCOPE,
    SKIPPED,
    TERMINAL,
    TIMED_OUT,
    UNSUCCESSFUL,
    Composite,
    Loop,
    Node,
    Run,
    Scope,
    State,
)
from fanfold.language.json_text import TooLarge, as_text, misfits
from fanfold.language.terminal import exception_message, shorten, shorten_middle, shorten_start
from fanfold.steps.ids import failure_value
from fanfold.steps.records import Memory, is_agent
from fanfold.store.protocol import Blobs
from fanfold.workspace.artifacts import NOTHING_SEEN, Artifact, ArtifactView, family

# -----------------------------------------------------------------------------------------------------------
# The artifacts that a step sees: those of its dependencies and of earlier iterations
#
# They are derived from the log alone, so that a new owner of the run and the cache key see the same.


def kept_artifacts(memory: Memory, run_id: str, kept: Collection[str]) -> dict[str, list[Artifact]]:
    """The artifacts of a run, by step, that a fork keeps if it reuses the outputs of these steps."""
    found: dict[str, list[Artifact]] = {}
    for step, one in memory.artifacts.get(run_id, {}).values():
        if any(_is_at(step, top) for top in kept):
            found.setdefault(step, []).append(one)
    return found


def _is_at(step: str, top: str) -> bool:
    """Whether a step is at this path or inside it."""
    return step == top or (step.startswith(top) and step[len(top)] in "/[#")


def _before(node: Node) -> Iterator[str]:
    """The paths of all steps that end before a step, by its edges or those of the groups around it."""
    current = node
    while current.parent is not None and current.parent.run is node.run:
        parent = current.parent
        if parent.kind == SCOPE:
            prefix = current.path.removesuffix(current.step.id)
            stack = [*current.step.depends_on]
            seen = set(stack)
            while stack:
                path = prefix + stack.pop()
                yield path
                other = node.run.nodes.get(path)
                more = [] if other is None else [name for name in other.step.depends_on if name not in seen]
                seen.update(more)
                stack += more
        elif isinstance(parent, Loop):
            yield from (child.path for child in parent.children[: max(0, current.order[-1] - 1)])
        current = parent


# -----------------------------------------------------------------------------------------------------------
# Adversarial reviews: the claims of a phase, the votes of reviewers, and the claims that survive
#
# Rules
# * A claim is an element of a list of objects in a task's output (a finding). Without such a list it is the
#   whole output of a task or item. Names of claims show their location: `scan[0].findings[2]`, `apply`.
# * Reviewers vote independently, once on each claim. Contradictory votes of one reviewer do not count. A vote
#   counts if all of its quotes were found. A vote against a claim also needs at least one quote.
# * A claim survives if more than half of the counted votes support it. Without a counted vote it is
#   unreviewed.
# * A refuted finding is removed from the phase's result. If a whole result does not survive, the round does
#   not pass: the phase iterates, or fails. An unreviewed finding stays, and is listed as unreviewed.

MAX_CLAIMS = 200
"""The maximum number of claims reviewed in one round; the others are unreviewed."""
Fate: TypeAlias = Literal["survived", "refuted", "unreviewed"]


class ReviewClaim(Struct, frozen=True):
    """A claim of a phase, which reviewers try to refute."""

    name: str
    text: str
    whole: bool
    """Whether the claim is the whole output of a task, or of one item of it."""


class Vote(Struct, frozen=True):
    """The vote of one reviewer on a claim."""

    reviewer: str
    holds: bool
    reason: str
    evidence: list[JSON] = []
    void: str = ""
    """Why the vote does not count; empty if it counts."""


class ReviewedClaim(ReviewClaim, frozen=True):
    """A claim with its votes and its result."""

    fate: Fate
    votes: list[Vote]


class Review(Struct, frozen=True):
    """The result of the review of one round."""

    holds: bool
    """Whether every whole result survived."""
    claims: list[ReviewedClaim]


def claims_of(tasks: Mapping[str, JSON], mapped: frozenset[str]) -> list[ReviewClaim]:
    """The claims in the outputs of a phase's tasks; `mapped` are the tasks with one output per item."""
    found: list[ReviewClaim] = []
    for task, output in tasks.items():
        if task in mapped and isinstance(output, list):
            for index, item in enumerate(output):
                found += _claims_in(f"{task}[{index}]", item)
        else:
            found += _claims_in(task, output)
    return found


def _claims_in(name: str, output: JSON) -> list[ReviewClaim]:
    if output is None or (isinstance(output, dict) and set(output) == {"error"}):
        return []
    lists = _lists_of(output)
    if not lists:
        return [ReviewClaim(name, as_text(output), whole=True)]
    return [
        ReviewClaim(f"{name}.{key}[{index}]", as_text(one), whole=False)
        for key, values in lists.items()
        for index, one in enumerate(values)
    ]


def _lists_of(output: JSON) -> dict[str, list[JSON]]:
    """The fields of an output that are lists of objects. An empty list makes no claim."""
    if not isinstance(output, dict):
        return {}
    lists = {key: value for key, value in output.items() if isinstance(value, list)}
    return {key: values for key, values in lists.items() if all(isinstance(item, dict) for item in values)}


def tally(claims: Sequence[ReviewClaim], reviews: Mapping[str, JSON]) -> Review:
    """Count the votes; `reviews` are the replies by reviewer, with verified quotes."""
    votes: dict[str, list[Vote]] = {claim.name: [] for claim in claims}
    for reviewer, answer in reviews.items():
        given = answer.get("verdicts") if isinstance(answer, dict) else None
        heard: dict[str, Vote] = {}
        for verdict in given if isinstance(given, list) else ():
            name = verdict.get("claim") if isinstance(verdict, dict) else None
            if name not in votes:
                continue
            evidence = [quote for quote in verdict.get("evidence") or [] if isinstance(quote, dict)]
            holds = bool(verdict.get("holds"))
            missing = [
                f"{quote.get('file')}:{quote.get('line')}" for quote in evidence if not quote.get("found")
            ]
            void = ""
            if missing:
                void = f"it quotes what is not there: {', '.join(missing[:3])}"
            elif not holds and not evidence:
                void = "it refutes without evidence"
            vote = Vote(reviewer, holds, str(verdict.get("reason") or ""), evidence, void)
            before = heard.setdefault(name, vote)
            if before.holds != vote.holds:
                heard[name] = replace(before, void="it says both that it holds and that it does not")
        for name, vote in heard.items():
            votes[name].append(vote)
    reviewed: list[ReviewedClaim] = []
    for claim in claims:
        counted = [vote.holds for vote in votes[claim.name] if not vote.void]
        fate: Fate = "unreviewed"
        if counted:
            fate = "survived" if sum(counted) * 2 > len(counted) else "refuted"
        reviewed.append(ReviewedClaim(claim.name, claim.text, claim.whole, fate, votes[claim.name]))
    return Review(all(claim.fate == "survived" for claim in reviewed if claim.whole), reviewed)


def surviving(tasks: Mapping[str, JSON], mapped: frozenset[str], review: Review) -> dict[str, JSON]:
    """The outputs without refuted findings."""
    gone = {claim.name for claim in review.claims if claim.fate == "refuted" and not claim.whole}
    if not gone:
        return dict(tasks)
    kept: dict[str, JSON] = {}
    for task, output in tasks.items():
        if task in mapped and isinstance(output, list):
            kept[task] = [_without(f"{task}[{index}]", item, gone) for index, item in enumerate(output)]
        else:
            kept[task] = _without(task, output, gone)
    return kept


def _without(name: str, output: JSON, gone: set[str]) -> JSON:
    lists = _lists_of(output)
    if not lists or not isinstance(output, dict):
        return output
    return {
        key: [one for index, one in enumerate(value) if f"{name}.{key}[{index}]" not in gone]
        if key in lists
        else value
        for key, value in output.items()
    }


def objections(review: Review) -> str:
    """The objections that the next round must address, with their reviewers."""
    lines = []
    for claim in review.claims:
        if claim.fate != "refuted" or not claim.whole:
            continue
        lines.append(f"Review of {claim.name}: {claim.fate}.")
        lines += [
            f"- {vote.reviewer}: {vote.reason}{_places(vote)}"
            for vote in claim.votes
            if not vote.holds and not vote.void
        ]
    if unseen := unreviewed(review):
        names = ", ".join(unseen[:5]) + (f" and {len(unseen) - 5} more" if len(unseen) > 5 else "")
        lines.append(f"No vote that counts was given on {names}, which does not pass.")
        if len(review.claims) > MAX_CLAIMS:
            lines.append(f"Of {len(review.claims)} claims {MAX_CLAIMS} are reviewed in one round.")
    return "\n".join(lines)


def unreviewed(review: Review) -> list[str]:
    """The names of whole results without a counted vote."""
    return [claim.name for claim in review.claims if claim.whole and claim.fate == "unreviewed"]


def against(review: Review) -> str:
    """A short reason why a round did not survive its review; empty if it did."""
    refuted = any(claim.whole and claim.fate == "refuted" for claim in review.claims)
    without = len(unreviewed(review))
    reasons = ["refuted by its reviewers"] if refuted else []
    reasons += [f"no vote that counts on {without} result{'s' if without > 1 else ''}"] if without else []
    return ", ".join(reasons)


def votes_text(review: Review) -> str:
    """A report of the votes: the number of surviving claims, and a line for each other claim."""
    fates = [claim.fate for claim in review.claims]
    lines = [f"{fates.count('survived')} of {len(fates)} claims survived the review."]
    for claim in review.claims:
        if claim.fate != "survived":
            objection = "; ".join(f"{vote.reviewer}: {vote.reason}" for vote in claim.votes if not vote.holds)
            lines.append(f"{claim.name} {claim.fate}. {objection}".rstrip())
    return "\n".join(lines)


def _places(vote: Vote) -> str:
    places = [
        f"{quote.get('file')}:{quote.get('line')}" for quote in vote.evidence if isinstance(quote, dict)
    ]
    return f" ({', '.join(places[:5])})" if places else ""


def to_value(review: Review) -> JSON:
    """A review as a JSON value."""
    return msgspec.to_builtins(review)


REVIEW, VERIFY = "review", "verify"
"""The steps of a phase that judge it."""
DIGEST_CHARS = 1_800
FEEDBACK_CHARS = 12_000
"""The maximum size of feedback about a round, in the prompts of the next round."""
PROGRAM_CHARS = 4_000
RECENT = 64
"""The number of cached short texts about ended steps."""


class Piece(Struct, frozen=True):
    """One output of a phase, as text."""

    name: str
    text: str


def extract(pieces: Sequence[Piece], limit: int) -> str:
    """Return the start of each piece, together no longer than `limit`."""
    share = max(40, limit // max(1, len(pieces)))
    lines, used = [], 0
    for number, one in enumerate(pieces):
        line = shorten(f"{one.name}: {' '.join(one.text.split())}", share)
        if used + len(line) > limit:
            lines.append(f"… and {len(pieces) - number} more")
            break
        lines.append(line)
        used += len(line) + 1
    return "\n".join(lines)


class Values:
    """Looks up the values of a run tree for templates and expressions."""

    def __init__(self, state: State, memory: Memory, blobs: Blobs) -> None:
        self._state = state
        self._memory = memory
        self._blobs = blobs
        self._recent: dict[tuple[str, ...], str] = {}

    @property
    def now(self) -> int:
        """The time of the log, in milliseconds since the epoch."""
        return self._state.now

    def receipts(self, run: Run) -> tuple[str, ...]:
        """The merge receipts of the steps of a run and of the runs below it."""
        return tuple(
            receipt
            for (owner, _), receipts in self._memory.receipts.items()
            if is_below(self._state.runs[owner], run)
            for receipt in receipts
        )

    def inputs(self, run: Run) -> dict[str, JSON]:
        """The inputs of a run."""
        name = self._memory.inputs.get(run.id)
        return self._blobs.get(name) if name is not None else {}

    def output(self, node: Node) -> JSON:
        """The output of a step, as its dependents see it."""
        if node.output is not None:
            return self._blobs.get(node.output)
        if node.status in UNSUCCESSFUL and node.step.on_failure == "inline":
            return error_text(node)
        return None

    def at(self, node: Node) -> dict[str, JSON]:
        """The names that a step's own templates and expressions may use."""
        names = self._surroundings(node)
        names["steps"] = StepsView(self, list(visible_scopes(node)))
        return names

    def inside(self, scope: Composite, node: Node) -> dict[str, JSON]:
        """The names that the output of a group, or the gate of its loop, may use, including its own steps."""
        names = self._surroundings(node)
        names["steps"] = StepsView(self, [scope, *visible_scopes(node)])
        return names

    def of_run(self, run: Run) -> dict[str, JSON]:
        """The names that the output of a run may use.

        The output of an unsuccessful step is missing there, not null. An output with nulls would look valid.
        """
        return {"inputs": self.inputs(run), "steps": StepsView(self, [run.scope], holes=False)}

    def gate(self, loop: Loop) -> dict[str, JSON]:
        """The names that `until` may use after an iteration."""
        body = last_iteration(loop)
        names = self.inside(body, loop) if isinstance(body, Scope) else self.at(loop)
        names["output"] = self.output(body)
        names["iteration"] = loop.iteration
        if isinstance(body, Scope) and (review := self.review(body)) is not None:
            names["review"] = to_value(review)
        return names

    def tasks(self, phase: Scope) -> dict[str, JSON]:
        """The outputs of a phase's tasks in one round, without refuted findings."""
        outputs = {child.step.id: self.output(child) for child in _tasks_of(phase)}
        review = self.review(phase)
        return outputs if review is None else surviving(outputs, _mapped(phase), review)

    def claims(self, phase: Scope) -> list[ReviewClaim]:
        """The claims that the reviewers of a phase judge."""
        done = [child for child in _tasks_of(phase) if child.status == COMPLETED]
        return claims_of({child.step.id: self.output(child) for child in done}, _mapped(phase))

    def pieces(self, phase: Scope) -> list[Piece]:
        """The outputs of a phase in one round: its tasks, its gate and its review."""
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
            found.append(Piece(REVIEW, votes_text(review)))
        return [source for source in found if source.text]

    def agents_left(self) -> int:
        """The number of sessions that the run may still start."""
        settlers = sum(self._memory.settlers.values())
        return max(0, self._state.max_agents - self._state.agents - settlers)

    def review(self, phase: Scope) -> Review | None:
        """The result of the review of one round, or None if there is none or it is unfinished.

        A failed reviewer has no vote. The votes of the others still count, for the next round and in the
        report. The round does not pass because of the failure.
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
                last = names["iteration"] - 1
                names["feedback"] = self.feedback_on(parent.children[last - 1]) if last > 0 else None
            child, parent = parent, parent.parent
        if node.run.plan.phased:
            names["digest"] = self.digest(node)
        return names

    def feedback_on(self, body: Node) -> JSON:
        """The failures of one iteration, or the feedback of its gate."""
        failed = [error_text(node) for node in _failed_within(body)]
        if not isinstance(body, Scope) or not is_phase(body):
            return "\n".join(failed) if failed and is_unsuccessful(body) else self.output(body)
        judges = (child for child in body.children if child.step.id == VERIFY)
        texts = [_plainly(self.output(child)) for child in judges if child.status == COMPLETED]
        if (review := self.review(body)) is not None:
            texts.append(objections(review))
        return shorten_middle("\n\n".join(text for text in (*texts, *failed) if text), FEEDBACK_CHARS)

    def digest(self, node: Node) -> str:
        """The summaries of all phases that this one depends on, in order, within a fixed size."""
        phase = node
        while phase.parent is not None and phase.parent is not node.run.scope:
            phase = phase.parent
        before = [other for other in _depended_on(phase) if other.status != SKIPPED]
        if not before:
            return ""
        share = DIGEST_CHARS // len(before)

        def digest(phase: Node) -> str:
            output = self.output(phase)
            text = output.get("summary") if isinstance(output, dict) and "summary" in output else output
            return shorten(f"{phase.step.id}: {_plainly(text)}", share - 1)

        return "\n".join(self._once(f"digest {share}", other, digest) for other in before)

    def artifacts(self, node: Node) -> ArtifactView:
        """The artifacts of earlier steps that a step sees."""
        published = self._memory.artifacts.get(node.run.id)
        if not published:
            return NOTHING_SEEN
        tops = tuple(_before(node))
        seen = [file for step, file in published.values() if any(_is_at(step, top) for top in tops)]
        own = family(node.path)
        taken = {path: step for path, (step, _) in published.items() if family(step) != own}
        return ArtifactView(tuple(sorted(seen, key=lambda file: file.path)), taken)

    def summary(self, node: Node) -> str:
        """At most `SUMMARY_CHARS` about a step's output, for dependents that do not use all of it."""

        def summarize(node: Node) -> str:
            output = self.output(node)
            text = as_text(output) if is_agent(node) and output is not None else _plainly(output)
            return shorten(text, SUMMARY_CHARS)

        text = self._memory.summaries.get((node.run.id, node.path))
        return self._once("summary", node, summarize) if text is None else shorten(text, SUMMARY_CHARS)

    def _once(self, kind: str, node: Node, make: Callable[[Node], str]) -> str:
        """A short text about a step, cached once the step has ended, because many map items may use it."""
        if node.status not in TERMINAL:
            return make(node)
        key = (kind, node.run.id, node.path, node.output or "")
        if key not in self._recent:
            if len(self._recent) >= RECENT:
                del self._recent[next(iter(self._recent))]
            self._recent[key] = make(node)
        return self._recent[key]


class StepsView(Mapping[str, Any]):
    """Steps by id; the nearest scope wins. Outputs are read on demand.

    Without `holes`, an unsuccessful step that has no output lacks the key `output`, which is otherwise null.
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
                error = failure_value(node.error if node.status != COMPLETED else None, node)
                output = self._values.output(node)
                if output is None and not self._holes and is_unsuccessful(node):
                    return {"status": node.status, "error": error}
                return {"output": output, "status": node.status, "error": error}
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


def last_iteration(loop: Loop) -> Node:
    """The body of the newest iteration. A fold, if it exists already, comes after it."""
    return loop.children[loop.iteration - 1]


def error_text(node: Node) -> str:
    """The status and error of a step as text."""
    if node.error is None:
        return f"[{node.path} {node.status}]"
    return f"[{node.path} {node.status}: {node.error.code}] {node.error.message}"


def visible_scopes(node: Node) -> Iterator[tuple[Composite, tuple[str, ...]]]:
    """The scopes around a node within its run, each with the step ids that edges make visible."""
    current: Node | None = node
    while current is not None and current.parent is not None and current.parent.run is node.run:
        parent = current.parent
        if parent.kind == SCOPE:
            yield parent, current.step.depends_on
        current = parent


def _depended_on(node: Node) -> list[Node]:
    """Every step of the scope that must end before this one, dependencies first, then by name."""
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
    """The steps at or below a node that failed themselves, not through a step inside, in plan order."""
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
    """A value as readable text for a prompt."""
    if value is None:
        return ""
    if isinstance(value, dict) and "exit_code" in value:
        out, err = (str(value.get(name) or "").strip() for name in ("stdout", "stderr"))
        # The end of both streams; neither displaces the other completely.
        out = shorten_start(out, max(PROGRAM_CHARS // 2, PROGRAM_CHARS - len(err)))
        streams = f"{out}\n{shorten_start(err, PROGRAM_CHARS - len(out))}".strip()
        return f"exit status {value['exit_code']}\n{streams}"
    if isinstance(value, dict) and isinstance(value.get("feedback"), str):
        return str(value["feedback"])
    if isinstance(value, dict) and value.keys() == {"decision", "by", "comment", "edited"}:
        edited = f"\n{as_text(value['edited'])}" if value["edited"] is not None else ""
        comment = f": {value['comment']}" if value["comment"] else ""
        who = "No person answered in time, which means" if value["by"] == BY_DEFAULT else "A person answered"
        return f"{who} {value['decision']}{comment}{edited}"
    return as_text(value)


def runs_below(run: Run) -> Iterator[Run]:
    """Yield a run, and after it the runs below it."""
    yield run
    for child in run.children:
        yield from runs_below(child)


def is_below(run: Run | None, top: Run) -> bool:
    """Whether a run is `top` or below it."""
    while run is not None and run is not top:
        run = run.parent
    return run is top


# -----------------------------------------------------------------------------------------------------------
# Checks of an output against the declared schema and the declared names
#
# An output that does not match fails the step with class `invalid_output`. It is never repaired.

TOO_LARGE_HINT = (
    "have the step write it to a file in the workspace (write_set), and give its name as the output"
)


def unfit(path: str, error: BaseException) -> Failure:
    """The failure of a step whose output `strict` rejected."""
    large = isinstance(error, TooLarge)
    code, hint = ("output.too_large", TOO_LARGE_HINT) if large else ("output.not_json", "")
    return Failure("invalid_output", code, exception_message(error), hint, step=path)


def check_output(step: Step, path: str, attempt: int, value: JSON) -> Failure | None:
    """The failure for an output that does not match its declaration, or None."""
    message = ""
    if step.output_schema is not None:
        message = misfits(step.output_schema, value, "the output")
    if not message and step.outputs:
        if not isinstance(value, dict):
            message = f"the output must be an object with {', '.join(step.outputs)}"
        elif missing := [name for name in step.outputs if name not in value]:
            message = f"the output lacks {', '.join(missing)}"
        elif step.output_schema is None and (extra := [name for name in value if name not in step.outputs]):
            message = f"the output has {', '.join(extra)}, which the step does not declare"
    if not message:
        return None
    return Failure("invalid_output", "output.invalid", message, step=path, attempt=attempt)
