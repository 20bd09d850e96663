"""Permission of a run (`read_only`, `ask` or `auto`), and the effects that it is needed for.

One question at the start covers every effect of the recipe: commands, functions, agents that write, programs
and servers of its roles. Every surface shows the same question (`RunConsent.request`, rendered by
`language.consent`).

Rules of the question
* A recipe that only reads needs no permission for its effects. But fifty agents cost money: the user is also
  asked if the run will probably start more agents, or spend more, than the user's own configuration allows.
  The project's configuration does not count here.
* No question is asked about scripted agents, nor about spending that a budget of the run excludes.

Rules of the effects
* Every step of the plan and of called recipes is visited, regardless of its conditions. Texts are filled by
  the code that prepares the step (`StepType.prepare`), with all known values: inputs and their defaults,
  values of `set` steps, inputs of calls. A value that is only known during the run is shown as its path.
* The items of a map are listed with each effect that names them. A call that passes an item on is followed
  for each item.
* A path may stand for a value that the recipe itself defines: a list, a `set`, the output of a group or a
  called recipe, a choice, a default answer, feedback, the texts of a failure. Then a row shows the
  definition, and further rows those of names in it.
* A role's effects are those of the role in its session: its program, network, MCP servers, guards, the fixed
  calls of its pipeline with the prompt that they insert.
* More than `MAX_EFFECTS`, or more than `MAX_CHARS`, are refused: no person reads them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fanfold.agents.backend_registry import MODEL, SCRIPTED
from fanfold.agents.role import COMMAND, ROLES, SPOKEN, Role, Stage, for_step, inside
from fanfold.agents.tool_names import ALIASES, BY_NAME, is_wanted
from fanfold.api.project import Project
from fanfold.api.run_options import Options
from fanfold.engine.config import Config
from fanfold.engine.definitions import (
    Definition,
    call_inputs,
    failure_texts,
    leaf_sources,
    names_in,
    names_of,
    output_text,
)
from fanfold.engine.forecast import is_certain, is_known
from fanfold.engine.run_tree import RunTree
from fanfold.errors import EXIT_PERMISSION, AuthorError, BugError, WorldError
from fanfold.kernel.plan import (
    JSON,
    GroupAction,
    Output,
    Plan,
    Step,
    WorkflowAction,
)
from fanfold.kernel.state import TERMINAL
from fanfold.language.consent import ConsentRequest, Effect, count_effects
from fanfold.language.expressions import evaluate
from fanfold.language.inputs import bind_inputs
from fanfold.language.json_text import as_text
from fanfold.language.leaf_steps import AgentBody, find_body
from fanfold.language.template import ExpressionError, UnresolvedPath
from fanfold.language.terminal import visible
from fanfold.steps.run_config import RESOLVER
from fanfold.steps.set_and_end import SetBody
from fanfold.steps.step_type import KnownNames, effects_of, foresee, items_of, shown, value_of
from fanfold.store.protocol import Batch
from fanfold.workspace.seal import is_adopted, permitted

if TYPE_CHECKING:
    from fanfold.agents.permissions import Action, Answer


MAX_NAMED = 5
KEPT_FROM_LOG = "it continues from results and answers in its log, which another user may have written"
AGENTS, CENTS = "permission.ask_above_agents", "permission.ask_above_cents"


class RunConsent(Struct, frozen=True, kw_only=True):
    """The effects and costs that a run needs permission for."""

    question: str
    effects: tuple[Effect, ...]
    reasons: tuple[str, ...] = ()
    """Why the user is asked, besides the effects."""
    totals: tuple[str, ...] = ()

    @property
    def needed(self) -> bool:
        return bool(self.reasons) or any(not one.permitted for one in self.effects)

    @property
    def request(self) -> ConsentRequest:
        """The question as every surface shows it."""
        counted = count_effects(self.effects)
        totals = (*self.totals, *((counted,) if counted else ()), *self.reasons)
        return ConsentRequest(self.question, tuple(one.text for one in self.effects), totals)

    @property
    def needs(self) -> list[str]:
        """Return the question as a list for programs; empty if no permission is needed."""
        texts = (*self.reasons, *(one.text for one in self.effects)) if self.needed else ()
        return [visible(text, keep="\n") for text in texts]


def consent_of(
    project: Project,
    plan: Plan,
    find_role: FindRole,
    options: Options | None = None,
    *,
    inputs: Mapping[str, JSON] | None = None,
    reasons: Sequence[str] = (),
    totals: Sequence[str] = (),
) -> RunConsent:
    """Return the permission that a run of a plan needs. An input that contains a secret is only named."""
    scripted = options is not None and options.script is not None
    backend = SCRIPTED if scripted else MODEL if options is None else options.backend
    effects = plan_effects(plan, find_role, inputs=_without_secrets(project, inputs), backend=backend)
    paths = project.config.texts("workspace.include")
    if included := [path for path in paths if (project.folder / path).exists()]:
        does = "shows its steps the ignored files that you included"
        effects.append(Effect(plan.name, "include", does, ", ".join(included), permitted=True))
    if setup := project.config.texts("workspace.setup"):
        reach = project.config.switch("workspace.setup_network")
        does = "runs the setup command of your configuration for isolated steps"
        effects.append(Effect(plan.name, "setup", does, shlex.join(setup), network=reach, permitted=True))
    question = f"{plan.name} asks for permission."
    return RunConsent(question=question, effects=tuple(effects), reasons=tuple(reasons), totals=tuple(totals))


def _without_secrets(project: Project, inputs: Mapping[str, JSON] | None) -> dict[str, JSON] | None:
    """Return the inputs that contain no secret.

    Texts of a recipe are never redacted: a text that looks like a secret must not hide a command.
    """
    clean = project.backends.machine.redactor.json
    return None if inputs is None else {name: one for name, one in inputs.items() if clean(one) == one}


class Prompter(Protocol):
    """Asks a person while a run is started and driven."""

    def permits(self, request: ConsentRequest) -> bool:
        """Whether the person permits everything that the request shows."""
        ...

    async def allow(self, action: Action) -> Answer:
        """Whether an agent is allowed to perform an action, and for how long."""
        ...


def is_settled(posture: str, *, yes: bool) -> bool:
    """Whether no question is needed, regardless of the effects of the run."""
    return posture == "auto" or (posture == "ask" and yes)


def permit(consent: RunConsent, posture: str, *, yes: bool = False, prompter: Prompter | None = None) -> bool:
    """Return whether a person was asked and agreed; raise `permission_denied` if the run may not start."""
    if is_settled(posture, yes=yes) or not consent.needed:
        return False
    if posture == "ask" and prompter is not None and prompter.permits(consent.request):
        return True
    needs = consent.needs
    named = "; ".join(visible(one) for one in needs[:MAX_NAMED])
    more = f"; and {len(needs) - MAX_NAMED} more, which --json lists" if len(needs) > MAX_NAMED else ""
    name = consent.question.partition(" ")[0]
    hint = 'run it with --yes or --permission auto; from Python, with Options(permission="auto")'
    if posture == "read_only":
        hint = "--permission read_only allows only reading; omit it to be asked, or use --permission auto"
    message, details = f"{name} needs permission: {named}{more}", {"needs": needs}
    raise WorldError("permission_denied", message, hint=hint, details=details, exit_status=EXIT_PERMISSION)


def permit_adopted(project: Project, tree: RunTree, *, yes: bool, prompter: Prompter | None) -> None:
    """Return if a run may continue. An adopted run requires the permission of the user here."""
    root = tree.root.id
    if not is_adopted(project.folder, root):
        return
    permit(adopted_consent(project, tree), "ask", yes=yes, prompter=prompter)
    # Requests (answers, new children) that came with the run are deleted: another user made them.
    left = [request.id for request in project.store.requests(root)]
    if left:
        lease = project.store.acquire(root)
        try:
            project.store.write([Batch(root=root, epoch=lease.epoch, requests_done=left)])
        finally:
            project.store.release(lease)
    permitted(project.folder, root)


def adopted_consent(project: Project, tree: RunTree) -> RunConsent:
    """Return the permission that an adopted run needs, with all children of an open run and all scripts.

    Raises `run.adopted` if its log approves a delivery that was not carried out: this user did not approve
    it.
    """
    agreed = [node.path for node in tree.nodes() if node.agreed and node.status not in TERMINAL]
    if agreed:
        message = (
            f"the log of run {tree.root.id} agrees to the delivery {agreed[0]}, but was imported or adopted"
        )
        hint = f"fork it, which asks again: fanfold fork {tree.root.id} --from {agreed[0]}"
        raise WorldError("run.adopted", message, hint=hint, exit_status=EXIT_PERMISSION)
    frozen = tree.frozen()
    parts = [(tree.state.plan, frozen, tree.values.inputs(tree.root))]
    if tree.state.plan.open:
        children = tree.root.scope.children
        parts = [(Plan(name=node.step.id, steps=(node.step,)), tree.frozen(node), {}) for node in children]
    effects: dict[str, Effect] = {}
    backends: set[str] = set()
    for plan, own, inputs in parts:
        backends |= own.backends() or {own.backend}
        backend = SCRIPTED if own.script is not None else own.backend
        known = _without_secrets(project, inputs)
        listed = plan_effects(plan, own.roles.get, inputs=known, backend=backend)
        if own.script is not None:
            script = "has its agents answer and act by this script"
            listed.insert(0, Effect(plan.name, "script", script, own.script))
        for effect in listed:
            effects.setdefault(effect.text, effect)
    return RunConsent(
        question=f"{tree.state.plan.name} asks for permission to continue.",
        effects=tuple(effects.values()),
        reasons=(KEPT_FROM_LOG, f"its agents work on: {', '.join(sorted(backends))}"),
    )


class Spending(Struct, frozen=True):
    """Expected agents and cost of a run, and its maximum of agents. An unknown price counts as 0."""

    agents: int
    micro_usd: int
    most_agents: int = 0

    def totals(self) -> tuple[str, ...]:
        """Return the numbers that the question shows first."""
        if not self.agents and not self.most_agents:
            return ()
        most = max(self.agents, self.most_agents)
        about = "" if self.agents == most else "about "
        bound = f", at most {most:,}" if about else ""
        price = f"; about ${self.micro_usd / 1_000_000:.2f}" if self.micro_usd else "; price unknown"
        return (f"{about}{self.agents:,} agent{'' if self.agents == 1 else 's'}{bound}{price}",)


def asked_about(config: Config, spending: Spending) -> list[str]:
    """Return why the user is asked about a run that only reads: it exceeds the user's limits for asking."""
    reasons: list[str] = []
    if spending.agents > (most := config.integer(AGENTS)):
        reasons.append(f"will probably start {spending.agents} agents (more than {most}, {AGENTS})")
    if spending.micro_usd > (cents := config.integer(CENTS)) * 10_000:
        dollars = spending.micro_usd / 1_000_000
        reasons.append(f"will probably cost ${dollars:.2f} (more than ${cents / 100:.2f}, {CENTS})")
    return reasons


