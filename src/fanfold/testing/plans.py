"""Random plans with every construct of the kernel, small enough to run thousands of them.

Rules
* A plan is a function of the generator alone: the same seed gives the same plan on every machine.
* Expressions are words that the simulated host knows, so it needs no expression language (`world` reads
  them):

| where | word | means |
|---|---|---|
| `when` | `true`, `false`, `coin`, `error` | `coin` is random for each evaluation |
| `for_each` | `items:3`, `error` | three items; the expression fails |
| `until` | `from:2`, `never`, `coin`, `error` | `from:2`: true from the second iteration; an error: false |

* References are those that a recipe can contain: to `depends_on` of the step or of a group around it, to
  inputs of the run, and to the item.
* The number of instances is estimated while the plan grows and kept below a random limit, so that maps of
  loops of maps stay small.
"""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from fanfold.kernel.events import Estimate, Settings
from fanfold.kernel.plan import (
    EVERYTHING,
    Action,
    Budget,
    Constant,
    Fields,
    GroupAction,
    Input,
    LeafAction,
    Limits,
    OnFailure,
    Output,
    Plan,
    Ref,
    Repeat,
    RetryPolicy,
    Step,
    Template,
    Traits,
    Value,
    WorkflowAction,
)
from fanfold.language.leaf_steps import AgentBody, ApprovalBody, CommandBody
from fanfold.steps.deliver import DeliverBody
from fanfold.steps.function import FunctionBody
from fanfold.steps.set_and_end import EndBody, SetBody

ROLES = ("default", "explorer", "worker")
SETS = ("src/**", "src/*.py", "src/a.py", "src/b/**", "docs/**", "docs/*.md", "{src,docs}/a.*", "lib/[ab]/**")
ITEM_SETS = ("packages/{{item}}/**", "src/{{item}}.py", "docs/{{index}}/*.md")
ON_FAILURE: tuple[OnFailure, ...] = (
    "skip", "skip", "skip", "skip", "skip", "skip", "inline", "inline", "inline", "stop",
)  # fmt: skip
WHEN = (*("true", "coin") * 4, "false", "error")
UNTIL = (*("from:1", "from:2", "from:3", "coin") * 2, "never", "error")
TIMER = LeafAction("timer", traits=Traits(slot=False, workspace="none", waits="timer"))
NOTE = LeafAction("note", traits=Traits(slot=False, workspace="none"))
LEAD = replace(AgentBody(prompt="lead").action(), traits=Traits(slot=False, role="default"))
DELIVER = DeliverBody(branch="a-branch", message="what was done").action()
SET = SetBody({"one": "1"}).action()
ENDS = (EndBody(end="completed").action(), EndBody(end="failed").action())
"""Types of steps without a slot, and types that finish as soon as they are decided."""
CHAIN = 6
"""The length of a chain of sub-workflows: one more than the limit of nesting."""


def random_plan(rng: Random) -> Plan:
    """Return a plan for one schedule, with all its sub-workflows."""
    return _Maker(rng).plan()


def random_additions(rng: Random) -> tuple[Plan, tuple[Step, ...]]:
    """Return an open plan, and the steps that users will add to it, in order."""
    return _Maker(rng).open_plan()


def random_settings(rng: Random, plan: Plan) -> Settings:
    """Return limits of the run, mostly high, sometimes so low that the run must pause."""
    tight = rng.random()
    return Settings(
        max_concurrency=rng.choice((1, 2, 2, 3, 4, 4, 8)),
        max_agents=rng.randint(1, 8) if tight < 0.12 else 500,
        max_steps=len(plan.steps) + rng.randint(0, 12) if 0.12 <= tight < 0.18 else 5_000,
        timeout_ms=rng.choice((200, 1_000, 3_000)) if rng.random() < 0.1 else 10_000_000,
        budget_tokens=rng.choice((50, 300, 1_500)) if 0.18 <= tight < 0.28 else None,
        budget_micro_usd=rng.choice((40, 400)) if 0.24 <= tight < 0.32 else None,
        estimates={"*": Estimate(tokens=60, micro_usd=20), "worker": Estimate(tokens=120, micro_usd=5)},
        outage_ms=rng.choice((None, 0, 60_000, 3_600_000)),
    )


