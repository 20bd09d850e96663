"""Agent steps: a role gets a prompt and works in its own session, under the supervisor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fanfold.agents.backend import SUMMARY_CHARS, SessionFailed, SessionRequest
from fanfold.agents.entries import AgentBegin, Entry, ToolCall, UserInput
from fanfold.agents.role import Role
from fanfold.errors import WorldError
from fanfold.kernel.commands import Start
from fanfold.kernel.events import NOTHING_SPENT, Failure, Usage
from fanfold.kernel.plan import JSON, Step, Value
from fanfold.kernel.state import FAILED, Loop, Node, Scope
from fanfold.kernel.step_transitions import tries_again
from fanfold.language.consent import Effect
from fanfold.language.json_text import as_text
from fanfold.language.leaf_steps import AgentBody
from fanfold.language.step_grammar import read_body
from fanfold.language.template import UnresolvedPath, parse_template, render, render_known, resolve
from fanfold.language.terminal import shorten_line, shorten_middle
from fanfold.sessions.log import read_entries
from fanfold.steps.ids import is_held, root_of, session_id, typed_path
from fanfold.steps.records import home_of, session_of, turn_before
from fanfold.steps.run_config import RunConfig, with_stages
from fanfold.steps.step_type import (
    Execution,
    Filling,
    Job,
    LeafType,
    Outcome,
    Preparation,
    Services,
    StepLabel,
    failure,
    text_of,
    value_of,
)
from fanfold.steps.values import FEEDBACK_CHARS, MAX_CLAIMS, Piece, Values
from fanfold.store.protocol import Store
from fanfold.store.sealing import LARGE_BYTES

if TYPE_CHECKING:
    from fanfold.steps.step_workspace import StepWorkspace

# -----------------------------------------------------------------------------------------------------------
# Feedback of the previous iteration of a loop, if the recipe does not place it itself
#
# Rules
# * Only agents that start an iteration get it: agents that depend on no other step of the iteration. A later
#   agent, for example a reviewer, gets only its prompt.
# * A recipe that places `{{feedback}}` anywhere in the loop decides itself which agents get it.

FROM_ROUND_BEFORE = "What came of the last round:"
_PLACED = rb'\{\{\s*feedback\b|:"feedback(?:"|\.|\[| [=!])'
"""Finds `feedback` in a template, or as the value or start of an expression, but not as a field name."""


def told_of_round_before(node: Node, feedback: JSON) -> str:
    """The section with feedback that is appended to the prompt of an agent, or empty text."""
    if feedback in (None, ""):
        return ""
    child, above = node, node.parent
    while above is not None and not isinstance(above, Loop):
        if child.step.depends_on:
            return ""
        child, above = above, above.parent
    if above is None or re.search(_PLACED, msgspec.json.encode(above.step)):
        return ""
    return f"{FROM_ROUND_BEFORE}\n{shorten_middle(as_text(feedback), FEEDBACK_CHARS)}"


FROM_BEFORE = "What earlier phases found (read_file and list_files have all of it under ctx/wf):"
FROM_LAST_ROUND = "What was said about the last round, which did not pass:"
MAX_EXTRACT = 1_600


class AgentJob(Job, frozen=True):
    """The job of an agent step."""

    said: AgentBody
    prompt: str
    inputs: dict[str, JSON]
    judged: str = ""
    """For a critic or reviewer: the text that it judges and may quote."""
    pieces: tuple[Piece, ...] = ()
    """For a fold: the outputs to summarize."""
    agents_left: int = 0
    """For a fold: how many more sessions it may use."""
    placed: tuple[str, ...] = ()
    """Large inserted texts in the prompt, in order."""
    backend: str = ""
    """The fallback back end, if the run waits for the role's own back end."""
    probe: bool = False
    """Whether this job is the probe of a wait: the first attempt after it."""
    unlisted: str = ""
    """The role that a template rendered, if the step does not list that role."""