# -----------------------------------------------------------------------------------------------------------
# The effects of a run beyond reading

MAX_EFFECTS = 10_000
MAX_CHARS = 2_000_000
MAX_CALLS = 10_000
"""Limit of followed calls of recipes. Each item of a map counts as one."""

_HOLE: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_NAME: Final = re.compile(r"\s*((?:inputs|steps)\.[\w-]+|[A-Za-z_]\w*)")
"""Matches the input, the step or the item that a path starts with."""
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
    loop: Step | None = None
    """The nearest loop around the step; `feedback` is that of its last iteration."""


class _Effects:
    """Collects the effects of a plan."""

    def __init__(self, plan: Plan, find_role: FindRole, backend: str) -> None:
        self._plan = plan
        self._find = find_role
        self._backend = backend
        self._called: set[tuple[str, bytes]] = set()
        self._chars = 0
        self.found: dict[tuple[str, str], Effect] = {}
        """By text and kind: a role that two steps name is listed once."""

    def visit(self, scope: _Scope, steps: Sequence[Step]) -> None:
        scope = self._with_sets(scope, steps)
        scope = replace(scope, steps={**scope.steps, **{_name(step.id): step for step in steps}})
        for step in steps:
            self._visit_step(scope, step)
            if step.fold is not None:
                self._visit_step(replace(scope, loop=step), step.fold)

    def _visit_step(self, scope: _Scope, step: Step) -> None:
        scope = self._in_map(scope, step)
        scope = scope if step.repeat is None else replace(scope, loop=step)
        if isinstance(step.action, GroupAction):
            self.visit(scope, step.action.steps)
            return
        filling = foresee(step, scope.names, scope.partly)
        if isinstance(step.action, WorkflowAction):
            self._follow(scope, step, step.action)
        placed = f"\nruns_on: {step.runs_on}" if step.runs_on else ""
        for effect in effects_of(step, filling):
            what = self._explained(scope, effect.what + placed)
            self._add(replace(effect, who=scope.prefix + effect.who, what=what))
        body = find_body(AgentBody, step)
        names = body.roles() if body is not None else ()
        for name in (*names, *((RESOLVER,) if step.on_conflict == "resolve" else ())):
            role = _known_role(self._find, name, "plan")
            if body is not None and name in names:
                role = for_step(role, tools=body.tools, read_only=step.posture == "read_only")
            for effect in role_effects(role, self._find, self._backend):
                if body is not None and effect.kind in ("command", "tool") and "{{" in effect.what:
                    rows = f"{effect.what}\nwhere prompt is {_prompt(scope, body, role, filling)}"
                    self._add(replace(effect, what=self._explained(scope, rows)))
                else:
                    self._add(effect)

    def _add(self, effect: Effect) -> None:
        if self.found.setdefault((effect.text, effect.kind), effect) is effect:
            self._chars += len(effect.text)
        if len(self.found) > MAX_EFFECTS:
            raise _too_many(self._plan, f"{MAX_EFFECTS:,} effects")
        if self._chars > MAX_CHARS:
            raise _too_many(self._plan, f"{MAX_CHARS:,} characters of effects")

    # Known values

    def _with_sets(self, scope: _Scope, steps: Sequence[Step]) -> _Scope:
        """Return the scope with the known values of its `set` steps.

        A step of this scope replaces a step of the same name in an outer scope, even if its value is unknown.
        """
        own = {_name(step.id) for step in steps}
        outer: dict[str, JSON] = scope.names.get("steps") or {}
        known = {path: value for path, value in outer.items() if _name(path) not in own}
        names = {**scope.names, "steps": known}
        left = [(step, body) for step in steps if (body := find_body(SetBody, step)) is not None]
        waiting = None
        while left != waiting:
            waiting, left = left, [one for one in left if not self._work_out(*one, names, known)]
        return replace(scope, names=names)

    @staticmethod
    def _work_out(step: Step, body: SetBody, names: Mapping[str, JSON], known: dict[str, JSON]) -> bool:
        """Record the output of a `set` step if it is certain, and return whether it is."""
        if step.when is not None or step.for_each is not None or step.repeat is not None:
            return False
        skippable = step.on_failure == "inline" and any(name not in known for name in step.depends_on)
        if skippable or step.output_schema is not None:  # other steps may read that it did not complete
            return False
        if not all(is_certain(text, names) for text in body.set.values()):
            return False
        try:
            output = {name: evaluate(text, names) for name, text in body.set.items()}
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
        """Return a text with the definitions of its paths, and all that these definitions read."""
        rows = [text]
        paths = (found[1] for hole in _HOLE.findall(text) if (found := _NAME.match(hole)))
        # If the value of a path is known, the path in braces is text of that value.
        known = {f"{root}.{name}" for root in ("inputs", "steps") for name in scope.names.get(root) or {}}
        pending = [path for path in paths if path not in known]
        seen_names: set[str] = set()
        while pending:
            name = pending.pop()
            if name in seen_names:
                continue
            seen_names.add(name)
            for definition in self._definitions(scope, name):
                rows.append(definition.row)
                pending += definition.reads
        return "\n".join(rows)

    def _definitions(self, scope: _Scope, name: str) -> Iterator[Definition]:
        """Yield the definitions of an item, an input or the output of a step."""
        root, _, part = name.partition(".")
        if root == "feedback" and scope.loop is not None:
            yield Definition(f"where feedback is what {scope.loop.id} gave, or why it failed")
            yield from self._reply_sources(scope.loop, scope.loop.id, set(), fails=True)
        elif root == "digest" and scope.plan.phased:
            yield from (row for one in scope.plan.steps for row in self._reply_sources(one, one.id, set()))
        elif root in scope.each:
            yield Definition(f"where {root} is each of {msgspec.json.encode(scope.each[root]).decode()}")
        elif root in scope.lists:
            yield Definition(f"where {root} is each of {scope.lists[root]}", names_in(scope.lists[root]))
        elif root == "inputs":
            values = {key: shown(value) for key, value in (scope.names.get("inputs") or {}).items()}
            values |= {path.removeprefix("inputs."): text for path, text in scope.partly.items()}
            for key, text in values.items():
                if part in ("", key):
                    yield Definition(f"where inputs.{key} is {text}")
        elif root == "steps" and (step := scope.steps.get(_name(part))) is not None:
            if step.id in (scope.names.get("steps") or {}):
                yield Definition(f"where {step.id} gives {shown(scope.names['steps'][step.id]['output'])}")
            else:
                yield from self._reply_sources(step, step.id, set())

    def _reply_sources(
        self, step: Step, who: str, called: set[tuple[str, bool]], *, fails: bool = False
    ) -> Iterator[Definition]:
        """Yield how the recipe defines the output of a step and of the steps inside it.

        With `fails`, and for a step that fails `inline`, also the texts that its failure may quote.
        """
        action = step.action
        rows: list[Definition] = []
        fails = fails or step.on_failure == "inline"
        if fails or find_body(AgentBody, step) is not None:
            rows += failure_texts(step, who, fails=fails)
        rows += leaf_sources(step, who)
        if isinstance(action, GroupAction):
            rows += self._output_sources(action.output, action.steps, f"{who}/", who, called, fails=fails)
        elif isinstance(action, WorkflowAction):
            plan = self._plan.workflows[action.workflow]
            rows += call_inputs(step, plan)
            if (action.workflow, fails) not in called:
                called.add((action.workflow, fails))
                prefix = f"{plan.name}: "
                rows += self._output_sources(plan.output, plan.steps, prefix, who, called, fails=fails)
        if rows and step.for_each is not None:
            row = f"where {who} is done for each of {step.for_each}"
            rows.append(Definition(row, names_in(step.for_each)))
        yield from rows

    def _output_sources(
        self,
        output: Output | None,
        steps: Sequence[Step],
        prefix: str,
        who: str,
        called: set[tuple[str, bool]],
        *,
        fails: bool,
    ) -> Iterator[Definition]:
        inside = [
            row for one in steps for row in self._reply_sources(one, prefix + one.id, called, fails=fails)
        ]
        if output is not None:
            yield Definition(f"where {who} gives {output_text(output)}", names_of(output))
        elif inside:
            yield Definition(f"where {who} gives what {prefix}{steps[-1].id} gives")
        yield from inside

    # Called recipes

    def _follow(self, scope: _Scope, step: Step, action: WorkflowAction) -> None:
        plan = self._plan.workflows[action.workflow]
        items = scope.each.get(step.item_name) if step.for_each is not None else None
        for item in items or (None,):
            around = scope
            if items is not None:
                around = replace(scope, names={**scope.names, step.item_name: item})
            filling, names = foresee(step, around.names, around.partly), around.names
            known = {name: value for name, value in step.inputs.items() if is_known(value, names)}
            given = {name: value_of(value, names) for name, value in known.items()}
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