class _Maker:
    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.count = 0
        self.costs: dict[str, int] = {}
        self.workflows: dict[str, Plan] = {}
        self.open = False
        roll = rng.random()
        self.size = rng.randint(3, 12) if roll < 0.35 else rng.randint(12, 40) if roll < 0.92 else 120

    def plan(self) -> Plan:
        rng = self.rng
        self._make_workflows()
        deep = () if rng.random() < 0.92 else (self._chain(),)
        steps, _ = self._steps(self.size, 0, False, ())
        steps = (*deep, *steps)
        return Plan(
            name="root",
            inputs=(Input("topic", default="t", has_default=True),),
            steps=steps,
            output=self._output(steps),
            workflows=dict(sorted(self.workflows.items())),
        )

    def open_plan(self) -> tuple[Plan, tuple[Step, ...]]:
        self.open = True
        self._make_workflows()
        steps, _ = self._steps(self.size, 0, False, (), shuffled=False)
        # More time-outs than in other runs, because users act on timed-out children.
        steps = tuple(replace(step, timeout_ms=20) if self.rng.random() < 0.12 else step for step in steps)
        topic = Input("topic", default="t", has_default=True)
        workflows = dict(sorted(self.workflows.items()))
        return Plan(name="root", open=True, inputs=(topic,), steps=(), workflows=workflows), steps

    def _make_workflows(self) -> None:
        if self.rng.random() < 0.55:
            names = [f"w{number}" for number in range(self.rng.choice((1, 1, 2, 3)))]
            for name in reversed(names):
                self._workflow(name, self.size // 4 + 1)

    def _workflow(self, name: str, budget: int) -> None:
        """Add a sub-workflow. It can call only earlier ones, so there are no cycles."""
        rng = self.rng
        steps, cost = self._steps(budget, 0, False, ())
        limits = Limits(
            max_concurrency=rng.choice((1, 2)) if rng.random() < 0.2 else None,
            max_agents=rng.randint(1, 4) if rng.random() < 0.06 else None,
            timeout_ms=rng.choice((100, 500)) if rng.random() < 0.12 else None,
            budget=Budget(
                tokens=rng.choice((40, 400)) if rng.random() < 0.08 else None,
                micro_usd=rng.choice((30, 300)) if rng.random() < 0.05 else None,
            ),
        )
        self.workflows[name] = Plan(
            name=name, steps=steps, inputs=(Input("topic"),), output=self._output(steps), limits=limits
        )
        self.costs[name] = cost + 1

    def _chain(self) -> Step:
        """Return a call of sub-workflows nested to the limit, or one deeper."""
        below = ""
        for level in range(self.rng.choice((CHAIN - 1, CHAIN)), 0, -1):
            inner: Action = WorkflowAction(below) if below else AgentBody(prompt="{{inputs.topic}}").action()
            step = Step(id=self._id("d"), action=inner, inputs={"topic": Ref("inputs.topic")})
            below = f"deep{level}"
            self.workflows[below] = Plan(name=below, steps=(step,), inputs=(Input("topic"),))
        return Step(id=self._id("w"), action=WorkflowAction(below), inputs={"topic": Ref("inputs.topic")})

    # Scopes

    def _id(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def _steps(
        self, budget: int, nesting: int, in_map: bool, outer: tuple[str, ...], *, shuffled: bool = True
    ) -> tuple[tuple[Step, ...], int]:
        """Return the steps of one scope, mostly not in the order of their edges."""
        rng = self.rng
        made: list[Step] = []
        cost = 0
        most = rng.randint(min(6, budget) if nesting == 0 else 2, 12 if budget < 30 else 24)
        while len(made) < most and (not made or cost < budget):
            edges = [step.id for step in made if rng.random() < 0.7 / len(made)] if made else []
            if made and rng.random() < 0.1:
                edges = [step.id for step in made]
            step, size = self._step(max(1, budget - cost), nesting, in_map, edges, outer)
            made.append(step)
            cost += size
        if shuffled and rng.random() < 0.3:
            rng.shuffle(made)
            made = [_in_declared_order(step, made) for step in made]
        return tuple(made), cost

    def _step(
        self, budget: int, nesting: int, in_map: bool, edges: list[str], outer: tuple[str, ...]
    ) -> tuple[Step, int]:
        rng = self.rng
        items, iterations = self._multiply(budget)
        inner_map = in_map or items is not None
        share = max(1, budget // (max(1, items or 1) * iterations))
        # References from inside a group are edges of the group.
        visible = (*outer, *edges)
        action, cost = self._action(share, nesting, inner_map, visible)
        repeat = None
        if iterations > 1 or rng.random() < 0.03:
            repeat = Repeat(rng.choice(UNTIL), iterations, rng.choice(("fail", "fail", "continue")))
        fold = None
        if repeat is not None and rng.random() < 0.35:
            fold = self._with_sets(
                Step(id="fold", action=AgentBody(agent="explorer", prompt="fold", purpose="fold").action()),
                inner_map,
            )
            cost += 1
        step = Step(
            id=self._id(action.type[0]),
            action=action,
            depends_on=tuple(edges),
            when=rng.choice(WHEN) if rng.random() < 0.14 else None,
            max_concurrency=rng.choice((1, 2, 2)) if rng.random() < 0.1 else None,
            for_each=None if items is None else "error" if rng.random() < 0.03 else f"items:{items}",
            repeat=repeat,
            fold=fold,
            inputs=self._inputs(edges, outer, inner_map),
            timeout_ms=self._timeout(action),
            retry=self._retry(),
            on_failure=rng.choice(ON_FAILURE),
        )
        return self._with_sets(step, inner_map), max(1, cost * max(1, items or 1) * iterations)

    def _multiply(self, budget: int) -> tuple[int | None, int]:
        """Return the numbers of items (None: no map) and iterations of a step."""
        rng = self.rng
        items = iterations = None
        if rng.random() < 0.2:
            items = min(rng.choice((0, 1, 2, 3, 3, 4, 6, 40)), max(2, budget))
        if rng.random() < 0.15:
            iterations = min(rng.choice((2, 2, 3, 4)), max(2, budget // 2))
        return items, iterations or 1

    def _action(self, budget: int, nesting: int, in_map: bool, outer: tuple[str, ...]) -> tuple[Action, int]:
        rng = self.rng
        roll = rng.random()
        calls = [name for name, cost in self.costs.items() if cost <= budget + 6]
        if roll < 0.15 and nesting < 3 and budget > 1:
            return self._group(budget, nesting, in_map, outer)
        if roll < 0.35 and calls:
            name = rng.choice(calls)
            return WorkflowAction(name), self.costs[name]
        if roll < 0.39:
            choices = ("ship", "hold") if rng.random() < 0.4 else ()
            default = rng.choice(choices or ("approve", "reject")) if rng.random() < 0.4 else None
            return ApprovalBody("go?", choices=choices, default=default).action(), 1
        if roll < 0.41:
            return rng.choice(self._without_slots()), 1
        if roll < 0.52:
            return FunctionBody("count").action(), 1
        if roll < 0.62:
            return CommandBody(("make", "test")).action(), 1
        prompt = "".join(f"{{{{steps.{name}.output}}}} " for name in outer if rng.random() < 0.5)
        return AgentBody(rng.choice(ROLES), prompt=f"{prompt}{{{{inputs.topic}}}}").action(), 1

    def _without_slots(self) -> tuple[Action, ...]:
        if self.open:
            return (TIMER, NOTE, LEAD, SET)
        return (TIMER, NOTE, LEAD, SET, DELIVER, *ENDS)

    def _group(self, budget: int, nesting: int, in_map: bool, outer: tuple[str, ...]) -> tuple[Action, int]:
        rng = self.rng
        steps, cost = self._steps(min(budget, 12), nesting + 1, in_map, outer)
        group = GroupAction(
            steps=steps,
            output=self._output(steps),
            max_concurrency=rng.choice((1, 1, 2)) if rng.random() < 0.25 else None,
            max_agents=rng.randint(1, 5) if rng.random() < 0.06 else None,
        )
        return group, cost + 1

    # Parts of a step

    def _output(self, steps: tuple[Step, ...]) -> Output | None:
        rng = self.rng
        roll = rng.random()
        if roll < 0.6:
            return None
        if roll < 0.8:
            return Ref(f"steps.{rng.choice(steps).id}.output")
        return Fields({"one": Ref(f"steps.{rng.choice(steps).id}.output"), "two": Constant(2)})

    def _inputs(self, edges: list[str], outer: tuple[str, ...], in_map: bool) -> dict[str, Value]:
        rng = self.rng
        inputs: dict[str, Value] = {"topic": Ref("inputs.topic")}
        for name in (*outer, *edges):
            if rng.random() < 0.6:
                path = f"steps.{name}.output"
                inputs[name] = Template(f"see {{{{{path}}}}}") if rng.random() < 0.3 else Ref(path)
        if in_map and rng.random() < 0.5:
            inputs["which"] = Ref("item")
        return inputs

    def _timeout(self, action: Action) -> int | None:
        rng = self.rng
        if isinstance(action, GroupAction | WorkflowAction):
            return rng.choice((60, 300, 1_500)) if rng.random() < 0.15 else None
        if action.traits.waits is not None:
            return rng.choice((100, 2_000)) if rng.random() < 0.5 else None
        return rng.choice((20, 80, 400)) if rng.random() < 0.15 else None

    def _retry(self) -> RetryPolicy:
        rng = self.rng
        kinds = ("timeout", "transport", "rate_limit", "invalid_output", "agent")
        if rng.random() < 0.5:
            return RetryPolicy(rng.choice((2, 3)), backoff_ms=50)
        on = tuple(kind for kind in kinds if rng.random() < 0.7)
        return RetryPolicy(rng.randint(1, 4), rng.choice((0, 10, 300)), rng.choice((10, 1_000)), on)

    def _with_sets(self, step: Step, in_map: bool) -> Step:
        """Return posture, path sets and workspace of a step that uses files."""
        rng = self.rng
        if step.traits.workspace == "none":
            return step
        choices = (*SETS, *ITEM_SETS) if in_map else SETS
        reads = EVERYTHING if rng.random() < 0.3 else tuple(rng.sample(choices, rng.randint(1, 2)))
        writes: tuple[str, ...] = ()
        if rng.random() < 0.4:
            writes = EVERYTHING if rng.random() < 0.1 else tuple(rng.sample(choices, rng.randint(1, 2)))
        return replace(
            step,
            posture="writer" if writes else "read_only",
            read_set=reads,
            write_set=writes,
            templated_sets=any("{{" in pattern for pattern in (*reads, *writes)),
            workspace_mode="shared" if rng.random() < (0.35 if writes else 0.9) else "isolated",
            cache=not writes and rng.random() < 0.15,
        )


def _in_declared_order(step: Step, made: list[Step]) -> Step:
    if not step.depends_on:
        return step
    return replace(step, depends_on=tuple(other.id for other in made if other.id in step.depends_on))
