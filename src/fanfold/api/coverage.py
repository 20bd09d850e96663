"""Recipe coverage: which branches of a recipe a suite of cassettes reaches, and cases for those it does not.

Points of a recipe, by the path of a step without numbers
* `when true`, `when false`, `until true`, `until false`: the verdicts of its condition and of its gate.
* `for_each some`, `for_each empty`: its list. `exhausted`: its gate never passed.
* `retry`: a second attempt. `fails`: it ends as failed, so its failure policy applies.
* `answer X`: a decision of a person, one point for each choice.

A generated case is a recorded one with some answers replaced. It is replayed, and kept only if it reaches its
point. So what is written is always a test that passes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from fanfold.api.cassettes import CaseReport, Suite
from fanfold.errors import FanfoldError
from fanfold.kernel.events import Failure
from fanfold.kernel.plan import JSON, GroupAction, LeafAction, Plan, Step, WorkflowAction
from fanfold.language.cassettes import AttemptRecord, Cassette, Expectations, write_cassette
from fanfold.language.json_text import misfits

MAX_DEPTH = 8
MAX_TRIES = 24
"""How many cases are replayed for one point."""
_NUMBERS = r"\[\d+\]|#\d+"
_LITERAL = r"""'([^']*)'|"([^"]*)"|(?<![\w.])(\d+)(?![\w.])"""
_REFERENCE = r"(?:steps\.(\w+?)(?:\.output)?|(output)|inputs\.(\w+))\b(?:\.([a-z_]\w*)\b(?!\())?"


class RecipeCoverage(Struct, frozen=True, kw_only=True):
    """The points of one recipe."""

    recipe: str
    reached: list[str]
    missing: list[str]

    @property
    def percent(self) -> int:
        return round(100 * len(self.reached) / max(1, len(self.reached) + len(self.missing)))


def points_of(plan: Plan) -> dict[str, Step]:
    """Return the points of a recipe, each with its step."""
    points: dict[str, Step] = {}
    for path, step in _steps(plan.steps, plan, "", 0):
        names = ["when true", "when false"] if step.when is not None else []
        names += ["for_each some", "for_each empty"] if step.for_each is not None else []
        names += ["until true", "until false", "exhausted"] if step.repeat is not None else []
        names += _leaf_points(step, step.action) if isinstance(step.action, LeafAction) else []
        points |= {f"{path}: {name}": step for name in names}
    return points


def _steps(steps: Iterable[Step], plan: Plan, above: str, depth: int) -> Iterator[tuple[str, Step]]:
    for step in steps:
        path, action = f"{above}{step.id}", step.action
        yield path, step
        if isinstance(action, GroupAction):
            yield from _steps(action.steps, plan, f"{path}/", depth + 1)
        elif isinstance(action, WorkflowAction) and depth < MAX_DEPTH and action.workflow in plan.workflows:
            yield from _steps(plan.workflows[action.workflow].steps, plan, f"{path}/", depth + 1)


def _leaf_points(step: Step, action: LeafAction) -> list[str]:
    traits, choices = action.traits, action.body.get("choices")
    if traits.waits == "person":
        usual = ["approve", "reject"] if traits.rejectable else []
        return [f"answer {one}" for one in (choices if isinstance(choices, list | tuple) else usual) or usual]
    if traits.waits is not None or traits.ends is not None or action.type == "set":
        return []
    return ["fails", "retry"] if step.retry.attempts > 1 and traits.role is not None else ["fails"]


def reached_points(plan: Plan, replayed: Cassette) -> set[str]:
    """Return the points of a recipe that a recorded run reached."""
    points, result, found = points_of(plan), replayed.result, set[str]()
    assert result is not None, "a replay has a result"
    rounds: dict[str, list[str]] = {}
    for line in result.decisions:
        path, what, value = line.rsplit(" ", 2)
        value = value if what != "for_each" else "empty" if value == "0" else "some"
        found.add(f"{_static(path)}: {what} {value}")
        rounds.setdefault(path, []).extend([value] if what == "until" else [])
    for path, verdicts in rounds.items():
        loop = points.get(point := f"{_static(path)}: exhausted")
        if loop is not None and loop.repeat is not None and "true" not in verdicts:
            found |= {point} if len(verdicts) >= loop.repeat.max_iterations else set()
    for path, attempts in replayed.steps.items():
        for one in attempts:
            decided = one.output.get("decision") if isinstance(one.output, dict) else one.output
            found |= {f"{_static(path)}: answer {decided}"} if one.question else set()
        found |= {f"{_static(path)}: retry"} if len(attempts) > 1 else set()
    lines = (line.partition(" ") for line in result.order)
    found |= {f"{_static(path)}: fails" for path, _, word in lines if word.startswith("failed")}
    return found & points.keys()


def _static(path: str) -> str:
    return re.sub(_NUMBERS, "", path)


def coverage(plans: Iterable[Plan], cases: Sequence[CaseReport]) -> list[RecipeCoverage]:
    """Return the coverage of each recipe that the cases replay."""
    found = []
    for plan in {plan.name: plan for plan in plans}.values():
        reached = {point for case in cases if case.recipe == plan.name for point in case.reached}
        points = points_of(plan)
        missing = [point for point in points if point not in reached]
        done = [point for point in points if point in reached]
        found.append(RecipeCoverage(recipe=plan.name, reached=done, missing=missing))
    return found


# -----------------------------------------------------------------------------------------------------------
# Generated cases

Base = tuple[Path, Cassette, Plan]


