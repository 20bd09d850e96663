"""Agent steps: a role gets a prompt and works in its own session, under the supervisor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fanfold.agents.backend import SUMMARY_CHARS, SessionFailed, SessionRequest
from fanfold.agents.entries import AgentBegin, Entry, ToolCall, UserInput
from fanfold.agents.role import Role
from fanfold.errors import AuthorError, FanfoldError, WorldError
from fanfold.kernel.plan import JSON, Step
from fanfold.kernel.state import Loop, Node, Scope
from fanfold.language import tree
from fanfold.language.checks import Unit, why_read_only
from fanfold.language.consent import Effect
from fanfold.language.draft import UNKNOWN, Draft, NamedRole, RoleFacts, find_role
from fanfold.language.json_text import as_text
from fanfold.language.leaf_steps import AgentBody, WrittenStep, read_body
from fanfold.language.references import TextPlace, warn_of_braces
from fanfold.language.tables import Entries, Notes, quoted
from fanfold.language.template import (
    Hole,
    TemplateError,
    UnresolvedPath,
    parse_template,
    render,
    render_known,
    resolve,
)
from fanfold.language.terminal import shorten_line, shorten_middle
from fanfold.language.tree import Scalar
from fanfold.sessions.log import read_entries
from fanfold.steps.ids import is_held, is_interruption, session_id
from fanfold.steps.order import Job, NeededAgreement, Order, Outcome
from fanfold.steps.run_config import RunConfig, with_stages
from fanfold.steps.step_type import (
    Execution,
    Filling,
    LeafType,
    Preparation,
    Services,
    StepLabel,
    StepReply,
    add_usage,
    text_of,
    value_of,
)
from fanfold.steps.values import FEEDBACK_CHARS, MAX_CLAIMS, Piece, Values, extract
from fanfold.store.protocol import LARGE_BYTES, Store

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


def feedback_section(node: Node, feedback: JSON) -> str:
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
FROM_LAST_ROUND = "Feedback on the last round, which did not pass:"
MAX_EXTRACT = 1_600
SKILL_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_ONE_STEP_EACH = "write a step for each, with a `when`; or choose one for the run with --model"


class AgentJob(Job, frozen=True):
    """The job of an agent step."""

    settings: AgentBody
    prompt: str
    inputs: dict[str, JSON]
    judged: str = ""
    """For a critic or reviewer: the text that it judges and may quote."""
    pieces: tuple[Piece, ...] = ()
    """For a fold: the outputs to summarize."""
    phase: str = ""
    """For a fold: the path of its phase."""
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
    job = AgentJob
    waiting = "waits for an answer"

    def from_recipe(self, step: WrittenStep) -> AgentBody:
        entries, unit = step.entries, step.unit
        node = entries.nodes.get("agent")
        picked = node if isinstance(node, Scalar) and "{{" in node.text else None
        listed = [
            find_role(scalar.text, scalar, unit.around, unit.notes) for scalar in entries.scalars("agents")
        ]
        _check_listed(step, picked, listed)
        if picked is not None:  # the role with the most permissions determines the step's claims and cost
            writers = [role for role in listed if not role.facts.read_only]
            role = (writers or listed or [NamedRole("default", None, UNKNOWN, known=False)])[0]
        elif isinstance(node, Scalar):
            role = find_role(node.text, node, unit.around, unit.notes)
        else:
            named = unit.defaults.agent or "default"
            role = find_role(named, None, unit.around, unit.notes, entries.head())
        step.draft.facts.role = role
        for key in ("model", "reasoning_effort"):
            warn_of_braces(entries.nodes.get(key), f'"{key}"', _ONE_STEP_EACH, unit.notes)
        for possible in listed or [role]:
            allowed, around, notes = possible.facts.tools, unit.around, unit.notes
            for item in entries.scalars("tools"):
                if allowed is None and possible.facts.backend is None and not around.is_tool(item.text):
                    names = around.tool_names()
                    near = notes.did_you_mean(item.text, names)
                    hint = near or f"there are {', '.join(names)}"
                    notes.error("recipe.bad_value", f"there is no tool {quoted(item.text)}", item, hint)
                if allowed is not None and item.text not in allowed:
                    hint = (
                        notes.did_you_mean(item.text, allowed)
                        or "a step may only narrow the tools of its role"
                    )
                    notes.error("recipe.bad_value", f"the role has no tool {quoted(item.text)}", item, hint)
            _check_isolation(step, possible)
        for item in entries.scalars("skills"):  # whether they exist is checked when a run starts
            if not re.fullmatch(SKILL_NAME, item.text):
                hint = "the name of a folder: letters, digits, _ and -"
                unit.notes.error(
                    "recipe.bad_value", f"{quoted(item.text)} is not the name of a skill", item, hint
                )
        return AgentBody(
            agent=role.name,
            agent_version=role.version,
            pick="" if picked is None else unit.references.template(picked, step.place),
            agents=tuple(scalar.text for scalar in entries.scalars("agents")) if picked is not None else (),
            prompt=_prompt_of(step, role),
            idle_timeout_ms=entries.milliseconds("idle_timeout"),
            continue_from=_continued(step),
            model=entries.text("model") or unit.defaults.model,
            reasoning_effort=entries.text("reasoning_effort"),
            max_turns=entries.integer("max_turns"),
            may_ask=_may_ask(step, listed or [role]),
            skills=tuple(item.text for item in entries.scalars("skills")),
            tools=tuple(item.text for item in entries.scalars("tools")) if "tools" in entries.nodes else None,
        )

    def complete(self, draft: Draft, settings: AgentBody) -> AgentBody:
        if draft.entries.text("context") == "none":
            return settings
        summaries = tuple(name for name in draft.facts.depends_on if name not in draft.placed)
        return replace(settings, summaries=summaries) if summaries else settings

    def label(self, step: Step, settings: AgentBody) -> StepLabel:
        who = f"one of {', '.join(settings.agents)}" if settings.pick else settings.role
        return StepLabel("writer" if step.posture == "writer" else "reader", who)

    def effects(self, step: Step, _settings: AgentBody, filling: Filling) -> Iterator[Effect]:
        if step.posture == "writer":
            how = "" if step.merge == "auto" else f" ({step.merge})"
            how = " in the project itself" if step.workspace_mode == "shared" else how
            yield Effect(step.id, "write", f"writes{how}", ", ".join(map(filling.pattern, step.write_set)))

    def circumstances(self, frozen: RunConfig, settings: AgentBody) -> JSON:
        """The role with the roles of its stages, the models, and the project's instructions to agents."""
        own = frozen.role_of(settings)
        stages = with_stages({own.name: own}, frozen.roles.get)
        instructions = msgspec.to_builtins(frozen.instructions)
        models = (frozen.model_of(settings) or frozen.default_model, frozen.model)
        return (msgspec.to_builtins(stages), models, instructions, frozen.backend_of(own))

    def prepare(self, step: Preparation, settings: AgentBody) -> AgentJob:
        parts = [text_of(settings.prompt, step.names)] if settings.prompt is not None else []
        prompt = "\n\n".join((*parts, *(section.text for section in sections_of(step, settings))))
        if settings.pick:
            name = text_of(settings.pick, step.names).strip()
            if name not in settings.agents:
                return AgentJob(settings, prompt, step.inputs, unlisted=name or "nothing")
            role, marked, version = name.partition("@")
            settings = replace(settings, agent=role, agent_version=version if marked else None)
        if settings.purpose == "fold":
            loop = step.node.parent
            body = loop.children[-2] if isinstance(loop, Loop) else None  # the last iteration of its phase
            return AgentJob(
                settings,
                prompt,
                step.inputs,
                pieces=tuple(step.values.pieces(body)) if isinstance(body, Scope) else (),
                phase=loop.path if loop is not None else "",
                agents_left=step.values.agents_left(),
            )
        placed: list[str] = []
        if len(prompt) >= LARGE_BYTES:  # first the texts inserted by the template, then those of inputs
            holes = [part for part in parse_template(settings.prompt or "") if not isinstance(part, str)]
            values = (*(resolve(hole.path, step.names) for hole in holes), *step.inputs.values())
            placed = [value for value in values if isinstance(value, str) and len(value) >= LARGE_BYTES]
        judged = _judged(step.values, step.node, settings)
        return AgentJob(settings, prompt, step.inputs, judged, placed=tuple(placed))

    async def perform(self, services: Services, execution: Execution[AgentJob]) -> Outcome:
        order, job, place = execution.order, execution.job, execution.place
        if job.unlisted:
            message = f"{order.path} was given the role {job.unlisted!r:.80}, which is not among its agents"
            hint = f"it may be one of: {', '.join(job.settings.agents)}"
            denied = order.failure("permission", "agent.not_listed", message, hint, retryable=False)
            return Outcome(error=denied)
        _check_place(services.store, order, place)
        role = services.session_role(order.step, job.settings)
        request = _request(role, execution, services)
        if job.settings.purpose == "fold":
            return await _fold(services, execution, request)
        try:
            result = await services.supervisor.run_step(
                request,
                backend=job.backend or services.frozen.backend_of(role),
                idle_ms=job.settings.idle_timeout_ms,
                on_progress=execution.progress,
                journal=services.journal,
                # In a snapshot the reply is durable before the merge starts, so that merged work is never
                # requested again. Elsewhere the reply is written with the end of the step.
                durable=place.child is not None,
            )
        except SessionFailed as error:
            return Outcome(error=error.failure, usage=error.usage)
        if result.asks is not None:
            question = f"{role.name} asks: {result.asks.question}"
            return Outcome(asks=NeededAgreement(question, result.asks.show, result.asks.call))
        output = _looked_up(services, execution, result.output) if job.judged else result.output
        warning = None
        if result.denied:
            reason = shorten_line(next(iter(result.denied.values())), SUMMARY_CHARS)
            message = f"{order.path} was denied {', '.join(result.denied)}: {reason}"
            hint = "extend its role, its write_set or the run's permission if it needs them"
            warning = order.failure("permission", "agent.denied", message, hint, retryable=False)
        return Outcome(output, None, result.summary, result.usage, warning)

    def answer(self, step: Preparation, _settings: AgentBody, reply: StepReply) -> Outcome:
        if reply.text is None or not reply.text.strip():
            message = f"the agent of {step.node.path} asks a question that needs a text"
            hint = "an answer is text, given with the command `answer`"
            raise AuthorError("question.needs_text", message, hint=hint)
        return Outcome(reply.text)

    def rescue(self, job: AgentJob, outcome: Outcome) -> Outcome:
        """An extract of the outputs if the fold of a phase failed, so that the work is not lost."""
        failure = outcome.error
        if job.settings.purpose != "fold" or failure is None or is_held(failure):
            return outcome
        message = f"no summary was made of it: {failure.message or failure.code}"
        warning = replace(failure, code="fold.extract", message=message, hint="")
        output = (
            f"(Extract of the outputs; they could not be summarized.)\n{extract(job.pieces, MAX_EXTRACT)}"
        )
        return Outcome(output, None, output, outcome.usage, warning, outcome.evidence)

    def task(self, job: AgentJob) -> str:
        return job.prompt

    def who(self, job: AgentJob) -> str:
        return job.settings.role if job.settings.pick and not job.unlisted else ""


