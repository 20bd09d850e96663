"""Agent steps: a role is given a prompt and works in a session of its own, under the supervisor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from fanfold.agents.backend import SessionFailed, SessionRequest
from fanfold.agents.entries import AgentBegin, Entry, ToolCall, UserInput
from fanfold.agents.role import Role
from fanfold.errors import WorldError
from fanfold.kernel.commands import Start
from fanfold.kernel.fold.step_events import tries_again
from fanfold.kernel.lifecycle import FAILED
from fanfold.kernel.nodes import Loop, Node, Scope
from fanfold.kernel.plan import JSON, Step
from fanfold.recipe.types.agent import AgentBody
from fanfold.recipe.types.body import read_body
from fanfold.runtime.places.isolation import Place
from fanfold.runtime.records.frozen import Frozen, with_stages
from fanfold.runtime.records.ids import session_id
from fanfold.runtime.records.subagents import home_of, session_of, turn_before
from fanfold.runtime.records.values import Values
from fanfold.runtime.steps.rendering import text_of
from fanfold.runtime.steps.step_type import (
    Execution,
    Job,
    LeafType,
    Outcome,
    Preparation,
    Services,
    StepLabel,
)
from fanfold.sessions.log import read_entries
from fanfold.store.protocol import Store
from fanfold.text.excerpts import shorten
from fanfold.text.json_value import as_text
from fanfold.text.template import parse_template, render

MAX_ITEM_EXCERPT = 20_000
MAX_EXTRACT = 1_600


class AgentJob(Job, frozen=True):
    said: AgentBody
    prompt: str
    inputs: dict[str, JSON]
    extract: str = ""
    """Of a fold: what stands in for the summary when none can be made."""


class AgentSteps(LeafType[AgentBody, AgentJob]):
    body = AgentBody

    def label(self, step: Step, said: AgentBody) -> StepLabel:
        return StepLabel("writer" if step.posture == "writer" else "reader", said.role)

    def declare(self, step: Step, _said: AgentBody) -> str:
        return f"writes {', '.join(step.write_set)}" if step.posture == "writer" else ""

    def circumstances(self, frozen: Frozen, said: AgentBody) -> JSON:
        """Its role with those of its stages, its models, and what the project tells every agent."""
        own = frozen.role_of(said)
        stages = with_stages({own.name: own}, frozen.roles.get)
        models = (frozen.model_of(said) or frozen.default_model, frozen.model)
        return (msgspec.to_builtins(stages), models, frozen.instructions, frozen.backend_of(own))

    def prepare(self, step: Preparation, said: AgentBody) -> AgentJob:
        extract = _extract(step.values, step.node) if said.purpose == "fold" else ""
        return AgentJob(said, _prompt(step, said), step.inputs, extract)

    async def perform(self, services: Services, execution: Execution[AgentJob]) -> Outcome:
        start, node, job, place, progress = execution
        _check_place(services.store, start, node, place)
        role = services.frozen.session_role(node.step, job.said)
        try:
            result = await services.supervisor.run_step(
                _request(role, execution, services),
                backend=services.frozen.backend_of(role),
                on_progress=progress,
                journal=services.journal,
                # In a snapshot the answer is durable before the merge begins: what is merged is not asked
                # for again. Elsewhere it is written with the end of the step.
                durable=place.child is not None,
            )
        except SessionFailed as error:
            return Outcome(error=error.failure, usage=error.usage)
        return Outcome(result.output, None, result.summary, result.usage)

    def rescue(self, node: Node, job: AgentJob, outcome: Outcome) -> Outcome:
        """The work of a phase is done when it is summed up: it is not lost because nobody could."""
        failure = outcome.error
        if job.said.purpose != "fold" or failure is None or failure.code == "session.paused":
            return outcome
        if tries_again(node, FAILED, failure):
            return outcome
        message = f"no summary was made of it: {failure.message or failure.code}"
        warning = replace(failure, code="fold.extract", message=message, hint="")
        output = f"(Extract of the outputs; nobody could sum them up.)\n{job.extract}"
        return Outcome(output, None, output, outcome.usage, warning)

    def task(self, job: AgentJob) -> str:
        return job.prompt


def _check_place(store: Store, start: Start, node: Node, place: Place) -> None:
    """A session that changed files goes on only where these changes are."""
    session = home_of(node, start.attempt)
    goes_on = start.execution > 1 or session != session_id(start.run, start.step, start.attempt)
    if not goes_on or place.child is None or not place.is_new:
        return
    if any(isinstance(entry, ToolCall | AgentBegin) for entry in read_entries(store, session)):
        message = f"the workspace of {node.path} is gone, and with it what its agent had changed"
        hint = "fanfold fork runs the step again from the start"
        raise WorldError("workspace.lost", message, hint=hint)


def conversation(store: Store, frozen: Frozen, node: Node) -> list[Entry]:
    """What was said before in the conversation that a step goes on with: what a fork took up, all that the
    turns before it said, as far as it is for the agent, and what was said to a turn that never began.
    """
    taken = frozen.taken_up.get(node.run.tree_path(node.path))
    if taken is not None:
        return [recorded.entry for recorded in taken.entries]
    before = turn_before(node)
    if before is None:
        return []
    if not before.attempt:
        said: Sequence[Entry] = [UserInput(text=words_of(before))]
    else:
        said = read_entries(store, session_of(before))
    return [*conversation(store, frozen, before), *said]


def words_of(node: Node) -> str:
    """What a turn of a subagent was to be told."""
    return render(parse_template(read_body(AgentBody, node.step).prompt or ""), {})


def _request(role: Role, execution: Execution[AgentJob], services: Services) -> SessionRequest:
    start, node, job, place, _ = execution
    path = node.run.tree_path(node.path)
    taken = services.frozen.taken_up.get(path)
    return SessionRequest(
        session_id=session_id(start.run, start.step, start.attempt),
        run_id=start.run,
        step=path,
        attempt=start.attempt,
        execution=start.execution,
        role=role,
        prompt=(taken.say if taken is not None else "") or asked_of(role, job),
        output_schema=node.step.output_schema,
        outputs=node.step.outputs,
        workspace=place.path,
        write_set=node.write_set,
        earlier=conversation(services.store, services.frozen, node),
    )


def asked_of(role: Role, job: AgentJob) -> str:
    """The step's prompt; a step that has none of its own is told what its role says, about its inputs."""
    if job.said.prompt is not None or role.prompt_template is None:
        return job.prompt
    own = render(parse_template(role.prompt_template), {"inputs": job.inputs})
    return "\n\n".join(part for part in (own, job.prompt) if part)


