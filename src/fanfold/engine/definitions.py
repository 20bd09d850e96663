"""How a recipe itself defines values that are only known during the run: the rows of a question about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from fanfold.engine.forecast import uses_of
from fanfold.kernel.plan import Constant, Fields, Output, Plan, Ref, Step, Template
from fanfold.language.leaf_steps import AgentBody, ApprovalBody, find_body
from fanfold.language.template import Hole, parse_path, parse_template
from fanfold.steps.ask import AskBody
from fanfold.steps.set_and_end import EndBody, SetBody
from fanfold.steps.step_type import shown


class Definition(Struct, frozen=True):
    """How a recipe defines a value: a row of a question, and the names that the definition reads."""

    row: str
    reads: Sequence[str] = ()


def leaf_sources(step: Step, who: str) -> Iterator[Definition]:
    """Yield how the recipe defines the output of a step without steps inside."""
    if (values := find_body(SetBody, step)) is not None:
        for name, value in values.set.items():
            yield Definition(f"where {who} gives {name} = {value}", names_in(value))
    elif (asked := find_body(AskBody, step) or find_body(ApprovalBody, step)) is not None:
        if isinstance(asked, AskBody) and asked.choose_from:
            yield Definition(
                f"where {who} gives a choice of {asked.choose_from}", names_in(asked.choose_from)
            )
        if asked.choices:
            yield Definition(f"where {who} gives a choice of {shown(list(asked.choices))}")
        if asked.has_default if isinstance(asked, AskBody) else asked.default is not None:
            yield Definition(f"where {who} gives {shown(asked.default)} if no person answers")
    elif (ending := find_body(EndBody, step)) is not None:
        outputs = [] if ending.output is None else [ending.output]
        for output in (*outputs, *([Template(ending.message)] if ending.message else [])):
            yield Definition(f"where {who} ends it with {output_text(output)}", names_of(output))
    elif (agent := find_body(AgentBody, step)) is not None:
        task = Fields({"prompt": Template(agent.prompt or ""), **step.inputs})
        reads = [*names_of(task), *(f"steps.{name}" for name in agent.summaries)]
        yield Definition(f"where {who} gives what {agent.role} answers to {output_text(task)}", reads)


def failure_texts(step: Step, who: str, *, fails: bool) -> Iterator[Definition]:
    """Yield the form that an output must have, and with `fails` all texts that a failure may quote."""
    body = find_body(AgentBody, step)
    until = step.repeat.until if step.repeat is not None else None
    for text in (step.when, step.for_each, until, body.pick if body is not None else None):
        if text and fails:
            yield Definition(f"where {who} may fail by {text}", [] if "{{" in text else names_in(text))
    for name, declared in (("output_schema", step.output_schema), ("outputs", list(step.outputs))):
        if declared not in (None, []):
            yield Definition(f"where {who} must match its {name} {shown(declared)}")


def call_inputs(step: Step, plan: Plan) -> Iterator[Definition]:
    """Yield the inputs that a step passes to a recipe, and the defaults of the others."""
    for declared in plan.inputs:
        row = f"where {plan.name}: inputs.{declared.name} is"
        row += f" one of {shown(list(declared.enum))}:" if declared.enum else ""
        if (given := step.inputs.get(declared.name)) is not None:
            yield Definition(f"{row} {output_text(given)}", names_of(given))
        elif declared.has_default:
            yield Definition(f"{row} {shown(declared.default)}")


def names_in(expression: str) -> list[str]:
    """Return the inputs, steps and items that an expression reads."""
    return [_joined(use.name, use.parts) for use in uses_of(expression)]


def names_of(output: Output) -> list[str]:
    """Return the inputs, steps and items that an output reads."""
    if isinstance(output, Fields):
        return [name for value in output.fields.values() for name in names_of(value)]
    if isinstance(output, Constant):
        return []
    if isinstance(output, Ref):
        paths = [parse_path(output.path)]
    else:
        paths = [part.path for part in parse_template(output.text) if isinstance(part, Hole)]
    return [_joined(path.root, path.parts) for path in paths]


def _joined(root: str, parts: Sequence[str | int]) -> str:
    return f"{root}.{parts[0]}" if root in ("inputs", "steps") and parts else root


def output_text(output: Output) -> str:
    """Return the text of an output definition as in the recipe."""
    if isinstance(output, Fields):
        fields = (f"{name}: {output_text(value)}" for name, value in output.fields.items())
        return f"{{{', '.join(fields)}}}"
    if isinstance(output, Constant):
        return shown(output.value)
    return f"{{{{{output.path}}}}}" if isinstance(output, Ref) else output.text