def _check_place(store: Store, order: Order[AgentJob], place: StepWorkspace) -> None:
    """Raise `workspace.lost` if a session would continue without the files that it changed."""
    continues = order.execution > 1 or order.home != order.session
    if not continues or place.child is None or not place.is_new:
        return
    if any(isinstance(entry, ToolCall | AgentBegin) for entry in read_entries(store, order.home)):
        message = f"the workspace of {order.path} is gone, and its agent's changes with it"
        hint = f"fanfold fork {order.root} --from {order.typed_path} runs the step again from the start"
        raise WorldError("workspace.lost", message, hint=hint)


GO_ON = "Continue from here."
FILES_MOVED = "The files are as they are now, which may not be as you left them: look before you rely on it."


def interrupted(store: Store, node: Node, attempt: int) -> Sequence[Entry]:
    """The entries of an attempt whose agent is a program and was interrupted; empty for any other attempt.

    The program still knows its conversation, so the next attempt or a retry of the run continues it.
    `node.error` must be the failure of that attempt.
    """
    if not is_interruption(node.error):
        return ()
    return _resumable(store, session_id(node.run.id, node.path, attempt))


def _resumable(store: Store, session: str) -> Sequence[Entry]:
    """The entries of a session if its agent is a program that can continue its conversation."""
    entries = read_entries(store, session)
    known = any(isinstance(entry, AgentBegin) and entry.conversation for entry in entries)
    return entries if known else ()


