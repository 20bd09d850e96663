"""Ask and approval steps: questions that only a person answers, with text, data or a decision."""

from __future__ import annotations

import shlex
from typing import ClassVar

from fanfold.errors import AuthorError
from fanfold.kernel.plan import JSON, Step, Traits
from fanfold.kernel.state import BY_DEFAULT, Node, judge
from fanfold.language import keys
from fanfold.language.expressions import evaluate
from fanfold.language.json_text import as_text, fitting, misfits, read_json
from fanfold.language.keys import YES_OR_NO, StepSyntax
from fanfold.language.leaf_steps import ApprovalBody, Body, WrittenStep
from fanfold.language.tables import kind_of, quoted
from fanfold.language.template import UnresolvedPath
from fanfold.language.tree import Scalar, plain
from fanfold.steps.ids import root_of, typed_path
from fanfold.steps.order import Outcome, Question
from fanfold.steps.step_type import LeafType, Preparation, StepLabel, StepReply, text_of

MAX_CHOICES = 1_000


BY_TIMEOUT = "default"
"""The trait only means that there is a default; its value is in the body."""


class AskBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = keys.ASK
    ask: str
    show: str | None = None
    choices: tuple[str, ...] = ()
    choose_from: str = ""
    """An expression instead of choices."""
    default: JSON = None
    has_default: bool = False

    def traits(self) -> Traits:
        default = BY_TIMEOUT if self.has_default else None
        return Traits(slot=False, workspace="none", waits="person", default=default)


class AskSteps(LeafType[AskBody, Question]):
    """The step type of questions."""

    body = AskBody
    waiting = "asks"

    def from_recipe(self, step: WrittenStep) -> AskBody:
        entries, node = step.entries, step.entries.nodes.get("choices")
        choices = _read_choices(step)
        if entries.has("choices") and entries.has("output_schema"):
            message = "a question has choices or an output_schema, not both"
            step.notes.error("recipe.conflicting_keys", message, entries.keys["choices"])
        _check_default(step, choices)
        choose_from = ""
        if isinstance(node, Scalar):
            choose_from = step.unit.references.expression(node, step.place, "list")
        return AskBody(
            ask=step.template("ask") or "",
            show=step.template("show"),
            choices=choices,
            choose_from=choose_from,
            default=plain(entries.nodes["default"]) if "default" in entries.nodes else None,
            has_default=entries.has("default"),
        )

    def label(self, _step: Step, _settings: AskBody) -> StepLabel:
        return StepLabel("ask", "a person answers")

    def prepare(self, step: Preparation, settings: AskBody) -> Question:
        show = text_of(settings.show, step.names) if settings.show is not None else ""
        choices = tuple(as_text(choice) for choice in _offered(settings, step))
        schema = step.node.step.output_schema
        question = text_of(settings.ask, step.names)
        default = None if settings.default is None else as_text(settings.default)
        return Question(question, show, choices, kind="question", schema=schema, default=default)

    def answer(self, step: Preparation, settings: AskBody, reply: StepReply) -> Outcome:
        node = step.node
        if reply.text is None:
            message = f"{node.path} is a question that needs a text"
            hint = f"add it to the command: fanfold answer {root_of(node)} {typed_path(node)}"
            raise AuthorError("question.needs_text", message, hint=hint)
        if settings.choices or settings.choose_from:
            text, offered = reply.text.strip(), _offered(settings, step)
            for choice in offered:
                if as_text(choice).strip() == text:
                    return Outcome(choice)
            listed = ", ".join(as_text(choice) for choice in offered[:20])
            message = f"{node.path} cannot be answered with {text!r}"
            raise AuthorError("question.bad_answer", message, hint=f"choose one of: {listed}")
        if node.step.output_schema is not None:
            return Outcome(_as_data(node, node.step.output_schema, reply.text))
        if not reply.text.strip():
            raise AuthorError("question.bad_answer", f"the answer to {node.path} is empty")
        return Outcome(reply.text)

    def at_timeout(self, settings: AskBody) -> JSON:
        return settings.default


def _read_choices(step: WrittenStep) -> tuple[str, ...]:
    """The listed choices of a step, which must differ."""
    node = step.entries.nodes.get("choices")
    choices = tuple(item.text for item in step.entries.scalars("choices"))
    differ = choices and len(set(choices)) == len(choices) and "" not in choices
    if node is not None and not isinstance(node, Scalar) and not differ:
        message = "choices must be different from each other, and at least one"
        step.notes.error("recipe.bad_value", message, node)
    return choices


