"""Approval steps: a question that a person answers."""

from __future__ import annotations

import shlex

from fanfold.errors import AuthorError
from fanfold.kernel.plan import JSON, Step
from fanfold.kernel.state import BY_DEFAULT, Node, judge
from fanfold.language.expressions import evaluate
from fanfold.language.json_text import as_text, fitting, misfits, read_json
from fanfold.language.keys import YES_OR_NO
from fanfold.language.leaf_steps import ApprovalBody, AskBody
from fanfold.language.template import UnresolvedPath
from fanfold.steps.ids import root_of, typed_path
from fanfold.steps.step_type import LeafType, Outcome, Preparation, Question, StepLabel, StepReply, text_of


class ApprovalSteps(LeafType[ApprovalBody, Question]):
    """The step type of approvals."""

    body = ApprovalBody
    waiting = "waits for approval"

    def label(self, _step: Step, _said: ApprovalBody) -> StepLabel:
        return StepLabel("approval", "waits for a person")

    def prepare(self, step: Preparation, said: ApprovalBody) -> Question:
        show = text_of(said.show, step.names) if said.show is not None else ""
        return Question(text_of(said.approve, step.names), show, said.choices, default=said.default)

    def answer(self, step: Preparation, said: ApprovalBody, reply: StepReply) -> Outcome:
        node = step.node
        if reply.text is not None:
            message = f"{node.path} is an approval, which takes a decision"
            raise AuthorError("approval.not_text", message, hint=_how(node, said.choices))
        if reply.decision not in (said.choices or YES_OR_NO):
            message = f"{node.path} cannot be answered with {reply.decision!r}"
            raise AuthorError("approval.bad_choice", message, hint=_how(node, said.choices))
        return Outcome(_output(reply), judge(node, reply.decision, reply.by, reply.comment))

    def at_timeout(self, said: ApprovalBody) -> JSON:
        return _output(StepReply(said.default or "", BY_DEFAULT))


def _how(node: Node, choices: tuple[str, ...]) -> str:
    command = f"fanfold approve {root_of(node)} {typed_path(node)}"
    if not choices:
        return f"it has no choices: {command}, or reject"
    return f"choose one of {', '.join(choices)}: {command} --choice {shlex.quote(choices[0])}"


def _output(reply: StepReply) -> JSON:
    return {"decision": reply.decision, "by": reply.by, "comment": reply.comment, "edited": reply.edited}


# -----------------------------------------------------------------------------------------------------------
# Ask steps: only a person answers, with text or data

MAX_CHOICES = 1_000


class AskSteps(LeafType[AskBody, Question]):
    """The step type of questions."""

    body = AskBody
    waiting = "asks"

    def label(self, _step: Step, _said: AskBody) -> StepLabel:
        return StepLabel("ask", "asks a person")

    def prepare(self, step: Preparation, said: AskBody) -> Question:
        show = text_of(said.show, step.names) if said.show is not None else ""
        choices = tuple(as_text(one) for one in _offered(said, step))
        schema = step.node.step.output_schema
        question = text_of(said.ask, step.names)
        default = None if said.default is None else as_text(said.default)
        return Question(question, show, choices, kind="question", schema=schema, default=default)

    def answer(self, step: Preparation, said: AskBody, reply: StepReply) -> Outcome:
        node = step.node
        if reply.text is None:
            message = f"{node.path} is a question, to be answered in words"
            hint = f"put it behind this: fanfold answer {root_of(node)} {typed_path(node)}"
            raise AuthorError("question.needs_text", message, hint=hint)
        if said.choices or said.choose_from:
            return Outcome(_chosen(node, _offered(said, step), reply.text))
        if node.step.output_schema is not None:
            return Outcome(_as_data(node, node.step.output_schema, reply.text))
        if not reply.text.strip():
            raise AuthorError("question.bad_answer", f"the answer to {node.path} is empty")
        return Outcome(reply.text)

    def at_timeout(self, said: AskBody) -> JSON:
        return said.default


def _offered(said: AskBody, step: Preparation) -> list[JSON]:
    if not said.choose_from:
        return list(said.choices)
    found = evaluate(said.choose_from, step.names)
    if not isinstance(found, list) or not found:
        raise UnresolvedPath("choices needs a list with something in it")
    if len(found) > MAX_CHOICES:
        raise UnresolvedPath(f"choices gave {len(found):,} answers, {MAX_CHOICES:,} are allowed")
    if said.default is not None and said.default not in found:
        raise UnresolvedPath(f"the default {as_text(said.default)!r} is not one of the choices")
    return found


def _chosen(node: Node, offered: list[JSON], text: str) -> JSON:
    for one in offered:
        if as_text(one).strip() == text.strip():
            return one
    listed = ", ".join(as_text(one) for one in offered[:20])
    message = f"{node.path} cannot be answered with {text.strip()!r}"
    raise AuthorError("question.bad_answer", message, hint=f"choose one of: {listed}")


def _as_data(node: Node, schema: JSON, text: str) -> JSON:
    """The answer as a value: JSON if it matches the schema, else the text itself."""
    values: list[JSON] = [text.removesuffix("\n")]
    try:
        values.insert(0, read_json(text, "the answer"))
    except ValueError:
        pass
    problems = [misfits(schema, value) for value in values]
    for value, problem in zip(values, problems, strict=True):
        if not problem:
            return value
    message = f"{node.path} cannot be answered so: {problems[0]}"
    raise AuthorError("question.bad_answer", message, hint=f"answer with {fitting(schema)}")