def conversation(store: Store, frozen: RunConfig, order: Order[AgentJob]) -> list[Entry]:
    """The earlier entries of the conversation that a step continues.

    They are the entries that a fork took over, or those of all earlier turns. A turn that never started adds
    the message that it was sent.
    """
    later: list[Entry] = []
    path = order.path
    for turn in (*reversed(order.turns), None):
        taken = frozen.taken_up.get(order.in_tree(path))
        if taken is not None:
            return [*(recorded.entry for recorded in taken.entries), *later]
        if turn is not None and turn.session:
            later = [*read_entries(store, turn.session), *later]
        elif turn is not None:
            later = [UserInput(text=render(parse_template(turn.prompt), {})), *later]
        path = turn.path if turn is not None else path
    return later


def words_of(node: Node) -> str:
    """The message to a turn of a subagent."""
    return render(parse_template(read_body(AgentBody, node.step).prompt or ""), {})


def _request(role: Role, execution: Execution[AgentJob], services: Services) -> SessionRequest:
    order, job, place = execution.order, execution.job, execution.place
    path = order.tree_path
    taken = services.frozen.taken_up.get(path)
    before = _resumable(services.store, order.interrupted) if order.interrupted else ()
    say = f"{GO_ON} {FILES_MOVED}" if before else taken.say if taken is not None else ""
    return SessionRequest(
        session_id=order.session,
        run_id=order.run,
        step=path,
        attempt=order.attempt,
        execution=order.execution,
        role=role,
        prompt=say or asked_of(role, job),
        placed=job.placed,
        output_schema=order.step.output_schema,
        outputs=order.step.outputs,
        workspace=place.path,
        folder=str(services.memory.parent),
        read_set=order.read_set,
        write_set=order.write_set,
        save_files=services.isolation.saver(order, place),
        root=job.settings.purpose == "lead",
        earlier=[*conversation(services.store, services.frozen, order), *before],
        account=execution.account,
        texts=execution.texts,
        strays=lambda: services.isolation.strays(order, place),
        probe=job.probe,
    )