class AgentSteps(LeafType[AgentBody, AgentJob]):
    """The step type of agents."""

    body = AgentBody

    def label(self, step: Step, said: AgentBody) -> StepLabel:
        who = f"one of {', '.join(said.agents)}" if said.pick else said.role
        return StepLabel("writer" if step.posture == "writer" else "reader", who)

    def effects(self, step: Step, _said: AgentBody, filling: Filling) -> Iterator[Effect]:
        if step.posture == "writer":
            how = "" if step.merge == "auto" else f" ({step.merge})"
            how = " in the project itself" if step.workspace_mode == "shared" else how
            yield Effect(step.id, "write", f"writes{how}", ", ".join(map(filling.pattern, step.write_set)))

    def circumstances(self, frozen: RunConfig, said: AgentBody) -> JSON:
        """The role with the roles of its stages, the models, and the project's instructions to agents."""
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
        if said.purpose == "fold":
            pieces, agents = _folded(step.values, step.node), step.values.agents_left()
            return AgentJob(said, prompt, step.inputs, "", pieces, agents)
        judged, placed = _judged(step.values, step.node, said), _placed(step, said, prompt)
        return AgentJob(said, prompt, step.inputs, judged, placed=placed)

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
                backend=job.backend or services.frozen.backend_of(role),
                idle_ms=job.said.idle_timeout_ms,
                on_progress=execution.progress,
                journal=services.journal,
                # In a snapshot the reply is durable before the merge starts, so that merged work is never
                # requested again. Elsewhere the reply is written with the end of the step.
                durable=place.child is not None,
            )
        except SessionFailed as error:
            return Outcome(error=error.failure, usage=error.usage)
        output = _looked_up(services, execution, result.output) if job.judged else result.output
        return Outcome(output, None, result.summary, result.usage, _denied(execution, result.denied))

    def rescue(self, node: Node, job: AgentJob, outcome: Outcome) -> Outcome:
        """An extract of the outputs if the fold of a phase failed, so that the work is not lost."""
        from fanfold.steps.phases import extract

        failure = outcome.error
        if job.said.purpose != "fold" or failure is None or is_held(failure):
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


def _denied(execution: Execution[AgentJob], denied: Mapping[str, str]) -> Failure | None:
    """The warning for an agent that was denied tools, or None."""
    if not denied:
        return None
    node, reason = execution.node, shorten_line(next(iter(denied.values())), SUMMARY_CHARS)
    message = f"{node.path} was denied {', '.join(denied)}: {reason}"
    hint = "widen its role, its write_set or the run's permission if it needs them"
    return failure(node, execution.start, "permission", "agent.denied", message, hint, retryable=False)


def _check_place(store: Store, start: Start, node: Node, place: StepWorkspace) -> None:
    """Raise `workspace.lost` if a session would continue without the files that it changed."""
    session = home_of(node, start.attempt)
    goes_on = start.execution > 1 or session != session_id(start.run, start.step, start.attempt)
    if not goes_on or place.child is None or not place.is_new:
        return
    if any(isinstance(entry, ToolCall | AgentBegin) for entry in read_entries(store, session)):
        message = f"the workspace of {node.path} is gone, and with it what its agent had changed"
        hint = f"fanfold fork {root_of(node)} --from {typed_path(node)} runs the step again from the start"
        raise WorldError("workspace.lost", message, hint=hint)


