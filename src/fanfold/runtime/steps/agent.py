"""Agent steps: a role is given a prompt and works in a session of its own, under the supervisor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fanfold.agents.backend import SessionFailed, SessionRequest
from fanfold.agents.entries import AgentBegin, Entry, ToolCall, UserInput
from fanfold.agents.role import Role
from fanfold.errors import WorldError
from fanfold.kernel.commands import Start
from fanfold.kernel.events import NOTHING_SPENT, Usage
from fanfold.kernel.fold.step_events import tries_again
from fanfold.kernel.lifecycle import FAILED
from fanfold.kernel.nodes import Loop, Node, Scope
from fanfold.kernel.plan import JSON, Step
from fanfold.recipe.types.agent import AgentBody
from fanfold.recipe.types.body import read_body
from fanfold.runtime.records.frozen import Frozen, with_stages
from fanfold.runtime.records.ids import root_of, session_id, typed_path
from fanfold.runtime.records.reviews import MAX_CLAIMS
from fanfold.runtime.records.subagents import home_of, session_of, turn_before
from fanfold.runtime.records.values import Piece, Values
from fanfold.runtime.steps.round_before import told_of_round_before
from fanfold.runtime.steps.step_type import (
    Execution,
    Job,
    LeafType,
    Outcome,
    Preparation,
    Services,
    StepLabel,
    failure,
    text_of,
)
from fanfold.sessions.log import read_entries
from fanfold.store.blobs import LARGE_BYTES
from fanfold.store.protocol import Store
from fanfold.text.json_value import as_text
from fanfold.text.template import parse_template, render, resolve

if TYPE_CHECKING:
    from fanfold.runtime.places.place import Place

FROM_BEFORE = "What earlier phases found (read_file and list_files have all of it under ctx/wf):"
FROM_LAST_ROUND = "What was said about the last round, which did not pass:"
MAX_EXTRACT = 1_600


class AgentJob(Job, frozen=True):
    said: AgentBody
    prompt: str
    inputs: dict[str, JSON]
    judged: str = ""
    """Of a critic or reviewer: what it judges, and may quote."""
    pieces: tuple[Piece, ...] = ()
    """Of a fold: what it sums up."""
    agents_left: int = 0
    """Of a fold: how many sessions may help with it."""
    placed: tuple[str, ...] = ()
    """Large texts of others that stand in the prompt, in order."""
    micro_usd_left: int | None = None
    """What it may spend before a budget is used up."""
    unlisted: str = ""
    """What a template gave for a role, where the step does not list it."""


class AgentSteps(LeafType[AgentBody, AgentJob]):
    body = AgentBody

    def label(self, step: Step, said: AgentBody) -> StepLabel:
        who = f"one of {', '.join(said.agents)}" if said.pick else said.role
        return StepLabel("writer" if step.posture == "writer" else "reader", who)

    def declare(self, step: Step, _said: AgentBody) -> str:
        return f"writes {', '.join(step.write_set)}" if step.posture == "writer" else ""

    def circumstances(self, frozen: Frozen, said: AgentBody) -> JSON:
        """Its role with those of its stages, its models, and what the project tells every agent."""
        own = frozen.role_of(said)
        stages = with_stages({own.name: own}, frozen.roles.get)
        told = msgspec.to_builtins(frozen.instructions)
        models = (frozen.model_of(said) or frozen.default_model, frozen.model)
        return (msgspec.to_builtins(stages), models, told, frozen.backend_of(own))

    def prepare(self, step: Preparation, said: AgentBody) -> AgentJob:
        prompt = _prompt(step, said)
        if said.pick:
            name = text_of(said.pick, step.names).strip()
            if name not in said.agents:
                return AgentJob(said, prompt, step.inputs, unlisted=name or "nothing")
            role, marked, version = name.partition("@")
            said = replace(said, agent=role, agent_version=version if marked else None)
        left = step.values.micro_usd_left(step.node)
        if said.purpose == "fold":
            pieces, agents = _folded(step.values, step.node), step.values.agents_left()
            return AgentJob(said, prompt, step.inputs, "", pieces, agents, micro_usd_left=left)
        judged, placed = _judged(step.values, step.node, said), _placed(step, said, prompt)
        return AgentJob(said, prompt, step.inputs, judged, placed=placed, micro_usd_left=left)

    async def perform(self, services: Services, execution: Execution[AgentJob]) -> Outcome:
        start, node, job, place = execution.start, execution.node, execution.job, execution.place
        if job.unlisted:
            message = f"{node.path} was given the role {job.unlisted!r:.80}, which is not among its agents"
            hint = f"it may be one of: {', '.join(job.said.agents)}"
            told = failure(node, start, "permission", "agent.not_listed", message, hint, retryable=False)
            return Outcome(error=told)
        _check_place(services.store, start, node, place)
        role = services.session_role(node.step, job.said)
        request = _request(role, execution, services)
        if job.said.purpose == "fold":
            return await _fold(services, execution, request)
        try:
            result = await services.supervisor.run_step(
                request,
                backend=services.frozen.backend_of(role),
                idle_ms=job.said.idle_timeout_ms,
                on_progress=execution.progress,
                journal=services.journal,
                # In a snapshot the answer is durable before the merge begins: what is merged is not asked
                # for again. Elsewhere it is written with the end of the step.
                durable=place.child is not None,
            )
        except SessionFailed as error:
            return Outcome(error=error.failure, usage=error.usage)
        output = _looked_up(services, execution, result.output) if job.judged else result.output
        return Outcome(output, None, result.summary, result.usage)

    def rescue(self, node: Node, job: AgentJob, outcome: Outcome) -> Outcome:
        """The work of a phase is done when it is summed up: it is not lost because nobody could."""
        from fanfold.runtime.steps.phases.material import extract

        failure = outcome.error
        if job.said.purpose != "fold" or failure is None or failure.code == "session.paused":
            return outcome
        if tries_again(node, FAILED, failure):
            return outcome
        message = f"no summary was made of it: {failure.message or failure.code}"
        warning = replace(failure, code="fold.extract", message=message, hint="")
        output = f"(Extract of the outputs; nobody could sum them up.)\n{extract(job.pieces, MAX_EXTRACT)}"
        return Outcome(output, None, output, outcome.usage, warning, outcome.evidence)

    def task(self, job: AgentJob) -> str:
        return job.prompt

    def who(self, job: AgentJob) -> str:
        return job.said.role if job.said.pick and not job.unlisted else ""


def _check_place(store: Store, start: Start, node: Node, place: Place) -> None:
    """A session that changed files goes on only where these changes are."""
    session = home_of(node, start.attempt)
    goes_on = start.execution > 1 or session != session_id(start.run, start.step, start.attempt)
    if not goes_on or place.child is None or not place.is_new:
        return
    if any(isinstance(entry, ToolCall | AgentBegin) for entry in read_entries(store, session)):
        message = f"the workspace of {node.path} is gone, and with it what its agent had changed"
        hint = f"fanfold fork {root_of(node)} --from {typed_path(node)} runs the step again from the start"
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
    start, node, job, place = execution.start, execution.node, execution.job, execution.place
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
        placed=job.placed,
        output_schema=node.step.output_schema,
        outputs=node.step.outputs,
        workspace=place.path,
        read_set=node.read_set,
        write_set=node.write_set,
        root=job.said.purpose == "lead",
        earlier=conversation(services.store, services.frozen, node),
        max_micro_usd=job.micro_usd_left,
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


def _placed(step: Preparation, action: AgentBody, prompt: str) -> tuple[str, ...]:
    """The large texts in a prompt: whatever is put in by a template or an input, in that order."""
    if len(prompt) < LARGE_BYTES:
        return ()
    holes = [part for part in parse_template(action.prompt or "") if not isinstance(part, str)]
    values = (*(resolve(hole.path, step.names) for hole in holes), *step.inputs.values())
    return tuple(value for value in values if isinstance(value, str) and len(value) >= LARGE_BYTES)


class Section(Struct, frozen=True):
    """What is appended to a prompt: a heading, and what it brings. `step` is where that comes from."""

    text: str
    source: str
    step: Node | None = None


def sections_of(step: Preparation, action: AgentBody) -> list[Section]:
    """What an agent is told behind the words of its step."""
    values, node, names, inputs = step.values, step.node, step.names, step.inputs
    parts: list[Section] = []
    for name in action.summaries:
        dependency = sibling(node, name)
        if dependency is not None:
            text = f"Result of the earlier step {name}:\n{values.summary(dependency)}"
            parts.append(Section(text, f"steps.{name}.output", dependency))
    for name, value in inputs.items():
        parts.append(Section(f"{name}:\n{as_text(value)}", name))
    if judged := _judged(values, node, action):
        parts.append(Section(judged, "claims" if action.purpose == "review" else "result"))
    if node.run.plan.phased and action.purpose == "work":
        for name, heading in (("digest", FROM_BEFORE), ("feedback", FROM_LAST_ROUND)):
            told = names.get(name)
            if told and f"{{{{{name}}}}}" not in (action.prompt or "").replace(" ", ""):
                parts.append(Section(f"{heading}\n{as_text(told)}", name))
    elif action.purpose == "work" and (told := told_of_round_before(node, names.get("feedback"))):
        parts.append(Section(told, "feedback"))
    return parts


async def _fold(services: Services, execution: Execution[AgentJob], request: SessionRequest) -> Outcome:
    """Sum a phase up, in a tree of sessions where it does not fit one."""
    from fanfold.runtime.steps.phases.folding import Folding

    job, place = execution.job, execution.place
    _publish(services, execution, "")
    folding = Folding(services, request, place, execution.progress)
    folded = await folding.run(job.pieces, job.agents_left)
    if folded.held is not None:
        return Outcome(error=folded.held, usage=folded.usage)
    request = replace(request, prompt=f"{request.prompt}\n\n{folded.text}" if folded.text else request.prompt)
    try:
        result = await services.supervisor.run_step(
            request,
            backend=services.frozen.backend_of(request.role),
            idle_ms=job.said.idle_timeout_ms,
            on_progress=execution.progress,
            journal=services.journal,
        )
    except SessionFailed as error:
        return Outcome(error=error.failure, usage=_together(folded.usage, error.usage))
    usage = _together(folded.usage, result.usage)
    _publish(services, execution, str(result.output))
    return Outcome(result.output, None, result.summary, usage, folded.warning)


def _publish(services: Services, execution: Execution[AgentJob], summary: str) -> None:
    """Let people and later phases read all that the phase gave. It follows from the log: if it cannot be
    written now, it is when the run's other files are."""
    node = execution.node
    if node.parent is None:
        return
    from fanfold.runtime.records.published import publish_phase

    try:
        publish_phase(services.memory, node.run.id, node.parent.path, execution.job.pieces, summary)
    except OSError:
        return