def asked_of(role: Role, job: AgentJob) -> str:
    """The prompt of the step. A step without its own prompt gets that of its role, filled with its inputs."""
    if job.settings.prompt is not None or role.prompt_template is None:
        return job.prompt
    own = render(parse_template(role.prompt_template), {"inputs": job.inputs})
    return "\n\n".join(part for part in (own, job.prompt) if part)


class _ForeseenValues:
    """Placeholders for the outputs of steps, before the run."""

    def summary(self, node: Node) -> str:
        return f"{{{{steps.{node.step.id}.output}}}}"

    def pieces(self, _phase: Scope) -> list[Piece]:
        return []

    claims = pieces


def foreseen_prompt(node: Node, action: AgentBody, role: Role, names: dict[str, JSON]) -> str:
    """The prompt of a step that has not run. Values that are known only during the run stay as `{{…}}`."""
    inputs: dict[str, JSON] = {}
    for name, value in node.step.inputs.items():
        try:
            inputs[name] = value_of(value, names)
        except UnresolvedPath:
            inputs[name] = f"{{{{{name}}}}}"
    step = Preparation(values=cast(Values, _ForeseenValues()), node=node, names=names, inputs=inputs)
    own, known = (
        (action.prompt, names) if action.prompt is not None else (role.prompt_template, {"inputs": inputs})
    )
    parts = [] if own is None else [render_known(parse_template(own), known)]
    return "\n\n".join((*parts, *(section.text for section in sections_of(step, action))))


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
            value = names.get(name)
            if value and f"{{{{{name}}}}}" not in (action.prompt or "").replace(" ", ""):
                parts.append(Section(f"{heading}\n{as_text(value)}", name))
    elif action.purpose == "work" and (text := feedback_section(node, names.get("feedback"))):
        parts.append(Section(text, "feedback"))
    return parts


async def _fold(services: Services, execution: Execution[AgentJob], request: SessionRequest) -> Outcome:
    """Summarize a phase, in a tree of sessions if it does not fit into one.

    Its outputs are published as files for users and later phases. If they cannot be written now, they are
    written later with the other files of the run, which are derived from the log.
    """
    from fanfold.steps.phases import Folding, publish_phase

    job, place = execution.job, execution.place

    def publish(summary: str) -> None:
        with suppress(OSError):
            publish_phase(services.memory, execution.order.run, job.phase, job.pieces, summary)

    publish("")
    folding = Folding(services, request, place, execution.progress)
    folded = await folding.run(job.pieces, job.agents_left)
    if folded.held is not None:
        return Outcome(error=folded.held, usage=folded.usage)
    request = replace(request, prompt=f"{request.prompt}\n\n{folded.text}" if folded.text else request.prompt)
    try:
        result = await services.supervisor.run_step(
            request,
            backend=services.frozen.backend_of(request.role),
            idle_ms=job.settings.idle_timeout_ms,
            on_progress=execution.progress,
            journal=services.journal,
        )
    except SessionFailed as error:
        return Outcome(error=error.failure, usage=add_usage(folded.usage, error.usage))
    publish(str(result.output))
    usage = add_usage(folded.usage, result.usage)
    return Outcome(result.output, None, result.summary, usage, folded.warning)