def _offered(settings: AskBody, step: Preparation) -> list[JSON]:
    if not settings.choose_from:
        return list(settings.choices)
    choices = evaluate(settings.choose_from, step.names)
    if not isinstance(choices, list) or not choices:
        raise UnresolvedPath("choices needs a list with something in it")
    if len(choices) > MAX_CHOICES:
        raise UnresolvedPath(f"choices gave {len(choices):,} answers, {MAX_CHOICES:,} are allowed")
    if settings.default is not None and settings.default not in choices:
        raise UnresolvedPath(f"the default {as_text(settings.default)!r} is not one of the choices")
    return choices


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
    message = f"{node.path} does not accept this answer: {problems[0]}"
    raise AuthorError("question.bad_answer", message, hint=f"answer with {fitting(schema)}")


def _check_default(step: WrittenStep, choices: tuple[str, ...]) -> None:
    node, notes = step.entries.nodes.get("default"), step.notes
    if node is None:
        return
    value, schema = plain(node), step.draft.facts.output_schema
    if schema is not None:
        if problem := misfits(schema, value):
            notes.error("recipe.bad_value", f"the default does not match the output_schema: {problem}", node)
    elif choices and value not in choices:
        shown = node.text if isinstance(node, Scalar) else "this"
        hint = notes.did_you_mean(shown, choices) or "use one of " + ", ".join(choices)
        notes.error("recipe.bad_value", f"{quoted(shown)} is not one of the choices", node, hint)
    elif not step.entries.has("choices") and not isinstance(value, str):
        hint = "an answer is text where there is no output_schema"
        notes.error("recipe.bad_type", '"default" must be text', node, hint)


# -----------------------------------------------------------------------------------------------------------
# Approvals


class ApprovalSteps(LeafType[ApprovalBody, Question]):
    """The step type of approvals."""

    body = ApprovalBody
    waiting = "waits for approval"

    def from_recipe(self, step: WrittenStep) -> ApprovalBody:
        entries, notes = step.entries, step.notes
        choices, default = _read_choices(step), entries.nodes.get("default")
        if isinstance(entries.nodes.get("choices"), Scalar):
            message = "the choices of an approval are a list of text"
            hint = "an `ask` step takes an expression"
            notes.error("recipe.bad_type", message, entries.nodes["choices"], hint)
        allowed = choices or YES_OR_NO
        readable = "choices" in entries.nodes or not entries.has("choices")
        if isinstance(default, Scalar) and default.text not in allowed and readable:
            hint = notes.did_you_mean(default.text, allowed) or "use one of " + ", ".join(allowed)
            notes.error(
                "recipe.bad_value", f"{quoted(default.text)} is not one of the choices", default, hint
            )
        elif default is not None and not (isinstance(default, Scalar) and isinstance(default.value, str)):
            notes.error("recipe.bad_type", f'"default" must be text, not {kind_of(default)}', default)
        if entries.has("gate"):
            question = step.template("prompt") or entries.text("description")
            question = question or f"Continue with {step.draft.id}?"
        else:
            question = step.template("approve") or ""
        return ApprovalBody(question, step.template("show"), choices, entries.text("default"))

    def label(self, _step: Step, _settings: ApprovalBody) -> StepLabel:
        return StepLabel("approval", "a person approves")

    def prepare(self, step: Preparation, settings: ApprovalBody) -> Question:
        show = text_of(settings.show, step.names) if settings.show is not None else ""
        return Question(
            text_of(settings.approve, step.names), show, settings.choices, default=settings.default
        )

    def answer(self, step: Preparation, settings: ApprovalBody, reply: StepReply) -> Outcome:
        node = step.node
        if reply.text is not None:
            message = f"{node.path} is an approval, which takes a decision"
            raise AuthorError("approval.not_text", message, hint=_how(node, settings.choices))
        if reply.decision not in (settings.choices or YES_OR_NO):
            message = f"{node.path} cannot be answered with {reply.decision!r}"
            raise AuthorError("approval.bad_choice", message, hint=_how(node, settings.choices))
        return Outcome(_output(reply), judge(node, reply.decision, reply.by, reply.comment))

    def at_timeout(self, settings: ApprovalBody) -> JSON:
        return _output(StepReply(settings.default or "", BY_DEFAULT))


def _how(node: Node, choices: tuple[str, ...]) -> str:
    command = f"fanfold approve {root_of(node)} {typed_path(node)}"
    if not choices:
        return f"it has no choices: {command}, or reject"
    return f"choose one of {', '.join(choices)}: {command} --choice {shlex.quote(choices[0])}"


def _output(reply: StepReply) -> JSON:
    return {"decision": reply.decision, "by": reply.by, "comment": reply.comment, "edited": reply.edited}