def _together(*spent: Usage | None) -> Usage | None:
    known = [one for one in spent if one is not None]
    return sum(known, NOTHING_SPENT) if known else None


def _folded(values: Values, node: Node) -> tuple[Piece, ...]:
    """What a fold sums up: the last iteration of its phase."""
    loop = node.parent
    body = loop.children[-2] if isinstance(loop, Loop) else None
    return tuple(values.pieces(body)) if isinstance(body, Scope) else ()


def _judged(values: Values, node: Node, said: AgentBody) -> str:
    """What a critic or a reviewer is shown of the phase it judges."""
    if said.purpose not in ("critic", "review"):
        return ""
    from fanfold.runtime.steps.phases.material import show

    phase = node.parent
    while phase is not None and not isinstance(phase, Scope):
        phase = phase.parent
    if phase is None:
        return ""
    if said.purpose == "critic":
        return f"Result:\n\n{show(values.pieces(phase)).text}"
    claims = values.claims(phase)
    listed = [Piece(f"Claim {claim.name}", claim.text) for claim in claims[:MAX_CLAIMS]]
    return show(listed).text or "There are no claims: answer with an empty list."


def _looked_up(services: Services, execution: Execution[AgentJob], output: JSON) -> JSON:
    """The answer of a critic or reviewer with its evidence looked up, where it worked."""
    from fanfold.agents.toolbox.artifacts import ArtifactFiles
    from fanfold.agents.toolbox.published import PublishedFiles
    from fanfold.runtime.steps.phases.cited_evidence import Beside, CitedEvidence, judged_verdict

    job, place = execution.job, execution.place
    beside: list[Beside] = [PublishedFiles(services.memory, execution.node.run.id)]
    if place.artifacts is not None:
        beside.append(ArtifactFiles(place.artifacts, place.path))
    checked = CitedEvidence(place.path, job.judged, beside).checked(output)
    if job.said.purpose == "critic" and isinstance(checked, dict):
        return judged_verdict(checked)
    return checked


def sibling(node: Node, name: str) -> Node | None:
    """A step by id, looked up from the scope around a node outwards."""
    parent = node.parent
    while parent is not None:
        found = node.run.nodes.get(f"{parent.path}/{name}" if parent.path else name)
        if found is not None:
            return found
        parent = parent.parent
    return None