def _judged(values: Values, node: Node, settings: AgentBody) -> str:
    """The text that a critic or reviewer gets about the phase that it judges."""
    if settings.purpose not in ("critic", "review"):
        return ""
    from fanfold.steps.phases import show

    phase = node.parent
    while phase is not None and not isinstance(phase, Scope):
        phase = phase.parent
    if phase is None:
        return ""
    if settings.purpose == "critic":
        return f"Result:\n\n{show(values.pieces(phase))[0]}"
    claims = values.claims(phase)
    listed = [Piece(f"Claim {claim.name}", claim.text) for claim in claims[:MAX_CLAIMS]]
    return show(listed)[0] or "There are no claims: answer with an empty list."


def _looked_up(services: Services, execution: Execution[AgentJob], output: JSON) -> JSON:
    """The reply of a critic or reviewer, with its evidence checked against the files of its workspace."""
    from fanfold.agents.tools.files import ArtifactFiles, PublishedFiles
    from fanfold.steps.phases import CitedEvidence, judged_verdict

    job, place = execution.job, execution.place
    beside: list[PublishedFiles | ArtifactFiles] = [PublishedFiles(services.memory, execution.order.run)]
    if place.artifacts is not None:
        beside.append(ArtifactFiles(place.artifacts, place.path))
    checked = CitedEvidence(place.path, job.judged, beside).checked(output)
    if job.settings.purpose == "critic" and isinstance(checked, dict):
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


# -----------------------------------------------------------------------------------------------------------
# Checks of the step in a recipe


def _check_isolation(step: WrittenStep, role: NamedRole) -> None:
    """Refuse the shared workspace for an isolated role that can write."""
    entries, notes = step.entries, step.notes
    if not role.facts.isolated:
        return
    mode = entries.text("workspace_mode") or step.unit.defaults.workspace_mode
    if mode == "shared" and not why_read_only(step.draft, role.facts, role.name):
        at = entries.nodes.get("workspace_mode") or entries.head()
        message = f"role {quoted(role.name)} (isolation, hooks) needs an isolated workspace"
        hint = "write `workspace_mode: isolated` on this step"
        notes.error("recipe.conflicting_keys", message, at, hint)


def _check_listed(step: WrittenStep, picked: Scalar | None, listed: list[NamedRole]) -> None:
    """Check that a template has the list of its possible roles, and the list has a template."""
    entries, notes = step.entries, step.notes
    if picked is not None and not listed and not entries.has("agents"):
        hint = "list them: agents: [explorer, worker]"
        notes.error(
            "recipe.missing_key",
            'a template in "agent" needs "agents": the roles that it may give',
            picked,
            hint,
        )
    elif entries.has("agents") and picked is None:
        message = '"agents" needs a template in "agent", which this step does not have'
        notes.error("recipe.conflicting_keys", message, entries.keys["agents"])
    elif "agents" in entries.nodes and not listed:
        notes.error("recipe.bad_value", '"agents" must not be empty', entries.nodes["agents"])


def _continued(step: WrittenStep) -> str | None:
    """Return the step whose conversation continues here; the edge to it counts as written."""
    node, draft, notes = step.entries.nodes.get("continue"), step.draft, step.notes
    if not isinstance(node, Scalar):
        return None
    target = draft.scope.by_id.get(node.text)
    problem = hint = ""
    if target is None:
        hint = notes.did_you_mean(node.text, draft.scope.by_id.keys() - {draft.id})
        message = f"step {quoted(draft.id)} continues {quoted(node.text)}, which does not exist here"
        notes.error("recipe.unknown_step", message, node, hint)
    elif target.type != "agent":
        problem = f"{quoted(node.text)} is not an agent step, so it has no conversation"
    elif any(target.entries.has(key) or step.entries.has(key) for key in ("for_each", "repeat")):
        problem = "a conversation continues from one step to one step, not from or into a map or a loop"
    elif _meant(target.entries, step.unit) != _meant(step.entries, step.unit):
        problem = f"{quoted(node.text)} has another role, so it cannot continue the conversation"
        named = target.entries.text("agent")
        hint = f"write agent: {named}" if named and not step.entries.has("agent") else ""
    elif draft is target:
        problem = "a step cannot continue its own conversation"
    if problem:
        notes.error("recipe.conflicting_keys", problem, node, hint)
    elif target is not None:
        target.used = True
        draft.written.setdefault(target.id, node)
        draft.placed.add(target.id)
    return node.text