async def generate(suite: Suite, bases: Sequence[Base], cases: Sequence[CaseReport]) -> list[Path]:
    """Write a case for each point that no case reaches, as far as one is found. Returns the new files."""
    written: list[Path] = []
    for one in coverage([plan for _, _, plan in bases], cases):
        missing = dict.fromkeys(one.missing)
        while missing:
            point = next(iter(missing))
            del missing[point]
            own = [base for base in bases if base[2].name == one.recipe]
            found = await _case_for(suite, point, own)
            if found is not None:
                file, case, plan = found
                write_cassette(case, file, suite.project.folder)
                written.append(file)
                for reached in reached_points(plan, case):
                    missing.pop(reached, None)
    return written


async def _case_for(suite: Suite, point: str, bases: Sequence[Base]) -> Base | None:
    for file, cassette, plan in bases:
        for variant in islice(_variants(cassette, plan, point), MAX_TRIES):
            try:
                new, _ = await suite.replay(variant, plan)
            except FanfoldError:
                continue  # for example: the recipe refuses these inputs
            if new.result is not None and point in reached_points(plan, new):
                name = re.sub(r"[^a-z0-9]+", "-", point.lower()).strip("-")
                expect = Expectations(status=new.result.status)
                return file.with_name(f"{file.stem}-{name}.yaml"), replace(new, expect=expect), plan
    return None


def _variants(cassette: Cassette, plan: Plan, point: str) -> Iterator[Cassette]:
    """Yield changed cassettes that may reach a point of a recipe."""
    base = replace(cassette, result=None, expect=Expectations())
    (path, _, what), step = point.partition(": "), points_of(plan)[point]
    own = [name for name in base.steps if _static(name) == path]
    if what in ("fails", "retry"):
        kind = step.retry.on[0] if what == "retry" and step.retry.on else "agent"
        failure = Failure(kind, f"generated.{kind}", "generated to reach this branch")
        for name in own or [path]:
            first = base.steps.get(name, (AttemptRecord(output=""),))[0]
            failed = replace(_emptied(first), status="failed", fail=failure)
            yield _with(base, name, (failed,) if what == "fails" else (failed, first))
    elif what.startswith("answer "):
        choice = what.removeprefix("answer ")
        output: JSON = {"decision": choice, "by": "test"} if step.type == "approval" else choice
        for name in own:
            yield _with(base, name, (replace(base.steps[name][0], output=output, fail=None),))
    else:
        until = None
        if step.repeat is not None:
            until, base = step.repeat.until, _with_rounds(base, path, step.repeat.max_iterations)
        text = {"when": step.when, "for_each": step.for_each}.get(what.split()[0], until) or ""
        yield from _with_other_values(base, plan, path, text, what)


def _with_other_values(base: Cassette, plan: Plan, path: str, text: str, what: str) -> Iterator[Cassette]:
    """Yield cassettes in which the values that an expression refers to are different."""
    above = path.rpartition("/")[0]
    schemas = {name: step.output_schema for name, step in _steps(plan.steps, plan, "", 0)}
    for step, own, given, field in re.findall(_REFERENCE, text):
        for value in _candidates(text, what):
            if given:
                yield replace(base, inputs={**base.inputs, given: _at(base.inputs.get(given), field, value)})
                continue
            changed = base
            for name, attempts in base.steps.items():
                scope, _, last = _static(name).rpartition("/")
                inside = _static(name) == path or scope == path if own else scope in (above, path)
                if inside and (own or last.replace("-", "_") == step):
                    others = tuple(_valued(one, field, value) for one in attempts)
                    schema, output = schemas.get(_static(name)), others[-1].output
                    if schema is None or output is UNSET or not misfits(schema, output):
                        changed = _with(changed, name, others)
            if changed is not base:
                yield changed


def _valued(one: AttemptRecord, field: str, value: JSON) -> AttemptRecord:
    """Return an attempt with another value in its output, or in one field of it."""
    if not one.command:
        return replace(_emptied(one), output=_at(None if one.output is UNSET else one.output, field, value))
    if field in ("stdout", "stderr"):
        return replace(one, **{field: str(value)})
    return replace(one, exit_code=value if type(value) is int else 1, fail=None)


def _at(before: Any, field: str, value: JSON) -> JSON:
    return value if not field else {**(before if isinstance(before, dict) else {}), field: value}


def _candidates(text: str, what: str) -> Iterator[JSON]:
    """Yield values that may decide an expression: its own literals, and simple values near them."""
    usual: dict[str, list[JSON]] = {"for_each empty": [[]], "for_each some": [["one"], [{}], [1]]}
    yield from usual.get(what, [True, False])
    for single, double, number in re.findall(_LITERAL, text):
        yield from (int(number), int(number) + 1, int(number) - 1) if number else (single or double,)
    yield from ("", "other", 0, 1, None, [], {})


def _with_rounds(base: Cassette, loop: str, most: int) -> Cassette:
    """Return a cassette with answers for every iteration of a loop."""
    steps = dict(base.steps)
    for name, attempts in base.steps.items():
        found = re.fullmatch(r"(.*)#\d+(.*)", name)
        if found is not None and _static(found[1]) == loop:
            steps |= {
                f"{found[1]}#{n}{found[2]}": steps.get(f"{found[1]}#{n}{found[2]}", attempts)
                for n in range(1, most + 1)
            }
    return replace(base, steps=steps)


def _with(base: Cassette, name: str, attempts: tuple[AttemptRecord, ...]) -> Cassette:
    return replace(base, steps={**base.steps, name: attempts})


def _emptied(one: AttemptRecord) -> AttemptRecord:
    asked = ("role", "prompt", "program", "command", "function", "question", "inputs", "ms")
    return AttemptRecord(**{name: getattr(one, name) for name in asked})