def _prompt(step: Preparation, action: AgentBody) -> str:
    parts = [text_of(action.prompt, step.names)] if action.prompt is not None else []
    return "\n\n".join((*parts, *(section.text for section in sections_of(step, action))))


class Section(NamedTuple):
    """What is appended to a prompt: a heading, and what it brings. `step` is where that comes from."""

    text: str
    source: str
    step: Node | None = None


def sections_of(step: Preparation, action: AgentBody) -> list[Section]:
    """What an agent is told behind the words of its step."""
    values, node, names, inputs = step
    parts: list[Section] = []
    for name in action.summaries:
        dependency = sibling(node, name)
        if dependency is not None:
            text = f"Result of the earlier step {name}:\n{values.summary(dependency)}"
            parts.append(Section(text, f"steps.{name}.output", dependency))
    for name, value in inputs.items():
        parts.append(Section(f"{name}:\n{as_text(value)}", name))
    if action.purpose == "fold":  # the outputs of the phase's last iteration, bounded, for their summary
        for child in _folded(node):
            text = f"{child.step.id}:\n{shorten(as_text(values.output(child)), MAX_ITEM_EXCERPT)}"
            parts.append(Section(text, f"steps.{child.step.id}.output", child))
    if node.run.plan.phased and action.purpose == "work" and "{{digest}}" not in (action.prompt or ""):
        digest = names.get("digest")
        if digest:
            parts.append(Section(f"What earlier phases found:\n{digest}", "digest"))
    return parts


def _extract(values: Values, node: Node) -> str:
    """The beginning of each of those outputs, together no longer than what other phases are given."""
    folded = _folded(node)
    share = MAX_EXTRACT // max(1, len(folded))
    return "\n".join(shorten(f"{child.step.id}: {values.summary(child)}", share) for child in folded)


def _folded(node: Node) -> list[Node]:
    """The steps that a fold sums up."""
    loop = node.parent
    body = loop.children[-2] if isinstance(loop, Loop) else None
    return body.children if isinstance(body, Scope) else []


def sibling(node: Node, name: str) -> Node | None:
    """A step by id, looked up from the scope around a node outwards."""
    parent = node.parent
    while parent is not None:
        found = node.run.nodes.get(f"{parent.path}/{name}" if parent.path else name)
        if found is not None:
            return found
        parent = parent.parent
    return None