def _meant(entries: Entries, unit: Unit) -> RoleFacts | str:
    """Return the role that a step names, under any of its names; a template is returned as text."""
    named = entries.text("agent") or unit.defaults.agent or "default"
    name, _, version = named.partition("@")
    return unit.around.roles.find(name, version or None) or named


class _FromFile(Scalar):
    """Text from another file: its problems are shown where the file is named."""

    __slots__ = ()

    def span(self, i: int, j: int) -> tuple[int, int]:
        del i, j
        return self.start, self.end


def _prompt_of(step: WrittenStep, role: NamedRole) -> str | None:
    entries, notes = step.entries, step.notes
    prompt = step.template("prompt", placing=True)
    if prompt is not None and not prompt.strip():
        notes.error("recipe.bad_value", "the prompt is empty", entries.nodes["prompt"])
    if not entries.lacks("prompt"):
        return prompt
    if not entries.lacks("prompt_file"):
        # Return the template in the file of `prompt_file`, with checked references
        node, notes = step.entries.nodes.get("prompt_file"), step.notes
        if not isinstance(node, Scalar):
            return None
        ref = node.text if "/" in node.text else f"./{node.text}"
        try:
            text = step.unit.around.library.find(ref, step.unit.source.file).data.decode()
        except FanfoldError as error:
            notes.error("recipe.bad_value", f"the prompt cannot be read: {error.message}", node, error.hint)
            return None
        except UnicodeDecodeError:
            notes.error("recipe.encoding", f"{quoted(node.text)} is not UTF-8", node)
            return None
        if not text.strip():
            notes.error("recipe.bad_value", f"{quoted(node.text)} is empty", node)
        place = TextPlace(step.place.draft, step.place.scope, step.place.names, placing=True)
        written = _FromFile(text, text, node.start, node.end, "", "")
        return step.unit.references.template(written, place)
    if role.facts.prompt_template:
        _check_prompt_template(step.draft, role.name, role.facts.prompt_template, notes)
    elif entries.lacks("inputs") and role.known:
        message = f"step {quoted(step.draft.id)} has neither {quoted('prompt')} nor {quoted('inputs')}"
        hint = f"role {quoted(role.name)} has no prompt template of its own"
        notes.error("recipe.missing_key", message, entries.head(), hint)
    return None


def _check_prompt_template(draft: Draft, role: str, text: str, notes: Notes) -> None:
    """Check that the inputs of a step include all values of the role's own template."""
    given = draft.entries.nodes.get("inputs")
    known = [key.text for key, _ in given.entries] if isinstance(given, tree.Mapping) else []
    whose = f"the prompt template of role {quoted(role)}"
    try:
        paths = [part.path for part in parse_template(text) if isinstance(part, Hole)]
    except TemplateError as error:
        notes.error("recipe.bad_template", f"{whose} cannot be used: {error.message}", draft.entries.head())
        return
    for path in paths:
        if path.root != "inputs":
            message = f"{whose} uses {quoted(path.text)}, but only inputs are allowed"
            notes.error("recipe.bad_template", message, draft.entries.head())
        elif path.parts[0] not in known:
            message = f"{whose} uses {quoted(path.text)}, which step {quoted(draft.id)} does not set"
            hint = notes.did_you_mean(str(path.parts[0]), known) or "write it in the step's inputs"
            notes.error("recipe.bad_template", message, draft.entries.head(), hint)


def _may_ask(step: WrittenStep, roles: Sequence[NamedRole]) -> bool:
    """Read `may_ask`, and refuse it for a role whose agent is a program: it has its own tools."""
    wanted = step.entries.flag("may_ask")
    program = next((role for role in roles if role.facts.backend not in (None, "model", "local")), None)
    if wanted and program is not None:
        message = f"role {quoted(program.name)} runs on {program.facts.backend}, which cannot ask"
        hint = "remove `may_ask`, or use a role whose agent is a model"
        step.notes.error("recipe.conflicting_keys", message, step.entries.keys["may_ask"], hint)
    return wanted