def _prompt(scope: _Scope, body: AgentBody, role: Role, filling: KnownNames) -> str:
    """Return the prompt of an agent step as far as it is known; the rest as paths."""
    template = role.prompt_template if body.prompt is None else body.prompt
    own = replace(filling, names={"inputs": filling.inputs}) if body.prompt is None else filling
    parts = [own.text(template)] if template is not None else []
    parts += [f"{{{{steps.{name}.output}}}}" for name in body.summaries]
    parts += [f"{name}: {as_text(value)}" for name, value in filling.inputs.items()]
    parts += ["{{feedback}}"] if scope.loop is not None else []
    return "\n".join((*parts, "{{digest}}") if scope.plan.phased else parts)


def _name(step: str) -> str:
    """Return the name of a step in expressions."""
    return step.replace("-", "_")


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
    """Yield the programs, servers and calls of a role's session that do not depend on its model."""
    who = f"role {role.name}"
    if role.brought and any(role.name == one.name for one in ROLES):
        who += f" of {role.source}"  # a file of a project may use the name of a built-in role
    yield from _program(who, role, backend)
    if role.network:
        yield Effect(who, "network", "may reach the network", "")
    for guard in role.guards:
        tools = guard.matcher or "all tools"
        yield Effect(who, "guard", f"has its calls of {tools} judged by", guard.command)
    if role.mcp_servers:
        from fanfold.agents.tools.mcp_servers import declare_server, servers_of  # few roles have any

        for name, settings in servers_of(role.mcp_servers).items():
            if is_wanted(name, role.tools):
                what = declare_server(name, settings)
                yield Effect(who, "server", f"uses the MCP server {name}", what, network=role.network)
    for number, stage in enumerate(role.pipeline, start=1):
        if stage.agent is not None:
            other = _known_role(find_role, stage.agent, f"role {role.name}")
            yield from role_effects(inside(other, role, model=None), find_role, backend)
        elif stage.tool is not None:
            yield from _fixed_call(f"{who}, stage {number},", role, stage)


def _known_role(find_role: FindRole, name: str, named_by: str) -> Role:
    role = find_role(name)
    if role is None:
        raise BugError("role.unknown", f"the checked {named_by} names the unknown role {name}")
    return role


def _program(who: str, role: Role, backend: str) -> Iterator[Effect]:
    """Yield the programs that are back ends of a role, also those that it only falls back to."""
    used = (SCRIPTED,) if backend == SCRIPTED else (role.backend or backend, *role.fallback_backends)
    for number, name in enumerate(used):
        if name in (MODEL, SCRIPTED):
            continue
        from fanfold.agents.command.profile import is_program  # few roles name any

        if is_program(name):
            own = name in (COMMAND, SPOKEN)
            does, what = ("runs", shlex.join(role.command)) if own else ("runs the agent", name)
            when = f"{who}, if its back end fails," if number else who
            yield Effect(when, "program", does, what, network=role.network)


def _fixed_call(who: str, role: Role, stage: Stage) -> Iterator[Effect]:
    """Yield a call that a pipeline makes without asking a model. Read-only calls are no effects."""
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
