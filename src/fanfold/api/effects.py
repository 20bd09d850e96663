"""The effects of a run beyond reading, listed before it starts and derived from what its steps will execute.

Every step of the plan and of called recipes is visited, regardless of its conditions. Texts are filled by the
code that prepares the step (`StepType.prepare`), with all known values: inputs and their defaults, values of
`set` steps, inputs of calls. A value that is only known during the run is shown as its path, in braces.

Rules
* The items of a map are listed with each effect that names them. A call that passes an item on is followed
  for each item.
* A path may stand for a value that the recipe itself defines: a list, a `set`, the output of a group or a
  called recipe, a default answer. Then a row shows the definition, and further rows those of the names in it.
* A role's effects are those of the role in its session: its program, network, MCP servers, guards, the fixed
  calls of its pipeline.
* More than `MAX_EFFECTS` are refused: no person reads them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fanfold.agents.backend_registry import MODEL
from fanfold.agents.role import COMMAND, SPOKEN, Role, Stage, for_step, inside
from fanfold.engine.forecast import is_certain, is_known
from fanfold.errors import EXIT_PERMISSION, AuthorError, BugError, WorldError
from fanfold.kernel.plan import JSON, Constant, Fields, GroupAction, Output, Plan, Ref, Step, WorkflowAction
from fanfold.language.consent import Effect
from fanfold.language.inputs import bind_inputs
from fanfold.language.leaf_steps import AgentBody, ApprovalBody, AskBody, SetBody
from fanfold.language.step_grammar import find_body
from fanfold.language.template import ExpressionError, UnresolvedPath
from fanfold.steps.decisions import items_of
from fanfold.steps.run_config import RESOLVER
from fanfold.steps.step_type import foresee, shown, value_of
from fanfold.steps.table import effects_of

MAX_EFFECTS = 10_000
MAX_CALLS = 10_000
"""Limit of followed calls of recipes. Each item of a map counts as one."""

_HOLE: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_NAMES: Final = re.compile(r"steps\.[A-Za-z0-9_-]+|(?<![.\w])[A-Za-z_]\w*")
"""Matches steps and names of items in an expression or a path."""
FindRole = Callable[[str], Role | None]


class _Scope(Struct, frozen=True):
    """The steps of one scope, and the known values that they can read."""

    plan: Plan
    prefix: str
    names: dict[str, JSON]
    partly: dict[str, str]
    each: dict[str, list[JSON]] = {}
    """Items of the enclosing maps, by the name of the item in their steps."""
    lists: dict[str, str] = {}
    """Expressions of the enclosing maps whose items are only known during the run."""
    steps: dict[str, Step] = {}
    """By the name of a step in expressions."""


class _Effects:
    """Collects the effects of a plan."""

    def __init__(self, plan: Plan, find_role: FindRole, backend: str) -> None:
        self._plan = plan
        self._find = find_role
        self._backend = backend
        self._called: set[tuple[str, bytes]] = set()
        self.found: dict[tuple[str, str], Effect] = {}
        """By text and kind: a role that two steps name is listed once."""

    def visit(self, scope: _Scope, steps: Sequence[Step]) -> None:
        scope = self._with_sets(scope, steps)
        scope = replace(scope, steps={**scope.steps, **{_name_of(step): step for step in steps}})
        for step in steps:
            self._visit_step(scope, step)
            if step.fold is not None:
                self._visit_step(scope, step.fold)

    def _visit_step(self, scope: _Scope, step: Step) -> None:
        scope = self._in_map(scope, step)
        if isinstance(step.action, GroupAction):
            self.visit(scope, step.action.steps)
            return
        filling = foresee(step, scope.names, scope.partly)
        if isinstance(step.action, WorkflowAction):
            self._follow(scope, step, step.action)
        for effect in effects_of(step, filling):
            self._add(
                replace(effect, who=scope.prefix + effect.who, what=self._explained(scope, effect.what))
            )
        said = find_body(AgentBody, step)
        names = said.roles() if said is not None else ()
        for name in (*names, *((RESOLVER,) if step.on_conflict == "resolve" else ())):
            role = self._role(name)
            if said is not None and name in names:
                read_only = step.posture == "read_only"
                role = for_step(role, tools=said.tools, read_only=read_only)
            for effect in role_effects(role, self._find, self._backend):
                self._add(effect)

    def _add(self, effect: Effect) -> None:
        self.found.setdefault((effect.text, effect.kind), effect)
        if len(self.found) > MAX_EFFECTS:
            raise _too_many(self._plan, f"{MAX_EFFECTS:,} effects")

    def _role(self, name: str) -> Role:
        role = self._find(name)
        if role is None:
            raise BugError("role.unknown", f"the checked plan names the unknown role {name}")
        return role

    # Known values

    def _with_sets(self, scope: _Scope, steps: Sequence[Step]) -> _Scope:
        """Return the scope with the known values of its `set` steps."""
        known = dict(scope.names.get("steps") or {})
        names = {**scope.names, "steps": known}
        waiting = [(step, said) for step in steps if (said := find_body(SetBody, step)) is not None]
        while True:
            left = [one for one in waiting if not self._work_out(*one, names, known)]
            if len(left) == len(waiting):
                break
            waiting = left
        return replace(scope, names=names)

    @staticmethod
    def _work_out(step: Step, said: SetBody, names: Mapping[str, JSON], known: dict[str, JSON]) -> bool:
        """Record the output of a `set` step if it is certain, and return whether it is."""
        from fanfold.language.expressions import evaluate

        if step.when is not None or step.for_each is not None or step.repeat is not None:
            return False
        if not all(is_certain(text, names) for text in said.set.values()):
            return False
        try:
            output = {name: evaluate(text, names) for name, text in said.set.items()}
        except ExpressionError:
            return False
        known[step.id] = {"output": output, "status": "completed", "error": None}
        return True

    def _in_map(self, scope: _Scope, step: Step) -> _Scope:
        if step.for_each is None:
            return scope
        names = {name: value for name, value in scope.names.items() if name not in (step.item_name, "index")}
        each = {name: items for name, items in scope.each.items() if name != step.item_name}
        lists = {**scope.lists, step.item_name: step.for_each}
        try:
            if is_certain(step.for_each, scope.names):
                each[step.item_name] = items_of(step, scope.names)
                del lists[step.item_name]
        except (ExpressionError, UnresolvedPath):
            pass  # the step will fail on it
        return replace(scope, names=names, each=each, lists=lists)

    # Definitions of values that are only known during the run

    def _explained(self, scope: _Scope, text: str) -> str:
        """Return a text with the items of each map that it names, and the definitions of its other paths."""
        rows = [text]
        rows += (
            f"where {name} is each of {msgspec.json.encode(items).decode()}"
            for name, items in scope.each.items()
            if f"{{{{{name}" in text
        )
        pending = _HOLE.findall(text)
        told: set[str] = set()
        while pending:
            said = pending.pop()
            for name in _NAMES.findall(said):
                if name in told:
                    continue
                told.add(name)
                found = list(self._sources(scope, name))
                pending += found
                rows += found
        return "\n".join(rows)

    def _sources(self, scope: _Scope, name: str) -> Iterator[str]:
        """Yield how the recipe defines the output of a step, or an item."""
        if name in scope.lists:
            yield f"where {name} is each of {scope.lists[name]}"
        step = scope.steps.get(name.removeprefix("steps.").replace("-", "_"))
        if name.startswith("steps.") and step is not None and not _is_known(scope, step):
            yield from self._said_by(step, step.id, set())

    def _said_by(self, step: Step, who: str, called: set[str]) -> Iterator[str]:
        """Yield how the recipe defines the output of a step and of the steps inside it."""
        action = step.action
        rows: list[str] = []
        if (values := find_body(SetBody, step)) is not None:
            rows += (f"where {who} gives {name} = {value}" for name, value in values.set.items())
        elif (asked := find_body(AskBody, step)) is not None and asked.has_default:
            rows.append(f"where {who} gives {shown(asked.default)} if nobody answers")
        elif (approval := find_body(ApprovalBody, step)) is not None and approval.default is not None:
            rows.append(f"where {who} gives {shown(approval.default)} if nobody answers")
        elif isinstance(action, GroupAction):
            rows += self._said_inside(action.output, action.steps, f"{who}/", who, called)
        elif isinstance(action, WorkflowAction) and action.workflow not in called:
            called.add(action.workflow)
            plan = self._plan.workflows[action.workflow]
            rows += self._said_inside(plan.output, plan.steps, f"{plan.name}: ", who, called)
        if rows and step.for_each is not None:
            rows.append(f"where {who} is done for each of {step.for_each}")
        yield from rows

    def _said_inside(
        self, output: Output | None, steps: Sequence[Step], prefix: str, who: str, called: set[str]
    ) -> Iterator[str]:
        inside = [row for one in steps for row in self._said_by(one, prefix + one.id, called)]
        if output is not None:
            yield f"where {who} gives {_said(output)}"
        elif inside:
            yield f"where {who} gives what {prefix}{steps[-1].id} gives"
        yield from inside

    # Called recipes

    def _follow(self, scope: _Scope, step: Step, action: WorkflowAction) -> None:
        plan = self._plan.workflows[action.workflow]
        items = scope.each.get(step.item_name) if step.for_each is not None else None
        for item in items or (None,):
            around = scope
            if items is not None:
                around = replace(scope, names={**scope.names, step.item_name: item})
            filling = foresee(step, around.names, around.partly)
            given = {
                name: value_of(value, around.names)
                for name, value in step.inputs.items()
                if is_known(value, around.names)
            }
            unknown = {name: shown(filling.inputs[name]) for name in step.inputs if name not in given}
            declared = tuple(one for one in plan.inputs if one.name not in unknown)
            try:
                bound = bind_inputs(replace(plan, inputs=declared), given)
            except AuthorError:
                bound = given  # the call will fail on it
            partly = {f"inputs.{name}": self._explained(around, text) for name, text in unknown.items()}
            called = (action.workflow, msgspec.json.encode([bound, partly], order="sorted"))
            if called in self._called:
                continue
            self._called.add(called)
            if len(self._called) > MAX_CALLS:
                raise _too_many(self._plan, f"calls of {MAX_CALLS:,} recipes")
            self.visit(_Scope(plan, f"{plan.name}: ", {"inputs": bound}, partly), plan.steps)


def _name_of(step: Step) -> str:
    return step.id.replace("-", "_")


def _is_known(scope: _Scope, step: Step) -> bool:
    return step.id in (scope.names.get("steps") or {})


def _said(output: Output) -> str:
    """Return the text of an output definition as in the recipe."""
    if isinstance(output, Fields):
        return "{" + ", ".join(f"{name}: {_said(value)}" for name, value in output.fields.items()) + "}"
    if isinstance(output, Constant):
        return shown(output.value)
    return f"{{{{{output.path}}}}}" if isinstance(output, Ref) else output.text


def plan_effects(
    plan: Plan,
    find_role: FindRole,
    *,
    inputs: Mapping[str, JSON] | None = None,
    backend: str | None = None,
) -> list[Effect]:
    """Return all effects of a run of a plan beyond reading. Without `inputs` their paths are shown.

    `backend` is the back end of roles that name none; `scripted` replaces the back end of all roles.
    """
    effects = _Effects(plan, find_role, backend or MODEL)
    names = {} if inputs is None else {"inputs": dict(inputs)}
    effects.visit(_Scope(plan, "", names, {}), plan.steps)
    return list(effects.found.values())


def role_effects(role: Role, find_role: FindRole, backend: str) -> Iterator[Effect]:
    """Yield what a session of a role starts, reaches and calls, regardless of the replies of its model."""
    from fanfold.agents.role import ROLES

    # A file of a project may use the name of a built-in role.
    who = f"role {role.name}" + (
        f" of {role.source}" if role.brought and any(role.name == one.name for one in ROLES) else ""
    )
    yield from _program(who, role, backend)
    if role.network:
        yield Effect(who, "network", "may reach the network", "")
    for guard in role.guards:
        tools = guard.matcher or "all tools"
        yield Effect(who, "guard", f"has its calls of {tools} judged by", guard.command)
    if role.mcp_servers:
        from fanfold.agents.tool_names import is_wanted
        from fanfold.agents.tools.mcp_servers import declare_server, servers_of  # few roles have any

        for name, settings in servers_of(role.mcp_servers).items():
            if is_wanted(name, role.tools):
                what = declare_server(name, settings)
                yield Effect(who, "server", f"uses the MCP server {name}", what, network=role.network)
    for number, stage in enumerate(role.pipeline, start=1):
        if stage.agent is not None:
            other = find_role(stage.agent)
            if other is None:
                message = f"the checked role {role.name} names the unknown role {stage.agent}"
                raise BugError("role.unknown", message)
            yield from role_effects(inside(other, role, model=None), find_role, backend)
        elif stage.tool is not None:
            yield from _fixed_call(f"{who}, stage {number},", role, stage)


def _program(who: str, role: Role, backend: str) -> Iterator[Effect]:
    """Yield the program that is the back end of a role, if it is a program."""
    from fanfold.agents.backend_registry import SCRIPTED

    used = SCRIPTED if backend == SCRIPTED else role.backend or backend
    if used in (MODEL, SCRIPTED):
        return
    from fanfold.agents.command.profile import is_program  # few roles name any

    if is_program(used):
        own = used in (COMMAND, SPOKEN)
        yield Effect(
            who,
            "program",
            "runs" if own else "runs the agent",
            shlex.join(role.command) if own else used,
            network=role.network,
        )


def _fixed_call(who: str, role: Role, stage: Stage) -> Iterator[Effect]:
    """Yield a call that a pipeline makes without asking a model. Read-only calls are no effects."""
    from fanfold.agents.tool_names import ALIASES, BY_NAME

    name = ALIASES.get(str(stage.tool), str(stage.tool))
    spec = BY_NAME.get(name)
    if spec is not None and not spec.mutates and name != "fetch_url":
        return
    argv = stage.args.get("argv")
    if name == "run_command" and isinstance(argv, list) and all(isinstance(one, str) for one in argv):
        yield Effect(who, "command", "runs", shlex.join(argv), network=role.network)
    else:
        yield Effect(who, "tool", f"calls {name}", msgspec.json.encode(stage.args).decode())


def _too_many(plan: Plan, what: str) -> WorldError:
    return WorldError(
        "permission.too_many",
        f"{plan.name} has more than {what}: no question can show them",
        hint="if you trust it, run it with --yes or --permission auto",
        exit_status=EXIT_PERMISSION,
    )