def conversation(store: Store, frozen: RunConfig, node: Node) -> list[Entry]:
    """The earlier entries of the conversation that a step continues.

    They are the entries that a fork took over, or those of all earlier turns. A turn that never started adds
    the message that it was sent.
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
    """The message to a turn of a subagent."""
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
        folder=str(services.memory.parent),
        read_set=node.read_set,
        write_set=node.write_set,
        root=job.said.purpose == "lead",
        earlier=conversation(services.store, services.frozen, node),
        account=execution.account,
        strays=lambda: services.isolation.strays(node, place),
        probe=job.probe,
    )


def asked_of(role: Role, job: AgentJob) -> str:
    """The prompt of the step. A step without its own prompt gets that of its role, filled with its inputs."""
    if job.said.prompt is not None or role.prompt_template is None:
        return job.prompt
    own = render(parse_template(role.prompt_template), {"inputs": job.inputs})
    return "\n\n".join(part for part in (own, job.prompt) if part)


def _prompt(step: Preparation, action: AgentBody) -> str:
    parts = [text_of(action.prompt, step.names)] if action.prompt is not None else []
    return "\n\n".join((*parts, *(section.text for section in sections_of(step, action))))


class _ForeseenValues:
    """Placeholders for the outputs of steps, before the run."""

    def summary(self, node: Node) -> str:
        return f"{{{{steps.{node.step.id}.output}}}}"

    def pieces(self, _phase: Scope) -> list[Piece]:
        return []

    claims = pieces


def foreseen_prompt(node: Node, action: AgentBody, role: Role, names: dict[str, JSON]) -> str:
    """The prompt of a step that has not run. Values that are known only during the run stay as `{{…}}`."""
    inputs = {name: _foreseen_value(name, value, names) for name, value in node.step.inputs.items()}
    step = Preparation(values=cast(Values, _ForeseenValues()), node=node, names=names, inputs=inputs)
    own, known = (
        (action.prompt, names) if action.prompt is not None else (role.prompt_template, {"inputs": inputs})
    )
    parts = [] if own is None else [render_known(parse_template(own), known)]
    return "\n\n".join((*parts, *(section.text for section in sections_of(step, action))))


def _foreseen_value(name: str, value: Value, names: dict[str, JSON]) -> JSON:
    try:
        return value_of(value, names)
    except UnresolvedPath:
        return f"{{{{{name}}}}}"


def _placed(step: Preparation, action: AgentBody, prompt: str) -> tuple[str, ...]:
    """The large texts in a prompt: first those inserted by the template, then those of inputs."""
    if len(prompt) < LARGE_BYTES:
        return ()
    holes = [part for part in parse_template(action.prompt or "") if not isinstance(part, str)]
    values = (*(resolve(hole.path, step.names) for hole in holes), *step.inputs.values())
    return tuple(value for value in values if isinstance(value, str) and len(value) >= LARGE_BYTES)


class Section(Struct, frozen=True):
    """A section that is appended to a prompt: a heading with content. `step` is the source of the content."""

    text: str
    source: str
    step: Node | None = None


def sections_of(step: Preparation, action: AgentBody) -> list[Section]:
    """The sections that are appended to the prompt of an agent step."""
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
    """Summarize a phase, in a tree of sessions if it does not fit into one."""
    from fanfold.steps.phases import Folding

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
    """Write the outputs of a phase to files, for users and later phases.

    The files can be derived from the log. If they cannot be written now, they are written later with the
    other files of the run.
    """
    node = execution.node
    if node.parent is None:
        return
    from fanfold.steps.published import publish_phase

    try:
        publish_phase(services.memory, node.run.id, node.parent.path, execution.job.pieces, summary)
    except OSError:
        return


def _together(*spent: Usage | None) -> Usage | None:
    known = [one for one in spent if one is not None]
    return sum(known, NOTHING_SPENT) if known else None


def _folded(values: Values, node: Node) -> tuple[Piece, ...]:
    """The outputs that a fold summarizes: those of the last iteration of its phase."""
    loop = node.parent
    body = loop.children[-2] if isinstance(loop, Loop) else None
    return tuple(values.pieces(body)) if isinstance(body, Scope) else ()


def _judged(values: Values, node: Node, said: AgentBody) -> str:
    """The text that a critic or reviewer gets about the phase that it judges."""
    if said.purpose not in ("critic", "review"):
        return ""
    from fanfold.steps.phases import show

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
    """The reply of a critic or reviewer, with its evidence checked against the files of its workspace."""
    from fanfold.agents.tools.files import ArtifactFiles, PublishedFiles
    from fanfold.steps.phases import Beside, CitedEvidence, judged_verdict

    job, place = execution.job, execution.place
    beside: list[Beside] = [PublishedFiles(services.memory, execution.node.run.id)]
    if place.artifacts is not None:
        beside.append(ArtifactFiles(place.artifacts, place.path))
    checked = CitedEvidence(place.path, job.judged, beside).checked(output)
    if job.said.purpose == "critic" and isinstance(checked, dict):
        return judged_verdict(checked)
    return checked


def sibling(node: Node, name: str) -> Node | None:
    """The step with this id in the nearest enclosing scope of a node that has one."""
    parent = node.parent
    while parent is not None:
        found = node.run.nodes.get(f"{parent.path}/{name}" if parent.path else name)
        if found is not None:
            return found
        parent = parent.parent
    return None
